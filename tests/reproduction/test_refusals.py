# SPDX-License-Identifier: Apache-2.0
"""What the reproduction refuses: caps of a round, plans, outcomes and pictures."""

import io
import math

import numpy as np
import pytest
from PIL import Image
from tests.refusal_tables import positions, refusals
from tests.refusals import check_refused

from pufferslice.errors import ArgumentError
from reproduction import caps, gallery
from reproduction.cifar import planned_runs
from reproduction.experiment import Outcome
from reproduction.timing import fitted_exponent

AXES = np.eye(2)
DIAGONAL = [[0.6, 0.8]]
HALVES = [0.5, 0.5]
TWO_BLOCKS = caps.ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])
ROWS = ({"x": 1}, {"y": 1})
HOEFFDING = {"batch_size": 5, "mismatch_probability": 0.1, "tail_probability": 0.1}


def simulate(pair, batch, *, n_replicates=1, seed=1):
    return caps.simulate_discrepancies(
        lambda rng: pair, lambda rng: batch, n_replicates=n_replicates, seed=seed
    )


def picture():
    file = io.BytesIO()
    Image.new("RGB", (40, 20), "white").save(file, "PNG")
    return file.getvalue()


def across(tails, failures):
    return caps.across_rounds(tail_probabilities=tails, failure_probabilities=failures)


REFUSED = {
    ArgumentError: [
        ("sizes", lambda: caps.ClippedBlocks(sizes=[1, 2], clip_norms=[1.0])),
        ("size", lambda: caps.ClippedBlocks(sizes=[1.5], clip_norms=[1.0])),
        ("clip_norm", lambda: caps.ClippedBlocks(sizes=[1, 1], clip_norms=[1.0, math.nan])),
        ("at least one", lambda: caps.ClippedBlocks.by_size([], clip_norm=1.0)),
        ("size", lambda: caps.ClippedBlocks.by_size([2, -1], clip_norm=1.0)),
        ("clip_norm", lambda: caps.ClippedBlocks.by_size([2, 1], clip_norm=0.0)),
        ("lipschitz", lambda: caps.lipschitz_reach([-0.1], clip_norm=1.0)),
        ("lipschitz", lambda: caps.lipschitz_reach([math.inf], clip_norm=1.0)),
        ("clip_norm", lambda: caps.lipschitz_reach([0.1], clip_norm=0.0)),
        ("too large", lambda: caps.lipschitz_reach([1e300], clip_norm=1e300)),
        ("directions", lambda: caps.block_reach([[1.0, 1.0]], TWO_BLOCKS, preconditioner=AXES)),
        ("directions", lambda: caps.block_reach(np.eye(3), TWO_BLOCKS, preconditioner=AXES)),
        (
            "preconditioner",
            lambda: caps.block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=np.eye(3)),
        ),
        (
            "preconditioner",
            lambda: caps.block_reach(DIAGONAL, TWO_BLOCKS, preconditioner=math.nan * AXES),
        ),
        ("lipschitz", lambda: caps.block_reach_bound(DIAGONAL, TWO_BLOCKS, lipschitz=[1.0])),
        ("discrepancy_cap", lambda: caps.squared_caps([1.0], discrepancy_cap=-1, divisor=2)),
        ("divisor", lambda: caps.squared_caps([1.0], discrepancy_cap=1, divisor=0)),
        ("expected numbers", lambda: caps.squared_caps(["a"], discrepancy_cap=1, divisor=2)),
        (
            "mean_square_discrepancy",
            lambda: caps.mean_square_caps([1.0], mean_square_discrepancy=math.nan, divisor=2),
        ),
        ("shifts", lambda: caps.minimal_squared_caps(DIAGONAL, np.empty((0, 2)))),
        ("shifts", lambda: caps.minimal_squared_caps(DIAGONAL, [[math.nan, 1.0]])),
        ("symmetric", lambda: caps.matrix_caps(DIAGONAL, [[1.0, 0.5], [0.4, 1.0]])),
        ("eigenvalue", lambda: caps.matrix_caps(DIAGONAL, [[1.0, 2.0], [2.0, 1.0]])),
        ("variance", lambda: caps.projected_variance(AXES, np.diag([1.0, 0.0]))),
        ("order", lambda: caps.round_costs(1, [1.0], [1.0])),
        ("caps", lambda: caps.round_costs(2, [-1.0], [1.0])),
        ("caps", lambda: caps.round_costs(2, [], [])),
        ("variance", lambda: caps.round_costs(2, [1.0, 1.0], [1.0])),
        ("smallest_variance", lambda: caps.round_costs(4, [0.5, 9.0], [2.0, 0.0])),
        ("too large", lambda: caps.round_costs(2, [1e300], [1e-300])),
        ("weights", lambda: caps.average_round_cost([1.0, 1.0], [1.0])),
        ("order", lambda: caps.joint_round_cost(1, [1.0], [1.0])),
        ("costs", lambda: caps.largest_round_cost([-1.0], [1.0])),
        ("caps_by_draw", lambda: caps.subsampled_round_costs(2, [1.0], [0.0], [1.0])),
        ("log_probabilities", lambda: caps.subsampled_round_costs(2, [[1.0]], [-0.1], [1.0])),
        ("log_probabilities", lambda: caps.subsampled_round_costs(2, [[1.0]], [0.0, 0.0], [1.0])),
        ("costs", lambda: caps.average_round_cost(1.0, [1.0])),
        ("too large", lambda: caps.joint_total_squared_cap([[1e308]] * 2, [1.0])),
        ("total_squared_cap", lambda: caps.claimed_epsilon(2, -1.0, noise_std=1)),
        ("too large", lambda: caps.claimed_epsilon(2, 1e300, noise_std=1e-100)),
        ("epsilon", lambda: caps.claimed_noise_std(2, 0.0, 1.0)),
        ("too large", lambda: caps.claimed_noise_std(2, 1e-200, 1e200)),
        ("learning_rates", lambda: caps.recipe_noise(16, 1.0, [], squared_discrepancy=1.0)),
        ("learning_rate", lambda: caps.recipe_noise(16, 1.0, [0.1, 0.0], squared_discrepancy=1.0)),
        ("squared_discrepancy", lambda: caps.recipe_noise(16, 1.0, [0.1], squared_discrepancy=0.0)),
        ("tail_probability", lambda: caps.tail_cap([0, 1], np.log(HALVES), tail_probability=0.0)),
        ("sum to 1", lambda: caps.tail_cap([0, 1], [0.0, math.nan], tail_probability=0.1)),
        ("ascend", lambda: caps.tail_cap([1, 0], np.log(HALVES), tail_probability=0.1)),
        ("counts", lambda: caps.tail_cap([0.0, 1.0], np.log(HALVES), tail_probability=0.1)),
        ("batch_size", lambda: caps.hoeffding_tail_cap(**HOEFFDING | {"batch_size": 0})),
        (
            "from 0 to 1",
            lambda: caps.hoeffding_tail_cap(**HOEFFDING | {"mismatch_probability": 1.1}),
        ),
        (
            "tail_probability",
            lambda: caps.hoeffding_tail_cap(**HOEFFDING | {"tail_probability": 1.0}),
        ),
        ("draw_pair", lambda: simulate((np.zeros(3), np.zeros(4)), [0])),
        ("draw_batch", lambda: simulate((np.zeros(3), np.zeros(3)), [3])),
        ("draw_batch", lambda: simulate((np.zeros(3), np.zeros(3)), [-1])),
        ("draw_batch", lambda: simulate((np.zeros(3), np.zeros(3)), [0.5])),
        ("n_replicates", lambda: simulate(([0], [0]), [0], n_replicates=0)),
        ("seed", lambda: simulate(([0], [0]), [0], seed=-1)),
        ("tail_probabilities", lambda: across([0.1] * 11, [])),
        ("failure_probabilities", lambda: across([0.1], [-0.1])),
        ("finite", lambda: across([math.nan], [])),
        ("ladder-1024", lambda: planned_runs("other")),
        (
            "'an-experiment'",
            lambda: Outcome(experiment="an-experiment", scale="small", rows=ROWS, claims=()),
        ),
        ("sizes", positions(fitted_exponent), ([1], [1]), ([2, 2], [1, 2]), ([1, 2], [1])),
        ("sizes", positions(fitted_exponent), ([1, 2], [1, 0])),
    ],
    ValueError: [("10", lambda: gallery.small(picture(), "digest"))],
}


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, monkeypatch):
    monkeypatch.setattr(gallery, "LARGEST_PICTURE", 10)
    check_refused(refusal)
