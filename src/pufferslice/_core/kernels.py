# SPDX-License-Identifier: Apache-2.0
"""Compilation of hot loops: one decorator, the same rules everywhere."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

_CONSTANTS: Final = (bool, int, float, str, tuple)

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
    """Compile as `kernel`, but add sums in any order, which lets the compiler use vectors.

    Only for sums of terms of one sign: their error bound is the same for every order.
    """
    return _compiled(function, frozenset({"reassoc"}))


def _compiled(
    function: Callable[Arguments, Result], liberties: frozenset[str]
) -> Callable[Arguments, Result]:
    compiled = numba.njit(nogil=True, fastmath=set(liberties))(function)
    try:
        # As `enable_caching` does, with a cache that looks further.
        cache = _Cache(function)  # type: ignore[no-untyped-call]  # numba's constructor
        setattr(compiled, "_cache", cache)  # noqa: B010 - it has no public name
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
    return cast("Callable[Arguments, Result]", compiled)


class _Cache(FunctionCache):
    """Machine code on disk; numba itself looks only at the file of the kernel."""

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:  # numba's own
        digest = hashlib.blake2b(digest_size=16)
        for part in _ingredients(self._py_func, set()):
            digest.update(part)
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return (*key, digest.hexdigest())


def _ingredients(function: Any, visited: set[Any]) -> Iterator[bytes]:  # any function
    """Constants of a kernel, and the files and constants of all functions that it calls."""
    for name in sorted(set(function.__code__.co_names)):
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", None) or getattr(value, "_defn", None)
        if isinstance(value, _CONSTANTS):
            yield f"{name} = {value!r};".encode()
        elif called is not None and called not in visited:
            visited.add(called)
            yield Path(called.__code__.co_filename).read_bytes()
            yield from _ingredients(called, visited)
