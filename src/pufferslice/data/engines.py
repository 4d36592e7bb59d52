# SPDX-License-Identifier: Apache-2.0
"""Tables that an engine holds: asked for a few aggregates, and never read into memory.

An engine is whatever narwhals reads lazily: Polars, DuckDB, Ibis, PySpark, Dask, SQLFrame. Only
the rows of a group-by come back. No message shows a value of a table.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import narwhals as nw
import pyarrow as pa

from pufferslice._core.text import quoted
from pufferslice.data.frames import check_names
from pufferslice.errors import PuffersliceError, TableError

Lazy: TypeAlias = nw.LazyFrame[Any]
"""A table of an engine, seen through narwhals."""

Schema: TypeAlias = Mapping[str, nw.dtypes.DType]
"""Types of columns, by name."""

IN_MEMORY: Final = "Or read the columns into memory, as a pandas, polars or pyarrow table"

_STREAMED: Final[Mapping[nw.Implementation, Mapping[str, str]]] = {
    nw.Implementation.POLARS: {"engine": "streaming"}
}
"""Arguments of `collect` without which an engine would hold the whole table."""


def lazy_of(table: object) -> Lazy | None:
    """The table as a lazy frame, if an engine holds it; None for anything else.

    A reader of batches is refused: it can be read once, and the noise and the release each take a
    look of their own.

    >>> import polars as pl
    >>> lazy_of(pl.LazyFrame({"age": [30, 40]})).collect_schema().names()
    ['age']
    """
    if isinstance(table, pa.RecordBatchReader):
        raise TableError(
            "a RecordBatchReader can be read only once, and its rows are read more often; give a "
            "pyarrow Dataset, or the Table of reader.read_all()"
        )
    frame = nw.from_native(table, pass_through=True)
    return frame if isinstance(frame, nw.LazyFrame) else None


def schema_of(lazy: Lazy) -> Schema:
    """The columns of a table of an engine, with their types."""
    with asked(lazy):
        schema = dict(lazy.collect_schema())
    check_names(list(schema))
    return schema


def engine_of(lazy: Lazy) -> str:
    """Name of the engine, for messages."""
    return str(lazy.implementation.value)


def n_rows_of(lazy: Lazy) -> int:
    """Count the rows; an empty table is refused."""
    n_rows = int(collected(lazy.select(nw.len().alias("n")))["n"][0])
    if not n_rows:
        raise empty_table()
    return n_rows


def empty_table() -> TableError:
    """The error for a table without rows."""
    return TableError("the table is empty: it has no rows; it needs at least one")


def collected(aggregates: Lazy) -> dict[str, list[Any]]:
    """Compute aggregates, of which there are few rows, as lists by column."""
    options: Mapping[str, Any] = _STREAMED.get(aggregates.implementation, {})
    with asked(aggregates):
        table = aggregates.collect(**options).to_arrow()
    return {name: table[name].to_pylist() for name in table.column_names}


@contextlib.contextmanager
def asked(lazy: Lazy) -> Iterator[None]:
    """Refuse what the engine cannot compute, with its name.

    Its own message is not shown: it may quote what it read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # engines warn of the shape of a query, and of versions
            yield
    except PuffersliceError:
        raise
    except Exception as error:  # noqa: BLE001 - each engine has errors of its own
        raise TableError(
            f"{engine_of(lazy)} failed ({type(error).__name__}) in a query on the columns of the "
            "table. Convert columns of unusual types there to numbers, texts, dates or times. "
            f"{IN_MEMORY}"
        ) from None


def refused_type(lazy: Lazy, column: str, dtype: nw.dtypes.DType, wanted: str) -> TableError:
    """The error for a column whose type does not fit; it is named without its categories."""
    return TableError(
        f"column {quoted(column)} must hold {wanted}, but its type in {engine_of(lazy)} is "
        f"{type(dtype).__name__}. Convert it there, or choose another column"
    )
