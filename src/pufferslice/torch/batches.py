# SPDX-License-Identifier: Apache-2.0
"""The batch of one step: which records were drawn, and their examples block by block."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from pufferslice.arrays import Integers, locked_integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.sgd.grid import MOST_GROUPS
from pufferslice.torch.per_example import Examples, leaves, mapped, seeded

_ITEMS: Final = (
    "items of the dataset must be tuples (inputs..., target), or dicts of inputs by name, of "
    "tensors, arrays or numbers with the same shapes in every item; pad sequences to one public "
    "length"
)


class Block(NamedTuple):
    """What has to be fetched for one block."""

    number: int
    seed: int
    """Of the random numbers that the dataset draws, for augmentation."""
    indices: tuple[int, ...]


@final
@attrs.frozen(eq=False, repr=False)
class Source:
    """A dataset, and how its items become examples.

    `collate_fn` is called on each item alone, a list of one: what it pads or joins cannot depend on
    other records.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None = None

    def check(self, n_records: int) -> None:
        """The dataset can be drawn from by position, and has as many records as the plan."""
        dataset = self.dataset
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
                f"dataset has {len(dataset)} records and the plan has {n_records}; the cost holds "
                "for the plan's number only. Make the plan with the number of records"
            )
            raise TrainingError(msg)

    def fetch(self, block: Block) -> Examples:
        """The examples of a block; the generators of torch, numpy and Python are seeded for it."""
        with seeded(block.seed):
            return self._examples(list(block.indices))

    def _examples(self, indices: list[int]) -> Examples:
        # a subclass may give other items than its tensors
        if type(self.dataset) is TensorDataset and self.collate_fn is None:
            wanted = torch.tensor(indices)
            found: Any = tuple(tensor.index_select(0, wanted) for tensor in self.dataset.tensors)
        else:
            items = self._items(indices)
            try:
                if self.collate_fn is None:
                    found = default_collate(items)
                else:
                    found = joined([_plain(self.collate_fn([item])) for item in items])
            except (TypeError, ValueError, RuntimeError) as error:
                raise ArgumentError(_ITEMS) from error
        found = _plain(found)
        if not (isinstance(found, dict) or (isinstance(found, tuple) and len(found) > 1)):
            raise ArgumentError(_ITEMS)
        for leaf in leaves(found):
            if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != len(indices):
                raise ArgumentError(_ITEMS)
        return found

    def _items(self, indices: list[int]) -> list[Any]:
        if not hasattr(self.dataset, "__getitems__"):
            return [self.dataset[index] for index in indices]
        items = list(self.dataset.__getitems__(indices))
        if len(items) != len(indices):
            msg = (
                f"__getitems__ of the dataset gave {len(items)} items for {len(indices)} positions"
            )
            raise ArgumentError(msg)
        return items


def _plain(found: Any) -> Examples:  # noqa: ANN401 - whatever a dataset gives
    """The same tensors in dicts and tuples only."""
    if isinstance(found, Mapping):
        return {name: _plain(one) for name, one in found.items()}
    return tuple(_plain(one) for one in found) if isinstance(found, tuple | list) else found


def joined(parts: Sequence[Examples]) -> Examples:
    """Several batches as one; they must have the same names and shapes."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        if any(part.keys() != first.keys() for part in parts):
            raise TypeError
        return {name: joined([part[name] for part in parts]) for name in first}
    return tuple(joined(column) for column in zip(*parts, strict=True))


def made_up(examples: Examples, n: int) -> Examples:
    """Public stand-ins for examples of these shapes, all of them different."""
    generator = torch.Generator().manual_seed(0)

    def like(one: Tensor) -> Tensor:
        shape = (n, *one.shape[1:])
        if one.is_floating_point() or one.is_complex():
            return torch.randn(shape, generator=generator, dtype=one.dtype)
        if one.dtype == torch.bool:
            return torch.ones(shape, dtype=one.dtype)
        return torch.randint(0, 2, shape, generator=generator).to(one.dtype)

    return mapped(like, examples)


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
    source: Source
    blocks: tuple[Block, ...]
    """Nearly equal parts of the batch."""
    fetched: dict[int, Examples] = attrs.field(factory=dict)
    """Examples of blocks that were fetched before."""

    def groups(self) -> list[range]:
        """Runs of blocks that are summed one after another; public in their number of blocks."""
        n_blocks = len(self.blocks)
        n_groups = min(n_blocks, MOST_GROUPS)
        starts = [n_blocks * i // n_groups for i in range(n_groups)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], n_blocks], strict=False)]

    def examples(self, number: int) -> Examples:
        """The examples of a block."""
        if number in self.fetched:
            return self.fetched[number]
        return self.source.fetch(self.blocks[number])

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


def blocks_of(indices: Integers, size: int, seed_of: Callable[[int], int]) -> tuple[Block, ...]:
    """A batch cut into as few blocks as hold it, which differ by at most one example."""
    n_blocks = -(-len(indices) // size)
    if not n_blocks:
        return ()
    parts = np.array_split(indices, n_blocks)
    return tuple(Block(i, seed_of(i), tuple(part.tolist())) for i, part in enumerate(parts))


@final
class _Requests(Dataset[Examples]):
    """Whole blocks by what has to be fetched."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, block: Block) -> Examples:
        return self._source.fetch(block)


def fetched_ahead(source: Source, blocks: Iterable[Block], n_workers: int) -> Iterator[Examples]:
    """The examples of blocks in their order, fetched by other processes before they are needed."""
    loader: DataLoader[Examples] = DataLoader(
        _Requests(source),
        batch_size=None,
        sampler=blocks,
        num_workers=n_workers,
        collate_fn=_unchanged,
    )
    return iter(loader)


def _unchanged(examples: Sequence[Any]) -> Sequence[Any]:
    return examples
