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
from pufferslice._core.checks import check_above, check_one_of
from pufferslice._core.kernels import kernel
from pufferslice._core.search import SAFETY
from pufferslice.calibration.calibrate import (
    full_costs,
    grid_margin,
    largest_shift,
    smallest_noise,
)
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.renyi import SLICED_NOTIONS, moment_rate
from pufferslice.sensitivity.rows import RowDifference
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import MatchingTables

_LONGEST_SERIES: Final = 1e4
"""Above this argument the moment is bounded by its exponential: each slice by the whole output."""
_HUGE: Final = 2.0**600
_LOG_HUGE: Final = 600 * math.log(2)
_REST: Final = 2.0**-60
"""Terms that small, relative to the sum, end the series; their rest is added."""
_UP: Final = 1 + 2.0**-48
"""More than the rounding of a logarithm and of its argument."""


def sphere_costs(full: Full, claim: Guarantee, noise_std: float) -> Floats:
    """The epsilon of each instance along the whole sphere at this noise; 0 for equal ones.

    Guarantee: upper bounds; for point masses, and for Gaussians whose covariance is the same in
    every direction, the divergence itself up to the grid margin and rounding (and joint claims with
    moments above e^10000 by the whole output). Never above the cost of the whole output.
    Needs: isotropic noise of `noise_std` in scaled coordinates, and either distances of the whole
    output or Gaussians with one covariance under both secrets of a pair. For an average claim,
    the query has a single value under every secret, or a Gaussian that is not a mixture.
    """
    tables = _closed_form_differences(full, claim)
    check_above(0, noise_std=noise_std)
    a, dim = claim.order - 1, full.dim
    if isinstance(tables, GaussianPairs):
        points = claim.order / 2 * tables.squared_ratios(claim.order, noise_std)
        if claim.notion == "average":
            pieces = points / dim
        else:
            pieces = np.array([_log_moment(a * point, dim) / a for point in points])
        found = tables.mixed(np.stack([pieces, pieces]), claim.order)
    else:
        # A distance is a sum of squares, each addition rounded.
        rate = moment_rate(claim.order, noise_std) * (1 + (dim + 8) * UNIT_ROUNDOFF)
        margin = grid_margin(dim, noise_std)
        if claim.notion == "average":
            logs = rate * (tables.worst() + margin) ** 2 / dim
        else:
            rows = _log_sphere_moments(tables.starts, tables.gaps, tables.counts, rate, margin, dim)
            logs = rows.reshape(tables.n_slices, tables.n_instances).T
        found = logs.min(axis=1) / a
    costs = np.minimum(found, full_costs(full, claim.order, noise_std)) * SAFETY
    costs[tables.equal] = 0.0
    return np.asarray(costs)


def sphere_cost(full: Full, claim: Guarantee, noise_std: float) -> float:
    """The epsilon of a claim along the whole sphere at this noise, the largest over instances."""
    return float(sphere_costs(full, claim, noise_std).max())


def sphere_noise_std(full: Full, target: Guarantee) -> float:
    """Smallest noise standard deviation, in scaled coordinates, for a claim along the sphere.

    Guarantee: `sphere_cost(result) <= target.epsilon` was evaluated and holds. 0 if all
    distributions are equal.

    >>> from pufferslice.sensitivity.tables import MatchingTables
    >>> points = MatchingTables.of_rows([(np.array([3.0]), np.array([1]))], [1])
    >>> full = Full(dim=9, differences=points)  # two points in nine dimensions, 3 apart
    >>> round(sphere_noise_std(full, Guarantee.average(order=4, epsilon=1.0)) ** 2, 6)
    2.0
    >>> round(sphere_noise_std(full, Guarantee.joint(order=4, epsilon=1.0)) ** 2, 6)
    5.386283
    """
    differences = _closed_form_differences(full, target)
    if full.are_equal:
        return 0.0
    shift = largest_shift(differences)
    return smallest_noise(lambda std: sphere_cost(full, target, std), target, shift)


def _closed_form_differences(full: Full, claim: Guarantee) -> MatchingTables | GaussianPairs:
    """The distances or Gaussian pairs; raise where the claim has no closed form."""
    check_one_of(SLICED_NOTIONS, notion=claim.notion)
    tables = full.differences
    if tables is None or full.missing.any() or isinstance(tables, RowDifference):
        raise ArgumentError(
            "the whole sphere needs distances of the whole output, on all levels; from samples only"
            " a public range gives them. Use query.with_range(...), or a FiniteProfile"
        )
    if full.shape is not None:
        raise ArgumentError(
            "claims along the sphere are for isotropic noise; with a shape, noise and distances "
            "have other directions than the slices. Use shape='isotropic', or an unsliced claim"
        )
    if isinstance(tables, GaussianPairs) and not tables.have_one_spread:
        raise ArgumentError(
            "the whole sphere has a closed form for Gaussians only where both distributions of "
            "every pair have the same covariance. Use a FiniteProfile (a SampledSphere needs a "
            "public range, which Gaussian priors do not have)"
        )
    if claim.notion == "average" and not (full.is_single or full.dim == 1):
        raise ArgumentError(
            "an average over the whole sphere has a closed form only where the query has a single "
            "value, or one Gaussian, under every secret. Use a joint claim, which implies it, a "
            "SampledSphere or a FiniteProfile"
        )
    return tables


@kernel
def _log_sphere_moments(
    starts: Integers, gaps: Floats, counts: Integers, rate: float, margin: float, dim: int
) -> Floats:
    """Upper bounds on the log of the mean of 1F1(1/2; dim/2; rate (gap + margin)^2), per row."""
    result = np.empty(len(starts) - 1)
    for row in range(len(starts) - 1):
        first, last = starts[row], starts[row + 1]
        # Gaps descend, so the first moment is the largest.
        top = _log_moment(rate * (gaps[first] + margin) ** 2, dim)
        total = counts[first:last].sum()
        sum_ = 0.0
        for entry in range(first, last):
            log = _log_moment(rate * (gaps[entry] + margin) ** 2, dim)
            share = counts[entry] / total
            sum_ += share * (math.expm1(log) if top < 1 else math.exp(log - top))
        sum_ *= 1 + 4 * (last - first) * UNIT_ROUNDOFF
        result[row] = (math.log1p(sum_) if top < 1 else top + math.log(sum_)) * _UP
    return result


@kernel
def _log_moment(x: float, dim: int) -> float:
    """An upper bound on ln 1F1(1/2; dim/2; x), x not negative, by its series of positive terms.

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
