# SPDX-License-Identifier: Apache-2.0
r"""The least noise for a row model, in closed form.

Of all covariances with $\mathrm{tr}(\Sigma^{-1} M) \le \rho$ the one with the least weighted total
variance $\mathrm{tr}(B \Sigma)$ is $\Sigma = \frac{t}{\rho}\, B^{-1/2} (B^{1/2} M B^{1/2})^{1/2}
B^{-1/2}$ with $t = \mathrm{tr}\,(B^{1/2} M B^{1/2})^{1/2}$; its value is $t^2 / \rho$.
"""

import math
from typing import Final, Literal

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.scenario.rows import RowDistribution
from pufferslice.sensitivity.rows import RowDifference

_ONE_PERSON: Final = 1.0
"""Limit on how far exchanging one row may move the output, in standard deviations of the noise."""
_BISECTIONS: Final = 30
_DIGITS: Final = 0.01
"""Step to which correlations are rounded for noise that was fitted to the released rows."""


def least_covariance(moment: Floats, mean_square: float, weights: Floats) -> Floats:
    """Covariance of least weighted total variance, in closed form; weights shape (dim,).

    >>> cov = least_covariance(np.array([[2.0, 1.0], [1.0, 2.0]]), 0.513970825836408, np.ones(2))
    >>> round(float(np.trace(cov)), 10)
    14.5224227523
    """
    roots = np.sqrt(weights)
    values, axes = np.linalg.eigh(roots[:, None] * moment * roots)
    values = np.sqrt(np.maximum(values, 0.0))
    root = (axes * values) @ axes.T
    return np.asarray(values.sum() / mean_square * root / roots[:, None] / roots)


def least_variances(moment: Floats, mean_square: float, weights: Floats) -> Floats:
    """Diagonal covariance of least weighted total variance, in closed form."""
    sizes = np.sqrt(np.diagonal(moment) / weights)
    total = float((np.diagonal(moment) / sizes).sum())
    return np.diag(sizes * (total / mean_square))


def sampling_weights(first: RowDistribution, second: RowDistribution) -> Floats:
    """Invert the sampling variance of each statistic; it does not depend on the hidden share.

    A statistic that is constant in these rows counts as if one row were different.
    """
    n_rows = len(first.rows) + len(second.rows)
    mean = second.row_mean - first.row_mean
    within = np.diagonal(first.row_cov + second.row_cov)
    is_added = not first.rows.any()  # rows that the other world does not have
    variances = within + mean**2 if is_added else within / 2 + mean**2 / 4
    return np.asarray(1 / np.maximum(variances, second.spans**2 / n_rows))


def row_covariance(
    difference: RowDifference,
    mean_square: float,
    *,
    kind: Literal["fitted", "diagonal"],
    weights: Floats,
    from_released_rows: bool,
) -> tuple[Floats, bool]:
    """Return the covariance that meets a mean square, and whether it exceeds the least one.

    It exceeds it where exchanging one row would otherwise be seen (statistics that are constant, or
    follow from others, in the rows of the moments), and where it is rounded because it was fitted
    to the released rows.
    """
    least = least_covariance if kind == "fitted" else least_variances
    covariance = least(difference.second_moment, mean_square, weights)
    covariance = (covariance + covariance.T) / 2
    raised = _hiding_one_row(covariance, difference.spans)
    if from_released_rows:
        return _rounded(raised), True
    return raised, raised is not covariance


def one_row_distance(covariance: Floats, spans: Floats) -> float:
    """Bound how far exchanging one row can move the output, in noise deviations."""
    try:
        precision = np.linalg.inv(covariance)
    except np.linalg.LinAlgError:
        return math.inf
    by_entries = float(spans @ np.abs(precision) @ spans)
    scaled = spans[:, None] * precision * spans
    by_norm = len(spans) * float(np.linalg.eigvalsh((scaled + scaled.T) / 2)[-1])
    bound = min(by_entries, by_norm)
    return math.sqrt(bound) if bound > 0 else math.inf


def _hiding_one_row(covariance: Floats, spans: Floats) -> Floats:
    """Add the independent noise to a covariance that hiding one row takes."""
    if one_row_distance(covariance, spans) <= _ONE_PERSON:
        return covariance
    low, high = 0.0, float(len(spans))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if one_row_distance(covariance + middle * np.diag(spans**2), spans) <= _ONE_PERSON:
            high = middle
        else:
            low = middle
    return np.asarray(covariance + high * np.diag(spans**2))


def _rounded(covariance: Floats) -> Floats:
    """Enlarge a covariance to two digits: deviations rounded up, correlations rounded."""
    stds = np.array([_two_digits_up(math.sqrt(value)) for value in np.diagonal(covariance)])
    correlation = covariance / np.outer(stds, stds)
    coarse = np.round(correlation / _DIGITS) * _DIGITS
    np.fill_diagonal(coarse, 1.0)
    lacking = float(np.linalg.eigvalsh(correlation - coarse)[-1])
    steps = max(0, math.ceil(lacking / _DIGITS + 1e-6))
    coarse += steps * _DIGITS * np.eye(len(stds))
    return np.asarray(coarse * np.outer(stds, stds))


def _two_digits_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit * (1 - 1e-12)) * unit
