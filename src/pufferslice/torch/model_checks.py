# SPDX-License-Identifier: Apache-2.0
"""Checks of what a trainer accepts: models, optimizers, schedulers, devices and precisions."""

import copy
import inspect
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final

import torch
from torch import nn, optim
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter, is_lazy
from torch.optim import Optimizer

from pufferslice._core.checks import is_a
from pufferslice.errors import ArgumentError
from pufferslice.learning import TrainingPlan, signal_to_noise
from pufferslice.torch.layout import ParameterLayout

LEAST_CHANNELS_PER_GROUP: Final = 16
"""Group normalisation of fewer loses information: of two values it keeps only the order."""

MOST_GROUPS: Final = 32

DROWNED: Final = 10.0
"""Noise over signal above which `adam_warning` warns.

Noise grows with the root of the number of steps and signal with the number, so at 10 it takes at
least 100 steps for the signal to reach the noise.
"""

_ADAPTIVE: Final = tuple(
    getattr(optim, name)
    for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "NAdam", "RAdam", "RMSprop")
)
"""They divide by the root of a running mean of squared gradients; AdamW is an Adam."""
_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_PRECISIONS: Final = (torch.float32, torch.float64)
_PRODUCTS: Final = {
    "cpu": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
    "cuda": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
}
"""Places in `torch.backends` that say how float32 products are rounded, by kind of device."""


def validate(model: nn.Module) -> None:
    """Check that a trainer accepts the model; if not, the error lists every problem and its remedy.

    It inspects modules and parameters and runs nothing. A model that passes may still compute with
    its whole batch; that is harmless, because a trainer runs each example alone.

    >>> validate(nn.Sequential(nn.Linear(4, 32), nn.GroupNorm(2, 32), nn.ELU(), nn.Linear(32, 2)))
    """
    if not is_a(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    inner = uncompiled(model)
    problems = [*_layer_problems(inner), *_parameter_problems(inner)]
    if problems:
        raise ArgumentError(f"the model cannot be trained under a plan: {'; '.join(problems)}")


def uncompiled(model: nn.Module) -> nn.Module:
    """The user's model inside the result of `torch.compile`; they share their parameters."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _layer_problems(model: nn.Module) -> list[str]:
    """Why its layers, in their present modes, cannot be trained under a plan."""
    named: dict[tuple[str, str], list[str]] = {}
    for name, layer in model.named_modules():
        if problem := _layer_problem(layer):
            named.setdefault((type(layer).__name__, problem), []).append(name)
    return [f"{_called(names)} is a {kind}, {problem}" for (kind, problem), names in named.items()]


def replace_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model with group normalisation in place of batch normalisation.

    The model itself stays as it is. In the copy, other layers keep their names and values. A
    replacement keeps name, weight, bias, epsilon and mode; running statistics are dropped. It has
    up to 32 groups of at least 16 channels, or one group, and takes the same inputs.

    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)))[1]
    GroupNorm(2, 32, eps=1e-05, affine=True...)
    """
    if problem := _lazy_problem(model):
        raise ArgumentError(f"batch normalisation cannot be replaced yet: {problem}")
    replaced = copy.deepcopy(model)
    places = [
        (name, layer)
        for name, layer in replaced.named_modules(remove_duplicate=False)
        if isinstance(layer, _BatchNorm)
    ]
    groups = {layer: _group_norm_for(name, layer) for name, layer in places}
    for name, layer in places:
        parent, _, own_name = name.rpartition(".")
        if not own_name:
            return groups[layer]
        replaced.get_submodule(parent).add_module(own_name, groups[layer])
    return replaced


def check_unchanged(model: nn.Module, layout: ParameterLayout) -> None:
    """Raise unless the model still passes `validate` and trains the same parameters."""
    validate(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if [*map(id, trained)] != [*map(id, layout.parameters)]:
        raise ArgumentError(
            "the trainable parameters of the model are not those that the trainer was made with; "
            "freeze, replace or convert parameters before the trainer is made"
        )


def check_optimizer(optimizer: Optimizer, layout: ParameterLayout) -> None:
    """Raise unless the optimizer takes one gradient per step and holds all trained parameters."""
    if not is_a(optimizer, Optimizer):
        raise ArgumentError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    if isinstance(optimizer, optim.LBFGS) or _step_needs_arguments(optimizer):
        raise ArgumentError(
            f"optimizer {type(optimizer).__name__} evaluates the loss again within a step, and a "
            "plan gives one noisy gradient per step; use one without closure, such as SGD or Adam"
        )
    trained = {id(parameter) for parameter in layout.parameters}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not held <= trained:
        raise ArgumentError(
            "the optimizer holds a tensor that is not a trainable parameter of the model, and its "
            "gradient would get no noise; make it with the trainable parameters of the model"
        )
    for name, parameter in zip(layout.names, layout.parameters, strict=True):
        if id(parameter) not in held:
            raise ArgumentError(
                f"trainable parameter {name!r} is not in the optimizer: it would use clip norm and "
                "never change. Add it to the optimizer, or freeze it by requires_grad_(False)"
            )


def check_scheduler(scheduler: Any, optimizer: Optimizer) -> None:  # torch has no common class
    """Raise unless the schedule belongs to the optimizer and depends on the step number only."""
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "step", None)) or not hasattr(scheduler, "state_dict"):
        raise ArgumentError(
            f"scheduler must be one of torch.optim.lr_scheduler, got {type(scheduler).__name__}"
        )
    if _step_needs_arguments(scheduler):
        raise ArgumentError(
            f"scheduler {type(scheduler).__name__} depends on a metric, and a schedule must not "
            "depend on the data; use one that depends on the step number only"
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ArgumentError(
            "the scheduler belongs to another optimizer; make it with the trainer's optimizer"
        )


def device_of(layout: ParameterLayout) -> torch.device:
    """The one device of all trained parameters."""
    devices = {parameter.device for parameter in layout.parameters}
    device = min(devices, key=str)
    if len(devices) > 1 or device.type not in _PRODUCTS:
        raise ArgumentError(
            "trained parameters must all be on one device, a processor or a CUDA device; they are "
            f"on {', '.join(sorted(map(str, devices)))}. Move the model with model.to('cpu') "
            "before the optimizer is made"
        )
    return device


def check_precision(layout: ParameterLayout) -> None:
    """Raise unless torch computes gradients in the precision of the parameters."""
    device = device_of(layout).type
    if torch.is_autocast_enabled(device):
        raise ArgumentError(
            "autocast is on: gradients would be rounded to half precision, which the plan's clip "
            "norm does not cover; train outside torch.autocast, and leave it out of the model"
        )
    if torch.is_inference_mode_enabled():
        raise ArgumentError("inference mode is on, and training needs gradients; train outside it")
    if layout.parameters[0].dtype != torch.float32:
        return
    for product in _PRODUCTS[device]:
        setting = f"{product}.fp32_precision"
        precision = attrgetter(setting)(torch.backends)
        if precision not in {"none", "ieee"}:
            raise ArgumentError(
                f"float32 products may be rounded to {precision} here, which the plan's clip "
                f"norm does not cover; set torch.backends.{setting} = 'ieee'"
            )


def adam_warning(optimizer: Optimizer, plan: TrainingPlan, layout: ParameterLayout) -> str:
    """A warning if the optimizer scales its steps by noise alone, else an empty string.

    Adam and its relatives divide by the root of a running mean of squared gradients. If noise is
    much larger than any gradient, they divide every coordinate by the noise's standard deviation.
    """
    noise_to_signal = 1 / signal_to_noise(plan, layout.sizes).per_step
    if not isinstance(optimizer, _ADAPTIVE) or noise_to_signal <= DROWNED:
        return ""
    return (
        f"the noise of a step is about {noise_to_signal:.3g} times the largest possible sum of "
        f"gradients, so {type(optimizer).__name__} scales its steps by the noise and no longer "
        "adapts to the gradients; use larger batches, train fewer parameters, or use SGD with "
        "momentum"
    )


def _layer_problem(layer: nn.Module) -> str:
    """The problem of one layer and its remedy; empty if there is none."""
    if isinstance(layer, _BatchNorm):
        if layer.training or layer.running_mean is None:
            return (
                "which normalises each example by the others of its batch; use nn.GroupNorm or "
                "nn.LayerNorm (replace_batchnorm does it)"
            )
    elif isinstance(layer, _InstanceNorm):
        if layer.training and layer.track_running_stats:
            return (
                "which keeps running statistics of the examples in the model, without noise; make "
                "it with track_running_stats=False"
            )
    elif isinstance(layer, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return (
            "which splits batches by itself; give the model inside it (its .module), and start one "
            "trainer per process for several processes"
        )
    elif isinstance(layer, torch.jit.ScriptModule):
        return "inside which gradients cannot be followed; give the module that it was made from"
    return ""


def _lazy_problem(model: nn.Module) -> str:
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if not lazy:
        return ""
    return (
        f"{_listed(lazy)} has no shape yet; run the model once on a made-up example before the "
        "optimizer is made"
    )


def _parameter_problems(model: nn.Module) -> Iterator[str]:
    if problem := _lazy_problem(model):
        yield problem
    named = [*model.named_parameters()]
    if not any(p.requires_grad for _, p in named):
        yield "it has no trainable parameter; call requires_grad_(True) on what to train"
    shaped = [(name, p) for name, p in named if not is_a(p, UninitializedParameter)]
    empty = [name for name, p in shaped if p.is_meta]
    if empty:
        yield f"{_listed(empty)} is on the device 'meta' and has no values; load or initialise it"
    dtypes = {p.dtype for _, p in shaped}
    other = [name for name, p in shaped if p.dtype not in _PRECISIONS]
    if other:
        stored = ", ".join(sorted(str(dtype) for dtype in dtypes.difference(_PRECISIONS)))
        yield (
            f"{_listed(other)} is stored as {stored}, in which clipping cannot be kept exact; call "
            "model.float()"
        )
    elif len(dtypes) > 1:
        yield "its parameters are partly float32 and partly float64; call model.float()"
    # A tied parameter is one object under several names, not two objects in one place.
    names: dict[int, str] = {}
    for name, p in shaped:
        first = names.setdefault(p.data_ptr(), name) if p.numel() and not p.is_meta else name
        if first != name:
            yield (
                f"parameters {first!r} and {name!r} are two objects in the same memory; to tie "
                "them, assign the one nn.Parameter to both names"
            )


def _group_norm_for(name: str, layer: _BatchNorm) -> nn.GroupNorm:
    """The replacement of one layer, on the same device and in the same precision."""
    channels = layer.num_features
    if type(layer) not in _BATCH_NORMS:
        raise ArgumentError(
            f"{_called([name])} is a {type(layer).__name__}, whose replacement is not known; put "
            "nn.GroupNorm or nn.LayerNorm in its place by hand"
        )
    if channels == 1 and not isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
        raise ArgumentError(
            f"{_called([name])} is a {type(layer).__name__} of one channel; normalised by itself, "
            "a single value is always 0. Leave the layer out"
        )
    most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS_PER_GROUP))
    n_groups = max(n for n in range(1, most + 1) if channels % n == 0)
    group_norm = nn.GroupNorm(n_groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        # The parameters of the copy, so that frozen or tied ones stay so.
        group_norm.weight, group_norm.bias = layer.weight, layer.bias
    return group_norm.train(layer.training)


def _step_needs_arguments(stepping: Any) -> bool:  # an optimizer or a scheduler
    """Whether `step` of the class requires arguments; schedulers wrap that of the instance."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _self, *arguments = inspect.signature(type(stepping).step).parameters.values()
    return any(
        argument.default is argument.empty and argument.kind in kinds for argument in arguments
    )


def _called(names: list[str]) -> str:
    return f"layer {_listed(names)}" if names[0] else "the model itself"


def _listed(names: list[str]) -> str:
    """The first name, and how many more there are."""
    rest = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]!r}{rest}"
