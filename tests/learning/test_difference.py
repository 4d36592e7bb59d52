# SPDX-License-Identifier: Apache-2.0
"""Right guesses, bits and (epsilon, delta) of runs: known answers, oracles and laws."""

import itertools
import math
import time

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, norm

from pufferslice.claims import EpsilonDelta, Guarantee, Guess, Information, Measure
from pufferslice.claims.views import ORDERS, improved_epsilon_joint
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning import (
    Amplified,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    at_most,
    binomial,
    exactly,
    from_pmf,
    mostly_at_most,
    plan_training,
    plan_with_noise,
)
from pufferslice.learning import difference as module
from pufferslice.learning.difference import NoisySteps, RunDifference, measured

N, B, T = 50_000, 512, 3_920
POISSON = Poisson(n_records=N, rate=B / N)
WITHOUT = WithoutReplacement(n_records=N, batch_size=B)
WITH = WithReplacement(n_records=N, batch_size=B)
COIN = binomial(n_records=40, mismatch_probability=0.5)
GUESS = Guarantee.guess(at_most=0.64)
SMALL = Poisson(n_records=100, rate=0.1)
EXACT = (WorstCase(), LogMoment(), Amplified())


def run(accountant, differing, multipliers, sampling=SMALL, **more):
    steps = NoisySteps(accountant, sampling, np.atleast_1d(np.asarray(multipliers, float)))
    return RunDifference(runs=(steps,), differing=differing, **more)


def planned(accountant, target, differing, sampling=POISSON, n_steps=T):
    return plan_training(
        differing=differing, sampling=sampling, clip_norm=1.0, n_steps=n_steps,
        accountant=accountant, target=target,
    )  # fmt: skip


def multiplier(*args, **kwargs):
    return float(planned(*args, **kwargs).noise_multipliers[0])


def gaussian_delta(mu, epsilon):
    if mu == 0:
        return 0.0
    return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


class TestMeanSquare:
    @pytest.mark.soundness
    @pytest.mark.parametrize(
        ("differing", "sampling", "answer"),
        [
            (exactly(20), POISSON, 86.3918462734234),
            (exactly(20), WITHOUT, 86.3782446370052),
            (COIN, POISSON, 86.5767902287835),
            (COIN, WITHOUT, 86.5628604507265),
            (COIN, WITH, 86.930765292914),
        ],
    )
    def test_known_multipliers(self, differing, sampling, answer):
        """50,000 records, 512 in a batch, 3,920 steps, 64 % right guesses."""
        found = multiplier(MeanSquare(), GUESS, differing, sampling)
        assert answer <= found <= answer * (1 + 1e-9)

    @pytest.mark.soundness
    def test_it_is_half_the_root_of_the_mean_square(self):
        """Guess Phi(sqrt(rho) / 2), bits rho / (2 ln 2), rho = sum of 4 E K^2 / z^2, by hand."""
        square = 20 * 0.01024 * (1 + 19 * 0.01024)
        rho = 4 * square * (1 / 3**2 + 2 / 5**2)
        two = run(MeanSquare(), exactly(20), [3.0, 5.0, 5.0], POISSON)
        assert two.squared_distance(1.0) == pytest.approx(rho, rel=1e-11)
        assert two.squared_distance(2.0) == pytest.approx(rho / 4, rel=1e-11)
        guess = measured(two, Measure.guess()).bound
        assert guess == pytest.approx(norm.cdf(math.sqrt(rho) / 2), rel=1e-11)
        bits = measured(two, Measure.information()).bound
        assert bits == pytest.approx(rho / 2 / math.log(2), rel=1e-11)
        rho_of_a_guess = (2 * ndtri(0.64)) ** 2
        assert rho_of_a_guess == pytest.approx(0.513970825836408, rel=1e-12)

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        "sampling",
        [
            SMALL,
            WithoutReplacement(n_records=100, batch_size=9),
            WithReplacement(n_records=100, batch_size=9),
        ],
        ids=repr,
    )
    def test_moments_of_a_random_number(self, sampling):
        differing = from_pmf([0.25, 0.25, 0.0, 0.5])
        squares = [sampling.mean_square_discrepancy(n) for n in (0, 1, 3)]
        expected = 4 * np.dot([0.25, 0.25, 0.5], squares) / 7**2
        found = run(MeanSquare(), differing, 7.0, sampling).squared_distance(1.0)
        assert found == pytest.approx(expected, rel=1e-11)

    @pytest.mark.soundness
    def test_random_sets_are_accepted_and_bounded(self):
        """No record differs, or three: right guesses by the draws themselves are below."""
        z, n_steps, q = 8.0, 30, 0.3
        differing = from_pmf([0.5, 0.0, 0.0, 0.5])
        design = Poisson(n_records=3, rate=q)
        stated = measured(
            run(MeanSquare(), differing, np.full(n_steps, z), design), Measure.guess()
        ).bound
        drawn = np.random.default_rng(1).binomial(3, q, size=(20_000, n_steps))
        truth = 0.25 + 0.5 * float(ndtr(np.sqrt((4 * drawn**2).sum(axis=1)) / z / 2).mean())
        assert truth <= stated <= truth + 0.1

    @pytest.mark.soundness
    def test_beside_a_worst_case_run_its_batches_are_not_averaged(self):
        """Guesses of both runs by squared distances: 1/9 of the largest K, 1/25 of the mean."""
        both = RunDifference(
            runs=(NoisySteps(WorstCase(), SMALL, np.array([30.0])),
                  NoisySteps(MeanSquare(), SMALL, np.array([50.0]))),
            differing=from_pmf([0.5, 0.0, 0.0, 0.5]),
        )  # fmt: skip
        rho = 4 * 0.5 * (9 / 900 + 3 * 0.1 * (1 + 2 * 0.1) / 2_500)
        assert both.squared_distance(1.0) == pytest.approx(rho, rel=1e-11)
        assert both.variation(1.0) == pytest.approx(2 * ndtr(math.sqrt(rho) / 2) - 1, rel=1e-11)

    def test_no_distribution_of_draws_enters(self):
        """A mean square gives no (epsilon, delta); the curve is that of published draws."""
        mean, log = (run(one, exactly(3), np.full(5, 4.0)) for one in (MeanSquare(), LogMoment()))
        assert mean.delta_curve(1.0)(0.5) == log.delta_curve(1.0)(0.5)
        assert mean.variation(1.0) >= log.variation(1.0)


class TestAgainstOracles:
    @pytest.mark.soundness
    @pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
    def test_worst_case_is_one_gaussian_pair_for_each_number(self, epsilon):
        chances, schedule = np.array([0.25, 0.25, 0.5]), [3.0, 5.0, 5.0]
        design = WithoutReplacement(n_records=100, batch_size=2)
        differing = from_pmf({0: 0.25, 1: 0.25, 6: 0.5})
        shifts = [2 * cap * math.sqrt(1 / 9 + 2 / 25) for cap in (0, 1, 2)]
        exact = chances @ [gaussian_delta(mu, epsilon) for mu in shifts]
        found = run(WorstCase(), differing, schedule, design).delta_curve(1.0)(epsilon)
        assert exact <= found <= exact * (1 + 1e-9) + 1e-14
        bits = measured(run(WorstCase(), differing, schedule, design), Measure.information())
        expected = chances @ np.square(shifts) / 2 / math.log(2)
        assert bits.bound == pytest.approx(expected, rel=1e-10)

    @pytest.mark.soundness
    @pytest.mark.parametrize("epsilon", [0.0, 0.4, 2.0])
    def test_the_expectation_is_outside_the_composition(self, epsilon):
        """One or two records of two, in many steps: published draws are counted exactly."""
        z, n_steps, q = 9.0, 60, 0.2
        design, n = Poisson(n_records=2, rate=q), np.arange(n_steps + 1)
        alone = [gaussian_delta(2 * math.sqrt(k) / z, epsilon) for k in n]
        one = binom.pmf(n, n_steps, q) @ alone
        two = 0.0
        ones, twos = binom.pmf(1, 2, q), binom.pmf(2, 2, q)
        for j in n:  # steps with both records; the others have one with this chance
            rest = n_steps - j
            k = np.arange(rest + 1)
            squares = 4 * j + k
            deltas = [gaussian_delta(2 * math.sqrt(s) / z, epsilon) for s in squares]
            share = binom.pmf(k, rest, ones / (1 - twos)) @ deltas
            two += binom.pmf(j, n_steps, twos) * share
        exact = 0.25 * one + 0.75 * two
        differing = from_pmf([0.0, 0.25, 0.75])
        found = run(LogMoment(), differing, np.full(n_steps, z), design).delta_curve(1.0)(epsilon)
        assert exact <= found <= exact * (1 + 1e-4)
        # The same records in every step: inside, the coin would be tossed anew in each.
        inside = run(LogMoment(), exactly(1), np.full(n_steps, z), design).delta_curve(1.0)(epsilon)
        assert inside < found

    @pytest.mark.soundness
    def test_secret_draws_against_published_ones(self):
        """Known answers of this library: secret draws need 41 % of the noise."""
        published = multiplier(LogMoment(), GUESS, exactly(20))
        secret = multiplier(Amplified(), GUESS, exactly(20))
        assert published == pytest.approx(86.3675, abs=2e-4)
        assert secret == pytest.approx(35.7684, abs=2e-4)

    @pytest.mark.soundness
    def test_a_rate_of_one_has_no_secret(self):
        design = Poisson(n_records=100, rate=1.0)
        for measure in (Measure.guess(), Measure.information(), Measure.epsilon_delta(delta=1e-6)):
            bounds = [
                measured(run(one, exactly(3), np.full(9, 30.0), design), measure).bound
                for one in EXACT
            ]
            assert bounds == pytest.approx([bounds[0]] * 3, rel=1e-9)


def normal_mixture_epsilon(mixture, delta):
    """Epsilon of a published mixture of normal pairs, given as (chance, shift over std)."""

    def excess(epsilon):
        return sum(chance * gaussian_delta(mu, epsilon) for chance, mu in mixture) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, 500.0, xtol=1e-12)


def whole_runs(sampling, n_differing, multipliers):
    """Every sequence of discrepancies: the shifts of independent normals add as squares."""
    chances = np.exp(sampling.discrepancy_log_probabilities(n_differing))
    for drawn in itertools.product(enumerate(chances.tolist()), repeat=len(multipliers)):
        chance = math.prod(chance for _, chance in drawn)
        squares = [(2 * k / z) ** 2 for (k, _), z in zip(drawn, multipliers, strict=True)]
        if chance > 1e-12:  # the others change no digit, and lower the oracle
            yield chance, math.sqrt(sum(squares))


def epsilon_at(difference, delta):
    measure = Measure.epsilon_delta(delta=delta)
    return measure.cost(attrs.evolve(difference, near_delta=delta), 1.0)


@pytest.mark.soundness
class TestEpsilon:
    """Epsilon at a delta, against sums over every sequence of draws."""

    DESIGN = WithoutReplacement(n_records=50, batch_size=10)

    def check(self, found, exact):
        assert exact - 1e-9 <= found <= exact * (1 + 1e-4) + 1e-9

    @pytest.mark.parametrize(
        "sampling",
        [
            Poisson(n_records=50, rate=0.2),
            DESIGN,
            WithReplacement(n_records=50, batch_size=10),
        ],
        ids=lambda value: value.name,
    )
    @pytest.mark.parametrize(
        ("multipliers", "delta"), [([5.0], 1e-5), ([9.0, 9.0], 1e-2), ([9.0, 12.0, 15.0], 1e-5)]
    )
    def test_published_draws_of_every_design(self, sampling, multipliers, delta):
        exact = normal_mixture_epsilon(list(whole_runs(sampling, 2, multipliers)), delta)
        self.check(epsilon_at(run(LogMoment(), exactly(2), multipliers, sampling), delta), exact)

    @pytest.mark.parametrize("delta", [1e-2, 1e-8, 1e-12])
    @pytest.mark.parametrize(
        ("n_differing", "multipliers", "batch_size"),
        [(0, [1.0], 10), (4, [3.0], 10), (10, [3.0], 2), (4, np.full(3_920, 900.0), 10),
         (5, [1.0, 100.0, 1.0], 10)],
    )  # fmt: skip
    def test_worst_case(self, n_differing, multipliers, batch_size, delta):
        """The cap is that of the design; steps of very different noise are one pair."""
        sampling = WithoutReplacement(n_records=50, batch_size=batch_size)
        shift = np.linalg.norm(2 * min(n_differing, batch_size) / np.asarray(multipliers))
        found = epsilon_at(run(WorstCase(), exactly(n_differing), multipliers, sampling), delta)
        exact = normal_mixture_epsilon([(1.0, float(shift))], delta)
        assert exact - 1e-9 <= found <= exact * (1 + 1e-3)

    def test_random_numbers_are_mixed_outside_the_steps(self):
        """Inside, each step would draw its own number, which is another epsilon."""
        differing, multipliers, delta = from_pmf({0: 0.9, 4: 0.1}), [2.0, 2.0], 1e-4
        fixed = list(whole_runs(self.DESIGN, 4, multipliers))
        outside = normal_mixture_epsilon([(0.1 * chance, mu) for chance, mu in fixed], delta)
        self.check(
            epsilon_at(run(LogMoment(), differing, multipliers, self.DESIGN), delta), outside
        )
        step = [(0.9, 0.0), *((0.1 * p, mu) for p, mu in whole_runs(self.DESIGN, 4, [2.0]))]
        inside = [(p * q, math.hypot(a, b)) for (p, a), (q, b) in itertools.product(step, repeat=2)]
        assert abs(outside - normal_mixture_epsilon(inside, delta)) > 0.01

    @pytest.mark.parametrize(
        ("chances", "delta"),
        [
            ({1: 0.99, 21: 0.01 - 1.7e-5, 500: 1.7e-5}, 1.62e-5),
            ({2: 0.5, 16: 0.5, 500: 1e-100}, 2e-5),
            ({2: 0.5, 16: 0.5, 500: 1e-320}, 2e-5),
        ],
        ids=["rare", "never", "less than a float"],
    )
    def test_a_rare_large_number_leaves_the_others_exact(self, chances, delta):
        """Each is composed near where it matters: few records have another epsilon than many."""
        design = Poisson(n_records=500, rate=0.02)
        mixture = [
            (chances[n] * chance, shift)
            for n in chances
            for chance, shift in whole_runs(design, n, [4.9])
        ]
        found = epsilon_at(run(LogMoment(), from_pmf(chances), [4.9], design), delta)
        self.check(found, normal_mixture_epsilon(mixture, delta))

    def test_a_tail_that_is_left_out_is_in_delta(self):
        cut = mostly_at_most(4, tail_probability=1e-3, failure_probability=0.0)
        exact = normal_mixture_epsilon([(1.0, 2 * 4 * math.sqrt(2) / 2.0)], 1e-3)
        self.check(epsilon_at(run(WorstCase(), cut, [2.0, 2.0], self.DESIGN), 2e-3), exact)
        assert epsilon_at(run(WorstCase(), cut, [2.0, 2.0], self.DESIGN), 1e-3) == math.inf

    @pytest.mark.parametrize("accountant", EXACT, ids=repr)
    def test_never_above_the_grid_of_orders(self, accountant):
        for multiplier, n_steps in ((20.0, 30), (60.0, 300)):
            steps = run(accountant, exactly(4), np.full(n_steps, multiplier))
            grid = min(
                improved_epsilon_joint(order, steps.divergence(order, 1.0), 1e-5)
                for order in ORDERS
            )
            assert 0.5 * grid < epsilon_at(steps, 1e-5) <= grid


class TestRandomNumbers:
    @pytest.mark.soundness
    @pytest.mark.parametrize("accountant", EXACT, ids=repr)
    @pytest.mark.parametrize("measure", [Measure.guess(), Measure.information(),
                                         Measure.epsilon_delta(delta=1e-4)], ids=str)  # fmt: skip
    def test_few_nodes_are_never_below_all(self, accountant, measure, monkeypatch):
        differing = binomial(n_records=50, mismatch_probability=0.3)
        some = measured(run(accountant, differing, np.full(20, 40.0)), measure).bound
        monkeypatch.setattr(module, "_FEW", 1_000)
        every = measured(run(accountant, differing, np.full(20, 40.0)), measure).bound
        assert every * (1 - 1e-4) <= some <= every * 1.03

    @pytest.mark.soundness
    def test_rare_large_numbers_are_not_lost(self):
        """Two cases in a million differ in everything, and make up most of delta."""
        differing = from_pmf({1: 1 - 2e-6, 100: 2e-6})
        found, few, many = (
            run(Amplified(), one, np.full(3, 5.0)).delta_curve(1.0)(3.0)
            for one in (differing, exactly(1), exactly(100))
        )
        assert found == pytest.approx((1 - 2e-6) * few + 2e-6 * many, rel=1e-4)
        assert found > 10 * few

    @pytest.mark.soundness
    def test_a_tail_is_part_of_the_bound(self):
        cut = mostly_at_most(3, tail_probability=1e-3, failure_probability=0.0)
        for accountant in (*EXACT, MeanSquare()):
            whole = run(accountant, at_most(3), np.full(5, 30.0))
            with_tail = run(accountant, cut, np.full(5, 30.0))
            assert with_tail.variation(1.0) == pytest.approx(whole.variation(1.0) + 1e-3, rel=1e-9)
            with pytest.raises(ArgumentError, match="claim right guesses"):
                with_tail.mean_square(1.0)

    def test_no_record_differs(self):
        for accountant in (*EXACT, MeanSquare()):
            nothing = run(accountant, exactly(0), np.full(5, 30.0))
            assert nothing.variation(1.0) == 0.0
            assert nothing.mean_square(1.0) == 0.0
            assert nothing.delta_curve(1.0)(0.5) == 0.0


class TestSchedules:
    def test_steps_of_different_noise_compose(self):
        """As many kinds of steps as fit are composed as they are."""
        z = np.array([20.0, 30.0])
        both = run(LogMoment(), exactly(2), np.repeat(z, 10)).delta_curve(1.0)(0.1)
        orders = run(LogMoment(), exactly(2), np.tile(z[::-1], 10)).delta_curve(1.0)(0.1)
        assert both == orders
        alone = [run(LogMoment(), exactly(2), np.full(20, one)) for one in z]
        low, high = (one.delta_curve(1.0)(0.1) for one in alone[::-1])
        assert low < both < high

    @pytest.mark.soundness
    def test_many_values_are_rounded_down(self, monkeypatch):
        falling = np.linspace(60, 40, 60)
        every = run(LogMoment(), exactly(3), falling).variation(1.0)
        monkeypatch.setattr(module, "_MOST_LOSSES", 20)
        some = run(LogMoment(), exactly(3), falling).variation(1.0)
        assert every * (1 - 1e-6) <= some <= every * 1.02
        assert some > every * 1.002

    def test_worst_case_needs_no_rounding(self):
        falling = np.linspace(60, 40, 500)
        found = run(WorstCase(), exactly(3), falling).variation(1.0)
        shift = 6 * math.sqrt(float(np.sum(falling**-2.0)))
        assert found == pytest.approx(2 * ndtr(shift / 2) - 1, rel=1e-9)


class TestTargets:
    @pytest.mark.soundness
    @pytest.mark.parametrize("accountant", [*EXACT, MeanSquare()], ids=repr)
    @pytest.mark.parametrize(
        "target", [GUESS, Information(bits=0.2), EpsilonDelta(epsilon=1.0, delta=1e-5)], ids=str
    )
    def test_the_least_noise_meets_the_target_and_hardly_more(self, accountant, target):
        if not isinstance(target, accountant.kinds):
            return
        differing = from_pmf([0.0, 0.5, 0.25, 0.25])
        plan = planned(accountant, target, differing, SMALL, n_steps=40)
        assert plan.measure == Measure.of(target)
        assert target.bound * (1 - 1e-6) < plan.guarantee().bound <= target.bound
        less = attrs.evolve(plan, noise_multipliers=plan.noise_multipliers * (1 - 1e-4))
        assert less.guarantee().bound > target.bound

    def test_room_is_left_for_noise_that_is_not_ideal(self):
        """Or the certificate of a run for 64 % would say 64.1 %."""
        plan = planned(Amplified(), GUESS, exactly(2), SMALL, n_steps=5)
        drawn = attrs.evolve(plan.difference, implementation_delta=1e-13)
        assert measured(drawn, plan.measure).bound <= 0.64
        much = attrs.evolve(plan.difference, implementation_delta=0.01)
        assert measured(much, plan.measure).bound == pytest.approx(0.65, abs=1e-7)

    def test_a_tail_beyond_the_target_is_refused(self):
        cut = mostly_at_most(3, tail_probability=0.3, failure_probability=0.0)
        with pytest.raises(ArgumentError, match="delta"):
            planned(LogMoment(), GUESS, cut, SMALL, n_steps=5)
        plan = planned(LogMoment(), Guess(at_most=0.7), cut, SMALL, n_steps=5)
        assert plan.guarantee().bound <= 0.7

    def test_nothing_to_plan(self):
        with pytest.raises(CalibrationError, match="no record differs"):
            planned(Amplified(), GUESS, exactly(0), SMALL, n_steps=5)

    def test_no_useful_bound_is_an_error(self):
        loud = plan_with_noise(
            differing=exactly(50), sampling=SMALL, clip_norm=1.0, noise_multipliers=[1e-3],
            accountant=LogMoment(), measure=Measure.guess(),
        )  # fmt: skip
        for measure in (Measure.guess(), Measure.epsilon_delta(delta=1e-5)):
            with pytest.raises(CalibrationError, match="Use more noise"):
                attrs.evolve(loud, measure=measure).guarantee()

    @pytest.mark.slow
    def test_planning_for_guesses_takes_seconds(self):
        """0.2 seconds for a number, 2 to 4 for a random one, on an idle machine."""
        for differing, most in ((exactly(20), 3.0), (COIN, 12.0)):
            before = time.process_time()
            planned(Amplified(), GUESS, differing)
            assert time.process_time() - before < most


@pytest.mark.soundness
@settings(max_examples=40, deadline=None)
@given(
    z=st.floats(1.0, 200.0),
    rate=st.floats(0.01, 1.0),
    n_differing=st.integers(1, 30),
    n_steps=st.integers(1, 400),
    epsilon=st.floats(0.0, 3.0),
)
def test_laws(z, rate, n_differing, n_steps, epsilon):
    """Secret draws, published draws, worst case; for guesses the mean square is above published."""
    design = Poisson(n_records=30, rate=rate)
    noise = np.full(n_steps, z)
    worst, log, amplified = (run(one, exactly(n_differing), noise, design) for one in EXACT)
    mean = run(MeanSquare(), exactly(n_differing), noise, design)
    room = 1 + 1e-4
    for low, high in ((amplified, log), (log, worst)):
        assert low.delta_curve(1.0)(epsilon) <= high.delta_curve(1.0)(epsilon) * room + 1e-13
        assert low.variation(1.0) <= high.variation(1.0) * room + 1e-13
        assert low.mean_square(1.0) <= high.mean_square(1.0) * room
    assert log.variation(1.0) <= mean.variation(1.0) * (1 + 1e-11)
    # Pinsker ties the two together: TV^2 <= KL / 2, and KL is half of what is stated.
    for one in (worst, log, amplified, mean):
        assert one.variation(1.0) ** 2 <= one.mean_square(1.0) / 4 * (1 + 1e-9) + 1e-13
