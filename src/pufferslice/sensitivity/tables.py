# SPDX-License-Identifier: Apache-2.0
"""Tables of distances, rounded up.

Gaps are only ever rounded up, so a table of any resolution is sound; a finer one needs less noise.
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
from pufferslice._core.threads import Progress, in_threads, n_cores, silent
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.kernels import (
    HEADROOM,
    MANTISSA_BITS,
    tabulate,
    tabulate_difference,
    thinned,
)
from pufferslice.sensitivity.renyi import log_moments, row_deltas

OCTAVES: Final = 24
"""Gaps below 2^-OCTAVES of the worst are rounded up to that."""

FINEST_DIGITS: Final = 8
"""Binary digits kept when a gap is rounded up: a relative width of at most 1/256."""

MOST_ENTRIES: Final = 2**24
"""Entries of one set of tables, 16 bytes each; more only where two for each row are more."""

ENOUGH: Final = 512
"""Entries of a row above which more would change the noise variance by less than half a percent."""

_SMALL: Final = 2**21
_FIRST: Final = 16
_LEAST: Final = 2
_WAVES: Final = 4
_LOOSE: Final = 4.0
"""A row of k entries costs up to about 4 / k, relatively, more than a fine one; to rank them."""
_STEEPNESSES: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Exponents of the worst gap at which instances are ranked: from much noise to little."""
_ROWS_PER_THREAD: Final = 512

Row = tuple[Floats, Integers]
"""Gaps, descending, and the mass of each."""

Item = TypeVar("Item")


class DistributionPair(NamedTuple):
    """One instance: the positions of its two distributions in a list of distributions."""

    first: int
    second: int


@attrs.frozen(kw_only=True, repr=False, eq=False)
class DistanceTables:
    """Descending gaps for each (slice, instance), with their mass: what both kinds share.

    A row is a slice and an instance; rows are stored slice by slice. The first gap of a row is the
    exact worst gap; the others are rounded up to a few binary digits. Abstract: `GapTables` and
    `MatchingTables` define what a row bounds, and one must never stand for the other.
    """

    starts: Integers
    """Where each row begins, shape (n_slices * n_instances + 1,)."""
    gaps: Floats
    """Gaps, descending inside a row."""
    counts: Integers
    """Mass of each gap as an integer multiple of 1 / totals[instance]."""
    totals: Integers
    """Sum of the counts of a row, per instance, shape (n_instances,)."""
    equal: npt.NDArray[np.bool_]
    """Instances whose two distributions are equal; they cost nothing whatever the noise."""

    @classmethod
    def of_rows(
        cls, rows: Sequence[Row], totals: Sequence[int], equal: Sequence[bool] | None = None
    ) -> Self:
        """Tables of rows in their order of storage; without `equal`, no instance is equal."""
        return cls(
            starts=np.concatenate([[0], np.cumsum([len(gaps) for gaps, _ in rows])]),
            gaps=np.concatenate([gaps for gaps, _ in rows]),
            counts=np.concatenate([counts for _, counts in rows]),
            totals=np.array(totals, dtype=np.int64),
            equal=np.zeros(len(totals), dtype=np.bool_) if equal is None else np.array(equal),
        )

    def check(self) -> None:
        """Check that the arrays fit together; for tables read from a file."""
        if not len(self.totals) or len(self.starts) < 2:
            raise ArgumentError(
                f"gap tables need at least one instance and one slice, got {len(self.totals)} "
                f"instances and {len(self.starts)} starts"
            )
        steps = np.diff(self.starts)
        all_rows = len(self.starts) == self.n_slices * self.n_instances + 1 and self.starts[0] == 0
        fits = (
            all_rows and steps.min() >= 1 and self.starts[-1] == len(self.gaps) == len(self.counts)
        )
        if not (fits and len(self.equal) == self.n_instances and np.isfinite(self.gaps).all()):
            raise ArgumentError(
                "gap tables do not fit together: starts must cut gaps and counts, of equal length, "
                f"into one row for each of {self.n_slices} slices and {self.n_instances} "
                "instances, and gaps must be finite"
            )
        falls = np.diff(self.gaps, append=0.0) < 0
        falls[self.starts[1:] - 1] = True
        sums = np.add.reduceat(self.counts, self.starts[:-1])
        wanted = np.tile(self.totals, self.n_slices)
        # Else counts whose sum wraps around could pass for a small total.
        no_wrap = (self.counts <= np.repeat(wanted, steps)).all()
        complete = np.array_equal(sums, wanted) and no_wrap and self.counts.min() >= 1
        if not (falls.all() and complete and self.gaps.min() >= 0):
            raise ArgumentError(
                "gap tables must fall within a row, and their masses must sum to 1; make them "
                "with gap_tables"
            )

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
            return row_deltas(starts, self.gaps, self.counts, margin, noise_std, by_row[rows])

        return self._in_parts(part)

    def _in_parts(self, part: Callable[[slice], Floats]) -> Floats:
        """A number for every row, on all cores; 0 where both distributions are equal."""
        n_rows = len(self.starts) - 1
        n_parts = min(n_cores(), 1 + n_rows // _ROWS_PER_THREAD)
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
    """Gaps between quantile functions along slices: they bound a slice, not the whole output."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class MatchingTables(DistanceTables):
    """Distances in all dimensions, one coupling per `slice`: they bound the whole output."""

    @classmethod
    def of_gaps(cls, tables: GapTables) -> "MatchingTables":
        """The whole output in one dimension: each slice is all of it, and its gaps distances."""
        return cls(**attrs.asdict(tables, recurse=False))


class Rounder:
    """Makes rows of at most `most` entries; it has a buffer, so each thread needs its own."""

    def __init__(self, most: int) -> None:
        # Rounded to more digits than the entries need, then thinned.
        digits = min(FINEST_DIGITS, max(4, most.bit_length()))
        self.drop = MANTISSA_BITS - digits
        self._most = most
        self._histogram = np.zeros((OCTAVES + HEADROOM) * 2**digits + 2, dtype=np.int64)

    def row(self, gaps: Floats, masses: Integers) -> Row:
        """The row of these gaps, in any order."""
        return thinned(*tabulate(gaps, masses, self.drop, self._histogram), self._most)

    def row_of_difference(self, a: Floats, b: Floats, extra: float) -> Row:
        """The row of |a - b| + extra, for sorted a and b of equal length and mass."""
        row = tabulate_difference(a, b, extra, self.drop, self._histogram)
        return thinned(*row, self._most)


@kernel
def _coarsen(
    starts: Integers, gaps: Floats, counts: Integers, most: int
) -> tuple[Integers, Floats, Integers]:
    """Each row thinned to `most` entries."""
    new_starts, new_gaps, new_counts = np.empty_like(starts), np.empty_like(gaps), counts.copy()
    n = 0
    for row in range(len(starts) - 1):
        new_starts[row] = n
        entries = slice(starts[row], starts[row + 1])
        few_gaps, masses = thinned(gaps[entries], counts[entries], most)
        new_gaps[n : n + len(masses)], new_counts[n : n + len(masses)] = few_gaps, masses
        n += len(masses)
    new_starts[-1] = n
    return new_starts, new_gaps[:n].copy(), new_counts[:n].copy()


Tables = TypeVar("Tables", bound=DistanceTables)


def selected(
    distributions: Sequence[Item], pairs: Sequence[DistributionPair], instances: Integers
) -> tuple[list[Item], list[DistributionPair]]:
    """The pairs of some instances, and only the distributions that they compare."""
    chosen = [pairs[i] for i in instances.tolist()]
    used = sorted({place for pair in chosen for place in pair})
    places = {place: new for new, place in enumerate(used)}
    renumbered = [DistributionPair(places[a], places[b]) for a, b in chosen]
    return [distributions[place] for place in used], renumbered


def resolved(
    make: Callable[[Integers, int, Progress], Sequence[Tables]],
    n_instances: int,
    n_slices: int,
    *,
    weights: Floats | None = None,
    progress: Progress = silent,
) -> Sequence[Tables]:
    """Tables of all instances with at most `MOST_ENTRIES` entries, or two for each row.

    `make(instances, most, progress)` returns tables of some instances with at most `most` entries a
    row; costs are taken from the first of them. Small tables are kept as fine as they are made.
    Otherwise rows are coarse, except those of instances that may have the largest cost for some
    notion and noise. Where not every row can have `ENOUGH` entries, the rows of these instances are
    recomputed, with more entries the fewer they are.
    `weights` are those of the slices; without, they are equal.
    """
    everything = np.arange(n_instances)
    n_rows = n_instances * n_slices
    most = MOST_ENTRIES // max(1, n_rows)
    sizes = np.full(n_instances, max(_LEAST, min(_FIRST, most // 2)))
    fine = make(everything, most, progress) if most >= ENOUGH else None
    if fine is None:
        tables = make(everything, int(sizes[0]), progress)
    elif len(fine[0].gaps) <= _SMALL:
        return fine
    else:
        tables = [table.coarsened(_FIRST * n_rows) for table in fine]
    for _ in range(_WAVES):
        undecided = _undecided(tables[0], sizes, weights)
        entries_left = MOST_ENTRIES // n_slices - int(sizes[~undecided].sum())
        share = min(ENOUGH, entries_left // max(1, int(undecided.sum())))
        # Half of them, so that there is more for fewer instances later, if that is enough now.
        halved = share < ENOUGH and share // 2 > sizes[undecided].max(initial=0)
        size = share // 2 if halved else share
        chosen = np.flatnonzero(undecided & (sizes < size))
        if not len(chosen):
            break
        if fine is not None:
            finer: Sequence[Tables] = [table.only(chosen) for table in fine]
        else:
            finer = make(chosen, size, silent)
        tables = [_spliced(*both, chosen) for both in zip(tables, finer, strict=True)]
        sizes[chosen] = size
    return tables


def _undecided(
    tables: DistanceTables, sizes: Integers, weights: Floats | None
) -> npt.NDArray[np.bool_]:
    """Instances that may or may not cost most once their rows are finer than `sizes` entries."""
    result = np.zeros(tables.n_instances, dtype=np.bool_)
    for costs in _rankings(tables, weights):
        certain = (costs / (1 + _LOOSE / sizes)).max()
        result |= (costs >= certain) & (costs > 0)
    return result & (sizes < ENOUGH)


def _rankings(tables: DistanceTables, weights: Floats | None) -> Iterator[Floats]:
    """The cost of each instance, up to a factor, for several notions and noises."""
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


def _spliced(tables: Tables, finer: Tables, instances: Integers) -> Tables:
    """The tables with the rows of some instances, in ascending order, taken from `finer`."""
    lengths = np.diff(tables.starts).reshape(tables.n_slices, -1)
    replaced = np.zeros(lengths.shape, dtype=np.bool_)
    replaced[:, instances] = True
    old = np.repeat(~replaced, lengths.reshape(-1))
    lengths[:, instances] = np.diff(finer.starts).reshape(tables.n_slices, -1)
    new = np.repeat(replaced, lengths.reshape(-1))
    gaps, counts = np.empty(len(new)), np.empty(len(new), dtype=np.int64)
    gaps[new], counts[new] = finer.gaps, finer.counts
    gaps[~new], counts[~new] = tables.gaps[old], tables.counts[old]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return attrs.evolve(tables, starts=starts, gaps=gaps, counts=counts)
