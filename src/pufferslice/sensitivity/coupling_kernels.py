# SPDX-License-Identifier: Apache-2.0
"""Inner loops of couplings: bisection, exact transport of small blocks, corner rule.

Masses are integers throughout, so that both marginals of a coupling are exact; costs are floats and
only decide which coupling is found.
"""

import math
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import small_kernel

SQUARED: Final = 0
RENYI: Final = 1
DELTA: Final = 2
"""Codes of the costs; a guess is a delta at epsilon 0."""

_ROOT_HALF: Final = math.sqrt(0.5)
_STEEPEST: Final = 8.0
"""Cut for exponents above that of the worst current distance: no better plan uses them."""
_FAR: Final = 1e9
"""Limit on exponents and ratios, so that sums of costs stay finite."""
_TIE: Final = 1e-9
"""Weight of the squared distance where the claim's cost hardly changes."""
_GAIN: Final = 1e-9
"""Least relative fall of a block's cost for which the block changes; less could be rounding."""

_TINY: Final = 1e-280
"""Size up to which squares may have lost digits."""

_FIRST_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND_STEP: Final = np.uint64(0xBF58476D1CE4E5B9)
_THIRD_STEP: Final = np.uint64(0x94D049BB133111EB)


@small_kernel
def random_directions(seed: int, n: int, dim: int) -> Floats:
    """Draw unit vectors by SplitMix64, so that no library's generator decides which they are."""
    result = np.empty((n, dim))
    state = np.uint64(seed)
    for row in range(n):
        length = 0.0
        while length < 1e-3:
            length = 0.0
            for k in range(dim):
                value = -2.0
                for _ in range(4):
                    state += _FIRST_STEP
                    word = state
                    word = (word ^ (word >> np.uint64(30))) * _SECOND_STEP
                    word = (word ^ (word >> np.uint64(27))) * _THIRD_STEP
                    word ^= word >> np.uint64(31)
                    value += float(word >> np.uint64(11)) * 2.0**-53
                result[row, k] = value
                length += value * value
        for k in range(dim):
            result[row, k] /= math.sqrt(length)
    return result


@small_kernel
def _project(
    points: Floats, atoms: Integers, start: int, stop: int, u: Floats, out: Floats
) -> None:
    for i in range(start, stop):
        value = 0.0
        for k in range(len(u)):
            value += points[atoms[i], k] * u[k]
        out[i] = value


@small_kernel
def _split(
    values: Floats, atoms: Integers, masses: Integers, start: int, stop: int, target: int
) -> tuple[int, int]:
    """Reorder a range so that values before a place are at most, after it at least, its value.

    The place is where the mass, summed from the left, reaches `target`; returned with the mass
    before it.
    """
    before = 0
    while stop - start > 1:
        a, b, c = values[start], values[(start + stop) // 2], values[stop - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = start, stop - 1
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                atoms[i], atoms[j] = atoms[j], atoms[i]
                masses[i], masses[j] = masses[j], masses[i]
                i += 1
                j -= 1
        left = before
        for k in range(start, j + 1):
            left += masses[k]
        if left >= target:
            stop = j + 1
            continue
        before = left
        if i - j == 2:
            if before + masses[j + 1] >= target:
                return j + 1, before
            before += masses[j + 1]
        start = i
    return start, before


@small_kernel
def bisect(
    points_a: Floats,
    masses_a: Integers,
    points_b: Floats,
    masses_b: Integers,
    directions: Floats,
) -> tuple[Integers, Integers, Integers]:
    """Cut both distributions at equal mass along random directions until one atom is left.

    Cuts are made between atoms of the first; an atom of the second on a cut is split in two.
    Returns atom, atom and mass of each piece.
    """
    n, m = len(masses_a), len(masses_b)
    atoms_a, left_a, values_a = np.arange(n), masses_a.copy(), np.empty(n)
    atoms_b, left_b = np.zeros(m + n, dtype=np.int64), np.zeros(m + n, dtype=np.int64)
    values_b = np.empty(m + n)
    atoms_b[:m], left_b[:m] = np.arange(m), masses_b
    first, second = np.empty(2 * n + m, dtype=np.int64), np.empty(2 * n + m, dtype=np.int64)
    masses = np.empty(2 * n + m, dtype=np.int64)
    # The parts still to be cut lie one after the other, as on a stack.
    starts = np.zeros((n + 1, 2), dtype=np.int64)
    n_parts, end_a, end_b, n_pieces, n_cuts = 1, n, m, 0, 0
    while n_parts:
        a, b = starts[n_parts - 1, 0], starts[n_parts - 1, 1]
        if end_a - a == 1 or end_b - b == 1:
            for i in range(a, end_a):
                for j in range(b, end_b):
                    first[n_pieces], second[n_pieces] = atoms_a[i], atoms_b[j]
                    masses[n_pieces] = min(left_a[i], left_b[j])
                    n_pieces += 1
            end_a, end_b = a, b
            n_parts -= 1
            continue
        u = directions[n_cuts % len(directions)]
        n_cuts += 1
        _project(points_a, atoms_a, a, end_a, u, values_a)
        _project(points_b, atoms_b, b, end_b, u, values_b)
        total = left_a[a:end_a].sum()
        cut, mass = _split(values_a, atoms_a, left_a, a, end_a, (total + 1) // 2)
        if cut == a or (cut + 1 < end_a and 2 * mass + left_a[cut] <= total):
            mass += left_a[cut]
            cut += 1
        place, before = _split(values_b, atoms_b, left_b, b, end_b, mass)
        if before + left_b[place] > mass:
            atoms_b[end_b] = atoms_b[place]
            left_b[end_b] = before + left_b[place] - mass
            left_b[place] = mass - before
            end_b += 1
        starts[n_parts, 0], starts[n_parts, 1] = cut, place + 1
        n_parts += 1
    return first[:n_pieces].copy(), second[:n_pieces].copy(), masses[:n_pieces].copy()


@small_kernel
def corner(
    order_a: Integers, masses_a: Integers, order_b: Integers, masses_b: Integers
) -> tuple[Integers, Integers, Integers]:
    """Couple by rank, with both distributions in their orders: the north-west corner rule."""
    most = len(order_a) + len(order_b)
    first, second = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    masses = np.empty(most, dtype=np.int64)
    i = j = n = 0
    left_a, left_b = masses_a[order_a[0]], masses_b[order_b[0]]
    while True:
        mass = min(left_a, left_b)
        first[n], second[n], masses[n] = order_a[i], order_b[j], mass
        n += 1
        left_a, left_b = left_a - mass, left_b - mass
        if left_a == 0:
            i += 1
            if i == len(order_a):
                return first[:n].copy(), second[:n].copy(), masses[:n].copy()
            left_a = masses_a[order_a[i]]
        if left_b == 0:
            j += 1
            left_b = masses_b[order_b[j]]


@small_kernel
def piece_squares(points_a: Floats, points_b: Floats, first: Integers, second: Integers) -> Floats:
    """Compute the squared distance of every piece."""
    result = np.empty(len(first))
    for i in range(len(first)):
        square = 0.0
        for k in range(points_a.shape[1]):
            square += (points_a[first[i], k] - points_b[second[i], k]) ** 2
        result[i] = square
    return result


@small_kernel
def piece_distances(
    points_a: Floats, points_b: Floats, first: Integers, second: Integers
) -> Floats:
    """Compute every piece's distance, or a bound where its square is too small for a float."""
    squares = piece_squares(points_a, points_b, first, second)
    result: Floats = np.sqrt(squares)
    dim = points_a.shape[1]
    for i in range(len(first)):
        if squares[i] <= _TINY:
            largest = 0.0
            for k in range(dim):
                largest = max(largest, abs(points_a[first[i], k] - points_b[second[i], k]))
            result[i] = math.sqrt(dim) * largest
    return result


@small_kernel
def pair_squares(points_a: Floats, points_b: Floats) -> Floats:
    """Compute the squared distance of every atom to every other."""
    result = np.empty((len(points_a), len(points_b)))
    for i in range(len(points_a)):
        for j in range(len(points_b)):
            square = 0.0
            for k in range(points_a.shape[1]):
                square += (points_a[i, k] - points_b[j, k]) ** 2
            result[i, j] = square
    return result


@small_kernel
def to_costs(
    squares: Floats, n: int, m: int, top: float, kind: int, rate: float, epsilon: float, std: float
) -> None:
    """Turn squared distances, in place, into the claim's cost; `top` is the current plan's worst.

    Up to a factor; where the cost is flat the squared distance decides.
    """
    if kind == SQUARED or not top > 0:
        return
    growth = math.exp(_STEEPEST)
    scale = math.exp(epsilon) if epsilon < 700.0 else 0.0
    for i in range(n):
        for j in range(m):
            square = squares[i, j]
            r = math.sqrt(square) / std if std > 0 else 0.0
            cost = 0.0
            if kind == RENYI:
                x = min(rate * (square - top), _FAR)
                cost = math.exp(x) if x < _STEEPEST else growth * (1 + x - _STEEPEST)
            elif r > 0:
                near = math.erfc((epsilon / r - r / 2) * _ROOT_HALF)
                far = math.erfc((epsilon / r + r / 2) * _ROOT_HALF)
                cost = max(0.0, near - scale * far) / 2
            squares[i, j] = cost + _TIE * min(square / top, _FAR)


@small_kernel
def transport(
    costs: Floats, supplies: Integers, demands: Integers, flows: Integers, room: Integers
) -> None:
    """Find a least-cost transport with integer masses, by shortest augmenting paths; fill `flows`.

    `flows` has shape (n_columns, n_rows), one row for each demand. With masses of 1 this is the
    assignment algorithm of Jonker and Volgenant. `room`, of shape (n_columns, n_rows), is scratch.
    """
    n, m = len(supplies), len(demands)
    u, v = np.zeros(n), np.empty(m)
    left, need = supplies.copy(), demands.copy()
    n_sources = np.zeros(m, dtype=np.int64)
    sources = room
    for j in range(m):
        best = 0
        for i in range(n):
            flows[j, i] = 0
            if costs[i, j] < costs[best, j]:
                best = i
        v[j] = costs[best, j]
        mass = min(left[best], need[j])
        if mass > 0:
            flows[j, best] = mass
            left[best] -= mass
            need[j] -= mass
            sources[j, 0], n_sources[j] = best, 1
    distances, by_row = np.empty(m), np.empty(m, dtype=np.int64)
    row_distances, by_column = np.empty(n), np.empty(n, dtype=np.int64)
    is_reached = np.empty(n, dtype=np.bool_)
    open_columns, closed, waiting = (
        np.empty(m, dtype=np.int64),
        np.empty(m, dtype=np.int64),
        np.empty(n, dtype=np.int64),
    )
    for start in range(n):
        while left[start] > 0:
            for j in range(m):
                distances[j] = math.inf
                open_columns[j] = j
            for i in range(n):
                is_reached[i] = False
            n_open, n_closed, n_waiting = m, 0, 1
            waiting[0], is_reached[start], row_distances[start] = start, True, 0.0
            sink = -1
            while sink < 0:
                place, least = -1, math.inf
                while n_waiting > 0:
                    n_waiting -= 1
                    i = waiting[n_waiting]
                    base = row_distances[i] - u[i]
                    place, least = -1, math.inf
                    for k in range(n_open):
                        j = open_columns[k]
                        distance = base + costs[i, j] - v[j]
                        if distance < distances[j]:
                            distances[j], by_row[j] = distance, i
                        if distances[j] < least:
                            place, least = k, distances[j]
                if place < 0:
                    for k in range(n_open):
                        if distances[open_columns[k]] < least:
                            place, least = k, distances[open_columns[k]]
                j = open_columns[place]
                n_open -= 1
                open_columns[place] = open_columns[n_open]
                if need[j] > 0:
                    sink = j
                    break
                closed[n_closed] = j
                n_closed += 1
                for k in range(n_sources[j]):
                    i = sources[j, k]
                    if not is_reached[i]:
                        is_reached[i] = True
                        row_distances[i], by_column[i] = distances[j], j
                        waiting[n_waiting] = i
                        n_waiting += 1
            reach = distances[sink]
            for i in range(n):
                if is_reached[i]:
                    u[i] += reach - row_distances[i]
            for k in range(n_closed):
                v[closed[k]] -= reach - distances[closed[k]]
            mass = min(left[start], need[sink])
            i = by_row[sink]
            while i != start:
                mass = min(mass, flows[by_column[i], i])
                i = by_row[by_column[i]]
            left[start] -= mass
            need[sink] -= mass
            j = sink
            while True:
                i = by_row[j]
                if flows[j, i] == 0:
                    sources[j, n_sources[j]] = i
                    n_sources[j] += 1
                flows[j, i] += mass
                if i == start:
                    break
                j = by_column[i]
                flows[j, i] -= mass
                if flows[j, i] == 0:
                    k = 0
                    while sources[j, k] != i:
                        k += 1
                    n_sources[j] -= 1
                    sources[j, k] = sources[j, n_sources[j]]


@small_kernel
def improve(
    points_a: Floats,
    points_b: Floats,
    first: Integers,
    second: Integers,
    masses: Integers,
    directions: Floats,
    side: int,
    block: int,
    most: int,
    kind: int,
    rate: float,
    epsilon: float,
    std: float,
) -> tuple[Integers, Integers, Integers]:
    """Cut the pieces into blocks of near ones, and couple each block at least cost.

    Nearness is that of the first atoms (`side` 0), the second (1) or their sum (2). There are
    never more than `most` pieces; a block that would need more, or gains nothing, stays as it is.
    """
    n_pieces, dim = len(first), points_a.shape[1]
    order, values = np.arange(n_pieces), np.empty(n_pieces)
    ones = np.ones(n_pieces, dtype=np.int64)
    new_first, new_second = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    new_masses = np.empty(most, dtype=np.int64)
    row_of = np.full(len(points_a), -1)
    column_of = np.full(len(points_b), -1)
    rows, columns = np.empty(block, dtype=np.int64), np.empty(block, dtype=np.int64)
    near_a, near_b = np.empty((block, dim)), np.empty((block, dim))
    supplies, demands = np.empty(block, dtype=np.int64), np.empty(block, dtype=np.int64)
    costs = np.empty((block, block))
    flows, room = np.empty((block, block), np.int64), np.empty((block, block), np.int64)
    ends = np.empty(n_pieces + 1, dtype=np.int64)
    ends[0], n_parts, start, n_cuts, n_new = n_pieces, 1, 0, 0, 0
    while n_parts:
        stop = ends[n_parts - 1]
        if stop - start > block:
            u = directions[n_cuts % len(directions)]
            n_cuts += 1
            for i in range(start, stop):
                a, b, value = first[order[i]], second[order[i]], 0.0
                if side != 1:
                    for k in range(dim):
                        value += points_a[a, k] * u[k]
                if side != 0:
                    for k in range(dim):
                        value += points_b[b, k] * u[k]
                values[i] = value
            half = (stop - start) // 2
            _split(values, order, ones, start, stop, half + 1)
            ends[n_parts] = start + half
            n_parts += 1
            continue
        n = m = 0
        for i in range(start, stop):
            piece = order[i]
            a, b, mass = first[piece], second[piece], masses[piece]
            if row_of[a] < 0:
                row_of[a], rows[n], supplies[n] = n, a, 0
                near_a[n] = points_a[a]
                n += 1
            if column_of[b] < 0:
                column_of[b], columns[m], demands[m] = m, b, 0
                near_b[m] = points_b[b]
                m += 1
            supplies[row_of[a]] += mass
            demands[column_of[b]] += mass
        for i in range(n):
            for j in range(m):
                square = 0.0
                for k in range(dim):
                    square += (near_a[i, k] - near_b[j, k]) ** 2
                costs[i, j] = square
        top = 0.0
        for i in range(start, stop):
            piece = order[i]
            top = max(top, costs[row_of[first[piece]], column_of[second[piece]]])
        to_costs(costs, n, m, top, kind, rate, epsilon, std)
        before = after = 0.0
        for i in range(start, stop):
            piece = order[i]
            cost = costs[row_of[first[piece]], column_of[second[piece]]]
            before += float(masses[piece]) * cost
        n_flows = 0
        if n > 1 and m > 1:
            transport(costs, supplies[:n], demands[:m], flows, room)
            for j in range(m):
                for i in range(n):
                    if flows[j, i] > 0:
                        after += float(flows[j, i]) * costs[i, j]
                        n_flows += 1
        fits = n_new + n_flows + n_pieces - stop <= most
        if n_flows > 0 and fits and after < before * (1 - _GAIN):
            for j in range(m):
                for i in range(n):
                    if flows[j, i] > 0:
                        new_first[n_new], new_second[n_new] = rows[i], columns[j]
                        new_masses[n_new] = flows[j, i]
                        n_new += 1
        else:
            for i in range(start, stop):
                piece = order[i]
                new_first[n_new], new_second[n_new] = first[piece], second[piece]
                new_masses[n_new] = masses[piece]
                n_new += 1
        for i in range(n):
            row_of[rows[i]] = -1
        for j in range(m):
            column_of[columns[j]] = -1
        start = stop
        n_parts -= 1
    return new_first[:n_new].copy(), new_second[:n_new].copy(), new_masses[:n_new].copy()
