# SPDX-License-Identifier: Apache-2.0
"""Pairs of Gaussian laws: their divergences along slices and in full are known exactly."""

import math
from typing import Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.arrays import UNIT_ROUNDOFF, Floats
from pufferslice.errors import ArgumentError
from pufferslice.laws import GaussianLaw
from pufferslice.renyi import gaussian_divergence_apart, gaussian_divergence_nd

_ROUNDINGS: Final = 32 * UNIT_ROUNDOFF


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class GaussianPairs:
    """Mean and covariance under both secrets of every instance."""

    means: Floats
    """Shape (n_instances, 2, dim)."""
    covs: Floats
    """Shape (n_instances, 2, dim, dim)."""

    @property
    def n_instances(self) -> int:
        """Number of (prior, pair) combinations."""
        return len(self.means)

    @property
    def dim(self) -> int:
        """Output dimension."""
        return int(self.means.shape[2])

    @property
    def equal(self) -> npt.NDArray[np.bool_]:
        """Instances whose two laws are the same law."""
        same_mean = (self.means[:, 0] == self.means[:, 1]).all(axis=1)
        same_cov = (self.covs[:, 0] == self.covs[:, 1]).all(axis=(1, 2))
        return np.asarray(same_mean & same_cov)

    def differences(self, directions: Floats) -> tuple[Floats, Floats]:
        """Per instance, how far the laws differ at all, and at most along these directions."""
        shifts = self.means[:, 0] - self.means[:, 1]
        spreads = self.covs[:, 0] - self.covs[:, 1]
        apart = np.linalg.norm(shifts, axis=1) ** 2 + np.linalg.norm(spreads, axis=(1, 2))
        along = np.einsum("ld,ide,le->il", directions, spreads, directions)
        return apart, ((shifts @ directions.T) ** 2 + np.abs(along)).max(axis=1)

    def check(self) -> None:
        """The arrays fit together and are laws; for pairs read from a file."""
        dim = self.means.shape[-1]
        n = len(self.means)
        if self.means.shape != (n, 2, dim) or self.covs.shape != (n, 2, dim, dim) or not n * dim:
            msg = (
                "means and covs must have shapes (n, 2, dim) and (n, 2, dim, dim), n and dim at "
                f"least 1; got {self.means.shape} and {self.covs.shape}"
            )
            raise ArgumentError(msg)
        for mean, cov in zip(
            self.means.reshape(-1, dim), self.covs.reshape(-1, dim, dim), strict=True
        ):
            GaussianLaw(mean=mean, cov=cov)

    def slice_costs(self, directions: Floats, order: float, noise_std: float) -> Floats:
        """The larger of both orders of the pair, shape (n_instances, n_slices)."""
        variance = noise_std**2
        sizes = _along(np.abs(directions), np.abs(self.covs)).max(axis=1)
        errors = _spread_errors(self.dim, order, sizes + variance)
        totals = _along(directions, self.covs) + (variance - errors)[:, None]
        shifts, wider = self._shifts(directions), self._wider(directions)
        costs = np.maximum(
            gaussian_divergence_apart(order, (shifts, wider), totals[:, 1]),
            gaussian_divergence_apart(order, (shifts, -wider), totals[:, 0]),
        )
        costs[totals.min(axis=1) < errors] = np.inf
        costs[self.equal] = 0.0
        return costs

    def full_costs(self, order: float, noise_std: float) -> Floats:
        """Divergence in all dimensions, the larger of both orders, shape (n_instances,)."""
        costs = np.zeros(self.n_instances)
        for i in np.flatnonzero(~self.equal):
            costs[i] = self._full_cost(int(i), order, noise_std)
        return costs

    def _full_cost(self, instance: int, order: float, noise_std: float) -> float:
        """In units that make every variance about 1, so that none drowns in another's rounding."""
        means, covs, variance = self.means[instance], self.covs[instance], noise_std**2
        totals = np.maximum(np.diagonal(covs, axis1=1, axis2=2).max(axis=0), 0) + variance
        if not totals.min() > 0:
            return math.inf
        units = np.exp2(np.rint(np.log2(totals) / 2))
        means, covs, noises = means / units, covs / np.outer(units, units), variance / units**2
        size = self.dim * np.abs(covs).max() + noises.max()
        error = float(_spread_errors(self.dim, order, size))
        lowered = noises - error
        if np.linalg.eigvalsh(covs + np.diag(lowered)).min() < error:
            return math.inf
        first, second = zip(means, covs, strict=True)
        return max(
            gaussian_divergence_nd(order, first, second, lowered),
            gaussian_divergence_nd(order, second, first, lowered),
        )

    def _shifts(self, directions: Floats) -> Floats:
        """At least the distance of the means along each direction: (n_instances, n_slices).

        The difference is projected, because means far from 0 would hide it in their rounding; and
        what rounding can do to its own projection is added.
        """
        apart = self.means[:, 0] - self.means[:, 1]
        error = (self.dim + 4) * UNIT_ROUNDOFF * (np.abs(apart) @ np.abs(directions.T))
        return np.asarray(np.abs(apart @ directions.T) + error)

    def _wider(self, directions: Floats) -> Floats:
        """How much wider the first law is along each direction, away from 0 by its rounding.

        The difference is projected, for the reason of `_shifts`.
        """
        apart = self.covs[:, 0] - self.covs[:, 1]
        found = _along(directions, apart)
        most = _along(np.abs(directions), np.abs(apart))
        return np.asarray(found + np.copysign(2 * (self.dim + 4) * UNIT_ROUNDOFF * most, found))

    def __repr__(self) -> str:
        return f"GaussianPairs(n_instances={self.n_instances}, dim={self.dim})"


def _along(directions: Floats, covs: Floats) -> Floats:
    """Variance along each direction, shape (..., n_slices)."""
    return np.asarray(((directions @ covs) * directions).sum(axis=-1))


def _spread_errors(dim: int, order: float, sizes: npt.ArrayLike) -> Floats:
    """What rounding can do to spreads of these sizes; the noise is lowered by it.

    Less noise costs more. Where the cost is about to become infinite, a rounding of the spreads is
    otherwise seen in it. Where no more than this is left of a spread, nothing is known of the cost.
    """
    return np.asarray(_ROUNDINGS * dim * order * np.asarray(sizes))
