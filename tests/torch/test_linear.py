# SPDX-License-Identifier: Apache-2.0
"""Linear maps are left to autograd; what it shows on the way is what belongs to the examples."""

import pytest
import torch
from tests.torch.one_by_one import FLAT, Case, check_exact, squared_loss
from torch import nn

from pufferslice.torch.contributions import Dense, Outer, Scratch
from pufferslice.torch.layout import layout_of
from pufferslice.torch.recording import Recorder

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK, WIDTH = 5, 4


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


class Of(nn.Module):
    """A model that is a function of two linear maps and its inputs."""

    def __init__(self, function, *, bias=True):
        super().__init__()
        self.function = function
        self.first = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.second = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, inputs):
        return self.function(self, inputs)


def on(model, *shape):
    inputs = torch.randn(BLOCK, *shape, WIDTH)
    with torch.no_grad():
        outputs = model(inputs)
    return Case(model, squared_loss, (inputs, torch.randn(outputs.shape)))


def recorded(model, losses_of):
    recorder = Recorder(layout_of(model, FLAT), BLOCK, Scratch())
    with recorder:
        losses = losses_of(model)
    torch.autograd.grad(losses.sum(), recorder.anchor, allow_unused=True)
    return recorder.contributions()


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_may_be_changed_in_place(shape, bias):
    """The gradient that counts is that of the map, not of what became of its outputs."""
    model = Of(lambda m, x: m.second(m.first(x).mul_(3).relu_()).sigmoid_(), bias=bias)
    assert check_exact(on(model, *shape), factor=0.6) == "recorded"


@pytest.mark.parametrize("shape", [(), (3,)])
def test_inputs_that_are_changed_in_place_are_not_taken_for_what_they_were(shape):
    def run(model, inputs):
        values = torch.sin(inputs)
        outputs = model.first(values)
        values.mul_(0.5)
        return model.second(outputs) + values

    model = Of(run)
    inputs = torch.randn(BLOCK, *shape, WIDTH)
    with pytest.raises(RuntimeError, match="changed in place"):
        recorded(model, lambda m: m(inputs).flatten(1).sum(1))


def test_inputs_of_a_frozen_weight_may_change():
    def run(model, inputs):
        values = torch.sin(inputs)
        outputs = model.first(values)
        values.mul_(0.5)
        return model.second(outputs) + values

    model = Of(run)
    model.first.weight.requires_grad_(False)
    inputs = torch.randn(BLOCK, WIDTH)
    assert sorted(recorded(model, lambda m: m(inputs).sum(1))) == [0, 1, 2]


def test_maps_without_gradients_are_not_recorded():
    inputs = torch.randn(BLOCK, WIDTH)

    def losses(model):
        with torch.no_grad():
            constant = model.first(inputs)
        return (model.second(inputs) * constant).sum(1)

    assert sorted(recorded(Of(None), losses)) == [2, 3]


def test_a_bias_shares_the_norms_of_its_weight_and_none_is_written_out():
    inputs = torch.randn(BLOCK, WIDTH)
    model = Of(lambda m, x: m.second(m.first(x).tanh()))
    found = recorded(model, lambda m: m(inputs).square().sum(1))
    assert [type(found[i]) for i in range(4)] == [Outer, Dense, Outer, Dense]
    for weight, bias in ((found[0], found[1]), (found[2], found[3])):
        assert torch.equal(bias.squared_norms(), weight.left_norms.square())
        assert bias.vectors is weight.left


def test_one_map_used_in_two_ways_at_once():
    model = Of(lambda m, x: m.first(m.first(x).tanh()) + m.second(x))
    assert check_exact(on(model), factor=0.5) == "recorded"
