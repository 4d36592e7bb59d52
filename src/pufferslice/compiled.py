# SPDX-License-Identifier: Apache-2.0
"""How hot loops are compiled: one decorator, the same rules everywhere."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile a loop over arrays with numba: single-threaded, without the interpreter lock.

    No `parallel=True` (a child forked after an OpenMP kernel dies) and no fastmath (rounding stays
    IEEE 754). The machine code is kept on disk; where numba finds no folder it can write to, each
    process compiles afresh.
    """
    return _compiled(function, frozenset())


def summing_kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """As `kernel`, but sums may be added up in any order, which lets the compiler use vectors.

    Only for sums of terms of one sign: their error bound is the same for every order.
    """
    return _compiled(function, frozenset({"reassoc"}))


def _compiled(
    function: Callable[Arguments, Result], liberties: frozenset[str]
) -> Callable[Arguments, Result]:
    try:
        compiled = numba.njit(nogil=True, cache=True, fastmath=set(liberties))(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        compiled = numba.njit(nogil=True, fastmath=set(liberties))(function)
    return cast("Callable[Arguments, Result]", compiled)
