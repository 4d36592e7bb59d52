# SPDX-License-Identifier: Apache-2.0
"""Pictures of the paper's experiments on learning: noise, accuracy and attacks against epsilon."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from pufferslice.errors import MissingExtraError
from pufferslice.paper.experiment import Outcome, Row, number_in
from pufferslice.paper.sgd_setup import ORDER
from pufferslice.report.captions import GREY, caption, chosen, column, legend_below
from pufferslice.report.figures import LABEL_SIZE, TITLE_SIZE, make_quiet, new_figure

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

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

_CLAIMED: Final = f"ε that is claimed, order {ORDER:g} (nats)"

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
    figure = new_figure(12, 10)
    sizes = list(dict.fromkeys(row["batch_size"] for row in outcome.rows))
    grid = figure.subplots(2, len(sizes), sharex=True, sharey="row")
    for place, size in enumerate(sizes):
        noise, cost = grid[0][place], grid[1][place]
        for series in LOOKS:
            rows = chosen(outcome, batch_size=size, series=series)
            if rows:
                draw_series(noise, rows, "epsilon", "noise_multiplier")
                _draw_cost(cost, rows)
        epsilons = sorted({number_in(row, "epsilon") for row in outcome.rows})
        cost.plot(epsilons, epsilons, color=GREY, linewidth=1, label="as claimed")
        noise.set_title(f"batch size {size}", fontsize=TITLE_SIZE)
        cost.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        for axes in (noise, cost):
            _scale_by_epsilon(axes, both=True)
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
            rows = chosen(outcome, batch_size=size, series=series)
            if rows:
                label = f"{NAMES[series]} (multiplier {rows[0]['noise_multiplier']:.3g})"
                draw_series(accuracy, rows, "epoch", "test_accuracy", label=label)
                draw_series(loss, rows, "epoch", "batch_loss")
        _as_percentages(accuracy, "test accuracy")
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
            rows = chosen(outcome, batch_size=size, series=series)
            if series == "almost_no_noise":
                _draw_level(axes, rows, "test_accuracy")
            elif rows:
                draw_series(axes, rows, "epsilon", "test_accuracy")
        axes.set_title(f"batch size {size}", fontsize=TITLE_SIZE)
        axes.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        _scale_by_epsilon(axes, both=False)
    _as_percentages(panels[0], "test accuracy")
    legend_below(figure, panels[:1])
    title = "Accuracy against ε; open markers cost more than they claim"
    caption(figure, title, outcome.scale)
    return figure


def overfitted_attack_figure(outcome: Outcome) -> Figure:
    """Training and test accuracy, losses, and the area under the attack's curve."""
    figure = new_figure(14, 6.2)
    accuracy, losses, attack = figure.subplots(1, 3)
    for series in LOOKS:
        rows = chosen(outcome, series=series)
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
            _draw_interval(attack, rows)
    _as_percentages(accuracy, "accuracy")
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
        _scale_by_epsilon(axes, both=axes is losses)
    legend_below(figure, (accuracy,))
    caption(figure, "Overfitted models and the membership attack", outcome.scale)
    return figure


def layer_clipping_figure(outcome: Outcome) -> Figure:
    """Noise of each layer against epsilon, and the accuracy of models trained with such noise."""
    figure = new_figure(12, 7)
    noise, accuracy = figure.subplots(1, 2)
    for kind, (look, name) in _LAYER_KINDS.items():
        rows = chosen(outcome, panel="noise", series=kind)
        draw_series(noise, rows, "epsilon", "reference_noise_std", look=look, label=name)
    for series, name in _LAYER_RUNS.items():
        rows = chosen(outcome, panel="accuracy", series=series)
        draw_series(accuracy, rows, "epsilon", "test_accuracy", label=name)
    noise.set_ylabel("reference noise (std, at clip norm 5)", fontsize=LABEL_SIZE)
    _as_percentages(accuracy, "test accuracy")
    for axes, title in ((noise, "noise"), (accuracy, "accuracy")):
        axes.set_title(title, fontsize=TITLE_SIZE)
        axes.set_xlabel(_CLAIMED, fontsize=LABEL_SIZE)
        _scale_by_epsilon(axes, both=axes is noise)
    legend_below(figure, (noise, accuracy), ncols=3)
    caption(figure, "Per-layer clipping: noise and accuracy against ε", outcome.scale)
    return figure


def _draw_level(axes: Axes, rows: Sequence[Row], value: str) -> None:
    """A line at what the run with almost no noise gave."""
    colour, _, line = LOOKS["almost_no_noise"]
    level = float(column(rows, value)[0])
    axes.axhline(level, color=colour, linestyle=line, linewidth=1.6, label=NAMES["almost_no_noise"])


def _draw_interval(axes: Axes, rows: Sequence[Row]) -> None:
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


def _as_percentages(axes: Axes, name: str) -> None:
    axes.set_ylabel(name, fontsize=LABEL_SIZE)
    # A little more than everything, or the markers of a perfect score would be cut in half.
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))


def _draw_cost(axes: Axes, rows: Sequence[Row]) -> None:
    """Only the printed recipe costs something else than it claims."""
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


def draw_series(
    axes: Axes,
    rows: Sequence[Row],
    x: str,
    y: str,
    *,
    look: str | None = None,
    **more: Any,  # noqa: ANN401 - options of matplotlib
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


def _scale_by_epsilon(axes: Axes, *, both: bool) -> None:
    """Epsilon in plain numbers on a logarithmic axis; the other axis as well if `both`."""
    axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        axis.set_minor_formatter(NullFormatter())
    if both:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    make_quiet(axes)


FIGURES: Final[dict[str, Callable[[Outcome], dict[str, Figure]]]] = {
    "sgd-noise": lambda outcome: {"sgd-noise": sgd_noise_figure(outcome)},
    "training-curves": lambda outcome: {"training-curves": training_curves_figure(outcome)},
    "accuracy-epsilon": lambda outcome: {"accuracy-epsilon": accuracy_epsilon_figure(outcome)},
    "overfitted-attack": lambda outcome: {"overfitted-attack": overfitted_attack_figure(outcome)},
    "layer-clipping": lambda outcome: {"layer-clipping": layer_clipping_figure(outcome)},
}
"""The pictures of each experiment, by the names of their files."""
