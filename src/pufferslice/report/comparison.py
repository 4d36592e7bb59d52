# SPDX-License-Identifier: Apache-2.0
"""A comparison with other mechanisms as text and as a section of the internal edition."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.baselines import comparison
from pufferslice.baselines.comparison import Comparison, Row
from pufferslice.calibration.guarantee import at_most, in_full, percent_at_most
from pufferslice.errors import escaped
from pufferslice.report.blocks import (
    Block,
    Bullets,
    Figure,
    Section,
    Table,
    Words,
    bar_shares,
    counted,
    number,
    text_table,
)
from pufferslice.report.inputs import Curves
from pufferslice.report.svg import Axes, Series, line_chart

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


_CURVE_LOOKS: Final = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
)  # fmt: skip
_DRAWN: Final = ("tight, transport", "tight, exact", comparison.UNSLICED)
"""How the names of our forms end that are drawn; all are in the table."""


def comparison_section(comparisons: Sequence[Curves], part: str) -> Section:
    """Baselines: what others would add for the same epsilon."""
    blocks: list[Block] = [Words("baselines")]
    for one in comparisons:
        blocks.append(_comparison_table(one))
        if one.epsilons and one.noise_stds:
            blocks.append(_comparison_figure(one))
        if one.table.left_out:
            left = [f"{name} is left out: {why}." for name, why in one.table.left_out.items()]
            blocks.append(Bullets(items=tuple(left)))
    return Section(id=f"{part}-baselines", title="Baselines", blocks=tuple(blocks))


def _comparison_table(one: Curves) -> Table:
    rows = one.table.rows
    return Table(
        caption=f"Noise at order {in_full(one.table.order)}, ε = {in_full(one.table.epsilon)}; "
        "scaled units",
        head=(
            "mechanism",
            "promise",
            "scope",
            "noise std",
            "unsliced ε, at most",
            "right guesses, at most",
        ),
        rows=tuple(
            (
                f"{row.mechanism} (ours)" if row.is_ours else row.mechanism,
                row.guarantee,
                row.scope,
                number(row.noise_std),
                "infinite" if row.unsliced_epsilon is None else at_most(row.unsliced_epsilon),
                "-" if row.guess is None else percent_at_most(row.guess),
            )
            for row in rows
        ),
        bars=bar_shares([row.noise_std for row in rows]),
        bar_name="noise",
    )


def _comparison_figure(one: Curves) -> Figure:
    ours = {row.mechanism for row in one.table.rows if row.is_ours}
    chosen = {
        name: np.array(values, dtype=float)
        for name, values in one.noise_stds.items()
        if name not in ours or name.endswith(_DRAWN)
    }
    groups = grouped(chosen)
    series = [
        Series(name=" ≈ ".join(names), look=look, xs=one.epsilons, ys=one.noise_stds[names[0]])
        for names, look in zip(groups, cycle(_CURVE_LOOKS), strict=False)
    ]
    axes = Axes(
        x_label="ε of the claim (nats)",
        y_label="noise std (scaled units)",
        log_x=True,
        log_y=True,
    )
    title = "Noise of all mechanisms against ε"
    return Figure(
        title=title,
        svg=line_chart(title, series, axes),
        legend=tuple((s.look, s.name) for s in series),
        note="Mechanisms joined by ≈ lie on one line." if len(groups) < len(chosen) else "",
        table=Table(
            caption=title,
            head=("noise std at ε =", *map(in_full, one.epsilons)),
            rows=tuple((name, *map(number, values)) for name, values in one.noise_stds.items()),
        ),
    )
