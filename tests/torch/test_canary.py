# SPDX-License-Identifier: Apache-2.0
"""The canary: pushed exactly as far as a plan allows, with exactly the plan's noise."""

import attrs
import numpy as np
import pytest

from pufferslice.claims import Measure
from pufferslice.learning import (
    Amplified,
    LayerClipping,
    LogMoment,
    Poisson,
    WithoutReplacement,
    WorstCase,
    binomial,
    exactly,
    plan_with_noise,
)
from pufferslice.torch.canary import release_canary

pytestmark = pytest.mark.usefixtures("one_thread")

LITTLE = 1e-3
"""A noise multiplier that hides nothing."""


def plan_of(multipliers=(LITTLE,), differing=None, sampling=None, clip_norm=1.0, accountant=None):
    return plan_with_noise(
        differing=differing or exactly(3),
        sampling=sampling or WithoutReplacement(n_records=5, batch_size=5),
        clip_norm=clip_norm,
        noise_multipliers=np.array(multipliers),
        accountant=accountant or WorstCase(),
        measure=Measure.renyi(order=2.0),
    )


@pytest.mark.soundness
@pytest.mark.parametrize("clip_norm", [1.0, 0.25, 40.0])
@pytest.mark.parametrize(("world", "sign"), [("first", 1.0), ("second", -1.0)])
def test_each_differing_record_pushes_by_the_clip_norm(world, sign, clip_norm):
    """Three records, two steps, in units of the clip norm: 6, less the rounding share."""
    found = release_canary(world, plan_of((LITTLE, LITTLE), clip_norm=clip_norm))
    assert found.shape == (1,)
    assert found[0] == pytest.approx(sign * 6.0, abs=12 * LITTLE)


def test_steps_count_by_the_inverse_of_their_variance():
    found = release_canary("first", plan_of((2 * LITTLE, LITTLE)))
    assert found[0] == pytest.approx(3 * (1 / 4 + 1), abs=12 * LITTLE)


def test_a_random_number_of_records_differs_as_its_distribution_says():
    distribution = binomial(n_records=5, mismatch_probability=0.5)
    plan = plan_of(differing=distribution, accountant=LogMoment())
    found = {round(release_canary("first", plan)[0]) for _ in range(40)}
    assert found <= set(range(6))
    assert len(found) > 1


def test_drawn_records_push_and_the_others_do_not():
    sampling = Poisson(n_records=6, rate=0.5)
    plan = plan_of(sampling=sampling, differing=exactly(6), accountant=Amplified())
    plan = attrs.evolve(plan, noise_multipliers=np.full(1, 0.05), measure=Measure.renyi(order=1.5))
    found = {round(release_canary("second", plan)[0]) for _ in range(30)}
    assert found <= set(range(-6, 1))
    assert len(found) > 2


def test_a_layer_costs_what_flat_clipping_costs():
    layers = LayerClipping(names=("a",), norms=(1.0,), sizes=(1,), allocation="equal")
    assert plan_of(clip_norm=layers).guarantee() == plan_of().guarantee()
