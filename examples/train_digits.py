# SPDX-License-Identifier: Apache-2.0
"""Train on digits and hide which of two worlds they come from.

In one world 10 % of the digits are a three, in the other a few more; the images are the same.
Shows the workflow in Python: two worlds, plan, trainer, certificate, a metric on public records.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import TensorDataset

from pufferslice import Guarantee, datasets
from pufferslice.learning import (
    LogMoment,
    Poisson,
    exactly,
    plan_training,
    relabelled,
    two_world_prevalence,
)
from pufferslice.torch import Trainer
from pufferslice.torch.models import cross_entropy, linear_model
from pufferslice.torch.train import held_out_metrics


def main() -> None:
    """Declare, plan, train, certify."""
    folder = Path(tempfile.mkdtemp(prefix="train-digits-"))
    train, held_out = datasets.digits()
    labels = relabelled(train.labels, label=3, share=0.1, seed=7)
    worlds = two_world_prevalence(labels, label=3, share=0.103, seed=7)
    print(f"{worlds}: which one is trained on is the secret")

    plan = plan_training(
        differing=exactly(worlds.n_differing),
        sampling=Poisson(n_records=len(train), rate=1.0),
        clip_norm=2.0,
        n_steps=10,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    )
    model = linear_model((8, 8), train.n_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    trainer = Trainer(model, cross_entropy, optimizer, plan, folder=folder)
    for batch in trainer.batches(records(train.images, worlds.first)):
        trainer.step(batch)

    certificate = trainer.certificate(data="digits of the example")
    certificate.save(folder / "certificate.json")
    print(certificate)
    metrics = held_out_metrics(model, cross_entropy, records(held_out.images, held_out.labels))
    print(f"\nAccuracy on the public held-out digits: {metrics['held_out_accuracy']:.3f}")
    print(f"Trained under {plan.guarantee()}, certificate {certificate.digest[:16]}")


def records(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> TensorDataset:
    """Images as numbers from 0 to 1, and their classes."""
    return TensorDataset(torch.tensor(images) / 16, torch.tensor(labels))


if __name__ == "__main__":
    main()
