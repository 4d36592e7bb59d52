# SPDX-License-Identifier: Apache-2.0
"""Tables of distances, rounded up: transport gaps along slices, or distances under couplings."""

from collections.abc import Callable
from itertools import pairwise
from typing import Self, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel
from pufferslice.errors import ArgumentError
from pufferslice.gaps.kernels import thinned
from pufferslice.parallel import in_threads, n_cores
from pufferslice.renyi import log_moments, row_deltas

_ROWS_WORTH_A_THREAD = 512


@attrs.frozen(kw_only=True, repr=False, eq=False)
class DistanceTables:
    """What both kinds have in common: descending gaps for each (slice, instance), with their mass.

    A row is a slice and an instance; rows are stored slice by slice. The first gap of a row is the
    exact worst gap; the others are rounded up to a few binary digits. Abstract: what a row bounds
    is said by `GapTables` and `MatchingTables`, and one must never stand for the other.
    """

    starts: Integers
    """Where each row begins, shape (n_slices * n_instances + 1,)."""
    gaps: Floats
    """Gaps, descending inside a row."""
    counts: Integers
    """Mass of each gap as a whole multiple of 1 / totals[instance]."""
    totals: Integers
    """Sum of the counts of a row, per instance, shape (n_instances,)."""
    equal: npt.NDArray[np.bool_]
    """Instances whose two laws are the same law; they cost nothing whatever the noise."""

    def check(self) -> None:
        """The arrays fit together; for tables read from a file."""
        if not len(self.totals) or len(self.starts) < 2:
            msg = (
                f"gap tables need at least one instance and one slice, got {len(self.totals)} "
                f"instances and {len(self.starts)} starts"
            )
            raise ArgumentError(msg)
        steps = np.diff(self.starts)
        whole = len(self.starts) == self.n_slices * self.n_instances + 1 and self.starts[0] == 0
        fits = whole and steps.min() >= 1 and self.starts[-1] == len(self.gaps) == len(self.counts)
        if not (fits and len(self.equal) == self.n_instances and np.isfinite(self.gaps).all()):
            msg = (
                "gap tables do not fit together: starts must cut gaps and counts, which are as "
                f"long, into one row for each of {self.n_slices} slices and {self.n_instances} "
                "instances, and gaps must be finite"
            )
            raise ArgumentError(msg)
        falls = np.diff(self.gaps, append=0.0) < 0
        falls[self.starts[1:] - 1] = True
        sums = np.add.reduceat(self.counts, self.starts[:-1])
        complete = np.array_equal(sums, np.tile(self.totals, self.n_slices))
        if not (falls.all() and complete and self.counts.min() >= 1 and self.gaps.min() >= 0):
            msg = (
                "gap tables must fall within a row, and their masses must sum to 1; make them "
                "with gap_tables"
            )
            raise ArgumentError(msg)

    @property
    def n_instances(self) -> int:
        """Number of (prior, pair) combinations."""
        return len(self.totals)

    @property
    def n_slices(self) -> int:
        """Number of slices, or of matchings."""
        return (len(self.starts) - 1) // max(1, self.n_instances)

    @property
    def masses(self) -> Floats:
        """Probability of each entry."""
        totals = np.tile(self.totals, self.n_slices)
        return np.asarray(self.counts / np.repeat(totals, np.diff(self.starts)))

    def worst(self) -> Floats:
        """The worst gap (W-infinity along the slice), shape (n_instances, n_slices)."""
        return self._by_instance(self.gaps[self.starts[:-1]])

    def means(self) -> Floats:
        """The mean gap, shape (n_instances, n_slices)."""
        return self._by_instance(np.add.reduceat(self.masses * self.gaps, self.starts[:-1]))

    def log_moments(self, rate: float, margin: float) -> Floats:
        """Ln of the mean of exp(rate * (gap + margin)^2), shape (n_instances, n_slices)."""

        def part(rows: slice) -> Floats:
            starts = self.starts[rows.start : rows.stop + 1]
            return log_moments(starts, self.gaps, self.counts, rate, margin)

        return self._in_parts(part)

    def deltas(self, epsilons: Floats, noise_std: float, margin: float) -> Floats:
        """Delta of the noisy outputs at `epsilons`, both of shape (n_instances, n_slices).

        Guarantee: along each slice, the mean over t of the delta of two Gaussians whose means are
        gap(t) + margin apart; hockey-stick divergences are jointly convex.
        """
        by_row = np.ascontiguousarray(epsilons.T).reshape(-1)

        def part(rows: slice) -> Floats:
            starts = self.starts[rows.start : rows.stop + 1]
            ratio = (margin, noise_std)
            return row_deltas(starts, self.gaps, self.counts, ratio, by_row[rows])

        return self._in_parts(part)

    def _in_parts(self, part: Callable[[slice], Floats]) -> Floats:
        """A number for every row, on all cores; 0 where both laws are one."""
        n_rows = len(self.starts) - 1
        n_parts = min(n_cores(), 1 + n_rows // _ROWS_WORTH_A_THREAD)
        cuts = np.linspace(0, n_rows, n_parts + 1).astype(int).tolist()
        pieces = [slice(a, b) for a, b in pairwise(cuts)]
        parts = in_threads(part, pieces) if n_parts > 1 else [part(pieces[0])]
        result = self._by_instance(np.concatenate(parts))
        result[self.equal] = 0.0
        return result

    def coarsened(self, n_entries: int) -> Self:
        """Tables of `n_entries` or two entries a row at most, gaps rounded up: still a bound."""
        if len(self.gaps) <= n_entries:
            return self
        most = max(2, n_entries // (len(self.starts) - 1))
        starts, gaps, counts = _coarsen(self.starts, self.gaps, self.counts, most)
        return attrs.evolve(self, starts=starts, gaps=gaps, counts=counts)

    def only(self, instances: Integers) -> Self:
        """The tables of some instances, in ascending order."""
        lengths = np.diff(self.starts).reshape(self.n_slices, -1)
        chosen = np.zeros(lengths.shape, dtype=np.bool_)
        chosen[:, instances] = True
        entries = np.repeat(chosen, lengths.reshape(-1))
        return attrs.evolve(
            self,
            starts=np.concatenate([[0], np.cumsum(lengths[:, instances])]),
            gaps=self.gaps[entries],
            counts=self.counts[entries],
            totals=self.totals[instances],
            equal=self.equal[instances],
        )

    def _by_instance(self, rows: npt.NDArray[np.float64]) -> Floats:
        return np.array(rows.reshape(self.n_slices, self.n_instances).T)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(n_instances={self.n_instances}, n_slices={self.n_slices})"


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class GapTables(DistanceTables):
    """Gaps between quantile functions along slices: they bound what a slice shows, and no more."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class MatchingTables(DistanceTables):
    """Distances in all dimensions under couplings, each a `slice`: they bound the whole output."""


@kernel
def _coarsen(
    starts: Integers, gaps: Floats, counts: Integers, most: int
) -> tuple[Integers, Floats, Integers]:
    """Each row thinned to `most` entries."""
    new_starts, new_gaps, new_counts = np.empty_like(starts), np.empty_like(gaps), counts.copy()
    n = 0
    for row in range(len(starts) - 1):
        new_starts[row] = n
        own = slice(starts[row], starts[row + 1])
        kept, masses = thinned(gaps[own], counts[own], most)
        new_gaps[n : n + len(kept)], new_counts[n : n + len(kept)] = kept, masses
        n += len(kept)
    new_starts[-1] = n
    return new_starts, new_gaps[:n].copy(), new_counts[:n].copy()
