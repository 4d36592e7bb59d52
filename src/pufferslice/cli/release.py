# SPDX-License-Identifier: Apache-2.0
"""`pufferslice release`: the query with noise, once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice._core.text import given, listed
from pufferslice.cli.output import print_json, say
from pufferslice.errors import ArgumentError, StorageError

if TYPE_CHECKING:
    from pufferslice.config.scenario import Request


def release(
    certificate: Annotated[Path, typer.Option(help="The certificate, beside its evidence.")],
    ledger: Annotated[Path, typer.Option(help="The scenario's ledger; created if absent.")],
    out: Annotated[Path, typer.Option(help="The release file; must not exist.")],
    scenario: Annotated[
        Path | None, typer.Argument(help="The scenario.toml that was certified.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Release the rows of the table with this secret.")
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(help="Release this row of the table, from 0 (distribution records)."),
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Release the rows of this file.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Write the recorded release again.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Release the query on some rows, once, and record it in the ledger."""
    from pufferslice.certificate import Certificate
    from pufferslice.config import read_request
    from pufferslice.releases.release import AGAIN, release_again
    from pufferslice.releases.release import release as release_rows

    held = Certificate.load(certificate)
    if again:
        released = release_again(held, ledger=ledger, out=out)
    elif scenario is None:
        msg = "give the scenario.toml that was certified; only --again works without it"
        raise ArgumentError(msg)
    else:
        request = read_request(scenario)
        table = _chosen_rows(request, group=group, row=row, rows=rows)
        released = release_rows(request.scenario, table, held, ledger=ledger, out=out)
    try:
        if json:
            print_json(released.to_json())
        else:
            say(f"{released}\n\nWritten: {out}. Recorded in {ledger}.")
    except StorageError as error:
        msg = (
            f"{error}. The release is written to {str(out)!r} and recorded in the ledger "
            f"{str(ledger)!r}; {AGAIN}"
        )
        raise StorageError(msg) from error


def _chosen_rows(
    request: "Request", *, group: str | None, row: int | None, rows: Path | None
) -> object:
    from pufferslice.data import read_table
    from pufferslice.data.frames import frame_of

    if sum(choice is not None for choice in (group, row, rows)) != 1:
        msg = "choose the rows to release by exactly one of --group, --row, --rows"
        raise ArgumentError(msg)
    if rows is not None:
        return read_table(rows, null_values=request.null_values)
    rule = request.scenario.rule
    if request.table is None or rule is None:
        msg = f"{request.without_table} to choose from; use --rows FILE"
        raise ArgumentError(msg)
    frame = frame_of(request.table)
    if row is not None:
        if not 0 <= row < len(frame):
            msg = f"--row must be from 0 to {len(frame) - 1}, got {row}"
            raise ArgumentError(msg)
        return frame[[row]]
    complete = request.complete_table()
    chosen = [i for i, label in enumerate(rule.labels(complete)) if label == group]
    if not chosen:
        msg = (
            f"--group {given(group)} has no rows; the secrets are "
            f"{listed(request.scenario.secrets)}"
        )
        raise ArgumentError(msg)
    return complete[chosen]
