# SPDX-License-Identifier: Apache-2.0
"""Title and scale on the pictures of an experiment, and its rows as columns to draw."""

import textwrap
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.errors import MissingExtraError
from pufferslice.paper.experiment import Cell, Outcome, Row, number_in
from pufferslice.report.figures import TICK_SIZE, TITLE_SIZE

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

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


def chosen(outcome: Outcome, **wanted: Cell) -> list[Row]:
    """The rows with these values, in their order."""
    return [row for row in outcome.rows if all(row[key] == wanted[key] for key in wanted)]


def column(rows: Sequence[Row], name: str) -> Floats:
    """One column as numbers; NaN where there is none."""
    return np.array([number_in(row, name) for row in rows])
