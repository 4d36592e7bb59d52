# SPDX-License-Identifier: Apache-2.0
"""Rows of the static experiments as curves against epsilon, averaged over the trials."""

from collections.abc import Sequence
from typing import final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.paper.experiment import Row, number_in


@final
@attrs.frozen(kw_only=True)
class Curve:
    """Noise, error and attack of one panel, notion and rule against epsilon: means over trials."""

    prior: str
    query: str
    notion: str
    rule: str
    epsilons: Floats = attrs.field(converter=locked, eq=same)
    """Ascending."""
    noise_stds: Floats = attrs.field(converter=locked, eq=same)
    squared_errors: Floats = attrs.field(converter=locked, eq=same)
    """Mean squared error of a record: summed over the coordinates, in scaled units."""
    accuracies: Floats = attrs.field(converter=locked, eq=same)
    prior_accuracy: float
    n_outputs: int
    """Simulated outputs behind each point: records times trials."""
    dim: int

    @property
    def panel(self) -> str:
        """Which panel, in words."""
        return f"{self.prior} {self.query}"

    @property
    def accuracy_deviations(self) -> Floats:
        """Standard error of each accuracy, at least that of one output in all."""
        p = np.clip(self.accuracies, 1 / self.n_outputs, 1 - 1 / self.n_outputs)
        return np.sqrt(p * (1 - p) / self.n_outputs)

    @property
    def squared_error_deviation(self) -> float:
        """Relative standard error of each mean squared error: squares of normal draws."""
        return float(np.sqrt(2 / (self.dim * self.n_outputs)))


def curves_of(rows: Sequence[Row]) -> tuple[Curve, ...]:
    """The curves of an outcome's rows, in the order of their first rows."""
    keys = ("prior", "query", "notion", "rule")
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return tuple(_curve(dict(zip(keys, key, strict=True)), found) for key, found in grouped.items())


def _curve(named: dict[str, str], rows: Sequence[Row]) -> Curve:
    epsilons = sorted({number_in(row, "epsilon") for row in rows})
    n_trials = len({row["trial"] for row in rows})

    def means(column: str) -> Floats:
        cells: dict[float, list[float]] = {epsilon: [] for epsilon in epsilons}
        for row in rows:
            cells[number_in(row, "epsilon")].append(number_in(row, column))
        return np.array([np.mean(cell) for cell in cells.values()])

    return Curve(
        prior=named["prior"],
        query=named["query"],
        notion=named["notion"],
        rule=named["rule"],
        epsilons=np.array(epsilons),
        noise_stds=means("noise_std"),
        squared_errors=means("mse"),
        accuracies=means("accuracy"),
        prior_accuracy=number_in(rows[0], "prior_accuracy"),
        n_outputs=int(number_in(rows[0], "n_records")) * n_trials,
        dim=int(number_in(rows[0], "dim")),
    )
