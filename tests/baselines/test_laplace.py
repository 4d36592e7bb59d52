# SPDX-License-Identifier: Apache-2.0
"""Laplace noise by Rényi divergence, against quadrature."""

import math

import mpmath
import numpy as np
import pytest

from pufferslice import Guarantee
from pufferslice.baselines import laplace_envelope, laplace_renyi_scale, laplace_scale
from pufferslice.errors import ArgumentError
from pufferslice.scenario import FiniteDistribution


def divergence(order: float, shift: float, scale: float) -> float:
    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp((-order * abs(x - shift) + (order - 1) * abs(x)) / scale) / (2 * scale)

    moment = mpmath.quad(integrand, [-mpmath.inf, 0, shift, mpmath.inf])
    return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize("order", [1.1, 2.0, 16.0])
@pytest.mark.parametrize("shift", [1e-3, 0.7, 20.0])
def test_the_envelope_is_the_divergence(order: float, shift: float) -> None:
    found = float(laplace_envelope(order, shift, 1.3))
    assert found == pytest.approx(divergence(order, shift, 1.3), rel=1e-9, abs=1e-13)
    assert found <= shift / 1.3
    assert float(laplace_envelope(order, -shift, 1.3)) == found
    assert float(laplace_envelope(order, shift * 0.9, 1.3)) < found
    assert laplace_envelope(order, 0.0, 1.0) == 0


def test_the_scale_meets_the_target_and_is_below_the_pure_one() -> None:
    couples = [
        (FiniteDistribution.uniform([[0.0], [1.0]]), FiniteDistribution.uniform([[2.0], [5.0]]))
    ]
    for epsilon in (0.01, 1.0, 30.0):
        target = Guarantee.unsliced(order=4, epsilon=epsilon)
        scale = laplace_renyi_scale(couples, target)
        assert divergence(4, 4.0, scale) == pytest.approx(epsilon, rel=1e-6)
        assert float(laplace_envelope(4, 4.0, scale)) <= epsilon
        assert scale < laplace_scale(couples, epsilon)
    same = FiniteDistribution.uniform([[1.0]])
    assert laplace_renyi_scale([(same, same)], target) == 0
    with pytest.raises(ArgumentError, match="notion"):
        laplace_renyi_scale(couples, Guarantee.average_over_batches(order=4, epsilon=1.0))
    assert math.isfinite(float(laplace_envelope(4, 1e6, 1.0)))
    assert np.all(np.diff(laplace_envelope(4, np.linspace(0, 9, 50), 1.0)) > 0)
