# SPDX-License-Identifier: Apache-2.0
"""Signal to noise of a step."""

import numpy as np
import pytest

from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    LayerClipping,
    LogMoment,
    Poisson,
    SignalToNoise,
    exactly,
    plan_with_noise,
    signal_to_noise,
)


def planned(clip_norm=1.0, noise_multipliers=(2.0,), rate=0.1):
    return plan_with_noise(
        differing=exactly(2),
        sampling=Poisson(n_records=1_000, rate=rate),
        clip_norm=clip_norm,
        noise_multipliers=noise_multipliers,
        accountant=LogMoment(),
        order=4,
    )


@pytest.mark.parametrize("clip_norm", [1.0, 7.0, 1e-200, 1e200])
def test_flat_clipping(clip_norm):
    """100 examples of norm C against noise 2 C in each of 400 coordinates; C cancels."""
    found = signal_to_noise(planned(clip_norm), [400])
    assert found.per_step == pytest.approx(100 / (2 * 20), rel=1e-12)
    assert found.whole_run == found.per_step
    assert signal_to_noise(planned(clip_norm), [1]).per_step == pytest.approx(50, rel=1e-12)


def test_layers_as_their_noise_is():
    layers = LayerClipping(
        names=("a", "b"), norms=(3.0, 4.0), sizes=(10, 90), allocation="least_noise"
    )
    plan = planned(layers)
    stds = plan.noise_stds(0)
    noise = np.sqrt(10 * stds[0] ** 2 + 90 * stds[1] ** 2)
    assert signal_to_noise(plan, [10, 90]).per_step == pytest.approx(100 * 5 / noise, rel=1e-12)


def test_noise_that_changes_counts_by_its_mean_square():
    found = signal_to_noise(planned(noise_multipliers=[1.0, 7.0]), [4])
    assert found.per_step == pytest.approx(100 / (2 * 5), rel=1e-12)
    drawn = np.random.default_rng(3).normal(size=(2, 20_000, 4)) * [[[1.0]], [[7.0]]]
    size = np.sqrt((drawn.sum(axis=0) ** 2).sum(axis=1).mean())
    assert found.whole_run == pytest.approx(2 * 100 / size, rel=0.02)


def test_advice_where_the_noise_is_larger():
    assert SignalToNoise(per_step=1.0, whole_run=10.0).advice is None
    some = SignalToNoise(per_step=0.5, whole_run=5.0).advice
    none = SignalToNoise(per_step=0.1, whole_run=0.5).advice
    assert "average over many steps" in some
    assert "little or nothing" in none
    for advice in (some, none):
        for change in ("larger batches", "fewer trainable parameters", "differing", "epsilon"):
            assert change in advice


@pytest.mark.parametrize("sizes", [[], [1, 2], [0], [1.5]])
def test_sizes_that_are_none(sizes):
    with pytest.raises(ArgumentError, match="size"):
        signal_to_noise(planned(), sizes)
