# SPDX-License-Identifier: Apache-2.0
"""The processes of one training run: which blocks each computes, and how sums are added.

The model, the optimizer and the noise are the same in every process; only the blocks of a batch are
divided among them. Processes exchange integers, so neither their number nor the order of addition
can change a bit. They communicate over gloo, whatever backend the user has.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, TypeVar, final

import attrs
import torch
from torch import distributed

from pufferslice._core.arrays import Integers
from pufferslice.errors import PuffersliceError, TrainingError

Result = TypeVar("Result")

PATIENCE: Final = 600.0
"""Seconds, by default, after which a process that does not answer is given up."""

_FAILED: Final = "the first process stopped with an error; see its output"


@final
@attrs.frozen(eq=False)
class Processes:
    """The processes of a run, from the view of one of them."""

    rank: int
    """This process, from 0."""
    size: int
    """Number of processes."""
    _group: Any = attrs.field(default=None, repr=False)
    patience: float = PATIENCE
    """Seconds that a process waits for another one."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that keeps the files."""
        return self.rank == 0

    def own_parts(self, n_parts: int) -> range:
        """The parts of a batch that this process computes: every size-th one."""
        return range(self.rank, n_parts, self.size)

    def add_up(self, values: Integers) -> Integers:
        """The sum of the values of all processes, the same in each."""
        if self.size == 1:
            return values
        total = torch.from_numpy(values.copy())
        with self._exchange():
            distributed.all_reduce(total, group=self._group)
        return total.numpy()

    def from_first(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which only the first process does; its error is raised in all."""
        if self.size == 1:
            return work()
        if not self.is_first:
            problem, result = self._broadcast(None)
            if problem is not None:
                raise TrainingError(problem)
            return result  # type: ignore[no-any-return]  # the result of the first process
        outcome: tuple[str | None, Result | None] = (_FAILED, None)
        try:
            result = work()
            outcome = (None, result)
        except PuffersliceError as error:
            outcome = (f"the first process says: {error}", None)
            raise
        finally:
            self._broadcast(outcome)
        return result

    def _broadcast(self, outcome: Any) -> Any:  # any result
        """The outcome of the first process, in every process."""
        outcomes = [outcome]
        with self._exchange():
            distributed.broadcast_object_list(outcomes, group=self._group, group_src=0)
        return outcomes[0]

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Leave the group if an exchange fails, so that nobody waits for this process."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            with contextlib.suppress(RuntimeError, ValueError):
                distributed.destroy_process_group(self._group)
            reason = str(error).split("\n", maxsplit=1)[0]
            raise TrainingError(
                f"process {self.rank} of {self.size} lost another process of the run, or waited "
                f"for it for {self.patience:g} seconds, so the step was not taken. Start the run "
                "again with any number of processes and call trainer.resume(): it resumes from the "
                f"last checkpoint ({reason})"
            ) from error


def joined_processes(patience: float = PATIENCE) -> Processes:
    """The processes of `torch.distributed`, or only this one if it was not initialised.

    A process that waits longer than `patience` seconds for another one ends with an error.
    Every process must make its trainers, which call this, in the same order.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return Processes(0, 1)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if size == 1:
        return Processes(0, 1)
    group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience))
    return Processes(rank, size, group, patience)
