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
from pufferslice.certificate import Certificate, Verification, verify
from pufferslice.certificate.certificate import EVIDENCE_SUFFIX
from pufferslice.certificate.certificate import FORMAT as CERTIFICATE_FORMAT
from pufferslice.certificate.files import read_audit
from pufferslice.certificate.statement import (
    BudgetStatement,
    ReleaseStatement,
    TrainingStatement,
)
from pufferslice.errors import ArgumentError, CertificateError
from pufferslice.releases.derived import noise_covariance
from pufferslice.releases.release import FORMAT as RELEASE_FORMAT
from pufferslice.releases.release import Release

Edition = Literal["internal", "public"]

KINDS: Final = (
    "certificates, releases, audits (also of training and membership), comparison.json, and the "
    "logs public.jsonl and internal.jsonl of a training run"
)

_PUBLIC_NUMBERS: Final = {"step", "n_steps", "spent_epsilon", "epsilon"}
"""Keys in every row of a public log, beside the notion and the order or delta of the claim."""
_SAME: Final = 1e-9


@final
@attrs.frozen(kw_only=True)
class TrainingLog:
    """Rows of a log that `pufferslice train` wrote."""

    internal: bool
    """Whether the log was computed from the private records, so that no guarantee covers it."""
    rows: tuple[Mapping[str, Any], ...]


@final
@attrs.frozen(kw_only=True)
class Curves:
    """A comparison, and the noise of its mechanisms against epsilon if it was written with that."""

    table: Comparison
    epsilons: tuple[float, ...]
    noise_stds: Mapping[str, tuple[float | None, ...]]


AnyAudit = Audit | Verdict | MembershipAudit
"""Audit of a release, verdict on a training plan, or attack on one trained model."""

Content = Certificate | Release | AnyAudit | Curves | TrainingLog

_NOT_PUBLIC: Final = dict.fromkeys(get_args(AnyAudit), "an audit") | {
    Curves: "a comparison, made from the distributions themselves"
}


@final
@attrs.frozen(kw_only=True)
class Supplied:
    """One file and what it holds."""

    path: Path
    content: Content
    names: str | None = None
    """Digest of the certificate that the file says it is about."""


def read_file(path: str | os.PathLike[str]) -> Supplied:
    """Read a file by its content; a file of no known kind is refused by name."""
    where = Path(path)
    if where.name.endswith(EVIDENCE_SUFFIX):
        raise ArgumentError(
            f"{str(path)!r} is evidence; give the certificate, and the evidence beside it is found "
            "by itself"
        )
    content = read_bytes(where, "log" if where.suffix == ".jsonl" else "document")
    document = _json(content)
    if document is None:
        log = _log(content)
        if log is not None:
            return Supplied(path=where, content=log)
    elif document.get("format") == CERTIFICATE_FORMAT:
        return Supplied(path=where, content=Certificate.load(where))
    elif document.get("format") == RELEASE_FORMAT:
        released = Release.load(where)
        return Supplied(path=where, content=released, names=released.certificate)
    for keys, read in _READERS:
        if document is not None and keys <= set(document):
            try:
                names = document.get("certificate")
                return Supplied(path=where, content=read(document), names=names)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                why = str(error) if isinstance(error, ArgumentError) else type(error).__name__
                raise ArgumentError(
                    f"{str(path)!r} cannot be read: {why}. Write it again"
                ) from None
    raise ArgumentError(f"{str(path)!r} is not a file of a known kind; a report takes {KINDS}")


def _json(content: bytes) -> Mapping[str, Any] | None:
    try:
        document = parsed_json(content)
        canonical_json(document)  # no infinity, and no half of a surrogate pair
    except ValueError:
        return None
    return document if isinstance(document, dict) else {}


def _log(content: bytes) -> TrainingLog | None:
    """Read JSON lines, each a row of a training log; a crash may have cut off the last."""
    rows = [_json(line) for line in content.splitlines()]
    if rows and rows[-1] is None:
        del rows[-1]
    if not all(rows):
        return None
    documents = [row for row in rows if row is not None]
    # One private row makes the whole file private, whatever its heading says.
    internal = any(row.get("internal") is True for row in documents)
    steps = [row for row in documents if _is_number(row.get("step"))]
    headings = [row for row in documents if internal and "note" in row]
    if not steps or len(steps) + len(headings) != len(documents):
        return None
    if not internal and not all(map(_is_public_row, steps)):
        return None
    return TrainingLog(internal=internal, rows=tuple(steps))


def _is_public_row(row: Mapping[str, Any]) -> bool:
    has_claim = "notion" in row and _is_number(row.get("order", row.get("delta")))
    return has_claim and all(_is_number(row.get(key)) for key in _PUBLIC_NUMBERS)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _structured(kind: Any, value: Any) -> Any:  # any type, any JSON value
    """Build a value of this type from a JSON value; one of another type is an error."""
    origin, inside = get_origin(kind), get_args(kind)
    if attrs.has(kind) and isinstance(value, dict):
        hints, fields = get_type_hints(kind), attrs.fields(kind)
        # A field that has a default may be absent.
        names = [f.name for f in fields if f.name in value or f.default is attrs.NOTHING]
        return kind(**{name: _structured(hints[name], value[name]) for name in names})
    if origin is tuple and isinstance(value, list):
        kinds = inside[:1] * len(value) if inside[-1] is ... else inside
        return tuple(_structured(x, part) for x, part in zip(kinds, value, strict=True))
    if origin is abc.Mapping and isinstance(value, dict):
        return {name: _structured(inside[1], part) for name, part in value.items()}
    if origin is UnionType:
        return None if value is None else _structured(inside[0], value)
    if kind is float and _is_number(value):
        return float(value)
    if (origin is Literal and value in inside) or type(value) is kind:
        return value
    raise ArgumentError(
        f"a value is {type(value).__name__}, and {getattr(kind, '__name__', kind)} was expected"
    )


def _audit(document: Mapping[str, Any]) -> AnyAudit:
    """Read any audit; the outcome of a verdict is worked out again from its numbers."""
    if "verdicts" not in document and not isinstance(document.get("certificate"), str):
        raise ArgumentError(
            "it does not say which certificate it is about; make it with "
            'to_json() | {"certificate": certificate.digest}'
        )
    fields = read_audit(document).to_json()
    kind: type[AnyAudit] = Audit if "verdicts" in fields else Verdict
    audit: AnyAudit = _structured(MembershipAudit if "roc_auc" in fields else kind, fields)
    return audit


def _comparison(document: Mapping[str, Any]) -> Curves:
    curves = Curves(
        table=_structured(Comparison, document),
        epsilons=_structured(tuple[float, ...], document.get("epsilons", [])),
        noise_stds=_structured(
            Mapping[str, tuple[float | None, ...]], document.get("noise_curves", {})
        ),
    )
    if any(len(values) != len(curves.epsilons) for values in curves.noise_stds.values()):
        raise ArgumentError("a curve has one number for each of the epsilons")
    return curves


def _one_row(document: Mapping[str, Any]) -> TrainingLog:
    if not _is_public_row(document):
        raise ArgumentError("a row of a log has numbers")
    return TrainingLog(internal=document.get("internal") is True, rows=(document,))


_READERS: Final[tuple[tuple[set[str], Callable[[Mapping[str, Any]], Content]], ...]] = (
    ({"verdicts"}, _audit),
    ({"order", "epsilon", "rows", "left_out"}, _comparison),
    ({"attack", "roc_auc", "low_rates"}, _audit),
    ({"claim", "lower_bound", "refutable_below"}, _audit),
    ({"notion", *_PUBLIC_NUMBERS}, _one_row),
)
"""Keys by which a kind of file is known, and the function that reads it."""


@final
@attrs.frozen(kw_only=True, eq=False)
class ReportInputs:
    """One certificate, and all that is about it."""

    path: Path
    certificate: Certificate
    verification: Verification | None
    """Outcome of recomputing the claim; None without evidence, or for the public edition."""
    releases: tuple[Release, ...] = ()
    audits: tuple[AnyAudit, ...] = ()
    comparisons: tuple[Curves, ...] = ()
    logs: tuple[TrainingLog, ...] = ()

    @property
    def scenario(self) -> object:
        """Facts that two certificates must share to be about the same secret and query."""
        statement = self.certificate.statement
        if isinstance(statement, TrainingStatement):
            return statement.data
        if isinstance(statement, BudgetStatement):
            return [part.scenario for part in statement.tables]
        return statement.scenario


_FIELDS: Final[Mapping[type, str]] = {
    Release: "releases",
    Curves: "comparisons",
    TrainingLog: "logs",
}
"""Fields of the inputs by type of file; all other types are audits."""


def internal_inputs(paths: Sequence[str | os.PathLike[str]]) -> tuple[ReportInputs, ...]:
    """Group files by certificate, with evidence; refuse what does not verify or belong."""
    files = [read_file(path) for path in paths]
    return _matched(_verified(files), files)


def public_inputs(paths: Sequence[str | os.PathLike[str]]) -> tuple[ReportInputs, ...]:
    """Group files by certificate from public statements alone; refuse confidential files.

    Evidence beside a certificate may refute it; nothing else of it is used.
    """
    files = [read_file(path) for path in paths]
    for file in files:
        content = file.content
        is_internal_log = isinstance(content, TrainingLog) and content.internal
        what = "an internal log" if is_internal_log else _NOT_PUBLIC.get(type(content))
        if what is not None:
            raise ArgumentError(
                f"{str(file.path)!r} is {what}, which is not for the public; leave it out, or make "
                "the internal edition"
            )
    bare = [
        attrs.evolve(
            held, certificate=attrs.evolve(held.certificate, evidence=None), verification=None
        )
        for held in _verified(files)
    ]
    return _matched(bare, files)


def _verified(files: Sequence[Supplied]) -> list[ReportInputs]:
    """Read the certificates, each verified if there is anything to verify it from."""
    inputs: dict[str, ReportInputs] = {}
    for path, certificate in ((file.path, file.content) for file in files):
        if not isinstance(certificate, Certificate):
            continue
        if certificate.digest in inputs:
            other = str(inputs[certificate.digest].path)
            raise ArgumentError(
                f"{str(path)!r} and {other!r} are the same certificate; give it once"
            )
        verification = None
        if certificate.workflow == "training" or certificate.evidence is not None:
            verification = verify(certificate)
            if not verification.holds:
                raise CertificateError(
                    f"{str(path)!r} does not verify: {verification.problems[0]}. Nothing is "
                    "reported about a claim that does not hold; certify again"
                )
        inputs[certificate.digest] = ReportInputs(
            path=path, certificate=certificate, verification=verification
        )
    if not inputs:
        raise ArgumentError("a report needs at least one certificate: everything else is about one")
    return list(inputs.values())


def _matched(
    certificates: Sequence[ReportInputs], files: Sequence[Supplied]
) -> tuple[ReportInputs, ...]:
    inputs = list(certificates)
    for file in files:
        content = file.content
        if isinstance(content, Certificate):
            continue
        if isinstance(content, Curves):
            homes = [i for i, held in enumerate(inputs) if _compares(content, held.certificate)]
            wanted = "order, epsilon and the noise of its own method"
        elif isinstance(content, TrainingLog):
            homes = _homes_of_log(file.path, content, inputs)
            wanted = "claim and number of steps; an internal log is known by its folder"
        else:
            digests = [held.certificate.digest for held in inputs]
            homes = [i for i, digest in enumerate(digests) if digest == file.names]
            wanted = f"certificate {str(file.names)[:16]}, which it names"
        if len(homes) != 1:
            raise ArgumentError(
                f"{str(file.path)!r} belongs to {'more than one' if homes else 'none'} of the "
                f"certificates in this report (looked for: {wanted}). Give its own certificate "
                "with it"
            )
        inputs[homes[0]] = _with(inputs[homes[0]], content, file.path)
    return tuple(inputs)


def _compares(curves: Curves, certificate: Certificate) -> bool:
    """Return whether a comparison is of the certificate's scenario: its own row has its noise."""
    claim = certificate.guarantee
    if certificate.workflow != "release" or not claim.has_order:
        return False
    table, scenario = curves.table, certificate.released.scenario
    ours = [row for row in table.rows if row.is_ours and row.scope == "unsliced"]
    if claim.is_sliced:
        # No comparison is made along the whole sphere.
        method = claim.method
        name = None if method is None else comparison.name_of(claim.notion, method)
        ours = [row for row in table.rows if row.mechanism == name]
    stds = [row.noise_std for row in ours]
    n_instances = len(scenario.priors) * len(scenario.pairs)
    return (
        (table.order, table.epsilon) == (claim.reported_order, claim.bound)
        and (table.dim, table.n_instances) == (len(scenario.query.names), n_instances)
        and any(math.isclose(std, certificate.noise_std, rel_tol=_SAME) for std in stds)
    )


def _homes_of_log(path: Path, log: TrainingLog, inputs: Sequence[ReportInputs]) -> list[int]:
    exact, possible, beside = [], [], []
    for i, held in enumerate(inputs):
        statement = held.certificate.statement
        if not isinstance(statement, TrainingStatement):
            continue
        claim = statement.guarantee.to_json()
        n_steps = sum(run.n_steps for run in statement.runs)
        if max(row["step"] for row in log.rows) <= n_steps:
            possible.append(i)
            if held.path.resolve().parent == path.resolve().parent:
                beside.append(i)
        if not log.internal and all(
            row["n_steps"] == n_steps
            and all(row.get(key) == claim.get(key) for key in ("notion", "order", "delta"))
            and math.isclose(row["epsilon"], claim["epsilon"], rel_tol=_SAME)
            for row in log.rows
        ):
            exact.append(i)
    return (beside or possible) if log.internal else exact


def _with(held: ReportInputs, content: Content, path: Path) -> ReportInputs:
    certificate, field = held.certificate, _FIELDS.get(type(content), "audits")
    if isinstance(content, Release):
        _check_release(certificate, content, path)
        if held.releases:
            raise ArgumentError(
                f"{str(path)!r} is a second release of one certificate, which covers one; "
                "leave one of the two out"
            )
    if field == "audits" and isinstance(content, Audit) != (certificate.workflow == "release"):
        raise ArgumentError(
            f"{str(path)!r} is an audit of another kind of certificate than the one it "
            "names; write it with the certificate that was audited"
        )
    added: dict[str, Any] = {field: (*getattr(held, field), content)}
    return attrs.evolve(held, **added)


def _check_release(certificate: Certificate, released: Release, path: Path) -> None:
    """Check that a release has the coordinates, claim, range and noise of its certificate."""
    statement, fits = certificate.statement, False
    if isinstance(statement, ReleaseStatement):
        limits = released.range
        repeated = {
            "names": list(released.names),
            "range": None if limits is None else limits.description(),
            "guarantee": released.guarantee,
            "secure": released.secure,
            "unsliced": released.unsliced,
        }
        query, stds = statement.scenario.query, statement.noise.std_by_coordinate
        fits = repeated == {
            "names": query.names,
            "range": None if query.range is None else query.range.to_json(),
            "guarantee": str(certificate.guarantee),
            "secure": certificate.is_secure,
            "unsliced": statement.unsliced,
        } and np.allclose(released.noise_stds, stds, rtol=_SAME, atol=0)
        if fits and released.noise_covariance is not None:
            sizes, stated = np.outer(stds, stds), noise_covariance(certificate)
            fits = bool((np.abs(released.noise_covariance - stated) <= _SAME * sizes).all())
    if not fits:
        raise ArgumentError(
            f"{str(path)!r} names a certificate whose claim, range or noise it does not have; it "
            "was changed. Get the original, or write it again with release --again"
        )
