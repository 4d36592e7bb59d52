# SPDX-License-Identifier: Apache-2.0
"""Certificates along the whole sphere: known answers, slices by quadrature, refusals."""

import math

import mpmath
import numpy as np
import pytest
from tests.certificate.conftest import bell, changed, stating, worlds

from pufferslice import (
    Certificate,
    FiniteProfile,
    Guarantee,
    Method,
    certify_release,
    plan_samples,
    spent,
    verify,
)
from pufferslice.certificate.sweep import pair_costs, slice_profile, sweep_points
from pufferslice.errors import ArgumentError, CertificateError, ScenarioError
from pufferslice.queries import Box, summary
from pufferslice.scenario.distributions import GaussianMixture, SampledDistribution
from pufferslice.sensitivity import WholeSphere

AVERAGE = Guarantee.average(order=4, epsilon=1.0)
JOINT = Guarantee.joint(order=4, epsilon=1.0)
NOTIONS = [AVERAGE, JOINT]


def points(dim, distance):
    """Two point masses, this far apart along the first coordinate."""
    return worlds(a=np.zeros((1, dim)), b=distance * np.eye(dim)[:1])


def gaussians(cov, mean):
    return worlds(a=bell(np.zeros(len(cov)), cov), b=bell(mean, cov))


def certified(scenario, claim, **options):
    return certify_release(scenario, claim.along(WholeSphere(dim=scenario.dim)), **options)


@pytest.mark.parametrize(
    ("claim", "variance"), [(AVERAGE, 2.0), (JOINT, 5.38628260122933)], ids=["average", "joint"]
)
def test_points_have_the_closed_form(claim, variance):
    """At distance 3 in nine dimensions; no failure probability, no range."""
    certificate = certified(points(9, 3.0), claim)
    assert certificate.noise_std**2 == pytest.approx(variance, rel=1e-9)
    assert certificate.statement.failure_probability == 0
    assert certificate.unsliced_epsilon == pytest.approx(18 / variance, rel=1e-9)
    assert (
        "along the whole sphere of 9 dimensions, in closed form, under the declared priors"
        in str(certificate)
    )


@pytest.mark.parametrize("claim", NOTIONS, ids=["average", "joint"])
def test_it_is_the_limit_of_drawn_slices(claim):
    """As a finite profile of 20 000 slices, up to about 1 % of the noise; either side."""
    noise_std = certified(points(3, 2.0), claim).noise_std
    drawn = FiniteProfile.uniform(dim=3, n_directions=20_000, seed=5)
    assert noise_std == pytest.approx(
        certify_release(points(3, 2.0), claim.along(drawn)).noise_std, rel=0.01
    )


@pytest.mark.parametrize("claim", NOTIONS, ids=["average", "joint"])
def test_a_gaussian_alike_in_every_direction_counts_as_noise(claim):
    certificate = certified(gaussians(np.eye(9) * 0.5, [3.0] + [0.0] * 8), claim)
    alone = certified(points(9, 3.0), claim)
    assert certificate.noise_std**2 == pytest.approx(alone.noise_std**2 - 0.5, rel=1e-8)


def sphere_by_quadrature(cov, shift, noise_std, claim):
    """The exact divergence along every direction of the plane, integrated by mpmath."""

    def divergence(angle):
        u = np.array([math.cos(angle), math.sin(angle)])
        return claim.order * (u @ shift) ** 2 / (2 * (u @ cov @ u + noise_std**2))

    if claim.notion == "average":
        return mpmath.quad(divergence, mpmath.linspace(0, math.pi, 9)) / math.pi
    a = claim.order - 1
    moment = mpmath.quad(
        lambda angle: mpmath.exp(a * divergence(float(angle))), mpmath.linspace(0, math.pi, 9)
    )
    return mpmath.log(moment / math.pi) / a


@pytest.mark.soundness
@pytest.mark.parametrize("claim", NOTIONS, ids=["average", "joint"])
@pytest.mark.parametrize("spread", [0.0, 0.3, 4.0])
def test_gaussians_of_any_shape_are_bounded(claim, spread):
    """Equal to the integral over the circle where the covariance is round, else above it."""
    cov, shift = np.array([[0.5, 0.0], [0.0, 0.5 + spread]]), np.array([1.0, 1.5])
    certificate = certified(gaussians(cov, shift), claim)
    true = float(sphere_by_quadrature(cov, shift, certificate.noise_std, claim))
    assert true <= 1.0
    assert true == pytest.approx(1.0, rel=1e-8) if spread == 0 else true < 0.97


@pytest.mark.soundness
def test_mixtures_are_bounded_jointly():
    """Against slices of a fine circle, each by the divergence of coupled components."""
    one, two, far = (bell(mean, np.eye(2)) for mean in ([0.0, 0.0], [1.0, 0.0], [1.0, 2.0]))
    mixed = worlds(
        a=GaussianMixture.weighted([one, two], [0.5, 0.5]),
        b=GaussianMixture.weighted([one, far], [0.5, 0.5]),
    )
    certificate = certified(mixed, JOINT)
    angles = (np.arange(2_000) + 0.5) * math.pi / 2_000
    circle = FiniteProfile.of(np.column_stack([np.cos(angles), np.sin(angles)]))
    along = certify_release(mixed, JOINT.along(circle), noise_std=certificate.noise_std)
    assert along.spent <= certificate.spent * (1 + 1e-6)
    assert along.spent == pytest.approx(certificate.spent, rel=1e-3)
    with pytest.raises(ArgumentError, match="one Gaussian"):
        certified(mixed, AVERAGE)


@pytest.mark.soundness
@pytest.mark.parametrize("seed", range(6))
def test_values_of_any_kind_are_bounded_jointly(seed):
    """A finite distribution: no finite profile of many slices costs more."""
    rng = np.random.default_rng(seed)
    scenario = worlds(a=rng.normal(size=(5, 3)), b=rng.normal(size=(7, 3)))
    certificate = certified(scenario, JOINT)
    many = FiniteProfile.uniform(dim=3, n_directions=4_000, seed=seed)
    claim = Guarantee.joint(order=4, epsilon=2.0, profile=many)
    drawn = certify_release(scenario, claim, noise_std=certificate.noise_std)
    assert drawn.spent < 1.02


def test_samples_are_bounded_by_the_range_alone():
    drawn = np.random.default_rng(2).uniform(-1, 1, size=(2, 50, 2))
    clipped = summary(mean=["x0", "x1"]).with_range(Box([-1, -1], [1, 1]))
    a, b = (SampledDistribution(outputs=outputs) for outputs in drawn)
    sampled = worlds(a=a, b=b, query=clipped)
    certificate = certified(sampled, JOINT)
    at_ends = points(2, math.sqrt(8))
    assert certificate.noise_std == pytest.approx(certified(at_ends, JOINT).noise_std, rel=1e-9)
    assert verify(certificate, scenario=sampled).holds
    with pytest.raises(ArgumentError, match="SampledSphere"):
        certified(sampled, AVERAGE)
    with pytest.raises(ScenarioError, match="public range"):
        certified(worlds(a=a, b=b), JOINT)


SEVERAL = worlds(a=[[0.0, 0.0], [0.0, 1.0]], b=[[1.0, 0.0]])
WIDE = worlds(a=bell([0.0, 0.0], np.eye(2)), b=bell([1.0, 0.0], 2 * np.eye(2)))
ROUND = gaussians(np.diag([0.5, 2.0]), [1.0, 1.0])


@pytest.mark.parametrize("claim", NOTIONS, ids=["average", "joint"])
@pytest.mark.parametrize("case", [points(4, 2.0), ROUND], ids=["points", "gaussians"])
def test_it_is_verified_from_data_and_proved(case, claim):
    pytest.importorskip("flint", reason="python-flint is not installed")
    result = verify(certified(case, claim), scenario=case, rigorous=True)
    assert result.holds, str(result)
    assert result.proof.outcome == "proved"


@pytest.mark.parametrize("case", [points(4, 2.0), ROUND], ids=["points", "gaussians"])
def test_less_noise_is_refuted(case):
    pytest.importorskip("flint", reason="python-flint is not installed")
    from pufferslice.certificate.rigorous import prove

    certificate = certified(case, JOINT)
    less = stating(certificate, ("noise", "std"), certificate.noise_std * 0.999)
    assert not verify(less).holds
    outcome = prove(less).findings[0].outcome
    assert outcome == ("refuted" if case.prior_kind == "empirical" else "not covered")


def test_an_average_of_several_values_is_not_proved_from_distances():
    pytest.importorskip("flint", reason="python-flint is not installed")
    from pufferslice.certificate.rigorous import prove

    average = stating(certified(SEVERAL, JOINT), ("guarantee", "notion"), "average")
    assert prove(average).findings[0].outcome == "not covered"
    assert not verify(average).holds


def test_another_sphere_is_refuted():
    certificate = certified(points(4, 2.0), JOINT)
    for key, value in (("dim", 3), ("digest", "0" * 64)):
        assert not verify(stating(certificate, ("profile", key), value)).holds
    sliced = certify_release(points(4, 2.0), JOINT.along(FiniteProfile.axes(dim=4)))
    sphere = {"profile": certificate.statement.profile, "method": None}
    result = verify(changed(sliced, lambda s: s.update(sphere)))
    assert any("profile" in problem for problem in result.problems)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": {"rule": "tight", "envelope": "transport"}}, "has no method"),
        ({"failure_probability": 0.1}, "with certainty"),
    ],
)
def test_statements_that_cannot_be(change, words):
    certificate = certified(points(4, 2.0), JOINT)
    statement = {**certificate.statement.to_json(), **change}
    with pytest.raises(CertificateError, match=words):
        Certificate.from_json({**certificate.to_json(), "statement": statement})


def test_what_if_spent_and_release_follow():
    case = points(4, 2.0)
    certificate = certified(case, AVERAGE)
    half = spent(certificate, noise_std=2 * certificate.noise_std)
    assert half.epsilon == pytest.approx(0.25, rel=1e-6)
    assert spent(certificate, notion="joint").epsilon > 1
    assert spent(certificate, notion="unsliced").epsilon == pytest.approx(4.0, rel=1e-9)
    (cost,) = pair_costs(certificate)
    assert cost.sliced_cost == pytest.approx(1.0, rel=1e-9)
    assert slice_profile(certificate) is None
    points_of_sweep = sweep_points(certificate, [0.25, 1.0])
    assert points_of_sweep[0].noise_std == pytest.approx(2 * certificate.noise_std, rel=1e-9)
    assert points_of_sweep[0].closed_form_std is None


def test_views_are_along_the_sphere():
    average, joint = (certified(points(4, 2.0), claim, deltas=[1e-3]) for claim in NOTIONS)
    for certificate, scope in ((average, "sliced average"), (joint, "sliced joint")):
        epsilons = {
            view.rule: view.epsilon for view in certificate.statement.views if view.scope == scope
        }
        assert epsilons["order_grid"] <= epsilons["improved"] <= epsilons["paper"]
    # Points on average: cost 1/4 of an order at every order, so the best order is known.
    found = next(view for view in average.statement.views if view.rule == "order_grid")
    best = min(
        a / 4 + max(0, math.log1p(-1 / a) - (math.log(1e-3) + math.log(a)) / (a - 1))
        for a in np.linspace(1.01, 60, 6_000)
    )
    assert found.epsilon == pytest.approx(best, rel=0.02)
    assert found.epsilon >= best * (1 - 1e-6)


REFUSED = {
    "unequal covariances": (lambda: certified(WIDE, JOINT), "same covariance"),
    "average of several values": (lambda: certified(SEVERAL, AVERAGE), "SampledSphere"),
    "a delta": (
        lambda: certified(points(2, 1.0), Guarantee.joint(epsilon=1.0, delta=0.1)),
        "FiniteProfile",
    ),
    "a method": (
        lambda: certified(points(2, 1.0), JOINT, method=Method(rule="tight", envelope="transport")),
        "has a closed form",
    ),
    "a shape": (lambda: certified(points(2, 1.0), JOINT, shape="fitted"), "isotropic"),
    "a failure probability": (
        lambda: certified(points(2, 1.0), JOINT, failure_probability=0.1),
        "nothing can fail",
    ),
    "another dimension": (
        lambda: certify_release(points(2, 1.0), JOINT.along(WholeSphere(dim=3))),
        "dimension 3",
    ),
    "the line": (lambda: WholeSphere(dim=1), "the line itself"),
    "no dimension": (lambda: WholeSphere(dim=0), "dim"),
    "planned samples": (
        lambda: plan_samples(
            points(2, 1.0).with_sampled_priors(),
            JOINT.along(WholeSphere(dim=2)),
            noise_std=1.0,
            failure_probability=0.1,
        ),
        "SampledSphere",
    ),
    "a notion of another certificate": (
        lambda: spent(certified(SEVERAL, JOINT), notion="average"),
        "single value",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    ask, words = REFUSED[case]
    with pytest.raises(ArgumentError, match=words):
        ask()


def test_the_digest_is_of_the_dimension():
    assert WholeSphere(dim=3).digest() == WholeSphere(dim=3).digest()
    assert WholeSphere(dim=3).digest() != WholeSphere(dim=4).digest()
