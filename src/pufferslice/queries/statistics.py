# SPDX-License-Identifier: Apache-2.0
"""Statistics of the columns of a table, and the columns of single rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, floats_of, label_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Conditions, conditions_of, pairs_of
from pufferslice.queries.query import (
    Coordinate,
    Evaluate,
    Query,
    RangeLike,
    Rows,
    ScalesLike,
    column_names,
)


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


Quantiles: TypeAlias = (
    Mapping[str, float | Sequence[float]] | Sequence[tuple[str, float | Sequence[float]]]
)
"""Quantile levels by column, one number or several; as pairs if a column occurs more than once."""

_ADDITIVE: Final = ("total", "count")
_PER_ROW: Final[Mapping[str, Literal["mean", "total"]]] = {
    "mean": "mean",
    "rate": "mean",
    "total": "total",
    "count": "total",
}

_Compute: TypeAlias = Callable[[npt.NDArray[Any]], Any]


class Statistics(TypedDict, total=False):
    """The statistics that `summary` takes."""

    mean: Sequence[str]
    std: Sequence[str]
    rate: Conditions | None
    quantile: Quantiles | None
    count_share: int | None
    total: Sequence[str]
    count: Conditions | None


STATISTICS: Final = tuple(Statistics.__annotations__)


def summary(
    *,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
    **statistics: Unpack[Statistics],
) -> Query:
    """Statistics of the rows together, in the order in which they are written.

    `mean` and `std`: columns of numbers; the standard deviation divides by the number of rows.
    `rate`: the share of rows that meet a condition on a column (a plain value means `equals`).
    `quantile`: one or several levels between 0 and 1 per column, with linear interpolation.
    `count_share`: the number of rows divided by this public total. `total`: sums of columns.
    `count`: the number of rows that meet a condition on a column.
    `range` and `scales`: as for `Query.with_range` and `Query.with_scales`.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": [20, 40], "income": ["<=50K", ">50K"]})
    >>> query = summary(rate={"income": ">50K"}, mean=["age"], quantile={"age": 0.5})
    >>> query.names
    ('rate(income = >50K)', 'mean(age)', 'quantile(age, 0.5)')
    >>> query.outputs(table)
    array([[ 0.5, 30. , 30. ]])
    """
    check_statistics(statistics)
    chosen = [part for kind, value in statistics.items() for part in _statistics_of(kind, value)]
    if not chosen:
        msg = f"summary must have at least one of {', '.join(STATISTICS)}"
        raise ArgumentError(msg)
    query = Query(
        names=tuple(part.name for part in chosen),
        columns=tuple(dict.fromkeys(column for part in chosen if (column := part.column))),
        level="table",
        kind="summary",
        parameters={
            kind: _parameter(kind, chosen)
            for kind in STATISTICS
            if kind not in _ADDITIVE or kind in statistics
        },
        bind=lambda frame: _bound(chosen, frame),
        coordinates=tuple(part.coordinate for part in chosen),
    )
    query = query if range is None else query.with_range(range)
    return query if scales is None else query.with_scales(scales)


def check_statistics(names: Mapping[str, object] | Sequence[str]) -> None:
    """Every name is a statistic; others get a hint at what to use."""
    for name in names:
        if name not in STATISTICS:
            hint = 'quantile={"age": 0.5}' if name == "median" else "table_function(...)"
            what = "a median" if name == "median" else "anything else"
            msg = (
                f"summary has no statistic {name!r}; it has {', '.join(STATISTICS)}. For {what} "
                f"use {hint}"
            )
            raise ArgumentError(msg)


@attrs.frozen(kw_only=True)
class _Statistic:
    """One coordinate of a summary."""

    kind: str
    name: str
    parameter: Any
    coordinate: Coordinate
    compute: _Compute
    """From the values of the column, the flags of the condition, or the rows, to one number."""

    @property
    def column(self) -> str | None:
        return self.coordinate.column


def _statistics_of(kind: str, value: Any) -> list[_Statistic]:  # noqa: ANN401 - one of several types
    if value is None:
        return []
    if kind in ("mean", "std", "total"):
        low = 0.0 if kind == "std" else -math.inf
        computes: dict[str, _Compute] = {"mean": np.mean, "std": np.std, "total": np.sum}
        return [
            _Statistic(
                kind=kind,
                name=f"{kind}({column})",
                parameter=column,
                coordinate=Coordinate(column=column, low=low, per_row=_PER_ROW.get(kind)),
                compute=computes[kind],
            )
            for column in column_names(kind, value)
        ]
    if kind in ("rate", "count"):
        is_rate = kind == "rate"
        return [
            _Statistic(
                kind=kind,
                name=f"{kind}({condition.on(column)})",
                parameter={"column": column, **condition.description()},
                coordinate=Coordinate(
                    column=column,
                    condition=condition,
                    low=0.0,
                    high=1.0 if is_rate else math.inf,
                    per_row=_PER_ROW[kind],
                ),
                compute=(lambda met: np.count_nonzero(met) / len(met))
                if is_rate
                else np.count_nonzero,
            )
            for column, condition in conditions_of(kind, value)
        ]
    if kind == "quantile":
        return [
            _Statistic(
                kind=kind,
                name=f"quantile({column}, {label_of(level)})",
                parameter={"column": column, "level": level},
                coordinate=Coordinate(column=column),
                compute=partial(np.quantile, q=level),
            )
            for column, level in _levels_of(value)
        ]
    check_count(1, count_share=value)
    return [
        _Statistic(
            kind="count_share",
            name=f"count/{value}",
            parameter=int(value),
            # Divided by 1 it is a count.
            coordinate=Coordinate(
                low=0.0,
                high=math.inf if value == 1 else 1.0,
                per_row="total" if value == 1 else None,
            ),
            compute=lambda rows: len(rows) / value,
        )
    ]


def _parameter(kind: str, statistics: Sequence[_Statistic]) -> Any:  # noqa: ANN401 - JSON
    parameters = [part.parameter for part in statistics if part.kind == kind]
    return parameters if kind != "count_share" else next(iter(parameters), None)


def _bound(statistics: Sequence[_Statistic], frame: Frame) -> Evaluate:
    keys = [(part.coordinate.column, part.coordinate.condition) for part in statistics]
    values: dict[object, npt.NDArray[Any]] = {}
    for column, condition in dict.fromkeys(keys):
        if column is not None:
            flags = None if condition is None else condition.flags(frame, column)
            values[column, condition] = floats_of(frame, column) if flags is None else flags

    def evaluate(rows: Rows) -> Floats:
        drawn = {key: column[rows] for key, column in values.items()}
        # The caller counts what is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            results = [
                part.compute(drawn.get(key, rows))
                for part, key in zip(statistics, keys, strict=True)
            ]
        return np.array(results, dtype=np.float64)

    return evaluate


def _levels_of(quantiles: Quantiles) -> list[tuple[str, float]]:
    pairs = [
        (column, level)
        for column, levels in pairs_of("quantile", quantiles, "level")
        for level in (levels if isinstance(levels, Sequence) else [levels])
    ]
    for column, level in pairs:
        number = isinstance(level, int | float | np.number) and not isinstance(level, bool)
        if not number or not 0 <= level <= 1:
            msg = (
                f"quantile levels must lie between 0 and 1; got {given(level)} for {given(column)}"
            )
            raise ArgumentError(msg)
    return [(column, float(level)) for column, level in pairs]
