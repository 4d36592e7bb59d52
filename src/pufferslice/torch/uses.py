# SPDX-License-Identifier: Apache-2.0
"""One use of trained parameters in a forward pass, and its gradients example by example.

A use runs its operation with the parameters as constants. Its backward pass gives the gradient of
the input only, as ordinary backpropagation does, and keeps what each example contributes to the
parameters.
"""

from collections.abc import Sequence
from typing import Any, Protocol, final

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from pufferslice.torch.contributions import (
    Contribution,
    Dense,
    Rows,
    Scratch,
)


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

    def grows(self, inputs: Tensor, outputs: Tensor) -> bool:
        """Whether the contributions take more room than what they are made of."""
        ...

    def contributions(
        self, inputs: Tensor, outputs: Tensor, scratch: Scratch
    ) -> dict[int, Contribution]:
        """What each example contributes, by the position of the parameter in the layout."""
        ...


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

    def grows(self, inputs: Tensor, outputs: Tensor) -> bool:  # noqa: ARG002 - see Use
        """No: they are sums."""
        return False

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

    def grows(self, inputs: Tensor, outputs: Tensor) -> bool:  # noqa: ARG002 - see Use
        """No: they are sums."""
        return False

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
        # a copy: its norm is taken now, and autograd goes on with its own gradient
        summed = products.sum(along) if along else products.clone()
        return Dense(summed.reshape(len(products), -1))


def tuple_of(value: Any, length: int) -> tuple[int, ...]:  # noqa: ANN401 - torch takes both
    """A stride or padding given as one number or as one per dimension."""
    values = tuple(value) if isinstance(value, Sequence | torch.Size) else (value,)
    return tuple(int(v) for v in (values if len(values) == length else values * length))
