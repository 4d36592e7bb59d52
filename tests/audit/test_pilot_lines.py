# SPDX-License-Identifier: Apache-2.0
"""Lines that pilots recommend: known answers, singular covariances, and too few outputs."""

import numpy as np
import pytest

from pufferslice.audit.divergence import (
    Claimed,
    Lines,
    PilotRange,
    RenyiTest,
    SplitOutputs,
    audit_lines,
    both_orders,
)
from pufferslice.audit.noise import (
    LEAST,
    MOST_AXES,
    WHITENED,
    least_direction,
    pilot_lines,
    whitened_difference,
)


def same_line(first, second, **tolerance):
    return abs(float(np.dot(first, second))) == pytest.approx(1.0, **tolerance)


def test_known_answers():
    covariance = np.diag([4.0, 1.0])
    assert same_line(least_direction(covariance), [0, 1])
    by_hand = np.array([2.0 / 4, 1.0]) / np.hypot(0.5, 1)
    assert whitened_difference(covariance, np.array([2.0, 1.0])) == pytest.approx(by_hand)
    assert whitened_difference(covariance, np.zeros(2)) is None


@pytest.mark.parametrize("dim", [2, 4])
def test_where_there_is_no_noise_only_that_counts(rng, dim):
    """One number in all coordinates: what is left of the difference lies across it."""
    shift = np.arange(1.0, dim + 1)
    noise = [np.repeat(rng.normal(size=(1_000, 1)), dim, axis=1) for _ in range(2)]
    found = pilot_lines(noise[0] + shift, noise[1])
    assert same_line(found[WHITENED], (shift - shift.mean()) / np.linalg.norm(shift - shift.mean()))
    assert abs(found[LEAST].sum()) < 1e-6


def test_constant_outputs_leave_the_difference():
    found = pilot_lines(np.tile([1.0, 2.0], (50, 1)), np.zeros((50, 2)))
    assert same_line(found[WHITENED], np.array([1, 2]) / np.sqrt(5))
    assert list(pilot_lines(np.ones((50, 2)), np.ones((50, 2)))) == [LEAST]


@pytest.mark.parametrize(("n_outputs", "dim"), [(500, 1), (39, 4), (10_000, MOST_AXES + 1)])
def test_no_lines_from_one_or_too_many_coordinates_or_too_few_outputs(rng, n_outputs, dim):
    assert pilot_lines(rng.normal(size=(n_outputs, dim)), rng.normal(size=(n_outputs, dim))) == {}


def test_the_range_is_a_little_wider_than_the_pilot(rng):
    pilot = rng.uniform(-1, 1, (1_000, 3)) * [1, 5, 0]
    within = PilotRange.of(pilot)
    assert not within.left_by(pilot).any()
    outside = np.array([[1.1, 0, 0], [0, -5.5, 0], [0, 0, 1e-3], [0.9, 4.5, 0]])
    assert within.left_by(outside).tolist() == [True, True, True, False]


@pytest.mark.soundness
def test_outputs_out_of_the_range_are_seen_as_such(rng):
    """Uniform noise in three coordinates, moved across the line that is looked along."""
    points = {name: rng.uniform(-1, 1, (20_000, 3)) for name in ("a", "b")}
    points["a"] += [0.0, 0.05, 0.05]
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    bounds = []
    for within in (None, PilotRange.of(parts["b"].pilot)):
        lines = Lines(np.eye(1, 3), ("axis 0",), within)
        found = audit_lines(
            [(both_orders("declared", parts, [("a", "b")])[0], lines)],
            RenyiTest(order=4.0),
            Claimed("a claim", "epsilon", 1.0),
            confidence=0.95,
        )
        bounds.append(found.lower_bound)
    assert bounds[0] < 0.1
    assert bounds[1] > 1.0
