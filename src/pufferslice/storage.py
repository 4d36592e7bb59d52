# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all; canonical JSON; digests."""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pufferslice.errors import StorageError

OPEN = 0o666
CONFIDENTIAL = 0o600
"""Who may read a new file, before the umask: anyone, or its owner only."""


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int = OPEN) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one.

    The bytes go to a file beside it, are flushed to the disk, and then take the name. On failure
    nothing is left behind.
    """
    _write(Path(path), content, mode, lambda beside, target: beside.replace(target))


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
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except OSError as error:
        raise _cannot("write", target, error) from error


def _name_beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(8)}"


def _write(
    target: Path, content: bytes, mode: int, take_name: Callable[[Path, Path], object]
) -> None:
    beside = _name_beside(target)
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
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
