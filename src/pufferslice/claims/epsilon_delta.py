# SPDX-License-Identifier: Apache-2.0
"""The (epsilon, delta) claim about the whole output."""

import math
from collections.abc import Callable
from typing import ClassVar, Final, final

import attrs
import numpy as np
from scipy.special import log_ndtr

from pufferslice._core.checks import check_at_least, check_between, plain_float
from pufferslice._core.numbers import at_most, in_full
from pufferslice._core.search import smallest_epsilon
from pufferslice.claims.claim import Outputs, Search, WholeClaim
from pufferslice.claims.slices import (
    SMALLEST_DIRECT_DELTA,
    Method,
    least_slice_noise,
    slice_epsilon,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.renyi import gaussian_delta, released_delta
from pufferslice.sensitivity.sensitivity import Full, Slices

_LEAST_DELTA: Final = 1e-140
_UP: Final = 1 + 2.0**-50


@final
@attrs.frozen(kw_only=True)
class EpsilonDelta(WholeClaim):
    """(epsilon, delta)-Pufferfish privacy of the whole output.

    >>> print(EpsilonDelta(epsilon=1.0, delta=1e-5))
    (1, 1e-05)-PP
    """

    has_slices: ClassVar[bool] = True
    kind: ClassVar[str] = "epsilon_delta"
    allows_tails: ClassVar[bool] = True

    epsilon: float = attrs.field(converter=plain_float)
    """Epsilon, greater than 0; noise may cost 0, where `delta` bounds the total variation."""
    delta: float = attrs.field(converter=plain_float)
    """Delta between 0 and 1; it excludes the failure probability of a sampled prior."""

    def __attrs_post_init__(self) -> None:
        check_at_least(0, epsilon=self.epsilon)
        check_between(0, 1, delta=self.delta)

    @property
    def meaning(self) -> str:
        """Epsilon and delta, in words."""
        return f"(ε, δ) with ε = {in_full(self.epsilon)} and δ = {in_full(self.delta)} holds"

    def sliced_meaning(self, notion: str) -> str:
        """Describe epsilon and delta, and how they are aggregated."""
        numbers = f"ε = {in_full(self.epsilon)} and δ = {in_full(self.delta)}"
        return f"sliced (ε, δ) with {numbers}, {notion} over the slices, holds"

    @property
    def distance_limit(self) -> float:
        r"""Square of the distance r with $h_\epsilon(r) = \delta$.

        >>> round(EpsilonDelta(epsilon=1.0, delta=1e-5).distance_limit, 8)
        0.0718514
        """
        check_between(_LEAST_DELTA, 1, delta=self.delta)
        low, high = _LEAST_DELTA, 1.0
        while _log_gaussian_delta(high, self.epsilon) <= math.log(self.delta):
            low, high = high, 2 * high
        while low < (middle := math.sqrt(low * high)) < high:
            within = _log_gaussian_delta(middle, self.epsilon) <= math.log(self.delta)
            low, high = (middle, high) if within else (low, middle)
        return low * low

    @property
    def hockey_stick(self) -> tuple[float, float]:
        """Epsilon and delta of the claim itself."""
        return self.epsilon, self.delta

    def cost(self, full: Outputs, noise_std: float) -> float:
        """Find the smallest epsilon at the claim's delta."""
        return smallest_epsilon(delta_curve(full, noise_std), self.delta, first=self.epsilon)

    def search(self, full: Full) -> Search:
        """Search by the delta at the claim's epsilon."""
        if self.delta < SMALLEST_DIRECT_DELTA:
            raise ArgumentError(
                f"delta must be at least {SMALLEST_DIRECT_DELTA:g} for a claim about the whole "
                f"output, got {self.delta!r}"
            )
        return Search(
            cost=lambda std: delta_curve(full, std)(self.epsilon),
            limit=self.delta,
            floor=released_delta(0.0, self.epsilon, full.implementation_delta),
        )

    def recipe(self, noise_std: float, effort: Effort) -> Recipe:
        """Return how to look for the couplings that are best for the delta at this epsilon."""
        return Recipe(effort=effort, cost="delta", epsilon=self.epsilon, noise_std=noise_std)

    def slice_cost(self, slices: Slices, notion: str, noise_std: float, method: Method) -> float:
        """Find the smallest epsilon at the claim's delta along slices, aggregated."""
        return slice_epsilon(
            slices, notion, self.delta, noise_std, method.envelope, first=self.epsilon
        )

    def slice_noise(self, slices: Slices, notion: str, method: Method) -> float:
        """Find the smallest noise for the claim along slices."""
        return least_slice_noise(
            slices, lambda part, std: self.slice_cost(part, notion, std, method), self.epsilon
        )

    def sliced_words(self, notion: str) -> str:
        """Put the claim along slices into words."""
        return f"({at_most(self.epsilon)}, {in_full(self.delta)})-{notion.capitalize()}-SPP, sliced"

    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Say the delta of two points that are farther apart than declared."""
        ideal = float(gaussian_delta(np.array(self._ratio(share)), self.epsilon))
        delta = released_delta(ideal, self.epsilon, implementation_delta)
        return f"delta {at_most(delta)}"

    def __str__(self) -> str:
        return f"({at_most(self.epsilon)}, {in_full(self.delta)})-PP"


def delta_curve(full: Outputs, noise_std: float) -> Callable[[float], float]:
    r"""Bound the delta of what is released, as a function of epsilon.

    The distance $\tau$ of the sampled noise from the ideal one adds $(1 + e^\epsilon)\tau$.
    """
    ideal, tau = full.delta_curve(noise_std), full.implementation_delta

    def delta_at(epsilon: float) -> float:
        check_at_least(0, epsilon=epsilon)
        return min(1.0, released_delta(ideal(epsilon), epsilon, tau) * _UP)

    return delta_at


def _log_gaussian_delta(ratio: float, epsilon: float) -> float:
    """Ln of the delta of two Gaussians `ratio` standard deviations apart; precise if it is tiny."""
    first = float(log_ndtr(ratio / 2 - epsilon / ratio))
    second = epsilon + float(log_ndtr(-ratio / 2 - epsilon / ratio))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf
