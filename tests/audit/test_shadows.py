# SPDX-License-Identifier: Apache-2.0
"""The likelihood-ratio attack: oracles, real models that overfit, and shadow models that lack."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from pufferslice.audit.membership import (
    ShadowModels,
    audit_membership,
    likelihood_ratio_scores,
    loss_scores,
    margin_scores,
    offline_likelihood_ratio_scores,
    roc_auc,
)
from pufferslice.errors import ArgumentError

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


def test_online_scores_are_log_likelihood_ratios(rng):
    shadows = drawn(rng)
    attacked = rng.normal(size=7)
    found = likelihood_ratio_scores(attacked, shadows, spread="per_record")
    for record in range(7):
        inside, outside = parts(shadows, record)
        expected = norm.logpdf(attacked[record], inside.mean(), inside.std(ddof=1))
        expected -= norm.logpdf(attacked[record], outside.mean(), outside.std(ddof=1))
        assert found[record] == pytest.approx(expected, rel=1e-10)


def test_pooled_spread_is_the_mean_of_the_variances(rng):
    shadows = drawn(rng)
    attacked = rng.normal(size=7)
    spreads = [
        np.sqrt(np.mean([parts(shadows, r)[side].var(ddof=1) for r in range(7)])) for side in (0, 1)
    ]
    for record in range(7):
        inside, outside = parts(shadows, record)
        online = norm.logpdf(attacked[record], inside.mean(), spreads[0])
        online -= norm.logpdf(attacked[record], outside.mean(), spreads[1])
        offline = (attacked[record] - outside.mean()) / spreads[1]
        assert likelihood_ratio_scores(attacked, shadows)[record] == pytest.approx(online)
        assert offline_likelihood_ratio_scores(attacked, shadows)[record] == pytest.approx(offline)


def test_offline_scores_rank_as_the_tail_without_the_record(rng):
    shadows = drawn(rng)
    attacked = rng.normal(size=7)
    found = offline_likelihood_ratio_scores(attacked, shadows, spread="per_record")
    for record in range(7):
        _, outside = parts(shadows, record)
        tail = norm.cdf(attacked[record], outside.mean(), outside.std(ddof=1))
        assert norm.cdf(found[record]) == pytest.approx(tail)


def test_offline_needs_no_model_with_the_record(rng):
    shadows = ShadowModels(scores=rng.normal(size=(4, 3)), members=np.zeros((4, 3), dtype=bool))
    assert np.isfinite(offline_likelihood_ratio_scores(np.zeros(3), shadows)).all()
    with pytest.raises(ArgumentError, match=r"3 of 3 records.*trained with.*or use offline"):
        likelihood_ratio_scores(np.zeros(3), shadows)


def test_a_record_of_no_spread_of_its_own_keeps_a_finite_score(rng):
    scores = rng.normal(size=(6, 2))
    scores[:, 0] = 1.0
    members = np.array([[True, True], [False, False]] * 3)
    shadows = ShadowModels(scores=scores, members=members)
    found = likelihood_ratio_scores([1.0, 0.0], shadows, spread="per_record")
    assert np.isfinite(found).all()
    assert np.isfinite(offline_likelihood_ratio_scores([5.0, 0.0], shadows)).all()


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


@pytest.mark.parametrize("target", [0, 1, 2])
def test_the_audit_sees_real_members_and_no_shuffled_ones(overfitted, target, rng):
    scores, members, shadows = attacked(overfitted, target)
    ratios = likelihood_ratio_scores(scores, shadows)
    said = {"attack": "likelihood ratio", "confidence": 0.95, "false_positive_rates": (0.1,)}
    assert audit_membership(ratios, members, **said).is_seen
    assert not audit_membership(ratios, rng.permutation(members), **said).is_seen


@pytest.mark.parametrize(
    ("scores", "members", "message"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3), bool), "shadow models are missing"),
        (np.zeros(3), np.zeros(3, bool), "shadow models are missing"),
        ([[1.0, np.nan]], [[True, False]], "shadow_scores must be finite; 1 of 2"),
        ([[1.0, 2.0]], [[True]], "members must have shape"),
        ([[1.0, 2.0]], [[0.5, 1.0]], "True or False"),
    ],
)
def test_bad_shadows_are_refused(scores, members, message):
    with pytest.raises(ArgumentError, match=message):
        ShadowModels(scores=scores, members=members)


def test_shadows_that_do_not_fit_the_attacked_scores_are_refused(rng):
    shadows = drawn(rng)
    for attack in (likelihood_ratio_scores, offline_likelihood_ratio_scores):
        with pytest.raises(ArgumentError, match="each of the 7 records"):
            attack(np.zeros(6), shadows)
        with pytest.raises(ArgumentError, match="scores must be finite"):
            attack(np.full(7, np.nan), shadows)
        with pytest.raises(ArgumentError, match="spread must be one of pooled, per_record"):
            attack(np.zeros(7), shadows, spread="global")
        with pytest.raises(ArgumentError, match="shadow models are missing"):
            attack(np.zeros(7), None)


def test_too_few_without_the_record_are_counted(rng):
    members = np.ones((4, 3), dtype=bool)
    members[:2, 0] = False
    shadows = ShadowModels(scores=rng.normal(size=(4, 3)), members=members)
    with pytest.raises(ArgumentError, match=r"2 of 3 records have fewer than 2 models .*without"):
        offline_likelihood_ratio_scores(np.zeros(3), shadows)


def test_copies_of_one_model_are_refused():
    members = np.array([[True, False], [False, True]] * 2)
    shadows = ShadowModels(scores=np.tile([1.0, 2.0], (4, 1)), members=members)
    with pytest.raises(ArgumentError, match="copies of one model"):
        likelihood_ratio_scores([1.0, 2.0], shadows)


def test_repr_shows_no_scores(rng):
    assert repr(drawn(rng)) == "ShadowModels(n_models=12, n_records=7)"
