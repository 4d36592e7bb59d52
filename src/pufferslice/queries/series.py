# SPDX-License-Identifier: Apache-2.0
"""Statistics of rows in the order of time."""

from collections.abc import Sequence

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count, is_a
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, floats_of, order_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.query import Coordinate, Evaluate, Query, Rows, column_names


def autocorrelation(column: str, *, time: str, lags: Sequence[int]) -> Query:
    r"""How much the numbers of a column resemble those some rows earlier, in the order of time.

    $$r_k = \frac{\sum_t (x_t - \bar x)(x_{t+k} - \bar x)}{\sum_t (x_t - \bar x)^2}$$

    `lags` count rows, so the steps between rows should be equal. Of fewer rows than the lag, and
    of a constant column, it is 0.

    >>> import pyarrow as pa
    >>> query = autocorrelation("kwh", time="hour", lags=[1, 2])
    >>> query.names
    ('autocorrelation(kwh, 1)', 'autocorrelation(kwh, 2)')
    >>> query.outputs(pa.table({"hour": [2, 1, 4, 3], "kwh": [1.0, 0.0, 1.0, 0.0]}))
    array([[-0.75,  0.5 ]])
    """
    (name,), (order,) = column_names("column", [column]), column_names("time", [time])
    if is_a(lags, str) or not is_a(lags, Sequence) or not lags:
        msg = f"lags must be at least one integer of at least 1, as a list; got {given(lags)}"
        raise ArgumentError(msg)
    for lag in lags:
        check_count(1, lags=lag)

    def bind(frame: Frame) -> Evaluate:
        values, places = floats_of(frame, name), order_of(frame, order)

        def evaluate(rows: Rows) -> Floats:
            # Rows of the same time in the order of their numbers, not of the table.
            drawn = values[rows][np.lexsort((values[rows], places[rows]))]
            apart = drawn - drawn.mean()
            total = float(apart @ apart)
            if not total > 0:
                return np.zeros(len(lags))
            return np.array([apart[:-lag] @ apart[lag:] / total for lag in lags])

        return evaluate

    return Query(
        names=tuple(f"autocorrelation({name}, {lag})" for lag in lags),
        columns=(name, order),
        level="table",
        kind="autocorrelation",
        parameters={"column": name, "time": order, "lags": [int(lag) for lag in lags]},
        bind=bind,
        coordinates=(Coordinate(column=name, low=-1.0, high=1.0),) * len(lags),
    )
