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


def left_in_slice(model, inputs):
    model.memory[: len(inputs)].copy_(model.first(inputs).detach())
    return model.last(model.memory[: len(inputs)] + model.first(inputs))


def left_in_data(model, inputs):
    model.memory.data[: len(inputs)] = model.first(inputs).detach()
    return plain_run(model, inputs)


def left_by_out(model, inputs):
    torch.mul(model.first(inputs).detach(), 2, out=model.memory[: len(inputs)])
    return plain_run(model, inputs)


def left_as_numbers(model, inputs):
    model.numbers = inputs[:, 0].tolist()
    return plain_run(model, inputs) * torch.tensor(model.numbers)[:, None]


def left_as_array(model, inputs):
    model.numbers = inputs.numpy().copy()
    return plain_run(model, inputs * torch.from_numpy(model.numbers))


def left_as_flag(model, inputs):
    model.flag = bool((inputs > 20).any())
    return plain_run(model, inputs) * (2 if model.flag else 1)


@pytest.mark.parametrize(
    "run",
    [
        left_in_slice,
        left_in_data,
        left_by_out,
        left_as_numbers,
        left_as_array,
        left_as_flag,
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


def mapped(model, inputs):
    """Tensors inside torch.func have no memory of their own."""

    def doubled(row):
        row = row.clone().mul_(2)
        row[0] = 1.0
        return row

    return plain_run(model, torch.func.vmap(doubled)(inputs))


def reads_constant(model, inputs):
    """Numbers of its buffers are the same for all blocks."""
    return plain_run(model, inputs) * float(model.first.bias.numel()) * model.factor.item()


@pytest.mark.parametrize("run", [plain_run, cached, in_a_circle, mapped, reads_constant])
def test_other_models_run_several_blocks_at_once(run, seed):
    torch.manual_seed(seed)
    model = Of(run)
    model.register_buffer("factor", torch.tensor(2.0))
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
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

    def __init__(self, when, how="in place"):
        super().__init__()
        self.inner, self.when, self.how = nn.Linear(5, 3), when, how
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, inputs):
        if self.when():
            mean = inputs.detach().mean(0)
            if self.how == "replaced":
                self.mean = self.mean + mean
            elif self.how == "in place":
                self.mean += mean
            elif self.how == "data":
                self.mean.data.mul_(0.9).add_(mean)
            else:
                self.mean.numpy()[:] += mean.numpy()
        return self.inner(inputs)


@pytest.mark.soundness
def test_a_buffer_that_changes_only_where_gradients_are_on_is_refused(seed):
    model = Averaging(torch.is_grad_enabled)
    with pytest.raises(ArgumentError, match=r"'mean' changes when the model runs"):
        prepared(Case(model, squared_loss, examples_of(seed)))
    assert not model.mean.any()


@pytest.mark.soundness
@pytest.mark.parametrize("how", ["replaced", "in place", "data", "array"])
def test_a_buffer_that_begins_to_change_later_stops_the_step(how, seed):
    began = []
    model = Averaging(lambda: bool(began), how)
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


def largest(model, inputs):
    with torch.no_grad():
        model.largest.copy_(torch.maximum(model.largest, inputs.abs().amax(0)))
    return plain_run(model, inputs)


@pytest.mark.soundness
def test_a_buffer_that_was_written_the_same_at_first_stops_the_step_when_it_changes(seed):
    model, (inputs, targets) = Of(largest), examples_of(seed)
    model.register_buffer("largest", torch.full((5,), 100.0))
    gradients = prepared(Case(model, squared_loss, (inputs, targets)))
    with gradients.unchanged_buffers():
        block_sum(gradients, (inputs, targets))
    with (
        pytest.raises(TrainingError, match=r"'largest' changed in a step"),
        gradients.unchanged_buffers(),
    ):
        block_sum(gradients, (1_000 * inputs, targets))


@pytest.mark.soundness
def test_a_frozen_parameter_that_is_written_to_later_stops_the_step(seed):
    began = []

    def run(model, inputs):
        if began:
            model.codes.add_(inputs.mean(0))
        return plain_run(model, inputs + model.codes)

    model, examples = Of(run), examples_of(seed)
    model.codes = nn.Parameter(torch.zeros(5), requires_grad=False)
    gradients = prepared(Case(model, squared_loss, examples))
    began.append(True)
    with (
        pytest.raises(TrainingError, match=r"'codes' changed in a step"),
        gradients.unchanged_buffers(),
    ):
        block_sum(gradients, examples)


def test_a_buffer_may_hold_what_is_no_number(seed):
    model = Of(plain_run)
    model.register_buffer("unused", torch.full((3,), torch.nan))
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
    with gradients.unchanged_buffers():
        block_sum(gradients, examples_of(seed))


@pytest.mark.parametrize("form", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_a_sparse_buffer_is_read_and_watched(form, seed):
    began = []

    def run(model, inputs):
        if began:
            model.links = form(torch.eye(5) * inputs.detach().mean())
        return plain_run(model, (model.links @ inputs.T).T)

    torch.manual_seed(seed)
    model, examples = Of(run), examples_of(seed)
    model.register_buffer("links", form(torch.eye(5)))
    gradients = prepared(Case(model, squared_loss, examples))
    with gradients.unchanged_buffers():
        block_sum(gradients, examples)
    began.append(True)
    with (
        pytest.raises(TrainingError, match=r"'links' changed in a step"),
        gradients.unchanged_buffers(),
    ):
        block_sum(gradients, examples)


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


# Modes, and hooks of the user's on gradients.


@pytest.mark.soundness
@pytest.mark.parametrize("change", [nn.Module.train, nn.Module.eval])
def test_a_model_whose_mode_was_changed_is_to_be_looked_at_again(change, seed):
    model = Of(plain_run)
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
    assert gradients.is_prepared
    change(model.last)
    assert gradients.is_prepared is (change is nn.Module.train)


def shortened(gradient):
    """Clipped by the norm of all examples together, which large gradients only show."""
    return gradient * min(1.0, 1e3 / float(gradient.norm()))


def hooked_tensor(model, inputs):
    hidden = model.first(inputs).tanh()
    if hidden.requires_grad:
        hidden.register_hook(shortened)
    return model.last(hidden)


@pytest.mark.soundness
@pytest.mark.parametrize("where", ["tensor", "module", "before module"])
def test_hooks_that_see_the_gradients_of_all_examples_see_one_at_a_time(where, seed):
    torch.manual_seed(seed)
    model = Of(hooked_tensor if where == "tensor" else plain_run)
    if where == "module":
        model.last.register_full_backward_hook(lambda _, found, __: tuple(map(shortened, found)))
    elif where == "before module":
        model.last.register_full_backward_pre_hook(lambda _, found: tuple(map(shortened, found)))
    inputs, targets = examples_of(seed, 8)
    gradients = prepared(Case(model, squared_loss, (inputs, targets)))
    before, _ = block_sum(gradients, (inputs, targets), 0.5)
    other = targets.clone()
    other[-1] = 1e6
    after, _ = block_sum(gradients, (inputs, other), 0.5)
    assert np.linalg.norm(after - before) <= 1 + 1e-6
    assert gradients.path == "one_by_one"


@pytest.mark.soundness
def test_a_hook_that_is_added_later_makes_the_model_be_looked_at_again(seed):
    model = Of(plain_run)
    gradients = prepared(Case(model, squared_loss, examples_of(seed)))
    model.last.register_full_backward_hook(lambda *_: None)
    assert not gradients.is_prepared


# What the quick way cannot take.


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: torch.add(input=plain_run(m, x), other=m.shift),
        lambda m, x: torch.mul(other=m.shift, input=plain_run(m, x)),
        lambda m, x: (plain_run(m, x).half() * m.scale).float() + m.shift,
        lambda m, x: (plain_run(m, x) + 0j).mul(m.shift).real,
    ],
)
def test_uses_that_cannot_be_recorded_take_a_slower_way(run, seed):
    torch.manual_seed(seed)
    model, examples = Of(run), examples_of(seed)
    model.shift = nn.Parameter(torch.ones(3))
    model.scale = nn.Parameter(torch.tensor(2.0))
    if "scale" not in run.__code__.co_names:
        model.scale.requires_grad_(False)
    gradients = prepared(Case(model, squared_loss, examples))
    assert gradients.path == "per_example"
    found, _ = block_sum(gradients, examples, 1e3)
    losses = squared_loss(model(examples[0]), examples[1]).sum()
    plain = torch.autograd.grad(losses, gradients.layout.parameters)
    expected = torch.cat([one.reshape(-1) for one in plain]).numpy()
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


def packed(model, inputs):
    """Sequences of several lengths, which torch rounds differently beside others."""
    lengths = 1 + (inputs[:, :-1] > 0).sum(1)
    rows = nn.utils.rnn.pack_padded_sequence(
        inputs[..., None], lengths, batch_first=True, enforce_sorted=False
    )
    return model.cells(rows)[1][0][0]


def test_packed_sequences_are_run_one_by_one(seed):
    torch.manual_seed(seed)
    model = Of(packed, cells=nn.LSTM(1, 3, batch_first=True))
    model.first, model.last = None, None
    for draw in range(8):
        case = Case(model, squared_loss, examples_of(seed + draw, 6))
        assert check_exact(case) == "one_by_one"
