# SPDX-License-Identifier: Apache-2.0
"""The ledger of a training run: every noisy step and checkpoint, in a file like any ledger.

A step is recorded before its noise is drawn, with a tag that reveals only whether the sums of a
repeated step are the same. A step that is taken twice with the same sums gets the same noise and
reveals nothing new; with other sums it is refused.
"""

import os
from pathlib import Path
from typing import Final, final

from pufferslice.errors import LedgerError, RewindError
from pufferslice.releases.ledger import Ledger, Transaction
from pufferslice.releases.states import Book, Checkpointed, RecordedRun
from pufferslice.releases.storage import SqliteFile

NEW_RUN: Final = (
    "start a new run in another folder; certify_training([plan, plan]) states what both show "
    "together"
)
"""The remedy in messages about a run that cannot continue."""

_NEXT_STEP: Final = "SELECT COALESCE(MAX(step) + 1, 0) FROM steps"
_NEW_STEP: Final = f"""
INSERT INTO steps SELECT ?1, ?2
WHERE ?1 = ({_NEXT_STEP}) AND ?1 < ?3 AND NOT EXISTS (SELECT 1 FROM events WHERE kind = 'finished')
"""  # noqa: S608 - made of constants


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

    __slots__ = ("_ledger", "_n_steps", "_storage", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._storage = SqliteFile(self.path, is_quick=True)
        self._ledger = Ledger(self._storage)
        self._n_steps: int | None = None

    def make(self) -> None:
        """Make the file if there is none; a run that is killed now has a ledger without a run."""
        self._ledger.make()

    def holds_run(self) -> bool:
        """Whether there is a ledger, and a run was started in it."""
        return self._ledger.book().run is not None

    def start(self, run: str, plan_digest: str, n_steps: int) -> None:
        """Record that a run of a plan begins; repeating the call does no harm."""

        def work(transaction: Transaction) -> None:
            known = transaction.book.run
            if known is None:
                transaction.append("started", run=run, plan=plan_digest, n_steps=int(n_steps))
            elif known.name != run:
                raise LedgerError(f"ledger {str(self.path)!r} is of run {known.name}, not of {run}")
            elif known[1:3] != (plan_digest, n_steps):
                raise LedgerError(f"run {run} follows another plan; a new plan needs a new run")
            else:
                self._unfinished(transaction.book)

        self.make()
        self._ledger.change(work, is_durable=False)

    def run(self) -> RecordedRun:
        """The run, and whether it is finished."""
        return self._run(self._ledger.book())

    def record_step(self, step: int, tag: str) -> None:
        """Record a step before its noise is drawn; the same step with the same tag is a replay.

        Raises `RewindError` if the step was taken with other sums, and `LedgerError` if it is not
        the next one, lies outside the plan, or the run is finished.
        """
        if self._n_steps is None:
            self._n_steps = self.run().n_steps
        if self._storage.run(_NEW_STEP, (int(step), tag, self._n_steps)) == 1:
            return

        def work(transaction: Transaction) -> None:
            run = self._unfinished(transaction.book)
            query = "SELECT tag FROM steps WHERE step = ?"
            row = transaction.execute(query, (int(step),)).fetchone()
            if row is None:
                raise _wrong_step(transaction, run, step)
            if row[0] != tag:
                raise RewindError(
                    f"step {step} was taken before with other sums: the data, the model or the "
                    "machine changed. Its noise is not drawn a second time. Resume the latest "
                    f"checkpoint on the machine that wrote it, or {NEW_RUN}"
                )

        self._ledger.change(work, is_durable=False)

    def record_checkpoint(self, step: int, digest: str) -> None:
        """Record a checkpoint after its file was written; all steps so far are then durable.

        `step` is the number of steps taken before it. After a crash in between, the file is ahead
        of the ledger, and `check_resume` accepts it.
        """

        def work(transaction: Transaction) -> None:
            run = self._unfinished(transaction.book)
            if step > _next_step(transaction):
                raise _wrong_step(transaction, run, step)
            transaction.append("checkpointed", step=int(step), digest=digest)

        self._ledger.change(work)

    def latest_checkpoint(self) -> Checkpointed | None:
        """The checkpoint that was written last, if any."""
        book = self._ledger.book()
        self._run(book)
        return _latest(book)

    def check_resume(self, step: int, digest: str) -> None:
        """Raise `RewindError` unless the checkpoint is the latest, or no step came after it."""

        def work(transaction: Transaction) -> RecordedRun | None:
            book = transaction.book
            run = self._unfinished(book)
            is_known = any(digest == each.digest for each in book.checkpoints)
            is_next = not is_known and step == _next_step(transaction)
            return None if is_next or _latest(book) == (step, digest) else run

        run = self._ledger.change(work, is_durable=False)
        if run is not None:
            raise RewindError(
                f"this is not the latest checkpoint of run {run.name}: it was saved at step "
                f"{step}, and training continued from there. Resume from the latest one, or "
                f"{NEW_RUN}"
            )

    def finish(self, n_steps: int) -> None:
        """Record that the run ended after `n_steps` steps; repeating the call does no harm."""

        def work(transaction: Transaction) -> None:
            run = self._run(transaction.book)
            if run.taken == n_steps:
                return
            self._unfinished(transaction.book)
            if n_steps > run.n_steps:
                raise LedgerError(
                    f"run {run.name} has a plan of {run.n_steps} steps; it cannot have {n_steps}"
                )
            transaction.append("finished", taken=int(n_steps))

        self._ledger.change(work)

    def close(self) -> None:
        """Close the connection; the next call opens it again."""
        self._n_steps = None
        self._storage.close()

    def _run(self, book: Book) -> RecordedRun:
        if book.run is None:
            raise LedgerError(f"ledger {str(self.path)!r} holds no run; start one")
        return book.run

    def _unfinished(self, book: Book) -> RecordedRun:
        run = self._run(book)
        if run.taken is not None:
            raise LedgerError(
                f"run {run.name} ended after {run.taken} of {run.n_steps} steps, and its key is "
                f"destroyed; {NEW_RUN}"
            )
        return run


def _next_step(transaction: Transaction) -> int:
    return int(transaction.execute(_NEXT_STEP).fetchone()[0])


def _latest(book: Book) -> Checkpointed | None:
    return book.checkpoints[-1] if book.checkpoints else None


def _wrong_step(transaction: Transaction, run: RecordedRun, step: int) -> LedgerError:
    if step >= run.n_steps:
        return LedgerError(f"the plan of run {run.name} has {run.n_steps} steps, got step {step}")
    return LedgerError(
        f"the next step of run {run.name} is {_next_step(transaction)}, got step {step}. If the "
        f"ledger is older than the checkpoint, {NEW_RUN}"
    )
