# SPDX-License-Identifier: Apache-2.0
"""Copies of a model and a loss that share nothing that can be written to.

A model may keep what it has seen in an attribute, a list, a buffer, a hook or a closure. A replica
has copies of all of these, so that nothing of a run outlives it. Code and what only names code are
shared: functions, classes, globals of modules, attributes of classes.
"""

import enum
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from pufferslice.errors import ArgumentError
from pufferslice.torch.taps import Taps, tapped_copy

TensorOf = Callable[[Tensor], Tensor]
"""What stands for a tensor in a replica."""

_SHARED: Final = (
    type(None),
    type(...),
    type(NotImplemented),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    property,
    np.dtype,
    np.generic,
    enum.Enum,
    type,
    types.GenericAlias,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
"""Values that no code can change, and names of code."""

_COMMON: Final = frozenset({type(None), bool, int, float, str})

_NOT_RUN: Final = frozenset(
    {
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
"""Attributes of modules that have no part in a forward or backward pass."""


STAND_INS: Final[dict[type, object]] = {}
"""What stands in replicas for objects of classes of this package, by class."""


class Replica:
    """One copying of several objects, in which a thing that is met twice is one thing again."""

    def __init__(self, tensor_of: TensorOf, taps: Taps | None = None) -> None:
        self._tensor_of = tensor_of
        self._taps = Taps(()) if taps is None else taps
        self._copies: dict[int, Any] = {}
        self._originals: list[object] = []

    def of(self, value: Any, place: str) -> Any:  # noqa: ANN401 - any attribute of a model
        """The copy of a value; `place` is its name in messages."""
        if type(value) in _COMMON or isinstance(value, _SHARED):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        # a dead object's id may be given to another
        self._originals.append(value)
        copy = self._copied(value, place)
        self._copies[id(value)] = copy
        return copy

    def _copied(self, value: Any, place: str) -> Any:  # noqa: ANN401, PLR0911 - one case a line
        if isinstance(value, Tensor):
            if id(value) in self._taps.owners:
                self._taps.refuse(self._taps.owners[id(value)])
            return self._tensor_of(value)
        if isinstance(value, nn.Module):
            return self._module(value, place)
        if isinstance(value, types.FunctionType):
            return self._function(value, place)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__, place), self.of(value.__self__, place))
        if type(value) is partial:
            parts = (value.func, value.args, value.keywords)
            function, given, named = (self.of(part, place) for part in parts)
            return partial(function, *given, **named)
        if isinstance(value, weakref.ref):
            target = value()
            return value if target is None else weakref.ref(self.of(target, place))
        if type(value) is np.ndarray and value.dtype != object:
            return value.copy()
        if isinstance(value, list | tuple | dict | set | frozenset | deque):
            return self._container(value, place)
        return self._instance(value, place)

    def _module(self, module: nn.Module, place: str) -> nn.Module:
        inner = module.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is not None:  # made by torch.compile
            copy: nn.Module = self.of(inner, place)
            return copy
        copy = object.__new__(type(module))
        self._copies[id(module)] = copy
        tapped = id(module) in self._taps.layers
        for name, value in module.__dict__.items():
            shared = name in _NOT_RUN or (tapped and name == "_parameters")
            copy.__dict__[name] = value if shared else self.of(value, f"{place}.{name}")
        if tapped:
            tapped_copy(module, copy, self._taps)
        copy.__dict__["_compiled_call_impl"] = None
        return copy

    def _function(self, function: types.FunctionType, place: str) -> Any:  # noqa: ANN401 - a callable
        inner = function.__dict__.get("_torchdynamo_orig_callable")
        if inner is not None:  # made by torch.compile
            return self.of(inner, place)
        cells, defaults = function.__closure__ or (), function.__defaults__ or ()
        named, marks = function.__kwdefaults__ or {}, function.__dict__
        if not (cells or marks or any(not isinstance(x, _SHARED) for x in defaults) or named):
            return function
        closure = tuple(types.CellType() for _ in cells)
        copy = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, None, closure or None
        )
        self._copies[id(function)] = copy
        where = f"{place}({function.__qualname__})"
        for cell, own in zip(cells, closure, strict=True):
            try:
                held = cell.cell_contents
            except ValueError:  # not set yet
                continue
            own.cell_contents = self.of(held, where)
        copy.__defaults__ = self.of(defaults, where) or None
        copy.__kwdefaults__ = self.of(named, where) or None
        copy.__dict__.update({key: self.of(mark, where) for key, mark in marks.items()})
        return copy

    def _container(self, value: Any, place: str) -> Any:  # noqa: ANN401 - a container
        kind = type(value)
        if not value and kind in {dict, OrderedDict, list, set}:
            return kind()
        if kind in {dict, OrderedDict, Counter, defaultdict}:
            copy: Any = defaultdict(value.default_factory) if kind is defaultdict else kind()
            self._copies[id(value)] = copy
            for key, held in value.items():
                copy[self.of(key, place)] = self.of(held, f"{place}[...]")
            return copy
        if kind in {list, deque}:
            copy = deque(maxlen=value.maxlen) if kind is deque else []
            self._copies[id(value)] = copy
            copy.extend(self.of(held, f"{place}[{i}]") for i, held in enumerate(value))
            return copy
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return kind(*(self.of(held, place) for held in value))
        if kind in {tuple, set, frozenset}:
            return kind(self.of(held, place) for held in value)
        raise _refused(value, place)

    def _instance(self, value: Any, place: str) -> Any:  # noqa: ANN401 - any object
        """An object of a class written in Python: its state is in `__dict__` and `__slots__`."""
        if type(value) in STAND_INS:
            return STAND_INS[type(value)]
        try:
            copy = object.__new__(type(value))
        except (
            TypeError
        ) as error:  # the class is written in C, and has state that Python cannot see
            raise _refused(value, place) from error
        self._copies[id(value)] = copy
        if hasattr(value, "__dict__"):
            copy.__dict__.update(self.of(dict(value.__dict__), place))
        slots = [s for kind in type(value).__mro__ for s in _slots(kind) if hasattr(value, s)]
        for name in slots:
            object.__setattr__(copy, name, self.of(getattr(value, name), f"{place}.{name}"))
        return copy


def _slots(kind: type) -> list[str]:
    """Names of the slots that a class adds, those of private names as Python spells them."""
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    private = f"_{kind.__name__.lstrip('_')}"
    return [
        f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in {"__dict__", "__weakref__"}
    ]


def _refused(value: object, place: str) -> ArgumentError:
    return ArgumentError(
        f"{place} is a {type(value).__name__}, which cannot be copied for each run: it could carry "
        "something of one example to another. Keep tensors, modules, numbers, texts and lists or "
        "dicts of them in the model and loss_fn; draw random numbers from torch's own generator"
    )
