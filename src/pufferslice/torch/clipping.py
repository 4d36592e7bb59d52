# SPDX-License-Identifier: Apache-2.0
r"""Sums of clipped per-example gradients, as integers on the plan's grid.

A batch is split into blocks. In a block each example is run as if it were alone (`per_example`);
then norms and one weighted sum per parameter are computed. The sums of a group of blocks are added
in float64 and rounded to the grid once; all further sums are of integers.

Guarantee: with radius $r$ of a layer and the share $\rho$ of `rounding_share`, the sum of a block
is $\sum_i v_i + e$ with $\|v_i\| \le r$ and $\|e\| \le \text{block} \cdot \rho r$, where $v_i$ is a
function of example i, its place and the size of its block. Places and sizes are those of the draw,
the same in both worlds. Neither threads nor processes change a bit of the sum of a batch: every
block is computed on one thread, the blocks of a group are added in order, and groups are added as
integers.
"""

import contextlib
import hashlib
import math
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.kernels import kernel
from pufferslice.errors import ArgumentError, PuffersliceError, TrainingError
from pufferslice.learning.integer_sums import SumGrid, rounding_share
from pufferslice.torch.batches import Batch
from pufferslice.torch.contributions import Contribution, Weights, add_quantised, row_norms
from pufferslice.torch.distributed import Processes
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.per_example import (
    Examples,
    GradientMethod,
    LossFunction,
    PerExample,
    leaves,
    made_up,
    mapped,
    seeded,
)

SeedOf = Callable[[int], int]
"""A seed for each block; independent of the data."""

_Group = list[tuple[int, Examples]]
"""Consecutive blocks by their numbers, computed by one thread."""

_NORM_MARGIN: Final = 1 + 2.0**-40
"""Factor that covers the roundings of a square root, a sum over parameters and a division."""

_LEAST_RADIUS: Final = 2.0**-40
_SINGLE_ROUNDOFF: Final = 2.0**-24

_BLOCK_BYTES: Final = 2**28
"""Largest memory of the activations and gradients of a block."""

_ARRAY_BYTES: Final = 2**25
"""The largest array of a block: the C library returns larger ones to the system at once."""

_CACHE_BYTES: Final = 2**24
"""Size of activations that stay in the cache."""

_LEAST_BLOCK: Final = 64
"""Fewest examples of a block; in smaller ones the overhead exceeds the gain of the cache."""

_UNKNOWN_BYTES: Final = _BLOCK_BYTES // _LEAST_BLOCK
"""Assumed activations of an example, for a model that does not run on made-up ones."""

_SMALL_BYTES: Final = 2**23
"""Size from which a batch gains from a second thread."""


class StepSums(NamedTuple):
    """Results for a batch; only the sum may be published, and only with noise."""

    integers: Integers
    """Sum of the clipped gradients in units of the grid, shape (n_parameters,)."""
    mean_loss: float
    """Mean loss of the examples; NaN for an empty batch."""
    n_non_finite: int
    """Examples left out because their gradient is NaN or infinite."""


class _Totals(NamedTuple):
    """Settings that the groups of a step share, and the arrays that they add to."""

    grid: SumGrid
    block: int
    seed_of: SeedOf
    integers: Integers
    losses: Floats
    """Loss of each block."""


@final
class ClippedSums:
    """Clipped gradient sums of a model over batches, several blocks at once."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        layout: ParameterLayout,
        *,
        non_finite: str,
        processes: Processes,
        in_flight: int,
    ) -> None:
        self.layout: Final = layout
        self.method: GradientMethod | None = None
        """How examples are run; None before `prepare`."""
        self._model = model
        self._non_finite = non_finite
        self._processes = processes
        self._in_flight = in_flight
        self._threads = ThreadPoolExecutor(in_flight, "block") if in_flight > 1 else None
        self._per_example = PerExample(model, loss_fn, layout)
        self._device = layout.parameters[0].device
        self._modes: tuple[bool, ...] = ()
        self._adding = threading.Lock()
        # compile the kernels now: during a step their memory would lie between the activations
        row_norms(torch.zeros(1, 1))
        _checksum(torch.zeros(2))

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` was called with all modules in their present modes."""
        return self.method is not None and self._modes == self._modes_now()

    def _modes_now(self) -> tuple[bool, ...]:
        return tuple(module.training for module in self._model.modules())

    def prepare(self, example: Examples) -> None:
        """Choose how examples are run, by made-up ones of the same shapes; this one is not run.

        The first call warns if training is slow or if the model computes with whole batches.
        """
        is_first = self.method is None
        examples = self._there(made_up(example, 2))
        with one_thread(), self._plain_torch():
            self.method = self._per_example.method_for(examples)
            self._modes = self._modes_now()
            if not is_first:
                return
            if self.method.reason:
                warnings.warn(f"training is slow: {self.method}", stacklevel=4)
            if not self._per_example.is_like_batch(examples, self.method):
                warnings.warn(
                    "the model or loss_fn gives a batch other losses than its single examples; it "
                    "is trained on single examples",
                    stacklevel=4,
                )

    def outcome(self, examples: Examples) -> tuple[Tensor, ...] | None:
        """Losses and summed gradients of examples; None if there are none or it does not run."""
        if self.method is None or not len(leaves(examples)[0]):
            return None
        with one_thread(), self._plain_torch(), _exact_products(), seeded(0):
            try:
                losses, contributions = self._per_example.contributions(
                    self._there(examples), self.method, 0
                )
                weights = Weights(torch.ones(len(losses), dtype=torch.float64))
                sums = [
                    contributions[place].weighted_sum(weights) for place in sorted(contributions)
                ]
            except Exception:  # noqa: BLE001 - user code may raise anything; a step names its error
                return None
        return losses, *sums

    def check_outcome(self, examples: Examples, known: tuple[Tensor, ...] | None) -> None:
        """Raise unless the outcome of the examples is the known one, bit for bit.

        On other devices than a processor, kernels may add in another order, so close is enough.
        """
        again = self.outcome(examples)
        if known is None or again is None:
            return
        is_exact = self._device.type == "cpu"
        same = _equal_bits if is_exact else partial(torch.allclose, rtol=1e-3, equal_nan=True)
        if not all(map(same, known, again)):
            raise ArgumentError(
                "model or loss_fn gives other gradients for the same example after other examples "
                "were fetched and run, so one record can change the gradients of others. They must "
                "follow from the example, the weights and the generators of torch, numpy and "
                "random: keep nothing between examples in globals, classes, context variables, "
                "thread locals or buffers, and let the dataset write to no part of the model"
            )

    def chosen_block(self, example: Examples, batch: float, spread: float) -> int:
        """Examples per block, from public facts: shapes, number of parameters, expected batch.

        A batch of usual size, up to four standard deviations (`spread`) above the expected one,
        makes two blocks, so that two threads are busy, or four if it is large; a very small one
        makes one block, and one that does not fit makes more. No record is run for this: what it
        takes could depend on its values, and the certificate states the block.
        """
        with one_thread(), self._plain_torch():
            known, gradients = self._per_example.bytes_of_one(self._there(made_up(example, 1)))
        activations = _UNKNOWN_BYTES if known is None else known
        example_bytes = max(1, activations + sum(gradients))
        usual = max(1.0, batch + 4 * spread)
        batch_bytes = example_bytes * usual
        if batch_bytes > _SMALL_BYTES:
            usual /= 4 if batch_bytes > _BLOCK_BYTES else 2
        fitting = min(
            _BLOCK_BYTES // example_bytes,
            _ARRAY_BYTES // max(1, *gradients),
            max(_LEAST_BLOCK, _CACHE_BYTES // max(1, activations)),
        )
        return max(1, min(math.ceil(usual), fitting))

    def of(self, batch: Batch, grid: SumGrid, block: int, seed_of: SeedOf) -> StepSums:
        """The sum over all processes; an error in one of them is an error in all."""
        check_radii(grid)
        n, n_blocks, n_flags = self.layout.n_parameters, len(batch.blocks), 2
        totals = np.zeros(n + n_blocks + n_flags + self._processes.size, dtype=np.int64)
        places = np.cumsum([n, n_blocks, n_flags])
        sums, losses, flags, weights = np.split(totals, places)
        weights[self._processes.rank] = self._weights_digest()
        flags[1] = 1
        try:
            flags[0] = self._add_groups(
                batch, _Totals(grid, block, seed_of, sums, losses.view(np.float64))
            )
            flags[1] = 0
        finally:
            # Others wait for this sum, also after an error.
            total = self._processes.add_up(totals)
        sums, losses, flags, weights = np.split(total, places)
        if n_failed := int(flags[1]):
            raise TrainingError(
                f"{n_failed} of the processes of the run failed in this step; their output says "
                "why. The step was not taken"
            )
        if (weights != weights[0]).any():
            raise TrainingError(
                "the processes of the run have different weights. Change the model in all of them "
                "alike, or in none, and resume from the last checkpoint"
            )
        n_examples = len(batch.indices)
        total_loss = math.fsum(losses.view(np.float64)) if n_examples else math.nan
        return StepSums(sums, total_loss / max(1, n_examples), int(flags[0]))

    def _add_groups(self, batch: Batch, totals: _Totals) -> int:
        """Add the groups that this process computes; returns how many examples were left out."""
        method = self.method
        if method is None:
            raise ArgumentError("a batch is summed after prepare")
        state = torch.get_rng_state()
        parameters = [*self._model.parameters()]
        before = [_checksum(parameter) for parameter in parameters]

        def add_group(group: _Group) -> int:
            with self._plain_torch(), _named_errors():
                return self._add_group(group, method, totals)

        groups = batch.groups()
        here = (groups[i] for i in self._processes.own_parts(len(groups)))
        # items are fetched lazily, in the main thread
        fetched = ([(i, self._there(batch.examples(i))) for i in numbers] for numbers in here)
        # a generator shared by threads gives other numbers if blocks run at once
        threads = self._threads if method.at_once and not method.draws else None
        try:
            with one_thread(), _exact_products():
                left_out = _results(add_group, fetched, threads, self._in_flight)
            drawn = not torch.equal(state, torch.get_rng_state())
        finally:
            torch.set_rng_state(state)
        if drawn and method.at_once and not method.draws:
            raise TrainingError(
                "the model drew random numbers that it did not draw in its first run, so they were "
                "not seeded; the step was not taken. Make the trainer with the model in the mode "
                "in which it is trained (model.train())"
            )
        # listed again, because the model may have put others in their place
        after = [*self._model.parameters()]
        are_same = [*map(id, after)] == [*map(id, parameters)]
        if not are_same or before != [_checksum(parameter) for parameter in after]:
            raise TrainingError(
                "the model wrote to its parameters, which it did not in its first run; the step "
                "was not taken. Change weights between steps: what a forward pass writes would "
                "show how many were run"
            )
        return sum(left_out)

    @contextlib.contextmanager
    def _plain_torch(self) -> Iterator[None]:
        """Switch gradients on and the caller's autocast off, in this thread.

        Sums in half precision would be off by more than the plan accounts for.
        """
        with torch.enable_grad(), torch.autocast(self._device.type, enabled=False):
            yield

    def _there(self, examples: Examples) -> Examples:
        return mapped(lambda tensor: tensor.to(self._device), examples)

    def _add_group(self, group: _Group, method: GradientMethod, totals: _Totals) -> int:
        of_blocks: dict[int, Tensor] = {}
        n_left_out = 0
        for number, examples in group:
            seed = totals.seed_of(number)
            with seeded(seed) if method.draws else contextlib.nullcontext():
                block_losses, contributions = self._per_example.contributions(
                    examples, method, seed
                )
            with torch.no_grad():
                weights, finite = self._weights(contributions, len(block_losses), totals)
                left_out = int((~finite).sum())
                if left_out and self._non_finite == "stop":
                    raise TrainingError(
                        "an example has a gradient that is NaN or infinite, and the plan says "
                        "'stop'; the step was not taken. Use a loss and inputs whose gradients are "
                        "always finite, or a plan with non_finite='zero'"
                    )
                by_layer = [Weights(row) for row in weights]
                while contributions:
                    # each is freed before the sum of the next one
                    place, contribution = contributions.popitem()
                    finite_part = contribution.masked(finite) if left_out else contribution
                    sums = finite_part.weighted_sum(by_layer[self.layout.layers[place]])
                    if len(group) == 1:
                        self._add(place, sums, totals)
                    elif place in of_blocks:
                        of_blocks[place] += sums.double()
                    else:
                        of_blocks[place] = sums.double()
            totals.losses[number] = float(block_losses.double().sum())
            n_left_out += left_out
        for place, sums in of_blocks.items():
            self._add(place, sums, totals)
        return n_left_out

    def _add(self, place: int, sums: Tensor, totals: _Totals) -> None:
        """Add the sums of a parameter, rounded to the grid, to the integers of all groups."""
        step = float(totals.grid.steps[self.layout.layers[place]])
        with self._adding:
            add_quantised(sums, step, totals.integers[self.layout.place_of(place, sums)])

    def _weights(
        self, contributions: dict[int, Contribution], n_examples: int, totals: _Totals
    ) -> tuple[Tensor, Tensor]:
        """Weight of each example in each layer, and which examples have finite gradients."""
        shape = (self.layout.n_layers, n_examples)
        squares, radii = np.zeros(shape), np.zeros(shape)
        for place, contribution in contributions.items():
            layer = self.layout.layers[place]
            squares[layer] += contribution.squared_norms().numpy(force=True)
            rounding = contribution.rounding_radii()
            if rounding is not None:
                radii[layer] += rounding.numpy(force=True) ** 2
        radii += ((totals.block + 4) * _SINGLE_ROUNDOFF) ** 2 * squares
        bounds = np.sqrt(np.maximum(squares, radii / rounding_share(totals.block) ** 2))
        finite = np.isfinite(bounds).all(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.minimum(totals.grid.radii[:, None] / (bounds * _NORM_MARGIN), 1.0)
        weights[:, ~finite] = 0.0
        return torch.from_numpy(weights), torch.from_numpy(finite)

    def _weights_digest(self) -> int:
        """64 bits of the trained parameters, to compare with those of other processes."""
        if self._processes.size == 1:
            return 0
        state = hashlib.blake2b(digest_size=8)
        for parameter in self.layout.parameters:
            state.update(parameter.detach().cpu().contiguous().reshape(-1).numpy().data)
        return int.from_bytes(state.digest(), "little", signed=True)


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits, NaN included."""
    return torch.equal(one.detach().view(torch.uint8), other.detach().view(torch.uint8))


def _checksum(parameter: Tensor) -> tuple[int, bytes]:
    """Number that changes with the values and their order; comparing a copy would take longer."""
    flat = parameter.detach().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy()
    n_whole = len(content) // 8 * 8
    return int(_mixed_sum(content[:n_whole].view(np.uint64))), content[n_whole:].tobytes()


@kernel
def _mixed_sum(words: npt.NDArray[np.uint64]) -> np.uint64:
    """Sum of all words, each mixed with its place; modulo 2^64.

    Words are mixed as SplitMix64 does: with a mere factor for each place, sign flips in two places
    could cancel.
    """
    total = np.uint64(0)
    for place in range(len(words)):
        word = words[place] + np.uint64(place) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        total += word ^ (word >> np.uint64(32))
    return total


def check_radii(grid: SumGrid) -> None:
    """Raise unless single precision keeps its digits at these clip norms."""
    if not (grid.radii.min() >= _LEAST_RADIUS and grid.radii.max() <= 1 / _LEAST_RADIUS):
        raise ArgumentError(
            f"clip norms must lie between {_LEAST_RADIUS:.0e} and {1 / _LEAST_RADIUS:.0e}, where "
            f"single precision keeps its digits; got {grid.radii.tolist()}"
        )


def _results(
    work: Callable[[_Group], int],
    items: Iterable[_Group],
    threads: ThreadPoolExecutor | None,
    in_flight: int,
) -> list[int]:
    """Apply `work` to every item; items are taken just before their turn.

    Torch uses no further threads inside a block, because splitting work over threads changes
    rounding.
    """
    if threads is None:
        return [work(item) for item in items]

    def alone(item: _Group) -> int:
        # a new thread would otherwise take over the number of the main thread later
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        return work(item)

    waiting: deque[Future[int]] = deque()
    results = []
    try:
        for item in items:
            # one more than there are threads, so that no thread waits for its next item
            if len(waiting) > in_flight:
                results.append(waiting.popleft().result())
            waiting.append(threads.submit(alone, item))
        return results + [future.result() for future in waiting]
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Restrict torch to the calling thread; the number of threads is restored at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _exact_products() -> Iterator[None]:
    """Compute float32 products in full precision, whatever the user's setting."""
    before = torch.get_float32_matmul_precision()
    if before == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Report only the class of torch's errors, because they may show values of records."""
    try:
        yield
    except PuffersliceError:
        raise
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        raise TrainingError(
            f"the model or loss_fn raised {type(error).__name__} on a block of examples, and the "
            "step was not taken; check for labels out of range and inputs of a wrong shape or type"
        ) from error
