# SPDX-License-Identifier: Apache-2.0
"""A model and the loss of each example, and three ways to what the examples contribute."""

import itertools
from collections.abc import Iterator
from typing import Final, Literal, final

import attrs
import torch
from torch import Tensor, nn

from pufferslice.torch.contributions import Contribution, Scratch
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.per_example import (
    LossFunction,
    one_by_one_contributions,
    per_example_contributions,
)
from pufferslice.torch.recording import Recorder

Path = Literal["recorded", "per_example", "one_by_one"]
"""How gradients are taken: all at once, by torch.func, or in a loop; quickest first."""

_BY_EXAMPLE: Final = {
    "per_example": per_example_contributions,
    "one_by_one": one_by_one_contributions,
}


@final
@attrs.frozen(eq=False, repr=False)
class Objective:
    """What is differentiated: `loss_fn(model(*inputs), target)`, by the parameters of a layout."""

    model: nn.Module
    loss_fn: LossFunction
    layout: ParameterLayout
    constants: tuple[Tensor, ...] = ()
    """Tensors that runs have in common, so that they hold nothing of the examples."""

    def losses(self, examples: tuple[Tensor, ...]) -> Tensor:
        """One loss per example, with its graph."""
        return self.loss_fn(self.model(*examples[:-1]), examples[-1])

    def contributions(
        self, examples: tuple[Tensor, ...], path: Path, scratch: Scratch
    ) -> tuple[Tensor, dict[int, Contribution]]:
        """Losses, and what each example contributes to each parameter, by its position."""
        if path != "recorded":
            by_example = _BY_EXAMPLE[path]
            return by_example(self.model, self.loss_fn, self.layout, examples)
        recorder = Recorder(self.layout, len(examples[-1]), scratch, self._lasting)
        with torch.enable_grad(), recorder:
            losses = self.losses(examples)
        with torch.enable_grad():
            total = losses.sum()
        torch.autograd.grad(total, recorder.leaves, allow_unused=True)
        with torch.no_grad():
            return losses.detach(), recorder.contributions()

    def _lasting(self) -> Iterator[Tensor]:
        return itertools.chain(self.constants, self.model.buffers())
