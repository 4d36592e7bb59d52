# SPDX-License-Identifier: Apache-2.0
"""Certificate, release and audit files as types; their JSON Schemas are generated from here."""

import ast
import inspect
import textwrap
from itertools import pairwise
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
    """Ed25519 signature of a document, its date, and its serial in a ledger.

    Signed are a fixed context line and the canonical object of `document` (the statement, or the
    release without its signature), `date`, `serial` and `ledger`.
    """

    algorithm: Literal["ed25519"]
    public_key: Sha256
    value: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
    date: Annotated[
        str, Field(pattern="^[0-9]{4}-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]Z$")
    ]
    """Date and time in UTC, by the clock of whoever signed."""
    serial: Count
    """Number in the ledger; a newer certificate of the same ledger and secret revokes this one."""
    ledger: Sha256 | None
    """Hash of the first event of the ledger; null where none was named."""


class CertificateFile(Part):
    """The public part of a certificate. The evidence is a confidential file of its own."""

    format: Literal["pufferslice-certificate"]
    version: Literal[5]
    statement: Annotated[Statement, Field(discriminator="workflow")]
    digest: Sha256
    """SHA-256 of the length of the canonical statement as 8 bytes, big-endian, followed by the
    canonical statement: keys sorted, no spaces, UTF-8."""
    signature: SignaturePart = Field(default_factory=absent)
    """Signature of the statement; absent if the certificate was not signed."""


GridValue = Annotated[str, Field(pattern="^-?[0-9]{1,1200}$")]


class ReleasedValue(Part):
    """One coordinate of a release."""

    name: Text
    value: float
    noise_std: Annotated[float, Field(ge=0)]
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Lower and upper end of an interval that accounts for the noise alone."""
    grid_value: GridValue = Field(default_factory=absent)
    """Released integer, as text: other readers of JSON round integers to floats. Absent under a
    budget, where `measured` has them."""
    moved_into: Annotated[list[float | None], Field(min_length=2, max_length=2)] = Field(
        default_factory=absent
    )
    """Public lower and upper end into which the value was moved after noise, null for an end that
    does not exist; absent if the value was not moved."""


class DerivedPart(Part):
    """A statistic that is computed from released sums, after noise."""

    name: Text
    kind: Literal["sum", "ratio", "std", "covariance", "correlation", "quantile", "coefficient"]
    of: Annotated[list[Text], Field(min_length=1)]
    """Names of the released sums that it needs."""
    numbers: list[Number]
    """Public numbers of its formula: centers, edges, coefficients."""


class RecordedPart(Part):
    """Place of a release in its ledger, in hashes that tell nothing else of the ledger."""

    id: Sha256
    """Hash of the first event of the ledger, which its copies share."""
    intent: Sha256
    """Hash of the event that intended the release."""
    part: Text
    """Part of the budget; `release` for a certificate of one release."""
    period: Count
    charge: Annotated[str, Field(pattern="^[0-9]+(/[1-9][0-9]*)?$", max_length=200)]
    """Share of the precision of the part and period that the release took, as a fraction."""


class MeasuredPart(Part):
    """What a release of a part of a budget measured."""

    serial: Count
    """Place among the releases of this part and period, from 1."""
    of_periods: bool
    """Whether the part has several periods."""
    share: Annotated[float, Field(gt=0, le=1)] | None
    """Share of the declared precision with which all statistics were measured; null for others."""
    directions: list[list[Number]] | None
    """Measured numbers, in coordinates in which the declared precision is 1: a row for each; null
    where all statistics were measured with a share."""
    coefficients: list[list[Number]] | None
    """Released combinations of the statistics of the part, a row for each value; null where the
    values are such statistics."""
    grid_values: Annotated[list[GridValue], Field(min_length=1)]
    """Released integers, as texts: times 2^-44 the measured numbers."""

    def _rules(self) -> dict[str, bool]:
        rows = len(self.grid_values) if self.directions is None else len(self.directions)
        return {
            "must have either share or directions, and a row for each grid value": (
                (self.share is None) != (self.directions is None) and rows == len(self.grid_values)
            )
        }


class ReleaseFile(Part):
    """The released values, in the user's units."""

    format: Literal["pufferslice-release"]
    version: Literal[5]
    certificate: Sha256
    """Digest of the certificate that covers the release."""
    guarantee: Text
    secure: bool
    unsliced: UnslicedPart
    interval: Delta
    """Probability that an interval covers the query's value, clipped to its range if it has one."""
    interval_is_of: Text
    range: Range | None
    clipping: str
    """Secrets under which the range moves values, in a sentence; empty if there are none."""
    values: Annotated[list[ReleasedValue], Field(min_length=1)]
    n_rows: Count = Field(default_factory=absent)
    """Number of rows; absent where it is not public."""
    covariance: list[list[Number]] = Field(default_factory=absent)
    """Lower triangle of the covariance of the noise, in the user's units; absent above 100 values,
    where it follows from the certificate."""
    derived: list[DerivedPart] = Field(default_factory=absent)
    """Statistics that the query asks for and that follow from the values; absent if none do."""
    design: dict[str, Any] = Field(default_factory=absent)
    """Recipe of the columns whose second moments are released, as the certificate states it: from
    them and the covariance follow linear models; absent where the query has none, or several."""
    ledger: RecordedPart = Field(default_factory=absent)
    """Place of the release in its ledger; absent where there is none."""
    measured: MeasuredPart = Field(default_factory=absent)
    """Measurement under a budget; absent for the release of a certificate of one."""
    digest: Sha256
    """SHA-256 of the length of the canonical release without `digest` and `signature`, as 8 bytes,
    big-endian, followed by that release. It holds the digest of the certificate, which holds that
    of the evidence."""
    signature: SignaturePart = Field(default_factory=absent)
    """Signature of the release; absent if it was not signed."""

    @property
    def integers(self) -> list[str]:
        """The released integers, as texts."""
        if "measured" in self.model_fields_set:
            return self.measured.grid_values
        return [value.grid_value for value in self.values]

    def _rules(self) -> dict[str, bool]:
        whole = "measured" not in self.model_fields_set
        own = {"grid_value" in value.model_fields_set for value in self.values}
        return {
            "grid values belong to each value, or under a budget to what was measured": (
                own == {whole} and (whole or "ledger" in self.model_fields_set)
            )
        }


class IntervalPart(Part):
    """An observed share, and a confidence interval of its expectation."""

    value: Number
    low: Number
    high: Number


class VerdictPart(Part):
    """The result of one statistic on one claim."""

    claim: Text
    """Audited claim, in words."""
    quantity: Literal["epsilon", "delta", "guess"]
    claimed: NonNegative
    statistic: Text
    lower_bound: NonNegative
    """Lower bound on `quantity` for the mechanism, valid with the stated confidence."""
    confidence: Delta
    """Confidence level of this verdict alone."""
    refutable_below: NonNegative
    """Largest lower bound that this number of outputs can give."""
    n_outputs: Count
    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    prior: str
    line: str
    refuted: bool
    """Whether the lower bound is above the claimed number; readers compare the numbers."""
    outcome: Literal["refuted", "not refuted", "out of reach"]


class InferencePart(Part):
    """The result of an attack that names the secret that an output comes from."""

    attack: Literal["gaussian_map", "likelihood_ratio"]
    prior: str
    prior_kind: Literal["natural", "balanced"]
    secrets: Secrets
    n_trials: Count
    accuracy: IntervalPart
    prior_accuracy: IntervalPart
    """Accuracy of an attack that always names the most likely secret."""
    advantage: IntervalPart
    """Accuracy of the attack minus the largest prior probability of a secret."""
    confidence: Delta
    """Confidence level of each interval alone."""


class AuditFile(Part):
    """The audit of a release certificate. It is confidential."""

    format: Literal["pufferslice-audit"]
    version: Literal[5]
    certificate: Sha256
    """Digest of the audited certificate."""
    refuted: bool
    confidence: Delta
    """Confidence level of all verdicts together."""
    n_outputs: Count
    """Smallest number of outputs under any secret."""
    verdicts: Annotated[list[VerdictPart], Field(min_length=1)]
    inferences: list[InferencePart]
    unaudited: list[Text]
    """Statements of the certificate that have no verdict, and why."""


class TrainingAuditFile(VerdictPart):
    """The verdict on a training plan, and the digest of the certificate of that plan."""

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
    """Confidence level of all intervals together."""


def read_certificate(document: object) -> CertificateFile:
    """Read a certificate from JSON values with exactly its fields, each of its type."""
    return checked(CertificateFile, document, "certificate", CertificateError)


def read_release(document: object) -> ReleaseFile:
    """Read a release from JSON values with exactly its fields, each of its type."""
    return checked(ReleaseFile, document, "release", ReleaseError)


def read_audit(document: object) -> AuditFile | MembershipFile | TrainingAuditFile:
    """Read an audit from JSON values with exactly the fields of its kind, each of its type."""
    model: type[AuditFile | MembershipFile | TrainingAuditFile] = AuditFile
    if isinstance(document, dict) and "verdicts" not in document:
        model = MembershipFile if "roc_auc" in document else TrainingAuditFile
    return checked(model, document, "audit", ArgumentError, changed=AUDIT_CHANGED)


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each file, by name.

    Relations between fields are not in it; `verify` checks them.
    """
    models: dict[str, type[BaseModel]] = {
        "certificate": CertificateFile,
        "release": ReleaseFile,
        "audit": AuditFile,
    }
    return {
        name: {"$schema": _DIALECT} | _described(file, file.model_json_schema())
        for name, file in models.items()
    }


def _described(file: type[BaseModel], schema: dict[str, Any]) -> dict[str, Any]:
    """Add what is written under each field to a schema.

    Pydantic would read the source of every class when it is made, which takes as long as the first
    certificate.
    """
    parts = {part.__name__: part for part in _parts(Part)}
    for name, table in {file.__name__: schema, **schema.get("$defs", {})}.items():
        for base in reversed(parts[name].__mro__ if name in parts else ()):
            for field, text in _texts(base).items():
                alias = parts[name].model_fields[field].alias or field
                table["properties"][alias]["description"] = text
    return schema


def _parts(part: type[Part]) -> list[type[Part]]:
    return [part, *(each for inner in part.__subclasses__() for each in _parts(inner))]


def _texts(part: type) -> dict[str, str]:
    """Texts under the fields of a class, by field."""
    if not issubclass(part, Part):
        return {}
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    found = {}
    for field, text in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                found[name] = inspect.cleandoc(words)
    return found
