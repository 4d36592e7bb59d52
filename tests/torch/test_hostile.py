# SPDX-License-Identifier: Apache-2.0
"""Models that change, withhold or broadcast gradients in unusual ways."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pufferslice.errors import TrainingError
from pufferslice.sgd import FlatClipping
from pufferslice.sgd.grid import SumGrid
from pufferslice.torch.contributions import Dense
from pufferslice.torch.gradients import BlockGradients
from pufferslice.torch.layout import layout_of

pytestmark = pytest.mark.filterwarnings("ignore:training takes a slow way")

RADIUS = 0.5
STEP = 2.0**-40
GRID = SumGrid(steps=np.array([STEP]), radii=np.array([RADIUS]))


def squared_error(outputs, targets):
    return ((outputs.reshape(len(outputs), -1) - targets[:, None]) ** 2).sum(1)


def prepared(model, inputs, targets):
    layout = layout_of(model, FlatClipping(norm=1.0))
    gradients = BlockGradients(model, squared_error, layout, block=len(inputs), non_finite="zero")
    gradients.prepare((inputs, targets), len(inputs))
    return gradients


def check_sum(model, inputs, targets, tolerance):
    """The clipped sum is that of single examples in float64."""
    gradients = prepared(model, inputs, targets)
    found = gradients.block_sum((inputs, targets), len(inputs), GRID, 0).integers * STEP
    exact, expected = copy.deepcopy(model).double(), 0.0
    for x, t in zip(inputs.double(), targets.double(), strict=True):
        loss = squared_error(exact(x[None]), t[None]).sum()
        rows = torch.autograd.grad(loss, list(exact.parameters()))
        row = torch.cat([one.reshape(-1) for one in rows])
        expected = expected + row * min(1.0, RADIUS / float(row.norm()))
    assert np.linalg.norm(found - expected.numpy()) <= tolerance * np.linalg.norm(expected)


class GrowsInPlace(torch.autograd.Function):
    """Multiplies a large gradient by 1,000 where it lies, which torch forbids and cannot see."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        large = gradient.abs().amax(1, keepdim=True) > 50
        return gradient.mul_(torch.where(large, 1_000.0, 1.0))


class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return GrowsInPlace.apply(x * 1e-7 * self.scale) + self.shift


@pytest.mark.soundness
def test_a_gradient_that_is_changed_in_place_is_clipped_as_it_was_measured(seed):
    torch.manual_seed(seed)
    inputs, targets = torch.randn(4, 8), torch.zeros(4)
    gradients = prepared(Grown(), inputs, targets)
    targets[0] = 100.0
    found = gradients.block_sum((inputs, targets), 1, GRID, 0)
    assert np.linalg.norm(found.integers * STEP) <= RADIUS * (1 + 1e-6)


class Gated(nn.Module):
    """A branch that starts at zero, so that no first look sees its gradients."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))
        self.weight, self.bias = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.zeros(1))
        self.beside = nn.Linear(8, 64)

    def forward(self, x):
        return self.beside(x) + functional.linear(x, self.weight, self.bias) * self.gate


@pytest.mark.soundness
def test_a_bias_that_is_broadcast_has_one_gradient(seed):
    torch.manual_seed(seed)
    model, inputs, targets = Gated(), torch.randn(16, 8), torch.randn(16)
    gradients = prepared(model, inputs, targets)
    with torch.no_grad():
        model.gate.fill_(50.0)
    found = gradients.block_sum((inputs, targets), 16, GRID, 0)
    assert np.linalg.norm(found.integers * STEP) <= 16 * RADIUS * (1 + 1e-6)


def test_sums_that_do_not_fit_their_parameter_are_not_written(seed, monkeypatch):
    torch.manual_seed(seed)
    inputs, targets = torch.randn(4, 8), torch.zeros(4)
    gradients = prepared(Grown(), inputs, targets)
    monkeypatch.setattr(Dense, "weighted_sum", lambda *_: torch.zeros(9))
    with pytest.raises(TrainingError, match=r"a sum of 9 numbers for parameter 's"):
        gradients.block_sum((inputs, targets), 4, GRID, 0)


class Withheld(torch.autograd.Function):
    """Gives its second argument no gradient at all."""

    @staticmethod
    def forward(ctx, first, second):
        return first * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 3), nn.Linear(3, 3)

    def forward(self, x):
        y = self.first(x)
        return Withheld.apply(y, self.second(y)) + 0 * self.second(y)


def test_a_layer_whose_gradient_is_withheld_gets_the_gradient_of_autograd(seed):
    torch.manual_seed(seed)
    model, inputs, targets = HalfUsed(), torch.randn(16, 8), torch.randn(16)
    check_sum(model, inputs, targets, tolerance=1e-5)


@pytest.mark.parametrize("width", [257, 1_024, 4_096])
def test_wide_images_are_summed_in_stretches(width):
    """Equal terms are the worst case of adding one by one: 5.7e-5 off at a width of 4,096."""
    model = nn.Conv2d(16, 16, (1, 1), bias=False)
    inputs, targets = torch.full((2, 16, 1, width), 0.1), torch.zeros(2)
    check_sum(model, inputs, targets, tolerance=1e-5)
