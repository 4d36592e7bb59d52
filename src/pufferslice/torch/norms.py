# SPDX-License-Identifier: Apache-2.0
"""Norms that are never too small, and sums put on a grid and taken off it again."""

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pufferslice.arrays import Floats, Integers
from pufferslice.compiled import kernel, summing_kernel

UNIT: Final = 2.0**-53
"""Half the distance from 1 to the next float64."""

_SMALL: Final = 2.0**-50
_TINY: Final = 2.0**-900


def squared_row_norms(rows: Tensor) -> Tensor:
    """Squared norms of the rows, rounded up, shape (n_rows,)."""
    return row_norms(rows).square()


def row_norms(rows: Tensor) -> Tensor:
    """Norms of the rows, summed in float64 and rounded up, shape (n_rows,)."""
    n_terms = math.prod(rows.shape[1:])
    flat = rows.detach().reshape(len(rows), n_terms)
    if flat.dtype == torch.float32 and flat.device.type == "cpu":
        return torch.from_numpy(_row_norms(flat.numpy()))
    margin = 1 + (n_terms + 8) * UNIT
    if flat.dtype == torch.float64:
        # squares of float64 numbers can overflow or vanish
        sizes = flat.abs().amax(1) if n_terms else flat.new_zeros(len(flat))
        scaled = flat / sizes.masked_fill(sizes == 0, 1.0)[:, None]
        norms = sizes * (scaled.square().sum(1) * margin).sqrt() * margin
        # denormal numbers could be rounded down: any norm of theirs is below this
        return torch.where(sizes == 0, norms, norms.clamp_min(_TINY))
    return (flat.double().square().sum(1) * margin).sqrt() * margin


def units(values: Tensor, norms: Tensor) -> Tensor:
    """Each example's values over their norm, in float64."""
    sizes = norms.masked_fill(norms == 0, 1.0)
    return values.double() / sizes.reshape(-1, *(1,) * (values.dim() - 1))


def are_ordinary(first: Tensor, second: Tensor, weights: Tensor) -> bool:
    """Whether no norm is so large or small that a product in float32 could lose digits.

    Zeros lose none, and examples without weight do not count.
    """
    return bool(_all_ordinary(*(x.numpy(force=True) for x in (first, second, weights))))


@kernel
def _all_ordinary(first: Floats, second: Floats, weights: Floats) -> bool:
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
    margin = 1 + (len(row) + 8) * UNIT
    return math.sqrt(total * margin) * margin


@kernel
def _row_norms(rows: Floats) -> Floats:
    norms = np.empty(len(rows))
    for i in range(len(rows)):
        norms[i] = norm_of(rows[i])
    return norms
