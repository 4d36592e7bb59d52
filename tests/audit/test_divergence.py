# SPDX-License-Identifier: Apache-2.0
"""Bounds along lines and slices: by hand, exact coverage, below known divergences, bad input."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from pufferslice.audit import audit_line, bound_epsilon
from pufferslice.audit.bins import JointMoment, Mean, SphereMean
from pufferslice.audit.divergence import (
    Claimed,
    DeltaTest,
    EpsilonTest,
    LinePlan,
    Lines,
    PilotRange,
    RenyiTest,
    SplitOutputs,
    audit_lines,
    audit_slices,
    both_orders,
    outputs_needed,
)
from pufferslice.calibration.epsilon_delta import gaussian_delta
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.renyi import aggregate_average, aggregate_joint

UNSLICED = Guarantee.unsliced(order=2, epsilon=1.0)
ANGLES = np.array([0.1, 0.7, 1.4])
DIRECTIONS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
WEIGHTS = np.array([0.5, 0.3, 0.2])
SLICES = Lines(DIRECTIONS, ("slice 0", "slice 1", "slice 2"))


def gaussian_pair(rng, n, shift):
    return rng.normal(shift, 1.0, n), rng.normal(0.0, 1.0, n)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("order", "shift", "n", "share"),
    [(2, 1.0, 200_000, 0.8), (2, 0.5, 200_000, 0.65), (4, 0.5, 200_000, 0.7)],
)
def test_bound_comes_close_to_the_truth_from_below(rng, order, shift, n, share):
    """At confidence 0.999999 the truth is exceeded once in a million seeds."""
    claim = Guarantee.unsliced(order=order, epsilon=1.0)
    truth = order * shift**2 / 2
    found = audit_line(*gaussian_pair(rng, n, shift), claim, confidence=0.95, seed=1)
    assert share * truth < found.lower_bound
    sure = audit_line(*gaussian_pair(rng, n, shift), claim, confidence=0.999999, seed=1)
    assert sure.lower_bound < truth
    assert found.refutable_below > 8


@pytest.mark.soundness
@pytest.mark.statistical
def test_a_claim_that_holds_is_rarely_refuted(rng):
    """400 runs on coarse distributions, where bins lose nothing: the stated share is 0.2.

    Counting without intervals would refute about half of them.
    """
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.35, 0.25])
    claim = Guarantee.unsliced(order=2, epsilon=float(np.log((p**2 / q).sum())))
    other = float(np.log((q**2 / p).sum()))
    assert other < claim.epsilon, "the first order is the larger one"
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
    half = gaussian_pair(rng, 20_000, 2.0)
    assert not audit_line(*right, UNSLICED, confidence=0.95, seed=0).refuted
    assert audit_line(*half, UNSLICED, confidence=0.95, seed=0).outcome == "refuted"


def test_the_order_of_the_pair_is_found(rng):
    """Narrow from wide is finite, wide from narrow far larger."""
    narrow, wide = rng.normal(0, 1, 20_000), rng.normal(0, 2, 20_000)
    claim = Guarantee.unsliced(order=2, epsilon=1.0)
    pair = ("narrow", "wide")
    found = audit_line(narrow, wide, claim, confidence=0.95, seed=0, pair=pair, line="loss")
    assert found.pair == ("wide", "narrow")
    assert found.refuted
    assert found.line == "loss"


@pytest.mark.parametrize(("delta", "share"), [(1e-5, 0.5), (0.01, 0.7)])
def test_epsilon_bound_is_below_the_truth_and_near_it(rng, delta, share):
    shift = 1.5
    truth = optimize.brentq(lambda e: gaussian_delta(shift, e) - delta, 0, 50)
    found = bound_epsilon(
        *gaussian_pair(rng, 200_000, shift), delta=delta, confidence=0.9999, seed=0
    )
    assert share * truth < found < truth


def shifted_plane(rng, n, shift):
    """Outputs around `shift` and around 0, in both orders."""
    points = {"a": rng.normal(size=(n, 2)) + shift, "b": rng.normal(size=(n, 2))}
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    return both_orders("declared", parts, [("a", "b")])


@pytest.mark.parametrize("notion", ["average", "joint"])
def test_slices_are_aggregated_as_the_claim_does(rng, notion):
    shift, order = np.array([1.2, 0.4]), 2.0
    truths = order * (DIRECTIONS @ shift) ** 2 / 2
    joint = JointMoment(order=order, weights=WEIGHTS)
    aggregation = joint if notion == "joint" else Mean(weights=WEIGHTS)
    truth = float(
        aggregate_joint(order, truths, WEIGHTS)
        if notion == "joint"
        else aggregate_average(truths, WEIGHTS)
    )
    found = audit_slices(
        shifted_plane(rng, 100_000, shift),
        RenyiTest(order=order),
        Claimed("a claim", "epsilon", truth),
        lines=SLICES,
        aggregation=aggregation,
        confidence=0.9999,
    )
    assert 0.7 * truth < found.lower_bound < truth
    assert found.line == f"slice {int(truths.argmax())}"
    assert notion in found.statistic


def test_slices_without_weight_do_not_count(rng):
    found = audit_slices(
        shifted_plane(rng, 10_000, np.array([3.0, 0.0])),
        RenyiTest(order=2.0),
        Claimed("a claim", "epsilon", 0.1),
        lines=Lines(np.eye(2), ("x", "y")),
        aggregation=Mean(weights=[0.0, 1.0]),
        confidence=0.95,
    )
    assert found.lower_bound < 0.1
    assert found.line == "y"


def separated(order, n_counted, share):
    """The bound when two distributions never share a bin.

    P = 1 and q = 0 seen, by their exact intervals.
    """
    low, high = share ** (1 / n_counted), -np.expm1(np.log(share) / n_counted)
    return (order * np.log(low) - (order - 1) * np.log(high)) / (order - 1)


@pytest.mark.soundness
def test_constant_outputs_are_told_apart_and_every_interval_is_paid_for():
    """A seed that is reused: two atoms. 900 of 1,000 are counted, two intervals per bin."""
    found = audit_line(np.full(1_000, 0.3), np.full(1_000, 0.1), UNSLICED, confidence=0.95, seed=0)
    assert found.refuted
    assert found.lower_bound == pytest.approx(separated(2, 900, 0.05 / (2 * 2)))
    assert found.refutable_below == pytest.approx(found.lower_bound)
    assert found.n_outputs == 1_000


@pytest.mark.soundness
def test_every_interval_of_every_slice_is_paid_for(rng):
    points = {"a": np.tile([1.0, 2.0], (1_000, 1)), "b": np.tile([0.0, 0.5], (1_000, 1))}
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    found = audit_slices(
        both_orders("declared", parts, [("a", "b")]),
        RenyiTest(order=3.0),
        Claimed("a claim", "epsilon", 1.0),
        lines=SLICES,
        aggregation=Mean(weights=WEIGHTS),
        confidence=0.9,
    )
    assert found.lower_bound == pytest.approx(separated(3, 900, 0.1 / (2 * 2 * 3)))
    assert found.refutable_below == pytest.approx(found.lower_bound)


@pytest.mark.soundness
def test_doubt_about_the_sphere_is_paid_for_too(rng):
    points = {"a": np.tile([1.0, 2.0], (1_000, 1)), "b": np.tile([0.0, 0.5], (1_000, 1))}
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    # Above what is found, about 5.1, and so low that the half-width leaves some of it.
    sphere = SphereMean(n_directions=3, cap=5.5).spending(0.04, 2)
    found = audit_slices(
        both_orders("declared", parts, [("a", "b")]),
        RenyiTest(order=3.0),
        Claimed("a claim", "epsilon", 1.0),
        lines=SLICES,
        aggregation=sphere,
        confidence=0.9,
    )
    expected = sphere.of(np.full(3, separated(3, 900, 0.06 / (2 * 2 * 3))))
    assert expected > 0.1
    assert found.lower_bound == pytest.approx(expected)
    assert found.confidence == 0.9


@pytest.mark.parametrize("claimed", [0.5, 4.0, 8.0])
def test_outputs_needed_is_where_reach_begins(claimed):
    test = RenyiTest(order=2.0)
    needed = outputs_needed(test, claimed, 10, 0.95)
    share = 0.05 / 40

    def reach(n):
        counted = n - int(np.ceil(0.1 * n))
        return test.reach((counted, counted), share)

    assert reach(needed) > claimed
    assert needed == 100 or reach(int(0.97 * needed)) < claimed
    assert outputs_needed(test, 60.0, 10, 0.95) is None
    assert outputs_needed(EpsilonTest(delta=1e-5), claimed, 10, 0.95) >= needed / 2


def test_too_few_outputs_say_how_many_are_needed(rng):
    with pytest.raises(ArgumentError, match=r"too few outputs: 99 .* at least 100"):
        audit_line(*gaussian_pair(rng, 99, 1.0), UNSLICED, confidence=0.95, seed=0)
    claim = Guarantee.unsliced(order=2, epsilon=6.0)
    with pytest.raises(ArgumentError, match=r"about [0-9]+ outputs") as caught:
        audit_line(*gaussian_pair(rng, 200, 1.0), claim, confidence=0.95, seed=0)
    needed = outputs_needed(RenyiTest(order=2.0), 6.0, 1, 0.95)
    assert str(needed) in str(caught.value)
    far = Guarantee.unsliced(order=2, epsilon=60.0)
    with pytest.raises(ArgumentError, match="no number of outputs"):
        audit_line(*gaussian_pair(rng, 200, 1.0), far, confidence=0.95, seed=0)


@pytest.mark.parametrize("change", [{"confidence": 1.0}, {"seed": -1}], ids=str)
def test_bad_settings(rng, change):
    settings = {"confidence": 0.95, "seed": 0} | change
    with pytest.raises(ArgumentError, match=next(iter(change))):
        audit_line(*gaussian_pair(rng, 200, 1.0), UNSLICED, **settings)


def test_outputs_that_are_not_finite_are_counted_and_not_shown(rng):
    first, second = gaussian_pair(rng, 200, 1.0)
    first[:3] = [np.nan, np.inf, -np.inf]
    with pytest.raises(ArgumentError, match="3 of 200"):
        audit_line(first, second, UNSLICED, confidence=0.95, seed=0)


def test_outputs_must_be_a_table(rng):
    with pytest.raises(ArgumentError, match="shape"):
        SplitOutputs.of(np.zeros(200), rng=rng)
    with pytest.raises(ArgumentError, match="no line"):
        audit_lines([], RenyiTest(order=2.0), Claimed("a claim", "epsilon", 1.0), confidence=0.95)


def test_pilot_and_counted_part_share_no_output(rng):
    values = np.arange(1_000.0)[:, None]
    part = SplitOutputs.of(values, rng=rng)
    assert len(part.pilot) == 100
    assert sorted([*part.pilot[:, 0], *part.counted[:, 0]]) == list(range(1_000))
    assert not np.array_equal(part.pilot, values[:100])
    assert part.n_outputs == 1_000
    assert "1000" in repr(part)


def test_the_range_is_a_little_wider_than_the_pilot(rng):
    pilot = rng.uniform(-1, 1, (1_000, 3)) * [1, 5, 0]
    within = PilotRange.of(pilot)
    assert not within.left_by(pilot).any()
    outside = np.array([[1.1, 0, 0], [0, -5.5, 0], [0, 0, 1e-3], [0.9, 4.5, 0]])
    assert within.left_by(outside).tolist() == [True, True, True, False]


@pytest.mark.soundness
def test_outputs_out_of_the_range_are_seen_as_such(rng):
    """Uniform noise in three coordinates, moved across the line that is looked along."""
    points = {name: rng.uniform(-1, 1, (20_000, 3)) for name in ("a", "b")}
    points["a"] += [0.0, 0.05, 0.05]
    parts = {name: SplitOutputs.of(values, rng=rng) for name, values in points.items()}
    bounds = []
    for within in (None, PilotRange.of(parts["b"].pilot)):
        lines = Lines(np.eye(1, 3), ("axis 0",), within)
        found = audit_lines(
            [(both_orders("declared", parts, [("a", "b")])[0], lines)],
            RenyiTest(order=4.0),
            Claimed("a claim", "epsilon", 1.0),
            confidence=0.95,
        )
        bounds.append(found.lower_bound)
    assert bounds[0] < 0.1
    assert bounds[1] > 1.0


CUT = LinePlan(edges=[0.5])
P, Q = 0.7, 0.4
"""Probabilities of the bin above the edge under the two distributions."""

TRUTHS = {
    RenyiTest(order=2.0): math.log(P**2 / Q + (1 - P) ** 2 / (1 - Q)),
    RenyiTest(order=5.0): math.log(P**5 / Q**4 + (1 - P) ** 5 / (1 - Q) ** 4) / 4,
    EpsilonTest(delta=0.05): math.log((P - 0.05) / Q),
    DeltaTest(epsilon=0.2): P - math.exp(0.2) * Q,
}


def by_hand(test, low, high):
    """The bound from the two bounds of the bin above; of Rényi, that bin's own part."""
    if isinstance(test, EpsilonTest):
        return math.log((low - test.delta) / high)
    return low - math.exp(test.epsilon) * high


@pytest.mark.soundness
@pytest.mark.parametrize("test", TRUTHS)
@pytest.mark.parametrize("sizes", [(40, 40), (25, 60)])
def test_exact_coverage(test, sizes):
    """Over all outcomes; if each share were all of the confidence, coverage would fail."""
    n_statements = 4 if isinstance(test, RenyiTest) else 2
    failure = 0.2
    assert wrong_probability(test, sizes, failure / n_statements) <= failure
    if isinstance(test, RenyiTest):
        assert wrong_probability(test, sizes, 0.49) > failure


def wrong_probability(test, sizes, share):
    total = 0.0
    for k in range(sizes[0] + 1):
        for m in range(sizes[1] + 1):
            counts = (np.array([sizes[0] - k, k]), np.array([sizes[1] - m, m]))
            if test.bound(CUT, counts, share) > TRUTHS[test]:
                total += stats.binom.pmf(k, sizes[0], P) * stats.binom.pmf(m, sizes[1], Q)
    return total


@pytest.mark.parametrize("test", [EpsilonTest(delta=0.01), DeltaTest(epsilon=0.3)])
def test_threshold_bound_by_hand(test):
    counts, share = (np.array([10, 90]), np.array([70, 30])), 0.01
    low, high = stats.beta.ppf(share, 90, 11), stats.beta.ppf(1 - share, 31, 70)
    assert test.bound(CUT, counts, share) == pytest.approx(by_hand(test, low, high))
    below = LinePlan(edges=[0.5], above=False)
    assert test.bound(below, counts, share) == 0


def test_renyi_bound_by_hand():
    counts, share = (np.array([10, 90]), np.array([70, 30])), 0.01
    lows = stats.beta.ppf(share, [10, 90], [91, 11])
    highs = stats.beta.ppf(1 - share, [71, 31], [30, 70])
    expected = math.log((lows**3 * highs**-2.0).sum()) / 2
    assert RenyiTest(order=3.0).bound(CUT, counts, share) == pytest.approx(expected)


@pytest.mark.parametrize("test", TRUTHS)
def test_reach_is_the_bound_at_perfect_separation(test):
    n, share = 500, 1e-4
    counts = (np.array([0, n]), np.array([n, 0]))
    reach = test.reach((n, n), share)
    assert test.bound(CUT, counts, share) == pytest.approx(reach, rel=1e-6)
    for k in (0, 1, 250, 499, 500):
        for m in (0, 1, 250, 499, 500):
            some = (np.array([n - k, k]), np.array([n - m, m]))
            assert test.bound(CUT, some, share) <= reach * (1 + 1e-9)


def test_out_of_reach_is_zero():
    assert RenyiTest(order=2.0).reach((3, 3), 1e-9) == 0
    assert EpsilonTest(delta=0.5).reach((3, 3), 1e-3) == 0
    assert DeltaTest(epsilon=800.0).reach((1000, 1000), 1e-3) == 0


@pytest.mark.parametrize("test", TRUTHS)
def test_plans_find_the_difference(test, rng):
    pilot = np.sort(rng.normal(1, 1, 5_000)), np.sort(rng.normal(0, 1, 5_000))
    plan = test.plan(pilot, (45_000, 45_000), 1e-3)
    assert plan.promise > 0.1
    assert len(plan.edges) >= 1
    mirrored = np.sort(-pilot[0]), np.sort(-pilot[1])
    other = test.plan(mirrored, (45_000, 45_000), 1e-3)
    if not isinstance(test, RenyiTest):
        assert plan.above
        assert not other.above
