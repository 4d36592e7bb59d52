# SPDX-License-Identifier: Apache-2.0
"""The four accountants: known answers, sums in 40 digits, random D, and what is refused."""

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from pufferslice.claims import (
    EpsilonDelta,
    Guarantee,
    Guess,
    Information,
    OverBatches,
    Renyi,
)
from pufferslice.learning.accountants import (
    ACCOUNTANTS,
    Amplified,
    LogMoment,
    MeanSquare,
    WorstCase,
    calibrate_multiplier,
    certifies,
    cost_by_count,
    draws_may_be_seen,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.amplification import amplified_divergence
from pufferslice.learning.differing import binomial, exactly, from_pmf
from pufferslice.learning.sampling import Poisson, WithoutReplacement, WithReplacement

HP = mp.clone()
HP.dps = 40

N_RECORDS = 50_000
ORDER = 16
NINE_DIGITS = 5e-10

# (batch size, steps, epsilon): worst case, mean square, log moment, amplified
MULTIPLIERS = {
    (512, 3_920, 1): (7083.501959, 175.153412, 176.4677711, 72.53368006),
    (512, 3_920, 8): (2504.396135, 61.92608267, 65.69691082, 25.64145606),
    (1024, 1_960, 80): (560.0, 21.11784964, 49.95889417, 11.46826999),
}
CASES = [
    (*setting, accountant, answer)
    for setting, answers in MULTIPLIERS.items()
    for accountant, answer in zip(ACCOUNTANTS, answers, strict=True)
]


def design_for(accountant, batch_size):
    if accountant.name == "amplified":
        return Poisson(n_records=N_RECORDS, rate=batch_size / N_RECORDS)
    return WithoutReplacement(n_records=N_RECORDS, batch_size=batch_size)


def target_of(accountant, epsilon, order=ORDER):
    return accountant.claim(order=order, epsilon=epsilon)


class TestKnownAnswers:
    @pytest.mark.parametrize(("batch_size", "n_steps", "epsilon", "accountant", "answer"), CASES)
    def test_multiplier_for_a_target(self, batch_size, n_steps, epsilon, accountant, answer):
        design, target = design_for(accountant, batch_size), target_of(accountant, epsilon)
        z = calibrate_multiplier(accountant, target, design, exactly(20), n_steps)
        assert z == pytest.approx(answer, rel=NINE_DIGITS)
        spent = run_cost(accountant, ORDER, design, exactly(20), np.full(n_steps, z))
        assert spent <= epsilon
        assert spent == pytest.approx(epsilon, rel=1e-9)

    def test_mean_square_is_not_the_cost_of_a_run(self):
        """0.476 on average over draws, and 101.957 is what the run costs."""
        design, step = Poisson(n_records=N_RECORDS, rate=0.01), np.array([4.0])
        costs = [
            run_cost(accountant, ORDER, design, exactly(20), step) for accountant in ACCOUNTANTS
        ]
        assert costs[1] == pytest.approx(0.476, rel=1e-12)
        assert costs[3] == pytest.approx(101.957391276349, rel=NINE_DIGITS)
        assert costs[0] == 2 * ORDER * 20**2 / 4**2

    def test_random_differing_records(self):
        design = WithoutReplacement(n_records=100, batch_size=10)
        distribution, steps = binomial(n_records=100, mismatch_probability=0.05), np.full(50, 40.0)
        single = run_cost(LogMoment(), 4, design, distribution, steps)
        assert single == pytest.approx(0.204848053582437, rel=1e-12)
        two = mixed_cost(
            4, 2 * cost_by_count(LogMoment(), 4, design, distribution, steps), distribution
        )
        assert two == pytest.approx(0.463058, abs=5e-7)
        longer = run_cost(LogMoment(), 4, design, distribution, np.full(100, 40.0))
        assert longer == pytest.approx(two)
        moment = run_cost(LogMoment(), 4, design, exactly(5), steps)
        assert moment == pytest.approx(0.173487203414766, rel=1e-12)
        mean = run_cost(MeanSquare(), 4, design, exactly(5), steps)
        assert mean == pytest.approx(0.170454545454545, rel=1e-12)

    def test_by_hand(self):
        """2 * 3 * 2^2 / 4^2 for the cap, and 2 * 3 * E[K^2] / 4^2 with K = 0, 1, 2 evenly drawn."""
        design, step = Poisson(n_records=2, rate=0.5), np.array([4.0])
        assert run_cost(WorstCase(), 3, design, exactly(2), step) == 1.5
        assert run_cost(MeanSquare(), 3, design, exactly(2), step) == 6 * (0.5 + 1) / 16
        moment = 0.25 + 0.5 * math.exp(2 * 6 / 16) + 0.25 * math.exp(2 * 6 * 4 / 16)
        spent = run_cost(LogMoment(), 3, design, exactly(2), step)
        assert spent == pytest.approx(math.log(moment) / 2, rel=1e-14)


class TestAgainstExactSums:
    designs = st.one_of(
        st.floats(1e-5, 1.0).map(lambda q: Poisson(n_records=30, rate=q)),
        st.integers(1, 30).map(lambda b: WithoutReplacement(n_records=30, batch_size=b)),
        st.integers(1, 30).map(lambda b: WithReplacement(n_records=30, batch_size=b)),
    )

    @given(designs, st.integers(1, 30), st.floats(1.01, 256), st.floats(-1, 9))
    def test_log_moment(self, design, d, order, log_z):
        z = math.exp(log_z)
        spent = run_cost(LogMoment(), order, design, exactly(d), np.array([z]))
        assert spent == pytest.approx(float(exact_log_moment(order, design, d, z)), rel=1e-11)

    @given(designs, st.integers(1, 30), st.floats(1.01, 256), st.floats(-1, 9))
    def test_mean_square_and_worst_case(self, design, d, order, log_z):
        z, distribution = math.exp(log_z), exact_distribution(design, d)
        step = np.array([z])
        mean = HP.fsum(chance * k**2 for k, chance in enumerate(distribution))
        most = max(k for k, chance in enumerate(distribution) if chance > 0)
        for accountant, square in ((MeanSquare(), float(mean)), (WorstCase(), most**2)):
            spent = run_cost(accountant, order, design, exactly(d), step)
            assert spent == pytest.approx(2 * order * square / z**2, rel=1e-12)

    @pytest.mark.soundness
    @given(designs, st.integers(1, 30), st.floats(1.01, 64), st.floats(-5, 4))
    def test_calibrated_noise_is_safe_in_40_digits_too(self, design, d, order, log_epsilon):
        """By more than floats could have lost: the multiplier is raised by a relative 2^-38."""
        epsilon = math.exp(log_epsilon)
        target = target_of(LogMoment(), epsilon, order)
        z = calibrate_multiplier(LogMoment(), target, design, exactly(d), 100)
        spent = 100 * exact_log_moment(order, design, d, z)
        assert spent <= HP.mpf(epsilon) * (1 - HP.mpf(2) ** -38)

    @pytest.mark.soundness
    def test_log_moment_bounds_a_run_whose_draws_are_published(self, rng):
        """Outputs and draws together, summed over the draws: equality for the worst gradients."""
        order, z, rate, d = 3.0, 2.5, 0.3, 3
        h = sum(
            rate ** sum(drawn)
            * (1 - rate) ** (d - sum(drawn))
            * math.exp(order * (order - 1) * (2 * sum(drawn) / z) ** 2 / 2)
            for drawn in itertools.product([0, 1], repeat=d)
        )
        design = Poisson(n_records=d, rate=rate)
        spent = run_cost(LogMoment(), order, design, exactly(d), np.array([z]))
        assert spent == pytest.approx(math.log(h) / (order - 1), rel=1e-13)

    @given(
        st.lists(st.floats(0.01, 1), min_size=2, max_size=6), st.floats(1.01, 64), st.floats(-30, 6)
    )
    def test_mixed_cost(self, parts, order, log_scale):
        chances = np.array(parts) / sum(parts)
        costs = math.exp(log_scale) * np.arange(len(parts)) ** 1.5
        distribution = from_pmf(chances)
        total = HP.fsum(HP.mpf(float(c)) for c in np.exp(distribution.log_probabilities))
        a = HP.mpf(order) - 1
        # The distribution is taken as it is, up to the rounding of its sum.
        moment = (
            1
            - total
            + HP.fsum(
                HP.exp(HP.mpf(float(logp))) * HP.exp(a * HP.mpf(float(cost)))
                for logp, cost in zip(distribution.log_probabilities, costs, strict=True)
            )
        )
        assert mixed_cost(order, costs, distribution) == pytest.approx(
            float(HP.log(moment) / a), rel=1e-11
        )


def exact_log_moment(order, design, d, z):
    """The cost of a step in 40 digits."""
    a, z = HP.mpf(order), HP.mpf(z)
    moment = HP.fsum(
        chance * HP.exp((a - 1) * 2 * a * k**2 / z**2)
        for k, chance in enumerate(exact_distribution(design, d))
    )
    return HP.log(moment) / (a - 1)


def exact_distribution(design, d):
    """P(K = k) in 40 digits, from counting."""
    n = design.n_records
    if design.name == "poisson":
        trials, q = d, HP.mpf(design.rate)
    elif design.name == "with_replacement":
        trials, q = design.batch_size, HP.mpf(d) / n
    else:
        b = design.batch_size
        ways = [HP.binomial(d, k) * HP.binomial(n - d, b - k) for k in range(min(d, b) + 1)]
        return [way / HP.binomial(n, b) for way in ways]
    return [HP.binomial(trials, k) * q**k * (1 - q) ** (trials - k) for k in range(trials + 1)]


def test_every_multiplier_counts(rng):
    design, steps = Poisson(n_records=1_000, rate=0.02), rng.uniform(2, 9, 50).repeat(2)
    spent = run_cost(Amplified(), 8, design, exactly(6), steps)
    single = [amplified_divergence(8, float(z), 0.02, 6) for z in steps]
    assert spent == pytest.approx(math.fsum(single), rel=1e-12)


class TestManyCounts:
    """A binomial distribution on thousands of counts, of which few matter."""

    distribution = binomial(n_records=1_500, mismatch_probability=0.01)
    design = Poisson(n_records=1_500, rate=0.02)

    @pytest.mark.soundness
    @pytest.mark.parametrize(
        ("accountant", "design"),
        [
            (WorstCase(), WithReplacement(n_records=1_500, batch_size=30)),
            (WorstCase(), WithoutReplacement(n_records=1_500, batch_size=30)),
            (LogMoment(), WithReplacement(n_records=1_500, batch_size=30)),
            (LogMoment(), WithoutReplacement(n_records=1_500, batch_size=30)),
            (LogMoment(), WithoutReplacement(n_records=1_500, batch_size=1_400)),
            (LogMoment(), Poisson(n_records=1_500, rate=0.02)),
            (Amplified(), Poisson(n_records=1_500, rate=0.02)),
        ],
        ids=lambda value: value.name,
    )
    def test_one_run_and_two_against_the_plain_sum(self, accountant, design):
        """Costs of each count by itself, two schedules, and the moment in 40 digits."""
        order, schedules = 3.0, (np.full(40, 90.0), np.full(3, 120.0))
        single = [
            [
                len(schedule) * float(accountant.step_costs(order, design, int(n), schedule[:1])[0])
                for n in self.distribution.counts
            ]
            for schedule in schedules
        ]
        runs = [
            cost_by_count(accountant, order, design, self.distribution, steps)
            for steps in schedules
        ]
        for costs, exact in ((runs[0], single[0]), (sum(runs), np.sum(single, axis=0))):
            moment = HP.fsum(
                HP.exp(HP.mpf(float(log)) + (order - 1) * HP.mpf(float(cost)))
                for log, cost in zip(self.distribution.log_probabilities, exact, strict=True)
            )
            truth = float(HP.log(moment) / (order - 1))
            assert np.all(costs >= np.array(exact) * (1 - 1e-12))
            assert (
                truth * (1 - 1e-11)
                <= mixed_cost(order, costs, self.distribution)
                <= truth * (1 + 1e-5)
            )

    @pytest.mark.parametrize(
        ("accountant", "design", "mean", "known"),
        [
            (WorstCase(), "without", 5, 2358.237049696938),
            (LogMoment(), "without", 50_000, 44745.18694628993),
            (LogMoment(), "with", 500, 492.82650550088124),
            (Amplified(), "poisson", 500, 450.3252337896787),
            (Amplified(), "poisson", 5, 180.786710561),
        ],
    )
    def test_a_hundred_thousand_records(self, accountant, design, mean, known):
        """Known from costs computed at a thousand counts or more, which took minutes."""
        designs = {
            "poisson": Poisson(n_records=100_000, rate=0.01),
            "without": WithoutReplacement(n_records=100_000, batch_size=1_000),
            "with": WithReplacement(n_records=100_000, batch_size=1_000),
        }
        distribution = binomial(n_records=100_000, mismatch_probability=mean / 100_000)
        target = Guarantee.unsliced(order=4, epsilon=1.0)
        before = time.process_time()
        z = calibrate_multiplier(accountant, target, designs[design], distribution, 1_000)
        assert time.process_time() - before < 6  # 0.1 to 1 on an idle machine
        assert known * (1 - 1e-9) <= z <= known * (1 + 1e-6)
        assert run_cost(accountant, 4, designs[design], distribution, np.full(1_000, z)) <= 1

    @pytest.mark.soundness
    def test_a_tail_that_dominates_is_not_missed(self):
        """Cost grows as D^2 and the distribution falls as e^-D.

        The last count can outweigh all others.
        """
        steps = np.full(2_000, 60.0)
        mixed = run_cost(LogMoment(), 8, self.design, self.distribution, steps)
        last = run_cost(LogMoment(), 8, self.design, exactly(1_500), steps)
        least = last + float(self.distribution.log_probabilities[-1]) / 7
        assert mixed >= least > 100 * run_cost(LogMoment(), 8, self.design, exactly(15), steps)


def test_only_mean_square_averages_over_batches():
    kinds = {accountant.name: set(accountant.kinds) for accountant in ACCOUNTANTS}
    assert kinds.pop("mean_square") == {Guess, Information, OverBatches}
    assert all(kind == {Guess, Information, Renyi, EpsilonDelta} for kind in kinds.values())
    assert "does not imply SRPP" in certifies(MeanSquare(), OverBatches)
    assert "SRPP" not in certifies(MeanSquare(), Guess)
    assert draws_may_be_seen(MeanSquare(), OverBatches) != draws_may_be_seen(MeanSquare(), Guess)
