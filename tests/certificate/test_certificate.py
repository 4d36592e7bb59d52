# SPDX-License-Identifier: Apache-2.0

import copy
import json
import re

import pytest
from tests.certificate.conftest import KINDS
from tests.json_edits import inner

from pufferslice.certificate import Certificate, certify_release
from pufferslice.certificate.certificate import evidence_path
from pufferslice.claims import Guarantee
from pufferslice.errors import CertificateError, StorageError
from pufferslice.sensitivity.tables import DistanceTables


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
    assert certificate.noise_std == certificate.statement.noise.std > 0
    assert certificate.spent <= 1.0
    assert certificate.unsliced_epsilon > 1.0
    assert certificate.is_secure
    assert not certificates["seeded"].is_secure
    assert repr(certificate) == (
        f"Certificate(digest='{certificate.digest[:12]}…', guarantee='(4, 1)-Joint-SRPP')"
    )


def test_an_edited_file(certificates, tmp_path):
    certificates["records"].save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    (tmp_path / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 2.0', 1))
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


def test_an_absent_file(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*nowhere.json"):
        Certificate.load(tmp_path / "nowhere.json")


def test_the_statement_alone(certificates, tmp_path):
    certificates["records"].save_statement(tmp_path / "c.json")
    assert Certificate.load(tmp_path / "c.json").evidence is None


@pytest.mark.parametrize("name", ["", "c.evidence.npz"])
def test_names_that_would_hit_the_evidence(name):
    with pytest.raises(StorageError, match="cannot name a certificate"):
        evidence_path(name)


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
def test_the_public_part_has_no_count_and_no_number_of_the_data(
    certificates, table, kind, tmp_path
):
    certificate = certificates[kind]
    certificate.save_statement(tmp_path / "c.json")
    public = json.loads((tmp_path / "c.json").read_text())
    confidential = {float(v) for name in ("pay", "age") for v in table[name].to_pylist()}
    slices, full = certificate.evidence.slices, certificate.evidence.full
    for seen in (slices and slices.differences, full.differences):
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
