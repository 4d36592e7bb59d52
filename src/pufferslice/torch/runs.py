# SPDX-License-Identifier: Apache-2.0
"""Whole training runs: from a request to model, certificate and logs in one folder."""

import contextlib
import io
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

import attrs
import torch
from torch import nn

from pufferslice.certificate import Certificate
from pufferslice.errors import ArgumentError, StorageError, TrainingError
from pufferslice.sgd.request import TrainingRequest, differences
from pufferslice.storage import (
    CONFIDENTIAL,
    check_room,
    parsed_json,
    pretty_json,
    read_bytes,
    remove_unfinished,
    write_new,
    write_whole,
)
from pufferslice.torch.per_example import LossFunction
from pufferslice.torch.run_data import Records, run_data
from pufferslice.torch.run_log import INTERNAL, PUBLIC, RunLog, rows_of
from pufferslice.torch.run_model import (
    held_out_metrics,
    run_loss,
    run_model,
    run_optimizer,
)
from pufferslice.torch.trainer import StepReport, Trainer

CERTIFICATE: Final = "certificate.json"
MODEL: Final = "model.pt"
RECORD: Final = "run.json"
"""What the run was asked for. Confidential: it may name the world that is trained on."""

_FORMAT: Final = "pufferslice-run"
_VERSION: Final = 1


@final
@attrs.frozen(kw_only=True)
class StepProgress:
    """How far a run is. Internal: the loss and the time come from the private records."""

    step: int
    """Steps taken."""
    n_steps: int
    mean_loss: float
    seconds: float
    spent_epsilon: float
    """What the steps cost when it was last computed, at every public row of the log."""
    epsilon: float
    """What the whole run costs."""


@final
@attrs.frozen(kw_only=True)
class TrainedRun:
    """A run that is over; all of it is public."""

    folder: Path
    certificate: Certificate
    n_steps: int
    metrics: Mapping[str, float]
    """On held-out records that were declared public; empty without such."""


def run_training(
    request: TrainingRequest, *, report: Callable[[StepProgress], None] | None = None
) -> TrainedRun:
    """Train as a request says; model, certificate and logs are then in its folder.

    A folder that holds an unfinished run of the same request is gone on with, and ends as if it had
    not been broken off. Ctrl-C lets the step end, saves a checkpoint and raises
    `KeyboardInterrupt`, whose text says how to go on; a second one does not wait.

    Guarantee: the certificate's, for `model.pt` and `public.jsonl` together. `internal.jsonl`,
    `checkpoint.pt` and what `report` is told are not covered.
    """
    _check_folder(request)
    data = run_data(request)
    model, loss = run_model(request, data), run_loss(request)
    optimizer, scheduler = run_optimizer(request, model)
    _record(request)
    folder = request.output.folder
    trainer = Trainer(model, loss, optimizer, request.plan, folder=folder, scheduler=scheduler)
    if trainer.needs_resume:
        trainer.resume()
    watch = _Watch(request, trainer, model, loss, data.held_out)
    with _asked_to_stop() as asked:
        for batch in trainer.batches(data.train) if not trainer.is_finished else ():
            watch.after_step(trainer.step(batch), report)
            _keep(request, trainer, stop=asked())
    return _finished(request, trainer, model, watch.final_metrics())


@final
class _Watch:
    """Writes the logs of a run while it goes on."""

    def __init__(
        self,
        request: TrainingRequest,
        trainer: Trainer,
        model: nn.Module,
        loss: LossFunction,
        held_out: Records | None,
    ) -> None:
        folder, taken = request.output.folder, trainer.n_taken
        self._output = request.output
        self._trainer = trainer
        self._metrics: Callable[[], dict[str, float]] = (
            dict if held_out is None else lambda: held_out_metrics(model, loss, held_out)
        )
        self._claim = request.plan.guarantee()
        self._spent = trainer.spent().epsilon if taken else 0.0
        self._public = RunLog(folder / PUBLIC, internal=False, n_taken=taken)
        self._internal = RunLog(folder / INTERNAL, internal=True, n_taken=taken)

    def after_step(self, seen: StepReport, report: Callable[[StepProgress], None] | None) -> None:
        """Write what a step gave, each to the log where it belongs."""
        taken, n_steps = self._trainer.n_taken, self._trainer.plan.n_steps
        due = taken % self._output.evaluate_every == 0 or taken == n_steps
        private = self._public_row() if due else {}
        self._internal.add({"internal": True, "step": taken, **attrs.asdict(seen), **private})
        if report is not None:
            report(
                StepProgress(
                    step=taken,
                    n_steps=n_steps,
                    mean_loss=seen.mean_loss,
                    seconds=seen.seconds,
                    spent_epsilon=self._spent,
                    epsilon=self._claim.epsilon,
                )
            )

    def final_metrics(self) -> dict[str, float]:
        """The public metrics of the last step, whose row is written if a crash prevented it."""
        rows = rows_of(self._public.path)
        if not rows or rows[-1]["step"] != self._trainer.n_taken:
            self._public_row()
            rows = rows_of(self._public.path)
        return {key: value for key, value in rows[-1].items() if key.startswith("held_out_")}

    def _public_row(self) -> dict[str, float]:
        """Add a row to the public log; what of it may not stand there is returned."""
        metrics = self._metrics()
        self._spent = self._trainer.spent().epsilon
        shown = metrics if self._output.public_evaluation else {}
        self._public.add(
            {
                "step": self._trainer.n_taken,
                "n_steps": self._trainer.plan.n_steps,
                "notion": self._claim.notion,
                "order": self._claim.order,
                "spent_epsilon": self._spent,
                "epsilon": self._claim.epsilon,
                **shown,
            }
        )
        return {} if self._output.public_evaluation else metrics


def _keep(request: TrainingRequest, trainer: Trainer, *, stop: bool) -> None:
    """Save a checkpoint if one is due; stop if that was asked for and steps are left."""
    taken, n_steps = trainer.n_taken, request.plan.n_steps
    if taken == n_steps:
        return
    if stop or taken % request.output.checkpoint_every == 0:
        trainer.save()
    if stop:
        msg = (
            f"stopped after step {taken} of {n_steps}; a checkpoint is saved in "
            f"{str(request.output.folder)!r}. The same command goes on from there"
        )
        raise KeyboardInterrupt(msg)


def _finished(
    request: TrainingRequest, trainer: Trainer, model: nn.Module, metrics: Mapping[str, float]
) -> TrainedRun:
    folder = request.output.folder
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    write_whole(folder / MODEL, buffer.getvalue())
    certificate = trainer.certificate(data=request.data.name, deltas=request.deltas)
    # Last: a folder with a certificate is a finished run.
    certificate.save(folder / CERTIFICATE)
    return TrainedRun(
        folder=folder, certificate=certificate, n_steps=request.plan.n_steps, metrics=metrics
    )


def _check_folder(request: TrainingRequest) -> None:
    """The folder is free, or holds an unfinished run of the same request."""
    folder = request.output.folder
    for name in (RECORD, PUBLIC, INTERNAL, MODEL, CERTIFICATE):
        remove_unfinished(folder / name)
    if (folder / CERTIFICATE).exists():
        msg = (
            f"{str(folder)!r} holds a finished run; choose another folder. Another run over the "
            "same data adds its cost to that of this one"
        )
        raise TrainingError(msg)
    if not (folder / RECORD).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            msg = f"[output] folder {str(folder)!r} must be new or empty, or hold a run to go on"
            raise ArgumentError(msg)
        return
    other = differences(request.description(), _recorded(folder / RECORD))
    if other:
        msg = (
            f"{str(folder)!r} holds an unfinished run that differs in {', '.join(other)}; go on "
            "with the file that it was begun with, or choose another folder"
        )
        raise TrainingError(msg)


def _recorded(path: Path) -> dict[str, Any]:
    try:
        document = parsed_json(read_bytes(path, "document"))
        if (document["format"], document["version"]) == (_FORMAT, _VERSION):
            asked: dict[str, Any] = document["request"]
            return asked
    except (ValueError, KeyError, TypeError):
        pass
    msg = f"{str(path)!r} is not the record of a run of this version; choose another folder"
    raise TrainingError(msg)


def _record(request: TrainingRequest) -> None:
    path = request.output.folder / RECORD
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot make the folder {str(path.parent)!r}: {error.strerror}"
        raise StorageError(error.errno, msg) from error
    check_room(path.parent)
    document = {"format": _FORMAT, "version": _VERSION, "request": request.description()}
    write_new(path, pretty_json(document), CONFIDENTIAL)


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; a second one interrupts at once. Signals reach main threads."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(_number: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
