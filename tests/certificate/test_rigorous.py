# SPDX-License-Identifier: Apache-2.0
import copy
import math
import sys

import attrs
import mpmath
import numpy as np
import pytest
from tests.certificate.conftest import AVERAGE, CLOSED_FORM, KINDS, PLAN, SPHERE, WORST_GAP

from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
from pufferslice.calibration.guessing import total_variation_bound
from pufferslice.calibration.noise import DRAW_DELTA, SIGMA_INT
from pufferslice.calibration.unsliced import INTEGER_DELTA, ROUNDING_DELTA
from pufferslice.certificate import Certificate, certify_release, certify_training, verify
from pufferslice.errors import MissingExtraError
from pufferslice.queries import summary
from pufferslice.scenario.distributions import (
    FiniteDistribution,
    GaussianDistribution,
    GaussianMixture,
)
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile

flint = pytest.importorskip("flint", reason="python-flint is not installed")

from pufferslice.certificate.rigorous import _least_divergence, prove  # noqa: E402

JOINT = Guarantee.joint(order=4, epsilon=1.0)
UNSLICED = Guarantee.unsliced(order=3, epsilon=2.0)
WHOLE = (UNSLICED, Guarantee.epsilon_delta(1.0, 1e-5), Guarantee.guess(at_most=0.6))
TINY = 2.0**-44
"""Far less than `verify` can see, far more than the rounding of evidence of Gaussians."""


def edited(certificate, change):
    statement = copy.deepcopy(dict(certificate.statement))
    change(statement)
    return Certificate(statement=statement, evidence=certificate.evidence)


def worlds(**distributions):
    dim = distributions["a"].dim
    query = summary(mean=["pay", "age"][:dim])
    return Scenario.from_worlds(distributions, query=query, source="public_model")


@pytest.fixture(scope="module")
def atoms():
    """Three distributions of a few atoms, in two coordinates."""
    rng = np.random.default_rng(5)
    return worlds(
        a=FiniteDistribution.uniform(rng.normal(size=(5, 2))),
        b=FiniteDistribution.uniform(rng.normal(size=(3, 2)) + 1),
        c=FiniteDistribution.uniform(rng.normal(size=(4, 2)) * 2),
    )


@pytest.fixture(scope="module")
def mixtures():
    def bell(mean, cov):
        return GaussianDistribution(mean=mean, cov=cov)

    first = bell([0.0, 0.0], [[1.0, 0.2], [0.2, 2.0]])
    second = bell([1.0, 0.5], [[1.5, 0.0], [0.0, 1.0]])
    third = bell([1.0, 1.5], [[1.0, 0.0], [0.0, 1.0]])
    return worlds(
        a=GaussianMixture.weighted([first, second], [0.75, 0.25]),
        b=GaussianMixture.weighted([first, third], [0.5, 0.5]),
    )


def outcomes(certificate):
    return [finding.outcome for finding in prove(certificate).findings]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_certificate_is_proved(certificates, kind):
    result = verify(certificates[kind], rigorous=True)
    assert result.holds
    assert result.proof.outcome == "proved"
    assert "PROVED in ball arithmetic" in str(result)
    assert len(result.proof.findings) == (1 if kind == "equal" else 3)


@pytest.mark.parametrize("claim", WHOLE, ids=str)
@pytest.mark.parametrize("prior", ["atoms", "mixtures", "gaussian", "sampled"])
def test_claims_about_the_whole_output_are_proved(request, prior, claim):
    certificate = certify_release(request.getfixturevalue(prior), claim, deltas=())
    assert verify(certificate, rigorous=True).proof.outcome == "proved"


@pytest.mark.parametrize(
    ("prior", "claim", "options"),
    [
        ("atoms", JOINT, {"method": CLOSED_FORM}),
        ("atoms", JOINT, {"method": WORST_GAP}),
        ("mixtures", AVERAGE, {}),
        ("atoms", ApproximateGuarantee.average(epsilon=1.0, delta=1e-3), {}),
        ("atoms", ApproximateGuarantee.average(epsilon=1.0, delta=1e-3), {"method": WORST_GAP}),
        ("atoms", ApproximateGuarantee.joint(epsilon=1.0, delta=1e-3), {}),
        ("sampled", ApproximateGuarantee.average(epsilon=1.0, delta=0.2), {"gamma": 0.1}),
        ("records", JOINT.along(SPHERE), {"gamma": 0.1}),
        ("records", JOINT.along(SPHERE), {"gamma": 0.1, "method": CLOSED_FORM}),
    ],
)
def test_sliced_claims_are_proved(request, profile, prior, claim, options):
    claim = claim if claim.profile is not None else claim.along(profile)
    certificate = certify_release(
        request.getfixturevalue(prior), claim, deltas=(), method=options.get("method"),
        failure_probability=options.get("gamma"),
    )  # fmt: skip
    assert outcomes(certificate)[0] == "proved"
    lower = claim.epsilon * (1 - 2.0**-30)
    tighter = edited(certificate, lambda s: s["guarantee"].update(epsilon=lower))
    assert outcomes(tighter)[0] == "refuted"


def test_a_delta_too_small_for_floats_is_proved(atoms, profile):
    """There the noise comes from Rényi moments, and the direct formula needs less."""
    claim = ApproximateGuarantee.joint(epsilon=1.0, delta=1e-15).along(profile)
    assert outcomes(certify_release(atoms, claim, deltas=()))[0] == "proved"


def test_less_noise_than_verify_can_see_is_refuted(atoms, profile):
    """Directions are a little short of 1, so the noise along them is less than the stated one."""
    short = FiniteProfile.of(profile.directions * (1 - 9e-13))
    certificate = certify_release(atoms, AVERAGE.along(short), method=WORST_GAP)
    std = certificate.statement["noise"]["std"]
    less = edited(certificate, lambda s: s["noise"].update(std=std * (1 - 3.2e-12)))
    assert verify(certificate, rigorous=True).holds
    assert verify(less).holds
    result = verify(less, rigorous=True)
    assert not result.holds
    assert result.proof.outcome == "refuted"
    assert "REFUTED" in str(result)
    assert "exceeded by" in str(result)
    assert "VERIFIED" not in str(result)


@pytest.mark.parametrize("field", ["epsilon", "guess"])
def test_a_lower_bound_than_verify_can_see_is_refuted(certificates, field):
    certificate = certificates["records"]
    stated = certificate.statement["unsliced"][field]
    lower = edited(certificate, lambda s: s["unsliced"].update({field: stated * (1 - 1e-10)}))
    assert verify(lower).holds
    assert not verify(lower, rigorous=True).holds
    assert prove(lower).outcome == "refuted"


def distances(tables, dim, noise_std):
    """For each instance and coupling, (mass, distance in standard deviations) with mpmath."""
    margin = mpmath.sqrt(dim) * noise_std / SIGMA_INT
    longer = 1 + (dim + 8) * mpmath.mpf(2) ** -53
    for instance in range(tables.n_instances):
        rows = []
        for along in range(tables.n_slices):
            row = along * tables.n_instances + instance
            entries = range(tables.starts[row], tables.starts[row + 1])
            total = int(tables.totals[instance])
            rows.append([
                (mpmath.mpf(int(tables.counts[i])) / total,
                 (mpmath.mpf(float(tables.gaps[i])) + margin) / noise_std)
                for i in entries
            ])  # fmt: skip
        yield longer, rows


def delta_between(ratio, epsilon):
    high = mpmath.ncdf(ratio / 2 - epsilon / ratio)
    return high - mpmath.exp(epsilon) * mpmath.ncdf(-ratio / 2 - epsilon / ratio)


def with_unsliced(certificate, **numbers):
    return edited(certificate, lambda s: s["unsliced"].update(numbers))


def test_agrees_with_mpmath_to_the_last_digit(atoms):
    certificate = certify_release(atoms, UNSLICED, deltas=())
    tables, std = certificate.evidence.full.differences, certificate.statement["noise"]["std"]
    with mpmath.workdps(60):
        cost = variation = mpmath.mpf(0)
        for longer, rows in distances(tables, 2, mpmath.mpf(std)):
            moments = [
                mpmath.fsum(mass * mpmath.exp(3 * longer * r**2) for mass, r in row) for row in rows
            ]
            cost = max(cost, mpmath.log(min(moments)) / 2)
            apart = [
                mpmath.fsum(mass * delta_between(longer * r, 0) for mass, r in row) for row in rows
            ]
            variation = max(variation, min(apart))
        guess = (1 + variation + 4 * (mpmath.mpf(DRAW_DELTA) + mpmath.mpf(INTEGER_DELTA))) / 2
        for at, (name, exact) in enumerate({"epsilon": cost, "guess": guess}.items(), start=1):
            near = float(exact)
            above = near if near >= exact else math.nextafter(near, math.inf)
            below = math.nextafter(above, 0)
            assert outcomes(with_unsliced(certificate, **{name: above}))[at] == "proved"
            assert outcomes(with_unsliced(certificate, **{name: below}))[at] == "refuted"


def test_gaussians_agree_with_mpmath(gaussian):
    """The closed form with determinants; of equal covariances also the total variation."""
    certificate = certify_release(gaussian, UNSLICED, shape="isotropic", deltas=())
    pairs, std = certificate.evidence.full.differences, certificate.statement["noise"]["std"]
    with mpmath.workdps(60):
        noise, worst = mpmath.mpf(std) ** 2 * mpmath.eye(2), mpmath.mpf(0)
        for means, covs in zip(pairs.means, pairs.covs, strict=True):
            shift = mpmath.matrix((means[0] - means[1]).tolist())
            both = [mpmath.matrix(cov.tolist()) + noise for cov in covs]
            for first, second in (both, both[::-1]):
                mixed = 3 * second - 2 * first
                ratio = mpmath.det(mixed) * mpmath.det(first) ** 2 / mpmath.det(second) ** 3
                square = (shift.T * mpmath.inverse(mixed) * shift)[0]
                worst = max(worst, 3 * square / 2 - mpmath.log(ratio) / 4)
        exact = float(worst)
    assert outcomes(with_unsliced(certificate, epsilon=exact * (1 + TINY)))[1] == "proved"
    assert outcomes(with_unsliced(certificate, epsilon=exact * (1 - TINY)))[1] == "refuted"
    assert outcomes(with_unsliced(certificate, epsilon=exact))[1] == "not covered"
    assert not attrs.evolve(verify(certificate), proof=prove(edited(
        certificate, lambda s: s["unsliced"].update(epsilon=exact)
    ))).holds  # fmt: skip


def test_total_variation_of_gaussians_of_one_spread():
    """By hand: means 3 apart, variance 1 + noise."""
    scenario = worlds(
        a=GaussianDistribution(mean=[0.0], cov=[[1.0]]),
        b=GaussianDistribution(mean=[3.0], cov=[[1.0]]),
    )
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7), deltas=())
    std = certificate.statement["noise"]["std"]
    exact = math.erf(3 / math.hypot(1, std) / math.sqrt(8)) / 2 + DRAW_DELTA + ROUNDING_DELTA + 0.5
    assert outcomes(with_unsliced(certificate, guess=exact + 2e-15))[2] == "proved"
    assert outcomes(with_unsliced(certificate, guess=exact - 2e-15))[2] == "refuted"


@pytest.mark.parametrize("order", [1.01, 2.0, 4.0, 16.0])
@pytest.mark.parametrize("apart", [0.01, 0.2, 0.6])
def test_least_divergence_is_the_inverse_of_the_variation_bound(order, apart):
    ball = _least_divergence(flint.arb(order), flint.arb(apart))
    assert total_variation_bound([order], [float(ball)])[0] == pytest.approx(apart, rel=1e-6)


def test_training_is_refused_by_name():
    result = verify(certify_training(PLAN, data="d"), rigorous=True)
    assert result.proof.outcome == "not covered"
    assert not result.holds
    assert "training" in str(result)


def test_problems_come_before_a_proof(certificates):
    wrong = edited(certificates["groups"], lambda s: s.update(spent=0.1))
    result = verify(wrong, rigorous=True)
    assert result.problems
    assert result.proof is None


def test_without_flint(certificates, monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    monkeypatch.delitem(sys.modules, "pufferslice.certificate.rigorous")
    with pytest.raises(MissingExtraError, match=r"python-flint: .*pufferslice\[rigorous\]"):
        verify(certificates["groups"], rigorous=True)
