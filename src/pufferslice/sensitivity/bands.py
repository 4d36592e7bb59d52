# SPDX-License-Identifier: Apache-2.0
"""Upper bounds on gaps from samples: bands around both quantile functions, all levels at once."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, final

import attrs
import numpy as np

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
from pufferslice.sensitivity.exact import DIRECTIONS_PER_BLOCK, projection_errors
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.kernels import project, sort_rows
from pufferslice.sensitivity.tables import (
    DistributionPair,
    GapTables,
    Rounder,
    Row,
    resolved,
    selected,
)

_ROUNDING: Final = 1e-9


class RankedDistribution(Protocol):
    """A sample whose order statistics along the directions of a profile are known."""

    @property
    def n_samples(self) -> int:
        """Number of draws."""

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        """Bound the order statistics of these ranks, from 1 to n_samples, from below and above.

        `rows` are directions; both results have shape (n_rows, n_ranks).
        """


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class SortedSample:
    """Draws of a distribution with the directions along which they are sorted, a few at a time."""

    directions: Floats
    columns: Floats
    """Draws by coordinate, shape (dim, n_samples)."""
    errors: Floats
    """Bound on the float error of a projection, shape (n_directions,)."""

    @classmethod
    def of(cls, distribution: SampledDistribution, directions: Floats) -> "SortedSample":
        """Prepare the draws of `distribution` along the unit rows of `directions`."""
        check_unit_rows(directions=directions)
        if distribution.dim != directions.shape[1]:
            raise ArgumentError(
                f"the distribution has dimension {distribution.dim}, the directions have "
                f"{directions.shape[1]}; give directions of the dimension of the distribution"
            )
        columns = np.ascontiguousarray(distribution.outputs.T)
        largest = float(np.linalg.norm(np.abs(columns).max(axis=1)))
        errors = projection_errors(directions, largest)
        return cls(directions=directions, columns=columns, errors=errors)

    @property
    def n_samples(self) -> int:
        """Number of draws."""
        return int(self.columns.shape[1])

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        """Return the order statistics minus and plus the error of the projection."""
        directions = self.directions[rows]
        values = np.empty((len(directions), self.n_samples))
        project(directions, self.columns, values)
        sort_rows(values, np.empty(self.n_samples))
        quantiles, errors = values[:, ranks - 1], self.errors[rows, None]
        return quantiles - errors, quantiles + errors


class BandTables(NamedTuple):
    """Bounds from samples on the gaps of every instance along every slice."""

    bound: GapTables
    """Upper bounds on the true gaps, except with the failure probability of the bands. With a range
    the masses are those of all levels; without, of the covered ones, see `missing_mass`."""
    plain: GapTables
    """Gaps of the samples themselves on the same levels, without bands: not a bound."""
    beyond: GapTables | None = None
    """Part of `bound` on levels that the bands of both distributions do not cover; None without a
    range."""


def missing_mass(tables: GapTables | GaussianPairs) -> Floats:
    """Mass of the levels that band tables leave out, per instance, shape (n_instances,)."""
    if isinstance(tables, GaussianPairs):
        return np.zeros(tables.n_instances)
    return np.asarray((LEVEL_QUANTA - tables.totals) / LEVEL_QUANTA)


def common_bands(
    n_samples: Sequence[int], failure_probability: float, kind: BandKind
) -> list[BandRanks]:
    """Build a band for each sample size, all on one grid of levels; the probability is of each."""
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
    r"""Bound |F^-1(t) - G^-1(t)| from above for every pair of distributions, along every direction.

    $$gap(t) \le \max(U_F(t) - L_G(t),\; U_G(t) - L_F(t))$$

    `ends` is the public range along each direction, shape (n_directions, 2): where a band has no
    samples left, the range bounds the quantile. Or the number of directions: then those levels are
    left out, and their mass is missing.

    Guarantee: for one pair of distributions, all directions and all covered levels at once, the
    tabulated gap is at least the true one, except with probability 2 * n_directions times that of a
    band. Needs: independent draws; directions, levels and range chosen without looking at them.
    """
    n_directions = ends if isinstance(ends, int) else len(ends)

    samples = [
        _BandedSample(distribution=distribution, band=band)
        for distribution, band in zip(distributions, bands, strict=True)
    ]

    def make(chosen: Integers, most: int, progress: Progress) -> list[GapTables]:
        some, chosen_pairs = selected(samples, pairs, chosen)
        covered = [some[a].band.covered & some[b].band.covered for a, b in chosen_pairs]
        levels = covered if isinstance(ends, int) else [np.ones_like(each) for each in covered]
        masses = some[0].band.masses

        def block(start: int) -> list[list[Row]]:
            rows = slice(start, min(start + DIRECTIONS_PER_BLOCK, n_directions))
            quantiles = [sample.quantiles(rows, ends) for sample in some]
            rounder = Rounder(most)
            result = []
            for row in range(rows.stop - rows.start):
                for (a, b), inside, where in zip(chosen_pairs, covered, levels, strict=True):
                    upper_a, lower_a, middle_a = (values[row] for values in quantiles[a])
                    upper_b, lower_b, middle_b = (values[row] for values in quantiles[b])
                    one, other = _above(upper_a, lower_b), _above(upper_b, lower_a)
                    gaps = np.maximum(np.maximum(one, other), 0.0)
                    gaps = np.where(inside, gaps, _rounded_up(gaps, rounder.drop))
                    table_rows = [
                        rounder.row(gaps[where], masses[where]),
                        rounder.row(np.abs(middle_a - middle_b), masses),
                    ]
                    if not isinstance(ends, int):  # no band covers the last level
                        table_rows.append(rounder.row(gaps[~inside], masses[~inside]))
                    result.append(table_rows)
            return result

        starts = range(0, n_directions, DIRECTIONS_PER_BLOCK)
        blocks = in_threads(block, starts, progress)
        bound, plain, *beyond = zip(*(rows for part in blocks for rows in part), strict=True)
        return [
            GapTables.of_rows(bound, [int(masses[where].sum()) for where in levels]),
            GapTables.of_rows(plain, [LEVEL_QUANTA] * len(chosen)),
            *(
                GapTables.of_rows(rows, [int(masses[~inside].sum()) for inside in covered])
                for rows in beyond
            ),
        ]

    bound, plain, *beyond = resolved(
        make, len(pairs), n_directions, weights=weights, progress=progress
    )
    return BandTables(bound=bound, plain=plain, beyond=beyond[0] if beyond else None)


def tail_cut_estimate(first: Floats, second: Floats, failure_probability: float) -> float:
    """Estimate W-infinity on the line as the paper does: for comparison, never for a certificate.

    The largest F^-1(t + e) - G^-1(t - e) of the samples over t in [e, 1 - e], e the DKW half-width
    of the smaller sample at half of the failure probability. It is not an upper bound: it ignores
    the tails and the other order of the pair.
    Source: the finite-sample estimator before thm:mc_finite_gaussian_ave_srpp.
    """
    samples = [np.sort(np.ravel(sample)) for sample in (first, second)]
    n = min(map(len, samples))
    halfwidth = dkw_halfwidth(n, failure_probability / 2)
    if not halfwidth < 0.5:
        raise ArgumentError(
            f"the estimate needs more than {n} samples: no level is left between the cut tails. "
            "Take more, or a larger failure_probability"
        )
    levels = np.linspace(halfwidth, 1 - halfwidth, 4 * n + 1)

    def quantiles(ordered: Floats, levels: Floats) -> Floats:
        ranks = np.ceil(levels * len(ordered) - _ROUNDING).astype(np.int64)
        return np.asarray(ordered[np.clip(ranks, 1, len(ordered)) - 1])

    upper = quantiles(samples[0], levels + halfwidth)
    return float(np.abs(upper - quantiles(samples[1], levels - halfwidth)).max())


@final
@attrs.frozen(kw_only=True, eq=False)
class _BandedSample:
    """A sample with the band around its quantile functions."""

    distribution: RankedDistribution
    band: BandRanks

    def __attrs_post_init__(self) -> None:
        if self.distribution.n_samples != self.band.n_samples:
            n_samples = self.distribution.n_samples
            raise ArgumentError(
                f"a band for {self.band.n_samples} samples does not fit a distribution with "
                f"{n_samples}; make it with band_ranks(n_samples={n_samples}, ...)"
            )

    def quantiles(self, rows: slice, ends: Floats | int) -> tuple[Floats, Floats, Floats]:
        """Return upper bounds, lower bounds and sample quantiles, by direction and interval."""
        parts = (self.band.interval_upper, self.band.interval_lower, self.band.interval_middle)
        ranks = np.clip(np.concatenate(parts), 1, self.band.n_samples)
        low, high = self.distribution.bounds(rows, ranks)
        n = len(self.band.masses)
        upper, lower = high[:, :n], low[:, n : 2 * n]
        if not isinstance(ends, int):
            inside = ends[rows]
            upper = np.where(self.band.interval_upper > self.band.n_samples, inside[:, 1:], upper)
            lower = np.where(self.band.interval_lower < 1, inside[:, :1], lower)
        return upper, lower, (low[:, 2 * n :] + high[:, 2 * n :]) / 2


def _rounded_up(gaps: Floats, drop: int) -> Floats:
    """Round gaps up in their last `drop` bits: exact gaps to a public end would show a record."""
    keys = gaps.view(np.int64)
    coarse = ((keys + ((1 << drop) - 1)) >> drop) << drop
    return coarse.view(np.float64)


def _above(a: Floats, b: Floats) -> Floats:
    """Bound a - b from above in exact arithmetic; a - b itself where that is a float."""
    gap = a - b
    back = gap - a
    lost = (a - (gap - back)) - (b + back)
    return np.asarray(np.where(lost > 0, np.nextafter(gap, np.inf), gap))
