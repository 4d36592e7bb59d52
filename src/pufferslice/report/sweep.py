# SPDX-License-Identifier: Apache-2.0
"""Picture of a sweep over bounds, in SVG that needs no page around it."""

from typing import Final

from pufferslice.certificate import Sweep
from pufferslice.errors import CalibrationError
from pufferslice.report.svg import HEIGHT, WIDTH, Axes, Series, line_chart

_STYLE: Final = (
    "text { font: 15px system-ui, sans-serif; fill: #1b2127; } .frame text { fill: #4a5561; } "
    ".frame line { stroke: #dfe4e9; } .middle { text-anchor: middle; } "
    ".end { text-anchor: end; } .first { stroke: #0b62a8; } .third { stroke: #0a7050; } "
    ".line polyline { fill: none; stroke-width: 2.2; } "
    ".line circle, .line path { fill: #ffffff; stroke-width: 1.6; }"
)


def sweep_svg(sweep: Sweep) -> str:
    """Draw right guesses and the noise, relative to that at the claimed bound, against the bound.

    The noise of all statistics has one shape, so one line shows them all. Internal, as the sweep.
    """
    rows = [(row, float(row.noise_stds[0])) for row in sweep.rows if row.noise_stds is not None]
    if not rows:
        raise CalibrationError("nothing to plot: no noise reaches any of these bounds")
    claimed, unit = min(rows, key=lambda each: abs(each[0].claim.bound - sweep.claim.bound))
    is_share = sweep.claim.unit != 1
    xs = tuple(row.claim.bound for row, _ in rows)
    noise = Series(name="noise", look="first", xs=xs, ys=tuple(std / unit for _, std in rows))
    guesses = Series(
        name="guesses", look="third", xs=xs, ys=tuple(100 * row.guess for row, _ in rows)
    )
    label = f"{sweep.claim.symbol} claimed"
    charts = (
        line_chart(
            "Noise of every statistic",
            [noise],
            Axes(
                x_label=label,
                y_label=f"noise, 1 at {claimed.claim.bound:g}",
                log_x=not is_share,
                log_y=True,
            ),
        ),
        line_chart(
            "Right guesses",
            [guesses],
            Axes(
                x_label=label,
                y_label="right guesses, %",
                log_x=not is_share,
                y_range=(50.0, 100.0),
            ),
        ),
    )
    placed = "".join(
        f'<svg x="{place * WIDTH}" width="{WIDTH}" height="{HEIGHT}">{chart}</svg>'
        for place, chart in enumerate(charts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" '
        f'width="{2 * WIDTH}" height="{HEIGHT}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{placed}</svg>\n'
    )
