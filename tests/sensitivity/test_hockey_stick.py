# SPDX-License-Identifier: Apache-2.0
"""Mean deltas at a random distance: against brute force, and never below a mean."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from pufferslice.sensitivity.hockey_stick import log_gaussian_delta, log_peaks, mean_delta
from pufferslice.sensitivity.renyi import gaussian_delta

EPSILONS = st.floats(0.0, 20.0)
RATES = st.floats(math.log(1e-3), math.log(1e3)).map(math.exp)
SQUARES = st.floats(math.log(1e-6), math.log(1e3)).map(math.exp)


def exact_log_delta(ratio, epsilon):
    with mpmath.workdps(80):
        r, e = mpmath.mpf(ratio), mpmath.mpf(epsilon)
        near, far = mpmath.ncdf(r / 2 - e / r), mpmath.ncdf(-r / 2 - e / r)
        return float(mpmath.log(near - mpmath.exp(e) * far))


@pytest.mark.soundness
@given(SQUARES, EPSILONS)
def test_a_logarithm_is_within_its_error(square, epsilon):
    ratio = math.sqrt(square)
    found, error = log_gaussian_delta(np.array(ratio), epsilon)
    if error < 1e-3:
        assert abs(float(found) - exact_log_delta(ratio, epsilon)) <= error


@pytest.mark.soundness
@given(EPSILONS, RATES)
def test_a_peak_is_that_of_a_grid(epsilon, rate):
    (bound,) = log_peaks(epsilon, np.array([rate]))
    q = np.geomspace(1e-8, 1e5, 400_001)
    logs, errors = log_gaussian_delta(np.sqrt(q), epsilon)
    best = np.where(errors < 1e-4, logs - rate * q, -np.inf).max()
    assert best <= bound <= best + 1e-4 * (1 + abs(best))


@pytest.mark.soundness
@given(EPSILONS, SQUARES)
def test_a_mean_is_that_of_two_points(epsilon, square):
    """The least concave function above another is reached by two points, one of them 0 or not."""
    bound = mean_delta(np.array([square]), epsilon).item()
    q = np.append(square, np.geomspace(square, square + 400 * (1 + epsilon), 200_000))
    best = (gaussian_delta(np.sqrt(q), epsilon) * (square / q)).max()
    assert best * (1 - 1e-12) <= bound <= best * (1 + 1e-4) + 1e-12


@pytest.mark.soundness
@given(st.integers(0, 2**32 - 1), EPSILONS, RATES)
def test_never_below_the_mean_over_random_distances(seed, epsilon, rate):
    rng = np.random.default_rng(seed)
    squares, masses = rng.exponential(rng.uniform(0.01, 9), 6), rng.dirichlet(np.ones(6))
    truth = float(masses @ gaussian_delta(np.sqrt(squares), epsilon))
    assert truth <= mean_delta(masses @ squares, epsilon).item() * (1 + 1e-12)
    (peak,) = log_peaks(epsilon, np.array([rate]))
    assert math.log(truth + 1e-300) <= peak + logsumexp(rate * squares, b=masses) + 1e-12


def test_known_answers():
    """Two Gaussians at a distance of 1 or 3: at epsilon 0 the total variation; lines from 0."""
    found = mean_delta(np.array([1.0, 9.0]), 0.0)
    assert found == pytest.approx([math.erf(1 / math.sqrt(8)), math.erf(3 / math.sqrt(8))])
    small, large = mean_delta(np.array([0.01, 0.1]), 1.0)
    assert large == pytest.approx(10 * small)
    assert mean_delta(np.array([1e4]), 1.0).item() == pytest.approx(1.0)
