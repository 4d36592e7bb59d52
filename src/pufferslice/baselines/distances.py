# SPDX-License-Identifier: Apache-2.0
"""All distances between the atoms of two laws, and how much memory they would take."""

import math
import os
from pathlib import Path
from typing import Final

import numpy as np

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel
from pufferslice.errors import ArgumentError
from pufferslice.laws import EmpiricalLaw
from pufferslice.parallel import in_threads

_FLOAT_BYTES: Final = 8
_ROWS_PER_BLOCK: Final = 64
_TINY: Final = 1e-280
_MEMINFO: Final = Path("/proc/meminfo")
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def check_pair(first: EmpiricalLaw, second: EmpiricalLaw, n_arrays: float) -> None:
    """Both laws have one dimension, and `n_arrays` tables of their distances fit into memory."""
    if first.dim != second.dim:
        msg = f"both laws must have one dimension, got {first.dim} and {second.dim}"
        raise ArgumentError(msg)
    needed = int(first.n_samples * second.n_samples * _FLOAT_BYTES * n_arrays)
    free = free_bytes()
    if needed > free:
        msg = (
            f"laws of {first.n_samples:,} and {second.n_samples:,} atoms need "
            f"{readable_bytes(needed)} of memory for their distances, {readable_bytes(free)} are "
            "free. Use fewer samples, or a sliced mechanism, which needs no such table"
        )
        raise ArgumentError(msg)


def pairwise_distances(first: EmpiricalLaw, second: EmpiricalLaw) -> Floats:
    """Euclidean distances between the atoms, shape (first.n_samples, second.n_samples).

    Differences are squared after an exact scaling by a power of two: nothing over- or underflows.
    """
    largest = max(float(np.abs(law.outputs).max()) for law in (first, second))
    exponent = math.frexp(largest)[1]
    rows = np.ldexp(first.outputs, -exponent)
    columns = np.ascontiguousarray(np.ldexp(second.outputs, -exponent).T)
    distances = np.empty((len(rows), columns.shape[1]))

    def block(start: int) -> None:
        part = slice(start, start + _ROWS_PER_BLOCK)
        _fill(rows[part], columns, distances[part])
        with np.errstate(over="ignore"):  # told below
            np.ldexp(distances[part], exponent, out=distances[part])

    in_threads(block, range(0, len(rows), _ROWS_PER_BLOCK))
    if not math.isfinite(float(distances.max())):
        msg = "the distances between the laws are beyond the range of floats; scale the query"
        raise ArgumentError(msg)
    return distances


def masses(first: EmpiricalLaw, second: EmpiricalLaw) -> tuple[Integers, Integers]:
    """The counts of both laws as whole multiples of one common unit."""
    common = math.gcd(first.total, second.total)
    return first.counts * (second.total // common), second.counts * (first.total // common)


def free_bytes() -> int:
    """Memory that this process may still take."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def readable_bytes(size: float) -> str:
    """A number of bytes with three digits.

    >>> readable_bytes(128_000_000)
    '122 MiB'
    """
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"


@kernel
def _fill(rows: Floats, columns: Floats, distances: Floats) -> None:
    for i in range(len(rows)):
        out = distances[i]
        out[:] = 0.0
        for k in range(len(columns)):
            x, column = rows[i, k], columns[k]
            for j in range(len(out)):
                difference = x - column[j]
                out[j] += difference * difference
        for j in range(len(out)):
            square = out[j]
            out[j] = math.sqrt(square) if square > _TINY else _near(rows[i], columns, j)


@kernel
def _near(row: Floats, columns: Floats, j: int) -> float:
    """The distance of two points whose squared differences are too small for a float."""
    largest = 0.0
    for k in range(len(row)):
        largest = max(largest, abs(row[k] - columns[k, j]))
    if largest == 0.0:
        return 0.0
    total = 0.0
    for k in range(len(row)):
        total += ((row[k] - columns[k, j]) / largest) ** 2
    return largest * math.sqrt(total)
