# SPDX-License-Identifier: Apache-2.0
"""The batch of one step: which records were drawn, and their examples block by block."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

import attrs
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from pufferslice.arrays import Integers, locked_integers
from pufferslice.errors import ArgumentError, TrainingError

Examples: TypeAlias = tuple[Tensor, ...]
"""Inputs and, last, the target; examples along dimension 0 of each."""

_ITEMS: Final = (
    "items of the dataset must be tuples (inputs..., target) of tensors, arrays or numbers, of the "
    "same shapes in every item"
)


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Batch:
    """The records that one step draws; `Trainer.batches` makes it, `Trainer.step` takes it.

    Which records were drawn, and how many, may have to stay secret (`draws_may_be_seen` in the
    certificate), so nothing of it is shown.
    """

    step: int
    """The step that it is drawn for, from 0."""
    indices: Integers = attrs.field(converter=locked_integers)
    """Positions of the records in the dataset, in the order in which they were drawn."""
    dataset: Any
    block_size: int
    """Examples per block."""

    @property
    def n_blocks(self) -> int:
        """How many blocks the examples fill, the last one perhaps not wholly."""
        return -(-len(self.indices) // self.block_size)

    def block(self, number: int) -> tuple[Examples, int]:
        """The examples of one block, and how many of them count.

        They always fill the block: in the place of missing ones stands its first one.
        """
        start = number * self.block_size
        indices = self.indices[start : start + self.block_size].tolist()
        return _examples(self.dataset, indices, self.block_size), len(indices)

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


def check_dataset(dataset: Any, n_records: int) -> None:  # noqa: ANN401 - torch declares no length
    """The dataset can be drawn from by position, and has as many records as the plan."""
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        msg = (
            f"dataset must give its length and its records by position, and a "
            f"{type(dataset).__name__} does not; a plan draws from a known number of records"
        )
        raise ArgumentError(msg)
    if len(dataset) != n_records:
        msg = (
            f"the dataset has {len(dataset)} records and the plan has {n_records}; the cost holds "
            "for the plan's number only. Make the plan with the number of records"
        )
        raise TrainingError(msg)


def _examples(dataset: Any, indices: list[int], size: int) -> Examples:  # noqa: ANN401 - as above
    missing = size - len(indices)
    # A subclass may give other items than its tensors.
    if type(dataset) is TensorDataset:
        wanted = torch.tensor(indices + indices[:1] * missing)
        examples = tuple(tensor.index_select(0, wanted) for tensor in dataset.tensors)
        return _checked(examples, size)
    items = _items(dataset, indices)
    try:
        examples = default_collate([*items, *items[:1] * missing])
    except (TypeError, RuntimeError) as error:
        raise ArgumentError(_ITEMS) from error
    return _checked(examples, size)


def _items(dataset: Any, indices: list[int]) -> list[Any]:  # noqa: ANN401 - as above
    if not hasattr(dataset, "__getitems__"):
        return [dataset[index] for index in indices]
    items = list(dataset.__getitems__(indices))
    if len(items) != len(indices):
        msg = f"__getitems__ of the dataset gave {len(items)} items for {len(indices)} positions"
        raise ArgumentError(msg)
    return items


def _checked(examples: Sequence[Any], size: int) -> Examples:
    if not isinstance(examples, tuple | list) or len(examples) < 2:
        raise ArgumentError(_ITEMS)
    for tensor in examples:
        if not isinstance(tensor, Tensor) or not tensor.ndim or len(tensor) != size:
            raise ArgumentError(_ITEMS)
    return tuple(examples)
