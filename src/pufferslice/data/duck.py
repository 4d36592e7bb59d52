# SPDX-License-Identifier: Apache-2.0
"""Large files of this machine as tables of DuckDB, where the extra `engines` is installed."""

from collections.abc import Sequence
from typing import Any, Final

import narwhals as nw
import pyarrow as pa

from pufferslice.data.engines import Lazy, asked, lazy_of, schema_of
from pufferslice.data.readers import SEPARATORS, FileTable
from pufferslice.errors import TableError

_OFFLINE: Final = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Settings under which DuckDB fetches nothing."""


def duck_of(table: FileTable, columns: Sequence[str]) -> Lazy | None:
    """Columns of files as a table of DuckDB, which reads no other files.

    None without DuckDB, and of files that it does not read here: those of stores, and packed text,
    of which the unpacked size is checked while it is read in batches.
    """
    if table.is_packed or any(file.scheme for file in table.files):
        return None
    try:
        import duckdb  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    paths = [file.path for file in table.files]
    table.schema()  # refuses damaged files, and different columns, in our own words
    connection = duckdb.connect(config=dict(_OFFLINE))
    connection.execute("SET allowed_paths = $paths", {"paths": paths})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    if table.is_parquet:
        return _parquet(connection, table, paths, columns)
    return _csv(connection, table, columns)


def _parquet(
    connection: Any, table: FileTable, paths: Sequence[str], columns: Sequence[str]
) -> Lazy:
    lazy = _wrapped(connection.read_parquet(list(paths)))
    if not table.null_values:
        return lazy
    schema, nulls = schema_of(lazy), list(table.null_values)
    texts = [name for name in columns if isinstance(schema.get(name), nw.String)]
    return lazy.with_columns(
        nw.when(~nw.col(name).is_in(nulls)).then(nw.col(name)).alias(name) for name in texts
    )


def _csv(connection: Any, table: FileTable, columns: Sequence[str]) -> Lazy:
    """Read with the types that batches have; columns that are not read are texts."""
    types = table.csv_types([name for name in table.columns if name in columns])
    relation = connection.read_csv(
        table.files[0].path,
        header=True,
        auto_detect=False,
        delimiter=SEPARATORS[table.suffix],
        quotechar='"',
        escapechar='"',
        na_values=["", *table.null_values],
        columns={name: _type_of(name, types.get(name)) for name in table.columns},
    )
    return _wrapped(relation)


def _wrapped(relation: object) -> Lazy:
    lazy = lazy_of(relation)
    if lazy is None:
        raise TableError("this version of DuckDB gives no tables; install another one")
    with asked(lazy):
        lazy.collect_schema()
    return lazy


def _type_of(name: str, kind: pa.DataType | None) -> str:
    """The type of DuckDB for a column of a CSV file."""
    if kind is None or pa.types.is_string(kind):
        return "VARCHAR"
    if pa.types.is_float64(kind):
        return "DOUBLE"
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_date(kind):
        return "DATE"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMP WITH TIME ZONE"
    if pa.types.is_time(kind):
        return "TIME"
    raise TableError(
        f"column {name!r} of a CSV file has a type that is not known; write it as text"
    )
