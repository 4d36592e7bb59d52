# SPDX-License-Identifier: Apache-2.0
"""Files as types: certificate, release and audit. Their JSON Schemas are generated from here."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from pufferslice.certificate.statement import (
    Count,
    Delta,
    NonNegative,
    Number,
    Part,
    Range,
    Secrets,
    Sha256,
    Statement,
    Text,
    UnslicedPart,
    absent,
    checked,
)
from pufferslice.errors import ArgumentError, CertificateError, ReleaseError

AUDIT_CHANGED: Final = "It was changed or is damaged: get the original, or audit again"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class SignaturePart(Part):
    """Ed25519 signature of a fixed context line and the canonical statement."""

    algorithm: Literal["ed25519"]
    public_key: Sha256
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class CertificateFile(Part):
    """The public part of a certificate. The evidence is a file of its own and confidential."""

    format: Literal["pufferslice-certificate"]
    version: Literal[5]
    statement: Annotated[Statement, Field(discriminator="workflow")]
    digest: Sha256
    """SHA-256 of the length of the canonical statement as 8 bytes, big-endian, and the canonical
    statement: keys sorted, no spaces, UTF-8."""
    signature: SignaturePart = Field(default_factory=absent)
    """Absent if the certificate was not signed."""


class ReleasedValue(Part):
    """One coordinate of a release."""

    name: Text
    value: float
    noise_std: Annotated[float, Field(ge=0)]
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Two ends, for the noise alone."""
    grid_value: Annotated[str, Field(pattern="^-?[0-9]{1,1200}$")]
    """The released integer, as text: other readers of JSON round integers to floats."""
    moved_into: Annotated[list[float | None], Field(min_length=2, max_length=2)] = Field(
        default_factory=absent
    )
    """Public ends, null where there is none, that the value was moved into after noise; absent if
    it was left as it came."""


class ReleaseFile(Part):
    """What was released, in the user's units."""

    format: Literal["pufferslice-release"]
    version: Literal[5]
    certificate: Sha256
    """Digest of the certificate that covers it."""
    guarantee: Text
    secure: bool
    unsliced: UnslicedPart
    interval: Delta
    """The probability that an interval covers."""
    interval_is_of: Text
    range: Range | None
    clipping: str
    """Under which secrets the range moves values, in a sentence; empty if under none."""
    values: Annotated[list[ReleasedValue], Field(min_length=1)]


class IntervalPart(Part):
    """An observed share, and a confidence interval of its expectation."""

    value: Number
    low: Number
    high: Number


class VerdictPart(Part):
    """The result of one statistic on one claim."""

    claim: Text
    """The claim in words."""
    quantity: Literal["epsilon", "delta", "guess"]
    claimed: NonNegative
    statistic: Text
    lower_bound: NonNegative
    """At least this is true of the mechanism, with the confidence."""
    confidence: Delta
    """Of this verdict alone."""
    refutable_below: NonNegative
    """The largest lower bound that so many outputs can give."""
    n_outputs: Count
    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    prior: str
    line: str
    refuted: bool
    """Whether the lower bound is above the claimed number; readers compare the numbers."""
    outcome: Literal["refuted", "not refuted", "out of reach"]


class InferencePart(Part):
    """How often an attack names the secret of an output."""

    attack: Literal["gaussian_map", "likelihood_ratio"]
    prior: str
    prior_kind: Literal["natural", "balanced"]
    secrets: Secrets
    n_trials: Count
    accuracy: IntervalPart
    prior_accuracy: IntervalPart
    """Of always naming the likeliest secret."""
    advantage: IntervalPart
    """Accuracy less the largest share of the prior."""
    confidence: Delta
    """Of each interval alone."""


class AuditFile(Part):
    """The audit of a release certificate. Confidential."""

    format: Literal["pufferslice-audit"]
    version: Literal[5]
    certificate: Sha256
    """Digest of the certificate that was audited."""
    refuted: bool
    confidence: Delta
    """Of all verdicts together."""
    n_outputs: Count
    """Under each secret, the fewest."""
    verdicts: Annotated[list[VerdictPart], Field(min_length=1)]
    inferences: list[InferencePart]
    unaudited: list[Text]
    """Statements of the certificate without a verdict, and why."""


class TrainingAuditFile(VerdictPart):
    """The verdict on a training plan, and the digest of the certificate that it is about."""

    certificate: Sha256


class LowRatePart(Part):
    """The share of members found at a low false-positive rate."""

    false_positive_rate: Delta
    threshold: Number
    true_positive_rate: IntervalPart


class MembershipFile(Part):
    """An attack on the members of one model, and the certificate of its training."""

    certificate: Sha256
    attack: str
    n_members: Count
    n_non_members: Count
    roc_auc: IntervalPart
    low_rates: list[LowRatePart]
    confidence: Delta
    """Of all intervals together."""


def read_certificate(document: object) -> CertificateFile:
    """A certificate from JSON values, if it has exactly its fields, each of its kind."""
    return checked(CertificateFile, document, "certificate", CertificateError)


def read_release(document: object) -> ReleaseFile:
    """A release from JSON values, if it has exactly its fields, each of its kind."""
    return checked(ReleaseFile, document, "release", ReleaseError)


def read_audit(document: object) -> AuditFile | MembershipFile | TrainingAuditFile:
    """An audit from JSON values, if it has exactly the fields of its kind, each of its type."""
    model: type[AuditFile | MembershipFile | TrainingAuditFile] = AuditFile
    if isinstance(document, dict) and "verdicts" not in document:
        model = MembershipFile if "roc_auc" in document else TrainingAuditFile
    return checked(model, document, "audit", ArgumentError, changed=AUDIT_CHANGED)


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each file, by name.

    Relations between fields are not in it; `verify` checks them.
    """
    models: dict[str, type[BaseModel]] = {
        "certificate": CertificateFile,
        "release": ReleaseFile,
        "audit": AuditFile,
    }
    return {name: {"$schema": _DIALECT} | file.model_json_schema() for name, file in models.items()}
