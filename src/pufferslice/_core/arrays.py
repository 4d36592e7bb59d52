# SPDX-License-Identifier: Apache-2.0
"""Arrays that are copied, read-only and compared by value; and arrays read from archives."""

import io
import math
import struct
import tokenize
import zipfile
import zlib
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.files import check_archive
from pufferslice.errors import ArgumentError

DAMAGED: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""Errors that numpy and zipfile raise on bytes that they did not write."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

UNIT_ROUNDOFF: Final = 2.0**-53
"""Half the distance from 1 to the next float64: the relative error of one operation, at most."""

same = attrs.cmp_using(eq=np.array_equal)
"""Equality of array fields, for `attrs.field(eq=same)`."""


def locked(values: Any) -> Floats:  # whatever numpy can read as numbers
    """Copy `values` into a read-only, C-ordered float64 array."""
    try:
        array = np.array(_numbers(values), dtype=np.float64, order="C", copy=True)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"expected numbers, got {type(values).__name__} that is not all numbers, or whose rows "
            "are not of one length; convert it first"
        ) from None  # the message of numpy quotes the value
    array.setflags(write=False)
    return array


def locked_integers(values: Any) -> Integers:
    """Copy `values` into a read-only, C-ordered int64 array."""
    try:
        array = np.array(_integers(_numbers(values)), order="C", copy=True)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            f"expected integers, got {type(values).__name__} that is not all integers "
            "(floats below 2^53), or whose rows are not of one length; convert it first"
        ) from None
    array.setflags(write=False)
    return array


def arrays_in(content: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a numpy archive, without pickles; a `ValueError` for anything else."""
    try:
        check_archive(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {
                member.filename.removesuffix(".npy"): _array(_unpacked(archive, member))
                for member in archive.infolist()
            }
    except DAMAGED as error:
        raise ValueError(f"not a numpy archive, or damaged: {type(error).__name__}") from error


def array_in(content: bytes) -> npt.NDArray[Any]:
    """Read the array of a numpy file, without pickles; a `ValueError` for anything else."""
    try:
        return _array(content)
    except DAMAGED as error:
        raise ValueError(f"not a numpy array, or damaged: {type(error).__name__}") from error


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    # No more bytes than the directory says, which `check_archive` has bounded.
    with archive.open(member) as file:
        return file.read(member.file_size)


def _array(content: bytes) -> npt.NDArray[Any]:
    file = io.BytesIO(content)
    form = np.lib.format
    is_first_version = form.read_magic(file) == (1, 0)
    read_header = form.read_array_header_1_0 if is_first_version else form.read_array_header_2_0
    shape, _, dtype = read_header(file)
    # Checked before numpy allocates what the header asks for.
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError("the size of the array differs from its header")
    file.seek(0)
    array: npt.NDArray[Any] = form.read_array(file, allow_pickle=False)
    return array


def _numbers(values: Any) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind in "cmM":
        raise TypeError("complex numbers and dates are not real numbers")
    return array


def _integers(array: npt.NDArray[Any]) -> Integers:
    if array.dtype.kind in "iu":
        if array.max(initial=0) > np.iinfo(np.int64).max:
            raise ValueError("some of them would become negative")
        return array.astype(np.int64)
    floats = array.astype(np.float64)
    if not (np.abs(floats) < 2.0**53).all() or (floats != np.floor(floats)).any():
        raise ValueError("not all of them are integers below 2^53")
    return floats.astype(np.int64)
