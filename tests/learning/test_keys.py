# SPDX-License-Identifier: Apache-2.0
"""The key of a run: what is derived from it, where it is kept, and that it never leaks."""

import copy
import errno
import hashlib
import itertools
import os
import pickle
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from pufferslice._core.sampler import SIGMA_INT, draw_integers
from pufferslice.errors import ReleaseError, StorageError
from pufferslice.learning.keys import RunKey

SECRET = bytes(range(32))
SUMS = np.array([5, -7, 0, 2**62, -(2**62)], dtype=np.int64)


@pytest.fixture
def key():
    return RunKey.from_bytes(SECRET)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.key"


def by_hand(purpose, size, *parts):
    """The same hash, put together independently: one message of all parts."""
    message = b"".join(
        part.to_bytes(8, "little") if isinstance(part, int) else part for part in parts
    )
    return hashlib.blake2b(message, key=SECRET, digest_size=size, person=purpose).digest()


def gmac(key, nonce, data):
    """GMAC as NIST SP 800-38D has it, in integers; only AES itself is a library's."""
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update  # noqa: S305
    data += bytes(-len(data) % 16) + (8 * len(data)).to_bytes(8, "big") + bytes(8)
    point, total = int.from_bytes(encrypt(bytes(16)), "big"), 0
    for start in range(0, len(data), 16):
        factor, power = total ^ int.from_bytes(data[start : start + 16], "big"), point
        total = 0
        for bit in range(127, -1, -1):
            total ^= power if factor >> bit & 1 else 0
            power = power >> 1 ^ (0xE1 << 120 if power & 1 else 0)
    mask = int.from_bytes(encrypt(nonce + b"\0\0\0\1"), "big")
    return (total ^ mask).to_bytes(16, "big")


def test_derived_values_by_hand(key):
    numbers = b"".join(value.to_bytes(8, "little", signed=True) for value in SUMS.tolist())
    assert key.name == by_hand(b"run name", 8).hex()
    assert key.batch_key(2) == by_hand(b"batch", 32, 2)
    assert key.block_seed(2, 3) == int.from_bytes(by_hand(b"block seed", 8, 2, 3), "little") // 2
    tag = gmac(by_hand(b"sums", 32, 2), bytes(12), numbers)
    noise_key = by_hand(b"noise", 32, 2, 5, tag)
    assert key.noise_key(2, SUMS) == noise_key
    assert key.tag(noise_key) == by_hand(b"tag", 16, noise_key).hex()


def test_derived_values_never_change(key):
    """A run that was stopped must resume under a newer version with the same draws."""
    assert key.name == "8bd9f6e03969b519"
    assert key.batch_key(7).hex()[:16] == "77e81f7c98562207"
    assert key.block_seed(7, 1) == 8_937_646_283_611_984_942
    assert key.noise_key(7, SUMS).hex()[:16] == "4fa796c7b02ca043"


@pytest.mark.soundness
def test_every_place_has_its_own_key(key):
    """Also if step and block change places."""
    sums = [SUMS[:0], SUMS[:1], SUMS[:2], -SUMS[:2], np.append(SUMS[:2], 0)]
    values = [key.batch_key(step).hex() for step in range(16)]
    noise_keys = [key.noise_key(step, array) for step in range(16) for array in sums]
    values += [noise_key.hex() for noise_key in noise_keys] + list(map(key.tag, noise_keys))
    values += [key.block_seed(*place) for place in itertools.product(range(8), repeat=2)]
    values += [RunKey.fresh().batch_key(0).hex() for _ in range(4)]
    assert len(set(values)) == len(values)


@pytest.mark.soundness
def test_equal_sums_get_equal_noise_and_no_others_do(key):
    again = RunKey.from_bytes(SECRET)
    strided = np.repeat(SUMS, 2)[::2]
    assert key.noise_key(3, SUMS) == again.noise_key(3, strided)
    first = draw_integers(key.noise_key(3, SUMS), 1_000)
    for other in (key.noise_key(3, SUMS + np.array([1, 0, 0, 0, 0])), key.noise_key(4, SUMS)):
        noise = draw_integers(other, 1_000)
        # noise that subtracts out would leave nothing; independent noise has spread 1.41
        assert (first - noise).std() / SIGMA_INT == pytest.approx(np.sqrt(2), rel=0.15)
        assert abs(np.corrcoef(first, noise)[0, 1]) < 0.15


def test_a_file_only_its_owner_may_read(path):
    old = os.umask(0)
    try:
        key = RunKey.create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(StorageError, match="File exists"):
        RunKey.create(path)
    back = RunKey.read(path)
    assert back.to_bytes() == key.to_bytes()
    assert RunKey.from_bytes(key.to_bytes()).name == key.name
    with pytest.raises(TypeError, match=r"RunKey.create"):
        RunKey()


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_may_have_read(path, mode):
    RunKey.create(path)
    path.chmod(mode)
    with pytest.raises(StorageError, match="others"):
        RunKey.read(path)
    path.chmod(0o600)
    RunKey.read(path)


def damaged(content):
    secret = content.split(b"\n")[1]
    yield from (content[:-1], content[:-2], content + b"\n", b"", bytes(len(content)))
    yield secret
    yield content.replace(b" 1\n", b" 2\n")
    yield content.replace(secret, b"\xff" + secret[1:])
    yield content.replace(secret, b"g" + secret[1:])


def test_damaged_files_are_refused_and_not_quoted(path):
    RunKey.create(path)
    content = path.read_bytes()
    for wrong in damaged(content):
        path.write_bytes(wrong)
        with pytest.raises(StorageError, match="run key") as caught:
            RunKey.read(path)
        assert caught.value.__context__ is None
        assert content[30:40].decode() not in str(caught.value)


@pytest.mark.soundness
def test_a_destroyed_key_is_gone_from_disk_and_memory(path, tmp_path):
    key = RunKey.create(path)
    held = key._secret
    os.link(path, tmp_path / "other name")
    size = path.stat().st_size
    assert not key.is_destroyed
    key.destroy()
    assert key.is_destroyed
    assert not path.exists()
    assert (tmp_path / "other name").read_bytes() == bytes(size)
    assert not any(held)
    key.destroy()
    missing = RunKey.create(path)
    path.unlink()
    missing.destroy()
    assert missing.is_destroyed


@pytest.mark.parametrize(
    "use",
    [
        lambda key: key.name,
        lambda key: key.to_bytes(),
        lambda key: key.batch_key(0),
        lambda key: key.block_seed(0, 0),
        lambda key: key.noise_key(0, SUMS),
        lambda key: key.tag(SECRET),
    ],
)
def test_a_destroyed_key_derives_nothing(key, use):
    use(key)
    key.destroy()
    with pytest.raises(ReleaseError, match="destroyed"):
        use(key)


def test_a_file_that_cannot_be_destroyed_is_named(path):
    key = RunKey.create(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="destroyed") as caught:
        key.destroy()
    assert str(path) in str(caught.value)
    assert caught.value.errno == errno.EISDIR
    assert key.is_destroyed


@pytest.mark.soundness
def test_the_key_is_not_shown_copied_or_pickled(key):
    for text in (repr(key), str(key), f"{key}", repr([key])):
        assert SECRET.hex()[:8] not in text
        assert "00, " not in text
    for leak in (pickle.dumps, copy.copy, copy.deepcopy, lambda value: value.__getstate__()):
        with pytest.raises(TypeError, match="copied"):
            leak(key)
    with pytest.raises(TypeError):
        vars(key)
