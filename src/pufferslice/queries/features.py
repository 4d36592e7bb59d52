# SPDX-License-Identifier: Apache-2.0
"""Row features: queries that are sums over rows, of numbers that are clipped and quantised."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_finite, is_a
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import Frame, frame_of
from pufferslice.data.tables import rows_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Condition
from pufferslice.queries.partition import (
    Fill,
    Flags,
    Partition,
    combined_codes,
    finite_numbers,
    n_combined,
    partitions_of,
)
from pufferslice.queries.sources import Cell, Clip, Ends, Missing, Source, steps_of
from pufferslice.queries.unusual import Unusual, unusual_values

_FlagsOf: TypeAlias = Mapping[tuple[str, Fill, Condition], Flags]
"""Whether each row meets a condition on a column, with its public value for a missing one."""

_EVERY: Final = slice(None)
_LARGEST: Final = float(np.finfo(np.float64).max)
_MOST_BITS: Final = 20
_SUM_BITS: Final = 62
"""Most bits of a sum over all rows."""
_MOST_AT_ONCE: Final = 2**22
"""Most numbers of rows in memory at once."""
_MOST_PATTERNS: Final = 4_096
"""Most values of one label of a row."""
_MOST_BOXES: Final = 512


@final
@attrs.frozen(kw_only=True)
class Feature:
    """A sum, or a mean, over rows: of 1, of a column or of a product, and 0 outside of a cell.

    Two features are equal if they are the same sum, whatever they are called.
    """

    name: str = attrs.field(eq=False)
    is_mean: bool
    """Whether the sum is divided by the number of rows."""
    factors: tuple[Source, ...] = ()
    """Columns that are multiplied, at most two; none: 1."""
    cell: Cell = attrs.field(default=(), eq=frozenset)
    fills: tuple[tuple[str, Fill], ...] = attrs.field(default=(), eq=frozenset)
    """Values that missing ones of the columns of the cell count as, where it is not "no"."""

    @property
    def ends(self) -> tuple[float, float]:
        """Least and greatest number of a row."""
        low, high = (0.0, 1.0)
        if len(self.factors) == 1:
            low, high = self.factors[0].ends
        elif self.factors:
            low, high = _product_ends(*self.factors)
        if not self.cell:
            return low, high
        if low < 0 < high:  # so that 0, which a row outside of the cell has, is on the grid
            low, high = -max(-low, high), max(-low, high)
        return min(low, 0.0), max(high, 0.0)

    @property
    def columns(self) -> list[str]:
        """Columns that the feature reads."""
        names = [*(factor.column for factor in self.factors), *(name for name, _ in self.cell)]
        return list(dict.fromkeys(names))


_OF_MEANS: Final = ("mean", "rate")
"""Kinds of features that are divided by the number of rows."""


def is_mean_named(name: str) -> bool:
    """Whether a feature of this name is divided by the number of rows.

    >>> is_mean_named("rate(income = >50K)"), is_mean_named("count(race = Black)")
    (True, False)
    """
    return name.partition("(")[0] in _OF_MEANS


def named_feature(
    kind: Literal["mean", "total", "rate", "count"],
    *factors: Source,
    cell: Cell = (),
    missing: Missing = MappingProxyType({}),
) -> Feature:
    """A feature with its name by the grammar `kind(column * column | column = value, ...)`.

    >>> from pufferslice.queries.conditions import equals
    >>> chol = Source(column="chol", low=100, high=600)
    >>> named_feature("total", chol.centred, cell=(("sex", equals("F")),)).name
    'total(chol - 350 | sex = F)'
    >>> named_feature("mean", chol.centred, Source(column="age")).name
    'mean(age * (chol - 350))'
    """
    factors = tuple(sorted(factors, key=lambda factor: factor.column))
    numbers = " * ".join(factor.factor for factor in factors)
    if len(factors) == 1:
        numbers = factors[0].words
    where = ", ".join(condition.on(column) for column, condition in cell)
    return Feature(
        name=f"{kind}({' | '.join(filter(None, (numbers, where)))})",
        is_mean=kind in _OF_MEANS,
        factors=factors,
        cell=cell,
        fills=tuple((c, missing[c]) for c in dict(cell) if missing.get(c) is not None),
    )


def _product_ends(first: Source, second: Source) -> tuple[float, float]:
    if math.isinf(first.high) or math.isinf(second.high):
        return -math.inf, math.inf
    corners = [x * y for x in first.ends for y in second.ends]
    if first != second:
        return min(corners), max(corners)
    low, high = first.ends
    return (0.0 if low <= 0 <= high else min(low**2, high**2)), max(low**2, high**2)


@final
@attrs.frozen(kw_only=True, repr=False, slots=False)
class RowFeatures:
    r"""A query as sums, or means, of one number of each row for every coordinate.

    A number x is clipped to its public range and quantised: it counts as the integer
    $\lfloor (x - l) / (u - l) \cdot 2^b + 1/2 \rfloor$, so that sums are exact in any order of
    rows. A missing or infinite number counts as a public value, by default the middle of its range;
    a condition on a missing value is not met, unless the query declares a value for it.
    """

    parts: tuple[Feature, ...]
    """The features, each once."""

    @classmethod
    def of(cls, parts: Iterable[Feature]) -> "RowFeatures":
        """Collect features; of equal ones the first is kept."""
        return cls(parts=tuple(dict.fromkeys(parts)))

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each released sum or mean."""
        return tuple(part.name for part in self.parts)

    @property
    def low(self) -> Floats:
        """Least number of a row, shape (dim,); minus infinity where there is no clip range."""
        return np.array([part.ends[0] for part in self.parts])

    @property
    def high(self) -> Floats:
        """Greatest number of a row, shape (dim,)."""
        return np.array([part.ends[1] for part in self.parts])

    @property
    def is_mean(self) -> tuple[bool, ...]:
        """Whether a coordinate is the mean of its numbers; otherwise it is their sum."""
        return tuple(part.is_mean for part in self.parts)

    @property
    def spans(self) -> Floats:
        """Most by which the numbers of two rows differ, shape (dim,)."""
        return self.high - self.low

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the features read."""
        return tuple(dict.fromkeys(column for part in self.parts for column in part.columns))

    def read(self, frame: Frame) -> "Reading":
        """Read what the features need of a frame, each column once."""
        sources = dict.fromkeys(factor for part in self.parts for factor in part.factors)
        return Reading(
            features=self,
            n_rows=len(frame),
            numbers={source: source.numbers(frame) for source in sources},
            codes={one: one.codes(frame) for one in self.partitions},
        )

    def numbers(self, frame: Frame) -> Floats:
        """The numbers of each row, clipped, shape (n_rows, dim)."""
        return self.read(frame).columns()

    def integers(self, frame: Frame, n_bits: int) -> Integers:
        """The quantised numbers of each row, from 0 to 2^n_bits, shape (n_rows, dim)."""
        return self.read(frame).integers(n_bits)

    def values(self, integers: Integers, n_bits: int) -> Floats:
        """The numbers that the integers stand for."""
        return np.asarray(self.low + self.spans * (integers / 2.0**n_bits))

    def outputs(self, frame: Frame, n_bits: int) -> list[Fraction]:
        """Evaluate the query on all rows of a frame; nothing is rounded after the quantisation."""
        return self.of_sums(len(frame), self.sums(frame, n_bits), n_bits)

    def sums(self, frame: Frame, n_bits: int) -> Integers:
        """Sums of the quantised numbers of all rows, shape (dim,)."""
        sums = np.zeros(len(self.parts), dtype=np.int64)
        for integers in self.read(frame).blocks(n_bits, np.arange(len(frame))):
            sums += integers.sum(axis=0)
        return sums

    def of_sums(self, n_rows: int, sums: Integers, n_bits: int) -> list[Fraction]:
        """The query by the number of rows and the sums of their quantised numbers."""
        ends = zip(self.low.tolist(), self.high.tolist(), self.is_mean, sums.tolist(), strict=True)
        return [
            (n_rows * Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(total, 2**n_bits))
            / (n_rows if is_mean else 1)
            for low, high, is_mean, total in ends
        ]

    @property
    def labellings(self) -> dict[str, list[Partition]]:
        """Public labels of a row, by name: the conditions that each tells apart.

        One for the conditions on each column, named by it, and one for the columns of each table
        over several, as `race & income`; of at most 4,096 values each, from 0.
        """
        by_column: dict[str, list[Partition]] = {}
        for part in self.partitions:
            by_column.setdefault(part.column, []).append(part)
        together = [tuple(dict.fromkeys(name for name, _ in each.cell)) for each in self.parts]
        groups = dict.fromkeys([(column,) for column in by_column] + [c for c in together if c])
        chosen = {
            " & ".join(columns): [part for column in columns for part in by_column[column]]
            for columns in groups
        }
        return {
            name: parts for name, parts in chosen.items() if n_combined(parts) <= _MOST_PATTERNS
        }

    def boxes(self) -> tuple[Floats, Floats]:
        """Public boxes such that every possible row lies in one: low and high, (n_boxes, dim).

        One for each pattern of conditions, of as many columns as give at most 512 together. In it
        a feature whose cell is ruled out is 0, a flag whose cell is certain is 1, and anything else
        has its whole range.
        """
        parts = sorted(self.partitions, key=lambda part: -len(part.patterns))
        split: list[Partition] = []
        for part in parts:
            if n_combined([*split, part]) <= _MOST_BOXES:
                split.append(part)
        patterns = list(product(*(part.patterns for part in split)))
        low = np.tile(self.low, (len(patterns), 1))
        high = np.tile(self.high, (len(patterns), 1))
        places = {
            (part.column, part.fill, test): (number, place)
            for number, part in enumerate(split)
            for place, test in enumerate(part.conditions)
        }
        met = [np.array([row[number] for row in patterns]) for number in range(len(split))]
        for column, feature in enumerate(self.parts):
            fills = dict(feature.fills)
            keys = [places.get((name, fills.get(name), test)) for name, test in feature.cell]
            known = [met[key[0]][:, key[1]] for key in keys if key is not None]
            if not known:
                continue
            possible = np.logical_and.reduce(known)
            low[~possible, column] = high[~possible, column] = 0.0
            if not feature.factors and None not in keys:
                low[possible, column] = 1.0
        return low, high

    def unusual(self, table: object) -> tuple[Unusual, ...]:
        """Count, for each column, what is missing and what clipping changes; confidential."""
        sources = {factor.column: factor for part in self.parts for factor in part.factors}
        read = {column: sources.get(column) for column in self.columns}
        return unusual_values(rows_of(table, list(read)), read)

    @cached_property
    def partitions(self) -> list[Partition]:
        """What the conditions of all features tell apart; of one column, by kind and by fill."""
        return partitions_of(
            (column, test, dict(part.fills).get(column))
            for part in self.parts
            for column, test in part.cell
        )

    def __repr__(self) -> str:
        return f"RowFeatures(names={self.names!r})"


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Reading:
    """What some features read of the rows of a frame; confidential."""

    features: RowFeatures
    n_rows: int
    numbers: Mapping[Source, Floats]
    """Number of each row by source."""
    codes: Mapping[Partition, Integers]
    """Pattern of conditions that each row meets, by partition."""

    def columns(self) -> Floats:
        """The numbers of each row, clipped, shape (n_rows, dim)."""
        flags, every = self._flags(_EVERY), np.empty((self.n_rows, len(self.features.parts)))
        for place, part in enumerate(self.features.parts):
            every[:, place] = self._column(part, _EVERY, flags)
        return every

    def integers(self, n_bits: int, rows: Integers | slice = _EVERY) -> Integers:
        """The quantised numbers of some rows, from 0 to 2^n_bits, shape (n_rows, dim)."""
        flags, parts = self._flags(rows), self.features.parts
        integers = np.empty((len(self._every[rows]), len(parts)), dtype=np.int64, order="F")
        for place, part in enumerate(parts):
            if not part.factors:
                np.left_shift(self._met(part, rows, flags), n_bits, out=integers[:, place])
                continue
            low, high = part.ends
            above = np.clip(self._column(part, rows, flags), low, high) - low
            integers[:, place] = np.floor(above * steps_of(low, high, n_bits) + 0.5)
        return integers

    def blocks(self, n_bits: int, rows: Integers) -> Iterator[Integers]:
        """The quantised numbers of some rows, as many at once as fit in little memory."""
        size = max(1, _MOST_AT_ONCE // len(self.features.parts))
        for start in range(0, len(rows), size):
            yield self.integers(n_bits, rows[start : start + size])

    def labels(self, labellings: Mapping[str, Sequence[Partition]]) -> dict[str, Integers]:
        """Label of each row, by the name of the labelling; see `RowFeatures.labellings`."""
        return {
            name: combined_codes(parts, [self.codes[part] for part in parts]).astype(np.int16)
            for name, parts in labellings.items()
        }

    @property
    def _every(self) -> Flags:
        return np.ones(self.n_rows, dtype=np.bool_)

    def _flags(self, rows: Integers | slice) -> _FlagsOf:
        return {
            (one.column, one.fill, test): pattern[codes[rows]]
            for one, codes in self.codes.items()
            for test, pattern in zip(one.conditions, one.patterns.T, strict=True)
        }

    def _met(self, part: Feature, rows: Integers | slice, flags: _FlagsOf) -> Flags:
        """Whether each row is in the cell of a feature."""
        fills = dict(part.fills)
        met = [flags[name, fills.get(name), test] for name, test in part.cell]
        return np.asarray(np.logical_and.reduce(met)) if met else self._every[rows]

    def _column(self, part: Feature, rows: Integers | slice, flags: _FlagsOf) -> Floats:
        if not part.factors:
            return self._met(part, rows, flags).astype(np.float64)
        column = self.numbers[part.factors[0]][rows]
        for factor in part.factors[1:]:
            column = column * self.numbers[factor][rows]
        return np.where(self._met(part, rows, flags), column, 0.0) if part.cell else column

    def __repr__(self) -> str:
        return f"Reading(n_rows={self.n_rows})"


def feature_bits(n_rows: int) -> int:
    """Bits of a quantised number, so that the sum of so many rows fits 64-bit integers.

    >>> feature_bits(32_561), feature_bits(2**50)
    (20, 11)
    """
    return min(_MOST_BITS, _SUM_BITS - n_rows.bit_length())


def clip_of(clip: Clip | None) -> dict[str, tuple[float, float]]:
    """Read the public ends of each column; anything else is refused.

    >>> clip_of({"age": (17, 90)})
    {'age': (17.0, 90.0)}
    """
    if clip is None:
        return {}
    if not is_a(clip, Mapping):
        raise ArgumentError(f"clip must map columns to (low, high), got {given(clip)}")
    ends: dict[str, tuple[float, float]] = {}
    for column, pair in clip.items():
        if is_a(pair, str) or not is_a(pair, Sequence | np.ndarray) or len(pair) != 2:
            raise ArgumentError(
                f"clip must be a low and a high end for {given(column)}, got {given(pair)}"
            )
        low, high = (_end(column, end) for end in pair)
        if not low < high:
            raise ArgumentError(
                f"clip must have its low end below its high end, got {given(pair)} for "
                f"{given(column)}"
            )
        ends[column] = (low, high)
    return ends


def clip_from_table(table: object, columns: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Take public ends from an earlier or public table, rounded outwards to two digits.

    >>> import pyarrow as pa
    >>> clip_from_table(pa.table({"age": [17, 90], "gain": [0, 99_999]}), ["age", "gain"])
    {'age': (17.0, 90.0), 'gain': (0.0, 100000.0)}
    """
    frame = frame_of(table)
    ends: dict[str, tuple[float, float]] = {}
    for column in columns:
        numbers = finite_numbers(frame, column)
        known = numbers[~np.isnan(numbers)]
        if not len(known) or known.min() == known.max():
            raise ArgumentError(
                f"clip_from must have different numbers in column {quoted(column)}; give clip"
            )
        low, high = float(known.min()), float(known.max())
        ends[column] = (-_two_digits_up(-low), _two_digits_up(high))
    return ends


def missing_of(
    missing: Missing | None, clip: Ends, numbers: Iterable[str], tests: Mapping[str, bool]
) -> dict[str, Fill]:
    """Read the public value that a missing one counts as, by column.

    `numbers` are the columns that are read, or compared, as numbers; `tests` says of every column
    with conditions whether one of them reads the calendar.
    """
    if missing is None:
        return {}
    if not is_a(missing, Mapping):
        raise ArgumentError(f"missing must map columns to values, got {given(missing)}")
    numeric = set(numbers)
    fills: dict[str, Fill] = {}
    for column, value in missing.items():
        if column not in numeric and column not in tests:
            raise ArgumentError(
                f"missing names {given(column)}, which no statistic reads; leave it out"
            )
        fill: Any = value
        if is_a(value, np.generic):
            fill = fill.item()
        if tests.get(column) or not isinstance(fill, str | int | float):
            raise ArgumentError(
                f"missing must be a text, a number, True or False for {quoted(column)}, and is not "
                f"for dates and times; got {given(value)}"
            )
        low, high = clip.get(column, (-_LARGEST, _LARGEST))
        is_number = isinstance(fill, int | float) and not isinstance(fill, bool)
        if column in numeric and not (is_number and low <= float(fill) <= high):
            raise ArgumentError(
                f"missing must be a number in the clip range of {quoted(column)}, got "
                f"{given(value)}"
            )
        fills[column] = fill
    return fills


def _two_digits_up(value: float) -> float:
    if value == 0:
        return 0.0
    unit = Fraction(10) ** (math.floor(math.log10(abs(value))) - 1)
    return float(math.ceil(Fraction(repr(value)) / unit) * unit)


def _end(column: str, end: Any) -> float:  # whatever a user gives
    number = isinstance(end, int | float | np.integer | np.floating) and not isinstance(end, bool)
    if not number:
        raise ArgumentError(f"clip must hold numbers for {quoted(column)}, got {given(end)}")
    check_finite(clip=np.array(float(end)))
    return float(end)
