# SPDX-License-Identifier: Apache-2.0
"""Property inference on the digits: how common is a digit in the records of a model?

The secret is the share of ones among 400 digits: 10 % or 20 %. The two worlds can be coupled so
that 40 records differ. One model in each world is trained by the plan, and its answers on held-out
digits are released; see `pufferslice.audit.audit_property`.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import TensorDataset

from pufferslice import Guarantee
from pufferslice._core.arrays import Floats
from pufferslice._core.threads import Progress, silent
from pufferslice.audit import Probes, PropertyAudit, TrainingRuns, audit_property
from pufferslice.data.images import digits
from pufferslice.learning import LogMoment, Poisson, TrainingPlan, exactly, plan_training
from pufferslice.torch import Trainer
from pufferslice.torch.models import cross_entropy, linear_model

N_RECORDS: Final = 400
SHARES: Final = (0.1, 0.2)
WORLDS: Final = tuple(f"{100 * share:g} % ones" for share in SHARES)
ONE: Final = 1
N_STEPS: Final = 40
RATE: Final = 0.25
LEARNING_RATE: Final = 2.0
CONFIDENCE: Final = 0.95
EPSILONS: Final = (0.1, 1.0, 10.0, 1e4)


def plan_at(epsilon: float) -> TrainingPlan:
    """The plan of every model: the whole run costs `epsilon` at order 4, or next to no noise."""
    return plan_training(
        differing=exactly(round(N_RECORDS * (SHARES[1] - SHARES[0]))),
        sampling=Poisson(n_records=N_RECORDS, rate=RATE),
        clip_norm=1.0,
        n_steps=N_STEPS,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=4, epsilon=epsilon),
    )


def probes() -> Probes:
    """The held-out digits: ones are typical of the second world, the others of the first."""
    _, held_out = digits()
    return Probes(labels=held_out.labels, from_second=held_out.labels == ONE, n_classes=10)


@cache
def _records() -> tuple[Any, Any, Any]:
    train, held_out = digits()
    images, asked = (
        torch.from_numpy(part.images / part.white).float().permute(0, 3, 1, 2)
        for part in (train, held_out)
    )
    return images, torch.tensor(train.labels), asked


def release(world: str, plan: TrainingPlan) -> Floats:
    """Draw the records of a world, train once, and return log probabilities of the probes."""
    images, labels, asked = _records()
    rng = np.random.default_rng()
    n_ones = round(N_RECORDS * SHARES[WORLDS.index(world)])
    is_one = labels.numpy() == ONE
    rows = np.concatenate(
        [
            rng.choice(np.flatnonzero(is_one), n_ones),
            rng.choice(np.flatnonzero(~is_one), N_RECORDS - n_ones),
        ]
    )
    model = linear_model(tuple(images.shape[1:]), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    torch.set_num_threads(1)
    trainer = Trainer(model, cross_entropy, optimizer, plan, blocks_in_flight=1)
    for batch in trainer.batches(TensorDataset(images[rows], labels[rows])):
        trainer.step(batch)
    with torch.no_grad():
        answers = torch.log_softmax(model(asked), dim=1)
    return np.asarray(answers.double().numpy().ravel())


def audit(
    epsilon: float,
    folder: Path,
    *,
    n_runs: int = 250,
    n_shadows: int = 50,
    progress: Progress = silent,
) -> PropertyAudit:
    """The audit of the plan at one epsilon; the folder resumes."""
    runs = TrainingRuns(
        worker="reproduction.property:release",
        plan=plan_at(epsilon),
        n_runs=n_runs,
        worlds=WORLDS,
        block=10,
    )
    return audit_property(
        runs,
        probes(),
        folder=folder,
        n_shadows=n_shadows,
        confidence=CONFIDENCE,
        seed=1,
        shares=SHARES,
        progress=progress,
    )
