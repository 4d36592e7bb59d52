# SPDX-License-Identifier: Apache-2.0
"""Files as tables: CSV, TSV and Parquet, whole or in batches for files larger than memory.

No message shows a row of a file.
"""

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import IO, Any, Final, Literal, TypeAlias, final

import attrs
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from pufferslice._core.text import given, listed
from pufferslice.data.batches import ROWS_PER_BATCH
from pufferslice.data.frames import Frame, check_known, check_names, frame_of
from pufferslice.data.locations import Location, locations_of
from pufferslice.errors import ArgumentError, StorageError, TableError

SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}
_PARQUET_MARK: Final = b"PAR1"
_GZIP_MARK: Final = b"\x1f\x8b"
_FROM_A_SPREADSHEET: Final = (
    "Export a spreadsheet as CSV UTF-8, with commas between cells and decimal points"
)
_BYTES_AT_ONCE: Final = 2**20
_MOST_LOOKS: Final = 2**8
_BYTES_PER_BATCH: Final = 2**24
"""Bytes of text of a CSV file that are in memory at once."""
_BUFFER: Final = 2**20

_MOST_PACKED: Final = 2**26
"""Bytes that a packed file may unpack to, whatever its size."""
_MOST_RATIO: Final = 100
"""More bytes that it may unpack to, for each of its own."""
_MOST_IN_MEMORY: Final = 2**27
"""Most bytes of files that are read into memory where batches would do as well."""
_MOST_VALUES: Final = 2**25
"""Most numbers of a Parquet file that are read into memory where batches would do as well."""

Handler: TypeAlias = Callable[[pa.csv.InvalidRow], Literal["skip"]]
"""Callback for the rows that do not fit the header."""


def read_table(path: str | os.PathLike[str], null_values: Sequence[str] = ()) -> pa.Table:
    """Read a CSV or TSV file (also gzipped), a Parquet file, or a folder or glob of Parquet files.

    An empty cell is missing, and so is every text in `null_values`; nothing else is. Blank lines
    of a CSV file are skipped. Several Parquet files must have the same columns and types and are
    joined in the order of their names. Files may also be in an object store (`s3://`, `gs://`,
    `abfs://`) or behind a web address (`https://`); credentials are those of the environment.
    """
    return FileTable.of(path, null_values).read()


@final
@attrs.frozen
class FileTable:
    """A table in one file or several, which is read whole, or in batches."""

    files: tuple[Location, ...]
    null_values: tuple[str, ...] = ()
    """Texts that stand for a missing value."""
    named: str = attrs.field(default="", eq=False, repr=False)
    """The path, as it was given."""

    @classmethod
    def of(cls, path: str | os.PathLike[str], null_values: Sequence[str] = ()) -> "FileTable":
        """Find the files that a path stands for; nothing is read."""
        if isinstance(null_values, str):
            text = given(null_values)
            raise ArgumentError(f"null_values must be a list of texts, got {text}; write [{text}]")
        files = tuple(locations_of(path, suffix_of))
        return cls(files, tuple(null_values), os.fspath(path))

    @property
    def suffix(self) -> str:
        """Suffix of the files: `.csv`, `.tsv` or `.parquet`."""
        return suffix_of(PurePath(self.files[0].path))

    @property
    def is_parquet(self) -> bool:
        """Whether the files are Parquet files."""
        return self.suffix == ".parquet"

    @property
    def is_packed(self) -> bool:
        """Whether the file is packed as a whole."""
        return self.files[0].path.lower().endswith(".gz")

    @property
    def columns(self) -> list[str]:
        """Names of the columns; files with different columns are refused."""
        names: list[str] = self.schema().names
        check_names(names)
        return names

    def schema(self) -> pa.Schema:
        """Columns and types; those of a CSV file are by its beginning."""
        if not self.is_parquet:
            with text_of(self.files[0]) as text:
                return _opened_csv(text, self, {}).schema
        schemas = []
        for file in self.files:
            with opened_parquet(file) as parquet:
                schemas.append(parquet.schema_arrow)
            _check_same_fields(file, schemas[-1], self.files[0], schemas[0])
        return schemas[0]

    def is_small(self, n_columns: int) -> bool:
        """Whether so many columns fit into memory easily."""
        if self.is_packed:
            return self.files[0].size * _MOST_RATIO <= _MOST_IN_MEMORY * 8
        if not self.is_parquet:
            return self.files[0].size <= _MOST_IN_MEMORY
        n_bytes = n_rows = 0
        for file in self.files:
            with opened_parquet(file) as parquet:
                n_bytes += _unpacked(parquet)
                n_rows += parquet.metadata.num_rows
        return n_bytes <= _MOST_IN_MEMORY and n_rows * max(1, n_columns) <= _MOST_VALUES

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the table, or some of its columns, into memory."""
        if columns is not None:
            check_known(self.columns, columns)
        if self.is_parquet:
            tables: list[pa.Table] = []
            for file in self.files:
                with opened_parquet(file) as parquet:
                    tables.append(parquet.read(columns=None if columns is None else [*columns]))
                _check_same_fields(file, tables[-1].schema, self.files[0], tables[0].schema)
            table = self._with_nulls(pa.concat_tables(tables))
        else:
            table = _read_csv(self, columns)
        check_names(table.column_names)
        if not table.num_rows or not table.num_columns:
            raise TableError(
                f"{str(self.files[0])!r} is empty: {table.num_rows} rows, {table.num_columns} "
                "columns; it needs at least one each"
            )
        return table

    def frames(self, columns: Sequence[str]) -> Iterator[Frame]:
        """Read columns of the rows, at least one of them."""
        for table in self._batches(columns):
            if table.num_rows:
                yield frame_of(self._with_nulls(table))

    def n_rows(self) -> int:
        """Count the rows."""
        if not self.is_parquet:
            return sum(table.num_rows for table in self._batches(self.columns[:1]))
        total = 0
        for file in self.files:
            with opened_parquet(file) as parquet:
                total += parquet.metadata.num_rows
        return total

    def csv_types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        """Types of columns by the first batch, except that all numbers may have decimals."""
        schema = self.schema()
        check_known(schema.names, columns)
        types: dict[str, Any] = {}
        for name in columns:
            kind = schema.field(name).type
            if pa.types.is_null(kind) or pa.types.is_int64(kind):
                types[name] = pa.float64()
            elif pa.types.is_binary(kind):
                raise not_what_it_says(self.files[0], "UTF-8 text")
            else:
                types[name] = kind
        return types

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        if not self.is_parquet:
            yield from self._csv_batches(columns)
            return
        for file in self.files:
            with opened_parquet(file, _BUFFER) as parquet:
                for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=[*columns]):
                    yield pa.Table.from_batches([batch])

    def _csv_batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        try:
            types = self.csv_types(columns)
            with text_of(self.files[0]) as text:
                for batch in _opened_csv(text, self, types):
                    yield pa.Table.from_batches([batch])
        except pa.ArrowException:
            # Not chained: the cause may quote a row.
            raise TableError(
                f"{str(self.files[0])!r} cannot be read to its end with cells separated by "
                f"{SEPARATORS[self.suffix]!r}: a column changes its type, or a row has another "
                "number of cells than the header. Correct it, or convert it to Parquet"
            ) from None

    def _with_nulls(self, table: pa.Table) -> pa.Table:
        """Replace the texts that stand for a missing value by nulls."""
        if not (self.null_values and self.is_parquet):  # those of a CSV file are gone already
            return table
        for index, field in enumerate(table.schema):
            column = table.column(index)
            if isinstance(field.type, pa.DictionaryType):
                column = column.cast(field.type.value_type)
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                nulls = pa.array(self.null_values, type=column.type)
                named = pa.compute.is_in(column, value_set=nulls)
                nulled = pa.compute.if_else(named, pa.scalar(None, type=column.type), column)
                table = table.set_column(index, field.name, nulled)
        return table


def suffix_of(path: PurePath) -> str:
    """Suffix of a file: `.csv`, `.tsv` or `.parquet`; any other is refused."""
    name = PurePath(str(path).lower())
    stem = name.with_suffix("") if name.suffix == ".gz" else name
    suffix = stem.suffix
    if suffix in SEPARATORS or (suffix == ".parquet" and stem is name):
        return suffix
    raise TableError(
        f"{path.name!r} must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet, or be a folder or "
        f"glob of Parquet files. {_FROM_A_SPREADSHEET}"
    )


def same_files(first: str | os.PathLike[str], others: Sequence[str | os.PathLike[str]]) -> bool:
    """Return whether a path names a file that others name as well, as far as these are found."""
    found = {location.identity for location in locations_of(first, suffix_of)}
    released: set[object] = set()
    for other in others:
        with contextlib.suppress(TableError, StorageError):
            released |= {location.identity for location in locations_of(other, suffix_of)}
    return bool(found & released)


def _check_same_fields(
    file: Location, schema: pa.Schema, first_file: Location, first_schema: pa.Schema
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
def opened_parquet(file: Location, buffer_size: int = 0) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file for reading; anything else, and a damaged one, is refused."""
    with opened(file) as content:
        head = content.read(4)
        size = content.seek(0, os.SEEK_END)
        content.seek(size - min(4, len(head)))
        tail = content.read(4)
        if head != _PARQUET_MARK:
            raise not_what_it_says(file, "Parquet", head)
        if tail != _PARQUET_MARK:
            raise TableError(
                f"{str(file)!r} is truncated: a Parquet file ends in PAR1. Copy it again"
            )
        content.seek(0)
        source: Any = content if file.scheme else file.path
        try:
            with pa.parquet.ParquetFile(
                source, buffer_size=buffer_size, pre_buffer=False
            ) as parquet:
                check_unpacked(file, _unpacked(parquet), size)
                yield parquet
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            kind = type(error).__name__
            raise TableError(
                f"{str(file)!r} is a damaged Parquet file ({kind}). Copy it again"
            ) from None  # the cause may quote what was read


def _unpacked(parquet: pa.parquet.ParquetFile) -> int:
    """Number of bytes of all pages, unpacked."""
    groups = range(parquet.num_row_groups)
    return sum(parquet.metadata.row_group(group).total_byte_size for group in groups)


def check_unpacked(file: Location, n_bytes: int, size: int) -> None:
    """Refuse a file that unpacks to much more than its own size."""
    if n_bytes > _MOST_PACKED + _MOST_RATIO * size:
        raise TableError(
            f"{str(file)!r} unpacks to more than {_MOST_RATIO} times its {size:,} bytes, as files "
            "do that are made to fill a memory; if it is a table, write it with less compression"
        )


def _read_csv(table: FileTable, columns: Sequence[str] | None) -> pa.Table:
    found = None
    with contextlib.suppress(pa.ArrowException):
        found = _parse_csv(table, columns, None)
    if found is None:
        # Raised here, because an error of pyarrow in its context may quote a row.
        raise _why_unreadable(table, columns)
    if any(pa.types.is_binary(kind) for kind in found.schema.types):
        raise not_what_it_says(table.files[0], "UTF-8 text")
    return found


def _why_unreadable(table: FileTable, columns: Sequence[str] | None) -> TableError:
    """Reason why a CSV file cannot be read, without any of its text."""
    file = table.files[0]
    # First, because pyarrow cannot hand over a row that is not UTF-8.
    if not _is_text(file):
        return not_what_it_says(file, "UTF-8 text")
    ragged: list[pa.csv.InvalidRow] = []

    def keep_out(row: pa.csv.InvalidRow) -> Literal["skip"]:
        ragged.append(row)
        return "skip"

    with contextlib.suppress(pa.ArrowException):
        _parse_csv(table, columns, keep_out)
    if not ragged:
        return TableError(
            f"{str(file)!r} holds no rows that can be read, with cells separated by "
            f"{SEPARATORS[table.suffix]!r}"
        )
    row = ragged[0]
    return TableError(
        f"{str(file)!r} has {len(ragged)} rows with another number of cells than its header; "
        f"the first is row {row.number}, with {row.actual_columns} cells where the header has "
        f"{row.expected_columns}. Correct the file"
    )


def _parse_csv(
    table: FileTable, columns: Sequence[str] | None, handler: Handler | None
) -> pa.Table:
    """Parse a table; rows that do not fit its header go to the handler, or are an error."""
    options = _convert_options(table.null_values)
    if columns is not None:
        options.include_columns = list(columns)
    with text_of(table.files[0]) as file:
        found = pa.csv.read_csv(
            file,
            # Rows are numbered only when one thread reads them.
            read_options=pa.csv.ReadOptions(use_threads=handler is None),
            parse_options=_parse_options(table, handler),
            convert_options=options,
        )
        found.column_names  # noqa: B018 - decodes the header, which may not be UTF-8
        return found


def _parse_options(table: FileTable, handler: Handler | None = None) -> pa.csv.ParseOptions:
    return pa.csv.ParseOptions(
        delimiter=SEPARATORS[table.suffix], newlines_in_values=True, invalid_row_handler=handler
    )


def _convert_options(
    null_values: Sequence[str], types: Mapping[str, pa.DataType] | None = None
) -> pa.csv.ConvertOptions:
    """Options that read only the columns with a type, if there are any."""
    return pa.csv.ConvertOptions(
        null_values=["", *null_values],
        strings_can_be_null=True,
        include_columns=list(types or ()) or None,
        column_types=dict(types) if types else None,
    )


def _opened_csv(
    text: Any,  # an open file of bytes
    table: FileTable,
    types: Mapping[str, pa.DataType],
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        text,
        read_options=pa.csv.ReadOptions(block_size=_BYTES_PER_BATCH),
        parse_options=_parse_options(table),
        convert_options=_convert_options(table.null_values, types),
    )


def _is_text(file: Location) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with text_of(file) as text:
            for _ in range(_MOST_LOOKS):
                part = text.read(_BYTES_AT_ONCE)
                decoder.decode(part, final=not part)
                if not part:
                    break
    except TableError:
        return False
    return True


@contextlib.contextmanager
def text_of(file: Location) -> Iterator[IO[bytes]]:
    """Open a file, unpacked if its name says gzip; refuse it if the name is wrong.

    Bytes that are not UTF-8, and damaged gzip, are a `TableError` wherever they are read.
    """
    zipped = file.path.lower().endswith(".gz")
    try:
        with opened(file) as content:
            head = content.read(4)
            size = content.seek(0, os.SEEK_END)
            content.seek(0)
            if zipped and not head.startswith(_GZIP_MARK):
                raise not_what_it_says(file, "gzip", head)
            with _unzipped(content, file, size) if zipped else content as text:
                start = text.read(4096)
                if start.startswith((_PARQUET_MARK, _GZIP_MARK)) or b"\0" in start:
                    raise not_what_it_says(file, "UTF-8 text", start)
                header = start.partition(b"\n")[0]
                separator = SEPARATORS[suffix_of(PurePath(file.path))]
                if b";" in header and separator.encode() not in header:
                    raise TableError(
                        f"{str(file)!r} separates its cells by ';', expected {separator!r}. "
                        f"{_FROM_A_SPREADSHEET}; or read it with pandas.read_csv(..., sep=';', "
                        "decimal=',') and pass the data frame, or write that with to_csv"
                    )
                text.seek(0)
                yield text
    except UnicodeDecodeError:
        raise not_what_it_says(file, "UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TableError(
            f"{str(file)!r} is a truncated or damaged gzip file. Copy it again"
        ) from None


def _unzipped(packed: IO[bytes], file: Location, size: int) -> IO[bytes]:
    unpacked = gzip.GzipFile(fileobj=packed)
    return io.BufferedReader(_Unpacked(unpacked, file, size), _BUFFER)


@final
class _Unpacked(io.RawIOBase):
    """The content of a packed file, up to so many times the size of that."""

    def __init__(self, packed: gzip.GzipFile, file: Location, size: int) -> None:
        self._packed, self._file, self._size, self._place = packed, file, size, 0

    def readable(self) -> bool:
        """Whether the content can be read."""
        return True

    def seekable(self) -> bool:
        """Whether reading may begin again."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._place = self._packed.seek(offset, whence)
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return how many there are."""
        content = self._packed.read(len(buffer))
        self._place += len(content)
        check_unpacked(self._file, self._place, self._size)
        buffer[: len(content)] = content
        return len(content)


def opened(file: Location) -> IO[bytes]:
    """Open a file for reading; an empty one is refused."""
    content = file.open()
    is_empty = not content.seek(0, os.SEEK_END)
    content.seek(0)
    if is_empty:
        content.close()
        raise TableError(f"{str(file)!r} is an empty file; copy it again")
    return content


def not_what_it_says(file: Location, wanted: str, head: bytes = b"") -> TableError:
    """The error for a file whose first bytes are not what its name says."""
    kinds = {_PARQUET_MARK: "a Parquet file", _GZIP_MARK: "a gzip file"}
    kind = next((kind for mark, kind in kinds.items() if head.startswith(mark)), "something else")
    hint = f". {_FROM_A_SPREADSHEET}" if kind == "something else" and wanted == "UTF-8 text" else ""
    return TableError(
        f"{str(file)!r} is not what its name says: expected {wanted}, found {kind}. Rename it or "
        f"convert it{hint}"
    )
