# SPDX-License-Identifier: Apache-2.0
"""Too little noise in some interval is refuted, honest noise is not; lines by the pilots."""

import numpy as np
import pytest
from scipy import stats
from tests.audit import teeth

from pufferslice.audit.divergence import SplitOutputs
from pufferslice.audit.noise import LEAST, MOST_AXES, WHITENED, audit_noise, pilot_lines
from pufferslice.sensitivity.whitening import Shape

STD = 0.7
CONFIDENCE = teeth.SURE


def verdict_of(values, *, std=STD, center=None, confidence=CONFIDENCE, seed=0, shape=None):
    """On outputs of one secret, or of several by name."""
    rng = np.random.default_rng(seed)
    secrets = values if isinstance(values, dict) else {"a": values}
    parts = {name: SplitOutputs.of(outputs, rng=rng) for name, outputs in secrets.items()}
    dim = next(iter(secrets.values())).shape[1]
    axes = [f"axis {index}" for index in range(dim)]
    center = np.zeros(dim) if center is None else center
    return audit_noise(
        {"declared": parts}, axes, noise_std=std, center=center, confidence=confidence, shape=shape
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


SHAPE = Shape.of_covariance([[4.0, 1.9], [1.9, 1.0]])
"""The noise of one direction is ten times that of another."""


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize(("dim", "is_shaped"), [(1, False), (2, False), (6, False), (2, True),
                                                (6, True)])  # fmt: skip
def test_honest_noise_is_rarely_refuted(rng, dim, is_shaped):
    """At confidence 0.9, on points, where nothing else spreads the outputs."""
    factor = np.tril(rng.normal(size=(dim, dim))) + 2 * np.eye(dim)
    shape = Shape.of_covariance(factor @ factor.T) if is_shaped else None
    coloring = np.eye(dim) if shape is None else shape.coloring
    runs = [
        verdict_of(noise(rng, 2_000, dim) @ coloring.T, confidence=0.9, seed=run, shape=shape)
        for run in range(200)
    ]
    # More would be one case in 10^5 if the share were 0.1.
    assert sum(verdict.refuted for verdict in runs) <= stats.binom.isf(1e-5, 200, 0.1)


@pytest.mark.soundness
def test_what_is_allowed_is_the_largest_share_of_honest_noise(rng):
    """Half the noise: the bound is below the largest difference of the two shares, and near it."""
    verdict = verdict_of(noise(rng, 100_000, 1, STD / 2), confidence=0.9999)
    widths = np.linspace(0.1, 6, 600)
    truth = (2 * stats.norm.cdf(widths) - 2 * stats.norm.cdf(widths / 2)).max()
    assert 0.95 * truth < verdict.lower_bound < truth


CENTER = np.array([1e15, -3e15])
"""Around it floats lie an eighth apart."""
LIMIT = STD * 2.0**17
HONEST = {
    "noise alone": lambda _, noise: noise,
    "more noise": lambda _, noise: 1.01 * noise,
    "atoms": lambda rng, noise: rng.integers(0, 2, noise.shape) * [3.0, 0.1] + noise,
    "uniform": lambda rng, noise: rng.uniform(0, 1, noise.shape) + noise,
    "gaussian": lambda rng, noise: rng.normal(0, 5, noise.shape) + noise,
    "rounded finely": lambda _, noise: np.round(noise / 1e-6) * 1e-6,
    "rounded coarsely": lambda _, noise: np.round(noise / 0.1) * 0.1,
    "as coarse as floats": lambda _, noise: CENTER + noise,
    "saturated": lambda _, noise: np.vstack([noise, 0 * noise + LIMIT * 4, 0 * noise - LIMIT * 4]),
    "all saturated": lambda _, noise: np.full(noise.shape, 4 * LIMIT),
}


@pytest.mark.soundness
@pytest.mark.parametrize("shape", [None, SHAPE], ids=["isotropic", "shaped"])
@pytest.mark.parametrize("case", HONEST)
def test_honest_noise_stands(rng, case, shape):
    """On any distribution, rounded after the noise, or cut off at the ends of the grid."""
    center = CENTER if case == "as coarse as floats" else np.zeros(2)
    coloring = np.eye(2) if shape is None else shape.coloring
    values = HONEST[case](rng, noise(rng, 20_000) @ coloring.T)
    verdict = verdict_of(values, center=center, shape=shape)
    assert not verdict.refuted
    assert ("(whitened units)" in verdict.claim) == (shape is not None)


@pytest.mark.soundness
def test_a_tenth_less_noise_falls(rng):
    assert verdict_of(noise(rng, 20_000, std=0.9 * STD)).refuted


@pytest.mark.soundness
@pytest.mark.parametrize("share", [0.001, 0.01])
def test_repeats_are_found_in_whichever_secret_has_them(rng, share):
    n = 100_000
    broken = 5 + noise(rng, n)
    broken[rng.random(n) < share] = [5.0, 5.0]
    outputs = {"a": noise(rng, n), "b": broken}
    verdict = verdict_of(outputs, confidence=0.9)
    assert verdict.refuted
    assert verdict.pair[0] == "b"
    assert verdict_of(outputs).lower_bound < share


@pytest.mark.soundness
def test_a_direction_without_noise_is_found(rng):
    outputs = np.repeat(noise(rng, 10_000, 1), 3, axis=1)
    verdict = verdict_of(outputs)
    assert verdict.refuted
    assert "least variance" in verdict.line
    assert not verdict_of(outputs[:, :1]).refuted


@pytest.mark.soundness
@pytest.mark.parametrize("angle", [0.0, 0.3, 1.1, 2.0, 2.8])
@pytest.mark.parametrize("less", [0.5, 0.9])
def test_less_noise_in_one_whitened_direction_falls(rng, angle, less):
    """Half of it, and a tenth less; each coordinate alone may have more than isotropic noise."""
    narrow = np.array([np.cos(angle), np.sin(angle)])
    white = noise(rng, 50_000)
    broken = white - (1 - less) * (white @ narrow)[:, None] * narrow
    assert verdict_of(broken @ SHAPE.coloring.T, shape=SHAPE).refuted
    assert not verdict_of(white @ SHAPE.coloring.T, shape=SHAPE).refuted


@pytest.mark.soundness
@pytest.mark.parametrize("is_shaped", [False, True])
def test_of_many_coordinates_the_narrowest_are_looked_at(rng, is_shaped):
    """More coordinates than a covariance is estimated for."""
    factor = np.eye(100)
    factor[1:, 0] = 0.2 * is_shaped
    shape = Shape.of_covariance(factor @ factor.T) if is_shaped else None
    coloring = shape.coloring if is_shaped else factor
    white = noise(rng, 2_000, 100)
    assert not verdict_of(white @ coloring.T, shape=shape).refuted
    white[:, 77] *= 0.2
    verdict = verdict_of(white @ coloring.T, shape=shape)
    assert verdict.refuted
    assert verdict.line.startswith("whitened axis 77" if is_shaped else "axis 77")


def same_line(first, second, **tolerance):
    return abs(float(np.dot(first, second))) == pytest.approx(1.0, **tolerance)


def test_known_lines(rng):
    """Covariance diag(4, 1), difference (2, 1); constant outputs leave the difference alone."""
    noises = [rng.normal(size=(100_000, 2)) * [2.0, 1.0] for _ in range(2)]
    lines = pilot_lines(noises[0] + np.array([2.0, 1.0]), noises[1])
    assert same_line(lines[LEAST], [0, 1], abs=1e-3)
    assert same_line(lines[WHITENED], np.array([2.0 / 4, 1.0]) / np.hypot(0.5, 1), abs=1e-3)
    lines = pilot_lines(np.tile([1.0, 2.0], (50, 1)), np.zeros((50, 2)))
    assert same_line(lines[WHITENED], np.array([1, 2]) / np.sqrt(5))
    assert list(pilot_lines(np.ones((50, 2)), np.ones((50, 2)))) == [LEAST]


@pytest.mark.parametrize("dim", [2, 4])
def test_where_there_is_no_noise_only_that_counts(rng, dim):
    """One number in all coordinates: what is left of the difference lies across it."""
    shift = np.arange(1.0, dim + 1)
    noise = [np.repeat(rng.normal(size=(1_000, 1)), dim, axis=1) for _ in range(2)]
    found = pilot_lines(noise[0] + shift, noise[1])
    assert same_line(found[WHITENED], (shift - shift.mean()) / np.linalg.norm(shift - shift.mean()))
    assert abs(found[LEAST].sum()) < 1e-6


@pytest.mark.parametrize(("n_outputs", "dim"), [(500, 1), (39, 4), (10_000, MOST_AXES + 1)])
def test_no_lines_from_one_or_too_many_coordinates_or_too_few_outputs(rng, n_outputs, dim):
    assert pilot_lines(rng.normal(size=(n_outputs, dim)), rng.normal(size=(n_outputs, dim))) == {}
