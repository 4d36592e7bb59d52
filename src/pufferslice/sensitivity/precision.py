# SPDX-License-Identifier: Apache-2.0
r"""Upper bounds with the inverse of a noise covariance, whatever floats do to the inverse.

For any matrix X of floats with $\|X \Sigma X^\top - I\| \le \beta < 1$, $X \Sigma X^\top \succeq
(1-\beta) I$, so X is invertible, and

$$\Sigma^{-1} \preceq \frac{1}{1-\beta}\, X^\top X.$$

X is the inverse of a Cholesky factor, rounded; how it was found does not matter, because $\beta$ is
computed from it, with a bound on the rounding of the two products. Where the covariance is singular
as far as floats can tell, no $\beta$ is below 1, and every bound is infinite.
"""

import math
from typing import Final, Self, final

import attrs
import numpy as np
import scipy  # loads its solvers when one is asked for: our start is shorter

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, locked, same
from pufferslice.sensitivity.whitening import triangle_inverse

SEED: Final = 1
"""Seed of the start of the power steps, which find no more than a better bound."""
_UP: Final = 1 + 2.0**-48
_UP_NORM: Final = 1 + 2.0**-20
"""Above the rounding of a sum of squares of up to 2**30 entries."""
_POWER_STEPS: Final = 30
_VALUES_AT_ONCE: Final = 2**17
_MOST_WHOLE: Final = 256
"""Largest matrix whose eigenvalues are all computed where one of them is wanted."""
_TOP_ERROR: Final = 2.0**-20
_MOST_COMPARED: Final = 2**28
"""Most numbers of pairs of boxes that are compared; farther ones are bounded by their radii."""


@final
@attrs.frozen(kw_only=True, repr=False)
class Precision:
    r"""An upper bound on the inverse of a covariance: $\Sigma^{-1} \preceq e\, X^\top X$.

    >>> precision = Precision.of(np.diag([4.0, 1.0]))
    >>> precision.mean_squares(np.array([[[2.0, 1.0], [1.0, 3.0]]])).round(9).tolist()
    [3.5]
    """

    factor: Floats = attrs.field(converter=locked, eq=same)
    """Matrix X, shape (dim, dim)."""
    excess: float
    """Factor e, at least 1; infinite where the covariance is singular up to rounding."""

    @classmethod
    def of(cls, covariance: Floats) -> Self:
        """Invert a symmetric matrix, and measure how well that went."""
        dim = len(covariance)
        try:
            root = np.linalg.cholesky(covariance)
            factor = triangle_inverse(np.asarray(root, dtype=np.float64))
        except np.linalg.LinAlgError:
            return cls(factor=np.eye(dim), excess=math.inf)
        size = np.abs(factor)
        product = factor @ covariance @ factor.T
        # The norm of a symmetric matrix is at most its largest sum of a row.
        largest = size @ (np.abs(covariance) @ size.sum(axis=0))
        rounding = 4 * (dim + 4) * UNIT_ROUNDOFF * float(largest.max())
        error = (float(np.linalg.norm(product - np.eye(dim))) + rounding) * _UP_NORM
        return cls(factor=factor, excess=_UP / (1 - error) if error < 1 else math.inf)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.factor)

    def mean_squares(self, moments: Floats) -> Floats:
        r"""Bound $\mathrm{tr}(\Sigma^{-1} M)$ for each M; shape (n, dim, dim) gives shape (n,).

        Guarantee: rounded up. Rounding of $\mathrm{tr}(X^\top X M)$ is at most that of as many
        operations on absolute values.
        """
        if not math.isfinite(self.excess):
            return np.full(len(moments), math.inf)
        matrix, size = self.factor.T @ self.factor, np.abs(self.factor).T @ np.abs(self.factor)
        totals = np.array([(moment * matrix).sum(axis=1).sum() for moment in moments])
        largest = np.array([(np.abs(moment) * size).sum(axis=1).sum() for moment in moments])
        rounding = 4 * (self.dim + 4) * UNIT_ROUNDOFF * largest
        return np.asarray(np.maximum(totals + rounding, 0.0) * self.excess * _UP)

    def farthest(self, low: Floats, high: Floats, *, enough: float = 0.0) -> float:
        r"""Bound $\sqrt{x^\top \Sigma^{-1} x}$ for the difference x of two points in some boxes.

        For boxes whose centres differ by c, h the sum of their half-widths, $x = c + e$ with $|e|
        \le h$, so that with $P \succeq \Sigma^{-1}$ and any diagonal $D \succeq P$

        $$x^\top P x \le c^\top P c + 2 |P c|^\top h + \min(h^\top |P| h,\; h^\top D h).$$

        The result is the maximum over all pairs of boxes, also of a box with itself, or what the
        same bound gives for one box around all if that is less. With everything in box i at a
        distance of at most $r_i$ from one point, two boxes are at most $r_i + r_j$ apart: pairs
        that are not farther apart than what was found, or than `enough`, are not looked at.

        Guarantee: rounded up, by at most as many roundings as there are operations, on absolute
        values; the half-widths are widened by the rounding of the centres.
        Needs: shape (n_boxes, dim), no low end above its high end.

        >>> boxes = np.array([[0.0, 0.0]]), np.array([[6.0, 2.0]])
        >>> round(Precision.of(np.diag([9.0, 1.0])).farthest(*boxes), 9)
        2.828427125
        """
        if not math.isfinite(self.excess):
            return math.inf
        enough = enough**2 / self.excess
        square = self._largest_square(low.min(axis=0)[None], high.max(axis=0)[None], enough)
        if len(low) > 1 and square > enough:
            square = min(square, self._largest_square(low, high, enough))
        return math.sqrt(max(0.0, square) * self.excess) * _UP

    def _largest_square(self, low: Floats, high: Floats, enough: float) -> float:
        """Bound x' P x over the differences x of two points, each in one of the boxes."""
        centers, halves = _centred(low, high)
        reach = (np.abs(centers) + halves) @ np.abs(self.factor).T
        farthest = math.sqrt(float((reach**2).sum(axis=1).max()))
        error = 16 * (self.dim + 8) * UNIT_ROUNDOFF * farthest
        matrix = self.factor.T @ self.factor
        matrix = (matrix + matrix.T) / 2
        moving, size = halves.any(axis=0), np.abs(matrix)
        spread = np.einsum("ij,ij->i", halves @ size, halves)
        apart = (centers - centers.mean(axis=0)) @ self.factor.T
        from_center = np.linalg.norm(apart, axis=1) + error
        rough = 4 * float((from_center + np.sqrt(spread) * _UP_NORM).max()) ** 2
        if rough <= enough:
            return rough
        diagonal = _diagonal_above(matrix, 2 * halves.max(axis=0))
        bent = halves**2 @ diagonal
        radii = from_center + np.sqrt(np.minimum(spread, bent)) * _UP_NORM
        # The farthest boxes first: what is left can soon not be farther apart than what was found.
        order = np.argsort(-radii, kind="stable")
        centers, halves, radii = centers[order], halves[order], radii[order]
        spread, bent = spread[order], bent[order]
        turned = centers @ matrix
        own = np.einsum("ij,ij->i", turned, centers)
        slopes, widths = turned[:, moving], halves[:, moving]
        best, start = 0.0, 0
        while start < len(centers):
            left = float(radii[start] + radii[0]) ** 2
            if left <= max(best, enough) or start * slopes.size > _MOST_COMPARED:
                return max(best, left)
            stop = start + max(1, _VALUES_AT_ONCE // max(1, slopes.size))
            rows, others = slice(start, stop), slice(0, stop)
            squares = own[rows, None] + own[others] - 2 * turned[rows] @ centers[others].T
            steep = np.abs(slopes[rows, None] - slopes[None, others])
            squares += 2 * (steep @ widths[rows, :, None])[..., 0]
            squares += 2 * np.einsum("ijk,jk->ij", steep, widths[others])
            by_entries = spread[rows, None] + spread[others]
            by_entries += 2 * halves[rows] @ size @ halves[others].T
            by_diagonal = bent[rows, None] + bent[others]
            by_diagonal += 2 * (halves[rows] * diagonal) @ halves[others].T
            squares += np.minimum(by_entries, by_diagonal)
            best, start = max(best, float(squares.max()) + 4 * error * farthest), stop
        return best

    def __repr__(self) -> str:
        return f"Precision(dim={self.dim})"


def _centred(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return centres and half-widths of boxes that contain these, whatever is rounded."""
    rounding = 4 * UNIT_ROUNDOFF * (np.abs(low) + np.abs(high))
    halves = np.where(high > low, (high - low) / 2 + rounding, 0.0)
    return low / 2 + high / 2, halves


def _diagonal_above(matrix: Floats, spans: Floats) -> Floats:
    r"""Return a diagonal matrix D that is above P, with a small $\sum_j D_{jj} s_j^2$.

    With $Q = S P S$ and any positive diagonal W, $D = \lambda_{\max}(W^{-1/2} Q W^{-1/2})\, W
    S^{-2}$ is above P, and the sum is $\lambda_{\max}\, \mathrm{tr}\,W$: $d\,\lambda_{\max}(Q)$ for
    the identity. The least sum is the semidefinite relaxation of $\max_{|x_j| \le 1} x^\top Q x$,
    above it by a factor of at most $\pi / 2$ (Nesterov 1998); power steps on unit vectors find its
    W. The better of both is returned; 0 for coordinates without a span, which never change.
    """
    diagonal = np.zeros(len(spans))
    moving = spans > 0
    if not moving.any():
        return diagonal
    form = matrix[np.ix_(moving, moving)] * np.outer(spans[moving], spans[moving])
    dim, best = len(form), math.inf
    vectors = np.random.default_rng(SEED).normal(size=(dim, math.isqrt(2 * dim) + 2))
    for _ in range(_POWER_STEPS):
        vectors = form @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    sizes = np.linalg.norm(vectors, axis=1)
    for weights in (np.ones(dim), np.maximum(sizes, UNIT_ROUNDOFF * sizes.max())):
        scaled = form / np.sqrt(np.outer(weights, weights))
        top = top_eigenvalue(scaled)
        if top * weights.sum() < best:
            best = top * float(weights.sum())
            diagonal[moving] = top * weights / spans[moving] ** 2 * _UP
    return diagonal


def top_eigenvalue(matrix: Floats) -> float:
    r"""Bound the largest eigenvalue of a positive semidefinite matrix from above.

    Of a large matrix it is guessed by Lanczos steps, and proved: if $t I - A$ has a Cholesky factor
    in floats, no eigenvalue of A is above $t + 2 (n + 2) u\, \mathrm{tr}(t I - A)$ (Rump 2006).
    Where there is none, or a matrix is small, all eigenvalues are computed.

    >>> round(top_eigenvalue(np.array([[2.0, 1.0], [1.0, 2.0]])), 9)
    3.0
    """
    dim = len(matrix)
    if dim > _MOST_WHOLE:
        start = np.linalg.norm(matrix, axis=1)
        try:
            (guess,) = scipy.sparse.linalg.eigsh(
                matrix, k=1, v0=start, tol=_TOP_ERROR, return_eigenvectors=False
            )
            top = float(guess) * (1 + 16 * _TOP_ERROR)
            rest = top * np.eye(dim) - matrix
            np.linalg.cholesky(rest)
        except (np.linalg.LinAlgError, scipy.sparse.linalg.ArpackError):
            pass
        else:
            return top + 2 * (dim + 2) * UNIT_ROUNDOFF * float(np.abs(np.diagonal(rest)).sum())
    top = float(np.linalg.eigvalsh(matrix)[-1])
    return top + 8 * dim * UNIT_ROUNDOFF * float(np.linalg.norm(matrix))
