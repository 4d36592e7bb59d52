# SPDX-License-Identifier: Apache-2.0
"""Training runs from a request: model, certificate and logs in one folder."""

import contextlib
import importlib
import io
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast, final

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.sgd import SGD
from torch.utils.data import Dataset, TensorDataset, default_collate

from pufferslice import data
from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.files import (
    CONFIDENTIAL,
    OPEN,
    PROBE,
    check_room,
    make_folder,
    parsed_json,
    pretty_json,
    read_bytes,
    remove_unfinished,
    write_new,
    write_whole,
)
from pufferslice.certificate import Certificate
from pufferslice.certificate.certificate import BudgetPlan
from pufferslice.claims import Claim
from pufferslice.data import LabelledImages
from pufferslice.errors import ArgumentError, StorageError, TrainingError
from pufferslice.learning.plan import SignalToNoise, recipe_learning_rates
from pufferslice.learning.request import DATASETS, MODELS, TrainingRequest, differences
from pufferslice.releases import Ledger
from pufferslice.torch.batches import Block, Source
from pufferslice.torch.models import cross_entropy, linear_model, resnet22, small_convnet
from pufferslice.torch.per_example import LossFunction
from pufferslice.torch.trainer import StepReport, Trainer

Records: TypeAlias = Dataset[Any]

_EVALUATED_AT_ONCE: Final = 256

CERTIFICATE: Final = "certificate.json"
MODEL: Final = "model.pt"
PUBLIC: Final = "public.jsonl"
INTERNAL: Final = "internal.jsonl"
RECORD: Final = "run.json"
"""Name of the file of the request. Confidential: it may name the world that is trained on."""

INTERNAL_NOTE: Final = (
    "Losses, batch sizes, counts and times below are computed from the private records and are not "
    "covered by the guarantee. Do not publish this file."
)
"""The first line of an internal log."""

_FORMAT: Final = "pufferslice-run"
_VERSION: Final = 1


@final
@attrs.frozen(kw_only=True)
class TrainedRun:
    """A finished run; all of it is public."""

    folder: Path
    certificate: Certificate
    n_steps: int
    metrics: Mapping[str, float]
    """Metrics on held-out records that were declared public; empty if there are none."""


@final
@attrs.frozen(kw_only=True, repr=False)
class Evaluation:
    """A model on some records. Internal unless the records are public."""

    losses: Floats = attrs.field(converter=locked, eq=same)
    """Loss of each record."""
    accuracy: float
    """Share of records whose largest output is at their label; NaN without cross entropy."""

    @property
    def mean_loss(self) -> float:
        """Mean loss over the records."""
        return float(self.losses.mean())

    def __repr__(self) -> str:
        return f"Evaluation(n_records={len(self.losses)})"


def run_training(
    request: TrainingRequest,
    *,
    on_step: Callable[[StepReport], None] | None = None,
    announce: Callable[[SignalToNoise], None] | None = None,
    ledger: str | os.PathLike[str] | Ledger | None = None,
    spent_marks: str | os.PathLike[str] | None = None,
) -> TrainedRun:
    """Run a training request; write model, certificate and logs to its folder.

    An unfinished run of the same request in that folder is resumed, with the same result as an
    uninterrupted one. Ctrl-C or SIGTERM lets the step end, saves a checkpoint and raises
    `KeyboardInterrupt` or `Terminated` with a text on how to resume; a second one does not wait.
    `announce` is called before the first step with the public signal-to-noise ratio of the plan and
    the model, `on_step` with the report of each step. On a terminal a bar shows the progress. A
    request whose plan is of a budget needs the `ledger` that charges its part, as `Trainer` does.

    Guarantee: the certificate's, for `model.pt` and `public.jsonl` together. `internal.jsonl`,
    `checkpoint.pt`, the bar and what `on_step` receives are not covered.
    """
    folder, n_steps = request.output.folder, request.plan.n_steps
    _check_folder(request)
    data = run_data(request)
    model, loss = run_model(request, data), run_loss(request)
    optimizer, scheduler = run_optimizer(request, model)
    if not (folder / RECORD).exists():
        make_folder(folder)
        check_room(folder)
        document = {"format": _FORMAT, "version": _VERSION, "request": request.description()}
        write_new(folder / RECORD, pretty_json(document), CONFIDENTIAL)
    trainer = Trainer(
        model,
        loss,
        optimizer,
        request.plan,
        folder=folder,
        scheduler=scheduler,
        ledger=ledger,
        spent_marks=spent_marks,
    )
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
    with (
        _interrupts() as stopped_by,
        contextlib.closing(trainer.batches(data.train)) as batches,
    ):
        for batch in batches:
            report = trainer.step(batch)
            logs.add(report)
            if on_step is not None:
                on_step(report)
            stop, taken = stopped_by(), trainer.n_taken
            if taken < n_steps and (stop or taken % request.output.checkpoint_every == 0):
                trainer.save()
            if taken < n_steps and stop:
                raise stop(
                    f"stopped after step {taken} of {n_steps}; a checkpoint is saved in "
                    f"{str(folder)!r}. The same command resumes from there"
                )
    metrics = logs.final_metrics()
    state = io.BytesIO()
    torch.save(model.state_dict(), state)
    write_whole(folder / MODEL, state.getvalue())
    certificate = trainer.certificate(data=request.data.name, deltas=request.deltas)
    # Last, because a folder with a certificate is a finished run.
    certificate.save_statement(folder / CERTIFICATE)
    return TrainedRun(folder=folder, certificate=certificate, n_steps=n_steps, metrics=metrics)


@final
class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Stored images, scaled to numbers from -2 to 2 on access; the scale is a public constant."""

    def __init__(self, images: LabelledImages) -> None:
        self._images = images
        self._labels = images.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Return several records at once: images with channels first, and their labels."""
        chosen = torch.from_numpy(self._images.images[np.asarray(indices)])
        pixels = chosen.permute(0, 3, 1, 2).to(torch.float32)
        scaled = ((pixels / self._images.white - 0.5) / 0.25).contiguous()
        return [(scaled[k], self._labels[i]) for k, i in enumerate(indices)]


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunData:
    """The records of a request, in the world that is trained on. Confidential."""

    train: Records
    held_out: Records | None
    others: Records | None = None
    """Labelled images that are not trained on, as many as those that are; None if too few."""
    n_classes: int | None
    """Number of classes, never read from the records; None if the request does not state it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, which every record has."""
        return tuple(torch.as_tensor(self.train[0][0]).shape)


def run_data(request: TrainingRequest) -> RunData:
    """The records of a request, in the world that is trained on."""
    name = request.data.dataset
    if name in DATASETS:
        return _image_data(request, *data.digits())
    parts = call_named(name, request.source_folder)
    match parts:
        case (LabelledImages() as images, LabelledImages() as held_out):
            return _image_data(request, images, held_out)
    return _user_data(request, parts)


def _image_data(
    request: TrainingRequest, images: LabelledImages, held_out: LabelledImages
) -> RunData:
    name, n_records = request.data.dataset, request.plan.sampling.n_records
    if request.data.n_classes not in {None, images.n_classes}:
        raise ArgumentError(
            f"[data] n_classes is {request.data.n_classes}, but {name!r} has {images.n_classes} "
            "classes; leave it out"
        )
    if len(images) < n_records:
        raise ArgumentError(
            f"[data] n_records is {n_records}, but {name!r} has {len(images)} records to train on; "
            "give at most that many"
        )

    def part(start: int) -> LabelledImages:
        chosen = slice(start, start + n_records)
        return attrs.evolve(images, images=images.images[chosen], labels=images.labels[chosen])

    train = part(0)
    if request.worlds is not None:
        train = attrs.evolve(train, labels=request.worlds.realised(train.labels))
    return RunData(
        train=ImageDataset(train),
        held_out=ImageDataset(held_out),
        others=ImageDataset(part(n_records)) if len(images) >= 2 * n_records else None,
        n_classes=images.n_classes,
    )


def _user_data(request: TrainingRequest, parts: object) -> RunData:
    name, n_classes = request.data.dataset, request.data.n_classes
    n_records = request.plan.sampling.n_records
    if not (
        isinstance(parts, tuple)
        and len(parts) == 2
        and all(hasattr(part, "__len__") or part is None for part in parts)
        and all(hasattr(part, "__getitem__") or part is None for part in parts)
    ):
        raise ArgumentError(
            f"[data] dataset {name!r} must return a tuple of two datasets, with a length and "
            "records by position: what to train on and what is held out (or None); or a tuple of "
            "two LabelledImages"
        )
    train, held_out = parts
    n_returned = 0 if train is None else len(train)
    if n_returned != n_records:
        raise ArgumentError(
            f"[data] n_records is {n_records}, but {name!r} returned {n_returned} records to train "
            "on; the number is public, and the same in both worlds"
        )
    if held_out is not None and not len(held_out):
        raise ArgumentError(
            f"[data] dataset {name!r} returned no held-out records; return None instead"
        )
    labels = train.tensors[-1] if type(train) is TensorDataset else None
    if n_classes is not None and labels is not None and labels.dtype == torch.int64:
        # Checked now, so that no step fails.
        n_wrong = int(torch.count_nonzero((labels < 0) | (labels >= n_classes)))
        if n_wrong:
            raise ArgumentError(
                f"[data] labels must be from 0 to {n_classes - 1}; {n_wrong} of {n_records} "
                "records to train on have another one"
            )
    if request.worlds is not None:
        if labels is None:
            raise ArgumentError(
                "[secret] prevalence needs a TensorDataset, whose last tensor is the labels; got a "
                f"{type(train).__name__}. Change the labels yourself and give exactly = ... instead"
            )
        realised = torch.tensor(request.worlds.realised(labels.numpy()))
        train = TensorDataset(*train.tensors[:-1], realised)
    return RunData(train=train, held_out=held_out, n_classes=n_classes)


def run_model(request: TrainingRequest, data: RunData) -> nn.Module:
    """The model of a request with its initial weights, which depend on the public seed alone."""
    name, seed = request.learning.model, request.learning.seed
    if name not in MODELS:
        model = call_named(name, request.source_folder, seed)
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"[training] model {name!r} must return a torch module, got {type(model)}"
            )
        return model
    if data.n_classes is None:
        raise ArgumentError(
            f"[data] n_classes is required for model {name!r}: it is not read from the records"
        )
    if name == "linear":
        return linear_model(data.shape, data.n_classes)
    if name == "small":
        return small_convnet(data.shape, data.n_classes, seed=seed)
    if len(data.shape) != 3 or data.shape[0] != 3:
        raise ArgumentError(
            "[training] model 'resnet22' takes images with 3 channels, and the records have shape "
            f"{data.shape}; use 'linear' or 'small'"
        )
    return resnet22(data.n_classes, seed=seed)


def run_loss(request: TrainingRequest) -> LossFunction:
    """The loss of each example."""
    if request.learning.loss == "cross_entropy":
        return cross_entropy
    return cast("LossFunction", function_named(request.learning.loss, request.source_folder))


def run_optimizer(request: TrainingRequest, model: nn.Module) -> tuple[Optimizer, LambdaLR | None]:
    """The optimizer of a request and the schedule of its learning rate, if that changes."""
    learning = request.learning
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ArgumentError(
            f"[training] model {learning.model!r} has no trainable parameter; return one with "
            "parameters that require gradients"
        )
    rate, decay = float(learning.learning_rate), float(learning.weight_decay)
    optimizer: Optimizer
    if learning.optimizer == "adam":
        optimizer = Adam(trained, lr=rate, weight_decay=decay)
    else:
        optimizer = SGD(trained, lr=rate, momentum=float(learning.momentum), weight_decay=decay)
    if learning.schedule == "constant":
        return optimizer, None
    shares = recipe_learning_rates(
        peak=1.0, n_steps=request.plan.n_steps, n_warmup_steps=learning.n_warmup_steps
    )
    return optimizer, LambdaLR(optimizer, lambda step: float(shares[min(step, len(shares) - 1)]))


def evaluate(model: nn.Module, loss: LossFunction, records: Records) -> Evaluation:
    """Losses and accuracy in evaluation mode; the modes of the model are restored."""
    modes = [(module, module.training) for module in model.modules()]
    n_records, losses, n_right = len(cast("Any", records)), [], 0
    model.eval()
    try:
        for start in range(0, n_records, _EVALUATED_AT_ONCE):
            indices = range(start, min(start + _EVALUATED_AT_ONCE, n_records))
            *inputs, targets = (
                default_collate(records.__getitems__(indices))
                if isinstance(records, ImageDataset)
                else Source(records).fetch(Block(0, 0, tuple(indices)))
            )
            with torch.no_grad():
                outputs = model(*inputs)
                losses.append(loss(outputs, targets).to(torch.float64))
            if loss is cross_entropy:
                n_right += int((outputs.argmax(dim=1) == targets).sum())
    finally:
        for module, mode in modes:
            module.training = mode
    values = torch.cat(losses).numpy()
    accuracy = n_right / n_records if loss is cross_entropy else np.nan
    return Evaluation(losses=values, accuracy=accuracy)


def held_out_metrics(model: nn.Module, loss: LossFunction, records: Records) -> dict[str, float]:
    """Mean loss on the records and, with cross entropy, the accuracy."""
    evaluation = evaluate(model, loss, records)
    metrics = {"held_out_loss": evaluation.mean_loss, "held_out_accuracy": evaluation.accuracy}
    return metrics if loss is cross_entropy else {"held_out_loss": evaluation.mean_loss}


def call_named(name: str, folder: Path, *arguments: object) -> Any:  # of the user
    """The result of the function `module:function`, whose module may lie in `folder`."""
    with _modules_of(folder):
        return function_named(name, folder)(*arguments)


def function_named(name: str, folder: Path) -> Callable[..., Any]:
    """The function `module:function`; `folder` is searched for the module first."""
    module_name, _, function_name = name.partition(":")
    with _modules_of(folder):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module that the user's module fails to import is reported by Python's own error.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ArgumentError(
                f"there is no module {module_name!r}, neither in {str(folder)!r} nor installed"
            ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ArgumentError(f"module {module_name!r} has no function {function_name!r}")
    return cast("Callable[..., Any]", function)


@contextlib.contextmanager
def _modules_of(folder: Path) -> Iterator[None]:
    """Search `folder` for modules first."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(place)


@final
class RunLog:
    """A file of rows, each written before the next step. Every row has a `step`.

    The log of a resumed run keeps the rows up to its step.
    """

    def __init__(self, path: Path, *, internal: bool, n_taken: int) -> None:
        self.path = path
        heading = [{"internal": True, "note": INTERNAL_NOTE}] if internal else []
        rows = [row for row in rows_of(path) if row.get("step", math.inf) <= n_taken]
        content = b"".join(map(_line, [*heading, *rows]))
        write_whole(path, content, CONFIDENTIAL if internal else OPEN)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one row. NaN and infinity become null."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                file.write(_line(row))
        except OSError as error:
            raise StorageError(
                error.errno, f"cannot add to {str(self.path)!r}: {error.strerror}"
            ) from error


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a log without an incomplete last line; none if the file does not exist.

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
    """Writes each number of a step to the public or to the internal log."""

    def __init__(
        self, request: TrainingRequest, trainer: Trainer, metrics: Callable[[], dict[str, float]]
    ) -> None:
        folder, n_taken = request.output.folder, trainer.n_taken
        self._output, self._trainer, self._metrics = request.output, trainer, metrics
        # A run of a budget states the promise of the whole, and has none of its own to spend.
        self._is_budgeted = isinstance(request.plan, BudgetPlan)
        plan_claim = request.plan.guarantee()
        self._spent_name = f"spent_{plan_claim.bound_name}"
        self._claim: Claim = trainer.certificate().guarantee if self._is_budgeted else plan_claim
        self._public = RunLog(folder / PUBLIC, internal=False, n_taken=n_taken)
        self._internal = RunLog(folder / INTERNAL, internal=True, n_taken=n_taken)

    def add(self, step: StepReport) -> None:
        n_taken, n_steps = self._trainer.n_taken, self._trainer.plan.n_steps
        is_due = n_taken % self._output.evaluate_every == 0 or n_taken == n_steps
        private = self._add_public_row() if is_due else {}
        self._internal.add({"internal": True, **attrs.asdict(step), **private})

    def final_metrics(self) -> dict[str, float]:
        """The public metrics of the last step; writes its row if a crash prevented that."""
        rows = rows_of(self._public.path)
        if not rows or rows[-1]["step"] != self._trainer.n_taken:
            self._add_public_row()
            rows = rows_of(self._public.path)
        return {key: value for key, value in rows[-1].items() if key.startswith("held_out_")}

    def _add_public_row(self) -> dict[str, float]:
        """Append a row to the public log and return the metrics that must not be in it."""
        metrics, is_public = self._metrics(), self._output.public_evaluation
        spent = {} if self._is_budgeted else {self._spent_name: self._trainer.spent().bound}
        self._public.add(
            {
                "step": self._trainer.n_taken,
                "n_steps": self._trainer.plan.n_steps,
                **self._claim.to_json(),
                **spent,
                **(metrics if is_public else {}),
            }
        )
        return {} if is_public else metrics


def _check_folder(request: TrainingRequest) -> None:
    """Raise unless the folder is free or holds an unfinished run of the same request."""
    folder = request.output.folder
    for name in (RECORD, PUBLIC, INTERNAL, MODEL, CERTIFICATE, PROBE):
        remove_unfinished(folder / name)
    if (folder / CERTIFICATE).exists():
        raise TrainingError(
            f"{str(folder)!r} holds a finished run; choose another folder. Another run over the "
            "same data adds its cost to that of this one"
        )
    if not (folder / RECORD).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArgumentError(
                f"[output] folder {str(folder)!r} must be new or empty, or hold a run to resume"
            )
        return
    parts: list[str] | None = None
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        document = parsed_json(read_bytes(folder / RECORD, "document"))
        if (document["format"], document["version"]) == (_FORMAT, _VERSION):
            parts = differences(request.description(), document["request"])
    if parts is None:
        path = str(folder / RECORD)
        raise TrainingError(
            f"{path!r} is not the record of a run of this version; choose another folder"
        )
    if parts:
        raise TrainingError(
            f"{str(folder)!r} holds an unfinished run that differs in {', '.join(parts)}; resume "
            "with the file that it was started with, or choose another folder"
        )


@final
class Terminated(SystemExit):
    """SIGTERM ended a run after a step; a program that does not catch it exits with code 143."""

    def __init__(self, text: str = "terminated") -> None:
        super().__init__(128 + signal.SIGTERM)
        self._text = text

    def __str__(self) -> str:
        return self._text


_Stop: TypeAlias = type[KeyboardInterrupt] | type[Terminated]

_STOPS: Final[Mapping[int, _Stop]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
}
"""What is raised after a signal."""


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], _Stop | None]]:
    """Tell what to raise after Ctrl-C or SIGTERM; a second one raises at once. Main thread only."""
    stops: list[_Stop] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def handle(number: int, _frame: object) -> None:
        if stops:
            raise _STOPS[number]
        stops.append(_STOPS[number])

    before = {number: signal.signal(number, handle) for number in _STOPS}
    try:
        yield lambda: stops[0] if stops else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
