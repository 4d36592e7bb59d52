# SPDX-License-Identifier: Apache-2.0
"""Members of archives and pickled batches of images, read into memory without running anything.

Nothing is written to disk, and nothing larger than allowed is unpacked. A pickle is a program: the
reader knows the few names that a batch needs and gives each a stand-in of its own, which only
stores what it is told; every other name is refused. Numbers of memo slots are checked first,
because a pickle could ask for very many.
"""

import gzip
import io
import pickle
import pickletools
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import IO, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from pufferslice._core.files import LIMITS, MOST_MEMBERS, check_archive

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
    """The members with these file names, in any folder of a gzipped archive, in their order."""
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


_PIXELS: Final = 3 * 32 * 32

UNREADABLE_PICKLE: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What damaged pickles raise."""


class _Array:
    """Stands for `numpy.ndarray` and keeps the state that a pickle gives it."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Type:
    """Stands for `numpy.dtype`: its name, and nothing done with the rest."""

    def __init__(self, name: object = None, *_flags: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like; one byte has none."""


def _array(*_arguments: object) -> _Array:
    return _Array()


_STAND_INS: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
}


class _BatchReader(pickle.Unpickler):
    """Finds stand-ins by name and refuses the rest."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._room = len(content)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        if (module, name) == ("_codecs", "encode"):
            return self._encoded
        found = _STAND_INS.get((module, name))
        if found is None:
            msg = "it names a function that a batch of images does not need"
            raise pickle.UnpicklingError(msg)
        return found

    def _encoded(self, text: object, encoding: object) -> bytes:
        """Bytes as newer programs write them into old pickles; in total at most the file's size."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            msg = "bytes in another form than latin1"
            raise pickle.UnpicklingError(msg)
        self._room -= len(text)
        if self._room < 0:
            msg = "it asks for too much memory"
            raise pickle.UnpicklingError(msg)
        return text.encode("latin1")

    def persistent_load(self, _pid: object) -> NoReturn:
        msg = "it refers to objects outside of it"
        raise pickle.UnpicklingError(msg)


def read_batch(content: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images of shape (n, 32, 32, 3) and labels of shape (n,) of a CIFAR-10 python batch.

    Anything else raises one of `UNREADABLE_PICKLE`.
    """
    _check_memo(content)
    found = _BatchReader(content).load()
    if not isinstance(found, dict):
        msg = "it is not a dictionary"
        raise pickle.UnpicklingError(msg)
    data = found.get(b"data", found.get("data"))
    labels = found.get(b"labels", found.get("labels"))
    if not isinstance(data, _Array) or not isinstance(labels, list):
        msg = "it has no data and labels"
        raise pickle.UnpicklingError(msg)
    pixels = _pixels(data)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        msg = "its labels are not small integers"
        raise pickle.UnpicklingError(msg)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.uint8)


def _pixels(data: _Array) -> npt.NDArray[np.uint8]:
    """The raw bytes, if the array is what a batch has: (n, 3072) of one byte each, row by row."""
    _version, shape, kind, by_columns, raw = data.state
    fits = (
        isinstance(shape, tuple)
        and len(shape) == 2
        and all(type(size) is int for size in shape)
        and shape[1] == _PIXELS
        and isinstance(kind, _Type)
        and kind.name in (b"u1", "u1", b"|u1", "|u1")
        and not by_columns
        and isinstance(raw, bytes)
        and len(raw) == shape[0] * shape[1]
    )
    if not fits:
        msg = "its data is not a matrix of bytes with 3072 columns"
        raise pickle.UnpicklingError(msg)
    return np.frombuffer(raw, dtype=np.uint8)


def _check_memo(content: bytes) -> None:
    """No memo slot beyond the number of instructions: unpicklers allocate up to the highest."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if "PUT" in opcode.name and not 0 <= int(argument or 0) <= count:
            msg = "it asks for too much memory"
            raise pickle.UnpicklingError(msg)
