# SPDX-License-Identifier: Apache-2.0
"""The Adult census table that ships with the library.

Source, licence (CC BY 4.0) and citation are in ADULT.md beside the file.
"""

import hashlib
import os
from importlib import resources

import numpy as np
import pyarrow as pa

from pufferslice._core.files import read_bytes
from pufferslice.data.frames import frame_of, missing_rows
from pufferslice.data.readers import read_table
from pufferslice.errors import StorageError

ADULT_SHA256 = "fe24177a5b0df1874e6afc5748b7d9e547ca25880a84c4310f39b7ccf1b0da37"
"""SHA-256 of the shipped file."""


def adult() -> pa.Table:
    """The Adult census table: 32,561 rows, 15 columns, `?` as null.

    >>> adult().shape
    (32561, 15)
    """
    with resources.as_file(resources.files("pufferslice.data") / "adult.csv.gz") as path:
        return read_adult(path)


def adult_years() -> tuple[pa.Table, pa.Table]:
    """The Adult table in two halves, as if of two years: rows of even and of odd position.

    >>> [year.num_rows for year in adult_years()]
    [16281, 16280]
    """
    table = adult()
    places = np.arange(table.num_rows)
    return table.take(places[::2]), table.take(places[1::2])


def adult_complete() -> pa.Table:
    """The 30,162 rows of `adult` without nulls, which the paper uses.

    >>> adult_complete().num_rows
    30162
    """
    table = adult()
    rows = missing_rows(frame_of(table), table.column_names)
    return table.filter(pa.array(~rows))


def read_adult(path: str | os.PathLike[str]) -> pa.Table:
    """Read a copy of the shipped file; any other file is refused."""
    sha256 = hashlib.sha256(read_bytes(path, "archive")).hexdigest()
    if sha256 != ADULT_SHA256:
        raise StorageError(
            f"{os.fspath(path)!r} is damaged: its SHA-256 is {sha256}, expected {ADULT_SHA256}. "
            "Install pufferslice again"
        )
    return read_table(path, null_values=["?"])
