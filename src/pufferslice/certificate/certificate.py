# SPDX-License-Identifier: Apache-2.0
"""Certificate: a public statement, its digest, maybe a signature, and the evidence beside it."""

import io
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, arrays_in, locked
from pufferslice._core.checks import is_a
from pufferslice._core.display import Shown
from pufferslice._core.files import (
    CONFIDENTIAL,
    OPEN,
    canonical_json,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_together,
    write_whole,
)
from pufferslice._core.plot import Plot
from pufferslice._core.sampler import OperatingSystemNoise
from pufferslice._core.text import given, listed, quoted
from pufferslice.certificate.budget_evidence import BudgetEvidence, read_evidence
from pufferslice.certificate.budget_wording import first_lines, prose_of, table_rows
from pufferslice.certificate.evidence import Evidence
from pufferslice.certificate.files import read_certificate
from pufferslice.certificate.left import Left, Spendings, what_is_left
from pufferslice.certificate.pictures import certificate_plot
from pufferslice.certificate.statement import (
    BudgetStatement,
    ReleaseStatement,
    Statement,
    TrainingStatement,
)
from pufferslice.certificate.wording import INSECURE
from pufferslice.claims import Claim
from pufferslice.errors import ArgumentError, CertificateError, StorageError
from pufferslice.learning.plan import TrainingPlan
from pufferslice.sensitivity.whitening import Shape

FORMAT: Final = "pufferslice-certificate"
VERSION: Final = 5

_DIGEST: Final = re.compile("[0-9a-f]{64}")
_VOID_ORIGINS: Final = ("normal approximation", "of a Markov chain")
"""Words in the origins of priors that version 4 made by templates whose promise was too strong."""

EVIDENCE_SUFFIX: Final = ".evidence.npz"
NOISE_SUFFIX: Final = ".noise.npz"

Part: TypeAlias = tuple[str | os.PathLike[str], bytes, int]
"""A file to write: path, content, mode."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False, slots=False)
class Certificate(Shown):
    """A public promise about a release or training runs, and the evidence that proves it.

    `print(certificate)` gives the statement as prose. `save` writes the statement as JSON and the
    evidence as a binary file beside it; the evidence is confidential.
    """

    is_internal: ClassVar[bool] = False

    statement: Statement
    """The public statement."""
    evidence: Evidence | BudgetEvidence | None
    """The confidential part; None where only the statement is available."""
    signature: Mapping[str, Any] | None = None
    """Ed25519 signature of the statement; None if it was not signed."""
    path: Path | None = None
    """File that the certificate was read from; None if it was not."""
    noise: Shape | None = None
    """Public shape of the noise where the statement has its digest alone."""

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical statement: the name of the certificate."""
        return digest(canonical_json(self.statement.to_json()))

    @property
    def scenario_digest(self) -> str:
        """SHA-256 of the public facts about the scenario of a release: its `Scenario.digest`."""
        return digest(canonical_json(self.released.scenario.to_json()))

    @property
    def workflow(self) -> str:
        """Kind of the certificate: `release` of a query, `training` for runs, or `budget`."""
        return self.statement.workflow

    @property
    def guarantee(self) -> Claim:
        """Claim of the certificate, with the method of its slices."""
        if isinstance(self.statement, ReleaseStatement):
            return self.statement.claim
        return self.statement.guarantee

    @property
    def released(self) -> ReleaseStatement:
        """Statement of a release; training runs and budgets raise a `CertificateError`."""
        if isinstance(self.statement, ReleaseStatement):
            return self.statement
        raise CertificateError(
            f"this belongs to certificates of a release, and this one is of a {self.workflow}; see "
            "its statement"
        )

    @property
    def budget(self) -> BudgetStatement:
        """Statement of a budget; others raise a `CertificateError`."""
        if isinstance(self.statement, BudgetStatement):
            return self.statement
        raise CertificateError(
            f"this belongs to budgets, and this certificate is of a {self.workflow}; certify one "
            "with certify_budget"
        )

    @property
    def trained(self) -> TrainingStatement:
        """Statement about training runs; a release raises a `CertificateError`."""
        if isinstance(self.statement, TrainingStatement):
            return self.statement
        raise CertificateError("this belongs to certificates of training runs, and this is not one")

    def acknowledging(self, earlier_releases: Iterable[str]) -> Self:
        """Return the certificate with a sentence about releases before 0.3, which it keeps apart.

        `earlier_releases` are the digests of their certificates, `ledger.earlier()`; nothing is
        promised about them and this certificate together. A ledger that holds them asks for it.
        """
        earlier = list(dict.fromkeys(earlier_releases))
        if isinstance(self.statement, TrainingStatement) or not all(
            is_a(each, str) and _DIGEST.fullmatch(each) for each in earlier
        ):
            raise ArgumentError(
                "earlier_releases must list digests of certificates, for a release or a budget; "
                "use ledger.earlier()"
            )
        changed = self.statement.model_copy(update={"earlier_releases": earlier})
        stated = changed.model_copy(update={"limits": changed.expected_limits()})
        return attrs.evolve(self, statement=stated, signature=None, path=None)

    def left(self, ledger: Spendings) -> Left:
        """Compute the least noise that each statistic of a budget can still have.

        `ledger` is the `Ledger` of its releases.
        """
        if isinstance(ledger, str | os.PathLike):
            raise ArgumentError("ledger must be a Ledger, as Ledger('office.ledger')")
        return what_is_left(self.budget, self.digest, ledger)

    def plan(self, part: str) -> "BudgetPlan":
        """Return the plan of a training part of a budget, for `Trainer`.

        A run of it charges the part in the ledger that the trainer is given.
        """
        runs = {run.name: run for run in self.budget.runs}
        if part not in runs:
            raise ArgumentError(
                f"part must be a training part of the budget, got {given(part)}; there are "
                f"{listed(runs, quoted) or 'none'}"
            )
        plan = TrainingPlan.from_json(runs[part].plan.to_json())
        fields = {name: getattr(plan, name) for name in attrs.fields_dict(TrainingPlan)}
        return BudgetPlan(**fields, certificate=self, part=part)

    @property
    def noise_std(self) -> float:
        """Noise standard deviation of a release, in scaled coordinates."""
        return self.released.noise.std

    @property
    def spent(self) -> float:
        """Cost of a release's noise: at most the guarantee's epsilon, or share of right guesses."""
        return self.released.spent

    @cached_property
    def shape(self) -> Shape | None:
        """Public shape of the noise of a release; None for isotropic noise."""
        stated = self.released.noise.shape
        if not stated.is_beside:
            return None if stated.whitening is None else Shape(whitening=stated.whitening)
        if self.noise is None:
            raise CertificateError(
                f"the matrix of the noise is missing: put the {NOISE_SUFFIX} file that was "
                "written with the certificate, and is public, beside it"
            )
        if self.noise.digest() != stated.whitening_digest:
            raise CertificateError(
                "the matrix of the noise does not belong to this statement: its digest differs. "
                f"Use the {NOISE_SUFFIX} file that was written with the certificate"
            )
        return self.noise

    @property
    def unsliced_epsilon(self) -> float | None:
        """Bound on the unsliced cost of a release at the guarantee's order; None if unbounded."""
        return self.released.unsliced.epsilon

    @property
    def guess(self) -> float | None:
        """Upper bound on right guesses between two protected, equally likely secrets."""
        return self.released.unsliced.guess

    @property
    def generator(self) -> str:
        """Name of the generator that the noise of releases comes from."""
        if isinstance(self.statement, BudgetStatement):
            return self.statement.noise.generator
        return self.released.noise.generator

    @property
    def is_secure(self) -> bool:
        """Whether the noise of releases comes from the operating system's generator."""
        return self.generator == OperatingSystemNoise.name

    def to_json(self) -> dict[str, Any]:
        """Return the public part as JSON values."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "statement": self.statement.to_json(),
            "digest": self.digest,
        }
        if self.signature is not None:
            document["signature"] = dict(self.signature)
        return document

    def table_rows(self) -> list[dict[str, Any]]:
        """Return the noise of each statistic, of each part of a budget, or of each run."""
        return table_rows(self.statement)

    @classmethod
    def from_json(
        cls,
        document: object,
        evidence: Evidence | BudgetEvidence | None = None,
        noise: Floats | None = None,
    ) -> "Certificate":
        """Read the public part; the digest and the version must match.

        `noise` is the packed matrix of the noise, where it is in a file of its own.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CertificateError(
                f"this is not a certificate: its 'format' is not {FORMAT!r}. Give the file that "
                "calibrate or train wrote"
            )
        if document.get("version") != VERSION:
            raise CertificateError(
                f"the certificate has version {given(document.get('version'))}; this program reads "
                f"version {VERSION}. {_void_sentence(document)}"
            )
        fields = read_certificate(document)
        signed = "signature" in fields.model_fields_set
        signature = fields.signature.to_json() if signed else None
        certificate = cls(
            statement=fields.statement,
            evidence=evidence,
            signature=signature,
            noise=_shape_beside(fields.statement, noise),
        )
        if certificate.digest != fields.digest:
            raise CertificateError(
                f"the certificate was edited: its digest says {fields.digest!r}, its statement "
                f"has {certificate.digest!r}. Get the original, or certify again"
            )
        if certificate.workflow == "release" and certificate.released.noise.shape.is_beside:
            _ = certificate.shape  # which must be there, and be the stated one
        return certificate

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statement to `path` and the evidence beside it, each file whole or not at all.

        A process that is killed on the way leaves a statement with its own evidence, or none.
        """
        parts = self._public_files(path)
        if self.evidence is not None:
            parts.insert(0, (evidence_path(path), self.evidence.to_bytes(), CONFIDENTIAL))
        write_together(parts)

    def save_statement(self, path: str | os.PathLike[str]) -> None:
        """Write the public part alone."""
        *beside, statement = self._public_files(path)
        if beside:
            write_together([*beside, statement])
        else:
            write_whole(*statement)

    def _public_files(self, path: str | os.PathLike[str]) -> list[Part]:
        """Return the statement, after the file of its noise if it has one."""
        statement = (path, pretty_json(self.to_json()), OPEN)
        if self.noise is None:
            return [statement]
        file = io.BytesIO()
        np.savez(file, whitening=self.noise.packed)
        return [(noise_path(path), file.getvalue(), OPEN), statement]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Read a certificate, and its evidence if the file is beside it."""
        content = read_bytes(path, "document")
        try:
            document = parsed_json(content)
        except ValueError as error:
            raise CertificateError(
                f"{str(path)!r} is not a certificate: it is not JSON ({error}). Give the file "
                "that calibrate or train wrote"
            ) from error
        beside = evidence_path(path)
        evidence = read_evidence(read_bytes(beside, "archive")) if beside.exists() else None
        matrix, noise = None, noise_path(path)
        if b'"whitening_digest"' in content and noise.exists():
            matrix = _matrix_at(noise)
        return attrs.evolve(cls.from_json(document, evidence, matrix), path=Path(path))

    def plot(self) -> Plot:
        """Draw the noise of each statistic, beside its sampling error or within its public range.

        Sampling errors are computed from the evidence of sums of rows, and their picture is
        internal; without the evidence, as `save_statement` leaves it, the picture is public.
        """
        return certificate_plot(self.statement, self.evidence, self.digest)

    def __str__(self) -> str:
        return prose_of(self.statement, self.digest)

    def sentences(self) -> list[str]:
        """Return the first lines of the statement."""
        sentences = [f"Certificate {self.digest[:16]}", *filter(None, first_lines(self.statement))]
        if self.workflow != "training" and not self.is_secure:
            sentences.insert(0, INSECURE)
        return sentences

    def __repr__(self) -> str:
        return f"Certificate(digest='{self.digest[:12]}…', guarantee='{self.guarantee}')"


@final
@attrs.frozen(kw_only=True, repr=False)
class BudgetPlan(TrainingPlan):
    """Plan of a training part of a budget, which one run may follow.

    Guarantee: that of the budget, for all its outputs together with the weights after every step.
    Needs: a ledger that charges the part; the table of the budget as the dataset.
    """

    certificate: Certificate = attrs.field(eq=False)
    part: str

    def check(self) -> None:
        """Raise unless the plan is the one that the budget certified; its block is free."""
        (stated,) = (run.plan for run in self.certificate.budget.runs if run.name == self.part)
        if stated.to_json() | {"block": None} != self.to_json() | {"block": None}:
            raise ArgumentError(
                f"plan must be that of part {quoted(self.part)} of the budget, unchanged but for "
                f"its block; use budget.plan({self.part!r})"
            )


def _void_sentence(document: Mapping[str, Any]) -> str:
    """Return a sentence on whether a certificate of version 4 still holds."""
    if document.get("version") == 4 and any(origin in str(document) for origin in _VOID_ORIGINS):
        return "It is void: its template promised more than its noise keeps. Certify again"
    return "Verify it with the program that issued it, or certify again"


def evidence_path(path: str | os.PathLike[str]) -> Path:
    """Return where the evidence of a certificate at `path` is stored: `name.evidence.npz`."""
    return _beside(path, EVIDENCE_SUFFIX)


def noise_path(path: str | os.PathLike[str]) -> Path:
    """Return where a large matrix of the noise is stored, which is public: `name.noise.npz`."""
    return _beside(path, NOISE_SUFFIX)


def _beside(path: str | os.PathLike[str], suffix: str) -> Path:
    target = Path(path)
    if target.name.endswith((EVIDENCE_SUFFIX, NOISE_SUFFIX)) or not target.name:
        raise StorageError(
            f"{str(path)!r} cannot name a certificate; use a name such as certificate.json"
        )
    return target.with_name(target.name.removesuffix(".json") + suffix)


def _matrix_at(path: Path) -> Floats:
    """Read the packed matrix of the noise from its file."""
    try:
        return locked(arrays_in(read_bytes(path, "archive"))["whitening"])
    except (ValueError, LookupError) as error:
        raise CertificateError(
            f"{str(path)!r} is damaged, or not the matrix of a noise. Get the {NOISE_SUFFIX} file "
            "that was written with the certificate"
        ) from error


def _shape_beside(statement: Statement, matrix: Floats | None) -> Shape | None:
    """Build the shape of the noise from its file, where the statement has its digest alone."""
    if not isinstance(statement, ReleaseStatement) or matrix is None:
        return None
    if not statement.noise.shape.is_beside:
        return None
    try:
        return Shape.of_packed(matrix, len(statement.scenario.query.names))
    except ArgumentError as error:
        raise CertificateError(
            f"the matrix of the noise cannot be that of this statement: {error}. Use the "
            f"{NOISE_SUFFIX} file that was written with the certificate"
        ) from error
