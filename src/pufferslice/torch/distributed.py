# SPDX-License-Identifier: Apache-2.0
"""The processes that share one training run: who does which block, and how sums meet.

The model, the optimizer and the noise are the same in every process; only the blocks of a batch are
shared out. What the processes exchange are whole numbers, so neither their number nor the order in
which they are added can change a bit. They meet over gloo, whatever else the user runs over.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, final

import attrs
import torch
from torch import distributed

from pufferslice._core.arrays import Integers
from pufferslice.errors import PuffersliceError, TrainingError

Result = TypeVar("Result")

_FAILED: Final = "the first process stopped with an error of its own; look at its output"


@final
@attrs.frozen(eq=False)
class Processes:
    """The processes of a run, seen from one of them."""

    rank: int
    """This process, from 0."""
    size: int
    """How many there are."""
    _group: Any = attrs.field(default=None, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that keeps the files."""
        return self.rank == 0

    def own_parts(self, n_parts: int) -> range:
        """The parts of a batch that this process computes: every size-th one."""
        return range(self.rank, n_parts, self.size)

    def add_up(self, values: Integers) -> Integers:
        """The sum of everybody's values, the same everywhere."""
        if self.size == 1:
            return values
        total = torch.from_numpy(values.copy())
        with self._together():
            distributed.all_reduce(total, group=self._group)
        return total.numpy()

    def from_first(self, work: Callable[[], Result]) -> Result:
        """What `work` gives in the first process, which alone does it; its error is everybody's."""
        if self.size == 1:
            return work()
        if self.is_first:
            return self._told(work)
        heard: list[Any] = [None]
        self._broadcast(heard)
        problem, result = heard[0]
        if problem is not None:
            raise TrainingError(problem)
        return result  # type: ignore[no-any-return]  # what the first process gave to `_told`

    def _told(self, work: Callable[[], Result]) -> Result:
        """Do the work and tell the others how it ended, whichever way that was."""
        outcome: tuple[str | None, Result | None] = (_FAILED, None)
        try:
            result = work()
            outcome = (None, result)
        except PuffersliceError as error:
            outcome = (f"the first process says: {error}", None)
            raise
        finally:
            self._broadcast([outcome])
        return result

    def _broadcast(self, values: list[Any]) -> None:
        with self._together():
            distributed.broadcast_object_list(values, group=self._group, group_src=0)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Say what a failed exchange means, and leave, so that nobody waits for this process."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            with contextlib.suppress(RuntimeError, ValueError):
                distributed.destroy_process_group(self._group)
            msg = (
                f"process {self.rank} of {self.size} lost another process of the run, so the step "
                "was not made. Start the run again with any number of processes and call "
                f"trainer.resume(): it resumes from the last checkpoint ({_first_line(error)})"
            )
            raise TrainingError(msg) from error


def joined_processes() -> Processes:
    """The processes of `torch.distributed`, if it was initialised, or this one alone.

    Every process must call it, and with it make its trainers, in the same order.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return Processes(0, 1)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if size == 1:
        return Processes(0, 1)
    return Processes(rank, size, distributed.new_group(backend="gloo"))


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", maxsplit=1)[0]
