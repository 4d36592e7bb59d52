# SPDX-License-Identifier: Apache-2.0
"""What a claim may ask of the difference between two worlds; every kind of difference answers.

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
    """What the whole output differs by between two worlds, for every instance.

    An instance is a prior and a protected pair. Every answer is an upper bound for the ideal
    mechanism, in both orders of the pair, of shape (n_instances,). What a kind cannot answer it
    refuses by a `ClaimError`.
    """

    name: ClassVar[str]
    """Name of the kind in a file."""
    prior_kinds: ClassVar[tuple[str, ...]]
    """Kinds of priors that it belongs to."""
    is_on_grid: ClassVar[bool]
    """Whether the bounds are about values on the grid of the release."""

    @property
    def n_instances(self) -> int:
        """Number of (prior, pair) combinations."""

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances whose two distributions are equal."""

    @property
    def scale(self) -> float:
        """Size of the differences, to start a search for noise from."""

    @property
    def is_point(self) -> bool:
        """Whether the query has a single value under every secret and prior."""

    @property
    def is_single(self) -> bool:
        """Whether the query has a single value, or one Gaussian, under every secret and prior."""

    def check(self) -> None:
        """Raise unless the numbers fit together; for differences read from a file."""

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """What cannot be true of any scenario with this description, in sentences."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything, as arrays for a file."""

    def mean_squares(self, noise: Covariance) -> Floats:
        """Mean squared distance of coupled outputs, in standard deviations of the noise."""

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Rényi divergence of the whole output; infinite where nothing bounds it."""

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Delta of the whole output, as a function of epsilon."""

    def variations(self, noise: Covariance) -> Floats:
        """Total variation of the whole output."""

    def epsilon_at(self, delta: float, noise: Covariance) -> float | None:
        """Least epsilon at `delta` by the distances themselves; None if the kind has none."""

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> Floats:
        """Divergence along the whole sphere of directions, aggregated by the notion."""

    def reach(self) -> Floats | None:
        """Largest distance of coupled outputs; None if there is no coupling."""

    def coarsened(self, n_entries: int) -> Self:
        """A bound of the same kind with about so many numbers, quicker to compute with."""

    def farther(self, distance: float) -> Self | None:
        """The same with all coupled outputs farther apart; None if there is no coupling."""

    def unwhitened(self, shape: Shape) -> Self | None:
        """The same before whitening by a shape; None if that cannot be undone."""

    def source(self, found: str | None) -> str:
        """How the bound was found, in words; `found` says how couplings were looked for."""


class NotOnSpheres:
    """The answer of differences that have no closed form along the sphere."""

    def sphere_divergences(self, notion: str, order: float, noise: Covariance) -> NoReturn:
        """Refuse: there is no closed form."""
        del notion, order, noise
        raise ClaimError(
            "a claim along the whole sphere needs distances of the whole output; claim "
            "Guarantee.guess(at_most=...)"
        )
