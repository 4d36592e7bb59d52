# SPDX-License-Identifier: Apache-2.0
"""Queries: a public description of a function of rows, and the function."""

import copyreg
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Final, Literal, ParamSpec, TypeAlias, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.calls import Call, call_of
from pufferslice._core.checks import check_finite, check_one_of, check_unique, is_a
from pufferslice._core.files import canonical_json, digest
from pufferslice._core.text import given, listed, quoted
from pufferslice.data.frames import (
    MISSING_POLICIES,
    Frame,
    check_columns,
    frame_of,
    without_missing,
)
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries.conditions import Condition, conditions_of
from pufferslice.queries.derived import Derived
from pufferslice.queries.features import Feature, RowFeatures, feature_bits
from pufferslice.queries.layout import Layout
from pufferslice.queries.partition import partitions_of
from pufferslice.queries.ranges import Ball, Box, check_range
from pufferslice.queries.sql import Statements, Types, statements_of

Rows: TypeAlias = npt.NDArray[np.intp]
"""Row numbers of a table; they may repeat."""

Evaluate: TypeAlias = Callable[[Rows], Floats]
"""Function from row numbers to outputs in the user's units."""

Level: TypeAlias = Literal["table", "row"]

RangeLike: TypeAlias = Box | Ball | Mapping[str, Sequence[float]]
"""A range, or (low, high) by name of the coordinate or of its column."""

_STEP: Final = 2.0**-200
"""Imaginary step of a derivative: so small that its square vanishes beside any number."""
_PARTS: Final = 20
"""Parts of a public table whose outputs show how much a query without formula varies."""

ScalesLike: TypeAlias = Sequence[float] | Mapping[str, float] | Floats
"""A number for each coordinate, in their order, or by name of the coordinate or of its column."""


def column_names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple; a bare string, which is a sequence of letters, is refused."""
    if not is_a(names, Iterable):
        raise ArgumentError(f"{argument} must be a list of names, got {type(names).__name__}")
    if isinstance(names, str):
        text = given(names)
        raise ArgumentError(
            f"{argument} must be a list of names, got the text {text}; write [{text}]"
        )
    other = next((name for name in names if not is_a(name, str) or not name), None)
    if other is not None:
        raise ArgumentError(f"{argument} must hold non-empty strings, got {given(other)}")
    return tuple(names)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return column_names("names", names)


def _columns(columns: Sequence[str]) -> tuple[str, ...]:
    return column_names("columns", columns)


def _json_copy(parameters: Mapping[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(canonical_json(dict(parameters)))
    return copy


@final
@attrs.frozen(kw_only=True)
class Coordinate:
    """Public facts about one coordinate of a query, known before any data are seen."""

    column: str | None = None
    """Column that the coordinate is about, if it is about one."""
    condition: Condition | None = None
    """The condition on that column, for a rate or a flag."""
    low: float = -math.inf
    """Lowest value that the coordinate can have, whatever the rows."""
    high: float = math.inf
    """Highest value that the coordinate can have, whatever the rows."""
    statistic: str = ""
    """Name of the statistic of a summary, such as `count`."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowMeans:
    """A query as a smooth function of the means, over rows, of some numbers of each row."""

    terms: Floats
    """Numbers of each row, shape (n_rows, n_terms); confidential."""
    function: Callable[[npt.NDArray[Any], int], npt.NDArray[Any]]
    """Function from means, shape (n_terms,), and a number of rows to outputs in the user's units,
    shape (dim,). Analytic: its derivatives are read off complex arguments."""

    def slopes(self, mean: Floats, n_rows: int) -> Floats:
        """Derivatives of the outputs by the means, shape (dim, n_terms)."""
        steps = mean + 1j * _STEP * np.eye(len(mean))
        return np.stack([self.function(step, n_rows).imag / _STEP for step in steps], axis=1)

    def moments(self, mean: Floats, cov: Floats, n_rows: int) -> tuple[Floats, Floats]:
        r"""Mean and covariance of the query on rows whose terms have this mean and covariance.

        $$g(\mu), \qquad J \frac{S}{n} J^\top, \qquad J = g'(\mu)$$

        Exact for a linear query; else the first order, the delta method.
        """
        slopes = self.slopes(mean, n_rows)
        return self.function(mean, n_rows), slopes @ (cov / n_rows) @ slopes.T


@final
class RowMoments:
    """Number, mean and covariance of rows that come in parts (Chan, Golub and LeVeque 1983)."""

    def __init__(self, n_terms: int = 0) -> None:
        self.n_rows = 0
        self.mean: Floats = np.zeros(n_terms)
        self._squares: Floats = np.zeros((n_terms, n_terms))

    def add(self, terms: Floats) -> None:
        """Add rows, shape (n_rows, n_terms)."""
        if not len(terms):
            return
        mean = terms.mean(axis=0)
        centred = terms - mean
        squares = centred.T @ centred
        if not self.n_rows:
            self.n_rows, self.mean, self._squares = len(terms), mean, squares
            return
        total = self.n_rows + len(terms)
        apart = mean - self.mean
        between = np.outer(apart, apart) * (self.n_rows * (len(terms) / total))
        self._squares = self._squares + squares + between
        self.mean = self.mean + apart * (len(terms) / total)
        self.n_rows = total

    @property
    def covariance(self) -> Floats:
        """Covariance of the rows, divided by their number."""
        return np.asarray(self._squares / self.n_rows)


def mean_and_covariance(terms: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance (divided by the number of rows) of rows, shape (n_rows, n_terms)."""
    moments = RowMoments()
    moments.add(terms)
    return moments.mean, moments.covariance


@final
@attrs.frozen(kw_only=True, repr=False)
class Query:
    """A function of the rows of a table with `dim` named coordinates, and its public description.

    Two queries are equal if their descriptions are; the function behind them is not compared.
    Build one with `summary`, `columns`, `row_function`, `table_function` or a model.
    """

    names: tuple[str, ...] = attrs.field(converter=_names)
    """Names of the coordinates, all different."""
    columns: tuple[str, ...] = attrs.field(converter=_columns)
    """Columns of the table that the query reads."""
    level: Level
    """Level of an output: `table` for all rows together, `row` for each row."""
    kind: str
    """Name of the builder of the query."""
    parameters: dict[str, Any] = attrs.field(converter=_json_copy)
    """Arguments of the builder, as JSON values."""
    bind: Callable[[Frame], Evaluate] = attrs.field(eq=False)
    """Function that reads the columns of a frame once and maps row numbers to raw outputs."""
    range: Box | Ball | None = None
    """Public range of the outputs, in the user's units."""
    scales: Floats = attrs.field(
        default=attrs.Factory(lambda self: np.ones(len(self.names)), takes_self=True),
        converter=locked,
        eq=same,
    )
    """Public unit of each coordinate, shape (dim,); the mechanism runs on outputs / scales."""
    coordinates: tuple[Coordinate, ...] = attrs.field(
        default=attrs.Factory(lambda self: (Coordinate(),) * len(self.names), takes_self=True),
        eq=False,
    )
    """Facts that the builder knows about each coordinate."""
    levels: tuple[tuple[str, str], ...] = attrs.field(default=(), eq=False)
    """Columns and labels of them that some row of a scenario's tables must have."""
    row_means: Callable[[Frame], RowMeans] | None = attrs.field(default=None, eq=False)
    """The query on a frame as a function of means over rows, if it is a smooth one."""
    features: RowFeatures | None = attrs.field(default=None, eq=False)
    """The sums over rows that the query is, or follows from, if there are such."""
    derived: tuple[Derived, ...] = attrs.field(default=(), eq=False)
    """How coordinates follow from `features`, for those that are not among them."""
    missing: str = "refuse"
    """Policy for rows that lack a value: `refuse`, or `drop-rows` (counted, and stated); `middle`,
    of sums over rows: they count as a public value. `bound` and `outputs` refuse them."""
    made: Call | None = attrs.field(default=None, eq=False)
    """How a builder made the query; None for one that was made by hand."""

    def __attrs_post_init__(self) -> None:
        if not self.names:
            raise ArgumentError("a query must have at least one coordinate, got no names")
        check_unique("names of coordinates", self.names)
        check_one_of(("table", "row"), level=self.level)
        check_one_of(MISSING_POLICIES, missing=self.missing)
        if self.range is not None:
            self._check_range(self.range)
        if self.scales.shape != (self.dim,):
            raise ArgumentError(
                f"scales must have one number per coordinate ({self.dim}), got {self.scales.shape}"
            )
        check_finite(scales=self.scales)
        if not self.scales.min() > 0:
            where = int(self.scales.argmin())
            scale = float(self.scales[where])
            name = quoted(self.names[where])
            raise ArgumentError(f"scales must be greater than 0; that of {name} is {scale!r}")

    def __repr__(self) -> str:
        return f"Query(kind={self.kind!r}, dim={self.dim}, names={self.names!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the call of the builder, and public numbers; a function in it by its name."""
        if self.made is None:
            return copyreg.__newobj__, (Query,), self.__getstate__()  # type: ignore[attr-defined]
        public = {"range": self.range, "scales": self.scales, "missing": self.missing}
        return _built_again, (self.made, public, digest(canonical_json(self.description())))

    def __deepcopy__(self, _memo: object) -> "Query":
        """Return the query itself, which does not change."""
        return self

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.names)

    @property
    def center(self) -> Floats:
        """Public center in scaled coordinates: that of the range, or 0 without one."""
        return np.zeros(self.dim) if self.range is None else self.range.center / self.scales

    def with_range(self, range: RangeLike) -> "Query":  # noqa: A002 - the word users know
        """The same query, clipped to a public range.

        A mapping gives (low, high) by name of the coordinate, or of its column where no other
        coordinate is about that column. A rate that it does not name is between 0 and 1.

        >>> from pufferslice.queries import summary
        >>> query = summary(mean=["age"], rate={"income": ">50K"})
        >>> query.with_range({"age": (17, 90)}).range.high
        array([90.,  1.])
        """
        return attrs.evolve(self, range=self.range_of(range))

    def range_of(self, range: RangeLike) -> Box | Ball:  # noqa: A002 - the word users know
        """Read a range of this query's outputs, by name or as it is."""
        if isinstance(range, Box | Ball):
            return range
        if not is_a(range, Mapping):
            raise ArgumentError(
                "range must be Box(low, high), Ball(center, radius), or a mapping from coordinates "
                f"to (low, high); got {given(range)}"
            )
        ends = [[coordinate.low, coordinate.high] for coordinate in self.coordinates]
        for place, name in self._places("range", range).items():
            pair = range[name]
            if is_a(pair, str) or not is_a(pair, Sequence) or len(pair) != 2:
                raise ArgumentError(
                    f"range must be a low and a high end for {quoted(name)}, got {given(pair)}"
                )
            ends[place] = list(pair)
        table = locked(ends)
        absent = [n for n, pair in zip(self.names, table, strict=True) if np.isinf(pair).any()]
        if absent:
            raise ArgumentError(
                f"range must give a low and a high end for {listed(absent)} as well"
            )
        return Box(table[:, 0], table[:, 1])

    def with_missing(self, missing: str) -> "Query":
        """The same query with another policy on missing values."""
        return attrs.evolve(self, missing=missing)

    def as_sums(self) -> "Query":
        """The query whose coordinates are the sums over rows that this one needs.

        A release of the sums has noise on them; what `derived` describes is computed from them
        after noise. A missing value counts as a public one, and no row is refused. A query that is
        no function of sums over rows is refused.

        >>> from pufferslice.queries import summary
        >>> query = summary(std=["age"], clip={"age": (20, 60)}).as_sums()
        >>> query.names, query.derived[0].name
        (('mean(age)', 'mean((age - 40) * (age - 40))'), 'std(age)')
        """
        features = self.features
        if self.level != "table" or features is None:
            raise ScenarioError(
                "this query is not a sum over rows, nor a function of such sums, and no promise is "
                "known for other statistics of a table of rows. Use means, rates, totals, counts, "
                "standard deviations, correlations, contingency_table or, for quantiles, edges; or "
                "use prior='draws', whose claim is about the drawn tables"
            )
        if self.range is not None or not np.all(self.scales == 1):
            raise ScenarioError(
                "range and scales are not used here: clip the values of each row with clip="
                "{column: (low, high)}; the noise needs no units"
            )
        twice = sorted(name for name, count in Counter(features.names).items() if count > 1)
        if twice:
            raise ScenarioError(
                f"{listed(twice, quoted)} is needed with two clip ranges, or two values for a "
                "missing one; give all parts of the query the same clip and missing"
            )
        listed_ = dict(zip(self.names, self.coordinates, strict=True))
        return attrs.evolve(
            self,
            names=features.names,
            bind=partial(_bound_sums, features),
            scales=np.ones(len(features.names)),
            coordinates=tuple(
                listed_.get(part.name, _coordinate_of(part)) for part in features.parts
            ),
            row_means=partial(_means_of_sums, features),
            missing="middle" if self.missing == "refuse" else self.missing,
            made=Call(_AS_SUMS, (self,)),
        )

    def to_sql(
        self,
        table: str,
        *,
        column: str | None = None,
        value: Any = None,  # a value or a condition
        values: Sequence[Any] = (),
        types: Types | None = None,
    ) -> Statements:
        """Write the SQL statements whose results `Scenario.from_moments` takes.

        For a table in a database that is not at hand: its administrator runs both and hands over
        the numbers, which are confidential; the first is enough for a release. `column` and
        `value`, or several `values`, are the secret's, if it is about rows with a property.
        `types` says what a column holds that conditions compare, `"text"`, `"number"` or
        `"boolean"`, where the compared value does not tell. Times count in the time zone of the
        session.

        >>> from pufferslice.queries import summary
        >>> statements = summary(total=["pay"], clip={"pay": (0, 100)}).to_sql("people")
        >>> statements.sums.splitlines()[3:6]
        ['  COUNT(*) AS n,', '  SUM(number0) AS sum0', 'FROM (']
        """
        features = self.as_sums().features
        if features is None or not np.isfinite(features.spans).all():
            raise ArgumentError(
                "clip must give a public range for every column of a mean or a total, as "
                "clip={'age': (17, 90)}"
            )
        chosen = [*([] if value is None else [value]), *values]
        if (column is None) != (not chosen):
            raise ArgumentError("column and value, or values, go together; give both or neither")
        tests = [conditions_of("value", {str(column): each})[0] for each in chosen]
        secret = partitions_of((name, test, None) for name, test in tests)
        return statements_of(Layout.of(features, feature_bits(1), secret), table, types)

    def with_scales(self, scales: ScalesLike) -> "Query":
        """The same query with other public units; a mapping changes only the coordinates it names.

        A name is that of a coordinate, or of its column where no other coordinate is about it.

        >>> from pufferslice.queries import summary
        >>> summary(mean=["age", "pay"]).with_scales({"pay": 1000}).scales
        array([   1., 1000.])
        """
        if isinstance(scales, Mapping):
            units = self.scales.tolist()
            for place, name in self._places("scales", scales).items():
                units[place] = scales[name]
            scales = units
        return attrs.evolve(self, scales=scales)

    def scaled_from(self, public_table: object) -> "Query":
        """The same query with units proposed from a public or held-out table of similar rows.

        The unit of a coordinate is what one row contributes: of a mean the standard deviation of
        its column, of a rate sqrt(p (1 - p)), of a total that times the number of rows, and so on
        for every smooth statistic; of others, sqrt(n) times the standard deviation between parts of
        n rows. Rounded to one digit.

        Needs: the table is public, or is not released. Units are printed on the certificate, and
        those of the released table would reveal something about it.

        >>> import pyarrow as pa
        >>> from pufferslice.queries import summary
        >>> last_year = pa.table({"age": [20, 30, 55], "income": ["low", "high", "low"]})
        >>> summary(mean=["age"], rate={"income": "high"}).scaled_from(last_year).scales
        array([10. ,  0.5])
        """
        frame, _ = without_missing(frame_of(public_table), self.columns, self.missing)
        if self.level == "row":
            spreads = self.outputs(frame).std(axis=0)
        elif self.row_means is not None:
            means = self.row_means(frame)
            _, cov = means.moments(*mean_and_covariance(means.terms), len(frame))
            spreads = np.sqrt(np.maximum(np.diag(cov), 0) * len(frame))
        else:
            n_parts = min(_PARTS, len(frame))
            evaluate = self.bound(frame)
            parts = [np.arange(first, len(frame), n_parts) for first in range(n_parts)]
            outputs = np.stack([evaluate(part) for part in parts])
            spreads = outputs.std(axis=0) * math.sqrt(len(frame) / n_parts)
        constant = [name for name, unit in zip(self.names, spreads, strict=True) if not unit > 0]
        if constant:
            raise ScenarioError(
                f"the public table shows no variation of {listed(constant)}, so it proposes no "
                "scale; use another table, or with_scales(...)"
            )
        return self.with_scales([float(f"{unit:.0e}") for unit in spreads])

    def to_dict(self) -> dict[str, Any]:
        """Public facts about the query, as JSON values: its `description`."""
        return self.description()

    def description(self) -> dict[str, Any]:
        """Public facts about the query, as JSON values."""
        return {
            "kind": self.kind,
            "level": self.level,
            "names": list(self.names),
            "columns": list(self.columns),
            "parameters": _json_copy(self.parameters),
            "range": None if self.range is None else self.range.description(),
            "scales": self.scales.tolist(),
            "missing": self.missing,
        }

    def bound(self, table: object) -> Evaluate:
        """The query on one table: a function of row numbers, in the user's units.

        Reads and checks the columns once. The function returns shape (dim,) for level `table` and
        (len(rows), dim) for level `row`, and refuses outputs that are not finite.
        """
        frame = frame_of(table)
        check_columns(frame, self.columns)
        evaluate = self.bind(frame)

        def checked(rows: Rows) -> Floats:
            if rows.dtype.kind not in "iu" or rows.ndim != 1:
                raise ArgumentError(
                    f"rows must be a vector of row numbers, got {rows.dtype} of {rows.shape}"
                )
            if not len(rows) and self.level == "table":
                raise ScenarioError(
                    f"the query {self.kind} was asked for no rows; it needs at least one"
                )
            return self._finite(self._shaped(evaluate(rows), len(rows)), "outputs")

        return checked

    def outputs(self, table: object) -> Floats:
        """The query on all rows of a table, in the user's units: shape (1 or n, dim).

        >>> import pyarrow as pa
        >>> from pufferslice.queries import summary
        >>> summary(mean=["age"]).outputs(pa.table({"age": [20, 40]}))
        array([[30.]])
        """
        frame = frame_of(table)
        return np.atleast_2d(self.bound(frame)(np.arange(len(frame))))

    def prepared(self, outputs: Floats) -> Floats:
        """Clip to the range, if there is one, and divide by the scales; shape (n, dim).

        This is what the distribution of a scenario is made of and what noise is added to.

        >>> from pufferslice.queries import Box, summary
        >>> query = summary(mean=["age"]).with_range(Box([0], [50])).with_scales([10])
        >>> query.prepared(np.array([[30.0], [70.0]]))
        array([[3.],
               [5.]])
        """
        if outputs.ndim != 2 or outputs.shape[1] != self.dim:
            raise ArgumentError(f"outputs must have shape (n, {self.dim}), got {outputs.shape}")
        return self._finite(self._scaled(outputs), "outputs after clipping and scaling")

    def n_outside(self, outputs: Floats) -> int:
        """Number of rows of raw outputs that the range clips, 0 without one."""
        if self.range is None:
            return 0
        return int(np.count_nonzero(self.range.outside(outputs).any(axis=1)))

    def _places(self, argument: str, named: Mapping[str, object]) -> dict[int, str]:
        """The coordinate that each name stands for, and the name."""
        places: dict[int, str] = {}
        for name in named:
            place = self._place(argument, name)
            if place in places:
                raise ArgumentError(
                    f"{argument} names the coordinate {quoted(self.names[place])} twice, as "
                    f"{quoted(places[place])} and as {quoted(name)}; name it once"
                )
            places[place] = name
        return places

    def _place(self, argument: str, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        about = [i for i, coordinate in enumerate(self.coordinates) if coordinate.column == name]
        if len(about) == 1:
            return about[0]
        if about:
            raise ArgumentError(
                f"{argument} names the column {quoted(name)}, but {len(about)} coordinates are "
                f"about it; name one: {listed([self.names[place] for place in about])}"
            )
        raise ArgumentError(
            f"{argument} names {quoted(name)}, which is not a coordinate of the query; the "
            f"coordinates are {listed(self.names)}"
        )

    def _check_range(self, limits: Box | Ball) -> None:
        check_range(limits)
        if limits.dim != self.dim:
            raise ArgumentError(
                f"range must have {self.dim} coordinates, as the query has; got {limits.dim}"
            )
        # Of a ball the centre is enough: a possible value that is pulled towards it stays possible.
        ends = (limits.low, limits.high) if isinstance(limits, Box) else (limits.center,) * 2
        for name, known, low, high in zip(self.names, self.coordinates, *ends, strict=True):
            if low < known.low or high > known.high:
                bounds = f"[{known.low:g}, {known.high:g}]"
                possible = bounds if known.high < math.inf else "0 or more"
                raise ArgumentError(
                    f"range of {quoted(name)} is [{low:g}, {high:g}], but its values are "
                    f"{possible}. The coordinates, in order, are {listed(self.names)}; give "
                    "ranges by name"
                )

    def unchecked_outputs(self, table: object) -> Floats:
        """Evaluate as `outputs`; values may be infinite or NaN.

        For a release from priors under which any value is possible: a refusal would reveal
        something about the data.
        """
        frame = frame_of(table)
        check_columns(frame, self.columns)
        return np.atleast_2d(self._shaped(self.bind(frame)(np.arange(len(frame))), len(frame)))

    def prepared_or_center(self, outputs: Floats) -> Floats:
        """Prepare as `prepared`, with the public center where a value is not finite."""
        scaled = self._scaled(outputs)
        return np.asarray(np.where(np.isfinite(scaled), scaled, self.center))

    def _scaled(self, outputs: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            clipped = outputs if self.range is None else self.range.clip(outputs)
            return clipped / self.scales

    def _shaped(self, outputs: Floats, n_rows: int) -> Floats:
        wanted = (self.dim,) if self.level == "table" else (n_rows, self.dim)
        if outputs.shape != wanted:
            raise ScenarioError(f"the query must return shape {wanted}, got {outputs.shape}")
        return outputs

    def _finite(self, values: Floats, what: str) -> Floats:
        bad = ~np.isfinite(values)
        if bad.any():
            where = np.flatnonzero(bad.reshape(-1, self.dim).any(axis=0))
            named = listed([self.names[index] for index in where])
            raise ScenarioError(
                f"{what} of the query {self.kind} must be finite; {int(bad.sum())} of "
                f"{bad.size} values are NaN or infinite, in {named}"
            )
        return values


_Arguments = ParamSpec("_Arguments")
_AS_SUMS: Final = "as_sums"
_BUILDERS: Final[dict[str, Callable[..., Query]]] = {_AS_SUMS: Query.as_sums}
"""Functions that build queries, by name."""


def recorded(build: Callable[_Arguments, Query]) -> Callable[_Arguments, Query]:
    """Make a builder keep its call in the query, so that the query is data.

    An earlier table that proposes clip ranges is not kept, but the ranges.
    """

    @wraps(build)
    def builder(*several: _Arguments.args, **named: _Arguments.kwargs) -> Query:
        query = build(*several, **named)
        ranges = {} if named.get("clip_from") is None else {"clip": query.parameters["clip"]}
        given_ = {name: value for name, value in named.items() if name != "clip_from"}
        return attrs.evolve(
            query, made=call_of(build, several, given_ | ranges, lambda _, value: value)
        )

    _BUILDERS[build.__name__] = builder
    return builder


def _built_again(call: Call, public: Mapping[str, Any], known: str) -> Query:
    """Build a query that was pickled; another one than that is refused."""
    query = attrs.evolve(_BUILDERS[call.builder](*call.several, **call.named), **public)
    if digest(canonical_json(query.description())) != known:
        raise ScenarioError(
            f"the pickled query {call.builder} is another one by this version of pufferslice; "
            "build it again"
        )
    return query


def _coordinate_of(feature: Feature) -> Coordinate:
    """Public facts about a sum."""
    low, high = feature.ends
    if not feature.is_mean:
        low, high = (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 else math.inf)
    is_plain = len(feature.factors) == 1 and not feature.cell
    return Coordinate(column=feature.factors[0].column if is_plain else None, low=low, high=high)


def _bound_sums(features: RowFeatures, frame: Frame) -> Evaluate:
    numbers, is_mean = features.numbers(frame), np.array(features.is_mean)

    def evaluate(rows: Rows) -> Floats:
        sums = numbers[rows].sum(axis=0)
        return np.asarray(np.where(is_mean, sums / len(rows), sums))

    return evaluate


def _means_of_sums(features: RowFeatures, frame: Frame) -> RowMeans:
    is_mean = np.array(features.is_mean)

    def function(means: npt.NDArray[Any], n_rows: int) -> npt.NDArray[Any]:
        return np.where(is_mean, means, n_rows * means)

    return RowMeans(terms=features.numbers(frame), function=function)
