# SPDX-License-Identifier: Apache-2.0
"""A claim along the slices of a profile: the paper's average and joint notions."""

from typing import Any, ClassVar, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_one_of
from pufferslice._core.numbers import at_most, in_full
from pufferslice._core.search import SAFETY, raise_until, smallest_safe
from pufferslice.claims.claim import (
    Compared,
    WholeClaim,
    bounds_around,
    ladder,
    renyi_recipe,
)
from pufferslice.claims.slices import LEAST_NOISE, Method
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.profiles import AnyProfile
from pufferslice.sensitivity.renyi import SLICED_NOTIONS, aggregate
from pufferslice.sensitivity.sensitivity import Full

SlicedNotion = Literal["average", "joint"]


@final
@attrs.frozen(kw_only=True)
class Sliced:
    """A claim about one-dimensional projections of the ideal output, aggregated over slices.

    `average`: the mean over the slices. `joint`: the log-moment over the slices; of (epsilon,
    delta), the mean of their deltas. Neither speaks of the whole output.
    Source: def:ave_srpp, def:joint_srpp, def:ave_spp, def:joint_spp.
    """

    kind: ClassVar[str] = "sliced"
    free: ClassVar[float] = 0.0
    by_mean_square: ClassVar[bool] = False
    has_gap: ClassVar[bool] = False
    unit: ClassVar[float] = 1.0
    is_sliced: ClassVar[bool] = True

    claim: WholeClaim
    """Claim about each slice."""
    notion: SlicedNotion
    profile: AnyProfile | None = attrs.field(default=None, eq=False, repr=False)
    """Profile of the slices; None where it is described elsewhere."""
    method: Method | None = attrs.field(default=None, eq=False, repr=False)
    """Method by which noise determines cost along slices; None along the whole sphere."""

    def __attrs_post_init__(self) -> None:
        check_one_of(SLICED_NOTIONS, notion=self.notion)
        self.claim.sliced_words(self.notion)  # refuses claims that have no slices

    @property
    def order(self) -> float:
        """Rényi order of the claim; None if it has none."""
        return float(self.claim.order)  # type: ignore[attr-defined]

    @property
    def epsilon(self) -> float:
        """Bound on what is aggregated."""
        return self.claim.bound

    @property
    def delta(self) -> float:
        """Delta of the claim; None if it has none."""
        return float(self.claim.delta)  # type: ignore[attr-defined]

    @property
    def bound(self) -> float:
        """Limit on the cost of the noise."""
        return self.claim.bound

    @property
    def hockey_stick(self) -> tuple[float, float] | None:
        """Epsilon and delta of the claim about one slice; None if it has none."""
        return self.claim.hockey_stick

    @property
    def allows_tails(self) -> bool:
        """Whether a rare output may reveal the secret."""
        return self.claim.allows_tails

    @property
    def reported_order(self) -> float:
        """Order at which the unsliced cost of a release is stated."""
        return self.claim.reported_order

    @property
    def distance_limit(self) -> float:
        """Distance limit of the claim about one slice."""
        return self.claim.distance_limit

    @property
    def has_order(self) -> bool:
        """Whether the claim is about a divergence of an order."""
        return self.claim.has_order

    @property
    def symbol(self) -> str:
        """Symbol of the claim about one slice."""
        return self.claim.symbol

    @property
    def axis(self) -> str:
        """Axis label of the claim about one slice."""
        return self.claim.axis

    @property
    def meaning(self) -> str:
        """Words for the claim after "between the outputs under the two secrets of any pair"."""
        return self.claim.sliced_meaning(self.notion)

    def with_order(self, order: float) -> "Sliced":
        """Return this claim at another order."""
        return attrs.evolve(self, claim=self.claim.with_order(order))

    @property
    def whole(self) -> WholeClaim:
        """Corresponding claim about the whole output."""
        return self.claim

    def with_bound(self, bound: float) -> "Sliced":
        """Return this claim with another bound."""
        return attrs.evolve(self, claim=self.claim.with_bound(bound))

    def along(self, profile: AnyProfile) -> "Sliced":
        """Return this claim along the slices of a profile."""
        return attrs.evolve(self, profile=profile)

    def by(self, method: Method | None) -> "Sliced":
        """Return this claim with another method."""
        return attrs.evolve(self, method=method)

    def spent(self, compared: Compared, noise_std: float) -> float:
        """Compute what the noise costs along the slices, or the whole sphere if there are none."""
        if compared.slices is None:
            if compared.full.are_equal:
                return self.free
            return float(self.sphere_costs(compared, noise_std).max())
        if compared.slices.are_equal:
            return self.free
        check_above(0, noise_std=noise_std)
        return self.claim.slice_cost(compared.slices, self.notion, noise_std, self._method())

    def instance_costs(self, compared: Compared, noise_std: float) -> Floats | None:
        """Compute costs of instances, without the term for drawn directions; None without order."""
        if not self.has_order:
            return None
        if compared.slices is None:
            return self.sphere_costs(compared, noise_std)
        costs = compared.slices.costs(self.order, noise_std, self._method().envelope)
        return aggregate(self.notion, self.order, costs, compared.slices.profile.weights)

    def cost(self, full: Full, noise_std: float) -> float:
        """Compute the cost of the corresponding claim about the whole output."""
        return self.claim.cost(full, noise_std)

    def sphere_costs(self, compared: Compared, noise_std: float) -> Floats:
        """Compute the cost of each instance along the whole sphere, in closed form."""
        return self.claim.sphere_costs(compared.full, self.notion, noise_std)

    def least_noise(self, compared: Compared) -> float:
        """Find the smallest noise standard deviation, in scaled coordinates, that meets the claim.

        Guarantee: `spent(result) <= bound` was evaluated and holds; 0 if all distributions are
        equal.
        """
        if compared.slices is not None:
            return self.claim.slice_noise(compared.slices, self.notion, self._method())
        full = compared.full
        if full.differences is None or full.are_equal:
            return float(self.sphere_costs(compared, 1.0).max())  # 0, or refused

        def cost(noise_std: float) -> float:
            return self.spent(compared, noise_std)

        start = full.differences.scale / float(np.sqrt(self.distance_limit))
        if cost(start * LEAST_NOISE) <= self.bound:
            return start * LEAST_NOISE
        noise_std = smallest_safe(cost, self.bound, start=start) * SAFETY
        return raise_until(lambda std: cost(std) <= self.bound, noise_std)

    def _method(self) -> Method:
        """Return the method; a profile with slices needs one, unlike the whole sphere."""
        if self.method is None:
            raise ArgumentError(
                f"{self} needs a method (rule, envelope) for the slices of a profile"
            )
        return self.method

    def recipe(self, noise_std: float, effort: Effort) -> Recipe:
        """Return how to look for couplings of the whole output: for its Rényi cost."""
        return renyi_recipe(self.reported_order, noise_std, effort)

    def cost_words(self, spent: float, rule: str) -> str:
        """Say what the noise costs, in a sentence."""
        return f"The noise costs {at_most(spent)} of {in_full(self.bound)}{rule}."

    def bounds_around(self, n_bounds: int) -> tuple[float, ...]:
        """Return other bounds, with the claim's own in the middle."""
        return bounds_around(self.bound, n_bounds)

    def ladder(self) -> tuple[float, ...]:
        """Return seven bounds to try."""
        return ladder(self.bound)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that `claim_of` reads; profile and method are described elsewhere."""
        return self.claim.to_json() | {"notion": self.notion}

    def __str__(self) -> str:
        return self.claim.sliced_words(self.notion)
