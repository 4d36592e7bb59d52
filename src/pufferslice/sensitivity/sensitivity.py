# SPDX-License-Identifier: Apache-2.0
"""Sensitivity of a scenario along slices and as a whole, and its confidence."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, TypeVar, final, get_args

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice._core.checks import check_above, check_between, check_one_of
from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA, ROUNDING_DELTA
from pufferslice._core.search import SAFETY
from pufferslice._core.threads import Progress, logged, silent
from pufferslice.errors import ArgumentError, CalibrationError, ClaimError, ScenarioError
from pufferslice.queries.ranges import Ball, Box
from pufferslice.scenario.distributions import (
    Distribution,
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
    SampledDistribution,
    equal_distributions,
)
from pufferslice.scenario.occupancy import SlotDistribution
from pufferslice.scenario.rows import RowDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.bands import (
    BandTables,
    SortedSample,
    band_tables,
    common_bands,
    missing_mass,
)
from pufferslice.sensitivity.concentration import (
    BANDS,
    LEVEL_QUANTA,
    BandKind,
    dkw_halfwidth,
    samples_for_tail,
    split,
)
from pufferslice.sensitivity.couplings import SEED, Recipe, coupling_tables, range_tables
from pufferslice.sensitivity.difference import Difference
from pufferslice.sensitivity.exact import gap_tables
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import Profile, SampledSphere
from pufferslice.sensitivity.renyi import SLICED_NOTIONS
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.tables import DistributionPair, GapTables, MatchingTables
from pufferslice.sensitivity.whitening import Covariance, Shape

Tails = Literal["at_range", "in_delta"]

TAILS: Final[tuple[Tails, ...]] = get_args(Tails)
"""Treatments of levels without samples: gaps count at the public range, or the mass is in delta."""


@final
@attrs.frozen(kw_only=True)
class Confidence:
    """The failure probability of a certificate, and how it is split.

    It is split over the two distributions and the directions, not over the instances: the instance
    that truly needs the most noise does not depend on the draws, and gets at least its noise.
    """

    failure_probability: float
    """Failure probability of the whole claim."""
    band: BandKind | None
    """The bands around sampled distributions; None if the distributions are exact."""
    tails: Tails | None
    """Treatment of levels beyond the bands; None without bands."""
    on_sphere: bool
    """Whether directions were drawn from the sphere; they take half of the failure probability, or
    all of it if the distributions are exact."""

    def __attrs_post_init__(self) -> None:
        check_between(0, 1, failure_probability=self.failure_probability)
        if (self.band is None) != (self.tails is None) or not (self.on_sphere or self.band):
            raise ArgumentError(
                "a failure probability belongs to bands (with band and tails), to drawn directions "
                f"(on_sphere), or to both; got band {self.band!r}, tails {self.tails!r}, on_sphere "
                f"{self.on_sphere!r}"
            )
        if self.band is not None and self.tails is not None:
            check_one_of(BANDS, band=self.band)
            check_one_of(TAILS, tails=self.tails)

    def band_probability(self, n_directions: int) -> float:
        """Failure probability of one band: one distribution along one direction."""
        parts = 2 if self.on_sphere else 1
        return split(self.failure_probability, 2 * parts * n_directions)

    @property
    def sphere_probability(self) -> float:
        """Failure probability of the drawn directions."""
        return split(self.failure_probability, 1 if self.band is None else 2)

    def sphere_halfwidth(self, n_directions: int) -> float:
        """Half-width of a mean over drawn directions, as a share of the largest value.

        Source: thm:mc_finite_gaussian_ave_srpp, thm:mc_finite_gaussian_joint_srpp.
        """
        return dkw_halfwidth(n_directions, self.sphere_probability)


SliceDifference = GapTables | GaussianPairs
"""Kinds of difference along slices."""

DIFFERENCES: Final[Mapping[str, type[Difference]]] = {
    kind.name: kind for kind in (MatchingTables, GaussianPairs, RowDifference)
}
"""Kinds of difference of the whole output, by their names in a file."""
SLICE_DIFFERENCES: Final[Mapping[str, type[SliceDifference]]] = {
    kind.name: kind for kind in (GapTables, GaussianPairs)
}
"""Kinds of difference along slices, by their names in a file."""

Envelope = Literal["transport", "worst_gap", "exact"]
ENVELOPES: Final[tuple[Envelope, ...]] = get_args(Envelope)


@final
@attrs.frozen(kw_only=True)
class SphereTerm:
    """The Hoeffding term for drawing only some directions of the sphere."""

    halfwidth: float
    """Half-width sqrt(ln(2 / eta) / (2 m)) for m directions that fail with probability eta."""
    diameter: float
    """Euclidean diameter of the scaled clip set, at least the gap along every direction."""

    def __attrs_post_init__(self) -> None:
        check_above(0, halfwidth=self.halfwidth, diameter=self.diameter)


@final
@attrs.frozen(kw_only=True)
class Slices:
    """Gaps or Gaussian pairs along the slices of a profile: the input of every sliced cost."""

    profile: Profile
    differences: SliceDifference
    missing: Floats = attrs.field(
        default=attrs.Factory(lambda self: np.zeros(self.differences.n_instances), takes_self=True),
        converter=locked,
        eq=same,
    )
    """Mass that the gap tables leave out, per instance: 0, except for bands without a range."""
    plain: GapTables | None = None
    """Gaps of the samples themselves, without bands: not a bound; None without samples."""
    beyond: GapTables | None = None
    """Part of the gaps on levels that no band covers; None without samples in a range."""
    sphere: SphereTerm | None = None
    """Term for drawn directions; present exactly when the profile is the sphere."""
    failure_probability: float = 0.0
    """Probability that the gaps or the drawn directions fail to bound the distributions."""

    def __attrs_post_init__(self) -> None:
        differences, profile = self.differences, self.profile
        if not isinstance(differences, SliceDifference):
            raise ArgumentError(f"{differences!r} has no gaps along slices; use gap_tables(...)")
        if not differences.fits(profile.directions) or self.missing.shape != (
            differences.n_instances,
        ):
            raise ArgumentError(
                f"{differences!r} was not made along the slices of {profile!r}; make the gaps with "
                "this profile"
            )
        if isinstance(profile, SampledSphere) != (self.sphere is not None):
            raise ArgumentError(
                "the sphere as profile, and only it, needs the term for drawing directions; give "
                "sphere=SphereTerm(...) with a SampledSphere, and None with a FiniteProfile"
            )
        if self.sphere is not None and (self.missing.any() or "exact" in self.envelopes):
            raise ArgumentError(
                "the sphere as profile needs a public range, and gaps on all levels; clip the "
                "query with query.with_range(...), or use a FiniteProfile"
            )

    @property
    def envelopes(self) -> tuple[str, ...]:
        """The envelopes that apply: two for gap tables, the exact divergence for Gaussians."""
        return self.differences.envelopes

    @property
    def scale(self) -> float:
        """Size of the differences along slices of positive weight; 0 if none shows any."""
        return self.differences.scale_along(self.profile.weights)

    def noise(self, noise_std: float) -> Covariance:
        """Build isotropic noise, as claims along slices have."""
        return Covariance(dim=self.profile.dim, std=noise_std)

    def costs(self, order: float, noise_std: float, envelope: Envelope) -> Floats:
        """Bound the divergence along each slice, shape (n_instances, n_slices)."""
        check_one_of(self.envelopes, envelope=envelope)
        check_above(1, order=order)
        noise = self.noise(noise_std)
        self.check_whole()
        return self.differences.slice_costs(self.profile.directions, order, noise, envelope)

    @property
    def are_equal(self) -> bool:
        """Whether both distributions are equal in every instance."""
        return bool(np.all(self.differences.equal))

    def check_whole(self) -> None:
        """Check that no level is left out: a Rényi claim needs the gaps on all levels."""
        if self.missing.any():
            raise ArgumentError(
                "these gaps leave out the tails, so they bound no Rényi divergence; use a query "
                "with a public range, or claim sliced (epsilon, delta)"
            )


@final
@attrs.frozen(kw_only=True)
class Full:
    """Distances of the whole output under couplings, or Gaussian pairs, in whitened coordinates."""

    dim: int
    differences: Difference | None
    """Differences of the whole output; None if nothing bounds them: samples without a range."""
    from_range: bool = False
    """Whether the distances are the diameter of a public range instead of couplings."""
    shape: Shape | None = None
    """Shape of the noise; None for isotropic noise."""
    recipe: Recipe | None = None
    """Recipe by which couplings were found; None if none were looked for."""
    missing: Floats = attrs.field(
        default=attrs.Factory(
            lambda self: np.zeros(0 if self.differences is None else self.differences.n_instances),
            takes_self=True,
        ),
        converter=locked,
        eq=same,
    )
    """Mass that the distances leave out, per instance: 0, except for bands without a range."""

    def __attrs_post_init__(self) -> None:
        if self.differences is not None and type(self.differences) not in DIFFERENCES.values():
            raise ArgumentError(
                f"{self.differences!r} does not bound the whole output: gaps along slices may be "
                "shorter than every coupling. Use coupling_tables(...)"
            )
        if self.shape is not None and self.shape.dim != self.dim:
            raise ArgumentError(
                f"the shape has {self.shape.dim} coordinates, the query {self.dim}; give a matrix "
                "of the query's size"
            )

    @property
    def are_equal(self) -> bool:
        """Whether both distributions are equal in every instance."""
        return self.differences is not None and bool(np.all(self.differences.equal))

    @property
    def is_determined(self) -> bool:
        """Whether the query has a single value under every secret and prior."""
        return self.differences is not None and not self.from_range and self.differences.is_point

    @property
    def is_single(self) -> bool:
        """Whether the query has a single value, or one Gaussian, under every secret and prior."""
        return self.differences is not None and not self.from_range and self.differences.is_single

    @property
    def is_on_grid(self) -> bool:
        """Whether the bounds are about values on the grid of the release."""
        return self.differences is None or self.differences.is_on_grid

    @property
    def implementation_delta(self) -> float:
        """Total variation between the sampled release and the one the bounds are about."""
        return self.dim * (DRAW_DELTA + (INTEGER_DELTA if self.is_on_grid else ROUNDING_DELTA))

    @property
    def source(self) -> str:
        """Way in which the bounds were found, in words."""
        if self.differences is None:
            return "samples alone: they bound nothing beyond the slices without a public range"
        if self.from_range:
            return "the diameter of the public range"
        found = None if self.recipe is None else f"{self.recipe.effort}, seed {SEED}"
        return self.differences.source(found)

    def noise(self, noise_std: float) -> Covariance:
        """Build noise of this standard deviation, with the shape that whitens the differences."""
        return Covariance(dim=self.dim, std=noise_std, shape=self.shape)

    def divergences(self, order: float, noise_std: float) -> Floats:
        """Bound the unsliced divergence of each instance."""
        check_above(1, order=order)
        noise = self.noise(noise_std)
        if self.differences is None:
            return np.array([math.inf])
        if self.missing.any():
            return np.full(self.differences.n_instances, math.inf)
        return self.differences.divergences(order, noise)

    def divergence(self, order: float, noise_std: float) -> float:
        """Bound the unsliced divergence of the release, the largest over instances."""
        return float(self.divergences(order, noise_std).max()) * SAFETY

    def delta_curve(self, noise_std: float) -> Callable[[float], float]:
        """Compute the ideal noise's delta as a function of epsilon, the largest over instances.

        What does not depend on epsilon is computed once.
        """
        noise = self.noise(noise_std)
        if self.differences is None:
            return lambda _epsilon: 1.0
        curve = self.differences.delta_curve(noise)
        return lambda epsilon: float((curve(epsilon) * (1 - self.missing) + self.missing).max())

    def epsilon_at(self, delta: float, noise_std: float) -> float | None:
        """Find the least epsilon at `delta` by the distances themselves; None if there are none."""
        if self.differences is None or self.missing.any():
            return None
        return self.differences.epsilon_at(delta, self.noise(noise_std))

    def variation(self, noise_std: float) -> float:
        """Bound the total variation of the ideal noisy outputs under two protected secrets.

        Guarantee: never below the total variation, for every instance, in all dimensions.
        """
        noise = self.noise(noise_std)
        if self.differences is None:
            return 1.0
        bounds = self.differences.variations(noise)
        if self.missing.any():
            bounds = (bounds + self.missing) * (1 + 1e-12)
        return min(1.0, float(bounds.max()))

    def mean_square(self, noise_std: float) -> float:
        """Bound the mean squared distance of coupled outputs, in noise deviations."""
        noise = self.noise(noise_std)
        if self.differences is None or self.missing.any():
            raise ClaimError(
                "samples do not bound a mean squared distance; give the query a public range"
            )
        return float(self.differences.mean_squares(noise).max()) * SAFETY

    def sphere_divergences(self, notion: str, order: float, noise_std: float) -> Floats:
        """Bound the divergence of each instance along the whole sphere of directions.

        Never above that of the whole output; 0 for equal instances.
        """
        check_one_of(SLICED_NOTIONS, notion=notion)
        noise = self.noise(noise_std)
        if self.differences is None or self.missing.any():
            raise ArgumentError(
                "the whole sphere needs distances of the whole output, on all levels; from samples "
                "only a public range gives them. Use query.with_range(...), or a FiniteProfile"
            )
        if self.shape is not None:
            raise ArgumentError(
                "claims along the sphere are for isotropic noise; with a shape, noise and "
                "distances have other directions than the slices. Use shape='isotropic', or an "
                "unsliced claim"
            )
        if notion == "average" and not (self.is_single or self.dim == 1):
            raise ArgumentError(
                "an average over the whole sphere has a closed form only where the query has a "
                "single value, or one Gaussian, under every secret. Use a joint claim, which "
                "implies it, a SampledSphere or a FiniteProfile"
            )
        along = self.differences.sphere_divergences(notion, order, noise)
        costs = np.minimum(along, self.divergences(order, noise_std)) * SAFETY
        costs[self.differences.equal] = 0.0
        return np.asarray(costs)


Kind = TypeVar("Kind", bound=Distribution)


def slice_sensitivity(
    scenario: Scenario, profile: Profile, confidence: Confidence | None, progress: Progress
) -> Slices:
    """Compute gap tables or Gaussian pairs of every instance along the slices of a profile."""
    compared = _Compared(scenario, *distribution_pairs(scenario), progress)
    limits, scales = scenario.query.range, scenario.query.scales
    sphere = sphere_term(confidence, profile, limits, scales)
    failure = 0.0 if confidence is None else confidence.failure_probability
    tables = _SLICES[type(compared.distributions[0])](compared, profile, confidence)
    if isinstance(tables, BandTables):
        return Slices(
            profile=profile,
            differences=tables.bound,
            missing=missing_mass(tables.bound),
            plain=tables.plain,
            beyond=tables.beyond,
            sphere=sphere,
            failure_probability=failure,
        )
    return Slices(profile=profile, differences=tables, sphere=sphere, failure_probability=failure)


def full_sensitivity(
    scenario: Scenario,
    *,
    recipe: Recipe,
    shape: Shape | None = None,
    slices: Slices | None = None,
    progress: Progress = silent,
) -> Full:
    """Compute whole-output distances of every instance, in the coordinates that `shape` whitens.

    In one dimension a slice is the whole output: there `slices`, if given, have its distances.
    """
    if scenario.dim == 1 and slices is not None:
        return full_of_slices(slices, scenario.query.range, scenario.query.scales)
    compared = _Compared(scenario, *distribution_pairs(scenario), progress)
    with logged(f"what {len(compared.pairs)} pairs of worlds differ by"):
        return _FULL[type(compared.distributions[0])](compared, recipe, shape)


def full_of_slices(slices: Slices, range_: Box | Ball | None, scales: Floats) -> Full:
    """Turn slices in one dimension, where every direction is the axis, into the whole output.

    On levels that the gaps leave out, two outputs in a public range are its diameter apart at most.
    """
    tables = slices.differences
    if not isinstance(tables, GapTables):
        return Full(dim=1, differences=tables)
    if range_ is None or not slices.missing.any():
        return Full(dim=1, differences=MatchingTables.of_gaps(tables), missing=slices.missing)
    diameter, rows = range_.diameter(scales), []
    for row, (start, stop) in enumerate(pairwise(tables.starts.tolist())):
        gaps, counts = tables.gaps[start:stop], tables.counts[start:stop]
        left_out = LEVEL_QUANTA - int(tables.totals[row % tables.n_instances])
        if left_out and diameter > gaps[0]:
            gaps, counts = np.append(diameter, gaps), np.append(left_out, counts)
        else:
            counts = counts + left_out * (np.arange(len(counts)) == 0)
        rows.append((gaps, counts))
    totals = [LEVEL_QUANTA] * tables.n_instances
    return Full(dim=1, differences=MatchingTables.of_rows(rows, totals))


def distribution_pairs(scenario: Scenario) -> tuple[list[Distribution], list[DistributionPair]]:
    """List every distribution once, and the positions of the two of every instance."""
    where: dict[tuple[str, str], int] = {}
    distributions: list[Distribution] = []
    pairs = []
    for prior, pair in scenario.instances:
        for secret in pair:
            if (prior.name, secret) not in where:
                where[prior.name, secret] = len(distributions)
                distributions.append(prior.distributions[secret])
        pairs.append(
            DistributionPair(where[prior.name, pair.first], where[prior.name, pair.second])
        )
    return distributions, pairs


def sphere_term(
    confidence: Confidence | None, profile: Profile, range_: Box | Ball | None, scales: Floats
) -> SphereTerm | None:
    """Compute the Hoeffding term of drawn directions, if the profile is the sphere."""
    if confidence is None or not confidence.on_sphere:
        return None
    if range_ is None:
        raise ScenarioError(
            "the sphere as profile needs a query with a public range: only a range bounds what "
            "directions that were not drawn can show. Use query.with_range(...), or FiniteProfile"
        )
    halfwidth = confidence.sphere_halfwidth(profile.n_directions)
    return SphereTerm(halfwidth=halfwidth, diameter=range_.diameter(scales))


def covered_totals(
    n_samples: Sequence[tuple[int, int]], confidence: Confidence, n_directions: int
) -> list[int]:
    """Compute the mass that both bands of each instance cover, in level quanta."""
    sizes = sorted({n for pair in n_samples for n in pair})
    kind = confidence.band or "order_statistics"
    ranks = common_bands(sizes, confidence.band_probability(n_directions), kind)
    bands = dict(zip(sizes, ranks, strict=True))
    return [int(bands[a].masses[bands[a].covered & bands[b].covered].sum()) for a, b in n_samples]


class _Compared(NamedTuple):
    """The distributions of a scenario, and where the two of each instance are."""

    scenario: Scenario
    distributions: list[Distribution]
    pairs: list[DistributionPair]
    progress: Progress

    def gaussian_pairs(self, shape: Shape | None) -> GaussianPairs:
        declared = [
            (prior.declared[pair.first], prior.declared[pair.second])
            for prior, pair in self.scenario.instances
        ]
        return GaussianPairs.of(declared, self.scenario.query.scales, shape)


def _finite_slices(
    compared: _Compared, profile: Profile, _confidence: Confidence | None
) -> GapTables:
    return gap_tables(
        _all(compared.distributions, FiniteDistribution),
        compared.pairs,
        profile.directions,
        compared.progress,
        weights=profile.weights,
    )


def _gaussian_full(compared: _Compared, _recipe: Recipe, shape: Shape | None) -> Full:
    return Full(dim=compared.scenario.dim, differences=compared.gaussian_pairs(shape), shape=shape)


def _sampled_slices(
    compared: _Compared, profile: Profile, confidence: Confidence | None
) -> BandTables:
    if confidence is None:
        raise ScenarioError(
            "sampled distributions need a failure probability; give failure_probability"
        )
    pairs = compared.pairs
    ranked, range_ends = ranked_distributions(compared.scenario, compared.distributions, profile)
    kind = confidence.band or "order_statistics"
    share = confidence.band_probability(profile.n_directions)
    sizes = [distribution.n_samples for distribution in ranked]
    bands = common_bands(sizes, share, kind)
    for a, b in pairs:
        if not (bands[a].covered & bands[b].covered).any():
            needed = samples_for_tail(0.5, share, kind)
            raise CalibrationError(
                f"too few samples: {min(sizes[a], sizes[b])} of a distribution cover no level at "
                f"failure probability {confidence.failure_probability:g} over "
                f"{profile.n_directions} directions; at least {needed} cover half of them. Take "
                "more samples, fewer directions or a larger failure probability"
            )
    ends = (
        profile.n_directions if confidence.tails == "in_delta" or range_ends is None else range_ends
    )
    return band_tables(ranked, pairs, bands, ends, compared.progress, weights=profile.weights)


def _sampled_full(compared: _Compared, _recipe: Recipe, shape: Shape | None) -> Full:
    """Bound sampled outputs by the public range: samples bound nothing in several dimensions."""
    query = compared.scenario.query
    if query.range is None:
        return Full(dim=query.dim, differences=None, shape=shape)
    diameter = query.range.diameter(query.scales)
    if shape is not None:
        diameter = shape.diameter(query.range, query.scales)
    tables = range_tables(diameter, len(compared.pairs))
    return Full(dim=query.dim, differences=tables, from_range=True, shape=shape)


def _row_full(compared: _Compared, recipe: Recipe, shape: Shape | None) -> Full:
    differences = RowDifference.of(
        _all(compared.distributions, RowDistribution),
        compared.pairs,
        coupling=recipe.coupling,
        shape=shape,
        layered="changes" if recipe.layers_changes else "kinds",
    )
    return Full(dim=compared.scenario.dim, differences=differences, shape=shape, recipe=recipe)


def _finite_full(compared: _Compared, recipe: Recipe, shape: Shape | None) -> Full:
    atoms, dim = _all(compared.distributions, FiniteDistribution), compared.scenario.dim
    finite = whitened(atoms, shape, compared.scenario.query.center)
    tables = coupling_tables(finite, compared.pairs, recipe, compared.progress)
    if shape is not None:
        # Atoms that rounding brings together are not equal: without noise they can be told apart.
        equal = [equal_distributions(atoms[a], atoms[b]) for a, b in compared.pairs]
        tables = attrs.evolve(tables, equal=np.array(equal, dtype=np.bool_))
    if shape is None:
        # Gaps along slices include the errors of projections; a coupling is never shorter.
        largest = max(float(np.linalg.norm(np.abs(d.outputs).max(axis=0))) for d in finite)
        extra = 4 * (dim + 2) * UNIT_ROUNDOFF * largest if dim > 1 else 0.0
        differ = np.repeat(np.tile(~tables.equal, tables.n_slices), np.diff(tables.starts))
        raised = np.where(differ, np.nextafter(tables.gaps + extra, np.inf), tables.gaps)
        tables = attrs.evolve(tables, gaps=raised)
    return Full(dim=dim, differences=tables, shape=shape, recipe=recipe)


def whitened(
    distributions: Sequence[FiniteDistribution], shape: Shape | None, center: Floats
) -> Sequence[FiniteDistribution]:
    """Whiten finite distributions by a shape."""
    if shape is None:
        return distributions
    return [
        FiniteDistribution(
            outputs=shape.whitened(distribution.outputs, center), counts=distribution.counts
        )
        for distribution in distributions
    ]


_SLICES: Final[
    Mapping[type[Distribution], Callable[..., GapTables | GaussianPairs | BandTables]]
] = {
    FiniteDistribution: _finite_slices,
    SampledDistribution: _sampled_slices,
    GaussianDistribution: lambda compared, *_: compared.gaussian_pairs(None),
    GaussianMixture: lambda compared, *_: compared.gaussian_pairs(None),
}
"""Functions that compute differences along slices, by type of distribution."""

_FULL: Final[Mapping[type[Distribution], Callable[..., Full]]] = {
    FiniteDistribution: _finite_full,
    SampledDistribution: _sampled_full,
    GaussianDistribution: _gaussian_full,
    GaussianMixture: _gaussian_full,
    RowDistribution: _row_full,
    SlotDistribution: _row_full,
}
"""Functions that compute differences of the whole output, by type of distribution."""


def ranked_distributions(
    scenario: Scenario, distributions: Sequence[Distribution], profile: Profile
) -> tuple[list[SortedSample], Floats | None]:
    """Rank the samples, and return the public range along each direction if there is one."""
    query = scenario.query
    samples = [
        SortedSample.of(distribution, profile.directions)
        for distribution in _all(distributions, SampledDistribution)
    ]
    ends = None if query.range is None else query.range.support(profile.directions, query.scales)
    return samples, ends


def _all(distributions: Sequence[Distribution], kind: type[Kind]) -> list[Kind]:
    """Check that all distributions are of this kind, as priors and scenarios ensure."""
    matching: list[Kind] = [
        distribution for distribution in distributions if isinstance(distribution, kind)
    ]
    if len(matching) != len(distributions):
        raise ScenarioError(
            "the distributions of a scenario must be of one kind, all finite or all drawn"
        )
    return matching
