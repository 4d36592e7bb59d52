# SPDX-License-Identifier: Apache-2.0
"""Sinkhorn-Wasserstein: right if it converges, else an error; too small if the tolerance is."""

import math

import attrs
import numpy as np
import pytest
from scipy.optimize import minimize

from pufferslice import FiniteDistribution, Guarantee
from pufferslice.baselines import (
    SinkhornSettings,
    gwm_noise_std,
    sinkhorn,
    sinkhorn_noise,
    sinkhorn_w_infinity,
    w_infinity,
)
from pufferslice.errors import CalibrationError
from pufferslice.sensitivity.renyi import gaussian_envelope

RPP = Guarantee.unsliced(order=4, epsilon=1.0)
STRICT = SinkhornSettings(regularisation=0.3, tolerance=1e-9)


def clusters(here, there):
    """Of a hundred atoms, so many at the origin, the others at distance 10."""
    places = [[0.0, 0.0]] * here + [[6.0, 8.0]] * (100 - here)
    other = [[0.0, 0.0]] * there + [[6.0, 8.0]] * (100 - there)
    return FiniteDistribution.uniform(places), FiniteDistribution.uniform(other)


def gaussian_samples(rng, n, m, dim=2):
    first, second = rng.normal(size=(n, dim)), rng.normal(size=(m, dim)) + 0.5
    return FiniteDistribution.uniform(first), FiniteDistribution.uniform(second)


def least_entropy(first, second, threshold):
    """Min KL(pi || product) over couplings within the threshold, by its smooth dual."""
    allowed = np.linalg.norm(first.outputs[:, None] - second.outputs[None], axis=2) <= threshold
    a, b = first.counts / first.total, second.counts / second.total
    product = np.outer(a, b) * allowed

    def dual(potentials):
        f, g = potentials[: len(a)], potentials[len(a) :]
        plan = product * np.exp(f[:, None] + g[None])
        value = a @ f + b @ g - plan.sum() + 1
        slope = np.concatenate([a - plan.sum(axis=1), b - plan.sum(axis=0)])
        return -value, -slope

    start = np.zeros(len(a) + len(b))
    found = minimize(dual, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    return -found.fun


def test_known_entropy_of_separate_clusters(rng):
    """If every pair is admitted, the coupling is the product, and KL is 0; in two halves ln 2."""
    wide = SinkhornSettings(regularisation=0.3, tolerance=1e-9, thresholds=(100.0,))
    assert sinkhorn_w_infinity(*gaussian_samples(rng, 12, 9), wide).value == pytest.approx(100)
    settings = SinkhornSettings(regularisation=0.5, tolerance=1e-9, thresholds=(1.0, 10.0))
    found = sinkhorn_w_infinity(*clusters(50, 50), settings)
    assert found.threshold == 1.0
    assert found.value == pytest.approx(1 + 0.5 * math.log(2), rel=1e-9)


@pytest.mark.parametrize("threshold", [2.5, 4.0])
def test_entropy_against_the_dual_by_a_general_optimiser(rng, threshold):
    couple = gaussian_samples(rng, 14, 11)
    assert w_infinity(*couple) < threshold
    settings = SinkhornSettings(regularisation=1.0, tolerance=1e-10, thresholds=(threshold,))
    found = sinkhorn_w_infinity(*couple, settings)
    known = least_entropy(*couple, threshold)
    assert found.relative_entropy == pytest.approx(known, rel=1e-6, abs=1e-9)
    assert found.value == pytest.approx(threshold + known, rel=1e-6)


@pytest.mark.parametrize("regularisation", [0.1, 1.0])
def test_converged_estimates_are_not_below_the_exact_value(rng, regularisation):
    """A coupling within t exists only from W-infinity on, and entropy only adds."""
    first, second = gaussian_samples(rng, 30, 20)
    couple = attrs.evolve(first, counts=rng.integers(1, 4, 30)), second
    settings = SinkhornSettings(regularisation=regularisation, tolerance=1e-4)
    found = sinkhorn_w_infinity(*couple, settings)
    exact = w_infinity(*couple)
    assert found.value >= exact
    assert found.threshold >= exact
    assert found.marginal_violation <= 1e-4


@pytest.mark.soundness
def test_a_loose_tolerance_underestimates_and_the_noise_does_not_protect():
    """The risk that the paper warns of: 51 and 49 against 50 and 50, one has to go 10 far.

    Marginals that are off by 0.02 in sum pass a tolerance of 0.05, so the threshold 1, at which no
    coupling exists, is taken; the noise then costs 37 times the budget and more.
    """
    couple = clusters(51, 50)
    loose = SinkhornSettings(regularisation=0.5, tolerance=0.05, thresholds=(1.0, 10.0))
    found = sinkhorn_noise([couple], RPP, loose)
    assert found.exact_sensitivity == 10
    assert found.sensitivity < 1.4
    assert found.gap < -8.6
    assert 0 < found.marginal_violation <= 0.05
    true_cost = gaussian_envelope(4, np.asarray(10.0), found.noise_std)
    assert true_cost > 37 * RPP.epsilon
    assert found.noise_std < 0.17 * gwm_noise_std([couple], RPP)

    strict = SinkhornSettings(regularisation=0.5, tolerance=1e-3, thresholds=(1.0, 10.0))
    sound = sinkhorn_noise([couple, clusters(50, 50)], RPP, strict)
    assert sound.gap >= 0
    assert gaussian_envelope(4, np.asarray(10.0), sound.noise_std) <= RPP.epsilon


def test_no_convergence_is_an_error_with_the_violation(rng):
    couple = gaussian_samples(rng, 40, 40)
    short = SinkhornSettings(regularisation=0.1, tolerance=1e-6, max_iterations=2)
    with pytest.raises(CalibrationError, match=r"2 iterations.* [\d.e-]+"):
        sinkhorn_w_infinity(*couple, short)


@pytest.mark.parametrize("n", [10, 40])
def test_thresholds_below_the_exact_value_are_left_out(rng, n):
    """Just below W-infinity there is no coupling, and the estimate is the one from above."""
    couple = gaussian_samples(rng, n, n, dim=1)
    exact = w_infinity(*couple)
    both = (0.999 * exact, 1.2 * exact)
    settings = SinkhornSettings(regularisation=1e-3, tolerance=1e-4, thresholds=both)
    found = sinkhorn_w_infinity(*couple, settings)
    assert found.threshold == both[1]
    alone = SinkhornSettings(regularisation=1e-3, tolerance=1e-4, thresholds=both[:1])
    with pytest.raises(CalibrationError, match="no threshold"):
        sinkhorn_w_infinity(*couple, alone)


def test_potentials_beyond_the_floats_are_summed_again(rng, monkeypatch):
    """The same sums whether scaled by the largest of all or by their own largest."""
    mask = (rng.uniform(size=(30, 20)) < 0.5).astype(np.uint8)
    mask[0], logs = 1, rng.normal(size=30) * 400
    found = sinkhorn._log_sums(mask, np.ascontiguousarray(mask.T), logs)
    known = [np.logaddexp.reduce(logs[column > 0]) for column in mask.T]
    np.testing.assert_allclose(found, known, rtol=1e-12)
