# SPDX-License-Identifier: Apache-2.0
"""Noise multipliers of private SGD against epsilon: the paper's methods, its recipe, and ours."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.baselines.dpsgd import DpSgd, dp_sgd_epsilon, group_size
from pufferslice.guarantee import Guarantee
from pufferslice.sgd import (
    Accountant,
    Amplified,
    LogMoment,
    MeanSquare,
    Poisson,
    SamplingDesign,
    WorstCase,
    calibrate_multiplier,
    exactly,
    run_cost,
)
from pufferslice.sgd.cap_costs import RecipeNoise, recipe_noise

DELTA: Final = 1e-5
"""Of group-DP-SGD, whose epsilon needs one; that of the paper's reference epsilon."""

GROUP_TOLERANCE: Final = 0.002
"""Multipliers of group-DP-SGD are accounted points, at most this share above the smallest one."""

_ACCOUNTANTS: Final[dict[str, Accountant]] = {
    "srpp": WorstCase(),
    "sa_srpp": MeanSquare(),
    "log_moment": LogMoment(),
    "amplified": Amplified(),
}
SERIES: Final = (*_ACCOUNTANTS, "recipe_srpp", "recipe_sa_srpp", "group_dp_sgd")
"""Accounts of the library, the paper's recipe as printed, and group-DP-SGD."""


@final
@attrs.frozen(kw_only=True)
class NoiseSetting:
    """Everything that the noise of a run depends on, but its budget."""

    n_differing: int
    sampling: SamplingDesign
    """The design of the paper's methods and of log moment."""
    poisson: Poisson
    """The design of amplified and of group-DP-SGD, which need it."""
    learning_rates: Floats = attrs.field(converter=locked, eq=same)
    """One per step; only the paper's recipe looks at them."""
    order: float

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.learning_rates)

    @property
    def group(self) -> DpSgd:
        """The run as group-DP-SGD sees it, with the group size of the paper's appendix."""
        size = group_size(self.sampling, self.n_differing)
        return DpSgd(rate=self.poisson.rate, n_steps=self.n_steps, group_size=size)

    def recipe(self, series: str, epsilon: float) -> RecipeNoise:
        """The multiplier that the paper prints for a claimed epsilon, with its true cost."""
        squared = (
            float(self.sampling.discrepancy_cap(self.n_differing)) ** 2
            if series == "recipe_srpp"
            else self.sampling.mean_square_discrepancy(self.n_differing)
        )
        return recipe_noise(self.order, epsilon, self.learning_rates, squared_discrepancy=squared)

    def amplified_cost(self, noise_multiplier: float) -> float:
        """What a constant multiplier costs by the amplified account: a bound on the secret."""
        noise = np.full(self.n_steps, noise_multiplier)
        return run_cost(Amplified(), self.order, self.poisson, exactly(self.n_differing), noise)


def noise_multipliers(setting: NoiseSetting, series: str, epsilons: Sequence[float]) -> list[float]:
    """The multiplier of one series at each budget."""
    if series == "group_dp_sgd":
        return group_multipliers(setting.group, epsilons)
    if series.startswith("recipe_"):
        return [setting.recipe(series, epsilon).noise_multiplier for epsilon in epsilons]
    accountant = _ACCOUNTANTS[series]
    sampling = setting.poisson if series == "amplified" else setting.sampling
    differing = exactly(setting.n_differing)
    return [
        calibrate_multiplier(
            accountant,
            Guarantee(notion=accountant.notion, order=setting.order, epsilon=epsilon),
            sampling,
            differing,
            setting.n_steps,
        )
        for epsilon in epsilons
    ]


def accountant_of(series: str) -> Accountant:
    """The account by which a series states its cost; group-DP-SGD and the recipe borrow one."""
    if series == "recipe_sa_srpp":
        return MeanSquare()
    return _ACCOUNTANTS.get(series, WorstCase())


def group_multipliers(run: DpSgd, epsilons: Sequence[float]) -> list[float]:
    """Multipliers with which DP-SGD costs at most each epsilon at `DELTA`, by Rényi orders.

    Guarantee: each was accounted for and is safe, and one smaller by `GROUP_TOLERANCE` is not. Many
    budgets share the accounted points, which makes it quick.
    """
    known: dict[float, float] = {}

    def cost(multiplier: float) -> float:
        if multiplier not in known:
            known[multiplier] = dp_sgd_epsilon(run, multiplier, DELTA, "rdp")
        return known[multiplier]

    with _without_notes_on_orders():
        return [_accounted(cost, known, epsilon, run.group_size) for epsilon in epsilons]


def _accounted(
    cost: Callable[[float], float], known: dict[float, float], epsilon: float, start: float
) -> float:
    """The smallest safe multiplier within the tolerance; new points by interpolation of logs."""
    low = max((z for z, spent in known.items() if spent > epsilon), default=float(start))
    while cost(low) <= epsilon:
        low /= 2
    high = min((z for z, spent in known.items() if spent <= epsilon), default=float(start))
    while cost(high) > epsilon:
        high *= 2
    step = 1 + GROUP_TOLERANCE / 3
    while high > low * (1 + GROUP_TOLERANCE):
        share = math.log(cost(low) / epsilon) / math.log(cost(low) / cost(high))
        guess = low * (high / low) ** min(max(share, 0.1), 0.9)
        for near in (guess * step, guess / step):
            if low < near < high:
                low, high = (low, near) if cost(near) <= epsilon else (near, high)
    return high


@contextlib.contextmanager
def _without_notes_on_orders() -> Iterator[None]:
    """dp-accounting logs every order that it leaves out; that only makes its epsilon larger."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
