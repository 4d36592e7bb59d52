# SPDX-License-Identifier: Apache-2.0
"""The plan of a training run: everything that its cost depends on, in one frozen value."""

from collections.abc import Mapping
from typing import Any, Final, Literal, final

import attrs
import numpy as np

from pufferslice.arrays import Floats, locked, same
from pufferslice.checks import check_above, check_count, check_one_of, plain_float
from pufferslice.errors import ArgumentError
from pufferslice.guarantee import Guarantee
from pufferslice.sgd.accountants import (
    Accountant,
    accountant_named,
    calibrate_multiplier,
    cost_by_count,
    mixed_cost,
)
from pufferslice.sgd.clipping import Clipping, FlatClipping, LayerClipping, clipping_of
from pufferslice.sgd.differing import DifferingRecords
from pufferslice.sgd.sampling import SamplingDesign, sampling_from_description

NonFinite = Literal["zero", "stop"]

FORMAT: Final = "pufferslice-training-plan"
VERSION: Final = 1

MOST_STEPS: Final = 10_000_000
"""A plan lists the noise of every step."""

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
"""What a run must keep to for the cost to hold, by the code that a certificate states.

A trainer enforces or states each of them. Whatever computes the gradients must also keep examples
apart; how that is done is among the limits of a certificate.
"""


@final
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
    order: float = attrs.field(converter=plain_float)
    block: int | None = None
    """Examples per forward and backward pass; None lets the trainer choose and write it here.

    It changes rounding, speed and memory, never the cost.
    """
    non_finite: NonFinite = "zero"
    """What is done with an example whose gradient is NaN or infinite.

    `zero`: it contributes nothing to the sum, and is counted. `stop`: the run stops, which tells
    something about the data that the cost does not cover.
    """

    def __attrs_post_init__(self) -> None:
        check_above(1, order=self.order)
        if self.block is not None:
            check_count(1, block=self.block)
        check_one_of(("zero", "stop"), non_finite=self.non_finite)
        if self.noise_multipliers.ndim != 1 or not len(self.noise_multipliers):
            msg = (
                "noise_multipliers must list one number per step, for at least one step, got "
                f"shape {self.noise_multipliers.shape}"
            )
            raise ArgumentError(msg)
        check_above(0, noise_multiplier=float(self.noise_multipliers.min()))
        check_above(0, noise_multiplier=float(self.noise_multipliers.max()))
        if self.differing.largest > self.sampling.n_records:
            msg = (
                f"up to {self.differing.largest} records differ, but there are only "
                f"{self.sampling.n_records}; give the differing records, or n_records, as they are"
            )
            raise ArgumentError(msg)
        self.accountant.check(self.sampling, self.differing)

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

    def costs(self) -> Floats:
        """Cost of the whole run for each possible number of differing records."""
        schedule = (self.sampling, self.differing, self.noise_multipliers)
        return cost_by_count(self.accountant, self.order, *schedule)

    def guarantee(self) -> Guarantee:
        """What the whole run promises; its cost is the epsilon."""
        epsilon = mixed_cost(self.order, self.costs(), self.differing)
        return Guarantee(notion=self.accountant.notion, order=self.order, epsilon=epsilon)

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
            "order": self.order,
            # TOML has no null
            **({} if self.block is None else {"block": int(self.block)}),
            "non_finite": self.non_finite,
        }

    @classmethod
    def from_json(cls, document: object) -> "TrainingPlan":
        """Read back what `to_json` made."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            msg = (
                f"this is not a training plan: its 'format' is not {FORMAT!r}. Give what "
                "write_plan or to_json made"
            )
            raise ArgumentError(msg)
        if document.get("version") != VERSION:
            msg = (
                f"the plan has version {document.get('version')!r}; this program reads version "
                f"{VERSION}. Use the program that made it"
            )
            raise ArgumentError(msg)
        try:
            return cls(
                differing=DifferingRecords.from_description(document["differing"]),
                sampling=sampling_from_description(document["sampling"]),
                clipping=clipping_of(document["clipping"]),
                noise_multipliers=schedule_of(document["noise_multipliers"], document["n_steps"]),
                accountant=accountant_named(document["accountant"]),
                order=document["order"],
                block=document.get("block"),
                non_finite=document["non_finite"],
            )
        except ArgumentError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = (
                f"the plan is not whole: {type(error).__name__} at {error}. Give what write_plan "
                "or to_json made, unchanged"
            )
            raise ArgumentError(msg) from error

    def __repr__(self) -> str:
        return (
            f"TrainingPlan(n_steps={self.n_steps}, sampling={self.sampling.name!r}, "
            f"accountant={self.accountant.name!r}, order={self.order:g})"
        )


def plan_training(
    *,
    differing: DifferingRecords,
    sampling: SamplingDesign,
    clip_norm: float | Clipping,
    n_steps: int,
    accountant: Accountant,
    target: Guarantee,
    block: int | None = None,
) -> TrainingPlan:
    """The plan with the smallest constant noise whose whole run costs at most the target.

    Guarantee: `plan.guarantee().epsilon <= target.epsilon` was evaluated and holds.
    """
    check_n_steps(n_steps)
    if target.notion != accountant.notion:
        msg = (
            f"accountant {accountant.name!r} certifies {accountant.notion!r} claims, the target is "
            f"{target.notion!r}; {_way_out(accountant)}"
        )
        raise ArgumentError(msg)
    multiplier = calibrate_multiplier(accountant, target, sampling, differing, n_steps)
    return TrainingPlan(
        differing=differing,
        sampling=sampling,
        clipping=_clipping(clip_norm),
        noise_multipliers=np.full(n_steps, multiplier),
        accountant=accountant,
        order=target.order,
        block=block,
    )


def plan_with_noise(
    *,
    differing: DifferingRecords,
    sampling: SamplingDesign,
    clip_norm: float | Clipping,
    noise_multipliers: Floats,
    accountant: Accountant,
    order: float,
    block: int | None = None,
) -> TrainingPlan:
    """The plan with a given multiplier for every step; its `guarantee` says what that costs."""
    return TrainingPlan(
        differing=differing,
        sampling=sampling,
        clipping=_clipping(clip_norm),
        noise_multipliers=noise_multipliers,
        accountant=accountant,
        order=order,
        block=block,
    )


def check_n_steps(n_steps: int) -> None:
    """A run has at least one step, and no more than a schedule in memory can list."""
    check_count(1, n_steps=n_steps)
    if n_steps > MOST_STEPS:
        msg = f"n_steps must be at most {MOST_STEPS}, got {n_steps!r}"
        raise ArgumentError(msg)


def schedule_of(multipliers: object, n_steps: int) -> Floats:
    """A schedule written as one number for all steps or as one number per step."""
    values = np.atleast_1d(locked(multipliers))
    check_n_steps(n_steps)
    if len(values) not in {1, n_steps}:
        msg = (
            f"noise_multipliers must have one entry, or one for each of the {n_steps} steps; got "
            f"{len(values)}"
        )
        raise ArgumentError(msg)
    return np.asarray(np.broadcast_to(values, (n_steps,)))


def _clipping(clip_norm: float | Clipping) -> Clipping:
    if isinstance(clip_norm, FlatClipping | LayerClipping):
        return clip_norm
    return FlatClipping(norm=clip_norm)


def _way_out(accountant: Accountant) -> str:
    if accountant.notion == "unsliced":
        return "use Guarantee.unsliced(...), which implies both sliced notions for every profile"
    return (
        "use Guarantee.average_over_batches(...), or an accountant that certifies the run itself: "
        "worst_case, log_moment or amplified"
    )
