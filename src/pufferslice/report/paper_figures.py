# SPDX-License-Identifier: Apache-2.0
"""The files of an experiment: table, numbers with claims, and pictures."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pufferslice.errors import ArgumentError, MissingExtraError
from pufferslice.paper.experiment import Outcome
from pufferslice.report import learning_figures, profile_figures, static_figures
from pufferslice.report.figures import png_of, svg_of
from pufferslice.storage import make_folder, pretty_json, write_whole

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    msg = "pictures need matplotlib; install it with: pip install 'pufferslice[report]'"
    raise MissingExtraError(msg) from error

_FIGURES: Final[dict[str, Callable[[Outcome], dict[str, Figure]]]] = {
    **profile_figures.FIGURES,
    **static_figures.FIGURES,
    **learning_figures.FIGURES,
}


def figures_of(outcome: Outcome) -> dict[str, Figure]:
    """The pictures of an outcome, by the names of their files without ending."""
    if outcome.experiment not in _FIGURES:
        msg = (
            f"there are no pictures for an experiment {outcome.experiment!r}; there are for "
            f"{', '.join(sorted(_FIGURES))}"
        )
        raise ArgumentError(msg)
    drawn = _FIGURES[outcome.experiment](outcome)
    return {_stem(outcome.experiment, name): figure for name, figure in drawn.items()}


def write_outcome(outcome: Outcome, folder: str | os.PathLike[str]) -> list[str]:
    """Write NAME.csv, NAME.json and all pictures as PNG and SVG, each file whole; their names."""
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


def _stem(experiment: str, name: str) -> str:
    """Every file of an experiment begins with its name."""
    return name if name.startswith(experiment) else f"{experiment}-{name}"
