# SPDX-License-Identifier: Apache-2.0
"""DP-SGD by dp-accounting."""

import logging
import math
import subprocess
import sys

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from pufferslice.baselines import (
    DpSgd,
    dp_sgd_delta,
    dp_sgd_epsilon,
    dp_sgd_multiplier,
    group_size,
)
from pufferslice.learning import Poisson, WithoutReplacement, WithReplacement


def test_notes_on_orders_are_kept_back(caplog):
    """The accountant leaves out orders at this noise and logs each; later notes come through."""
    assert dp_sgd_epsilon(DpSgd(rate=0.1, n_steps=3), 1.0, 1e-5, "rdp") > 0
    logging.getLogger("absl").warning("a later note")
    assert [record.message for record in caplog.records] == ["a later note"]


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
    by_losses = dp_sgd_epsilon(RUN, 1.0, 1e-5, "pld")
    assert 0 < by_losses <= dp_sgd_epsilon(RUN, 1.0, 1e-5, "rdp")


def test_the_multiplier_is_the_smallest_that_meets_the_budget():
    multiplier = dp_sgd_multiplier(RUN, 1.0, 1e-5, "rdp")
    assert dp_sgd_epsilon(RUN, multiplier, 1e-5, "rdp") <= 1.0
    assert dp_sgd_epsilon(RUN, multiplier * 0.999, 1e-5, "rdp") > 1.0


@pytest.mark.soak
def test_delta_is_the_inverse_of_epsilon():
    epsilon = dp_sgd_epsilon(RUN, 1.0, 1e-5, "pld")
    assert dp_sgd_delta(RUN, 1.0, epsilon, "pld") == pytest.approx(1e-5, rel=1e-3)
    # At epsilon 0 it bounds right guesses, so noise for them can be found.
    multiplier = dp_sgd_multiplier(RUN, 0.0, 0.28, "pld")
    assert 0.27 < dp_sgd_delta(RUN, multiplier, 0.0, "pld") <= 0.28


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


WITHOUT = """
import sys
sys.modules["dp_accounting"] = None
import numpy as np
from pufferslice import FiniteDistribution, Guarantee, baselines
from pufferslice.errors import MissingExtraError
couple = FiniteDistribution.uniform([[0.0]]), FiniteDistribution.uniform([[3.0]])
print(baselines.gwm_noise_std([couple], Guarantee.unsliced(order=4, epsilon=2.0)))
try:
    baselines.dp_sgd_epsilon(baselines.DpSgd(rate=0.1, n_steps=2), 1.0, 1e-5, "rdp")
except MissingExtraError as error:
    print(error)
"""


def test_only_dp_sgd_needs_dp_accounting():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.stderr == ""
    noise, complaint = done.stdout.splitlines()
    assert noise == "3.0"
    assert "pip install 'pufferslice[baselines]'" in complaint
