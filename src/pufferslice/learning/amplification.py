# SPDX-License-Identifier: Apache-2.0
r"""The divergence of one noisy step while the draw of the batch stays secret (Poisson sampling).

In units of the clip norm the worst pair of worlds is one-dimensional: each of the D differing
records, if drawn, pushes the sum by +1 in one world and by -1 in the other, so with noise z

$$P = \sum_k w_k N(k, z^2), \qquad Q = \sum_k w_k N(-k, z^2), \qquad w = Bin(D, q).$$

With t = x / z, $A(t) = \sum_k w_k e^{kt/z - k^2/(2z^2)}$ and $\ell = \ln A(t) - \ln A(-t)$,

$$\int P^\alpha Q^{1-\alpha} - 1 = \int_0^\infty \varphi(t) A(-t) e^{\alpha\ell}
  (1 - e^{-\alpha\ell}) (1 - e^{-(\alpha-1)\ell}) \, dt .$$

Every factor is positive and known to full relative precision, so a cost of 1e-12 is as accurate as
one of 1e6. The integrand is even and is summed on a lattice. As a polynomial in $e^{t/z}$, A has
real negative roots only: the binomial generating function has, and $e^{-k^2/(2z^2)}$ is a
multiplier sequence. So the integrand is analytic for $|Im\, t| < \pi z$, and the lattice sum is off
by at most $4 e^{-E}$ times the integral of $P^\alpha Q^{1-\alpha}$, with E as in `_lattice`. This
error, the tail and everything that the search leaves out are bounded and added.
"""

import bisect
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from scipy.special import gammaln

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_count
from pufferslice.errors import CalibrationError
from pufferslice.learning.sampling import Poisson, binomial_windows

SMALLEST_ORDER: Final = 1.001
"""Order below which the rounding of the integrand over order - 1 could exceed RELATIVE_ERROR."""

RELATIVE_ERROR: Final = 2.0**-38
"""Share added to every cost, far above the rounding of the sums: the result is an upper bound."""

_LOG_PRECISION: Final = 40.0
"""The E of the lattice error for costs of order one; small costs need more."""
_NEGLIGIBLE: Final = 60.0
"""Nats below the largest at which summands are left out; a billion of them are below rounding."""
_DENSE_POINTS: Final = 512
"""Points of a lattice beyond which it is searched for the part that matters."""
_BLOCK: Final = 8
"""Lattice points in the smallest block of the search; also the number of parts of a split block."""
_HUGE: Final = 2.0**36
"""Exponent above which a closed form is the bound: no digit of the lattice sum would be right."""
_SMALLEST_SHIFT: Final = 1e-140
"""Smallest mean shift, in units of the noise, whose square does not underflow."""
_ELEMENTS: Final = 2**15
"""Floats in one temporary array, so that it fits the cache."""
_LARGEST_SPREAD: Final = 50.0
"""Expected draws by which counts that share a lattice may differ."""
_MOST_TOGETHER: Final = 512
"""Most counts that share a lattice."""
_STRETCH: Final = 512
"""Lattice points that are summed at once for all of them."""
_LARGEST_PRODUCT: Final = 2**22
"""Elements of the matrices that are multiplied for them."""
_LARGEST_RATIO: Final = 200.0
"""Largest log ratio of weights that are multiplied by the same exponentials."""
_ROUNDINGS: Final = 2.0**-50
"""Bound on the relative rounding error of the exponents in a value of the integrand.

For the summand that matters, the log of its weight is at most the log of the sum and its tilt.
"""
_LOG_ROOT_TAU: Final = 0.5 * math.log(2 * math.pi)


def amplified_divergence(
    order: float, noise_multiplier: float, rate: float, n_differing: int
) -> float:
    r"""Divergence between two worlds of the noisy sum of one Poisson batch, for any gradients.

    $$D_\alpha\Big(\sum_k w_k N(k, z^2) \,\Big\|\, \sum_k w_k N(-k, z^2)\Big), \quad w = Bin(D, q)$$

    Guarantee: an upper bound for both orders of the pair (they are equal by symmetry), every
    dimension and every set of clipped gradients. It is within a relative 1e-11 of the divergence
    for orders up to some hundreds, and within the rounding error of the exponents for larger ones.
    If order (D/z)^2 exceeds 2^36, a closed form takes its place.
    Needs: `n_differing` records differ, each is drawn with probability `rate` independently of all
    else, gradients are clipped to norm 1 and the noise has standard deviation `noise_multiplier`;
    the draw and the size of the batch stay secret.
    Source: lem:renyi_mixture_shared for the common records; then Kahane's Gaussian interpolation:
    a divergence grows with inner products of gradients inside a world and falls with those across.

    >>> amplified_divergence(2, 1, 0.1, 1)
    0.04082727902...
    """
    check_count(0, n_differing=n_differing)
    check_above(0, noise_multiplier=noise_multiplier)
    design = Poisson(n_records=max(n_differing, 1), rate=rate)
    logs = design.discrepancy_log_probabilities(n_differing)
    return float(amplified_divergences(order, np.array([noise_multiplier]), logs)[0])


def amplified_divergences(order: float, noise_multipliers: Floats, log_weights: Floats) -> Floats:
    """`amplified_divergence` at each of many noise multipliers.

    Needs: `log_weights` are the logs of a binomial distribution, that of a Poisson design.
    """
    check_above(1, order=order)
    if order < SMALLEST_ORDER:
        raise CalibrationError(
            f"order must be at least {SMALLEST_ORDER:g} for amplified costs, got {order!r}; use a "
            "larger order, or log_moment"
        )
    multipliers = np.asarray(noise_multipliers, dtype=np.float64)
    for value in (multipliers.min(), multipliers.max()):  # NaN is both
        check_above(0, noise_multiplier=float(value))
    n_differing = len(log_weights) - 1
    if not n_differing:
        return np.zeros(multipliers.shape)
    mean = float(np.exp(log_weights) @ np.arange(n_differing + 1.0))
    if mean / float(multipliers.max()) < _SMALLEST_SHIFT:
        raise CalibrationError(
            f"a mean shift of {mean:g} under noise {multipliers.max():g} is too small to account; "
            "use a smaller noise multiplier"
        )
    ascending = np.argsort(multipliers)
    z = multipliers[ascending]
    log_excess = np.empty(len(z))
    with np.errstate(over="ignore"):
        start = int(np.count_nonzero(order * (n_differing / z) ** 2 > _HUGE))
    log_excess[:start] = [_log_bound(order, log_weights, float(value)) for value in z[:start]]
    while start < len(z):
        lattice = _lattice(order, n_differing, mean, float(z[start]), float(z[-1]))
        is_dense = lattice.n_points <= _DENSE_POINTS
        n_each = lattice.n_points * len(log_weights)
        chunk = slice(start, start + 1 + is_dense * _ELEMENTS // n_each)
        log_excess[chunk] = _log_excesses(order, log_weights, z[chunk], lattice)
        start = chunk.stop
    costs = np.empty(len(z))
    costs[ascending] = _costs(order, log_excess)
    return costs


def amplified_by_count(
    order: float, noise_multiplier: float, sampling: Poisson, counts: Integers
) -> Floats:
    """`amplified_divergence` for many ascending numbers of differing records.

    Neighbouring counts share a lattice and the exponentials on it: their sums differ only in the
    weights.
    """
    check_above(1, order=order)
    rate, results = sampling.rate, np.zeros(len(counts))
    first = int(np.searchsorted(counts, 1))
    while first < len(counts):
        reach = min(0.25, _LARGEST_SPREAD / (counts[first] * rate + 1))
        near = int(np.searchsorted(counts, counts[first] * (1 + reach), side="right"))
        n_counts, log_excess = min(near - first, _MOST_TOGETHER), None
        while n_counts and log_excess is None and rate < 1 and order >= SMALLEST_ORDER:
            group = counts[first : first + n_counts].astype(np.float64)
            with np.errstate(over="ignore"):
                is_huge = order * np.square(group[-1] / noise_multiplier) > _HUGE
            if not is_huge and group[0] * rate / noise_multiplier >= _SMALLEST_SHIFT:
                log_excess = _log_excesses_together(order, noise_multiplier, rate, group)
            n_counts = len(group) // 2
        if log_excess is None:
            logs = sampling.discrepancy_log_probabilities(int(counts[first]))
            costs = amplified_divergences(order, np.array([noise_multiplier]), logs)
        else:
            costs = _costs(order, log_excess)
        results[first : first + len(costs)] = costs
        first += len(costs)
    return results


def _costs(order: float, log_excess: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, log_excess) / (order - 1) * (1 + RELATIVE_ERROR))


class _Lattice(NamedTuple):
    """Points step, 2 step, ..., n_points step, in units of the noise."""

    step: float
    n_points: int
    log_error: float
    """Log of the error of the sum, relative to the integral of P^order Q^(1 - order)."""
    slope: float
    """Least fall of the log of the integrand per unit beyond the last point."""

    def with_errors(self, log_sum: Floats, log_bound_at_end: Floats) -> Floats:
        """The log of the sum times the step, plus its bounded errors: the tail, and the lattice."""
        log_sum = log_sum + math.log(self.step)
        with_tail = np.logaddexp(log_sum, log_bound_at_end - math.log(self.slope))
        return np.asarray(np.logaddexp(with_tail, self.log_error + np.logaddexp(0, with_tail)))


class _Values(NamedTuple):
    """The integrand at points t: one row per noise multiplier or count, one column per point."""

    log_bound: Floats
    """ln P^order Q^(1 - order) in t; never less than the log of the integrand."""
    log_integrand: Floats
    log_rising: Floats
    """The convex part of `log_bound`: order ln A(t)."""
    slope: Floats
    """Slope of the rest of `log_bound`, which is concave."""


def _log_bound(order: float, log_weights: Floats, multiplier: float) -> float:
    """A bound on the log of the integral, in closed form: the smaller of two.

    Joint convexity compares count by count. Convexity in P alone compares every count of P with
    the part of Q that has count 0, which is the better one if the noise is small.
    """
    a, possible = order - 1, np.isfinite(log_weights)
    logs, counts = log_weights[possible], np.flatnonzero(possible)
    with np.errstate(over="ignore", invalid="ignore"):
        exponents = order * a * (counts / multiplier) ** 2
        exponents[counts == 0] = 0.0  # an infinite factor times 0 would be NaN
        together = np.logaddexp.reduce(logs + 2 * exponents)
        apart = np.logaddexp.reduce(logs + exponents / 2) - a * log_weights[0]
    return float(min(together, apart))


def _lattice(
    order: float, n_differing: int, mean: float, smallest: float, largest: float
) -> _Lattice:
    r"""A lattice that is fine and long enough for all noise multipliers between two.

    On the line $Im\, t = a$ the integrand is at most $e^{g(a)}$ times as large, with
    $g = a^2/2 + (\alpha-1) D |\ln\cos(a/2z)|$ (each root of A turns by a/z), and a lattice of
    step h then errs by $2 e^{g(a) - 2\pi a/h}$. The best line is taken from a few.
    The log of the integrand has slope at most $(2\alpha-1) D/z - t$, which gives the length.
    """
    log_size = math.log(2 * order * (order - 1)) + 2 * math.log(mean / largest)
    precision = _LOG_PRECISION + max(0.0, -log_size)
    slope = math.sqrt(2 * precision)
    heights = min(0.99 * math.pi * smallest, 2 * slope) * np.linspace(0.02, 1, 50)
    growth = heights**2 / 2 - (order - 1) * n_differing * np.log(np.cos(heights / (2 * smallest)))
    step = float(np.max(2 * np.pi * heights / (precision + growth)))
    n_points = math.ceil(((2 * order - 1) * n_differing / smallest + slope) / step)
    return _Lattice(step, n_points, math.log(4) - precision, slope)


def _log_excesses(
    order: float, log_weights: Floats, multipliers: Floats, lattice: _Lattice
) -> Floats:
    """Logs of the integral minus 1; for one multiplier only if the lattice has to be searched."""

    def values_at(indices: Floats) -> _Values:
        return _values(order, log_weights, multipliers, lattice.step * indices)

    if lattice.n_points <= _DENSE_POINTS:
        values = values_at(np.arange(1, lattice.n_points + 1, dtype=np.float64))
        return lattice.with_errors(_log_sum(values.log_integrand), values.log_bound[:, -1])
    indices, log_dropped = _search(values_at, lattice)
    if not len(indices):  # huge orders leave no digits to sum: the cost is unknown
        return np.full_like(log_dropped, np.inf)
    values = values_at(np.append(indices, lattice.n_points))
    log_sum = np.logaddexp(_log_sum(values.log_integrand[:, :-1]), log_dropped)
    return lattice.with_errors(log_sum, values.log_bound[:, -1])


def _search(
    values_at: Callable[[Floats], _Values], lattice: _Lattice, log_slack: float = 0.0
) -> tuple[Floats, Floats]:
    """Lattice indices that can matter to some row, and logs of bounds on each sum of the others.

    Blocks of the lattice are bounded from their ends, then dropped or split, until they are small:
    no mode is missed, however far out and narrow it is. A convex part lies below its chord and a
    concave part below each of its tangents; both are straight, so their sum is largest at an end.
    """
    edges = np.linspace(0, lattice.n_points, _DENSE_POINTS // _BLOCK + 1).round()
    starts, ends = edges[:-1], edges[1:]
    log_best = log_dropped = np.array([-np.inf])
    while True:
        indices, (first, last) = np.unique([starts, ends], return_inverse=True)
        log_bound, log_integrand, rising, slope = values_at(indices)
        log_best = np.maximum(log_best, log_integrand.max(axis=1) + log_slack)
        n_each = ends - starts
        widths, falling = lattice.step * n_each, log_bound - rising
        from_first = rising[:, last] + falling[:, first] + slope[:, first] * widths
        from_last = rising[:, first] + falling[:, last] - slope[:, last] * widths
        bounds = np.minimum(
            np.maximum(log_bound[:, first], from_first), np.maximum(log_bound[:, last], from_last)
        )
        log_sums = bounds + np.log(n_each)
        keep = np.any(log_sums > log_best[:, None] - _NEGLIGIBLE, axis=0)
        dropped = np.logaddexp.reduce(log_sums[:, ~keep], axis=1, initial=-np.inf)
        log_dropped = np.logaddexp(log_dropped, dropped)
        starts, ends = starts[keep, None], ends[keep, None]
        if np.all(ends - starts <= _BLOCK):
            indices = starts + np.arange(1, _BLOCK + 1)
            return np.asarray(indices[indices <= ends]), log_dropped
        edges = (starts + (ends - starts) * (np.arange(_BLOCK + 1) / _BLOCK)).round()
        starts, ends = edges[:, :-1].ravel(), edges[:, 1:].ravel()
        starts, ends = starts[starts < ends], ends[starts < ends]


def _log_sum(logs: Floats) -> Floats:
    """Log of the sum of exponentials of each row; a row has a finite element."""
    top = logs.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(logs - top).sum(axis=1)) + top[:, 0])


def _integrand(
    order: float, shifts: Floats, points: Floats, log_low: Floats, log_difference: Floats
) -> tuple[Floats, Floats, Floats]:
    """Bounds on the log of P^order Q^(1 - order), logs of the integrand, and of the ratio P / Q.

    From the logs of A(-t) and A(t) - A(-t); `shifts` are the tilts of all differing records.
    """
    log_ratio = np.logaddexp(0, log_difference - log_low)
    log_bound = log_low + order * log_ratio - points**2 / 2 - _LOG_ROOT_TAU
    # Exponents of a far mode nearly cancel, but their rounding errors do not.
    sizes = 2 * shifts + 2 * np.abs(log_low) + log_ratio
    log_bound += _ROUNDINGS * (order * sizes + points**2)
    with np.errstate(divide="ignore"):  # at t = 0 the integrand is 0
        log_shares = [np.log(-np.expm1(-factor * log_ratio)) for factor in (order, order - 1)]
    return log_bound, log_bound + log_shares[0] + log_shares[1], log_ratio


def _values(order: float, log_weights: Floats, multipliers: Floats, points: Floats) -> _Values:
    """The integrand at ascending points, a row for each noise multiplier."""
    multipliers = multipliers[:, None]
    counts = np.arange(len(log_weights), dtype=np.float64)[:, None, None]
    terms = _Terms(log_weights[:, None, None] - (counts / multipliers) ** 2 / 2, counts)
    # A count of 0 adds nothing to the difference; beside it, rare counts would seem negligible.
    rising = _Terms(terms.logs[1:], terms.counts[1:])
    log_low, mean_low, log_difference = _sums(rising, terms, points / multipliers)
    shifts = (len(log_weights) - 1) * points / multipliers
    log_bound, log_integrand, log_ratio = _integrand(order, shifts, points, log_low, log_difference)
    return _Values(
        log_bound,
        log_integrand,
        order * (log_low + log_ratio),
        (order - 1) * mean_low / multipliers - points,
    )


class _Terms(NamedTuple):
    """Summands of A at t = 0, a range of counts along the first axis."""

    logs: Floats
    counts: Floats

    def that_matter(self, least: Floats, most: Floats) -> "_Terms":
        """Keep the summands that can matter at any tilt between two.

        Summands are log-concave in the count, and more tilt favours higher counts.
        """
        low, high = self.logs + least * self.counts, self.logs + most * self.counts
        first = (low >= low.max(axis=0) - _NEGLIGIBLE).argmax(axis=0).min()
        last = (high >= high.max(axis=0) - _NEGLIGIBLE)[::-1].argmax(axis=0).min()
        part = slice(int(first), len(self.logs) - int(last))
        return _Terms(self.logs[part], self.counts[part])


def _sums(rising: _Terms, falling: _Terms, tilts: Floats) -> tuple[Floats, Floats, Floats]:
    """The log of A(-t), the mean count in it, and the log of A(t) - A(-t).

    In pieces that fit the cache; each uses only the terms that matter to it.
    """
    rising = rising.that_matter(tilts[:, :1], tilts[:, -1:])
    falling = falling.that_matter(-tilts[:, -1:], -tilts[:, :1])
    longest = max(len(rising.logs), len(falling.logs))
    if longest * tilts.size > _ELEMENTS and tilts.shape[1] > 1:
        left, right = np.array_split(tilts, 2, axis=1)
        pairs = zip(_sums(rising, falling, left), _sums(rising, falling, right), strict=True)
        low, mean, difference = (np.concatenate(pair, axis=1) for pair in pairs)
        return low, mean, difference
    exponents = falling.logs - tilts * falling.counts
    top = exponents.max(axis=0)
    shares = np.exp(exponents - top)
    total = shares.sum(axis=0)
    log_low = top + np.log(total)
    mean_low = np.tensordot(falling.counts[:, 0, 0], shares, axes=1) / total
    shifts = tilts * rising.counts
    exponents = rising.logs + shifts
    top = exponents.max(axis=0)
    total = (np.exp(exponents - top) * -np.expm1(-2 * shifts)).sum(axis=0)  # all positive
    with np.errstate(divide="ignore"):  # at t = 0 there is no difference
        return log_low, mean_low, np.asarray(top + np.log(total))


def _log_excesses_together(
    order: float, multiplier: float, rate: float, counts: Floats
) -> Floats | None:
    """Logs of the integral minus 1 for neighbouring counts; None if matrices would be too large."""
    mean = float(counts[0]) * rate
    lattice = _lattice(order, int(counts[-1]), mean, multiplier, multiplier)
    indices = np.arange(1, lattice.n_points + 1, dtype=np.float64)
    log_sum = np.full(len(counts), -np.inf)
    if lattice.n_points > _DENSE_POINTS:
        log_size = math.log(2 * order * (order - 1)) + 2 * math.log(mean / multiplier)
        indices, log_sum = _search(
            lambda some: _rough_values(order, multiplier, rate, counts, lattice.step * some),
            lattice,
            min(0.0, log_size),
        )
    stretches = [
        lattice.step * part
        for stretch in np.split(indices, np.flatnonzero(np.diff(indices) > _BLOCK) + 1)
        for part in np.array_split(stretch, 1 + len(stretch) // _STRETCH)
    ]
    end = np.array([lattice.step * lattice.n_points])
    for points in (*stretches, end):
        values = _values_together(order, multiplier, rate, counts, points)
        if values is None:
            return None
        log_bound, log_integrand = values
        if points is not end:
            log_sum = np.logaddexp(log_sum, _log_sum(log_integrand))
    return lattice.with_errors(log_sum, log_bound[:, 0])


def _values_together(
    order: float, multiplier: float, rate: float, counts: Floats, points: Floats
) -> tuple[Floats, Floats] | None:
    """`log_bound` and `log_integrand` at neighbouring points, a row for each count.

    By products of matrices, with weights relative to those of the last count; in two halves if the
    weights are too different for that or the matrices too large, and None for a single such count.
    """
    tilts, sums = points / multiplier, []
    for sign in (-1, 1):
        low, high = sorted((sign * float(tilts[0]), sign * float(tilts[-1])))
        first = _edge(multiplier, rate, int(counts[0]), low, is_last=False)
        last = _edge(multiplier, rate, int(counts[-1]), high, is_last=True)
        k = np.arange(first, last + 1, dtype=np.float64)[:, None]
        fits = k.size * (len(counts) + len(points)) <= _LARGEST_PRODUCT
        if fits:
            logs = binomial_windows(counts, rate, first, last)
            logs += _log_weights(rate, counts, np.array(float(first)))[:, None]
            ratios, tilted = logs - logs[-1], sign * tilts * k - (k / multiplier) ** 2 / 2
            exponents = logs[-1][:, None] + tilted
            top = exponents.max(axis=0)
            peaks = (logs[0][:, None] + tilted).argmax(axis=0)
            nearest = exponents[peaks, np.arange(len(points))] - top
            fits = (
                min(nearest.min(), ratios[0, peaks].min()) >= -_LARGEST_RATIO
                and ratios.max() <= _LARGEST_RATIO
            )
        if not fits:
            if len(counts) == 1:
                return None
            halves = [
                _values_together(order, multiplier, rate, half, points)
                for half in np.array_split(counts, 2)
            ]
            if halves[0] is None or halves[1] is None:
                return None
            log_bound, log_integrand = map(np.concatenate, zip(*halves, strict=True))
            return log_bound, log_integrand
        summands = np.exp(exponents - top)
        if sign > 0:
            summands *= -np.expm1(-2 * tilts * k)
        sums.append(np.log(np.exp(ratios) @ summands) + top)
    factorials = 2.0**-50 * gammaln(counts + 1)[:, None]
    log_bound, log_integrand, _ = _integrand(
        order, counts[:, None] * tilts, points, sums[0], sums[1] + 3 * factorials
    )
    return log_bound + factorials, log_integrand + factorials


def _rough_values(
    order: float, multiplier: float, rate: float, counts: Floats, points: Floats
) -> _Values:
    r"""Bounds in place of values: a sum over k is between its largest summand and n times that.

    The second differences of the log of the summands are at most
    $-c = -1/z^2 - 4/(D + 2)$, so $n = 3 + \sqrt{2 \pi / c}$ is enough. As a function of t, the log
    of the largest is convex, with slope k / z. `log_integrand` is a lower bound.
    """
    counts, tilts = counts[:, None], points / multiplier
    at_high, log_high = _largest_summands(multiplier, rate, counts, tilts)
    at_low, log_low = _largest_summands(multiplier, rate, counts, -tilts)
    log_n = np.log(3 + np.sqrt(2 * np.pi / (multiplier**-2 + 4 / (counts + 2))))
    sizes = gammaln(counts + 1) + at_high * tilts + np.abs(log_low) + np.abs(log_high)
    slack = 8 * _ROUNDINGS * (order * sizes + points**2)
    rising = order * (log_high + log_n) + slack
    gaussian = points**2 / 2 + _LOG_ROOT_TAU
    return _Values(
        rising - (order - 1) * log_low - gaussian + slack,
        order * log_high - (order - 1) * (log_low + log_n) - gaussian - slack,
        rising,
        (order - 1) * at_low / multiplier - points,
    )


def _largest_summands(
    multiplier: float, rate: float, counts: Floats, tilts: Floats
) -> tuple[Floats, Floats]:
    """The k of the largest summand of A at each tilt, by bisection, and the log of that summand."""
    log_odds = math.log(rate) - math.log1p(-rate)
    low = np.zeros(np.broadcast_shapes(counts.shape, tilts.shape))
    high = low + counts
    for _ in range(int(counts[-1, 0]).bit_length() + 1):
        k = np.floor((low + high) / 2)
        with np.errstate(divide="ignore"):
            slopes = np.log((counts - k) / (k + 1)) + log_odds + tilts - (k + 0.5) / multiplier**2
        low, high = np.where(slopes > 0, k + 1, low), np.where(slopes > 0, high, k)
    k = np.minimum(low, counts)
    return k, _log_weights(rate, counts, k) + k * tilts - (k / multiplier) ** 2 / 2


def _log_weights(rate: float, counts: Floats, k: Floats) -> Floats:
    """Logs of binomial weights, up to the rounding of the log factorials."""
    ways = gammaln(counts + 1) - gammaln(k + 1) - gammaln(counts - k + 1)
    return np.asarray(ways + k * math.log(rate) + (counts - k) * math.log1p(-rate))


def _edge(multiplier: float, rate: float, n_differing: int, tilt: float, *, is_last: bool) -> int:
    """The first or last k whose summand of A at a tilt is not negligible, by bisection.

    At tilts above 0 the summand 0 does not count: A(t) - A(-t) has none.
    """
    log_odds = math.log(rate) - math.log1p(-rate) + tilt

    def slope(k: int) -> float:
        return math.log((n_differing - k) / (k + 1)) + log_odds - (k + 0.5) / multiplier**2

    def log_summand(k: int) -> float:
        ways = math.lgamma(k + 1) + math.lgamma(n_differing - k + 1)
        return k * log_odds - (k / multiplier) ** 2 / 2 - ways

    lowest = int(tilt > 0)
    top = max(lowest, bisect.bisect_left(range(n_differing), 0.0, key=lambda k: -slope(k)))
    least = log_summand(top) - _NEGLIGIBLE - 15
    if is_last:
        above = range(top, n_differing + 1)
        return top - 1 + bisect.bisect_right(above, -least, key=lambda k: -log_summand(k))
    return lowest + bisect.bisect_left(range(lowest, top), least, key=log_summand)
