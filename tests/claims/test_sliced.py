# SPDX-License-Identifier: Apache-2.0
"""Rényi claims along slices: noise and its cost, against 40-digit arithmetic on exact gaps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import oracles
from tests.compared import (
    CLOSED_FORM,
    EMPIRICAL,
    EXACT,
    TRANSPORT,
    WORST_GAP,
    by_method,
    full_of,
    least_noise,
    point_masses,
    slices_of,
    spent,
    whole,
)
from tests.oracles import HP
from tests.refusals import Refusal, check_refused

from pufferslice._core.search import SAFETY
from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.sensitivity import Full, Slices, SphereTerm
from pufferslice.sensitivity.whitening import grid_margin

# Noise is raised by 2^-38 and gaps by sqrt(dim) 2^-44 of it; variances by twice that.
CLOSE = 1e-10


def claimed(notion, order=4.0, epsilon=1.0):
    return getattr(Guarantee, notion)(order=order, epsilon=epsilon)


CLAIMS = st.builds(claimed, oracles.notions(), oracles.orders(), oracles.epsilons())


def slices_in(world):
    distributions, pairs, profile = world
    return slices_of(distributions, profile, pairs)


def axes_of(*shifts):
    """Point masses at the origin and at each shift, compared with the origin, along the axes."""
    dim = len(shifts[0])
    return slices_of(point_masses(np.zeros(dim), *shifts), FiniteProfile.axes(dim=dim))


def true_cost(method, claim, truth, profile, noise_std):
    if method.rule == "closed_form":
        return oracles.closed_form_cost(claim, truth, profile, noise_std)
    return oracles.tight_cost(claim, truth, profile, noise_std, method.envelope)


def gaussian_slices(rng, dim=2, n_instances=2):
    roots = rng.normal(size=(n_instances, 2, dim, dim)) / 2
    pairs = GaussianPairs(
        means=rng.normal(size=(n_instances, 2, dim)), covs=roots @ roots.transpose(0, 1, 3, 2)
    )
    return Slices(profile=FiniteProfile.uniform(dim=dim, n_directions=4, seed=1), differences=pairs)


class TestKnownAnswers:
    @pytest.mark.parametrize(
        ("notion", "method", "variance"),
        [
            ("average", CLOSED_FORM, 12.5),
            ("average", WORST_GAP, 12.5),
            ("average", TRANSPORT, 12.5),
            ("joint", CLOSED_FORM, 16.0),
            ("joint", WORST_GAP, 14.4581776618717),
            ("joint", TRANSPORT, 14.4581776618717),
        ],
    )
    def test_sensitivities_three_and_four(self, notion, method, variance):
        noise_std = least_noise(claimed(notion, 4, 2), axes_of([3.0, 4.0]), method)
        assert noise_std**2 == pytest.approx(variance, rel=CLOSE)

    def test_joint_tight_by_40_digits(self):
        """(e^(9a) + e^(16a)) / 2 = e^6 with a = 3 * 4 / (2 variance)."""
        rate = HP.findroot(lambda a: HP.log((HP.exp(9 * a) + HP.exp(16 * a)) / 2) - 6, 0.4)
        assert float(6 / rate) == pytest.approx(14.4581776618717, rel=1e-14)

    @pytest.mark.parametrize(
        ("method", "variance"),
        [(CLOSED_FORM, 100.0), (WORST_GAP, 100.0), (TRANSPORT, 48.4624005830654)],
    )
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_one_atom_in_four(self, notion, method, variance):
        distributions = [
            FiniteDistribution.uniform(np.array([v]).T) for v in ([0.0, 0, 0, 10], [0.0, 0, 0, 0])
        ]
        slices = slices_of(distributions, FiniteProfile.axes(dim=1))
        noise_std = least_noise(claimed(notion, 2, 1), slices, method)
        assert noise_std**2 == pytest.approx(variance, rel=CLOSE)

    def test_maximum_over_instances_is_taken_last(self):
        """Shifts (3,0) and (0,3): closed form sees 3 on both axes, tight sees one at a time."""
        slices = axes_of([3.0, 0.0], [0.0, 3.0])
        assert least_noise(claimed("average", 4, 2), slices, CLOSED_FORM) ** 2 == pytest.approx(9.0)
        assert least_noise(claimed("average", 4, 2), slices, WORST_GAP) ** 2 == pytest.approx(4.5)
        rate = math.log(2 * math.exp(6) - 1) / 9
        joint = least_noise(claimed("joint", 4, 2), slices, WORST_GAP)
        assert joint**2 == pytest.approx(6 / rate, rel=CLOSE)

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        ("notion", "variance"), [("average", 12.5), ("joint", 14.4581776618717)]
    )
    @pytest.mark.parametrize("method", [WORST_GAP, TRANSPORT])
    def test_an_instance_that_needs_less_noise_changes_nothing(self, notion, variance, method):
        noise_std = least_noise(claimed(notion, 4, 2), axes_of([3.0, 4.0], [1.0, 0.0]), method)
        assert noise_std**2 == pytest.approx(variance, rel=CLOSE)

    def test_weights_count(self):
        base = axes_of([3.0, 4.0])
        profile = FiniteProfile(directions=np.eye(2), weights=[0.75, 0.25])
        slices = Slices(profile=profile, differences=base.differences)
        variance = 4 / (2 * 2) * (0.75 * 9 + 0.25 * 16)
        for method in EMPIRICAL:
            noise_std = least_noise(claimed("average", 4, 2), slices, method)
            assert noise_std**2 == pytest.approx(variance, rel=CLOSE)

    def test_gaussian_distributions_by_40_digits(self):
        """N(1,1) and N(0,1.5^2) at noise 2 and order 4 cost 1.7195, so that epsilon asks for 2."""
        pairs = GaussianPairs(
            means=np.array([[[1.0], [0.0]]]), covs=np.array([[[[1.0]], [[1.5**2]]]])
        )
        slices = Slices(profile=FiniteProfile.axes(dim=1), differences=pairs)
        for notion in ("average", "joint"):
            claim = claimed(notion, 4, 1.71947728452954)
            assert spent(claim, slices, 2.0, EXACT) == pytest.approx(1.71947728452954, rel=1e-13)
            assert least_noise(claim, slices, EXACT) == pytest.approx(2.0, rel=CLOSE)


class TestWholeSphere:
    """Point masses at distance 3 in nine dimensions, order 4, epsilon 1."""

    DIM, ORDER, DISTANCE = 9, 4, 3.0

    def joint_variance(self):
        """Solve 1F1(1/2; d/2; c distance^2) = e^((order-1) epsilon), c = order(order-1)/(2 var)."""
        moment = HP.findroot(lambda x: HP.hyp1f1(0.5, 4.5, x) - HP.exp(3), 10)
        return 4 * 3 * 9 / (2 * moment)

    def slices(self, profile):
        shift = np.zeros(self.DIM)
        shift[0] = self.DISTANCE
        return slices_of(point_masses(np.zeros(self.DIM), shift), profile)

    def quadrature_profile(self):
        """Directions at the quantiles of the first coordinate of a uniform direction."""
        from scipy.special import roots_gegenbauer

        nodes, weights = roots_gegenbauer(40, (self.DIM - 2) / 2)
        directions = np.zeros((40, self.DIM))
        directions[:, 0], directions[:, 1] = nodes, np.sqrt(1 - nodes**2)
        return FiniteProfile(directions=directions, weights=weights / weights.sum())

    def test_the_equation_has_the_known_root(self):
        assert float(self.joint_variance()) == pytest.approx(5.38628260122933, rel=1e-14)

    @pytest.mark.parametrize("method", [WORST_GAP, TRANSPORT])
    @pytest.mark.parametrize(
        ("notion", "variance"), [("average", 2.0), ("joint", 5.38628260122933)]
    )
    def test_by_quadrature_over_the_sphere(self, notion, variance, method):
        slices = self.slices(self.quadrature_profile())
        noise_std = least_noise(claimed(notion), slices, method)
        assert noise_std**2 == pytest.approx(variance, rel=CLOSE)

    def test_unsliced(self):
        full = full_of(point_masses(np.zeros(9), np.ones(9)))
        noise_std = Guarantee.unsliced(order=4, epsilon=1).least_noise(whole(full))
        assert noise_std**2 == pytest.approx(18.0, rel=CLOSE)


class TestCost:
    @by_method
    @given(data=st.data())
    def test_agrees_with_40_digits_within_the_width_of_a_bin(self, method, data):
        distributions, pairs, profile = data.draw(oracles.worlds())
        claim = claimed(data.draw(oracles.notions()), data.draw(oracles.orders()))
        noise_std = data.draw(st.floats(0.3, 8))
        truth = oracles.true_gap_distributions(distributions, pairs, profile.directions)
        exact = float(true_cost(method, claim, truth, profile, noise_std))
        value = spent(claim, slices_of(distributions, profile, pairs), noise_std, method)
        slack = 1e-11 * exact + 1e-13 / (claim.order - 1)
        assert value >= exact - slack
        widest = 1 if method.envelope == "worst_gap" else (1 + 2.0**-8) ** 2
        assert value <= exact * widest + slack

    def test_slice_costs_are_instances_by_slices(self):
        slices = axes_of([3.0, 4.0], [1.0, 0.0])
        for envelope in ("transport", "worst_gap"):
            costs = slices.costs(4.0, 2.0, envelope)
            assert costs == pytest.approx(np.array([[4.5, 8.0], [0.5, 0.0]]), rel=1e-11, abs=1e-20)

    def test_closed_form_cost_by_hand(self):
        """Order 4, noise 2: 4 / 8 times the mean, or the maximum, of the squares 9 and 16."""
        slices = axes_of([3.0, 1.0], [0.0, 4.0])
        assert spent(claimed("average"), slices, 2.0, CLOSED_FORM) == pytest.approx(6.25, rel=1e-11)
        assert spent(claimed("joint"), slices, 2.0, CLOSED_FORM) == pytest.approx(8.0, rel=1e-11)

    def test_grid_margin(self):
        """sqrt(dim) grid steps of noise_std / 2^44."""
        assert grid_margin(1, 1.0) == 2.0**-44
        assert grid_margin(9, 8.0) == 3 * 2.0**-41

    @pytest.mark.soundness
    def test_the_grid_is_charged(self):
        """Point masses 16 grid steps apart in R^4 cost as if they were 16 + sqrt(4) apart."""
        slices = axes_of([2.0**-40, 0.0, 0.0, 0.0])
        squares = np.array([18**2, 2**2, 2**2, 2**2]) * 2.0**-88
        for envelope in ("worst_gap", "transport"):
            costs = slices.costs(4.0, 1.0, envelope)[0]
            assert costs == pytest.approx(4 * squares / 2, rel=1e-9, abs=0)
        average = spent(claimed("average"), slices, 1.0, CLOSED_FORM)
        assert average == pytest.approx(4 * squares.mean() / 2, rel=1e-9, abs=0)
        full = full_of(point_masses(np.zeros(4), [2.0**-40, 0.0, 0.0, 0.0]))
        assert full.divergences(4.0, 1.0)[0] == pytest.approx(4 * squares[0] / 2, rel=1e-9, abs=0)

    def test_equal_distributions_cost_nothing(self):
        distribution = FiniteDistribution.uniform([[0.3, 0.1], [0.2, 7.0]])
        profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=0)
        slices = slices_of([distribution, distribution], profile)
        assert slices.are_equal
        for notion, method in itertools.product(("average", "joint"), EMPIRICAL):
            assert spent(claimed(notion), slices, 1e-6, method) == 0
            assert least_noise(claimed(notion), slices, method) == 0

    def test_a_vanishing_noise_costs_infinitely_much(self):
        slices = axes_of([1.0, 0.0])
        for notion, method in itertools.product(("average", "joint"), EMPIRICAL):
            assert spent(claimed(notion), slices, 1e-200, method) == math.inf


class TestDistributions:
    @pytest.mark.soundness
    @by_method
    @given(data=st.data())
    def test_calibration_never_overspends(self, method, data):
        """Recomputed from exact gaps with 40 digits; the evaluated cost holds as well."""
        distributions, pairs, profile = data.draw(oracles.worlds())
        target = data.draw(CLAIMS)
        slices = slices_of(distributions, profile, pairs)
        noise_std = least_noise(target, slices, method)
        assert spent(target, slices, noise_std, method) <= target.epsilon
        truth = oracles.true_gap_distributions(distributions, pairs, profile.directions)
        assert true_cost(method, target, truth, profile, noise_std) <= target.epsilon

    @by_method
    @given(world=oracles.worlds(), notion=oracles.notions(), epsilon=oracles.epsilons())
    def test_calibration_wastes_nothing(self, method, world, notion, epsilon):
        """A relative 1e-10 less noise would break the bound."""
        slices, target = slices_in(world), claimed(notion, 3.0, epsilon)
        noise_std = least_noise(target, slices, method)
        assert spent(target, slices, noise_std * (1 - 1e-10), method) > epsilon

    @given(world=oracles.worlds(), claim=CLAIMS)
    def test_tight_needs_no_more_than_the_closed_form_and_transport_no_more_than_worst_gap(
        self, world, claim
    ):
        slices = slices_in(world)
        transport, worst, closed = (least_noise(claim, slices, method) for method in EMPIRICAL)
        assert transport <= worst * (1 + 1e-11)
        assert worst <= closed * (1 + 1e-11)

    @given(world=oracles.worlds(), order=oracles.orders(), noise_std=st.floats(0.3, 10))
    def test_average_is_at_most_joint_is_at_most_unsliced(self, world, order, noise_std):
        distributions, pairs, profile = world
        slices = slices_of(distributions, profile, pairs)
        # The unsliced bound may take the profile's own directions as couplings.
        directions = np.vstack([np.eye(profile.dim), profile.directions])
        full = full_of(distributions, directions, pairs)
        average, joint = (
            spent(claimed(notion, order), slices, noise_std, TRANSPORT)
            for notion in ("average", "joint")
        )
        slack = 1e-11 / (order - 1)
        assert average <= joint * (1 + 1e-11) + slack
        assert joint <= full.divergence(order, noise_std) * (1 + 1e-10) + slack

    @by_method
    @given(world=oracles.worlds(), notion=oracles.notions())
    def test_monotone_in_order_epsilon_and_noise(self, method, world, notion):
        slices = slices_in(world)
        by_order = [spent(claimed(notion, a), slices, 2.0, method) for a in (1.1, 1.5, 2, 4, 16)]
        by_noise = [spent(claimed(notion), slices, s, method) for s in (8.0, 4.0, 2.0, 1.9)]
        by_epsilon = [least_noise(claimed(notion, 4, e), slices, method) for e in (4, 2, 1.9, 0.1)]
        for values in (by_order, by_noise, by_epsilon):
            assert all(a <= b * (1 + 1e-10) for a, b in itertools.pairwise(values))
        assert by_epsilon[0] < by_epsilon[-1]
        assert by_noise[0] < by_noise[-1]

    @given(world=oracles.worlds(), notion=oracles.notions())
    def test_the_larger_instance_decides(self, world, notion):
        """The cost of all instances is the largest of their own costs, for the tight rule."""
        distributions, pairs, profile = world
        together, *alone = (
            spent(claimed(notion), slices_of(distributions, profile, some), 2.0, TRANSPORT)
            for some in (pairs, *([pair] for pair in pairs))
        )
        assert together == pytest.approx(max(alone), rel=1e-12)

    @pytest.mark.soundness
    @by_method
    def test_the_true_divergence_of_the_noisy_outputs_is_within_epsilon(self, method, rng):
        """The claim itself, by quadrature, both orders of each pair."""
        for seed in range(4):
            samples = oracles.random_samples(rng, 3)
            profile = FiniteProfile.uniform(dim=3, n_directions=5, seed=seed)
            distributions = [FiniteDistribution.uniform(x) for x in samples]
            for notion in ("average", "joint"):
                target = claimed(notion, 3.0, 0.5)
                noise_std = least_noise(target, slices_of(distributions, profile), method)
                for pair in (samples, samples[::-1]):
                    lines = ([x @ u for x in pair] for u in profile.directions)
                    costs = [oracles.noisy_divergence(3.0, *line, noise_std) for line in lines]
                    assert oracles.aggregated(notion, 3.0, costs, profile.weights) <= 0.5 + 1e-11

    def test_the_safety_factor_is_in_the_answer(self):
        """Noise is the smallest safe one, times 1 + 2^-38, to within the search's width."""
        assert SAFETY == 1 + 2.0**-38
        noise_std = least_noise(claimed("average", 4, 2), axes_of([5.0]), WORST_GAP)
        assert noise_std / 5 - 1 == pytest.approx(2.0**-38, rel=0.2)


class TestGaussian:
    @pytest.mark.soundness
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_never_overspends_and_wastes_nothing(self, notion, rng):
        for _ in range(10):
            slices = gaussian_slices(rng)
            order, epsilon = float(rng.uniform(1.2, 8)), float(rng.uniform(0.1, 3))
            target = claimed(notion, order, epsilon)
            noise_std = least_noise(target, slices, EXACT)
            assert self.exact_cost(slices, target, noise_std) <= epsilon
            assert self.exact_cost(slices, target, noise_std * (1 - 1e-10)) > epsilon

    def exact_cost(self, slices, claim, noise_std):
        pairs, variance = slices.differences, oracles.exact(noise_std) ** 2
        values = []
        for means, covs in zip(pairs.means, pairs.covs, strict=True):
            costs = []
            for u in slices.profile.directions:
                distributions = [
                    (self.dot(u, m), self.dot(u, [self.dot(u, row) for row in c]) + variance)
                    for m, c in zip(means, covs, strict=True)
                ]
                both = (distributions, distributions[::-1])
                costs.append(max(oracles.gaussian_divergence(claim.order, *p) for p in both))
            weights = slices.profile.weights
            values.append(oracles.aggregated(claim.notion, claim.order, costs, weights))
        return max(values)

    def dot(self, u, v):
        exact = [HP.mpf(x) for x in v]
        return HP.fsum(HP.mpf(float(a)) * b for a, b in zip(u, exact, strict=True))

    def test_average_is_at_most_joint_is_at_most_unsliced(self, rng):
        for _ in range(10):
            slices = gaussian_slices(rng)
            full = Full(dim=2, differences=slices.differences)
            average, joint = (
                spent(claimed(notion, 3.0), slices, 2.0, EXACT) for notion in ("average", "joint")
            )
            assert average <= joint + 1e-13
            assert joint <= full.divergence(3.0, 2.0) + 1e-12

    def test_equal_means_still_need_noise(self):
        """Order 2, N(0,1) and N(0,2): s*^2 = 2(1+v) - (2+v) = v, infinite at no noise."""
        covs = np.array([[[[1.0]], [[2.0]]]])
        pairs = GaussianPairs(means=np.zeros((1, 2, 1)), covs=covs)
        slices = Slices(profile=FiniteProfile.axes(dim=1), differences=pairs)
        noise_std = least_noise(claimed("joint", 2, 1), slices, EXACT)
        variance = HP.findroot(
            lambda v: oracles.gaussian_divergence(2, (0, 2 + v), (0, 1 + v)) - 1, 0.08
        )
        assert noise_std**2 == pytest.approx(float(variance), rel=CLOSE)


class TestDrawnDirections:
    """The term for drawn directions; the numbers are in tests/certificate/test_sampled.py."""

    TERM = SphereTerm(halfwidth=0.1, diameter=5.0)
    SPHERE = SampledSphere(directions=np.eye(2))

    @pytest.mark.parametrize("notion", ["average", "joint"])
    @by_method
    def test_the_term_is_added_for_every_method(self, notion, method):
        finite = axes_of((3.0, 4.0))
        sphere = Slices(profile=self.SPHERE, differences=finite.differences, sphere=self.TERM)
        std, order = 10.0, 4.0
        found = spent(claimed(notion), sphere, std, method)
        costs = [order * gap**2 / (2 * std**2) for gap in (3, 4)]
        largest = order * 25 / (2 * std**2)
        if notion == "average":
            by_hand = sum(costs) / 2 + 0.1 * largest
        else:
            moment = sum(math.exp(3 * c) for c in costs) / 2 + 0.1 * math.expm1(3 * largest)
            by_hand = math.log(moment) / 3
        assert found == pytest.approx(by_hand, rel=1e-9)

    def test_a_term_may_be_large(self):
        """exp of the largest moment would overflow; its logarithm does not."""
        sphere = Slices(
            profile=self.SPHERE,
            differences=axes_of((3.0, 4.0)).differences,
            sphere=SphereTerm(halfwidth=0.1, diameter=1e4),
        )
        found = spent(claimed("joint"), sphere, 1.0, TRANSPORT)
        assert found == pytest.approx(2e8 + math.log(0.1) / 3, rel=1e-9)


@pytest.mark.soundness
class TestTablesOfTheOtherKind:
    """Gaps along slices may be shorter than every coupling: they do not bound the whole output."""

    def test_each_is_refused_where_the_other_belongs(self):
        gaps, full = axes_of([3.0, 4.0]), full_of(point_masses([0.0, 0.0], [3.0, 4.0]))
        assert gaps.differences.worst().max() == 4.0
        assert full.differences.worst().max() == 5.0
        for call in (
            lambda: Full(dim=2, differences=gaps.differences),
            lambda: Slices(profile=gaps.profile, differences=full.differences),
        ):
            check_refused(Refusal(call, ArgumentError, "Tables"))
