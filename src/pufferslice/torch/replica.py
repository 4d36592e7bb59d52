# SPDX-License-Identifier: Apache-2.0
"""Copies of a model and a loss that share nothing that can be written to.

A model may keep what it has seen in an attribute, a list, a buffer, a hook or a closure. A replica
has copies of all of these, so that nothing of a run outlives it, and of lists and the like that an
object finds in its class. Code, and what only names code, is shared: functions, classes and what
code reaches by their names, and globals of modules.
"""

import enum
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from pufferslice.errors import ArgumentError

_CONSTANT: Final = frozenset(
    {
        type(None),
        type(...),
        type(NotImplemented),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
        # but not np.void, whose fields can be written to
        *(kind for kind in np.sctypeDict.values() if kind is not np.void),
    }
)
"""Exactly these types: an object of a subclass could hold something beside its value."""

_SHARED: Final = (
    enum.Enum,
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
"""Values that no code can change, and names of code."""

_known: Final[weakref.WeakKeyDictionary[type, bool]] = weakref.WeakKeyDictionary()
_states: Final[weakref.WeakKeyDictionary[type, dict[str, Any]]] = weakref.WeakKeyDictionary()

_OFTEN_EMPTY: Final = frozenset({dict, OrderedDict, list, set})

_CONTAINERS: Final = (list, dict, set, deque, bytearray, np.ndarray, Tensor, nn.Module)
_NOT_RUN: Final = frozenset(
    {
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
"""Attributes of modules that have no part in a forward or backward pass."""


class Stand(Protocol):
    """What stands in a replica for tensors and for layers that are known by their type."""

    def tensor(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor."""
        ...

    def hides(self, module: nn.Module) -> frozenset[str]:
        """Attributes of a module that its copy does not get."""
        ...

    def adapt(self, module: nn.Module, copy: nn.Module) -> None:
        """Change the copy of a module, all of whose other attributes are there."""
        ...


class Replica:
    """One copying of several objects, in which an object that is met twice is one object again."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._copies: dict[int, Any] = {}
        self._originals: list[object] = []

    def of(self, value: Any, place: str) -> Any:  # noqa: ANN401 - any attribute of a model
        """The copy of a value; `place` is its name in messages."""
        if _is_shared(type(value)):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        # keeps it alive: the id of a dead object may be given to another
        self._originals.append(value)
        copy = self._copied(value, place)
        self._copies[id(value)] = copy
        return copy

    def _copied(self, value: Any, place: str) -> Any:  # noqa: ANN401, PLR0911 - one case a line
        if isinstance(value, nn.Module):
            return self._module(value, place)
        if isinstance(value, Tensor):
            return self._stand.tensor(value)
        if isinstance(value, list | tuple | dict | set | frozenset | deque):
            return self._container(value, place)
        if isinstance(value, types.FunctionType):
            return self._function(value, place)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__, place), self.of(value.__self__, place))
        if isinstance(value, types.BuiltinFunctionType):
            return self._builtin(value, place)
        if type(value) is partial:
            parts = (value.func, value.args, value.keywords)
            function, given, named = (self.of(part, place) for part in parts)
            return partial(function, *given, **named)
        if type(value) is weakref.ref:
            target = value()
            return value if target is None else weakref.ref(self.of(target, place))
        if type(value) is np.ndarray and value.dtype != object:
            return value.copy()
        if isinstance(value, np.dtype) and value.isbuiltin == 1:  # others may hold metadata
            return value
        if type(value) is slice:
            return slice(*(self.of(one, place) for one in (value.start, value.stop, value.step)))
        return self._instance(value, place)

    def _module(self, module: nn.Module, place: str) -> nn.Module:
        inner = module.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is not None:  # made by torch.compile
            copy: nn.Module = self.of(inner, place)
            return copy
        copy = object.__new__(type(module))
        self._copies[id(module)] = copy
        hidden, attributes = self._stand.hides(module), copy.__dict__
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in _OFTEN_EMPTY and not value:
                attributes[name] = kind()
            elif name in _NOT_RUN:
                attributes[name] = OrderedDict()
            elif name not in hidden:
                shared = _is_shared(kind)
                attributes[name] = value if shared else self.of(value, f"{place}.{name}")
        attributes["_compiled_call_impl"] = None
        self._from_class(module, copy, place)
        self._stand.adapt(module, copy)
        return copy

    def _builtin(self, function: types.BuiltinFunctionType, place: str) -> Any:  # noqa: ANN401 - a callable
        """A function written in C, which may be a method of a list, say."""
        owner = function.__self__
        if owner is None or isinstance(owner, type | types.ModuleType):
            return function
        copy = self.of(owner, place)
        return function if copy is owner else getattr(copy, function.__name__)

    def _function(self, function: types.FunctionType, place: str) -> Callable[..., Any]:
        inner = function.__dict__.get("_torchdynamo_orig_callable")
        if inner is not None:  # made by torch.compile
            copied: Callable[..., Any] = self.of(inner, place)
            return copied
        cells, defaults = function.__closure__ or (), function.__defaults__ or ()
        named, marks = function.__kwdefaults__ or {}, function.__dict__
        is_global = function.__globals__.get(function.__name__) is function
        holds = cells or marks or named or any(not _is_shared(type(x)) for x in defaults)
        if is_global and not holds:
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
        if kind in {dict, OrderedDict, Counter, defaultdict}:
            factory = (self.of(value.default_factory, place),) if kind is defaultdict else ()
            copy: Any = kind(*factory)
            self._copies[id(value)] = copy
            for key, held in value.items():
                own = key if type(key) is str else self.of(key, place)
                copy[own] = held if _is_shared(type(held)) else self.of(held, f"{place}[...]")
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
        try:
            copy = object.__new__(type(value))
        except TypeError as error:  # a class written in C has state that Python cannot see
            raise _refused(value, place) from error
        self._copies[id(value)] = copy
        if hasattr(value, "__dict__"):
            copy.__dict__.update(self.of(dict(value.__dict__), place))
        slots = [s for kind in type(value).__mro__ for s in _slots(kind) if hasattr(value, s)]
        for name in slots:
            object.__setattr__(copy, name, self.of(getattr(value, name), f"{place}.{name}"))
        self._from_class(value, copy, place)
        return copy

    def _from_class(self, value: object, copy: object, place: str) -> None:
        """Give a copy its own of the lists and the like that the object finds in its class."""
        if not hasattr(copy, "__dict__"):
            return
        for name, member in _class_state(type(value)).items():
            if name not in copy.__dict__:
                copy.__dict__[name] = self.of(member, f"{place}.{name}")


def _class_state(kind: type) -> dict[str, Any]:
    """Containers, arrays and tensors in a class and those it derives from, but for torch's own."""
    if kind not in _states:
        found: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            if not base.__module__.startswith("torch."):
                found |= {k: v for k, v in vars(base).items() if not k.startswith("__")}
        _states[kind] = {k: v for k, v in found.items() if isinstance(v, _CONTAINERS)}
    return _states[kind]


def _is_shared(kind: type) -> bool:
    if kind not in _known:
        _known[kind] = kind in _CONSTANT or issubclass(kind, _SHARED)
    return _known[kind]


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
