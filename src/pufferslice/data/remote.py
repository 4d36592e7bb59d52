# SPDX-License-Identifier: Apache-2.0
"""Files of object stores and other filesystems that fsspec knows, named by URLs; only read.

Credentials come from where the filesystem's own package looks for them, never from the URL.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import IO, Any, Final, Literal, TypeAlias, cast, final

import attrs

from pufferslice._core.files import protocol_of
from pufferslice.errors import ArgumentError, MissingExtraError, PuffersliceError, StorageError

_STATES: Final = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "Digest", "mtime",
    "LastModified", "last_modified", "Last-Modified", "modified", "modify", "updated", "created",
)  # fmt: skip
"""Names under which filesystems give the version of a file, or its time of change."""


Cache: TypeAlias = Literal["none", "readahead"]


@final
@attrs.frozen
class RemoteFile:
    """A file, folder or glob that fsspec reads, here and on every worker of a cluster.

    >>> RemoteFile("memory://people/part-0.parquet").protocol
    'memory'
    """

    url: str
    """Without user, password, query string or parameters: it stands in messages."""

    def __attrs_post_init__(self) -> None:
        _, _, rest = self.url.partition("://")
        if set(rest) & set("@?#;"):
            raise ArgumentError(
                "a data URL must not contain '@', '?', '#' or ';', because messages show URLs and "
                "these characters often mark passwords. Give credentials in the environment, as "
                "the package of the filesystem describes; in a glob, [0-9] is one digit"
            )
        if "::" in self.url:
            raise ArgumentError("a data URL names one filesystem; chains with '::' are not read")

    @property
    def protocol(self) -> str:
        """The filesystem."""
        return protocol_of(self.url) or ""

    @property
    def place(self) -> str:
        """The name of the file that all its URLs share."""
        filesystem, path = self._located()
        return f"{type(filesystem).__name__} {getattr(filesystem, 'host', '')} {path}"

    @property
    def state(self) -> list[object]:
        """Size and version of the file; refused if its filesystem gives no version."""
        with self._fresh() as (filesystem, path):
            info = filesystem.info(path)
        states = [[name, str(info[name])] for name in _STATES if info.get(name) is not None]
        if not states:
            raise StorageError(
                f"the filesystem of {self.url!r} gives neither ETag nor modification time, so "
                "kept results cannot be tied to the files. Leave checkpoint and folder out, or "
                "copy the files"
            )
        return [info.get("size"), states]

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        with self._fresh() as (filesystem, path):
            return bool(filesystem.isdir(path))

    def exists(self) -> bool:
        """Whether there is a file or folder of this name."""
        with self._fresh() as (filesystem, path):
            return bool(filesystem.exists(path))

    def parquet_files(self) -> tuple[list["RemoteFile"], int]:
        """Those of a folder, in the order of their names; and how many there are further down."""
        with self._fresh() as (filesystem, path):
            files = [name for name in filesystem.find(path) if name.endswith(".parquet")]
        direct = [name for name in files if "/" not in name.removeprefix(path).strip("/")]
        return self._named(direct), len(files) - len(direct)

    def matches(self) -> list["RemoteFile"]:
        """What the URL matches as a glob, in the order of their names."""
        with self._fresh() as (filesystem, path):
            return self._named(filesystem.glob(path))

    def open(self, cache: Cache) -> IO[bytes]:
        """The file, open for reading; without a cache, every read is one request."""
        filesystem, path = self._located()
        with self._translated():
            stream = _RemoteStream(self, filesystem.open(path, "rb", cache_type=cache))
        # A buffer would make two requests of one.
        return cast("IO[bytes]", stream if cache == "none" else io.BufferedReader(stream))

    def __str__(self) -> str:
        return self.url

    def _named(self, paths: list[str]) -> list["RemoteFile"]:
        urls = (path if "://" in path else f"{self.protocol}://{path}" for path in sorted(paths))
        return [RemoteFile(url) for url in urls]

    def _located(self) -> tuple[Any, str]:
        """The filesystem, and the path on it."""
        try:
            import fsspec  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "URLs of data need fsspec; install it with: pip install 'pufferslice[scale]'"
            ) from error
        try:
            fsspec.get_filesystem_class(self.protocol)
        except ValueError:
            raise ArgumentError(
                f"there is no filesystem {self.protocol!r}; give a path, or a URL such as "
                "s3://bucket/people/*.parquet"
            ) from None
        except ImportError as error:
            raise MissingExtraError(
                f"{self.protocol}:// needs a package of its own: {error}"
            ) from error
        with self._translated():
            filesystem, path = fsspec.core.url_to_fs(self.url)
        return filesystem, path

    @contextlib.contextmanager
    def _fresh(self) -> Iterator[tuple[Any, str]]:
        """As `_located`, without what the filesystem remembers of its folders."""
        filesystem, path = self._located()
        with self._translated():
            filesystem.invalidate_cache()
            yield filesystem, path

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of a filesystem may quote credentials, so only their kind is shown."""
        try:
            yield
        except PuffersliceError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a filesystem raises
            raise StorageError(
                getattr(error, "errno", None),
                f"cannot read {self.url!r} ({type(error).__name__}). Look at its name, and at the "
                "credentials in the environment; what the filesystem says is not shown, because it "
                "may quote them",
            ) from None


@final
class _RemoteStream(io.RawIOBase):
    """A file of fsspec whose errors are those of the library."""

    def __init__(self, file: RemoteFile, stream: Any) -> None:  # fsspec has no types
        self._file, self._stream = file, stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # any writable memory
        with self._file._translated():  # noqa: SLF001 - of this module
            content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._file._translated():  # noqa: SLF001 - of this module
            return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        try:
            with self._file._translated():  # noqa: SLF001 - of this module
                self._stream.close()
        finally:
            super().close()
