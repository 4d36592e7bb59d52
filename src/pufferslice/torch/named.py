# SPDX-License-Identifier: Apache-2.0
"""Functions that a training file names as `module:function`."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pufferslice.errors import ArgumentError


def call_named(name: str, folder: Path, *arguments: object) -> Any:  # noqa: ANN401 - of the user
    """What the function `module:function` returns; the module may lie in `folder`."""
    with _modules_of(folder):
        return function_named(name, folder)(*arguments)


def function_named(name: str, folder: Path) -> Callable[..., Any]:
    """The function `module:function`; the module is looked for in `folder` first."""
    module_name, _, function_name = name.partition(":")
    with _modules_of(folder):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # One that the user's own module misses is for the user to see as it is.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            msg = f"there is no module {module_name!r}, neither in {str(folder)!r} nor installed"
            raise ArgumentError(msg) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        msg = f"module {module_name!r} has no function {function_name!r}"
        raise ArgumentError(msg)
    named: Callable[..., Any] = function
    return named


@contextlib.contextmanager
def _modules_of(folder: Path) -> Iterator[None]:
    """Look for modules in `folder` first, for as long as this lasts."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(place)
