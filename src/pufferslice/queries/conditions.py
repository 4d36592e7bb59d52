# SPDX-License-Identifier: Apache-2.0
"""Conditions on a column, for rates and 0/1 coordinates."""

import math
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, final, get_args

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt

from pufferslice._core.checks import is_a
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import (
    WEEKDAYS,
    CalendarPart,
    Frame,
    calendar_of,
    floats_of,
    label_of,
    labels_of,
)
from pufferslice.errors import ArgumentError, ScenarioError

Comparison = Literal[
    "equals", "above", "at_least", "below", "at_most", "between", "hour", "weekday", "day"
]

_SIGNS: dict[str, str] = {
    "equals": "=",
    "above": ">",
    "at_least": ">=",
    "below": "<",
    "at_most": "<=",
}
_COMPARE = {
    "above": np.greater,
    "at_least": np.greater_equal,
    "below": np.less,
    "at_most": np.less_equal,
}
_CALENDAR: Final = get_args(CalendarPart)
_MOST_DAYS: Final = 1_000


@final
@attrs.frozen
class Condition:
    """A test on one value of a column; built by `equals`, `above`, `between`, `weekday` and others.

    `equals` compares labels (`3`, `3.0` and `"3"` are one label); `hour`, `weekday` and `day` read
    dates and times; the others compare numbers.
    """

    comparison: Comparison
    value: str | float | tuple[float, float]

    def on(self, column: str) -> str:
        """The condition on a column in words, such as `capital-gain > 0`."""
        if isinstance(self.value, tuple):
            low, high = map(label_of, self.value)
            return f"{low} <= {column} < {high}"
        if self.comparison in _CALENDAR:
            return f"{self.comparison} of {column} = {self.value}"
        return f"{column} {_SIGNS[self.comparison]} {label_of(self.value)}"

    def description(self) -> dict[str, Any]:
        """The condition as JSON values."""
        return {self.comparison: self.value}

    def flags(self, frame: Frame, column: str) -> npt.NDArray[np.bool_]:
        """Find the rows that meet the condition; the column may have no missing values."""
        if self.comparison in _CALENDAR:
            flags = calendar_of(frame, column, self.comparison) == str(self.value)  # type: ignore[arg-type]
        elif isinstance(self.value, str):
            labels = labels_of(frame, column)
            _check_comparable(frame, column, self.value)
            flags = labels == self.value
        elif isinstance(self.value, tuple):
            values = floats_of(frame, column)
            flags = (self.value[0] <= values) & (values < self.value[1])
        else:
            flags = _COMPARE[self.comparison](floats_of(frame, column), self.value)
        return np.asarray(flags, dtype=np.bool_)


ConditionLike: TypeAlias = Condition | str | float | bool
"""A condition, or a plain value that means `equals`."""

Conditions: TypeAlias = Mapping[str, ConditionLike] | Sequence[tuple[str, ConditionLike]]
"""Conditions by column; as pairs if a column occurs more than once."""


def equals(value: str | float | bool) -> Condition:  # noqa: FBT001 - the value to compare with
    """Condition that the value of the column is `value`, compared as labels.

    >>> equals(">50K").on("income")
    'income = >50K'
    """
    allowed = isinstance(value, str | bool | int | float | np.bool_ | np.integer | np.floating)
    if not allowed or (isinstance(value, float | np.floating) and math.isnan(value)):
        raise ArgumentError(
            f"a value to compare with must be a text, a number, True or False; got {given(value)}"
        )
    return Condition("equals", label_of(value))


def above(limit: float) -> Condition:
    """Condition that the value of the column is greater than `limit`."""
    return _numeric("above", limit)


def at_least(limit: float) -> Condition:
    """Condition that the value of the column is `limit` or greater."""
    return _numeric("at_least", limit)


def below(limit: float) -> Condition:
    """Condition that the value of the column is less than `limit`."""
    return _numeric("below", limit)


def at_most(limit: float) -> Condition:
    """Condition that the value of the column is `limit` or less."""
    return _numeric("at_most", limit)


def between(low: float, high: float) -> Condition:
    """Condition that the value of the column is `low` or greater, and less than `high`.

    >>> between(17, 30).on("age")
    '17 <= age < 30'
    """
    ends = tuple(float(_finite("between", end)) for end in (low, high))
    if not ends[0] < ends[1]:
        raise ArgumentError(
            f"the low limit of between must be below the high one, got {low!r} and {high!r}"
        )
    return Condition("between", (ends[0], ends[1]))


def hour(number: int) -> Condition:
    """Condition that the time of the column is in this hour of the day, from 0 to 23.

    >>> hour(20).on("start")
    'hour of start = 20'
    """
    if isinstance(number, bool) or number not in range(24):
        raise ArgumentError(f"hour must be an integer from 0 to 23, got {given(number)}")
    return Condition("hour", int(number))


def weekday(name: str) -> Condition:
    """Condition that the date or time is on this day of the week, such as `"Monday"`."""
    if name not in WEEKDAYS:
        raise ArgumentError(f"weekday must be one of {', '.join(WEEKDAYS)}; got {given(name)}")
    return Condition("weekday", name)


def day(date_or_text: date | str) -> Condition:
    """Condition that the date or time is on this day, a date or a text such as `"2026-01-31"`."""
    return Condition("day", _date(date_or_text).isoformat())


def intervals(edges: Sequence[float]) -> list[Condition]:
    """The intervals between public edges, for `group_by`: each with its low end, not its high one.

    >>> [part.on("age") for part in intervals([17, 30, 45])]
    ['17 <= age < 30', '30 <= age < 45']
    """
    if is_a(edges, str) or not is_a(edges, Sequence | np.ndarray) or len(edges) < 2:
        raise ArgumentError(f"edges must be at least two numbers, got {given(edges)}")
    return [between(low, high) for low, high in pairwise(edges)]


def hours() -> list[Condition]:
    """The 24 hours of a day, for `group_by`."""
    return [hour(number) for number in range(24)]


def weekdays() -> list[Condition]:
    """Monday to Sunday, for `group_by`."""
    return [weekday(name) for name in WEEKDAYS]


def days(first: date | str, last: date | str) -> list[Condition]:
    """Every day from the first to the last, both included, for `group_by`. They are public.

    >>> [part.on("start") for part in days("2026-02-28", "2026-03-01")]
    ['day of start = 2026-02-28', 'day of start = 2026-03-01']
    """
    start, end = _date(first), _date(last)
    n_days = (end - start).days + 1
    if not 1 <= n_days <= _MOST_DAYS:
        raise ArgumentError(
            f"days must be from 1 to {_MOST_DAYS} days, got {n_days}; give the first day first"
        )
    return [day(start + timedelta(days=k)) for k in range(n_days)]


def conditions_of(
    argument: str, conditions: Conditions | None
) -> tuple[tuple[str, Condition], ...]:
    """The conditions as (column, condition) pairs, plain values as `equals`."""
    pairs = pairs_of(argument, () if conditions is None else conditions, "condition")
    return tuple((column, condition_of(value)) for column, value in pairs)


def pairs_of(argument: str, entries: Any, value: str) -> list[tuple[str, Any]]:  # checked here
    """A mapping from columns to conditions or levels, or a list of such pairs, as pairs."""
    pairs = list(entries.items()) if isinstance(entries, Mapping) else entries
    is_list = isinstance(pairs, list | tuple)
    others = (
        [pair for pair in pairs if not isinstance(pair, list | tuple) or len(pair) != 2]
        if is_list
        else [entries]
    )
    if others:
        raise ArgumentError(
            f"{argument} must map columns to {value}s, or list (column, {value}) pairs; got "
            f"{given(others[0])}"
        )
    return [(column, entry) for column, entry in pairs]


def condition_of(value: ConditionLike) -> Condition:
    """The condition itself, or `equals(value)`."""
    return value if isinstance(value, Condition) else equals(value)


def _numeric(comparison: Comparison, limit: float) -> Condition:
    return Condition(comparison, float(_finite(comparison, limit)))


def _finite(comparison: Comparison, limit: float) -> float:
    number = isinstance(limit, int | float | np.integer | np.floating)
    if not number or isinstance(limit, bool) or not math.isfinite(limit):
        raise ArgumentError(
            f"the limit of {comparison} must be a finite number, got {given(limit)}"
        )
    return limit


def _date(value: date | str) -> date:
    # A time is a date for Python, but its hour would be lost.
    if type(value) is date:
        return value
    try:
        return date.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(
            f"a day must be a date, or a text such as '2026-01-31'; got {given(value)}"
        ) from None


def _check_comparable(frame: Frame, column: str, label: str) -> None:
    """Refuse a label that no value of the column's type can have: its rate would be 0."""
    dtype = frame[column].dtype
    if dtype == nw.Boolean and label not in ("True", "False"):
        raise ScenarioError(
            f"column {column!r} holds True and False, which never equal {quoted(label)}; use "
            "equals(True)"
        )
    if dtype.is_numeric():
        try:
            float(label)
        except ValueError:
            raise ScenarioError(
                f"column {column!r} holds numbers, which never equal {quoted(label)}; give a number"
            ) from None
