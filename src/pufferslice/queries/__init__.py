# SPDX-License-Identifier: Apache-2.0
"""Queries: functions of rows, with public ranges, scales and descriptions."""

from pufferslice.queries.adult import adult_summary
from pufferslice.queries.conditions import (
    Condition,
    above,
    at_least,
    at_most,
    below,
    between,
    day,
    days,
    equals,
    hour,
    hours,
    intervals,
    month,
    months,
    quarter,
    quarters,
    week,
    weekday,
    weekdays,
    weeks,
    year,
    years,
)
from pufferslice.queries.functions import row_function, table_function
from pufferslice.queries.joined import join
from pufferslice.queries.models import (
    boosting_importances,
    forest_importances,
    linear_svm,
    logistic_regression,
)
from pufferslice.queries.moments import second_moments
from pufferslice.queries.query import Query
from pufferslice.queries.ranges import Ball, Box
from pufferslice.queries.regression import linear_regression
from pufferslice.queries.statistics import (
    autocorrelation,
    columns,
    contingency_table,
    group_by,
    histogram,
    summary,
)

__all__ = [
    "Ball",
    "Box",
    "Condition",
    "Query",
    "above",
    "adult_summary",
    "at_least",
    "at_most",
    "autocorrelation",
    "below",
    "between",
    "boosting_importances",
    "columns",
    "contingency_table",
    "day",
    "days",
    "equals",
    "forest_importances",
    "group_by",
    "histogram",
    "hour",
    "hours",
    "intervals",
    "join",
    "linear_regression",
    "linear_svm",
    "logistic_regression",
    "month",
    "months",
    "quarter",
    "quarters",
    "row_function",
    "second_moments",
    "summary",
    "table_function",
    "week",
    "weekday",
    "weekdays",
    "weeks",
    "year",
    "years",
]
