# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError, TableError
from pufferslice.queries import above, columns

DATA = {"age": [20, 40, 60], "gain": [0.0, 10.0, 0.5], "income": ["low", "high", "high"]}
QUERY = columns(["gain", "age"], flags=[("income", "high"), ("gain", above(1)), ("gain", above(0))])


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.table])
def test_known_answer(library):
    assert QUERY.names == ("gain", "age", "income = high", "gain > 1", "gain > 0")
    assert QUERY.columns == ("gain", "age", "income")
    assert (QUERY.level, QUERY.kind) == ("row", "columns")
    expected = [[0, 20, 0, 0, 0], [10, 40, 1, 1, 1], [0.5, 60, 1, 0, 1]]
    np.testing.assert_array_equal(QUERY.outputs(library(DATA)), expected)
    picked = QUERY.bound(library(DATA))(np.array([2, 0, 2]))
    np.testing.assert_array_equal(picked, np.array(expected)[[2, 0, 2]])


def test_parameters_say_all():
    assert QUERY.parameters == {
        "columns": ["gain", "age"],
        "flags": [
            {"column": "income", "equals": "high"},
            {"column": "gain", "above": 1.0},
            {"column": "gain", "above": 0.0},
        ],
    }


def test_flags_alone():
    outputs = columns([], flags={"income": "high"}).outputs(pa.table(DATA))
    assert outputs.tolist() == [[0.0], [1.0], [1.0]]


@pytest.mark.parametrize(
    ("names", "flags", "message"),
    [
        ([], None, "at least one name or flag"),
        ("age", None, r"write \['age'\]"),
        (["age", "age"], None, "'age' repeats"),
        ([], {"age": None}, "a text, a number, True or False"),
        ([], ["age"], "flags must map columns to conditions"),
    ],
)
def test_refusals(names, flags, message):
    with pytest.raises(ArgumentError, match=message):
        columns(names, flags=flags)


def test_text_columns_are_refused():
    with pytest.raises(TableError, match="'income' must hold numbers"):
        columns(["income"]).outputs(pa.table(DATA))
