# SPDX-License-Identifier: Apache-2.0
"""Upper bounds on gaps from samples: bands around both quantile functions, all levels at once."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_unit_rows
from pufferslice._core.threads import Progress, in_threads, silent
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import SampledDistribution
from pufferslice.sensitivity.concentration import (
    LEVEL_QUANTA,
    BandKind,
    BandRanks,
    band_levels,
    band_ranks,
    dkw_halfwidth,
)
from pufferslice.sensitivity.exact import DIRECTIONS_PER_BLOCK, OCTAVES, projection_errors
from pufferslice.sensitivity.kernels import HEADROOM, project, sort_rows, tabulate, thinned
from pufferslice.sensitivity.tables import (
    DistributionPair,
    GapTables,
    digits_for,
    resolved,
    restricted,
)

_MANTISSA: Final = 52
_MIDDLE: Final = 0.5
_NEARLY: Final = 1e-9


class RankedDistribution(Protocol):
    """A sample that can be asked for order statistics along the directions of a profile.

    `SortedSample`, or a `BinnedDistribution` whose rows are the draws.
    """

    @property
    def n_samples(self) -> int:
        """Number of draws."""

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        """Values below and above the order statistics of these ranks, from 1 to n_samples.

        `rows` are directions; both results have shape (n_rows, n_ranks).
        """


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class SortedSample:
    """Draws of a distribution with the directions along which they are sorted, a few at a time."""

    directions: Floats
    columns: Floats
    """The draws by coordinate, shape (dim, n_samples)."""
    errors: Floats
    """Bound on the float error of a projection, shape (n_directions,)."""

    @classmethod
    def of(cls, distribution: SampledDistribution, directions: Floats) -> "SortedSample":
        """The draws of `distribution` along the unit rows of `directions`."""
        check_unit_rows(directions=directions)
        if distribution.dim != directions.shape[1]:
            msg = (
                f"the distribution has dimension {distribution.dim}, the directions have "
                f"{directions.shape[1]}; give directions of the dimension of the distribution"
            )
            raise ArgumentError(msg)
        columns = np.ascontiguousarray(distribution.outputs.T)
        largest = float(np.linalg.norm(np.abs(columns).max(axis=1)))
        errors = projection_errors(directions, largest)
        return cls(directions=directions, columns=columns, errors=errors)

    @property
    def n_samples(self) -> int:
        """Number of draws."""
        return int(self.columns.shape[1])

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        """The order statistics, less and plus the error of the projection."""
        directions = self.directions[rows]
        values = np.empty((len(directions), self.n_samples))
        project(directions, self.columns, values)
        sort_rows(values, np.empty(self.n_samples))
        found, errors = values[:, ranks - 1], self.errors[rows, None]
        return found - errors, found + errors


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class BandTables:
    """What samples say of the gaps of every instance along every slice."""

    bound: GapTables
    """At least the true gaps, except with the failure probability of the bands. With a range the
    masses are those of all levels; without, of the covered ones, and `missing` is the rest."""
    plain: GapTables
    """The gaps of the samples themselves on the same levels: what the distribution alone would
    cost."""
    beyond: GapTables | None = None
    """With a range, the part of `bound` on levels that the bands of both distributions do not
    cover."""

    @property
    def missing(self) -> Floats:
        """Mass of the levels that `bound` leaves out, per instance, shape (n_instances,)."""
        return missing_mass(self.bound)

    def __repr__(self) -> str:
        return f"BandTables(bound={self.bound!r})"


def missing_mass(tables: GapTables) -> Floats:
    """Mass that band tables leave out, per instance."""
    return np.asarray((LEVEL_QUANTA - tables.totals) / LEVEL_QUANTA)


def common_bands(
    n_samples: Sequence[int], failure_probability: float, kind: BandKind
) -> list[BandRanks]:
    """A band for each sample size, all on one grid of levels; the probability is that of each."""
    levels = band_levels(max(n_samples))
    bands = {n: band_ranks(n, failure_probability, kind, levels) for n in sorted(set(n_samples))}
    return [bands[n] for n in n_samples]


def band_tables(
    distributions: Sequence[RankedDistribution],
    pairs: Sequence[DistributionPair],
    bands: Sequence[BandRanks],
    ends: Floats | int,
    progress: Progress = silent,
    *,
    weights: Floats | None = None,
) -> BandTables:
    r"""Upper bounds on |F^-1(t) - G^-1(t)| for every pair of distributions along every direction.

    $$gap(t) \le \max(U_F(t) - L_G(t),\; U_G(t) - L_F(t))$$

    `ends` is the public range along each direction, shape (n_directions, 2): where a band has no
    samples left, the range bounds the quantile. Or the number of directions: then those levels are
    left out, and their mass is missing.

    Guarantee: for one pair of distributions, all directions and all covered levels at once, the
    tabulated gap is at least the true one, except with probability 2 * n_directions times that of a
    band. Needs: independent draws; directions, levels and range chosen without looking at them.
    """
    n_directions = ends if isinstance(ends, int) else len(ends)

    def make(chosen: Sequence[int], most: int) -> list[GapTables]:
        used, own = restricted(pairs, chosen)
        some, their = [distributions[i] for i in used], [bands[i] for i in used]
        return _band_tables(
            some, own, their, ends, most, progress if len(own) == len(pairs) else silent
        )

    bound, plain, *beyond = resolved(make, len(pairs), n_directions, weights)
    return BandTables(bound=bound, plain=plain, beyond=beyond[0] if beyond else None)


def _band_tables(
    distributions: Sequence[RankedDistribution],
    pairs: Sequence[DistributionPair],
    bands: Sequence[BandRanks],
    ends: Floats | int,
    most: int,
    progress: Progress,
) -> list[GapTables]:
    """The tables of `BandTables` with at most so many entries a row."""
    n_directions = ends if isinstance(ends, int) else len(ends)
    plans = [
        _Plan.of(distribution, band)
        for distribution, band in zip(distributions, bands, strict=True)
    ]
    covered = [bands[a].covered & bands[b].covered for a, b in pairs]
    kept = covered if isinstance(ends, int) else [np.ones_like(one) for one in covered]
    is_cut = isinstance(ends, int) or any(own.all() for own in covered)
    masses = bands[0].masses
    masses_kept = [masses[where] for where in kept]

    def block(start: int) -> list[tuple[Row, ...]]:
        rows = slice(start, min(start + DIRECTIONS_PER_BLOCK, n_directions))
        sides = [plan.quantiles(rows, ends) for plan in plans]
        rounder = _Rounder.of(most)
        made = []
        for row in range(rows.stop - rows.start):
            for (a, b), own, where, left in zip(pairs, covered, kept, masses_kept, strict=True):
                gaps = rounder.blurred(_gap(sides[a], sides[b], row), own)
                middle = np.abs(sides[a].middle[row] - sides[b].middle[row])
                both: tuple[Row, ...] = (
                    rounder.row(gaps[where], left),
                    rounder.row(middle, masses),
                )
                made.append(both if is_cut else (*both, rounder.row(gaps[~own], masses[~own])))
        return made

    starts = range(0, n_directions, DIRECTIONS_PER_BLOCK)
    found = [rows for part in in_threads(block, starts, progress) for rows in part]
    totals = [int(left.sum()) for left in masses_kept]
    rest = [int(masses[~own].sum()) for own in covered]
    each = (totals, [LEVEL_QUANTA] * len(pairs), rest)
    return [
        _tables(list(rows), own) for rows, own in zip(zip(*found, strict=True), each, strict=False)
    ]


def tail_cut_estimate(first: Floats, second: Floats, failure_probability: float) -> float:
    """The paper's estimate of W-infinity on the line: for comparison, never for a certificate.

    The largest F^-1(t + e) - G^-1(t - e) of the samples over t in [e, 1 - e], e the DKW half-width
    of the smaller sample at half of the failure probability. It is no upper bound: what lies in the
    tails, and what only the other order of the pair shows, is not looked at.
    Source: the finite-sample estimator before thm:mc_finite_gaussian_ave_srpp.
    """
    samples = [np.sort(np.ravel(sample)) for sample in (first, second)]
    n = min(map(len, samples))
    halfwidth = dkw_halfwidth(n, failure_probability / 2)
    if not halfwidth < _MIDDLE:
        msg = (
            f"the estimate needs more than {n} samples: no level is left between the cut tails. "
            "Take more, or a larger failure_probability"
        )
        raise ArgumentError(msg)
    levels = np.linspace(halfwidth, 1 - halfwidth, 4 * n + 1)
    upper = _empirical_quantiles(samples[0], levels + halfwidth)
    lower = _empirical_quantiles(samples[1], levels - halfwidth)
    return float(np.abs(upper - lower).max())


class _Side(NamedTuple):
    """One distribution along a block of directions.

    Quantile bounds and sample quantiles by interval.
    """

    upper: Floats
    lower: Floats
    middle: Floats


class _Plan(NamedTuple):
    """A distribution, and the ranks to ask it for."""

    distribution: RankedDistribution
    band: BandRanks
    ranks: Integers

    @classmethod
    def of(cls, distribution: RankedDistribution, band: BandRanks) -> "_Plan":
        if distribution.n_samples != band.n_samples:
            msg = (
                f"a band for {band.n_samples} samples does not fit a distribution with "
                f"{distribution.n_samples}; make it with "
                f"band_ranks(n_samples={distribution.n_samples}, ...)"
            )
            raise ArgumentError(msg)
        parts = (band.interval_upper, band.interval_lower, band.interval_middle)
        return cls(distribution, band, np.clip(np.concatenate(parts), 1, band.n_samples))

    def quantiles(self, rows: slice, ends: Floats | int) -> _Side:
        low, high = self.distribution.bounds(rows, self.ranks)
        n = len(self.band.masses)
        upper, lower = high[:, :n], low[:, n : 2 * n]
        if not isinstance(ends, int):
            inside = ends[rows]
            upper = np.where(self.band.interval_upper > self.band.n_samples, inside[:, 1:], upper)
            lower = np.where(self.band.interval_lower < 1, inside[:, :1], lower)
        return _Side(upper, lower, (low[:, 2 * n :] + high[:, 2 * n :]) / 2)


Row = tuple[Floats, Integers]
"""Gaps, descending, and the mass of each."""


class _Rounder(NamedTuple):
    """Rounds gaps up to a few binary digits and merges them; one for each block."""

    drop: int
    histogram: Integers
    most: int

    @classmethod
    def of(cls, most: int) -> "_Rounder":
        digits = digits_for(most)
        n_bins = (OCTAVES + HEADROOM) * 2**digits + 2
        return cls(_MANTISSA - digits, np.zeros(n_bins, dtype=np.int64), most)

    def blurred(self, gaps: Floats, covered: npt.NDArray[np.bool_]) -> Floats:
        """Gaps to an end of the range are rounded up: exact ones would give away a record."""
        keys = gaps.view(np.int64)
        coarse = ((keys + ((1 << self.drop) - 1)) >> self.drop) << self.drop
        return np.asarray(np.where(covered, gaps, coarse.view(np.float64)))

    def row(self, gaps: Floats, masses: Integers) -> Row:
        fine = tabulate(np.ascontiguousarray(gaps), masses, self.drop, self.histogram)
        return thinned(*fine, self.most)


def _gap(first: _Side, second: _Side, row: int) -> Floats:
    one = _above(first.upper[row], second.lower[row])
    other = _above(second.upper[row], first.lower[row])
    return np.maximum(np.maximum(one, other), 0.0)


def _above(a: Floats, b: Floats) -> Floats:
    """At least a - b in exact arithmetic, and a - b itself where that is a float."""
    gap = a - b
    back = gap - a
    lost = (a - (gap - back)) - (b + back)
    return np.asarray(np.where(lost > 0, np.nextafter(gap, np.inf), gap))


def _tables(rows: Sequence[Row], totals: list[int]) -> GapTables:
    lengths = [len(gaps) for gaps, _ in rows]
    return GapTables(
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        gaps=np.concatenate([gaps for gaps, _ in rows]),
        counts=np.concatenate([counts for _, counts in rows]),
        totals=np.array(totals, dtype=np.int64),
        equal=np.zeros(len(totals), dtype=np.bool_),
    )


def _empirical_quantiles(ordered: Floats, levels: Floats) -> Floats:
    """Generalised inverse of the empirical CDF of a sorted sample."""
    ranks = np.ceil(levels * len(ordered) - _NEARLY).astype(np.int64)
    return np.asarray(ordered[np.clip(ranks, 1, len(ordered)) - 1])
