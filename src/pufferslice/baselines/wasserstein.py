# SPDX-License-Identifier: Apache-2.0
"""Other Wasserstein mechanisms: GWM, DAGWM, Laplace, and group privacy."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, locked
from pufferslice._core.checks import (
    check_above,
    check_at_least,
    check_count,
    check_finite,
    is_a,
)
from pufferslice._core.search import RELATIVE_WIDTH, SAFETY, raise_until, smallest_safe
from pufferslice.baselines.transport import (
    cheapest_coupling,
    check_pair,
    coupling_tables,
    least_limit,
    masses,
    pairwise_distances,
    w_infinity,
)
from pufferslice.claims import Renyi
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.renyi import gaussian_envelope, moment_rate, transport_envelope

_MOST_STEPS: Final = 60
_LARGEST_TOTAL: Final = 1e6

DistributionCouple = tuple[FiniteDistribution, FiniteDistribution]
"""The two distributions of one instance, in scaled coordinates."""


def full_sensitivity(couples: Sequence[DistributionCouple]) -> float:
    """The largest W-infinity of all instances (the paper's unsliced sensitivity)."""
    check_couples(couples)
    return max(w_infinity(first, second) for first, second in couples)


def gwm_noise_std(couples: Sequence[DistributionCouple], target: Renyi) -> float:
    r"""Noise of the general Wasserstein mechanism, in scaled coordinates.

    $$\sigma^2 = \frac{\alpha}{2\epsilon} W_\infty^2$$

    Guarantee: Gaussian noise of this standard deviation gives the unsliced target for these
    distributions. For comparison: no certificate is issued. Source: eq:full_D_WS,
    lem:Winfty_bottleneck_matching.
    """
    check_unsliced(target)
    return shift_noise_std(full_sensitivity(couples), target)


def shift_noise_std(sensitivity: float, target: Renyi) -> float:
    """Gaussian noise for shifts up to `sensitivity`; 0 if the sensitivity is 0."""
    check_unsliced(target)
    check_at_least(0, sensitivity=sensitivity)
    if sensitivity == 0:
        return 0.0

    def holds(noise_std: float) -> bool:
        cost = gaussian_envelope(target.order, np.asarray(sensitivity), noise_std)
        return bool(cost <= target.epsilon)

    return raise_until(holds, sensitivity * math.sqrt(target.order / (2 * target.epsilon)))


def check_unsliced(target: Renyi) -> None:
    """The target is a Rényi claim about the whole output, which these mechanisms protect."""
    if not is_a(target, Renyi):
        raise ArgumentError(
            "target must be a Rényi claim about the whole output, as of Guarantee.unsliced(...), "
            f"got {target}"
        )


def check_couples(couples: Sequence[DistributionCouple]) -> None:
    """Raise unless there is an instance, and its distributions have finitely many atoms."""
    if not couples:
        raise ArgumentError("couples must hold at least one pair of distributions, got none")
    for distribution in itertools.chain(*couples):
        if not is_a(distribution, FiniteDistribution):
            raise ArgumentError(
                f"this mechanism couples atoms, and {distribution!r} has none; W-infinity between "
                "Gaussians of different spread is infinite. Use the tight rule, or samples of "
                "the distributions"
            )


def group_sensitivity(
    record_widths: Floats, *, divisors: Floats, scales: Floats, group_sizes: Sequence[int]
) -> float:
    r"""Largest move of means, rates, totals and counts if all rows of one group are replaced.

    $$\Delta = \max_k n_k \, \Big\| \Big( \frac{w_j}{D_j s_j} \Big)_j \Big\|$$

    One entry for each coordinate of the query: `record_widths`, highest less lowest value that one
    row can have there (1 for a condition that is met or not); `divisors`, what the sum over all
    rows is divided by (the number of rows for a mean or a rate, 1 for a total or a count);
    `scales`, those of the query. `group_sizes` are the numbers of rows of the groups.
    Guarantee: an upper bound in scaled coordinates, for any values in these ranges and the same
    number of rows. It is attained if the coordinates are about different columns.
    Source: app:worst_case_group_privacy.

    >>> means = {"divisors": [100, 100], "scales": [10.0, 0.5]}
    >>> round(group_sensitivity([60.0, 1.0], **means, group_sizes=[50, 30, 20]), 9)
    3.16227766
    """
    widths, divided, units = locked(record_widths), locked(divisors), locked(scales)
    if widths.ndim != 1 or not widths.size or not widths.shape == divided.shape == units.shape:
        raise ArgumentError(
            "record_widths, divisors and scales must have one entry for each coordinate, got "
            f"shapes {widths.shape}, {divided.shape} and {units.shape}"
        )
    check_finite(record_widths=widths, divisors=divided, scales=units)
    check_at_least(0, smallest_record_width=float(widths.min()))
    check_above(0, smallest_divisor=float(divided.min()), smallest_scale=float(units.min()))
    check_count(1, n_groups=len(group_sizes), **{f"group size {n!r}": n for n in group_sizes})
    with np.errstate(over="ignore"):
        moved = float(np.linalg.norm(widths / divided / units)) * max(group_sizes) * SAFETY
    check_at_least(0, group_sensitivity=moved)
    return moved


def group_noise_std(group_sensitivity: float, target: Renyi) -> float:
    r"""Noise when the rows of a group can have any values: $\sigma^2 = \alpha\Delta^2/(2\epsilon)$.

    Guarantee: the unsliced target between any two datasets that differ in one group.
    Needs: `group_sensitivity`, in scaled coordinates, bounds how far the query can move when one
    group is replaced (the function `group_sensitivity` gives it for means, rates, totals and
    counts); nothing here can check that.
    For comparison: no certificate is issued.
    Source: app:worst_case_group_privacy.

    >>> group_noise_std(3.0, Renyi(order=4, epsilon=2.0))
    3.0
    """
    check_above(0, group_sensitivity=group_sensitivity)
    return shift_noise_std(group_sensitivity, target)


def laplace_scale(couples: Sequence[DistributionCouple], epsilon: float) -> float:
    """Scale of the Laplace noise, W-infinity / epsilon; its variance is twice the square.

    Song et al. (2017) calibrate to W-infinity; Ding (2022) to the largest move of an optimal plan
    of the 1-Wasserstein distance. On the line the monotone plan is optimal for both.

    Guarantee: (epsilon, 0)-Pufferfish privacy for these distributions, unsliced: the query is a
    scalar. For comparison: no certificate is issued. Source: def:WD, lem:empirical_Winfty_1d.
    """
    check_above(0, epsilon=epsilon)
    check_couples(couples)
    distributions = list(itertools.chain(*couples))
    for distribution in distributions:
        if distribution.dim != 1:
            raise ArgumentError(
                f"the Laplace mechanisms are for scalar queries, got {distribution.dim} "
                "coordinates; release one of them, or use the general Wasserstein mechanism"
            )
    pairs = [DistributionPair(2 * k, 2 * k + 1) for k in range(len(couples))]
    worst = float(gap_tables(distributions, pairs, np.ones((1, 1))).worst().max())
    scale = worst / epsilon
    return float(np.nextafter(scale, np.inf)) if scale * epsilon < worst else scale


def laplace_envelope(order: float, shifts: npt.ArrayLike, scale: float) -> Floats:
    r"""$R_\alpha(\zeta, z)$: the largest divergence of Laplace noise from itself shifted by <= z.

    $$\frac{1}{\alpha-1} \ln\Big(\frac{\alpha}{2\alpha-1} e^{(\alpha-1) z/b} +
      \frac{\alpha-1}{2\alpha-1} e^{-\alpha z/b}\Big)$$

    It grows with the shift, so the largest shift is the worst. Never above z / b, the pure bound.
    Source: lemma:SRPP-envelope with noise that is not Gaussian.

    >>> float(laplace_envelope(2, [1.0], 1.0)[0])
    0.6191...
    """
    check_above(1, order=order)
    check_above(0, scale=scale)
    z = np.abs(np.asarray(shifts, dtype=np.float64)) / scale
    # ln((a + (a-1) e^{-(2a-1) z}) / (2a-1)) is the part below (a-1) z; 0 at z = 0.
    below = np.log1p(-(order - 1) / (2 * order - 1) * -np.expm1(-(2 * order - 1) * z))
    return np.asarray(np.clip(z + below / (order - 1), 0.0, z))


def laplace_renyi_scale(couples: Sequence[DistributionCouple], target: Renyi) -> float:
    """Smallest scale of Laplace noise whose envelope at W-infinity meets an unsliced target.

    Guarantee: the target for these distributions of a scalar query, in exact arithmetic. For
    comparison: no certificate is issued.
    """
    check_unsliced(target)
    worst = laplace_scale(couples, 1.0)
    if worst == 0:
        return 0.0

    def cost(scale: float) -> float:
        return float(laplace_envelope(target.order, worst, scale))

    return smallest_safe(cost, target.epsilon, start=worst / target.epsilon)


def dagwm_noise_std(couples: Sequence[DistributionCouple], target: Renyi, q: float = 1.0) -> float:
    r"""Smallest noise of DAGWM for an unsliced target, in scaled coordinates.

    The smallest $\sigma$ with, in every instance,

    $$\frac{1}{q(\alpha-1)} \ln \inf_\pi \mathbb{E}
      \exp\Big(\frac{q(\alpha-1)(q(\alpha-1)+1)\,\|X-Y\|^2}{2\sigma^2}\Big) \le \epsilon$$

    The cheapest coupling of a noise and the smallest noise of a coupling are found in turn, which
    ends at the smallest noise of all couplings. `q = 1` needs the least noise. Unequal weights need
    the extra `baselines` (POT).

    Guarantee: Gaussian noise of this standard deviation gives the target for these distributions.
    For comparison: no certificate is issued. Source: def:p_W, app:background_DAGWM_RPP.
    """
    check_unsliced(target)
    check_couples(couples)
    check_at_least(1, q=q)
    order = q * (target.order - 1) + 1
    return max(_couple_noise(couple, order, target.epsilon) for couple in couples)


def dagwm_cost(couple: DistributionCouple, order: float, noise_std: float, q: float = 1.0) -> float:
    """The cost of a noise by DAGWM, at the cheapest coupling and at order `order`."""
    check_couples([couple])
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    check_at_least(1, q=q)
    problem = _Problem(*couple)
    if problem.worst == 0:
        return 0.0
    inner, relative = q * (order - 1) + 1, noise_std / problem.worst
    if not relative or not 0 < moment_rate(inner, relative) < math.inf:
        raise CalibrationError(
            f"noise_std {noise_std!r} at order {order!r} is beyond the range of floats; give a "
            "noise closer to the distances of the distributions"
        )
    return transport_envelope(inner, *problem.cheapest(inner, relative), relative)


def _couple_noise(couple: DistributionCouple, order: float, epsilon: float) -> float:
    problem = _Problem(*couple)
    if problem.worst == 0:
        return 0.0
    # The coupling with the smallest largest distance meets epsilon here.
    relative = math.sqrt(order / (2 * epsilon)) * SAFETY
    for _ in range(_MOST_STEPS):
        distances, shares = problem.cheapest(order, relative)
        cost = partial(transport_envelope, order, distances, shares)
        smallest = smallest_safe(cost, epsilon, start=relative)
        smallest = raise_until(lambda std, cost=cost: cost(std) <= epsilon, smallest)  # type: ignore[misc]
        before, relative = relative, min(relative, smallest)
        if relative >= before * (1 - 4 * RELATIVE_WIDTH):
            break
    return math.nextafter(relative * problem.worst, math.inf)


class _Problem:
    """Distances as multiples of W-infinity, and cheapest couplings."""

    def __init__(self, first: FiniteDistribution, second: FiniteDistribution) -> None:
        self._supply, self._demand = masses(first, second)
        check_pair(first, second, n_tables=coupling_tables(self._supply, self._demand))
        self._distances = pairwise_distances(first, second)
        self.worst = least_limit(self._distances, first, second)
        if self.worst > 0:
            self._distances /= self.worst

    def cheapest(self, order: float, noise_std: float) -> tuple[Floats, Floats]:
        """Distances and probabilities under the coupling that is cheapest at this relative noise.

        Costs are moments relative to that of W-infinity, so that none overflows. They are capped:
        one unit of mass above the cap would cost more than all mass at W-infinity.
        """
        rate = moment_rate(order, noise_std)
        cap = math.log(min(int(self._supply.sum()), _LARGEST_TOTAL)) + 1
        costs = np.minimum(self._distances, math.sqrt(1 + cap / rate))
        costs *= costs
        costs *= rate
        if rate < 1:
            np.expm1(costs, out=costs)
            costs /= math.expm1(rate)
        else:
            costs -= rate
            np.exp(costs, out=costs)
        np.minimum(costs, math.exp(cap), out=costs)
        entries, shares = cheapest_coupling(costs, self._supply, self._demand)
        return self._distances[entries], shares
