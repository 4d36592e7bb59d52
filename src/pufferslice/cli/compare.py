# SPDX-License-Identifier: Apache-2.0
"""`pufferslice compare`: ours beside what others would add, in one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pufferslice.cli.output import print_json, progress_bar, say
from pufferslice.errors import ArgumentError

if TYPE_CHECKING:
    from pufferslice.baselines.comparison import Comparison, Settings
    from pufferslice.calibration.guarantee import Guarantee
    from pufferslice.config import Request
    from pufferslice.scenario.scenario import Scenario
    from pufferslice.sensitivity.profiles import FiniteProfile


def compare(
    scenario: Annotated[Path, typer.Argument(help="A scenario.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="Write table and curves (CSV, JSON) to this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    q: Annotated[float, typer.Option(help="Of DAGWM, at least 1.")] = 1.0,
    regularisation: Annotated[float, typer.Option(help="Of Sinkhorn, in scaled units.")] = 0.1,
    tolerance: Annotated[float, typer.Option(help="Of Sinkhorn's marginals.")] = 1e-4,
    group_sensitivity: Annotated[
        float | None, typer.Option(help="In scaled units; the width of the range if left out.")
    ] = None,
    largest_table: Annotated[
        int, typer.Option(help="Most distances of a pair that a baseline may look at.")
    ] = 5_000**2,
) -> None:
    """Compare the noise of all mechanisms for one scenario. Issues no certificate."""
    from pufferslice.baselines import SinkhornSettings
    from pufferslice.baselines.comparison import Settings, compare_mechanisms
    from pufferslice.config import read_request
    from pufferslice.report.comparison import comparison_text

    settings = Settings(
        q=q,
        sinkhorn=SinkhornSettings(regularisation=regularisation, tolerance=tolerance),
        group_sensitivity=group_sensitivity,
        largest_table=largest_table,
    )
    asked = _comparable(read_request(scenario))
    with progress_bar("mechanisms") as progress:
        found = compare_mechanisms(*asked, settings, progress)
    answer = found.to_json()
    if out is not None:
        answer |= _written(out, asked, settings, found)
    if json:
        print_json(answer)
        return
    say(comparison_text(found))
    if out is not None:
        say(f"\nWritten to {out}: {', '.join(answer['written'])}")


def _comparable(request: "Request") -> "tuple[Scenario, FiniteProfile, Guarantee]":
    """What every mechanism has: exact distributions, a finite profile, and an order."""
    from pufferslice.calibration.guarantee import Guarantee
    from pufferslice.sensitivity.profiles import FiniteProfile

    if not isinstance(request.target, Guarantee) or not isinstance(request.profile, FiniteProfile):
        msg = (
            "mechanisms are compared at one order, along the slices of a finite profile; give "
            "[guarantee] an order and no delta, and [profile] a kind other than the sphere"
        )
        raise ArgumentError(msg)
    return request.scenario, request.profile, request.target


def _written(
    out: Path,
    asked: "tuple[Scenario, FiniteProfile, Guarantee]",
    settings: "Settings",
    found: "Comparison",
) -> dict[str, Any]:
    """Make the folder and write table and noise curves; what the answer adds about them."""
    from pufferslice._core.files import CONFIDENTIAL, make_folder, pretty_json, write_whole
    from pufferslice.baselines.comparison import EPSILONS, noise_curves

    make_folder(out)
    scenario, profile, target = asked
    curves = noise_curves(scenario, profile, target.order, settings)
    added: dict[str, Any] = {
        "epsilons": list(EPSILONS),
        "noise_curves": {name: _numbers(values) for name, values in curves.items()},
    }
    files = {
        "comparison.csv": found.to_csv().encode(),
        "comparison.json": pretty_json(found.to_json() | added),
    }
    for name, content in files.items():
        # The numbers are computed from the data, and no certificate covers them.
        write_whole(out / name, content, CONFIDENTIAL)
    return added | {"written": list(files)}


def _numbers(values: Any) -> list[float | None]:  # noqa: ANN401 - an array of floats
    """JSON has no NaN: where there is no number, there is none."""
    return [None if value != value else float(value) for value in values]  # noqa: PLR0124 - NaN
