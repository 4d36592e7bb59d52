# SPDX-License-Identifier: Apache-2.0
"""The model, loss and optimizer that a training request asks for, and metrics of the model."""

from collections.abc import Iterator
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.sgd import SGD
from torch.utils.data import default_collate

from pufferslice.errors import ArgumentError
from pufferslice.sgd.request import MODELS, TrainingRequest
from pufferslice.sgd.schedules import recipe_learning_rates
from pufferslice.torch.per_example import LossFunction
from pufferslice.torch.models import cross_entropy, linear_model, resnet22, small_convnet
from pufferslice.torch.named import call_named, function_named
from pufferslice.torch.run_data import Records, RunData

_COLOURS: Final = 3
_ROWS: Final = 256


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
        msg = f"[data] n_classes must be said for model {name!r}: records do not tell it"
        raise ArgumentError(msg)
    if name == "linear":
        return linear_model(data.shape, data.n_classes)
    if name == "small":
        return small_convnet(data.shape, data.n_classes, seed=seed)
    if len(data.shape) != 3 or data.shape[0] != _COLOURS:
        msg = (
            f"[training] model 'resnet22' takes images with {_COLOURS} channels, and the records "
            f"have shape {data.shape}; use 'linear' or 'small'"
        )
        raise ArgumentError(msg)
    return resnet22(data.n_classes, seed=seed)


def run_loss(request: TrainingRequest) -> LossFunction:
    """The loss of each example."""
    name = request.learning.loss
    if name == "cross_entropy":
        return cross_entropy
    return cast("LossFunction", function_named(name, request.source_folder))


def run_optimizer(request: TrainingRequest, model: nn.Module) -> tuple[Optimizer, LambdaLR | None]:
    """The optimizer of a request and the schedule of its learning rate, if that changes."""
    said = request.learning
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        msg = (
            f"[training] model {said.model!r} has no trainable parameter; return one with "
            "parameters that require gradients"
        )
        raise ArgumentError(msg)
    rate, decay = float(said.learning_rate), float(said.weight_decay)
    optimizer: Optimizer
    if said.optimizer == "adam":
        optimizer = Adam(trained, lr=rate, weight_decay=decay)
    else:
        optimizer = SGD(trained, lr=rate, momentum=float(said.momentum), weight_decay=decay)
    if said.schedule == "constant":
        return optimizer, None
    shares = recipe_learning_rates(
        peak=1.0, n_steps=request.plan.n_steps, n_warmup_steps=said.n_warmup_steps
    )
    return optimizer, LambdaLR(optimizer, lambda step: float(shares[min(step, len(shares) - 1)]))


def held_out_metrics(model: nn.Module, loss: LossFunction, records: Records) -> dict[str, float]:
    """Mean loss on the records and, with cross entropy, the share that is classified right.

    The model is left as it was.
    """
    n_records, total, right = 0, 0.0, 0
    for outputs, targets in outputs_on(model, records):
        n_records += len(targets)
        with torch.no_grad():
            total += float(loss(outputs, targets).sum())
        if loss is cross_entropy:
            right += int((outputs.argmax(dim=1) == targets).sum())
    metrics = {"held_out_loss": total / n_records}
    return metrics | ({"held_out_accuracy": right / n_records} if loss is cross_entropy else {})


def outputs_on(model: nn.Module, records: Records) -> Iterator[tuple[Tensor, Tensor]]:
    """Outputs and targets, some records at a time, in evaluation mode and without gradients.

    To be read to its end: then the model is in the modes in which it was.
    """
    modes = [(module, module.training) for module in model.modules()]
    n_records = len(cast("Any", records))
    model.eval()
    try:
        for start in range(0, n_records, _ROWS):
            *inputs, targets = _rows(records, range(start, min(start + _ROWS, n_records)))
            with torch.no_grad():
                outputs = model(*inputs)
            yield outputs, targets
    finally:
        for module, mode in modes:
            module.training = mode


def _rows(records: Records, indices: range) -> tuple[Tensor, ...]:
    several = getattr(records, "__getitems__", None)
    items = several(list(indices)) if several else [records[index] for index in indices]
    return tuple(default_collate(items))
