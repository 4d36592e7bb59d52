# SPDX-License-Identifier: Apache-2.0
"""Queries that are the user's own functions, of one row or of a table."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import is_a
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, values_of, without_missing
from pufferslice.errors import ArgumentError, PuffersliceError, ScenarioError
from pufferslice.queries.query import Evaluate, Level, Query, Rows, column_names, recorded

Numbers: TypeAlias = float | Sequence[float] | npt.NDArray[Any]
"""Result of a function: one number per coordinate; a single one may be bare."""


@recorded
def row_function(
    function: Callable[[Mapping[str, Any]], Numbers],
    *,
    names: Sequence[str],
    columns: Sequence[str],
    description: str,
) -> Query:
    """Query that calls a function of one row, a dict from column to Python value.

    Needs: its result depends on the row alone. `description` is a public sentence that says what
    the function does; it reaches the certificate.

    >>> import pyarrow as pa
    >>> net = row_function(
    ...     lambda row: row["gain"] - row["loss"],
    ...     names=["net"], columns=["gain", "loss"], description="gain minus loss",
    ... )
    >>> net.outputs(pa.table({"gain": [5, 0], "loss": [0, 2]}))
    array([[ 5.],
           [-2.]])
    """

    def bind(frame: Frame, wanted: Sequence[str], dim: int) -> Evaluate:
        complete, _ = without_missing(frame, wanted, "refuse")
        values = {column: values_of(complete[column], column) for column in wanted}

        def evaluate(rows: Rows) -> Floats:
            outputs = np.empty((len(rows), dim))
            for place, row in enumerate(rows):
                record = {column: values[column][row] for column in wanted}
                outputs[place] = _numbers(called(function, record), dim)
            return outputs

        return evaluate

    return _query("row", names, columns, description, bind)


@recorded
def table_function(
    function: Callable[[Any], Numbers],
    *,
    names: Sequence[str],
    columns: Sequence[str],
    description: str,
) -> Query:
    """A function of a table that has the given columns only, in the library of the user's table.

    Numpy records arrive as a pyarrow Table. Needs: the result depends on the rows alone.
    `description` is a public sentence that says what the function does; it reaches the
    certificate.

    >>> import pyarrow as pa
    >>> query = table_function(
    ...     lambda table: len(table["site"].unique()),
    ...     names=["sites"], columns=["site"], description="number of different sites",
    ... )
    >>> query.outputs(pa.table({"site": ["a", "b", "a"]}))
    array([[2.]])
    """

    def bind(frame: Frame, wanted: Sequence[str], dim: int) -> Evaluate:
        complete, _ = without_missing(frame.select(wanted), wanted, "refuse")
        return lambda rows: _numbers(called(function, complete[rows].to_native()), dim)

    return _query("table", names, columns, description, bind)


def called(function: Callable[..., Any], *args: Any) -> Any:  # the user's own
    """Call the user's function; its error is not shown, because it may quote a record."""
    try:
        return function(*args)
    except (PuffersliceError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever the function can raise
        *_, where = traceback.extract_tb(error.__traceback__)
        raise ScenarioError(
            f"the function raised {type(error).__name__} in line {where.lineno} of "
            f"{where.filename!r}. Its message is not shown, because it may quote the data; call "
            "the function yourself to read it"
        ) from None


def _query(
    level: Level,
    names: Sequence[str],
    columns: Sequence[str],
    description: str,
    bind: Callable[[Frame, Sequence[str], int], Evaluate],
) -> Query:
    coordinates, wanted = column_names("names", names), column_names("columns", columns)
    if not is_a(description, str) or not description.strip():
        raise ArgumentError(
            "description must be a public sentence that says what the function does, "
            f"got {given(description)}"
        )
    return Query(
        names=coordinates,
        columns=wanted,
        level=level,
        kind=f"{level}_function",
        parameters={"description": description},
        bind=lambda frame: bind(frame, wanted, len(coordinates)),
    )


def _numbers(result: Numbers, dim: int) -> Floats:
    """Convert the result of a function to `dim` numbers, which no error shows."""
    try:
        numbers = np.atleast_1d(np.asarray(result, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):
        raise ScenarioError(
            f"the function must return {dim} numbers, got {type(result).__name__}"
        ) from None
    if numbers.shape != (dim,):
        got = len(numbers) if numbers.ndim == 1 else f"an array of shape {numbers.shape}"
        raise ScenarioError(f"the function must return {dim} numbers, one per name, got {got}")
    return numbers
