# SPDX-License-Identifier: Apache-2.0
"""What tables of engines are refused, by the name of the column or of the engine."""

import datetime as dt

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.refusal_tables import refusals
from tests.refusals import check_refused

import pufferslice as ps
from pufferslice.data.engines import collected, lazy_of
from pufferslice.errors import ScenarioError, TableError
from pufferslice.queries import hour, summary, sums, weekday
from pufferslice.queries.layout import Layout
from pufferslice.queries.sums import tally_of

TIMES = [dt.datetime(2026, 1, day, tzinfo=dt.UTC).replace(tzinfo=None) for day in (1, 2, 3, 4)]
TABLE = pl.LazyFrame(
    {
        "sex": ["F", "F", "M", "M"],
        "age": [20, 30, 40, 50],
        "pay": [1.0, 2.0, 3.0, 4.0],
        "list": [[1], [2], [3], [4]],
        "time": TIMES,
    }
)
CLIP = {"age": (0, 99)}
MEAN = summary(mean=["age"], clip=CLIP)


def scenario(table=TABLE, query=MEAN, **changes):
    options = {"column": "sex", "value": "F", "within": 0.5, "query": query}
    return ps.Scenario.from_prevalence(table, **(options | changes))


def asked_of(query, table=TABLE):
    return tally_of(lazy_of(table), Layout.of(query.as_sums().features, 20))


def of_columns(**columns):
    return summary(clip=dict.fromkeys(columns.get("mean", ()), (0, 9)), **columns)


def changed_meanwhile(monkeypatch):
    """A table that gets a row between the two queries."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i % 2 AS sex, i AS age FROM range(9) r(i)")
    first = sums._Rows.sums

    def summed(rows, **options):
        groups = first(rows, **options)
        connection.execute("INSERT INTO t VALUES (1, 1)")
        return groups

    monkeypatch.setattr(sums._Rows, "sums", summed)
    scenario(connection.table("t"), value=1)


def of_most(rows, monkeypatch):
    monkeypatch.setattr(sums, "_MOST_ROWS", rows)
    scenario()


@pytest.mark.parametrize(
    "refusal",
    refusals(
        {
            TableError: [
                ("only once", lambda: scenario(pa.table({"a": [1]}).to_reader())),
                ("'wage'", lambda: scenario(query=of_columns(mean=["wage"]))),
                ("'sexes'", lambda: scenario(column="sexes")),
                ("'sex'", lambda: scenario(query=of_columns(mean=["sex"]))),
                ("'list'", lambda: scenario(query=of_columns(mean=["list"]))),
                ("'list'", lambda: scenario(query=summary(rate={"list": "a"}))),
                ("'age'", lambda: scenario(query=summary(rate={"age": weekday("Monday")}))),
                ("polars", lambda: scenario(query=summary(rate={"sex": hour(3)}))),
                ("'time'", lambda: scenario(query=summary(rate={"time": "2026-01-01"}))),
                ("no rows", lambda: scenario(TABLE.filter(pl.col("age") > 99))),
                ("no rows", lambda: scenario(TABLE.filter(pl.col("age") > 99), n_rows=4)),
                (
                    "polars failed",
                    lambda: collected(lazy_of(TABLE.select(pl.col("sex").str.to_integer()))),
                ),
            ],
            ScenarioError: [
                ("'age' holds numbers", lambda: scenario(query=summary(rate={"age": "old"}))),
                ("same value", lambda: scenario(TABLE.with_columns(age=pl.lit(3)))),
                (
                    "no row meets",
                    lambda: scenario(query=summary(rate={"age": 21}), within=0.25),
                ),
                ("every row meets", lambda: scenario(query=summary(rate={"one": 1}), table=one())),
                ("no row has the level", lambda: scenario(query=levels())),
                ("Did you mean 'Other'", lambda: scenario(often(), value="other")),
                ("at least 2 rows", lambda: scenario(value="f")),
                (
                    "exclude each other",
                    lambda: scenario(value=None, values=["F", ps.queries.equals("F")]),
                ),
                ("200 numbers", lambda: asked_of(*many())),
            ],
        }
    ),
)
def test_refused(refusal):
    check_refused(refusal)


def test_a_table_that_changes_meanwhile_is_refused(monkeypatch):
    with pytest.raises(TableError, match="changed"):
        changed_meanwhile(monkeypatch)


def test_too_many_rows_for_exact_products_are_refused(monkeypatch):
    with pytest.raises(ScenarioError, match="from_moments"):
        of_most(3, monkeypatch)


def one():
    return TABLE.with_columns(one=pl.lit(1))


def levels():
    return ps.queries.contingency_table({"sex": ["F", "W"]})


def often():
    return pl.LazyFrame({"sex": ["Other", "M"] * 12, "age": range(24)})


def many():
    names = [f"c{k}" for k in range(100)]
    table = pl.LazyFrame({name: [0.0, 1.0] for name in names})
    return summary(std=names, clip=dict.fromkeys(names, (0, 1))), table


def test_a_lazy_table_has_no_rows_for_other_distributions():
    with pytest.raises(TableError, match="Collect"):
        ps.Scenario.from_groups(TABLE, secret="sex", query=MEAN)  # noqa: S106 - a column


def test_objects_of_dask_are_refused_by_their_column():
    frames = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    values = pd.Series([1, None, True, 2, 3, 4], dtype=object)
    table = frames.from_pandas(pd.DataFrame({"sex": ["F", "M"] * 3, "age": values}), npartitions=2)
    with pytest.raises(TableError, match="'age'"):
        scenario(table, n_rows=6)
