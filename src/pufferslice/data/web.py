# SPDX-License-Identifier: Apache-2.0
"""A file behind a web address, read in parts, with the standard library alone."""

import http.client
import io
import os
import urllib.error
import urllib.request
from typing import IO, Any, Final, final
from urllib.parse import urlsplit

from pufferslice.errors import StorageError

_BUFFER: Final = 2**20
_TIMEOUT: Final = 60.0


@final
class _OnlySecure(urllib.request.HTTPRedirectHandler):
    """Follow a redirect to an address of https:// only."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request to follow; anything else is an error."""
        if urlsplit(newurl).scheme != "https":
            fp.close()
            raise refused("it leads to an address that is not https://")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@final
class WebFile(io.RawIOBase):
    """A file of a web server that gives parts of it on request."""

    def __init__(self, address: str, size: int) -> None:
        self._address, self._size, self._place = address, size, 0

    @classmethod
    def open(cls, address: str) -> IO[bytes]:
        """Ask for the length of a file, and open it for reading at any place."""
        parts = urlsplit(address)
        if parts.username or parts.password:
            raise refused("it may not hold a user or a password")
        with _answer(address, 0, 0) as answer:
            total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
            raise refused("its server does not say how long it is")
        return io.BufferedReader(cls(address, int(total)), _BUFFER)

    def readable(self) -> bool:
        """Whether the file can be read."""
        return True

    def seekable(self) -> bool:
        """Whether any place of the file can be read."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = min(max(0, start + offset), self._size)
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer; return how many there are."""
        wanted = min(len(buffer), self._size - self._place)
        if wanted <= 0:
            return 0
        with _answer(self._address, self._place, self._place + wanted - 1) as answer:
            content = answer.read(wanted)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)


def refused(why: str) -> StorageError:
    """The error for an address, of which nothing is shown."""
    return StorageError(f"a file of https:// cannot be read: {why}. Copy it, and give its path")


def _answer(address: str, first: int, last: int) -> http.client.HTTPResponse:
    """Ask for some bytes of a file."""
    request = urllib.request.Request(address, headers={"Range": f"bytes={first}-{last}"})  # noqa: S310 - https only, see `check_scheme`
    opener = urllib.request.build_opener(_OnlySecure)
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=_TIMEOUT)
    except StorageError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise refused(f"its server answers {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise refused(f"its server answers {type(error).__name__}") from None
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        answer.close()
        raise refused("its server gives no parts of files")
    return answer
