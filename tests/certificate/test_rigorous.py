# SPDX-License-Identifier: Apache-2.0
import math
import sys

import attrs
import mpmath
import numpy as np
import pytest
from tests.certificate.conftest import (
    AVERAGE,
    CLOSED_FORM,
    KINDS,
    PLAN,
    SPHERE,
    WORST_GAP,
    bell,
    draws,
    worlds,
)
from tests.certificate.conftest import changed as edited

from pufferslice._core.sampler import DRAW_DELTA, INTEGER_DELTA, ROUNDING_DELTA, SIGMA_INT
from pufferslice.certificate import certify_release, certify_training, verify
from pufferslice.claims import Guarantee
from pufferslice.errors import MissingExtraError
from pufferslice.queries import summary
from pufferslice.scenario.distributions import (
    GaussianMixture,
)
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.variation import total_variation_bound

flint = pytest.importorskip("flint", reason="python-flint is not installed")

from pufferslice.certificate.rigorous import _least_divergence, prove  # noqa: E402

JOINT = Guarantee.joint(order=4, epsilon=1.0)
UNSLICED = Guarantee.unsliced(order=3, epsilon=2.0)
WHOLE = (UNSLICED, Guarantee.epsilon_delta(1.0, 1e-5), Guarantee.guess(at_most=0.6))
TINY = 2.0**-44
"""Far less than `verify` can see, far more than the rounding of evidence of Gaussians."""


@pytest.fixture(scope="module")
def atoms():
    """Three distributions of a few atoms, in two coordinates."""
    rng = np.random.default_rng(5)
    first, second, third = (rng.normal(size=(n, 2)) for n in (5, 3, 4))
    return worlds(a=first, b=second + 1, c=third * 2)


@pytest.fixture(scope="module")
def mixtures():
    first = bell([0.0, 0.0], [[1.0, 0.2], [0.2, 2.0]])
    second = bell([1.0, 0.5], [[1.5, 0.0], [0.0, 1.0]])
    third = bell([1.0, 1.5], [[1.0, 0.0], [0.0, 1.0]])
    return worlds(
        a=GaussianMixture.weighted([first, second], [0.75, 0.25]),
        b=GaussianMixture.weighted([first, third], [0.5, 0.5]),
    )


def claiming(certificate, std=None, **numbers):
    """The certificate with other numbers in its claim, and maybe another noise."""

    def change(statement):
        statement["guarantee"].update(numbers)
        statement["noise"].update({} if std is None else {"std": std})

    return edited(certificate, change)


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
        ("atoms", Guarantee.average(epsilon=1.0, delta=1e-3), {}),
        ("atoms", Guarantee.average(epsilon=1.0, delta=1e-3), {"method": WORST_GAP}),
        ("atoms", Guarantee.joint(epsilon=1.0, delta=1e-3), {}),
        ("sampled", Guarantee.average(epsilon=1.0, delta=0.2), {"gamma": 0.1}),
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
    tighter = claiming(certificate, epsilon=claim.epsilon * (1 - 2.0**-30))
    assert outcomes(tighter)[0] == "refuted"


def test_a_delta_too_small_for_floats_is_proved(atoms, profile):
    """There the noise comes from Rényi moments, and the direct formula needs less."""
    claim = Guarantee.joint(epsilon=1.0, delta=1e-15).along(profile)
    assert outcomes(certify_release(atoms, claim, deltas=()))[0] == "proved"


def test_less_noise_than_verify_can_see_is_refuted(atoms, profile):
    """Directions are a little short of 1, so the noise along them is less than the stated one."""
    short = FiniteProfile.of(profile.directions * (1 - 9e-13))
    certificate = certify_release(atoms, AVERAGE.along(short), method=WORST_GAP)
    less = claiming(certificate, certificate.noise_std * (1 - 3.2e-12))
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
    stated = getattr(certificate.statement.unsliced, field)
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
    tables, std = certificate.evidence.full.differences, certificate.statement.noise.std
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
    pairs, std = certificate.evidence.full.differences, certificate.statement.noise.std
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
    proof = prove(with_unsliced(certificate, epsilon=exact))
    assert not attrs.evolve(verify(certificate), proof=proof).holds


def test_total_variation_of_gaussians_of_one_spread():
    """By hand: means 3 apart, variance 1 + noise."""
    scenario = worlds(a=bell([0.0], [[1.0]]), b=bell([3.0], [[1.0]]))
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7), deltas=())
    std = certificate.statement.noise.std
    exact = math.erf(3 / math.hypot(1, std) / math.sqrt(8)) / 2 + DRAW_DELTA + ROUNDING_DELTA + 0.5
    assert outcomes(with_unsliced(certificate, guess=exact + 2e-15))[2] == "proved"
    assert outcomes(with_unsliced(certificate, guess=exact - 2e-15))[2] == "refuted"


@pytest.mark.parametrize("order", [1.01, 2.0, 4.0, 16.0])
@pytest.mark.parametrize("apart", [0.01, 0.2, 0.6])
def test_least_divergence_is_the_inverse_of_the_variation_bound(order, apart):
    ball = _least_divergence(flint.arb(order), flint.arb(apart))
    assert total_variation_bound([order], [float(ball)])[0] == pytest.approx(apart, rel=1e-6)


def without_range(dim):
    """Two distributions known through draws only: some of their mass is left to delta."""
    query = summary(mean=["pay", "age"][:dim])
    return worlds(a=draws(0.0, dim), b=draws(0.5, dim), query=query)


def test_mass_beyond_the_draws_has_no_divergence_but_a_delta():
    """In one dimension gaps bound all but a known mass: no Rényi claim, whatever its epsilon."""
    claim = Guarantee.epsilon_delta(1.0, 0.4)
    certificate = certify_release(without_range(1), claim, deltas=(), failure_probability=0.1)
    full = certificate.evidence.full
    assert full.missing.min() > 0
    assert outcomes(certificate)[0] == "proved"
    stated = with_unsliced(certificate, order=2.0, epsilon=1e6)
    assert outcomes(stated)[1] == "not covered"
    nothing_missing = attrs.evolve(full, missing=np.zeros(full.differences.n_instances))
    evidence = attrs.evolve(certificate.evidence, full=nothing_missing)
    assert outcomes(attrs.evolve(stated, evidence=evidence))[1] == "proved"


def test_draws_without_a_range_bound_no_whole_output(profile):
    claim = Guarantee.average(epsilon=1.0, delta=0.5).along(profile)
    certificate = certify_release(without_range(2), claim, deltas=(), failure_probability=0.1)
    assert certificate.evidence.full.differences is None
    assert outcomes(with_unsliced(certificate, guess=0.99)) == ["proved", "not covered"]


def test_a_delta_below_the_missing_mass_is_not_proved(profile):
    claim = Guarantee.average(epsilon=1.0, delta=0.5).along(profile)
    certificate = certify_release(without_range(2), claim, deltas=(), failure_probability=0.1)
    missing = certificate.evidence.slices.missing.max()
    renyi = Guarantee.joint(order=4, epsilon=1e6).to_json()
    assert outcomes(edited(certificate, lambda s: s.update(guarantee=renyi)))[0] == "not covered"
    for share, outcome in ((1.01, "proved"), (1.0, "not covered"), (0.99, "not covered")):
        stated = claiming(certificate, epsilon=1e3, delta=float(missing * share))
        assert outcomes(stated)[0] == outcome


def test_noise_too_small_for_any_epsilon_is_not_proved(atoms, profile):
    claim = Guarantee.average(epsilon=1.0, delta=1e-3).along(profile)
    certificate = certify_release(atoms, claim, deltas=())
    for std, outcome in ((0.1, "proved"), (1e-6, "not covered")):
        assert outcomes(claiming(certificate, std, epsilon=1e149))[0] == outcome


def test_epsilons_of_slices_count_only_where_balls_prove_them(atoms, profile):
    """Along directions a little short of 1 there is less noise than the floats assume."""
    claim = Guarantee.average(epsilon=1.0, delta=1e-3)
    for shorter, outcome in ((0.0, "proved"), (9e-13, "not covered")):
        directions = FiniteProfile.of(profile.directions * (1 - shorter))
        assert outcomes(certify_release(atoms, claim.along(directions), deltas=()))[0] == outcome


def test_a_delta_along_slices_of_gaussians_is_not_covered(gaussian, profile):
    certificate = certify_release(gaussian, AVERAGE.along(profile), deltas=())
    assert outcomes(certificate)[0] == "proved"
    other = Guarantee.average(epsilon=50.0, delta=0.5).to_json()
    assert outcomes(edited(certificate, lambda s: s.update(guarantee=other)))[0] == "not covered"


def test_noise_with_a_shape_proves_nothing_along_the_whole_sphere(atoms):
    """Slices of noise that is wider in some directions do not cost alike."""
    claim = Guarantee.joint(order=2, epsilon=50.0).to_json()
    for shape, outcome in (("isotropic", "proved"), ("fitted", "not covered")):
        certificate = certify_release(atoms, UNSLICED, shape=shape, deltas=())
        along = edited(certificate, lambda s: s.update(guarantee=claim))
        assert outcomes(along)[0] == outcome


def with_an_equal_pair():
    """Three pairs, one of them of equal distributions."""
    rng = np.random.default_rng(9)
    first, second = rng.normal(size=(5, 2)), rng.normal(size=(3, 2)) + 1
    return worlds(a=first, b=second, c=first)


@pytest.mark.parametrize(
    "claim",
    [AVERAGE, Guarantee.average(epsilon=1.0, delta=1e-3), *WHOLE],
    ids=str,
)
def test_a_pair_of_equal_distributions_costs_nothing(profile, claim):
    """What the two other pairs need is proved, and a little less noise refuted."""
    claim = claim.along(profile) if claim.notion in {"average", "joint"} else claim
    certificate = certify_release(with_an_equal_pair(), claim, shape="isotropic", deltas=())
    assert certificate.evidence.full.differences.equal.sum() == 1
    assert prove(certificate).outcome == "proved"
    assert outcomes(claiming(certificate, certificate.noise_std * (1 - 1e-6)))[0] == "refuted"


def test_equal_distributions_need_no_delta_for_the_grid(profile):
    """Rounding to the grid alone would cost more than this delta, if their outputs differed."""
    claim = Guarantee.average(epsilon=1.0, delta=2e-14).along(profile)
    assert math.sqrt(2) / SIGMA_INT / math.sqrt(2 * math.pi) > claim.delta
    assert outcomes(certify_release(with_an_equal_pair(), claim, deltas=()))[0] == "proved"


@pytest.mark.parametrize("variance", [2.0, 11.0])
def test_gaussians_of_one_mean_differ_by_their_spread_alone(variance):
    """By hand: Pinsker's inequality from the smaller divergence, with noise of variance 1."""
    scenario = worlds(a=bell([0.5], [[variance]]), b=bell([0.5], [[1.0]]))
    claim = Guarantee.epsilon_delta(0.1, 0.2)
    certificate = certify_release(scenario, claim, shape="isotropic", deltas=())
    ratio = (variance + 1) / 2
    exact = math.sqrt((1 / ratio - 1 + math.log(ratio)) / 4)
    exact += (1 + math.exp(0.1)) * (DRAW_DELTA + ROUNDING_DELTA)
    assert outcomes(claiming(certificate, 1.0, delta=exact * (1 + TINY)))[0] == "proved"
    assert outcomes(claiming(certificate, 1.0, delta=exact * (1 - TINY)))[0] != "proved"


def test_spreads_that_are_nearly_equal_are_nearly_as_close():
    """By hand, from squares of the excess: its first power cancels, and rounding would remain."""
    scenario = worlds(a=bell([0.5], [[1 + 2.0**-30]]), b=bell([0.5], [[1.0]]))
    claim = Guarantee.epsilon_delta(1e-6, 0.2)
    certificate = certify_release(scenario, claim, shape="isotropic", deltas=())
    excess = 2.0**-30 / (2 + 2.0**-30)
    exact = excess / math.sqrt(8) + 2 * (DRAW_DELTA + ROUNDING_DELTA)
    for factor, outcome in ((1 + 1e-4, "proved"), (1 - 1e-4, "not covered")):
        assert outcomes(claiming(certificate, 1.0, delta=exact * factor))[0] == outcome


def test_divergences_of_gaussians_end_at_an_order():
    """By hand: of N(0, 4) from N(1, 3), noise included, order 4 is the first without a bound."""
    scenario = worlds(a=bell([0.0], [[3.0]]), b=bell([1.0], [[2.0]]))
    certificate = certify_release(scenario, UNSLICED, shape="isotropic", deltas=())
    certificate = claiming(certificate, 1.0)
    exact = 3 / 2 + (3 * math.log(3) - 2 * math.log(4)) / 4
    for factor, outcome in ((1 + TINY, "proved"), (1 - TINY, "refuted")):
        assert outcomes(with_unsliced(certificate, order=3.0, epsilon=exact * factor))[1] == outcome
    for order in (4.0, 5.0):
        assert outcomes(with_unsliced(certificate, order=order, epsilon=1e149))[1] == "not covered"


def test_noise_below_the_rounding_of_a_singular_spread_proves_nothing():
    """Covariances are known to about 15 digits, so a smaller variance may be none at all."""
    scenario = worlds(
        a=bell([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]]), b=bell([1.0, 0.0], [[2.0, 2.0], [2.0, 2.0]])
    )
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.9), deltas=())
    assert outcomes(certificate)[0] == "proved"
    for guess in (0.9, 1 - 2.0**-53):
        assert outcomes(claiming(certificate, 1e-9, at_most=guess))[0] == "not covered"


def test_a_guess_below_what_the_noise_itself_adds_is_not_proved(gaussian):
    certificate = certify_release(gaussian, Guarantee.guess(at_most=0.6), deltas=())
    assert outcomes(certificate)[2] == "proved"
    assert outcomes(with_unsliced(certificate, guess=math.nextafter(0.5, 1)))[2] != "proved"


@pytest.mark.parametrize("apart", [-0.1, 0.0, 1.0, 1.5])
def test_no_two_distributions_are_so_far_apart(apart):
    assert _least_divergence(flint.arb(2.0), flint.arb(apart)).is_nan()


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
