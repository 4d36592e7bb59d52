# SPDX-License-Identifier: Apache-2.0
"""Wasserstein distances against POT, and their laws."""

import sys

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pufferslice.baselines import entropic_wasserstein, sliced_wasserstein, wasserstein_distance
from pufferslice.errors import CalibrationError, MissingExtraError
from pufferslice.scenario import FiniteDistribution
from pufferslice.sensitivity import FiniteProfile, SampledSphere


def drawn(rng: np.random.Generator, n: int, dim: int, *, weighted: bool) -> FiniteDistribution:
    counts = rng.integers(1, 6, n) if weighted else np.ones(n, dtype=int)
    return FiniteDistribution(outputs=rng.normal(size=(n, dim)), counts=counts)


def shares(distribution: FiniteDistribution) -> np.ndarray:
    return distribution.counts / distribution.total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0])
def test_the_distance_is_that_of_pot(p: float, dim: int, weighted: bool) -> None:
    rng = np.random.default_rng(int(10 * p + dim))
    first, second = drawn(rng, 25, dim, weighted=weighted), drawn(rng, 25, dim, weighted=weighted)
    costs = ot.dist(first.outputs, second.outputs, metric="euclidean") ** p
    truth = ot.emd2(shares(first), shares(second), costs) ** (1 / p)
    assert wasserstein_distance(first, second, p=p) == pytest.approx(truth, rel=1e-9)
    assert wasserstein_distance(second, first, p=p) == pytest.approx(truth, rel=1e-9)
    assert wasserstein_distance(first, first, p=p) == 0


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_the_sliced_distance_is_that_of_pot(p: float) -> None:
    rng = np.random.default_rng(4)
    first, second = drawn(rng, 20, 3, weighted=True), drawn(rng, 31, 3, weighted=True)
    profile = FiniteProfile.uniform(dim=3, n_directions=40, seed=1)
    truth = ot.sliced_wasserstein_distance(
        first.outputs, second.outputs, shares(first), shares(second), p=p,
        projections=profile.directions.T,
    )  # fmt: skip
    assert sliced_wasserstein(first, second, p=p, profile=profile) == pytest.approx(truth, rel=1e-9)


def test_over_the_sphere_points_have_their_distance_over_the_root_of_the_dimension() -> None:
    first, second = (FiniteDistribution.uniform([[x, 0, 0, 0]]) for x in (0.0, 6.0))
    sphere = SampledSphere.draw(dim=4, n_directions=40_000, seed=3)
    assert sliced_wasserstein(first, second, p=2, profile=sphere) == pytest.approx(3.0, rel=0.01)


def test_weights_of_slices_count() -> None:
    first, second = (FiniteDistribution.uniform([[x, 0.0]]) for x in (0.0, 2.0))
    profile = FiniteProfile(directions=[[1.0, 0.0], [0.0, 1.0]], weights=[0.25, 0.75])
    assert sliced_wasserstein(first, second, p=2, profile=profile) == pytest.approx(1.0)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), p=st.sampled_from([1.0, 2.0, 3.0]))
def test_slices_are_below_and_larger_powers_above(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    first, second = drawn(rng, 8, 3, weighted=False), drawn(rng, 8, 3, weighted=False)
    profile = FiniteProfile.uniform(dim=3, n_directions=5, seed=seed)
    whole = wasserstein_distance(first, second, p=p)
    assert sliced_wasserstein(first, second, p=p, profile=profile) <= whole * (1 + 1e-9)
    assert wasserstein_distance(first, second, p=p + 1) >= whole * (1 - 1e-9)


def test_the_entropic_distance_is_above_and_comes_close() -> None:
    rng = np.random.default_rng(2)
    first, second = drawn(rng, 15, 2, weighted=True), drawn(rng, 12, 2, weighted=False)
    whole = wasserstein_distance(first, second, p=2)
    values = [entropic_wasserstein(first, second, p=2, regularisation=r) for r in (2.0, 0.2, 0.02)]
    assert values[0] > values[1] > values[2] >= whole * (1 - 1e-6)
    assert values[2] == pytest.approx(whole, rel=0.02)
    costs = ot.dist(first.outputs, second.outputs)
    plan = ot.sinkhorn(shares(first), shares(second), costs, 0.2, stopThr=1e-12)
    assert values[1] == pytest.approx(float((plan * costs).sum()) ** 0.5, rel=1e-6)


def test_entropic_transport_needs_rounds_and_pot(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    couple = [drawn(rng, 30, 2, weighted=True) for _ in range(2)]
    monkeypatch.setattr("pufferslice.baselines.transport._MOST_ROUNDS", 1)
    with pytest.raises(CalibrationError, match="regularisation"):
        entropic_wasserstein(*couple, p=2, regularisation=0.05)
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match="POT"):
        entropic_wasserstein(*couple, p=2, regularisation=1.0)
