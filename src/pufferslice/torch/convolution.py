# SPDX-License-Identifier: Apache-2.0
"""Convolutions with trained parameters, and their weight gradients example by example."""

from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import numpy as np
import torch
from torch import Tensor

from pufferslice.torch.contributions import (
    CHUNK,
    Contribution,
    Dense,
    Parts,
    Permuted,
    Scratch,
    written_products,
)
from pufferslice.torch.products import are_compiled, convolution_products

_LONG: Final = 4
_FEW_CHANNELS: Final = 8


@final
@attrs.frozen(kw_only=True, eq=False)
class ConvolutionUse:
    """A convolution in one, two or three dimensions."""

    weight: Tensor
    bias: Tensor | None
    positions: tuple[int | None, int | None]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def needs_inputs(self) -> bool:
        """Always: torch reads their shape."""
        return True

    def forward(self, inputs: Tensor) -> Tensor:
        """The operation."""
        zeros = [0] * len(self.stride)
        geometry = (self.stride, self.padding, self.dilation, False, zeros, self.groups)
        return torch.convolution(inputs, self.weight, self.bias, *geometry)

    def input_gradient(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """The transposed convolution."""
        return self._backward(inputs, outputs, self.weight, (True, False), self.groups)

    def grows(self, inputs: Tensor, outputs: Tensor) -> bool:
        """Where there are many channels for few positions."""
        return self.weight.numel() * len(inputs) > inputs.numel() + outputs.numel()

    def contributions(
        self, inputs: Tensor, outputs: Tensor, scratch: Scratch
    ) -> dict[int, Contribution]:
        """One weight gradient per example."""
        weight, bias = self.positions
        found: dict[int, Contribution] = {}
        if weight is not None:
            found[weight] = self._way(inputs, outputs)(inputs, outputs, scratch)
        if bias is not None:
            found[bias] = Dense(outputs.flatten(2).sum(2))
        return found

    def _way(self, inputs: Tensor, outputs: Tensor) -> Callable[..., Contribution]:
        """The quickest way by its shapes; copying patches may cost more than it saves."""
        flat = len(self.stride) == 2 and self.groups == 1 and self.dilation == (1, 1)
        if not flat or not self.weight.is_contiguous():
            return self._by_groups
        if are_compiled(inputs, self.weight.shape[3] * inputs.shape[1]):
            return self._compiled
        if inputs.shape[1] < _FEW_CHANNELS:
            return self._by_rows
        n_positions = outputs.shape[2] * outputs.shape[3]
        return self._by_groups if n_positions > _LONG * outputs.shape[1] else self._by_patches

    def _compiled(self, inputs: Tensor, outputs: Tensor, scratch: Scratch) -> Contribution:  # noqa: ARG002 - as _by_patches
        """One product per example, with its patches read where they are.

        Pieces of memory of the size of activations: they fit where such were given back.
        """
        n_out, n_in, kernel_h, kernel_w = self.weight.shape
        shape = (n_out, kernel_h, kernel_w, n_in)
        geometry = ((self.stride[0], self.stride[1]), (self.padding[0], self.padding[1]))
        parts = []
        pairs = zip(torch.split(inputs, CHUNK), torch.split(outputs, CHUNK), strict=True)
        for some, those in pairs:
            gradients, norms = some.new_empty((len(some), *shape)), np.empty(len(some))
            convolution_products(
                some.contiguous().numpy(),
                those.contiguous().numpy(),
                geometry,
                gradients.numpy(),
                norms,
            )
            parts.append(Dense(gradients.flatten(1), torch.from_numpy(norms**2)))
        return Permuted(
            parts[0] if len(parts) == 1 else Parts(tuple(parts)), shape=shape, order=(0, 3, 1, 2)
        )

    def _by_groups(self, inputs: Tensor, outputs: Tensor, scratch: Scratch) -> Contribution:  # noqa: ARG002 - as _by_patches
        """The examples are laid side by side as groups of one convolution."""
        n, shape = len(inputs), self.weight.shape
        beside = outputs.reshape(1, -1, *outputs.shape[2:])
        like = self.weight.new_empty(1).expand(n * shape[0], *shape[1:])
        row = inputs.reshape(1, -1, *inputs.shape[2:])
        gradients = self._backward(row, beside, like, (False, True), n * self.groups)
        return Dense(gradients.reshape(n, -1))

    def _by_patches(self, inputs: Tensor, outputs: Tensor, scratch: Scratch) -> Contribution:
        """One product per example with its patches, copied from a view with channels last."""
        n, channels, height, width = inputs.shape
        (up, left), (kernel_h, kernel_w) = self.padding, self.weight.shape[2:]
        n_out, out_h, out_w = outputs.shape[1:]
        tall, wide = height + 2 * up, width + 2 * left
        # the border stays zero: the name has everything that decides where it is
        padded = scratch.shared((up, left), (CHUNK, tall, wide, channels), inputs)
        inner = padded[:, up : up + height, left : left + width].permute(0, 3, 1, 2)
        row, (down, right) = wide * channels, self.stride
        view = padded.as_strided(
            (CHUNK, out_h, out_w, kernel_h, kernel_w * channels),
            (tall * row, down * row, right * channels, row, 1),
        )
        patches = scratch.shared("patches", tuple(view.shape), inputs)

        def copied(where: slice) -> Tensor:
            part = inputs[where]
            inner[: len(part)].copy_(part)
            patches[: len(part)].copy_(view[: len(part)])
            return patches[: len(part)].reshape(len(part), out_h * out_w, -1)

        buffer = scratch.take((n, n_out, kernel_h * kernel_w * channels), inputs)
        return Permuted(
            written_products(outputs.reshape(n, n_out, -1), copied, buffer),
            shape=(n_out, kernel_h, kernel_w, channels),
            order=(0, 3, 1, 2),
        )

    def _by_rows(self, inputs: Tensor, outputs: Tensor, scratch: Scratch) -> Contribution:
        """The same for few channels: with channels first, whole rows of pixels are copied."""
        n, channels, height, width = inputs.shape
        (up, left), (kernel_h, kernel_w) = self.padding, self.weight.shape[2:]
        n_out, out_h, out_w = outputs.shape[1:]
        tall, wide = height + 2 * up, width + 2 * left
        padded = scratch.shared(("rows", up, left), (CHUNK, channels, tall, wide), inputs)
        inner = padded[:, :, up : up + height, left : left + width]
        down, right = self.stride
        view = padded.as_strided(
            (CHUNK, channels, kernel_h, kernel_w, out_h, out_w),
            (channels * tall * wide, tall * wide, wide, 1, down * wide, right),
        )
        patches = scratch.shared("rows", tuple(view.shape), inputs)

        def copied(where: slice) -> Tensor:
            part = inputs[where]
            inner[: len(part)].copy_(part)
            patches[: len(part)].copy_(view[: len(part)])
            return patches[: len(part)].reshape(len(part), -1, out_h * out_w).mT

        buffer = scratch.take((n, n_out, channels * kernel_h * kernel_w), inputs)
        return written_products(outputs.reshape(n, n_out, -1), copied, buffer)

    def _backward(
        self,
        inputs: Tensor,
        outputs: Tensor,
        weight: Tensor,
        wanted: tuple[bool, bool],
        groups: int,
    ) -> Tensor:
        zeros = [0] * len(self.stride)
        geometry = (self.stride, self.padding, self.dilation, False, zeros, groups)
        gradients: Sequence[Tensor] = torch.ops.aten.convolution_backward(
            outputs, inputs, weight, None, *geometry, (*wanted, False)
        )
        return gradients[0] if wanted[0] else gradients[1]
