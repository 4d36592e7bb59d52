# SPDX-License-Identifier: Apache-2.0
"""What a trainer takes: items of all kinds, workers, blocks, callbacks; and what it says."""

import random
import warnings

import attrs
import numpy as np
import pytest
import torch
from tests.torch.small import (
    LOSS,
    N_RECORDS,
    N_STEPS,
    copy_of,
    digest_of,
    model_of,
    plan_of,
    records,
    resumed,
    train,
    trainer_of,
)
from tests.torch.test_batches import Plain
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice.certificate import verify
from pufferslice.errors import ArgumentError
from pufferslice.learning import LogMoment, Poisson, exactly, plan_training, plan_with_noise
from pufferslice.learning.integer_sums import sum_grid
from pufferslice.learning.keys import RunKey
from pufferslice.torch import StepReport, Trainer, clipping


@pytest.fixture(autouse=True)
def _fixed_key(monkeypatch):
    """Every run without a folder has the same key."""
    monkeypatch.setattr(RunKey, "fresh", classmethod(lambda cls: cls.from_bytes(bytes(range(32)))))


def trained(model=None, data=None, loss_fn=LOSS, plan=None, batches=None, **given):
    """A trainer at the end of its plan, and the weights."""
    model = model_of() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, loss_fn, optimizer, plan or plan_of(), **given)
    for batch in trainer.batches(data or records(), **(batches or {})):
        trainer.step(batch)
    assert trainer.is_finished
    return trainer, digest_of(model)


# --- items


class Outputs(dict):
    """What models of transformers give."""

    __getattr__ = dict.__getitem__


class Named(nn.Module):
    """Takes its inputs by name, nested, and gives outputs by name."""

    def __init__(self):
        super().__init__()
        self.inner = model_of()

    def forward(self, *, parts, labels):
        left, (right,) = parts["left"], parts["rest"]
        logits = self.inner(torch.cat([left, right], 1))
        return Outputs(loss=LOSS(logits, labels).mean(), logits=logits)


def dicts():
    return [
        {"parts": {"left": values[:1], "rest": (values[1:].numpy(),)}, "labels": int(label)}
        for values, label in records()
    ]


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda outputs, item: LOSS(outputs.logits, item["labels"]),
        lambda outputs, _: outputs.loss,
        lambda outputs, item: nn.CrossEntropyLoss()(outputs["logits"], item["labels"]),
    ],
    ids=["of the item", "of the model", "mean"],
)
def test_items_may_be_dicts_of_keyword_inputs(loss_fn):
    model = Named()
    trainer, _ = trained(model, Plain(dicts()), loss_fn)
    assert trainer.gradient_method == "all examples of a block at once"
    assert digest_of(model.inner) == trained()[1]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_may_be_one_number(reduction):
    assert trained(loss_fn=nn.CrossEntropyLoss(reduction=reduction))[1] == trained()[1]


def test_a_loss_of_several_numbers_for_one_example_is_refused():
    with pytest.raises(ArgumentError, match="loss_fn must give one number"):
        trained(loss_fn=lambda outputs, _: outputs)


@pytest.mark.soundness
def test_a_collate_function_gets_single_records():
    lengths = []

    def padded(items):
        lengths.append(len(items))
        values = nn.utils.rnn.pad_sequence([item[0] for item in items], batch_first=True)
        return values, torch.tensor([int(item[1]) for item in items])

    _, weights = trained(data=Plain(list(records())), batches={"collate_fn": padded})
    assert set(lengths) == {1}
    assert weights == trained()[1]
    uneven = Plain([(torch.zeros(4 + i % 2), 0) for i in range(N_RECORDS)])
    with pytest.raises(ArgumentError, match="items of the dataset"):
        trained(data=uneven, batches={"collate_fn": padded})


def test_models_that_take_no_made_up_inputs_are_tried_on_the_first_record():
    inputs, targets = records().tensors
    data = TensorDataset(inputs, targets + 5)
    trainer, weights = trained(data=data, loss_fn=lambda outputs, target: LOSS(outputs, target - 5))
    assert trainer.gradient_method == "all examples of a block at once"
    assert weights == trained()[1]


# --- workers


class Augmented(TensorDataset):
    """Random shifts from each generator that transforms draw from."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        of_numpy = np.random.rand()  # noqa: NPY002 - what transforms draw from
        return inputs + torch.rand(4) + of_numpy + random.random(), target


def test_workers_and_generators_of_the_caller_change_no_bit():
    data = Augmented(*records().tensors)
    plan = attrs.evolve(plan_of(), block=7)
    digests = set()
    for n_workers, in_flight in ((0, 1), (2, 3), (1, 2)):
        model = model_of()
        torch.manual_seed(n_workers)
        state = torch.get_rng_state()
        given = {"batches": {"n_workers": n_workers}, "blocks_in_flight": in_flight}
        digests.add(trained(model, data, plan=plan, **given)[1])
        assert torch.equal(state, torch.get_rng_state())
    assert len(digests) == 1
    assert trained(plan=plan)[1] not in digests


def test_workers_resume(tmp_path):
    data = Augmented(*records().tensors)
    trainer, _ = trainer_of(folder=tmp_path / "run")
    copy = copy_of(tmp_path / "run", tmp_path / "copy")
    for batch in trainer.batches(data, n_workers=2):
        trainer.step(batch)
        if trainer.n_taken == 2:
            trainer.save()
            break
    trainer, model = resumed(tmp_path / "run")
    for batch in trainer.batches(data, n_workers=2):
        trainer.step(batch)
    other, expected = resumed(copy)
    train(other, data)
    assert digest_of(model) == digest_of(expected)


# --- blocks


def block_stated(trainer):
    return trainer.certificate().statement["runs"][0]["block"]


def test_the_block_is_chosen_when_the_dataset_is_known_and_written_down():
    blocks = set()
    for _ in range(2):
        trainer, _ = trainer_of()
        assert trainer.plan.block is None
        trainer.batches(records())
        blocks.add(trainer.plan.block)
        assert block_stated(trainer) == trainer.plan.block
        assert verify(trainer.certificate()).holds
    (block,) = blocks
    # four standard deviations above the expected batch
    assert block == pytest.approx(42 + 4 * 42**0.5, abs=1)


@pytest.mark.parametrize(
    ("n_records", "width", "blocks"),
    [(500, 4, [314]), (40_000, 4, [384]), (40_000, 200_000, range(1, 384))],
    ids=["small", "many", "wide"],
)
def test_a_chosen_block_bounds_rounding_and_memory(n_records, width, blocks):
    inputs = torch.zeros(1, 4).expand(n_records, 4)
    data = TensorDataset(inputs, torch.zeros(n_records).long())
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    sampling = Poisson(n_records=n_records, rate=0.5)
    trainer, _ = trainer_of(plan_of(sampling=sampling), model=model)
    trainer.batches(data)
    assert trainer.plan.block in blocks
    n_parameters = sum(p.numel() for p in model.parameters())
    assert sum_grid(trainer.plan, 0, [n_parameters]).radii[0] > 0.99


def test_the_block_of_a_run_is_kept_when_it_resumes(tmp_path, monkeypatch):
    trainer, _ = trainer_of(folder=tmp_path / "run")
    train(trainer, n_steps=2)
    trainer.save()
    block = trainer.plan.block
    other, expected = resumed(copy_of(tmp_path / "run", tmp_path / "copy"))
    train(other)
    monkeypatch.setattr(clipping.ClippedSums, "chosen_block", lambda *_: 3)
    trainer, model = resumed(tmp_path / "run")
    train(trainer)
    assert trainer.plan.block == block != 3
    assert block_stated(trainer) == block
    assert digest_of(model) == digest_of(expected)


def test_a_block_in_the_plan_is_kept():
    given = {
        "differing": exactly(2),
        "sampling": Poisson(n_records=N_RECORDS, rate=0.7),
        "clip_norm": 1.0,
        "accountant": LogMoment(),
        "block": 5,
    }
    target = plan_of().guarantee()
    plans = [
        plan_with_noise(**given, noise_multipliers=np.full(N_STEPS, 4.0), order=4.0),
        plan_training(**given, n_steps=N_STEPS, target=target),
    ]
    for plan in plans:
        trainer, _ = trained(plan=plan)
        assert trainer.plan.block == block_stated(trainer) == 5
        with pytest.raises(ArgumentError, match="block"):
            attrs.evolve(plan, block=0)


# --- what a run tells


def test_a_callback_gets_the_report_of_each_step():
    reports = []
    _, weights = trained(on_step=reports.append)
    assert all(type(report) is StepReport for report in reports)
    assert [report.step for report in reports] == list(range(1, N_STEPS + 1))
    assert weights == trained()[1]


def test_progress_is_drawn_on_stderr_and_changes_nothing(capsys):
    weights = {trained(batches={"progress": shown})[1] for shown in (None, False)}
    assert capsys.readouterr() == ("", "")
    weights.add(trained(batches={"progress": True})[1])
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert f"{N_STEPS}/{N_STEPS}" in drawn.err
    assert len(weights) == 1


class Reading(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model_of()

    def forward(self, inputs):
        return self.inner(inputs * inputs.max().item())


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"model": Reading}, ["training is slow: one by one", "the model or loss_fn gives"]),
        ({"loss_fn": lambda out, t: LOSS(out - out.mean(0), t)}, ["the model or loss_fn gives"]),
        ({}, []),
    ],
    ids=["reads values", "centres", "plain"],
)
def test_what_the_user_should_know_is_said_once(given, starts):
    given = {name: part() if name == "model" else part for name, part in given.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer, _ = trained(**given)
        trainer.batches(records())
    said = [str(one.message) for one in caught]
    assert len(said) == len(starts)
    for sentence, start in zip(said, starts, strict=True):
        assert sentence.startswith(start)
    is_slow = any("slow" in start for start in starts)
    assert trainer.gradient_method.startswith("one by one") == is_slow
