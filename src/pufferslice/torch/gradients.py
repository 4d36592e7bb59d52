# SPDX-License-Identifier: Apache-2.0
r"""Sums of clipped per-example gradients of one block, as integers on the plan's grid.

One forward pass, one backward pass for the gradients of the inputs, then norms and a weighted sum
per parameter. Where a model uses its parameters in a way that `operations` does not know, every
example is run by itself instead (`per_example`): the sums are the same, the time is not.

Guarantee: with radius $r$ of a layer and the share $\rho$ of `sgd.grid.rounding_share`, the sum of
a block is $\sum_i v_i + e$, $v_i$ a function of example i alone with $\|v_i\| \le r$, and
$\|e\| \le \text{block} \cdot \rho r$, before it is rounded to the grid.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple, final

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from pufferslice.arrays import Integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.sgd.grid import SumGrid, rounding_share
from pufferslice.torch.choosing import WAYS, FirstLook
from pufferslice.torch.contributions import Contribution, Scratch, Weights
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.model_state import Mode, changed, marks_of, modes_of, written
from pufferslice.torch.norms import quantised, row_norms
from pufferslice.torch.objective import Objective, Path
from pufferslice.torch.operations import UnsupportedUseError
from pufferslice.torch.per_example import LossFunction

_NORM_MARGIN: Final = 1 + 2.0**-40
"""Covers the roundings of a square root, a sum over parameters and a division."""

_LEAST_RADIUS: Final = 2.0**-40
_SINGLE_ROUNDOFF: Final = 2.0**-24


class BlockSum(NamedTuple):
    """What one block gives."""

    integers: Integers
    """The clipped sum in units of each layer's grid, shape (n_parameters,)."""
    losses: Tensor
    """One per example; private."""
    n_non_finite: int
    """Examples left out because their gradient is NaN or infinite; private."""


@final
class BlockGradients:
    """Clipped gradient sums of a model, block by block.

    `loss_fn(model(*inputs), target)` must give one loss per example. `prepare` must have seen one
    block before `block_sum`, which may be called from several threads.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        layout: ParameterLayout,
        *,
        block: int,
        non_finite: str,
    ) -> None:
        self.objective = Objective(model, loss_fn, layout)
        self.layout: Final = layout
        self.block: Final = block
        self.non_finite: Final = non_finite
        self.path: Path | None = None
        self.draws_randomness = False
        self._leaves_something = False
        self._rewritten: frozenset[str] = frozenset()
        self._modes: tuple[Mode, ...] | None = None
        self._of_thread = threading.local()
        # loads what kernels need to run: during a step it would lie between the activations
        row_norms(torch.zeros(1, 1))

    @property
    def run_alone(self) -> bool:
        """Whether two blocks must not be run at once.

        The random numbers of a block are seeded for all threads; ways other than the recorded one
        swap the parameters of the model; and what the model leaves behind for the loss to read
        could be that of another block.
        """
        return self.draws_randomness or self._leaves_something or self.path != "recorded"

    @property
    def is_prepared(self) -> bool:
        """Whether the model was looked at in the modes in which its modules are now."""
        return self._modes == modes_of(self.objective)

    def prepare(self, examples: tuple[Tensor, ...], n_examples: int) -> None:
        """Look at how the model treats a block, and choose the way its gradients are taken.

        Refuses what `FirstLook` refuses. The random numbers that the model draws here are put back.
        Show it the same examples whenever a run goes on, so that the way is the same.
        """
        look = FirstLook(self.objective, self.block, self._scratch())
        try:
            found = look.treatment(examples, n_examples)
        finally:
            # with the buffers of blocks of other sizes
            self._of_thread = threading.local()
        self.path, self.draws_randomness = found.path, found.draws_randomness
        self._leaves_something, self._rewritten = found.leaves_something, found.rewritten
        self._modes = modes_of(self.objective)
        self.objective = attrs.evolve(self.objective, constants=found.constants)

    def keep_to(self, path: Path | None) -> None:
        """Go on in the way of an earlier look, unless a slower one was found to be needed now."""
        ways = [way for way in (path, self.path) if way is not None]
        self.path = max(ways, key=WAYS.index)

    @contextlib.contextmanager
    def unchanged_buffers(self) -> Iterator[None]:
        """While blocks are summed, the model keeps nothing of them in a buffer or parameter."""
        before = marks_of(self.objective)
        yield
        kept = written(before, self.objective) - self._rewritten
        kept |= changed(before, self.objective)
        if kept:
            msg = (
                f"{', '.join(map(repr, sorted(kept)))} changed in a step of training: it keeps "
                "something of the records outside the noise, and the step was not made. Use a "
                "layer without running statistics, or set the buffer between steps"
            )
            raise TrainingError(msg)

    def block_sum(
        self, examples: tuple[Tensor, ...], n_examples: int, grid: SumGrid, seed: int
    ) -> BlockSum:
        """The clipped sum of the first `n_examples` examples; the others weigh nothing.

        `seed` is that of the model's own random numbers, if it draws any.
        """
        if self.path is None:
            msg = "block_sum needs a block to be shown to prepare first"
            raise ArgumentError(msg)
        check_radii(grid)
        if self.draws_randomness:
            torch.default_generator.manual_seed(seed)
        losses, contributions = self._contributions(examples, self.path)
        with torch.no_grad():
            return self._clipped(losses, contributions, n_examples, grid)

    def _scratch(self) -> Scratch:
        if not hasattr(self._of_thread, "scratch"):
            self._of_thread.scratch = Scratch()
        scratch: Scratch = self._of_thread.scratch
        return scratch

    def _contributions(
        self, examples: tuple[Tensor, ...], path: Path
    ) -> tuple[Tensor, dict[int, Contribution]]:
        try:
            return self.objective.contributions(examples, path, self._scratch())
        except UnsupportedUseError as error:
            msg = (
                f"the model used a parameter in a way that it did not when it was first run "
                f"({error}), so gradients could not be told apart by examples; the step was not "
                "made. Treat all examples by the same layers, in the order of the block, choosing "
                "with torch.where"
            )
            raise TrainingError(msg) from error

    def _clipped(
        self,
        losses: Tensor,
        contributions: dict[int, Contribution],
        n_examples: int,
        grid: SumGrid,
    ) -> BlockSum:
        weights, finite = self._weights(contributions, n_examples, grid)
        n_non_finite = int((~finite[:n_examples]).sum())
        if n_non_finite and self.non_finite == "stop":
            msg = (
                "an example has a gradient that is NaN or infinite, and the plan says 'stop'; "
                "nothing of this step was used. Use a loss and inputs whose gradients are always "
                "finite, or a plan with non_finite='zero'"
            )
            raise TrainingError(msg)
        integers = np.empty(self.layout.n_parameters, dtype=np.int64)
        if len(contributions) < len(self.layout.parameters):
            integers[:] = 0
        whole = n_non_finite == 0 and bool(finite.all())
        by_layer = [Weights(row) for row in weights]
        for position, contribution in contributions.items():
            layer = self.layout.layers[position]
            kept = contribution if whole else contribution.masked(finite)
            sums = kept.weighted_sum(by_layer[layer])
            place = integers[self.layout.place_of(position, sums)]
            quantised(sums, float(grid.steps[layer]), place)
        return BlockSum(integers, losses[:n_examples], n_non_finite)

    def _weights(
        self, contributions: dict[int, Contribution], n_examples: int, grid: SumGrid
    ) -> tuple[Tensor, Tensor]:
        """Weight of each example in each layer, and which examples have finite gradients."""
        shape = (self.layout.n_layers, self.block)
        squares, radii = np.zeros(shape), np.zeros(shape)
        for position, contribution in contributions.items():
            layer = self.layout.layers[position]
            squares[layer] += contribution.squared_norms().numpy(force=True)
            own = contribution.rounding_radii()
            if own is not None:
                radii[layer] += own.numpy(force=True) ** 2
        radii += ((self.block + 4) * _SINGLE_ROUNDOFF) ** 2 * squares
        bounds = np.sqrt(np.maximum(squares, radii / rounding_share(self.block) ** 2))
        finite = np.isfinite(bounds).all(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.minimum(grid.radii[:, None] / (bounds * _NORM_MARGIN), 1.0)
        weights[:, ~finite] = 0.0
        weights[:, n_examples:] = 0.0
        return torch.from_numpy(weights), torch.from_numpy(finite)


def check_radii(grid: SumGrid) -> None:
    """Clip norms are of a size at which single precision keeps its digits."""
    if not (grid.radii.min() >= _LEAST_RADIUS and grid.radii.max() <= 1 / _LEAST_RADIUS):
        msg = (
            f"clip norms must lie between {_LEAST_RADIUS:.0e} and {1 / _LEAST_RADIUS:.0e}, where "
            f"single precision keeps its digits; got {grid.radii.tolist()}"
        )
        raise ArgumentError(msg)
