# SPDX-License-Identifier: Apache-2.0
"""The plan of a training run: everything that its cost depends on, in one frozen value."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice._core.checks import (
    check_above,
    check_between,
    check_count,
    check_one_of,
    is_a,
)
from pufferslice._core.search import SAFETY, smallest_safe
from pufferslice.claims import Claim, Measure
from pufferslice.claims.claim import WholeClaim
from pufferslice.errors import ArgumentError
from pufferslice.learning.accountants import (
    LARGEST_MULTIPLIER,
    SMALLEST_MULTIPLIER,
    Accountant,
    MeanSquare,
    WorstCase,
    accountant_named,
    calibrate_multiplier,
    check_bounds,
    nothing_differs,
)
from pufferslice.learning.clipping import Clipping, FlatClipping, LayerClipping, clipping_of
from pufferslice.learning.difference import NoisySteps, RunDifference, measured
from pufferslice.learning.differing import DifferingRecords
from pufferslice.learning.sampling import SamplingDesign, sampling_from_description

NonFinite = Literal["zero", "stop"]

FORMAT: Final = "pufferslice-training-plan"
VERSION: Final = 5

MOST_STEPS: Final = 10_000_000
"""Largest number of steps, because a plan lists the noise of every step."""

_CLOSED_FORMS: Final = (WorstCase(), MeanSquare())
"""Accountants whose costs have all their digits."""
_ROUGH: Final = 2.0**-8
_WIDTH: Final = 2.0**-24
"""Precision of a search by privacy-loss distributions, at first and at last."""
_ROOM: Final = 1 - 2.0**-36
"""Share of a bound that is used: the rest is for the distance of drawn noise from ideal noise."""

HYPOTHESES: Final = {
    "fresh-batches": (
        "Batches are drawn afresh and independently at each step, exactly as the plan says."
    ),
    "same-number-of-records": "Both worlds have the same number of records.",
    "choices-independent-of-data": (
        "Initialisation, schedule and stopping do not depend on the data."
    ),
    "public-divisor": (
        "The clipped sum is divided by the plan's public divisor, never by the realised batch "
        "size; an empty batch is a step with noise only."
    ),
}
"""Assumptions under which the cost holds, by the code that a certificate states.

A trainer enforces or states each of them. The code that computes gradients must also keep examples
apart; a certificate lists how among its limits.
"""


@attrs.frozen(kw_only=True, repr=False)
class TrainingPlan:
    """Differing records, sampling, clipping, noise of every step, and how it is accounted for.

    Noise of standard deviation `noise_multipliers[t] * ratio * norm` is added to the *sum* of
    clipped per-example gradients of a layer, ratio and norm being that layer's.
    """

    differing: DifferingRecords
    sampling: SamplingDesign
    clipping: Clipping
    noise_multipliers: Floats = attrs.field(converter=locked, eq=same)
    """The effective multiplier of each step, shape (n_steps,)."""
    accountant: Accountant
    measure: Measure
    """What the guarantee of the run bounds: right guesses, bits, or an epsilon."""
    block: int | None = None
    """Examples per forward and backward pass; None lets the trainer choose.

    It changes rounding, speed and memory, never the cost.
    """
    non_finite: NonFinite = "zero"
    """Treatment of an example whose gradient is NaN or infinite.

    `zero`: it contributes nothing to the sum, and is counted. `stop`: the run stops, which reveals
    something about the data that the cost does not cover.
    """

    def __attrs_post_init__(self) -> None:
        _check_kinds(self.differing, self.sampling, self.accountant)
        if not is_a(self.measure, Measure):
            raise ArgumentError(
                f"measure must be a value such as Measure.guess() of pufferslice.claims, got "
                f"{self.measure!r}"
            )
        if self.block is not None:
            check_count(1, block=self.block)
        check_one_of(("zero", "stop"), non_finite=self.non_finite)
        if self.noise_multipliers.ndim != 1 or not len(self.noise_multipliers):
            raise ArgumentError(
                "noise_multipliers must list one number per step, for at least one step, got "
                f"shape {self.noise_multipliers.shape}"
            )
        check_above(0, noise_multiplier=float(self.noise_multipliers.min()))
        check_above(0, noise_multiplier=float(self.noise_multipliers.max()))
        if self.differing.largest > self.sampling.n_records:
            raise ArgumentError(
                f"up to {self.differing.largest} records differ, but there are only "
                f"{self.sampling.n_records}; correct the differing records or n_records"
            )
        self.accountant.check(self.sampling, self.differing)
        check_bounds(self.accountant, self.measure.kind, self.differing)

    @property
    def n_steps(self) -> int:
        """Number of noisy steps."""
        return len(self.noise_multipliers)

    @property
    def divisor(self) -> float:
        """The public constant that the noisy sum is divided by."""
        return self.sampling.divisor

    def noise_stds(self, step: int) -> Floats:
        """Standard deviation of the noise on the clipped sum of each layer at a step."""
        norms = np.array(self.clipping.norms)
        return np.asarray(self.noise_multipliers[step] * self.clipping.ratios * norms)

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise unless there is one number of parameters for each clipped layer."""
        n_layers = len(self.clipping.norms)
        if len(sizes) != n_layers:
            raise ArgumentError(
                f"sizes must have one entry for each of the {n_layers} layers, got {len(sizes)}"
            )
        for size in sizes:
            check_count(1, size=size)

    @property
    def steps(self) -> NoisySteps:
        """The steps of the run, as a difference takes them."""
        return NoisySteps(self.accountant, self.sampling, self.noise_multipliers)

    @property
    def difference(self) -> RunDifference:
        """The difference between two worlds of the run, with ideal noise."""
        return RunDifference(runs=(self.steps,), differing=self.differing)

    def guarantee(self) -> WholeClaim:
        """The guarantee of the whole run, with ideal noise; its bound is the cost.

        Rényi claims and bits are refused for a truncated distribution of differing records.
        """
        return measured(self.difference, self.measure)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        first = float(self.noise_multipliers[0])
        constant = bool((self.noise_multipliers == first).all())
        return {
            "format": FORMAT,
            "version": VERSION,
            "differing": self.differing.description(),
            "sampling": self.sampling.description(),
            "clipping": self.clipping.description(),
            "n_steps": self.n_steps,
            "noise_multipliers": [first] if constant else self.noise_multipliers.tolist(),
            "accountant": self.accountant.name,
            "claim": self.measure.to_json(),
            # TOML has no null
            **({} if self.block is None else {"block": int(self.block)}),
            "non_finite": self.non_finite,
        }

    @classmethod
    def from_json(cls, document: object) -> "TrainingPlan":
        """The plan that a `to_json()` describes."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise ArgumentError(
                f"this is not a training plan: its 'format' is not {FORMAT!r}. Use the output of "
                "write_plan or to_json"
            )
        if document.get("version") != VERSION:
            raise ArgumentError(
                f"the plan has version {document.get('version')!r}; this program reads version "
                f"{VERSION}. Use the program that wrote it"
            )
        try:
            return cls(
                differing=DifferingRecords.from_description(document["differing"]),
                sampling=sampling_from_description(document["sampling"]),
                clipping=clipping_of(document["clipping"]),
                noise_multipliers=schedule_of(document["noise_multipliers"], document["n_steps"]),
                accountant=accountant_named(document["accountant"]),
                measure=Measure.from_json(document["claim"]),
                block=document.get("block"),
                non_finite=document["non_finite"],
            )
        except ArgumentError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"the plan is incomplete: {type(error).__name__} at {error}. Use the unchanged "
                "output of write_plan or to_json"
            ) from error

    def __repr__(self) -> str:
        return (
            f"TrainingPlan(n_steps={self.n_steps}, sampling={self.sampling.name!r}, "
            f"accountant={self.accountant.name!r}, measure={str(self.measure)!r})"
        )


def plan_training(
    *,
    differing: DifferingRecords,
    sampling: SamplingDesign,
    clip_norm: float | Clipping,
    n_steps: int,
    accountant: Accountant,
    target: Claim,
    block: int | None = None,
) -> TrainingPlan:
    """The plan with the smallest constant noise whose whole run costs at most the target.

    The target is a share of right guesses, bits, (epsilon, delta), or a Rényi claim. The
    distribution of differing records may be truncated for right guesses and (epsilon, delta), whose
    bounds include what it leaves out.
    Guarantee: `plan.guarantee().bound <= target.bound` was evaluated and holds.
    """
    check_n_steps(n_steps)
    _check_kinds(differing, sampling, accountant)
    measure = Measure.of(target)
    check_bounds(accountant, measure.kind, differing)
    accountant.check(sampling, differing)
    multiplier = least_multiplier(accountant, target.whole, sampling, differing, n_steps)
    return plan_with_noise(
        differing=differing,
        sampling=sampling,
        clip_norm=clip_norm,
        noise_multipliers=np.full(n_steps, multiplier),
        accountant=accountant,
        measure=measure,
        block=block,
    )


def _check_kinds(
    differing: DifferingRecords, sampling: SamplingDesign, accountant: Accountant
) -> None:
    for name, value, kind, example in (
        ("differing", differing, DifferingRecords, "exactly(4)"),
        ("sampling", sampling, SamplingDesign, "Poisson(n_records=1000, rate=0.1)"),
        ("accountant", accountant, Accountant, "Amplified()"),
    ):
        if not is_a(value, kind):
            raise ArgumentError(
                f"{name} must be a value such as {example} of pufferslice.learning, got {value!r}"
            )


def least_multiplier(
    accountant: Accountant,
    target: WholeClaim,
    sampling: SamplingDesign,
    differing: DifferingRecords,
    n_steps: int,
) -> float:
    """Find the least multiplier, the same in all steps, at which the run meets the target."""
    if target.has_order:
        return calibrate_multiplier(accountant, target, sampling, differing, n_steps)
    if not differing.largest:
        raise nothing_differs()
    if target.hockey_stick is not None:
        delta_left(target.hockey_stick[1], differing)
    run = NoisySteps(accountant, sampling, np.ones(n_steps))
    difference = RunDifference(
        runs=(run,), differing=differing, near_delta=Measure.of(target).delta
    )
    start = math.sqrt(difference.squared_distance(1.0) / target.distance_limit)
    if accountant in _CLOSED_FORMS:
        return _searched(target, difference, start=start)
    rough = attrs.evolve(difference, precision=_ROUGH)
    start = _searched(target, rough, start=start, width=_ROUGH)
    return _searched(target, difference, start=start, factor=1 + _ROUGH, width=_WIDTH)


def _searched(target: WholeClaim, difference: RunDifference, **precision: float) -> float:
    """Find the least multiplier at which the difference meets the target, up to a precision."""

    def cost(multiplier: float) -> float:
        if multiplier < SMALLEST_MULTIPLIER:
            return math.inf
        return target.cost(difference, min(multiplier, LARGEST_MULTIPLIER)) - target.free

    return smallest_safe(cost, (target.bound - target.free) * _ROOM, **precision)


def delta_left(delta: float, differing: DifferingRecords) -> float:
    """Part of a delta that a tail of the differing records leaves, rounded down.

    >>> from pufferslice.learning.differing import mostly_at_most
    >>> tail = mostly_at_most(3, tail_probability=1e-6, failure_probability=0.0)
    >>> round(delta_left(1e-5, tail), 12)
    9e-06
    """
    check_between(0, 1, delta=delta)
    if not differing.excess_probability:
        return delta
    left = (delta - differing.excess_probability) / SAFETY
    if not left > 0:
        raise ArgumentError(
            f"delta must be greater than {differing.excess_probability:.3g}, the probability that "
            f"more than {differing.largest} records differ, got {delta!r}; truncate less"
        )
    return left


def plan_with_noise(
    *,
    differing: DifferingRecords,
    sampling: SamplingDesign,
    clip_norm: float | Clipping,
    noise_multipliers: Floats,
    accountant: Accountant,
    measure: Measure,
    block: int | None = None,
) -> TrainingPlan:
    """The plan with a given multiplier for every step; its `guarantee` gives the cost.

    >>> from pufferslice.claims import Measure
    >>> from pufferslice.learning import MeanSquare, Poisson, exactly
    >>> plan = plan_with_noise(
    ...     differing=exactly(20), sampling=Poisson(n_records=50_000, rate=0.01024), clip_norm=1.0,
    ...     noise_multipliers=[86.4] * 3_920, accountant=MeanSquare(),
    ...     measure=Measure.guess(),
    ... )
    >>> print(plan.guarantee())
    at most 64 % right guesses between two values
    """
    if not isinstance(clip_norm, FlatClipping | LayerClipping):
        clip_norm = FlatClipping(norm=clip_norm)
    return TrainingPlan(
        differing=differing,
        sampling=sampling,
        clipping=clip_norm,
        noise_multipliers=noise_multipliers,
        accountant=accountant,
        measure=measure,
        block=block,
    )


def check_n_steps(n_steps: int) -> None:
    """Raise unless a run has at least one step, and a schedule that fits in memory."""
    check_count(1, n_steps=n_steps)
    if n_steps > MOST_STEPS:
        raise ArgumentError(f"n_steps must be at most {MOST_STEPS}, got {n_steps!r}")


def schedule_of(multipliers: object, n_steps: int) -> Floats:
    """A schedule given as one number for all steps or as one number per step."""
    values = np.atleast_1d(locked(multipliers))
    check_n_steps(n_steps)
    if len(values) not in {1, n_steps}:
        raise ArgumentError(
            f"noise_multipliers must have one entry, or one for each of the {n_steps} steps; got "
            f"{len(values)}"
        )
    return np.asarray(np.broadcast_to(values, (n_steps,)))


@final
@attrs.frozen(kw_only=True)
class SignalToNoise:
    """The largest possible sum of clipped gradients over the size of the noise, as norms.

    The sum is that large only if all gradients of a batch agree and reach the clip norm; usually it
    is many times smaller. Nothing private enters.
    """

    per_step: float
    """Ratio of one step."""
    whole_run: float
    """Ratio of the sum over all steps: signals add, noise adds as its square root."""

    @property
    def advice(self) -> str | None:
        """Advice if the noise of a step exceeds any signal; None if it does not."""
        if self.per_step >= 1:
            return None
        outcome = (
            "expect to learn only from the average over many steps"
            if self.whole_run >= 1
            else "nor would the sum over all steps; expect this run to learn little or nothing"
        )
        return (
            "Even if all gradients of a batch agreed, their sum would not exceed the noise of a "
            f"step; {outcome}. Use larger batches, fewer trainable parameters, a "
            "secret that changes fewer records, or a weaker claim."
        )

    def __str__(self) -> str:
        numbers = f"at most {self.per_step:.3g} in a step, {self.whole_run:.3g} over the whole run"
        return f"Signal to noise: {numbers}. {self.advice or ''}".rstrip()


def signal_to_noise(plan: TrainingPlan, sizes: Sequence[int]) -> SignalToNoise:
    r"""Signal to noise of a plan, for layers with the given numbers of parameters.

    With clip norms $C_\ell$ and B expected examples the sum of a batch has norm at most
    $B \sqrt{\sum_\ell C_\ell^2}$; the noise has norm about
    $\sqrt{\sum_\ell d_\ell (z_\ell C_\ell)^2}$, in the root mean square over the steps. With flat
    clipping that is $B / (z \sqrt d)$. One parameter gives the ratio in a single coordinate, for a
    signal that is all in it.

    >>> from pufferslice.claims import Measure
    >>> from pufferslice.learning import LogMoment, Poisson, exactly, plan_with_noise
    >>> plan = plan_with_noise(
    ...     differing=exactly(1), sampling=Poisson(n_records=1_000, rate=0.1), clip_norm=3.0,
    ...     noise_multipliers=[2.0] * 4, accountant=LogMoment(), measure=Measure.guess(),
    ... )
    >>> signal_to_noise(plan, [400])  # 100 / (2 * 20)
    SignalToNoise(per_step=2.5, whole_run=5.0)
    """
    plan.check_sizes(sizes)
    # In units of the largest norm and the largest multiplier, so that no square overflows.
    norms = np.array(plan.clipping.norms, dtype=np.float64) / max(plan.clipping.norms)
    top = float(plan.noise_multipliers.max())
    mean_square = float(np.mean((plan.noise_multipliers / top) ** 2))
    noise = np.sqrt(
        mean_square * np.dot(np.array(sizes, float), (plan.clipping.ratios * norms) ** 2)
    )
    per_step = plan.divisor * float(np.linalg.norm(norms) / noise) / top
    return SignalToNoise(per_step=per_step, whole_run=per_step * plan.n_steps**0.5)


def recipe_learning_rates(*, peak: float, n_steps: int, n_warmup_steps: int) -> Floats:
    """Linear warm-up to `peak`, then half a cosine down to 0: the paper's schedule.

    Source: alg:srpp-sgd, with the schedule of the appendix on experiments.

    >>> recipe_learning_rates(peak=1.0, n_steps=4, n_warmup_steps=2).tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    check_above(0, peak=peak)
    check_count(1, n_steps=n_steps)
    check_count(0, n_warmup_steps=n_warmup_steps)
    if n_warmup_steps >= n_steps:
        raise ArgumentError(
            f"n_warmup_steps must be less than n_steps {n_steps}, got {n_warmup_steps}"
        )
    rising = np.arange(1, n_warmup_steps + 1) / max(n_warmup_steps, 1)
    n_falling = n_steps - n_warmup_steps
    falling = (1 + np.cos(np.pi * np.arange(n_falling) / n_falling)) / 2
    return peak * np.concatenate([rising, falling])
