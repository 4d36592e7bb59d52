# SPDX-License-Identifier: Apache-2.0
"""What a scan reads from rows: secrets as labels, outputs inside the range, missing values."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pufferslice.data import frame_of
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import Ball, Box, columns, summary
from pufferslice.scenario.secrets import Bins, ColumnSecret
from pufferslice.sensitivity import RowScan
from pufferslice.sensitivity.profiles import FiniteProfile

RACE = "race"
AGES = columns(["age"]).with_range(Box([0], [100]))


def scan_of(query=AGES, secret=RACE, **said):
    return RowScan.of(query, secret=secret, profile=FiniteProfile.axes(dim=query.dim), **said)


def labels(rows):
    return [rows.secrets[code] for code in rows.codes]


class TestSecrets:
    @pytest.mark.parametrize(
        "values",
        [
            ["b", "a", "b"],
            pa.array(["b", "a", "b"]).dictionary_encode(),
            [2, 1, 2],
            [2.0, 1.0, 2.0],
            [0.0, -0.0, 1.5],
            [True, False, True],
        ],
        ids=["text", "category", "whole", "real", "minus zero", "flag"],
    )
    def test_labels_are_those_of_the_whole_table(self, values):
        table = pa.table({"race": values, "age": [1, 2, 3]})
        rule = ColumnSecret(columns=("race",))
        assert labels(scan_of().rows(table)) == rule.labels(frame_of(table)).tolist()

    def test_several_columns(self):
        table = pa.table({"sex": ["f", "m", "f"], "race": ["x", "x", "y"], "age": [1, 2, 3]})
        rows = scan_of(secret=["sex", "race"]).rows(table)
        assert labels(rows) == ["f & x", "m & x", "f & y"]

    @pytest.mark.soundness
    @pytest.mark.parametrize(("first", "second"), [("a &", "b"), ("a", "& b"), ("a & b", "c")])
    def test_labels_that_joined_columns_could_merge_are_refused(self, first, second):
        """'a &' with 'b' and 'a' with '& b' would both be 'a & & b'."""
        table = pa.table({"sex": [first], "race": [second], "age": [1]})
        with pytest.raises(ScenarioError, match="two secrets could become one"):
            scan_of(secret=["sex", "race"]).rows(table)

    def test_objects_of_several_kinds_are_refused_and_not_shown(self):
        table = pd.DataFrame({"race": pd.Series([17, "x"], dtype=object), "age": [1.0, 2.0]})
        with pytest.raises(TableError, match="type is Object") as caught:
            scan_of().rows(table)
        assert "17" not in str(caught.value)
        assert caught.value.__context__ is None

    def test_many_values_in_many_columns(self, rng):
        """More combinations than rows, and than fit a small table."""
        n = 500
        table = {f"c{k}": rng.integers(400, size=n).astype(str) for k in range(5)}
        rows = scan_of(secret=list(table)).rows(pa.table({**table, "age": np.zeros(n)}))
        expected = [" & ".join(row) for row in zip(*table.values(), strict=True)]
        assert labels(rows) == expected

    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pa.table])
    def test_any_dataframe(self, frame):
        rows = scan_of().rows(frame({"race": ["b", "a"], "age": [10.0, 150.0], "other": [1, 2]}))
        assert labels(rows) == ["b", "a"]
        assert rows.outputs.tolist() == [[10.0], [100.0]]


class TestBadRows:
    def test_missing_values_are_counted_by_column(self):
        table = pa.table({"race": ["a", None, "b"], "age": [float("nan"), None, 3.0]})
        with pytest.raises(TableError, match=r"2 of 3 rows have missing .*'race' 1, 'age' 2"):
            scan_of().rows(table)

    def test_missing_rows_can_be_left_out(self):
        scan = scan_of(AGES.with_missing("drop-rows"))
        rows = scan.rows(pa.table({"race": ["a", None, "b"], "age": [1.0, 2.0, None]}))
        assert (labels(rows), rows.n_dropped) == (["a"], 2)
        none = scan.rows(pa.table({"race": pa.array([None], pa.string()), "age": [2.0]}))
        assert (none.outputs.shape, none.n_dropped) == ((0, 1), 1)

    def test_infinite_values_are_counted(self):
        table = pa.table({"race": ["a", "b"], "age": [np.inf, 1.0]})
        with pytest.raises(TableError, match="'age' has 1 infinite values in 2 rows"):
            scan_of().rows(table)

    def test_outside_the_range_without_clipping(self):
        scan = scan_of(columns(["age", "pay"]), range=Box([0, 0], [100, 10]))
        table = pa.table({"race": ["a"] * 4, "age": [1, 101, -1, 5], "pay": [1, 11, 2, 3]})
        with pytest.raises(ScenarioError, match=r"2 of 4 rows .*\('age' 2, 'pay' 1\).*with_range"):
            scan.rows(table)
        inside = scan.rows(pa.table({"race": ["a"], "age": [100], "pay": [0]}))
        assert inside.outputs.tolist() == [[100.0, 0.0]]

    def test_outside_a_ball_without_clipping(self):
        scan = scan_of(columns(["age", "pay"]), range=Ball([0, 0], 5))
        with pytest.raises(ScenarioError, match="1 of 2 rows lie outside the public range"):
            scan.rows(pa.table({"race": ["a"] * 2, "age": [3, 5], "pay": [4, 5]}))

    def test_unknown_column(self):
        with pytest.raises(TableError, match="there is no column 'race'"):
            scan_of().rows(pa.table({"rase": ["a"], "age": [1]}))


class TestWhatCanBeStreamed:
    def test_queries_of_a_table_are_refused_with_the_way_out(self):
        query = summary(mean=["age"]).with_range(Box([0], [100]))
        with pytest.raises(ScenarioError, match=r"distribution 'records'.*read_table"):
            scan_of(query)

    def test_quantile_secrets_are_refused_with_the_way_out(self):
        with pytest.raises(ScenarioError, match="add a column with the bin of each row"):
            scan_of(secret=Bins(column="age", quantiles=4))

    def test_a_range_is_needed(self):
        with pytest.raises(ScenarioError, match="bins need a public range"):
            scan_of(columns(["age"]))

    def test_null_values_are_a_list(self):
        with pytest.raises(ArgumentError, match="null_values must be a list"):
            scan_of(null_values="?")

    def test_parts_tell_scans_apart(self):
        base = scan_of().parts()
        other_range = scan_of(columns(["age"]).with_range(Box([0], [90]))).parts()
        assert base["range"] != other_range["range"]
        assert base["profile"] == other_range["profile"]
        assert scan_of(secret=["sex"]).parts()["query"] != base["query"]
        assert scan_of(n_bins=8).parts()["range"] != base["range"]
        turned = RowScan.of(AGES, secret=RACE, profile=FiniteProfile.of([[-1.0]])).parts()
        assert turned["profile"] != base["profile"]
