# SPDX-License-Identifier: Apache-2.0
"""training.toml: a training plan as a file that people can read and edit."""

import json
import os
import tomllib
from collections.abc import Mapping
from typing import Any

from pufferslice.errors import ArgumentError
from pufferslice.sgd import TrainingPlan
from pufferslice.storage import read_bytes, write_whole


def write_plan(plan: TrainingPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan: JSON if the name ends in .json, TOML otherwise."""
    document = plan.to_json()
    if os.fspath(path).endswith(".json"):
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    else:
        text = toml_of(document)
    write_whole(path, text.encode())


def read_plan(path: str | os.PathLike[str]) -> TrainingPlan:
    """Read a plan that `write_plan` wrote, or one like it."""
    content = read_bytes(path)
    try:
        if os.fspath(path).endswith(".json"):
            document = json.loads(content)
        else:
            document = tomllib.loads(content.decode())
    except ValueError as error:
        msg = f"{str(path)!r} is not a training plan: {error}"
        raise ArgumentError(msg) from error
    return TrainingPlan.from_json(document)


def toml_of(document: Mapping[str, Any]) -> str:
    """A JSON object as TOML: values first, then a section per object; null is not written.

    >>> print(toml_of({"steps": 2, "sampling": {"kind": "poisson", "rate": 0.5}}), end="")
    steps = 2
    <BLANKLINE>
    [sampling]
    kind = "poisson"
    rate = 0.5
    """
    lines = [
        f"{key} = {_toml_value(value)}"
        for key, value in document.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    for name, section in document.items():
        if isinstance(section, Mapping):
            lines += ["", f"[{name}]"]
            lines += [f"{k} = {_toml_value(v)}" for k, v in section.items() if v is not None]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    """Texts, numbers, truth values and lists look the same in JSON and TOML, objects do not."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
