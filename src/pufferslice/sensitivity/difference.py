# SPDX-License-Identifier: Apache-2.0
"""The questions that a claim may ask of the difference between two worlds.

A new kind implements the protocol, passes its contract in the tests, and adds a line to
`sensitivity.sensitivity.DIFFERENCES`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice.errors import ClaimError
from pufferslice.sensitivity.whitening import Covariance, Shape


class Difference(Protocol):
    """The difference of the whole output between two worlds, for every instance.

    An instance is a prior and a protected pair. Every answer is an upper bound for the ideal
    mechanism, in both orders of the pair, of shape (n_instances,). What a kind cannot answer it
    refuses by a `ClaimError`.
    """

    name: ClassVar[str]
    """Name of the kind in a file."""
    prior_kinds: ClassVar[tuple[str, ...]]
    """Kinds of priors that the kind of difference belongs to."""
    is_on_grid: ClassVar[bool]
    """Whether the bounds are about values on the grid of the release."""
    is_by_mean_square: ClassVar[bool]
    """Whether bounds on total variation follow from mean squared distances alone."""
    converts_orders: ClassVar[bool]
    """Whether divergences at some orders give epsilons that those at a delta do not improve."""

    @property
    def n_instances(self) -> int:
        """Number of (prior, pair) combinations."""

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances whose two distributions are equal."""

    @property
    def scale(self) -> float:
        """Size of the differences, at which a search for noise starts."""

    @property
    def is_point(self) -> bool:
        """Whether the query has a single value under every secret and prior."""

    @property
    def is_single(self) -> bool:
        """Whether the query has a single value, or one Gaussian, under every secret and prior."""

    def check(self) -> None:
        """Raise unless the numbers fit together; for differences read from a file."""

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """List what cannot be true of any scenario with this description, in sentences."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays for a file."""

    def mean_squares(self, noise: Covariance) -> Floats:
        """Bound the mean squared distance of coupled outputs, in deviations of the noise."""

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Bound the Rényi divergence of the whole output; infinite where nothing bounds it."""

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Bound the delta of the whole output, as a function of epsilon."""

    def variations(self, noise: Covariance) -> Floats:
        """Bound the total variation of the whole output."""

    def epsilon_at(self, delta: float, noise: Covariance) -> float | None:
        """Find the least epsilon at `delta` by the distances themselves; None if there are none."""

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> Floats:
        """Bound the divergence along the whole sphere of directions, aggregated by the notion."""

    def reach(self) -> Floats | None:
        """Return the largest distance of coupled outputs; None if there is no coupling."""

    def coarsened(self, n_entries: int) -> Self:
        """Return a bound of the same kind with about so many numbers, quicker to compute with."""

    def farther(self, distance: float) -> Self | None:
        """Move all coupled outputs farther apart; None if there is no coupling."""

    def unwhitened(self, shape: Shape) -> Self | None:
        """Undo whitening by a shape; None if that is impossible."""

    def source(self, found: str | None) -> str:
        """Say how the bound was found; `found` says how couplings were looked for."""

    def is_coupled_as(self, coupling: str) -> bool:
        """Whether the rows of a change meet as this coupling of rows says."""

    def least_share(self, noise: Covariance) -> float | None:
        """Share of noise of this shape below which no coupling could go; None without rows."""

    def one_row_distance(self, noise: Covariance) -> float | None:
        """Largest distance that exchanging one row moves the output; None if rows are no persons.

        In deviations of the noise.
        """


class NotOfRows:
    """A difference that does not say what one row adds."""

    is_by_mean_square: ClassVar[bool] = False
    converts_orders: ClassVar[bool] = True

    def is_coupled_as(self, coupling: str) -> bool:
        """Return true: what a recipe says of rows is not about this."""
        del coupling
        return True

    def least_share(self, noise: Covariance) -> None:
        """Return None: no rows are coupled."""
        del noise

    def one_row_distance(self, noise: Covariance) -> None:
        """Return None: nothing is known of one row."""
        del noise


class NotOnSpheres:
    """A difference that has no closed form along the sphere."""

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> NoReturn:
        """Refuse: there is no closed form."""
        del notion, order, noise
        raise ClaimError(
            "a claim along the whole sphere needs distances of the whole output; claim "
            "Guarantee.guess(at_most=...)"
        )
