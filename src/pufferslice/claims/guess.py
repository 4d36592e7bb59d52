# SPDX-License-Identifier: Apache-2.0
"""The claim about right guesses, and how total variation bounds them.

Only unsliced numbers apply: a sliced one does not bound what a reader of the whole release can
guess.
"""

from typing import ClassVar, final

import attrs
import numpy as np
from scipy.special import ndtr, ndtri

from pufferslice._core.checks import check_at_least, check_between, check_count, plain_float
from pufferslice._core.numbers import percent_at_most
from pufferslice.claims.claim import Search, WholeClaim
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.rows import variations_within
from pufferslice.sensitivity.sensitivity import Full


@final
@attrs.frozen(kw_only=True)
class Guess(WholeClaim):
    """A limit on how often someone who knows that the secret is one of a pair guesses right.

    Both values of the pair are equally likely beforehand, and the reader sees only this release. It
    does not bound guesses among more than two values.

    >>> print(Guess(at_most=0.6))
    at most 60 % right guesses between two values
    """

    kind: ClassVar[str] = "guess"
    notion: ClassVar[str] = "guess"
    bound_name: ClassVar[str] = "at_most"
    free: ClassVar[float] = 0.5
    allows_tails: ClassVar[bool] = True
    by_mean_square: ClassVar[bool] = True
    unit: ClassVar[float] = 100.0
    symbol: ClassVar[str] = "right guesses"
    axis: ClassVar[str] = "right guesses that the claim allows (%)"

    at_most: float = attrs.field(converter=plain_float)
    """Largest share of right guesses, above one half and below 1."""

    def __attrs_post_init__(self) -> None:
        check_between(0.5, 1, at_most=self.at_most)

    @property
    def meaning(self) -> str:
        """Words for who guesses right how often."""
        return (
            "both equally likely, someone who sees only this release guesses right at most "
            f"{percent_at_most(self.at_most)} of the time, on average over releases"
        )

    @property
    def hockey_stick(self) -> tuple[float, float]:
        """Total variation as epsilon and delta: the delta at epsilon 0."""
        return 0.0, 2 * self.at_most - 1

    def cost(self, full: Full, noise_std: float) -> float:
        """Bound right guesses between two protected, equally likely secrets; 1 if nothing does."""
        return released_guess(full, noise_std)

    def mean_square_cost(self, mean_square: float, implementation_delta: float) -> float:
        """Bound right guesses by two Gaussians at the root mean squared distance (Jensen)."""
        variation = float(variations_within(np.array(mean_square)))
        return right_guesses(released_variation(variation, implementation_delta))

    def search(self, full: Full) -> Search:
        """Search by twice the advantage over a coin flip."""
        start, factor = self.start(full)
        return Search(
            cost=lambda std: 2 * released_guess(full, std) - 1,
            limit=2 * self.at_most - 1,
            floor=released_variation(0.0, full.implementation_delta),
            start=start,
            factor=factor,
        )

    @property
    def distance_limit(self) -> float:
        """Squared distance of two points that allows this share of right guesses."""
        return float(2 * ndtri(self.at_most)) ** 2

    def recipe(self, noise_std: float, effort: Effort) -> Recipe:
        """Return how to look for the couplings that are best for total variation."""
        return Recipe(effort=effort, cost="guess", noise_std=noise_std)

    def cost_words(self, spent: float, rule: str) -> str:
        """Say what the noise costs, in a sentence."""
        del rule
        return f"With this noise, guesses are right at most {percent_at_most(spent)} of the time."

    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Say what two points cost if a prior is wrong by a share of the guard."""
        guess = float(ndtr(self._ratio(share) / 2)) + implementation_delta
        return f"{percent_at_most(guess)} right guesses"

    def bounds_around(self, n_bounds: int) -> tuple[float, ...]:
        """Return other shares of right guesses, with the claim's own in the middle."""
        check_count(3, n_bounds=n_bounds)
        half = n_bounds // 2
        steps = [i / (half + 1) for i in range(1, half + 1)]
        below = [0.5 + (self.at_most - 0.5) * step for step in steps]
        above = [self.at_most + (1 - self.at_most) * step for step in steps]
        shares = {share for x in (*below, *above) if 0.5 < (share := round(x, 4)) < 1}
        return tuple(sorted({*shares, self.at_most}))

    def ladder(self) -> tuple[float, ...]:
        """Return seven bounds to try."""
        return self.bounds_around(7)

    def __str__(self) -> str:
        share = percent_at_most(self.at_most).replace("\u00a0", " ")
        return f"at most {share} right guesses between two values"


def released_guess(full: Full, noise_std: float) -> float:
    """Bound right guesses between two protected, equally likely secrets; 1 if nothing does."""
    variation = full.variation(noise_std)
    return right_guesses(released_variation(variation, full.implementation_delta))


def released_variation(bound: float, implementation_delta: float) -> float:
    """Bound the total variation of what is released from that of the ideal mechanism.

    Each of the two distributions is at most `implementation_delta` away from its ideal one; the
    triangle inequality adds both.

    >>> released_variation(0.25, 0.125)
    0.5
    """
    check_at_least(0, bound=bound, implementation_delta=implementation_delta)
    total = bound + 2 * implementation_delta
    return min(1.0, total if total == bound else float(np.nextafter(total, np.inf)))


def right_guesses(total_variation: float, *, n_secrets: int = 2) -> float:
    """Bound the share of right guesses among equally likely secrets, all pairs protected.

    >>> right_guesses(0.5)
    0.75
    """
    share = 1 / n_secrets
    return min(1.0, share + guessing_advantage(total_variation, largest_share=share))


def guessing_advantage(total_variation: float, *, largest_share: float) -> float:
    r"""Bound how much seeing the output can raise the chance of guessing the secret.

    $$(1 - \pi_{\max})\, t$$

    Guarantee: whoever believes the secrets have probabilities $\pi$, the largest of them
    `largest_share`, names the right one with probability at most $\pi_{\max}$ plus the result,
    whatever they compute. For two secrets that is at most half the total variation.
    Needs: `total_variation` bounds $TV(P_s, P_{s^*})$ for every secret s and the likeliest s*.

    Proof. A guess is a partition $(A_s)$ of the outputs. Its accuracy is
    $\sum_s \pi_s P_s(A_s) \le \pi_{s^*} P_{s^*}(A_{s^*}) + \sum_{s \ne s^*} \pi_s
    (P_{s^*}(A_s) + t) \le \pi_{\max} + (1 - \pi_{\max})\, t$.

    >>> guessing_advantage(0.5, largest_share=0.5)
    0.25
    """
    check_between(0, 1, largest_share=largest_share)
    check_at_least(0, total_variation=total_variation)
    return (1 - largest_share) * min(1.0, total_variation)
