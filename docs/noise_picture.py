# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - one file that is run by its path
"""The picture of the README, from the numbers of the demonstration.

Run it as `python docs/noise_picture.py demo-output/summary.json`; it writes docs/assets/noise.svg.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, ROW, TOP, LEFT, BAR = 580, 34, 114, 222, 230
BARS = {"noise_std": "#0b62a8", "group_privacy_std": "#b9c3cd"}
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {{height}}" width="{WIDTH}" '
    'height="{height}" font-family="system-ui, sans-serif" fill="#1b2127">\n'
    '<rect width="100%" height="100%" fill="#ffffff"/>'
)


def picture(statistics: Sequence[Mapping[str, Any]]) -> str:
    """For each statistic two bars: fitted noise, beside that of differential privacy for groups."""
    height = TOP + ROW * len(statistics) + 16
    lines = [
        _HEAD.format(height=height),
        _text(16, 28, "Eight statistics of a census table that hide its share of women", size=17),
        _text(
            16,
            50,
            "Bars: standard deviation of the noise. Whoever sees the eight numbers names the",
        ),
        _text(
            16, 68, "right one of two shares 5 points apart at most 64 % of the time, on average."
        ),
        _rectangle(16, 84, 12, BARS["noise_std"]),
        _text(34, 95, "noise fitted to the secret"),
        _rectangle(LEFT, 84, 12, BARS["group_privacy_std"]),
        _text(LEFT + 18, 95, "differential privacy for 814 rows"),
        _text(WIDTH - 16, 95, "true value", anchor="end"),
    ]
    for place, row in enumerate(statistics):
        y = TOP + ROW * place
        lines.append(_text(LEFT - 10, y + 19, row["name"], anchor="end"))
        for bar, (key, colour) in enumerate(BARS.items()):
            width, at = BAR * row[key] / row["group_privacy_std"], y + 3 + 12 * bar
            lines.append(_rectangle(LEFT, at, width, colour))
            lines.append(_text(LEFT + width + 6, at + 10, f"{row[key]:.2g}", size=12))
        lines.append(_text(WIDTH - 16, y + 19, f"{row['truth']:.3g}", anchor="end"))
    return "\n".join([*lines, "</svg>\n"])


def _text(x: float, y: float, text: str, *, size: int = 14, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _rectangle(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="11" fill="{colour}"/>'


if __name__ == "__main__":
    summary = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    target = Path(__file__).parent / "assets" / "noise.svg"
    target.write_text(picture(summary["statistics"]), encoding="utf-8")
