# SPDX-License-Identifier: Apache-2.0
"""The ledger: every release about a secret, in a file or in a database that a team shares.

One person needs a SQLite file; a team shares a PostgreSQL database (`postgres`). A ledger is a
chain of events (`chain`) whose rules are in `states`; each event is on the disk before the next
step begins. The commands that change it are in `commands`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

import attrs

from pufferslice._core.display import Shown
from pufferslice._core.files import check_local, digest, parsed_json
from pufferslice._core.plot import Plot
from pufferslice._core.text import shown
from pufferslice.errors import ArgumentError, LedgerError
from pufferslice.noise.spending import Spending
from pufferslice.releases.chain import Event, body_of, is_whole
from pufferslice.releases.marks import SpentMark
from pufferslice.releases.pictures import ledger_plot
from pufferslice.releases.states import VERSION, Book, Entry, Grant, Intent, Part
from pufferslice.releases.storage import (
    NOT_YET,
    SELECT_EVENTS,
    Connection,
    Identity,
    SqliteFile,
)

if TYPE_CHECKING:
    from pufferslice.releases.postgres import Database

_Result = TypeVar("_Result")

URL_SCHEMES: Final = ("postgresql://", "postgres://")

_IDENTITY: Final = "SELECT version, id, source FROM identity"


@final
class Transaction:
    """A change of a ledger: all of it is recorded, or nothing."""

    def __init__(
        self, storage: "SqliteFile | Database", connection: Connection, book: Book
    ) -> None:
        self.book = book
        """State of the ledger, with what the transaction has recorded so far."""
        self._storage, self._connection = storage, connection

    def append(self, kind: str, *, release: int | None = None, **fields: Any) -> Event:
        """Record an event; refuse one that the rules do not allow."""
        book, body = self.book, body_of(fields)
        # before it is written, so that the rules speak here and not in the database
        book.copied().change(Event(book.number + 1, kind, release, body, "", "", None, ""))
        event = self._storage.append(
            self._connection, book.hash, book.number + 1, kind, release, body
        )
        book.take([event])
        return event

    def keep(self, text: str) -> str:
        """Keep a release, and return its digest."""
        name = digest(text.encode())
        self._connection.execute(
            "INSERT INTO contents (digest, text) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, text)
        )
        return name

    def take_in(self, events: Sequence[Event], texts: Mapping[str, str]) -> None:
        """Take in events of the ledger that is being copied here, and releases that they name."""
        self._storage.take_in(self._connection, events)
        self.book.take(events)
        for text in texts.values():
            self.keep(text)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:  # a cursor
        """Run another statement in this transaction."""
        return self._connection.execute(statement, parameters)


@final
class Ledger(Shown):
    """The releases about one or several secrets, in a file or in a database that a team shares.

    A path names a file; only its owner can read a new one. An address
    `postgresql://user@host/database#name` names a ledger in a PostgreSQL database, which needs the
    extra `team`. In a `with` block the file, or a connection, stays open.

    >>> import tempfile, pathlib
    >>> with Ledger(pathlib.Path(tempfile.mkdtemp()) / "census.ledger") as ledger:
    ...     ledger.entries()
    []
    """

    def __init__(self, location: "str | os.PathLike[str] | SqliteFile") -> None:
        self._location = location
        self._book: Book | None = None

    @cached_property
    def storage(self) -> "SqliteFile | Database":
        """Where the ledger is kept."""
        if isinstance(self._location, SqliteFile):
            return self._location
        if isinstance(self._location, str) and self._location.startswith(URL_SCHEMES):
            # Not at the top: it needs an extra.
            from pufferslice.releases.postgres import Database  # noqa: PLC0415

            return Database(self._location)
        check_local(self._location)
        return SqliteFile(Path(self._location))

    def __enter__(self) -> Self:
        self.storage.keep()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.storage.close()

    @property
    def name(self) -> str:
        """Location of the ledger, for messages; without a password."""
        return self.storage.name

    @property
    def path(self) -> Path | None:
        """File of the ledger; None for a database."""
        return self.storage.path if isinstance(self.storage, SqliteFile) else None

    @property
    def place(self) -> str | None:
        """Absolute path of the ledger, if it is a file."""
        return None if self.path is None else os.path.realpath(self.path)

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    def check_there(self) -> None:
        """Raise unless there is a ledger: a wrong name must not look like one without releases."""
        if not self.storage.is_there():
            raise ArgumentError(
                f"there is no ledger at {self.name!r}; the first release makes one. Check the name"
            )

    @property
    def id(self) -> str | None:
        """Identifier that no other ledger has, wherever it is; None if there is no ledger yet."""
        return None if not self.storage.is_there() else self.identity().id

    @property
    def lineage(self) -> str:
        """Hash of the first event, which a ledger shares with its copies; empty without events."""
        return self.book().lineage or ""

    @property
    def is_incoming(self) -> bool:
        """Whether a copy into this ledger has begun and is not finished, so that it is not open."""
        return self.storage.is_there() and self.identity().source is not None

    @property
    def moved_to(self) -> str | None:
        """Location of the ledger that this closed one was copied to; None if it is open."""
        moved = self.book().moved
        return None if moved is None else moved[0]

    def identity(self) -> Identity:
        """Return what the ledger is, beside its events."""
        return self._checked_identity(self.storage.rows(_IDENTITY))

    def _checked_identity(self, rows: Sequence[tuple[Any, ...]]) -> Identity:
        if len(rows) != 1:
            raise LedgerError(f"ledger {self.name!r} is damaged: it has no id; restore a copy")
        return Identity(*rows[0])

    def check_arrived(self) -> None:
        """Raise if a copy into this ledger was not finished, so that it may lack releases."""
        if self.storage.is_there():
            self._check_arrived(self.storage.rows(_IDENTITY))

    def _check_arrived(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._checked_identity(rows).source is not None:
            raise LedgerError(
                f"ledger {self.name!r} is incoming: the copy into it was not finished, so it is "
                "not open. Repeat that `pufferslice ledger copy` (or migrate), which finishes it"
            )

    def make(self, source: str | None = None) -> None:
        """Make the ledger if there is none: open, or incoming from the ledger with id `source`."""
        self.storage.make(source)

    def events(self) -> list[Event]:
        """List what was recorded, oldest first, as it is; none if there is no ledger yet."""
        if not self.storage.is_there():
            return []
        return [Event(*row) for row in self.storage.rows(SELECT_EVENTS, (0,))]

    def book(self) -> Book:
        """Return the state of the ledger; it is empty if there is no ledger yet."""
        if not self.storage.is_there():
            return Book(self.name)
        self._book = self._up_to_date(self.storage.rows)
        return self._book

    def _up_to_date(self, rows: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> Book:
        """Read what was recorded since the last time, if it follows what was read then."""
        known = self._book
        if known is not None and known.number:
            events = [Event(*row) for row in rows(SELECT_EVENTS, (known.number,))]
            if events and events[0].hash == known.hash:
                book = known.copied()
                book.take(events[1:])
                return book
        book = Book(self.name)
        book.take(Event(*row) for row in rows(SELECT_EVENTS, (0,)))
        return book

    def change(
        self,
        work: Callable[[Transaction], _Result],
        so_far: str = NOT_YET,
        *,
        is_incoming: bool = False,
        is_durable: bool = True,
    ) -> _Result:
        """Do `work` whole or not at all; `so_far` says what had happened before."""

        def changed(connection: Connection) -> tuple[_Result, Book]:
            transaction = self._begun(connection, is_incoming=is_incoming)
            return work(transaction), transaction.book

        result, book = self.storage.change(changed, so_far, is_durable=is_durable)
        self._book = book
        return result

    @contextlib.contextmanager
    def alone(self, so_far: str = NOT_YET) -> Iterator[Transaction]:
        """Open a transaction that keeps all other writers out until it ends."""
        with self.storage.alone(so_far) as connection:
            yield self._begun(connection, is_incoming=False)

    def _begun(self, connection: Connection, *, is_incoming: bool) -> Transaction:
        if not is_incoming:
            self._check_arrived(connection.execute(_IDENTITY).fetchall())
        book = self._up_to_date(lambda query, values: connection.execute(query, values).fetchall())
        transaction = Transaction(self.storage, connection, book.copied())
        if not (book.number or is_incoming):
            transaction.append("made", version=VERSION)
        return transaction

    def entries(self) -> list[Entry]:
        """List all releases with what was released, oldest first; none if there is no ledger."""
        entries = self.book().entries.values()
        if not entries:
            return []
        texts = dict(self.storage.rows("SELECT digest, text FROM contents"))
        return [attrs.evolve(e, release=texts.get(e.content or "")) for e in entries]

    def entry(self, certificate: str) -> Entry | None:
        """Return the last release of a certificate that was not given up; None if there is none."""
        found = [e for e in self.entries() if e.certificate == certificate and e.state != "void"]
        return found[-1] if found else None

    def releases(self) -> list[str]:
        """List the digests of the certificates that were released or may have been."""
        live = (e.certificate for e in self.book().entries.values() if e.state != "void")
        return list(dict.fromkeys(live))

    def earlier(self) -> list[str]:
        """List the certificates of releases before 0.3, which nothing later covers jointly."""
        return sorted(self.book().before)

    def spending(self, certificate: str, part: str, period: int) -> Spending | None:
        """Return the precision that is spent of a part of a budget; None if nothing is yet."""
        book = self.book()
        return book.spending(certificate, part, period) if certificate in book.grants else None

    def check_free(self, grant: Grant) -> None:
        """Raise if a certificate for this grant could not be released here."""
        self.check_arrived()
        book = self.book()
        book.check_open()
        book.check_free(grant)

    def intend(
        self, grant: Grant, intent: Intent | None = None, marks: Sequence[SpentMark] = ()
    ) -> Entry:
        """Record, before any noise is drawn, that a release is about to be made.

        Without an `intent`, the whole of a certificate of one release. Refuses more than was
        granted, another grant of a secret that the ledger has a release of, and everything if the
        ledger does not know one of the `marks`, which were read before.
        """
        wanted = Intent(certificate=grant.certificate) if intent is None else intent

        def work(transaction: Transaction) -> Entry:
            book = transaction.book
            book.check_open()
            book.check_marks(marks, self.place, grant.certificate)
            if grant.certificate not in book.grants:
                transaction.append("granted", **grant.to_fields())
            fields = attrs.asdict(wanted) | {"charge": str(wanted.charge)}
            event = transaction.append("intended", **fields)
            return book.entries[event.number]

        self.make()
        self.storage.check_locks()
        return self.change(work)

    def record_drawn(self, entry: Entry, release: str) -> None:
        """Record the finished release of an intent, before it is handed out."""
        self.change(lambda t: self._advance(t, entry, "drawn", content=t.keep(release)))

    def record_published(self, entry: Entry) -> None:
        """Record that the release of an intent was handed out completely."""
        done = "the release is kept in it, and may have been handed out"
        self.change(lambda t: self._advance(t, entry, "published"), done)

    def give_up(self, entry: Entry) -> None:
        """Record that an intent without a result will never have one, so that it costs nothing."""
        self.change(lambda t: self._advance(t, entry, "void"))

    def record_signed(self, certificate: str) -> int:
        """Record that a certificate is signed, and return its serial in this ledger."""
        return self.change(lambda t: t.append("signed", certificate=certificate).number)

    @staticmethod
    def _advance(transaction: Transaction, entry: Entry, kind: str, **fields: str) -> None:
        transaction.append(kind, release=entry.number, intent=entry.hash, **fields)

    def problems(self) -> list[str]:
        """List what is wrong with the ledger, in sentences; none if all is well."""
        if not self.storage.is_there():
            return []
        problems = self.storage.problems()
        if not is_whole(self.events()):
            problems.append(
                "an event is missing, was changed or was moved: the chain of hashes is broken"
            )
            return problems
        entries = self.entries()
        for entry in entries:
            if entry.release is None:
                if entry.content is not None and not entry.is_found:
                    problems.append(f"the release of {entry.certificate[:12]} is not kept here")
                continue
            known = None
            with contextlib.suppress(ValueError, TypeError):
                known = parsed_json(entry.release)
            certificate = known.get("certificate") if isinstance(known, dict) else None
            is_same = digest(entry.release.encode()) == entry.content
            if not is_same or certificate != entry.certificate:
                problems.append(f"the release of {entry.certificate[:12]} is damaged or of another")
        if self.is_incoming:
            problems.append("it is incoming: the copy into it was not finished; repeat the copy")
        return problems

    def to_json(self) -> dict[str, Any]:
        """Return what `ledger list` shows as JSON values."""
        there = self.storage.is_there()
        return {
            "ledger": self.name,
            "id": self.id,
            "incoming": self.is_incoming,
            "moved_to": self.moved_to if there else None,
            "earlier": self.earlier(),
            "releases": self.table_rows(),
        }

    def table_rows(self) -> list[dict[str, Any]]:
        """Return one row per release: when, of what, how far it got, and what is left."""
        book = self.book()
        rows = []
        for entry in book.entries.values():
            grant = book.grants[entry.certificate]
            rows.append(
                {
                    "certificate": entry.certificate,
                    "state": entry.state,
                    "date": entry.at,
                    "claim": grant.claim,
                    "statistics": list(grant.statistics),
                    "rows": grant.n_rows,
                    "part": entry.part,
                    "period": entry.period,
                    "left": _left(book, grant, entry),
                }
            )
        return rows

    def plot(self) -> Plot:
        """Draw what is spent and left of each part, of each certificate and of each total."""
        return ledger_plot(self.name, self.book())

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows with short digests and lists."""
        return [
            row
            | {
                "certificate": row["certificate"][:12],
                "date": row["date"][:16].replace("T", " "),
                "statistics": _shortened(row["statistics"]),
            }
            for row in self.table_rows()
        ]

    def sentences(self) -> list[str]:
        """Say whether the ledger is open, and what is in it that has no row."""
        moved_to = self.moved_to
        parts = [f"Ledger {self.name}"]
        parts += [] if moved_to is None else [f"Closed: it was copied to {moved_to}."]
        if self.is_incoming:
            parts.append("Not open: the copy into it was not finished; repeat it.")
        if earlier := self.earlier():
            parts.append(
                f"Spent before 0.3, not covered jointly with anything else: {len(earlier)} "
                f"release(s) ({', '.join(name[:12] for name in earlier)})."
            )
        return parts

    def __str__(self) -> str:
        lines = []
        for row in self.shown_rows():
            n_rows = "" if row["rows"] is None else f", {row['rows']:,} rows"
            part = "" if row["part"] == "release" else f", part {row['part']} {row['period']}"
            lines.append(
                f"{row['certificate']}  {row['state']:<9}  {row['date']}  "
                f"{shown(row['claim'])}: {row['statistics']}{n_rows}{part}; left: {row['left']}"
            )
        head, *rest = self.sentences()
        return "\n".join([head, *(lines or ["No releases."]), *self._budgets(), *rest])

    def _budgets(self) -> list[str]:
        """Say of each budget what it promises as a whole, and what is left of every part."""
        book, lines = self.book(), []
        for name, grant in book.grants.items():
            if grant.is_budget:
                lines.append(
                    f"Budget {name[:12]}: {shown(grant.claim)}, for all its outputs together. "
                    "Of each statistic, certificate.left(ledger) tells the least noise."
                )
                lines += [f"  {_part_left(book, name, part)}" for part in grant.parts]
        return lines


def _part_left(book: Book, certificate: str, name: str) -> str:
    """Say what was spent of a part of a budget, and what is left."""
    part, entries = book.grants[certificate].parts[name], book.of_part(certificate, name)
    periods = sorted({entry.period for entry in entries})
    left = [f"{book.left(certificate, name, period)} of the precision left" for period in periods]
    if part.n_periods > 1:
        left = [f"{what} in period {k}" for k, what in zip(periods, left, strict=True)]
        left.append(f"{part.n_periods - len(periods)} of {part.n_periods} periods untouched")
    n_releases = f"{len(entries)} release{'' if len(entries) == 1 else 's'}"
    return f"{shown(name)}: {'; '.join([n_releases, *left]) if entries else 'nothing was spent'}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(shown, names[:3])) + more


def _left(book: Book, grant: Grant, entry: Entry) -> str:
    """Say what a grant still allows, in the part of an entry."""
    left = book.left(entry.certificate, entry.part, entry.period)
    if grant.parts.get(entry.part) == Part():
        return "nothing" if not left else "one release" if left == 1 else f"{left} of the precision"
    return f"{left} of the precision of the period"
