# SPDX-License-Identifier: Apache-2.0
"""Charts are well formed, escaped, carry no style, and put points where they belong."""

import math
from xml.etree import ElementTree as ET

import pytest

from pufferslice._core.svg import (
    Axes,
    Series,
    ellipse_chart,
    line_chart,
    marks,
)

AXES = Axes(x_label="ε", y_label="noise", log_x=True, log_y=True)


def line(xs, ys, look="first"):
    return Series(name="a line", look=look, xs=xs, ys=ys)


LINE = line((0.1, 1.0, 10.0), (100.0, None, 1.0))


def parsed(chart):
    return ET.fromstring(chart)  # noqa: S314 - made by our own code


def points(chart):
    return [(float(c.get("cx")), float(c.get("cy"))) for c in parsed(chart).iter("circle")]


def test_titles_and_labels_are_escaped():
    chart = line_chart('<script>"', [LINE], Axes(x_label="<b>", y_label="a & b"))
    assert "<script" not in chart
    assert "<b>" not in chart
    root = parsed(chart)
    assert (root.get("aria-label"), root.get("role")) == ('<script>"', "img")
    assert {text.text for text in root.iter("text")} >= {"<b>", "a & b"}


@pytest.mark.parametrize(
    "chart",
    [
        line_chart("t", [LINE], AXES, marker="m"),
        ellipse_chart("t", ("a", "b"), ("1", "2"), correlation=0.5),
    ],
)
def test_no_style_stands_in_a_chart(chart):
    """A strict content policy would refuse it, and one picture serves both themes."""
    for element in parsed(chart).iter():
        assert not {"style", "fill", "stroke", "onclick", "href"} & set(element.keys())


def test_markers_stand_on_the_points_that_have_a_value():
    drawn = points(line_chart("t", [LINE], AXES))
    (x1, y1), (x2, y2) = drawn
    assert x1 < x2
    assert y1 < y2, "a larger noise stands higher, which is a smaller y"
    assert [(mark.x, mark.y) for mark in marks([LINE], AXES) if mark.y is not None] == drawn
    assert marks([LINE], AXES)[1].y is None


def test_logarithmic_axes_put_equal_ratios_equally_far():
    chart = line_chart("t", [line((0.1, 1.0, 10.0), (1.0, 10.0, 100.0))], AXES)
    (x1, y1), (x2, y2), (x3, y3) = points(chart)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.02)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.02)


def test_a_range_of_its_own():
    axes = Axes(x_label="x", y_label="y", y_range=(50.0, 100.0))
    chart = line_chart("t", [line((0.0, 1.0), (50.0, 100.0))], axes)
    (_, bottom), (_, top) = points(chart)
    assert {"50", "100"} <= {text.text for text in parsed(chart).iter("text")}
    assert bottom > top


@pytest.mark.parametrize(
    ("high", "label"), [(1e-4, "1e-4"), (2.5e6, "2e6"), (5e4, "50,000"), (0.02, "0.02")]
)
def test_ticks_are_short(high, label):
    chart = line_chart("t", [line((0.0, 1.0), (0.0, high))], Axes(x_label="x", y_label="y"))
    assert label in {text.text for text in parsed(chart).iter("text")}


@pytest.mark.parametrize(
    "values",
    [(1.0,), (5.0, 5.0), (1e-9, 1e9), (3.0, 3.1), (0.0, 0.0), (1e308, -1e308), (1.7e308, 5e-324),
     (5e-324, 1e-320), (2.1e-14, 3.3e-14)],
)  # fmt: skip
@pytest.mark.parametrize("log", [True, False])
def test_odd_values_and_the_ends_of_the_floats_make_a_chart(values, log):
    drawn = line(tuple(range(1, len(values) + 1)), values)
    chart = line_chart("t", [drawn], Axes(x_label="x", y_label="y", log_x=log, log_y=log))
    assert "nan" not in chart.lower()
    assert "inf" not in chart.lower()
    assert 3 <= len(list(parsed(chart).iter("text"))) <= 20


@pytest.mark.parametrize(
    ("xs", "ys", "n_points"),
    [((0.0, 1.0, 2.0), (1.0, 0.0, 3.0), 1), ((-1.0, 1.0, 2.0), (1.0, -2.0, 3.0), 1),
     ((1.0, 2.0), (0.0, 0.0), 0), ((1.0,), (None,), 0)],
)  # fmt: skip
def test_logarithmic_axes_have_no_place_for_zero_or_less(xs, ys, n_points):
    """Equal distributions need no noise: a comparison of such a scenario is a table of zeros."""
    assert len(points(line_chart("t", [line(xs, ys)], AXES))) == n_points
    if min(xs) > 0:
        assert sum(m.y is not None for m in marks([line(xs, ys)], AXES)) == n_points


def test_looks_differ_in_more_than_colour():
    """The points have a shape of their own, where the first line has circles."""
    looks = ["second", "third", "fourth", "fifth"]
    charts = [line_chart("t", [line((1.0, 2.0), (1.0, 2.0), look)], AXES) for look in looks]
    shapes = [[path.get("d") for path in parsed(chart).iter("path")] for chart in charts]
    assert [len(paths) for paths in shapes] == [2] * 4
    assert len({paths[0] for paths in shapes}) == 4


@pytest.mark.parametrize("correlation", [-1.0, -0.5, 0.0, 0.9, 1.0 + 1e-12])
def test_an_ellipse_holds_95_percent_of_two_coordinates(correlation):
    """A point z of the ellipse has z' C^-1 z = -2 ln 0.05; the diagonal is an axis."""
    chart = ellipse_chart("title", ("pay", "<age>"), ("1.5", "20"), correlation)
    ellipse = parsed(chart).find("ellipse")
    axes = [float(ellipse.get(name)) / 38 for name in ("rx", "ry")]
    spread = [max(0.0, 1 + min(1.0, correlation)), max(0.0, 1 - min(1.0, correlation))]
    assert [axis**2 for axis in axes] == pytest.approx(
        [-2 * math.log(0.05) * part for part in spread], abs=2e-3
    )
    assert "rotate(-45)" in ellipse.get("transform")
    for text in ("\u22121.5", "+20", "&lt;age&gt;"):
        assert text in chart
