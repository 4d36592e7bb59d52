# SPDX-License-Identifier: Apache-2.0
"""Where the files of a table are: on this machine, in an object store, or behind a web address.

Schemes are an allow-list. Of a URL no message shows more than its scheme, because the rest could
hold a password.
"""

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Final, final
from urllib.parse import unquote, urlsplit

import attrs
import pyarrow as pa
import pyarrow.fs

from pufferslice._core.files import open_regular
from pufferslice._core.text import listed
from pufferslice.data.web import WebFile
from pufferslice.errors import StorageError, TableError

SCHEMES: Final = ("file", "s3", "gs", "abfs", "https")
"""Schemes of URLs that are read."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?")
"""Beginning of a URL, also if a `Path` removed a slash; a drive of Windows has one letter."""

_MOST_LISTED: Final = 100_000
"""Most files and folders that are looked at for a folder or a glob."""


@final
@attrs.frozen(order=False)
class Location:
    """A file that can be opened, as often as needed."""

    path: str
    """Path on this machine, in a store, or the web address."""
    scheme: str = ""
    """Scheme of the URL; empty on this machine."""
    store: Any = attrs.field(default=None, eq=False, repr=False)
    """File system of pyarrow; None on this machine and for a web address."""

    def __str__(self) -> str:
        return f"{self.scheme}://…/{PurePosixPath(self.path).name}" if self.scheme else self.path

    @property
    def identity(self) -> object:
        """Identity of the file, the same for all of its names and hard links."""
        if self.scheme:
            return self.scheme, self.path
        if not Path(self.path).exists():
            return str(Path(self.path).resolve())
        about = Path(self.path).stat()
        return about.st_dev, about.st_ino

    def open(self) -> IO[bytes]:
        """Open the file for reading, at any place in it."""
        if not self.scheme:
            return open_regular(self.path)
        if self.store is None:
            return WebFile.open(self.path)
        with _told(self.scheme):
            file: IO[bytes] = self.store.open_input_file(self.path)
        return file

    @property
    def size(self) -> int:
        """Number of bytes."""
        with self.open() as file:
            return file.seek(0, os.SEEK_END)


@final
class _told:  # noqa: N801 - used as a word of a sentence
    """Turn the errors of a store into one that shows nothing of the address."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise a `StorageError` in place of an error of the store."""
        if isinstance(error, OSError | pa.ArrowException | NotImplementedError | ValueError):
            raise StorageError(
                f"a file of {self.scheme}:// cannot be read ({type(error).__name__}); check its "
                "address, and the credentials that the environment gives"
            ) from None


def check_scheme(path: str | os.PathLike[str]) -> str:
    """Scheme of a URL, empty for a path; a scheme that is not read is refused.

    >>> check_scheme("s3://bucket/people.parquet"), check_scheme("people.parquet")
    ('s3', '')
    """
    match = _SCHEME.match(os.fspath(path))
    if match is None:
        return ""
    scheme = match[1].lower()
    if scheme not in SCHEMES:
        raise StorageError(
            f"a URL of {scheme}:// cannot be read; those of {listed(SCHEMES)} can, and files of "
            "this machine. Copy the file, and give its path"
        )
    return scheme


def beside(folder: Path, path: str) -> str:
    """A path that is relative to a folder; a URL is relative to nothing."""
    return path if check_scheme(path) else str(folder / path)


def locations_of(path: str | os.PathLike[str], check: Callable[[PurePath], str]) -> list[Location]:
    """The files that a path, a folder, a glob or a URL stands for, in the order of their names.

    `check` returns the suffix of a name, and refuses names of files that are no tables. Several
    files are Parquet files, of which none may occur twice.
    """
    scheme, text = check_scheme(path), os.fspath(path)
    if scheme == "https":
        check(PurePosixPath(unquote(urlsplit(text).path)))
        return [Location(text, scheme)]
    if scheme == "file":
        text, scheme = unquote(urlsplit(text).path), ""
    place = _Store.of(text, scheme) if scheme else _Local(text)
    root = place.root
    if place.is_folder(root):
        names = [name for name in place.below(root) if name.lower().endswith(".parquet")]
        nested = [name for name in names if str(PurePosixPath(name).parent) != root.rstrip("/")]
        if nested or not names:
            raise TableError(
                f"folder {_shown(text, scheme)} must hold Parquet files, and none in its "
                f"subfolders; it has {len(names) - len(nested)} and {len(nested)}. Name subfolders "
                "with a glob such as 'folder/*/*.parquet'"
            )
    elif glob.has_magic(root) and not place.is_file(root):
        names = _matching(place, root)
        other = sum(1 for name in names if not name.lower().endswith(".parquet"))
        if other or not names:
            raise TableError(
                f"glob {_shown(text, scheme)} must match Parquet files and nothing else; it "
                f"matches {len(names)} files, {other} of them not named .parquet"
            )
    else:
        check(PurePath(root))
        return [place.location(root)]
    found = [place.location(name) for name in sorted(names)]
    first: dict[object, Location] = {}
    for location in found:
        if first.setdefault(location.identity, location) is not location:
            raise TableError(
                f"{str(first[location.identity])!r} and {str(location)!r} are one file, whose rows "
                "would count twice; remove the link, or name files with a glob"
            )
    return found


def _shown(text: str, scheme: str) -> str:
    return f"of {scheme}://" if scheme else repr(text)


def _matching(place: "_Local | _Store", pattern: str) -> list[str]:
    """Files that a glob matches: its folders without a star are not looked through."""
    parts = PurePosixPath(pattern).parts
    fixed = next(k for k, part in enumerate(parts) if glob.has_magic(part))
    root = str(PurePosixPath(*parts[:fixed])) if fixed else "."
    wanted = parts[fixed:]
    deepest = None if "**" in wanted else len(wanted)
    names = place.below(root, deepest)
    start = 0 if root == "." else len(PurePosixPath(root).parts)
    return [name for name in names if _fits(PurePosixPath(name).parts[start:], wanted)]


def _fits(parts: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether a path fits a glob, part by part; two stars are any number of folders."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_fits(parts[k:], wanted[1:]) for k in range(len(parts) + 1))
    return (
        bool(parts)
        and not (parts[0].startswith(".") and not wanted[0].startswith("."))
        and fnmatch.fnmatchcase(parts[0], wanted[0])
        and _fits(parts[1:], wanted[1:])
    )


@final
@attrs.frozen
class _Local:
    """Files of this machine."""

    root: str
    """Path as it was given."""

    def is_folder(self, path: str) -> bool:
        return Path(path).is_dir()

    def is_file(self, path: str) -> bool:
        return Path(path).exists()

    def location(self, path: str) -> Location:
        return Location(path)

    def below(self, root: str, deepest: int | None = None) -> list[str]:
        """Files below a folder, as far down as `deepest`; links to folders are not followed."""
        return list(_bounded(_walked(root, deepest)))


def _walked(root: str, deepest: int | None) -> Iterator[tuple[str, bool]]:
    """Entries below a folder, and whether each is a file."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = entry.name if root == "." else os.path.join(root, entry.name)  # noqa: PTH118 - text
        is_folder = entry.is_dir(follow_symlinks=False)
        yield path, not entry.is_dir()  # a link to nothing is refused when it is opened
        if is_folder and (deepest is None or deepest > 1):
            yield from _walked(path, None if deepest is None else deepest - 1)


def _bounded(entries: Iterator[tuple[str, bool]]) -> Iterator[str]:
    for number, (path, is_file) in enumerate(entries):
        if number >= _MOST_LISTED:
            raise TableError(
                f"a folder or glob may have {_MOST_LISTED:,} files and folders to look through, "
                "and this one has more; name a folder further down"
            )
        if is_file:
            yield path


@final
@attrs.frozen(repr=False)
class _Store:
    """Files of an object store."""

    store: Any
    scheme: str
    root: str
    """Path of the URL in the store."""

    @classmethod
    def of(cls, url: str, scheme: str) -> "_Store":
        """Connect to a store; credentials are those that the environment gives."""
        # Stars and brackets of a glob are no part of an address.
        path, _, options = url.partition("://")[2].partition("?")
        bucket, _, rest = path.partition("/")
        with _told(scheme):
            address = f"{scheme}://{bucket}" + (f"?{options}" if options else "")
            store, base = pyarrow.fs.FileSystem.from_uri(address)
        return cls(store, scheme, f"{base}/{rest}" if rest else base)

    def _kind(self, path: str) -> Any:
        with _told(self.scheme):
            return self.store.get_file_info(path.rstrip("/")).type

    def is_folder(self, path: str) -> bool:
        return bool(self._kind(path) == pyarrow.fs.FileType.Directory)

    def is_file(self, path: str) -> bool:
        return bool(self._kind(path) == pyarrow.fs.FileType.File)

    def location(self, path: str) -> Location:
        return Location(path, self.scheme, self.store)

    def below(self, root: str, deepest: int | None = None) -> list[str]:
        """Files below a folder; a store lists all that have the beginning of a name."""
        selector = pyarrow.fs.FileSelector(
            root.rstrip("/"), recursive=deepest is None or deepest > 1
        )
        with _told(self.scheme):
            entries = self.store.get_file_info(selector)
        found = ((entry.path, entry.type == pyarrow.fs.FileType.File) for entry in entries)
        return list(_bounded(found))
