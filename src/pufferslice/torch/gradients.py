# SPDX-License-Identifier: Apache-2.0
r"""Sums of clipped per-example gradients of one block, as integers on the plan's grid.

One forward pass, one backward pass for the gradients of the inputs, then norms and a weighted sum
per parameter. Where a model uses its parameters in a way that `operations` does not know, every
example is run by itself instead (`per_example`): the sums are the same, the time is not.

Guarantee: with radius $r$ of a layer and the share $\rho$ of `sgd.grid.rounding_share`, the sum of
a block is $\sum_i v_i + e$, $v_i$ a function of example i alone with $\|v_i\| \le r$, and
$\|e\| \le \text{block} \cdot \rho r$, before it is rounded to the grid.
"""

import threading
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from pufferslice.arrays import Integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.sgd.grid import SumGrid, rounding_share
from pufferslice.torch.contributions import Contribution, Scratch, Weights
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.norms import quantised, row_norms
from pufferslice.torch.operations import UnsupportedUseError
from pufferslice.torch.per_example import (
    LossFunction,
    as_dense,
    one_by_one_contributions,
    per_example_contributions,
)
from pufferslice.torch.recording import Recorder, Refusals, WithoutDropout

Path = Literal["recorded", "per_example", "one_by_one"]
"""How gradients are taken: all at once, by torch.func, or in a loop; quickest first."""

_BY_EXAMPLE: Final[tuple[Path, ...]] = ("per_example", "one_by_one")
_CONTRIBUTIONS: Final = {
    "per_example": per_example_contributions,
    "one_by_one": one_by_one_contributions,
}

_NORM_MARGIN: Final = 1 + 2.0**-40
"""Covers the roundings of a square root, a sum over parameters and a division."""

_AGREEMENT: Final = 1e-3
"""How far two float32 ways to the same sum of gradients may be apart, relative to all parts."""

_LEAST_RADIUS: Final = 2.0**-40
_SINGLE_ROUNDOFF: Final = 2.0**-24

_NOTHING: Final = 1e-5
"""A gradient that is smaller than this, beside the largest, may be nothing but rounding."""


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
        self.model = model
        self.loss_fn = loss_fn
        self.layout = layout
        self.block = block
        self.non_finite = non_finite
        self.path: Path | None = None
        self.draws_randomness = False
        self._of_thread = threading.local()
        # loads what kernels need to run: during a step it would lie between the activations
        row_norms(torch.zeros(1, 1))

    def prepare(self, examples: tuple[Tensor, ...], n_examples: int) -> None:
        """Look at how the model treats a block, and choose the way its gradients are taken.

        Refuses a loss that is not per example, a model that mixes examples or keeps something of
        them in a buffer, and a parameter that the loss does not depend on. The random numbers that
        the model draws here are put back. Show it the same examples whenever a run goes on, so
        that the way is the same.
        """
        state = torch.get_rng_state()
        before = {name: value.clone() for name, value in self._values()}
        try:
            usable, n_distinct = self._usable(_filled(examples, n_examples, self.block))
            self._check_unchanged(before)
            self.draws_randomness = not torch.equal(state, torch.get_rng_state())
            self._check_separate(usable)
            self.path = self._chosen_path(usable, recorded=n_distinct > 1)
        finally:
            torch.set_rng_state(state)
            self._put_back(before)
            # with the buffers of blocks of other sizes
            self._of_thread = threading.local()

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
        if path != "recorded":
            by_example = _CONTRIBUTIONS[path]
            return by_example(self.model, self.loss_fn, self.layout, examples)
        recorder = Recorder(self.layout, len(examples[-1]), self._scratch())
        with torch.enable_grad(), recorder:
            losses = self.loss_fn(self.model(*examples[:-1]), examples[-1])
        with torch.enable_grad():
            total = losses.sum()
        torch.autograd.grad(total, recorder.anchor, allow_unused=True)
        with torch.no_grad():
            return losses.detach(), recorder.contributions()

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

    def _usable(self, examples: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], int]:
        """The examples with finite losses, filled up, a different one last; and how many differ."""
        with torch.no_grad():
            losses = self._losses(examples)
        if not isinstance(losses, Tensor) or losses.shape != (self.block,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            msg = (
                f"loss_fn must give one loss per example, shape ({self.block},), got {shape}; "
                "use reduction='none' (a mean over the batch hides what each record does), and "
                "sum over everything but the examples"
            )
            raise ArgumentError(msg)
        finite = torch.isfinite(losses).nonzero().reshape(-1)
        if not len(finite):
            return examples, 1
        kept = tuple(one[finite] for one in examples)
        other = [i for i in range(1, len(finite)) if _differ(kept, i)]
        if not other:
            return _filled(kept, len(finite), self.block), 1
        filled = _filled(kept, len(finite), self.block)
        last = tuple(torch.cat([one[:-1], one[other[0]][None]]) for one in filled)
        return last, 2

    def _values(self) -> Iterator[tuple[str, Tensor]]:
        with torch.no_grad():
            yield from self.model.named_buffers()
            yield from self.model.named_parameters()

    def _put_back(self, before: dict[str, Tensor]) -> list[str]:
        """Restore what is not as it was, and say what that is."""
        changed = []
        for name, value in self._values():
            if not torch.equal(value.detach().nan_to_num(), before[name].nan_to_num()):
                changed.append(name)
                value.detach().copy_(before[name])
        return changed

    def _check_unchanged(self, before: dict[str, Tensor]) -> None:
        """Running the model left its buffers and parameters alone; what it changed is put back."""
        changed = self._put_back(before)
        if changed:
            msg = (
                f"{', '.join(map(repr, changed))} changes when the model runs: it keeps something "
                "of the records outside the noise. Use a layer without running statistics"
            )
            raise ArgumentError(msg)

    def _check_separate(self, examples: tuple[Tensor, ...]) -> None:
        """The loss of an example does not change when other examples do."""
        state = torch.get_rng_state()
        losses = []
        for block in _variants(examples):
            torch.set_rng_state(state)
            with torch.no_grad():
                losses.append(self._losses(block).nan_to_num())
        if not _are_separate(losses):
            msg = (
                "the loss of an example changes when another example of its block is replaced: "
                "the model or loss_fn mixes examples, so no record's influence can be bounded. "
                "Use layers that treat examples one by one, such as GroupNorm for BatchNorm"
            )
            raise ArgumentError(msg)

    def _losses(self, examples: tuple[Tensor, ...]) -> Tensor:
        with Refusals():
            return self.loss_fn(self.model(*examples[:-1]), examples[-1])

    def _chosen_path(self, examples: tuple[Tensor, ...], *, recorded: bool) -> Path:
        """The first way that runs, keeps examples apart and gives the ordinary gradients."""
        orders = (torch.arange(self.block), torch.arange(self.block).flip(0))
        blocks = [tuple(one[order] for one in examples) for order in orders]
        plain = [self._plain_gradients(block) for block in blocks]
        if recorded and self._can_record(examples):
            pairs = zip(blocks, plain, strict=True)
            if all(self._agrees(block, "recorded", gradients) for block, gradients in pairs):
                return "recorded"
        for path in _BY_EXAMPLE:
            try:
                alike = self._agrees(examples, path, plain[0])
            except RuntimeError:  # torch.func cannot run everything that autograd can
                if path == _BY_EXAMPLE[-1]:
                    raise
                continue
            if alike or self.draws_randomness:
                return path
        msg = (
            "the gradients of single examples do not add up to the gradient of the block: the "
            "model treats a block differently from its examples"
        )
        raise ArgumentError(msg)

    def _can_record(self, examples: tuple[Tensor, ...]) -> bool:
        """Every use of a parameter is known, and no gradient changes with another example."""
        state = torch.get_rng_state()
        try:
            self._contributions(tuple(torch.cat([one, one[:1]]) for one in examples), "recorded")
            variants = []
            for block in _variants(examples):
                torch.set_rng_state(state)
                variants.append(self._recorded_norms(block))
        except (UnsupportedUseError, RuntimeError):  # RuntimeError: torch's own, in what is watched
            return False
        finally:
            torch.set_rng_state(state)
        by_parameter = zip(*variants, strict=True)
        return all(_are_separate(list(norms)) for norms in by_parameter)

    def _recorded_norms(self, examples: tuple[Tensor, ...]) -> list[Tensor]:
        """Squared norms of the examples for each parameter in turn."""
        _, found = self._contributions(examples, "recorded")
        return [found[i].squared_norms().nan_to_num() for i in sorted(found)]

    def _plain_gradients(self, examples: tuple[Tensor, ...]) -> list[Tensor]:
        """Ordinary gradients of the losses, each with a weight of its own."""
        state = torch.get_rng_state()
        with torch.enable_grad(), WithoutDropout():
            losses = self.loss_fn(self.model(*examples[:-1]), examples[-1])
            torch.set_rng_state(state)
            total = (losses * self._own_weights().to(losses)).sum()
        gradients = torch.autograd.grad(total, self.layout.parameters, allow_unused=True)
        missing = [n for n, g in zip(self.layout.names, gradients, strict=True) if g is None]
        if missing:
            msg = (
                f"parameter {missing[0]!r} has no gradient: the loss does not depend on it. Freeze "
                "it with requires_grad_(False), or use it in the model"
            )
            raise ArgumentError(msg)
        return [as_dense(g) for g in gradients if g is not None]

    def _own_weights(self) -> Tensor:
        """A different weight for each example, so that a mix-up of two of them shows."""
        return torch.linspace(0.5, 1.5, self.block, dtype=torch.float64)

    def _agrees(self, examples: tuple[Tensor, ...], path: Path, plain: list[Tensor]) -> bool:
        """Whether a way gives the ordinary gradients, each example with its own weight."""
        state = torch.get_rng_state()
        with WithoutDropout():
            _, found = self._contributions(examples, path)
        torch.set_rng_state(state)
        if len(found) != len(plain):
            return False
        weights = self._own_weights()
        with torch.no_grad():
            parts = [float(found[i].squared_norms().sqrt() @ weights) for i in range(len(plain))]
            sums = [found[i].weighted_sum(Weights(weights)).double() for i in range(len(plain))]
        if not np.isfinite(parts).all():
            return path != "recorded"
        apart = [
            float((total - gradient.double().reshape(-1)).norm())
            for total, gradient in zip(sums, plain, strict=True)
        ]
        return all(
            off <= _AGREEMENT * part + _NOTHING * max(parts)
            for off, part in zip(apart, parts, strict=True)
        )


def check_radii(grid: SumGrid) -> None:
    """Clip norms are of a size at which single precision keeps its digits."""
    if not (grid.radii.min() >= _LEAST_RADIUS and grid.radii.max() <= 1 / _LEAST_RADIUS):
        msg = (
            f"clip norms must lie between {_LEAST_RADIUS:.0e} and {1 / _LEAST_RADIUS:.0e}, where "
            f"single precision keeps its digits; got {grid.radii.tolist()}"
        )
        raise ArgumentError(msg)


def _filled(examples: tuple[Tensor, ...], n_examples: int, block: int) -> tuple[Tensor, ...]:
    """The first examples, filled up to a whole block with the first one."""
    given = tuple(one[: min(n_examples, block)] for one in examples)
    short = block - len(given[-1])
    return tuple(torch.cat([one, one[:1].expand(short, *one.shape[1:])]) for one in given)


def _differ(examples: tuple[Tensor, ...], index: int) -> bool:
    return any(not torch.equal(one[0], one[index]) for one in examples)


def _variants(examples: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """A block, the same with its first example replaced, and with all others replaced."""
    first = tuple(torch.cat([one[-1:], one[1:]]) for one in examples)
    others = tuple(one[:1].expand_as(one).clone() for one in examples)
    return [examples, first, others]


def _are_separate(values: list[Tensor]) -> bool:
    """Whether values of examples, one row per variant, change only with their own example."""
    whole, first, others = values
    return torch.equal(whole[1:], first[1:]) and torch.equal(whole[:1], others[:1])
