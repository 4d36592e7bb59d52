# SPDX-License-Identifier: Apache-2.0
"""Copies of a model and a loss that share no mutable state.

A model may store what it saw in an attribute, a list, a buffer, a hook or a closure. A replica has
copies of all of these, of containers in the classes of its objects, and of what methods close over,
so that nothing of a run outlives it there. Shared are classes and what code reaches by their names,
globals of modules, context variables and thread locals: code that keeps something of a run in them
carries it into the next.
"""

import dis
import enum
import functools
import sys
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
from pufferslice.torch.layers import Pass

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
"""Types of constants, exactly these: an object of a subclass could hold more than its value."""

_SHARED: Final = (
    enum.Enum,
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
"""Values that no code can change, and names of code."""

_known: Final[weakref.WeakKeyDictionary[type, bool]] = weakref.WeakKeyDictionary()

_OFTEN_EMPTY: Final = frozenset({dict, OrderedDict, list, set})

_CONTAINERS: Final = (list, dict, set, deque, bytearray, np.ndarray, Tensor, nn.Module)
_BEFORE_RUNS: Final = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__"})
"""Methods that run before the object exists, or on its class."""

_NOT_RUN: Final = frozenset(
    {
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    }
)
"""Attributes of modules that forward and backward passes do not use."""


class Replica:
    """A joint copy of several objects: an object with two references is copied once.

    The run says what replaces tensors, what of a module is not copied, and what its copy runs.
    """

    def __init__(self, run: Pass) -> None:
        self._run = run
        self._copies: dict[int, Any] = {}
        self._originals: list[object] = []

    def of(self, value: Any, place: str) -> Any:  # any attribute of a model
        """The copy of a value; `place` is its name in messages."""
        if _is_shared(type(value)):
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        # kept alive, because the id of a dead object may be reused
        self._originals.append(value)
        copy = self._copied(value, place)
        self._copies[id(value)] = copy
        return copy

    def _copied(self, value: Any, place: str) -> Any:  # one case a line
        if isinstance(value, nn.Module):
            return self._module(value, place)
        if isinstance(value, Tensor):
            return self._run.tensor(value)
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
            function, args, kwargs = (self.of(part, place) for part in parts)
            return partial(function, *args, **kwargs)
        if type(value) is weakref.ref:
            target = value()
            return value if target is None else weakref.ref(self.of(target, place))
        if type(value) is np.ndarray and value.dtype != object:
            return value.copy()
        if isinstance(value, np.dtype) and value.isbuiltin == 1:  # others may hold metadata
            return value
        if type(value) is slice:
            return slice(*(self.of(part, place) for part in (value.start, value.stop, value.step)))
        if type(value) is property:
            accessors = (value.fget, value.fset, value.fdel)
            return property(*(self.of(part, place) for part in accessors))
        if type(value) is types.GenericAlias:
            origin, args = self.of(value.__origin__, place), self.of(value.__args__, place)
            return types.GenericAlias(origin, args)
        return self._instance(value, place)

    def _module(self, module: nn.Module, place: str) -> nn.Module:
        inner = module.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is not None:  # made by torch.compile
            copy: nn.Module = self.of(inner, place)
            return copy
        copy = object.__new__(type(module))
        self._copies[id(module)] = copy
        hidden, attributes = self._run.hides(module), copy.__dict__
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
        self._run.adapt(module, copy)
        return copy

    def _builtin(self, function: types.BuiltinFunctionType, place: str) -> Any:  # a callable
        """A function written in C, for example a method of a list."""
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
        for cell, new_cell in zip(cells, closure, strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not set yet
                continue
            new_cell.cell_contents = self.of(content, where)
        copy.__defaults__ = self.of(defaults, where) or None
        copy.__kwdefaults__ = self.of(named, where) or None
        copy.__dict__.update({key: self.of(mark, where) for key, mark in marks.items()})
        return copy

    def _container(self, value: Any, place: str) -> Any:  # a container
        kind = type(value)
        if kind in {dict, OrderedDict, Counter, defaultdict}:
            factory = (self.of(value.default_factory, place),) if kind is defaultdict else ()
            copy: Any = kind(*factory)
            self._copies[id(value)] = copy
            for key, entry in value.items():
                new_key = key if type(key) is str else self.of(key, place)
                copy[new_key] = (
                    entry if _is_shared(type(entry)) else self.of(entry, f"{place}[...]")
                )
            return copy
        if kind in {list, deque}:
            copy = deque(maxlen=value.maxlen) if kind is deque else []
            self._copies[id(value)] = copy
            copy.extend(self.of(entry, f"{place}[{i}]") for i, entry in enumerate(value))
            return copy
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return kind(*(self.of(entry, place) for entry in value))
        if kind in {tuple, set, frozenset}:
            return kind(self.of(entry, place) for entry in value)
        raise _refused(value, place)

    def _instance(self, value: Any, place: str) -> Any:  # any object
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
        """Copy what the object finds in its class and could write to."""
        for name, member, is_found in _members_with_state(type(value)):  # type: ignore[arg-type]  # a type is hashable
            where = f"{place}.{name}"
            function = getattr(member, "__wrapped__", member) if _is_cached(member) else member
            if isinstance(member, types.FunctionType | staticmethod) and not _holds(member):
                continue
            if isinstance(member, classmethod | property | functools.cached_property):
                if any(_holds(function) for function in _functions(member)):
                    raise _refused(member, where)
                continue
            if isinstance(member, _CONTAINERS) and not is_found:
                continue
            if not is_found or name.startswith("__") or not hasattr(copy, "__dict__"):
                raise _refused(member, where)
            if name in copy.__dict__:
                continue
            if isinstance(function, staticmethod):
                copy.__dict__[name] = self._when_called(function.__func__, where)
            elif isinstance(function, types.FunctionType):
                copy.__dict__[name] = partial(self._when_called(function, where), copy)
            else:
                copy.__dict__[name] = self.of(function, where)

    def _when_called(self, function: Callable[..., Any], place: str) -> Callable[..., Any]:
        """Copy a method when it is called: one that is never called may hold anything."""

        def method(*args: object, **kwargs: object) -> object:
            return self.of(function, place)(*args, **kwargs)

        return method


def _is_cached(member: object) -> bool:
    return isinstance(member, functools._lru_cache_wrapper)  # noqa: SLF001 - no public name


def _functions(member: Any) -> list[Any]:  # functions or caches of a member of a class
    if isinstance(member, staticmethod | classmethod):
        return [member.__func__]
    if isinstance(member, property):
        return [part for part in (member.fget, member.fset, member.fdel) if part is not None]
    return [member.func if isinstance(member, functools.cached_property) else member]


@functools.cache
def _members_with_state(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    """Members that could hold state, and whether an object of the class finds that member."""
    members, names = [], set()
    for base in kind.__mro__[:-1]:
        defined = vars(sys.modules[base.__module__]) if base.__module__.startswith("torch.") else {}
        if defined.get(base.__name__) is base:
            continue
        for name, member in vars(base).items():
            is_container = isinstance(member, _CONTAINERS) and not name.startswith("__")
            closes = any(
                set(function.__code__.co_freevars) - {"__class__"}
                or function.__dict__
                or function.__kwdefaults__
                or any(not _is_shared(type(x)) for x in function.__defaults__ or ())
                for function in _functions(member)
                if isinstance(function, types.FunctionType)
            )
            is_cached = any(map(_is_cached, _functions(member)))
            if name not in _BEFORE_RUNS and (is_container or closes or is_cached):
                members.append((name, member, name not in names))
            names.add(name)
    return tuple(members)


def _holds(value: Any, within: tuple[object, ...] = ()) -> bool:  # any type, one case a line
    """Whether a function, or what it closes over, holds something that a run could write to."""
    if _is_shared(type(value)) or any(value is part for part in within):
        return False
    if isinstance(value, staticmethod):
        return _holds(value.__func__)
    if type(value) in {tuple, frozenset}:
        return any(_holds(part, within) for part in value)
    if isinstance(value, types.BuiltinFunctionType):
        return not (value.__self__ is None or _is_shared(type(value.__self__)))
    if not isinstance(value, types.FunctionType):
        return True
    if _rebound(value.__code__):
        return True
    cells = value.__closure__ or ()
    contents = [cell.cell_contents for cell in cells if cell != types.CellType()]
    contents += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    contents += value.__dict__.values()
    if value.__globals__.get("__name__", "").startswith(("torch.", "reprlib", "dataclasses")):
        contents = [part for part in contents if not _is_theirs(part)]
    return any(_holds(part, (*within, value)) for part in contents)


def _is_theirs(value: object) -> bool:
    """Whether wrappers of torch (`no_grad`, `parametrize`) or of `__repr__` hold the value."""
    if isinstance(value, types.MethodType):
        return type(value.__self__).__module__.startswith("torch.")
    return isinstance(value, nn.Module | set)


@functools.cache
def _rebound(code: types.CodeType) -> frozenset[str]:
    """Variables of outer functions that the code, or a function inside it, assigns to."""
    inner = [
        _rebound(instruction)
        for instruction in code.co_consts
        if isinstance(instruction, types.CodeType)
    ]
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith("_DEREF")
        and instruction.opname.startswith(("STORE", "DELETE"))
    }
    return frozenset(names.union(*inner)) & frozenset(code.co_freevars)


def _is_shared(kind: type) -> bool:
    if kind not in _known:
        _known[kind] = kind in _CONSTANT or issubclass(kind, _SHARED)
    return _known[kind]


def _slots(kind: type) -> list[str]:
    """Names of the slots that a class adds, with private names mangled as by Python."""
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
        "information from one example to another. Keep tensors, modules, numbers, strings and "
        "lists or dicts of them in the model and loss_fn; draw random numbers from torch's global "
        "generator"
    )
