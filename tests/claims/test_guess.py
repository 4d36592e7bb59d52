# SPDX-License-Identifier: Apache-2.0
"""Right guesses: never below the truth, and attained where they can be."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from tests.compared import full_of_rows, whole
from tests.oracles import probabilities
from tests.row_moments import rows_of

from pufferslice.claims import Guarantee
from pufferslice.claims.guess import guessing_advantage, released_variation, right_guesses
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.sensitivity import Full


class TestClaim:
    """Mean squared distances that allow a guess, and the noise of the row model."""

    @pytest.mark.parametrize(
        ("at_most", "expected"),
        [
            (0.55, 0.0631630963737249),
            (0.6, 0.256739018669206),
            (0.64, 0.513970825836408),
            (0.75, 1.81974569247829),
        ],
    )
    def test_distance_limit(self, at_most, expected):
        assert Guarantee.guess(at_most=at_most).distance_limit == pytest.approx(expected, rel=1e-12)

    def test_distance_limit_by_the_quantile(self):
        limit = Guarantee.guess(at_most=0.6).distance_limit
        assert limit == pytest.approx((2 * 0.2533471031357997) ** 2, rel=1e-12)

    def test_two_coins(self):
        """Bernoulli 1/4 and 3/4 in sums of rows, n = 100, D = 10: M = 0.002875."""
        coins = rows_of(
            shift=[0.5 / 100], spread=[[0.375 / 100**2]], spans=[1 / 100], counts=[10.0, 100.0]
        )
        assert coins.second_moments[0].item() == pytest.approx(0.002875, rel=1e-6)
        full = Full(dim=1, differences=coins)
        noise_std = Guarantee.guess(at_most=0.64).least_noise(whole(full))
        assert noise_std == pytest.approx(0.0747910603440602, rel=1e-6)

    def test_a_given_noise(self):
        """n = 100, D = 5, P(W = 1) = 1/5, noise 1/50: rho = 0.45."""
        rows = rows_of(
            shift=[0.2 / 100], spread=[[0.16 / 100**2]], spans=[1 / 100], counts=[5.0, 25.0]
        )
        full = Full(dim=1, differences=rows)
        assert full.mean_square(1 / 50) == pytest.approx(0.45, rel=1e-6)
        spent = Guarantee.guess(at_most=0.64).spent(whole(full), 1 / 50)
        assert spent == pytest.approx(0.631342161391791, rel=1e-6)


def test_variation_of_coupled_distances():
    """By hand: distances 1 and 2 with masses 3/4 and 1/4 at noise 2."""
    full = full_of_rows([(2.0, 1), (1.0, 3)])
    assert full.variation(2.0) == pytest.approx(0.243790719161392, rel=1e-9)
    assert right_guesses(full.variation(2.0)) == pytest.approx(0.621895359580696, rel=1e-9)
    assert Full(dim=1, differences=None).variation(2.0) == 1.0


@pytest.mark.soundness
@given(st.floats(0.01, 3.0), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(0.1, 2.0))
def test_variation_of_gaussian_distributions(shift, first, second, noise_std):
    """Never below numerical integration, and exact for equal spreads."""
    alike = GaussianPairs(means=np.array([[[shift], [0.0]]]), covs=np.full((1, 2, 1, 1), first**2))
    r = shift / math.sqrt(first**2 + noise_std**2)
    exact = 2 * float(ndtr(r / 2)) - 1
    found = Full(dim=1, differences=alike).variation(noise_std)
    assert exact <= found <= exact * (1 + 1e-6)
    other = attrs.evolve(alike, covs=np.array([[[[first**2]], [[second**2]]]]))
    stds = [math.sqrt(x**2 + noise_std**2) for x in (first, second)]
    x = np.linspace(-60, 60, 200_001)
    density = [np.exp(-(((x - m) / s) ** 2) / 2) / s for m, s in zip((shift, 0), stds, strict=True)]
    truth = float(np.abs(density[0] - density[1]).sum()) * (x[1] - x[0]) / math.sqrt(8 * math.pi)
    assert Full(dim=1, differences=other).variation(noise_std) >= truth - 1e-6


def test_released_variation_counts_both_distributions():
    assert released_variation(0.25, 0.125) == pytest.approx(0.5, rel=1e-15)
    assert released_variation(0.25, 0.0) == 0.25
    assert released_variation(0.9, 0.2) == 1.0
    assert released_variation(0.5, 1e-17) >= 0.5


@pytest.mark.soundness
@given(probabilities(5, n_distributions=3), st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3))
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


def test_the_hardest_pair_of_gaussians_decides():
    shifts, covs = [0.5, 2.0], np.array([[[[1.0]], [[1.0]]]])
    both = GaussianPairs(
        means=np.array([[[shift], [0.0]] for shift in shifts]), covs=np.repeat(covs, 2, axis=0)
    )
    truth = 2 * float(ndtr(2.0 / math.sqrt(1 + 4.0) / 2)) - 1
    assert Full(dim=1, differences=both).variation(2.0) == pytest.approx(truth, rel=1e-6)


def test_nearly_equal_spreads_are_bounded_closely():
    """Pinsker: the root of half of the divergence, here (x - ln(1 + x)) / 2 with x = 0.01 / 5."""
    covs = np.array([[[[1.0]], [[1.01]]]])
    pairs = GaussianPairs(means=np.zeros((1, 2, 1)), covs=covs)
    found = Full(dim=1, differences=pairs).variation(2.0)
    x = 0.01 / 5
    assert found == pytest.approx(math.sqrt((x - math.log1p(x)) / 4), rel=0.01)
    apart = attrs.evolve(pairs, means=np.array([[[3.0], [0.0]]]))
    shift = 2 * float(ndtr(3.0 / math.sqrt(5.01) / 2)) - 1
    assert shift <= Full(dim=1, differences=apart).variation(2.0) <= shift + found + 1e-3


def test_the_hardest_pair_decides():
    alone = [full_of_rows([(r, 1)]).variation(2.0) for r in (1.0, 3.0)]
    both = full_of_rows([(1.0, 1)], [(3.0, 1)])
    assert both.variation(2.0) == max(alone) > min(alone)
