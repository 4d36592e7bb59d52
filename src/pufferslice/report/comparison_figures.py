# SPDX-License-Identifier: Apache-2.0
"""Pictures of a comparison: noise against epsilon, and run time against the number of samples."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.compare import RunTimes
from pufferslice.compare.running import BASELINES
from pufferslice.errors import MissingExtraError
from pufferslice.report.comparison import grouped
from pufferslice.report.figures import (
    LABEL_SIZE,
    TICK_SIZE,
    TITLE_SIZE,
    make_logarithmic,
    new_figure,
)

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_OURS: Final = {"average": "#0072B2", "joint": "#D55E00", "unsliced": "#000000"}
_OTHERS: Final = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
_MARKERS: Final = "ovsD^"


def comparison_figure(
    epsilons: Sequence[float], curves: Mapping[str, Floats], *, order: float
) -> Figure:
    """Noise of every mechanism against epsilon; ours in full lines, the others dashed.

    Curves that lie on top of each other are drawn once, under all their names.
    """
    figure = new_figure(11, 6.2)
    axes = figure.subplots()
    for names in grouped(curves):
        _draw_noise(axes, epsilons, curves[names[0]], names)
    title = "Noise at the same ε (sliced and unsliced claims are different promises)"
    axes.set_title(title, fontsize=TITLE_SIZE, loc="left")
    axes.set_xlabel(f"ε of the claim, at order {order:g} (nats)", fontsize=LABEL_SIZE)
    axes.set_ylabel("noise standard deviation (scaled units)", fontsize=LABEL_SIZE)
    make_logarithmic(axes, epsilons)
    figure.legend(
        loc="outside right center",
        fontsize=TICK_SIZE,
        title="full lines: ours; ≈ the same line",
        handlelength=3,
    )
    return figure


def run_time_figure(times: Sequence[RunTimes]) -> Figure:
    """Seconds against the number of samples, with the fitted power of each line."""
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    colours = (_OURS["joint"], _OTHERS[0], _OTHERS[2])
    for one, colour, marker in zip(times, colours, _MARKERS, strict=False):
        label = f"{one.method}: n$^{{{one.exponent:.2f}}}$"
        axes.plot(one.sizes, one.seconds, marker=marker, color=colour, linewidth=2, label=label)
        axes.plot(one.sizes, _power_law(one), linestyle=":", color=colour, linewidth=1.5)
    axes.plot([], [], linestyle=":", color="#555555", label="fitted power of n")
    axes.set_title("Run time of one pair", fontsize=TITLE_SIZE, loc="left")
    axes.set_xlabel("samples of each law, n", fontsize=LABEL_SIZE)
    axes.set_ylabel("seconds", fontsize=LABEL_SIZE)
    make_logarithmic(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=TICK_SIZE)
    return figure


def _draw_noise(
    axes: Axes, epsilons: Sequence[float], values: Floats, names: Sequence[str]
) -> None:
    first = names[0]
    theirs = first in BASELINES
    place = BASELINES.index(first) if theirs else 0
    axes.plot(
        epsilons,
        values,
        linewidth=2,
        markersize=5,
        linestyle="--" if theirs else "-",
        color=_OTHERS[place] if theirs else _OURS[first.split(",")[0]],
        marker=_MARKERS[place] if theirs else _marker(first),
        label="\n≈ ".join(names),
    )


def _marker(name: str) -> str:
    """By rule and envelope."""
    if name.endswith("closed form"):
        return "s"
    return "^" if name.endswith("worst gap") else "o"


def _power_law(times: RunTimes) -> Floats:
    middle = math.exp(float(np.log(times.seconds).mean()))
    return middle * (times.sizes / math.exp(float(np.log(times.sizes).mean()))) ** times.exponent
