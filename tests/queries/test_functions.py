# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import row_function, table_function

DATA = {"n": [1, 2, 3], "x": [0.5, 1.5, 2.5], "s": ["a", "bb", "ccc"], "b": [True, False, True]}
LIBRARIES = [pd.DataFrame, pl.DataFrame, pa.table]
RECORDS = np.array(
    list(zip(*DATA.values(), strict=True)),
    dtype=[("n", int), ("x", float), ("s", "U3"), ("b", "?")],
)


def of_row(function, dim=1):
    names = [f"f{index}" for index in range(dim)]
    return row_function(function, names=names, columns=["n", "x", "s", "b"], description="of a row")


def of_table(function, dim=1, columns=("n", "x")):
    names = [f"f{index}" for index in range(dim)]
    return table_function(function, names=names, columns=columns, description="of a table")


class TestRowFunction:
    @pytest.mark.parametrize("table", [*(lib(DATA) for lib in LIBRARIES), RECORDS])
    def test_gets_a_dict_of_python_values(self, table):
        seen = []

        def function(row):
            seen.append(row)
            return row["n"] * row["x"], len(row["s"])

        outputs = of_row(function, 2).outputs(table)
        np.testing.assert_array_equal(outputs, [[0.5, 1], [3, 2], [7.5, 3]])
        assert [{k: type(v) for k, v in row.items()} for row in seen] == [
            {"n": int, "x": float, "s": str, "b": bool}
        ] * 3
        assert seen[1] == {"n": 2, "x": 1.5, "s": "bb", "b": False}

    def test_only_the_asked_rows_are_evaluated(self):
        seen = []
        query = of_row(lambda row: seen.append(row["n"]) or row["n"])
        bound = query.bound(pa.table(DATA))
        assert seen == []
        assert bound(np.array([2, 0])).tolist() == [[3.0], [1.0]]
        assert seen == [3, 1]


class TestTableFunction:
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_gets_the_users_own_library_and_the_columns_only(self, library):
        seen = []

        def function(table):
            seen.append(table)
            return sum(table["n"].to_numpy()), len(table["x"])

        query = of_table(function, 2)
        table = library(DATA)
        np.testing.assert_array_equal(query.bound(table)(np.array([2, 2, 1])), [8, 3])
        assert type(seen[0]) is type(table)
        names = seen[0].column_names if library is pa.table else list(seen[0].columns)
        assert names == ["n", "x"]


@pytest.mark.parametrize("build", [of_row, of_table])
class TestBoth:
    @pytest.mark.parametrize(
        ("result", "message"),
        [
            ([1, 2, 3], "must return 2 numbers, one per name, got 3"),
            ([[1, 2]], r"2 numbers.*an array of shape \(1, 2\)"),
            *((other, "must return 2 numbers") for other in ("private", None, [1, [2]], 10**400)),
        ],
    )
    def test_wrong_results(self, build, result, message):
        with pytest.raises(ScenarioError, match=message) as caught:
            build(lambda _: result, 2).outputs(pa.table(DATA))
        assert "private" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_missing_values_are_counted(self, build):
        table = pa.table({**DATA, "x": [None, 1.0, float("nan")]})
        with pytest.raises(TableError, match="2 of 3 rows have missing values \\('x' 2\\)"):
            build(lambda _: 1).bound(table)

    @pytest.mark.parametrize("error", [ArgumentError("ours"), MemoryError(), KeyboardInterrupt()])
    def test_errors_that_quote_nothing_are_left_alone(self, build, error):
        with pytest.raises(ScenarioError, match=r"ZeroDivisionError in line \d+ of .*test_f"):
            build(lambda _: 1 / 0).outputs(pa.table(DATA))

        def raising(_):
            raise error

        with pytest.raises(type(error)):
            build(raising).outputs(pa.table(DATA))
