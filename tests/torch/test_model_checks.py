# SPDX-License-Identifier: Apache-2.0
"""Models that a plan can train, replacements for batch normalisation, and the warning on Adam."""

import copy
import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from tests.torch.small import plan_of
from torch import nn

from pufferslice.errors import ArgumentError
from pufferslice.learning import LayerClipping, Poisson
from pufferslice.torch.layout import layout_of
from pufferslice.torch.model_checks import (
    DROWNED,
    adam_warning,
    replace_batchnorm,
    uncompiled,
    validate,
)


def two_linear():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def tied(weight):
    """Two layers, the second with what `weight` makes of the first one's."""
    model = two_linear()
    model[1].weight = weight(model[0].weight)
    return model


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Dropout(0.1)),
        nn.Sequential(nn.Conv1d(1, 8, 3), nn.InstanceNorm1d(8, affine=True)),
        nn.Sequential(nn.Linear(3, 2), nn.InstanceNorm1d(8, track_running_stats=True).eval()),
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval()),
        nn.TransformerEncoderLayer(8, 2, batch_first=True),
        nn.LSTM(3, 4, batch_first=True),
        tied(lambda weight: weight),
        nn.Linear(3, 2).double(),
        nn.Sequential(nn.Linear(3, 2).requires_grad_(False), nn.Linear(2, 2)),
    ],
)
def test_accepted_models(model):
    assert validate(model) is None


# torch imports its own deprecated names when `torch.compile` is first called.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_models_are_looked_into():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    compiled = torch.compile(model)
    assert uncompiled(compiled) is uncompiled(model) is model
    with pytest.raises(ArgumentError, match="BatchNorm1d"):
        validate(compiled)
    validate(torch.compile(nn.Linear(3, 2)))


def test_only_batch_normalisation_is_replaced_and_only_in_the_copy():
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ELU(), nn.Linear(6, 3))
    model(torch.randn(2, 1, 8, 8))
    model[1].weight.data.uniform_(1, 2)
    before = copy.deepcopy(model.state_dict())
    replaced = replace_batchnorm(model)
    validate(replaced)
    new = replaced.state_dict()
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert list(new) == [name for name in before if name not in statistics]
    assert all(torch.equal(new[name], before[name]) for name in new)
    for parameter in replaced.parameters():
        parameter.data.zero_()
    assert isinstance(model[1], nn.BatchNorm2d)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@hypothesis.given(channels=st.integers(2, 700))
def test_groups_divide_the_channels_and_are_not_small(channels):
    group_norm = replace_batchnorm(nn.BatchNorm1d(channels))
    n_groups = group_norm.num_groups
    assert channels % n_groups == 0
    assert n_groups <= 32
    assert n_groups == 1 or channels // n_groups >= 16
    normalised = group_norm(torch.randn(1, channels)).reshape(n_groups, -1)
    assert torch.allclose(normalised.mean(1), torch.zeros(n_groups), atol=1e-4)
    assert normalised.square().mean(1).min() > 0.5


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(6), (3, 6)),
        (nn.BatchNorm1d(6), (3, 6, 5)),
        (nn.BatchNorm2d(6), (3, 6, 5, 4)),
        (nn.BatchNorm3d(6), (3, 6, 5, 4, 2)),
        (nn.SyncBatchNorm(6), (3, 6, 5)),
        (nn.BatchNorm2d(1), (3, 1, 5, 4)),
    ],
)
def test_a_replacement_treats_each_example_alone(norm, shape):
    group_norm = replace_batchnorm(norm)
    examples = torch.randn(shape)
    alone = torch.cat([group_norm(example[None]) for example in examples])
    assert torch.allclose(group_norm(examples), alone, atol=1e-6)
    assert alone.abs().max() > 0.1


@pytest.mark.parametrize("affine", [True, False])
def test_a_replacement_keeps_affine_epsilon_precision_mode_and_freezing(affine):
    norm = nn.BatchNorm1d(4, affine=affine, eps=0.25, dtype=torch.float64).eval()
    group_norm = replace_batchnorm(nn.Sequential(norm.requires_grad_(False)))[0]
    assert (group_norm.affine, group_norm.eps, group_norm.training) == (affine, 0.25, False)
    assert all(p.dtype == torch.float64 and not p.requires_grad for p in group_norm.parameters())


def test_a_layer_in_two_places_stays_one_layer():
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"a": nn.Sequential(norm), "b": nn.ModuleList([nn.Linear(4, 4), norm])})
    replaced = replace_batchnorm(model)
    assert isinstance(replaced["a"][0], nn.GroupNorm)
    assert replaced["a"][0] is replaced["b"][1]


LAYERS = LayerClipping(names=("0", "1"), norms=(2.0, 2.0), sizes=(12, 12), allocation="equal")


def warning_at(ratio, optimizer_of, clip_norm=0.7):
    """The warning for a plan whose noise is `ratio` times the largest sum of gradients.

    Noise of multiplier z on d coordinates, over a divisor B: the ratio is z sqrt(d) / B.
    """
    model, sampling = two_linear(), Poisson(n_records=1_000, rate=1 / 20)
    multipliers = np.full(2, ratio * 50 / math.sqrt(24))
    plan = plan_of(sampling=sampling, clip_norm=clip_norm, multipliers=multipliers)
    return adam_warning(optimizer_of(model.parameters()), plan, layout_of(model, plan.clipping))


@pytest.mark.parametrize("clip_norm", [0.7, LAYERS], ids=["flat", "layers"])
def test_adam_is_warned_of_where_noise_drowns_the_signal(clip_norm):
    assert warning_at(0.99 * DROWNED, torch.optim.Adam, clip_norm) == ""
    warning = warning_at(1.01 * DROWNED, torch.optim.Adam, clip_norm)
    assert "10.1 times" in warning
    assert "Adam" in warning


def test_optimizers_that_divide_by_a_second_moment_are_warned_of():
    families = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
    for name in families:
        assert name in warning_at(100, getattr(torch.optim, name))
    for name in ("SGD", "ASGD"):
        assert not warning_at(100, getattr(torch.optim, name))
