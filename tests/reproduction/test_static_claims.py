# SPDX-License-Identifier: Apache-2.0
"""The claims of the static experiments hold on curves that bear them out, and fail on others."""

import attrs
import numpy as np
import pytest

from reproduction.panels import Curve
from reproduction.static import (
    count_claim,
    perfect_inference_claims,
    share_claims,
    tight_claim,
    tradeoff_claims,
)

EPSILONS = np.array([0.05, 1.0, 10.0, 60.0])
VARIANCES = {
    ("average", "tight"): 1.0,
    ("average", "closed_form"): 1.5,
    ("joint", "tight"): 4.0,
    ("joint", "closed_form"): 6.0,
}
ACCURACIES = {
    ("average", "tight"): [0.53, 0.8, 0.95, 0.999],
    ("average", "closed_form"): [0.52, 0.77, 0.93, 0.998],
    ("joint", "tight"): [0.51, 0.6, 0.7, 0.97],
    ("joint", "closed_form"): [0.505, 0.57, 0.67, 0.96],
}


def made(**changes):
    """Two panels that behave as the paper says; `changes` replace fields of single curves."""
    curves = []
    for query in ("summary", "linear_svm"):
        for (notion, rule), variance in VARIANCES.items():
            stds = np.sqrt(variance / EPSILONS)
            named = changes.get(f"{query}_{notion}_{rule}", {})
            curve = Curve(
                prior="balanced",
                query=query,
                notion=notion,
                rule=rule,
                epsilons=EPSILONS,
                noise_stds=stds,
                squared_errors=9 * stds**2,
                accuracies=np.array(ACCURACIES[notion, rule]),
                prior_accuracy=0.5,
                n_outputs=10_000,
                dim=9,
            )
            curves.append(attrs.evolve(curve, **named))
    return curves


def all_claims(curves):
    """Of the paper's rule, of ours, and how they compare."""
    for rule in ("closed_form", "tight"):
        yield from tradeoff_claims(curves, rule, "subsec:experiment_GSWM")
    yield tight_claim(curves)


def failed(**changes):
    return [claim.statement for claim in all_claims(made(**changes)) if not claim.held]


def test_all_hold_where_all_is_well():
    claims = list(all_claims(made()))
    assert len(claims) == 17
    assert all(claim.held for claim in claims)
    assert len({claim.statement for claim in claims}) == 17
    assert all(claim.found for claim in claims)
    for rule in ("closed_form", "tight"):
        assert all(claim.held for claim in perfect_inference_claims(made(), rule))


def test_claims_of_one_rule_do_not_look_at_the_other():
    flat = {"accuracies": np.full(4, 0.9), "squared_errors": np.full(4, 9.0)}
    curves = made(**{f"summary_{notion}_tight": flat for notion in ("average", "joint")})
    assert all(claim.held for claim in tradeoff_claims(curves, "closed_form", "x"))
    assert not all(claim.held for claim in tradeoff_claims(curves, "tight", "x"))


def stds(variance, *factors):
    return np.sqrt(variance / EPSILONS) * np.array(factors)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"summary_average_tight": {"noise_stds": stds(1, 1, 1, 1, 3)}},
            ["noise falls", "Joint needs more noise", "tight rule never needs"],
        ),
        (
            {"summary_average_tight": {"squared_errors": np.array([180, 9, 9.6, 0.15])}},
            ["MSE never rises", "MSE is not lower"],
        ),
        (
            {"summary_average_closed_form": {"squared_errors": np.array([270, 13.5, 8, 7.0])}},
            ["MSE falls towards zero", "MSE is not lower"],
        ),
        (
            {"linear_svm_joint_tight": {"accuracies": np.array([0.51, 0.62, 0.58, 0.97])}},
            ["attack accuracy rises"],
        ),
        (
            {"linear_svm_joint_tight": {"accuracies": np.array([0.51, 0.6, 0.7, 0.505])}},
            ["attack accuracy rises", "is widest at a moderate budget"],
        ),
        (
            {"summary_average_tight": {"accuracies": np.array([0.59, 0.8, 0.95, 0.999])}},
            ["Ave, tight rule: at the smallest budget"],
        ),
        (
            {
                f"{query}_joint_closed_form": {"accuracies": np.array([0.56, 0.57, 0.67, 0.96])}
                for query in ("summary", "linear_svm")
            },
            ["Joint, the paper's closed form: at the smallest", "Joint is attacked less"],
        ),
        (
            {"summary_joint_tight": {"noise_stds": stds(4, 0.4, 1, 1, 1)}},
            ["Joint needs more noise"],
        ),
        (
            {"summary_joint_closed_form": {"accuracies": np.array([0.505, 0.81, 0.9, 0.96])}},
            ["Joint is attacked less"],
        ),
        (
            {"summary_joint_tight": {"accuracies": np.array([0.53, 0.801, 0.951, 0.999])}},
            ["Joint is attacked less"],
        ),
        (
            {
                f"{query}_joint_tight": {"accuracies": np.array([0.51, 0.7, 0.8, 0.81])}
                for query in ("summary", "linear_svm")
            },
            ["is widest at a moderate budget"],
        ),
        (
            {"summary_joint_closed_form": {"noise_stds": stds(4, 1, 1, 0.999, 1)}},
            ["tight rule never needs more"],
        ),
    ],
)
def test_each_fails_where_it_is_not_so(changes, expected):
    statements = failed(**changes)
    assert len(statements) >= 1
    for part in expected:
        assert any(part in statement for statement in statements), statements
    assert len(statements) <= len(expected)


def test_what_chance_does_is_forgiven():
    """With 10,000 outputs the standard error of an accuracy of 0.6 is 0.0049."""
    wobbling = {"summary_joint_tight": {"accuracies": np.array([0.52, 0.61, 0.60, 0.97])}}
    assert failed(**wobbling) == []
    few = {"summary_joint_tight": wobbling["summary_joint_tight"] | {"n_outputs": 100}}
    assert failed(**few) == []
    many = {"summary_joint_tight": wobbling["summary_joint_tight"] | {"n_outputs": 10**6}}
    assert len(failed(**many)) == 1
    # The relative standard error of a squared error is sqrt(2 / (9 * 10,000)) = 0.47 %.
    errors = 9 * stds(4, 1, 1, 1, 1) ** 2
    assert failed(summary_joint_tight={"squared_errors": errors * [1, 1.004, 0.995, 1]}) == []


def test_rounding_of_the_search_is_forgiven():
    almost = stds(1.5, *[1 - 1e-12] * 4)
    both = {"summary_average_tight": {"noise_stds": stds(1.5, 1, 1, 1, 1)}}
    assert failed(**both, summary_average_closed_form={"noise_stds": almost}) == []


def test_numbers_are_told():
    claims = list(all_claims(made()))
    found = {claim.statement: claim.found for claim in claims}
    start = next(text for s, text in found.items() if s.startswith("Ave, tight rule: at the"))
    assert start == "advantage at epsilon 0.05: balanced prior +0.030"
    ratio = next(text for s, text in found.items() if s.startswith("the tight rule never"))
    assert ratio.endswith("from 1.500 to 1.500")


def test_perfect_inference_may_not_be_reached():
    low = {"accuracies": np.array([0.51, 0.6, 0.7, 0.94])}
    claims = list(perfect_inference_claims(made(summary_joint_tight=low), "tight"))
    assert [claim.held for claim in claims] == [True, False]
    assert "lowest 0.940 (balanced summary)" in claims[1].found


def test_shares_are_compared_as_printed():
    claims = list(
        share_claims({"natural": 0.7, "balanced": 0.5}, {"natural": 0.68, "balanced": 0.5})
    )
    assert [claim.held for claim in claims] == [True, True]
    (claim,) = share_claims({"natural": 0.6}, {"natural": 208 / 395})
    assert not claim.held
    assert claim.found == "its share is 0.5266"
    (claim,) = share_claims({"natural": 0.86}, {"natural": 0.87})
    assert not claim.held


def test_counts():
    assert count_claim(30_162, 30_162).held
    assert not count_claim(303, 297).held
    assert count_claim(303, 297).found == "297 records"
