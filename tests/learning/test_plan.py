# SPDX-License-Identifier: Apache-2.0
"""A plan ties what a run's cost depends on together, and refuses what cannot be sound."""

import json
import math

import attrs
import numpy as np
import pytest

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError, CalibrationError
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
)
from pufferslice.learning.plan import MOST_STEPS, schedule_of

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


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("accountant", "sampling", "epsilon", "multiplier"),
    [
        (WorstCase(), WITHOUT, 1, 7083.501959),
        (MeanSquare(), WITHOUT, 1, 175.153412),
        (LogMoment(), WITHOUT, 1, 176.4677711),
        (Amplified(), POISSON, 1, 72.53368006),
        (LogMoment(), WITHOUT, 80, 46.08305796),
        (Amplified(), POISSON, 80, 8.10979814),
    ],
)
def test_known_multipliers(accountant, sampling, epsilon, multiplier):
    plan = planned(accountant, epsilon=epsilon, sampling=sampling)
    assert plan.noise_multipliers[0] == pytest.approx(multiplier, rel=1e-9)
    assert plan.n_steps == 3_920
    assert plan.guarantee().epsilon <= epsilon
    assert plan.guarantee().epsilon == pytest.approx(epsilon, rel=1e-9)
    assert plan.guarantee().notion == accountant.notion


def test_a_run_costs_the_mixture_over_differing_records():
    sampling = WithoutReplacement(n_records=100, batch_size=10)
    differing = binomial(n_records=100, mismatch_probability=0.05)
    plan = noisy(differing=differing, sampling=sampling, noise_multipliers=np.full(50, 40.0))
    assert plan.guarantee().epsilon == pytest.approx(0.204848053582437, rel=1e-12)
    assert plan.costs()[5] == pytest.approx(0.173487203414766, rel=1e-12)


def test_a_schedule_costs_the_sum_of_its_steps():
    whole = noisy().guarantee().epsilon
    parts = [noisy(noise_multipliers=[z]).guarantee().epsilon for z in (20.0, 30.0, 30.0)]
    assert whole == pytest.approx(sum(parts), rel=1e-13)


@pytest.mark.parametrize("norm", [1e-3, 1.0, 1e3])
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


@pytest.mark.parametrize(
    ("sampling", "divisor"),
    [
        (Poisson(n_records=100, rate=0.1), 10.0),
        (WithoutReplacement(n_records=100, batch_size=7), 7.0),
        (WithReplacement(n_records=100, batch_size=7), 7.0),
    ],
)
def test_the_divisor_is_public(sampling, divisor):
    assert noisy(sampling=sampling).divisor == pytest.approx(divisor, rel=1e-15)


@pytest.mark.soundness
def test_what_cannot_be_sound_is_refused():
    random = binomial(n_records=100, mismatch_probability=0.05)
    with pytest.raises(ArgumentError, match="fixed set of differing records"):
        noisy(accountant=MeanSquare(), differing=random)
    with pytest.raises(ArgumentError, match="fixed set of differing records"):
        noisy(accountant=MeanSquare(), differing=at_most(3))
    for design in (WithoutReplacement, WithReplacement):
        sampling = design(n_records=100, batch_size=10)
        with pytest.raises(ArgumentError, match="needs Poisson sampling"):
            noisy(accountant=Amplified(), sampling=sampling)
    with pytest.raises(ArgumentError, match="fixed set of differing records"):
        planned(MeanSquare(), differing=at_most(20))
    with pytest.raises(ArgumentError, match="needs Poisson sampling"):
        planned(Amplified(), sampling=WITHOUT)


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint", "unsliced"])
def test_mean_square_never_claims_more(notion):
    target = Guarantee(notion=notion, order=16, epsilon=1.0)
    with pytest.raises(ArgumentError, match=r"average_over_batches.*worst_case, log_moment or"):
        planned(MeanSquare(), target=target)


@pytest.mark.parametrize("notion", ["average", "joint", "average_over_batches"])
def test_other_accountants_claim_the_unsliced_run(notion):
    target = Guarantee(notion=notion, order=16, epsilon=1.0)
    with pytest.raises(ArgumentError, match=r"use Guarantee.unsliced\(\.\.\.\)"):
        planned(LogMoment(), target=target)


def test_the_accountant_is_required():
    with pytest.raises(TypeError, match="accountant"):
        plan_training(
            differing=exactly(1),
            sampling=POISSON,
            clip_norm=1.0,
            n_steps=1,
            target=Guarantee.unsliced(order=2, epsilon=1.0),
        )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"order": 1}, "order must be a finite number greater than 1"),
        ({"order": math.nan}, "order must be"),
        ({"order": "4"}, "order must be a finite number greater than 1, got '4'"),
        ({"noise_multipliers": []}, "at least one step"),
        ({"noise_multipliers": 5.0}, "one number per step"),
        ({"noise_multipliers": [[1.0]]}, "one number per step"),
        ({"noise_multipliers": [1.0, 0.0]}, "noise_multiplier must be a finite number greater"),
        ({"noise_multipliers": [1.0, -1.0]}, "noise_multiplier must be a finite number greater"),
        ({"noise_multipliers": [1.0, math.nan]}, "noise_multiplier must be a finite number"),
        ({"noise_multipliers": [1.0, math.inf]}, "noise_multiplier must be a finite number"),
        ({"noise_multipliers": ["x"]}, "expected numbers"),
        ({"differing": exactly(101)}, "101 records differ, but there are only 100"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number greater than 0"),
        ({"clip_norm": True}, "clip_norm must be a finite number greater than 0"),
        ({"clip_norm": "1"}, "clip_norm must be a finite number greater than 0"),
    ],
)
def test_bad_arguments(changes, match):
    with pytest.raises(ArgumentError, match=match):
        noisy(**changes)


def test_a_numpy_clip_norm_is_a_number():
    assert noisy(clip_norm=np.float32(0.5)).clipping == FlatClipping(norm=0.5)


@pytest.mark.parametrize("n_steps", [0, -1, 1.5, True, MOST_STEPS + 1, 10**30])
def test_bad_numbers_of_steps(n_steps):
    with pytest.raises(ArgumentError, match="n_steps must be"):
        planned(LogMoment(), n_steps=n_steps)


@pytest.mark.parametrize("epsilon", [1e-320, 1e300])
def test_targets_that_no_noise_meets(epsilon):
    with pytest.raises(CalibrationError, match="epsilon = "):
        planned(LogMoment(), epsilon=epsilon)


def test_nothing_to_calibrate():
    with pytest.raises(CalibrationError, match="no record differs"):
        planned(LogMoment(), differing=exactly(0))


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


def test_plans_differ_by_every_part():
    plans = [make() for make in PLANS.values()]
    assert all(plans[i] != plans[j] for i in range(len(plans)) for j in range(i))


def test_examples_without_a_finite_gradient_change_no_cost():
    assert noisy().non_finite == "zero"
    assert PLANS["stop"]().guarantee() == noisy().guarantee()
    with pytest.raises(ArgumentError, match="non_finite must be one of zero, stop; got 'drop'"):
        attrs.evolve(noisy(), non_finite="drop")


def test_a_constant_schedule_is_written_once():
    assert PLANS["constant"]().to_json()["noise_multipliers"] == [1 / 3]
    assert noisy().to_json()["noise_multipliers"] == [20.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 2}, "version 2; this program reads version 1. Use the program that made it"),
        ({"version": None}, "version None"),
        ({"format": "other"}, "not a training plan"),
        ({"n_steps": 4}, r"one entry, or one for each of the 4 steps; got 3"),
        ({"n_steps": 2}, r"one entry, or one for each of the 2 steps; got 3"),
        ({"n_steps": 0}, "n_steps must be a whole number and at least 1"),
        ({"n_steps": 10**15, "noise_multipliers": [1.0]}, "n_steps must be at most"),
        ({"n_steps": "3"}, "n_steps must be a whole number"),
        ({"noise_multipliers": ["x", 1, 2]}, "expected numbers"),
        ({"noise_multipliers": None}, "noise_multiplier"),
        ({"noise_multipliers": {"a": 1}}, "expected numbers"),
        ({"accountant": "kind"}, "accountant must be one of"),
        ({"accountant": "amplified", "sampling": {
            "kind": "without_replacement", "n_records": 100, "batch_size": 5
        }}, "needs Poisson"),
        ({"order": 1.0}, "order must be"),
        ({"order": "x"}, "order must be a finite number greater than 1, got 'x'"),
        ({"order": None}, "order must be"),
        ({"block": 0}, "block must be"),
        ({"non_finite": "skip"}, "non_finite must be one of zero, stop; got 'skip'"),
        ({"non_finite": None}, "non_finite must be one of"),
        ({"clipping": {"kind": "flat"}}, "not whole"),
        ({"clipping": [1]}, "not whole"),
        ({"clipping": {"kind": "flat", "norm": -1}}, "clip_norm"),
        ({"sampling": "poisson"}, "not whole"),
        ({"sampling": {"kind": "poisson", "n_records": 100, "rate": 2.0}}, "rate"),
        ({"differing": "x"}, "not whole"),
        ({"differing": {"kind": "binomial", "n_records": 500, "mismatch_probability": 0.5}},
         "only 100"),
    ],
)  # fmt: skip
def test_documents_that_are_no_plan(changes, match):
    with pytest.raises(ArgumentError, match=match):
        TrainingPlan.from_json({**noisy().to_json(), **changes})


@pytest.mark.parametrize("document", [None, [], "plan", {}])
def test_not_even_a_document(document):
    with pytest.raises(ArgumentError, match="not a training plan"):
        TrainingPlan.from_json(document)


@pytest.mark.parametrize("part", sorted(set(noisy().to_json()) - {"format", "version"}))
def test_a_missing_part(part):
    document = noisy().to_json()
    del document[part]
    with pytest.raises(ArgumentError, match=f"the plan is not whole: KeyError at '{part}'"):
        TrainingPlan.from_json(document)


def test_schedules_as_one_number_or_one_for_each_step():
    assert schedule_of(2.0, 3).tolist() == [2.0, 2.0, 2.0]
    assert schedule_of([1.0, 2.0], 2).tolist() == [1.0, 2.0]


def test_a_plan_is_frozen():
    plan = noisy()
    with pytest.raises(ValueError, match="read-only"):
        plan.noise_multipliers[0] = 1.0
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.order = 2.0
    assert repr(plan) == (
        "TrainingPlan(n_steps=3, sampling='poisson', accountant='log_moment', order=4)"
    )


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
