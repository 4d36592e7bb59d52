# SPDX-License-Identifier: Apache-2.0
"""Every trained parameter lies once in the flat vector, in one clipped layer."""

import numpy as np
import pytest
import torch
from torch import nn

from pufferslice.errors import TrainingError
from pufferslice.learning import FlatClipping, LayerClipping
from pufferslice.torch.layout import layout_of

FLAT = FlatClipping(norm=2.0)


def layered(**sizes):
    return LayerClipping(
        names=tuple(sizes), norms=(1.0,) * len(sizes), sizes=tuple(sizes.values()),
        allocation="equal",
    )  # fmt: skip


def two_linear():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def frozen():
    model = two_linear()
    model[0].requires_grad_(False)
    return model


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.words.weight


class Prefixed(nn.Module):
    """Names that begin with each other: `a`, `a2` and `ab`."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 1)
        self.a2 = nn.Linear(2, 2)
        self.ab = nn.Parameter(torch.zeros(5))


@pytest.mark.parametrize(
    ("model", "clipping", "names", "layers"),
    [
        (two_linear, FLAT, ("0.weight", "0.bias", "2.weight", "2.bias"), (0, 0, 0, 0)),
        (frozen, FLAT, ("2.weight", "2.bias"), (0, 0)),
        (Tied, FLAT, ("words.weight", "out.bias"), (0, 0)),
        (Tied, layered(words=28, out=7), ("words.weight", "out.bias"), (0, 1)),
        (
            two_linear,
            layered(**{"2": 10, "0.bias": 4, "0.weight": 12}),
            ("0.weight", "0.bias", "2.weight", "2.bias"),
            (2, 1, 0, 0),
        ),
        (
            Prefixed,
            layered(a2=6, ab=5, a=3),
            ("ab", "a.weight", "a.bias", "a2.weight", "a2.bias"),
            (1, 2, 2, 0, 0),
        ),
    ],
)
def test_names_have_the_order_of_the_model_and_layers_that_of_the_plan(
    model, clipping, names, layers
):
    layout = layout_of(model(), clipping)
    assert (layout.names, layout.layers) == (names, layers)
    assert repr(layout) == (
        f"ParameterLayout(n_parameters={sum(layout.sizes)}, n_layers={layout.n_layers})"
    )


@pytest.mark.soundness
@pytest.mark.parametrize("shape", [(9,), (3,), (4, 1), ()])
def test_sums_that_do_not_fit_their_parameter_have_no_place(shape):
    layout = layout_of(two_linear(), FLAT)
    assert layout.place_of(1, torch.zeros(4)) == slice(12, 16)
    with pytest.raises(TrainingError, match=r"'0\.bias'"):
        layout.place_of(1, torch.zeros(shape))


def test_noisy_sums_become_gradients_of_their_layers():
    model = two_linear()
    layout = layout_of(model, layered(**{"2": 10, "0": 16}))
    layout.set_gradients(np.arange(26), np.array([0.5, 2.0]))
    assert model[0].bias.grad.tolist() == [24, 26, 28, 30]
    assert model[2].weight.grad.tolist() == [[8, 8.5, 9, 9.5], [10, 10.5, 11, 11.5]]
