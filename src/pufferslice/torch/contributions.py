# SPDX-License-Identifier: Apache-2.0
r"""Contributions of the examples of a block to one parameter: norms and weighted sums.

A contribution represents one vector per example, a function of that example alone. The sum
$\sum_i w_i v_i$ that `weighted_sum` returns is off by at most $\sum_i w_i e_i$. The rounding radius
$e_i$ is at most `block + 4` units in the last place of $\|v_i\|$, or what `rounding_radii` returns;
clipping reduces the weights where that is needed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, final

import attrs
import numpy as np
import torch
from torch import Tensor

from pufferslice._core.arrays import UNIT_ROUNDOFF, Floats, Integers
from pufferslice._core.kernels import kernel, summing_kernel

_SMALL: Final = 2.0**-50
_TINY: Final = 2.0**-900


def row_norms(rows: Tensor) -> Tensor:
    """Norms of the rows, summed in float64 and rounded up, shape (n_rows,)."""
    n_terms = math.prod(rows.shape[1:])
    flat = rows.detach().reshape(len(rows), n_terms)
    if flat.dtype == torch.float32 and flat.device.type == "cpu":
        return torch.from_numpy(_row_norms(flat.numpy()))
    margin = 1 + (n_terms + 8) * UNIT_ROUNDOFF
    if flat.dtype == torch.float64:
        # squares of float64 numbers can overflow or vanish
        sizes = flat.abs().amax(1) if n_terms else flat.new_zeros(len(flat))
        scaled = flat / sizes.masked_fill(sizes == 0, 1.0)[:, None]
        norms = sizes * (scaled.square().sum(1) * margin).sqrt() * margin
        # denormal numbers could be rounded down: any norm of theirs is below this
        return torch.where(sizes == 0, norms, norms.clamp_min(_TINY))
    return (flat.double().square().sum(1) * margin).sqrt() * margin


@kernel
def _are_ordinary(first: Floats, second: Floats, weights: Floats) -> bool:
    """Whether no norm is so large or small that a product in float32 could lose digits.

    Zeros lose no digits, and examples of weight 0 are ignored.
    """
    for i in range(len(weights)):
        if weights[i] > 0:
            for norm in (first[i], second[i]):
                if norm != 0 and not _SMALL <= norm <= 1 / _SMALL:
                    return False
    return True


def add_quantised(sums: Tensor, step: float, integers: Integers) -> None:
    """Round sums to integer multiples of a step, in float64, and add them to `integers`."""
    if sums.device.type == "cpu":
        _add_quantised(sums.numpy(), step, integers)
    else:
        integers += (sums.double() / step).round_().to(torch.int64).numpy(force=True)


@kernel
def _add_quantised(sums: Floats, step: float, integers: Integers) -> None:
    for j in range(len(sums)):
        integers[j] += np.int64(np.rint(np.float64(sums[j]) / step))


def scaled(integers: Integers, scale: float, dtype: torch.dtype) -> Tensor:
    """Integers times a scale, in float64, then rounded to a dtype."""
    if dtype != torch.float32:
        return torch.from_numpy(integers * scale).to(dtype)
    values = torch.empty(len(integers), dtype=dtype)
    _scale(integers, scale, values.numpy())
    return values


@kernel
def _scale(integers: Integers, scale: float, values: Floats) -> None:
    for j in range(len(integers)):
        values[j] = np.float32(np.float64(integers[j]) * scale)


@summing_kernel
def norm_of(row: Floats) -> float:
    """Norm of a row of single precision, rounded up.

    Squares of float32 numbers are exact in float64, and their sums keep to the bound.
    """
    total = 0.0
    for j in range(len(row)):
        value = np.float64(row[j])
        total += value * value
    margin = 1 + (len(row) + 8) * UNIT_ROUNDOFF
    return math.sqrt(total * margin) * margin


@kernel
def _row_norms(rows: Floats) -> Floats:
    norms = np.empty(len(rows))
    for i in range(len(rows)):
        norms[i] = norm_of(rows[i])
    return norms


_LEAST_WEIGHT: Final = 2.0**-100
_WRITE_COST: Final = 12
"""Multiplications that cost about as much as writing and reading a gradient entry."""


@final
class Weights:
    """The weight of each example of a block in float64 and, never larger, in other dtypes."""

    def __init__(self, exact: Tensor) -> None:
        self.exact = exact
        self._rounded: dict[torch.dtype, Tensor] = {torch.float64: exact}

    def like(self, values: Tensor) -> Tensor:
        """The weights in the dtype of some values, rounded down."""
        dtype = values.dtype
        if dtype not in self._rounded:
            smaller = self.exact * (1 - torch.finfo(dtype).eps)
            # below this, rounding to the nearest number of the dtype could double a weight
            smaller = smaller.masked_fill(smaller < _LEAST_WEIGHT, 0.0)
            self._rounded[dtype] = smaller.to(dtype=dtype, device=values.device)
        return self._rounded[dtype]


class Contribution(ABC):
    """One vector per example for one parameter, in the cheapest form."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Upper bounds on the squared norms in float64, shape (n_examples,)."""

    def rounding_radii(self) -> Tensor | None:
        """Rounding radii where they may exceed the default ones, shape (n_examples,).

        The default is that of at most two products and one sum over the examples.
        """
        return None

    @abstractmethod
    def weighted_sum(self, weights: Weights) -> Tensor:
        """The sum of the vectors times their weights, flat."""

    @abstractmethod
    def dense(self) -> Tensor:
        """All vectors, shape (n_examples, n_entries)."""

    @abstractmethod
    def masked(self, finite: Tensor) -> "Contribution":
        """Contribution with zero vectors where `finite` is false, because NaN times 0 is NaN."""


_SQUARES: Final = attrs.Factory(lambda self: row_norms(self.vectors).square(), takes_self=True)
_LEFT_NORMS: Final = attrs.Factory(lambda self: row_norms(self.left), takes_self=True)
_RIGHT_NORMS: Final = attrs.Factory(lambda self: row_norms(self.right), takes_self=True)


@final
@attrs.frozen(eq=False)
class Dense(Contribution):
    """The vectors themselves, shape (n_examples, n_entries)."""

    vectors: Tensor
    squares: Tensor = attrs.field(default=_SQUARES)
    """Squared norms, computed while the vectors are in the cache."""

    def squared_norms(self) -> Tensor:
        """Sums of squares in float64."""
        return self.squares

    def weighted_sum(self, weights: Weights) -> Tensor:
        """Multiply the row of weights by the matrix of vectors."""
        return weights.like(self.vectors) @ self.vectors

    def dense(self) -> Tensor:
        """The vectors."""
        return self.vectors

    def masked(self, finite: Tensor) -> "Dense":
        """The vectors, with those of the other examples set to 0."""
        return Dense(self.vectors.masked_fill(~finite[:, None], 0.0))


@final
@attrs.frozen(eq=False)
class Products(Contribution):
    """Sums of outer products over tokens, `left` (n, tokens, out), `right` (n, tokens, in).

    The sums are not materialised: norms come from those of the two sides, or from Gram products if
    there are several tokens. These may cancel, so everything is then in float64, with `left` and
    `right` of each example scaled to norm 1.
    """

    left: Tensor
    right: Tensor
    left_norms: Tensor = attrs.field(default=_LEFT_NORMS)
    right_norms: Tensor = attrs.field(default=_RIGHT_NORMS)

    @property
    def n_tokens(self) -> int:
        """Tokens of each example."""
        return self.left.shape[1]

    def squared_norms(self) -> Tensor:
        """The product of two norms or, for several tokens, Gram products with their rounding."""
        squares = (self.left_norms * self.right_norms).square()
        if self.n_tokens == 1:
            return squares
        left, right = self._units()
        grams = torch.bmm(left, left.mT) * torch.bmm(right, right.mT)
        n_terms = self.n_tokens**2 + left.shape[2] + right.shape[2] + 16
        return (grams.sum((1, 2)).clamp_min(0.0) + n_terms * UNIT_ROUNDOFF) * squares

    def rounding_radii(self) -> Tensor | None:
        """Rounding radii of one float64 sum over all tokens of all examples; None for one token."""
        if self.n_tokens == 1:
            return None
        n_terms = self.left.shape[0] * self.n_tokens + 16
        return n_terms * UNIT_ROUNDOFF * self.left_norms * self.right_norms

    def weighted_sum(self, weights: Weights) -> Tensor:
        """One matrix product over examples and tokens.

        For one token it is in the precision of the values unless they are very large or small:
        there `left * weights` could lose its digits in float32, and `right` make that matter.
        """
        norms = (self.left_norms, self.right_norms, weights.exact)
        if self.n_tokens == 1 and _are_ordinary(*(x.numpy(force=True) for x in norms)):
            left, right = self.left * weights.like(self.left)[:, None, None], self.right
        else:
            left, right = self._units()
            left = left * (weights.exact * self.left_norms * self.right_norms)[:, None, None]
        return (left.flatten(0, 1).T @ right.flatten(0, 1)).reshape(-1)

    def _units(self) -> tuple[Tensor, Tensor]:
        """Divide both sides of each example by their norms, in float64."""
        pairs = ((self.left, self.left_norms), (self.right, self.right_norms))
        left, right = (
            values.double() / norms.masked_fill(norms == 0, 1.0)[:, None, None]
            for values, norms in pairs
        )
        return left, right

    def dense(self) -> Tensor:
        """The sums of outer products."""
        return torch.bmm(self.left.mT, self.right).flatten(1)

    def masked(self, finite: Tensor) -> "Products":
        """The products, with all tokens of the other examples set to 0."""
        dropped = ~finite[:, None, None]
        return Products(self.left.masked_fill(dropped, 0.0), self.right.masked_fill(dropped, 0.0))


@final
@attrs.frozen(eq=False)
class Rows(Contribution):
    """Sparse gradients of a table: `vectors[j]` belongs to `rows[j]` of example `owners[j]`.

    A row occurs at most once for each example.
    """

    owners: Tensor
    rows: Tensor
    vectors: Tensor
    n_examples: int
    n_rows: int

    def squared_norms(self) -> Tensor:
        """Sums over the rows of each example."""
        norms = torch.zeros(self.n_examples, dtype=torch.float64, device=self.vectors.device)
        norms.index_add_(0, self.owners, row_norms(self.vectors).square())
        return norms * (1 + (self.n_rows + 2) * UNIT_ROUNDOFF)

    def weighted_sum(self, weights: Weights) -> Tensor:
        """Add the weighted vectors row by row."""
        scaled = self.vectors * weights.like(self.vectors)[self.owners][:, None]
        total = self.vectors.new_zeros(self.n_rows, self.vectors.shape[1])
        return total.index_add_(0, self.rows, scaled).reshape(-1)

    def dense(self) -> Tensor:
        """Whole tables, mostly zeros."""
        table = self.vectors.new_zeros(self.n_examples * self.n_rows, self.vectors.shape[1])
        table.index_add_(0, self.owners * self.n_rows + self.rows, self.vectors)
        return table.reshape(self.n_examples, -1)

    def masked(self, finite: Tensor) -> "Rows":
        """The table's gradients, with the rows of the other examples set to 0."""
        return attrs.evolve(
            self, vectors=self.vectors.masked_fill(~finite[self.owners][:, None], 0.0)
        )


def token_products(left: Tensor, right: Tensor) -> Contribution:
    """Per-example sums of outer products over tokens, in the cheaper form for these shapes."""
    if _is_dense_cheaper(left.shape[1], left.shape[2], right.shape[2]):
        return Dense(torch.bmm(left.mT, right).flatten(1))
    return Products(left.contiguous(), right.contiguous())


def _is_dense_cheaper(n_tokens: int, n_out: int, n_in: int) -> bool:
    """Whether writing and reading the products costs less than Gram products and one sum."""
    dense = n_out * n_in * (n_tokens + _WRITE_COST)
    gram = 2 * n_tokens * (n_tokens * (n_out + n_in) + n_out * n_in)
    return n_tokens > 1 and gram >= dense


def product_bytes(n_tokens: int, n_out: int, n_in: int) -> int:
    """Memory of `token_products` for one example."""
    if _is_dense_cheaper(n_tokens, n_out, n_in):
        return 4 * n_out * n_in
    return 8 * n_tokens * (n_tokens + n_out + n_in) if n_tokens > 1 else 0


def convolution_gradients(layer: Any, inputs: Tensor, outputs: Tensor) -> Dense:  # of three types
    """Weight gradients of a convolution, by one backward pass with the examples as groups."""
    n, weight, zeros = len(inputs), layer.weight, [0] * len(layer.stride)
    geometry = (layer.stride, layer.padding, layer.dilation, False, zeros, n * layer.groups)
    beside = outputs.reshape(1, -1, *outputs.shape[2:])
    row = inputs.reshape(1, -1, *inputs.shape[2:])
    like = weight.detach().new_empty(1).expand(n * weight.shape[0], *weight.shape[1:])
    gradients: Sequence[Tensor] = torch.ops.aten.convolution_backward(
        beside, row, like, None, *geometry, (False, True, False)
    )
    return Dense(gradients[1].reshape(n, -1))


def added(contributions: Sequence[Contribution]) -> Contribution:
    """The sum of contributions to one parameter, example by example."""
    if len(contributions) == 1:
        return contributions[0]
    total = contributions[0].dense().clone()
    for contribution in contributions[1:]:
        total += contribution.dense()
    return Dense(total)
