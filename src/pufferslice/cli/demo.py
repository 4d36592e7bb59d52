# SPDX-License-Identifier: Apache-2.0
"""`pufferslice demo`: one protected release of the embedded Adult table, audited, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import REFUSED, Json, answer, progress_bar


def demo(
    out: Annotated[Path, typer.Option(help="Folder for certificate, release and report.")] = Path(
        "demo-output"
    ),
    json: Json = False,
) -> None:
    """Hide the share of women in the Adult census table: certificate, release, audit, one page."""
    from pufferslice.report.demo import run_demo

    with progress_bar("demo") as progress:
        result = run_demo(out, progress)
    answer(result.to_json(), str(result), json=json)
    if not result.verification.holds or result.audit.refuted:
        raise typer.Exit(REFUSED)
