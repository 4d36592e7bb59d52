# SPDX-License-Identifier: Apache-2.0
r"""Many releases as one: how the declared precision of a part of a budget is spent.

The features of a part are $x = U F(X)$ in coordinates in which the declared precision is the
identity. A measurement publishes $G x + N(0, I)$ with a public matrix G and fresh noise; it spends
the precision $G^\top G$.

**Theorem.** If $\sum_t G_t^\top G_t \preceq c I$ on every path, where each $G_t$ may depend on
earlier outputs and on public matter, then all outputs together are a randomised function of the one
release $x + N(0, I / c)$, and every claim about that one that survives post-processing holds for
all of them.

*Proof.* Keep a variable $S \sim N(R x, R)$, with $R = c I$ at first. $G^\top G \preceq R$ gives
$G R^+ G^\top \preceq I$ with the range of $G^\top$ in that of R, so that $Y = G R^+ S + N(0, I - G
R^+ G^\top)$ is $N(G x, I)$, as published. $S' = S - G^\top Y$ has mean $(R - G^\top G) x$ and
covariance $R - G^\top G$, and is uncorrelated with Y, so independent. Repeat with $R' = R - G^\top
G$.

A scalar that is added up in place of the matrix is not enough where choices depend on outputs; see
`tests/noise/test_spending.py`.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Self, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice.errors import CalibrationError

ROOM: Final = 2.0**-30
"""Share by which a certificate accounts for more precision than was declared.

It covers the rounding of what is spent, so that 0.4 and 0.6 of the precision use it up.
"""
_FREE: Final = 2.0**-20
"""Share of the variance of a requested noise that is independent of all other noise."""
_EXHAUSTED: Final = 2.0**-28
"""Share of the precision below which nothing is left of a direction."""
_RANK: Final = 2.0**-40
"""Share of the largest singular value below which a statistic follows from others."""


@final
@attrs.frozen(kw_only=True, repr=False)
class Measurement:
    r"""What one release measures: $G x + N(0, I)$, and the statistics that follow from it."""

    directions: Floats = attrs.field(converter=locked, eq=same)
    """Matrix G, shape (n_numbers, dim): the released numbers in whitened coordinates."""
    estimate: Floats = attrs.field(converter=locked, eq=same)
    """Matrix that maps released numbers to statistics, shape (n_statistics, n_numbers)."""

    @property
    def n_numbers(self) -> int:
        """Number of released numbers, each with noise of its own."""
        return len(self.directions)

    @property
    def covariance(self) -> Floats:
        """Covariance of the noise of the statistics, shape (n_statistics, n_statistics)."""
        return np.asarray(self.estimate @ self.estimate.T)

    def __repr__(self) -> str:
        return f"Measurement(n_numbers={self.n_numbers}, n_statistics={len(self.estimate)})"


@final
@attrs.frozen(kw_only=True, repr=False)
class Spending:
    """The precision that was spent of a part, in coordinates in which 1 was declared.

    >>> spending = Spending.none(2).plus(measured_share(np.eye(2), 0.4))
    >>> spending.plus(measured_share(np.eye(2), 0.6)).fits()
    True
    >>> spending.plus(measured_share(np.eye(2), 0.601)).fits()
    False
    """

    total: Floats = attrs.field(converter=locked, eq=same)
    """Sum of all G'G, up to rounding, shape (dim, dim)."""
    rounding: float = 0.0
    """Bound on the distance of the sum from the exact one, in the spectral norm."""

    @classmethod
    def none(cls, dim: int) -> Self:
        """Nothing is spent."""
        return cls(total=np.zeros((dim, dim)))

    @property
    def dim(self) -> int:
        """Number of features."""
        return len(self.total)

    def plus(self, measurement: Measurement) -> Self:
        """Add what a measurement spends."""
        directions = measurement.directions
        size = np.abs(directions)
        with np.errstate(all="ignore"):  # `fits` refuses what is not finite
            added = directions.T @ directions
            largest = float(np.linalg.norm(size.T @ size))
            total = self.total + (added + added.T) / 2
            rounding = 4 * (len(directions) + 4) * UNIT_ROUNDOFF * largest
            rounding += 4 * UNIT_ROUNDOFF * float(np.linalg.norm(total))
        return attrs.evolve(self, total=total, rounding=self.rounding + rounding)

    def fits(self) -> bool:
        r"""Whether no more than the declared precision, and the room for rounding, is spent.

        Guarantee: if true, the exact sum of all $G^\top G$ is at most $(1 + \text{ROOM}) I$.
        """
        if not np.isfinite(self.total).all():
            return False
        largest = float(np.linalg.eigvalsh(self.total)[-1])
        error = 8 * self.dim * UNIT_ROUNDOFF * float(np.linalg.norm(self.total))
        return largest + error + self.rounding <= 1 + ROOM

    @property
    def left(self) -> Floats:
        """Precision that is left, up to rounding; `fits` decides, not this."""
        return np.asarray(np.eye(self.dim) - self.total)

    def least_covariance(self, statistics: Floats) -> Floats:
        """Compute the covariance of the least noise with which statistics can still be measured.

        Infinite variances for statistics of which nothing is left.
        """
        values, axes = np.linalg.eigh(self.left)
        along, is_left = statistics @ axes, values > _EXHAUSTED
        covariance = (along[:, is_left] / values[is_left]) @ along[:, is_left].T
        lost = (along[:, ~is_left] ** 2).sum(axis=1) > _EXHAUSTED * (along**2).sum(axis=1)
        covariance[np.diag_indices_from(covariance)] += np.where(lost, math.inf, 0.0)
        return np.asarray(covariance)

    def least_stds(self, statistics: Floats) -> Floats:
        """Compute the least noise that each statistic can still have; all of them together can.

        `measured_noise` accepts it. Infinite where nothing is left.
        """
        return np.sqrt(np.diagonal(self.least_covariance(statistics)) / (1 - 2 * _FREE))

    def largest_share(self, statistics: Floats) -> float:
        """Find the largest share of the declared precision that these statistics can still have."""
        basis = _basis(statistics)[0]
        worst = self.least_covariance(basis)
        if np.isinf(np.diagonal(worst)).any():
            return 0.0
        return min(1.0, 1 / float(np.linalg.eigvalsh(worst)[-1]))

    def __repr__(self) -> str:
        return f"Spending(dim={self.dim})"


def measured_share(statistics: Floats, share: float) -> Measurement:
    r"""Measure statistics with a share of the declared precision.

    The noise has the covariance $\Sigma = V V^\top / s$ for statistics $V x$, and spends $s\,
    V^\top (V V^\top)^{-1} V \preceq s I$: the statistics are as if all features had been measured
    with the share s.

    Args:
        statistics: Matrix V in whitened coordinates, shape (n_statistics, dim); statistics that
            follow from others cost nothing.
        share: The share s, greater than 0 and at most 1.

    >>> measured_share(np.array([[3.0, 4.0]]), 0.25).covariance.tolist()
    [[100.0]]
    """
    basis, weights = _basis(statistics)
    root = math.sqrt(share)
    return Measurement(directions=root * basis, estimate=weights / root)


def measured_noise(statistics: Floats, stds: Floats, spending: Spending) -> Measurement:
    r"""Measure statistics with noise of these standard deviations, of what is left.

    Of the covariances $\Sigma$ with this diagonal, one with $V^\top \Sigma^{-1} V \preceq s R$ for
    the least possible share s of what is left, R: $\Sigma = V R^{-1} V^\top / s$ plus a diagonal
    matrix.
    """
    least = spending.least_covariance(statistics)
    shares = np.diagonal(least) / stds**2
    if not shares.max() <= 1 - _FREE:
        raise CalibrationError("less precision is left than this noise needs")
    covariance = least * ((1 - _FREE) / float(shares.max()))
    covariance[np.diag_indices_from(covariance)] = stds**2
    factor = np.linalg.cholesky(covariance)
    directions = solve_triangular(factor, statistics, lower=True, check_finite=False)
    return Measurement(directions=directions, estimate=factor)


def measured_rest(spending: Spending) -> Measurement:
    """Measure all features with all of the precision that is left, for `combined_estimate`."""
    values, axes = np.linalg.eigh(spending.left)
    kept = values > _EXHAUSTED
    if not kept.any():
        raise CalibrationError("no precision is left")
    directions = np.sqrt(values[kept])[:, None] * axes[:, kept].T
    return Measurement(directions=directions, estimate=np.zeros((0, len(directions))))


class Estimate(NamedTuple):
    """Statistics by several measurements together."""

    is_known: npt.NDArray[np.bool_]
    """Whether the measurements determine a statistic."""
    values: Floats
    covariance: Floats
    """Covariance of the noise of the values."""


def combined_estimate(outputs: Sequence[tuple[Floats, Floats]], statistics: Floats) -> Estimate:
    r"""Estimate statistics $V x$ from measurements $y_t = G_t x + N(0, I)$, with the least noise.

    $\hat x = (\sum G_t^\top G_t)^+ \sum G_t^\top y_t$. Once all of the declared precision is spent,
    in whatever steps and combinations, the noise has the covariance $V V^\top$.

    Args:
        outputs: Pairs of $G_t$ and $y_t$.
        statistics: Matrix V, shape (n_statistics, dim).
    """
    precision = np.sum([directions.T @ directions for directions, _ in outputs], axis=0)
    weighted = np.sum([directions.T @ values for directions, values in outputs], axis=0)
    squares, axes = np.linalg.eigh(precision)
    kept = squares > _RANK * squares[-1]
    axes, squares = axes[:, kept], squares[kept]
    along, sizes = statistics @ axes, (statistics**2).sum(axis=1)
    covariance = (along / squares) @ along.T
    return Estimate(
        is_known=sizes - (along**2).sum(axis=1) <= _EXHAUSTED * sizes,
        values=np.asarray((along / squares) @ (axes.T @ weighted)),
        covariance=np.asarray((covariance + covariance.T) / 2),
    )


def _basis(statistics: Floats) -> tuple[Floats, Floats]:
    """Return orthonormal rows that span the statistics, and the statistics in terms of them."""
    if np.array_equal(statistics, np.tril(statistics)) and _is_regular(statistics):
        return np.eye(len(statistics)), np.asarray(statistics)
    left, values, right = np.linalg.svd(statistics, full_matrices=False)
    kept = values > _RANK * values.max(initial=0.0)
    return np.asarray(right[kept]), np.asarray(left[:, kept] * values[kept])


def _is_regular(statistics: Floats) -> bool:
    """Whether a lower triangular matrix is square and far from singular."""
    size = np.abs(np.diagonal(statistics))
    return statistics.shape[0] == statistics.shape[1] and bool(
        size.min() > _RANK * np.abs(statistics).max()
    )
