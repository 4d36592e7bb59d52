# SPDX-License-Identifier: Apache-2.0
"""Conditions on a column, for rates and 0/1 coordinates."""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, date, timedelta
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, final, get_args

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import is_a
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import (
    WEEKDAYS,
    CalendarPart,
    Frame,
    calendar_of,
    check_columns,
    coded_labels,
    floats_of,
    label_of,
)
from pufferslice.errors import ArgumentError, ScenarioError

Comparison = Literal["equals", "above", "at_least", "below", "at_most", "between"] | CalendarPart

_SIGNS: dict[str, str] = {
    "equals": "=",
    "above": ">",
    "at_least": ">=",
    "below": "<",
    "at_most": "<=",
}
COMPARE: Final[Mapping[str, Callable[[Any, float], Any]]] = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}
"""Comparison of numbers, an array or an expression of them, with a limit, by its name."""
_CALENDAR: Final = get_args(CalendarPart)
_MOST_PERIODS: Final = 1_000
_PERIOD: Final = {
    "week": (re.compile(r"(\d{4})-W(\d\d)"), 53),
    "month": (re.compile(r"(\d{4})-(\d\d)"), 12),
    "quarter": (re.compile(r"(\d{4})-Q(\d)"), 4),
}
"""Pattern of the label of a period of a year, and most of them in a year."""


@final
@attrs.frozen
class Condition:
    """A test on one value of a column; built by `equals`, `above`, `between`, `weekday` and others.

    `equals` compares labels (`3`, `3.0` and `"3"` are one label); `hour`, `weekday`, `day`, `week`,
    `month`, `quarter` and `year` read dates and times; the others compare numbers.
    """

    comparison: Comparison
    value: str | float | tuple[float, float]

    def on(self, column: str) -> str:
        """The condition on a column in words, such as `capital-gain > 0`."""
        if isinstance(self.value, tuple):
            low, high = map(label_of, self.value)
            return f"{low} <= {column} < {high}"
        if self.is_calendar:
            return f"{self.comparison} of {column} = {self.value}"
        return f"{column} {_SIGNS[self.comparison]} {label_of(self.value)}"

    @property
    def is_calendar(self) -> bool:
        """Whether the condition reads dates and times."""
        return self.comparison in _CALENDAR

    @property
    def compares_numbers(self) -> bool:
        """Whether the condition compares numbers, and neither labels nor parts of the calendar."""
        return self.comparison == "between" or self.comparison in COMPARE

    def description(self) -> dict[str, Any]:
        """The condition as JSON values."""
        return {self.comparison: self.value}

    def flags(self, frame: Frame, column: str) -> npt.NDArray[np.bool_]:
        """Find the rows that meet the condition; the column may have no missing values."""
        if self.is_calendar:
            labels = calendar_of(frame, column, self.comparison)  # type: ignore[arg-type]
            return np.asarray(labels == str(self.value), dtype=np.bool_)
        if isinstance(self.value, str):
            check_comparable(frame, column, [self.value])
            labels, codes = coded_labels(frame, column)
            return np.asarray(labels == self.value, dtype=np.bool_)[codes]
        return self.met_by(floats_of(frame, column))

    def met_by(self, numbers: Floats) -> npt.NDArray[np.bool_]:
        """Find the numbers that meet the condition, which compares numbers."""
        if isinstance(self.value, tuple):
            met = (self.value[0] <= numbers) & (numbers < self.value[1])
        else:
            met = COMPARE[self.comparison](numbers, float(self.value))
        return np.asarray(met, dtype=np.bool_)


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


def week(text: str) -> Condition:
    """Condition that the date or time is in this week (ISO 8601), such as `"2026-W05"`."""
    return Condition("week", _period("week", text))


def month(text: str) -> Condition:
    """Condition that the date or time is in this month, such as `"2026-01"`."""
    return Condition("month", _period("month", text))


def quarter(text: str) -> Condition:
    """Condition that the date or time is in this quarter, such as `"2026-Q1"`."""
    return Condition("quarter", _period("quarter", text))


def year(number: int) -> Condition:
    """Condition that the date or time is in this year.

    >>> year(2026).on("start")
    'year of start = 2026'
    """
    integer = is_a(number, int | np.integer) and not is_a(number, bool)
    if not integer or not MINYEAR <= number <= MAXYEAR:
        raise ArgumentError(f"year must be an integer from 1 to 9999, got {given(number)}")
    return Condition("year", f"{int(number):04}")


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
    return [day(start + timedelta(days=k)) for k in _places("days", 0, (end - start).days)]


def weeks(first: str, last: str) -> list[Condition]:
    """Every week (ISO 8601) from the first to the last, both included, for `group_by`.

    >>> [part.value for part in weeks("2026-W52", "2027-W01")]
    ['2026-W52', '2026-W53', '2027-W01']
    """
    start, end = _monday(first), _monday(last)
    mondays = (start + timedelta(weeks=k) for k in _places("weeks", 0, (end - start).days // 7))
    return [week("{:04}-W{:02}".format(*monday.isocalendar()[:2])) for monday in mondays]


def months(first: str, last: str) -> list[Condition]:
    """Every month from the first to the last, both included, for `group_by`. They are public.

    >>> [part.on("start") for part in months("2025-12", "2026-01")]
    ['month of start = 2025-12', 'month of start = 2026-01']
    """
    return [month(f"{k // 12:04}-{k % 12 + 1:02}") for k in _range_of("month", first, last)]


def quarters(first: str, last: str) -> list[Condition]:
    """Every quarter from the first to the last, such as `"2026-Q1"`, both included."""
    return [quarter(f"{k // 4:04}-Q{k % 4 + 1}") for k in _range_of("quarter", first, last)]


def years(first: int, last: int) -> list[Condition]:
    """Every year from the first to the last, both included, for `group_by`."""
    start, end = (int(year(number).value) for number in (first, last))  # type: ignore[arg-type]
    return [year(number) for number in _places("years", start, end)]


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


def _places(what: str, first: int, last: int) -> range:
    if not 0 <= last - first < _MOST_PERIODS:
        raise ArgumentError(
            f"{what} must be from 1 to {_MOST_PERIODS} {what}, got {last - first + 1}; give the "
            "first one first"
        )
    return range(first, last + 1)


def _period(part: Literal["week", "month", "quarter"], text: str) -> str:
    """Check the label of a period of a year."""
    pattern, most = _PERIOD[part]
    match = pattern.fullmatch(text) if is_a(text, str) else None
    # No year is 0, and not every one has 53 weeks.
    fits = match is not None and match[1] != "0000" and 1 <= int(match[2]) <= most
    if match is not None and fits and part == "week" and int(match[2]) == most:
        fits = date(int(match[1]), 12, 28).isocalendar().week == most
    if not fits:
        example = {"week": "2026-W05", "month": "2026-01", "quarter": "2026-Q1"}[part]
        raise ArgumentError(f"a {part} must be a text such as {example!r}, got {given(text)}")
    return text


def _monday(text: str) -> date:
    year_number, week_number = _period("week", text).split("-W")
    return date.fromisocalendar(int(year_number), int(week_number), 1)


def _range_of(part: Literal["month", "quarter"], first: str, last: str) -> range:
    """Numbers of the periods from the first to the last, counted from year 0."""
    pattern, most = _PERIOD[part]
    numbers = []
    for text in (first, last):
        match = pattern.fullmatch(_period(part, text))
        numbers.append(int(match[1]) * most + int(match[2]) - 1 if match else 0)
    return _places(f"{part}s", *numbers)


def check_comparable(frame: Frame, column: str, labels: Sequence[str]) -> None:
    """Refuse a label that no value of the column's type can have: its rate would be 0."""
    check_columns(frame, [column])
    check_comparable_type(frame[column].dtype, column, labels)


def check_comparable_type(dtype: nw.dtypes.DType, column: str, labels: Sequence[str]) -> None:
    """Refuse as `check_comparable`, for a column of this type."""
    for label in labels:
        if dtype == nw.Boolean and label not in ("True", "False"):
            raise ScenarioError(
                f"column {column!r} holds True and False, which never equal {quoted(label)}; use "
                "equals(True)"
            )
        if dtype.is_numeric():
            try:
                number = float(label)
            except ValueError:
                raise ScenarioError(
                    f"column {column!r} holds numbers, which never equal {quoted(label)}; give a "
                    "number"
                ) from None
            if dtype.is_float() and 2.0**53 <= abs(number) <= 2.0**63:
                # Larger ones are no integers of 64 bits, and floating-point numbers wherever read.
                raise ScenarioError(
                    f"column {column!r} holds floating-point numbers, which do not tell whole ones "
                    "of 2^53 and more apart, as in large CSV files; give a table that has them as "
                    "integers or as texts, such as Parquet"
                )
