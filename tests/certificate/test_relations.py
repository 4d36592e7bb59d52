# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Evidence that no scenario can have is refuted, whatever its statement says."""

import attrs
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.calibration.guarantee import ApproximateGuarantee, Guarantee
from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.certificate.statement import CertificateOptions, release_statement
from pufferslice.errors import CalibrationError, ScenarioError
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity import RowScan, scan_tables, streamed_scenario
from pufferslice.sensitivity.profiles import FiniteProfile

RNG = np.random.default_rng(8)
TABLE = pa.table(
    {
        "s": ["a", "b", "c"] * 400,
        "x": RNG.normal(size=1200) + np.tile([0.0, 0.5, 1.0], 400),
        "y": RNG.normal(size=1200),
    }
)
QUERY = columns(["x", "y"]).with_range(Box([-6, -6], [6, 6])).with_scales([2.0, 1.0])
PROFILE = FiniteProfile.uniform(dim=2, n_directions=5, seed=3)
JOINT = Guarantee.joint(order=4, epsilon=1.0)

RECORDS = Scenario.from_records(TABLE, secret="s", query=QUERY)
SAMPLED = RECORDS.with_sampled_priors()


def issued(evidence, statement):
    """A statement that the changed evidence itself gives: only relations can refute it."""
    return Certificate(
        statement=release_statement(evidence, CertificateOptions.read_off(statement)),
        evidence=evidence,
    )


def with_scenario(certificate, **changes):
    evidence = attrs.evolve(
        certificate.evidence, scenario={**certificate.evidence.scenario, **changes}
    )
    return issued(evidence, certificate.statement)


def scaled(tables, factor):
    return attrs.evolve(tables, gaps=tables.gaps * factor)


@pytest.fixture(scope="module")
def exact():
    return certify_release(RECORDS, JOINT.along(PROFILE))


@pytest.fixture(scope="module")
def sampled():
    return certify_release(SAMPLED, JOINT.along(PROFILE), failure_probability=0.01)


@pytest.mark.parametrize(
    "changes",
    [
        {"one_release_is": "an average over the whole country"},
        {"distribution": "columns"},
        {"distribution": "groups"},
        {"secrets": ["a", "b"]},
        {"secrets": ["a", "b", "c", "c"]},
        {"pairs": [["a", "b"], ["a", "c"], ["b", "d"]]},
        {"pairs": [["a", "b"], ["a", "c"], ["c", "c"]]},
        {"pairs": [["a", "b"], ["a", "c"], ["a", "c"]]},
        {"priors": [{**RECORDS.priors[0].description(), "source": "hearsay"}]},
        {"priors": [{**RECORDS.priors[0].description(), "kind": "gaussian"}]},
        {"query": {**QUERY.description(), "scales": [2.0, -1.0]}},
        {"query": {**QUERY.description(), "scales": [2.0]}},
        {"query": {**QUERY.description(), "names": ["x", "x"]}},
        {"rows_dropped": -3},
        {"clipped": {"all": ["nobody"], "some": []}},
        {"clipped": {"all": ["a"], "some": ["a"]}},
    ],
    ids=str,
)
def test_descriptions_that_no_scenario_has(exact, changes):
    assert verify(exact).holds
    assert not verify(with_scenario(exact, **changes)).holds


@pytest.mark.soundness
def test_couplings_closer_than_gaps(exact):
    full = attrs.evolve(exact.evidence.full, seen=scaled(exact.evidence.full.seen, 1e-3))
    forged = issued(attrs.evolve(exact.evidence, full=full), exact.statement)
    assert forged.unsliced_epsilon < 1e-3 * exact.unsliced_epsilon
    assert any("coupling" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
def test_a_range_smaller_than_the_stated_one(sampled):
    full = attrs.evolve(sampled.evidence.full, seen=scaled(sampled.evidence.full.seen, 0.5))
    forged = issued(attrs.evolve(sampled.evidence, full=full), sampled.statement)
    assert forged.unsliced_epsilon < sampled.unsliced_epsilon
    assert any("range" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
@pytest.mark.parametrize("target", [JOINT, ApproximateGuarantee.joint(epsilon=1.0, delta=0.1)])
def test_bands_narrower_than_the_samples(target):
    certificate = certify_release(SAMPLED, target.along(PROFILE), failure_probability=0.01)
    assert verify(certificate).holds
    slices = attrs.evolve(
        certificate.evidence.slices, seen=scaled(certificate.evidence.slices.seen, 1e-2)
    )
    forged = issued(attrs.evolve(certificate.evidence, slices=slices), certificate.statement)
    assert forged.noise_std < certificate.noise_std / 10
    assert any("bands" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
@pytest.mark.parametrize("target", [JOINT, ApproximateGuarantee.joint(epsilon=1.0, delta=0.1)])
def test_bands_of_another_failure_probability(target):
    """Bands for 1 % are too narrow for a failure probability of 1e-12, whatever is stated."""
    certificate = certify_release(SAMPLED, target.along(PROFILE), failure_probability=0.01)
    evidence = certificate.evidence
    confidence = attrs.evolve(evidence.confidence, failure_probability=1e-12)
    slices = attrs.evolve(evidence.slices, failure_probability=1e-12)
    forged = issued(
        attrs.evolve(evidence, confidence=confidence, slices=slices), certificate.statement
    )
    assert forged.statement["failure_probability"] == 1e-12
    assert any("levels" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
def test_gaps_without_what_lies_beyond_the_bands(sampled):
    beyond = attrs.evolve(sampled.evidence.beyond, gaps=sampled.evidence.beyond.gaps * 100)
    forged = issued(attrs.evolve(sampled.evidence, beyond=beyond), sampled.statement)
    assert any("beyond" in problem for problem in verify(forged).problems)


class TestCountedRows:
    """Streamed rows may be counted in a range to which the query is not clipped."""

    def certificate(self, query, **said):
        scan = RowScan.of(query, secret="s", profile=PROFILE, **said)
        return certify_release(
            streamed_scenario(scan_tables([TABLE], scan), scan), JOINT.along(PROFILE)
        )

    def test_the_range_is_stated(self):
        certificate = self.certificate(columns(["x", "y"]), range=Box([-9, -9], [9, 9]))
        stated = certificate.statement
        assert stated["scenario"]["counted_range"]["high"] == [9, 9]
        assert "counted" in stated["unsliced"]["from"]
        assert verify(certificate).holds
        clipped = self.certificate(QUERY)
        assert clipped.statement["unsliced"]["from"] == "the diameter of the public range"
        assert verify(clipped).holds

    def test_and_checked(self):
        certificate = self.certificate(columns(["x", "y"]), range=Box([-9, -9], [9, 9]))
        wider = Box([-99, -99], [99, 99]).description()
        assert not verify(with_scenario(certificate, counted_range=wider)).holds
        assert not verify(with_scenario(certificate, counted_range=None)).holds


class TestWeights:
    """A profile whose weight lies where nothing is to be seen promises nothing."""

    POINTS = Scenario.from_groups(
        pa.table({"s": ["a", "a", "b", "b"], "x": [0.0, 0.0, 3.0, 3.0], "y": [0.0, 1, 0, 1]}),
        secret="s",
        query=summary(mean=["x", "y"]),
    )
    GAUSSIANS = Scenario.from_worlds(
        {
            "a": GaussianDistribution(mean=[0.0, 0.0], cov=np.eye(2)),
            "b": GaussianDistribution(mean=[3.0, 0.0], cov=np.eye(2)),
        },
        query=summary(mean=["x", "y"]),
    )

    @pytest.mark.soundness
    @pytest.mark.parametrize("seeing", [0.0, 1e-9, 1e-4])
    @pytest.mark.parametrize("name", ["POINTS", "GAUSSIANS"])
    @pytest.mark.parametrize("notion", ["average", "joint"])
    def test_a_blind_profile_is_refused_whatever_its_weights(self, name, seeing, notion):
        directions = FiniteProfile.uniform(dim=2, n_directions=199, seed=1).directions
        weights = np.full(200, seeing / 199)
        weights[-1] = 1 - seeing
        profile = FiniteProfile(directions=np.vstack([directions, [[0.0, 1.0]]]), weights=weights)
        target = Guarantee(notion=notion, order=4, epsilon=0.1)
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(getattr(self, name), target.along(profile))

    @pytest.mark.soundness
    @pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e9])
    def test_rounding_is_no_sight(self, offset):
        """Gaps have the rounding of projections added to them, which grows with the offset."""
        table = pa.table(
            {"s": ["a", "a", "b", "b"], "x": [0.0, 0, 2, 2], "y": [offset, offset + 1] * 2,
             "z": [0.0, 1, 0, 1]}
        )  # fmt: skip
        scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["x", "y", "z"]))
        blind = FiniteProfile.of([[0.0, 0.6, 0.8], [0.0, 0.8, -0.6], [0.0, 0.28, 0.96]])
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(scenario, JOINT.along(blind))

    @pytest.mark.soundness
    @pytest.mark.parametrize("angle", [1e-3, 1e-7])
    @pytest.mark.parametrize("name", ["POINTS", "GAUSSIANS"])
    def test_a_slice_next_to_blind_does_not_see(self, name, angle):
        nearly = FiniteProfile.of([[np.sin(angle), np.cos(angle)]])
        with pytest.raises(CalibrationError, match="profile"):
            certify_release(
                getattr(self, name), Guarantee.joint(order=4, epsilon=0.1, profile=nearly)
            )
        fair = FiniteProfile.of([[0.6, 0.8]])
        assert certify_release(
            getattr(self, name), Guarantee.joint(order=4, epsilon=0.1, profile=fair)
        )

    def test_the_statement_tells_how_many_slices_count(self):
        directions = FiniteProfile.axes(dim=2).directions
        four = np.vstack([directions, [[0.6, 0.8]], [[0.8, 0.6]]])
        profile = FiniteProfile(directions=four, weights=np.array([0.7, 0.2, 0.1, 0.0]))
        certificate = certify_release(self.POINTS, JOINT.along(profile))
        stated = certificate.statement["profile"]
        assert stated["n_directions"] == 3
        assert stated["effective_slices"] == pytest.approx(1 / (0.49 + 0.04 + 0.01))
        assert stated["largest_weight"] == pytest.approx(0.7)
        assert "weighted like 1.85 equal ones; the largest weight is 0.7" in str(certificate)
        equal = certify_release(self.POINTS, JOINT.along(FiniteProfile.axes(dim=2)))
        assert "weighted like" not in str(equal)


@pytest.mark.parametrize("offset", [1e9, 1e10, 1e12])
@pytest.mark.parametrize("distribution", ["groups", "records"])
def test_values_far_from_zero_verify(offset, distribution):
    """Rounding of projections is in gaps and in coupled distances alike."""
    rng = np.random.default_rng(5)
    table = pa.table(
        {"s": ["a", "b"] * 20, "x": offset + rng.normal(size=40), "y": offset + rng.normal(size=40)}
    )
    profile = FiniteProfile.uniform(dim=2, n_directions=60, seed=2)
    if distribution == "groups":
        scenario = Scenario.from_groups(table, secret="s", query=summary(mean=["x", "y"]))
    else:
        scenario = Scenario.from_records(table, secret="s", query=columns(["x", "y"]))
    certificate = certify_release(scenario, JOINT.along(profile))
    assert verify(certificate, scenario=scenario).problems == ()


def test_evidence_must_say_of_which_distributions_it_is(exact):
    nameless = {k: v for k, v in exact.evidence.confidential.items() if k != "distributions_digest"}
    forged = issued(attrs.evolve(exact.evidence, confidential=nameless), exact.statement)
    assert any("distributions" in problem for problem in verify(forged).problems)


def test_scales_that_a_certificate_cannot_state():
    query = summary(mean=["x"])
    table = pa.table({"s": ["a", "a", "b", "b"], "x": [0.0, 0.0, 1e160, 1e160]})
    scenario = Scenario.from_groups(table, secret="s", query=query.with_scales([1e155]))
    with pytest.raises(CalibrationError, match="scales"):
        certify_release(scenario, JOINT.along(FiniteProfile.axes(dim=1)))
    distributions = {
        name: GaussianDistribution(mean=[m], cov=[[1.0]]) for name, m in (("a", 0.0), ("b", 1e300))
    }
    with pytest.raises(ScenarioError, match="scales"):
        Scenario.from_worlds(distributions, query=query.with_scales([1e-200]))
