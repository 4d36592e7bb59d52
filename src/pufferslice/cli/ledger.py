# SPDX-License-Identifier: Apache-2.0
"""`pufferslice ledger`: what was released, and where that is kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pufferslice._core.text import given
from pufferslice.cli.output import REFUSED, Json, PlotFile, answer, check_plot, plotted
from pufferslice.errors import ArgumentError, LedgerError

if TYPE_CHECKING:
    from pufferslice.releases import Ledger
    from pufferslice.releases.states import Entry

app = typer.Typer(
    name="ledger",
    help="Show, check, copy, restore and migrate ledgers; make one that a team shares.",
    no_args_is_help=True,
)

Location = Annotated[str, typer.Argument(help="A file, or postgresql://user@host/database#name.")]
NewLocation = Annotated[str, typer.Argument(help="A new ledger: a file or an address.")]


Digest = Annotated[str, typer.Argument(help="The first digits of the certificate's digest.")]


@app.command(name="list")
def show_all(location: Location, plot: PlotFile = None, json: Json = False) -> None:
    """List the releases, oldest first: when, of what, how far each got, and what is left."""
    from pufferslice.releases import Ledger

    check_plot(plot)
    book = Ledger(location)
    book.check_there()
    answer(book.to_json(), f"{book}{plotted(plot, book.plot)}", json=json)


@app.command()
def show(location: Location, certificate: Digest, json: Json = False) -> None:
    """Show one release: its values, when each step was recorded, and in a database by whom."""
    from pufferslice._core.files import parsed_json
    from pufferslice.releases import Ledger, Release

    book = Ledger(location)
    book.check_there()
    entry = _entry(book, certificate)
    steps = [e for e in book.events() if entry.number in {e.number, e.release}]
    document = None if entry.release is None else parsed_json(entry.release)
    lines = [f"{entry.certificate}  {entry.state}"]
    lines += [
        f"  {event.kind} at {event.at}"
        + (f" by {event.role}" if event.role else "")
        + (f" from {event.address}" if event.address else "")
        for event in steps
    ]
    lines += [] if document is None else [str(Release.from_json(document))]
    trail = [{key: getattr(e, key) for key in ("kind", "at", "role", "address")} for e in steps]
    answer(
        {
            "certificate": entry.certificate,
            "state": entry.state,
            "trail": trail,
            "release": document,
        },
        "\n".join(lines),
        json=json,
    )


def _entry(book: "Ledger", certificate: str) -> "Entry":
    """Find the one release whose certificate begins like this."""
    entries = [entry for entry in book.entries() if entry.certificate.startswith(certificate)]
    if len(entries) != 1 or not certificate:
        raise ArgumentError(
            f"{len(entries)} releases in {book.name!r} have a certificate that begins with "
            f"{given(certificate)}; give the first digits of one that `ledger list` shows"
        )
    return entries[0]


@app.command()
def check(location: Location, json: Json = False) -> None:
    """Check that the ledger is whole; exit code 1 if it is not."""
    from pufferslice.releases import Ledger

    book = Ledger(location)
    book.check_there()
    problems = book.problems()
    n_events = len(book.events())
    text = "\n".join(problems) or f"{book.name}: no problems in {n_events} events."
    answer({"ledger": book.name, "problems": problems}, text, json=json)
    if problems:
        raise typer.Exit(REFUSED)


@app.command()
def void(location: Location, certificate: Digest, json: Json = False) -> None:
    """Give up an attempt that ended without a result, so that its certificate can be released.

    Nothing was handed out, and nothing of that attempt can be recorded any more.
    """
    from pufferslice.releases import Ledger

    book = Ledger(location)
    book.check_there()
    entry = _entry(book, certificate)
    book.give_up(entry)
    answer(
        {"ledger": book.name, "certificate": entry.certificate, "state": "void"},
        f"Given up: {entry.certificate[:12]}. The certificate can be released.",
        json=json,
    )


@app.command()
def reconcile(
    location: Location,
    places: Annotated[
        list[Path],
        typer.Argument(help="Folders with spent marks and release files, or such files."),
    ],
    json: Json = False,
) -> None:
    """Take in the releases that a ledger forgot, as one that was restored from a backup does.

    They are known from their spent marks and release files. Certificates beside release files say
    of which secret they are; without one a release counts for every secret.
    """
    from pufferslice.releases import Ledger
    from pufferslice.releases.commands import finished, reconciling
    from pufferslice.releases.marks import found_in

    for place in places:
        if not place.exists():
            raise ArgumentError(f"there is no file or folder {str(place)!r}; check the name")
    book = Ledger(location)
    n_found = finished(reconciling(book, found_in(places)))
    answer(
        {"ledger": book.name, "found": n_found},
        f"{book.name}: releases that were missing and are taken in: {n_found}.",
        json=json,
    )


@app.command()
def copy(source: Location, target: NewLocation, json: Json = False) -> None:
    """Copy all releases to a new ledger and close the old one, so that only one is ever open.

    Killed or cut off, the same command goes on where it was.
    """
    from pufferslice.releases import Ledger
    from pufferslice.releases.commands import copying, finished

    old, new = Ledger(source), Ledger(target)
    n_copied = finished(copying(old, new))
    answer(
        {"source": old.name, "target": new.name, "releases": n_copied},
        f"Copied to {new.name}, releases: {n_copied}. {old.name} is closed; it can still be read.",
        json=json,
    )


@app.command()
def migrate(source: Location, target: NewLocation, json: Json = False) -> None:
    """Keep in a new ledger what one before 0.3 holds, and close that one.

    Its releases are spent, and nothing later covers them jointly: a new certificate is refused
    unless it says so (`calibrate --acknowledge-earlier`). Killed, the same command goes on.
    """
    from pufferslice.releases import Ledger
    from pufferslice.releases.commands import finished
    from pufferslice.releases.earlier import migrating

    old, new = Ledger(source), Ledger(target)
    n_kept = finished(migrating(old, new))
    answer(
        {"source": old.name, "target": new.name, "releases": n_kept},
        f"Kept in {new.name} as spent before 0.3, not covered jointly, releases: {n_kept}. "
        f"{old.name} is closed.",
        json=json,
    )


@app.command()
def create(
    location: Location,
    writer: Annotated[
        list[str] | None, typer.Option(help="A role that may record releases.")
    ] = None,
    reader: Annotated[list[str] | None, typer.Option(help="A role that may only read.")] = None,
    json: Json = False,
) -> None:
    """Make a ledger in a database, and say who may use it."""
    from pufferslice.releases.ledger import URL_SCHEMES

    if not location.startswith(URL_SCHEMES):
        raise LedgerError(
            "create is for databases (postgresql://…); a file is made by its first release"
        )
    from pufferslice.releases.postgres import Database

    database = Database(location)
    version = database.create(writers=writer or (), readers=reader or ())
    answer(
        {"ledger": database.name, "version": version},
        f"{database.name} is ready, version {version}.",
        json=json,
    )
