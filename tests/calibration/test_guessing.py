# SPDX-License-Identifier: Apache-2.0
"""Bounds on guessing: never below the truth, attained where they can be, and refused in words."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp
from scipy.special import ndtr
from tests.calibration.builders import full_of_rows

from pufferslice.calibration.guessing import (
    full_variation,
    guessing_advantage,
    released_variation,
    right_guesses,
    total_variation_bound,
)
from pufferslice.errors import ArgumentError
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.sensitivity import Full

ORDERS = st.sampled_from([1.01, 1.1, 1.5, 2.0, 4.0, 16.0, 256.0])


def distributions(n_atoms, n_distributions=2):
    """Probability vectors, some of their entries very small."""
    entry = st.floats(1e-9, 1.0)
    distribution = st.lists(entry, min_size=n_atoms, max_size=n_atoms).map(
        lambda v: np.array(v) / sum(v)
    )
    return st.tuples(*[distribution] * n_distributions)


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
@given(st.sampled_from([1.1, 2.0, 4.0, 16.0]), distributions(4))
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
    ("orders", "epsilons", "complaint"),
    [
        (1.0, 1.0, "orders must be finite and greater than 1"),
        (math.nan, 1.0, "orders must be finite"),
        (2.0, -0.1, "epsilons must be numbers and at least 0"),
        (2.0, math.nan, "epsilons must be numbers"),
    ],
)
def test_wrong_numbers_are_refused(orders, epsilons, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        total_variation_bound(orders, epsilons)


def test_variation_of_coupled_distances():
    """By hand: distances 1 and 2 with masses 3/4 and 1/4 at noise 2."""
    full = full_of_rows([(2.0, 1), (1.0, 3)])
    assert full_variation(full, 2.0) == pytest.approx(0.243790719161392, rel=1e-9)
    assert right_guesses(full_variation(full, 2.0)) == pytest.approx(0.621895359580696, rel=1e-9)
    assert full_variation(Full(dim=1, differences=None), 2.0) == 1.0


@pytest.mark.soundness
@given(st.floats(0.01, 3.0), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(0.1, 2.0))
def test_variation_of_gaussian_distributions(shift, first, second, noise_std):
    """Never below numerical integration, and exact for equal spreads."""
    alike = GaussianPairs(means=np.array([[[shift], [0.0]]]), covs=np.full((1, 2, 1, 1), first**2))
    r = shift / math.sqrt(first**2 + noise_std**2)
    exact = 2 * float(ndtr(r / 2)) - 1
    found = full_variation(Full(dim=1, differences=alike), noise_std)
    assert exact <= found <= exact * (1 + 1e-6)
    other = attrs.evolve(alike, covs=np.array([[[[first**2]], [[second**2]]]]))
    stds = [math.sqrt(x**2 + noise_std**2) for x in (first, second)]
    x = np.linspace(-60, 60, 200_001)
    density = [np.exp(-(((x - m) / s) ** 2) / 2) / s for m, s in zip((shift, 0), stds, strict=True)]
    truth = float(np.abs(density[0] - density[1]).sum()) * (x[1] - x[0]) / math.sqrt(8 * math.pi)
    assert full_variation(Full(dim=1, differences=other), noise_std) >= truth - 1e-6


def test_released_variation_counts_both_distributions():
    assert released_variation(0.25, 0.125) == pytest.approx(0.5, rel=1e-15)
    assert released_variation(0.25, 0.0) == 0.25
    assert released_variation(0.9, 0.2) == 1.0
    assert released_variation(0.5, 1e-17) >= 0.5


@pytest.mark.soundness
@given(distributions(5, n_distributions=3), st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3))
def test_no_guess_beats_the_advantage(outputs, weights):
    """Brute force: the best guess of all is the likeliest secret of every output."""
    shares = np.array(weights) / sum(weights)
    table = np.array(outputs)
    accuracy = float((shares[:, None] * table).max(axis=0).sum())
    likeliest = int(shares.argmax())
    variation = max(float(np.abs(row - table[likeliest]).sum()) / 2 for row in table)
    largest = float(shares[likeliest])
    assert accuracy <= largest + guessing_advantage(variation, largest_share=largest) + 1e-12


def test_advantage_of_a_coin_is_attained():
    """Two equally likely secrets: the best guess is right with probability 1/2 + TV / 2."""
    p, q = np.array([0.7, 0.3]), np.array([0.4, 0.6])
    accuracy = np.maximum(p, q).sum() / 2
    assert accuracy == pytest.approx(0.5 + guessing_advantage(0.3, largest_share=0.5))


@pytest.mark.parametrize("share", [0.0, 1.0, math.nan])
def test_shares_are_probabilities(share):
    with pytest.raises(ArgumentError, match="largest_share must lie strictly between 0 and 1"):
        guessing_advantage(0.5, largest_share=share)


def test_a_negative_variation_is_refused():
    with pytest.raises(ArgumentError, match="total_variation must be"):
        guessing_advantage(-0.1, largest_share=0.5)
    with pytest.raises(ArgumentError, match="implementation_delta must be"):
        released_variation(0.1, -1.0)


def test_the_hardest_pair_of_gaussians_decides():
    shifts, covs = [0.5, 2.0], np.array([[[[1.0]], [[1.0]]]])
    both = GaussianPairs(
        means=np.array([[[shift], [0.0]] for shift in shifts]), covs=np.repeat(covs, 2, axis=0)
    )
    truth = 2 * float(ndtr(2.0 / math.sqrt(1 + 4.0) / 2)) - 1
    assert full_variation(Full(dim=1, differences=both), 2.0) == pytest.approx(truth, rel=1e-6)


def test_nearly_equal_spreads_are_bounded_closely():
    """Pinsker: the root of half of the divergence, here (x - ln(1 + x)) / 2 with x = 0.01 / 5."""
    covs = np.array([[[[1.0]], [[1.01]]]])
    pairs = GaussianPairs(means=np.zeros((1, 2, 1)), covs=covs)
    found = full_variation(Full(dim=1, differences=pairs), 2.0)
    x = 0.01 / 5
    assert found == pytest.approx(math.sqrt((x - math.log1p(x)) / 4), rel=0.01)
    apart = attrs.evolve(pairs, means=np.array([[[3.0], [0.0]]]))
    shift = 2 * float(ndtr(3.0 / math.sqrt(5.01) / 2)) - 1
    assert shift <= full_variation(Full(dim=1, differences=apart), 2.0) <= shift + found + 1e-3


def test_the_hardest_pair_decides():
    alone = [full_variation(full_of_rows([(r, 1)]), 2.0) for r in (1.0, 3.0)]
    both = full_of_rows([(1.0, 1)], [(3.0, 1)])
    assert full_variation(both, 2.0) == max(alone) > min(alone)
