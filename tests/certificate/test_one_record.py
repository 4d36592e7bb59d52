# SPDX-License-Identifier: Apache-2.0
"""What a training run promises for the replacement of one record."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pufferslice.calibration.epsilon_delta import ORDERS, improved_epsilon_joint
from pufferslice.certificate import (
    Certificate,
    certify_training,
    compose,
    record_epsilon,
    secret_epsilon,
    verify,
)
from pufferslice.certificate.training import (
    epsilon_at,
    record_accountant,
    record_cost,
)
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.learning import (
    Amplified,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    at_most,
    exactly,
    from_pmf,
    plan_with_noise,
)

CERTIFYING = (WorstCase(), LogMoment(), Amplified())


def planned(**changes):
    fields = {
        "differing": exactly(20),
        "sampling": Poisson(n_records=2_000, rate=0.01),
        "clip_norm": 1.0,
        "noise_multipliers": [1.0],
        "accountant": Amplified(),
        "order": 16,
    }
    return plan_with_noise(**{**fields, **changes})


def stated(*plans, **options):
    certificates = [certify_training(plan, data="d", **options) for plan in plans]
    return compose(certificates).statement["one_record"]


@pytest.mark.soundness
def test_known_cost_of_one_amplified_step():
    plan = planned(sampling=Poisson(n_records=100, rate=0.1), order=2)
    assert record_cost([plan], 2) == pytest.approx(0.0408272790240896, rel=1e-9)
    assert stated(plan)["epsilon"] == pytest.approx(0.0408272790240896, rel=1e-9)


@pytest.mark.soundness
def test_mean_square_never_states_its_own_cost():
    """Order 16, noise 1, rate 0.01: it says 0.32 where the truth is 3.10."""
    plan = planned(accountant=MeanSquare(), differing=exactly(1))
    assert plan.guarantee().epsilon == pytest.approx(0.32, rel=1e-12)
    truth = record_cost([planned()], 16)
    assert truth == pytest.approx(3.10, abs=0.005)
    record = stated(plan)
    assert record["accountants"] == ["log_moment"]
    assert record["epsilon"] >= truth
    log_moment = math.log(0.99 + 0.01 * math.exp(15 * 32)) / 15
    assert record["epsilon"] == pytest.approx(log_moment, rel=1e-12)
    assert "draws-secret" not in record["conditions"]


@pytest.mark.parametrize(
    ("sampling", "cap"),
    [
        (Poisson(n_records=50, rate=0.1), 1),
        (WithoutReplacement(n_records=50, batch_size=5), 1),
        (WithReplacement(n_records=50, batch_size=5), 5),
    ],
)
def test_the_worst_case_of_one_record_is_its_cap(sampling, cap):
    """With replacement one record may be drawn every time."""
    plan = planned(sampling=sampling, accountant=WorstCase(), noise_multipliers=[2.0, 4.0], order=3)
    assert record_cost([plan], 3) == pytest.approx(6 * cap**2 * (1 / 4 + 1 / 16), rel=1e-14)


class TestOracle:
    """Losses of the pair of mixtures on a grid, rounded down: never more than the true delta."""

    WIDTH = 1e-3

    @staticmethod
    def losses(noise, rate):
        """Mass and loss of small cells of the line."""
        edges = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400_001)

        def masses(mean):
            below, above = norm.cdf(edges, mean, noise), norm.sf(edges, mean, noise)
            return np.where(edges[1:] < mean, np.diff(below), -np.diff(above))

        common = (1 - rate) * masses(0.0)
        first, second = common + rate * masses(1.0), common + rate * masses(-1.0)
        kept = (first > 1e-300) & (second > 1e-300)
        return first[kept], np.log(first[kept] / second[kept])

    def delta(self, noise, rate, n_steps, epsilon):
        masses, losses = self.losses(noise, rate)
        cells = np.floor(losses / self.WIDTH).astype(int)
        lowest = cells.min()
        one = np.bincount(cells - lowest, masses)
        size = (len(one) - 1) * n_steps + 1
        spectrum = np.fft.rfft(one, 1 << size.bit_length()) ** n_steps
        total = np.fft.irfft(spectrum)[:size]
        values = (lowest * n_steps + np.arange(size)) * self.WIDTH
        above = (values > epsilon) & (total > 1e-14)
        return float(total[above] @ -np.expm1(epsilon - values[above]))

    @pytest.mark.soundness
    @pytest.mark.parametrize("accountant", CERTIFYING, ids=repr)
    @pytest.mark.parametrize(
        ("noise", "rate", "n_steps", "delta"),
        [(1.0, 0.05, 1, 1e-7), (0.7, 0.3, 1, 1e-3), (2.0, 1.0, 1, 1e-5), (1.5, 0.1, 20, 1e-5)],
    )
    def test_epsilon_is_never_below_the_truth(self, accountant, noise, rate, n_steps, delta):
        plan = planned(
            sampling=Poisson(n_records=2_000, rate=rate),
            noise_multipliers=np.full(n_steps, noise),
            accountant=accountant,
        )
        epsilon = record_epsilon([plan], delta=delta, implementation_delta=0.0)
        assert self.delta(noise, rate, n_steps, epsilon) <= delta
        if accountant == Amplified():  # the oracle would notice a quarter of it
            assert self.delta(noise, rate, n_steps, epsilon / 4) > delta

    @pytest.mark.soundness
    def test_the_direction_of_the_pair_does_not_matter(self):
        """The mixtures mirror each other, so one order of them is enough."""
        masses, losses = self.losses(1.0, 0.2)
        assert np.exp(-losses) @ masses == pytest.approx(1.0, abs=1e-12)


@pytest.mark.soundness
def test_runs_add_at_each_order():
    first = planned(noise_multipliers=np.full(30, 3.0))
    second = planned(accountant=LogMoment(), noise_multipliers=np.linspace(4, 6, 10))
    costs = {
        order: record_cost([first], order) + record_cost([second], order)
        for order in (*ORDERS, 16.0)
    }
    record = stated(first, second)
    assert record["epsilon"] == pytest.approx(costs[16.0], rel=1e-12)
    grid = min(improved_epsilon_joint(order, cost, 1e-5) for order, cost in costs.items())
    assert grid <= record["epsilon_at_delta"] <= grid * (1 + 1e-9)
    assert record["accountants"] == ["amplified", "log_moment"]
    assert "draws-secret" in record["conditions"]
    alone = stated(first)["epsilon_at_delta"]
    assert alone < record["epsilon_at_delta"]


@pytest.mark.soundness
@settings(max_examples=40, deadline=None)
@given(
    accountant=st.sampled_from(CERTIFYING),
    rate=st.floats(0.01, 1.0),
    noise=st.floats(0.5, 50.0),
    n_differing=st.integers(1, 12),
    order=st.floats(1.1, 40.0),
    fixed=st.booleans(),
)
def test_one_record_costs_no_more_than_a_secret_that_changes_some(
    accountant, rate, noise, n_differing, order, fixed
):
    plan = planned(
        differing=(exactly if fixed else at_most)(n_differing),
        sampling=Poisson(n_records=100, rate=rate),
        noise_multipliers=[noise, 2 * noise],
        accountant=accountant,
        order=order,
    )
    claim = plan.guarantee().epsilon
    assert record_cost([plan], order) <= claim * (1 + 1e-9)
    if n_differing == 1:
        assert record_cost([plan], order) == pytest.approx(claim, rel=1e-12)


@pytest.mark.soundness
def test_a_secret_that_may_change_nothing_can_cost_less_than_one_record():
    plan = planned(differing=from_pmf([0.5, 0.5]))
    assert plan.guarantee().epsilon < record_cost([plan], 16)


class TestDistanceOfTheNoise:
    COSTS = {order: order * 0.3 for order in ORDERS}  # noqa: RUF012 - not changed

    @pytest.mark.soundness
    @settings(max_examples=100, deadline=None)
    @given(
        log_delta=st.floats(-30.0, -1.0),
        log_share=st.floats(-40.0, 1.0),
        scale=st.floats(1e-4, 50.0),
    )
    def test_delta_covers_it(self, log_delta, log_share, scale):
        """What is left of delta after the distance converts to at most the stated epsilon."""
        delta = math.exp(log_delta)
        distance = min(1.0, delta * math.exp(log_share))
        costs = {order: order * scale for order in ORDERS}
        epsilon = epsilon_at(costs, delta=delta, implementation_delta=distance)
        ideal = epsilon_at(costs, delta=delta, implementation_delta=0.0)
        assert epsilon >= ideal
        if math.isfinite(epsilon):
            left = delta - (1 + math.exp(epsilon)) * distance
            assert left > 0
            assert min(improved_epsilon_joint(a, c, left) for a, c in costs.items()) <= epsilon
        else:
            assert (1 + math.exp(ideal)) * distance > 0.01 * delta  # not given up for nothing

    def test_a_small_one_costs_little_and_a_large_one_everything(self):
        ideal = epsilon_at(self.COSTS, delta=1e-5, implementation_delta=0.0)
        small = epsilon_at(self.COSTS, delta=1e-5, implementation_delta=1e-12)
        assert ideal < small < ideal * 1.001
        assert epsilon_at(self.COSTS, delta=1e-5, implementation_delta=1e-5) == math.inf
        assert epsilon_at({4.0: 1e6}, delta=1e-5, implementation_delta=1e-300) == math.inf
        assert epsilon_at({4.0: 1e-9}, delta=0.9, implementation_delta=0.0) == 0.0

    def test_a_certificate_without_epsilon_says_so(self):
        certificate = certify_training(planned(), data="d", implementation_delta=1e-4)
        record = certificate.statement["one_record"]
        assert record["epsilon_at_delta"] is None
        assert record["epsilon"] > 0
        assert "No (epsilon, delta) can be stated at delta 1e-05" in str(certificate)
        assert verify(certificate).holds
        less = certify_training(planned(), data="d", implementation_delta=1e-9)
        assert (
            less.statement["one_record"]["epsilon_at_delta"] > stated(planned())["epsilon_at_delta"]
        )

    @pytest.mark.parametrize("distance", [-1e-9, 1.5, math.nan])
    def test_distances_that_are_none(self, distance):
        with pytest.raises(ArgumentError, match="implementation_delta"):
            record_epsilon([planned()], delta=1e-5, implementation_delta=distance)


class TestDeclaredSecret:
    def test_it_is_the_best_of_the_orders(self):
        plan = planned(noise_multipliers=np.full(5, 30.0))
        epsilon = secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)
        (view,) = [
            view
            for view in certify_training(plan, data="d").statement["views"]
            if view["rule"] == "order_grid"
        ]
        assert epsilon == pytest.approx(view["epsilon"], rel=1e-9)
        assert epsilon > record_epsilon([plan], delta=1e-5, implementation_delta=0.0)

    def test_mean_square_has_none(self):
        plan = planned(accountant=MeanSquare())
        with pytest.raises(ArgumentError, match="averages over batches"):
            secret_epsilon([plan], delta=1e-5, implementation_delta=0.0)

    @pytest.mark.parametrize("epsilon_of", [secret_epsilon, record_epsilon])
    def test_only_runs_that_compose(self, epsilon_of):
        with pytest.raises(ArgumentError, match="at least one"):
            epsilon_of([], delta=1e-5, implementation_delta=0.0)
        with pytest.raises(CertificateError, match="different orders"):
            epsilon_of([planned(), planned(order=4)], delta=1e-5, implementation_delta=0.0)
        with pytest.raises(ArgumentError, match="delta must lie"):
            epsilon_of([planned()], delta=0.0, implementation_delta=0.0)


@pytest.mark.soundness
@pytest.mark.parametrize("accountant", [Amplified(), MeanSquare()], ids=repr)
def test_every_changed_field_is_refuted(accountant):
    statement = dict(certify_training(planned(accountant=accountant), data="d").statement)
    record = statement["one_record"]
    changes = [
        {"adjacency": "add-or-remove"},
        {"accountants": [accountant.name, "log_moment"]},
        {"order": 15.0},
        {"epsilon": record["epsilon"] * 0.999},
        {"delta": record["delta"] / 2},
        {"epsilon_at_delta": record["epsilon_at_delta"] * 0.999},
        {"epsilon_at_delta": None},
        {"conditions": record["conditions"][1:]},
        {"conditions": []},
    ]
    if accountant == Amplified():
        changes += [{"accountants": ["log_moment"]}, {"conditions": record["conditions"][:-1]}]
    assert verify(Certificate(statement=statement, evidence=None)).holds
    for change in changes:
        edited = copy.deepcopy(statement)
        edited["one_record"].update(change)
        assert not verify(Certificate(statement=edited, evidence=None)).holds, change
    del statement["one_record"]
    assert not verify(Certificate(statement=statement, evidence=None)).holds


def test_prose_says_it_with_its_conditions():
    certificate = certify_training(planned(noise_multipliers=np.full(50, 4.0)), data="d")
    text = str(certificate)
    assert "differential privacy for the replacement of one record" in text
    assert "(accountant: amplified)" in text
    for said in ("number of records is public", "one record", "preprocessing", "stay secret"):
        assert said in text.partition("One record:")[2]
    assert record_accountant(planned()) == Amplified()
