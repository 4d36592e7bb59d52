# SPDX-License-Identifier: Apache-2.0
"""A discriminator that sees real and made-up images in one step; its generator needs no noise."""

import pytest
import torch
from tests.torch.small import N_RECORDS, plan_of
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from pufferslice.errors import ArgumentError
from pufferslice.learning import Poisson
from pufferslice.torch import Trainer

N_LATENT, N_STEPS = 5, 4


def generator_of():
    return nn.Sequential(
        nn.ConvTranspose2d(N_LATENT, 4, 4, bias=False),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1, bias=False),
        nn.Tanh(),
    )


def discriminator_of():
    return nn.Sequential(
        nn.Conv2d(1, 4, 4, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 1, 4, bias=False),
        nn.Flatten(),
    )


def latent(n):
    return torch.randn(n, N_LATENT, 1, 1)


class RealAndFake(nn.Module):
    """One step's two forward passes: scores of the images, and of as many made-up ones."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator

    def forward(self, real):
        fake = self.generator(latent(len(real)))
        return self.discriminator(real), self.discriminator(fake)


def loss_fn(scores, _):
    real, fake = scores
    score = functional.binary_cross_entropy_with_logits
    of_real = score(real, torch.ones_like(real), reduction="none")
    return (of_real + score(fake, torch.zeros_like(fake), reduction="none")).sum(1)


def images():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(
        torch.rand(N_RECORDS, 1, 8, 8, generator=generator), torch.zeros(N_RECORDS)
    )


def gan():
    torch.manual_seed(0)
    generator, discriminator = generator_of(), discriminator_of()
    plan = plan_of(N_STEPS, Poisson(n_records=N_RECORDS, rate=0.2))
    optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
    both = RealAndFake(discriminator, generator.requires_grad_(False))
    return both, Trainer(both, loss_fn, optimizer, plan)


def train_generator(both, optimizer):
    """An ordinary step, which sees the data by the discriminator's weights alone."""
    both.generator.requires_grad_(True)
    optimizer.zero_grad()
    scores = both.discriminator(both.generator(latent(16)))
    loss = functional.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
    loss.backward(inputs=list(both.generator.parameters()))
    optimizer.step()
    both.generator.requires_grad_(False)


def test_discriminator_and_generator_take_turns():
    both, trainer = gan()
    optimizer = torch.optim.Adam(both.generator.parameters(), lr=0.01)
    before = [p.detach().clone() for p in both.parameters()]
    for batch in trainer.batches(images()):
        trainer.step(batch)
        train_generator(both, optimizer)
    assert trainer.is_finished
    assert trainer.gradient_method == "all examples of a block at once"
    pairs = zip(before, both.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_a_generator_that_is_left_trainable_is_refused():
    both, trainer = gan()
    batches = trainer.batches(images())
    trainer.step(next(batches))
    both.generator.requires_grad_(True)
    with pytest.raises(ArgumentError, match="trainable parameters"):
        trainer.step(next(batches))
