# SPDX-License-Identifier: Apache-2.0
"""What runs over the same data cost together: for the declared secret, and for one record.

A run bounds any two datasets that differ in D records, whatever the prior. So its cost for D = 1,
at its own noise, is Rényi differential privacy for the replacement of one record.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from pufferslice.checks import check_at_least, check_between
from pufferslice.errors import ArgumentError, CalibrationError, CertificateError
from pufferslice.guarantee import Guarantee
from pufferslice.search import SAFETY
from pufferslice.sgd import (
    Accountant,
    LogMoment,
    MeanSquare,
    TrainingPlan,
    cost_by_count,
    exactly,
    mixed_cost,
    run_cost,
)
from pufferslice.views import ORDERS, improved_epsilon_joint

_ONE_RECORD: Final = exactly(1)
_USUAL_DELTA: Final = 1e-5
_MOST_ROUNDS: Final = 1000
_LARGEST_EXPONENT: Final = 700.0
"""The exponential of more is no number."""


def check_together(plans: Sequence[TrainingPlan]) -> None:
    """Raise unless the costs of the runs add: one number of records, law of D, order, notion."""
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
