# SPDX-License-Identifier: Apache-2.0
"""Distances of finite distributions: between their atoms, W-infinity, W_p, and cheapest couplings.

`w_infinity` is exact. W_p, along slices and entropic too, are estimates for reading and comparison;
mechanisms use exact gaps, see `pufferslice.sensitivity`. Source: def:WD, app:ER_WD.

The flow kernels are ours because they keep the flow from one limit to the next. With 4,000 samples
on each side the whole search takes 0.2 to 1.0 s; scipy's `maximum_bipartite_matching` takes 1.5 to
3.3 s for one limit. With 1,000 and 999 samples the search takes 0.06 s; scipy's `maximum_flow`
takes 0.17 s for one limit, and its capacities have 32 bits. The kernels can go when scipy extends a
given flow in 64 bits.
"""

import math
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_at_least
from pufferslice._core.kernels import kernel
from pufferslice.errors import ArgumentError, CalibrationError, MissingExtraError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.profiles import Profile, check_profile, project

_FLOAT_BYTES: Final = 8
_PATIENCE: Final = 6
"""Number of failed limits before every other one is found by bisection."""
_MEMINFO: Final = Path("/proc/meminfo")
_MOST_ROUNDS: Final = 100_000
_MARGINAL_ERROR: Final = 1e-9
_MOST_PIVOTS: Final = 10**9
_LARGEST_TOTAL: Final = 2**53
"""Largest total, because larger integers are not floats."""


def w_infinity(first: FiniteDistribution, second: FiniteDistribution) -> float:
    """The smallest t for which a coupling moves no mass farther than t, in any dimension.

    Needs memory for two tables of distances.

    Guarantee: exact up to the rounding of one distance.
    Source: def:WD, lem:Winfty_bottleneck_matching.

    >>> first = FiniteDistribution.uniform([[0.0, 0.0], [3.0, 4.0]])
    >>> w_infinity(first, FiniteDistribution.uniform([[0.0, 0.0]]))
    5.0
    """
    check_pair(first, second, n_tables=2)
    return least_limit(pairwise_distances(first, second), first, second)


def least_limit(distances: Floats, first: FiniteDistribution, second: FiniteDistribution) -> float:
    """Compute W-infinity from a table of distances.

    All mass of an atom moves at least to its nearest neighbour, so the largest nearest-neighbour
    distance is a lower bound, and very often the answer. If no coupling fits, the atoms whose mass
    stays where it is give the next lower bound.
    """
    low = float(max(distances.min(axis=1).max(), distances.min(axis=0).max()))
    high = float(distances.max())
    supply, demand = masses(first, second)
    full_demand = demand.copy()
    flow = np.zeros(distances.shape[::-1], dtype=np.int64)
    row_levels, column_levels = np.empty_like(supply), np.empty_like(demand)

    def fits(limit: float) -> bool:
        _extend_flow(distances, limit, supply, demand, flow, row_levels, column_levels)
        return not supply.any()

    def next_limit() -> float:
        nearest = _nearest_outside(distances, row_levels, column_levels)
        order = np.argsort(nearest, kind="stable")
        enough = np.searchsorted(np.cumsum(full_demand[order]), supply.sum())
        return float(nearest[order[enough]])

    n_failed = 0
    while low < high and not fits(low):
        low = next_limit()
        n_failed += 1
        if n_failed > _PATIENCE and low < high:
            if not fits(low + (high - low) / 2):
                low = next_limit()
                continue
            columns, rows = np.nonzero(flow)
            lengths = distances[rows, columns]
            high = max(low, float(lengths.max()))
            rows, columns = rows[lengths > low], columns[lengths > low]
            returned = flow[columns, rows]
            np.add.at(supply, rows, returned)
            np.add.at(demand, columns, returned)
            flow[columns, rows] = 0
    return low


def wasserstein_distance(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float
) -> float:
    r"""$W_p$: the p-th root of the least mean of $\|X - Y\|^p$ over all couplings.

    On the line the sorted coupling is the best one. In more dimensions equal weights make an
    assignment problem; unequal ones need the extra `baselines` (POT).

    >>> first = FiniteDistribution.uniform([[0.0, 0.0], [3.0, 4.0]])
    >>> wasserstein_distance(first, FiniteDistribution.uniform([[0.0, 0.0]]), p=1)
    2.5
    """
    check_at_least(1, p=p)
    supply, demand = masses(first, second)
    if first.dim == second.dim == 1:
        mean = _on_line(first.outputs[:, 0], supply, second.outputs[:, 0], demand, p)
        return float(mean ** (1 / p))
    check_pair(first, second, n_tables=coupling_tables(supply, demand))
    distances = pairwise_distances(first, second)
    largest = float(distances.max())
    if largest == 0:
        return 0.0
    costs = (distances / largest) ** p
    entries, shares = cheapest_coupling(costs, supply, demand)
    return float(largest * np.dot(costs[entries], shares) ** (1 / p))


def sliced_wasserstein(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float, profile: Profile
) -> float:
    r"""$SW_p$: the p-th root of the mean over slices of $W_p^p$ along them.

    With a `SampledSphere` it estimates the distance over the whole sphere from drawn directions.

    >>> from pufferslice.sensitivity import FiniteProfile
    >>> first, second = (FiniteDistribution.uniform([[x, 0.0]]) for x in (0.0, 3.0))
    >>> sliced_wasserstein(first, second, p=2, profile=FiniteProfile.axes(dim=2))**2
    4.5
    """
    check_at_least(1, p=p)
    check_profile(profile, first.dim)
    check_profile(profile, second.dim)
    supply, demand = masses(first, second)
    left, right = (project(profile.directions, values.outputs) for values in (first, second))
    powers = [_on_line(x, supply, y, demand, p) for x, y in zip(left, right, strict=True)]
    weights = profile.weights / profile.weights.sum()
    return float(np.dot(weights, powers) ** (1 / p))


def entropic_wasserstein(
    first: FiniteDistribution, second: FiniteDistribution, *, p: float, regularisation: float
) -> float:
    r"""The p-th root of the mean of $\|X - Y\|^p$ under the entropic plan (Sinkhorn).

    The plan minimises that mean plus `regularisation` times its relative entropy to the product of
    the distributions. Never below $W_p$ up to the error of the iteration, which stops when the
    marginals are met to 1e-9. Needs the extra `baselines` (POT). Source: app:ER_WD.
    """
    check_at_least(1, p=p)
    check_above(0, regularisation=regularisation)
    check_pair(first, second, n_tables=6)
    costs = pairwise_distances(first, second) ** p
    shares = [values.counts / values.total for values in (first, second)]
    plan, log = pot().sinkhorn(
        *shares,
        costs,
        regularisation,
        method="sinkhorn_log",
        numItermax=_MOST_ROUNDS,
        stopThr=_MARGINAL_ERROR,
        log=True,
        warn=False,
    )
    if not log["err"][-1] <= _MARGINAL_ERROR:
        raise CalibrationError(
            f"the plan did not meet its marginals in {_MOST_ROUNDS:,} rounds; use a larger "
            "regularisation"
        )
    return float((plan * costs).sum() ** (1 / p))


def _on_line(x: Floats, supply: Integers, y: Floats, demand: Integers, p: float) -> float:
    """Mean of |X - Y|^p under the sorted coupling; masses are integers of one total."""
    x_order, y_order = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x_ends, y_ends = np.cumsum(supply[x_order]), np.cumsum(demand[y_order])
    ends = np.union1d(x_ends, y_ends)
    widths = np.diff(ends, prepend=0)
    gaps = np.abs(
        x[x_order][np.searchsorted(x_ends, ends)] - y[y_order][np.searchsorted(y_ends, ends)]
    )
    return float(np.dot(widths, gaps**p) / ends[-1])


def cheapest_coupling(
    costs: Floats, supply: Integers, demand: Integers
) -> tuple[tuple[Integers, Integers], Floats]:
    """Entries (rows, columns) and probabilities of the coupling of least mean cost.

    `supply` and `demand` have one sum. Equal weights make an assignment problem; for unequal ones
    POT's network simplex gives integer entries and exact marginals: rounding can only make it not
    quite cheapest.
    """
    if _is_assignment(supply, demand):
        rows, columns = linear_sum_assignment(costs)
        return (rows, columns), np.full(len(rows), 1 / len(rows))
    plan = pot().emd(supply.astype(float), demand.astype(float), costs, _MOST_PIVOTS)
    np.rint(plan, out=plan)
    exact = (
        supply.sum() <= _LARGEST_TOTAL
        and np.array_equal(plan.sum(axis=1), supply)
        and np.array_equal(plan.sum(axis=0), demand)
    )
    if not exact:
        raise CalibrationError(
            f"the weights have the common denominator {supply.sum()}, which is too large for an "
            "exact coupling in floats; use weights with a smaller one"
        )
    rows, columns = np.nonzero(plan)
    return (rows, columns), plan[rows, columns] / plan[rows, columns].sum()


def coupling_tables(supply: Integers, demand: Integers) -> int:
    """Tables for distances, costs, and what the solver holds: a copy, or POT's edges."""
    return 3 if _is_assignment(supply, demand) else 7


def _is_assignment(supply: Integers, demand: Integers) -> bool:
    return len({*supply.tolist(), *demand.tolist()}) == 1


def pot() -> Any:  # a module without types
    """The library POT, of an extra."""
    try:
        import ot  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            "couplings of unequal weights and entropic plans need POT: "
            "pip install 'pufferslice[baselines]'"
        ) from error
    return ot


def masses(first: FiniteDistribution, second: FiniteDistribution) -> tuple[Integers, Integers]:
    """The counts of both distributions as integer multiples of one common unit."""
    common = math.gcd(first.total, second.total)
    return first.counts * (second.total // common), second.counts * (first.total // common)


def check_pair(first: FiniteDistribution, second: FiniteDistribution, n_tables: float) -> None:
    """Raise unless both have one dimension, and `n_tables` tables of distances fit in memory."""
    if first.dim != second.dim:
        raise ArgumentError(
            f"both distributions must have one dimension, got {first.dim} and {second.dim}"
        )
    needed = int(first.n_samples * second.n_samples * _FLOAT_BYTES * n_tables)
    free = free_bytes()
    if needed > free:
        raise ArgumentError(
            f"distributions of {first.n_samples:,} and {second.n_samples:,} atoms need "
            f"{needed / 2**30:,.1f} GiB of memory for their distances, {free / 2**30:,.1f} GiB are "
            "free. Use fewer samples, or a sliced mechanism, which needs no such table"
        )


def pairwise_distances(first: FiniteDistribution, second: FiniteDistribution) -> Floats:
    """Euclidean distances between the atoms, shape (first.n_samples, second.n_samples).

    Values are scaled by an exact power of two, so that no square underflows; differences below
    1e-154 of the largest value count as 0.
    """
    largest = max(float(np.abs(distribution.outputs).max()) for distribution in (first, second))
    exponent = math.frexp(largest)[1]
    rows, columns = (np.ldexp(values.outputs, -exponent) for values in (first, second))
    distances = cdist(rows, columns)
    return np.asarray(np.ldexp(distances, exponent, out=distances))


def free_bytes() -> int:
    """Memory that is available to this process."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@kernel
def _extend_flow(
    distances: Floats,
    limit: float,
    supply: Integers,
    demand: Integers,
    flow: Integers,
    row_levels: Integers,
    column_levels: Integers,
) -> None:
    """Extend a flow along entries up to `limit` to a largest one, by Dinic's algorithm.

    `flow[column, row]` goes from row to column; `supply` and `demand` are what is left. At the end
    the levels are -1 where no path from a row with supply leads: all columns within the limit of a
    reached row are reached.
    """
    n_rows, n_columns = distances.shape
    order, bounds = np.empty(n_columns, np.int64), np.empty((2, n_rows + 2), np.int64)
    path = np.empty((2, n_rows + 1), np.int64)
    while _find_levels(
        distances, limit, supply, demand, flow, row_levels, column_levels, order, bounds
    ):
        row_at, column_at = np.zeros(n_rows, np.int64), np.zeros(n_columns, np.int64)
        for row in range(n_rows):
            while supply[row] > 0 and _push(
                row, distances, limit, supply, demand, flow, row_levels, order, bounds,
                row_at, column_at, path,
            ):  # fmt: skip
                pass


@kernel
def _find_levels(
    distances: Floats,
    limit: float,
    supply: Integers,
    demand: Integers,
    flow: Integers,
    row_levels: Integers,
    column_levels: Integers,
    order: Integers,
    bounds: Integers,
) -> bool:
    """Search breadth first from the rows with supply; whether it reached a column with demand.

    `order` lists the columns as they are reached, `bounds` where each level starts and ends. A
    reached column leaves the list of the others, so every entry is read at most once.
    """
    row_levels[:], column_levels[:] = np.where(supply > 0, 0, -1), -1
    others, n_others, n_reached = np.arange(len(demand)), len(demand), 0
    rows = np.empty(len(supply), np.int64)
    high = (supply > 0).sum()
    rows[:high] = np.flatnonzero(supply > 0)
    low = level = 0
    while low < high:
        bounds[0, level], has_demand = n_reached, False
        for position in range(low, high):
            n_left = 0
            for k in range(n_others):
                column = others[k]
                if distances[rows[position], column] <= limit:
                    order[n_reached], column_levels[column] = column, level
                    n_reached += 1
                    has_demand = has_demand or demand[column] > 0
                else:
                    others[n_left] = column
                    n_left += 1
            n_others = n_left
        bounds[1, level] = n_reached
        if has_demand:
            return True
        low = high
        for k in range(bounds[0, level], n_reached):
            back = flow[order[k]]
            for row in range(len(back)):
                if back[row] > 0 and row_levels[row] < 0:
                    rows[high], row_levels[row] = row, level + 1
                    high += 1
        level += 1
    return False


@kernel
def _push(
    start: int,
    distances: Floats,
    limit: float,
    supply: Integers,
    demand: Integers,
    flow: Integers,
    row_levels: Integers,
    order: Integers,
    bounds: Integers,
    row_at: Integers,
    column_at: Integers,
    path: Integers,
) -> bool:
    """Send what fits along one path from a row with supply; whether there was a path.

    `row_at` and `column_at` are the positions up to which edges were tried; they only increase.
    """
    n_rows, level = len(row_levels), 0
    path[0, 0] = start
    while level >= 0:
        row = path[0, level]
        row_at[row] = max(row_at[row], bounds[0, level])
        column = -1
        while row_at[row] < bounds[1, level]:
            candidate = order[row_at[row]]
            if column_at[candidate] <= n_rows and distances[row, candidate] <= limit:
                column = candidate
                break
            row_at[row] += 1
        if column < 0:
            level -= 1
            if level >= 0:
                column_at[path[1, level]] += 1
            continue
        path[1, level] = column
        if demand[column] > 0:
            break
        back, k = flow[column], column_at[column]
        while k < n_rows and not (back[k] > 0 and row_levels[k] == level + 1):
            k += 1
        column_at[column] = k
        if k == n_rows:
            column_at[column] = n_rows + 1
            continue
        level += 1
        path[0, level] = k
    if level < 0:
        return False
    amount = min(supply[start], demand[path[1, level]])
    for step in range(level):
        amount = min(amount, flow[path[1, step], path[0, step + 1]])
    supply[start] -= amount
    demand[path[1, level]] -= amount
    for step in range(level + 1):
        flow[path[1, step], path[0, step]] += amount
        if step < level:
            flow[path[1, step], path[0, step + 1]] -= amount
    return True


@kernel
def _nearest_outside(distances: Floats, row_levels: Integers, column_levels: Integers) -> Floats:
    """Least distance of each column that was not reached to a reached row; else infinite."""
    nearest = np.full(distances.shape[1], np.inf)
    for row in range(len(row_levels)):
        if row_levels[row] >= 0:
            for column in range(len(nearest)):
                if column_levels[column] < 0 and distances[row, column] < nearest[column]:
                    nearest[column] = distances[row, column]
    return nearest
