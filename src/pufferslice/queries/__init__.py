# SPDX-License-Identifier: Apache-2.0
"""What is computed from rows, with public ranges, scales and descriptions.

The model queries need scikit-learn and are resolved on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pufferslice.queries.adult import adult_records, adult_summary
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
    weekday,
    weekdays,
)
from pufferslice.queries.functions import plugin_query, row_function, table_function
from pufferslice.queries.query import Query
from pufferslice.queries.ranges import Ball, Box
from pufferslice.queries.regression import linear_regression
from pufferslice.queries.series import autocorrelation
from pufferslice.queries.statistics import (
    columns,
    contingency_table,
    group_by,
    histogram,
    summary,
)

if TYPE_CHECKING:
    from pufferslice.queries.models import (
        boosting_importances,
        forest_importances,
        linear_svm,
        logistic_regression,
    )

__all__ = [
    "Ball",
    "Box",
    "Condition",
    "Query",
    "above",
    "adult_records",
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
    "linear_regression",
    "linear_svm",
    "logistic_regression",
    "plugin_query",
    "row_function",
    "summary",
    "table_function",
    "weekday",
    "weekdays",
]

_MODELS = frozenset(
    {"boosting_importances", "forest_importances", "linear_svm", "logistic_regression"}
)

# Hidden from type checkers: for them a module with `__getattr__` has every name, typos included.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a model query on its first use and keep it."""
        if name not in _MODELS:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.models"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return list(__all__)
