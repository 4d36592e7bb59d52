# SPDX-License-Identifier: Apache-2.0
"""Pictures of the experiments, and the files of an outcome: table, numbers and pictures.

Pictures are drawn from the rows of an outcome; pyplot and its global state are not used. Colours
are chosen for colour-blind readers and for print in grey.
"""

import io
import math
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from pufferslice._core.arrays import Floats
from pufferslice._core.files import make_folder, pretty_json, write_whole
from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import GaussianDistribution
from reproduction import profiles
from reproduction.experiment import Cell, Outcome, Row, number_in
from reproduction.noise import ORDER as SGD_ORDER
from reproduction.panels import ORDER as STATIC_ORDER
from reproduction.panels import SHAPED, Curve, curves_of
from reproduction.profiles import FIRST, LIMIT, SECOND
from reproduction.static import STUDIES

_PALE: Final = "#E6E6E6"
_DOTS_PER_INCH: Final = 150
TITLE_SIZE, LABEL_SIZE, TICK_SIZE = 13, 12, 11


def png_of(figure: Figure) -> bytes:
    """The picture as a PNG file."""
    file = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, facecolor="white")
    return file.getvalue()


def svg_of(figure: Figure) -> bytes:
    """The picture as an SVG file; without a date, so that the same picture gives the same bytes."""
    file = io.BytesIO()
    with rc_context({"svg.hashsalt": "pufferslice"}):
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
    return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty picture, in inches, with automatic layout."""
    return Figure(
        figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white", layout="constrained"
    )


def make_quiet(axes: Axes) -> None:
    """A white background, a pale grid behind the lines, no frame at the top and on the right."""
    axes.set_facecolor("white")
    axes.grid(color=_PALE)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=TICK_SIZE)
    axes.spines[["top", "right"]].set_visible(False)


GREY: Final = "#555555"
_LETTERS_PER_INCH: Final = 15


def caption(figure: Figure, title: str, scale: str) -> None:
    """A title above the picture, and under it what was run, in small print."""
    inches = figure.get_size_inches()
    top = 1 - 0.06 / inches[1]
    figure.text(0.01, top, title, fontsize=TITLE_SIZE, ha="left", va="top")
    small = textwrap.fill(f"Scale: {scale}", int(inches[0] * _LETTERS_PER_INCH))
    # The empty lines keep room for the title; the layout knows of one heading only.
    figure.suptitle(f"\n\n{small}", fontsize=TICK_SIZE - 2, color=GREY, x=0.01, ha="left")


def legend_below(figure: Figure, several: Sequence[Axes], ncols: int = 2) -> None:
    """One legend for several axes, each name once."""
    handles: dict[str, Any] = {}
    for axes in several:
        drawn, labels = axes.get_legend_handles_labels()
        handles |= {
            label: handle
            for handle, label in zip(drawn, labels, strict=True)
            if label not in handles
        }
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=ncols,
        fontsize=TICK_SIZE,
    )


def chosen(rows: Iterable[Row], **wanted: Cell) -> list[Row]:
    """The rows with these values, in their order."""
    return [row for row in rows if all(row[key] == wanted[key] for key in wanted)]


def column(rows: Sequence[Row], name: str) -> Floats:
    """One column as numbers; NaN where there is none."""
    return np.array([number_in(row, name) for row in rows])


_RINGS: Final = {
    "average": ("#0072B2", "--", "average over the slices"),
    "joint": ("#D55E00", "-", "joint: log-moment over the slices"),
    "unsliced": ("#000000", ":", "unsliced divergence"),
    "attained joint": ("#000000", ":", "joint cost that gradients attain, on average over draws"),
}
"""Colour, line and name of each ring."""
_SLICES: Final = "#009E73"
_ENVELOPES: Final = {"huc": ("#CC79A7", "HUC"), "sa_huc": ("#009E73", "sa-HUC")}
_GAUSSIANS: Final = (("#D55E00", "-", FIRST, "P"), ("#0072B2", "--", SECOND, "Q"))
_SCALE_ANGLE: Final = math.radians(130)
_AROUND: Final = np.linspace(0, 2 * math.pi, 361)


def sliced_divergences_figure(outcome: Outcome) -> Figure:
    """The two distributions, and their divergence along m = 8, 16, 32 and all directions."""
    figure = new_figure(14, 4.3)
    panels = [str(count) for count in profiles.COUNTS] + [LIMIT]
    distributions = figure.add_subplot(1, 5, 1)
    for colour, line, distribution, name in _GAUSSIANS:
        _draw_distribution(distributions, distribution, colour=colour, line=line, name=name)
    distributions.set_title("P (full), Q (dashed)\n1 and 2 standard deviations", fontsize=TICK_SIZE)
    distributions.set_aspect("equal")
    distributions.set_xlabel("first coordinate", fontsize=TICK_SIZE - 1)
    distributions.set_ylabel("second coordinate", fontsize=TICK_SIZE - 1)
    make_quiet(distributions)
    top = 1.05 * float(np.nanmax(column(outcome.rows, "divergence_nats")))
    for place, panel in enumerate(panels, start=2):
        axes = cast("PolarAxes", figure.add_subplot(1, 5, place, projection="polar"))
        rows = chosen(outcome.rows, panel=panel)
        _draw_profile(axes, rows, colour=_SLICES, name="divergence along a slice")
        _draw_rings(axes, rows, "divergence_nats", ("unsliced", "joint", "average"))
        name = "all directions" if panel == LIMIT else f"m = {panel}"
        _finish_polar(axes, name, top)
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=TICK_SIZE)
    title = f"Sliced Rényi divergence of order {profiles.ORDER:g} (nats)"
    caption(figure, title, outcome.scale)
    return figure


def cap_rings_figure(outcome: Outcome) -> Figure:
    """HUC, sa-HUC and both together, at both numbers of directions."""
    figure = new_figure(10.5, 8.8)
    for row, count in enumerate(profiles.CAP_COUNTS):
        for place, kinds in enumerate((("huc",), ("sa_huc",), ("huc", "sa_huc"))):
            number = 3 * row + place + 1
            axes = cast("PolarAxes", figure.add_subplot(2, 3, number, projection="polar"))
            _draw_caps(axes, outcome, count, kinds)
    legend_below(figure, figure.axes)
    title = f"Cost of one round along each slice, order {profiles.CAPS_ORDER:g} (nats)"
    caption(figure, title, outcome.scale)
    return figure


def _draw_caps(axes: PolarAxes, outcome: Outcome, count: int, kinds: tuple[str, ...]) -> None:
    top = 0.0
    for kind in kinds:
        rows = chosen(outcome.rows, kind=kind, n_directions=count)
        colour, name = _ENVELOPES[kind]
        _draw_profile(axes, rows, colour=colour, name=f"{name} along a slice")
        top = max(top, float(np.nanmax(column(rows, "cost_nats"))))
        if len(kinds) == 1:
            _draw_rings(axes, rows, "cost_nats", ("joint", "average", "attained joint"))
    name = " and ".join(_ENVELOPES[kind][1] for kind in kinds)
    _finish_polar(axes, f"{name}, m = {count}", 1.05 * top)


def _draw_profile(axes: PolarAxes, rows: Sequence[Row], *, colour: str, name: str) -> None:
    """The slices as a closed, filled polygon with a dot at each direction, if there are few."""
    slices = [row for row in rows if row["quantity"] == "slice"]
    value = "divergence_nats" if "divergence_nats" in slices[0] else "cost_nats"
    angles, values = column(slices, "angle_radians"), column(slices, value)
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


def _draw_distribution(
    axes: Axes, distribution: GaussianDistribution, *, colour: str, line: str, name: str
) -> None:
    """Curves at one and two standard deviations, and the mean."""
    root = np.linalg.cholesky(distribution.cov)
    circle = np.array([np.cos(_AROUND), np.sin(_AROUND)])
    for radius in (1, 2):
        x, y = distribution.mean[:, None] + radius * root @ circle
        axes.plot(x, y, color=colour, linestyle=line, label=name if radius == 1 else "_")
    axes.plot(*distribution.mean, marker="+", markersize=8, color=colour)


def _finish_polar(axes: PolarAxes, title: str, top: float) -> None:
    """Title, and a scale that is written over the lines."""
    axes.set_title(title, fontsize=TITLE_SIZE - 1)
    axes.set_ylim(0, top)
    axes.set_xticks(np.arange(8) * math.pi / 4, ["0°", "", "90°", "", "180°", "", "270°", ""])
    axes.tick_params(labelsize=TICK_SIZE - 3)
    ticks = [tick for tick in MaxNLocator(3).tick_values(0, top) if 0 < tick < top]
    axes.set_yticks(ticks, [""] * len(ticks))
    axes.grid(color="#E6E6E6")
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    for tick in ticks:
        axes.text(
            _SCALE_ANGLE,
            tick,
            f"{tick:g}",
            fontsize=TICK_SIZE - 3,
            ha="center",
            va="center",
            bbox=ground,
            zorder=5,
        )


_MECHANISMS: Final[Mapping[tuple[str, str], tuple[str, str, str, str]]] = {
    ("average", "tight"): ("#0072B2", "-", "o", "Ave, tight"),
    ("average", "closed_form"): ("#0072B2", "--", "o", "Ave, closed form"),
    ("joint", "tight"): ("#D55E00", "-", "s", "Joint, tight"),
    ("joint", "closed_form"): ("#D55E00", "--", "s", "Joint, closed form"),
    SHAPED: ("#009E73", "-", "^", "whole output, shaped noise"),
}
"""Colour, line, marker and name by notion and rule."""
_QUERIES: Final = {
    "logistic_regression": "Logistic regression",
    "forest_importances": "Random forest",
    "linear_svm": "Linear SVM",
    "summary": "Summary statistics",
    "boosting_importances": "Gradient boosting",
}
_TITLES: Final = {
    ("static-adult", "natural"): "Adult, secret race, natural prior",
    ("static-adult", "balanced"): "Adult, secret one of five groups by a hash",
    ("static-adult-boosting", "natural"): "Adult, secret race, natural prior",
    ("static-adult-boosting", "balanced"): "Adult, secret one of five groups by a hash",
    ("static-adult-stratified", "balanced"): "Adult, secret race, balanced by subsampling",
    ("static-cleveland", "natural"): "Cleveland, secret sex, natural prior",
    ("static-cleveland", "balanced"): "Cleveland, secret sex, balanced by subsampling",
    ("static-student", "natural"): "Student, secret grade group, natural prior",
    ("static-student", "balanced"): "Student, secret grade group, balanced by subsampling",
    ("static-student-sex", "natural"): "Student, secret sex, natural prior",
    ("static-student-sex", "balanced"): "Student, secret sex, balanced by subsampling",
}
_EPSILON_TICKS: Final = (0.05, 0.2, 1, 5, 20, 60)


def static_figures(outcome: Outcome) -> dict[str, Figure]:
    """One picture for each prior, by its name."""
    curves = curves_of(outcome.rows)
    return {
        prior: _prior_figure(outcome, prior, [c for c in curves if c.prior == prior])
        for prior in dict.fromkeys(curve.prior for curve in curves)
    }


def _prior_figure(outcome: Outcome, prior: str, curves: Sequence[Curve]) -> Figure:
    queries = list(dict.fromkeys(curve.query for curve in curves))
    figure = new_figure(max(8.4, 4.2 * len(queries)), 11)
    rows = figure.subplots(3, len(queries), squeeze=False, sharex=True)
    for place, query in enumerate(queries):
        of_query = [curve for curve in curves if curve.query == query]
        advantages = _draw_curves(*(row[place] for row in rows), curves=of_query)
        rows[0][place].set_title(_QUERIES[query], fontsize=TITLE_SIZE, loc="left")
        rows[2][place].set_xlabel(
            f"ε of the claim, order {STATIC_ORDER:g} (nats)", fontsize=LABEL_SIZE
        )
    rows[0][0].set_ylabel("noise std of a coordinate (scaled units)", fontsize=LABEL_SIZE)
    rows[1][0].set_ylabel("MSE of a record (scaled units²)", fontsize=LABEL_SIZE)
    rows[2][0].set_ylabel("accuracy of the MAP attack", fontsize=LABEL_SIZE)
    advantages.set_ylabel("advantage over the prior", fontsize=LABEL_SIZE)
    caption(figure, _TITLES[outcome.experiment, prior], outcome.scale)
    figure.legend(handles=_handles(curves), loc="outside lower center", ncols=3, fontsize=TICK_SIZE)
    return figure


def _draw_curves(
    noise: Axes, errors: Axes, accuracies: Axes, *, curves: Sequence[Curve]
) -> SecondaryAxis:
    """All curves of a query; the axis on the right shows accuracy as advantage over the prior."""
    for curve in curves:
        _draw(noise, curve, curve.noise_stds.tolist())
        _draw(errors, curve, curve.squared_errors.tolist())
        _draw(accuracies, curve, curve.accuracies.tolist())
    for axes in (noise, errors):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
    prior = curves[0].prior_accuracy
    accuracies.axhline(prior, color=GREY, linestyle=":", linewidth=1.8)
    lowest = min(prior, *(float(curve.accuracies.min()) for curve in curves))
    accuracies.set_ylim(max(0.0, lowest - 0.05 * (1 - lowest)), 1 + 0.03 * (1 - lowest))
    for axes in (noise, errors, accuracies):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(_EPSILON_TICKS)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        make_quiet(axes)
    advantages = accuracies.secondary_yaxis(
        "right",
        functions=(
            lambda value: np.asarray(value) - prior,
            lambda value: np.asarray(value) + prior,
        ),
    )
    advantages.tick_params(labelsize=TICK_SIZE)
    return advantages


def _look(notion: str, rule: str) -> dict[str, Any]:
    colour, line, marker, _ = _MECHANISMS[notion, rule]
    return {
        "color": colour,
        "linestyle": line,
        "marker": marker,
        "markerfacecolor": "white" if rule == "closed_form" else colour,
    }


def _draw(axes: Axes, curve: Curve, values: list[float]) -> None:
    look = _look(curve.notion, curve.rule)
    axes.plot(curve.epsilons, values, linewidth=1.8, markersize=3.5, **look)


def _handles(curves: Sequence[Curve]) -> list[Line2D]:
    drawn = {(curve.notion, curve.rule) for curve in curves}
    handles = [
        Line2D([], [], label=name, **_look(*mechanism))
        for mechanism, (_, _, _, name) in _MECHANISMS.items()
        if mechanism in drawn
    ]
    prior = f"accuracy of the prior alone ({curves[0].prior_accuracy:.3f})"
    return [*handles, Line2D([], [], color=GREY, linestyle=":", label=prior)]


LOOKS: Final = {
    "srpp": ("#D55E00", "o", "-"),
    "sa_srpp": ("#0072B2", "s", "-"),
    "log_moment": ("#009E73", "^", "-"),
    "amplified": ("#CC79A7", "D", "-"),
    "recipe_srpp": ("#D55E00", "o", ":"),
    "recipe_sa_srpp": ("#0072B2", "s", ":"),
    "group_dp_sgd": ("#000000", "v", "--"),
    "almost_no_noise": ("#555555", "*", "-."),
}
"""Colour, marker and line of each series; the paper's printed recipe has open markers."""

_CLAIMED: Final = f"ε that is claimed, order {SGD_ORDER:g} (nats)"

_MORE_LOOKS: Final = {"joint": ("#E69F00", "x", ":"), "sa_joint": ("#56B4E9", "x", ":")}

NAMES: Final = {
    "srpp": "SRPP-SGD: worst case",
    "sa_srpp": "sa-SRPP-SGD: mean square, on average over batch draws only",
    "log_moment": "ours: log moment",
    "amplified": "ours: amplified",
    "recipe_srpp": "SRPP-SGD as the paper prints it",
    "recipe_sa_srpp": "sa-SRPP-SGD as the paper prints it",
    "group_dp_sgd": "group-DP-SGD, δ = 1e-5 (protects ⌈√E[K²]⌉ records, not the secret)",
    "almost_no_noise": "almost no noise: stands for no privacy",
}


_LAYER_KINDS: Final = {
    "ave": ("recipe_srpp", "Ave as printed"),
    "joint": ("joint", "Joint as printed"),
    "sa_ave": ("recipe_sa_srpp", "sa-Ave as printed"),
    "sa_joint": ("sa_joint", "sa-Joint as printed"),
    "srpp": ("srpp", "worst case, at its true cost"),
    "sa_srpp": ("sa_srpp", "mean square, at its true cost"),
    "amplified": ("amplified", "ours: amplified, at its true cost"),
}
"""The look and the name of the noise of layers that are clipped apart."""

_LAYER_RUNS: Final = {
    "recipe_srpp": "Ave as printed",
    "recipe_sa_srpp": "sa-Ave as printed",
    "amplified": "ours: amplified, at its true cost",
}


def sgd_noise_figure(outcome: Outcome) -> Figure:
    """Multipliers against epsilon at both batch sizes, and under them what they cost."""
    panels = list(dict.fromkeys((row["n_differing"], row["batch_size"]) for row in outcome.rows))
    figure = new_figure(4.8 * len(panels), 10)
    grid = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False)
    for place, (n_differing, size) in enumerate(panels):
        noise, cost = grid[0][place], grid[1][place]
        for series in LOOKS:
            rows = chosen(outcome.rows, n_differing=n_differing, batch_size=size, series=series)
            if rows:
                draw_series(noise, rows, "epsilon", "noise_multiplier")
                _draw_cost(cost, rows)
        epsilons = sorted({number_in(row, "epsilon") for row in outcome.rows})
        cost.plot(epsilons, epsilons, color=GREY, linewidth=1, label="as claimed")
        noise.set_title(f"{n_differing} differ, batch size {size}", fontsize=TITLE_SIZE)
        cost.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        for axes in (noise, cost):
            scale_by_epsilon(axes, both=True)
    grid[0][0].set_ylabel("noise multiplier (noise std / clip norm)", fontsize=LABEL_SIZE)
    grid[1][0].set_ylabel("ε of that noise (nats), by its own account", fontsize=LABEL_SIZE)
    legend_below(figure, (grid[0][0], grid[1][0]))
    title = "Noise of private SGD against ε, and what the paper's printed recipe truly costs"
    caption(figure, title, outcome.scale)
    return figure


def training_curves_figure(outcome: Outcome) -> Figure:
    """Test accuracy and loss of the batches against the epoch."""
    sizes = list(dict.fromkeys(row["batch_size"] for row in outcome.rows))
    figure = new_figure(12, 1.4 + 4.2 * len(sizes))
    grid = figure.subplots(len(sizes), 2, sharex=True, squeeze=False)
    for place, size in enumerate(sizes):
        accuracy, loss = grid[place]
        for series in LOOKS:
            rows = chosen(outcome.rows, batch_size=size, series=series)
            if rows:
                label = f"{NAMES[series]} (multiplier {rows[0]['noise_multiplier']:.3g})"
                draw_series(accuracy, rows, "epoch", "test_accuracy", label=label)
                draw_series(loss, rows, "epoch", "batch_loss")
        as_percentages(accuracy, "test accuracy")
        loss.set_ylabel("mean loss of the batches (nats)", fontsize=LABEL_SIZE)
        loss.set_yscale("log")
        loss.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        loss.yaxis.set_minor_formatter(NullFormatter())
        for axes in (accuracy, loss):
            axes.set_title(f"batch size {size}", fontsize=TITLE_SIZE)
            axes.set_xlabel("epoch", fontsize=LABEL_SIZE)
            make_quiet(axes)
    legend_below(figure, (grid[0][0],))
    caption(figure, "Private training, one line per noise", outcome.scale)
    return figure


def accuracy_epsilon_figure(outcome: Outcome) -> Figure:
    """Test accuracy against the claimed epsilon, by series and batch size."""
    sizes = list(dict.fromkeys(row["batch_size"] for row in outcome.rows))
    figure = new_figure(12, 7)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        for series in LOOKS:
            rows = chosen(outcome.rows, batch_size=size, series=series)
            if series == "almost_no_noise":
                _draw_level(axes, rows, "test_accuracy")
            elif rows:
                draw_series(axes, rows, "epsilon", "test_accuracy")
        axes.set_title(f"batch size {size}", fontsize=TITLE_SIZE)
        axes.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        scale_by_epsilon(axes, both=False)
    as_percentages(panels[0], "test accuracy")
    legend_below(figure, panels[:1])
    title = "Accuracy against ε; open markers cost more than they claim"
    caption(figure, title, outcome.scale)
    return figure


def overfitted_attack_figure(outcome: Outcome) -> Figure:
    """Training and test accuracy, losses, and the area under the attack's curve."""
    figure = new_figure(14, 6.2)
    accuracy, losses, attack = figure.subplots(1, 3)
    for series in LOOKS:
        rows = chosen(outcome.rows, series=series)
        if series == "almost_no_noise":
            _draw_level(accuracy, rows, "test_accuracy")
            _draw_level(attack, rows, "attack_auc")
        elif rows:
            name = NAMES[series]
            draw_series(accuracy, rows, "epsilon", "test_accuracy", label=f"{name}; test records")
            label = f"{name}; training records"
            pale: dict[str, Any] = {"alpha": 0.5, "marker": "^"}
            draw_series(accuracy, rows, "epsilon", "train_accuracy", label=label, **pale)
            draw_series(losses, rows, "epsilon", "non_member_loss")
            draw_series(losses, rows, "epsilon", "member_loss", **pale)
            draw_interval(attack, rows)
    as_percentages(accuracy, "accuracy")
    losses.set_ylabel("mean loss (nats)", fontsize=LABEL_SIZE)
    attack.set_ylabel("area under the ROC curve of the attack", fontsize=LABEL_SIZE)
    attack.axhline(0.5, color=GREY, linewidth=1)
    attack.text(
        0.16, 0.495, "guessing", color=GREY, va="top", transform=attack.get_yaxis_transform()
    )
    titles = ("accuracy", "loss: non-members, members (pale triangles)", "membership attack")
    for axes, title in zip((accuracy, losses, attack), titles, strict=True):
        axes.set_title(title, fontsize=TITLE_SIZE)
        axes.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        scale_by_epsilon(axes, both=axes is losses)
    legend_below(figure, (accuracy,))
    caption(figure, "Overfitted models and the membership attack", outcome.scale)
    return figure


def layer_clipping_figure(outcome: Outcome) -> Figure:
    """Noise of each layer against epsilon, and the accuracy of models trained with such noise."""
    figure = new_figure(12, 7)
    noise, accuracy = figure.subplots(1, 2)
    for kind, (look, name) in _LAYER_KINDS.items():
        rows = chosen(outcome.rows, panel="noise", series=kind)
        draw_series(noise, rows, "epsilon", "reference_noise_std", look=look, label=name)
    for series, name in _LAYER_RUNS.items():
        rows = chosen(outcome.rows, panel="accuracy", series=series)
        draw_series(accuracy, rows, "epsilon", "test_accuracy", label=name)
    noise.set_ylabel("reference noise (std, at clip norm 5)", fontsize=LABEL_SIZE)
    as_percentages(accuracy, "test accuracy")
    for axes, title in ((noise, "noise"), (accuracy, "accuracy")):
        axes.set_title(title, fontsize=TITLE_SIZE)
        axes.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        scale_by_epsilon(axes, both=axes is noise)
    legend_below(figure, (noise, accuracy), ncols=3)
    caption(figure, "Per-layer clipping: noise and accuracy against ε", outcome.scale)
    return figure


def _draw_level(axes: Axes, rows: Sequence[Row], value: str) -> None:
    """A line at what the run with almost no noise gave."""
    colour, _, line = LOOKS["almost_no_noise"]
    level = float(column(rows, value)[0])
    axes.axhline(level, color=colour, linestyle=line, linewidth=1.6, label=NAMES["almost_no_noise"])


def draw_interval(axes: Axes, rows: Sequence[Row]) -> None:
    """Values with their intervals; those of the recipe stand a little to the right."""
    series = str(rows[0]["series"])
    colour, marker, line = LOOKS[series]
    aside = 1.12 if series.startswith("recipe_") else 1.0
    value = column(rows, "attack_auc")
    ends = value - column(rows, "attack_auc_low"), column(rows, "attack_auc_high") - value
    axes.errorbar(
        aside * column(rows, "epsilon"),
        value,
        yerr=np.stack(ends),
        color=colour,
        marker=marker,
        markerfacecolor="white" if series.startswith("recipe_") else colour,
        linestyle=line,
        linewidth=1.6,
        elinewidth=1.0,
        capsize=3,
    )


def as_percentages(axes: Axes, name: str) -> None:
    """The second axis from 0 to 100 %."""
    axes.set_ylabel(name, fontsize=LABEL_SIZE)
    # A little more than everything, or the markers of a perfect score would be cut in half.
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def _draw_cost(axes: Axes, rows: Sequence[Row]) -> None:
    """Only the printed recipe costs more than it claims."""
    if str(rows[0]["series"]).startswith("recipe_"):
        size = 9 if rows[0]["series"] == "recipe_srpp" else 5
        draw_series(axes, rows, "epsilon", "epsilon_by_own_account", markersize=size)
    if rows[0]["series"] == "recipe_sa_srpp":
        axes.plot(
            column(rows, "epsilon"),
            column(rows, "epsilon_by_amplified"),
            color=LOOKS["recipe_sa_srpp"][0],
            linestyle="-.",
            linewidth=1.5,
            label="sa-SRPP-SGD as printed, by the amplified account",
        )
        axes.plot(
            column(rows, "epsilon"),
            column(rows, "reference_epsilon"),
            color=GREY,
            linestyle=":",
            linewidth=1.5,
            label="its reference ε of Opacus: one record, δ = 1e-5, not the secret",
        )


def draw_series(
    axes: Axes,
    rows: Sequence[Row],
    x: str,
    y: str,
    *,
    look: str | None = None,
    **more: Any,  # options of matplotlib
) -> None:
    """One line in the look of its series."""
    series = str(rows[0]["series"]) if look is None else look
    colour, marker, line = LOOKS.get(series) or _MORE_LOOKS[series]
    settings: dict[str, Any] = {
        "color": colour,
        "marker": marker,
        "linestyle": line,
        "markersize": 5,
        "markerfacecolor": "white" if series.startswith("recipe_") else colour,
        "linewidth": 1.6,
        "label": NAMES.get(series),
    }
    axes.plot(column(rows, x), column(rows, y), **(settings | more))


def scale_by_epsilon(axes: Axes, *, both: bool) -> None:
    """Epsilon in plain numbers on a logarithmic axis; the other axis as well if `both`."""
    axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        axis.set_minor_formatter(NullFormatter())
    if both:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    make_quiet(axes)


FIGURES: Final[Mapping[str, Callable[[Outcome], Figure]]] = {
    profiles.NAME: sliced_divergences_figure,
    profiles.CAPS_NAME: cap_rings_figure,
    "sgd-noise": sgd_noise_figure,
    "training-curves": training_curves_figure,
    "accuracy-epsilon": accuracy_epsilon_figure,
    "overfitted-attack": overfitted_attack_figure,
    "layer-clipping": layer_clipping_figure,
}
"""Experiments with one picture; static ones have one for each prior."""


def figures_of(outcome: Outcome) -> dict[str, Figure]:
    """The pictures of an outcome, by file name without the ending."""
    name = outcome.experiment
    if name in STUDIES:
        return {f"{name}-{prior}": one for prior, one in static_figures(outcome).items()}
    if name in FIGURES:
        return {name: FIGURES[name](outcome)}
    raise ArgumentError(
        f"there are no pictures for an experiment {name!r}; there are for "
        f"{', '.join(sorted((*FIGURES, *STUDIES)))}"
    )


def write_outcome(outcome: Outcome, folder: str | os.PathLike[str]) -> list[str]:
    """Write NAME.csv, NAME.json and all pictures as PNG and SVG; the names of the files.

    Each file is written as a whole or not at all.
    """
    where = Path(folder)
    make_folder(where)
    files = {
        f"{outcome.experiment}.csv": outcome.to_csv().encode(),
        f"{outcome.experiment}.json": pretty_json(outcome.to_json()),
    }
    for name, figure in figures_of(outcome).items():
        files |= {f"{name}.png": png_of(figure), f"{name}.svg": svg_of(figure)}
    for name, content in files.items():
        write_whole(where / name, content)
    return list(files)
