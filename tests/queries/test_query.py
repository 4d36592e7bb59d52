# SPDX-License-Identifier: Apache-2.0
import json

import attrs
import numpy as np
import pyarrow as pa
import pytest

from pufferslice import queries
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import (
    Ball,
    Box,
    columns,
    linear_svm,
    row_function,
    summary,
    table_function,
)

TABLE = pa.table({"a": [1.0, 2.0, 6.0], "b": [0, 1, 0]})


class TestValue:
    def test_equal_by_description_not_by_function(self):
        def build(function):
            return table_function(function, names=["f"], columns=["a"], description="a number")

        assert build(lambda t: 1) == build(lambda t: 2)
        assert summary(mean=["a"]) != summary(std=["a"])
        assert summary(mean=["a"]) != summary(mean=["a"]).with_scales([2])
        assert summary(mean=["a"]) != summary(mean=["a"]).with_range(Box(0, 1))

    def test_description_is_complete_json(self):
        query = summary(mean=["a"]).with_range(Box(0, 9)).with_scales([3])
        assert json.loads(json.dumps(query.description())) == {
            "kind": "summary",
            "level": "table",
            "names": ["mean(a)"],
            "columns": ["a"],
            "parameters": {
                "mean": ["a"],
                "std": [],
                "rate": [],
                "quantile": [],
                "count_share": None,
            },
            "range": {"kind": "box", "low": [0.0], "high": [9.0]},
            "scales": [3.0],
            "missing": "refuse",
        }
        assert summary(mean=["a"]).description()["range"] is None

    def test_public_names(self):
        assert queries.__all__ == sorted(queries.__all__)
        for name in queries.__all__:
            assert getattr(queries, name).__name__ == name
        with pytest.raises(AttributeError, match="no attribute 'sumary'"):
            queries.sumary  # noqa: B018


class TestScalesAndRange:
    def test_the_policy_on_missing_values_is_part_of_the_query(self):
        query = summary(mean=["a"]).with_missing("drop-rows")
        assert query.missing == query.description()["missing"] == "drop-rows"
        assert query != summary(mean=["a"])
        with pytest.raises(ArgumentError, match="missing must be one of refuse, drop-rows"):
            query.with_missing("ignore")
        with pytest.raises(TableError, match="1 missing values"):
            query.outputs(pa.table({"a": [1, None]}))

    def test_prepared_clips_in_the_users_units_and_then_scales(self):
        query = columns(["a", "b"]).with_range(Box([0, 0], [10, 1])).with_scales([5, 0.5])
        np.testing.assert_array_equal(
            query.prepared(np.array([[20.0, 0.25], [5.0, -3.0]])), [[2, 0.5], [1, 0]]
        )
        np.testing.assert_array_equal(query.center, [1, 1])


class TestBound:
    def test_shapes(self):
        table, row = summary(mean=["a", "b"]), columns(["a", "b"])
        rows = np.array([2, 2, 0])
        assert table.bound(TABLE)(rows).shape == (2,)
        assert row.bound(TABLE)(rows).shape == (3, 2)
        assert table.outputs(TABLE).shape == (1, 2)
        assert row.outputs(TABLE).shape == (3, 2)
        assert row.bound(TABLE)(np.array([], dtype=np.intp)).shape == (0, 2)

    def test_columns_are_read_once(self):
        table = {"a": np.array([1.0, 2.0])}
        record = np.array([(1.0,), (2.0,)], dtype=[("a", float)])
        bound = columns(["a"]).bound(record)
        record["a"] = table["a"] * 100
        assert bound(np.array([0, 1])).ravel().tolist() == [1.0, 2.0]

    def test_outputs_that_are_not_finite_are_counted_not_shown(self):
        query = row_function(
            lambda row: [np.inf if row["a"] > 1 else 12345.0, 0],
            names=["f", "g"],
            columns=["a"],
            description="breaks",
        )
        with pytest.raises(ScenarioError) as caught:
            query.outputs(TABLE)
        assert "2 of 6 values are NaN or infinite, in f" in str(caught.value)
        assert "12345" not in str(caught.value)


def evolve(**changes):
    return attrs.evolve(columns(["a"]), **changes)


TWO, ROW = summary(mean=["a", "b"]), columns(["a", "b"])


MIXED = summary(rate={"income": ">50K"}, mean=["age", "hours"])


class TestByName:
    def test_coordinates_and_columns(self):
        query = MIXED.with_range({"hours": (1, 99), "mean(age)": [17, 90]})
        assert query.range == Box([0, 17, 1], [1, 90, 99])
        assert query.with_scales({"age": 10, "income": 0.1}).scales.tolist() == [0.1, 10, 1]

    def test_as_arguments_of_the_builders(self):
        query = summary(mean=["age"], range={"age": (0, 100)}, scales={"age": 10})
        assert query == summary(mean=["age"]).with_range(Box([0], [100])).with_scales([10])
        rows = columns(
            ["age"], {"income": ">50K"}, range={"age": (0, 100)}, scales={"income = >50K": 0.1}
        )
        assert rows.range == Box([0, 0], [100, 1])
        assert rows.scales.tolist() == [1, 0.1]


class TestPossible:
    @pytest.mark.parametrize(
        ("query", "limits"),
        [
            (summary(rate={"sex": "Male"}), Box([0.2], [0.7])),
            (summary(std=["age"]), Box([0], [1e9])),
            (summary(count_share=1), Box([0], [50_000])),
            (summary(mean=["x"], rate={"sex": "Male"}), Ball([-5, 0.5], 100)),
            (linear_svm(features=["a"], target="b", positive=1), Box([-9, -9], [9, 9])),
        ],
    )
    def test_others_are_taken(self, query, limits):
        assert query.with_range(limits).range == limits

    def test_clipping_to_a_ball_keeps_rates_possible(self, rng):
        query = summary(mean=["x"], rate={"sex": "Male"}).with_range(Ball([0, 0.5], 3))
        outputs = np.column_stack([rng.normal(0, 50, 500), rng.random(500)])
        rates = query.prepared(outputs)[:, 1]
        assert (rates >= 0).all()
        assert (rates <= 1).all()
