# SPDX-License-Identifier: Apache-2.0
"""One use of trained parameters in a forward pass, and its gradients example by example.

A use runs its operation with the parameters as constants. Its backward pass gives the gradient of
the input only, as ordinary backpropagation does, and keeps what each example contributes to the
parameters.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol, final

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from pufferslice.torch.contributions import (
    Contribution,
    Dense,
    Permuted,
    Rows,
    Scratch,
    as_tokens,
)

_LONG: Final = 4
_FEW_CHANNELS: Final = 8


class Use(Protocol):
    """An operation on examples (dimension 0) with trained parameters."""

    @property
    def needs_inputs(self) -> bool:
        """Whether the gradients depend on the inputs."""
        ...

    def forward(self, inputs: Tensor) -> Tensor:
        """What the operation gives."""
        ...

    def input_gradient(self, inputs: Tensor, outputs: Tensor) -> Tensor | None:
        """Gradient of the inputs, given that of the outputs."""
        ...

    def contributions(
        self, inputs: Tensor, outputs: Tensor, scratch: Scratch
    ) -> dict[int, Contribution]:
        """What each example contributes, by the position of the parameter in the layout."""
        ...


@final
@attrs.frozen(kw_only=True, eq=False)
class LinearUse:
    """`inputs @ weight.T + bias`, with any number of token dimensions."""

    weight: Tensor
    bias: Tensor | None
    positions: tuple[int | None, int | None]
    """Where weight and bias lie in the layout; None is a constant."""

    @property
    def needs_inputs(self) -> bool:
        """For the weight only."""
        return self.positions[0] is not None

    def forward(self, inputs: Tensor) -> Tensor:
        """The operation."""
        return functional.linear(inputs, self.weight, self.bias)

    def input_gradient(self, inputs: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002 - see Use
        """The gradient times the weight."""
        return outputs @ self.weight

    def contributions(
        self,
        inputs: Tensor,  # noqa: ARG002 - see Use
        outputs: Tensor,
        scratch: Scratch,  # noqa: ARG002 - see Use
    ) -> dict[int, Contribution]:
        """Those to the bias; those to the weight are joined over all uses by the recorder."""
        bias = self.positions[1]
        if bias is None:
            return {}
        # a copy: autograd may go on with its own gradient
        return {bias: Dense(outputs.clone() if outputs.dim() == 2 else as_tokens(outputs).sum(1))}


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

    def contributions(
        self, inputs: Tensor, outputs: Tensor, scratch: Scratch
    ) -> dict[int, Contribution]:
        """One weight gradient per example."""
        weight, bias = self.positions
        found: dict[int, Contribution] = {}
        if weight is not None:
            by_patches = self._has_patches() and not self._is_long(outputs)
            gradients = self._by_patches if by_patches else self._by_groups
            found[weight] = gradients(inputs, outputs, scratch)
        if bias is not None:
            found[bias] = Dense(outputs.flatten(2).sum(2))
        return found

    def _has_patches(self) -> bool:
        flat = len(self.stride) == 2 and self.groups == 1 and self.dilation == (1, 1)
        return flat and self.weight.is_contiguous()

    def _is_long(self, outputs: Tensor) -> bool:
        """Whether copying patches costs more than it saves: many positions for few channels."""
        n_positions = outputs.shape[2] * outputs.shape[3]
        return n_positions > _LONG * outputs.shape[1] and self.weight.shape[1] >= _FEW_CHANNELS

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
        tall, wide = height + 2 * up, width + 2 * left
        # the border stays zero: the name has everything that decides where it is
        padded = scratch.shared((up, left), (n, tall, wide, channels), inputs)
        padded[:, up : up + height, left : left + width].copy_(inputs.permute(0, 2, 3, 1))
        n_out, out_h, out_w = outputs.shape[1:]
        view = padded.as_strided(
            (n, out_h, out_w, kernel_h, kernel_w * channels),
            (
                tall * wide * channels,
                self.stride[0] * wide * channels,
                self.stride[1] * channels,
                wide * channels,
                1,
            ),
        )
        patches = scratch.shared("patches", tuple(view.shape), inputs)
        patches.copy_(view)
        gradients = scratch.take((n, n_out, kernel_h * kernel_w * channels), inputs)
        rows = outputs.reshape(n, n_out, -1)
        torch.bmm(rows, patches.reshape(n, out_h * out_w, -1), out=gradients)
        return Permuted(
            Dense(gradients.flatten(1)),
            shape=(n_out, kernel_h, kernel_w, channels),
            order=(0, 3, 1, 2),
        )

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


@final
@attrs.frozen(kw_only=True, eq=False)
class EmbeddingUse:
    """Rows of a table, looked up by whole numbers."""

    weight: Tensor
    position: int
    padding_row: int | None

    @property
    def needs_inputs(self) -> bool:
        """They say which rows."""
        return True

    def forward(self, inputs: Tensor) -> Tensor:
        """The rows."""
        return functional.embedding(inputs, self.weight)

    def input_gradient(self, inputs: Tensor, outputs: Tensor) -> None:
        """Whole numbers have none."""

    def contributions(
        self,
        inputs: Tensor,
        outputs: Tensor,
        scratch: Scratch,  # noqa: ARG002 - see Use
    ) -> dict[int, Contribution]:
        """One vector per example and distinct row."""
        n, n_rows = len(inputs), len(self.weight)
        ids = inputs.reshape(n, -1)
        owners = torch.arange(n, device=ids.device)[:, None].expand_as(ids)
        vectors = outputs.reshape(-1, self.weight.shape[1])
        keys, where = torch.unique(owners * n_rows + ids, return_inverse=True)
        sums = vectors.new_zeros(len(keys), vectors.shape[1])
        sums.index_add_(0, where.reshape(-1), vectors)
        rows = Rows(
            owners=torch.div(keys, n_rows, rounding_mode="floor"),
            rows=keys % n_rows,
            vectors=sums,
            n_examples=n,
            n_rows=n_rows,
        )
        if self.padding_row is not None:
            rows.vectors[rows.rows == self.padding_row] = 0.0
        return {self.position: rows}


@final
@attrs.frozen(kw_only=True, eq=False)
class AffineUse:
    """`inputs * weight + bias`, both broadcast along every dimension but their own."""

    weight: Tensor | None
    bias: Tensor | None
    positions: tuple[int | None, int | None]
    shape: tuple[int, ...]
    """Shape of weight and bias against one example, with 1 where they are broadcast."""

    @property
    def needs_inputs(self) -> bool:
        """For the weight only."""
        return self.positions[0] is not None

    def forward(self, inputs: Tensor) -> Tensor:
        """The operation."""
        scaled = inputs if self.weight is None else inputs * self.weight.reshape(self.shape)
        return scaled + (0.0 if self.bias is None else self.bias.reshape(self.shape))

    def input_gradient(self, inputs: Tensor, outputs: Tensor) -> Tensor:  # noqa: ARG002 - see Use
        """The gradient times the weight."""
        return outputs if self.weight is None else outputs * self.weight.reshape(self.shape)

    def contributions(
        self,
        inputs: Tensor,
        outputs: Tensor,
        scratch: Scratch,  # noqa: ARG002 - see Use
    ) -> dict[int, Contribution]:
        """Sums over what the parameters are broadcast along."""
        weight, bias = self.positions
        found: dict[int, Contribution] = {}
        if weight is not None:
            found[weight] = self._summed(outputs * inputs)
        if bias is not None:
            found[bias] = self._summed(outputs)
        return found

    def _summed(self, products: Tensor) -> Contribution:
        missing = products.dim() - 1 - len(self.shape)
        shape = (1,) * missing + self.shape
        along = [i + 1 for i, size in enumerate(shape) if size == 1 and products.shape[i + 1] != 1]
        summed = products.sum(along) if along else products
        return Dense(summed.reshape(len(products), -1))


def tuple_of(value: Any, length: int) -> tuple[int, ...]:  # noqa: ANN401 - torch takes both
    """A stride or padding given as one number or as one per dimension."""
    values = tuple(value) if isinstance(value, Sequence | torch.Size) else (value,)
    return tuple(int(v) for v in (values if len(values) == length else values * length))
