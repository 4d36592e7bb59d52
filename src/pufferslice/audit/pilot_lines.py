# SPDX-License-Identifier: Apache-2.0
"""Lines that pilot outputs recommend: where correlated noise hides a difference least."""

from typing import Final

import numpy as np

from pufferslice.arrays import Floats

MOST_AXES: Final = 64
"""Outputs with more coordinates than this are not looked at in all of them."""

_PILOT_PER_AXIS: Final = 10
"""With fewer outputs than this per coordinate, a sample covariance shows mostly chance."""
_SINGULAR: Final = 1e-12
"""Eigenvalues below this share of the largest count as so much."""

WHITENED: Final = "the mean difference over the covariance"
LEAST: Final = "the direction of least variance"


def pilot_lines(first: Floats, second: Floats) -> dict[str, Floats]:
    """Unit vectors by name, from the pilot outputs of two secrets; none if they are too few."""
    covariance = within_covariance(first, second)
    if covariance is None:
        return {}
    lines = {LEAST: least_direction(covariance)}
    whitened = whitened_difference(covariance, first.mean(axis=0) - second.mean(axis=0))
    return lines if whitened is None else {WHITENED: whitened, **lines}


def within_covariance(*pilots: Floats) -> Floats | None:
    """Covariance around the mean of each secret, pooled; None if too few outputs estimate it."""
    dim = pilots[0].shape[1]
    if not 1 < dim <= MOST_AXES or min(map(len, pilots)) < _PILOT_PER_AXIS * dim:
        return None
    centred = np.concatenate([pilot - pilot.mean(axis=0) for pilot in pilots])
    return np.asarray(centred.T @ centred / len(centred))


def least_direction(covariance: Floats) -> Floats:
    """Unit vector along which outputs vary least."""
    return np.asarray(np.linalg.eigh(covariance)[1][:, 0])


def whitened_difference(covariance: Floats, difference: Floats) -> Floats | None:
    r"""Unit vector along $\Sigma^{-1}\Delta$, with $\Sigma$ regularised; None if $\Delta$ is 0.

    Of all lines, Gaussian noise with covariance $\Sigma$ hides the difference least along this one.
    """
    variances, vectors = np.linalg.eigh(covariance)
    floor = _SINGULAR * float(variances[-1]) or 1.0
    solved = vectors @ ((vectors.T @ difference) / np.maximum(variances, floor))
    length = float(np.linalg.norm(solved))
    return np.asarray(solved / length) if length > 0 else None
