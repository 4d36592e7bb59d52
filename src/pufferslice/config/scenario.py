# SPDX-License-Identifier: Apache-2.0
"""Typed model of scenario.toml, and the request that it stands for."""

import contextlib
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, final, get_args

import attrs
import numpy as np
import pyarrow as pa
from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import CoreSchema

from pufferslice import queries
from pufferslice._core.arrays import Floats
from pufferslice._core.calls import Call
from pufferslice._core.checks import check_above, check_count
from pufferslice._core.files import read_bytes
from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.claims import Claim, claim_of
from pufferslice.claims.guarantee import RELEASE_CLAIMS, RELEASE_NOTIONS
from pufferslice.claims.slices import RULES, Method, Rule
from pufferslice.claims.views import DEFAULT_DELTAS
from pufferslice.config.document import (
    Document,
    File,
    Listed,
    Matrix,
    Number,
    Numbers,
    Pair,
    Table,
    Text,
    Texts,
    Word,
    either,
    key,
    overridden,
    parsed_toml,
    toml_of,
)
from pufferslice.data.adult import SHIPPED
from pufferslice.data.frames import without_missing
from pufferslice.data.locations import beside
from pufferslice.data.readers import FileTable, same_files
from pufferslice.data.tables import frame_of_rows
from pufferslice.errors import ArgumentError
from pufferslice.noise.fit import SHAPES
from pufferslice.queries import Ball, Box, Query, columns, summary
from pufferslice.queries.conditions import condition_of, conditions_of
from pufferslice.queries.query import RangeLike
from pufferslice.queries.statistics import STATISTICS, quantile_levels
from pufferslice.scenario.attribute import gaussian_process
from pufferslice.scenario.distributions import (
    WEIGHT_QUANTA,
    GaussianDistribution,
    GaussianMixture,
)
from pufferslice.scenario.made import Held, Named, Shipped
from pufferslice.scenario.pairs import Pairs, chosen_pairs, ordered_pairs
from pufferslice.scenario.prevalence import PRIOR_FORMS
from pufferslice.scenario.priors import LAWS, SOURCES, Bootstrap, Source
from pufferslice.scenario.rows import DESIGNS
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins
from pufferslice.sensitivity.concentration import BANDS, BandKind
from pufferslice.sensitivity.couplings import Effort
from pufferslice.sensitivity.profiles import (
    WHOLE_SPHERE,
    AnyProfile,
    FiniteProfile,
    SampledSphere,
    WholeSphere,
)
from pufferslice.sensitivity.renyi import SLICED_NOTIONS
from pufferslice.sensitivity.sensitivity import ENVELOPES, Envelope

ByName = Annotated[
    Numbers | dict[str, float], either("a list of numbers, or a number for each name")
]

_WORLDS: Final = (
    "worlds",
    "gaussian",
    "prevalence",
    "attribute",
    "occupancy",
    "volume",
    "supplier",
)
"""Sections that declare worlds."""


class Data(Table):
    """The table; either `path` or `dataset`, and neither if the worlds are declared."""

    path: Text | None = key(None, example="people.csv")
    """CSV or TSV (also `.gz`), Parquet, a folder or a glob of Parquet files."""
    dataset: Annotated[str, Word(*SHIPPED)] | None = key(None, example="adult", used=True)
    """A table that ships with the library: `adult`, `adult-complete` (no missing values), or one
    half of it, `adult-last-year` and `adult-this-year`."""
    null_values: Texts = key((), example=["?"])
    """Strings that mean missing; an empty cell always does."""
    missing: Literal["refuse", "drop-rows", "middle"] = key("refuse", example="refuse", used=True)
    """`refuse` (default), or `drop-rows`: rows without a value are left out and counted.
    Sums of rows refuse and drop none (`missing` of [query] says what counts)."""

    def file(self, folder: Path, path: str) -> FileTable:
        """Find a file that is named beside the scenario; nothing is read."""
        return FileTable.of(beside(folder, path), self.null_values)

    def read(self, folder: Path, path: str) -> pa.Table:
        """Read the table of a file that is named beside the scenario."""
        return self.file(folder, path).read()

    def table(self, folder: Path) -> FileTable | pa.Table:
        """Find the table."""
        if (self.path is None) == (self.dataset is None):
            raise ArgumentError("[data]: needs either path or dataset")
        return self.file(folder, self.path) if self.path else SHIPPED[self.dataset or ""]()

    def has_file_of(self, path: str, folder: Path, others: Iterable[str] = ()) -> bool:
        """Return whether a path names a file of the table or of others; False if none is found."""
        names = filter(None, (self.path, *others))
        return same_files(beside(folder, path), [beside(folder, name) for name in names])


class SecretBins(Table):
    """Bins of a numeric column: of quantiles, or between public edges."""

    column: Text
    quantiles: int | None = None
    edges: Numbers | None = None


class ClosePairs(Table):
    """Pairs of secrets that are numbers and close."""

    difference: float | None = None
    ratio: float | None = None
    nearest: int | None = None


class SecretSection(Table):
    """What is protected; one of `column`, `columns` and `bins`; leave them out for `worlds`."""

    column: Text | None = key(None, example="race", used=True)
    """The secret of a row is its value in this column."""
    columns: Texts | None = key(None, example=["sex", "race"])
    """Or its values in several columns; a secret is then written `a & b`."""
    bins: SecretBins | None = key(None, example={"column": "age", "quantiles": 5})
    """Or a bin of a numeric column: one of so many `quantiles`, written `age q1/5`, or between
    public `edges`, written `30 <= age < 40`."""
    name: Text | None = key(None, example="site of the sample")
    """For [worlds] and [gaussian]: name of the secret, by which a ledger knows it; `world` if left
    out."""
    pairs: Annotated[
        Literal["all"] | Listed[Pair] | ClosePairs,
        either("'all', a list of pairs of strings, or one of difference, ratio and nearest"),
    ] = key("all", example="all", others=[{"ratio": 1.1}], used=True)
    """Pairs of secrets that must not be told apart: `all` (default), `[["a", "b"], …]`, or, of
    secrets that are numbers, `{ difference = … }`, `{ ratio = … }` or `{ nearest = … }`: pairs
    within this difference, within this factor, or this many neighbours."""

    def secret(self) -> str | tuple[str, ...] | Bins:
        """Return column, columns or bins, as `Scenario` takes them."""
        choices = [value for value in (self.column, self.columns, self.bins) if value is not None]
        if len(choices) != 1:
            raise ArgumentError("[secret]: needs exactly one of column, columns, bins")
        (choice,) = choices
        if isinstance(choice, SecretBins):
            return Bins(**choice.given())
        return choice if isinstance(choice, str) else list(choice)  # type: ignore[return-value]

    def listed_pairs(self) -> Pairs:
        """Return the pairs as a scenario takes them; all where `protected` chooses among them."""
        return "all" if isinstance(self.pairs, ClosePairs) else self.pairs

    def protected(self, scenario: Scenario, numbers: Sequence[float]) -> Scenario:
        """Restrict a scenario to these pairs; `numbers` are those of its secrets, if known."""
        if not isinstance(self.pairs, ClosePairs):
            if self.pairs == "all":  # or what the scenario itself takes for all
                return scenario
            pairs: Pairs = self.pairs
        else:
            try:
                numbers = numbers or [float(secret) for secret in scenario.secrets]
            except ValueError:
                raise ArgumentError(
                    "[secret] pairs: difference, ratio and nearest need secrets that are numbers; "
                    "list the pairs"
                ) from None
            values = dict(zip(scenario.secrets, numbers, strict=True))
            pairs = ordered_pairs(values, **self.pairs.given())
        return attrs.evolve(scenario, pairs=chosen_pairs(pairs, scenario.secrets))


class ConditionTable(Table):
    """A condition on one column: exactly one of the other keys."""

    column: Text
    equals: Any = None
    above: Number | None = None
    at_least: Number | None = None
    below: Number | None = None
    at_most: Number | None = None
    between: Annotated[tuple[Number, Number] | None, Field(strict=False)] = None
    hour: int | None = None
    weekday: Text | None = None
    day: Any = None
    week: Text | None = None
    month: Text | None = None
    quarter: Text | None = None
    year: int | None = None

    @model_validator(mode="after")
    def _has_one_condition(self) -> Self:
        if len(self.model_fields_set - {"column"}) != 1:
            names = ", ".join(name for name in type(self).model_fields if name != "column")
            raise ValueError(f"needs exactly one condition of {names}")
        return self

    @staticmethod
    def described(column: str, condition: queries.Condition) -> dict[str, Any]:
        """The table of a condition."""
        value: Any = condition.value
        if condition.comparison in {"hour", "year"}:
            value = int(value)
        return {"column": column, condition.comparison: plain(value)}

    def condition(self) -> tuple[str, queries.Condition]:
        """Return the column and its condition."""
        (name,) = self.model_fields_set - {"column"}
        build: Callable[..., queries.Condition] = getattr(queries, name)
        value = getattr(self, name)
        return self.column, build(*value) if name == "between" else build(value)


_PERIODS: Final = frozenset({"days", "weeks", "months", "quarters", "years"})
Ends = Annotated[tuple[Any, Any] | None, Field(strict=False)]
"""The first and the last of some groups, if they are given."""


class GroupTable(Table):
    """Groups of rows by one column: exactly one of the other keys."""

    column: Text
    values: Listed[Any] | None = None
    edges: Numbers | None = None
    per: Annotated[str, Word("hour", "weekday")] | None = None
    days: Ends = None
    weeks: Ends = None
    months: Ends = None
    quarters: Ends = None
    years: Ends = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if len(self.model_fields_set - {"column"}) != 1:
            names = ", ".join(name for name in type(self).model_fields if name != "column")
            raise ValueError(f"needs exactly one of {names}")
        return self

    @classmethod
    def described(cls, column: str, values: Iterable[Any]) -> dict[str, Any]:
        """The table of groups, each a value or a condition, in the first form that gives them."""
        wanted = [condition_of(value) for value in values]
        labels: list[Any] = [test.value for test in wanted]
        ends = [end for test in wanted if isinstance(test.value, tuple) for end in test.value]
        forms: list[dict[str, Any]] = [{"values": labels}, {"edges": sorted(set(ends))}]
        forms += [{"per": "hour"}, {"per": "weekday"}]
        first, last = (
            int(v) if test.comparison == "year" else v
            for test, v in ((wanted[0], labels[0]), (wanted[-1], labels[-1]))
        )
        forms += [{name: [first, last]} for name in sorted(_PERIODS)]
        for form in forms:
            with contextlib.suppress(ArgumentError, ValueError):
                found = cls.model_validate({"column": column, **form}).groups()
                if [condition_of(value) for value in found] == wanted:
                    return {"column": column, **plain(form)}
        raise ArgumentError(
            f"the groups of {quoted(column)} are conditions that TOML has no word for; use values, "
            "intervals, hours, weekdays, or days, weeks, months, quarters or years in a row"
        )

    def groups(self) -> list[Any]:
        """Return the groups as `group_by` takes them."""
        if self.edges is not None:
            return list(queries.intervals(self.edges))
        for name in _PERIODS & self.model_fields_set:
            build: Callable[..., list[queries.Condition]] = getattr(queries, name)
            return build(*getattr(self, name))
        if self.per is not None:
            return list(queries.hours() if self.per == "hour" else queries.weekdays())
        return list(self.values or ())


class AutocorrelationTable(Table):
    """Autocorrelations of one column in the order of time."""

    column: Text
    time: Text
    lags: Listed[int]


class QuantileTable(Table):
    """Quantiles of one column."""

    column: Text
    level: Annotated[
        Number | Listed[Number],
        either("a number or a list of numbers"),
    ]


_MODELS: Final = (
    "logistic_regression",
    "linear_svm",
    "forest_importances",
    "boosting_importances",
    "linear_regression",
)


class ModelTable(Table):
    """A model that is fitted on the rows; its coefficients or importances are the query."""

    kind: Annotated[str, Word(*_MODELS)]
    features: Texts
    target: Text | None = None
    targets: Texts | None = None
    positive: Any = None
    feature_scales: ByName | None = None
    regularisation: float = 1.0
    n_trees: int = 0
    seed: int = 0
    depth: int = 3
    learning_rate: float = 0.1

    def query(self, rules: Mapping[str, Any]) -> Query:
        """Build the query by the function of this kind, which may take rules for columns."""
        build: Callable[..., Query] = getattr(queries, self.kind)
        arguments = {**self.given(), **rules}
        del arguments["kind"]
        try:
            return build(**arguments)
        except TypeError as error:
            raise ArgumentError(f"[query] model: {error}") from None


class SecondMomentsTable(Table):
    """Columns of a linear model, and what it predicts."""

    target: Annotated[Text | ConditionTable, either("a column, or a condition as in rate")]
    numbers: Texts = ()
    levels: Listed[GroupTable] = ()
    flags: Listed[ConditionTable] = ()

    def query(self, rules: Mapping[str, Any], *, allow_empty: bool) -> Query:
        """Build the query under rules for columns."""
        if "edges" in rules:
            raise ArgumentError("[query] edges: is for quantiles; leave it out")
        levels: dict[str, list[Any]] = {}
        for group in self.levels:
            levels.setdefault(group.column, []).extend(group.groups())
        for column, test in (flag.condition() for flag in self.flags):
            levels.setdefault(column, []).append(test)
        target = self.target
        return queries.second_moments(
            target=dict([target.condition()]) if isinstance(target, ConditionTable) else target,
            numbers=self.numbers,
            levels=levels,
            allow_empty=allow_empty,
            **rules,
        )


class RangeTable(Table, extra="allow"):
    """Public ends of the coordinates, by position or by name."""

    __pydantic_extra__: dict[str, Annotated[tuple[float, float], Field(strict=False)]] = Field(
        init=False
    )
    low: Numbers | None = None
    high: Numbers | None = None
    center: Numbers | None = None
    radius: float | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        positions = self.model_fields_set & set(type(self).model_fields)
        names = set(self.__pydantic_extra__)
        if positions not in ({"low", "high"}, {"center", "radius"}, set()) or (positions and names):
            raise ValueError(
                "needs low and high, or center and radius, or [low, high] for each name"
            )
        return self

    def range(self) -> RangeLike:
        """Build the range as a query takes it."""
        if self.low is not None and self.high is not None:
            return Box(low=self.low, high=self.high)
        if self.center is not None and self.radius is not None:
            return Ball(center=self.center, radius=self.radius)
        return self.__pydantic_extra__


_WHOLE_QUERIES: Final = (
    {"model"},
    {"second_moments", "allow_empty"},
    {"autocorrelation"},
    {"columns", "flags"},
)
"""Keys that define the query completely."""
_RULES: Final = {"clip", "missing", "edges"}
"""Keys that hold public rules for the values of columns."""
_BESIDE: Final = {"distribution", "range", "scales", "scales_from", "clip_from", *_RULES}
"""Keys that may stand beside those that define a query."""


class OneOrSeveral:
    """A table, or an array of tables, in the JSON Schema."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        one = handler(schema)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


class QuerySection(Table):
    """What is computed, in the order of the keys in the file; several `[[query]]` are joined."""

    distribution: Annotated[str, Word(*LAWS)] | None = key(None, example="groups", used=True)
    """What one release is: `groups`, `bootstrap`, `records` or `worlds`; left out where a section
    such as [prevalence] declares it."""
    mean: Texts = key((), example=["age", "hours-per-week"], used=True)
    """Numeric columns to average."""
    std: Texts = key((), example=["age"], used=True)
    """Numeric columns to take the standard deviation of."""
    rate: Listed[ConditionTable] = key(
        (), example=[{"column": "income", "equals": ">50K"}], used=True
    )
    """Shares of rows; a condition is `equals`, `above`, `at_least`, `below` or `at_most`."""
    quantile: Listed[QuantileTable] = key((), example=[{"column": "age", "level": [0.25, 0.75]}])
    """Quantiles of columns; `level` is a number or a list."""
    count_share: Number | None = key(None, example=50_000)
    """A public total: the number of rows is divided by it."""
    total: Texts = key((), example=["hours-per-week"])
    """Numeric columns to add up."""
    count: Listed[ConditionTable] = key((), example=[{"column": "age", "between": [17, 30]}])
    """Numbers of rows that meet a condition, as in `rate`; there are also `between`, and `hour`,
    `weekday`, `day`, `week`, `month`, `quarter` and `year` of a time."""
    median: Texts = key((), example=["age"])
    """Numeric columns to take the median of."""
    covariance: Listed[Pair] = key((), example=[["age", "hours-per-week"]])
    """Pairs of numeric columns."""
    correlation: Listed[Pair] = key((), example=[["age", "hours-per-week"]])
    """Pairs of numeric columns."""
    by: Listed[GroupTable] = key((), example=[{"column": "sex", "values": ["Female", "Male"]}])
    """Groups of rows, each with all of the statistics: `values`, `edges` of intervals, `per` hour
    or weekday, or the first and last of `days`, `weeks`, `months`, `quarters` or `years`; of
    several columns, every combination."""
    cells: Literal["count", "rate"] | None = key(None, example="count")
    """With `by`, instead of statistics: how many rows each group has, or which share; a histogram
    or a contingency table."""
    allow_empty: bool = key(default=False, example=True)
    """With `by` or `second_moments`: accept `values` that no row has, as of a code list with empty
    cells."""
    autocorrelation: AutocorrelationTable | None = key(
        None, example={"column": "kwh", "time": "start", "lags": [1, 24]}
    )
    """Correlation of one column with itself `lags` rows later, ordered by the column `time`."""
    columns: Texts = key((), example=["age", "hours-per-week"])
    """For `records`: numeric columns of one row."""
    flags: Listed[ConditionTable] = key((), example=[{"column": "capital-gain", "above": 0}])
    """For `records`: conditions as in `rate`, each a coordinate that is 0 or 1."""
    model: ModelTable | None = key(
        None,
        example={
            "kind": "logistic_regression",
            "features": ["age"],
            "target": "income",
            "positive": ">50K",
        },
    )
    """A fitted model: `logistic_regression`, `linear_svm`, `linear_regression`,
    `forest_importances` or `boosting_importances` and its arguments."""
    second_moments: SecondMomentsTable | None = key(
        None, example={"target": {"column": "income", "equals": ">50K"}, "numbers": ["age"]}
    )
    """What linear models need to know of the rows (`pufferslice.models`): means and products of
    `numbers`, of a column of 0 and 1 for each of the `levels`, written as in `by`, and for each of
    the `flags`, conditions as in `rate`, and of the `target`: a column, or a condition."""
    clip: dict[str, Annotated[tuple[float, float], Field(strict=False)]] | None = key(
        None, example={"age": [17, 90], "hours-per-week": [1, 99]}
    )
    """Public low and high end by column: the values of each row are moved into them first."""
    clip_from: Text | None = key(None, example="last-year.csv")
    """An earlier or public table, never the released one: its ends, rounded outwards to two digits,
    clip the columns that `clip` does not name."""
    missing: dict[str, Any] | None = key(None, example={"hours-per-week": 40})
    """For sums over rows: the public value by column that a missing one counts as. Left out, the
    middle of the clip range, and a condition on it is not met."""
    edges: dict[str, Numbers] | None = key(None, example={"age": [17, 30, 45, 60, 91]})
    """For sums over rows: public edges of the histograms from which quantiles are computed."""
    range: RangeTable | None = key(
        None,
        example={"mean(age)": [17, 90], "hours-per-week": [1, 99], "std(age)": [0, 37]},
        used=True,
    )
    """The public range that the query is clipped to, never computed from the data: by name of a
    coordinate, or of a column that only one coordinate uses (rates are in [0, 1]); or by position,
    `{ low = […], high = […] }` or `{ center = […], radius = … }`."""
    scales: ByName | None = key(
        None,
        example={"mean(age)": 10, "hours-per-week": 10, "std(age)": 5, "income": 0.1},
        used=True,
    )
    """The public unit of each coordinate, by name or as a list; 1 if left out. In these units
    isotropic noise is equally large in every coordinate, and fitted noise is small in total."""
    scales_from: Text | None = key(None, example="last-year.csv")
    """A public or held-out table, never the released one: it proposes a unit for each coordinate;
    those of `scales` come first."""

    _order: tuple[str, ...] = PrivateAttr(())
    _others: tuple["QuerySection", ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        tables = value if isinstance(value, list) and value else [value]
        first, *others = (handler(table) for table in tables)
        if any(other.distribution != first.distribution for other in others):
            raise ValueError("must have one distribution in all of its tables")
        for section, table in zip([first, *others], tables, strict=True):
            section._order = tuple(table)  # noqa: SLF001 - of this class
        first._others = tuple(others)  # noqa: SLF001 - of this class
        return first

    @classmethod
    def described(cls, query: Query, distribution: str) -> dict[str, Any] | list[dict[str, Any]]:
        """The table of a query, or those of a joined one: what `query` builds it from."""
        call = query.made
        if call is not None and call.builder == "join":
            ends = np.cumsum([0, *(part.dim for part in call.several)])
            return [
                _one_described(_slice_of(query, part, slice(*place)), distribution)
                for part, place in zip(call.several, pairwise(ends), strict=True)
            ]
        return _one_described(query, distribution)

    def query(self, table: Data, folder: Path, worlds: Iterable[str] = ()) -> Query:
        """Build the query with its range, scales and policy on missing values.

        `worlds` are files that may be released, beside the table.
        """
        released = tuple(worlds)
        parts = [each._one(table, folder, released) for each in (self, *self._others)]  # noqa: SLF001
        return parts[0] if len(parts) == 1 else queries.join(*parts)

    def _one(self, table: Data, folder: Path, worlds: Iterable[str]) -> Query:
        """Build the query of this table of the file alone."""
        for name in ("scales_from", "clip_from"):
            path = getattr(self, name)
            if path is not None and table.has_file_of(path, folder, worlds):
                raise ArgumentError(
                    f"[query] {name}: is the released table, and what it says is printed; take a "
                    f"public or held-out one, or write {name.removesuffix('_from')}"
                )
        rules = self.given(name for name in _RULES if getattr(self, name) is not None)
        if self.clip_from is not None:
            rules["clip_from"] = table.read(folder, self.clip_from)
        query = self._unscaled(rules).with_missing(table.missing)
        if self.range is not None:
            query = query.with_range(self.range.range())
        if self.scales_from is not None:
            query = query.scaled_from(table.read(folder, self.scales_from))
        return query if self.scales is None else query.with_scales(self.scales)

    def _unscaled(self, rules: Mapping[str, Any]) -> Query:
        keys = {name for name in self.model_fields_set - _BESIDE if getattr(self, name)}
        for whole in _WHOLE_QUERIES:
            if (whole - {"allow_empty"}) & keys and keys - whole:
                raise ArgumentError(
                    f"[query] {listed(sorted(whole & keys))}: is the whole query; leave "
                    f"{listed(sorted(keys - whole))} out"
                )
        if self.model is not None:
            return self.model.query(rules)
        if self.second_moments is not None:
            return self.second_moments.query(rules, allow_empty=self.allow_empty)
        if self.autocorrelation is not None:
            return queries.autocorrelation(**self.autocorrelation.given())
        if self.model_fields_set & {"columns", "flags"}:
            return columns(self.columns, flags=[flag.condition() for flag in self.flags] or None)
        statistics = self.given(name for name in self._order if name in STATISTICS)
        for name in statistics.keys() & {"rate", "count"}:
            statistics[name] = [entry.condition() for entry in getattr(self, name)]
        if "quantile" in statistics:
            statistics["quantile"] = [(entry.column, entry.level) for entry in self.quantile]
        if self.cells is not None and statistics:
            raise ArgumentError(
                "[query] cells: takes the place of statistics; leave one of them out"
            )
        if self.cells is not None and not self.by:
            raise ArgumentError("[query] cells: needs by, the groups that are counted")
        if self.allow_empty and not self.by:
            raise ArgumentError("[query] allow_empty: is for by and second_moments; leave it out")
        if not self.by:
            return summary(**rules, **statistics)
        by = {group.column: group.groups() for group in self.by}
        if len(by) < len(self.by):
            raise ArgumentError(
                "[query] by: names a column twice; give all groups of a column together"
            )
        if self.cells is not None:
            return queries.contingency_table(
                by, statistic=self.cells, missing=self.missing, allow_empty=self.allow_empty
            )
        return queries.group_by(by, allow_empty=self.allow_empty, **rules, **statistics)


def plain(value: Any) -> Any:  # data of any kind
    """The value as TOML has it: lists, tables, numbers and texts."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    return value


def _slice_of(joined: Query, part: Query, place: slice) -> Query:
    """A part of a joined query, with the range and the scales that it has there."""
    box = joined.range
    range_ = Box(box.low[place], box.high[place]) if isinstance(box, Box) else None
    return attrs.evolve(part, range=range_, scales=joined.scales[place], missing=joined.missing)


def _one_described(query: Query, distribution: str) -> dict[str, Any]:
    call = query.made or Call(query.kind)
    if query.made is None or call.builder not in _DESCRIBED:
        raise ArgumentError(
            f"the query {quoted(call.builder)} cannot be written as TOML, which has "
            f"{listed(sorted(_DESCRIBED))}, and joins of them. Keep the scenario with pickle, or "
            "build it in Python wherever it is needed"
        )
    section = {"distribution": distribution, **_DESCRIBED[call.builder](call.named)}
    if isinstance(query.range, Box):
        section["range"] = {"low": query.range.low.tolist(), "high": query.range.high.tolist()}
    elif query.range is not None:
        section["range"] = {
            "center": query.range.center.tolist(),
            "radius": float(query.range.radius),
        }
    if not np.all(query.scales == 1):
        section["scales"] = query.scales.tolist()
    return section


def _conditions_described(name: str, conditions: Any) -> list[dict[str, Any]]:
    return [ConditionTable.described(*each) for each in conditions_of(name, conditions)]


def _statistics_described(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `summary`, `group_by` and `contingency_table`."""
    section: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in {"rate", "count", "flags"}:
            section[name] = _conditions_described(name, value)
        elif name == "quantile":
            section[name] = [{"column": c, "level": level} for c, level in quantile_levels(value)]
        elif name == "by":
            section[name] = [GroupTable.described(column, each) for column, each in value.items()]
        elif name in STATISTICS or name in _RULES or name == "allow_empty":
            section[name] = plain(value)
    return {name: value for name, value in section.items() if value not in (None, [], {}, False)}


def _model_described(kind: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def described(arguments: Mapping[str, Any]) -> dict[str, Any]:
        model = {"kind": kind} | {
            name: plain(value)
            for name, value in arguments.items()
            if name not in _RULES and value is not None
        }
        positive = model.get("positive")
        if isinstance(positive, queries.Condition):
            if positive.comparison != "equals":
                raise ArgumentError(
                    "positive is a condition, which TOML has no key for; make a column of its "
                    "answers, and name its value"
                )
            model["positive"] = positive.value
        return {
            "model": model,
            **_statistics_described({k: arguments[k] for k in _RULES & set(arguments)}),
        }

    return described


def _cells_described(arguments: Mapping[str, Any]) -> dict[str, Any]:
    cells = arguments.get("statistic", "count")
    return {"cells": cells, **_statistics_described(arguments)}


_Described = Callable[[Mapping[str, Any]], dict[str, Any]]
_DESCRIBED: Final[Mapping[str, _Described]] = {
    **{kind: _model_described(kind) for kind in _MODELS},
    "summary": _statistics_described,
    "group_by": _statistics_described,
    "contingency_table": _cells_described,
    "columns": lambda arguments: {
        "columns": plain(arguments["names"]),
        "flags": _conditions_described("flags", arguments.get("flags")),
    },
    "autocorrelation": lambda arguments: {"autocorrelation": plain(arguments)},
}
"""Keys of [query] from the arguments of the builder, by its name."""


class DerivedSection(Table):
    """Statistics that `release` computes from released values, after noise, beside [query]'s."""

    ratio: Listed[Pair] = key((), example=[["count(sex = Female)", "count(sex = Male)"]])
    """Pairs of released statistics, by name."""
    std: Texts = key((), example=["age"])
    """Columns whose mean and mean product with itself are released."""
    covariance: Listed[Pair] = key((), example=[["age", "hours-per-week"]])
    """Pairs of columns whose means and mean product are released."""
    correlation: Listed[Pair] = key((), example=[["age", "hours-per-week"]])
    """Pairs of columns whose means and mean products are released."""
    margin: dict[str, Texts] = key(
        {}, example={"race = White": ["count(race = White, sex = Female)"]}
    )
    """Sums of released cells, by the name of the sum."""
    quantile: Listed[QuantileTable] = key((), example=[{"column": "age", "level": [0.25, 0.75]}])
    """Quantiles from a released histogram."""
    regression: dict[str, Texts] = key({}, example={"hours-per-week": ["age"]})
    """Columns by target: the coefficients of a linear regression."""
    simultaneous: bool = key(default=False, example=True)
    """All intervals hold together with 95 %, instead of each alone."""

    def arguments(self) -> dict[str, Any]:
        """Return the statistics as `Release.derived` takes them."""
        arguments = self.given()
        arguments.pop("simultaneous", None)
        if "quantile" in arguments:
            arguments["quantile"] = [(entry.column, entry.level) for entry in self.quantile]
        return arguments


class BootstrapSection(Table):
    """For distribution `bootstrap`: tables resampled from each group."""

    n_replicates: int = key(example=200)
    """Resampled tables per group."""
    seed: int = key(example=7)
    """Public seed of the resampling."""


class Component(Table):
    """A Gaussian of a mixture, and its probability."""

    weight: float
    mean: Numbers
    cov: Matrix


class Gaussian(Table):
    """A Gaussian distribution of the query, in the user's units, or a mixture of several."""

    mean: Numbers | None = None
    cov: Matrix | None = None
    components: Listed[Component] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.model_fields_set not in ({"mean", "cov"}, {"components"}):
            raise ValueError("needs mean and cov, or components, a list of { weight, mean, cov }")
        return self

    @staticmethod
    def described(world: GaussianDistribution | GaussianMixture) -> dict[str, Any]:
        """The table of a distribution."""
        if isinstance(world, GaussianDistribution):
            return {"mean": world.mean.tolist(), "cov": world.cov.tolist()}
        weights = world.counts / WEIGHT_QUANTA
        parts = zip(weights, world.components, strict=True)
        return {"components": [{"weight": float(w), **Gaussian.described(one)} for w, one in parts]}

    def distribution(self) -> GaussianDistribution | GaussianMixture:
        """Build the distribution that the query is declared to have."""
        if self.components is None:
            return GaussianDistribution(mean=np.asarray(self.mean), cov=np.asarray(self.cov))
        parts = [
            GaussianDistribution(mean=np.asarray(part.mean), cov=np.asarray(part.cov))
            for part in self.components
        ]
        return GaussianMixture.weighted(parts, [part.weight for part in self.components])


_EARLIER: Final = frozenset({"moments_from", "history", "loads"})
"""Keys that name tables beside that of [data]."""


@final
@attrs.frozen(kw_only=True)
class Files:
    """The files of the tables that a scenario was made from."""

    kept: Mapping[str, Any]
    """What the scenario keeps of each table, by the name of the argument or of the world."""
    named: Mapping[str, str]
    """Files that the user named, for tables in memory."""

    def __attrs_post_init__(self) -> None:
        unknown = sorted(set(self.named) - set(self.kept))
        if unknown:
            raise ArgumentError(
                f"files names {given(unknown[0])}, which the scenario was not made from; it has "
                f"{listed(sorted(self.kept)) or 'no tables'}"
            )

    def path(self, name: str) -> str:
        """The file of a table, or the name of a shipped one."""
        kept = self.kept.get(name)
        if name in self.named:
            return self.named[name]
        if isinstance(kept, Named):
            return kept.path
        if isinstance(kept, Shipped) and name in {"table", "moments_from"}:
            return kept.dataset.replace("_", "-")
        what = "left out" if kept is None else "in memory"
        what = f"a {kept.kind} {what}" if isinstance(kept, Held) else what
        raise ArgumentError(
            f"{name} is {what}, and TOML names files; say which file has its rows, as "
            f"to_toml(files={{{name!r}: 'people.csv'}})"
        )

    def data(self) -> dict[str, Any]:
        """The keys of [data] that name the table."""
        path = self.path("table")
        if path.replace("-", "_") in SHIPPED:
            return {"dataset": path}
        nulls = {each.null_values for each in self.kept.values() if isinstance(each, Named)}
        if len(nulls) > 1:
            raise ArgumentError(
                "null_values differ between the tables, and TOML has one list for all; read them "
                "with the same ones"
            )
        null_values = [text for each in nulls for text in each]
        return {"path": path} | ({"null_values": null_values} if null_values else {})


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class TemplateInputs:
    """The inputs from which a section makes worlds, beside its own keys."""

    data: Data
    folder: Path
    table: FileTable | pa.Table | None
    """Table of [data], if the section reads it."""
    source: Source | None
    progress: Progress

    def earlier(self, section: str, path: str | None) -> FileTable | pa.Table | None:
        """Find the table that moments come from, if it is not the released one."""
        if path is None:
            return None
        name = path.replace("-", "_")
        if name in SHIPPED:
            return SHIPPED[name]()
        if self.data.has_file_of(path, self.folder):
            raise ArgumentError(
                f"[{section}] moments_from: is the released table; leave it out, or name an "
                "earlier one"
            )
        return self.data.file(self.folder, path)


class WorldsTemplate(Table):
    """A section that declares the worlds of distribution `worlds` by a few numbers."""

    reads_table: ClassVar[bool] = False
    """Whether the worlds are made from the table of [data]."""
    pieces: ClassVar[str] = "worlds"
    """Name of the items that progress counts."""

    @classmethod
    def described(cls, arguments: Mapping[str, Any], files: "Files") -> dict[str, Any]:
        """The section from the arguments of the template: what `scenario` passes on."""
        section = {name: plain(arguments[name]) for name in cls.model_fields if name in arguments}
        for name in _EARLIER & set(section):
            section[name] = files.path(name)
        return section

    def numbers(self) -> Sequence[float]:
        """Return the secrets as numbers, in their order; empty if they are not numbers."""
        return ()

    @property
    def distribution(self) -> Literal["worlds", "records"]:
        """What one release is."""
        return "worlds"

    @abstractmethod
    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario."""


class PrevalenceSection(WorldsTemplate):
    """Hide how common something is among the rows of [data]."""

    reads_table: ClassVar[bool] = True
    pieces: ClassVar[str] = "tables"
    property: ConditionTable | None = key(None, example={"column": "sex", "equals": "Female"})
    """The property that some rows have: a condition as in `rate`."""
    values: GroupTable | None = key(None, example={"column": "race", "values": ["White", "Black"]})
    """Or several values of a column, all hidden at once: how the rows are divided among them."""
    within: float | None = key(None, example=0.05)
    """Any two shares that are at most so far apart are hidden; 0.05 is five points."""
    moments_from: Text | None = key(None, example="last-year.csv")
    """An earlier, held-out or public table with the same columns, or `adult-last-year`: the noise
    is fitted to its rows. Left out, it is fitted to the released rows, and the certificate says
    so."""
    n_rows: int | None = key(None, example=32_561)
    """Public number of rows of what is released; left out, as many as the table has."""
    design: Annotated[str, Word(*DESIGNS)] = key("stratified", example="stratified")
    """`stratified` (default): exactly a share of the rows has the property; `independent`: each row
    by itself."""
    prior: Annotated[str, Word(*PRIOR_FORMS, "gaussian")] = key("rows", example="rows")
    """`rows` (default): sums over rows; `draws`: tables drawn with `seed` are the prior, for
    statistics that are not sums."""
    shares: Numbers | None = key(None, example=[0.3, 0.325, 0.35])
    """Of `draws`: the share of rows that have the property, in each world."""
    n_draws: int | None = key(None, example=500)
    """How many tables of each world `draws` draws; default 500."""
    seed: int | None = key(None, example=7)
    """The public seed of `draws`."""

    @classmethod
    def described(cls, arguments: Mapping[str, Any], files: "Files") -> dict[str, Any]:
        """The section from the arguments of `Scenario.from_prevalence`."""
        rest = {name: value for name, value in arguments.items() if name != "values"}
        column, several = arguments["column"], arguments.get("values")
        if several is not None:
            hidden = {"values": GroupTable.described(column, several)}
        else:
            condition = condition_of(arguments["value"])
            hidden = {"property": ConditionTable.described(column, condition)}
        return hidden | super().described(rest, files)

    def numbers(self) -> Sequence[float]:
        """Return the shares of drawn worlds."""
        return self.shares or ()

    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario by `Scenario.from_prevalence`."""
        if (self.property is None) == (self.values is None):
            raise ArgumentError("[prevalence]: needs property or values, one of the two")
        chosen: dict[str, Any] = {}
        if self.property is not None:
            chosen["column"], chosen["value"] = self.property.condition()
        if self.values is not None:
            chosen = {"column": self.values.column, "values": self.values.groups()}
        names = ("within", "n_rows", "design", "prior", "shares", "n_draws", "seed")
        return Scenario.from_prevalence(
            inputs.table,
            **chosen,
            query=query,
            moments_from=inputs.earlier("prevalence", self.moments_from),
            source=inputs.source,
            progress=inputs.progress,
            **self.given(names),
        )


_KERNELS: Final[Mapping[str, Callable[[float], float]]] = {
    "exponential": lambda gap: math.exp(-gap),
    "squared_exponential": lambda gap: math.exp(-(gap**2) / 2),
}
"""Correlations of a Gaussian process at two times, by their distance in length scales."""


class ProcessTable(Table):
    """A Gaussian process at some times; the first is that of the hidden number."""

    kernel: Annotated[str, Word(*_KERNELS)]
    variance: float
    length_scale: float
    times: Numbers
    mean: float = 0.0

    def moments(self) -> tuple[Floats, Floats]:
        """Compute mean and covariance at the times."""
        check_above(0, variance=self.variance, length_scale=self.length_scale)
        correlation = _KERNELS[self.kernel]

        def covariance(first: float, second: float) -> float:
            return self.variance * correlation(abs(first - second) / self.length_scale)

        return gaussian_process(covariance, self.times, mean=self.mean)


class AttributeSection(WorldsTemplate):
    """Hide a number: by a declared model (distribution `worlds`), or earlier cases (`records`)."""

    name: Text = key("attribute", example="indoor temperature")
    """What the number is; of a history, the column that has it."""
    values: Numbers | None = key(None, example=[18.0, 19.0, 20.0, 21.0])
    """Which values it can have, by a model."""
    mean: Numbers | None = key(None, example=[20.0, 260.0, 5.5])
    """Means of the number, first, and of the statistics."""
    cov: Matrix | None = key(
        None, example=[[3.5, 95.0, 2.3], [95.0, 2900.0, 69.0], [2.3, 69.0, 2.2]]
    )
    """Their covariance."""
    process: ProcessTable | None = key(
        None,
        example={
            "kernel": "exponential",
            "variance": 4,
            "length_scale": 3,
            "times": [20, 8, 14, 22],
        },
    )
    """Or a Gaussian process: the number is its value at the first of `times`, the statistics those
    at the others. `kernel` is `exponential` or `squared-exponential`; `mean` is 0 if left out."""
    history: Text | None = key(None, example="earlier-cases.csv")
    """Or a table of earlier cases, one in each row: the distribution under a bin is that of the
    rows in it."""
    bins: Numbers | None = key(None, example=[18.0, 20.0, 22.0])
    """Of a history: the public edges between which the number lies."""
    within: float | None = key(None, example=2.0)
    """Of a history: protect only pairs of bins that hold two numbers at most so far apart; left
    out, all."""

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        forms = self.model_fields_set - {"name"}
        by_history = {"history", "bins"}
        by_model = ({"values", "mean", "cov"}, {"values", "process"})
        if forms not in by_model and forms - {"within"} != by_history:
            raise ValueError("needs values with mean and cov or with process; or history and bins")
        return self

    @property
    def distribution(self) -> Literal["worlds", "records"]:
        """What one release is."""
        return "worlds" if self.history is None else "records"

    @classmethod
    def described(cls, arguments: Mapping[str, Any], files: "Files") -> dict[str, Any]:
        """The section from the arguments of `Scenario.from_attribute`."""
        section = super().described(arguments, files)
        if "values" in section:
            section.pop("within", None)  # the pairs of a model are listed
        return section

    def numbers(self) -> Sequence[float]:
        """Return the values as numbers."""
        return self.values or ()

    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario by `Scenario.from_attribute`."""
        options = self.given(("name", "values", "mean", "cov", "bins", "within"))
        if self.history is not None:
            options["history"] = inputs.data.file(inputs.folder, self.history)
        if self.process is not None:
            options["mean"], options["cov"] = self.process.moments()
        return Scenario.from_attribute(query=query, source=inputs.source, **options)


_Times = Annotated[tuple[int, int], Field(strict=False)]
"""Two times of a chain."""


class PeriodsTable(Table):
    """Periods of the slots: one after another, numbered from 1, or listed."""

    column: Text
    every: int | None = None
    values: Listed[Any] | None = None

    def of(self, length: int | None) -> dict[str, list[Any]]:
        """List the value of the column in each slot."""
        if (self.every is None) == (self.values is None) or (self.every and length is None):
            raise ArgumentError(
                "[occupancy] periods: needs values, one for each slot, or every, the number of "
                "slots of a period, with length"
            )
        if self.values is not None:
            return {self.column: list(self.values)}
        every = self.every or 0
        check_count(1, every=every)
        return {self.column: [slot // every + 1 for slot in range(length or 0)]}


class RegularTimes(Table):
    """One time of every so many, as the same hour of each day."""

    first: int
    every: int


class OccupancySection(WorldsTemplate):
    """Hide in which state a home was at some times."""

    pieces: ClassVar[str] = "times"
    chain: Annotated[
        Matrix | dict[str, Matrix],
        either("a square matrix of probabilities, or one for each name"),
    ] = key(example=[[0.9, 0.1], [0.2, 0.8]])
    """Entry j of row i: the probability of state j after state i; or several chains by name, each a
    prior."""
    length: int | None = key(None, example=48)
    """Number of times, or slots."""
    positions: Annotated[
        Literal["all"] | RegularTimes | Listed[int | _Times],
        either("'all', { first, every }, or a list of integers and of [first, last]"),
    ] = key("all", example="all", others=[{"first": 40, "every": 48}, [[18, 20]]])
    """The times, from 0, whose states are protected: `all` (default); one of `every` so many times
    from the `first`; or a list, in which `[first, last]` is an interval during which the chain
    stays in one state."""
    start: Annotated[
        Literal["stationary"] | Numbers, either("'stationary' or a list of probabilities")
    ] = key("stationary", example="stationary")
    """Distribution of the first state: `stationary` (default) or its probabilities."""
    loads: Text | None = key(None, example="loads.csv")
    """Table of slots with their states, from which it is known what a slot adds in each state; left
    out, the query counts states alone."""
    state: Text = key("state", example="state")
    """Column of `loads` that has the state."""
    states: Listed[Any] | None = key(None, example=["empty", "occupied"])
    """Its values in the order of the chain; left out, 0, 1, …"""
    periods: PeriodsTable | None = key(None, example={"column": "week", "every": 336})
    """With `loads`: the column by which the query is grouped, and its value in each slot: `values`,
    or `every` so many slots a number from 1."""
    name: Text = key("the home", example="the home")
    """Whose state it is."""
    counted: Listed[int] | None = key(None, example=[1])
    """States that the query counts, in its order; left out, all but state 0."""
    windows: Listed[_Times] | None = key(None, example=[[0, 24], [24, 48]])
    """Parts of the time, as `[first, stop]`, whose counts the query has one after the other; left
    out, all of it."""
    n_draws: int | None = key(None, example=1000)
    """Where there are too many counts for their exact distribution: draws per secret, which are
    then the prior."""
    seed: int | None = key(None, example=7)
    """Of `n_draws`: the public seed."""

    @classmethod
    def described(cls, arguments: Mapping[str, Any], files: "Files") -> dict[str, Any]:
        """The section from the arguments of `Scenario.from_occupancy`."""
        section = super().described(arguments, files)
        for column, values in section.pop("periods", {}).items():
            section["periods"] = {"column": column, "values": values}
        return section

    def _protected(self, length: int) -> Sequence[int | tuple[int, int]]:
        """List the protected times."""
        if isinstance(self.positions, RegularTimes):
            check_count(1, every=self.positions.every)
            return range(self.positions.first, length, self.positions.every)
        return range(length) if isinstance(self.positions, str) else self.positions

    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario by `Scenario.from_occupancy`."""
        periods = None if self.periods is None else self.periods.of(self.length)
        length = len(next(iter(periods.values()))) if periods else self.length
        if length is None:
            raise ArgumentError("[occupancy] length: is required, or periods with values")
        options = self.given(
            ("start", "state", "states", "name", "counted", "windows", "n_draws", "seed")
        )
        return Scenario.from_occupancy(
            self.chain,
            query=query,
            positions=self._protected(length),
            length=length,
            periods=periods,
            loads=None if self.loads is None else inputs.data.file(inputs.folder, self.loads),
            source=inputs.source,
            progress=inputs.progress,
            **options,
        )


class VolumeSection(WorldsTemplate):
    """Hide how many rows [data] has."""

    reads_table: ClassVar[bool] = True
    name: Text = key("the table", example="the shop")
    """Whose size it is."""
    ratio: float = key(1.1, example=1.1)
    """Any two sizes within this factor are hidden."""
    up_to: int = key(example=40_000)
    """The largest size, which is public."""
    moments_from: Text | None = key(None, example="last-year.csv")
    """As in [prevalence]."""

    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario by `Scenario.from_volume`."""
        return Scenario.from_volume(
            inputs.table,
            query=query,
            moments_from=inputs.earlier("volume", self.moments_from),
            source=inputs.source,
            **self.given(("name", "ratio", "up_to")),
        )


class SupplierSection(WorldsTemplate):
    """Hide how many rows of [data] one supplier or customer has."""

    reads_table: ClassVar[bool] = True
    property: ConditionTable = key(example={"column": "supplier", "equals": "Acme"})
    """Whose rows are hidden: a condition as in `rate`."""
    ratio: float = key(1.1, example=1.1)
    """Any two numbers of their rows within this factor are hidden."""
    up_to: int = key(example=3_000)
    """The largest number of their rows, which is public."""
    moments_from: Text | None = key(None, example="last-year.csv")
    """As in [prevalence]."""

    @classmethod
    def described(cls, arguments: Mapping[str, Any], files: "Files") -> dict[str, Any]:
        """The section from the arguments of `Scenario.from_supplier`."""
        condition = condition_of(arguments["value"])
        hidden = {"property": ConditionTable.described(arguments["column"], condition)}
        return hidden | super().described(arguments, files)

    def scenario(self, query: Query, inputs: TemplateInputs) -> Scenario:
        """Build the scenario by `Scenario.from_supplier`."""
        column, condition = self.property.condition()
        return Scenario.from_supplier(
            inputs.table,
            column=column,
            value=condition,
            query=query,
            moments_from=inputs.earlier("supplier", self.moments_from),
            source=inputs.source,
            **self.given(("ratio", "up_to")),
        )


class PriorSection(Table):
    """Where the prior comes from, and whether it is known or sampled."""

    source: Annotated[Source, Word(*SOURCES)] | None = key(None, example="released-data", used=True)
    """`public-model`, `held-out` or `released-data`; the certificate states it."""
    kind: Annotated[str, Word("empirical", "sampled")] | None = key(
        None, example="empirical", used=True
    )
    """`empirical` (default): the data are the prior. `sampled`: they are independent draws of it,
    and `failure_probability` is required."""
    band: Annotated[BandKind, Word(*BANDS)] = key("order_statistics", example="order-statistics")
    """Around sampled distributions: `order-statistics` (default) or `dkw`."""


class ProfileSection(Table):
    """The slices, which are public: for notions `joint` and `average`."""

    kind: (
        Annotated[
            str,
            Word("uniform", "sphere", WHOLE_SPHERE, "axes", "orthogonal", "blocks", "given"),
        ]
        | None
    ) = key(None, example="uniform")
    """`uniform` (default: the drawn slices are the profile), `sphere` (they stand for all
    directions), `whole-sphere` (all directions, in closed form; nothing is drawn), `axes`,
    `orthogonal`, `blocks` or `given`."""
    n_directions: int | None = key(None, example=200)
    """Number of random directions (per block)."""
    seed: int | None = key(None, example=7)
    """Public seed of the directions."""
    n_sets: int | None = key(None, example=10)
    """For `orthogonal`: number of random bases."""
    blocks: Listed[Listed[int]] | None = key(None, example=[[0, 1], [2, 3]])
    """For `blocks`: lists of coordinates, counted from 0."""
    directions: Matrix | None = key(None, example=[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    """For `given`: unit vectors."""
    weights: Numbers | None = key(None, example=[0.5, 0.5])
    """For `given`: weights of the directions; equal if left out."""

    def profile(self, dim: int) -> AnyProfile:
        """Build the directions and weights, or the whole sphere."""
        kind = self.kind or ("uniform" if self.directions is None else "given")
        if kind == "given":
            directions = self._required("directions")
            if self.weights is None:
                return FiniteProfile.of(directions)
            return FiniteProfile(directions=directions, weights=self.weights)
        if kind == WHOLE_SPHERE:
            return WholeSphere(dim=dim)
        if kind == "axes":
            return FiniteProfile.axes(dim=dim)
        names = {"orthogonal": ["n_sets"], "blocks": ["n_directions", "blocks"]}
        numbers = {
            name: self._required(name) for name in ("seed", *names.get(kind, ["n_directions"]))
        }
        if kind == "sphere":
            return SampledSphere.draw(dim=dim, **numbers)
        build: Callable[..., FiniteProfile] = getattr(FiniteProfile, kind)
        return build(dim=dim, **numbers)

    def _required(self, name: str) -> Any:  # the type of the key
        value = getattr(self, name)
        if value is None:
            raise ArgumentError(f"[profile] {name}: is required for this kind")
        return value


_NAMES: Final = {"renyi": "srpp"}
"""Names in files of kinds of claims whose name differs there."""

_CLAIMS: Final[Mapping[str, tuple[str, ...]]] = {
    _NAMES.get(claim.kind, claim.kind): tuple(field.name for field in attrs.fields(claim))
    for claim in RELEASE_CLAIMS
}
"""Names of the numbers of each kind of claim."""

_WHOLE: Final = {_NAMES.get(claim.kind, claim.kind): claim.notion for claim in RELEASE_CLAIMS}
"""Notion about the whole output, by kind of claim."""

_NUMBERS: Final = ("order", "epsilon", "delta", "at_most", "bits")
"""Names of the numbers of all claims."""


def claim_name(claim: Claim) -> str:
    """Return the name that files use for the kind of a claim."""
    return _NAMES.get(claim.whole.kind, claim.whole.kind)


class GuaranteeSection(Table):
    """The claim; it has no defaults. Required, but for a part of a budget, which has its own."""

    notion: Annotated[str, Word(*RELEASE_NOTIONS)] = key(
        example="unsliced", others=["guess", "joint", "average"], used=True
    )
    """`unsliced`: the whole output. `guess`: how often someone guesses the secret from it.
    `information`: how many bits it tells. `joint` and `average`: slices of the output only, which
    [profile] names."""
    order: float | None = key(None, example=4, used=True)
    """Rényi order, above 1."""
    epsilon: float | None = key(None, example=1.0, used=True)
    """The bound that is claimed, above 0; not for `guess` and `information`."""
    delta: float | None = key(None, example=1e-5)
    """Instead of `order`: an (ε, δ) claim."""
    at_most: float | None = key(None, example=0.6)
    """For notion `guess`: the share of right guesses between two protected values, both equally
    likely; above 0.5."""
    bits: float | None = key(None, example=0.1)
    """For notion `information`: the divergence between two protected values (Kullback-Leibler)."""
    claim: Annotated[str, Word(*_CLAIMS)] | None = key(None, example="srpp")
    """`srpp` (a Rényi claim), `epsilon-delta`, `guess` or `information`. It follows from the other
    keys; given, it must agree with them."""
    deltas: Numbers = key(DEFAULT_DELTAS, example=[1e-5])
    """Of the (ε, δ) views; default `[1e-5]`."""
    failure_probability: float | None = key(None, example=0.01)
    """Probability that the claim does not hold; required for samples that are used
    and for the sphere, else refused."""

    def target(self) -> Claim:
        """Build the claim as a value, without its slices."""
        given = {name for name in _NUMBERS if getattr(self, name) is not None}
        whole = "unsliced" if self.notion in SLICED_NOTIONS else self.notion
        kinds = [kind for kind, notion in _WHOLE.items() if notion == whole]
        claim = self.claim or max(kinds, key=lambda kind: len(given & set(_CLAIMS[kind])))
        if claim not in kinds:
            raise ArgumentError(
                f"[guarantee] claim: {claim!r} does not go with notion {self.notion!r}"
            )
        for name in _NUMBERS:
            if name in given and name not in _CLAIMS[claim]:
                raise ArgumentError(
                    f"[guarantee] {name}: is not part of claim {claim!r}; leave it out"
                )
            if name not in given and name in _CLAIMS[claim]:
                raise ArgumentError(f"[guarantee] {name}: is required for claim {claim!r}")
        return claim_of(self.given(("notion", *_CLAIMS[claim])))


class CalibrationSection(Table):
    """How the noise is found; left out, the best way that the library knows."""

    shape: Annotated[
        Annotated[str, Word(*SHAPES)] | Matrix | None,
        either("'fitted', 'diagonal', 'isotropic', or a covariance as lists of numbers"),
    ] = key(None, example="fitted")
    """Of the noise: `fitted` to the secret (default), `diagonal`, `isotropic`, or a public
    covariance `[[…], …]` in scaled coordinates. Sliced claims have isotropic noise."""
    guard: float | None = key(None, example=0.1)
    """A public radius in scaled coordinates: shifts of the output up to it are always hidden."""
    weights: ByName | None = key(None, example={"mean(age)": 4.0})
    """How much the noise of each coordinate counts, by its name or as a list; 1 if left out. For
    shapes `fitted` and `diagonal`."""
    effort: Annotated[Effort, Word(*get_args(Effort))] = key("thorough", example="thorough")
    """How long the search for couplings takes: `thorough` (default) or `quick`."""
    accuracy: dict[str, float] | None = key(None, example={"mean(age)": 5.0})
    """Half-widths of 95 % intervals that coordinates need, by name, in your units: the claim is
    then the strongest that allows them, and at least that of [guarantee]."""
    coupling: Text | None = key(None, example="independent")
    """Of sums of rows, how the rows of a change meet: `independent`, `cells:NAME` or
    `transport:NAME` by equal or near cells of a column that the query names (`*` for all its
    conditions), or `transport`; left out, the one that needs the least noise."""
    person: Annotated[tuple[float, float], Field(strict=False)] | None = key(
        None, example=[1.0, 1e-6]
    )
    """Epsilon and delta of differential privacy that any one person gets as well; needs
    `moments_from`."""
    noise_std: float | None = key(None, example=0.5)
    """Certify this noise, in scaled coordinates (with a shape, in whitened ones), instead of the
    smallest."""
    rule: Annotated[Rule, Word(*RULES)] = key("tight", example="tight")
    """Of sliced claims: `tight`, or `closed-form`: the theorems of the paper."""
    envelope: Annotated[Envelope, Word(*ENVELOPES)] | None = key(None, example="transport")
    """Of sliced claims: `transport`, `worst-gap` or, for Gaussian distributions, `exact`."""

    def method(self, *, gaussian: bool) -> Method | None:
        """Return rule and envelope; none where the file leaves the choice to the library."""
        if not self.given(("rule", "envelope")):
            return None
        default: Envelope = "exact" if gaussian else "transport"
        if self.rule == "closed_form":
            default = "worst_gap"
        return Method(rule=self.rule, envelope=self.envelope or default)


class ScenarioFile(File):
    """scenario.toml: what one release is, what is protected, and how much."""

    header: ClassVar[str] = """\
What one release is, what is protected, and how much. Run it with
  pufferslice calibrate scenario.toml --out certificate.json
  pufferslice release scenario.toml --certificate certificate.json \\
      --ledger census.ledger --out release.json --group Black"""

    data: Data = Field(default_factory=Data)
    secret: SecretSection = Field(default_factory=SecretSection)
    query: Annotated[QuerySection, OneOrSeveral()]
    derived: DerivedSection = Field(default_factory=DerivedSection)
    bootstrap: BootstrapSection | None = None
    worlds: dict[str, Text] = Field({}, examples=[{"before": "before.csv", "after": "after.csv"}])
    """For distribution `worlds`: the file of each world."""
    gaussian: dict[str, Gaussian] = Field(
        {}, examples=[{"before": {"mean": [39.0], "cov": [[0.01]]}}]
    )
    """Or `[gaussian.NAME]` for each world: `mean` and `cov` of the query, in its own units, or
    `components`, a list of `{ weight, mean, cov }`: a mixture."""
    prevalence: PrevalenceSection | None = None
    attribute: AttributeSection | None = None
    occupancy: OccupancySection | None = None
    volume: VolumeSection | None = None
    supplier: SupplierSection | None = None
    prior: PriorSection = Field(default_factory=PriorSection)
    profile: ProfileSection = Field(default_factory=ProfileSection)
    guarantee: GuaranteeSection | None = None
    calibration: CalibrationSection = Field(default_factory=CalibrationSection)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Request:
    """A scenario file, and all that follows from it."""

    file: ScenarioFile
    claimed: GuaranteeSection
    """Section of the claim."""
    scenario: Scenario
    profile: AnyProfile | None
    """Profile of the slices; None where the claim needs none."""
    target: Claim
    """Claim without its slices; see `guarantee`."""
    table: FileTable | pa.Table | None
    """Data that the scenario was built from; None for declared worlds."""

    @property
    def guarantee(self) -> Claim:
        """Claim along the profile, if it is sliced, as `certify_release` takes it."""
        return self.target if self.profile is None else self.target.along(self.profile)

    @property
    def method(self) -> Method | None:
        """Rule and envelope; None where the file leaves the choice to the library."""
        return self.file.calibration.method(gaussian=self.scenario.prior_kind == "gaussian")

    @property
    def is_of_one_table(self) -> bool:
        """Whether worlds were made from the table of [data], which is then released as a whole."""
        return self.table is not None and self.scenario.rule is None

    def chosen_rows(self, *, group: str | None = None, row: int | None = None) -> object:
        """Select rows of the table: one by its place, those with a secret, or all of a world's."""
        scenario = self.scenario
        if self.is_of_one_table and group is None and row is None:
            return self.table
        if self.table is None or scenario.rule is None:
            raise ArgumentError(
                "distribution 'worlds' has no rows to choose among; use --rows FILE"
            )
        frame = frame_of_rows(self.table)
        if row is not None:
            if not 0 <= row < len(frame):
                raise ArgumentError(f"--row must be from 0 to {len(frame) - 1}, got {row}")
            return frame[[row]]
        columns = dict.fromkeys((*scenario.rule.columns, *scenario.query.columns))
        complete = without_missing(frame, list(columns), scenario.query.missing)[0]
        labels = scenario.rule.labels(complete)
        places = [i for i, label in enumerate(labels) if label == group]
        if not places:
            raise ArgumentError(
                f"--group {given(group)} has no rows; the secrets are {listed(scenario.secrets)}"
            )
        return complete[places]


def toml_of_scenario(scenario: Scenario, named: Mapping[str, str]) -> str:
    """Write a scenario as TOML; `named` are files of tables in memory."""
    call = scenario.made
    if call is None or call.builder == "from_moments":
        raise ArgumentError(
            "only a scenario of one template and one prior is TOML: this one was put together by "
            "hand, from several tables' priors or from moments that were handed over. Keep it with "
            "pickle, or build it in Python wherever it is needed"
        )
    arguments, query = call.named, call.named["query"]
    worlds = arguments.get("worlds", {})
    tables = {name: arguments[name] for name in ("table", *_EARLIER) if name in arguments}
    declared = {k: each for k, each in worlds.items() if isinstance(each, _GAUSSIANS)}
    tables |= {name: each for name, each in worlds.items() if name not in declared}
    template = _TEMPLATES.get(call.builder)
    if template is not None and template.reads_table:
        tables = {"table": None} | tables
    files = Files(kept=tables, named=named)
    if "probabilities" in arguments or (declared and len(declared) < len(worlds)):
        raise ArgumentError(
            "probabilities, and worlds of which some are tables and others declared, have no key "
            "in TOML; leave probabilities out, and make all worlds alike"
        )
    data = files.data() if "table" in tables else {}
    document: dict[str, Any] = {
        "data": data | {"missing": query.missing},
        "secret": _secret_described(scenario, arguments),
        "query": QuerySection.described(query, scenario.distribution),
        "bootstrap": plain(attrs.asdict(arguments["bootstrap"]))
        if "bootstrap" in arguments
        else {},
        "gaussian": {name: Gaussian.described(each) for name, each in declared.items()},
        "worlds": {name: files.path(name) for name in worlds if name not in declared},
        "prior": {
            key: value.replace("_", "-")
            for key, value in (
                ("source", arguments.get("source")),
                ("kind", "sampled" if scenario.prior_kind == "sampled" else None),
            )
            if value is not None
        },
    }
    if template is not None:
        document[call.builder.removeprefix("from_")] = template.described(arguments, files)
    return toml_of({name: section for name, section in document.items() if section})


def _secret_described(scenario: Scenario, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of [secret]."""
    section: dict[str, Any] = {}
    match arguments.get("secret"):
        case str(column):
            section = {"column": column}
        case Bins() as bins:
            section = {"bins": plain(attrs.asdict(bins, filter=lambda _, value: value is not None))}
        case None:
            section = (
                {"name": arguments["name"]} if "worlds" in arguments and "name" in arguments else {}
            )
        case names:
            section = {"columns": plain(names)}
    is_default = scenario.pairs == chosen_pairs("all", scenario.secrets)
    is_template = "worlds" not in arguments and "secret" not in arguments
    by_model = "mean" in arguments and "within" in arguments
    if is_template and not by_model:
        is_default = scenario.pairs == scenario.made_pairs
    return section if is_default else section | {"pairs": [list(pair) for pair in scenario.pairs]}


def _fields_of(value: Bins | Bootstrap | None) -> dict[str, Any]:
    """The fields that are set."""
    fields = {} if value is None else attrs.asdict(value)
    return {name: plain(each) for name, each in fields.items() if each is not None}


_GAUSSIANS: Final = (GaussianDistribution, GaussianMixture)
_TEMPLATES: Final[Mapping[str, type[WorldsTemplate]]] = {
    "from_prevalence": PrevalenceSection,
    "from_volume": VolumeSection,
    "from_supplier": SupplierSection,
    "from_attribute": AttributeSection,
    "from_occupancy": OccupancySection,
}
"""Section of each template."""


def scenario_at(path: str | os.PathLike[str]) -> Scenario:
    """Read the scenario of a scenario.toml, without its claim."""
    return built_scenario(ScenarioFile.of(document_at(path)), Path(path).parent)[0]


Bar = Callable[[str], contextlib.AbstractContextManager[Progress]]
"""Function that follows work on pieces with this name."""


def no_bar(_pieces: str) -> contextlib.AbstractContextManager[Progress]:
    """Follow no work."""
    return contextlib.nullcontext(silent)


def read_request(
    path: str | os.PathLike[str],
    bar: Bar = no_bar,
    *,
    overrides: Iterable[str] | None = None,
) -> Request:
    """Read scenario.toml; paths in it are relative to its folder.

    `overrides` replace keys, each as `section.key=value`.
    """
    return request_of(overridden(document_at(path), overrides or ()), Path(path).parent, bar)


def document_at(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a scenario.toml or budget.toml as a document."""
    try:
        return parsed_toml(read_bytes(path, "settings"))
    except ValueError as error:
        raise ArgumentError(
            f"{str(path)!r} is not TOML: {error}. Give a scenario.toml, as `pufferslice init` "
            "writes it; path in its [data] names the table"
        ) from error


def request_of(document: Document, folder: Path, bar: Bar = no_bar) -> Request:
    """Build the request that a document stands for."""
    file = ScenarioFile.of(document)
    if file.guarantee is None:
        raise ArgumentError("[guarantee]: is required")
    target = file.guarantee.target()
    scenario, table = built_scenario(file, folder, bar)
    query = scenario.query
    needed = target.is_sliced or "profile" in document
    profile = file.profile.profile(query.dim) if needed else None
    return Request(
        file=file,
        claimed=file.guarantee,
        scenario=scenario,
        profile=profile,
        target=target,
        table=table,
    )


def built_scenario(
    file: ScenarioFile, folder: Path, bar: Bar = no_bar
) -> tuple[Scenario, FileTable | pa.Table | None]:
    """Build the scenario of a file, and the table that it was built from, if it was from one."""
    is_released = file.prior.source in {None, "released_data"}
    query = file.query.query(file.data, folder, file.worlds.values() if is_released else ())
    table: FileTable | pa.Table | None = None
    numbers: Sequence[float] = ()
    section = _worlds_section(file)
    if file.bootstrap is not None and file.query.distribution != "bootstrap":
        raise ArgumentError(
            "[bootstrap]: is for distribution 'bootstrap'; leave it out, or change [query]"
        )
    if isinstance(section, WorldsTemplate):
        table = file.data.table(folder) if section.reads_table else None
        with bar(section.pieces) as progress:
            inputs = TemplateInputs(
                data=file.data,
                folder=folder,
                table=table,
                source=file.prior.source,
                progress=progress,
            )
            scenario = section.scenario(query, inputs)
        numbers = section.numbers()
    elif section is not None:
        worlds = _worlds(file, folder)
        scenario = Scenario.from_worlds(
            worlds, query=query, source=file.prior.source, name=file.secret.name or "world"
        )
    else:
        table = file.data.table(folder)
        scenario = _from_table(file, query, table)
    scenario = file.secret.protected(scenario, numbers)
    if file.prior.kind == "sampled":
        scenario = scenario.with_sampled_priors()
    return scenario, table


def _from_table(file: ScenarioFile, query: Query, table: FileTable | pa.Table) -> Scenario:
    options: dict[str, Any] = {
        "secret": file.secret.secret(),
        "query": query,
        "pairs": file.secret.listed_pairs(),
        "source": file.prior.source or "released_data",
    }
    if file.query.distribution == "groups":
        return Scenario.from_groups(table, **options)
    if file.query.distribution == "records":
        return Scenario.from_records(table, **options)
    if file.bootstrap is None:
        raise ArgumentError(
            "[bootstrap]: is required for distribution 'bootstrap', with n_replicates and seed"
        )
    return Scenario.from_bootstrap(table, **options, bootstrap=Bootstrap(**file.bootstrap.given()))


def _worlds_section(file: ScenarioFile) -> object:
    """Return the section that declares the worlds; None for other distributions."""
    sections = [name for name in _WORLDS if getattr(file, name)]
    named = ", ".join(f"[{name}]" for name in sections or _WORLDS)
    section = getattr(file, sections[0]) if len(sections) == 1 else None
    needed = section.distribution if isinstance(section, WorldsTemplate) else "worlds"
    asked = file.query.distribution or (needed if sections else None)
    if asked is None:
        raise ArgumentError(
            "[query] distribution: is required; or declare what is hidden in one of the sections "
            f"{named}"
        )
    if asked != needed:
        if sections:
            raise ArgumentError(
                f"{named}: is for distribution {needed!r}; leave it out, or change [query]"
            )
        if asked != "worlds":
            if file.secret.name is not None:
                raise ArgumentError("[secret] name: is for [worlds] and [gaussian]; leave it out")
            return None
    if section is None:
        raise ArgumentError(
            f"distribution 'worlds' needs exactly one section that declares them: {named}"
        )
    by_itself = sections[0] in {"worlds", "gaussian"}
    unused = ("column", "columns", "bins", *(() if by_itself else ("name",)))
    chosen = [name for name in unused if getattr(file.secret, name)]
    if chosen:
        raise ArgumentError(
            f"[secret] {listed(chosen)}: {named} says what is secret; leave one of them out"
        )
    return section


def _worlds(file: ScenarioFile, folder: Path) -> dict[str, object]:
    if file.worlds:
        return {name: file.data.file(folder, path) for name, path in file.worlds.items()}
    return {name: world.distribution() for name, world in file.gaussian.items()}
