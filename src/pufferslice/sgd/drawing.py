# SPDX-License-Identifier: Apache-2.0
"""Batches as a plan says they are drawn, from a key: exact laws, no float decides a draw.

The words are the AES-256-CTR keystream of the key, read as little-endian 64-bit numbers.
"""

from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from pufferslice.arrays import Integers
from pufferslice.compiled import kernel
from pufferslice.errors import ArgumentError
from pufferslice.sgd.sampling import Poisson, SamplingDesign, WithoutReplacement, WithReplacement

Words = npt.NDArray[np.uint64]

KEY_BYTES: Final = 32

_WORD: Final = 2.0**64
_CHUNK: Final = 2**14
_ZEROS: Final = bytes(8 * _CHUNK)


def draw_batch(sampling: SamplingDesign, key: bytes) -> Integers:
    """Draw the indices of one batch, in drawn order, from the stream of a 32-byte key.

    Guarantee: a function of the design and the key alone. The law is the design's, exactly, if the
    stream is uniform; a Poisson rate is rounded down to a multiple of 2^-64, and a smaller rate
    never costs more.
    Needs: a uniform key that is used for one batch and nothing else. That AES-256-CTR cannot be
    told from uniform is a computational assumption.

    >>> draw_batch(WithoutReplacement(n_records=5, batch_size=5), bytes(32)).tolist()
    [1, 2, 3, 4, 0]
    """
    if len(key) != KEY_BYTES:
        msg = f"key must be {KEY_BYTES} bytes, got {len(key)}. Take os.urandom({KEY_BYTES})"
        raise ArgumentError(msg)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    match sampling:
        case Poisson():
            return _poisson(stream, sampling)
        case WithoutReplacement():
            return _without_replacement(stream, sampling)
        case WithReplacement():
            return _with_replacement(stream, sampling)
    assert_never(sampling)


def _poisson(stream: CipherContext, sampling: Poisson) -> Integers:
    """One word per record, which enters if its word is below rate * 2^64."""
    n, rate = int(sampling.n_records), float(sampling.rate)
    if rate == 1:
        return np.arange(n, dtype=np.int64)
    # the product is exact and below 2^64, and int() rounds down
    threshold = np.uint64(int(rate * _WORD))
    chunks = [
        np.flatnonzero(_words(stream, min(_CHUNK, n - start)) < threshold) + start
        for start in range(0, n, _CHUNK)
    ]
    return np.concatenate(chunks).astype(np.int64, copy=False)


def _without_replacement(stream: CipherContext, sampling: WithoutReplacement) -> Integers:
    """The first part of a Fisher-Yates shuffle."""
    records = np.arange(int(sampling.n_records), dtype=np.int64)
    size, made = int(sampling.batch_size), 0
    while made < size:
        made = shuffle_from(records, made, _words(stream, min(_CHUNK, size - made)))
    return records[:size].copy()


def _with_replacement(stream: CipherContext, sampling: WithReplacement) -> Integers:
    """Independent uniform indices."""
    batch = np.empty(int(sampling.batch_size), dtype=np.int64)
    n_records, made = int(sampling.n_records), 0
    while made < len(batch):
        words = _words(stream, min(_CHUNK, len(batch) - made))
        made = uniform_from(batch, made, n_records, words)
    return batch


def _words(stream: CipherContext, size: int) -> Words:
    """The next words of the stream."""
    raw = stream.update(memoryview(_ZEROS)[: 8 * size])
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)


@kernel
def shuffle_from(records: Integers, made: int, words: Words) -> int:
    """Go on with a shuffle whose first `made` places are settled; the number settled afterwards.

    Each place takes a uniform one of the records that are left; a word that would favour some of
    them is passed over.
    """
    for word in words:
        left = np.uint64(len(records) - made)
        if word < (np.uint64(0) - left) % left:
            continue
        other = made + np.int64(word % left)
        records[made], records[other] = records[other], records[made]
        made += 1
    return made


@kernel
def uniform_from(batch: Integers, made: int, n_records: int, words: Words) -> int:
    """Go on filling a batch with uniform indices; the number filled afterwards."""
    bound = np.uint64(n_records)
    surplus = (np.uint64(0) - bound) % bound
    for word in words:
        if word < surplus:
            continue
        batch[made] = np.int64(word % bound)
        made += 1
    return made
