# SPDX-License-Identifier: Apache-2.0
"""Linear maps with trained parameters, and what the examples contribute to these."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from pufferslice.torch.contributions import (
    Contribution,
    Dense,
    Outer,
    Scratch,
    as_tokens,
    joined_products,
)


class LinearUse(NamedTuple):
    """`inputs @ weight.T + bias`, with any number of token dimensions."""

    weight: Tensor
    bias: Tensor | None
    positions: tuple[int | None, int | None]
    """Where weight and bias lie in the layout; None is a constant."""

    def forward(self, inputs: Tensor, anchor: Tensor | None) -> Tensor:
        """The operation; an anchor is a zero that autograd is to come back to."""
        bias = self.bias
        if anchor is not None:
            zero = anchor.to(self.weight)
            bias = zero.expand(len(self.weight)) if bias is None else bias + zero
        return functional.linear(inputs, self.weight, bias)


class LinearTokens(NamedTuple):
    """One use of a linear map, after the backward pass."""

    positions: tuple[int | None, int | None]
    """Of weight and bias in the layout; None is a constant."""
    outputs: Tensor
    """Gradient of the outputs."""
    inputs: Tensor


def linear_contributions(
    uses: Sequence[LinearTokens], scratch: Scratch
) -> Iterator[tuple[int, Contribution]]:
    """Contributions by their positions; those of one weight are joined over all its uses."""
    by_weight: dict[int, list[LinearTokens]] = {}
    for use in uses:
        weight, bias = use.positions
        if weight is not None:
            by_weight.setdefault(weight, []).append(use)
        elif bias is not None:
            yield bias, _to_bias(use, None)
    for position, those in by_weight.items():
        joined = joined_products([(use.outputs, use.inputs) for use in those], scratch)
        yield position, joined
        for use in those:
            if use.positions[1] is not None:
                yield use.positions[1], _to_bias(use, joined)


def _to_bias(use: LinearTokens, weight: Contribution | None) -> Contribution:
    """Gradients of the outputs, summed over tokens; a weight may have their norms already."""
    if use.outputs.dim() > 2:
        return Dense(as_tokens(use.outputs).sum(1))
    if isinstance(weight, Outer) and weight.left is use.outputs:
        return Dense(use.outputs, weight.left_norms.square())
    return Dense(use.outputs)
