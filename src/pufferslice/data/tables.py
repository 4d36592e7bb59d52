# SPDX-License-Identifier: Apache-2.0
"""Tables from anywhere: in memory, of an engine, read in batches, or known by sums."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import narwhals as nw

from pufferslice.data import engines
from pufferslice.data.batches import Batches, WithConstant, batches_of
from pufferslice.data.duck import duck_of
from pufferslice.data.engines import Lazy, lazy_of, schema_of
from pufferslice.data.frames import Frame, check_known, frame_of
from pufferslice.data.handed import HandedSums
from pufferslice.data.readers import FileTable

Rows: TypeAlias = Frame | Lazy | Batches | HandedSums
"""A table in memory, of an engine, read in batches, or known by its sums alone."""


def rows_of(table: object, columns: Sequence[str] | None = None) -> Rows:
    """The rows of a table, or of a file or files named by a path; or the sums of rows.

    Of files only `columns` are read, if they are named. Files that fit into memory easily are read
    into it; others by DuckDB, where it is installed, or else in batches.
    """
    if isinstance(table, Mapping):
        return HandedSums.of(table)
    if isinstance(table, str | os.PathLike):
        table = FileTable.of(table)
    if isinstance(table, FileTable):
        return _rows_of_files(table, columns)
    lazy, batches = lazy_of(table), batches_of(table)
    return lazy if lazy is not None else frame_of(table) if batches is None else batches


def _rows_of_files(table: FileTable, columns: Sequence[str] | None) -> Rows:
    names = table.columns
    chosen = names if columns is None else list(dict.fromkeys(columns)) or names[:1]
    check_known(names, chosen)
    if table.is_small(len(chosen)):
        return frame_of(table.read(chosen))
    lazy = duck_of(table, chosen)
    return table if lazy is None else lazy


def frame_of_rows(table: object) -> Frame:
    """The rows of a table in memory, or of a file or files, which are read into it."""
    if isinstance(table, str | os.PathLike):
        table = FileTable.of(table)
    return frame_of(table.read() if isinstance(table, FileTable) else table)


def n_rows_of(table: object) -> int:
    """Count the rows of a table.

    >>> import polars as pl
    >>> n_rows_of(pl.LazyFrame({"age": [30, 40]}))
    2
    """
    rows = rows_of(table, [])
    if isinstance(rows, nw.DataFrame):
        return len(rows)
    if isinstance(rows, nw.LazyFrame):
        return engines.n_rows_of(rows)
    return rows.n_rows()


def names_of(rows: Rows) -> list[str]:
    """Names of the columns; none of sums."""
    if isinstance(rows, HandedSums):
        return []
    return list(schema_of(rows)) if isinstance(rows, nw.LazyFrame) else list(rows.columns)


def frames_of(rows: Frame | Batches, columns: Sequence[str]) -> Iterator[Frame]:
    """Read columns of rows in memory, or in batches; unknown ones are refused."""
    check_known(rows.columns, columns)
    if isinstance(rows, nw.DataFrame):
        yield rows.select(columns)
    else:
        yield from rows.frames(columns)


def with_constant(rows: Rows, name: str, value: Any) -> Rows:
    """The rows with one more column, which is the same in every row."""
    if isinstance(rows, nw.DataFrame):
        return rows.with_columns(nw.lit(value).alias(name))
    if isinstance(rows, nw.LazyFrame):
        return rows.with_columns(nw.lit(value).alias(name))
    return rows if isinstance(rows, HandedSums) else WithConstant(rows, name, value)
