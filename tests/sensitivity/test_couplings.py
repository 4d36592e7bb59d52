# SPDX-License-Identifier: Apache-2.0
"""The unsliced bound: couplings along axes and wide slices, never below the truth."""

import itertools
import math

import numpy as np
import pytest
from tests import oracles

from pufferslice.calibration.calibrate import full_cost, full_costs
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables, matching_tables
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
def test_never_below_the_best_coupling(rng):
    """All matchings of five points; the bound is at least the infimum over couplings.

    For equal sizes the infimum of a linear functional over couplings is at a matching.
    """
    for seed in range(8):
        x, y = rng.normal(size=(2, 5, 2))
        full = built(
            [FiniteDistribution.uniform(v) for v in (x, y)],
            ONE_PAIR,
            FiniteProfile.uniform(dim=2, n_directions=8, seed=seed),
        )
        squares = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
        rate = 3 * 2 / (2 * 1.5**2)
        best = min(
            np.mean([math.exp(rate * squares[i, j]) for i, j in enumerate(order)])
            for order in itertools.permutations(range(5))
        )
        assert full_cost(full, 3.0, 1.5) >= math.log(best) / 2 - 1e-12


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


@pytest.mark.soundness
def test_every_row_is_a_coupling_of_its_own_pair(rng):
    """Rows of several instances: each one's distances by rank along the directions used."""
    distributions = [FiniteDistribution.uniform(rng.normal(size=(20, 3))) for _ in range(3)]
    pairs = [DistributionPair(0, 1), DistributionPair(2, 0)]
    profile = FiniteProfile.uniform(dim=3, n_directions=5, seed=3)
    slices = gap_tables(distributions, pairs, profile.directions)
    tables = full_tables(distributions, pairs, profile, slices)
    sensitivities = slices.worst().max(axis=0)
    directions = matching_directions(profile, sensitivities, 60)
    assert tables.n_slices == len(directions)
    for i, (a, b) in enumerate(pairs):
        for k, u in enumerate(directions):
            x, y = (
                distributions[j].outputs[np.argsort(distributions[j].outputs @ u)] for j in (a, b)
            )
            true = np.linalg.norm(x - y, axis=1)
            assert tables.worst()[i, k] == pytest.approx(true.max(), rel=1e-12)
            row = oracles.tabulated(tables, i, k)
            mean_square = sum(float(mass * gap**2) for gap, mass in row)
            assert (true**2).mean() * (1 - 1e-12) <= mean_square
            assert mean_square <= (true**2).mean() * (1 + 2.0**-8) ** 2


def test_more_directions_never_hurt(rng):
    distributions = [FiniteDistribution.uniform(rng.normal(size=(40, 3))) for _ in range(2)]
    u = FiniteProfile.uniform(dim=3, n_directions=8, seed=1).directions
    costs = [
        full_costs(
            Full(dim=3, seen=matching_tables(distributions, ONE_PAIR, u[: k + 1])), 3.0, 2.0
        )[0]
        for k in range(8)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


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

    def test_large_data_get_fewer(self, rng):
        profile = FiniteProfile.uniform(dim=8, n_directions=100, seed=2)
        widths = rng.uniform(size=100)
        counts = [len(matching_directions(profile, widths, size)) for size in (10, 10**9)]
        assert counts[0] == MOST_MATCHINGS
        assert counts[1] < counts[0]
