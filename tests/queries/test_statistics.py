# SPDX-License-Identifier: Apache-2.0
import statistics

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.queries import above, at_most, columns, equals, summary

PEOPLE = pa.table({"age": [20.0, 40.0], "hours": [30, 50], "income": ["<=50K", ">50K"]})
RNG = np.random.default_rng(11)
DATA = {
    "age": RNG.integers(17, 90, size=200),
    "pay": RNG.normal(size=200),
    "income": RNG.choice(["<=50K", ">50K"], size=200),
}
RECORDS = np.rec.fromarrays(list(DATA.values()), names=list(DATA))
TABLES = {
    "pandas": pd.DataFrame(DATA),
    "polars": pl.DataFrame(DATA),
    "pyarrow": pa.table(DATA),
    "records": RECORDS,
}
QUERY = summary(
    mean=["age", "pay"],
    std=["pay"],
    rate=[("income", ">50K"), ("age", above(40)), ("age", at_most(40))],
    quantile={"age": 0.5, "pay": (0.25, 0.75)},
    count_share=1000,
    median=["pay"],
    covariance=[("age", "pay")],
    correlation=[("pay", "age")],
    total=["pay"],
    count={"age": above(40)},
)


@pytest.mark.parametrize("rows", [np.arange(200), np.array([3, 3, 9, 150, 7])])
def test_agrees_with_pandas(rows):
    assert QUERY.parameters["rate"][1:] == [
        {"column": "age", "above": 40.0},
        {"column": "age", "at_most": 40.0},
    ]
    assert QUERY.parameters["quantile"][0] == {"column": "age", "level": 0.5}
    frame = TABLES["pandas"].iloc[rows]
    oracle = [
        frame["age"].mean(),
        frame["pay"].mean(),
        frame["pay"].std(ddof=0),
        (frame["income"] == ">50K").mean(),
        (frame["age"] > 40).mean(),
        (frame["age"] <= 40).mean(),
        frame["age"].quantile(0.5),
        frame["pay"].quantile(0.25),
        frame["pay"].quantile(0.75),
        len(frame) / 1000,
        frame["pay"].median(),
        frame["pay"].cov(frame["age"], ddof=0),
        frame["pay"].corr(frame["age"]),
        frame["pay"].sum(),
        (frame["age"] > 40).sum(),
    ]
    np.testing.assert_allclose(QUERY.bound(TABLES["pandas"])(rows), oracle, rtol=1e-12)


@pytest.mark.parametrize("name", TABLES)
def test_every_library_gives_the_same_bits(name):
    rows = RNG.integers(0, 200, size=500)
    expected = QUERY.bound(TABLES["pyarrow"])(rows)
    np.testing.assert_array_equal(QUERY.bound(TABLES[name])(rows), expected)
    np.testing.assert_array_equal(QUERY.outputs(TABLES[name]), QUERY.outputs(TABLES["pyarrow"]))


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_the_standard_deviation_divides_by_the_number_of_rows(values):
    outputs = summary(mean=["v"], std=["v"]).outputs(pa.table({"v": values}))[0]
    assert outputs[0] == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert outputs[1] == pytest.approx(statistics.pstdev(values), abs=1e-9)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(-5, 5))
def test_a_rate_and_its_opposite_sum_to_one(values, limit):
    query = summary(rate=[("v", above(limit)), ("v", at_most(limit)), ("v", equals(limit))])
    more, less, same = query.outputs(pa.table({"v": values}))[0]
    assert more + less == pytest.approx(1, abs=1e-12)
    assert same == values.count(limit) / len(values)


class TestOrder:
    def test_it_is_that_of_the_call(self):
        assert summary(rate={"income": ">50K"}, mean=["age", "hours"]).names == (
            "rate(income = >50K)",
            "mean(age)",
            "mean(hours)",
        )
        np.testing.assert_array_equal(
            summary(rate={"income": ">50K"}, mean=["age", "hours"]).outputs(PEOPLE), [[0.5, 30, 40]]
        )
        other = summary(
            count_share=4, quantile={"age": 0.5}, std=["age"], rate=None, mean=["hours"]
        )
        assert other.names == ("count/4", "quantile(age, 0.5)", "std(age)", "mean(hours)")
        np.testing.assert_array_equal(other.outputs(PEOPLE), [[0.5, 30, 10, 40]])

    def test_a_column_may_have_quantiles_in_two_places(self):
        query = summary(quantile=[("age", 0.25), ("hours", 0.5), ("age", 0.75)])
        assert query.names == ("quantile(age, 0.25)", "quantile(hours, 0.5)", "quantile(age, 0.75)")


ROWS = {"age": [20, 40, 60], "gain": [0.0, 10.0, 0.5], "income": ["low", "high", "high"]}
COLUMNS = columns(
    ["gain", "age"], flags=[("income", "high"), ("gain", above(1)), ("gain", above(0))]
)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_columns_by_hand(library):
    flags = [{"column": "income", "equals": "high"}, {"column": "gain", "above": 1.0}]
    assert COLUMNS.parameters["flags"][:2] == flags
    assert COLUMNS.names == ("gain", "age", "income = high", "gain > 1", "gain > 0")
    assert COLUMNS.columns == ("gain", "age", "income")
    assert (COLUMNS.level, COLUMNS.kind) == ("row", "columns")
    expected = [[0, 20, 0, 0, 0], [10, 40, 1, 1, 1], [0.5, 60, 1, 0, 1]]
    np.testing.assert_array_equal(COLUMNS.outputs(library(ROWS)), expected)
    picked = COLUMNS.bound(library(ROWS))(np.array([2, 0, 2]))
    np.testing.assert_array_equal(picked, np.array(expected)[[2, 0, 2]])
