# SPDX-License-Identifier: Apache-2.0
"""Files as tables: CSV, TSV and Parquet, whole or in pieces for files larger than memory.

No message shows a row of the file.
"""

import codecs
import contextlib
import glob
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias

import narwhals as nw
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from pufferslice._core.files import check_local, open_regular
from pufferslice._core.text import given, listed
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import (
    Frame,
    check_columns,
    check_names,
    frame_of,
    missing_rows,
    without_missing,
)
from pufferslice.errors import ArgumentError, TableError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET_MARK = b"PAR1"
_GZIP_MARK = b"\x1f\x8b"
_FROM_A_SPREADSHEET = (
    "Export a spreadsheet as CSV UTF-8, with commas between cells and decimal points"
)
_BYTES_AT_ONCE = 2**20
_MOST_LOOKS = 2**8

Handler: TypeAlias = Callable[[pa.csv.InvalidRow], Literal["skip"]]
"""Callback for the rows that do not fit the header."""


def read_table(path: str | os.PathLike[str], null_values: Sequence[str] = ()) -> pa.Table:
    """Read a CSV or TSV file (also gzipped), a Parquet file, or a folder or glob of Parquet files.

    An empty cell is missing, and so is every text in `null_values`; nothing else is. Blank lines
    of a CSV file are skipped. Several Parquet files must have the same columns and types and are
    joined in the order of their names. Files of other machines, named by a URL, are not read.
    """
    if isinstance(null_values, str):
        text = given(null_values)
        raise ArgumentError(f"null_values must be a list of texts, got {text}; write [{text}]")
    files = data_files(path)
    if suffix_of(files[0]) == ".parquet":
        tables = []
        for file in files:
            with opened_parquet(file) as parquet:
                tables.append(parquet.read())
            _check_same_fields(file, tables[-1].schema, files[0], tables[0].schema)
        table = _with_nulls(pa.concat_tables(tables), null_values)
    else:
        table = _read_csv(files[0], null_values)
    check_names(table.column_names)
    if not table.num_rows or not table.num_columns:
        raise TableError(
            f"{str(path)!r} is empty: {table.num_rows} rows, {table.num_columns} columns; it needs "
            "at least one each"
        )
    return table


def data_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files that a path stands for: one CSV, TSV or Parquet file, or several Parquet files."""
    check_local(path)
    target, pattern = Path(path), str(path)
    if target.is_dir():
        files = sorted(target.glob("*.parquet"))
        nested = sum(1 for _ in target.glob("*/**/*.parquet"))
        if nested or not files:
            raise TableError(
                f"folder {pattern!r} must hold Parquet files, and none in its subfolders; it has "
                f"{len(files)} and {nested}. Name subfolders with a glob such as "
                "'folder/*/*.parquet'"
            )
    elif glob.has_magic(pattern) and not target.exists():
        files = sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207 - any root
        other = sum(1 for file in files if not str(file).lower().endswith(".parquet"))
        if other or not files:
            raise TableError(
                f"glob {pattern!r} must match Parquet files and nothing else; it matches "
                f"{len(files)} files, {other} of them not named .parquet"
            )
    else:
        suffix_of(target)
        return [target]
    names: dict[object, Path] = {}
    for file in files:
        first = names.setdefault(identity_of(file), file)
        if first is not file:
            raise TableError(
                f"{str(first)!r} and {str(file)!r} are one file, whose rows would count twice; "
                "remove the link, or name files with a glob"
            )
    return files


def beside(folder: Path, path: str) -> Path:
    """A path that is relative to a folder; a URL, which is relative to nothing, is refused."""
    check_local(path)
    return folder / path


def identity_of(file: Path) -> object:
    """Identity of a file, the same for all of its names and hard links."""
    if not file.exists():
        return str(file.resolve())
    about = file.stat()
    return about.st_dev, about.st_ino


def suffix_of(path: Path) -> str:
    """Suffix of a file: `.csv`, `.tsv` or `.parquet`; any other is refused."""
    name = PurePath(str(path).lower())
    stem = name.with_suffix("") if name.suffix == ".gz" else name
    suffix = stem.suffix
    if suffix in SEPARATORS or (suffix == ".parquet" and stem is name):
        return suffix
    raise TableError(
        f"{str(path)!r} must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet, or be a folder or "
        f"glob of Parquet files. {_FROM_A_SPREADSHEET}"
    )


def _check_same_fields(
    file: Path, schema: pa.Schema, first_file: Path, first_schema: pa.Schema
) -> None:
    fields, first_fields = (
        [(field.name, str(field.type), field.nullable) for field in fields]
        for fields in (schema, first_schema)
    )
    if fields != first_fields:
        differing = sorted({name for name, *_ in {*fields} ^ {*first_fields}}) or ["their order"]
        raise TableError(
            f"{str(file)!r} and {str(first_file)!r} must have the same columns and types; they "
            f"differ in {listed(differing)}. Name files of one kind with a glob"
        )


@contextlib.contextmanager
def opened_parquet(path: Path, buffer_size: int = 0) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file for reading; anything else, and a damaged one, is refused."""
    with opened(path) as file:
        head = file.read(4)
        file.seek(-min(4, len(head)), os.SEEK_END)
        tail = file.read(4)
        if head != _PARQUET_MARK:
            raise not_what_it_says(path, "Parquet", head)
        if tail != _PARQUET_MARK:
            raise TableError(
                f"{str(path)!r} is truncated: a Parquet file ends in PAR1. Copy it again"
            )
        try:
            with pa.parquet.ParquetFile(path, buffer_size=buffer_size, pre_buffer=False) as parquet:
                yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            kind = type(error).__name__
            raise TableError(
                f"{str(path)!r} is a damaged Parquet file ({kind}). Copy it again"
            ) from None  # the cause may quote what was read


def _read_csv(path: Path, null_values: Sequence[str]) -> pa.Table:
    table = None
    with contextlib.suppress(pa.ArrowException):
        table = _parse_csv(path, null_values, None)
    if table is None:
        # Raised here, because an error of pyarrow in its context may quote a row.
        raise _why_unreadable(path, null_values)
    if any(pa.types.is_binary(kind) for kind in table.schema.types):
        raise not_what_it_says(path, "UTF-8 text")
    return table


def _why_unreadable(path: Path, null_values: Sequence[str]) -> TableError:
    """Reason why a CSV file cannot be read, without any of its text."""
    # First, because pyarrow cannot hand over a row that is not UTF-8.
    if not _is_text(path):
        return not_what_it_says(path, "UTF-8 text")
    ragged: list[pa.csv.InvalidRow] = []

    def keep_out(row: pa.csv.InvalidRow) -> Literal["skip"]:
        ragged.append(row)
        return "skip"

    with contextlib.suppress(pa.ArrowException):
        _parse_csv(path, null_values, keep_out)
    if not ragged:
        separator = SEPARATORS[suffix_of(path)]
        return TableError(
            f"{str(path)!r} holds no rows that can be read, with cells separated by {separator!r}"
        )
    row = ragged[0]
    return TableError(
        f"{str(path)!r} has {len(ragged)} rows with another number of cells than its header; "
        f"the first is row {row.number}, with {row.actual_columns} cells where the header has "
        f"{row.expected_columns}. Correct the file"
    )


def _parse_csv(
    path: Path,
    null_values: Sequence[str],
    handler: Handler | None,
) -> pa.Table:
    """Parse a table; rows that do not fit its header go to the handler, or are an error."""
    with text_of(path) as file:
        table = pa.csv.read_csv(
            file,
            # Rows are numbered only when one thread reads them.
            read_options=pa.csv.ReadOptions(use_threads=handler is None),
            parse_options=_parse_options(path, handler),
            convert_options=_convert_options(null_values),
        )
        table.column_names  # noqa: B018 - decodes the header, which may not be UTF-8
        return table


def _parse_options(path: Path, handler: Handler | None = None) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(
        delimiter=SEPARATORS[suffix_of(path)], newlines_in_values=True, invalid_row_handler=handler
    )


def _convert_options(
    null_values: Sequence[str], types: dict[str, pa.DataType] | None = None
) -> pa.csv.ConvertOptions:
    """Options that read only the columns with a type, if there are any."""
    return pa.csv.ConvertOptions(
        null_values=["", *null_values],
        strings_can_be_null=True,
        include_columns=list(types or ()) or None,
        column_types=types or None,
    )


def _is_text(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with text_of(path) as file:
            for _ in range(_MOST_LOOKS):
                part = file.read(_BYTES_AT_ONCE)
                decoder.decode(part, final=not part)
                if not part:
                    break
    except TableError:
        return False
    return True


@contextlib.contextmanager
def text_of(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked if its name says gzip; refuse it if the name is wrong.

    Bytes that are not UTF-8, and damaged gzip, are a `TableError` wherever they are read.
    """
    zipped = str(path).lower().endswith(".gz")
    try:
        with opened(path) as file:
            head = file.read(4)
            file.seek(0)
            if zipped and not head.startswith(_GZIP_MARK):
                raise not_what_it_says(path, "gzip", head)
            with io.BufferedReader(gzip.open(file)) if zipped else file as text:
                start = text.read(4096)
                if start.startswith((_PARQUET_MARK, _GZIP_MARK)) or b"\0" in start:
                    raise not_what_it_says(path, "UTF-8 text", start)
                header, separator = start.partition(b"\n")[0], SEPARATORS[suffix_of(path)]
                if b";" in header and separator.encode() not in header:
                    raise TableError(
                        f"{str(path)!r} separates its cells by ';', expected {separator!r}. "
                        f"{_FROM_A_SPREADSHEET}; or read it with pandas.read_csv(..., sep=';', "
                        "decimal=',') and pass the data frame, or write that with to_csv"
                    )
                text.seek(0)
                yield text
    except UnicodeDecodeError:
        raise not_what_it_says(path, "UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TableError(
            f"{str(path)!r} is a truncated or damaged gzip file. Copy it again"
        ) from None


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; an empty one is refused."""
    file = open_regular(path)
    is_empty = not file.seek(0, os.SEEK_END)
    file.seek(0)
    if is_empty:
        file.close()
        raise TableError(f"{str(path)!r} is an empty file; copy it again")
    return file


def not_what_it_says(path: Path, wanted: str, head: bytes = b"") -> TableError:
    """The error for a file whose first bytes are not what its name says."""
    kinds = {_PARQUET_MARK: "a Parquet file", _GZIP_MARK: "a gzip file"}
    kind = next((kind for mark, kind in kinds.items() if head.startswith(mark)), "something else")
    hint = f". {_FROM_A_SPREADSHEET}" if kind == "something else" and wanted == "UTF-8 text" else ""
    return TableError(
        f"{str(path)!r} is not what its name says: expected {wanted}, found {kind}. Rename it or "
        f"convert it{hint}"
    )


def _with_nulls(table: pa.Table, null_values: Sequence[str]) -> pa.Table:
    """Replace these strings by nulls in every column of strings."""
    if not null_values:
        return table
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if isinstance(field.type, pa.DictionaryType):
            column = column.cast(field.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            named = pa.compute.is_in(column, value_set=pa.array(null_values, type=column.type))
            nulled = pa.compute.if_else(named, pa.scalar(None, type=column.type), column)
            table = table.set_column(index, field.name, nulled)
    return table


ROWS_PER_BATCH: Final = 2**16
"""Rows of a Parquet file that are in memory at once."""

_BYTES_PER_BATCH: Final = 2**24
"""Bytes of text of a CSV file that are in memory at once."""

_BUFFER: Final = 2**20


class Piece(NamedTuple):
    """A part of a file that can be read by itself: a row group, or the whole of a CSV file."""

    file: Path
    row_group: int
    """Number of the row group, 0 for a CSV file."""
    n_rows: int
    """Number of rows, 0 if it is not known before the piece is read."""


def pieces_of(files: Sequence[Path], columns: Sequence[str]) -> list[Piece]:
    """List the pieces of files in order; different columns, or no rows, are refused.

    Only the ends of the files are read.
    """
    if suffix_of(files[0]) != ".parquet":
        opened(files[0]).close()
        return [Piece(files[0], 0, 0)]
    all_pieces: list[Piece] = []
    schemas: list[pa.Schema] = []
    for file in files:
        with opened_parquet(file) as parquet:
            schemas[1:] = [parquet.schema_arrow]
            groups = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
        _check_same_fields(file, schemas[-1], files[0], schemas[0])
        pieces = [Piece(file, i, g.num_rows) for i, g in enumerate(groups) if g.num_rows]
        if not pieces:
            raise TableError(
                f"{str(file)!r} has no rows; remove it, or name the other files with a glob"
            )
        all_pieces += pieces
    _check_schema(schemas[0], columns)
    return all_pieces


def batches(piece: Piece, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read columns of a piece, a batch at a time; the batches are the same each time."""
    if suffix_of(piece.file) != ".parquet":
        yield from _csv_batches(piece.file, columns)
        return
    with opened_parquet(piece.file, _BUFFER) as parquet:
        groups = [piece.row_group]
        for batch in parquet.iter_batches(ROWS_PER_BATCH, row_groups=groups, columns=[*columns]):
            yield pa.Table.from_batches([batch])


def complete_frames(
    table: object, columns: Sequence[str], missing: str, progress: Progress = silent
) -> Iterator[tuple[Frame, int]]:
    """Apply the policy `missing` to a table; also return how many rows were dropped.

    A table in memory is one frame. Files, named by a path as for `read_table`, are read a batch at
    a time, so that they may be larger than memory; an empty cell is missing.
    """
    if not isinstance(table, str | os.PathLike):
        yield without_missing(frame_of(table), columns, missing)
        return
    pieces = pieces_of(data_files(table), columns)
    n_read, n_rows, n_dropped = 0, sum(piece.n_rows for piece in pieces), 0
    for piece in pieces:
        for batch in batches(piece, columns):
            frame = frame_of(batch)
            n_read += len(frame)
            if missing != "refuse" and missing_rows(frame, columns).all():
                n_dropped += len(frame)
            else:
                complete, n_missing = without_missing(frame, columns, missing)
                yield complete, n_missing + n_dropped
                n_dropped = 0
            progress(n_read, max(n_read, n_rows))
    if n_dropped:
        yield frame[:0], n_dropped  # the last rows, which are all missing: counted alone


def _check_schema(schema: pa.Schema, columns: Sequence[str]) -> None:
    check_names(schema.names)
    check_columns(nw.from_native(schema.empty_table(), eager_only=True), columns)


def _csv_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    try:
        types = _csv_types(path, columns)
        with text_of(path) as text:
            for batch in _opened_csv(text, path, types):
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
    except pa.ArrowException:
        # Not chained: the cause may quote a row.
        separator = SEPARATORS[suffix_of(path)]
        raise TableError(
            f"{str(path)!r} cannot be read to its end with cells separated by {separator!r}: a "
            "column changes its type, or a row has another number of cells than the header. "
            "Correct it, or convert it to Parquet"
        ) from None


def _csv_types(path: Path, columns: Sequence[str]) -> dict[str, pa.DataType]:
    """Column types by the first batch, except that all numbers may have decimals."""
    with text_of(path) as text:
        schema = _opened_csv(text, path, {}).schema
        _check_schema(schema, columns)
    types: dict[str, Any] = {}
    for name in columns:
        kind = schema.field(name).type
        if pa.types.is_null(kind) or pa.types.is_int64(kind):
            types[name] = pa.float64()
        elif pa.types.is_binary(kind):
            raise not_what_it_says(path, "UTF-8 text")
        else:
            types[name] = kind
    return types


def _opened_csv(
    text: Any,  # an open file of bytes
    path: Path,
    types: dict[str, pa.DataType],
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        text,
        read_options=pa.csv.ReadOptions(block_size=_BYTES_PER_BATCH),
        parse_options=_parse_options(path),
        convert_options=_convert_options((), types),
    )
