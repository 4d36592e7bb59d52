# SPDX-License-Identifier: Apache-2.0
"""Row features: queries that are sums over rows, of numbers that are clipped and quantised."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_finite, is_a
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import Frame
from pufferslice.errors import ArgumentError

Clip: TypeAlias = Mapping[str, Sequence[float]]
"""Public (low, high) by column: every value is moved into them before anything is computed."""

_MOST_BITS: Final = 20
_SUM_BITS: Final = 62
"""Most bits of a sum over all rows."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowFeatures:
    r"""A query as sums, or means, of one number of each row for every coordinate.

    A number x is clipped to its public range and quantised: it counts as the integer
    $\lfloor (x - l) / (u - l) \cdot 2^b + 1/2 \rfloor$, so that sums are exact in any order of
    rows. A missing or infinite number counts as the middle of the range; a condition on a missing
    value is not met.
    """

    low: Floats
    """Least number of a row, shape (dim,); minus infinity where the query declares no range."""
    high: Floats
    """Greatest number of a row, shape (dim,)."""
    is_mean: tuple[bool, ...]
    """Whether a coordinate is the mean of its numbers; otherwise it is their sum."""
    numbers: Callable[[Frame], Floats]
    """Numbers of each row, shape (n_rows, dim), before clipping; NaN where one is missing."""

    @property
    def spans(self) -> Floats:
        """Most by which the numbers of two rows differ, shape (dim,)."""
        return self.high - self.low

    def integers(self, frame: Frame, n_bits: int) -> Integers:
        """The quantised numbers of each row, from 0 to 2^n_bits, shape (n_rows, dim)."""
        numbers = self.numbers(frame)
        numbers = np.where(np.isfinite(numbers), numbers, (self.low + self.high) / 2)
        shares = (np.clip(numbers, self.low, self.high) - self.low) / self.spans
        return np.asarray(np.floor(shares * 2.0**n_bits + 0.5), dtype=np.int64)

    def values(self, integers: Integers, n_bits: int) -> Floats:
        """The numbers that the integers stand for."""
        return np.asarray(self.low + self.spans * (integers / 2.0**n_bits))

    def outputs(self, frame: Frame, n_bits: int) -> list[Fraction]:
        """Evaluate the query on all rows of a frame; nothing is rounded after the quantisation."""
        n_rows = len(frame)
        sums = self.integers(frame, n_bits).sum(axis=0).tolist()
        ends = zip(self.low.tolist(), self.high.tolist(), self.is_mean, sums, strict=True)
        return [
            (n_rows * Fraction(low) + (Fraction(high) - Fraction(low)) * Fraction(total, 2**n_bits))
            / (n_rows if is_mean else 1)
            for low, high, is_mean, total in ends
        ]


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


def _end(column: str, end: Any) -> float:  # whatever a user gives
    number = isinstance(end, int | float | np.integer | np.floating) and not isinstance(end, bool)
    if not number:
        raise ArgumentError(f"clip must hold numbers for {quoted(column)}, got {given(end)}")
    check_finite(clip=np.array(float(end)))
    return float(end)
