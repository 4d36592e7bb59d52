# SPDX-License-Identifier: Apache-2.0
"""A canary for audits of training: the smallest run that attains a plan's whole cost."""

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_one_of
from pufferslice.errors import ArgumentError
from pufferslice.learning import FlatClipping, TrainingPlan
from pufferslice.torch.clipping import one_thread
from pufferslice.torch.trainer import Trainer

WORLDS: Final = ("first", "second")


def release_canary(world: str, plan: TrainingPlan) -> Floats:
    r"""Train a canary once under the plan, and return the number that reveals the world.

    The model has one weight. A differing record moves it by the full clip norm, up in the first
    world and down in the second; the others do not move it. This attains the worst case of every
    accountant. The number is the sum of the moves of the weight, each over the variance of its
    noise; it is a function of the weights after each step.

    Guarantee: with the same batches in every step (all records drawn), the two numbers are Gaussian
    and their Rényi divergence is the plan's cost, up to the rounding of the radius.

    Needs: flat clipping. It uses no data, so the results are public. In `TrainingRuns` it is
    `pufferslice.torch.canary:release_canary`.
    """
    check_one_of(WORLDS, world=world)
    if not isinstance(plan.clipping, FlatClipping):
        raise ArgumentError(
            "a canary has one weight and needs flat clipping; audit the plan with "
            "attrs.evolve(plan, clipping=FlatClipping(norm=1.0)), which has the same cost"
        )
    distribution, norm = plan.differing, plan.clipping.norm
    distribution.check_whole()
    shares = np.exp(distribution.log_probabilities)
    n_differing = int(np.random.default_rng().choice(distribution.counts, p=shares / shares.sum()))
    inputs = torch.zeros(plan.sampling.n_records, 1)
    inputs[:n_differing] = 1.0 if world == "first" else -1.0
    # Twice the norm, so that clipping determines how far a record moves the weight.
    records = TensorDataset(inputs, torch.full((len(inputs),), 2 * norm))
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    positions = [0.0]
    with one_thread():
        trainer = Trainer(model, _push, optimizer, plan, blocks_in_flight=1)
        for batch in trainer.batches(records):
            trainer.step(batch)
            positions.append(float(model.weight.detach()))
    weights = (plan.noise_multipliers.min() / plan.noise_multipliers) ** 2
    # The weight moves against the gradient, at a learning rate of 1.
    return np.array([float(weights @ -np.diff(positions)) * plan.divisor / norm])


def _push(outputs: Tensor, strengths: Tensor) -> Tensor:
    """A loss whose gradient is the record, at any weight."""
    return outputs[:, 0] * strengths
