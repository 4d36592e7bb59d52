# SPDX-License-Identifier: Apache-2.0
"""Ed25519 signatures: made and checked over a document, its date, and its serial in a ledger."""

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from pufferslice._core.checks import is_a
from pufferslice._core.files import canonical_json
from pufferslice._core.text import given
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.statement import ReleaseStatement, Statement, TrainingStatement
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.scenario.keys import declared_keys, key_of

ALGORITHM: Final = "ed25519"

STATEMENT: Final = b"pufferslice certificate statement, version 2\n"
RELEASE: Final = b"pufferslice release, version 1\n"
"""Beginnings of what is signed, so that no signature passes for one of another document."""
_STAMP: Final = ("date", "serial", "ledger")


def signature_of(
    context: bytes,
    document: Mapping[str, Any],
    private_key: bytes,
    *,
    date: str,
    serial: int,
    ledger: str | None,
) -> dict[str, Any]:
    """Sign a document with its date (UTC), and its serial in the ledger with this lineage."""
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
    stamp = {"date": date, "serial": serial, "ledger": ledger}
    return {
        "algorithm": ALGORITHM,
        "public_key": _raw(key.public_key()).hex(),
        "value": key.sign(_signed_bytes(context, document, stamp)).hex(),
        **stamp,
    }


def document_problem(
    context: bytes, document: Mapping[str, Any], signature: object, public_key: bytes, what: str
) -> str | None:
    """Explain why a signature of `what` does not hold under a key; None if it does."""
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
    if signature is None:
        return f"the {what} carries no signature"
    if not is_a(signature, Mapping) or signature.get("algorithm") != ALGORITHM:  # type: ignore[attr-defined]
        return f"the {what} carries no {ALGORITHM} signature"
    fields = dict(signature)  # type: ignore[call-overload]
    if fields.get("public_key") != _raw(key).hex():
        return f"the {what} was signed with another key"
    try:
        stamp = {name: fields[name] for name in _STAMP}
        key.verify(bytes.fromhex(fields["value"]), _signed_bytes(context, document, stamp))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return "the signature does not fit the statement, its date or its serial"
    return None


def signature_problem(certificate: Certificate, public_key: bytes) -> str | None:
    """Explain why the signature of a certificate does not hold under a key; None if it does."""
    statement = certificate.statement.to_json()
    return document_problem(STATEMENT, statement, certificate.signature, public_key, "certificate")


def date_problem(certificate: Certificate, not_before: str) -> str | None:
    """Explain why a certificate was not signed on this day (`2026-01-31`) or later."""
    try:
        earliest = date.fromisoformat(not_before)
    except (ValueError, TypeError):
        raise ArgumentError(
            f"not_before must be a day such as 2026-01-31, got {given(not_before)}"
        ) from None
    stated = str((certificate.signature or {}).get("date"))[:10]
    if date.fromisoformat(stated) < earliest:
        return f"the certificate was signed on {stated}, before {not_before}"
    return None


def revocation_problem(
    certificate: Certificate, newer: Certificate, public_key: bytes
) -> str | None:
    """Explain that a newer certificate of the same ledger and secret revokes this one.

    It does if the same key signed both, both name one ledger, and its serial there is higher.
    """
    unsigned = signature_problem(newer, public_key)
    if unsigned is not None:
        raise ArgumentError(f"newer must be a certificate that the same key signed: {unsigned}")
    mine, other = certificate.signature or {}, newer.signature or {}
    if mine.get("ledger") is None or mine.get("ledger") != other.get("ledger"):
        return None
    if (
        not set(public_keys(certificate.statement)) & set(public_keys(newer.statement))
        or certificate.digest == newer.digest
    ):
        return None
    if int(other["serial"]) <= int(mine["serial"]):
        return None
    return (
        f"the certificate was revoked: a newer one of the same ledger and secret was signed on "
        f"{str(other['date'])[:10]}, {newer.digest[:12]}"
    )


def public_keys(statement: Statement) -> tuple[str, ...]:
    """Keys of the secrets that a statement names; a ledger may know more of the same secret."""
    if isinstance(statement, TrainingStatement):
        return (key_of(f"records of {statement.data}"),)
    if isinstance(statement, ReleaseStatement):
        return declared_keys(statement.scenario.secret.to_json())
    keys = [declared_keys(part.scenario.secret.to_json()) for part in statement.tables]
    return tuple(dict.fromkeys(key for each in keys for key in each))


def _signed_bytes(context: bytes, document: Mapping[str, Any], stamp: Mapping[str, Any]) -> bytes:
    return context + canonical_json({"document": document, **stamp})


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)
