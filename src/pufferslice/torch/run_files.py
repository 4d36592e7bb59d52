# SPDX-License-Identifier: Apache-2.0
"""The folder of a training run: its key, its ledger and its checkpoint."""

import os
import weakref
from pathlib import Path
from typing import Final, Literal, final

from pufferslice.errors import LedgerError, StorageError, TrainingError
from pufferslice.run_ledger import Checkpointed, RunLedger
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.run_key import RunKey
from pufferslice.storage import (
    CONFIDENTIAL,
    check_room,
    digest,
    prepare_database,
    read_bytes,
    remove_unfinished,
    write_whole,
)
from pufferslice.torch.checkpoint import Checkpoint, plan_digest

Found = Literal["new", "unfinished", "finished"]

_ELSEWHERE: Final = "Start a new run in another folder; it costs what its own plan says"


@final
class RunFiles:
    """Opens the run in a folder, or starts one there.

    `run.key` is the secret of the run and gone when it is over; `run.ledger` says which steps were
    taken; `checkpoint.pt` is what the run goes on from.
    """

    def __init__(self, folder: str | os.PathLike[str], plan: TrainingPlan) -> None:
        self.folder = Path(folder)
        self.checkpoint_path: Final = self.folder / "checkpoint.pt"
        self._key_path: Final = self.folder / "run.key"
        self._ledger: Final = RunLedger(self.folder / "run.ledger")
        weakref.finalize(self, self._ledger.close)
        self._remove_unfinished_writes()
        key = self._opened_key()
        self.run: Final = self._finished_run() if key is None else key.name
        """Public name of the run."""
        self.found: Final = self._started(plan)
        """What was there: nothing yet, a run that can go on, or one that is over."""
        self._key = key
        if self.found == "finished":
            self._destroy_key()

    @property
    def key(self) -> RunKey:
        """The key of a run that is not over."""
        if self._key is None:
            msg = f"run {self.run} is over and its key is destroyed. {_ELSEWHERE}"
            raise TrainingError(msg)
        return self._key

    def is_finished(self) -> bool:
        """Whether the run is over."""
        return self._ledger.is_finished(self.run)

    def record_step(self, step: int, tag: str) -> None:
        """Record a step before its noise is drawn."""
        self._ledger.record_step(self.run, step, tag)

    def write_checkpoint(
        self, checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None
    ) -> None:
        """Write a checkpoint whole, or keep what was there."""
        raw = checkpoint.to_bytes()
        write_whole(self.checkpoint_path if path is None else path, raw, CONFIDENTIAL)
        self._ledger.record_checkpoint(self.run, checkpoint.step, digest(raw))

    def read_checkpoint(self, path: str | os.PathLike[str] | None) -> bytes:
        """The file that the run may resume from."""
        where = self.checkpoint_path if path is None else Path(path)
        raw = read_bytes(where, "model")
        checkpoint = Checkpoint.from_bytes(raw, f"checkpoint {str(where)!r}")
        if checkpoint.run != self.run:
            msg = (
                f"checkpoint {str(where)!r} is of run {checkpoint.run}, and {str(self.folder)!r} "
                f"holds run {self.run}; a run goes on in its own folder"
            )
            raise TrainingError(msg)
        if self.is_finished():
            latest = self._ledger.latest_checkpoint(self.run)
            if latest is None or latest.digest != digest(raw):
                msg = f"run {self.run} is over and its key is destroyed. {_ELSEWHERE}"
                raise TrainingError(msg)
        else:
            self._check_resume(Checkpointed(checkpoint.step, digest(raw)))
        return raw

    def finish(self, n_steps: int) -> None:
        """The run is over: no step can be added, and the key is destroyed."""
        self._ledger.finish(self.run, n_steps)
        self._destroy_key()
        self._ledger.close()

    def _remove_unfinished_writes(self) -> None:
        """What a killed process left of files that never got their names."""
        for path in (self.checkpoint_path, self._key_path):
            remove_unfinished(path)

    def _check_resume(self, given: Checkpointed) -> None:
        """The checkpoint is the latest, also if the run was killed before that was on record.

        One that is not on record and not behind the latest was written after it.
        """
        latest = self._ledger.latest_checkpoint(self.run)
        is_ahead = latest and latest.step <= given.step
        if is_ahead and latest != given:
            self._ledger.record_checkpoint(self.run, *given)
        self._ledger.check_resume(self.run, *given)

    def _opened_key(self) -> RunKey | None:
        has_key, has_ledger = self._key_path.exists(), self._ledger.path.exists()
        if has_key and not has_ledger:
            msg = (
                f"{str(self.folder)!r} has a run key and no run ledger, so which steps were taken "
                f"is not known. {_ELSEWHERE}; if none was taken, remove the key and start again"
            )
            raise TrainingError(msg)
        if has_key:
            return RunKey.read(self._key_path)
        if has_ledger and (self._ledger.path.stat().st_size or self.checkpoint_path.exists()):
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_room(self.folder)
            # Before the key: a run that is killed in between has an empty ledger, so no steps.
            prepare_database(self._ledger.path, create=True)
        except OSError as error:
            msg = f"cannot start a run in {str(self.folder)!r}: {error.strerror or error}"
            raise StorageError(error.errno, msg) from error
        return RunKey.create(self._key_path)

    def _started(self, plan: TrainingPlan) -> Found:
        if not self._key_path.exists():
            return "finished"
        try:
            self._ledger.start(self.run, plan_digest(plan), plan.n_steps)
        except LedgerError:
            # A run that was killed between its last record and the end of its key.
            if self._ledger.is_finished(self.run):
                return "finished"
            raise
        saved = self._ledger.latest_checkpoint(self.run) or self.checkpoint_path.exists()
        return "unfinished" if saved else "new"

    def _destroy_key(self) -> None:
        if self._key is not None:
            self._key.destroy()

    def _finished_run(self) -> str:
        """The run of a folder without key, which must be over."""
        if self.checkpoint_path.exists():
            where = f"checkpoint {str(self.checkpoint_path)!r}"
            run = Checkpoint.from_bytes(read_bytes(self.checkpoint_path, "model"), where).run
            if self._ledger.is_finished(run):
                return run
        msg = (
            f"{str(self.folder)!r} holds a run that is not finished, and its key "
            f"{self._key_path.name!r} is missing; it cannot go on. {_ELSEWHERE}"
        )
        raise TrainingError(msg)
