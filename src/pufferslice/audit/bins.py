# SPDX-License-Identifier: Apache-2.0
"""Bins along a line: candidate edges, counts, bounds on probabilities, the best partition."""

import functools
from typing import Final, TypeVar

import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import small_kernel
from pufferslice.sensitivity.concentration import clopper_pearson

Numbers = TypeVar("Numbers", float, Floats)
"""One count or an array of them."""

ROUNDING: Final = 2.0**-32
"""Bound on how much the probability of a bin differs between outputs and real numbers.

A claim along slices is about real numbers. Outputs lie on a grid of 2^-44 noise standard deviations
and their projections are floats, so only values that close to an edge can change their bin.
"""

_EVEN_EDGES: Final = 16
_TAIL_EDGES: Final = 10
_FEWEST_BEYOND: Final = 3
"""Pilot outputs beyond the outermost edge of a distribution."""

_MOST_ATOMS: Final = 8
"""Repeated values of a pilot that get their own bin."""
_FEWEST_REPEATS: Final = 3
_SAME: Final = 2.0**-40
"""Share of a pilot's range within which its values count as the same."""


def candidate_edges(first: Floats, second: Floats) -> Floats:
    """Candidate edges between the bins of sorted pilots.

    Values at even ranks and, geometrically, towards both ends; both sides of the most repeated
    values; below all infinite values; and the middle of the widest remaining gap.
    """
    edges = np.unique(np.concatenate([_edges_of(values) for values in (first, second)]))
    if len(edges) < 2:
        return edges
    widest = int(np.diff(edges).argmax())
    return np.insert(edges, widest + 1, edges[widest] / 2 + edges[widest + 1] / 2)


def _edges_of(values: Floats) -> Floats:
    finite = values[: np.searchsorted(values, np.inf)]
    if not len(finite):
        return finite
    ranks = np.minimum(_edge_ranks(len(values)), len(finite) - 1)
    largest = max(abs(float(finite[0])), abs(float(finite[-1])))
    same = max(_SAME * float(finite[-1] - finite[0]), 8 * float(np.spacing(largest)))
    return np.concatenate([finite[ranks], _atom_edges(finite, same)])


def _atom_edges(values: Floats, same: float) -> Floats:
    """Edges on both sides of the values that repeat most, if too often for chance."""
    starts = np.flatnonzero(np.diff(values, prepend=-np.inf) > same)
    if len(starts) == len(values):
        return values[:0]
    counts = np.diff(starts, append=len(values))
    atoms = np.argsort(-counts, kind="stable")[:_MOST_ATOMS]
    atoms = atoms[counts[atoms] >= _FEWEST_REPEATS]
    first, last = values[starts[atoms]], values[starts[atoms] + counts[atoms] - 1]
    return np.concatenate([first - same, last + same])


@functools.lru_cache(maxsize=64)
def _edge_ranks(n_values: int) -> Integers:
    even = np.linspace(0, n_values - 1, _EVEN_EDGES + 2)[1:-1]
    tail = np.geomspace(min(_FEWEST_BEYOND, n_values), n_values / _EVEN_EDGES, _TAIL_EDGES)
    ranks = np.concatenate([even, tail, n_values - 1 - tail])
    return np.unique(np.clip(ranks.astype(np.int64), 0, n_values - 1))


def sorted_counts(edges: Floats, values: Floats) -> Integers:
    """`bin_counts` of values that are sorted."""
    ends = np.searchsorted(values, edges, side="right")
    return np.diff(ends, prepend=0, append=len(values)).astype(np.int64)


def bin_counts(edges: Floats, values: Floats) -> Integers:
    """Count the values in each of the bins (-inf, e_0], (e_0, e_1], ..., (e_last, inf)."""
    bins = np.searchsorted(edges, values, side="left")
    return np.bincount(bins, minlength=len(edges) + 1).astype(np.int64)


def lower_share(count: int, n_outputs: int, share: float) -> float:
    """Lower bound on a probability, except with probability `share` (Clopper-Pearson)."""
    return max(0.0, clopper_pearson(count, n_outputs, 2 * share)[0] - ROUNDING)


def upper_share(count: int, n_outputs: int, share: float) -> float:
    """Upper bound on a probability, except with probability `share` (Clopper-Pearson)."""
    return min(1.0, clopper_pearson(count, n_outputs, 2 * share)[1] + ROUNDING)


@small_kernel
def likely_lower(count: Numbers, n_outputs: float, quantile: float) -> Numbers:
    """A prediction of `lower_share` for choices, never a bound."""
    spread = quantile / 2 * np.sqrt(np.maximum(0.0, 1.0 - count / n_outputs))
    share: Numbers = np.maximum(0.0, np.sqrt(np.maximum(0.0, count)) - spread) ** 2 / n_outputs
    return share


@small_kernel
def likely_upper(count: Numbers, n_outputs: float, quantile: float) -> Numbers:
    """A prediction of `upper_share` for choices, never a bound."""
    spread = quantile / 2 * np.sqrt(np.maximum(0.0, 1.0 - count / n_outputs))
    share: Numbers = np.minimum(1.0, (np.sqrt(count + 0.75) + spread) ** 2 / n_outputs)
    return share


@small_kernel
def best_partition(
    expected: tuple[Floats, Floats],
    sizes: tuple[float, float],
    order: float,
    quantile: float,
    scale: tuple[float, float],
) -> tuple[float, Integers]:
    """Merge cells into neighbouring bins so that the sum of p^order q^(1-order) is likely largest.

    `expected` are the pilot's counts per cell of both distributions, `scale` how much larger the
    counts will be, `sizes` the numbers of counted outputs. The sum is additive over the bins, so
    dynamic programming finds the best. Returns it and, for each cell, whether a bin ends after it.
    """
    first, second = expected
    n_cells = len(first)
    best = np.full(n_cells + 1, -1.0)
    back = np.zeros(n_cells + 1, dtype=np.int64)
    best[0] = 0.0
    for stop in range(1, n_cells + 1):
        p = q = 0.0
        for start in range(stop - 1, -1, -1):
            p += first[start]
            q += second[start]
            low = likely_lower(p * scale[0], sizes[0], quantile)
            # Half a count more, because an empty pilot bin is not an empty bin.
            high = likely_upper(min((q + 0.5) * scale[1], sizes[1]), sizes[1], quantile)
            value = best[start]
            if low > 0:
                value += high * (low / high) ** order
            # Of equal values the fewer bins: each costs confidence.
            if value >= best[stop]:
                best[stop], back[stop] = value, start
    ends = np.zeros(n_cells, dtype=np.int64)
    stop = n_cells
    while stop > 0:
        ends[stop - 1] = 1
        stop = back[stop]
    return best[n_cells], ends
