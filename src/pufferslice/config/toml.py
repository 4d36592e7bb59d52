# SPDX-License-Identifier: Apache-2.0
"""Values of a parsed file that people write, with errors that name the section and the key."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from pufferslice._core.files import MOST_NESTED, check_document
from pufferslice.errors import ArgumentError

Document = Mapping[str, Any]
"""A parsed scenario.toml or training.toml, or the same made from flags; or one of its sections."""

Sections = Mapping[str, frozenset[str]]
"""The sections of a file and the keys of each; a section without keys takes any."""

_LONG_KEY: Final = re.compile(
    rb"""(?:\.[ \t]*+(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+){%d}""" % MOST_NESTED
)
"""For which `tomllib` would take time that grows with the square of the parts."""


def parsed_toml(content: bytes) -> dict[str, Any]:
    """A TOML document; what is not one is a `ValueError`."""
    if _LONG_KEY.search(content):
        msg = f"it has a key of more than {MOST_NESTED} parts"
        raise ValueError(msg)
    try:
        document = tomllib.loads(content.decode())
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None
    check_document(document)
    return document


def check_sections(document: Document, sections: Sections) -> None:
    """Only known sections and keys; a misspelt key must not silently change a claim."""
    for name, values in document.items():
        if name not in sections:
            msg = f"unknown section [{name}]; known are {', '.join(sections)}"
            raise ArgumentError(msg)
        if not isinstance(values, Mapping):
            msg = f"[{name}] must be a section, got {type(values).__name__}"
            raise ArgumentError(msg)
        for key in values if sections[name] else ():
            if key not in sections[name]:
                known = ", ".join(sorted(sections[name]))
                msg = f"unknown key {key!r} in [{name}]; known are {known}"
                raise ArgumentError(msg)


def section(document: Document, name: str) -> Document:
    """A section, empty if it is not there."""
    found: Document = document.get(name, {})
    return found


def required(values: object, where: str, key: str) -> Any:  # noqa: ANN401 - a TOML value
    """The value of a key that must be there."""
    if not isinstance(values, Mapping) or key not in values:
        msg = f"[{where}] needs {key!r}; add it"
        raise ArgumentError(msg)
    return values[key]


def text(value: object, name: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        msg = f"{name} must be a text that is not empty, got {value!r}"
        raise ArgumentError(msg)
    return value


def word(value: object, name: str) -> str:
    """A word of the vocabulary: files and flags may write it with hyphens."""
    return text(value, name).replace("-", "_")


def number(value: object, name: str) -> float:
    """A number that is not a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} must be a number, got {value!r}"
        raise ArgumentError(msg)
    return float(value)


def numbers(values: object, name: str) -> list[float]:
    """A list of numbers, at least one."""
    found = list(values) if isinstance(values, list | tuple) else []
    good = [isinstance(one, int | float) and not isinstance(one, bool) for one in found]
    if not found or not all(good):
        msg = f"{name} must be a list of numbers, got {values!r}"
        raise ArgumentError(msg)
    return [float(one) for one in found]
