# SPDX-License-Identifier: Apache-2.0
"""What the slices and the whole output can show of a scenario, by the kind of its laws."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.calibration import Full, Slices, SphereTerm
from pufferslice.certificate.doubt import Doubt
from pufferslice.concentration import samples_for_tail
from pufferslice.errors import CalibrationError, ScenarioError
from pufferslice.gaps import GapTables, GaussianPairs, LawPair, gap_tables
from pufferslice.gaps.binned import binned_tables
from pufferslice.gaps.sampled import (
    BandTables,
    RankedLaw,
    SortedSample,
    band_tables,
    common_bands,
)
from pufferslice.histograms import BinnedLaw
from pufferslice.laws import EmpiricalLaw, GaussianLaw, Law, SampledBinnedLaw, SampledLaw
from pufferslice.parallel import Progress
from pufferslice.queries.ranges import Ball, Box
from pufferslice.scenario import Scenario
from pufferslice.slicing import Profile
from pufferslice.unsliced import full_tables, range_tables

Kind = TypeVar("Kind", bound=Law)


class Seen(NamedTuple):
    """Along the slices, in full, and for sampled laws what the samples alone would show."""

    slices: Slices
    full: Full
    plain: GapTables | None
    beyond: GapTables | None = None
    """Of sampled laws in a range, the levels that no band covers."""


def seen_of(scenario: Scenario, profile: Profile, doubt: Doubt | None, progress: Progress) -> Seen:
    """Gap tables or Gaussian pairs of every instance of a scenario."""
    laws, pairs = law_pairs(scenario)
    query = scenario.query
    sphere = sphere_term(doubt, profile, query.range, query.scales)
    doubtful = 0.0 if doubt is None else doubt.failure_probability
    if isinstance(laws[0], GaussianLaw):
        gaussian = GaussianPairs.of(
            [
                (prior.declared[pair.first], prior.declared[pair.second])
                for prior, pair in scenario.instances
            ],
            query.scales,
        )
        slices = Slices(profile=profile, seen=gaussian, sphere=sphere)
        return Seen(slices, Full(dim=profile.dim, seen=gaussian), None)
    if isinstance(laws[0], SampledLaw | SampledBinnedLaw):
        if doubt is None:
            msg = "sampled laws need a failure probability; say it with failure_probability"
            raise ScenarioError(msg)
        bands = _bands_seen(scenario, laws, pairs, (profile, doubt, progress))
        slices = Slices(
            profile=profile,
            seen=bands.bound,
            missing=bands.missing,
            sphere=sphere,
            failure_probability=doubtful,
        )
        diameter = None if query.range is None else query.range.diameter(query.scales)
        return Seen(slices, _within(diameter, profile, pairs), bands.plain, bands.beyond)
    tables, full = _exact_seen(laws, pairs, profile, progress)
    slices = Slices(profile=profile, seen=tables, sphere=sphere, failure_probability=doubtful)
    return Seen(slices, full, None)


def law_pairs(scenario: Scenario) -> tuple[list[Law], list[LawPair]]:
    """Every law once, and the positions of the two laws of every instance."""
    where: dict[tuple[str, str], int] = {}
    laws: list[Law] = []
    pairs = []
    for prior, pair in scenario.instances:
        for secret in pair:
            if (prior.name, secret) not in where:
                where[prior.name, secret] = len(laws)
                laws.append(prior.laws[secret])
        pairs.append(LawPair(where[prior.name, pair.first], where[prior.name, pair.second]))
    return laws, pairs


def sphere_term(
    doubt: Doubt | None, profile: Profile, range_: Box | Ball | None, scales: Floats
) -> SphereTerm | None:
    """The Hoeffding term of drawn directions, if the profile is the sphere."""
    if doubt is None or not doubt.on_sphere:
        return None
    if range_ is None:
        msg = (
            "the sphere as profile needs a query with a public range: only a range bounds what "
            "directions that were not drawn can show. Use query.with_range(...), or FiniteProfile"
        )
        raise ScenarioError(msg)
    halfwidth = doubt.sphere_halfwidth(profile.n_directions)
    return SphereTerm(halfwidth=halfwidth, diameter=range_.diameter(scales))


def covered_totals(
    n_samples: Sequence[tuple[int, int]], doubt: Doubt, n_directions: int
) -> list[int]:
    """Mass of the levels that the bands of both laws of each instance cover, in level quanta."""
    sizes = sorted({n for pair in n_samples for n in pair})
    kind = doubt.band or "order_statistics"
    ranks = common_bands(sizes, doubt.band_probability(n_directions), kind)
    bands = dict(zip(sizes, ranks, strict=True))
    return [int(bands[a].masses[bands[a].covered & bands[b].covered].sum()) for a, b in n_samples]


def _exact_seen(
    laws: Sequence[Law], pairs: Sequence[LawPair], profile: Profile, progress: Progress
) -> tuple[GapTables, Full]:
    if isinstance(laws[0], BinnedLaw):
        binned = _all(laws, BinnedLaw)
        tables = binned_tables(binned, pairs, profile.directions, progress, weights=profile.weights)
        return tables, _within(binned[0].grid.diameter, profile, pairs)
    empirical = _all(laws, EmpiricalLaw)
    tables = gap_tables(empirical, pairs, profile.directions, progress, weights=profile.weights)
    full = full_tables(empirical, pairs, profile, tables)
    return tables, Full(dim=profile.dim, seen=full)


def _within(diameter: float | None, profile: Profile, pairs: Sequence[LawPair]) -> Full:
    """The whole output of laws inside a range; nothing is known of laws without one."""
    tables = None if diameter is None else range_tables(diameter, len(pairs))
    return Full(dim=profile.dim, seen=tables, from_range=tables is not None)


def _bands_seen(
    scenario: Scenario,
    laws: Sequence[Law],
    pairs: Sequence[LawPair],
    said: tuple[Profile, Doubt, Progress],
) -> BandTables:
    profile, doubt, progress = said
    ranked, range_ends = ranked_laws(scenario, laws, profile)
    kind = doubt.band or "order_statistics"
    share = doubt.band_probability(profile.n_directions)
    sizes = [law.n_samples for law in ranked]
    bands = common_bands(sizes, share, kind)
    for a, b in pairs:
        if not (bands[a].covered & bands[b].covered).any():
            needed = samples_for_tail(0.5, share, kind)
            msg = (
                f"too few samples: {min(sizes[a], sizes[b])} of a law cover no level at failure "
                f"probability {doubt.failure_probability:g} over {profile.n_directions} "
                f"directions; at least {needed} cover half of them. Take more samples, fewer "
                "directions or a larger failure probability"
            )
            raise CalibrationError(msg)
    ends = profile.n_directions if doubt.tails == "in_delta" or range_ends is None else range_ends
    return band_tables(ranked, pairs, bands, ends, progress, weights=profile.weights)


def ranked_laws(
    scenario: Scenario, laws: Sequence[Law], profile: Profile
) -> tuple[list[RankedLaw], Floats | None]:
    """The laws as samples by rank, and the public range along each direction if there is one."""
    query = scenario.query
    if isinstance(laws[0], SampledBinnedLaw):
        counted = [law.draws for law in _all(laws, SampledBinnedLaw)]
        grid = counted[0].grid
        if any(law.grid != grid for law in counted) or not np.array_equal(
            grid.directions, profile.directions
        ):
            msg = "the draws were counted along other directions; scan them with this profile"
            raise ScenarioError(msg)
        return list(counted), None if query.range is None else grid.ends
    samples = [SortedSample.of(law, profile.directions) for law in _all(laws, SampledLaw)]
    ends = None if query.range is None else query.range.support(profile.directions, query.scales)
    return list(samples), ends


def _all(laws: Sequence[Law], kind: type[Kind]) -> list[Kind]:
    """The laws, which are all of this kind: priors and scenarios see to that."""
    kept: list[Kind] = [law for law in laws if isinstance(law, kind)]
    if len(kept) != len(laws):
        msg = "the laws of a scenario must be of one kind, all kept or all counted in bins"
        raise ScenarioError(msg)
    return kept
