# SPDX-License-Identifier: Apache-2.0
"""Batches: every drawn record once, in order, in whole blocks, from any map-style dataset."""

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.small import records
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from pufferslice import ArgumentError, TrainingError
from pufferslice.torch.batches import Batch, check_dataset


class Plain(Dataset):
    """Items one by one, as most people write it."""

    def __init__(self, items):
        self.items = items
        self.asked = []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        return self.items[index]


class Noisy(TensorDataset):
    """A subclass whose items are not rows of its tensors."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + 100, target


def batch_of(dataset, indices, block_size=4):
    return Batch(step=3, indices=indices, dataset=dataset, block_size=block_size)


def datasets():
    data = records()
    return [data, Plain(list(data)), Subset(data, range(len(data)))]


@given(st.lists(st.integers(0, 59), max_size=23), st.integers(1, 9))
def test_blocks_hold_every_drawn_record_in_order(indices, block_size):
    inputs, targets = records().tensors
    for dataset in datasets():
        batch = batch_of(dataset, np.array(indices, dtype=np.int64), block_size)
        assert batch.n_blocks == -(-len(indices) // block_size)
        blocks = [batch.block(i) for i in range(batch.n_blocks)]
        assert all(len(one) == block_size for examples, _ in blocks for one in examples)
        kept = [tuple(one[:n] for one in examples) for examples, n in blocks]
        seen = [torch.cat([one[k] for one in kept]) for k in range(2)] if kept else []
        assert sum(n for _, n in blocks) == len(indices)
        for found, whole in zip(seen, (inputs, targets), strict=False):
            assert torch.equal(found, whole[indices])


@pytest.mark.parametrize("dataset", datasets(), ids=["tensors", "items", "many items"])
def test_the_last_block_is_filled_with_its_first_record(dataset):
    (inputs, targets), n_examples = batch_of(dataset, [5, 6, 7, 8, 2, 9]).block(1)
    assert n_examples == 2
    whole = records().tensors
    assert torch.equal(inputs, whole[0][[2, 9, 2, 2]])
    assert torch.equal(targets, whole[1][[2, 9, 2, 2]])


def test_a_missing_record_is_not_asked_for_again():
    dataset = Plain(list(records()))
    batch_of(dataset, [5, 6, 7, 8, 2]).block(1)
    assert dataset.asked == [2]


def test_records_are_asked_for_block_by_block():
    dataset = Plain(list(records()))
    batch = batch_of(dataset, list(range(10)))
    assert dataset.asked == []
    batch.block(1)
    assert dataset.asked == [4, 5, 6, 7]


def test_items_of_a_subclass_are_its_own():
    data = records()
    (inputs, _), _ = batch_of(Noisy(*data.tensors), [1, 2, 3, 4]).block(0)
    assert torch.equal(inputs, data.tensors[0][1:5] + 100)


def test_several_inputs_and_numbers_become_tensors():
    dataset = Plain([(np.array([float(i)], dtype=np.float32), i, i % 2) for i in range(8)])
    (first, second, target), _ = batch_of(dataset, [3, 1, 2, 0]).block(0)
    assert first.tolist() == [[3.0], [1.0], [2.0], [0.0]]
    assert second.tolist() == [3, 1, 2, 0]
    assert target.tolist() == [1, 1, 0, 0]


def test_an_empty_batch_has_no_blocks():
    assert batch_of(records(), np.empty(0, dtype=np.int64)).n_blocks == 0


def test_nothing_of_the_draw_is_shown():
    batch = batch_of(records(), [41, 42])
    assert repr(batch) == str(batch) == "Batch(step=3)"


def test_a_draw_cannot_be_changed():
    drawn = np.array([41, 42])
    batch = batch_of(records(), drawn)
    drawn[0] = 7
    assert batch.indices.tolist() == [41, 42]
    with pytest.raises(ValueError, match="read-only"):
        batch.indices[0] = 7
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        batch.step = 4


class Short:
    """Gives fewer items than were asked for."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        raise AssertionError

    def __getitems__(self, indices):
        return [(torch.zeros(1), 0)] * (len(indices) - 1)


@pytest.mark.parametrize(
    "items",
    [
        [torch.zeros(2)] * 4,
        [(torch.zeros(2),)] * 4,
        [{"inputs": torch.zeros(2), "target": 0}] * 4,
        [("text", 0)] * 4,
        [(torch.zeros(2), None)] * 4,
        [(torch.zeros(2 + i), 0) for i in range(4)],
        [(torch.zeros(2), 0)] * 3 + [(torch.zeros(2), 0, 1)],
    ],
    ids=["tensor", "no target", "dictionary", "text", "none", "shapes", "lengths"],
)
def test_other_items_are_refused_without_showing_them(items):
    with pytest.raises(ArgumentError, match=r"must be tuples \(inputs..., target\)") as caught:
        batch_of(Plain(items), [0, 1, 2, 3]).block(0)
    assert "text" not in str(caught.value)


def test_tensors_without_a_target_are_refused():
    with pytest.raises(ArgumentError, match="target"):
        batch_of(TensorDataset(torch.zeros(5, 2)), [0, 1]).block(0)


def test_a_dataset_that_gives_too_few_items_is_refused():
    with pytest.raises(ArgumentError, match="gave 1 items for 2 positions"):
        batch_of(Short(), [0, 1]).block(0)


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize("dataset", [Endless(), iter([]), 7], ids=["iterable", "iterator", "int"])
def test_a_dataset_without_positions_is_refused(dataset):
    with pytest.raises(ArgumentError, match=type(dataset).__name__):
        check_dataset(dataset, 60)


def test_a_dataset_of_another_length_is_refused():
    check_dataset(records(), 60)
    with pytest.raises(TrainingError, match="has 60 records and the plan has 61"):
        check_dataset(records(), 61)
