# SPDX-License-Identifier: Apache-2.0
"""Learning rates by the number of the step: post-processing, they cost nothing."""

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.checks import check_above, check_count
from pufferslice.errors import ArgumentError


def recipe_learning_rates(*, peak: float, n_steps: int, n_warmup_steps: int) -> Floats:
    """Linear warm-up to `peak`, then half a cosine down to 0: the paper's schedule.

    Source: alg:srpp-sgd, with the schedule of the appendix on experiments.

    >>> recipe_learning_rates(peak=1.0, n_steps=4, n_warmup_steps=2).tolist()
    [0.5, 1.0, 1.0, 0.5]
    """
    check_above(0, peak=peak)
    check_count(1, n_steps=n_steps)
    check_count(0, n_warmup_steps=n_warmup_steps)
    if n_warmup_steps >= n_steps:
        msg = f"n_warmup_steps must be less than n_steps {n_steps}, got {n_warmup_steps}"
        raise ArgumentError(msg)
    rising = np.arange(1, n_warmup_steps + 1) / max(n_warmup_steps, 1)
    n_falling = n_steps - n_warmup_steps
    falling = (1 + np.cos(np.pi * np.arange(n_falling) / n_falling)) / 2
    return peak * np.concatenate([rising, falling])
