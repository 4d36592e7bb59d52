# SPDX-License-Identifier: Apache-2.0
"""Tables of distances, rounded up, and how finely they are kept.

Gaps are only ever rounded up, so every resolution is sound; what it decides is noise.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeVar, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import kernel
from pufferslice._core.threads import in_threads, n_cores
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.kernels import thinned
from pufferslice.sensitivity.renyi import log_moments, row_deltas

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
    """Instances whose two distributions are the same distribution; they cost nothing whatever the
    noise."""

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
        """A number for every row, on all cores; 0 where both distributions are one."""
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


Tables = TypeVar("Tables", bound=DistanceTables)

FINEST_DIGITS: Final = 8
"""Binary digits kept when a gap is rounded up: a relative width of at most 1/256."""

MOST_ENTRIES: Final = 2**24
"""Of one set of tables, 16 bytes each; more only where two for each row are more."""

ENOUGH: Final = 512
"""Entries of a row above which more would change the noise variance by less than half a percent."""

_SMALL: Final = 2**21
_FIRST: Final = 16
_LEAST: Final = 2
_WAVES: Final = 4
_LOOSE: Final = 4.0
"""A row of k entries costs about this over k, as a share, more than a fine one: to rank them."""
_STEEPNESSES: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Exponents of the worst gap at which instances are ranked: from much noise to little."""


class DistributionPair(NamedTuple):
    """One instance: the positions of its two distributions in a list of distributions."""

    first: int
    second: int


def resolved(
    make: Callable[[Sequence[int], int], Sequence[Tables]],
    n_instances: int,
    n_slices: int,
    weights: Floats | None = None,
) -> Sequence[Tables]:
    """Tables of all instances with at most `MOST_ENTRIES` entries, or two for each row.

    `make(instances, most)` makes tables of some instances, in ascending order, with at most `most`
    entries a row; those of which costs are taken come first. Small tables are kept as fine as they
    are made. Else the rows of all instances are kept coarsely but of those that may have the
    largest cost for some notion and noise. Where the room does not give `ENOUGH` to every row,
    these are made again, with more entries the fewer there are of them.
    `weights` are those of the slices; without, they are equal.
    """
    n_rows = n_instances * n_slices
    most = MOST_ENTRIES // max(1, n_rows)
    kept = np.full(n_instances, max(_LEAST, min(_FIRST, most // 2)))
    fine = make(range(n_instances), most) if most >= ENOUGH else None
    if fine is None:
        found = make(range(n_instances), int(kept[0]))
    elif len(fine[0].gaps) <= _SMALL:
        return fine
    else:
        found = [tables.coarsened(_FIRST * n_rows) for tables in fine]
    for _ in range(_WAVES):
        undecided = _undecided(found[0], kept, weights)
        room = MOST_ENTRIES // n_slices - int(kept[~undecided].sum())
        share = min(ENOUGH, room // max(1, int(undecided.sum())))
        # Half of the room, so that there is more for fewer of them later, if that is enough now.
        halved = share < ENOUGH and share // 2 > kept[undecided].max(initial=0)
        each = share // 2 if halved else share
        chosen = np.flatnonzero(undecided & (kept < each))
        if not len(chosen):
            break
        finer = [t.only(chosen) for t in fine] if fine else make(chosen.tolist(), each)
        found = [_spliced(all_, chosen, own) for all_, own in zip(found, finer, strict=True)]
        kept[chosen] = each
    return found


def digits_for(most: int) -> int:
    """Binary digits to round to before a row is thinned to `most` entries: finer than that."""
    return min(FINEST_DIGITS, max(4, most.bit_length()))


def restricted(
    pairs: Sequence[DistributionPair], instances: Sequence[int]
) -> tuple[list[int], list[DistributionPair]]:
    """Distributions that some instances need, and their pairs as positions in that list."""
    chosen = [pairs[i] for i in instances]
    used = sorted({distribution for pair in chosen for distribution in pair})
    places = {distribution: place for place, distribution in enumerate(used)}
    return used, [DistributionPair(places[a], places[b]) for a, b in chosen]


def _undecided(
    tables: DistanceTables, kept: Integers, weights: Floats | None
) -> npt.NDArray[np.bool_]:
    """Instances that finer rows might show to cost most, or not."""
    found = np.zeros(tables.n_instances, dtype=np.bool_)
    for costs in _rankings(tables, weights):
        surely = (costs / (1 + _LOOSE / kept)).max()
        found |= (costs >= surely) & (costs > 0)
    return found & (kept < ENOUGH)


def _rankings(tables: DistanceTables, weights: Floats | None) -> Iterator[Floats]:
    """What each instance costs, up to a factor, in several ways."""
    worst = float(tables.worst().max())
    shares = np.full(tables.n_slices, 1 / tables.n_slices) if weights is None else weights
    for steepness in _STEEPNESSES:
        if not worst > 0:
            return
        logs = tables.log_moments(steepness / worst / worst, 0.0)
        if isinstance(tables, MatchingTables):
            yield logs.min(axis=1)
        else:
            yield logs @ shares
            yield logsumexp(logs, b=shares, axis=1)


def _spliced(tables: Tables, instances: Integers, finer: Tables) -> Tables:
    """The tables with the rows of some instances, in ascending order, taken from others."""
    lengths = np.diff(tables.starts).reshape(tables.n_slices, -1)
    taken = np.zeros(lengths.shape, dtype=np.bool_)
    taken[:, instances] = True
    old = np.repeat(~taken, lengths.reshape(-1))
    lengths[:, instances] = np.diff(finer.starts).reshape(tables.n_slices, -1)
    new = np.repeat(taken, lengths.reshape(-1))
    gaps, counts = np.empty(len(new)), np.empty(len(new), dtype=np.int64)
    gaps[new], counts[new] = finer.gaps, finer.counts
    gaps[~new], counts[~new] = tables.gaps[old], tables.counts[old]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return attrs.evolve(tables, starts=starts, gaps=gaps, counts=counts)
