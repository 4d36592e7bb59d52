# SPDX-License-Identifier: Apache-2.0
"""Divergences, envelopes and their aggregation, against quadrature and closed forms."""

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from tests import oracles
from tests.oracles import HP, exact_delta

from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import (
    aggregate,
    aggregate_average,
    aggregate_joint,
    gaussian_delta,
    gaussian_divergence,
    gaussian_divergence_nd,
    gaussian_envelope,
    transport_envelope,
)


def normal(mean, variance):
    return np.array(float(mean)), np.array(float(variance))


def integral(order, first, second):
    """Rényi divergence of two densities on the line, by mpmath."""
    power = mp.quad(
        lambda x: first(x) ** order * second(x) ** (1 - order), [-60, -20, -5, 0, 5, 20, 60]
    )
    return mp.log(power) / (order - 1)


class TestGaussianDivergence:
    def test_known_answer(self):
        value = gaussian_divergence(4, normal(1, 1), normal(0, 1.5**2))
        assert float(value) == pytest.approx(0.575326899272877, rel=1e-14)

    @pytest.mark.parametrize("order", [1.25, 2.0, 4.0])
    def test_agrees_with_quadrature(self, order):
        value = gaussian_divergence(order, normal(0.7, 1.3), normal(-0.4, 1.9))
        density = [
            lambda x: mp.npdf(x, 0.7, mp.sqrt(1.3)),
            lambda x: mp.npdf(x, -0.4, mp.sqrt(1.9)),
        ]
        assert float(value) == pytest.approx(float(integral(order, *density)), rel=1e-12)

    def test_noise_widens_both(self):
        noisy = gaussian_divergence(4, normal(1, 0.25), normal(0, 1.5), 0.75)
        assert float(noisy) == pytest.approx(0.575326899272877, rel=1e-14)

    def test_infinite_where_the_mixed_variance_is_not_positive(self):
        assert gaussian_divergence(2, normal(0, 2), normal(0, 1)) == math.inf
        assert gaussian_divergence(2, normal(0, 2.1), normal(0, 1)) == math.inf
        assert gaussian_divergence(2, normal(0, 1.99), normal(0, 1)) < math.inf

    @given(st.floats(1.05, 20), st.floats(-5, 5), st.floats(0.1, 10), st.floats(0.1, 10))
    def test_agrees_with_40_digits(self, order, shift, v1, v2):
        value = float(gaussian_divergence(order, normal(shift, v1), normal(0, v2)))
        expected = oracles.gaussian_divergence(order, (shift, v1), (0, v2))
        mixed = order * v2 + (1 - order) * v1
        if abs(mixed) > 1e-6:
            assert value == pytest.approx(float(expected), rel=1e-7, abs=1e-13)
        assert value >= -1e-13


class TestGaussianDivergenceInAllDimensions:
    @pytest.mark.parametrize("order", [1.5, 2.0, 4.0])
    def test_agrees_with_simultaneous_diagonalisation(self, order, rng):
        for dim in (1, 2, 5):
            a, b = rng.normal(size=(2, dim, dim))
            first = rng.normal(size=dim), a @ a.T / dim + np.eye(dim)
            second = rng.normal(size=dim), b @ b.T / dim + 2 * np.eye(dim)
            ratios, basis = scipy.linalg.eigh(first[1], second[1])
            shift = basis.T @ (first[0] - second[0])
            expected = math.fsum(
                float(oracles.gaussian_divergence(order, (m, v), (0, 1)))
                for m, v in zip(shift, ratios, strict=True)
            )
            assert gaussian_divergence_nd(order, first, second) == pytest.approx(
                expected, rel=1e-10
            )

    def test_infinite_unless_the_mixed_covariance_is_positive_definite(self):
        wide, narrow = (np.zeros(2), np.diag([1.0, 3.0])), (np.zeros(2), np.eye(2))
        assert gaussian_divergence_nd(2, wide, narrow) == math.inf
        # Two negative eigenvalues have a positive determinant.
        wider = np.zeros(2), np.diag([3.0, 3.0])
        assert gaussian_divergence_nd(2, wider, narrow) == math.inf
        assert gaussian_divergence_nd(2, narrow, wide) < math.inf

    @pytest.mark.soundness
    def test_never_negative_next_to_infinity(self, rng):
        """A mixed covariance singular up to rounding: solved for the shift, it gave -1e15."""
        for _ in range(300):
            roots = rng.normal(size=(2, 3, 3))
            covs = roots @ roots.transpose(0, 2, 1)
            least = np.linalg.eigvalsh(covs[0] - 2 * covs[1])[-1]
            noise = max(0, least) * (1 + rng.integers(-4, 9) * 2.0**-52)
            first, second = (rng.normal(size=3), covs[0]), (np.zeros(3), covs[1])
            assert gaussian_divergence_nd(2, first, second, noise) >= 0

    @pytest.mark.soundness
    @pytest.mark.parametrize("order", [1.05, 2.0, 64.0])
    @pytest.mark.parametrize("spread", [0.0, 1e-9, 0.1])
    def test_with_an_error_no_rounding_makes_it_too_small(self, order, spread, rng):
        """Against 60 digits, for numbers off by the error, next to singular."""
        error = 2.0**-50
        for condition in (1.0, 1e4, 1e9):
            axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
            root = axes * np.sqrt(np.geomspace(1 / condition, 1.0, 3))
            other = root + spread / order * root @ rng.normal(size=(3, 3))
            first, second = (part @ part.T for part in (other if spread else root, root))
            shift = root @ rng.normal(size=3)
            bound = gaussian_divergence_nd(order, (shift, first), (np.zeros(3), second), 0.0, error)
            # Off by the error, so that the least noisy direction loses most.
            least = axes[:, 0]
            off = error * np.sign(np.outer(least, least))
            two = second - off * np.abs(second)
            one = first + (off if spread else -off) * np.abs(first)
            exact = exact_divergence(order, shift * (1 + error), one, two)
            assert bound >= exact
            if condition < 1e6:
                assert bound == pytest.approx(float(exact), rel=1e-6, abs=1e-12)

    def test_noise_may_differ_between_coordinates(self, rng):
        roots = rng.normal(size=(2, 3, 3))
        (one, two), noises = roots @ roots.transpose(0, 2, 1), np.array([9.0, 16.0, 25.0])
        shift = rng.normal(size=3)
        value = gaussian_divergence_nd(1.5, (shift, one), (np.zeros(3), two), noises)
        noisy = (shift, one + np.diag(noises)), (np.zeros(3), two + np.diag(noises))
        assert value == pytest.approx(gaussian_divergence_nd(1.5, *noisy), rel=1e-12)


def exact_divergence(order, shift, first, second):
    """Of N(shift, first) from N(0, second), by determinants with 60 digits."""
    with HP.workdps(60):
        one, two, apart = (HP.matrix(part.tolist()) for part in (first, second, shift))
        mixed = order * two + (1 - HP.mpf(order)) * one
        spread = HP.log(HP.det(mixed)) - (1 - HP.mpf(order)) * HP.log(HP.det(one))
        spread -= order * HP.log(HP.det(two))
        return order / HP.mpf(2) * (apart.T * HP.inverse(mixed) * apart)[0] - spread / (
            2 * (HP.mpf(order) - 1)
        )


class TestEnvelopes:
    def test_worst_gap_known_answer(self):
        values = gaussian_envelope(4, np.array([3.0, 0.0, -1.0]), 2.0)
        assert values == pytest.approx([4 * 9 / (2 * 4), 0.0, 4 / (2 * 4)], rel=1e-15)

    def test_transport_known_answer(self):
        """{0,0,0,10} and {0,0,0,0} at order 2: epsilon 1 takes the variance 100 / ln(4e - 3)."""
        variance = 100 / HP.log(4 * HP.e - 3)
        assert float(variance) == pytest.approx(48.4624005830654, rel=1e-14)
        gaps, masses = np.array([10.0, 0.0]), np.array([0.25, 0.75])
        cost = transport_envelope(2, gaps, masses, float(HP.sqrt(variance)))
        assert cost == pytest.approx(1.0, rel=1e-14)

    def test_transport_of_gaussians_against_its_closed_form(self):
        """N(1,1) and N(0,1.5^2), noise 2, order 4: gap |1 - z/2| under normal z."""
        c, spread, shift = HP.mpf(4 * 3) / 8, HP.mpf("0.5"), HP.mpf(1)
        left = 1 - 2 * c * spread**2
        moment = HP.exp(c * shift**2 / left) / HP.sqrt(left)
        assert float(HP.log(moment) / 3) == pytest.approx(2.23104906018665, rel=1e-14)
        z = np.arange(-30, 30, 0.05)
        masses = np.exp(-(z**2) / 2) * 0.05 / math.sqrt(2 * math.pi)
        fine = transport_envelope(4, np.abs(1 - z / 2), masses, 2.0)
        assert fine == pytest.approx(2.23104906018665, rel=1e-12)

    @given(
        st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), min_size=1, max_size=6),
        oracles.orders(),
        st.floats(0.2, 10),
    )
    def test_transport_agrees_with_40_digits(self, entries, order, noise_std):
        gaps = np.array([gap for gap, _ in entries])
        masses = np.array([n for _, n in entries], dtype=float)
        masses /= masses.sum()
        value = transport_envelope(order, gaps, masses, noise_std)
        distribution = list(zip(gaps.tolist(), masses.tolist(), strict=True))
        expected = float(oracles.envelope("transport", order, distribution, noise_std))
        # ln of a mean near 1 is known to about an ulp of 1, divided by order - 1.
        assert value == pytest.approx(expected, rel=1e-11, abs=1e-15 / (order - 1) * 8)
        worst = float(gaussian_envelope(order, gaps.max(), noise_std))
        assert value <= worst * (1 + 1e-12) + 1e-14

    @pytest.mark.soundness
    def test_transport_bounds_the_true_divergence(self, rng):
        """The theorem itself: equal samples sorted, both orders of the pair, many shapes."""
        for _ in range(60):
            n = int(rng.integers(1, 8))
            first = np.sort(rng.standard_t(2, size=n))
            second = np.sort(rng.normal(rng.normal(), 1, size=n))
            noise_std, order = float(rng.uniform(0.7, 3)), float(rng.uniform(1.2, 6))
            gaps = np.abs(first - second)
            bound = transport_envelope(order, gaps, np.full(n, 1 / n), noise_std)
            for pair in ((first, second), (second, first)):
                true = oracles.noisy_divergence(order, *pair, noise_std)
                assert true <= bound * (1 + 1e-11) + 1e-12


class TestAggregation:
    def test_average_known_answer(self):
        assert aggregate_average(np.array([1.0, 3.0]), np.array([0.25, 0.75])) == pytest.approx(2.5)

    def test_joint_known_answer(self):
        """Order 3: ln(e^(2*1)/4 + 3 e^(2*3)/4) / 2."""
        value = aggregate_joint(3, np.array([1.0, 3.0]), np.array([0.25, 0.75]))
        expected = HP.log(HP.exp(2) / 4 + 3 * HP.exp(6) / 4) / 2
        assert float(value) == pytest.approx(float(expected), rel=1e-15)

    def test_rows_are_instances(self):
        costs = np.array([[1.0, 3.0], [2.0, 2.0]])
        weights = np.array([0.5, 0.5])
        assert aggregate_average(costs, weights) == pytest.approx([2.0, 2.0])
        joint = aggregate_joint(2, costs, weights)
        assert joint == pytest.approx([math.log((math.e + math.e**3) / 2), 2.0])

    def test_huge_costs_stay_in_log_space(self):
        value = aggregate_joint(16, np.array([1e6, 0.0]), np.array([0.5, 0.5]))
        assert float(value) == pytest.approx(1e6 - math.log(2) / 15, rel=1e-15)

    @pytest.mark.soundness
    @pytest.mark.parametrize("weight", [1e-9, 1e-12])
    @pytest.mark.parametrize("cost", [1.0, 3.0, 20.0, 300.0, 500.0])
    def test_a_large_cost_of_hardly_any_weight_keeps_all_its_digits(self, cost, weight):
        value = aggregate_joint(2.5, np.array([cost, 0.0]), np.array([weight, 1 - weight]))
        expected = HP.log1p(HP.mpf(weight) * HP.expm1(1.5 * HP.mpf(cost))) / 1.5
        assert float(value) == pytest.approx(float(expected), rel=1e-12, abs=0)

    def test_an_infinite_cost_counts_unless_its_weight_is_zero(self):
        costs = np.array([1.0, math.inf])
        half, none = np.array([0.5, 0.5]), np.array([1.0, 0.0])
        assert aggregate_average(costs, half) == math.inf
        assert aggregate_joint(2, costs, half) == math.inf
        assert aggregate_average(costs, none) == 1.0
        assert aggregate_joint(2, costs, none) == 1.0

    @given(
        st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), min_size=1, max_size=6),
        oracles.orders(),
    )
    def test_agrees_with_40_digits_and_average_is_at_most_joint(self, entries, order):
        costs = np.array([cost for cost, _ in entries])
        weights = np.array([n for _, n in entries], dtype=float)
        weights /= weights.sum()
        average = float(aggregate("average", order, costs, weights))
        joint = float(aggregate("joint", order, costs, weights))
        exact = [HP.mpf(c) for c in costs]
        for notion, value in (("average", average), ("joint", joint)):
            expected = float(oracles.aggregated(notion, order, exact, weights))
            assert value == pytest.approx(expected, rel=1e-12, abs=1e-14 / (order - 1))
        slack = 1e-14 * (1 + joint) / min(1, order - 1)
        assert average <= joint + slack
        assert joint <= costs.max() + slack


def against_a_point(order, weight, shift):
    """D of (1 - weight) N(0,1) + weight N(shift,1) from N(0,1), for whole orders: a finite sum.

    The integral of prod_k N(x; a_k) N(x; 0)^(1-order) is exp(sum of a_k a_l over k < l).
    """
    weight, shift = HP.mpf(weight), HP.mpf(shift)
    moment = HP.fsum(
        HP.binomial(order, k)
        * weight**k
        * (1 - weight) ** (order - k)
        * HP.exp(shift**2 * k * (k - 1) / 2)
        for k in range(order + 1)
    )
    return float(HP.log(moment) / (order - 1))


class TestOracle:
    """What bounds are compared with, by quadrature."""

    @pytest.mark.parametrize("order", [1.5, 2.0, 5.0])
    def test_agrees_with_mpmath_quadrature(self, order):
        first, second, s = [0.0, 1.0, 2.5], [-1.0, 0.5], 0.8

        def density(sample):
            return lambda x: mp.fsum(mp.npdf(x, a, s) for a in sample) / len(sample)

        expected = float(integral(order, density(first), density(second)))
        value = oracles.noisy_divergence(order, np.array(first), np.array(second), s)
        assert value == pytest.approx(expected, rel=1e-11)

    @pytest.mark.parametrize(
        ("order", "n_zeros", "shift"), [(2, 1, 1.0), (4, 99, 3.0), (16, 19, 4.0), (30, 999, 2.0)]
    )
    def test_a_far_mode_is_not_lost(self, order, n_zeros, shift):
        """One atom in many at `shift`: for high orders the mass sits near order * shift."""
        first = np.r_[np.zeros(n_zeros), shift]
        expected = against_a_point(order, HP.mpf(1) / (n_zeros + 1), shift)
        scaled = oracles.noisy_divergence(order, 2.5 * first, np.zeros(1), 2.5)
        assert scaled == pytest.approx(expected, rel=1e-11)


class TestSlicedDivergence:
    @given(st.integers(0, 2**32), st.floats(1.1, 8), st.integers(1, 4))
    def test_true_divergences_are_ordered_on_gaussians(self, seed, order, dim):
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(2, dim, dim)) / 2
        covs = roots @ roots.transpose(0, 2, 1) + (1 + order) * np.eye(dim)
        means = rng.normal(size=(2, dim))
        profile = FiniteProfile.uniform(dim=dim, n_directions=5, seed=seed)
        spreads = np.einsum("ki,nij,kj->nk", profile.directions, covs, profile.directions)
        centres = means @ profile.directions.T
        costs = gaussian_divergence(order, (centres[0], spreads[0]), (centres[1], spreads[1]))
        average, joint = (
            float(aggregate(notion, order, costs, profile.weights))
            for notion in ("average", "joint")
        )
        unsliced = gaussian_divergence_nd(order, (means[0], covs[0]), (means[1], covs[1]))
        assert average <= joint + 1e-12
        assert joint <= unsliced + 1e-10


class TestGaussianDelta:
    def test_against_quadrature(self):
        def excess(x):
            return max(mp.npdf(x, 1.5, 1) - mp.exp(0.7) * mp.npdf(x), 0)

        crossing = 0.7 / 1.5 + 1.5 / 2
        expected = mp.quad(excess, [crossing, 3, 6, 12, 30])
        value = gaussian_delta(np.array([1.5]), 0.7)
        assert value == pytest.approx([float(expected)], rel=1e-12)

    @given(st.floats(0.05, 40), st.floats(0, 60))
    def test_against_40_digits(self, ratio, epsilon):
        value = float(gaussian_delta(np.array(ratio), epsilon))
        assert value == pytest.approx(float(exact_delta(ratio, epsilon)), rel=1e-6, abs=1e-14)
        assert 0 <= value <= 1

    def test_edges(self):
        """No shift or an infinite epsilon leaves no delta; nothing overflows; all are checked."""
        ratios, epsilons = np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 3.0, np.inf, np.inf])
        assert gaussian_delta(ratios, epsilons).tolist() == [0, 0, 0, 0]
        huge = gaussian_delta(np.array([1.0, 40.0]), 800.0)
        assert huge == pytest.approx([0, 0.5], abs=0.02)
        for epsilon in (np.array([1.0, -1.0]), math.nan):
            with pytest.raises(ArgumentError):
                gaussian_delta(np.array([1.0, 1.0]), epsilon)

    @pytest.mark.soundness
    def test_the_sign_of_a_shift_does_not_matter(self):
        there, back = (gaussian_delta(np.array([s * 1.5]), 0.7)[0] for s in (1, -1))
        assert back == there
