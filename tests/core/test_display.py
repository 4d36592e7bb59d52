# SPDX-License-Identifier: Apache-2.0
"""Rounding beside noise, escaped HTML, and frames without pandas."""

import builtins
import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice._core.display import data_frame, html_of, rounded
from pufferslice.errors import MissingExtraError

TAGS = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


@pytest.mark.parametrize(
    ("value", "noise_std", "text"),
    [
        (0.0, None, "0"),
        (40.0, None, "40"),
        (0.223743, None, "0.224"),
        (-1234.5, None, "-1,230"),
        (1.2e-9, None, "1.2e-09"),
        (3.5e18, None, "3.5e+18"),
        (float("inf"), None, "inf"),
        (38.29281, 0.2237, "38.293"),
        (1_234_567.891, 320.0, "1,234,568"),
        (1_234_567.891, 32_000.0, "1,234,600"),
        (38.29281, 1e-12, "38.3"),
        (40.0, 0.2237, "40.000"),
        (7.0, 0.0, "7"),
    ],
)
def test_rounded_keeps_what_the_noise_leaves(value, noise_std, text):
    assert rounded(value, noise_std) == text


@given(st.floats(1e-6, 1e12), st.sampled_from([-1, 1]))
def test_three_digits_are_off_by_half_a_percent_at_most(size, sign):
    shown = float(rounded(sign * size).replace(",", ""))
    assert abs(shown - sign * size) <= 0.00501 * size


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, attrs))


@given(st.text(), st.text(), st.text(max_size=20))
def test_no_text_becomes_a_tag(sentence, label, details):
    page = html_of([sentence], [{"statistic": label, "noise_std": 1.5}], details, internal=True)
    parser = Tags()
    parser.feed(page)
    assert {tag for tag, _ in parser.found} <= TAGS | {"pre"}
    assert not any(attrs for _, attrs in parser.found)
    assert page.startswith("<div><p><strong>Internal: do not publish.</strong></p>")


def test_a_table_has_a_column_for_each_key():
    rows = [
        {"statistic": "<b>a</b>", "is_useful": True, "guess": None, "noise_std": 0.123456, "n": 3},
        {"statistic": "b", "is_useful": False, "guess": 0.5, "noise_std": 2.0, "n": 4},
    ]
    page = html_of([], rows, "a < b", internal=False)
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    assert cells == ["<b>a</b>", "yes", "", "0.123", "3", "b", "no", "0.5", "2", "4"]
    assert re.findall(r"<th>(.*?)</th>", page) == [
        "statistic",
        "is useful",
        "guess",
        "noise std",
        "n",
    ]
    assert "<pre>a &lt; b</pre>" in page
    assert "Internal" not in page


def test_a_frame_without_pandas_names_the_way_out(monkeypatch):
    real = builtins.__import__

    def without_pandas(name, *args, **kwargs):
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtraError, match="to_pandas needs pandas; install it with: pip"):
        data_frame([{"a": 1}])
