# SPDX-License-Identifier: Apache-2.0
"""Templates in scenario files: as the constructors, and pairs of secrets that are numbers."""

import contextlib
import math
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm
from sklearn.datasets import load_diabetes

from pufferslice import Scenario, certify_release
from pufferslice.config.scenario import request_of
from pufferslice.config.starters import STARTERS
from pufferslice.data.tables import n_rows_of
from pufferslice.queries import above, columns, equals, group_by, intervals, summary
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
ILL = {"property": {"column": "ill", "equals": "yes"}, "within": 0.1}
DRAWN = ILL | {"prior": "draws", "shares": [0.3, 0.4, 0.6], "n_draws": 5, "seed": 1}
DRAWN.pop("within")
CLIPPED = WORLDS | {"clip": {"age": [0, 100]}}
JOINT = {"values": [1.0, 2.0, 4.0], "mean": [0.0, 1.0], "cov": [[4.0, 1.0], [1.0, 2.0]]}
EARLIER = pa.table({"dose": [1.0, 3.0, 2.0, 2.5], "age": [30.0, 50.0, 41.0, 44.0]})
PROCESS = {"kernel": "exponential", "variance": 4.0, "length_scale": 3.0, "times": [20, 14]}
SIZES = {"ratio": 1.2, "up_to": 200}
TOTAL = {"distribution": "worlds", "total": ["age"], "clip": {"age": [0, 100]}}
CHAIN = [[0.9, 0.1], [0.2, 0.8]]


@pytest.fixture
def folder(tmp_path):
    pq.write_table(TABLE, tmp_path / "people.parquet")
    pq.write_table(EARLIER, tmp_path / "earlier.parquet")
    pq.write_table(TABLE, tmp_path / "last-year.parquet")
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


STEPS = {"chain": CHAIN, "length": 4}
MEAN, ONES = summary(mean=["age"]), summary(count={"state": 1})
CLIPPED_MEAN = summary(mean=["age"], clip={"age": (0, 100)})


@pytest.mark.parametrize(
    ("sections", "direct"),
    [
        (
            {"prevalence": ILL, "query": CLIPPED},
            lambda: Scenario.from_prevalence(
                TABLE, column="ill", value=equals("yes"), within=0.1, query=CLIPPED_MEAN
            ),
        ),
        (
            {"prevalence": ILL | {"moments_from": "last-year.parquet"}, "query": CLIPPED},
            lambda: Scenario.from_prevalence(
                TABLE,
                column="ill",
                value=equals("yes"),
                within=0.1,
                query=CLIPPED_MEAN,
                moments_from=TABLE.slice(0),
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
            {
                "attribute": {
                    "history": "people.parquet",
                    "name": "age",
                    "bins": [50],
                    "within": 1,
                },
                "query": {"distribution": "records", "columns": ["age"]},
                "prior": {"source": "public-model"},
            },
            lambda: Scenario.from_attribute(
                query=columns(["age"]),
                history=TABLE,
                name="age",
                bins=[50],
                within=1,
                source="public_model",
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
            {
                "occupancy": {"chain": CHAIN, "length": 4, "positions": {"first": 1, "every": 2}},
                "query": {"count": COUNT["count"]},  # the section says what one release is
            },
            lambda: Scenario.from_occupancy(CHAIN, length=4, positions=[1, 3], query=ONES),
        ),
        (
            {"occupancy": {"chain": CHAIN, "length": 4}, "query": COUNT},
            lambda: Scenario.from_occupancy(CHAIN, length=4, positions=range(4), query=ONES),
        ),
        (
            {
                "occupancy": {
                    "chain": {"calm": CHAIN, "busy": [[0.5, 0.5], [0.5, 0.5]]},
                    "length": 4,
                    "positions": [1, 2],
                    "start": [0.5, 0.5],
                    "counted": [0],
                },
                "query": COUNT,
            },
            lambda: Scenario.from_occupancy(
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
                "occupancy": STEPS
                | {"positions": [0, [1, 2]], "windows": [[0, 2], [2, 4]], "n_draws": 9, "seed": 3},
                "query": COUNT | {"by": [{"column": "hour", "edges": [0, 2, 4]}]},
            },
            lambda: Scenario.from_occupancy(
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
            {"volume": SIZES, "query": TOTAL},
            lambda: Scenario.from_volume(
                TABLE, **SIZES, query=summary(total=["age"], clip={"age": (0, 100)})
            ),
        ),
    ],
)
def test_a_section_is_its_constructor(folder, sections, direct):
    request, direct = asked(folder, **sections), direct()
    assert request.scenario.description() == direct.description()
    assert request.is_of_one_table == bool(sections.keys() & {"prevalence", "volume"})
    if request.is_of_one_table:
        assert n_rows_of(request.chosen_rows()) == 100


def declared(request):
    (prior,) = request.scenario.priors
    return {
        secret: (world.mean.tolist(), world.cov.tolist())
        for secret, world in prior.declared.items()
    }


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
        ({"prevalence": DRAWN}, {"difference": 0.11}, [("30 %", "40 %")]),
        ({"prevalence": DRAWN}, {"nearest": 1}, [("30 %", "40 %"), ("40 %", "60 %")]),
        ({"attribute": JOINT}, {"ratio": 2.0}, [("1", "2"), ("2", "4")]),
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


@pytest.mark.parametrize(
    ("sections", "pieces", "reports"),
    [
        ({"prevalence": DRAWN | {"n_draws": 2}}, "tables",
         [(done, 6) for done in range(1, 7)]),
        ({"occupancy": STEPS, "query": COUNT}, "times", [(done, 4) for done in range(1, 5)]),
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
