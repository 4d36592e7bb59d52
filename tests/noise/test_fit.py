# SPDX-License-Identifier: Apache-2.0
"""Which shape the noise gets for a scenario and a claim; any shape is sound."""

import numpy as np
import pytest
from tests.compared import whole

from pufferslice import (
    FiniteDistribution,
    GaussianDistribution,
    Guarantee,
    SampledDistribution,
    Scenario,
)
from pufferslice.noise import fit
from pufferslice.noise.fit import GUARD_SHARE, fit_shape
from pufferslice.queries import Ball, Box, summary
from pufferslice.sensitivity.couplings import Recipe
from pufferslice.sensitivity.sensitivity import full_sensitivity

RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
TARGETS = (
    RENYI,
    Guarantee.epsilon_delta(1.0, 1e-5),
    Guarantee.guess(at_most=0.6),
    Guarantee.information(bits=0.25),
)
QUERY = summary(mean=["a", "b"])


def worlds(*rows, query=QUERY, kind=FiniteDistribution.uniform):
    return Scenario.from_worlds(
        {f"w{i}": kind(np.array(part)) for i, part in enumerate(rows)}, query=query
    )


POINTS = worlds([[0.0, 0.0]], [[3.0, 0.0]], [[5.0, 2.0]])


def covariance(result, scenario=POINTS, target=RENYI):
    """Of the noise that the shape leads to."""
    full = full_sensitivity(scenario, recipe=Recipe(), shape=result.shape)
    std = target.least_noise(whole(full))
    return std**2 * (np.eye(full.dim) if result.shape is None else result.shape.covariance)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_limit_is_what_a_point_mass_may_cost(target):
    distance = 2.5
    scenario = worlds([[0.0, 0.0]], [[distance, 0.0]])
    std = target.least_noise(whole(full_sensitivity(scenario, recipe=Recipe())))
    assert distance**2 / std**2 == pytest.approx(target.distance_limit, rel=1e-5)


def test_the_known_answer_of_two_differences():
    """d = (3, 0), (2, 2), c = 1/2, without a guard to speak of: trace 29.0415945788."""
    scenario = Scenario.from_worlds(
        {
            name: FiniteDistribution.uniform([row])
            for name, row in {"x": [0.0, 0.0], "y": [3.0, 0.0], "z": [2.0, 2.0]}.items()
        },
        query=QUERY,
        pairs=[("x", "y"), ("x", "z")],
    )
    result = fit_shape(scenario, RENYI, guard=1e-4)
    expected = [[19.39450195, 3.66781808], [3.66781808, 9.64709263]]
    assert np.allclose(covariance(result, scenario), expected, rtol=2e-3)
    assert np.trace(covariance(result, scenario)) <= 29.0415945788 * (1 + result.gap) * (1 + 1e-6)
    guarded = fit_shape(scenario, RENYI, guard=3.0)
    assert np.trace(covariance(guarded, scenario)) == pytest.approx(36.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["fitted", "diagonal"])
def test_weights_take_nothing_from_the_guard(kind):
    """Radius 1 and c = 1/2: a variance of 2, also where the secrets agree and noise is unwanted."""
    scenario = worlds([[0.0, 0.0]], [[0.0, 3.0]])
    result = fit_shape(scenario, RENYI, guard=1.0, weights=[1_000.0, 1.0], shape=kind)
    variances = np.diag(covariance(result, scenario))
    np.testing.assert_allclose(variances, [2.0, 18.0], rtol=1e-3)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_default_guard(target):
    result = fit_shape(POINTS, target)
    radius = GUARD_SHARE * np.hypot(5.0, 2.0)
    least = np.linalg.eigvalsh(covariance(result, POINTS, target)).min()
    assert least >= radius**2 / target.distance_limit * (1 - 1e-3)
    assert (result.gap is None) == (target is not RENYI)


def test_diagonal_shapes_are_diagonal():
    result = fit_shape(POINTS, RENYI, shape="diagonal")
    assert result.kind == "diagonal"
    assert np.count_nonzero(result.shape.whitening) == 2
    totals = [
        np.trace(covariance(fit_shape(POINTS, RENYI, shape=kind)))
        for kind in ("fitted", "diagonal", "isotropic")
    ]
    assert totals == sorted(totals)


def test_weights_by_name_and_by_place():
    named = fit_shape(POINTS, RENYI, weights={"mean(b)": 9.0})
    placed = fit_shape(POINTS, RENYI, weights=[1.0, 9.0])
    assert np.array_equal(named.shape.whitening, placed.shape.whitening)
    plain = covariance(fit_shape(POINTS, RENYI))
    assert covariance(named)[1, 1] < plain[1, 1]


@pytest.mark.parametrize(
    "scenario",
    [
        worlds([[1.0, 2.0]], [[1.0, 2.0]]),
        worlds([[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [1.0, 2.0]]),
        worlds(
            *[np.zeros((50, 2))] * 2,
            query=QUERY.with_range(Ball([0, 0], 5.0)),
            kind=lambda rows: SampledDistribution(outputs=rows),
        ),
        Scenario.from_worlds(
            {"x": FiniteDistribution.uniform([[0.0]]), "y": FiniteDistribution.uniform([[1.0]])},
            query=summary(mean=["a"]),
        ),
    ],
    ids=["equal points", "equal draws", "ball", "line"],
)
def test_where_nothing_but_isotropic_noise_makes_sense(scenario):
    assert fit_shape(scenario, RENYI) == fit.Fit("isotropic", None)


def test_a_box_gives_wide_sides_more_noise():
    scenario = worlds(
        *[np.zeros((50, 2))] * 2,
        query=QUERY.with_range(Box([0, 0], [16.0, 1.0])),
        kind=lambda rows: SampledDistribution(outputs=rows),
    )
    result = fit_shape(scenario, RENYI)
    # The best diagonal noise for one difference has variances in proportion to its lengths.
    diagonal = np.diagonal(result.shape.covariance)
    assert diagonal[0] / diagonal[1] == pytest.approx(16.0, rel=1e-2)
    assert np.count_nonzero(result.shape.whitening) == 2


def test_gaussians_have_no_gap():
    cov = np.array([[1.0, 0.5], [0.5, 2.0]])
    scenario = Scenario.from_worlds(
        {
            "x": GaussianDistribution(mean=[0.0, 0.0], cov=cov),
            "y": GaussianDistribution(mean=[3.0, 1.0], cov=cov),
        },
        query=QUERY,
    )
    result = fit_shape(scenario, RENYI)
    assert result.gap is None
    isotropic = covariance(fit_shape(scenario, RENYI, shape="isotropic"), scenario)
    assert np.trace(covariance(result, scenario)) < np.trace(isotropic)


def test_only_some_atoms_decide_the_shape_of_large_data(monkeypatch):
    rng = np.random.default_rng(0)
    scenario = worlds(rng.normal(size=(400, 2)), rng.normal([4.0, 0.0], size=(400, 2)))
    every = covariance(fit_shape(scenario, RENYI, effort="quick"), scenario)
    monkeypatch.setattr(fit, "_MOST_ATOMS", {"quick": 150, "thorough": 150})
    some = covariance(fit_shape(scenario, RENYI, effort="quick"), scenario)
    assert 0 < abs(np.trace(some) / np.trace(every) - 1) < 0.5


def test_a_distance_only_by_chance_has_a_guard_too():
    """Equal means: the guard follows from the coupled distances."""
    scenario = worlds([[1.0, 0.0], [-1.0, 0.0]], [[2.0, 0.0], [-2.0, 0.0]])
    least = np.linalg.eigvalsh(covariance(fit_shape(scenario, RENYI), scenario)).min()
    assert least >= (GUARD_SHARE * 1.0) ** 2 / RENYI.distance_limit * (1 - 1e-3)
