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
    """The records to fetch for one block."""

    number: int
    seed: int
    """Seed of the random numbers that the dataset draws, for example for augmentation."""
    indices: tuple[int, ...]


@final
@attrs.frozen(eq=False, repr=False)
class Source:
    """A dataset, and how its items become examples.

    `collate_fn` is called on a list of each single item and must return a batch of one, so padding
    cannot depend on other records.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None = None

    def check(self, n_records: int) -> None:
        """Raise unless the dataset gives records by position, as many as in the plan."""
        dataset = self.dataset
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise ArgumentError(
                f"dataset must give its length and its records by position, and a "
                f"{type(dataset).__name__} does not; a plan draws from a known number of records "
                "by itself. For a DataLoader, pass its .dataset"
            )
        if len(dataset) != n_records:
            raise TrainingError(
                f"dataset has {len(dataset)} records and the plan has {n_records}; the cost holds "
                "for the plan's number only. Make the plan with the number of records"
            )

    def first(self) -> Examples:
        """The first record; an error that says so if the dataset gives none at position 0."""
        try:
            return self.fetch(Block(0, 0, (0,)))
        except LookupError as error:
            raise ArgumentError(
                f"dataset[0] raised {type(error).__name__}, and a dataset gives its records by "
                "position, from 0; for a table, such as a DataFrame, pass "
                "TensorDataset(torch.tensor(table[columns].to_numpy()), labels)"
            ) from error

    def fetch(self, block: Block) -> Examples:
        """The examples of a block.

        Each record is fetched alone, and copied before the next one is fetched: a dataset may
        return one buffer again and again. The generators of torch, numpy and Python are seeded for
        it: how much a record draws may depend on its values, and others must not see that.
        """
        # a subclass may return other items than rows of its tensors
        if type(self.dataset) is TensorDataset and self.collate_fn is None:
            wanted = torch.tensor(block.indices)
            examples: Any = tuple(tensor.index_select(0, wanted) for tensor in self.dataset.tensors)
        else:
            seeds = np.random.SeedSequence(block.seed).generate_state(len(block.indices), np.uint64)
            parts = []
            with seeded(block.seed):
                for index, seed in zip(block.indices, seeds.tolist(), strict=True):
                    seed_generators(seed)
                    parts.append(self.batch_of_one(self.dataset[index]))
            examples = joined(parts)
        if not (isinstance(examples, dict) or len(examples) > 1) or not leaves(examples):
            raise ArgumentError(_ITEMS)
        return examples

    def batch_of_one(self, item: Any) -> Examples:  # whatever the dataset gives
        """A copy of the item in memory that neither the dataset nor `collate_fn` has."""
        batch = _plain(item if self.collate_fn is None else self.collate_fn([item]))
        if not isinstance(batch, tuple | dict):
            raise ArgumentError(_ITEMS)
        if self.collate_fn is None:
            return mapped(_as_row, batch)
        for leaf in leaves(batch):
            if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != 1:
                raise ArgumentError(_ITEMS)
        return mapped(torch.clone, batch)


def _plain(value: Any) -> Any:  # whatever a dataset gives
    """Turn mappings into dicts and sequences into tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return tuple(_plain(part) for part in value) if isinstance(value, tuple | list) else value


def _as_row(value: Any) -> Tensor:  # a tensor, an array or a number
    try:
        # as torch's collate function, which converts a float to float64
        row = torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)
        return row[None].clone()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(_ITEMS) from error


def joined(parts: Sequence[Examples]) -> Examples:
    """Join several batches; raise unless they agree in everything but values and lengths.

    Torch's collate function would take keys and types from the first example for all others.
    """
    first = parts[0]
    if isinstance(first, Tensor):
        form = (first.dtype, first.shape[1:])
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if len(tensors) < len(parts) or any((t.dtype, t.shape[1:]) != form for t in tensors):
            raise ArgumentError(_ITEMS)
        return torch.cat(tensors)
    named = [dict(enumerate(part)) if isinstance(part, tuple) else part for part in parts]
    if any(type(part) is not type(first) for part in parts) or any(
        part.keys() != named[0].keys() for part in named
    ):
        raise ArgumentError(_ITEMS)
    whole = {name: joined([part[name] for part in named]) for name in named[0]}
    return whole if isinstance(first, dict) else tuple(whole.values())


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class Batch:
    """The records that one step draws; made by `Trainer.batches` for `Trainer.step`.

    Which records were drawn, and how many, may have to stay secret (`draws_may_be_seen` in the
    certificate), so its text shows neither.
    """

    step: int
    """Number of the step, from 0."""
    indices: Integers = attrs.field(converter=locked_integers)
    """Positions of the records in the dataset, in the order in which they were drawn."""
    source: Source
    blocks: tuple[Block, ...]
    """Nearly equal parts of the batch."""
    fetched: dict[int, Examples] = attrs.field(factory=dict)
    """Examples of blocks that were fetched before."""

    def groups(self) -> list[range]:
        """Consecutive blocks that are summed together; they depend on the number of blocks only."""
        n_blocks = len(self.blocks)
        n_groups = min(n_blocks, MOST_GROUPS)
        starts = [n_blocks * i // n_groups for i in range(n_groups)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], n_blocks], strict=False)]

    def examples(self, number: int) -> Examples:
        """The examples of a block."""
        block = self.blocks[number]
        examples = self.fetched[number] if number in self.fetched else self.source.fetch(block)
        if any(len(tensor) != len(block.indices) for tensor in leaves(examples)):
            raise ArgumentError(
                f"block {number} of the batch must have one row for each of its records"
            )
        return examples

    def __repr__(self) -> str:
        return f"Batch(step={self.step})"


def blocks_of(indices: Integers, size: int, seed_of: Callable[[int], int]) -> tuple[Block, ...]:
    """Split a batch into the fewest blocks; their sizes differ by at most one example."""
    n_blocks = -(-len(indices) // size)
    if not n_blocks:
        return ()
    parts = np.array_split(indices, n_blocks)
    return tuple(Block(i, seed_of(i), tuple(part.tolist())) for i, part in enumerate(parts))


@final
class _Requests(Dataset[Any]):
    """Fetches whole blocks; an error is returned, without its causes, which may show records."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, block: Block) -> Examples | ArgumentError:
        try:
            return self._source.fetch(block)
        except ArgumentError as error:
            return error


def fetched_ahead(source: Source, blocks: Iterable[Block], n_workers: int) -> Iterator[Examples]:
    """The examples of blocks in order, fetched ahead by other processes."""
    loader: DataLoader[Any] = DataLoader(
        _Requests(source),
        batch_size=None,
        sampler=blocks,
        num_workers=n_workers,
        collate_fn=_identity,
        # torch draws unused seeds for its workers; not from the user's generator
        generator=torch.Generator(),
    )
    for examples in loader:
        if isinstance(examples, ArgumentError):
            raise examples
        yield examples


def _identity(examples: Examples) -> Examples:
    return examples
