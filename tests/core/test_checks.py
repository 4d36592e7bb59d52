# SPDX-License-Identifier: Apache-2.0
"""Argument checks: what passes, what raises, and what the message says."""

import math
from fractions import Fraction

import numpy as np
import pytest

from pufferslice._core import checks
from pufferslice.errors import ArgumentError, PuffersliceError


def refused(call, match):
    with pytest.raises(ArgumentError, match=match) as caught:
        call()
    assert isinstance(caught.value, PuffersliceError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


NOT_NUMBERS = ["1", None, [2.0], 2j]
HUGE = 10**400
"""An integer beyond all floats."""


class TestNumbers:
    @pytest.mark.parametrize("value", [1.0000001, 2, np.float64(3), np.int64(4), 1e300])
    def test_above(self, value):
        checks.check_above(1, order=value)
        checks.check_at_least(1, order=value)

    @pytest.mark.parametrize("value", [1, 0.5, math.nan, math.inf, HUGE, -HUGE])
    def test_not_above(self, value):
        message = refused(lambda: checks.check_above(1, good=2, order=value), "order must be .* 1")
        assert str(value)[:20] in message

    @pytest.mark.parametrize("value", [0.999, -2, math.nan, math.inf, HUGE])
    def test_not_at_least(self, value):
        refused(lambda: checks.check_at_least(1, order=value), "order must be")

    @pytest.mark.parametrize("value", [0.1, 0.5, np.float64(0.9)])
    def test_between(self, value):
        checks.check_between(0, 1, delta=value)

    @pytest.mark.parametrize("value", [0, 1.0, 2, math.nan, HUGE])
    def test_not_between(self, value):
        refused(lambda: checks.check_between(0, 1, delta=value), "delta must lie strictly between")

    def test_a_percentage_gets_a_hint(self):
        refused(lambda: checks.check_between(0, 1, shares=25), "got 25; write 25 % as 0.25")
        for low, value in [(0.5, 40), (0, 100), (0, -3)]:
            with pytest.raises(ArgumentError) as caught:
                checks.check_between(low, 1, at_most=value)
            assert "%" not in str(caught.value)

    @pytest.mark.parametrize("value", [0, 1, 0.5, np.float64(1)])
    def test_share(self, value):
        checks.check_share(rate=value)

    @pytest.mark.parametrize("value", [-1e-300, math.nextafter(1, 2), 2, math.nan, -math.inf])
    def test_not_a_share(self, value):
        refused(lambda: checks.check_share(rate=value), "rate must be a number from 0 to 1")

    @pytest.mark.parametrize("value", NOT_NUMBERS)
    def test_not_a_number(self, value):
        refused(lambda: checks.check_share(x=value), "x")
        refused(lambda: checks.check_above(0, x=value), "x")
        refused(lambda: checks.check_at_least(0, x=value), "x")
        refused(lambda: checks.check_between(0, 1, x=value), "x")
        refused(lambda: checks.check_count(0, x=value), "x")

    @pytest.mark.parametrize("value", [2, 3, np.int64(5)])
    def test_count(self, value):
        checks.check_count(2, n=value)

    @pytest.mark.parametrize("value", [1, 2.5, 2.0, True, math.nan, Fraction(5, 2)])
    def test_not_a_count(self, value):
        refused(lambda: checks.check_count(2, n=value), "n must be")

    def test_what_fills_the_memory(self):
        checks.check_fits(4, n=2**26)
        refused(lambda: checks.check_fits(4, n=2**26 + 1), "n must be at most 67108864 of 4 num")
        refused(lambda: checks.check_fits(1, n=2**70), "n must be at most 268435456, got 11805")


class TestWords:
    def test_one_of(self):
        checks.check_one_of(("tight", "closed_form"), rule="tight")
        refused(
            lambda: checks.check_one_of(("tight", "closed_form"), rule="loose"),
            "rule must be one of tight, closed_form; got 'loose'",
        )

    def test_unique(self):
        checks.check_unique("secrets", ["a", "b", "c"])
        checks.check_unique("secrets", iter(()))
        message = refused(lambda: checks.check_unique("secrets", iter(["a", "b", "a"])), "secrets")
        assert "a" in message


class TestArrays:
    def test_finite(self):
        checks.check_finite(values=np.array([1.0, -2.0]), empty=np.zeros(0))

    def test_the_bad_ones_are_counted_not_shown(self):
        values = np.array([[123.5, math.nan], [math.inf, 0.0]])
        message = refused(lambda: checks.check_finite(values=values), "values must be finite")
        assert "2 of 4" in message
        assert "123.5" not in message
        refused(
            lambda: checks.check_finite(good=np.zeros(1), bad=np.array([math.nan])), "bad must be"
        )

    def test_unit_rows(self):
        checks.check_unit_rows(directions=np.array([[0.6, 0.8], [1.0, 0.0], [0.0, -1.0]]))
        checks.check_unit_rows(directions=np.array([[1.0 + 1e-13, 0.0]]))

    @pytest.mark.parametrize("length", [1 + 1e-11, 1 - 1e-11, 0.0, 2.0])
    def test_not_unit_rows(self, length):
        rows = np.array([[1.0, 0.0], [0.6 * length, 0.8 * length]])
        message = refused(lambda: checks.check_unit_rows(directions=rows), "unit vectors")
        assert "row 1" in message

    def test_not_rows(self):
        for shape in ((2,), (0, 1), (1, 0)):
            rows = np.ones(shape)
            refused(lambda rows=rows: checks.check_unit_rows(directions=rows), "shape")
        refused(lambda: checks.check_unit_rows(directions=np.array([[math.nan]])), "finite")

    def test_probabilities(self):
        checks.check_probabilities(length=2, weights=np.array([0.5, 0.5]))
        checks.check_probabilities(length=2, weights=np.array([1.0, 0.0]))
        checks.check_probabilities(length=2, weights=np.array([0.5, 0.5 + 1e-13]))

    @pytest.mark.parametrize(
        "weights",
        [[0.5, 0.6], [-0.1, 1.1], [1.0], [0.2, 0.3, 0.5], [math.nan, 1.0], [0.5, 0.5 + 1e-11]],
    )
    def test_not_probabilities(self, weights):
        refused(
            lambda: checks.check_probabilities(length=2, weights=np.array(weights)), "weights must"
        )
