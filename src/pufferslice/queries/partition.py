# SPDX-License-Identifier: Apache-2.0
"""Public partitions of the rows by the conditions on one column, in one pass over its values.

Nothing here refuses a row: a missing, infinite or unreadable value meets no condition, or counts as
the public value that the query declares.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias, final

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pufferslice._core.arrays import Floats, Integers
from pufferslice.data.frames import (
    Frame,
    calendar_of,
    complete_part,
    floats_of,
    label_of,
    plain_values,
)
from pufferslice.queries.conditions import Condition, check_comparable

Flags: TypeAlias = npt.NDArray[np.bool_]

Fill: TypeAlias = str | float | bool | None
"""Public value that a missing one counts as; None: it meets no condition."""

_NUMBERS: Final = "numbers"


@final
@attrs.frozen(kw_only=True, slots=False)
class Partition:
    """What some conditions of one kind on a column tell apart: few public patterns of them.

    The kinds are comparisons of labels, comparisons of numbers, and each part of the calendar.
    """

    column: str
    conditions: tuple[Condition, ...]
    fill: Fill = None

    @property
    def kind(self) -> str:
        """Kind of the conditions: `equals`, `numbers`, or a part of the calendar."""
        return _kind(self.conditions[0])

    @cached_property
    def patterns(self) -> Flags:
        """Conditions that a row may meet together, shape (n_patterns, n_conditions).

        In the first pattern none is met.
        """
        if self.kind != _NUMBERS:
            return np.vstack([np.zeros(len(self.conditions)), np.eye(len(self.conditions))]) > 0
        met = self._met_between()
        none = np.zeros((1, len(self.conditions)), dtype=np.bool_)
        return np.vstack([none, np.unique(met[met.any(axis=1)], axis=0)])

    def codes(self, frame: Frame) -> Integers:
        """Pattern that each row has, by its place in `patterns`."""
        if self.kind == _NUMBERS:
            numbers = finite_numbers(frame, self.column)
            if self.fill is not None:
                numbers = np.where(np.isfinite(numbers), numbers, float(self.fill))
            return self._codes_of_numbers(numbers)
        if self.kind != "equals":
            return self._calendar_codes(frame)
        check_comparable(frame, self.column, [str(test.value) for test in self.conditions])
        rows, present = complete_part(frame, self.column)
        fill = self._place(None if self.fill is None else label_of(self.fill))
        codes = np.full(len(frame), fill, dtype=np.int64)
        if present.any():
            codes[present] = self._label_codes(rows[self.column], fill)
        return codes

    def _place(self, label: str | None) -> int:
        labels = [str(test.value) for test in self.conditions]
        return labels.index(label) + 1 if label in labels else 0

    def _label_codes(self, series: nw.Series[Any], fill: int) -> Integers:
        if isinstance(series.dtype, nw.Categorical | nw.Enum):
            series = series.cast(nw.String)
        if isinstance(series.dtype, nw.String):
            # As bytes: text that is not UTF-8 is no reason to refuse a release.
            array: Any = pc.cast(pc.cast(series.to_arrow(), pa.large_string()), pa.large_binary())
            wanted = pa.array([str(test.value).encode() for test in self.conditions], array.type)
            places: Any = pc.fill_null(pc.index_in(array, wanted), -1)
            return np.asarray(places.to_numpy(), dtype=np.int64) + 1
        plain = plain_values(series)
        if plain.dtype.kind not in "biuf":
            return np.array([self._place(label_of(value)) for value in series], dtype=np.int64)
        codes = np.zeros(len(plain), dtype=np.int64)
        for place, test in enumerate(self.conditions, start=1):
            value = number_labelled(str(test.value), plain.dtype)
            if value is not None:
                codes[plain == value] = place
        return codes if plain.dtype.kind != "f" else np.where(np.isfinite(plain), codes, fill)

    def _calendar_codes(self, frame: Frame) -> Integers:
        rows, present = complete_part(frame, self.column)
        codes = np.zeros(len(frame), dtype=np.int64)
        if present.any():
            part: Any = self.kind  # of the calendar
            labels, places = np.unique(calendar_of(rows, self.column, part), return_inverse=True)
            codes[present] = np.array([self._place(label) for label in labels.tolist()])[places]
        return codes

    @property
    def _cuts(self) -> Floats:
        ends = [
            end
            for test in self.conditions
            for end in (test.value if isinstance(test.value, tuple) else (test.value,))
        ]
        return np.unique(np.array(ends, dtype=np.float64))

    def _met_between(self) -> Flags:
        """Conditions met before, at and after each cut, shape (2 n_cuts + 1, n_conditions)."""
        cuts = self._cuts
        points = np.empty(2 * len(cuts) + 1)
        points[1::2] = cuts
        points[::2] = np.nextafter([*cuts, cuts[-1]], [*[-np.inf] * len(cuts), np.inf])
        return np.column_stack([test.met_by(points) for test in self.conditions])

    def changes(self) -> tuple[int, list[tuple[float, bool, int]]]:
        """Pattern of the lowest numbers, and where it changes: for comparisons of numbers.

        A change is a number, whether it comes with that number itself or only above it, and the
        new pattern.

        >>> from pufferslice.queries.conditions import above, between
        >>> (part,) = partitions("age", [between(17, 30), above(17)], None)
        >>> part.changes()
        (0, [(17.0, True, 2), (17.0, False, 3), (30.0, True, 1)])
        """
        codes = self._codes_between()
        found = [
            (float(self._cuts[place // 2]), place % 2 == 0, after)
            for place, (before, after) in enumerate(pairwise(codes))
            if before != after
        ]
        return codes[0], found

    def _codes_between(self) -> list[int]:
        """Pattern before, at and after each cut."""
        met, patterns = self._met_between(), self.patterns
        return [int((patterns == row).all(axis=1).argmax()) for row in met]

    def _codes_of_numbers(self, numbers: Floats) -> Integers:
        codes, cuts = self._codes_between(), self._cuts
        places = np.searchsorted(cuts, numbers, "left") + np.searchsorted(cuts, numbers, "right")
        return np.where(np.isnan(numbers), 0, np.array(codes)[np.minimum(places, 2 * len(cuts))])


def finite_numbers(frame: Frame, column: str) -> Floats:
    """The numbers of a column, NaN where one is missing or infinite; another type is refused."""
    rows, present = complete_part(frame, column, finite=True)
    numbers = np.full(len(frame), np.nan)
    if present.any():
        numbers[present] = floats_of(rows, column)
    return numbers


def partitions(column: str, conditions: Iterable[Condition], fill: Fill) -> list[Partition]:
    """Sort the conditions on one column by their kinds.

    >>> from pufferslice.queries.conditions import above, equals
    >>> [part.kind for part in partitions("age", [equals(3), above(5), equals(4)], None)]
    ['equals', 'numbers']
    """
    kinds: dict[str, list[Condition]] = {}
    for condition in dict.fromkeys(conditions):
        kinds.setdefault(_kind(condition), []).append(condition)
    return [
        Partition(column=column, conditions=tuple(tests), fill=fill) for tests in kinds.values()
    ]


def partitions_of(tests: Iterable[tuple[str, Condition, Fill]]) -> list[Partition]:
    """Sort conditions on columns, each with the public value of a missing one."""
    found: dict[tuple[str, Fill], list[Condition]] = {}
    for column, condition, fill in tests:
        found.setdefault((column, fill), []).append(condition)
    return [
        part
        for (column, fill), conditions in found.items()
        for part in partitions(column, conditions, fill)
    ]


def combined_codes(parts: Sequence[Partition], codes: Sequence[Integers]) -> Integers:
    """One number for the patterns of several partitions together, below `n_combined`."""
    combined = codes[0]
    for part, others in zip(parts[1:], codes[1:], strict=True):
        combined = combined * len(part.patterns) + others
    return combined


def n_combined(parts: Sequence[Partition]) -> int:
    """Number of patterns that several partitions tell apart together."""
    total = 1
    for part in parts:
        total *= len(part.patterns)
    return total


def _kind(condition: Condition) -> str:
    return _NUMBERS if condition.compares_numbers else condition.comparison


def number_labelled(label: str, dtype: np.dtype[Any]) -> Any:  # a number of this type, or None
    """The number of a column's type that has a label, if there is one.

    >>> int(number_labelled("3", np.dtype(np.int64))), number_labelled("3.5", np.dtype(np.int64))
    (3, None)
    """
    if dtype.kind == "b":
        return {"True": True, "False": False}.get(label)
    try:
        value = dtype.type(label if dtype.kind == "f" else int(label))
    except (ValueError, OverflowError):
        return None
    return value if label_of(value) == label else None
