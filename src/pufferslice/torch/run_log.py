# SPDX-License-Identifier: Apache-2.0
"""Logs of a training run as JSON lines: one for the public, one that stays inside."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from pufferslice.errors import StorageError
from pufferslice.storage import CONFIDENTIAL, OPEN, parsed_json, read_bytes, write_whole

PUBLIC: Final = "public.jsonl"
INTERNAL: Final = "internal.jsonl"

INTERNAL_NOTE: Final = (
    "Losses, batch sizes, counts and times below are computed from the private records and are not "
    "covered by the guarantee. Do not publish this file."
)
"""The first line of an internal log says it."""


@final
class RunLog:
    """A file to which rows are added; each is on the disk before the next step.

    Every row has a `step`. A log that is opened for a run that goes on keeps the rows up to there.
    """

    __slots__ = ("_mode", "path")

    def __init__(self, path: Path, *, internal: bool, n_taken: int) -> None:
        self.path = path
        self._mode = CONFIDENTIAL if internal else OPEN
        heading = [{"internal": True, "note": INTERNAL_NOTE}] if internal else []
        kept = [row for row in rows_of(path) if row.get("step", math.inf) <= n_taken]
        write_whole(path, b"".join(map(_line, [*heading, *kept])), self._mode)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row. NaN and infinity become null."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                file.write(_line(row))
        except OSError as error:
            msg = f"cannot add to {str(self.path)!r}: {error.strerror}"
            raise StorageError(error.errno, msg) from error


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; none if there is no such file. A last line that is not whole is left out.

    >>> rows_of(Path("no such file"))
    []
    """
    if not path.exists():
        return []
    rows = []
    for line in read_bytes(path, "log").splitlines():
        try:
            row = parsed_json(line)
        except ValueError:
            break
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _line(row: Mapping[str, Any]) -> bytes:
    finite = {key: _finite(value) for key, value in row.items()}
    return json.dumps(finite, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _finite(value: Any) -> Any:  # noqa: ANN401 - a JSON value
    return None if isinstance(value, float) and not math.isfinite(value) else value
