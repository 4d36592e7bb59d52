# SPDX-License-Identifier: Apache-2.0
"""Claims as values: their constructors, words and JSON."""

import attrs
import pytest

from pufferslice.claims import (
    EpsilonDelta,
    Guarantee,
    Guess,
    Information,
    Method,
    OverBatches,
    Renyi,
    Sliced,
    claim_of,
)
from pufferslice.claims.guarantee import (
    CLAIMS,
    RELEASE_CLAIMS,
    RELEASE_NOTIONS,
    asked,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.renyi import SLICED_NOTIONS

AXES = FiniteProfile.axes(dim=1)
RENYI = Renyi(order=4.0, epsilon=1.0)
HOCKEY_STICK = EpsilonDelta(epsilon=1.0, delta=0.1)

EVERY = (
    (Guarantee.guess(at_most=0.6), Guess(at_most=0.6)),
    (Guarantee.information(bits=0.25), Information(bits=0.25)),
    (Guarantee.unsliced(order=4, epsilon=1), RENYI),
    (Guarantee.epsilon_delta(1, 0.1), HOCKEY_STICK),
    (Guarantee.average(order=4, epsilon=1), Sliced(claim=RENYI, notion="average")),
    (Guarantee.joint(order=4, epsilon=1), Sliced(claim=RENYI, notion="joint")),
    (Guarantee.average(epsilon=1, delta=0.1), Sliced(claim=HOCKEY_STICK, notion="average")),
    (Guarantee.joint(epsilon=1, delta=0.1), Sliced(claim=HOCKEY_STICK, notion="joint")),
    (Guarantee.average_over_batches(order=4, epsilon=1), OverBatches(order=4.0, epsilon=1.0)),
)

every = pytest.mark.parametrize("claim", [claim for claim, _ in EVERY], ids=str)


def test_named_constructors():
    for claim, value in EVERY:
        assert claim == value
        assert hash(claim) == hash(value)
        assert type(claim.bound) is float
        assert claim.is_sliced == (claim.notion in SLICED_NOTIONS)
    assert len({claim for claim, _ in EVERY}) == len(EVERY)


@every
def test_json_says_it_all(claim):
    assert claim_of(claim.to_json()) == claim


@every
def test_profile_and_method_do_not_make_another_claim(claim):
    method = Method(rule="tight", envelope="transport")
    along = claim.along(AXES).by(method)
    assert along == claim
    assert along.profile is (AXES if claim.is_sliced else None)
    assert along.method is (method if claim.is_sliced else None)
    assert claim.by(None).method is None
    assert str(along) == str(claim)


@every
def test_frozen(claim):
    field = attrs.fields(type(claim))[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(claim, field, 2.0)


def test_without_defaults():
    with pytest.raises(TypeError):
        Guarantee.joint(order=4)
    with pytest.raises(TypeError):
        Guarantee.unsliced(order=4)
    with pytest.raises(TypeError):
        Guarantee.epsilon_delta(1.0)


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Guarantee.average(order=2, epsilon=0.5), "(2, 0.5)-Average-SRPP"),
        (Guarantee.joint(order=2.5, epsilon=1), "(2.5, 1)-Joint-SRPP"),
        (Guarantee.unsliced(order=16, epsilon=8), "(16, 8)-RPP"),
        (Guarantee.epsilon_delta(1.0, 1e-5), "(1, 1e-05)-PP"),
        (Guarantee.joint(epsilon=1.0, delta=1e-5), "(1, 1e-05)-Joint-SPP, sliced"),
        (Guarantee.average(epsilon=0.5, delta=0.01), "(0.5, 0.01)-Average-SPP, sliced"),
    ],
)
def test_symbols(claim, words):
    assert str(claim) == words


def test_words_are_rounded_up():
    assert "60.1" in str(Guarantee.guess(at_most=0.6001))
    assert "0.250001" in str(Guarantee.information(bits=0.2500001))
    assert "on average over batch draws" in str(Guarantee.average_over_batches(order=2, epsilon=1))


def test_a_release_cannot_claim_an_average_over_batches():
    assert set(CLAIMS) - set(RELEASE_CLAIMS) == {OverBatches}
    assert OverBatches.notion not in RELEASE_NOTIONS
    assert set(SLICED_NOTIONS) < set(RELEASE_NOTIONS)


def test_names_are_unique():
    """`claim_of` tells claims of one notion apart by their fields."""
    assert len({claim.kind for claim in (*CLAIMS, Sliced)}) == len(CLAIMS) + 1
    keys = {(c.notion, frozenset(f.name for f in attrs.fields(c))) for c in CLAIMS}
    assert len(keys) == len(CLAIMS)


def test_another_notion_or_order():
    assert asked(RENYI, notion="joint", order=None) == Guarantee.joint(order=4, epsilon=1)
    joint = Guarantee.joint(order=4, epsilon=1)
    assert asked(joint, notion=None, order=2) == Guarantee.joint(order=2, epsilon=1)
    assert asked(joint, notion="unsliced", order=None) == RENYI
    guess = Guarantee.guess(at_most=0.6)
    assert asked(guess, notion=None, order=None) == guess
    assert asked(joint, notion="average", order=None).notion == "average"


def test_another_order():
    assert RENYI.with_order(2.0) == Guarantee.unsliced(order=2, epsilon=1)
    assert Guarantee.joint(order=4, epsilon=1).with_order(2.0).order == 2.0
    with pytest.raises(ArgumentError):
        Guarantee.guess(at_most=0.6).with_order(2.0)


def test_the_reported_order_is_the_claims_own_if_it_has_one():
    assert RENYI.reported_order == Guarantee.joint(order=4, epsilon=1).reported_order == 4.0
    assert Guarantee.guess(at_most=0.6).reported_order == 2.0


def test_hockey_sticks():
    """What says the same as (epsilon, delta)."""
    assert Guarantee.guess(at_most=0.6).hockey_stick == (0.0, pytest.approx(0.2))
    assert HOCKEY_STICK.hockey_stick == (1.0, 0.1)
    assert Guarantee.joint(epsilon=1.0, delta=0.1).hockey_stick == (1.0, 0.1)
    assert RENYI.hockey_stick is None
    assert Guarantee.information(bits=0.25).hockey_stick is None
