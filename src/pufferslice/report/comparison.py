# SPDX-License-Identifier: Apache-2.0
"""A comparison as plain text, and which of its curves lie on top of each other."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.compare import Comparison, Row
from pufferslice.guarantee import percent_at_most
from pufferslice.report.blocks import counted
from pufferslice.report.tables import text_table
from pufferslice.showing import escaped

_EQUAL: Final = 0.005
"""Curves that differ by less than this share cannot be told apart and share a line."""
_HEADER: Final = (
    "mechanism", "guarantee", "scope", "noise", "MSE", "unsliced ε", "guesses", "time", "memory"
)  # fmt: skip


def comparison_text(found: Comparison) -> str:
    """The rows, then notes, then what was left out and why."""
    sizes = f"{counted(found.n_instances, 'instance')}, {counted(found.dim, 'coordinate')}"
    heading = f"Noise for ε = {found.epsilon:g} at order {found.order:g}; {sizes}, scaled units."
    parts = [heading, text_table([_HEADER, *map(_cells, found.rows)])]
    notes = [escaped(f"{row.mechanism}: {row.note}.") for row in found.rows if row.note]
    if notes:
        parts.append("\n".join(notes))
    parts += [escaped(f"{name} is left out: {why}.") for name, why in found.left_out.items()]
    return "\n\n".join(parts)


def grouped(curves: Mapping[str, Floats]) -> list[list[str]]:
    """Names of curves that coincide, together; in the order of the first of each group."""
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if np.allclose(values, curves[group[0]], rtol=_EQUAL, atol=0, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _cells(row: Row) -> tuple[str, ...]:
    unsliced = "infinite" if row.unsliced_epsilon is None else f"{row.unsliced_epsilon:.4g}"
    return (
        row.mechanism,
        row.guarantee,
        row.scope,
        f"{row.noise_std:.4g}",
        f"{row.mean_squared_error:.4g}",
        unsliced,
        "-" if row.guess is None else percent_at_most(row.guess).replace("\u00a0", " "),
        f"{row.seconds:.3f} s",
        f"{row.peak_bytes / 2**20:.2f} MiB",
    )
