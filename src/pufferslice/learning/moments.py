# SPDX-License-Identifier: Apache-2.0
"""Moments of costs over a random number of records, in log space and without loss of digits."""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice.learning.differing import DifferingRecords

FEW_COUNTS: Final = 512
"""Most counts for which the cost of each is computed."""
_TOLERANCE: Final = 2.0**-20
"""Share of the cost that may come from bounding counts between two nodes, if there are more."""
_PARTS: Final = 4
"""Blocks that a block is split into."""
_FORGOTTEN: Final = 60.0
"""Nats below the moment at which nodes are not where the next search begins."""
_LOG_PRECISION: Final = 40.0
"""Nats of precision of a lattice sum for moments of order one; small ones need more."""
_ELEMENTS: Final = 2**18
"""Floats in one temporary array."""
_ROUNDINGS: Final = 2.0**-48
"""Bound on the relative rounding error of the exponents of a lattice sum."""
_LOG_ROOT_TAU: Final = 0.5 * math.log(2 * math.pi)

CostsOf = Callable[[Integers], Floats]
"""Costs for ascending counts; they do not fall."""


class CountCosts(NamedTuple):
    """Upper bounds on the costs of all counts, and where to start for a similar run."""

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
    log_sum = np.log(np.exp(terms - top).sum(axis=1)) + top[:, 0] + math.log(step)
    log_sum = np.logaddexp(log_sum, terms[:, -1] - math.log(slope))
    error = math.log(4) - precision + np.logaddexp(0, log_sum)
    return np.asarray(np.logaddexp(0, np.logaddexp(log_sum, error)))


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
    r"""An upper bound on the cost for each of `differing.counts`, tight where it matters.

    With few counts each is computed. With more, costs are computed at nodes, until bounding the
    others adds no more than a share of `tolerance` to the cost under `differing`. A count costs at
    most as much as the next larger node. With `is_convex`, $e^{(\alpha-1)\, cost(D)}$ is convex in
    D and lies below its chords. `ceiling` is another bound on the costs of all counts. With
    `limit`, the search ends when it is clear on which side of it the cost is, and how far away.
    """
    counts, n_counts = differing.counts.astype(np.float64), len(differing.counts)
    if n_counts <= FEW_COUNTS:
        return CountCosts(costs_of(differing.counts), np.arange(n_counts))
    logs, a = differing.log_probabilities, order - 1
    powers = 0 if ceiling is not None else 2 ** np.arange(n_counts.bit_length()) - 1
    wanted = np.union1d(np.append(powers, n_counts - 1), [] if start is None else start)
    wanted = wanted.astype(np.int64)
    values = np.full(n_counts, np.nan)
    while wanted.size:
        values[wanted] = a * costs_of(differing.counts[wanted])
        nodes = np.flatnonzero(~np.isnan(values))
        at_nodes = values[nodes]
        if is_convex:
            upper = _chords(counts, nodes, at_nodes)
        else:
            upper = np.repeat(at_nodes, np.diff(nodes, prepend=-1))
        if ceiling is not None:
            upper = np.minimum(upper, a * ceiling)
        if np.isinf(at_nodes).any():  # and the moment is infinite too
            break
        # Bounds on E exp(X) - 1, in logs: at the nodes, and on both sides between each two.
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing between neighbours
            excess = at_nodes + np.log(-np.expm1(-at_nodes))
            terms = logs + upper + np.log(-np.expm1(-upper))
            within, _ = _log_sums_between(logs, nodes)
            above, peaks = _log_sums_between(terms, nodes)
            below = within + excess[:-1]
            added = above + np.log(-np.expm1(np.minimum(below - above, 0)))
        added[~np.isfinite(above)] = -np.inf
        log_least, log_most = (
            float(np.logaddexp.reduce(np.append(logs[nodes] + excess, between)))
            for between in (below, above)
        )
        least, most = np.logaddexp(0, [log_least, log_most]) / a
        if limit is not None and 64 * (most - least) < max(least - limit, limit - most):
            break
        if is_convex:
            added = np.minimum(added, within + _log_chord_errors(counts, nodes, at_nodes))
        # The cost is a logarithm: its share of an error falls as the moment grows.
        share = min(tolerance * max(1.0, log_least), 0.5)
        split = np.flatnonzero(added > log_least + math.log(share / len(nodes)))
        starts, ends = nodes[split, None], nodes[split + 1, None]
        parts = starts + (ends - starts) * np.arange(1, _PARTS) // _PARTS
        parts = np.append(parts, peaks[split, None], axis=1)
        wanted = np.unique(parts[(starts < parts) & (parts < ends)])
    exponents = logs[nodes] + at_nodes
    return CountCosts(upper / a, nodes[exponents > exponents.max() - _FORGOTTEN])


def _chords(counts: Floats, nodes: Integers, exponents: Floats) -> Floats:
    """The logs of the chords of the exponentials between the nodes."""
    ends, lengths = counts[nodes], np.diff(nodes)
    before, after = (np.repeat(part, lengths) for part in (exponents[:-1], exponents[1:]))
    shares = (np.repeat(ends[1:], lengths) - counts[:-1]) / np.repeat(np.diff(ends), lengths)
    with np.errstate(invalid="ignore", divide="ignore"):  # infinite exponents
        chords = np.fmax(before, after + np.log1p(shares * np.expm1(before - after)))
    chords[np.isinf(after)] = np.inf
    chords = np.append(chords, exponents[-1])
    chords[nodes] = exponents
    return chords


def _log_chord_errors(counts: Floats, nodes: Integers, values: Floats) -> Floats:
    """Logs of bounds on how far a chord is above the exponential, between each two nodes.

    A convex function lies above the continuations of the chords beside.
    """
    widths = np.diff(counts[nodes])
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Slopes in units of the exponential at the right end.
        slopes = -np.expm1(-np.diff(values)) / widths
        before = np.append(0.0, slopes[:-1] * np.exp(-np.diff(values)[1:]))
        after = np.append(np.expm1(np.diff(values)[1:]) / widths[1:], np.inf)
        low, high = np.maximum(slopes - before, 0), np.maximum(after - slopes, 0)
        share = np.where(np.isfinite(after), high / (low + high), 1.0)
        return np.asarray(values[1:] + np.log(widths * low * share))


def _log_sums_between(logs: Floats, nodes: Integers) -> tuple[Floats, Integers]:
    """Logs of the sums of exponentials strictly between each two nodes, and where they peak."""
    inside = np.array(logs[:-1])
    inside[nodes[:-1]] = -np.inf
    starts, lengths = nodes[:-1], np.diff(nodes)
    tops = np.maximum.reduceat(inside, starts)
    is_top = np.flatnonzero(inside == np.repeat(tops, lengths))
    peaks = is_top[np.searchsorted(is_top, starts)]
    shifts = np.where(np.isfinite(tops), tops, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.add.reduceat(np.exp(inside - np.repeat(shifts, lengths)), starts)
        return np.asarray(shifts + np.log(sums)), peaks
