# SPDX-License-Identifier: Apache-2.0
"""A plan holds everything that the cost of a run depends on, and refuses unsound requests."""

import json
import math
import re

import attrs
import numpy as np
import pytest

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError
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
from pufferslice.learning.plan import MOST_STEPS, SignalToNoise, recipe_learning_rates, schedule_of

POISSON = Poisson(n_records=50_000, rate=0.01024)
WITHOUT = WithoutReplacement(n_records=50_000, batch_size=512)
LAYERS = LayerClipping(
    names=("body", "head"), norms=(0.5, 2.0), sizes=(100, 10), allocation="least_noise"
)


def planned(accountant, *, epsilon=1.0, n_steps=3_920, sampling=POISSON, **changes):
    target = Guarantee(notion=accountant.notion, order=16, epsilon=epsilon)
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
        "order": 4,
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


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint", "unsliced", "average_over_batches"])
def test_an_accountant_claims_only_its_own_notion(notion):
    target = Guarantee(notion=notion, order=16, epsilon=1.0)
    if notion != "average_over_batches":
        with pytest.raises(ArgumentError, match=r"average_over_batches.*worst_case, log_moment or"):
            planned(MeanSquare(), target=target)
    if notion != "unsliced":
        with pytest.raises(ArgumentError, match=r"use Guarantee\.unsliced"):
            planned(LogMoment(), target=target)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"accountant": MeanSquare(), "differing": at_most(3)}, "fixed set of differing records"),
        ({"order": 1}, "order must be"),
        ({"order": "4"}, "order must be"),
        ({"noise_multipliers": []}, "noise_multipliers must list"),
        ({"noise_multipliers": [1.0, math.nan]}, "noise_multiplier must be"),
        ({"noise_multipliers": [1.0, math.inf]}, "noise_multiplier must be"),
        ({"noise_multipliers": ["x"]}, "expected numbers"),
        ({"differing": exactly(101)}, "101 records differ, but there are only 100"),
        ({"clip_norm": 0.0}, "clip_norm must be"),
        ({"clip_norm": "1"}, "clip_norm must be"),
    ],
)
def test_bad_arguments(changes, match):
    with pytest.raises(ArgumentError, match=match):
        noisy(**changes)


PARTS = {
    "differing": [4],
    "sampling": [0.1],
    "accountant": ["amplified", Amplified],
    "target": [8.0],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in PARTS.items() for v in values])
def test_invalid_parts_are_named(name, value):
    target = Guarantee.unsliced(order=4, epsilon=1.0)
    parts = {"differing": exactly(3), "sampling": POISSON, "accountant": Amplified()}
    with pytest.raises(ArgumentError, match=rf"{name}\b.*{re.escape(repr(value))}"):
        plan_training(**(parts | {"target": target, "clip_norm": 1.0, "n_steps": 2, name: value}))
    if name != "target":
        with pytest.raises(ArgumentError, match=f"{name} must be a value such as"):
            noisy(**{name: value})


@pytest.mark.parametrize("n_steps", [0, 1.5, MOST_STEPS + 1])
def test_bad_numbers_of_steps(n_steps):
    with pytest.raises(ArgumentError, match="n_steps must be"):
        planned(LogMoment(), n_steps=n_steps)


def test_the_least_noise_for_a_target():
    plan = planned(Amplified(), epsilon=80)
    assert plan.noise_multipliers == pytest.approx(np.full(3_920, 8.10979814), rel=1e-9)
    assert 80 * (1 - 1e-9) < plan.guarantee().epsilon <= 80
    with pytest.raises(ArgumentError, match="needs Poisson sampling"):
        planned(Amplified(), sampling=WITHOUT)


PLANS = {
    "constant": lambda: noisy(noise_multipliers=np.full(1_000, 1 / 3)),
    "schedule": noisy,
    "binomial": lambda: noisy(differing=binomial(n_records=100, mismatch_probability=0.05)),
    "pmf": lambda: noisy(differing=from_pmf({0: 0.75, 20: 0.25})),
    "at_most": lambda: noisy(differing=at_most(4), accountant=WorstCase()),
    "layers": lambda: noisy(clip_norm=LAYERS, accountant=Amplified()),
    "mean_square": lambda: noisy(accountant=MeanSquare()),
    "without": lambda: noisy(sampling=WithoutReplacement(n_records=100, batch_size=9)),
    "with": lambda: noisy(sampling=WithReplacement(n_records=100, batch_size=9), order=1.25),
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


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 2}, "the plan has version 2"),
        ({"format": "other"}, "not a training plan"),
        ({"n_steps": 4}, "noise_multipliers must have one entry"),
        ({"n_steps": 10**15, "noise_multipliers": [1.0]}, "n_steps must be at most"),
        ({"noise_multipliers": None}, "noise_multiplier"),
        ({"accountant": "kind"}, "accountant must be one of"),
        ({"accountant": "amplified", "sampling": {
            "kind": "without_replacement", "n_records": 100, "batch_size": 5
        }}, "needs Poisson"),
        ({"block": 0}, "block must be"),
        ({"non_finite": "skip"}, "non_finite must be one of"),
        ({"clipping": {"kind": "flat"}}, "the plan is incomplete"),
        ({"sampling": "poisson"}, "the plan is incomplete"),
        ({"differing": {"kind": "binomial", "n_records": 500, "mismatch_probability": 0.5}},
         "only 100"),
    ],
)  # fmt: skip
def test_invalid_documents(changes, match):
    with pytest.raises(ArgumentError, match=match):
        TrainingPlan.from_json({**noisy().to_json(), **changes})


def test_missing_parts():
    for document in (None, [], {}):
        with pytest.raises(ArgumentError, match="not a training plan"):
            TrainingPlan.from_json(document)
    whole = noisy().to_json()
    for part in set(whole) - {"format", "version"}:
        rest = {name: value for name, value in whole.items() if name != part}
        with pytest.raises(ArgumentError, match=f"the plan is incomplete: KeyError at '{part}'"):
            TrainingPlan.from_json(rest)


def test_a_plan_is_frozen():
    plan = noisy()
    with pytest.raises(ValueError, match="read-only"):
        plan.noise_multipliers[0] = 1.0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.order = 2.0
    assert repr(plan).startswith("TrainingPlan(n_steps=3, ")


def test_numbers_of_numpy_can_be_written():
    plan = plan_with_noise(
        differing=exactly(1),
        sampling=Poisson(n_records=10, rate=0.5),
        clip_norm=FlatClipping(norm=np.float32(0.5)),
        noise_multipliers=np.array([2.0]),
        accountant=Amplified(),
        order=2,
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
        for change in ("larger batches", "fewer trainable parameters", "fewer records", "epsilon"):
            assert change in advice


@pytest.mark.parametrize("sizes", [[], [1, 2], [0], [1.5]])
def test_invalid_sizes(sizes):
    with pytest.raises(ArgumentError, match="size"):
        signal_to_noise(signal_plan(), sizes)


def test_the_schedule_of_the_recipe():
    rates = recipe_learning_rates(peak=0.2, n_steps=3920, n_warmup_steps=196)
    assert len(rates) == 3920
    assert rates[0] == pytest.approx(0.2 / 196)
    assert rates[195] == rates[196] == 0.2
    assert rates[196 + (3920 - 196) // 2] == pytest.approx(0.1, rel=1e-12)
    last = 0.1 * (1 + math.cos(math.pi * 3723 / 3724))
    assert rates[-1] == pytest.approx(last, rel=1e-9)
    assert recipe_learning_rates(peak=1.0, n_steps=2, n_warmup_steps=0) == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    "change", [{"peak": 0.0}, {"n_steps": 0}, {"n_warmup_steps": -1}, {"n_warmup_steps": 10}]
)
def test_a_wrong_schedule_of_the_recipe(change):
    with pytest.raises(ArgumentError, match=f"{next(iter(change))} must be"):
        recipe_learning_rates(**{"peak": 1.0, "n_steps": 10, "n_warmup_steps": 2} | change)
