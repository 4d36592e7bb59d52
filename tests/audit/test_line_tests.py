# SPDX-License-Identifier: Apache-2.0
"""Along one line: bounds by hand, exact coverage by summing over all outcomes, and their reach."""

import math

import numpy as np
import pytest
from scipy import stats

from pufferslice.audit.divergence import DeltaTest, EpsilonTest, LinePlan, RenyiTest

CUT = LinePlan(edges=[0.5])
P, Q = 0.7, 0.4
"""Probabilities of the bin above the edge under the two distributions."""

TRUTHS = {
    RenyiTest(order=2.0): math.log(P**2 / Q + (1 - P) ** 2 / (1 - Q)),
    RenyiTest(order=5.0): math.log(P**5 / Q**4 + (1 - P) ** 5 / (1 - Q) ** 4) / 4,
    EpsilonTest(delta=0.05): math.log((P - 0.05) / Q),
    DeltaTest(epsilon=0.2): P - math.exp(0.2) * Q,
}


def by_hand(test, low, high):
    """The bound from the two bounds of the bin above; of Rényi, that bin's own part."""
    if isinstance(test, EpsilonTest):
        return math.log((low - test.delta) / high)
    return low - math.exp(test.epsilon) * high


@pytest.mark.soundness
@pytest.mark.parametrize("test", TRUTHS)
@pytest.mark.parametrize("sizes", [(40, 40), (25, 60)])
def test_exact_coverage(test, sizes):
    """Over all outcomes; with shares of the whole confidence each, the promise would be broken."""
    n_statements = 4 if isinstance(test, RenyiTest) else 2
    failure = 0.2
    assert wrong_probability(test, sizes, failure / n_statements) <= failure
    if isinstance(test, RenyiTest):
        assert wrong_probability(test, sizes, 0.49) > failure


def wrong_probability(test, sizes, share):
    total = 0.0
    for k in range(sizes[0] + 1):
        for m in range(sizes[1] + 1):
            counts = (np.array([sizes[0] - k, k]), np.array([sizes[1] - m, m]))
            if test.bound(CUT, counts, share) > TRUTHS[test]:
                total += stats.binom.pmf(k, sizes[0], P) * stats.binom.pmf(m, sizes[1], Q)
    return total


@pytest.mark.parametrize("test", [EpsilonTest(delta=0.01), DeltaTest(epsilon=0.3)])
def test_threshold_bound_by_hand(test):
    counts, share = (np.array([10, 90]), np.array([70, 30])), 0.01
    low, high = stats.beta.ppf(share, 90, 11), stats.beta.ppf(1 - share, 31, 70)
    assert test.bound(CUT, counts, share) == pytest.approx(by_hand(test, low, high))
    below = LinePlan(edges=[0.5], above=False)
    assert test.bound(below, counts, share) == 0


def test_renyi_bound_by_hand():
    counts, share = (np.array([10, 90]), np.array([70, 30])), 0.01
    lows = stats.beta.ppf(share, [10, 90], [91, 11])
    highs = stats.beta.ppf(1 - share, [71, 31], [30, 70])
    expected = math.log((lows**3 * highs**-2.0).sum()) / 2
    assert RenyiTest(order=3.0).bound(CUT, counts, share) == pytest.approx(expected)


def test_no_cut_is_no_bound():
    counts = (np.array([100]), np.array([100]))
    assert RenyiTest(order=2.0).bound(LinePlan(edges=[]), counts, 0.01) == 0
    assert LinePlan(edges=[]).n_bins == 2


@pytest.mark.parametrize("test", TRUTHS)
def test_reach_is_the_bound_at_perfect_separation(test):
    n, share = 500, 1e-4
    counts = (np.array([0, n]), np.array([n, 0]))
    reach = test.reach((n, n), share)
    assert test.bound(CUT, counts, share) == pytest.approx(reach, rel=1e-6)
    for k in (0, 1, 250, 499, 500):
        for m in (0, 1, 250, 499, 500):
            some = (np.array([n - k, k]), np.array([n - m, m]))
            assert test.bound(CUT, some, share) <= reach * (1 + 1e-9)


@pytest.mark.parametrize("test", [RenyiTest(order=2.0), EpsilonTest(delta=1e-5)])
def test_reach_is_about_the_logarithm_of_the_outputs(test):
    assert test.reach((10**6, 10**6), 1e-3) == pytest.approx(
        math.log(10**6 / math.log(1e3)), abs=0.02
    )


def test_out_of_reach_is_zero():
    assert RenyiTest(order=2.0).reach((3, 3), 1e-9) == 0
    assert EpsilonTest(delta=0.5).reach((3, 3), 1e-3) == 0
    assert DeltaTest(epsilon=800.0).reach((1000, 1000), 1e-3) == 0


@pytest.mark.parametrize("test", TRUTHS)
def test_plans_find_the_difference(test, rng):
    pilot = np.sort(rng.normal(1, 1, 5_000)), np.sort(rng.normal(0, 1, 5_000))
    plan = test.plan(pilot, (45_000, 45_000), 1e-3)
    assert plan.promise > 0.1
    assert len(plan.edges) >= 1
    mirrored = np.sort(-pilot[0]), np.sort(-pilot[1])
    other = test.plan(mirrored, (45_000, 45_000), 1e-3)
    if not isinstance(test, RenyiTest):
        assert plan.above
        assert not other.above


def test_plans_of_equal_distributions_promise_nothing_much(rng):
    pilot = np.sort(rng.normal(0, 1, 5_000)), np.sort(rng.normal(0, 1, 5_000))
    assert RenyiTest(order=2.0).plan(pilot, (45_000, 45_000), 1e-3).promise < 0.01


def test_words():
    assert RenyiTest(order=4.0).statistic == "Rényi divergence of order 4"
    assert EpsilonTest(delta=1e-5).statistic == "epsilon at delta 1e-05 by the best threshold"
    assert DeltaTest(epsilon=2.0).statistic == "delta at epsilon 2 by the best threshold"
