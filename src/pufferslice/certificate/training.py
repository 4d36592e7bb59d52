# SPDX-License-Identifier: Apache-2.0
"""Certificates of training runs: what plans promise, alone and together.

A run bounds any two datasets that differ in D records, whatever the prior. So its cost for D = 1,
at its own noise, is Rényi differential privacy for the replacement of one record.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_between, check_share, is_a
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.limits import BY_PROGRAM, CONDITIONS, LIMITS, RUN_LIMITS, check_limits
from pufferslice.certificate.statement import TrainingStatement, checked
from pufferslice.claims import Claim, Guess, Measure, OverBatches, Renyi
from pufferslice.claims.views import (
    DEFAULT_DELTAS,
    ORDERS,
    improved_epsilon_joint,
    paper_epsilon,
    unique_deltas,
)
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.learning import (
    Accountant,
    Amplified,
    DifferingRecords,
    LogMoment,
    MeanSquare,
    TrainingPlan,
    exactly,
)
from pufferslice.learning.accountants import certifies, draws_may_be_seen
from pufferslice.learning.difference import NoisySteps, RunDifference, measured
from pufferslice.learning.plan import HYPOTHESES, delta_left

IDEAL_NOISE: Final = (
    "Gaussian, of the plan's size, on the sums of clipped gradients; how it is drawn is not stated "
    "here, and the bound is about the ideal real-valued noise."
)

_USUAL_DELTA: Final = 1e-5


def certify_training(
    plan: TrainingPlan | Sequence[TrainingPlan],
    *,
    data: str,
    noise: str = IDEAL_NOISE,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    implementation_delta: float = 0.0,
    limits: Sequence[str] = BY_PROGRAM,
) -> Certificate:
    """State what a run that follows the plan promises, or several runs over the same data together.

    Plans of several runs are fixed before the first of them, and have noise of their own. `data`
    is a public name for the dataset. `noise` describes how the noise is drawn; the bound is about
    ideal Gaussian noise, and `implementation_delta` is the total-variation distance of all noise
    from it. `limits` are codes of `pufferslice.certificate.limits.RUN_LIMITS`: what the program
    that trained leaves open.

    Guarantee: runs compose given the number of differing records, which is the same in all.
    Source: lemma:adaptive_renyi_composition.
    """
    for name, text in (("data", data), ("noise", noise)):
        if not is_a(text, str) or not text:
            raise ArgumentError(f"{name} must be a non-empty string, got {text!r}")
    claim = TrainingClaim(
        data=data,
        runs=(plan,) if isinstance(plan, TrainingPlan) else tuple(plan),
        noises=(noise,),
        deltas=unique_deltas(deltas),
        implementation_delta=implementation_delta,
        limits=limits,
    )
    return Certificate(statement=training_statement(claim), evidence=None)


def _wide_share(implementation_delta: float) -> float:
    """Widen a share to 64 bits: numpy's narrow floats would round what is left of a delta."""
    check_share(implementation_delta=implementation_delta)
    return float(implementation_delta)


@final
@attrs.frozen(kw_only=True)
class TrainingClaim:
    """The facts that a certificate of runs over the same data depends on; all else follows."""

    data: str
    """Public name of the data of all runs."""
    runs: tuple[TrainingPlan, ...]
    noises: tuple[str, ...]
    """Public sentences on how the noise of the runs is drawn."""
    deltas: tuple[float, ...]
    implementation_delta: float = attrs.field(converter=_wide_share)
    """Total variation between all drawn noise and the noise that the cost is about."""
    limits: tuple[str, ...] = attrs.field(converter=check_limits)
    """Codes of the limits that the training programs leave open."""

    def __attrs_post_init__(self) -> None:
        check_together(self.runs)
        for delta in self.deltas:
            check_between(0, 1, delta=delta)
            delta_left(delta, self.differing)

    @classmethod
    def read_off(cls, statement: TrainingStatement) -> "TrainingClaim":
        """Read the claim from a statement."""
        return cls(
            data=statement.data,
            runs=tuple(TrainingPlan.from_json(run.to_json()) for run in statement.runs),
            noises=tuple(statement.noise),
            deltas=tuple(dict.fromkeys(statement.deltas)),
            implementation_delta=statement.implementation_delta,
            limits=[code for code in statement.limits if code in RUN_LIMITS],
        )

    @property
    def differing(self) -> DifferingRecords:
        """Number of records that the secret changes: the same distribution in all runs."""
        return self.runs[0].differing

    @property
    def measure(self) -> Measure:
        """What the guarantee bounds: the same for all runs."""
        return self.runs[0].measure

    @property
    def difference(self) -> RunDifference:
        """Difference between two worlds of all runs together."""
        return difference_of(self.runs, implementation_delta=self.implementation_delta)

    def guarantee(self) -> Claim:
        """Joint guarantee of all runs for the declared secret.

        Right guesses and an epsilon at a delta include the distance of the noise, and a tail that
        the differing records leave out.
        """
        return measured(self.difference, self.measure)

    def guess(self) -> float | None:
        """Bound right guesses between two values of the secret; None if nothing bounds them."""
        share = Measure.guess().cost(self.difference, 1.0)
        return share if share < 1 else None


def training_statement(claim: TrainingClaim) -> TrainingStatement:
    """Build the whole public statement; the result depends on the claim alone."""
    guarantee, kind = claim.guarantee(), claim.measure.kind
    accountants = dict.fromkeys(run.accountant for run in claim.runs)
    has_views = kind is not OverBatches
    values = {
        "workflow": "training",
        "data": claim.data,
        "runs": [run.to_json() for run in claim.runs],
        "guarantee": guarantee,
        "guess": guarantee.bound if kind is Guess else claim.guess(),
        "mean_square": _mean_square(claim),
        "certifies": [certifies(accountant, kind) for accountant in accountants],
        "draws_may_be_seen": [draws_may_be_seen(accountant, kind) for accountant in accountants],
        "noise": list(claim.noises),
        "implementation_delta": claim.implementation_delta,
        "failure_probability": float(claim.differing.failure_probability),
        "deltas": list(claim.deltas) if has_views else [],
        "views": _views(claim) if has_views else [],
        "one_record": _one_record(claim),
        "hypotheses": list(HYPOTHESES),
        "limits": _limits(claim, guarantee),
    }
    return checked(TrainingStatement, values, "statement", CertificateError)


def _mean_square(claim: TrainingClaim) -> float | None:
    """Bound the mean squared distance; None where more records may differ than it counts."""
    return None if claim.differing.excess_probability else claim.difference.squared_distance(1.0)


def _views(claim: TrainingClaim) -> list[dict[str, Any]]:
    """Compute unsliced (epsilon, delta) views for ideal noise.

    By the privacy-loss distribution and, of Rényi claims, by the order and by the best of a grid.
    """
    order = claim.measure.order
    costs = costs_by_order(claim.runs) if claim.measure.kind is Renyi and claim.deltas else {}
    views = []
    for delta in claim.deltas:
        epsilons = {
            "loss_distribution": secret_epsilon(claim.runs, delta=delta, implementation_delta=0.0)
        }
        if costs:
            left = delta_left(delta, claim.differing)
            epsilons |= {
                "paper": paper_epsilon(order, costs[order], left),
                "improved": improved_epsilon_joint(order, costs[order], left),
                "order_grid": min(improved_epsilon_joint(o, c, left) for o, c in costs.items()),
            }
        views += [
            {"scope": "unsliced", "rule": rule, "epsilon": value, "delta": delta}
            for rule, value in epsilons.items()
            if np.isfinite(value)
        ]
    return views


def _one_record(claim: TrainingClaim) -> dict[str, Any]:
    """State what the replacement of one record gets, whatever the secret is."""
    runs, order, delta = claim.runs, claim.measure.order, record_delta(claim.runs)
    accountants = [record_accountant(run) for run in runs]
    epsilon = record_epsilon(runs, delta=delta, implementation_delta=claim.implementation_delta)
    secret_draws = Amplified() in accountants
    return {
        "adjacency": "replace-one",
        "accountants": list(dict.fromkeys(accountant.name for accountant in accountants)),
        "order": order,
        "epsilon": record_cost(runs, order),
        "delta": delta,
        "epsilon_at_delta": epsilon if math.isfinite(epsilon) else None,
        "conditions": [code for code in CONDITIONS if code != "draws-secret" or secret_draws],
    }


def _limits(claim: TrainingClaim, guarantee: Claim) -> list[str]:
    present = {
        "more-may-differ": claim.differing.excess_probability > 0,
        "cap-simulated": claim.differing.failure_probability > 0,
        "average-over-batches": guarantee.notion == OverBatches.notion,
        "stops-on-non-finite": any(run.non_finite == "stop" for run in claim.runs),
        "noise-not-ideal": claim.implementation_delta > 0,
    } | {code: code in claim.limits for code in RUN_LIMITS}
    return [code for code in LIMITS if present.get(code, True)]


def check_together(plans: Sequence[TrainingPlan]) -> None:
    """Raise unless the runs compose: same records, differing records, and kind of claim."""
    if not plans:
        raise ArgumentError("plans must hold the plan of at least one run, got none")
    shared = [
        {
            "differing records": plan.differing.description(),
            "numbers of records": plan.sampling.n_records,
            "kinds of claims": plan.measure,
        }
        for plan in plans
    ]
    for name in shared[0]:
        if any(facts[name] != shared[0][name] for facts in shared):
            raise CertificateError(
                f"the runs have different {name}; only runs with the same {name} can be certified "
                "together. Make them parts of a budget (certify_budget)"
            )


def difference_of(
    plans: Sequence[TrainingPlan], *, implementation_delta: float = 0.0
) -> RunDifference:
    """Build the difference between two worlds of the declared secret, for all runs together."""
    check_together(plans)
    return RunDifference(
        runs=tuple(plan.steps for plan in plans),
        differing=plans[0].differing,
        implementation_delta=_wide_share(implementation_delta),
    )


def record_difference(
    plans: Sequence[TrainingPlan], *, implementation_delta: float = 0.0
) -> RunDifference:
    """Build the difference between two datasets that differ in one record, for all runs together.

    Guarantee: differential privacy for the replacement of any one record, the number of records
    being public, under the conditions of `record_accountant` and the hypotheses of the plans.
    """
    check_together(plans)
    return RunDifference(
        runs=tuple(
            NoisySteps(record_accountant(plan), plan.sampling, plan.noise_multipliers)
            for plan in plans
        ),
        differing=exactly(1),
        implementation_delta=_wide_share(implementation_delta),
    )


def record_accountant(plan: TrainingPlan) -> Accountant:
    """Return the accountant of one record's cost: the plan's, but never mean square.

    Mean square bounds nothing about the run. The log moment replaces it, because it needs nothing
    to stay secret.
    """
    return LogMoment() if isinstance(plan.accountant, MeanSquare) else plan.accountant


def record_cost(plans: Sequence[TrainingPlan], order: float) -> float:
    """Cost of all runs for the replacement of any one record at a Rényi order: they add.

    Guarantee: as `record_difference`.
    """
    return record_difference(plans).divergence(order, 1.0)


def record_delta(plans: Sequence[TrainingPlan]) -> float:
    """Delta that is stated for one record: 1e-5, or one over the number of records if less."""
    return min(_USUAL_DELTA, 1 / plans[0].sampling.n_records)


def secret_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """Find the smallest epsilon for which (epsilon, delta) holds for the declared secret.

    By the privacy-loss distribution; runs that are accounted by mean square count as runs whose
    draws are published.
    Guarantee: `delta` covers the distance of the drawn noise from ideal noise, too, and the
    probability that more records differ than the plans list. Infinite if no epsilon was found.
    """
    difference = difference_of(plans, implementation_delta=implementation_delta)
    delta_left(delta, plans[0].differing)
    if plans[0].measure.kind is OverBatches:
        raise ArgumentError(
            "a claim that averages over batches gives no (epsilon, delta); plan for "
            "Guarantee.guess(...), or with worst_case, log_moment or amplified"
        )
    return epsilon_at(difference, delta)


def record_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """Find the smallest epsilon of (epsilon, delta)-differential privacy for replacing one record.

    Guarantee: as `secret_epsilon` and `record_difference`.
    """
    return epsilon_at(record_difference(plans, implementation_delta=implementation_delta), delta)


def epsilon_at(difference: RunDifference, delta: float) -> float:
    """Find the smallest epsilon at a delta; infinite if there is none."""
    check_between(0, 1, delta=delta)
    measure = Measure.epsilon_delta(delta=float(delta))
    return measure.cost(attrs.evolve(difference, near_delta=float(delta)), 1.0)


def costs_by_order(plans: Sequence[TrainingPlan]) -> dict[float, float]:
    """Compute the cost for the declared secret at the plans' order and at those of a grid.

    If the distribution of the number of differing records leaves out a tail, these are the costs
    given that the tail does not occur. Infinite at orders where the cost leaves the range of the
    numbers.
    """
    difference = difference_of(plans)
    costs = {}
    for order in {*ORDERS, plans[0].measure.order}:
        try:
            costs[order] = difference.divergence(order, 1.0)
        except CalibrationError:
            costs[order] = math.inf
    return costs
