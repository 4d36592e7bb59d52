# SPDX-License-Identifier: Apache-2.0
"""Whole training runs: from a request to model, certificate and logs in one folder."""

import contextlib
import io
import json
import math
import os
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
from pufferslice.sgd.signal import SignalToNoise
from pufferslice.storage import (
    CONFIDENTIAL,
    OPEN,
    check_room,
    make_folder,
    parsed_json,
    pretty_json,
    read_bytes,
    remove_unfinished,
    write_new,
    write_whole,
)
from pufferslice.torch.task import (
    Evaluation,
    ImageDataset,
    evaluate,
    held_out_metrics,
    run_data,
    run_loss,
    run_model,
    run_optimizer,
)
from pufferslice.torch.trainer import StepReport, Trainer

CERTIFICATE: Final = "certificate.json"
MODEL: Final = "model.pt"
PUBLIC: Final = "public.jsonl"
INTERNAL: Final = "internal.jsonl"
RECORD: Final = "run.json"
"""What the run was asked for. Confidential: it may name the world that is trained on."""

INTERNAL_NOTE: Final = (
    "Losses, batch sizes, counts and times below are computed from the private records and are not "
    "covered by the guarantee. Do not publish this file."
)
"""The first line of an internal log says it."""

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
    """A finished run; all of it is public."""

    folder: Path
    certificate: Certificate
    n_steps: int
    metrics: Mapping[str, float]
    """On held-out records that were declared public; empty without such."""


def run_training(
    request: TrainingRequest,
    *,
    report: Callable[[StepProgress], None] | None = None,
    announce: Callable[[SignalToNoise], None] | None = None,
) -> TrainedRun:
    """Train as a request says; model, certificate and logs are then in its folder.

    A folder that holds an unfinished run of the same request is resumed, and ends as if it had not
    been interrupted. Ctrl-C lets the step end, saves a checkpoint and raises `KeyboardInterrupt`,
    whose text says how to resume; a second one does not wait. `announce` is called before the first
    step with the signal to noise of the plan and the model, which is public.

    Guarantee: the certificate's, for `model.pt` and `public.jsonl` together. `internal.jsonl`,
    `checkpoint.pt` and what `report` receives are not covered.
    """
    folder, n_steps = request.output.folder, request.plan.n_steps
    _check_folder(request)
    data = run_data(request)
    model, loss = run_model(request, data), run_loss(request)
    optimizer, scheduler = run_optimizer(request, model)
    _record(request)
    trainer = Trainer(model, loss, optimizer, request.plan, folder=folder, scheduler=scheduler)
    if trainer.needs_resume:
        trainer.resume()
    if announce is not None:
        announce(trainer.signal_to_noise)
    held_out = data.held_out
    logs = _Logs(
        request,
        trainer,
        dict if held_out is None else lambda: held_out_metrics(model, loss, held_out),
    )
    with _interrupts() as is_interrupted:
        for batch in trainer.batches(data.train, progress=False) if not trainer.is_finished else ():
            progress = logs.add(trainer.step(batch))
            if report is not None:
                report(progress)
            stop, taken = is_interrupted(), trainer.n_taken
            if taken < n_steps and (stop or taken % request.output.checkpoint_every == 0):
                trainer.save()
            if taken < n_steps and stop:
                msg = (
                    f"stopped after step {taken} of {n_steps}; a checkpoint is saved in "
                    f"{str(folder)!r}. The same command resumes from there"
                )
                raise KeyboardInterrupt(msg)
    metrics = logs.final_metrics()
    write_whole(folder / MODEL, _state_of(model))
    certificate = trainer.certificate(data=request.data.name, deltas=request.deltas)
    # Last: a folder with a certificate is a finished run.
    certificate.save(folder / CERTIFICATE)
    return TrainedRun(folder=folder, certificate=certificate, n_steps=n_steps, metrics=metrics)


def evaluate_run(request: TrainingRequest) -> Mapping[str, Evaluation]:
    """The model of a finished run on three sets of records, for experiments; not covered.

    `members`: those it was trained on, with the labels of its world. `others`: as many of the
    images that it was not trained on, if there are so many. `held_out`: the public test records.
    """
    data = run_data(request)
    if not isinstance(data.train, ImageDataset):
        msg = (
            "dataset must be digits or a function that returns labelled images, whose other "
            f"records are known; got {request.data.dataset!r}"
        )
        raise ArgumentError(msg)
    model, loss = run_model(request, data), run_loss(request)
    state = read_bytes(request.output.folder / MODEL, "model")
    model.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    parts = {"members": data.train, "held_out": data.held_out, "others": data.others}
    return {
        name: evaluate(model, loss, records)
        for name, records in parts.items()
        if records is not None
    }


@final
class RunLog:
    """A file to which rows are added; each is on the disk before the next step.

    Every row has a `step`. A log of a run that resumes keeps the rows up to there.
    """

    def __init__(self, path: Path, *, internal: bool, n_taken: int) -> None:
        self.path = path
        heading = [{"internal": True, "note": INTERNAL_NOTE}] if internal else []
        rows = [row for row in rows_of(path) if row.get("step", math.inf) <= n_taken]
        content = b"".join(map(_line, [*heading, *rows]))
        write_whole(path, content, CONFIDENTIAL if internal else OPEN)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row. NaN and infinity become null."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                file.write(_line(row))
        except OSError as error:
            msg = f"cannot add to {str(self.path)!r}: {error.strerror}"
            raise StorageError(error.errno, msg) from error


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; none if there is no such file. An incomplete last line is left out.

    >>> rows_of(Path("no such file"))
    []
    """
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(ValueError):
        for line in read_bytes(path, "log").splitlines() if path.exists() else ():
            row = parsed_json(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def _line(row: Mapping[str, Any]) -> bytes:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(finite, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@final
class _Logs:
    """Writes what each step gives to the log where it belongs."""

    def __init__(
        self, request: TrainingRequest, trainer: Trainer, metrics: Callable[[], dict[str, float]]
    ) -> None:
        folder, n_taken = request.output.folder, trainer.n_taken
        self._output, self._trainer, self._metrics = request.output, trainer, metrics
        self._claim = request.plan.guarantee()
        self._spent = trainer.spent().epsilon if n_taken else 0.0
        self._public = RunLog(folder / PUBLIC, internal=False, n_taken=n_taken)
        self._internal = RunLog(folder / INTERNAL, internal=True, n_taken=n_taken)

    def add(self, step: StepReport) -> StepProgress:
        n_taken, n_steps = self._trainer.n_taken, self._trainer.plan.n_steps
        is_due = n_taken % self._output.evaluate_every == 0 or n_taken == n_steps
        private = self._add_public_row() if is_due else {}
        self._internal.add({"internal": True, "step": n_taken, **attrs.asdict(step), **private})
        return StepProgress(
            step=n_taken,
            n_steps=n_steps,
            mean_loss=step.mean_loss,
            seconds=step.seconds,
            spent_epsilon=self._spent,
            epsilon=self._claim.epsilon,
        )

    def final_metrics(self) -> dict[str, float]:
        """The public metrics of the last step, whose row is written if a crash prevented it."""
        rows = rows_of(self._public.path)
        if not rows or rows[-1]["step"] != self._trainer.n_taken:
            self._add_public_row()
            rows = rows_of(self._public.path)
        return {key: value for key, value in rows[-1].items() if key.startswith("held_out_")}

    def _add_public_row(self) -> dict[str, float]:
        """Add a row to the public log; the metrics that may not stand there are returned."""
        metrics, is_public = self._metrics(), self._output.public_evaluation
        self._spent = self._trainer.spent().epsilon
        self._public.add(
            {
                "step": self._trainer.n_taken,
                "n_steps": self._trainer.plan.n_steps,
                "notion": self._claim.notion,
                "order": self._claim.order,
                "spent_epsilon": self._spent,
                "epsilon": self._claim.epsilon,
                **(metrics if is_public else {}),
            }
        )
        return {} if is_public else metrics


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
            msg = f"[output] folder {str(folder)!r} must be new or empty, or hold a run to resume"
            raise ArgumentError(msg)
        return
    parts: list[str] | None = None
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        document = parsed_json(read_bytes(folder / RECORD, "document"))
        if (document["format"], document["version"]) == (_FORMAT, _VERSION):
            parts = differences(request.description(), document["request"])
    if parts is None:
        path = str(folder / RECORD)
        msg = f"{path!r} is not the record of a run of this version; choose another folder"
        raise TrainingError(msg)
    if parts:
        msg = (
            f"{str(folder)!r} holds an unfinished run that differs in {', '.join(parts)}; resume "
            "with the file that it was started with, or choose another folder"
        )
        raise TrainingError(msg)


def _record(request: TrainingRequest) -> None:
    path = request.output.folder / RECORD
    if path.exists():
        return
    make_folder(path.parent)
    check_room(path.parent)
    document = {"format": _FORMAT, "version": _VERSION, "request": request.description()}
    write_new(path, pretty_json(document), CONFIDENTIAL)


def _state_of(model: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; a second one interrupts at once. Signals reach main threads."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handle(_number: int, _frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
