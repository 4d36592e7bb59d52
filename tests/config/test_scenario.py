# SPDX-License-Identifier: Apache-2.0
"""Scenario files: every key does what it says, and a wrong one is refused."""

import copy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.claims import Guarantee
from pufferslice.config.scenario import ScenarioFile, read_request, request_of
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.queries import (
    Ball,
    Box,
    above,
    autocorrelation,
    between,
    boosting_importances,
    contingency_table,
    day,
    group_by,
    hour,
    hours,
    intervals,
    join,
    linear_regression,
    months,
    second_moments,
    summary,
    week,
    weekday,
    weekdays,
    years,
)
from pufferslice.sensitivity.profiles import SampledSphere, WholeSphere

BASE = {
    "data": {"path": "people.parquet"},
    "secret": {"column": "site"},
    "query": {"distribution": "groups", "mean": ["pay"]},
    "profile": {"n_directions": 10, "seed": 1},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}
CLAIM = BASE["guarantee"]
DAY = "2026-01-31"
MODEL = {
    "kind": "logistic-regression", "features": ["pay", "age"], "target": "rich", "positive": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "site": ["a", "b", "c", "d"] * 20,
            "sex": ["m", "f"] * 40,
            "pay": rng.normal(30, 5, 80),
            "age": rng.uniform(20, 60, 80),
            "rich": rng.integers(0, 2, 80),
        }
    )
    pq.write_table(table, tmp_path / "people.parquet")
    pq.write_table(table.slice(0, 40), tmp_path / "early.parquet")
    pq.write_table(table.slice(40), tmp_path / "late.parquet")
    return tmp_path


def changed(**sections) -> dict:
    document = copy.deepcopy(BASE)
    for name, section in sections.items():
        document[name] = section
    return document


def query_of(query, **sections):
    file = ScenarioFile.of(changed(query={"distribution": "groups"} | query, **sections))
    return file.query.query(file.data, Path())


def test_the_smallest_document(folder):
    request = request_of(BASE, folder)
    assert request.scenario.distribution == "groups"
    assert request.scenario.secrets == ("a", "b", "c", "d")
    assert request.profile.n_directions == 1
    assert request.method is None
    assert request.file.guarantee.deltas == (1e-5,)
    assert request.scenario.priors[0].source == "released_data"
    assert len(request.chosen_rows(group="a")) == 20


def test_a_claim_without_slices_needs_no_profile(folder):
    guarantee = {"notion": "unsliced", "order": 4, "epsilon": 1}
    document = changed(guarantee=guarantee)
    del document["profile"]
    request = request_of(document, folder)
    assert request.profile is None
    assert request.target == Guarantee.unsliced(order=4, epsilon=1)
    del (sliced := dict(BASE))["profile"]
    with pytest.raises(ArgumentError, match=r"\[profile\]"):
        request_of(sliced, folder)


@pytest.mark.parametrize(
    ("section", "claim"),
    [
        ({"notion": "unsliced", "order": 4, "epsilon": 1}, Guarantee.unsliced(order=4, epsilon=1)),
        ({"notion": "unsliced", "epsilon": 1, "delta": 1e-5}, Guarantee.epsilon_delta(1, 1e-5)),
        ({"notion": "guess", "at_most": 0.6}, Guarantee.guess(at_most=0.6)),
        ({"notion": "information", "bits": 0.1}, Guarantee.information(bits=0.1)),
        ({"notion": "joint", "epsilon": 1, "delta": 0.1}, Guarantee.joint(epsilon=1, delta=0.1)),
        ({"notion": "average", "order": 2, "epsilon": 1}, Guarantee.average(order=2, epsilon=1)),
    ],
)  # fmt: skip
def test_claims(folder, section, claim):
    """The kind of a claim follows from its numbers, or is named with them; slices are its own."""
    kinds = {"renyi": "srpp", "epsilon_delta": "epsilon-delta"}
    for more in ({}, {"claim": kinds.get(claim.whole.kind, claim.kind)}):
        request = request_of(changed(guarantee=section | more), folder)
        assert request.target == claim
        assert request.guarantee.profile is (request.profile if claim.is_sliced else None)


def test_how_the_noise_is_found(folder):
    section = {
        "shape": "diagonal", "guard": 0.2, "weights": {"mean(pay)": 2.0}, "effort": "quick",
        "accuracy": {"mean(pay)": 0.5},
    }  # fmt: skip
    claim = {"notion": "unsliced", "order": 4, "epsilon": 1}
    request = request_of(changed(calibration=section, guarantee=claim), folder)
    assert request.file.calibration.given() == section
    covariance = request_of(changed(calibration={"shape": [[2.0]]}), folder).file.calibration
    assert (covariance.shape, covariance.effort) == (((2.0,),), "thorough")
    assert request_of(BASE, folder).file.calibration.shape is None


BOOSTING = {"kind": "boosting-importances", "n_trees": 3, "depth": 2, "seed": 0}
SEXES = {"column": "sex", "values": ["m", "f"]}
START = {"column": "start"}


@pytest.mark.parametrize(
    ("section", "query"),
    [
        ({"total": ["pay"], "median": ["age"]}, summary(total=["pay"], median=["age"])),
        (
            {"count": [{"column": "age", "between": [20, 30]}], "correlation": [["pay", "age"]]},
            summary(count={"age": between(20, 30)}, correlation=[("pay", "age")]),
        ),
        (
            {"rate": [START | {"hour": 3}, START | {"weekday": "Friday"}, START | {"day": DAY}]},
            summary(rate=[("start", hour(3)), ("start", weekday("Friday")), ("start", day(DAY))]),
        ),
        (
            {"by": [SEXES, {"column": "age", "edges": [0, 40, 90]}], "cells": "rate"},
            contingency_table({"sex": ["m", "f"], "age": intervals([0, 40, 90])}, statistic="rate"),
        ),
        (
            {"by": [START | {"per": "weekday"}], "mean": ["pay"]},
            group_by({"start": weekdays()}, mean=["pay"]),
        ),
        (
            {"by": [START | {"per": "hour"}], "mean": ["pay"]},
            group_by({"start": hours()}, mean=["pay"]),
        ),
        (
            {"by": [START | {"days": [DAY, DAY]}], "mean": ["pay"]},
            group_by({"start": [day(DAY)]}, mean=["pay"]),
        ),
        (
            {"by": [START | {"months": ["2026-01", "2026-03"]}], "cells": "count"},
            contingency_table({"start": months("2026-01", "2026-03")}),
        ),
        (
            {"by": [START | {"years": [2025, 2026]}], "rate": [START | {"week": "2026-W05"}]},
            group_by({"start": years(2025, 2026)}, rate={"start": week("2026-W05")}),
        ),
        (
            {
                "mean": ["pay"],
                "median": ["age"],
                "clip": {"pay": [0, 9]},
                "missing": {"pay": 3},
                "edges": {"age": [0, 40, 90]},
            },
            summary(
                mean=["pay"],
                median=["age"],
                clip={"pay": (0, 9)},
                missing={"pay": 3},
                edges={"age": [0, 40, 90]},
            ),
        ),
        (
            {
                "model": {"kind": "linear-regression", "features": ["age"], "targets": ["pay"]},
                "clip": {"age": [0, 90], "pay": [0, 99]},
            },
            linear_regression(
                features=["age"], targets=["pay"], clip={"age": (0, 90), "pay": (0, 99)}
            ),
        ),
        (
            {"autocorrelation": {"column": "pay", "time": "age", "lags": [1, 2]}},
            autocorrelation("pay", time="age", lags=[1, 2]),
        ),
        (
            {
                "second_moments": {
                    "target": {"column": "rich", "equals": 1},
                    "numbers": ["pay"],
                    "levels": [SEXES, {"column": "age", "edges": [0, 40, 90]}],
                    "flags": [{"column": "age", "above": 30}],
                },
                "clip": {"pay": [0, 99]},
                "missing": {"age": 30},
            },
            second_moments(
                target={"rich": 1},
                numbers=["pay"],
                levels={"sex": ["m", "f"], "age": [*intervals([0, 40, 90]), above(30)]},
                clip={"pay": (0, 99)},
                missing={"age": 30},
            ),
        ),
        (
            {
                "second_moments": {"target": "pay", "levels": [SEXES]},
                "clip": {"pay": [0, 99]},
                "allow_empty": True,
            },
            second_moments(
                target="pay",
                levels={"sex": ["m", "f"]},
                clip={"pay": (0, 99)},
                allow_empty=True,
            ),
        ),
        (
            {"model": {"kind": "linear-regression", "features": ["age"], "targets": ["pay"]}},
            linear_regression(features=["age"], targets=["pay"]),
        ),
        (
            {"model": MODEL | BOOSTING},
            boosting_importances(
                features=["pay", "age"], target="rich", positive=1, n_trees=3, seed=0, depth=2
            ),
        ),
    ],
)
def test_every_query_of_a_file_is_that_of_its_function(section, query):
    assert query_of(section) == query


def test_several_queries_are_joined(folder):
    tables = [
        {"distribution": "groups", "mean": ["pay"], "std": ["pay"]},
        {"distribution": "groups", "by": [SEXES], "cells": "count"},
    ]
    joined = request_of(changed(query=tables, profile={"n_directions": 1, "seed": 1}), folder)
    assert joined.scenario.query == join(
        summary(mean=["pay"], std=["pay"]), contingency_table({"sex": ["m", "f"]})
    )
    with pytest.raises(ArgumentError, match=r"\[query\]: must have one distribution"):
        request_of(
            changed(query=[*tables, {"distribution": "records", "columns": ["age"]}]), folder
        )
    with pytest.raises(ArgumentError, match=r"\[query\].* is unknown"):
        request_of(changed(query=[tables[0], tables[1] | {"means": ["age"]}]), folder)


def test_clip_from_a_public_table(folder):
    query = BASE["query"] | {"clip_from": "early.parquet"}
    low, high = request_of(changed(query=query), folder).scenario.query.parameters["clip"]["pay"]
    assert (low, high) == (round(low), round(high))
    with pytest.raises(ArgumentError, match="clip_from: is the released table"):
        request_of(changed(query=query | {"clip_from": "people.parquet"}), folder)


def test_scales_from_a_public_table(folder):
    document = changed(query=BASE["query"] | {"rate": [{"column": "sex", "equals": "m"}]})
    document["query"] |= {"scales_from": "early.parquet", "scales": {"mean(pay)": 3.0}}
    assert request_of(document, folder).scenario.query.scales.tolist() == [3.0, 0.5]


@pytest.mark.soundness
def test_scales_are_not_from_a_file_that_may_be_released(folder):
    """By another name, through a hard link, or as one of the worlds; unless they are public."""
    (folder / "link.parquet").hardlink_to(folder / "people.parquet")
    query = {"distribution": "worlds", "mean": ["pay"], "scales_from": "early.parquet"}
    worlds = {"early": "early.parquet", "late": "late.parquet"}
    for sections in (
        {"query": BASE["query"] | {"scales_from": "link.parquet"}},
        {"query": query, "worlds": worlds, "secret": {}, "data": {}},
    ):
        with pytest.raises(ArgumentError, match="scales_from: is the released table"):
            request_of(changed(**sections), folder)
    public = changed(**sections, prior={"source": "public-model"})
    assert request_of(public, folder).scenario.query.scales[0] > 1


def test_a_file_keeps_the_order_of_its_coordinates_and_takes_overrides(folder):
    path = folder / "scenario.toml"
    path.write_text(
        '[data]\npath = "people.parquet"\n[secret]\ncolumn = "site"\n'
        "[profile]\nn_directions = 3\nseed = 0\n"
        '[guarantee]\nnotion = "average"\norder = 2\nepsilon = 1\n[query]\n'
        'distribution = "groups"\n'
        'rate = [{ column = "rich", equals = 1 }]\nstd = ["pay"]\nmean = ["age"]\n'
        'range = { age = [0, 100], "std(pay)" = [0, 50] }\nscales = { rich = 0.1, age = 10 }\n'
    )
    request = read_request(path)
    query = request.scenario.query
    assert request.target.notion == "average"
    assert query.names == ("rate(rich = 1)", "std(pay)", "mean(age)")
    assert query.range == Box([0, 0, 0], [1, 50, 100])
    assert query.scales.tolist() == [0.1, 1, 10]
    overrides = ["guarantee.notion='joint'", "query.range.age=[0, 90]"]
    request = read_request(path, overrides=overrides)
    assert request.target.notion == "joint"
    assert request.scenario.query.range == Box([0, 0, 0], [1, 50, 90])
    for text, words in (("[data\n", "is not TOML"), ("x = " + "[" * 20_000, "nested too deeply")):
        path.write_text(text)
        with pytest.raises(ArgumentError, match=words):
            read_request(path)
    with pytest.raises(StorageError, match="cannot read"):
        read_request(folder / "absent.toml")


@pytest.mark.parametrize(
    ("secret", "secrets", "n_pairs"),
    [
        ({"columns": ["site", "sex"]}, ("a & m", "b & f", "c & m", "d & f"), 6),
        ({"bins": {"column": "age", "quantiles": 3}}, ("age q1/3", "age q2/3", "age q3/3"), 3),
        ({"bins": {"column": "age", "edges": [40]}}, ("age < 40", "age >= 40"), 1),
        ({"column": "site", "pairs": [["a", "b"]]}, ("a", "b", "c", "d"), 1),
    ],
)
def test_secrets_columns_bins_pairs(folder, secret, secrets, n_pairs):
    scenario = request_of(changed(secret=secret), folder).scenario
    assert (scenario.secrets, len(scenario.pairs)) == (secrets, n_pairs)


def test_summary_query_with_range_and_scales():
    scales = [10, 10, 0.1, 0.1, 5, 5, 1]
    query = {
        "mean": ["pay"],
        "std": ["pay"],
        "rate": [{"column": "rich", "equals": 1}, {"column": "age", "at_most": 40}],
        "quantile": [{"column": "age", "level": [0.25, 0.75]}],
        "count_share": 1000,
        "range": {"low": [0] * 7, "high": [100, 100, 1, 1, 100, 100, 1]},
        "scales": scales,
    }
    query = query_of(query, data={"path": "x", "missing": "drop-rows"})
    assert (query.dim, query.missing, query.scales.tolist()) == (7, "drop-rows", scales)
    assert isinstance(query.range, Box)


def test_quantiles_balls_rows_and_models():
    entries = [{"column": "age", "level": 0.25}, {"column": "age", "level": 0.75}]
    assert query_of({"quantile": entries}).names == ("quantile(age, 0.25)", "quantile(age, 0.75)")
    ball = {"mean": ["a"], "range": {"center": [1.0], "radius": 2.0}}
    assert isinstance(query_of(ball).range, Ball)
    flags = [{"column": "rich", "above": 0}, {"column": "rich", "below": 1}]
    rows = query_of({"distribution": "records", "columns": ["pay"], "flags": flags})
    assert (rows.level, rows.dim) == ("row", 3)
    assert query_of({"model": MODEL}).dim == 3


@pytest.mark.parametrize(
    "whole",
    [
        {"columns": ["pay"]},
        {"model": MODEL},
        {"autocorrelation": {"column": "pay", "time": "age", "lags": [1]}},
    ],
    ids=str,
)
def test_no_statistic_is_silently_left_out(whole):
    """Beside keys that say all of what is computed, others are refused."""
    (name,) = whole
    assert query_of({**whole, "mean": []}).names == query_of(whole).names
    for other in ({"mean": ["age"]}, {"rate": [{"column": "rich", "equals": 1}]}):
        with pytest.raises(
            ArgumentError, match=f"{name}: is the whole query; leave {next(iter(other))}"
        ):
            query_of(whole | other)


@pytest.mark.parametrize(
    ("profile", "n_directions"),
    [
        ({"kind": "axes"}, 2),
        ({"kind": "orthogonal", "n_sets": 3, "seed": 0}, 6),
        ({"kind": "blocks", "blocks": [[0], [1]], "n_directions": 1, "seed": 0}, 2),
        ({"directions": [[1, 0], [0.6, 0.8]]}, 2),
        ({"directions": [[1, 0], [0.6, 0.8]], "weights": [0.25, 0.75]}, 2),
        ({"n_directions": 5, "seed": 0}, 5),
    ],
)
def test_profiles(folder, profile, n_directions):
    document = changed(profile=profile, query={"distribution": "groups", "mean": ["pay", "age"]})
    assert request_of(document, folder).profile.n_directions == n_directions


def test_distributions(folder):
    query = {"distribution": "bootstrap", "mean": ["pay"]}
    bootstrap = changed(query=query, bootstrap={"n_replicates": 9, "seed": 2})
    records = changed(query={"distribution": "records", "columns": ["pay"]})
    for document, n_samples in ((bootstrap, 9), (records, 20)):
        prior = request_of(document, folder).scenario.priors[0]
        assert prior.distributions["a"].n_samples == n_samples
    worlds = changed(
        query={"distribution": "worlds", "mean": ["pay"]},
        worlds={"early": "early.parquet", "late": "late.parquet"},
        prior={"source": "held-out"},
        secret={},
    )
    request = request_of(worlds, folder)
    assert (request.scenario.secrets, request.table) == (("early", "late"), None)
    with pytest.raises(ArgumentError, match="rows"):
        request.chosen_rows(row=0)
    adult = changed(data={"dataset": "adult"}, secret={"column": "race"})
    adult["query"] = {"distribution": "groups", "mean": ["age"]}
    assert len(request_of(adult, Path()).scenario.secrets) == 5


def test_gaussian_worlds(folder):
    gaussian = {"a": {"mean": [0], "cov": [[1]]}, "b": {"mean": [1], "cov": [[2.25]]}}
    query = {"distribution": "worlds", "mean": ["pay"]}
    document = changed(query=query, gaussian=gaussian, secret={})
    prior = request_of(document, folder).scenario.priors[0]
    assert (prior.kind, prior.source) == ("gaussian", "public_model")
    document["calibration"] = {"rule": "tight"}
    assert request_of(document, folder).method.envelope == "exact"


def test_mixtures(folder):
    parts = [{"weight": w, "mean": [m], "cov": [[1]]} for w, m in ((0.25, 0), (0.75, 4))]
    gaussian = {"a": {"components": parts}, "b": {"mean": [1], "cov": [[2.25]]}}
    query = {"distribution": "worlds", "mean": ["pay"]}
    document = changed(query=query, gaussian=gaussian, secret={})
    declared = request_of(document, folder).scenario.priors[0].declared
    assert [d.mean.tolist() for d in declared.values()] == [[3.0], [1.0]]


@pytest.mark.parametrize(
    ("section", "envelope"),
    [
        ({"rule": "closed-form"}, "worst_gap"),
        ({"rule": "tight"}, "transport"),
        ({"envelope": "worst-gap"}, "worst_gap"),
    ],
)
def test_calibration_section(folder, section, envelope):
    assert request_of(changed(calibration=section), folder).method.envelope == envelope


RECORDS = {
    "query": {"distribution": "records", "columns": ["pay"], "range": {"low": [0], "high": [99]}},
    "prior": {"kind": "sampled", "band": "dkw"},
}


class TestSampled:
    def test_records(self, folder):
        guarantee = BASE["guarantee"] | {"failure_probability": 0.05}
        request = request_of(changed(**RECORDS, guarantee=guarantee), folder)
        assert request.scenario.prior_kind == "sampled"
        assert request.file.guarantee.failure_probability == 0.05
        assert request.file.prior.band == "dkw"
        assert request.target == Guarantee.joint(order=4, epsilon=1.0)

    def test_a_failure_probability_does_not_make_a_prior_sampled(self, folder):
        """Nothing is inferred: the request is refused when it is certified."""
        guarantee = BASE["guarantee"] | {"failure_probability": 0.05}
        request = request_of(changed(guarantee=guarantee), folder)
        assert request.scenario.prior_kind == "empirical"

    def test_sphere(self, folder):
        query = {"distribution": "groups", "mean": ["pay", "age"]}
        profile = {"kind": "sphere", "n_directions": 12, "seed": 1}
        assert isinstance(request_of(changed(query=query, profile=profile), folder).profile,
                          SampledSphere)  # fmt: skip
        whole = changed(query=query, profile={"kind": "whole-sphere"})
        assert request_of(whole, folder).profile == WholeSphere(dim=2)
