# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Declared levels that no row has: refused when a scenario is built, never by a release."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pufferslice as ps
from pufferslice.config.scenario import request_of
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import contingency_table, equals, group_by, histogram, intervals

TABLE = pa.table(
    {
        "site": ["a", "b"] * 20,
        "sex": ["female"] * 20 + ["male"] * 11 + ["Femal"] * 9,
        "grade": [1, 2, 3, 4] * 10,
        "ill": ["yes", "no", "no", "no", "no"] * 8,
    }
)
HALVES = {"a": TABLE.slice(0, 25), "b": TABLE.slice(25)}
BUILDERS = {
    "groups": lambda query: ps.Scenario.from_groups(TABLE, secret="site", query=query),
    "several priors": lambda query: ps.Scenario.from_groups(HALVES, secret="site", query=query),
    "bootstrap": lambda query: ps.Scenario.from_bootstrap(
        TABLE, secret="site", query=query, bootstrap=ps.Bootstrap(n_replicates=3, seed=1)
    ),
    "worlds": lambda query: ps.Scenario.from_worlds(HALVES, query=query),
    "lists of tables": lambda query: ps.Scenario.from_worlds(
        {name: [half, half] for name, half in HALVES.items()}, query=query
    ),
    "resampled": lambda query: ps.Scenario.from_worlds(
        {
            name: ps.Resampled(table=half, bootstrap=ps.Bootstrap(n_replicates=3, seed=1))
            for name, half in HALVES.items()
        },
        query=query,
    ),
    "prevalence": lambda query: ps.Scenario.from_prevalence(
        TABLE, column="ill", value="yes", within=0.1, query=query
    ),
    "draws": lambda query: ps.Scenario.from_prevalence(
        TABLE, column="ill", value="yes", shares=[0.2, 0.4], query=query, prior="draws",
        n_draws=3, seed=1,
    ),
    "volume": lambda query: ps.Scenario.from_volume(TABLE, up_to=100, query=query),
}  # fmt: skip
QUERIES = {
    "counts": lambda by, **options: contingency_table(by, statistic="count", **options),
    "totals": lambda by, **options: group_by(
        by, total=["grade"], clip={"grade": (0, 9)}, **options
    ),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_a_level_that_no_row_has(build, query):
    with pytest.raises(ScenarioError, match=r"'X' of column 'sex'.*allow_empty=True"):
        build(query({"grade": [1], "sex": ["female", "X"]}))
    assert build(query({"sex": ["female", "X"]}, allow_empty=True)).dim == 2
    assert build(query({"sex": ["female", "male"]})).dim == 2


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ({"sex": ["Female"]}, "'Female' of column 'sex'.* Did you mean 'female'?"),
        ({"sex": ["feMALE ", "male"]}, "Did you mean 'female'"),
        ({"sex": [equals("mal")]}, "'mal' of column 'sex'.* Did you mean 'male'"),
        ({"grade": [1, 5]}, "'5' of column 'grade'"),
        ({"grade": [True]}, "'True' of column 'grade'"),
        ({"sex": ["male"], "ill": ["yes", "maybe"]}, "'maybe' of column 'ill'"),
    ],
)
def test_refusals_name_column_level_and_near_matches(by, words):
    with pytest.raises(ScenarioError, match=words):
        BUILDERS["groups"](contingency_table(by, statistic="count"))


@pytest.mark.parametrize("build", BUILDERS.values(), ids=list(BUILDERS))
def test_labels_of_fewer_than_ten_rows_are_not_shown(build):
    with pytest.raises(ScenarioError) as caught:
        build(contingency_table({"sex": ["Female", "femal"]}, statistic="count"))
    assert "Femal'" not in str(caught.value)


def test_a_cell_may_be_empty_if_its_levels_occur():
    query = contingency_table(
        {"sex": ["female"], "grade": [1], "ill": ["yes", "no"]}, statistic="count"
    )
    table = TABLE.append_column("one", [["x"] + ["y"] * 39])
    cells = contingency_table({"one": ["x", "y"], "grade": [1, 4]}, statistic="count")
    assert ps.Scenario.from_groups(table, secret="site", query=cells).dim == 4
    assert BUILDERS["groups"](query).dim == 2


def test_intervals_are_no_levels():
    assert BUILDERS["groups"](histogram("grade", [0, 3, 9, 99], statistic="count")).dim == 3
    assert BUILDERS["groups"](group_by({"grade": intervals([0, 50, 99])}, mean=["grade"])).dim == 2


@pytest.mark.parametrize("name", ["prevalence", "volume"])
def test_files_that_are_read_in_parts(name, tmp_path):
    """The level of the first part is not in the last, and the other way round."""
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=10)

    def build(query):
        if name == "volume":
            return ps.Scenario.from_volume(tmp_path / "rows.parquet", up_to=100, query=query)
        hidden = {"column": "ill", "value": "yes", "within": 0.1}
        return ps.Scenario.from_prevalence(tmp_path / "rows.parquet", query=query, **hidden)

    assert build(contingency_table({"sex": ["female", "male"]}, statistic="count")).dim == 2
    with pytest.raises(ScenarioError, match="'X' of column 'sex'"):
        build(contingency_table({"sex": ["female", "X"]}, statistic="count"))


def test_a_level_of_dropped_rows_alone_is_refused():
    table = pa.table(
        {
            "site": ["a", "a", "b", "b", "b"],
            "sex": ["F", "M", "F", "M", "X"],
            "pay": [1.0, 2.0, 3.0, 4.0, None],
        }
    )
    query = group_by({"sex": ["F", "X"]}, mean=["pay"]).with_missing("drop-rows")
    with pytest.raises(ScenarioError, match="'X' of column 'sex'"):
        ps.Scenario.from_groups(table, secret="site", query=query)


@pytest.mark.parametrize("statistics", [{"cells": "count"}, {"mean": ["grade"]}])
def test_files(statistics, tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")

    def build(**keys):
        by = [{"column": "sex", "values": ["female", "X"]}]
        document = {
            "data": {"path": "t.parquet"},
            "secret": {"column": "site"},
            "query": {"distribution": "groups", "by": by, **statistics, **keys},
            "guarantee": {"notion": "unsliced", "order": 4, "epsilon": 1.0},
        }
        return request_of(document, Path(tmp_path)).scenario

    for keys in ({}, {"allow_empty": False}):
        with pytest.raises(ScenarioError, match=r"'X' of column 'sex'.*allow_empty = true"):
            build(**keys)
    assert build(allow_empty=True).dim == 2
    if "mean" in statistics:
        with pytest.raises(ArgumentError, match="allow_empty: is for by"):
            build(allow_empty=True, by=[])


@pytest.mark.soundness
@pytest.mark.parametrize("name", ["counts", "totals"])
def test_a_release_is_never_refused_for_it(name, tmp_path):
    """The rows of a release are secret, and so is which levels they have."""
    query = QUERIES[name]({"sex": ["female", "male"]})
    scenario = ps.Scenario.from_prevalence(
        TABLE, column="ill", value="yes", within=0.1, query=query, source="held_out"
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.64))
    rows = pa.table({**TABLE.to_pydict(), "sex": ["other"] * 40})
    released = ps.release(scenario, rows, certificate, ledger=tmp_path / "a.ledger")
    assert len(released.values) == 2


def test_levels_are_not_part_of_what_is_certified():
    strict, loose = (
        contingency_table({"sex": ["female", "male"]}, statistic="count", allow_empty=allow)
        for allow in (False, True)
    )
    assert strict == loose
    assert strict.description() == loose.description()
