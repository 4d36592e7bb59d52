# SPDX-License-Identifier: Apache-2.0
"""Bands, Hoeffding, Clopper-Pearson and splitting: known answers, exact tails, coverage."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pufferslice.sensitivity.concentration import (
    BANDS,
    LEVEL_QUANTA,
    MOST_SAMPLES,
    BandRanks,
    band_levels,
    band_ranks,
    clopper_pearson,
    dkw_halfwidth,
    samples_for_tail,
    split,
    tail_bound,
)

LAWS = {
    "skewed": stats.expon(),
    "heavy-tailed": stats.cauchy(),
    "discrete": stats.poisson(0.7),
    "tied": stats.bernoulli(0.999),
    "rare": stats.bernoulli(0.01),
    "continuous": stats.norm(),
}


def exact_tail(n, k, share):
    """P(Bin(n, share) >= k) in 40 digits, summed from k up; or 1 less the sum below k."""
    with mpmath.workdps(40):
        t = mpmath.mpf(share)

        def pmf(i):
            return mpmath.binomial(n, i) * t**i * (1 - t) ** (n - i)

        if k > n * share:
            term, total, i = pmf(k), mpmath.mpf(0), k
            while i <= n and (term > total * mpmath.mpf(10) ** -30 or total == 0):
                total += term
                term *= mpmath.mpf(n - i) / (i + 1) * t / (1 - t)
                i += 1
            return total
        return 1 - mpmath.fsum(pmf(i) for i in range(k))


class TestHalfwidth:
    def test_known_answer(self):
        assert dkw_halfwidth(1000, 0.05) == pytest.approx(0.0429469408346738, rel=1e-14)


class TestSplit:
    @given(st.floats(1e-12, 1, exclude_max=True), st.integers(1, 10**7))
    def test_the_parts_never_sum_to_more(self, failure, n_parts):
        share = Fraction(split(failure, n_parts))
        assert share * n_parts <= Fraction(failure) * (1 + Fraction(1, 2**52))
        assert share * n_parts >= Fraction(failure) * (1 - Fraction(1, 2**50))


class TestClopperPearson:
    @pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (1, 10**6)])
    def test_agrees_with_scipy(self, k, n):
        interval = stats.binomtest(k, n).proportion_ci(confidence_level=0.95, method="exact")
        assert clopper_pearson(k, n, 0.05) == pytest.approx((interval.low, interval.high), rel=1e-9)

    @pytest.mark.parametrize(
        ("k", "n", "confidence"), [(3, 10, 1e-17), (3, 10, 3e-16), (5, 10**5, 1e-20)]
    )
    def test_doubt_below_the_spacing_of_floats_next_to_1(self, k, n, confidence):
        """P(Bin(n, high) <= k) is half of the confidence, by 40 digits."""
        with mpmath.workdps(40):
            high = mpmath.mpf(clopper_pearson(k, n, confidence)[1])
            tail = mpmath.betainc(k + 1, n - k, high, 1, regularized=True)
        assert float(tail) == pytest.approx(confidence / 2, rel=1e-9)
        assert tail <= confidence / 2


class TestLevels:
    @given(st.integers(1, 10**6))
    @settings(max_examples=50)
    def test_symmetric_ascending_and_fine(self, n):
        levels = band_levels(n)
        assert (np.diff(levels) > 0).all()
        assert np.array_equal(levels, LEVEL_QUANTA - levels[::-1])
        assert levels[0] >= LEVEL_QUANTA / max(2, n)
        low = levels[levels <= LEVEL_QUANTA // 2]
        assert (low[1:] / low[:-1]).max(initial=1.0) <= 1 + 1 / 8 + 1e-9

    def test_there_are_few_even_for_the_largest_sample(self):
        assert len(band_levels(MOST_SAMPLES)) < 20_000


class TestRanks:
    @pytest.mark.parametrize("n", [7, 60, 400])
    def test_they_are_the_best_that_the_exact_tails_allow(self, n):
        """The smallest upper and the largest lower rank, but for a thousandth in the tail."""
        failure = 0.05
        band = band_ranks(n, failure, "order_statistics")
        share = failure / (2 * len(band.levels))
        for level, upper, lower in zip(band.levels, band.upper, band.lower, strict=True):
            t = level / LEVEL_QUANTA
            if upper <= n:
                assert exact_tail(n, int(upper), t) <= share
            assert exact_tail(n, int(upper) - 1, t) > share / 1.002
            # P(Bin <= k - 1) = 1 - P(Bin >= k), by the mirrored distribution.
            if lower >= 1:
                assert exact_tail(n, n + 1 - int(lower), 1 - t) <= share
            assert exact_tail(n, n - int(lower), 1 - t) > share / 1.002

    @pytest.mark.parametrize(("n", "most"), [(10**6, 1.0), (2 * 10**8, 1e-2), (10**10, 1e-5)])
    def test_large_samples_stay_on_the_safe_side(self, n, most):
        """At levels up to `most`: exact sums in the middle would take minutes."""
        band = band_ranks(n, 0.05, "order_statistics")
        share = 0.05 / (2 * len(band.levels))
        last = np.searchsorted(band.levels, most * LEVEL_QUANTA) - 1
        for index in np.linspace(0, last, 7).astype(int):
            t, upper = band.levels[index] / LEVEL_QUANTA, int(band.upper[index])
            if upper <= n:
                assert exact_tail(n, upper, t) <= share

    def test_tails_beyond_the_exact_ones_are_bounded(self):
        """Chernoff's inequality is an upper bound, and close."""
        n, shares = 2**34, np.array([1e-6])
        ranks = np.array([int(1e-6 * n + 6 * math.sqrt(1e-6 * n))])
        bound = float(tail_bound(n, ranks, shares)[0])
        assert exact_tail(n, int(ranks[0]), 1e-6) <= bound < 1e-7
        assert tail_bound(n, np.array([0]), shares)[0] == 1

    def test_dkw_ranks_are_those_of_the_shifted_levels(self):
        n, failure = 1000, 0.05
        band, e = band_ranks(n, failure, "dkw"), Fraction(dkw_halfwidth(n, failure))
        for level, upper, lower in zip(band.levels, band.upper, band.lower, strict=True):
            t = Fraction(int(level), LEVEL_QUANTA)
            assert upper == min(n + 1, math.ceil(n * (t + e)))
            assert lower == max(0, math.ceil(n * (t - e)))

    def test_what_is_missing(self):
        """DKW loses its half-width on each side, order statistics about ln(2J/rho)/n."""
        n, failure = 10_000, 0.01
        dkw, order = (band_ranks(n, failure, kind) for kind in ("dkw", "order_statistics"))
        e = dkw_halfwidth(n, failure)
        assert 2 * e <= dkw.missing <= 2 * e * 1.13
        tail = math.log(2 * len(order.levels) / failure) / n
        assert 2 * tail * 0.99 <= order.missing <= 2 * tail * 1.13
        assert order.missing < dkw.missing / 10

    @pytest.mark.soundness
    def test_between_levels_the_next_one_up_bounds_above_and_the_next_down_below(self):
        """Quantiles grow with the level; beyond the ends only a range bounds them."""
        levels = [LEVEL_QUANTA // 4, LEVEL_QUANTA // 2]
        band = BandRanks(n_samples=10, levels=levels, upper=[5, 8], lower=[1, 3])
        assert band.interval_upper.tolist() == [5, 8, 11]
        assert band.interval_lower.tolist() == [0, 1, 3]
        assert band.covered.tolist() == [False, True, False]
        assert band.missing == 0.75

    @pytest.mark.parametrize("kind", BANDS)
    def test_samples_for_tail(self, kind):
        n = samples_for_tail(0.01, 1e-3, kind)
        assert band_ranks(n, 1e-3, kind).missing <= 0.01
        assert band_ranks(int(n * 0.9), 1e-3, kind).missing > 0.01


def failures(distribution, kind, n, failure, n_runs, rng, *, squeeze=0):
    """In how many runs some quantile of the distribution is outside its order statistics."""
    band = band_ranks(n, failure, kind)
    truth = distribution.ppf(band.levels / LEVEL_QUANTA)
    upper, lower = band.upper - squeeze, band.lower + squeeze
    has_upper, has_lower = upper <= n, lower >= 1
    found = 0
    for _ in range(n_runs):
        x = np.sort(distribution.rvs(n, random_state=rng))
        above = truth[has_upper] > x[np.clip(upper[has_upper], 1, n) - 1]
        below = truth[has_lower] < x[np.clip(lower[has_lower], 1, n) - 1]
        found += bool(above.any() or below.any())
    return found


@pytest.mark.statistical
@pytest.mark.soundness
@pytest.mark.parametrize("kind", BANDS)
@pytest.mark.parametrize("name", LAWS)
def test_bands_cover_at_the_stated_failure_probability(name, kind, rng):
    """2,000 runs at failure probability 0.3: at most 700 fail, 5 standard deviations of room."""
    n_runs, failure = 2000, 0.3
    room = 5 * math.sqrt(n_runs * failure * (1 - failure))
    assert failures(LAWS[name], kind, 200, failure, n_runs, rng) <= n_runs * failure + room


@pytest.mark.statistical
def test_the_coverage_test_would_see_a_band_that_is_too_narrow(rng):
    """The same threshold rejects ranks moved inwards by a tenth of the DKW width and more."""
    n_runs, failure, n = 2000, 0.3, 200
    room = 5 * math.sqrt(n_runs * failure * (1 - failure))
    squeeze = math.ceil(0.25 * n * dkw_halfwidth(n, failure))
    found = failures(LAWS["continuous"], "dkw", n, failure, n_runs, rng, squeeze=squeeze)
    assert found > n_runs * failure + room


@pytest.mark.statistical
@pytest.mark.soundness
def test_a_single_level_fails_as_often_as_its_own_share_allows(rng):
    """One level has the exact binomial tail: right share accepted, ten times the share rejected."""
    n, level, n_runs = 50, LEVEL_QUANTA // 4, 20_000
    band = band_ranks(n, 0.2, "order_statistics", np.array([level]))
    k = int(band.upper[0])
    x = np.sort(rng.random((n_runs, n)), axis=1)
    found = int((x[:, k - 1] < 0.25).sum())
    assert stats.binomtest(found, n_runs, float(exact_tail(n, k, 0.25))).pvalue > 1e-6
    assert float(exact_tail(n, k, 0.25)) <= 0.1 < float(exact_tail(n, k - 1, 0.25))
