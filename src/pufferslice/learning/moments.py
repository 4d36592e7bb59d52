# SPDX-License-Identifier: Apache-2.0
"""Moments of costs over a random number of records, in log space and with no digit lost."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice.learning.differing import DifferingRecords

FEW_COUNTS: Final = 512
"""Up to so many counts, each has its cost computed."""
_TOLERANCE: Final = 2.0**-20
"""For more of them: what share of the cost may come from bounding those between two nodes."""
_PARTS: Final = 4
"""In how many blocks a block is split."""
_FORGOTTEN: Final = 60.0
"""Nodes so many nats below the moment are not where the next search begins."""
_LOG_PRECISION: Final = 40.0
"""Of a lattice sum for moments of order one; small ones ask for more."""
_ELEMENTS: Final = 2**18
"""Floats in one temporary array."""
_ROUNDINGS: Final = 2.0**-48
"""More than the relative rounding error of the exponents of a lattice sum."""
_LOG_ROOT_TAU: Final = 0.5 * math.log(2 * math.pi)

CostsOf = Callable[[Integers], Floats]
"""Costs for ascending counts; they do not fall."""


class CountCosts(NamedTuple):
    """Upper bounds on the costs of all counts, and where to begin for a similar run."""

    costs: Floats
    nodes: Integers
    """Positions of the counts that matter."""


def log_mean_exp(log_probabilities: Floats, exponents: Floats) -> Floats:
    """The log of E exp(X) over the first axis, for exponents that are not negative.

    From the positive terms of E[exp(X) - 1], so that a result of 1e-15 has all its digits.

    >>> float(log_mean_exp(np.log([0.5, 0.5]), np.array([0.0, 2e-15])))
    1e-15
    """
    with np.errstate(divide="ignore", over="ignore"):  # log 0 is an impossible or a free count
        terms = log_probabilities + exponents + np.log(-np.expm1(-exponents))
        top = terms.max(axis=0)
        top = np.where(np.isfinite(top), top, 0.0)
        return np.asarray(np.logaddexp(0, top + np.log(np.exp(terms - top).sum(axis=0))))


def binomial_log_moments(n_trials: Floats, chances: Floats, scale: float) -> Floats:
    r"""Upper bounds on $\ln E\, e^{c^2 K^2 / 2}$ for K ~ Bin(n, p) and c = `scale`.

    $$E\, e^{c^2 K^2/2} = \int \varphi(g) (1 - p + p e^{cg})^n \, dg$$

    is summed on a lattice of step h. The integrand is entire, and at most $e^{a^2/2}$ times as
    large on the line Im g = a; so the sum is off by a share of at most $4 e^{-2 \pi^2 / h^2}$. That
    is added, like the tail. Excesses over 1 are summed, so that small moments keep their digits.
    """
    sizes = scale**2 / 2 * (n_trials * chances) * (1 + (n_trials - 1) * chances)
    precision = _LOG_PRECISION + max(0.0, -math.log(float(sizes.min())))
    step, slope = math.pi * math.sqrt(2 / precision), math.sqrt(2 * precision)
    n_points = math.ceil((float(n_trials.max()) * scale + slope) / step)
    if len(n_trials) > 1 and len(n_trials) * n_points > _ELEMENTS:
        halves = zip(np.array_split(n_trials, 2), np.array_split(chances, 2), strict=True)
        return np.concatenate([binomial_log_moments(n, p, scale) for n, p in halves])
    points = step * np.arange(1, n_points + 1, dtype=np.float64)
    terms = _log_excesses(n_trials[:, None], chances[:, None], scale * points)
    terms -= points**2 / 2 + _LOG_ROOT_TAU
    terms += _ROUNDINGS * (n_trials[:, None] * (scale * points) + points**2)
    top = terms.max(axis=1, keepdims=True)
    found = np.log(np.exp(terms - top).sum(axis=1)) + top[:, 0] + math.log(step)
    found = np.logaddexp(found, terms[:, -1] - math.log(slope))
    error = math.log(4) - precision + np.logaddexp(0, found)
    return np.asarray(np.logaddexp(0, np.logaddexp(found, error)))


def _log_excesses(n_trials: Floats, chances: Floats, tilts: Floats) -> Floats:
    """The log of A(t)^n + A(-t)^n - 2, for A(t) = 1 - p + p e^t."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        rising = n_trials * np.logaddexp(np.log1p(-chances), np.log(chances) + tilts)
        falling = n_trials * np.log1p(chances * np.expm1(-tilts))
        far = rising + np.log1p(np.exp(falling - rising) - 2 * np.exp(-rising))
        # Near: e^m cosh d - 1 for the mean m and half the difference d of the exponents.
        rising = n_trials * np.log1p(chances * np.expm1(tilts))
        mean = n_trials / 2 * np.log1p(4 * chances * (1 - chances) * np.sinh(tilts / 2) ** 2)
        half = (rising - falling) / 2
        near = np.log(2 * (np.expm1(mean) * np.cosh(half) + 2 * np.sinh(half / 2) ** 2))
    return np.asarray(np.where(rising > 1, far, near))


def costs_by_count(
    costs_of: CostsOf,
    order: float,
    differing: DifferingRecords,
    *,
    is_convex: bool = False,
    ceiling: Floats | None = None,
    start: Integers | None = None,
    tolerance: float = _TOLERANCE,
    limit: float | None = None,
) -> CountCosts:
    r"""An upper bound on the cost for each of `differing.counts`, sharp where it matters.

    With few counts each is computed. With more, costs are computed at nodes, until bounding the
    others adds no more than a share of `tolerance` to the cost under `differing`. A count has at
    most the cost of the next larger node. With `is_convex`, $e^{(\alpha-1)\, cost(D)}$ is convex in
    D and lies below its chords. `ceiling` bounds the costs of all counts from elsewhere. With
    `limit`, the search ends when it is clear on which side of it the cost is, and how far from it.
    """
    counts, n_counts = differing.counts.astype(np.float64), len(differing.counts)
    if n_counts <= FEW_COUNTS:
        return CountCosts(costs_of(differing.counts), np.arange(n_counts))
    ends = (0, n_counts - 1) if ceiling is not None else _powers_of_two(n_counts)
    wanted = np.union1d(ends, () if start is None else start).astype(np.int64)
    values = np.full(n_counts, np.nan)
    while wanted.size:
        values[wanted] = (order - 1) * costs_of(differing.counts[wanted])
        known = np.flatnonzero(~np.isnan(values))
        upper = (_chords if is_convex else _steps)(counts, known, values[known])
        if ceiling is not None:
            upper = np.minimum(upper, (order - 1) * ceiling)
        if np.isinf(values[known]).any():  # and the moment with it, whatever is between
            break
        bounds = _Bounds.of(differing.log_probabilities, known, values[known], upper)
        least, most = np.logaddexp(0, [bounds.log_least, bounds.log_most]) / (order - 1)
        if limit is not None and 64 * (most - least) < max(least - limit, limit - most):
            break
        added = bounds.log_added
        if is_convex:
            added = np.minimum(added, bounds.log_within + _log_chord_errors(counts, known, values))
        wanted = _inside(added, bounds, known, tolerance)
    return CountCosts(upper / (order - 1), _that_matter(values, known, differing))


def _steps(_counts: Floats, known: Integers, exponents: Floats) -> Floats:
    """The exponent of the next larger node."""
    return np.repeat(exponents, np.diff(known, prepend=-1))


def _chords(counts: Floats, known: Integers, exponents: Floats) -> Floats:
    """The logs of chords of the exponentials."""
    ends, lengths = counts[known], np.diff(known)
    before, after = (np.repeat(part, lengths) for part in (exponents[:-1], exponents[1:]))
    shares = (np.repeat(ends[1:], lengths) - counts[:-1]) / np.repeat(np.diff(ends), lengths)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite exponents
        chords = np.fmax(before, after + np.log1p(shares * np.expm1(before - after)))
    chords[np.isinf(after)] = np.inf
    chords = np.append(chords, exponents[-1])
    chords[known] = exponents
    return chords


def _log_chord_errors(counts: Floats, known: Integers, exponents: Floats) -> Floats:
    """Logs of at most what a chord is above the exponential, between each two nodes.

    A convex function lies above the chords beside, as far as they are continued.
    """
    values, widths = exponents[known], np.diff(counts[known])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Slopes in units of the exponential at the right end.
        slopes = -np.expm1(-np.diff(values)) / widths
        before = np.append(0.0, slopes[:-1] * np.exp(-np.diff(values)[1:]))
        after = np.append(np.expm1(np.diff(values)[1:]) / widths[1:], np.inf)
        low, high = np.maximum(slopes - before, 0), np.maximum(after - slopes, 0)
        share = np.where(np.isfinite(after), high / (low + high), 1.0)
        return np.asarray(values[1:] + np.log(widths * low * share))


class _Bounds(NamedTuple):
    """Bounds on E exp(X) - 1 in logs, and by how much they differ between the nodes."""

    log_least: float
    log_most: float
    log_within: Floats
    """Probabilities strictly between each two nodes."""
    log_added: Floats
    peaks: Integers
    """Positions at which the upper bound is largest there."""

    @classmethod
    def of(cls, logs: Floats, known: Integers, exponents: Floats, upper: Floats) -> "_Bounds":
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing between neighbours
            sure = exponents + np.log(-np.expm1(-exponents))
            terms = logs + upper + np.log(-np.expm1(-upper))
            within, _ = _log_sums_between(logs, known)
            above, peaks = _log_sums_between(terms, known)
            below = within + sure[:-1]
            added = above + np.log(-np.expm1(np.minimum(below - above, 0)))
        added[~np.isfinite(above)] = -np.inf
        least = np.logaddexp.reduce(np.append(logs[known] + sure, below))
        most = np.logaddexp.reduce(np.append(logs[known] + sure, above))
        return cls(float(least), float(most), within, added, peaks)


def _inside(added: Floats, bounds: _Bounds, known: Integers, tolerance: float) -> Integers:
    """Positions between nodes that leave too much open."""
    # The cost is a logarithm: its share of an error falls as the moment grows.
    share = min(tolerance * max(1.0, bounds.log_least), 0.5)
    split = np.flatnonzero(added > bounds.log_least + math.log(share / len(known)))
    starts, ends = known[split, None], known[split + 1, None]
    parts = starts + (ends - starts) * np.arange(1, _PARTS) // _PARTS
    parts = np.append(parts, bounds.peaks[split, None], axis=1)
    return np.unique(parts[(starts < parts) & (parts < ends)])


def _that_matter(values: Floats, known: Integers, differing: DifferingRecords) -> Integers:
    """The nodes that are worth beginning with for a similar run."""
    exponents = differing.log_probabilities[known] + values[known]
    return np.asarray(known[exponents > exponents.max() - _FORGOTTEN])


def _powers_of_two(n_counts: int) -> Integers:
    """The last position, and those below it at distances that double from the first one."""
    return np.unique([*(2 ** np.arange(n_counts.bit_length()) - 1), n_counts - 1])


def _log_sums_between(logs: Floats, known: Integers) -> tuple[Floats, Integers]:
    """Logs of the sums of exponentials strictly between each two nodes, and where they peak."""
    inside = np.array(logs[:-1])
    inside[known[:-1]] = -np.inf
    starts, lengths = known[:-1], np.diff(known)
    tops = np.maximum.reduceat(inside, starts)
    is_top = np.flatnonzero(inside == np.repeat(tops, lengths))
    peaks = is_top[np.searchsorted(is_top, starts)]
    shifts = np.where(np.isfinite(tops), tops, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.add.reduceat(np.exp(inside - np.repeat(shifts, lengths)), starts)
        return np.asarray(shifts + np.log(sums)), peaks
