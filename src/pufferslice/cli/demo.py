# SPDX-License-Identifier: Apache-2.0
"""`pufferslice demo`: the static road on the embedded Adult table."""

from pathlib import Path
from typing import Annotated

import typer

from pufferslice.cli.exit_codes import REFUSED
from pufferslice.cli.output import print_json, progress_bar, say


def demo(
    out: Annotated[Path, typer.Option(help="Folder for certificate, release and report.")] = Path(
        "demo-output"
    ),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Protect race in the Adult census table: certificate, release, audit, one page."""
    from pufferslice.demo import run_demo

    with progress_bar("demo") as progress:
        result = run_demo(out, progress)
    if json:
        print_json(result.to_json())
    else:
        say(str(result))
    if not result.verification.holds or result.audit.refuted:
        raise typer.Exit(REFUSED)
