# SPDX-License-Identifier: Apache-2.0
"""Results as pictures: SVG that notebooks show and that can be saved, in both colour schemes."""

import math
import os
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, final
from xml.etree import ElementTree as ET

import attrs

from pufferslice._core.files import CONFIDENTIAL, OPEN, write_whole
from pufferslice._core.svg import add, plain_ticks, root_of, tick_text
from pufferslice._core.text import END_ISOLATE, ISOLATE, given
from pufferslice.errors import ArgumentError, escaped

ROW_WIDTH: Final = 520
_EDGE: Final = 16
_LINE: Final = 20
_STRIP: Final = 46
_LETTERS_IN_A_LINE: Final = 62
_BROAD: Final = "mwMW@%"
_LETTERS_IN_A_ROW: Final = 58
"""Letters of 15 pixels and mean width, of about 8.4 pixels, in a row."""
_MOST_ROWS: Final = 100
_SPACE: Final = "\u00a0"
_LARGEST: Final = sys.float_info.max
_LEAST_SPREAD: Final = 1e-290
"""Length of a scale below which its parts cannot be computed."""

_STYLE: Final = (
    ".pufferslice text{font:15px system-ui,sans-serif;fill:#1b2127}"
    ".pufferslice .title{font-size:18px;font-weight:650}"
    ".pufferslice .alarm{font-weight:700;fill:#b3261e}"
    ".pufferslice .note,.pufferslice .frame text{fill:#4a5561}"
    ".pufferslice .note{font-size:14px}.pufferslice .small{font-size:14px}"
    ".pufferslice .ground{fill:#fff}"
    ".pufferslice .frame line{stroke:#dfe4e9}"
    ".pufferslice .middle{text-anchor:middle}.pufferslice .end{text-anchor:end}"
    ".pufferslice .first{stroke:#0b62a8}.pufferslice .second{stroke:#b04a00}"
    ".pufferslice .third{stroke:#0a7050}"
    ".pufferslice .line polyline{fill:none;stroke-width:2.2}"
    ".pufferslice .line circle,.pufferslice .line path{fill:#fff;stroke-width:1.6}"
    ".pufferslice .whisker{fill:none;stroke:#0b62a8;stroke-width:2.2}"
    ".pufferslice .dot{fill:#0b62a8;stroke:#fff;stroke-width:1}"
    ".pufferslice .noise{fill:#0b62a8}.pufferslice .beside{fill:#93a1ae}"
    ".pufferslice .against{fill:#b3261e}"
    ".pufferslice .bound{stroke:#1b2127;stroke-width:2}"
    ".pufferslice .marker line{stroke:#1b2127;stroke-width:1.4;stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){"
    ".pufferslice text{fill:#e8ecf0}.pufferslice .alarm{fill:#ff9d94}"
    ".pufferslice .note,.pufferslice .frame text{fill:#b3bec9}"
    ".pufferslice .ground{fill:#11161b}.pufferslice .frame line{stroke:#2a343e}"
    ".pufferslice .first{stroke:#6bb5f5}.pufferslice .second{stroke:#f2a35c}"
    ".pufferslice .third{stroke:#5fd3a6}"
    ".pufferslice .line circle,.pufferslice .line path{fill:#11161b}"
    ".pufferslice .whisker{stroke:#6bb5f5}.pufferslice .dot{fill:#6bb5f5;stroke:#11161b}"
    ".pufferslice .noise{fill:#6bb5f5}.pufferslice .beside{fill:#6d7b88}"
    ".pufferslice .against{fill:#ff9d94}.pufferslice .bound{stroke:#e8ecf0}"
    ".pufferslice .marker line{stroke:#e8ecf0}}"
)
"""Every rule names the class of the picture: inside a notebook it must colour nothing else."""


class Bar(NamedTuple):
    """A bar of a row, and its class: `noise`, `beside`, `against`."""

    look: str
    start: float
    stop: float


@final
@attrs.frozen(kw_only=True)
class Row:
    """A row of a chart: a name, its numbers in words, and what is drawn on a scale of its own."""

    name: str
    """What the row is about; labels of the data as `shown` writes them."""
    numbers: str
    ends: tuple[float, float] | None = None
    """Ends of the scale; None for a row of numbers alone."""
    interval: tuple[float, float, float] | None = None
    """Low end, value and high end of an interval."""
    bars: tuple[Bar, ...] = ()
    """Bars below each other; or one after the other, where each begins at the end of the last."""
    bound: float | None = None
    """Place of an upright line."""

    @property
    def is_long(self) -> bool:
        """Whether name and numbers need a line each."""
        return _letters(self.name) + _letters(self.numbers) + 2 > _LETTERS_IN_A_ROW

    @property
    def height(self) -> int:
        """Height in pixels."""
        return _LINE * (1 + self.is_long) + (_STRIP if self.ends else 4)


class Chart(NamedTuple):
    """A chart without a style, and its size."""

    svg: str
    width: int
    height: int


@final
@attrs.frozen(kw_only=True, repr=False)
class Plot:
    """A result as a picture. Notebooks show it; `save` writes it as SVG.

    The picture follows the colour scheme of whoever looks at it, loads nothing, and has its numbers
    in words beside what is drawn.
    """

    title: str
    charts: tuple[Chart, ...]
    """Charts beside each other."""
    keys: tuple[tuple[str, str], ...] = ()
    """Classes of bars, and what they are."""
    notes: tuple[str, ...] = ()
    """Sentences below the title."""
    is_internal: bool
    """Whether the picture must not be published; it then says so."""

    def _repr_svg_(self) -> str:
        width = max(ROW_WIDTH, sum(chart.width for chart in self.charts))
        root = root_of(width, 0, self.title, "pufferslice")
        root.set("xmlns", "http://www.w3.org/2000/svg")
        ET.SubElement(root, "style").text = _STYLE
        add(root, "rect", width="100%", height="100%", look="ground")
        y = 30
        add(root, "text", self.title, x=_EDGE, y=y, look="title")
        if self.is_internal:
            y += 22
            add(root, "text", "Internal: do not publish.", x=_EDGE, y=y, look="alarm")
        for note in self.notes:
            y += 4
            for line in textwrap.wrap(note, int(_LETTERS_IN_A_LINE * width / ROW_WIDTH)):
                y += _LINE - 1
                add(root, "text", line, x=_EDGE, y=y, look="note")
        for look, words in self.keys:
            y += _LINE + 4
            add(root, "rect", x=_EDGE, y=y - 10, width=18, height=9, look=look)
            add(root, "text", words, x=_EDGE + 26, y=y, look="note")
        y += 10
        x = 0
        for chart in self.charts:
            place = {"x": x, "y": y, "width": chart.width, "height": chart.height}
            holder = ET.SubElement(root, "svg", {name: str(at) for name, at in place.items()})
            holder.append(ET.fromstring(chart.svg))  # noqa: S314 - drawn by this module's callers
            x += chart.width
        height = y + max((chart.height for chart in self.charts), default=0) + 6
        root.set("viewBox", f"0 0 {width} {height}")
        root.set("width", str(width))
        root.set("height", str(height))
        return ET.tostring(root, encoding="unicode") + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file `NAME.svg`, whole or not at all.

        Only its owner can read the file of an internal picture.
        """
        mode = CONFIDENTIAL if self.is_internal else OPEN
        write_whole(checked_path(path), self._repr_svg_().encode(), mode)

    def __repr__(self) -> str:
        return f"Plot({self.title!r})"


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a picture; its name must end in `.svg`."""
    target = Path(path)
    if target.suffix.lower() != ".svg":
        raise ArgumentError(
            f"a picture is written as SVG, so its file must end in .svg, got {given(str(path))}"
        )
    return target


def row_chart(title: str, rows: Sequence[Row], *, most: int = _MOST_ROWS) -> Chart:
    """Draw the first `most` rows below each other, and say how many are left out."""
    drawn, top = rows[:most], 6
    height = top + sum(row.height for row in drawn) + (_LINE if len(rows) > most else 0)
    root = root_of(ROW_WIDTH, height, title, "chart")
    for row in drawn:
        _draw_row(root, row, top)
        top += row.height
    if len(rows) > most:
        add(root, "text", f"and {len(rows) - most:,} more", x=_EDGE, y=height - 6, look="note")
    return Chart(ET.tostring(root, encoding="unicode"), ROW_WIDTH, height)


def scale(*values: float) -> tuple[float, float]:
    """Return round ends of a scale that holds zero and these values.

    >>> scale(38.6, 39.2), scale(-0.3, 1.4), scale(0.0)
    ((0.0, 40.0), (-0.5, 1.5), (0.0, 1.0))
    """
    low, high = min(0.0, *values), max(0.0, *values)
    if high / 2 - low / 2 < _LEAST_SPREAD:
        return (0.0, 1.0)
    ticks = plain_ticks(low, high)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else high - low
    near = 1e-9  # an end that is a tick but for rounding
    first = float(f"{math.floor(low / step + near) * step:.12g}")
    last = float(f"{math.ceil(high / step - near) * step:.12g}")
    # Round ends of the largest floats would be infinite.
    return (max(min(low, first), -_LARGEST), min(max(high, last), _LARGEST))


def _draw_row(root: ET.Element, row: Row, top: int) -> None:
    group = add(root, "g")
    add(group, "title", f"{row.name}: {row.numbers}")
    # Isolated, because its letters may run from right to left.
    name = f"{ISOLATE}{_fitting(escaped(row.name, keep=_SPACE))}{END_ISOLATE}"
    add(group, "text", name, x=_EDGE, y=top + 16, look="label")
    top += _LINE * row.is_long
    add(group, "text", row.numbers, x=ROW_WIDTH - _EDGE, y=top + 16, look="end")
    if row.ends is None:
        return
    low, high = row.ends

    def at(value: float) -> float:
        # In halves, because the difference of two floats may be infinite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
        return round(_EDGE + (ROW_WIDTH - 2 * _EDGE) * min(1.0, max(0.0, share)), 2)

    frame = add(group, "g", look="frame")
    base = top + 42
    add(frame, "line", x1=_EDGE, x2=ROW_WIDTH - _EDGE, y1=base, y2=base)
    for tick in plain_ticks(low, high):
        look = "small middle"
        if at(tick) < _EDGE + 8:
            look = "small"
        elif at(tick) > ROW_WIDTH - _EDGE - 8:
            look = "small end"
        add(frame, "line", x1=at(tick), x2=at(tick), y1=base - 3, y2=base + 3)
        add(frame, "text", tick_text(tick), x=at(tick), y=base + 16, look=look)
    lanes, last = [0], low
    for bar in row.bars:
        lanes.append(lanes[-1] + (bar.start < last))
        last = bar.stop
    height, first = (8, top + 23) if lanes[-1] else (11, top + 27)
    for lane, bar in zip(lanes[1:], row.bars, strict=True):
        start, stop = at(bar.start), at(bar.stop)
        width = max(round(stop - start, 2), 1.0 if bar.stop > bar.start else 0.0)
        y = first + (height + 1) * lane
        add(group, "rect", look=bar.look, x=start, y=y, width=width, height=height)
    if row.interval is not None:
        left, middle, right = map(at, row.interval)
        y = top + 31
        path = f"M{left} {y - 5}v10m0 -5H{right}m0 -5v10"
        add(group, "path", d=path, look="whisker")
        add(group, "circle", cx=middle, cy=y, r=4, look="dot")
    if row.bound is not None:
        x = at(row.bound)
        add(group, "line", x1=x, x2=x, y1=top + 20, y2=base, look="bound")


def _letters(text: str) -> float:
    """Estimate how many letters of mean width are as long as a text."""
    # Those of Asian scripts are twice as wide.
    n_double = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + n_double + 0.6 * sum(letter in _BROAD for letter in text)


def _fitting(name: str) -> str:
    """Cut the middle out of a name that is longer than a line: both of its ends tell more."""
    n_kept = len(name)
    cut = name
    while _letters(cut) > _LETTERS_IN_A_ROW:
        n_kept -= 1
        cut = f"{name[: n_kept - n_kept // 2]}…{name[len(name) - n_kept // 2 :]}"
    return cut
