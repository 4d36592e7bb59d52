# SPDX-License-Identifier: Apache-2.0
"""One training run: its secret key, its ledger and files, and what its certificate says.

Batches, seeds and noise are functions of the key, the same in every process. The first process
alone has files, and only if there is a folder.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

import attrs

from pufferslice._core.arrays import Integers
from pufferslice._core.files import (
    CONFIDENTIAL,
    check_room,
    digest,
    prepare_database,
    read_bytes,
    remove_unfinished,
    write_whole,
)
from pufferslice.calibration.noise import draw_integers
from pufferslice.certificate import Certificate
from pufferslice.certificate.limits import ISOLATED
from pufferslice.certificate.training import certify_training
from pufferslice.errors import LedgerError, RewindError, StorageError, TrainingError
from pufferslice.learning import TrainingPlan
from pufferslice.learning.integer_sums import implementation_delta
from pufferslice.learning.keys import RunKey
from pufferslice.learning.sampling import draw_batch
from pufferslice.torch.checkpoint import Checkpoint, plan_digest
from pufferslice.torch.distributed import Processes
from pufferslice.torch.ledger import RunLedger

KEYED_NOISE: Final = (
    "Integer Gaussian noise of parameter 2^44 in units of the plan's noise over 2^44, added to "
    "integer sums of clipped gradients, once per step. It is drawn from AES-256-CTR under a key "
    "hashed from the secret key of the run, the step and the sums. Gradients are clipped to "
    "slightly less than the plan's norms, so that the rounding of blocks and sums stays within the "
    "sensitivity that the plan accounts for."
)
"""How a trainer draws its noise; a certificate carries it."""

_NEW_RUN: Final = "Start a new run in another folder; it costs what its own plan says"


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
        self._ledger: Final = RunLedger(self._folder / "run.ledger")
        weakref.finalize(self, self._ledger.close)
        for path in (self._checkpoint, self._key_path):
            remove_unfinished(path)
        self.key: Final = self._opened_key()
        """None or destroyed if the run is finished."""
        self.is_new: Final = self.key is not None and self._is_started_now(self.key, plan)
        self.name: Final = self._ledger.run().name
        if self.key is None and not self.is_finished():
            msg = (
                f"{str(self._folder)!r} holds an unfinished run whose key {self._key_path.name!r} "
                f"is missing, so it cannot be resumed. {_NEW_RUN}"
            )
            raise TrainingError(msg)

    def _opened_key(self) -> RunKey | None:
        ledger = self._ledger.path
        if self._key_path.exists():
            if ledger.exists():
                return RunKey.read(self._key_path)
            msg = (
                f"{str(self._folder)!r} has a run key and no run ledger, so the steps taken are "
                f"unknown. {_NEW_RUN}; if no step was taken, remove the key and start again"
            )
            raise TrainingError(msg)
        if self._checkpoint.exists() or (ledger.exists() and ledger.stat().st_size):
            return None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            check_room(self._folder)
            # Before the key: a run that is killed in between has an empty ledger, so no steps.
            prepare_database(ledger, create=True)
        except OSError as error:
            msg = f"cannot start a run in {str(self._folder)!r}: {error.strerror or error}"
            raise StorageError(error.errno, msg) from error
        return RunKey.create(self._key_path)

    def _is_started_now(self, key: RunKey, plan: TrainingPlan) -> bool:
        """Whether the run has no checkpoint yet, so that no step was taken."""
        try:
            self._ledger.start(key.name, plan_digest(plan), plan.n_steps)
        except LedgerError:
            run = self._ledger.run()
            if run.name != key.name or run.taken is None:
                raise
            # Killed between its last record and the end of its key.
            key.destroy()
            return False
        return self._ledger.latest_checkpoint() is None and not self._checkpoint.exists()

    def record_step(self, step: int, tag: str) -> None:
        """Record a step before its noise is drawn."""
        self._ledger.record_step(step, tag)

    def write_checkpoint(
        self, checkpoint: Checkpoint, path: str | os.PathLike[str] | None = None
    ) -> None:
        """Write the whole checkpoint, or keep the file that was there."""
        raw = checkpoint.to_bytes()
        write_whole(self._checkpoint if path is None else path, raw, CONFIDENTIAL)
        self._ledger.record_checkpoint(checkpoint.step, digest(raw))

    def read_checkpoint(self, path: str | os.PathLike[str] | None) -> bytes:
        """The file to resume from: the latest checkpoint of this run, and no other."""
        where = self._checkpoint if path is None else Path(path)
        raw = read_bytes(where, "model")
        checkpoint = Checkpoint.from_bytes(raw, f"checkpoint {str(where)!r}")
        if checkpoint.run != self.name:
            msg = (
                f"checkpoint {str(where)!r} belongs to run {checkpoint.run}, and "
                f"{str(self._folder)!r} holds run {self.name}; resume a run in its own folder"
            )
            raise TrainingError(msg)
        latest = self._ledger.latest_checkpoint()
        if self.is_finished():
            if latest is None or latest.digest != digest(raw):
                msg = f"run {self.name} is finished and its key is destroyed. {_NEW_RUN}"
                raise TrainingError(msg)
            return raw
        # A file that is not on record and not behind the latest was written after it, by a process
        # that was killed before it could record that.
        is_ahead = latest is not None and latest.step <= checkpoint.step
        if is_ahead and latest != (checkpoint.step, digest(raw)):
            self._ledger.record_checkpoint(checkpoint.step, digest(raw))
        self._ledger.check_resume(checkpoint.step, digest(raw))
        return raw

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return self._ledger.run().taken is not None

    def finish(self, n_steps: int) -> None:
        """Record that the run ended after so many steps, and destroy its key."""
        self._ledger.finish(n_steps)
        if self.key is not None:
            self.key.destroy()
        self._ledger.close()


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
        """In the first process: the secret for the others, the name, and whether the run is new."""
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

    def noisy(self, step: int, sums: Integers) -> Integers:
        """The sums of a step with their noise; the step is on record before that is drawn."""
        key = self._key.noise_key(step, sums)
        self._processes.from_first(lambda: self._record(step, self._key.tag(key)))
        noisy = draw_integers(key, len(sums))
        noisy += sums
        return noisy

    def _record(self, step: int, tag: str) -> None:
        """No step gets noise for two different sums, also without a ledger."""
        if self._folder is not None:
            self._folder.record_step(step, tag)
        elif self._last is not None and self._last[0] == step and self._last[1] != tag:
            msg = (
                f"step {step} was taken before with other sums, and its noise is not drawn a "
                "second time: the plan accounts for each step once. An optimizer or a scheduler "
                "that raised after it had changed the model does that; start a new run"
            )
            raise RewindError(msg)
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
        """End the run after so many steps: destroy the key."""
        if self._folder is not None:
            self._folder.finish(n_steps)
        self._key.destroy()
        self.is_over = True

    def _with_folder(self) -> RunFolder:
        if self._folder is None:
            msg = (
                "the trainer has no folder, so the key of its run is in memory only and no "
                "checkpoint could be resumed; make it with Trainer(..., folder=...)"
            )
            raise TrainingError(msg)
        return self._folder


def certify_run(
    plan: TrainingPlan,
    *,
    run: str,
    data: str | None,
    n_parameters: int,
    deltas: Sequence[float],
    n_taken: int | None = None,
    limits: Sequence[str] = (),
) -> Certificate:
    """The certificate of a run; of its first `n_taken` steps if it was stopped there.

    Without a public name of the `data` it composes with no other. `limits` are codes beside those
    of every run of this trainer.
    Needs: the run followed the plan, and nobody saw its key.
    """
    noise = KEYED_NOISE
    if n_taken is not None:
        noise += (
            f" The run was stopped after {n_taken} of {plan.n_steps} planned steps. The claim "
            "holds only if that choice did not depend on the data, not even on losses or metrics "
            "of private data. Whoever stopped it declared so, and it cannot be checked."
        )
        plan = first_steps(plan, n_taken)
    return certify_training(
        plan,
        data=f"the data of run {run}" if data is None else data,
        noise=noise,
        deltas=deltas,
        implementation_delta=implementation_delta(plan, n_parameters),
        limits=(*ISOLATED, *limits),
    )


def first_steps(plan: TrainingPlan, n_steps: int) -> TrainingPlan:
    """The plan of the first steps alone."""
    return attrs.evolve(plan, noise_multipliers=plan.noise_multipliers[:n_steps])
