# SPDX-License-Identifier: Apache-2.0
"""`pufferslice release`: the query with noise, once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice.cli.output import Json, answer, progress_bar
from pufferslice.errors import ArgumentError, StorageError

if TYPE_CHECKING:
    from pufferslice.releases.derived import DerivedStatistics


def release(
    certificate: Annotated[Path, typer.Option(help="The certificate, beside its evidence.")],
    ledger: Annotated[
        str, typer.Option(help="The ledger: a file, created if absent, or postgresql://…#name.")
    ],
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
    rows: Annotated[
        str | None,
        typer.Option(
            help="Release the rows of this file instead of the table in the scenario (worlds)."
        ),
    ] = None,
    spent_marks: Annotated[
        Path | None,
        typer.Option(help="Folder for the spent mark; without it, that of the certificate."),
    ] = None,
    into_range: Annotated[
        bool,
        typer.Option(
            "--into-range", help="Move values that noise put outside their public range to its end."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Write the recorded release again.")
    ] = False,
    json: Json = False,
) -> None:
    """Release the query on some rows, once, and record it in the ledger.

    The cost of the noise is recomputed from the scenario first, also its couplings.
    """
    from pufferslice.certificate import Certificate
    from pufferslice.config.scenario import read_request
    from pufferslice.data import read_table
    from pufferslice.releases import Ledger
    from pufferslice.releases.commands import AGAIN
    from pufferslice.releases.derived import requested
    from pufferslice.releases.release import release as release_rows
    from pufferslice.releases.release import release_again

    held = Certificate.load(certificate)
    if again and into_range:
        raise ArgumentError("--again writes the recorded release as it is; leave --into-range out")
    book = Ledger(ledger)
    derived: DerivedStatistics | None = None
    if again:
        released = release_again(held, ledger=book, out=out, spent_marks=spent_marks)
    elif scenario is None:
        raise ArgumentError(
            "give the scenario.toml that was certified; only --again works without it"
        )
    else:
        request = read_request(scenario, progress_bar)
        section = request.file.derived
        # A wrong name is found before the release, which happens once.
        wanted = requested(request.scenario.query.names, **section.arguments())
        n_choices = sum(choice is not None for choice in (group, row, rows))
        if n_choices != 1 and not (n_choices == 0 and request.scenario.rule is None):
            raise ArgumentError(
                "choose the rows to release by exactly one of --group, --row, --rows"
            )
        table = (
            request.chosen_rows(group=group, row=row)
            if rows is None
            else read_table(rows, null_values=request.file.data.null_values)
        )
        with progress_bar("recomputing couplings") as progress:
            released = release_rows(
                request.scenario,
                table,
                held,
                ledger=book,
                out=out,
                spent_marks=spent_marks,
                into_range=into_range,
                progress=progress,
            )
        if wanted:
            derived = released.derived(
                **section.arguments(), simultaneous=section.simultaneous, certificate=held
            )
    try:
        values = "" if derived is None else f"\n{derived}"
        text = f"{released}{values}\n\nWritten: {out}. Recorded in {book.name}."
        more = {} if derived is None else {"statistics": derived.to_json()}
        answer(released.to_json() | more, text, json=json)
    except StorageError as error:
        raise StorageError(
            f"{error}. The release is written to {str(out)!r} and recorded in the ledger "
            f"{book.name!r}; {AGAIN}"
        ) from error
