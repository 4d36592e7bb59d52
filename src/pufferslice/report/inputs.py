# SPDX-License-Identifier: Apache-2.0
"""Files for a report, recognised by their content and matched to their certificates."""

import math
import os
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, final, get_args, get_origin, get_type_hints

import attrs
import numpy as np

from pufferslice._core.files import canonical_json, parsed_json, read_bytes
from pufferslice.audit import Audit, MembershipAudit, Verdict
from pufferslice.baselines import comparison
from pufferslice.baselines.comparison import Comparison
from pufferslice.calibration.calibrate import Method
from pufferslice.calibration.guarantee import Guarantee
from pufferslice.certificate import Certificate, Verification, verify
from pufferslice.certificate.certificate import EVIDENCE_SUFFIX
from pufferslice.certificate.certificate import FORMAT as CERTIFICATE_FORMAT
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.releases.release import FORMAT as RELEASE_FORMAT
from pufferslice.releases.release import Release

KINDS: Final = (
    "certificates, releases, audits (also of training and membership), comparison.json, and the "
    "logs public.jsonl and internal.jsonl of a training run"
)

_PUBLIC_KEYS: Final = {"step", "n_steps", "notion", "order", "spent_epsilon", "epsilon"}


@final
@attrs.frozen(kw_only=True)
class TrainingLog:
    """Rows of a log that `pufferslice train` wrote."""

    internal: bool
    """Computed from the private records, and covered by no guarantee."""
    rows: tuple[Mapping[str, Any], ...]


@final
@attrs.frozen(kw_only=True)
class Curves:
    """A comparison, and the noise of its mechanisms against epsilon if it was written with that."""

    table: Comparison
    epsilons: tuple[float, ...]
    noise_stds: Mapping[str, tuple[float | None, ...]]


@final
@attrs.frozen(kw_only=True)
class TrainingAudit:
    """The verdict on a training plan; says the certificate that it is about."""

    certificate: str
    verdict: Verdict


@final
@attrs.frozen(kw_only=True)
class MemberAudit:
    """An attack on one trained model; says the certificate of its training."""

    certificate: str
    audit: MembershipAudit


Content = Certificate | Release | Audit | TrainingAudit | MemberAudit | Curves | TrainingLog


@final
@attrs.frozen(kw_only=True)
class Supplied:
    """One file and what it holds."""

    path: Path
    content: Content


def read_file(path: str | os.PathLike[str]) -> Supplied:
    """What a file holds; a file of no known kind is refused by name."""
    where = Path(path)
    if where.name.endswith(EVIDENCE_SUFFIX):
        msg = (
            f"{str(path)!r} is evidence; give the certificate, and the evidence beside it is found "
            "by itself"
        )
        raise ArgumentError(msg)
    content = read_bytes(where, "log" if where.suffix == ".jsonl" else "document")
    document = _json(content)
    if document is None:
        log = _log(content)
        if log is None:
            raise _unknown(where)
        return Supplied(path=where, content=log)
    return Supplied(path=where, content=_content(where, document))


def _content(path: Path, document: Mapping[str, Any]) -> Content:
    if document.get("format") == CERTIFICATE_FORMAT:
        return Certificate.load(path)
    if document.get("format") == RELEASE_FORMAT:
        return Release.load(path)
    readers = [read for keys, read in _READERS if keys <= set(document)]
    if not readers:
        raise _unknown(path)
    try:
        return readers[0](document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error) if isinstance(error, ArgumentError) else type(error).__name__
        msg = f"{str(path)!r} cannot be read: {why}. Write it again"
        raise ArgumentError(msg) from None


def _unknown(path: Path) -> ArgumentError:
    return ArgumentError(f"{str(path)!r} is no file of a known kind; a report takes {KINDS}")


def _json(content: bytes) -> Mapping[str, Any] | None:
    try:
        document = parsed_json(content)
        canonical_json(document)  # no infinity, and no half of a surrogate pair
    except ValueError:
        return None
    return document if isinstance(document, dict) else {}


def _log(content: bytes) -> TrainingLog | None:
    """JSON lines, each a row of a training log; the last may be cut off by a crash."""
    rows: list[dict[str, Any]] = []
    lines = content.splitlines()
    for number, line in enumerate(lines, start=1):
        row = _json(line)
        if row is None and number == len(lines):
            break
        if not isinstance(row, dict) or not row:
            return None
        rows.append(row)
    # One private row makes the whole file private, whatever its heading says.
    internal = any(row.get("internal") is True for row in rows)
    steps = [row for row in rows if _is_number(row.get("step"))]
    headings = [row for row in rows if internal and "note" in row]
    if not steps or len(steps) + len(headings) != len(rows):
        return None
    if not internal and not all(map(_is_public_row, steps)):
        return None
    return TrainingLog(internal=internal, rows=tuple(steps))


def _is_public_row(row: Mapping[str, Any]) -> bool:
    numbers = _PUBLIC_KEYS - {"notion"}
    return set(row) >= _PUBLIC_KEYS and all(_is_number(row[key]) for key in numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _structured(kind: Any, value: Any) -> Any:  # noqa: ANN401 - any type, any JSON value
    """A JSON value as a value of this type; one of another type is an error."""
    origin, inside = get_origin(kind), get_args(kind)
    if attrs.has(kind) and isinstance(value, dict):
        hints, fields = get_type_hints(kind), attrs.fields(kind)
        # A field that has a default may be absent.
        names = [f.name for f in fields if f.name in value or f.default is attrs.NOTHING]
        return kind(**{name: _structured(hints[name], value[name]) for name in names})
    if origin is tuple and isinstance(value, list):
        kinds = inside[:1] * len(value) if inside[-1] is ... else inside
        return tuple(_structured(one, part) for one, part in zip(kinds, value, strict=True))
    if origin is abc.Mapping and isinstance(value, dict):
        return {name: _structured(inside[1], part) for name, part in value.items()}
    if origin is UnionType:
        return None if value is None else _structured(inside[0], value)
    if kind is float and _is_number(value):
        return float(value)
    if (origin is Literal and value in inside) or type(value) is kind:
        return value
    msg = f"a value is {type(value).__name__}, and {getattr(kind, '__name__', kind)} was expected"
    raise ArgumentError(msg)


def _audit(document: Mapping[str, Any]) -> Audit | TrainingAudit | MemberAudit:
    """Any audit; the outcome of a verdict is worked out again from its numbers."""
    from pufferslice.certificate.schema import check_audit  # noqa: PLC0415 - pydantic

    if "verdicts" not in document and not isinstance(document.get("certificate"), str):
        msg = (
            "it does not say which certificate it is about; make it with "
            'to_json() | {"certificate": certificate.digest}'
        )
        raise ArgumentError(msg)
    fields = check_audit(document)
    if "verdicts" in fields:
        audit: Audit = _structured(Audit, fields)
        return audit
    certificate = fields["certificate"]
    if "roc_auc" in fields:
        return MemberAudit(certificate=certificate, audit=_structured(MembershipAudit, fields))
    return TrainingAudit(certificate=certificate, verdict=_structured(Verdict, fields))


def _comparison(document: Mapping[str, Any]) -> Curves:
    curves = Curves(
        table=_structured(Comparison, document),
        epsilons=_structured(tuple[float, ...], document.get("epsilons", [])),
        noise_stds=_structured(
            Mapping[str, tuple[float | None, ...]], document.get("noise_curves", {})
        ),
    )
    if any(len(values) != len(curves.epsilons) for values in curves.noise_stds.values()):
        msg = "a curve has one number for each of the epsilons"
        raise ArgumentError(msg)
    return curves


def _one_row(document: Mapping[str, Any]) -> TrainingLog:
    if not _is_public_row(document):
        msg = "a row of a log has numbers"
        raise ArgumentError(msg)
    return TrainingLog(internal=document.get("internal") is True, rows=(document,))


_READERS: Final[tuple[tuple[set[str], Callable[[Mapping[str, Any]], Content]], ...]] = (
    ({"verdicts"}, _audit),
    ({"order", "epsilon", "rows", "left_out"}, _comparison),
    ({"attack", "roc_auc", "low_rates"}, _audit),
    ({"claim", "lower_bound", "refutable_below"}, _audit),
    (_PUBLIC_KEYS, _one_row),
)
"""By which keys a file is known, and what reads it."""


Edition = Literal["internal", "public"]

_SAME: Final = 1e-9
_CONFIDENTIAL: Final = {
    Audit: "an audit",
    TrainingAudit: "an audit",
    MemberAudit: "an audit",
    Curves: "a comparison, made from the distributions themselves",
}


@final
@attrs.frozen(kw_only=True, eq=False)
class ReportInputs:
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


def internal_inputs(paths: Sequence[str | os.PathLike[str]]) -> tuple[ReportInputs, ...]:
    """The files by certificate, with evidence; what does not verify or belong is refused."""
    supplied = _read(paths)
    return _matched([_held(one) for one in _certificates(supplied)], supplied)


def public_inputs(paths: Sequence[str | os.PathLike[str]]) -> tuple[ReportInputs, ...]:
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


def _held(named: tuple[Path, Certificate]) -> ReportInputs:
    """The certificate, verified if there is anything to verify it from."""
    path, certificate = named
    if certificate.workflow == "release" and certificate.evidence is None:
        return ReportInputs(path=path, certificate=certificate, verification=None)
    verification = verify(certificate)
    if not verification.holds:
        msg = (
            f"{str(path)!r} does not verify: {verification.problems[0]}. Nothing is reported about "
            "a claim that does not hold; certify again"
        )
        raise CertificateError(msg)
    return ReportInputs(path=path, certificate=certificate, verification=verification)


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


def _matched(
    inputs: Sequence[ReportInputs], supplied: Sequence[Supplied]
) -> tuple[ReportInputs, ...]:
    found = list(inputs)
    for one in supplied:
        if not isinstance(one.content, Certificate):
            index = _home(one, found)
            found[index] = _with(found[index], one)
    return tuple(found)


def _home(one: Supplied, inputs: Sequence[ReportInputs]) -> int:
    content = one.content
    if isinstance(content, Curves):
        homes = [i for i, held in enumerate(inputs) if _compares(content, held.certificate)]
        wanted = "order, epsilon and the noise of its own method"
    elif isinstance(content, TrainingLog):
        homes = _homes_of_log(one, content, inputs)
        wanted = "claim and number of steps; an internal log is known by its folder"
    else:
        named = content.certificate if not isinstance(content, Certificate) else ""
        homes = [i for i, held in enumerate(inputs) if held.certificate.digest == named]
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
    if certificate.workflow != "release" or not isinstance(claim, Guarantee):
        return False
    table = curves.table
    statement = certificate.statement
    name = comparison.UNSLICED
    if claim.is_sliced:
        name = comparison.name_of(claim.notion, Method(**statement["method"]))
    n_instances = len(statement["scenario"]["priors"]) * len(statement["scenario"]["pairs"])
    stds = [row.noise_std for row in table.rows if row.mechanism == name]
    return (
        (table.order, table.epsilon) == (claim.order, claim.epsilon)
        and (table.dim, table.n_instances) == (statement["profile"]["dim"], n_instances)
        and any(math.isclose(std, certificate.noise_std, rel_tol=_SAME) for std in stds)
    )


def _homes_of_log(one: Supplied, log: TrainingLog, inputs: Sequence[ReportInputs]) -> list[int]:
    learning = [i for i, held in enumerate(inputs) if held.certificate.workflow == "training"]
    if not log.internal:
        return [i for i in learning if _logs(log, inputs[i].certificate)]
    last = max(row["step"] for row in log.rows)
    fits = [i for i in learning if last <= _n_steps(inputs[i].certificate)]
    beside = [i for i in fits if inputs[i].path.resolve().parent == one.path.resolve().parent]
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


def _with(held: ReportInputs, one: Supplied) -> ReportInputs:
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
        if isinstance(content, Audit) != (held.certificate.workflow == "release"):
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
    fits = certificate.workflow == "release" and list(released.names) == list(
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
