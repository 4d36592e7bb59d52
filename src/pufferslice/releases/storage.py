# SPDX-License-Identifier: Apache-2.0
"""Storage of a ledger, for releases and for runs: a SQLite file here, a schema in `postgres`."""

import contextlib
import os
import secrets
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import attrs

from pufferslice._core.databases import (
    database_problem,
    database_uri,
    make_database,
    open_database,
)
from pufferslice.errors import LedgerError
from pufferslice.releases.chain import Event, linked
from pufferslice.releases.states import VERSION

_Result = TypeVar("_Result")

_WAIT_SECONDS: Final = 30.0
_TABLES: Final = """
CREATE TABLE identity (version INTEGER NOT NULL, id TEXT NOT NULL, source TEXT);
CREATE TABLE events (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, release INTEGER, body TEXT NOT NULL,
    at TEXT NOT NULL, role TEXT NOT NULL, address TEXT, hash TEXT NOT NULL
);
CREATE UNIQUE INDEX once ON events (kind, release);
CREATE TRIGGER no_change BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'a ledger changes no event'); END;
CREATE TRIGGER no_loss BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'a ledger forgets no event'); END;
CREATE TABLE contents (digest TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE steps (step INTEGER PRIMARY KEY, tag TEXT NOT NULL);
"""
_COLUMNS: Final = ", ".join(field.name for field in attrs.fields(Event))
SELECT_EVENTS: Final = f"SELECT {_COLUMNS} FROM events WHERE number >= ? ORDER BY number"  # noqa: S608 - constants
INSERT_EVENT: Final = f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
EARLIER_TABLES: Final = frozenset({"ledger", "run_ledger"})
"""Tables that only ledgers before 0.3 have."""
_TRY_LOCK: Final = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], 0, uri=True).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    sys.exit(3 if "locked" in str(error) else 4)
"""
_LOCKED: Final = 3
_NOT_TRIED: Final = 4
_LOCKING: Final[set[int]] = set()
"""Disks whose locks were tried and work."""
NOT_YET: Final = "nothing was released"
_INHERITED: Final[list[sqlite3.Connection]] = []


class Identity(NamedTuple):
    """What one ledger is, beside its events."""

    version: int
    id: str
    """Identifier that no other ledger has, not even a copy."""
    source: str | None
    """Id of the ledger that is being copied here; None for a ledger that is open."""


class Connection(Protocol):
    """A database connection; parameters are written as `?`."""

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:  # a cursor
        """Run one statement and return its cursor."""
        ...


@final
class SqliteFile:
    """A SQLite file, made for its owner only.

    Each change is on the disk when it returns. With `is_quick`, for the steps of a run, only those
    that ask for it are, and one connection is kept until `close`.
    """

    def __init__(self, path: Path, *, is_quick: bool = False) -> None:
        self.path = path
        self._is_quick = is_quick
        self._is_kept = is_quick
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Path of the file, for messages."""
        return os.fspath(self.path)

    @property
    def label(self) -> str:
        """Short name of the ledger: that of its file without an ending."""
        return self.path.stem

    def is_there(self) -> bool:
        """Return whether there is a ledger yet; this makes none."""
        return self.path.exists()

    def make(self, source: str | None = None) -> None:
        """Make the ledger if there is none: open, or incoming from the ledger with id `source`."""

        def fill(connection: sqlite3.Connection) -> None:
            connection.executescript(_TABLES)
            row = (VERSION, secrets.token_hex(16), source)
            connection.execute("INSERT INTO identity VALUES (?, ?, ?)", row)

        with self._told(NOT_YET):
            make_database(self.path, fill)

    def append(
        self,
        connection: Connection,
        before: str,
        number: int,
        kind: str,
        release: int | None,
        body: str,
    ) -> Event:
        """Append an event after the one with the hash `before`, and return it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = Event(number, kind, release, body, now, "", None, "")
        event = attrs.evolve(event, hash=linked(before, event))
        connection.execute(INSERT_EVENT, attrs.astuple(event))
        return event

    def take_in(self, connection: Connection, events: Iterable[Event]) -> None:
        """Append events of the ledger that is being copied here, as they are."""
        for event in events:
            connection.execute(INSERT_EVENT, attrs.astuple(event))

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        with self._open(NOT_YET) as connection:
            return connection.execute(statement, parameters).fetchall()

    def run(self, statement: str, parameters: Sequence[Any]) -> int:
        """Run one statement as a change of its own, and return how many rows it changed."""
        with self._open(NOT_YET) as connection:
            return connection.execute(statement, parameters).rowcount

    def change(
        self,
        work: Callable[[Connection], _Result],
        so_far: str = NOT_YET,
        *,
        is_durable: bool = True,
    ) -> _Result:
        """Do `work` whole or not at all, as if alone; `so_far` says what had happened before."""
        with self.alone(so_far, is_durable=is_durable) as connection:
            return work(connection)

    @contextlib.contextmanager
    def alone(
        self, so_far: str = NOT_YET, *, is_durable: bool = True, is_checked: bool = True
    ) -> Iterator[Connection]:
        """Open a transaction with no other writer; unless `is_checked`, of any version."""
        with self._open(so_far, is_checked=is_checked) as connection:
            if self._is_quick and is_durable:
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            else:
                connection.execute("COMMIT")
            finally:
                if self._is_quick:
                    connection.execute("PRAGMA synchronous = NORMAL")

    def check_locks(self) -> None:
        """Refuse a file whose locks another process does not see, as on some network folders.

        Another process tries to lock the file while this one has it locked; once for each disk.
        """
        device = self.path.stat().st_dev
        if device in _LOCKING:
            return
        with self.alone():
            command = [sys.executable, "-I", "-S", "-c", _TRY_LOCK, database_uri(self.path)]
            code = _NOT_TRIED
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                code = subprocess.run(  # noqa: S603 - our own command
                    command, stdin=subprocess.DEVNULL, timeout=_WAIT_SECONDS, check=False
                ).returncode
        if code != _LOCKED:
            found = "do not work there" if code == 0 else "could not be tried"
            raise LedgerError(
                f"ledger {self.name!r} cannot be used: file locks {found}, so two processes could "
                "release at once; nothing was released. Keep it on a disk of this machine, or in a "
                "database (postgresql://…)"
            )
        _LOCKING.add(device)

    def tables(self, connection: Connection) -> dict[str, list[str]]:
        """List the columns of each table, whatever the version of the ledger."""
        query = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c"
        tables: dict[str, list[str]] = {}
        for table, column in connection.execute(f"{query} WHERE t.type = 'table'").fetchall():
            tables.setdefault(table, []).append(column)
        return tables

    def problems(self) -> list[str]:
        """List what SQLite finds wrong with the file."""
        rows = self.rows("PRAGMA integrity_check")
        problems = [str(row[0]) for row in rows if row[0] != "ok"]
        names = {name for (name,) in self.rows("SELECT name FROM sqlite_master")}
        if not {"once", "no_change", "no_loss"} <= names:
            problems.append("the triggers that guard the ledger were removed")
        return problems

    def keep(self) -> None:
        """Keep one connection until `close`."""
        self._is_kept = True

    def close(self) -> None:
        """Close the kept connection; the next call opens it again."""
        with self._lock:
            self._leave_inherited()
            connection, self._connection = self._connection, None
            self._is_kept = self._is_quick
            if connection is not None:
                connection.close()

    @contextlib.contextmanager
    def _open(self, so_far: str, *, is_checked: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a connection, or take the kept one."""
        with self._told(so_far), self._lock:
            self._leave_inherited()
            connection = self._connection or self._connected(is_checked=is_checked)
            try:
                yield connection
            finally:
                if self._is_kept:
                    self._connection = connection
                else:
                    connection.close()

    def _connected(self, *, is_checked: bool) -> sqlite3.Connection:
        connection = open_database(
            self.path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if is_checked:
                self._check_version(connection)
            if self._is_quick:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if self._is_quick else 'FULL'}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if tables & EARLIER_TABLES:
            raise made_before(self.name)
        rows = connection.execute("SELECT version FROM identity").fetchall()
        if rows != [(VERSION,)]:
            raise other_version(self.name, *(row[0] for row in rows[:1]))

    @contextlib.contextmanager
    def _told(self, so_far: str) -> Iterator[None]:
        """Report what goes wrong inside as an error of this ledger."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            reason = database_problem(self.path, error)
            raise LedgerError(f"ledger {self.name!r} cannot be used: {reason}; {so_far}") from error

    def _leave_inherited(self) -> None:
        """Neither use nor close a connection of the parent process: either may damage the file."""
        if self._process != os.getpid():
            if self._connection is not None:
                _INHERITED.append(self._connection)
            self._connection, self._process = None, os.getpid()


def made_before(name: str) -> LedgerError:
    """Return the error of a ledger of a version before 0.3."""
    return LedgerError(
        f"ledger {name!r} was made before 0.3, and is not opened: it is keyed by the wording of a "
        "scenario, not by the secret. `pufferslice ledger migrate OLD NEW` keeps what it holds; a "
        "training run goes on with the program that began it"
    )


def other_version(name: str, version: object = None) -> LedgerError:
    """Return the error of a ledger whose version is not that of this program."""
    return LedgerError(
        f"ledger {name!r} has version {version!r}, this program reads {VERSION}. Use the program "
        "that made it, or restore a copy if it is damaged"
    )
