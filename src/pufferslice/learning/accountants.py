# SPDX-License-Identifier: Apache-2.0
r"""Costs of a run at Rényi orders: four accountants, in one noise space.

Noise of standard deviation z C is added to the *sum* of per-example gradients clipped at norm C;
z is the noise multiplier, and nothing here depends on C. Replacing K records of a batch moves the
sum by at most 2 C K, so a step with K differing records costs $2 \alpha K^2 / z^2$. Step size,
momentum and weight decay are post-processing.

The coupling of the two datasets is fixed for the whole run, so a run's cost is a function of the
number D of differing records: steps add for each D, and the expectation over D comes last. Other
measures than a Rényi divergence are in `pufferslice.learning.difference`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_above, check_count, check_one_of
from pufferslice._core.search import SAFETY, raise_until, smallest_safe, smallest_safe_multiplier
from pufferslice.claims import Claim, EpsilonDelta, Guess, Information, OverBatches, Renyi
from pufferslice.claims.claim import WholeClaim
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning.amplification import amplified_by_count, amplified_divergences
from pufferslice.learning.differing import DifferingRecords
from pufferslice.learning.moments import (
    FEW_COUNTS,
    CostsOf,
    CountCosts,
    binomial_log_moments,
    costs_by_count,
    log_mean_exp,
)
from pufferslice.learning.privacy_loss import PublishedDraws, SecretDraws, StepLoss
from pufferslice.learning.sampling import Poisson, SamplingDesign, WithoutReplacement

SMALLEST_MULTIPLIER: Final = 1e-100
LARGEST_MULTIPLIER: Final = 1e100
"""Ends of the range of noise multipliers: beyond them costs would overflow or underflow."""

_CERTIFIES: Final[dict[type[WholeClaim], str]] = {
    Guess: "At most so many right guesses from all that the run releases, ",
    Information: "At most so many bits in all that the run releases, ",
    Renyi: (
        "Rényi Pufferfish privacy of the whole run, hence average and joint SRPP for every "
        "profile, "
    ),
    EpsilonDelta: "(epsilon, delta)-Pufferfish privacy of the whole run, unsliced, ",
}
"""Beginnings of statements about a run, by the kind of claim."""
_WHOLE_RUN: Final = tuple(_CERTIFIES)
_OVER_BATCHES: Final = (
    "The paper's sa-SRPP only: a mean over batch draws of the divergence given the draw. It does "
    "not imply SRPP, Rényi Pufferfish privacy or an (epsilon, delta) statement."
)
_NO_DRAW: Final = (
    "The mean is over draws that nobody chose; it says nothing about the draw that happened, "
    "whoever sees it."
)
_SMALLEST_COST: Final = 1e-290
_LARGEST_COST: Final = 1e290

_ELEMENTS: Final = 2**15
"""Floats in one temporary array, so that it fits the cache."""
_MANY_ELEMENTS: Final = 2**18
"""Floats in one temporary array of distributions that are summed over together."""
_CEILING_NODES: Final = 32
"""Counts at which log moments are computed, to bound amplified costs that do not matter."""
_FEW_TRIALS: Final = 64
"""Number of trials below which moments are sums over all counts."""
_LEAST_SCALE: Final = 1e-100
"""Smallest scale whose square does not underflow."""


@final
@attrs.frozen
class WorstCase:
    """Cost of a run whose every batch holds as many differing records as it can hold.

    Source: thm:HUC_SRPP_SGD.
    """

    name: ClassVar[str] = "worst_case"
    claim: ClassVar[type[Renyi]] = Renyi
    kinds: ClassVar[tuple[type[WholeClaim], ...]] = _WHOLE_RUN
    scope: ClassVar[str] = "whatever batches are drawn."
    draws: ClassVar[str] = "Anyone may see which records each batch holds."

    def check(self, sampling: SamplingDesign, differing: DifferingRecords) -> None:
        """Raise if more records differ than there are; accepts any design and distribution of D."""
        sampling.discrepancy_cap(differing.largest)

    def step_costs(
        self, order: float, sampling: SamplingDesign, n_differing: int, noise_multipliers: Floats
    ) -> Floats:
        r"""Cost of a step at each noise multiplier: $2 \alpha\, cap(D)^2 / z^2$."""
        cap = sampling.discrepancy_cap(n_differing)
        return _shift_costs(order, float(cap) ** 2, checked_multipliers(noise_multipliers))

    def loss(
        self, sampling: SamplingDesign, n_differing: int, multiplier: float, tail: float
    ) -> StepLoss:
        """Privacy loss of a step whose batch holds as many differing records as it can hold."""
        del tail
        return PublishedDraws.certain(2 * sampling.discrepancy_cap(n_differing) / multiplier)


@final
@attrs.frozen
class MeanSquare:
    r"""The mean over batch draws of the cost given the draw: the paper's sa-HUC accounting.

    It bounds right guesses and bits: given all batches a run is no easier to tell apart than
    N(0, 1) and N(R, 1) with $R^2 = \sum_t 4 K_t^2 / z_t^2$, both costs are concave in $R^2$, and so
    the mean of $R^2$ over data and batches bounds them (Jensen). Of Rényi divergences it is only a
    mean over batch draws: the cost of a run can be hundreds of times as large, so it implies
    neither SRPP nor (epsilon, delta); and it needs a fixed set of differing records.
    Source: thm:msHUC_SRPP_SGD.
    """

    name: ClassVar[str] = "mean_square"
    claim: ClassVar[type[OverBatches]] = OverBatches
    kinds: ClassVar[tuple[type[WholeClaim], ...]] = (Guess, Information, OverBatches)
    scope: ClassVar[str] = "even if the batch draws are published with the model."
    draws: ClassVar[str] = (
        "Anyone may see which records each batch held, if the draws do not depend on the data."
    )

    def check(self, sampling: SamplingDesign, differing: DifferingRecords) -> None:
        """Raise if more records differ than there are; accepts any design and distribution of D."""
        sampling.discrepancy_cap(differing.largest)

    def step_costs(
        self, order: float, sampling: SamplingDesign, n_differing: int, noise_multipliers: Floats
    ) -> Floats:
        r"""Mean cost of a step at each noise multiplier: $2 \alpha E[K^2] / z^2$."""
        mean_square = sampling.mean_square_discrepancy(n_differing)
        return _shift_costs(order, mean_square, checked_multipliers(noise_multipliers))

    def loss(
        self, sampling: SamplingDesign, n_differing: int, multiplier: float, tail: float
    ) -> StepLoss:
        """Privacy loss of a step with published draws; a mean square has no distribution."""
        return LogMoment().loss(sampling, n_differing, multiplier, tail)


@final
@attrs.frozen
class LogMoment:
    """The log-moment over the draws of the cost given the draw: joint convexity, no amplification.

    Source: lem:renyi_mixture_shared.
    """

    name: ClassVar[str] = "log_moment"
    claim: ClassVar[type[Renyi]] = Renyi
    kinds: ClassVar[tuple[type[WholeClaim], ...]] = _WHOLE_RUN
    scope: ClassVar[str] = "even if the batch draws are published with the model."
    draws: ClassVar[str] = (
        "Anyone may see which records each batch held, if the draws do not depend on the data."
    )

    def check(self, sampling: SamplingDesign, differing: DifferingRecords) -> None:
        """Raise if more records differ than there are; accepts any design and distribution of D."""
        sampling.discrepancy_cap(differing.largest)

    def step_costs(
        self, order: float, sampling: SamplingDesign, n_differing: int, noise_multipliers: Floats
    ) -> Floats:
        r"""Cost of a step: $\frac{1}{\alpha-1} \ln E\, e^{(\alpha-1) 2\alpha K^2/z^2}$."""
        all_logs = sampling.discrepancy_log_probabilities(n_differing)
        counts = np.flatnonzero(np.isfinite(all_logs))
        logs = all_logs[counts, None]
        multipliers = checked_multipliers(noise_multipliers)
        pieces = np.array_split(multipliers, 1 + len(logs) * len(multipliers) // _ELEMENTS)
        return np.concatenate([_log_moment_costs(order, logs, counts, z) for z in pieces])

    def loss(
        self, sampling: SamplingDesign, n_differing: int, multiplier: float, tail: float
    ) -> StepLoss:
        """Privacy loss of a step with published draws."""
        logs = sampling.discrepancy_log_probabilities(n_differing)
        return PublishedDraws.of(multiplier, logs, tail)


@final
@attrs.frozen
class Amplified:
    """The divergence itself, for the worst gradients, while the draws stay secret.

    Needs: Poisson sampling. In other designs the common records of a batch depend on the differing
    ones, and the proof fails.
    """

    name: ClassVar[str] = "amplified"
    claim: ClassVar[type[Renyi]] = Renyi
    kinds: ClassVar[tuple[type[WholeClaim], ...]] = _WHOLE_RUN
    scope: ClassVar[str] = "while batch draws and batch sizes stay secret."
    draws: ClassVar[str] = (
        "Nobody outside may see batch draws, record indices or the realised batch sizes."
    )

    def check(self, sampling: SamplingDesign, differing: DifferingRecords) -> None:
        """Raise unless batches are drawn by Poisson sampling."""
        _check_poisson(sampling)
        sampling.discrepancy_cap(differing.largest)

    def step_costs(
        self, order: float, sampling: SamplingDesign, n_differing: int, noise_multipliers: Floats
    ) -> Floats:
        """Cost of a step: `amplified_divergence`, never more than the log moment."""
        logs = _check_poisson(sampling).discrepancy_log_probabilities(n_differing)
        # For a rate of 1 the two are equal, and rounding must not put this one above.
        log_moments = LogMoment().step_costs(order, sampling, n_differing, noise_multipliers)
        multipliers = np.asarray(noise_multipliers, dtype=np.float64)
        return np.minimum(amplified_divergences(order, multipliers, logs), log_moments)

    def loss(
        self, sampling: SamplingDesign, n_differing: int, multiplier: float, tail: float
    ) -> StepLoss:
        """Privacy loss of a step with secret draws."""
        logs = _check_poisson(sampling).discrepancy_log_probabilities(n_differing)
        return SecretDraws.of(multiplier, logs, tail)


Accountant = WorstCase | MeanSquare | LogMoment | Amplified

ACCOUNTANTS: Final[tuple[Accountant, ...]] = (WorstCase(), MeanSquare(), LogMoment(), Amplified())
"""Accountants, from the most to the least noise."""

ACCOUNTANT_NAMES: Final = tuple(accountant.name for accountant in ACCOUNTANTS)
"""Names of the accountants in files."""


def certifies(accountant: Accountant, kind: type[WholeClaim]) -> str:
    """Statement that an accountant certifies about a run by a claim of this kind."""
    return _OVER_BATCHES if kind is OverBatches else _CERTIFIES[kind] + accountant.scope


def draws_may_be_seen(accountant: Accountant, kind: type[WholeClaim]) -> str:
    """Statement of who may see the batch draws where a claim of this kind is to hold."""
    return _NO_DRAW if kind is OverBatches else accountant.draws


def check_bounds(
    accountant: Accountant, kind: type[WholeClaim], differing: DifferingRecords
) -> None:
    """Raise unless the accountant bounds claims of this kind, for these differing records.

    Only a delta and right guesses may cover a tail that the distribution of D leaves out.
    """
    if kind not in accountant.kinds:
        known = ", ".join(sorted({claim.kind for claim in accountant.kinds}))
        remedy = (
            "use Guarantee.unsliced(...), which implies both sliced notions for every profile, or "
            "Guarantee.guess(...)"
            if kind is OverBatches
            else "use Guarantee.guess(...), which mean square bounds; or worst_case, log_moment or "
            "amplified, which bound this claim"
        )
        raise ArgumentError(
            f"accountant {accountant.name!r} bounds claims of the kinds {known}, not "
            f"{kind.kind}; {remedy}"
        )
    if kind not in {Guess, EpsilonDelta}:
        differing.check_whole()
    if kind is OverBatches and not differing.is_fixed_set:
        raise ArgumentError(
            f"accountant 'mean_square' needs a fixed set of differing records for a claim on "
            f"average over batch draws, got: {differing.origin}. Use exactly(n) if the set is "
            "fixed, or claim right guesses with Guarantee.guess(...)"
        )


def accountant_named(name: str) -> Accountant:
    """The accountant of that name.

    >>> accountant_named("log_moment")
    LogMoment()
    """
    known = {accountant.name: accountant for accountant in ACCOUNTANTS}
    check_one_of(tuple(known), accountant=name)
    return known[name]


def cost_by_count(
    accountant: Accountant,
    order: float,
    sampling: SamplingDesign,
    differing: DifferingRecords,
    noise_multipliers: Floats,
) -> Floats:
    """Cost of the run for each of `differing.counts`; `noise_multipliers` has one entry per step.

    Guarantee: each entry is at least the cost if that many records differ. Runs over the same data,
    coupling and order compose by adding these functions; `mixed_cost` comes after the sum.
    With more than 512 counts, costs between computed ones are bounded; that adds no more than a
    millionth to `mixed_cost`.
    """
    check_above(1, order=order)
    accountant.check(sampling, differing)
    check_bounds(accountant, accountant.claim, differing)
    multipliers = checked_multipliers(noise_multipliers)
    distinct, repeats = np.unique(multipliers, return_counts=True)
    costs = _run_costs(accountant, order, sampling, differing, distinct, repeats).costs
    in_range = (costs > _SMALLEST_COST) & (costs < _LARGEST_COST)
    if not np.all(in_range | (differing.counts == 0)):
        raise CalibrationError(
            f"the cost of {multipliers.size} steps at noise multipliers from {multipliers.min():g} "
            f"to {multipliers.max():g} is not between {_SMALLEST_COST:g} and {_LARGEST_COST:g}; "
            "use other multipliers, or fewer steps"
        )
    return costs


def mixed_cost(order: float, costs: Floats, differing: DifferingRecords) -> float:
    r"""Cost of a run from its cost for each number of differing records.

    $$\frac{1}{\alpha-1} \ln E_D\, e^{(\alpha-1)\, cost(D)}$$

    Needs: the order and the coupling behind `costs`. The expectation stands outside the product
    over steps, because the same records differ in all of them. A truncated distribution of D is
    refused. A mean-square cost is never mixed.

    >>> from pufferslice.learning.differing import from_pmf
    >>> mixed_cost(2, np.array([0.0, 1.0]), from_pmf([0.5, 0.5]))  # ln((1 + e) / 2)
    0.62011450...
    """
    check_above(1, order=order)
    differing.check_whole()
    values = np.asarray(costs, dtype=np.float64)
    if values.shape != differing.counts.shape or not np.all(values >= 0):
        raise ArgumentError(
            f"costs must be {len(differing.counts)} numbers, one for each count of differing "
            f"records, none negative; got shape {values.shape}"
        )
    return _mixed(order, values, differing)


def run_cost(
    accountant: Accountant,
    order: float,
    sampling: SamplingDesign,
    differing: DifferingRecords,
    noise_multipliers: Floats,
) -> float:
    """Cost of a whole run; `noise_multipliers` has one entry per step.

    Guarantee: `accountant.claim` holds at `order` with this epsilon, as `certifies` says.

    >>> from pufferslice.learning.differing import exactly
    >>> design = Poisson(n_records=50_000, rate=0.01024)
    >>> run_cost(Amplified(), 16, design, exactly(20), np.full(3_920, 72.53368007))
    0.999999999...
    """
    costs = cost_by_count(accountant, order, sampling, differing, noise_multipliers)
    return mixed_cost(order, costs, differing)


def calibrate_multiplier(
    accountant: Accountant,
    target: Claim,
    sampling: SamplingDesign,
    differing: DifferingRecords,
    n_steps: int,
) -> float:
    """Smallest noise multiplier at which `n_steps` equal steps cost at most the target's bound.

    Needs: a target that is the accountant's claim.
    Guarantee: `run_cost` at the result was evaluated and is at most the target; the result is
    within one part in 10^11 of the smallest such multiplier, or in 10^6 if more than 512 numbers of
    differing records can occur.
    """
    if type(target) is not accountant.claim:
        raise ArgumentError(
            f"accountant {accountant.name!r} is calibrated to an order and an epsilon of its own "
            f"claim, {accountant.claim.notion!r}; got {target}. For other claims use plan_training"
        )
    order, epsilon = target.reported_order, target.bound
    check_count(1, n_steps=n_steps)
    differing.check_whole()
    accountant.check(sampling, differing)
    check_bounds(accountant, accountant.claim, differing)
    if not differing.largest:
        raise nothing_differs()
    extremes = np.array([LARGEST_MULTIPLIER, SMALLEST_MULTIPLIER])
    step_costs = accountant.step_costs(order, sampling, differing.largest, extremes)
    least, most = (n_steps * cost for cost in step_costs.tolist())
    if not least <= epsilon < most:
        raise CalibrationError(
            f"epsilon = {epsilon!r} at order {order!r} is not between the cost at noise multiplier "
            f"{LARGEST_MULTIPLIER:g}, {least:g}, and the cost at {SMALLEST_MULTIPLIER:g}, "
            f"{most:g}; use an epsilon in this range"
        )

    def costs_at(multiplier: float, **hints: Any) -> CountCosts:  # of `_run_costs`
        z, repeats = np.array([multiplier]), np.array([n_steps])
        return _run_costs(accountant, order, sampling, differing, z, repeats, **hints)

    def cost(multiplier: float) -> float:
        if multiplier < SMALLEST_MULTIPLIER:
            return math.inf
        return _mixed(order, costs_at(min(multiplier, LARGEST_MULTIPLIER)).costs, differing)

    nodes: Integers | None = None
    ceiling, ceiling_multiplier = None, 0.0

    def rough_cost(multiplier: float) -> float:
        """The cost, from the nodes of the last call and a ceiling from less noise."""
        nonlocal nodes, ceiling, ceiling_multiplier
        if not SMALLEST_MULTIPLIER <= multiplier <= LARGEST_MULTIPLIER:
            return math.inf if multiplier < 1 else 0.0
        has_less_noise = multiplier > ceiling_multiplier
        costs, nodes = costs_at(
            multiplier, start=nodes, limit=epsilon, ceiling=ceiling if has_less_noise else None
        )
        mixed = _mixed(order, costs, differing)
        if epsilon < mixed < math.inf and has_less_noise:
            ceiling, ceiling_multiplier = costs, multiplier
        return mixed

    # The search starts at the mean-square answer for the likeliest D that is not 0.
    can_differ = differing.counts > 0
    likeliest = differing.counts[can_differ][differing.log_probabilities[can_differ].argmax()]
    square = sampling.mean_square_discrepancy(int(likeliest))
    start = math.sqrt(2 * order * n_steps) * math.sqrt(square) / math.sqrt(epsilon)
    if len(differing.counts) <= FEW_COUNTS:
        multiplier = smallest_safe(cost, epsilon, start=start) * SAFETY
        return raise_until(lambda value: cost(value) <= epsilon, multiplier)
    multiplier = smallest_safe_multiplier(rough_cost, epsilon, start=start) * SAFETY
    step = 2.0**-34
    while (excess := cost(multiplier) / epsilon - 1) > 0:
        multiplier *= 1 + max(step, min(excess, 1.0))
        step *= 2
    return multiplier


def nothing_differs() -> CalibrationError:
    """Build the error for runs that no secret changes."""
    return CalibrationError(
        "no record differs, so a run costs nothing at any noise: there is nothing to calibrate or "
        "to claim. Declare the records that the secret changes"
    )


def _run_costs(
    accountant: Accountant,
    order: float,
    sampling: SamplingDesign,
    differing: DifferingRecords,
    multipliers: Floats,
    repeats: Integers,
    *,
    start: Integers | None = None,
    limit: float | None = None,
    ceiling: Floats | None = None,
) -> CountCosts:
    """Cost of the run for each count, from distinct multipliers and how often each occurs."""
    counts = differing.counts
    if len(counts) <= FEW_COUNTS or isinstance(accountant, MeanSquare):
        steps = (accountant.step_costs(order, sampling, int(n), multipliers) for n in counts)
        costs = np.array([float(repeats @ step) for step in steps])
        return CountCosts(costs, np.arange(len(counts)))

    def over_steps(step_costs: Callable[[Integers, float], Floats]) -> CostsOf:
        steps = list(zip(multipliers.tolist(), repeats, strict=True))
        return lambda some: np.sum([n * step_costs(some, z) for z, n in steps], axis=0)

    if isinstance(accountant, WorstCase):
        # A differing record adds no more to the cap than the first one does, up to the last cap.
        first, last = sampling.discrepancy_cap(1), sampling.discrepancy_cap(int(counts[-1]))
        squares = np.minimum(counts * first, last).astype(np.float64) ** 2
        costs_of = over_steps(lambda _, z: _shift_costs(order, squares, np.array([z])))
        return CountCosts(costs_of(counts), np.arange(len(counts)))
    log_moments = over_steps(lambda some, z: _log_moments_by_count(order, sampling, some, z))
    if isinstance(accountant, LogMoment):
        return costs_by_count(
            log_moments, order, differing, is_convex=True, start=start, limit=limit
        )
    if ceiling is None:
        nodes = np.geomspace(1, len(counts) - 1, _CEILING_NODES).astype(np.int64)
        ceiling = costs_by_count(
            log_moments, order, differing, is_convex=True, start=nodes, tolerance=math.inf
        ).costs
    poisson = _check_poisson(sampling)
    amplified = over_steps(lambda some, z: amplified_by_count(order, z, poisson, some))
    return costs_by_count(amplified, order, differing, ceiling=ceiling, start=start, limit=limit)


def _log_moments_by_count(
    order: float, sampling: SamplingDesign, counts: Integers, multiplier: float
) -> Floats:
    """Upper bounds on the log-moment costs of a step for ascending counts.

    Their exponentials are convex in D: K is a sum over differing records, exchangeable and not
    negative, and a second difference of E f(K) is one of f in two of them, so not negative if f is
    convex.
    """
    noise, costs = np.array([multiplier]), np.zeros(len(counts))
    if isinstance(sampling, WithoutReplacement):
        n_pieces = 1 + len(counts) * sampling.batch_size // _MANY_ELEMENTS
        for part in np.array_split(np.arange(len(counts)), min(n_pieces, len(counts))):
            logs = sampling.log_probabilities(counts[part]).T
            costs[part] = _log_moment_costs(order, logs, np.arange(len(logs)), noise)
        return costs
    scale = 2 * math.sqrt(order) * math.sqrt(order - 1) / multiplier  # scale^2 K^2 / 2: exponent
    first = int(np.searchsorted(counts, 1))
    while first < len(counts):
        last = int(np.searchsorted(counts, 2 * counts[first], side="right"))
        group = counts[first:last]
        if isinstance(sampling, Poisson):
            trials, chances = group.astype(np.float64), np.full(len(group), sampling.rate)
        else:
            trials, chances = np.full(len(group), sampling.divisor), group / sampling.n_records
        if trials[-1] < _FEW_TRIALS or not _LEAST_SCALE < scale < 1:
            costs[first:last] = [
                LogMoment().step_costs(order, sampling, int(n), noise)[0] for n in group
            ]
        else:
            costs[first:last] = binomial_log_moments(trials, chances, scale) / (order - 1)
        first = last
    return costs


def _mixed(order: float, costs: Floats, differing: DifferingRecords) -> float:
    if not differing.is_random:
        return float(costs[0])
    a = order - 1
    return float(log_mean_exp(differing.log_probabilities, a * costs) / a)


def _shift_costs(order: float, squared_discrepancy: float | Floats, multipliers: Floats) -> Floats:
    """The divergence between sums that K differing records move apart by up to 2K clip norms."""
    with np.errstate(over="ignore"):
        return np.asarray(2 * order * squared_discrepancy / multipliers**2)


def _log_moment_costs(
    order: float, log_probabilities: Floats, counts: Integers, multipliers: Floats
) -> Floats:
    """Log-moment over K, whose distribution is the one column or one for each cost."""
    exponents = (order - 1) * _shift_costs(order, counts[:, None].astype(float) ** 2, multipliers)
    return log_mean_exp(log_probabilities, exponents) / (order - 1)


def _check_poisson(sampling: SamplingDesign) -> Poisson:
    if not isinstance(sampling, Poisson):
        raise ArgumentError(
            f"accountant 'amplified' needs Poisson sampling, got {sampling.name!r}: other designs "
            "tie the common records of a batch to the differing ones. Use Poisson, or log_moment"
        )
    return sampling


def checked_multipliers(noise_multipliers: Floats) -> Floats:
    """Return a row of noise multipliers; raise unless costs of all of them are floats."""
    multipliers = np.asarray(noise_multipliers, dtype=np.float64)
    if multipliers.ndim != 1 or not multipliers.size:
        raise ArgumentError(
            f"noise_multipliers must be a row of at least one number, got {multipliers.shape}"
        )
    for value in (float(multipliers.min()), float(multipliers.max())):  # NaN is both
        check_above(0, noise_multiplier=value)
        if not SMALLEST_MULTIPLIER <= value <= LARGEST_MULTIPLIER:
            raise ArgumentError(
                f"noise_multiplier must lie between {SMALLEST_MULTIPLIER:g} and "
                f"{LARGEST_MULTIPLIER:g}, got {value!r}"
            )
    return multipliers
