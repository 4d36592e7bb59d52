# SPDX-License-Identifier: Apache-2.0
"""All accountants side by side for one run."""

import math

import attrs
import numpy as np
import pytest

from pufferslice import Guarantee
from pufferslice.baselines import DpSgd, dp_sgd_delta
from pufferslice.baselines.account import (
    Account,
    Run,
    account_table,
    accounts_for,
    accounts_for_noise,
    comparison_rows,
    one_record_row,
    signal_row,
)
from pufferslice.claims import Measure
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
    run_cost,
)
from pufferslice.learning.accountants import accountant_named, certifies, draws_may_be_seen

ALL = ["worst_case", "mean_square", "log_moment", "amplified"]
AT_16, AT_4 = Measure.renyi(order=16), Measure.renyi(order=4)
GUESS = Guarantee.guess(at_most=0.64)


def cifar(kind=Poisson, batch=512):
    design = (
        Poisson(n_records=50_000, rate=batch / 50_000)
        if kind is Poisson
        else kind(n_records=50_000, batch_size=batch)
    )
    n_steps = {512: 3_920, 1_024: 1_960}[batch]
    return Run(differing=exactly(20), sampling=design, n_steps=n_steps)


SMALL = Run(differing=exactly(3), sampling=Poisson(n_records=100, rate=0.1), n_steps=20)
SCHEDULE = np.full(20, 12.0)


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
    target = AT_16.claim(epsilon)
    without = accounts_for(cifar(WithoutReplacement, batch), target)
    poisson = accounts_for(cifar(Poisson, batch), target)
    found = [*(without[name] for name in ALL[:3]), poisson["amplified"]]
    assert [account.noise_multiplier for account in found] == pytest.approx(known, rel=1e-9)
    for account in (*found, *poisson.values()):
        assert epsilon * (1 - 1e-9) < account.claim.bound <= epsilon
    # The stronger claim for less noise than the weaker one.
    limit = {512: 0.42, 1_024: 0.55}[batch]
    ratio = poisson["amplified"].noise_multiplier / poisson["mean_square"].noise_multiplier
    assert ratio <= limit


@pytest.mark.soundness
def test_known_multipliers_for_guesses():
    """The recommended accountant answers like all others, for the same target."""
    found = accounts_for(cifar(), GUESS)
    noise = [found[name].noise_multiplier for name in ALL]
    assert noise == pytest.approx([3493.28316, 86.3918463, 86.36759, 35.76845], rel=1e-6)
    for account in found.values():
        assert 0.64 - 1e-7 < account.guess <= 0.64


def test_an_account_is_the_guarantee_of_its_plan():
    found = accounts_for_noise(SMALL, 12.0, AT_4)
    assert list(found) == ALL
    for name, account in accounts_for(SMALL, AT_4.claim(0.7)).items():
        assert accounts_for_noise(SMALL, account.noise_multiplier, AT_4)[name] == account
    for accountant in (WorstCase(), MeanSquare(), LogMoment(), Amplified()):
        cost = run_cost(accountant, 4, SMALL.sampling, SMALL.differing, SCHEDULE)
        account = found[accountant.name]
        assert account.claim.bound == cost
        kind = type(account.claim)
        assert account.to_json() == {
            "noise_multiplier": 12.0,
            "claim": account.claim.to_json(),
            "guess": account.guess,
            "certifies": certifies(accountant, kind),
            "draws_may_be_seen": draws_may_be_seen(accountant, kind),
        }
    assert found["worst_case"].claim.bound == pytest.approx(2 * 4 * 20 * 9 / 144, rel=1e-14)


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
    """For right guesses, mean square takes random differing records, too."""
    run = attrs.evolve(SMALL, **change)
    accounts = accounts_for_noise(run, 40.0, AT_4)
    assert f"needs {reason}" in accounts[name]
    assert all(isinstance(accounts[other], Account) for other in ALL if other != name)
    guesses = accounts_for_noise(run, 40.0, Measure.guess())
    assert isinstance(guesses["mean_square"], Account)


def test_mean_square_has_no_epsilon_at_a_delta():
    accounts = accounts_for_noise(SMALL, 12.0, Measure.epsilon_delta(delta=1e-5))
    assert "Guarantee.guess" in accounts["mean_square"]
    epsilons = [accounts[name].claim.bound for name in ("worst_case", "log_moment", "amplified")]
    assert np.all(np.diff(epsilons) < 0)


@pytest.mark.parametrize(
    "targets",
    [
        [AT_4.claim(epsilon) for epsilon in (0.5, 1.0, 2.0)],
        [Guarantee.guess(at_most=share) for share in (0.55, 0.64, 0.75)],
    ],
    ids=["renyi", "guess"],
)
def test_noise_falls_with_the_budget(targets):
    tables = [accounts_for(SMALL, target) for target in targets]
    for name in ALL:
        assert np.all(np.diff([table[name].noise_multiplier for table in tables]) < 0)


@pytest.mark.soundness
def test_single_records_and_groups_beside_it():
    """Group privacy adds up deltas along a chain of neighbours, each with the share of one."""
    run = attrs.evolve(SMALL, differing=exactly(20))
    rows = comparison_rows(run, Guarantee.epsilon_delta(2.0, 1e-5))
    share = 1e-5 / math.fsum(math.exp(0.1 * k) for k in range(20))
    # E K^2 = 20 * 0.1 * 0.9 + 2^2 = 5.8, whose root is 2.41.
    for name, size, together, epsilon, delta in (
        ("dp_sgd", 1, 1, 2.0, 1e-5),
        ("group_dp_sgd", 3, 3, 2.0, 1e-5),
        ("group_dp_sgd_all", 20, 1, 0.1, share),
    ):
        peer, row = DpSgd(rate=0.1, n_steps=20, group_size=together), rows[name]
        found = dp_sgd_delta(peer, row["noise_multiplier"], epsilon, "pld")
        assert delta * (1 - 1e-4) < found <= delta
        assert row["group_size"] == size
        assert row["relation"].startswith("add or remove")
    # To replace a record is to remove one and to add one: it needs more noise than either.
    assert rows["record"]["relation"] == "replace 1 record"
    assert rows["record"]["noise_multiplier"] > 1.3 * rows["dp_sgd"]["noise_multiplier"]


def test_groups_of_one_record_or_of_no_known_size():
    target = Guarantee.epsilon_delta(1.0, 1e-5)
    single = attrs.evolve(SMALL, differing=exactly(1))
    assert list(comparison_rows(single, target)) == ["record", "dp_sgd", "group_dp_sgd"]
    random = attrs.evolve(single, differing=binomial(n_records=100, mismatch_probability=0.1))
    assert list(comparison_rows(random, target)) == ["record", "dp_sgd"]
    loose = attrs.evolve(single, differing=exactly(20))
    tiny = comparison_rows(loose, Guarantee.epsilon_delta(1.0, 1e-14))
    assert "delta below" in tiny["group_dp_sgd_all"]["not_applicable"]
    rare = attrs.evolve(loose, sampling=Poisson(n_records=2_000, rate=0.01))
    rows = comparison_rows(rare, Guarantee.epsilon_delta(0.5, 1e-5))
    assert rows["group_dp_sgd"]["group_size"] == 1
    assert "20" in rows["group_dp_sgd"]["relation"]
    assert comparison_rows(single, AT_4.claim(1.0)) == {}


@pytest.mark.soak
def test_guesses_are_compared_at_epsilon_0():
    rows = comparison_rows(SMALL, GUESS)
    found = dp_sgd_delta(
        DpSgd(rate=0.1, n_steps=20), rows["dp_sgd"]["noise_multiplier"], 0.0, "pld"
    )
    assert found == pytest.approx(0.28, rel=1e-4)
    assert found <= 0.28


@pytest.mark.soundness
@pytest.mark.parametrize("noise", [2.0, 12.0, 200.0])
def test_what_one_record_gets_at_each_noise(noise):
    """No floor: by the privacy-loss distribution, not by orders up to 256."""
    pld = pytest.importorskip("dp_accounting.pld")
    import dp_accounting as dp

    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise))
    relation = dp.NeighboringRelation.REPLACE_ONE
    peer = pld.PLDAccountant(neighboring_relation=relation).compose(event, 20).get_epsilon(1e-5)
    for name, account in accounts_for_noise(SMALL, noise, AT_4).items():
        row = one_record_row(account)
        bounding = LogMoment() if name == "mean_square" else accountant_named(name)
        cost = run_cost(bounding, 4, SMALL.sampling, exactly(1), np.full(20, noise))
        assert row["accountant"] == bounding.name
        assert row["relation"] == "replace 1 record"
        assert row["epsilon"] == pytest.approx(cost, rel=1e-14)
        assert row["delta"] == 1e-5
        if name == "amplified":
            assert peer * (1 - 2e-3) <= row["epsilon_at_delta"] <= 1.1 * peer
        smaller = one_record_row(account, 1e-7)
        assert smaller["delta"] == 1e-7
        assert smaller["epsilon_at_delta"] > row["epsilon_at_delta"]


def test_the_relation_stands_in_every_row():
    accounts = accounts_for(SMALL, GUESS)
    table = account_table(SMALL, accounts, Measure.of(GUESS), target=GUESS, n_parameters=None)
    rows = [*table["accountants"].values(), *table["comparison"].values()]
    assert len(rows) == len(ALL) + 4
    for row in rows:
        assert row["relation"].startswith(("replace", "add or remove"))
    assert "exactly 3 records differ" in table["accountants"]["amplified"]["relation"]


def test_signal_to_noise_of_an_account():
    account = accounts_for_noise(SMALL, 2.0, AT_4)["amplified"]
    one = signal_row(account, None)
    assert (one["n_parameters"], one["advice"]) == (None, None)
    assert one["per_step"] == pytest.approx(10 / 2, rel=1e-14)
    many = signal_row(account, 10_000)
    assert many["per_step"] == pytest.approx(10 / (2 * 100), rel=1e-14)
    assert "larger batches" in many["advice"]
