# SPDX-License-Identifier: Apache-2.0
"""Work on all cores from one pool of threads; kernels release the interpreter lock."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Callback for the number of finished pieces and the number of all pieces."""


def silent(_done: int, _total: int) -> None:
    """Report no progress, which is the default of a library call."""


_LOG: Final = logging.getLogger("pufferslice")


@contextlib.contextmanager
def logged(work: str) -> Iterator[None]:
    """Tell the logger `pufferslice` that long work begins, and how long it took; never data."""
    _LOG.info("%s: begins", work)
    start = time.perf_counter()
    yield
    _LOG.info("%s: %.3g s", work, time.perf_counter() - start)


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], progress: Progress = silent
) -> list[Result]:
    """Apply `work` to every item; results are in the order of the items on any number of cores."""
    results: list[Result] = []
    if len(items) == 1:  # no pool for what one thread does alone
        results.append(work(items[0]))
        progress(1, 1)
        return results
    pool = ThreadPoolExecutor(max_workers=n_cores())
    try:
        for done, result in enumerate(pool.map(work, items), start=1):
            results.append(result)
            progress(done, len(items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return results


def n_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
