# SPDX-License-Identifier: Apache-2.0
"""`pufferslice verify`: recompute the claim from the evidence."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice.cli.output import REFUSED, Json, answer, progress_bar

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario


def verify(
    certificate: Annotated[Path, typer.Argument(help="A certificate beside its evidence.")],
    key: Annotated[
        Path | None, typer.Option(help="A public key (PEM) that must have signed it.")
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(help="Recompute everything from this scenario.toml or budget.toml."),
    ] = None,
    rigorous: Annotated[
        bool,
        typer.Option(
            "--rigorous",
            help="Also prove the claim in ball arithmetic, with every rounding bounded.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Recompute the claim from the evidence, or from the data; exits 1 if it does not hold."""
    from pufferslice._core.files import read_bytes
    from pufferslice.certificate import Certificate
    from pufferslice.certificate import verify as recompute
    from pufferslice.config.budget import is_budget, read_budget
    from pufferslice.config.scenario import read_request

    held = Certificate.load(certificate)
    data: Scenario | dict[str, Scenario] | None = None
    if scenario is not None and is_budget(scenario):
        data = read_budget(scenario, progress_bar).scenarios
    elif scenario is not None:
        data = read_request(scenario, progress_bar).scenario
    signed_by = None if key is None else read_bytes(key, "key")
    # From data the couplings are looked for again, as long as when they were certified.
    with progress_bar("recomputing couplings") as progress:
        result = recompute(
            held, public_key=signed_by, scenario=data, rigorous=rigorous, progress=progress
        )
    value = {
        "holds": result.holds,
        "signed": result.signed,
        "problems": list(result.problems),
        "unchecked": list(result.unchecked),
        "certificate": held.digest,
    }
    if rigorous:
        value["proof"] = None if result.proof is None else result.proof.to_json()
    answer(value, str(result), json=json)
    if not result.holds:
        raise typer.Exit(REFUSED)
