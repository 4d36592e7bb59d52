# SPDX-License-Identifier: Apache-2.0
"""Certificates of training runs: what a plan promises, alone and together with others.

A run bounds any two datasets that differ in D records, whatever the prior. So its cost for D = 1,
at its own noise, is Rényi differential privacy for the replacement of one record.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_at_least, check_between
from pufferslice._core.search import SAFETY
from pufferslice.calibration.epsilon_delta import ORDERS, improved_epsilon_joint, paper_epsilon
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.limits import BY_PROGRAM, CONDITIONS, LIMITS, RUN_LIMITS, check_limits
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.learning import (
    Accountant,
    Amplified,
    LogMoment,
    MeanSquare,
    TrainingPlan,
    cost_by_count,
    exactly,
    mixed_cost,
    run_cost,
)
from pufferslice.learning.plan import HYPOTHESES

_ONE_RECORD: Final = exactly(1)
_USUAL_DELTA: Final = 1e-5
_MOST_ROUNDS: Final = 1000
_LARGEST_EXPONENT: Final = 700.0
"""The exponential of more is no number."""


def check_together(plans: Sequence[TrainingPlan]) -> None:
    """Raise unless the costs of the runs add: same records, distribution of D, order, notion."""
    if not plans:
        msg = "plans must hold at least one plan of a run, got none"
        raise ArgumentError(msg)
    first = _common(plans[0])
    for plan in plans[1:]:
        for name, value in _common(plan).items():
            if value != first[name]:
                msg = (
                    f"the runs have different {name}; only runs with the same compose. "
                    "Publish their certificates beside each other"
                )
                raise CertificateError(msg)


def check_distance(implementation_delta: float) -> None:
    """Raise unless it is a total-variation distance."""
    check_at_least(0, implementation_delta=implementation_delta)
    if implementation_delta > 1:
        msg = f"implementation_delta must be at most 1, got {implementation_delta!r}"
        raise ArgumentError(msg)


def secret_cost(plans: Sequence[TrainingPlan], order: float) -> float:
    """Cost of all runs for the declared secret: functions of the number of differing records add.

    The expectation over that number is taken once, outside the sum.
    Needs: one coupling of the data for all runs.
    Source: lemma:adaptive_renyi_composition.
    """
    costs = np.sum(
        [
            cost_by_count(
                plan.accountant, order, plan.sampling, plan.differing, plan.noise_multipliers
            )
            for plan in plans
        ],
        axis=0,
    )
    return mixed_cost(order, costs, plans[0].differing)


def secret_guarantee(plans: Sequence[TrainingPlan]) -> Guarantee:
    """What all runs together promise for the declared secret."""
    check_together(plans)
    first = plans[0]
    return Guarantee(
        notion=first.accountant.notion, order=first.order, epsilon=secret_cost(plans, first.order)
    )


def record_accountant(plan: TrainingPlan) -> Accountant:
    """By which the cost of one record is bounded: the plan's own, but never mean square.

    Mean square bounds nothing about the run. The log moment stands in for it, because it needs
    nothing to stay secret that a plan by mean square does not keep secret.
    """
    return LogMoment() if isinstance(plan.accountant, MeanSquare) else plan.accountant


def record_cost(plans: Sequence[TrainingPlan], order: float) -> float:
    """Cost of all runs for the replacement of any one record: they add.

    Guarantee: Rényi differential privacy of order `order`, the number of records being public,
    under the conditions of `record_accountant` and the hypotheses of the plans.
    """
    return math.fsum(
        run_cost(record_accountant(plan), order, plan.sampling, _ONE_RECORD, plan.noise_multipliers)
        for plan in plans
    )


def record_delta(plans: Sequence[TrainingPlan]) -> float:
    """The delta that is stated for one record: 1e-5, or one over the number of records if less."""
    return min(_USUAL_DELTA, 1 / plans[0].sampling.n_records)


def secret_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """The smallest epsilon for which (epsilon, delta) holds for the declared secret.

    Guarantee: `delta` covers the distance of the drawn noise from ideal noise, too. Infinite if no
    epsilon was found.
    """
    check_together(plans)
    accountant = plans[0].accountant
    if accountant.notion != "unsliced":
        msg = (
            f"accountant {accountant.name!r} averages over batches, which no (epsilon, delta) can "
            "be read from; use worst_case, log_moment or amplified"
        )
        raise ArgumentError(msg)
    return epsilon_at(
        costs_by_order(secret_cost, plans), delta=delta, implementation_delta=implementation_delta
    )


def record_epsilon(
    plans: Sequence[TrainingPlan], *, delta: float, implementation_delta: float
) -> float:
    """The smallest epsilon of (epsilon, delta)-differential privacy for replacing one record.

    Guarantee: as `secret_epsilon` and `record_cost`; computed without optional packages.
    """
    check_together(plans)
    return epsilon_at(
        costs_by_order(record_cost, plans), delta=delta, implementation_delta=implementation_delta
    )


def costs_by_order(
    cost: Callable[[Sequence[TrainingPlan], float], float], plans: Sequence[TrainingPlan]
) -> dict[float, float]:
    """`secret_cost` or `record_cost` at the orders that are minimised over, the plans' among them.

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
    r"""The smallest epsilon at `delta` from Rényi bounds by order, for noise that is not ideal.

    If ideal noise gives $(\epsilon, \delta')$, noise at total-variation distance d of it gives
    $(\epsilon, \delta' + (1 + e^\epsilon) d)$. Epsilon rises until both hold together.

    Guarantee: the conversion to what is left of delta was evaluated and gives at most the result;
    infinite if nothing is left.

    >>> round(epsilon_at({4.0: 1.0}, delta=1e-5, implementation_delta=0.0), 9)
    4.087861629
    """
    check_between(0, 1, delta=delta)
    check_distance(implementation_delta)
    epsilon = 0.0
    for _ in range(_MOST_ROUNDS):
        left = delta
        if implementation_delta:
            if epsilon > _LARGEST_EXPONENT:
                return math.inf
            left -= (1 + math.exp(epsilon)) * implementation_delta * SAFETY
        if not left > 0:
            return math.inf
        needed = min(improved_epsilon_joint(order, cost, left) for order, cost in costs.items())
        if needed * SAFETY <= epsilon or math.isinf(needed):
            return max(epsilon, needed)
        epsilon = needed * SAFETY**2
    return math.inf


def _common(plan: TrainingPlan) -> dict[str, object]:
    """What all runs of one claim must have in common."""
    return {
        "differing records": plan.differing.description(),
        "numbers of records": plan.sampling.n_records,
        "orders": plan.order,
        "notions": plan.accountant.notion,
    }


DEFAULT_DELTAS: Final = (1e-5,)

IDEAL_NOISE: Final = (
    "Gaussian, of the plan's size, on the sums of clipped gradients; how it is drawn is not stated "
    "here, and the bound is about the ideal real-valued noise."
)


@final
@attrs.frozen(kw_only=True)
class TrainingClaim:
    """What is said of one or several runs over the same data; all else follows from it."""

    data: str
    """The public name of the data; runs compose only if it is the same."""
    runs: tuple[TrainingPlan, ...]
    noises: tuple[str, ...]
    """How the noise of the runs is drawn, in public sentences."""
    deltas: tuple[float, ...]
    implementation_delta: float
    """Total-variation distance of all drawn noise from the noise that the cost is about."""
    limits: tuple[str, ...] = attrs.field(converter=check_limits)
    """Codes of what the programs that trained leave open."""

    def __attrs_post_init__(self) -> None:
        if not self.runs or not self.noises or not all((self.data, *self.noises)):
            msg = (
                "learning needs at least one run, a name of the data, and how noise is drawn; got "
                f"{len(self.runs)} runs, data {self.data!r} and noise {list(self.noises)}"
            )
            raise ArgumentError(msg)
        check_together(self.runs)
        for delta in self.deltas:
            check_between(0, 1, delta=delta)
        check_distance(self.implementation_delta)

    @classmethod
    def read_off(cls, statement: Mapping[str, Any]) -> "TrainingClaim":
        """What a statement reports."""
        return cls(
            data=statement["data"],
            runs=tuple(TrainingPlan.from_json(run) for run in statement["runs"]),
            noises=tuple(statement["noise"]),
            deltas=tuple(dict.fromkeys(statement["deltas"])),
            implementation_delta=statement["implementation_delta"],
            limits=[code for code in statement["limits"] if code in RUN_LIMITS],
        )

    def cost(self, order: float) -> float:
        """Cost of all runs together for the declared secret."""
        return secret_cost(self.runs, order)

    def guarantee(self) -> Guarantee:
        """What all runs together promise for the declared secret."""
        return secret_guarantee(self.runs)


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
    `noise` says how the noise is drawn; the bound is about ideal Gaussian noise, and
    `implementation_delta` is the total-variation distance of the run's noise from it. `limits` are
    codes of `pufferslice.certificate.limits.RUN_LIMITS`: what the program that trained leaves open.
    """
    return certify_runs(
        [plan],
        data=data,
        noise=noise,
        deltas=deltas,
        implementation_delta=implementation_delta,
        limits=limits,
    )


def certify_runs(
    plans: Sequence[TrainingPlan],
    *,
    data: str,
    noise: str = IDEAL_NOISE,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    implementation_delta: float = 0.0,
    limits: Sequence[str] = BY_PROGRAM,
) -> Certificate:
    """State what runs over the same data promise together.

    Guarantee: costs add as functions of the number of differing records, which is the same in all
    runs. `implementation_delta` is the sum over all of them. Else as `certify_training`.
    Needs: runs with noise of their own, over one dataset.
    Source: lemma:adaptive_renyi_composition.
    """
    for name, text in (("data", data), ("noise", noise)):
        if not isinstance(text, str) or not text:
            msg = f"{name} must be a public sentence that is not empty, got {text!r}"
            raise ArgumentError(msg)
    said = TrainingClaim(
        data=data,
        runs=tuple(plans),
        noises=(noise,),
        deltas=tuple(dict.fromkeys(float(delta) for delta in deltas)),
        implementation_delta=implementation_delta,
        limits=limits,
    )
    return Certificate(statement=learning_statement(said), evidence=None)


def compose(certificates: Sequence[Certificate]) -> Certificate:
    """One certificate for several runs over the same data, differing records and order.

    Static releases do not compose: two of them can tell a secret that neither tells alone.
    """
    if not certificates:
        msg = "certificates must hold at least one certificate of a training run, got none"
        raise ArgumentError(msg)
    for certificate in certificates:
        if certificate.road != "learning":
            msg = (
                "static releases do not compose: with two fair bits and their exclusive or as the "
                "secret, each bit alone says nothing, both together say all. Calibrate the "
                "concatenated query once"
            )
            raise CertificateError(msg)
    parts = [TrainingClaim.read_off(certificate.statement) for certificate in certificates]
    names = sorted({part.data for part in parts})
    if len(names) != 1:
        msg = (
            f"the runs are over different data ({', '.join(names)}); only the same data compose. "
            "Publish their certificates beside each other"
        )
        raise CertificateError(msg)
    said = TrainingClaim(
        data=names[0],
        runs=tuple(run for part in parts for run in part.runs),
        noises=tuple(dict.fromkeys(noise for part in parts for noise in part.noises)),
        deltas=tuple(dict.fromkeys(delta for part in parts for delta in part.deltas)),
        implementation_delta=_added_up([part.implementation_delta for part in parts]),
        limits=[code for part in parts for code in part.limits],
    )
    return Certificate(statement=learning_statement(said), evidence=None)


def learning_statement(said: TrainingClaim) -> dict[str, Any]:
    """The whole public statement; deterministic in what was said."""
    claim = said.guarantee()
    unsliced = claim.notion == "unsliced"
    accountants = {run.accountant.name: run.accountant for run in said.runs}
    return {
        "road": "learning",
        "data": said.data,
        "runs": [run.to_json() for run in said.runs],
        "guarantee": claim.to_json(),
        "certifies": [accountant.certifies for accountant in accountants.values()],
        "draws_may_be_seen": [one.draws_may_be_seen for one in accountants.values()],
        "noise": list(said.noises),
        "implementation_delta": float(said.implementation_delta),
        "failure_probability": 0.0,
        "deltas": list(said.deltas) if unsliced else [],
        "views": _views(said, claim) if unsliced else [],
        "one_record": _one_record(said),
        "hypotheses": list(HYPOTHESES),
        "limits": _limits(said, claim),
    }


def _one_record(said: TrainingClaim) -> dict[str, Any]:
    """What the replacement of one record gets, whatever the secret is."""
    order, delta = said.runs[0].order, record_delta(said.runs)
    accountants = [record_accountant(run) for run in said.runs]
    epsilon = record_epsilon(said.runs, delta=delta, implementation_delta=said.implementation_delta)
    secret_draws = Amplified() in accountants
    return {
        "adjacency": "replace-one",
        "accountants": list(dict.fromkeys(accountant.name for accountant in accountants)),
        "order": order,
        "epsilon": record_cost(said.runs, order),
        "delta": delta,
        "epsilon_at_delta": epsilon if math.isfinite(epsilon) else None,
        "conditions": [code for code in CONDITIONS if code != "draws-secret" or secret_draws],
    }


def _limits(said: TrainingClaim, claim: Guarantee) -> list[str]:
    """What is not covered, by code."""
    absent = {
        "average-over-batches": claim.notion == "unsliced",
        "stops-on-non-finite": all(run.non_finite != "stop" for run in said.runs),
        "noise-not-ideal": not said.implementation_delta,
    } | {code: code not in said.limits for code in RUN_LIMITS}
    return [code for code in LIMITS if not absent.get(code)]


def _added_up(distances: Sequence[float]) -> float:
    """The sum, rounded up; total variation is never above 1."""
    total = math.fsum(distances)
    if len(distances) > 1 and total > 0:
        total = math.nextafter(total, math.inf)
    return min(1.0, total)


def _views(said: TrainingClaim, claim: Guarantee) -> list[dict[str, Any]]:
    """Unsliced (epsilon, delta) views: at the claim's order, and the best of it and a grid."""
    costs = costs_by_order(secret_cost, said.runs) if said.deltas else {}
    views = []
    for delta in said.deltas:
        at_order = {
            "paper": paper_epsilon(claim.order, claim.epsilon, delta),
            "improved": improved_epsilon_joint(claim.order, claim.epsilon, delta),
            "order_grid": min(
                improved_epsilon_joint(order, cost, delta) for order, cost in costs.items()
            ),
        }
        views += [
            {"scope": "unsliced", "rule": rule, "epsilon": epsilon, "delta": delta}
            for rule, epsilon in at_order.items()
            if np.isfinite(epsilon)
        ]
    return views
