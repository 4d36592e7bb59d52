# SPDX-License-Identifier: Apache-2.0
"""How large the gradients of a step can be beside its noise: public, and known before training."""

from collections.abc import Sequence
from typing import final

import attrs
import numpy as np

from pufferslice.checks import check_count
from pufferslice.errors import ArgumentError
from pufferslice.sgd.plan import TrainingPlan


@final
@attrs.frozen(kw_only=True)
class SignalToNoise:
    """The largest possible sum of clipped gradients over the size of the noise, as norms.

    The sum is that large only if all gradients of a batch agree and reach the clip norm; usually it
    is many times smaller. Nothing private enters.
    """

    per_step: float
    """Of one step."""
    whole_run: float
    """Of the sum over all steps: signals add, noise adds as its square root."""

    @property
    def advice(self) -> str | None:
        """What to change if the noise of a step exceeds any signal; None if it does not."""
        if self.per_step >= 1:
            return None
        outcome = (
            "expect to learn only from the average over many steps"
            if self.whole_run >= 1
            else "nor would the sum over all steps; expect this run to learn little or nothing"
        )
        return (
            "Even if all gradients of a batch agreed, their sum would not exceed the noise of a "
            f"step; {outcome}. Use larger batches, fewer trainable parameters, fewer differing "
            "records, or a larger epsilon."
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

    >>> from pufferslice.sgd import LogMoment, Poisson, exactly, plan_with_noise
    >>> plan = plan_with_noise(
    ...     differing=exactly(1), sampling=Poisson(n_records=1_000, rate=0.1), clip_norm=3.0,
    ...     noise_multipliers=[2.0] * 4, accountant=LogMoment(), order=4,
    ... )
    >>> signal_to_noise(plan, [400])  # 100 / (2 * 20)
    SignalToNoise(per_step=2.5, whole_run=5.0)
    """
    norms = np.array(plan.clipping.norms, dtype=np.float64)
    if len(sizes) != len(norms):
        msg = f"sizes must have one entry for each of the {len(norms)} layers, got {len(sizes)}"
        raise ArgumentError(msg)
    for size in sizes:
        check_count(1, size=size)
    # In units of the largest norm and the largest multiplier, so that no square overflows.
    norms = norms / norms.max()
    top = float(plan.noise_multipliers.max())
    mean_square = float(np.mean((plan.noise_multipliers / top) ** 2))
    noise = np.sqrt(
        mean_square * np.dot(np.array(sizes, float), (plan.clipping.ratios * norms) ** 2)
    )
    per_step = plan.divisor * float(np.linalg.norm(norms) / noise) / top
    return SignalToNoise(per_step=per_step, whole_run=per_step * plan.n_steps**0.5)
