# SPDX-License-Identifier: Apache-2.0
"""Moments in log space, and costs for many counts of which few are computed."""

import math

import numpy as np
import pytest

from pufferslice.sgd.differing import binomial, from_pmf
from pufferslice.sgd.moments import costs_by_count, log_mean_exp


class TestLogMeanExp:
    def test_small_moments_keep_their_digits(self):
        logs = np.log([0.5, 0.25, 0.25])
        found = log_mean_exp(logs, np.array([0.0, 1e-17, 3e-17]))
        assert float(found) == pytest.approx(1e-17, rel=1e-12)
        assert float(log_mean_exp(logs, np.zeros(3))) == 0.0

    def test_large_moments_do_not_overflow(self):
        logs = np.log([0.5, 0.5])
        found = log_mean_exp(logs, np.array([0.0, 1e300]))
        assert float(found) == pytest.approx(1e300)
        assert float(log_mean_exp(logs, np.array([1.0, math.inf]))) == math.inf

    def test_columns_are_separate(self):
        logs = np.log([[0.5], [0.5]])
        found = log_mean_exp(logs, np.array([[0.0, 1.0], [2.0, 1.0]]))
        assert found == pytest.approx([math.log((1 + math.e**2) / 2), 1.0])

    def test_impossible_counts_do_not_matter(self):
        logs = np.array([0.0, -math.inf])
        assert float(log_mean_exp(logs, np.array([2.0, 50.0]))) == pytest.approx(2.0)


class TestCostsByCount:
    def test_few_counts_are_all_computed(self):
        law = from_pmf({0: 0.5, 3: 0.25, 9: 0.25})
        assert costs_by_count(lambda count: 2.0 * count, 4, law).tolist() == [0.0, 6.0, 18.0]

    def test_few_evaluations(self):
        asked = []

        def cost_of(count):
            asked.append(count)
            return 1e-4 * count

        law = binomial(n_records=100_000, mismatch_probability=1e-4)
        costs = costs_by_count(cost_of, 4, law)
        assert len(costs) == 100_001
        assert len(asked) == len(set(asked)) < 150
        assert np.all(costs >= 1e-4 * law.counts)

    def test_infinite_costs_stay_infinite(self):
        law = binomial(n_records=2_000, mismatch_probability=0.5)
        costs = costs_by_count(lambda count: math.inf if count > 700 else 1.0 * count, 4, law)
        assert np.all(np.isinf(costs[701:]))
