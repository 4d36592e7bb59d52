# SPDX-License-Identifier: Apache-2.0
"""The claim about information: how many bits the release reveals about a pair of secrets."""

import math
from typing import ClassVar, Final, final

import attrs

from pufferslice._core.checks import check_above, plain_float
from pufferslice._core.numbers import at_most, in_full
from pufferslice.claims.claim import Search, WholeClaim
from pufferslice.sensitivity.sensitivity import Full

_UP: Final = 1 + 2.0**-50


@final
@attrs.frozen(kw_only=True)
class Information(WholeClaim):
    r"""A limit, in bits, on the Kullback-Leibler divergence between two protected values.

    With $\rho$ the mean squared distance of coupled outputs, in noise deviations, the divergence is
    at most $\rho / 2$ nats, in both orders of the pair, by joint convexity.

    >>> print(Information(bits=0.25))
    at most 0.25 bits of information between two values
    """

    kind: ClassVar[str] = "information"
    notion: ClassVar[str] = "information"
    bound_name: ClassVar[str] = "bits"
    by_mean_square: ClassVar[bool] = True
    symbol: ClassVar[str] = "bits"
    axis: ClassVar[str] = "bits that the claim allows"

    bits: float = attrs.field(converter=plain_float)
    """Largest divergence in bits, greater than 0."""

    def __attrs_post_init__(self) -> None:
        check_above(0, bits=self.bits)

    @property
    def meaning(self) -> str:
        """Words for the divergence that is bounded."""
        return f"the Kullback-Leibler divergence is at most {in_full(self.bits)} bits"

    @property
    def distance_limit(self) -> float:
        """Squared distance of two points that reveals so many bits."""
        return 2 * math.log(2) * self.bits

    def cost(self, full: Full, noise_std: float) -> float:
        """Compute half the mean squared distance, in bits."""
        return self.mean_square_cost(full.mean_square(noise_std), 0.0)

    def mean_square_cost(self, mean_square: float, implementation_delta: float) -> float:
        """Compute half the mean squared distance, in bits; it is about the ideal noise."""
        del implementation_delta
        return mean_square / (2 * math.log(2)) * _UP

    def search(self, full: Full) -> Search:
        """Search by the cost itself."""
        start, factor = self.start(full)
        return Search(
            cost=lambda std: self.cost(full, std), limit=self.bits, start=start, factor=factor
        )

    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Say the bits of two points that are farther apart than declared."""
        del implementation_delta
        return f"{at_most(self.bits * (1 + 2 * share) ** 2)} bits"

    def __str__(self) -> str:
        return f"at most {at_most(self.bits)} bits of information between two values"
