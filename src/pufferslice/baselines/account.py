# SPDX-License-Identifier: Apache-2.0
"""All accountants side by side for one run, with (epsilon, delta) and DP-SGD for comparison."""

import math
from collections.abc import Callable
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice._core.checks import check_above, check_between, check_count, plain_float
from pufferslice.baselines.dp_sgd import (
    DpSgd,
    dp_sgd_epsilon,
    dp_sgd_multiplier,
    group_size,
    run_epsilon,
)
from pufferslice.certificate.training import (
    record_accountant,
    record_cost,
    record_delta,
    record_epsilon,
    secret_epsilon,
)
from pufferslice.claims import EpsilonDelta
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.learning import (
    Accountant,
    DifferingRecords,
    Poisson,
    SamplingDesign,
    TrainingPlan,
    calibrate_multiplier,
    plan_training,
    plan_with_noise,
    run_cost,
    signal_to_noise,
)
from pufferslice.learning.accountants import ACCOUNTANTS, accountant_named, certifies_up_to_delta
from pufferslice.learning.plan import check_n_steps, delta_left

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
    order: float = attrs.field(converter=plain_float)
    delta: float | None = None
    """Delta of the (epsilon, delta) beside the Rényi numbers. Required if more records may differ
    than `differing` lists: then every epsilon of an account is one at this delta."""

    def __attrs_post_init__(self) -> None:
        check_n_steps(self.n_steps)
        check_above(1, order=self.order)
        self.sampling.discrepancy_cap(self.differing.largest)
        if self.delta is None:
            self.differing.check_whole()
        else:
            delta_left(self.delta, self.differing)

    @property
    def tail_delta(self) -> float | None:
        """The delta of every account, if more records may differ; None for Rényi accounts."""
        return self.delta if self.differing.excess_probability else None

    def plan(self, accountant: Accountant, noise_multiplier: float) -> TrainingPlan:
        """The run with the same noise in every step."""
        return plan_with_noise(
            differing=self.differing,
            sampling=self.sampling,
            clip_norm=_ANY_NORM,
            noise_multipliers=np.full(self.n_steps, noise_multiplier),
            accountant=accountant,
            order=self.order,
        )


@final
@attrs.frozen(kw_only=True)
class Account:
    """One accountant's answer for a run."""

    accountant: str
    noise_multiplier: float
    epsilon: float
    certifies: str
    draws_may_be_seen: str

    def plan(self, run: Run) -> TrainingPlan:
        """The run with the noise of this answer."""
        return run.plan(accountant_named(self.accountant), self.noise_multiplier)

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values, without the accountant's name."""
        return {k: v for k, v in attrs.asdict(self).items() if k != "accountant"}


def accounts_for_epsilon(run: Run, epsilon: float) -> dict[str, Account | str]:
    """Smallest multiplier that meets `epsilon` for each accountant, or why there is none."""

    def multiplier(accountant: Accountant) -> float:
        if run.tail_delta is None:
            target = accountant.claim(order=run.order, epsilon=epsilon)
            return calibrate_multiplier(
                accountant, target, run.sampling, run.differing, run.n_steps
            )
        plan = plan_training(
            differing=run.differing,
            sampling=run.sampling,
            clip_norm=_ANY_NORM,
            n_steps=run.n_steps,
            accountant=accountant,
            target=EpsilonDelta(epsilon=epsilon, delta=run.tail_delta),
        )
        return float(plan.noise_multipliers[0])

    return {accountant.name: _account(run, accountant, multiplier) for accountant in ACCOUNTANTS}


def accounts_for_noise(run: Run, noise_multiplier: float) -> dict[str, Account | str]:
    """Cost of `noise_multiplier` for each accountant, or why it does not apply."""
    return {
        accountant.name: _account(run, accountant, lambda _: noise_multiplier)
        for accountant in ACCOUNTANTS
    }


def delta_rows(run: Run, account: Account, delta: float) -> dict[str, float | str]:
    """Unsliced epsilon of an account at `delta`, by each way that applies, or why it does not."""
    check_between(0, 1, delta=delta)
    plan = account.plan(run)
    if plan.accountant.notion != "unsliced":
        return {"none": "an average over batch draws gives no (epsilon, delta)"}
    grid = secret_epsilon([plan], delta=delta, implementation_delta=0.0)
    rows: dict[str, float | str] = {"order_grid": grid}
    try:
        by_losses = run_epsilon(plan, delta)
        rows["loss_distribution"] = "not for this accountant" if by_losses is None else by_losses
    except (ArgumentError, CalibrationError) as error:
        rows["loss_distribution"] = str(error)
    return rows


def one_record_row(run: Run, account: Account, delta: float | None) -> dict[str, Any]:
    """The protection of one record that may be replaced, at the noise of an account.

    It holds whatever the secret is, for ideal noise. Without `delta`, the delta of a certificate.
    `accountant` names the accountant of the bound, and so what must stay secret.
    """
    plan = account.plan(run)
    delta = record_delta([plan]) if delta is None else delta
    epsilon = record_epsilon([plan], delta=delta, implementation_delta=0.0)
    return {
        "accountant": record_accountant(plan).name,
        "epsilon": record_cost([plan], run.order),
        "delta": delta,
        "epsilon_at_delta": epsilon if math.isfinite(epsilon) else None,
    }


def signal_row(run: Run, account: Account, n_parameters: int | None) -> dict[str, Any]:
    """Signal to noise of a step at the noise of an account; without `n_parameters`, of one."""
    if n_parameters is not None:
        check_count(1, n_parameters=n_parameters)
    plan = account.plan(run)
    signal = signal_to_noise(plan, [1 if n_parameters is None else n_parameters])
    return {"n_parameters": n_parameters, **attrs.asdict(signal), "advice": signal.advice}


def dp_sgd_rows(run: Run, epsilon: float, delta: float) -> dict[str, dict[str, Any]]:
    """DP-SGD and group-DP-SGD with Poisson sampling: the multiplier for (epsilon, delta).

    `dp_sgd` protects one record, `group_dp_sgd` a group of the paper's effective size that is drawn
    together, `group_dp_sgd_all` any group as large as the number of differing records, however it
    is drawn. None of them protects the secret. A random number of differing records has no group.
    """
    design = run.sampling
    rate = design.rate if isinstance(design, Poisson) else design.divisor / design.n_records
    peer = DpSgd(rate=rate, n_steps=run.n_steps)
    rows = {"dp_sgd": _dp_sgd_row(peer, epsilon, delta, "one record")}
    if run.differing.is_random:
        return rows
    n_differing = run.differing.largest
    size = group_size(run.sampling, n_differing)
    group = "one record" if size == 1 else f"{size} records that are drawn together"
    group += f": the paper's effective group for {n_differing} differing records"
    rows["group_dp_sgd"] = _dp_sgd_row(attrs.evolve(peer, group_size=size), epsilon, delta, group)
    if n_differing > 1:
        try:
            rows["group_dp_sgd_all"] = _group_row(peer, n_differing, epsilon, delta)
        except CalibrationError as error:
            rows["group_dp_sgd_all"] = {"group_size": n_differing, "not_applicable": str(error)}
    return rows


def account_table(
    run: Run,
    accounts: dict[str, Account | str],
    *,
    epsilon: float | None,
    n_parameters: int | None,
) -> dict[str, Any]:
    """Every account with its protection of one record and its signal to noise, as JSON values.

    With the run's delta also (epsilon, delta), and with `epsilon` DP-SGD beside it.
    """
    delta, tail = run.delta, run.differing.excess_probability
    applied = {name: value for name, value in accounts.items() if isinstance(value, Account)}
    rows = {
        name: account.to_json()
        | {
            "one_record": one_record_row(run, account, delta),
            "signal_to_noise": signal_row(run, account, n_parameters),
        }
        for name, account in applied.items()
    }
    table: dict[str, Any] = {
        "order": run.order,
        "n_steps": run.n_steps,
        "sampling": run.sampling.description(),
        "differing": run.differing.origin,
        "accountants": rows,
        "not_applicable": {name: why for name, why in accounts.items() if isinstance(why, str)},
    }
    if tail:
        table["excess_probability"] = tail
        table["failure_probability"] = run.differing.failure_probability
    if delta is not None:
        table["delta"] = delta
        for name, account in applied.items():
            rows[name]["epsilon_at_delta"] = delta_rows(run, account, delta)
        if epsilon is not None:
            table["comparison"] = dp_sgd_rows(run, epsilon, delta)
    return table


def _dp_sgd_row(peer: DpSgd, epsilon: float, delta: float, protects: str) -> dict[str, Any]:
    multiplier = dp_sgd_multiplier(peer, epsilon, delta, "rdp")
    by_losses = dp_sgd_epsilon(peer, multiplier, delta, "pld")
    return {
        "group_size": peer.group_size,
        "noise_multiplier_rdp": multiplier,
        # A delta below the mass that is cut off has no epsilon.
        "epsilon_pld_at_that_noise": by_losses if math.isfinite(by_losses) else None,
        "protects": protects,
    }


def _group_row(peer: DpSgd, size: int, epsilon: float, delta: float) -> dict[str, Any]:
    r"""Any group of `size` records, by group privacy: each record at a share of the budget.

    A chain of neighbours gives $\delta_k = \delta_1 (1 + e^\epsilon + ... + e^{(k-1)\epsilon})$ for
    epsilon each, for every mechanism. It grows with epsilon, so a smaller epsilon is covered too.
    """
    each = epsilon / size
    share = math.expm1(-each) / math.expm1(-epsilon) * math.exp(each - epsilon)
    if delta * share < _SMALLEST_DELTA:
        raise CalibrationError(
            f"epsilon = {epsilon!r} for a group of {size} leaves each record a delta below "
            f"{_SMALLEST_DELTA:g}; ask for a smaller epsilon"
        )
    group = f"any {size} records, however they are drawn: group privacy, epsilon {each:.3g} each"
    row = _dp_sgd_row(peer, each, delta * share, group)
    by_losses = row["epsilon_pld_at_that_noise"]
    return row | {
        "group_size": size,
        "epsilon_pld_at_that_noise": None if by_losses is None else size * by_losses,
    }


def _account(
    run: Run, accountant: Accountant, multiplier: Callable[[Accountant], float]
) -> Account | str:
    try:
        accountant.check(run.sampling, run.differing)
    except ArgumentError as error:
        return str(error)
    noise, certifies = multiplier(accountant), accountant.certifies
    if run.tail_delta is None:
        noises = np.full(run.n_steps, noise)
        cost = run_cost(accountant, run.order, run.sampling, run.differing, noises)
    else:
        plan = run.plan(accountant, noise)
        cost = secret_epsilon([plan], delta=run.tail_delta, implementation_delta=0.0)
        certifies = certifies_up_to_delta(accountant)
    return Account(
        accountant=accountant.name,
        noise_multiplier=noise,
        epsilon=cost,
        certifies=certifies,
        draws_may_be_seen=accountant.draws_may_be_seen,
    )
