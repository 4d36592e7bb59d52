# SPDX-License-Identifier: Apache-2.0
"""Property inference on resampled tables, by the best test there is: from exact moments, released
ones, and models of them, which are functions of released moments."""

import numpy as np
import pytest
from tests import real_tables

from pufferslice import Guarantee, certify_release, datasets
from pufferslice.data.frames import frame_of
from pufferslice.releases.derived import noise_covariance

pytestmark = [pytest.mark.soundness, pytest.mark.statistical]

N_ROWS, N_DIFFERING, N_TABLES, CLAIM, SURE = 3_000, 150, 400, 0.64, 5.0


@pytest.fixture(scope="module")
def certified():
    scenario = real_tables.moments(N_ROWS)
    return scenario, certify_release(scenario, Guarantee.guess(at_most=CLAIM))


@pytest.fixture(scope="module")
def groups(certified):
    """The numbers of women and of men, in the columns of the query."""
    table = datasets.adult_years()[0]
    numbers = certified[0].query.features.numbers(frame_of(table))
    is_woman = np.array(table["sex"]) == "Female"
    return numbers[is_woman], numbers[~is_woman]


def guessed(groups, n_women, n_rows, noise, seed):
    """Share of right guesses by a ratio of Gaussian likelihoods, and its standard error.

    Tables have `n_rows` unknown rows, of which one or the other number are women; means over all
    rows get noise of this covariance. The attack knows the moments of both worlds.
    """
    rng, laws, outputs = np.random.default_rng(seed), [], []
    for number in n_women:
        sizes = number, n_rows - number
        mean = sum(k * rows.mean(axis=0) for k, rows in zip(sizes, groups, strict=True)) / N_ROWS
        cov = sum(k * np.cov(rows.T) for k, rows in zip(sizes, groups, strict=True)) / N_ROWS**2
        sums = sum(
            np.array([rows[rng.integers(len(rows), size=k)].sum(axis=0) for _ in range(N_TABLES)])
            for k, rows in zip(sizes, groups, strict=True)
        )
        outputs.append(
            sums / N_ROWS + rng.multivariate_normal(np.zeros(len(noise)), noise, N_TABLES)
        )
        laws.append((mean, cov + noise + 1e-12 * np.diag(np.diagonal(cov))))

    def log_likelihood(values, mean, cov):
        apart = np.linalg.solve(np.linalg.cholesky(cov), (values - mean).T)
        return -((apart**2).sum(axis=0) + np.linalg.slogdet(cov)[1]) / 2

    first, second = (
        log_likelihood(values, *laws[1]) - log_likelihood(values, *laws[0]) for values in outputs
    )
    return (np.mean(first < 0) + np.mean(second >= 0)) / 2, 0.5 / np.sqrt(2 * N_TABLES)


WHOLE = (900, 1_050), N_ROWS  # 30 % and 35 % of women
KNOWN = (0, N_DIFFERING), N_DIFFERING  # all rows are known but those that make the difference


@pytest.mark.parametrize("world", [WHOLE, KNOWN], ids=["whole", "known"])
def test_exact_moments_reveal_the_share(groups, world):
    assert guessed(groups, *world, np.zeros((groups[0].shape[1],) * 2), 12)[0] > 0.9


@pytest.mark.parametrize("world", [WHOLE, KNOWN], ids=["whole", "known"])
def test_released_moments_do_not(certified, groups, world, seed):
    noise = noise_covariance(certified[1])
    best, error = guessed(groups, *world, noise, seed)
    assert best <= CLAIM + SURE * error


def test_a_quarter_of_the_noise_is_not_enough(certified, groups):
    best, error = guessed(groups, *KNOWN, noise_covariance(certified[1]) / 16, 13)
    assert best > CLAIM + SURE * error
