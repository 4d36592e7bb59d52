# SPDX-License-Identifier: Apache-2.0
"""Pairs of Gaussian laws: their divergences along slices and in full are known exactly."""

from typing import final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.arrays import Floats
from pufferslice.renyi import gaussian_divergence, gaussian_divergence_nd


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

    def slice_costs(self, directions: Floats, order: float, noise_std: float) -> Floats:
        """The larger of both orders of the pair, shape (n_instances, n_slices)."""
        means = self.means @ directions.T
        variances = np.einsum("ld,isde,le->isl", directions, self.covs, directions) + noise_std**2
        first, second = ((means[:, i], variances[:, i]) for i in (0, 1))
        return np.maximum(
            gaussian_divergence(order, first, second), gaussian_divergence(order, second, first)
        )

    def full_costs(self, order: float, noise_std: float) -> Floats:
        """Divergence in all dimensions, the larger of both orders, shape (n_instances,)."""
        noise = noise_std**2 * np.eye(self.dim)
        costs = np.empty(self.n_instances)
        for i, (means, covs) in enumerate(zip(self.means, self.covs, strict=True)):
            first, second = ((m, c + noise) for m, c in zip(means, covs, strict=True))
            costs[i] = max(
                gaussian_divergence_nd(order, first, second),
                gaussian_divergence_nd(order, second, first),
            )
        return costs

    def __repr__(self) -> str:
        return f"GaussianPairs(n_instances={self.n_instances}, dim={self.dim})"
