# SPDX-License-Identifier: Apache-2.0
"""Queries of single rows: the numeric columns themselves, with conditions as 0/1 coordinates."""

from collections.abc import Sequence

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Conditions, conditions_of
from pufferslice.queries.query import Evaluate, Query, Rows, column_names
from pufferslice.tables import Frame, floats_of


def columns(names: Sequence[str], flags: Conditions | None = None) -> Query:
    """Each row's own numbers, then a 1 or 0 for each condition of `flags` that it meets.

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

    return Query(
        names=coordinates,
        columns=tuple(dict.fromkeys([*numbers, *(column for column, _ in conditions)])),
        level="row",
        kind="columns",
        parameters={
            "columns": numbers,
            "flags": [{"column": column, **test.description()} for column, test in conditions],
        },
        bind=bind,
    )
