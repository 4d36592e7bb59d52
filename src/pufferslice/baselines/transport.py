# SPDX-License-Identifier: Apache-2.0
"""Couplings of finite distributions: distances, exact W-infinity, cheapest transport.

An edge is an entry up to a limit. Columns that were reached are dropped from a list of those still
to look at, so that a search reads an entry at most once.
"""

import math
import os
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import kernel
from pufferslice._core.threads import in_threads
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution

_FLOAT_BYTES: Final = 8
_ROWS_PER_BLOCK: Final = 64
_TINY: Final = 1e-280
_MEMINFO: Final = Path("/proc/meminfo")
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def check_pair(first: FiniteDistribution, second: FiniteDistribution, n_arrays: float) -> None:
    """Both sides have one dimension, and `n_arrays` tables of their distances fit into memory."""
    if first.dim != second.dim:
        msg = f"both distributions must have one dimension, got {first.dim} and {second.dim}"
        raise ArgumentError(msg)
    needed = int(first.n_samples * second.n_samples * _FLOAT_BYTES * n_arrays)
    free = free_bytes()
    if needed > free:
        msg = (
            f"distributions of {first.n_samples:,} and {second.n_samples:,} atoms need "
            f"{readable_bytes(needed)} of memory for their distances, {readable_bytes(free)} are "
            "free. Use fewer samples, or a sliced mechanism, which needs no such table"
        )
        raise ArgumentError(msg)


def pairwise_distances(first: FiniteDistribution, second: FiniteDistribution) -> Floats:
    """Euclidean distances between the atoms, shape (first.n_samples, second.n_samples).

    Differences are squared after an exact scaling by a power of two: nothing over- or underflows.
    """
    largest = max(float(np.abs(distribution.outputs).max()) for distribution in (first, second))
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
        msg = "the distances between the atoms are beyond the range of floats; scale the query"
        raise ArgumentError(msg)
    return distances


def masses(first: FiniteDistribution, second: FiniteDistribution) -> tuple[Integers, Integers]:
    """The counts of both distributions as whole multiples of one common unit."""
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


Flags = npt.NDArray[np.bool_]
Edges = tuple[Floats, float]
"""A table of distances, and the limit up to which an entry is an edge."""

FREE = -1
"""The partner of a row or column that has none."""


@kernel
def match_within(
    distances: Floats,
    limit: float,
    partners: tuple[Integers, Integers],
    reached: tuple[Flags, Flags],
) -> int:
    """Extend a matching to a largest one by Hopcroft and Karp; the number of rows left free.

    `reached` is set to the rows and columns that alternating paths from the free rows come to:
    all neighbours of the reached rows are reached columns.
    """
    of_row = partners[0]
    n_rows, n_columns = distances.shape
    layers = np.empty(n_columns, np.int64), np.empty((2, n_rows + 2), np.int64)
    while True:
        depth = _layers((distances, limit), partners, reached, layers)
        if depth < 0:
            break
        path = np.empty((3, depth + 1), np.int64)
        for row in range(n_rows):
            if of_row[row] == FREE:
                _augment(row, (distances, limit), partners, layers, path)
    n_free = 0
    for row in range(n_rows):
        n_free += of_row[row] == FREE
    return n_free


@kernel
def _reach(
    row: int, edges: Edges, rest: tuple[Integers, int], found: tuple[Integers, int]
) -> tuple[int, int]:
    """Move the neighbours of a row from `rest` to the end of `found`; both lengths afterwards."""
    (distances, limit), (columns, n_rest), (order, n_found) = edges, rest, found
    kept = 0
    for k in range(n_rest):
        column = columns[k]
        if distances[row, column] <= limit:
            order[n_found] = column
            n_found += 1
        else:
            columns[kept] = column
            kept += 1
    return kept, n_found


@kernel
def _layers(
    edges: Edges,
    partners: tuple[Integers, Integers],
    reached: tuple[Flags, Flags],
    layers: tuple[Integers, Integers],
) -> int:
    """Breadth first from the free rows; the last layer, in which columns are free, or -1."""
    (of_row, of_column), (order, bounds) = partners, layers
    seen_rows, seen_columns = reached
    seen_rows[:], seen_columns[:] = of_row == FREE, False
    rest, n_rest, n_found = np.arange(len(of_column)), len(of_column), 0
    rows = np.empty(len(of_row), np.int64)
    high = seen_rows.sum()
    rows[:high] = np.flatnonzero(seen_rows)
    low = layer = 0
    while low < high:
        bounds[0, layer] = kept = n_found
        for position in range(low, high):
            n_rest, n_found = _reach(rows[position], edges, (rest, n_rest), (order, n_found))
        low = high
        for k in range(bounds[0, layer], n_found):
            column, partner = order[k], of_column[order[k]]
            seen_columns[column] = True
            if partner == FREE:
                # Only free columns end a path; they make this layer the last.
                order[kept] = column
                kept += 1
            else:
                rows[high], seen_rows[partner] = partner, True
                high += 1
        if kept > bounds[0, layer]:
            bounds[1, layer] = kept
            return layer
        bounds[1, layer] = n_found
        layer += 1
    return -1


@kernel
def _augment(
    start: int,
    edges: Edges,
    partners: tuple[Integers, Integers],
    layers: tuple[Integers, Integers],
    path: Integers,
) -> bool:
    """Depth first from one free row along the layers; a column that was tried is dropped."""
    (distances, limit), (order, bounds) = edges, layers
    of_row, of_column = partners
    layer, depth = 0, path.shape[1] - 1
    path[0, 0], path[2, 0] = start, bounds[0, 0]
    while layer >= 0:
        row, k, found = path[0, layer], path[2, layer], FREE
        while k < bounds[1, layer]:
            column = order[k]
            if distances[row, column] <= limit:
                found = column
                bounds[1, layer] -= 1
                order[k] = order[bounds[1, layer]]
                break
            k += 1
        path[2, layer] = k
        if found == FREE:
            layer -= 1
            continue
        path[1, layer] = found
        if layer == depth:
            for step in range(depth + 1):
                of_row[path[0, step]], of_column[path[1, step]] = path[1, step], path[0, step]
            return True
        layer += 1
        path[0, layer], path[2, layer] = of_column[found], bounds[0, layer]
    return False


@kernel
def flow_within(
    distances: Floats,
    limit: float,
    left: tuple[Integers, Integers],
    flow: Integers,
    reached: tuple[Flags, Flags],
) -> int:
    """Extend a flow to a largest one by Dinic's algorithm; the supply that stays where it is.

    `left` is what each row still has to give and each column to take; `flow[column, row]` is what
    goes from row to column. `reached` as in `match_within`.
    """
    supply = left[0]
    n_rows, n_columns = distances.shape
    levels = np.empty(n_rows, np.int64), np.empty(n_columns, np.int64)
    layers = np.empty(n_columns, np.int64), np.empty((2, n_rows + 2), np.int64)
    path = np.empty((2, n_rows + 1), np.int64)
    while _flow_layers((distances, limit), left, flow, levels, layers):
        search = levels[0], layers, np.zeros(n_rows, np.int64), np.zeros(n_columns, np.int64)
        for row in range(n_rows):
            while supply[row] > 0 and _push(row, (distances, limit), left, flow, search, path):
                pass
    for row in range(n_rows):
        reached[0][row] = levels[0][row] >= 0
    for column in range(n_columns):
        reached[1][column] = levels[1][column] >= 0
    return int(supply.sum())


@kernel
def _flow_layers(
    edges: Edges,
    left: tuple[Integers, Integers],
    flow: Integers,
    levels: tuple[Integers, Integers],
    layers: tuple[Integers, Integers],
) -> bool:
    """Breadth first from the rows with supply; whether a column with demand was reached."""
    (supply, demand), (order, bounds) = left, layers
    row_levels, column_levels = levels
    row_levels[:], column_levels[:] = np.where(supply > 0, 0, -1), -1
    rest, n_rest, n_found = np.arange(len(demand)), len(demand), 0
    rows = np.empty(len(supply), np.int64)
    high = (supply > 0).sum()
    rows[:high] = np.flatnonzero(supply > 0)
    low = layer = 0
    while low < high:
        bounds[0, layer], found = n_found, False
        for position in range(low, high):
            n_rest, n_found = _reach(rows[position], edges, (rest, n_rest), (order, n_found))
        bounds[1, layer] = n_found
        low = high
        for k in range(bounds[0, layer], n_found):
            column_levels[order[k]] = layer
            found = found or demand[order[k]] > 0
        if found:
            return True
        for k in range(bounds[0, layer], n_found):
            back = flow[order[k]]
            for row in range(len(back)):
                if back[row] > 0 and row_levels[row] < 0:
                    rows[high], row_levels[row] = row, layer + 1
                    high += 1
        layer += 1
    return False


@kernel
def _push(
    start: int,
    edges: Edges,
    left: tuple[Integers, Integers],
    flow: Integers,
    search: tuple[Integers, tuple[Integers, Integers], Integers, Integers],
    path: Integers,
) -> bool:
    """Send what fits along one path from a row with supply; positions only ever go forward."""
    distances, limit = edges
    row_levels, (order, bounds), row_at, column_at = search
    n_rows, layer = len(row_levels), 0
    path[0, 0] = start
    while layer >= 0:
        row = path[0, layer]
        row_at[row] = max(row_at[row], bounds[0, layer])
        column = -1
        while row_at[row] < bounds[1, layer]:
            tried = order[row_at[row]]
            if column_at[tried] <= n_rows and distances[row, tried] <= limit:
                column = tried
                break
            row_at[row] += 1
        if column < 0:
            layer -= 1
            if layer >= 0:
                column_at[path[1, layer]] += 1
            continue
        path[1, layer] = column
        if left[1][column] > 0:
            _send(layer, path, left, flow)
            return True
        back, k = flow[column], column_at[column]
        while k < n_rows and not (back[k] > 0 and row_levels[k] == layer + 1):
            k += 1
        column_at[column] = k
        if k == n_rows:
            column_at[column] = n_rows + 1
            continue
        layer += 1
        path[0, layer] = k
    return False


@kernel
def _send(last: int, path: Integers, left: tuple[Integers, Integers], flow: Integers) -> None:
    """Move along a path as much as its ends and its backward steps allow."""
    supply, demand = left
    amount = min(supply[path[0, 0]], demand[path[1, last]])
    for step in range(last):
        amount = min(amount, flow[path[1, step], path[0, step + 1]])
    supply[path[0, 0]] -= amount
    demand[path[1, last]] -= amount
    for step in range(last + 1):
        flow[path[1, step], path[0, step]] += amount
        if step < last:
            flow[path[1, step], path[0, step + 1]] -= amount


@kernel
def nearest_outside(distances: Floats, reached: tuple[Flags, Flags]) -> Floats:
    """For each column that was not reached, its least distance to a reached row; else infinite."""
    seen_rows, seen_columns = reached
    nearest = np.full(distances.shape[1], np.inf)
    for row in range(len(seen_rows)):
        if seen_rows[row]:
            for column in range(len(nearest)):
                if not seen_columns[column] and distances[row, column] < nearest[column]:
                    nearest[column] = distances[row, column]
    return nearest


_PATIENCE: Final = 6
"""Failed limits before every other one is taken by halving."""


def w_infinity(first: FiniteDistribution, second: FiniteDistribution) -> float:
    """The smallest t for which a coupling moves no mass farther than t, in any dimension.

    Equal distributions of n atoms are matched (Hopcroft and Karp), others are coupled by a largest
    flow (Dinic). Takes one table of distances for a matching, two for a flow.

    Guarantee: exact up to the rounding of one distance.
    Source: def:WD, lem:Winfty_bottleneck_matching.

    >>> first = FiniteDistribution.uniform([[0.0, 0.0], [3.0, 4.0]])
    >>> w_infinity(first, FiniteDistribution.uniform([[0.0, 0.0]]))
    5.0
    """
    alike = first.is_uniform and second.is_uniform and first.n_samples == second.n_samples
    check_pair(first, second, n_arrays=1 if alike else 2)
    return least_limit(pairwise_distances(first, second), first, second)


def least_limit(distances: Floats, first: FiniteDistribution, second: FiniteDistribution) -> float:
    """As `w_infinity`, from distances that are there already.

    Every atom must go somewhere, so the largest nearest-neighbour distance is a lower bound, and
    very often the answer. Where it is not, the atoms that could not be served tell the next one.
    """
    low = float(max(distances.min(axis=1).max(), distances.min(axis=0).max()))
    high = float(distances.max())
    coupling = _coupling(distances, first, second)
    misses = 0
    while low < high and not coupling.fits(low):
        low = coupling.next_limit()
        misses += 1
        if misses > _PATIENCE and low < high:
            middle = low + (high - low) / 2
            if coupling.fits(middle):
                high = max(low, coupling.longest())
                coupling.cut(low)
            else:
                low = coupling.next_limit()
    return low


class _Coupling(Protocol):
    """A partial coupling that grows with the limit; both kinds below are one."""

    def fits(self, limit: float) -> bool:
        """Whether all mass can be coupled by entries up to the limit."""

    def next_limit(self) -> float:
        """After a limit that did not fit: an entry above it that the answer cannot be below."""

    def longest(self) -> float:
        """The largest entry that is used."""

    def cut(self, limit: float) -> None:
        """Undo what goes farther than the limit."""


@final
class _Matching:
    """Rows and columns that count once each."""

    def __init__(self, distances: Floats) -> None:
        n = len(distances)
        self._distances = distances
        self._partners = np.full(n, FREE), np.full(n, FREE)
        self._reached = _no_flags(n, n)
        self._n_free = n

    def fits(self, limit: float) -> bool:
        self._n_free = match_within(self._distances, limit, self._partners, self._reached)
        return self._n_free == 0

    def next_limit(self) -> float:
        nearest = nearest_outside(self._distances, self._reached)
        return float(np.partition(nearest, self._n_free - 1)[self._n_free - 1])

    def longest(self) -> float:
        return float(self._used().max())

    def cut(self, limit: float) -> None:
        of_row, of_column = self._partners
        far = self._used() > limit
        of_column[of_row[far]] = FREE
        of_row[far] = FREE

    def _used(self) -> Floats:
        of_row = self._partners[0]
        return np.asarray(self._distances[np.arange(len(of_row)), of_row])


@final
class _Flow:
    """Rows and columns with whole masses of equal sum."""

    def __init__(
        self, distances: Floats, first: FiniteDistribution, second: FiniteDistribution
    ) -> None:
        n_rows, n_columns = distances.shape
        self._distances = distances
        self._left = masses(first, second)
        self._demand = self._left[1].copy()
        self._flow = np.zeros((n_columns, n_rows), dtype=np.int64)
        self._reached = _no_flags(n_rows, n_columns)
        self._missing = 1

    def fits(self, limit: float) -> bool:
        self._missing = flow_within(self._distances, limit, self._left, self._flow, self._reached)
        return self._missing == 0

    def next_limit(self) -> float:
        nearest = nearest_outside(self._distances, self._reached)
        order = np.argsort(nearest, kind="stable")
        enough = np.searchsorted(np.cumsum(self._demand[order]), self._missing)
        return float(nearest[order[enough]])

    def longest(self) -> float:
        return max(
            float(row[used > 0].max(initial=0.0))
            for row, used in zip(self._distances, self._flow.T, strict=True)
        )

    def cut(self, limit: float) -> None:
        supply, demand = self._left
        for row, (distances, used) in enumerate(zip(self._distances, self._flow.T, strict=True)):
            far = distances > limit
            supply[row] += used[far].sum()
            demand[far] += used[far]
            used[far] = 0


def _coupling(
    distances: Floats, first: FiniteDistribution, second: FiniteDistribution
) -> _Coupling:
    alike = first.is_uniform and second.is_uniform and first.n_samples == second.n_samples
    return _Matching(distances) if alike else _Flow(distances, first, second)


def _no_flags(n_rows: int, n_columns: int) -> tuple[Flags, Flags]:
    return np.zeros(n_rows, dtype=np.bool_), np.zeros(n_columns, dtype=np.bool_)


class Coupling(NamedTuple):
    """Which atoms are coupled, and with how much mass; whole multiples of one unit."""

    rows: Integers
    columns: Integers
    masses: Integers


def cheapest_coupling(
    costs: Floats, first: FiniteDistribution, second: FiniteDistribution
) -> Coupling:
    """The coupling of least mean cost: an assignment for equal sizes, else a transport plan.

    Guarantee: the result is a coupling, exactly; rounding can only make it not quite cheapest.
    """
    if first.is_uniform and second.is_uniform and first.n_samples == second.n_samples:
        rows, columns = linear_sum_assignment(costs)
        return Coupling(rows, columns, np.ones(len(rows), dtype=np.int64))
    flow = np.zeros(costs.shape, dtype=np.int64)
    _transport(costs, *masses(first, second), flow)
    rows, columns = np.nonzero(flow)
    return Coupling(rows, columns, flow[rows, columns])


@kernel
def _transport(costs: Floats, supply: Integers, demand: Integers, flow: Integers) -> None:
    """Successive cheapest paths with potentials; every row in turn gives away all it has."""
    n_rows, n_columns = costs.shape
    row_price, column_price = np.zeros(n_rows), np.zeros(n_columns)
    to_row, to_column = np.empty(n_rows), np.empty(n_columns)
    before = np.empty(n_rows, np.int64), np.empty(n_columns, np.int64)
    for start in range(n_rows):
        while supply[start] > 0:
            prices, lengths = (costs, row_price, column_price), (to_row, to_column)
            last = _cheapest_path(start, prices, (demand, flow), lengths, before)
            length = to_column[last]
            row_price += np.maximum(0.0, length - to_row)
            column_price -= np.maximum(0.0, length - to_column)
            _move(last, (supply, demand), flow, before)


@kernel
def _cheapest_path(
    start: int,
    prices: tuple[Floats, Floats, Floats],
    held: tuple[Integers, Integers],
    lengths: tuple[Floats, Floats],
    before: tuple[Integers, Integers],
) -> int:
    """Dijkstra from a row to the nearest column with demand, forward freely and back along flow."""
    (demand, flow), (to_row, to_column), row_before = held, lengths, before[0]
    seen = np.zeros(len(demand), np.bool_)
    to_row[:], to_column[:] = np.inf, np.inf
    to_row[start], row_before[start] = 0.0, -1
    _relax(start, prices, lengths, before[1])
    while True:
        column = -1
        for j in range(len(demand)):
            if not seen[j] and (column < 0 or to_column[j] < to_column[column]):
                column = j
        seen[column] = True
        if demand[column] > 0:
            return column
        for i in range(len(to_row)):
            if flow[i, column] > 0 and to_row[i] == np.inf:
                to_row[i], row_before[i] = to_column[column], column
                _relax(i, prices, lengths, before[1])


@kernel
def _relax(
    row: int,
    prices: tuple[Floats, Floats, Floats],
    lengths: tuple[Floats, Floats],
    column_before: Integers,
) -> None:
    """Shorten the paths to all columns by way of a row that was just reached."""
    (costs, row_price, column_price), (to_row, to_column) = prices, lengths
    for j in range(len(to_column)):
        length = to_row[row] + max(0.0, costs[row, j] - row_price[row] - column_price[j])
        if length < to_column[j]:
            to_column[j], column_before[j] = length, row


@kernel
def _move(
    last: int, left: tuple[Integers, Integers], flow: Integers, before: tuple[Integers, Integers]
) -> None:
    """Move along the path that ends in a column as much as it can carry."""
    (supply, demand), (row_before, column_before) = left, before
    amount, column = demand[last], last
    row = column_before[column]
    while row_before[row] >= 0:
        column = row_before[row]
        amount = min(amount, flow[row, column])
        row = column_before[column]
    amount = min(amount, supply[row])
    supply[row] -= amount
    demand[last] -= amount
    column = last
    while column >= 0:
        row = column_before[column]
        flow[row, column] += amount
        column = row_before[row]
        if column >= 0:
            flow[row, column] -= amount
