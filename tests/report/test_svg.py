# SPDX-License-Identifier: Apache-2.0
"""Charts are well formed, escaped, carry no style, and put points where they belong."""

import math
from xml.etree import ElementTree as ET

import pytest

from pufferslice.report.svg import Axes, Ring, Series, line_chart, marks, polar_chart

AXES = Axes(x_label="ε", y_label="noise", log_x=True, log_y=True)
LINE = Series(name="one", look="first", xs=(0.1, 1.0, 10.0), ys=(100.0, None, 1.0))


def parsed(chart):
    return ET.fromstring(chart)  # noqa: S314 - made by our own code


def numbers(chart, tag, *names):
    return [tuple(float(one.get(name)) for name in names) for one in parsed(chart).iter(tag)]


def test_titles_and_labels_are_escaped():
    axes = Axes(x_label="<b>", y_label="a & b")
    chart = line_chart('<script>"', [LINE], axes)
    assert "<script" not in chart
    assert "<b>" not in chart
    root = parsed(chart)
    assert root.get("aria-label") == '<script>"'
    assert root.get("role") == "img"
    assert {text.text for text in root.iter("text")} >= {"<b>", "a & b"}


@pytest.mark.parametrize(
    "chart",
    [line_chart("t", [LINE], AXES, marker="m"), polar_chart("t", [0.0, 1.0], [1.0, 2.0], [])],
)
def test_no_style_stands_in_a_chart(chart):
    """A strict content policy would refuse it, and one picture serves both themes."""
    for element in parsed(chart).iter():
        assert not {"style", "fill", "stroke", "onclick", "href"} & set(element.keys())


def test_points_without_a_value_are_left_out():
    points = numbers(line_chart("t", [LINE], AXES), "circle", "cx", "cy")
    assert len(points) == 2
    assert points[0][0] < points[1][0]
    assert points[0][1] < points[1][1], "a larger noise stands higher, which is a smaller y"


def test_logarithmic_axes_put_equal_ratios_equally_far():
    line = Series(name="one", look="first", xs=(0.1, 1.0, 10.0), ys=(1.0, 10.0, 100.0))
    (x1, y1), (x2, y2), (x3, y3) = numbers(line_chart("t", [line], AXES), "circle", "cx", "cy")
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.02)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.02)


def test_markers_stand_on_the_points():
    drawn = numbers(line_chart("t", [LINE], AXES), "circle", "cx", "cy")
    found = marks([LINE], AXES)
    assert [(mark.x, mark.y) for mark in found if mark.y is not None] == drawn
    assert found[1].y is None


def test_a_range_of_its_own():
    axes = Axes(x_label="x", y_label="y", y_range=(50.0, 100.0))
    line = Series(name="one", look="first", xs=(0.0, 1.0), ys=(50.0, 100.0))
    (_, bottom), (_, top) = numbers(line_chart("t", [line], axes), "circle", "cx", "cy")
    ticks = {text.text for text in parsed(line_chart("t", [line], axes)).iter("text")}
    assert {"50", "100"} <= ticks
    assert bottom > top


def test_lengths_of_rays_and_rings_are_to_scale():
    ring = Ring("half", "second", 1.0)
    chart = polar_chart("t", [0.0, math.pi / 2], [2.0, 1.0], [ring])
    path = next(parsed(chart).iter("path")).get("d")
    assert path == "M180 180L338.0 180.0M180 180L180.0 101.0"
    rings = [one for one in parsed(chart).iter("circle") if one.get("class")]
    assert [float(one.get("r")) for one in rings] == [79.0]


@pytest.mark.parametrize("values", [(1.0,), (5.0, 5.0), (0.0, 0.0), (1e-9, 1e9), (3.0, 3.1)])
@pytest.mark.parametrize("log", [True, False])
def test_odd_values_still_make_a_chart(values, log):
    if log and not min(values):
        values = tuple(value + 1 for value in values)
    line = Series(name="one", look="first", xs=tuple(range(1, len(values) + 1)), ys=values)
    chart = line_chart("t", [line], Axes(x_label="x", y_label="y", log_x=log, log_y=log))
    assert "nan" not in chart.lower()
    texts = [text.text for text in parsed(chart).iter("text")]
    assert 3 <= len(texts) <= 20


@pytest.mark.parametrize(("xs", "ys"), [((0.0, 1.0, 2.0), (1.0, 0.0, 3.0)),
                                        ((-1.0, 1.0, 2.0), (1.0, -2.0, 3.0))])  # fmt: skip
def test_logarithmic_axes_have_no_place_for_zero_or_less(xs, ys):
    """Equal distributions need no noise: a comparison of such a scenario is a table of zeros."""
    line = Series(name="one", look="first", xs=xs, ys=ys)
    assert len(numbers(line_chart("t", [line], AXES), "circle", "cx", "cy")) == 1
    nothing = Series(name="none", look="first", xs=(1.0, 2.0), ys=(0.0, 0.0))
    assert not numbers(line_chart("t", [nothing], AXES), "circle", "cx")
    assert [mark.y for mark in marks([nothing], AXES)] == [None, None]


@pytest.mark.parametrize("values", [(1e308, -1e308), (1.7e308, 5e-324), (5e-324, 1e-320)])
@pytest.mark.parametrize("log", [True, False])
def test_the_ends_of_the_floats_make_a_chart_too(values, log):
    line = Series(name="one", look="first", xs=(1.0, 2.0), ys=values)
    chart = line_chart("t", [line], Axes(x_label="x", y_label="y", log_y=log))
    assert "nan" not in chart.lower()
    assert "inf" not in chart.lower()


@pytest.mark.parametrize("look", ["second", "third", "fourth", "fifth"])
def test_looks_differ_in_more_than_colour(look):
    """The points have a shape of their own, where the first line has circles."""
    line = Series(name="one", look=look, xs=(1.0, 2.0), ys=(1.0, 2.0))
    shapes = [one.get("d") for one in parsed(line_chart("t", [line], AXES)).iter("path")]
    assert len(shapes) == 2
    others = {"second", "third", "fourth", "fifth"} - {look}
    for other in others:
        chart = line_chart("t", [Series(name="o", look=other, xs=(1.0,), ys=(1.0,))], AXES)
        assert next(parsed(chart).iter("path")).get("d") != shapes[0]


def test_nothing_to_draw_is_an_empty_frame():
    line = Series(name="one", look="first", xs=(1.0,), ys=(None,))
    assert not numbers(line_chart("t", [line], AXES), "circle", "cx")
    chart = polar_chart("t", [0.0], [0.0], [])
    assert "nan" not in chart.lower()
