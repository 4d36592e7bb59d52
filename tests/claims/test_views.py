# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) views of Rényi claims: by 40 digits, atoms and densities."""

import functools
import itertools
import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracles
from tests.compared import (
    CLOSED_FORM,
    EMPIRICAL,
    EXACT,
    TRANSPORT,
    WORST_GAP,
    Compared,
    by_method,
    full_of,
    least_noise,
    slices_of,
    spent,
)
from tests.oracles import HP, exact_delta

from pufferslice.claims import Guarantee
from pufferslice.claims.views import (
    ORDERS,
    View,
    best_views,
    improved_epsilon_average,
    improved_epsilon_joint,
    optimum_over_orders,
    paper_epsilon,
    unsliced_views,
    views_of,
)
from pufferslice.errors import CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Full, Slices
from pufferslice.sensitivity.tables import MatchingTables


def exact_term(order, delta):
    a, d = HP.mpf(order), HP.mpf(delta)
    return HP.log((a - 1) / a) - (HP.log(d) + HP.log(a)) / (a - 1)


def discrete(p, q, order):
    """Rényi divergence of two positive vectors, and their privacy curve."""
    divergence = math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1)
    return divergence, lambda epsilon: float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def world(samples, profile, pairs=None):
    distributions = [FiniteDistribution.uniform(x) for x in samples]
    return slices_of(distributions, profile, pairs), full_of(distributions, pairs=pairs)


def points(*shifts):
    """Point masses at the origin and at the shifts, along the axes."""
    dim = len(shifts[0])
    return world([[shift] for shift in (np.zeros(dim), *shifts)], FiniteProfile.axes(dim=dim))


def by_rule(found, scope):
    return {view.rule: view.epsilon for view in found if view.scope == scope}


def views_at(slices, full, claim, noise_std, method, delta):
    return views_of(Compared(full=full, slices=slices), claim.by(method), noise_std, delta)


class TestRules:
    def test_known_answers(self):
        assert paper_epsilon(4, 1, 1e-5) == pytest.approx(4.83764182165674, rel=1e-14)
        improved = 4.08786162883167
        assert improved_epsilon_joint(4, 1, 1e-5) == pytest.approx(improved, rel=1e-14)
        assert improved_epsilon_average(4, 1, 1e-5) == pytest.approx(improved, rel=1e-14)
        assert optimum_over_orders(0.25, 1e-5) == pytest.approx(3.64307021220756, rel=1e-14)

    @given(oracles.orders(), st.floats(0, 20), st.floats(1e-9, 0.9))
    def test_against_40_digits(self, order, epsilon, delta):
        c = exact_term(order, delta)
        paper = HP.mpf(epsilon) + HP.log(1 / HP.mpf(delta)) / (HP.mpf(order) - 1)
        expected = {
            paper_epsilon: paper,
            improved_epsilon_joint: max(0, epsilon + c),
            improved_epsilon_average: epsilon + max(0, c),
        }
        for rule, value in expected.items():
            assert rule(order, epsilon, delta) == pytest.approx(float(value), rel=1e-10, abs=1e-11)

    @pytest.mark.soundness
    def test_the_joint_rule_is_wrong_for_an_average(self):
        """One slice identical; in the other Q gives the point mass P only 1/3."""
        order, delta = 4, 0.25
        divergence = math.log(3)
        average = 0.5 * 0 + 0.5 * divergence
        hockey_stick = {0: lambda _: 0.0, 1: lambda e: max(0, 1 - math.exp(e) / 3)}
        truth = 0.5 * sum(oracles.smallest_epsilon(curve, delta) for curve in hockey_stick.values())
        assert truth == pytest.approx(math.log(1.5), abs=1e-8)
        assert truth == pytest.approx(0.4055, abs=1e-4)
        wrong = improved_epsilon_joint(order, average, delta)
        assert wrong == pytest.approx(0.2616, abs=1e-4)
        assert wrong < truth
        assert improved_epsilon_average(order, average, delta) >= truth
        assert paper_epsilon(order, average, delta) >= truth

    @pytest.mark.soundness
    @given(st.integers(0, 2**32), oracles.orders(), st.floats(1e-4, 0.5))
    def test_joint_and_average_rules_hold_over_slices(self, seed, order, delta):
        rng = np.random.default_rng(seed)
        pairs = rng.dirichlet(np.full(3, 0.7), size=(3, 2)) * 0.99 + 0.01 / 3
        pairs[0, 1] = pairs[0, 0]
        weights = rng.dirichlet(np.ones(3))
        divergences, curves = zip(*(discrete(p, q, order) for p, q in pairs), strict=True)
        average = float(weights @ divergences)
        moment = float(weights @ np.exp((order - 1) * np.array(divergences)))
        joint = math.log(moment) / (order - 1)
        for rule in (paper_epsilon, improved_epsilon_joint):
            epsilon = rule(order, joint, delta)
            mixed = sum(w * curve(epsilon) for w, curve in zip(weights, curves, strict=True))
            assert mixed <= delta * (1 + 1e-9)
        truth = sum(
            w * oracles.smallest_epsilon(curve, delta)
            for w, curve in zip(weights, curves, strict=True)
        )
        for rule in (paper_epsilon, improved_epsilon_average):
            assert rule(order, average, delta) >= truth - 1e-8


@functools.cache
def large_world():
    """Tables of several times 60,000 entries."""
    rng = np.random.default_rng(11)
    samples = [rng.standard_t(4, size=(3000, 4)) + rng.normal(size=4) for _ in range(4)]
    profile = FiniteProfile.uniform(dim=4, n_directions=160, seed=1)
    pairs = [DistributionPair(*pair) for pair in itertools.combinations(range(4), 2)]
    slices, full = world(samples, profile, pairs)
    assert len(slices.differences.gaps) > 150_000
    return slices, full


class TestViewsOf:
    def calibrated(self, notion, method, slices, order=4.0, epsilon=1.0):
        claim = getattr(Guarantee, notion)(order=order, epsilon=epsilon)
        return claim, (least_noise(claim, slices, method), method)

    @by_method
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_labels(self, notion, method):
        """The optimum over orders belongs to the closed form only; scopes are labelled."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated(notion, method, slices)
        found = views_at(slices, full, claim, *noise, 1e-5)
        assert all(isinstance(view, View) and view.delta == 1e-5 for view in found)
        sliced = set(by_rule(found, f"sliced {notion}"))
        optimum = {"order_optimum"} if method.rule == "closed_form" else set()
        assert sliced == {"paper", "improved", "order_grid", "direct"} | optimum
        assert set(by_rule(found, "unsliced")) == {"paper", "improved", "order_grid", "direct"}
        assert {view.scope for view in found} == {f"sliced {notion}", "unsliced"}

    @pytest.mark.parametrize("delta", [1e-5, 0.1, 0.25])
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_sliced_by_hand(self, notion, delta):
        """At delta 0.25 the c of the improved rule is below 0, and an average gains nothing."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated(notion, WORST_GAP, slices)
        s = noise[0]
        sliced = by_rule(views_at(slices, full, claim, *noise, delta), f"sliced {notion}")

        def improved(order, epsilon):
            c = float(exact_term(order, delta))
            return epsilon + max(0, c) if notion == "average" else max(0, epsilon + c)

        assert sliced["paper"] == pytest.approx(1 + math.log(1 / delta) / 3, rel=1e-12)
        assert sliced["improved"] == pytest.approx(improved(4, 1), rel=1e-12)
        grid = [improved(a, spent(self.at(claim, a), slices, *noise)) for a in ORDERS]
        assert sliced["order_grid"] == pytest.approx(min(grid), rel=1e-10)
        curves = [lambda e, r=r: float(exact_delta(r / s, e)) for r in (3, 4)]
        if notion == "joint":
            curves = [lambda e, both=curves: (both[0](e) + both[1](e)) / 2]
        direct = np.mean([oracles.smallest_epsilon(curve, delta) for curve in curves])
        assert sliced["direct"] == pytest.approx(direct, rel=1e-7)

    def test_unsliced_by_hand(self):
        """Distance 5: order * 25 / (2 sigma^2) and the curve of ratio 5 / sigma."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("joint", WORST_GAP, slices)
        s, delta = noise[0], 1e-5
        unsliced = by_rule(views_at(slices, full, claim, *noise, delta), "unsliced")
        spent = 4 * 25 / (2 * s**2)
        assert unsliced["paper"] == pytest.approx(spent + math.log(1 / delta) / 3, rel=1e-9)
        assert unsliced["improved"] == pytest.approx(spent + float(exact_term(4, delta)))
        grid = [a * 25 / (2 * s**2) + float(exact_term(a, delta)) for a in ORDERS]
        assert unsliced["order_grid"] == pytest.approx(max(0, min(grid)), rel=1e-9)
        direct = oracles.smallest_epsilon(lambda e: float(exact_delta(5 / s, e)), delta)
        assert unsliced["direct"] == pytest.approx(direct, rel=1e-7)

    @pytest.mark.soundness
    def test_the_rounding_of_a_long_sum_of_squares_is_in_the_direct_view(self):
        """A third squared, added up 200,000 times, is short of the sum by 3 parts in 10^12."""
        dim, delta = 200_000, 0.1
        distance = math.sqrt(functools.reduce(operator.add, [(1 / 3) ** 2] * dim))
        tables = MatchingTables.of_rows([(np.array([distance]), np.array([1]))], [1])
        found = unsliced_views(Full(dim=dim, differences=tables), 4.5, 4.0, delta)
        ratio = HP.sqrt(dim) * oracles.exact(1 / 3) / oracles.exact(4.5)
        epsilon = by_rule(found, "unsliced")["direct"]
        assert delta * (1 - 1e-6) <= exact_delta(ratio, epsilon) <= delta

    @pytest.mark.parametrize(("notion", "square"), [("average", 12.5), ("joint", 16.0)])
    def test_the_optimum_over_orders(self, notion, square):
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated(notion, CLOSED_FORM, slices)
        rho = square / (2 * noise[0] ** 2)
        found = by_rule(views_at(slices, full, claim, *noise, 1e-5), f"sliced {notion}")
        expected = rho + 2 * math.sqrt(rho * math.log(1e5))
        assert found["order_optimum"] == pytest.approx(expected, rel=1e-9)
        # One order of the paper's rule is no better than the best one.
        assert found["order_optimum"] <= found["paper"]

    def test_the_largest_instance_of_the_average(self):
        """Each instance solves its own slices; then the maximum, not slice by slice."""
        slices, full = points([3.0, 0.0], [0.0, 2.5])
        claim, noise = self.calibrated("average", WORST_GAP, slices)
        s = noise[0]
        found = by_rule(views_at(slices, full, claim, *noise, 1e-3), "sliced average")
        alone = oracles.smallest_epsilon(lambda e: float(exact_delta(3 / s, e)), 1e-3) / 2
        assert found["direct"] == pytest.approx(alone, rel=1e-7)

    def at(self, claim, order):
        return claim.with_order(order)

    @pytest.mark.soundness
    @by_method
    def test_every_view_holds_for_the_true_densities(self, method, rng):
        for seed, delta in itertools.product(range(2), (1e-3, 0.1)):
            samples = oracles.random_samples(rng, 2)
            profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=seed)
            slices, full = world(samples, profile)
            for notion in ("average", "joint"):
                claim, noise = self.calibrated(notion, method, slices, order=3.0)
                found = views_at(slices, full, claim, *noise, delta)
                self.check_sliced(samples, profile, notion, noise[0], found)
                self.check_unsliced(samples, noise[0], found)

    def check_sliced(self, samples, profile, notion, noise_std, found):
        curves = [
            oracles.privacy_curve(*((x @ u)[:, None] for x in samples), noise_std)
            for u in profile.directions
        ]
        sliced = [view for view in found if view.scope == f"sliced {notion}"]
        assert len(sliced) >= 4
        for view in sliced:
            if notion == "joint":
                assert np.mean([curve(view.epsilon) for curve in curves]) <= view.delta + 2e-5
            else:
                solved = [oracles.smallest_epsilon(curve, view.delta + 2e-5) for curve in curves]
                assert np.mean(solved) <= view.epsilon + 1e-8

    def check_unsliced(self, samples, noise_std, found):
        curve = oracles.privacy_curve(*samples, noise_std, step=0.05)
        unsliced = [view for view in found if view.scope == "unsliced"]
        assert len(unsliced) >= 4
        for view in unsliced:
            assert curve(view.epsilon) <= view.delta + 2e-3 * view.delta + 1e-5

    @pytest.mark.parametrize("delta", [1e-13, 1e-30])
    def test_the_direct_view_is_not_offered_where_floats_cancel(self, delta):
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("joint", TRANSPORT, slices)
        found = views_at(slices, full, claim, *noise, delta)
        assert {view.rule for view in found} == {"paper", "improved", "order_grid"}

    def test_gaussian_distributions_have_no_direct_view(self):
        covs = np.tile(np.eye(2), (1, 2, 1, 1))
        pairs = GaussianPairs(means=np.array([[[0.0, 0.0], [3.0, 4.0]]]), covs=covs)
        slices = Slices(profile=FiniteProfile.axes(dim=2), differences=pairs)
        claim, noise = self.calibrated("joint", EXACT, slices)
        found = views_at(slices, Full(dim=2, differences=pairs), claim, *noise, 1e-5)
        assert {view.rule for view in found} == {"paper", "improved", "order_grid"}
        unsliced = by_rule(found, "unsliced")
        spent = 4 * 25 / (2 * (1 + noise[0] ** 2))
        assert unsliced["paper"] == pytest.approx(spent + math.log(1e5) / 3, rel=1e-9)

    @settings(max_examples=40)
    @given(
        st.integers(0, 2**32),
        st.sampled_from(["average", "joint"]),
        st.sampled_from(EMPIRICAL),
        st.one_of(st.floats(1.02, 8), st.floats(8, 600)),
        st.floats(0.05, 5),
        st.sampled_from([1e-12, 1e-6, 1e-3, 0.1, 0.5]),
    )
    def test_the_best_order_is_at_least_as_good_as_the_claims_own(
        self, seed, notion, method, order, epsilon, delta
    ):
        """Also for orders between and beyond those of the grid."""
        rng = np.random.default_rng(seed)
        samples = [rng.standard_t(4, size=(60, 2)) + k * rng.normal(size=2) for k in range(3)]
        profile = FiniteProfile.uniform(dim=2, n_directions=5, seed=1)
        pairs = [DistributionPair(*pair) for pair in itertools.combinations(range(3), 2)]
        slices, full = world(samples, profile, pairs)
        try:
            claim, noise = self.calibrated(notion, method, slices, order, epsilon)
        except CalibrationError:
            return
        found = views_at(slices, full, claim, *noise, delta)
        for scope in (f"sliced {notion}", "unsliced"):
            rules = by_rule(found, scope)
            if "improved" in rules:
                assert rules["order_grid"] <= rules["improved"] <= rules["paper"]
        # The same minimum as without leaving out orders.
        improved = improved_epsilon_average if notion == "average" else improved_epsilon_joint
        grid = min(
            improved(a, spent(self.at(claim, a), slices, *noise), delta)
            for a in (*ORDERS, claim.order)
        )
        assert by_rule(found, f"sliced {notion}")["order_grid"] == pytest.approx(grid, rel=1e-9)

    @pytest.mark.parametrize(("notion", "order"), [("average", 4.0), ("joint", 3.3)])
    def test_large_tables_are_not_coarsened(self, notion, order):
        """All instances and slices by plain bisection on the tables themselves."""
        slices, full = large_world()
        claim, noise = self.calibrated(notion, TRANSPORT, slices, order)
        s, weights, delta = noise[0], slices.profile.weights, 1e-5
        found = views_at(slices, full, claim, *noise, delta)
        sliced, unsliced = (by_rule(found, scope) for scope in (f"sliced {notion}", "unsliced"))
        assert sliced["order_grid"] <= sliced["improved"]
        improved = improved_epsilon_average if notion == "average" else improved_epsilon_joint
        for a in ORDERS:
            at_a = improved(a, spent(self.at(claim, a), slices, *noise), delta)
            assert sliced["order_grid"] <= at_a * (1 + 1e-9)

        def bisected(deltas, shape):
            low, high = np.zeros(shape), np.full(shape, 64.0)
            for _ in range(45):
                middle = (low + high) / 2
                good = deltas(middle) <= delta
                low, high = np.where(good, low, middle), np.where(good, middle, high)
            return high

        if notion == "average":
            rows = bisected(lambda e: slices.differences.deltas(e, s, 0.0), (6, 160))
            direct = float((rows @ weights).max())
        else:
            each = bisected(
                lambda e: slices.differences.deltas(np.tile(e[:, None], 160), s, 0.0) @ weights, 6
            )
            direct = float(each.max())
        assert sliced["direct"] == pytest.approx(direct, rel=1e-6)
        couplings = bisected(
            lambda e: full.differences.deltas(e, s, 0.0), (6, full.differences.n_slices)
        )
        assert unsliced["direct"] == pytest.approx(couplings.min(axis=1).max(), rel=1e-6)

    def test_the_best_of_each_scope_and_delta(self):
        def view(scope, rule, epsilon, delta=1e-5):
            return View(scope=scope, rule=rule, epsilon=epsilon, delta=delta)

        given_views = [
            view("sliced joint", "paper", 3.0),
            view("sliced joint", "improved", 2.0),
            view("sliced joint", "order_grid", 2.0),
            view("sliced joint", "paper", 4.0, 1e-9),
            view("unsliced", "direct", 1.0),
            view("unsliced", "paper", 9.0),
        ]
        assert best_views(given_views) == tuple(given_views[i] for i in (1, 3, 4))
        assert best_views([]) == ()
