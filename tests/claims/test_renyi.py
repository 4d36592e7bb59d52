# SPDX-License-Identifier: Apache-2.0
"""Rényi divergences of the whole output, by exact tables and in closed form."""

import math

import numpy as np
import pytest
from hypothesis import given
from tests import oracles
from tests.compared import full_of, point_masses, whole

from pufferslice.claims import Guarantee
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.sensitivity import Full

# Noise is raised by 2^-38 and gaps by sqrt(dim) 2^-44 of it; variances by twice that.
CLOSE = 1e-10


def test_the_limit_of_a_distance():
    assert Guarantee.unsliced(order=4, epsilon=1).distance_limit == 0.5
    assert Guarantee.average_over_batches(order=4, epsilon=1).distance_limit == 0.5


class TestUnsliced:
    def test_best_coupling_of_each_instance_then_the_largest_instance(self):
        """Each instance is matched well along its own axis only."""
        first = FiniteDistribution.uniform([[0.0, 0.0], [10.0, 1.0]])
        second = FiniteDistribution.uniform([[0.0, 2.0], [10.0, 1.0]])
        third = FiniteDistribution.uniform([[0.0, 0.0], [10.0, 2.0]])
        full = full_of([first, second, third])
        order, s = 2.0, 3.0
        rate = order * (order - 1) / (2 * s**2)
        expected = [math.log((math.exp(rate * 4) + 1) / 2), math.log((1 + math.exp(rate)) / 2)]
        costs = full.divergences(order, s)
        assert costs == pytest.approx(expected, rel=1e-10)
        assert max(costs) <= full.divergence(order, s) <= max(costs) * (1 + 1e-10)

    @pytest.mark.soundness
    def test_the_rounding_of_a_long_sum_of_squares_is_in_the_cost(self):
        """A third squared, added up 200,000 times, is short of the sum by 3 parts in 10^12."""
        dim, noise_std = 200_000, 0.01
        full = full_of(point_masses([0.0] * dim, [1 / 3] * dim), np.eye(1, dim))
        (cost,) = full.divergences(4.0, noise_std)
        exact = 2 * dim * (oracles.exact(1 / 3) / oracles.exact(noise_std)) ** 2
        assert exact <= cost <= exact * (1 + 1e-10)

    def test_the_safety_factor_is_in_the_bound(self):
        """Order 4 and a shift as large as the noise cost 2, and 2^-38 of it more."""
        full = full_of(point_masses([0.0], [5.0]))
        assert full.divergence(4.0, 5.0) / 2 - 1 == pytest.approx(2.0**-38, rel=0.2)

    @pytest.mark.soundness
    @given(world=oracles.worlds(), order=oracles.orders(), epsilon=oracles.epsilons())
    def test_calibration_never_overspends(self, world, order, epsilon):
        distributions, pairs, profile = world
        full = full_of(distributions, pairs=pairs)
        target = Guarantee.unsliced(order=order, epsilon=epsilon)
        noise_std = target.least_noise(whole(full))
        assert full.divergence(order, noise_std) <= epsilon
        margin = oracles.grid_margin(profile.dim, noise_std)
        tables = full.differences
        exact = max(
            min(
                oracles.envelope(
                    "transport", order, oracles.tabulated(tables, i, k), noise_std, margin
                )
                for k in range(tables.n_slices)
            )
            for i in range(tables.n_instances)
            if not tables.equal[i]
        )
        assert exact <= epsilon
        assert exact >= epsilon * (1 - 1e-9)

    def test_gaussian_distributions(self):
        covs = np.tile(np.diag([1.0, 2.0]), (1, 2, 1, 1))
        pairs = GaussianPairs(means=np.array([[[0.0, 0.0], [3.0, 4.0]]]), covs=covs)
        full = Full(dim=2, differences=pairs)
        s = 2.0
        expected = 4 / 2 * (9 / (1 + s**2) + 16 / (2 + s**2))
        assert full.divergence(4.0, s) == pytest.approx(expected, rel=1e-10)
        target = Guarantee.unsliced(order=4, epsilon=expected)
        assert target.least_noise(whole(full)) == pytest.approx(s, rel=CLOSE)

    def test_equal_distributions_need_no_noise(self):
        distribution = FiniteDistribution.uniform([[0.0, 1.0], [2.0, 5.0]])
        full = full_of([distribution, distribution])
        assert full.divergence(4.0, 1e-9) == 0
        assert Guarantee.unsliced(order=2, epsilon=1).least_noise(whole(full)) == 0

    def test_without_distances_nothing_is_bounded(self):
        assert Full(dim=2, differences=None).divergence(4.0, 1.0) == math.inf
