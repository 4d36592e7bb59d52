# SPDX-License-Identifier: Apache-2.0
"""The Adult census table that ships with the library, and the paper's query on it.

Source, licence (CC BY 4.0) and citation are in ADULT.md beside the file.
"""

import hashlib
import os
from importlib import resources

import numpy as np
import pyarrow as pa

from pufferslice.errors import StorageError
from pufferslice.queries import Box, Query, above, columns, equals, summary
from pufferslice.storage import read_bytes
from pufferslice.tables import frame_of, missing_rows, read_table

ADULT_SHA256 = "fe24177a5b0df1874e6afc5748b7d9e547ca25880a84c4310f39b7ccf1b0da37"
"""SHA-256 of the shipped file."""

_NUMBERS = ("age", "education-num", "hours-per-week")
_RATES = (("capital-gain", above(0)), ("capital-loss", above(0)), ("income", equals(">50K")))

# Public knowledge about the columns: the census recorded ages 17 to 90 (older is 90), sixteen
# levels of education, and 1 to 99 hours a week.
_LOW = np.array([17.0, 1.0, 1.0])
_HIGH = np.array([90.0, 16.0, 99.0])


def adult() -> pa.Table:
    """The Adult census table: 32,561 rows, 15 columns, `?` as null.

    >>> adult().shape
    (32561, 15)
    """
    with resources.as_file(resources.files("pufferslice.datasets") / "adult.csv.gz") as path:
        return read_adult(path)


def adult_complete() -> pa.Table:
    """The 30,162 rows of `adult` without nulls, which the paper uses.

    >>> adult_complete().num_rows
    30162
    """
    table = adult()
    rows = missing_rows(frame_of(table), table.column_names)
    return table.filter(pa.array(~rows))


def adult_summary() -> Query:
    """The paper's nine statistics of the Adult table, with public scales and range.

    Means and standard deviations of age, education level and weekly hours; shares of rows with a
    capital gain, a capital loss, and an income above 50K. Scales: 10 years, 2.5 levels and 10
    hours for the means; 5 years, 1 level and 5 hours for the standard deviations; 0.1 for the
    shares. Range: ages 17 to 90, levels 1 to 16, hours 1 to 99; a standard deviation is at most
    half of its column's width; shares are between 0 and 1. None of these was fitted to the rows.

    >>> adult_summary().dim
    9
    """
    spread = (_HIGH - _LOW) / 2
    return (
        summary(mean=_NUMBERS, std=_NUMBERS, rate=_RATES)
        .with_range(Box([*_LOW, 0, 0, 0, 0, 0, 0], [*_HIGH, *spread, 1, 1, 1]))
        .with_scales([10, 2.5, 10, 5, 1, 5, 0.1, 0.1, 0.1])
    )


def adult_records() -> Query:
    """The row-level form of `adult_summary`: three numbers and three 0/1 flags of each row.

    Scales: 10 years, 2.5 levels, 10 hours, and 0.5 for a flag. The range is that of the columns.

    >>> adult_records().names[:4]
    ('age', 'education-num', 'hours-per-week', 'capital-gain > 0')
    """
    return (
        columns(_NUMBERS, flags=_RATES)
        .with_range(Box([*_LOW, 0, 0, 0], [*_HIGH, 1, 1, 1]))
        .with_scales([10, 2.5, 10, 0.5, 0.5, 0.5])
    )


def read_adult(path: str | os.PathLike[str]) -> pa.Table:
    """Read a copy of the shipped file, refused unless it is the shipped file to the last byte."""
    found = hashlib.sha256(read_bytes(path, "archive")).hexdigest()
    if found != ADULT_SHA256:
        msg = (
            f"{os.fspath(path)!r} is damaged: its SHA-256 is {found}, expected {ADULT_SHA256}. "
            "Install pufferslice again"
        )
        raise StorageError(msg)
    return read_table(path, null_values=["?"])
