# SPDX-License-Identifier: Apache-2.0
"""What the search for noise refuses: the class of the error, and what its message names."""

import numpy as np
import pyarrow as pa
import pytest
from tests.refusals import Refusal, check_refused

from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, CalibrationError, ScenarioError
from pufferslice.noise.decision import NoiseOptions
from pufferslice.noise.fit import MOST_FULL, fit_shape
from pufferslice.noise.sample_size import plan_samples
from pufferslice.noise.shape import factor, fit_coupled, fit_gaussian, fit_points
from pufferslice.noise.spending import Spending, measured_noise
from pufferslice.queries import Ball, contingency_table, summary
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.simulator import OutputSimulator
from pufferslice.sensitivity.profiles import FiniteProfile, WholeSphere

QUERY = summary(mean=["x", "y"])
RENYI = Guarantee.unsliced(order=4, epsilon=1.0)
GUESS = Guarantee.guess(at_most=0.6)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
PROFILE = FiniteProfile.axes(dim=2)
POINTS = Scenario.from_worlds(
    {"a": FiniteDistribution.uniform([[0.0, 0.0]]), "b": FiniteDistribution.uniform([[3.0, 1.0]])},
    query=QUERY,
)
TABLE = pa.table({"k": ["u", "v"] * 10, "x": range(20), "y": range(0, 40, 2)})
ROWS = Scenario.from_prevalence(
    TABLE,
    column="k",
    value="u",
    within=0.1,
    query=summary(mean=["x", "y"], clip={"x": (0, 20), "y": (0, 40)}),
)
EARLIER = Scenario.from_prevalence(
    TABLE,
    column="k",
    value="u",
    within=0.1,
    query=summary(mean=["x"], clip={"x": (0, 20)}),
    moments_from=TABLE.slice(2),
)
HOME = Scenario.from_occupancy(
    [[0.9, 0.1], [0.2, 0.8]],
    positions=[2],
    query=summary(total=["x"], clip={"x": (0, 5)}),
    length=6,
    loads=pa.table({"state": [0, 1] * 5, "x": range(10)}),
)
MANY = Scenario.from_prevalence(
    pa.table({"k": ["u", "v"] * 10} | {f"x{i}": range(20) for i in range(257)}),
    column="k",
    value="u",
    within=0.1,
    query=summary(mean=[f"x{i}" for i in range(257)], clip={f"x{i}": (0, 20) for i in range(257)}),
)


def many_sums():
    """More sums than noise may be correlated for: cells of a column that are mostly empty."""
    table = pa.table({"k": ["u", "v"] * 10, "x": range(20)})
    query = contingency_table({"x": list(range(MOST_FULL + 1))}, allow_empty=True)
    return Scenario.from_prevalence(table, column="k", value="u", within=0.1, query=query)


EYES = np.broadcast_to(np.eye(2), (1, 2, 2, 2))


def sampled(query, n_draws=99):
    def world(shift):
        draw = OutputSimulator(draw_outputs=lambda rng, n: rng.normal(shift, 0.5, size=(n, 2)))
        return draw.sampled(n_draws=n_draws, seed=1)

    return Scenario.from_worlds({"a": world(0.0), "b": world(0.5)}, query=query)


def plan(scenario, claim, noise_std):
    return plan_samples(scenario, claim, noise_std=noise_std, failure_probability=0.05)


CLIPPED = sampled(QUERY.with_range(Ball([0, 0], 4.0)))
DIFFERENCES = [[1.0, 0.0], [0.0, 1.0]]


def points(**changed):
    settings = {"differences": DIFFERENCES, "limit": 1.0, "guard": 0.1} | changed
    return fit_points(settings.pop("differences"), **settings)


def coupled(tables, masses):
    return fit_coupled(tables, masses, order=2.0, epsilon=1.0, guard=1.0)


def gaussian(shifts, covariances, **changed):
    settings = {"order": 2.0, "epsilon": 1.0, "guard": 1.0} | changed
    return fit_gaussian(shifts, covariances, **settings)


SHAPES = [
    *[
        Refusal(lambda n=name, v=value: points(**{n: v}), ArgumentError, name)
        for name, values in {
            "differences": [[1.0, 2.0], np.empty((0, 2)), [[np.nan, 1.0]]],
            "limit": [0.0, np.nan],
            "guard": [-1.0],
            "tolerance": [0.0],
            "most_steps": [0],
            "kind": ["isotropic"],
            "weights": [
                np.eye(3),
                [1.0, 2.0],
                [[1.0, 2.0], [0.0, 1.0]],
                [[1.0, 2.0], [2.0, 1.0]],
                [[np.inf, 0.0], [0.0, 1.0]],
                [[0.0, 0.0], [0.0, 0.0]],
            ],
        }.items()
        for value in values
    ],
    Refusal(
        lambda: points(weights=[[2.0, 1.0], [1.0, 2.0]], kind="diagonal"), ArgumentError, "weights"
    ),
    *[
        Refusal(lambda t=tables, m=masses: coupled(t, m), ArgumentError, name)
        for tables, masses, name in (
            ([], [], "masses"),
            ([[[1.0]]], [], "masses"),
            ([[[1.0]], [[1.0, 2.0]]], [[1.0], [1.0]], "dimension"),
            ([[[1.0], [2.0]]], [[1.0]], "masses"),
            ([[[1.0], [2.0]]], [[0.5, 0.6]], "masses"),
        )
    ],
    Refusal(lambda: gaussian([[1.0, 0.0]], np.eye(2)), ArgumentError, "covariances"),
    Refusal(lambda: gaussian([[1.0]], [[[[1.0]], [[-1.0]]]]), ArgumentError, "covariances"),
    Refusal(lambda: gaussian([[1.0, 0.0]], EYES, order=1.0), ArgumentError, "order"),
    Refusal(lambda: gaussian([[1.0, 0.0]], EYES, epsilon=0.0), ArgumentError, "epsilon"),
    *[
        Refusal(call, CalibrationError, "singular")
        for call in (
            lambda: gaussian([[0.0, 0.0]], EYES, guard=0.0),
            lambda: gaussian([[1e200, 0.0]], EYES),
            lambda: gaussian([[1e-100, 0.0]], 1e200 * EYES),
            lambda: factor([[1.0, 1.0], [1.0, 1.0]]),
            lambda: factor([[0.0]]),
        )
    ],
    Refusal(lambda: factor([[1.0, 2.0]]), ArgumentError, "covariance"),
]

FITS = [
    *[
        Refusal(lambda w=weights: fit_shape(POINTS, RENYI, weights=w), ArgumentError, "weights")
        for weights in ([1.0, -1.0], [1.0], [1.0, np.inf], {"mean(z)": 1.0})
    ],
    Refusal(lambda: fit_shape(POINTS, RENYI, shape="round"), ArgumentError, "shape"),
    Refusal(lambda: fit_shape(POINTS, RENYI, guard=0.0), ArgumentError, "guard"),
    Refusal(lambda: fit_shape(POINTS, RENYI, shape="isotropic", guard=1.0), ArgumentError, "guard"),
    Refusal(lambda: fit_shape(POINTS, RENYI, shape=np.eye(2), guard=1.0), ArgumentError, "guard"),
    Refusal(
        lambda: fit_shape(POINTS, RENYI, shape=np.eye(2), weights=[1.0, 1.0]),
        ArgumentError,
        "weights",
    ),
    Refusal(lambda: fit_shape(POINTS, RENYI, shape=np.eye(3)), ArgumentError, "shape"),
    Refusal(lambda: fit_shape(ROWS, GUESS, shape="isotropic"), ArgumentError, "shape"),
    Refusal(lambda: fit_shape(many_sums(), GUESS), ArgumentError, "'diagonal'"),
    Refusal(lambda: fit_shape(ROWS, GUESS, guard=1.0), ArgumentError, "guard"),
    Refusal(lambda: fit_shape(POINTS, RENYI, person=(1.0, 1e-6)), ArgumentError, "person"),
    Refusal(lambda: fit_shape(ROWS, GUESS, person=(1.0, 1e-6)), ArgumentError, "moments_from"),
    Refusal(lambda: fit_shape(EARLIER, GUESS, person=(1.0, 1e-300)), CalibrationError, "delta"),
    *[
        Refusal(lambda p=person: NoiseOptions(person=p), ArgumentError, "person")
        for person in (1.0, "ab", (1.0,))
    ],
    *[
        Refusal(lambda c=claim, s=each: fit_shape(s, c), CalibrationError, "guess")
        for claim in (RENYI, Guarantee.epsilon_delta(1.0, 1e-5))
        for each in (HOME, MANY)
    ],
]

SPENDING = [
    Refusal(
        lambda s=stds: measured_noise(np.eye(2), np.array(s), Spending.none(2)),
        CalibrationError,
        "left",
    )
    for stds in ([1.0, 0.9], [np.nan, 2.0])
]

SAMPLE_SIZES = [
    Refusal(lambda: plan(POINTS, JOINT.along(PROFILE), 1.0), ArgumentError, "sampled priors"),
    Refusal(lambda: plan(CLIPPED, JOINT, 1.0), ArgumentError, "FiniteProfile"),
    Refusal(
        lambda: plan(CLIPPED, JOINT.along(WholeSphere(dim=2)), 1.0), ArgumentError, "SampledSphere"
    ),
    Refusal(lambda: plan(CLIPPED, GUESS, 1.0), ArgumentError, str(GUESS)),
    Refusal(lambda: plan(sampled(QUERY), JOINT.along(PROFILE), 1.0), ScenarioError, "range"),
    Refusal(lambda: plan(CLIPPED, JOINT.along(PROFILE), np.nan), ArgumentError, "noise_std"),
    Refusal(lambda: plan(CLIPPED, JOINT.along(PROFILE), 0.1), CalibrationError, "samples"),
]


@pytest.mark.parametrize("refusal", [*SHAPES, *FITS, *SPENDING, *SAMPLE_SIZES])
def test_refused(refusal):
    check_refused(refusal)
