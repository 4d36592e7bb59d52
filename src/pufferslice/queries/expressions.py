# SPDX-License-Identifier: Apache-2.0
"""Row features as expressions of an engine: the integers that numpy finds for a table in memory.

Only comparisons, sums, products and floors of doubles are used, each of which IEEE 754 rounds in
one way. A division is none of them, because some engines multiply by the inverse of a number. NaN
is compared with nothing, because engines disagree on what it is greater than.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple, final

import attrs
import narwhals as nw
import numpy as np

from pufferslice._core.arrays import Integers
from pufferslice.data.engines import Lazy, Schema, refused_type, schema_of
from pufferslice.data.frames import WEEKDAYS, check_known, label_of
from pufferslice.queries.conditions import COMPARE, Condition, check_comparable_type
from pufferslice.queries.partition import Fill, Partition, number_labelled
from pufferslice.queries.sources import Cell, Source, steps_of

_LARGEST: Final = float(np.finfo(np.float64).max)
_EXACT_DECIMALS: Final = frozenset(
    {nw.Implementation.POLARS, nw.Implementation.DUCKDB, nw.Implementation.PYSPARK}
)
"""Engines that convert a decimal to the nearest double. Others do so by way of a text."""
_MOST_COMPARED: Final = 32
"""Most values that are looked for in a list; more of a calendar are cut out by their ends."""

Values = Callable[[str], Any]
"""Function from a label to the value of a column that has it, None if there is none."""


class Key(NamedTuple):
    """What a group-by tells apart of a column: an expression, and the pattern of each value."""

    expression: nw.Expr
    places: Mapping[Any, int]
    """Pattern by value; that of any other value, and of null, is 0."""

    def codes(self, values: Iterable[Any]) -> Integers:
        """Pattern of each of these values."""
        return np.array([self.places.get(value, 0) for value in values], dtype=np.int64)


@final
@attrs.frozen(kw_only=True)
class Expressions:
    """The columns of a table of an engine, as expressions."""

    lazy: Lazy
    schema: Schema

    @classmethod
    def of(cls, lazy: Lazy, columns: Sequence[str]) -> "Expressions":
        """Read the types of a table; columns that it lacks are refused."""
        schema = schema_of(lazy)
        check_known(list(schema), columns)
        return cls(lazy=lazy, schema=schema)

    def quantised(
        self,
        factors: Sequence[Source],
        ends: tuple[float, float],
        n_bits: int,
        cell: Cell = (),
        fills: Mapping[str, Fill] | None = None,
    ) -> nw.Expr:
        """The integer of each row: of 1 or a product of numbers, and of 0 outside of the cell."""
        low, high = ends
        # Of 64 bits from the start: some engines wrap around without a word.
        integer: nw.Expr = nw.lit(2**n_bits).cast(nw.Int64)
        if factors:
            number = functools.reduce(operator.mul, map(self.numbers, factors))
            above = number - low if low else number
            integer = (above * steps_of(low, high, n_bits) + 0.5).floor().cast(nw.Int64)
        if not cell:
            return integer
        nothing = quantised_zero(low, high, n_bits) if factors else 0
        met = [self.met(name, test, (fills or {}).get(name)) for name, test in cell]
        return nw.when(*met).then(integer).otherwise(nw.lit(nothing).cast(nw.Int64))

    def numbers(self, source: Source) -> nw.Expr:
        """The number of each row, never missing; as `Source.numbers`."""
        raw, has_gaps = self._raw(source.column)
        low, high = source.low, source.high
        fill = (low + high) / 2 if source.missing is None else source.missing
        inside = raw.clip(low, high)
        if has_gaps:
            inside = nw.when(_is_finite(raw)).then(inside).otherwise(nw.lit(fill))
        else:
            inside = inside.fill_null(fill)
        return inside - source.center if source.center else inside

    def doubles(self, column: str) -> nw.Expr:
        """The numbers of a column as they are."""
        return self._raw(column)[0]

    def is_known(self, column: str) -> nw.Expr:
        """Whether each row has a value in a column, and a finite one if it holds numbers."""
        if self.schema[column].is_float():
            return _is_finite(self._raw(column)[0])
        return ~nw.col(column).is_null()

    def key(self, part: Partition) -> Key:
        """What tells the patterns of a partition apart; as `Partition.codes`."""
        if part.kind == "numbers":
            return self._key_of_numbers(part)
        raw, value_of = self._labelled(part.column, part.conditions, part.fill)
        places = {
            value: place
            for place, test in enumerate(part.conditions, start=1)
            if (value := value_of(str(test.value))) is not None
        }
        if not places:  # no value of this type has any of the labels
            return Key(nw.lit(0), {})
        values = sorted(places)
        if len(values) > _MOST_COMPARED and part.kind != "equals":
            return Key(nw.when(raw >= values[0], raw <= values[-1]).then(raw), places)
        return Key(nw.when(raw.is_in(values)).then(raw), places)

    def met(self, column: str, condition: Condition, fill: Fill) -> nw.Expr:
        """Whether each row meets a condition: true, or else false or null."""
        if condition.compares_numbers:
            number, is_known = self._filled(column, fill)
            if isinstance(condition.value, tuple):
                low, high = condition.value
                return is_known & (number >= low) & (number < high)
            met: nw.Expr = COMPARE[condition.comparison](number, float(condition.value))
            return is_known & met
        raw, value_of = self._labelled(column, [condition], fill)
        value = value_of(str(condition.value))
        return nw.lit(value=False) if value is None else raw == value

    def _key_of_numbers(self, part: Partition) -> Key:
        number, is_known = self._filled(part.column, part.fill)
        first, changes = part.changes()
        flags = [number >= cut if is_closed else number > cut for cut, is_closed, _ in changes]
        steps = [nw.when(flag).then(nw.lit(1)).otherwise(nw.lit(0)) for flag in flags]
        passed = functools.reduce(operator.add, steps)
        places = dict(enumerate([first, *(pattern for _, _, pattern in changes)]))
        return Key(nw.when(is_known).then(passed), places)

    def _filled(self, column: str, fill: Fill) -> tuple[nw.Expr, nw.Expr]:
        """The numbers of a column, with `fill` for missing ones, and which are known then."""
        raw, has_gaps = self._raw(column)
        is_known = _is_finite(raw) if has_gaps else ~raw.is_null()
        number = nw.when(is_known).then(raw).otherwise(nw.lit(float(fill or 0)))
        return number, is_known if fill is None else nw.lit(value=True)

    def _raw(self, column: str) -> tuple[nw.Expr, bool]:
        """A column as doubles, and whether these may be infinite or NaN beside null."""
        dtype, numbers = self.schema[column], nw.col(column)
        if not (dtype.is_numeric() or isinstance(dtype, nw.Boolean)):
            raise refused_type(self.lazy, column, dtype, "numbers")
        if isinstance(dtype, nw.Decimal) and self.lazy.implementation not in _EXACT_DECIMALS:
            numbers = numbers.cast(nw.String)
        if not isinstance(dtype, nw.Float64):
            numbers = numbers.cast(nw.Float64)
        return numbers, dtype.is_float()

    def _labelled(
        self, column: str, conditions: Sequence[Condition], fill: Fill
    ) -> tuple[nw.Expr, Values]:
        """What conditions compare with labels, `fill` for what is missing, and value by label."""
        dtype, kind = self.schema[column], conditions[0].comparison
        if kind != "equals":
            return self._calendar(column, kind)
        check_comparable_type(dtype, column, [str(test.value) for test in conditions])
        value_of = _values_of(dtype)
        if value_of is None:
            raise refused_type(
                self.lazy, column, dtype, "texts, numbers, dates or True and False to be compared"
            )
        fill_value = None if fill is None else value_of(label_of(fill))
        raw, has_gaps = nw.col(column), False
        if isinstance(dtype, nw.Categorical | nw.Enum):
            raw = raw.cast(nw.String)
        elif isinstance(dtype, nw.Date):
            raw = _day(raw)
        elif not (isinstance(dtype, nw.String) or dtype.is_integer()):
            raw, has_gaps = self._raw(column)
        if has_gaps:
            known = nw.when(_is_finite(raw)).then(raw + 0.0)  # -0.0 is not in a list with 0.0
            return known if fill_value is None else known.otherwise(nw.lit(fill_value)), value_of
        return raw if fill_value is None else raw.fill_null(fill_value), value_of

    def _calendar(self, column: str, kind: str) -> tuple[nw.Expr, Values]:
        dtype = self.schema[column]
        if not isinstance(dtype, nw.Datetime if kind == "hour" else nw.Datetime | nw.Date):
            wanted = "times" if kind == "hour" else "dates or times"
            raise refused_type(self.lazy, column, dtype, wanted)
        part, value_of = _CALENDAR[kind]
        return part(nw.col(column)), value_of


def quantised_zero(low: float, high: float, n_bits: int) -> int:
    """The integer that 0 counts as, on the grid of these ends."""
    return int(np.floor((0.0 - low) * steps_of(low, high, n_bits) + 0.5))


def _is_finite(number: nw.Expr) -> nw.Expr:
    """Whether a number is one: false for NaN and infinities wherever they are sorted."""
    return (number >= -_LARGEST) & (number <= _LARGEST)


def _values_of(dtype: nw.dtypes.DType) -> Values | None:
    """The function from labels to values of a column of this type; None if it has no labels."""
    if isinstance(dtype, nw.String | nw.Categorical | nw.Enum):
        return str
    if isinstance(dtype, nw.Date):
        return _day_labelled
    if isinstance(dtype, nw.Boolean):
        return {"True": 1.0, "False": 0.0}.get
    if isinstance(dtype, nw.Int128 | nw.UInt128):
        return lambda label: number_labelled(label, np.dtype(np.int64))
    if dtype.is_integer():
        return lambda label: number_labelled(label, np.dtype(str(dtype).lower()))
    if not dtype.is_numeric():
        return None
    float_type = np.dtype(np.float32 if isinstance(dtype, nw.Float32) else np.float64)
    return lambda label: _float(number_labelled(label, float_type))


def _float(number: Any) -> float | None:  # of numpy
    return None if number is None else float(number)


def _day_labelled(label: str) -> float | None:
    try:
        day = date.fromisoformat(label)
    except ValueError:
        return None
    return _day_number(day) if day.isoformat() == label else None


def _part(time: nw.Expr, name: str) -> nw.Expr:
    found: nw.Expr = getattr(time.dt, name)()
    return found.cast(nw.Float64)


def _day(time: nw.Expr) -> nw.Expr:
    """A number for each local day, in their order, with gaps."""
    return _part(time, "year") * 512 + _part(time, "month") * 32 + _part(time, "day")


def _day_number(day: date) -> float:
    return float(day.year * 512 + day.month * 32 + day.day)


def _floor_of(number: nw.Expr, divisor: int) -> nw.Expr:
    """The floor of an integer over another; half a unit keeps it clear of rounding."""
    return ((number + 0.5) / divisor).floor()


def _days(time: nw.Expr) -> nw.Expr:
    """Count local days, so that every multiple of 7 is a Monday.

    Years begin in March here, so that a leap day is the last of one.
    """
    year, month = _part(time, "year"), _part(time, "month")
    early = nw.when(month <= 2).then(nw.lit(1.0)).otherwise(nw.lit(0.0))
    year, month = year - early, month + early * 12 - 3
    leap_days = _floor_of(year, 4) - _floor_of(year, 100) + _floor_of(year, 400)
    return year * 365 + leap_days + _floor_of(month * 153 + 2, 5) + _part(time, "day") + 1


def _week(time: nw.Expr) -> nw.Expr:
    return _floor_of(_days(time), 7)


def _weekday(time: nw.Expr) -> nw.Expr:
    """The day of the week, from 0; not that of the engines, which do not agree on Sunday."""
    days = _days(time)
    return days - _floor_of(days, 7) * 7


def _week_number(year: int, week: int) -> float:
    # 1 January of year 1 is a Monday, 307 days after the end of February of year 0.
    return float((date.fromisocalendar(year, week, 1).toordinal() + 307) // 7)


def _numbers_in(label: str, mark: str) -> tuple[int, int]:
    first, _, second = label.partition(mark)
    return int(first), int(second)


_CALENDAR: Final[Mapping[str, tuple[Callable[[nw.Expr], nw.Expr], Values]]] = {
    "hour": (lambda time: _part(time, "hour"), float),
    "weekday": (_weekday, lambda label: float(WEEKDAYS.index(label))),
    "day": (_day, lambda label: _day_number(date.fromisoformat(label))),
    "week": (_week, lambda label: _week_number(*_numbers_in(label, "-W"))),
    "month": (
        lambda time: _part(time, "year") * 12 + _part(time, "month"),
        lambda label: float(int(label[:4]) * 12 + int(label[5:])),
    ),
    "quarter": (
        lambda time: _part(time, "year") * 4 + _floor_of(_part(time, "month") + 2, 3),
        lambda label: float(int(label[:4]) * 4 + int(label[6:])),
    ),
    "year": (lambda time: _part(time, "year"), float),
}
"""Number of a part of the calendar, and that of a label, by the name of the part."""
