# SPDX-License-Identifier: Apache-2.0
"""Moments in log space, and costs for many counts of which few are computed."""

import math

import numpy as np
import pytest
from mpmath import mp

from pufferslice.learning.differing import binomial
from pufferslice.learning.moments import binomial_log_moments, costs_by_count, log_mean_exp

HP = mp.clone()
HP.dps = 60


def test_log_mean_exp():
    """Small moments keep their digits, large ones do not overflow, columns are separate."""
    logs = np.log([0.5, 0.25, 0.25])
    tiny = log_mean_exp(logs, np.array([0.0, 1e-17, 3e-17]))
    assert float(tiny) == pytest.approx(1e-17, rel=1e-12)
    assert float(log_mean_exp(logs, np.zeros(3))) == 0.0
    logs = np.log([0.5, 0.5])
    assert float(log_mean_exp(logs, np.array([0.0, 1e300]))) == pytest.approx(1e300)
    assert float(log_mean_exp(logs, np.array([1.0, math.inf]))) == math.inf
    columns = log_mean_exp(logs[:, None], np.array([[0.0, 1.0], [2.0, 1.0]]))
    assert columns == pytest.approx([math.log((1 + math.e**2) / 2), 1.0])
    impossible = np.array([0.0, -math.inf])
    assert float(log_mean_exp(impossible, np.array([2.0, 50.0]))) == pytest.approx(2.0)


class TestBinomialLogMoments:
    @pytest.mark.soundness
    @pytest.mark.parametrize("scale", [1e-9, 0.05, 0.9])
    @pytest.mark.parametrize("chance", [1e-4, 0.5, 1.0])
    def test_never_below_the_sum(self, chance, scale):
        """Against all summands in 60 digits."""
        trials = np.array([64, 65, 120])
        bounds = binomial_log_moments(trials.astype(np.float64), np.full(3, chance), scale)
        for n, value in zip(trials.tolist(), bounds, strict=True):
            terms = [
                HP.binomial(n, k) * HP.mpf(chance) ** k * (1 - HP.mpf(chance)) ** (n - k)
                * HP.exp(HP.mpf(scale) ** 2 * k**2 / 2)
                for k in range(n + 1)
            ]  # fmt: skip
            truth = float(HP.log(HP.fsum(terms)))
            assert truth * (1 - 1e-15) <= value <= truth * (1 + 1e-11)


class TestCostsByCount:
    @pytest.mark.parametrize("is_convex", [False, True])
    def test_few_evaluations(self, is_convex):
        asked = []

        def costs_of(counts):
            asked.extend(counts.tolist())
            return 1e-4 * counts

        distribution = binomial(n_records=100_000, mismatch_probability=1e-4)
        costs = costs_by_count(costs_of, 4, distribution, is_convex=is_convex).costs
        assert len(costs) == 100_001
        assert len(asked) == len(set(asked)) < 150
        assert np.all(costs >= 1e-4 * distribution.counts * (1 - 1e-12))

    @pytest.mark.soundness
    @pytest.mark.parametrize("scale", [1e-12, 1e-4, 3e-3])
    @pytest.mark.parametrize("kind", ["step", "chord", "ceiling"])
    @pytest.mark.parametrize("chance", [0.001, 0.7])
    def test_a_bound_within_a_millionth(self, chance, kind, scale):
        distribution = binomial(n_records=5_000, mismatch_probability=chance)

        def costs_of(counts):
            return scale * counts.astype(np.float64) ** 2

        options = {"is_convex": kind == "chord"}
        if kind == "ceiling":
            options["ceiling"] = costs_of(distribution.counts) * 1.5 + 1e-3
        result = costs_by_count(costs_of, 4, distribution, **options)
        exact = costs_of(distribution.counts)
        assert np.all(result.costs >= exact * (1 - 1e-12))
        bound, truth = (
            float(log_mean_exp(distribution.log_probabilities, 3 * costs))
            for costs in (result.costs, exact)
        )
        assert truth * (1 - 1e-12) <= bound <= truth * (1 + 1e-6)

    @pytest.mark.parametrize("epsilon", [0.1, 10.0])
    def test_with_a_limit_the_side_is_right(self, epsilon):
        distribution = binomial(n_records=5_000, mismatch_probability=0.1)
        asked = []

        def costs_of(counts):
            asked.extend(counts.tolist())
            return 4e-6 * counts.astype(np.float64) ** 2  # about 1 under the distribution

        costs = costs_by_count(costs_of, 4, distribution, limit=epsilon).costs
        assert (log_mean_exp(distribution.log_probabilities, 3 * costs) / 3 <= epsilon) == (
            epsilon > 1
        )
        with_limit = len(asked)
        costs_by_count(costs_of, 4, distribution)
        assert with_limit < (len(asked) - with_limit) / 2

    def test_infinite_costs_stay_infinite(self):
        distribution = binomial(n_records=2_000, mismatch_probability=0.5)
        for is_convex in (False, True):
            result = costs_by_count(
                lambda counts: np.where(counts > 700, math.inf, 1.0 * counts), 4, distribution,
                is_convex=is_convex,
            )  # fmt: skip
            assert np.all(np.isinf(result.costs[701:]))
