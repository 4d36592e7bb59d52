# SPDX-License-Identifier: Apache-2.0
"""Sliced (epsilon, delta) claims: by hand, against the direct answer, and tails in delta."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from pufferslice.calibration.calibrate import Method, calibrate
from pufferslice.calibration.epsilon_delta import (
    CLAIM_ORDERS,
    approximate_cost,
    calibrate_approximate,
    direct_delta_joint,
    gaussian_delta,
    improved_epsilon_joint,
    improved_term,
    renyi_cost,
)
from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, GaussianPairs, gap_tables
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Slices, SphereTerm

AXES = FiniteProfile.axes(dim=2)
JOINT = ApproximateGuarantee.joint(epsilon=1.0, delta=1e-3)
AVERAGE = ApproximateGuarantee.average(epsilon=1.0, delta=1e-3)


def seen(*distributions, profile=AXES, missing=None):
    made = [FiniteDistribution.uniform(distribution) for distribution in distributions]
    pairs = [DistributionPair(0, i) for i in range(1, len(made))]
    tables = gap_tables(made, pairs, profile.directions)
    return Slices(profile=profile, seen=tables) if missing is None else Slices(
        profile=profile, seen=tables, missing=missing
    )  # fmt: skip


def _solved(ratio, delta):
    """The epsilon of two Gaussians at this distance, by another root finder."""
    return brentq(lambda e: float(gaussian_delta(np.array(ratio), e)) - delta, 0, 50, xtol=1e-14)


def log_mean(x, y):
    """ln((e^x + e^y) / 2) by the larger one."""
    return max(x, y) + math.log((1 + math.exp(-abs(x - y))) / 2)


POINTS = seen([[0.0, 0.0]], [[3.0, 4.0]])


class TestByHand:
    """Point masses: the gaps along the axes are 3 and 4."""

    def test_known_answer(self):
        """Ratios 1 and 1/2, equal weights: epsilon 1 at delta 0.0668831662448793."""
        slices = seen([[0.0, 0.0]], [[4.0, 2.0]])
        claim = ApproximateGuarantee.joint(epsilon=1.0, delta=0.0668831662448793)
        for envelope in ("transport", "worst_gap"):
            assert approximate_cost(slices, claim, 4.0, envelope) == pytest.approx(1, rel=1e-9)
            assert calibrate_approximate(claim, slices, envelope) == pytest.approx(4, rel=1e-9)

    def test_average(self):
        std, delta = 20.0, 1e-3
        epsilon = approximate_cost(POINTS, AVERAGE, std, "transport")
        each = [_solved(gap / std, delta) for gap in (3, 4)]
        assert epsilon == pytest.approx(np.mean(each), rel=1e-8)

    @pytest.mark.parametrize("envelope", ["transport", "worst_gap"])
    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_what_is_missing_is_taken_from_delta_and_from_the_mass(self, claim, envelope):
        """Not renormalised: (1 - tau) times delta_u, at most delta - tau."""
        tau, std = 4e-4, 20.0
        found = approximate_cost(attrs.evolve(POINTS, missing=[tau]), claim, std, envelope)
        left = (1e-3 - tau) / (1 - tau)
        by_hand = (
            np.mean([_solved(gap / std, left) for gap in (3, 4)])
            if claim.notion == "average"
            else brentq(
                lambda e: float(np.mean(gaussian_delta(np.array([3, 4]) / std, e))) - left, 0, 9
            )
        )
        assert found == pytest.approx(by_hand, rel=1e-7)
        assert found > approximate_cost(POINTS, claim, std, envelope)

    def test_renyi_joint(self):
        std, delta = 20.0, 1e-3
        by_hand = min(
            log_mean(*(a * (a - 1) * g**2 / (2 * std**2) for g in (3, 4))) / (a - 1)
            + improved_term(a, delta)
            for a in CLAIM_ORDERS
        )
        found = renyi_cost(POINTS, JOINT, std, "transport")
        assert found == pytest.approx(by_hand, rel=1e-9)
        assert found == renyi_cost(POINTS, JOINT, std, "worst_gap")

    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_renyi_with_missing_mass(self, claim):
        """(1 - tau) times the moment, converted at delta - tau."""
        tau, std = 4e-4, 20.0
        found = renyi_cost(attrs.evolve(POINTS, missing=[tau]), claim, std, "transport")

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
        tiny = attrs.evolve(claim, delta=1e-14)
        found = approximate_cost(POINTS, tiny, 20.0, "transport")
        assert found == renyi_cost(POINTS, tiny, 20.0, "transport")
        assert found > approximate_cost(POINTS, claim, 20.0, "transport")

    @pytest.mark.parametrize("claim", [JOINT, AVERAGE])
    def test_the_worst_instance_counts(self, claim):
        both = seen([[0.0, 0.0]], [[3.0, 4.0]], [[5.0, 1.0]])
        alone = [seen([[0.0, 0.0]], [x]) for x in ([3.0, 4.0], [5.0, 1.0])]
        for cost in (approximate_cost, renyi_cost):
            costs = [cost(one, claim, 20.0, "transport") for one in alone]
            assert cost(both, claim, 20.0, "transport") == max(costs)
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
        profile = FiniteProfile.axes(dim=1)
        slices = seen(np.array(first)[:, None], np.array(second)[:, None], profile=profile)
        if not slices.seen.worst().max() > 1e-3:
            return
        target = ApproximateGuarantee.joint(epsilon=epsilon, delta=delta)
        try:
            std = calibrate_approximate(target, slices, "transport")
        except CalibrationError:
            return
        assert approximate_cost(slices, target, std, "transport") <= epsilon
        assert direct_delta_joint(slices, std, epsilon) <= delta
        for claim in (target, attrs.evolve(target, notion="average")):
            direct = approximate_cost(slices, claim, std, "transport")
            assert direct <= renyi_cost(slices, claim, std, "transport") * (1 + 1e-9)

    @pytest.mark.parametrize("target", [JOINT, AVERAGE])
    @pytest.mark.parametrize("envelope", ["transport", "worst_gap"])
    def test_calibrated_noise_is_close_to_the_smallest(self, target, envelope, rng):
        slices = seen(rng.normal(size=(50, 2)), rng.normal(0.5, 1, size=(70, 2)))
        std = calibrate_approximate(target, slices, envelope)
        assert approximate_cost(slices, target, std, envelope) <= 1
        assert approximate_cost(slices, target, std * (1 - 1e-9), envelope) > 1

    def test_transport_is_never_above_worst_gap(self, rng):
        slices = seen(rng.normal(size=(50, 2)), rng.normal(0.5, 1, size=(70, 2)))
        stds = [calibrate_approximate(JOINT, slices, e) for e in ("transport", "worst_gap")]
        assert stds[0] < stds[1]

    def test_it_beats_a_renyi_claim_at_a_fixed_order(self):
        """It needs no more noise than order 4 converted."""
        target = Guarantee.joint(order=4, epsilon=0.5)
        fixed = calibrate(target, POINTS, Method(rule="tight", envelope="transport"))
        epsilon = improved_epsilon_joint(4, 0.5, 1e-3)
        free = ApproximateGuarantee.joint(epsilon=epsilon, delta=1e-3)
        assert calibrate_approximate(free, POINTS, "transport") < fixed


class TestEdges:
    def test_equal_distributions_need_no_noise(self):
        same = seen([[1.0, 2.0]], [[1.0, 2.0]])
        assert calibrate_approximate(JOINT, same, "transport") == 0
        assert approximate_cost(same, JOINT, 1.0, "transport") == 0

    def test_tails_that_do_not_fit_into_delta(self):
        slices = attrs.evolve(POINTS, missing=[1e-3])
        with pytest.raises(ArgumentError, match=r"mass 0\.001, which must be below delta 0\.001"):
            approximate_cost(slices, JOINT, 20.0, "transport")

    def test_distributions_that_need_no_noise_for_the_claim(self):
        """All but one atom in a thousand are the same: delta 0.01 covers it, 1e-4 does not."""
        first = np.zeros((1000, 2))
        second = first.copy()
        second[0] = 5.0
        loose = ApproximateGuarantee.joint(epsilon=1.0, delta=0.01)
        least = calibrate_approximate(loose, seen(first, second), "transport")
        assert 0 < least < 1e-10
        assert approximate_cost(seen(first, second), loose, least, "transport") <= 1.0
        strict = ApproximateGuarantee.joint(epsilon=1.0, delta=1e-4)
        assert calibrate_approximate(strict, seen(first, second), "transport") > 0

    def test_a_profile_that_sees_nothing(self):
        blind = FiniteProfile.of([[0.0, 1.0]])
        slices = seen([[0.0, 0.0]], [[3.0, 0.0]], profile=blind)
        with pytest.raises(CalibrationError, match="no slice of the profile shows"):
            calibrate_approximate(JOINT, slices, "transport")

    def test_gaussian_pairs_and_the_sphere_are_refused(self):
        pairs = GaussianPairs(means=np.zeros((1, 2, 2)), covs=np.tile(np.eye(2), (1, 2, 1, 1)))
        with pytest.raises(ArgumentError, match="Gaussian distributions do not have"):
            approximate_cost(Slices(profile=AXES, seen=pairs), JOINT, 1.0, "transport")
        sphere = SampledSphere(directions=np.eye(2))
        term = SphereTerm(halfwidth=0.1, diameter=5.0)
        slices = Slices(profile=sphere, seen=POINTS.seen, sphere=term)
        with pytest.raises(ArgumentError, match="use a FiniteProfile"):
            calibrate_approximate(JOINT, slices, "transport")

    def test_arguments(self):
        with pytest.raises(ArgumentError, match="envelope"):
            approximate_cost(POINTS, JOINT, 1.0, "exact")
        with pytest.raises(ArgumentError, match="noise_std"):
            approximate_cost(POINTS, JOINT, 0.0, "transport")

    def test_weightless_slices_do_not_count(self):
        weighted = FiniteProfile(directions=np.eye(2), weights=[1.0, 0.0])
        slices = seen([[0.0, 0.0]], [[3.0, 4.0]], profile=weighted)
        one = seen([[0.0]], [[3.0]], profile=FiniteProfile.axes(dim=1))
        for claim in (JOINT, AVERAGE):
            assert approximate_cost(slices, claim, 20.0, "transport") == pytest.approx(
                approximate_cost(one, claim, 20.0, "transport"), rel=1e-9
            )
