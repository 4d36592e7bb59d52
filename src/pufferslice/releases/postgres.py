# SPDX-License-Identifier: Apache-2.0
"""A ledger that a team shares: a schema in a PostgreSQL database (extra `team`).

The database itself keeps the rules. Intents are serialisable transactions, so two people cannot
both see an empty ledger. A trigger lets a release only move from intended to drawn to published,
lets nobody remove one, and writes down who did what and when, by the clock of the server. The
clocks of clients are never read. Encryption is set in the address (`?sslmode=verify-full`).
"""

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, final
from urllib.parse import urlsplit, urlunsplit

from pufferslice.errors import ArgumentError, LedgerError, MissingExtraError
from pufferslice.releases.storage import NOT_YET, Connection, Event

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

_GUARD: Final = """
CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {schema}, pg_temp AS $guard$
BEGIN
    IF TG_RELID <> 'releases'::regclass THEN
        RAISE EXCEPTION 'this guards the releases of a ledger, and nothing else';
    END IF;
    IF TG_OP NOT IN ('INSERT', 'UPDATE') THEN
        RAISE EXCEPTION 'a ledger forgets no release';
    END IF;
    IF TG_OP = 'INSERT' AND (NEW.state <> 'intended' OR NEW.release IS NOT NULL) THEN
        RAISE EXCEPTION 'a release begins as an intent';
    END IF;
    IF TG_OP = 'UPDATE' AND NOT (
        (OLD.number, OLD.certificate) = (NEW.number, NEW.certificate)
        AND (OLD.composition, OLD.spent, OLD.total)
            IS NOT DISTINCT FROM (NEW.composition, NEW.spent, NEW.total)
        AND NEW.release IS NOT NULL
        AND ((OLD.state = 'intended' AND NEW.state = 'drawn' AND OLD.release IS NULL)
            OR (OLD.state = 'drawn' AND NEW.state = 'published' AND OLD.release = NEW.release))
    ) THEN
        RAISE EXCEPTION 'a release moves from intended to drawn to published, and keeps its values';
    END IF;
    INSERT INTO trail (certificate, state) VALUES (NEW.certificate, NEW.state);
    RETURN NEW;
END $guard$
"""

_MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE ledger (
    one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    version INTEGER NOT NULL,
    scenario TEXT NOT NULL
)""",
        """CREATE TABLE moved (
    one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    target TEXT NOT NULL
)""",
        """CREATE TABLE releases (
    number BIGINT GENERATED ALWAYS AS IDENTITY,
    certificate TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('intended', 'drawn', 'published')),
    release TEXT,
    composition TEXT,
    spent DOUBLE PRECISION,
    total DOUBLE PRECISION
)""",
    ),
    (
        """CREATE TABLE trail (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    certificate TEXT NOT NULL,
    state TEXT NOT NULL,
    at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    role TEXT NOT NULL DEFAULT session_user,
    address TEXT DEFAULT host(inet_client_addr())
)""",
        _GUARD,
        "REVOKE ALL ON FUNCTION guard() FROM PUBLIC",
        """CREATE TRIGGER guard_rows BEFORE INSERT OR UPDATE OR DELETE ON releases
    FOR EACH ROW EXECUTE FUNCTION guard()""",
        """CREATE TRIGGER guard_table BEFORE TRUNCATE ON releases
    FOR EACH STATEMENT EXECUTE FUNCTION guard()""",
    ),
    (
        """CREATE TABLE identity (
    one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
    id TEXT NOT NULL DEFAULT gen_random_uuid(),
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('incoming', 'open')),
    source TEXT
)""",
        "INSERT INTO identity DEFAULT VALUES",
        "ALTER TABLE moved ADD id TEXT",
        "UPDATE ledger SET version = 3",
    ),
)
"""Statements that bring the schema from each version to the next; its version is their number."""


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

    order: Final = "number"

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
        self._schema = sql.Identifier(_PREFIX + chosen)
        host = parts.netloc.rpartition("@")[2]
        user = f"{parts.username}@" if parts.username else ""
        self.name: Final = f"postgresql://{user}{host}{parts.path}#{chosen}"

    def is_there(self) -> bool:
        """Whether the schema exists and this user may look into it."""
        with self._open(NOT_YET) as connection:
            return self._version(connection) is not None

    def make(self, source: str | None = None) -> None:
        """Make the ledger if there is none: open, or incoming from the ledger with id `source`."""
        if not self.is_there():
            self.migrate(source=source)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows that a statement finds."""
        with self._open(NOT_YET) as connection, connection.transaction():
            self._enter(connection)
            return connection.execute(statement).fetchall()

    def change(
        self,
        work: Callable[[Connection], _Result],
        so_far: str = NOT_YET,
        *,
        alone: bool = False,
    ) -> _Result:
        """Do `work` in a serialisable transaction; retry if another was committed first.

        With `alone` others wait until it is done, which only the owner of the ledger may ask for.
        """
        with self._open(so_far) as connection:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            for _ in range(_MOST_TRIES):
                try:
                    with connection.transaction():
                        if alone:
                            self._hold(connection)
                        self._enter(connection)
                        result = work(_Translated(connection))
                except _TRY_AGAIN:
                    continue
                return result
            raise LedgerError(f"ledger {self.name!r} is too busy; {so_far}. Try again")

    def migrate(
        self,
        *,
        writers: Sequence[str] = (),
        readers: Sequence[str] = (),
        source: str | None = None,
    ) -> int:
        """Make the ledger or bring it up to date, grant rights, and return its version.

        A new one is incoming from the ledger with id `source`, or else open.
        `writers` may read, intend and record releases; `readers` may read. Nobody but the owner of
        the schema may do more, and not even the owner can remove a release while the triggers are
        on.
        """
        with self._open(NOT_YET) as connection, connection.transaction():
            # one at a time; released with the transaction
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", (self._schema.as_string(),)
            )
            version = self._version(connection)
            if version is None:
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(self._schema))
            self._enter(connection, checked=False)
            if version is None:
                connection.execute(
                    "CREATE TABLE migrations (version INTEGER PRIMARY KEY, "
                    "at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), "
                    "role TEXT NOT NULL DEFAULT session_user)"
                )
            for number, statements in enumerate(_MIGRATIONS, start=1):
                if number > (version or 0):
                    for statement in statements:
                        text = statement.replace("{schema}", self._schema.as_string())
                        connection.execute(text)
                    connection.execute("INSERT INTO migrations (version) VALUES (%s)", (number,))
            if version is None and source is not None:
                connection.execute("UPDATE identity SET state = 'incoming', source = %s", (source,))
            for role in (*writers, *readers):
                self._grant(connection, role, write=role in writers)
        return len(_MIGRATIONS)

    def trail(self) -> list[Event]:
        """List who moved which release to which state, and when, oldest first."""
        rows = self.rows(
            "SELECT certificate, state, to_char(at AT TIME ZONE 'UTC', "
            '\'YYYY-MM-DD"T"HH24:MI:SS.US"Z"\'), role, address FROM trail ORDER BY number'
        )
        return [Event(*row) for row in rows]

    def problems(self) -> list[str]:
        """List triggers that are off, and states that the trail does not explain."""
        problems = []
        enabled = self.rows(
            "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'releases'::regclass "
            "AND tgname IN ('guard_rows', 'guard_table') AND tgenabled IN ('O', 'A')"
        )
        if enabled != [(2,)]:
            problems.append("the triggers that guard the ledger are off or were removed")
        wanted: dict[str, list[str]] = {}
        for event in self.trail():
            wanted.setdefault(event.certificate, []).append(event.state)
        states = {row[0]: row[1] for row in self.rows("SELECT certificate, state FROM releases")}
        life = ("intended", "drawn", "published")
        for certificate in sorted({*wanted, *states}):
            so_far = tuple(wanted.get(certificate, ()))
            if certificate not in states:
                problems.append(f"{certificate[:12]} stands in the trail and not in the ledger")
            elif so_far != life[: life.index(states[certificate]) + 1]:
                problems.append(f"the trail does not explain the state of {certificate[:12]}")
        return problems

    def _grant(self, connection: "psycopg.Connection[Any]", role: str, *, write: bool) -> None:
        rights = [
            "GRANT USAGE ON SCHEMA {schema} TO {role}",
            "GRANT SELECT ON identity, ledger, moved, releases, trail, migrations TO {role}",
        ]
        if write:
            rights += [
                "GRANT INSERT ON ledger TO {role}",
                (
                    "GRANT INSERT (certificate, state, composition, spent, total) "
                    "ON releases TO {role}"
                ),
                "GRANT UPDATE (state, release) ON releases TO {role}",
            ]
        for right in rights:
            connection.execute(
                sql.SQL(right).format(schema=self._schema, role=sql.Identifier(role))
            )

    def _version(self, connection: "psycopg.Connection[Any]") -> int | None:
        """Return how many migrations were applied; None without a ledger."""
        where = f"{self._schema.as_string()}.migrations"
        if connection.execute("SELECT to_regclass(%s)", (where,)).fetchone() == (None,):
            return None
        count = sql.SQL("SELECT count(*) FROM {}.migrations").format(self._schema)
        row = connection.execute(count).fetchone()
        return None if row is None else int(row[0])

    def _enter(self, connection: "psycopg.Connection[Any]", *, checked: bool = True) -> None:
        version = self._version(connection) if checked else len(_MIGRATIONS)
        if version != len(_MIGRATIONS):
            raise LedgerError(
                f"ledger {self.name!r} has schema version {version}, this program uses "
                f"{len(_MIGRATIONS)}. "
                + (
                    "Let its owner run `pufferslice ledger create`"
                    if (version or 0) < len(_MIGRATIONS)
                    else "Use the newer program"
                )
            )
        connection.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(self._schema))

    def _hold(self, connection: "psycopg.Connection[Any]") -> None:
        """Block all changes before the first query, so that it sees all that were made."""
        # of a client that was cut off the server lets go
        seconds = f"'{_PATIENCE_SECONDS:.0f}s'"
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {seconds}")
        lock = "LOCK TABLE {}.releases IN SHARE ROW EXCLUSIVE MODE"
        connection.execute(sql.SQL(lock).format(self._schema))

    @contextlib.contextmanager
    def _open(self, so_far: str) -> Iterator["psycopg.Connection[Any]"]:
        """Open a connection whose commits are durable and that does not wait forever."""
        connection = line = watch = None
        try:
            connection = psycopg.connect(
                self._address,
                autocommit=True,
                connect_timeout=_CONNECT_SECONDS,
                application_name="pufferslice",
            )
            line = socket.socket(fileno=os.dup(connection.fileno()))
            watch = threading.Timer(_PATIENCE_SECONDS, _cut, (line,))
            watch.daemon = True
            watch.start()
            connection.execute("SET synchronous_commit = on")
            connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'")
            yield connection
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
