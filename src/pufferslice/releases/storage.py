# SPDX-License-Identifier: Apache-2.0
"""Storage of a ledger: a SQLite file here, a schema of a database in `postgres`."""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from pufferslice._core.databases import database_problem, make_database, open_database
from pufferslice.errors import LedgerError

_Result = TypeVar("_Result")

_WAIT_SECONDS: Final = 30.0
_TABLES: Final = """
CREATE TABLE identity (
    id TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('incoming', 'open')), source TEXT
);
CREATE TABLE ledger (version INTEGER NOT NULL, scenario TEXT NOT NULL);
CREATE TABLE releases (
    certificate TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('intended', 'drawn', 'published')),
    release TEXT,
    composition TEXT,
    spent REAL,
    total REAL
);
CREATE TABLE moved (target TEXT NOT NULL, id TEXT NOT NULL);
"""
NOT_YET: Final = "nothing was released"


class Event(NamedTuple):
    """One line of the audit trail that a database keeps."""

    certificate: str
    state: str
    at: str
    """Time by the clock of the server."""
    role: str
    address: str | None


class Connection(Protocol):
    """A database connection; parameters are written as `?`."""

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:  # a cursor
        """Run one statement and return its cursor."""
        ...


@final
class SqliteFile:
    """A SQLite file, made for its owner only."""

    order: Final = "rowid"
    """Column by which entries are in the order of their intents."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """Path of the file, for messages."""
        return os.fspath(self.path)

    def is_there(self) -> bool:
        """Return whether there is a ledger yet; this makes none."""
        return self.path.exists()

    def make(self, source: str | None = None) -> None:
        """Make the ledger if there is none: open, or incoming from the ledger with id `source`."""

        def fill(connection: sqlite3.Connection) -> None:
            connection.executescript(_TABLES)
            row = (secrets.token_hex(16), "open" if source is None else "incoming", source)
            connection.execute("INSERT INTO identity (id, state, source) VALUES (?, ?, ?)", row)

        with self._told(NOT_YET):
            make_database(self.path, fill)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        with self._open(NOT_YET) as connection:
            return connection.execute(statement).fetchall()

    def change(
        self,
        work: Callable[[Connection], _Result],
        so_far: str = NOT_YET,
        *,
        alone: bool = False,  # noqa: ARG002 - in a file every change is
    ) -> _Result:
        """Do `work` whole or not at all, as if alone, durable when this returns.

        `so_far` says in messages what had happened before. With `alone` no other change is made
        meanwhile, so that long work does not begin again and again.
        """
        with self._open(so_far) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result

    def trail(self) -> list[Event]:
        """Return an empty trail: a file keeps none."""
        return []

    def problems(self) -> list[str]:
        """List what SQLite finds wrong with the file."""
        rows = self.rows("PRAGMA integrity_check")
        return [str(row[0]) for row in rows if row[0] != "ok"]

    @contextlib.contextmanager
    def _open(self, so_far: str) -> Iterator[sqlite3.Connection]:
        """Open a connection whose changes are durable."""
        with self._told(so_far):
            connection = open_database(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = FULL")
                yield connection
            finally:
                connection.close()

    @contextlib.contextmanager
    def _told(self, so_far: str) -> Iterator[None]:
        """Report what goes wrong inside as an error of this ledger."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            reason = database_problem(self.path, error)
            raise LedgerError(f"ledger {self.name!r} cannot be used: {reason}; {so_far}") from error
