# SPDX-License-Identifier: Apache-2.0
"""Locked arrays: copied, read-only, compared by value; arrays out of archives."""

import contextlib
import io
import struct
import traceback
import zipfile

import attrs
import numpy as np
import pytest

from pufferslice._core.arrays import Floats, array_in, arrays_in, locked, locked_integers, same
from pufferslice.errors import ArgumentError


@pytest.mark.parametrize(("lock", "dtype"), [(locked, np.float64), (locked_integers, np.int64)])
class TestLocked:
    def test_copied_typed_and_in_c_order(self, lock, dtype):
        values = np.asfortranarray(np.arange(6).reshape(2, 3)).astype(dtype, order="F")
        held = lock(values)
        values[0, 0] = 99
        assert held.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert held.dtype == dtype
        assert held.flags.c_contiguous

    def test_read_only(self, lock, dtype):
        with pytest.raises(ValueError):
            lock([1, 2])[0] = 5

    def test_what_is_refused_is_not_shown(self, lock, dtype):
        with pytest.raises(ArgumentError) as refused:
            lock([["Ada Lovelace"]])
        told = "".join(traceback.format_exception(refused.value, limit=0))
        assert "expected" in told
        assert "Ada" not in told


def test_equality_of_fields_is_by_value():
    @attrs.frozen
    class Holder:
        values: Floats = attrs.field(converter=locked, eq=same)

    assert Holder([1.0, 2.0]) == Holder(np.array([1, 2]))
    assert Holder([1.0, 2.0]) != Holder([1.0, 3.0])
    assert Holder([1.0, 2.0]) != Holder([1.0])


class TestArchives:
    def archive(self):
        file = io.BytesIO()
        np.savez_compressed(file, a=np.arange(50.0), b=np.eye(3))
        return file.getvalue()

    def test_there_and_back(self):
        found = arrays_in(self.archive())
        assert sorted(found) == ["a", "b"]
        np.testing.assert_array_equal(found["a"], np.arange(50.0))

    def test_an_array_alone_and_pickles_are_none(self):
        alone, pickled = io.BytesIO(), io.BytesIO()
        np.save(alone, np.arange(3))
        np.savez(pickled, a=np.array([{}], dtype=object))
        for content in (alone.getvalue(), pickled.getvalue(), b"", b"PK\x03\x04"):
            with pytest.raises(ValueError, match="not a numpy archive, or damaged"):
                arrays_in(content)

    @pytest.mark.parametrize(
        "header",
        [
            b"{'descr': (",
            b"  x\n y",
            b"(" * 300,
            b"{'descr': 'O', 'fortran_order': False, 'shape': (1,)}",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (7,)}",
        ],
    )
    @pytest.mark.parametrize("version", [b"\x01\x00", b"\x03\x00", b"\x09\x00"])
    def test_headers_that_numpy_did_not_write(self, header, version):
        """An archive that is whole, with an array whose header makes no sense."""
        size = struct.pack("<H" if version[0] == 1 else "<I", len(header))
        alone = b"\x93NUMPY" + version + size + header + b"abc"
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.npy", alone)
        with pytest.raises(ValueError, match="not a numpy archive, or damaged"):
            arrays_in(file.getvalue())
        with pytest.raises(ValueError, match="not a numpy array, or damaged"):
            array_in(alone)

    def test_an_array_alone(self):
        alone = io.BytesIO()
        np.save(alone, np.arange(3.0))
        np.testing.assert_array_equal(array_in(alone.getvalue()), np.arange(3.0))
        for content in (self.archive(), alone.getvalue()[:-1], b""):
            with pytest.raises(ValueError, match="not a numpy array, or damaged"):
                array_in(content)

    def test_damage_anywhere(self, rng):
        """Every byte changed in turn: an error of one kind, or arrays."""
        whole = self.archive()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= int(rng.integers(1, 256))
            with contextlib.suppress(ValueError):
                arrays_in(bytes(damaged))
