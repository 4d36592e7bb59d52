# SPDX-License-Identifier: Apache-2.0
"""Tiny learners for tests of training: data, plans, models, and scripts that run them."""

import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice.claims import Measure
from pufferslice.learning import LogMoment, Poisson, exactly, plan_with_noise
from pufferslice.torch import Trainer

N_RECORDS = 60
N_STEPS = 6
LOSS = nn.CrossEntropyLoss(reduction="none")


def records(n_records=N_RECORDS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n_records, 4, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def plan_of(n_steps=N_STEPS, sampling=None, clip_norm=1.0, accountant=None, multipliers=None):
    accountant = accountant or LogMoment()
    return plan_with_noise(
        differing=exactly(2),
        sampling=sampling or Poisson(n_records=N_RECORDS, rate=0.7),
        clip_norm=clip_norm,
        noise_multipliers=np.full(n_steps, 4.0) if multipliers is None else multipliers,
        accountant=accountant,
        measure=Measure.of(accountant.claim(order=4.0, epsilon=1.0)),
    )


def model_of(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)]
    if dropout:
        layers.insert(2, nn.Dropout(dropout))
    return nn.Sequential(*layers)


def trainer_of(
    plan=None, *, model=None, loss_fn=LOSS, optimizer=torch.optim.SGD, schedule=False, **given
):
    """A trainer of a tiny model, and the model."""
    model = model_of() if model is None else model
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if schedule else None
    trainer = Trainer(model, loss_fn, optimizer, plan or plan_of(), scheduler=scheduler, **given)
    return trainer, model


def train(trainer, data=None, n_steps=None, save_every=None, **given):
    """Take all steps that are left, or so many."""
    reports = []
    if n_steps == 0:
        return reports
    for batch in trainer.batches(data if data is not None else records(), **given):
        reports.append(trainer.step(batch))
        if save_every and not trainer.is_finished and trainer.n_taken % save_every == 0:
            trainer.save()
        if n_steps is not None and len(reports) == n_steps:
            break
    return reports


def stopped_at(folder, n_steps, **given):
    """A run in a folder that was saved after so many steps and then left."""
    trainer, model = trainer_of(folder=folder, **given)
    train(trainer, n_steps=n_steps)
    trainer.save()
    return trainer, model


def resumed(folder, *args, plan=None, **given):
    """Another process's trainer, begun with other weights, after it resumed."""
    trainer, model = trainer_of(plan, model=model_of(seed=9), folder=folder, **given)
    trainer.resume(*args)
    return trainer, model


def digest_of(model):
    """SHA-256 of all weights: equal only if every bit is."""
    state = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        state.update(name.encode())
        state.update(tensor.numpy().tobytes())
    return state.hexdigest()


def copy_of(folder, copy):
    """A run as it is on the disk, key and all: two runs that may differ in nothing."""
    shutil.copytree(folder, copy)
    return copy


def outcome(script, repository, folder):
    """What a script prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(repository), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
