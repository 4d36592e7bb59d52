# SPDX-License-Identifier: Apache-2.0
"""Bounds along lines and slices: by hand, exact coverage, below known divergences, bad input."""

import json
import math

import attrs
import numpy as np
import pytest
from scipy import optimize, stats

from pufferslice.audit import Verdict, audit_line, bound_epsilon
from pufferslice.audit.divergence import (
    Claimed,
    LinePlan,
    Lines,
    RenyiTest,
    SplitOutputs,
    audit_lines,
    audit_slices,
    both_orders,
    delta_test,
    epsilon_test,
    guess_test,
    joint_over,
    mean_over,
    mean_over_sphere,
    outputs_needed,
    outside_of,
)
from pufferslice.claims import Guarantee
from pufferslice.sensitivity.renyi import aggregate_average, aggregate_joint, gaussian_delta

UNSLICED = Guarantee.unsliced(order=2, epsilon=1.0)
ANGLES = np.array([0.1, 0.7, 1.4])
DIRECTIONS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
WEIGHTS = np.array([0.5, 0.3, 0.2])
SLICES = Lines(DIRECTIONS, ("slice 0", "slice 1", "slice 2"))
SETTINGS = {"confidence": 0.95, "seed": 0}
VERDICT = Verdict(
    claim="(2, 1)-RPP", quantity="epsilon", claimed=1.0, statistic="Rényi divergence of order 2",
    lower_bound=3.2, confidence=0.95, refutable_below=8.6, n_outputs=100_000, pair=("a", "b"),
    prior="declared", line="axis 0",
)  # fmt: skip


def gaussian_pair(rng, n, shift):
    return rng.normal(shift, 1.0, n), rng.normal(0.0, 1.0, n)


def compared(points, rng):
    """Outputs of two secrets in both orders."""
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    return both_orders("declared", parts, [("a", "b")])


def audited_slices(points, rng, aggregation, *, order=3.0, lines=SLICES, confidence=0.9):
    claimed, test = Claimed("a claim", "epsilon", 1.0), RenyiTest(order)
    return audit_slices(
        compared(points, rng), test, claimed,
        lines=lines, aggregation=aggregation, confidence=confidence,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lower_bound", "refutable_below", "outcome"),
    [(3.2, 8.6, "refuted"), (1.0, 8.6, "not refuted"), (0.0, 1.0, "out of reach")],
)
def test_outcome_words_and_json_of_a_verdict(lower_bound, refutable_below, outcome):
    verdict = attrs.evolve(VERDICT, lower_bound=lower_bound, refutable_below=refutable_below)
    assert verdict.outcome == outcome
    assert str(verdict).startswith(outcome.upper())
    for part in ("(2, 1)-RPP", "'a'", "'b'", "axis 0", "declared", "0.95", "100000"):
        assert part in str(verdict)
    document = json.loads(json.dumps(verdict.to_json()))
    assert document == json.loads(json.dumps(attrs.asdict(verdict))) | {
        "refuted": outcome == "refuted",
        "outcome": outcome,
    }


@pytest.mark.statistical
@pytest.mark.parametrize(("order", "shift", "share"), [(2, 1.0, 0.8), (4, 0.5, 0.7)])
def test_bound_comes_close_to_the_truth_from_below(rng, order, shift, share):
    """At confidence 0.999999 the truth is exceeded once in a million seeds."""
    claim = Guarantee.unsliced(order=order, epsilon=1.0)
    truth = order * shift**2 / 2
    pair = gaussian_pair(rng, 200_000, shift)
    assert audit_line(*pair, claim, **SETTINGS).lower_bound > share * truth
    assert audit_line(*pair, claim, confidence=0.999999, seed=1).lower_bound < truth


@pytest.mark.soundness
@pytest.mark.statistical
def test_a_claim_that_holds_is_rarely_refuted(rng):
    """400 runs on coarse distributions, where bins lose nothing: the stated share is 0.2.

    Counting without intervals would refute about half of them.
    """
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.35, 0.25])
    claim = Guarantee.unsliced(order=2, epsilon=float(np.log((p**2 / q).sum())))
    assert np.log((q**2 / p).sum()) < claim.epsilon, "the first order is the larger one"
    n_runs, n = 400, 300
    refuted = plain = 0
    for seed in range(n_runs):
        first = rng.choice(3, size=n, p=p).astype(float)
        second = rng.choice(3, size=n, p=q).astype(float)
        refuted += audit_line(first, second, claim, confidence=0.8, seed=seed).refuted
        shares = [np.bincount(x.astype(int), minlength=3) / n for x in (first, second)]
        plain += np.log((shares[0] ** 2 / shares[1]).sum()) > claim.epsilon
    assert refuted <= 0.2 * n_runs
    assert plain > 0.3 * n_runs


@pytest.mark.soundness
def test_half_the_noise_is_refuted(rng):
    right = gaussian_pair(rng, 20_000, 1.0)
    assert not audit_line(*right, UNSLICED, **SETTINGS | {"confidence": 0.999999}).refuted
    assert audit_line(*gaussian_pair(rng, 20_000, 2.0), UNSLICED, **SETTINGS).refuted


def test_the_order_of_the_pair_is_found(rng):
    """Narrow from wide is finite, wide from narrow far larger."""
    narrow, wide = rng.normal(0, 1, 20_000), rng.normal(0, 2, 20_000)
    verdict = audit_line(narrow, wide, UNSLICED, **SETTINGS, pair=("narrow", "wide"), line="loss")
    assert (verdict.pair, verdict.line, verdict.refuted) == (("wide", "narrow"), "loss", True)


@pytest.mark.parametrize(("delta", "share"), [(1e-5, 0.5), (0.01, 0.7)])
def test_epsilon_bound_is_below_the_truth_and_near_it(rng, delta, share):
    truth = optimize.brentq(lambda e: gaussian_delta(1.5, e) - delta, 0, 50)
    pair = gaussian_pair(rng, 200_000, 1.5)
    bound = bound_epsilon(*pair, delta=delta, confidence=0.9999, seed=0)
    assert share * truth < bound < truth


@pytest.mark.parametrize("notion", ["average", "joint"])
def test_slices_are_aggregated_as_the_claim_does(rng, notion):
    shift, order = np.array([1.2, 0.4]), 2.0
    truths = order * (DIRECTIONS @ shift) ** 2 / 2
    if notion == "joint":
        aggregation, truth = joint_over(WEIGHTS, order), aggregate_joint(order, truths, WEIGHTS)
    else:
        aggregation, truth = mean_over(WEIGHTS), aggregate_average(truths, WEIGHTS)
    points = {"a": rng.normal(size=(100_000, 2)) + shift, "b": rng.normal(size=(100_000, 2))}
    verdict = audited_slices(points, rng, aggregation, order=order, confidence=0.9999)
    assert 0.7 * truth < verdict.lower_bound < truth
    assert verdict.line == f"slice {int(truths.argmax())}"
    assert notion in verdict.statistic


def test_slices_without_weight_do_not_count(rng):
    points = {"a": rng.normal([3.0, 0.0], size=(10_000, 2)), "b": rng.normal(size=(10_000, 2))}
    aggregation = mean_over(np.array([0.0, 1.0]))
    verdict = audited_slices(points, rng, aggregation, lines=Lines(np.eye(2), ("x", "y")))
    assert verdict.lower_bound < 0.1
    assert verdict.line == "y"


def separated(order, n_counted, share):
    """The bound if no bin has outputs of both: p = 1 and q = 0 by their exact intervals."""
    low, high = share ** (1 / n_counted), -np.expm1(np.log(share) / n_counted)
    return (order * np.log(low) - (order - 1) * np.log(high)) / (order - 1)


@pytest.mark.soundness
def test_every_interval_is_paid_for(rng):
    """Atoms are told apart. 900 of 1,000 outputs are counted, two intervals per bin and slice."""
    verdict = audit_line(np.full(1_000, 0.3), np.full(1_000, 0.1), UNSLICED, **SETTINGS)
    assert verdict.lower_bound == pytest.approx(separated(2, 900, 0.05 / (2 * 2)))
    assert verdict.refutable_below == pytest.approx(verdict.lower_bound)
    points = {"a": np.tile([1.0, 2.0], (1_000, 1)), "b": np.tile([0.0, 0.5], (1_000, 1))}
    verdict = audited_slices(points, rng, mean_over(WEIGHTS))
    assert verdict.lower_bound == pytest.approx(separated(3, 900, 0.1 / (2 * 2 * 3)))
    assert verdict.refutable_below == pytest.approx(verdict.lower_bound)
    # The cap lies above what is found, about 5.1, and so low that the half-width leaves some of it.
    sphere = mean_over_sphere(3, 5.5, 0.04, 2)
    verdict = audited_slices(points, rng, sphere)
    expected = sphere.of(np.full(3, separated(3, 900, 0.06 / (2 * 2 * 3))))
    assert verdict.lower_bound == pytest.approx(expected)
    assert expected > 0.1


def test_the_mean_over_the_sphere_by_hand():
    mean = mean_over_sphere(200, 4.0, 0.01, 6)
    width = 4.0 * np.sqrt(np.log(2 * 6 / 0.01) / 400)
    assert mean.of(np.repeat([1.0, 9.0], 100)) == pytest.approx((1.0 + 4.0) / 2 - width)
    assert mean.of(np.zeros(200)) == 0


@pytest.mark.soundness
@pytest.mark.statistical
def test_the_comparison_that_drawn_directions_show_best_is_paid_for(rng):
    """Of 500 comparisons whose mean over the sphere is 1/2, none may be seen above it."""
    n_draws, n_comparisons, n_directions = 400, 500, 20
    values = rng.binomial(1, 0.5, (n_draws, n_comparisons, n_directions)).astype(float)
    best = values[np.arange(n_draws), values.sum(axis=2).argmax(axis=1)]
    # The chance that one of them has 17 ones or more is 1 - (1 - 0.0013)^500, about a half.
    shares = []
    for paid in (n_comparisons, 1):
        mean = mean_over_sphere(n_directions, 1.0, 0.05, paid)
        shares.append(np.mean([mean.of(row) > 0.5 for row in best]))
    assert shares[0] < 0.05
    assert shares[1] > 0.25


@pytest.mark.parametrize("claimed", [0.5, 8.0])
def test_outputs_needed_is_where_reach_begins(claimed):
    test = RenyiTest(2.0)
    needed = outputs_needed(test, claimed, 10, 0.95)

    def reach(n):
        counted = n - int(np.ceil(0.1 * n))
        return test.reach((counted, counted), 0.05 / 40)

    assert reach(needed) > claimed
    assert needed == 100 or reach(int(0.97 * needed)) < claimed
    assert outputs_needed(test, 60.0, 10, 0.95) is None
    assert outputs_needed(epsilon_test(1e-5), claimed, 10, 0.95) >= needed / 2


@pytest.mark.soundness
@pytest.mark.parametrize("order", [70.0, 128.0, 1e6])
def test_moments_of_high_orders_beyond_the_floats(rng, order):
    """Atoms show all that can be seen; the divergence of order infinity is ln(0.9 / 0.1)."""
    claim = Guarantee.unsliced(order=order, epsilon=1.0)
    verdict = audit_line(np.full(10**5, 0.3), np.full(10**5, 0.1), claim, **SETTINGS)
    assert verdict.lower_bound == pytest.approx(verdict.refutable_below, rel=1e-6)
    assert verdict.lower_bound <= verdict.refutable_below
    coins = [(rng.random(10**5) < share).astype(float) for share in (0.9, 0.1)]
    assert 0.95 * np.log(9) < audit_line(*coins, claim, **SETTINGS).lower_bound < np.log(9)


def test_pilot_and_counted_part_share_no_output(rng):
    values = np.arange(1_000.0)[:, None]
    part = SplitOutputs.of(values, rng=rng)
    assert (len(part.pilot), part.n_outputs) == (100, 1_000)
    assert sorted([*part.pilot[:, 0], *part.counted[:, 0]]) == list(range(1_000))
    assert not np.array_equal(part.pilot, values[:100])


@pytest.mark.soundness
def test_outputs_out_of_the_range_of_the_pilot_are_seen_as_such(rng):
    """Uniform noise in three coordinates, moved across the line that is looked along."""
    pilot = rng.uniform(-1, 1, (1_000, 3)) * [1, 5, 0]
    is_outside = outside_of(pilot)
    assert not is_outside(pilot).any()
    near = np.array([[1.5, 0, 0], [0, -7.5, 0], [0, 0, 1e-3], [0.8, 4.0, 0]])
    assert is_outside(near).tolist() == [True, True, True, False]
    points = {name: rng.uniform(-1, 1, (20_000, 3)) for name in ("a", "b")}
    points["a"] += [0.0, 0.2, 0.2]
    comparison = compared(points, rng)[0]
    bounds = []
    for rule in (None, outside_of(comparison.outputs[1].pilot)):
        candidates = [(comparison, Lines(np.eye(1, 3), ("axis 0",), rule))]
        claimed = Claimed("a claim", "epsilon", 1.0)
        verdict = audit_lines(candidates, RenyiTest(4.0), claimed, confidence=0.95)
        bounds.append(verdict.lower_bound)
    assert bounds[0] < 0.1
    assert bounds[1] > 0.3


CUT = LinePlan(np.array([0.5]))
P, Q = 0.7, 0.4
"""Probabilities of the bin above the edge under the two distributions."""

TRUTHS = {
    RenyiTest(2.0): math.log(P**2 / Q + (1 - P) ** 2 / (1 - Q)),
    RenyiTest(5.0): math.log(P**5 / Q**4 + (1 - P) ** 5 / (1 - Q) ** 4) / 4,
    epsilon_test(0.05): math.log((P - 0.05) / Q),
    delta_test(0.2): P - math.exp(0.2) * Q,
    guess_test(): (1 + P - Q) / 2,
}


@pytest.mark.soundness
@pytest.mark.parametrize("test", TRUTHS, ids=lambda test: test.statistic)
def test_exact_coverage(test):
    """Over all outcomes; if each share were all of the confidence, coverage would fail."""

    def wrong_probability(share):
        total = 0.0
        for k in range(n + 1):
            for i in range(m + 1):
                counts = (np.array([n - k, k]), np.array([m - i, i]))
                if test.bound(CUT, counts, share) > TRUTHS[test]:
                    total += stats.binom.pmf(k, n, P) * stats.binom.pmf(i, m, Q)
        return total

    n, m, failure = 25, 60, 0.2
    is_renyi = isinstance(test, RenyiTest)
    assert wrong_probability(failure / (4 if is_renyi else 2)) <= failure
    if is_renyi:
        assert wrong_probability(0.49) > failure


def test_bounds_by_hand():
    counts, share = (np.array([10, 90]), np.array([70, 30])), 0.01
    lows = stats.beta.ppf(share, [10, 90], [91, 11])
    highs = stats.beta.ppf(1 - share, [71, 31], [30, 70])
    by_hand = {
        RenyiTest(3.0): math.log((lows**3 * highs**-2.0).sum()) / 2,
        epsilon_test(0.01): math.log((lows[1] - 0.01) / highs[1]),
        delta_test(0.3): lows[1] - math.exp(0.3) * highs[1],
        guess_test(): (1 + lows[1] - highs[1]) / 2,
    }
    for test, bound in by_hand.items():
        assert test.bound(CUT, counts, share) == pytest.approx(bound)
        if not isinstance(test, RenyiTest):
            nothing = 0.5 if test.statistic.startswith("right guesses") else 0
            assert test.bound(attrs.evolve(CUT, above=False), counts, share) == nothing


@pytest.mark.parametrize("test", TRUTHS, ids=lambda test: test.statistic)
def test_reach_is_the_bound_at_perfect_separation(test):
    n, share = 500, 1e-4
    reach = test.reach((n, n), share)
    apart = (np.array([0, n]), np.array([n, 0]))
    assert test.bound(CUT, apart, share) == pytest.approx(reach, rel=1e-6)
    for k in (0, 1, 250, 499, 500):
        for m in (0, 1, 250, 499, 500):
            counts = (np.array([n - k, k]), np.array([n - m, m]))
            assert test.bound(CUT, counts, share) <= reach * (1 + 1e-9)


def test_out_of_reach_is_zero():
    assert RenyiTest(2.0).reach((3, 3), 1e-9) == 0
    assert epsilon_test(0.5).reach((3, 3), 1e-3) == 0
    assert delta_test(800.0).reach((1000, 1000), 1e-3) == 0


@pytest.mark.parametrize("test", TRUTHS, ids=lambda test: test.statistic)
def test_plans_find_the_difference_on_its_side(test, rng):
    pilot = np.sort(rng.normal(1, 1, 5_000)), np.sort(rng.normal(0, 1, 5_000))
    plan = test.plan(pilot, (45_000, 45_000), 1e-3)
    mirrored = test.plan((-pilot[0][::-1], -pilot[1][::-1]), (45_000, 45_000), 1e-3)
    assert min(plan.promise, mirrored.promise) > 0.1
    assert plan.above
    assert mirrored.above == isinstance(test, RenyiTest)
