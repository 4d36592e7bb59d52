# SPDX-License-Identifier: Apache-2.0
"""Pictures of the paper's profiles: values over the directions of the plane, with rings."""

import math
from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.errors import MissingExtraError
from pufferslice.laws import GaussianLaw
from pufferslice.paper import cap_rings, sliced_divergences
from pufferslice.paper.experiment import Outcome, Row, number_in
from pufferslice.paper.sliced_divergences import FIRST, LIMIT, SECOND
from pufferslice.report.captions import caption, chosen, column, legend_below
from pufferslice.report.figures import TICK_SIZE, TITLE_SIZE, make_quiet, new_figure

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_RINGS: Final = {
    "average": ("#0072B2", "--", "average over the slices"),
    "joint": ("#D55E00", "-", "joint: log-moment over the slices"),
    "unsliced": ("#000000", ":", "unsliced divergence"),
    "attained joint": ("#000000", ":", "joint cost that gradients attain, on average over draws"),
}
"""Colour, line and name of each ring."""
_SLICES: Final = "#009E73"
_ENVELOPES: Final = {"huc": ("#CC79A7", "HUC"), "sa_huc": ("#009E73", "sa-HUC")}
_LAWS: Final = (("#D55E00", "-", FIRST, "P"), ("#0072B2", "--", SECOND, "Q"))
_SCALE_ANGLE: Final = math.radians(130)
_AROUND: Final = np.linspace(0, 2 * math.pi, 361)


def sliced_divergences_figure(outcome: Outcome) -> Figure:
    """The two laws, and their divergence along m = 8, 16, 32 and all directions."""
    figure = new_figure(14, 4.3)
    panels = [str(count) for count in sliced_divergences.COUNTS] + [LIMIT]
    laws = figure.add_subplot(1, 5, 1)
    for colour, line, law, name in _LAWS:
        _draw_law(laws, law, (colour, line, name))
    laws.set_title("P (full), Q (dashed)\n1 and 2 standard deviations", fontsize=TICK_SIZE)
    laws.set_aspect("equal")
    laws.set_xlabel("first coordinate", fontsize=TICK_SIZE - 1)
    laws.set_ylabel("second coordinate", fontsize=TICK_SIZE - 1)
    make_quiet(laws)
    top = 1.05 * float(np.nanmax(column(outcome.rows, "divergence_nats")))
    for place, panel in enumerate(panels, start=2):
        axes = cast("PolarAxes", figure.add_subplot(1, 5, place, projection="polar"))
        rows = chosen(outcome, panel=panel)
        _draw_profile(axes, _slices(rows), (_SLICES, "divergence along a slice"))
        _draw_rings(axes, rows, "divergence_nats", ("unsliced", "joint", "average"))
        name = "all directions" if panel == LIMIT else f"m = {panel}"
        _finish(axes, name, top)
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=TICK_SIZE)
    title = f"Sliced Rényi divergence of order {sliced_divergences.ORDER:g} (nats)"
    caption(figure, title, outcome.scale)
    return figure


def cap_rings_figure(outcome: Outcome) -> Figure:
    """HUC, sa-HUC and both together, at both numbers of directions."""
    figure = new_figure(10.5, 8.8)
    for row, count in enumerate(cap_rings.COUNTS):
        for place, kinds in enumerate((("huc",), ("sa_huc",), ("huc", "sa_huc"))):
            number = 3 * row + place + 1
            axes = cast("PolarAxes", figure.add_subplot(2, 3, number, projection="polar"))
            _draw_caps(axes, outcome, count, kinds)
    legend_below(figure, figure.axes)
    title = f"Cost of one round along each slice, order {cap_rings.ORDER:g} (nats)"
    caption(figure, title, outcome.scale)
    return figure


def _draw_caps(axes: PolarAxes, outcome: Outcome, count: int, kinds: tuple[str, ...]) -> None:
    top = 0.0
    for kind in kinds:
        rows = chosen(outcome, kind=kind, n_directions=count)
        colour, name = _ENVELOPES[kind]
        _draw_profile(axes, _slices(rows), (colour, f"{name} along a slice"))
        top = max(top, float(np.nanmax(column(rows, "cost_nats"))))
        if len(kinds) == 1:
            _draw_rings(axes, rows, "cost_nats", ("joint", "average", "attained joint"))
    name = " and ".join(_ENVELOPES[kind][1] for kind in kinds)
    _finish(axes, f"{name}, m = {count}", 1.05 * top)


def _slices(rows: Sequence[Row]) -> tuple[Floats, Floats]:
    """Angles and values of the slices."""
    kept = [row for row in rows if row["quantity"] == "slice"]
    value = "divergence_nats" if "divergence_nats" in kept[0] else "cost_nats"
    return column(kept, "angle_radians"), column(kept, value)


def _draw_profile(axes: PolarAxes, slices: tuple[Floats, Floats], look: tuple[str, str]) -> None:
    """A closed, filled polygon with a dot at each direction, if there are few."""
    angles, values = slices
    colour, name = look
    closed = np.append(angles, angles[0]), np.append(values, values[0])
    few = len(angles) < 100
    axes.plot(*closed, color=colour, linewidth=1.8, marker="o" if few else "", ms=3, label=name)
    axes.fill(*closed, color=colour, alpha=0.15, linewidth=0)


def _draw_rings(axes: PolarAxes, rows: Sequence[Row], value: str, names: Sequence[str]) -> None:
    for name in names:
        for row in rows:
            if row["quantity"] == name:
                colour, line, label = _RINGS[name]
                radius = np.full_like(_AROUND, number_in(row, value))
                axes.plot(_AROUND, radius, color=colour, linestyle=line, linewidth=2, label=label)


def _draw_law(axes: Axes, law: GaussianLaw, look: tuple[str, str, str]) -> None:
    """Curves at one and two standard deviations, and the mean."""
    colour, line, name = look
    root = np.linalg.cholesky(law.cov)
    circle = np.array([np.cos(_AROUND), np.sin(_AROUND)])
    for radius in (1, 2):
        x, y = law.mean[:, None] + radius * root @ circle
        axes.plot(x, y, color=colour, linestyle=line, label=name if radius == 1 else "_")
    axes.plot(*law.mean, marker="+", markersize=8, color=colour)


def _finish(axes: PolarAxes, title: str, top: float) -> None:
    """Title, and a scale that is written over the lines."""
    axes.set_title(title, fontsize=TITLE_SIZE - 1)
    axes.set_ylim(0, top)
    axes.set_xticks(np.arange(8) * math.pi / 4, ["0°", "", "90°", "", "180°", "", "270°", ""])
    axes.tick_params(labelsize=TICK_SIZE - 3)
    ticks = [tick for tick in MaxNLocator(3).tick_values(0, top) if 0 < tick < top]
    axes.set_yticks(ticks, [""] * len(ticks))
    axes.grid(color="#E6E6E6")
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    for tick in ticks:
        axes.text(
            _SCALE_ANGLE,
            tick,
            f"{tick:g}",
            fontsize=TICK_SIZE - 3,
            ha="center",
            va="center",
            bbox=paper,
            zorder=5,
        )


FIGURES: Final[dict[str, Callable[[Outcome], dict[str, Figure]]]] = {
    sliced_divergences.NAME: lambda outcome: {
        sliced_divergences.NAME: sliced_divergences_figure(outcome)
    },
    cap_rings.NAME: lambda outcome: {cap_rings.NAME: cap_rings_figure(outcome)},
}
"""The pictures of each experiment, by the names of their files."""
