# SPDX-License-Identifier: Apache-2.0
"""The contract of every accountant; the tests of each one inherit the suite."""

import inspect
import math

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning.accountants import (
    ACCOUNTANTS,
    Amplified,
    LogMoment,
    MeanSquare,
    WorstCase,
    accountant_named,
    calibrate_multiplier,
    certifies,
    cost_by_count,
    draws_may_be_seen,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.differing import at_most, binomial, exactly, from_pmf
from pufferslice.learning.sampling import Poisson, WithoutReplacement, WithReplacement

N_RECORDS = 60

orders = st.one_of(st.sampled_from([1.01, 2.0, 16.0]), st.floats(1.01, 64))
multipliers = st.floats(math.log(0.3), math.log(1e4)).map(math.exp)
schedules = st.lists(multipliers, min_size=1, max_size=6).map(np.array)
differing_counts = st.integers(0, N_RECORDS - 1)
factors = st.floats(1.001, 8)
poisson = st.floats(math.log(1e-4), 0).map(
    lambda x: Poisson(n_records=N_RECORDS, rate=min(math.exp(x), 1.0))
)
batches = st.integers(1, N_RECORDS)
designs = st.one_of(
    poisson,
    batches.map(lambda b: WithoutReplacement(n_records=N_RECORDS, batch_size=b)),
    batches.map(lambda b: WithReplacement(n_records=N_RECORDS, batch_size=b)),
)

ROUNDING = 1e-12


def for_every(**strategies):
    """`given`, on a test that several accountants inherit: no example is replayed from another."""
    return lambda test: settings(
        database=None, suppress_health_check=[HealthCheck.differing_executors]
    )(given(**strategies)(test))


def number_or_refusal(function, *arguments):
    """A float, or the message of the error that says why there is none."""
    try:
        return function(*arguments)
    except CalibrationError as error:
        return str(error)


class AccountantContract:
    """Set `accountant`, and `designs` to a strategy of the designs that it accepts."""

    accountant = None
    designs = designs

    def cost(self, order, design, n_differing, schedule):
        return run_cost(self.accountant, order, design, exactly(n_differing), schedule)

    @for_every(data=st.data(), order=orders, schedule=schedules)
    def test_no_differing_record_costs_nothing(self, data, order, schedule):
        assert self.cost(order, data.draw(self.designs), 0, schedule) == 0.0

    @for_every(
        data=st.data(),
        order=orders,
        schedule=schedules,
        d=differing_counts,
        more=multipliers,
        factor=factors,
    )
    def test_more_steps_records_or_order_or_less_noise_never_cost_less(
        self, data, order, schedule, d, more, factor
    ):
        design = data.draw(self.designs)
        cost = self.cost(order, design, d, schedule)
        for harder in (
            (order, design, d, np.append(schedule, more)),
            (order, design, d + 1, schedule),
            (order * factor, design, d, schedule),
            (order, design, d, schedule / factor),
        ):
            assert cost <= self.cost(*harder) * (1 + ROUNDING)

    @for_every(data=st.data(), order=orders, schedule=schedules, d=differing_counts)
    def test_steps_compose_by_adding(self, data, order, schedule, d):
        design = data.draw(self.designs)
        single = [self.cost(order, design, d, schedule[i : i + 1]) for i in range(len(schedule))]
        whole = self.cost(order, design, d, schedule)
        assert whole == pytest.approx(sum(single), rel=ROUNDING)
        assert whole == self.cost(order, design, d, schedule[::-1])

    @for_every(data=st.data(), order=orders, z=multipliers, d=differing_counts)
    def test_equal_steps_cost_so_many_times_one(self, data, order, z, d):
        design = data.draw(self.designs)
        single = self.cost(order, design, d, np.array([z]))
        whole = self.cost(order, design, d, np.full(3_920, z))
        assert whole == pytest.approx(3_920 * single, rel=ROUNDING)

    @pytest.mark.soundness
    @for_every(
        data=st.data(),
        order=orders,
        d=st.integers(1, N_RECORDS),
        n_steps=st.integers(1, 5_000),
        log_epsilon=st.floats(-7, 5),
    )
    def test_calibrated_noise_keeps_the_target_and_hardly_more(
        self, data, order, d, n_steps, log_epsilon
    ):
        design, epsilon = data.draw(self.designs), math.exp(log_epsilon)
        target = self.accountant.claim(order=order, epsilon=epsilon)
        z = calibrate_multiplier(self.accountant, target, design, exactly(d), n_steps)
        assert self.cost(order, design, d, np.full(n_steps, z)) <= epsilon
        less = z * (1 - 1e-10)
        assert self.cost(order, design, d, np.full(n_steps, less)) > epsilon * (1 - 1e-9)

    def test_scale_free_in_the_clip_norm(self):
        """Nothing takes a clip norm: noise enters as a multiple of it."""
        for function in (self.accountant.step_costs, cost_by_count, run_cost, calibrate_multiplier):
            names = " ".join(inspect.signature(function).parameters)
            assert "clip" not in names
            assert "std" not in names

    @for_every(data=st.data(), d=st.integers(0, N_RECORDS), schedule=schedules)
    def test_step_costs_are_one_for_each_multiplier(self, data, d, schedule):
        costs = self.accountant.step_costs(4.0, data.draw(self.designs), d, schedule)
        assert costs.shape == schedule.shape
        assert np.all(costs >= 0)
        assert np.all(np.isfinite(costs))

    def test_more_records_than_there_are(self):
        with pytest.raises(ArgumentError, match="at most n_records = 60"):
            self.cost(4.0, Poisson(n_records=N_RECORDS, rate=0.1), 61, np.ones(1))

    def test_it_is_a_value_that_says_what_it_certifies(self):
        accountant = self.accountant
        assert accountant == type(accountant)()
        assert len({accountant, type(accountant)()}) == 1
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            accountant.name = "other"
        assert accountant.claim in accountant.kinds
        for kind in accountant.kinds:
            for sentence in (certifies(accountant, kind), draws_may_be_seen(accountant, kind)):
                assert sentence.endswith(".")
        assert accountant_named(accountant.name) == accountant
        assert accountant in ACCOUNTANTS

    @pytest.mark.parametrize("epsilon", [1e-320, 1e-150, 1e150, 1.7e308])
    @pytest.mark.parametrize("order", [1.0000001, 16.0, 1e30])
    @pytest.mark.parametrize("n_steps", [1, 10**9])
    def test_absurd_targets_have_an_answer_or_an_error(self, epsilon, order, n_steps):
        design = Poisson(n_records=N_RECORDS, rate=0.01)
        target = self.accountant.claim(order=order, epsilon=epsilon)
        arguments = (self.accountant, target, design, exactly(20), n_steps)
        result = number_or_refusal(calibrate_multiplier, *arguments)
        assert "nan" not in result if isinstance(result, str) else 0 < result < math.inf

    @pytest.mark.parametrize("z", [1e-100, 1e-6, 1e30, 1e100])
    def test_absurd_noise_has_a_cost_or_an_error(self, z):
        design = Poisson(n_records=N_RECORDS, rate=1e-9)
        result = number_or_refusal(self.cost, 16.0, design, 20, np.full(3, z))
        assert "nan" not in result if isinstance(result, str) else 0 < result < math.inf

    def test_nothing_to_calibrate(self):
        target = self.accountant.claim(order=2, epsilon=1.0)
        design = Poisson(n_records=N_RECORDS, rate=0.01)
        with pytest.raises(CalibrationError, match="no record differs"):
            calibrate_multiplier(self.accountant, target, design, exactly(0), 10)


class RandomDifferingContract(AccountantContract):
    """The rest of the suite, for accountants that accept a random number of differing records."""

    distributions = st.one_of(
        st.floats(0.001, 0.9).map(lambda p: binomial(n_records=12, mismatch_probability=p)),
        st.lists(st.integers(0, 20), min_size=2, max_size=5)
        .filter(lambda parts: sum(parts) > 0)
        .map(lambda parts: from_pmf(np.array(parts) / sum(parts))),
    )

    @for_every(data=st.data(), order=orders, schedule=schedules, distribution=distributions)
    def test_each_count_costs_what_it_costs_alone(self, data, order, schedule, distribution):
        """And all together cost between the least and the most."""
        design = data.draw(self.designs)
        costs = cost_by_count(self.accountant, order, design, distribution, schedule)
        alone = [self.cost(order, design, int(count), schedule) for count in distribution.counts]
        assert costs == pytest.approx(np.array(alone), rel=ROUNDING)
        mixed = run_cost(self.accountant, order, design, distribution, schedule)
        assert costs[0] * (1 - ROUNDING) <= mixed <= costs[-1] * (1 + ROUNDING)

    @pytest.mark.soundness
    @for_every(data=st.data(), order=orders, schedule=schedules, distribution=distributions)
    def test_runs_add_before_they_are_mixed(self, data, order, schedule, distribution):
        """The same records differ in both runs: adding the mixed numbers would be too little."""
        design = data.draw(self.designs)
        costs = cost_by_count(self.accountant, order, design, distribution, schedule)
        twice = mixed_cost(order, 2 * costs, distribution)
        assert twice >= 2 * mixed_cost(order, costs, distribution) * (1 - ROUNDING)
        both = run_cost(self.accountant, order, design, distribution, np.tile(schedule, 2))
        assert both == pytest.approx(twice, rel=ROUNDING)

    @pytest.mark.soundness
    @for_every(data=st.data(), order=orders, schedule=schedules, distribution=distributions)
    def test_a_folded_tail_never_costs_less(self, data, order, schedule, distribution):
        design = data.draw(self.designs)
        folded = distribution.folded(above=int(distribution.counts[len(distribution.counts) // 2]))
        whole = run_cost(self.accountant, order, design, distribution, schedule)
        bound = run_cost(self.accountant, order, design, folded, schedule)
        assert whole <= bound * (1 + ROUNDING)

    @pytest.mark.soundness
    @for_every(
        data=st.data(), order=orders, distribution=distributions, log_epsilon=st.floats(-5, 4)
    )
    def test_calibrated_for_a_random_number(self, data, order, distribution, log_epsilon):
        if not distribution.largest:
            return
        design, epsilon = data.draw(self.designs), math.exp(log_epsilon)
        target = self.accountant.claim(order=order, epsilon=epsilon)
        z = calibrate_multiplier(self.accountant, target, design, distribution, 100)
        assert run_cost(self.accountant, order, design, distribution, np.full(100, z)) <= epsilon

    def test_at_most_costs_as_much_as_exactly(self):
        design, schedule = Poisson(n_records=N_RECORDS, rate=0.1), np.full(5, 3.0)
        at_most_five = run_cost(self.accountant, 4.0, design, at_most(5), schedule)
        assert at_most_five == self.cost(4.0, design, 5, schedule)


class TestWorstCase(RandomDifferingContract):
    accountant = WorstCase()


class TestMeanSquare(AccountantContract):
    accountant = MeanSquare()


class TestLogMoment(RandomDifferingContract):
    accountant = LogMoment()


class TestAmplified(RandomDifferingContract):
    accountant = Amplified()
    designs = poisson


class TestBetweenAccountants:
    @given(design=designs, order=orders, schedule=schedules, d=differing_counts)
    def test_mean_square_then_log_moment_then_worst_case(self, design, order, schedule, d):
        mean, moment, worst = (
            run_cost(accountant, order, design, exactly(d), schedule)
            for accountant in (MeanSquare(), LogMoment(), WorstCase())
        )
        assert mean <= moment * (1 + ROUNDING)
        assert moment <= worst * (1 + ROUNDING)

    @given(design=poisson, order=orders, schedule=schedules, d=differing_counts)
    def test_amplified_is_never_more_than_the_log_moment(self, design, order, schedule, d):
        amplified, moment = (
            run_cost(accountant, order, design, exactly(d), schedule)
            for accountant in (Amplified(), LogMoment())
        )
        assert amplified <= moment

    @given(order=orders, schedule=schedules, d=differing_counts)
    def test_without_secrecy_of_the_draw_nothing_is_gained(self, order, schedule, d):
        """At rate 1 there is no draw: all accountants agree."""
        design = Poisson(n_records=N_RECORDS, rate=1.0)
        costs = [run_cost(a, order, design, exactly(d), schedule) for a in ACCOUNTANTS]
        assert costs == pytest.approx([costs[0]] * 4, rel=1e-11)
