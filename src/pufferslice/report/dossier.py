# SPDX-License-Identifier: Apache-2.0
"""Which files belong to which certificate: nothing is shown beside a claim that it is not about."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, final

import attrs
import numpy as np

from pufferslice.audit import Audit
from pufferslice.calibration import Method
from pufferslice.certificate import Certificate, Verification, verify
from pufferslice.compare import running
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.guarantee import Guarantee
from pufferslice.releasing import Release
from pufferslice.report.reading import (
    Curves,
    MemberAudit,
    Supplied,
    TrainingAudit,
    TrainingLog,
    read_file,
)

Edition = Literal["internal", "public"]

_SAME: Final = 1e-9
_CONFIDENTIAL: Final = {
    Audit: "an audit",
    TrainingAudit: "an audit",
    MemberAudit: "an audit",
    Curves: "a comparison, made from the laws themselves",
}


@final
@attrs.frozen(kw_only=True, eq=False)
class Dossier:
    """One certificate, and all that is about it."""

    path: Path
    certificate: Certificate
    verification: Verification | None
    """None if there is nothing to recompute the claim from, or for the public edition."""
    releases: tuple[Release, ...] = ()
    audits: tuple[Audit | TrainingAudit | MemberAudit, ...] = ()
    comparisons: tuple[Curves, ...] = ()
    logs: tuple[TrainingLog, ...] = ()

    @property
    def scenario(self) -> object:
        """What two certificates must share to be about the same secret and query."""
        statement = self.certificate.statement
        return statement.get("scenario", statement.get("data"))


def internal_dossiers(paths: Sequence[str | os.PathLike[str]]) -> tuple[Dossier, ...]:
    """The files by certificate, with evidence; what does not verify or belong is refused."""
    supplied = _read(paths)
    return _matched([_held(one) for one in _certificates(supplied)], supplied)


def public_dossiers(paths: Sequence[str | os.PathLike[str]]) -> tuple[Dossier, ...]:
    """The same from public statements alone; files that are not for the public are refused.

    Evidence that lies beside a certificate may refute it, and is then forgotten.
    """
    supplied = _read(paths)
    for one in supplied:
        _check_public(one)
    held = [_held(one) for one in _certificates(supplied)]
    bare = [
        attrs.evolve(
            one, certificate=attrs.evolve(one.certificate, evidence=None), verification=None
        )
        for one in held
    ]
    return _matched(bare, supplied)


def _read(paths: Sequence[str | os.PathLike[str]]) -> list[Supplied]:
    supplied = [read_file(path) for path in paths]
    if not any(isinstance(one.content, Certificate) for one in supplied):
        msg = "a report needs at least one certificate: everything else is about one"
        raise ArgumentError(msg)
    return supplied


def _certificates(supplied: Sequence[Supplied]) -> list[tuple[Path, Certificate]]:
    found: dict[str, tuple[Path, Certificate]] = {}
    for one in supplied:
        if isinstance(one.content, Certificate):
            if one.content.digest in found:
                other = str(found[one.content.digest][0])
                msg = f"{str(one.path)!r} and {other!r} are the same certificate; give it once"
                raise ArgumentError(msg)
            found[one.content.digest] = (one.path, one.content)
    return list(found.values())


def _held(named: tuple[Path, Certificate]) -> Dossier:
    """The certificate, verified if there is anything to verify it from."""
    path, certificate = named
    if certificate.road == "static" and certificate.evidence is None:
        return Dossier(path=path, certificate=certificate, verification=None)
    verification = verify(certificate)
    if not verification.holds:
        msg = (
            f"{str(path)!r} does not verify: {verification.problems[0]}. Nothing is reported about "
            "a claim that does not hold; certify again"
        )
        raise CertificateError(msg)
    return Dossier(path=path, certificate=certificate, verification=verification)


def _check_public(one: Supplied) -> None:
    what = _CONFIDENTIAL.get(type(one.content))
    if isinstance(one.content, TrainingLog) and one.content.internal:
        what = "an internal log"
    if what is not None:
        msg = (
            f"{str(one.path)!r} is {what}, which is not for the public; leave it out, or make the "
            "internal edition"
        )
        raise ArgumentError(msg)


def _matched(dossiers: Sequence[Dossier], supplied: Sequence[Supplied]) -> tuple[Dossier, ...]:
    found = list(dossiers)
    for one in supplied:
        if not isinstance(one.content, Certificate):
            index = _home(one, found)
            found[index] = _with(found[index], one)
    return tuple(found)


def _home(one: Supplied, dossiers: Sequence[Dossier]) -> int:
    content = one.content
    if isinstance(content, Curves):
        homes = [i for i, held in enumerate(dossiers) if _compares(content, held.certificate)]
        wanted = "order, epsilon and the noise of its own method"
    elif isinstance(content, TrainingLog):
        homes = _homes_of_log(one, content, dossiers)
        wanted = "claim and number of steps; an internal log is known by its folder"
    else:
        named = content.certificate if not isinstance(content, Certificate) else ""
        homes = [i for i, held in enumerate(dossiers) if held.certificate.digest == named]
        wanted = f"certificate {str(named)[:16]}, which it names"
    if len(homes) != 1:
        problem = "none" if not homes else "more than one"
        msg = (
            f"{str(one.path)!r} belongs to {problem} of the certificates in this report (looked "
            f"for: {wanted}). Give its own certificate with it"
        )
        raise ArgumentError(msg)
    return homes[0]


def _compares(curves: Curves, certificate: Certificate) -> bool:
    """Whether a comparison was made of the certificate's scenario: its own row has its noise."""
    claim = certificate.guarantee
    if certificate.road != "static" or not isinstance(claim, Guarantee):
        return False
    table = curves.table
    statement = certificate.statement
    name = running.UNSLICED
    if claim.is_sliced:
        name = running.name_of(claim.notion, Method(**statement["method"]))
    n_instances = len(statement["scenario"]["priors"]) * len(statement["scenario"]["pairs"])
    stds = [row.noise_std for row in table.rows if row.mechanism == name]
    return (
        (table.order, table.epsilon) == (claim.order, claim.epsilon)
        and (table.dim, table.n_instances) == (statement["profile"]["dim"], n_instances)
        and any(math.isclose(std, certificate.noise_std, rel_tol=_SAME) for std in stds)
    )


def _homes_of_log(one: Supplied, log: TrainingLog, dossiers: Sequence[Dossier]) -> list[int]:
    learning = [i for i, held in enumerate(dossiers) if held.certificate.road == "learning"]
    if not log.internal:
        return [i for i in learning if _logs(log, dossiers[i].certificate)]
    last = max(row["step"] for row in log.rows)
    fits = [i for i in learning if last <= _n_steps(dossiers[i].certificate)]
    beside = [i for i in fits if dossiers[i].path.resolve().parent == one.path.resolve().parent]
    return beside or fits


def _logs(log: TrainingLog, certificate: Certificate) -> bool:
    claim = certificate.statement["guarantee"]
    return all(
        (row["notion"], row["order"], row["n_steps"])
        == (claim["notion"], claim["order"], _n_steps(certificate))
        and math.isclose(row["epsilon"], claim["epsilon"], rel_tol=_SAME)
        for row in log.rows
    )


def _n_steps(certificate: Certificate) -> int:
    return sum(int(run["n_steps"]) for run in certificate.statement["runs"])


def _with(held: Dossier, one: Supplied) -> Dossier:
    content = one.content
    if isinstance(content, Release):
        _check_release(held.certificate, content, one.path)
        if held.releases:
            msg = (
                f"{str(one.path)!r} is a second release of one certificate, which covers one; "
                "leave one of the two out"
            )
            raise ArgumentError(msg)
        return attrs.evolve(held, releases=(*held.releases, content))
    if isinstance(content, Curves):
        return attrs.evolve(held, comparisons=(*held.comparisons, content))
    if isinstance(content, TrainingLog):
        return attrs.evolve(held, logs=(*held.logs, content))
    if isinstance(content, Audit | TrainingAudit | MemberAudit):
        if isinstance(content, Audit) != (held.certificate.road == "static"):
            msg = (
                f"{str(one.path)!r} is an audit of the other kind of certificate than it names; "
                "write it with the certificate that was audited"
            )
            raise ArgumentError(msg)
        return attrs.evolve(held, audits=(*held.audits, content))
    return held


def _check_release(certificate: Certificate, released: Release, path: Path) -> None:
    """A release has the coordinates and the noise that its certificate states."""
    statement = certificate.statement
    fits = certificate.road == "static" and list(released.names) == list(
        statement["scenario"]["query"]["names"]
    )
    if not fits or not np.allclose(
        released.noise_stds, statement["noise"]["std_by_coordinate"], rtol=_SAME, atol=0
    ):
        msg = (
            f"{str(path)!r} names a certificate whose coordinates or noise it does not have; it "
            "was changed. Get the original, or write it again with release --again"
        )
        raise ArgumentError(msg)
