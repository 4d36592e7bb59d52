# SPDX-License-Identifier: Apache-2.0
"""Inner loops of gap tables: projection, radix sort, merging by rank, rounding up."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import kernel, small_kernel

Words = npt.NDArray[np.uint64]

MANTISSA_BITS: Final = 52
"""Number of mantissa bits of a float."""

HEADROOM: Final = 8
"""Number of octaves above the worst gap that a histogram may leave empty."""

_ROWS_IN_CACHE: Final = 64
"""Number of rows projected together: ten columns of them and their results fit the first cache."""
_RANKS_AT_ONCE: Final = 128
_FEW_BINS: Final = 4
_ULP: Final = 2.0**-52
_ROUNDS: Final = 3
_FOREMOST: Final = 8.0
"""Extra weight of the second power in thinned rows: they lose most where noise is large."""

SHORT: Final = 2_000
"""Length below which numpy is as fast."""

MOVES_PER_VALUE: Final = 8
"""Number of moves per value that insertion may take."""

_SIGN: Final = np.uint64(2**63)
_ALL: Final = np.uint64(2**64 - 1)
_ONE: Final = np.uint64(1)
_DIGITS: Final = np.uint64(11)
_LEADING: Final = np.uint64(33)
_BUCKETS: Final = 2**11
_LAST: Final = np.uint64(_BUCKETS - 1)


@small_kernel
def project(directions: Floats, columns: Floats, out: Floats) -> None:
    """Compute inner products with contiguous columns in a fixed order: equal rows, equal values.

    Not BLAS: its own threads would compete with ours, and its rounding depends on the position.
    """
    dim, n = columns.shape
    whole = dim - dim % 4
    for start in range(0, n, _ROWS_IN_CACHE):
        stop = min(n, start + _ROWS_IN_CACHE)
        for row in range(len(directions)):
            u, values = directions[row], out[row, start:stop]
            values[:] = 0.0
            for k in range(0, whole, 4):
                u0, u1, u2, u3 = u[k], u[k + 1], u[k + 2], u[k + 3]
                x0, x1 = columns[k, start:stop], columns[k + 1, start:stop]
                x2, x3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
                for i in range(stop - start):
                    values[i] += (u0 * x0[i] + u1 * x1[i]) + (u2 * x2[i] + u3 * x3[i])
            for k in range(whole, dim):
                u0, x0 = u[k], columns[k, start:stop]
                for i in range(stop - start):
                    values[i] += u0 * x0[i]


@small_kernel
def gap_above(a: float, b: float, extra: float) -> float:
    """Bound |a - b| + extra from above in exact arithmetic; `extra` > 0 includes the rounding."""
    gap = a - b
    if extra > 0:
        return abs(gap) + extra
    back = gap - a
    lost = (a - (gap - back)) - (b + back)
    return abs(gap) * (1 + _ULP) if lost * gap > 0 else abs(gap)


@kernel
def merge(
    a: Floats,
    counts_a: Integers,
    scale_a: int,
    b: Floats,
    counts_b: Integers,
    scale_b: int,
    extra: float,
    gaps: Floats,
    masses: Integers,
) -> int:
    """Walk two sorted samples by rank in integers; write gap and mass of every common step.

    The scales bring the counts to a common denominator. Returns the number of steps.
    """
    i = j = n = 0
    left_a, left_b = counts_a[0] * scale_a, counts_b[0] * scale_b
    while True:
        mass = min(left_a, left_b)
        gaps[n], masses[n] = gap_above(a[i], b[j], extra), mass
        n += 1
        left_a, left_b = left_a - mass, left_b - mass
        if left_a == 0:
            i += 1
            if i == len(a):
                return n
            left_a = counts_a[i] * scale_a
        if left_b == 0:
            j += 1
            left_b = counts_b[j] * scale_b


@small_kernel
def tabulate(
    gaps: Floats, masses: Integers, drop: int, histogram: Integers
) -> tuple[Floats, Integers]:
    """Count gaps rounded up in their last `drop` bits; descending, worst gap exact.

    For positive floats the order of the bit patterns is the order of the values, so adding and
    shifting rounds up to a geometric-like grid without a logarithm. Gap 0 has a bin of its own.
    """
    keys = gaps.view(np.int64)
    top = keys.max()
    lowest = _lowest(top, drop, len(histogram))
    ones = (1 << drop) - 1
    histogram[:] = 0
    for i in range(len(keys)):
        key = max(1, ((keys[i] + ones) >> drop) - lowest) if keys[i] else 0
        histogram[key] += masses[i]
    return _entries(top, drop, lowest, histogram)


@kernel
def tabulate_difference(
    a: Floats, b: Floats, extra: float, drop: int, histogram: Integers
) -> tuple[Floats, Integers]:
    """Apply `tabulate` to |a - b| + extra for sorted a and b of one length, in one pass."""
    counts = np.empty((2, len(histogram)), dtype=np.int32)
    buffer = np.empty(1)
    # `gap_above` may round a gap up past the bare difference: a key beyond the bins would be lost.
    buffer[0] = (max(abs(a[-1] - b[0]), abs(b[-1] - a[0])) + extra) * (1 + 4 * _ULP)
    bound = buffer.view(np.int64)[0]
    while True:
        lowest = _lowest(bound, drop, len(histogram))
        top, n_zero = _count_difference(a, b, extra, drop, lowest, counts)
        last = ((top + (1 << drop) - 1) >> drop) - lowest
        if top == 0 or last >= len(histogram) - (HEADROOM << (MANTISSA_BITS - drop)):
            break
        # The distributions are far closer than their spread: bin once more, below the worst gap
        # itself.
        bound = top
    histogram[:] = counts[0] + counts[1]
    # Zeros were counted where the key 0 belongs; they have a bin of their own.
    histogram[max(1, -lowest)] -= n_zero
    histogram[0] = n_zero
    return _entries(top, drop, lowest, histogram)


@kernel
def _count_difference(
    a: Floats, b: Floats, extra: float, drop: int, lowest: int, counts: npt.NDArray[np.int32]
) -> tuple[int, int]:
    """Count every |a - b| + extra in its bin, all below the first bin in the first.

    Neighbours in rank mostly share a few bins; then the keys above each edge are counted, a vector
    at a time. Elsewhere two counters take turns, so that no addition waits for the one before it.
    Returns the largest key, and the number of zeros.
    """
    counts[:] = 0
    buffer = np.empty(_RANKS_AT_ONCE)
    keys, even, odd = buffer.view(np.int64), counts[0], counts[1]
    base = (1 << drop) - 1 - (lowest << drop)
    top = n_zero = 0
    for start in range(0, len(a), _RANKS_AT_ONCE):
        n = min(len(a) - start, _RANKS_AT_ONCE)
        x, y = a[start : start + n], b[start : start + n]
        for i in range(n):
            buffer[i] = abs(x[i] - y[i]) + extra
        if extra == 0.0:
            for i in range(n):
                buffer[i] = gap_above(x[i], y[i], extra)
                n_zero += 1 if keys[i] == 0 else 0
        least, most = _ends(keys[:n])
        top = max(top, most)
        low, high = max(1, (least + base) >> drop), max(1, (most + base) >> drop)
        if high - low > _FEW_BINS:
            for i in range(0, n - 1, 2):
                even[max(1, (keys[i] + base) >> drop)] += 1
                odd[max(1, (keys[i + 1] + base) >> drop)] += 1
            if n % 2:
                even[max(1, (keys[n - 1] + base) >> drop)] += 1
        else:
            above = 0
            for key in range(high, low, -1):
                reached = _count_from(keys[:n], (key << drop) - base)
                even[key] += reached - above
                above = reached
            even[low] += n - above
    return top, n_zero


@small_kernel
def thinned(gaps: Floats, counts: Integers, most: int) -> tuple[Floats, Integers]:
    """Keep at most `most` (2 or more) entries of a descending row; round other gaps up to these.

    The worst gap stays as it is, and gap 0 apart. With m the mass of a gap and p a sum of powers of
    it, each over its mean, cuts are made at even steps of the integral of sqrt(m dp), where the
    rounding adds least to the mean of p. The powers stand for the exponentials of costs: the second
    for much noise, higher ones for less.
    """
    if len(gaps) <= most:
        return gaps, counts
    n = len(gaps) - 1 if gaps[-1] == 0 else len(gaps)
    n_bins = most - 1 if n < len(gaps) else most
    mean_2 = mean_8 = mean_32 = 0.0
    for i in range(n):
        x_2, x_8, x_32 = _powers(gaps[i] / gaps[0])
        mean_2 += counts[i] * x_2
        mean_8 += counts[i] * x_8
        mean_32 += counts[i] * x_32
    steps = np.zeros(n)
    before = _FOREMOST / mean_2 + 1 / mean_8 + 1 / mean_32
    for i in range(1, n):
        x_2, x_8, x_32 = _powers(gaps[i] / gaps[0])
        now = _FOREMOST * x_2 / mean_2 + x_8 / mean_8 + x_32 / mean_32
        steps[i] = math.sqrt(counts[i] * max(0.0, before - now))
        before = now
    width = math.inf
    for _ in range(_ROUNDS):
        # A step wider than this is one cut; the others share its excess.
        width = np.minimum(steps, width).sum() / n_bins
    new_gaps, new_counts = np.empty(most), np.empty(most, dtype=np.int64)
    entry, reached = -1, width
    for i in range(n):
        reached += min(steps[i], width)
        if reached >= width and entry < n_bins - 1:
            entry, reached = entry + 1, 0.0
            new_gaps[entry], new_counts[entry] = gaps[i], 0
        new_counts[entry] += counts[i]
    if n < len(gaps):
        entry += 1
        new_gaps[entry], new_counts[entry] = 0.0, counts[n]
    return new_gaps[: entry + 1], new_counts[: entry + 1]


@small_kernel
def _powers(x: float) -> tuple[float, float, float]:
    """Return the second, eighth and 32nd power."""
    x_2 = x * x
    x_8 = x_2 * x_2 * x_2 * x_2
    return x_2, x_8, x_8 * x_8 * x_8 * x_8


@small_kernel
def _ends(keys: Integers) -> tuple[int, int]:
    """Return the least and the largest key."""
    least = most = keys[0]
    for i in range(len(keys)):
        if keys[i] > most:  # noqa: PLR1730 - max() would keep the loop from being vectorised
            most = keys[i]
        if keys[i] < least:  # noqa: PLR1730 - as above
            least = keys[i]
    return least, most


@small_kernel
def _count_from(keys: Integers, edge: int) -> int:
    """Count the keys that are at least `edge`."""
    n = 0
    for i in range(len(keys)):
        n += 1 if keys[i] >= edge else 0
    return n


@small_kernel
def _lowest(top: int, drop: int, n_bins: int) -> int:
    """Return the key below the first bin, if the last one is to hold `top`."""
    return ((top + (1 << drop) - 1) >> drop) - (n_bins - 1)


@small_kernel
def _entries(top: int, drop: int, lowest: int, histogram: Integers) -> tuple[Floats, Integers]:
    """Return the filled bins from the largest gap down: upper edges, capped at the worst gap."""
    n = np.count_nonzero(histogram)
    edges, counts = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    entry = 0
    for key in range(len(histogram) - 1, -1, -1):
        if histogram[key]:
            edges[entry] = min(top, (key + lowest) << drop) if key else 0
            counts[entry] = histogram[key]
            entry += 1
    return edges.view(np.float64), counts


def sort_rows(values: Floats, spare: Floats) -> None:
    """Sort each row in place, ascending; none holds NaN. `spare`, for one row, is overwritten.

    Floats become integers that compare alike. Three passes of 11 bits order the 33 leading bits of
    their distance from the smallest; insertion orders the rest. Rows for which insertion would take
    too many moves are left to numpy.
    """
    n = values.shape[1]
    if n < SHORT:
        values.sort(axis=1)
        return
    counts = np.empty((3, _BUCKETS), dtype=np.uint64)
    for row in values:
        if not _sort(row.view(np.uint64), spare[:n].view(np.uint64), counts):
            row.sort()


def stable_order(values: Floats) -> Integers:
    """Return the positions of a row's values in ascending, stable order; none may be NaN."""
    n = len(values)
    if n >= SHORT:
        words, order = np.empty((2, n), dtype=np.uint64), np.empty((2, n), dtype=np.int64)
        # -0.0 + 0.0 is 0.0: both zeros have the same bits
        if _order((values + 0.0).view(np.uint64), words, order):
            positions: Integers = order[0]
            return positions
    return np.argsort(values, kind="stable")


@kernel
def _as_number(bits: np.uint64) -> np.uint64:
    """Map a float to an integer that grows with it: flip all bits if negative, else the sign."""
    return bits ^ (_SIGN if bits < _SIGN else _ALL)


@kernel
def _as_float(number: np.uint64) -> np.uint64:
    return number ^ (_ALL if number < _SIGN else _SIGN)


@kernel
def _range(row: Words) -> tuple[np.uint64, np.uint64]:
    """Return the smallest number, and how many bits to drop so that the leading ones are left."""
    least, largest = _ALL, np.uint64(0)
    for i in range(len(row)):
        number = _as_number(row[i])
        least, largest = min(least, number), max(largest, number)
    shift = np.uint64(0)
    while (largest - least) >> shift >> _LEADING:
        shift += _ONE
    return least, shift


@kernel
def _count(row: Words, least: np.uint64, shift: np.uint64, counts: Words) -> None:
    """Find where the numbers with each digit of 11 bits begin, for each of the three passes."""
    counts[:] = 0
    for i in range(len(row)):
        word = (_as_number(row[i]) - least) >> shift
        counts[0, word & _LAST] += _ONE
        counts[1, (word >> _DIGITS) & _LAST] += _ONE
        counts[2, word >> (_DIGITS + _DIGITS)] += _ONE
    for starts in counts:
        start = np.uint64(0)
        for digit in range(_BUCKETS):
            starts[digit], start = start, start + starts[digit]


@kernel
def _place(word: np.uint64, starts: Words) -> np.uint64:
    """Return the next free place for a last digit."""
    place: np.uint64 = starts[word & _LAST]
    starts[word & _LAST] = place + _ONE
    return place


@kernel
def _insert(words: Words, order: Integers) -> bool:
    """Move every word, with its position if there are any, below larger ones before it.

    False if that takes too many moves; no word is lost then.
    """
    moves = 0
    for i in range(1, len(words)):
        word, j = words[i], i
        if words[i - 1] <= word:
            continue
        position = order[i] if len(order) else 0
        while j > 0 and words[j - 1] > word:
            words[j] = words[j - 1]
            if len(order):
                order[j] = order[j - 1]
            j -= 1
        words[j] = word
        if len(order):
            order[j] = position
        moves += i - j
        if moves > MOVES_PER_VALUE * len(words):
            return False
    return True


@kernel
def _sort(row: Words, spare: Words, counts: Words) -> bool:
    """Sort a row, and return whether it is in order; if not, it holds the same values reordered."""
    least, shift = _range(row)
    _count(row, least, shift, counts)
    for i in range(len(row)):
        word = _as_number(row[i]) - least
        spare[_place(word >> shift, counts[0])] = word
    for i in range(len(row)):
        row[_place(spare[i] >> (shift + _DIGITS), counts[1])] = spare[i]
    for i in range(len(row)):
        spare[_place(row[i] >> (shift + _DIGITS + _DIGITS), counts[2])] = row[i]
    sorted_now = _insert(spare, np.empty(0, dtype=np.int64))
    for i in range(len(row)):
        row[i] = _as_float(spare[i] + least)
    return sorted_now


@kernel
def _order(row: Words, words: Words, order: Integers) -> bool:
    """Order positions as `_sort` orders values, and leave the row as it is."""
    counts = np.empty((3, _BUCKETS), dtype=np.uint64)
    least, shift = _range(row)
    _count(row, least, shift, counts)
    a, b = words
    from_a, from_b = order
    for i in range(len(row)):
        word = _as_number(row[i]) - least
        j = _place(word >> shift, counts[0])
        a[j], from_a[j] = word, i
    for i in range(len(row)):
        j = _place(a[i] >> (shift + _DIGITS), counts[1])
        b[j], from_b[j] = a[i], from_a[i]
    for i in range(len(row)):
        j = _place(b[i] >> (shift + _DIGITS + _DIGITS), counts[2])
        a[j], from_a[j] = b[i], from_b[i]
    return _insert(a, from_a)
