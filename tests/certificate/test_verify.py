# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import copy
import math

import attrs
import numpy as np
import pyarrow as pa
import pytest
from tests.certificate.conftest import KINDS, changed, changes, issued, stating, worlds
from tests.json_edits import inner, put, statement_of

from pufferslice.certificate import Certificate, certify_release, verify
from pufferslice.certificate.issue import differences
from pufferslice.certificate.verify import UNCHECKED
from pufferslice.claims import Guarantee
from pufferslice.errors import ArgumentError, CertificateError, PuffersliceError
from pufferslice.queries import Box, columns, summary
from pufferslice.scenario.scenario import Scenario
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.tables import DistanceTables

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


def with_scenario(certificate, **changes):
    evidence = attrs.evolve(
        certificate.evidence, scenario={**certificate.evidence.scenario, **changes}
    )
    try:
        return issued(evidence, certificate.statement)
    except CertificateError:  # no statement has this description
        values = certificate.statement.to_json()
        values["scenario"], values["evidence_digest"] = evidence.scenario, evidence.digest()
        return Certificate(statement=statement_of(values), evidence=evidence)


def scaled(tables, factor):
    return attrs.evolve(tables, gaps=tables.gaps * factor)


@pytest.fixture(scope="module")
def exact():
    return certify_release(RECORDS, JOINT.along(PROFILE))


@pytest.fixture(scope="module")
def from_samples():
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
@pytest.mark.parametrize(
    ("kind", "factor", "most", "word"),
    [("exact", 1e-3, 1e-3, "coupling"), ("from_samples", 0.5, 1.0, "range")],
)
def test_couplings_closer_than_gaps_or_than_the_stated_range(request, kind, factor, most, word):
    right = request.getfixturevalue(kind)
    full = attrs.evolve(
        right.evidence.full, differences=scaled(right.evidence.full.differences, factor)
    )
    forged = issued(attrs.evolve(right.evidence, full=full), right.statement)
    assert forged.unsliced_epsilon < most * right.unsliced_epsilon
    assert any(word in problem for problem in verify(forged).problems)


@pytest.mark.soundness
@pytest.mark.parametrize("target", [JOINT, Guarantee.joint(epsilon=1.0, delta=0.1)])
def test_bands_narrower_than_the_samples(target):
    certificate = certify_release(SAMPLED, target.along(PROFILE), failure_probability=0.01)
    assert verify(certificate).holds
    slices = attrs.evolve(
        certificate.evidence.slices,
        differences=scaled(certificate.evidence.slices.differences, 1e-2),
    )
    forged = issued(attrs.evolve(certificate.evidence, slices=slices), certificate.statement)
    assert forged.noise_std < certificate.noise_std / 10
    assert any("bands" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
@pytest.mark.parametrize("target", [JOINT, Guarantee.joint(epsilon=1.0, delta=0.1)])
def test_bands_of_another_failure_probability(target):
    """Bands for 1 % are too narrow for a failure probability of 1e-12, whatever is stated."""
    certificate = certify_release(SAMPLED, target.along(PROFILE), failure_probability=0.01)
    evidence = certificate.evidence
    confidence = attrs.evolve(evidence.confidence, failure_probability=1e-12)
    slices = attrs.evolve(evidence.slices, failure_probability=1e-12)
    forged = issued(
        attrs.evolve(evidence, confidence=confidence, slices=slices), certificate.statement
    )
    assert forged.statement.failure_probability == 1e-12
    assert any("levels" in problem for problem in verify(forged).problems)


@pytest.mark.soundness
def test_gaps_without_what_lies_beyond_the_bands(from_samples):
    slices = from_samples.evidence.slices
    beyond = attrs.evolve(slices.beyond, gaps=slices.beyond.gaps * 100)
    slices = attrs.evolve(slices, beyond=beyond)
    forged = issued(attrs.evolve(from_samples.evidence, slices=slices), from_samples.statement)
    assert any("beyond" in problem for problem in verify(forged).problems)


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


def is_free(path, statement):
    """What the caller decided and nothing else follows from."""
    if path == ("noise", "calibrated") or path[0] == "earlier_releases":
        return True
    if path == ("noise", "shape", "gap") and statement.profile is None:
        return True
    if path == ("noise", "generator") and not statement.noise.secure:
        return True
    if statement.distributions_are_equal:
        return path[0] in ("guarantee", "method")  # any claim and any method costs nothing then
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_an_untouched_certificate_holds(certificates, kind):
    verification = verify(certificates[kind])
    assert verification.holds
    assert verification.problems == ()
    assert not verification.signed
    assert str(verification).startswith("VERIFIED from the evidence. Cannot be checked here:")


def test_what_cannot_be_checked_is_reported(certificates):
    verification = verify(certificates["records"])
    assert len(verification.unchecked) == len(UNCHECKED)
    for field in UNCHECKED:
        assert any(line.startswith(f"{field}: ") for line in verification.unchecked)
        assert field in str(verification)


@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["records", "unsliced", "groups", "gaussian", "equal", "seeded"])
def test_every_changed_field_is_noticed_though_the_digest_fits(certificates, kind):
    certificate = certificates[kind]
    reversed_lists = (
        (path, statement_of(put(certificate.statement.to_json(), path, value[::-1])))
        for path, value in inner(certificate.statement.to_json())
        if isinstance(value, list) and value != value[::-1]
    )
    missed = {
        path
        for path, statement in (*changes(certificate.statement), *reversed_lists)
        if verify(Certificate(statement=statement, evidence=certificate.evidence)).holds
    }
    assert {path for path in missed if not is_free(path, certificate.statement)} == set()
    names = {".".join(map(str, path)).split(".0")[0] for path in missed}
    assert {name for name in names if name.split(".")[0] not in ("guarantee", "method")} <= set(
        UNCHECKED
    )


@pytest.mark.parametrize(
    ("path", "word"),
    [
        (("guarantee", "notion"), "average"),
        (("method", "envelope"), "worst_gap"),
        (("scenario", "distribution"), "bootstrap"),
        (("scenario", "priors", 0, "source"), "public_model"),
        (("scenario", "priors", 0, "kind"), "gaussian"),
        (("views", 0, "rule"), "improved"),
        (("scenario", "query", "missing"), "drop-rows"),
    ],
)
def test_another_word_that_exists(certificates, path, word):
    other = stating(certificates["records"], path, word)
    assert other.digest != certificates["records"].digest
    assert not verify(other).holds


@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["records", "gaussian", "unsliced"])
def test_noise_a_little_smaller_than_certified(certificates, kind):
    """Room for another machine's rounding is not room for less noise than epsilon needs."""
    factor = 1 - 6e-10

    def shrink(statement):
        noise = statement["noise"]
        noise["std"], noise["grid"] = noise["std"] * factor, noise["grid"] * factor
        noise["std_by_coordinate"] = [std * factor for std in noise["std_by_coordinate"]]

    assert not verify(changed(certificates[kind], shrink)).holds


def test_without_evidence(certificates):
    verification = verify(attrs.evolve(certificates["records"], evidence=None))
    assert not verification.holds
    assert "statement only" in str(verification)
    assert not str(verification).startswith("VERIFIED")


def test_with_the_evidence_of_another(certificates):
    mixed = attrs.evolve(certificates["records"], evidence=certificates["worst_gap"].evidence)
    (problem,) = verify(mixed).problems
    assert "does not belong to this statement" in problem
    assert str(verify(mixed)).startswith("REFUTED")


def test_problems_name_field_and_both_values(certificates):
    (problem,) = verify(stating(certificates["records"], ("unsliced", "epsilon"), 0.25)).problems
    assert problem.startswith("unsliced.epsilon is 0.25 in the statement, the evidence gives ")


NONSENSE = [None, "x", [], {}, True, 0, -1, 1e308, 1e-308, 10**400, [1], {"a": 1}]


@pytest.mark.parametrize(
    "section",
    [
        ("guarantee", "order"),
        ("guarantee", "epsilon"),
        ("guarantee",),
        ("method", "envelope"),
        ("noise", "generator"),
        ("noise", "std"),
        ("views", 0, "delta"),
        ("views",),
        ("scenario",),
        ("evidence_digest",),
        ("limits",),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["records", "gaussian"])
def test_nonsense_is_refuted_not_a_crash(certificates, kind, section):
    for nonsense in NONSENSE:
        if section == ("views",) and nonsense == []:
            continue  # asked for above
        assert not verify(stating(certificates[kind], section, nonsense)).holds, nonsense


def replaced(certificate, **parts):
    """The certificate with other evidence, the digest in the statement recomputed."""
    evidence = attrs.evolve(certificate.evidence, **parts)
    statement = certificate.statement.model_copy(update={"evidence_digest": evidence.digest()})
    return Certificate(statement=statement, evidence=evidence)


def changed_arrays(certificate):
    """One entry of one array of the evidence changed, up and down, in every array in turn."""
    for part in ("slices", "full"):
        half = getattr(certificate.evidence, part)
        seen = half.differences
        names = ["gaps", "equal"] if isinstance(seen, DistanceTables) else ["means", "covs"]
        for name in names:
            array = getattr(seen, name)
            for position in {0, array.size // 3, array.size // 2, array.size - 1}:
                for factor in (1.3, 0.7):
                    other = array.copy()
                    other.flat[position] = (
                        not array.flat[position]
                        if array.dtype == bool
                        else array.flat[position] * factor + (factor - 1) * 0.01
                    )
                    changed = attrs.evolve(half, differences=attrs.evolve(seen, **{name: other}))
                    yield f"{part}.{name}[{position}]", replaced(certificate, **{part: changed})
        if isinstance(seen, DistanceTables):
            # Move mass between the two ends of a row, so that the row still sums to one.
            ends = int(seen.starts[0]), int(seen.starts[1]) - 1
            for gains, loses in (ends, ends[::-1]):
                counts = seen.counts.copy()
                moved = counts[loses] - 1
                counts[gains], counts[loses] = counts[gains] + moved, counts[loses] - moved
                changed = attrs.evolve(half, differences=attrs.evolve(seen, counts=counts))
                yield f"{part}.counts", replaced(certificate, **{part: changed})
    slices = certificate.evidence.slices
    n = slices.profile.n_directions
    for name, array in (
        ("directions", slices.profile.directions[::-1]),
        ("weights", 2 * np.arange(1, n + 1) / (n * (n + 1))),
    ):
        profile = attrs.evolve(slices.profile, **{name: array})
        yield name, replaced(certificate, slices=attrs.evolve(slices, profile=profile))


def plain_costs(evidence, claim, noise_std):
    """(sliced cost, unsliced cost) of gap tables or Gaussian pairs, in plain numpy."""

    def rows(seen):
        rate = claim.order * (claim.order - 1) / 2 / noise_std**2
        for row in range(len(seen.starts) - 1):
            part = slice(seen.starts[row], seen.starts[row + 1])
            mean = np.average(np.exp(rate * seen.gaps[part] ** 2), weights=seen.counts[part])
            equal = seen.equal[row % len(seen.totals)]
            yield 0.0 if equal else math.log(mean) / (claim.order - 1)

    slices = np.reshape(
        list(rows(evidence.slices.differences)), (-1, len(evidence.slices.differences.totals))
    )
    full = np.reshape(
        list(rows(evidence.full.differences)), (-1, len(evidence.full.differences.totals))
    )
    weights, a = evidence.slices.profile.weights, claim.order - 1
    joint = np.log(weights @ np.exp(a * slices)) / a
    sliced = joint if claim.notion == "joint" else weights @ slices
    return float(sliced.max()), float(full.min(axis=0).max())


@pytest.fixture(scope="session")
def simple():
    """One pair, several atoms, along slices that all matter."""
    scenario = worlds(
        a=[[0.0, 0.0], [1.0, 0.5], [2.0, 2.5], [3.0, 1.0]],
        b=[[1.0, 0.1], [2.5, 0.7], [2.9, 3.5], [5.0, 2.0]],
    )
    profile = FiniteProfile(
        directions=FiniteProfile.uniform(dim=2, n_directions=3, seed=4).directions,
        weights=[0.2, 0.3, 0.5],
    )
    return certify_release(scenario, Guarantee.joint(order=3, epsilon=1.0, profile=profile))


def test_the_plain_costs_are_the_certified_ones(simple, certificates):
    for certificate in (simple, certificates["records"], certificates["bootstrap"]):
        claim = certificate.guarantee
        sliced, full = plain_costs(certificate.evidence, claim, certificate.noise_std)
        assert sliced == pytest.approx(certificate.spent, rel=1e-9)
        assert full == pytest.approx(certificate.unsliced_epsilon, rel=1e-9)


@pytest.mark.soundness
@pytest.mark.parametrize("kind", ["simple", "records", "groups", "bootstrap"])
def test_changed_evidence_is_noticed_or_leaves_the_claim_true(certificates, simple, kind):
    certificate = simple if kind == "simple" else certificates[kind]
    n_noticed = n_changed = 0
    for what, other in changed_arrays(certificate):
        n_changed += 1
        if not verify(other).holds:
            n_noticed += 1
            continue
        sliced, full = plain_costs(other.evidence, other.guarantee, other.noise_std)
        assert sliced <= other.guarantee.epsilon * (1 + 1e-9), what
        assert full <= other.unsliced_epsilon * (1 + 1e-9), what
    assert n_noticed >= (n_changed / 2 if kind == "simple" else 3)


def test_fewer_directions_than_tables(certificates):
    slices = certificates["records"].evidence.slices
    few = FiniteProfile.of(slices.profile.directions[:-1])
    with pytest.raises(ArgumentError, match="was not made along the slices"):
        attrs.evolve(slices, profile=few)


@pytest.mark.soundness
def test_pairs_that_no_table_is_about(certificates):
    """A statement and evidence that both list a pair more than was computed."""
    certificate = certificates["records"]
    scenario = copy.deepcopy(dict(certificate.evidence.scenario))
    scenario["secrets"].append("east")
    scenario["pairs"].append(["east", "north"])
    other = replaced(certificate, scenario=scenario)
    assert not verify(stating(other, ("scenario",), scenario)).holds


@pytest.mark.soundness
def test_distributions_that_are_called_equal_against_their_own_tables(certificates):
    """Noise 0 with gaps that are not 0 in the evidence."""
    certificate = certificates["records"]
    slices = certificate.evidence.slices
    equal = np.ones_like(slices.differences.equal)
    evidence = attrs.evolve(
        certificate.evidence,
        slices=attrs.evolve(slices, differences=attrs.evolve(slices.differences, equal=equal)),
    )
    try:
        forged = issued(evidence, certificate.statement)
    except PuffersliceError:
        return
    assert not verify(forged).holds


def test_differences():
    said = {"a": 1, "b": [1.0, 2.0], "c": {"d": "x"}, "e": True}
    assert list(differences(said, copy.deepcopy(said))) == []
    assert list(differences(said, {**said, "a": 2})) == [("a", 1, 2)]
    assert list(differences(said, {**said, "b": [1.0]})) == [("b", [1.0, 2.0], [1.0])]
    assert list(differences(said, {**said, "b": [1.0, 2.1]})) == [("b[1]", 2.0, 2.1)]
    assert list(differences(said, {**said, "c": {}})) == [("c.d", "x", "absent")]
    assert list(differences(said, {**said, "e": 1})) == [("e", True, 1)]
    assert list(differences({"a": 1}, {"a": 1.0})) == []
    assert list(differences({"a": None}, {"a": 0})) == [("a", None, 0)]
    assert list(differences({"a": 1.0}, {"a": 1.0 + 1e-12})) == []
    assert list(differences({"a": 0.0}, {"a": 1e-300})) == [("a", 0.0, 1e-300)]
