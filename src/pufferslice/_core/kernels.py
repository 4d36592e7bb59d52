# SPDX-License-Identifier: Apache-2.0
"""Compilation of hot loops: one decorator, the same rules everywhere."""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, final

import numpy as np

from pufferslice.errors import MissingExtraError

_CONSTANTS: Final = (bool, int, float, str, tuple)
_COMPILING: Final = threading.RLock()

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile a loop over arrays with numba: single-threaded, without the interpreter lock.

    No `parallel=True` (a child forked after an OpenMP kernel dies) and no fastmath (rounding stays
    IEEE 754). It is compiled when it is first called; until then numba is not loaded. The machine
    code is kept on disk; where numba finds no folder it can write to, each process compiles afresh.
    """
    return _Kernel(function, frozenset())


def small_kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile as `kernel`; without numba, run it as Python.

    For loops that are short where the sums of a table are protected, which needs no compiler.
    """
    return _Kernel(function, frozenset(), is_small=True)


def summing_kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compile as `kernel`, but add sums in any order, which lets the compiler use vectors.

    Only for sums of terms of one sign: their error bound is the same for every order.
    """
    return _Kernel(function, frozenset({"reassoc"}))


@functools.cache
def has_compiler() -> bool:
    """Whether loops can be compiled, with the extra `fast`."""
    try:
        import numba  # noqa: F401, PLC0415 - slow to load
    except ImportError:
        return False
    return True


@final
class _Kernel(Generic[Arguments, Result]):
    """A loop that is compiled when it is first called."""

    def __init__(
        self,
        function: Callable[Arguments, Result],
        liberties: frozenset[str],
        *,
        is_small: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.py_func = cast("FunctionType", function)
        self._liberties = liberties
        self._is_small = is_small
        self._compiled: Callable[Arguments, Result] | None = None

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return (self._compiled or self.compiled)(*args, **kwargs)

    @property
    def compiled(self) -> Callable[Arguments, Result]:
        """The machine code, with that of the kernels that it calls."""
        with _COMPILING:
            if self._compiled is None:
                if has_compiler():
                    self._compiled = _compiled(_linked(self.py_func), self._liberties)
                elif self._is_small:
                    # Integers wrap around, as compiled ones do.
                    self._compiled = np.errstate(over="ignore")(self.py_func)
                else:
                    raise MissingExtraError(
                        "distances between distributions, and training, need compiled loops, and "
                        "so numba: pip install 'pufferslice[fast]'"
                    )
        return self._compiled


def _linked(function: FunctionType) -> FunctionType:
    """The function, which calls compiled kernels where it called kernels."""
    names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    called = {name: value.compiled for name, value in names.items() if isinstance(value, _Kernel)}
    if not called:
        return function
    linked = FunctionType(
        function.__code__,
        function.__globals__ | called,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    linked.__module__, linked.__qualname__ = function.__module__, function.__qualname__
    return linked


def _compiled(function: FunctionType, liberties: frozenset[str]) -> Any:  # numba's dispatcher
    import numba  # noqa: PLC0415 - the extra `fast`, and slow to load

    compiled = numba.njit(nogil=True, fastmath=set(liberties))(function)
    try:
        # As `enable_caching` does, with a cache that looks further.
        setattr(compiled, "_cache", _cache_of(function))  # noqa: B010 - it has no public name
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
    return compiled


def _cache_of(function: FunctionType) -> Any:  # numba's cache
    """Machine code on disk; numba itself looks only at the file of the kernel."""
    from numba.core.caching import FunctionCache  # noqa: PLC0415 - as above

    class Cache(FunctionCache):
        def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:  # numba's own
            digest = hashlib.blake2b(digest_size=16)
            for part in _ingredients(function, set()):
                digest.update(part)
            key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
            return (*key, digest.hexdigest())

    return Cache(function)  # type: ignore[no-untyped-call]  # numba's constructor


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
