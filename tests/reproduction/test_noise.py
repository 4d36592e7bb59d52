# SPDX-License-Identifier: Apache-2.0
"""Noise of private SGD at the paper's scale: known answers, and claims that follow the numbers."""

import pytest
from opacus.accountants import RDPAccountant

from pufferslice.baselines.dp_sgd import DpSgd, dp_sgd_epsilon
from reproduction import noise as sgd_noise
from reproduction.experiment import Setting
from reproduction.noise import (
    DELTA,
    EPSILONS,
    GROUP_TOLERANCE,
    SERIES,
    SETUPS,
    group_multipliers,
    noise_multipliers,
)


def setting_of(batch_size):
    setup = next(setup for setup in SETUPS if setup.batch_size == batch_size)
    return sgd_noise.noise_setting(setup)


def test_the_set_up_is_the_papers():
    assert [setup.n_steps for setup in SETUPS] == [3920, 1960]
    assert [setup.n_warmup_steps for setup in SETUPS] == [196, 98]
    assert len(EPSILONS) == 21
    assert (min(EPSILONS), max(EPSILONS)) == (0.5, 80)
    settings = [sgd_noise.noise_setting(setup) for setup in SETUPS]
    assert [setting.group.group_size for setting in settings] == [1, 1]


def test_each_series_has_its_accountant_and_design():
    """At batch size 512 and epsilon 8; the accountants have their own known answers."""
    known = {"srpp": 2504.396135, "sa_srpp": 61.92608267, "log_moment": 65.69691082}
    for series, multiplier in (known | {"amplified": 25.64145606}).items():
        multipliers = noise_multipliers(setting_of(512), series, [8.0])
        assert multipliers == pytest.approx([multiplier], rel=2e-9)
    assert setting_of(512).amplified_cost(25.64145606) == pytest.approx(8.0, rel=1e-8)


@pytest.mark.soundness
def test_the_printed_recipe_and_its_true_cost():
    setting = setting_of(512)
    worst, mean = (setting.recipe(name, 1.0) for name in ("recipe_srpp", "recipe_sa_srpp"))
    assert worst.noise_multiplier == pytest.approx(865.43, abs=0.005)
    assert mean.noise_multiplier == pytest.approx(21.40, abs=0.005)
    assert worst.understatement == pytest.approx(67.0, abs=0.05)
    assert setting_of(1024).recipe("recipe_srpp", 1.0).understatement == pytest.approx(137, abs=0.5)


class TestGroup:
    RUN = DpSgd(rate=0.1, n_steps=50, group_size=2)

    def test_each_multiplier_is_safe_and_one_a_little_smaller_is_not(self):
        epsilons = [8.0, 1.0]
        for epsilon, multiplier in zip(
            epsilons, group_multipliers(self.RUN, epsilons), strict=True
        ):
            assert dp_sgd_epsilon(self.RUN, multiplier, DELTA, "rdp") <= epsilon
            less = multiplier / (1 + GROUP_TOLERANCE)
            assert dp_sgd_epsilon(self.RUN, less, DELTA, "rdp") > epsilon

    def test_by_a_cost_with_a_known_root(self, monkeypatch):
        monkeypatch.setattr(sgd_noise, "dp_sgd_epsilon", lambda _run, z, *_: 8 / z**2)
        found = group_multipliers(self.RUN, [2.0, 0.5, 200.0])
        for multiplier, root in zip(found, (2.0, 4.0, 0.2), strict=True):
            assert root <= multiplier <= root * (1 + GROUP_TOLERANCE)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """At three budgets only: those of group-DP-SGD take seconds each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sgd_noise, "EPSILONS", (80.0, 30.0, 1.0))
        return sgd_noise.run(Setting(full=False, folder=tmp_path_factory.mktemp("unused")))


class TestOutcome:
    def test_rows_hold_all_series_at_both_batch_sizes(self, outcome):
        columns = ("n_differing", "batch_size", "series", "epsilon")
        keys = [tuple(row[column] for column in columns) for row in outcome.rows]
        assert len(set(keys)) == len(keys) == 2 * 2 * len(SERIES) * 3
        assert "2 or 20 differ" in outcome.scale

    def test_which_claims_hold(self, outcome):
        held = [claim.held for claim in outcome.claims]
        # The ratio of an order of magnitude fits two differing records, and not twenty.
        two, twenty = [True, True, True, False, False], [True, True, False, False, False]
        assert held == [*two, *twenty, False, False, True, True, False]

    def test_the_reference_epsilon_is_that_of_one_record(self, outcome):
        for row in outcome.rows:
            if not row["series"].startswith("recipe_"):
                assert row["reference_epsilon"] is None
            if row["series"] != "recipe_sa_srpp" or row["noise_multiplier"] > 5:
                continue  # with much noise Opacus runs out of orders, and warns
            accountant = RDPAccountant()
            n_steps = 40 * -(-50_000 // row["batch_size"])
            rate = row["batch_size"] / 50_000
            accountant.history = [(row["noise_multiplier"], rate, n_steps)]
            # The two look at different orders.
            opacus = accountant.get_epsilon(delta=1e-5)
            assert row["reference_epsilon"] == pytest.approx(opacus, rel=0.05)

    def test_what_did_not_hold_is_told_with_numbers(self, outcome):
        reports = " ".join(claim.found for claim in outcome.claims)
        ratios = ("13.9 (batch size 512) and 9.8 (batch size 1024)", "40.44", "26.52")
        for number in (*ratios, "865.43", "21.40", "67.0", "136.6", "2 records differ"):
            assert number in reports

    def test_the_claims_follow_the_numbers(self):
        """With other curves other claims hold."""
        epsilons = sgd_noise.EPSILONS
        curves = {
            (size, series): [value] * len(epsilons)
            for size in (512, 1024)
            for series, value in (
                ("recipe_srpp", 100.0),
                ("recipe_sa_srpp", 10.0),
                ("group_dp_sgd", 200.0),
            )
        }
        held = [claim.held for claim in sgd_noise._claims(curves, 20)]
        assert held == [True, True, True, True, True]
