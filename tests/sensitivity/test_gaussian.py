# SPDX-License-Identifier: Apache-2.0
"""Pairs of Gaussian distributions, along slices and in full, against 40-digit arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from tests import oracles
from tests.refusals import Refusal, check_refused

from pufferslice.errors import ArgumentError
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.whitening import Covariance, Shape


def noise(std: float) -> Covariance:
    """Isotropic noise; Gaussian pairs look at its deviation only."""
    return Covariance(dim=1, std=std)


def random_pairs(rng, n_instances=3, dim=3):
    roots = rng.normal(size=(n_instances, 2, dim, dim)) / 2
    covs = roots @ roots.transpose(0, 1, 3, 2)
    return GaussianPairs(means=rng.normal(size=(n_instances, 2, dim)), covs=covs)


def on_the_line(first, second):
    means = np.array([[[first[0]], [second[0]]]], dtype=float)
    covs = np.array([[[[first[1]]], [[second[1]]]]], dtype=float)
    return GaussianPairs(means=means, covs=covs)


def exact_cost(order, distributions):
    """The larger divergence of both orders of a pair of (mean, variance), in 40 digits."""
    pairs = (distributions, distributions[::-1])
    return max(oracles.gaussian_divergence(order, *pair) for pair in pairs)


def exact_spread(unit, cov):
    x, n = [oracles.exact(value) for value in unit], len(unit)
    terms = (x[j] * x[k] * oracles.exact(cov[j, k]) for j in range(n) for k in range(n))
    return oracles.HP.fsum(terms)


def test_known_answer_takes_the_larger_order():
    pairs = on_the_line((1, 1), (0, 1.5**2))
    costs = pairs.slice_costs(np.array([[1.0]]), 4.0, noise(2.0), "exact")
    assert costs == pytest.approx(np.array([[1.71947728452954]]), rel=1e-13)
    back = on_the_line((0, 1.5**2), (1, 1)).slice_costs(np.array([[1.0]]), 4.0, noise(2.0), "exact")
    assert back == pytest.approx(costs, rel=1e-15)


@pytest.mark.soundness
@pytest.mark.parametrize("order", [1.5, 4.0])
def test_slice_costs_against_40_digits(order, rng):
    pairs = random_pairs(rng)
    profile = FiniteProfile.uniform(dim=3, n_directions=4, seed=0)
    noise_std = 2.5
    costs = pairs.slice_costs(profile.directions, order, noise(noise_std), "exact")
    assert costs.shape == (3, 4)
    for i in range(3):
        for k, u in enumerate(profile.directions):
            distributions = [
                (float(pairs.means[i, s] @ u), float(u @ pairs.covs[i, s] @ u) + noise_std**2)
                for s in range(2)
            ]
            expected = float(exact_cost(order, distributions))
            assert costs[i, k] == pytest.approx(expected, rel=1e-10)


@pytest.mark.soundness
@pytest.mark.parametrize("center", [0.0, 1.0, 1e9, 1.7e18])
@pytest.mark.parametrize("cosine", [1.0, 1e-5])
def test_means_far_from_zero_hide_no_shift(center, cosine, rng):
    """Dates in nanoseconds, say: the cost is at least that of the exact difference of the means."""
    dim, scale = 4, max(1.0, center) * 1e-9
    means = center + scale * rng.normal(size=(2, dim))
    apart = means[0] - means[1]
    across = rng.normal(size=dim)
    across -= across @ apart / (apart @ apart) * apart
    unit = cosine * apart / np.linalg.norm(apart) + across / np.linalg.norm(across) * math.sqrt(
        1 - cosine**2
    )
    unit /= np.linalg.norm(unit)
    pairs = GaussianPairs(means=means[None], covs=np.zeros((1, 2, dim, dim)))
    (cost,) = pairs.slice_costs(unit[None], 4.0, noise(scale), "exact")[0]
    terms = (
        oracles.exact(u) * (oracles.exact(a) - oracles.exact(b))
        for u, a, b in zip(unit, *means, strict=True)
    )
    exact = 2 * (oracles.HP.fsum(terms) / oracles.exact(scale)) ** 2
    assert exact <= cost <= exact * (1 + 1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("order", [1.5, 4.0])
def test_full_costs_against_simultaneous_diagonalisation(order, rng):
    pairs = random_pairs(rng)
    costs = pairs.divergences(order, noise(2.5))
    for i in range(3):
        covs = pairs.covs[i] + 2.5**2 * np.eye(3)
        both = []
        for first, second in ((0, 1), (1, 0)):
            ratios, basis = scipy.linalg.eigh(covs[first], covs[second])
            shift = basis.T @ (pairs.means[i, first] - pairs.means[i, second])
            lines = zip(shift, ratios, strict=True)
            both.append(
                math.fsum(float(oracles.gaussian_divergence(order, line, (0, 1))) for line in lines)
            )
        assert costs[i] == pytest.approx(max(both), rel=1e-10)


def test_too_little_noise_costs_infinitely_much():
    """Order 4: 4 * (1 + s^2) - 3 * (2.25 + s^2) is positive only for s^2 > 2.75."""
    pairs = on_the_line((1, 1), (0, 1.5**2))
    line = np.array([[1.0]])
    below, above = math.sqrt(2.75) - 1e-9, math.sqrt(2.75) + 1e-3
    assert pairs.slice_costs(line, 4.0, noise(below), "exact")[0, 0] == math.inf
    assert pairs.divergences(4.0, noise(below))[0] == math.inf
    assert pairs.slice_costs(line, 4.0, noise(above), "exact")[0, 0] < math.inf


def test_degenerate_distributions_are_point_masses():
    pairs = GaussianPairs(means=np.array([[[0, 0], [3, 4]]]), covs=np.zeros((1, 2, 2, 2)))
    assert pairs.divergences(2.0, noise(5.0)) == pytest.approx([2 * 25 / (2 * 25)], rel=1e-14)
    axis = pairs.slice_costs(np.eye(2), 2.0, noise(5.0), "exact")
    assert axis == pytest.approx(np.array([[9 / 25, 16 / 25]]), rel=1e-14)


def test_equal_distributions_and_shapes(rng):
    pairs = random_pairs(rng, n_instances=2, dim=4)
    same = GaussianPairs(
        means=np.repeat(pairs.means[:, :1], 2, axis=1), covs=np.repeat(pairs.covs[:, :1], 2, axis=1)
    )
    assert same.equal.tolist() == [True, True]
    assert pairs.equal.tolist() == [False, False]
    assert (pairs.n_instances, pairs.dim) == (2, 4)
    assert repr(pairs) == "GaussianPairs(n_instances=2, dim=4)"
    moved = np.array(same.means)
    moved[1, 1, 3] += 1e-9
    assert GaussianPairs(means=moved, covs=same.covs).equal.tolist() == [True, False]
    wider = np.array(same.covs)
    wider[0, 1, 2, 2] += 1e-9
    assert GaussianPairs(means=same.means, covs=wider).equal.tolist() == [False, True]


@pytest.mark.parametrize("cov", [[[1.0, 1.0], [1.0, 1.0]], np.zeros((2, 2)), np.diag([1e8, 0.0])])
@pytest.mark.parametrize("other", [np.zeros((2, 2)), np.eye(2)])
def test_singular_spreads_have_a_cost_at_every_noise(cov, other):
    pairs = GaussianPairs(
        means=np.array([[[0.0, 0.0], [1.0, 0.5]]]), covs=np.array([[cov, other]], dtype=float)
    )
    for noise_std in (1e-12, 1e-6, 1e-3, 1.0, 1e5):
        (cost,) = pairs.divergences(4.0, noise(noise_std))
        assert cost > 0
    assert np.isfinite(cost)


@pytest.mark.soundness
def test_rounded_spreads_never_lower_a_cost_next_to_infinity(rng):
    """The mixed variance is 1e-11 of the spreads, so that their last digit moves it by 1e-4."""
    order = 4.0
    pairs = random_pairs(rng, n_instances=1)
    for u in FiniteProfile.uniform(dim=3, n_directions=20, seed=0).directions:
        means = [
            sum(oracles.exact(a) * oracles.exact(m) for a, m in zip(u, mean, strict=True))
            for mean in pairs.means[0]
        ]
        spreads = [exact_spread(u, cov) for cov in pairs.covs[0]]
        least = (order - 1) * max(spreads) - order * min(spreads)
        if least <= 0:
            continue
        noise_std = math.sqrt(float(least) * (1 + 1e-11))
        noisy = [spread + oracles.exact(noise_std) ** 2 for spread in spreads]
        expected = float(exact_cost(order, list(zip(means, noisy, strict=True))))
        assert pairs.slice_costs(u[None], order, noise(noise_std), "exact")[0, 0] >= expected


@pytest.mark.soundness
@pytest.mark.parametrize("size", [2.0**54, 2.0**60, 2.0**70])
def test_spreads_that_drown_the_noise_hide_no_shift(size):
    """The distributions have no spread across (26, 33), where they lie 5 apart.

    Rounded, they have much.
    """
    across = np.array([33.0, -26.0]) / math.hypot(26, 33)
    cov = size * np.outer([26.0, 33.0], [26.0, 33.0])
    pairs = GaussianPairs(
        means=np.stack([np.zeros(2), 5 * across])[None], covs=np.array([[cov, cov]])
    )
    exact = 4.0 * 5.0**2 / 2 * (1 - 1e-9)
    assert pairs.slice_costs(across[None], 4.0, noise(1.0), "exact")[0, 0] >= exact
    assert pairs.divergences(4.0, noise(1.0))[0] >= exact
    equal = GaussianPairs(means=np.zeros((1, 2, 2)), covs=pairs.covs)
    assert (
        equal.slice_costs(across[None], 4.0, noise(1.0), "exact")[0, 0]
        == equal.divergences(4.0, noise(1.0))[0]
        == 0
    )


@pytest.mark.soundness
def test_large_spreads_hide_no_difference_of_theirs(rng):
    """Beside a spread of 1e12 they differ by a part in 10^3; projected before, by rounding."""
    cov = 2.0**30 * np.outer([26.0, 33.0], [26.0, 33.0]) + np.eye(2)
    across = np.array([33.0, -26.0]) / math.hypot(26, 33)
    for _ in range(40):
        change = rng.integers(-3, 4, size=(2, 2)) * 2.0**-10
        covs = np.stack([cov, cov + change + change.T])
        pairs = GaussianPairs(means=np.zeros((1, 2, 2)), covs=covs[None])
        expected = exact_cost(4.0, [(0, exact_spread(across, one) + 1) for one in covs])
        assert pairs.slice_costs(across[None], 4.0, noise(1.0), "exact")[0, 0] >= expected


@pytest.mark.soundness
@pytest.mark.parametrize("part", [1e-4, 1e-8, 1e-11])
def test_nearly_equal_spreads_hide_no_difference_of_theirs(part, rng):
    """The difference must not be added to a spread, whose last digits it would lose."""
    for _ in range(20):
        roots = rng.normal(size=(2, 3, 3))
        cov = roots[0] @ roots[0].T + np.eye(3)
        pairs = GaussianPairs(
            means=np.zeros((1, 2, 3)),
            covs=np.stack([cov, cov + part * (roots[1] + roots[1].T)])[None],
        )
        unit = rng.normal(size=3) / 2
        expected = exact_cost(4.0, [(0, exact_spread(unit, one) + 1) for one in pairs.covs[0]])
        cost = pairs.slice_costs(unit[None], 4.0, noise(1.0), "exact")[0, 0]
        # Each spread may have been scaled, which rounds it: the cost includes that error.
        assert expected <= cost <= expected * (1 + 1e-6 + 1e-12 / part)


@pytest.mark.parametrize("dim", [2, 9])
def test_a_large_unit_does_not_spoil_the_other_coordinates(dim):
    """A total in dollars beside rates: the spread of one is 1e16 times that of the others."""
    cov = np.diag([1e12, *[1e-4] * (dim - 1)])
    means = np.zeros((1, 2, dim))
    means[0, 1, 1] = 0.01
    pairs = GaussianPairs(means=means, covs=np.stack([cov, cov])[None])
    # 4 * 0.01^2 / (2 * (1e-4 + 0.01^2)) = 1
    assert pairs.slice_costs(np.eye(dim)[1:2], 4.0, noise(0.01), "exact")[0, 0] == pytest.approx(
        1, rel=1e-10
    )
    assert pairs.divergences(4.0, noise(0.01))[0] == pytest.approx(1, rel=1e-10)


def test_noise_whose_square_is_no_number_costs_infinitely_much():
    pairs = on_the_line((0, 0), (1e-160, 0))
    assert pairs.slice_costs(np.array([[1.0]]), 4.0, noise(1e-170), "exact")[0, 0] == math.inf
    assert pairs.divergences(4.0, noise(1e-170))[0] == math.inf


@pytest.mark.parametrize(
    ("pairs", "too_little"),
    [
        (on_the_line((0, 0), (1e-160, 0)), 1e-170),
        (
            GaussianPairs(
                means=np.array([[[0.0, 0.0], [0.0, 1.0]]]), covs=np.ones((1, 2, 2, 2)) * 2
            ),
            1e-9,
        ),
    ],
    ids=["no square", "singular"],
)
def test_noise_that_floats_cannot_tell_from_none_bounds_nothing(pairs, too_little):
    """Points are told apart; with enough noise the same pair has finite parts."""
    shifts, variations = pairs.parts(too_little)
    assert shifts.tolist() == [[math.inf, math.inf]]
    assert variations.tolist() == [1.0]
    shifts, variations = pairs.parts(0.5)
    assert shifts.max() < 3
    assert variations.tolist() == [0.0]


class TestScaling:
    """Scaled distributions differ by what the declared ones differ by, to the last digit."""

    @pytest.mark.soundness
    @pytest.mark.parametrize("scale", [3.0, 7.0, 0.1, 1e-3])
    def test_means_far_from_zero(self, scale):
        """The quotients round to floats that may be a third too close, or too far."""
        distributions = tuple(GaussianDistribution(mean=[1e15 + k], cov=[[1.0]]) for k in (1, 2))
        pairs = GaussianPairs.of([distributions], np.array([scale]))
        shift, variance = Fraction(1) / Fraction(scale), Fraction(1) / Fraction(scale) ** 2
        for order in (2.0, 4.0, 16.0):
            exact = Fraction(order) * shift**2 / (2 * (variance + 1))
            sliced = pairs.slice_costs(np.ones((1, 1)), order, noise(1.0), "exact")[0, 0]
            full = pairs.divergences(order, noise(1.0))[0]
            assert exact <= Fraction(float(sliced)) <= exact * Fraction(1 + 1e-9)
            assert exact <= Fraction(float(full)) * Fraction(1 + 2.0**-38)
            assert Fraction(float(full)) <= exact * Fraction(1 + 1e-9)

    def test_distributions_that_differ_stay_apart(self):
        """In units of 3 both variances are the same float; and a mean of 1e-300 is next to 0."""
        one = np.array([[1.7500000000000007]])
        other = np.nextafter(one, 2.0)
        assert (one / 9 == other / 9).all()
        spreads = (
            GaussianDistribution(mean=[0.0], cov=one),
            GaussianDistribution(mean=[0.0], cov=other),
        )
        shifts = (
            GaussianDistribution(mean=[5e-324], cov=one),
            GaussianDistribution(mean=[0.0], cov=one),
        )
        pairs = GaussianPairs.of([spreads, spreads[::-1], shifts], np.array([3.0]))
        assert not pairs.equal.any()
        assert pairs.covs[0, 0] < pairs.covs[0, 1]
        assert pairs.covs[1, 0] > pairs.covs[1, 1]
        same = (spreads[0], spreads[0])
        assert GaussianPairs.of([same], np.array([3.0])).equal.all()


class TestSquaredRatios:
    @pytest.mark.parametrize(
        ("cov", "shift", "ratio"),
        [
            ([[4.0, 0.0], [0.0, 9.0]], [3.0, 4.0], 25 / 8),  # least variance 4, and noise 4
            ([[5.0, 3.0], [3.0, 5.0]], [1.0, 0.0], 1 / 6),  # eigenvalues 2 and 8
            ([[0.0, 0.0], [0.0, 7.0]], [0.0, 2.0], 1.0),  # none in one direction
        ],
    )
    def test_known_answers(self, cov, shift, ratio):
        pair = tuple(GaussianDistribution(mean=mean, cov=cov) for mean in (shift, [0.0, 0.0]))
        (found,) = GaussianPairs.of([pair], np.ones(2)).squared_ratios(4.0, 2.0)
        assert found == pytest.approx(ratio, rel=1e-11)
        assert found >= ratio

    def test_no_direction_shows_more(self):
        rng = np.random.default_rng(8)
        half = rng.normal(size=(5, 5))
        cov, shift = half @ half.T, rng.normal(size=5)
        pair = tuple(GaussianDistribution(mean=mean, cov=cov) for mean in (shift, np.zeros(5)))
        pairs = GaussianPairs.of([pair], np.ones(5))
        lines = rng.normal(size=(4_000, 5))
        lines /= np.linalg.norm(lines, axis=1, keepdims=True)
        (ratio,) = pairs.squared_ratios(3.0, 0.7)
        seen = (lines @ shift) ** 2 / (((lines @ cov) * lines).sum(axis=1) + 0.49)
        assert (seen <= ratio * (lines @ shift) ** 2 / (shift @ shift)).all()
        assert pairs.slice_costs(lines, 3.0, noise(0.7), "exact").max() <= 1.5 * ratio

    def test_whether_the_spreads_are_equal(self):
        one, other = (GaussianDistribution(mean=[0.0], cov=[[v]]) for v in (1.0, 2.0))
        shifted = GaussianDistribution(mean=[1.0], cov=[[1.0]])
        assert GaussianPairs.of([(one, shifted)], np.ones(1)).have_one_spread
        assert not GaussianPairs.of([(one, shifted), (one, other)], np.ones(1)).have_one_spread


def test_covariances_that_overflow_are_refused():
    wide = GaussianDistribution(mean=[0.0, 0.0], cov=1e300 * np.eye(2))
    shape = Shape.of_covariance(np.eye(2))
    check_refused(
        Refusal(
            lambda: GaussianPairs.of([(wide, wide)], np.full(2, 1e-10), shape),
            ArgumentError,
            "covariances",
        )
    )
