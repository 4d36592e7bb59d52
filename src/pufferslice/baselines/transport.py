# SPDX-License-Identifier: Apache-2.0
"""The cheapest coupling of two laws with finitely many atoms, for a table of costs."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from pufferslice.arrays import Floats, Integers
from pufferslice.baselines.distances import masses
from pufferslice.compiled import kernel
from pufferslice.laws import EmpiricalLaw


class Coupling(NamedTuple):
    """Which atoms are coupled, and with how much mass; whole multiples of one unit."""

    rows: Integers
    columns: Integers
    masses: Integers


def cheapest_coupling(costs: Floats, first: EmpiricalLaw, second: EmpiricalLaw) -> Coupling:
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
