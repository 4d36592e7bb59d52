# SPDX-License-Identifier: Apache-2.0
"""Members of archives read into memory: nothing is written, and nothing is larger than allowed."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import IO, Final

from pufferslice.storage import LIMITS, MOST_MEMBERS, check_archive

GZIP_MARK: Final = b"\x1f\x8b"
ZIP_MARK: Final = b"PK\x03\x04"

UNREADABLE: Final = (
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What the readers of archives raise on damaged, locked or oversized ones."""


def gunzipped(content: bytes, most: int) -> bytes:
    """The unpacked bytes; more than `most` of them is a ValueError."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _read(file, most)


def unzipped(content: bytes, name: str, most: int) -> bytes:
    """The member of this file name, in any folder of the archive or of an archive inside it."""
    check_archive(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = _named(archive, name)
        if found is None:
            inner = [member for member in archive.namelist() if member.lower().endswith(".zip")]
            for member in inner:
                with archive.open(member) as file, zipfile.ZipFile(_copy(file, most)) as nested:
                    found = _named(nested, name)
                    if found is not None:
                        return _member(nested, found, most)
            msg = f"the archive has no member {name!r}"
            raise LookupError(msg)
        return _member(archive, found, most)


def tar_members(content: bytes, names: Collection[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The members with these file names, in any folder of a gzipped archive, as they come."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        size = 0
        for count, member in enumerate(archive):
            size += member.size
            if size > LIMITS["archive"] or count >= MOST_MEMBERS:
                msg = f"it has more than {LIMITS['archive']:,} bytes or {MOST_MEMBERS:,} members"
                raise ValueError(msg)
            name = PurePosixPath(member.name).name
            file = archive.extractfile(member) if name in names and member.isfile() else None
            if file is not None:
                yield name, _read(file, most)


def _named(archive: zipfile.ZipFile, name: str) -> str | None:
    return next((m for m in archive.namelist() if PurePosixPath(m).name == name), None)


def _member(archive: zipfile.ZipFile, member: str, most: int) -> bytes:
    with archive.open(member) as file:
        return _read(file, most)


def _copy(file: IO[bytes], most: int) -> io.BytesIO:
    return io.BytesIO(_read(file, most))


def _read(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        msg = f"unpacked it has more than {most} bytes"
        raise ValueError(msg)
    return bytes(content)
