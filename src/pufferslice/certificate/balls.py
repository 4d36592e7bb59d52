# SPDX-License-Identifier: Apache-2.0
"""Ball arithmetic that several proofs share: every number carries its error."""

from collections.abc import Sequence
from functools import reduce

from flint import arb, arb_mat

from pufferslice._core.sampler import DRAW_DELTA, SIGMA_INT


def grid_of(dim: int) -> arb:
    """Bound what rounding to the grid adds to a distance, in standard deviations of the noise."""
    return arb(dim).sqrt() / int(SIGMA_INT)


def gaussian_delta(ratio: arb, epsilon: arb) -> arb:
    """Compute the delta of N(ratio, 1) against N(0, 1)."""
    if ratio == 0:
        return arb(0)
    root = arb(2).sqrt()
    near, far = ((epsilon / ratio + side * ratio / 2) / root for side in (-1, 1))
    return (near.erfc() - epsilon.exp() * far.erfc()) / 2


def noise_delta(dim: int, rounding: float, epsilon: arb) -> arb:
    """Bound what noise that is not ideal adds to a delta."""
    return (1 + epsilon.exp()) * dim * (arb(DRAW_DELTA) + arb(rounding))


def log_det(matrix: arb_mat) -> arb:
    """Log determinant by elimination; NaN unless the matrix is proved to be positive definite."""
    rows, total = matrix.tolist(), arb(0)
    for k in range(len(rows)):
        if not rows[k][k] > 0:
            return arb.nan()
        total += rows[k][k].log()
        for i in range(k + 1, len(rows)):
            for j in range(k + 1, len(rows)):
                rows[i][j] -= rows[i][k] * rows[k][j] / rows[k][k]
    return total


def largest_of(values: Sequence[arb]) -> arb:
    """Return the largest of several balls."""
    return reduce(arb.max, values)


def least_of(values: Sequence[arb]) -> arb:
    """Return the least of several balls."""
    return reduce(arb.min, values)
