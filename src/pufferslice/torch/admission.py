# SPDX-License-Identifier: Apache-2.0
"""What a trainer takes: models, optimizers, schedulers and number formats that keep to a plan."""

import inspect
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from pufferslice.errors import ArgumentError
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.structure import layer_problems

_DEVICES: Final = ("cpu", "cuda")
_PRODUCTS: Final = {
    "cpu": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
    "cuda": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
}
"""Where `torch.backends` keeps how float32 products are rounded."""
_EXACT: Final = ("none", "ieee")


def device_of(layout: ParameterLayout) -> torch.device:
    """The one device of all trained parameters."""
    devices = {parameter.device for parameter in layout.parameters}
    device = min(devices, key=str)
    if len(devices) > 1 or device.type not in _DEVICES:
        found = ", ".join(sorted(str(one) for one in devices))
        msg = (
            f"trained parameters must all be on one device, a processor or a CUDA device; they are "
            f"on {found}. Move the model with model.to('cpu') before the optimizer is made"
        )
        raise ArgumentError(msg)
    return device


def check_optimizer(optimizer: Optimizer, layout: ParameterLayout) -> None:
    """The optimizer takes one gradient a step, and trains exactly the parameters that get noise."""
    if not isinstance(optimizer, Optimizer):
        msg = f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        raise ArgumentError(msg)
    if isinstance(optimizer, LBFGS) or _required(optimizer):
        msg = (
            f"optimizer {type(optimizer).__name__} evaluates the loss again within a step, and a "
            "plan gives one noisy gradient per step; use one without closure, such as SGD or Adam"
        )
        raise ArgumentError(msg)
    trained = {id(parameter) for parameter in layout.parameters}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not held <= trained:
        msg = (
            "the optimizer holds a tensor that is not a trainable parameter of the model, and its "
            "gradient would get no noise; make it with the trainable parameters of the model"
        )
        raise ArgumentError(msg)
    for name, parameter in zip(layout.names, layout.parameters, strict=True):
        if id(parameter) not in held:
            msg = (
                f"trainable parameter {name!r} is not in the optimizer: it would use up clip norm "
                "and never change. Add it to the optimizer, or freeze it by requires_grad_(False)"
            )
            raise ArgumentError(msg)


def check_scheduler(scheduler: Any, optimizer: Optimizer) -> None:  # noqa: ANN401 - torch has no common class
    """The schedule goes by the number of the step alone and belongs to the optimizer."""
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "step", None)) or not hasattr(scheduler, "state_dict"):
        msg = f"scheduler must be one of torch.optim.lr_scheduler, got {type(scheduler).__name__}"
        raise ArgumentError(msg)
    if _required(scheduler):
        msg = (
            f"scheduler {type(scheduler).__name__} goes by a metric, and a schedule must not "
            "depend on the data; use one that goes by the number of the step"
        )
        raise ArgumentError(msg)
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        msg = "the scheduler belongs to another optimizer; make it with the one that is given here"
        raise ArgumentError(msg)


def check_unchanged(model: nn.Module, layout: ParameterLayout) -> None:
    """The model still trains the parameters that it had, and its layers keep examples apart."""
    problems = layer_problems(model)
    if problems:
        msg = f"the model cannot be trained under a plan: {'; '.join(problems)}"
        raise ArgumentError(msg)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    dtypes = {parameter.dtype for parameter in trained}
    same = len(trained) == len(layout.parameters) and all(
        now is before for now, before in zip(trained, layout.parameters, strict=True)
    )
    if not same or len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        msg = (
            "the trainable parameters of the model are not those that the trainer was made with; "
            "freeze, replace or convert parameters before the trainer is made"
        )
        raise ArgumentError(msg)


def check_precision(layout: ParameterLayout) -> None:
    """Torch computes gradients in the format of the parameters, which rounding is charged for."""
    device = device_of(layout)
    check_autocast(device)
    if torch.is_inference_mode_enabled():
        msg = "inference mode is on, and training needs gradients; leave torch.inference_mode()"
        raise ArgumentError(msg)
    if layout.parameters[0].dtype == torch.float32:
        for name, precision in _product_precisions(device.type).items():
            if precision not in _EXACT:
                msg = (
                    f"float32 products may be rounded to {precision} here, which the plan's clip "
                    f"norm is not charged for; set torch.backends.{name} = 'ieee'"
                )
                raise ArgumentError(msg)


def check_autocast(device: torch.device) -> None:
    """Torch does not choose lower precisions by itself now."""
    if torch.is_autocast_enabled(device.type):
        msg = (
            "autocast is on: gradients would be rounded to half precision, which the plan's clip "
            "norm is not charged for; train outside torch.autocast, and leave it out of the model"
        )
        raise ArgumentError(msg)


def _product_precisions(device: str) -> dict[str, str]:
    """How torch rounds float32 products, by the name of the setting."""
    return {
        f"{name}.fp32_precision": attrgetter(f"{name}.fp32_precision")(torch.backends)
        for name in _PRODUCTS[device]
    }


def _required(stepping: Any) -> list[str]:  # noqa: ANN401 - an optimizer or a scheduler
    """Arguments without which its `step` cannot be called.

    Asked of the class: a scheduler puts a wrapper around the `step` of its optimizer.
    """
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _itself, *found = inspect.signature(type(stepping).step).parameters.values()
    return [one.name for one in found if one.default is one.empty and one.kind in kinds]
