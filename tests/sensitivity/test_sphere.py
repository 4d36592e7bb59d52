# SPDX-License-Identifier: Apache-2.0
"""The whole sphere in closed form, against mpmath, drawn directions and true divergences."""

import math

import attrs
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from tests.compared import full_of_rows, whole
from tests.refusals import Refusal, check_refused

from pufferslice import FiniteDistribution, FiniteProfile, Guarantee, Scenario, certify_release
from pufferslice.errors import ArgumentError
from pufferslice.queries import summary
from pufferslice.scenario.distributions import WEIGHT_QUANTA, GaussianDistribution
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.renyi import aggregate, gaussian_envelope
from pufferslice.sensitivity.sensitivity import Full
from pufferslice.sensitivity.sphere import log_sphere_moment

AVERAGE = Guarantee.average(order=4, epsilon=1.0)
JOINT = Guarantee.joint(order=4, epsilon=1.0)


def log_moment(x, dim):
    """The logarithm of 1F1(1/2; dim/2; x) in 50 digits."""
    with mpmath.workdps(50):
        return mpmath.log(mpmath.hyp1f1(mpmath.mpf(1) / 2, mpmath.mpf(dim) / 2, mpmath.mpf(x)))


@pytest.mark.parametrize(
    ("target", "variance"), [(AVERAGE, 2.0), (JOINT, 5.38628260122933)], ids=["average", "joint"]
)
def test_known_answers(target, variance):
    """Two points at distance 3 in nine dimensions; unsliced they would need 18."""
    full = full_of_rows([(3.0, 1)], dim=9)
    noise_std = target.least_noise(whole(full))
    assert noise_std**2 == pytest.approx(variance, rel=1e-9)
    assert noise_std**2 >= variance * (1 - 1e-13)
    assert (
        target.spent(whole(full), noise_std) <= 1.0 < target.spent(whole(full), noise_std * 0.999)
    )


@given(
    dim=st.integers(1, 400),
    x=st.one_of(st.floats(1e-12, 1e-3), st.floats(1e-3, 2_000.0)),
)
def test_the_moment_is_rounded_up_and_close(dim, x):
    truth = log_moment(x, dim)
    bound = log_sphere_moment(x, dim)
    assert mpmath.mpf(bound) >= truth * (1 - mpmath.mpf(10) ** -15)
    # What the series leaves out is bounded by its last term, of a moment next to 1.
    assert bound <= float(truth) * (1 + 2e-8)
    assert bound <= x


@pytest.mark.parametrize("claim", [AVERAGE, JOINT], ids=["average", "joint"])
def test_the_grid_is_charged(claim):
    """Points so near that the grid of the release counts: 3 / 2^44 is added to 1e-6."""
    distance = 1e-6 + 3 / 2**44
    cost = claim.spent(whole(full_of_rows([(1e-6, 1)], dim=9)), 1.0)
    assert cost == pytest.approx(2 * distance**2 / 9, rel=1e-9)


def test_long_series_are_bounded_by_the_whole_output():
    assert log_sphere_moment(1e7, 5) == 1e7
    assert log_sphere_moment(9_000.0, 5) == pytest.approx(float(log_moment(9_000, 5)), rel=1e-9)


@pytest.mark.parametrize("claim", [AVERAGE, JOINT], ids=["average", "joint"])
def test_it_is_the_limit_of_many_directions(claim):
    """100 000 uniform slices; the standard error of either cost is about 0.3 percent."""
    dim, distance, noise_std = 5, 2.0, 1.5
    profile = FiniteProfile.uniform(dim=dim, n_directions=100_000, seed=3)
    shifts = distance * np.abs(profile.directions[:, 0])
    costs = gaussian_envelope(claim.order, shifts, noise_std)
    drawn = float(aggregate(claim.notion, claim.order, costs, profile.weights))
    cost = claim.spent(whole(full_of_rows([(distance, 1)], dim=dim)), noise_std)
    assert cost == pytest.approx(drawn, rel=0.02)


@given(
    dim=st.integers(2, 60),
    order=st.floats(1.05, 40),
    noise_std=st.floats(0.3, 30),
    rows=st.lists(st.floats(0.01, 20), min_size=1, max_size=4),
)
def test_average_joint_unsliced_ascend_and_noise_helps(dim, order, noise_std, rows):
    full = full_of_rows(*([(r, 1)] for r in rows), dim=dim)
    claims = [maker(order=order, epsilon=1.0) for maker in (Guarantee.average, Guarantee.joint)]
    average, joint = (claim.spent(whole(full), noise_std) for claim in claims)
    assert average <= joint * (1 + 1e-9)
    assert joint <= full.divergence(order, noise_std) * (1 + 1e-9)
    for claim, cost in zip(claims, (average, joint), strict=True):
        assert claim.spent(whole(full), noise_std * 1.5) < cost


def slice_divergence(order, noise_std, first, second):
    """D_alpha of two mixtures of equal weight on the line, by quadrature."""
    std = noise_std
    low = min(*first, *second) - 12 * order * std
    high = max(*first, *second) + 12 * order * std

    def integrand(y):
        p, q = (
            np.logaddexp.reduce([stats.norm.logpdf(y, m, std) for m in side]) - math.log(len(side))
            for side in (first, second)
        )
        return math.exp(order * p + (1 - order) * q)

    moment, _ = integrate.quad(integrand, low, high, limit=400, points=sorted({*first, *second}))
    return math.log(moment) / (order - 1)


@pytest.mark.soundness
class TestSeveralValues:
    """Two values each in the plane, coupled one to one; differences at a right angle."""

    ORDER, STD = 2.0, 1.0
    FIRST = np.array([[0.0, 0.0], [40.0, 60.0]])
    SECOND = FIRST + np.array([[1.5, 0.0], [0.0, 1.5]])

    def divergences(self):
        angles = (np.arange(24) + 0.37) * math.pi / 24
        rows = np.column_stack([np.cos(angles), np.sin(angles)])
        return np.array(
            [slice_divergence(self.ORDER, self.STD, self.FIRST @ u, self.SECOND @ u) for u in rows]
        )

    def test_the_joint_claim_holds_and_an_average_from_distances_would_not(self):
        full = full_of_rows([(1.5, 2)], dim=2)
        claim = Guarantee.joint(order=self.ORDER, epsilon=1.0)
        found = self.divergences()
        weights = np.full(len(found), 1 / len(found))
        joint = float(aggregate("joint", self.ORDER, found, weights))
        bound = claim.spent(whole(full), self.STD)
        assert joint <= bound * (1 + 1e-3)  # 24 angles instead of all
        assert bound == pytest.approx(joint, rel=0.02)
        # Half of 2 * 1.5^2 / 2 would be the answer for points; the average is above it.
        formula = self.ORDER * 1.5**2 / (2 * self.STD**2 * 2)
        assert found @ weights > formula * 1.05
        check_refused(
            Refusal(
                lambda: Guarantee.average(order=self.ORDER, epsilon=1.0).spent(
                    whole(full), self.STD
                ),
                ArgumentError,
                "average",
            )
        )

    def test_masses_count(self):
        """Mass 1/4 at distance 2, 3/4 at distance 1, noise 1, order 2: ln of the mean of 1F1."""
        full = full_of_rows([(2.0, 1), (1.0, 3)], dim=3)
        moment = sum(m * math.exp(log_moment(r * r, 3)) for r, m in ((2.0, 0.25), (1.0, 0.75)))
        cost = Guarantee.joint(order=2, epsilon=1.0).spent(whole(full), 1.0)
        assert cost == pytest.approx(math.log(moment), rel=1e-9)
        assert cost >= math.log(moment) * (1 - 1e-14)

    def test_large_moments_stay_in_logarithms(self):
        full = full_of_rows([(60.0, 1), (1.0, 3)], dim=3)
        log = float(log_moment(3_600, 3)) + math.log(0.25)
        cost = Guarantee.joint(order=2, epsilon=1.0).spent(whole(full), 1.0)
        assert cost == pytest.approx(log, rel=1e-9)


def test_a_certificate_of_isotropic_noise_says_what_the_sphere_costs():
    names = [f"x{place}" for place in range(9)]
    worlds = {secret: FiniteDistribution.uniform([[x] * 9]) for secret, x in (("a", 0), ("b", 1))}
    scenario = Scenario.from_worlds(worlds, query=summary(mean=names))
    certificate = certify_release(
        scenario, Guarantee.unsliced(order=4, epsilon=9.0), shape="isotropic"
    )
    cost = AVERAGE.spent(whole(certificate.evidence.full), certificate.noise_std)
    assert cost == pytest.approx(1.0, rel=1e-6)


def pairs_of(*shifts, cov, **masses):
    """Pairs of Gaussians with one covariance, the first of each this far from 0."""
    center = np.zeros(len(cov))
    pairs = [
        (GaussianDistribution(mean=s, cov=cov), GaussianDistribution(mean=center, cov=cov))
        for s in shifts
    ]
    arrays = {name: np.array(values) for name, values in masses.items()}
    return attrs.evolve(GaussianPairs.of(pairs, np.ones(len(cov))), **arrays)


@pytest.mark.parametrize(
    ("claim", "cost"), [(AVERAGE, 2 * 9 / 9 / 3.25), (JOINT, None)], ids=["average", "joint"]
)
def test_gaussians_cost_what_points_cost_with_their_spread_as_noise(claim, cost):
    """Distance 3 in nine dimensions, variance 1 of the prior and 1.5^2 of the noise."""
    far = [3.0] + [0.0] * 8
    full = Full(dim=9, differences=pairs_of(far, [0.0] * 9, cov=np.eye(9)))
    points = full_of_rows([(3.0, 1)], dim=9)
    found = claim.spent(whole(full), 1.5)
    assert found == pytest.approx(claim.spent(whole(points), math.sqrt(3.25)), rel=1e-9)
    assert cost is None or found == pytest.approx(cost, rel=1e-9)
    assert claim.sphere_costs(whole(full), 1.5)[1] == 0.0
    assert claim.least_noise(whole(full)) ** 2 == pytest.approx(
        claim.least_noise(whole(points)) ** 2 - 1, rel=1e-9
    )


def test_pieces_of_mixtures_count_with_their_masses():
    """Mass 1/4 at distance 2, the rest at 0: order 2, variance of prior and noise 1 in all."""
    quarter = WEIGHT_QUANTA // 4
    masses = {"owners": [0, 0], "counts": [quarter, WEIGHT_QUANTA - quarter]}
    pairs = pairs_of([2.0, 0.0, 0.0], [0.0, 0.0, 0.0], cov=0.36 * np.eye(3), **masses)
    claim = Guarantee.joint(order=2, epsilon=1.0)
    moment = 0.25 * math.exp(log_moment(4, 3)) + 0.75
    cost = claim.spent(whole(Full(dim=3, differences=pairs)), 0.8)
    assert cost == pytest.approx(math.log(moment), rel=1e-9)
    check_refused(
        Refusal(
            lambda: AVERAGE.spent(whole(Full(dim=3, differences=pairs)), 0.8),
            ArgumentError,
            "average",
        )
    )


def test_the_whole_output_may_cost_less_than_the_least_variance_says():
    """The difference lies where the prior varies, and the bound looks where it does not."""
    cov = np.diag([1e6, 0.0, 0.0])
    full = Full(dim=3, differences=pairs_of([10.0, 0.0, 0.0], cov=cov))
    assert JOINT.spent(whole(full), 0.1) == pytest.approx(full.divergence(4, 0.1), rel=1e-9)


def test_equal_distributions_cost_nothing():
    full = full_of_rows([(0.0, 1)], dim=3, equal=[True])
    assert JOINT.spent(whole(full), 1.0) == 0.0
    assert JOINT.least_noise(whole(full)) == 0.0
    mixed = full_of_rows([(0.0, 1)], [(3.0, 1)], dim=9, equal=[True, False])
    assert AVERAGE.least_noise(whole(mixed)) ** 2 == pytest.approx(2.0)


def test_one_dimension_has_one_slice():
    full = full_of_rows([(2.0, 1)], dim=1)
    assert JOINT.spent(whole(full), 1.5) == pytest.approx(full.divergence(4, 1.5), rel=1e-9)
    assert AVERAGE.spent(whole(full), 1.5) == pytest.approx(full.divergence(4, 1.5), rel=1e-9)
