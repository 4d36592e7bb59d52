# SPDX-License-Identifier: Apache-2.0
"""Pictures of the static experiments: error and attack accuracy against epsilon, panel by panel.

Colours tell the notion, full lines our tight rule, dashed ones the paper's closed form.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from pufferslice.errors import MissingExtraError
from pufferslice.paper.experiment import Outcome
from pufferslice.paper.static_curves import Curve, curves_of
from pufferslice.paper.static_experiments import STUDIES
from pufferslice.paper.static_panels import ORDER
from pufferslice.report.captions import GREY, caption
from pufferslice.report.figures import LABEL_SIZE, TICK_SIZE, TITLE_SIZE, make_quiet, new_figure

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_COLOURS: Final = {"average": "#0072B2", "joint": "#D55E00"}
_WORDS: Final = {"average": "Ave", "joint": "Joint"}
_RULES: Final[Mapping[str, tuple[Literal["-", "--"], str]]] = {
    "tight": ("-", "tight"),
    "closed_form": ("--", "closed form"),
}
_QUERIES: Final = {
    "logistic_regression": "Logistic regression",
    "forest_importances": "Random forest",
    "linear_svm": "Linear SVM",
    "summary": "Summary statistics",
}
_TITLES: Final = {
    ("static-adult", "natural"): "Adult, secret race, natural prior",
    ("static-adult", "balanced"): "Adult, secret one of five groups by a hash",
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
    figure = new_figure(4 * len(queries), 7.8)
    rows = figure.subplots(2, len(queries), squeeze=False, sharex=True)
    for column, query in enumerate(queries):
        chosen = [curve for curve in curves if curve.query == query]
        _draw_errors(rows[0][column], chosen)
        _draw_accuracies(rows[1][column], chosen)
        rows[0][column].set_title(_QUERIES[query], fontsize=TITLE_SIZE, loc="left")
        rows[1][column].set_xlabel(f"ε of the claim, order {ORDER:g} (nats)", fontsize=LABEL_SIZE)
    rows[0][0].set_ylabel("MSE of a record (scaled units²)", fontsize=LABEL_SIZE)
    rows[1][0].set_ylabel("accuracy of the MAP attack", fontsize=LABEL_SIZE)
    caption(figure, _TITLES[outcome.experiment, prior], outcome.scale)
    figure.legend(handles=_handles(curves), loc="outside lower center", ncols=5, fontsize=TICK_SIZE)
    return figure


def _draw_errors(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        _draw(axes, curve, curve.squared_errors.tolist())
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=8))
    _finish(axes)


def _draw_accuracies(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        _draw(axes, curve, curve.accuracies.tolist())
    axes.axhline(curves[0].prior_accuracy, color=GREY, linestyle=":", linewidth=1.8)
    lowest = min(curves[0].prior_accuracy, *(float(c.accuracies.min()) for c in curves))
    axes.set_ylim(max(0.0, lowest - 0.05 * (1 - lowest)), 1 + 0.03 * (1 - lowest))
    axes.set_xscale("log")
    _finish(axes)


def _draw(axes: Axes, curve: Curve, values: list[float]) -> None:
    line, _ = _RULES[curve.rule]
    axes.plot(
        curve.epsilons,
        values,
        color=_COLOURS[curve.notion],
        linestyle=line,
        linewidth=1.8,
        marker="o" if curve.notion == "average" else "s",
        markersize=3.5,
        markerfacecolor=_COLOURS[curve.notion] if curve.rule == "tight" else "white",
    )


def _finish(axes: Axes) -> None:
    axes.xaxis.set_major_locator(FixedLocator(list(_EPSILON_TICKS)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    make_quiet(axes)


def _handles(curves: Sequence[Curve]) -> list[Line2D]:
    handles = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=line,
            marker="o" if notion == "average" else "s",
            markerfacecolor=colour if rule == "tight" else "white",
            label=f"{_WORDS[notion]}, {words}",
        )
        for notion, colour in _COLOURS.items()
        for rule, (line, words) in _RULES.items()
    ]
    prior = f"accuracy of the prior alone ({curves[0].prior_accuracy:.3f})"
    return [*handles, Line2D([], [], color=GREY, linestyle=":", label=prior)]


FIGURES: Final[Mapping[str, Callable[[Outcome], dict[str, Figure]]]] = dict.fromkeys(
    STUDIES, static_figures
)
"""How each static experiment is drawn."""
