# SPDX-License-Identifier: Apache-2.0
"""Wasserstein mechanisms of others: GWM, DAGWM, Laplace, and group privacy."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above, check_at_least, check_one_of
from pufferslice._core.search import RELATIVE_WIDTH, SAFETY, raise_until, smallest_safe
from pufferslice.baselines.transport import (
    cheapest_coupling,
    check_pair,
    least_limit,
    pairwise_distances,
    w_infinity,
)
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.renyi import gaussian_envelope, moment_rate, transport_envelope

DistributionCouple = tuple[FiniteDistribution, FiniteDistribution]
"""The two distributions of one instance, in scaled coordinates."""


def full_sensitivity(couples: Sequence[DistributionCouple]) -> float:
    """The largest W-infinity of all instances (the paper's unsliced sensitivity)."""
    check_couples(couples)
    return max(w_infinity(first, second) for first, second in couples)


def gwm_noise_std(couples: Sequence[DistributionCouple], target: Guarantee) -> float:
    r"""Noise of the general Wasserstein mechanism, in scaled coordinates.

    $$\sigma^2 = \frac{\alpha}{2\epsilon} W_\infty^2$$

    Guarantee: Gaussian noise of this standard deviation gives the unsliced target for these
    distributions. For comparison: no certificate is issued. Source: eq:full_D_WS,
    lem:Winfty_bottleneck_matching.
    """
    check_unsliced(target)
    return shift_noise_std(full_sensitivity(couples), target)


def shift_noise_std(sensitivity: float, target: Guarantee) -> float:
    """Gaussian noise for shifts up to `sensitivity`; 0 if there is nothing to hide."""
    check_unsliced(target)
    check_at_least(0, sensitivity=sensitivity)
    if sensitivity == 0:
        return 0.0

    def holds(noise_std: float) -> bool:
        cost = gaussian_envelope(target.order, np.asarray(sensitivity), noise_std)
        return bool(cost <= target.epsilon)

    return raise_until(holds, sensitivity * math.sqrt(target.order / (2 * target.epsilon)))


def check_unsliced(target: Guarantee) -> None:
    """The mechanisms of this package speak of the whole output."""
    check_one_of(("unsliced",), notion=target.notion)


def check_couples(couples: Sequence[DistributionCouple]) -> None:
    """There is at least one instance, and its distributions have finitely many atoms."""
    if not couples:
        msg = "couples must hold at least one pair of distributions, got none"
        raise ArgumentError(msg)
    for distribution in (distribution for couple in couples for distribution in couple):
        if not isinstance(distribution, FiniteDistribution):
            msg = (
                f"this mechanism couples atoms, and {distribution!r} has none; W-infinity between "
                "Gaussians of different spread is infinite. Use the tight rule, or samples of "
                "the distributions"
            )
            raise ArgumentError(msg)


def group_noise_std(group_sensitivity: float, target: Guarantee) -> float:
    r"""Noise when the rows of a group may be anything: $\sigma^2 = \alpha\Delta^2/(2\epsilon)$.

    Guarantee: the unsliced target between any two datasets that differ in one group.
    Needs: `group_sensitivity`, in scaled coordinates, bounds how far the query can move when one
    group is replaced; the caller knows it, nothing here checks it.
    For comparison: no certificate is issued.
    Source: app:worst_case_group_privacy.

    >>> group_noise_std(3.0, Guarantee.unsliced(order=4, epsilon=2.0))
    3.0
    """
    check_above(0, group_sensitivity=group_sensitivity)
    return shift_noise_std(group_sensitivity, target)


def laplace_scale(couples: Sequence[DistributionCouple], epsilon: float) -> float:
    """Scale of the Laplace noise, W-infinity / epsilon; its variance is twice the square.

    Song et al. (2017) calibrate to W-infinity; Ding (2022) to the largest move of an optimal plan
    of the 1-Wasserstein distance. On the line the monotone plan is optimal for both, so one
    function serves them.

    Guarantee: (epsilon, 0)-Pufferfish privacy for these distributions, unsliced: the query is a
    scalar. For comparison: no certificate is issued. Source: def:WD, lem:empirical_Winfty_1d.
    """
    check_above(0, epsilon=epsilon)
    check_couples(couples)
    for distribution in (distribution for couple in couples for distribution in couple):
        if distribution.dim != 1:
            msg = (
                f"the Laplace mechanisms are for scalar queries, got {distribution.dim} "
                "coordinates; release one of them, or use the general Wasserstein mechanism"
            )
            raise ArgumentError(msg)
    distributions = [distribution for couple in couples for distribution in couple]
    pairs = [DistributionPair(2 * k, 2 * k + 1) for k in range(len(couples))]
    worst = float(gap_tables(distributions, pairs, np.ones((1, 1))).worst().max())
    scale = worst / epsilon
    return float(np.nextafter(scale, np.inf)) if scale * epsilon < worst else scale


_ARRAYS: Final = 3
"""Tables of distances: the distances, the costs, and the flow of a transport plan."""
_MOST_STEPS: Final = 60
_LARGEST_TOTAL: Final = 1e6
_SMALL: Final = 1.0


def dagwm_noise_std(
    couples: Sequence[DistributionCouple], target: Guarantee, q: float = 1.0
) -> float:
    r"""Smallest noise of DAGWM for an unsliced target, in scaled coordinates.

    The smallest $\sigma$ with, in every instance,

    $$\frac{1}{q(\alpha-1)} \ln \inf_\pi \mathbb{E}
      \exp\Big(\frac{q(\alpha-1)(q(\alpha-1)+1)\,\|X-Y\|^2}{2\sigma^2}\Big) \le \epsilon$$

    A coupling needs a smallest noise, and a noise has a cheapest coupling; taking them in turn
    ends at the smallest noise of all couplings. `q = 1` needs least.

    Guarantee: Gaussian noise of this standard deviation gives the target for these distributions.
    For comparison: no certificate is issued. Source: def:p_W, app:background_DAGWM_RPP.
    """
    check_unsliced(target)
    check_couples(couples)
    check_at_least(1, q=q)
    order = q * (target.order - 1) + 1
    return max(_couple_noise(first, second, order, target.epsilon) for first, second in couples)


def dagwm_cost(couple: DistributionCouple, order: float, noise_std: float, q: float = 1.0) -> float:
    """What noise costs by DAGWM: the least over couplings, at order `order`."""
    check_couples([couple])
    check_above(1, order=order)
    check_above(0, noise_std=noise_std)
    check_at_least(1, q=q)
    problem = _Problem(*couple)
    if problem.worst == 0:
        return 0.0
    inner, relative = q * (order - 1) + 1, noise_std / problem.worst
    if not relative or not 0 < moment_rate(inner, relative) < math.inf:
        msg = (
            f"noise_std {noise_std!r} at order {order!r} is beyond what floats can account for; "
            "ask about a noise nearer to the distances of the distributions"
        )
        raise CalibrationError(msg)
    return transport_envelope(inner, *problem.cheapest(inner, relative), relative)


def _couple_noise(
    first: FiniteDistribution, second: FiniteDistribution, order: float, epsilon: float
) -> float:
    problem = _Problem(first, second)
    if problem.worst == 0:
        return 0.0
    # The coupling of least largest step meets epsilon here.
    relative = math.sqrt(order / (2 * epsilon)) * SAFETY
    for _ in range(_MOST_STEPS):
        moves = problem.cheapest(order, relative)
        found = min(relative, _smallest_noise(order, epsilon, moves, relative))
        settled = found >= relative * (1 - 4 * RELATIVE_WIDTH)
        relative = found
        if settled:
            break
    return math.nextafter(relative * problem.worst, math.inf)


def _smallest_noise(
    order: float, epsilon: float, moves: tuple[Floats, Floats], start: float
) -> float:
    """Smallest noise at which one coupling meets epsilon."""

    def cost(noise_std: float) -> float:
        return transport_envelope(order, *moves, noise_std)

    found = smallest_safe(cost, epsilon, start=start)
    return raise_until(lambda noise_std: cost(noise_std) <= epsilon, found)


class _Problem:
    """Distances as multiples of W-infinity, and cheapest couplings."""

    def __init__(self, first: FiniteDistribution, second: FiniteDistribution) -> None:
        check_pair(first, second, n_arrays=_ARRAYS)
        self._distributions = first, second
        self._distances = pairwise_distances(first, second)
        self.worst = least_limit(self._distances, first, second)
        if self.worst > 0:
            self._distances /= self.worst

    def cheapest(self, order: float, noise_std: float) -> tuple[Floats, Floats]:
        """Distances and masses under the coupling that is cheapest at this relative noise."""
        coupling = cheapest_coupling(self._costs(order, noise_std), *self._distributions)
        moved = self._distances[coupling.rows, coupling.columns]
        return moved, coupling.masses / coupling.masses.sum()

    def _costs(self, order: float, noise_std: float) -> Floats:
        """Moments of the distances relative to that of W-infinity, so that none overflows.

        One unit of mass at more than the cap would cost more than all mass at W-infinity.
        """
        rate = moment_rate(order, noise_std)
        total = math.lcm(*(distribution.total for distribution in self._distributions))
        cap = math.log(min(total, _LARGEST_TOTAL)) + 1
        costs = np.minimum(self._distances, math.sqrt(1 + cap / rate))
        costs *= costs
        costs *= rate
        if rate < _SMALL:
            np.expm1(costs, out=costs)
            costs /= math.expm1(rate)
        else:
            costs -= rate
            np.exp(costs, out=costs)
        return np.asarray(np.minimum(costs, math.exp(cap), out=costs))
