# SPDX-License-Identifier: Apache-2.0
"""budget.toml: as the constructors, its starter, and what it refuses."""

import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused

from pufferslice import (
    Guarantee,
    Repeated,
    Reserve,
    Scenario,
    Training,
    certify_budget,
    queries,
    verify,
)
from pufferslice.claims import Measure
from pufferslice.config.budget import BudgetFile, budget_of, is_budget, read_budget
from pufferslice.config.document import filled, toml_of
from pufferslice.config.starters import budget_files
from pufferslice.config.training import read_training, training_of
from pufferslice.errors import ArgumentError
from pufferslice.learning import Poisson, TrainingPlan, exactly, plan_with_noise
from pufferslice.learning.accountants import LogMoment

RNG = np.random.default_rng(4)


def table(n):
    return pa.table({"ill": RNG.choice(["yes", "no"], n), "age": RNG.uniform(20, 90, n)})


NOW, EARLIER = table(400), table(400)
SECTIONS = {
    "data": {"path": "now.parquet"},
    "prevalence": {
        "property": {"column": "ill", "equals": "yes"},
        "within": 0.05,
        "moments_from": "earlier.parquet",
    },
    "query": {"distribution": "worlds", "mean": ["age"], "clip": {"age": [18, 90]}},
}
TRAIN = {
    "data": {"dataset": "digits", "n_records": 400},
    "sampling": {"kind": "poisson", "rate": 0.5},
    "training": {"model": "linear", "seed": 0, "learning_rate": 1.0, "n_steps": 5, "clip_norm": 2},
    "output": {"folder": "run"},
}
PARTS = {
    "year": {"scenario": "year.toml", "share": 0.4},
    "months": {"scenario": "year.toml", "times": 12, "rows": [30, 40], "share": 0.3},
    "later": {"scenario": "year.toml", "reserve": True, "share": 0.1},
    "model": {"training": "train.toml", "share": 0.2},
}
BUDGET = {"claim": {"guess": 0.64, "coupling": "independent"}, "parts": PARTS}
SETTINGS = {"column": "ill", "value": "yes", "within": 0.05}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    pq.write_table(NOW, tmp_path / "now.parquet")
    pq.write_table(EARLIER, tmp_path / "earlier.parquet")
    (tmp_path / "year.toml").write_text(toml_of(SECTIONS), encoding="utf-8")
    (tmp_path / "train.toml").write_text(toml_of(TRAIN), encoding="utf-8")
    (tmp_path / "budget.toml").write_text(toml_of(BUDGET), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_as_the_constructors(folder):
    request = read_budget("budget.toml")
    query = queries.summary(mean=["age"], clip={"age": (18, 90)})
    scenario = Scenario.from_prevalence(NOW, query=query, moments_from=EARLIER, **SETTINGS)
    direct = certify_budget(
        {
            "year": scenario,
            "months": Repeated(scenario, times=12, rows=(30, 40)),
            "later": Reserve(scenario),
            "model": Training(
                differing=scenario.differing(),
                sampling=Poisson(n_records=400, rate=0.5),
                clip_norm=2,
                n_steps=5,
            ),
        },
        Guarantee.guess(at_most=0.64),
        shares={name: part["share"] for name, part in PARTS.items()},
        coupling="independent",
    )
    certificate = request.certify()
    stated, expected = certificate.statement.to_json(), direct.statement.to_json()
    for each in (stated, expected):
        del each["evidence_digest"]
    for one, other in zip(stated["parts"], expected["parts"], strict=True):
        if "scenario" in one:
            assert one["scenario"]["secret"] == other["scenario"]["secret"]
            assert one["noise"] == other["noise"]
    assert stated["mean_square"] == expected["mean_square"]
    assert verify(certificate, scenario=request.scenarios).holds
    assert set(request.tables) == set(request.derived) == {"year", "months", "later"}


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"guess": 0.6}, Guarantee.guess(at_most=0.6)),
        ({"bits": 0.2}, Guarantee.information(bits=0.2)),
    ],
)
def test_claims(claim, expected):
    document = {"claim": claim, "parts": {"year": PARTS["year"]}}
    assert budget_of(document, Path()).claim == expected


def test_overrides():
    request = read_budget("budget.toml", overrides=["claim.guess=0.6", "parts.months.times=6"])
    assert request.claim == Guarantee.guess(at_most=0.6)
    assert request.parts["months"].times == 6


def test_which_files_are_budgets():
    assert is_budget("budget.toml")
    assert not is_budget("year.toml")


def test_equal_shares_where_none_is_given():
    parts = {name: part | {"share": None} for name, part in PARTS.items()}
    assert budget_of(BUDGET | {"parts": parts}, Path()).shares is None


def test_starter(tmp_path):
    """The files of `init --template budget`, which run as they are."""
    for name, text in budget_files().items():
        assert max(map(len, text.splitlines())) <= 100
        (tmp_path / name).write_text(text, encoding="utf-8")
    request = read_budget(tmp_path / "budget.toml")
    assert list(request.parts) == ["yearbook", "monthly", "later"]
    assert request.certify().budget.guess <= 0.64


def test_a_file_with_sections_of_tables():
    text = filled(BudgetFile, BUDGET, "A budget.")
    assert tomllib.loads(text) == BUDGET


def test_a_training_file_follows_the_plan_of_a_budget():
    plan = next(
        run.plan for run in read_budget("budget.toml").certify().budget.runs if run.name == "model"
    )
    request = read_training("train.toml", plan_of(plan))
    assert request.plan.to_json() == plan_of(plan).to_json()
    assert request.worlds is None


def plan_of(part):
    return TrainingPlan.from_json(part.to_json())


PLAN = plan_with_noise(
    differing=exactly(2),
    sampling=Poisson(n_records=400, rate=0.5),
    clip_norm=2.0,
    noise_multipliers=[5.0] * 5,
    accountant=LogMoment(),
    measure=Measure.renyi(order=2),
)


def budget(**parts):
    return budget_of({"claim": {"guess": 0.64}, "parts": parts}, Path())


def claimed(claim):
    return budget_of({"claim": claim, "parts": PARTS}, Path())


def trained(sections):
    return training_of(TRAIN | sections, Path(), PLAN)


def model(sections):
    Path("train.toml").write_text(toml_of(TRAIN | sections), encoding="utf-8")
    return budget(year={"scenario": "year.toml"}, model={"training": "train.toml"})


SECRET, CLAIM = {"exactly": 2}, {"accountant": "log-moment", "order": 8, "epsilon": 8.0}
STEPS = TRAIN["training"] | {"n_steps": 6}
REFUSED = {
    ArgumentError: [
        ("parts", budget),
        ("[claim]", claimed, {}, {"guess": 0.6, "bits": 0.1}),
        ("did you mean 'guess'", claimed, {"gues": 0.6}),
        ("did you mean 'times'", lambda: budget(a={"scenario": "year.toml", "time": 3})),
        ("[parts.a]", lambda: budget(a={})),
        ("[parts.a]", lambda: budget(a={"scenario": "year.toml", "training": "train.toml"})),
        ("reserve", lambda: budget(a={"scenario": "year.toml", "times": 2, "reserve": True})),
        ("rows", lambda: budget(a={"scenario": "year.toml", "rows": [1, 2]})),
        ("[parts]", lambda: budget(a=PARTS["year"], b={"scenario": "year.toml"})),
        ("reserve", lambda: budget(a=PARTS["model"] | {"reserve": True})),
        ("400 rows", lambda: budget(a=PARTS["model"])),
        ("[secret]", model, {"secret": SECRET}),
        ("[guarantee]", model, {"guarantee": CLAIM}),
        ("[secret]", trained, {"secret": SECRET}),
        ("sampling", trained, {"training": STEPS}),
        ("non_finite", trained, {"training": TRAIN["training"] | {"non_finite": "stop"}}),
        ("[secret]", lambda: training_of(TRAIN, Path())),
        ("[guarantee]", lambda: training_of(TRAIN | {"secret": SECRET}, Path())),
        ("not TOML", lambda: read_budget("now.parquet")),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)
