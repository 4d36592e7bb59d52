# SPDX-License-Identifier: Apache-2.0
"""`pufferslice compare`: the noise of this library and of other mechanisms in one table."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice.cli.output import Json, Overrides, answer, progress_bar
from pufferslice.errors import ArgumentError, escaped

if TYPE_CHECKING:
    from pufferslice.baselines.comparison import Comparison

_HEADER = (
    "mechanism", "guarantee", "scope", "noise", "MSE", "unsliced ε", "guesses", "time", "memory"
)  # fmt: skip


def compare(
    scenario: Annotated[Path, typer.Argument(help="A scenario.toml.")],
    set: Overrides = None,  # noqa: A002 - the name of the flag
    out: Annotated[
        Path | None, typer.Option(help="Write table and curves (CSV, JSON) to this folder.")
    ] = None,
    json: Json = False,
    q: Annotated[float, typer.Option(help="Of DAGWM, at least 1.")] = 1.0,
    regularisation: Annotated[float, typer.Option(help="Of Sinkhorn, in scaled units.")] = 0.1,
    tolerance: Annotated[float, typer.Option(help="Of Sinkhorn's marginals.")] = 1e-4,
    group_sensitivity: Annotated[
        float | None, typer.Option(help="In scaled units; the width of the range if left out.")
    ] = None,
    largest_table: Annotated[
        int, typer.Option(help="Most distances of a pair that a baseline may use.")
    ] = 5_000**2,
) -> None:
    """Compare the noise of all mechanisms for one scenario. Issues no certificate.

    Without [profile], sliced mechanisms use 200 directions drawn with seed 7.
    """
    from pufferslice._core.files import CONFIDENTIAL, make_folder, pretty_json, write_whole
    from pufferslice.baselines import SinkhornSettings
    from pufferslice.baselines.comparison import (
        EPSILONS,
        Settings,
        compare_mechanisms,
        noise_curves,
    )
    from pufferslice.config.scenario import read_request
    from pufferslice.sensitivity.profiles import FiniteProfile

    settings = Settings(
        q=q,
        sinkhorn=SinkhornSettings(regularisation=regularisation, tolerance=tolerance),
        group_sensitivity=group_sensitivity,
        largest_table=largest_table,
    )
    request = read_request(scenario, progress_bar, overrides=set)
    target, profile = request.target, request.profile
    if profile is None:
        profile = FiniteProfile.uniform(dim=request.scenario.dim, n_directions=200, seed=7)
    if not target.has_order:
        raise ArgumentError(
            f"mechanisms are compared at one order and epsilon, and the scenario claims {target}; "
            """replace its claim, as --set 'guarantee={notion="unsliced", order=4, epsilon=1}'"""
        )
    if not isinstance(profile, FiniteProfile):
        raise ArgumentError(
            "mechanisms are compared along the slices of a finite profile; give [profile] "
            "directions of a kind other than the sphere"
        )
    with progress_bar("mechanisms") as progress:
        comparison = compare_mechanisms(request.scenario, profile, target, settings, progress)
    value = comparison.to_json()
    text = _prose(comparison)
    if out is not None:
        make_folder(out)
        curves = noise_curves(request.scenario, profile, target.reported_order, settings)
        value |= {
            "epsilons": list(EPSILONS),
            # JSON has no NaN.
            "noise_curves": {
                name: [None if math.isnan(value) else float(value) for value in values]
                for name, values in curves.items()
            },
        }
        files = {
            "comparison.csv": comparison.to_csv().encode(),
            "comparison.json": pretty_json(value),
        }
        for name, content in files.items():
            # The numbers are computed from the data, and no certificate covers them.
            write_whole(out / name, content, CONFIDENTIAL)
        value["written"] = list(files)
        text += f"\n\nWritten to {out}: {', '.join(files)}"
    answer(value, text, json=json)


def _prose(comparison: "Comparison") -> str:
    """Write the rows, then notes, then what was left out and why."""
    from pufferslice._core.numbers import percent_at_most
    from pufferslice.report.text import counted, text_table

    cells = [
        (
            row.mechanism,
            row.guarantee,
            row.scope,
            f"{row.noise_std:.4g}",
            f"{row.mean_squared_error:.4g}",
            "infinite" if row.unsliced_epsilon is None else f"{row.unsliced_epsilon:.4g}",
            "-" if row.guess is None else percent_at_most(row.guess).replace("\u00a0", " "),
            f"{row.seconds:.3f} s",
            f"{row.peak_bytes / 2**20:.2f} MiB",
        )
        for row in comparison.rows
    ]
    n_instances, dim = counted(comparison.n_instances, "instance"), comparison.dim
    heading = f"Noise for ε = {comparison.epsilon:g} at order {comparison.order:g}; {n_instances}"
    parts = [
        f"{heading}, {counted(dim, 'coordinate')}, scaled units.",
        text_table([_HEADER, *cells]),
    ]
    notes = [escaped(f"{row.mechanism}: {row.note}.") for row in comparison.rows if row.note]
    if notes:
        parts.append("\n".join(notes))
    parts += [escaped(f"{name} is left out: {why}.") for name, why in comparison.left_out.items()]
    return "\n\n".join(parts)
