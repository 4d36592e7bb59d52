# SPDX-License-Identifier: Apache-2.0
"""A verdict refutes exactly where the lower bound is above the claim, and says what it can see."""

import json

import attrs
import pytest

from pufferslice.audit import Verdict
from pufferslice.errors import ArgumentError

HALF = Verdict(
    claim="(2, 1)-RPP",
    quantity="epsilon",
    claimed=1.0,
    statistic="Rényi divergence of order 2",
    lower_bound=3.2,
    confidence=0.95,
    refutable_below=8.6,
    n_outputs=100_000,
    pair=("a", "b"),
    prior="declared",
    line="axis 0",
)


@pytest.mark.parametrize(
    ("lower_bound", "refutable_below", "outcome"),
    [
        (3.2, 8.6, "refuted"),
        (1.0, 8.6, "not refuted"),
        (0.0, 8.6, "not refuted"),
        (0.0, 1.0, "out of reach"),
        (0.0, 0.0, "out of reach"),
    ],
)
def test_outcome(lower_bound, refutable_below, outcome):
    verdict = attrs.evolve(HALF, lower_bound=lower_bound, refutable_below=refutable_below)
    assert verdict.outcome == outcome
    assert verdict.refuted == (outcome == "refuted")
    assert str(verdict).startswith(outcome.upper())


def test_words_name_claim_pair_line_and_range():
    text = str(HALF)
    for part in ("(2, 1)-RPP", "'a'", "'b'", "axis 0", "declared", "0.95", "100000", "8.6", "3.2"):
        assert part in text


def test_json_holds_everything():
    document = json.loads(json.dumps(HALF.to_json()))
    assert document["refuted"] is True
    assert document["pair"] == ["a", "b"]
    assert set(document) == {*attrs.fields_dict(Verdict), "refuted", "outcome"}


@pytest.mark.parametrize(
    "change",
    [
        {"quantity": "sigma"},
        {"confidence": 1.0},
        {"lower_bound": -0.1},
        {"lower_bound": float("nan")},
        {"claimed": float("inf")},
        {"n_outputs": 0},
    ],
)
def test_bad_numbers_are_refused(change):
    with pytest.raises(ArgumentError, match=next(iter(change))):
        attrs.evolve(HALF, **change)
