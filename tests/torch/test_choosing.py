# SPDX-License-Identifier: Apache-2.0
"""What a first look finds out about a model, and what steps watch because it may come later."""

import numpy as np
import pytest
import torch
from tests.torch.one_by_one import (
    FLAT,
    Case,
    block_sum,
    check_exact,
    fine_grid,
    prepared,
    squared_loss,
)
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch.batches import Batch
from pufferslice.torch.clipped_sums import ClippedSums
from pufferslice.torch.distributed import Processes
from pufferslice.torch.gradients import BlockGradients
from pufferslice.torch.layout import layout_of

BLOCK = 4


class Of(nn.Module):
    """A model whose forward pass is a function of itself and its inputs."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run = run
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, inputs):
        return self.run(self, inputs)


def examples_of(seed, n_examples=BLOCK):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_examples, 5, generator=generator)
    return inputs, torch.randn(n_examples, 3, generator=generator)


def plain_run(model, inputs):
    return model.last(model.first(inputs).tanh())


# What a model leaves behind for its loss, or for its own later layers.


def left_in_attribute(model, inputs):
    hidden = model.first(inputs).tanh()
    model.left = hidden.square().sum(1)
    return model.last(hidden)


def left_without_graph(model, inputs):
    hidden = model.first(inputs).tanh()
    model.left = hidden.detach().square().sum(1)
    return model.last(hidden)


def left_in_list(model, inputs):
    hidden = model.first(inputs).tanh()
    model.notes = [hidden.square().sum(1)]
    return model.last(hidden)


def left_in_own_memory(model, inputs):
    hidden = model.first(inputs).tanh()
    model.memory[: len(inputs)] = hidden.detach()
    return model.last(hidden)


class Doubled(torch.autograd.Function):
    """Its result is made where no torch function is seen."""

    @staticmethod
    def forward(ctx, values):
        return 2 * values

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def left_by_function(model, inputs):
    model.left = Doubled.apply(model.first(inputs))
    return model.last(model.left.tanh())


def left_inputs(model, inputs):
    model.left = inputs
    return plain_run(model, inputs)


@pytest.mark.parametrize(
    "run",
    [
        left_in_attribute,
        left_without_graph,
        left_in_list,
        left_in_own_memory,
        left_by_function,
        left_inputs,
    ],
)
def test_models_that_leave_something_behind_run_one_block_at_a_time(run, seed):
    torch.manual_seed(seed)
    model = Of(run)
    model.memory = torch.zeros(16, 6)
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
    assert gradients.path == "recorded"
    assert gradients.run_alone


def cached(model, inputs):
    if not hasattr(model, "scale"):
        model.scale = torch.tensor([0.5]).expand(5).contiguous()
    return plain_run(model, inputs * model.scale.contiguous())


def in_a_circle(model, inputs):
    """What only the collector of garbage takes away."""
    hidden = [model.first(inputs).tanh()]
    hidden.append(hidden)
    return model.last(hidden[0])


@pytest.mark.parametrize("run", [plain_run, cached, in_a_circle])
def test_other_models_run_several_blocks_at_once(run, seed):
    torch.manual_seed(seed)
    gradients = prepared(Case(Of(run), squared_loss, examples_of(seed)))
    assert not gradients.run_alone


@pytest.mark.soundness
@pytest.mark.parametrize("where", ["loss", "layer"])
def test_blocks_never_read_what_another_block_left(where, seed):
    """Each block works for a while in the middle, so that the next one comes by."""
    torch.manual_seed(seed)

    def run(model, inputs):
        hidden = model.first(inputs).tanh()
        model.left = hidden.detach().square().sum(1)
        torch.randn(300, 300, generator=torch.Generator()).matmul(torch.ones(300, 300))
        return model.last(hidden) * (model.left[:, None] if where == "layer" else 1)

    def loss(outputs, targets):
        return squared_loss(outputs, targets) * (model.left if where == "loss" else 1)

    model, n_blocks = Of(run), 32
    data = TensorDataset(*examples_of(seed, BLOCK * n_blocks))
    batch = Batch(step=0, branch=0, indices=np.arange(len(data)), dataset=data, block_size=BLOCK)
    found = []
    for in_flight in (1, 3):
        gradients = BlockGradients(
            model, loss, layout_of(model, FLAT), block=BLOCK, non_finite="zero"
        )
        sums = ClippedSums(gradients, Processes(0, 1), in_flight)
        sums.prepare(batch, lambda number: number)
        found.append(sums.of(batch, fine_grid(1.0), lambda number: number).integers)
    np.testing.assert_array_equal(*found)


# Buffers.


class Averaging(nn.Module):
    """Keeps a mean of its inputs in a buffer, if `when` says so."""

    def __init__(self, when, *, replaces=False):
        super().__init__()
        self.inner, self.when, self.replaces = nn.Linear(5, 3), when, replaces
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, inputs):
        if self.when():
            if self.replaces:
                self.mean = self.mean + inputs.detach().mean(0)
            else:
                self.mean += inputs.detach().mean(0)
        return self.inner(inputs)


@pytest.mark.soundness
def test_a_buffer_that_changes_only_where_gradients_are_on_is_refused(seed):
    model = Averaging(torch.is_grad_enabled)
    with pytest.raises(ArgumentError, match=r"'mean' changes when the model runs"):
        prepared(Case(model, squared_loss, examples_of(seed)))
    assert not model.mean.any()


@pytest.mark.soundness
@pytest.mark.parametrize("replaces", [True, False])
def test_a_buffer_that_begins_to_change_later_stops_the_step(replaces, seed):
    began = []
    model = Averaging(lambda: bool(began), replaces=replaces)
    data = TensorDataset(*examples_of(seed, 3 * BLOCK))
    batch = Batch(step=0, branch=0, indices=np.arange(len(data)), dataset=data, block_size=BLOCK)
    gradients = BlockGradients(
        model, squared_loss, layout_of(model, FLAT), block=BLOCK, non_finite="zero"
    )
    sums = ClippedSums(gradients, Processes(0, 1), 1)
    sums.prepare(batch, lambda number: number)
    sums.of(batch, fine_grid(1.0), lambda number: number)
    began.append(True)
    with pytest.raises(TrainingError, match=r"'mean' changed in a step of training"):
        sums.of(batch, fine_grid(1.0), lambda number: number)


def test_a_buffer_that_is_written_the_same_every_time_may_be(seed):
    def run(model, inputs):
        model.places = torch.arange(5.0)
        return plain_run(model, inputs + model.places)

    torch.manual_seed(seed)
    model = Of(run)
    model.register_buffer("places", torch.arange(5.0))
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
    with gradients.unchanged_buffers():
        block_sum(gradients, examples_of(seed))


class Counted(nn.Module):
    """A loss that keeps something of the targets."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, outputs, targets):
        self.seen += targets.mean(0)
        return squared_loss(outputs, targets)


def test_a_loss_that_keeps_something_is_refused(seed):
    with pytest.raises(ArgumentError, match=r"'loss_fn\.seen' changes when the model runs"):
        prepared(Case(Of(plain_run), Counted(), examples_of(seed)))


def grows(model, inputs):
    model.cache = torch.zeros(len(inputs) + 3)
    return plain_run(model, inputs)


def test_a_buffer_of_another_shape_is_put_back(seed):
    model = Of(grows)
    model.register_buffer("cache", torch.zeros(2))
    with pytest.raises(ArgumentError, match=r"'cache' changes when the model runs"):
        prepared(Case(model, squared_loss, examples_of(seed)))
    assert model.cache.shape == (2,)


def late(model, inputs):
    if "more" not in dict(model.named_children()):
        model.more = nn.Linear(3, 3)
    return model.more(plain_run(model, inputs))


def test_parameters_that_appear_when_the_model_runs_are_refused(seed):
    with pytest.raises(ArgumentError, match=r"'more\.weight', 'more\.bias' appears only when"):
        prepared(Case(Of(late), squared_loss, examples_of(seed)))


# What models do with their inputs and with autograd.


def in_half(model, inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return plain_run(model, inputs).float()


def test_a_model_that_turns_half_precision_on_is_refused(seed):
    with pytest.raises(ArgumentError, match=r"leave it out of the model"):
        prepared(Case(Of(in_half), squared_loss, examples_of(seed)))


def test_inputs_may_be_changed_in_place(seed):
    torch.manual_seed(seed)
    model = Of(lambda m, x: plain_run(m, x.mul_(0.5)))
    examples = examples_of(seed)
    gradients = prepared(Case(model, squared_loss, examples))
    assert gradients.path == "recorded"
    found, _ = block_sum(gradients, tuple(one.clone() for one in examples))
    halved = Case(Of(plain_run), squared_loss, (examples[0] * 0.5, examples[1]))
    halved.model.load_state_dict(model.state_dict())
    expected, _ = block_sum(prepared(halved), halved.examples)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: plain_run(m, x.clone().requires_grad_()),
        lambda m, x: plain_run(m, 2 * x.clone().requires_grad_()),
        lambda m, x: m.last(m.first(x).detach().requires_grad_().tanh()) + m.first(x)[:, :3],
    ],
)
def test_leaves_of_the_models_own_do_not_cost_the_quick_way(run, seed):
    torch.manual_seed(seed)
    assert check_exact(Case(Of(run), squared_loss, examples_of(seed))) == "recorded"


def leaf_by_attribute(model, inputs):
    values = inputs.clone()
    values.requires_grad = True
    return plain_run(model, values)


def test_leaves_made_by_an_attribute_do_not_cost_it_either(seed):
    torch.manual_seed(seed)
    case = Case(Of(leaf_by_attribute), squared_loss, examples_of(seed))
    assert check_exact(case) == "recorded"


def force(model, inputs):
    """A model whose output is a gradient itself."""
    values = inputs.detach().requires_grad_()
    energy = (model.last(model.first(values).tanh())).square().sum()
    (found,) = torch.autograd.grad(energy, values, create_graph=True)
    return found[:, :3]


def test_gradients_inside_a_model_are_exact(seed):
    torch.manual_seed(seed)
    assert check_exact(Case(Of(force), squared_loss, examples_of(seed))) == "one_by_one"
