# SPDX-License-Identifier: Apache-2.0
"""Protect a declared secret in what you publish, with a certificate that can be checked.

The public names stand in `__init__.pyi`, once. They are resolved on first use (PEP 562), so that
`import pufferslice` is quick and loads only what is asked for.
"""

import ast
from importlib import import_module
from pathlib import Path

__version__ = "0.2.0"


def _homes() -> dict[str, tuple[str, str]]:
    """The module of each public name, and its name there, as the stub imports them."""
    homes = {}
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                homes |= {alias.asname: (module, alias.name) for alias in names if alias.asname}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=there)):
                homes[name] = (__name__, there)
    return homes


_HOMES = _homes()
__all__ = sorted(_HOMES)  # noqa: PLE0605 - read off the stub


def __getattr__(name: str) -> object:
    """Import a public name on its first use and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, there = _HOMES[name]
    if home == __name__:
        value = import_module(f"{home}.{there}")
    else:
        value = getattr(import_module(home), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, resolved or not."""
    return sorted([*__all__, "__version__"])
