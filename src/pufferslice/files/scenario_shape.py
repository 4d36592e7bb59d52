# SPDX-License-Identifier: Apache-2.0
"""What kind of value each key of a scenario.toml takes: a text, numbers, a list of tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pufferslice.errors import ArgumentError
from pufferslice.files.toml_values import Document


class Shape(NamedTuple):
    """A kind of value, in words, and how it is told."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list(value: object, inner: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(inner, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_numbers(value: object) -> bool:
    return _is_list(value, _is_number)


def _are_texts(value: object) -> bool:
    return _is_list(value, _is_text)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


TEXT: Final = Shape("a text", _is_text)
TEXTS: Final = Shape("a list of texts", _are_texts)
NUMBER: Final = Shape("a number", _is_number)
NUMBERS: Final = Shape("a list of numbers", _are_numbers)
LEVELS: Final = Shape(
    "a number or a list of numbers", lambda value: _is_number(value) or _are_numbers(value)
)
SCALES: Final = Shape(
    "a list of numbers, or a number for each name",
    lambda value: _are_numbers(list(value.values()) if _is_table(value) else value),
)
BLOCKS: Final = Shape("a list of lists of numbers", lambda value: _is_list(value, _are_numbers))
ROWS: Final = Shape(
    "a list of lists of numbers, all of one length",
    lambda value: BLOCKS.fits(value) and len({len(row) for row in value}) < 2,
)
PAIRS: Final = Shape(
    "'all' or a list of pairs of texts",
    lambda value: _is_text(value) or _is_list(value, _are_texts),
)
TABLE: Final = Shape("a table, as { key = value }", _is_table)
TABLES: Final = Shape("a list of tables", lambda value: _is_list(value, _is_table))

SHAPES: Final[Mapping[str, Mapping[str, Shape]]] = {
    "data": {"path": TEXT, "dataset": TEXT, "null_values": TEXTS, "missing": TEXT, "bins": NUMBER},
    "secret": {"column": TEXT, "columns": TEXTS, "bins": TABLE, "pairs": PAIRS},
    "secret.bins": {"column": TEXT, "quantiles": NUMBER},
    "query": {
        "law": TEXT, "mean": TEXTS, "std": TEXTS, "rate": TABLES, "quantile": TABLES,
        "count_share": NUMBER, "columns": TEXTS, "flags": TABLES, "model": TABLE, "range": TABLE,
        "scales": SCALES,
    },
    "query.range": {"low": NUMBERS, "high": NUMBERS, "center": NUMBERS, "radius": NUMBER},
    "query.rate": {"column": TEXT},
    "query.flags": {"column": TEXT},
    "query.quantile": {"column": TEXT, "level": LEVELS},
    "query.model": {"kind": TEXT},
    "bootstrap": {"n_replicates": NUMBER, "seed": NUMBER},
    "prior": {"source": TEXT, "kind": TEXT, "band": TEXT},
    "profile": {
        "kind": TEXT, "n_directions": NUMBER, "seed": NUMBER, "n_sets": NUMBER, "blocks": BLOCKS,
        "directions": ROWS, "weights": NUMBERS,
    },
    "guarantee": {
        "claim": TEXT, "notion": TEXT, "order": NUMBER, "epsilon": NUMBER, "delta": NUMBER,
        "deltas": NUMBERS, "failure_probability": NUMBER,
    },
    "calibration": {"rule": TEXT, "envelope": TEXT, "noise_std": NUMBER},
}  # fmt: skip
"""By section, and by table inside a section."""

_GAUSSIAN: Final = {"mean": NUMBERS, "cov": ROWS}


def check_shapes(document: Document) -> None:
    """Every value is of its kind; what a value may be is checked where it is used."""
    for name, shapes in SHAPES.items():
        outer, _, inner = name.partition(".")
        values = document.get(outer, {})
        tables = values.get(inner, {}) if inner else values
        for table in tables if isinstance(tables, list | tuple) else [tables]:
            _check(name, table, shapes)
    for world, path in document.get("worlds", {}).items():
        _check("worlds", {world: path}, {world: TEXT})
    for world, law in document.get("gaussian", {}).items():
        _check("gaussian", {world: law}, {world: TABLE})
        _check(f"gaussian.{world}", law, _GAUSSIAN)


def _check(where: str, values: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    for key, shape in shapes.items():
        if key in values and not shape.fits(values[key]):
            msg = f"[{where}] {key} must be {shape.words}, got {_short(values[key])}"
            raise ArgumentError(msg)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
