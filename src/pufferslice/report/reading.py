# SPDX-License-Identifier: Apache-2.0
"""Files for a report, recognised by what is in them."""

import os
from collections import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, final, get_args, get_origin, get_type_hints

import attrs

from pufferslice.audit import Audit, MembershipAudit, Verdict
from pufferslice.certificate import Certificate
from pufferslice.certificate.document import EVIDENCE_SUFFIX
from pufferslice.certificate.document import FORMAT as CERTIFICATE_FORMAT
from pufferslice.compare import Comparison
from pufferslice.errors import ArgumentError
from pufferslice.releasing import FORMAT as RELEASE_FORMAT
from pufferslice.releasing import Release
from pufferslice.storage import canonical_json, parsed_json, read_bytes

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


def _named(document: Mapping[str, Any]) -> str:
    named = document.get("certificate")
    if not isinstance(named, str):
        msg = (
            "it does not say which certificate it is about; make it with "
            'to_json() | {"certificate": certificate.digest}'
        )
        raise ArgumentError(msg)
    return named


def _structured(kind: Any, value: Any) -> Any:  # noqa: ANN401 - any type, any JSON value
    """A JSON value as a value of this type; one of another type is an error."""
    origin, inside = get_origin(kind), get_args(kind)
    if (attrs.has(kind) or hasattr(kind, "_fields")) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _structured(hints[name], value[name]) for name in _names(kind, value)})
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


def _names(kind: Any, value: Mapping[str, Any]) -> list[str]:  # noqa: ANN401 - a class
    """The fields of a class, without those that have a default and are not there."""
    if not attrs.has(kind):
        return list(kind._fields)
    fields = attrs.fields(kind)
    return [one.name for one in fields if one.name in value or one.default is attrs.NOTHING]


def _audit(document: Mapping[str, Any]) -> Audit:
    """The outcome of a verdict is worked out again from its numbers."""
    audit: Audit = _structured(Audit, document)
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
        msg = "a curve has one number for each of the epsilons"
        raise ArgumentError(msg)
    return curves


def _training_audit(document: Mapping[str, Any]) -> TrainingAudit:
    return TrainingAudit(certificate=_named(document), verdict=_structured(Verdict, document))


def _member_audit(document: Mapping[str, Any]) -> MemberAudit:
    return MemberAudit(certificate=_named(document), audit=_structured(MembershipAudit, document))


def _one_row(document: Mapping[str, Any]) -> TrainingLog:
    if not _is_public_row(document):
        msg = "a row of a log has numbers"
        raise ArgumentError(msg)
    return TrainingLog(internal=document.get("internal") is True, rows=(document,))


_READERS: Final[tuple[tuple[set[str], Callable[[Mapping[str, Any]], Content]], ...]] = (
    ({"certificate", "verdicts", "inferences", "unaudited"}, _audit),
    ({"order", "epsilon", "rows", "left_out"}, _comparison),
    ({"attack", "roc_auc", "low_rates"}, _member_audit),
    ({"claim", "lower_bound", "refutable_below"}, _training_audit),
    (_PUBLIC_KEYS, _one_row),
)
"""By which keys a file without a format is known, and what reads it."""
