# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: each raises an `ArgumentError` that names the argument; NaN never passes."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any

import numpy as np
import numpy.typing as npt

from pufferslice._core.search import LARGEST
from pufferslice._core.text import given, listed, quoted
from pufferslice.errors import ArgumentError

UNIT_TOLERANCE = 1e-12
"""Largest distance from 1 of the norm of a direction, or of the sum of weights."""
_MOST_NUMBERS = 2**28
"""Most numbers in one array whose size an argument decides: 2 GiB."""


def check_above(limit: float, /, **named: float) -> None:
    """Check that each value is a finite number greater than `limit`."""
    rule = f"a finite number greater than {limit:g}"
    _check_each(named, lambda value: _is_finite(value) and value > limit, rule)


def check_at_least(limit: float, /, **named: float) -> None:
    """Check that each value is a finite number no smaller than `limit`."""
    rule = f"a finite number and at least {limit:g}"
    _check_each(named, lambda value: _is_finite(value) and value >= limit, rule)


def check_between(low: float, high: float, /, **named: float) -> None:
    """Check that each value lies strictly between `low` and `high`."""
    for name, value in named.items():
        if not (_is_number(value) and low < value < high):
            hint = ""
            if high == 1 and _is_number(value) and 1 < value < 100 and low < value / 100:
                hint = f"; write {value:g} % as {value / 100:g}"
            raise ArgumentError(
                f"{name} must lie strictly between {low:g} and {high:g}, got {given(value)}{hint}"
            )


def check_share(**named: float) -> None:
    """Check that each value is a number from 0 to 1, ends included."""
    rule = "a number from 0 to 1"
    _check_each(named, lambda value: _is_number(value) and 0 <= value <= 1, rule)


def check_count(least: int, **named: int) -> None:
    """Check that each value is an integer no smaller than `least`."""
    rule = f"an integer and at least {least}"
    _check_each(named, lambda value: _is_integer(value) and value >= least, rule)


def check_fits(each: int, **named: int) -> None:
    """Refuse counts that fill the memory, if `each` of what is counted holds that many numbers."""
    for name, count in named.items():
        if count * each > _MOST_NUMBERS:
            size = "" if each == 1 else f" of {each} numbers each"
            raise ArgumentError(
                f"{name} must be at most {_MOST_NUMBERS // each}{size}, got {count}"
            )


def check_one_of(choices: Sequence[str], **named: str) -> None:
    """Check that each value is one of the given words."""
    for name, value in named.items():
        if not is_a(value, str) or value not in choices:
            raise ArgumentError(f"{name} must be one of {', '.join(choices)}; got {given(value)}")


def check_finite(**named: npt.NDArray[np.float64]) -> None:
    """Check that each array holds finite numbers only; the bad ones are counted, not shown."""
    for name, values in named.items():
        bad = int(np.count_nonzero(~np.isfinite(values)))
        if bad:
            raise ArgumentError(
                f"{name} must be finite; {bad} of {values.size} values are NaN or infinite"
            )


def check_size(**named: npt.NDArray[np.float64]) -> None:
    """Check that the square of each number is a float; the numbers are not shown."""
    check_finite(**named)
    for name, values in named.items():
        if max(-float(values.min()), float(values.max())) > LARGEST:
            raise ArgumentError(
                f"{name} must be at most {LARGEST:g} in size; compute the query in larger units, "
                "or choose larger scales"
            )


def check_unique(what: str, names: Iterable[str]) -> None:
    """Check that no name occurs twice."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ArgumentError(
            f"{what} must be different from each other; {listed(twice, quoted)} repeats"
        )


def check_unit_rows(**named: npt.NDArray[np.float64]) -> None:
    """Check that each array is a non-empty matrix whose rows have Euclidean norm 1."""
    for name, rows in named.items():
        if rows.ndim != 2 or rows.size == 0:
            raise ArgumentError(
                f"{name} must have shape (n_directions, dim), both at least 1; got {rows.shape}"
            )
        check_finite(**{name: rows})
        off = np.abs(np.linalg.norm(rows, axis=1) - 1.0)
        if off.max() > UNIT_TOLERANCE:
            row = int(off.argmax())
            norm = float(np.linalg.norm(rows[row]))
            raise ArgumentError(
                f"{name} must be unit vectors; row {row} has norm {norm!r}. Divide it by its norm"
            )


def check_probabilities(*, length: int, **named: npt.NDArray[np.float64]) -> None:
    """Check that each array is a probability vector of the given length."""
    for name, values in named.items():
        if values.shape != (length,):
            raise ArgumentError(f"{name} must have shape ({length},), got {values.shape}")
        check_finite(**{name: values})
        if values.min() < 0 or abs(float(values.sum()) - 1.0) > UNIT_TOLERANCE:
            raise ArgumentError(
                f"{name} must be non-negative and sum to 1; "
                f"smallest {float(values.min())!r}, sum {float(values.sum())!r}"
            )


def plain_float(value: Any) -> Any:  # whatever an argument can be
    """Convert a number to a float; leave anything else to the check that follows."""
    return float(value) if _is_number(value) else value


def is_a(value: object, kind: type | UnionType) -> bool:
    """Check the type of an argument that may not be of its declared type.

    A type checker believes the declaration and would call the refusal unreachable.
    """
    return isinstance(value, kind)


def _check_each(named: Mapping[str, Any], holds: Callable[[Any], bool], rule: str) -> None:
    for name, value in named.items():
        if not holds(value):
            raise ArgumentError(f"{name} must be {rule}, got {given(value)}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float | np.floating)


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold; some integers are too large."""
    if isinstance(value, int):
        return _is_integer(value) and abs(value) <= sys.float_info.max
    return _is_number(value) and math.isfinite(value)
