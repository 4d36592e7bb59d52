# SPDX-License-Identifier: Apache-2.0
"""The Adult census table that ships with the library.

Source, licence (CC BY 4.0) and citation are in ADULT.md beside the file.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Final
from weakref import ref

import numpy as np
import pyarrow as pa

from pufferslice._core.files import read_bytes
from pufferslice.data.frames import frame_of, missing_rows
from pufferslice.data.readers import read_table
from pufferslice.errors import StorageError

ADULT_SHA256 = "fe24177a5b0df1874e6afc5748b7d9e547ca25880a84c4310f39b7ccf1b0da37"
"""SHA-256 of the shipped file."""

_HANDED_OUT: Final[dict[int, tuple[ref[pa.Table], str]]] = {}
"""Shipped tables that somebody has, and their names, by identity."""


def adult() -> pa.Table:
    """The Adult census table: 32,561 rows, 15 columns, `?` as null.

    >>> adult().shape
    (32561, 15)
    """
    with resources.as_file(resources.files("pufferslice.data") / "adult.csv.gz") as path:
        return _handed_out(read_adult(path), "adult")


def adult_years() -> tuple[pa.Table, pa.Table]:
    """The Adult table in two halves, as if of two years: rows of even and of odd position.

    >>> [year.num_rows for year in adult_years()]
    [16281, 16280]
    """
    table = adult()
    places = np.arange(table.num_rows)
    return (
        _handed_out(table.take(places[::2]), "adult_last_year"),
        _handed_out(table.take(places[1::2]), "adult_this_year"),
    )


def adult_complete() -> pa.Table:
    """The 30,162 rows of `adult` without nulls, which the paper uses.

    >>> adult_complete().num_rows
    30162
    """
    table = adult()
    rows = missing_rows(frame_of(table), table.column_names)
    return _handed_out(table.filter(pa.array(~rows)), "adult_complete")


SHIPPED: Final[Mapping[str, Callable[[], pa.Table]]] = {
    "adult": adult,
    "adult_complete": adult_complete,
    "adult_last_year": lambda: adult_years()[0],
    "adult_this_year": lambda: adult_years()[1],
}
"""Tables that ship with the library, by name."""


def shipped_name(table: object) -> str | None:
    """Name of a shipped table, if this is one as it was handed out.

    >>> shipped_name(adult()), shipped_name(adult().slice(0, 2))
    ('adult', None)
    """
    known, name = _HANDED_OUT.get(id(table), (None, None))
    return name if known is not None and known() is table else None


def _handed_out(table: pa.Table, name: str) -> pa.Table:
    for key in [key for key, (known, _) in _HANDED_OUT.items() if known() is None]:
        del _HANDED_OUT[key]
    _HANDED_OUT[id(table)] = ref(table), name
    return table


def read_adult(path: str | os.PathLike[str]) -> pa.Table:
    """Read a copy of the shipped file; any other file is refused."""
    sha256 = hashlib.sha256(read_bytes(path, "archive")).hexdigest()
    if sha256 != ADULT_SHA256:
        raise StorageError(
            f"{os.fspath(path)!r} is damaged: its SHA-256 is {sha256}, expected {ADULT_SHA256}. "
            "Install pufferslice again"
        )
    return read_table(path, null_values=["?"])
