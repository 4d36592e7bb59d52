# SPDX-License-Identifier: Apache-2.0
"""The ledger: every release of a scenario, one per certificate, in a file or in a database.

One person needs a SQLite file; a team shares a PostgreSQL database (`postgres`). A release passes
through three states, each committed to the disk before the next step begins: `intended` (nothing
drawn yet), `drawn` (noise is in the recorded release, no file written yet), `published` (handed
out). What is in the ledger after a crash is what happened.

A ledger has an id. It moves to a new one in three steps, each durable before the next: the new one,
`incoming`, gets the entries and refuses releases; the old one is marked as moved to the id of the
new one; the new one reads that mark and opens. At no time are both open.
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

VERSION: Final = 3

URL_SCHEMES: Final = ("postgresql://", "postgres://")

_INTEND: Final = (
    "INSERT INTO releases (certificate, state, composition, spent, total) "
    "VALUES (?, 'intended', ?, ?, ?)"
)
_IDENTITY: Final = "SELECT id, state, source FROM identity"
_SCENARIO: Final = "SELECT version, scenario FROM ledger"
_MOVED: Final = "SELECT target, id FROM moved"
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
"""Meaning of each state, and what to do about it."""


class Entry(NamedTuple):
    """One release in the ledger."""

    certificate: str
    state: State
    release: str | None
    """JSON of the release, from the state `drawn` on; None before."""


class _Identity(NamedTuple):
    """The identity of a ledger: its id, its state, and where it was copied from."""

    id: str
    state: Literal["incoming", "open"]
    source: str | None
    """Id of the ledger that it was copied from, if any."""


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
        """Location of the ledger, for messages; without a password."""
        return self._storage.name

    @property
    def path(self) -> Path | None:
        """File of the ledger; None for a database."""
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
    def id(self) -> str | None:
        """Identifier that no other ledger has, wherever it is; None if there is no ledger yet."""
        identity = self._look()
        return None if identity is None else identity.id

    @property
    def is_incoming(self) -> bool:
        """Whether a copy into this ledger has begun and is not finished, so that it is not open."""
        identity = self._look()
        return identity is not None and identity.state == "incoming"

    @property
    def moved_to(self) -> str | None:
        """Location of the ledger that this closed one was copied to; None if it is open."""
        if not self._storage.is_there():
            return None
        return next((str(target) for target, _ in self._storage.rows(_MOVED)), None)

    def check_arrived(self) -> None:
        """Raise if a copy into this ledger was not finished, so that it may lack releases."""
        if self._storage.is_there():
            self._check_arrived(self._storage.rows(_IDENTITY))

    def _look(self) -> _Identity | None:
        if not self._storage.is_there():
            return None
        return self._identity(self._storage.rows(_IDENTITY))

    def _identity(self, rows: Sequence[tuple[Any, ...]]) -> _Identity:
        if len(rows) != 1:
            raise LedgerError(f"ledger {self.name!r} is damaged: it has no id; restore a copy")
        return _Identity(*rows[0])

    def entries(self) -> list[Entry]:
        """List all releases, oldest first; none if there is no ledger yet."""
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
        """List the digests of the certificates that were released or may have been."""
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
            self._check_arrived(connection.execute(_IDENTITY).fetchall())
            self._check_open(connection)
            self._check_entries(connection, certificate, covered, budget)
            connection.execute(_INTEND, (certificate, *(budget or (None, None, None))))

        self._storage.make()
        self._storage.change(work)

    def record_drawn(self, certificate: str, release: str) -> None:
        """Record the finished release, before it is handed out."""
        self._advance(certificate, "intended", "drawn", release, NOT_YET)

    def record_published(self, certificate: str) -> None:
        """Record that the release was handed out completely."""
        done = "the release is kept in it, and may have been handed out"
        self._advance(certificate, "drawn", "published", None, done)

    def entry(self, certificate: str) -> Entry | None:
        """Return the release of a certificate; None if there is none."""
        return next((entry for entry in self.entries() if entry.certificate == certificate), None)

    def _advance(
        self, certificate: str, old: State, new: State, release: str | None, so_far: str
    ) -> None:
        def work(connection: Connection) -> int:
            self._check_arrived(connection.execute(_IDENTITY).fetchall())
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
        known = connection.execute(_SCENARIO).fetchone()
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

    def _check_arrived(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._identity(rows).state == "incoming":
            raise LedgerError(
                f"ledger {self.name!r} is incoming: the copy into it was not finished, so it is "
                "not open. Repeat that `pufferslice ledger copy`, which finishes it"
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
        """List who recorded what and when, oldest first; a file keeps no trail."""
        return self._storage.trail() if self._storage.is_there() else []

    def problems(self) -> list[str]:
        """List what is wrong with the ledger, in sentences; none if all is well."""
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
        if self.is_incoming:
            problems.append("it is incoming: the copy into it was not finished; repeat the copy")
        return problems + (self._storage.problems() if self._storage.is_there() else [])

    def copy_to(self, target: "Ledger") -> int:
        """Copy all entries to a new ledger, close this one for releases, and return their number.

        At no time are both open. Interrupted, it can be repeated, and goes on where it was.
        """
        self.check_there()
        self.check_arrived()
        own_id = self.id
        if own_id == target.id:
            raise LedgerError("a ledger cannot be copied to itself")
        if self.moved_to is None:
            target._storage.make(own_id)  # noqa: SLF001 - of this class
            self._storage.change(
                lambda connection: self._hand_over(connection, own_id, target), alone=True
            )
        self._finish(target)
        return len(self.entries())

    def _hand_over(self, connection: Connection, own_id: str | None, target: "Ledger") -> None:
        """Fill the target and check it, then mark this ledger, which meanwhile takes no release."""
        if connection.execute(_MOVED).fetchone() is not None:
            return  # by the same command in another process, or by another one: seen next
        head = connection.execute(_SCENARIO).fetchone()
        rows = connection.execute(self._all_rows()).fetchall()
        self._check_states({row[0]: row[1] for row in rows})
        there = target._storage  # noqa: SLF001 - of this class
        there.change(
            lambda other: target._take_in(other, own_id, head, rows),  # noqa: SLF001 - of this class
            f"{self.name!r} is still open; copy again",
        )
        arrived = target._look()  # noqa: SLF001 - of this class
        found = there.rows(target._all_rows())  # noqa: SLF001 - of this class
        if arrived is None or arrived[1:] != ("incoming", own_id) or found != rows:
            raise LedgerError(
                f"ledger {target.name!r} does not hold what {self.name!r} holds, which is still "
                "open; copy to a new one"
            )
        connection.execute(
            "INSERT INTO moved (target, id) VALUES (?, ?)", (target.name, arrived.id)
        )

    def _take_in(
        self,
        connection: Connection,
        source: str | None,
        head: tuple[int, str] | None,
        rows: Sequence[tuple[Any, ...]],
    ) -> None:
        """Bring this incoming ledger up to the entries of the ledger with id `source`."""
        identity = self._identity(connection.execute(_IDENTITY).fetchall())
        known = {row[0]: row[1] for row in connection.execute(self._all_rows()).fetchall()}
        self._check_states(known)
        if identity.state == "open":
            self._check_open(connection)
            if known or connection.execute(_SCENARIO).fetchone() is not None:
                raise LedgerError(f"ledger {self.name!r} has entries; copy to a new one")
            connection.execute("UPDATE identity SET state = 'incoming', source = ?", (source,))
        elif identity.source != source:
            raise LedgerError(
                f"ledger {self.name!r} is incoming from another ledger; copy to a new one"
            )
        if head is not None:
            self._check_scenario(connection, head[1])
        states = get_args(State)
        for certificate, state, release, *budget in rows:
            if certificate not in known:
                connection.execute(_INTEND, (certificate, *budget))
            reached = states.index(known.get(certificate, "intended"))
            # step by step, as a database that guards its states allows
            for step in states[reached + 1 : states.index(state) + 1]:
                connection.execute(
                    "UPDATE releases SET state = ?, release = ? WHERE certificate = ?",
                    (step, release, certificate),
                )

    def _finish(self, target: "Ledger") -> None:
        """Open the target if this ledger says that it moved there."""

        def open_up(connection: Connection) -> None:
            rows = connection.execute(_IDENTITY).fetchall()
            self._check_moved_to(target._identity(rows))  # noqa: SLF001 - of this class
            connection.execute("UPDATE identity SET state = 'open'")

        if not target._storage.is_there():  # noqa: SLF001 - of this class
            self._check_moved_to(None)
        target._storage.change(open_up, f"{self.name!r} is closed; copy again")  # noqa: SLF001 - of this class

    def _check_moved_to(self, target: _Identity | None) -> None:
        name, target_id = next(iter(self._storage.rows(_MOVED)), (None, None))
        if target is None or (target.id, target.source) != (target_id, self.id):
            raise LedgerError(
                f"ledger {self.name!r} was copied to {name!r} before; use that one, and if it is "
                "gone, restore a copy of it"
            )

    def _all_rows(self) -> str:
        return (
            "SELECT certificate, state, release, composition, spent, total FROM releases "  # noqa: S608 - a constant
            f"ORDER BY {self._storage.order}"
        )
