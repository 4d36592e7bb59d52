# SPDX-License-Identifier: Apache-2.0
"""Two concrete worlds: which records differ between two datasets, and label worlds by prevalence.

Datasets and labels are confidential: they are read, compared and returned, never shown.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, final

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from narwhals.dependencies import is_into_dataframe, is_into_series

from pufferslice._core.arrays import same
from pufferslice._core.checks import check_count, check_share
from pufferslice._core.text import given, listed
from pufferslice.data.frames import Frame, frame_of
from pufferslice.errors import ArgumentError, TableError

Labels = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

_BLOCK_BYTES: Final = 2**24
_PLAIN: Final = (str, bytes, int, type(None))
"""Types whose equal values are the same."""
_WIDE: Final = (nw.Int128, nw.UInt128)
"""Integers that numpy does not have."""


def differing_rows(first: Any, second: Any) -> Flags:  # datasets of any library
    """Flags of the records at which two datasets of equal length differ, shape (n_records,).

    Takes two tables or two columns (pandas, polars, pyarrow), two arrays whose first axis counts
    records, or two lists of records (numbers, strings, arrays, or tuples, lists and mappings of
    them). Values are the same only if they have the same type and the same bits, so 0.0 and -0.0
    differ and two equal NaN do not: no difference is missed.
    """
    if _is_table(first) and _is_table(second):
        return _table_difference(frame_of(first), frame_of(second))
    columns = _column(first), _column(second)
    if columns[0] is not None and columns[1] is not None:
        _check_lengths(len(columns[0]), len(columns[1]))
        return _column_difference(columns[0], columns[1], "first and second")
    # Beside an array, a column must be one: numpy has no missing values.
    if any(column is not None and column.null_count() for column in columns):
        raise ArgumentError(
            "first and second must both be columns if values are missing; got "
            f"{type(first).__name__} and {type(second).__name__}"
        )
    if hasattr(first, "__array__") and hasattr(second, "__array__"):
        differ = _array_difference(np.asarray(first), np.asarray(second), "first and second")
        if isinstance(first, np.ma.MaskedArray) or isinstance(second, np.ma.MaskedArray):
            differ |= _bits_difference(np.ma.getmaskarray(first), np.ma.getmaskarray(second))
        return differ
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        _check_lengths(len(first), len(second))
        return _list_difference(first, second)
    kinds = f"{type(first).__name__} and {type(second).__name__}"
    raise ArgumentError(
        f"first and second must be two tables, two arrays or two lists of records; got {kinds}"
    )


def _locked_labels(values: object) -> Labels:
    array = np.array(_label_array(values), copy=True)
    array.setflags(write=False)
    return array


@final
@attrs.frozen(kw_only=True, repr=False)
class TwoWorlds:
    """The same records with two label vectors."""

    first: Labels = attrs.field(converter=_locked_labels, eq=same)
    """Labels in the first world, shape (n_records,). Confidential."""
    second: Labels = attrs.field(converter=_locked_labels, eq=same)
    """Labels in the second world, shape (n_records,). Confidential."""

    def __attrs_post_init__(self) -> None:
        _check_lengths(len(self.first), len(self.second))

    @property
    def n_differing(self) -> int:
        """Number of records that have another label in the second world."""
        return int(np.count_nonzero(self.first != self.second))

    def __repr__(self) -> str:
        return f"TwoWorlds(n_records={len(self.first)}, n_differing={self.n_differing})"


def two_world_prevalence(labels: object, *, label: str | int, share: float, seed: int) -> TwoWorlds:
    """The labels as they are, and with as few changes as possible towards another class share.

    Guarantee: the second world has `label` on floor(share * n_records) records, and the worlds
    differ in exactly as many records as that count changes. The share is read as the decimal
    number that it prints as. Use `relabelled` if the first world needs another share too.

    >>> labels = ["cat"] * 2 + ["dog"] * 8
    >>> two_world_prevalence(labels, label="cat", share=0.5, seed=7)
    TwoWorlds(n_records=10, n_differing=3)
    """
    worlds = TwoWorlds(
        first=_label_array(labels),
        second=relabelled(labels, label=label, share=share, seed=seed),
    )
    if not worlds.n_differing:
        raise ArgumentError(
            f"share must change the number of records with the label, but {share!r} of "
            f"{len(worlds.first)} records is the present number; the two worlds would be the same"
        )
    return worlds


def relabelled(labels: object, *, label: str | int, share: float, seed: int) -> Labels:
    """New labels, `label` on floor(share * n_records) of them, with as few changes as possible.

    Records that gain the label are drawn from all others; records that lose it are drawn from those
    that have it, and each takes one of the other labels at random. The draw is a function of the
    public `seed` alone, the same under every version of numpy, and a share further away changes the
    same records and more.

    >>> relabelled(["cat", "dog", "dog", "dog"], label="cat", share=0.25, seed=7).tolist()
    ['cat', 'dog', 'dog', 'dog']
    """
    array = _label_array(labels)
    check_count(0, seed=seed)
    has_label = np.asarray(array == label, dtype=np.bool_)
    if np.ndim(label) or not has_label.any():
        raise ArgumentError(
            f"label must be the label of at least one of the {len(array)} records, got "
            f"{given(label)}"
        )
    check_share(share=share)
    # The share as it is written: 0.29 of 100 is 29, not 28.
    target = math.floor(Fraction(str(share)) * len(array))
    change = target - int(np.count_nonzero(has_label))
    # Raw bits of the generator: numpy promises these streams, but not those of `choice`.
    keys, picks = np.random.PCG64(seed).random_raw(2 * len(array)).reshape(2, -1)
    candidates = np.flatnonzero(~has_label if change > 0 else has_label)
    rows = candidates[np.argsort(keys[candidates], kind="stable")[: abs(change)]]
    result = array.copy()
    if change > 0:
        result[rows] = label
    elif change < 0:
        others = np.unique(array[~has_label])
        if not len(others):
            raise ArgumentError(
                "labels must hold a second label for the records that lose the first"
            )
        result[rows] = others[picks[rows] % np.uint64(len(others))]
    return result


def _label_array(labels: object) -> Labels:
    """Labels as an array of integers, strings or True/False."""
    array = np.asarray(labels)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "biuUS":
        raise ArgumentError(
            "labels must be a vector of integers or of strings, at least one; got shape "
            f"{array.shape} and type {array.dtype}"
        )
    return array


def _is_table(value: object) -> bool:
    return isinstance(value, nw.DataFrame) or is_into_dataframe(value)


def _table_difference(first: Frame, second: Frame) -> Flags:
    _check_lengths(len(first), len(second))
    only_one = sorted(set(first.columns) ^ set(second.columns))
    if only_one:
        raise ArgumentError(
            f"both tables must have the same columns; only one has {listed(only_one)}"
        )
    parts = [_column_difference(first[n], second[n], f"column {n!r}") for n in first.columns]
    return np.asarray(np.any(parts, axis=0), dtype=np.bool_)


def _column_difference(first: nw.Series[Any], second: nw.Series[Any], what: str) -> Flags:
    if first.dtype != second.dtype:
        # By name alone: the type of categories would list them.
        raise _other_type(what, type(first.dtype).__name__, type(second.dtype).__name__)
    is_array = first.dtype.is_numeric() and first.dtype not in _WIDE
    if is_array and first.null_count() == 0 == second.null_count():
        return _array_difference(first.to_numpy(), second.to_numpy(), what)
    return _list_difference(_values(first), _values(second))


def _column(value: Any) -> nw.Series[Any] | None:  # any record or dataset
    """One column of a table; None for anything else."""
    column: Any = pa.chunked_array([value]) if isinstance(value, pa.Array) else value
    return nw.from_native(column, series_only=True) if is_into_series(column) else None


def _values(column: nw.Series[Any]) -> list[Any]:
    """The values, dates and times as integers: those of Python have no nanoseconds."""
    if not (column.dtype.is_temporal() or column.dtype.is_nested()):
        return column.to_list()
    array = column.to_arrow()
    for change in (_in_nanoseconds, _as_integer):
        array = array.cast(_with_leaves(array.type, change))
    return array.to_pylist()


def _in_nanoseconds(kind: pa.DataType) -> pa.DataType:
    # narwhals has one type for all times of day.
    return pa.time64("ns") if pa.types.is_time(kind) else kind


def _as_integer(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind):
        return kind
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _with_leaves(kind: Any, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with the types of its innermost values changed."""
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_with_leaves(part.type, change)) for part in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_leaves(kind.value_type, change), int(kind.list_size))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_with_leaves(kind.value_type, change))
    return change(kind)


def _array_difference(first: npt.NDArray[Any], second: npt.NDArray[Any], what: str) -> Flags:
    if first.ndim == 0 or first.shape[1:] != second.shape[1:]:
        raise ArgumentError(
            f"{what} must hold records of one shape along their first axis; "
            f"got shapes {first.shape} and {second.shape}"
        )
    _check_lengths(len(first), len(second))
    if first.dtype.kind == second.dtype.kind and first.dtype.kind in "US":
        wide = np.promote_types(first.dtype, second.dtype)
        first, second = first.astype(wide), second.astype(wide)
    if first.dtype != second.dtype:
        raise _other_type(what, first.dtype, second.dtype)
    if first.dtype.hasobject:
        return _list_difference(first.tolist(), second.tolist())
    return _bits_difference(first, second)


def _bits_difference(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Flags:
    """Rows whose bytes are not all equal, a block of rows at a time."""
    differ = np.empty(len(first), dtype=np.bool_)
    block = max(1, _BLOCK_BYTES // max(1, first[0].nbytes))
    for start in range(0, len(first), block):
        part = slice(start, start + block)
        a, b = (
            np.frombuffer(rows.tobytes(), dtype=np.uint8).reshape(len(rows), -1)
            for rows in (first[part], second[part])
        )
        differ[part] = (a != b).any(axis=1)
    return differ


def _list_difference(first: Any, second: Any) -> Flags:  # lists or tuples of records
    pairs = zip(first, second, strict=True)
    return np.array([not _same_value(a, b) for a, b in pairs], dtype=np.bool_)


def _same_value(first: Any, second: Any) -> bool:  # any record
    if first is second:  # also the missing value of pandas, which cannot be compared
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, _PLAIN):
        return bool(first == second)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same_value, first, second))
    if isinstance(first, Mapping):
        # Keys may be equal and not the same, too: 1 and True.
        items = {key: (key, second[key]) for key in second}
        return first.keys() == items.keys() and all(
            _same_value((key, first[key]), items[key]) for key in first
        )
    if isinstance(first, float):
        return bool(first.hex() == second.hex())
    if _is_table(first) or _column(first) is not None:
        try:
            return not differing_rows(first, second).any()
        except (ArgumentError, TableError):  # of other lengths, names or types
            return False
    if hasattr(first, "__array__"):
        return _same_array(np.asarray(first), np.asarray(second)) and (
            not isinstance(first, np.ma.MaskedArray)
            or _same_array(np.ma.getmaskarray(first), np.ma.getmaskarray(second))
        )
    # Values may be equal and not the same: dates in two zones, decimals, complex numbers with -0.0.
    return bool(first == second) and repr(first) == repr(second)


def _same_array(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.hasobject:
        return _same_value(first.tolist(), second.tolist())
    return first.tobytes() == second.tobytes()


def _check_lengths(n_first: int, n_second: int) -> None:
    if n_first != n_second or n_first == 0:
        raise ArgumentError(
            "both worlds must have the same number of records, at least one; "
            f"got {n_first} and {n_second}"
        )


def _other_type(what: str, first: object, second: object) -> ArgumentError:
    return ArgumentError(f"{what} must have one type in both worlds, got {first} and {second}")
