# SPDX-License-Identifier: Apache-2.0
"""Pictures: points where they belong, hostile names as text, a style that colours nothing else."""

import os
import re
import stat
import sys
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice._core.plot import Bar, Chart, Plot, Row, row_chart, scale

HOSTILE = ["<script>alert(1)</script>", 'a"><img src=x>', "\u202egnp.exe", "a\x00b\nc", "]]>&amp;",
           "名" * 300, "שלום (x)", "w" * 500, "", "\u2069\u2069out"]  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def parsed(text):
    return ET.fromstring(text)  # noqa: S314 - made by our own code


def picture(*rows, **changed):
    chart = row_chart("chart", rows)
    plot = {"title": "A title", "charts": (chart,), "is_internal": False}
    return Plot(**plot | changed)


def texts(plot):
    return ["".join(node.itertext()) for node in parsed(plot._repr_svg_()).iter(f"{SVG}text")]


def test_an_interval_lies_on_its_own_scale():
    row = Row(name="mean", numbers="30 ± 10", ends=(0.0, 40.0), interval=(20.0, 30.0, 40.0))
    root = parsed(row_chart("chart", [row]).svg)
    (dot,) = root.iter("circle")
    whisker = next(root.iter("path")).get("d")
    left, right = re.fullmatch(r"M([\d.]+) \S+ -5H([\d.]+)m0 -5v10", whisker).groups()
    # 16 pixels of edge, 488 of scale.
    assert float(dot.get("cx")) == 16 + 488 * 0.75
    assert (float(left), float(right)) == (16 + 488 * 0.5, 16 + 488)


def test_bars_are_as_long_as_their_numbers():
    row = Row(name="n", numbers="x", ends=(0.0, 2.0), bound=1.5,
              bars=(Bar("noise", 0.0, 1.0), Bar("beside", 0.0, 2.0)))  # fmt: skip
    root = parsed(row_chart("chart", [row]).svg)
    first, second = root.iter("rect")
    assert [float(bar.get("width")) for bar in (first, second)] == [244, 488]
    assert float(first.get("y")) < float(second.get("y"))
    (bound,) = (line for line in root.iter("line") if line.get("class") == "bound")
    assert float(bound.get("x1")) == 16 + 488 * 0.75


def test_bars_that_follow_each_other_share_a_line():
    bars = (Bar("noise", 0.0, 25.0), Bar("beside", 25.0, 100.0))
    row = Row(name="n", numbers="x", ends=(0.0, 100.0), bars=bars)
    first, second = parsed(row_chart("chart", [row]).svg).iter("rect")
    assert first.get("y") == second.get("y")
    assert float(second.get("x")) == float(first.get("x")) + float(first.get("width"))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3))
def test_a_scale_holds_zero_and_its_values(values):
    low, high = scale(*values)
    assert low < high
    if max(map(abs, values)) > 1e-280:
        assert low <= min(0.0, *values) <= max(0.0, *values) <= high
    # At most a step of a scale with at least three is left empty.
    assert high - low < 2.01 * max(map(abs, [*values, 0.5])) * 2 or high == sys.float_info.max
    row = Row(name="n", numbers="x", ends=(low, high), interval=(values[0],) * 3)
    chart = row_chart("chart", [row]).svg
    assert not re.search("nan|inf", chart)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_and_stay_in_their_line(name):
    plot = picture(
        Row(name=name, numbers=name[:40], ends=(0.0, 1.0)), title=name, notes=(name,),
        keys=(("noise", name),),
    )  # fmt: skip
    svg = plot._repr_svg_()
    assert {node.tag.removeprefix(SVG) for node in parsed(svg).iter()} <= {
        "svg", "style", "rect", "text", "g", "title", "line",
    }  # fmt: skip
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e]", svg)
    (label,) = (n for n in parsed(svg).iter(f"{SVG}text") if n.get("class") == "label")
    assert label.text.startswith("\u2068")
    assert label.text.endswith("\u2069")
    assert len(label.text) + 0.6 * label.text.count("w") + label.text.count("名") <= 60


def test_a_long_name_keeps_both_of_its_ends():
    name = "count(race = Amer-Indian-Eskimo, " + "x" * 60 + " income = <=50K)"
    svg = picture(Row(name=name, numbers="1", ends=(0.0, 1.0)))._repr_svg_()
    (label,) = (n.text for n in parsed(svg).iter(f"{SVG}text") if n.get("class") == "label")
    assert label.startswith("\u2068count(race = Amer-Indian")
    assert label.endswith("income = <=50K)\u2069")
    (title,) = parsed(svg).iter(f"{SVG}title")
    assert title.text == f"{name}: 1"


def test_what_is_left_out_is_said():
    rows = [Row(name=f"n{i}", numbers="1") for i in range(120)]
    shown = texts(picture(*rows))
    assert "and 20 more" in shown
    assert "\u2068n99\u2069" in shown
    assert "\u2068n100\u2069" not in shown


def test_its_style_colours_nothing_else_and_serves_both_schemes():
    """A notebook may put the picture into its own page."""
    svg = picture(Row(name="n", numbers="1"))._repr_svg_()
    style = parsed(svg).find(f"{SVG}style").text
    light, dark = style.split("@media(prefers-color-scheme:dark){")
    for rules in (light, dark.removesuffix("}")):
        for selectors in re.findall(r"([^{}]+)\{", rules):
            assert all(one.startswith(".pufferslice ") for one in selectors.split(","))
    # Whatever has a colour in the light has one in the dark.
    coloured = [rule.partition("{") for rule in light.split("}") if "#" in rule]
    for selectors, _, _ in coloured:
        assert all(one in dark for one in selectors.split(",")), selectors
    assert not re.search(r"url\(|@import|http(?!://www\.w3\.org/2000/svg)|<script|href", svg)


def test_a_file_is_open_or_for_its_owner_alone(tmp_path):
    row = Row(name="n", numbers="1")
    for is_internal, mode in ((False, 0o644), (True, 0o600)):
        path = tmp_path / f"{is_internal}.svg"
        plot = picture(row, is_internal=is_internal)
        plot.save(path)
        assert path.read_text() == plot._repr_svg_()
        assert ("Internal: do not publish." in texts(plot)) == is_internal
        if os.name == "posix":
            assert stat.S_IMODE(path.stat().st_mode) == mode & ~_umask()
    assert repr(plot) == "Plot('A title')"


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_charts_stand_beside_each_other():
    empty = Chart('<svg viewBox="0 0 440 320"/>', 440, 320)
    root = parsed(picture(charts=(empty, empty))._repr_svg_())
    holders = [node for node in root if node.tag == f"{SVG}svg"]
    assert [int(node.get("x")) for node in holders] == [0, 440]
    assert root.get("width") == "880"
    assert root.get("role") == "img"
    assert root.get("aria-label") == "A title"
