# SPDX-License-Identifier: Apache-2.0
"""`pufferslice demo`: one protected release of the embedded Adult table, audited, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.output import REFUSED, print_json, progress_bar, say


def demo(
    out: Annotated[Path, typer.Option(help="Folder for certificate, release and report.")] = Path(
        "demo-output"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Protect race in the Adult census table: certificate, release, audit, one page."""
    from pufferslice.report.demo import run_demo

    with progress_bar("demo") as progress:
        result = run_demo(out, progress)
    if json:
        print_json(result.to_json())
    else:
        say(str(result))
    if not result.verification.holds or result.audit.refuted:
        raise typer.Exit(REFUSED)
