# SPDX-License-Identifier: Apache-2.0
"""(epsilon, delta) views against 40 digits, discrete distributions and integrated densities."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.optimize import minimize_scalar
from tests import oracles
from tests.oracles import HP

from pufferslice.calibration import epsilon_delta
from pufferslice.calibration.calibrate import Method, calibrate, cost
from pufferslice.calibration.epsilon_delta import View, views_of
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, GaussianPairs, gap_tables, matching_tables
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import Full, Slices

TRANSPORT = Method(rule="tight", envelope="transport")
WORST_GAP = Method(rule="tight", envelope="worst_gap")
CLOSED_FORM = Method(rule="closed_form", envelope="worst_gap")
EXACT = Method(rule="tight", envelope="exact")
EMPIRICAL = [TRANSPORT, WORST_GAP, CLOSED_FORM]


def exact_delta(ratio, epsilon):
    """Of N(ratio, 1) against N(0, 1), 40 digits."""
    if ratio == 0:
        return HP.mpf(0)
    r, e = HP.mpf(ratio), HP.mpf(epsilon)
    return HP.ncdf(r / 2 - e / r) - HP.exp(e) * HP.ncdf(-r / 2 - e / r)


def improved_term(order, delta):
    a, d = HP.mpf(order), HP.mpf(delta)
    return HP.log((a - 1) / a) - (HP.log(d) + HP.log(a)) / (a - 1)


def discrete(p, q, order):
    """Rényi divergence of two positive vectors, and their privacy curve."""
    divergence = math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1)
    return divergence, lambda epsilon: float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def world(samples, profile, pairs=((0, 1),)):
    distributions = [FiniteDistribution.uniform(x) for x in samples]
    pairs = [DistributionPair(*pair) for pair in pairs]
    slices = Slices(profile=profile, seen=gap_tables(distributions, pairs, profile.directions))
    full = Full(dim=profile.dim, seen=matching_tables(distributions, pairs, np.eye(profile.dim)))
    return slices, full


def points(*shifts):
    """Point masses at the origin and at the shifts, along the axes."""
    dim = len(shifts[0])
    samples = [np.zeros((1, dim)), *(np.array([shift], dtype=float) for shift in shifts)]
    pairs = [(0, k + 1) for k in range(len(shifts))]
    return world(samples, FiniteProfile.axes(dim=dim), pairs)


def by_rule(found, scope):
    return {view.rule: view.epsilon for view in found if view.scope == scope}


class TestRules:
    def test_known_answers(self):
        assert epsilon_delta.paper_epsilon(4, 1, 1e-5) == pytest.approx(4.83764182165674, rel=1e-14)
        improved = 4.08786162883167
        assert epsilon_delta.improved_epsilon_joint(4, 1, 1e-5) == pytest.approx(
            improved, rel=1e-14
        )
        assert epsilon_delta.improved_epsilon_average(4, 1, 1e-5) == pytest.approx(
            improved, rel=1e-14
        )
        assert epsilon_delta.optimum_over_orders(0.25, 1e-5) == pytest.approx(
            3.64307021220756, rel=1e-14
        )

    @given(oracles.orders(), st.floats(0, 20), st.floats(1e-9, 0.9))
    def test_against_40_digits(self, order, epsilon, delta):
        c = improved_term(order, delta)
        paper = HP.mpf(epsilon) + HP.log(1 / HP.mpf(delta)) / (HP.mpf(order) - 1)
        expected = {
            epsilon_delta.paper_epsilon: paper,
            epsilon_delta.improved_epsilon_joint: max(0, epsilon + c),
            epsilon_delta.improved_epsilon_average: epsilon + max(0, c),
        }
        for rule, value in expected.items():
            assert rule(order, epsilon, delta) == pytest.approx(float(value), rel=1e-10, abs=1e-11)

    def test_the_optimum_over_orders_is_one(self):
        """min over orders of order * rho + ln(1/delta) / (order - 1)."""
        for rho, delta in ((0.25, 1e-5), (2.0, 0.1), (1e-4, 1e-9)):
            best = minimize_scalar(
                lambda x, rho=rho, delta=delta: (
                    (1 + math.exp(x)) * rho + math.log(1 / delta) / math.exp(x)
                ),
                bounds=(-10, 20),
                method="bounded",
                options={"xatol": 1e-10},
            )
            assert epsilon_delta.optimum_over_orders(rho, delta) == pytest.approx(
                best.fun, rel=1e-10
            )

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
        wrong = epsilon_delta.improved_epsilon_joint(order, average, delta)
        assert wrong == pytest.approx(0.2616, abs=1e-4)
        assert wrong < truth
        assert epsilon_delta.improved_epsilon_average(order, average, delta) >= truth
        assert epsilon_delta.paper_epsilon(order, average, delta) >= truth

    @pytest.mark.soundness
    @given(st.integers(0, 2**32), oracles.orders(), st.floats(1e-4, 0.5))
    def test_every_rule_holds_on_discrete_distributions(self, seed, order, delta):
        rng = np.random.default_rng(seed)
        p, q = rng.dirichlet(np.full(4, 0.7), size=2) * 0.99 + 0.0025
        divergence, curve = discrete(p, q, order)
        for rule in (epsilon_delta.paper_epsilon, epsilon_delta.improved_epsilon_joint):
            assert curve(rule(order, divergence, delta)) <= delta * (1 + 1e-9)

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
        for rule in (epsilon_delta.paper_epsilon, epsilon_delta.improved_epsilon_joint):
            epsilon = rule(order, joint, delta)
            mixed = sum(w * curve(epsilon) for w, curve in zip(weights, curves, strict=True))
            assert mixed <= delta * (1 + 1e-9)
        truth = sum(
            w * oracles.smallest_epsilon(curve, delta)
            for w, curve in zip(weights, curves, strict=True)
        )
        for rule in (epsilon_delta.paper_epsilon, epsilon_delta.improved_epsilon_average):
            assert rule(order, average, delta) >= truth - 1e-8

    RULES = (
        epsilon_delta.paper_epsilon,
        epsilon_delta.improved_epsilon_joint,
        epsilon_delta.improved_epsilon_average,
    )

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize(
        ("order", "epsilon", "delta", "name"),
        [
            (1.0, 1.0, 0.1, "order"),
            (0.5, 1.0, 0.1, "order"),
            (math.nan, 1.0, 0.1, "order"),
            (2.0, -1.0, 0.1, "epsilon"),
            (2.0, math.nan, 0.1, "epsilon"),
            (2.0, 1.0, 0.0, "delta"),
            (2.0, 1.0, 1.0, "delta"),
            (2.0, 1.0, 2.0, "delta"),
            (2.0, 1.0, math.nan, "delta"),
        ],
    )
    def test_arguments(self, rule, order, epsilon, delta, name):
        with pytest.raises(ArgumentError, match=name):
            rule(order, epsilon, delta)

    @pytest.mark.parametrize(
        ("rho", "delta", "name"),
        [
            (-1.0, 0.1, "rho"),
            (math.nan, 0.1, "rho"),
            (1.0, 0.0, "delta"),
            (1.0, 1.5, "delta"),
            (1.0, math.nan, "delta"),
        ],
    )
    def test_arguments_of_the_optimum(self, rho, delta, name):
        with pytest.raises(ArgumentError, match=name):
            epsilon_delta.optimum_over_orders(rho, delta)


class TestGaussianDelta:
    def test_against_quadrature(self):
        def excess(x):
            return max(mp.npdf(x, 1.5, 1) - mp.exp(0.7) * mp.npdf(x), 0)

        crossing = 0.7 / 1.5 + 1.5 / 2
        expected = mp.quad(excess, [crossing, 3, 6, 12, 30])
        value = epsilon_delta.gaussian_delta(np.array([1.5]), 0.7)
        assert value == pytest.approx([float(expected)], rel=1e-12)

    @given(st.floats(0.05, 40), st.floats(0, 60))
    def test_against_40_digits(self, ratio, epsilon):
        value = float(epsilon_delta.gaussian_delta(np.array(ratio), epsilon))
        assert value == pytest.approx(float(exact_delta(ratio, epsilon)), rel=1e-6, abs=1e-14)
        assert 0 <= value <= 1

    def test_no_shift_no_delta(self):
        assert epsilon_delta.gaussian_delta(
            np.array([0.0, 0.0]), np.array([0.0, 3.0])
        ).tolist() == [0, 0]

    def test_epsilon_zero_is_total_variation(self):
        ratios = np.array([0.1, 1.0, 5.0])
        expected = [math.erf(r / 2 / math.sqrt(2)) for r in ratios]
        assert epsilon_delta.gaussian_delta(ratios, 0.0) == pytest.approx(expected, rel=1e-12)

    def test_huge_epsilon_does_not_overflow(self):
        assert epsilon_delta.gaussian_delta(np.array([1.0, 40.0]), 800.0) == pytest.approx(
            [0, 0.5], abs=0.02
        )

    def test_an_infinite_epsilon_leaves_nothing(self):
        assert epsilon_delta.gaussian_delta(
            np.array([0.0, 1.0]), np.array([np.inf, np.inf])
        ).tolist() == [
            0,
            0,
        ]

    def test_broadcasts(self):
        table = epsilon_delta.gaussian_delta(np.array([[1.0, 2.0]]), np.array([[0.5], [1.5]]))
        expected = [[float(exact_delta(r, e)) for r in (1, 2)] for e in (0.5, 1.5)]
        assert table == pytest.approx(np.array(expected), rel=1e-12)

    def test_grows_with_the_ratio_and_falls_with_epsilon(self):
        grid = epsilon_delta.gaussian_delta(np.linspace(0, 6, 40)[:, None], np.linspace(0, 9, 30))
        assert (np.diff(grid, axis=0) >= -1e-15).all()
        assert (np.diff(grid, axis=1) <= 1e-15).all()

    @pytest.mark.soundness
    def test_the_sign_of_a_shift_does_not_matter(self):
        there, back = (epsilon_delta.gaussian_delta(np.array([s * 1.5]), 0.7)[0] for s in (1, -1))
        assert back == there

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        ("ratio", "epsilon"), [(math.nan, 1.0), (1.0, math.nan), (1.0, -0.1), (0.0, -1.0)]
    )
    def test_what_is_no_number_is_no_small_delta(self, ratio, epsilon):
        """Refused, or not a number, or the true value; never a small delta that does not hold."""
        try:
            value = float(epsilon_delta.gaussian_delta(np.array([ratio]), epsilon)[0])
        except ArgumentError:
            return
        if math.isnan(ratio) or math.isnan(epsilon):
            assert math.isnan(value)
        else:
            floor = 1 - math.exp(epsilon)
            assert value >= max(floor, float(exact_delta(ratio, epsilon))) - 1e-12

    def test_one_bad_entry_is_enough(self):
        with pytest.raises(ArgumentError, match="epsilon"):
            epsilon_delta.gaussian_delta(np.array([1.0, 1.0]), np.array([1.0, -1.0]))


@pytest.mark.soundness
def test_the_epsilon_that_is_found_leaves_no_more_than_the_limit():
    """Delta exp(-epsilon) / 2: the answer is -ln(2 limit), from above."""
    limits = np.linspace(0.001, 0.6, 200)
    found = epsilon_delta.smallest_epsilons(lambda e: np.exp(-e) / 2, np.ones(200), limits)
    assert (np.exp(-found) / 2 <= limits).all()
    assert found == pytest.approx(np.maximum(0, -np.log(2 * limits)), abs=1e-12)


class TestDirectDelta:
    def test_known_answer(self):
        slices, _ = points([1.0, 0.5])
        value = epsilon_delta.direct_delta_joint(slices, 1.0, 1.0)
        assert value == pytest.approx(0.0668831662448793, rel=1e-10)
        by_hand = (exact_delta(1, 1) + exact_delta(0.5, 1)) / 2
        assert float(by_hand) == pytest.approx(0.0668831662448793, rel=1e-14)

    def test_the_largest_instance(self):
        slices, _ = points([1.0, 0.5], [2.0, 0.0], [0.1, 0.1])
        expected = float(exact_delta(2, 1)) / 2
        assert epsilon_delta.direct_delta_joint(slices, 1.0, 1.0) == pytest.approx(
            expected, rel=1e-10
        )

    def test_the_mean_over_the_table_not_the_worst_gap(self):
        samples = [np.array([[0.0], [0.0], [0.0], [2.0]]), np.zeros((4, 1))]
        slices, _ = world(samples, FiniteProfile.axes(dim=1))
        expected = float(exact_delta(2, 0.5)) / 4
        assert epsilon_delta.direct_delta_joint(slices, 1.0, 0.5) == pytest.approx(
            expected, rel=1e-9
        )

    def test_weights_count(self):
        base, _ = points([1.0, 0.5])
        profile = FiniteProfile(directions=np.eye(2), weights=[0.2, 0.8])
        slices = Slices(profile=profile, seen=base.seen)
        expected = float(0.2 * exact_delta(1, 1) + 0.8 * exact_delta(0.5, 1))
        assert epsilon_delta.direct_delta_joint(slices, 1.0, 1.0) == pytest.approx(
            expected, rel=1e-10
        )

    @pytest.mark.soundness
    def test_bounds_the_true_hockey_stick_divergence(self, rng):
        for seed in range(8):
            samples = oracles.random_samples(rng, 2)
            profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=seed)
            slices, _ = world(samples, profile)
            noise_std = float(rng.uniform(0.5, 2))
            curves = [
                oracles.privacy_curve(*((x @ u)[:, None] for x in samples), noise_std)
                for u in profile.directions
            ]
            for epsilon in (0.0, 0.3, 1.0, 2.0):
                true = np.mean([curve(epsilon) for curve in curves])
                assert epsilon_delta.direct_delta_joint(slices, noise_std, epsilon) >= true - 1e-5

    def test_equal_distributions(self):
        distribution = FiniteDistribution.uniform([[0.0], [1.0]])
        tables = gap_tables([distribution], [DistributionPair(0, 0)], np.eye(1))
        slices = Slices(profile=FiniteProfile.axes(dim=1), seen=tables)
        assert epsilon_delta.direct_delta_joint(slices, 1.0, 0.0) == 0

    def test_gaussian_pairs_have_no_gaps(self):
        pairs = GaussianPairs(means=np.zeros((1, 2, 1)), covs=np.ones((1, 2, 1, 1)))
        slices = Slices(profile=FiniteProfile.axes(dim=1), seen=pairs)
        with pytest.raises((ArgumentError, TypeError), match="gap tables"):
            epsilon_delta.direct_delta_joint(slices, 1.0, 1.0)

    @pytest.mark.soundness
    @pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf])
    def test_noise_must_be_positive(self, noise_std):
        with pytest.raises(ArgumentError, match="noise_std"):
            epsilon_delta.direct_delta_joint(points([1.0, 0.5])[0], noise_std, 1.0)

    @pytest.mark.soundness
    @pytest.mark.parametrize("epsilon", [-1.0, math.nan])
    def test_epsilon_must_not_be_negative(self, epsilon):
        with pytest.raises(ArgumentError, match="epsilon"):
            epsilon_delta.direct_delta_joint(points([1.0, 0.5])[0], 1.0, epsilon)


@functools.cache
def large_world():
    """Tables of several times 60,000 entries."""
    rng = np.random.default_rng(11)
    samples = [rng.standard_t(4, size=(3000, 4)) + rng.normal(size=4) for _ in range(4)]
    profile = FiniteProfile.uniform(dim=4, n_directions=160, seed=1)
    slices, full = world(samples, profile, list(itertools.combinations(range(4), 2)))
    assert len(slices.seen.gaps) > 150_000
    return slices, full


class TestViewsOf:
    def calibrated(self, notion, method, slices, order=4.0, epsilon=1.0):
        claim = Guarantee(notion=notion, order=order, epsilon=epsilon)
        return claim, (calibrate(claim, slices, method), method)

    @pytest.mark.parametrize("method", EMPIRICAL, ids=lambda m: f"{m.rule}-{m.envelope}")
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_labels(self, notion, method):
        """The optimum over orders goes with the closed form only; sliced is said to be sliced."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated(notion, method, slices)
        found = views_of(slices, full, claim, noise, 1e-5)
        assert all(isinstance(view, View) and view.delta == 1e-5 for view in found)
        sliced = set(by_rule(found, f"sliced {notion}"))
        optimum = {"order_optimum"} if method.rule == "closed_form" else set()
        assert sliced == {"paper", "improved", "order_grid", "direct"} | optimum
        assert set(by_rule(found, "unsliced")) == {"paper", "improved", "order_grid", "direct"}
        assert {view.scope for view in found} == {f"sliced {notion}", "unsliced"}

    @pytest.mark.parametrize("delta", [1e-5, 0.1])
    def test_joint_by_hand(self, delta):
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("joint", WORST_GAP, slices)
        s = noise[0]
        sliced = by_rule(views_of(slices, full, claim, noise, delta), "sliced joint")
        c = float(improved_term(4, delta))
        assert sliced["paper"] == pytest.approx(1 + math.log(1 / delta) / 3, rel=1e-12)
        assert sliced["improved"] == pytest.approx(max(0, 1 + c), rel=1e-12)
        grid = [
            max(0, cost(slices, self.at(claim, a), *noise) + float(improved_term(a, delta)))
            for a in epsilon_delta.ORDERS
        ]
        assert sliced["order_grid"] == pytest.approx(min(grid), rel=1e-10)
        direct = oracles.smallest_epsilon(
            lambda e: float(exact_delta(3 / s, e) + exact_delta(4 / s, e)) / 2, delta
        )
        assert sliced["direct"] == pytest.approx(direct, rel=1e-7)

    @pytest.mark.parametrize("delta", [1e-5, 0.1, 0.25])
    def test_average_by_hand(self, delta):
        """At delta 0.25 the c of the improved rule is below 0, and an average gains nothing."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("average", WORST_GAP, slices)
        s = noise[0]
        sliced = by_rule(views_of(slices, full, claim, noise, delta), "sliced average")
        c = float(improved_term(4, delta))
        assert sliced["paper"] == pytest.approx(1 + math.log(1 / delta) / 3, rel=1e-12)
        assert sliced["improved"] == pytest.approx(1 + max(0, c), rel=1e-12)
        grid = [
            cost(slices, self.at(claim, a), *noise) + max(0, float(improved_term(a, delta)))
            for a in epsilon_delta.ORDERS
        ]
        assert sliced["order_grid"] == pytest.approx(min(grid), rel=1e-10)
        direct = [
            oracles.smallest_epsilon(lambda e, r=r: float(exact_delta(r / s, e)), delta)
            for r in (3, 4)
        ]
        assert sliced["direct"] == pytest.approx(sum(direct) / 2, rel=1e-7)

    def test_unsliced_by_hand(self):
        """Distance 5: order * 25 / (2 sigma^2) and the curve of ratio 5 / sigma."""
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("joint", WORST_GAP, slices)
        s, delta = noise[0], 1e-5
        unsliced = by_rule(views_of(slices, full, claim, noise, delta), "unsliced")
        spent = 4 * 25 / (2 * s**2)
        assert unsliced["paper"] == pytest.approx(spent + math.log(1 / delta) / 3, rel=1e-9)
        assert unsliced["improved"] == pytest.approx(spent + float(improved_term(4, delta)))
        grid = [a * 25 / (2 * s**2) + float(improved_term(a, delta)) for a in epsilon_delta.ORDERS]
        assert unsliced["order_grid"] == pytest.approx(max(0, min(grid)), rel=1e-9)
        direct = oracles.smallest_epsilon(lambda e: float(exact_delta(5 / s, e)), delta)
        assert unsliced["direct"] == pytest.approx(direct, rel=1e-7)

    @pytest.mark.parametrize(("notion", "square"), [("average", 12.5), ("joint", 16.0)])
    def test_the_optimum_over_orders(self, notion, square):
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated(notion, CLOSED_FORM, slices)
        rho = square / (2 * noise[0] ** 2)
        found = by_rule(views_of(slices, full, claim, noise, 1e-5), f"sliced {notion}")
        expected = rho + 2 * math.sqrt(rho * math.log(1e5))
        assert found["order_optimum"] == pytest.approx(expected, rel=1e-9)
        # One order of the paper's rule is no better than the best one.
        assert found["order_optimum"] <= found["paper"]

    def test_the_largest_instance_of_the_average(self):
        """Each instance solves its own slices; then the maximum, not slice by slice."""
        slices, full = points([3.0, 0.0], [0.0, 2.5])
        claim, noise = self.calibrated("average", WORST_GAP, slices)
        s = noise[0]
        found = by_rule(views_of(slices, full, claim, noise, 1e-3), "sliced average")
        alone = oracles.smallest_epsilon(lambda e: float(exact_delta(3 / s, e)), 1e-3) / 2
        assert found["direct"] == pytest.approx(alone, rel=1e-7)

    def at(self, claim, order):
        return Guarantee(notion=claim.notion, order=order, epsilon=claim.epsilon)

    @pytest.mark.soundness
    @pytest.mark.parametrize("method", EMPIRICAL, ids=lambda m: f"{m.rule}-{m.envelope}")
    def test_every_view_holds_for_the_true_densities(self, method, rng):
        for seed, delta in itertools.product(range(2), (1e-3, 0.1)):
            samples = oracles.random_samples(rng, 2)
            profile = FiniteProfile.uniform(dim=2, n_directions=3, seed=seed)
            slices, full = world(samples, profile)
            for notion in ("average", "joint"):
                claim, noise = self.calibrated(notion, method, slices, order=3.0)
                found = views_of(slices, full, claim, noise, delta)
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
        found = views_of(slices, full, claim, noise, delta)
        assert {view.rule for view in found} == {"paper", "improved", "order_grid"}

    def test_gaussian_distributions_have_no_direct_view(self):
        covs = np.tile(np.eye(2), (1, 2, 1, 1))
        pairs = GaussianPairs(means=np.array([[[0.0, 0.0], [3.0, 4.0]]]), covs=covs)
        slices = Slices(profile=FiniteProfile.axes(dim=2), seen=pairs)
        claim, noise = self.calibrated("joint", EXACT, slices)
        found = views_of(slices, Full(dim=2, seen=pairs), claim, noise, 1e-5)
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
        slices, full = world(samples, profile, [(0, 1), (0, 2), (1, 2)])
        try:
            claim, noise = self.calibrated(notion, method, slices, order, epsilon)
        except CalibrationError:
            return
        found = views_of(slices, full, claim, noise, delta)
        for scope in (f"sliced {notion}", "unsliced"):
            rules = by_rule(found, scope)
            if "improved" in rules:
                assert rules["order_grid"] <= rules["improved"] <= rules["paper"]
        # The same minimum as without leaving out orders.
        improved = (
            epsilon_delta.improved_epsilon_average
            if notion == "average"
            else epsilon_delta.improved_epsilon_joint
        )
        grid = min(
            improved(a, cost(slices, self.at(claim, a), *noise), delta)
            for a in (*epsilon_delta.ORDERS, claim.order)
        )
        assert by_rule(found, f"sliced {notion}")["order_grid"] == pytest.approx(grid, rel=1e-9)

    @pytest.mark.parametrize("notion", ["average", "joint"])
    @pytest.mark.parametrize("order", [4.0, 3.3])
    def test_large_tables_are_not_coarsened(self, notion, order):
        """All instances and slices by plain bisection on the tables themselves."""
        slices, full = large_world()
        claim, noise = self.calibrated(notion, TRANSPORT, slices, order)
        s, weights, delta = noise[0], slices.profile.weights, 1e-5
        found = views_of(slices, full, claim, noise, delta)
        sliced, unsliced = (by_rule(found, scope) for scope in (f"sliced {notion}", "unsliced"))
        assert sliced["order_grid"] <= sliced["improved"]
        improved = (
            epsilon_delta.improved_epsilon_average
            if notion == "average"
            else epsilon_delta.improved_epsilon_joint
        )
        for a in epsilon_delta.ORDERS:
            at_a = improved(a, cost(slices, self.at(claim, a), *noise), delta)
            assert sliced["order_grid"] <= at_a * (1 + 1e-9)

        def bisected(deltas, shape):
            low, high = np.zeros(shape), np.full(shape, 64.0)
            for _ in range(45):
                middle = (low + high) / 2
                good = deltas(middle) <= delta
                low, high = np.where(good, low, middle), np.where(good, middle, high)
            return high

        if notion == "average":
            rows = bisected(lambda e: slices.seen.deltas(e, s, 0.0), (6, 160))
            direct = float((rows @ weights).max())
        else:
            each = bisected(
                lambda e: slices.seen.deltas(np.tile(e[:, None], 160), s, 0.0) @ weights, 6
            )
            direct = float(each.max())
        assert sliced["direct"] == pytest.approx(direct, rel=1e-6)
        couplings = bisected(lambda e: full.seen.deltas(e, s, 0.0), (6, full.seen.n_slices))
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
        assert epsilon_delta.best_views(given_views) == tuple(given_views[i] for i in (1, 3, 4))
        assert epsilon_delta.best_views([]) == ()

    def test_an_unsliced_claim_has_unsliced_views_only(self):
        slices, full = points([3.0, 4.0])
        claim = Guarantee.unsliced(order=4, epsilon=2)
        found = views_of(slices, full, claim, (5.0, TRANSPORT), 1e-5)
        assert {view.scope for view in found} == {"unsliced"}

    @pytest.mark.soundness
    def test_noise_that_does_not_give_the_claim_is_refused(self):
        """Else the first two rules would state an epsilon that does not hold."""
        slices, full = points([3.0, 4.0])
        claim, (noise_std, method) = self.calibrated("joint", TRANSPORT, slices)
        with pytest.raises(ArgumentError):
            views_of(slices, full, claim, (noise_std / 2, method), 1e-5)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
    def test_delta(self, delta):
        slices, full = points([3.0, 4.0])
        claim, noise = self.calibrated("joint", TRANSPORT, slices)
        with pytest.raises(ArgumentError, match="delta"):
            views_of(slices, full, claim, noise, delta)

    @pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf])
    def test_noise_must_be_positive(self, noise_std):
        slices, full = points([3.0, 4.0])
        claim = Guarantee.joint(order=4, epsilon=1)
        with pytest.raises(ArgumentError, match="noise_std"):
            views_of(slices, full, claim, (noise_std, TRANSPORT), 1e-5)
