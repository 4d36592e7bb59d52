# SPDX-License-Identifier: Apache-2.0
"""The ledger: every release of a scenario, one per certificate, in a file or in a database.

One person needs a SQLite file; a team shares a PostgreSQL database (`postgres`). A release passes
through three states, each committed to the disk before the next step begins: `intended` (nothing
drawn yet), `drawn` (noise is in the recorded release, no file written yet), `published` (handed
out). What is in the ledger after a crash is what happened.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final, get_args

from pufferslice._core.checks import is_a
from pufferslice._core.files import check_local, parsed_json
from pufferslice.certificate.composition import added_up
from pufferslice.errors import AlreadyReleasedError, ArgumentError, LedgerError
from pufferslice.releases.storage import NOT_YET, Connection, Event, SqliteFile

if TYPE_CHECKING:
    from pufferslice.releases.postgres import Database

State = Literal["intended", "drawn", "published"]

VERSION: Final = 2

URL_SCHEMES: Final = ("postgresql://", "postgres://")

_INTEND: Final = (
    "INSERT INTO releases (certificate, state, composition, spent, total) "
    "VALUES (?, 'intended', ?, ?, ?)"
)
_MOVED: Final = "SELECT target FROM moved"
_AGAIN: Final = (
    "Publish that same release again (the ledger keeps it; on the command line: --again)"
)
_STATES: Final = {
    "intended": (
        "its noise was never handed out, but the attempt ended without a result. Nothing of it is "
        "kept: certify again, naming it among earlier_releases"
    ),
    "drawn": f"its result is kept in the ledger, but was not confirmed as published. {_AGAIN}",
    "published": f"it was published. {_AGAIN}",
}
"""What each state means, and what to do about it."""


class Entry(NamedTuple):
    """One release in the ledger."""

    certificate: str
    state: State
    release: str | None
    """The release as JSON, from the state `drawn` on."""


@final
class Ledger:
    """The releases of one scenario, in a file or in a database that a team shares.

    A path names a file; only its owner can read a new one. An address
    `postgresql://user@host/database#name` names a ledger in a PostgreSQL database, which needs the
    extra `team`.

    >>> import tempfile, pathlib
    >>> ledger = Ledger(pathlib.Path(tempfile.mkdtemp()) / "census.ledger")
    >>> ledger.entries()
    []
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._location = location

    @cached_property
    def _storage(self) -> "SqliteFile | Database":
        if isinstance(self._location, str) and self._location.startswith(URL_SCHEMES):
            # Not at the top: it needs an extra.
            from pufferslice.releases.postgres import Database  # noqa: PLC0415

            return Database(self._location)
        check_local(self._location)
        return SqliteFile(Path(self._location))

    @property
    def name(self) -> str:
        """Where the ledger is, for messages; without a password."""
        return self._storage.name

    @property
    def path(self) -> Path | None:
        """The file of the ledger; a database has none."""
        return self._storage.path if isinstance(self._storage, SqliteFile) else None

    def __repr__(self) -> str:
        return f"Ledger({self.name!r})"

    def check_there(self) -> None:
        """Raise unless there is a ledger: a wrong name must not look like one without releases."""
        if not self._storage.is_there():
            raise ArgumentError(
                f"there is no ledger at {self.name!r}; the first release makes one. Check the name"
            )

    @property
    def moved_to(self) -> str | None:
        """The ledger that this one was copied to, which closed it; none if it is open."""
        if not self._storage.is_there():
            return None
        return next((str(target) for (target,) in self._storage.rows(_MOVED)), None)

    def entries(self) -> list[Entry]:
        """All releases, oldest first; none if there is no ledger yet."""
        if not self._storage.is_there():
            return []
        rows = self._storage.rows(
            f"SELECT certificate, state, release FROM releases ORDER BY {self._storage.order}"  # noqa: S608 - a constant
        )
        entries = [Entry(*row) for row in rows]
        self._check_states({entry.certificate: entry.state for entry in entries})
        return entries

    def _check_states(self, states: Mapping[str, str]) -> None:
        if not all(is_a(name, str) and state in _STATES for name, state in states.items()):
            raise LedgerError(
                f"ledger {self.name!r} is damaged: an entry has no state; restore a copy"
            )

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

        def work(connection: Connection) -> None:
            self._check_scenario(connection, scenario)
            self._check_entries(connection, certificate, covered, budget)
            connection.execute(_INTEND, (certificate, *(budget or (None, None, None))))

        self._storage.change(work)

    def record_drawn(self, certificate: str, release: str) -> None:
        """Record the finished release, before it is handed out."""
        self._advance(certificate, "intended", "drawn", release, NOT_YET)

    def record_published(self, certificate: str) -> None:
        """Record that the release was handed out completely."""
        done = "the release is kept in it, and may have been handed out"
        self._advance(certificate, "drawn", "published", None, done)

    def entry(self, certificate: str) -> Entry | None:
        """The release of a certificate, if there is one."""
        return next((entry for entry in self.entries() if entry.certificate == certificate), None)

    def _advance(
        self, certificate: str, old: State, new: State, release: str | None, so_far: str
    ) -> None:
        def work(connection: Connection) -> int:
            if old == "intended":
                # after a copy the other ledger says that nothing was drawn
                self._check_open(connection)
            return int(
                connection.execute(
                    "UPDATE releases SET state = ?, release = COALESCE(?, release) "
                    "WHERE certificate = ? AND state = ?",
                    (new, release, certificate, old),
                ).rowcount
            )

        changed = self._storage.change(work, so_far)
        if changed != 1:
            raise LedgerError(
                f"ledger {self.name!r} does not have {certificate[:12]} in state {old!r}; "
                "another process has advanced this release, so nothing was changed"
            )

    def _check_scenario(self, connection: Connection, scenario: str) -> None:
        self._check_open(connection)
        known = connection.execute("SELECT version, scenario FROM ledger").fetchone()
        if known is None:
            connection.execute(
                "INSERT INTO ledger (version, scenario) VALUES (?, ?)", (VERSION, scenario)
            )
        elif known[0] != VERSION:
            raise LedgerError(
                f"ledger {self.name!r} has version {known[0]!r}, this program reads "
                f"{VERSION}. Use the program that made it"
            )
        elif known[1] != scenario:
            raise LedgerError(
                f"ledger {self.name!r} is of another scenario: it protects another secret. "
                "Use one ledger per secret"
            )

    def _check_open(self, connection: Connection) -> None:
        if target := connection.execute(_MOVED).fetchone():
            raise LedgerError(
                f"ledger {self.name!r} was copied to {target[0]!r} and closed; use that one"
            )

    def _check_entries(
        self,
        connection: Connection,
        certificate: str,
        covered: Sequence[str],
        budget: tuple[str, float, float] | None,
    ) -> None:
        rows = connection.execute(
            "SELECT certificate, state, composition, spent, total FROM releases"
        ).fetchall()
        states = {row[0]: row[1] for row in rows}
        self._check_states(states)
        if certificate in states:
            raise AlreadyReleasedError(
                f"certificate {certificate[:12]} covers one release and has had it: "
                f"{_STATES[states[certificate]]}, or calibrate all that you want to know as one "
                "concatenated query"
            )
        added = set()
        if budget is not None:
            composition, spent, total = budget
            added = {row[0] for row in rows if row[2] == composition}
            costs = [cost for row in rows if row[0] in added for cost in row[3:]]
            if not all(isinstance(cost, float) and cost >= 0 for cost in costs):
                raise LedgerError(
                    f"ledger {self.name!r} is damaged: an entry has no cost; restore a copy"
                )
            together = added_up([spent, *(row[3] for row in rows if row[0] in added)])
            totals = {total, *(row[4] for row in rows if row[0] in added)}
            if len(totals) > 1 or not together <= total:
                raise AlreadyReleasedError(
                    f"ledger {self.name!r} holds releases with a total of {min(totals):g}; "
                    f"with this one they would cost {together:g}. A total is fixed before the "
                    "first release and never raised: claim less, or stop here"
                )
        unnamed = sorted(set(states) - set(covered) - added)
        if unnamed:
            named = ", ".join(digest[:12] for digest in unnamed)
            raise AlreadyReleasedError(
                f"ledger {self.name!r} holds releases that the certificate does not mention: "
                f"{named}. Releases of one scenario do not add up. Calibrate all of it as one "
                "concatenated query, or certify again with earlier_releases=ledger.releases() "
                "(`pufferslice calibrate --ledger`), and the certificate will state that they are "
                "not covered jointly"
            )

    def trail(self) -> list[Event]:
        """Who recorded what and when, oldest first; a file keeps no trail."""
        return self._storage.trail() if self._storage.is_there() else []

    def problems(self) -> list[str]:
        """What is wrong with the ledger, in sentences; none if all is well."""
        problems = []
        for entry in self.entries():
            known = None
            with contextlib.suppress(ValueError, TypeError):
                known = parsed_json(entry.release or "")
            certificate = known.get("certificate") if isinstance(known, dict) else None
            if entry.state != "intended" and certificate != entry.certificate:
                problems.append(f"the release of {entry.certificate[:12]} is damaged or of another")
            if entry.state == "intended" and entry.release is not None:
                problems.append(f"{entry.certificate[:12]} has a release before it was drawn")
        return problems + (self._storage.problems() if self._storage.is_there() else [])

    def copy_to(self, target: "Ledger") -> int:
        """Copy all entries to a new ledger, close this one for releases, and return their number.

        This one is closed first: at no time can both be used. Interrupted, it can be repeated.
        """

        def close(connection: Connection) -> tuple[Any, list[Any]]:
            moved = connection.execute(_MOVED).fetchone()
            if moved is not None and moved[0] != target.name:
                raise LedgerError(
                    f"ledger {self.name!r} was copied to {moved[0]!r} before; use that one"
                )
            if moved is None:
                connection.execute("INSERT INTO moved (target) VALUES (?)", (target.name,))
                # a program that does not know this table refuses the version
                connection.execute("UPDATE ledger SET version = ?", (-VERSION,))
            head = connection.execute("SELECT version, scenario FROM ledger").fetchone()
            rows = connection.execute(
                "SELECT certificate, state, release, composition, spent, total FROM releases "  # noqa: S608 - a constant
                f"ORDER BY {self._storage.order}"
            ).fetchall()
            return head, rows

        self.check_there()
        if target.name == self.name:
            raise LedgerError("a ledger cannot be copied to itself")
        if target.entries():
            raise LedgerError(f"ledger {target.name!r} has entries; copy to a new one")
        head, rows = self._storage.change(close)

        def fill(connection: Connection) -> None:
            if connection.execute("SELECT 1 FROM releases").fetchone():
                raise LedgerError(f"ledger {target.name!r} has entries; copy to a new one")
            if head is not None:
                target._check_scenario(connection, head[1])  # noqa: SLF001 - of this class
            for certificate, state, release, *budget in rows:
                connection.execute(_INTEND, (certificate, *budget))
                # step by step, as a database that guards its states allows
                states = get_args(State)
                for step in states[1 : states.index(state) + 1]:
                    connection.execute(
                        "UPDATE releases SET state = ?, release = ? WHERE certificate = ?",
                        (step, release, certificate),
                    )

        target._storage.change(fill, f"{self.name!r} is closed; copy again")  # noqa: SLF001 - of this class
        return len(rows)
