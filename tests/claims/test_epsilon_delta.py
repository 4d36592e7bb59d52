# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) claims along slices and about the whole output, against 40 digits."""

import math
from functools import partial

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from tests import oracles
from tests.compared import TRANSPORT, WORST_GAP, least_noise, slices_of, spent
from tests.oracles import HP, exact, exact_delta

from pufferslice.claims import Guarantee
from pufferslice.claims.slices import converted_epsilon
from pufferslice.errors import CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import (
    CLAIM_ORDERS,
    aggregate_average,
    gaussian_delta,
    improved_term,
)

LINE, AXES = FiniteProfile.axes(dim=1), FiniteProfile.axes(dim=2)


def along_slices(*samples, profile=AXES):
    return slices_of([FiniteDistribution.uniform(x) for x in samples], profile)


def points(*shifts):
    """Point masses at the origin and at the shifts, along the axes."""
    dim = len(shifts[0])
    return along_slices(
        *[[x] for x in (np.zeros(dim), *shifts)], profile=FiniteProfile.axes(dim=dim)
    )


class TestDistanceLimit:
    def test_known_answer(self):
        """The mechanism of Balle and Wang for (1, 1e-5) has a standard deviation of 3.7306."""
        limit = Guarantee.epsilon_delta(1.0, 1e-5).distance_limit
        assert limit**-0.5 == pytest.approx(3.730631634816464, rel=1e-9)

    @pytest.mark.parametrize(
        ("epsilon", "delta"), [(0.0, 0.1), (1e-3, 1e-9), (0.5, 1e-100), (1.0, 0.9), (800.0, 1e-5)]
    )
    def test_agrees_with_forty_digits(self, epsilon, delta):
        r = HP.sqrt(exact(Guarantee.epsilon_delta(epsilon, delta).distance_limit))

        def upper(x):
            return HP.erfc(x / HP.sqrt(2)) / 2

        e = exact(epsilon)
        value = upper(e / r - r / 2) - HP.exp(e) * upper(e / r + r / 2)
        assert float(value / exact(delta)) == pytest.approx(1.0, rel=1e-8)
        if delta > 1e-8:
            assert gaussian_delta(np.array(float(r)), epsilon) == pytest.approx(delta, rel=1e-6)


def direct_delta_joint(slices, noise_std, epsilon):
    """What a joint claim inverts; the largest over instances."""
    tables, weights = slices.differences, slices.profile.weights
    epsilons = np.full((tables.n_instances, len(weights)), epsilon)
    deltas = tables.slice_deltas(epsilons, slices.noise(noise_std), "transport")
    return aggregate_average(deltas, weights).max()


class TestDirectDelta:
    @pytest.mark.parametrize(
        ("slices", "epsilon", "by_hand"),
        [
            (points([1.0, 0.5]), 1.0, 0.0668831662448793),
            (points([1.0, 0.5]), 1.0, (exact_delta(1, 1) + exact_delta(0.5, 1)) / 2),
            # the largest instance
            (points([1.0, 0.5], [2.0, 0.0], [0.1, 0.1]), 1.0, exact_delta(2, 1) / 2),
            # the mean over the table, not the worst gap
            (
                along_slices([[0.0]] * 3 + [[2.0]], [[0.0]] * 4, profile=LINE),
                0.5,
                exact_delta(2, 0.5) / 4,
            ),
            (
                along_slices(
                    [[0.0, 0.0]],
                    [[1.0, 0.5]],
                    profile=FiniteProfile(directions=np.eye(2), weights=[0.2, 0.8]),
                ),
                1.0,
                0.2 * exact_delta(1, 1) + 0.8 * exact_delta(0.5, 1),
            ),
        ],
        ids=["known", "two slices", "instances", "table", "weights"],
    )
    def test_by_hand(self, slices, epsilon, by_hand):
        value = direct_delta_joint(slices, 1.0, epsilon)
        assert value == pytest.approx(float(by_hand), rel=1e-9)

    @pytest.mark.soundness
    def test_bounds_the_true_hockey_stick_divergence(self, rng):
        for seed in range(8):
            samples = oracles.random_samples(rng, 2)
            profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=seed)
            slices = along_slices(*samples, profile=profile)
            noise_std = float(rng.uniform(0.5, 2))
            curves = [
                oracles.privacy_curve(*((x @ u)[:, None] for x in samples), noise_std)
                for u in profile.directions
            ]
            for epsilon in (0.0, 0.3, 1.0, 2.0):
                true = np.mean([curve(epsilon) for curve in curves])
                assert direct_delta_joint(slices, noise_std, epsilon) >= true - 1e-5


def converted(claim, slices, noise_std):
    """The cost by Rényi moments at the best order."""
    return converted_epsilon(slices, claim.notion, claim.delta, noise_std, "transport")


JOINT = Guarantee.joint(epsilon=1.0, delta=1e-3)
AVERAGE = Guarantee.average(epsilon=1.0, delta=1e-3)


def _solved(ratio, delta):
    """The epsilon of two Gaussians at this distance, by another root finder."""
    return brentq(lambda e: float(gaussian_delta(np.array(ratio), e)) - delta, 0, 50, xtol=1e-14)


def log_mean(x, y):
    """ln((e^x + e^y) / 2) by the larger one."""
    return max(x, y) + math.log((1 + math.exp(-abs(x - y))) / 2)


POINTS = along_slices([[0.0, 0.0]], [[3.0, 4.0]])


class TestByHand:
    """Point masses: the gaps along the axes are 3 and 4."""

    def test_known_answer(self):
        """Ratios 1 and 1/2, equal weights: epsilon 1 at delta 0.0668831662448793."""
        slices = along_slices([[0.0, 0.0]], [[4.0, 2.0]])
        claim = Guarantee.joint(epsilon=1.0, delta=0.0668831662448793)
        for method in (TRANSPORT, WORST_GAP):
            assert spent(claim, slices, 4.0, method) == pytest.approx(1, rel=1e-9)
            assert least_noise(claim, slices, method) == pytest.approx(4, rel=1e-9)

    def test_average(self):
        std, delta = 20.0, 1e-3
        epsilon = spent(AVERAGE, POINTS, std, TRANSPORT)
        each = [_solved(gap / std, delta) for gap in (3, 4)]
        assert epsilon == pytest.approx(np.mean(each), rel=1e-8)

    @pytest.mark.parametrize("method", [TRANSPORT, WORST_GAP])
    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_what_is_missing_is_taken_from_delta_and_from_the_mass(self, claim, method):
        """Not renormalised: (1 - tau) times delta_u, at most delta - tau."""
        tau, std = 4e-4, 20.0
        found = spent(claim, attrs.evolve(POINTS, missing=[tau]), std, method)
        left = (1e-3 - tau) / (1 - tau)
        by_hand = (
            np.mean([_solved(gap / std, left) for gap in (3, 4)])
            if claim.notion == "average"
            else brentq(
                lambda e: float(np.mean(gaussian_delta(np.array([3, 4]) / std, e))) - left, 0, 9
            )
        )
        assert found == pytest.approx(by_hand, rel=1e-7)
        assert found > spent(claim, POINTS, std, method)

    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_renyi_with_missing_mass(self, claim):
        """(1 - tau) times the moment, converted at delta - tau."""
        tau, std = 4e-4, 20.0
        found = converted(claim, attrs.evolve(POINTS, missing=[tau]), std)

        def one(order, gap):
            return math.log1p(-tau) + order * (order - 1) * gap**2 / (2 * std**2)

        if claim.notion == "joint":
            by_hand = min(
                log_mean(*(one(a, g) for g in (3, 4))) / (a - 1) + improved_term(a, 1e-3 - tau)
                for a in CLAIM_ORDERS
            )
        else:
            by_hand = np.mean([
                min(
                    max(0, one(a, g) / (a - 1) + improved_term(a, 1e-3 - tau))
                    for a in CLAIM_ORDERS
                )
                for g in (3, 4)
            ])  # fmt: skip
        assert found == pytest.approx(by_hand, rel=1e-9)

    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_below_the_floats_the_renyi_way_goes_on(self, claim):
        tiny = attrs.evolve(claim, claim=attrs.evolve(claim.claim, delta=1e-14))
        found = spent(tiny, POINTS, 20.0, TRANSPORT)
        assert found == converted(tiny, POINTS, 20.0)
        assert found > spent(claim, POINTS, 20.0, TRANSPORT)

    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_the_worst_instance_counts(self, claim):
        both = along_slices([[0.0, 0.0]], [[3.0, 4.0]], [[5.0, 1.0]])
        alone = [along_slices([[0.0, 0.0]], [x]) for x in ([3.0, 4.0], [5.0, 1.0])]
        for cost_of in (partial(spent, method=TRANSPORT), converted):
            costs = [cost_of(claim, pair, noise_std=20.0) for pair in alone]
            assert cost_of(claim, both, noise_std=20.0) == max(costs)
            assert min(costs) < max(costs)


class TestSafeSide:
    @settings(max_examples=25)
    @given(
        st.lists(st.floats(-5, 5), min_size=2, max_size=6),
        st.lists(st.floats(-5, 5), min_size=2, max_size=6),
        st.floats(0.3, 3),
        st.sampled_from([1e-2, 1e-4]),
    )
    def test_never_below_the_direct_answer(self, first, second, epsilon, delta):
        """At the calibrated noise the delta of the Gaussian mixtures is at most the claim's."""
        slices = along_slices(np.array(first)[:, None], np.array(second)[:, None], profile=LINE)
        if not slices.differences.worst().max() > 1e-3:
            return
        target = Guarantee.joint(epsilon=epsilon, delta=delta)
        try:
            std = least_noise(target, slices, TRANSPORT)
        except CalibrationError:
            return
        assert spent(target, slices, std, TRANSPORT) <= epsilon
        assert direct_delta_joint(slices, std, epsilon) <= delta
        for claim in (target, attrs.evolve(target, notion="average")):
            direct = spent(claim, slices, std, TRANSPORT)
            assert direct <= converted(claim, slices, std) * (1 + 1e-9)

    @pytest.mark.parametrize("target", [JOINT, AVERAGE])
    @pytest.mark.parametrize("method", [TRANSPORT, WORST_GAP])
    def test_calibrated_noise_is_close_to_the_smallest(self, target, method, rng):
        slices = along_slices(rng.normal(size=(50, 2)), rng.normal(0.5, 1, size=(70, 2)))
        std = least_noise(target, slices, method)
        assert spent(target, slices, std, method) <= 1
        assert spent(target, slices, std * (1 - 1e-9), method) > 1


class TestEdges:
    def test_equal_distributions_need_no_noise(self):
        same = along_slices([[1.0, 2.0]], [[1.0, 2.0]])
        assert least_noise(JOINT, same, TRANSPORT) == 0
        assert spent(JOINT, same, 1.0, TRANSPORT) == 0

    def test_distributions_that_need_no_noise_for_the_claim(self):
        """All but one atom in a thousand are the same: delta 0.01 covers it, 1e-4 does not."""
        first = np.zeros((1000, 2))
        second = first.copy()
        second[0] = 5.0
        loose = Guarantee.joint(epsilon=1.0, delta=0.01)
        least = least_noise(loose, along_slices(first, second), TRANSPORT)
        assert 0 < least < 1e-10
        assert spent(loose, along_slices(first, second), least, TRANSPORT) <= 1.0
        strict = Guarantee.joint(epsilon=1.0, delta=1e-4)
        assert least_noise(strict, along_slices(first, second), TRANSPORT) > 0

    def test_weightless_slices_do_not_count(self):
        weighted = FiniteProfile(directions=np.eye(2), weights=[1.0, 0.0])
        slices = along_slices([[0.0, 0.0]], [[3.0, 4.0]], profile=weighted)
        one = along_slices([[0.0]], [[3.0]], profile=LINE)
        for claim in (JOINT, AVERAGE):
            assert spent(claim, slices, 20.0, TRANSPORT) == pytest.approx(
                spent(claim, one, 20.0, TRANSPORT), rel=1e-9
            )
