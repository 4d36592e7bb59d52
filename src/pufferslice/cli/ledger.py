# SPDX-License-Identifier: Apache-2.0
"""`pufferslice ledger`: what was released, and where that is kept."""

from typing import Annotated

import typer

from pufferslice._core.text import given
from pufferslice.cli.output import REFUSED, Json, answer
from pufferslice.errors import ArgumentError, LedgerError

app = typer.Typer(
    name="ledger",
    help="Show, check and copy ledgers; make one that a team shares.",
    no_args_is_help=True,
)

Location = Annotated[str, typer.Argument(help="A file, or postgresql://user@host/database#name.")]


@app.command(name="list")
def show_all(location: Location, json: Json = False) -> None:
    """List the releases, oldest first: the certificate of each and how far it got."""
    from pufferslice.releases import Ledger

    book = Ledger(location)
    book.check_there()
    entries = book.entries()
    moved_to = book.moved_to
    lines = [f"{entry.certificate}  {entry.state}" for entry in entries]
    lines = lines or [f"{book.name} has no releases."]
    lines += [] if moved_to is None else [f"Closed: it was copied to {moved_to}."]
    lines += ["Not open: the copy into it was not finished; repeat it."] if book.is_incoming else []
    answer(
        {
            "ledger": book.name,
            "id": book.id,
            "incoming": book.is_incoming,
            "moved_to": moved_to,
            "releases": [
                {"certificate": entry.certificate, "state": entry.state} for entry in entries
            ],
        },
        "\n".join(lines),
        json=json,
    )


@app.command()
def show(
    location: Location,
    certificate: Annotated[
        str, typer.Argument(help="The first digits of the certificate's digest.")
    ],
    json: Json = False,
) -> None:
    """Show one release: its values, and in a database who recorded it and when."""
    from pufferslice._core.files import parsed_json
    from pufferslice.releases import Ledger, Release

    book = Ledger(location)
    book.check_there()
    entries = [entry for entry in book.entries() if entry.certificate.startswith(certificate)]
    if len(entries) != 1 or not certificate:
        raise ArgumentError(
            f"{len(entries)} releases in {book.name!r} have a certificate that begins with "
            f"{given(certificate)}; give the first digits of one that `ledger list` shows"
        )
    (entry,) = entries
    document = None if entry.release is None else parsed_json(entry.release)
    trail = [event for event in book.trail() if event.certificate == entry.certificate]
    lines = [f"{entry.certificate}  {entry.state}"]
    lines += [
        f"  {event.state} at {event.at} by {event.role}"
        + (f" from {event.address}" if event.address else "")
        for event in trail
    ]
    lines += [] if document is None else [str(Release.from_json(document))]
    answer(
        {
            "certificate": entry.certificate,
            "state": entry.state,
            "trail": [event._asdict() for event in trail],
            "release": document,
        },
        "\n".join(lines),
        json=json,
    )


@app.command()
def check(location: Location, json: Json = False) -> None:
    """Check that the ledger is whole; exit code 1 if it is not."""
    from pufferslice.releases import Ledger

    book = Ledger(location)
    book.check_there()
    problems = book.problems()
    text = "\n".join(problems) or f"{book.name}: no problems. Releases: {len(book.entries())}."
    answer({"ledger": book.name, "problems": problems}, text, json=json)
    if problems:
        raise typer.Exit(REFUSED)


@app.command()
def copy(
    source: Location,
    target: Annotated[str, typer.Argument(help="A new ledger: a file or an address.")],
    json: Json = False,
) -> None:
    """Copy all releases to a new ledger and close the old one, so that only one is ever open.

    Killed or cut off, the same command goes on where it was.
    """
    from pufferslice.releases import Ledger

    old, new = Ledger(source), Ledger(target)
    n_copied = old.copy_to(new)
    answer(
        {"source": old.name, "target": new.name, "releases": n_copied},
        f"Copied to {new.name}, releases: {n_copied}. {old.name} is closed; it can still be read.",
        json=json,
    )


@app.command()
def create(
    location: Location,
    writer: Annotated[
        list[str] | None, typer.Option(help="A role that may intend and record releases.")
    ] = None,
    reader: Annotated[list[str] | None, typer.Option(help="A role that may only read.")] = None,
    json: Json = False,
) -> None:
    """Make a ledger in a database, or bring it up to date, and say who may use it."""
    from pufferslice.releases.ledger import URL_SCHEMES

    if not location.startswith(URL_SCHEMES):
        raise LedgerError(
            "create is for databases (postgresql://…); a file is made by its first release"
        )
    from pufferslice.releases.postgres import Database

    database = Database(location)
    version = database.migrate(writers=writer or (), readers=reader or ())
    answer(
        {"ledger": database.name, "schema_version": version},
        f"{database.name} is ready, schema version {version}.",
        json=json,
    )
