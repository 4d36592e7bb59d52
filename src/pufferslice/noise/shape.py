# SPDX-License-Identifier: Apache-2.0
r"""The shape of Gaussian noise: the covariance of least total variance that still hides a secret.

For differences $d_i$ between the outputs under two secrets, a public limit c and a guard g, the
solver looks for

$$\min \mathrm{tr}(W \Sigma) \quad\text{where}\quad d_i^\top \Sigma^{-1} d_i \le c,\quad
  \Sigma \succeq g\, W^{-1}.$$

It climbs the dual by multiplicative steps. Any multipliers give a lower bound on the best total
variance, and any covariance, scaled up until the constraints hold, gives an upper one; the gap
between them is printed. No guarantee depends on the solver: a covariance is a public matrix, and
whoever uses it computes the cost of the noise again.

All coordinates are scaled ones. Inside, the weights are folded into the differences, the longest
difference has length 1 and the limit is 1.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, final

import attrs
import numpy as np
from scipy.linalg import solve_triangular

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers, locked, same
from pufferslice._core.checks import (
    check_above,
    check_at_least,
    check_count,
    check_finite,
    check_one_of,
    check_probabilities,
)
from pufferslice.errors import ArgumentError, CalibrationError

Kind = Literal["fitted", "diagonal"]

TOLERANCE: Final = 5e-4
MOST_STEPS: Final = 1_000

_KINDS: Final = ("fitted", "diagonal")
_POWER: Final = 2.5
"""Power of their constraint by which multipliers grow; up to 4 the iteration is stable, because the
derivative of a constraint in the logarithms of the multipliers has row sums of at most 1/2."""
_LEAST_MULTIPLIER: Final = 1e-16
"""Least multiplier, as a share of the largest; a multiplier of 0 could never grow again."""
_LEAST_RATIO: Final = 2.0**-40
"""Least ratio of two eigenvalues of a covariance or of weights; below it float64 cannot invert the
matrix."""
_FLOOR: Final = 2.0**-46
"""Positive guard that replaces a guard of 0 while the solver runs."""
_COARSE_GUARD: Final = 1e-5
"""Guard from which on eigenvalues of the squared differences are precise enough."""
_LARGEST_EXCESS: Final = 1 + 1e-3
"""Bound on the float error of a covariance that is not nearly singular."""
_SMALLEST, _LARGEST = 1e-290, 1e290
_NEWTON_STEPS: Final = 40
_GAUSSIAN_STEPS: Final = 121
_GAUSSIAN_LOOKS: Final = 10
"""Number of steps after which the noise is scaled to meet the limit, and the best is kept."""


@final
@attrs.frozen(kw_only=True)
class FittedShape:
    """A covariance of noise, and how far from the best one it may be."""

    covariance: Floats = attrs.field(converter=locked, eq=same)
    """Covariance: symmetric positive definite, shape (dim, dim), in scaled coordinates."""
    gap: float | None
    """Total variance over a lower bound on the least one, minus 1; None if no bound is known."""
    steps: int


def factor(covariance: Floats) -> tuple[Floats, float]:
    """Factor a covariance as s^2 L L', with L lower triangular with a positive diagonal and s > 0.

    The trace of L L' is the dimension, so that s^2 is the mean variance of the coordinates.

    >>> factor([[8.0, 0.0], [0.0, 0.0]])
    Traceback (most recent call last):
    pufferslice.errors.CalibrationError: the covariance of the noise is singular or nearly so...
    """
    matrix = _square(locked(covariance), "covariance")
    top = float(np.abs(matrix).max())
    share = float(np.trace(matrix / (top or 1.0))) / len(matrix)
    if not (top > 0 and share > 0):
        raise _singular()
    return _cholesky(matrix / top / share), math.sqrt(top) * math.sqrt(share)


def fit_points(
    differences: Floats,
    *,
    limit: float,
    guard: float,
    weights: Floats | None = None,
    kind: Kind = "fitted",
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> FittedShape:
    r"""Fit the covariance of least $\mathrm{tr}(W \Sigma)$ to distributions that are points.

    Args:
        differences: Rows $d_i$, shape (n_differences, dim).
        limit: c in $d_i^\top \Sigma^{-1} d_i \le c$.
        guard: g in $\Sigma \succeq g W^{-1}$: a shift of length r along any axis, in the metric of
            the weights, is hidden as well if g = r^2 / c.
        weights: W, positive definite, shape (dim, dim); the identity if None.
        kind: Any covariance, or the best diagonal one; the latter needs diagonal weights.
        tolerance: The gap at which the solver stops.
        most_steps: The solver stops after this many steps at the latest.

    >>> shape = fit_points([[3.0, 0.0], [2.0, 2.0]], limit=0.5, guard=0.0, tolerance=1e-9)
    >>> shape.covariance.round(4).tolist()
    [[19.3945, 3.6678], [3.6678, 9.6471]]
    """
    rows = _rows(differences)
    check_above(0, limit=limit)
    rows = rows[np.any(rows != 0, axis=1)]
    return _fit(
        rows,
        log_masses=np.zeros(len(rows)),
        starts=np.arange(len(rows)),
        rate=1.0,
        limit=limit,
        guard=guard,
        weights=_weights(weights, rows.shape[1], kind),
        kind=kind,
        tolerance=tolerance,
        most_steps=most_steps,
    )


def fit_coupled(
    differences: Sequence[Floats],
    masses: Sequence[Floats],
    *,
    order: float,
    epsilon: float,
    guard: float,
    weights: Floats | None = None,
    kind: Kind = "fitted",
    tolerance: float = TOLERANCE,
    most_steps: int = MOST_STEPS,
) -> FittedShape:
    r"""Fit the covariance of least $\mathrm{tr}(W \Sigma)$ to distributions coupled piece by piece.

    Each instance has differences $d_i$ with masses $m_i$, and the constraint is
    $\ln \sum_i m_i \exp(a\, d_i^\top \Sigma^{-1} d_i) \le (\alpha - 1)\epsilon$ with
    $a = \alpha(\alpha-1)/2$. The gap is to the best noise for these couplings and this bound.

    >>> shape = fit_coupled([[[2.0], [0.0]]], [[0.5, 0.5]], order=2.0, epsilon=1.0, guard=0.0)
    >>> round(4 / shape.covariance.item(), 3)  # ln(2 e - 1)
    1.49
    """
    limit, rate = _squared_distance(order, epsilon), (order - 1) * epsilon
    if not len(differences) == len(masses) > 0:
        raise ArgumentError(
            "differences and masses must have one entry for each instance, at least one; got "
            f"{len(differences)} and {len(masses)}"
        )
    tables = [_rows(table) for table in differences]
    dim = tables[0].shape[1]
    if any(table.shape[1] != dim for table in tables):
        raise ArgumentError(
            f"differences must have the same dimension in every instance, the first has {dim}"
        )
    shares = [locked(values) for values in masses]
    for table, values in zip(tables, shares, strict=True):
        check_probabilities(length=len(table), masses=values)
    keep = [values > 0 for values in shares]
    tables = [table[rows] for table, rows in zip(tables, keep, strict=True)]
    shares = [values[rows] for values, rows in zip(shares, keep, strict=True)]
    differ = [i for i, table in enumerate(tables) if np.any(table != 0)]
    sizes = [len(tables[i]) for i in differ]
    return _fit(
        np.concatenate([np.empty((0, dim)), *(tables[i] for i in differ)]),
        log_masses=np.log(np.concatenate([np.empty(0), *(shares[i] for i in differ)])),
        starts=np.cumsum([0, *sizes])[: len(sizes)],
        rate=rate,
        limit=limit,
        guard=guard,
        weights=_weights(weights, dim, kind),
        kind=kind,
        tolerance=tolerance,
        most_steps=most_steps,
    )


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the result is checked
def fit_gaussian(
    shifts: Floats,
    covariances: Floats,
    *,
    order: float,
    epsilon: float,
    guard: float,
    weights: Floats | None = None,
    kind: Kind = "fitted",
) -> FittedShape:
    r"""Fit a covariance to Gaussian distributions, whose spread hides a part of the differences.

    With $T = \Sigma + (S_1 + S_2)/2$ and $E = S_1 - S_2$, the divergence is close to
    $\frac{\alpha}{2} \big(\Delta^\top T^{-1} \Delta + \frac12 \mathrm{tr}(T^{-1} E T^{-1} E)\big)$.
    The multipliers climb as for points, with this form as the constraint. There is no lower bound,
    so no gap; and the caller must scale the result until the exact divergence is small enough.

    Args:
        shifts: Differences of the means, shape (n_instances, dim).
        covariances: Of both distributions, shape (n_instances, 2, dim, dim).
        order: The order of the divergence.
        epsilon: The divergence that is wanted.
        guard: As in `fit_points`.
        weights: As in `fit_points`.
        kind: As in `fit_points`.
    """
    rows, limit = _rows(shifts), _squared_distance(order, epsilon)
    dim = rows.shape[1]
    both = locked(covariances)
    if both.shape != (len(rows), 2, dim, dim):
        raise ArgumentError(
            f"covariances must have shape ({len(rows)}, 2, {dim}, {dim}), got {both.shape}"
        )
    check_finite(covariances=both)
    values = np.linalg.eigvalsh(both / (np.abs(both).max() or 1.0))
    if np.any(values[..., 0] < -1e-9 * np.abs(values).max(axis=-1)):
        raise ArgumentError("covariances must be symmetric and have no negative eigenvalue")
    check_at_least(0, guard=guard)
    half, inverse_half, top_weight = _weights(weights, dim, kind)
    # Weights folded in, and everything divided by the square of the largest difference.
    top = max(float(np.abs(rows).max()), math.sqrt(float(np.abs(both[:, 0] - both[:, 1]).max())))
    unit = top / math.sqrt(limit) * (top / math.sqrt(limit))
    if top == 0:
        return _scaled_back(np.eye(dim), guard / top_weight, inverse_half, gap=None, steps=0)
    _check_unit(unit)
    rows = rows / top @ half
    both = half @ (both / unit) @ half
    if not np.isfinite(both).all():
        raise _singular()
    differ = (both[:, 0] - both[:, 1]) / math.sqrt(limit)
    mean = (both[:, 0] + both[:, 1]) / 2
    floor = max(guard / unit / top_weight, _FLOOR)
    multipliers = np.full(len(rows), 1 / len(rows))
    eye = np.eye(dim)
    noise, best, least = floor * eye, floor * eye, math.inf
    for step in range(_GAUSSIAN_STEPS):
        forms, bends = _gaussian_forms(rows, differ, mean + noise)
        if step % _GAUSSIAN_LOOKS == 0:
            scale = _gaussian_scale(rows, differ, mean, noise)
            if scale * float(np.trace(noise)) < least:
                best, least = scale * noise, scale * float(np.trace(noise))
        if step == 0 and forms.max() <= 1:  # the distributions and the guard are enough
            break
        multipliers = multipliers * forms**_POWER
        multipliers = np.maximum(multipliers, _LEAST_MULTIPLIER * multipliers.max())
        target = np.einsum("k,kij->ij", multipliers, rows[:, :, None] * rows[:, None, :] + bends)
        shares = multipliers / multipliers.sum()
        hidden = np.einsum("k,kij->ij", shares, mean)
        if kind == "diagonal":
            target, hidden = np.diag(np.diag(target)), np.diag(np.diag(hidden))
        values, vectors = np.linalg.eigh(target)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        values, vectors = np.linalg.eigh(root - hidden)
        noise = (vectors * np.maximum(values, floor)) @ vectors.T
    return _scaled_back(best, unit, inverse_half, gap=None, steps=_GAUSSIAN_STEPS)


@final
@attrs.frozen(kw_only=True)
class _Problem:
    """Differences of length at most 1 with a limit of 1, piece by piece, and weights folded in."""

    rows: Floats
    log_masses: Floats
    starts: Integers
    """Position of the first piece of each instance."""
    rate: float
    """Rate (order - 1) epsilon: the exponent of a form, and the limit of a log moment."""
    guard: float
    is_diagonal: bool

    @property
    def sizes(self) -> Integers:
        return np.diff(self.starts, append=len(self.rows))

    def spread(self, values: Floats) -> Floats:
        """Repeat the value of each instance for each of its pieces."""
        return values if self.is_points else np.repeat(values, self.sizes)

    def total(self, values: Floats) -> Floats:
        """Sum over the pieces of each instance."""
        return values if self.is_points else np.add.reduceat(values, self.starts)

    @property
    def is_points(self) -> bool:
        return len(self.starts) == len(self.rows)

    def normalised(self, logs: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of the totals of each instance, and of the pieces divided by them."""
        if self.is_points:
            return logs, np.zeros_like(logs)
        top = np.maximum.reduceat(logs, self.starts)
        totals = top + np.log(self.total(np.exp(logs - self.spread(top))))
        return totals, logs - self.spread(totals)

    def tilted(self, forms: Floats) -> tuple[Floats, Floats]:
        """Return log moments of the instances over the rate, and log masses after tilting."""
        moments, log_shares = self.normalised(self.log_masses + self.rate * forms)
        return moments / self.rate, log_shares

    def spectrum(self, pieces: Floats) -> tuple[Floats, Floats, Floats]:
        """Return root eigenvalues of sum u_i d_i d_i', their axes, and safe lower roots.

        A lower root is below the exact one, whatever was rounded.
        """
        n_rows, dim = self.rows.shape
        rounding = (n_rows + 16 * dim) * UNIT_ROUNDOFF
        if self.is_diagonal:
            roots = np.sqrt(pieces @ (self.rows * self.rows))
            return roots, np.eye(dim), roots * (1 - rounding)
        if self.guard >= _COARSE_GUARD * math.sqrt(float(pieces.sum())):
            values, axes = np.linalg.eigh((self.rows.T * pieces) @ self.rows)
            lower = np.maximum(values - rounding * float(pieces.sum()), 0.0)
            return np.sqrt(np.maximum(values, 0.0)), axes, np.sqrt(lower)
        scaled = np.sqrt(pieces)[:, None] * self.rows
        if n_rows > dim:
            scaled = np.asarray(np.linalg.qr(scaled, mode="r"))
        _, found, axes = np.linalg.svd(scaled)
        roots = np.pad(found, (0, dim - len(found)))
        return roots, axes.T, np.maximum(roots - rounding * float(found[0]), 0.0)

    def largest_share(self, forms: Floats) -> float:
        """Find nearly the largest x at which every log moment of x * forms is within its limit.

        Newton from the right on a convex function. It vanishes at 0, so that an x divided by its
        value there is safe at every step.
        """
        x = 1 / float(self.total(np.exp(self.log_masses) * forms).max())
        for _ in range(_NEWTON_STEPS):
            moments, log_shares = self.tilted(x * forms)
            worst = int(moments.argmax())
            value = float(moments[worst])
            if value <= 1 + 8 * UNIT_ROUNDOFF or self.is_points:
                break
            x -= (value - 1) / float(self.total(np.exp(log_shares) * forms)[worst])
        return x / max(1.0, value)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the result is checked
def _fit(
    rows: Floats,
    *,
    log_masses: Floats,
    starts: Integers,
    rate: float,
    limit: float,
    guard: float,
    weights: tuple[Floats, Floats, float],
    kind: Kind,
    tolerance: float,
    most_steps: int,
) -> FittedShape:
    """Bring the problem to unit size, solve it, and check and scale back the covariance."""
    check_at_least(0, guard=guard)
    check_above(0, tolerance=tolerance)
    check_count(1, most_steps=most_steps)
    half, inverse_half, top_weight = weights
    dim = len(half)
    top = float(np.abs(rows).max(initial=0.0))
    rows = rows / (top or 1.0) @ half
    length = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    reach = top * length / math.sqrt(limit)
    unit = reach * reach
    if len(rows):
        _check_unit(unit)
        problem = _Problem(
            rows=rows / length,
            log_masses=log_masses,
            starts=starts,
            rate=rate,
            guard=guard / unit / top_weight,
            is_diagonal=kind == "diagonal",
        )
        if not _guard_suffices(problem):
            covariance, lower, steps = _solve(problem, tolerance, most_steps)
            covariance = covariance * _excess(problem, covariance)
            gap = _rounded_up(float(np.trace(covariance)), lower)
            return _scaled_back(covariance, unit, inverse_half, gap=gap, steps=steps)
    return _scaled_back(
        np.eye(dim), guard / top_weight, inverse_half, gap=_rounded_up(1.0, 1.0), steps=0
    )


def _guard_suffices(problem: _Problem) -> bool:
    if not problem.guard > 0:
        return False
    forms = np.einsum("ij,ij->i", problem.rows, problem.rows) / problem.guard
    return bool(problem.tilted(forms)[0].max() <= 1)


def _excess(problem: _Problem, covariance: Floats) -> float:
    """Bound what the float error of the matrix adds to the largest log moment; at least 1."""
    lower = _cholesky(covariance)
    whitened = solve_triangular(lower, problem.rows.T, lower=True, check_finite=False)
    excess = float(problem.tilted((whitened**2).sum(axis=0))[0].max())
    if not excess <= _LARGEST_EXCESS:
        raise _singular()
    return max(1.0, excess)


def _solve(problem: _Problem, tolerance: float, most_steps: int) -> tuple[Floats, float, int]:
    """Return the best covariance of all steps, the best lower bound, and the number of steps."""
    n_instances, dim = len(problem.starts), problem.rows.shape[1]
    multipliers = np.full(n_instances, 1 / n_instances)
    log_shares = problem.log_masses
    floor = max(problem.guard, _FLOOR)
    # Nothing is rounded where an instance is one piece.
    several = 8.0 * (problem.spread(problem.sizes.astype(np.float64)) > 1)
    # How far shares move towards the tilted masses. A large rate turns log moments into maxima and
    # pieces into points; then the logarithms of shares move about as those of multipliers do.
    largest_damping = min(1.0, 2 * _POWER / (problem.rate + 2))
    lower, upper, last, damping = dim * problem.guard, math.inf, -math.inf, largest_damping
    covariance = np.full((dim, dim), math.nan)
    for step in range(1, most_steps + 1):
        steps = step
        shares = np.exp(log_shares)
        # For any shares, a log moment within its limit keeps the mean form under the shares within
        # this (Donsker and Varadhan).
        ratios = log_shares - problem.log_masses
        rounding = several * UNIT_ROUNDOFF * (1 + np.abs(ratios) + np.abs(log_shares))
        limits = 1 + problem.total(shares * (ratios + rounding)) / problem.rate
        roots, axes, lower_roots = problem.spectrum(problem.spread(multipliers) * shares)
        change = _best_scale(roots, problem.guard, float(multipliers @ limits))
        multipliers, roots = multipliers * change, roots * math.sqrt(change)
        least = _least_lagrangian(lower_roots * math.sqrt(change), problem.guard)
        bound = least - float(multipliers @ limits)

        variances = np.maximum(roots, floor)
        forms = (problem.rows @ axes) ** 2 @ (1 / variances)
        share = min(1.0, problem.largest_share(forms))
        raised = variances / share
        if not math.isfinite(bound + float(raised.sum())):
            break
        lower = max(lower, bound)
        if float(raised.sum()) < upper:
            upper, covariance = float(raised.sum()), (axes * raised) @ axes.T
        if upper <= lower * (1 + tolerance):
            break

        damping = damping / 2 if bound < last else damping * 1.1
        damping = min(max(damping, largest_damping / 64), largest_damping)
        last = bound
        multipliers = multipliers * (problem.total(shares * forms) / limits) ** _POWER
        multipliers = np.maximum(multipliers, _LEAST_MULTIPLIER * multipliers.max())
        if not problem.is_points:
            _, tilted = problem.tilted(share * forms)
            _, log_shares = problem.normalised((1 - damping) * log_shares + damping * tilted)
    return covariance, lower, steps


def _least_lagrangian(roots: Floats, guard: float) -> float:
    """Least trace of S + N S^-1 over all S that are at least the guard; N has these roots."""
    below = roots < guard
    return float((2 * roots[~below]).sum() + (guard + roots[below] ** 2 / (guard or 1.0)).sum())


def _best_scale(roots: Floats, guard: float, price: float) -> float:
    """Find the factor of all multipliers with the best lower bound; no less than a quarter.

    The bound is concave in the factor t, with slope sum n_j / max(sqrt(t n_j), g) less the price.
    The slope is looked at where each root in turn reaches the guard, the largest root first.
    """
    if guard == 0:
        return (float(roots.sum()) / price) ** 2
    falling = np.sort(roots)[::-1]
    above, squares = np.cumsum(falling), falling**2 / guard
    below = np.append(np.cumsum(squares[:0:-1])[::-1], 0.0)
    n_above = int(np.count_nonzero(above * falling / guard + below >= price))
    if n_above == 0:
        return 0.25
    return max(0.25, float(above[n_above - 1] / (price - below[n_above - 1])) ** 2)


def _rounded_up(upper: float, lower: float) -> float:
    """Compute the gap between two bounds, no smaller than without rounding."""
    if not (lower > 0 and math.isfinite(upper / lower)):
        raise _singular()
    return upper / lower * (1 + 2.0**-44) - 1 + 2.0**-44


def _scaled_back(
    covariance: Floats, unit: float, inverse_half: Floats, *, gap: float | None, steps: int
) -> FittedShape:
    """Return the covariance in the caller's coordinates, checked to be positive definite."""
    matrix = inverse_half @ covariance @ inverse_half
    matrix = (matrix + matrix.T) / 2 * unit
    if not (np.isfinite(matrix).all() and np.diag(matrix).min() > _SMALLEST):
        raise _singular()
    factor(matrix)
    return FittedShape(covariance=matrix, gap=gap, steps=steps)


def _cholesky(covariance: Floats) -> Floats:
    """Compute the lower factor of a matrix whose entries are about 1."""
    if not np.isfinite(covariance).all():
        raise _singular()
    values = np.linalg.eigvalsh(covariance)
    if not values[0] >= _LEAST_RATIO * values[-1]:
        raise _singular()
    return np.asarray(np.linalg.cholesky(covariance))


def _singular() -> CalibrationError:
    return CalibrationError(
        "the covariance of the noise is singular or nearly so, or beyond the range of floats: there"
        " would be no noise along some direction. Ask for a larger guard, or scale the query"
    )


def _check_unit(unit: float) -> None:
    if not _SMALLEST < unit < _LARGEST:
        raise _singular()


def _rows(differences: Floats) -> Floats:
    rows = locked(differences)
    if rows.ndim != 2 or rows.size == 0:
        raise ArgumentError(
            f"differences must have shape (n, dim), both at least 1; got {rows.shape}"
        )
    check_finite(differences=rows)
    return rows


def _squared_distance(order: float, epsilon: float) -> float:
    """Squared distance of two points, in noise deviations, whose divergence is epsilon."""
    check_above(1, order=order)
    check_above(0, epsilon=epsilon)
    return 2 * epsilon / order


def _square(matrix: Floats, name: str) -> Floats:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ArgumentError(f"{name} must have shape (dim, dim), got {matrix.shape}")
    check_finite(**{name: matrix})
    scaled = matrix / (np.abs(matrix).max() or 1.0)
    if np.abs(scaled - scaled.T).max() > 1e-12:
        raise ArgumentError(f"{name} must be symmetric")
    return matrix


def _weights(weights: Floats | None, dim: int, kind: Kind) -> tuple[Floats, Floats, float]:
    """Return W^(1/2), W^(-1/2) of the weights over the largest weight, and that weight."""
    check_one_of(_KINDS, kind=kind)
    if weights is None:
        return np.eye(dim), np.eye(dim), 1.0
    matrix = _square(locked(weights), "weights")
    if len(matrix) != dim:
        raise ArgumentError(f"weights must have shape ({dim}, {dim}), got {matrix.shape}")
    if kind == "diagonal" and np.any(matrix != np.diag(np.diag(matrix))):
        raise ArgumentError(
            "weights must be diagonal for a diagonal shape; use kind 'fitted' for other weights"
        )
    top = float(np.abs(matrix).max())
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2 / (top or 1.0))
    if not values[0] > _LEAST_RATIO * values[-1]:
        raise ArgumentError(
            "weights must be positive definite, the smallest eigenvalue at least "
            f"{_LEAST_RATIO:.0e} of the largest"
        )
    return (axes * np.sqrt(values)) @ axes.T, (axes / np.sqrt(values)) @ axes.T, top


def _gaussian_forms(rows: Floats, differ: Floats, totals: Floats) -> tuple[Floats, Floats]:
    """Return each instance's constraint, and E T^-1 E, which its differing spread asks for."""
    solved = np.linalg.solve(totals, differ)
    shifted = np.linalg.solve(totals, rows[:, :, None])[:, :, 0]
    bent = np.einsum("kij,kji->k", solved, solved) / 2
    return np.einsum("ki,ki->k", rows, shifted) + bent, differ @ solved


def _gaussian_scale(rows: Floats, differ: Floats, mean: Floats, noise: Floats) -> float:
    """Find nearly the least factor, at least 1, of the noise that keeps the constraints."""
    low, high = 1.0, 1.0
    while _gaussian_forms(rows, differ, mean + high * noise)[0].max() > 1:
        low, high = high, high * 4
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        within = _gaussian_forms(rows, differ, mean + middle * noise)[0].max() <= 1
        low, high = (low, middle) if within else (middle, high)
    return high
