# SPDX-License-Identifier: Apache-2.0
"""Tables of distances, rounded up.

Gaps are only ever rounded up, so a table of any resolution is sound; a finer one needs less noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.kernels import kernel
from pufferslice._core.search import smallest_epsilons
from pufferslice._core.threads import Progress, in_threads, n_cores, silent
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.difference import NotOfRows
from pufferslice.sensitivity.kernels import (
    HEADROOM,
    MANTISSA_BITS,
    tabulate,
    tabulate_difference,
    thinned,
)
from pufferslice.sensitivity.renyi import (
    aggregate_average,
    gaussian_delta,
    gaussian_envelope,
    log_moments,
    moment_rate,
    row_deltas,
)
from pufferslice.sensitivity.sphere import log_sphere_moments
from pufferslice.sensitivity.whitening import Covariance, Shape

OCTAVES: Final = 24
"""Number of octaves below the worst gap; smaller gaps are rounded up to 2^-OCTAVES of it."""

FINEST_DIGITS: Final = 8
"""Number of binary digits kept when a gap is rounded up: a relative width of at most 1/256."""

MOST_ENTRIES: Final = 2**24
"""Largest number of entries of a set of tables, 16 bytes each; two for each row if that is more."""

ENOUGH: Final = 512
"""Number of entries of a row above which more would change the noise variance by under 0.5 %."""

ROUGH_ENTRIES: Final = 60_000
"""Number of entries to which tables are rounded up where searches start."""

BLIND: Final = 2.0**-40
"""Least share of two distributions' distance that a slice must show to show a difference."""

_DELTA_ERROR: Final = 2.0**-49
"""Bound on the float error of a difference of two probabilities."""
_SMALL: Final = 2**21
_FIRST: Final = 16
_LEAST: Final = 2
_WAVES: Final = 4
_LOOSE: Final = 4.0
"""Factor c for ranking: a row of k entries costs up to about c / k, relatively, more than a fine
one."""
_STEEPNESSES: Final = (0.25, 1.0, 4.0, 16.0, 64.0)
"""Exponents of the worst gap at which instances are ranked: from much noise to little."""
_ROWS_PER_THREAD: Final = 512

Row = tuple[Floats, Integers]
"""Type of a row: gaps, descending, and the mass of each."""

Item = TypeVar("Item")
Tables = TypeVar("Tables", bound="DistanceTables")


class DistributionPair(NamedTuple):
    """Positions of an instance's two distributions in a list of distributions."""

    first: int
    second: int


@attrs.frozen(kw_only=True, repr=False, eq=False)
class DistanceTables:
    """Descending gaps for each (slice, instance), with their mass: what both kinds of tables share.

    A row is a slice and an instance; rows are stored slice by slice. The first gap of a row is the
    exact worst gap; the others are rounded up to a few binary digits. Abstract: `GapTables` and
    `MatchingTables` define what a row bounds, and one must never stand for the other.
    """

    prior_kinds: ClassVar[tuple[str, ...]] = ("empirical", "sampled")

    starts: Integers
    """Position where each row begins, shape (n_slices * n_instances + 1,)."""
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
        """Build tables from rows in order of storage; without `equal`, no instance is equal."""
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
        if self.worst()[self.equal].any():
            raise ArgumentError("gap tables call two sides equal whose gaps are not 0")
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
        """Compute the mean gap, shape (n_instances, n_slices)."""
        return self._by_instance(np.add.reduceat(self.masses * self.gaps, self.starts[:-1]))

    def log_moments(self, rate: float, margin: float) -> Floats:
        """Compute ln of the mean of exp(rate * (gap + margin)^2), shape (n_instances, n_slices)."""

        def part(rows: slice) -> Floats:
            starts = self.starts[rows.start : rows.stop + 1]
            return log_moments(starts, self.gaps, self.counts, rate, margin)

        return self._in_parts(part)

    def deltas(self, epsilons: Floats, noise_std: float, margin: float) -> Floats:
        """Compute the delta of noisy outputs at `epsilons`, both of shape (n_instances, n_slices).

        Guarantee: along each slice, the mean over t of the delta of two Gaussians whose means are
        gap(t) + margin apart; hockey-stick divergences are jointly convex.
        """
        by_row = np.ascontiguousarray(epsilons.T).reshape(-1)

        def part(rows: slice) -> Floats:
            starts = self.starts[rows.start : rows.stop + 1]
            return row_deltas(starts, self.gaps, self.counts, margin, noise_std, by_row[rows])

        return self._in_parts(part)

    def _in_parts(self, part: Callable[[slice], Floats]) -> Floats:
        """Compute a number for every row, on all cores; 0 where both distributions are equal."""
        n_rows = len(self.starts) - 1
        n_parts = min(n_cores(), 1 + n_rows // _ROWS_PER_THREAD)
        cuts = np.linspace(0, n_rows, n_parts + 1).astype(int).tolist()
        pieces = [slice(a, b) for a, b in pairwise(cuts)]
        parts = in_threads(part, pieces) if n_parts > 1 else [part(pieces[0])]
        result = self._by_instance(np.concatenate(parts))
        result[self.equal] = 0.0
        return result

    def coarsened(self, n_entries: int) -> Self:
        """Round gaps up to at most `n_entries`, or two entries a row: still a bound."""
        if len(self.gaps) <= n_entries:
            return self
        most = max(2, n_entries // (len(self.starts) - 1))
        starts, gaps, counts = _coarsen(self.starts, self.gaps, self.counts, most)
        return attrs.evolve(self, starts=starts, gaps=gaps, counts=counts)

    def only(self, instances: Integers) -> Self:
        """Return the tables of some instances, in ascending order."""
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

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """Yield nothing: what the description says of distances depends on how they were found."""
        del scenario
        return iter(())

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the tables, for a file."""
        return attrs.asdict(self, recurse=False)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(n_instances={self.n_instances}, n_slices={self.n_slices})"


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class GapTables(DistanceTables):
    """Gaps between quantile functions along slices: they bound a slice, not the whole output."""

    name: ClassVar[str] = "gaps"
    envelopes: ClassVar[tuple[str, ...]] = ("transport", "worst_gap")
    """Ways to bound a divergence along a slice."""

    def fits(self, directions: Floats) -> bool:
        """Return whether there are gaps along each of the directions."""
        return self.n_slices == len(directions)

    def scale_along(self, weights: Floats) -> float:
        """Return the size of the differences along slices of positive weight; 0 without any."""
        return float((self.worst() * (weights > 0)).max())

    def slice_costs(
        self, directions: Floats, order: float, noise: Covariance, envelope: str
    ) -> Floats:
        """Compute the Rényi divergence along each slice, shape (n_instances, n_slices)."""
        del directions  # the gaps are along them
        if envelope == "transport":
            rate = moment_rate(order, noise.std)
            return self.log_moments(rate, noise.margin) / (order - 1)
        costs = gaussian_envelope(order, self.worst() + noise.margin, noise.std)
        costs[self.equal] = 0.0
        return costs

    def slice_deltas(self, epsilons: Floats, noise: Covariance, envelope: str) -> Floats:
        """Compute delta along each slice at its epsilon, both of shape (n_instances, n_slices)."""
        if envelope == "transport":
            return self.deltas(epsilons, noise.std, noise.margin)
        deltas = gaussian_delta((self.worst() + noise.margin) / noise.std, epsilons) + _DELTA_ERROR
        deltas[self.equal] = 0.0
        return deltas

    def epsilon_along(self, notion: str, weights: Floats, delta: float, noise: Covariance) -> float:
        """Find the least epsilon at `delta`, aggregated over slices, the largest over instances."""

        def epsilons_of(tables: "GapTables") -> Floats:
            def deltas(epsilons: Floats) -> Floats:
                return tables.deltas(epsilons, noise.std, noise.margin)

            if notion == "average":
                ones = np.ones((tables.n_instances, tables.n_slices))
                return aggregate_average(smallest_epsilons(deltas, ones, delta * ones), weights)

            def joint(epsilons: Floats) -> Floats:
                # Hockey-stick divergences are jointly convex.
                each = np.repeat(epsilons[:, None], tables.n_slices, axis=1)
                return aggregate_average(deltas(each), weights)

            each_one = np.ones(tables.n_instances)
            return smallest_epsilons(joint, each_one, delta * each_one)

        return largest_over_instances(self, epsilons_of)

    def worst_gaps(self) -> Floats:
        """Return W-infinity along each slice, shape (n_instances, n_slices)."""
        return self.worst()

    def largest_gaps(self) -> Floats:
        """Return the gap along the slice that shows most, per instance."""
        return np.asarray(self.worst().max(axis=1))

    def visible(self, directions: Floats, errors: Floats, share: float) -> tuple[Floats, Floats]:
        """Return what a slice must show of each pair, and what each of these directions shows.

        Rounding of projections adds to gaps; a slice does not show that part.
        """
        del directions, share
        seen = self.worst() - 4 * errors
        return seen.max(axis=1) * BLIND, seen


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class MatchingTables(DistanceTables, NotOfRows):
    """Distances in all dimensions, one coupling per `slice`: they bound the whole output."""

    name: ClassVar[str] = "couplings"
    is_on_grid: ClassVar[bool] = True

    @classmethod
    def of_gaps(cls, tables: GapTables) -> "MatchingTables":
        """Turn gaps into the whole output in one dimension, where gaps are distances."""
        return cls(**attrs.asdict(tables, recurse=False))

    @property
    def scale(self) -> float:
        """Largest distance of all couplings."""
        return float(self.worst().max())

    @property
    def is_point(self) -> bool:
        """Whether every coupling is of two points."""
        return bool((self.totals == 1).all())

    is_single = is_point

    def mean_squares(self, noise: Covariance) -> Floats:
        """Compute the mean squared distance of the best coupling, in noise deviations."""
        squares = self.masses * ((self.gaps + noise.margin) / noise.std) ** 2
        rows = np.add.reduceat(squares, self.starts[:-1])
        means = self._by_instance(rows).min(axis=1) * _longer(noise.dim) ** 2
        means[self.equal] = 0.0
        return np.asarray(means)

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Bound the divergences by log moments of the best coupling's squared distances.

        Guarantee: it also holds for the released integers, because the ideal integer Gaussian costs
        no more than the continuous one and the grid margin is added.
        """
        rate = moment_rate(order, noise.std) * _longer(noise.dim)
        return np.asarray(self.log_moments(rate, noise.margin).min(axis=1) / (order - 1))

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Bound delta by the mean over two Gaussians at the distances of the best coupling."""

        def deltas(epsilon: float) -> Floats:
            at = np.full((self.n_instances, self.n_slices), float(epsilon))
            return np.asarray(self.coupled_deltas(at, noise).min(axis=1))

        return deltas

    def coupled_deltas(self, epsilons: Floats, noise: Covariance) -> Floats:
        """Compute the delta of each coupling at its epsilon, shapes (n_instances, n_slices)."""
        return self.deltas(epsilons, noise.std / _longer(noise.dim), noise.margin)

    def variations(self, noise: Covariance) -> Floats:
        """Bound total variation by the delta at epsilon 0 of the best coupling."""
        return np.asarray(np.minimum(1.0, self.delta_curve(noise)(0.0)))

    def epsilon_at(self, delta: float, noise: Covariance) -> float:
        """Find the least epsilon at `delta`, the largest over instances.

        Only instances whose epsilon on rougher tables is above the largest so far are evaluated:
        no epsilon grows if distances are rounded less.
        """

        def epsilons_of(tables: "MatchingTables") -> Floats:
            ones = np.ones((tables.n_instances, tables.n_slices))
            rows = smallest_epsilons(
                lambda at: tables.coupled_deltas(at, noise), ones, delta * ones
            )
            return np.asarray(rows.min(axis=1))

        return largest_over_instances(self, epsilons_of)

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> Floats:
        """Bound the divergence by the log moment of the distances along a uniform direction."""
        rate = moment_rate(order, noise.std) * _longer(noise.dim)
        if notion == "average":
            logs = rate * (self.worst() + noise.margin) ** 2 / noise.dim
        else:
            rows = log_sphere_moments(
                self.starts, self.gaps, self.counts, rate, noise.margin, noise.dim
            )
            logs = self._by_instance(rows)
        return np.asarray(logs.min(axis=1) / (order - 1))

    def reach(self) -> Floats:
        """Return the largest distance of the coupling that keeps outputs closest."""
        return np.asarray(self.worst().min(axis=1))

    def farther(self, distance: float) -> "MatchingTables":
        """Move all coupled outputs farther apart; what is declared equal may then differ."""
        return attrs.evolve(self, gaps=self.gaps + distance, equal=np.zeros_like(self.equal))

    def unwhitened(self, shape: Shape) -> None:
        """Return None: distances have no direction."""
        del shape

    def source(self, found: str | None) -> str:
        """Name the couplings, and how they were looked for."""
        if found is None:
            return "the gaps of the one coordinate"
        best = "one coupling" if self.n_slices == 1 else f"the best of {self.n_slices} couplings"
        return f"{best} per pair ({found})"


def largest_over_instances(tables: Tables, epsilons_of: Callable[[Tables], Floats]) -> float:
    """Find the largest epsilon of an instance; needs: no epsilon grows if gaps are rounded less.

    Only instances whose epsilon on rougher tables is above the largest so far are evaluated.
    """
    rough_tables = tables.coarsened(ROUGH_ENTRIES)
    rough = epsilons_of(rough_tables)
    if rough_tables is tables:
        return float(rough.max())
    ranked: Integers = np.argsort(-rough, kind="stable")
    largest, n = 0.0, 1
    while len(ranked) and rough[ranked[0]] > largest:
        some, ranked = np.sort(ranked[:n]), ranked[n:]
        largest, n = max(largest, float(epsilons_of(tables.only(some)).max())), 2 * n
    return largest


def _longer(dim: int) -> float:
    """Return a factor for distances, which are sums of squares: each addition is rounded."""
    return 1 + (dim + 8) * UNIT_ROUNDOFF


class Rounder:
    """A maker of rows of at most `most` entries; it has a buffer, so each thread needs its own."""

    def __init__(self, most: int) -> None:
        # Rounded to more digits than the entries need, then thinned.
        digits = min(FINEST_DIGITS, max(4, most.bit_length()))
        self.drop = MANTISSA_BITS - digits
        self._most = most
        self._histogram = np.zeros((OCTAVES + HEADROOM) * 2**digits + 2, dtype=np.int64)

    def row(self, gaps: Floats, masses: Integers) -> Row:
        """Make the row of these gaps, in any order."""
        return thinned(*tabulate(gaps, masses, self.drop, self._histogram), self._most)

    def row_of_difference(self, a: Floats, b: Floats, extra: float) -> Row:
        """Make the row of |a - b| + extra, for sorted a and b of equal length and mass."""
        row = tabulate_difference(a, b, extra, self.drop, self._histogram)
        return thinned(*row, self._most)


@kernel
def _coarsen(
    starts: Integers, gaps: Floats, counts: Integers, most: int
) -> tuple[Integers, Floats, Integers]:
    """Thin each row to `most` entries."""
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


def selected(
    distributions: Sequence[Item], pairs: Sequence[DistributionPair], instances: Integers
) -> tuple[list[Item], list[DistributionPair]]:
    """Select the pairs of some instances, and only the distributions that they compare."""
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
    """Tabulate all instances with at most `MOST_ENTRIES` entries, or two for each row.

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
    """Find instances that may cost most once their rows are finer than `sizes` entries."""
    result = np.zeros(tables.n_instances, dtype=np.bool_)
    for costs in _rankings(tables, weights):
        certain = (costs / (1 + _LOOSE / sizes)).max()
        result |= (costs >= certain) & (costs > 0)
    return result & (sizes < ENOUGH)


def _rankings(tables: DistanceTables, weights: Floats | None) -> Iterator[Floats]:
    """Yield the cost of each instance, up to a factor, for several notions and noises."""
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
    """Replace the rows of some instances, in ascending order, by those of `finer`."""
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
