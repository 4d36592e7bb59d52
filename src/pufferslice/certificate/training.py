# SPDX-License-Identifier: Apache-2.0
"""Certificates of training runs: what plans promise, alone and together.

A run bounds any two datasets that differ in D records, whatever the prior. So its cost for D = 1,
at its own noise, is Rényi differential privacy for the replacement of one record.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_between, check_share, is_a
from pufferslice._core.search import SAFETY
from pufferslice._core.text import listed
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.limits import BY_PROGRAM, CONDITIONS, LIMITS, RUN_LIMITS, check_limits
from pufferslice.certificate.statement import TrainingStatement, checked
from pufferslice.claims import Claim, Guarantee, claim_of
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
    cost_by_count,
    exactly,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.accountants import certifies_up_to_delta
from pufferslice.learning.plan import HYPOTHESES, delta_left

IDEAL_NOISE: Final = (
    "Gaussian, of the plan's size, on the sums of clipped gradients; how it is drawn is not stated "
    "here, and the bound is about the ideal real-valued noise."
)

_USUAL_DELTA: Final = 1e-5
_LEAST_EPSILON: Final = 1e-9
"""Least positive epsilon of an (epsilon, delta) claim."""
_MOST_ROUNDS: Final = 1000
_LARGEST_EXPONENT: Final = 700.0
"""Largest exponent whose exponential is still a float."""


def certify_training(
    plan: TrainingPlan,
    *,
    data: str,
    noise: str = IDEAL_NOISE,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    implementation_delta: float = 0.0,
    limits: Sequence[str] = BY_PROGRAM,
) -> Certificate:
    """State what a run that follows the plan promises.

    `data` is a public name for the dataset: runs over data of another name never compose.
    `noise` describes how the noise is drawn; the bound is about ideal Gaussian noise, and
    `implementation_delta` is the total-variation distance of the run's noise from it. `limits` are
    codes of `pufferslice.certificate.limits.RUN_LIMITS`: what the program that trained leaves open.
    """
    for name, text in (("data", data), ("noise", noise)):
        if not is_a(text, str) or not text:
            raise ArgumentError(f"{name} must be a non-empty string, got {text!r}")
    claim = TrainingClaim(
        data=data,
        runs=(plan,),
        noises=(noise,),
        deltas=unique_deltas(deltas),
        implementation_delta=implementation_delta,
        limits=limits,
    )
    return Certificate(statement=training_statement(claim), evidence=None)


def composed_runs(certificates: Sequence[Certificate]) -> Certificate:
    """Issue one certificate for several runs over the same data, differing records and order.

    Guarantee: costs add as functions of the number of differing records, which is the same in all
    runs. Needs: runs with noise of their own, over one dataset.
    Source: lemma:adaptive_renyi_composition.
    """
    claims = [
        TrainingClaim.read_off(certificate.statement)
        for certificate in certificates
        if isinstance(certificate.statement, TrainingStatement)
    ]
    names = sorted({claim.data for claim in claims})
    if len(names) != 1:
        raise CertificateError(
            f"the runs are over different data ({listed(names)}); only runs over the same data "
            "compose. Publish their certificates side by side"
        )
    total = math.fsum(claim.implementation_delta for claim in claims)
    if len(claims) > 1 and total > 0:
        total = math.nextafter(total, math.inf)
    together = TrainingClaim(
        data=names[0],
        runs=tuple(run for claim in claims for run in claim.runs),
        noises=tuple(dict.fromkeys(noise for claim in claims for noise in claim.noises)),
        deltas=tuple(dict.fromkeys(delta for claim in claims for delta in claim.deltas)),
        implementation_delta=min(1.0, total),
        limits=[code for claim in claims for code in claim.limits],
    )
    return Certificate(statement=training_statement(together), evidence=None)


def _wide_share(implementation_delta: float) -> float:
    """Widen a share to 64 bits: numpy's narrow floats would round what is left of a delta."""
    check_share(implementation_delta=implementation_delta)
    return float(implementation_delta)


@final
@attrs.frozen(kw_only=True)
class TrainingClaim:
    """The facts that a certificate of runs over the same data depends on; all else follows."""

    data: str
    """Public name of the data; runs compose only if it is the same."""
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
        if self.differing.excess_probability:
            if not self.deltas:
                raise ArgumentError(
                    "deltas must have at least one entry, the delta of the claim: more records "
                    "than listed may differ, so there is no Rényi claim"
                )
            for delta in self.deltas:
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

    def cost(self, order: float) -> float:
        """Cost of all runs together for the declared secret; see `secret_cost`."""
        return secret_cost(self.runs, order)

    def guarantee(self) -> Claim:
        """Joint guarantee of all runs for the declared secret.

        If the differing records leave out a tail, that is an (epsilon, delta) claim at the first of
        the deltas; tail and distance of the noise are part of it.
        """
        first = self.runs[0]
        if not self.differing.excess_probability:
            spent = {"order": first.order, "epsilon": self.cost(first.order)}
            return claim_of({"notion": first.accountant.notion, **spent})
        delta = self.deltas[0]
        epsilon = secret_epsilon(
            self.runs, delta=delta, implementation_delta=self.implementation_delta
        )
        if not math.isfinite(epsilon):
            raise CalibrationError(
                f"no epsilon can be stated at delta {delta:g}: the tail of the differing records "
                "and the distance of the noise leave too little of it. Use a larger delta, or more "
                "noise"
            )
        return Guarantee.epsilon_delta(max(epsilon, _LEAST_EPSILON), delta)


def training_statement(claim: TrainingClaim) -> TrainingStatement:
    """Build the whole public statement; the result depends on the claim alone."""
    guarantee = claim.guarantee()
    unsliced = guarantee.notion == "unsliced"
    accountants = dict.fromkeys(run.accountant for run in claim.runs)
    values = {
        "workflow": "training",
        "data": claim.data,
        "runs": [run.to_json() for run in claim.runs],
        "guarantee": guarantee,
        "certifies": [
            accountant.certifies if guarantee.has_order else certifies_up_to_delta(accountant)
            for accountant in accountants
        ],
        "draws_may_be_seen": [accountant.draws_may_be_seen for accountant in accountants],
        "noise": list(claim.noises),
        "implementation_delta": claim.implementation_delta,
        "failure_probability": float(claim.differing.failure_probability),
        "deltas": list(claim.deltas) if unsliced else [],
        "views": _views(claim) if unsliced else [],
        "one_record": _one_record(claim),
        "hypotheses": list(HYPOTHESES),
        "limits": _limits(claim, guarantee),
    }
    return checked(TrainingStatement, values, "statement", CertificateError)


def _views(claim: TrainingClaim) -> list[dict[str, Any]]:
    """Compute unsliced (epsilon, delta) views: at the plans' order, and at the best of a grid."""
    costs = costs_by_order(secret_cost, claim.runs) if claim.deltas else {}
    order = claim.runs[0].order
    views = []
    for delta in claim.deltas:
        left = delta_left(delta, claim.differing)
        epsilons = {
            "paper": paper_epsilon(order, costs[order], left),
            "improved": improved_epsilon_joint(order, costs[order], left),
            "order_grid": min(improved_epsilon_joint(o, cost, left) for o, cost in costs.items()),
        }
        views += [
            {"scope": "unsliced", "rule": rule, "epsilon": value, "delta": delta}
            for rule, value in epsilons.items()
            if np.isfinite(value)
        ]
    return views


def _one_record(claim: TrainingClaim) -> dict[str, Any]:
    """State what the replacement of one record gets, whatever the secret is."""
    runs, order, delta = claim.runs, claim.runs[0].order, record_delta(claim.runs)
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
        "average-over-batches": guarantee.notion != "unsliced",
        "stops-on-non-finite": any(run.non_finite == "stop" for run in claim.runs),
        "noise-not-ideal": claim.implementation_delta > 0,
    } | {code: code in claim.limits for code in RUN_LIMITS}
    return [code for code in LIMITS if present.get(code, True)]


def check_together(plans: Sequence[TrainingPlan]) -> None:
    """Raise unless the runs' costs add: same records, differing records, order and notion."""
    if not plans:
        raise ArgumentError("plans must hold the plan of at least one run, got none")
    shared = [
        {
            "differing records": plan.differing.description(),
            "numbers of records": plan.sampling.n_records,
            "orders": plan.order,
            "notions": plan.accountant.notion,
        }
        for plan in plans
    ]
    for name in shared[0]:
        if any(facts[name] != shared[0][name] for facts in shared):
            raise CertificateError(
                f"the runs have different {name}; only runs with the same {name} can be composed. "
                "Publish their certificates side by side"
            )


def secret_cost(plans: Sequence[TrainingPlan], order: float) -> float:
    """Cost of all runs for the declared secret: functions of the number of differing records add.

    The expectation over that number is taken once, outside the sum. If the distribution of that
    number leaves out a tail, this is the cost given that the tail does not occur: no claim by
    itself, but a step towards (epsilon, delta).
    Needs: one coupling of the data for all runs.
    Source: lemma:adaptive_renyi_composition.
    """
    costs = [
        cost_by_count(plan.accountant, order, plan.sampling, plan.differing, plan.noise_multipliers)
        for plan in plans
    ]
    return mixed_cost(order, np.sum(costs, axis=0), plans[0].differing.without_excess)


def record_accountant(plan: TrainingPlan) -> Accountant:
    """Return the accountant of one record's cost: the plan's, but never mean square.

    Mean square bounds nothing about the run. The log moment replaces it, because it needs nothing
    to stay secret.
    """
    return LogMoment() if isinstance(plan.accountant, MeanSquare) else plan.accountant


def record_cost(plans: Sequence[TrainingPlan], order: float) -> float:
    """Cost of all runs for the replacement of any one record: they add.

    Guarantee: Rényi differential privacy of order `order`, the number of records being public,
    under the conditions of `record_accountant` and the hypotheses of the plans.
    """
    return math.fsum(
        run_cost(record_accountant(plan), order, plan.sampling, exactly(1), plan.noise_multipliers)
        for plan in plans
    )


def record_delta(plans: Sequence[TrainingPlan]) -> float:
    """Delta that is stated for one record: 1e-5, or one over the number of records if less."""
    return min(_USUAL_DELTA, 1 / plans[0].sampling.n_records)


def secret_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """Find the smallest epsilon for which (epsilon, delta) holds for the declared secret.

    Guarantee: `delta` covers the distance of the drawn noise from ideal noise, too, and the
    probability that more records differ than the plans list: if (epsilon, delta') holds given that
    they do not, (epsilon, delta' + that probability) holds. Infinite if no epsilon was found.
    """
    check_together(plans)
    accountant = plans[0].accountant
    if accountant.notion != "unsliced":
        raise ArgumentError(
            f"accountant {accountant.name!r} averages over batches, which gives no (epsilon, "
            "delta); use worst_case, log_moment or amplified"
        )
    return epsilon_at(
        costs_by_order(secret_cost, plans),
        delta=delta_left(delta, plans[0].differing),
        implementation_delta=implementation_delta,
    )


def record_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """Find the smallest epsilon of (epsilon, delta)-differential privacy for replacing one record.

    Guarantee: as `secret_epsilon` and `record_cost`; computed without optional packages.
    """
    check_together(plans)
    return epsilon_at(
        costs_by_order(record_cost, plans), delta=delta, implementation_delta=implementation_delta
    )


def costs_by_order(
    cost: Callable[[Sequence[TrainingPlan], float], float], plans: Sequence[TrainingPlan]
) -> dict[float, float]:
    """Compute `secret_cost` or `record_cost` at the plans' order and at those of a grid.

    Infinite at orders where the cost leaves the range of the numbers.
    """
    costs = {}
    for order in {*ORDERS, plans[0].order}:
        try:
            costs[order] = cost(plans, order)
        except CalibrationError:
            costs[order] = math.inf
    return costs


def epsilon_at(costs: Mapping[float, float], *, delta: float, implementation_delta: float) -> float:
    r"""Smallest epsilon at `delta` from Rényi bounds by order, for noise that is not ideal.

    If ideal noise gives $(\epsilon, \delta')$, noise at total-variation distance d of it gives
    $(\epsilon, \delta' + (1 + e^\epsilon) d)$. Epsilon rises until both hold together.

    Guarantee: the conversion to what is left of delta was evaluated and gives at most the result;
    infinite if nothing is left.

    >>> round(epsilon_at({4.0: 1.0}, delta=1e-5, implementation_delta=0.0), 9)
    4.087861629
    """
    check_between(0, 1, delta=delta)
    distance = _wide_share(implementation_delta)
    epsilon = 0.0
    for _ in range(_MOST_ROUNDS):
        left = float(delta)
        if distance:
            if epsilon > _LARGEST_EXPONENT:
                return math.inf
            left -= (1 + math.exp(epsilon)) * distance * SAFETY
        if not left > 0:
            return math.inf
        needed = min(improved_epsilon_joint(order, cost, left) for order, cost in costs.items())
        if needed * SAFETY <= epsilon or math.isinf(needed):
            return max(epsilon, needed)
        epsilon = needed * SAFETY**2
    return math.inf
