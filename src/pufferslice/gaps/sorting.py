# SPDX-License-Identifier: Apache-2.0
"""Sorts long rows of floats by their binary digits, for numpy's sort is slow on some processors.

Floats become whole numbers that compare alike. These are put in order of 33 leading digits of what
they are above the smallest, in three passes of 11; what is out of order then is moved by insertion.
Rows in which that would be much are left to numpy.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel

Words = npt.NDArray[np.uint64]

SHORT: Final = 2_000
"""Below this length numpy is as quick."""

MOVES_PER_VALUE: Final = 8
"""Insertion may move so many times as many values as there are."""

_SIGN: Final = np.uint64(2**63)
_ALL: Final = np.uint64(2**64 - 1)
_ONE: Final = np.uint64(1)
_DIGITS: Final = np.uint64(11)
_LEADING: Final = np.uint64(33)
_BUCKETS: Final = 2**11
_LAST: Final = np.uint64(_BUCKETS - 1)


def sort_rows(values: Floats, spare: Floats) -> None:
    """Sort each row in place, ascending; none holds NaN.

    `spare` is room for one row; what lies in it is lost.
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
    """The positions of a row's values in ascending order, equal ones as they come; no NaN."""
    n = len(values)
    if n >= SHORT:
        words, order = np.empty((2, n), dtype=np.uint64), np.empty((2, n), dtype=np.int64)
        if _order(values.view(np.uint64), words, order):
            found: Integers = order[0]
            return found
    return np.argsort(values, kind="stable")


@kernel
def _as_number(bits: np.uint64) -> np.uint64:
    """Grows with the float: of negative ones all bits flip, of others the sign."""
    return bits ^ (_SIGN if bits < _SIGN else _ALL)


@kernel
def _as_float(number: np.uint64) -> np.uint64:
    return number ^ (_ALL if number < _SIGN else _SIGN)


@kernel
def _range(row: Words) -> tuple[np.uint64, np.uint64]:
    """The smallest number, and how many digits to drop so that the leading ones are left."""
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
    """Where the numbers with each digit begin, for each of the three passes."""
    counts[:] = 0
    for i in range(len(row)):
        word = (_as_number(row[i]) - least) >> shift
        counts[0, word & _LAST] += _ONE
        counts[1, (word >> _DIGITS) & _LAST] += _ONE
        counts[2, word >> (_DIGITS + _DIGITS)] += _ONE
    for one in counts:
        start = np.uint64(0)
        for digit in range(_BUCKETS):
            one[digit], start = start, start + one[digit]


@kernel
def _place(word: np.uint64, starts: Words) -> np.uint64:
    """The next free place for a last digit."""
    place: np.uint64 = starts[word & _LAST]
    starts[word & _LAST] = place + _ONE
    return place


@kernel
def _insert(words: Words, order: Integers) -> bool:
    """Move every word, with its position if there are any, below larger ones before it.

    False if that would be too many moves; the words are the same all the same.
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
    """Whether the row is in order now; else it holds the same values."""
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
    """As `_sort`, but moves positions along and leaves the row as it is."""
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
