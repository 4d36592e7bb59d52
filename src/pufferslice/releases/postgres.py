# SPDX-License-Identifier: Apache-2.0
"""A ledger that a team shares: a schema in a PostgreSQL database (extra `team`).

The database itself keeps the rules. Intents are serialisable transactions, so two people cannot
both see an empty ledger. A trigger lets a release be drawn once, lets nobody change or remove an
event, and writes down who recorded it and when, by the clock of the server, into the chain of
hashes. The clocks of clients are never read. Encryption is set in the address
(`?sslmode=verify-full`).
"""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, final
from urllib.parse import urlsplit, urlunsplit

import attrs

from pufferslice.errors import ArgumentError, LedgerError, MissingExtraError
from pufferslice.releases.chain import Event
from pufferslice.releases.states import VERSION
from pufferslice.releases.storage import (
    EARLIER_TABLES,
    INSERT_EVENT,
    NOT_YET,
    Connection,
    made_before,
    other_version,
)

try:
    import psycopg
    from psycopg import errors, sql
except ImportError as error:
    raise MissingExtraError(
        "a ledger in a database needs psycopg: pip install 'pufferslice[team]'"
    ) from error

_Result = TypeVar("_Result")

_PREFIX: Final = "pufferslice_"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DEFAULT_NAME: Final = "ledger"

_CONNECT_SECONDS: Final = 10
_STATEMENT_SECONDS: Final = 30
_PATIENCE_SECONDS: Final = 45.0
"""Time without an answer after which the network counts as cut."""
_MOST_TRIES: Final = 200
"""Largest number of tries of a transaction; one fails if another was committed first."""
_TRY_AGAIN: Final = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    # another one intended the same release: the next try sees it and refuses
    errors.UniqueViolation,
)

_INHERITED: Final[list["psycopg.Connection[Any]"]] = []

_GUARD_BODY: Final = """
DECLARE
    is_owner BOOLEAN := pg_has_role(session_user, current_user, 'MEMBER');
    is_incoming BOOLEAN := (SELECT source IS NOT NULL FROM identity);
    last RECORD;
    computed TEXT;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'a ledger changes and forgets nothing';
    END IF;
    IF TG_RELID = 'contents'::regclass THEN
        RETURN NEW;
    END IF;
    IF TG_RELID <> 'events'::regclass THEN
        RAISE EXCEPTION 'this guards the events of a ledger, and nothing else';
    END IF;
    SELECT number, hash INTO last FROM events ORDER BY number DESC LIMIT 1;
    IF NEW.number <> COALESCE(last.number, 0) + 1 THEN
        RAISE EXCEPTION 'an event follows the last one';
    END IF;
    IF (NEW.kind = 'made') <> (NEW.number = 1) THEN
        RAISE EXCEPTION 'a ledger begins once';
    END IF;
    IF NEW.kind IN ('before', 'moved', 'arrived') AND NOT is_owner THEN
        RAISE EXCEPTION 'only the owner moves a ledger';
    END IF;
    IF NEW.kind <> 'published' AND EXISTS (SELECT FROM events WHERE kind = 'moved') THEN
        RAISE EXCEPTION 'the ledger moved and is closed';
    END IF;
    IF NEW.kind IN ('drawn', 'void') THEN
        IF NOT EXISTS (SELECT FROM events WHERE number = NEW.release AND kind = 'intended')
            OR EXISTS (
                SELECT FROM events WHERE release = NEW.release AND kind IN ('drawn', 'void')
            )
        THEN
            RAISE EXCEPTION 'a release is drawn or given up once, after its intent';
        END IF;
    ELSIF NEW.kind = 'published' THEN
        IF NOT EXISTS (SELECT FROM events WHERE release = NEW.release AND kind = 'drawn') THEN
            RAISE EXCEPTION 'a release is published after it was drawn';
        END IF;
    ELSIF NEW.release IS NOT NULL THEN
        RAISE EXCEPTION 'this event is not about a release';
    END IF;
    IF NOT (is_incoming AND is_owner AND NEW.hash IS NOT NULL) THEN
        NEW.at := to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
        NEW.role := session_user;
        NEW.address := host(inet_client_addr());
    END IF;
    SELECT encode(sha256(string_agg(
        int8send(octet_length(convert_to(part, 'UTF8'))::bigint) || convert_to(part, 'UTF8'),
        ''::bytea ORDER BY place
    )), 'hex') INTO computed FROM unnest(ARRAY[
        COALESCE(last.hash, ''), NEW.kind, COALESCE(NEW.release::text, ''), NEW.body, NEW.at,
        NEW.role, COALESCE(NEW.address, '')
    ]) WITH ORDINALITY AS parts (part, place);
    IF NEW.hash <> computed THEN
        RAISE EXCEPTION 'the chain of hashes is broken';
    END IF;
    NEW.hash := computed;
    RETURN NEW;
END """
"""Rules that the database itself keeps, whoever writes to it."""

_SCHEMA: Final[tuple[str, ...]] = (
    f"""CREATE TABLE identity (
    one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    version INTEGER NOT NULL DEFAULT {VERSION},
    id TEXT NOT NULL DEFAULT gen_random_uuid(),
    source TEXT
)""",
    """CREATE TABLE events (
    number BIGINT PRIMARY KEY,
    kind TEXT NOT NULL,
    release BIGINT,
    body TEXT NOT NULL,
    at TEXT NOT NULL,
    role TEXT NOT NULL,
    address TEXT,
    hash TEXT NOT NULL
)""",
    "CREATE UNIQUE INDEX once ON events (kind, release)",
    "CREATE TABLE contents (digest TEXT PRIMARY KEY, text TEXT NOT NULL)",
    f"""CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {{schema}}, pg_temp AS $guard${_GUARD_BODY}$guard$""",
    "REVOKE ALL ON FUNCTION guard() FROM PUBLIC",
    *(
        f"""CREATE TRIGGER guard_{what} BEFORE {moments} ON {table}
    FOR EACH {each} EXECUTE FUNCTION guard()"""
        for table in ("events", "contents")
        for what, moments, each in (
            ("rows", "INSERT OR UPDATE OR DELETE", "ROW"),
            ("table", "TRUNCATE", "STATEMENT"),
        )
    ),
    "INSERT INTO identity DEFAULT VALUES",
)
_GUARDS: Final = """
SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
WHERE t.tgrelid IN ('events'::regclass, 'contents'::regclass)
AND t.tgname IN ('guard_rows', 'guard_table') AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL
AND p.proname = 'guard' AND p.pronamespace = '{schema}'::regnamespace AND p.prosrc = ?
"""


@final
class _Translated:
    """A connection that writes parameters as `?`, as SQLite does."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:  # a cursor
        # ours hold no other question mark, and no percent sign
        return self._connection.execute(statement.replace("?", "%s"), parameters)


@final
class Database:
    """The ledger in one schema of a database; see `pufferslice.releases.Ledger`."""

    def __init__(self, address: str) -> None:
        try:
            parts = urlsplit(address)
        except ValueError:
            raise ArgumentError(
                "the address of a ledger must be postgresql://user@host:port/database#name"
            ) from None
        chosen = parts.fragment or _DEFAULT_NAME
        if not _NAME.fullmatch(chosen):
            raise ArgumentError(
                "the name of a ledger, after # in its address, must be lower-case letters, digits "
                "and _, at most 40, beginning with a letter"
            )
        self._address = urlunsplit(parts._replace(fragment=""))
        self.label: Final = chosen
        """Short name of the ledger, after the # of its address."""
        self._name = _PREFIX + chosen
        self._schema = sql.Identifier(self._name)
        host = parts.netloc.rpartition("@")[2]
        user = f"{parts.username}@" if parts.username else ""
        self.name: Final = f"postgresql://{user}{host}{parts.path}#{chosen}"
        self._is_kept = False
        self._kept: list[tuple[int, psycopg.Connection[Any]]] = []

    def is_there(self) -> bool:
        """Whether there is a ledger yet; this makes none."""
        with self._open(NOT_YET) as connection:
            return bool(self._tables(connection))

    def make(self, source: str | None = None) -> None:
        """Make the ledger if there is none: open, or incoming from the ledger with id `source`."""
        if not self.is_there():
            self.create(source=source)

    def append(
        self,
        connection: Connection,
        before: str,
        number: int,
        kind: str,
        release: int | None,
        body: str,
    ) -> Event:
        """Append an event; the server writes down when, by whom and from where, and its hash."""
        del before
        row = connection.execute(
            "INSERT INTO events (number, kind, release, body) VALUES (?, ?, ?, ?) "
            "RETURNING at, role, address, hash",
            (number, kind, release, body),
        ).fetchone()
        return Event(number, kind, release, body, *row)

    def take_in(self, connection: Connection, events: Iterable[Event]) -> None:
        """Append events of the ledger that is being copied here, as they are."""
        for event in events:
            connection.execute(INSERT_EVENT, attrs.astuple(event))

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        with self._open(NOT_YET) as connection, connection.transaction():
            self._enter(connection)
            found: list[tuple[Any, ...]] = (
                _Translated(connection).execute(statement, parameters).fetchall()
            )
            return found

    def change(
        self,
        work: Callable[[Connection], _Result],
        so_far: str = NOT_YET,
        *,
        is_durable: bool = True,  # noqa: ARG002 - in a database every change is
    ) -> _Result:
        """Do `work` in a serialisable transaction; retry if another was committed first."""
        with self._open(so_far) as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for _ in range(_MOST_TRIES):
                try:
                    with connection.transaction():
                        self._enter(connection)
                        result = work(_Translated(connection))
                except _TRY_AGAIN:
                    continue
                return result
            raise LedgerError(f"ledger {self.name!r} is too busy; {so_far}. Try again")

    @contextlib.contextmanager
    def alone(
        self, so_far: str = NOT_YET, *, is_durable: bool = True, is_checked: bool = True
    ) -> Iterator[Connection]:
        """Open a transaction that keeps other writers out, which only an owner may ask for."""
        del is_durable
        with self._open(so_far) as connection, connection.transaction():
            self._hold(connection, "events" if is_checked else "releases")
            self._enter(connection, is_checked=is_checked)
            yield _Translated(connection)

    def tables(self, connection: Connection) -> dict[str, list[str]]:
        """List the columns of each table, whatever the version of the ledger."""
        rows = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = current_schema()"
        ).fetchall()
        tables: dict[str, list[str]] = {}
        for table, column in rows:
            tables.setdefault(table, []).append(column)
        return tables

    def create(
        self,
        *,
        writers: Sequence[str] = (),
        readers: Sequence[str] = (),
        source: str | None = None,
    ) -> int:
        """Make the ledger if there is none, grant rights, and return its version.

        A new one is incoming from the ledger with id `source`, or else open.
        `writers` may read and record releases; `readers` may read. Nobody but the owner of the
        schema may do more, and not even the owner can change or remove an event while the triggers
        are on.
        """
        with self._open(NOT_YET) as connection, connection.transaction():
            # one at a time; released with the transaction
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (self._schema.as_string(),)
            )
            is_new = not self._tables(connection)
            if is_new:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(self._schema))
            self._enter(connection, is_checked=not is_new)
            if is_new:
                for statement in _SCHEMA:
                    connection.execute(statement.replace("{schema}", self._schema.as_string()))
                connection.execute("UPDATE identity SET source = %s", (source,))
            for role in (*writers, *readers):
                self._grant(connection, role, write=role in writers)
        return VERSION

    def problems(self) -> list[str]:
        """List guards that are off, were removed or replaced."""
        query = _GUARDS.replace("{schema}", self._schema.as_string())
        if self.rows(query, (_GUARD_BODY,)) != [(4,)]:
            return ["the triggers that guard the ledger are off, or were removed or replaced"]
        return []

    def check_locks(self) -> None:
        """Do nothing: a server has locks of its own."""

    def keep(self) -> None:
        """Keep a connection until `close`."""
        self._is_kept = True

    def close(self) -> None:
        """Close the kept connection; the next call opens it again."""
        self._is_kept = False
        while self._kept:
            process, connection = self._kept.pop()
            if process == os.getpid():
                connection.close()
            else:
                _INHERITED.append(connection)

    def _grant(self, connection: "psycopg.Connection[Any]", role: str, *, write: bool) -> None:
        rights = [
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT ON identity, events, contents TO {role}",
        ]
        if write:
            rights += [
                "GRANT INSERT (number, kind, release, body) ON events TO {role}",
                "GRANT INSERT ON contents TO {role}",
            ]
        for right in rights:
            connection.execute(
                sql.SQL(right).format(schema=self._schema, role=sql.Identifier(role))
            )

    def _tables(self, connection: "psycopg.Connection[Any]") -> set[str]:
        """Return the names of the tables of the ledger; none without a ledger."""
        rows = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r'",
            (self._name,),
        ).fetchall()
        return {str(row[0]) for row in rows}

    def _enter(self, connection: "psycopg.Connection[Any]", *, is_checked: bool = True) -> None:
        if is_checked:
            tables = self._tables(connection)
            if tables & EARLIER_TABLES:
                raise made_before(self.name)
            if "identity" not in tables:
                raise other_version(self.name)
        connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(self._schema))
        if is_checked:
            versions = connection.execute("SELECT version FROM identity").fetchall()
            if versions != [(VERSION,)]:
                raise other_version(self.name, *(row[0] for row in versions[:1]))

    def _hold(self, connection: "psycopg.Connection[Any]", table: str) -> None:
        """Block all changes before the first query, so that it sees all that were made."""
        # of a client that was cut off the server lets go
        seconds = f"'{_PATIENCE_SECONDS:.0f}s'"
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {seconds}")
        lock = "LOCK TABLE {}.{} IN SHARE ROW EXCLUSIVE MODE"
        connection.execute(sql.SQL(lock).format(self._schema, sql.Identifier(table)))

    def _taken(self) -> "psycopg.Connection[Any] | None":
        """Take the kept connection for one use; none while it is in use, or in a forked process."""
        try:
            process, connection = self._kept.pop()
        except IndexError:
            return None
        if process != os.getpid():
            _INHERITED.append(connection)  # to close it would end it for the parent
            return None
        return None if connection.closed else connection

    @contextlib.contextmanager
    def _open(self, so_far: str) -> Iterator["psycopg.Connection[Any]"]:
        """Open a connection with durable commits, or take the kept one, and do not wait forever."""
        connection = line = watch = None
        try:
            kept = self._taken()
            connection = kept or psycopg.connect(
                self._address,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                application_name="pufferslice",
            )
            line = socket.socket(fileno=os.dup(connection.fileno()))
            watch = threading.Timer(_PATIENCE_SECONDS, _cut, (line,))
            watch.daemon = True
            watch.start()
            if kept is None:
                connection.execute("SET synchronous_commit = on")
                connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
            yield connection
            if self._is_kept and not connection.closed:
                connection.isolation_level = None
                self._kept.append((os.getpid(), connection))
                connection = None
        except psycopg.Error as error:
            # its own text may show an address with everything in it
            reason = error.diag.message_primary or type(error).__name__
            raise LedgerError(f"ledger {self.name!r} cannot be used: {reason}; {so_far}") from error
        finally:
            if watch is not None:
                watch.cancel()
            if line is not None:
                line.close()
            if connection is not None:
                connection.close()


def _cut(line: socket.socket) -> None:
    """End a connection whose other side does not answer."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
