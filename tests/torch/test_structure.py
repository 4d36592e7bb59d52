# SPDX-License-Identifier: Apache-2.0
"""Models that a plan can train, models that it cannot, and replacements for batch normalisation."""

import copy

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from pufferslice import ArgumentError
from pufferslice.torch.structure import (
    layer_problems,
    replace_batchnorm,
    uncompiled,
    validate,
)


class OwnBatchNorm(nn.BatchNorm2d):
    """A kind of batch normalisation that torch does not know."""

    def forward(self, examples):
        return torch.relu(super().forward(examples))


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words):
        return self.output(self.embedding(words).mean(1))


def convolutional(norm):
    return nn.Sequential(nn.Conv2d(1, 32, 3), norm, nn.ELU(), nn.Flatten(), nn.LazyLinear(3))


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(3, 2),
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.Dropout(0.1)),
        nn.Sequential(nn.Conv1d(1, 8, 3), nn.InstanceNorm1d(8, affine=True)),
        nn.Sequential(nn.Linear(3, 2), nn.InstanceNorm1d(8, track_running_stats=True).eval()),
        nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval()),
        nn.TransformerEncoderLayer(8, 2, batch_first=True),
        nn.LSTM(3, 4, batch_first=True),
        Tied(),
        nn.Linear(3, 2).double(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_models_that_keep_examples_apart_pass(model):
    assert validate(model) is None


def test_frozen_parameters_pass_if_one_is_trained():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"no trainable parameter; call requires_grad_"):
        validate(model)
    model[1].bias.requires_grad_(True)
    validate(model)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(2),
        nn.BatchNorm2d(2),
        nn.BatchNorm3d(2),
        nn.SyncBatchNorm(2),
        OwnBatchNorm(2),
        nn.BatchNorm1d(2, affine=False),
        nn.BatchNorm1d(2, track_running_stats=False).eval(),
    ],
    ids=["1d", "2d", "3d", "sync", "subclass", "plain", "eval-without-statistics"],
)
def test_batch_statistics_are_refused_with_their_replacement(norm):
    model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(norm))
    with pytest.raises(ArgumentError, match=rf"layer '1.0' is a {type(norm).__name__}.*GroupNorm"):
        validate(model)


def test_what_is_refused_does_mix_examples():
    norm = nn.BatchNorm1d(4)
    examples = torch.randn(8, 4)
    others = torch.cat([examples[:1], torch.randn(7, 4)])
    assert not torch.allclose(norm(examples)[0], norm(others)[0])
    norm.eval()
    assert torch.equal(norm(examples)[0], norm(others)[0])
    assert not layer_problems(norm)
    assert layer_problems(norm.train())


def test_statistics_that_instance_normalisation_would_keep_are_refused():
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True))
    with pytest.raises(ArgumentError, match=r"'1' is a InstanceNorm1d.*track_running_stats=False"):
        validate(model)
    before = model[1].running_mean.clone()
    model(torch.randn(2, 1, 8))
    assert not torch.equal(model[1].running_mean, before)
    validate(model.eval())


def test_the_model_itself_can_be_the_problem():
    with pytest.raises(ArgumentError, match="the model itself is a BatchNorm1d"):
        validate(nn.BatchNorm1d(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_precisions_are_refused(dtype):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(dtype)
    with pytest.raises(
        ArgumentError,
        match=rf"'0.weight' \(and 3 more\) is stored as {dtype}.*call model.float\(\)",
    ):
        validate(model)
    validate(nn.Linear(3, 2).half().float())


def test_mixed_precisions_are_refused():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double())
    with pytest.raises(ArgumentError, match="partly float32 and partly float64"):
        validate(model)


def test_parameters_without_shape_are_refused_until_the_model_has_run():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match=r"'0.weight' \(and 1 more\) has no shape yet; run"):
        validate(model)
    model(torch.zeros(1, 3))
    validate(model)


def test_buffers_without_shape_are_refused():
    with pytest.raises(ArgumentError, match="has no shape yet"):
        validate(nn.Sequential(nn.Linear(3, 2), nn.LazyBatchNorm1d(affine=False)))


def test_parameters_without_values_are_refused():
    with pytest.raises(ArgumentError, match="is on the device 'meta' and has no values"):
        validate(nn.Linear(3, 2, device="meta"))


def test_two_parameters_in_one_memory_are_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.detach())
    with pytest.raises(ArgumentError, match=r"'0.weight' and '1.weight' are two objects in"):
        validate(model)
    model[1].weight = model[0].weight
    validate(model)


def test_wrappers_that_split_batches_are_refused():
    with pytest.raises(ArgumentError, match=r"is a DataParallel.*give the model inside it"):
        validate(nn.DataParallel(nn.Linear(3, 2)))


def test_a_model_in_several_processes_is_refused():
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        with pytest.raises(ArgumentError, match=r"DistributedDataParallel.*trainer per process"):
            validate(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_models_are_refused():
    with pytest.raises(ArgumentError, match="give the module that it was made from"):
        validate(torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)))


# torch imports its own deprecated names when `torch.compile` is first called.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_models_are_looked_into():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    compiled = torch.compile(model)
    assert uncompiled(compiled) is model
    assert uncompiled(model) is model
    with pytest.raises(ArgumentError, match="layer '1' is a BatchNorm1d"):
        validate(compiled)
    validate(torch.compile(nn.Linear(3, 2)))


def test_a_module_is_needed():
    with pytest.raises(ArgumentError, match=r"must be a torch.nn.Module, got function"):
        validate(lambda examples: examples)


def test_every_problem_is_told_at_once():
    model = nn.Sequential(nn.Linear(3, 2).half(), nn.BatchNorm1d(2), nn.DataParallel(nn.ELU()))
    with pytest.raises(ArgumentError) as caught:
        validate(model)
    message = str(caught.value)
    assert message.startswith("the model cannot be trained under a plan: ")
    assert message.count("; layer") == 1
    for word in ("layer '1' is a BatchNorm1d", "layer '2' is a DataParallel", "torch.float16"):
        assert word in message


def test_what_replaces_batch_normalisation_passes_and_the_given_model_stays():
    model = convolutional(nn.BatchNorm2d(32))
    model(torch.randn(2, 1, 8, 8))
    given = copy.deepcopy(model.state_dict())
    replaced = replace_batchnorm(model)
    validate(replaced)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert all(torch.equal(given[name], value) for name, value in model.state_dict().items())
    assert replaced(torch.randn(2, 1, 8, 8)).shape == (2, 3)
    replaced[0].weight.data.zero_()
    replaced[1].weight.data.zero_()
    assert model[0].weight.any()
    assert model[1].weight.all()


def test_names_and_values_of_other_layers_stay():
    model = convolutional(nn.BatchNorm2d(32))
    model(torch.randn(2, 1, 8, 8))
    model[1].weight.data.uniform_()
    old, new = model.state_dict(), replace_batchnorm(model).state_dict()
    dropped = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert {*old} - {*new} == dropped
    assert list(new) == [name for name in old if name not in dropped]
    assert all(torch.equal(new[name], old[name]) for name in new)


@hypothesis.given(channels=st.integers(2, 700))
def test_groups_divide_the_channels_and_are_not_small(channels):
    group_norm = replace_batchnorm(nn.BatchNorm1d(channels))
    assert isinstance(group_norm, nn.GroupNorm)
    n_groups = group_norm.num_groups
    assert channels % n_groups == 0
    assert n_groups <= 32
    assert n_groups == 1 or channels // n_groups >= 16
    examples = torch.randn(1, channels)
    normalised = group_norm(examples).reshape(n_groups, -1)
    assert torch.allclose(normalised.mean(1), torch.zeros(n_groups), atol=1e-4)
    assert normalised.square().mean(1).min() > 0.5


@pytest.mark.parametrize(("channels", "n_groups"), [(16, 1), (32, 2), (48, 3), (64, 4), (512, 32)])
def test_usual_widths_get_groups_of_sixteen(channels, n_groups):
    assert replace_batchnorm(nn.BatchNorm2d(channels)).num_groups == n_groups


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
    ids=["1d", "1d-long", "2d", "3d", "sync", "2d-one-channel"],
)
def test_examples_no_longer_reach_each_other(norm, shape):
    group_norm = replace_batchnorm(norm)
    examples = torch.randn(shape)
    alone = torch.cat([group_norm(examples[i : i + 1]) for i in range(len(examples))])
    assert torch.allclose(group_norm(examples), alone, atol=1e-6)
    assert alone.abs().max() > 0.1


@pytest.mark.parametrize("affine", [True, False])
def test_affine_precision_mode_and_freezing_are_kept(affine):
    norm = nn.BatchNorm1d(4, affine=affine, eps=0.25, dtype=torch.float64).eval()
    for parameter in norm.parameters():
        parameter.requires_grad_(False)
    group_norm = replace_batchnorm(nn.Sequential(norm))[0]
    assert group_norm.affine is affine
    assert group_norm.eps == 0.25
    assert not group_norm.training
    assert all(p.dtype == torch.float64 and not p.requires_grad for p in group_norm.parameters())


def test_a_layer_in_two_places_stays_one_layer():
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"a": nn.Sequential(norm), "b": nn.ModuleList([nn.Linear(4, 4), norm])})
    replaced = replace_batchnorm(model)
    assert isinstance(replaced["a"][0], nn.GroupNorm)
    assert replaced["a"][0] is replaced["b"][1]


def test_models_without_batch_normalisation_are_copied():
    model = nn.Linear(3, 2)
    copied = replace_batchnorm(model)
    assert copied is not model
    assert torch.equal(copied.weight, model.weight)


@pytest.mark.parametrize(
    ("norm", "match"),
    [
        (OwnBatchNorm(4), "layer '0' is a OwnBatchNorm, whose replacement cannot be known"),
        (nn.LazyBatchNorm1d(), r"'0.weight' \(and 3 more\) has no shape yet; run the model once"),
        (nn.BatchNorm1d(1), "BatchNorm1d of one channel.*always 0. Leave the layer out"),
        (nn.SyncBatchNorm(1), "SyncBatchNorm of one channel"),
    ],
    ids=["subclass", "lazy", "one-channel", "one-channel-sync"],
)
def test_replacements_that_would_be_wrong_are_refused(norm, match):
    with pytest.raises(ArgumentError, match=match):
        replace_batchnorm(nn.Sequential(norm))
