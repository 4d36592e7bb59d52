# SPDX-License-Identifier: Apache-2.0
"""One feature of two values: known answers, and the sums in 50 digits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.sensitivity.flags import FlagSum

ROWS = FlagSum(n_rows=5, probability=0.2, length=1 / 100)
"""n = 100, D = 5, a row changes with probability 1/5."""


def test_known_answers():
    order, std = 4.0, 1 / 20
    (log,) = ROWS.log_moments(np.array([order * (order - 1) / 2 / std**2]))
    assert log / (order - 1) == pytest.approx(0.270914204007661, rel=1e-11)
    guess = 0.5 + ROWS.variation(1 / 50, 0.0) / 2
    assert guess == pytest.approx(0.595949101074213, rel=1e-11)
    assert ROWS.delta(1.0, 1 / 50, 0.0) == pytest.approx(0.0486749417989402, rel=1e-11)


def test_a_random_number_of_rows():
    """D ~ Bin(100, 1/20): all rows may differ, however rarely, and the order sees it."""
    random = FlagSum(n_rows=100, probability=0.2 / 20, length=1 / 100)
    (log,) = random.log_moments(np.array([6 * 20**2]))
    assert log / 3 == pytest.approx(646.49432713373, rel=1e-12)


@pytest.mark.soundness
@given(
    st.integers(1, 60),
    st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-6, 1.0)),
    st.floats(-9, 3).map(math.exp),
    st.floats(0.0, 5.0),
)
def test_never_below_the_sum(n_rows, probability, length, epsilon):
    flags = FlagSum(n_rows=n_rows, probability=probability, length=length)
    with mpmath.workdps(50):
        p, r, e = map(mpmath.mpf, (probability, length, epsilon))
        masses = [
            mpmath.binomial(n_rows, k) * p**k * (1 - p) ** (n_rows - k) for k in range(n_rows + 1)
        ]
        log = mpmath.log(mpmath.fsum(m * mpmath.exp((k * r) ** 2) for k, m in enumerate(masses)))
        deltas = [
            mpmath.ncdf(k * r / 2 - e / (k * r))
            - mpmath.exp(e) * mpmath.ncdf(-k * r / 2 - e / (k * r))
            for k in range(1, n_rows + 1)
        ]
        delta = mpmath.fsum(m * d for m, d in zip(masses[1:], deltas, strict=True))
        variation = mpmath.fsum(
            m * mpmath.erf(k * r / mpmath.sqrt(8)) for k, m in enumerate(masses)
        )
    found = flags.log_moments(np.array([1.0])).item()
    assert log * (1 - 1e-13) <= found <= log * (1 + 1e-9)
    assert delta <= flags.delta(epsilon, 1.0, 0.0) <= delta * (1 + 1e-9) + 1e-13
    assert variation <= flags.variation(1.0, 0.0) <= variation * (1 + 1e-9) + 1e-300


def test_the_grid_adds_to_every_distance_but_that_of_equal_outputs():
    never = FlagSum(n_rows=5, probability=0.0, length=1.0)
    assert never.variation(1.0, 0.5) == 0
    assert ROWS.variation(1 / 50, 1 / 100) > ROWS.variation(1 / 50, 0.0)
    assert ROWS.delta(1.0, 1 / 50, 1 / 100) > ROWS.delta(1.0, 1 / 50, 0.0)
