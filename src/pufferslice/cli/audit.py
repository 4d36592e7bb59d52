# SPDX-License-Identifier: Apache-2.0
"""`pufferslice audit`: try to refute a certificate with fresh outputs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pufferslice.cli.output import (
    REFUSED,
    Json,
    PlotFile,
    answer,
    check_plot,
    plotted,
    progress_bar,
)
from pufferslice.errors import ArgumentError

_DEFAULT_N_OUTPUTS = 100_000


def audit(
    certificate: Annotated[Path, typer.Argument(help="A certificate of a release.")],
    scenario: Annotated[Path, typer.Option(help="The scenario.toml that was certified.")],
    n_outputs: Annotated[
        int | None, typer.Option(help="Fresh outputs under each secret; default 100000.")
    ] = None,
    supplied: Annotated[
        Path | None, typer.Option(help="Outputs of the mechanism instead, from Outputs.save.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability that a true claim is not refuted.")
    ] = 0.95,
    seed: Annotated[
        int, typer.Option(help="Seed of drawn values and the pilot; noise has none.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the audit as JSON, for `pufferslice report`.")
    ] = None,
    plot: PlotFile = None,
    json: Json = False,
) -> None:
    """Attack what a certificate states; exits 1 if anything is refuted. Nothing is released."""
    from pufferslice._core.files import CONFIDENTIAL, pretty_json, write_whole
    from pufferslice.audit import Outputs, audit_outputs, audit_release
    from pufferslice.certificate import Certificate
    from pufferslice.config.scenario import read_request

    if n_outputs is not None and supplied is not None:
        raise ArgumentError(
            "give either --n-outputs, how many to draw, or --supplied, existing outputs; not both"
        )
    check_plot(plot)
    held = Certificate.load(certificate)
    if held.workflow == "budget":
        raise ArgumentError(
            "a budget is not audited as a whole: certify and audit each part by its scenario.toml; "
            "verify recomputes what all parts cost together"
        )
    request = read_request(scenario, progress_bar)
    options: dict[str, Any] = {"confidence": confidence, "seed": seed}
    with progress_bar("claims") as progress:
        if supplied is not None:
            outputs = Outputs.load(supplied)
            result = audit_outputs(
                request.scenario, request.profile, held, outputs, **options, progress=progress
            )
        else:
            n_drawn = _DEFAULT_N_OUTPUTS if n_outputs is None else n_outputs
            result = audit_release(
                request.scenario,
                request.profile,
                held,
                n_outputs=n_drawn,
                **options,
                progress=progress,
            )
    if out is not None:
        write_whole(out, pretty_json(result.to_json()), CONFIDENTIAL)
    answer(result.to_json(), f"{result}{plotted(plot, result.plot)}", json=json)
    if result.refuted:
        raise typer.Exit(REFUSED)
