# SPDX-License-Identifier: Apache-2.0
r"""Claims along the whole sphere of directions, without drawing any.

Along a uniform direction u, two points at distance r are $r |u_1|$ apart, so what the slices show
on average, or in the log-moment, depends on r and the dimension d alone:

* average: $E\, u_1^2 = 1/d$, hence $\frac{\alpha r^2}{2 \sigma^2 d}$;
* joint: $E\, e^{c r^2 u_1^2} = {}_1F_1(\tfrac12; \tfrac d2; c r^2)$ with
  $c = \alpha(\alpha-1)/(2\sigma^2)$.

For distributions with several values, take any coupling with distances $r_i$ of masses $m_i$. Along
each u it bounds $e^{(\alpha-1) D_u}$ by $\sum_i m_i e^{c \langle x_i - y_i, u \rangle^2}$ (joint
convexity); the mean over u is $\sum_i m_i\, {}_1F_1(\tfrac12; \tfrac d2; c r_i^2)$, whatever the
directions of the differences are. So the joint claim needs distances only. The average one does
not follow from them: the logarithm comes before the mean over u, and its value depends on the
angles between the differences.

Gaussian distributions with one covariance S under both secrets are, along u, Gaussians of variance
$u^\top S u + \sigma^2$, at least $\lambda_{\min}(S) + \sigma^2$. So the formulas for points hold
with that sum for $\sigma^2$: exactly where S is the same in every direction, else as bounds. Of
mixtures every two coupled components count as two values.

Like every sliced number these describe the ideal real-valued mechanism, with isotropic noise.
"""

import math
from typing import Final

import numpy as np

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.kernels import kernel

_LONGEST_SERIES: Final = 1e4
"""Argument above which the moment is bounded by its exponential: each slice by the whole output."""
_HUGE: Final = 2.0**600
_LOG_HUGE: Final = 600 * math.log(2)
_REST: Final = 2.0**-60
"""Relative size of terms that end the series; their rest is added."""
_UP: Final = 1 + 2.0**-48
"""Bound on the rounding of a logarithm and of its argument."""


@kernel
def log_sphere_moments(
    starts: Integers, gaps: Floats, counts: Integers, rate: float, margin: float, dim: int
) -> Floats:
    """Bound the log of the mean of 1F1(1/2; dim/2; rate (gap + margin)^2), per row."""
    result = np.empty(len(starts) - 1)
    for row in range(len(starts) - 1):
        first, last = starts[row], starts[row + 1]
        # Gaps descend, so the first moment is the largest.
        top = log_sphere_moment(rate * (gaps[first] + margin) ** 2, dim)
        total = counts[first:last].sum()
        sum_ = 0.0
        for entry in range(first, last):
            log = log_sphere_moment(rate * (gaps[entry] + margin) ** 2, dim)
            share = counts[entry] / total
            sum_ += share * (math.expm1(log) if top < 1 else math.exp(log - top))
        sum_ *= 1 + 4 * (last - first) * UNIT_ROUNDOFF
        result[row] = (math.log1p(sum_) if top < 1 else top + math.log(sum_)) * _UP
    return result


@kernel
def log_sphere_moment(x: float, dim: int) -> float:
    """Bound ln 1F1(1/2; dim/2; x), x not negative, by its series of positive terms.

    A term is off by at most four roundings for each factor, and the sum by one for each term; from
    term 2x on each is less than half the one before.
    """
    if not x < _LONGEST_SERIES:
        return x
    term, rest, log_scale, k = 1.0, 0.0, 0.0, 0
    scaled_one = 1.0
    while k + 1 < 2 * x or term > _REST * (scaled_one + rest):
        term *= (k + 0.5) * x / ((k + dim / 2) * (k + 1.0))
        rest += term
        k += 1
        if rest > _HUGE:
            term, rest, scaled_one = term / _HUGE, rest / _HUGE, scaled_one / _HUGE
            log_scale += _LOG_HUGE
    rest = (rest + term) * (1 + 8 * (k + 1) * UNIT_ROUNDOFF)
    log = math.log1p(rest) if log_scale == 0.0 else log_scale + math.log(scaled_one + rest)
    return min(x, log * _UP)
