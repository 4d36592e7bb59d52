# SPDX-License-Identifier: Apache-2.0
"""Locked float64 arrays: copied in, read-only, compared by value."""

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.errors import ArgumentError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

same = attrs.cmp_using(eq=np.array_equal)
"""Equality of array fields, for `attrs.field(eq=same)`."""


def locked(values: Any) -> Floats:  # noqa: ANN401 - whatever numpy can read as numbers
    """Copy `values` into a read-only, C-ordered float64 array."""
    try:
        array = np.array(values, dtype=np.float64, order="C", copy=True)
    except (TypeError, ValueError) as error:
        msg = f"expected numbers, got {type(values).__name__}: {error}"
        raise ArgumentError(msg) from error
    array.setflags(write=False)
    return array


def locked_integers(values: Any) -> Integers:  # noqa: ANN401 - as above
    """Copy `values` into a read-only, C-ordered int64 array."""
    array = np.array(values, dtype=np.int64, order="C", copy=True)
    array.setflags(write=False)
    return array
