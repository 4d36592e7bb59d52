# SPDX-License-Identifier: Apache-2.0
"""General Wasserstein mechanism: Gaussian noise for the largest W-infinity in all dimensions."""

import math
from collections.abc import Sequence

import numpy as np

from pufferslice.baselines.bottleneck import w_infinity
from pufferslice.checks import check_at_least, check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.guarantee import Guarantee
from pufferslice.laws import EmpiricalLaw
from pufferslice.renyi import gaussian_envelope
from pufferslice.search import raise_until

LawCouple = tuple[EmpiricalLaw, EmpiricalLaw]
"""The two laws of one instance, in scaled coordinates."""


def full_sensitivity(couples: Sequence[LawCouple]) -> float:
    """The largest W-infinity of all instances (the paper's unsliced sensitivity)."""
    check_couples(couples)
    return max(w_infinity(first, second) for first, second in couples)


def gwm_noise_std(couples: Sequence[LawCouple], target: Guarantee) -> float:
    r"""Noise of the general Wasserstein mechanism, in scaled coordinates.

    $$\sigma^2 = \frac{\alpha}{2\epsilon} W_\infty^2$$

    Guarantee: Gaussian noise of this standard deviation gives the unsliced target for these laws.
    For comparison: no certificate is issued.
    Source: eq:full_D_WS, lem:Winfty_bottleneck_matching.
    """
    check_unsliced(target)
    return shift_noise_std(full_sensitivity(couples), target)


def shift_noise_std(sensitivity: float, target: Guarantee) -> float:
    """Gaussian noise for shifts up to `sensitivity`; 0 if there is nothing to hide."""
    check_unsliced(target)
    check_at_least(0, sensitivity=sensitivity)
    if sensitivity == 0:
        return 0.0

    def holds(noise_std: float) -> bool:
        cost = gaussian_envelope(target.order, np.asarray(sensitivity), noise_std)
        return bool(cost <= target.epsilon)

    return raise_until(holds, sensitivity * math.sqrt(target.order / (2 * target.epsilon)))


def check_unsliced(target: Guarantee) -> None:
    """The mechanisms of this package speak of the whole output."""
    check_one_of(("unsliced",), notion=target.notion)


def check_couples(couples: Sequence[LawCouple]) -> None:
    """There is at least one instance, and its laws have finitely many atoms."""
    if not couples:
        msg = "couples must hold at least one pair of laws, got none"
        raise ArgumentError(msg)
    for law in (law for couple in couples for law in couple):
        if not isinstance(law, EmpiricalLaw):
            msg = (
                f"this mechanism couples atoms, and {law!r} has none; W-infinity between Gaussians"
                " of different spread is infinite. Use the tight rule, or samples of the laws"
            )
            raise ArgumentError(msg)
