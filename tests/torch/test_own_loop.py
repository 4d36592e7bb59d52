# SPDX-License-Identifier: Apache-2.0
"""Loops of the user's own: each step is the one that a trainer would take, or it is refused."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.torch.small import (
    LOSS,
    N_RECORDS,
    N_STEPS,
    digest_of,
    model_of,
    plan_of,
    records,
    train,
    trainer_of,
)
from torch.nn import functional
from torch.utils.data import default_collate

from pufferslice.certificate import verify
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import Poisson, WithoutReplacement
from pufferslice.torch import make_private, own_loop
from pufferslice.torch.distributed import Processes

pytestmark = pytest.mark.usefixtures("same_key")

NOBODY = Poisson(n_records=N_RECORDS, rate=1e-9)


def private(plan=None, *, model=None, data=None, optimizer=None, loss_fn=LOSS, **given):
    model = model or model_of()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    data = data or records()
    return make_private(model, optimizer, data, plan or plan_of(), loss_fn=loss_fn, **given)


def run(optimizer, loader, work=lambda _: None):
    """Loop until the plan ends."""
    while optimizer.n_taken < N_STEPS:
        for batch in loader:
            work(batch)
            optimizer.step()


def weights_of_trainer(**given):
    trainer, model = trainer_of(**given)
    train(trainer)
    return digest_of(model)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("given", [{}, {"n_workers": 1, "collate_fn": default_collate}])
def test_the_shortest_loop_gives_the_weights_of_a_trainer(dropout, given):
    model = model_of(dropout=dropout)
    returned, optimizer, loader = private(model=model, **given)
    assert returned is model
    run(optimizer, loader)
    assert digest_of(model) == weights_of_trainer(model=model_of(dropout=dropout))


@pytest.mark.soundness
def test_what_the_loop_computes_has_no_part_in_the_step():
    model, optimizer, loader = private()

    def of_opacus(batch):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()

    run(optimizer, loader, of_opacus)
    assert digest_of(model) == weights_of_trainer()

    model, optimizer, loader = private()

    def hostile(batch):
        (1e6 * model(batch[0]).sum()).backward()
        for rows in batch:
            rows.zero_()

    run(optimizer, loader, hostile)
    assert digest_of(model) == weights_of_trainer()
    assert all(p.grad is None for p in model.parameters())


def test_a_closure_is_called_before_the_step_and_its_loss_returned():
    model, optimizer, loader = private()
    losses = []
    with torch.no_grad():
        while optimizer.n_taken < N_STEPS:
            for inputs, targets in loader:

                def closure(inputs=inputs, targets=targets):
                    loss = functional.cross_entropy(model(inputs), targets)
                    loss.backward()
                    return loss.item()

                losses.append((optimizer.step(closure), optimizer.last_report.mean_loss))
    assert digest_of(model) == weights_of_trainer()
    assert np.array(losses)[:, 0] == pytest.approx(np.array(losses)[:, 1], rel=1e-5)


# --- batches


def test_passes_are_epochs_and_end_with_the_plan():
    sampling = WithoutReplacement(n_records=N_RECORDS, batch_size=15)
    _, optimizer, loader = private(plan_of(sampling=sampling))
    assert len(loader) == 4
    sizes = []
    for _ in range(3):
        sizes.append([])
        for inputs, targets in loader:
            assert len(inputs) == len(targets) == 15
            optimizer.step()
            sizes[-1].append(tuple(inputs[:, 0].tolist()))
    assert [len(one) for one in sizes] == [4, 2, 0]
    assert len(set(sizes[0] + sizes[1])) == N_STEPS
    assert optimizer.spent() == plan_of(sampling=sampling).guarantee()
    with pytest.raises(TrainingError, match="no batch"):
        optimizer.step()


def test_every_batch_has_its_step():
    model, optimizer, loader = private()
    weights = digest_of(model)
    with pytest.raises(TrainingError, match="no batch"):
        optimizer.step()
    batches = iter(loader)
    first = next(batches)
    with pytest.raises(TrainingError, match="step 0"):
        next(batches)
    again = next(iter(loader))
    assert torch.equal(first[0], again[0])
    assert digest_of(model) == weights
    optimizer.step()
    with pytest.raises(TrainingError, match="no batch"):
        optimizer.step()
    assert not torch.equal(first[0], next(iter(loader))[0])
    run(optimizer, loader)
    assert digest_of(model) == weights_of_trainer()


def test_an_empty_batch_has_shapes_and_its_step_is_noise():
    model, optimizer, loader = private(plan_of(sampling=NOBODY))
    before = [p.detach().clone() for p in model.parameters()]
    inputs, targets = next(iter(loader))
    assert (inputs.shape, targets.shape, targets.dtype) == ((0, 4), (0,), torch.int64)
    optimizer.step()
    assert optimizer.last_report.n_examples == 0
    assert all((a != b).all() for a, b in zip(before, model.parameters(), strict=True))


# --- the optimizer


def test_schedulers_and_states_are_those_of_the_given_optimizer():
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _, optimizer, loader = private(model=model, optimizer=inner)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for _ in loader:
        optimizer.step()
        scheduler.step()
        break
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.05
    state = copy.deepcopy(optimizer.state_dict())
    assert len(state["state"]) == 4
    state["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(state)
    assert inner.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.5
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            attempt(optimizer)


def test_the_inner_optimizer_steps_no_more_until_the_run_is_closed():
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    _, optimizer, loader = private(model=model, optimizer=inner)
    inputs, targets = next(iter(loader))
    LOSS(model(inputs), targets).sum().backward()
    weights = digest_of(model)
    with pytest.raises(TrainingError, match="without noise"):
        inner.step()
    assert digest_of(model) == weights
    optimizer.close()
    assert list(loader) == []
    with pytest.raises(TrainingError, match="over"):
        optimizer.step()
    inner.step()
    assert digest_of(model) != weights
    assert optimizer.certificate().guarantee == plan_of().guarantee()


def test_the_certificate_says_whose_loop_it_was():
    _, optimizer, loader = private()
    with pytest.raises(TrainingError, match="spent"):
        optimizer.spent()
    run(optimizer, loader)
    certificate = optimizer.certificate(data="survey")
    assert certificate.guarantee == plan_of().guarantee()
    assert certificate.statement.data == "survey"
    assert "loop-outside-program" in certificate.statement.limits
    trainer, _ = trainer_of()
    train(trainer)
    assert "loop-outside-program" not in trainer.certificate().statement.limits
    assert verify(certificate).holds


# --- errors


def test_an_error_before_the_noise_leaves_the_step_to_be_taken_again():
    model, optimizer, loader = private()
    weights = digest_of(model)
    next(iter(loader))
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 // 0)
    with torch.autocast("cpu"), pytest.raises(ArgumentError, match="autocast"):
        optimizer.step()
    assert digest_of(model) == weights
    assert optimizer.n_taken == 0
    run(optimizer, loader)
    assert digest_of(model) == weights_of_trainer()


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(own_loop, "joined_processes", lambda: Processes(0, 2))
    with pytest.raises(ArgumentError, match="Trainer"):
        private()
