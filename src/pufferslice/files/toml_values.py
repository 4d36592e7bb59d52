# SPDX-License-Identifier: Apache-2.0
"""Values of a parsed scenario file, with errors that name the section and the key."""

from collections.abc import Mapping
from typing import Any

from pufferslice.errors import ArgumentError

Document = Mapping[str, Any]
"""A parsed scenario.toml, or the same made from flags; or one of its sections."""


def section(document: Document, name: str) -> Document:
    """A section, empty if it is not there."""
    found: Document = document.get(name, {})
    return found


def required(values: object, where: str, key: str) -> Any:  # noqa: ANN401 - a TOML value
    """The value of a key that must be there."""
    if not isinstance(values, Mapping) or key not in values:
        msg = f"[{where}] needs {key!r}"
        raise ArgumentError(msg)
    return values[key]


def word(value: object) -> str:
    """A word of the vocabulary: files and flags may write it with hyphens."""
    if not isinstance(value, str):
        msg = f"expected a word, got {value!r}"
        raise ArgumentError(msg)
    return value.replace("-", "_")


def number(value: object, name: str) -> float:
    """A number that is not a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, got {value!r}"
        raise ArgumentError(msg)
    return float(value)
