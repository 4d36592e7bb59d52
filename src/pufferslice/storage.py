# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all; canonical JSON; digests."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pufferslice.errors import StorageError

OPEN = 0o666
CONFIDENTIAL = 0o600
"""Who may read a new file, before the umask: anyone, or its owner only."""

_making = threading.Lock()
"""So that no thread uses a file that another one has made and not closed yet."""


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int = OPEN) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one.

    The bytes go to a file beside it, are flushed to the disk, and then take the name. On failure
    nothing is left behind. A link is followed; what is no file, as a device, is never replaced.
    """
    _write(_target_of(path), content, mode, lambda beside, target: beside.replace(target))


def write_together(parts: Sequence[tuple[str | os.PathLike[str], bytes, int]]) -> None:
    """As `write_whole`, for (path, content, mode) of files of which the last one is for the others.

    All are on the disk before the first takes its name. A last one that is there already goes
    before that: a killed process leaves none, rather than one that belongs to other files.
    """
    targets = [_target_of(path) for path, _, _ in parts]
    beside = [_name_beside(target) for target in targets]
    last, aside, n_named = targets[-1], _name_beside(targets[-1]), 0
    if last.is_dir():
        raise _cannot("write", last, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    try:
        for name, (_, content, mode) in zip(beside, parts, strict=True):
            _fill(name, content, mode)
        with contextlib.suppress(FileNotFoundError):
            last.rename(aside)
        for name, target in zip(beside, targets, strict=True):
            name.replace(target)
            n_named += 1
    except BaseException as error:
        if isinstance(error, OSError) and not n_named:
            with contextlib.suppress(OSError):
                aside.rename(last)
        for name in (*beside, aside):
            with contextlib.suppress(OSError):
                name.unlink()
        if isinstance(error, OSError):
            raise _cannot("write", last, error) from error
        raise
    aside.unlink(missing_ok=True)
    for folder in dict.fromkeys(target.parent for target in targets):
        _flush_folder(folder)


def write_new(path: str | os.PathLike[str], content: bytes, mode: int = OPEN) -> None:
    """As `write_whole`, but never replaces a file: if `path` exists, that is an error."""

    def take_name(beside: Path, target: Path) -> None:
        target.hardlink_to(beside)
        beside.unlink()

    _write(Path(path), content, mode, take_name)


def check_new(path: str | os.PathLike[str]) -> None:
    """A new file can be made at `path`: its name is free and its folder takes files."""
    target = Path(path)
    if target.exists():
        raise _cannot("write", target, FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
    probe = _name_beside(target)
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, CONFIDENTIAL))
        probe.unlink()
    except OSError as error:
        raise _cannot("write", target, error) from error


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder and those above it, if they are not there; `mode` is that of a new one."""
    try:
        Path(path).mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot make the folder {str(path)!r}: {error.strerror or error}; name another one"
        raise StorageError(error.errno, msg) from error


def prepare_database(path: str | os.PathLike[str], *, create: bool) -> None:
    """See that SQLite can share the file at `path`; a new one, if `create`, is its owner's only.

    A file that is there is never opened here: closing it would drop the locks that other threads
    of this process hold on it (POSIX). One with several names is refused: SQLite keeps what is not
    yet in the file beside it, by name, so users of different names would not see each other.
    """
    target = os.path.realpath(path)
    with _making, contextlib.suppress(FileExistsError):
        if create:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, CONFIDENTIAL))
    about = Path(target).stat()
    if stat.S_ISREG(about.st_mode) and about.st_nlink > 1:
        msg = f"it has {about.st_nlink} names (hard links); copy it to a file with one name"
        raise StorageError(msg)


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left of writes to `path` that never took its name.

    Needs: nobody else is writing to `path` now.
    """
    target = _target_of(path)
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}"):
        left.unlink(missing_ok=True)


def _name_beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(8)}"


def _target_of(path: str | os.PathLike[str]) -> Path:
    """Where the bytes go: links are followed, and what is no file is not replaced by one."""
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
        if target.is_symlink():
            raise _cannot("write", target, OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
    if target.exists() and not target.is_file() and not target.is_dir():
        error = OSError(errno.EINVAL, "it is a device or a pipe, not a file; name a file")
        raise _cannot("write", target, error)
    return target


def _fill(path: Path, content: bytes, mode: int) -> None:
    """A new file with these bytes, flushed to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _write(
    target: Path, content: bytes, mode: int, take_name: Callable[[Path, Path], object]
) -> None:
    beside = _name_beside(target)
    try:
        _fill(beside, content, mode)
        take_name(beside, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise _cannot("write", target, error) from error
        raise
    _flush_folder(target.parent)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, or a `StorageError` that names it."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _cannot("read", Path(path), error) from error


def canonical_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """The one spelling of a JSON value that digests are taken over: sorted, compact, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def pretty_json(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """The spelling of a JSON value that people read; same content as the canonical one."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parsed_json(content: bytes | str) -> Any:  # noqa: ANN401 - any JSON value
    """A JSON value, read strictly: no NaN, no key twice; what is not that is a `ValueError`."""
    try:
        return json.loads(content, parse_constant=_no_number, object_pairs_hook=_once_each)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def _no_number(text: str) -> float:
    msg = f"{text} is no JSON number"
    raise ValueError(msg)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object in which no key occurs twice: readers differ in which one they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key occurs twice in one object"
        raise ValueError(msg)
    return found


def digest(*parts: bytes) -> str:
    """SHA-256, in hex, of the parts, each preceded by its length."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


def _flush_folder(folder: Path) -> None:
    """Make a rename durable, on systems where a folder can be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _cannot(verb: str, path: Path, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    return StorageError(error.errno, f"cannot {verb} {str(path)!r}: {reason}; nothing was changed")
