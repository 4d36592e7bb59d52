# SPDX-License-Identifier: Apache-2.0
"""Noise over layers: every accountant uses the effective multiplier."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize

from pufferslice.claims import Measure
from pufferslice.learning import (
    Amplified,
    FlatClipping,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WorstCase,
    effective_multiplier,
    exactly,
    plan_with_noise,
    run_cost,
)
from pufferslice.learning.clipping import clipping_of

SIZES = (1_000, 30, 7)
NORMS = (0.5, 2.0, 0.1)


def layers(allocation, norms=NORMS, sizes=SIZES):
    names = tuple(f"layer {k}" for k in range(len(norms)))
    return LayerClipping(names=names, norms=norms, sizes=sizes, allocation=allocation)


@pytest.mark.parametrize(
    ("multipliers", "effective"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0], math.sqrt(0.8)),
        ([3e-200, 4e-200], 2.4e-200),
        ([3e200, 4e200], 2.4e200),
    ],
)
def test_effective_multiplier_by_hand(multipliers, effective):
    assert effective_multiplier(np.array(multipliers)) == pytest.approx(effective, rel=1e-15)


def test_least_noise_by_hand():
    # Weights sqrt(d) C are 2 and 6, so the ratios are sqrt(8 / 2) and sqrt(8 / 6).
    assert FlatClipping(norm=2.0).ratios.tolist() == [1.0]
    assert layers("equal").ratios == pytest.approx([math.sqrt(3)] * 3, rel=1e-15)
    ratios = layers("least_noise", norms=(1.0, 2.0), sizes=(4, 9)).ratios
    assert ratios == pytest.approx([2.0, math.sqrt(4 / 3)], rel=1e-15)


def total_noise(ratios, norms=NORMS, sizes=SIZES):
    return float(np.sum(np.array(sizes) * (np.asarray(ratios) * np.array(norms)) ** 2))


def test_least_noise_is_optimal():
    """Over the shares w = 1 / ratio^2 of the cost, by a general minimiser."""

    def noise_of(logits):
        shares = np.exp(logits - np.logaddexp.reduce(logits))
        return math.log(total_noise(shares**-0.5))

    result = minimize(noise_of, np.zeros(3), method="BFGS", options={"gtol": 1e-10})
    best = total_noise(layers("least_noise").ratios)
    assert math.exp(result.fun) == pytest.approx(best, rel=1e-9)
    assert best < 0.9 * total_noise(layers("equal").ratios)


@pytest.mark.parametrize("allocation", ["equal", "least_noise"])
@pytest.mark.parametrize(
    "accountant",
    [WorstCase(), MeanSquare(), LogMoment(), Amplified()],
    ids=lambda value: value.name,
)
def test_layers_cost_what_one_layer_costs_at_the_effective_multiplier(accountant, allocation):
    """Noise read off the plan, layer by layer, then back to one multiplier."""
    design = Poisson(n_records=100, rate=0.1)
    measure = Measure.of(accountant.claim(order=4, epsilon=1.0))
    common = {"differing": exactly(3), "sampling": design, "accountant": accountant}
    common["measure"] = measure
    schedule = np.array([20.0, 30.0])
    plan = plan_with_noise(clip_norm=layers(allocation), noise_multipliers=schedule, **common)
    by_step = [effective_multiplier(plan.noise_stds(t) / np.array(NORMS)) for t in range(2)]
    cost = run_cost(accountant, 4, design, exactly(3), np.array(by_step))
    assert plan.guarantee().epsilon == pytest.approx(cost, rel=1e-12)
    flat = plan_with_noise(clip_norm=7.0, noise_multipliers=schedule, **common)
    assert flat.guarantee() == plan.guarantee()


def test_two_layers_amplified_by_plane_quadrature():
    """Both layers at once, each with its own noise, against the effective multiplier."""
    order, rate, multipliers = 3.0, 0.2, np.array([2.0, 3.0])
    weights = np.array([1 - rate, rate])
    shifts = np.array([0.0, 1.0])[:, None] / multipliers

    def moment(second):
        def inner(first):
            point = np.array([first, second])
            p = weights @ np.exp(-((point - shifts) ** 2).sum(axis=1) / 2)
            q = weights @ np.exp(-((point + shifts) ** 2).sum(axis=1) / 2)
            return p**order * q ** (1 - order) / (2 * math.pi)

        return quad(inner, -12, 12, epsabs=1e-12)[0]

    by_plane = math.log(quad(moment, -12, 12, epsabs=1e-12)[0]) / (order - 1)
    z = effective_multiplier(multipliers)
    design = Poisson(n_records=10, rate=rate)
    by_line = run_cost(Amplified(), order, design, exactly(1), np.array([z]))
    assert by_line == pytest.approx(by_plane, rel=1e-7)


@pytest.mark.parametrize(
    "clipping", [FlatClipping(norm=0.5), layers("equal"), layers("least_noise")], ids=str
)
def test_descriptions_read_back(clipping):
    assert clipping_of(clipping.description()) == clipping
