# SPDX-License-Identifier: Apache-2.0
"""Membership: known answers, oracles, coverage, shadow models that overfit, bad input."""

import json
import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import binom, norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from pufferslice.audit.membership import (
    ShadowModels,
    audit_membership,
    likelihood_ratio_scores,
    loss_scores,
    margin_scores,
    non_members_needed,
    offline_likelihood_ratio_scores,
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
    others = [not member for member in members]
    assert roc_auc(scores, others) == pytest.approx(1 - roc_auc(scores, members), abs=1e-15)
    assert roc_auc(np.exp(scores), members) == roc_auc(scores, members)


def test_auc_interval_of_perfect_scores_by_hand():
    """-ln a <= ln(2 / share) / k, k the smaller class and share one third of 0.05."""
    members = np.arange(900) < 300
    found = audit_of(members.astype(float), members).roc_auc
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx((0.05 / 3 / 2) ** (1 / 300), rel=1e-12)


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


@pytest.mark.parametrize(("n_others", "rate"), [(600, 0.02), (5_000, 0.01), (9_000, 0.001)])
def test_threshold_is_the_lowest_that_the_binomial_tail_allows(n_others, rate):
    scores = np.concatenate([np.full(10, n_others), np.arange(n_others)]).astype(float)
    (found,) = audit_of(scores, np.arange(n_others + 10) < 10, rates=(rate,)).low_rates
    ranks = np.arange(1, n_others + 1)
    tails = binom.sf(ranks - 1, n_others, 1 - rate)
    # a relative thousandth of the tail is kept for the error of the special functions
    assert found.threshold == ranks[tails * 1.001 <= 0.05 / 3][0] - 1
    assert attrs.astuple(found.true_positive_rate) == (1.0, *clopper_pearson(10, 10, 0.05 / 3))


def test_a_few_members_that_stick_out_are_seen_at_low_rates_only(rng):
    """The reason for low rates: an AUC next to one half, and certainty about 3 % of the members."""
    scores, members = gaussian_scores(rng, 5_000, 5_000, 0.0)
    assert not audit_of(scores, members).is_seen
    scores[:150] = 50.0
    found = audit_membership(scores, members, attack="given", confidence=0.95)
    assert found.roc_auc.low < 0.5
    assert [rate.true_positive_rate.low > 0.02 for rate in found.low_rates] == [True, True]
    assert found.is_seen


def test_needed_non_members_are_enough_and_one_fewer_is_not():
    share = (1 - 0.95) / 5
    needed = non_members_needed(0.001, share)
    assert 0.999**needed <= share < 0.999 ** (needed - 2)
    members = np.arange(needed + 5) < 5
    audit_of(np.arange(needed + 5.0), members, rates=(0.001, 0.01))
    with pytest.raises(ArgumentError, match=f"{needed - 1} .*{needed}"):
        audit_of(np.arange(needed + 4.0), members[:-1], rates=(0.001, 0.01))
    with pytest.raises(ArgumentError, match="1e-17"):
        audit_of(np.arange(needed + 4.0), members[:-1], rates=(1e-17,))


def test_text_and_json(rng):
    found = audit_of(*gaussian_scores(rng, 500, 1_500, 1.0))
    document = json.loads(json.dumps(found.to_json()))
    assert document["roc_auc"] == attrs.asdict(found.roc_auc)
    assert document["low_rates"][0]["true_positive_rate"]["low"] == pytest.approx(
        found.low_rates[0].true_positive_rate.low
    )
    assert all(part in str(found) for part in ("given", "500", "1500", "0.01"))


@given(npst.arrays(np.float64, (5, 3), elements=st.floats(-5, 5)), st.integers(0, 2))
def test_margins_are_log_odds(logits, label):
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    odds = np.log(shares[:, label] / (1 - shares[:, label]))
    np.testing.assert_allclose(margin_scores(logits, [label] * 5), odds, atol=1e-9)


def test_loss_scores_are_negative_losses():
    assert loss_scores([0.5, 2.0]).tolist() == [-0.5, -2.0]


N_MODELS = 12


def drawn(rng, n_models=N_MODELS, n_records=7):
    """Scores that are higher with the record, and every record in half of the models."""
    half = np.arange(n_models) < n_models // 2
    members = np.array([rng.permutation(half) for _ in range(n_records)]).T
    scores = rng.normal(size=(n_models, n_records)) + 2.0 * members
    return ShadowModels(scores=scores, members=members)


def parts(shadows, record):
    column, flags = shadows.scores[:, record], shadows.members[:, record]
    return column[flags], column[~flags]


@pytest.mark.parametrize("spread", ["pooled", "per_record"])
def test_scores_are_log_likelihood_ratios(rng, spread):
    """The pooled variance is the mean of the records' variances."""
    shadows, values = drawn(rng), rng.normal(size=7)
    stds = np.sqrt([[part.var(ddof=1) for part in parts(shadows, r)] for r in range(7)])
    if spread == "pooled":
        stds = np.tile(np.sqrt((stds**2).mean(axis=0)), (7, 1))
    online = likelihood_ratio_scores(values, shadows, spread=spread)
    offline = offline_likelihood_ratio_scores(values, shadows, spread=spread)
    for record, (value, (std_in, std_out)) in enumerate(zip(values, stds, strict=True)):
        inside, outside = parts(shadows, record)
        ratio = norm.logpdf(value, inside.mean(), std_in)
        ratio -= norm.logpdf(value, outside.mean(), std_out)
        assert online[record] == pytest.approx(ratio, rel=1e-10)
        assert offline[record] == pytest.approx((value - outside.mean()) / std_out)


def test_a_record_of_no_spread_of_its_own_keeps_a_finite_score(rng):
    scores = rng.normal(size=(6, 2))
    scores[:, 0] = 1.0
    members = np.array([[True, True], [False, False]] * 3)
    shadows = ShadowModels(scores=scores, members=members)
    found = likelihood_ratio_scores([1.0, 0.0], shadows, spread="per_record")
    assert np.isfinite(found).all()
    assert np.isfinite(offline_likelihood_ratio_scores([5.0, 0.0], shadows)).all()
    outside = ShadowModels(scores=scores, members=np.zeros((6, 2), dtype=bool))
    assert np.isfinite(offline_likelihood_ratio_scores([5.0, 0.0], outside)).all()


@pytest.fixture(scope="module")
def overfitted():
    """Margins of 400 records under 16 real models of 60 numbers, each record in half of them."""
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(400, 60))
    labels = (inputs[:, :5].sum(axis=1) + 2.0 * rng.normal(size=400) > 0).astype(int)
    members = np.array([rng.permutation(16) < 8 for _ in range(400)]).T
    scores = []
    for chosen in members:
        model = LogisticRegression(C=0.1).fit(inputs[chosen], labels[chosen])
        logits = model.decision_function(inputs)
        scores.append(margin_scores(np.stack([-logits / 2, logits / 2], axis=1), labels))
    return np.array(scores), members


def attacked(overfitted, target):
    """The scores of one model, its members, and the others as its shadow models."""
    scores, members = overfitted
    others = np.arange(len(scores)) != target
    return (
        scores[target],
        members[target],
        ShadowModels(scores=scores[others], members=members[others]),
    )


def test_real_models_give_their_members_away_and_shadows_see_more(overfitted):
    """On the mean over the attacked models: one of them alone is too noisy to compare attacks."""
    found = []
    for target in range(16):
        scores, members, shadows = attacked(overfitted, target)
        attacks = (
            loss_scores(np.logaddexp(0.0, -scores)),
            likelihood_ratio_scores(scores, shadows),
            offline_likelihood_ratio_scores(scores, shadows),
        )
        found.append([roc_auc(attack, members) for attack in attacks])
    by_loss, online, offline = np.mean(found, axis=0)
    assert by_loss > 0.55
    assert min(online, offline) > by_loss + 0.02


@pytest.mark.parametrize("target", [0, 1])
def test_the_audit_sees_real_members_and_no_shuffled_ones(overfitted, target, rng):
    scores, members, shadows = attacked(overfitted, target)
    ratios = likelihood_ratio_scores(scores, shadows)
    settings = {"attack": "likelihood ratio", "confidence": 0.95, "false_positive_rates": (0.1,)}
    assert audit_membership(ratios, members, **settings).is_seen
    assert not audit_membership(ratios, rng.permutation(members), **settings).is_seen
