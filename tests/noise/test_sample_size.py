# SPDX-License-Identifier: Apache-2.0
"""Planned numbers of draws and directions come close to the noise that is asked for."""

import numpy as np
import pytest

from pufferslice.certificate import certify_release
from pufferslice.claims import Guarantee
from pufferslice.noise.sample_size import plan_samples
from pufferslice.queries import Box, summary
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere

QUERY = summary(mean=["x", "y"])
CLIPPED = QUERY.with_range(Box([-4, -4], [4, 4]))
PROFILE = FiniteProfile.uniform(dim=2, n_directions=8, seed=2)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
LOOSE = Guarantee.joint(epsilon=1.0, delta=0.02)


def scenario(n_draws, query=CLIPPED, seed=1):
    def world(shift):
        draw = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(shift, 0.5, size=(n, 2)))
        return draw.sampled(n_draws=n_draws, seed=seed)

    return Scenario.from_worlds({"a": world(0.0), "b": world(0.5)}, query=query)


def plan(scenario, target, noise_std, profile=PROFILE):
    return plan_samples(
        scenario, target.along(profile), noise_std=noise_std, failure_probability=0.05
    )


def certified_noise(scenario, target, profile=PROFILE):
    return certify_release(scenario, target.along(profile), failure_probability=0.05).noise_std


@pytest.mark.parametrize(("target", "noise_std", "query"), [(JOINT, 4.2, CLIPPED),
                                                            (LOOSE, 1.0, QUERY)])  # fmt: skip
def test_the_planned_draws_give_about_the_planned_noise(target, noise_std, query):
    planned = plan(scenario(2000, query), target, noise_std)
    found = [
        certified_noise(scenario(planned.n_samples, query, seed=seed), target)
        for seed in (9, 10, 11)
    ]
    assert planned.distribution_noise_std < planned.noise_std <= noise_std
    assert np.mean(found) == pytest.approx(planned.noise_std, rel=0.1)
    looser = plan(scenario(2000, query), target, 1.1 * noise_std)
    assert looser.n_samples < planned.n_samples
    assert planned.n_directions == 8


def test_directions_of_the_sphere_are_planned_too():
    target = Guarantee.average(order=4, epsilon=1.0)
    pilot = SampledSphere.draw(dim=2, n_directions=40, seed=3)
    planned = plan(scenario(2000), target, 6.0, pilot)
    sphere = SampledSphere.draw(dim=2, n_directions=planned.n_directions, seed=4)
    found = certified_noise(scenario(planned.n_samples, seed=9), target, sphere)
    assert found == pytest.approx(6.0, rel=0.1)
