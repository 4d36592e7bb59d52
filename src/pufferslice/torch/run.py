# SPDX-License-Identifier: Apache-2.0
"""One training run: its secret key, its ledger and its files.

Batches, seeds and noise are functions of the key, the same in every process. Only the first process
has files, and only if there is a folder.
"""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from pufferslice._core.arrays import Integers
from pufferslice._core.files import (
    CONFIDENTIAL,
    PROBE,
    check_room,
    digest,
    read_bytes,
    remove_unfinished,
    write_whole,
)
from pufferslice._core.sampler import add_integers
from pufferslice.errors import LedgerError, RewindError, StorageError, TrainingError
from pufferslice.learning import TrainingPlan
from pufferslice.learning.keys import RunKey
from pufferslice.learning.sampling import draw_batch
from pufferslice.torch.checkpoint import Checkpoint, plan_digest
from pufferslice.torch.distributed import Processes
from pufferslice.torch.ledger import NEW_RUN, RunLedger


@final
class RunFolder:
    """The files of a run: opens the run in a folder, or starts one there.

    `run.key` is the secret of the run and is destroyed when it ends; `run.ledger` records the steps
    taken; `checkpoint.pt` is what the run resumes from.
    """

    def __init__(self, folder: str | os.PathLike[str], plan: TrainingPlan) -> None:
        self._folder: Final = Path(folder)
        self._checkpoint: Final = self._folder / "checkpoint.pt"
        self._key_path: Final = self._folder / "run.key"
        self.ledger: Final = RunLedger(self._folder / "run.ledger")
        weakref.finalize(self, self.ledger.close)
        for path in (self.ledger.path, self._checkpoint, self._key_path, self._folder / PROBE):
            remove_unfinished(path)
        self.key: Final = self._opened_key()
        """Key of the run; None or destroyed if the run is finished."""
        self.is_new: Final = self.key is not None and self._is_started_now(self.key, plan)
        self.name: Final = self.ledger.run().name
        if self.key is None and not self.is_finished():
            raise TrainingError(
                f"{str(self._folder)!r} holds an unfinished run whose key {self._key_path.name!r} "
                f"is missing, so it cannot be resumed; {NEW_RUN}"
            )

    def _opened_key(self) -> RunKey | None:
        ledger = self.ledger.path
        if self._key_path.exists():
            if ledger.exists():
                if RunKey.is_erased(self._key_path):  # killed before the file was removed
                    self._key_path.unlink()
                    return None
                return RunKey.read(self._key_path)
            raise TrainingError(
                f"{str(self._folder)!r} has a run key and no run ledger, so the steps taken are "
                f"unknown. If there were none, remove the key and start again; else {NEW_RUN}"
            )
        if self._checkpoint.exists() or self.ledger.holds_run():
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            check_room(self._folder)
        except OSError as error:
            raise StorageError(
                error.errno,
                f"cannot start a run in {str(self._folder)!r}: {error.strerror or error}",
            ) from error
        # Before the key: a run that is killed in between has a ledger without a run, so no steps.
        self.ledger.make()
        return RunKey.create(self._key_path)

    def _is_started_now(self, key: RunKey, plan: TrainingPlan) -> bool:
        """Whether the run has no checkpoint yet, so that no step was taken."""
        try:
            self.ledger.start(key.name, plan_digest(plan), plan.n_steps)
        except LedgerError:
            run = self.ledger.run()
            if run.name != key.name or run.taken is None:
                raise
            # Killed between its last record and the end of its key.
            key.destroy()
            return False
        return self.ledger.latest_checkpoint() is None and not self._checkpoint.exists()

    def write_checkpoint(
        self, checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None
    ) -> None:
        """Write the checkpoint; if that fails, the old file stays."""
        raw = checkpoint.to_bytes()
        write_whole(self._checkpoint if path is None else path, raw, CONFIDENTIAL)
        self.ledger.record_checkpoint(checkpoint.step, digest(raw))

    def read_checkpoint(self, path: str | os.PathLike[str] | None) -> bytes:
        """The latest checkpoint of this run; any other file is refused."""
        place = self._checkpoint if path is None else Path(path)
        raw = read_bytes(place, "model")
        checkpoint = Checkpoint.from_bytes(raw, f"checkpoint {str(place)!r}")
        if checkpoint.run != self.name:
            raise TrainingError(
                f"checkpoint {str(place)!r} belongs to run {checkpoint.run}, and "
                f"{str(self._folder)!r} holds run {self.name}; resume a run in its own folder"
            )
        latest = self.ledger.latest_checkpoint()
        if self.is_finished():
            if latest is None or latest.digest != digest(raw):
                raise TrainingError(
                    f"run {self.name} is finished and its key is destroyed; {NEW_RUN}"
                )
            return raw
        # An unrecorded file that is not behind the latest was written by a process that was killed
        # before it could record it.
        is_ahead = latest is not None and latest.step <= checkpoint.step
        if is_ahead and latest != (checkpoint.step, digest(raw)):
            self.ledger.record_checkpoint(checkpoint.step, digest(raw))
        self.ledger.check_resume(checkpoint.step, digest(raw))
        return raw

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return self.ledger.run().taken is not None

    def finish(self, n_steps: int) -> None:
        """Record that the run ended after `n_steps` steps, and destroy its key."""
        self.ledger.finish(n_steps)
        if self.key is not None:
            self.key.destroy()
        self.ledger.close()


@final
class TrainingRun:
    """Everything that depends on the key: which batches are drawn, and which noise is added."""

    def __init__(
        self, plan: TrainingPlan, processes: Processes, folder: str | os.PathLike[str] | None
    ) -> None:
        self._plan, self._processes = plan, processes
        self._folder: RunFolder | None = None
        self._key = RunKey.fresh()
        self._last: tuple[int, str] | None = None
        secret, name, is_new = processes.from_first(lambda: self._opened(folder))
        if secret is None:
            self._key.destroy()
        elif not processes.is_first:
            self._key = RunKey.from_bytes(secret)
        self.name: Final = name
        """Public name of the run."""
        self.needs_resume: Final = not is_new
        """Whether the folder held a run, unfinished or finished."""
        self.is_over = False

    def _opened(self, folder: str | os.PathLike[str] | None) -> tuple[bytes | None, str, bool]:
        """Secret for the other processes, name, and whether the run is new; for the first one."""
        if folder is None:
            return self._key.to_bytes(), self._key.name, True
        self._folder = RunFolder(folder, self._plan)
        if self._folder.key is None or self._folder.key.is_destroyed:
            return None, self._folder.name, False
        self._key = self._folder.key
        return self._key.to_bytes(), self._folder.name, self._folder.is_new

    @property
    def has_files(self) -> bool:
        """Whether this process keeps files of the run."""
        return self._folder is not None

    def draw(self, step: int) -> Integers:
        """Positions of the records in the batch of a step, in drawn order."""
        return draw_batch(self._plan.sampling, self._key.batch_key(step))

    def seed(self, step: int, number: int) -> int:
        """One of the seeds of a step; independent of the data."""
        return self._key.block_seed(step, number)

    def add_noise(self, step: int, sums: Integers) -> None:
        """Add the noise of a step to its sums, in place; the step is recorded before."""
        key = self._key.noise_key(step, sums)
        self._processes.from_first(lambda: self._record(step, self._key.tag(key)))
        add_integers(key, sums)

    def _record(self, step: int, tag: str) -> None:
        """Record a step; without a ledger, too, none gets noise for two different sums."""
        if self._folder is not None:
            self._folder.ledger.record_step(step, tag)
        elif self._last is not None and self._last[0] == step and self._last[1] != tag:
            raise RewindError(
                f"step {step} was taken before with other sums, and its noise is not drawn a "
                "second time: the plan accounts for each step once. An optimizer or a scheduler "
                "that changes the model and then raises causes this; start a new run"
            )
        self._last = step, tag

    def write(self, checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None) -> None:
        """Write a checkpoint, in the first process; in the others do nothing."""
        if self._processes.is_first:
            self._with_folder().write_checkpoint(checkpoint, path)

    def resume(
        self, path: str | os.PathLike[str] | None, check: Callable[[Checkpoint], None]
    ) -> Checkpoint:
        """The checkpoint to resume from, checked in every process."""

        def read() -> tuple[bytes, bool]:
            folder = self._with_folder()
            raw = folder.read_checkpoint(path)
            check(Checkpoint.from_bytes(raw, "the checkpoint"))
            return raw, folder.is_finished()

        raw, is_over = self._processes.from_first(read)
        checkpoint = Checkpoint.from_bytes(raw, "the checkpoint")
        check(checkpoint)
        self.is_over = is_over
        return checkpoint

    def end(self, last: Checkpoint) -> None:
        """Write the final state if there is a folder, then destroy the key."""
        if self._folder is not None:
            self._folder.write_checkpoint(last)
        self.forget(last.step)

    def forget(self, n_steps: int) -> None:
        """End the run after `n_steps` steps: destroy the key."""
        if self._folder is not None:
            self._folder.finish(n_steps)
        self._key.destroy()
        self.is_over = True

    def _with_folder(self) -> RunFolder:
        if self._folder is None:
            raise TrainingError(
                "the trainer has no folder, so the key of its run is in memory only and no "
                "checkpoint could be resumed; make it with Trainer(..., folder=...)"
            )
        return self._folder
