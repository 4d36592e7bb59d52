# SPDX-License-Identifier: Apache-2.0
"""Data code and models that let one record change the gradient of another are refused."""

import contextvars
import random
import threading

import numpy as np
import pytest
import torch
from tests.torch.small import LOSS, N_RECORDS, digest_of, model_of, records, train, trainer_of
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from pufferslice.errors import ArgumentError
from pufferslice.torch import isolation
from pufferslice.torch.batches import Source

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:training is slow"),
    pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses"),
]

INPUTS, LABELS = records().tensors
WORDS = [f"word{i} word{i % 7}" for i in range(N_RECORDS)]


class Items(Dataset):
    """A well-behaved dataset; hostile ones replace `item`."""

    def __init__(self):
        self.inputs, self.labels = INPUTS, LABELS

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.item(self.inputs[index], index), self.labels[index]

    def item(self, values, index):
        return values


class RunningMean(Items):
    mean = torch.zeros(4)

    def item(self, values, index):
        self.mean = 0.9 * self.mean + 0.1 * values
        return values - self.mean


class OwnGenerator(Items):
    generator = np.random.default_rng(0)

    def item(self, values, index):
        return values + torch.from_numpy(self.generator.normal(size=4)).float()


class Mixup(Items):
    def item(self, values, index):
        other = int(torch.randint(len(self), ()))
        return 0.7 * values + 0.3 * self.inputs[other]


class Sometimes(Mixup):
    def item(self, values, index):
        return super().item(values, index) if torch.rand(()) < 0.5 else values


class MixupOfNumpy(Items):
    def __init__(self):
        super().__init__()
        self.table = {"inputs": INPUTS.numpy()}

    def item(self, values, index):
        both = self.table["inputs"][[index, random.randrange(len(self))]]
        return torch.from_numpy(both.mean(0))


class MixedTensors(TensorDataset):
    def __getitem__(self, index):
        (inputs, label), other = super().__getitem__(index), super().__getitem__(index // 2)
        return inputs + other[0], label


class Around(Items):
    """Mixes the items of a dataset inside it."""

    def __init__(self):
        super().__init__()
        self.inner = Subset(records(), range(N_RECORDS))

    def __getitem__(self, index):
        values, label = self.inner[index]
        return values + self.inner[(index + 9) % len(self)][0], label


class Inside(Items):
    """The mixing dataset is longer than the one around it."""

    def __getitem__(self, index):
        return self.inner[index]

    def __init__(self):
        super().__init__()
        self.inputs, self.labels = INPUTS[:50], LABELS[:50]
        self.inner = Mixup()


class Writes(Items):
    """Keeps the record that was fetched last in a buffer of the model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def item(self, values, index):
        self.model.kept.copy_(values)
        return values


class Kept(nn.Module):
    """A linear layer that adds what `keep` remembers of an example to the next."""

    def __init__(self, keep=lambda _: 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)
        self.register_buffer("kept", torch.zeros(4))
        self.keep = keep

    def forward(self, values):
        return self.linear(values + self.kept + self.keep(values))


LAST = {}
VOCABULARY = {}
VARIABLE = contextvars.ContextVar("last", default=0.0)
LOCAL = threading.local()


def in_global(values):
    before = LAST.get("last", 0.0)
    LAST["last"] = float(values.sum())
    return before


class Shared:
    last = 0.0


def in_class(values):
    before, Shared.last = Shared.last, float(values.sum())
    return before


def in_variable(values):
    before = VARIABLE.get()
    VARIABLE.set(float(values.sum()))
    return before


def in_thread(values):
    before = getattr(LOCAL, "last", 0.0)
    LOCAL.last = float(values.sum())
    return before


MODEL = []


def in_buffer(values):
    """The original of the model is reached by a global."""
    before = float(MODEL[0].kept.sum())
    MODEL[0].kept.copy_(values.detach()[0])
    return before


def numbered(items):
    """A collate function that gives each new word the next number."""
    words = [VOCABULARY.setdefault(word, len(VOCABULARY)) for word in WORDS[items[0]].split()]
    return torch.tensor([[*words, 0, 0]]).float(), torch.tensor([items[0] % 2])


def drawn(items):
    values, label = items[0]
    return values[None] + OwnGenerator.generator.normal(), label[None]


def began(data=None, model=None, **given):
    trainer, _ = trainer_of(model=model or model_of(), loss_fn=LOSS)
    trainer.batches(data or records(), **given)


@pytest.mark.soundness
@pytest.mark.parametrize("keep", [in_global, in_class, in_variable, in_thread, in_buffer])
def test_a_model_that_remembers_examples(keep):
    model = Kept(keep)
    MODEL[:] = [model]
    with pytest.raises(ArgumentError, match="model or loss_fn gives other gradients"):
        began(model=model)


@pytest.mark.soundness
def test_a_model_that_remembers_and_runs_on_records_only():
    def keep(values):
        if 0 < values.max() < 1:
            raise ValueError("this one is made up")
        return in_global(values)

    with pytest.raises(ArgumentError, match="model or loss_fn gives other gradients"):
        began(TensorDataset(INPUTS.abs() + 1, LABELS), Kept(keep))


@pytest.mark.soundness
def test_a_dataset_that_writes_into_the_model():
    model = Kept()
    with pytest.raises(ArgumentError, match="model or loss_fn gives other gradients"):
        began(Writes(model), model)


@pytest.mark.soundness
@pytest.mark.parametrize("make", [RunningMean, OwnGenerator])
def test_a_dataset_that_depends_on_the_order(make):
    with pytest.raises(ArgumentError, match="dataset gives other bits"):
        began(make())


@pytest.mark.soundness
@pytest.mark.parametrize("make", [
    Mixup, Sometimes, MixupOfNumpy, Around, lambda: MixedTensors(INPUTS, LABELS),
])  # fmt: skip
def test_a_dataset_that_mixes_records(make):
    with pytest.raises(ArgumentError, match="makes an item of several records"):
        began(make())


def test_a_dataset_that_mixes_records_inside_another():
    with pytest.raises(ArgumentError, match="makes an item of several records"):
        isolation.checked_records(Source(Inside()), 50)


@pytest.mark.soundness
@pytest.mark.parametrize(("collate_fn", "data"), [(numbered, range(N_RECORDS)), (drawn, None)])
def test_a_collate_function_that_remembers_records(collate_fn, data):
    VOCABULARY.clear()
    with pytest.raises(ArgumentError, match="collate_fn"):
        began(data, collate_fn=collate_fn)


class Augmented(Items):
    """Draws from all three generators, and from one of its own that is made of torch's."""

    def item(self, values, index):
        own = np.random.default_rng(torch.initial_seed())
        noise = torch.randn(4) + random.random() + np.random.rand() + own.normal()  # noqa: NPY002 - seeded
        return values + noise


class Cached(Items):
    """Keeps each item; what it keeps is the item's own."""

    def __init__(self):
        super().__init__()
        self.cache = [None] * N_RECORDS

    def item(self, values, index):
        if self.cache[index] is None:
            self.cache[index] = values * 2
        return self.cache[index]


class Permuted(Items):
    """Positions and rows are permuted: an item reads two sequences, each in one row."""

    def __init__(self):
        super().__init__()
        self.order = torch.randperm(N_RECORDS).tolist()

    def __getitem__(self, index):
        return self.inputs[self.order[index]], self.labels[self.order[index]]


class Pictures(Items):
    """Items that are neither tensors nor numbers before the collate function."""

    def __getitem__(self, index):
        return {"text": {WORDS[index]}, "x": self.inputs[index].numpy(), "y": self.labels[index]}


def collated(items):
    return torch.from_numpy(items[0]["x"])[None], items[0]["y"][None]


@pytest.mark.parametrize(("make", "collate_fn"), [
    (Items, None), (Augmented, None), (Cached, None), (Permuted, None), (Pictures, collated),
    (lambda: Subset(Augmented(), range(N_RECORDS)), None),
    (lambda: [*Items()], None),
    (lambda: TensorDataset(INPUTS, LABELS), lambda items: tuple(part[None] for part in items[0])),
])  # fmt: skip
def test_what_follows_from_its_own_record_is_accepted(make, collate_fn):
    began(make(), collate_fn=collate_fn)


def test_the_check_changes_no_bit_of_a_run(monkeypatch, same_key):
    def weights():
        trainer, model = trainer_of(model=model_of(dropout=0.5))
        train(trainer, Augmented())
        return digest_of(model)

    checked = weights()
    monkeypatch.setattr(isolation, "_check_alone", lambda *_: None)
    monkeypatch.setattr(isolation, "_from_child", lambda _: {})
    assert weights() == checked


def test_a_small_fixed_number_of_records_is_read():
    class Counted(Items):
        n_read = 0

        def item(self, values, index):
            Counted.n_read += 1
            return values

    began(Counted())
    # the first record, two orders, watched ones, and those that the model runs
    assert Counted.n_read == 1 + 2 * 4 + 4 * (1 + 3) + 4


def test_a_process_that_gives_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(isolation, "_PATIENCE", 0.01)

    class Blocked(Items):
        parent = isolation.os.getpid()

        def item(self, values, index):
            while isolation.os.getpid() != self.parent:
                threading.Event().wait(1)
            return values

    began(Blocked())


def test_every_resume_is_checked(tmp_path):
    trainer, _ = trainer_of(folder=tmp_path)
    train(trainer, n_steps=1)
    trainer.save()
    again, _ = trainer_of(folder=tmp_path)
    again.resume()
    with pytest.raises(ArgumentError, match="dataset"):
        again.batches(Mixup())


def in_batch(outputs, labels):
    own = nn.functional.normalize(outputs, dim=1)
    return nn.functional.cross_entropy(own @ own.T / 0.1, torch.arange(len(own)))


def standardised(outputs, labels):
    return LOSS((outputs - outputs.mean(0)) / outputs.std(0), labels)


@pytest.mark.parametrize(
    ("loss_fn", "word"), [(in_batch, "the same loss"), (standardised, "no finite loss")]
)
@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_loss_that_needs_other_examples(loss_fn, word, dropout):
    trainer, _ = trainer_of(model=model_of(dropout=dropout), loss_fn=loss_fn)
    with pytest.raises(ArgumentError, match=f"loss_fn gives a batch of one example {word}"):
        trainer.batches(records())


def test_examples_that_happen_to_have_no_gradient_are_accepted():
    """A hinge that is met by every made-up example, in a batch as alone."""
    trainer, _ = trainer_of(loss_fn=lambda outputs, _: (outputs.sum(1) - 100).relu())
    trainer.batches(records())
