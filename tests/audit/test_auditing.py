# SPDX-License-Identifier: Apache-2.0
"""The whole audit: every kind of claim is tested, right ones stand, halved noise falls."""

import json

import attrs
import numpy as np
import pytest
from tests.audit import teeth

from pufferslice.audit import Outputs, audit_outputs, audit_release, draw_outputs
from pufferslice.audit.bins import SphereMean
from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
from pufferslice.calibration.noise import SeededTestNoise
from pufferslice.certificate import Certificate, certify_release
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Box, summary
from pufferslice.scenario.distributions import FiniteDistribution, SampledDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere

N = 20_000
SETTINGS = {"confidence": 0.95, "seed": 0}
NOISE = SeededTestNoise(seed=2)
CLAIMS = [
    Guarantee.average(order=2, epsilon=1.0),
    Guarantee.joint(order=4, epsilon=1.0),
    Guarantee.unsliced(order=2, epsilon=1.0),
    ApproximateGuarantee.joint(epsilon=1.0, delta=0.01),
    ApproximateGuarantee.average(epsilon=1.0, delta=0.01),
]


def halved(scenario, certificate, n_outputs):
    """Outputs of a mechanism that adds half the noise, around the same point masses."""
    drawn = draw_outputs(scenario, certificate, n_outputs, seed=0, noise=NOISE)
    values = {}
    for prior in scenario.priors:
        values[prior.name] = {
            secret: distribution.outputs[0]
            + (drawn.values[prior.name][secret] - distribution.outputs[0]) / 2
            for secret, distribution in prior.distributions.items()
        }
    return attrs.evolve(drawn, values=values)


@pytest.mark.soundness
@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_right_noise_stands_and_half_of_it_falls(claim):
    scenario, profile = teeth.point_masses(), teeth.PROFILE
    certificate = certify_release(scenario, claim.along(profile))
    audit = audit_release(scenario, profile, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    main = audit.verdicts[0]
    assert main.claim == str(claim)
    number = claim.delta if main.quantity == "delta" else claim.epsilon
    assert main.claimed == number
    # Sliced (epsilon, delta) is calibrated by way of a Rényi divergence, so it is not tight.
    share = 0.0 if isinstance(claim, ApproximateGuarantee) else 0.35
    assert share * number <= main.lower_bound <= number
    broken = halved(scenario, certificate, N)
    found = audit_outputs(scenario, profile, certificate, broken, **SETTINGS)
    assert found.refuted
    assert found.verdicts[0].refuted


def test_everything_stated_is_tested():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    audit = audit_release(
        scenario, teeth.PROFILE, certificate, n_outputs=N, noise=NOISE, **SETTINGS
    )
    claims = [verdict.claim for verdict in audit.verdicts]
    assert claims[0] == "(2, 1)-Joint-SRPP"
    assert claims[1].startswith("the unsliced bound (2, ")
    assert claims[2].startswith("the view (")
    assert claims[2].endswith("sliced joint")
    assert claims[3].endswith("unsliced")
    assert claims[4].startswith("noise of standard deviation ")
    assert audit.unaudited == ()
    smallest = min(v["epsilon"] for v in certificate.statement["views"] if v["scope"] == "unsliced")
    assert audit.verdicts[3].claimed == smallest


def test_the_confidence_is_shared():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    audit = audit_release(
        scenario, teeth.PROFILE, certificate, n_outputs=N, noise=NOISE, **SETTINGS
    )
    spent = sum(1 - verdict.confidence for verdict in audit.verdicts)
    assert spent == pytest.approx(0.05, rel=1e-9)
    assert spent <= 0.05 + 1e-15
    assert audit.confidence == 0.95


def test_several_priors_and_the_worst_pair(two_priors, certificates, profile):
    certificate = certificates[id(two_priors)]
    right = audit_release(two_priors, profile, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
    assert not right.refuted
    assert {one.prior for one in right.inferences} == {"now", "then"}
    broken = halved(two_priors, certificate, N)
    found = audit_outputs(two_priors, profile, certificate, broken, **SETTINGS)
    assert found.refuted
    assert set(found.verdicts[0].pair) <= set(two_priors.secrets)


@pytest.mark.parametrize("which", ["records", "gaussian", "weighted"])
def test_right_mechanisms_of_every_distribution_stand(request, which, certificates, profile):
    scenario = request.getfixturevalue(which)
    used = profile if scenario.dim == 2 else FiniteProfile.axes(dim=1)
    certificate = certificates[id(scenario)]
    audit = audit_release(scenario, used, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    assert {one.attack for one in audit.inferences} == {"gaussian_map", "likelihood_ratio"}


def sampled_worlds(query, shifts):
    """Worlds known by 4,000 draws each."""
    rng = np.random.default_rng(1)
    worlds = {
        name: SampledDistribution(outputs=np.clip(rng.normal(5 + shift, 1, size=(4_000, 2)), 0, 10))
        for name, shift in shifts.items()
    }
    return Scenario.from_worlds(worlds, query=query, source="public_model")


@pytest.fixture(scope="module")
def simulated():
    """Sampled priors with a public range."""
    query = summary(mean=["x", "y"]).with_range(Box([0, 0], [10, 10]))
    return sampled_worlds(query, {"low": 0.0, "high": 0.5})


def test_sampled_priors(simulated, profile):
    claim = ApproximateGuarantee.joint(epsilon=1.0, delta=0.05)
    certificate = certify_release(simulated, claim.along(profile), failure_probability=0.05)
    audit = audit_release(simulated, profile, certificate, n_outputs=3_000, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    assert audit.verdicts[0].quantity == "delta"


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", "joint"])
def test_the_sphere(notion):
    """Drawn directions stand for all: what they might miss is taken off."""
    sphere = SampledSphere.draw(dim=2, n_directions=1_000, seed=3)
    claim = Guarantee(notion=notion, order=2, epsilon=1.0)
    worlds = {
        name: FiniteDistribution.uniform([list(point)]) for name, point in teeth.POINTS.items()
    }
    query = summary(mean=["x", "y"]).with_range(Box([0, 0], [0.4, 0.4]))
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    certificate = certify_release(scenario, claim.along(sphere), failure_probability=0.05)
    audit = audit_release(scenario, sphere, certificate, n_outputs=5_000, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    assert "sphere" in audit.verdicts[0].statistic
    assert audit.verdicts[0].refutable_below < 8
    assert "views along slices" in audit.unaudited[0]
    values = {
        secret: teeth.POINTS[secret] + (drawn - teeth.POINTS[secret]) / 4
        for secret, drawn in draw_outputs(scenario, certificate, 5_000, seed=0, noise=NOISE)
        .values["declared"]
        .items()
    }
    broken = Outputs(certificate=certificate.digest, values={"declared": values})
    found = audit_outputs(scenario, sphere, certificate, broken, **SETTINGS)
    assert found.verdicts[0].refuted


def test_the_mean_over_the_sphere_by_hand():
    mean = SphereMean(n_directions=200, cap=4.0).spending(0.01, 6)
    values = np.repeat([1.0, 9.0], 100)
    width = 4.0 * np.sqrt(np.log(2 * 6 / 0.01) / 400)
    assert mean.of(values) == pytest.approx((1.0 + 4.0) / 2 - width)
    assert mean.of(np.zeros(200)) == 0


@pytest.mark.soundness
@pytest.mark.statistical
def test_the_comparison_that_drawn_directions_show_best_is_paid_for(rng):
    """Of 500 comparisons whose mean over the sphere is 1/2, none may be seen above it."""
    n_draws, n_comparisons, n_directions = 400, 500, 20
    found = rng.binomial(1, 0.5, (n_draws, n_comparisons, n_directions)).astype(float)
    best = found[np.arange(n_draws), found.sum(axis=2).argmax(axis=1)]
    # The chance that one of them has 17 ones or more is 1 - (1 - 0.0013)^500, about a half.
    for paid, refuted in ((n_comparisons, 0.05), (1, None)):
        mean = SphereMean(n_directions=n_directions, cap=1.0).spending(0.05, paid)
        share = np.mean([mean.of(values) > 0.5 for values in best])
        assert share < refuted if refuted else share > 0.25


def test_a_missing_unsliced_bound_is_said():
    scenario = sampled_worlds(summary(mean=["x", "y"]), {"a": 0.0, "b": 0.0})
    claim = ApproximateGuarantee.joint(epsilon=1.0, delta=0.05)
    profile = FiniteProfile.axes(dim=2)
    certificate = certify_release(scenario, claim.along(profile), failure_probability=0.05)
    audit = audit_release(scenario, profile, certificate, n_outputs=2_000, noise=NOISE, **SETTINGS)
    assert "states none" in audit.unaudited[0]
    assert [verdict.claim.split()[0] for verdict in audit.verdicts] == ["(1,", "noise"]
    assert "NOT AUDITED" in str(audit)


def test_words_and_json():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    broken = halved(scenario, certificate, N)
    audit = audit_outputs(scenario, teeth.PROFILE, certificate, broken, **SETTINGS)
    said = str(audit)
    assert said.startswith("REFUTED at confidence 0.95")
    assert "never proves" in said
    assert "likelihood_ratio, balanced prior" in said
    assert said.count("likelihood_ratio") == 2, "only where it succeeds best"
    document = json.loads(json.dumps(audit.to_json()))
    assert document["refuted"] is True
    assert document["certificate"] == certificate.digest
    assert len(document["inferences"]) == 2 * 2 * 4
    assert document["verdicts"][0]["outcome"] == "refuted"


def test_the_same_seed_gives_the_same_audit():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    noise = SeededTestNoise(seed=5)
    one, two = (
        audit_release(
            scenario, teeth.PROFILE, certificate, n_outputs=2_000, noise=noise, **SETTINGS
        )
        for _ in range(2)
    )
    assert one == two


def test_progress_is_reported():
    reports = []
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    audit_release(
        scenario,
        teeth.PROFILE,
        certificate,
        n_outputs=1_000,
        progress=lambda done, total: reports.append((done, total)),
        **SETTINGS,
    )
    assert reports == [(done, 5) for done in range(6)]


def test_the_statement_alone_is_enough():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    public = Certificate(statement=certificate.statement, evidence=None)
    audit = audit_release(scenario, teeth.PROFILE, public, n_outputs=2_000, noise=NOISE, **SETTINGS)
    assert audit.certificate == certificate.digest


def test_another_profile_is_refused():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    other = FiniteProfile.axes(dim=2)
    with pytest.raises(ArgumentError, match="another slice profile"):
        audit_release(scenario, other, certificate, n_outputs=2_000, noise=NOISE, **SETTINGS)


def test_another_scenario_is_refused(records, profile):
    certificate = teeth.certified(1.0)
    with pytest.raises(ScenarioError, match="another scenario"):
        audit_release(records, teeth.PROFILE, certificate, n_outputs=2_000, noise=NOISE, **SETTINGS)


def test_too_few_outputs_say_how_many_are_needed():
    scenario, certificate = teeth.point_masses(), teeth.certified(6.0)
    with pytest.raises(ArgumentError, match=r"too few outputs.*about [0-9]+ outputs") as caught:
        audit_release(scenario, teeth.PROFILE, certificate, n_outputs=200, **SETTINGS)
    needed = int(str(caught.value).split("about ")[1].split()[0])
    audit = audit_release(
        scenario, teeth.PROFILE, certificate, n_outputs=int(1.02 * needed), **SETTINGS
    )
    assert audit.verdicts[0].in_reach
    with pytest.raises(ArgumentError, match="at least 100"):
        audit_release(scenario, teeth.PROFILE, certificate, n_outputs=50, **SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"seed": -1}, "seed"),
        ({"n_outputs": 0}, "n_outputs"),
    ],
)
def test_bad_settings(change, message):
    said = {"n_outputs": 1_000, **SETTINGS} | change
    with pytest.raises(ArgumentError, match=message):
        audit_release(teeth.point_masses(), teeth.PROFILE, teeth.certified(1.0), **said)
