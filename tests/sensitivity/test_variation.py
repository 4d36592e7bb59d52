# SPDX-License-Identifier: Apache-2.0
"""Total variation from a divergence: never below the truth, and attained where it can be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.special import ndtr
from tests.oracles import probabilities
from tests.refusals import Refusal, check_refused

from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.variation import total_variation_bound

ORDERS = st.sampled_from([1.01, 1.1, 1.5, 2.0, 4.0, 16.0, 256.0])


def apart(order, p, q):
    """Divergence and total variation with 120 digits; in floats, near ones would have none."""
    with mp.workdps(120):
        p, q = ([mp.mpf(float(x)) for x in side] for side in (p, q))
        p, q = ([x / mp.fsum(side) for x in side] for side in (p, q))
        alpha = mp.mpf(order)
        moment = mp.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True))
        variation = mp.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
        return max(0.0, float(mp.log(moment) / (alpha - 1))), float(variation)


def test_order_two_by_hand():
    """1 + t^2 / (q (1-q)) is least at q = 1/2: exp(eps) = 1 + 4 t^2, as long as t <= 1/2."""
    for epsilon in (0.01, 0.1, 0.5):
        assert total_variation_bound(2, epsilon) == pytest.approx(
            math.sqrt(math.expm1(epsilon)) / 2, rel=1e-9
        )


@pytest.mark.parametrize(("order", "epsilon"), [(2, 1.0), (4, 1.0), (4, 3.5), (16, 0.2)])
def test_beyond_one_over_the_order_the_worst_distributions_are_one_sided(order, epsilon):
    """P = (1, 0), Q = (1 - t, t) has divergence -ln(1 - t) at every order."""
    assert total_variation_bound(order, epsilon) == pytest.approx(-math.expm1(-epsilon), rel=1e-9)


@pytest.mark.soundness
@given(ORDERS, st.floats(1e-6, 12.0))
def test_never_below_that_of_gaussians(order, ratio):
    """N(r, 1) and N(0, 1): divergence order r^2 / 2, total variation 2 Phi(r/2) - 1."""
    exact = 2 * float(ndtr(ratio / 2)) - 1
    assert float(total_variation_bound(order, order * ratio**2 / 2)) >= exact


@pytest.mark.soundness
@given(st.sampled_from([1.1, 2.0, 4.0, 16.0]), probabilities(4))
def test_never_below_that_of_discrete_distributions(order, pair):
    p, q = pair
    for first, second in ((p, q), (q, p)):
        epsilon, exact = apart(order, first, second)
        assert float(total_variation_bound(order, epsilon)) >= exact * (1 - 1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("order", [1.01, 2.0, 16.0])
@pytest.mark.parametrize("little", [1e-9, 1e-26, 1e-60])
def test_distributions_that_are_hardly_apart(order, little):
    epsilon, exact = apart(order, [1.0, little], [1.0, 2 * little])
    assert 0 < exact <= float(total_variation_bound(order, epsilon)) < 1e-3


@pytest.mark.parametrize("order", [1.1, 2.0, 5.0, 64.0])
@pytest.mark.parametrize("epsilon", [0.003, 0.2, 1.5])
def test_the_bound_is_attained_by_coins(order, epsilon):
    """By brute force: all coins on a grid that the divergence allows."""
    coins = np.linspace(0.0005, 0.9995, 1_000)
    p, q = np.meshgrid(coins, coins)
    with np.errstate(over="ignore"):
        moments = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
    brute = float((p - q)[np.log(moments) / (order - 1) <= epsilon].max())
    bound = float(total_variation_bound(order, epsilon))
    assert brute <= bound <= brute + 4e-3


@given(ORDERS, st.floats(0.0, 30.0))
def test_never_above_the_classical_bounds(order, epsilon):
    bound = float(total_variation_bound(order, epsilon))
    assert bound <= math.sqrt(epsilon / 2) * (1 + 1e-11)
    assert bound <= math.sqrt(-math.expm1(-epsilon)) * (1 + 1e-11)
    assert 0 <= bound <= 1


@pytest.mark.parametrize(
    "refusal",
    [
        *[
            Refusal(lambda a=order: total_variation_bound(a, 1.0), ArgumentError, "orders")
            for order in (1.0, math.nan, math.inf)
        ],
        *[
            Refusal(lambda e=epsilon: total_variation_bound(2.0, e), ArgumentError, "epsilons")
            for epsilon in (-0.1, math.nan)
        ],
    ],
)
def test_refused(refusal):
    check_refused(refusal)
