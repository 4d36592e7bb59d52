# SPDX-License-Identifier: Apache-2.0
"""Claims about the whole output from one table of coupled distances."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, norm
from tests.compared import full_of_rows, whole

from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA, ROUNDING_DELTA
from pufferslice.claims import Guarantee
from pufferslice.claims.epsilon_delta import delta_curve
from pufferslice.claims.guess import released_guess
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.tables import MatchingTables

KNOWN = full_of_rows([(2.0, 1), (1.0, 3)])
"""Distances 1 and 2 with masses 3/4 and 1/4."""


def test_known_costs():
    assert KNOWN.divergence(4.0, 2.0) == pytest.approx(1.54882977420058, rel=1e-9)
    assert delta_curve(KNOWN, 2.0)(1.0) == pytest.approx(0.0368563806139969, rel=1e-9)
    assert released_guess(KNOWN, 2.0) == pytest.approx(0.621895359580696, rel=1e-9)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Guarantee.unsliced(order=4, epsilon=1.0), 2.37042026177083),
        (Guarantee.guess(at_most=0.6), 2.45624054039728),
        (Guarantee.epsilon_delta(1.0, 1e-5), 6.81901540148564),
    ],
)
def test_known_noise(target, expected):
    noise_std = target.least_noise(whole(KNOWN))
    assert noise_std == pytest.approx(expected, rel=1e-9)
    assert noise_std >= expected * (1 - 1e-12)
    assert target.spent(whole(KNOWN), noise_std) <= target.bound
    assert target.spent(whole(KNOWN), noise_std * 0.999) > target.bound


def test_the_sampled_noise_is_charged():
    # delta grows by (1 + e^epsilon) tau, the guess by tau.
    tau = KNOWN.implementation_delta
    assert tau == DRAW_DELTA + INTEGER_DELTA
    gaussian = Full(dim=3, differences=pairs_of([[0.0] * 3, [1.0] * 3], np.eye(3), np.eye(3)))
    tau = gaussian.implementation_delta
    assert tau == 3 * (DRAW_DELTA + ROUNDING_DELTA)
    shift = math.sqrt(3) / math.sqrt(1 + 4.0)
    epsilon = 20.0
    exact = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(
        -shift / 2 - epsilon / shift
    )
    assert exact < 1e-20
    charged = delta_curve(gaussian, 2.0)(epsilon)
    assert (1 + math.exp(epsilon)) * tau <= charged <= (1 + math.exp(epsilon)) * tau + 1e-12
    assert released_guess(gaussian, 2.0) >= norm.cdf(shift / 2) + tau


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.integers(1, 9)), min_size=1, max_size=6),
    st.floats(0.3, 5),
    st.floats(0.0, 3),
)
def test_against_mpmath(entries, noise_std, epsilon):
    entries = sorted(dict(entries).items(), reverse=True)
    full = full_of_rows(entries)
    total = sum(n for _, n in entries)
    with mpmath.workdps(30):
        delta = variation = mpmath.mpf(0)
        for r, n in entries:
            u = mpmath.mpf(r) / mpmath.mpf(noise_std)
            step = mpmath.ncdf(u / 2 - epsilon / u) - mpmath.exp(epsilon) * mpmath.ncdf(
                -u / 2 - epsilon / u
            )
            delta += n * step / total
            variation += n * (2 * mpmath.ncdf(u / 2) - 1) / total
    assert delta <= delta_curve(full, noise_std)(epsilon) <= delta * (1 + 1e-7) + 1e-13
    guess = (1 + variation) / 2
    assert guess <= released_guess(full, noise_std) <= guess * (1 + 1e-9)


def test_the_hardest_instance_with_its_best_coupling_counts():
    # Two couplings (slices) of two instances: the first has 5 or 1, the second 2 or 3.
    row = lambda r: (np.array([r]), np.array([1]))  # noqa: E731
    tables = MatchingTables.of_rows([row(5.0), row(2.0), row(1.0), row(3.0)], [1, 1])
    full = Full(dim=1, differences=tables)
    only = full_of_rows([(2.0, 1)])
    for claim in (
        Guarantee.unsliced(order=3, epsilon=1),
        Guarantee.guess(at_most=0.7),
        Guarantee.epsilon_delta(0.5, 1e-3),
    ):
        assert claim.spent(whole(full), 1.5) == pytest.approx(claim.spent(whole(only), 1.5))


def test_missing_mass_is_in_delta_and_in_the_guess():
    full = full_of_rows([(2.0, 1), (1.0, 3)], missing=np.array([0.01]))
    delta, variation = 0.0368563806139969, 0.243790719161392
    assert delta_curve(full, 2.0)(1.0) == pytest.approx(0.01 + 0.99 * delta, rel=1e-9)
    truth = (1.01 + 0.99 * variation) / 2
    assert truth <= released_guess(full, 2.0) <= truth + 0.01 * variation / 2 + 1e-9
    assert full.divergence(4.0, 2.0) == math.inf


def pairs_of(means, first, second):
    distributions = [
        GaussianDistribution(mean=mean, cov=cov)
        for mean, cov in zip(means, (first, second), strict=True)
    ]
    return GaussianPairs.of([tuple(distributions)], np.ones(len(means[0])))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_gaussians_of_equal_spread_are_exact(epsilon):
    full = Full(dim=2, differences=pairs_of([[0.0, 0.0], [1.0, 2.0]], np.eye(2), np.eye(2)))
    shift = math.sqrt(5 / (1 + 1.5**2))
    delta = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(
        -shift / 2 - epsilon / shift
    )
    assert delta <= delta_curve(full, 1.5)(epsilon) <= delta + 1e-9
    assert released_guess(full, 1.5) == pytest.approx(norm.cdf(shift / 2), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_gaussians_of_other_spreads_are_bounded(epsilon):
    full = Full(dim=1, differences=pairs_of([[0.0], [0.5]], np.eye(1), 2 * np.eye(1)))
    x = np.linspace(-40, 40, 400_001)
    p, q = norm.pdf(x, 0, math.sqrt(1 + 1)), norm.pdf(x, 0.5, math.sqrt(2 + 1))
    truth = max(
        np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), x) for a, b in ((p, q), (q, p))
    )
    assert truth <= delta_curve(full, 1.0)(epsilon) <= 6 * truth


def any_spreads(rng):
    factor = rng.normal(size=(2, 2))
    first = factor @ factor.T
    second = first * rng.uniform(0.9, 1.2) + np.diag(rng.uniform(0, 0.2, 2))
    return rng.normal(size=2), first, second


def one_equal_spread(rng):
    """Along one of two axes the spreads are equal; the means may be, too."""
    variances = rng.uniform(0.1, 2, 2) if rng.random() < 0.5 else 1 + rng.uniform(0, 0.1, 2)
    turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    covs = [turn @ np.diag([variance, 0.5]) @ turn.T for variance in variances]
    shift = rng.normal(size=2) * rng.choice([0.0, 0.3, 2.0])
    return shift, *((cov + cov.T) / 2 for cov in covs)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("case", "seed", "slack"),
    [
        *((any_spreads, seed, 0.1) for seed in range(40)),
        *((one_equal_spread, seed, 0.5) for seed in range(30)),
    ],
)
def test_gaussians_in_the_plane_are_never_understated(case, seed, slack):
    rng = np.random.default_rng(seed)
    mean, first, second = case(rng)
    std, epsilon = rng.uniform(0.3, 2), rng.uniform(0, 1.5)
    full = Full(dim=2, differences=pairs_of([[0.0, 0.0], mean], first, second))
    x = np.linspace(-16, 16, 321)
    grid = np.stack(np.meshgrid(x, x), axis=-1)
    area = (x[1] - x[0]) ** 2
    noise = std**2 * np.eye(2)
    p = multivariate_normal([0, 0], first + noise).pdf(grid)
    q = multivariate_normal(mean, second + noise).pdf(grid)
    truth = (1 + np.abs(p - q).sum() * area / 2) / 2
    assert truth <= released_guess(full, std) + 1e-4 <= truth + slack
    for a, b in ((p, q), (q, p)):
        delta = np.maximum(a - math.exp(epsilon) * b, 0).sum() * area
        assert delta <= delta_curve(full, std)(epsilon) + 1e-4


def test_epsilon_is_the_least_at_delta():
    claim = Guarantee.epsilon_delta(1.0, 1e-3)
    epsilon = claim.spent(whole(KNOWN), 3.0)
    assert delta_curve(KNOWN, 3.0)(epsilon) <= 1e-3
    assert delta_curve(KNOWN, 3.0)(epsilon * 0.999) > 1e-3


def test_equal_distributions_need_no_noise():
    full = full_of_rows([(0.0, 4)], equal=[True])
    for target in (Guarantee.guess(at_most=0.6), Guarantee.epsilon_delta(1.0, 1e-5)):
        assert target.least_noise(whole(full)) == 0.0


def test_nothing_is_known_without_a_range():
    full = Full(dim=2, differences=None)
    assert delta_curve(full, 1.0)(1.0) == 1.0
    assert released_guess(full, 1.0) == 1.0
