# SPDX-License-Identifier: Apache-2.0
"""Templates in scenario files: as the constructors, and pairs of secrets that are numbers."""

import contextlib
import math
import re
import tomllib
import traceback

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm
from sklearn.datasets import load_diabetes

from pufferslice import Scenario, certify_release
from pufferslice.config.scenario import request_of
from pufferslice.config.starters import STARTERS
from pufferslice.errors import ArgumentError, PuffersliceError, StorageError
from pufferslice.queries import above, equals, group_by, intervals, summary
from pufferslice.scenario import gaussian_process

RNG = np.random.default_rng(2)
TABLE = pa.table(
    {
        "ill": ["yes"] * 40 + ["no"] * 60,
        "site": ["1", "2", "4", "x"] * 25,
        "age": np.r_[RNG.normal(60, 8, 40), RNG.normal(40, 12, 60)],
    }
)
CLAIM = {"notion": "unsliced", "order": 4, "epsilon": 1.0}
WORLDS = {"distribution": "worlds", "mean": ["age"]}
COUNT = {"distribution": "worlds", "count": [{"column": "state", "equals": 1}]}
ILL = {"property": {"column": "ill", "equals": "yes"}, "shares": [0.3, 0.4, 0.6]}
JOINT = {"values": [1.0, 2.0, 4.0], "mean": [0.0, 1.0], "cov": [[4.0, 1.0], [1.0, 2.0]]}
EARLIER = pa.table({"dose": [1.0, 3.0, 2.0, 2.5], "age": [30.0, 50.0, 41.0, 44.0]})
PROCESS = {"kernel": "exponential", "variance": 4.0, "length_scale": 3.0, "times": [20, 14]}
SIZES = {"sizes": [90, 100, 120]}
CHAIN = [[0.9, 0.1], [0.2, 0.8]]


@pytest.fixture
def folder(tmp_path):
    pq.write_table(TABLE, tmp_path / "people.parquet")
    pq.write_table(EARLIER, tmp_path / "earlier.parquet")
    return tmp_path


def hidden(**changes):
    """The section of a process with some keys changed."""
    return {"attribute": {"values": [1, 2], "process": PROCESS | changes}}


def moments(kernel):
    mean, cov = gaussian_process(kernel, PROCESS["times"])
    return {"mean": mean, "cov": cov}


def asked(folder, query=WORLDS, **sections):
    document = {"query": query, "guarantee": CLAIM, "data": {"path": "people.parquet"}}
    return request_of(document | sections, folder)


STEPS = {"transition": CHAIN, "length": 4}
MEAN, ONES = summary(mean=["age"]), summary(count={"state": 1})


@pytest.mark.parametrize(
    ("sections", "direct"),
    [
        (
            {"prevalence": ILL},
            lambda: Scenario.from_prevalence(
                TABLE, column="ill", value=equals("yes"), shares=[0.3, 0.4, 0.6], query=MEAN
            ),
        ),
        (
            {
                "prevalence": {
                    "property": {"column": "age", "above": 50},
                    "shares": [0.3, 0.5],
                    "n_rows": 50,
                    "design": "independent",
                    "prior": "draws",
                    "n_draws": 20,
                    "seed": 3,
                },
                "prior": {"source": "held-out"},
            },
            lambda: Scenario.from_prevalence(
                TABLE,
                column="age",
                value=above(50),
                shares=[0.3, 0.5],
                query=MEAN,
                n_rows=50,
                design="independent",
                prior="draws",
                n_draws=20,
                seed=3,
                source="held_out",
            ),
        ),
        (
            {"attribute": JOINT | {"name": "dose"}},
            lambda: Scenario.from_attribute(query=MEAN, name="dose", **JOINT),
        ),
        (
            {"attribute": {"values": [1.0, 2.0], "name": "dose", "history": "earlier.parquet"}},
            lambda: Scenario.from_attribute(
                query=MEAN, name="dose", values=[1.0, 2.0], history=EARLIER
            ),
        ),
        (
            {
                "attribute": {
                    "values": [1.0, 2.0],
                    "process": PROCESS | {"kernel": "squared-exponential"},
                },
                "prior": {"source": "held-out"},
            },
            lambda: Scenario.from_attribute(
                query=MEAN,
                values=[1.0, 2.0],
                **moments(lambda s, t: 4 * math.exp(-(((s - t) / 3) ** 2) / 2)),
                source="held_out",
            ),
        ),
        (
            {"markov": {"transition": CHAIN, "length": 4}, "query": COUNT},
            lambda: Scenario.from_markov_chain(CHAIN, length=4, positions=range(4), query=ONES),
        ),
        (
            {
                "markov": {
                    "transition": {"calm": CHAIN, "busy": [[0.5, 0.5], [0.5, 0.5]]},
                    "length": 4,
                    "positions": [1, 2],
                    "start": [0.5, 0.5],
                    "counted": [0],
                },
                "query": COUNT,
            },
            lambda: Scenario.from_markov_chain(
                {"calm": CHAIN, "busy": [[0.5, 0.5], [0.5, 0.5]]},
                length=4,
                positions=[1, 2],
                start=[0.5, 0.5],
                counted=[0],
                query=ONES,
            ),
        ),
        (
            {
                "markov": STEPS
                | {"positions": [0, [1, 2]], "windows": [[0, 2], [2, 4]], "n_draws": 9, "seed": 3},
                "query": COUNT | {"by": [{"column": "hour", "edges": [0, 2, 4]}]},
            },
            lambda: Scenario.from_markov_chain(
                CHAIN,
                length=4,
                positions=[0, (1, 2)],
                windows=[(0, 2), (2, 4)],
                n_draws=9,
                seed=3,
                query=group_by({"hour": intervals([0, 2, 4])}, count={"state": 1}),
            ),
        ),
        (
            {"volume": SIZES},
            lambda: Scenario.from_volume(TABLE, **SIZES, query=MEAN),
        ),
    ],
)
def test_a_section_is_its_constructor(folder, sections, direct):
    request, direct = asked(folder, **sections), direct()
    assert request.scenario.description() == direct.description()
    assert request.is_of_one_table == bool(sections.keys() & {"prevalence", "volume"})
    if request.is_of_one_table:
        assert len(request.chosen_rows()) == 100


def declared(request):
    (prior,) = request.scenario.priors
    return {
        secret: (world.mean.tolist(), world.cov.tolist())
        for secret, world in prior.declared.items()
    }


def test_a_history_by_hand(folder):
    """Means 2.125 and 41.25, sums of products 2.1875, 21.375 and 210.75 over 3."""
    request = asked(
        folder, attribute={"values": [1, 2], "name": "dose", "history": "earlier.parquet"}
    )
    slope = 21.375 / 2.1875
    for value, (mean, cov) in zip([1, 2], declared(request).values(), strict=True):
        assert mean == pytest.approx([41.25 + slope * (value - 2.125)])
        assert cov == [pytest.approx([(210.75 - slope * 21.375) / 3])]
    assert request.scenario.priors[0].source == "held_out"


@pytest.mark.soundness
def test_a_history_is_not_the_released_table(folder):
    table = {"values": [1, 2], "name": "dose", "history": "./earlier.parquet"}
    with pytest.raises(ArgumentError, match=r"\[attribute\] history: is the released table"):
        asked(folder, attribute=table, data={"path": "earlier.parquet"})
    said = asked(
        folder,
        attribute=table,
        data={"path": "earlier.parquet"},
        prior={"source": "released-data"},
    )
    assert said.scenario.priors[0].source == "released_data"


@pytest.mark.soundness
def test_a_history_by_url_shows_no_password(folder):
    url = "s3://me:hunter2@bucket/earlier.parquet"
    with pytest.raises(StorageError, match="s3://") as caught:
        asked(folder, attribute={"values": [1, 2], "name": "dose", "history": url})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kernel", ["exponential", "squared-exponential"])
def test_a_process_by_hand(folder, kernel):
    """Six hours are two length scales: exp(-2) by both kernels."""
    correlation = math.exp(-2)
    process = PROCESS | {"kernel": kernel, "mean": 5.0}
    worlds = declared(asked(folder, attribute={"values": [3, 5], "process": process}))
    assert worlds["3"][0] == pytest.approx([5 - 2 * correlation])
    assert worlds["5"] == ([pytest.approx(5)], [[pytest.approx(4 * (1 - correlation**2))]])


@pytest.mark.parametrize(
    ("sections", "rule", "pairs"),
    [
        ({"prevalence": ILL}, {"difference": 0.11}, [("30 %", "40 %")]),
        ({"prevalence": ILL}, {"nearest": 1}, [("30 %", "40 %"), ("40 %", "60 %")]),
        ({"attribute": JOINT}, {"ratio": 2.0}, [("1", "2"), ("2", "4")]),
        ({"volume": SIZES}, {"ratio": 1.15}, [("90 rows", "100 rows")]),
        ({"volume": SIZES}, [["90 rows", "120 rows"]], [("90 rows", "120 rows")]),
        (
            {
                "gaussian": {
                    "10": {"mean": [0.0], "cov": [[1.0]]},
                    "11.5": {"mean": [1.0], "cov": [[1.0]]},
                    "20": {"mean": [2.0], "cov": [[1.0]]},
                }
            },
            {"difference": 2},
            [("10", "11.5")],
        ),
    ],
)  # fmt: skip
def test_pairs_of_numbers(folder, sections, rule, pairs):
    assert asked(folder, secret={"pairs": rule}, **sections).scenario.pairs == tuple(pairs)


def test_pairs_of_numbers_in_a_column(folder):
    table = TABLE.filter(pa.array([site != "x" for site in TABLE["site"].to_pylist()]))
    pq.write_table(table, folder / "numbers.parquet")
    sections = {
        "data": {"path": "numbers.parquet"},
        "secret": {"column": "site", "pairs": {"nearest": 1}},
        "query": {"distribution": "groups", "mean": ["age"]},
    }
    assert asked(folder, **sections).scenario.pairs == (("1", "2"), ("2", "4"))
    sections["data"] = {"path": "people.parquet"}
    with pytest.raises(ArgumentError, match="need secrets that are numbers"):
        asked(folder, **sections)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"prevalence": ILL, "volume": {"sizes": [1, 2]}}, "one section that declares them: [prev"),
        ({"prevalence": ILL, "query": {"distribution": "groups", "mean": ["age"]}},
         "[prevalence]: is for distribution 'worlds'"),
        ({"prevalence": {"shares": [0.1, 0.2]}}, "[prevalence] property: is required"),
        ({"prevalence": ILL | {"property": {"column": "ill"}}}, "[prevalence] property: needs"),
        ({"prevalence": ILL | {"design": "odd"}}, "[prevalence] design: must be 'stratified'"),
        ({"prevalence": ILL | {"seed": 3}}, "seed goes with prior='draws'"),
        ({"prevalence": ILL, "data": {}}, "[data]: needs either path or dataset"),
        ({"attribute": JOINT | {"cov": [[1.0]]}}, "cov"),
        ({"attribute": {"values": [1, 2]}}, "[attribute]: needs mean and cov, or history, or"),
        ({"attribute": {"values": [1, 2], "mean": [0.0, 1.0]}}, "[attribute]: needs mean and cov"),
        ({"attribute": JOINT | {"history": "earlier.parquet"}}, "[attribute]: needs mean and cov"),
        ({"attribute": JOINT | {"process": PROCESS}}, "[attribute]: needs mean and cov"),
        ({"attribute": {"values": [1, 2], "history": "absent.csv"}}, "absent.csv"),
        ({"attribute": {"values": [1, 2], "history": "earlier.parquet"}}, "no column 'attribute'"),
        (hidden(kernel="linear"), "[attribute] process.kernel: must be 'exponential'"),
        (hidden(variance=0.0), "variance must be"),
        (hidden(length_scale=-1.0), "length_scale must be"),
        (hidden(times=[20]), "times of a process) must have 2 coordinates"),
        ({"attribute": {"values": [1, 2], "process": {"kernel": "exponential"}}},
         "[attribute] process.variance: is required"),
        ({"markov": STEPS | {"transition": 3}}, "[markov] transition: must be a square matrix"),
        ({"markov": STEPS | {"positions": "some"}}, "[markov] positions: must be 'all'"),
        ({"markov": STEPS | {"positions": [[1, 2, 3]]}}, "[markov] positions"),
        ({"markov": STEPS | {"windows": [[1]]}}, "[markov] windows"),
        ({"markov": STEPS | {"seed": 3}, "query": COUNT}, "n_draws and seed go together"),
        ({"markov": STEPS | {"start": "here"}}, "[markov] start: must be 'stationary'"),
        ({"volume": {"sizes": [90.5, 100]}}, "[volume] sizes[0]: must be an integer"),
        ({"volume": SIZES, "secret": {"pairs": {}}}, "give exactly one of"),
        ({"volume": SIZES, "secret": {"pairs": {"within": 3}}}, "[secret] pairs: must be 'all'"),
    ],
)  # fmt: skip
def test_wrong_sections(folder, sections, words):
    with pytest.raises(PuffersliceError, match=re.escape(words)):
        asked(folder, **sections)


@pytest.mark.parametrize(
    ("sections", "pieces", "reports"),
    [
        ({"prevalence": ILL | {"prior": "draws", "n_draws": 2, "seed": 1}}, "tables",
         [(done, 6) for done in range(1, 7)]),
        ({"markov": STEPS, "query": COUNT}, "times", [(done, 4) for done in range(1, 5)]),
        ({"attribute": JOINT}, "worlds", []),
    ],
)  # fmt: skip
def test_a_bar_follows_the_worlds(folder, sections, pieces, reports):
    seen = []

    @contextlib.contextmanager
    def bar(what):
        seen.append(what)
        yield lambda *report: seen.append(report)

    document = {"query": WORLDS, "guarantee": CLAIM, "data": {"path": "people.parquet"}}
    request_of(document | sections, folder, bar=bar)
    assert seen == [pieces, *reports]


def test_the_starter_of_an_attribute_by_hand(tmp_path):
    """Fifty points move the means by cov / variance; right guesses are Phi(r / 2)."""
    document = tomllib.loads(STARTERS["attribute"].text())
    request = request_of(document, tmp_path)
    assert request.scenario.pairs == (("100", "150"), ("150", "200"))
    held = certify_release(request.scenario, request.guarantee, shape="isotropic")
    slope = np.array([199.7 / 5, 470.8 / 10]) / 5943
    spread = np.array([[19.52 / 25, 24.16 / 50], [24.16 / 50, 191.3 / 100]])
    total = spread - 5943 * np.outer(slope, slope) + held.noise_std**2 * np.eye(2)
    distance = np.sqrt(50 * slope @ np.linalg.solve(total, 50 * slope))
    assert norm.cdf(distance / 2) == pytest.approx(0.6, rel=1e-6)


def test_the_starter_of_an_attribute_is_of_real_patients():
    """Of scikit-learn's copy of the study, to the digits that are written."""
    study = load_diabetes(as_frame=True, scaled=False).frame[["target", "bmi", "bp"]].to_numpy()
    section = STARTERS["attribute"].document["attribute"]
    np.testing.assert_allclose(section["mean"], study.mean(axis=0), rtol=1e-3)
    np.testing.assert_allclose(section["cov"], np.cov(study.T), rtol=1e-3)
