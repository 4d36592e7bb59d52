# SPDX-License-Identifier: Apache-2.0
"""Models and losses that try to let one example see another: right on single examples, or refused.

Every accepted one is trained a little first, without noise: what a gate or a dead unit hides at the
start shows then. Then one record is replaced many times, also by huge values, and the clipped sum
must not move by more than twice the radius.
"""

import contextvars
import copy
import functools
import itertools
import random
import threading
import types
import weakref
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.torch.engine import RADIUS, Engine, clipped_rows
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch import validate
from pufferslice.torch.per_example import GradientMethod, seeded

pytestmark = [
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]

N, WIDTH, N_CLASSES = 2, 6, 3
SEED = 7
LOSS = nn.CrossEntropyLoss(reduction="none")
N_REPLACED = 200


class Net(nn.Module):
    """Two layers, and between them what a subclass does to the hidden values."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, N_CLASSES)

    def between(self, h, x):
        raise NotImplementedError

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x)), x))


def net(between, **attributes):
    """A model whose middle is a function of (self, hidden, inputs)."""
    kind = type("Hostile", (Net,), {"between": between})
    model = kind()
    for name, value in attributes.items():
        setattr(model, name, value() if callable(value) else value)
    return model


def zero_gate():
    return nn.Parameter(torch.zeros(1))


def reshaped(self, h, x):
    return h + self.gate * h.t().reshape(h.shape)


def sorted_rows(self, h, x):
    order = h[:, 0].argsort()
    return torch.cumsum(h[order], 0)[order.argsort()]


def kept_in_list(self, h, x):
    self.seen.append(h.detach())
    return h + sum(self.seen)


def kept_in_buffer(self, h, x):
    self.total += h.detach().sum()
    return h + self.total


def kept_in_attribute(self, h, x):
    self.last_one = h.detach() + getattr(self, "last_one", 0)
    return h + self.last_one


def kept_in_tensor(self, h, x):
    self.store[0].copy_(h.detach().sum())
    return h * self.store[0]


def kept_by_assignment(self, h, x):
    self.total = self.total + h.detach().sum()
    return h + self.total


def kept_in_parameter(self, h, x):
    with torch.no_grad():
        self.first.bias.add_(h.detach().mean(0))
    return h


class MixedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum(0, keepdim=True).expand_as(gradient)


class OwnRule(torch.autograd.Function):
    """Adds up the whole block, in the forward pass."""

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, values):
        return values.sum(in_dims[0], keepdim=True).expand_as(values).clone(), in_dims[0]


class OwnRuleBackward(torch.autograd.Function):
    """Adds up the whole block, in the backward pass only."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

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


class Scaled(torch.autograd.Function):
    """With a rule that torch makes: nothing to refuse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return 2 * values

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def hooked():
    """A forward hook that adds what it saw before."""
    model, seen = net(lambda self, h, x: h), []

    def hook(module, inputs, output):
        seen.append(output.detach())
        return output + sum(seen)

    model.first.register_forward_hook(hook)
    return model


def pre_hooked():
    model = net(lambda self, h, x: h)
    model.first.register_forward_pre_hook(lambda module, inputs: (inputs[0] - inputs[0].mean(0),))
    return model


def gradient_hooked():
    """Gradients of the hidden values, for the whole batch, are centred."""
    model = net(lambda self, h, x: h)
    model.last.register_full_backward_hook(
        lambda module, given, out: (given[0] - given[0].mean(0),)
    )
    return model


def hooked_tensor(self, h, x):
    h.register_hook(lambda gradient: gradient * gradient.norm() ** 2 * 100)
    return h


def closed_over():
    seen = []

    def between(self, h, x):
        seen.append(h.detach().sum())
        return h + sum(seen)

    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.Linear(5, N_CLASSES))
    first = model[0].forward
    model[0].forward = lambda x: between(None, first(x), x)
    return model


def compiled_inside():
    model = net(lambda self, h, x: h - h.mean(0))
    model.first = torch.compile(model.first)
    return model


def drawing_by_value(self, h, x):
    """How many numbers are drawn depends on the values: the next example would see that."""
    while h.detach().abs().sum() > 5 * torch.rand(1).item() * random.random():
        h = h * 0.5 * (1 + np.random.rand())  # noqa: NPY002
    return h


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


def through_weight(self, h, x):
    return h + functional.linear(h, self.last.weight).sum()


def caught(self, h, x):
    """Catches whatever is raised where a weight is used beside its layer."""
    try:
        return h * self.first.weight.sum()
    except Exception:  # noqa: BLE001
        return h


def penalised(self, h, x):
    return h + sum(p.square().sum() for p in self.parameters())


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


def frozen_and_written():
    """Torch lets the inputs of a frozen weight change; its bias is trained."""

    def between(self, h, x):
        values = torch.sin(h)
        outputs = self.more(values)
        values.mul_(0.5)
        return outputs + values

    model = net(between, more=lambda: nn.Linear(5, 5))
    model.more.weight.requires_grad_(False)
    return model


def partly_frozen():
    model = net(lambda self, h, x: h)
    model.first.weight.requires_grad_(False)
    model.last.bias.requires_grad_(False)
    return model


def doubled(self, h, x):
    return torch.view_as_real(torch.complex(h, h) * torch.complex(h, -h)).sum(-1)


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


def under_mode(mode):
    def between(self, h, x):
        with mode():
            return h * torch.ones(5)

    return net(between)


class Recurrent(nn.Module):
    def __init__(self, function=None, **given):
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


def number(h):
    """Of one example; under vmap there is none."""
    return 9 * h.detach().sum().item()


def in_closure():
    seen = []

    class Own(Net):
        def between(self, h, x):
            seen.append(number(h))
            return h + sum(seen)

    return Own()


def in_closure_at_once():
    """Under vmap, which stores what is the whole block."""
    seen = []

    class Own(Net):
        def between(self, h, x):
            seen.append(h.detach())
            return h + sum(seen)

    return Own()


def in_outer_variable():
    total = 0.0

    class Own(Net):
        def between(self, h, x):
            nonlocal total
            total += number(h)
            return h + total

    return Own()


class InDefault(Net):
    def between(self, h, x, seen=[]):  # noqa: B006 - what is tested
        seen.append(number(h))
        return h + sum(seen)


class InClass(Net):
    seen = []  # noqa: RUF012 - what is tested

    def between(self, h, x):
        self.seen.append(number(h))
        return h + sum(self.seen)


class InCache(Net):
    @functools.lru_cache  # noqa: B019 - what is tested
    def memory(self=None):
        return []

    def between(self, h, x):
        seen = self.memory()
        seen.append(number(h))
        return h + sum(seen)


def kept_by(find):
    """Keeps numbers in a list that it finds by a function of itself."""

    def between(self, h, x):
        seen = find(self)
        seen.append(number(h))
        return h + sum(seen)

    return between


def bound_method():
    model = net(kept_by(lambda self: self.seen), seen=[])
    model.add = model.seen.append

    def between(self, h, x):
        self.add(number(h))
        return h + sum(self.seen)

    type(model).between = between
    return model


def factory():
    seen = []
    store = defaultdict(lambda: seen)
    return net(kept_by(lambda self: self.store["any"]), store=store)


def marked_function():
    def between(self, h, x):
        self.mark.total = getattr(self.mark, "total", 0.0) + number(h)
        return h + self.mark.total

    model = net(between)
    model.mark = lambda: None
    return model


def annotated_function():
    model = net(kept_by(lambda self: self.mark.__annotations__.setdefault("seen", [])))
    model.mark = lambda: None
    return model


def with_property():
    seen = []
    model = net(kept_by(lambda self: self.held.fget(self)))
    model.held = property(lambda _: seen)
    return model


def weakly():
    model = net(kept_by(lambda self: self.weak().seen))
    model.first.seen = []
    model.weak = weakref.ref(model.first)
    return model


def cyclic():
    model = net(kept_by(lambda self: self.first.parents[0].seen), seen=[])
    model.first.parents = [model]
    return model


def handled():
    """The handle of a hook is an object with a weak reference."""
    model = net(lambda self, h, x: h)
    model.handle = model.first.register_forward_hook(
        lambda module, given, out: out + 9 * out.sum(0)
    )
    return model


def hooked_inside(self, h, x):
    self.last.register_forward_pre_hook(lambda module, given: (given[0] + 9 * given[0].sum(0),))
    return h


def hooked_before_backward():
    model = net(lambda self, h, x: h)
    model.last.register_full_backward_pre_hook(lambda module, out: (out[0] * out[0].norm() * 50,))
    return model


def in_state_dict_hooks():
    model = net(kept_by(lambda self: self._state_dict_hooks.setdefault("seen", [])))
    model._register_state_dict_hook(lambda *_: None)
    return model


def toggled(self, h, x):
    self.last.requires_grad_(False)
    outputs = self.last(h).sum()
    self.last.requires_grad_(True)
    return h + outputs


def swapped(self, h, x):
    self.one, self.other = self.other, self.one
    return self.one(torch.tanh(self.other(h)))


def swapping():
    model = net(swapped, one=lambda: nn.Linear(5, 5), other=lambda: nn.Linear(5, 5))
    model.other.weight.data.mul_(0.1)
    return model


def made_buffer(self, h, x):
    if not hasattr(self, "average"):
        self.register_buffer("average", torch.zeros(5))
    self.average = self.average + h.detach().sum(0)
    return h + self.average


def loaded(self, h, x):
    rows = DataLoader(list(h), batch_size=len(h), shuffle=False)
    return next(iter(rows)) + h.sum(0)


def under_autocast(self, h, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (h @ self.square).float()


def changed_settings(self, h, x):
    self.norm.eps = 3.0
    self.drop.p = 0.0
    return self.drop(self.norm(h))


def in_thread(self, h, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(h.sum(0)))
    # raises under vmap
    thread.run()
    worker = threading.Thread(target=lambda: found.append(torch.ones(5)))
    worker.start()
    worker.join()
    return h + found[0] * found[1]


def gradient_inside(self, h, x):
    return torch.func.grad(lambda v: (v**3).sum() * v.mean())(h)


def mapped_inside(self, h, x):
    both = torch.vmap(lambda a, b: a * b.sum(), in_dims=(1, None), out_dims=1)
    return both(h, torch.vmap(torch.vmap(torch.sin))(h))


def penalised_by_jacobian(self, h, x):
    return h * (1 + torch.func.jacrev(torch.sin)(h).square().sum())


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(10, 4, mode="mean"), nn.Linear(4, N_CLASSES)

    def forward(self, x):
        words = (x.abs() * 3).long().clamp(0, 9)
        offsets = torch.arange(0, words.numel(), words.shape[1])
        return self.last(self.table(words.reshape(-1), offsets))


def part_of_parameter():
    model = net(lambda self, h, x: h * self.part.sum())
    model.__dict__["part"] = model.first.bias[:2]
    return model


ACCEPTED = {
    "plain": lambda: net(lambda self, h, x: h),
    "reshape behind a gate": lambda: net(reshaped, gate=zero_gate),
    "flattened behind a gate": lambda: net(
        lambda self, h, x: h + self.gate * h.flatten().flip(0).reshape(h.shape), gate=zero_gate
    ),
    "mean behind a gate": lambda: net(
        lambda self, h, x: h + 9 * self.gate * h.mean(0), gate=zero_gate
    ),
    "mean into dead units": lambda: net(
        lambda self, h, x: h + 9 * torch.relu(h.mean(0) - 3 + 50 * self.gate), gate=zero_gate
    ),
    "mixed where large": lambda: net(lambda self, h, x: h + 50 * (x.abs().amax() > 20) * h.sum(0)),
    "mean where large": lambda: net(lambda self, h, x: torch.where(h > 0.5, h.mean(0), h)),
    "centred": lambda: net(lambda self, h, x: h - h.mean(0)),
    "normalised by the batch": lambda: net(lambda self, h, x: h / (1 + h.norm(dim=0))),
    "softmax over rows": lambda: net(lambda self, h, x: h.softmax(0)),
    "sort and unsort": lambda: net(sorted_rows),
    "flip twice": lambda: net(lambda self, h, x: torch.cumsum(h.flip(0), 0).flip(0)),
    "cumsum": lambda: net(lambda self, h, x: h.cumsum(0)),
    "roll": lambda: net(lambda self, h, x: h + h.roll(1, 0)),
    "cdist": lambda: net(lambda self, h, x: h * torch.cdist(h, h + 1).mean()),
    "einsum": lambda: net(lambda self, h, x: torch.einsum("ij,kj,kl->il", h, h, h)),
    "x xT x": lambda: net(lambda self, h, x: h @ h.T @ h),
    "attention over rows": lambda: net(
        lambda self, h, x: functional.scaled_dot_product_attention(h[None], h[None], h[None])[0]
    ),
    "pooled over rows": lambda: net(lambda self, h, x: h + h.amax(0)),
    "number of examples": lambda: net(lambda self, h, x: h * len(h)),
    "first row": lambda: net(lambda self, h, x: h + h[0]),
    "index put": lambda: net(lambda self, h, x: h.index_add(0, torch.zeros(len(h)).long(), h)),
    "list": lambda: net(kept_in_list, seen=[]),
    "buffer": lambda: net(kept_in_buffer, total=lambda: nn.Buffer(torch.zeros(()))),
    "buffer assigned": lambda: net(kept_by_assignment, total=lambda: nn.Buffer(torch.zeros(()))),
    "attribute": lambda: net(kept_in_attribute),
    "tensor in a list": lambda: net(kept_in_tensor, store=[torch.ones(())]),
    "parameter written to": lambda: net(kept_in_parameter),
    "closure": closed_over,
    "hook": hooked,
    "hook before": pre_hooked,
    "hook on a module's gradient": gradient_hooked,
    "hook on a gradient": lambda: net(hooked_tensor),
    "backward that mixes": lambda: net(lambda self, h, x: MixedBackward.apply(h)),
    "own rule": lambda: net(lambda self, h, x: OwnRule.apply(h)),
    "own rule, backward": lambda: net(lambda self, h, x: OwnRuleBackward.apply(h)),
    "operator with own rule": lambda: net(lambda self, h, x: mixed_operator(h)),
    "rule that torch makes": lambda: net(lambda self, h, x: Scaled.apply(h)),
    "checkpointed, reentrant": lambda: net(
        lambda self, h, x: checkpoint(torch.sin, h, use_reentrant=True)
    ),
    "checkpointed": lambda: net(lambda self, h, x: checkpoint(torch.sin, h, use_reentrant=False)),
    "compiled inside": compiled_inside,
    "spectral norm, old": lambda: nn.Sequential(spectral_norm(nn.Linear(WIDTH, N_CLASSES))),
    "spectral norm": lambda: nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(WIDTH, N_CLASSES))
    ),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, N_CLASSES))),
    "embedding": lambda: Tokens(nn.Embedding(10, 4)),
    "embedding, sparse": lambda: Tokens(nn.Embedding(10, 4, sparse=True)),
    "embedding, renormed": lambda: Tokens(nn.Embedding(10, 4, max_norm=0.5)),
    "embedding bag": lambda: Tokens(nn.EmbeddingBag(10, 4)),
    "embedding, padded": lambda: Tokens(nn.Embedding(10, 4, padding_idx=1)),
    "weight used beside its layer": lambda: net(through_weight),
    "weight used and caught": lambda: net(caught),
    "penalty on all weights": lambda: net(penalised),
    "convolutions": Images,
    "convolution called twice": lambda: Images(twice=True),
    "partly frozen": partly_frozen,
    "frozen, and its inputs written to": frozen_and_written,
    "layer under a checkpoint": lambda: net(
        lambda self, h, x: h + checkpoint(self.last, h, use_reentrant=False).sum()
    ),
    "layer called by its class": lambda: net(
        lambda self, h, x: h + nn.Linear.forward(self.last, h).sum()
    ),
    "layer called by name": lambda: net(lambda self, h, x: h + self.last(input=h).sum()),
    "tied": tied,
    "called twice": lambda: net(
        lambda self, h, x: torch.tanh(self.first(h @ torch.ones(5, WIDTH)))
    ),
    "complex": lambda: net(doubled),
    "half": lambda: net(lambda self, h, x: h.half().float()),
    "bfloat16": lambda: net(lambda self, h, x: (h.bfloat16() @ torch.eye(5).bfloat16()).float()),
    "item": lambda: net(lambda self, h, x: h * (2 if h.abs().max().item() > 0.9 else 1)),
    "if": lambda: net(lambda self, h, x: h + h.mean(0) if (h > 0.9).any() else h),
    "numpy": lambda: net(lambda self, h, x: h * float(h.detach().numpy().sum())),
    "through data": lambda: net(lambda self, h, x: h + h.data.sum(0)),
    "no_grad": lambda: net(lambda self, h, x: h * torch.no_grad()(lambda v: v.sum())(h)),
    "dropout": lambda: net(lambda self, h, x: functional.dropout(h, 0.5)),
    "draws by value": lambda: net(drawing_by_value),
    "noise of numpy": lambda: net(lambda self, h, x: h * np.random.rand()),  # noqa: NPY002
    "group norm": lambda: nn.Sequential(
        nn.Linear(WIDTH, 8), nn.GroupNorm(2, 8), nn.LayerNorm(8), nn.Linear(8, N_CLASSES)
    ),
    "parameters in a list": lambda: net(
        lambda self, h, x: h * self.more[0], more=lambda: nn.ParameterList([torch.ones(5)])
    ),
    "parameters in a dict": lambda: net(
        lambda self, h, x: h * self.more["a"],
        more=lambda: nn.ParameterDict({"a": nn.Parameter(torch.ones(5))}),
    ),
    "dispatch mode": lambda: under_mode(RowsAdded),
    "function mode": lambda: under_mode(FunctionsAdded),
    "function mode around a recurrent layer": Recurrent,
    "packed sequence": lambda: Recurrent("packed"),
    "class of tensors": lambda: net(lambda self, h, x: h * self.ones, ones=Added(torch.ones(5))),
    "class of tensors, made inside": lambda: net(lambda self, h, x: h * Added(torch.ones(5))),
    "text of a tensor": lambda: net(lambda self, h, x: h * (1 + repr(h.detach()).count("-"))),
    "unwrapped": lambda: net(lambda self, h, x: h + 9 * torch.func.debug_unwrap(h).sum(0)),
    "closure of a method": in_closure,
    "closure of a method, at once": in_closure_at_once,
    "variable of an outer function": in_outer_variable,
    "default argument of a method": InDefault,
    "list of a class": InClass,
    "cached method": InCache,
    "slice": lambda: net(kept_by(lambda self: self.held.start), held=slice([], None)),
    "alias": lambda: net(
        kept_by(lambda self: self.held.__args__[0]), held=[types.GenericAlias(list, ([],))].pop
    ),
    "property": with_property,
    "bound method of a list": bound_method,
    "factory of a defaultdict": factory,
    "function with attributes": marked_function,
    "function with annotations": annotated_function,
    "weak reference": weakly,
    "cycle": cyclic,
    "handle of a hook": handled,
    "hook made inside": lambda: net(hooked_inside),
    "hook before the backward pass": hooked_before_backward,
    "hooks of state dicts": in_state_dict_hooks,
    "inputs written to": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, N_CLASSES)),
    "requires_grad toggled": lambda: net(toggled),
    "layers swapped": swapping,
    "buffer made inside": lambda: net(made_buffer),
    "data loader inside": lambda: net(loaded),
    "autocast inside": lambda: net(under_autocast, square=lambda: nn.Parameter(torch.eye(5))),
    "settings changed": lambda: net(
        changed_settings, norm=lambda: nn.LayerNorm(5), drop=lambda: nn.Dropout(0.5)
    ),
    "thread": lambda: net(in_thread),
    "gradient inside": lambda: net(gradient_inside),
    "vmap inside": lambda: net(mapped_inside),
    "jacobian inside": lambda: net(penalised_by_jacobian),
    "embedding bag with offsets": Bag,
    "part of a parameter": part_of_parameter,
}


def weighted_by_counts(outputs, targets):
    counts = torch.bincount(targets, minlength=N_CLASSES)
    return LOSS(outputs, targets) * counts[targets]


def weighted_under_vmap(outputs, targets):
    counts = functional.one_hot(targets, N_CLASSES).sum(0)
    return LOSS(outputs, targets) * counts[targets]


def mixed_if_rare(outputs, targets):
    losses = LOSS(outputs, targets)
    return losses + losses.mean() if (targets == 1).any() else losses


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
    "rare class": mixed_if_rare,
    "class counts": weighted_by_counts,
    "class counts by vmap": weighted_under_vmap,
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


def prepared(model, loss_fn=LOSS, examples=None):
    return Engine(model, loss_fn, examples or examples_of())


def sum_of(gradients, examples):
    return gradients.sum(examples, seed=SEED)


def train(gradients, examples, n_steps=3):
    """Steps along the clipped sum, and gates opened wide."""
    with torch.no_grad():
        for _ in range(n_steps):
            total = torch.from_numpy(sum_of(gradients, examples)).float()
            for parameter, where in zip(
                gradients.layout.parameters, gradients.layout.slices, strict=True
            ):
                parameter.sub_(total[where].view_as(parameter))
        for name, parameter in zip(
            gradients.layout.names, gradients.layout.parameters, strict=True
        ):
            if name == "gate":
                parameter.fill_(2.0)


def replacements(n, seed=2):
    """Records of all sizes, and targets of all classes."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(n):
        size = (1.0, 30.0, 1e4, 1e15, 0.0)[i % 5]
        yield i % N, size * torch.randn(WIDTH, generator=generator), i % N_CLASSES


def check_bounded(gradients, examples, n_replaced=N_REPLACED):
    """No record moves the sum by more than 2 radii and rounding."""
    before = sum_of(gradients, examples)
    assert np.linalg.norm(before) <= N * RADIUS * (1 + 1e-5)
    for place, values, target in replacements(n_replaced):
        inputs, targets = (one.clone() for one in examples)
        inputs[place], targets[place] = values, target
        moved = np.linalg.norm(sum_of(gradients, (inputs, targets)) - before)
        assert moved <= 2 * RADIUS * (1 + 1e-4)


def check_alone(gradients, examples):
    """What an example contributes has the same bits whatever stands beside it."""
    inputs, targets = examples
    expected = rows_of(gradients, examples)
    for place, values, target in replacements(6, seed=3):
        changed, others = inputs.clone(), targets.clone()
        changed[place], others[place] = values, target
        kept = [i for i in range(N) if i != place]
        found = rows_of(gradients, (changed, others))
        for name, row in expected.items():
            assert torch.equal(found[name][kept], row[kept]), name


def rows_of(gradients, examples):
    with seeded(SEED):
        _, found = gradients.sums._per_example.contributions(examples, gradients.method, SEED)
    return {gradients.layout.names[i]: one.dense() for i, one in found.items()}


RANDOM = {"dropout", "draws by value", "noise of numpy"}
STATEFUL_FUNCTIONS = {
    "closure",
    "hook",
    "default argument",
    "closure of a method",
    "closure of a method, at once",
    "variable of an outer function",
    "default argument of a method",
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


@pytest.mark.soundness
@pytest.mark.parametrize("name", ACCEPTED)
def test_no_example_sees_another(name):
    torch.manual_seed(SEED)
    model, examples = ACCEPTED[name](), examples_of()
    validate(model)
    gradients = prepared(model)
    train(gradients, examples)
    before = copy.deepcopy(model.state_dict())
    check_alone(gradients, examples)
    check_bounded(gradients, examples)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    if name not in RANDOM | STATEFUL_FUNCTIONS | NOT_COPIED:
        expected = clipped_rows(model, LOSS, gradients.layout, examples)
        np.testing.assert_allclose(sum_of(gradients, examples), expected, atol=2e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_sees_two_examples(name):
    torch.manual_seed(SEED)
    model, examples = net(lambda self, h, x: h), examples_of()
    gradients = prepared(model, LOSSES[name])
    train(gradients, examples)
    check_alone(gradients, examples)
    check_bounded(gradients, examples)
    if name not in STATEFUL_FUNCTIONS:
        expected = clipped_rows(model, LOSSES[name], gradients.layout, examples)
        np.testing.assert_allclose(sum_of(gradients, examples), expected, atol=2e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("name", [*sorted(STATEFUL_FUNCTIONS), "list", "attribute", "buffer"])
def test_a_block_leaves_nothing_behind(name):
    """The sum of a block is the same before and after another block, to the bit."""
    model = ACCEPTED.get(name, lambda: net(lambda self, h, x: h))()
    gradients = prepared(model, LOSSES.get(name, LOSS))
    before = sum_of(gradients, examples_of())
    sum_of(gradients, examples_of(seed=5))
    np.testing.assert_array_equal(sum_of(gradients, examples_of()), before)
    assert not getattr(model, "seen", [])
    assert not hasattr(model, "last_one")


@pytest.mark.soundness
@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_numbers_do_not_depend_on_other_examples(name):
    """With one record replaced, the sum moves by what that record alone contributes."""
    torch.manual_seed(SEED)
    gradients = prepared(ACCEPTED[name]())
    inputs, targets = examples_of()
    changed = inputs.clone()
    changed[0] = 1e4
    with_first = [sum_of(gradients, (x, targets)) for x in (inputs, changed)]
    assert gradients.method.draws or not gradients.method.at_once
    assert np.linalg.norm(with_first[0] - with_first[1]) <= 2 * RADIUS * (1 + 1e-4)
    again = sum_of(gradients, (inputs, targets))
    np.testing.assert_array_equal(again, with_first[0])


QUICK = (
    "plain",
    "reshape behind a gate",
    "cumsum",
    "x xT x",
    "dropout",
    "rule that torch makes",
    "tied",
    "group norm",
    "compiled inside",
)
SLOW = ("own rule", "own rule, backward", "operator with own rule", "item", "backward that mixes")


@pytest.mark.parametrize("name", QUICK)
def test_ordinary_models_are_run_all_at_once(name):
    gradients = prepared(ACCEPTED[name]())
    assert gradients.method.at_once, gradients.method


@pytest.mark.parametrize("name", SLOW)
def test_code_that_could_see_the_block_is_run_one_by_one(name):
    with pytest.warns(UserWarning, match="training is slow"):
        engine = prepared(ACCEPTED[name]())
    assert not engine.method.at_once
    assert str(engine.method).startswith("one by one (")


@pytest.mark.soundness
def test_both_ways_give_the_same_sum():
    gradients = prepared(ACCEPTED["reshape behind a gate"]())
    train(gradients, examples_of())
    quick = sum_of(gradients, examples_of())
    gradients.sums.method = GradientMethod(at_once=False)
    np.testing.assert_allclose(sum_of(gradients, examples_of()), quick, atol=1e-6)


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
    model = net(lambda self, h, x: h)
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


@pytest.mark.soundness
@pytest.mark.parametrize("make", [in_property, in_parent, in_special_method])
def test_state_in_a_class_that_a_replica_cannot_cover_is_refused(make):
    with pytest.raises(ArgumentError, match="cannot be copied for each run"):
        prepared(make())


def enters_mode(self, h, x):
    FunctionsAdded().__enter__()
    return h


def leaves_autocast_on(self, h, x):
    torch.set_autocast_enabled("cpu", True)
    return h


@pytest.mark.soundness
@pytest.mark.parametrize("between", [enters_mode, leaves_autocast_on])
def test_a_mode_that_is_not_left_is_refused(between):
    """It would see the next example, and the sum."""
    try:
        with pytest.raises(ArgumentError, match="does not leave it"):
            prepared(net(between))
    finally:
        torch.set_autocast_enabled("cpu", False)
        while torch._C._len_torch_function_stack():
            torch.overrides._pop_mode()


@pytest.mark.soundness
@pytest.mark.parametrize("held", [lambda model: model, lambda model: list(model.parameters())])
def test_a_loss_with_a_penalty_on_the_weights_is_differentiated(held):
    """A penalty is the same for every example, and part of its loss."""
    model = net(lambda self, h, x: h)
    own = held(model)

    def loss_fn(outputs, targets):
        weights = own if isinstance(own, list) else own.parameters()
        return LOSS(outputs, targets) + sum(p.square().sum() for p in weights)

    gradients = prepared(model, loss_fn)
    check_bounded(gradients, examples_of(), 5)
    total, parameters = 0, list(model.parameters())
    inputs, targets = examples_of()
    for i in range(N):
        loss = loss_fn(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        row = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double()
        total = total + row * min(1.0, RADIUS / float(row.norm()))
    np.testing.assert_allclose(sum_of(gradients, examples_of()), total.numpy(), atol=1e-5)


def test_inputs_that_are_written_to_after_their_layer_are_refused_as_by_torch():
    def between(self, h, x):
        y = self.last(h)
        h.mul_(2)
        return h + y.sum()

    with pytest.raises(TrainingError, match="raised RuntimeError"):
        prepared(net(between))


def test_a_layer_that_is_used_otherwise_later_is_differentiated_as_it_is_used_then():
    """The method was chosen when the layer was only called."""

    def between(self, h, x):
        return h + self.last.weight.sum() if self.other else h

    model = net(between, other=False)
    engine = prepared(model)
    for model.other in (True, False):
        expected = clipped_rows(model, LOSS, engine.layout, examples_of())
        np.testing.assert_allclose(sum_of(engine, examples_of()), expected, atol=1e-5)


def test_examples_of_another_shape_are_looked_at_again():
    model = nn.Sequential(
        nn.Linear(WIDTH, N_CLASSES), nn.Flatten(1), nn.AdaptiveAvgPool1d(N_CLASSES)
    )
    gradients = prepared(model)
    inputs, targets = torch.randn(N, 4, WIDTH), examples_of()[1]
    expected = clipped_rows(model, LOSS, gradients.layout, (inputs, targets))
    np.testing.assert_allclose(sum_of(gradients, (inputs, targets)), expected, atol=1e-5)


def test_a_gradient_hook_on_a_parameter_is_refused():
    model = net(lambda self, h, x: h)
    model.first.weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(ArgumentError, match=r"first\.weight.*hook"):
        prepared(model)


def test_batch_normalisation_is_refused_by_type():
    with pytest.raises(ArgumentError, match="BatchNorm1d"):
        validate(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))


@pytest.mark.parametrize("loss_fn", [lambda o, t: (o - 1) ** 2, lambda o, t: 1.0])
def test_a_loss_that_is_not_one_number_is_refused(loss_fn):
    with pytest.raises(ArgumentError, match="loss_fn must give one number"):
        prepared(net(lambda self, h, x: h), loss_fn)


def test_a_mean_over_the_batch_is_the_loss_of_a_single_example():
    model = net(lambda self, h, x: h)
    engine = prepared(model, nn.CrossEntropyLoss())
    expected = clipped_rows(model, LOSS, engine.layout, examples_of())
    np.testing.assert_allclose(sum_of(engine, examples_of()), expected, atol=1e-5)


def test_a_parameter_without_gradient_is_refused():
    model = net(lambda self, h, x: h, unused=zero_gate)
    with pytest.raises(ArgumentError, match="'unused' has no gradient"):
        prepared(model)


def test_a_parameter_that_some_examples_use_is_trained():
    def routed(self, h, x):
        return h * self.left if x[0, 0].item() > 0 else h * self.right

    model = net(
        routed, left=lambda: nn.Parameter(torch.ones(5)), right=lambda: nn.Parameter(torch.ones(5))
    )
    gradients = prepared(model)
    expected = clipped_rows(model, LOSS, gradients.layout, examples_of())
    np.testing.assert_allclose(sum_of(gradients, examples_of()), expected, atol=1e-5)


@pytest.mark.soundness
@pytest.mark.parametrize("through_data", [True, False])
def test_weights_that_the_model_writes_to_stay_as_they_are(through_data):
    def between(self, h, x):
        with torch.no_grad():
            weight = self.first.weight.data if through_data else self.first.weight
            weight.mul_(0.5)
        return h

    model = net(between)
    before = model.first.weight.detach().clone()
    gradients = prepared(model)
    check_bounded(gradients, examples_of(), 5)
    assert "writes to its parameters" in str(gradients.method)
    torch.testing.assert_close(model.first.weight.detach(), before, rtol=0, atol=0)


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
    from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

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
    gradients = prepared(model)
    assert gradients.method.at_once, gradients.method
    check_bounded(gradients, examples_of(), 5)
    assert not model.holder.seen
    assert model.slotted.add(1) == 1
    assert not model.counts
    assert len(model.queue) == 1
    assert not model.array.any()


RUNS, GROWS = [], []
"""Globals: what is kept in the model is gone after each run."""


def test_a_model_that_uses_its_layers_otherwise_in_every_run_makes_no_step():
    def between(self, h, x):
        RUNS.append(1)
        for _ in range(len(RUNS) if GROWS else 1):
            h = self.more(h)
        return h

    engine = prepared(net(between, more=lambda: nn.Linear(5, 5)))
    GROWS.append(1)
    with pytest.raises(TrainingError, match="otherwise whenever it is run"):
        sum_of(engine, examples_of())
