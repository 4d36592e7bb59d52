# SPDX-License-Identifier: Apache-2.0
"""The public shape of noise: one matrix that makes shaped noise isotropic, and its inverse."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice._core.checks import check_above, check_finite
from pufferslice._core.kernels import kernel
from pufferslice._core.sampler import SIGMA_INT
from pufferslice.errors import ArgumentError
from pufferslice.queries.ranges import Ball, Box

MOST_STRETCH: Final = 2.0**40
"""Largest ratio of the noise in two directions; more is singular noise."""

_LARGEST: Final = float(np.finfo(np.float64).max)
_UP: Final = 1 + 2.0**-40
_MOST_CORNERS: Final = 14
"""Largest dimension in which boxes are measured corner by corner."""


@final
@attrs.frozen(kw_only=True, repr=False)
class Shape:
    r"""The shape of noise $\sigma A^{-1} \xi$ with $\xi \sim N(0, I)$, by its whitening matrix A.

    The query is whitened, $q \mapsto A (q - c)$ with a public centre c, and gets isotropic noise.
    Soundness: A is public, and `whitened` is one function, rounding included, for the atoms of
    distributions and for released rows; mapping the noisy integers back is post-processing.

    >>> shape = Shape.of_covariance([[4.0, 0.0], [0.0, 1.0]])
    >>> shape.stds(1.0).round(4).tolist()
    [1.2649, 0.6325]
    """

    whitening: Floats = attrs.field(converter=locked, eq=same)
    """Whitening matrix A: lower triangular with a positive diagonal, shape (dim, dim), in scaled
    coordinates."""

    def __attrs_post_init__(self) -> None:
        matrix = self.whitening
        _check_square(whitening=matrix)
        if np.triu(matrix, 1).any() or not np.diagonal(matrix).min() > 0:
            raise ArgumentError(
                "the whitening matrix of a shape must be lower triangular with a positive "
                "diagonal; use Shape.of_covariance(...)"
            )
        stretch = np.linalg.norm(matrix, 2) * np.linalg.norm(self.coloring, 2)
        if not stretch <= MOST_STRETCH:
            raise ArgumentError(
                "the shape is nearly singular: the noise of one direction would be more than "
                f"{MOST_STRETCH:.1e} times that of another. Use a larger guard, or other scales"
            )

    @classmethod
    def of_covariance(cls, covariance: Any) -> "Shape":  # whatever numpy can read
        """Build the shape of noise with this covariance, up to a factor: its mean variance is 1."""
        matrix = locked(covariance)
        _check_square(covariance=matrix)
        if not np.allclose(matrix, matrix.T, rtol=1e-9, atol=0.0):
            raise ArgumentError("a covariance of noise must be symmetric")
        size = float(np.trace(matrix)) / len(matrix)
        try:
            factor = np.linalg.cholesky((matrix + matrix.T) / (2 * size if size > 0 else 1.0))
        except np.linalg.LinAlgError:
            raise ArgumentError(
                "a covariance of noise must be positive definite: noise hides every direction"
            ) from None
        return cls(whitening=_inverse(np.asarray(factor, dtype=np.float64)))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.whitening)

    @property
    def coloring(self) -> Floats:
        """Inverse of the whitening matrix, rounded: it maps noise back."""
        return _inverse(self.whitening)

    @property
    def covariance(self) -> Floats:
        """Covariance of the noise for a standard deviation of 1."""
        coloring = self.coloring
        return np.asarray(coloring @ coloring.T)

    @property
    def stretch(self) -> float:
        """Largest factor by which whitening lengthens a difference, rounded up."""
        return float(np.linalg.norm(self.whitening, 2)) * _UP

    def stds(self, noise_std: float) -> Floats:
        """Standard deviation of the noise of each coordinate, in scaled coordinates."""
        return np.asarray(noise_std * np.sqrt((self.coloring**2).sum(axis=1)))

    def whitened(self, outputs: Floats, center: Floats) -> Floats:
        """Compute A (q - c) for every row q, always in the same order; never infinite."""
        rows = np.ascontiguousarray(outputs, dtype=np.float64)
        result = np.empty_like(rows)
        _whiten(self.whitening, rows, np.ascontiguousarray(center, dtype=np.float64), result)
        return np.nan_to_num(result, copy=False, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST) + 0.0

    def whitened_exactly(self, values: Sequence[Fraction]) -> list[Fraction]:
        """Multiply A by a vector, without rounding."""
        return _product(self.whitening, values)

    def colored(self, values: Sequence[Fraction]) -> list[Fraction]:
        """Multiply the rounded inverse of A by a vector, without further rounding."""
        return _product(self.coloring, values)

    def diameter(self, range_: Box | Ball, scales: Floats) -> float:
        """Bound the largest distance of two whitened points of a public range."""
        if isinstance(range_, Ball):
            sides = 2 * range_.radius / scales
        else:
            sides = (range_.high - range_.low) / scales
        if self.dim <= _MOST_CORNERS:
            signs = np.indices((2,) * self.dim).reshape(self.dim, -1).T * 2 - 1
            farthest = float(np.linalg.norm((signs * sides) @ self.whitening.T, axis=1).max())
        else:
            farthest = float(np.linalg.norm(np.abs(self.whitening) @ sides))
        if isinstance(range_, Ball):
            farthest = min(farthest, self.stretch * float(sides.max()))
        # A whitened coordinate is a sum of products of rounded differences.
        size = float(np.abs(range_.center / scales).max() + sides.max())
        rounding = 8 * (self.dim + 4) * UNIT_ROUNDOFF * self.dim * self.stretch * size
        return farthest * _UP + rounding

    def __repr__(self) -> str:
        return f"Shape(dim={self.dim})"


def grid_margin(dim: int, noise_std: float) -> float:
    """Bound what quantising both points to the release's grid can add to a gap or distance."""
    return float(math.sqrt(dim) * noise_std / SIGMA_INT)


@final
@attrs.frozen(kw_only=True)
class Covariance:
    """Covariance of the noise of a release: a shape, and the standard deviation once whitened."""

    dim: int
    std: float
    shape: Shape | None = None
    """Shape of the noise; None for isotropic noise."""

    def __attrs_post_init__(self) -> None:
        check_above(0, noise_std=self.std)

    @property
    def margin(self) -> float:
        """Largest distance that the grid of the release adds between two outputs."""
        return grid_margin(self.dim, self.std)

    @property
    def whitening(self) -> Floats:
        """Matrix that makes the noise isotropic, shape (dim, dim)."""
        return np.eye(self.dim) if self.shape is None else self.shape.whitening

    @property
    def stds(self) -> Floats:
        """Standard deviation of each coordinate, in scaled coordinates."""
        return np.full(self.dim, self.std) if self.shape is None else self.shape.stds(self.std)


def _check_square(**named: Floats) -> None:
    for name, matrix in named.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
            raise ArgumentError(f"{name} must be a square matrix, got shape {matrix.shape}")
    check_finite(**named)


def _product(matrix: Floats, values: Sequence[Fraction]) -> list[Fraction]:
    return [
        sum((Fraction(a) * x for a, x in zip(row, values, strict=True) if a), Fraction(0))
        for row in matrix.tolist()
    ]


@kernel
def _whiten(matrix: Floats, rows: Floats, center: Floats, out: Floats) -> None:
    """Multiply by a lower triangular matrix in one fixed order; not BLAS, whose order varies."""
    n, dim = rows.shape
    for i in range(n):
        for j in range(dim):
            total = 0.0
            for k in range(j + 1):
                total += matrix[j, k] * (rows[i, k] - center[k])
            out[i, j] = total


@kernel
def _inverse(matrix: Floats) -> Floats:
    """Invert a lower triangular matrix by forward substitution, in one fixed order."""
    dim = len(matrix)
    inverse = np.zeros((dim, dim))
    for column in range(dim):
        for j in range(column, dim):
            total = 1.0 if j == column else 0.0
            for k in range(column, j):
                total -= matrix[j, k] * inverse[k, column]
            inverse[j, column] = total / matrix[j, j]
    return inverse
