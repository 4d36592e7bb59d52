# SPDX-License-Identifier: Apache-2.0
"""Wasserstein mechanism of Song et al. for scalar queries, which is also Ding's Kantorovich one."""

from collections.abc import Sequence

import numpy as np

from pufferslice.baselines.gwm import LawCouple, check_couples
from pufferslice.checks import check_above
from pufferslice.errors import ArgumentError
from pufferslice.gaps import LawPair, gap_tables


def laplace_scale(couples: Sequence[LawCouple], epsilon: float) -> float:
    """Scale of the Laplace noise, W-infinity / epsilon; its variance is twice the square.

    Song et al. (2017) calibrate to W-infinity; Ding (2022) to the largest move of an optimal plan
    of the 1-Wasserstein distance. On the line the monotone plan is optimal for both, so one
    function serves them.

    Guarantee: (epsilon, 0)-Pufferfish privacy for these laws, unsliced: the query is a scalar.
    For comparison: no certificate is issued.
    Source: def:WD, lem:empirical_Winfty_1d.
    """
    check_above(0, epsilon=epsilon)
    check_couples(couples)
    for law in (law for couple in couples for law in couple):
        if law.dim != 1:
            msg = (
                f"the Laplace mechanisms are for scalar queries, got {law.dim} coordinates; "
                "release one of them, or use the general Wasserstein mechanism"
            )
            raise ArgumentError(msg)
    laws = [law for couple in couples for law in couple]
    pairs = [LawPair(2 * k, 2 * k + 1) for k in range(len(couples))]
    worst = float(gap_tables(laws, pairs, np.ones((1, 1))).worst().max())
    scale = worst / epsilon
    return float(np.nextafter(scale, np.inf)) if scale * epsilon < worst else scale
