# SPDX-License-Identifier: Apache-2.0
"""Batches: every drawn record once, in order, each fetched as if it were alone."""

import random
from collections import OrderedDict, UserDict

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.engine import RADIUS, Engine, grid_of
from tests.torch.small import records
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from pufferslice.errors import ArgumentError
from pufferslice.torch.batches import Batch, Source, blocks_of, fetched_ahead


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


class Shifted(TensorDataset):
    """A subclass whose items are not rows of its tensors."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + 100, target


def batch_of(dataset, indices, block=4, collate_fn=None):
    indices = np.asarray(indices, dtype=np.int64)
    blocks = blocks_of(indices, block, lambda number: 7 + number)
    return Batch(step=3, indices=indices, source=Source(dataset, collate_fn), blocks=blocks)


def examples_of(items, collate_fn=None):
    """One block of all items."""
    return batch_of(Plain(items), range(len(items)), len(items), collate_fn).examples(0)


@given(st.lists(st.integers(0, 59), max_size=40), st.integers(1, 9))
def test_blocks_hold_every_drawn_record_in_order_and_are_nearly_equal(indices, block):
    data = records()
    for dataset in (data, Plain(list(data)), Subset(data, range(len(data)))):
        batch = batch_of(dataset, indices, block)
        assert len(batch.blocks) == -(-len(indices) // block)
        parts = [batch.examples(i) for i in range(len(batch.blocks))]
        sizes = [len(targets) for _, targets in parts]
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        for k, whole in enumerate(data.tensors if parts else ()):
            assert torch.equal(torch.cat([part[k] for part in parts]), whole[indices])
        assert [i for group in batch.groups() for i in group] == list(range(len(parts)))


def test_records_are_asked_for_block_by_block_and_once():
    dataset = Plain(list(records()))
    batch = batch_of(dataset, range(12))
    assert dataset.asked == []
    batch.examples(1)
    assert dataset.asked == [4, 5, 6, 7]
    before = (torch.zeros(4, 2), torch.zeros(4))
    assert attrs.evolve(batch, fetched={1: before}).examples(1) is before
    with pytest.raises(ArgumentError, match="block 1"):
        attrs.evolve(batch, fetched={1: (torch.zeros(5, 2), torch.zeros(5))}).examples(1)


def test_items_of_a_subclass_are_its_own():
    data = records()
    inputs, _ = batch_of(Shifted(*data.tensors), [1, 2, 3, 4]).examples(0)
    assert torch.equal(inputs, data.tensors[0][1:5] + 100)


def test_arrays_and_numbers_become_tensors_of_torchs_usual_types():
    items = [(np.array([i], dtype=np.float32), float(i), i, i > 1) for i in range(4)]
    found = examples_of(items)
    assert [one.tolist() for one in found[1:]] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 1]]
    assert found[0].shape == (4, 1)
    types = [one.dtype for one in found]
    assert types == [torch.float32, torch.float64, torch.int64, torch.bool]


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_items_may_be_dicts_and_nested(kind):
    items = [kind(ids=torch.full((3,), i), rest={"pair": (i, [float(i)])}) for i in range(4)]
    found = examples_of(items)
    assert type(found) is dict
    assert found["ids"].shape == (4, 3)
    assert found["rest"]["pair"][0].tolist() == found["rest"]["pair"][1][0].tolist() == [0, 1, 2, 3]


@pytest.mark.soundness
def test_a_collate_function_sees_single_records_only():
    asked = []

    def padded(items):
        asked.append(len(items))
        longest = max(len(item["ids"]) for item in items)
        return UserDict(ids=torch.stack([torch.arange(longest) for _ in items]))

    found = examples_of([{"ids": [1, 2, 3]}] * 4, padded)
    assert asked == [1, 1, 1, 1]
    assert found["ids"].shape == (4, 3)
    with pytest.raises(ArgumentError, match="items of the dataset"):
        examples_of([{"ids": [1] * n} for n in (3, 4)], padded)


def rows_in(items):
    """A collate function that makes as many rows as the item says."""
    return torch.zeros(items[0], 2), torch.zeros(items[0])


ZEROS = torch.zeros(2)
REFUSED = {
    # two rows of one record and none of another would be as many examples as records
    "two rows and none": ([2, 0], rows_in),
    "no rows and two": ([0, 2], rows_in),
    "doubled": ([2, 2], rows_in),
    # joined, one of them would decide what the model gets of the other
    "more keys": ([{"x": 1.0}, {"x": 1.0, "mask": 1}], None),
    "fewer keys": ([{"x": 1.0, "mask": 1}, {"x": 1.0}], None),
    "numbers": ([(1.0, 1), (1.0, 1.5)], None),
    "types": ([(ZEROS, 1), (ZEROS.double(), 1)], None),
    "shapes": ([(torch.zeros(2), 0), (torch.zeros(3), 0)], None),
    "lengths": ([(ZEROS, 0), (ZEROS, 0, 1)], None),
    "tensor": ([ZEROS] * 4, None),
    "no target": ([(ZEROS,)] * 4, None),
    "no inputs": ([{}] * 4, None),
    "text": ([("text", 0)] * 4, None),
    "none": ([(ZEROS, None)] * 4, None),
    "row": ([0] * 4, lambda _: torch.zeros(1)),
    "words": ([0] * 4, lambda _: (torch.zeros(1), ["text"])),
    "no row of the target": ([0] * 4, lambda _: (torch.zeros(1), torch.tensor(0))),
}


@pytest.mark.soundness
@pytest.mark.parametrize("name", REFUSED)
def test_items_that_are_refused_without_showing_them(name):
    with pytest.raises(ArgumentError, match="items of the dataset") as caught:
        examples_of(*REFUSED[name])
    assert "text" not in str(caught.value)


class Augmented(Dataset):
    """Draws from each generator that transforms draw from."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        drawn = torch.rand(1), np.random.rand(1), random.random()  # noqa: NPY002 - what transforms draw from
        return torch.cat([torch.as_tensor(one).reshape(1).float() for one in drawn]), index


def test_what_a_dataset_draws_follows_from_the_seed_of_the_block():
    batch, again = (batch_of(Augmented(), [5, 6, 5, 6]) for _ in range(2))
    assert torch.equal(batch.examples(0)[0], again.examples(0)[0])
    assert len(batch.examples(0)[0].unique(dim=0)) == 4
    other = attrs.evolve(batch, blocks=(batch.blocks[0]._replace(seed=8),))
    assert not (batch.examples(0)[0] == other.examples(0)[0]).any()


def test_workers_give_the_same_examples_in_the_same_order():
    batch = batch_of(Augmented(), range(30), block=4)
    state = torch.get_rng_state()
    ahead = list(fetched_ahead(batch.source, iter(batch.blocks), 2))
    assert torch.equal(state, torch.get_rng_state())
    assert len(ahead) == 8
    for number, found in enumerate(ahead):
        for mine, theirs in zip(batch.examples(number), found, strict=True):
            assert torch.equal(mine, theirs)


class Reused(Dataset):
    """Every item is the same buffer, rewritten in place; `form` makes the item of it."""

    def __init__(self, values, form):
        self.values, self.form = values, form
        self.buffer = torch.empty(values.shape[1:])

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.buffer.copy_(self.values[index])
        return self.form(self.buffer)


def joined_into(buffer):
    """A collate function that writes every batch of one into the same tensor."""

    def collate(items):
        buffer[0].copy_(items[0][0])
        return buffer, buffer[:, 0]

    return collate


REUSED = {
    "tensors": (lambda one: (one, one[0]), None),
    "arrays": (lambda one: (one.numpy(), one.numpy()[:1]), None),
    "buffers": (lambda one: (memoryview(one.numpy()), one.numpy()[0]), None),
    "nested": (lambda one: {"x": {"a": [one, (one.numpy(),)]}, "y": one[0]}, None),
    "collate": (lambda one: (one, one[0]), lambda items: (items[0][0][None], items[0][1][None])),
    "collate into one": (lambda one: (one, one[0]), joined_into(torch.empty(1, 3))),
}


@pytest.mark.soundness
@pytest.mark.parametrize("n_workers", [0, 1])
@pytest.mark.parametrize("name", REUSED)
def test_records_of_a_reused_buffer_stay_apart(name, n_workers):
    """Else every example of a block is the record that was fetched last."""
    values = torch.arange(36.0).reshape(12, 3)
    form, collate_fn = REUSED[name]
    dataset = Reused(values, form)
    batch = batch_of(dataset, range(12), 4, collate_fn)
    if n_workers:
        found = list(fetched_ahead(batch.source, iter(batch.blocks), n_workers))
    else:
        found = [batch.examples(i) for i in range(3)]
    dataset.buffer.fill_(-1)
    for k, examples in enumerate(found):
        here = values[4 * k : 4 * k + 4]
        if name == "nested":
            assert torch.equal(examples["x"]["a"][0], here)
            assert torch.equal(examples["x"]["a"][1][0], here)
            assert torch.equal(examples["y"], here[:, 0])
        else:
            assert torch.equal(examples[0], here)
            assert torch.equal(examples[1].reshape(-1), here[:, 0])


@pytest.mark.soundness
@pytest.mark.parametrize("name", REUSED)
def test_replacing_a_record_of_a_reused_buffer_moves_the_sum_by_at_most_two_clip_norms(name):
    form, collate_fn = REUSED[name]
    values = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    replaced = torch.cat([values[:-1], -50 * values[-1:]])
    model = nn.Linear(3, 1) if name != "nested" else Nested()
    loss_fn = _loss if name != "nested" else _loss_of_dict
    grid, sums = grid_of(), []
    for data in (values, replaced):
        batch = batch_of(Reused(data, form), range(8), 8, collate_fn)
        shown = batch.source.fetch(batch.blocks[0])
        engine = Engine(model, loss_fn, shown)
        given = engine.sums.of(batch, grid, 8, lambda number: number)
        sums.append(given.integers * grid.steps[0])
    moved = np.linalg.norm(sums[0] - sums[1])
    assert 0 < moved <= 2 * RADIUS * (1 + 1e-9)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, x, y):
        return self.inner(x["a"][0] + x["a"][1][0])


def _loss(outputs, targets):
    return (outputs.reshape(-1) - targets.reshape(-1)).square().mean()


def _loss_of_dict(outputs, item):
    return _loss(outputs, item["y"])


def test_an_error_in_a_worker_shows_no_record():
    batch = batch_of(Plain([("text", 0)] * 4), range(4))
    with pytest.raises(ArgumentError, match="items of the dataset") as caught:
        list(fetched_ahead(batch.source, iter(batch.blocks), 1))
    assert "text" not in str(caught.value)


def test_nothing_of_the_draw_is_shown_and_it_cannot_be_changed():
    drawn = np.array([41, 42])
    batch = batch_of(records(), drawn)
    assert repr(batch) == str(batch) == "Batch(step=3)"
    drawn[0] = 7
    assert batch.indices.tolist() == [41, 42]
    with pytest.raises(ValueError, match="read-only"):
        batch.indices[0] = 7
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        batch.step = 4
