# SPDX-License-Identifier: Apache-2.0
"""Scenario files: every key does what it says, and a wrong one is refused."""

import copy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.errors import ArgumentError, ScenarioError, StorageError
from pufferslice.files import check_document, query_of, read_request, request_of
from pufferslice.queries import Ball, Box

BASE = {
    "data": {"path": "people.parquet"},
    "secret": {"column": "site"},
    "query": {"law": "groups", "mean": ["pay"]},
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
    assert request.scenario.law == "groups"
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
        '[query]\nlaw = "groups"\nmean = ["pay"]\n[profile]\nn_directions = 3\nseed = 0\n'
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
                "law": "groups",
                "mean": ["pay"],
                "std": ["pay"],
                "rate": [{"column": "rich", "equals": 1}, {"column": "age", "at_most": 40}],
                "quantile": [{"column": "age", "level": [0.25, 0.75]}],
                "count_share": 1000,
                "range": {"low": [0] * 7, "high": [100] * 7},
                "scales": [10, 10, 0.1, 0.1, 5, 5, 1],
            },
            data={"path": "x", "missing": "drop-rows"},
        )
    )
    assert query.dim == 7
    assert isinstance(query.range, Box)
    assert query.missing == "drop-rows"
    assert query.scales.tolist() == [10, 10, 0.1, 0.1, 5, 5, 1]


def test_ball_rows_and_models():
    ball = {"law": "groups", "mean": ["a"], "range": {"center": [1.0], "radius": 2.0}}
    assert isinstance(query_of(changed(query=ball)).range, Ball)
    rows = query_of(
        changed(
            query={
                "law": "records",
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
    assert query_of(changed(query={"law": "groups", "model": model})).dim == 3


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
    document = changed(profile=profile, query={"law": "groups", "mean": ["pay", "age"]})
    assert request_of(document, folder).profile.n_directions == n_directions


def test_laws(folder):
    bootstrap = changed(
        query={"law": "bootstrap", "mean": ["pay"]}, bootstrap={"n_replicates": 9, "seed": 2}
    )
    law = request_of(bootstrap, folder).scenario.priors[0].laws["a"]
    assert law.n_samples == 9
    records = changed(query={"law": "records", "columns": ["pay"]})
    assert request_of(records, folder).scenario.priors[0].laws["a"].n_samples == 20
    worlds = changed(
        query={"law": "worlds", "mean": ["pay"]},
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
    document = changed(query={"law": "worlds", "mean": ["pay"]}, gaussian=gaussian)
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
        query={"law": "groups", "mean": ["age"]},
    )
    assert len(request_of(document, Path()).scenario.secrets) == 5


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"query": {"law": "groups", "means": ["pay"]}}, "unknown key 'means' in"),
        ({"queries": {}}, r"unknown section \[queries\]"),
        ({"data": "people.csv"}, r"\[data\] must be a section"),
        ({"data": {}}, "either path or dataset"),
        ({"data": {"path": "a", "dataset": "adult"}}, "either path or dataset"),
        ({"data": {"dataset": "iris"}}, "dataset must be one of"),
        ({"secret": {}}, "exactly one of column"),
        ({"secret": {"column": "site", "bins": {}}}, "exactly one of column"),
        ({"secret": {"bins": {"column": "age"}}}, "needs 'quantiles'"),
        ({"query": {"mean": ["pay"]}}, "needs 'law'"),
        ({"query": {"law": 3, "mean": ["pay"]}}, "expected a word"),
        ({"query": {"law": "groups"}}, "at least one"),
        ({"query": {"law": "groups", "mean": ["pay"], "range": {"low": [0]}}}, "low and high"),
        ({"query": {"law": "groups", "rate": [{"column": "rich"}]}}, "needs one condition"),
        ({"query": {"law": "groups", "rate": [{"column": "rich", "near": 1}]}}, "one condition"),
        ({"query": {"law": "groups", "rate": [{"equals": 1}]}}, "needs 'column'"),
        ({"query": {"law": "groups", "quantile": [{"column": "age"}]}}, "needs 'level'"),
        ({"query": {"law": "groups", "model": {"kind": "oracle"}}}, "kind must be one of"),
        ({"query": {"law": "groups", "model": {"kind": "linear_svm"}}}, "cannot be made"),
        ({"query": {"law": "bootstrap", "mean": ["pay"]}}, "needs 'n_replicates'"),
        ({"query": {"law": "worlds", "mean": ["pay"]}}, "either"),
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


def test_sampled_priors_are_refused_with_the_way_out(folder):
    with pytest.raises(ScenarioError, match="'empirical' declares the sample"):
        request_of(changed(prior={"kind": "sampled"}), folder)


def test_the_template_is_a_good_document(repository):
    import tomllib

    template = repository / "src" / "pufferslice" / "cli" / "scenario.toml"
    check_document(tomllib.loads(template.read_text()))
