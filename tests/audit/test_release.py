# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
"""Audits of releases: right claims stand, halved noise falls; outputs, their files, bad input."""

import json
import math
import re
import stat

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.audit import teeth

from pufferslice._core.sampler import SIGMA_INT, SeededTestNoise
from pufferslice.audit import Outputs, audit_outputs, audit_release, draw_outputs, supplied_outputs
from pufferslice.audit.outputs import quantised_rows
from pufferslice.certificate import Certificate, certify_release
from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, StorageError, TableError
from pufferslice.queries import Box, summary
from pufferslice.releases.release import quantised, release
from pufferslice.scenario.distributions import FiniteDistribution, SampledDistribution
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, WholeSphere
from pufferslice.sensitivity.whitening import Shape

N = 20_000
SETTINGS = {"confidence": 0.95, "seed": 0}
NOISE = SeededTestNoise(seed=2)
CLAIMS = [
    Guarantee.average(order=2, epsilon=1.0),
    Guarantee.joint(order=4, epsilon=1.0),
    Guarantee.unsliced(order=2, epsilon=1.0),
    Guarantee.joint(epsilon=1.0, delta=0.01),
    Guarantee.average(epsilon=1.0, delta=0.01),
    Guarantee.epsilon_delta(1.0, 0.01),
    Guarantee.guess(at_most=0.6),
]


def less_noise(scenario, certificate, n_outputs, factor=0.5):
    """Outputs of a mechanism that adds less noise, around the same point masses."""
    drawn = draw_outputs(scenario, certificate, n_outputs, seed=0, noise=NOISE)
    values = {
        prior.name: {
            secret: point.outputs[0]
            + factor * (drawn.values[prior.name][secret] - point.outputs[0])
            for secret, point in prior.distributions.items()
        }
        for prior in scenario.priors
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
    number = claim.delta if main.quantity == "delta" else claim.bound
    assert main.claimed == number
    # Sliced (epsilon, delta) is calibrated by way of a Rényi divergence, so it is not tight.
    share = 0.35 if claim.has_order or claim.unit > 1 else 0.0
    assert share * number <= main.lower_bound <= number
    broken = less_noise(scenario, certificate, N)
    assert audit_outputs(scenario, profile, certificate, broken, **SETTINGS).verdicts[0].refuted


def test_everything_stated_is_tested_and_shares_the_confidence():
    scenario, certificate = teeth.point_masses(), teeth.certified(1.0)
    public = Certificate(statement=certificate.statement, evidence=None)
    outputs = less_noise(scenario, public, N)
    audit = audit_outputs(scenario, teeth.PROFILE, public, outputs, **SETTINGS)
    patterns = [
        r"\(2, 1\)-Joint-SRPP", r"the unsliced bound \(2, .*", r"the view \(.*sliced joint",
        r"the view \(.*unsliced", "noise of standard deviation .*",
    ]  # fmt: skip
    for pattern, verdict in zip(patterns, audit.verdicts, strict=True):
        assert re.fullmatch(pattern, verdict.claim)
    views = [view for view in public.statement.views if view.scope == "unsliced"]
    assert audit.verdicts[3].claimed == min(view.epsilon for view in views)
    spent = sum(1 - verdict.confidence for verdict in audit.verdicts)
    assert spent == pytest.approx(0.05, rel=1e-9)
    assert audit.unaudited == ()
    assert str(audit).startswith("REFUTED at confidence 0.95")
    assert str(audit).count("likelihood_ratio") == 2, "only where it succeeds best"
    document = json.loads(json.dumps(audit.to_json()))
    assert (document["refuted"], document["certificate"]) == (True, certificate.digest)
    assert len(document["inferences"]) == 2 * 2 * 4


@pytest.mark.soundness
def test_right_guesses_are_bounded_from_both_sides(seed):
    """The claim is exact for two points: the attack comes near it, and the bound stays below."""
    scenario = teeth.point_masses({"a": (0.0, 0.0), "b": (0.3, 0.1)})
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.6))
    noise = SeededTestNoise(seed=seed)
    sure = {"confidence": teeth.SURE, "seed": 0}
    audit = audit_release(scenario, None, certificate, n_outputs=200_000, noise=noise, **sure)
    assert not audit.refuted
    assert (audit.verdicts[0].quantity, audit.verdicts[0].claimed) == ("guess", 0.6)
    assert 0.585 < audit.verdicts[0].lower_bound < 0.6
    for inference in audit.inferences:
        assert inference.accuracy.low < 0.6 < inference.accuracy.high + 0.005
    broken = less_noise(scenario, certificate, N, 0.8)
    verdict = audit_outputs(scenario, None, certificate, broken, **SETTINGS).verdicts[0]
    assert verdict.refuted
    assert verdict.lower_bound < stats.norm.cdf(stats.norm.ppf(0.6) / 0.8)


@pytest.mark.soundness
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_distributions_with_equal_means_are_told_apart_by_their_likelihood(factor):
    """Points around one point: half of what distinguishes them lies on each side of any line."""
    ring = [[4.0, 1.0], [-4.0, -1.0], [1.0, 2.0], [-1.0, -2.0]]
    worlds = {
        "ring": FiniteDistribution.uniform(ring), "point": FiniteDistribution.uniform([[0.0, 0.0]]),
    }  # fmt: skip
    query = summary(mean=["x", "y"])
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
    rng, std = np.random.default_rng(1), factor * certificate.noise_std
    coloring = certificate.shape.coloring
    released = {
        secret: atoms.outputs[rng.integers(len(atoms.outputs), size=N)]
        + std * rng.normal(size=(N, 2)) @ coloring.T
        for secret, atoms in worlds.items()
    }
    outputs = supplied_outputs(scenario, certificate, released)
    main = audit_outputs(scenario, None, certificate, outputs, **SETTINGS).verdicts[0]
    assert main.line == "the likelihood ratio"
    # The truth: total variation of two mixtures, by their densities at outputs of one of them.
    covariance = std**2 * certificate.shape.covariance
    ratio = np.mean(
        [stats.multivariate_normal(atom, covariance).pdf(released["point"]) for atom in ring],
        axis=0,
    ) / stats.multivariate_normal([0, 0], covariance).pdf(released["point"])
    truth = 0.5 + np.maximum(1 - ratio, 0).mean() / 2
    assert truth - 0.03 < main.lower_bound < truth
    assert main.refuted == (factor < 1)


WHOLE = {
    Guarantee.unsliced(order=2, epsilon=1.0): ["the stated right guesses, .*"],
    Guarantee.epsilon_delta(1.0, 0.01): [
        r"the unsliced bound \(2, .*", "the stated right guesses, .*",
    ],
    Guarantee.guess(at_most=0.6): [r"the unsliced bound \(2, .*"],
}  # fmt: skip


@pytest.mark.parametrize("claim", WHOLE, ids=str)
def test_everything_stated_of_the_whole_output_is_tested(claim):
    """Without slices: the statement has no profile, and the audit needs none."""
    scenario = teeth.point_masses()
    certificate = certify_release(scenario, claim)
    public = Certificate(statement=certificate.statement, evidence=None)
    assert public.statement.profile is None
    outputs = less_noise(scenario, public, N)
    audit = audit_outputs(scenario, None, public, outputs, **SETTINGS)
    patterns = [
        re.escape(str(claim)), *WHOLE[claim], r"the view \(.*unsliced",
        r"noise of standard deviation .* \(whitened units\)",
    ]  # fmt: skip
    for pattern, verdict in zip(patterns, audit.verdicts, strict=True):
        assert re.fullmatch(pattern, verdict.claim)
        assert verdict.refuted or verdict.claim.startswith("the view"), "which is not tight"
    assert sum(1 - verdict.confidence for verdict in audit.verdicts) == pytest.approx(0.05)
    assert audit.unaudited == ()
    document = json.loads(json.dumps(audit.to_json()))
    assert "guess" in {verdict["quantity"] for verdict in document["verdicts"]}
    assert len(document["inferences"]) == 2 * 2 * 4
    beside = audit_outputs(scenario, teeth.PROFILE, public, outputs, **SETTINGS)
    assert beside.verdicts == audit.verdicts, "a profile has nothing to add"


def test_several_priors_and_the_worst_pair(two_priors, certificates, profile):
    certificate = certificates[id(two_priors)]
    right = audit_release(two_priors, profile, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
    assert not right.refuted
    assert {inference.prior for inference in right.inferences} == {"now", "then"}
    broken = less_noise(two_priors, certificate, N)
    verdict = audit_outputs(two_priors, profile, certificate, broken, **SETTINGS).verdicts[0]
    assert verdict.refuted
    assert set(verdict.pair) <= set(two_priors.secrets)


@pytest.mark.parametrize("shape", ["fitted", "diagonal", "isotropic"])
@pytest.mark.parametrize("which", ["records", "two_priors", "gaussian", "weighted"])
def test_right_mechanisms_of_every_shape_and_distribution_stand(
    request, which, shape, certificates, profile
):
    scenario = request.getfixturevalue(which)
    used = profile if scenario.dim == 2 else FiniteProfile.axes(dim=1)
    issued = [certify_release(scenario, claim, shape=shape, effort="quick") for claim in WHOLE]
    if shape == "isotropic":
        issued.append(certificates[id(scenario)])
    for certificate in issued:
        audit = audit_release(scenario, used, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
        assert not audit.refuted
        assert len({inference.attack for inference in audit.inferences}) == 2


def test_a_shape_of_ones_own_stands_and_half_of_it_falls(gaussian):
    """Gaussian distributions spread the outputs more than their noise does."""
    points = teeth.point_masses()
    shape = [[5.0, -2.0], [-2.0, 1.0]]
    for scenario in (points, gaussian):
        claim = Guarantee.unsliced(order=2, epsilon=1.0)
        certificate = certify_release(scenario, claim, shape=shape)
        audit = audit_release(scenario, None, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
        assert not audit.refuted
    certificate = certify_release(points, claim, shape=shape)
    broken = audit_outputs(
        points, None, certificate, less_noise(points, certificate, N), **SETTINGS
    )
    assert broken.verdicts[0].refuted
    assert broken.verdicts[-1].refuted


@pytest.mark.parametrize("has_range", [True, False])
def test_sampled_priors(rng, profile, has_range):
    """A claim that rests on the range is far above what draws show; without one, no unsliced."""
    query = summary(mean=["x", "y"])
    query = query.with_range(Box([0, 0], [10, 10])) if has_range else query
    worlds = {
        name: SampledDistribution(outputs=np.clip(rng.normal(mean, 1, size=(4_000, 2)), 0, 10))
        for name, mean in {"low": 5.0, "high": 5.5 if has_range else 5.0}.items()
    }
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    claim = Guarantee.joint(epsilon=1.0, delta=0.05)
    certificate = certify_release(scenario, claim.along(profile), failure_probability=0.05)
    audit = audit_release(scenario, profile, certificate, n_outputs=3_000, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    assert audit.verdicts[0].quantity == "delta"
    if has_range:
        certificate = certify_release(scenario, Guarantee.guess(at_most=0.7))
        audit = audit_release(scenario, None, certificate, n_outputs=N, noise=NOISE, **SETTINGS)
        assert not audit.refuted
        assert audit.verdicts[0].lower_bound < 0.65
    else:
        assert "states none" in audit.unaudited[0]
        assert "NOT AUDITED" in str(audit)


@pytest.mark.soundness
@pytest.mark.parametrize("notion", ["average", pytest.param("joint", marks=pytest.mark.soak)])
@pytest.mark.parametrize(
    "sphere", [SampledSphere.draw(dim=2, n_directions=1_000, seed=3), WholeSphere(dim=2)], ids=repr
)
def test_the_sphere(notion, sphere):
    """Drawn directions stand for all: what they might miss is taken off.

    If nothing was drawn for the claim, the audit draws its own directions.
    """
    worlds = {k: FiniteDistribution.uniform([list(point)]) for k, point in teeth.POINTS.items()}
    query = summary(mean=["x", "y"]).with_range(Box([0, 0], [0.4, 0.4]))
    scenario = Scenario.from_worlds(worlds, query=query, source="public_model")
    claim = getattr(Guarantee, notion)(order=2, epsilon=1.0, profile=sphere)
    drawn = isinstance(sphere, SampledSphere)
    certificate = certify_release(scenario, claim, failure_probability=0.05 if drawn else None)
    audit = audit_release(scenario, sphere, certificate, n_outputs=5_000, noise=NOISE, **SETTINGS)
    assert not audit.refuted
    assert "sphere, from 1000 slices" in audit.verdicts[0].statistic
    assert audit.verdicts[0].refutable_below < 8
    assert "views along slices" in audit.unaudited[0]
    broken = less_noise(scenario, certificate, 5_000, factor=0.25)
    assert audit_outputs(scenario, sphere, certificate, broken, **SETTINGS).verdicts[0].refuted


def test_too_few_outputs_say_how_many_are_needed():
    scenario, certificate = teeth.point_masses(), teeth.certified(6.0)
    with pytest.raises(ArgumentError, match=r"about [0-9]+ outputs") as caught:
        audit_release(scenario, teeth.PROFILE, certificate, n_outputs=200, **SETTINGS)
    needed = int(str(caught.value).split("about ")[1].split()[0])
    audit = audit_release(
        scenario, teeth.PROFILE, certificate, n_outputs=int(1.02 * needed), **SETTINGS
    )
    assert audit.verdicts[0].in_reach


JOINT = Guarantee.joint(order=2, epsilon=1.0)
ROWS = pa.table({"g": ["a", "a", "b", "b"], "x": [1.1, 1.3, 2.0, 3.3], "y": [0.1, 5.0, 7.0, 7.7]})
QUERY = summary(mean=["x", "y"]).with_range(Box([0, 0], [10, 10])).with_scales([1.0, 3.0])
GROUPS = Scenario.from_groups(ROWS, secret="g", query=QUERY)
PROFILE = FiniteProfile.uniform(dim=2, n_directions=6, seed=7)
GROUPS_CERTIFICATE = certify_release(GROUPS, JOINT.along(PROFILE))


@pytest.mark.parametrize(
    "claim", [JOINT.along(PROFILE), Guarantee.unsliced(order=2, epsilon=1.0)], ids=str
)
def test_an_output_is_a_release_bit_for_bit(tmp_path, claim):
    """The first secret gets the first draws of the stream, as a release does."""
    noise = SeededTestNoise(seed=4)
    certificate = certify_release(GROUPS, claim, generator=noise)
    assert (certificate.shape is None) == claim.is_sliced
    released = release(
        GROUPS, ROWS.slice(0, 2), certificate, ledger=tmp_path / "l", generator=noise
    )
    drawn = draw_outputs(GROUPS, certificate, 1, seed=0, noise=noise)
    first = drawn.values["table"]["a"][0]
    # A release rounds its exact value once, an audit at every step.
    np.testing.assert_allclose(first * QUERY.scales, released.values, rtol=1e-14)
    assert drawn.certificate == certificate.digest


@pytest.mark.statistical
@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["isotropic", "fitted"])
def test_outputs_carry_the_certified_covariance(seed, kind):
    """In every direction N(0, std) of the statement, not 0.97 or 1.03; by whitened coordinates."""
    points = {"a": [1.0, 2.0, 0.0], "b": [3.0, 2.5, 0.1], "c": [2.0, 2.9, -0.1]}
    scenario = teeth.point_masses(points)
    claim = Guarantee.unsliced(order=2, epsilon=1.0)
    certificate = certify_release(scenario, claim, shape=kind)
    noise = SeededTestNoise(seed=seed)
    drawn = draw_outputs(scenario, certificate, 100_000, seed=0, noise=noise).values["declared"]
    left = {secret: drawn[secret] - points[secret] for secret in points}
    shape = certificate.shape or Shape.of_covariance(np.eye(3))
    covariance = certificate.noise_std**2 * shape.covariance
    stds = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(stds, certificate.statement.noise.std_by_coordinate)
    rng = np.random.default_rng(seed)
    for values in left.values():
        p = stats.kstest(values[:, 0], stats.norm(scale=stds[0]).cdf).pvalue
        assert p > 1e-9
        for direction in [*np.eye(3), *rng.normal(size=(3, 3)), *np.linalg.inv(covariance)]:
            std = math.sqrt(direction @ covariance @ direction)
            along = stats.chi2(len(values)).cdf
            total = ((values @ direction / std) ** 2).sum()
            low, right, high = (along(total / k**2) for k in (1.03, 1.0, 0.97))
            assert 1e-9 < right < 1 - 1e-9
            assert low < 1e-9
            assert high > 1 - 1e-9
    pairs = np.corrcoef(np.hstack([shape.whitened(v, np.zeros(3)) for v in left.values()]).T)
    assert abs(pairs - np.eye(9)).max() < 0.03, "no noise is shared"


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=2),
    st.floats(0.05, 50.0),
    st.floats(-10.0, 10.0),
    st.integers(-(2**20), 2**20),
)
def test_rows_are_quantised_as_a_release_does(point, noise_std, center, half_steps):
    """Also next to ties: halves of grid steps around the centre."""
    near = center + (half_steps + 0.5) * noise_std / SIGMA_INT
    rows = np.array([point, [near, -near], [center, 0.0]])
    centers = np.array([center, 0.0])
    expected = [quantised(row, centers, noise_std) for row in rows]
    assert quantised_rows(rows, centers, noise_std).tolist() == expected
    for shape in (
        Shape(whitening=[[0.5, 0.0], [-0.3, 0.1]]),
        Shape(whitening=[[1e-3, 0], [0.7, 0.3]]),
    ):
        expected = [quantised(row, centers, noise_std, shape) for row in rows]
        assert quantised_rows(rows, centers, noise_std, shape).tolist() == expected


def test_equal_distributions_are_released_without_noise():
    scenario = teeth.point_masses(dict.fromkeys("ab", (1.0, 2.0)))
    certificate = certify_release(scenario, JOINT.along(PROFILE))
    drawn = draw_outputs(scenario, certificate, 1_000, seed=0)
    assert (drawn.values["declared"]["a"] == [1.0, 2.0]).all()
    audit = audit_outputs(scenario, PROFILE, certificate, drawn, **SETTINGS)
    assert not audit.refuted
    assert audit.inferences == ()


def test_files_keep_everything(two_priors, certificates, tmp_path):
    drawn = draw_outputs(two_priors, certificates[id(two_priors)], 20, seed=0)
    path = tmp_path / "outputs.npz"
    drawn.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "they average to the query"
    read = Outputs.load(path)
    assert read.certificate == drawn.certificate
    for prior, secrets in drawn.values.items():
        for secret, values in secrets.items():
            assert np.array_equal(read.values[prior][secret], values)
    assert "20" in repr(read)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "outputs.npz"
    with pytest.raises(StorageError):
        Outputs.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(TableError, match="outputs"):
        Outputs.load(path)
    for facts in (
        b'{"format": "other", "version": 1}',
        b'{"format": "pufferslice-outputs", "version": 1, "names": []}',
    ):
        np.savez(path, facts=np.frombuffer(facts, dtype=np.uint8))
        with pytest.raises(TableError, match=r"Outputs\.save"):
            Outputs.load(path)


def test_supplied_outputs_are_scaled(two_priors, certificates, rng):
    arrays = {"a": rng.normal(size=(30, 2)), "b": rng.normal(size=(40, 2))}
    outputs = supplied_outputs(GROUPS, GROUPS_CERTIFICATE, arrays)
    np.testing.assert_array_equal(outputs.values["table"]["a"], arrays["a"] / [1.0, 3.0])
    assert outputs.n_outputs == 30
    certificate = certificates[id(two_priors)]
    secrets = {name: rng.normal(size=(10, 2)) for name in two_priors.secrets}
    outputs = supplied_outputs(two_priors, certificate, {"now": secrets, "then": secrets})
    assert set(outputs.values) == {"now", "then"}
    with pytest.raises(ArgumentError, match=r"'then'.*absent"):
        supplied_outputs(two_priors, certificate, {"now": secrets})
