# SPDX-License-Identifier: Apache-2.0
"""Noise of private SGD against epsilon: the paper's set-up, its methods and recipe, and ours.

Exact arithmetic at the paper's scale; nothing is trained.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, product
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice.baselines.dp_sgd import DpSgd, dp_sgd_epsilon, group_size
from pufferslice.learning import (
    Accountant,
    Amplified,
    LogMoment,
    MeanSquare,
    Poisson,
    SamplingDesign,
    WithoutReplacement,
    WorstCase,
    calibrate_multiplier,
    exactly,
    run_cost,
    two_world_prevalence,
)
from pufferslice.learning.plan import recipe_learning_rates
from reproduction.caps import (
    RecipeNoise,
    average_total_squared_cap,
    joint_total_squared_cap,
    lipschitz_reach,
    recipe_noise,
    squared_caps,
)
from reproduction.experiment import Claim, Outcome, Row, Setting

ORDER: Final = 16.0
EPSILONS: Final = (
    80.0, 70.0, 65.0, 60.0, 55.0, 50.0, 45.0, 40.0, 35.0, 30.0, 25.0, 20.0, 18.0, 14.0, 12.0, 10.0,
    8.0, 4.0, 2.0, 1.0, 0.5,
)  # fmt: skip
"""The paper's 21 budgets."""

N_RECORDS: Final = 50_000
N_DIFFERING: Final = 20
"""The paper's number of differing labels."""
BOTH_DIFFERING: Final = (2, N_DIFFERING)
"""Its printed shares, 0.10000 and 0.10004, give 2."""
PRINTED_SHARES: Final = (0.10000, 0.10004)
CAT: Final = 3
"""The class whose prevalence is the secret."""

_WARM_UP: Final = Fraction(5, 100)


@final
@attrs.frozen(kw_only=True)
class SgdSetup:
    """One row of the paper's hyperparameters."""

    batch_size: int
    clip_norm: float
    peak_learning_rate: float
    n_epochs: int = 40
    n_records: int = N_RECORDS

    @property
    def n_steps(self) -> int:
        """Epochs times batches of an epoch, the last of which may be smaller."""
        return self.n_epochs * math.ceil(self.n_records / self.batch_size)

    @property
    def n_warmup_steps(self) -> int:
        """Five per cent of the steps."""
        return int(_WARM_UP * self.n_steps)

    @property
    def learning_rates(self) -> Floats:
        """Linear warm-up, then half a cosine."""
        return recipe_learning_rates(
            peak=self.peak_learning_rate,
            n_steps=self.n_steps,
            n_warmup_steps=self.n_warmup_steps,
        )

    @property
    def fixed_size(self) -> WithoutReplacement:
        """The sampling that the paper accounts for."""
        return WithoutReplacement(n_records=self.n_records, batch_size=self.batch_size)

    @property
    def poisson(self) -> Poisson:
        """Poisson sampling with the batch size as its mean."""
        return Poisson(n_records=self.n_records, rate=self.batch_size / self.n_records)


SETUPS: Final = (
    SgdSetup(batch_size=512, clip_norm=4.0, peak_learning_rate=0.2),
    SgdSetup(batch_size=1024, clip_norm=5.0, peak_learning_rate=0.14),
)
"""Both batch sizes of the paper."""


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

    def reference_epsilon(self, noise_multiplier: float) -> float:
        """What Opacus prints beside a run: for one added or removed record, at `DELTA`.

        Its accountant is one of Rényi orders, too. It says nothing about the secret.
        """
        run = DpSgd(rate=self.poisson.rate, n_steps=self.n_steps, group_size=1)
        return dp_sgd_epsilon(run, noise_multiplier, DELTA, "rdp")


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
            accountant.claim(order=setting.order, epsilon=epsilon),
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


NAME: Final = "sgd-noise"
N_CLASSES: Final = 10
_SEED: Final = 7

_SEVERAL: Final = 3.0
_NEAR_TEN: Final = (5.0, 15.0)
_N_SLICES: Final = 16

Curves = dict[tuple[int, str], list[float]]
"""Multipliers at the paper's budgets, by batch size and series; for one number of records."""


def run(setting: Setting) -> Outcome:
    """Every series at both batch sizes and all budgets; the same at both scales."""
    curves: dict[int, Curves] = {n_differing: {} for n_differing in BOTH_DIFFERING}
    rows: list[Row] = []
    cells = list(product(BOTH_DIFFERING, SETUPS, SERIES))
    for done, (n_differing, setup, series) in enumerate(cells, start=1):
        noise = noise_setting(setup, n_differing)
        multipliers = noise_multipliers(noise, series, EPSILONS)
        curves[n_differing][setup.batch_size, series] = multipliers
        rows += _rows(setup, noise, series, multipliers)
        setting.progress(done, len(cells))
    differ = " or ".join(map(str, BOTH_DIFFERING))
    return Outcome(
        experiment=NAME,
        scale=(
            f"{N_RECORDS:,} records as in the paper, {differ} differ, order {ORDER:g}, "
            f"{SETUPS[0].n_epochs} epochs; exact arithmetic, nothing is trained. "
            f"Group-DP-SGD at most {GROUP_TOLERANCE:.1%} above its smallest multiplier."
        ),
        rows=tuple(rows),
        claims=(
            *chain.from_iterable(_claims(curves[count], count) for count in BOTH_DIFFERING),
            *_recipe_costs(),
            _same_caps(),
            _mean_square_below_cap(),
            _twenty_differ(),
        ),
    )


def noise_setting(setup: SgdSetup, n_differing: int = N_DIFFERING) -> NoiseSetting:
    """What the noise of a set-up depends on: the paper's fixed batch size, and Poisson for ours."""
    return NoiseSetting(
        n_differing=n_differing,
        sampling=setup.fixed_size,
        poisson=setup.poisson,
        learning_rates=setup.learning_rates,
        order=ORDER,
    )


def _rows(
    setup: SgdSetup, noise: NoiseSetting, series: str, multipliers: list[float]
) -> Iterator[Row]:
    for epsilon, multiplier in zip(EPSILONS, multipliers, strict=True):
        cost, reference = epsilon, None
        if series.startswith("recipe_"):
            cost = noise.recipe(series, epsilon).true_epsilon
            reference = noise.reference_epsilon(multiplier)
        yield {
            "n_differing": noise.n_differing,
            "batch_size": setup.batch_size,
            "series": series,
            "epsilon": epsilon,
            "noise_multiplier": multiplier,
            "epsilon_by_own_account": None if series == "group_dp_sgd" else cost,
            "epsilon_by_amplified": noise.amplified_cost(multiplier),
            "reference_epsilon": reference,
        }


def _claims(curves: Curves, n_differing: int) -> Iterator[Claim]:
    """Claims about the curves, which depend on how many records differ."""
    differ = f"if {n_differing} records differ"
    sizes = [setup.batch_size for setup in SETUPS]
    ratios = {size: _ratios(curves, size, "recipe_srpp", "recipe_sa_srpp") for size in sizes}
    yield Claim(
        statement=(
            "sa-SRPP needs less noise than worst-case SRPP, at all budgets and batch sizes, "
            f"{differ}"
        ),
        source="subfig:gep_resnet",
        held=all(min(values) > 1 for values in ratios.values()),
        found=f"SRPP over sa-SRPP is at least {_each(ratios, min)}",
    )
    yield Claim(
        statement=(
            "The sa-SRPP curve lies well below, often by a factor of several: "
            f"at least {_SEVERAL:g} at half of the budgets, {differ}"
        ),
        source="subfig:gep_resnet",
        held=all(np.median(values) >= _SEVERAL for values in ratios.values()),
        found=f"median factor {_each(ratios, lambda values: float(np.median(values)))}",
    )
    low, high = _NEAR_TEN
    pairs = [pair for values in ratios.values() for pair in zip(values, EPSILONS, strict=True)]
    yield Claim(
        statement=(
            "The factor approaches an order of magnitude around epsilon 20 to 40: "
            f"between {low:g} and {high:g} there, {differ}"
        ),
        source="subfig:gep_resnet",
        held=all(low <= factor <= high for factor, epsilon in pairs if 20 <= epsilon <= 40),
        found="over all budgets the factor goes from "
        + " and ".join(
            f"{min(values):.2f} to {max(values):.2f} (batch size {size})"
            for size, values in ratios.items()
        ),
    )
    for series, name in (("recipe_srpp", "SRPP-SGD"), ("recipe_sa_srpp", "sa-SRPP-SGD")):
        yield _dominated(curves, sizes, series, name, n_differing)


def _ratios(curves: Curves, size: int, upper: str, lower: str) -> list[float]:
    pairs = zip(curves[size, upper], curves[size, lower], strict=True)
    return [above / below for above, below in pairs]


def _dominated(curves: Curves, sizes: list[int], series: str, name: str, n_differing: int) -> Claim:
    ratios = {size: _ratios(curves, size, "group_dp_sgd", series) for size in sizes}
    group = max(noise_setting(setup, n_differing).group.group_size for setup in SETUPS)
    return Claim(
        statement=(
            f"Group-DP-SGD needs substantially more noise than {name} over the whole range of "
            f"epsilon: more at every budget, if {n_differing} records differ"
        ),
        source="subfig:group_dp",
        held=all(min(values) > 1 for values in ratios.values()),
        found=(
            f"group-DP-SGD (group size {group}, delta {DELTA:g}) over {name} as printed is at most "
            f"{_each(ratios, max, '.3g')}: the root of the mean square rounds up to {group}, so it "
            f"protects {group} record{'' if group == 1 else 's'} instead of the secret"
        ),
    )


def _recipe_costs() -> Iterator[Claim]:
    for series, name in (("recipe_srpp", "SRPP-SGD"), ("recipe_sa_srpp", "sa-SRPP-SGD")):
        recipes = {setup.batch_size: noise_setting(setup).recipe(series, 1.0) for setup in SETUPS}
        shown = "; ".join(
            f"batch size {size}: multiplier {recipe.noise_multiplier:.2f} at claimed epsilon 1 "
            f"costs {recipe.true_epsilon:.1f}"
            for size, recipe in recipes.items()
        )
        yield Claim(
            statement=f"The printed noise multiplier of {name} gives the epsilon it is printed for",
            source="app:sgd_setup",
            held=all(recipe.understatement <= 1 for recipe in recipes.values()),
            found=f"{shown}, by its own kind of account",
        )


def _same_caps() -> Claim:
    weights = np.full(_N_SLICES, 1 / _N_SLICES)
    off = []
    for setup in SETUPS:
        reach = lipschitz_reach(setup.learning_rates, clip_norm=setup.clip_norm)
        per_step = squared_caps(
            reach,
            discrepancy_cap=setup.fixed_size.discrepancy_cap(N_DIFFERING),
            divisor=setup.batch_size,
        )
        caps = np.repeat(per_step[:, None], _N_SLICES, axis=1)
        average = average_total_squared_cap(caps, weights)
        off.append(abs(joint_total_squared_cap(caps, weights) / average - 1))
    return Claim(
        statement="With one clip norm Ave- and Joint-SRPP-SGD have the same total cap",
        source="subsec:srpp_sgd_gaussian",
        held=max(off) < 1e-12,
        found=f"they differ by a share of {max(off):.1e}",
    )


def _mean_square_below_cap() -> Claim:
    squares = {
        setup.batch_size: setup.fixed_size.mean_square_discrepancy(N_DIFFERING) for setup in SETUPS
    }
    return Claim(
        statement="The mean-square discrepancy is at most the worst-case cap",
        source="subsec:srpp_sgd_gaussian",
        held=all(value <= N_DIFFERING for value in squares.values()),
        found="; ".join(f"{value:.4f} at batch size {size}" for size, value in squares.items())
        + f"; the cap is {N_DIFFERING}",
    )


def _twenty_differ() -> Claim:
    labels = np.repeat(np.arange(N_CLASSES), N_RECORDS // N_CLASSES)
    printed, right = (
        two_world_prevalence(labels, label=CAT, share=share, seed=_SEED).n_differing
        for share in (PRINTED_SHARES[1], 0.1004)
    )
    return Claim(
        statement=f"Shares of 0.10000 and 0.10004 give worlds that differ in {N_DIFFERING} records",
        source="app:sgd_setup",
        held=printed == N_DIFFERING,
        found=(
            f"{printed} records differ; {right} belong to a share of 0.1004. The numbers here are "
            "for both"
        ),
    )


def _each(
    values: dict[int, list[float]], pick: Callable[[list[float]], float], form: str = ".1f"
) -> str:
    shown = [f"{pick(one):{form}} (batch size {size})" for size, one in values.items()]
    return " and ".join(shown)
