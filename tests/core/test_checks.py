# SPDX-License-Identifier: Apache-2.0
"""Argument checks: what passes, what raises, and what the message says."""

import math

import numpy as np
import pytest

from pufferslice._core import checks
from pufferslice.errors import ArgumentError


class TestNumbers:
    @pytest.mark.parametrize("value", [1.0000001, 2, np.float64(3), np.int64(4), 1e300])
    def test_above(self, value):
        checks.check_above(1, order=value)
        checks.check_at_least(1, order=value)

    @pytest.mark.parametrize("value", [0.1, 0.5, np.float64(0.9)])
    def test_between(self, value):
        checks.check_between(0, 1, delta=value)

    @pytest.mark.parametrize("value", [0, 1, 0.5, np.float64(1)])
    def test_share(self, value):
        checks.check_share(rate=value)

    @pytest.mark.parametrize("value", [2, 3, np.int64(5)])
    def test_count(self, value):
        checks.check_count(2, n=value)

    @pytest.mark.parametrize(("low", "value"), [(0.5, 40), (0, 100), (0, -3)])
    def test_only_what_may_be_a_percentage_gets_a_hint(self, low, value):
        with pytest.raises(ArgumentError) as caught:
            checks.check_between(low, 1, at_most=value)
        assert "%" not in str(caught.value)

    def test_what_passes(self):
        checks.check_fits(4, n=2**26)
        checks.check_one_of(("tight", "closed_form"), rule="tight")
        checks.check_unique("secrets", ["a", "b", "c"])
        checks.check_unique("secrets", iter(()))


class TestArrays:
    def test_finite(self):
        checks.check_finite(values=np.array([1.0, -2.0]), empty=np.zeros(0))

    def test_unit_rows(self):
        checks.check_unit_rows(directions=np.array([[0.6, 0.8], [1.0, 0.0], [0.0, -1.0]]))
        checks.check_unit_rows(directions=np.array([[1.0 + 1e-13, 0.0]]))

    def test_probabilities(self):
        checks.check_probabilities(length=2, weights=np.array([0.5, 0.5]))
        checks.check_probabilities(length=2, weights=np.array([1.0, 0.0]))
        checks.check_probabilities(length=2, weights=np.array([0.5, 0.5 + 1e-13]))

    def test_the_bad_ones_are_counted_not_shown(self):
        values = np.array([[123.5, math.nan], [math.inf, 0.0]])
        with pytest.raises(ArgumentError, match="2 of 4") as caught:
            checks.check_finite(values=values)
        assert "123.5" not in str(caught.value)
