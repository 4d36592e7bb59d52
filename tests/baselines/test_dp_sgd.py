# SPDX-License-Identifier: Apache-2.0
"""DP-SGD by dp-accounting, and (epsilon, delta) of a run by privacy loss distributions."""

import itertools
import logging
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from pufferslice.baselines import DpSgd, dp_sgd_epsilon, dp_sgd_multiplier, group_size, run_epsilon
from pufferslice.claims.views import ORDERS, improved_epsilon_joint
from pufferslice.errors import CalibrationError
from pufferslice.learning import (
    Amplified,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    WorstCase,
    binomial,
    exactly,
    from_pmf,
    mostly_at_most,
    plan_with_noise,
    run_cost,
)

ROOM = 1e-7
"""Rounding inside the convolutions; discretisation itself only raises."""

DESIGNS = [
    Poisson(n_records=50, rate=0.2),
    WithoutReplacement(n_records=50, batch_size=10),
    WithReplacement(n_records=50, batch_size=10),
]
DESIGN = DESIGNS[1]


def plan_of(accountant, multipliers, differing, sampling=DESIGN):
    return plan_with_noise(
        differing=differing, sampling=sampling, clip_norm=1.0, accountant=accountant, order=4,
        noise_multipliers=np.atleast_1d(np.asarray(multipliers, dtype=float)),
    )  # fmt: skip


def test_notes_on_orders_are_kept_back(caplog):
    """The accountant leaves out orders at this noise and logs each; later notes come through."""
    assert dp_sgd_epsilon(DpSgd(rate=0.1, n_steps=3), 1.0, 1e-5, "rdp") > 0
    logging.getLogger("absl").warning("a later note")
    assert [record.message for record in caplog.records] == ["a later note"]


def normal_delta(ratio, epsilon):
    if ratio == 0:
        return 0.0
    upper = norm.cdf(ratio / 2 - epsilon / ratio)
    return upper - math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))


def exact_epsilon(mixture, delta):
    """Epsilon of a published mixture of normal pairs, given as (chance, shift over std)."""

    def excess(epsilon):
        return sum(chance * normal_delta(ratio, epsilon) for chance, ratio in mixture) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, 500.0, xtol=1e-12)


def whole_runs(sampling, n_differing, multipliers):
    """Every sequence of discrepancies: the shifts of independent normals add as squares."""
    chances = np.exp(sampling.discrepancy_log_probabilities(n_differing))
    steps = list(enumerate(chances.tolist()))
    for drawn in itertools.product(steps, repeat=len(multipliers)):
        squares = [(2 * k / z) ** 2 for (k, _), z in zip(drawn, multipliers, strict=True)]
        yield math.prod(chance for _, chance in drawn), math.sqrt(sum(squares))


def likely(runs):
    """Without what changes no digit: the exact epsilon falls by it, which the test allows."""
    return (run for run in runs if run[0] > 1e-12)


def check_close_above(found, exact, rel=1e-3):
    assert exact - ROOM <= found <= exact * (1 + rel) + ROOM


@pytest.mark.soundness
@pytest.mark.parametrize("delta", [1e-2, 1e-8])
@pytest.mark.parametrize(
    ("n_differing", "multipliers", "batch_size"),
    [
        (0, [1.0], 10),
        (4, [3.0], 10),
        (10, [3.0], 2),  # the cap is that of the design
        (4, np.full(3_920, 900.0), 10),
        (5, [1.0, 100.0, 1.0], 10),  # steps of very different noise share one grid
    ],
)
def test_worst_case_is_one_normal_pair(n_differing, multipliers, batch_size, delta):
    sampling = WithoutReplacement(n_records=50, batch_size=batch_size)
    plan = plan_of(WorstCase(), multipliers, exactly(n_differing), sampling)
    shifts = 2 * min(n_differing, batch_size) / np.asarray(multipliers)
    check_close_above(
        run_epsilon(plan, delta), exact_epsilon([(1.0, np.linalg.norm(shifts))], delta)
    )


@pytest.mark.soundness
def test_a_tiny_delta_is_bounded_or_refused():
    """Composed by a Fourier transform alone, epsilon at delta 1e-12 would be 0.1 % too small."""
    plan = plan_of(WorstCase(), np.full(5_000, 2_000.0), exactly(4))
    ratio = 2 * 4 * math.sqrt(5_000) / 2_000
    check_close_above(run_epsilon(plan, 1e-9), exact_epsilon([(1.0, ratio)], 1e-9))
    assert run_epsilon(plan, 1e-11) > exact_epsilon([(1.0, ratio)], 1e-11)
    for delta in (1e-12, 1e-13, 1e-320):
        with pytest.raises(CalibrationError, match="larger delta"):
            run_epsilon(plan, delta)


@pytest.mark.soundness
@pytest.mark.parametrize("sampling", DESIGNS, ids=lambda value: value.name)
@pytest.mark.parametrize(
    ("multipliers", "delta"), [([5.0], 1e-5), ([9.0, 9.0], 1e-2), ([9.0, 12.0, 15.0], 1e-5)]
)
def test_log_moment_against_every_sequence_of_draws(sampling, multipliers, delta):
    plan = plan_of(LogMoment(), multipliers, exactly(2), sampling)
    exact = exact_epsilon(list(likely(whole_runs(sampling, 2, multipliers))), delta)
    check_close_above(run_epsilon(plan, delta), exact)


@pytest.mark.soundness
@pytest.mark.parametrize("accountant", [WorstCase(), LogMoment()], ids=lambda value: value.name)
def test_never_above_the_grid_of_orders(accountant):
    for multiplier, n_steps in [(20.0, 30), (60.0, 300)]:
        plan = plan_of(accountant, np.full(n_steps, multiplier), exactly(4))
        costs = [
            run_cost(accountant, order, plan.sampling, plan.differing, plan.noise_multipliers)
            for order in ORDERS
        ]
        pairs = zip(ORDERS, costs, strict=True)
        grid = min(improved_epsilon_joint(order, cost, 1e-5) for order, cost in pairs)
        found = run_epsilon(plan, 1e-5)
        assert 0 < found <= grid
        assert found > 0.5 * grid


@pytest.mark.soundness
def test_a_tail_that_is_left_out_is_in_delta():
    multipliers = [2.0, 2.0]
    whole = plan_of(WorstCase(), multipliers, exactly(4))
    cut = mostly_at_most(4, tail_probability=1e-3, failure_probability=0.0)
    exact = exact_epsilon([(1.0, 2 * 4 * math.sqrt(2) / 2.0)], 1e-3)
    check_close_above(run_epsilon(whole, 1e-3), exact)
    check_close_above(run_epsilon(plan_of(WorstCase(), multipliers, cut), 2e-3), exact)
    with pytest.raises(CalibrationError, match="larger delta"):
        run_epsilon(plan_of(WorstCase(), multipliers, cut), 1e-3)


@pytest.mark.soundness
def test_random_differing_records_are_mixed_outside_the_steps():
    """Inside, each step would draw its own D; the run would look cheaper."""
    differing, multipliers, delta = from_pmf({0: 0.9, 4: 0.1}), [2.0, 2.0], 1e-4
    fixed = list(whole_runs(DESIGN, 4, multipliers))
    outside = [(0.1 * chance, ratio) for chance, ratio in fixed]
    exact = exact_epsilon(outside, delta)
    check_close_above(run_epsilon(plan_of(LogMoment(), multipliers, differing), delta), exact)
    worst = exact_epsilon([(0.1, 2 * 4 * math.sqrt(2) / 2.0)], delta)
    check_close_above(run_epsilon(plan_of(WorstCase(), multipliers, differing), delta), worst)
    inside = [
        (p1 * p2, math.hypot(r1, r2))
        for (p1, r1), (p2, r2) in itertools.product(
            [(0.9, 0.0), *((0.1 * p, r) for p, r in whole_runs(DESIGN, 4, [2.0]))], repeat=2
        )
    ]
    assert abs(exact - exact_epsilon(inside, delta)) > 0.01


def test_too_many_counts_may_be_folded():
    sampling = WithoutReplacement(n_records=100, batch_size=10)
    folded = binomial(n_records=100, mismatch_probability=0.05).folded(above=3)
    found = run_epsilon(plan_of(LogMoment(), np.full(50, 40.0), folded, sampling), 1e-5)
    assert 0 < found < 1_000


@pytest.mark.soundness
def test_what_loss_distributions_do_not_cover():
    for accountant in (MeanSquare(), Amplified()):
        assert run_epsilon(plan_of(accountant, [5.0], exactly(2), DESIGNS[0]), 1e-5) is None


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
