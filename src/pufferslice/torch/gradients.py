# SPDX-License-Identifier: Apache-2.0
r"""Sums of clipped per-example gradients of one block, as integers on the plan's grid.

Each example is run as if it were alone (`isolation`); then norms are taken, and one weighted sum
per parameter.

Guarantee: with radius $r$ of a layer and the share $\rho$ of `sgd.grid.rounding_share`, the sum of
a block is $\sum_i v_i + e$, $v_i$ a function of example i alone with $\|v_i\| \le r$, and
$\|e\| \le \text{block} \cdot \rho r$, before it is rounded to the grid.
"""

import contextlib
import warnings
from typing import Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from pufferslice.arrays import Integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.sgd.grid import SumGrid, rounding_share
from pufferslice.torch.contributions import Contribution, Weights
from pufferslice.torch.isolation import WAYS, Isolation, LossFunction, Treatment, Way, seeded
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.norms import quantised, row_norms
from pufferslice.torch.structure import layer_problems

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
        self.layout: Final = layout
        self.block: Final = block
        self.non_finite: Final = non_finite
        self._roots: Final = (model, loss_fn)
        self._isolation: Final = Isolation(model, loss_fn, layout)
        self._treatment: Treatment | None = None
        self._modes: tuple[bool, ...] | None = None
        self.reckons_with_batch = False
        """Whether the model was seen to treat a block otherwise than its single examples."""
        # loads what kernels need to run: during a step it would lie between the activations
        row_norms(torch.zeros(1, 1))

    @property
    def path(self) -> Way | None:
        """How examples are run; None before `prepare`."""
        return None if self._treatment is None else self._treatment.way

    @property
    def method(self) -> str:
        """How examples are run, in words, and why not more quickly."""
        return (
            "not known before the first step" if self._treatment is None else str(self._treatment)
        )

    @property
    def draws_randomness(self) -> bool:
        """Whether the model draws random numbers."""
        return self._treatment is not None and self._treatment.draws_randomness

    @property
    def run_alone(self) -> bool:
        """Whether two blocks must not be run at once: generators are seeded for all threads."""
        return self._treatment is None or self._treatment.draws_randomness

    @property
    def is_prepared(self) -> bool:
        """Whether the model was looked at in the modes in which its modules are now."""
        return self._modes == self._modes_now()

    def prepare(self, examples: tuple[Tensor, ...], n_examples: int) -> None:
        """Run a block to see how the gradients of this model can be taken.

        Refuses what `Isolation.treatment` refuses. Show it the same examples whenever a run goes
        on, so that the way is the same.
        """
        problems = layer_problems(self._roots[0])
        if problems:
            msg = f"the model cannot be trained under a plan: {'; '.join(problems)}"
            raise ArgumentError(msg)
        before = self.path
        shown = tuple(one[: min(n_examples, self.block)] for one in examples)
        self._treatment = self._isolation.treatment(shown)
        self._modes = self._modes_now()
        self.reckons_with_batch = self._isolation.reckons_with_batch(shown, self._treatment)
        if self._treatment.is_slow and before is None:
            warnings.warn(f"training takes a slow way: {self.method}", stacklevel=2)

    def keep_to(self, path: str | None) -> None:
        """Go on in the way of an earlier look, unless a slower one was found to be needed now."""
        if self._treatment is not None and path == WAYS[-1] != self._treatment.way:
            self._treatment = self._treatment._replace(
                way=WAYS[-1], why="the run began so", draws_randomness=True
            )

    def _modes_now(self) -> tuple[bool, ...]:
        return tuple(
            module.training
            for root in self._roots
            if isinstance(root, nn.Module)
            for module in root.modules()
        )

    def block_sum(
        self, examples: tuple[Tensor, ...], n_examples: int, grid: SumGrid, seed: int
    ) -> BlockSum:
        """The clipped sum of the first `n_examples` examples; the others are not looked at.

        `seed` is that of the model's own random numbers, if it draws any.
        """
        if self._treatment is None:
            msg = "block_sum needs a block to be shown to prepare first"
            raise ArgumentError(msg)
        check_radii(grid)
        if not n_examples:
            nothing = np.zeros(self.layout.n_parameters, dtype=np.int64)
            return BlockSum(nothing, torch.zeros(0), 0)
        counted = tuple(one[:n_examples] for one in examples)
        with seeded(seed) if self.draws_randomness else contextlib.nullcontext():
            losses, found = self._isolation.contributions(counted, self._treatment, seed)
        with torch.no_grad():
            return self._clipped(losses, found, grid)

    def _clipped(
        self,
        losses: Tensor,
        contributions: dict[int, Contribution],
        grid: SumGrid,
    ) -> BlockSum:
        weights, finite = self._weights(contributions, len(losses), grid)
        n_non_finite = int((~finite).sum())
        if n_non_finite and self.non_finite == "stop":
            msg = (
                "an example has a gradient that is NaN or infinite, and the plan says 'stop'; "
                "nothing of this step was used. Use a loss and inputs whose gradients are always "
                "finite, or a plan with non_finite='zero'"
            )
            raise TrainingError(msg)
        integers = np.zeros(self.layout.n_parameters, dtype=np.int64)
        by_layer = [Weights(row) for row in weights]
        for position, contribution in contributions.items():
            layer = self.layout.layers[position]
            kept = contribution.masked(finite) if n_non_finite else contribution
            sums = kept.weighted_sum(by_layer[layer])
            place = integers[self.layout.place_of(position, sums)]
            quantised(sums, float(grid.steps[layer]), place)
        return BlockSum(integers, losses, n_non_finite)

    def _weights(
        self, contributions: dict[int, Contribution], n_examples: int, grid: SumGrid
    ) -> tuple[Tensor, Tensor]:
        """Weight of each example in each layer, and which examples have finite gradients."""
        shape = (self.layout.n_layers, n_examples)
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
        return torch.from_numpy(weights), torch.from_numpy(finite)


def check_radii(grid: SumGrid) -> None:
    """Clip norms are of a size at which single precision keeps its digits."""
    if not (grid.radii.min() >= _LEAST_RADIUS and grid.radii.max() <= 1 / _LEAST_RADIUS):
        msg = (
            f"clip norms must lie between {_LEAST_RADIUS:.0e} and {1 / _LEAST_RADIUS:.0e}, where "
            f"single precision keeps its digits; got {grid.radii.tolist()}"
        )
        raise ArgumentError(msg)
