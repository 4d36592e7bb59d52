# SPDX-License-Identifier: Apache-2.0
"""Statistics keep the order in which they are written; ranges and scales go by name."""

import math

import numpy as np
import pyarrow as pa
import pytest

from pufferslice.errors import ArgumentError
from pufferslice.queries import Ball, Box, Query, columns, forest_importances, linear_svm, summary
from pufferslice.sensitivity.binned import bin_grid
from pufferslice.sensitivity.profiles import FiniteProfile

TABLE = pa.table({"age": [20.0, 40.0], "hours": [30, 50], "income": ["<=50K", ">50K"]})
MIXED = summary(rate={"income": ">50K"}, mean=["age", "hours"])


class TestOrder:
    def test_it_is_that_of_the_call(self):
        assert MIXED.names == ("rate(income = >50K)", "mean(age)", "mean(hours)")
        np.testing.assert_array_equal(MIXED.outputs(TABLE), [[0.5, 30, 40]])
        other = summary(
            count_share=4, quantile={"age": 0.5}, std=["age"], rate=None, mean=["hours"]
        )
        assert other.names == ("count/4", "quantile(age, 0.5)", "std(age)", "mean(hours)")
        np.testing.assert_array_equal(other.outputs(TABLE), [[0.5, 30, 10, 40]])

    def test_another_order_is_another_query(self):
        assert summary(mean=["age"], std=["age"]) != summary(std=["age"], mean=["age"])

    def test_a_column_may_have_quantiles_in_two_places(self):
        query = summary(quantile=[("age", 0.25), ("hours", 0.5), ("age", 0.75)])
        assert query.names == ("quantile(age, 0.25)", "quantile(hours, 0.5)", "quantile(age, 0.75)")

    @pytest.mark.parametrize("kind", ["mean", "std", "rate", "quantile"])
    def test_a_bare_number_is_no_list(self, kind):
        with pytest.raises(ArgumentError, match=f"{kind} must .*got"):
            summary(**{kind: 5})

    @pytest.mark.parametrize("wrong", [[("age",)], ["age"], [0.5]])
    def test_quantiles_are_pairs(self, wrong):
        with pytest.raises(ArgumentError, match="quantile must map columns to levels"):
            summary(quantile=wrong)

    @pytest.mark.parametrize(
        ("name", "instead"), [("median", 'quantile={"age": 0.5}'), ("max", "table_function")]
    )
    def test_an_unknown_statistic_gets_a_hint(self, name, instead):
        with pytest.raises(ArgumentError, match="mean, std, rate, quantile, count_share") as told:
            summary(**{name: ["age"]})
        assert instead in str(told.value)


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

    @pytest.mark.parametrize(
        ("named", "words"),
        [
            ({"age": (0, 1)}, "2 coordinates are about it; name one: mean.age., std.age."),
            ({"pay": (0, 1)}, "'pay', which is no coordinate"),
            ({"mean(age)": (0, 1)}, "low and a high end for std.age."),
            ({"mean(age)": (0, 1), "std(age)": (0, math.inf)}, "low and a high end for std.age."),
            ({"mean(age)": 7, "std(age)": (0, 1)}, "low and a high end for 'mean.age.'"),
            ({"mean(age)": "17", "std(age)": (0, 1)}, "low and a high end for 'mean.age.'"),
            ({"mean(age)": (1, 2, 3), "std(age)": (0, 1)}, "low and a high end for 'mean.age.'"),
        ],
    )
    def test_a_range_that_does_not_fit(self, named, words):
        with pytest.raises(ArgumentError, match=f"range .*{words}"):
            summary(mean=["age"], std=["age"]).with_range(named)

    def test_no_coordinate_twice(self):
        with pytest.raises(ArgumentError, match=r"scales names the coordinate 'mean\(age\)' twice"):
            summary(mean=["age"]).with_scales({"age": 1, "mean(age)": 2})

    def test_at_most_eight_names_are_shown(self):
        query = summary(mean=[f"x{i}" for i in range(30)])
        with pytest.raises(ArgumentError, match="and 22 more"):
            query.with_scales({"y": 1})

    @pytest.mark.parametrize("wrong", [(0, 100), [0, 100], 5, "0:100", None])
    def test_other_types(self, wrong):
        query = summary(mean=["age"])
        with pytest.raises(ArgumentError, match="range must be"):
            query.with_range(wrong)

    def test_other_types_elsewhere(self):
        query = columns(["age"])
        profile = FiniteProfile.axes(dim=1)
        with pytest.raises(ArgumentError, match="range must be"):
            bin_grid(query, profile, range=(0, 100))
        assert bin_grid(query, profile, range={"age": (0, 100)}).center.tolist() == [50]
        with pytest.raises(ArgumentError, match="range must be a Box or a Ball"):
            Query(
                names=("a",),
                columns=("a",),
                level="row",
                kind="own",
                parameters={},
                bind=query.bind,
                range=(0, 1),
            )


class TestPossible:
    @pytest.mark.parametrize(
        ("query", "limits"),
        [
            (summary(rate={"sex": "Male"}), Box([2000], [3000])),
            (summary(rate={"sex": "Male"}), Box([0], [1.01])),
            (summary(rate={"sex": "Male"}), Box([-0.1], [1])),
            (summary(rate={"sex": "Male"}), Ball([2000], 5)),
            (summary(std=["age"]), Box([-1], [40])),
            (summary(count_share=100), Box([0], [2])),
            (columns([], {"sex": "Male"}), Box([0], [2])),
            (
                forest_importances(features=["a"], target="b", positive=1, n_trees=1, seed=0),
                Box([0], [2]),
            ),
        ],
    )
    def test_a_range_that_no_value_fits(self, query, limits):
        with pytest.raises(ArgumentError, match=r"range of .* but its values are"):
            query.with_range(limits)

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
