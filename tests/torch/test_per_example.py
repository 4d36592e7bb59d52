# SPDX-License-Identifier: Apache-2.0
"""Models and losses that try to let one example see another: right on single examples, or refused.

Every accepted one is trained a little first, without noise, because a gate or a dead unit may hide
something at the start. Then one record is replaced many times, also by huge values, and the clipped
sum must not move by more than twice the radius.
"""

import contextvars
import copy
import functools
import gc
import itertools
import random
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.torch.engine import RADIUS, Engine, clipped_rows
from torch import nn
from torch._functorch import eager_transforms
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch import block_operators, per_example, validate
from pufferslice.torch.per_example import seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

N, WIDTH, N_CLASSES = 2, 6, 3
SEED = 7
LOSS = nn.CrossEntropyLoss(reduction="none")
N_REPLACED = 60
"""Twice every size at every place with every class."""


class Net(nn.Module):
    """Two layers, and between them what a subclass does to the hidden values."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, N_CLASSES)

    def between(self, h, x):
        return h

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x)), x))


def net(between, **attributes):
    """A model whose middle is a function of (self, hidden, inputs), with attributes made anew."""
    model = type("Hostile", (Net,), {"between": between})()
    for name, make in attributes.items():
        setattr(model, name, make())
    return model


def number(h):
    """Of one example; under vmap there is none."""
    return 9 * h.detach().sum().item()


def kept_by(find):
    """Keeps numbers in a list that it finds by a function of itself."""

    def between(self, h, x):
        seen = find(self)
        seen.append(number(h))
        return h + sum(seen)

    return between


def ones():
    return nn.Parameter(torch.ones(5))


def zero_gate():
    return nn.Parameter(torch.zeros(1))


class CopyFunction(torch.autograd.Function):
    """A copy, with a vmap rule that torch makes: nothing to refuse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class MixedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum(0, keepdim=True).expand_as(gradient)


class OwnRule(CopyFunction):
    """Adds up the whole block, in the forward pass."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, values):
        return values.sum(in_dims[0], keepdim=True).expand_as(values).clone(), in_dims[0]


class OwnRuleBackward(CopyFunction):
    """Adds up the whole block, in the backward pass only."""

    @staticmethod
    def backward(ctx, gradient):
        return OwnRule.apply(gradient)


@torch.library.custom_op("pufferslice_hostile::mixed", mutates_args=())
def mixed_operator(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


@mixed_operator.register_vmap
def _(info, in_dims, values):
    return values.sum(in_dims[0], keepdim=True).expand_as(values).clone(), in_dims[0]


mixed_operator.register_autograd(
    lambda ctx, gradient: mixed_operator(gradient), setup_context=lambda ctx, inputs, output: None
)


def drawing_by_value(self, h, x):
    """How many numbers are drawn depends on the values: the next example would see that."""
    while h.detach().abs().sum() > 5 * torch.rand(1).item() * random.random():
        h = h * 0.5 * (1 + np.random.rand())  # noqa: NPY002
    return h


def sorted_rows(self, h, x):
    order = h[:, 0].argsort()
    return torch.cumsum(h[order], 0)[order.argsort()]


def kept_in_attribute(self, h, x):
    self.last_one = h.detach() + getattr(self, "last_one", 0)
    return h + self.last_one


def kept_by_assignment(self, h, x):
    self.total = self.total + h.detach().sum()
    return h + self.total


def kept_in_buffer(self, h, x):
    self.total += h.detach().sum()
    return h + self.total


def made_buffer(self, h, x):
    if not hasattr(self, "average"):
        self.register_buffer("average", torch.zeros(5))
    self.average = self.average + h.detach().sum(0)
    return h + self.average


def written(write):
    """Writes to a parameter."""

    def between(self, h, x):
        with torch.no_grad():
            write(self, h.detach())
        return h

    return between


def caught(self, h, x):
    """Catches whatever is raised where a weight is used beside its layer."""
    try:
        return h * self.first.weight.sum()
    except Exception:  # noqa: BLE001
        return h


def frozen_and_written(self, h, x):
    """Torch lets the inputs of a frozen weight change; its bias is trained."""
    values = torch.sin(h)
    outputs = self.more(values)
    values.mul_(0.5)
    return outputs + values


def toggled(self, h, x):
    self.last.requires_grad_(False)
    outputs = self.last(h).sum()
    self.last.requires_grad_(True)
    return h + outputs


def swapped(self, h, x):
    self.one, self.other = self.other, self.one
    return self.one(torch.tanh(self.other(h)))


def under_autocast(self, h, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (h @ self.square).float()


def changed_settings(self, h, x):
    self.norm.eps = 3.0
    self.drop.p = 0.0
    return self.drop(self.norm(h))


def in_thread(self, h, x):
    found = []
    # raises under vmap
    threading.Thread(target=lambda: found.append(h.sum(0))).run()
    worker = threading.Thread(target=lambda: found.append(torch.ones(5)))
    worker.start()
    worker.join()
    return h + found[0] * found[1]


def marked(self, h, x):
    self.mark.total = getattr(self.mark, "total", 0.0) + number(h)
    return h + self.mark.total


def added_by_method(self, h, x):
    self.add(number(h))
    return h + sum(self.seen)


def mapped_inside(self, h, x):
    both = torch.vmap(lambda a, b: a * b.sum(), in_dims=(1, None), out_dims=1)
    return both(h, torch.vmap(torch.vmap(torch.sin))(h))


def under_mode(mode):
    def between(self, h, x):
        with mode():
            return h * torch.ones(5)

    return between


class RowsAdded(TorchDispatchMode):
    """Below vmap, a product is one of the whole block."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found + 9 * found.sum(0) if func is torch.ops.aten.mul.Tensor else found


class Added(torch.Tensor):
    """A class of tensors whose products are added over rows."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_subclass(cls, values)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with no_dispatch():
            found = func(*args, **(kwargs or {})).as_subclass(torch.Tensor)
        if func is torch.ops.aten.mul.Tensor:
            return found + 9 * found.sum(0)
        is_copy = func in {torch.ops.aten.detach.default, torch.ops.aten.clone.default}
        return cls(found) if is_copy else found


class FunctionsAdded(TorchFunctionMode):
    """Enters itself again, so that it sees what is done inside a function, too."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if "custom_function_call" in str(func) and not hasattr(self, "is_inside"):
            self.is_inside = True
            with self:
                return func(*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        return found + 9 * found.sum(0) if func is torch.addmm else found


@torch.library.custom_op("pufferslice_hostile::drawn", mutates_args=())
def drawing_operator(values: torch.Tensor) -> torch.Tensor:
    """Without a vmap rule: torch runs it on one example after another."""
    for _ in range(int(values.abs().sum())):
        torch.rand(1)
    return torch.rand_like(values)


N_UNSET = WIDTH * 1_000


def unset_memory(make, *, one_by_one=False):
    """What the run before has left in memory, or what is left of the block."""

    def between(self, h, x):
        unset = make(x)[..., :5].nan_to_num(0.0, 0.0, 0.0).clamp(-9, 9)
        left = [x.detach().repeat(1, 1_000) * factor for factor in (1.0, 2.0)]
        h = h + 0 * h.sum().item() if one_by_one else h
        return h + unset + 0 * sum(values.sum() for values in left)

    return between


def lengthened(_):
    values = torch.zeros(1)
    return values.set_(values.untyped_storage(), 0, (N_UNSET,), (1,))


def quantised(_):
    given = {"scale": 1.0, "zero_point": 0, "dtype": torch.qint32}
    return torch._empty_affine_quantized([N_UNSET], **given).dequantize()


def empty_both(x):
    return torch.empty(N_UNSET)[:5] + torch.empty_like(x.repeat(1, 1_000))[:, :5]


def anomaly_caught(self, h, x):
    """Torch looks for NaN in the gradients of all examples together."""
    share = x.detach().sum() / x.detach().sum()
    try:
        with torch.autograd.set_detect_anomaly(True):
            return h * torch.func.grad(lambda values: (values * share).sum())(h)
    except RuntimeError:
        return h * 9


MIDDLES = {
    "plain": lambda self, h, x: h,
    "mixed where large": lambda self, h, x: h + 50 * (x.abs().amax() > 20) * h.sum(0),
    "mean where large": lambda self, h, x: torch.where(h > 0.5, h.mean(0), h),
    "centred": lambda self, h, x: h - h.mean(0),
    "normalised by the batch": lambda self, h, x: h / (1 + h.norm(dim=0)),
    "softmax over rows": lambda self, h, x: h.softmax(0),
    "sort and unsort": sorted_rows,
    "flip twice": lambda self, h, x: torch.cumsum(h.flip(0), 0).flip(0),
    "cumsum": lambda self, h, x: h.cumsum(0),
    "roll": lambda self, h, x: h + h.roll(1, 0),
    "cdist": lambda self, h, x: h * torch.cdist(h, h + 1).mean(),
    "einsum": lambda self, h, x: torch.einsum("ij,kj,kl->il", h, h, h),
    "x xT x": lambda self, h, x: h @ h.T @ h,
    "attention over rows": lambda self, h, x: functional.scaled_dot_product_attention(
        h[None], h[None], h[None]
    )[0],
    "pooled over rows": lambda self, h, x: h + h.amax(0),
    "number of examples": lambda self, h, x: h * len(h),
    "first row": lambda self, h, x: h + h[0],
    "index put": lambda self, h, x: h.index_add(0, torch.zeros(len(h)).long(), h),
    "attribute": kept_in_attribute,
    "weight written to": written(lambda self, h: self.first.weight.mul_(0.5)),
    "weight written to, data": written(lambda self, h: self.first.weight.data.mul_(0.5)),
    "bias written to": written(lambda self, h: self.first.bias.add_(h.mean(0))),
    "hook on a gradient": lambda self, h, x: (
        h.register_hook(lambda gradient: gradient * gradient.norm() ** 2 * 100),
        h,
    )[1],
    "backward that mixes": lambda self, h, x: MixedBackward.apply(h),
    "own rule": lambda self, h, x: OwnRule.apply(h),
    "own rule, backward": lambda self, h, x: OwnRuleBackward.apply(h),
    "operator with own rule": lambda self, h, x: mixed_operator(h),
    "rule that torch makes": lambda self, h, x: CopyFunction.apply(2 * h),
    "checkpointed, reentrant": lambda self, h, x: checkpoint(torch.sin, h, use_reentrant=True),
    "checkpointed": lambda self, h, x: checkpoint(torch.sin, h, use_reentrant=False),
    "weight used beside its layer": lambda self, h, x: (
        h + functional.linear(h, self.last.weight).sum()
    ),
    "weight used and caught": caught,
    "penalty on all weights": lambda self, h, x: (
        h + sum(p.square().sum() for p in self.parameters())
    ),
    "layer under a checkpoint": lambda self, h, x: (
        h + checkpoint(self.last, h, use_reentrant=False).sum()
    ),
    "layer called by its class": lambda self, h, x: h + nn.Linear.forward(self.last, h).sum(),
    "layer called by name": lambda self, h, x: h + self.last(input=h).sum(),
    "called twice": lambda self, h, x: torch.tanh(self.first(h @ torch.ones(5, WIDTH))),
    "complex": lambda self, h, x: torch.view_as_real(
        torch.complex(h, h) * torch.complex(h, -h)
    ).sum(-1),
    "half": lambda self, h, x: h.half().float(),
    "bfloat16": lambda self, h, x: (h.bfloat16() @ torch.eye(5).bfloat16()).float(),
    "item": lambda self, h, x: h * (2 if h.abs().max().item() > 0.9 else 1),
    "if": lambda self, h, x: h + h.mean(0) if (h > 0.9).any() else h,
    "numpy": lambda self, h, x: h * float(h.detach().numpy().sum()),
    "through data": lambda self, h, x: h + h.data.sum(0),
    "no_grad": lambda self, h, x: h * torch.no_grad()(lambda v: v.sum())(h),
    "dropout": lambda self, h, x: functional.dropout(h, 0.5),
    "draws by value": drawing_by_value,
    "draws by rate": lambda self, h, x: h * torch.poisson(x.abs().clamp(0, 99)[:, :5]),
    "draws by shape": lambda self, h, x: h * torch._standard_gamma(x.abs()[:, :5] + 0.1),
    "draws by count": lambda self, h, x: (
        h * torch.binomial(x.abs().clamp(0, 99).round()[:, :5], torch.full((1, 5), 0.4))
    ),
    "draws by weight": lambda self, h, x: h * torch._sample_dirichlet(x.abs()[:, :5] + 0.1),
    "draws in an operator": lambda self, h, x: h * drawing_operator(x[:, :5].clamp(-9, 9).detach()),
    "unset memory": unset_memory(empty_both),
    "unset memory, one by one": unset_memory(empty_both, one_by_one=True),
    "unset memory, resized": unset_memory(lambda _: torch.zeros(1).resize_(N_UNSET)),
    "unset memory, functional": unset_memory(
        lambda _: torch.ops.aten.resize(torch.zeros(1), [N_UNSET])
    ),
    "unset memory, lengthened": unset_memory(lengthened, one_by_one=True),
    "unset memory, quantised": unset_memory(quantised),
    "anomaly caught": anomaly_caught,
    "quantised": lambda self, h, x: (
        h + torch.quantize_per_tensor_dynamic(x, torch.qint8, False).dequantize()[:, :5]
    ),
    "resized": lambda self, h, x: h + x.clone().resize_(1, 2).sum(),
    "least squares": lambda self, h, x: (
        h
        + torch.linalg.lstsq(x.detach().reshape(3, 2), torch.ones(3, 1), driver="gelsd")
        .solution.clamp(-9, 9)
        .sum()
    ),
    "table of the example": lambda self, h, x: (
        h + functional.embedding((x[:, 0] > 0).long(), x.detach().clamp(-9, 9).reshape(3, 2)).sum()
    ),
    "index before the first": lambda self, h, x: h.index_fill(1, -1 - (x[0, :1] > 0).long(), 9.0),
    "noise of numpy": lambda self, h, x: h * np.random.rand(),  # noqa: NPY002
    "dispatch mode": under_mode(RowsAdded),
    "function mode": under_mode(FunctionsAdded),
    "class of tensors, made inside": lambda self, h, x: h * Added(torch.ones(5)),
    "text of a tensor": lambda self, h, x: h * (1 + repr(h.detach()).count("-")),
    "unwrapped": lambda self, h, x: h + 9 * torch.func.debug_unwrap(h).sum(0),
    "hook made inside": lambda self, h, x: (
        self.last.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 9 * inputs[0].sum(0),)),
        h,
    )[1],
    "requires_grad toggled": toggled,
    "buffer made inside": made_buffer,
    "data loader inside": lambda self, h, x: next(iter(DataLoader(list(h), len(h)))) + h.sum(0),
    "thread": in_thread,
    "gradient inside": lambda self, h, x: torch.func.grad(lambda v: (v**3).sum() * v.mean())(h),
    "vmap inside": mapped_inside,
    "jacobian inside": lambda self, h, x: h * (1 + torch.func.jacrev(torch.sin)(h).square().sum()),
}
"""What is done to the hidden values."""

GATED = {
    "reshape behind a gate": lambda self, h, x: h + self.gate * h.t().reshape(h.shape),
    "flip behind a gate": lambda self, h, x: h + self.gate * h.flatten().flip(0).reshape(h.shape),
    "mean behind a gate": lambda self, h, x: h + 9 * self.gate * h.mean(0),
    "mean into dead units": lambda self, h, x: h + 9 * torch.relu(h.mean(0) - 3 + 50 * self.gate),
}
"""The same, with a parameter that is zero at first."""

WITH = {
    "list": (
        lambda self, h, x: (self.seen.append(h.detach()), h + sum(self.seen))[1],
        {"seen": list},
    ),
    "weight written to, frozen": (
        lambda self, h, x: (self.count.data.add_(1), h * self.count)[1],
        {"count": lambda: nn.Parameter(torch.zeros(()), requires_grad=False)},
    ),
    "buffer": (kept_in_buffer, {"total": lambda: nn.Buffer(torch.zeros(()))}),
    "buffer assigned": (kept_by_assignment, {"total": lambda: nn.Buffer(torch.zeros(()))}),
    "tensor in a list": (
        lambda self, h, x: h * self.store[0].copy_(h.detach().sum()),
        {"store": lambda: [torch.ones(())]},
    ),
    "parameters in a list": (
        lambda self, h, x: h * self.more[0],
        {"more": lambda: nn.ParameterList([torch.ones(5)])},
    ),
    "parameters in a dict": (
        lambda self, h, x: h * self.more["a"],
        {"more": lambda: nn.ParameterDict({"a": ones()})},
    ),
    "parameters that some examples use": (
        lambda self, h, x: h * (self.left if x[0, 0].item() > 0 else self.right),
        {"left": ones, "right": ones},
    ),
    "class of tensors": (lambda self, h, x: h * self.ones, {"ones": lambda: Added(torch.ones(5))}),
    "slice": (kept_by(lambda self: self.held.start), {"held": lambda: slice([], None)}),
    "alias": (
        kept_by(lambda self: self.held.__args__[0]),
        {"held": lambda: types.GenericAlias(list, ([],))},
    ),
    "factory of a defaultdict": (
        kept_by(lambda self: self.store["any"]),
        {"store": lambda: (seen := []) or defaultdict(lambda: seen)},
    ),
    "function with attributes": (marked, {"mark": lambda: lambda: None}),
    "function with annotations": (
        kept_by(lambda self: self.mark.__annotations__.setdefault("seen", [])),
        {"mark": lambda: lambda: None},
    ),
    "property": (
        kept_by(lambda self: self.held.fget(self)),
        {"held": lambda: (seen := []) or property(lambda _: seen)},
    ),
    "layers swapped": (swapped, dict.fromkeys(["one", "other"], lambda: nn.Linear(5, 5))),
    "autocast inside": (under_autocast, {"square": lambda: nn.Parameter(torch.eye(5))}),
    "settings changed": (
        changed_settings,
        {"norm": lambda: nn.LayerNorm(5), "drop": lambda: nn.Dropout(0.5)},
    ),
}
"""The same, with attributes of the model."""


def changed(change, between=MIDDLES["plain"], **attributes):
    """A model that is changed after it was made."""

    def make():
        model = net(between, **attributes)
        change(model)
        return model

    return make


def remember_outputs(model):
    """A forward hook that adds what it saw before."""
    seen = []
    model.first.register_forward_hook(
        lambda module, inputs, output: (seen.append(output.detach()), output + sum(seen))[1]
    )


def close_over(model):
    """A layer whose forward pass is a function that closes over a list."""
    seen, first = [], model.first.forward

    def forward(x):
        h = first(x)
        seen.append(h.detach().sum())
        return h + sum(seen)

    model.first.forward = forward


def freeze_some(model):
    model.first.weight.requires_grad_(False)
    model.last.bias.requires_grad_(False)


def refer_weakly(model):
    model.first.seen = []
    model.weak = weakref.ref(model.first)


def keep_handle(model):
    """The handle of a hook is an object with a weak reference."""
    model.handle = model.first.register_forward_hook(lambda _, __, out: out + 9 * out.sum(0))


CHANGED = {
    "closure": changed(close_over),
    "hook": changed(remember_outputs),
    "hook before": changed(
        lambda model: model.first.register_forward_pre_hook(
            lambda _, inputs: (inputs[0] - inputs[0].mean(0),)
        )
    ),
    "hook on a module's gradient": changed(
        lambda model: model.last.register_full_backward_hook(
            lambda _, inputs, __: (inputs[0] - inputs[0].mean(0),)
        )
    ),
    "hook before the backward pass": changed(
        lambda model: model.last.register_full_backward_pre_hook(
            lambda _, out: (out[0] * out[0].norm() * 50,)
        )
    ),
    "handle of a hook": changed(keep_handle),
    "hooks of state dicts": changed(
        lambda model: model._register_state_dict_hook(lambda *_: None),
        kept_by(lambda self: self._state_dict_hooks.setdefault("seen", [])),
    ),
    "compiled inside": changed(
        lambda model: setattr(model, "first", torch.compile(model.first)), MIDDLES["centred"]
    ),
    "bound method of a list": changed(
        lambda model: setattr(model, "add", model.seen.append), added_by_method, seen=list
    ),
    "weak reference": changed(refer_weakly, kept_by(lambda self: self.weak().seen)),
    "cycle": changed(
        lambda model: setattr(model.first, "parents", [model]),
        kept_by(lambda self: self.first.parents[0].seen),
        seen=list,
    ),
    "partly frozen": changed(freeze_some),
    "frozen, and its inputs written to": changed(
        lambda model: model.more.weight.requires_grad_(False),
        frozen_and_written,
        more=lambda: nn.Linear(5, 5),
    ),
    "part of a parameter": changed(
        lambda model: vars(model).update(part=model.first.bias[:2]),
        lambda self, h, x: h * self.part.sum(),
    ),
}


class InDefault(Net):
    def between(self, h, x, seen=[]):  # noqa: B006 - what is tested
        seen.append(number(h))
        return h + sum(seen)


def of_the_module(self, h, x, seen=[]):  # noqa: B006 - what is tested
    seen.append(number(h))
    return h + sum(seen)


class InClass(Net):
    seen = []  # noqa: RUF012 - what is tested
    between = kept_by(lambda self: self.seen)


class InCache(Net):
    @functools.lru_cache  # noqa: B019 - what is tested
    def memory(self=None):
        return []

    between = kept_by(lambda self: self.memory())


def in_closure():
    seen = []
    return net(lambda self, h, x: (seen.append(number(h)), h + sum(seen))[1])


def in_closure_at_once():
    """Under vmap, which stores what is the whole block."""
    seen = []
    return net(lambda self, h, x: (seen.append(h.detach()), h + sum(seen))[1])


def in_outer_variable():
    total = 0.0

    def between(self, h, x):
        nonlocal total
        total += number(h)
        return h + total

    return net(between)


def tied():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[2].weight = model[0].weight
    return model


class Tokens(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table, self.last = table, nn.Linear(4, N_CLASSES)

    def forward(self, x):
        h = self.table((x.abs() * 3).long().clamp(0, 9))
        return self.last(h.mean(1) if h.dim() == 3 else h)


class Images(nn.Module):
    """Layers of many kinds; inputs are tiny images."""

    def __init__(self, twice=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, (1, 2), bias=True)
        self.line = nn.Conv1d(2, 2, 2, padding=1, groups=2, dilation=2)
        self.depth = nn.Conv3d(2, 2, 1, bias=False)
        self.norm, self.last = nn.GroupNorm(1, 2), nn.Linear(2, N_CLASSES)
        self.twice = twice

    def forward(self, x):
        h = functional.relu(self.conv(x[:, None, None, :]), inplace=True)[:, :, 0]
        h = self.line(self.line(h)) if self.twice else self.line(h)
        h = self.norm(self.depth(h[..., None, None]).flatten(2))
        return self.last(h.transpose(1, 2)).mean(1)


class Recurrent(nn.Module):
    def __init__(self, function=None):
        super().__init__()
        self.inner, self.last = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, N_CLASSES)
        self.function = function

    def forward(self, x):
        steps = x.reshape(-1, 3, 2)
        if self.function == "packed":
            steps = pack_padded_sequence(steps, [2] * len(steps), batch_first=True)
            return self.last(self.inner(steps)[1][0][0])
        with FunctionsAdded():
            return self.last(self.inner(steps)[0][:, -1])


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(10, 4, mode="mean"), nn.Linear(4, N_CLASSES)

    def forward(self, x):
        words = (x.abs() * 3).long().clamp(0, 9)
        offsets = torch.arange(0, words.numel(), words.shape[1])
        return self.last(self.table(words.reshape(-1), offsets))


LAYERS = {
    "closure of a method": in_closure,
    "closure of a method, at once": in_closure_at_once,
    "variable of an outer function": in_outer_variable,
    "default argument of a method": InDefault,
    "default argument of a function that is a method": functools.partial(net, of_the_module),
    "list of a class": InClass,
    "cached method": InCache,
    "spectral norm, old": lambda: nn.Sequential(spectral_norm(nn.Linear(WIDTH, N_CLASSES))),
    "spectral norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(WIDTH, N_CLASSES))
    ),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, N_CLASSES))),
    "embedding": lambda: Tokens(nn.Embedding(10, 4)),
    "embedding, sparse": lambda: Tokens(nn.Embedding(10, 4, sparse=True)),
    "embedding, renormed": lambda: Tokens(nn.Embedding(10, 4, max_norm=0.5)),
    "embedding, padded": lambda: Tokens(nn.Embedding(10, 4, padding_idx=1)),
    "embedding bag": lambda: Tokens(nn.EmbeddingBag(10, 4)),
    "embedding bag with offsets": Bag,
    "convolutions": Images,
    "convolution called twice": lambda: Images(twice=True),
    "tied": tied,
    "group norm": lambda: nn.Sequential(
        nn.Linear(WIDTH, 8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.Linear(8, N_CLASSES)
    ),
    "function mode around a recurrent layer": Recurrent,
    "packed sequence": lambda: Recurrent("packed"),
    "inputs written to": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, N_CLASSES)),
}
ACCEPTED = {
    **{name: functools.partial(net, between) for name, between in MIDDLES.items()},
    **{name: functools.partial(net, between, gate=zero_gate) for name, between in GATED.items()},
    **{name: functools.partial(net, between, **made) for name, (between, made) in WITH.items()},
    **CHANGED,
    **LAYERS,
}
AT_ONCE = {"plain", "reshape behind a gate", "cumsum", "x xT x", "dropout", "rule that torch makes"}
AT_ONCE |= {"tied", "group norm", "compiled inside"}
ONE_BY_ONE = {"own rule", "own rule, backward", "operator with own rule", "item"}
ONE_BY_ONE |= {"backward that mixes", "weight written to", "weight written to, data"}
ONE_BY_ONE |= {"weight written to, frozen", "table of the example", "least squares"}
ONE_BY_ONE |= {"anomaly caught", "draws in an operator", "draws by rate", "resized"}
RANDOM = {name for name in ACCEPTED if name.startswith("draws ")} | {"dropout", "noise of numpy"}
STATEFUL_FUNCTIONS = {
    "closure",
    "default argument",
    "hook",
    "closure of a method",
    "closure of a method, at once",
    "variable of an outer function",
    "default argument of a method",
    "default argument of a function that is a method",
    "list of a class",
    "cached method",
    "alias",
    "property",
    "bound method of a list",
    "factory of a defaultdict",
    "function with attributes",
    "function with annotations",
    "weak reference",
}
"""A copy by `copy.deepcopy` shares what functions hold, so there is nothing to compare with."""

NOT_COPIED = {"part of a parameter", "class of tensors"}
"""`copy.deepcopy` does not take them."""

UNSET = {name for name in ACCEPTED if name.startswith("unset memory")}
"""Plain autograd uses whatever is in memory."""


def remembering():
    seen = []

    def loss_fn(outputs, targets):
        seen.append(outputs.detach())
        return LOSS(outputs, targets) * sum(one.abs().sum() for one in seen)

    return loss_fn


class LossModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, outputs, targets):
        self.total = self.total + outputs.detach().abs().sum()
        return LOSS(outputs, targets) * self.total


def with_default(outputs, targets, seen=[]):  # noqa: B006 - what is tested
    seen.append(outputs.detach())
    return LOSS(outputs, targets) * sum(one.abs().sum() for one in seen)


class CountingLoss:
    """An object with state, called by its class's method."""

    def __init__(self):
        self.n_calls = 0

    def __call__(self, outputs, targets):
        self.n_calls += 9
        return LOSS(outputs, targets) * self.n_calls


LOSSES = {
    "object": CountingLoss(),
    "rare class": lambda o, t: LOSS(o, t) + LOSS(o, t).mean() if (t == 1).any() else LOSS(o, t),
    "class counts": lambda o, t: LOSS(o, t) * torch.bincount(t, minlength=N_CLASSES)[t],
    "class counts by vmap": lambda o, t: LOSS(o, t) * functional.one_hot(t, N_CLASSES).sum(0)[t],
    "mean": lambda o, t: LOSS(o, t) + LOSS(o, t).mean(),
    "contrastive": lambda o, t: LOSS(o @ o.T @ o, t),
    "closure": remembering(),
    "module": LossModule(),
    "default argument": with_default,
    "partial": functools.partial(lambda seen, o, t: LOSS(o, t) + len(seen), [1]),
}


def examples_of(n=N, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, WIDTH, generator=generator)
    return inputs, torch.randint(0, N_CLASSES, (n,), generator=generator)


def prepared(model, loss_fn=LOSS):
    return Engine(model, loss_fn, examples_of())


def sum_of(engine, examples):
    return engine.sum(examples, seed=SEED)


def train(engine, examples, n_steps=3):
    """Steps along the clipped sum, and gates opened wide."""
    layout = engine.layout
    with torch.no_grad():
        for _ in range(n_steps):
            total = torch.from_numpy(sum_of(engine, examples)).float()
            for parameter, where in zip(layout.parameters, layout.slices, strict=True):
                parameter.sub_(total[where].view_as(parameter))
        for name, parameter in zip(layout.names, layout.parameters, strict=True):
            if name == "gate":
                parameter.fill_(2.0)


def replacements(n, seed):
    """Positions, records of all sizes, and targets of all classes."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = examples_of()
    for i in range(n):
        size = (1.0, 30.0, 1e4, 1e15, 0.0)[i % 5]
        changed_inputs, changed_targets = inputs.clone(), targets.clone()
        changed_inputs[i % N] = size * torch.randn(WIDTH, generator=generator)
        changed_targets[i % N] = i % N_CLASSES
        yield i % N, (changed_inputs, changed_targets)


def check_bounded(engine, n_replaced=N_REPLACED):
    """No record moves the sum by more than 2 radii and rounding, and blocks leave nothing."""
    before = sum_of(engine, examples_of())
    assert np.linalg.norm(before) <= N * RADIUS * (1 + 1e-5)
    for _, examples in replacements(n_replaced, seed=2):
        moved = np.linalg.norm(sum_of(engine, examples) - before)
        assert moved <= 2 * RADIUS * (1 + 1e-4)
    np.testing.assert_array_equal(sum_of(engine, examples_of()), before)


def check_alone(engine):
    """What an example contributes has the same bits whatever stands beside it."""
    expected = rows_of(engine, examples_of())
    for place, examples in replacements(6, seed=3):
        found = rows_of(engine, examples)
        for name, row in expected.items():
            assert torch.equal(found[name][1 - place], row[1 - place]), name


def rows_of(engine, examples):
    with seeded(SEED):
        _, found = engine.sums._per_example.contributions(examples, engine.method, SEED)
    return {engine.layout.names[i]: one.dense() for i, one in found.items()}


def check_values(engine, model, loss_fn=LOSS, examples=None):
    examples = examples or examples_of()
    expected = clipped_rows(model, loss_fn, engine.layout, examples)
    np.testing.assert_allclose(sum_of(engine, examples), expected, atol=2e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("name", ACCEPTED)
def test_no_example_sees_another(name):
    torch.manual_seed(SEED)
    model = ACCEPTED[name]()
    validate(model)
    before = copy.deepcopy(model.state_dict())
    engine = prepared(model)
    engine.sums.chosen_block(examples_of(), N, 0.0)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    train(engine, examples_of())
    before = copy.deepcopy(model.state_dict())
    check_alone(engine)
    check_bounded(engine)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    assert not getattr(model, "seen", [])
    assert not hasattr(model, "last_one")
    if name in RANDOM:
        assert engine.method.draws or not engine.method.at_once
    elif name not in STATEFUL_FUNCTIONS | NOT_COPIED | UNSET:
        check_values(engine, model)
    if name in AT_ONCE | ONE_BY_ONE:
        assert engine.method.at_once == (name in AT_ONCE), engine.method
    if name.startswith("weight written to"):
        assert "writes to its parameters" in str(engine.method)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("place", "name", "other"),
    [
        (per_example, "_info_or_refusal", per_example._vmap_info),
        (TorchDispatchMode, "__enter__", lambda self: self),
        (torch.Tensor, "__repr__", lambda self: "a tensor"),
        (eager_transforms, "is_functorch_wrapped_tensor", lambda tensor: False),
        (block_operators, "_check", lambda operator: None),
        (block_operators.BlockOperators, "check", lambda self: None),
    ],
)
def test_under_a_torch_whose_switches_moved_examples_run_one_by_one(
    place, name, other, monkeypatch
):
    """As a version might have it in which a private name is no longer on the way."""
    assert prepared(net(MIDDLES["plain"])).method.at_once
    with monkeypatch.context() as patched:
        if place is TorchDispatchMode:
            patched.setattr(place, "__exit__", lambda *_: None)
        patched.setattr(place, name, other)
        method = prepared(net(MIDDLES["plain"])).method
    assert not method.at_once
    assert "lets code see all examples" in str(method)


@pytest.mark.soundness
@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_sees_two_examples(name):
    torch.manual_seed(SEED)
    model = Net()
    engine = prepared(model, LOSSES[name])
    train(engine, examples_of())
    check_alone(engine)
    check_bounded(engine)
    if name not in STATEFUL_FUNCTIONS:
        check_values(engine, model, LOSSES[name])


REFUSED = {
    "generator": torch.Generator,
    "generator of numpy": np.random.default_rng,
    "generator of Python": random.Random,
    "counter": itertools.count,
    "iterator": lambda: iter([1]),
    "cached function": functools.partial(functools.lru_cache, len),
    "file": lambda: Path(__file__).open(encoding="utf-8"),  # noqa: SIM115
    "list of a class of its own": type("Own", (list,), {}),
    "array of objects": lambda: np.array([[]], dtype=object),
    "integer of a class of its own": lambda: type("Own", (int,), {})(1),
    "text of a class of its own": lambda: type("Own", (str,), {})("a"),
    "scalar of a class of its own": lambda: type("Own", (np.float64,), {})(1.0),
    "dtype with metadata": lambda: np.dtype("f8", metadata={"seen": []}),
    "generator object": lambda: (i for i in range(9)),
    "context variable": lambda: contextvars.ContextVar("seen"),
    "bound method of C": lambda: [].__iadd__,
    "weak method": lambda: weakref.WeakMethod(nn.Linear(1, 1).forward),
    "bytes that can be written to": lambda: bytearray(1),
    "lock": threading.Lock,
}


@pytest.mark.soundness
@pytest.mark.parametrize("name", REFUSED)
def test_state_that_cannot_be_copied_is_refused(name):
    model = Net()
    model.memory = REFUSED[name]()
    with pytest.raises(ArgumentError, match=r"model\.memory"):
        prepared(model)
    if hasattr(model.memory, "close"):
        model.memory.close()


def in_property():
    seen = []

    class Own(Net):
        @property
        def seen(self):
            return seen

        between = kept_by(lambda self: self.seen)

    return Own()


def in_parent():
    """`super()` finds the function of the parent's class, not that of the replica."""

    class Child(InDefault):
        def between(self, h, x):
            return super().between(h, x)

    return Child()


def in_special_method():
    seen = []

    class Own(Net):
        def __getitem__(self, key):
            return seen

        between = kept_by(lambda self: self[0])

    return Own()


class InCacheOfClass(Net):
    @classmethod
    @functools.lru_cache
    def memory(cls):
        return []

    between = kept_by(lambda self: self.memory())


@pytest.mark.soundness
@pytest.mark.parametrize("make", [in_property, in_parent, in_special_method, InCacheOfClass])
def test_state_in_a_class_that_a_replica_cannot_cover_is_refused(make):
    with pytest.raises(ArgumentError, match="copied"):
        prepared(make())


@pytest.mark.soundness
@pytest.mark.parametrize(
    "enter",
    [
        lambda: FunctionsAdded().__enter__(),
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.autograd.graph.save_on_cpu().__enter__(),
    ],
)
def test_a_mode_that_is_not_left_is_refused(enter):
    """It would see the next example, and the sum."""
    try:
        with pytest.raises(ArgumentError, match="leave"):
            prepared(net(lambda self, h, x: (enter(), h)[1]))
    finally:
        torch.set_autocast_enabled("cpu", False)
        while torch._C._autograd._top_saved_tensors_default_hooks(True):
            torch._C._autograd._pop_saved_tensors_default_hooks()
        while torch._C._len_torch_function_stack():
            torch.overrides._pop_mode()


@pytest.mark.soundness
@pytest.mark.parametrize("weights_of", [nn.Module.parameters, lambda weights: weights])
def test_a_loss_with_a_penalty_on_the_weights_is_differentiated(weights_of):
    """A penalty is the same for every example, and part of its loss."""
    model = Net()
    parameters = list(model.parameters())
    held = model if weights_of is nn.Module.parameters else parameters

    def loss_fn(outputs, targets):
        return LOSS(outputs, targets) + sum(p.square().sum() for p in weights_of(held))

    engine = prepared(model, loss_fn)
    check_bounded(engine, 5)
    total, (inputs, targets) = 0, examples_of()
    for i in range(N):
        loss = loss_fn(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        row = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double()
        total = total + row * min(1.0, RADIUS / float(row.norm()))
    np.testing.assert_allclose(sum_of(engine, examples_of()), total.numpy(), atol=1e-5)


def root_or_ones(h, x):
    """Catches an error that values cause; under vmap, those of any example."""
    try:
        return h * torch.linalg.cholesky(torch.eye(3) * x.detach()[0, 0]).sum()
    except RuntimeError:
        return h * 9


def entry_or_ones(h, x):
    try:
        return h * functional.embedding(x[:, 0].long(), torch.ones(2, 1))
    except IndexError:
        return h * 9


class RootBackward(CopyFunction):
    """Catches the error in the backward pass."""

    @staticmethod
    def forward(values, inputs):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        return root_or_ones(gradient, ctx.saved_tensors[0]), None


@pytest.mark.soundness
@pytest.mark.parametrize("between", [root_or_ones, entry_or_ones, RootBackward.apply])
def test_code_that_catches_an_error_of_one_example_makes_no_step(between):
    """All examples of the block would take the other branch."""
    engine = prepared(net(lambda self, h, x: between(h, x)))
    assert engine.method.at_once
    inputs, targets = examples_of()
    inputs[:, 0] = 0.5
    sum_of(engine, (inputs, targets))
    inputs[1, 0] = -5.0
    with pytest.raises(TrainingError, match="not taken"):
        sum_of(engine, (inputs, targets))


@pytest.mark.soundness
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("label", [-1, 5])
def test_labels_for_which_torch_reads_other_memory_make_no_step(label, one_by_one):
    """By `ctc_loss`, whose 5 classes are the hidden values here."""

    def between(self, h, x):
        labels = torch.where(x[:, :1] > 2, label, 1)
        logits = (h + 0 * h.sum().item() if one_by_one else h)[None].log_softmax(-1)
        return h * functional.ctc_loss(logits, labels, *torch.ones(2, 1).long())

    engine = prepared(net(between))
    inputs, targets = examples_of()
    inputs[:, 0] = 0.0
    assert engine.method.at_once == (not one_by_one)
    assert sum_of(engine, (inputs, targets)).any()
    inputs[1, 0] = 3.0
    with pytest.raises(TrainingError, match="labels out of range"):
        sum_of(engine, (inputs, targets))


@pytest.mark.soundness
def test_least_squares_that_read_unset_memory_make_no_step():
    """The default driver takes its first pivots from there; equal inputs have two results."""

    def between(self, h, x):
        return h + torch.linalg.lstsq(x.detach().reshape(3, 2), torch.ones(3, 1)).solution.sum()

    with pytest.raises(TrainingError, match="gelsd"):
        sum_of(prepared(net(between)), examples_of())


def test_inputs_that_are_written_to_after_their_layer_are_refused_as_by_torch():
    def between(self, h, x):
        y = self.last(h)
        h.mul_(2)
        return h + y.sum()

    engine = prepared(net(between))
    assert "does not run on made-up inputs" in str(engine.method)
    with pytest.raises(TrainingError, match="raised RuntimeError"):
        sum_of(engine, examples_of())


def test_a_layer_that_is_used_otherwise_later_is_differentiated_as_it_is_used_then():
    """The method was chosen when the layer was only called."""
    model = net(
        lambda self, h, x: h + self.last.weight.sum() if self.other else h, other=lambda: False
    )
    engine = prepared(model)
    for model.other in (True, False):
        check_values(engine, model)


HIDDEN_VALUES = []
"""Weak references; a global, because what is kept in the model is gone after each run."""


def test_a_run_leaves_no_activations_to_the_garbage_collector():
    engine = prepared(net(lambda self, h, x: (HIDDEN_VALUES.append(weakref.ref(h)), h)[1]))
    gc.disable()
    try:
        sum_of(engine, examples_of())
        assert HIDDEN_VALUES
        assert not [values for values in HIDDEN_VALUES if values() is not None]
    finally:
        gc.enable()


def test_examples_of_another_shape_are_looked_at_again():
    layers = (nn.Linear(WIDTH, N_CLASSES), nn.Flatten(1), nn.AdaptiveAvgPool1d(N_CLASSES))
    model = nn.Sequential(*layers)
    engine = prepared(model)
    check_values(engine, model, examples=(torch.randn(N, 4, WIDTH), examples_of()[1]))


@pytest.mark.parametrize(
    ("model", "loss_fn", "match"),
    [
        (Net, lambda outputs, _: (outputs - 1) ** 2, "loss_fn must give one number"),
        (Net, lambda outputs, _: 1.0, "loss_fn must give one number"),
        (functools.partial(net, MIDDLES["plain"], unused=zero_gate), LOSS, "'unused' has no grad"),
        (
            changed(lambda model: model.first.weight.register_hook(lambda gradient: gradient * 2)),
            LOSS,
            r"first\.weight.*hook",
        ),
    ],
)
def test_models_and_losses_that_are_refused(model, loss_fn, match):
    with pytest.raises(ArgumentError, match=match):
        prepared(model(), loss_fn)


class Holder:
    """An object of a class written in Python."""

    def __init__(self):
        self.seen, self.scale, self.itself = [], {"a": (1.0, {2}, frozenset({3}))}, self


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("__seen", "unset")

    def __init__(self):
        self.__seen = []

    def add(self, value):
        self.__seen.append(value)
        return len(self.__seen)


def test_objects_of_all_ordinary_kinds_are_copied():
    def between(self, h, x):
        self.holder.seen.append(h.detach())
        self.counts[0] += 1
        self.queue.append(h.detach())
        self.array += 1
        assert self.slotted.add(h.detach()) == 1
        assert self.holder.itself is self.holder
        assert len(self.holder.seen) == 1
        assert self.counts[0] == 1
        assert self.array[0] == 1
        assert self.pair.first == 1
        return h

    model = net(between)
    model.holder, model.counts, model.queue = Holder(), defaultdict(int), deque([1], maxlen=2)
    model.array, model.pair = np.zeros(2), namedtuple("Pair", "first second")(1, [2])  # noqa: PYI024
    model.more = (Counter("a"), OrderedDict(a=1), torch.float32, print, nn.Linear, ...)
    model.slotted = Slotted()
    engine = prepared(model)
    assert engine.method.at_once, engine.method
    check_bounded(engine, 5)
    assert not model.holder.seen
    assert model.slotted.add(1) == 1
    assert not model.counts
    assert len(model.queue) == 1
    assert not model.array.any()


RUNS, GROWS = [], []
"""Globals, because what is kept in the model is gone after each run."""


def test_a_model_that_uses_its_layers_otherwise_in_every_run_makes_no_step():
    def between(self, h, x):
        RUNS.append(1)
        for _ in range(len(RUNS) if GROWS else 1):
            h = self.more(h)
        return h

    engine = prepared(net(between, more=lambda: nn.Linear(5, 5)))
    GROWS.append(1)
    with pytest.raises(TrainingError, match="every run"):
        sum_of(engine, examples_of())
