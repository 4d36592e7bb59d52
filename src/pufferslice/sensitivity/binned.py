# SPDX-License-Identifier: Apache-2.0
"""Gap tables from histograms: rows are projected and counted once, and not kept."""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import kernel
from pufferslice._core.threads import Progress, in_threads, n_cores, silent
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Ball, Box, Query
from pufferslice.scenario.histograms import (
    DEFAULT_BINS,
    BinGrid,
    BinnedDistribution,
    Histograms,
    ends_of,
    joined_ends,
    no_ends,
)
from pufferslice.sensitivity.profiles import Profile, check_profile
from pufferslice.sensitivity.tables import DistributionPair, GapTables, Rounder, Row, resolved

Singles = npt.NDArray[np.float32]
Shorts = npt.NDArray[np.int32]

ROWS_PER_BLOCK: Final = 256
"""Rows projected together: a few kilobytes per column, and a constant length for the compiler."""

_BYTES_IN_CACHE: Final = 2**20
"""Packed rows that stay in the cache while all directions are counted."""

_LARGEST_SQUARE: Final = 1 + 2.0**-22
"""How far a squared norm may exceed 1 because coordinates are rounded to single precision."""


Result = TypeVar("Result")
Count = TypeVar("Count", np.int32, np.int64)

MOST_RECENT: Final = 2**31 - 1
"""Rows that 32-bit integers can count."""

_ULP: Final = 2.0**-52
_LARGEST_COMMON: Final = 2**62
_RANK_QUANTA: Final = 2**40
_ROWS_AT_ONCE: Final = 2**20
_BYTES_AT_ONCE: Final = 2**26


def bin_grid(
    query: Query,
    profile: Profile,
    *,
    n_bins: int = DEFAULT_BINS,
    range: Box | Ball | None = None,  # noqa: A002 - the word users know
) -> BinGrid:
    """Bins over the query's public range, along the directions of a profile.

    A query with a range is clipped to it. For one without, `range` declares where its outputs lie;
    other outputs are refused, not moved.

    >>> from pufferslice.queries import columns
    >>> from pufferslice.sensitivity.profiles import FiniteProfile
    >>> query = columns(["age"]).with_range(Box([0], [100])).with_scales([10])
    >>> bin_grid(query, FiniteProfile.axes(dim=1), n_bins=100).widths.round(9)
    array([0.1])
    """
    limits = public_range(query, range)
    check_profile(profile, query.dim)
    if query.dim != limits.dim:
        raise ArgumentError(
            f"query and range must have one dimension, got {query.dim} and {limits.dim}"
        )
    if isinstance(limits, Box):
        low, high = limits.low / query.scales, limits.high / query.scales
        center = low / 2 + high / 2
        extents = np.maximum(high - center, center - low)
    else:
        center = limits.center / query.scales
        # Clipping to a ball rounds in the user's units.
        rounding = 8 * _ULP * (np.abs(limits.center) + limits.radius)
        extents = (limits.radius + rounding) / query.scales
    return BinGrid(
        directions=profile.directions,
        center=center,
        extents=extents * (1 + 4 * _ULP),
        shape="box" if isinstance(limits, Box) else "ellipsoid",
        n_bins=n_bins,
    )


def public_range(query: Query, range: Box | Ball | None) -> Box | Ball:  # noqa: A002 - as above
    """The range that the query is clipped to, or `range`, where its outputs are declared to lie."""
    range = None if range is None else query.range_of(range)  # noqa: A001 - as above
    if query.range is not None and range is not None and range != query.range:
        raise ArgumentError(
            "the query has a range of its own, which it is clipped to; leave the other one out"
        )
    limits = query.range or range
    if limits is None:
        raise ScenarioError(
            "bins need a public range: clip the query with query.with_range(Box(low, high)), "
            "--range on the command line, or declare where its outputs lie"
        )
    return limits


class CountedRows(NamedTuple):
    """Rows ready to be counted: row i has the secret `secrets[codes[i]]`."""

    outputs: Floats
    """The prepared query, shape (n_rows, dim)."""
    secrets: list[str]
    codes: Integers
    n_dropped: int
    """Rows left out beside them because of missing values."""
    n_clipped: Integers
    """Rows of each secret that the query's range moved, shape (n_secrets,)."""
    ends: Floats
    """Lowest and highest value of each coordinate before clipping, shape (2, dim)."""

    @classmethod
    def of(
        cls, query: Query, raw: Floats, secrets: list[str], codes: Integers, n_dropped: int = 0
    ) -> "CountedRows":
        """Raw outputs of the query, clipped and scaled; what clipping changes is counted."""
        outputs = query.prepared(raw)
        n_clipped = np.zeros(len(secrets), dtype=np.int64)
        if not len(raw):
            return cls(outputs, secrets, codes, n_dropped, n_clipped, no_ends(query.dim))
        ends = ends_of(raw)
        limits = query.range
        # A box that holds the ends holds all rows.
        if limits is not None and (isinstance(limits, Ball) or limits.outside(ends).any()):
            moved = codes[limits.outside(raw).any(axis=1)]
            n_clipped = np.bincount(moved, minlength=len(secrets)).astype(np.int64)
        return cls(outputs, secrets, codes, n_dropped, n_clipped, ends)

    def by_secret(self) -> Iterator[tuple[str, Floats]]:
        """The outputs of each secret, in their order."""
        if len(self.codes):
            order = grouped(self.codes, len(self.secrets))
            ends = np.cumsum(np.bincount(self.codes, minlength=len(self.secrets)))
            for secret, rows in zip(self.secrets, np.split(order, ends[:-1]), strict=True):
                yield secret, self.outputs[rows]


class Tally:
    """Histograms that are being filled; rows are counted and not kept.

    `n_threads` threads share the directions; their number does not change the result.
    """

    def __init__(self, grid: BinGrid, n_threads: int | None = None) -> None:
        self.grid = grid
        self.n_dropped = 0
        self._n_clipped: Counter[str] = Counter()
        self._ends = no_ends(grid.dim)
        self._is_whole = True
        self._secrets: dict[str, int] = {}
        # Rows are counted in 32-bit integers, moved to 64-bit ones before they could wrap.
        self._recent: Shorts = np.zeros((grid.n_directions, 0), dtype=np.int32)
        self._settled: Integers = np.zeros((grid.n_directions, 0), dtype=np.int64)
        self._n_recent = 0
        to_bins = grid.n_bins / (2 * grid.reaches[:, None])
        self._weights = (grid.directions * grid.extents * to_bins).astype(np.float32)
        most = -(-grid.n_directions // 2)
        self._n_parts = min(n_threads or n_cores(), most)
        # Even cuts, because directions are taken two at a time.
        cuts = [2 * (most * part // self._n_parts) for part in range(self._n_parts + 1)]
        self._directions = [slice(a, b) for a, b in pairwise(cuts)]

    @property
    def n_rows(self) -> int:
        """Rows counted so far."""
        return int(self._recent[0].sum(dtype=np.int64) + self._settled[0].sum())

    def add(self, outputs: Floats, secrets: Sequence[str], codes: Integers) -> None:
        """Count rows of the prepared query: row i has the secret `secrets[codes[i]]`.

        Rows outside the range are counted and refused; the tally cannot be used after that.
        """
        wanted = (len(codes), self.grid.dim)
        if outputs.shape != wanted:
            raise ArgumentError(f"outputs must have shape {wanted}, got {outputs.shape}")
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(secrets):
            raise ArgumentError(
                f"codes must be from 0 to {len(secrets) - 1}, the positions in secrets; got "
                f"{codes.min()} to {codes.max()}"
            )
        places = self._places(secrets)
        step = max(ROWS_PER_BLOCK, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // (4 * self.grid.dim)))
        for start in range(0, len(codes), step):
            rows = slice(start, start + step)
            blocks, ordered = self._packed(outputs[rows], codes[rows], len(secrets))
            self._count(blocks, places[ordered])

    def add_rows(self, rows: CountedRows) -> None:
        """Count rows, how many were left out before them, and what clipping changed."""
        self.add(rows.outputs, rows.secrets, rows.codes)
        self.n_dropped += rows.n_dropped
        self._note_clipping(rows.secrets, rows.n_clipped, rows.ends)

    def add_histograms(self, part: Histograms) -> None:
        """Add what was counted elsewhere, on the same grid."""
        if part.grid != self.grid:
            raise ArgumentError(
                "histograms can be added only on one grid: the same directions, range and bins. "
                "Make them with one scan"
            )
        n_bins = self.grid.n_bins
        places = self._places(part.secrets)
        self._settle()
        for start, counts in zip(places, part.counts, strict=True):
            self._settled[:, start : start + n_bins] += counts
        self.n_dropped += part.n_dropped
        self._note_clipping(part.secrets, part.n_clipped, part.ends)

    def histograms(self) -> Histograms:
        """A copy of the counts so far."""
        self._check_whole()
        secrets = sorted(self._secrets)
        n_bins = self.grid.n_bins
        shape = (len(secrets), self.grid.n_directions, n_bins)
        counts = np.empty(shape, dtype=np.int64)
        for secret, of_secret in zip(secrets, counts, strict=True):
            start = self._secrets[secret] * n_bins
            of_secret[:] = self._recent[:, start : start + n_bins]
            if start < self._settled.shape[1]:
                of_secret[:] += self._settled[:, start : start + n_bins]
        counts.setflags(write=False)
        return Histograms(
            grid=self.grid,
            secrets=tuple(secrets),
            counts=counts,
            n_dropped=self.n_dropped,
            n_clipped=np.array([self._n_clipped[secret] for secret in secrets], dtype=np.int64),
            ends=self._ends,
        )

    def _note_clipping(self, secrets: Sequence[str], n_clipped: Integers, ends: Floats) -> None:
        self._n_clipped.update(dict(zip(secrets, n_clipped.tolist(), strict=True)))
        self._ends = joined_ends([self._ends, ends])

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise ScenarioError(
                "this tally has refused rows, so its counts are incomplete; start a new one"
            )

    def _packed(self, outputs: Floats, codes: Integers, n_codes: int) -> tuple[Singles, Integers]:
        """Rows as blocks, those of one secret beside each other, and the code of each."""
        grid = self.grid
        order = grouped(codes, n_codes)
        n_blocks = -(-len(codes) // ROWS_PER_BLOCK)
        blocks = np.zeros((n_blocks, grid.dim, ROWS_PER_BLOCK), dtype=np.float32)
        rows = np.ascontiguousarray(outputs, dtype=np.float64)

        def part(index: int) -> int:
            start, stop = (i * n_blocks // self._n_parts for i in (index, index + 1))
            return pack(
                rows,
                order[start * ROWS_PER_BLOCK : stop * ROWS_PER_BLOCK],
                grid.center,
                1 / grid.extents,
                blocks[start:stop],
                is_box=grid.shape == "box",
            )

        n_outside = sum(self._in_parts(part))
        if n_outside:
            self._is_whole = False
            raise ScenarioError(
                f"{n_outside} of {len(codes)} rows lie outside the public range or are not "
                "numbers; clip the query with query.with_range(...)"
            )
        return blocks, codes[order]

    def _in_parts(self, work: Callable[[int], Result]) -> list[Result]:
        parts = range(self._n_parts)
        return [work(0)] if self._n_parts == 1 else in_threads(work, parts)

    def _places(self, secrets: Sequence[str]) -> Integers:
        """Where the histograms of these secrets begin; new secrets get new histograms."""
        self._check_whole()
        for secret in secrets:
            self._secrets.setdefault(secret, len(self._secrets))
        n_bins = self.grid.n_bins
        _check_room(self.grid, len(self._secrets))
        self._recent = _widened(self._recent, len(self._secrets) * n_bins)
        places = [self._secrets[secret] * n_bins for secret in secrets]
        return np.array(places, dtype=np.int64)

    def _settle(self) -> None:
        self._settled = _widened(self._settled, self._recent.shape[1])
        self._settled += self._recent
        self._recent[:] = 0
        self._n_recent = 0

    def _count(self, blocks: Singles, places: Integers) -> None:
        if self._n_recent + len(places) > MOST_RECENT:
            self._settle()
        self._n_recent += len(places)
        offsets = np.zeros((len(blocks), ROWS_PER_BLOCK), dtype=np.int32)
        offsets.reshape(-1)[: len(places)] = places

        def part(index: int) -> None:
            directions = self._directions[index]
            weights, counts = self._weights[directions], self._recent[directions]
            count_blocks(blocks, offsets, len(places), weights, counts, self.grid.n_bins)

        self._in_parts(part)


def _check_room(grid: BinGrid, n_secrets: int) -> None:
    """Check that the histograms fit into memory, and that 32-bit integers can index them."""
    # 32-bit counts, and 64-bit ones when they are returned.
    needed = grid.n_bytes(n_secrets) * 3 // 2
    memory = math.inf
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory or n_secrets * grid.n_bins > MOST_RECENT:
        raise ScenarioError(
            f"the histograms of {n_secrets} secrets take {needed / 2**30:.3g} GiB, more than this "
            "machine has. Use fewer bins or directions; if the secret is an identifier, merge its "
            "values into groups"
        )


def _widened(counts: npt.NDArray[Count], n_columns: int) -> npt.NDArray[Count]:
    """The same counts with at least `n_columns` columns."""
    if n_columns <= counts.shape[1]:
        return counts
    wide = np.zeros((len(counts), n_columns), dtype=counts.dtype)
    wide[:, : counts.shape[1]] = counts
    return wide


def binned_tables(
    distributions: Sequence[BinnedDistribution],
    pairs: Sequence[DistributionPair],
    directions: Floats,
    progress: Progress = silent,
    *,
    weights: Floats | None = None,
) -> GapTables:
    """The distribution of the gap of every pair along every direction, from histograms.

    Guarantee: along each slice, the tabulated gap is, for every t, at least the true gap and less
    than two bins and twice the projection error above it; then it is rounded up as in
    `gap_tables`. Two binned distributions are never called equal: rows may differ inside a bin.
    Source: lem:empirical_Winfty_1d.
    """
    grid = distributions[0].grid
    if any(distribution.grid != grid for distribution in distributions[1:]):
        raise ArgumentError(
            "distributions must be binned on one grid: the same directions, range and bins. Make "
            "them with one scan"
        )
    if not np.array_equal(directions, grid.directions):
        raise ArgumentError(
            "the distributions were binned along other directions; scan the data with this profile"
        )

    def make(chosen: Integers, most: int, progress: Progress) -> list[GapTables]:
        chosen_pairs = [pairs[i] for i in chosen.tolist()]
        sizes = [(distributions[a].total, distributions[b].total) for a, b in chosen_pairs]
        # A common denominator of all ranks, or a power of two where that would not fit.
        totals = [
            common if (common := math.lcm(*both)) <= _LARGEST_COMMON else _RANK_QUANTA
            for both in sizes
        ]

        def slice_rows(row: int) -> list[Row]:
            rounder = Rounder(most)
            masses = np.empty(grid.n_bins, dtype=np.int64)
            gaps = grid.gaps(np.arange(grid.n_bins), row)
            rows = []
            for (a, b), total in zip(chosen_pairs, totals, strict=True):
                ranks_a = _ranks(distributions[a], row, total)
                bins_apart(*ranks_a, *_ranks(distributions[b], row, total), masses)
                some = masses > 0
                rows.append(rounder.row(gaps[some], masses[some]))
            return rows

        by_slice = in_threads(slice_rows, range(grid.n_directions), progress)
        return [GapTables.of_rows([row for rows in by_slice for row in rows], totals)]

    return resolved(make, len(pairs), grid.n_directions, weights=weights, progress=progress)[0]


def _ranks(distribution: BinnedDistribution, row: int, total: int) -> tuple[Integers, Integers]:
    """Up to which rank, of `total`, the quantile is surely, and may be, in each bin or below.

    Both are exact if `total` is a multiple of the number of rows. Otherwise the first is rounded
    down and the second up, which only widens the gap.
    """
    ranks = np.cumsum(distribution.counts[row])
    n = int(ranks[-1])
    if total % n == 0:
        exact = ranks * (total // n)
        return exact, exact
    shares = ranks / n
    sure = np.floor(shares * total * (1 - 4 * _ULP)).astype(np.int64)
    still = np.ceil(shares * total * (1 + 4 * _ULP)).astype(np.int64)
    sure[ranks == n] = total
    return sure, np.minimum(still, total)


@kernel
def grouped(codes: Integers, n_codes: int) -> Integers:
    """Row numbers in the order of their codes, rows of one code in the order they came."""
    starts = np.zeros(n_codes + 1, dtype=np.int64)
    for code in codes:
        starts[code + 1] += 1
    for code in range(n_codes):
        starts[code + 1] += starts[code]
    order = np.empty(len(codes), dtype=np.int64)
    for row in range(len(codes)):
        code = codes[row]
        order[starts[code]] = row
        starts[code] += 1
    return order


@kernel
def pack(
    outputs: Floats,
    order: Integers,
    center: Floats,
    inverse_extents: Floats,
    blocks: Singles,
    *,
    is_box: bool,
) -> int:
    """Rows in the given order as columns of blocks, each from -1 to 1 over the range.

    Returns how many rows are not in the range, NaN included; their blocks must not be used.
    """
    n_outside = 0
    for b in range(len(blocks)):
        rows = order[b * ROWS_PER_BLOCK : (b + 1) * ROWS_PER_BLOCK]
        for k in range(outputs.shape[1]):
            column, shift, factor = blocks[b, k], center[k], inverse_extents[k]
            # Unsigned, so that no check for a negative index is compiled.
            for i in range(len(rows)):
                value = outputs[np.uint64(rows[i]), np.uint64(k)]
                column[i] = np.float32((value - shift) * factor)
        n_outside += _n_outside_box(blocks[b]) if is_box else _n_outside_ball(blocks[b])
    return n_outside


@kernel
def _n_outside_box(block: Singles) -> int:
    outside = np.zeros(ROWS_PER_BLOCK, dtype=np.uint8)
    for k in range(len(block)):
        column = block[k]
        for i in range(ROWS_PER_BLOCK):
            outside[i] |= 0 if abs(column[i]) <= 1 else 1
    n_outside = 0
    for i in range(ROWS_PER_BLOCK):
        n_outside += 1 if outside[i] else 0
    return n_outside


@kernel
def _n_outside_ball(block: Singles) -> int:
    squares = np.zeros(ROWS_PER_BLOCK)
    for k in range(len(block)):
        column = block[k]
        for i in range(ROWS_PER_BLOCK):
            squares[i] += np.float64(column[i]) ** 2
    n_outside = 0
    for i in range(ROWS_PER_BLOCK):
        n_outside += 0 if squares[i] <= _LARGEST_SQUARE else 1
    return n_outside


@kernel
def count_blocks(
    blocks: Singles, offsets: Shorts, n_rows: int, weights: Singles, counts: Shorts, n_bins: int
) -> None:
    """Project every row onto every direction and count it in its bin, in one pass.

    `weights` are directions in units of bins, `offsets` where the histogram of a row's secret
    begins. Two directions at a time share the loads. The sum over the coordinates has a fixed
    order, so the bin of a row does not depend on other rows. Counts are 32-bit, so that two
    histograms fit the first cache.
    """
    dim = blocks.shape[1]
    per_turn = max(1, _BYTES_IN_CACHE // (4 * dim * ROWS_PER_BLOCK))
    first, second = np.empty(ROWS_PER_BLOCK, np.float32), np.empty(ROWS_PER_BLOCK, np.float32)
    bins_1, bins_2 = np.empty(ROWS_PER_BLOCK, np.int32), np.empty(ROWS_PER_BLOCK, np.int32)
    for start in range(0, len(blocks), per_turn):
        for j in range(0, len(weights), 2):
            last = min(j + 1, len(weights) - 1)
            for b in range(start, min(start + per_turn, len(blocks))):
                _project_two(blocks[b], weights[j], weights[last], first, second)
                _bins(first, offsets[b], n_bins, bins_1)
                _bins(second, offsets[b], n_bins, bins_2)
                n = min(ROWS_PER_BLOCK, n_rows - b * ROWS_PER_BLOCK)
                if last > j:
                    _count_two(bins_1, bins_2, n, counts[j], counts[last])
                else:
                    _count(bins_1, n, counts[j])


@kernel
def _project_two(block: Singles, u: Singles, v: Singles, a: Singles, b: Singles) -> None:
    dim = len(block)
    whole = dim - dim % 4
    a[:] = np.float32(0)
    b[:] = np.float32(0)
    for k in range(0, whole, 4):
        u0, u1, u2, u3 = u[k], u[k + 1], u[k + 2], u[k + 3]
        v0, v1, v2, v3 = v[k], v[k + 1], v[k + 2], v[k + 3]
        x0, x1, x2, x3 = block[k], block[k + 1], block[k + 2], block[k + 3]
        for i in range(ROWS_PER_BLOCK):
            a[i] += (u0 * x0[i] + u1 * x1[i]) + (u2 * x2[i] + u3 * x3[i])
            b[i] += (v0 * x0[i] + v1 * x1[i]) + (v2 * x2[i] + v3 * x3[i])
    for k in range(whole, dim):
        u0, v0, x0 = u[k], v[k], block[k]
        for i in range(ROWS_PER_BLOCK):
            a[i] += u0 * x0[i]
            b[i] += v0 * x0[i]


@kernel
def _bins(values: Singles, offsets: Shorts, n_bins: int, bins: Shorts) -> None:
    """From values around 0, in units of bins, to places in the counts; rounding stays inside."""
    half, top = np.float32(n_bins / 2), np.int32(n_bins - 1)
    for i in range(ROWS_PER_BLOCK):
        bins[i] = offsets[i] + min(max(np.int32(values[i] + half), np.int32(0)), top)


@kernel
def _count_two(first: Shorts, second: Shorts, n: int, a: Shorts, b: Shorts) -> None:
    for i in range(n):
        a[np.uint32(first[i])] += 1
        b[np.uint32(second[i])] += 1


@kernel
def _count(bins: Shorts, n: int, counts: Shorts) -> None:
    for i in range(n):
        counts[np.uint32(bins[i])] += 1


@kernel
def bins_apart(
    sure_a: Integers, still_a: Integers, sure_b: Integers, still_b: Integers, masses: Integers
) -> None:
    """Mass of every distance, in bins, that two quantile functions may have.

    Two functions of the bin describe a distribution: the rank up to which its quantile is surely
    in that bin or below, and the rank up to which it may still be there.
    """
    high_a = high_b = low_a = low_b = 0
    masses[:] = 0
    rank, total = 0, sure_a[-1]
    while rank < total:
        while sure_a[high_a] <= rank:
            high_a += 1
        while sure_b[high_b] <= rank:
            high_b += 1
        while still_a[low_a] <= rank:
            low_a += 1
        while still_b[low_b] <= rank:
            low_b += 1
        then = min(sure_a[high_a], sure_b[high_b], still_a[low_a], still_b[low_b])
        masses[max(high_a - low_b, high_b - low_a)] += then - rank
        rank = then
