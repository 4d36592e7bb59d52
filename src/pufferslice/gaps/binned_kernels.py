# SPDX-License-Identifier: Apache-2.0
"""The inner loops of binned laws: packing rows, projecting and counting them, walking by rank."""

from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel

Singles = npt.NDArray[np.float32]
Shorts = npt.NDArray[np.int32]

ROWS_PER_BLOCK: Final = 256
"""Rows projected together: a few kilobytes per column, and a length that the compiler knows."""

_BYTES_IN_CACHE: Final = 2**20
"""Packed rows that stay in the cache while the directions take their turns."""

_ROUNDING_ROOM: Final = 1 + 2.0**-22
"""How far a squared norm may exceed 1 because coordinates are rounded to single precision."""


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
    middle: tuple[Floats, Floats],
    blocks: Singles,
    *,
    is_box: bool,
) -> int:
    """Rows in the given order as columns of blocks, each from -1 to 1 over the range.

    Returns how many rows are not in the range, NaN included; their blocks must not be used.
    """
    center, inverse_extents = middle
    n_outside = 0
    for b in range(len(blocks)):
        rows = order[b * ROWS_PER_BLOCK : (b + 1) * ROWS_PER_BLOCK]
        for k in range(outputs.shape[1]):
            column, shift, factor = blocks[b, k], center[k], inverse_extents[k]
            # Unsigned, because a negative index would have to be looked for.
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
        n_outside += 0 if squares[i] <= _ROUNDING_ROOM else 1
    return n_outside


@kernel
def count_blocks(
    blocks: Singles, offsets: Shorts, n_rows: int, weights: Singles, counts: Shorts, n_bins: int
) -> None:
    """Project every row onto every direction and count it in its bin, in one pass.

    `weights` are directions in units of bins, `offsets` where the histogram of a row's secret
    begins. Two directions at a time share the loads. The sum over the coordinates has a fixed
    order, so a row falls into the same bin whatever rows stand beside it. Counts are short, so that
    two histograms stay in the nearest cache.
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
    first: tuple[Integers, Integers], second: tuple[Integers, Integers], masses: Integers
) -> None:
    """Mass of every distance, in bins, that two quantile functions may have.

    A law is given by two functions of the bin: the rank up to which its quantile is surely in that
    bin or below, and the rank up to which it may still be there.
    """
    (sure_a, still_a), (sure_b, still_b) = first, second
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
