# SPDX-License-Identifier: Apache-2.0
"""How many draws, and how many directions, bring the noise of a sampled claim to a target."""

import math
from collections.abc import Callable
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above
from pufferslice.calibration.calibrate import Method
from pufferslice.calibration.epsilon_delta import sliced_noise
from pufferslice.calibration.guarantee import ApproximateGuarantee, Claim
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import DistributionPair, GapTables
from pufferslice.sensitivity.bands import RankedDistribution, band_tables, common_bands
from pufferslice.sensitivity.concentration import BandKind
from pufferslice.sensitivity.profiles import FiniteProfile, Profile, SampledSphere
from pufferslice.sensitivity.sensitivity import (
    Confidence,
    Slices,
    SphereTerm,
    Tails,
    distribution_pairs,
    ranked_distributions,
)

MOST: Final = 2**40
"""Larger numbers are not planned for."""

_FEWEST: Final = 64
_STEPS: Final = 8
"""Numbers are planned in eighths of a doubling."""


@final
@attrs.frozen(kw_only=True)
class SamplePlan:
    """What to draw, and what noise to expect; an estimate, certified only by certifying."""

    n_samples: int
    """Draws of each distribution."""
    n_directions: int
    """Directions of the profile; of the sphere, how many to draw."""
    noise_std: float
    """The noise to expect with these numbers, in scaled coordinates."""
    distribution_noise_std: float
    """The noise that the distribution alone would need: no number of draws goes below it."""


def plan_samples(
    scenario: Scenario,
    guarantee: Claim,
    *,
    noise_std: float,
    failure_probability: float,
    band: BandKind = "order_statistics",
    method: Method | None = None,
) -> SamplePlan:
    """The fewest draws of each distribution, and directions of the sphere, that reach `noise_std`.

    The draws of `scenario` are taken for the distribution itself: a pilot. One that is much smaller
    than the plan has shorter tails than the distribution, and asks for too few draws. Nothing is
    certified by it. Numbers are searched in eighths of a doubling.
    """
    target, profile = guarantee, guarantee.profile
    check_above(0, noise_std=noise_std)
    if profile is None or not target.is_sliced or scenario.prior_kind != "sampled":
        msg = (
            "samples are planned for claims along slices, from a scenario with sampled priors; "
            f"got {target} and {scenario.prior_kind} priors"
        )
        raise ArgumentError(msg)
    in_delta = isinstance(target, ApproximateGuarantee)
    if scenario.query.range is None and not in_delta:
        msg = "a Rényi claim from samples needs a public range; use query.with_range(...)"
        raise ScenarioError(msg)
    confidence = Confidence(
        failure_probability=failure_probability,
        band=band,
        tails="in_delta" if in_delta else "at_range",
        on_sphere=isinstance(profile, SampledSphere),
    )
    chosen = method or Method(rule="tight", envelope="transport")
    pilot = _Pilot.of(scenario, profile, confidence)

    def noise(slices: Slices) -> float:
        return sliced_noise(slices, target, chosen)

    alone = noise(pilot.slices(pilot.plain, None))
    n_directions = profile.n_directions
    if confidence.on_sphere:
        middle = math.sqrt(alone * max(alone, noise_std))
        n_directions = _fewest(
            lambda m: noise(pilot.slices(pilot.plain, m)), middle, "directions", alone
        )
    m = n_directions if confidence.on_sphere else None
    n_samples = _fewest(
        lambda n: pilot.noise_with(n, n_directions, m, noise), noise_std, "samples", alone
    )
    return SamplePlan(
        n_samples=n_samples,
        n_directions=n_directions,
        noise_std=pilot.noise_with(n_samples, n_directions, m, noise),
        distribution_noise_std=alone,
    )


@final
@attrs.frozen(kw_only=True, eq=False)
class _Pilot:
    """Draws that stand for the distribution: asked for the order statistics of larger samples."""

    distributions: list[RankedDistribution]
    pairs: list[DistributionPair]
    ends: Floats | int
    profile: Profile
    confidence: Confidence
    diameter: float | None
    plain: GapTables

    @classmethod
    def of(cls, scenario: Scenario, profile: Profile, confidence: Confidence) -> "_Pilot":
        distributions, pairs = distribution_pairs(scenario)
        ranked, range_ends = ranked_distributions(scenario, distributions, profile)
        query, tails = scenario.query, confidence.tails
        ends = _ends(range_ends, tails, profile)
        diameter = None if query.range is None else query.range.diameter(query.scales)
        kind = confidence.band or "order_statistics"
        sizes = [distribution.n_samples for distribution in ranked]
        # The band does not matter: only the gaps of the draws themselves are read.
        bands = common_bands(sizes, 0.5, kind)
        plain = band_tables(ranked, pairs, bands, profile.n_directions).plain
        return cls(
            distributions=ranked,
            pairs=pairs,
            ends=ends,
            profile=profile,
            confidence=confidence,
            diameter=diameter,
            plain=plain,
        )

    def slices(self, tables: GapTables, n_directions: int | None) -> Slices:
        """The tables, on the sphere with so many directions, or along the directions alone."""
        if n_directions is None or self.diameter is None:
            profile = self.profile
            finite = FiniteProfile(directions=profile.directions, weights=profile.weights)
            return Slices(profile=finite, seen=tables)
        halfwidth = self.confidence.sphere_halfwidth(n_directions)
        term = SphereTerm(halfwidth=halfwidth, diameter=self.diameter)
        return Slices(profile=self.profile, seen=tables, sphere=term)

    def noise_with(
        self,
        n_samples: int,
        n_directions: int,
        on_sphere: int | None,
        noise: Callable[[Slices], float],
    ) -> float:
        """Noise to expect from so many draws of each distribution; infinite if they are too few."""
        share = self.confidence.band_probability(n_directions)
        kind = self.confidence.band or "order_statistics"
        bands = common_bands([n_samples] * len(self.distributions), share, kind)
        if not bands[0].covered.any():
            return math.inf
        stretched = [
            _Stretched(pilot=distribution, n_samples=n_samples)
            for distribution in self.distributions
        ]
        tables = band_tables(stretched, self.pairs, bands, self.ends)
        slices = self.slices(tables.bound, on_sphere)
        try:
            return noise(attrs.evolve(slices, missing=tables.missing))
        except ArgumentError:
            # The tails do not fit into delta yet.
            return math.inf


@final
@attrs.frozen(kw_only=True, eq=False)
class _Stretched:
    """A larger sample that looks like the pilot."""

    pilot: RankedDistribution
    n_samples: int

    def bounds(self, rows: slice, ranks: Integers) -> tuple[Floats, Floats]:
        shares = ranks / self.n_samples
        mine = np.ceil(shares * self.pilot.n_samples).astype(np.int64)
        return self.pilot.bounds(rows, np.clip(mine, 1, self.pilot.n_samples))


def _ends(range_ends: Floats | None, tails: Tails | None, profile: Profile) -> Floats | int:
    return profile.n_directions if tails == "in_delta" or range_ends is None else range_ends


def _fewest(noise_at: Callable[[int], float], target: float, what: str, alone: float) -> int:
    """Smallest number, in eighths of a doubling, at which the noise is at most the target."""

    def number(step: int) -> int:
        return math.ceil(_FEWEST * 2 ** (step / _STEPS))

    low, high = -1, 0
    while noise_at(number(high)) > target:
        low, high = high, high + _STEPS
        if number(high) > MOST:
            found = noise_at(MOST)
            msg = (
                f"even 2^40 {what} would need noise {found:.6g}, more than the target "
                f"{target:.6g}; the distribution alone needs {alone:.6g}. Ask for more noise, or "
                "a narrower range"
            )
            raise CalibrationError(msg)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if noise_at(number(middle)) <= target else (middle, high)
    return number(high)
