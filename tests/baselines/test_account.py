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
    one_record_row,
    signal_row,
)
from pufferslice.claims.views import ORDERS, improved_epsilon_joint
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


def test_an_account_is_the_run_cost_with_its_claim():
    found = accounts_for_noise(SMALL, 12.0)
    assert list(found) == ALL
    for name, account in accounts_for_epsilon(SMALL, 0.7).items():
        assert accounts_for_noise(SMALL, account.noise_multiplier)[name] == account
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


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("change", "name", "reason"),
    [
        ({"sampling": WithoutReplacement(n_records=100, batch_size=9)}, "amplified", "Poisson"),
        ({"sampling": WithReplacement(n_records=100, batch_size=9)}, "amplified", "Poisson"),
        ({"differing": at_most(3)}, "mean_square", "a fixed set"),
        ({"differing": binomial(n_records=100, mismatch_probability=0.02)}, "mean_square", "a fix"),
    ],
    ids=str,
)
def test_an_accountant_says_why_it_does_not_apply(change, name, reason):
    accounts = accounts_for_noise(attrs.evolve(SMALL, **change), 40.0)
    assert f"needs {reason}" in accounts[name]
    assert all(isinstance(accounts[other], Account) for other in ALL if other != name)


def test_no_record_differs():
    run = Run(differing=exactly(0), sampling=SMALL.sampling, n_steps=5, order=4)
    assert [account.epsilon for account in accounts_for_noise(run, 1.0).values()] == [0.0] * 4


def test_noise_falls_with_the_budget():
    tables = [accounts_for_epsilon(SMALL, epsilon) for epsilon in (0.5, 1.0, 2.0)]
    for name in ALL:
        assert np.all(np.diff([table[name].noise_multiplier for table in tables]) < 0)
    assert isinstance(accounts_for_epsilon(cifar(WithoutReplacement), 1.0)[ALL[3]], str)


@pytest.mark.soundness
@pytest.mark.parametrize("accountant", [WorstCase(), LogMoment(), Amplified()], ids=repr)
def test_epsilon_at_delta(accountant):
    accounts = accounts_for_noise(SMALL, 12.0)
    assert list(delta_rows(SMALL, accounts["mean_square"], 1e-5)) == ["none"]
    rows = delta_rows(SMALL, accounts[accountant.name], 1e-5)
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


@pytest.mark.soundness
def test_dp_sgd_beside_it():
    """Group privacy adds up deltas along a chain of neighbours, each with the share of one."""
    run = attrs.evolve(SMALL, differing=exactly(20))
    rows = dp_sgd_rows(run, 2.0, 1e-5)
    one, group, everything = rows["dp_sgd"], rows["group_dp_sgd"], rows["group_dp_sgd_all"]
    share = 1e-5 / math.fsum(math.exp(0.1 * k) for k in range(20))
    # E K^2 = 20 * 0.1 * 0.9 + 2^2 = 5.8, whose root is 2.41.
    for row, size, together, epsilon, delta in (
        (one, 1, 1, 2.0, 1e-5),
        (group, 3, 3, 2.0, 1e-5),
        (everything, 20, 1, 0.1, share),
    ):
        peer = DpSgd(rate=0.1, n_steps=20, group_size=together)
        by_orders = dp_sgd_epsilon(peer, row["noise_multiplier_rdp"], delta, "rdp")
        assert epsilon * (1 - 1e-4) < by_orders <= epsilon
        assert 0 < row["epsilon_pld_at_that_noise"] <= 2.0
        assert row["group_size"] == size
    assert one["protects"] == "one record"
    assert group["protects"].startswith("3 records")
    assert everything["protects"].startswith("any 20 records")


def test_groups_of_one_record_or_of_no_known_size():
    single = attrs.evolve(SMALL, differing=exactly(1))
    assert list(dp_sgd_rows(single, 1.0, 1e-5)) == ["dp_sgd", "group_dp_sgd"]
    random = attrs.evolve(single, differing=binomial(n_records=100, mismatch_probability=0.1))
    assert list(dp_sgd_rows(random, 1.0, 1e-5)) == ["dp_sgd"]
    loose = attrs.evolve(single, differing=exactly(20))
    assert "delta below" in dp_sgd_rows(loose, 1.0, 1e-14)["group_dp_sgd_all"]["not_applicable"]
    # Below what dp-accounting cuts off there is noise by orders, but no epsilon by losses.
    row = dp_sgd_rows(single, 1.0, 1e-320)["dp_sgd"]
    assert row["epsilon_pld_at_that_noise"] is None
    assert 0 < row["noise_multiplier_rdp"] < math.inf
    rare = attrs.evolve(loose, sampling=Poisson(n_records=2_000, rate=0.01))
    rows = dp_sgd_rows(rare, 0.5, 1e-5)
    assert rows["group_dp_sgd"]["group_size"] == 1
    assert "20 differing records" in rows["group_dp_sgd"]["protects"]


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
