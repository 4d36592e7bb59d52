# SPDX-License-Identifier: Apache-2.0
r"""Second moments of the change between two worlds that differ in some rows.

With W the change that one row makes, of mean m and covariance C, independent from row to row, and D
rows that differ, the change $Z = \sum_{k \le D} W_k$ has the second moment

$$M = E[D^2]\, m m^\top + E[D]\, C.$$

Given the coupled tables the outputs are $N(a, \Sigma)$ and $N(a + Z, \Sigma)$. Right guesses are at
most $E\,\Phi(\sqrt{Z^\top \Sigma^{-1} Z} / 2)$ by joint convexity, and at most
$\Phi(\sqrt{\rho} / 2)$ with $\rho = E\, Z^\top \Sigma^{-1} Z = \mathrm{tr}(\Sigma^{-1} M)$ by
Jensen's inequality, because $q \mapsto \Phi(\sqrt q / 2)$ is concave.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Self, final

import attrs
import numpy as np
import numpy.typing as npt
from scipy.special import erf

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice.errors import ArgumentError
from pufferslice.scenario.rows import RowDistribution
from pufferslice.sensitivity.difference import NotOnSpheres
from pufferslice.sensitivity.whitening import Covariance, Shape

_MOMENT_ERROR: Final = 1e-9
"""Bound on errors of stored moments, as shares of what one row could do: far above rounding."""
_UP: Final = 1 + 2.0**-40
_ROOM: Final = 1 + 2.0**-20


@final
@attrs.frozen(kw_only=True, repr=False)
class RowDifference(NotOnSpheres):
    """Mean and covariance of the change that one row makes, and how many rows change."""

    name: ClassVar[str] = "rows"
    prior_kinds: ClassVar[tuple[str, ...]] = ("rows",)
    is_on_grid: ClassVar[bool] = True
    is_point: ClassVar[bool] = False
    is_single: ClassVar[bool] = False

    shift: Floats = attrs.field(converter=locked, eq=same)
    """Mean of the change, in scaled coordinates, shape (dim,)."""
    spread: Floats = attrs.field(converter=locked, eq=same)
    """Covariance of the change, shape (dim, dim)."""
    spans: Floats = attrs.field(converter=locked, eq=same)
    """Largest change of each coordinate by one row, shape (dim,); public."""
    counts: Floats = attrs.field(converter=locked, eq=same)
    """Expected number of rows that differ, and expected square of that number."""

    @classmethod
    def of(cls, first: RowDistribution, second: RowDistribution) -> "RowDifference":
        """Compute the difference of two worlds, their rows coupled independently."""
        spread = first.row_cov + second.row_cov
        differing = first.differing
        return cls(
            shift=second.row_mean - first.row_mean,
            spread=(spread + spread.T) / 2,
            spans=first.spans,
            counts=[differing.mean, differing.mean_square],
        )

    @property
    def n_instances(self) -> int:
        """Number of instances: one prior and one pair, any two values within the range."""
        return 1

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.shift)

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances that are equal: none, as rows with these moments can always differ."""
        return np.zeros(1, dtype=np.bool_)

    @property
    def second_moment(self) -> Floats:
        """Second moment M, raised by the possible rounding of stored moments, shape (dim, dim)."""
        mean, mean_square = self.counts.tolist()
        moment = mean_square * np.outer(self.shift, self.shift) + mean * self.spread
        sizes = np.diagonal(moment) + mean_square * self.spans**2
        return np.asarray(moment + _MOMENT_ERROR * self.dim * np.diag(sizes))

    @property
    def scale(self) -> float:
        """Root mean square of the change."""
        return math.sqrt(float(np.trace(self.second_moment)))

    def problems(self, scenario: Mapping[str, Any]) -> Iterator[str]:
        """Report if fewer rows differ than the stated range of secrets needs."""
        secret = scenario["secret"]
        mean = secret["n_differing"]
        mean_square = mean**2
        if secret.get("design") == "independent":
            mean = secret["n_rows"] * secret["within"]
            mean_square = mean**2 + mean * (1 - secret["within"])
        if (self.counts < np.array([mean, mean_square]) / _ROOM).any():
            yield "fewer rows differ in the evidence than the stated range of secrets needs"

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the moments, for a file."""
        return attrs.asdict(self)

    def mean_squares(self, noise: Covariance) -> Floats:
        """Compute the expected squared distance of coupled outputs in noise deviations, rounded up.

        The grid adds to the distance of every two coupled outputs (Minkowski).
        """
        moment, whitening = self.second_moment, noise.whitening
        total = float(np.einsum("ij,jk,ik->", whitening, moment, whitening))
        size = np.abs(whitening)
        largest = float(np.einsum("ij,jk,ik->", size, np.abs(moment), size))
        rounding = 4 * (self.dim + 4) ** 2 * UNIT_ROUNDOFF * largest
        distance = math.sqrt(total + rounding) / noise.std + noise.margin / noise.std
        return np.array([distance**2 * _UP])

    def divergences(self, order: float, noise: Covariance) -> Floats:
        """Return infinity: second moments bound no Rényi divergence."""
        del order, noise
        return np.array([math.inf])

    def delta_curve(self, noise: Covariance) -> Callable[[float], Floats]:
        """Return the total variation, whatever epsilon is: second moments bound no more."""
        variations = self.variations(noise)
        return lambda _epsilon: variations

    def variations(self, noise: Covariance) -> Floats:
        """Bound total variation by two Gaussians at the root mean squared distance (Jensen)."""
        distances = np.sqrt(self.mean_squares(noise))
        return np.asarray(np.minimum(1.0, erf(distances / (2 * math.sqrt(2))) * _UP))

    def epsilon_at(self, delta: float, noise: Covariance) -> None:
        """Return None: second moments give no epsilon below the total variation."""
        del delta, noise

    def reach(self) -> None:
        """Return None: the rows are coupled independently."""

    def coarsened(self, n_entries: int) -> Self:
        """Return the moments themselves."""
        del n_entries
        return self

    def farther(self, distance: float) -> None:
        """Return None: nothing is coupled."""
        del distance

    def unwhitened(self, shape: Shape) -> Self:
        """Return the moments themselves, which are not whitened."""
        del shape
        return self

    def source(self, found: str | None) -> str:
        """Name the moments and the coupling."""
        del found
        return "second moments of the rows that make the difference, coupled independently"

    def check(self) -> None:
        """Raise unless the numbers can be moments of clipped rows."""
        dim = self.dim
        shapes = (self.shift.shape, self.spread.shape, self.spans.shape, self.counts.shape)
        numbers = (self.shift, self.spread, self.spans, self.counts)
        fits = shapes == ((dim,), (dim, dim), (dim,), (2,))
        fits = fits and all(np.isfinite(array).all() for array in numbers)
        if not fits or not (self.spans.min() > 0 and self.counts.min() > 0):
            raise ArgumentError("moments of rows must be finite, and of one number of coordinates")
        mean, mean_square = self.counts.tolist()
        possible = (
            (np.abs(self.shift) <= self.spans * _ROOM).all()
            and (np.diagonal(self.spread) <= self.spans**2 / 2 * _ROOM).all()
            and mean_square >= mean**2 / _ROOM
        )
        symmetric = np.array_equal(self.spread, self.spread.T)
        sizes = np.sqrt(np.maximum(np.diagonal(self.spread), 0.0))
        units = np.where(sizes > 0, sizes, 1.0)
        if symmetric and possible:
            values = np.linalg.eigvalsh(self.spread / np.outer(units, units))
            possible = bool(values[0] >= -_MOMENT_ERROR * dim)
        if not (symmetric and possible):
            raise ArgumentError("these are not moments of rows within the public ranges")

    def __repr__(self) -> str:
        return f"RowDifference(dim={self.dim})"
