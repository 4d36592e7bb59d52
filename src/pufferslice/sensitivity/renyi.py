# SPDX-License-Identifier: Apache-2.0
"""Rényi divergences, envelopes along a slice, and their aggregation over a profile."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.linalg import eigh
from scipy.special import log_ndtr, logsumexp, ndtr

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.checks import check_above, check_one_of
from pufferslice._core.kernels import small_kernel
from pufferslice.errors import ArgumentError

CLAIM_ORDERS: Final = tuple(1 + 1.4**k for k in range(-6, 26))
"""Orders tried where the direct formula ends; any order gives a valid epsilon."""

SLICED_NOTIONS: Final = ("average", "joint")

_ROOT_HALF: Final = math.sqrt(0.5)
_LARGEST_EXPONENT: Final = 700.0
_SMALL_MOMENT: Final = 2.0**-6
"""Log moment below which a difference would lose digits."""
_DELTA_ERROR: Final = 2.0**-49
_UP: Final = 1 + 2.0**-40
_NEAR_ZERO: Final = 0.25
_SERIES_TERMS: Final = 12


def gaussian_divergence(
    order: float,
    first: tuple[Floats, Floats],
    second: tuple[Floats, Floats],
    noise_variance: Floats | float = 0.0,
) -> Floats:
    r"""Divergence of N(m1, v1) from N(m2, v2) after noise; each is (mean, variance), elementwise.

    With $s_i^2 = v_i$ plus the noise variance,

    $$D_\alpha = \ln\frac{s_2}{s_1} + \frac{\ln(s_2^2/s_*^2)}{2(\alpha-1)}
      + \frac{\alpha (m_1-m_2)^2}{2 s_*^2}, \quad s_*^2 = \alpha s_2^2 + (1-\alpha) s_1^2$$

    Infinite where $s_*^2 \le 0$. Accurate also for orders next to 1 and for distributions that are
    nearly equal: the first two terms are functions of the relative excess $x = (s_1^2 -
    s_2^2)/s_2^2$ whose linear parts cancel, and are computed without them.

    >>> first, second = (np.array(1.0), np.array(1.0)), (np.array(0.0), np.array(1.5**2))
    >>> round(float(gaussian_divergence(4, first, second)), 12)
    0.575326899273
    """
    (mean_1, var_1), (mean_2, var_2) = first, second
    return gaussian_divergence_apart(order, mean_1 - mean_2, var_1 - var_2, var_2 + noise_variance)


def gaussian_divergence_apart(order: float, shift: Floats, wider: Floats, total: Floats) -> Floats:
    """Compute `gaussian_divergence` from differences of means and variances, which may be tiny.

    `total` is the variance of the second distribution after noise.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = wider / total
        mixed = total * (1 - (order - 1) * excess)
        divergence = _spread_divergence(order, excess) + order * shift**2 / (2 * mixed)
    return np.asarray(np.where(mixed > 0, divergence, np.inf))


def gaussian_divergence_nd(
    order: float,
    first: tuple[Floats, Floats],
    second: tuple[Floats, Floats],
    noise_variance: Floats | float = 0.0,
    error: float | None = None,
) -> float:
    r"""Compute `gaussian_divergence` for N(m1, S1) from N(m2, S2) in d dimensions.

    With $S_* = \alpha S_2 + (1-\alpha) S_1$ after noise: infinite unless $S_*$ is positive
    definite, else $\tfrac{\alpha}{2} (m_1-m_2)^T S_*^{-1} (m_1-m_2)$ plus the spread terms of the
    eigenvalues of $S_2^{-1}(S_1 - S_2)$. The noise is one variance, or one per coordinate. `error`
    is as in `GaussianSpectrum.of`.
    """
    return float(GaussianSpectrum.of(first, second, noise_variance, error).divergences(order))


class GaussianSpectrum(NamedTuple):
    r"""Pairs of Gaussians in coordinates in which the second is white and the first diagonal.

    There $S_*$ is $1 - (\alpha-1) x_i$, so that one decomposition gives the divergence of every
    order. Arrays have the shape of the pairs, and those of coordinates one more axis.
    """

    excesses: Floats
    """Eigenvalues x of $S_2^{-1}(S_1 - S_2)$."""
    squares: Floats
    """Squared coordinates of the distance of the means, rounded up."""
    white_error: Floats
    """Bound on the norm by which the second covariance is not white in these coordinates."""
    diagonal_error: Floats
    """Bound on the norm by which the excess is not diagonal."""

    @classmethod
    def of(
        cls,
        first: tuple[Floats, Floats],
        second: tuple[Floats, Floats],
        noise_variance: Floats | float = 0.0,
        error: float | None = None,
    ) -> "GaussianSpectrum":
        r"""Decompose one pair, each (mean, covariance), after noise.

        `error` bounds the relative error of each given number; the divergences are then upper
        bounds, whatever rounding did: for the computed coordinates V the norms of $V^\top S_2 V -
        I$ and $V^\top (S_1 - S_2) V - X$ are evaluated, and bounded. Without it they count as 0.
        """
        (mean_1, cov_1), (mean_2, cov_2) = first, second
        dim = len(mean_1)
        total = cov_2 + noise_variance * np.eye(dim)
        wider, shift = cov_1 - cov_2, mean_1 - mean_2
        try:
            excesses, axes = eigh(wider, total)
        except np.linalg.LinAlgError:
            return cls(np.zeros(dim), np.zeros(dim), np.array(math.inf), np.array(math.inf))
        if not wider.any():
            excesses = np.zeros(dim)
        turned, none = np.abs(axes.T @ shift), np.zeros(())
        if error is None:
            return cls(excesses, turned**2, none, none)
        size, rounding = np.abs(axes), 4 * (dim + 4) * UNIT_ROUNDOFF
        doubt = np.where(wider != 0, error * (np.abs(cov_1) + np.abs(cov_2)), 0.0)
        parts = [
            (total, np.eye(dim), (error + rounding) * np.abs(total)),
            (wider, np.diag(excesses), doubt + rounding * np.abs(wider)),
        ]
        white, diagonal = (
            (np.linalg.norm(axes.T @ matrix @ axes - wanted) + np.linalg.norm(size.T @ room @ size))
            * _UP
            for matrix, wanted, room in parts
        )
        turned = turned + (error + rounding) * (size.T @ np.abs(shift))
        return cls(excesses, turned**2 * _UP, np.array(white), np.array(diagonal))

    @classmethod
    def stacked(cls, spectra: "Sequence[GaussianSpectrum]") -> "GaussianSpectrum":
        """Join spectra of single pairs of one dimension."""
        return cls(*(np.array(part) for part in zip(*spectra, strict=True)))

    def divergences(self, order: float) -> Floats:
        r"""Compute the divergence of every pair.

        The true eigenvalues are at most $(|x| + e_2) / (1 - e_1)$ in size, by Weyl and Ostrowski,
        and $S_*$ is at least $1 - e_1 - (\alpha-1) (x + e_2)$.
        """
        a = order - 1
        white, diagonal = self.white_error[..., None], self.diagonal_error[..., None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mixed = 1 - white - a * (self.excesses + diagonal)
            longer = (np.abs(self.excesses) + diagonal) / (1 - white)
            turned = np.maximum(diagonal - np.abs(self.excesses), 0.0) / (1 - white)
            away = np.copysign(1.0, self.excesses)
            spread = _spread_divergence(order, away * longer)
            if turned.any():
                spread = np.maximum(spread, _spread_divergence(order, -away * turned))
            found = (spread + order / 2 * self.squares / mixed).sum(axis=-1)
            highest = (away * longer).max(axis=-1)
            is_finite = (mixed.min(axis=-1) > 0) & (a * highest < 1) & (self.white_error < 1)
        found = found * (1 + (self.white_error > 0) * _DELTA_ERROR)
        return np.where(is_finite & ~np.isnan(found), found, math.inf)


def _spread_divergence(order: float, excess: Floats) -> Floats:
    """-(1/2) ln(1+x) - ln(1-(order-1)x) / (2(order-1)), without the linear parts that cancel."""
    a = order - 1
    return np.asarray(-_log1p_minus(excess) / 2 - _log1p_minus(-a * excess) / (2 * a))


def _log1p_minus(x: Floats) -> Floats:
    """ln(1 + x) - x, accurate next to 0: ln(1 + x) = 2 (r + r^3/3 + ...) with r = x / (2 + x)."""
    x = np.asarray(x, dtype=np.float64)
    near = np.where(np.abs(x) < _NEAR_ZERO, x, 0.0)
    r = near / (2 + near)
    tail = np.zeros_like(r)
    for k in range(2 * _SERIES_TERMS + 1, 1, -2):
        tail = tail * r**2 + 1 / k
    series = -2 * r**2 / (1 - r) + 2 * r**3 * tail
    return np.asarray(np.where(np.abs(x) < _NEAR_ZERO, series, np.log1p(x) - x))


def gaussian_envelope(order: float, shift: Floats, noise_std: float) -> Floats:
    """Divergence of order `order` between N(shift, noise_std^2) and N(0, noise_std^2).

    Guarantee: along a slice whose W-infinity is at most `shift`, the divergence of the noisy
    outputs is at most this.
    Source: lemma:SRPP-envelope.
    """
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    with np.errstate(over="ignore"):
        return np.asarray(order * (shift / noise_std) ** 2 / 2)


@small_kernel
def log_moments(
    starts: Integers, gaps: Floats, weights: Floats | Integers, rate: float, margin: float
) -> Floats:
    """Compute per row ln of the weighted mean of exp(rate * (gap + margin)^2); gaps descend.

    Small moments are summed as exp(x) - 1, so that no digit of them is lost to the 1: those of
    small gaps, and those of large ones with hardly any weight.
    """
    result = np.empty(len(starts) - 1)
    for row in range(len(starts) - 1):
        top = (gaps[starts[row]] + margin) ** 2
        mass = total = 0.0
        if not rate * top < math.inf:
            result[row] = math.inf
            continue
        if rate * top >= 1:
            for entry in range(starts[row], starts[row + 1]):
                mass += weights[entry]
                total += weights[entry] * math.exp(rate * ((gaps[entry] + margin) ** 2 - top))
            result[row] = rate * top + math.log(total / mass)
            if result[row] > _SMALL_MOMENT or rate * top > _LARGEST_EXPONENT:
                continue
        mass = total = 0.0
        for entry in range(starts[row], starts[row + 1]):
            mass += weights[entry]
            total += weights[entry] * math.expm1(rate * (gaps[entry] + margin) ** 2)
        result[row] = math.log1p(total / mass)
    return result


@small_kernel
def row_deltas(
    starts: Integers,
    gaps: Floats,
    weights: Floats | Integers,
    margin: float,
    noise_std: float,
    epsilons: Floats,
) -> Floats:
    """Compute per row the weighted mean of the delta of N(r, 1) against N(0, 1) at its epsilon.

    r = (gap + margin) / noise_std. Rounded up by more than the float error of the difference of
    two probabilities.
    """
    result = np.empty(len(starts) - 1)
    for row in range(len(starts) - 1):
        epsilon = epsilons[row]
        if epsilon == math.inf:
            result[row] = _DELTA_ERROR
            continue
        scale = math.exp(epsilon) if epsilon < _LARGEST_EXPONENT else 0.0
        mass = total = 0.0
        for entry in range(starts[row], starts[row + 1]):
            mass += weights[entry]
            r = (gaps[entry] + margin) / noise_std
            if r > 0:
                near = math.erfc((epsilon / r - r / 2) * _ROOT_HALF)
                far = math.erfc((epsilon / r + r / 2) * _ROOT_HALF)
                total += weights[entry] * max(0.0, near - scale * far) / 2
        result[row] = total / mass + _DELTA_ERROR
    return result


def gaussian_delta(ratios: Floats, epsilon: Floats | float) -> Floats:
    """Delta of N(shift, std^2) against N(0, std^2), ratios = shift / std; elementwise."""
    ratios = np.abs(np.asarray(ratios, dtype=np.float64))
    if not np.all(np.asarray(epsilon) >= 0):
        raise ArgumentError(f"epsilon must be a number and at least 0, got {epsilon!r}")
    no_delta = (ratios == 0) | np.isposinf(epsilon)
    safe, epsilon = np.where(ratios == 0, 1.0, ratios), np.where(no_delta, 0.0, epsilon)
    direct = ndtr(safe / 2 - epsilon / safe) - np.exp(
        np.minimum(epsilon + log_ndtr(-safe / 2 - epsilon / safe), 0.0)
    )
    return np.asarray(np.where(no_delta, 0.0, np.maximum(direct, 0.0)))


def released_delta(delta: float, epsilon: float, implementation_delta: float) -> float:
    """Bound the delta of what is released at this epsilon, by noise that is not ideal.

    Each of the two distributions is at most `implementation_delta` away from its ideal one.

    >>> round(released_delta(1e-5, 0.0, 1e-6), 9)
    1.2e-05
    """
    added = (1 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * implementation_delta
    return min(1.0, delta + added)


def improved_term(order: float, delta: float) -> float:
    """Term c of `improved_epsilon_joint`: what converting to `delta` adds; may be negative."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def moment_rate(order: float, noise_std: float) -> float:
    """Rate c of the transport bound: order * (order - 1) / (2 * noise_std^2)."""
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    return order * (order - 1) / 2 / noise_std / noise_std


def transport_envelope(order: float, gaps: Floats, masses: Floats, noise_std: float) -> float:
    r"""Bound the divergence along one slice from the gaps between its quantiles.

    $$R = \frac{1}{\alpha-1}
      \ln \int \exp\Big(\frac{\alpha(\alpha-1)\,gap(t)^2}{2\sigma^2}\Big) dt$$

    Guarantee: never below the divergence of the noisy outputs, never above the worst-gap envelope.
    Needs: masses sum to 1. Reason: $\int p^\alpha q^{1-\alpha}$ is jointly convex, and both noisy
    distributions are mixtures of shifted Gaussians over the same t.

    >>> round(transport_envelope(2, np.array([10.0, 0.0]), np.array([0.25, 0.75]), 10.0), 12)
    0.357374019509
    """
    descending = np.argsort(-gaps)
    row = np.array([0, len(gaps)])
    rate = moment_rate(order, noise_std)
    moments = log_moments(row, gaps[descending], masses[descending], rate, 0.0)
    return float(moments[0]) / (order - 1)


def aggregate_average(costs: Floats, weights: Floats) -> Floats:
    """Average over the slices (last axis). Source: def:ave_srd."""
    _check_slices(costs, weights)
    return np.asarray(np.where(weights > 0, costs, 0.0) @ weights)


def aggregate_joint(order: float, costs: Floats, weights: Floats) -> Floats:
    """Compute the log-moment over the slices (last axis), in log space. Source: def:joint_srd.

    >>> float(aggregate_joint(2, np.array([1.0, 1.0]), np.array([0.5, 0.5])))
    1.0
    """
    _check_slices(costs, weights)
    a = order - 1
    has_weight = weights > 0
    exponents, shares = a * costs[..., has_weight], weights[has_weight] / weights[has_weight].sum()
    with np.errstate(over="ignore", invalid="ignore"):
        small = np.log1p(np.expm1(exponents) @ shares)
    large = logsumexp(exponents, b=shares, axis=-1)
    # Where exp does not overflow, the first has all digits, whatever the weight of a large cost.
    return np.asarray(np.where(exponents.max(axis=-1) < _LARGEST_EXPONENT, small, large) / a)


def _check_slices(costs: Floats, weights: Floats) -> None:
    if costs.shape[-1:] != weights.shape:
        raise ArgumentError(
            f"costs must have one entry per slice, {weights.size}; their shape is {costs.shape}"
        )


def aggregate(notion: str, order: float, costs: Floats, weights: Floats) -> Floats:
    """Apply `aggregate_average` or `aggregate_joint`, by the notion's name."""
    check_one_of(SLICED_NOTIONS, notion=notion)
    if notion == "average":
        return aggregate_average(costs, weights)
    return aggregate_joint(order, costs, weights)
