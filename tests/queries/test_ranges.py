# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pufferslice.queries import Ball, Box, columns
from pufferslice.queries.ranges import range_of

POINTS = hnp.arrays(float, st.tuples(st.integers(1, 5), st.just(3)), elements=st.floats(-1e9, 1e9))


class TestBox:
    def test_known_answer(self):
        box = Box([0, -1], [1, 3])
        assert box.dim == 2
        np.testing.assert_array_equal(box.center, [0.5, 1.0])
        clipped = box.clip(np.array([[-1.0, 2.0], [0.5, 9.0]]))
        np.testing.assert_array_equal(clipped, [[0, 2], [0.5, 3]])

    @given(POINTS)
    def test_clipped_points_are_inside_and_inside_points_stay(self, points):
        box = Box([-1, 0, -1e6], [1, 7, 1e6])
        clipped = box.clip(points)
        assert ((clipped >= box.low) & (clipped <= box.high)).all()
        inside = ((points >= box.low) & (points <= box.high)).all(axis=1)
        np.testing.assert_array_equal(clipped[inside], points[inside])
        np.testing.assert_array_equal(box.clip(clipped), clipped)


class TestBall:
    def test_known_answer(self):
        ball = Ball([1, 1], 5)
        clipped = ball.clip(np.array([[1.0, 2.0], [7.0, 9.0]]))
        np.testing.assert_allclose(clipped, [[1, 2], [4, 5]])
        assert ball.dim == 2

    @given(POINTS)
    def test_clipped_points_are_the_nearest_inside(self, points):
        ball = Ball([1, -2, 3], 2.5)
        clipped = ball.clip(points)
        distances = np.linalg.norm(points - ball.center, axis=1)
        kept = np.linalg.norm(clipped - ball.center, axis=1)
        np.testing.assert_allclose(kept, np.minimum(distances, 2.5), rtol=1e-12)
        np.testing.assert_array_equal(clipped[distances <= 2.5], points[distances <= 2.5])
        # Moved along the ray to the center: the rest of the way is what was cut off.
        np.testing.assert_allclose(
            np.linalg.norm(points - clipped, axis=1), distances - kept, rtol=1e-9, atol=1e-9
        )

    @pytest.mark.soundness
    @given(POINTS, st.lists(st.sampled_from([0.0, np.nan, np.inf]), min_size=3, max_size=3))
    def test_what_is_not_finite_leaves_no_coordinate_unclipped(self, points, odd):
        ball = Ball([1, -2, 3], 2.5)
        query = columns(["a", "b", "c"]).with_range(ball)
        with np.errstate(invalid="ignore"):
            prepared = query.prepared_or_center(points + odd)
        assert (np.linalg.norm(prepared - ball.center, axis=1) <= 2.5 * (1 + 1e-12)).all()


RANGES = [Box([0, -3, 2], [1, 5, 9]), Ball([1.0, -2.0, 0.5], 4.0)]
SCALES = np.array([0.5, 2.0, 7.0])


@pytest.mark.parametrize("limits", RANGES, ids=["box", "ball"])
class TestSupport:
    @given(st.integers(0, 2**32))
    def test_no_clipped_point_is_outside(self, limits, seed):
        """Nor far inside: some corner, or some surface point, comes close to both ends."""
        rng = np.random.default_rng(seed)
        directions = rng.normal(size=(5, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        ends = limits.support(directions, SCALES)
        points = limits.clip(rng.normal(0, 1e3, size=(4000, 3))) / SCALES
        values = points @ directions.T
        assert (values >= ends[:, 0]).all()
        assert (values <= ends[:, 1]).all()
        widths = ends[:, 1] - ends[:, 0]
        assert (values.max(axis=0) - values.min(axis=0) >= 0.8 * widths).all()

    def test_the_widest_support_is_the_diameter(self, limits):
        rng = np.random.default_rng(3)
        directions = rng.normal(size=(20_000, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        ends = limits.support(directions, SCALES)
        width, diameter = (ends[:, 1] - ends[:, 0]).max(), limits.diameter(SCALES)
        assert width <= diameter * (1 + 1e-12)
        # A box is wider between its corners than along most directions.
        assert width >= 0.98 * diameter

    def test_the_description_stands_for_the_range(self, limits):
        assert range_of(limits.description()) == limits
        assert range_of(None) is None


def test_diameters_by_hand():
    assert Box([0, 0], [3, 4]).diameter(np.ones(2)) == pytest.approx(5, rel=1e-13)
    assert Box([0, 0], [6, 4]).diameter(np.array([2.0, 1.0])) == pytest.approx(5, rel=1e-13)
    assert Ball([9, 9], 2).diameter(np.array([4.0, 0.5])) == pytest.approx(8, rel=1e-13)
    assert Box([0, 0], [3, 4]).diameter(np.ones(2)) >= 5


def test_sizes_near_the_largest_float():
    assert Box([-1e150], [1e150]).diameter(np.ones(1)) == pytest.approx(2e150)
    np.testing.assert_allclose(Ball([0, 0], 5).clip(np.array([[3e200, 4e200]])), [[3, 4]])


def test_a_box_far_from_zero_holds_its_rounded_points():
    low, scales = 8238232307882338.0, np.full(2, 7.200452171505143)
    box = Box([low, low], [low + 2, low + 2])
    ends = np.array([[low, low], [low + 2, low + 2]]) / scales
    assert np.linalg.norm(ends[1] - ends[0]) <= box.diameter(scales)
