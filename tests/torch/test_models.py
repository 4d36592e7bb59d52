# SPDX-License-Identifier: Apache-2.0
"""The models: their parts as the paper has them, each example alone, one private step each."""

import math

import pytest
import torch
from tests.torch.small import plan_of, train, trainer_of
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice.errors import TrainingError
from pufferslice.learning import Poisson
from pufferslice.torch.models import (
    PaddingShortcut,
    ResidualBlock,
    Standardise,
    cross_entropy,
    linear_model,
    n_parameters,
    resnet22,
    small_convnet,
)

DIGITS, COLOURS = (1, 8, 8), (3, 32, 32)
MODELS = {
    "linear": (lambda: linear_model(DIGITS, 10), DIGITS),
    "small": (lambda: small_convnet(DIGITS, 10, seed=3), DIGITS),
    "resnet22": (lambda: resnet22(seed=3), COLOURS),
}


@pytest.fixture(params=MODELS)
def case(request):
    build, shape = MODELS[request.param]
    return build(), shape


def test_parameters_are_counted_by_hand():
    first = 3 * 16 * 9 + 3 * 2 * 16 * 16 * 9
    second = 16 * 32 * 9 + 7 * 32 * 32 * 9
    third = 32 * 64 * 9 + 5 * 64 * 64 * 9
    model = resnet22(seed=0)
    assert n_parameters(model) == first + second + third + 576 * 10 + 10 == 291_898
    assert len(list(model.parameters())) == 23, "none belongs to a norm"
    assert n_parameters(linear_model(DIGITS, 10)) == 650
    assert n_parameters(small_convnet(DIGITS, 10, seed=0)) == 8 * 9 + 8 + 128 * 10 + 10 == 1_370


def test_stages_of_the_resnet():
    model = resnet22(seed=0)
    blocks = [layer for layer in model if isinstance(layer, ResidualBlock)]
    assert [block.conv1.out_channels for block in blocks] == [16] * 3 + [32] * 4 + [64] * 3
    assert [block.conv1.stride[0] for block in blocks] == [1] * 3 + [2, 1, 1, 1] + [2, 1, 1]
    images, shapes = torch.randn(2, *COLOURS), []
    for layer in model:
        images = layer(images)
        shapes.append(tuple(images.shape[1:]))
    assert shapes[0] == (16, 32, 32)
    assert shapes[-4:] == [(64, 8, 8), (64, 3, 3), (576,), (10,)]
    assert resnet22(7, seed=0)(torch.randn(1, 3, 40, 24)).shape == (1, 7)


def test_a_block_is_the_papers_formula():
    block = ResidualBlock(4, 8, 2)
    images = torch.randn(2, 4, 6, 6)
    functional = nn.functional
    inner = functional.elu(functional.conv2d(images, block.conv1.weight, stride=2, padding=1))
    inner = functional.conv2d(functional.group_norm(inner, 4), block.conv2.weight, padding=1)
    padded = torch.zeros(2, 8, 3, 3)
    padded[:, 2:6] = images[:, :, ::2, ::2]
    summed = functional.group_norm(inner, 4) + padded
    wanted = functional.group_norm(functional.elu(summed), 4)
    assert torch.allclose(block(images), wanted, atol=1e-6)


def test_parts_by_hand():
    images = torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[5.0, 5.0], [5.0, 5.0]]])
    std = math.sqrt((4 + 1 + 0 + 9) / 3)
    wanted = [[(x - 3) / (std + 1e-6) for x in (1, 2, 3, 6)], [0, 0, 0, 0]]
    assert torch.allclose(Standardise()(images), torch.tensor(wanted))
    padded = PaddingShortcut(2, 5, 1)(torch.ones(1, 2, 1, 1))
    assert padded[0, :, 0, 0].tolist() == [0, 1, 1, 0, 0]


def test_a_label_out_of_range_is_not_shown():
    with pytest.raises(TrainingError, match="targets must be from 0 to 1") as caught:
        cross_entropy(torch.zeros(3, 2), torch.tensor([0, 77, 1]))
    assert "77" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "build", [lambda seed: resnet22(seed=seed), lambda seed: small_convnet(DIGITS, 10, seed=seed)]
)
def test_weights_are_a_function_of_the_seed_and_of_nothing_else(build):
    states = []
    for global_seed, seed in ((0, 5), (1, 5), (0, 6)):
        before = torch.manual_seed(global_seed).get_state()
        states.append(torch.cat([p.flatten() for p in build(seed).parameters()]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_first_weights():
    model = resnet22(seed=2)
    block = model[-4]
    assert block.conv2.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
    assert model[-1].weight.std().item() == pytest.approx(math.sqrt(2 / 576), rel=0.05)
    assert not model[-1].bias.any()
    assert not any(p.any() for p in linear_model(DIGITS, 10).parameters())


def test_an_example_does_not_reach_the_output_of_another(case):
    model, shape = case
    nn.init.normal_(model[-1].weight)
    images = torch.randn(4, *shape)
    alone = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(model(images), alone, atol=1e-4)
    assert alone.any()


def test_a_private_step(case):
    model, shape = case
    plan = plan_of(n_steps=1, sampling=Poisson(n_records=12, rate=0.8))
    trainer, _ = trainer_of(plan, model=model, loss_fn=cross_entropy)
    before = [p.detach().clone() for p in model.parameters()]
    train(trainer, TensorDataset(torch.randn(12, *shape), torch.arange(12) % 10))
    assert trainer.n_taken == 1
    for old, new in zip(before, model.parameters(), strict=True):
        assert new.isfinite().all()
        assert (old != new).any()
