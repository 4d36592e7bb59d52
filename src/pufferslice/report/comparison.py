# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison as plain text."""

from pufferslice.compare import Comparison, Row
from pufferslice.report.tables import text_table

_HEADER = ("mechanism", "guarantee", "scope", "noise", "MSE", "unsliced ε", "time", "memory")


def comparison_text(found: Comparison) -> str:
    """The rows, then notes, then what was left out and why."""
    sizes = f"{_counted(found.n_instances, 'instance')}, {_counted(found.dim, 'coordinate')}"
    heading = f"Noise for ε = {found.epsilon:g} at order {found.order:g}; {sizes}, scaled units."
    parts = [heading, text_table([_HEADER, *map(_cells, found.rows)])]
    notes = [f"{row.mechanism}: {row.note}." for row in found.rows if row.note]
    if notes:
        parts.append("\n".join(notes))
    parts += [f"{name} is left out: {why}." for name, why in found.left_out.items()]
    return "\n\n".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cells(row: Row) -> tuple[str, ...]:
    unsliced = "infinite" if row.unsliced_epsilon is None else f"{row.unsliced_epsilon:.4g}"
    return (
        row.mechanism,
        row.guarantee,
        row.scope,
        f"{row.noise_std:.4g}",
        f"{row.mean_squared_error:.4g}",
        unsliced,
        f"{row.seconds:.3f} s",
        f"{row.peak_bytes / 2**20:.2f} MiB",
    )
