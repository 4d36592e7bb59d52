# SPDX-License-Identifier: Apache-2.0
"""What texts for people show of labels and arguments."""

import sys
import unicodedata

import numpy as np
import pandas as pd
import pytest

from pufferslice._core.text import (
    escaped_texts,
    given,
    listed,
    quoted,
    shown,
)
from pufferslice.errors import ArgumentError, StorageError, escaped

HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn")
EVERY = [chr(code) for code in range(sys.maxunicode + 1)]


def test_every_character_that_breaks_turns_or_hides_is_escaped():
    for one in EVERY:
        if unicodedata.category(one) in HIDDEN or len(f"a{one}b".splitlines()) > 1:
            assert escaped(one) == one.encode("unicode_escape").decode()


def test_letters_digits_and_signs_of_all_scripts_stay():
    kept = [one for one in EVERY if unicodedata.category(one)[0] in "LNPS"]
    assert sum(escaped(one) == one for one in kept) > len(kept) - 10
    assert escaped("Zoë, 東京, שלום, 50 % ≤ π") == "Zoë, 東京, שלום, 50 % ≤ π"


@pytest.mark.parametrize("one", ["\u3164", "\u115f", "\u2800", "\ufe0f", "\u034f", "\u00a0"])
def test_what_has_no_outline_is_escaped(one):
    assert escaped(f"a{one}b") == "a" + one.encode("unicode_escape").decode() + "b"


def test_escaping_twice_is_escaping_once():
    text = "a\n\u202eb\\n"
    assert escaped(escaped(text)) == escaped(text) == "a\\n\\u202eb\\n"


@pytest.mark.parametrize("label", ["", " a", "a ", "a  b", "a. b", "a: 0", "a; b", 'a"'])
def test_what_reads_like_a_sentence_is_in_quotes(label):
    assert shown(label).startswith('"')
    assert shown(label).endswith('"')


@pytest.mark.parametrize("label", ["a", "it's", 'say "b"', "both ' and \"", "<=50K", "東京"])
def test_quotes_are_those_of_python(label):
    assert quoted(label) == repr(label)


def test_lists():
    assert listed([]) == ""
    assert listed(["a", "b\n"]) == "a, b\\n"
    assert listed([str(i) for i in range(1_008)]).endswith("7 and 1,000 more")
    assert listed(["a"], quoted) == "'a'"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (1.5, "1.5"),
        ("a\n", "'a\\n'"),
        (("a", 1), "('a', 1)"),
        ([[1]], "a list"),
        (list(range(9)), "a list"),
        ({"a": 1}, "a dict"),
        (np.zeros(2), "a ndarray"),
        (pd.Series(["a"]), "a Series"),
        (object(), "an object"),
    ],
)
def test_arguments(value, text):
    assert given(value) == text


def test_texts_of_a_document():
    assert escaped_texts({"a\n": ["b\n", 1, None, {"c": ("d\n",)}]}) == {
        "a\\n": ["b\\n", 1, None, {"c": ["d\\n"]}]
    }


@pytest.mark.parametrize("error", [ArgumentError("a\nb\u202e"), StorageError(2, "a\nb\u202e")])
def test_an_error_is_one_line(error):
    assert "\n" not in str(error)
    assert "a\\nb\\u202e" in str(error)
