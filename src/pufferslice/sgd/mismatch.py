# SPDX-License-Identifier: Apache-2.0
"""Total variation of two record laws: how often coupled records must differ.

Under the maximal coupling two records with laws p and q differ with probability TV(p, q), and under
no coupling less often. All results are rounded up.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.special import erf, ndtr

from pufferslice.arrays import Floats, locked
from pufferslice.checks import check_above, check_finite, check_probabilities
from pufferslice.errors import ArgumentError
from pufferslice.laws import GaussianLaw

ROUNDING_SLACK: Final = 2.0**-49
"""More than the rounding error of a sum of four normal probabilities, or of one, relatively."""

_FAR: Final = 40.0
_WIDE: Final = 1e16

DiscreteLaw = Sequence[float] | Floats | Mapping[Any, float]
NormalLaw = tuple[float, float] | GaussianLaw


def discrete_mismatch(first: DiscreteLaw, second: DiscreteLaw) -> float:
    """Total variation of two discrete record laws, rounded up.

    Takes two sequences of the same length, or two mappings by value (a value that one of them does
    not have has probability 0 there).

    >>> round(discrete_mismatch({"A": 0.5, "B": 0.5}, {"A": 0.25, "C": 0.75}), 12)
    0.75
    """
    p, q = _aligned(first, second)
    check_probabilities(first=p, second=q, length=max(1, p.size))
    # The two differ only if the sums do; `fsum` is exact up to its last rounding.
    excess = max(math.fsum([*a[a > b], *-b[a > b]]) for a, b in ((p, q), (q, p)))
    return min(1.0, math.nextafter(excess, math.inf)) if excess > 0 else 0.0


def gaussian_mismatch(first: NormalLaw, second: NormalLaw) -> float:
    """Total variation of two Gaussian record laws, rounded up.

    On the line each is a pair (mean, std) and the two densities are compared between the points
    where they cross. In more dimensions each is a `GaussianLaw`, and both must have the same
    covariance: the total variation is then that of two normals at their Mahalanobis distance.

    >>> round(gaussian_mismatch((0.0, 1.0), (1.0, 1.0)), 12)
    0.382924922548
    """
    if isinstance(first, GaussianLaw) and isinstance(second, GaussianLaw):
        if first.dim == second.dim == 1:
            return gaussian_mismatch(_pair_of(first), _pair_of(second))
        return _equal_covariance(first, second)
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        kinds = f"{type(first).__name__} and {type(second).__name__}"
        msg = f"first and second must be two pairs (mean, std) or two GaussianLaw; got {kinds}"
        raise ArgumentError(msg)
    (narrow_mean, narrow_std), (wide_mean, wide_std) = sorted(
        (_checked_normal(first=first), _checked_normal(second=second)), key=lambda law: law[1]
    )
    with np.errstate(over="ignore"):
        shift = float(np.abs(np.float64(wide_mean) - narrow_mean) / narrow_std)
        ratio = float(np.float64(wide_std) / narrow_std)
    return _shifted_scaled(shift, ratio)


def _shifted_scaled(shift: float, ratio: float) -> float:
    """Total variation of N(0, 1) and N(shift, ratio^2), for shift >= 0 and ratio >= 1."""
    if ratio == 1:
        return _shifted(shift)
    if ratio > _WIDE or shift > _FAR * (1 + ratio):
        return 1.0
    spread = (ratio - 1) * (ratio + 1)
    log_ratio = math.log1p(ratio - 1)
    root = ratio * math.sqrt(shift**2 + 2 * spread * log_ratio)
    # The roots of spread t^2 + 2 shift t = shift^2 + 2 ratio^2 log_ratio, without cancellation.
    low = -(shift + root) / spread
    high = (shift**2 + 2 * ratio**2 * log_ratio) / (shift + root)
    inside = ndtr(high) - ndtr((high - shift) / ratio) - (ndtr(low) - ndtr((low - shift) / ratio))
    return min(1.0, float(inside) + ROUNDING_SLACK)


def _shifted(distance: float) -> float:
    """Total variation of two normals with one covariance, at a Mahalanobis distance."""
    return min(1.0, float(erf(distance / math.sqrt(8))) * (1 + ROUNDING_SLACK))


def _equal_covariance(first: GaussianLaw, second: GaussianLaw) -> float:
    if not np.array_equal(first.cov, second.cov):
        msg = (
            "first and second must have the same covariance; for others there is no closed form. "
            "Give an upper bound on their total variation instead"
        )
        raise ArgumentError(msg)
    try:
        scaled = np.linalg.solve(np.linalg.cholesky(first.cov), first.mean - second.mean)
    except np.linalg.LinAlgError:
        msg = "the covariance must be positive definite; leave out coordinates that do not vary"
        raise ArgumentError(msg) from None
    # What rounding can do to the distance grows with the condition number.
    room = 1 + first.dim * float(np.linalg.cond(first.cov)) * ROUNDING_SLACK
    return _shifted(room * float(np.linalg.norm(scaled)))


def _pair_of(law: GaussianLaw) -> tuple[float, float]:
    return float(law.mean[0]), math.sqrt(law.cov[0, 0])


def _checked_normal(**named: tuple[float, float]) -> tuple[float, float]:
    ((name, law),) = named.items()
    if len(law) != 2:
        msg = f"{name} must be a pair (mean, std), got {len(law)} numbers"
        raise ArgumentError(msg)
    mean, std = law
    check_above(0, **{f"std of {name}": std})
    check_finite(**{f"mean of {name}": locked(mean)})
    return float(mean), float(std)


def _aligned(first: DiscreteLaw, second: DiscreteLaw) -> tuple[Floats, Floats]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        values = list({**first, **second})
        return locked([first.get(v, 0.0) for v in values]), locked(
            [second.get(v, 0.0) for v in values]
        )
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        msg = "first and second must both be sequences or both be mappings by value"
        raise ArgumentError(msg)
    return locked(first), locked(second)
