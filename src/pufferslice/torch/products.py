# SPDX-License-Identifier: Apache-2.0
"""Products of two matrices per example in single precision, and their norms, on the processor.

Libraries of linear algebra are made for one large product, or for matrices that lie in memory as
such. Here are many products of few rows, the norm of each is taken while it is in the cache, and
the rows of a right matrix may overlap, as the patches of an image do, so that they need no copy.
"""

from typing import Final

import numba
import numpy as np
import torch
from torch import Tensor

from pufferslice.arrays import Floats
from pufferslice.compiled import kernel
from pufferslice.torch.norms import norm_of
from pufferslice.torch.tiles import LANES, ROWS, VECTORS, tile

Arrays = tuple[Floats, Floats, Floats]
Pair = tuple[int, int]
Triple = tuple[int, int, int]
Strides = tuple[int, int, int, int, int, int]

_LONGEST: Final = 256
"""Terms that are added up one by one; then such sums are added, so that rounding stays small."""

_HAS_CODE: Final = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]  # set at import
"""Tiles are machine code, which numba can be told not to make."""

_wide, _wide_row = tile(ROWS, VECTORS), tile(1, VECTORS)
_narrow, _narrow_row = tile(ROWS, 1), tile(1, 1)


def are_compiled(like: Tensor, n_columns: int) -> bool:
    """Whether the products below can be used: numbers like these, so many columns."""
    is_fit = like.dtype == torch.float32 and like.device.type == "cpu" and n_columns % LANES == 0
    return is_fit and _HAS_CODE


@kernel
def token_products(left: Floats, right: Floats, products: Floats, norms: Floats) -> None:
    """Products of `left` (n, t, n_out) and `right` (n, t, n_in), summed over t, and their norms.

    `products` has shape (n, n_out, n_in), n_in a multiple of `LANES`; norms are rounded up.
    """
    n, n_tokens, n_out = left.shape
    n_in = right.shape[2]
    arrays = (left.reshape(-1), right.reshape(-1), products.reshape(-1))
    strides = (1, 0, n_out, 0, n_in, n_in)
    size = n_out * n_in
    for i in range(n):
        for t in range(0, n_tokens, _LONGEST):
            starts = ((i * n_tokens + t) * n_out, (i * n_tokens + t) * n_in, i * size)
            summed = (1, min(_LONGEST, n_tokens - t), t)
            _add_product(arrays, starts, strides, (n_out, n_in), summed)
        norms[i] = norm_of(arrays[2][i * size : (i + 1) * size])


@kernel
def convolution_products(
    inputs: Floats,
    outputs: Floats,
    geometry: tuple[Pair, Pair],
    products: Floats,
    norms: Floats,
) -> None:
    """Weight gradients of a convolution in two dimensions, example by example, and their norms.

    `inputs` (n, n_in, height, width), gradients `outputs` (n, n_out, out_h, out_w), `geometry` is
    stride and padding; `products` has shape (n, n_out, kernel_h, kernel_w, n_in), kernel_w * n_in
    a multiple of `LANES`; norms are rounded up.
    """
    n, n_in, height, width = inputs.shape
    n_out, out_h, out_w = outputs.shape[1:]
    kernel_h, kernel_w = products.shape[2:4]
    (down, right), (up, left) = geometry
    # the border stays zero
    padded = np.zeros((height + 2 * up, width + 2 * left, n_in), dtype=np.float32)
    arrays = (outputs.reshape(-1), padded.reshape(-1), products.reshape(-1))
    line, columns = (width + 2 * left) * n_in, kernel_w * n_in
    strides = (out_h * out_w, out_w, 1, down * line, right * n_in, kernel_h * columns)
    size = n_out * kernel_h * columns
    n_lines = max(1, _LONGEST // out_w)
    for i in range(n):
        _put_channels_last(inputs[i], padded[up : up + height, left : left + width])
        for k in range(kernel_h):
            for y in range(0, out_h, n_lines):
                for x in range(0, out_w, _LONGEST):
                    at_left = (i * n_out * out_h + y) * out_w + x
                    at_right = (k + y * down) * line + x * right * n_in
                    starts = (at_left, at_right, i * size + k * columns)
                    summed = (min(n_lines, out_h - y), min(_LONGEST, out_w - x), x + y)
                    _add_product(arrays, starts, strides, (n_out, columns), summed)
        norms[i] = norm_of(arrays[2][i * size : (i + 1) * size])


@kernel
def _put_channels_last(image: Floats, into: Floats) -> None:
    n_channels, height, width = image.shape
    for y in range(height):
        for c in range(n_channels):
            for x in range(width):
                into[y, x, c] = image[c, y, x]


@kernel
def _add_product(
    arrays: Arrays, starts: Triple, strides: Strides, shape: Pair, summed: Triple
) -> None:
    """All tiles of one product, or of a part of its sum; the arguments are those of a tile."""
    n_rows, n_columns = shape
    whole, column = n_rows - n_rows % ROWS, 0
    while column < n_columns:
        is_wide = n_columns - column >= VECTORS * LANES
        at_left, at_right, at_out = starts[0], starts[1] + column, starts[2] + column
        for row in range(0, whole, ROWS):
            at = (at_left + row * strides[0], at_right, at_out + row * strides[5])
            if is_wide:
                _wide(arrays, at, strides, summed)
            else:
                _narrow(arrays, at, strides, summed)
        for row in range(whole, n_rows):
            at = (at_left + row * strides[0], at_right, at_out + row * strides[5])
            if is_wide:
                _wide_row(arrays, at, strides, summed)
            else:
                _narrow_row(arrays, at, strides, summed)
        column += VECTORS * LANES if is_wide else LANES
