# SPDX-License-Identifier: Apache-2.0
"""SQLite files: made whole or not at all, for their owner only; an empty one is damage."""

import contextlib
import glob
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pufferslice._core.files import CONFIDENTIAL, ROOM, check_local, check_regular, write_first
from pufferslice.errors import StorageError

_OPTIONS: Final = "mode=rw"


def make_database(
    path: str | os.PathLike[str], fill: Callable[[sqlite3.Connection], object]
) -> None:
    """Make the database at `path`, filled by `fill`, unless there is a file.

    It is filled in memory, flushed to the disk under another name and then takes its own: a killed
    process leaves the whole database or none, and of two that make it at once one does.
    """
    check_local(path)
    target = Path(os.path.realpath(path))
    # Looked for before the file: one that is being used may have a journal at any time.
    left = [name for end in ("-journal", "-wal") if (name := Path(f"{target}{end}")).exists()]
    if target.exists():
        return
    if left:
        raise StorageError(
            f"the file is gone, and {left[0].name!r}, which belongs to it, is still there; restore "
            "both from a copy, or remove that as well if there was nothing in it"
        )
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        fill(connection)
        connection.commit()
        content = connection.serialize()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_first(target, content, CONFIDENTIAL)


def open_database(path: str | os.PathLike[str], **options: object) -> sqlite3.Connection:
    """Connect to the existing database at `path`; `options` are those of sqlite3.

    The file is looked at without opening it: closing it would drop the locks that other threads of
    this process hold on it (POSIX). A file with several names is refused: SQLite keeps its journal
    beside it, by name, so users of different names would not see each other's changes.
    """
    check_local(path)
    target = Path(os.path.realpath(path))
    about = target.stat()
    check_regular(about)
    if about.st_nlink > 1:
        _drop_name_it_was_made_under(target)
        about = target.stat()
    if about.st_nlink > 1:
        raise StorageError(
            f"it has {about.st_nlink} names (hard links); copy it to a file with one name"
        )
    if not about.st_size:
        raise StorageError(
            "it is damaged: it has 0 bytes, so what was recorded in it is lost. Restore a copy; "
            "remove it only if nothing was ever recorded in it"
        )
    return sqlite3.connect(database_uri(target), uri=True, **options)  # type: ignore[call-overload,no-any-return]


def database_uri(path: str | os.PathLike[str]) -> str:
    """Return the address at which SQLite opens an existing file."""
    # It would make a file of 0 bytes if this one went away meanwhile.
    return f"{Path(os.path.realpath(path)).as_uri()}?{_OPTIONS}"


def _drop_name_it_was_made_under(target: Path) -> None:
    """Remove the temporary name that a killed process left on a new file."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}"):
        with contextlib.suppress(OSError):
            if left.samefile(target):
                left.unlink()


def database_problem(path: str | os.PathLike[str], error: Exception) -> str:
    """Reason why SQLite cannot use a file, whose message may hide that the disk is full."""
    if isinstance(error, OSError):  # which does say it
        return error.strerror or str(error)
    reason = str(error)
    with contextlib.suppress(OSError):
        if shutil.disk_usage(Path(path).parent).free < ROOM:
            return f"the disk is full ({reason})"
    return reason
