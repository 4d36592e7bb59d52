# SPDX-License-Identifier: Apache-2.0
"""Sample sizes: the draws and directions that a sampled claim needs to reach a given noise."""

import math
from collections.abc import Callable
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above
from pufferslice.claims import Claim, Method
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import GapTables
from pufferslice.sensitivity.bands import (
    SortedSample,
    band_tables,
    common_bands,
    missing_mass,
)
from pufferslice.sensitivity.concentration import BandKind
from pufferslice.sensitivity.profiles import FiniteProfile, Profile, SampledSphere, WholeSphere
from pufferslice.sensitivity.sensitivity import (
    Confidence,
    Slices,
    SphereTerm,
    distribution_pairs,
    ranked_distributions,
)

MOST: Final = 2**40
"""Largest number that is accepted."""

_FEWEST: Final = 64
_STEPS: Final = 8
"""Number of steps per doubling in the search for a number."""


@final
@attrs.frozen(kw_only=True)
class SamplePlan:
    """A number of draws, and the noise to expect: an estimate, not a certificate."""

    n_samples: int
    """Number of draws of each distribution."""
    n_directions: int
    """Number of directions of the profile; for the sphere, how many to draw."""
    noise_std: float
    """Expected noise with these numbers, in scaled coordinates."""
    distribution_noise_std: float
    """Noise if the distributions were known exactly: a lower limit for any number of draws."""


def plan_samples(
    scenario: Scenario,
    guarantee: Claim,
    *,
    noise_std: float,
    failure_probability: float,
    band: BandKind = "order_statistics",
    method: Method | None = None,
) -> SamplePlan:
    """Find the fewest draws of each distribution, and sphere directions, that reach `noise_std`.

    The draws of `scenario` are a pilot, treated as the distribution itself. A pilot much smaller
    than the plan has shorter tails than the distribution, and asks for too few draws. The plan
    certifies nothing. Numbers are searched in eighths of a doubling.
    """
    target, profile = guarantee, guarantee.profile
    check_above(0, noise_std=noise_std)
    sampled = scenario.prior_kind == "sampled"
    if profile is None or isinstance(profile, WholeSphere) or not target.is_sliced or not sampled:
        raise ArgumentError(
            "samples are planned for claims along a FiniteProfile or a SampledSphere, from a "
            f"scenario with sampled priors; got {target} and {scenario.prior_kind} priors, along "
            f"{profile}"
        )
    in_delta = target.allows_tails
    if scenario.query.range is None and not in_delta:
        raise ScenarioError(
            "a Rényi claim from samples needs a public range; use query.with_range(...)"
        )
    confidence = Confidence(
        failure_probability=failure_probability,
        band=band,
        tails="in_delta" if in_delta else "at_range",
        on_sphere=isinstance(profile, SampledSphere),
    )
    chosen = method or Method(rule="tight", envelope="transport")
    query = scenario.query
    distributions, pairs = distribution_pairs(scenario)
    pilot, range_ends = ranked_distributions(scenario, distributions, profile)
    ends = profile.n_directions if in_delta or range_ends is None else range_ends
    diameter = None if query.range is None else query.range.diameter(query.scales)
    # The failure probability does not matter: only the gaps of the draws themselves are read.
    bands = common_bands([sample.n_samples for sample in pilot], 0.5, band)
    plain = band_tables(pilot, pairs, bands, profile.n_directions).plain

    def noise_along(tables: GapTables, n_directions: int | None) -> float:
        """Compute the noise of these gaps, on the sphere if a number of directions is given."""
        term = None
        along: Profile = FiniteProfile(directions=profile.directions, weights=profile.weights)
        if n_directions is not None and diameter is not None:
            halfwidth = confidence.sphere_halfwidth(n_directions)
            along, term = profile, SphereTerm(halfwidth=halfwidth, diameter=diameter)
        missing = missing_mass(tables)
        slices = Slices(profile=along, differences=tables, missing=missing, sphere=term)
        return target.whole.slice_noise(slices, target.notion, chosen)

    alone = noise_along(plain, None)
    n_directions = profile.n_directions
    if confidence.on_sphere:
        middle = math.sqrt(alone * max(alone, noise_std))
        n_directions = _fewest(lambda m: noise_along(plain, m), middle, "directions", alone)

    def noise_with(n_samples: int) -> float:
        """Estimate the noise from this many draws of each distribution; infinite if too few."""
        share = confidence.band_probability(n_directions)
        bands = common_bands([n_samples] * len(pilot), share, band)
        if not bands[0].covered.any():
            return math.inf
        stretched = [_Stretched(pilot=sample, n_samples=n_samples) for sample in pilot]
        tables = band_tables(stretched, pairs, bands, ends)
        try:
            on_sphere = n_directions if confidence.on_sphere else None
            return noise_along(tables.bound, on_sphere)
        except ArgumentError:
            # The tails do not fit into delta yet.
            return math.inf

    n_samples = _fewest(noise_with, noise_std, "samples", alone)
    return SamplePlan(
        n_samples=n_samples,
        n_directions=n_directions,
        noise_std=noise_with(n_samples),
        distribution_noise_std=alone,
    )


@final
@attrs.frozen(kw_only=True, eq=False)
class _Stretched:
    """A larger sample that looks like the pilot."""

    pilot: SortedSample
    n_samples: int

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        shares = ranks / self.n_samples
        pilot_ranks = np.ceil(shares * self.pilot.n_samples).astype(np.int64)
        return self.pilot.bounds(rows, np.clip(pilot_ranks, 1, self.pilot.n_samples))


def _fewest(noise_at: Callable[[int], float], target: float, what: str, alone: float) -> int:
    """Find the smallest number, in eighths of a doubling, at which the noise meets the target."""

    def number(step: int) -> int:
        return math.ceil(_FEWEST * 2 ** (step / _STEPS))

    low, high = -1, 0
    while noise_at(number(high)) > target:
        low, high = high, high + _STEPS
        if number(high) > MOST:
            raise CalibrationError(
                f"even 2^40 {what} would need noise {noise_at(MOST):.6g}, more than the target "
                f"{target:.6g}; the distribution alone needs {alone:.6g}. Ask for more noise, or "
                "a narrower range"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if noise_at(number(middle)) <= target else (middle, high)
    return number(high)
