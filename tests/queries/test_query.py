# SPDX-License-Identifier: Apache-2.0
import json

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pufferslice import queries
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import Ball, Box, Query, columns, row_function, summary, table_function

TABLE = pa.table({"a": [1.0, 2.0, 6.0], "b": [0, 1, 0]})


class TestValue:
    def test_defaults(self):
        query = summary(mean=["a", "b"])
        assert query.dim == 2
        assert query.range is None
        np.testing.assert_array_equal(query.scales, [1, 1])
        np.testing.assert_array_equal(query.center, [0, 0])

    def test_equal_by_description_not_by_function(self):
        def build(function):
            return table_function(function, names=["f"], columns=["a"], description="a number")

        assert build(lambda t: 1) == build(lambda t: 2)
        assert summary(mean=["a"]) != summary(std=["a"])
        assert summary(mean=["a"]) != summary(mean=["a"]).with_scales([2])
        assert summary(mean=["a"]) != summary(mean=["a"]).with_range(Box(0, 1))

    def test_repr_names_kind_and_coordinates(self):
        assert repr(summary(mean=["a"])) == "Query(kind='summary', dim=1, names=('mean(a)',))"

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

    def test_changing_a_description_does_not_change_the_query(self):
        query = summary(mean=["a"])
        query.description()["parameters"]["mean"].append("b")
        assert query == summary(mean=["a"])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"names": ()}, "at least one coordinate"),
            ({"names": ["x", "x"]}, "'x' repeats"),
            ({"names": "x"}, "must be a list of names"),
            ({"names": [""]}, "not empty"),
            ({"names": [1]}, "not empty"),
            ({"columns": "a"}, "columns must be a list"),
            ({"level": "world"}, "level must be one of table, row"),
        ],
    )
    def test_refusals(self, change, message):
        with pytest.raises(ArgumentError, match=message):
            attrs.evolve(columns(["a"]), **change)

    def test_public_names(self):
        assert queries.__all__ == sorted(queries.__all__)
        assert dir(queries) == queries.__all__
        for name in queries.__all__:
            assert getattr(queries, name).__name__ == name
        with pytest.raises(AttributeError, match="no attribute 'sumary'"):
            queries.sumary  # noqa: B018


class TestScalesAndRange:
    def test_mapping_changes_only_what_it_names(self):
        query = summary(mean=["a", "b"]).with_scales([2, 3])
        np.testing.assert_array_equal(query.with_scales({"mean(b)": 5}).scales, [2, 5])

    @pytest.mark.parametrize(
        ("scales", "message"),
        [
            ([1], r"one number per coordinate \(2\)"),
            ([1, 0], "scales must be greater than 0; that of 'mean\\(b\\)' is 0.0"),
            ([1, -2], "greater than 0"),
            ([1, np.nan], "scales must be finite"),
            ([np.inf, 1], "scales must be finite"),
            (["x", 1], "expected numbers"),
            ({"mean(c)": 1}, "'mean\\(c\\)', which is no coordinate.*mean\\(a\\), mean\\(b\\)"),
        ],
    )
    def test_bad_scales(self, scales, message):
        with pytest.raises(ArgumentError, match=message):
            summary(mean=["a", "b"]).with_scales(scales)

    def test_the_policy_on_missing_values_is_part_of_the_query(self):
        query = summary(mean=["a"]).with_missing("drop-rows")
        assert query.missing == query.description()["missing"] == "drop-rows"
        assert query != summary(mean=["a"])
        with pytest.raises(ArgumentError, match="missing must be one of refuse, drop-rows"):
            query.with_missing("ignore")
        with pytest.raises(TableError, match="1 missing values"):
            query.outputs(pa.table({"a": [1, None]}))

    @pytest.mark.parametrize("wrong", [Box([0], [1]), Ball([0, 0, 0], 1)])
    def test_range_of_another_dimension(self, wrong):
        with pytest.raises(ArgumentError, match="range must have 2 coordinates"):
            summary(mean=["a", "b"]).with_range(wrong)

    def test_prepared_clips_in_the_users_units_and_then_scales(self):
        query = columns(["a", "b"]).with_range(Box([0, 0], [10, 1])).with_scales([5, 0.5])
        np.testing.assert_array_equal(
            query.prepared(np.array([[20.0, 0.25], [5.0, -3.0]])), [[2, 0.5], [1, 0]]
        )
        np.testing.assert_array_equal(query.center, [1, 1])

    def test_prepared_with_a_ball_clips_before_scaling(self):
        query = columns(["a", "b"]).with_range(Ball([0, 0], 5)).with_scales([1, 2])
        np.testing.assert_allclose(query.prepared(np.array([[6.0, 8.0]])), [[3, 2]])

    @given(
        outputs=hnp.arrays(float, (4, 2), elements=st.floats(-1e6, 1e6)),
        scales=hnp.arrays(float, 2, elements=st.floats(1e-3, 1e3)),
    )
    def test_without_range_prepared_is_a_division(self, outputs, scales):
        query = columns(["a", "b"]).with_scales(scales)
        np.testing.assert_array_equal(query.prepared(outputs), outputs / scales)

    @pytest.mark.parametrize("outputs", [np.zeros(2), np.zeros((1, 3)), np.zeros((1, 2, 1))])
    def test_prepared_needs_the_shape_of_outputs(self, outputs):
        with pytest.raises(ArgumentError, match=r"outputs must have shape \(n, 2\)"):
            columns(["a", "b"]).prepared(outputs)

    def test_prepared_counts_overflow(self):
        query = columns(["a", "b"]).with_scales([1, 1e-300])
        with pytest.raises(ScenarioError, match="1 of 4 values are NaN or infinite, in b"):
            query.prepared(np.array([[1.0, 1e300], [1.0, 1.0]]))


class TestBound:
    def test_shapes(self):
        table, row = summary(mean=["a", "b"]), columns(["a", "b"])
        rows = np.array([2, 2, 0])
        assert table.bound(TABLE)(rows).shape == (2,)
        assert row.bound(TABLE)(rows).shape == (3, 2)
        assert table.outputs(TABLE).shape == (1, 2)
        assert row.outputs(TABLE).shape == (3, 2)
        assert row.bound(TABLE)(np.array([], dtype=np.intp)).shape == (0, 2)

    def test_rows_may_repeat(self):
        assert summary(mean=["a"]).bound(TABLE)(np.array([2, 2, 0])) == pytest.approx([13 / 3])

    def test_columns_are_read_once(self):
        table = {"a": np.array([1.0, 2.0])}
        record = np.array([(1.0,), (2.0,)], dtype=[("a", float)])
        bound = columns(["a"]).bound(record)
        record["a"] = table["a"] * 100
        assert bound(np.array([0, 1])).ravel().tolist() == [1.0, 2.0]

    def test_no_rows_are_refused_for_a_table(self):
        with pytest.raises(ScenarioError, match="asked for no rows"):
            summary(count_share=3).bound(TABLE)(np.array([], dtype=np.intp))

    @pytest.mark.parametrize("rows", [np.array([True, False, True]), np.array([[0]]), np.ones(2)])
    def test_masks_and_other_arrays_are_no_row_numbers(self, rows):
        with pytest.raises(ArgumentError, match="rows must be a vector of row numbers"):
            columns(["a"]).bound(TABLE)(rows)

    @pytest.mark.parametrize(
        "query",
        [
            summary(mean=["c"]),
            columns(["c"]),
            row_function(lambda row: 1, names=["f"], columns=["c"], description="one"),
            table_function(lambda table: 1, names=["f"], columns=["c"], description="one"),
        ],
    )
    def test_unknown_column(self, query):
        with pytest.raises(TableError, match="no column 'c'"):
            query.bound(TABLE)

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

    def test_a_bind_that_returns_another_shape(self):
        query = attrs.evolve(columns(["a"]), bind=lambda frame: lambda rows: np.zeros(3))
        with pytest.raises(ScenarioError, match=r"must return shape \(3, 1\), got \(3,\)"):
            query.outputs(TABLE)

    def test_a_query_is_built_with_keywords(self):
        with pytest.raises(TypeError):
            Query(["a"], ["a"], "row")
