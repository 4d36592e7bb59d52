# SPDX-License-Identifier: Apache-2.0
"""Statistics of the columns of a table, and the columns of single rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count, check_one_of, is_a
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, floats_of, label_of, order_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import (
    Condition,
    ConditionLike,
    Conditions,
    condition_of,
    conditions_of,
    intervals,
    pairs_of,
)
from pufferslice.queries.derived import Derived, correlation_of, std_of
from pufferslice.queries.features import (
    Feature,
    RowFeatures,
    clip_from_table,
    clip_of,
    missing_of,
    named_feature,
)
from pufferslice.queries.partition import Flags, partitions
from pufferslice.queries.query import (
    Coordinate,
    Evaluate,
    Query,
    RangeLike,
    RowMeans,
    Rows,
    ScalesLike,
    column_names,
    recorded,
)
from pufferslice.queries.sources import Cell, Clip, Ends, Missing, Source


@recorded
def columns(
    names: Sequence[str],
    flags: Conditions | None = None,
    *,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
) -> Query:
    """Query of each row's own numbers, then 1 or 0 for each condition of `flags` that it meets.

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
        raise ArgumentError("columns must have at least one name or flag")

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
    return _with_public(query, range, scales)


Quantiles: TypeAlias = (
    Mapping[str, float | Sequence[float]] | Sequence[tuple[str, float | Sequence[float]]]
)
"""Quantile levels by column, one number or several; as pairs if a column occurs more than once."""

ColumnPairs: TypeAlias = Sequence[tuple[str, str]]
"""Pairs of columns, for covariances and correlations."""

By: TypeAlias = Mapping[str, Sequence[ConditionLike]]
"""Groups of rows: the conditions on each column, or plain values that mean `equals`."""

Edges: TypeAlias = Mapping[str, Sequence[float]]
"""Public edges of a histogram by column, from which quantiles are computed."""

Levels: TypeAlias = tuple[tuple[str, str], ...]
"""Columns and labels of them."""

_ALWAYS_STATED: Final = ("mean", "std", "rate", "quantile", "count_share")
"""Statistics that a description lists even where there are none."""


class Statistics(TypedDict, total=False):
    """The statistics that `summary` takes."""

    mean: Sequence[str]
    std: Sequence[str]
    rate: Conditions | None
    quantile: Quantiles | None
    count_share: int | None
    total: Sequence[str]
    count: Conditions | None
    median: Sequence[str]
    covariance: ColumnPairs | None
    correlation: ColumnPairs | None


STATISTICS: Final = tuple(Statistics.__annotations__)


@recorded
def summary(
    *,
    clip: Clip | None = None,
    clip_from: object = None,
    missing: Missing | None = None,
    edges: Edges | None = None,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
    **statistics: Unpack[Statistics],
) -> Query:
    """Statistics of the rows together, in the order in which they are written.

    `mean` and `std`: columns of numbers; the standard deviation divides by the number of rows.
    `rate`: the share of rows that meet a condition on a column (a plain value means `equals`).
    `quantile`: one or several levels between 0 and 1 per column, with linear interpolation.
    `count_share`: the number of rows divided by this public total. `total`: sums of columns.
    `count`: the number of rows that meet a condition on a column. `median`: columns.
    `covariance` and `correlation`: pairs of columns; a correlation with a constant is 0.
    `clip`: public (low, high) by column, into which every row's value is moved first; `clip_from`:
    an earlier or public table, whose ends, rounded outwards to two digits, clip the other columns.
    `range` and `scales`: as for `Query.with_range` and `Query.with_scales`.

    A release of sums over rows (`Scenario.from_prevalence` and others) publishes the sums that the
    statistics need, and computes the statistics from them after noise. Quantiles then need `edges`:
    the public edges of a histogram by column, outside of which no row counts. A missing or infinite
    value counts as `missing`, a public value by column: by default the middle of the clip range,
    and a condition on it is not met.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": [20, 40], "income": ["<=50K", ">50K"]})
    >>> query = summary(rate={"income": ">50K"}, mean=["age"], median=["age"])
    >>> query.names
    ('rate(income = >50K)', 'mean(age)', 'median(age)')
    >>> query.outputs(table)
    array([[ 0.5, 30. , 30. ]])
    """
    chosen = _chosen(statistics)
    parameters = _stated(chosen, statistics)
    rules = _Rules.of(chosen, clip, clip_from, missing, edges)
    return _with_public(_query("summary", chosen, parameters, rules), range, scales)


@recorded
def group_by(
    by: By,
    *,
    clip: Clip | None = None,
    clip_from: object = None,
    missing: Missing | None = None,
    edges: Edges | None = None,
    allow_empty: bool = False,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
    **statistics: Unpack[Statistics],
) -> Query:
    """The statistics of `summary` for every group of rows, all statistics of a group together.

    `by` gives the groups of each column, which are public: plain values, or conditions such as
    `intervals([17, 30, 45])`, `hours()`, `weekdays()` and `months(first, last)` (also `days`,
    `weeks`, `quarters`, `years`); of several columns every combination. Groups may overlap and
    leave rows out. Statistics of a group without rows are 0. A value that no row of its tables has
    is refused by a scenario, unless `allow_empty`,
    which is for code lists. `clip`, `clip_from`, `missing` and `edges`: as for `summary`; the mean
    of a group is computed from its total, less the middle of the clip range, and its count.

    >>> import pyarrow as pa
    >>> table = pa.table({"sex": ["F", "M", "F"], "pay": [10, 20, 40]})
    >>> query = group_by({"sex": ["F", "M"]}, mean=["pay"])
    >>> query.names
    ('mean(pay | sex = F)', 'mean(pay | sex = M)')
    >>> query.outputs(table)
    array([[25., 20.]])
    """
    chosen = _chosen(statistics)
    cells = _cells(by)
    parts = [attrs.evolve(part, cell=cell) for cell in cells for part in chosen]
    parameters = {"by": _cells_stated(cells), **_stated(chosen, statistics)}
    levels = () if allow_empty else _levels(cells)
    rules = _Rules.of(parts, clip, clip_from, missing, edges)
    return _with_public(_query("group_by", parts, parameters, rules, levels), range, scales)


@recorded
def contingency_table(
    by: By,
    *,
    statistic: Literal["count", "rate"] = "count",
    missing: Missing | None = None,
    allow_empty: bool = False,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
) -> Query:
    """Number (`count`), or share (`rate`), of the rows that are in each group of `by`.

    Groups, `missing` and `allow_empty` are as for `group_by`: of several columns every combination.

    >>> import pyarrow as pa
    >>> table = pa.table({"sex": ["F", "M", "F"], "ill": ["no", "no", "yes"]})
    >>> query = contingency_table({"sex": ["F", "M"], "ill": ["no", "yes"]})
    >>> query.names[1]
    'count(sex = F, ill = yes)'
    >>> query.outputs(table)
    array([[1., 1., 1., 0.]])
    """
    cells = _cells(by)
    levels = () if allow_empty else _levels(cells)
    query = _contingency("contingency_table", cells, statistic, missing, levels)
    return _with_public(query, range, scales)


@recorded
def histogram(
    column: str,
    edges: Sequence[float],
    *,
    statistic: Literal["count", "rate"],
    missing: Missing | None = None,
    range: RangeLike | None = None,  # noqa: A002 - the word users know
    scales: ScalesLike | None = None,
) -> Query:
    """Number, or share, of the rows that have a number between two public edges.

    An interval has its low end, not its high one. Rows outside the edges are not counted.
    `missing`: as for `summary`.

    >>> import pyarrow as pa
    >>> query = histogram("age", [0, 30, 60], statistic="rate")
    >>> query.names
    ('rate(0 <= age < 30)', 'rate(30 <= age < 60)')
    >>> query.outputs(pa.table({"age": [30, 29, 61, 45]}))
    array([[0.25, 0.5 ]])
    """
    cells = _cells({column: intervals(edges)})
    return _with_public(_contingency("histogram", cells, statistic, missing), range, scales)


@recorded
def autocorrelation(column: str, *, time: str, lags: Sequence[int]) -> Query:
    r"""Correlation of the numbers of a column with those some rows earlier, in order of time.

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
        raise ArgumentError(
            f"lags must be at least one integer of at least 1, as a list; got {given(lags)}"
        )
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


def check_statistics(names: Mapping[str, object] | Sequence[str]) -> None:
    """Check that every name is a statistic; others get a hint at what to use."""
    for name in names:
        if name not in STATISTICS:
            raise ArgumentError(
                f"summary has no statistic {name!r}; it has {', '.join(STATISTICS)}. For anything "
                "else use table_function(...)"
            )


@attrs.frozen(kw_only=True)
class _Statistic:
    """One coordinate of a summary."""

    kind: str
    about: str
    """Subject of the statistic, as it stands in its name."""
    parameter: Any
    inputs: tuple[str | Cell, ...]
    """Inputs of the statistic: numbers of columns, or which rows are in a cell."""
    formula: "_Formula"
    column: str | None = None
    condition: Condition | None = None
    """Condition on the column, which some rows must meet and others not."""
    cell: Cell = ()
    """Cell of rows that the statistic is about."""

    @property
    def name(self) -> str:
        words = " | ".join(filter(None, (self.about, _words(self.cell))))
        return words if self.kind == "count_share" else f"{self.kind}({words})"

    @property
    def coordinate(self) -> Coordinate:
        low, high = self.formula.low, self.formula.high
        # In a cell, a condition may well be met by no row.
        if self.cell and self.condition is not None:
            return Coordinate(low=low, high=high, statistic=self.kind)
        return Coordinate(
            column=self.column,
            condition=self.condition,
            low=low,
            high=high,
            statistic=self.kind,
        )


@attrs.frozen(kw_only=True)
class _Formula:
    """A statistic of numbers, or of 0 and 1, of each row."""

    compute: Callable[..., Any]
    """Function from the inputs, an array each, to one number."""
    terms: Callable[..., list[Floats]] | None = None
    """Function from the inputs to the numbers of each row whose means decide the statistic."""
    of_means: Callable[[npt.NDArray[Any], float], Any] = lambda means, _: means[0]
    """Function from the means of the terms and the number of rows to the statistic."""
    low: float = -math.inf
    high: float = math.inf


def _covariance(x: Floats, y: Floats) -> Any:  # a number
    return np.mean((x - x.mean()) * (y - y.mean()))


def _correlation(x: Floats, y: Floats) -> float:
    spread = float(np.std(x) * np.std(y))
    # Rounding may leave a little more than 1.
    return float(np.clip(_covariance(x, y) / spread, -1, 1)) if spread > 0 else 0.0


def _correlation_of_means(means: npt.NDArray[Any], _: float) -> Any:  # a number
    x, y, xx, xy, yy = means
    return correlation_of(xx - x**2, xy - x * y, yy - y**2)


def _std_of_means(means: npt.NDArray[Any], _: float) -> Any:  # a number
    x, xx = means
    return std_of(xx - x**2)


def _products(*columns: Floats) -> list[Floats]:
    """The columns, centred so that no digits are lost, and all of their products."""
    parts = [column - column.mean() for column in columns]
    return [*parts, *(a * b for i, a in enumerate(parts) for b in parts[i:])]


def _times_rows(means: npt.NDArray[Any], n_rows: float) -> Any:  # a number
    return n_rows * means[0]


def _itself(values: npt.NDArray[Any]) -> list[Floats]:
    return [values.astype(np.float64)]


_FORMULAS: Final = {
    "mean": _Formula(compute=np.mean, terms=_itself),
    "total": _Formula(compute=np.sum, terms=_itself, of_means=_times_rows),
    "rate": _Formula(
        compute=lambda met: np.count_nonzero(met) / len(met),
        terms=_itself,
        low=0.0,
        high=1.0,
    ),
    "count": _Formula(compute=np.count_nonzero, terms=_itself, of_means=_times_rows, low=0.0),
    "median": _Formula(compute=np.median),
    "std": _Formula(
        compute=np.std,
        terms=_products,
        of_means=_std_of_means,
        low=0.0,
    ),
    "covariance": _Formula(
        compute=_covariance,
        terms=_products,
        of_means=lambda means, _: means[3] - means[0] * means[1],
    ),
    "correlation": _Formula(
        compute=_correlation,
        terms=_products,
        of_means=_correlation_of_means,
        low=-1.0,
        high=1.0,
    ),
}


def _chosen(statistics: Statistics) -> list[_Statistic]:
    check_statistics(statistics)
    chosen = [part for kind, value in statistics.items() for part in _statistics_of(kind, value)]
    if not chosen:
        raise ArgumentError(f"summary must have at least one of {', '.join(STATISTICS)}")
    return chosen


def _statistics_of(kind: str, value: Any) -> list[_Statistic]:  # one of several types
    if value is None:
        return []
    if kind == "quantile":
        return [
            _Statistic(
                kind=kind,
                about=f"{column}, {label_of(level)}",
                parameter={"column": column, "level": level},
                inputs=(column,),
                formula=_Formula(compute=partial(np.quantile, q=level)),
                column=column,
            )
            for column, level in quantile_levels(value)
        ]
    if kind == "count_share":
        check_count(1, count_share=value)
        formula = _Formula(
            compute=lambda rows: len(rows) / value,
            terms=_itself,
            of_means=lambda means, n_rows: n_rows * means[0] / value,
            low=0.0,
            # Divided by 1 it is a count.
            high=math.inf if value == 1 else 1.0,
        )
        about, share = f"count/{value}", int(value)
        return [_Statistic(kind=kind, about=about, parameter=share, inputs=((),), formula=formula)]
    statistic = partial(_Statistic, kind=kind, formula=_FORMULAS[kind])
    if kind in ("rate", "count"):
        return [
            statistic(
                about=condition.on(column),
                parameter={"column": column, **condition.description()},
                inputs=(((column, condition),),),
                column=column,
                condition=condition,
            )
            for column, condition in conditions_of(kind, value)
        ]
    if kind in ("covariance", "correlation"):
        return [
            statistic(
                about=f"{first}, {second}",
                parameter=[first, second],
                inputs=column_names(kind, (first, second)),
            )
            for first, second in pairs_of(kind, value, "column")
        ]
    return [
        statistic(about=column, parameter=column, inputs=(column,), column=column)
        for column in column_names(kind, value)
    ]


def _words(cell: Cell) -> str:
    return ", ".join(condition.on(column) for column, condition in cell)


def _cells(by: By) -> list[Cell]:
    if not is_a(by, Mapping) or not by:
        raise ArgumentError(f"by must map columns to the groups of each, got {given(by)}")
    groups = []
    for column, values in by.items():
        if is_a(values, str) or not is_a(values, Sequence) or not values:
            raise ArgumentError(f"by must give at least one group of {given(column)}, as a list")
        groups.append([(column, condition_of(value)) for value in values])
    return list(product(*groups))


def _cells_stated(cells: Sequence[Cell]) -> list[list[dict[str, Any]]]:
    return [
        [{"column": column, **condition.description()} for column, condition in cell]
        for cell in cells
    ]


def _levels(cells: Sequence[Cell]) -> Levels:
    """Columns and labels of the cells; intervals and parts of the calendar are no labels."""
    tests = dict.fromkeys(test for cell in cells for test in cell)
    return tuple((c, str(test.value)) for c, test in tests if test.comparison == "equals")


def _contingency(
    kind: str,
    cells: Sequence[Cell],
    statistic: str,
    missing: Missing | None,
    levels: Levels = (),
) -> Query:
    check_one_of(("count", "rate"), statistic=statistic)
    parts = [
        _Statistic(
            kind=statistic,
            about=_words(cell),
            parameter=None,
            inputs=(cell,),
            formula=_FORMULAS[statistic],
        )
        for cell in cells
    ]
    parameters = {"statistic": statistic, "by": _cells_stated(cells)}
    return _query(kind, parts, parameters, _Rules.of(parts, missing=missing), levels)


def _stated(chosen: Sequence[_Statistic], statistics: Statistics) -> dict[str, Any]:
    stated: dict[str, Any] = {}
    for kind in STATISTICS:
        if kind in _ALWAYS_STATED or kind in statistics:
            parameters = [part.parameter for part in chosen if part.kind == kind]
            stated[kind] = parameters if kind != "count_share" else next(iter(parameters), None)
    return stated


def _with_public(query: Query, range_: RangeLike | None, scales: ScalesLike | None) -> Query:
    query = query if range_ is None else query.with_range(range_)
    return query if scales is None else query.with_scales(scales)


@attrs.frozen(kw_only=True)
class _Rules:
    """Public rules of a query for the values of each column."""

    clip: Ends
    missing: Missing
    edges: Mapping[str, Sequence[Condition]]
    """Intervals of the histogram of a column."""

    @classmethod
    def of(
        cls,
        parts: Sequence[_Statistic],
        clip: Clip | None = None,
        clip_from: object = None,
        missing: Missing | None = None,
        edges: Edges | None = None,
    ) -> "_Rules":
        """Read and check the rules for these statistics."""
        sources = [source for part in parts for source in (*part.inputs, part.cell)]
        numbers = dict.fromkeys(source for source in sources if isinstance(source, str))
        tests: dict[str, bool] = {}
        cells = [source for source in sources if not isinstance(source, str)]
        for column, condition in (test for cell in cells for test in cell):
            tests[column] = tests.get(column, False) or condition.is_calendar
        compared = [c for cell in cells for c, test in cell if not isinstance(test.value, str)]
        ends = clip_of(clip)
        unread = [column for column in ends if column not in numbers and column not in tests]
        if unread:
            raise ArgumentError(
                f"clip names {given(unread[0])}, which no statistic reads; leave it out"
            )
        if clip_from is not None:
            ends |= clip_from_table(clip_from, [name for name in numbers if name not in ends])
        quantiles = [part.column for part in parts if part.kind in _QUANTILES]
        if edges is not None and (
            not is_a(edges, Mapping) or any(column not in quantiles for column in edges)
        ):
            raise ArgumentError(
                "edges must map columns, whose quantiles are asked for, to the edges of a "
                f"histogram; got {given(edges)}"
            )
        return cls(
            clip=ends,
            missing=missing_of(missing, ends, [*numbers, *compared], tests),
            edges={column: intervals(each) for column, each in (edges or {}).items()},
        )

    def stated(self) -> dict[str, Any]:
        """The rules as JSON values; those that there are."""
        edges = {column: _edges_of(cells) for column, cells in self.edges.items()}
        clip = {column: list(ends) for column, ends in self.clip.items()}
        stated = {"clip": clip, "missing": dict(self.missing), "edges": edges}
        return {name: value for name, value in stated.items() if value}

    def source(self, column: str) -> Source:
        """The numbers of a column."""
        return Source.of(column, self.clip, self.missing)


def _query(
    kind: str,
    parts: Sequence[_Statistic],
    parameters: Mapping[str, Any],
    rules: _Rules,
    levels: Levels = (),
) -> Query:
    read = [
        column
        for part in parts
        for source in (*part.inputs, part.cell)
        for column in ([source] if isinstance(source, str) else [name for name, _ in source])
    ]
    is_smooth = all(part.formula.terms is not None for part in parts)
    features, derived = _sums_of(parts, rules)
    return Query(
        names=tuple(part.name for part in parts),
        columns=tuple(dict.fromkeys(read)),
        level="table",
        kind=kind,
        parameters={**parameters, **rules.stated()},
        bind=lambda frame: _bound(parts, frame, rules.clip),
        coordinates=tuple(part.coordinate for part in parts),
        levels=levels,
        row_means=(lambda frame: _row_means(parts, frame, rules.clip)) if is_smooth else None,
        features=features,
        derived=derived,
    )


_QUANTILES: Final = ("quantile", "median")
_SECOND_MOMENTS: Final = ("std", "covariance", "correlation")


def _sums_of(
    parts: Sequence[_Statistic], rules: _Rules
) -> tuple[RowFeatures | None, tuple[Derived, ...]]:
    """The sums that the statistics need, and how the others follow; None if one needs more."""
    sums = [_sum_of(part, rules) for part in parts]
    # What is listed keeps its name, wherever else it is needed.
    needed = _Needed(rules=rules, listed={each: each for each in sums if each is not None})
    derived = []
    for part, feature in zip(parts, sums, strict=True):
        if feature is not None:
            name = needed.add(feature)
            if name != part.name:
                derived.append(Derived(name=part.name, kind="sum", of=[name], numbers=[0.0, 1.0]))
            continue
        follows = needed.derived(part)
        if follows is None:
            return None, ()
        derived.append(follows)
    return RowFeatures.of(needed.found.values()), tuple(derived)


def _sum_of(part: _Statistic, rules: _Rules) -> Feature | None:
    """The statistic itself, if it is a sum over rows; a mean in a group is a ratio of sums."""
    if part.kind not in ("mean", "total", "rate", "count"):
        return None
    if part.cell and part.kind in ("mean", "rate"):
        return None
    (source,) = part.inputs
    factors = [rules.source(source)] if isinstance(source, str) else []
    cell = (*(() if isinstance(source, str) else source), *part.cell)
    feature = named_feature(part.kind, *factors, cell=cell, missing=rules.missing)  # type: ignore[arg-type]
    return attrs.evolve(feature, name=part.name)


@attrs.frozen(kw_only=True)
class _Needed:
    """The sums that statistics need, each once."""

    rules: _Rules
    listed: Mapping[Feature, Feature]
    found: dict[Feature, Feature] = attrs.field(factory=dict)

    def add(self, feature: Feature) -> str:
        """Need a sum; return its name."""
        feature = self.listed.get(feature, feature)
        return self.found.setdefault(feature, feature).name

    def derived(self, part: _Statistic) -> Derived | None:
        """Describe a statistic that follows from sums, and need them; None if it does not."""
        if part.kind in _SECOND_MOMENTS:
            return self._second_moments(part)
        if part.kind == "mean" and isinstance(part.inputs[0], str):
            return self._group_mean(part, part.inputs[0])
        if part.kind == "rate" and not isinstance(part.inputs[0], str):
            names = [self._count((*part.cell, *part.inputs[0])), self._count(part.cell)]
            return Derived(name=part.name, kind="ratio", of=names, numbers=[0.0])
        if part.kind in _QUANTILES and part.column is not None and part.column in self.rules.edges:
            return self._quantile(part, part.column)
        return None

    def _count(self, cell: Cell) -> str:
        return self.add(named_feature("count", cell=cell, missing=self.rules.missing))

    def _numbers(self, part: _Statistic, *factors: Source) -> str:
        kind: Literal["mean", "total"] = "total" if part.cell else "mean"
        return self.add(named_feature(kind, *factors, cell=part.cell, missing=self.rules.missing))

    def _group_mean(self, part: _Statistic, column: str) -> Derived:
        plain = self.rules.source(column)
        total = named_feature("total", plain, cell=part.cell, missing=self.rules.missing)
        source = plain if total in self.listed else plain.centred
        of = [self._numbers(part, source), self._count(part.cell)]
        return Derived(name=part.name, kind="ratio", of=of, numbers=[source.center])

    def _second_moments(self, part: _Statistic) -> Derived:
        columns = [self.rules.source(str(column)) for column in part.inputs]
        centred = [column.centred for column in columns]
        # The mean of a group is a total of centred numbers already.
        of = [self._numbers(part, each) for each in (centred if part.cell else columns)]
        pairs = [(x, y) for place, x in enumerate(centred) for y in centred[place:]]
        if part.kind == "covariance":
            pairs = [(centred[0], centred[1])]
        of += [self._numbers(part, x, y) for x, y in pairs]
        if part.cell:
            of.append(self._count(part.cell))
        centers = [0.0 if part.cell else each.center for each in centred]
        return Derived(name=part.name, kind=part.kind, of=of, numbers=centers)  # type: ignore[arg-type]

    def _quantile(self, part: _Statistic, column: str) -> Derived:
        level = part.parameter["level"] if part.kind == "quantile" else 0.5
        cells = self.rules.edges[column]
        of = [self._count((*part.cell, (column, cell))) for cell in cells]
        numbers = [level, *_edges_of(cells)]
        return Derived(name=part.name, kind="quantile", of=of, numbers=numbers)


def _edges_of(cells: Sequence[Condition]) -> list[float]:
    ends = [cell.value for cell in cells if isinstance(cell.value, tuple)]
    return [ends[0][0], *(high for _, high in ends)]


def _sources(
    parts: Sequence[_Statistic], frame: Frame, clip: Ends
) -> dict[str | Cell, npt.NDArray[Any]]:
    """Clipped numbers of each column, and which rows are in each cell, that the statistics read."""
    wanted = dict.fromkeys(x for part in parts for x in (*part.inputs, part.cell))
    tests: dict[str, list[Condition]] = {}
    for column, condition in (
        test for cell in wanted if not isinstance(cell, str) for test in cell
    ):
        tests.setdefault(column, []).append(condition)
    flags: dict[tuple[str, Condition], Flags] = {}
    for column, conditions in tests.items():
        for part in partitions(column, conditions, None):
            part.conditions[0].flags(frame, column)  # refuses missing values
            codes, patterns = part.codes(frame), part.patterns
            for place, condition in enumerate(part.conditions):
                flags[column, condition] = patterns[:, place][codes]
    sources: dict[str | Cell, npt.NDArray[Any]] = {}
    for source in wanted:
        if isinstance(source, str):
            numbers = floats_of(frame, source)
            sources[source] = np.clip(numbers, *clip[source]) if source in clip else numbers
            continue
        sources[source] = np.ones(len(frame), dtype=np.bool_)
        for test in source:
            sources[source] = sources[source] & flags[test]
    return sources


def _bound(parts: Sequence[_Statistic], frame: Frame, clip: Ends) -> Evaluate:
    sources = _sources(parts, frame, clip)
    cells = dict.fromkeys(part.cell for part in parts)
    wanted = dict.fromkeys((part.cell, key) for part in parts for key in part.inputs)

    def evaluate(rows: Rows) -> Floats:
        groups = {cell: rows[sources[cell][rows]] if cell else rows for cell in cells}
        drawn = {(cell, key): sources[key][groups[cell]] for cell, key in wanted}
        # The caller counts what is not finite.
        with np.errstate(over="ignore", invalid="ignore"):
            results = [
                part.formula.compute(*(drawn[part.cell, key] for key in part.inputs))
                if len(groups[part.cell])
                else 0.0
                for part in parts
            ]
        return np.array(results, dtype=np.float64)

    return evaluate


def _row_means(parts: Sequence[_Statistic], frame: Frame, clip: Ends) -> RowMeans:
    sources = _sources(parts, frame, clip)
    terms: list[Floats] = []
    places: list[slice] = []
    for part in parts:
        columns = (part.formula.terms or _itself)(*(sources[key] for key in part.inputs))
        if part.cell:
            # The means over a group are ratios: of the means of what is 0 outside of it.
            inside = sources[part.cell].astype(np.float64)
            columns = [inside, *(inside * column for column in columns)]
        places.append(slice(len(terms), len(terms) + len(columns)))
        terms += columns

    def function(means: npt.NDArray[Any], n_rows: int) -> npt.NDArray[Any]:
        results = []
        for part, place in zip(parts, places, strict=True):
            of_terms, n = means[place], float(n_rows)
            if part.cell:
                share, of_terms = of_terms[0], of_terms[1:]
                n, of_terms = n * share, of_terms / share if share else of_terms
            results.append(part.formula.of_means(of_terms, n))
        return np.array(results)

    return RowMeans(terms=np.column_stack(terms), function=function)


def quantile_levels(quantiles: Quantiles) -> list[tuple[str, float]]:
    """Columns and levels of their quantiles, one after another."""
    pairs = [
        (column, level)
        for column, levels in pairs_of("quantile", quantiles, "level")
        for level in (levels if isinstance(levels, Sequence) else [levels])
    ]
    for column, level in pairs:
        number = isinstance(level, int | float | np.number) and not isinstance(level, bool)
        if not number or not 0 <= level <= 1:
            raise ArgumentError(
                f"quantile levels must lie between 0 and 1; got {given(level)} for {given(column)}"
            )
    return [(column, float(level)) for column, level in pairs]
