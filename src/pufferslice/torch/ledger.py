# SPDX-License-Identifier: Apache-2.0
"""The ledger of a training run: every noisy step and checkpoint, in one SQLite file.

A step is recorded before its noise is drawn, with a tag that reveals only whether the sums of a
repeated step are the same. A step that is taken twice with the same sums gets the same noise and
reveals nothing new; with other sums it is refused.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, final

from pufferslice._core.databases import database_problem, make_database, open_database
from pufferslice.errors import LedgerError, RewindError

VERSION: Final = 2

NEW_RUN: Final = (
    "start a new run in another folder; runs over the same data compose with "
    "pufferslice.certificate.compose"
)
"""The remedy in messages about a run that cannot continue."""

_WAIT_SECONDS: Final = 30.0
_INHERITED: Final[list[sqlite3.Connection | None]] = []
_TABLES: Final = f"""
CREATE TABLE run_ledger (version INTEGER NOT NULL);
INSERT INTO run_ledger VALUES ({VERSION});
CREATE TABLE runs (
    run TEXT PRIMARY KEY, plan TEXT NOT NULL, n_steps INTEGER NOT NULL, taken INTEGER
);
CREATE TABLE steps (step INTEGER PRIMARY KEY, tag TEXT NOT NULL);
CREATE TABLE checkpoints (
    position INTEGER PRIMARY KEY, step INTEGER NOT NULL, digest TEXT NOT NULL
);
"""  # noqa: S608 - the version is our own number
_NEXT_STEP: Final = "SELECT COALESCE(MAX(step) + 1, 0) FROM steps"
_NEW_STEP: Final = f"""
INSERT INTO steps SELECT :step, :tag
WHERE :step = ({_NEXT_STEP}) AND :step < (SELECT n_steps FROM runs WHERE taken IS NULL)
"""  # noqa: S608 - made of constants


class Checkpointed(NamedTuple):
    """A checkpoint that was written."""

    step: int
    """Number of steps taken before it, which is the next step to take."""
    digest: str


class RecordedRun(NamedTuple):
    """The run of a ledger."""

    name: str
    plan: str
    """Digest of its plan."""
    n_steps: int
    taken: int | None
    """Number of steps taken when the run ended; None while it is unfinished."""


@final
class RunLedger:
    """The training run in the file at `path`; one connection, kept until `close`.

    May be used by several threads and processes at once.

    >>> import tempfile, pathlib
    >>> ledger = RunLedger(pathlib.Path(tempfile.mkdtemp()) / "run.ledger")
    >>> ledger.start("run", plan_digest="plan", n_steps=2)
    >>> ledger.record_step(step=0, tag="sums")
    >>> ledger.record_checkpoint(step=1, digest="file")
    >>> ledger.latest_checkpoint()
    Checkpointed(step=1, digest='file')
    >>> ledger.close()
    """

    __slots__ = ("_connection", "_lock", "_process", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()

    def make(self) -> None:
        """Make the file if there is none; a run that is killed now has a ledger without a run."""
        with self._told():
            make_database(self.path, lambda connection: connection.executescript(_TABLES))

    def holds_run(self) -> bool:
        """Whether there is a ledger, and a run was started in it."""
        if not self.path.exists():
            return False
        with self._open() as connection:
            return connection.execute("SELECT 1 FROM runs").fetchone() is not None

    def start(self, run: str, plan_digest: str, n_steps: int) -> None:
        """Record that a run of a plan begins; repeating the call does no harm."""
        self.make()
        with self._transaction() as connection:
            row = connection.execute("SELECT run, plan, n_steps FROM runs").fetchone()
            if row is None:
                values = (run, plan_digest, int(n_steps))
                connection.execute("INSERT INTO runs VALUES (?, ?, ?, NULL)", values)
            elif row[0] != run:
                raise LedgerError(f"run ledger {str(self.path)!r} is of run {row[0]}, not of {run}")
            elif row[1:] != (plan_digest, n_steps):
                raise LedgerError(f"run {run} follows another plan; a new plan needs a new run")
            else:
                self._unfinished(connection)

    def run(self) -> RecordedRun:
        """The run, and whether it is finished."""
        with self._open() as connection:
            return self._run(connection)

    def record_step(self, step: int, tag: str) -> None:
        """Record a step before its noise is drawn; the same step with the same tag is a replay.

        Raises `RewindError` if the step was taken with other sums, and `LedgerError` if it is not
        the next one, lies outside the plan, or the run is finished.
        """
        with self._open() as connection:
            if connection.execute(_NEW_STEP, {"step": int(step), "tag": tag}).rowcount == 1:
                return
        with self._transaction() as connection:
            run = self._unfinished(connection)
            query = "SELECT tag FROM steps WHERE step = ?"
            row = connection.execute(query, (int(step),)).fetchone()
            if row is None:
                raise _wrong_step(connection, run, step)
            if row[0] != tag:
                raise RewindError(
                    f"step {step} was taken before with other sums: the data, the model or the "
                    "machine changed. Its noise is not drawn a second time. Resume the latest "
                    f"checkpoint on the machine that wrote it, or {NEW_RUN}"
                )

    def record_checkpoint(self, step: int, digest: str) -> None:
        """Record a checkpoint after its file was written; all steps so far are then durable.

        `step` is the number of steps taken before it. After a crash in between, the file is ahead
        of the ledger, and `check_resume` accepts it.
        """
        with self._transaction(durable=True) as connection:
            run = self._unfinished(connection)
            if step > _next_step(connection):
                raise _wrong_step(connection, run, step)
            query = "INSERT INTO checkpoints (step, digest) VALUES (?, ?)"
            connection.execute(query, (int(step), digest))

    def latest_checkpoint(self) -> Checkpointed | None:
        """The checkpoint that was written last, if any."""
        with self._open() as connection:
            self._run(connection)
            return _latest(connection)

    def check_resume(self, step: int, digest: str) -> None:
        """Raise `RewindError` unless the checkpoint is the latest, or no step came after it."""
        with self._transaction() as connection:
            run = self._unfinished(connection)
            if _latest(connection) == (step, digest):
                return
            query = "SELECT 1 FROM checkpoints WHERE digest = ?"
            is_known = connection.execute(query, (digest,)).fetchone() is not None
            if not is_known and step == _next_step(connection):
                return
        raise RewindError(
            f"this is not the latest checkpoint of run {run.name}: it was saved at step {step}, "
            f"and training continued from there. Resume from the latest one, or {NEW_RUN}"
        )

    def finish(self, n_steps: int) -> None:
        """Record that the run ended after `n_steps` steps; repeating the call does no harm."""
        with self._transaction(durable=True) as connection:
            run = self._run(connection)
            if run.taken != n_steps:
                self._unfinished(connection)
            if n_steps > run.n_steps:
                raise LedgerError(
                    f"run {run.name} has a plan of {run.n_steps} steps; it cannot have {n_steps}"
                )
            connection.execute("UPDATE runs SET taken = ?", (int(n_steps),))

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        with self._lock:
            self._leave_inherited()
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _run(self, connection: sqlite3.Connection) -> RecordedRun:
        row = connection.execute("SELECT run, plan, n_steps, taken FROM runs").fetchone()
        if row is None:
            raise LedgerError(f"run ledger {str(self.path)!r} holds no run; start one")
        return RecordedRun(*row)

    def _unfinished(self, connection: sqlite3.Connection) -> RecordedRun:
        run = self._run(connection)
        if run.taken is not None:
            raise LedgerError(
                f"run {run.name} ended after {run.taken} of {run.n_steps} steps, and its key is "
                f"destroyed; {NEW_RUN}"
            )
        return run

    @contextlib.contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Write all or nothing, with no other writer in between; flush to the disk if `durable`."""
        with self._open() as connection:
            if durable:
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
                connection.execute("PRAGMA synchronous = NORMAL")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._told(), self._lock:
            self._leave_inherited()
            if self._connection is None:
                self._connection = _connect(self.path)
            yield self._connection

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what goes wrong inside as an error of this ledger."""
        try:
            yield
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            reason = database_problem(self.path, error)
            raise LedgerError(f"run ledger {str(self.path)!r} cannot be used: {reason}") from error

    def _leave_inherited(self) -> None:
        """Neither use nor close a connection of the parent process: either may damage the file."""
        if self._process != os.getpid():
            _INHERITED.append(self._connection)
            self._connection, self._process = None, os.getpid()


def _connect(path: Path) -> sqlite3.Connection:
    connection = open_database(
        path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("SELECT version FROM run_ledger").fetchone()
    except BaseException:
        connection.close()
        raise
    if version != VERSION:
        connection.close()
        raise LedgerError(
            f"run ledger {str(path)!r} has version {version!r}, this program reads {VERSION}"
        )
    return connection


def _next_step(connection: sqlite3.Connection) -> int:
    return int(connection.execute(_NEXT_STEP).fetchone()[0])


def _latest(connection: sqlite3.Connection) -> Checkpointed | None:
    query = "SELECT step, digest FROM checkpoints ORDER BY position DESC LIMIT 1"
    row = connection.execute(query).fetchone()
    return None if row is None else Checkpointed(*row)


def _wrong_step(connection: sqlite3.Connection, run: RecordedRun, step: int) -> LedgerError:
    if step >= run.n_steps:
        return LedgerError(f"the plan of run {run.name} has {run.n_steps} steps, got step {step}")
    return LedgerError(
        f"the next step of run {run.name} is {_next_step(connection)}, got step {step}. If the "
        f"ledger is older than the checkpoint, {NEW_RUN}"
    )
