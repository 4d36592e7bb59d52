# SPDX-License-Identifier: Apache-2.0
"""Choices before a release, from an earlier or public table: few columns, and weights by use."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice._core.text import given
from pufferslice.data.frames import Frame, complete_part, frame_of, labels_of
from pufferslice.errors import ArgumentError, TableError
from pufferslice.models.fit import ridge_coefficients
from pufferslice.models.moments import Moments
from pufferslice.queries import Query, above
from pufferslice.queries.conditions import ConditionLike
from pufferslice.queries.moments import KIND, Design, Target
from pufferslice.queries.partition import finite_numbers
from pufferslice.queries.query import column_names

_RAREST = 0.01
"""Least share of the rows that a proposed level has."""
_MOST_LEVELS = 50
"""Most levels of a column whose levels are proposed."""
_TAIL = 0.01
"""Share of rows at each end that a proposed clip range may cut."""
_CUTS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
"""Quantiles of a number at which a threshold may be proposed."""
_LEAST_WEIGHT = 2.0**-14
"""Least weight of a moment, as a share of the largest: each noise is finite."""
_ALMOST = 1e-6


def suggest_columns(
    earlier_table: object, n: int = 10, *, target: Target, without: Sequence[str] = ()
) -> dict[str, Any]:
    """Propose at most `n` columns for `queries.second_moments`, from an earlier or public table.

    Candidates are numbers, thresholds of numbers at two digits, and levels that at least 1 % of the
    rows have; by turns, the one that explains most of what is left of the target is taken. Numbers
    get clip ranges that cut at most 1 % of the rows at each end. `without` names columns that are
    no candidates, as that of the secret. The released table must not be used: which columns are
    chosen would then depend on it.

    >>> import pufferslice as ps
    >>> last_year, _ = ps.datasets.adult_years()
    >>> columns = suggest_columns(last_year, 2, target={"income": ">50K"}, without=["sex"])
    >>> columns["levels"]["marital-status"]
    ['Married-civ-spouse']
    """
    check_count(1, n=n)
    frame = frame_of(earlier_table)
    left_out = {*column_names("without", without)}
    left_out |= {target} if isinstance(target, str) else {*target}
    numbers: dict[str, tuple[float, float]] = {}
    candidates: list[tuple[str, ConditionLike | None]] = []
    for column in (name for name in frame.columns if name not in left_out):
        try:
            values = finite_numbers(frame, column)
        except TableError:
            labels = _frequent_labels(frame, column)
            candidates += [(column, label) for label in labels]
            continue
        ends = _ends(values[~np.isnan(values)])
        if ends is not None:
            numbers[column] = ends
            candidates += [(column, None), *((column, above(cut)) for cut in _cuts(values))]
    if isinstance(target, str):
        ends = _ends(finite_numbers(frame, target))
        if ends is None:
            raise ArgumentError(f"target {given(target)} must have different numbers")
        numbers[target] = ends
    chosen = []
    if candidates:
        matrix, answers = _candidates(frame, candidates, target, numbers)
        chosen = [candidates[place] for place in _forward(matrix, answers, n)]
    if not chosen:
        raise ArgumentError("earlier_table must have a column that says something of the target")
    levels: dict[str, list[ConditionLike]] = {}
    for column, level in chosen:
        if level is not None:
            levels.setdefault(column, []).append(level)
    inputs = [column for column, level in chosen if level is None]
    clipped = [*inputs, *([target] if isinstance(target, str) else [])]
    return {
        "numbers": inputs,
        "levels": levels,
        "clip": {column: numbers[column] for column in clipped},
    }


def weights_by_use(query: Query, earlier_table: object) -> list[float]:
    r"""Weights for `certify_release` that put less noise where a linear model would feel it.

    With b the coefficients that an earlier or public table gives, noise N on the covariance S of
    the columns and m on that with the target raises the squared error by about $(m - N b)^\top
    S^{-1} (m - N b)$. The weight of a moment is its part in the mean of that, times its variance
    over rows, which is how weights are counted. Most go to moments with the target.
    """
    if query.kind != KIND:
        raise ArgumentError("query must be queries.second_moments(...), by itself")
    frame = frame_of(earlier_table)
    design = Design.read(query.parameters)
    features, _ = design.moments()
    numbers = features.numbers(frame)
    moments = Moments.named(
        design,
        names=features.names,
        values=numbers.mean(axis=0),
        noise=np.zeros((len(features.parts),) * 2),
        n_rows=len(frame),
    )
    slopes, inverse = _slopes(moments)
    weights = np.einsum("ik,ij,jk->k", slopes, inverse, slopes, optimize=True)
    weights = weights * numbers.var(axis=0)
    largest = float(weights.max())
    if not largest > 0:
        raise ArgumentError("earlier_table must have columns that vary with the target")
    return np.maximum(weights / largest, _LEAST_WEIGHT).tolist()  # type: ignore[no-any-return]


def _slopes(moments: Moments) -> tuple[Floats, Floats]:
    """Derivatives of s - S b by the moments, (n_columns, n_moments), and the inverse of S."""
    d, means = moments.n_columns, moments.means
    scales = moments.scales[:d]
    # Nearly collinear columns would otherwise decide everything.
    matrix = moments.covariance[:d, :d] + 1e-3 * np.diag(scales**2)
    coefficients = ridge_coefficients(moments, 1e-3 * moments.n_rows * float((scales**2).min()))
    weights = np.append(-coefficients, 1.0)
    rows, columns = np.nonzero(moments.places[:d] >= 0)
    slopes = np.zeros((d, len(moments.values)))
    np.add.at(slopes, (rows, moments.places[rows, columns]), weights[columns])
    slopes[:, : d + 1] -= np.outer(means[:d], weights)
    slopes[np.arange(d), np.arange(d)] -= float(means @ weights)
    return slopes, np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _frequent_labels(frame: Frame, column: str) -> list[str]:
    part, present = complete_part(frame, column)
    if not present.any():
        return []
    labels, counts = np.unique(labels_of(part, column), return_counts=True)
    if len(labels) > _MOST_LEVELS:
        return []
    return [str(label) for label in labels[counts >= _RAREST * len(frame)]]


def _ends(values: Floats) -> tuple[float, float] | None:
    """Ends of a number to two digits, outwards, that cut little; None if it does not vary."""
    low, high = (float(end) for end in np.nanquantile(values, [_TAIL, 1 - _TAIL]))
    if not low < high:
        return None
    unit = 10.0 ** (np.floor(np.log10(high - low)) - 1)
    return float(np.floor(low / unit) * unit), float(np.ceil(high / unit) * unit)


def _cuts(values: Floats) -> list[float]:
    cuts = np.nanquantile(values, _CUTS)
    rounded = {float(f"{cut:.2g}") for cut in cuts.tolist()}
    present = values[~np.isnan(values)]
    return [
        cut for cut in sorted(rounded) if _RAREST <= float((present > cut).mean()) <= 1 - _RAREST
    ]


def _candidates(
    frame: Frame,
    candidates: Sequence[tuple[str, ConditionLike | None]],
    target: Target,
    numbers: dict[str, tuple[float, float]],
) -> tuple[Floats, Floats]:
    levels: dict[str, list[ConditionLike]] = {}
    for column, level in candidates:
        if level is not None:
            levels.setdefault(column, []).append(level)
    inputs = [column for column, level in candidates if level is None]
    design = Design.of(target=target, numbers=inputs, levels=levels, clip=numbers, missing={})
    matrix, answers = design.matrix(frame), design.answers(frame)
    flags = iter(range(len(inputs), matrix.shape[1]))
    by_level = {
        (column, place): next(flags)
        for column, several in levels.items()
        for place in range(len(several))
    }
    seen: dict[str, int] = {}
    order = []
    for column, level in candidates:
        if level is None:
            order.append(inputs.index(column))
        else:
            seen[column] = seen.get(column, -1) + 1
            order.append(by_level[column, seen[column]])
    return matrix[:, order], answers


def _forward(matrix: Floats, answers: Floats, n: int) -> list[int]:
    """Choose columns by turns: the one that explains most of what is left of the answers."""
    centred = matrix - matrix.mean(axis=0)
    sizes = np.sqrt((centred**2).sum(axis=0))
    kept = sizes > 0
    columns = centred[:, kept] / sizes[kept]
    rest = answers - answers.mean()
    gram, products, total = columns.T @ columns, columns.T @ rest, float(rest @ rest)
    chosen: list[int] = []
    for _ in range(min(n, gram.shape[0])):
        left = np.diagonal(gram)
        gains = np.where(left > _ALMOST, products**2 / np.maximum(left, _ALMOST), 0.0)
        best = int(gains.argmax())
        if not gains[best] > _ALMOST * total:
            break
        chosen.append(best)
        along = gram[best] / gram[best, best]
        products = products - along * products[best]
        gram = gram - np.outer(along, gram[best])
    places = np.flatnonzero(kept)
    return [int(places[place]) for place in chosen]
