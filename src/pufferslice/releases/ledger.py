# SPDX-License-Identifier: Apache-2.0
"""The ledger: every release of a scenario, one per certificate, in one SQLite file.

A release passes through three states, each committed to the disk before the next step begins:
`intended` (nothing drawn yet), `drawn` (noise is in the recorded release, no file written yet),
`published` (handed out). What is in the file after a crash is what happened.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

import attrs

from pufferslice._core.files import database_problem, prepare_database
from pufferslice.certificate.composition import added_up
from pufferslice.errors import AlreadyReleasedError, LedgerError

State = Literal["intended", "drawn", "published"]

VERSION: Final = 2

_WAIT_SECONDS: Final = 30.0
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS ledger (version INTEGER NOT NULL, scenario TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS releases (
    certificate TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('intended', 'drawn', 'published')),
    release TEXT,
    composition TEXT,
    spent REAL,
    total REAL
)""",
)
_AGAIN: Final = "Publish that same release again (the ledger keeps it)"
_STATES: Final = {
    "intended": (
        "its noise was never handed out, but the attempt ended without a result. Nothing of it is "
        "kept: certify again, naming it among earlier_releases"
    ),
    "drawn": f"its result is kept in the ledger, but was not confirmed as published. {_AGAIN}",
    "published": f"it was published. {_AGAIN}",
}
"""What each state means, and what to do about it."""

_NOT_YET: Final = "nothing was released"


class Entry(NamedTuple):
    """One release in the ledger."""

    certificate: str
    state: State
    release: str | None
    """The release as JSON, from the state `drawn` on."""


@final
@attrs.frozen
class Ledger:
    """The releases of one scenario, in the file at `path`; only its owner can read a new one.

    >>> import tempfile, pathlib
    >>> ledger = Ledger(pathlib.Path(tempfile.mkdtemp()) / "census.ledger")
    >>> ledger.entries()
    []
    """

    path: Path = attrs.field(converter=Path)

    def entries(self) -> list[Entry]:
        """All releases, oldest first; none if the file does not exist yet."""
        if not self.path.exists():
            return []
        with self._open() as connection:
            # A process that was killed in its first transaction leaves a file that opens as empty.
            if not connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                return []
            rows = connection.execute(
                "SELECT certificate, state, release FROM releases ORDER BY rowid"
            )
            entries = [Entry(*row) for row in rows]
        if not all(isinstance(e.certificate, str) and e.state in _STATES for e in entries):
            msg = f"ledger {str(self.path)!r} is damaged: an entry has no state; restore a copy"
            raise LedgerError(msg)
        return entries

    def releases(self) -> list[str]:
        """Digests of the certificates that were released or may have been."""
        return [entry.certificate for entry in self.entries()]

    def intend(
        self,
        scenario: str,
        certificate: str,
        covered: Sequence[str],
        budget: tuple[str, float, float] | None = None,
    ) -> None:
        """Record, before any noise is drawn, that this certificate is about to be released.

        `scenario` is the scenario's key; `covered` are the earlier releases that the certificate
        names. `budget` is for releases that add up: what they must share, the cost of this one, and
        their total. Refuses a second release, a ledger of another scenario, unnamed earlier ones
        that do not add up with this one, and more than the total.
        """
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                # With the first entry, so that a killed process leaves no partial ledger.
                for table in _TABLES:
                    connection.execute(table)
                self._check_scenario(connection, scenario)
                self._check_entries(connection, certificate, covered, budget)
                connection.execute(
                    "INSERT INTO releases VALUES (?, 'intended', NULL, ?, ?, ?)",
                    (certificate, *(budget or (None, None, None))),
                )
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def record_drawn(self, certificate: str, release: str) -> None:
        """Record the finished release, before it is handed out."""
        self._advance(certificate, "intended", "drawn", release, _NOT_YET)

    def record_published(self, certificate: str) -> None:
        """Record that the release was handed out completely."""
        done = "the release is kept in it, and may have been handed out"
        self._advance(certificate, "drawn", "published", None, done)

    def kept_release(self, certificate: str) -> str | None:
        """The recorded release of a certificate, as JSON, if it got so far."""
        return next((e.release for e in self.entries() if e.certificate == certificate), None)

    def is_published(self, certificate: str) -> bool:
        """Whether the release of a certificate is confirmed as handed out."""
        states = {entry.certificate: entry.state for entry in self.entries()}
        return states.get(certificate) == "published"

    def _advance(
        self, certificate: str, old: State, new: State, release: str | None, so_far: str
    ) -> None:
        with self._open(so_far) as connection:
            changed = connection.execute(
                "UPDATE releases SET state = ?, release = COALESCE(?, release) "
                "WHERE certificate = ? AND state = ?",
                (new, release, certificate, old),
            ).rowcount
        if changed != 1:
            msg = (
                f"ledger {str(self.path)!r} does not have {certificate[:12]} in state {old!r}; "
                "another process has advanced this release, so nothing was changed"
            )
            raise LedgerError(msg)

    def _check_scenario(self, connection: sqlite3.Connection, scenario: str) -> None:
        known = connection.execute("SELECT version, scenario FROM ledger").fetchone()
        if known is None:
            connection.execute("INSERT INTO ledger VALUES (?, ?)", (VERSION, scenario))
        elif known[0] != VERSION:
            msg = (
                f"ledger {str(self.path)!r} has version {known[0]!r}, this program reads "
                f"{VERSION}. Use the program that made it"
            )
            raise LedgerError(msg)
        elif known[1] != scenario:
            msg = (
                f"ledger {str(self.path)!r} is of another scenario: it protects another secret. "
                "Use one ledger file per secret"
            )
            raise LedgerError(msg)

    def _check_entries(
        self,
        connection: sqlite3.Connection,
        certificate: str,
        covered: Sequence[str],
        budget: tuple[str, float, float] | None,
    ) -> None:
        rows = connection.execute(
            "SELECT certificate, state, composition, spent, total FROM releases"
        ).fetchall()
        states = {row[0]: row[1] for row in rows}
        if certificate in states:
            msg = (
                f"certificate {certificate[:12]} covers one release and has had it: "
                f"{_STATES[states[certificate]]}, or calibrate all that you want to know as one "
                "concatenated query"
            )
            raise AlreadyReleasedError(msg)
        added = set()
        if budget is not None:
            composition, spent, total = budget
            added = {row[0] for row in rows if row[2] == composition}
            costs = [cost for row in rows if row[0] in added for cost in row[3:]]
            if not all(isinstance(cost, float) and cost >= 0 for cost in costs):
                msg = f"ledger {str(self.path)!r} is damaged: an entry has no cost; restore a copy"
                raise LedgerError(msg)
            together = added_up([spent, *(row[3] for row in rows if row[0] in added)])
            totals = {total, *(row[4] for row in rows if row[0] in added)}
            if len(totals) > 1 or not together <= total:
                msg = (
                    f"ledger {str(self.path)!r} holds releases with a total of {min(totals):g}; "
                    f"with this one they would cost {together:g}. A total is fixed before the "
                    "first release and never raised: claim less, or stop here"
                )
                raise AlreadyReleasedError(msg)
        unnamed = sorted(set(states) - set(covered) - added)
        if unnamed:
            named = ", ".join(digest[:12] for digest in unnamed)
            msg = (
                f"ledger {str(self.path)!r} holds releases that the certificate does not mention: "
                f"{named}. Releases of one scenario do not add up. Calibrate all of it as one "
                "concatenated query, or certify again with earlier_releases=ledger.releases(), and "
                "the certificate will state that they are not covered jointly"
            )
            raise AlreadyReleasedError(msg)

    @contextlib.contextmanager
    def _open(self, so_far: str = _NOT_YET) -> Iterator[sqlite3.Connection]:
        """A connection that commits each statement durably by itself."""
        connection = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            prepare_database(self.path, create=True)
            connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
            connection.execute("PRAGMA synchronous = FULL")
            yield connection
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            reason = database_problem(self.path, error)
            msg = f"ledger {os.fspath(self.path)!r} cannot be used: {reason}; {so_far}"
            raise LedgerError(msg) from error
        finally:
            if connection is not None:
                connection.close()
