# SPDX-License-Identifier: Apache-2.0
"""Calls of builders, kept so that what they built can be built again."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

import attrs


@final
@attrs.frozen
class Call:
    """A call of a builder, whose arguments are data."""

    builder: str
    """Name of the function."""
    several: tuple[Any, ...] = ()
    """Arguments without a name, of a function that takes any number of them."""
    named: Mapping[str, Any] = attrs.field(factory=dict)
    """The other arguments that were given, by name."""


def call_of(
    builder: Callable[..., Any],
    several: tuple[Any, ...],
    named: Mapping[str, Any],
    kept: Callable[[str, Any], Any],
) -> Call:
    """Keep a call with a copy of its arguments; `kept` says what is kept of each, by its name.

    >>> def build(column, *, levels=(), **others): ...
    >>> call_of(build, ("age",), {"mean": ["age"]}, lambda name, value: value).named
    {'column': 'age', 'mean': ['age']}
    """
    signature = inspect.signature(builder)
    found, rest = dict(signature.bind(*several, **named).arguments), ()
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= found.pop(name, {})
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = found.pop(name, ())
    return Call(
        builder.__name__,
        copy.deepcopy(tuple(rest)),
        {name: copy.deepcopy(kept(name, value)) for name, value in found.items()},
    )
