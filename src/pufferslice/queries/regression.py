# SPDX-License-Identifier: Apache-2.0
"""Coefficients of linear regressions on the rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_at_least
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, floats_of
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries.derived import Derived, coefficients_of
from pufferslice.queries.features import (
    RowFeatures,
    clip_from_table,
    clip_of,
    missing_of,
    named_feature,
)
from pufferslice.queries.query import (
    Coordinate,
    Evaluate,
    Query,
    RowMeans,
    Rows,
    column_names,
    recorded,
)
from pufferslice.queries.sources import Clip, Missing, Source


@recorded
def linear_regression(
    *,
    features: Sequence[str],
    targets: Sequence[str],
    regularisation: float = 0.0,
    clip: Clip | None = None,
    clip_from: object = None,
    missing: Missing | None = None,
) -> Query:
    """Coefficients and intercept of a linear regression of each target on all features.

    Minimises the summed squared errors plus `regularisation` times the squared norm of the
    coefficients (not the intercepts). Where several solutions are best, as for features that
    depend linearly on each other, it is the shortest of them. `clip`, `clip_from` and `missing`: as
    for `summary`; a release of sums over rows publishes means and products of all columns, from
    which the coefficients are computed after noise.

    >>> import pyarrow as pa
    >>> query = linear_regression(features=["age"], targets=["pay"])
    >>> query.names
    ('coefficient(age -> pay)', 'intercept(pay)')
    >>> query.outputs(pa.table({"age": [20, 30, 40], "pay": [1.0, 3.0, 5.0]}))
    array([[ 0.2, -3. ]])
    """
    inputs, outputs = column_names("features", features), column_names("targets", targets)
    if not inputs or not outputs or set(inputs) & set(outputs):
        raise ArgumentError(
            "features and targets must be at least one column each and none in both, got "
            f"{given(inputs)} and {given(outputs)}"
        )
    check_at_least(0, regularisation=regularisation)
    n_inputs = len(inputs)
    every = (*inputs, *outputs)
    ends = clip_of(clip)
    if any(column not in every for column in ends):
        raise ArgumentError(f"clip must name features and targets only, got {given(tuple(ends))}")
    if clip_from is not None:
        ends |= clip_from_table(clip_from, [column for column in every if column not in ends])
    fills = missing_of(missing, ends, every, {})

    def matrix_of(frame: Frame) -> Floats:
        parts = [floats_of(frame, column) for column in every]
        rules = zip(every, parts, strict=True)
        return np.column_stack([np.clip(x, *ends[c]) if c in ends else x for c, x in rules])

    def bind(frame: Frame) -> Evaluate:
        matrix = matrix_of(frame)

        def evaluate(rows: Rows) -> Floats:
            means = matrix[rows].mean(axis=0)
            centred = matrix[rows] - means
            penalty = np.sqrt(regularisation) * np.eye(n_inputs)
            left = np.vstack([centred[:, :n_inputs], penalty])
            right = np.vstack([centred[:, n_inputs:], np.zeros((n_inputs, len(outputs)))])
            coefficients = np.linalg.lstsq(left, right, rcond=None)[0]
            intercepts = means[n_inputs:] - means[:n_inputs] @ coefficients
            return np.vstack([coefficients, intercepts]).T.reshape(-1)

        return evaluate

    def row_means(frame: Frame) -> RowMeans:
        matrix = matrix_of(frame)
        middle = matrix.mean(axis=0)
        centred = matrix - middle
        spread = np.linalg.cond(np.cov(centred[:, :n_inputs].T, ddof=0).reshape(n_inputs, n_inputs))
        if not regularisation and not spread < 1 / np.finfo(float).eps:
            raise ScenarioError(
                "features depend linearly on each other, so the moments of their coefficients have "
                "no formula; leave one out, or use regularisation"
            )
        first, second = np.triu_indices(centred.shape[1])

        def function(means: npt.NDArray[Any], n_rows: int) -> npt.NDArray[Any]:
            centers = means[: len(middle)]
            products = np.zeros((len(middle),) * 2, dtype=means.dtype)
            products[first, second] = products[second, first] = means[len(middle) :]
            spreads = products - np.outer(centers, centers)
            gram = spreads[:n_inputs, :n_inputs] + regularisation / n_rows * np.eye(n_inputs)
            raw = middle + centers
            parts = [
                coefficients_of(gram, spreads[:n_inputs, place], raw[:n_inputs], raw[place])
                for place in range(n_inputs, len(raw))
            ]
            return np.concatenate(parts)

        terms = np.column_stack([centred, centred[:, first] * centred[:, second]])
        return RowMeans(terms=terms, function=function)

    names = tuple(
        name
        for target in outputs
        for name in (*(f"coefficient({x} -> {target})" for x in inputs), f"intercept({target})")
    )
    sums, derived = _sums_of(
        [Source.of(column, ends, fills) for column in every], n_inputs, names, regularisation
    )
    return Query(
        names=names,
        columns=(*inputs, *outputs),
        level="table",
        kind="linear_regression",
        parameters={
            "features": inputs,
            "targets": outputs,
            "regularisation": float(regularisation),
            **({"clip": {column: list(pair) for column, pair in ends.items()}} if ends else {}),
            **({"missing": fills} if fills else {}),
        },
        bind=bind,
        coordinates=tuple(Coordinate(column=column) for _ in outputs for column in (*inputs, None)),
        row_means=row_means,
        features=sums,
        derived=derived,
    )


def _sums_of(
    columns: Sequence[Source], n_inputs: int, names: Sequence[str], regularisation: float
) -> tuple[RowFeatures, tuple[Derived, ...]]:
    """Means and products of the columns, and how the coefficients follow from them."""
    inputs, targets = columns[:n_inputs], columns[n_inputs:]
    means = {column: named_feature("mean", column) for column in columns}
    pairs = [(x, y) for place, x in enumerate(inputs) for y in inputs[place:]]
    products = {
        (x, y): named_feature("mean", x.centred, y.centred)
        for x, y in [*pairs, *((x, y) for y in targets for x in inputs)]
    }
    derived = []
    for number, target in enumerate(targets):
        of = [means[column] for column in (*inputs, target)]
        of += [products[pair] for pair in (*pairs, *((x, target) for x in inputs))]
        centers = [column.centred.center for column in (*inputs, target)]
        derived += [
            Derived(
                name=names[number * (n_inputs + 1) + place],
                kind="coefficient",
                of=[feature.name for feature in of],
                numbers=[place, regularisation, *centers],
            )
            for place in range(n_inputs + 1)
        ]
    return RowFeatures.of([*means.values(), *products.values()]), tuple(derived)
