# SPDX-License-Identifier: Apache-2.0
"""Spent marks: what a release leaves outside of its ledger, so that no backup can forget it.

A mark is a line of a small confidential file, written before a release is handed out. Release files
are marks as well: they name their ledger and the event that intended them.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Self, final

import attrs

from pufferslice._core.files import (
    CONFIDENTIAL,
    LIMITS,
    append_line,
    canonical_json,
    check_writable,
    digest,
    make_folder,
    parsed_json,
    read_bytes,
)
from pufferslice.certificate.certificate import FORMAT as CERTIFICATE_FORMAT
from pufferslice.certificate.certificate import Certificate
from pufferslice.certificate.statement import BudgetStatement
from pufferslice.errors import LedgerError, PuffersliceError, StorageError
from pufferslice.releases.states import Book, Entry, Grant, Part
from pufferslice.scenario.keys import declared_keys

FORMAT: Final = "pufferslice-spent"
VERSION: Final = 5
SUFFIX: Final = ".spent"
RELEASE_FORMAT: Final = "pufferslice-release"
_ONLY_NAMES: Final = frozenset({"columns", "state_of"})
"""Secrets whose keys follow from their public names alone."""


@final
@attrs.frozen(kw_only=True)
class SpentMark:
    """What was released, as a file outside of the ledger says."""

    ledger: str
    """Lineage of the ledger: the hash of its first event."""
    place: str | None
    """Absolute path of the ledger, if it is a file."""
    intent: str
    """Hash of the event that intended the release."""
    content: str
    """Digest of the release."""
    grant: Grant
    part: str
    period: int
    charge: Fraction
    text: str | None = None
    """The release itself as canonical JSON, where the mark is a release file."""

    def to_line(self) -> bytes:
        """Write the mark as a line of JSON."""
        document = attrs.asdict(self, filter=lambda field, _: field.name != "text")
        document |= {"format": FORMAT, "version": VERSION, "charge": str(self.charge)}
        return canonical_json(document)

    @classmethod
    def of_line(cls, line: bytes) -> Self:
        """Read a line; a damaged one is a `ValueError`, `LookupError` or `TypeError`."""
        fields = dict(parsed_json(line))
        if (fields.pop("format"), fields.pop("version")) != (FORMAT, VERSION):
            raise ValueError("it has another format or version")
        grant = Grant.of_fields(fields.pop("grant"))
        return cls(**fields | {"grant": grant, "charge": Fraction(fields["charge"])})


@final
@attrs.frozen(kw_only=True)
class Outside:
    """The folders outside of a ledger where a release leaves its marks."""

    place: str | None
    """Absolute path of the ledger, if it is a file."""
    folder: Path | None
    """Folder of the spent mark; None for a database, whose release files are the marks."""
    out: Path | None = None
    """Folder of the release file, if there is one."""

    @classmethod
    def of(
        cls,
        ledger: Path | None,
        *,
        asked: str | os.PathLike[str] | None,
        certificate: Path | None,
        out: str | os.PathLike[str] | None,
    ) -> Self:
        """Choose the folder of the mark, and make sure that it takes files.

        The one that was asked for; else that of the certificate file, else that of `out`, else,
        where neither is a file, that of the ledger.
        """
        files = [Path(os.path.realpath(file)) for file in (certificate, out) if file is not None]
        folders = [Path(asked)] if asked is not None else [file.parent for file in files]
        if ledger is not None and not folders:
            folders = [Path(os.path.realpath(ledger)).parent]
        return cls(
            place=None if ledger is None else os.path.realpath(ledger),
            folder=None if ledger is None and asked is None else _first_writable(folders),
            out=None if out is None else Path(os.path.realpath(out)).parent,
        )

    def seen(self, book: Book) -> list[SpentMark]:
        """Read the marks in these folders, and in those that the ledger knows."""
        known = {entry.marks for entry in book.entries.values()}
        folders = {Path(name) for name in known if name} | ({self.folder} - {None})
        marks = [mark for folder in sorted(filter(None, folders)) for mark in marks_in(folder)]
        return marks + ([] if self.out is None else marks_of_releases([self.out]))

    def leave(self, ledger: str, lineage: str, grant: Grant, entry: Entry, text: str) -> None:
        """Leave the mark of a recorded release; `ledger` is the short name of its ledger."""
        if self.folder is not None:
            mark = SpentMark(
                ledger=lineage,
                place=self.place,
                intent=entry.hash,
                content=digest(text.encode()),
                grant=grant,
                part=entry.part,
                period=entry.period,
                charge=entry.charge,
            )
            append_line(self.folder / f"{ledger}{SUFFIX}", mark.to_line(), CONFIDENTIAL)


def _first_writable(folders: Iterable[Path]) -> Path:
    problem: StorageError | None = None
    for folder in folders:
        try:
            make_folder(folder)
            check_writable(folder)
        except StorageError as error:
            problem = error
        else:
            return folder.absolute()
    raise StorageError(
        f"no spent mark can be left: {problem}. Name a folder with spent_marks= (--spent-marks)"
    )


def marks_in(place: Path) -> list[SpentMark]:
    """Read the marks in a file, or in the files of a folder; none if there is no such folder.

    A damaged mark is an error, as it may be all that is left of a release.
    """
    marks = []
    for path in [place] if place.suffix == SUFFIX else sorted(place.glob(f"*{SUFFIX}")):
        # the last line is of a release that was not handed out, unless it is finished
        for line in read_bytes(path, "log").split(b"\n")[:-1]:
            try:
                marks.append(SpentMark.of_line(line))
            except (ValueError, LookupError, TypeError, ZeroDivisionError) as error:
                raise LedgerError(
                    f"the spent marks {str(path)!r} cannot be read: they are damaged or of another "
                    "version. Get a copy; without them a release could be forgotten"
                ) from error
    return marks


def documents_in(places: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among files, and among the .json files of folders."""
    for place in places:
        for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            with contextlib.suppress(ValueError, OSError, PuffersliceError):
                if path.stat().st_size <= LIMITS["document"]:
                    document = parsed_json(read_bytes(path, "document"))
                    if isinstance(document, dict):
                        yield document


def marks_of_releases(places: Iterable[Path]) -> list[SpentMark]:
    """Make marks of release files; the secret is that of the certificate beside one, or any."""
    documents = list(documents_in(places))
    certificates: dict[str, Certificate | None] = {}
    for document in documents:
        if document.get("format") == CERTIFICATE_FORMAT:
            with contextlib.suppress(PuffersliceError):
                held = Certificate.from_json(document)
                certificates[held.digest] = held
    marks = []
    for document in documents:
        if document.get("format") == RELEASE_FORMAT and _names_a_ledger(document):
            try:
                marks.append(_of_release(document, certificates.get(document["certificate"])))
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
                raise LedgerError(
                    f"the release file of intent {document['ledger']['intent'][:12]} cannot be "
                    "read: it is damaged. Get a copy, or move it away; without it a release could "
                    "be forgotten"
                ) from error
    return marks


def _names_a_ledger(document: Mapping[str, Any]) -> bool:
    recorded = document.get("ledger")
    return isinstance(recorded, dict) and all(
        isinstance(recorded.get(key), str) for key in ("id", "intent")
    )


def _of_release(document: dict[str, Any], certificate: Certificate | None) -> SpentMark:
    # as it was recorded: a signature came later
    unsigned = {key: value for key, value in document.items() if key != "signature"}
    recorded, text = document["ledger"], canonical_json(unsigned).decode()
    keys, parts = None, {recorded["part"]: Part(n_periods=max(1, recorded["period"]))}
    if certificate is not None:
        statement = certificate.statement
        if isinstance(statement, BudgetStatement):
            parts, stated = parts_of(statement), [part.scenario for part in statement.tables]
        else:
            stated = [certificate.released.scenario]
        keys = _keys_of([scenario.secret.to_json() for scenario in stated])
    return SpentMark(
        ledger=recorded["id"],
        place=None,
        intent=recorded["intent"],
        content=digest(text.encode()),
        grant=Grant(
            certificate=document["certificate"],
            keys=keys,
            parts=parts,
            claim=document["guarantee"],
            statistics=tuple(row["name"] for row in document["values"]),
            n_rows=document.get("n_rows"),
        ),
        part=recorded["part"],
        period=recorded["period"],
        charge=Fraction(recorded["charge"]),
        text=text,
    )


def _keys_of(secrets: Iterable[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """Keys of secrets by their names; None, any secret, where some depend on rows."""
    secrets = list(secrets)
    if not all(_ONLY_NAMES & set(secret) for secret in secrets):
        return None
    return tuple(dict.fromkeys(key for secret in secrets for key in declared_keys(secret)))


def parts_of(budget: BudgetStatement) -> dict[str, Part]:
    """Return what a budget allows in each of its parts."""
    tables = {
        part.name: Part(
            n_periods=part.times,
            is_fresh=part.kind == "repeated",
            dim=len(part.scenario.query.names),
        )
        for part in budget.tables
    }
    return tables | {run.name: Part() for run in budget.runs}


def found_in(places: Iterable[Path]) -> list[SpentMark]:
    """Collect the marks in files and folders; the releases themselves where there are files."""
    places = list(places)
    marks = [mark for place in places for mark in marks_in(place)]
    beside = {place if place.is_dir() else place.parent for place in places}
    texts = {mark.content: mark for mark in marks_of_releases(sorted({*places, *beside}))}
    unmarked = [mark for name, mark in texts.items() if name not in {m.content for m in marks}]
    named = [
        attrs.evolve(mark, text=texts[mark.content].text) if mark.content in texts else mark
        for mark in marks
    ]
    return named + unmarked
