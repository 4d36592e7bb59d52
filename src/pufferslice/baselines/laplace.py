# SPDX-License-Identifier: Apache-2.0
"""Laplace noise for a scalar query, accounted for by Rényi divergence; for comparison."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_above
from pufferslice._core.search import smallest_safe
from pufferslice.baselines.wasserstein import DistributionCouple, check_unsliced, laplace_scale
from pufferslice.calibration.guarantee import Guarantee


def laplace_envelope(order: float, shifts: npt.ArrayLike, scale: float) -> Floats:
    r"""$R_\alpha(\zeta, z)$: the largest divergence of Laplace noise from itself shifted by <= z.

    $$\frac{1}{\alpha-1} \ln\Big(\frac{\alpha}{2\alpha-1} e^{(\alpha-1) z/b} +
      \frac{\alpha-1}{2\alpha-1} e^{-\alpha z/b}\Big)$$

    It grows with the shift, so the largest shift is the worst. Never above z / b, the pure bound.
    Source: lemma:SRPP-envelope with noise that is not Gaussian.

    >>> float(laplace_envelope(2, [1.0], 1.0)[0])
    0.6191...
    """
    check_above(1, order=order)
    check_above(0, scale=scale)
    z = np.abs(np.asarray(shifts, dtype=np.float64)) / scale
    # ln((a + (a-1) e^{-(2a-1) z}) / (2a-1)) is the part below (a-1) z; 0 at z = 0.
    below = np.log1p(-(order - 1) / (2 * order - 1) * -np.expm1(-(2 * order - 1) * z))
    return np.asarray(np.clip(z + below / (order - 1), 0.0, z))


def laplace_renyi_scale(couples: Sequence[DistributionCouple], target: Guarantee) -> float:
    """Smallest scale of Laplace noise whose envelope at W-infinity meets an unsliced target.

    Guarantee: the target for these distributions of a scalar query, in exact arithmetic. For
    comparison: no certificate is issued.
    """
    check_unsliced(target)
    worst = laplace_scale(couples, 1.0)
    if worst == 0:
        return 0.0

    def cost(scale: float) -> float:
        return float(laplace_envelope(target.order, worst, scale))

    return smallest_safe(cost, target.epsilon, start=worst / target.epsilon)
