# SPDX-License-Identifier: Apache-2.0
"""Moments of rows from the change that one row makes, for tests."""

import numpy as np

from pufferslice.sensitivity.rows import RowDifference


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
    }
    return RowDifference(**(fields | changes))
