# SPDX-License-Identifier: Apache-2.0
"""Columns as numbers: clipped to public ranges, and put on a grid."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.data.frames import Frame, label_of
from pufferslice.queries.conditions import Condition
from pufferslice.queries.partition import Fill, finite_numbers

Clip: TypeAlias = Mapping[str, Sequence[float]]
"""Public (low, high) by column: every value is moved into them before anything is computed."""

Ends: TypeAlias = Mapping[str, tuple[float, float]]
"""Checked public ends by column."""

Missing: TypeAlias = Mapping[str, Fill]
"""Public value by column that counts where a row has none."""

Cell: TypeAlias = tuple[tuple[str, Condition], ...]
"""Conditions on columns that a row of the cell meets all; without any, every row does."""


@final
@attrs.frozen(kw_only=True)
class Source:
    """A column as numbers: clipped to a public range, with a public value for a missing one."""

    column: str
    low: float = -math.inf
    high: float = math.inf
    missing: float | None = None
    """Value that a missing one counts as; None: the middle of the range."""
    center: float = 0.0
    """Public number that is subtracted after clipping."""

    @classmethod
    def of(cls, column: str, clip: Ends, missing: Missing) -> "Source":
        """The numbers of a column under the rules of a query."""
        low, high = clip.get(column, (-math.inf, math.inf))
        fill = missing.get(column)
        return cls(column=column, low=low, high=high, missing=None if fill is None else float(fill))

    @property
    def centred(self) -> "Source":
        """The same numbers less the middle of their range, rounded to 1 % of its length."""
        if math.isinf(self.high - self.low):
            return self
        digits = 2 - math.floor(math.log10(self.high - self.low))
        middle = round((self.low + self.high) / 2, digits) + 0.0
        return attrs.evolve(self, center=middle)

    @property
    def words(self) -> str:
        """The numbers in a name, such as `age` and `age - 53.5`."""
        if not self.center:
            return self.column
        sign = "-" if self.center > 0 else "+"
        return f"{self.column} {sign} {label_of(abs(self.center))}"

    @property
    def factor(self) -> str:
        """The numbers in the name of a product."""
        return f"({self.words})" if self.center else self.words

    @property
    def ends(self) -> tuple[float, float]:
        """Least and greatest number."""
        return self.low - self.center, self.high - self.center

    def numbers(self, frame: Frame) -> Floats:
        """The number of each row; never missing where the range is finite."""
        numbers = finite_numbers(frame, self.column)
        fill = (self.low + self.high) / 2 if self.missing is None else self.missing
        numbers = np.where(np.isnan(numbers), fill, np.clip(numbers, self.low, self.high))
        return np.asarray(numbers - self.center)


def steps_of(low: float, high: float, n_bits: int) -> float:
    """Steps of the grid of a number by its unit.

    A factor and no divisor, because some engines multiply by the inverse of a divisor.
    """
    return 2.0**n_bits / (high - low)
