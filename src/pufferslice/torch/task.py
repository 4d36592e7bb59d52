# SPDX-License-Identifier: Apache-2.0
"""What a training request names: records, model, loss and optimizer; and how good the model is."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
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

from pufferslice import datasets
from pufferslice.arrays import Floats, locked, same
from pufferslice.datasets import LabelledImages
from pufferslice.errors import ArgumentError
from pufferslice.sgd.request import DATASETS, MODELS, TrainingRequest
from pufferslice.sgd.schedules import recipe_learning_rates
from pufferslice.torch.models import cross_entropy, linear_model, resnet22, small_convnet
from pufferslice.torch.per_example import LossFunction

Records: TypeAlias = Dataset[Any]

_EVALUATED_AT_ONCE: Final = 256


@final
class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Images as they are stored, scaled to numbers from -2 to 2 on access.

    The scale is a public constant; nothing is computed from the images as a whole.
    """

    def __init__(self, images: LabelledImages) -> None:
        self._images = images
        self._labels = images.labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several at once: images with channels first, and their labels."""
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
    """Of labelled images as many that are not trained on, if there are so many."""
    n_classes: int | None
    """None where the request does not state it; it is never read off the records."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, which every record has."""
        return tuple(torch.as_tensor(self.train[0][0]).shape)


def run_data(request: TrainingRequest) -> RunData:
    """The records of a request, in the world that is trained on."""
    name = request.data.dataset
    if name in DATASETS:
        return _image_data(request, *datasets.digits())
    parts = call_named(name, request.source_folder)
    match parts:
        case (LabelledImages() as images, LabelledImages() as held_out):
            return _image_data(request, images, held_out)
    return _own_data(request, parts)


def _image_data(
    request: TrainingRequest, images: LabelledImages, held_out: LabelledImages
) -> RunData:
    """The first images, as many as the plan has, in the world that is trained on."""
    name, n_records = request.data.dataset, request.plan.sampling.n_records
    if request.data.n_classes not in {None, images.n_classes}:
        msg = (
            f"[data] n_classes is {request.data.n_classes}, but {name!r} has {images.n_classes} "
            "classes; leave it out"
        )
        raise ArgumentError(msg)
    if len(images) < n_records:
        msg = (
            f"[data] n_records is {n_records}, but {name!r} has {len(images)} records to train on; "
            "give at most that many"
        )
        raise ArgumentError(msg)

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


def _own_data(request: TrainingRequest, parts: object) -> RunData:
    """What a function of the user returned, checked before anything is written."""
    name, n_classes = request.data.dataset, request.data.n_classes
    n_records = request.plan.sampling.n_records
    if not (
        isinstance(parts, tuple)
        and len(parts) == 2
        and all(hasattr(part, "__len__") or part is None for part in parts)
        and all(hasattr(part, "__getitem__") or part is None for part in parts)
    ):
        msg = (
            f"[data] dataset {name!r} must return a tuple of two datasets, with a length and "
            "records by position: what to train on and what is held out (or None); or a tuple of "
            "two LabelledImages"
        )
        raise ArgumentError(msg)
    train, held_out = parts
    n_found = 0 if train is None else len(train)
    if n_found != n_records:
        msg = (
            f"[data] n_records is {n_records}, but {name!r} returned {n_found} records to train "
            "on; the number is public, and the same in both worlds"
        )
        raise ArgumentError(msg)
    if held_out is not None and not len(held_out):
        msg = f"[data] dataset {name!r} holds out no records; return None instead"
        raise ArgumentError(msg)
    labels = train.tensors[-1] if type(train) is TensorDataset else None
    if n_classes is not None and labels is not None and labels.dtype == torch.int64:
        # Counted now, so that no step fails at one of them.
        n_wrong = int(torch.count_nonzero((labels < 0) | (labels >= n_classes)))
        if n_wrong:
            msg = (
                f"[data] labels must be from 0 to {n_classes - 1}; {n_wrong} of {n_records} "
                "records to train on have another one"
            )
            raise ArgumentError(msg)
    if request.worlds is not None:
        if labels is None:
            msg = (
                "[secret] prevalence needs a TensorDataset, whose last tensor is the labels; got a "
                f"{type(train).__name__}. Change the labels yourself and give exactly = ... instead"
            )
            raise ArgumentError(msg)
        realised = torch.tensor(request.worlds.realised(labels.numpy()))
        train = TensorDataset(*train.tensors[:-1], realised)
    return RunData(train=train, held_out=held_out, n_classes=n_classes)


def run_model(request: TrainingRequest, data: RunData) -> nn.Module:
    """The model of a request with its initial weights, which depend on the public seed alone."""
    name, seed = request.learning.model, request.learning.seed
    if name not in MODELS:
        model = call_named(name, request.source_folder, seed)
        if not isinstance(model, nn.Module):
            msg = f"[training] model {name!r} must return a torch module, got {type(model)}"
            raise ArgumentError(msg)
        return model
    if data.n_classes is None:
        msg = f"[data] n_classes is required for model {name!r}: it is not read off the records"
        raise ArgumentError(msg)
    if name == "linear":
        return linear_model(data.shape, data.n_classes)
    if name == "small":
        return small_convnet(data.shape, data.n_classes, seed=seed)
    if len(data.shape) != 3 or data.shape[0] != 3:
        msg = (
            "[training] model 'resnet22' takes images with 3 channels, and the records have shape "
            f"{data.shape}; use 'linear' or 'small'"
        )
        raise ArgumentError(msg)
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
        msg = (
            f"[training] model {learning.model!r} has no trainable parameter; return one with "
            "parameters that require gradients"
        )
        raise ArgumentError(msg)
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


@final
@attrs.frozen(kw_only=True, repr=False)
class Evaluation:
    """A model on some records. Internal unless the records are public."""

    losses: Floats = attrs.field(converter=locked, eq=same)
    """One per record."""
    accuracy: float
    """Share of records whose largest output is at their label; NaN without cross entropy."""

    @property
    def mean_loss(self) -> float:
        """Mean loss over the records."""
        return float(self.losses.mean())

    def __repr__(self) -> str:
        return f"Evaluation(n_records={len(self.losses)})"


def evaluate(model: nn.Module, loss: LossFunction, records: Records) -> Evaluation:
    """Losses and accuracy in evaluation mode; the model is left in the modes in which it was."""
    modes = [(module, module.training) for module in model.modules()]
    several = getattr(records, "__getitems__", None)
    n_records, losses, n_right = len(cast("Any", records)), [], 0
    model.eval()
    try:
        for start in range(0, n_records, _EVALUATED_AT_ONCE):
            indices = range(start, min(start + _EVALUATED_AT_ONCE, n_records))
            items = several(list(indices)) if several else [records[index] for index in indices]
            *inputs, targets = default_collate(items)
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


def call_named(name: str, folder: Path, *arguments: object) -> Any:  # noqa: ANN401 - of the user
    """What the function `module:function` returns; the module may lie in `folder`."""
    with _modules_of(folder):
        return function_named(name, folder)(*arguments)


def function_named(name: str, folder: Path) -> Callable[..., Any]:
    """The function `module:function`; the module is looked for in `folder` first."""
    module_name, _, function_name = name.partition(":")
    with _modules_of(folder):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # A module that the user's own one lacks is shown to the user as it is.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            msg = f"there is no module {module_name!r}, neither in {str(folder)!r} nor installed"
            raise ArgumentError(msg) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        msg = f"module {module_name!r} has no function {function_name!r}"
        raise ArgumentError(msg)
    return cast("Callable[..., Any]", function)


@contextlib.contextmanager
def _modules_of(folder: Path) -> Iterator[None]:
    """Look for modules in `folder` first, for as long as this lasts."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(place)
