# SPDX-License-Identifier: Apache-2.0
"""Queries of single rows: the numeric columns themselves, with conditions as 0/1 coordinates."""

from collections.abc import Sequence

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Conditions, conditions_of
from pufferslice.queries.query import (
    Coordinate,
    Evaluate,
    Query,
    RangeLike,
    Rows,
    ScalesLike,
    column_names,
)
from pufferslice.tables import Frame, floats_of


def columns(
    names: Sequence[str],
    flags: Conditions | None = None,
    *,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
) -> Query:
    """Each row's own numbers, then a 1 or 0 for each condition of `flags` that it meets.

    `range` and `scales`: as for `Query.with_range` and `Query.with_scales`.

    >>> import pyarrow as pa
    >>> query = columns(["age"], flags={"income": ">50K"})
    >>> query.names
    ('age', 'income = >50K')
    >>> query.outputs(pa.table({"age": [20, 40], "income": ["<=50K", ">50K"]}))
    array([[20.,  0.],
           [40.,  1.]])
    """
    numbers = column_names("names", names)
    conditions = conditions_of("flags", flags)
    coordinates = (*numbers, *(condition.on(column) for column, condition in conditions))
    if not coordinates:
        msg = "columns must have at least one name or flag"
        raise ArgumentError(msg)

    def bind(frame: Frame) -> Evaluate:
        parts = [floats_of(frame, column) for column in numbers]
        parts += [condition.flags(frame, column).astype(float) for column, condition in conditions]
        matrix: Floats = np.column_stack(parts)

        def evaluate(rows: Rows) -> Floats:
            return matrix[rows]

        return evaluate

    query = Query(
        names=coordinates,
        columns=tuple(dict.fromkeys([*numbers, *(column for column, _ in conditions)])),
        level="row",
        kind="columns",
        parameters={
            "columns": numbers,
            "flags": [{"column": column, **test.description()} for column, test in conditions],
        },
        bind=bind,
        coordinates=(
            *(Coordinate(column=column) for column in numbers),
            *(
                Coordinate(column=column, condition=condition, low=0.0, high=1.0)
                for column, condition in conditions
            ),
        ),
    )
    query = query if range is None else query.with_range(range)
    return query if scales is None else query.with_scales(scales)
