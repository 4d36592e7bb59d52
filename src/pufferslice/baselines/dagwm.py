# SPDX-License-Identifier: Apache-2.0
"""Distribution-aware general Wasserstein mechanism (DAGWM) for Gaussian noise."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.baselines.bottleneck import least_limit
from pufferslice.baselines.distances import check_pair, pairwise_distances
from pufferslice.baselines.gwm import LawCouple, check_couples, check_unsliced
from pufferslice.baselines.transport import cheapest_coupling
from pufferslice.checks import check_above, check_at_least
from pufferslice.errors import CalibrationError
from pufferslice.guarantee import Guarantee
from pufferslice.laws import EmpiricalLaw
from pufferslice.renyi import moment_rate, transport_envelope
from pufferslice.search import RELATIVE_WIDTH, SAFETY, raise_until, smallest_safe

_ARRAYS: Final = 3
"""Tables of distances: the distances, the costs, and the flow of a transport plan."""
_MOST_STEPS: Final = 60
_LARGEST_TOTAL: Final = 1e6
_SMALL: Final = 1.0


def dagwm_noise_std(couples: Sequence[LawCouple], target: Guarantee, q: float = 1.0) -> float:
    r"""Smallest noise of DAGWM for an unsliced target, in scaled coordinates.

    The smallest $\sigma$ with, in every instance,

    $$\frac{1}{q(\alpha-1)} \ln \inf_\pi \mathbb{E}
      \exp\Big(\frac{q(\alpha-1)(q(\alpha-1)+1)\,\|X-Y\|^2}{2\sigma^2}\Big) \le \epsilon$$

    A coupling needs a smallest noise, and a noise has a cheapest coupling; taking them in turn
    ends at the smallest noise of all couplings. `q = 1` needs least.

    Guarantee: Gaussian noise of this standard deviation gives the target for these laws. For
    comparison: no certificate is issued.
    Source: def:p_W, app:background_DAGWM_RPP.
    """
    check_unsliced(target)
    check_couples(couples)
    check_at_least(1, q=q)
    order = q * (target.order - 1) + 1
    return max(_couple_noise(first, second, order, target.epsilon) for first, second in couples)


def dagwm_cost(couple: LawCouple, order: float, noise_std: float, q: float = 1.0) -> float:
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
            "ask about a noise nearer to the distances of the laws"
        )
        raise CalibrationError(msg)
    return transport_envelope(inner, *problem.cheapest(inner, relative), relative)


def _couple_noise(first: EmpiricalLaw, second: EmpiricalLaw, order: float, epsilon: float) -> float:
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
    """The distances of two laws as multiples of their W-infinity, and cheapest couplings."""

    def __init__(self, first: EmpiricalLaw, second: EmpiricalLaw) -> None:
        check_pair(first, second, n_arrays=_ARRAYS)
        self._laws = first, second
        self._distances = pairwise_distances(first, second)
        self.worst = least_limit(self._distances, first, second)
        if self.worst > 0:
            self._distances /= self.worst

    def cheapest(self, order: float, noise_std: float) -> tuple[Floats, Floats]:
        """Distances and masses under the coupling that is cheapest at this relative noise."""
        coupling = cheapest_coupling(self._costs(order, noise_std), *self._laws)
        moved = self._distances[coupling.rows, coupling.columns]
        return moved, coupling.masses / coupling.masses.sum()

    def _costs(self, order: float, noise_std: float) -> Floats:
        """Moments of the distances relative to that of W-infinity, so that none overflows.

        One unit of mass at more than the cap would cost more than all mass at W-infinity.
        """
        rate = moment_rate(order, noise_std)
        total = math.lcm(*(law.total for law in self._laws))
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
