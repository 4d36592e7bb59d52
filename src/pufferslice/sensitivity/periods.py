# SPDX-License-Identifier: Apache-2.0
r"""What two worlds differ by in one period, whatever number of rows it has within a public range.

With n rows of which $D = \lceil w n \rceil$ differ, the change of the means is $\frac1n \sum_{k
\le D} W_k$, that of totals $\sum_{k \le D} W_k$. For whitened parts a (of means) and b (of totals)
of the mean change, and A, B of the change itself,

$$\mathrm{tr}(U M U^\top) = \frac{E D^2}{n^2} |a|^2 + 2 \frac{E D^2}{n} a^\top b + E D^2 |b|^2
    + \frac{E D}{n^2} \mathrm{tr}\,\mathrm{Cov} A + 2 \frac{E D}{n} \mathrm{tr}\,\mathrm{Cov}(A, B)
    + E D\, \mathrm{tr}\,\mathrm{Cov} B.$$

The maximum over n is that of every n where there are few, and is bounded between the ends of short
intervals otherwise. It is not at an end of the range: $\lceil w n \rceil / n$ does not fall with n
(0.05 at 9,000 rows and 0.050106 at 9,001).
"""

import math
from fractions import Fraction
from typing import Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats
from pufferslice.errors import ArgumentError
from pufferslice.scenario.rows import Design, Differing
from pufferslice.sensitivity.layers import MOMENT_ERROR
from pufferslice.sensitivity.person import row_distance
from pufferslice.sensitivity.rows import Change, RowDifference
from pufferslice.sensitivity.whitening import Covariance

FEW: Final = 4096
"""Most numbers of rows that are looked at one by one."""
_WIDTH: Final = 1 + 2.0**-7
"""Ratio of the ends of an interval of numbers of rows."""
_UP: Final = 1 + 2.0**-40
_DOWN: Final = 1 - 2.0**-40


class _Factors(NamedTuple):
    """Bounds on the factors of the formula over intervals of numbers of rows."""

    means: tuple[Floats, Floats]
    """Upper bounds on E D^2 / n^2 and E D / n^2."""
    mixed: tuple[Floats, Floats]
    """Upper bounds on E D^2 / n and E D / n."""
    mixed_least: tuple[Floats, Floats]
    """Lower bounds on the same."""
    totals: tuple[Floats, Floats]
    """Upper bounds on E D^2 and E D."""


@final
@attrs.frozen(kw_only=True, repr=False)
class TableSizes:
    """Tables of a public range of sizes, in which so many rows differ that a share of w can."""

    within: float
    """Largest distance w of two shares."""
    design: Design
    least: int
    """Least number of rows of a table."""
    most: int
    """Largest number of rows of a table."""
    pieces: int = 1
    """Number of smaller tables, with shares of their own, that the rows may be made of.

    Each of them rounds its own number of differing rows up.
    """

    def differing(self, n_rows: int) -> Differing:
        """How many rows of a table of this size differ."""
        if self.design == "independent":
            return Differing(most=n_rows, probability=self.within)
        share = Fraction(repr(self.within))
        return Differing(most=math.ceil(share * n_rows) + self.pieces - 1)

    def factors(self) -> _Factors:
        """Bound the factors of the formula, interval by interval."""
        if self.most - self.least < FEW:
            sizes = range(self.least, self.most + 1)
            n = np.array(sizes, dtype=np.float64)
            laws = [self.differing(size) for size in sizes]
            squares = np.array([law.mean_square for law in laws])
            means = np.array([law.mean for law in laws])
            return _Factors(
                means=(squares / n**2 * _UP, means / n**2 * _UP),
                mixed=(squares / n * _UP, means / n * _UP),
                mixed_least=(squares / n * _DOWN, means / n * _DOWN),
                totals=(squares * _UP, means * _UP),
            )
        n_parts = 1 + math.floor(math.log(self.most / self.least) / math.log(_WIDTH))
        ends = np.geomspace(self.least, self.most, n_parts + 1)
        low, high = ends[:-1] * _DOWN, ends[1:] * _UP
        w = self.within
        if self.design == "independent":
            return _Factors(
                means=((w**2 + w * (1 - w) / low) * _UP, w / low * _UP),
                mixed=((w**2 * high + w * (1 - w)) * _UP, np.full(len(low), w * _UP)),
                mixed_least=((w**2 * low + w * (1 - w)) * _DOWN, np.full(len(low), w * _DOWN)),
                totals=((w**2 * high**2 + w * (1 - w) * high) * _UP, w * high * _UP),
            )
        share, number = w + self.pieces / low, w * high + self.pieces
        return _Factors(
            means=(share**2 * _UP, share / low * _UP),
            mixed=(share * number * _UP, share * _UP),
            mixed_least=(w**2 * low * _DOWN, np.full(len(low), w * _DOWN)),
            totals=(number**2 * _UP, number * _UP),
        )


@final
@attrs.frozen(kw_only=True, repr=False)
class PeriodDifference:
    """Moments of the change in one period, for any number of its rows within a range.

    `rows` has the kinds of rows and their coupling; how many of them differ follows from `sizes`.
    """

    rows: RowDifference
    is_mean: npt.NDArray[np.bool_]
    """Whether a feature is a mean, and not a total, shape (n_features,)."""
    n_rows: int
    """Number of rows by which the means of `rows` are divided."""
    sizes: TableSizes

    def __attrs_post_init__(self) -> None:
        if self.rows.n_periods != 1 or self.is_mean.shape != (self.rows.n_features,):
            raise ArgumentError("a period has one mean or total for each feature")

    @property
    def boxes(self) -> tuple[Floats, Floats]:
        """Public boxes, one of which holds what a row adds to the smallest table: both ends."""
        units = np.where(self.is_mean, self.n_rows / self.sizes.least, 1.0)
        return self.rows.low * units, self.rows.high * units

    def one_row_distance(self, noise: Covariance) -> float:
        """Bound how far exchanging one row can move the output, in noise deviations."""
        return row_distance(noise.covariance, *self.boxes)

    @property
    def second_moments(self) -> Floats:
        """Second moments at both ends of the range, shape (n_matrices, dim, dim); not a bound."""
        matrices = []
        for n_rows in dict.fromkeys((self.sizes.least, self.sizes.most)):
            units = np.where(self.is_mean, self.n_rows / n_rows, 1.0)
            moments = self.rows.with_differing(self.sizes.differing(n_rows)).second_moments
            matrices.append(moments * np.outer(units, units))
        return np.concatenate(matrices)

    def mean_squares(self, noise: Covariance) -> Floats:
        r"""Bound $\mathrm{tr}(U M U^\top)$ for each instance, over all numbers of rows.

        Guarantee: rounded up, for the exact matrix U that whitens the noise, and for moments as
        wrong as those of a `RowDifference` may be.
        """
        whitening = noise.whitening / noise.std
        factors = self.sizes.factors()
        units = np.where(self.is_mean, float(self.n_rows), 1.0)
        of_means, of_totals = (
            whitening * np.where(chosen, units, 0.0) for chosen in (self.is_mean, ~self.is_mean)
        )
        found = []
        for change in self.rows.changes:
            a, b = of_means @ change.mean, of_totals @ change.mean
            squares = np.array([a @ a, a @ b, b @ b])
            turned_a, turned_b = of_means @ change.cov, of_totals @ change.cov
            spreads = np.array(
                [
                    np.sum(turned_a * of_means),
                    np.sum(turned_a * of_totals),
                    np.sum(turned_b * of_totals),
                ]
            )
            mixed = [
                np.where(value > 0, value * high, value * low)
                for value, high, low in zip(
                    (squares[1], spreads[1]), factors.mixed, factors.mixed_least, strict=True
                )
            ]
            costs = squares[0] * factors.means[0] + 2 * mixed[0] + squares[2] * factors.totals[0]
            costs += spreads[0] * factors.means[1] + 2 * mixed[1] + spreads[2] * factors.totals[1]
            found.append(float((costs + self._errors(whitening, change, factors)).max()))
        return np.maximum(found, 0.0) * _UP

    def _errors(self, whitening: Floats, change: Change, factors: _Factors) -> Floats:
        """Bound what rounding and wrong moments add, for each interval."""
        size = np.abs(whitening)
        dim, n_kinds = self.rows.dim, len(self.rows.means)
        total = np.zeros(len(factors.means[0]))
        for chosen, (square, mean), unit in (
            (self.is_mean, factors.means, float(self.n_rows)),
            (~self.is_mean, factors.totals, 1.0),
        ):
            part = size[:, chosen] * unit
            shift = part @ np.abs(change.mean[chosen])
            spread = float(np.sum((part @ np.abs(change.cov[np.ix_(chosen, chosen)])) * part))
            columns = (part**2).sum(axis=0)
            own = float(columns @ change.mean[chosen] ** 2)
            own_spread = float(columns @ np.diagonal(change.cov)[chosen])
            spans = float(columns @ self.rows.spans[chosen] ** 2)
            # Products of both parts are at most the sums of their squares.
            rounding = 16 * (dim + 8) ** 2 * UNIT_ROUNDOFF
            total += rounding * 2 * (float(shift @ shift) * square + spread * mean)
            wrong = (own + 2 * n_kinds * spans) * square + (own_spread + n_kinds * spans) * mean
            total += MOMENT_ERROR * dim * wrong
        return total

    def __repr__(self) -> str:
        return f"PeriodDifference(rows={self.rows!r}, sizes={self.sizes!r})"
