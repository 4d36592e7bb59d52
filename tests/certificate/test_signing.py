# SPDX-License-Identifier: Apache-2.0
import json
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from tests.certificate.conftest import changed
from tests.certificate.test_budget import GUESS, PARTS, SHARES, YEARBOOK

from pufferslice import certify_budget
from pufferslice.certificate import Certificate, new_key_pair, sign, verify
from pufferslice.certificate.signature import STATEMENT, signature_of
from pufferslice.certificate.signing import private_key_of, signature_problem
from pufferslice.errors import ArgumentError, CertificateError, StorageError

DAY = "2026-01-31T09:30:00Z"
UNFIT = "the signature does not fit the statement, its date or its serial"


@pytest.fixture(scope="session")
def keys():
    return new_key_pair()


@pytest.fixture
def signed(certificates, keys):
    return sign(certificates["records"], keys[0])


def test_the_right_key(signed, keys):
    verification = verify(signed, public_key=keys[1])
    assert verification.holds
    assert verification.signed
    assert "the signature holds" in str(verification)


def test_without_a_key_the_signature_is_unchecked(signed, certificates):
    verification = verify(signed)
    assert verification.holds
    assert not verification.signed
    assert verification.unchecked[-1].startswith("signature: ")
    assert "the signature holds" not in str(verification)
    assert "signature" not in str(verify(certificates["records"]))


def test_another_key(signed):
    verification = verify(signed, public_key=new_key_pair()[1])
    assert verification.problems == ("the certificate was signed with another key",)
    assert not verification.signed


def test_no_signature(certificates, keys):
    verification = verify(certificates["records"], public_key=keys[1])
    assert verification.problems == ("the certificate carries no signature",)


def test_a_tampered_statement(signed, keys):
    def mention(statement):
        statement["earlier_releases"].append("ab" * 32)
        place = statement["limits"].index("one-release") + 1
        statement["limits"].insert(place, "earlier-releases-apart")

    other = changed(signed, mention)
    other = attrs.evolve(other, signature=signed.signature)
    assert verify(other).holds
    assert verify(other, public_key=keys[1]).problems == (UNFIT,)


@pytest.mark.parametrize("value", ["", "zz", "00" * 64, "00" * 63])
def test_a_tampered_signature(signed, keys, value):
    other = attrs.evolve(signed, signature={**signed.signature, "value": value})
    assert signature_problem(other, keys[1]) == UNFIT


@pytest.mark.parametrize("field", ["public_key", "value", "algorithm"])
def test_a_signature_that_lacks_a_part(signed, keys, field):
    part = {key: value for key, value in signed.signature.items() if key != field}
    assert signature_problem(attrs.evolve(signed, signature=part), keys[1]) is not None


@pytest.mark.parametrize("signature", ["text", {"public_key": 5, "value": 6}, [1]])
def test_a_signature_of_another_shape_is_a_problem_not_a_crash(signed, keys, signature):
    assert not verify(attrs.evolve(signed, signature=signature), public_key=keys[1]).holds


def test_whoever_has_only_the_statement_can_still_check_the_signature(signed, keys):
    """The evidence is confidential, so this is what the public can do."""
    verification = verify(attrs.evolve(signed, evidence=None), public_key=keys[1])
    assert not verification.holds
    assert any("statement only" in problem for problem in verification.problems)
    assert verification.signed


@pytest.mark.soundness
def test_what_does_not_verify_is_not_signed(certificates, keys):
    false = changed(certificates["records"], lambda s: s["guarantee"].update(epsilon=0.5))
    without = attrs.evolve(certificates["records"], evidence=None)
    for certificate in (false, without):
        with pytest.raises(CertificateError, match="does not verify, so it is not signed"):
            sign(certificate, keys[0])


def test_a_good_signature_under_a_false_claim(certificates, keys):
    """Of somebody with a program of their own."""
    false = changed(certificates["records"], lambda s: s["guarantee"].update(epsilon=0.5))
    signature = signature_of(
        STATEMENT, false.statement.to_json(), keys[0], date=DAY, serial=1, ledger=None
    )
    verification = verify(attrs.evolve(false, signature=signature), public_key=keys[1])
    assert not verification.holds
    assert verification.signed


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("field", "value"),
    [("date", "2026-03-01T09:30:00Z"), ("serial", 8), ("ledger", "cd" * 32), ("ledger", None)],
)
def test_date_serial_and_ledger_are_signed(certificates, keys, field, value):
    signed = sign(certificates["records"], keys[0], date=DAY, serial=7, ledger="ab" * 32)
    assert verify(signed, public_key=keys[1]).holds
    other = attrs.evolve(signed, signature={**signed.signature, field: value})
    assert "date or its serial" in signature_problem(other, keys[1])
    missing = {name: part for name, part in signed.signature.items() if name != field}
    assert signature_problem(attrs.evolve(signed, signature=missing), keys[1]) is not None


def test_without_a_date_it_is_now(signed):
    stated = datetime.strptime(signed.signature["date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - stated) < timedelta(minutes=5)
    assert (signed.signature["serial"], signed.signature["ledger"]) == (1, None)
    assert Certificate.from_json(signed.to_json()).signature == signed.signature


@pytest.mark.parametrize("date", ["2026-01-31", "31.1.2026", "2026-13-01T00:00:00Z", 5])
def test_what_is_no_date(certificates, keys, date):
    with pytest.raises(ArgumentError, match="date must be a date and time in UTC"):
        sign(certificates["records"], keys[0], date=date)


@pytest.mark.parametrize(
    ("not_before", "holds"), [("2026-01-31", True), ("2026-01-30", True), ("2026-02-01", False)]
)
def test_not_before(certificates, keys, not_before, holds):
    signed = sign(certificates["records"], keys[0], date=DAY)
    verification = verify(signed, public_key=keys[1], not_before=not_before)
    assert verification.holds is holds
    if not holds:
        assert verification.problems == (
            "the certificate was signed on 2026-01-31, before 2026-02-01",
        )


def test_a_date_without_a_signature_or_a_key_is_no_date(signed, certificates, keys):
    unsigned = verify(certificates["records"], public_key=keys[1], not_before="2026-01-01")
    assert unsigned.problems == ("the certificate carries no signature",)
    for said in ({"not_before": "2026-01-01"}, {"newer": signed}):
        with pytest.raises(ArgumentError, match="need public_key"):
            verify(signed, **said)
    with pytest.raises(ArgumentError, match="not_before must be a day"):
        verify(signed, public_key=keys[1], not_before="yesterday")


@pytest.fixture(scope="module")
def budget():
    return certify_budget(PARTS, GUESS, shares=SHARES)


class TestRevocation:
    LEDGER = "ab" * 32

    def revoked(self, keys, certificate, newer):
        problems = verify(certificate, public_key=keys[1], newer=newer).problems
        assert all("revoked" in problem for problem in problems)
        return bool(problems)

    def test_a_newer_certificate_of_the_same_ledger_and_secret(self, certificates, keys):
        old = sign(certificates["records"], keys[0], date=DAY, serial=3, ledger=self.LEDGER)
        for serial, ledger, is_revoked in [
            (4, self.LEDGER, True), (2, self.LEDGER, False), (4, "cd" * 32, False), (4, None, False)
        ]:  # fmt: skip
            # groups are about the same column
            new = sign(certificates["groups"], keys[0], serial=serial, ledger=ledger)
            assert self.revoked(keys, old, new) is is_revoked
        alone = sign(certificates["records"], keys[0], date=DAY, serial=3)
        new = sign(certificates["groups"], keys[0], serial=4, ledger=self.LEDGER)
        assert not self.revoked(keys, alone, new)

    def test_it_does_not_revoke_itself_or_another_secret(self, certificates, budget, keys):
        old = sign(certificates["records"], keys[0], serial=3, ledger=self.LEDGER)
        again = sign(certificates["records"], keys[0], serial=9, ledger=self.LEDGER)
        other = sign(budget, keys[0], serial=9, ledger=self.LEDGER)
        assert not self.revoked(keys, old, again)
        assert not self.revoked(keys, old, other)

    def test_budgets_revoke_and_are_revoked(self, budget, keys):
        other = certify_budget({"year": YEARBOOK}, GUESS)
        old = sign(other, keys[0], serial=3, ledger=self.LEDGER)
        assert self.revoked(keys, old, sign(budget, keys[0], serial=4, ledger=self.LEDGER))
        assert not self.revoked(keys, old, sign(budget, keys[0], serial=2, ledger=self.LEDGER))

    def test_somebody_else_revokes_nothing(self, certificates, keys):
        old = sign(certificates["records"], keys[0], serial=3, ledger=self.LEDGER)
        new = sign(certificates["groups"], new_key_pair()[0], serial=9, ledger=self.LEDGER)
        with pytest.raises(ArgumentError, match="newer must be a certificate that the same key"):
            verify(old, public_key=keys[1], newer=new)


@pytest.mark.soundness
def test_a_key_that_others_can_read_signs_nothing(tmp_path, keys):
    path = tmp_path / "private.pem"
    path.write_bytes(keys[0])
    for mode in (0o644, 0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(StorageError, match="can be read by others"):
            private_key_of(path)
    path.chmod(0o600)
    assert private_key_of(path) == keys[0]


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"-----BEGIN PRIVATE KEY-----\nAA\n"])
def test_garbage_is_no_key(signed, garbage):
    with pytest.raises(CertificateError, match="private key must be an unencrypted Ed25519"):
        sign(signed, garbage)
    with pytest.raises(CertificateError, match="public key must be an Ed25519"):
        verify(signed, public_key=garbage)


def test_a_key_of_no_known_algorithm(signed, keys):
    """One digit of the number of Ed25519 is changed."""
    private, public = (key.replace(b"BQYDK2Vw", b"BQYDJ2Vw") for key in keys)
    assert (private, public) != keys
    with pytest.raises(CertificateError, match="private key must be an unencrypted Ed25519"):
        sign(signed, private)
    with pytest.raises(CertificateError, match="public key must be an Ed25519"):
        verify(signed, public_key=public)


def test_an_rsa_key(signed):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(CertificateError, match="private key must be Ed25519, got RSA"):
        sign(signed, private)
    with pytest.raises(CertificateError, match="public key must be Ed25519, got RSA"):
        verify(signed, public_key=public)


def test_the_private_key_is_nowhere(signed, keys):
    raw = load_pem_private_key(keys[0], password=None).private_bytes_raw()
    assert raw.hex() not in json.dumps(signed.to_json())
