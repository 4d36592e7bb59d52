# SPDX-License-Identifier: Apache-2.0
"""Gradients of any model, one example at a time, by torch.func: exact, general, and slower."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from pufferslice.torch.contributions import Contribution, Dense
from pufferslice.torch.layout import ParameterLayout

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Takes what the model gives and the targets; gives one loss per example."""


def per_example_contributions(
    model: nn.Module,
    loss_fn: LossFunction,
    layout: ParameterLayout,
    examples: tuple[Tensor, ...],
) -> tuple[Tensor, dict[int, Contribution]]:
    """Losses, and what each example contributes to each parameter; the model sees single examples.

    Guarantee: by construction nothing of one example reaches the gradient of another.
    """
    parameters = {
        name: parameter.detach()
        for name, parameter in zip(layout.names, layout.parameters, strict=True)
    }

    def loss_of_one(given: dict[str, Tensor], inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        outputs = functional_call(model, given, tuple(one.unsqueeze(0) for one in inputs))
        loss: Tensor = loss_fn(outputs, target.unsqueeze(0)).sum()
        return loss

    mapped = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0), randomness="different")
    with torch.enable_grad(), warnings.catch_warnings():
        # torch says where vmap runs a loop of its own; nothing can be done about it here
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        gradients, losses = mapped(parameters, examples[:-1], examples[-1])
    found: dict[int, Contribution] = {
        position: Dense(gradients[name].reshape(len(losses), -1).contiguous())
        for position, name in enumerate(layout.names)
    }
    return losses.detach(), found


def one_by_one_contributions(
    model: nn.Module,
    loss_fn: LossFunction,
    layout: ParameterLayout,
    examples: tuple[Tensor, ...],
) -> tuple[Tensor, dict[int, Contribution]]:
    """The same by ordinary gradients in a loop, for what torch.func cannot run; slowest of all."""
    rows, losses = [], []
    for i in range(len(examples[-1])):
        single = tuple(one[i : i + 1] for one in examples)
        with torch.enable_grad():
            loss = loss_fn(model(*single[:-1]), single[-1]).sum()
        gradients = torch.autograd.grad(loss, layout.parameters, materialize_grads=True)
        rows.append([as_dense(g).reshape(-1) for g in gradients])
        losses.append(loss.detach())
    found: dict[int, Contribution] = {
        position: Dense(torch.stack([row[position] for row in rows]))
        for position in range(len(layout.parameters))
    }
    return torch.stack(losses), found


def as_dense(gradient: Tensor) -> Tensor:
    """A gradient as an ordinary tensor; sparse embeddings give sparse ones."""
    return gradient.to_dense() if gradient.is_sparse else gradient
