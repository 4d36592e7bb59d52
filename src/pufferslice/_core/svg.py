# SPDX-License-Identifier: Apache-2.0
"""Lines and ellipses as inline SVG: from plain values, coloured by the page's own style.

There is no colour, font or style here, only class names, so that one picture serves light, dark
and print, and a strict content policy has nothing to refuse.
"""

import math
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, final
from xml.etree import ElementTree as ET

import attrs

from pufferslice._core.text import END_ISOLATE, ISOLATE
from pufferslice.errors import escaped

WIDTH, HEIGHT = 440, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 14, 52
_MOST_TICKS: Final = 7
_NEAR: Final = 1e-9
"""Share of a step by which rounding may put an end of an axis beside a tick."""
_CENTRE: Final = (234, 132)
_PIXELS_PER_STD: Final = 38
_BOTH_STDS: Final = math.sqrt(-2 * math.log(0.05))
"""Radius of the ellipse that holds 95 % of two Gaussian coordinates, in standard deviations."""
_ONE_STDS: Final = 1.96
_KEPT: Final = f"\u00a0{ISOLATE}{END_ISOLATE}"
_OUTLINES: Final = {
    "second": "M-2.5 -2.5h5v5h-5z",
    "third": "M0 -3.3L3 2H-3z",
    "fourth": "M0 -3.5L3.5 0L0 3.5L-3.5 0z",
    "fifth": "M0 3.3L3 -2H-3z",
}
"""Outlines of the points of a line, by its look; circles for all others."""


@final
@attrs.frozen(kw_only=True)
class Series:
    """A line of a chart; points without a value are left out."""

    name: str
    look: str
    """Class of the style sheet: first, second, third, …"""
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]

    @property
    def points(self) -> list[tuple[float, float]]:
        """Points that have a value."""
        return [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if y is not None]


@final
@attrs.frozen(kw_only=True)
class Axes:
    """Labels of the two axes of a line chart, and whether they are logarithmic."""

    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    """Range of the values, where they have natural ends as probabilities do."""

    def points(self, line: Series) -> list[tuple[float, float]]:
        """Select the points of a line that can be drawn: no zero on a logarithmic axis."""
        return [(x, y) for x, y in line.points if self.has_place(x, y)]

    def has_place(self, x: float, y: float) -> bool:
        """Return whether a point can be drawn."""
        return not (self.log_x and x <= 0) and not (self.log_y and y <= 0)


class Mark(NamedTuple):
    """Position of a chart's marker for one choice of the slider."""

    x: float
    y: float | None


class _Scale(NamedTuple):
    low: float
    high: float
    start: float
    stop: float
    log: bool

    def at(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        # In halves, because the difference of two floats may be infinite.
        share = ((math.log(value) if self.log else value) / 2 - low / 2) / (high / 2 - low / 2)
        return round(self.start + share * (self.stop - self.start), 2)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else plain_ticks(self.low, self.high)


def line_chart(
    title: str,
    series: Sequence[Series],
    axes: Axes,
    marker: str = "",
    upright: float | None = None,
) -> str:
    """Draw the chart; `marker` adds a movable line and dot of that id, on the first series.

    `upright` is the place of a line across.
    """
    x, y = _scales(series, axes)
    root = root_of(WIDTH, HEIGHT, title)
    frame = add(root, "g", look="frame")
    for tick in x.ticks():
        at = x.at(tick)
        add(frame, "line", x1=at, x2=at, y1=y.start, y2=y.stop)
        add(frame, "text", tick_text(tick), x=at, y=HEIGHT - 32, look="middle")
    for tick in y.ticks():
        at = y.at(tick)
        add(frame, "line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=at, y2=at)
        add(frame, "text", tick_text(tick), x=_LEFT - 6, y=f"{at + 5:.2f}", look="end")
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    add(root, "text", axes.x_label, x=middle, y=HEIGHT - 8, look="middle label")
    turned = f"translate(14 {(y.start + y.stop) / 2}) rotate(-90)"
    add(root, "text", axes.y_label, transform=turned, look="middle label")
    for line in series:
        _draw(root, line.look, [(x.at(a), y.at(b)) for a, b in axes.points(line)])
    if upright is not None:
        place = add(root, "g", look="marker")
        add(place, "line", x1=x.at(upright), x2=x.at(upright), y1=y.stop, y2=y.start)
    if marker:
        moved = add(root, "g", id=marker, look="marker")
        add(moved, "line", x1=0, x2=0, y1=y.stop, y2=y.start)
        add(moved, "circle", cx=0, cy=0, r=6)
    return ET.tostring(root, encoding="unicode")


def marks(series: Sequence[Series], axes: Axes) -> list[Mark]:
    """List positions of the marker, one per point of the first series."""
    x, y = _scales(series, axes)
    first = series[0]
    return [
        Mark(x.at(a), None if b is None or not axes.has_place(a, b) else y.at(b))
        for a, b in zip(first.xs, first.ys, strict=True)
    ]


def ellipse_axes(correlation: float) -> tuple[float, float]:
    """Compute half axes, along and across the diagonal, of two coordinates' 95 % ellipse."""
    reach, share = _BOTH_STDS * _PIXELS_PER_STD, max(-1.0, min(1.0, correlation))
    return round(reach * math.sqrt(1 + share), 2), round(reach * math.sqrt(1 - share), 2)


def ellipse_chart(
    title: str, names: tuple[str, str], half_widths: tuple[str, str], correlation: float
) -> str:
    """Draw where the noise of two coordinates lies together, at equal lengths on the page."""
    (x, y), reach = _CENTRE, _ONE_STDS * _PIXELS_PER_STD
    root = root_of(400, 320, title, "chart ellipse")
    frame = add(root, "g", look="frame")
    edge = 1.2 * _BOTH_STDS * _PIXELS_PER_STD
    near, far = (f"{x - edge:.2f}", f"{x + edge:.2f}"), (f"{y - edge:.2f}", f"{y + edge:.2f}")
    for sign, mark in ((-1, "\u2212"), (0, ""), (1, "+")):
        across, up = f"{x + sign * reach:.2f}", f"{y - sign * reach:.2f}"
        add(frame, "line", x1=across, x2=across, y1=far[0], y2=far[1])
        add(frame, "line", x1=near[0], x2=near[1], y1=up, y2=up)
        ends = [f"{mark}{width}" if sign else "0" for width in half_widths]
        below = add(frame, "text", ends[0], x=across, y=y + edge + 20, look="middle")
        height = f"{y - sign * reach + 5:.2f}"
        left = add(frame, "text", ends[1], x=f"{x - edge - 6:.2f}", y=height, look="end")
        if sign:
            below.set("data-end", f"x{mark}")
            left.set("data-end", f"y{mark}")
    name = add(root, "text", names[0], look="middle label", x=x, y=y + edge + 46)
    name.set("data-name", "x")
    turned = f"translate(16 {y}) rotate(-90)"
    name = add(root, "text", names[1], look="middle label", transform=turned)
    name.set("data-name", "y")
    radius = f"{_BOTH_STDS * _PIXELS_PER_STD:.2f}"
    add(root, "circle", cx=x, cy=y, r=radius, look="ring second")
    rx, ry = ellipse_axes(correlation)
    turned = f"translate({x} {y}) rotate(-45)"
    add(root, "ellipse", rx=rx, ry=ry, transform=turned, look="ring first")
    return ET.tostring(root, encoding="unicode")


def root_of(width: int, height: int, title: str, look: str = "chart") -> ET.Element:
    """Make the root of a picture with a title for those who cannot see it."""
    box = {"viewBox": f"0 0 {width} {height}", "role": "img"}
    box["aria-label"] = escaped(title, keep=_KEPT)
    return ET.Element("svg", box | {"class": look})


def add(parent: ET.Element, tag: str, text: str = "", **named: str | float) -> ET.Element:
    """Add a new element; `look` is its class."""
    renamed = {"class" if name == "look" else name: str(value) for name, value in named.items()}
    child = ET.SubElement(parent, tag, renamed)
    child.text = escaped(text, keep=_KEPT) or None
    return child


def _scales(series: Sequence[Series], axes: Axes) -> tuple[_Scale, _Scale]:
    points = [point for line in series for point in axes.points(line)] or [(1.0, 1.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = (
        axes.x_range or _ends(xs, log=axes.log_x),
        axes.y_range or _ends(ys, log=axes.log_y),
    )
    return (
        _Scale(*across, _LEFT + 6, WIDTH - _RIGHT - 6, axes.log_x),
        _Scale(*up, HEIGHT - _BOTTOM, _TOP, axes.log_y),
    )


def _ends(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return (low / 1.15, min(high * 1.15, sys.float_info.max))
    low = min(low, 0.0)
    return (low, high if high > low else low + 1)


def _draw(root: ET.Element, look: str, points: Sequence[tuple[float, float]]) -> None:
    group = add(root, "g", look=f"line {look}")
    if len(points) > 1:
        add(group, "polyline", points=" ".join(f"{a},{b}" for a, b in points))
    if len(points) <= 40:
        for a, b in points:
            if look in _OUTLINES:
                add(group, "path", d=_OUTLINES[look], transform=f"translate({a} {b})")
            else:
                add(group, "circle", cx=a, cy=b, r=2.5)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= _MOST_TICKS:
            break
    if len(inside) < 2:
        return plain_ticks(low, high)
    return inside[:: 1 + (len(inside) - 1) // _MOST_TICKS]


def plain_ticks(low: float, high: float) -> list[float]:
    """List round numbers between two ends."""
    quarter = high / 4 - low / 4
    step = 10.0 ** math.floor(math.log10(quarter))
    step *= next(times for times in (1, 2, 5, 10) if quarter / (step * times) <= 1.5)
    first, last = math.ceil(low / step - _NEAR), math.floor(high / step + _NEAR)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Write a number on an axis."""
    if 1e-3 <= abs(value) < 1e5 or not value:
        return f"{value:,.6g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
