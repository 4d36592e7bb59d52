# SPDX-License-Identifier: Apache-2.0
"""The draws follow the discrete Gaussian, and would be seen not to if they did not.

One threshold for all: a right distribution falls below it once in a thousand million runs, each
wrong distribution here is below it by many orders of magnitude.
"""

import numpy as np
import pytest
from scipy import special, stats

from pufferslice._core.sampler import SIGMA_INT, SeededTestNoise

pytestmark = pytest.mark.statistical

THRESHOLD = 1e-9
SIZE = 1_000_000


@pytest.fixture(scope="module")
def draws(seed):
    return SeededTestNoise(seed=seed).draw(SIZE)


@pytest.mark.soundness
def test_noise_has_the_certified_scale(draws):
    p = {
        k: stats.kstest(draws[:100_000], stats.norm(scale=k * SIGMA_INT).cdf).pvalue
        for k in (0.9, 1.0, 1.1)
    }
    assert p[1.0] > THRESHOLD
    assert p[0.9] < THRESHOLD
    assert p[1.1] < THRESHOLD


@pytest.mark.soundness
def test_mean_and_variance(draws):
    scaled = draws / SIGMA_INT
    assert mean_p(scaled) > THRESHOLD
    assert mean_p(scaled + 0.01) < THRESHOLD
    assert variance_p(scaled) > THRESHOLD
    assert variance_p(1.01 * scaled) < THRESHOLD
    assert variance_p(0.99 * scaled) < THRESHOLD


@pytest.mark.soundness
def test_every_half_step_of_the_base_table_has_its_probability(draws):
    """Half steps see the acceptance, which only tilts the distribution inside a step."""
    n_cells = 2 * 16 * 4
    observed = np.bincount(np.minimum(np.abs(draws) >> 39, n_cells), minlength=n_cells + 1)
    edges = np.arange(n_cells + 1) / 32
    right = np.append(-np.diff(special.erfc(edges / np.sqrt(2))), special.erfc(4 / np.sqrt(2)))
    steps = np.exp(-((np.arange(n_cells) // 2 / 16.0) ** 2) / 2)
    never_rejected = np.append(steps * (1 - right[-1]) / steps.sum(), right[-1])
    assert chi_square_p(observed, right) > THRESHOLD
    assert chi_square_p(observed, never_rejected) < THRESHOLD


@pytest.mark.parametrize("modulus", [2, 3, 16])
def test_residues_are_uniform(draws, modulus):
    uniform = np.full(modulus, 1 / modulus)
    one_in_fifty_coarse = draws - draws % modulus * (np.arange(SIZE) % 50 == 0)
    assert chi_square_p(np.bincount(draws % modulus), uniform) > THRESHOLD
    assert chi_square_p(np.bincount(one_in_fifty_coarse % modulus), uniform) < THRESHOLD


def test_signs_are_symmetric_also_far_out(draws):
    for part in (draws, draws[np.abs(draws) > 2 * SIGMA_INT]):
        assert sign_p(np.count_nonzero(part > 0), len(part)) > THRESHOLD
    assert sign_p(int(0.51 * SIZE), SIZE) < THRESHOLD


def test_neighbours_are_independent(draws):
    scaled = draws / SIGMA_INT
    leaning = scaled[1:] + 0.01 * scaled[:-1]
    assert correlation_p(scaled[1:], scaled[:-1]) > THRESHOLD
    assert correlation_p(scaled[1:] ** 2, scaled[:-1] ** 2) > THRESHOLD
    assert correlation_p(leaning, scaled[:-1]) < THRESHOLD


def mean_p(values):
    return 2 * stats.norm.sf(abs(values.mean()) * np.sqrt(len(values)))


def variance_p(values):
    total = np.sum(values**2)
    tails = stats.chi2.cdf(total, len(values)), stats.chi2.sf(total, len(values))
    return 2 * min(tails)


def chi_square_p(observed, probabilities):
    return stats.chisquare(observed, observed.sum() * probabilities).pvalue


def sign_p(positive, size):
    return stats.binomtest(positive, size).pvalue


def correlation_p(first, second):
    return stats.pearsonr(first, second).pvalue
