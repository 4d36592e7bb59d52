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
from pufferslice.queries.query import Coordinate, Evaluate, Query, RowMeans, Rows, column_names


def linear_regression(
    *, features: Sequence[str], targets: Sequence[str], regularisation: float = 0.0
) -> Query:
    """Coefficients and intercept of a linear regression of each target on all features.

    Minimises the summed squared errors plus `regularisation` times the squared norm of the
    coefficients (not the intercepts). Where several solutions are best, as for features that
    depend linearly on each other, it is the shortest of them.

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

    def matrix_of(frame: Frame) -> Floats:
        return np.column_stack([floats_of(frame, column) for column in (*inputs, *outputs)])

    def laid_out(coefficients: npt.NDArray[Any], means: npt.NDArray[Any]) -> npt.NDArray[Any]:
        intercepts = means[n_inputs:] - means[:n_inputs] @ coefficients
        return np.vstack([coefficients, intercepts]).T.reshape(-1)

    def bind(frame: Frame) -> Evaluate:
        matrix = matrix_of(frame)

        def evaluate(rows: Rows) -> Floats:
            means = matrix[rows].mean(axis=0)
            centred = matrix[rows] - means
            penalty = np.sqrt(regularisation) * np.eye(n_inputs)
            left = np.vstack([centred[:, :n_inputs], penalty])
            right = np.vstack([centred[:, n_inputs:], np.zeros((n_inputs, len(outputs)))])
            return laid_out(np.linalg.lstsq(left, right, rcond=None)[0], means)

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
            coefficients = np.linalg.solve(gram, spreads[:n_inputs, n_inputs:])
            return laid_out(coefficients, middle + centers)

        terms = np.column_stack([centred, centred[:, first] * centred[:, second]])
        return RowMeans(terms=terms, function=function)

    return Query(
        names=tuple(
            name
            for target in outputs
            for name in (*(f"coefficient({x} -> {target})" for x in inputs), f"intercept({target})")
        ),
        columns=(*inputs, *outputs),
        level="table",
        kind="linear_regression",
        parameters={
            "features": inputs,
            "targets": outputs,
            "regularisation": float(regularisation),
        },
        bind=bind,
        coordinates=tuple(Coordinate(column=column) for _ in outputs for column in (*inputs, None)),
        row_means=row_means,
    )
