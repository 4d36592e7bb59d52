# SPDX-License-Identifier: Apache-2.0
"""Rows of two kinds and how many of them differ, or the moments of a change alone, for tests."""

import numpy as np

from pufferslice.scenario.rows import Boxes, CellMoments, Differing, RowDistribution, covariance_of
from pufferslice.sensitivity.rows import RowDifference


def cells_of(rows, labels):
    cells, counts = np.unique(labels, return_counts=True)
    means = np.array([rows[labels == cell].mean(axis=0) for cell in cells])
    return CellMoments(cells, counts, means)


def kind_of(rows, labels=None, place=0, *, reach=20.0, differing=Differing(most=3)):  # noqa: B008
    """Rows of one kind, in boxes that reach so far."""
    dim = rows.shape[1]
    return RowDistribution(
        place=place,
        row_mean=rows.mean(axis=0),
        row_cov=covariance_of(rows),
        rows=rows,
        cells={} if labels is None else {"x": cells_of(rows, labels)},
        groups=labels,
        members={} if labels is None else {"x": np.arange(labels.max() + 1)},
        boxes=Boxes(low=np.full((1, dim), -reach), high=np.full((1, dim), reach)),
        differing=differing,
        size=np.zeros(dim),
        ignorance=np.ones(dim),
    )


def difference_of(first, second, differing, *, shape=None, labels=(None, None), **options):
    """Worlds that differ in rows of these two kinds, sorted into layers."""
    reach = 2 * max(float(np.abs(rows).max()) for rows in (first, second))
    kinds = [
        kind_of(rows, part, place, reach=reach, differing=differing)
        for place, (rows, part) in enumerate(zip((first, second), labels, strict=True))
    ]
    return RowDifference.of(kinds, [(0, 1)], shape=shape, layered="changes", **options)


def rows_of(*, shift, spread, spans, counts, **changes):
    """Two kinds of rows, alike but for the shift; `counts` are E D and E D^2."""
    shift, spread, spans = (np.asarray(each, dtype=float) for each in (shift, spread, spans))
    dim = len(shift)
    mean, mean_square = counts
    fields = {
        "means": [-shift / 2, shift / 2],
        "covs": [spread / 2, spread / 2],
        "pairs": [[0, 1]],
        "counts": [[[mean, mean]]],
        "squares": [[[mean_square]]],
        "low": [-spans / 2],
        "high": [spans / 2],
        "shares": np.zeros((2, 0)),
        "cell_means": np.zeros((2, 0, dim)),
        "plans": np.zeros((0, 0, 0)),
        "coupled": np.zeros((0, dim, dim)),
        "trials": [[0.0, 0.0]],
        "metric": np.zeros((0, 0)),
        "radii": np.zeros((0, 0)),
        "layers": np.zeros((0, 0, dim, dim)),
    }
    return RowDifference(**(fields | changes))
