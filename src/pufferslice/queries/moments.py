# SPDX-License-Identifier: Apache-2.0
"""Second moments of the columns of a design, from which linear models follow after noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final, TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import is_a
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, check_columns, frame_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import (
    Condition,
    ConditionLike,
    condition_of,
    conditions_of,
)
from pufferslice.queries.features import (
    Feature,
    RowFeatures,
    clip_from_table,
    clip_of,
    missing_of,
)
from pufferslice.queries.partition import partitions
from pufferslice.queries.query import Coordinate, Evaluate, Query, Rows, column_names, recorded
from pufferslice.queries.sources import Clip, Ends, Missing, Source

KIND: Final = "second_moments"
MOST_MOMENTS: Final = 2_000
"""Most moments of one release: the noise of more could not be correlated."""

Target: TypeAlias = str | Mapping[str, ConditionLike]
"""A column of numbers, or a condition on a column: whether a row meets it."""

Levels: TypeAlias = Mapping[str, Sequence[ConditionLike]]
"""Declared levels by column: plain values, or conditions such as `intervals([17, 30, 45])`."""


@final
@attrs.frozen(kw_only=True, slots=False)
class Design:
    """Columns that a model reads of a row, by a public recipe, and the one that it predicts.

    A column is a number, clipped and less the middle of its range, or 1 where the row has a
    declared level and 0 elsewhere.
    """

    columns: tuple[Feature, ...]
    """Mean of each column, named by its number or level."""
    target: Feature
    """Mean of what is predicted."""

    @classmethod
    def of(
        cls,
        *,
        target: Target,
        numbers: Sequence[str] = (),
        levels: Levels | None = None,
        clip: Ends,
        missing: Missing,
    ) -> "Design":
        """Build the columns from checked clip ranges and values for missing ones."""

        def number(column: str) -> Feature:
            source = Source.of(column, clip, missing).centred
            return Feature(name=column, is_mean=True, factors=(source,))

        def flag(column: str, test: Condition) -> Feature:
            fill = missing.get(column)
            fills = () if fill is None else ((column, fill),)
            cell = ((column, test),)
            return Feature(name=test.on(column), is_mean=True, cell=cell, fills=fills)

        columns = [number(column) for column in numbers]
        columns += [flag(column, test) for column, test in _tests(levels)]
        wanted = number(target) if isinstance(target, str) else flag(*_condition(target))
        names = [column.name for column in columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ArgumentError(f"numbers and levels must be different, got {given(sorted(twice))}")
        if not columns or any(set(wanted.columns) & set(each.columns) for each in columns):
            raise ArgumentError(
                "numbers and levels must be at least one, and none of the column of the target"
            )
        return cls(columns=tuple(columns), target=wanted)

    @classmethod
    def read(cls, parameters: Mapping[str, Any]) -> "Design":
        """Build the columns again from their description."""
        levels: dict[str, list[ConditionLike]] = {}
        for column, test in map(_condition_in, parameters["levels"]):
            levels.setdefault(column, []).append(test)
        target = parameters["target"]
        return cls.of(
            target=target if isinstance(target, str) else dict([_condition_in(target)]),
            numbers=parameters["numbers"],
            levels=levels,
            clip={column: (low, high) for column, (low, high) in parameters["clip"].items()},
            missing=parameters["missing"],
        )

    @classmethod
    def of_query(cls, kind: str, parameters: Mapping[str, Any]) -> "Design | None":
        """Find the design of the only second moments among what a query is described to join."""
        described: list[Mapping[str, Any]] = [{"kind": kind, "parameters": parameters}]
        described += parameters.get("queries", []) if kind == "join" else []
        designs = [each["parameters"] for each in described if each["kind"] == KIND]
        return cls.read(designs[0]) if len(designs) == 1 else None

    def description(self) -> dict[str, Any]:
        """The columns as JSON values, which `read` reads."""
        every = (*self.columns, self.target)
        sources = [source for column in every for source in column.factors]
        flags = [column for column in every if column.cell]
        tests = [column.cell[0] for column in flags]
        described = [{"column": column, **test.description()} for column, test in tests]
        missing: dict[str, Any] = {s.column: s.missing for s in sources if s.missing is not None}
        return {
            "target": described.pop() if self.is_class else self.target.name,
            "numbers": [column.name for column in self.columns if column.factors],
            "levels": described,
            "clip": {s.column: [s.low, s.high] for s in sources if math.isfinite(s.high - s.low)},
            "missing": missing | dict(fill for column in flags for fill in column.fills),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each column, such as `age` and `education = Bachelors`."""
        return tuple(column.name for column in self.columns)

    @property
    def is_class(self) -> bool:
        """Whether a class is predicted: whether a row meets the condition of the target."""
        return not self.target.factors

    @property
    def centers(self) -> Floats:
        """What is subtracted from each column, and then from the target."""
        every = (*self.columns, self.target)
        return np.array([sum(source.center for source in one.factors) for one in every])

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Places of the columns that are levels of one column of the table, and exclude others."""
        found: dict[str, list[int]] = {}
        for place, column in enumerate(self.columns):
            if column.cell:
                found.setdefault(column.cell[0][0], []).append(place)
        return tuple(map(tuple, found.values()))

    def moments(self) -> tuple[RowFeatures, Integers]:
        """Means and products that no public rule gives, and where each product is found.

        The places have shape (n_columns + 1, n_columns + 1), with the target as the last column;
        -1 for levels that exclude each other. The square of a level is the level.
        """
        every = (*self.columns, self.target)
        n_columns = len(every)
        places = np.full((n_columns, n_columns), -1)
        products = {
            (i, j): _product(every[i], every[j])
            for i, j in combinations_with_replacement(range(n_columns), 2)
            if i == j or not _exclude(every[i], every[j])
        }
        features = RowFeatures.of([*map(_named, every), *products.values()])
        where = {feature: place for place, feature in enumerate(features.parts)}
        for (i, j), product in products.items():
            places[i, j] = places[j, i] = where[product]
        return features, places

    def matrix(self, table: object) -> Floats:
        """The columns of each row of a table, shape (n_rows, n_columns); numbers are clipped."""
        frame = frame_of(table)
        features = RowFeatures.of(self.columns)
        check_columns(frame, features.columns)
        return np.asarray(features.numbers(frame) + self.centers[:-1])

    def answers(self, table: object) -> Floats:
        """What is predicted of each row of a table, shape (n_rows,)."""
        frame = frame_of(table)
        features = RowFeatures.of([self.target])
        check_columns(frame, features.columns)
        return np.asarray(features.numbers(frame)[:, 0] + self.centers[-1])


@recorded
def second_moments(
    *,
    target: Target,
    numbers: Sequence[str] = (),
    levels: Levels | None = None,
    clip: Clip | None = None,
    clip_from: object = None,
    missing: Missing | None = None,
    allow_empty: bool = False,
) -> Query:
    """Means and products of the columns of a design, from which `ps.models` builds linear models.

    The design is a public recipe: `numbers` are columns of numbers, clipped to `clip`; `levels`
    gives one column of 0 and 1 for each declared level of a column, as plain values or conditions.
    `target` is what a model predicts: a column of numbers, or a condition, as `{"income": ">50K"}`.
    Moments that follow from a public rule get no noise and are left out: squares of 0 and 1, and
    products of levels that exclude each other. `clip`, `clip_from`, `missing` and `allow_empty`:
    as for `summary` and `group_by`.

    >>> query = second_moments(
    ...     target={"income": ">50K"}, levels={"sex": ["F", "M"]}, numbers=["age"],
    ...     clip={"age": (17, 90)}
    ... )
    >>> query.names[:3], query.dim
    (('mean(age - 53.5)', 'rate(sex = F)', 'rate(sex = M)'), 10)
    """
    inputs = column_names("numbers", numbers)
    tests = _tests(levels)
    wanted = (target,) if isinstance(target, str) else ()
    if not isinstance(target, str):
        tests.append(_condition(target))
    every = (*inputs, *wanted)
    ends = clip_of(clip)
    if any(column not in every for column in ends):
        raise ArgumentError(f"clip must name columns of numbers only, got {given(tuple(ends))}")
    if clip_from is not None:
        ends |= clip_from_table(clip_from, [column for column in every if column not in ends])
    fills = missing_of(missing, ends, every, {column: test.is_calendar for column, test in tests})
    design = Design.of(target=target, numbers=inputs, levels=levels, clip=ends, missing=fills)
    features = design.moments()[0]
    if len(features.parts) > MOST_MOMENTS:
        raise ArgumentError(
            f"numbers and levels must give at most {MOST_MOMENTS:,} moments, and these "
            f"{len(design.columns):,} columns give {len(features.parts):,}; declare fewer, as "
            "pufferslice.models.suggest_columns proposes them from an earlier table"
        )
    occurring = [(column, str(test.value)) for column, test in tests if test.comparison == "equals"]
    return Query(
        names=features.names,
        columns=features.columns,
        level="table",
        kind=KIND,
        parameters=design.description(),
        bind=_means(features),
        coordinates=tuple(map(_coordinate, features.parts)),
        levels=() if allow_empty else tuple(occurring),
        features=features,
    )


def _tests(levels: Levels | None) -> list[tuple[str, Condition]]:
    if levels is None:
        return []
    if not is_a(levels, Mapping):
        raise ArgumentError(f"levels must map columns to levels, got {given(levels)}")
    tests = []
    for column, values in levels.items():
        if is_a(values, str) or not is_a(values, Sequence) or not values:
            raise ArgumentError(
                f"levels must give at least one level of {given(column)}, as a list"
            )
        tests += [(column, condition_of(value)) for value in values]
    return tests


def _condition(target: Mapping[str, ConditionLike]) -> tuple[str, Condition]:
    if not is_a(target, Mapping) or len(target) != 1:
        raise ArgumentError(
            "target must be a column of numbers, or one condition, as {'income': '>50K'}; got "
            f"{given(target)}"
        )
    return conditions_of("target", target)[0]


def _condition_in(described: Mapping[str, Any]) -> tuple[str, Condition]:
    """Read a column and its condition from a description."""
    pairs: list[tuple[Any, Any]] = [(k, v) for k, v in described.items() if k != "column"]
    ((comparison, value),) = pairs
    test = Condition(comparison, tuple(value) if isinstance(value, list) else value)
    numbers = int | float if test.compares_numbers else str
    if not isinstance(test.value, {"between": tuple, "hour": int}.get(comparison, numbers)):
        raise ArgumentError(f"{given(comparison)} cannot be compared with {given(value)}")
    return described["column"], test


def _named(column: Feature) -> Feature:
    """The mean of a column, under the name of a statistic."""
    words = column.factors[0].words if column.factors else column.name
    return attrs.evolve(column, name=f"{'mean' if column.factors else 'rate'}({words})")


def _product(first: Feature, second: Feature) -> Feature:
    """The mean of the product of two columns."""
    if first == second and not first.factors:
        return _named(first)
    factors = tuple(sorted(first.factors + second.factors, key=lambda source: source.column))
    cell = tuple(dict.fromkeys(first.cell + second.cell))
    fills = tuple(dict.fromkeys(first.fills + second.fills))
    where = [test.on(column) for column, test in cell]
    name = f"rate({', '.join(where)})"
    if factors:
        parts = [source.factor for source in factors] + [f"({words})" for words in where]
        name = f"mean({' * '.join(parts)})"
    return Feature(name=name, is_mean=True, factors=factors, cell=cell, fills=fills)


def _exclude(first: Feature, second: Feature) -> bool:
    """Whether no row can have both levels, whatever it is: a public rule."""
    if not first.cell or not second.cell:
        return False
    (column, test), (other, another) = first.cell[0], second.cell[0]
    if column != other:
        return False
    parts = partitions(column, [test, another], dict(first.fills).get(column))
    return len(parts) == 1 and not parts[0].patterns.all(axis=1).any()


def _means(features: RowFeatures) -> Callable[[Frame], Evaluate]:
    def bind(frame: Frame) -> Evaluate:
        numbers = features.numbers(frame)

        def evaluate(rows: Rows) -> Floats:
            return np.asarray(numbers[rows].mean(axis=0))

        return evaluate

    return bind


def _coordinate(feature: Feature) -> Coordinate:
    low, high = feature.ends
    is_number = len(feature.factors) == 1 and not feature.cell
    return Coordinate(column=feature.factors[0].column if is_number else None, low=low, high=high)
