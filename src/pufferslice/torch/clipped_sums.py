# SPDX-License-Identifier: Apache-2.0
"""The clipped integer sum of a whole batch: its blocks over threads and processes."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

import numpy as np
import torch

from pufferslice.arrays import Integers
from pufferslice.errors import PuffersliceError, TrainingError
from pufferslice.sgd.grid import SumGrid
from pufferslice.torch.batches import Batch, Examples
from pufferslice.torch.block_pool import BlockPool, one_thread
from pufferslice.torch.distributed import Processes
from pufferslice.torch.gradients import BlockGradients, BlockSum

SeedOf = Callable[[int], int]
"""A seed for each number; independent of the data."""

_N_FLAGS: Final = 2


class StepSums(NamedTuple):
    """What a batch gives; all but the noisy sum made of it stays private."""

    integers: Integers
    """Sum of the clipped gradients in units of the grid, shape (n_parameters,)."""
    mean_loss: float
    """NaN for an empty batch."""
    n_non_finite: int
    """Examples left out because their gradient is NaN or infinite."""


class _Numbered(NamedTuple):
    """A block on its way to a thread."""

    number: int
    examples: Examples
    n_examples: int


@final
class ClippedSums:
    """Sums the blocks of batches, several at once.

    Guarantee: neither the blocks in flight nor the number of processes changes a bit of a sum:
    every block is computed on one thread, and blocks are added as whole numbers.
    """

    def __init__(self, gradients: BlockGradients, processes: Processes, in_flight: int) -> None:
        self.gradients: Final = gradients
        self._processes = processes
        self._pool = BlockPool(in_flight)
        self._one_by_one = BlockPool(1)
        self._device = gradients.layout.parameters[0].device

    def prepare(self, batch: Batch, seed_of: SeedOf) -> None:
        """Show the first block of a batch to the gradients, which choose their way by it."""

        def prepare(block: _Numbered) -> None:
            with torch.enable_grad(), _named_errors():
                self.gradients.prepare(block.examples, block.n_examples)

        with one_thread():
            block = self._fetched(batch, 0, seed_of)
        self._pool.once(prepare, block)

    def of(self, batch: Batch, grid: SumGrid, seed_of: SeedOf) -> StepSums:
        """The sum over all processes; an error in one of them is an error in all."""
        n, n_blocks = self.gradients.layout.n_parameters, batch.n_blocks
        found = np.zeros(n + n_blocks + _N_FLAGS + self._processes.size, dtype=np.int64)
        sums, losses, flags, weights = np.split(found, np.cumsum([n, n_blocks, _N_FLAGS]))
        weights[self._processes.rank] = self._weights_digest()
        flags[1] = 1
        try:
            flags[0] = self._add_blocks(batch, grid, seed_of, (sums, losses.view(np.float64)))
            flags[1] = 0
        finally:
            # Others wait for this sum, also if there is none.
            total = self._processes.add_up(found)
        sums, losses, flags, weights = np.split(total, np.cumsum([n, n_blocks, _N_FLAGS]))
        _check_together(n_failed=int(flags[1]), weights=weights)
        n_examples = len(batch.indices)
        total_loss = math.fsum(losses.view(np.float64)) if n_examples else math.nan
        return StepSums(sums, total_loss / max(1, n_examples), int(flags[0]))

    def _add_blocks(
        self,
        batch: Batch,
        grid: SumGrid,
        seed_of: SeedOf,
        into: tuple[Integers, np.ndarray[tuple[int], np.dtype[np.float64]]],
    ) -> int:
        """Add this process's blocks, each loss in a place of its own; the number left out."""
        sums, losses = into
        state, left_out = torch.get_rng_state(), 0

        def block_sum(block: _Numbered) -> tuple[int, BlockSum]:
            seed = seed_of(2 * block.number + 1)
            with torch.enable_grad(), _named_errors():
                found = self.gradients.block_sum(block.examples, block.n_examples, grid, seed)
            return block.number, found

        own = self._processes.own_blocks(batch.n_blocks)
        blocks: Iterator[_Numbered] = (self._fetched(batch, i, seed_of) for i in own)
        try:
            each = contextlib.closing(self._chosen_pool().each(block_sum, blocks))
            with each as results:
                for number, result in results:
                    sums += result.integers
                    losses[number] = float(result.losses.double().sum())
                    left_out += result.n_non_finite
            drawn = not torch.equal(state, torch.get_rng_state())
        finally:
            torch.set_rng_state(state)
        if drawn and not self.gradients.draws_randomness:
            msg = (
                "the model drew random numbers that it did not draw when it was first run, so they "
                "could not be seeded; the step was not made. Make the trainer with the model in "
                "the mode that it is trained in (model.train())"
            )
            raise TrainingError(msg)
        return left_out

    def _chosen_pool(self) -> BlockPool:
        return self._one_by_one if self.gradients.run_alone else self._pool

    def _fetched(self, batch: Batch, number: int, seed_of: SeedOf) -> _Numbered:
        """A block, with what the dataset draws at random (augmentation) drawn from its seed."""
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(seed_of(2 * number))
        try:
            examples, n_examples = batch.block(number)
        finally:
            torch.set_rng_state(state)
        return _Numbered(number, tuple(one.to(self._device) for one in examples), n_examples)

    def _weights_digest(self) -> int:
        """64 bits of the trained parameters, to compare with those of other processes."""
        if self._processes.size == 1:
            return 0
        state = hashlib.blake2b(digest_size=8)
        for parameter in self.gradients.layout.parameters:
            state.update(parameter.detach().cpu().contiguous().reshape(-1).numpy().data)
        return int.from_bytes(state.digest(), "little", signed=True)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """What torch says of a failed operation may show values of records; the cause keeps it."""
    try:
        yield
    except PuffersliceError:
        raise
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        msg = (
            f"the model or loss_fn raised {type(error).__name__} on a block of examples, and the "
            "step was not made; labels out of range or inputs of a wrong shape or type do that"
        )
        raise TrainingError(msg) from error


def _check_together(n_failed: int, weights: Integers) -> None:
    if n_failed:
        msg = (
            f"{n_failed} of the processes of the run failed in this step; their output says why. "
            "The step was not made"
        )
        raise TrainingError(msg)
    if (weights != weights[0]).any():
        msg = (
            "the processes of the run have different weights. Do the same to the model in all of "
            "them, or nothing, and resume from the last checkpoint"
        )
        raise TrainingError(msg)
