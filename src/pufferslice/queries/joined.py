# SPDX-License-Identifier: Apache-2.0
"""Several queries as one: a release has their coordinates side by side, under one certificate."""

from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import is_a
from pufferslice._core.text import given, listed
from pufferslice.data.frames import Frame
from pufferslice.errors import ArgumentError
from pufferslice.queries.derived import Derived
from pufferslice.queries.features import Feature, RowFeatures
from pufferslice.queries.query import Evaluate, Query, RowMeans, Rows, recorded
from pufferslice.queries.ranges import Ball, Box


@recorded
def join(*queries: Query) -> Query:
    """One query with the coordinates of all of them, in their order.

    They are functions of a whole table, with one policy on missing values; with public ranges, all
    of them have a `Box`. No two coordinates have the same name.

    >>> import pyarrow as pa
    >>> from pufferslice.queries import contingency_table, summary
    >>> query = join(summary(mean=["age"]), contingency_table({"sex": ["F", "M"]}))
    >>> query.outputs(pa.table({"age": [20, 40, 60], "sex": ["F", "M", "F"]})).tolist()
    [[40.0, 2.0, 1.0]]
    """
    _check(queries)
    boxes = [query.range for query in queries if isinstance(query.range, Box)]
    features, derived = _sums_of(queries)
    means = [query.row_means for query in queries if query.row_means is not None]
    every = len(queries)

    def bind(frame: Frame) -> Evaluate:
        parts = [query.bind(frame) for query in queries]

        def evaluate(rows: Rows) -> Floats:
            return np.concatenate([part(rows) for part in parts])

        return evaluate

    return Query(
        names=[name for query in queries for name in query.names],
        columns=list(dict.fromkeys(column for query in queries for column in query.columns)),
        level="table",
        kind="join",
        parameters={
            "queries": [{"kind": query.kind, "parameters": query.parameters} for query in queries]
        },
        bind=bind,
        range=Box(
            np.concatenate([box.low for box in boxes]), np.concatenate([box.high for box in boxes])
        )
        if boxes
        else None,
        scales=np.concatenate([query.scales for query in queries]),
        coordinates=tuple(c for query in queries for c in query.coordinates),
        levels=tuple(dict.fromkeys(level for query in queries for level in query.levels)),
        row_means=_means_of(means) if len(means) == every else None,
        features=features,
        derived=derived,
        missing=queries[0].missing,
    )


def _check(queries: Sequence[Query]) -> None:
    other = next((query for query in queries if not is_a(query, Query)), None)
    if not queries or other is not None:
        raise ArgumentError(f"queries must be at least one query, got {given(other)}")
    if any(query.level != "table" for query in queries):
        raise ArgumentError(
            "queries must be functions of a whole table; one of a single row cannot be joined"
        )
    names = [name for query in queries for name in query.names]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ArgumentError(
            f"queries must have different coordinates; {listed(twice)} repeats. Leave it out of one"
        )
    if len({query.missing for query in queries}) > 1:
        raise ArgumentError(
            "queries must treat missing values alike; use query.with_missing(...) on each"
        )
    ranged = {type(query.range) for query in queries}
    if len(ranged) > 1 or Ball in ranged:
        raise ArgumentError(
            "queries must all have a Box as range, or none; join them first and give the range to "
            "the result"
        )


def _means_of(makers: Sequence[Callable[[Frame], RowMeans]]) -> Callable[[Frame], RowMeans]:
    def row_means(frame: Frame) -> RowMeans:
        parts = [make(frame) for make in makers]
        ends = np.cumsum([part.terms.shape[1] for part in parts])

        def function(means: npt.NDArray[np.complex128], n_rows: int) -> npt.NDArray[np.complex128]:
            split = np.split(means, ends[:-1])
            results = [part.function(own, n_rows) for part, own in zip(parts, split, strict=True)]
            return np.concatenate(results)

        return RowMeans(terms=np.column_stack([part.terms for part in parts]), function=function)

    return row_means


def _sums_of(queries: Sequence[Query]) -> tuple[RowFeatures | None, tuple[Derived, ...]]:
    """The sums that the queries need, each once, and how the other coordinates follow."""
    sums = [query.features for query in queries if query.features is not None]
    if len(sums) < len(queries):
        return None, ()
    # What somebody asked for keeps its name, wherever else it is needed.
    asked_names = {name for query in queries for name in query.names}
    parts = [part for features in sums for part in features.parts]
    asked = {part: part for part in reversed(parts) if part.name in asked_names}
    found: dict[Feature, Feature] = {}
    derived: list[Derived] = []
    for query, features in zip(queries, sums, strict=True):
        names = {}
        for part in features.parts:
            kept = asked.get(part, part)
            names[part.name] = found.setdefault(kept, kept).name
        derived += [
            Derived(name=name, kind="sum", of=[names[name]], numbers=[0.0, 1.0])
            for name in query.names
            if names.get(name, name) != name
        ]
        derived += [
            attrs.evolve(each, of=[names[name] for name in each.of]) for each in query.derived
        ]
    return RowFeatures.of(found), tuple(derived)
