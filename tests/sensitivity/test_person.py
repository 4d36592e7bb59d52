# SPDX-License-Identifier: Apache-2.0
"""What a release shows of one person: distances, delta and epsilon, rounded up."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.person import (
    distance_within,
    row_delta,
    row_distance,
    row_epsilon,
)

pytestmark = pytest.mark.soundness

DISTANCES = st.floats(1e-4, 30.0)
EPSILONS = st.floats(0.0, 40.0)


def exact_delta(distance, epsilon):
    """The delta of two Gaussians in 60 digits."""
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(distance), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - eps / mu)
        return first - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


class TestDistance:
    def test_replacing_and_removing(self):
        """A row that adds 2 to 3 moves a sum by 1 if replaced, by 3 if it may be absent."""
        low, high = np.array([[2.0]]), np.array([[3.0]])
        half = np.array([[0.25]])
        assert row_distance(half, low, high) == pytest.approx(2.0)
        assert row_distance(half, low, high, absent=True) == pytest.approx(6.0)

    def test_absent_rows_join_negative_and_positive_ones(self):
        low, high = np.array([[-1.0]]), np.array([[2.0]])
        for absent in (False, True):
            assert row_distance(np.eye(1), low, high, absent=absent) == pytest.approx(3.0)

    def test_several_cells(self):
        cells = np.eye(3)
        assert row_distance(np.eye(3), cells, cells) == pytest.approx(math.sqrt(2))
        assert row_distance(np.eye(3) / 2, cells, cells, absent=True) == pytest.approx(2.0)


class TestDelta:
    @given(DISTANCES, EPSILONS)
    def test_never_below_the_exact_value_and_close(self, distance, epsilon):
        exact = exact_delta(distance, epsilon)
        found = row_delta(distance, epsilon, 0.0)
        assert exact <= found <= exact * (1 + 1e-12) + 1e-14 * (1 + distance)

    def test_implementation_of_the_noise_is_added(self):
        ideal = row_delta(0.5, 1.0, 0.0)
        expected = ideal + (1 + math.e) * 1e-4
        assert row_delta(0.5, 1.0, 1e-4) == pytest.approx(expected, rel=1e-12)

    def test_limits(self):
        assert row_delta(math.inf, 1.0, 0.0) == 1.0
        assert 0 < row_delta(0.0, 1.0, 0.0) < 1e-14


class TestEpsilon:
    @given(st.floats(1e-3, 6.0), st.floats(1e-9, 0.5))
    def test_it_meets_delta_and_hardly_a_smaller_one_does(self, distance, delta):
        epsilon = row_epsilon(distance, delta, 0.0)
        assert exact_delta(distance, epsilon) <= delta
        if epsilon > 0:
            assert exact_delta(distance, epsilon * (1 - 1e-4)) > delta * (1 - 1e-4)

    def test_known_answers(self):
        # mu = 1: delta(0) = 2 Phi(1/2) - 1.
        assert row_delta(1.0, 0.0, 0.0) == pytest.approx(0.382924922548026, rel=1e-12)
        assert row_epsilon(1.0, 0.382924922548026 * (1 + 1e-9), 0.0) < 1e-8
        with mpmath.workdps(30):
            root = mpmath.findroot(lambda eps: exact_delta(0.75, eps) - mpmath.mpf("1e-6"), 3)
        assert row_epsilon(0.75, 1e-6, 0.0) == pytest.approx(float(root), rel=1e-8)

    def test_noise_that_is_not_ideal_costs(self):
        assert row_epsilon(1.0, 1e-6, 1e-9) > row_epsilon(1.0, 1e-6, 0.0)
        assert row_epsilon(1.0, 1e-6, 1e-3) == math.inf
        assert row_epsilon(math.inf, 1e-6, 0.0) == math.inf


class TestDistanceWithin:
    @given(st.floats(0.0, 20.0), st.floats(1e-9, 0.9))
    def test_it_meets_the_claim_and_hardly_a_larger_one_does(self, epsilon, delta):
        distance = distance_within(epsilon, delta, 1e-25)
        assert row_delta(distance, epsilon, 1e-25) <= delta
        assert exact_delta(distance * (1 + 1e-4), epsilon) > delta

    def test_it_inverts_epsilon(self):
        distance = distance_within(2.0, 1e-6, 0.0)
        assert row_epsilon(distance, 1e-6, 0.0) == pytest.approx(2.0, rel=1e-6)

    def test_none_is_small_enough(self):
        assert distance_within(1.0, 1e-6, 1e-5) == 0.0

    @pytest.mark.parametrize("claim", [(-1.0, 1e-6), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)])
    def test_refused(self, claim):
        with pytest.raises(ArgumentError, match=r"epsilon|delta"):
            distance_within(*claim, 0.0)
