# SPDX-License-Identifier: Apache-2.0
"""The claim as a value."""

import math

import attrs
import pytest

from pufferslice.calibration.guarantee import (
    NOTIONS,
    RELEASE_NOTIONS,
    ApproximateGuarantee,
    Guarantee,
    claim_of,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import SLICED_NOTIONS

AXES = FiniteProfile.axes(dim=1)


@pytest.mark.parametrize("notion", NOTIONS)
def test_named_constructors(notion):
    claim = getattr(Guarantee, notion)(order=4, epsilon=1)
    assert claim == Guarantee(notion=notion, order=4.0, epsilon=1.0)
    assert (claim.notion, claim.order, claim.epsilon) == (notion, 4.0, 1.0)
    assert isinstance(claim.order, float)
    assert claim.is_sliced == (notion in SLICED_NOTIONS)


def test_prose():
    assert str(Guarantee.average(order=2, epsilon=0.5)) == "(2, 0.5)-Average-SRPP"
    assert str(Guarantee.joint(order=2.5, epsilon=1)) == "(2.5, 1)-Joint-SRPP"
    assert str(Guarantee.unsliced(order=16, epsilon=8)) == "(16, 8)-RPP"
    assert "on average over batch draws" in str(Guarantee.average_over_batches(order=2, epsilon=1))


def test_a_release_cannot_claim_an_average_over_batches():
    assert set(NOTIONS) - set(RELEASE_NOTIONS) == {"average_over_batches"}
    assert set(SLICED_NOTIONS) < set(RELEASE_NOTIONS)


def test_frozen_and_without_defaults():
    claim = Guarantee.joint(order=4, epsilon=1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        claim.epsilon = 2.0
    with pytest.raises(TypeError):
        Guarantee.joint(order=4)
    with pytest.raises(TypeError):
        Guarantee(order=4, epsilon=1)


@pytest.mark.parametrize(
    ("name", "values"),
    [("order", [1, 0.5, -3, math.nan, math.inf]), ("epsilon", [0, -1, math.nan, math.inf]),
     ("notion", ["median", "Joint", ""])],
)  # fmt: skip
def test_arguments(name, values):
    for value in values:
        with pytest.raises(ArgumentError, match=f"{name} must be"):
            Guarantee(**{"notion": "joint", "order": 2, "epsilon": 1} | {name: value})
    with pytest.raises(ArgumentError, match="profile"):
        Guarantee(notion="unsliced", order=2, epsilon=1, profile=AXES)


class TestApproximate:
    def test_prose_says_sliced(self):
        claim = ApproximateGuarantee.joint(epsilon=1.0, delta=1e-5)
        assert str(claim) == "(1, 1e-05)-Joint-SPP, sliced"
        assert claim.is_sliced
        average = ApproximateGuarantee.average(epsilon=0.5, delta=0.01)
        assert str(average) == "(0.5, 0.01)-Average-SPP, sliced"

    @pytest.mark.parametrize(
        "values",
        [
            {"notion": "guess", "epsilon": 1.0, "delta": 0.1},
            {"notion": "unsliced", "epsilon": 1.0, "delta": 0.1, "profile": AXES},
            {"notion": "joint", "epsilon": -1e-9, "delta": 0.1},
            {"notion": "joint", "epsilon": 1.0, "delta": 0.0},
            {"notion": "joint", "epsilon": 1.0, "delta": 1.0},
        ],
    )
    def test_refusals(self, values):
        with pytest.raises(ArgumentError):
            ApproximateGuarantee(**values)

    def test_claims_from_json(self):
        claims = (
            Guarantee.joint(order=4, epsilon=1),
            ApproximateGuarantee.joint(epsilon=1, delta=0.1),
            Guarantee.epsilon_delta(1, 0.1),
            Guarantee.guess(at_most=0.6),
        )
        for claim in claims:
            assert claim_of(claim.to_json()) == claim
            assert claim.is_sliced == (claim.notion == "joint")
            assert claim.along(AXES).profile is (AXES if claim.is_sliced else None)


class TestGuess:
    @pytest.mark.parametrize("at_most", [0.5, 1.0, 0.2, math.nan])
    def test_a_guess_is_between_a_coin_and_certainty(self, at_most):
        with pytest.raises(ArgumentError, match="at_most"):
            Guarantee.guess(at_most=at_most)

    def test_a_share_is_printed_rounded_up(self):
        assert "60.1" in str(Guarantee.guess(at_most=0.6001))
        assert Guarantee.guess(at_most=0.75).bound == 0.75
