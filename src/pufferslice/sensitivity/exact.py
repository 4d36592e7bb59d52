# SPDX-License-Identifier: Apache-2.0
"""Exact gap tables of empirical distributions.

Every distribution is sorted once along every direction.
"""

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.checks import check_unit_rows
from pufferslice._core.threads import Progress, in_threads, silent
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution, equal_distributions
from pufferslice.sensitivity.kernels import (
    HEADROOM,
    merge,
    merge_rows,
    project,
    row_distances,
    sort_rows,
    stable_order,
    tabulate,
    tabulate_difference,
    thinned,
)
from pufferslice.sensitivity.tables import (
    DistributionPair,
    GapTables,
    MatchingTables,
    Tables,
    digits_for,
    resolved,
    restricted,
)

DIRECTIONS_PER_BLOCK: Final = 4
"""Directions worked on together: few enough that their sorted rows stay in the cache."""

OCTAVES: Final = 24
"""Gaps below 2^-OCTAVES of the worst are rounded up to that."""

_MANTISSA: Final = 52
_RANKS_PER_BLOCK: Final = 4096


def gap_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
    progress: Progress = silent,
    *,
    weights: Floats | None = None,
) -> GapTables:
    """The distribution of |F^-1(t) - G^-1(t)| for every pair along every direction.

    Guarantee: along each slice, the tabulated gap is, for every t, at least the true gap: values
    are rounded up, and the float error of the projection is added. The worst gap is not rounded.
    How finely the others are kept is decided by `resolved`, for slices of these `weights`.
    Source: lem:empirical_Winfty_1d, and for unequal sizes the merged break points.
    """
    _check_dimensions(distributions, directions)

    def make(chosen: Sequence[int], most: int) -> list[GapTables]:
        used, own = restricted(pairs, chosen)
        report = progress if len(chosen) == len(pairs) else silent
        return [_gap_tables([distributions[i] for i in used], own, directions, most, report)]

    return resolved(make, len(pairs), len(directions), weights)[0]


def _gap_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
    most: int,
    progress: Progress,
) -> GapTables:
    """`gap_tables` with at most so many entries a row."""
    instances = _Instances.of(distributions, pairs)
    extras = 2 * projection_errors(directions, instances.largest)
    scratches = _PerThread(distributions, most)

    def block(start: int) -> _Rows:
        rows = slice(start, start + DIRECTIONS_PER_BLOCK)
        scratch = scratches.mine()
        sides = [
            _sorted_side(distribution, directions[rows], columns, (out, scratch.gaps))
            for distribution, columns, out in zip(
                distributions, instances.columns, scratch.values, strict=True
            )
        ]
        return _Rows.of(
            _slice_table((sides[pair.first], sides[pair.second]), scales, row, extra, scratch)
            if own is None
            else own
            for row, extra in enumerate(extras[rows])
            for pair, scales, own in instances.each()
        )

    starts = range(0, len(directions), DIRECTIONS_PER_BLOCK)
    return instances.tables(GapTables, in_threads(block, starts, progress))


def matching_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
) -> MatchingTables:
    """The distances ||X - Y|| under the monotone coupling along each direction, for every pair.

    Each of them is a coupling in all dimensions, so each bounds the unsliced cost.
    """
    _check_dimensions(distributions, directions)

    def make(chosen: Sequence[int], most: int) -> list[MatchingTables]:
        used, own = restricted(pairs, chosen)
        return [_matching_tables([distributions[i] for i in used], own, directions, most)]

    return resolved(make, len(pairs), len(directions))[0]


def _matching_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
    most: int,
) -> MatchingTables:
    """`matching_tables` with at most so many entries a row."""
    instances = _Instances.of(distributions, pairs)
    scratches = _PerThread(distributions, most)
    alike = len({distribution.total for distribution in distributions}) == 1 and all(
        distribution.is_uniform for distribution in distributions
    )
    ones = np.ones(distributions[0].n_samples, dtype=np.int64)

    def matching(row: int) -> _Rows:
        scratch = scratches.mine()
        orders = []
        for values, columns in zip(scratch.values, instances.columns, strict=True):
            project(directions[row : row + 1], columns, values[:1])
            orders.append(stable_order(values[0]))
        if alike:
            found = ((d, ones) for d in _rank_distances(distributions, pairs, orders))
        else:
            found = (_distances(distributions, pair, orders, scratch) for pair in pairs)
        return _Rows.of(
            scratch.tabulated(*gaps) if own is None else own
            for gaps, (_, _, own) in zip(found, instances.each(), strict=True)
        )

    return instances.tables(MatchingTables, in_threads(matching, range(len(directions))))


def _check_dimensions(distributions: Sequence[FiniteDistribution], directions: Floats) -> None:
    check_unit_rows(directions=directions)
    dims = sorted({distribution.dim for distribution in distributions} | {directions.shape[1]})
    if len(dims) != 1:
        msg = (
            f"distributions and directions must have one dimension, got {', '.join(map(str, dims))}"
        )
        raise ArgumentError(msg)


Row = tuple[Floats, Integers]
"""Gaps, descending, and the mass of each."""


class _Rows(NamedTuple):
    """Rows of a table one after the other."""

    lengths: list[int]
    gaps: Floats
    counts: Integers

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "_Rows":
        kept = list(rows)
        return cls(
            lengths=[len(gaps) for gaps, _ in kept],
            gaps=np.concatenate([gaps for gaps, _ in kept]),
            counts=np.concatenate([counts for _, counts in kept]),
        )


class _Instances(NamedTuple):
    """What is the same along every direction.

    The distributions by column, and facts about each pair.
    """

    pairs: Sequence[DistributionPair]
    columns: list[Floats]
    scales: list[tuple[int, int]]
    totals: list[int]
    equal: list[bool]
    largest: float
    """At least the norm of every atom."""

    @classmethod
    def of(
        cls, distributions: Sequence[FiniteDistribution], pairs: Sequence[DistributionPair]
    ) -> "_Instances":
        columns = in_threads(
            lambda distribution: np.ascontiguousarray(distribution.outputs.T), distributions
        )
        corners = in_threads(lambda x: np.stack([x.min(axis=1), x.max(axis=1)]), columns)
        return cls(
            pairs=pairs,
            columns=columns,
            scales=[_scales(distributions[a], distributions[b]) for a, b in pairs],
            totals=[math.lcm(distributions[a].total, distributions[b].total) for a, b in pairs],
            # Most distributions that differ are told apart by the corners of their boxes.
            equal=[
                np.array_equal(corners[a], corners[b])
                and equal_distributions(distributions[a], distributions[b])
                for a, b in pairs
            ],
            largest=max(float(np.linalg.norm(np.abs(c).max(axis=0))) for c in corners),
        )

    def each(self) -> Iterable[tuple[DistributionPair, tuple[int, int], Row | None]]:
        """Each pair with its scales and, if both distributions are one, its row: no gap at all."""
        for pair, scales, total, same in zip(
            self.pairs, self.scales, self.totals, self.equal, strict=True
        ):
            own = (np.zeros(1), np.array([total], dtype=np.int64)) if same else None
            yield pair, scales, own

    def tables(self, kind: type[Tables], parts: list[_Rows]) -> Tables:
        lengths = [length for part in parts for length in part.lengths]
        return kind(
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            gaps=np.concatenate([part.gaps for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            totals=np.array(self.totals, dtype=np.int64),
            equal=np.array(self.equal),
        )


class _Side(NamedTuple):
    """One distribution along a block of directions: sorted values, and counts in the same order."""

    values: Floats
    counts: Integers
    is_uniform: bool

    def counts_of(self, row: int) -> Integers:
        return self.counts if self.is_uniform else self.counts[row]


class _Scratch(NamedTuple):
    """Buffers of one thread; fresh memory for every block would cost more than the sorting."""

    values: list[Floats]
    gaps: Floats
    masses: Integers
    histogram: Integers
    most: int

    @classmethod
    def of(cls, distributions: Sequence[FiniteDistribution], most: int) -> "_Scratch":
        longest = 2 * max(distribution.n_samples for distribution in distributions)
        return cls(
            values=[
                np.empty((DIRECTIONS_PER_BLOCK, distribution.n_samples))
                for distribution in distributions
            ],
            gaps=np.empty(longest),
            masses=np.empty(longest, dtype=np.int64),
            histogram=np.zeros((OCTAVES + HEADROOM) * 2 ** digits_for(most) + 2, dtype=np.int64),
            most=most,
        )

    @property
    def drop(self) -> int:
        """Low bits of a float that rounding up takes away."""
        return _MANTISSA - digits_for(self.most)

    def tabulated(self, gaps: Floats, masses: Integers) -> Row:
        return thinned(*tabulate(gaps, masses, self.drop, self.histogram), self.most)


class _PerThread:
    """One `_Scratch` for each thread that asks."""

    def __init__(self, distributions: Sequence[FiniteDistribution], most: int) -> None:
        self._said = distributions, most
        self._local = threading.local()

    def mine(self) -> _Scratch:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = _Scratch.of(*self._said)
        scratch: _Scratch = self._local.scratch
        return scratch


def _sorted_side(
    distribution: FiniteDistribution,
    directions: Floats,
    columns: Floats,
    room: tuple[Floats, Floats],
) -> _Side:
    """The distribution along the directions; `room` for its values and for one row more."""
    out, spare = room
    values = out[: len(directions)]
    project(directions, columns, values)
    if distribution.is_uniform:
        sort_rows(values, spare)
        return _Side(values, distribution.counts, is_uniform=True)
    order = np.array([stable_order(row) for row in values])
    return _Side(
        np.take_along_axis(values, order, axis=1), distribution.counts[order], is_uniform=False
    )


def _slice_table(
    pair: tuple[_Side, _Side], scales: tuple[int, int], row: int, extra: float, scratch: _Scratch
) -> Row:
    a, b = (side.values[row] for side in pair)
    if scales == (1, 1) and all(side.is_uniform for side in pair):
        found = tabulate_difference(a, b, extra, scratch.drop, scratch.histogram)
        return thinned(*found, scratch.most)
    first, second = (side.counts_of(row) for side in pair)
    n = merge((a, b), (first, second), scales, extra, (scratch.gaps, scratch.masses))
    return scratch.tabulated(scratch.gaps[:n], scratch.masses[:n])


def _rank_distances(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    orders: list[Integers],
) -> Floats:
    """Distances between rows of the same rank, all pairs at once, a block of ranks at a time.

    Each distribution is gathered once per block instead of once per pair, and the block stays in
    the cache.
    """
    n = distributions[0].n_samples
    distances = np.empty((len(pairs), n))
    for start in range(0, n, _RANKS_PER_BLOCK):
        ranks = slice(start, start + _RANKS_PER_BLOCK)
        rows = [
            distribution.outputs[order[ranks]]
            for distribution, order in zip(distributions, orders, strict=True)
        ]
        for pair, row in zip(pairs, distances, strict=True):
            row_distances(rows[pair.first], rows[pair.second], row[ranks])
    return distances


def _distances(
    distributions: Sequence[FiniteDistribution],
    pair: DistributionPair,
    orders: list[Integers],
    scratch: _Scratch,
) -> tuple[Floats, Integers]:
    first, second = distributions[pair.first], distributions[pair.second]
    n = merge_rows(
        (first.outputs, orders[pair.first], first.counts),
        (second.outputs, orders[pair.second], second.counts),
        _scales(first, second),
        (scratch.gaps, scratch.masses),
    )
    return scratch.gaps[:n], scratch.masses[:n]


def _scales(first: FiniteDistribution, second: FiniteDistribution) -> tuple[int, int]:
    """What the counts of each distribution are multiplied by to have one common denominator."""
    common = math.gcd(first.total, second.total)
    return second.total // common, first.total // common


def projection_errors(directions: Floats, largest: float) -> Floats:
    """Bound on the float error of a projection along each direction; none along an axis.

    Needs: points of norm at most `largest`. There is room for one more rounding, of a sum or a
    difference.
    """
    n_terms = np.count_nonzero(directions, axis=1)
    on_axis = (n_terms == 1) & (np.abs(directions).max(axis=1) == 1.0)
    return np.asarray(np.where(on_axis, 0.0, (n_terms + 2) * UNIT_ROUNDOFF * largest))
