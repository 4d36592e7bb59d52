# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a scan: the histograms so far, and how far the rows were read."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pufferslice.errors import StorageError
from pufferslice.histograms import Histograms
from pufferslice.storage import (
    CONFIDENTIAL,
    canonical_json,
    check_room,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_whole,
)
from pufferslice.streaming.rows import RowScan
from pufferslice.tables.pieces import Piece

FORMAT: Final = "pufferslice-scan"
VERSION: Final = 1

SECONDS_BETWEEN: Final = 30.0
"""How often a running scan is saved."""

_END_OF_HEAD: Final = b"\n\0\n"


class Position(NamedTuple):
    """How far a scan has come: pieces done, rows of the next one, and rows in all."""

    n_pieces: int
    n_rows_of_next: int
    n_rows: int


START: Final = Position(0, 0, 0)


class Checkpoint:
    """One file that always holds a whole state of a scan, or does not exist yet.

    It holds histograms of the data, so only its owner may read it.
    """

    def __init__(self, path: Path, scan: RowScan, pieces: Sequence[Piece]) -> None:
        self._path = path
        self._identity = {**scan.parts(), "data": _data_digest(pieces)}
        self._saved_at = time.monotonic()

    def load(self) -> tuple[Histograms, Position] | None:
        """The state that was saved last; none if there is no file. Another scan's is refused."""
        if not self._path.exists():
            check_room(self._path.parent)
            return None
        head, separator, body = read_bytes(self._path, "archive").partition(_END_OF_HEAD)
        facts = self._facts(head, body) if separator else None
        if facts is None:
            msg = (
                f"{str(self._path)!r} is not a checkpoint of a scan, or it is damaged; name another"
            )
            raise StorageError(msg)
        self._check(facts["identity"])
        return Histograms.from_bytes(body), Position(*facts["position"])

    def save(self, histograms: Histograms, position: Position) -> None:
        """Put this state in the place of the last one, whole."""
        body = histograms.to_bytes()
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "identity": self._identity,
            "position": list(position),
            "state": _state_digest(self._identity, position, body),
        }
        content = pretty_json(facts) + _END_OF_HEAD + body
        write_whole(self._path, content, CONFIDENTIAL)
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last save was long ago."""
        return time.monotonic() - self._saved_at >= SECONDS_BETWEEN

    def _facts(self, head: bytes, body: bytes) -> dict[str, Any] | None:
        try:
            facts: dict[str, Any] = parsed_json(head)
        except ValueError:
            return None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            return None
        identity, position = facts.get("identity"), facts.get("position")
        if not isinstance(identity, dict) or not isinstance(position, list):
            return None
        if facts.get("version") != VERSION:
            return None
        return facts if facts.get("state") == _state_digest(identity, position, body) else None

    def _check(self, found: Mapping[str, str]) -> None:
        other = [name for name, said in self._identity.items() if found.get(name) != said]
        if other:
            msg = (
                f"the checkpoint {str(self._path)!r} was made with another {' and '.join(other)}; "
                "its counts do not belong here. Name another file, or remove it"
            )
            raise StorageError(msg)


def _state_digest(identity: object, position: Sequence[object], body: bytes) -> str:
    """Binds counts to how far they go: either alone, beside another's, would count rows wrongly."""
    return digest(canonical_json([identity, list(position)]), body)


def _data_digest(pieces: Sequence[Piece]) -> str:
    """Names, sizes and times of change of the files: what can be told without reading them."""
    facts = []
    for file in dict.fromkeys(piece.file for piece in pieces):
        about = file.stat()
        facts.append([str(file.resolve()), about.st_size, about.st_mtime_ns])
    return digest(canonical_json(facts))
