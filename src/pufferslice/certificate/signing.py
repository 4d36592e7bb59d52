# SPDX-License-Identifier: Apache-2.0
"""Ed25519 signatures of statements."""

from collections.abc import Mapping
from typing import Final

import attrs
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from pufferslice._core.checks import is_a
from pufferslice._core.files import canonical_json
from pufferslice.certificate.certificate import Certificate
from pufferslice.errors import CertificateError

ALGORITHM: Final = "ed25519"

_CONTEXT: Final = b"pufferslice certificate statement, version 1\n"


def new_key_pair() -> tuple[bytes, bytes]:
    """Create a private and a public key, both PEM; keep the first one secret."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private, public


def sign(certificate: Certificate, private_key: bytes) -> Certificate:
    """Sign the whole statement, and return the certificate with its signature."""
    try:
        key = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(
            "the private key must be an unencrypted Ed25519 key in PEM form; keygen writes one"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise CertificateError(
            f"the private key must be Ed25519, got {type(key).__name__}; keygen writes such keys"
        )
    signature = {
        "algorithm": ALGORITHM,
        "public_key": _raw(key.public_key()).hex(),
        "value": key.sign(_signed_bytes(certificate)).hex(),
    }
    return attrs.evolve(certificate, signature=signature)


def signature_problem(certificate: Certificate, public_key: bytes) -> str | None:
    """Explain why the signature does not hold under this key; None if it does."""
    try:
        key = load_pem_public_key(public_key)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(
            "the public key must be an Ed25519 key in PEM form; keygen writes one"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError(
            f"the public key must be Ed25519, got {type(key).__name__}; keygen writes such keys"
        )
    signature = certificate.signature
    if signature is None:
        return "the certificate carries no signature"
    if not is_a(signature, Mapping) or signature.get("algorithm") != ALGORITHM:
        return f"the certificate carries no {ALGORITHM} signature"
    if signature.get("public_key") != _raw(key).hex():
        return "the certificate was signed with another key"
    try:
        key.verify(bytes.fromhex(signature["value"]), _signed_bytes(certificate))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return "the signature does not fit the statement"
    return None


def _signed_bytes(certificate: Certificate) -> bytes:
    return _CONTEXT + canonical_json(certificate.statement.to_json())


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
