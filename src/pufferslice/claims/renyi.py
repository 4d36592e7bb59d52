# SPDX-License-Identifier: Apache-2.0
"""The claim about a Rényi divergence of the whole output."""

import math
from typing import ClassVar, final

import attrs

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, plain_float
from pufferslice._core.numbers import at_most, in_full
from pufferslice.claims.claim import Outputs, Search, WholeClaim
from pufferslice.claims.slices import Method, least_slice_noise, slice_divergence
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.sensitivity import Full, Slices

_OVER_BATCHES = "sa-SRPP (on average over batch draws)"


@final
@attrs.frozen(kw_only=True)
class Renyi(WholeClaim):
    """A limit on the Rényi divergence of order `order` of the whole output.

    >>> print(Renyi(order=4, epsilon=1.0))
    (4, 1)-RPP
    """

    has_slices: ClassVar[bool] = True
    kind: ClassVar[str] = "renyi"
    has_gap: ClassVar[bool] = True
    has_order: ClassVar[bool] = True

    order: float = attrs.field(converter=plain_float)
    """Rényi order, greater than 1."""
    epsilon: float = attrs.field(converter=plain_float)
    """Bound on the divergence, greater than 0."""

    def __attrs_post_init__(self) -> None:
        check_above(1, order=self.order)
        check_above(0, epsilon=self.epsilon)

    @property
    def reported_order(self) -> float:
        """Order of the claim itself."""
        return self.order

    @property
    def distance_limit(self) -> float:
        """Squared distance of two points at which the divergence is epsilon."""
        return 2 * self.epsilon / self.order

    def cost(self, full: Outputs, noise_std: float) -> float:
        """Bound the divergence of the release."""
        return full.divergence(self.order, noise_std)

    def search(self, full: Full) -> Search:
        """Search by the divergence itself."""
        return Search(
            cost=lambda std: full.divergence(self.order, std),
            limit=self.epsilon,
            start=math.sqrt(self.order / (2 * self.epsilon)),
        )

    def slice_cost(self, slices: Slices, notion: str, noise_std: float, method: Method) -> float:
        """Compute the divergence along slices, aggregated."""
        return slice_divergence(slices, notion, self.order, noise_std, method)

    def slice_noise(self, slices: Slices, notion: str, method: Method) -> float:
        """Find the smallest noise for the claim along slices."""
        return least_slice_noise(
            slices,
            lambda part, std: self.slice_cost(part, notion, std, method),
            self.epsilon,
            start=math.sqrt(self.order / (2 * self.epsilon)),
        )

    def sphere_costs(self, full: Full, notion: str, noise_std: float) -> Floats:
        """Compute the divergence of each instance along the whole sphere."""
        return full.sphere_divergences(notion, self.order, noise_std)

    def sliced_words(self, notion: str) -> str:
        """Put the claim along slices into words."""
        return f"({in_full(self.order)}, {at_most(self.epsilon)})-{notion.capitalize()}-SRPP"

    @property
    def meaning(self) -> str:
        """Words for the divergence that is bounded."""
        return f"the Rényi divergence of the whole output {self._limit}"

    def sliced_meaning(self, notion: str) -> str:
        """Describe the aggregate of divergences that is bounded."""
        aggregate = "mean" if notion == "average" else "log-moment"
        return f"the {aggregate} over the slices of the Rényi divergence {self._limit}"

    @property
    def _limit(self) -> str:
        return f"of order {in_full(self.order)} is at most ε = {in_full(self.epsilon)}"

    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Say the epsilon of two points that are farther apart than declared."""
        del implementation_delta
        return f"epsilon {at_most(self.epsilon * (1 + 2 * share) ** 2)}"

    def __str__(self) -> str:
        return f"({in_full(self.order)}, {at_most(self.epsilon)})-RPP"


@final
@attrs.frozen(kw_only=True)
class OverBatches(WholeClaim):
    """A limit on a mean over batch draws only: the paper's subsampling-aware claim for learning.

    It does not imply any of the other claims.
    Source: def:ms_Ave_SRPP, def:ms_Joint_SRPP.

    >>> print(OverBatches(order=4, epsilon=1.0))
    (4, 1)-sa-SRPP (on average over batch draws)
    """

    kind: ClassVar[str] = "over_batches"
    notion: ClassVar[str] = "average_over_batches"
    has_order: ClassVar[bool] = True

    order: float = attrs.field(converter=plain_float)
    """Rényi order, greater than 1."""
    epsilon: float = attrs.field(converter=plain_float)
    """Bound on the mean of divergences, greater than 0."""

    def __attrs_post_init__(self) -> None:
        check_above(1, order=self.order)
        check_above(0, epsilon=self.epsilon)

    @property
    def meaning(self) -> str:
        """Words for the mean of divergences that is bounded."""
        return (
            "the mean over batch draws of the Rényi divergence of order "
            f"{in_full(self.order)} is at most ε = {in_full(self.epsilon)}"
        )

    @property
    def reported_order(self) -> float:
        """Order of the claim itself."""
        return self.order

    @property
    def distance_limit(self) -> float:
        """Squared distance of two points at which the Rényi divergence is epsilon."""
        return 2 * self.epsilon / self.order

    def cost(self, full: Outputs, noise_std: float) -> float:
        """Refuse: a release draws no batches."""
        del full, noise_std
        raise _only_for_learning()

    def search(self, full: Full) -> Search:
        """Refuse: a release draws no batches."""
        del full
        raise _only_for_learning()

    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Refuse: a release draws no batches."""
        del share, implementation_delta
        raise _only_for_learning()

    def __str__(self) -> str:
        return f"({in_full(self.order)}, {at_most(self.epsilon)})-{_OVER_BATCHES}"


def _only_for_learning() -> ArgumentError:
    return ArgumentError(
        "a claim on average over batches is about training; claim the whole output of a release "
        "with Guarantee.guess(at_most=...) or Guarantee.unsliced(...)"
    )
