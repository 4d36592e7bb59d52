# SPDX-License-Identifier: Apache-2.0
"""From one lower bound per slice to one for the claim."""

from typing import ClassVar, Protocol, Self, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.concentration import dkw_halfwidth, split
from pufferslice.renyi import aggregate_average, aggregate_joint


class Aggregation(Protocol):
    """How the numbers of the slices become the number of the claim; it grows with each of them."""

    @property
    def weights(self) -> Floats:
        """Of the slices."""
        ...

    @property
    def failure_probability(self) -> float:
        """That the aggregate of true numbers is above the claim's own number."""
        ...

    @property
    def words(self) -> str:
        """As `average over 200 slices`."""
        ...

    def of(self, values: Floats) -> float:
        """The aggregate of one number per slice."""
        ...

    def spending(self, failure_probability: float, n_comparisons: int) -> Self:
        """The same, with so much doubt to spend if it needs any, on all comparisons together."""
        ...


@final
@attrs.frozen(kw_only=True)
class Mean:
    """The mean over the slices: of divergences, of epsilons, or of deltas."""

    failure_probability: ClassVar[float] = 0.0

    weights: Floats = attrs.field(converter=locked, eq=same)

    @property
    def words(self) -> str:
        """As `average over 200 slices`."""
        return f"average over {len(self.weights)} slices"

    def of(self, values: Floats) -> float:
        """Source: def:ave_srd."""
        return float(aggregate_average(values, self.weights))

    def spending(self, failure_probability: float, n_comparisons: int) -> Self:  # noqa: ARG002 - exact
        """Itself: the slices are the profile."""
        return self


@final
@attrs.frozen(kw_only=True)
class JointMoment:
    """The log-moment over the slices of Rényi divergences."""

    failure_probability: ClassVar[float] = 0.0

    order: float
    weights: Floats = attrs.field(converter=locked, eq=same)

    @property
    def words(self) -> str:
        """As `joint over 200 slices`."""
        return f"joint over {len(self.weights)} slices"

    def of(self, values: Floats) -> float:
        """Source: def:joint_srd."""
        return float(aggregate_joint(self.order, values, self.weights))

    def spending(self, failure_probability: float, n_comparisons: int) -> Self:  # noqa: ARG002 - exact
        """Itself: the slices are the profile."""
        return self


@final
@attrs.frozen(kw_only=True)
class SphereMean:
    """The mean over all directions, from some that were drawn of them (Hoeffding).

    It bounds joint claims too, which are never below average ones.
    """

    n_directions: int
    cap: float
    """Larger values count as this, so that they are bounded."""
    failure_probability: float = 0.5
    """That the drawn directions lie so that `of` is above the mean of the sphere; `spending` says
    it, and as it is nothing is left for anything else."""
    n_comparisons: int = 1
    """Of so many, one is chosen by looking along the drawn directions; `of` holds for all."""

    @property
    def weights(self) -> Floats:
        """Every drawn direction counts the same."""
        return np.full(self.n_directions, 1 / self.n_directions)

    @property
    def words(self) -> str:
        """As `average over the sphere, from 2000 slices`."""
        return f"average over the sphere, from {self.n_directions} slices"

    def of(self, values: Floats) -> float:
        """The mean of the capped values, less the half-width of a mean of so many.

        Source: thm:mc_finite_gaussian_ave_srpp.
        """
        share = split(self.failure_probability, self.n_comparisons)
        width = self.cap * dkw_halfwidth(self.n_directions, share)
        return max(0.0, float(np.minimum(values, self.cap).mean()) - width)

    def spending(self, failure_probability: float, n_comparisons: int) -> Self:
        """With this failure probability, whichever of the comparisons is chosen."""
        return attrs.evolve(
            self, failure_probability=failure_probability, n_comparisons=n_comparisons
        )
