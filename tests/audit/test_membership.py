# SPDX-License-Identifier: Apache-2.0
"""Scores of records and how well they tell members: known answers, oracles, coverage, bad input."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from pufferslice.audit.membership import (
    audit_membership,
    locked_flags,
    loss_scores,
    margin_scores,
    non_members_needed,
    roc_auc,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.concentration import clopper_pearson

N_REPEATS = 300


def audit_of(scores, members, confidence=0.95, rates=(0.01,)):
    return audit_membership(
        scores, members, attack="given", confidence=confidence, false_positive_rates=rates
    )


def gaussian_scores(rng, n_members, n_others, shift):
    """Members score N(shift, 1) and the others N(0, 1): the AUC is Phi(shift / sqrt 2)."""
    scores = np.concatenate([rng.normal(shift, 1, n_members), rng.normal(0, 1, n_others)])
    return scores, np.arange(n_members + n_others) < n_members


tied = npst.arrays(np.int64, st.integers(4, 40), elements=st.integers(-3, 3))


@given(tied, st.randoms(use_true_random=False))
def test_auc_counts_pairs(scores, random):
    members = [True, False] + [random.random() < 0.5 for _ in scores[2:]]
    inside = [s for s, m in zip(scores, members, strict=True) if m]
    outside = [s for s, m in zip(scores, members, strict=True) if not m]
    pairs = [(a > b) + 0.5 * (a == b) for a in inside for b in outside]
    assert roc_auc(scores, members) == pytest.approx(sum(pairs) / len(pairs), abs=1e-15)
    assert roc_auc(scores, members) == pytest.approx(roc_auc_score(members, scores), abs=1e-12)
    others = [not one for one in members]
    assert roc_auc(scores, others) == pytest.approx(1 - roc_auc(scores, members), abs=1e-15)
    assert roc_auc(np.exp(scores), members) == roc_auc(scores, members)


def test_auc_interval_of_perfect_scores_by_hand():
    """-ln a <= ln(2 / share) / k, k the smaller class and share one third of 0.05."""
    members = np.arange(900) < 300
    found = audit_of(members.astype(float), members).roc_auc
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx((0.05 / 3 / 2) ** (1 / 300), rel=1e-12)


def test_auc_interval_is_no_wider_than_hoeffding(rng):
    scores, members = gaussian_scores(rng, 2_000, 1_000, 0.3)
    found = audit_of(scores, members).roc_auc
    width = math.sqrt(math.log(2 / (0.05 / 3)) / (2 * 1_000))
    assert found.value - width <= found.low < found.value < found.high <= found.value + width
    assert found.high - found.low > 1.8 * width


@pytest.mark.statistical
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_intervals_cover(shift, rng):
    truth = norm.cdf(shift / math.sqrt(2))
    missed_auc = missed_rate = missed_false = 0
    for _ in range(N_REPEATS):
        found = audit_of(*gaussian_scores(rng, 200, 600, shift), confidence=0.9, rates=(0.02,))
        (rate,) = found.low_rates
        true_rate = norm.sf(rate.threshold - shift)
        missed_auc += not found.roc_auc.low <= truth <= found.roc_auc.high
        missed_rate += not rate.true_positive_rate.low <= true_rate <= rate.true_positive_rate.high
        missed_false += norm.sf(rate.threshold) > 0.02
    share = 0.1 / 3
    most = binom.ppf(1 - 1e-6, N_REPEATS, share)
    assert max(missed_auc, missed_rate, missed_false) <= most


@pytest.mark.statistical
def test_a_threshold_at_the_seen_rate_would_not_keep_it(rng):
    """Why the threshold is higher: the plain quantile has too many false positives too often."""
    over = 0
    for _ in range(N_REPEATS):
        outside = np.sort(rng.normal(0, 1, 600))
        over += norm.sf(outside[-13]) > 0.02
    assert over > N_REPEATS / 3


@pytest.mark.parametrize(("n_others", "rate"), [(600, 0.02), (5_000, 0.01), (9_000, 0.001)])
def test_threshold_is_the_lowest_that_the_binomial_tail_allows(n_others, rate):
    scores = np.concatenate([np.full(10, n_others), np.arange(n_others)]).astype(float)
    (found,) = audit_of(scores, np.arange(n_others + 10) < 10, rates=(rate,)).low_rates
    ranks = np.arange(1, n_others + 1)
    tails = binom.sf(ranks - 1, n_others, 1 - rate)
    # a relative thousandth of the tail is kept for the error of the special functions
    assert found.threshold == ranks[tails * 1.001 <= 0.05 / 3][0] - 1
    assert found.true_positive_rate == (1.0, *clopper_pearson(10, 10, 0.05 / 3))


def test_members_at_the_threshold_are_not_found():
    scores = np.concatenate([np.zeros(50), np.zeros(1_000)])
    (found,) = audit_of(scores, np.arange(1_050) < 50).low_rates
    assert found.threshold == 0.0
    assert found.true_positive_rate.value == 0.0
    assert audit_of(scores, np.arange(1_050) < 50).roc_auc.value == 0.5


def test_an_attack_that_guesses_is_not_seen_and_one_that_knows_is(rng):
    scores, members = gaussian_scores(rng, 3_000, 3_000, 0.0)
    assert not audit_of(scores, members).is_seen
    assert audit_of(scores + 0.5 * members, members).is_seen


def test_a_few_members_that_stick_out_are_seen_at_low_rates_only(rng):
    """The reason for low rates: an AUC next to one half, and certainty about 3 % of the members."""
    scores, members = gaussian_scores(rng, 5_000, 5_000, 0.0)
    scores[:150] = 50.0
    found = audit_membership(scores, members, attack="given", confidence=0.95)
    assert found.roc_auc.low < 0.5
    assert [rate.true_positive_rate.low > 0.02 for rate in found.low_rates] == [True, True]
    assert found.is_seen


def test_confidence_is_shared_by_everything_that_is_said(rng):
    scores, members = gaussian_scores(rng, 1_000, 9_000, 1.0)
    one, two = audit_of(scores, members), audit_of(scores, members, rates=(0.001, 0.01))
    assert two.roc_auc.low < one.roc_auc.low
    assert two.low_rates[1].threshold >= one.low_rates[0].threshold
    alone = audit_of(scores, members, rates=())
    assert alone.low_rates == ()
    assert alone.roc_auc.low > one.roc_auc.low


def test_needed_non_members_are_enough_and_one_fewer_is_not():
    share = (1 - 0.95) / 5
    needed = non_members_needed(0.001, share)
    assert 0.999**needed <= share < 0.999 ** (needed - 2)
    members = np.arange(needed + 5) < 5
    audit_of(np.arange(needed + 5.0), members, rates=(0.001, 0.01))
    with pytest.raises(ArgumentError, match=f"{needed - 1} were scored.*fewer than {needed}"):
        audit_of(np.arange(needed + 4.0), members[:-1], rates=(0.001, 0.01))


def test_what_is_said_can_be_read_back(rng):
    found = audit_of(*gaussian_scores(rng, 500, 1_500, 1.0))
    said = json.loads(json.dumps(found.to_json()))
    assert said["roc_auc"] == found.roc_auc._asdict()
    assert said["low_rates"][0]["true_positive_rate"]["low"] == pytest.approx(
        found.low_rates[0].true_positive_rate.low
    )
    text = str(found)
    assert "given: 500 members, 1500 non-members" in text
    assert "at no more than 0.01 false positives" in text


def test_loss_scores_are_negative_losses():
    assert loss_scores([0.5, 2.0]).tolist() == [-0.5, -2.0]


@given(npst.arrays(np.float64, (5, 3), elements=st.floats(-5, 5)), st.integers(0, 2))
def test_margins_are_log_odds(logits, label):
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    odds = np.log(shares[:, label] / (1 - shares[:, label]))
    np.testing.assert_allclose(margin_scores(logits, [label] * 5), odds, atol=1e-9)


@pytest.mark.parametrize(
    ("scores", "members", "message"),
    [
        ([1.0, math.nan, 2.0], [1, 0, 0], "scores must be finite; 1 of 3"),
        ([1.0, -math.inf], [1, 0], "scores must be finite; 1 of 2"),
        ([1.0, 2.0], [1, 1], "there are no non-members"),
        ([1.0, 2.0], [False, False], "there are no members"),
        ([], [], "type float64"),
        ([1.0, 2.0], [1, 0, 1], "shape"),
        ([[1.0], [2.0]], [1, 0], "one number per record"),
        ([1.0, 2.0], [0, 2], "True or False"),
        ([1.0, 2.0], [0.0, 1.0], "True or False"),
        (["a", "b"], [0, 1], "expected numbers"),
    ],
)
def test_bad_scores_are_refused(scores, members, message):
    with pytest.raises(ArgumentError, match=message):
        audit_of(scores, members)
    with pytest.raises(ArgumentError, match=message):
        roc_auc(scores, members)


@pytest.mark.parametrize("changed", [{"confidence": 1.0}, {"rates": (0.0,)}, {"rates": (1.5,)}])
def test_numbers_out_of_range_are_refused(changed):
    with pytest.raises(ArgumentError, match="strictly between 0 and 1"):
        audit_of([1.0, 2.0], [1, 0], **changed)


def test_flags_are_copied_and_locked():
    given_flags = np.array([True, False])
    flags = locked_flags(given_flags)
    given_flags[0] = False
    assert flags.tolist() == [True, False]
    with pytest.raises(ValueError, match="read-only"):
        flags[0] = False


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ([1.0, 2.0], [0, 1], "two classes or more"),
        ([[1.0], [2.0]], [0, 0], "two classes or more"),
        ([[1.0, math.inf]], [0], "logits must be finite"),
        ([[1.0, 2.0]], [0, 1], "labels must be 1 whole numbers"),
        ([[1.0, 2.0]], [0.5], "labels must be 1 whole numbers"),
        ([[1.0, 2.0]], [2], "between 0 and 1"),
        ([[1.0, 2.0]], [-1], "between 0 and 1"),
    ],
)
def test_bad_logits_are_refused(logits, labels, message):
    with pytest.raises(ArgumentError, match=message):
        margin_scores(logits, labels)


def test_non_finite_losses_are_refused():
    with pytest.raises(ArgumentError, match="losses must be finite; 1 of 2"):
        loss_scores([1.0, math.inf])
