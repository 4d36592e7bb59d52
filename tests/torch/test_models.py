# SPDX-License-Identifier: Apache-2.0
"""The models: their parts as the paper has them, no mixing of examples, one private step each."""

import math

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.guarantee import Guarantee
from pufferslice.sgd import Amplified, Poisson, exactly, plan_training
from pufferslice.torch import OpacusRun, PlanAccountant, opacus_noise_multiplier, opacus_sampling
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
from pufferslice.torch.trainer import Trainer

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


def records(shape, n_records, seed=1):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n_records, *shape, generator=generator)
    return TensorDataset(images, torch.randint(10, (n_records,), generator=generator))


class TestResnet:
    def test_parameters_are_counted_by_hand(self):
        stem = 3 * 16 * 9
        first = 3 * 2 * 16 * 16 * 9
        second = 16 * 32 * 9 + 7 * 32 * 32 * 9
        third = 32 * 64 * 9 + 5 * 64 * 64 * 9
        head = 576 * 10 + 10
        assert n_parameters(resnet22(seed=0)) == stem + first + second + third + head == 291_898

    def test_it_has_23_tensors_and_none_of_them_belongs_to_a_norm(self):
        names = [name for name, _ in resnet22(seed=0).named_parameters()]
        assert len(names) == 23
        assert not [name for name in names if "norm" in name]

    def test_stages(self):
        model = resnet22(seed=0)
        blocks = [layer for layer in model if isinstance(layer, ResidualBlock)]
        assert [block.conv1.out_channels for block in blocks] == [16] * 3 + [32] * 4 + [64] * 3
        assert [block.conv1.stride[0] for block in blocks] == [1] * 3 + [2, 1, 1, 1] + [2, 1, 1]
        for block in blocks:
            assert block.conv2.stride == (1, 1)
            assert all(norm.num_groups == 4 for norm in (block.norm1, block.norm2, block.norm3))
        shapes = []
        handles = [
            layer.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[1:])))
            for layer in model
        ]
        model(torch.randn(2, *COLOURS))
        for handle in handles:
            handle.remove()
        assert shapes[0] == (16, 32, 32)
        assert shapes[-4] == (64, 8, 8)
        assert shapes[-3:] == [(64, 3, 3), (576,), (10,)]

    def test_a_block_is_the_papers_formula(self):
        block = ResidualBlock(4, 8, 2)
        images = torch.randn(2, 4, 6, 6)
        functional = nn.functional
        inner = functional.elu(functional.conv2d(images, block.conv1.weight, stride=2, padding=1))
        inner = functional.group_norm(inner, 4)
        inner = functional.conv2d(inner, block.conv2.weight, padding=1)
        padded = torch.zeros(2, 8, 3, 3)
        padded[:, 2:6] = images[:, :, ::2, ::2]
        summed = functional.group_norm(inner, 4) + padded
        wanted = functional.group_norm(functional.elu(summed), 4)
        assert torch.allclose(block(images), wanted, atol=1e-6)

    def test_other_images_and_classes(self):
        assert resnet22(7, seed=0)(torch.randn(1, 3, 40, 24)).shape == (1, 7)


class TestParts:
    def test_standardised_by_hand(self):
        out = Standardise()(torch.tensor([[[1.0, 2.0], [3.0, 6.0]], [[5.0, 5.0], [5.0, 5.0]]]))
        std = math.sqrt((4 + 1 + 0 + 9) / 3)
        wanted = [[(x - 3) / (std + 1e-6) for x in (1, 2, 3, 6)], [0, 0, 0, 0]]
        assert torch.allclose(out, torch.tensor(wanted))

    def test_odd_padding_goes_behind(self):
        out = PaddingShortcut(2, 5, 1)(torch.ones(1, 2, 1, 1))
        assert out[0, :, 0, 0].tolist() == [0, 1, 1, 0, 0]

    def test_cross_entropy_is_per_example(self):
        logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3)]])
        found = cross_entropy(logits, torch.tensor([0, 1]))
        assert found.tolist() == pytest.approx([math.log(2), math.log(4 / 3)])

    def test_a_label_out_of_range_is_not_shown(self):
        with pytest.raises(TrainingError, match="targets must be from 0 to 1") as caught:
            cross_entropy(torch.zeros(3, 2), torch.tensor([0, 77, 1]))
        assert "77" not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_linear_starts_at_zero_and_small_is_counted(self):
        linear = linear_model(DIGITS, 10)
        assert n_parameters(linear) == 650
        assert not any(p.count_nonzero() for p in linear.parameters())
        assert n_parameters(small_convnet(DIGITS, 10, seed=0)) == 8 * 9 + 8 + 128 * 10 + 10 == 1_370


def test_weights_are_a_function_of_the_seed_and_of_nothing_else():
    for build in (
        lambda seed: resnet22(seed=seed),
        lambda seed: small_convnet(DIGITS, 10, seed=seed),
    ):
        torch.manual_seed(0)
        first, state = build(5).state_dict(), torch.get_rng_state()
        torch.manual_seed(1)
        second = build(5).state_dict()
        other = build(6).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)
        torch.manual_seed(0)
        assert torch.equal(torch.get_rng_state(), state)


def test_weights_are_kaiming_normal():
    model = resnet22(seed=2)
    block = model[-4]
    assert block.conv2.weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)
    assert model[-1].weight.std().item() == pytest.approx(math.sqrt(2 / 576), rel=0.05)
    assert not model[-1].bias.count_nonzero()


def test_an_example_does_not_reach_the_output_of_another(case):
    model, shape = case
    images = torch.randn(4, *shape)
    together = model(images)
    alone = torch.cat([model(images[i : i + 1]) for i in range(4)])
    assert torch.allclose(together, alone, atol=1e-4)


def test_a_private_step_through_the_trainer(case):
    model, shape = case
    plan = plan_training(
        differing=exactly(1),
        sampling=Poisson(n_records=12, rate=0.8),
        clip_norm=1.0,
        n_steps=1,
        accountant=Amplified(),
        target=Guarantee.unsliced(order=4, epsilon=4.0),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, cross_entropy, optimizer, plan)
    before = [p.detach().clone() for p in model.parameters()]
    for batch in trainer.batches(records(shape, 12)):
        trainer.step(batch)
    assert trainer.n_taken == 1
    for old, new in zip(before, model.parameters(), strict=True):
        assert new.isfinite().all()
        assert (old != new).any()


def test_a_private_step_through_opacus(case):
    model, shape = case
    loader = DataLoader(records(shape, 24), batch_size=8)
    plan = plan_training(
        differing=exactly(1),
        sampling=opacus_sampling(loader),
        clip_norm=1.0,
        n_steps=1,
        accountant=Amplified(),
        target=Guarantee.unsliced(order=4, epsilon=4.0),
    )
    engine = PrivacyEngine()
    engine.accountant = accountant = PlanAccountant(plan)
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=opacus_noise_multiplier(plan),
        max_grad_norm=1.0,
    )
    accountant.watch(OpacusRun(module=module, optimizer=optimizer, data_loader=loader))
    torch.manual_seed(0)
    images, labels = next(iter(loader))
    nn.functional.cross_entropy(module(images), labels).backward()
    optimizer.step()
    assert len(accountant) == 1
    assert all(p.isfinite().all() for p in model.parameters())


def test_bad_shapes_and_counts():
    for wrong, match in (
        (lambda: linear_model((), 10), "at least one dimension"),
        (lambda: linear_model((0, 3), 10), "dimension 0 of shape"),
        (lambda: linear_model(DIGITS, 1), "n_classes must be a whole number and at least 2"),
        (lambda: small_convnet((8, 8), 10, seed=0), "channels, height and width"),
        (lambda: small_convnet((1, 1, 8), 10, seed=0), "channels, height and width"),
        (lambda: resnet22(seed=-1), "seed"),
        (lambda: resnet22(1, seed=0), "n_classes"),
    ):
        with pytest.raises(ArgumentError, match=match):
            wrong()
