# SPDX-License-Identifier: Apache-2.0
"""All accountants side by side for one run and one claim, with DP-SGD for comparison."""

import math
from collections.abc import Callable
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_count
from pufferslice.baselines.dp_sgd import DpSgd, dp_sgd_multiplier, group_size
from pufferslice.certificate.training import (
    record_accountant,
    record_cost,
    record_delta,
    record_epsilon,
)
from pufferslice.claims import Claim, Measure, Renyi
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning import (
    Accountant,
    Amplified,
    DifferingRecords,
    LogMoment,
    MeanSquare,
    Poisson,
    SamplingDesign,
    TrainingPlan,
    exactly,
    plan_training,
    plan_with_noise,
    signal_to_noise,
)
from pufferslice.learning.accountants import (
    ACCOUNTANTS,
    certifies,
    check_bounds,
    draws_may_be_seen,
)
from pufferslice.learning.plan import check_n_steps

_ANY_NORM: Final = 1.0
_SMALLEST_DELTA: Final = 1e-14
"""Smallest delta of one record in a group; loss distributions drop smaller probabilities."""


@final
@attrs.frozen(kw_only=True)
class Run:
    """Facts about a run before its noise."""

    differing: DifferingRecords
    sampling: SamplingDesign
    n_steps: int

    def __attrs_post_init__(self) -> None:
        check_n_steps(self.n_steps)
        self.sampling.discrepancy_cap(self.differing.largest)

    @property
    def relation(self) -> str:
        """What the two worlds differ by, of which the run shows little."""
        return f"replace records: {self.differing.origin}"

    def plan(
        self, accountant: Accountant, noise_multiplier: float, measure: Measure
    ) -> TrainingPlan:
        """The run with the same noise in every step."""
        return plan_with_noise(
            differing=self.differing,
            sampling=self.sampling,
            clip_norm=_ANY_NORM,
            noise_multipliers=np.full(self.n_steps, noise_multiplier),
            accountant=accountant,
            measure=measure,
        )

    def planned(self, accountant: Accountant, target: Claim) -> TrainingPlan:
        """The run with the least noise that meets the target."""
        return plan_training(
            differing=self.differing,
            sampling=self.sampling,
            clip_norm=_ANY_NORM,
            n_steps=self.n_steps,
            accountant=accountant,
            target=target,
        )


@final
@attrs.frozen(kw_only=True)
class Account:
    """One accountant's answer for a run."""

    plan: TrainingPlan
    """The run with the noise of this answer."""
    claim: Claim
    """The claim of the run; its bound is what the noise costs."""

    @property
    def noise_multiplier(self) -> float:
        """The noise of every step."""
        return float(self.plan.noise_multipliers[0])

    @property
    def guess(self) -> float:
        """Upper bound on right guesses between two values of the secret."""
        return Measure.guess().cost(self.plan.difference, 1.0)

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values, without the accountant's name."""
        kind = self.plan.measure.kind
        return {
            "noise_multiplier": self.noise_multiplier,
            "claim": self.claim.to_json(),
            "guess": self.guess,
            "certifies": certifies(self.plan.accountant, kind),
            "draws_may_be_seen": draws_may_be_seen(self.plan.accountant, kind),
        }


def accounts_for(run: Run, target: Claim) -> dict[str, Account | str]:
    """Smallest multiplier that meets the target for each accountant, or why there is none."""

    def planned(accountant: Accountant, measure: Measure) -> TrainingPlan:
        return run.planned(accountant, measure.claim(target.bound))

    measure = Measure.of(target)
    return {each.name: _account(run, each, measure, planned) for each in ACCOUNTANTS}


def accounts_for_noise(
    run: Run, noise_multiplier: float, measure: Measure
) -> dict[str, Account | str]:
    """Cost of `noise_multiplier` for each accountant, or why it does not apply."""

    def planned(accountant: Accountant, measure: Measure) -> TrainingPlan:
        return run.plan(accountant, noise_multiplier, measure)

    return {each.name: _account(run, each, measure, planned) for each in ACCOUNTANTS}


def one_record_row(account: Account, delta: float | None = None) -> dict[str, Any]:
    """The protection of one record that may be replaced, at the noise of an account.

    It holds whatever the secret is, for ideal noise. Without `delta`, the delta of a certificate.
    `accountant` names the accountant of the bound, and so what must stay secret.
    """
    plans = [account.plan]
    delta = record_delta(plans) if delta is None else delta
    epsilon = record_epsilon(plans, delta=delta, implementation_delta=0.0)
    return {
        "relation": "replace 1 record",
        "accountant": record_accountant(account.plan).name,
        "order": account.plan.measure.order,
        "epsilon": record_cost(plans, account.plan.measure.order),
        "delta": delta,
        "epsilon_at_delta": epsilon if math.isfinite(epsilon) else None,
    }


def signal_row(account: Account, n_parameters: int | None) -> dict[str, Any]:
    """Signal to noise of a step at the noise of an account; without `n_parameters`, of one."""
    if n_parameters is not None:
        check_count(1, n_parameters=n_parameters)
    signal = signal_to_noise(account.plan, [1 if n_parameters is None else n_parameters])
    return {"n_parameters": n_parameters, **attrs.asdict(signal), "advice": signal.advice}


def comparison_rows(run: Run, target: Claim) -> dict[str, dict[str, Any]]:
    """Noise with which single records, and groups of them, are as safe as the target says.

    `record` is this library's: one record is replaced. `dp_sgd` and the groups are DP-SGD with
    Poisson sampling, as dp-accounting accounts for it: one record is added or removed, or a group.
    `group_dp_sgd` has the paper's effective group size and draws a group together,
    `group_dp_sgd_all` is any group as large as the number of differing records, however it is
    drawn. None of them protects the secret. A random number of differing records has no group.
    Empty for claims that no epsilon and delta are equivalent to.
    """
    if target.hockey_stick is None:
        return {}
    epsilon, delta = target.hockey_stick
    design = run.sampling
    accountant = Amplified() if isinstance(design, Poisson) else LogMoment()
    alone = attrs.evolve(run, differing=exactly(1)).planned(accountant, target)
    rate = design.rate if isinstance(design, Poisson) else design.divisor / design.n_records
    peer = DpSgd(rate=rate, n_steps=run.n_steps)
    rows = {
        "record": {
            "relation": "replace 1 record",
            "accountant": accountant.name,
            "noise_multiplier": float(alone.noise_multipliers[0]),
        },
        "dp_sgd": _dp_sgd_row(peer, epsilon, delta, "add or remove 1 record"),
    }
    if run.differing.is_random:
        return rows
    n_differing = run.differing.largest
    size = group_size(design, n_differing)
    records = "1 record" if size == 1 else f"{size} records that are drawn together"
    rows["group_dp_sgd"] = _dp_sgd_row(
        attrs.evolve(peer, group_size=size),
        epsilon,
        delta,
        f"add or remove {records}: the paper's effective group for {n_differing}",
    )
    if n_differing > 1:
        try:
            rows["group_dp_sgd_all"] = _group_row(peer, n_differing, epsilon, delta)
        except CalibrationError as error:
            rows["group_dp_sgd_all"] = {"group_size": n_differing, "not_applicable": str(error)}
    return rows


def account_table(
    run: Run,
    accounts: dict[str, Account | str],
    measure: Measure,
    *,
    target: Claim | None,
    n_parameters: int | None,
) -> dict[str, Any]:
    """Every account with its protection of one record and its signal to noise, as JSON values.

    With a target that an epsilon and a delta are equivalent to, also DP-SGD for the same.
    """
    rows = {
        name: {"relation": run.relation}
        | account.to_json()
        | {
            "one_record": one_record_row(account, measure.delta),
            "signal_to_noise": signal_row(account, n_parameters),
        }
        for name, account in accounts.items()
        if isinstance(account, Account)
    }
    table: dict[str, Any] = {
        "measure": measure.to_json(),
        "target": None if target is None else target.to_json(),
        "n_steps": run.n_steps,
        "sampling": run.sampling.description(),
        "differing": run.differing.origin,
        "accountants": rows,
        "not_applicable": {name: why for name, why in accounts.items() if isinstance(why, str)},
    }
    if run.differing.excess_probability:
        table["excess_probability"] = run.differing.excess_probability
        table["failure_probability"] = run.differing.failure_probability
    if target is not None:
        table["comparison"] = comparison_rows(run, target)
    return table


def _measure(accountant: Accountant, measure: Measure) -> Measure:
    """Of a divergence, mean square bounds a mean over batch draws only."""
    if accountant == MeanSquare() and measure.kind is Renyi:
        return Measure.over_batches(order=measure.order)
    return measure


def _account(
    run: Run,
    accountant: Accountant,
    measure: Measure,
    planned: Callable[[Accountant, Measure], TrainingPlan],
) -> Account | str:
    measure = _measure(accountant, measure)
    try:
        accountant.check(run.sampling, run.differing)
        check_bounds(accountant, measure.kind, run.differing)
    except ArgumentError as error:
        return str(error)
    plan = planned(accountant, measure)
    return Account(plan=plan, claim=plan.guarantee())


def _dp_sgd_row(peer: DpSgd, epsilon: float, delta: float, relation: str) -> dict[str, Any]:
    return {
        "relation": relation,
        "group_size": peer.group_size,
        "noise_multiplier": dp_sgd_multiplier(peer, epsilon, delta, "pld"),
    }


def _group_row(peer: DpSgd, size: int, epsilon: float, delta: float) -> dict[str, Any]:
    r"""Any group of `size` records, by group privacy: each record at a share of the budget.

    A chain of neighbours gives $\delta_k = \delta_1 (1 + e^\epsilon + ... + e^{(k-1)\epsilon})$ for
    epsilon each, for every mechanism. It grows with epsilon, so a smaller epsilon is covered too.
    """
    each, share = epsilon / size, 1 / size
    if epsilon:
        share = math.expm1(-each) / math.expm1(-epsilon) * math.exp(each - epsilon)
    if delta * share < _SMALLEST_DELTA:
        raise CalibrationError(
            f"epsilon = {epsilon!r} for a group of {size} leaves each record a delta below "
            f"{_SMALLEST_DELTA:g}; ask for a smaller epsilon"
        )
    relation = f"add or remove any {size} records, however they are drawn: group privacy"
    return _dp_sgd_row(peer, each, delta * share, relation) | {"group_size": size}
