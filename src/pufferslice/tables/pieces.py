# SPDX-License-Identifier: Apache-2.0
"""Files larger than memory: their pieces, and the rows of a piece a batch at a time.

No message shows a row of the file.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import narwhals as nw
import pyarrow as pa
import pyarrow.csv

from pufferslice.errors import TableError
from pufferslice.tables.files import (
    SEPARATORS,
    check_same_fields,
    not_what_it_says,
    opened,
    opened_parquet,
    suffix_of,
    text_of,
    with_nulls,
)
from pufferslice.tables.frames import check_columns, check_names

ROWS_PER_BATCH: Final = 2**16
"""Rows of a Parquet file that are in memory at once."""

_BYTES_PER_BATCH: Final = 2**24
"""The same for a CSV file, in bytes of text."""

_BUFFER: Final = 2**20


class Piece(NamedTuple):
    """A part of a file that can be read by itself: a row group, or the whole of a CSV file."""

    file: Path
    row_group: int
    """Number of the row group, 0 for a CSV file."""
    n_rows: int
    """Rows in it, 0 if that is not known before it is read."""

    def __str__(self) -> str:
        where = f", row group {self.row_group}" if suffix_of(self.file) == ".parquet" else ""
        return f"{str(self.file)!r}{where}"


class Reading(NamedTuple):
    """What of a file is read, and which texts in it mean a missing value."""

    columns: tuple[str, ...]
    labels: tuple[str, ...]
    """Those of the columns that are read as labels; their type is kept as it is found."""
    null_values: tuple[str, ...] = ()


def pieces_of(files: Sequence[Path], columns: Sequence[str]) -> list[Piece]:
    """All pieces of all files, in order; files of different columns, or without rows, are refused.

    Only the ends of the files are read.
    """
    if suffix_of(files[0]) != ".parquet":
        opened(files[0]).close()
        return [Piece(files[0], 0, 0)]
    found: list[Piece] = []
    schemas: list[pa.Schema] = []
    for file in files:
        with opened_parquet(file) as parquet:
            schemas[1:] = [parquet.schema_arrow]
            groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
        check_same_fields((file, schemas[-1]), (files[0], schemas[0]))
        pieces = [Piece(file, i, g.num_rows) for i, g in enumerate(groups) if g.num_rows]
        if not pieces:
            msg = f"{str(file)!r} has no rows; remove it, or name the other files with a glob"
            raise TableError(msg)
        found += pieces
    _check_schema(schemas[0], columns)
    return found


def batches(piece: Piece, reading: Reading) -> Iterator[pa.Table]:
    """The rows of a piece, a batch at a time; the same batches each time."""
    if suffix_of(piece.file) == ".parquet":
        yield from _parquet_batches(piece, reading)
    else:
        yield from _csv_batches(piece.file, reading)


def _check_schema(schema: pa.Schema, columns: Sequence[str]) -> None:
    check_names(schema.names)
    check_columns(nw.from_native(schema.empty_table(), eager_only=True), columns)


def _parquet_batches(piece: Piece, reading: Reading) -> Iterator[pa.Table]:
    with opened_parquet(piece.file, _BUFFER) as parquet:
        groups, columns = [piece.row_group], list(reading.columns)
        for batch in parquet.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=columns):
            yield with_nulls(pa.Table.from_batches([batch]), reading.null_values)


def _csv_batches(path: Path, reading: Reading) -> Iterator[pa.Table]:
    try:
        types = _csv_types(path, reading)
        with text_of(path) as text:
            reader = _opened_csv(text, path, reading, types)
            for batch in reader:
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
    except UnicodeDecodeError:
        raise not_what_it_says(path, "UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        msg = f"{str(path)!r} is a truncated or damaged gzip file. Copy it again"
        raise TableError(msg) from None
    except pa.ArrowException:
        # Not chained: the cause may quote a row.
        separator = SEPARATORS[suffix_of(path)]
        msg = (
            f"{str(path)!r} cannot be read to its end with cells separated by {separator!r}: a "
            "column changes its type, or a row has another number of cells than the header. Mend "
            "it, or convert it to Parquet"
        )
        raise TableError(msg) from None


def _csv_types(path: Path, reading: Reading) -> dict[str, pa.DataType]:
    """Types by the first batch, but numbers may have decimals further down."""
    with text_of(path) as text:
        schema = _opened_csv(text, path, reading, {}).schema
    _check_schema(schema, reading.columns)
    types: dict[str, Any] = {}
    for name in reading.columns:
        kind = schema.field(name).type
        if pa.types.is_null(kind):
            types[name] = pa.string() if name in reading.labels else pa.float64()
        elif pa.types.is_int64(kind) and name not in reading.labels:
            types[name] = pa.float64()
        elif pa.types.is_binary(kind):
            raise not_what_it_says(path, "UTF-8 text")
        else:
            types[name] = kind
    return types


def _opened_csv(
    text: Any,  # noqa: ANN401 - an open file of bytes
    path: Path,
    reading: Reading,
    types: dict[str, pa.DataType],
) -> pa.csv.CSVStreamingReader:
    chosen = list(types) or None
    return pa.csv.open_csv(
        text,
        read_options=pa.csv.ReadOptions(block_size=_BYTES_PER_BATCH),
        parse_options=pa.csv.ParseOptions(
            delimiter=SEPARATORS[suffix_of(path)],
            newlines_in_values=True,
        ),
        convert_options=pa.csv.ConvertOptions(
            null_values=["", *reading.null_values],
            strings_can_be_null=True,
            include_columns=chosen,
            column_types=types or None,
        ),
    )
