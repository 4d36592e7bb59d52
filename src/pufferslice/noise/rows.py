# SPDX-License-Identifier: Apache-2.0
r"""The least noise for a row model, in closed form and beyond it.

Of all covariances with $\mathrm{tr}(\Sigma^{-1} M) \le \rho$ the one with the least weighted total
variance $\mathrm{tr}(B \Sigma)$ is $\Sigma = \frac{t}{\rho}\, B^{-1/2} (B^{1/2} M B^{1/2})^{1/2}
B^{-1/2}$ with $t = \mathrm{tr}\,(B^{1/2} M B^{1/2})^{1/2}$; its value is $t^2 / \rho$.

*Proof.* $t^2 = (\mathrm{tr}\, (B^{1/2} M B^{1/2})^{1/2})^2 \le \mathrm{tr}(B \Sigma)\,
\mathrm{tr}(\Sigma^{-1} M)$ for every $\Sigma$: the left side is the squared nuclear norm of
$B^{1/2} M^{1/2} = (B^{1/2} \Sigma^{1/2}) (\Sigma^{-1/2} M^{1/2})$, at most the product of the
squared Frobenius norms. The stated $\Sigma$ attains it.

The same inequality bounds from below what several matrices need (`shared_noise`), and what wanted
accuracies need (`accurate_noise`): for any $\lambda \ge 0$ with sum 1, $N = \sum \lambda_i M_i$ has
$\mathrm{tr}(\Sigma^{-1} N) \le \max_i \mathrm{tr}(\Sigma^{-1} M_i)$; for any $b \ge 0$,
$\mathrm{tr}(B \Sigma) \le \sum_j b_j s_j^2$ if $\Sigma_{jj} \le s_j^2$. $t(b, \lambda)$ is concave
(it is the root fidelity of B and N), and the largest bound is attained.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice._core.checks import check_above
from pufferslice.errors import CalibrationError
from pufferslice.noise.shape import Kind
from pufferslice.sensitivity.person import row_distance
from pufferslice.sensitivity.precision import Precision
from pufferslice.sensitivity.rows import RowDifference

TOLERANCE: Final = 2e-7
"""Gap at which the search for several matrices, or accuracies, stops."""

ONE_PERSON: Final = 1.0
"""Limit on how far exchanging one row may move the output, in standard deviations of the noise."""
_LEAST_VARIANCE: Final = 2.0**-20
"""Least variance of a statistic, as a share of the square of its span."""
_DIGITS: Final = 0.01
"""Step to which correlations are rounded for noise that was fitted to the released rows."""
_FREE_SHARE: Final = 2.0**-6
"""Weight of a coordinate without a wanted accuracy, as a share of the largest weight."""
_LEAST_ROOT: Final = 2.0**-27
"""Least standard deviation of the noise in any direction, as a share of the largest."""
_MOST_STEPS: Final = 400
_PATIENCE: Final = 10
"""Number of steps without a smaller gap after which the search stops."""
_MOST_VALUES: Final = 2**24
"""Most numbers in the second derivatives of the search; beyond, it takes simpler steps."""
_FIRST_BARRIER: Final = 0.1
_TO_BOUNDARY: Final = 0.9
_LONG_STEP: Final = 0.5
_FLOOR_WIDTH: Final = 1.02
"""Precision of the search for the floor that hides one row."""
_LEAST_FLOOR: Final = 2.0**-40
_ROUNDING: Final = 1e-12
_UP: Final = 1 + 2.0**-44


@final
@attrs.frozen(kw_only=True, repr=False)
class RowNoise:
    """A covariance of noise, what it was found to cost, and how near it is to the best one."""

    covariance: Floats = attrs.field(converter=locked, eq=same)
    mean_square: float
    """Largest mean squared distance of all matrices, rounded up."""
    gap: float
    """Bound on the excess over the best noise: 1 + gap times its total variance or mean square."""

    def __repr__(self) -> str:
        return f"RowNoise(dim={len(self.covariance)}, gap={self.gap:.1e})"


def least_covariance(moment: Floats, mean_square: float, weights: Floats) -> Floats:
    """Covariance of least weighted total variance, in closed form; weights shape (dim,).

    >>> cov = least_covariance(np.array([[2.0, 1.0], [1.0, 2.0]]), 0.513970825836408, np.ones(2))
    >>> round(float(np.trace(cov)), 10)
    14.5224227523
    """
    return _Root.of(moment, weights).covariance(mean_square)


def least_variances(moment: Floats, mean_square: float, weights: Floats) -> Floats:
    """Diagonal covariance of least weighted total variance, in closed form."""
    return least_covariance(np.diag(np.diagonal(moment)), mean_square, weights)


def shared_noise(
    moments: Floats, mean_square: float, weights: Floats, *, kind: Kind = "fitted"
) -> RowNoise:
    r"""Find the covariance of least weighted total variance for several matrices at once.

    $$\min \mathrm{tr}(B \Sigma) \quad\text{with}\quad \mathrm{tr}(\Sigma^{-1} M_i) \le \rho
      \text{ for every } i$$

    Args:
        moments: The matrices, positive semidefinite, shape (n, dim, dim).
        mean_square: The limit.
        weights: Diagonal of B, positive, shape (dim,).
        kind: Any covariance, or the best diagonal one.

    Guarantee: every constraint was evaluated at the result, rounded up, and holds. The gap is to
    $t^2 / \rho$ for the multipliers found, a lower bound whatever they are.
    """
    matrices = _of_kind(moments, kind)
    root = _best_root(_undominated(matrices), weights, np.full(len(weights), math.inf))
    room = 16 * len(weights) ** 2 * UNIT_ROUNDOFF
    covariance = root.covariance(mean_square) * (1 + room)
    cost = _largest_mean_square(covariance, matrices)
    while cost > mean_square:
        covariance = covariance * (cost / mean_square * _UP)
        cost = _largest_mean_square(covariance, matrices)
    value = float(weights @ np.diagonal(covariance))
    return RowNoise(covariance=covariance, mean_square=cost, gap=root.gap(value * mean_square))


def least_value(
    moments: Floats, mean_square: float, weights: Floats, *, kind: Kind = "fitted"
) -> float:
    """Bound the weighted total variance of `shared_noise` from below; of one matrix, its value."""
    root = _best_root(_undominated(_of_kind(moments, kind)), weights, np.full(len(weights), np.inf))
    return root.total**2 / mean_square


def accurate_noise(
    moments: Floats, stds: Floats, weights: Floats, *, kind: Kind = "fitted"
) -> RowNoise:
    r"""Find the covariance of least mean square among those that are accurate enough.

    $$\min \max_i \mathrm{tr}(\Sigma^{-1} M_i) \quad\text{with}\quad \Sigma_{jj} \le s_j^2
      \text{ for every } j \text{ with a finite } s_j$$

    Coordinates without a wanted accuracy get a small weight, so that their noise stays bounded.

    Args:
        moments: The matrices, positive semidefinite, shape (n, dim, dim).
        stds: Largest standard deviations, infinite where none is wanted, shape (dim,).
        weights: Weights of the variances without an accuracy, shape (dim,); only their ratios to
            one another and to those of the other coordinates count.
        kind: Any covariance, or the best diagonal one.

    Guarantee: no variance is above its limit, and `mean_square` was evaluated, rounded up. The gap
    is to the least mean square of all noise that is as accurate, and whose weighted variances
    without a limit have no larger total: $t^2$ over the sum of $b_j s_j^2$ and of those variances.
    """
    matrices, limits = _of_kind(moments, kind), stds**2
    has_limit = np.isfinite(limits)
    ratio = 1 / float((limits * weights)[has_limit].min()) / np.count_nonzero(has_limit)
    free = np.where(has_limit, 0.0, _FREE_SHARE * ratio * weights)
    root = _best_root(_undominated(matrices), free, limits)
    covariance = root.covariance(1.0)
    covariance = covariance * (float((limits / np.diagonal(covariance)).min()) / _UP)
    cost = _largest_mean_square(covariance, matrices)
    variances = np.where(has_limit, limits, np.diagonal(covariance))
    return RowNoise(
        covariance=covariance,
        mean_square=cost,
        gap=root.gap(cost * float(root.weights @ variances)),
    )


def sampling_weights(difference: RowDifference) -> Floats:
    """Invert the sampling variance of each statistic; it does not depend on the hidden share.

    The mean over all pairs of kinds. Rows that the other world lacks vary by coming and going. A
    statistic that is constant in the rows of the moments counts as nearly constant.
    """
    variances = []
    for first, second in difference.pairs.tolist():
        mean = difference.means[second] - difference.means[first]
        within = np.diagonal(difference.covs[first] + difference.covs[second])
        is_added = not (difference.means[first].any() or difference.covs[first].any())
        variances.append(within + mean**2 if is_added else within / 2 + mean**2 / 4)
    least = difference.spans**2 * _LEAST_VARIANCE
    return np.tile(1 / np.maximum(np.mean(variances, axis=0), least), difference.n_periods)


class Boxed(Protocol):
    """A difference that knows what one row can add."""

    @property
    def boxes(self) -> tuple[Floats, Floats]:
        """Public boxes, one of which holds what a row adds: low and high ends."""


def row_covariance(
    difference: Boxed,
    covariance: Floats,
    *,
    limit: float = ONE_PERSON,
    from_released_rows: bool,
) -> tuple[Floats, bool]:
    """Add what hiding one row takes, and round; also return whether anything was added.

    Something is added where exchanging one row would otherwise be seen (statistics that are
    constant, or follow from others, in the rows of the moments), and where noise is rounded up
    because it was fitted to the released rows.
    """
    raised = hiding_one_row(covariance, *difference.boxes, limit=limit)
    if from_released_rows:
        return _rounded(raised), True
    return raised, raised is not covariance


def hiding_one_row(
    covariance: Floats,
    low: Floats,
    high: Floats,
    *,
    absent: bool = False,
    limit: float = ONE_PERSON,
) -> Floats:
    r"""Add the noise that hides one row: `row_distance` is then at most `limit`.

    In units of r, the largest change of each coordinate by one row, the variance in every direction
    is raised to at least $\kappa$, and not where it is larger. What is added is positive
    semidefinite, so that a claim that is met stays met.

    Guarantee: the distance was evaluated at the result, and is at most `limit`; the covariance
    itself is returned where that holds for it. Some $\kappa$ is enough: a row's change x has $|x_j|
    \le r_j$, so that $x^\top \Sigma^{-1} x \le d / \kappa$, and `Precision.farthest` bounds it by
    no more.
    """
    check_above(0, limit=limit)

    if row_distance(covariance, low, high, absent=absent, enough=limit) <= limit:
        return covariance
    ends = np.vstack([low, high, *([np.zeros_like(low)] if absent else [])])
    spans = np.ptp(ends, axis=0)
    spans[spans == 0] = spans.max()
    values, axes = np.linalg.eigh(covariance / np.outer(spans, spans))

    def raised(least: float) -> Floats:
        root = spans[:, None] * axes * np.sqrt(np.maximum(least - values, 0.0))
        return np.asarray(covariance + root @ root.T)

    def distance(least: float) -> float:
        return row_distance(raised(least), low, high, absent=absent)

    enough = len(spans) / limit**2
    while (reached := distance(enough)) > limit:
        enough *= _FLOOR_WIDTH
    short, is_turn = max(float(values[0]), enough * _LEAST_FLOOR), True
    while enough > short * _FLOOR_WIDTH:
        # By turns, as much as if nothing but the floor counted, and half of what is left.
        guess = max(short, enough * (reached / limit) ** 2 * math.sqrt(_FLOOR_WIDTH))
        guess = guess if guess < enough else enough / _FLOOR_WIDTH
        trial = guess if is_turn and guess > short else math.sqrt(short * enough)
        is_turn, found = not is_turn, distance(trial)
        if found <= limit:
            enough, reached = trial, found
        else:
            short = trial
    return raised(enough)


class _Root(NamedTuple):
    r"""The square root of $B^{1/2} N B^{1/2}$, from which the closed form follows."""

    weights: Floats
    values: Floats
    """Eigenvalues of the root, raised where the noise would be singular."""
    axes: Floats
    least_total: float
    """Trace of the root, rounded down."""

    @classmethod
    def of(cls, moment: Floats, weights: Floats) -> "_Root":
        scales = np.sqrt(weights)
        squares, axes = np.linalg.eigh(scales[:, None] * moment * scales)
        rounding = len(weights) * UNIT_ROUNDOFF * float(np.abs(squares).max())
        values = np.sqrt(np.maximum(squares, 0.0))
        least_total = float(np.sqrt(np.maximum(squares - rounding, 0.0)).sum()) / _UP
        least = _LEAST_ROOT * (float(values[-1]) or 1.0)
        return cls(weights, np.maximum(values, least), axes, least_total)

    @property
    def total(self) -> float:
        return float(self.values.sum())

    @property
    def unweighted(self) -> Floats:
        """Axes in the units of the statistics, $B^{-1/2} V$."""
        return np.asarray(self.axes / np.sqrt(self.weights)[:, None])

    @property
    def weighted(self) -> Floats:
        return np.asarray(self.axes * np.sqrt(self.weights)[:, None])

    def covariance(self, mean_square: float) -> Floats:
        axes = self.unweighted
        covariance = (axes * (self.total / mean_square * self.values)) @ axes.T
        return np.asarray((covariance + covariance.T) / 2)

    def gap(self, cost: float) -> float:
        """Compare a mean square times a total variance with the least one, rounded up."""
        return max(0.0, cost / self.least_total**2 * _UP - 1)


def _best_root(moments: Floats, free: Floats, limits: Floats) -> _Root:
    """Find the multipliers and weights with the largest lower bound, and return their root."""
    if len(moments) == 1 and np.isinf(limits).all():
        return _Root.of(moments[0], free)
    return min(_ascent(moments, free, limits), key=lambda visited: visited[0])[1]


def _ascent(moments: Floats, free: Floats, limits: Floats) -> Iterator[tuple[float, _Root]]:
    r"""Climb to the largest lower bound; yield the gap and the root at every point.

    Maximises $2 \ln t(b, \lambda) - \sum_i \lambda_i - \sum_j b_j s_j^2$, which is concave, where
    the fixed weights `free` are added to b. The slopes by $\lambda_i$ and $b_j s_j^2$ are
    $\mathrm{tr}(\Sigma^{-1} M_i)$ and $\Sigma_{jj} / s_j^2$ for $\Sigma = \Sigma(b, \lambda)$, both
    over t; they are 1 at the maximum. A step is Newton's, with a barrier; where that needs too
    much memory, every share is multiplied by its slope.
    """
    named, n_moments = np.flatnonzero(np.isfinite(limits)), len(moments)
    shares = np.repeat([1 / n_moments, 1 / max(1, len(named))], [n_moments, len(named)])
    has_newton = len(shares) * len(free) ** 2 <= _MOST_VALUES
    barrier, least, since = _FIRST_BARRIER, math.inf, 0
    for _ in range(_MOST_STEPS):
        shares[:n_moments] /= shares[:n_moments].sum()
        weights = free.copy()
        weights[named] = shares[n_moments:] / limits[named]
        root = _Root.of(np.tensordot(shares[:n_moments], moments, 1), weights)
        axes = root.unweighted[named] / np.sqrt(limits[named])[:, None]
        inverse = (root.weighted / root.values) @ root.weighted.T
        by_moment = np.tensordot(moments, inverse, 2) / root.total
        by_limit = axes**2 @ root.values / root.total
        excess = by_limit.max(initial=0.0) - by_limit
        gap = float(by_moment.max() * (1 + shares[n_moments:] @ excess)) - 1
        yield gap, root
        least, since = (gap, 0) if gap < least else (least, since + 1)
        if least <= TOLERANCE or (has_newton and since > _PATIENCE):
            return
        slopes = np.concatenate([by_moment, by_limit])
        if not has_newton:
            shares = shares * slopes
            continue
        step = _newton_step(root, moments, axes, slopes, shares, barrier)
        length = min(1.0, _TO_BOUNDARY / max(float(-step.min()), _TO_BOUNDARY))
        shares = shares * (1 + length * step)
        if length > _LONG_STEP:
            barrier = max(barrier / 10, TOLERANCE / 4 / len(shares))


def _newton_step(
    root: _Root, moments: Floats, axes: Floats, slopes: Floats, shares: Floats, barrier: float
) -> Floats:
    r"""Compute Newton's step for the logarithms of the shares.

    With $s_a$ the eigenvalues of the root and $C_p$, in its axes, the derivative of its square by
    $\lambda_i$, or minus the one of $S B^{-1} S$ by $b_j$, t has the second derivatives
    $-\frac12 \sum_{ab} C_{p,ab} C_{q,ab} / (s_a s_b (s_a + s_b))$: $d\Sigma$ solves the Lyapunov
    equation $s_a d\Sigma_{ab} + d\Sigma_{ab} s_b = C_{ab}$.
    """
    values, bent = root.values, axes * root.values
    changes = np.concatenate(
        [root.weighted.T @ moments @ root.weighted, -bent[:, :, None] * bent[:, None, :]]
    )
    changes /= np.sqrt(np.outer(values, values) * (values[:, None] + values))
    changes = changes.reshape(len(shares), -1)
    curvature = changes @ changes.T / root.total + np.outer(slopes, slopes) / 2
    system = curvature * np.outer(shares, shares) + barrier * np.eye(len(shares))
    return np.linalg.solve(system, shares * (slopes - 1) + barrier)


def _of_kind(moments: Floats, kind: Kind) -> Floats:
    """Drop what diagonal noise does not see."""
    if kind == "diagonal":
        return np.array([np.diag(np.diagonal(moment)) for moment in moments])
    return np.asarray(moments)


def _undominated(moments: Floats) -> Floats:
    """Drop matrices below another one, whose constraint implies theirs."""
    sizes = np.sqrt(np.einsum("kii->i", moments))
    sizes[sizes == 0] = 1.0
    scaled = moments / np.outer(sizes, sizes)
    kept: list[int] = []
    for place in np.argsort(-np.einsum("kii->k", scaled), kind="stable").tolist():
        if not any(_is_below(scaled[place], scaled[other]) for other in kept):
            kept.append(place)
    return np.asarray(moments[kept])


def _is_below(moment: Floats, other: Floats) -> bool:
    """Whether a matrix is below another, up to rounding; only the speed depends on it."""
    rest = other - moment
    if np.diagonal(rest).min() < -_ROUNDING:
        return False
    return bool(np.linalg.eigvalsh(rest)[0] >= -_ROUNDING)


def _largest_mean_square(covariance: Floats, moments: Floats) -> float:
    """Evaluate the mean squares of all matrices; return the largest, rounded up."""
    largest = float(Precision.of(covariance).mean_squares(moments).max())
    if not 0 < largest < math.inf:
        raise CalibrationError(
            "no noise can be evaluated for moments that are 0, or singular up to rounding; raise "
            "them, as RowDifference.second_moment does"
        )
    return largest


def rounded_within(covariance: Floats, stds: Floats) -> Floats:
    """Round a covariance to two digits, and keep to the largest deviations, where they are finite.

    Deviations with a limit become the limit, which is public.

    >>> rounded_within(np.array([[4.0, 1.234], [1.234, 9.0]]), np.array([2.0, np.inf])).round(6)
    array([[4.      , 1.247525],
           [1.247525, 9.      ]])
    """
    own = [_two_digits_up(math.sqrt(value)) for value in np.diagonal(covariance)]
    coarse, room = _coarse_correlation(covariance, np.sqrt(np.diagonal(covariance)))
    kept = np.where(np.isfinite(stds), stds, own)
    return np.asarray(coarse / room * np.outer(kept, kept))


def _rounded(covariance: Floats) -> Floats:
    """Enlarge a covariance to two digits: deviations rounded up, correlations rounded."""
    stds = np.array([_two_digits_up(math.sqrt(value)) for value in np.diagonal(covariance)])
    coarse, _ = _coarse_correlation(covariance, stds)
    return np.asarray(coarse * np.outer(stds, stds))


def _coarse_correlation(covariance: Floats, stds: Floats) -> tuple[Floats, float]:
    """Round correlations, and raise the diagonal until none is lost; also return the diagonal."""
    correlation = covariance / np.outer(stds, stds)
    coarse = np.round(correlation / _DIGITS) * _DIGITS
    np.fill_diagonal(coarse, 1.0)
    lacking = float(np.linalg.eigvalsh(correlation - coarse)[-1])
    steps = max(0, math.ceil(lacking / _DIGITS + 1e-6))
    coarse += steps * _DIGITS * np.eye(len(stds))
    return coarse, 1 + steps * _DIGITS


def _two_digits_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit * (1 - 1e-12)) * unit
