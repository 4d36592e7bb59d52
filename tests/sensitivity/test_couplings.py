# SPDX-License-Identifier: Apache-2.0
"""The unsliced bound: couplings along axes and wide slices, never below the truth."""

import numpy as np
import pytest
from tests import oracles

from pufferslice.calibration.calibrate import full_cost
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.couplings import MOST_MATCHINGS, full_tables, matching_directions
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Full

ONE_PAIR = [DistributionPair(0, 1)]


def built(distributions, pairs, profile):
    slices = gap_tables(distributions, pairs, profile.directions)
    return Full(dim=profile.dim, seen=full_tables(distributions, pairs, profile, slices))


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_point_masses(dim, rng):
    """order * distance^2 / (2 sigma^2), for every coupling."""
    shift = rng.normal(size=dim)
    distributions = [
        FiniteDistribution.uniform([np.zeros(dim)]),
        FiniteDistribution.uniform([shift]),
    ]
    full = built(distributions, ONE_PAIR, FiniteProfile.uniform(dim=dim, n_directions=5, seed=0))
    assert full_cost(full, 4.0, 1.5) == pytest.approx(4 * shift @ shift / (2 * 1.5**2), rel=1e-10)
    assert full.seen.worst() == pytest.approx(np.linalg.norm(shift), rel=1e-14)


def test_pure_shift_costs_dim_times_the_average(rng):
    """A moved sample: sorting matches each point with its own image, along any direction."""
    sample, shift = rng.normal(size=(30, 4)), rng.normal(size=4)
    distributions = [FiniteDistribution.uniform(sample), FiniteDistribution.uniform(sample + shift)]
    full = built(distributions, ONE_PAIR, FiniteProfile.axes(dim=4))
    along_axes = 3 * shift**2 / (2 * 2.0**2)
    assert full_cost(full, 3.0, 2.0) == pytest.approx(4 * along_axes.mean(), rel=1e-10)


def test_on_the_line_it_is_the_transport_bound(rng):
    distributions = [FiniteDistribution.uniform(rng.integers(-9, 9, size=(n, 1))) for n in (6, 10)]
    full = built(distributions, ONE_PAIR, FiniteProfile.axes(dim=1))
    (gaps,) = oracles.true_gap_distributions(distributions, ONE_PAIR, [[1.0]])[0]
    expected = float(oracles.envelope("transport", 3.0, gaps, 4.0))
    assert full_cost(full, 3.0, 4.0) == pytest.approx(expected, rel=0.008)
    assert full_cost(full, 3.0, 4.0) >= expected * (1 - 1e-12)


@pytest.mark.soundness
@pytest.mark.parametrize("order", [1.5, 2.0, 3.0])
def test_never_below_the_true_divergence(order, rng):
    """Densities of both noisy samples in the plane, both orders of the pair."""
    for seed in range(5):
        samples = oracles.random_samples(rng, 2)
        distributions = [FiniteDistribution.uniform(x) for x in samples]
        full = built(
            distributions, ONE_PAIR, FiniteProfile.uniform(dim=2, n_directions=6, seed=seed)
        )
        noise_std = float(rng.uniform(0.8, 2.5))
        bound = full_cost(full, order, noise_std)
        for pair in (samples, samples[::-1]):
            assert oracles.divergence_on_grid(order, *pair, noise_std) <= bound + 1e-9


class TestDirections:
    def test_axes_then_the_widest_slices(self):
        profile = FiniteProfile.of([[0.6, 0.8], [0.8, 0.6], [0.6, -0.8], [-0.8, 0.6]])
        chosen = matching_directions(profile, np.array([2.0, 9.0, 1.0, 4.0]), 10)
        assert chosen[:2].tolist() == np.eye(2).tolist()
        assert chosen[2:].tolist() == profile.directions[[1, 3, 0, 2]].tolist()

    @pytest.mark.parametrize("dim", [1, 3, 16, 40])
    def test_few_and_unit_vectors(self, dim, rng):
        profile = FiniteProfile.uniform(dim=dim, n_directions=100, seed=2)
        for size in (1, 10**4, 10**7, 10**10):
            chosen = matching_directions(profile, rng.uniform(size=profile.n_directions), size)
            assert 1 <= len(chosen) <= MOST_MATCHINGS
            assert np.linalg.norm(chosen, axis=1) == pytest.approx(np.ones(len(chosen)))
