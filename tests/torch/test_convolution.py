# SPDX-License-Identifier: Apache-2.0
"""Every way to the weight gradient of a convolution gives that of autograd, example by example."""

import pytest
import torch

from pufferslice.torch.contributions import CHUNK, Dense, Parts, Permuted, Scratch, Weights
from pufferslice.torch.convolution import ConvolutionUse

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


def use_of(weight, *, stride=(1, 1), padding=(1, 1), dilation=(1, 1)):
    return ConvolutionUse(
        weight=weight,
        bias=None,
        positions=(0, None),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=1,
    )


def expected_rows(use, inputs, gradients):
    rows = []
    for image, gradient in zip(inputs, gradients, strict=True):
        weight = use.weight.double().requires_grad_()
        made = torch.conv2d(
            image[None].double(), weight, None, use.stride, use.padding, use.dilation
        )
        rows.append(torch.autograd.grad(made, weight, gradient[None].double())[0].flatten())
    return torch.stack(rows)


@pytest.mark.parametrize("channels", [3, 5, 8, 10, 16, 32])
@pytest.mark.parametrize("n_out", [1, 6])
@pytest.mark.parametrize(("stride", "padding"), [((1, 1), (1, 1)), ((2, 1), (0, 2))])
@pytest.mark.parametrize("n", [1, 4, CHUNK, CHUNK + 3, 2 * CHUNK + 1])
def test_few_and_many_channels(channels, n_out, stride, padding, n):
    use = use_of(torch.randn(n_out, channels, 3, 3), stride=stride, padding=padding)
    inputs = torch.randn(n, channels, 6, 7)
    gradients = torch.randn_like(use.forward(inputs))
    scratch = Scratch()
    for _ in range(2):  # the second time with used buffers
        scratch.begin()
        found = use.contributions(inputs, gradients, scratch)[0]
        expected = expected_rows(use, inputs, gradients)
        torch.testing.assert_close(found.dense().double(), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(
            found.squared_norms(), expected.square().sum(1), rtol=1e-5, atol=0
        )
        weights = torch.rand(n, dtype=torch.float64)
        total = found.weighted_sum(Weights(weights)).double()
        torch.testing.assert_close(total, weights @ expected, rtol=0, atol=1e-4 * n)


def test_many_channels_for_few_positions_grow():
    use = use_of(torch.randn(16, 16, 3, 3))
    for side, grows in ((4, True), (32, False)):
        inputs = torch.randn(2, 16, side, side)
        assert use.grows(inputs, use.forward(inputs)) is grows


def test_pieces_are_what_they_are_together():
    vectors = torch.randn(2 * CHUNK + 3, 6)
    whole, parts = Dense(vectors), Parts(tuple(map(Dense, vectors.split(CHUNK))))
    weights = Weights(torch.rand(len(vectors), dtype=torch.float64))
    assert torch.equal(parts.squared_norms(), whole.squared_norms())
    assert torch.equal(parts.dense(), vectors)
    assert parts.rounding_radii() is None
    torch.testing.assert_close(parts.weighted_sum(weights), whole.weighted_sum(weights))
    vectors[CHUNK] = torch.nan
    spoilt = Permuted(Parts(tuple(map(Dense, vectors.split(CHUNK)))), shape=(2, 3), order=(1, 0))
    kept = spoilt.masked(torch.isfinite(spoilt.squared_norms()))
    assert torch.isfinite(spoilt.squared_norms()).sum() == len(vectors) - 1
    assert kept.squared_norms()[CHUNK] == 0
    assert torch.isfinite(kept.weighted_sum(weights)).all()
    assert not kept.dense()[CHUNK].any()
