# SPDX-License-Identifier: Apache-2.0
"""The slow road to clipped sums: one example at a time, by plain autograd, in float64."""

import copy
import math

import attrs
import numpy as np
import torch
from torch import nn

from pufferslice.sgd import FlatClipping, SumGrid
from pufferslice.torch.gradients import BlockGradients
from pufferslice.torch.layout import layout_of

FLAT = FlatClipping(norm=1.0)
FINE = 2.0**-44
"""A grid step over its radius: so fine that rounding to the grid hardly counts."""
FINER = 2.0**-50
TOLERANCES = {torch.float32: 1e-5, torch.float64: 2e-12}
"""Largest error of a clipped sum; in float64 the margin of the norms, 2^-40, is half of it."""


@attrs.frozen(eq=False)
class Case:
    """A model, a loss per example, and the examples of a block."""

    model: nn.Module
    loss_fn: object
    examples: tuple

    @property
    def block(self):
        return len(self.examples[-1])

    @property
    def dtype(self):
        return next(self.model.parameters()).dtype


def squared_loss(outputs, targets):
    return ((outputs - targets) ** 2).flatten(1).sum(1)


def inner_product_loss(outputs, targets):
    """The gradient of the outputs is the target: a test can choose it."""
    return (outputs * targets).flatten(1).sum(1)


def prepared(case, *, clipping=FLAT, non_finite="zero", shown=None):
    """Gradients of the case's model that have seen a block: its own, unless another is shown."""
    layout = layout_of(case.model, clipping)
    gradients = BlockGradients(
        case.model, case.loss_fn, layout, block=case.block, non_finite=non_finite
    )
    shown = shown or case.examples
    gradients.prepare(shown, len(shown[-1]))
    return gradients


def fine_grid(radii, fineness=FINE):
    radii = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    return SumGrid(steps=radii * fineness, radii=radii)


def block_sum(gradients, examples, radii=1.0, *, n_examples=None, fineness=FINE, seed=1):
    """The sum of a block in float64, on a fine grid."""
    n_examples = len(examples[-1]) if n_examples is None else n_examples
    grid = fine_grid(np.broadcast_to(radii, gradients.layout.n_layers), fineness)
    found = gradients.block_sum(examples, n_examples, grid, seed)
    return in_float(gradients.layout, found.integers, grid), found


def in_float(layout, integers, grid):
    """Integer sums times the grid step of each parameter's layer."""
    steps = np.empty(layout.n_parameters)
    for layer, where in zip(layout.layers, layout.slices, strict=True):
        steps[where] = grid.steps[layer]
    return integers * steps


def example_gradients(case, *, dtype=torch.float64, trained_only=True):
    """Gradients of each example by itself, shape (n_examples, n_parameters), in float64."""
    model = copy.deepcopy(case.model).to(dtype)
    if not trained_only:
        model.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(case.block):
        one = [
            whole[i : i + 1].to(dtype) if whole.is_floating_point() else whole[i : i + 1]
            for whole in case.examples
        ]
        loss = case.loss_fn(model(*one[:-1]), one[-1]).sum()
        found = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([gradient.to_dense().reshape(-1) for gradient in found]))
    return torch.stack(rows).double().numpy()


def layer_mask(layout, layer):
    """Which entries of the flat vector belong to a clipped layer."""
    mask = np.zeros(layout.n_parameters, dtype=bool)
    for own, where in zip(layout.layers, layout.slices, strict=True):
        mask[where] = own == layer
    return mask


def layer_norms(layout, rows):
    """Norms of each row in each clipped layer, shape (n_layers, n_examples)."""
    masks = [layer_mask(layout, layer) for layer in range(layout.n_layers)]
    return np.array([np.linalg.norm(rows[:, mask], axis=1) for mask in masks])


def clipping_factors(layout, rows, radii):
    """What each example is multiplied with in each layer, shape (n_layers, n_examples)."""
    with np.errstate(divide="ignore"):
        return np.minimum(1.0, np.asarray(radii)[:, None] / layer_norms(layout, rows))


def typical_radii(layout, rows, factor):
    """For each layer a multiple of the median norm, or of 1 where the norms are mere rounding."""
    medians = np.median(layer_norms(layout, rows), axis=1)
    return factor * np.where(medians > 1e-6, medians, 1.0)


def check_exact(case, *, clipping=FLAT, factor=1.0, n_examples=None, shown=None):
    """The sum of the block is that of the slow road, by parameters; returns the way taken.

    Errors are relative to the clipped norms that are added, of the parameter, or a twentieth of the
    whole gradient where a parameter's is nearly nothing. What autograd itself is off for the same
    example, in the precision of the model, is not held against the sum.
    """
    n_examples = case.block if n_examples is None else n_examples
    gradients = prepared(case, clipping=clipping, shown=shown)
    layout, rows = gradients.layout, example_gradients(case)
    radii = typical_radii(layout, rows, factor)
    fineness = FINER if case.dtype == torch.float64 else FINE
    total, found = block_sum(
        gradients, case.examples, radii, n_examples=n_examples, fineness=fineness
    )
    factors = clipping_factors(layout, rows, radii)[:, :n_examples]
    sizes = np.linalg.norm(example_gradients(case, trained_only=False), axis=1) / 20
    own_errors = np.linalg.norm(example_gradients(case, dtype=case.dtype) - rows, axis=1)
    for name, layer, where in zip(layout.names, layout.layers, layout.slices, strict=True):
        own = rows[:n_examples, where]
        off = np.linalg.norm(total[where] - factors[layer] @ own)
        parts = np.maximum(np.linalg.norm(own, axis=1), sizes[:n_examples])
        allowed = TOLERANCES[case.dtype] * parts + 4 * own_errors[:n_examples]
        quantised = math.sqrt(where.stop - where.start) * radii[layer] * fineness
        assert off <= factors[layer] @ allowed + quantised, (name, off, parts)
    assert found.n_non_finite == 0
    _check_losses(case, found.losses, n_examples)
    return gradients.path


def _check_losses(case, losses, n_examples):
    # with gradients, which a model may need
    found = case.loss_fn(case.model(*case.examples[:-1]), case.examples[-1])
    expected = found.detach()[:n_examples]
    assert losses.shape == (n_examples,)
    assert not losses.requires_grad
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


def dense_rows(gradients, examples):
    """What each example contributes to each parameter, written out."""
    _, contributions = gradients._isolation.contributions(examples, gradients._treatment, 1)
    return {i: contributions[i].dense().clone() for i in sorted(contributions)}
