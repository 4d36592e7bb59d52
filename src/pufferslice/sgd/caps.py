# SPDX-License-Identifier: Apache-2.0
r"""The paper's caps: how far one round of clipped SGD can move along each slice.

One clipped gradient *reaches* some distance along a slice of the update, two of them lie at most
twice that apart, and K of the B gradients of a batch differ:

$$h_{t,i} = (2 \cdot reach_i \cdot K / B)^2$$

Caps contain the step size, so they belong to noise on the *update*.

Use: what one round costs given its history, and comparison with the paper. Caps along slices do
**not** certify a run: a shift that no slice sees today can be turned into a slice by tomorrow's
gradient. Nothing here leads to a certificate; the accountants work in full dimension.
"""

import itertools
from collections.abc import Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.checks import (
    check_above,
    check_at_least,
    check_count,
    check_finite,
    check_unit_rows,
)
from pufferslice.errors import ArgumentError

_MATRIX_TOLERANCE: Final = 1e-12
"""Relative error up to which a covariance is taken as symmetric and not negative."""

_quiet: Final = np.errstate(over="ignore", invalid="ignore")
"""Overflow is reported by `_finite`, as an error and not as a warning."""


def _integers(sizes: Sequence[int]) -> tuple[int, ...]:
    """A tuple of plain integers; what is not one is left for the check to name."""
    return tuple(int(size) if isinstance(size, np.integer) else size for size in sizes)


@final
@attrs.frozen(kw_only=True)
class ClippedBlocks:
    """Blocks of coordinates (layers), in order, each clipped on its own.

    >>> ClippedBlocks(sizes=[2, 1], clip_norms=[3.0, 4.0]).dim
    3
    """

    sizes: tuple[int, ...] = attrs.field(converter=_integers)
    """Coordinates per block; the first block has the first ones."""
    clip_norms: Floats = attrs.field(converter=locked, eq=same)
    """Largest Euclidean norm of a per-example gradient inside each block."""

    def __attrs_post_init__(self) -> None:
        for size in self.sizes:
            check_count(1, size=size)
        if not self.sizes or self.clip_norms.shape != (len(self.sizes),):
            msg = (
                "sizes and clip_norms must have one entry per block, at least one; "
                f"got {len(self.sizes)} sizes and clip_norms of shape {self.clip_norms.shape}"
            )
            raise ArgumentError(msg)
        for clip_norm in self.clip_norms:
            check_above(0, clip_norm=float(clip_norm))

    @classmethod
    def by_size(cls, sizes: Sequence[int], *, clip_norm: float) -> "ClippedBlocks":
        """Clip norms proportional to the root of the block size; their squares sum to clip_norm^2.

        The rule of the paper's per-layer example.
        """
        check_above(0, clip_norm=clip_norm)
        for size in sizes:
            check_count(1, size=size)
        shares = np.array(sizes, dtype=float) / max(sum(sizes), 1)
        return cls(sizes=sizes, clip_norms=clip_norm * np.sqrt(shares))

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(self.sizes)

    def norms(self, rows: Floats) -> Floats:
        """Euclidean norm of each row inside each block, shape (n_rows, n_blocks)."""
        starts = list(itertools.accumulate(self.sizes[:-1], initial=0))
        return np.asarray(np.sqrt(np.add.reduceat(rows**2, starts, axis=1)))


@_quiet
def lipschitz_reach(lipschitz: Floats, *, clip_norm: float) -> Floats:
    """How far one gradient of norm at most `clip_norm` can reach: lipschitz * clip_norm.

    Needs: along slice i the update moves by at most `lipschitz[i]` times the Euclidean norm of a
    change of the mean gradient. A global Lipschitz constant will do for every slice. The learning
    rate will do for plain SGD, also with momentum and weight decay.
    Source: prop:exist_HUC.
    """
    check_above(0, clip_norm=clip_norm)
    return _finite(_not_negative(lipschitz=locked(lipschitz)) * clip_norm)


@_quiet
def block_reach(directions: Floats, blocks: ClippedBlocks, *, preconditioner: Floats) -> Floats:
    r"""How far one blockwise clipped gradient can reach: sum of $C_b \|P_b A^T u_i\|$.

    Guarantee: no gradient reaches farther, and one that is aligned with $P_b A^T u_i$ at the clip
    norm in every block reaches exactly there, so the caps from it are minimal.
    Needs: the update is linear in the mean gradient, params - A @ gradient, and A does not depend
    on the data or the batch.
    Source: corollary:vanilla_SGD_HUC.

    >>> blocks = ClippedBlocks(sizes=[1, 1], clip_norms=[3.0, 5.0])
    >>> float(block_reach([[0.6, 0.8]], blocks, preconditioner=np.eye(2))[0])
    5.8
    """
    rows = _directions(blocks.dim, directions)
    matrix = _square(blocks.dim, preconditioner=preconditioner)
    return _finite(blocks.norms(rows @ matrix) @ blocks.clip_norms)


@_quiet
def block_reach_bound(directions: Floats, blocks: ClippedBlocks, *, lipschitz: Floats) -> Floats:
    r"""The explicit form for layers: sum of $C_b L_b \|P_b u_i\|$, never below `block_reach`.

    Needs: $\|P_b A^T u_i\| \le L_b \|P_b u_i\|$ for every block and slice; with one learning rate
    per layer L_b is that rate, and the two forms agree.
    Source: corollary:vanilla_SGD_HUC, in the form of app:perlayer_clipping.
    """
    rows = _directions(blocks.dim, directions)
    factors = _not_negative(lipschitz=locked(lipschitz))
    if factors.shape != blocks.clip_norms.shape:
        msg = f"lipschitz must have one entry per block, {len(blocks.sizes)}; got {factors.shape}"
        raise ArgumentError(msg)
    return _finite(blocks.norms(rows) @ (blocks.clip_norms * factors))


def squared_caps(reach: Floats, *, discrepancy_cap: float, divisor: float) -> Floats:
    """Bounds on the squared shift of one round along each slice, for every batch draw (HUC).

    Use: cost of one round given its history. With one flat clip norm the caps are the same in all
    directions and equal the full-dimension bound; otherwise they do not certify a run.
    Needs: no batch has more than `discrepancy_cap` differing records, and the sum of gradients is
    divided by the public `divisor`: the batch size or the expected one. Never the largest possible
    size, which would make the caps too small.
    Source: def:HUC, prop:exist_HUC, corollary:vanilla_SGD_HUC.

    >>> float(squared_caps([0.5], discrepancy_cap=3, divisor=6)[0])
    0.25
    """
    check_at_least(0, discrepancy_cap=discrepancy_cap)
    check_above(0, divisor=divisor)
    return normalised_squared_caps(reach, ratio_cap=discrepancy_cap / divisor)


def mean_square_caps(reach: Floats, *, mean_square_discrepancy: float, divisor: float) -> Floats:
    """Bounds on the mean over batch draws of the squared shift along each slice (sa-HUC).

    Use: comparison, and the paper's average over batch draws; it implies no bound on what one
    batch draw shows. Take the largest slice, not the log-moment, for its joint form.
    Needs: the mean square over batch draws alone, at most this for every pair of coupled datasets.
    Source: def:msHUC, prop:msHUC_from_K2.
    """
    check_at_least(0, mean_square_discrepancy=mean_square_discrepancy)
    check_above(0, divisor=divisor)
    ratio = mean_square_discrepancy / divisor / divisor
    return normalised_mean_square_caps(reach, mean_square_ratio=ratio)


def normalised_squared_caps(reach: Floats, *, ratio_cap: float) -> Floats:
    """`squared_caps` for a sum divided by the realised batch size: K/B is at most `ratio_cap`.

    Under Poisson sampling the ratio reaches 1 as soon as one record differs.
    Use: as `squared_caps`, comparison only. The library divides by a public constant.
    Source: prop:exist_HUC, in the form of app:poisson_subsampling.
    """
    check_at_least(0, ratio_cap=ratio_cap)
    return normalised_mean_square_caps(reach, mean_square_ratio=ratio_cap * ratio_cap)


@_quiet
def normalised_mean_square_caps(reach: Floats, *, mean_square_ratio: float) -> Floats:
    """`mean_square_caps` for a sum divided by the realised batch size: mean of (K/B)^2.

    Use: as `mean_square_caps`, comparison only.
    Needs: a batch of no records counts as ratio 0 and its update does not depend on the data.
    Source: prop:msHUC_from_K2, in the form of app:poisson_subsampling.
    """
    check_at_least(0, mean_square_ratio=mean_square_ratio)
    # The 2 belongs to the difference of two clipped gradients; it is written here and nowhere else.
    return _finite((2 * _not_negative(reach=locked(reach))) ** 2 * mean_square_ratio)


@_quiet
def minimal_squared_caps(directions: Floats, shifts: Floats) -> Floats:
    """The smallest caps of one round whose possible shifts are known: the largest square per slice.

    Guarantee: every valid cap vector of this history and coupling is at least this, and this one is
    attained. `shifts` has shape (n_shifts, dim).
    Use: to see how far a cap is from tight. Like every cap it is about one round.
    Source: prop:HUC_tight.
    """
    moves = locked(shifts)
    if moves.ndim != 2 or moves.size == 0:
        msg = f"shifts must have shape (n_shifts, dim), both at least 1; got {moves.shape}"
        raise ArgumentError(msg)
    check_finite(shifts=moves)
    rows = _directions(moves.shape[1], directions)
    return _finite(np.max((rows @ moves.T) ** 2, axis=1))


@_quiet
def cap_matrix(
    blocks: ClippedBlocks, *, preconditioner: Floats, discrepancy_cap: float, divisor: float
) -> Floats:
    r"""One matrix H with squared shift along u at most $u^T H u$, for every u in R^dim.

    $$H = (2K/B)^2 \, \big(\sum_b C_b\big) \, A \, \big(\sum_b C_b P_b\big) A^T$$

    Guarantee: never below the squared caps of `block_reach` (Cauchy-Schwarz over the blocks). With
    one block it equals them in every direction.
    Use: a sensitivity ellipsoid of one round; the caps of a profile are its diagonal values.
    Source: def:HUC, corollary:vanilla_SGD_HUC.
    """
    matrix = _square(blocks.dim, preconditioner=preconditioner)
    radius = np.sqrt(np.repeat(blocks.clip_norms, blocks.sizes) * blocks.clip_norms.sum())
    scale = squared_caps(np.ones(1), discrepancy_cap=discrepancy_cap, divisor=divisor)[0]
    half = matrix * radius
    return _finite(scale * (half @ half.T))


@_quiet
def matrix_caps(directions: Floats, matrix: Floats) -> Floats:
    """The squared caps that a cap matrix gives along each slice: u^T H u.

    Source: def:HUC.
    """
    return _quadratic(directions, matrix=matrix)


@_quiet
def projected_variance(directions: Floats, noise_cov: Floats) -> Floats:
    """Variance of the noise along each slice, u^T Sigma u; each must be positive.

    Source: lemma:gaussian_SRE.
    """
    return _positive_variance(_quadratic(directions, noise_cov=noise_cov))


@_quiet
def block_projected_variance(
    directions: Floats, blocks: ClippedBlocks, *, noise_stds: Floats
) -> Floats:
    """`projected_variance` of independent noise with one standard deviation per block.

    Source: lemma:gaussian_SRE.
    """
    stds = _not_negative(noise_stds=locked(noise_stds))
    if stds.shape != blocks.clip_norms.shape:
        msg = f"noise_stds must have one entry per block, {len(blocks.sizes)}; got {stds.shape}"
        raise ArgumentError(msg)
    shares = blocks.norms(_directions(blocks.dim, directions)) ** 2
    return _positive_variance(_finite(shares @ stds**2))


def _directions(dim: int, directions: Floats) -> Floats:
    rows = locked(directions)
    check_unit_rows(directions=rows)
    if rows.shape[1] != dim:
        msg = f"directions must have {dim} coordinates, got {rows.shape[1]}"
        raise ArgumentError(msg)
    return rows


def _square(dim: int, **named: Floats) -> Floats:
    ((name, matrix),) = named.items()
    values = locked(matrix)
    if values.shape != (dim, dim):
        msg = f"{name} must have shape ({dim}, {dim}), got {values.shape}"
        raise ArgumentError(msg)
    check_finite(**{name: values})
    return values


def _quadratic(directions: Floats, **named: Floats) -> Floats:
    """u^T M u for each direction u, where M is symmetric and has no negative eigenvalue."""
    ((name, _),) = named.items()
    rows = locked(directions)
    check_unit_rows(directions=rows)
    values = _square(rows.shape[1], **named)
    slack = _MATRIX_TOLERANCE * float(np.abs(values).max())
    if np.abs(values - values.T).max() > slack or np.linalg.eigvalsh(values)[0] < -slack:
        msg = (
            f"{name} must be symmetric and have no negative eigenvalue; use (m + m.T) / 2, and a "
            "covariance"
        )
        raise ArgumentError(msg)
    # Rounding may leave a zero slightly below zero.
    return _finite(np.maximum(np.sum((rows @ values) * rows, axis=1), 0.0))


def _positive_variance(variance: Floats) -> Floats:
    bad = int(np.count_nonzero(~(variance > 0)))
    if bad:
        msg = (
            f"the noise must have positive variance along every slice; {bad} of {variance.size} "
            "slices have none. Add noise there, or leave those slices out of the profile"
        )
        raise ArgumentError(msg)
    return variance


def _not_negative(**named: Floats) -> Floats:
    ((name, values),) = named.items()
    check_finite(**{name: values})
    if np.any(values < 0):
        msg = f"{name} must not be negative; the smallest is {float(values.min())!r}"
        raise ArgumentError(msg)
    return values


def _finite(values: Floats) -> Floats:
    if not np.all(np.isfinite(values)):
        msg = "the result is too large for a float; give clip norms, caps and noise in larger units"
        raise ArgumentError(msg)
    return np.asarray(values)
