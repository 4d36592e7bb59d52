# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S106 - a secret is a column here
import copy
import json
import re
from importlib.resources import files

import attrs
import jsonschema
import numpy as np
import pyarrow as pa
import pytest

from pufferslice.calibration import epsilon_delta, guarantee
from pufferslice.calibration.calibrate import RULES
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.calibration.noise import OperatingSystemNoise
from pufferslice.certificate import Certificate, certify_release, new_key_pair, sign
from pufferslice.certificate.certificate import FORMAT, VERSION, evidence_path
from pufferslice.errors import CertificateError, StorageError
from pufferslice.queries import Ball, columns, summary
from pufferslice.scenario import priors
from pufferslice.scenario.scenario import Scenario
from pufferslice.scenario.secrets import Bins
from pufferslice.sensitivity import DistanceTables
from pufferslice.sensitivity.profiles import FiniteProfile
from pufferslice.sensitivity.sensitivity import ENVELOPES

KINDS = [
    "records",
    "worst_gap",
    "closed_form",
    "unsliced",
    "groups",
    "bootstrap",
    "sampled",
    "approximate",
    "sphere",
    "gaussian",
    "equal",
    "seeded",
]


@pytest.fixture(scope="session")
def schema():
    text = files("pufferslice.certificate").joinpath("certificate.schema.json").read_text("utf-8")
    return json.loads(text)


@pytest.fixture(scope="session")
def validator(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def inner(value, path=()):
    """Every JSON value inside a document, with its path."""
    yield path, value
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from inner(part, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def numbers_in(document):
    return [v for _, v in inner(document) if isinstance(v, int | float)]


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_give_the_same_bits(certificates, kind, tmp_path):
    certificate = certificates[kind]
    certificate.save(tmp_path / "c.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.evidence.npz", "c.json"]
    loaded = Certificate.load(tmp_path / "c.json")
    assert loaded.statement == certificate.statement
    assert loaded.digest == certificate.digest
    assert loaded.evidence.digest() == certificate.evidence.digest()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c.json").read_bytes()


def test_properties(certificates):
    certificate = certificates["records"]
    assert certificate.guarantee == Guarantee.joint(order=4, epsilon=1.0)
    assert certificate.noise_std == certificate.statement["noise"]["std"] > 0
    assert certificate.spent_epsilon <= 1.0
    assert certificate.unsliced_epsilon > 1.0
    assert certificate.is_secure
    assert not certificates["seeded"].is_secure
    assert repr(certificate) == (
        f"Certificate(digest='{certificate.digest[:12]}…', guarantee='(4, 1)-Joint-SRPP')"
    )


def test_the_digest_is_of_the_whole_statement(certificates, changed):
    certificate = certificates["records"]
    for key in certificate.statement:
        other = changed(certificate, lambda statement, key=key: statement.pop(key))
        assert other.digest != certificate.digest


def test_an_edited_file(certificates, tmp_path):
    certificates["records"].save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    (tmp_path / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 0.5', 1))
    with pytest.raises(CertificateError, match=r"was edited: its digest says.*certify again"):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_another_version(certificates, version):
    document = {**certificates["records"].to_json(), "version": version}
    with pytest.raises(CertificateError, match=r"version.*Verify it with the program that issued"):
        Certificate.from_json(document)


@pytest.mark.parametrize("document", [None, 5, [], "text", {}, {"format": "other"}])
def test_documents_that_are_no_certificate(document):
    with pytest.raises(CertificateError, match="'format' is not 'pufferslice-certificate'"):
        Certificate.from_json(document)


def test_parts_of_a_document(certificates):
    document = certificates["records"].to_json()
    for broken in (
        {**document, "more": 1},
        {key: part for key, part in document.items() if key != "digest"},
        {key: part for key, part in document.items() if key != "statement"},
    ):
        with pytest.raises(CertificateError, match="exactly: format, version, statement, digest"):
            Certificate.from_json(broken)
    for statement in (5, {**document["statement"], "more": 1}, {}):
        with pytest.raises(CertificateError, match="must have exactly its parts; wrong: "):
            Certificate.from_json({**document, "statement": statement})


@pytest.mark.parametrize("section", ["scenario", "guarantee", "method", "noise", "unsliced"])
@pytest.mark.parametrize("inside", [{}, [], None, {"order": "x"}])
def test_a_statement_that_is_hollow_is_not_read(certificates, changed, section, inside):
    """Anyone can make the digest fit; what is read must be safe to print."""
    hollow = changed(certificates["records"], lambda statement: statement.update({section: inside}))
    with pytest.raises(CertificateError):
        Certificate.from_json(json.loads(json.dumps(hollow.to_json())))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"PAR1 not JSON"])
def test_a_file_that_is_not_json(content, tmp_path):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(CertificateError, match="is not a certificate: it is not JSON"):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_file_with_a_number_that_json_does_not_have(certificates, number, tmp_path):
    document = copy.deepcopy(certificates["records"].to_json())
    document["statement"]["noise"]["std"] = number
    (tmp_path / "c.json").write_text(json.dumps(document))
    with pytest.raises(CertificateError):
        Certificate.load(tmp_path / "c.json")


def test_a_file_that_says_a_thing_twice(certificates, tmp_path):
    """Python takes the last of two equal keys, other readers the first."""
    certificates["records"].save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    twice = text.replace('"notion":', '"epsilon": 0.001,\n "notion":', 1)
    assert twice != text
    (tmp_path / "c.json").write_text(twice)
    with pytest.raises(CertificateError):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize("signature", ["text", 5, [], {}, {"algorithm": "ed25519"}])
def test_a_signature_of_another_shape(certificates, signature):
    document = {**certificates["records"].to_json(), "signature": signature}
    with pytest.raises(CertificateError):
        Certificate.from_json(document)


def test_an_absent_file(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*nowhere.json"):
        Certificate.load(tmp_path / "nowhere.json")


def test_a_folder_that_is_not_there(certificates, tmp_path):
    with pytest.raises(StorageError, match=r"cannot write .*nothing was changed"):
        certificates["records"].save(tmp_path / "nowhere" / "c.json")


def test_the_statement_alone(certificates, tmp_path):
    certificates["records"].save_statement(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json").evidence is None


def test_truncated_evidence(certificates, tmp_path):
    certificates["records"].save(tmp_path / "c.json")
    evidence = tmp_path / "c.evidence.npz"
    evidence.write_bytes(evidence.read_bytes()[:-100])
    with pytest.raises(CertificateError, match="the evidence cannot be read"):
        Certificate.load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("name", "beside"), [("c.json", "c.evidence.npz"), ("c", "c.evidence.npz")]
)
def test_where_the_evidence_lies(tmp_path, name, beside):
    assert evidence_path(tmp_path / name) == tmp_path / beside


@pytest.mark.parametrize("name", ["", "c.evidence.npz"])
def test_names_that_would_hit_the_evidence(name):
    with pytest.raises(StorageError, match="cannot name a certificate"):
        evidence_path(name)


def test_the_evidence_of_a_medium_case_is_small(rng, tmp_path):
    table = pa.table(
        {
            "s": np.repeat(["a", "b", "c"], 5_000),
            **{f"x{k}": rng.normal(size=15_000) for k in range(6)},
        }
    )
    scenario = Scenario.from_records(table, secret="s", query=columns([f"x{k}" for k in range(6)]))
    profile = FiniteProfile.uniform(dim=6, n_directions=100, seed=1)
    certificate = certify_release(scenario, Guarantee.joint(order=4, epsilon=1.0, profile=profile))
    certificate.save(tmp_path / "c.json")
    assert (tmp_path / "c.evidence.npz").stat().st_size < 5e6
    assert (tmp_path / "c.json").stat().st_size < 2e4


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
def test_the_public_part_has_no_count_and_no_number_of_the_data(
    certificates, table, kind, tmp_path
):
    certificate = certificates[kind]
    certificate.save_statement(tmp_path / "c.json")
    public = json.loads((tmp_path / "c.json").read_text())
    confidential = {float(v) for name in ("pay", "age") for v in table[name].to_pylist()}
    for seen in (certificate.evidence.slices.seen, certificate.evidence.full.seen):
        # Only worst gaps have all their digits; the others may be round by chance.
        if isinstance(seen, DistanceTables):
            confidential |= {gap for gap in seen.worst().flat if not (64 * gap).is_integer()}
    assert not confidential & set(map(float, numbers_in(public)))

    counts = [n for by in certificate.evidence.confidential["n_rows"].values() for n in by.values()]
    without_rows = ("gaussian", "equal", "sampled", "approximate")
    assert kind in without_rows or max(counts) == 53
    texts = [v for _, v in inner(public) if isinstance(v, str) and len(v) not in (64, 128)]
    words = {int(word) for text in texts for word in re.findall(r"\d+", text)}
    said = words | {int(v) for v in numbers_in(public) if float(v).is_integer()}
    assert not said & {*counts, sum(counts)} - {0}


def test_the_public_part_has_no_digest_of_the_bare_distributions(certificates, records):
    """A digest without salt could be used to check guesses of the data."""
    text = json.dumps(certificates["records"].to_json())
    assert records.distributions_digest() not in text
    assert (
        certificates["records"].evidence.confidential["distributions_digest"]
        == records.distributions_digest()
    )


def test_two_certificates_of_one_thing_have_different_names(records, profile):
    claim = Guarantee.joint(order=4, epsilon=1.0)
    one, two = (certify_release(records, claim.along(profile)) for _ in range(2))
    assert one.noise_std == two.noise_std
    assert one.digest != two.digest


@pytest.mark.parametrize("kind", KINDS)
def test_every_certificate_fits_the_schema(certificates, validator, kind):
    private, _ = new_key_pair()
    for certificate in (certificates[kind], sign(certificates[kind], private)):
        validator.validate(json.loads(json.dumps(certificate.to_json())))


def test_other_secrets_and_ranges_fit_the_schema(table, validator):
    query = summary(mean=["pay", "age"]).with_range(Ball([30.0, 20.0], 50.0))
    secrets = [Bins(column="pay", quantiles=3), ["site"]]
    for secret in secrets:
        scenario = Scenario.from_groups(table, secret=secret, query=query)
        certificate = certify_release(
            scenario, Guarantee.average(order=2, epsilon=1.0, profile=FiniteProfile.axes(dim=2))
        )
        validator.validate(json.loads(json.dumps(certificate.to_json())))


@pytest.mark.parametrize("kind", ["records", "gaussian", "groups", "approximate", "sphere"])
def test_the_schema_is_strict(certificates, validator, kind):
    private, _ = new_key_pair()
    document = json.loads(json.dumps(sign(certificates[kind], private).to_json()))
    loose = [
        path
        for path, value in inner(document)
        if isinstance(value, dict) and "parameters" not in path
        for broken in [copy.deepcopy(document)]
        if at(broken, path).update(more=1) is None and validator.is_valid(broken)
    ]
    assert loose == []
    optional = [
        path
        for path, _ in inner(document)
        if path and isinstance(path[-1], str) and "parameters" not in path
        for broken in [copy.deepcopy(document)]
        if at(broken, path[:-1]).pop(path[-1]) is not None and validator.is_valid(broken)
    ]
    assert optional == [("signature",)]


def test_the_schema_types_every_field(certificates, validator):
    private, _ = new_key_pair()
    document = json.loads(json.dumps(sign(certificates["records"], private).to_json()))
    untyped = []
    for path, value in inner(document):
        for other in ({"a": []}, [{}], True, -1.5, {}):
            if "parameters" in path or isinstance(value, type(other)):
                continue
            broken = copy.deepcopy(document)
            if path:
                at(broken, path[:-1])[path[-1]] = other
            if validator.is_valid(other if not path else broken):
                untyped.append((path, other))
    # Ranges may be negative.
    assert {path[:4] for path, _ in untyped} <= {
        ("statement", "scenario", "query", "range"),
        ("statement", "scenario", "counted_range"),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["noise"].update(secure=False),
        lambda s: s["noise"].update(generator="seeded_test"),
        lambda s: s["noise"].update(std=0.0),
        lambda s: s.update(distributions_are_equal=True),
        lambda s: s["guarantee"].update(order=1.0),
        lambda s: s["guarantee"].update(epsilon=0.0),
        lambda s: s["guarantee"].update(notion="Joint"),
        lambda s: s["method"].update(rule="closed_form"),
        lambda s: s.update(failure_probability=1.0),
        lambda s: s["scenario"]["pairs"].append(["north"]),
        lambda s: s["scenario"]["priors"][0].update(source="released data"),
        lambda s: s["scenario"].update(secret={"column": "site"}),
        lambda s: s.update(earlier_releases=["first"]),
        lambda s: s.update(evidence_digest="ABC"),
        lambda s: s["views"][0].update(delta=1.0),
    ],
)
def test_statements_that_the_schema_refuses(certificates, changed, validator, change):
    assert validator.is_valid(certificates["records"].to_json())
    assert not validator.is_valid(changed(certificates["records"], change).to_json())


def test_the_schema_knows_the_words_of_the_code(schema):
    defs = schema["$defs"]

    def words(name, field):
        return set(defs[name]["properties"][field]["enum"])

    assert schema["properties"]["format"]["const"] == FORMAT
    assert schema["properties"]["version"]["const"] == VERSION
    assert words("scenario", "distribution") == set(priors.LAWS)
    assert words("prior", "source") == set(priors.SOURCES)
    assert words("guarantee", "notion") == set(guarantee.RELEASE_NOTIONS)
    assert words("method", "rule") == set(RULES)
    assert words("method", "envelope") == set(ENVELOPES)
    assert words("view", "rule") == set(epsilon_delta.ViewRule.__args__)
    scopes = attrs.fields_dict(epsilon_delta.View)["scope"].type.__args__
    assert words("view", "scope") == set(scopes)
    generator = defs["noise"]["if"]["properties"]["generator"]["const"]
    assert generator == OperatingSystemNoise.name
