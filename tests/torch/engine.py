# SPDX-License-Identifier: Apache-2.0
"""Clipped sums of examples that a test makes up, without a trainer."""

import copy

import numpy as np
import torch
from torch.utils import _pytree as pytree

from pufferslice.learning import FlatClipping
from pufferslice.learning.integer_sums import SumGrid
from pufferslice.torch.batches import Batch, Source, blocks_of
from pufferslice.torch.clipping import ClippedSums
from pufferslice.torch.distributed import Processes
from pufferslice.torch.layout import layout_of

RADIUS = 0.5
STEP = 2.0**-40


def grid_of(radii=RADIUS, steps=STEP):
    return SumGrid(steps=np.atleast_1d(steps), radii=np.atleast_1d(radii))


class Engine:
    """A model and a loss, ready to sum examples of the shapes of those shown."""

    def __init__(
        self, model, loss_fn, examples, *, clipping=None, block=None, non_finite="zero", in_flight=1
    ):
        self.layout = layout_of(model, clipping or FlatClipping(norm=1.0))
        self.block = block or len(pytree.tree_leaves(examples)[0])
        self.sums = ClippedSums(
            model,
            loss_fn,
            self.layout,
            non_finite=non_finite,
            processes=Processes(0, 1),
            in_flight=in_flight,
        )
        self.prepare(examples)

    def prepare(self, examples):
        self.sums.prepare(pytree.tree_map(lambda one: one[:1], examples))

    @property
    def method(self):
        return self.sums.method

    def step(self, examples, grid=None, seed=7):
        """All that a batch of the examples gives."""
        n = len(pytree.tree_leaves(examples)[0])
        blocks = blocks_of(np.arange(n), self.block, lambda number: number)
        fetched = {
            block.number: pytree.tree_map(lambda one: one[list(block.indices)], examples)  # noqa: B023
            for block in blocks
        }
        batch = Batch(
            step=0, indices=np.arange(n), source=Source(None), blocks=blocks, fetched=fetched
        )
        return self.sums.of(batch, grid or grid_of(), self.block, lambda number: seed + number)

    def sum(self, examples, grid=None, seed=7):
        """The clipped sum, as numbers."""
        grid = grid or grid_of()
        steps = np.repeat(grid.steps, self.layout.sizes) if len(grid.steps) > 1 else grid.steps[0]
        return self.step(examples, grid, seed).integers * steps


def clipped_rows(model, loss_fn, layout, examples, radius=RADIUS):
    """Gradients of single examples by plain autograd on copies of the model, clipped and added."""
    total = np.zeros(layout.n_parameters)
    for i in range(len(pytree.tree_leaves(examples)[0])):
        own, own_loss = copy.deepcopy((model, loss_fn))
        parameters = [own.get_parameter(name) for name in layout.names]
        *inputs, target = (one[i : i + 1].clone() for one in examples)
        own_loss(own(*inputs), target).sum().backward()
        found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        row = torch.cat([one.to_dense().reshape(-1) for one in found]).double().numpy()
        total += row * min(1.0, radius / max(np.linalg.norm(row), 1e-300))
    return total
