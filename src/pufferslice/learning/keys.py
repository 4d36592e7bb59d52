# SPDX-License-Identifier: Apache-2.0
"""The one secret key of a training run, and everything that is derived from it.

Every derived value is a keyed BLAKE2b hash whose personalisation names its purpose, so that no two
purposes share a value. Anyone who has the key can subtract the noise: it is kept in a file that
only its owner may read, and is destroyed when the run ends.
"""

import contextlib
import errno
import hashlib
import os
import re
from pathlib import Path
from typing import Final, NoReturn, Self, final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pufferslice._core.arrays import Integers
from pufferslice._core.checks import check_count, is_a
from pufferslice._core.files import CONFIDENTIAL, read_bytes, write_new
from pufferslice._core.sampler import KEY_BYTES
from pufferslice.errors import ArgumentError, ReleaseError, StorageError

_HEADER: Final = b"pufferslice-run-key 1\n"
_READABLE_BY_OTHERS: Final = 0o077

_MAC_BYTES: Final = 2**30
"""Bytes that are hashed at once: 2^26 blocks of GMAC, which collide with probability 2^-102."""


@final
class RunKey:
    """The key of one run. It is never printed, copied or pickled.

    >>> key = RunKey.fresh()
    >>> key
    RunKey(...)
    >>> len(key.batch_key(step=0))
    32
    """

    __slots__ = ("_path", "_secret")

    _path: Path | None
    _secret: bytearray

    def __init__(self) -> None:
        raise TypeError(
            "create a RunKey by RunKey.fresh(), RunKey.create(path) or RunKey.read(path)"
        )

    @classmethod
    def fresh(cls) -> Self:
        """A new key of the operating system, in memory only."""
        return cls._of(os.urandom(KEY_BYTES), None)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Self:
        """A new key in a new file that only its owner may read; never replaces a file."""
        secret = os.urandom(KEY_BYTES)
        write_new(path, _HEADER + secret.hex().encode() + b"\n", mode=CONFIDENTIAL)
        return cls._of(secret, Path(path))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The key in a file written by `create`."""
        content, where = read_bytes(path, "key"), os.fspath(path)
        if Path(path).stat().st_mode & _READABLE_BY_OTHERS:
            raise StorageError(
                errno.EPERM,
                f"run key {where!r} can be read by others than its owner, and anyone who has read "
                "it can subtract the noise. If nobody has, remove the permission (mode 600) and "
                "resume; otherwise start a new run",
            )
        match = re.fullmatch(_HEADER + rb"([0-9a-f]{64})\n", content)
        if match is None:
            raise StorageError(
                errno.EINVAL,
                f"{where!r} is not a run key, or damaged; a run cannot be resumed without its key",
            )
        return cls._of(bytes.fromhex(match[1].decode()), Path(path))

    @staticmethod
    def is_erased(path: str | os.PathLike[str]) -> bool:
        """Whether `destroy` has overwritten the file, and was killed before it removed it."""
        content = read_bytes(path, "key")
        return bool(content) and not any(content)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """The key from `to_bytes` in another process of the same run; in memory only."""
        return cls._of(_checked(raw), None)

    @classmethod
    def _of(cls, secret: bytes, path: Path | None) -> Self:
        key = object.__new__(cls)
        key._secret, key._path = bytearray(secret), path
        return key

    def to_bytes(self) -> bytes:
        """The secret itself, only for the other processes of the same run."""
        return bytes(self._live_secret())

    @property
    def name(self) -> str:
        """A public name of the run, 16 hex digits; reveals nothing about the key."""
        return self._hash(b"run name", 8).hex()

    def batch_key(self, step: int) -> bytes:
        """The key that the batch of a step is drawn from."""
        return self._hash(b"batch", KEY_BYTES, step=step)

    def block_seed(self, step: int, block: int) -> int:
        """A 63-bit seed for the randomness of the model in one block; independent of the data."""
        raw = self._hash(b"block seed", 8, step=step, block=block)
        return int.from_bytes(raw, "little") >> 1

    def noise_key(self, step: int, sums: Integers) -> bytes:
        """The key of the noise that is added to the integer sums of a step.

        Guarantee: a repeated step gets the same noise if its sums are the same, and independent
        noise if they differ, so two attempts never subtract to a difference of sums. The sums are
        hashed by GMAC, a fast universal hash, under a key of the step: two different arrays have
        the same hash with probability at most 2^-95.
        """
        if not is_a(sums, np.ndarray) or sums.dtype != np.int64 or sums.ndim != 1:
            is_array = is_a(sums, np.ndarray)
            kind = f"{sums.dtype} of shape {sums.shape}" if is_array else type(sums)
            raise ArgumentError(f"sums must be a flat array of int64, got {kind}")
        mac = AESGCM(self._hash(b"sums", KEY_BYTES, step=step))
        values = np.ascontiguousarray(sums, dtype="<i8").view(np.uint8)
        starts = range(0, max(1, len(values)), _MAC_BYTES)
        tags = [
            mac.encrypt(number.to_bytes(12, "little"), b"", values[start : start + _MAC_BYTES].data)
            for number, start in enumerate(starts)
        ]
        length = len(sums).to_bytes(8, "little")
        return self._hash(b"noise", KEY_BYTES, length, *tags, step=step)

    def tag(self, noise_key: bytes) -> str:
        """32 hex digits for the ledger: they reveal only whether two noise keys are the same.

        Two attempts at a step have the same noise key exactly if their sums are the same.
        """
        return self._hash(b"tag", 16, _checked(noise_key)).hex()

    def destroy(self) -> None:
        """Erase the key and destroy its file; every later use raises. A second call is harmless."""
        self._secret[:] = bytes(len(self._secret))
        self._secret.clear()
        path, self._path = self._path, None
        if path is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):  # then it is destroyed already
                with path.open("r+b", buffering=0) as file:
                    file.write(bytes(os.fstat(file.fileno()).st_size))
                    os.fsync(file.fileno())
                path.unlink()
        except OSError as error:
            raise StorageError(
                error.errno,
                f"run key {str(path)!r} cannot be destroyed: {error.strerror or error}. Remove it "
                "by hand: anyone who has it can subtract the noise of the run",
            ) from error

    @property
    def is_destroyed(self) -> bool:
        """Whether the key is gone."""
        return not self._secret

    def _live_secret(self) -> bytearray:
        if self.is_destroyed:
            raise ReleaseError("the run key was destroyed: the run is over. Start a new run")
        return self._secret

    def _hash(self, purpose: bytes, size: int, *parts: bytes, **places: int) -> bytes:
        """BLAKE2b of the places, 8 bytes each, and the parts."""
        check_count(0, **places)
        state = hashlib.blake2b(key=self._live_secret(), digest_size=size, person=purpose)
        for place in places.values():
            state.update(int(place).to_bytes(8, "little"))
        for part in parts:
            state.update(part)
        return state.digest()

    def __repr__(self) -> str:
        return "RunKey(...)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a RunKey cannot be pickled or copied: the key of a run exists once")

    def __getstate__(self) -> NoReturn:
        self.__reduce_ex__(None)


def _checked(secret: bytes) -> bytes:
    if len(secret) != KEY_BYTES:
        raise ArgumentError(f"a key of a run has {KEY_BYTES} bytes, got {len(secret)}")
    return secret
