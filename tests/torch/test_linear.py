# SPDX-License-Identifier: Apache-2.0
"""Linear maps: what becomes of their inputs and outputs, and how often they are used."""

import pytest
import torch
from tests.torch.one_by_one import Case, check_exact, squared_loss
from torch import nn

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


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_may_be_changed_in_place(shape, bias):
    """The gradient that counts is that of the map, not of what became of its outputs."""
    model = Of(lambda m, x: m.second(m.first(x).mul_(3).relu_()).sigmoid_(), bias=bias)
    assert check_exact(on(model, *shape), factor=0.6) == "per_example"


def test_a_map_that_is_also_used_without_gradients():
    def run(model, inputs):
        with torch.no_grad():
            constant = model.first(inputs)
        return model.first(inputs) * constant + model.second(inputs)

    assert check_exact(on(Of(run)), factor=0.6) == "per_example"


def test_one_map_used_in_two_ways_at_once():
    model = Of(lambda m, x: m.first(m.first(x).tanh()) + m.second(x))
    assert check_exact(on(model), factor=0.5) == "per_example"
