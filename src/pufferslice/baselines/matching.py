# SPDX-License-Identifier: Apache-2.0
"""Matchings and flows over the short entries of a table of distances, without building a graph.

An edge is an entry up to a limit. Columns that were reached are dropped from a list of those still
to look at, so that a search reads an entry at most once.
"""

import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel

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
