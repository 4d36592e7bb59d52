# SPDX-License-Identifier: Apache-2.0
"""What queries refuse: conditions, statistics, models, scales and ranges that cannot be."""

from datetime import UTC, date, datetime
from functools import partial

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.refusal_tables import keywords, positions, refusals
from tests.refusals import check_refused

from pufferslice import queries
from pufferslice.data.frames import frame_of
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries import (
    Ball,
    Box,
    above,
    autocorrelation,
    below,
    between,
    columns,
    contingency_table,
    day,
    days,
    equals,
    forest_importances,
    group_by,
    hour,
    intervals,
    linear_regression,
    linear_svm,
    logistic_regression,
    month,
    months,
    quarter,
    quarters,
    row_function,
    summary,
    table_function,
    week,
    weekday,
    weeks,
    year,
    years,
)
from pufferslice.queries.derived import Derived

TABLE = pa.table({"a": [1.0, 2.0, 6.0], "b": [0, 1, 0], "flag": [True, False, True]})
GAPS = pa.table({"v": [1, None, 3], "t": ["a", "b", "c"]})
FRAME = frame_of(TABLE)
TWO, ROW = summary(mean=["a", "b"]), columns(["a", "b"])
AGE, RATE = summary(mean=["age"], std=["age"]), summary(rate={"sex": "Male"})
AGES = partial(
    summary, mean=["age"], rate=[("sex", "F"), ("at", month("2026-01"))], clip={"age": (0, 90)}
)
FOREST = {"features": ["a"], "target": "b", "positive": 1}
LAGGED = partial(autocorrelation, "v", time="t")


def evolve(**changes):
    return attrs.evolve(queries.summary(mean=["a"]), **changes)


def own(build, **changes):
    arguments = {"names": ["f"], "columns": ["n"], "description": "one"}
    return build(lambda _: 1, **(arguments | changes))


def owns(**changes):
    """The arguments that functions of a row and of a table share."""
    return (lambda build: own(build, **changes)), row_function, table_function


def linear(build=logistic_regression, **changes):
    task = {"features": ["age", "z", "k"], "target": "income", "positive": ">50K"}
    return build(**(task | changes))


def linears(**changes):
    return (lambda build: linear(build, **changes)), logistic_regression, linear_svm


def regression(**changes):
    return linear_regression(**({"features": ["a", "b"], "targets": ["u", "v"]} | changes))


def forest(**changes):
    return forest_importances(**(FOREST | {"n_trees": 1, "seed": 0} | changes))


REFUSED = {
    ArgumentError: [
        # Conditions and groups.
        ("compare", equals, None, np.float64("nan"), [1], b"x"),
        ("below", below, float("nan"), "1", True),
        ("0 to 23", hour, 24, True),
        ("weekday", weekday, "Freitag"),
        ("'2026-01-31'", day, "5.1.2026", datetime(2026, 1, 5, 3, tzinfo=UTC)),
        ("first one first", lambda: days("2026-01-05", "2026-01-04")),
        ("'2026-W05'", week, "2026-05", "2025-W53", "2026-W00", "0000-W01", 5),
        ("'2026-01'", month, "2026-13", "2026-1", date(2026, 1, 1)),
        ("'2026-Q1'", quarter, "2026-Q5", None),
        ("1 to 9999", year, "2026", True, 0),
        ("weeks", lambda: weeks("2026-W05", "2026-W04")),
        ("months", lambda: months("2026-05", "2026-04")),
        ("quarters", lambda: quarters("2026-Q2", "2026-Q1")),
        ("years", lambda: years(1, 2000)),
        ("1000 days", lambda: days("2006-01-05", "2026-01-04")),
        ("between", positions(between), (0, np.inf)),
        ("below the high", positions(between), (3, 3)),
        ("two numbers", intervals, [3], "37"),
        ("by", partial(group_by, mean=["pay"]), [("sex", ["F"])]),
        ("'sex'", partial(group_by, mean=["pay"]), {"sex": "F"}, {"sex": []}),
        ("mean", group_by, {"sex": ["F"]}),
        ("statistic", lambda: contingency_table({"sex": ["F"]}, statistic="share")),
        # Statistics and columns.
        ("at least one of", keywords(summary), {}, {"mean": [], "rate": {}}),
        ("write ['age']", keywords(summary), {"mean": "age"}),
        ("repeats", keywords(summary), {"mean": ["a", "a"]}, {"rate": [("a", 1), ("a", "1")]}),
        ("rate", keywords(summary), {"rate": "income"}, {"rate": [("a", 1, 2)]}, {"rate": 5}),
        ("compare", keywords(summary), {"rate": {"a": None}}),
        ("columns", keywords(summary), {"rate": [(3, 1)]}),
        ("'a'", keywords(summary), {"quantile": {"a": 1.5}}, {"quantile": {"a": (0.5, -0.1)}}),
        ("between 0 and 1", keywords(summary), {"quantile": {"a": "0.5"}}),
        ("quantile", keywords(summary), {"quantile": [("age",)]}, {"quantile": 5}),
        ("count_share", keywords(summary), {"count_share": 0}),
        ("mean", keywords(summary), {"mean": 5}),
        ("correlation", keywords(summary), {"correlation": "age"}),
        ("covariance", keywords(summary), {"covariance": [("a", 3)]}),
        ("table_function", keywords(summary), {"max": ["age"]}),
        ("at least one name or flag", columns, []),
        ("flags", lambda: columns([], flags=["age"])),
        # Public rules.
        ("missing", keywords(AGES), {"missing": 5}),
        ("'pay', which no statistic", keywords(AGES), {"missing": {"pay": 0}}),
        (
            "clip range of 'age'",
            keywords(AGES),
            {"missing": {"age": 99}},
            {"missing": {"age": "a"}},
        ),
        ("a text", keywords(AGES), {"missing": {"sex": None}}, {"missing": {"at": "2026"}}),
        ("clip range of 'pay'", lambda: summary(rate={"pay": above(1)}, missing={"pay": "a"})),
        ("clip_from", lambda: summary(mean=["c"], clip_from=pa.table({"c": [1, 1]}))),
        ("edges", lambda edges: summary(median=["v"], edges=edges), {"w": [0, 1]}, [0, 1]),
        ("two numbers", lambda: summary(median=["v"], edges={"v": [0]})),
        ("features and targets", keywords(regression), {"clip": {"w": (0, 1)}}),
        ("of and numbers", lambda: Derived(name="r", kind="ratio", of=["a"], numbers=[0])),
        ("kind", lambda: Derived(name="r", kind="product", of=["a"], numbers=[0])),
        # Functions and models.
        ("description", *owns(description="  ")),
        ("description", *owns(description=None)),
        ("names", *owns(names="f")),
        ("columns", *owns(columns="n")),
        ("features", *linears(features=[])),
        ("repeats", *linears(features=["age", "age"])),
        ("target", *linears(features=["age", "income"])),
        ("regularisation", *linears(regularisation=0)),
        ("feature_scales", *linears(feature_scales=[1, 2])),
        ("feature_scales", *linears(feature_scales=[1, 2, 0])),
        ("feature_scales", *linears(feature_scales=[1, 2, np.inf])),
        ("'height'", *linears(feature_scales={"height": 1})),
        ("n_trees", keywords(forest), {"n_trees": 0}),
        ("seed", keywords(forest), {"seed": -1}, {"seed": 2**32}),
        ("at least one column", keywords(regression), {"features": []}, {"targets": []}),
        ("none in both", keywords(regression), {"targets": ["a"]}),
        ("targets", keywords(regression), {"targets": "u"}),
        ("regularisation", keywords(regression), {"regularisation": -1.0}),
        ("lags", lambda lags: LAGGED(lags=lags), [], 3, "3", [0], [1.5]),
        # Queries, their scales and ranges.
        ("at least one coordinate", keywords(evolve), {"names": ()}),
        ("'x' repeats", keywords(evolve), {"names": ["x", "x"]}),
        ("names", keywords(evolve), {"names": 5}, {"names": [1]}),
        ("columns", keywords(evolve), {"columns": "a"}),
        ("level", keywords(evolve), {"level": "world"}),
        ("range", keywords(evolve), {"range": 5}),
        ("coordinate", TWO.with_scales, [1]),
        ("scales", TWO.with_scales, [1, 0], [1, np.nan]),
        ("'mean(c)'", TWO.with_scales, {"mean(c)": 1}),
        ("'mean(a)' twice", TWO.with_scales, {"a": 1, "mean(a)": 2}),
        ("range", TWO.with_range, Box([0], [1]), Ball([0, 0, 0], 1), (0, 100)),
        ("2 coordinates", AGE.with_range, {"age": (0, 1)}),
        ("'pay'", AGE.with_range, {"pay": (0, 1)}),
        ("std(age)", AGE.with_range, {"mean(age)": (0, 1)}),
        ("'mean(age)'", AGE.with_range, {"mean(age)": 7}),
        ("outputs", ROW.prepared, np.zeros(2), np.zeros((1, 3))),
        ("rows", ROW.bound(TABLE), np.array([True, False]), np.array([[0]])),
        ("range", RATE.with_range, Box([2000], [3000]), Box([0], [1.01]), Box([-0.1], [1])),
        ("range", RATE.with_range, Ball([2000], 5)),
        ("range", summary(std=["age"]).with_range, Box([-1], [40])),
        ("range", summary(count_share=100).with_range, Box([0], [2])),
        ("range", columns([], {"sex": "Male"}).with_range, Box([0], [2])),
        ("range", forest().with_range, Box([0], [2])),
        ("coordinate 1", positions(Box), ([0, 1], [1, 1])),
        ("length", positions(Box), ([], [])),
        ("(1,) and (2,)", positions(Box), ([0], [1, 1])),
        ("high", positions(Box), ([0], [np.inf])),
        ("low", positions(Box), ([-1e151], [0])),
        ("radius", positions(Ball), ([0], 0), ([0], 1e151)),
        ("center", positions(Ball), ([np.nan], 1), ([[0, 1]], 1), ([0, 1e300], 1)),
    ],
    ScenarioError: [
        ("'flag'", lambda: equals("true").flags(FRAME, "flag")),
        ("'b'", lambda: equals("many").flags(FRAME, "b")),
        ("no rows", lambda: summary(count_share=3).bound(TABLE)(np.array([], dtype=np.intp))),
        ("(1,), got (3,)", lambda: evolve(bind=lambda _: lambda _: np.zeros(3)).outputs(TABLE)),
        ("1 of 4", lambda: ROW.with_scales([1, 1e-300]).prepared(np.array([[1, 1e300], [1, 1]]))),
        ("2 of 2", summary(mean=["v"], std=["v"]).outputs, pa.table({"v": [1.5e308] * 2})),
        ("mean(age)", summary(mean=["age"]).scaled_from, pa.table({"age": [1.0, 1.0]})),
    ],
    TableError: [
        ("'c'", lambda: summary(mean=["c"]).bound(TABLE)),
        ("1 missing", lambda condition: condition.flags(frame_of(GAPS), "v"), above(0), equals(1)),
        ("1 missing", lambda query: query.outputs(GAPS), summary(mean=["v"])),
        ("1 missing", lambda query: query.outputs(GAPS), summary(rate={"v": 1})),
        ("1 missing", lambda query: query.outputs(GAPS), summary(quantile={"v": 0.5})),
        ("dates, times", lambda: LAGGED(lags=[1]).outputs(GAPS.slice(2))),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal):
    check_refused(refusal)
