# SPDX-License-Identifier: Apache-2.0
"""A check of the user's data code before a run: is an item made of its own record alone?

It compares bits of a few items that were fetched in different orders, and with other records
changed. It stands beside the guarantee and proves nothing: what it does not see stays a limit of
the certificate (`state-outside-model`).

It reads real records, and may only refuse. Where every item follows from its own record and its
seed, as the limit requires, all comparisons are of equal bits, whatever the records are: it always
passes and reveals nothing. Where it refuses, the data path breaks that rule, and no run begins.
Nothing else depends on what it read.
"""

import contextlib
import copy
import hashlib
import json
import operator
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from pufferslice.errors import ArgumentError
from pufferslice.torch.batches import Block, Source
from pufferslice.torch.per_example import Examples, seed_generators, seeded

_N_RECORDS: Final = 4
"""Number of records that are fetched, whatever the size of the dataset."""

_PATIENCE: Final = 10.0
"""Seconds after which a process that fetches nothing is given up; then nothing is concluded."""

_N_SEEDS: Final = 3
"""Draws of each record in which mixing is looked for: augmentation may mix some only."""

_MOST_ROWS: Final = 8
"""Rows that are changed, one at a time, to see whether an item depends on them."""

_MOST_PARTS: Final = 16
"""Length up to which lists and dicts of a dataset are looked into."""

_RULE: Final = (
    "must follow from one record and from the generators of torch, numpy and random, which are "
    "seeded for each record. Keep nothing between records (running means, vocabularies, buffers), "
    "and make a generator of your own anew in each call, from torch.initial_seed()"
)


class _Item(NamedTuple):
    """Digests of an item of the dataset, if its type is known, and of the example made of it."""

    item: str | None
    example: str


def checked_records(source: Source, n_records: int) -> Examples:
    """Examples of a few records at public positions, fetched in several orders.

    Raises if an item depends on what was fetched before it, or on another record.
    """
    positions = sorted({i * (n_records - 1) // (_N_RECORDS - 1) for i in range(_N_RECORDS)})
    # no code of the user's runs for such a dataset; a subclass may have some
    if type(source.dataset) is not TensorDataset or source.collate_fn is not None:
        backwards = positions[::-1]
        # a vocabulary that is complete differs from one that was begun elsewhere
        elsewhere = _from_child(lambda: _items(source, backwards))
        items = _items(source, positions)
        for others in (elsewhere, _items(source, backwards)):
            _check_same(items, others)
        for position in positions:
            _check_alone(source, position, items[position])
    return source.fetch(Block(0, 0, tuple(positions)))


def _check_same(items: Mapping[int, _Item], others: Mapping[int, _Item]) -> None:
    pairs = [(items[position], other) for position, other in others.items()]
    if any(one.item != other.item for one, other in pairs):
        raise ArgumentError(
            "dataset gives other bits for the same record when records are fetched in another "
            f"order, so one record can change the examples of others; an item {_RULE}"
        )
    if any(one.example != other.example for one, other in pairs):
        raise ArgumentError(
            "collate_fn (or dataset) gives other bits for the same record when records are fetched "
            f"in another order, so one record can change the examples of others; a batch of one "
            f"{_RULE}"
        )


def _items(source: Source, positions: Sequence[int], seed: int = 0) -> dict[int, _Item]:
    """Fetch the records in this order, each under seeds of its own."""
    items = {}
    with seeded(0):
        for position in positions:
            seed_generators(position * _N_SEEDS + seed)
            item = source.dataset[position]
            digest = _digest(item)
            example = _digest(source.batch_of_one(item))
            items[position] = _Item(digest, str(example))
    return items


def _from_child(fetch: Callable[[], dict[int, _Item]]) -> dict[int, _Item]:
    """What `fetch` gives in a copy of this process; empty if that cannot be known.

    A copy has the state of globals, classes and threads as it is now, and changes none of it here.
    """
    if sys.platform != "linux":  # elsewhere a copy of a process with threads is not safe
        return {}
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # on threads: the child is given up
        child = os.fork()
    if not child:
        try:
            os.close(reader)
            torch.set_num_threads(1)
            text = json.dumps([[place, *item] for place, item in fetch().items()])
            os.write(writer, text.encode())
        finally:  # also after an error: the same fetch raises it in the parent
            os._exit(0)
    os.close(writer)
    try:
        written = select.poll()
        written.register(reader, select.POLLIN)
        text = os.read(reader, 2**16).decode() if written.poll(1_000 * _PATIENCE) else ""
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # another thread waited
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return {place: _Item(*item) for place, *item in json.loads(text or "[]")}


@final
class _Rows:
    """Rows of a dataset, one for each record; notes which are read, and can change one."""

    def __init__(self, rows: Any, change: tuple[int, int] | None) -> None:
        self._rows, self._change = rows, change
        self.read: Final[set[int]] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name: str) -> Any:  # whatever the rows have
        return getattr(self._rows, name)

    def __setitem__(self, key: object, value: object) -> None:
        """Write nothing: the rows are the user's."""

    def __getitem__(self, key: Any) -> Any:  # as the rows
        key, rest = (key[0], key[1:]) if isinstance(key, tuple) and key else (key, ())
        if isinstance(key, str):
            return self._rows[(key, *rest) if rest else key]
        places = np.arange(len(self))[key if isinstance(key, slice) else np.asarray(key)]
        self.read.update(places.reshape(-1).tolist())
        if self._change is not None:
            row, other = self._change
            places = np.where(places == row, other, places)
        if not places.ndim:
            place = operator.index(places)
            return self._rows[(place, *rest) if rest else place]
        if isinstance(self._rows, list | tuple):
            return [self._rows[place] for place in places]
        return self._rows[(places, *rest) if rest else places]


@final
class _Watched:
    """A shallow copy of a dataset in which every sequence of one row for each record is watched."""

    def __init__(self, dataset: Any, change: tuple[int, int, int] | None = None) -> None:
        """`change` is the number of a sequence, a row, and the row that takes its place."""
        self.rows: Final[list[_Rows]] = []
        self._change = change
        self.dataset: Final = self._copied(dataset)

    def _copied(self, dataset: Any) -> Any:
        watched = copy.copy(dataset)
        for name, value in vars(dataset).items():
            vars(watched)[name] = self._part(value, len(dataset))
        return watched

    def _part(self, value: Any, n_records: int) -> Any:  # any attribute of a dataset
        inner = self._copied(value) if isinstance(value, Dataset) else value
        if _n_rows(value) == n_records:
            change = self._change
            is_here = change is not None and change[0] == len(self.rows)
            self.rows.append(_Rows(inner, change[1:] if change is not None and is_here else None))
            return self.rows[-1]
        if type(value) in {list, tuple} and len(value) <= _MOST_PARTS:
            return type(value)(self._part(part, n_records) for part in value)
        if type(value) is dict and len(value) <= _MOST_PARTS:
            return {key: self._part(part, n_records) for key, part in value.items()}
        return inner


def _n_rows(value: Any) -> int:  # anything
    is_sequence = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    if not is_sequence or isinstance(value, str | bytes | Mapping) or getattr(value, "ndim", 1) < 1:
        return -1
    return len(value)


def _check_alone(source: Source, position: int, known: _Item) -> None:
    """Raise if two rows of one sequence in the dataset change the same item."""
    if not hasattr(source.dataset, "__dict__"):
        return

    def example(seed: int, change: tuple[int, int, int] | None = None) -> tuple[str, list[_Rows]]:
        watched = _Watched(source.dataset, change)
        given = attrs.evolve(source, dataset=watched.dataset)
        return _items(given, [position], seed)[position].example, watched.rows

    def is_mixed(seed: int) -> bool:
        alone, sequences = example(seed)
        for number, rows in enumerate(sequences):
            read, n_changing = sorted(rows.read), 0
            for row in read[:: -(-len(read) // _MOST_ROWS)] if len(read) > 1 else ():
                others = {(row + step) % len(rows) for step in (1, len(rows) // 2)} - {row}
                n_changing += any(example(seed, (number, row, k))[0] != alone for k in others)
            if n_changing > 1:
                return True
        return False

    try:
        is_seen_through = example(0)[0] == known.example
        if not is_seen_through or not any(map(is_mixed, range(_N_SEEDS))):
            return
    except Exception:  # noqa: BLE001 - user code may raise anything on what is not its own data
        return
    raise ArgumentError(
        "dataset makes an item of several records (as mixup or pairs do): replacing one record "
        "changes the items of others. An item must be made of its own record alone; leave the "
        "mixing out, or augment each record by itself"
    )


def _digest(value: Any) -> str | None:  # an item of a dataset
    """Digest of all bits of an item; None if a part has a type whose bits are not known."""
    state = hashlib.sha256()
    return state.hexdigest() if _add(value, state.update) else None


def _add(value: Any, update: Callable[[bytes], object]) -> bool:
    if isinstance(value, Mapping):
        value = [part for entry in value.items() for part in entry]
    if isinstance(value, list | tuple):
        update(f"{len(value)} parts;".encode())
        return min((_add(part, update) for part in value), default=True)
    if isinstance(value, str | bytes | int | float | complex | None):
        update(f"{type(value)} {value!r};".encode())
        return True
    if isinstance(value, Tensor) and value.layout == torch.strided:
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        update(f"{value.dtype} {tuple(value.shape)};".encode() + flat.tobytes())
        return True
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    update(f"{array.dtype} {array.shape};".encode())
    if array.dtype != object:
        update(array.tobytes())
    return array.dtype != object
