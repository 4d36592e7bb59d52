# SPDX-License-Identifier: Apache-2.0
"""Every trained parameter lies once in the flat vector, in one clipped layer."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import FlatClipping, LayerClipping
from pufferslice.torch.layout import layout_of

FLAT = FlatClipping(norm=2.0)


def layered(**sizes):
    return LayerClipping(
        names=tuple(sizes),
        norms=(1.0,) * len(sizes),
        sizes=tuple(sizes.values()),
        allocation="equal",
    )


def two_linear():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


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


def test_flat_clipping_is_one_layer_of_everything_in_the_order_of_the_model():
    layout = layout_of(two_linear(), FLAT)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.slices == (slice(0, 12), slice(12, 16), slice(16, 24), slice(24, 26))
    assert layout.layers == (0, 0, 0, 0)
    assert layout.sizes == (26,)
    assert layout.n_layers == 1
    assert layout.n_parameters == 26


def test_layers_have_the_order_of_the_plan_not_of_the_model():
    layout = layout_of(two_linear(), layered(**{"2": 10, "0": 16}))
    assert layout.layers == (1, 1, 0, 0)
    assert layout.sizes == (10, 16)
    assert layout.n_parameters == 26


def test_a_layer_may_be_one_parameter():
    layout = layout_of(two_linear(), layered(**{"0.bias": 4, "0.weight": 12, "2": 10}))
    assert layout.layers == (1, 0, 2, 2)


def test_a_name_is_not_the_prefix_of_a_longer_word():
    layout = layout_of(Prefixed(), layered(a2=6, ab=5, a=3))
    assert dict(zip(layout.names, layout.layers, strict=True)) == {
        "ab": 1,
        "a.weight": 2,
        "a.bias": 2,
        "a2.weight": 0,
        "a2.bias": 0,
    }


def test_frozen_parameters_are_left_out():
    model = two_linear()
    model[0].requires_grad_(False)
    layout = layout_of(model, FLAT)
    assert layout.names == ("2.weight", "2.bias")
    assert layout.parameters[0] is model[2].weight
    assert layout.parameters[1] is model[2].bias


def test_a_shared_parameter_is_counted_once_under_its_first_name():
    model = Tied()
    layout = layout_of(model, FLAT)
    assert layout.names == ("words.weight", "out.bias")
    assert layout.n_parameters == 35
    assert layout.parameters[0] is model.out.weight


def test_a_shared_parameter_belongs_to_the_layer_of_its_first_name_only():
    assert layout_of(Tied(), layered(words=28, out=7)).layers == (0, 1)
    with pytest.raises(ArgumentError, match=r"layer 'words' has 28 trainable parameters"):
        layout_of(Tied(), layered(words=1, out=35))


def test_the_representation_shows_no_number_of_the_model():
    assert repr(layout_of(two_linear(), FLAT)) == "ParameterLayout(n_parameters=26, n_layers=1)"


def test_a_model_without_trainable_parameters_is_refused():
    for model in (nn.Tanh(), two_linear().requires_grad_(False)):
        with pytest.raises(ArgumentError, match=r"no trainable parameter; call requires_grad_"):
            layout_of(model, FLAT)


@pytest.mark.parametrize(
    ("clipping", "message"),
    [
        (layered(**{"0": 16}), r"'2\.weight' belongs to no layer"),
        (layered(**{"0": 16, "1": 10}), r"'2\.weight' belongs to no layer"),
        (layered(**{"0": 16, "0.bias": 4, "2": 10}), r"'0\.bias' belongs to several layers"),
        (layered(**{"0": 16, "2": 11}), r"layer '2' has 10 trainable parameters .* and 11 in"),
        (layered(**{"0": 16, "2": 10, "3": 1}), r"layer '3' has 0 trainable parameters"),
        (layered(**{"0.wei": 12, "0.bias": 4, "2": 10}), r"'0\.weight' belongs to no layer"),
    ],
)
def test_layers_that_do_not_share_out_the_parameters_are_refused(clipping, message):
    with pytest.raises(ArgumentError, match=message):
        layout_of(two_linear(), clipping)


@pytest.mark.parametrize("model", [two_linear(), Tied(), Prefixed()], ids=["two", "tied", "named"])
def test_slices_and_sizes_share_out_the_flat_vector(model):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sizes = {name: p.numel() for name, p in reversed(trained.items())}
    for clipping in (FLAT, layered(**sizes)):
        layout = layout_of(model, clipping)
        assert [id(p) for p in layout.parameters] == [id(p) for p in trained.values()]
        ends = [0, *(where.stop for where in layout.slices)]
        assert [where.start for where in layout.slices] == ends[:-1]
        assert [b - a for a, b in itertools.pairwise(ends)] == [p.numel() for p in trained.values()]
        assert ends[-1] == layout.n_parameters == sum(layout.sizes)
        counted = np.bincount(layout.layers, np.diff(ends), minlength=layout.n_layers)
        assert tuple(counted) == layout.sizes


@pytest.mark.soundness
@pytest.mark.parametrize("shape", [(9,), (3,), (4, 1), ()])
def test_sums_that_do_not_fit_their_parameter_have_no_place(shape):
    layout = layout_of(two_linear(), FLAT)
    assert layout.place_of(1, torch.zeros(4)) == slice(12, 16)
    with pytest.raises(TrainingError, match=r"a sum of \d numbers for parameter '0\.bias' of 4"):
        layout.place_of(1, torch.zeros(shape))


def test_noisy_sums_become_gradients_of_their_layers():
    model = two_linear()
    layout = layout_of(model, layered(**{"2": 10, "0": 16}))
    layout.set_gradients(np.arange(26), np.array([0.5, 2.0]))
    assert model[0].bias.grad.tolist() == [24, 26, 28, 30]
    assert model[2].weight.grad.tolist() == [[8, 8.5, 9, 9.5], [10, 10.5, 11, 11.5]]
