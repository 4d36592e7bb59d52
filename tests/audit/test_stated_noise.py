# SPDX-License-Identifier: Apache-2.0
"""Too little noise in some interval is refuted; honest noise on any distribution is not."""

import numpy as np
import pytest
from scipy import stats

from pufferslice.audit.divergence import SplitOutputs
from pufferslice.audit.noise import audit_noise

STD = 0.7
CONFIDENCE = 0.99


def verdict_of(values, *, std=STD, center=None, confidence=CONFIDENCE, seed=0):
    """On outputs of one secret, or of several by name."""
    rng = np.random.default_rng(seed)
    secrets = values if isinstance(values, dict) else {"a": values}
    parts = {name: SplitOutputs.of(outputs, rng=rng) for name, outputs in secrets.items()}
    dim = next(iter(secrets.values())).shape[1]
    axes = [f"axis {index}" for index in range(dim)]
    center = np.zeros(dim) if center is None else center
    return audit_noise(
        {"declared": parts}, axes, noise_std=std, center=center, confidence=confidence
    )


def noise(rng, n, dim=2, std=STD):
    return rng.normal(0, std, (n, dim))


@pytest.mark.soundness
def test_the_bound_by_hand():
    """Constant outputs: 900 of 1,000 are counted, all of them where no noise would put them."""
    verdict = verdict_of(np.full((1_000, 1), 0.3))
    assert verdict.refuted
    assert verdict.lower_bound == pytest.approx((1 - CONFIDENCE) ** (1 / 900), abs=1e-9)
    assert verdict.refutable_below == pytest.approx(verdict.lower_bound, abs=1e-9)
    assert verdict.claimed == 0
    assert verdict.quantity == "delta"
    assert verdict.pair == ("a", "the stated noise")


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_honest_noise_is_rarely_refuted(rng, dim):
    """At confidence 0.9, on points, where nothing else spreads the outputs."""
    runs = [
        verdict_of(noise(rng, 2_000, dim), confidence=0.9, seed=run).refuted for run in range(60)
    ]
    assert np.mean(runs) <= 0.1


@pytest.mark.soundness
def test_what_is_allowed_is_the_largest_share_of_honest_noise(rng):
    """Half the noise: the bound is below the largest difference of the two shares, and near it."""
    verdict = verdict_of(noise(rng, 100_000, 1, STD / 2), confidence=0.9999)
    widths = np.linspace(0.1, 6, 600)
    truth = (2 * stats.norm.cdf(widths) - 2 * stats.norm.cdf(widths / 2)).max()
    assert 0.95 * truth < verdict.lower_bound < truth


@pytest.mark.soundness
@pytest.mark.parametrize("distribution", ["atoms", "uniform", "gaussian"])
def test_noise_on_any_distribution_stands(rng, distribution):
    n = 20_000
    values = {
        "atoms": rng.integers(0, 2, (n, 2)) * [3.0, 0.1],
        "uniform": rng.uniform(0, 1, (n, 2)),
        "gaussian": rng.normal(0, 5, (n, 2)),
    }[distribution]
    assert not verdict_of(values + noise(rng, n)).refuted


@pytest.mark.soundness
def test_more_noise_than_stated_stands(rng):
    assert not verdict_of(noise(rng, 20_000, std=1.01 * STD)).refuted
    assert verdict_of(noise(rng, 20_000, std=0.9 * STD)).refuted


@pytest.mark.soundness
@pytest.mark.parametrize("step", [1e-6, 1e-3, 0.1])
def test_rounded_outputs_stand(rng, step):
    """Rounding is done to what is released, and repeats values; it reveals nothing."""
    outputs = np.round(noise(rng, 50_000) / step) * step
    assert len(np.unique(outputs)) < 2 * len(outputs)
    assert not verdict_of(outputs).refuted


@pytest.mark.soundness
def test_outputs_as_coarse_as_floats_stand(rng):
    """Around 10^15 floats lie an eighth apart."""
    center = np.array([1e15, -3e15])
    assert not verdict_of(center + noise(rng, 20_000), center=center).refuted


@pytest.mark.soundness
def test_saturated_outputs_stand(rng):
    """The outermost values of the grid may hold any share of the outputs."""
    limit = STD * 2.0**17
    outputs = noise(rng, 20_000)
    outputs[::3] = limit
    outputs[1::3] = -limit
    assert not verdict_of(outputs).refuted
    assert not verdict_of(np.full((1_000, 2), limit)).refuted


@pytest.mark.soundness
@pytest.mark.parametrize("share", [0.001, 0.01])
def test_repeats_are_found_in_whichever_secret_has_them(rng, share):
    n = 100_000
    broken = 5 + noise(rng, n)
    broken[rng.random(n) < share] = [5.0, 5.0]
    verdict = verdict_of({"a": noise(rng, n), "b": broken})
    assert verdict.refuted
    assert verdict.pair[0] == "b"
    assert verdict.lower_bound < share


@pytest.mark.soundness
def test_a_direction_without_noise_is_found(rng):
    outputs = np.repeat(noise(rng, 10_000, 1), 3, axis=1)
    verdict = verdict_of(outputs)
    assert verdict.refuted
    assert "least variance" in verdict.line
    assert not verdict_of(outputs[:, :1]).refuted


def test_few_pilot_outputs_look_along_axes_only(rng):
    """Twenty of them cannot estimate a covariance of five coordinates."""
    verdict = verdict_of(np.repeat(noise(rng, 200, 1), 5, axis=1))
    assert verdict.line.startswith("axis ")


@pytest.mark.soundness
def test_of_many_coordinates_the_narrowest_are_looked_at(rng):
    outputs = noise(rng, 2_000, 100)
    outputs[:, 77] *= 0.2
    verdict = verdict_of(outputs)
    assert verdict.refuted
    assert verdict.line.startswith("axis 77")
