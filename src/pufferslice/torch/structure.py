# SPDX-License-Identifier: Apache-2.0
"""What a model must be made of for a gradient to belong to one example, and what to use instead."""

import copy
from collections.abc import Iterator
from typing import Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from pufferslice.errors import ArgumentError

LEAST_CHANNELS_PER_GROUP: Final = 16
"""Fewer are hardly normalised: two channels of one value each keep only which is larger."""

MOST_GROUPS: Final = 32

_PLAIN_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_PRECISIONS: Final = (torch.float32, torch.float64)


def validate(model: nn.Module) -> None:
    """The model can be trained under a plan; if not, the error lists every problem and its remedy.

    It looks at modules and parameters and runs nothing. That no example reaches the loss of another
    by what the model computes is a hypothesis of every plan, and not decided here.

    >>> validate(nn.Sequential(nn.Linear(4, 32), nn.GroupNorm(2, 32), nn.ELU(), nn.Linear(32, 2)))
    """
    if not isinstance(model, nn.Module):
        msg = f"model must be a torch.nn.Module, got {type(model).__name__}"
        raise ArgumentError(msg)
    inner = uncompiled(model)
    problems = [*layer_problems(inner), *_parameter_problems(inner)]
    if problems:
        msg = f"the model cannot be trained under a plan: {'; '.join(problems)}"
        raise ArgumentError(msg)


def layer_problems(model: nn.Module) -> list[str]:
    """What its layers do, in their present modes, that no plan allows; quick enough for each step.

    `model.train()` and `model.eval()` change the answer.
    """
    found = ((name, layer, _layer_problem(layer)) for name, layer in model.named_modules())
    return [
        f"{_called(name)} is a {type(layer).__name__}, {problem}"
        for name, layer, problem in found
        if problem
    ]


def uncompiled(model: nn.Module) -> nn.Module:
    """The user's model, also if `torch.compile` was called on it; they share their parameters."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def replace_batchnorm(model: nn.Module) -> nn.Module:
    """A copy of the model in which group normalisation stands in the place of batch normalisation.

    The given model is not touched. Other layers keep their names and values. A replacement keeps
    name, weight, bias, epsilon and mode; running statistics are dropped. It has up to 32 groups of
    at least 16 channels, or one group. It takes what BatchNorm1d takes, (N, C) inputs too.

    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)))[1]
    GroupNorm(2, 32, eps=1e-05, affine=True...)
    """
    for problem in _shape_problems(model):
        msg = f"batch normalisation cannot be replaced yet: {problem}"
        raise ArgumentError(msg)
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


def _layer_problem(layer: nn.Module) -> str:
    """What is wrong with one layer and what to use instead; empty if nothing is."""
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


def _shape_problems(model: nn.Module) -> Iterator[str]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        yield (
            f"{_listed(lazy)} has no shape yet; run the model once on a made-up example before the "
            "optimizer is made"
        )


def _parameter_problems(model: nn.Module) -> Iterator[str]:
    yield from _shape_problems(model)
    named = [(name, p) for name, p in model.named_parameters() if not is_lazy(p)]
    if not any(p.requires_grad for p in model.parameters()):
        yield "it has no trainable parameter; call requires_grad_(True) on what to train"
    empty = [name for name, p in named if p.is_meta]
    if empty:
        yield f"{_listed(empty)} is on the device 'meta' and has no values; load or initialise it"
    yield from _precision_problems(named)
    yield from _memory_problems(named)


def _precision_problems(named: list[tuple[str, nn.Parameter]]) -> Iterator[str]:
    low = [name for name, p in named if p.dtype not in _PRECISIONS]
    if low:
        dtypes = ", ".join(sorted({str(p.dtype) for _, p in named if p.dtype not in _PRECISIONS}))
        yield (
            f"{_listed(low)} is stored as {dtypes}, in which clipping cannot be kept exact; call "
            "model.float()"
        )
    elif len({p.dtype for _, p in named}) > 1:
        yield "its parameters are partly float32 and partly float64; call model.float()"


def _memory_problems(named: list[tuple[str, nn.Parameter]]) -> Iterator[str]:
    """A tied parameter is one object under several names; two objects in one place are not that."""
    seen: dict[int, str] = {}
    for name, parameter in named:
        if parameter.is_meta or not parameter.numel():
            continue
        first = seen.setdefault(parameter.data_ptr(), name)
        if first != name:
            yield (
                f"parameters {first!r} and {name!r} are two objects in the same memory; to tie "
                "them, assign the one nn.Parameter to both names"
            )


def _group_norm_for(name: str, layer: _BatchNorm) -> nn.GroupNorm:
    """The replacement of one layer, on the same device and in the same precision."""
    channels = layer.num_features
    if type(layer) not in _PLAIN_BATCH_NORMS:
        msg = (
            f"{_called(name)} is a {type(layer).__name__}, whose replacement cannot be known; put "
            f"nn.GroupNorm or nn.LayerNorm in its place by hand"
        )
        raise ArgumentError(msg)
    if channels == 1 and not isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
        msg = (
            f"{_called(name)} is a {type(layer).__name__} of one channel; normalised by itself, a "
            "single value is always 0. Leave the layer out"
        )
        raise ArgumentError(msg)
    group_norm = nn.GroupNorm(_n_groups(channels), channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        # The copy's own parameters, so that what is frozen or tied stays so.
        group_norm.weight, group_norm.bias = layer.weight, layer.bias
    return group_norm.train(layer.training)


def _n_groups(channels: int) -> int:
    most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS_PER_GROUP))
    return max(n for n in range(1, most + 1) if channels % n == 0)


def _called(name: str) -> str:
    return f"layer {name!r}" if name else "the model itself"


def _listed(names: list[str]) -> str:
    """The first name, and how many more there are."""
    rest = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]!r}{rest}"
