# SPDX-License-Identifier: Apache-2.0
"""What a training run and its branches are charged, and the certificate that says so."""

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from pufferslice.certificate import Certificate
from pufferslice.certificate.learning import Trained, certify_runs
from pufferslice.guarantee import Guarantee
from pufferslice.run_ledger import Branch
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.grid import implementation_delta

KEYED_NOISE: Final = (
    "Integer Gaussian noise of parameter 2^44 in units of the plan's noise over 2^44, added to "
    "integer sums of clipped gradients, once per step. It is drawn from AES-256-CTR under a key "
    "hashed from the secret key of the run, the branch, the step and the sums. Gradients are "
    "clipped to slightly less than the plan's norms, so that the rounding of blocks and sums stays "
    "within the sensitivity that the plan charges."
)
"""How a trainer draws its noise; a certificate carries it."""


def stopped_early(n_taken: int, n_steps: int) -> str:
    """The assumption of a certificate for fewer steps than planned."""
    return (
        f"The run was stopped after {n_taken} of {n_steps} planned steps. The claim holds only if "
        "that choice did not depend on the data, not even on losses or metrics of private data: "
        "so said who stopped it, and it cannot be checked."
    )


def forked(branches: Sequence[Branch]) -> str:
    """What a certificate says of the branches beside the main one."""
    told = ", ".join(f"{one.name!r} from step {one.at_step}" for one in branches[1:])
    return f"The run was forked, and every branch is charged to the end of the plan: {told}."


def charged_plans(
    plan: TrainingPlan, branches: Sequence[Branch], ends: dict[int, int]
) -> list[TrainingPlan]:
    """The steps of each branch as a plan of its own: from where it left to the end of the plan.

    `ends` gives the end of the branches that are known to stop earlier. The prefix that branches
    share is charged once, to the branch that took it.
    """
    spans = [(one.at_step, ends.get(one.branch, plan.n_steps)) for one in branches]
    return [
        attrs.evolve(plan, noise_multipliers=plan.noise_multipliers[start:end])
        for start, end in spans
        if end > start
    ]


def certify_branches(
    plans: Sequence[TrainingPlan],
    *,
    data: str,
    noise: str,
    n_parameters: int,
    deltas: Sequence[float],
) -> Certificate:
    """The certificate of all branches together: their costs add as functions of the differing.

    Needs: the run followed the plans, and nobody saw its key.
    """
    return certify_runs(
        plans,
        data=data,
        noise=noise,
        deltas=deltas,
        implementation_delta=implementation_delta(_in_a_row(plans), n_parameters),
    )


def guarantee_of(plans: Sequence[TrainingPlan]) -> Guarantee:
    """What the branches cost together."""
    said = Trained(
        data="one run",
        runs=tuple(plans),
        noises=(KEYED_NOISE,),
        deltas=(),
        implementation_delta=0.0,
    )
    return said.guarantee()


def _in_a_row(plans: Sequence[TrainingPlan]) -> TrainingPlan:
    """One plan with the steps of all; its noise is as far from ideal as theirs together."""
    multipliers = np.concatenate([plan.noise_multipliers for plan in plans])
    return attrs.evolve(plans[0], noise_multipliers=multipliers)
