# SPDX-License-Identifier: Apache-2.0
"""Total variation of record distributions, from above."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats
from tests.learning import counting

from pufferslice.errors import ArgumentError
from pufferslice.learning.differing import ROUNDING_SLACK, discrete_mismatch, gaussian_mismatch
from pufferslice.scenario.distributions import GaussianDistribution

HP = mp.clone()
HP.dps = 80


def exact_gaussian(first, second):
    """Half the integral of |p - q|, in pieces between the crossing points, to 80 digits."""
    (m1, s1), (m2, s2) = ((HP.mpf(m), HP.mpf(s)) for m, s in (first, second))
    a, b = 1 / s2**2 - 1 / s1**2, 2 * (m1 / s1**2 - m2 / s2**2)
    c = m2**2 / s2**2 - m1**2 / s1**2 + 2 * HP.log(s2 / s1)
    if a == 0:
        roots = [] if b == 0 else [-c / b]
    else:
        root = HP.sqrt(b * b - 4 * a * c)
        roots = sorted([(-b - root) / (2 * a), (-b + root) / (2 * a)])
    excess = [HP.ncdf((x - m1) / s1) - HP.ncdf((x - m2) / s2) for x in roots]
    steps = [abs(y - x) for x, y in zip([0, *excess], [*excess, 0], strict=True)]
    return sum(steps) / 2


class TestDiscrete:
    @pytest.mark.parametrize(
        ("first", "second", "known"),
        [
            ([0.5, 0.5], [0.25, 0.75], 0.25),
            ([1.0, 0.0], [0.0, 1.0], 1.0),
            ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5], 0.0),
            ({"cat": 0.1, "dog": 0.9}, {"dog": 0.8996, "cat": 0.1004}, 0.0004),
            ({"cat": 1.0}, {"dog": 1.0}, 1.0),
            (np.array([0.5, 0.5]), (0.5, 0.5), 0.0),
        ],
    )
    def test_known_answers(self, first, second, known):
        assert discrete_mismatch(first, second) == pytest.approx(known, abs=1e-15)

    @given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=30))
    def test_never_below_the_exact_sum_and_hardly_above(self, parts):
        p, q = (
            [(x + 1) / sum(y + 1 for y in side) for x in side] for side in zip(*parts, strict=True)
        )
        exact = sum(abs(Fraction(x) - Fraction(y)) for x, y in zip(p, q, strict=True)) / 2
        assert exact <= Fraction(discrete_mismatch(p, q))
        assert discrete_mismatch(p, q) == pytest.approx(float(exact), rel=1e-11, abs=1e-15)

    @given(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    def test_symmetric(self, parts):
        p = np.array(parts) / sum(parts)
        assert discrete_mismatch(p, p[::-1]) == discrete_mismatch(p[::-1], p)

    @pytest.mark.statistical
    def test_is_how_often_maximally_coupled_records_differ(self, rng):
        p, q = np.array([0.2, 0.5, 0.3]), np.array([0.3, 0.3, 0.4])
        shared = np.minimum(p, q)
        tau = discrete_mismatch(p, q)
        together = rng.random(100_000) < shared.sum()
        apart = [rng.choice(3, 100_000, p=(distribution - shared) / tau) for distribution in (p, q)]
        alike = rng.choice(3, 100_000, p=shared / shared.sum())
        first, second = (np.where(together, alike, side) for side in apart)
        for side, distribution in ((first, p), (second, q)):
            assert counting.p_value(side, distribution) > counting.THRESHOLD
        n_different = int((first != second).sum())
        assert stats.binomtest(n_different, 100_000, tau).pvalue > counting.THRESHOLD
        assert stats.binomtest(n_different, 100_000, 0.9 * tau).pvalue < counting.THRESHOLD

    @pytest.mark.parametrize("bad", [[0.5, 0.6], [1.5, -0.5], [], [0.5, math.nan]])
    def test_not_a_distribution(self, bad):
        with pytest.raises(ArgumentError, match="first must"):
            discrete_mismatch(bad, bad)
        with pytest.raises(ArgumentError, match="second must"):
            discrete_mismatch([0.5, 0.5], bad)

    def test_other_lengths(self):
        with pytest.raises(ArgumentError, match=r"second must have shape \(1,\), got \(2,\)"):
            discrete_mismatch([1.0], [0.5, 0.5])

    def test_mixed_forms(self):
        with pytest.raises(ArgumentError, match="both be sequences or both be mappings"):
            discrete_mismatch({0: 1.0}, [1.0])
        with pytest.raises(ArgumentError, match="both be sequences or both be mappings"):
            discrete_mismatch([1.0], {0: 1.0})


means = st.floats(-20, 20)
stds = st.floats(0.05, 20)


class TestGaussianLine:
    @pytest.mark.parametrize(
        ("first", "second", "known"),
        [
            ((0.0, 1.0), (1.0, 1.0), 0.38292492254802624),
            ((0.0, 2.0), (2.0, 2.0), 0.38292492254802624),
            ((0.0, 1.0), (0.0, 2.0), 0.3226745688347687),
            ((3.0, 1.0), (3.0, 1.0), 0.0),
        ],
    )
    def test_known_answers(self, first, second, known):
        # Second: 2 (Phi(x) - Phi(x/2)) at the crossing point x = sqrt(8 ln(2) / 3).
        assert gaussian_mismatch(first, second) == pytest.approx(known, abs=4e-15)

    @given(means, stds, means, stds)
    def test_never_below_many_digits_and_hardly_above(self, m1, s1, m2, s2):
        exact = exact_gaussian((m1, s1), (m2, s2))
        excess = float(HP.mpf(gaussian_mismatch((m1, s1), (m2, s2))) - exact)
        assert excess >= 0 or exact > 1 - HP.mpf(2) ** -53
        assert excess <= 3 * ROUNDING_SLACK

    @pytest.mark.parametrize("ratio", [1 + 2**-52, 1 + 1e-12, 1 + 1e-6, 1.001])
    @pytest.mark.parametrize("shift", [0.0, 1e-12, 1e-6, 0.5, 3.0])
    def test_nearly_equal_stds(self, shift, ratio):
        exact = exact_gaussian((0.0, 1.0), (shift, ratio))
        excess = float(HP.mpf(gaussian_mismatch((0.0, 1.0), (shift, ratio))) - exact)
        assert 0 <= excess <= 3 * ROUNDING_SLACK

    @pytest.mark.parametrize("shift", [1e-300, 1e-9, 0.1, 5.0])
    def test_equal_stds_keep_relative_digits(self, shift):
        exact = exact_gaussian((0.0, 1.0), (shift, 1.0)) if shift > 1e-30 else None
        value = gaussian_mismatch((0.0, 1.0), (shift, 1.0))
        known = float(exact) if exact is not None else shift / math.sqrt(2 * math.pi)
        assert value == pytest.approx(known, rel=1e-14)
        assert value >= known * (1 - 2**-52)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ((0.0, 1.0), (0.0, 1e17)),
            ((0.0, 1e-300), (0.0, 1e300)),
            ((0.0, 1.0), (1e300, 2.0)),
            ((-1e308, 1e-300), (1e308, 2e-300)),
            ((0.0, 1.0), (1e300, 1.0)),
        ],
    )
    def test_far_apart_is_one(self, first, second):
        assert gaussian_mismatch(first, second) == 1
        assert gaussian_mismatch(second, first) == 1

    @given(means, stds, means, stds, st.floats(0.1, 10), st.floats(-5, 5))
    def test_symmetric_and_free_of_units(self, m1, s1, m2, s2, scale, offset):
        value = gaussian_mismatch((m1, s1), (m2, s2))
        assert gaussian_mismatch((m2, s2), (m1, s1)) == pytest.approx(value, abs=1e-14)
        moved = [(scale * m + offset, scale * s) for m, s in ((m1, s1), (m2, s2))]
        assert gaussian_mismatch(*moved) == pytest.approx(value, abs=1e-12)

    @pytest.mark.parametrize("std", [0, -1.0, math.nan, math.inf, "1"])
    def test_std(self, std):
        with pytest.raises(ArgumentError, match="std of first must be a finite number greater"):
            gaussian_mismatch((0.0, std), (0.0, 1.0))
        with pytest.raises(ArgumentError, match="std of second must be a finite number greater"):
            gaussian_mismatch((0.0, 1.0), (0.0, std))

    @pytest.mark.parametrize("mean", [math.nan, math.inf, "zero"])
    def test_mean(self, mean):
        with pytest.raises(ArgumentError, match=r"mean of second must be finite|expected numbers"):
            gaussian_mismatch((0.0, 1.0), (mean, 1.0))

    def test_not_a_pair(self):
        with pytest.raises(ArgumentError, match="first must be a pair"):
            gaussian_mismatch((0.0, 1.0, 2.0), (0.0, 1.0))

    def test_mixed_forms(self):
        distribution = GaussianDistribution(mean=[0.0], cov=[[1.0]])
        with pytest.raises(ArgumentError, match="got GaussianDistribution and tuple"):
            gaussian_mismatch(distribution, (0.0, 1.0))
        with pytest.raises(ArgumentError, match="got tuple and list"):
            gaussian_mismatch((0.0, 1.0), [0.0, 1.0])


class TestGaussianSpace:
    def test_one_dimension_is_the_line(self):
        first, second = (
            GaussianDistribution(mean=[m], cov=[[s**2]]) for m, s in ((0.0, 1.0), (0.0, 2.0))
        )
        assert gaussian_mismatch(first, second) == gaussian_mismatch((0.0, 1.0), (0.0, 2.0))

    def test_by_hand(self):
        # Distance sqrt((3/1)^2 + (8/2)^2) = 5, so 2 Phi(2.5) - 1.
        cov = [[1.0, 0.0], [0.0, 4.0]]
        first, second = (
            GaussianDistribution(mean=[0, 0], cov=cov),
            GaussianDistribution(mean=[3, 8], cov=cov),
        )
        assert gaussian_mismatch(first, second) == pytest.approx(0.9875806693484477, rel=1e-14)

    @pytest.mark.parametrize("spread", [1.0, 1e3, 1e6])
    def test_never_below_many_digits(self, spread, rng):
        for _ in range(20):
            dim = int(rng.integers(2, 6))
            basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
            cov = (basis * np.geomspace(1, spread, dim)) @ basis.T
            cov = (cov + cov.T) / 2
            first, second = (
                GaussianDistribution(mean=m, cov=cov) for m in rng.standard_normal((2, dim))
            )
            gap = HP.matrix((first.mean - second.mean).tolist())
            distance = HP.sqrt((gap.T * HP.lu_solve(HP.matrix(cov.tolist()), gap))[0])
            exact = HP.erf(distance / HP.sqrt(8))
            value = gaussian_mismatch(first, second)
            assert exact <= HP.mpf(value)
            assert value == pytest.approx(float(exact), rel=1e-13 * spread)

    @pytest.mark.statistical
    def test_is_the_overlap_of_simulated_records(self, rng):
        cov = np.array([[2.0, 0.5], [0.5, 1.0]])
        distributions = [GaussianDistribution(mean=m, cov=cov) for m in ([0.0, 0.0], [1.0, -0.5])]
        records = rng.multivariate_normal(distributions[0].mean, cov, 200_000)
        p, q = (
            stats.multivariate_normal(distribution.mean, cov).pdf(records)
            for distribution in distributions
        )
        lost = np.maximum(0, 1 - q / p)
        tau = gaussian_mismatch(*distributions)
        noise = lost.std() / math.sqrt(len(lost))
        assert abs(lost.mean() - tau) < 6 * noise
        assert abs(lost.mean() - 0.95 * tau) > 6 * noise

    def test_other_covariance(self):
        first = GaussianDistribution(mean=[0, 0], cov=np.eye(2))
        second = GaussianDistribution(mean=[0, 0], cov=2 * np.eye(2))
        with pytest.raises(ArgumentError, match=r"same covariance.* Give an upper bound"):
            gaussian_mismatch(first, second)
        third = GaussianDistribution(mean=[0, 0, 0], cov=np.eye(3))
        with pytest.raises(ArgumentError, match="same covariance"):
            gaussian_mismatch(first, third)

    def test_singular_covariance(self):
        distribution = GaussianDistribution(mean=[0, 0], cov=[[1.0, 0.0], [0.0, 0.0]])
        with pytest.raises(ArgumentError, match="covariance must be positive definite"):
            gaussian_mismatch(distribution, distribution)

    def test_singular_line(self):
        distribution = GaussianDistribution(mean=[0], cov=[[0.0]])
        with pytest.raises(ArgumentError, match="std of first must be"):
            gaussian_mismatch(distribution, distribution)
