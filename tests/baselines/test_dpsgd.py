# SPDX-License-Identifier: Apache-2.0
"""DP-SGD as others account for it; rows for comparison."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from pufferslice.baselines import DpSgd, dp_sgd_epsilon, dp_sgd_multiplier, group_size
from pufferslice.errors import ArgumentError
from pufferslice.learning import Poisson, WithoutReplacement, WithReplacement

RUN = DpSgd(rate=0.01, n_steps=100)


def subsampled_delta(rate, noise, epsilon):
    """Exact for one step and one record that is added: the worse of the two directions here."""
    log_odds = math.log1p((math.exp(epsilon) - 1) / rate) if epsilon > 0 else 0.0
    threshold = noise**2 * log_odds + 0.5
    with_record = rate * norm.sf((threshold - 1) / noise) + (1 - rate) * norm.sf(threshold / noise)
    return with_record - math.exp(epsilon) * norm.sf(threshold / noise)


def test_one_step_by_losses_is_exact():
    noise, rate, delta = 0.8, 0.2, 1e-3
    exact = brentq(lambda e: subsampled_delta(rate, noise, e) - delta, 1e-3, 20)
    found = dp_sgd_epsilon(DpSgd(rate=rate, n_steps=1), noise, delta, "pld")
    assert found == pytest.approx(exact, rel=2e-3)
    assert found >= exact - 1e-9


def test_full_batches_are_one_gaussian():
    n_steps, noise, delta = 25, 10.0, 1e-5
    ratio = math.sqrt(n_steps) / noise

    def excess(epsilon):
        high, low = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return norm.cdf(high) - math.exp(epsilon) * norm.cdf(low) - delta

    found = dp_sgd_epsilon(DpSgd(rate=1.0, n_steps=n_steps), noise, delta, "pld")
    assert found == pytest.approx(brentq(excess, 1e-3, 20), rel=1e-3)


def test_losses_are_never_above_orders():
    by_losses = dp_sgd_epsilon(RUN, 1.0, 1e-5, "pld")
    assert 0 < by_losses <= dp_sgd_epsilon(RUN, 1.0, 1e-5, "rdp")


def test_the_multiplier_is_the_smallest_that_meets_the_budget():
    multiplier = dp_sgd_multiplier(RUN, 1.0, 1e-5, "rdp")
    assert dp_sgd_epsilon(RUN, multiplier, 1e-5, "rdp") <= 1.0
    assert dp_sgd_epsilon(RUN, multiplier * 0.999, 1e-5, "rdp") > 1.0


def test_a_group_divides_the_multiplier():
    group = DpSgd(rate=0.01, n_steps=100, group_size=5)
    one = dp_sgd_epsilon(RUN, 2.0, 1e-5, "rdp")
    assert dp_sgd_epsilon(group, 10.0, 1e-5, "rdp") == pytest.approx(one, rel=1e-12)
    assert dp_sgd_epsilon(group, 2.0, 1e-5, "rdp") > 2 * one
    multiplier = dp_sgd_multiplier(group, 1.0, 1e-5, "rdp")
    assert multiplier == pytest.approx(5 * dp_sgd_multiplier(RUN, 1.0, 1e-5, "rdp"), rel=1e-6)


@pytest.mark.parametrize(
    ("sampling", "n_differing", "size"),
    [
        # Mean square 0.2446, root 0.49.
        (WithoutReplacement(n_records=50_000, batch_size=512), 20, 1),
        (Poisson(n_records=100, rate=0.5), 10, 6),  # 25 + 2.5, root 5.24
        (Poisson(n_records=100, rate=1.0), 10, 10),
        (WithReplacement(n_records=10, batch_size=4), 5, 3),  # 4 + 1, root 2.24
        (WithReplacement(n_records=10, batch_size=4), 0, 1),
    ],
)
def test_group_size_is_the_root_of_the_mean_square_rounded_up(sampling, n_differing, size):
    assert group_size(sampling, n_differing) == size


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_rate_outside(rate):
    with pytest.raises(ArgumentError, match="rate must be above 0 and at most 1"):
        DpSgd(rate=rate, n_steps=1)


@pytest.mark.parametrize("field", ["n_steps", "group_size"])
def test_counts_outside(field):
    with pytest.raises(ArgumentError, match=f"{field} must be a whole number and at least 1"):
        DpSgd(**{"rate": 0.1, "n_steps": 1, field: 0})


@pytest.mark.parametrize(
    ("noise", "delta", "accounting", "match"),
    [
        (0.0, 1e-5, "rdp", "noise_multiplier must be a finite number greater than 0"),
        (-1.0, 1e-5, "rdp", "noise_multiplier"),
        (1.0, 0.0, "rdp", "delta must lie strictly between"),
        (1.0, 1e-5, "other", "accounting must be one of rdp, pld"),
    ],
)
def test_what_epsilon_refuses(noise, delta, accounting, match):
    with pytest.raises(ArgumentError, match=match):
        dp_sgd_epsilon(RUN, noise, delta, accounting)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_budgets_that_are_none(epsilon):
    with pytest.raises(ArgumentError, match="epsilon must be a finite number greater than 0"):
        dp_sgd_multiplier(RUN, epsilon, 1e-5, "rdp")


def test_differing_more_than_the_records():
    with pytest.raises(ArgumentError):
        group_size(Poisson(n_records=5, rate=0.5), 6)
