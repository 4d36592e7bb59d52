# SPDX-License-Identifier: Apache-2.0
"""Bits of information: by hand, and never below the divergence of the noisy outputs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from tests import oracles
from tests.compared import full_of, full_of_rows, whole
from tests.row_moments import rows_of

from pufferslice.claims import Guarantee
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import MatchingTables
from pufferslice.sensitivity.whitening import Covariance, Shape

BITS = Guarantee.information(bits=0.25)
KNOWN = full_of_rows([(2.0, 1), (1.0, 3)])
"""Distances 1 and 2 with masses 3/4 and 1/4: a mean square of 7/4."""


def row_difference(n, counts, shift, spread):
    """Sums over n rows, each divided by n."""
    return rows_of(shift=[shift / n], spread=[[spread / n**2]], spans=[1 / n], counts=counts)


class TestByHand:
    def test_two_gaussians(self):
        """The divergence of N(d, 1) from N(0, 1) is d^2 / 2 nats."""
        points = whole(full_of_rows([(3.0, 1)]))
        assert BITS.spent(points, 1.0) == pytest.approx(4.5 / math.log(2), rel=1e-9)
        assert BITS.least_noise(points) ** 2 == pytest.approx(18 / math.log(2), rel=1e-9)

    def test_masses_count(self):
        assert BITS.spent(whole(KNOWN), 2.0) == pytest.approx(7 / 32 / math.log(2), rel=1e-9)
        assert BITS.least_noise(whole(KNOWN)) ** 2 == pytest.approx(3.5 / math.log(2), rel=1e-9)

    def test_the_hardest_instance_with_its_best_coupling(self):
        """Two couplings of two instances: the first has 5 or 1, the second 2 or 3."""
        rows = [(np.array([r]), np.array([1])) for r in (5.0, 2.0, 1.0, 3.0)]
        full = Full(dim=1, differences=MatchingTables.of_rows(rows, [1, 1]))
        assert full.mean_square(1.0) == pytest.approx(4.0, rel=1e-9)

    def test_sums_of_rows(self):
        """n = 100, D = 5, P(W = 1) = 1/5, noise 1/50: a mean square of 0.45."""
        full = Full(dim=1, differences=row_difference(100, [5.0, 25.0], 0.2, 0.16))
        assert full.mean_square(1 / 50) == pytest.approx(0.45, rel=1e-6)
        spent = BITS.spent(whole(full), 1 / 50)
        assert spent == pytest.approx(0.225 / math.log(2), rel=1e-6)

    def test_coins(self):
        """Bernoulli 1/4 and 3/4, n = 100, D = 10: a second moment of 0.002875."""
        full = Full(dim=1, differences=row_difference(100, [10.0, 100.0], 0.5, 0.375))
        noise_std = BITS.least_noise(whole(full))
        assert noise_std**2 == pytest.approx(0.002875 / (0.5 * math.log(2)), rel=1e-6)

    def test_the_limit_of_a_distance(self):
        assert BITS.distance_limit == pytest.approx(math.log(2) / 2, rel=1e-15)

    def test_a_distance_that_is_longer_by_a_tenth(self):
        """Twice the share of the guard on both sides together: 1.1 squared times the bits."""
        assert "0.3025" in BITS.words_if_off(0.05, 0.0)


class TestMeanSquares:
    def test_the_grid_is_charged(self):
        """Points 16 grid steps apart in R^4 cost as if they were 16 + sqrt(4) apart."""
        full = full_of_rows([(2.0**-40, 1)], dim=4)
        assert full.mean_square(1.0) == pytest.approx(18**2 * 2.0**-88, rel=1e-9, abs=0)

    def test_the_grid_is_charged_of_rows(self):
        """Nearly equal rows, too: sqrt(dim) 2^-44 of the noise, by Minkowski's inequality."""
        rows = rows_of(
            shift=[1e-30] * 4, spread=np.zeros((4, 4)), spans=[1e-30] * 4, counts=[1.0, 1.0]
        )
        assert Full(dim=4, differences=rows).mean_square(1.0) >= 4 * 2.0**-88

    def test_shaped_noise_of_rows(self):
        """The trace of the inverse covariance times the second moment, by another solver."""
        moment, noise = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[4.0, -1.0], [-1.0, 2.0]])
        rows = rows_of(shift=[0, 0], spread=moment, spans=[1e-3] * 2, counts=[1.0, 1.0])
        shape = Shape.of_covariance(noise)
        std = math.sqrt(np.trace(noise) / 2)
        found = rows.mean_squares(Covariance(dim=2, std=std, shape=shape)).item()
        assert found == pytest.approx(np.trace(np.linalg.solve(noise, moment)), rel=1e-6)


def kullback_leibler(first, second, noise_std):
    """Bits between two noisy samples on the line, by the trapezoid rule in log space."""
    x, y = first.ravel() / noise_std, second.ravel() / noise_std
    both = np.concatenate([x, y])
    grid, step = np.linspace(both.min() - 12, both.max() + 12, 20_001, retstep=True)
    p, q = (
        logsumexp(-((grid[:, None] - atoms) ** 2) / 2, axis=1) - math.log(len(atoms))
        for atoms in (x, y)
    )
    return float((np.exp(p) * (p - q)).sum() * step / math.sqrt(2 * math.pi) / math.log(2))


@pytest.mark.soundness
@given(st.integers(0, 2**32 - 1), st.floats(0.2, 5.0))
def test_never_below_the_divergence_of_the_noisy_outputs(seed, noise_std):
    """In both orders of the pair."""
    samples = oracles.random_samples(np.random.default_rng(seed), 1)
    full = full_of([FiniteDistribution.uniform(x) for x in samples])
    bound = BITS.spent(whole(full), noise_std)
    for pair in (samples, samples[::-1]):
        assert kullback_leibler(*pair, noise_std) <= bound * (1 + 1e-9) + 1e-9


@pytest.mark.soundness
@given(st.integers(0, 2**32 - 1))
def test_the_calibrated_noise_leaves_no_more_bits(seed):
    samples = oracles.random_samples(np.random.default_rng(seed), 1)
    full = full_of([FiniteDistribution.uniform(x) for x in samples])
    noise_std = BITS.least_noise(whole(full))
    for pair in (samples, samples[::-1]):
        assert kullback_leibler(*pair, noise_std) <= 0.25 + 1e-9


@pytest.mark.soundness
@given(st.floats(0.1, 0.9), st.floats(0.1, 0.9), st.integers(1, 6), st.floats(0.5, 5.0))
def test_never_below_the_divergence_of_sums_of_rows(first, second, n_differing, noise_std):
    """All draws of the rows that differ: binomial numbers of ones, with noise."""
    spread = first * (1 - first) + second * (1 - second)
    rows = rows_of(
        shift=[second - first],
        spread=[[spread]],
        spans=[1.0],
        counts=[n_differing, n_differing**2],
    )
    bound = BITS.spent(whole(Full(dim=1, differences=rows)), noise_std)
    ones = np.arange(n_differing + 1)
    x = np.linspace(-12 * noise_std, n_differing + 12 * noise_std, 20_001)
    logs = []
    for share in (first, second):
        masses = [
            math.comb(n_differing, k) * share**k * (1 - share) ** (n_differing - k) for k in ones
        ]
        logs.append(logsumexp(-(((x[:, None] - ones) / noise_std) ** 2) / 2, b=masses, axis=1))
    step = (x[1] - x[0]) / noise_std / math.sqrt(2 * math.pi) / math.log(2)
    for p, q in (logs, logs[::-1]):
        assert float((np.exp(p) * (p - q)).sum() * step) <= bound * (1 + 1e-9) + 1e-9
