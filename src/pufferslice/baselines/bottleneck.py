# SPDX-License-Identifier: Apache-2.0
"""W-infinity in all dimensions, exactly: the least largest step of a coupling."""

from typing import Final, Protocol, final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.baselines.distances import check_pair, masses, pairwise_distances
from pufferslice.baselines.matching import FREE, Flags, flow_within, match_within, nearest_outside
from pufferslice.laws import EmpiricalLaw

_PATIENCE: Final = 6
"""Failed limits before every other one is taken by halving."""


def w_infinity(first: EmpiricalLaw, second: EmpiricalLaw) -> float:
    """The smallest t for which a coupling moves no mass farther than t, in any dimension.

    Equal laws of n atoms are matched (Hopcroft and Karp), others are coupled by a largest flow
    (Dinic). Takes one table of distances for a matching, two for a flow.

    Guarantee: exact up to the rounding of one distance.
    Source: def:WD, lem:Winfty_bottleneck_matching.

    >>> first = EmpiricalLaw.uniform([[0.0, 0.0], [3.0, 4.0]])
    >>> w_infinity(first, EmpiricalLaw.uniform([[0.0, 0.0]]))
    5.0
    """
    alike = first.is_uniform and second.is_uniform and first.n_samples == second.n_samples
    check_pair(first, second, n_arrays=1 if alike else 2)
    return least_limit(pairwise_distances(first, second), first, second)


def least_limit(distances: Floats, first: EmpiricalLaw, second: EmpiricalLaw) -> float:
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

    def __init__(self, distances: Floats, first: EmpiricalLaw, second: EmpiricalLaw) -> None:
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


def _coupling(distances: Floats, first: EmpiricalLaw, second: EmpiricalLaw) -> _Coupling:
    alike = first.is_uniform and second.is_uniform and first.n_samples == second.n_samples
    return _Matching(distances) if alike else _Flow(distances, first, second)


def _no_flags(n_rows: int, n_columns: int) -> tuple[Flags, Flags]:
    return np.zeros(n_rows, dtype=np.bool_), np.zeros(n_columns, dtype=np.bool_)
