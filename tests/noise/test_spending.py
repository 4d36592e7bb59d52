# SPDX-License-Identifier: Apache-2.0
"""Precision that is spent by many releases: theorem, accounting, and rules that are false."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import multivariate_normal, norm

from pufferslice.noise.spending import (
    ROOM,
    Measurement,
    Spending,
    measured_noise,
    measured_share,
)

SEEDS = st.integers(0, 2**32 - 1)


def statistics_of(rng, dim, n=None):
    """All features in coordinates in which the declared precision is 1, or combinations of them."""
    features = np.tril(rng.normal(size=(dim, dim))) + 3 * np.eye(dim)
    return features if n is None else rng.normal(size=(n, dim)) @ features


def is_at_most(matrix, limit):
    """Whether a symmetric matrix of rationals is at most `limit` times the identity, exactly."""
    dim = len(matrix)
    rest = [[limit * (i == j) - matrix[i][j] for j in range(dim)] for i in range(dim)]
    for k in range(dim):
        if rest[k][k] <= 0:
            return False
        for i in range(k + 1, dim):
            ratio = rest[i][k] / rest[k][k]
            for j in range(k, dim):
                rest[i][j] -= ratio * rest[k][j]
    return True


def exact_total(measurements, dim):
    total = [[Fraction(0)] * dim for _ in range(dim)]
    for each in measurements:
        for row in each.directions.tolist():
            exact = [Fraction(x) for x in row]
            for i, j in itertools.product(range(dim), repeat=2):
                total[i][j] += exact[i] * exact[j]
    return total


class TestMeasurement:
    @given(SEEDS, st.integers(1, 5), st.floats(0.01, 1.0))
    def test_a_share_of_all_features(self, seed, dim, share):
        features = statistics_of(np.random.default_rng(seed), dim)
        found = measured_share(features, share)
        assert found.covariance == pytest.approx(features @ features.T / share, rel=1e-9)
        spent = found.directions.T @ found.directions
        assert spent == pytest.approx(share * np.eye(dim), abs=1e-12)

    @given(SEEDS, st.integers(2, 6), st.integers(1, 6), st.floats(0.01, 1.0))
    def test_a_share_of_some_statistics(self, seed, dim, n, share):
        # Sigma = V V' / s and the charge s V' (V V')^+ V.
        rows = statistics_of(np.random.default_rng(seed), dim, n)
        found = measured_share(rows, share)
        assert found.estimate @ found.directions == pytest.approx(rows, abs=1e-9)
        assert found.covariance == pytest.approx(rows @ rows.T / share, rel=1e-8, abs=1e-9)
        spent = found.directions.T @ found.directions
        expected = share * np.linalg.pinv(rows) @ rows
        assert spent == pytest.approx(expected, abs=1e-9)

    def test_statistics_that_follow_from_others_cost_nothing(self):
        rows = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        found = measured_share(rows, 0.5)
        assert found.n_numbers == 2
        assert found.covariance == pytest.approx(2 * rows @ rows.T)

    @given(SEEDS, st.integers(1, 5))
    def test_wanted_noise(self, seed, dim):
        rng = np.random.default_rng(seed)
        features = statistics_of(rng, dim)
        spending = Spending.none(dim).plus(measured_share(statistics_of(rng, dim, 1), 0.7))
        stds = spending.least_stds(features) * rng.uniform(1.0, 5.0, dim)
        found = measured_noise(features, stds, spending)
        assert np.sqrt(np.diagonal(found.covariance)) == pytest.approx(stds, rel=1e-9)
        assert found.estimate @ found.directions == pytest.approx(features, rel=1e-9)
        assert spending.plus(found).fits()

    def test_wanted_noise_by_hand(self):
        # Two features of noise 1 each at full precision; 2 and 4 are wanted.
        found = measured_noise(np.eye(2), np.array([2.0, 4.0]), Spending.none(2))
        assert found.covariance == pytest.approx(np.diag([4.0, 16.0]))
        spent = found.directions.T @ found.directions
        assert spent == pytest.approx(np.diag([1 / 4, 1 / 16]))

    def test_repr_shows_no_numbers(self):
        assert repr(measured_share(np.eye(2), 1.0)) == "Measurement(n_numbers=2, n_statistics=2)"
        assert repr(Spending.none(2)) == "Spending(dim=2)"


@pytest.mark.soundness
class TestSpending:
    @given(SEEDS, st.integers(1, 4))
    def test_never_more_than_the_declared_precision(self, seed, dim):
        """Arbitrary requests, each accepted only if it fits: the exact sum stays below."""
        rng = np.random.default_rng(seed)
        spending, accepted = Spending.none(dim), []
        for _ in range(12):
            rows = statistics_of(rng, dim, int(rng.integers(1, dim + 2)))
            if rng.random() < 0.5:
                asked = measured_share(rows, float(rng.uniform(0.05, 1.0)))
            else:
                asked = Measurement(
                    directions=rng.normal(size=(2, dim)) * rng.uniform(0.05, 1.0),
                    estimate=np.zeros((1, 2)),
                )
            if spending.plus(asked).fits():
                spending = spending.plus(asked)
                accepted.append(asked)
        assert is_at_most(exact_total(accepted, dim), 1 + Fraction(ROOM))

    @given(SEEDS, st.integers(1, 4))
    def test_what_is_left_can_be_spent(self, seed, dim):
        rng = np.random.default_rng(seed)
        spending = Spending.none(dim)
        for share in (0.3, 0.25):
            spending = spending.plus(measured_share(statistics_of(rng, dim, 1), share))
        rows = statistics_of(rng, dim, 1)
        share = spending.largest_share(rows)
        assert spending.plus(measured_share(rows, share * (1 - 1e-12))).fits()
        if share < 1:
            assert not spending.plus(measured_share(rows, min(1.0, share * 1.001))).fits()
        assert (
            spending.least_stds(rows)[0] ** 2
            == pytest.approx(float((rows @ rows.T)[0, 0]) / share, rel=1e-3)
            or dim > 1
        )

    @pytest.mark.parametrize("shares", [(0.4, 0.6), (1.0,), (0.1,) * 10, (1 / 3,) * 3])
    def test_shares_that_add_up_to_one_use_it_up(self, shares):
        features = statistics_of(np.random.default_rng(1), 5)
        spending = Spending.none(5)
        for share in shares:
            spending = spending.plus(measured_share(features, share))
            assert spending.fits()
        assert not spending.plus(measured_share(features, 1e-6)).fits()
        assert np.isinf(spending.least_stds(features)).all()
        assert spending.largest_share(features) == 0.0

    def test_a_thousand_small_releases_fit(self):
        features = statistics_of(np.random.default_rng(2), 3)
        spending = Spending.none(3)
        for _ in range(1000):
            spending = spending.plus(measured_share(features, 0.001))
        assert spending.fits()

    def test_a_twice_spent_direction_is_refused_whatever_the_others(self):
        first = measured_share(np.array([[1.0, 0.0]]), 1.0)
        tilted = measured_share(np.array([[1.0, 1.0]]), 0.5)
        assert Spending.none(2).plus(first).fits()
        assert not Spending.none(2).plus(first).plus(tilted).fits()
        other = measured_share(np.array([[0.0, 1.0]]), 1.0)
        assert Spending.none(2).plus(first).plus(other).fits()

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_no_number_fits_that_is_none(self, value):
        odd = Measurement(directions=[[value, 0.0]], estimate=[[1.0]])
        assert not Spending.none(2).plus(odd).fits()

    def test_factor_two_root_and_square_matter(self):
        """A release of share s has noise 1/sqrt(s), and two of them share the precision."""
        spending = Spending.none(1)
        half = measured_share(np.eye(1), 0.5)
        assert math.sqrt(half.covariance[0, 0]) == pytest.approx(math.sqrt(2))
        spending = spending.plus(half)
        assert spending.least_stds(np.eye(1))[0] == pytest.approx(math.sqrt(2), rel=1e-5)


def right_guesses(first, second):
    return 0.5 + 0.25 * np.abs(first - second).sum()


GRID = np.linspace(-9, 9, 361)
STEP = GRID[1] - GRID[0]


def adaptive_outputs(worlds, first, choose):
    """Density over the grid of two outputs, the second along a direction that the first decides."""
    density = np.zeros((len(GRID), len(GRID)))
    for probability, point in worlds:
        one = norm.pdf(GRID, first @ point)
        two = np.array([norm.pdf(GRID, choose(y) @ point) for y in GRID])
        density += probability * one[:, None] * two
    return density * STEP**2


@pytest.mark.soundness
class TestAdaptiveChoices:
    """Chosen after earlier outputs, within the declared precision: never above the one release."""

    @pytest.mark.parametrize("seed", range(8))
    def test_two_releases_tell_no_more_than_one(self, seed):
        rng = np.random.default_rng(seed)
        worlds = [[(0.5, 2 * rng.normal(size=2)), (0.5, 2 * rng.normal(size=2))] for _ in range(2)]
        spent = 0.6
        angle = rng.uniform(0, math.pi)
        one = np.array([math.cos(angle), math.sin(angle)])
        across = np.array([-math.sin(angle), math.cos(angle)])

        # After the first output, either what is left along it, or everything across it.
        def choose(y):
            return math.sqrt(1 - spent) * one if y > 0.3 else across

        outputs = [adaptive_outputs(world, math.sqrt(spent) * one, choose) for world in worlds]
        reached = right_guesses(*outputs)
        plain = [
            sum(
                p * multivariate_normal.pdf(np.dstack(np.meshgrid(GRID, GRID)), point)
                for p, point in world
            )
            * STEP**2
            for world in worlds
        ]
        assert reached <= right_guesses(*plain) + 1e-6

    def test_a_scalar_filter_is_false(self):
        """Order 4: the second direction is chosen by a first output that costs nothing.

        Z lies along one of two axes, and rows that both worlds share tell which. The first release
        measures those rows alone, so it costs nothing; a filter that adds up
        (1/3) ln E exp(6 Z'PZ) charges the second one 0.336, whichever axis it measures. The truth
        is 0.5. Here the matrices of both axes add up instead, so that the choice changes nothing:
        what is declared must allow both.
        """
        cost = 1.5
        charged = math.log((1 + math.exp(cost)) / 2) / 3
        assert charged == pytest.approx(0.336088699140936, rel=1e-12)
        assert cost / 3 == 0.5
        size = math.sqrt(cost / 6)
        # A reader who knows the axis measures along it: Z'PZ is then 1/4 always.
        for axis in np.eye(2):
            precision = np.outer(axis, axis)
            change = size * axis
            assert 6 * change @ precision @ change == pytest.approx(cost)
        # The declared precision that allows either choice is the identity, under which the cost
        # of a change along either axis is the true one.
        assert 6 * size**2 / 3 == pytest.approx(0.5)

    def test_precision_of_a_fresh_period_that_follows_an_output_is_false(self):
        """Equal mean squares, chosen after the first output: 0.7854 stated, 0.7895 reached.

        Two periods of mean squares 1.875 and 0.625. For the second, the rows differ by sqrt(k)
        times as much with probability 1/k, under a precision that was chosen among k = 1 to 20.
        """
        first, second = 1.875, 0.625
        y = np.linspace(-9, 9, 8001)
        densities = [norm.pdf(y, sign * math.sqrt(first) / 2) for sign in (1, -1)]
        belief = densities[0] / sum(densities)

        def guesses(shift):
            cut = -np.log(belief / (1 - belief)) / shift
            return belief * norm.sf(cut, shift / 2) + (1 - belief) * norm.cdf(cut, -shift / 2)

        sure = np.maximum(belief, 1 - belief)
        options = [
            guesses(math.sqrt(k * second)) / k + (1 - 1 / k) * sure for k in np.arange(1, 20, 0.25)
        ]
        weights = sum(densities) / 2 * (y[1] - y[0])
        stated = ndtr(math.sqrt(first + second) / 2)
        assert stated == pytest.approx(0.7854, abs=5e-5)
        assert weights @ options[0] == pytest.approx(stated, abs=1e-6)
        assert weights @ np.max(options, axis=0) == pytest.approx(0.7895, abs=1e-4)
