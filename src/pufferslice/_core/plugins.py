# SPDX-License-Identifier: Apache-2.0
"""Code from outside the library: plugins of installed packages, and calls of users' functions."""

import inspect
import json
import traceback
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, Self, TypeAlias, final

import attrs

from pufferslice._core.files import canonical_json
from pufferslice._core.text import given, listed, quoted
from pufferslice.errors import ArgumentError, PluginError, PuffersliceError, ScenarioError

Group: TypeAlias = Literal["queries", "distributions", "accountants"]
"""A package registers its plugins as entry points of the group `pufferslice.queries` and so on."""


@final
@attrs.frozen(kw_only=True)
class Plugin:
    """A plugin and the package that it comes from, as a certificate states them."""

    name: str
    package: str
    version: str
    options: str | None
    """What it was called with, as canonical JSON; None where that is not public."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """The plugin that a `to_json()` describes."""
        options = description.get("options")
        return cls(
            name=description["name"],
            package=description["package"],
            version=description["version"],
            options=None if options is None else canonical_json(options).decode(),
        )

    def to_json(self) -> dict[str, Any]:
        """What is public about it, as JSON values."""
        stated = attrs.asdict(self)
        options = stated.pop("options")
        return stated if options is None else stated | {"options": json.loads(options)}

    def __str__(self) -> str:
        return f"plugin {quoted(self.name)} of {quoted(self.package)} {quoted(self.version)}"


def plugin_problem(group: Group, plugin: Plugin) -> str | None:
    """Why something that this plugin made cannot be recomputed here; None if it can."""
    try:
        entry = _entry(group, plugin.name)
    except PluginError as error:
        return str(error)
    here = _described(entry, None)
    if here == attrs.evolve(plugin, options=None):
        return None
    return f"{plugin} is not installed, but {here}; install that version"


def built_by_plugin(
    group: Group, name: str, options: Mapping[str, Any], *, built_in: Collection[str]
) -> tuple[Plugin, Any]:
    """The plugin of a name, and what its function returns for these options.

    Nothing is imported before that. A plugin with the name of something built in is refused.
    """
    if str(name).replace("-", "_") in built_in:
        raise ArgumentError(
            f"plugin {given(name)} has the name of something built in, which no plugin may "
            f"replace; give it another name than {listed(sorted(built_in))}"
        )
    try:
        # what the function gets is what is stated
        text = canonical_json(dict(options)).decode()
        arguments: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"options of plugin {given(name)} must be finite JSON values by name"
        ) from None
    entry = _entry(group, name)
    plugin = _described(entry, text)
    try:
        build = entry.load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{plugin} cannot be imported: {error}. Install it again, with what it needs"
        ) from error
    try:
        inspect.signature(build).bind(**arguments)
    except TypeError as error:
        raise ArgumentError(f"options of {plugin}: {error}") from None
    return plugin, called(partial(build, **arguments))


def called(function: Callable[..., Any], *args: Any) -> Any:  # the user's own
    """The result of the user's function; the message of its exception may quote a record."""
    try:
        return function(*args)
    except (PuffersliceError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the function can raise
        *_, where = traceback.extract_tb(error.__traceback__)
        raise ScenarioError(
            f"the function raised {type(error).__name__} in line {where.lineno} of "
            f"{where.filename!r}. Its message is not shown, because it may quote the data; call "
            "the function yourself to read it"
        ) from None


def _entry(group: Group, name: str) -> EntryPoint:
    """The one entry point of that name."""
    all_of_group = entry_points(group=f"pufferslice.{group}")
    entries = [entry for entry in all_of_group if entry.name == name]
    if not entries:
        known = listed(sorted({entry.name for entry in all_of_group})) or "none"
        raise PluginError(
            f"plugin {given(name)} of pufferslice.{group} is not installed; installed: {known}. "
            "Install the package that has it"
        )
    if len(entries) > 1:
        packages = listed(sorted(_described(entry, None).package for entry in entries))
        raise PluginError(
            f"plugin {given(name)} is in several packages: {packages}. Uninstall all but one"
        )
    return entries[0]


def _described(entry: EntryPoint, options: str | None) -> Plugin:
    package = entry.dist
    if package is None:  # never of `entry_points`
        raise PluginError(f"plugin {given(entry.name)} belongs to no installed package")
    return Plugin(name=entry.name, package=package.name, version=package.version, options=options)
