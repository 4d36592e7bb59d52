# SPDX-License-Identifier: Apache-2.0
"""Exact gap tables of finite distributions, each sorted once along every direction."""

import math
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.checks import check_unit_rows
from pufferslice._core.threads import Progress, in_threads, silent
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution, equal_distributions
from pufferslice.sensitivity.kernels import (
    merge,
    project,
    sort_rows,
    stable_order,
)
from pufferslice.sensitivity.tables import (
    DistributionPair,
    GapTables,
    Rounder,
    Row,
    resolved,
    selected,
)

DIRECTIONS_PER_BLOCK: Final = 4
"""Number of directions worked on together: few enough that their sorted rows stay in the cache."""


def gap_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
    progress: Progress = silent,
    *,
    weights: Floats | None = None,
) -> GapTables:
    """Tabulate |F^-1(t) - G^-1(t)| for every pair along every direction.

    Guarantee: along each slice, the tabulated gap is, for every t, at least the true gap: values
    are rounded up, and the float error of the projection is added. The worst gap is not rounded.
    `resolved` decides how finely the others are kept, for slices of these `weights`.
    Source: lem:empirical_Winfty_1d, and for unequal sizes the merged break points.
    """
    check_unit_rows(directions=directions)
    dims = sorted({distribution.dim for distribution in distributions} | {directions.shape[1]})
    if len(dims) != 1:
        raise ArgumentError(
            f"distributions and directions must have one dimension, got {', '.join(map(str, dims))}"
        )

    def make(chosen: Integers, most: int, progress: Progress) -> list[GapTables]:
        some, chosen_pairs = selected(distributions, pairs, chosen)
        instances = _Instances.of(some, chosen_pairs)
        extras = 2 * projection_errors(directions, instances.largest_norm)
        buffers = _Buffers([distribution.n_samples for distribution in some], most)

        def block(start: int) -> list[Row]:
            rows = slice(start, start + DIRECTIONS_PER_BLOCK)
            sides = [
                _sorted_side(distribution, directions[rows], columns, out, buffers.gaps)
                for distribution, columns, out in zip(
                    some, instances.columns, buffers.values, strict=True
                )
            ]
            return [
                instances.zero_row(index)
                if instances.equal[index]
                else _gap_row(
                    sides[pair.first],
                    sides[pair.second],
                    instances.scales[index],
                    row,
                    extra,
                    buffers,
                )
                for row, extra in enumerate(extras[rows])
                for index, pair in enumerate(chosen_pairs)
            ]

        starts = range(0, len(directions), DIRECTIONS_PER_BLOCK)
        rows = [row for part in in_threads(block, starts, progress) for row in part]
        return [GapTables.of_rows(rows, instances.totals, instances.equal)]

    return resolved(make, len(pairs), len(directions), weights=weights, progress=progress)[0]


def projection_errors(directions: Floats, largest: float) -> Floats:
    """Bound the float error of a projection along each direction; none along an axis.

    Needs: points of norm at most `largest`. It includes one more rounding, of a sum or a
    difference.
    """
    n_terms = np.count_nonzero(directions, axis=1)
    on_axis = (n_terms == 1) & (np.abs(directions).max(axis=1) == 1.0)
    return np.asarray(np.where(on_axis, 0.0, (n_terms + 2) * UNIT_ROUNDOFF * largest))


class _Instances(NamedTuple):
    """Facts that hold along every direction: distributions by column, and facts about pairs."""

    columns: list[Floats]
    scales: list[tuple[int, int]]
    """Factors that give the counts of both distributions a common denominator."""
    totals: list[int]
    equal: list[bool]
    largest_norm: float
    """Upper bound on the norm of every atom."""

    @classmethod
    def of(
        cls, distributions: Sequence[FiniteDistribution], pairs: Sequence[DistributionPair]
    ) -> "_Instances":
        columns = in_threads(
            lambda distribution: np.ascontiguousarray(distribution.outputs.T), distributions
        )
        corners = in_threads(lambda x: np.stack([x.min(axis=1), x.max(axis=1)]), columns)
        sizes = [(distributions[a].total, distributions[b].total) for a, b in pairs]
        return cls(
            columns=columns,
            scales=[(m // math.gcd(n, m), n // math.gcd(n, m)) for n, m in sizes],
            totals=[math.lcm(distributions[a].total, distributions[b].total) for a, b in pairs],
            # The corners of their boxes tell most distributions apart.
            equal=[
                np.array_equal(corners[a], corners[b])
                and equal_distributions(distributions[a], distributions[b])
                for a, b in pairs
            ],
            largest_norm=max(float(np.linalg.norm(np.abs(c).max(axis=0))) for c in corners),
        )

    def zero_row(self, index: int) -> Row:
        """Return the row of an instance whose distributions are equal."""
        return np.zeros(1), np.array([self.totals[index]], dtype=np.int64)


class _Buffers(threading.local):
    """Buffers of one thread; fresh memory for every block would cost more than the sorting."""

    def __init__(self, sizes: Sequence[int], most: int) -> None:
        self.values = [np.empty((DIRECTIONS_PER_BLOCK, n)) for n in sizes]
        self.gaps = np.empty(2 * max(sizes))
        self.masses = np.empty(2 * max(sizes), dtype=np.int64)
        self.rounder = Rounder(most)


class _Side(NamedTuple):
    """Sorted values of a distribution along a block of directions, and counts in that order."""

    values: Floats
    counts: Integers
    is_uniform: bool


def _sorted_side(
    distribution: FiniteDistribution,
    directions: Floats,
    columns: Floats,
    out: Floats,
    spare: Floats,
) -> _Side:
    """Sort projections of a distribution; `out` receives the values, `spare` is a buffer."""
    values = out[: len(directions)]
    project(directions, columns, values)
    if distribution.is_uniform:
        sort_rows(values, spare)
        return _Side(values, distribution.counts, is_uniform=True)
    order = np.array([stable_order(row) for row in values])
    return _Side(
        np.take_along_axis(values, order, axis=1), distribution.counts[order], is_uniform=False
    )


def _gap_row(
    first: _Side, second: _Side, scales: tuple[int, int], row: int, extra: float, buffers: _Buffers
) -> Row:
    a, b = first.values[row], second.values[row]
    if scales == (1, 1) and first.is_uniform and second.is_uniform:
        return buffers.rounder.row_of_difference(a, b, extra)
    counts_a, counts_b = (
        side.counts if side.is_uniform else side.counts[row] for side in (first, second)
    )
    n = merge(a, counts_a, scales[0], b, counts_b, scales[1], extra, buffers.gaps, buffers.masses)
    return buffers.rounder.row(buffers.gaps[:n], buffers.masses[:n])
