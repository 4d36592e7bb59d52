# SPDX-License-Identifier: Apache-2.0
import json

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

from pufferslice.certificate import new_key_pair, sign, verify
from pufferslice.certificate.signing import signature_problem
from pufferslice.errors import CertificateError


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
    assert verify(other, public_key=keys[1]).problems == (
        "the signature does not fit the statement",
    )


@pytest.mark.parametrize("value", ["", "zz", "00" * 64, "00" * 63])
def test_a_tampered_signature(signed, keys, value):
    other = attrs.evolve(signed, signature={**signed.signature, "value": value})
    assert signature_problem(other, keys[1]) == "the signature does not fit the statement"


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


def test_a_good_signature_under_a_false_claim(certificates, keys):
    false = sign(
        changed(certificates["records"], lambda s: s["guarantee"].update(epsilon=0.5)), keys[0]
    )
    verification = verify(false, public_key=keys[1])
    assert not verification.holds
    assert verification.signed


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
