# SPDX-License-Identifier: Apache-2.0
"""What bounds on guessing say, by hand, and that they never round below what they bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.calibration.guessing import right_guesses
from pufferslice.report.guessing import (
    about_release,
    about_training,
    guess_line,
    is_bounded,
    percent,
    right_guesses_of,
)


def test_right_guesses_by_hand():
    """Two secrets: a half, and half the total variation; n secrets: 1/n + (1 - 1/n) t."""
    assert [right_guesses(t) for t in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]
    assert right_guesses_of(0.5, 4) == "62.5\u00a0%"
    assert right_guesses_of(0.5, 2) == percent(100 * right_guesses(0.5)) == "75\u00a0%"
    assert percent(None) == "none"


@pytest.mark.parametrize(("variation", "bounded"), [(0.5, True), (0.997, True), (0.9991, False),
                                                    (1.0, False)])  # fmt: skip
def test_what_is_printed_as_certainty_is_no_bound(variation, bounded):
    assert is_bounded(variation) == bounded
    for sentence in (about_release(variation), about_training(variation)):
        assert ("guesses right at most" in sentence) == bounded
        assert ("No useful bound on guessing" in sentence) == (not bounded)
        assert "100\u00a0%" not in sentence


@given(st.floats(0, 1))
def test_percent_is_never_below_the_bound(variation):
    shown = float(right_guesses_of(variation, 2).removesuffix("\u00a0%"))
    right = 100 * right_guesses(variation)
    assert right - 1e-9 <= shown <= right + 0.1 + 1e-9


def test_the_sentence_says_for_whom_it_holds():
    sentence = about_release(0.5)
    for condition in ("one of these priors", "two protected values", "both equally likely",
                      "only this release"):  # fmt: skip
        assert condition in sentence


def test_the_line_has_a_point_per_epsilon():
    line = guess_line([0.5, 1.0], [0.0, 1.0])
    assert line.points == [(0.5, 50.0), (1.0, 100.0)]
