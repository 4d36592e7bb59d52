# SPDX-License-Identifier: Apache-2.0
"""Pictures from plain values: nothing is computed here, and no state of pyplot is touched.

Colours tell the notion (blue average, orange joint; both are told apart by colour-blind readers
and in grey), line and marker tell the rule.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.calibration import Rule
from pufferslice.errors import MissingExtraError

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.projections.polar import PolarAxes
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_COLOURS: Final = {"average": "#0072B2", "joint": "#D55E00", "reference": "#555555"}
_STYLES: Final = {"average": "--", "joint": "-", "reference": ":"}
_ACCOUNTANT_COLOURS: Final = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
_PAIR: Final = "#009E73"
_QUIET: Final = "#BBBBBB"
_PALE: Final = "#E6E6E6"
_DOTS_PER_INCH: Final = 150
TITLE_SIZE, LABEL_SIZE, TICK_SIZE = 13, 12, 11


@final
@attrs.frozen(kw_only=True)
class Level:
    """A horizontal line, or a ring, at one value."""

    kind: Literal["average", "joint", "reference"]
    label: str
    value: float


@final
@attrs.frozen(kw_only=True)
class NoiseCurve:
    """What one rule asks for, for one notion, against epsilon."""

    notion: Literal["average", "joint"]
    rule: Rule
    epsilons: Floats = attrs.field(converter=locked, eq=same)
    noise_stds: Floats = attrs.field(converter=locked, eq=same)
    """Noise standard deviation, in scaled units."""
    squared_errors: Floats = attrs.field(converter=locked, eq=same)
    """Expected squared error of one coordinate of a release, in scaled units squared."""


@final
@attrs.frozen(kw_only=True)
class PlaneCosts:
    """What every pair costs along the directions of one plane, all the way round."""

    coordinates: tuple[str, str]
    """The two coordinates of the query that span the plane."""
    angles: Floats = attrs.field(converter=locked, eq=same)
    """Radians from the first coordinate towards the second, shape (n_angles,)."""
    pairs: tuple[str, ...]
    costs: Floats = attrs.field(converter=locked, eq=same)
    """Shape (n_pairs, n_angles)."""
    highlighted: int
    """Position of the pair that costs most; it is drawn in colour."""
    rings: tuple[Level, ...]


def noise_figure(curves: Sequence[NoiseCurve], *, order: float, reference: Level) -> Figure:
    """Noise and expected squared error against epsilon, both axes logarithmic, side by side.

    `reference` is a line in the panel of errors.
    """
    figure = new_figure(11, 5.4)
    noise, error = figure.subplots(1, 2)
    for curve in curves:
        _draw_curve(noise, curve, curve.noise_stds)
        _draw_curve(error, curve, curve.squared_errors)
    _draw_line(error, reference)
    for axes, title, label in (
        (noise, "Noise", "noise standard deviation (scaled units)"),
        (error, "Error of one statistic", "expected squared error (scaled units²)"),
    ):
        axes.set_title(title, fontsize=TITLE_SIZE, loc="left")
        axes.set_ylabel(label, fontsize=LABEL_SIZE)
        axes.set_xlabel(f"ε of the claim, at order {order:g} (nats)", fontsize=LABEL_SIZE)
        make_logarithmic(axes, curves[0].epsilons.tolist())
    handles, labels = error.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=TICK_SIZE)
    return figure


def slices_figure(sensitivities: Floats, levels: Sequence[Level]) -> Figure:
    """The sensitivity of every slice, in the given (ascending) order, with levels across."""
    figure = new_figure(9, 5.4)
    axes = figure.subplots()
    ranks = np.arange(1, len(sensitivities) + 1)
    axes.fill_between(ranks, sensitivities, color=_PALE, linewidth=0)
    axes.plot(
        ranks, sensitivities, ".", color=_COLOURS["reference"], markersize=5, label="one slice each"
    )
    for level in levels:
        _draw_line(axes, level)
    axes.set_title("Slice profile", fontsize=TITLE_SIZE, loc="left")
    axes.set_xlabel("slices, from least to most sensitive (rank)", fontsize=LABEL_SIZE)
    axes.set_ylabel("sensitivity: worst gap of all pairs (scaled units)", fontsize=LABEL_SIZE)
    axes.set_xlim(0, len(sensitivities) + 1)
    axes.set_ylim(bottom=0)
    make_quiet(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=TICK_SIZE)
    return figure


def plane_figure(plane: PlaneCosts, *, order: float, noise_std: float) -> Figure:
    """What each pair costs along the directions of a plane, with rings; as the paper's Figure 1.

    `order` and `noise_std` are those of the costs; they are only written down.
    """
    figure = new_figure(7.4, 8.4)
    # The engine that arranges the other pictures lets labels of round axes run into the legend.
    figure.set_layout_engine("none")
    axes = cast("PolarAxes", figure.add_axes((0.1, 0.17, 0.8, 0.7), projection="polar"))
    for pair, costs in enumerate(plane.costs):
        if pair != plane.highlighted:
            _draw_polygon(axes, plane.angles, costs, color=_QUIET, label="_")
    shown = plane.costs[plane.highlighted]
    name = plane.pairs[plane.highlighted]
    _draw_polygon(axes, plane.angles, shown, color=_PAIR, label=f"{name} (costs most)")
    axes.plot([], [], color=_QUIET, linewidth=1, label=f"the other {len(plane.pairs) - 1} pairs")
    around = np.linspace(0, 2 * math.pi, 361)
    for ring in plane.rings:
        axes.plot(
            around,
            np.full_like(around, ring.value),
            color=_COLOURS[ring.kind],
            linestyle=_STYLES[ring.kind],
            linewidth=2,
            label=_with_value(ring),
        )
    _label_plane(axes, plane)
    figure.suptitle(
        f"Cost along each direction of one plane\nRényi bound of order {order:g} (nats), "
        f"noise standard deviation {noise_std:.3g} (scaled units)",
        fontsize=TITLE_SIZE,
    )
    figure.legend(loc="lower center", ncols=2, fontsize=TICK_SIZE)
    return figure


def accountants_figure(
    epsilons: Sequence[float], curves: Mapping[str, Floats], *, order: float
) -> Figure:
    """Noise multiplier of each accountant against the epsilon of a run, both axes logarithmic."""
    figure = new_figure(9, 5.4)
    axes = figure.subplots()
    for (name, multipliers), colour, marker in zip(
        curves.items(), _ACCOUNTANT_COLOURS, "os^D", strict=False
    ):
        label = name.replace("_", " ")
        averaged = name == "mean_square"
        axes.plot(
            epsilons,
            multipliers,
            linestyle="--" if averaged else "-",
            marker=marker,
            markersize=4,
            color=colour,
            label=f"{label} (on average over batch draws only)" if averaged else label,
        )
    axes.set_title("Noise for a training run", fontsize=TITLE_SIZE, loc="left")
    axes.set_xlabel(f"ε of the whole run, at order {order:g} (nats)", fontsize=LABEL_SIZE)
    axes.set_ylabel("noise multiplier (noise std / clip norm)", fontsize=LABEL_SIZE)
    make_logarithmic(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=TICK_SIZE)
    return figure


def png_of(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, facecolor="white")
    return file.getvalue()


def svg_of(figure: Figure) -> bytes:
    """The picture as an SVG file, without a date: drawn afresh it has the same bytes."""
    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "pufferslice"}):
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
    return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches that arranges itself."""
    return Figure(
        figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white", layout="constrained"
    )


def _draw_curve(axes: Axes, curve: NoiseCurve, values: Floats) -> None:
    tight = curve.rule == "tight"
    colour = _COLOURS[curve.notion]
    axes.plot(
        curve.epsilons,
        values,
        color=colour,
        linestyle="-" if tight else "--",
        marker="o" if curve.notion == "average" else "s",
        markerfacecolor=colour if tight else "white",
        linewidth=2,
        label=f"{curve.notion}, {curve.rule.replace('_', ' ')}",
    )


def _draw_line(axes: Axes, level: Level) -> None:
    axes.axhline(
        level.value,
        color=_COLOURS[level.kind],
        linestyle=_STYLES[level.kind],
        linewidth=2,
        label=_with_value(level),
    )


def _with_value(level: Level) -> str:
    return f"{level.label} ({level.value:.3g})"


def _draw_polygon(axes: Axes, angles: Floats, radii: Floats, *, color: str, label: str) -> None:
    """A closed line through the points; in colour it is filled."""
    closed = np.append(angles, angles[0]), np.append(radii, radii[0])
    wide = color != _QUIET
    axes.plot(*closed, color=color, linewidth=2.5 if wide else 1, label=label)
    if wide:
        axes.fill(*closed, color=color, alpha=0.15, linewidth=0)


def _label_plane(axes: PolarAxes, plane: PlaneCosts) -> None:
    """Names at the four ends of the plane; the scale where the polygons leave most room."""
    first, second = plane.coordinates
    axes.set_xticks(np.arange(8) * math.pi / 4, [""] * 8)
    for x, y, name, rotation in (
        (1.04, 0.5, f"+ {first}", -90),
        (0.5, 1.04, f"+ {second}", 0),
        (-0.04, 0.5, f"− {first}", 90),
        (0.5, -0.04, f"− {second}", 0),
    ):
        axes.text(
            x,
            y,
            name,
            rotation=rotation,
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            transform=axes.transAxes,
        )
    axes.grid(color=_PALE)
    axes.set_ylim(bottom=0)
    emptiest = plane.angles[plane.costs.max(axis=0).argmin()]
    ticks = [tick for tick in axes.get_yticks() if 0 < tick <= axes.get_rmax()]
    axes.set_yticks(ticks, [""] * len(ticks))
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for tick in ticks:
        # Above the rings, which would run through labels of the axis.
        label = axes.text(emptiest, tick, f"{tick:g}", bbox=ground, fontsize=TICK_SIZE, zorder=5)
        label.set(ha="center", va="center")


def make_logarithmic(axes: Axes, x_ticks: Sequence[float] = ()) -> None:
    """Both axes logarithmic, with plain numbers at the ticks; those of x are chosen or given."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if x_ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(x_ticks)))
    make_quiet(axes)


def make_quiet(axes: Axes) -> None:
    """A white ground, a pale grid behind the lines, and no frame on the upper and right side."""
    axes.set_facecolor("white")
    axes.grid(color=_PALE)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TICK_SIZE)
    axes.spines[["top", "right"]].set_visible(False)
