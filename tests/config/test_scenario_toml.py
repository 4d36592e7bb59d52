# SPDX-License-Identifier: Apache-2.0
"""Scenario files: every key does what it says, and a wrong one is refused."""

import copy
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
from pufferslice.config import check_document, query_of, read_request, request_of
from pufferslice.errors import ArgumentError, ScenarioError, StorageError
from pufferslice.queries import Ball, Box
from pufferslice.scenario.distributions import SampledBinnedDistribution
from pufferslice.scenario.histograms import BinnedDistribution
from pufferslice.sensitivity.profiles import SampledSphere

BASE = {
    "data": {"path": "people.parquet"},
    "secret": {"column": "site"},
    "query": {"distribution": "groups", "mean": ["pay"]},
    "profile": {"n_directions": 10, "seed": 1},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}


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


def test_the_smallest_document(folder):
    request = request_of(BASE, folder)
    assert request.scenario.distribution == "groups"
    assert request.scenario.secrets == ("a", "b", "c", "d")
    assert request.profile.n_directions == 1
    assert request.method is None
    assert request.deltas == (1e-5,)
    assert request.scenario.priors[0].source == "released_data"
    assert len(request.complete_table()) == 80


def test_read_request_from_a_file(folder):
    path = folder / "scenario.toml"
    path.write_text(
        '[data]\npath = "people.parquet"\n[secret]\ncolumn = "site"\n'
        '[query]\ndistribution = "groups"\nmean = ["pay"]\n[profile]\nn_directions = 3\nseed = 0\n'
        '[guarantee]\nnotion = "average"\norder = 2\nepsilon = 1\n'
    )
    assert read_request(path).target.notion == "average"
    path.write_text("[data\n")
    with pytest.raises(ArgumentError, match="is not TOML"):
        read_request(path)
    with pytest.raises(StorageError, match="cannot read"):
        read_request(folder / "absent.toml")


def test_secrets_columns_bins_pairs(folder):
    two = request_of(changed(secret={"columns": ["site", "sex"]}), folder)
    assert two.scenario.secrets == ("a & m", "b & f", "c & m", "d & f")
    bins = request_of(changed(secret={"bins": {"column": "age", "quantiles": 3}}), folder)
    assert bins.scenario.secrets == ("age q1/3", "age q2/3", "age q3/3")
    some = request_of(changed(secret={"column": "site", "pairs": [["a", "b"]]}), folder)
    assert [tuple(p) for p in some.scenario.pairs] == [("a", "b")]


def test_summary_query_with_range_and_scales():
    query = query_of(
        changed(
            query={
                "distribution": "groups",
                "mean": ["pay"],
                "std": ["pay"],
                "rate": [{"column": "rich", "equals": 1}, {"column": "age", "at_most": 40}],
                "quantile": [{"column": "age", "level": [0.25, 0.75]}],
                "count_share": 1000,
                "range": {"low": [0] * 7, "high": [100, 100, 1, 1, 100, 100, 1]},
                "scales": [10, 10, 0.1, 0.1, 5, 5, 1],
            },
            data={"path": "x", "missing": "drop-rows"},
        )
    )
    assert query.dim == 7
    assert isinstance(query.range, Box)
    assert query.missing == "drop-rows"
    assert query.scales.tolist() == [10, 10, 0.1, 0.1, 5, 5, 1]


def test_coordinates_are_in_the_order_of_the_file(folder):
    path = folder / "scenario.toml"
    path.write_text(
        '[data]\npath = "people.parquet"\n[secret]\ncolumn = "site"\n'
        "[profile]\nn_directions = 3\nseed = 0\n"
        '[guarantee]\nnotion = "average"\norder = 2\nepsilon = 1\n[query]\n'
        'distribution = "groups"\n'
        'rate = [{ column = "rich", equals = 1 }]\nstd = ["pay"]\nmean = ["age"]\n'
        'range = { age = [0, 100], "std(pay)" = [0, 50] }\nscales = { rich = 0.1, age = 10 }\n'
    )
    query = read_request(path).scenario.query
    assert query.names == ("rate(rich = 1)", "std(pay)", "mean(age)")
    assert query.range == Box([0, 0, 0], [1, 50, 100])
    assert query.scales.tolist() == [0.1, 1, 10]


def test_a_column_with_two_entries_keeps_both_quantiles():
    entries = [{"column": "age", "level": 0.25}, {"column": "age", "level": 0.75}]
    query = query_of(changed(query={"distribution": "groups", "quantile": entries}))
    assert query.names == ("quantile(age, 0.25)", "quantile(age, 0.75)")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"median": ["age"]}, "no median; write quantile.*table_function"),
        ({"range": {"pay": [1, 2], "low": [0]}}, "low and high, or center and radius, or"),
        ({"range": {"age": [1, 2]}}, "range names 'age'"),
        ({"range": {"pay": 7}}, "range must be a low and a high end for 'pay'"),
        ({"rate": [{"column": "rich", "equals": 1}], "range": {"low": [0, 0], "high": [1, 2]}},
         "its values are"),
        ({"scales": {"age": 7}}, "scales names 'age'"),
    ],
)  # fmt: skip
def test_statistics_and_ranges_that_do_not_fit(entry, words):
    document = changed(query={"distribution": "groups", "mean": ["pay"], **entry})
    with pytest.raises(ArgumentError, match=words):
        request_of(document, Path())


def test_ball_rows_and_models():
    ball = {"distribution": "groups", "mean": ["a"], "range": {"center": [1.0], "radius": 2.0}}
    assert isinstance(query_of(changed(query=ball)).range, Ball)
    rows = query_of(
        changed(
            query={
                "distribution": "records",
                "columns": ["pay"],
                "flags": [{"column": "rich", "above": 0}, {"column": "rich", "below": 1}],
            }
        )
    )
    assert (rows.level, rows.dim) == ("row", 3)
    model = {
        "kind": "logistic-regression",
        "features": ["pay", "age"],
        "target": "rich",
        "positive": 1,
    }
    assert query_of(changed(query={"distribution": "groups", "model": model})).dim == 3


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
    bootstrap = changed(
        query={"distribution": "bootstrap", "mean": ["pay"]},
        bootstrap={"n_replicates": 9, "seed": 2},
    )
    distribution = request_of(bootstrap, folder).scenario.priors[0].distributions["a"]
    assert distribution.n_samples == 9
    records = changed(query={"distribution": "records", "columns": ["pay"]})
    assert request_of(records, folder).scenario.priors[0].distributions["a"].n_samples == 20
    worlds = changed(
        query={"distribution": "worlds", "mean": ["pay"]},
        worlds={"early": "early.parquet", "late": "late.parquet"},
        prior={"source": "held-out"},
    )
    found = request_of(worlds, folder)
    assert found.scenario.secrets == ("early", "late")
    assert found.table is None
    with pytest.raises(ArgumentError, match="no table of its own"):
        found.complete_table()


def test_gaussian_worlds(folder):
    gaussian = {"a": {"mean": [0], "cov": [[1]]}, "b": {"mean": [1], "cov": [[2.25]]}}
    document = changed(query={"distribution": "worlds", "mean": ["pay"]}, gaussian=gaussian)
    prior = request_of(document, folder).scenario.priors[0]
    assert (prior.kind, prior.source) == ("gaussian", "public_model")
    document["calibration"] = {"rule": "tight"}
    assert request_of(document, folder).method.envelope == "exact"


@pytest.mark.parametrize(
    ("said", "envelope"),
    [
        ({"rule": "closed-form"}, "worst_gap"),
        ({"rule": "tight"}, "transport"),
        ({"envelope": "worst-gap"}, "worst_gap"),
    ],
)
def test_calibration_section(folder, said, envelope):
    assert request_of(changed(calibration=said), folder).method.envelope == envelope


def test_dataset():
    document = changed(
        data={"dataset": "adult"},
        secret={"column": "race"},
        query={"distribution": "groups", "mean": ["age"]},
    )
    assert len(request_of(document, Path()).scenario.secrets) == 5


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"query": {"distribution": "groups", "means": ["pay"]}}, "unknown key 'means' in"),
        ({"queries": {}}, r"unknown section \[queries\]"),
        ({"data": "people.csv"}, r"\[data\] must be a section"),
        ({"data": {}}, "either path or dataset"),
        ({"data": {"path": "a", "dataset": "adult"}}, "either path or dataset"),
        (
            {"data": {"dataset": "iris"}},
            "dataset must be one of adult, adult_complete",
        ),
        ({"secret": {}}, "exactly one of column"),
        ({"secret": {"column": "site", "bins": {}}}, "exactly one of column"),
        ({"secret": {"bins": {"column": "age"}}}, "needs 'quantiles'"),
        ({"query": {"mean": ["pay"]}}, "needs 'distribution'"),
        ({"query": {"distribution": 3, "mean": ["pay"]}}, "distribution must be a text"),
        ({"query": {"distribution": "groups"}}, "at least one"),
        (
            {"query": {"distribution": "groups", "mean": ["pay"], "range": {"low": [0]}}},
            "low and high",
        ),
        (
            {"query": {"distribution": "groups", "rate": [{"column": "rich"}]}},
            "needs one condition",
        ),
        (
            {"query": {"distribution": "groups", "rate": [{"column": "rich", "near": 1}]}},
            "one condition",
        ),
        ({"query": {"distribution": "groups", "rate": [{"equals": 1}]}}, "needs 'column'"),
        ({"query": {"distribution": "groups", "quantile": [{"column": "age"}]}}, "needs 'level'"),
        ({"query": {"distribution": "groups", "model": {"kind": "oracle"}}}, "kind must be one of"),
        ({"query": {"distribution": "groups", "model": {"kind": "linear_svm"}}}, "cannot be made"),
        ({"query": {"distribution": "bootstrap", "mean": ["pay"]}}, "needs 'n_replicates'"),
        ({"query": {"distribution": "worlds", "mean": ["pay"]}}, "either"),
        ({"profile": {"seed": 1}}, "needs 'n_directions'"),
        ({"profile": {"n_directions": 4}}, "needs 'seed'"),
        ({"profile": {"kind": "given"}}, "needs 'directions'"),
        ({"profile": {"kind": "spiral"}}, "kind must be one of"),
        ({"guarantee": {"notion": "joint", "order": 4}}, "needs 'epsilon'"),
        ({"guarantee": {"notion": "joint", "order": True, "epsilon": 1}}, "order must be a number"),
        ({"calibration": {"rule": "wild"}}, "rule must be one of"),
        ({"calibration": {"envelope": "paper"}}, "envelope must be one of"),
        ({"prior": {"source": "rumour"}}, "source must be one of"),
        ({"prior": {"kind": "guessed"}}, "kind must be one of"),
    ],
)
def test_wrong_documents(folder, sections, words):
    with pytest.raises(ArgumentError, match=words):
        request_of(changed(**sections), folder)


RECORDS = {
    "query": {"distribution": "records", "columns": ["pay"], "range": {"low": [0], "high": [99]}},
    "prior": {"kind": "sampled", "band": "dkw"},
}


class TestSampled:
    def test_groups_are_no_samples(self, folder):
        with pytest.raises(ScenarioError, match="use distribution 'bootstrap' or 'records'"):
            request_of(changed(prior={"kind": "sampled"}), folder)

    def test_records(self, folder):
        guarantee = BASE["guarantee"] | {"failure_probability": 0.05}
        request = request_of(changed(**RECORDS, guarantee=guarantee), folder)
        assert request.scenario.prior_kind == "sampled"
        assert request.failure_probability == 0.05
        assert request.band == "dkw"
        assert request.target == Guarantee.joint(order=4, epsilon=1.0)

    def test_a_failure_probability_does_not_make_a_prior_sampled(self, folder):
        """Nothing is inferred: the request is refused when it is certified."""
        guarantee = BASE["guarantee"] | {"failure_probability": 0.05}
        request = request_of(changed(guarantee=guarantee), folder)
        assert request.scenario.prior_kind == "empirical"

    def test_epsilon_delta(self, folder):
        guarantee = {"claim": "epsilon-delta", "notion": "joint", "epsilon": 1.0, "delta": 0.01}
        request = request_of(changed(**RECORDS, guarantee=guarantee), folder)
        assert request.target == ApproximateGuarantee.joint(epsilon=1.0, delta=0.01)

    def test_sphere(self, folder):
        query = {"distribution": "groups", "mean": ["pay", "age"]}
        profile = {"kind": "sphere", "n_directions": 12, "seed": 1}
        assert isinstance(request_of(changed(query=query, profile=profile), folder).profile,
                          SampledSphere)  # fmt: skip

    @pytest.mark.parametrize(
        ("guarantee", "words"),
        [
            ({"notion": "joint", "order": 4, "epsilon": 1, "delta": 0.1}, "delta belongs to claim"),
            ({"claim": "epsilon-delta", "notion": "joint", "epsilon": 1}, "needs 'delta'"),
            (
                {"claim": "epsilon-delta", "notion": "joint", "epsilon": 1, "delta": 0.1,
                 "order": 4},
                "has no order",
            ),
            ({"claim": "dp", "notion": "joint", "epsilon": 1, "delta": 0.1}, "claim must be"),
            ({"notion": "joint", "order": 4, "epsilon": 1, "failure_probability": "small"},
             "failure_probability must be a number"),
        ],
    )  # fmt: skip
    def test_wrong_claims(self, folder, guarantee, words):
        with pytest.raises(ArgumentError, match=words):
            request_of(changed(guarantee=guarantee), folder)

    def test_wrong_bands(self, folder):
        with pytest.raises(ArgumentError, match="band must be one of"):
            request_of(changed(prior={"band": "bootstrap"}), folder)


class TestStreamed:
    DATA: ClassVar = {"path": "people.parquet", "bins": 512}

    @pytest.mark.parametrize("kind", ["empirical", "sampled"])
    def test_rows_are_counted(self, folder, kind):
        document = changed(**RECORDS | {"prior": {"kind": kind}}, data=self.DATA)
        request = request_of(document, folder)
        assert request.scenario.prior_kind == kind
        assert request.table is None
        distribution = request.scenario.priors[0].distributions["a"]
        assert isinstance(
            distribution, BinnedDistribution if kind == "empirical" else SampledBinnedDistribution
        )
        assert distribution.n_samples == 20
        with pytest.raises(ArgumentError, match="streamed data were counted and not kept"):
            request.complete_table()

    def test_what_the_rows_are_must_be_said(self, folder):
        document = changed(**RECORDS | {"prior": {}}, data=self.DATA)
        with pytest.raises(ArgumentError, match="streamed data must say what they are"):
            request_of(document, folder)

    def test_before_a_long_scan(self, folder):
        def never(path, rows):
            raise AssertionError

        with pytest.raises(ArgumentError, match="must say"):
            request_of(changed(**RECORDS | {"prior": {}}, data=self.DATA), folder, never)

    def test_only_records_from_files(self, folder):
        with pytest.raises(ArgumentError, match="for distribution 'records', from path"):
            request_of(changed(data=self.DATA, prior={"kind": "empirical"}), folder)

    def test_bins_need_a_range(self, folder):
        query = {"distribution": "records", "columns": ["pay"]}
        with pytest.raises(ScenarioError, match="bins need a public range"):
            request_of(changed(data=self.DATA, query=query, prior={"kind": "empirical"}), folder)


def test_the_template_is_a_good_document(repository):
    import tomllib

    template = repository / "src" / "pufferslice" / "cli" / "scenario.toml"
    check_document(tomllib.loads(template.read_text()))


def test_a_file_that_is_nested_too_deeply(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text("x = " + "[" * 20_000)
    with pytest.raises(ArgumentError, match="is not TOML: it is nested too deeply"):
        read_request(path)
