# SPDX-License-Identifier: Apache-2.0
"""What a training run costs, and the certificate that states it."""

from collections.abc import Sequence
from typing import Final

import attrs

from pufferslice.certificate import Certificate
from pufferslice.certificate.learning import certify_training
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.grid import implementation_delta

KEYED_NOISE: Final = (
    "Integer Gaussian noise of parameter 2^44 in units of the plan's noise over 2^44, added to "
    "integer sums of clipped gradients, once per step. It is drawn from AES-256-CTR under a key "
    "hashed from the secret key of the run, the step and the sums. Gradients are "
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


def taken_plan(plan: TrainingPlan, n_taken: int) -> TrainingPlan:
    """The first steps of a plan, as a plan."""
    return attrs.evolve(plan, noise_multipliers=plan.noise_multipliers[:n_taken])


def certify_run(
    plan: TrainingPlan,
    *,
    run: str,
    data: str | None,
    noise: Sequence[str],
    n_parameters: int,
    deltas: Sequence[float],
) -> Certificate:
    """The certificate of a run; `noise` is what it says beside how its noise is drawn.

    Without a public name of the `data` it composes with no other.
    Needs: the run followed the plan, and nobody saw its key.
    """
    return certify_training(
        plan,
        data=f"the data of run {run}" if data is None else data,
        noise=" ".join((KEYED_NOISE, *noise)),
        deltas=deltas,
        implementation_delta=implementation_delta(plan, n_parameters),
    )
