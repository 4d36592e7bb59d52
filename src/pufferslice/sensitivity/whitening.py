# SPDX-License-Identifier: Apache-2.0
"""The public shape of noise: one matrix that makes shaped noise isotropic, and its inverse."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice._core.checks import check_above, check_finite
from pufferslice._core.files import digest
from pufferslice._core.sampler import SIGMA_INT
from pufferslice.errors import ArgumentError
from pufferslice.queries.ranges import Ball, Box

MOST_STRETCH: Final = 2.0**40
"""Largest ratio of the noise in two directions; more is singular noise."""

_LARGEST: Final = float(np.finfo(np.float64).max)
_UP: Final = 1 + 2.0**-40
_MANTISSA: Final = 53
"""Bits of the integer in a float."""
_ROWS_AT_ONCE: Final = 2**10
_SMALL: Final = 64
"""Largest dimension in which a triangle is inverted entry by entry."""
_MOST_EXACT: Final = 512
"""Largest dimension in which the norm of a matrix is computed from its singular values."""
_MOST_CORNERS: Final = 14
"""Largest dimension in which boxes are measured corner by corner."""


@final
@attrs.frozen(kw_only=True, repr=False, slots=False)
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
        # Frobenius norms are no smaller than those that count, and mostly small enough.
        rough = np.linalg.norm(matrix) * np.linalg.norm(self.coloring)
        if not rough <= MOST_STRETCH and not (
            np.linalg.norm(matrix, 2) * np.linalg.norm(self.coloring, 2) <= MOST_STRETCH
        ):
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
        return cls(whitening=triangle_inverse(np.asarray(factor, dtype=np.float64)))

    @classmethod
    def of_packed(cls, values: Any, dim: int) -> "Shape":  # whatever numpy can read
        """Build the shape from what `packed` gives."""
        entries, matrix = locked(values), np.zeros((dim, dim))
        if entries.shape not in {(dim,), (dim * (dim + 1) // 2,)}:
            raise ArgumentError(
                f"a packed matrix of {dim} coordinates must be its diagonal or its lower triangle"
            )
        matrix[np.diag_indices(dim) if len(entries) == dim else np.tril_indices(dim)] = entries
        return cls(whitening=matrix)

    @property
    def packed(self) -> Floats:
        """Lower triangle of the whitening matrix, row by row; its diagonal if that is all."""
        diagonal = np.diagonal(self.whitening)
        if np.count_nonzero(self.whitening) == self.dim:
            return diagonal.copy()
        return np.asarray(self.whitening[np.tril_indices(self.dim)])

    def digest(self) -> str:
        """SHA-256 of the packed matrix."""
        packed = self.packed
        return digest(f"{self.dim} {len(packed)}".encode(), packed.astype("<f8").tobytes())

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.whitening)

    @cached_property
    def coloring(self) -> Floats:
        """Inverse of the whitening matrix, rounded: it maps noise back."""
        return locked(triangle_inverse(self.whitening))

    @cached_property
    def covariance(self) -> Floats:
        """Covariance of the noise for a standard deviation of 1."""
        return locked(self.coloring @ self.coloring.T)

    @cached_property
    def stretch(self) -> float:
        """Bound on the factor by which whitening lengthens a difference; large ones are rough."""
        if self.dim <= _MOST_EXACT:
            return float(np.linalg.norm(self.whitening, 2)) * _UP
        by_sums = np.linalg.norm(self.whitening, 1) * np.linalg.norm(self.whitening, np.inf)
        return min(math.sqrt(by_sums), float(np.linalg.norm(self.whitening))) * _UP

    def stds(self, noise_std: float) -> Floats:
        """Standard deviation of the noise of each coordinate, in scaled coordinates."""
        return np.asarray(noise_std * np.sqrt((self.coloring**2).sum(axis=1)))

    def whitened(self, outputs: Floats, center: Floats) -> Floats:
        """Compute A (q - c) for every row q, always in the same order; never infinite."""
        rows = np.asarray(outputs, dtype=np.float64)
        result = np.empty(rows.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                block = slice(start, start + _ROWS_AT_ONCE)
                result[block] = _lower_product(self.whitening, (rows[block] - center).T).T
        return np.nan_to_num(result, copy=False, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST) + 0.0

    def whitened_exactly(self, values: Sequence[Fraction]) -> list[Fraction]:
        """Multiply A by a vector, without rounding."""
        return exact_product(self.whitening, values)

    def colored(self, values: Sequence[Fraction]) -> list[Fraction]:
        """Multiply the rounded inverse of A by a vector, without further rounding."""
        return exact_product(self.coloring, values)

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
    def covariance(self) -> Floats:
        """Covariance of the noise as it is added, in scaled coordinates, shape (dim, dim)."""
        shaped = np.eye(self.dim) if self.shape is None else self.shape.covariance
        return np.asarray(self.std**2 * shaped)

    @property
    def stds(self) -> Floats:
        """Standard deviation of each coordinate, in scaled coordinates."""
        return np.full(self.dim, self.std) if self.shape is None else self.shape.stds(self.std)


def _check_square(**named: Floats) -> None:
    for name, matrix in named.items():
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
            raise ArgumentError(f"{name} must be a square matrix, got shape {matrix.shape}")
    check_finite(**named)


def exact_product(matrix: Floats, values: Sequence[Fraction]) -> list[Fraction]:
    """Multiply a matrix of floats by a vector exactly, as integers over common denominators."""
    below = math.lcm(*(value.denominator for value in values))
    numbers = [value.numerator * (below // value.denominator) for value in values]
    fractions, powers = np.frexp(matrix)
    least = int(powers[matrix != 0].min(initial=0)) - _MANTISSA
    digits = (fractions * 2.0**_MANTISSA).astype(np.int64).tolist()
    shifts = np.where(matrix != 0, powers - _MANTISSA - least, 0).tolist()
    unit = Fraction(2) ** least / below
    return [
        unit * sum((a * x) << shift for a, x, shift in zip(row, numbers, by, strict=True) if a)
        for row, by in zip(digits, shifts, strict=True)
    ]


def triangle_inverse(matrix: Floats) -> Floats:
    """Invert a lower triangular matrix, large ones by halves."""
    dim, half = len(matrix), len(matrix) // 2
    if dim <= _SMALL:
        return _inverse(matrix)
    inverse = np.zeros((dim, dim))
    inverse[:half, :half] = triangle_inverse(matrix[:half, :half].copy())
    inverse[half:, half:] = triangle_inverse(matrix[half:, half:].copy())
    mixed = matrix[half:, :half] @ inverse[:half, :half]
    inverse[half:, :half] = -inverse[half:, half:] @ mixed
    return inverse


def _lower_product(matrix: Floats, columns: Floats) -> Floats:
    """Multiply by a lower triangular matrix in one fixed order; not by BLAS, whose order varies."""
    total, terms = np.zeros(columns.shape), np.empty(columns.shape)
    for k, row in enumerate(np.ascontiguousarray(columns)):
        np.multiply(matrix[k:, k, None], row, out=terms[k:])
        total[k:] += terms[k:]
    return total


def _inverse(matrix: Floats) -> Floats:
    """Invert a lower triangular matrix by forward substitution, in one fixed order."""
    dim = len(matrix)
    inverse = np.eye(dim)
    for k in range(dim):
        inverse[k] /= matrix[k, k]
        inverse[k + 1 :] -= matrix[k + 1 :, k, None] * inverse[k]
    return inverse
