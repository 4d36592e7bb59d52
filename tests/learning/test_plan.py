# SPDX-License-Identifier: Apache-2.0
"""A plan holds everything that the cost of a run depends on, and refuses unsound requests."""

import json
import math

import attrs
import numpy as np
import pytest

from pufferslice.claims import Measure
from pufferslice.learning import (
    Amplified,
    FlatClipping,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    TrainingPlan,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    at_most,
    binomial,
    exactly,
    from_pmf,
    plan_training,
    plan_with_noise,
    signal_to_noise,
)
from pufferslice.learning.plan import SignalToNoise, recipe_learning_rates, schedule_of

POISSON = Poisson(n_records=50_000, rate=0.01024)
WITHOUT = WithoutReplacement(n_records=50_000, batch_size=512)
LAYERS = LayerClipping(
    names=("body", "head"), norms=(0.5, 2.0), sizes=(100, 10), allocation="least_noise"
)


def planned(accountant, *, epsilon=1.0, n_steps=3_920, sampling=POISSON, **changes):
    target = accountant.claim(order=16, epsilon=epsilon)
    fields = {"differing": exactly(20), "sampling": sampling, "clip_norm": 1.0}
    return plan_training(
        **{**fields, "n_steps": n_steps, "accountant": accountant, "target": target, **changes}
    )


def noisy(**changes):
    fields = {
        "differing": exactly(3),
        "sampling": Poisson(n_records=100, rate=0.1),
        "clip_norm": 0.7,
        "noise_multipliers": np.array([20.0, 30.0, 30.0]),
        "accountant": LogMoment(),
        "measure": Measure.renyi(order=4),
    }
    return plan_with_noise(**{**fields, **changes})


@pytest.mark.parametrize("norm", [1e-3, 1e3])
def test_the_clip_norm_changes_noise_but_not_cost(norm):
    plan = noisy(clip_norm=norm)
    assert plan.guarantee() == noisy().guarantee()
    assert plan.noise_stds(0) == pytest.approx([20.0 * norm], rel=1e-15)
    assert plan.noise_stds(1) == pytest.approx([30.0 * norm], rel=1e-15)


def test_noise_of_layers():
    # Weights sqrt(d) C are 5 and 6.32...; the ratios are the roots of their sum over each.
    weights = np.array([10 * 0.5, math.sqrt(10) * 2.0])
    expected = 20.0 * np.sqrt(weights.sum() / weights) * np.array([0.5, 2.0])
    assert noisy(clip_norm=LAYERS).noise_stds(0) == pytest.approx(expected, rel=1e-14)


def test_the_least_noise_for_a_target():
    plan = planned(Amplified(), epsilon=80)
    assert plan.noise_multipliers == pytest.approx(np.full(3_920, 8.10979814), rel=1e-9)
    assert 80 * (1 - 1e-9) < plan.guarantee().epsilon <= 80


PLANS = {
    "constant": lambda: noisy(noise_multipliers=np.full(1_000, 1 / 3)),
    "schedule": noisy,
    "binomial": lambda: noisy(differing=binomial(n_records=100, mismatch_probability=0.05)),
    "pmf": lambda: noisy(differing=from_pmf({0: 0.75, 20: 0.25})),
    "at_most": lambda: noisy(differing=at_most(4), accountant=WorstCase()),
    "layers": lambda: noisy(clip_norm=LAYERS, accountant=Amplified()),
    "mean_square": lambda: noisy(accountant=MeanSquare(), measure=Measure.over_batches(order=4)),
    "without": lambda: noisy(sampling=WithoutReplacement(n_records=100, batch_size=9)),
    "with": lambda: noisy(
        sampling=WithReplacement(n_records=100, batch_size=9), measure=Measure.renyi(order=1.25)
    ),
    "guess": lambda: noisy(measure=Measure.guess()),
    "bits": lambda: noisy(accountant=MeanSquare(), measure=Measure.information()),
    "epsilon": lambda: noisy(accountant=Amplified(), measure=Measure.epsilon_delta(delta=1e-6)),
    "block": lambda: attrs.evolve(noisy(), block=3),
    "stop": lambda: attrs.evolve(noisy(), non_finite="stop"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_read_back(name):
    plan = PLANS[name]()
    back = TrainingPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert back == plan
    assert back.to_json() == plan.to_json()
    assert back.guarantee() == plan.guarantee()


def test_a_constant_schedule_is_written_once():
    assert schedule_of(2.0, 3).tolist() == [2.0, 2.0, 2.0]
    assert PLANS["constant"]().to_json()["noise_multipliers"] == [1 / 3]
    assert noisy().to_json()["noise_multipliers"] == [20.0, 30.0, 30.0]


def test_a_plan_is_frozen():
    plan = noisy()
    with pytest.raises(ValueError, match="read-only"):
        plan.noise_multipliers[0] = 1.0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.block = 2
    assert repr(plan).startswith("TrainingPlan(n_steps=3, ")


def test_numbers_of_numpy_can_be_written():
    plan = plan_with_noise(
        differing=exactly(1),
        sampling=Poisson(n_records=10, rate=0.5),
        clip_norm=FlatClipping(norm=np.float32(0.5)),
        noise_multipliers=np.array([2.0]),
        accountant=Amplified(),
        measure=Measure.renyi(order=2),
    )
    written = json.dumps(attrs.evolve(plan, block=np.int64(4)).to_json())
    assert TrainingPlan.from_json(json.loads(written)).clipping.norm == 0.5


def signal_plan(clip_norm=1.0, noise_multipliers=(2.0,)):
    return noisy(
        sampling=Poisson(n_records=1_000, rate=0.1),
        clip_norm=clip_norm,
        noise_multipliers=noise_multipliers,
    )


@pytest.mark.parametrize("clip_norm", [1e-200, 7.0, 1e200])
def test_flat_clipping(clip_norm):
    """100 examples of norm C against noise 2 C in each of 400 coordinates; C cancels."""
    ratio = signal_to_noise(signal_plan(clip_norm), [400])
    assert ratio.per_step == pytest.approx(100 / (2 * 20), rel=1e-12)
    assert ratio.whole_run == ratio.per_step
    assert signal_to_noise(signal_plan(clip_norm), [1]).per_step == pytest.approx(50, rel=1e-12)


def test_layers_as_their_noise_is():
    layers = LayerClipping(
        names=("a", "b"), norms=(3.0, 4.0), sizes=(10, 90), allocation="least_noise"
    )
    plan = signal_plan(layers)
    stds = plan.noise_stds(0)
    noise = np.sqrt(10 * stds[0] ** 2 + 90 * stds[1] ** 2)
    assert signal_to_noise(plan, [10, 90]).per_step == pytest.approx(100 * 5 / noise, rel=1e-12)


def test_noise_that_changes_counts_by_its_mean_square():
    ratio = signal_to_noise(signal_plan(noise_multipliers=[1.0, 7.0]), [4])
    assert ratio.per_step == pytest.approx(100 / (2 * 5), rel=1e-12)
    drawn = np.random.default_rng(3).normal(size=(2, 20_000, 4)) * [[[1.0]], [[7.0]]]
    size = np.sqrt((drawn.sum(axis=0) ** 2).sum(axis=1).mean())
    assert ratio.whole_run == pytest.approx(2 * 100 / size, rel=0.02)


def test_advice_where_the_noise_is_larger():
    assert SignalToNoise(per_step=1.0, whole_run=10.0).advice is None
    some = SignalToNoise(per_step=0.5, whole_run=5.0).advice
    none = SignalToNoise(per_step=0.1, whole_run=0.5).advice
    assert "average over many steps" in some
    assert "little or nothing" in none
    for advice in (some, none):
        for change in ("larger batches", "fewer trainable parameters", "fewer records", "weaker"):
            assert change in advice


def test_the_schedule_of_the_recipe():
    rates = recipe_learning_rates(peak=0.2, n_steps=3920, n_warmup_steps=196)
    assert len(rates) == 3920
    assert rates[0] == pytest.approx(0.2 / 196)
    assert rates[195] == rates[196] == 0.2
    assert rates[196 + (3920 - 196) // 2] == pytest.approx(0.1, rel=1e-12)
    last = 0.1 * (1 + math.cos(math.pi * 3723 / 3724))
    assert rates[-1] == pytest.approx(last, rel=1e-9)
    assert recipe_learning_rates(peak=1.0, n_steps=2, n_warmup_steps=0) == pytest.approx([1, 0.5])
