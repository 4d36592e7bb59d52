# SPDX-License-Identifier: Apache-2.0
"""All accountants side by side for one run."""

import math

import attrs
import numpy as np
import pytest

from pufferslice.baselines import DpSgd, dp_sgd_epsilon, run_epsilon
from pufferslice.baselines.account import (
    Account,
    Run,
    accounts_for_epsilon,
    accounts_for_noise,
    delta_rows,
    dp_sgd_rows,
    noise_curves,
    one_record_row,
    signal_row,
)
from pufferslice.calibration.epsilon_delta import ORDERS, improved_epsilon_joint
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
    plan_with_noise,
    run_cost,
)
from pufferslice.learning.accountants import accountant_named

ALL = ["worst_case", "mean_square", "log_moment", "amplified"]


def cifar(kind=Poisson, batch=512):
    design = (
        Poisson(n_records=50_000, rate=batch / 50_000)
        if kind is Poisson
        else kind(n_records=50_000, batch_size=batch)
    )
    n_steps = {512: 3_920, 1_024: 1_960}[batch]
    return Run(differing=exactly(20), sampling=design, n_steps=n_steps, order=16)


SMALL = Run(differing=exactly(3), sampling=Poisson(n_records=100, rate=0.1), n_steps=20, order=4)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("batch", "epsilon", "known"),
    [
        (512, 1, (7083.501959, 175.153412, 176.4677711, 72.53368006)),
        (512, 8, (2504.396135, 61.92608267, 65.69691082, 25.64145606)),
        (512, 80, (791.9595949, 19.58274678, 46.08305796, 8.10979814)),
        (1_024, 1, (5008.79227, 188.8837893, 190.6452922, 102.5781335)),
        (1_024, 8, (1770.87549, 66.78050415, 71.88207762, 36.26253012)),
        (1_024, 80, (560.0, 21.11784964, 49.95889417, 11.46826999)),
    ],
)
def test_known_multipliers(batch, epsilon, known):
    without = accounts_for_epsilon(cifar(WithoutReplacement, batch), epsilon)
    poisson = accounts_for_epsilon(cifar(Poisson, batch), epsilon)
    found = [*(without[name] for name in ALL[:3]), poisson["amplified"]]
    assert [account.noise_multiplier for account in found] == pytest.approx(known, rel=1e-9)
    for account in (*found, *poisson.values()):
        assert epsilon * (1 - 1e-9) < account.epsilon <= epsilon
    # The stronger claim for less noise than the weaker one.
    limit = {512: 0.42, 1_024: 0.55}[batch]
    ratio = poisson["amplified"].noise_multiplier / poisson["mean_square"].noise_multiplier
    assert ratio <= limit


def test_both_ways_agree():
    there = accounts_for_epsilon(SMALL, 0.7)
    for name, account in there.items():
        back = accounts_for_noise(SMALL, account.noise_multiplier)[name]
        assert back == account


def test_an_account_is_the_run_cost_with_its_claim():
    found = accounts_for_noise(SMALL, 12.0)
    assert list(found) == ALL
    for accountant in (WorstCase(), MeanSquare(), LogMoment(), Amplified()):
        schedule = np.full(20, 12.0)
        cost = run_cost(accountant, 4, SMALL.sampling, SMALL.differing, schedule)
        account = found[accountant.name]
        assert account.epsilon == cost
        assert account.to_json() == {
            "noise_multiplier": 12.0,
            "epsilon": cost,
            "certifies": accountant.certifies,
            "draws_may_be_seen": accountant.draws_may_be_seen,
        }
    assert found["worst_case"].epsilon == pytest.approx(2 * 4 * 20 * 9 / 144, rel=1e-14)


@pytest.mark.parametrize("kind", [WithoutReplacement, WithReplacement])
def test_amplified_says_why_it_does_not_apply(kind):
    found = accounts_for_epsilon(cifar(kind), 1.0)
    assert "needs Poisson sampling" in found["amplified"]
    assert all(isinstance(found[name], Account) for name in ALL[:3])


@pytest.mark.soundness
@pytest.mark.parametrize(
    "differing", [at_most(3), binomial(n_records=100, mismatch_probability=0.02)], ids=repr
)
def test_mean_square_says_why_it_does_not_apply(differing):
    run = Run(differing=differing, sampling=SMALL.sampling, n_steps=2, order=4)
    found = accounts_for_noise(run, 40.0)
    assert "needs a fixed set" in found["mean_square"]
    assert all(isinstance(found[name], Account) for name in ALL if name != "mean_square")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_steps": 0}, "n_steps"),
        ({"n_steps": 10**12}, "n_steps"),
        ({"order": 1}, "order"),
        ({"order": "4"}, "order"),
        ({"differing": at_most(101)}, "101"),
    ],
)
def test_invalid_runs(changes, match):
    fields = {
        "differing": exactly(3), "sampling": Poisson(n_records=100, rate=0.1), "n_steps": 20,
        "order": 4,
    }  # fmt: skip
    with pytest.raises(ArgumentError, match=match):
        Run(**{**fields, **changes})


@pytest.mark.parametrize("multiplier", [0.0, math.nan, 1e-200])
def test_invalid_multipliers(multiplier):
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        accounts_for_noise(SMALL, multiplier)


def test_invalid_budgets():
    with pytest.raises(ArgumentError, match="epsilon"):
        accounts_for_epsilon(SMALL, math.nan)
    for epsilon in (1e-320, 1e300):
        with pytest.raises(CalibrationError, match="is not between the cost"):
            accounts_for_epsilon(SMALL, epsilon)
    account = accounts_for_noise(SMALL, 12.0)["log_moment"]
    with pytest.raises(ArgumentError, match="delta"):
        delta_rows(SMALL, account, 1.0)


def test_no_record_differs():
    run = Run(differing=exactly(0), sampling=SMALL.sampling, n_steps=5, order=4)
    assert [account.epsilon for account in accounts_for_noise(run, 1.0).values()] == [0.0] * 4
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        accounts_for_epsilon(run, 1.0)


def test_curves_fall_and_keep_the_accountants_that_apply():
    budgets = [0.5, 1.0, 2.0]
    curves = noise_curves(SMALL, budgets)
    assert list(curves) == ALL
    for name, curve in curves.items():
        assert np.all(np.diff(curve) < 0)
        single = accounts_for_epsilon(SMALL, 1.0)[name]
        assert curve[1] == single.noise_multiplier
    assert list(noise_curves(cifar(WithoutReplacement), [1.0])) == ALL[:3]


@pytest.mark.soundness
def test_mean_square_has_no_epsilon_at_delta():
    rows = delta_rows(SMALL, accounts_for_noise(SMALL, 12.0)["mean_square"], 1e-5)
    assert rows == {"none": "an average over batch draws gives no (epsilon, delta)"}


@pytest.mark.soundness
@pytest.mark.parametrize("accountant", [WorstCase(), LogMoment(), Amplified()], ids=repr)
def test_epsilon_at_delta(accountant):
    rows = delta_rows(SMALL, accounts_for_noise(SMALL, 12.0)[accountant.name], 1e-5)
    schedule = np.full(20, 12.0)
    grid = min(
        improved_epsilon_joint(
            order, run_cost(accountant, order, SMALL.sampling, SMALL.differing, schedule), 1e-5
        )
        for order in ORDERS
    )
    assert grid <= rows["order_grid"] <= grid * (1 + 1e-10)
    if accountant == Amplified():
        assert rows["loss_distribution"] == "not for this accountant"
        return
    plan = plan_with_noise(
        differing=SMALL.differing, sampling=SMALL.sampling, clip_norm=3.0,
        noise_multipliers=schedule, accountant=accountant, order=4,
    )  # fmt: skip
    assert rows["loss_distribution"] == pytest.approx(run_epsilon(plan, 1e-5), rel=1e-12)
    assert rows["loss_distribution"] <= grid


def test_what_loss_distributions_cannot_do():
    run = Run(
        differing=binomial(n_records=100, mismatch_probability=0.05), sampling=SMALL.sampling,
        n_steps=2, order=4,
    )  # fmt: skip
    rows = delta_rows(run, accounts_for_noise(run, 40.0)["log_moment"], 1e-5)
    assert "too many for privacy loss" in rows["loss_distribution"]
    assert rows["order_grid"] > 0
    rows = delta_rows(SMALL, accounts_for_noise(SMALL, 0.01)["worst_case"], 1e-5)
    assert "no epsilon up to" in rows["loss_distribution"]
    assert math.isfinite(rows["order_grid"])


def test_dp_sgd_beside_it():
    run = Run(differing=exactly(20), sampling=Poisson(n_records=100, rate=0.1), n_steps=20, order=4)
    rows = dp_sgd_rows(run, 2.0, 1e-5)
    assert list(rows) == ["dp_sgd", "group_dp_sgd", "group_dp_sgd_all"]
    together = {name: rows[name] for name in ("dp_sgd", "group_dp_sgd")}
    for row in together.values():
        peer = DpSgd(rate=0.1, n_steps=20, group_size=row["group_size"])
        by_orders = dp_sgd_epsilon(peer, row["noise_multiplier_rdp"], 1e-5, "rdp")
        assert 2.0 * (1 - 1e-4) < by_orders <= 2.0
        assert 0 < row["epsilon_pld_at_that_noise"] <= 2.0
    # E K^2 = 20 * 0.1 * 0.9 + 2^2 = 5.8, whose root is 2.41.
    assert [row["group_size"] for row in together.values()] == [1, 3]
    one, group = (row["noise_multiplier_rdp"] for row in together.values())
    assert group == pytest.approx(3 * one, rel=1e-6)
    assert rows["dp_sgd"]["protects"] == "one record"
    assert rows["group_dp_sgd"]["protects"].startswith("3 records that are drawn together")


@pytest.mark.soundness
def test_a_row_for_a_group_of_all_differing_records():
    """Group privacy adds up deltas along a chain of neighbours, each with the share of one."""
    run = Run(differing=exactly(20), sampling=Poisson(n_records=100, rate=0.1), n_steps=20, order=4)
    row = dp_sgd_rows(run, 2.0, 1e-5)["group_dp_sgd_all"]
    assert row["group_size"] == 20
    assert row["protects"].startswith("any 20 records")
    delta = 1e-5 / math.fsum(math.exp(0.1 * k) for k in range(20))
    peer = DpSgd(rate=0.1, n_steps=20)
    assert 0.1 * (1 - 1e-4) < dp_sgd_epsilon(peer, row["noise_multiplier_rdp"], delta, "rdp") <= 0.1
    assert 0 < row["epsilon_pld_at_that_noise"] <= 2.0


@pytest.mark.soundness
def test_a_group_whose_effective_size_is_one_says_so():
    run = Run(
        differing=exactly(20), sampling=Poisson(n_records=2_000, rate=0.01), n_steps=5, order=4
    )
    rows = dp_sgd_rows(run, 8.0, 1e-5)
    assert rows["group_dp_sgd"]["group_size"] == 1
    assert "20 differing records" in rows["group_dp_sgd"]["protects"]
    assert rows["group_dp_sgd_all"]["noise_multiplier_rdp"] > rows["dp_sgd"]["noise_multiplier_rdp"]


def test_groups_that_have_no_row():
    design = Poisson(n_records=100, rate=0.1)
    single = Run(differing=exactly(1), sampling=design, n_steps=2, order=4)
    assert list(dp_sgd_rows(single, 2.0, 1e-5)) == ["dp_sgd", "group_dp_sgd"]
    random = attrs.evolve(single, differing=binomial(n_records=100, mismatch_probability=0.1))
    assert list(dp_sgd_rows(random, 2.0, 1e-5)) == ["dp_sgd"]
    loose = attrs.evolve(single, differing=exactly(20))
    assert "delta below" in dp_sgd_rows(loose, 30.0, 1e-5)["group_dp_sgd_all"]["not_applicable"]


@pytest.mark.soundness
def test_what_one_record_gets_at_each_noise():
    for name, account in accounts_for_noise(SMALL, 2.0).items():
        row = one_record_row(SMALL, account, None)
        bounding = LogMoment() if name == "mean_square" else accountant_named(name)
        schedule = np.full(20, 2.0)
        cost = run_cost(bounding, 4, SMALL.sampling, exactly(1), schedule)
        assert row["accountant"] == bounding.name
        assert row["epsilon"] == pytest.approx(cost, rel=1e-14)
        assert row["delta"] == 1e-5
        grid = (
            improved_epsilon_joint(
                order, run_cost(bounding, order, SMALL.sampling, exactly(1), schedule), 1e-5
            )
            for order in ORDERS
        )
        assert row["epsilon_at_delta"] == pytest.approx(min(grid), rel=1e-9)
        smaller = one_record_row(SMALL, account, 1e-7)
        assert smaller["delta"] == 1e-7
        assert smaller["epsilon_at_delta"] > row["epsilon_at_delta"]


def test_signal_to_noise_of_an_account():
    account = accounts_for_noise(SMALL, 2.0)["amplified"]
    one = signal_row(SMALL, account, None)
    assert (one["n_parameters"], one["advice"]) == (None, None)
    assert one["per_step"] == pytest.approx(10 / 2, rel=1e-14)
    many = signal_row(SMALL, account, 10_000)
    assert many["per_step"] == pytest.approx(10 / (2 * 100), rel=1e-14)
    assert "larger batches" in many["advice"]
    with pytest.raises(ArgumentError, match="n_parameters"):
        signal_row(SMALL, account, 0)
