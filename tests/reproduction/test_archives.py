# SPDX-License-Identifier: Apache-2.0
"""Pickled batches: the published form, newer forms, hostile ones, and any damaged bytes."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.data import UNREADABLE_PICKLE, read_batch


def python2_batch(pixels, labels):
    """The instructions that Python 2 wrote into the published batches, one by one."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def number(value):
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    raw = pixels.tobytes()
    array = b"".join([
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06", number(0), b"\x85",
        text(b"b"), b"\x87R", b"(", number(1), number(len(pixels)), number(3072), b"\x86",
        b"cnumpy\ndtype\n", text(b"u1"), number(0), number(1), b"\x87R", b"(", number(3),
        text(b"|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff", number(0), b"tb", b"\x89",
        b"T", struct.pack("<i", len(raw)), raw, b"tb",
    ])  # fmt: skip
    names = b"]q\x07(" + b"".join(text(b"a_%d.png" % k) for k in range(len(labels))) + b"e"
    parts = [
        text(b"batch_label"), text(b"training batch 1 of 5"),
        text(b"labels"), b"]q\x08(", *[number(label) for label in labels], b"e",
        text(b"data"), array, text(b"filenames"), names,
    ]  # fmt: skip
    return b"\x80\x02}q\x01(" + b"".join(parts) + b"u."


@pytest.fixture
def pixels(rng):
    return rng.integers(256, size=(3, 3072), dtype=np.uint8)


def test_the_published_form(pixels):
    content = python2_batch(pixels, [3, 9, 0])
    # The real unpickler reads the same thing, so the instructions are what they should be.
    genuine = pickle.loads(content, encoding="bytes")  # noqa: S301 - made above
    np.testing.assert_array_equal(genuine[b"data"], pixels)
    images, labels = read_batch(content)
    assert labels.tolist() == [3, 9, 0]
    assert images.shape == (3, 32, 32, 3)
    # By hand: red, green and blue planes of 1024 pixels follow each other, row by row.
    for image, row in zip(images, pixels, strict=True):
        assert image[5, 7].tolist() == [row[5 * 32 + 7 + 1024 * plane] for plane in range(3)]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("keys", [(b"data", b"labels"), ("data", "labels")])
def test_saved_again_by_newer_programs(pixels, protocol, keys):
    content = pickle.dumps(dict(zip(keys, (pixels, [1, 2, 3]), strict=True)), protocol=protocol)
    images, labels = read_batch(content)
    np.testing.assert_array_equal(images, pixels.reshape(3, 3, 32, 32).transpose(0, 2, 3, 1))
    assert labels.tolist() == [1, 2, 3]


class Hostile:
    """Would make a file if it were unpickled in the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_pickle_is_run(pixels, tmp_path):
    path = tmp_path / "made"
    content = pickle.dumps({b"data": pixels, b"labels": [1, 2, 3], b"more": Hostile(path)})
    with pytest.raises(pickle.UnpicklingError, match="names a function"):
        read_batch(content)
    assert not path.exists()
    pickle.loads(content)  # noqa: S301 - shows that the pickle is hostile
    assert path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\nU\x04true\x85R.",
        b"cbuiltins\neval\nU\x011\x85R.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"Pelsewhere\n.",
        b"U\x09elsewhereQ.",
    ],
    ids=["system", "eval", "load", "fromfile", "persistent", "binary"],
)
def test_refused_names(content):
    with pytest.raises(pickle.UnpicklingError, match=r"names a function|refers to objects outside"):
        read_batch(content)


@pytest.mark.parametrize("content", [b"\x80\x02]r\xff\xff\xff\x7f.", b"]p-1\n.", b"]p99\n."])
def test_memo_slots_that_would_reserve_room(content):
    with pytest.raises(pickle.UnpicklingError, match="asks for too much memory"):
        read_batch(content)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {b"labels": [1]},
        {b"data": [1], b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8)},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [256]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [True]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["1"]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]},
        {b"data": np.zeros(3072, np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.int8), b"labels": [1]},
        {b"data": np.zeros((1, 3072)), b"labels": [1]},
        {b"data": np.asfortranarray(np.zeros((2, 3072), np.uint8)), b"labels": [1, 2]},
        {b"data": np.array([[None] * 3072]), b"labels": [1]},
    ],
)
def test_other_content(value):
    with pytest.raises(UNREADABLE_PICKLE):
        read_batch(pickle.dumps(value, protocol=2))


def test_bytes_in_another_encoding():
    with pytest.raises(pickle.UnpicklingError, match="latin1"):
        read_batch(b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.")


def test_bytes_that_are_made_again_and_again():
    """One text of 200 letters in the memo, encoded nine times: more than the pickle has."""
    text = b"X" + struct.pack("<I", 200) + b"a" * 200 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(pickle.UnpicklingError, match="asks for too much memory"):
        read_batch(b"\x80\x02" + text + again * 9 + b".")


CONTENT = python2_batch(np.arange(3072, dtype=np.uint8).reshape(1, 3072), [7])


@given(st.data())
def test_damaged_bytes_are_read_or_refused_and_nothing_else(data):
    # The pixels are most of the bytes and any of them is fine: aim at the instructions.
    start = CONTENT.index(bytes(range(100)))
    places = st.one_of(st.integers(0, start + 8), st.integers(start + 3060, len(CONTENT) - 1))
    damaged = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(places)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(damaged), len(damaged), data.draw(places)]))
    try:
        images, labels = read_batch(bytes(damaged[:cut]))
    except UNREADABLE_PICKLE:
        return
    assert images.shape[1:] == (32, 32, 3)
    assert labels.dtype == np.uint8


@given(st.binary(max_size=200))
def test_any_bytes(content):
    with pytest.raises(UNREADABLE_PICKLE):
        read_batch(content)
