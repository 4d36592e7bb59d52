# SPDX-License-Identifier: Apache-2.0
"""Blocks in flight: several at once, each on one thread, so that their number changes no bit."""

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar, final

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@final
class BlockPool:
    """Threads that work on blocks; torch uses no further threads inside a block.

    How torch splits work over threads decides how it rounds. One thread per block leaves it
    nothing to split.
    """

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._threads = ThreadPoolExecutor(in_flight, "block") if in_flight > 1 else None

    def once(self, work: Callable[[Item], Result], item: Item) -> Result:
        """`work` on one item where others will be worked on: they use again what it frees.

        An interrupt waits for its end: nothing goes on behind the caller's back.
        """
        with one_thread():
            if self._threads is None:
                return work(item)
            future = self._threads.submit(_alone, work, item)
            try:
                return future.result()
            finally:
                wait([future])

    def each(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[Result, None, None]:
        """`work` on every item, results in order; items are made here, just before their turn.

        The result must be read to its end, or closed.
        """
        with one_thread():
            if self._threads is None:
                yield from map(work, items)
            else:
                yield from self._in_threads(self._threads, work, items)

    def _in_threads(
        self, threads: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[Result, None, None]:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                # One more than are worked on, so that no thread waits for its next item.
                if len(waiting) > self._in_flight:
                    yield waiting.popleft().result()
                waiting.append(threads.submit(_alone, work, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)


def _alone(work: Callable[[Item], Result], item: Item) -> Result:
    # A thread that has not asked yet would be given the number of the main thread later on.
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    return work(item)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch keeps to the calling thread; afterwards to as many as before, here and in new ones."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
