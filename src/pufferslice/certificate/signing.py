# SPDX-License-Identifier: Apache-2.0
"""Keys, and the signature of a certificate that verifies."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pufferslice._core.checks import check_count
from pufferslice._core.files import read_bytes
from pufferslice._core.text import given
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.signature import STATEMENT, signature_of, signature_problem
from pufferslice.certificate.verify import verify
from pufferslice.errors import ArgumentError, CertificateError, StorageError

_DATE: Final = "%Y-%m-%dT%H:%M:%SZ"

__all__ = ["new_key_pair", "now", "private_key_of", "sign", "signature_problem"]


def new_key_pair() -> tuple[bytes, bytes]:
    """Create a private and a public key, both PEM; keep the first one secret."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private, public


def private_key_of(path: str | os.PathLike[str]) -> bytes:
    """Read a private key; refuse one that others than its owner can read."""
    key = read_bytes(path, "key")
    if stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
        raise StorageError(
            f"the private key {str(path)!r} can be read by others, who can sign with it; make it "
            "yours alone (chmod 600), or make another one if they may have read it"
        )
    return key


def now() -> str:
    """Return the date and time in UTC, by the clock of this machine."""
    return datetime.now(UTC).strftime(_DATE)


def checked_date(date: str) -> str:
    """Check a date and time in UTC, such as 2026-01-31T09:30:00Z."""
    try:
        return datetime.strptime(date, _DATE).replace(tzinfo=UTC).strftime(_DATE)
    except (ValueError, TypeError):
        raise ArgumentError(
            f"date must be a date and time in UTC such as 2026-01-31T09:30:00Z, got {given(date)}"
        ) from None


def sign(
    certificate: Certificate,
    private_key: bytes,
    *,
    date: str | None = None,
    serial: int = 1,
    ledger: str | None = None,
) -> Certificate:
    """Sign the whole statement, and return the certificate with its signature.

    What does not verify from its evidence, or from its plans, is refused. The signature holds the
    `date` (UTC; now without it), and the `serial` of the certificate in the ledger with this
    lineage: a newer one of the same ledger and secret revokes it.
    """
    check_count(1, serial=serial)
    verification = verify(certificate)
    if not verification.holds:
        raise CertificateError(
            f"the certificate does not verify, so it is not signed: {verification.problems[0]}. "
            "Sign it where its evidence is, or certify again"
        )
    signature = signature_of(
        STATEMENT,
        certificate.statement.to_json(),
        private_key,
        date=now() if date is None else checked_date(date),
        serial=serial,
        ledger=ledger,
    )
    return attrs.evolve(certificate, signature=signature)
