# SPDX-License-Identifier: Apache-2.0
"""How a scenario was made: the call of its template, without the rows."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar, cast, final

import attrs

from pufferslice._core.calls import call_of
from pufferslice.data.adult import shipped_name
from pufferslice.data.locations import check_scheme
from pufferslice.data.readers import FileTable
from pufferslice.scenario.distributions import GaussianDistribution, GaussianMixture

WORLDS: Final = "worlds"
"""Name of the argument that maps names to tables or distributions."""
_TABLES: Final = ("table", "moments_from", "history", "loads", "moments")
"""Names of arguments that hold rows."""
_FORGOTTEN: Final = ("cls", "progress")
_DECLARED: Final = (GaussianDistribution, GaussianMixture)

_Template = TypeVar("_Template", bound=Callable[..., Any])


@final
@attrs.frozen
class Held:
    """Something in memory that a scenario was made from, of which it keeps the kind alone."""

    kind: str


@final
@attrs.frozen
class Shipped:
    """A table that ships with the library."""

    dataset: str


@final
@attrs.frozen
class Named:
    """A table in a file."""

    path: str
    null_values: tuple[str, ...] = ()


def recorded(template: _Template) -> _Template:
    """Make a template keep its call in the scenario: files and public numbers, and no rows."""

    @wraps(template)
    def made(cls: type, *several: Any, **named: Any) -> Any:
        scenario = template(cls, *several, **named)
        call = call_of(template, (cls, *several), named, _kept)
        known = {name: value for name, value in call.named.items() if value is not None}
        return attrs.evolve(
            scenario, made=attrs.evolve(call, named=known), made_pairs=scenario.pairs
        )

    return cast("_Template", made)


def _kept(name: str, value: Any) -> Any:
    """What is kept of an argument; None for one that is not data."""
    if name in _FORGOTTEN:
        return None
    if name == WORLDS and isinstance(value, Mapping):
        return {world: _kept_world(each) for world, each in value.items()}
    return _kept_table(value) if name in _TABLES else value


def _kept_world(world: object) -> object:
    return world if isinstance(world, _DECLARED) else _kept_table(world)


def _kept_table(table: object) -> Held | Shipped | Named | None:
    if isinstance(table, FileTable):
        return Named(_absolute(table.named), table.null_values)
    if isinstance(table, str | os.PathLike):
        return Named(_absolute(table))
    dataset = shipped_name(table)
    if dataset is not None:
        return Shipped(dataset)
    return None if table is None else Held(type(table).__name__)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.fspath(path) if check_scheme(path) else os.path.abspath(path)  # noqa: PTH100 - a glob
