# SPDX-License-Identifier: Apache-2.0
"""Safe-side search: the answer is safe, close to the smallest, and found from anywhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice._core.search import (
    COARSE_WIDTH,
    RELATIVE_WIDTH,
    raise_until,
    smallest_epsilon,
    smallest_epsilons,
    smallest_safe,
    smallest_safe_multiplier,
)

powers = st.floats(-100, 100).map(lambda x: 2.0**x)


class TestSmallestSafe:
    @pytest.mark.soundness
    @given(scale=powers, limit=powers, start=powers, power=st.floats(0.5, 4))
    def test_safe_and_within_its_width_of_a_power_law(self, scale, limit, start, power):
        def cost(x):
            return (scale / x) ** power

        found = smallest_safe(cost, limit, start=start)
        assert cost(found) <= limit
        assert cost(found * (1 - 2 * RELATIVE_WIDTH)) > limit * (1 - 1e-14)

    @pytest.mark.parametrize("answer", [2e-150, 1e-96, 1e96, 0.9e150])
    def test_answers_near_the_ends_of_the_range_are_found(self, answer):
        found = smallest_safe(lambda x: answer / x, 1.0, start=1.0)
        assert found == pytest.approx(answer, rel=1e-12)

    @pytest.mark.soundness
    @given(scale=powers, start=powers, limit=st.floats(0.01, 20))
    def test_safe_and_close_where_the_cost_is_exponential(self, scale, start, limit):
        def cost(x):
            return math.inf if scale / x > 25 else math.expm1((scale / x) ** 2)

        found = smallest_safe(cost, limit, start=start)
        assert cost(found) <= limit
        exact = scale / math.sqrt(math.log1p(limit))
        assert found == pytest.approx(exact, rel=1e-12)

    @pytest.mark.soundness
    @given(step=powers, start=powers)
    def test_a_jump(self, step, start):
        """Infinite below the step, harmless from it on."""
        found = smallest_safe(lambda x: 0.5 if x >= step else math.inf, 1.0, start=start)
        assert step <= found <= step * (1 + 2 * RELATIVE_WIDTH)

    def test_only_evaluated_points_are_returned(self):
        seen = {}

        def cost(x):
            seen[x] = 8 / x**2
            return seen[x]

        found = smallest_safe(cost, 2.0, start=0.01)
        assert seen[found] <= 2.0
        assert len(seen) < 150

    def test_a_plateau_at_the_limit(self):
        found = smallest_safe(lambda x: 2.0 if 1 <= x <= 4 else (1 if x > 4 else 3), 2.0, start=9.0)
        assert found == pytest.approx(1.0, rel=1e-12)


class TestRaiseUntil:
    @given(value=powers)
    def test_the_next_float_is_enough(self, value):
        above = math.nextafter(value, math.inf)
        assert raise_until(lambda x: x >= above, value) == above

    @pytest.mark.soundness
    @given(value=powers, factor=st.floats(1, 1000))
    def test_holds_and_overshoots_by_no_more_than_the_way(self, value, factor):
        goal = value * factor
        found = raise_until(lambda x: x >= goal, value)
        assert found >= goal
        assert found - value <= 2.001 * (goal - value) + 2 * math.ulp(value)

    def test_a_square_root_that_lands_above_epsilon(self):
        """The case it is for: order * square / (2 sigma^2) a few last bits above epsilon."""
        moved = 0
        for k in range(1, 400):
            square, epsilon = k / 7, k / 13
            noise_std = math.sqrt(4 * square / (2 * epsilon))

            def holds(s, square=square, epsilon=epsilon):
                return 4 * square / (2 * s**2) <= epsilon

            found = raise_until(holds, noise_std)
            assert holds(found)
            assert found <= noise_std * (1 + 2.0**-50)
            moved += found > noise_std
        assert moved > 0


class TestExpensiveCosts:
    @pytest.mark.parametrize("start", [0.01, 1.0, 300.0])
    @pytest.mark.parametrize("cliff", [0.0, 1e3, 1e6])
    def test_few_evaluations_with_and_without_a_cliff(self, cliff, start):
        """ln(1 + mean cost and a far mode): the second summand rises from nothing to all of it."""
        asked = []

        def cost(x):
            asked.append(x)
            return float(np.logaddexp.reduce([0.0, 2 / x**2, cliff * (4 / x**2 - 1)])) - math.log(2)

        found = smallest_safe_multiplier(cost, 1.0, start=start)
        assert len(asked) == len(set(asked)) <= 40
        assert cost(found) <= 1.0 < cost(found * (1 - 2 * COARSE_WIDTH))

    def test_a_step_ends_too(self):
        found = smallest_safe_multiplier(lambda x: 0.5 if x >= 7 else math.inf, 1.0, start=1.0)
        assert 7 <= found <= 7 * (1 + COARSE_WIDTH)


@pytest.mark.soundness
def test_the_epsilon_that_is_found_leaves_no_more_than_the_limit():
    """Delta exp(-epsilon) / 2: the answer is -ln(2 limit), from above."""
    limits = np.linspace(0.001, 0.6, 200)
    found = smallest_epsilons(lambda e: np.exp(-e) / 2, np.ones(200), limits)
    assert (np.exp(-found) / 2 <= limits).all()
    assert found == pytest.approx(np.maximum(0, -np.log(2 * limits)), abs=1e-12)


@pytest.mark.soundness
@pytest.mark.parametrize("width", [2.0**-4, 2.0**-20])
def test_an_epsilon_of_a_wide_bracket_is_enough(width):
    found = smallest_epsilon(lambda e: math.exp(-e), 1e-5, width=width)
    assert 0 <= found / -math.log(1e-5) - 1 <= width * (1 + width)
    assert math.exp(-found) <= 1e-5


@pytest.mark.soundness
def test_a_first_epsilon_that_is_enough_is_not_exceeded():
    """The bisection ends above ln(2), but ln(2) itself was said to be enough."""
    root = math.nextafter(math.log(2), 1)
    assert smallest_epsilon(lambda e: math.exp(-e) / 2, 0.25, first=root) <= root


def test_an_epsilon_that_is_out_of_reach_is_infinite():
    assert smallest_epsilon(lambda _: 0.5, 0.25) == math.inf
    assert smallest_epsilon(lambda _: 0.25, 0.25) == 0.0
