# SPDX-License-Identifier: Apache-2.0
"""Exact gap tables of empirical laws: every law is sorted once along every direction."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel
from pufferslice.gaps.tables import GapTables
from pufferslice.laws import EmpiricalLaw, equal_laws
from pufferslice.parallel import Progress, in_threads, silent
from pufferslice.slicing import project

DIRECTIONS_PER_BLOCK: Final = 8
"""Rows sorted together; blocks of 8 to 16 were the fastest, and they bound the memory."""

FINEST_DIGITS: Final = 8
"""Binary digits kept when a gap is rounded up: a relative width of at most 1/256."""

OCTAVES: Final = 24
"""Gaps below 2^-OCTAVES of the worst are rounded up to that."""

_MOST_ENTRIES: Final = 2**24
_OCTAVES_SEEN: Final = 7
_MANTISSA: Final = 52
_UNIT_ROUNDOFF: Final = 2.0**-53
_RUN: Final = 8
_RANKS_PER_BLOCK: Final = 4096
_UNIT_MASSES: Final[Integers] = np.empty(0, dtype=np.int64)
"""Stands for a mass of 1 at every gap."""


class LawPair(NamedTuple):
    """One instance: the positions of its two laws in a list of laws."""

    first: int
    second: int


def gap_tables(
    laws: Sequence[EmpiricalLaw],
    pairs: Sequence[LawPair],
    directions: Floats,
    progress: Progress = silent,
) -> GapTables:
    """The law of |F^-1(t) - G^-1(t)| for every pair of laws along every direction.

    Guarantee: along each slice, the tabulated gap is, for every t, at least the true gap: values
    are rounded up, and the float error of the projection is added.
    Source: lem:empirical_Winfty_1d, and for unequal sizes the merged break points.
    """
    digits = _digits(len(pairs) * len(directions), laws)
    largest = max(float(np.sqrt((law.outputs**2).sum(axis=1).max())) for law in laws)
    extras = _projection_error(directions, largest)
    all_scales = [_scales(laws[pair.first], laws[pair.second]) for pair in pairs]

    def block(start: int) -> list[tuple[Floats, Integers]]:
        rows = slice(start, start + DIRECTIONS_PER_BLOCK)
        sides = [_sorted_side(law, directions[rows]) for law in laws]
        scratch = _Scratch.of(laws, digits)
        return [
            scratch.tabulated(*_gaps((sides[first], sides[second]), scales, row, extra, scratch))
            for row, extra in enumerate(extras[rows])
            for (first, second), scales in zip(pairs, all_scales, strict=True)
        ]

    starts = range(0, len(directions), DIRECTIONS_PER_BLOCK)
    return _assembled(in_threads(block, starts, progress), laws, pairs)


def matching_tables(
    laws: Sequence[EmpiricalLaw], pairs: Sequence[LawPair], directions: Floats
) -> GapTables:
    """The law of ||X - Y|| under the monotone coupling along each direction, for every pair.

    Each of them is a coupling in all dimensions, so each bounds the unsliced cost.
    """
    digits = _digits(len(pairs) * len(directions), laws)

    def matching(row: int) -> list[tuple[Floats, Integers]]:
        projected = (law.outputs @ directions[row] for law in laws)
        orders = [np.argsort(values, kind="stable") for values in projected]
        scratch = _Scratch.of(laws, digits)
        if len({(law.is_uniform, law.total) for law in laws}) == 1 and laws[0].is_uniform:
            matched = _rank_distances(laws, pairs, orders)
            return [scratch.tabulated(distances, _UNIT_MASSES) for distances in matched]
        return [scratch.tabulated(*_distances(laws, pair, orders, scratch)) for pair in pairs]

    return _assembled(in_threads(matching, range(len(directions))), laws, pairs)


class _Side(NamedTuple):
    """One law along a block of directions: sorted values, and counts in the same order."""

    values: Floats
    counts: Integers
    is_uniform: bool

    def counts_of(self, row: int) -> Integers:
        return self.counts if self.is_uniform else self.counts[row]


class _Scratch(NamedTuple):
    """Buffers of one thread, sized once for the largest pair."""

    gaps: Floats
    masses: Integers
    histogram: Integers
    digits: int

    @classmethod
    def of(cls, laws: Sequence[EmpiricalLaw], digits: int) -> "_Scratch":
        longest = 2 * max(law.n_samples for law in laws)
        return cls(
            gaps=np.empty(longest),
            masses=np.empty(longest, dtype=np.int64),
            histogram=np.zeros(OCTAVES * 2**digits + 2, dtype=np.int64),
            digits=digits,
        )

    def tabulated(self, gaps: Floats, masses: Integers) -> tuple[Floats, Integers]:
        return _tabulate(gaps, masses, _MANTISSA - self.digits, self.histogram)


def _sorted_side(law: EmpiricalLaw, directions: Floats) -> _Side:
    values = project(directions, law.outputs)
    if law.is_uniform:
        values.sort(axis=1)
        return _Side(values, law.counts, is_uniform=True)
    order = np.argsort(values, axis=1, kind="stable")
    return _Side(np.take_along_axis(values, order, axis=1), law.counts[order], is_uniform=False)


def _gaps(
    pair: tuple[_Side, _Side], scales: tuple[int, int], row: int, extra: float, scratch: _Scratch
) -> tuple[Floats, Integers]:
    a, b = (side.values[row] for side in pair)
    if scales == (1, 1) and all(side.is_uniform for side in pair):
        _subtract(a, b, extra, scratch.gaps)
        return scratch.gaps[: len(a)], _UNIT_MASSES
    first, second = (side.counts_of(row) for side in pair)
    n = _merge((a, b), (first, second), scales, extra, (scratch.gaps, scratch.masses))
    return scratch.gaps[:n], scratch.masses[:n]


def _rank_distances(
    laws: Sequence[EmpiricalLaw], pairs: Sequence[LawPair], orders: list[Integers]
) -> Floats:
    """Distances between rows of the same rank, all pairs at once, a block of ranks at a time.

    Each law is gathered once per block instead of once per pair, and the block stays in the cache.
    """
    n = laws[0].n_samples
    distances = np.empty((len(pairs), n))
    for start in range(0, n, _RANKS_PER_BLOCK):
        ranks = slice(start, start + _RANKS_PER_BLOCK)
        rows = [law.outputs[order[ranks]] for law, order in zip(laws, orders, strict=True)]
        for pair, row in zip(pairs, distances, strict=True):
            _row_distances(rows[pair.first], rows[pair.second], row[ranks])
    return distances


def _distances(
    laws: Sequence[EmpiricalLaw], pair: LawPair, orders: list[Integers], scratch: _Scratch
) -> tuple[Floats, Integers]:
    first, second = laws[pair.first], laws[pair.second]
    n = _merge_rows(
        (first.outputs, orders[pair.first], first.counts),
        (second.outputs, orders[pair.second], second.counts),
        _scales(first, second),
        (scratch.gaps, scratch.masses),
    )
    return scratch.gaps[:n], scratch.masses[:n]


def _scales(first: EmpiricalLaw, second: EmpiricalLaw) -> tuple[int, int]:
    """What the counts of each law are multiplied by to have one common denominator."""
    common = math.gcd(first.total, second.total)
    return second.total // common, first.total // common


def _digits(n_rows: int, laws: Sequence[EmpiricalLaw]) -> int:
    """Binary digits that keep all tables together within `_MOST_ENTRIES`."""
    longest = 2 * max(law.n_samples for law in laws)
    digits = FINEST_DIGITS
    while digits > 0 and n_rows * min(longest, _OCTAVES_SEEN * 2**digits) > _MOST_ENTRIES:
        digits -= 1
    return digits


def _projection_error(directions: Floats, largest: float) -> Floats:
    """Bound on the float error of the difference of two projections; none along an axis."""
    n_terms = np.count_nonzero(directions, axis=1)
    on_axis = (n_terms == 1) & (np.abs(directions).max(axis=1) == 1.0)
    return np.asarray(np.where(on_axis, 0.0, 2 * (n_terms + 1) * _UNIT_ROUNDOFF * largest))


def _assembled(
    blocks: list[list[tuple[Floats, Integers]]],
    laws: Sequence[EmpiricalLaw],
    pairs: Sequence[LawPair],
) -> GapTables:
    rows = [row for block in blocks for row in block]
    lengths = np.array([len(gaps) for gaps, _ in rows])
    totals = [math.lcm(laws[p.first].total, laws[p.second].total) for p in pairs]
    return GapTables(
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        gaps=np.concatenate([gaps for gaps, _ in rows]),
        counts=np.concatenate([counts for _, counts in rows]),
        totals=np.array(totals, dtype=np.int64),
        equal=np.array([equal_laws(laws[p.first], laws[p.second]) for p in pairs]),
    )


@kernel
def _subtract(a: Floats, b: Floats, extra: float, gaps: Floats) -> None:
    for i in range(len(a)):
        gaps[i] = abs(a[i] - b[i]) + extra


@kernel
def _row_distances(a: Floats, b: Floats, distances: Floats) -> None:
    for i in range(len(a)):
        square = 0.0
        for k in range(a.shape[1]):
            square += (a[i, k] - b[i, k]) ** 2
        distances[i] = math.sqrt(square)


@kernel
def _merge(
    values: tuple[Floats, Floats],
    counts: tuple[Integers, Integers],
    scales: tuple[int, int],
    extra: float,
    out: tuple[Floats, Integers],
) -> int:
    """Walk both laws by rank in whole numbers; write the gap and mass of every common step."""
    (a, b), (counts_a, counts_b), (gaps, masses) = values, counts, out
    i = j = n = 0
    left_a, left_b = counts_a[0] * scales[0], counts_b[0] * scales[1]
    while True:
        mass = min(left_a, left_b)
        gaps[n], masses[n] = abs(a[i] - b[j]) + extra, mass
        n += 1
        left_a, left_b = left_a - mass, left_b - mass
        if left_a == 0:
            i += 1
            if i == len(a):
                return n
            left_a = counts_a[i] * scales[0]
        if left_b == 0:
            j += 1
            left_b = counts_b[j] * scales[1]


@kernel
def _merge_rows(
    a: tuple[Floats, Integers, Integers],
    b: tuple[Floats, Integers, Integers],
    scales: tuple[int, int],
    out: tuple[Floats, Integers],
) -> int:
    """As `_merge`, for points in d dimensions taken in the given orders."""
    (points_a, order_a, counts_a), (points_b, order_b, counts_b) = a, b
    distances, masses = out
    i = j = n = 0
    left_a, left_b = counts_a[order_a[0]] * scales[0], counts_b[order_b[0]] * scales[1]
    while True:
        mass = min(left_a, left_b)
        square = 0.0
        for k in range(points_a.shape[1]):
            square += (points_a[order_a[i], k] - points_b[order_b[j], k]) ** 2
        distances[n], masses[n] = math.sqrt(square), mass
        n += 1
        left_a, left_b = left_a - mass, left_b - mass
        if left_a == 0:
            i += 1
            if i == len(order_a):
                return n
            left_a = counts_a[order_a[i]] * scales[0]
        if left_b == 0:
            j += 1
            left_b = counts_b[order_b[j]] * scales[1]


@kernel
def _tabulate(
    gaps: Floats, masses: Integers, drop: int, histogram: Integers
) -> tuple[Floats, Integers]:
    """Histogram over gaps rounded up in their last `drop` bits; descending, worst gap exact.

    For positive floats the order of the bit patterns is the order of the values, so adding and
    shifting rounds up to a geometric-like grid without a logarithm. Gap 0 has a bin of its own.
    """
    keys = gaps.view(np.int64)
    top, n_bins = keys.max(), len(histogram)
    ones = (1 << drop) - 1
    lowest = ((top + ones) >> drop) - (n_bins - 1)
    histogram[:] = 0
    if len(masses):
        for i in range(len(keys)):
            histogram[_bin(keys[i], drop, lowest)] += masses[i]
    else:
        _count(keys, drop, lowest, histogram)
    n = np.count_nonzero(histogram)
    edges, counts = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    entry = 0
    for key in range(n_bins - 1, -1, -1):
        if histogram[key]:
            edges[entry] = min(top, (key + lowest) << drop) if key else 0
            counts[entry] = histogram[key]
            entry += 1
    return edges.view(np.float64), counts


@kernel
def _bin(key: int, drop: int, lowest: int) -> int:
    return max(1, ((key + (1 << drop) - 1) >> drop) - lowest) if key else 0


@kernel
def _count(keys: Integers, drop: int, lowest: int, histogram: Integers) -> None:
    """Count every key; neighbours in rank mostly share a bin, so runs of them go in at once."""
    whole = len(keys) - len(keys) % _RUN
    for start in range(0, whole, _RUN):
        low = high = keys[start]
        for i in range(start + 1, start + _RUN):
            low, high = min(low, keys[i]), max(high, keys[i])
        first = _bin(low, drop, lowest)
        if first == _bin(high, drop, lowest):
            histogram[first] += _RUN
        else:
            for i in range(start, start + _RUN):
                histogram[_bin(keys[i], drop, lowest)] += 1
    for i in range(whole, len(keys)):
        histogram[_bin(keys[i], drop, lowest)] += 1
