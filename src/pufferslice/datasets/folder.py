# SPDX-License-Identifier: Apache-2.0
"""The folder of datasets that do not ship, and what is said of a missing or damaged file."""

import errno
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import attrs

from pufferslice.errors import StorageError
from pufferslice.storage import read_bytes

DATA_FOLDER: Final = "PUFFERSLICE_DATA"
"""The environment variable that names the folder."""

CHECKSUMS: Final = "SHA256SUMS"
"""A list of checksums that may stand in the folder, in the form of `sha256sum`."""


@final
@attrs.frozen(kw_only=True)
class Origin:
    """What a dataset is called, the files it comes in, and where people get them."""

    name: str
    files: tuple[str, ...]
    """Names that are looked for in a folder, the first one that is there wins."""
    where: str
    """Where to get it, in words that end a message."""

    def folder(self) -> Path:
        """The folder that the environment names, which must be said."""
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            msg = (
                f"{self.name} does not ship with the library: set {DATA_FOLDER} to a folder with "
                f"{self._choice()}. {self.where}"
            )
            raise StorageError(errno.ENOENT, msg)
        return Path(folder)

    def missing_from(self, folder: Path) -> StorageError:
        """The error for a folder that has none of the files."""
        msg = f"no {self.name} in {str(folder)!r}: there is no {self._choice()}. {self.where}"
        return StorageError(errno.ENOENT, msg)

    def incomplete(self, where: Path, lacking: str) -> StorageError:
        """The error for a folder or an archive that has only some of the files that are needed."""
        msg = f"{str(where)!r} has {self.name}, but no {lacking}. {self.where}"
        return StorageError(errno.ENOENT, msg)

    def damaged(self, path: str, what: str, *, found: str, expected: str) -> StorageError:
        """The error for a file with another checksum than the one of `what` in it."""
        msg = (
            f"{path!r} is damaged, or is not {self.name}: the checksum of {what} is {found}, "
            f"expected {expected}. {self.where}"
        )
        return StorageError(msg)

    def unreadable(
        self, path: str, content: bytes, *, expected: str, error: Exception
    ) -> StorageError:
        """The error for a file that cannot be unpacked or read at all; no content is shown."""
        found = hashlib.sha256(content).hexdigest()
        msg = (
            f"{path!r} is damaged, or is not {self.name}: it cannot be read "
            f"({type(error).__name__}). The SHA-256 of the file is {found}, expected {expected}. "
            f"{self.where}"
        )
        return StorageError(msg)

    def _choice(self) -> str:
        return choice_of(self.files)


def listed_sha256(path: Path) -> str | None:
    """The checksum that the list beside a file has for it; None if there is none."""
    listing = path.with_name(CHECKSUMS)
    if not listing.exists():
        return None
    lines = read_bytes(listing, "settings").decode("utf-8", errors="replace").splitlines()
    found = (line.split(maxsplit=1) for line in lines)
    listed = {words[1].removeprefix("*"): words[0].lower() for words in found if len(words) == 2}
    return listed.get(path.name)


def choice_of(words: Sequence[str]) -> str:
    """`a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
