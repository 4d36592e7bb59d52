# SPDX-License-Identifier: Apache-2.0
"""Files: read within limits, written whole or not at all; canonical JSON and digests."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, Literal

from pufferslice.errors import StorageError

OPEN = 0o666
CONFIDENTIAL = 0o600
"""Permissions of a new file, before the umask: for everyone, or its owner only."""

Kind = Literal["key", "settings", "document", "log", "archive", "model"]
"""Purpose of a file, which decides how large it may be."""

LIMITS: Final[Mapping[Kind, int]] = MappingProxyType(
    {
        "key": 2**16,
        "settings": 2**24,
        "document": 2**26,
        "log": 2**29,
        "archive": 2**31,
        "model": 2**33,
    }
)
"""Most bytes of a file that is read into memory; tables of data have no such limit."""

PROBE: Final = "room"
"""A file that is written to see whether there is room."""
ROOM: Final = 2**20
"""Bytes that a disk must take before a long computation begins to write there."""

MOST_NESTED: Final = 64
"""Most objects and lists inside each other, in JSON and TOML."""

MOST_MEMBERS: Final = 2**16
MOST_EXPANSION: Final = 200
SMALL_ARCHIVE: Final = 2**28
"""Bytes that any archive may unpack to; a larger one, to `MOST_EXPANSION` times its size."""

_LARGEST_INTEGER_BITS: Final = sys.float_info.max_exp - 1

_PROTOCOL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]+):/")
"""Beginning of a URL, also if a `Path` removed a slash; a drive of Windows has one letter."""


def check_local(path: str | os.PathLike[str]) -> None:
    """Refuse a URL: files are read from this machine, and written to it, whole or not at all."""
    match = _PROTOCOL.match(os.fspath(path))
    if match is not None:
        # Without the rest of the URL, which may hold a password.
        raise StorageError(
            f"a URL of {match[1].lower()}:// cannot be used: only files of this machine are read "
            "and written. Copy the file, and give its path"
        )


def write_whole(path: str | os.PathLike[str], content: bytes, mode: int = OPEN) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one.

    The bytes go to a file beside it, are flushed to the disk, and then take the name. On failure
    nothing is left behind. A link is followed; a device or a pipe is never replaced.
    """
    target = _target_of(path)
    beside = _name_beside(target)
    try:
        _fill(beside, content, mode)
        beside.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise _cannot("write", target, error) from error
        raise
    _flush_folder(target.parent)


def write_together(parts: Sequence[tuple[str | os.PathLike[str], bytes, int]]) -> None:
    """Write files (path, content, mode) of which the last refers to the others, as `write_whole`.

    All are on the disk before the first takes its name. An old last file is removed before that:
    a killed process leaves none, rather than one that belongs to other files.
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
    """Write a new file as `write_whole`; it is an error if `path` exists."""
    write_all_new([(path, content, mode)])


def write_all_new(parts: Sequence[tuple[str | os.PathLike[str], bytes, int]]) -> None:
    """Write new files (path, content, mode) as `write_new`: on failure none is left."""
    targets = [Path(path) for path, _, _ in parts]
    beside = [_name_beside(target) for target in targets]
    failed = targets[0]
    try:
        for name, target, (_, content, mode) in zip(beside, targets, parts, strict=True):
            failed = target
            _fill(name, content, mode)
        for name, target in zip(beside, targets, strict=True):
            failed = target
            target.hardlink_to(name)
    except BaseException as error:
        for name, target in zip(beside, targets, strict=True):
            with contextlib.suppress(OSError):
                if target.samefile(name):
                    target.unlink()
        if isinstance(error, OSError):
            raise _cannot("write", failed, error) from error
        raise
    finally:
        for name in beside:
            with contextlib.suppress(OSError):
                name.unlink()
    for folder in dict.fromkeys(target.parent for target in targets):
        _flush_folder(folder)


def write_first(path: str | os.PathLike[str], content: bytes, mode: int = OPEN) -> None:
    """Write a file as `write_whole` unless one is there; once named, a file is never replaced.

    Of several processes at once, one writes; others may use the file before that one returns.
    """
    target = _target_of(path)
    beside = _name_beside(target)
    try:
        _fill(beside, content, mode)
        with contextlib.suppress(FileExistsError):
            target.hardlink_to(beside)
    except OSError as error:
        raise _cannot("write", target, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    _flush_folder(target.parent)


def append_line(path: str | os.PathLike[str], line: bytes, mode: int = OPEN) -> None:
    """Append a line to a file of lines, made if there is none, unless it has that line already.

    The line is on the disk when this returns. One that a killed process left unfinished is removed.
    """
    target = _target_of(path)
    try:
        is_new = not target.exists()
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT, mode)
        with os.fdopen(descriptor, "r+b") as file:
            with contextlib.suppress(OSError):  # a disk without such locks
                fcntl.flock(file, fcntl.LOCK_EX)
            lines = file.read().split(b"\n")
            size = file.tell() - len(lines.pop())
            if line not in lines:
                try:
                    file.seek(size)
                    file.truncate()
                    file.write(line + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
    except OSError as error:
        raise _cannot("write", target, error) from error
    if is_new:
        _flush_folder(target.parent)


def check_new(path: str | os.PathLike[str]) -> None:
    """Check that a file can be made at `path`: its name is free and its folder takes files."""
    target = Path(path)
    if os.path.lexists(target):  # also a link to nothing
        raise _cannot("write", target, FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))
    _probe(_name_beside(target), target)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Check that a folder takes files, by an empty one that is removed again."""
    _probe(_name_beside(Path(folder) / PROBE), Path(folder))


def _probe(probe: Path, target: Path) -> None:
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, CONFIDENTIAL))
        probe.unlink()
    except OSError as error:
        raise _cannot("write", target, error) from error


def check_room(folder: str | os.PathLike[str]) -> None:
    """Check that the disk takes `ROOM` bytes in this folder, by a file that is removed again."""
    probe = _name_beside(Path(folder) / PROBE)
    try:
        _fill(probe, bytes(ROOM), CONFIDENTIAL)
    except OSError as error:
        raise _cannot("write", Path(folder), error) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder and those above it, if they are not there; `mode` is that of a new one."""
    check_local(path)
    try:
        Path(path).mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"cannot make the folder {str(path)!r}: {error.strerror or error}; name another one",
        ) from error


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left of writes to `path` that never took its name.

    Needs: nobody else is writing to `path` now.
    """
    target = _target_of(path)
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}"):
        left.unlink(missing_ok=True)


def _name_beside(target: Path) -> Path:
    check_local(target)
    return target.parent / f".{target.name}.{secrets.token_hex(8)}"


def _target_of(path: str | os.PathLike[str]) -> Path:
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
    """Write a new file with these bytes and flush it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_bytes(path: str | os.PathLike[str], kind: Kind) -> bytes:
    """Read a file that is no larger than its kind allows, or raise a `StorageError`."""
    most = LIMITS[kind]
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            content = file.read(size + 1) if size <= most else b""
            # A file that grows, or whose size is given as 0, as in /proc.
            while size < len(content) <= most and (part := file.read(2**20)):
                content += part
        except OSError as error:
            raise _cannot("read", Path(path), error) from error
    size = max(size, len(content))
    if size > most:
        reason = f"it has {size:,} bytes or more, and a file of this kind ({kind}) at most {most:,}"
        raise _cannot("read", Path(path), OSError(errno.EFBIG, reason))
    return content


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading; a folder, device, pipe or socket is a `StorageError`."""
    check_local(path)
    try:
        check_regular(Path(path).stat())  # before: opening a device may do something
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        file = os.fdopen(descriptor, "rb")
        try:
            check_regular(os.fstat(descriptor))
        except OSError:
            file.close()
            raise
    except (OSError, ValueError) as error:
        reason = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
        raise _cannot("read", Path(path), reason) from error
    return file


def check_regular(about: os.stat_result) -> None:
    """Raise `OSError` unless this is about a regular file."""
    mode = about.st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        reason = f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file"
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, reason)


def check_archive(content: bytes, kind: Kind = "archive") -> None:
    """Check that a zip archive has few members and few unpacked bytes, else `ValueError`.

    Decided from its directory, before anything is unpacked.
    """
    if content.count(b"PK\x01\x02") > MOST_MEMBERS:
        raise ValueError(f"it has more than {MOST_MEMBERS:,} members")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
    if any(m.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} for m in members):
        raise ValueError("it has members that are neither stored nor deflated")
    size = sum(member.file_size for member in members)
    most = min(LIMITS[kind], max(SMALL_ARCHIVE, MOST_EXPANSION * len(content)))
    if size > most:
        raise ValueError(f"it unpacks to {size:,} bytes, and may to {most:,}")


def canonical_json(value: Any) -> bytes:  # any JSON value
    """The one spelling of a JSON value that digests are taken over: sorted, compact, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def pretty_json(value: Any) -> bytes:  # any JSON value
    """The spelling of a JSON value that people read; same content as the canonical one."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parsed_json(content: bytes | str) -> Any:  # any JSON value
    """Read a JSON value strictly: finite numbers, no key twice; else a `ValueError`."""
    try:
        value = json.loads(
            content,
            parse_constant=_finite,
            parse_float=_finite,
            object_pairs_hook=_once_each,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_document(value)
    return value


def check_document(value: object) -> None:
    """Refuse more than `MOST_NESTED` levels, and integers beyond all floats: a `ValueError`."""
    level = [value]
    for _ in range(MOST_NESTED):
        if any(isinstance(x, int) and x.bit_length() > _LARGEST_INTEGER_BITS for x in level):
            raise ValueError("it has an integer that is larger than any float")
        objects = (x.values() for x in level if isinstance(x, dict))
        lists = (x for x in level if isinstance(x, list))
        level = [x for values in (*objects, *lists) for x in values]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_NESTED} levels deep")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Readers differ in which of two equal keys they take.
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


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
