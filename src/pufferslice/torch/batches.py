# SPDX-License-Identifier: Apache-2.0
"""The batch of one step: which records were drawn, and their examples block by block."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pufferslice._core.arrays import Integers, locked_integers
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning.integer_sums import MOST_GROUPS
from pufferslice.torch.per_example import Examples, leaves, mapped, seed_generators, seeded

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

    `collate_fn` is called on each item alone, a list of one, and must give a batch of one: what it
    pads or joins cannot depend on other records.
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
        """The examples of a block.

        Each record is fetched alone, and the generators of torch, numpy and Python are seeded for
        it: how much one draws may depend on its values, and the next must not see that.
        """
        # a subclass may give other items than its tensors
        if type(self.dataset) is TensorDataset and self.collate_fn is None:
            wanted = torch.tensor(block.indices)
            examples: Any = tuple(one.index_select(0, wanted) for one in self.dataset.tensors)
        else:
            seeds = np.random.SeedSequence(block.seed).generate_state(len(block.indices), np.uint64)
            parts = []
            with seeded(block.seed):
                for index, seed in zip(block.indices, seeds.tolist(), strict=True):
                    seed_generators(seed)
                    parts.append(self._batch_of_one(self.dataset[index]))
            examples = joined(parts)
        if not (isinstance(examples, dict) or len(examples) > 1) or not leaves(examples):
            raise ArgumentError(_ITEMS)
        return examples

    def _batch_of_one(self, item: Any) -> Examples:  # noqa: ANN401 - whatever the dataset gives
        """Tensors with one row each: a record is one example."""
        batch = _plain(item if self.collate_fn is None else self.collate_fn([item]))
        if not isinstance(batch, tuple | dict):
            raise ArgumentError(_ITEMS)
        if self.collate_fn is None:
            return mapped(_as_row, batch)
        for leaf in leaves(batch):
            if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != 1:
                raise ArgumentError(_ITEMS)
        return batch


def _plain(found: Any) -> Any:  # noqa: ANN401 - whatever a dataset gives
    """The same in dicts and tuples only."""
    if isinstance(found, Mapping):
        return {name: _plain(one) for name, one in found.items()}
    return tuple(_plain(one) for one in found) if isinstance(found, tuple | list) else found


def _as_row(value: Any) -> Tensor:  # noqa: ANN401 - a tensor, an array or a number
    try:
        # torch's own collate function, too, makes float64 of a float
        return torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)[None]
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(_ITEMS) from error


def joined(parts: Sequence[Examples]) -> Examples:
    """Several batches as one; refused unless they agree in everything but values and lengths.

    What an example is must not depend on the others: torch's collate function takes keys and types
    of the first one for all.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        form = (first.dtype, first.shape[1:])
        tensors = [one for one in parts if isinstance(one, Tensor)]
        if len(tensors) < len(parts) or any((t.dtype, t.shape[1:]) != form for t in tensors):
            raise ArgumentError(_ITEMS)
        return torch.cat(tensors)
    named = [dict(enumerate(one)) if isinstance(one, tuple) else one for one in parts]
    if any(type(one) is not type(first) for one in parts) or any(
        one.keys() != named[0].keys() for one in named
    ):
        raise ArgumentError(_ITEMS)
    whole = {name: joined([one[name] for one in named]) for name in named[0]}
    return whole if isinstance(first, dict) else tuple(whole.values())


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
        block = self.blocks[number]
        examples = self.fetched[number] if number in self.fetched else self.source.fetch(block)
        if any(len(one) != len(block.indices) for one in leaves(examples)):
            msg = f"block {number} of the batch must have one row for each of its records"
            raise ArgumentError(msg)
        return examples

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
class _Requests(Dataset[Any]):
    """Whole blocks by what has to be fetched; an error comes back as it is, without its causes."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, block: Block) -> Examples | ArgumentError:
        try:
            return self._source.fetch(block)
        except ArgumentError as error:
            return error


def fetched_ahead(source: Source, blocks: Iterable[Block], n_workers: int) -> Iterator[Examples]:
    """The examples of blocks in their order, fetched by other processes before they are needed."""
    loader: DataLoader[Any] = DataLoader(
        _Requests(source),
        batch_size=None,
        sampler=blocks,
        num_workers=n_workers,
        collate_fn=_unchanged,
        # torch draws seeds of workers, which nothing here uses, and not from the user's generator
        generator=torch.Generator(),
    )
    for examples in loader:
        if isinstance(examples, ArgumentError):
            raise examples
        yield examples


def _unchanged(examples: Examples) -> Examples:
    return examples
