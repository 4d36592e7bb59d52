# SPDX-License-Identifier: Apache-2.0
"""The abstract claim; a new claim is a class like those beside this file, and one line.

A claim owns its cost: nobody else asks what kind of claim it is.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self

import attrs

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.numbers import at_most, in_full
from pufferslice._core.search import SAFETY, raise_until, smallest_safe
from pufferslice.claims.slices import LEAST_NOISE, Method
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.sensitivity.couplings import Effort, Recipe
from pufferslice.sensitivity.profiles import AnyProfile
from pufferslice.sensitivity.sensitivity import Full, Slices

REPORTED_ORDER: Final = 2.0
"""Order at which claims without an order report the unsliced cost."""

_REACH: Final = 1.5
"""Powers of ten that bounds reach on both sides of the claimed epsilon."""
_LADDER: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Epsilons to try, as shares of the claimed epsilon."""


class Outputs(Protocol):
    """The difference between what two worlds release, under noise of a standard deviation.

    A release has `Full`, training runs have `RunDifference`. Every answer is an upper bound.
    """

    @property
    def implementation_delta(self) -> float:
        """Total variation between what is released and what the bounds are about."""

    def variation(self, noise_std: float) -> float:
        """Bound the total variation."""

    def delta_curve(self, noise_std: float) -> Callable[[float], float]:
        """Bound delta as a function of epsilon."""

    def divergence(self, order: float, noise_std: float) -> float:
        """Bound the Rényi divergence of an order."""

    def mean_square(self, noise_std: float) -> float:
        """Bound twice the Kullback-Leibler divergence, by the mean squared distance or less."""


class Compared(Protocol):
    """The evidence for a claim: the whole output, and its slices if there are any."""

    @property
    def full(self) -> Full:
        """Differences of the whole output."""

    @property
    def slices(self) -> Slices | None:
        """Differences along slices."""


class Search(NamedTuple):
    """A cost that falls with the noise, and the limit that it must meet."""

    cost: Callable[[float], float]
    limit: float
    floor: float = 0.0
    """Cost of infinite noise: what the sampler's own error adds."""
    start: float = 1.0
    """Noise at which the search starts, as a multiple of the size of the differences."""
    factor: float = 2.0
    """Factor by which the start may be off, roughly."""


@attrs.frozen(kw_only=True)
class WholeClaim:
    """An abstract claim about the whole output."""

    kind: ClassVar[str]
    """Name of the claim in tables of claims."""
    notion: ClassVar[str] = "unsliced"
    """Name of the bounded quantity in a file."""
    bound_name: ClassVar[str] = "epsilon"
    """Name of the field that holds the bound."""
    free: ClassVar[float] = 0.0
    """Cost of two equal distributions."""
    allows_tails: ClassVar[bool] = False
    """Whether a rare output may reveal the secret."""
    by_mean_square: ClassVar[bool] = False
    """Whether a mean squared distance of coupled outputs bounds the cost."""
    has_gap: ClassVar[bool] = False
    """Whether the least noise is a convex problem, so that a gap to it is known."""
    has_slices: ClassVar[bool] = False
    """Whether the claim can also be made along slices."""
    has_order: ClassVar[bool] = False
    """Whether the claim is about a divergence of an order."""
    unit: ClassVar[float] = 1.0
    """Factor of the bound on an axis."""
    symbol: ClassVar[str] = "ε"
    """Name of the bound on a page."""
    axis: ClassVar[str] = "ε of the claim (nats)"
    """Label of an axis of bounds."""
    profile: ClassVar[AnyProfile | None] = None
    method: ClassVar[None] = None
    is_sliced: ClassVar[bool] = False

    @property
    @abstractmethod
    def meaning(self) -> str:
        """Words for the claim after "between the outputs under the two secrets of any pair"."""

    @abstractmethod
    def cost(self, full: Outputs, noise_std: float) -> float:
        """Compute the cost of the noise, which must be at most the bound of the claim."""

    @abstractmethod
    def search(self, full: Full) -> Search:
        """Describe the search for the least noise."""

    def mean_square_cost(self, mean_square: float, implementation_delta: float) -> float:
        """Compute the cost of outputs of which only a mean squared distance is known.

        Refused by claims that need more than that.
        """
        del mean_square, implementation_delta
        raise CalibrationError(
            f"a mean squared distance bounds right guesses and bits, and not {self}; claim "
            "Guarantee.guess(at_most=...) or Guarantee.information(bits=...)"
        )

    @property
    @abstractmethod
    def distance_limit(self) -> float:
        """Squared distance of two points, in noise deviations, whose cost equals the bound."""

    def start(self, full: Full) -> tuple[float, float]:
        """Start of the search, and how far it may be off: exact where mean squares decide."""
        differences = full.differences
        if differences is None or not differences.is_by_mean_square:
            return 1 / math.sqrt(self.distance_limit), 2.0
        square = full.mean_square(differences.scale)
        return math.sqrt(square / self.distance_limit), 1 + 2.0**-38

    @property
    def bound(self) -> float:
        """Limit on the cost of the noise."""
        return float(getattr(self, self.bound_name))

    def with_bound(self, bound: float) -> Self:
        """Return this claim with another bound."""
        return attrs.evolve(self, **{self.bound_name: bound})

    def with_order(self, order: float) -> Self:
        """Return this claim at another order."""
        if not self.has_order:
            raise ArgumentError(f"{self} has no order; leave it out, or certify a Rényi claim")
        return attrs.evolve(self, order=order)  # type: ignore[call-arg]

    @property
    def whole(self) -> Self:
        """Claim about the whole output: the claim itself."""
        return self

    def by(self, method: Method | None) -> Self:
        """Return the claim itself: only claims along slices have a method."""
        del method
        return self

    @property
    def hockey_stick(self) -> tuple[float, float] | None:
        """Equivalent epsilon and delta; None for claims that are not of this kind."""
        return None

    def along(self, profile: AnyProfile) -> Self:
        """Return the claim itself: it has no slices."""
        del profile
        return self

    @property
    def reported_order(self) -> float:
        """Order at which the unsliced cost of a release is stated."""
        return REPORTED_ORDER

    def spent(self, compared: Compared, noise_std: float) -> float:
        """Compute the cost of the noise from the differences that the claim is about."""
        if compared.full.are_equal:
            return self.free
        check_above(0, noise_std=noise_std)
        return self.cost(compared.full, noise_std)

    def least_noise(self, compared: Compared) -> float:
        """Find the smallest noise standard deviation, in whitened coordinates, for the claim.

        Guarantee: `spent(result) <= bound` was evaluated and holds; 0 if all distributions are
        equal.
        """
        full = compared.full
        if full.differences is None:
            raise CalibrationError(
                "samples without a public range do not bound the unsliced divergence; give the "
                "query a range, or claim along slices"
            )
        if not self.allows_tails and full.missing.any():
            raise CalibrationError(
                "these bands leave out the tails, so they bound no Rényi divergence; give the "
                "query a public range, or claim (epsilon, delta) or a share of guesses"
            )
        if full.are_equal:
            return 0.0
        search, start = self.search(full), full.differences.scale
        if not search.floor < search.limit:
            raise CalibrationError(
                f"{self} allows less than the sampler's own error, "
                f"{full.implementation_delta:.3g} in total variation, whatever the noise. Claim a "
                "larger delta, a smaller epsilon (which implies this claim), or more right guesses"
            )
        if not start > 0:
            raise CalibrationError(
                "the distributions differ by less than the rounding of whitened coordinates; use "
                "shape='isotropic', or a range and scales of the size of the differences"
            )
        start *= search.start
        if search.cost(start * LEAST_NOISE) <= search.limit:
            # The distributions themselves hide the secret; the noise only covers the grid.
            return start * LEAST_NOISE
        noise_std = smallest_safe(search.cost, search.limit, start=start, factor=search.factor)
        noise_std *= SAFETY
        return raise_until(lambda std: self.cost(full, std) <= self.bound, noise_std)

    def instance_costs(self, compared: Compared, noise_std: float) -> Floats | None:
        """Return None: the claim does not aggregate costs of slices."""
        del compared, noise_std
        return None

    def slice_cost(self, slices: Slices, notion: str, noise_std: float, method: Method) -> float:
        """Compute the cost along slices, aggregated by the notion."""
        del slices, notion, noise_std, method
        raise no_slices(self)

    def slice_noise(self, slices: Slices, notion: str, method: Method) -> float:
        """Find the smallest noise that meets the claim along slices."""
        del slices, notion, method
        raise no_slices(self)

    def sphere_costs(self, full: Full, notion: str, noise_std: float) -> Floats:
        """Compute the cost of each instance along the whole sphere, in closed form."""
        del full, notion, noise_std
        raise ArgumentError(
            f"the sphere as profile goes with average and joint Rényi claims, not with {self}; "
            "use a FiniteProfile"
        )

    def sliced_words(self, notion: str) -> str:
        """Put the claim along slices into words."""
        del notion
        raise no_slices(self)

    def sliced_meaning(self, notion: str) -> str:
        """Say what the claim means along slices, in the form of `meaning`."""
        del notion
        raise no_slices(self)

    def recipe(self, noise_std: float, effort: Effort) -> Recipe:
        """Return how to look for couplings once the noise is roughly known: for the Rényi cost."""
        return renyi_recipe(self.reported_order, noise_std, effort)

    def cost_words(self, spent: float, rule: str) -> str:
        """Say what the noise costs, in a sentence."""
        return f"The noise costs {at_most(spent)} of {in_full(self.bound)}{rule}."

    @abstractmethod
    def words_if_off(self, share: float, implementation_delta: float) -> str:
        """Say what two points cost if a prior is wrong by a share of the guard."""

    def _ratio(self, share: float) -> float:
        """Distance of two points that are farther apart than declared by twice this share."""
        return math.sqrt(self.distance_limit) * (1 + 2 * share)

    def bounds_around(self, n_bounds: int) -> tuple[float, ...]:
        """Return other bounds, with the claim's own in the middle."""
        return bounds_around(self.bound, n_bounds)

    def ladder(self) -> tuple[float, ...]:
        """Return seven bounds to try; the claim's own is among them, not rounded."""
        return ladder(self.bound)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that `claim_of` reads."""
        return {"notion": self.notion, **attrs.asdict(self)}


def renyi_recipe(order: float, noise_std: float, effort: Effort) -> Recipe:
    """Return how to look for the couplings that are best for a Rényi cost."""
    rate = order * (order - 1) / 2 / noise_std / noise_std
    return Recipe(effort=effort, cost="renyi", rate=rate, noise_std=noise_std)


def bounds_around(bound: float, n_bounds: int) -> tuple[float, ...]:
    """Return bounds on both sides of a positive one, which is in the middle.

    >>> bounds_around(1.0, 5)
    (0.0316, 0.178, 1.0, 5.62, 31.6)
    """
    check_count(3, n_bounds=n_bounds)
    half = n_bounds // 2
    powers = [_REACH * step / half for step in range(-half, half + 1)]
    return tuple(bound if not x else float(f"{bound * 10**x:.3g}") for x in powers)


def ladder(bound: float) -> tuple[float, ...]:
    """Return seven bounds around a positive one, from a tenth to ten times."""
    return tuple(bound if share == 1 else float(f"{bound * share:.3g}") for share in _LADDER)


def no_slices(claim: object) -> ArgumentError:
    """Build the error for a claim about the whole output where slices were requested."""
    return ArgumentError(f"{claim} is a claim about the whole output; it has no slices")
