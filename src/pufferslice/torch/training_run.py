# SPDX-License-Identifier: Apache-2.0
"""One training run: its secret key and its files, the same in every process."""

import os
from collections.abc import Callable
from typing import Final, NamedTuple, final

from pufferslice.arrays import Integers
from pufferslice.errors import RewindError, TrainingError
from pufferslice.noise import draw_integers
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.drawing import draw_batch
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch.checkpoint import Checkpoint
from pufferslice.torch.distributed import Processes
from pufferslice.torch.run_files import Found, RunFiles


class _Announced(NamedTuple):
    """What the first process tells the others of the run."""

    secret: bytes | None
    name: str
    found: Found


class Resumed(NamedTuple):
    """Where a run goes on."""

    raw: bytes
    """The checkpoint file."""
    is_over: bool


@final
class TrainingRun:
    """Everything that depends on the key: which batches are drawn, and which noise is added.

    All processes hold the key; the first one alone has files, and only if there is a folder.
    """

    def __init__(
        self, plan: TrainingPlan, processes: Processes, folder: str | os.PathLike[str] | None
    ) -> None:
        self._plan, self._processes = plan, processes
        self._files: RunFiles | None = None
        self._key = RunKey.fresh()
        told = processes.from_first(lambda: self._announced(folder))
        if told.secret is None:
            self._key.destroy()
        elif not processes.is_first:
            self._key = RunKey.from_bytes(told.secret)
        self.name: Final = told.name
        """Public name of the run."""
        self.found: Final = told.found
        """What the folder held: nothing, a run that can go on, or one that is over."""
        self.is_over = False
        self._last: tuple[int, str] | None = None

    def draw(self, step: int) -> Integers:
        """Positions of the records in the batch of a step, in drawn order."""
        return draw_batch(self._plan.sampling, self._key.batch_key(step))

    def seed(self, step: int, number: int) -> int:
        """One of the seeds of a step; independent of the data."""
        return self._key.block_seed(step, number)

    def noisy(self, step: int, sums: Integers) -> Integers:
        """The sums of a step with their noise; the step is on record before that is drawn."""
        key = self._key.noise_key(step, sums)

        def record() -> None:
            tag = self._key.tag(key)
            if self._files is not None:
                self._files.record_step(step, tag)
            else:
                self._remember(step, tag)

        self._processes.from_first(record)
        return sums + draw_integers(key, len(sums))

    def _remember(self, step: int, tag: str) -> None:
        """What a ledger does, for a run without files: no step has noise for two sums."""
        if self._last is not None and self._last[0] == step and self._last[1] != tag:
            msg = (
                f"step {step} was taken before with other sums, and its noise is not drawn a "
                "second time: the plan charges each step once. An optimizer or a scheduler that "
                "raised after it had changed the model does that; start a new run"
            )
            raise RewindError(msg)
        self._last = step, tag

    def write(self, checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None) -> None:
        """Write a checkpoint, in the first process; in the others do nothing."""
        if self._processes.is_first:
            self._with_files().write_checkpoint(checkpoint, path)

    def resume(
        self, path: str | os.PathLike[str] | None, check: Callable[[Checkpoint], None]
    ) -> Checkpoint:
        """The checkpoint to resume from, in every process."""

        def found() -> Resumed:
            files = self._with_files()
            raw = files.read_checkpoint(path)
            check(Checkpoint.from_bytes(raw, "the checkpoint"))
            return Resumed(raw, files.is_finished())

        told = self._processes.from_first(found)
        checkpoint = Checkpoint.from_bytes(told.raw, "the checkpoint")
        check(checkpoint)
        self.is_over = told.is_over
        return checkpoint

    def end(self, final: Checkpoint) -> None:
        """Write the final state if there is a folder, then destroy the key."""
        if self._files is not None:
            self._files.write_checkpoint(final)
        self.forget(final.step)

    def forget(self, n_steps: int) -> None:
        """The run is over after so many steps: destroy the key."""
        if self._files is not None:
            self._files.finish(n_steps)
        self._key.destroy()
        self.is_over = True

    @property
    def has_files(self) -> bool:
        """Whether this process keeps files of the run."""
        return self._files is not None

    def _announced(self, folder: str | os.PathLike[str] | None) -> _Announced:
        """In the first process only: what the folder holds."""
        if folder is None:
            return _Announced(self._key.to_bytes(), self._key.name, "new")
        files = RunFiles(folder, self._plan)
        self._files = files
        if files.found == "finished":
            return _Announced(None, files.run, files.found)
        self._key = files.key
        return _Announced(files.key.to_bytes(), files.run, files.found)

    def _with_files(self) -> RunFiles:
        if self._files is None:
            msg = (
                "the trainer has no folder, so the key of its run is in memory only and no "
                "checkpoint could go on with it; make it with Trainer(..., folder=...)"
            )
            raise TrainingError(msg)
        return self._files
