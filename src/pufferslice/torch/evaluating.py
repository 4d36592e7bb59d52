# SPDX-License-Identifier: Apache-2.0
"""What the model of a finished run says about records: losses and hits, for experiments.

Nothing here is covered by a guarantee: the numbers are computed from the private records.
"""

import io
from collections.abc import Mapping
from typing import final

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from pufferslice import datasets
from pufferslice.arrays import Floats, locked, same
from pufferslice.errors import ArgumentError
from pufferslice.sgd.request import DATASETS, TrainingRequest
from pufferslice.storage import read_bytes
from pufferslice.torch.per_example import LossFunction
from pufferslice.torch.run_data import ImageDataset, Records, run_data
from pufferslice.torch.run_model import outputs_on, run_loss, run_model
from pufferslice.torch.runs import MODEL


@final
@attrs.frozen(kw_only=True, repr=False)
class Evaluation:
    """A model on some records. Internal."""

    losses: Floats = attrs.field(converter=locked, eq=same)
    """One per record."""
    accuracy: float
    """Share of the records whose largest output is at their label."""

    @property
    def mean_loss(self) -> float:
        """Mean loss over the records."""
        return float(self.losses.mean())

    def __repr__(self) -> str:
        return f"Evaluation(n_records={len(self.losses)})"


def evaluate_run(request: TrainingRequest) -> Mapping[str, Evaluation]:
    """The model in the folder of a finished run, on three sets of records.

    `members`: those it was trained on, with the labels of its world. `others`: as many of the data
    set that it was not trained on, if there are so many. `held_out`: the public test records.
    """
    data = run_data(request)
    model, loss = run_model(request, data), run_loss(request)
    state = torch.load(
        io.BytesIO(read_bytes(request.output.folder / MODEL, "model")), weights_only=True
    )
    model.load_state_dict(state)
    parts = {"members": data.train, "held_out": data.held_out, "others": _others(request)}
    return {
        name: _evaluation(model, loss, records)
        for name, records in parts.items()
        if records is not None
    }


def layer_sizes(model: nn.Module) -> dict[str, int]:
    """Number of coordinates of each trainable parameter tensor, by its name."""
    return {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}


def _others(request: TrainingRequest) -> Records | None:
    name, n_records = request.data.dataset, request.plan.sampling.n_records
    if name not in DATASETS:
        msg = f"dataset {name!r} is not one of {', '.join(DATASETS)}, whose other records are known"
        raise ArgumentError(msg)
    train, _ = datasets.digits() if name == "digits" else datasets.cifar10()
    if len(train) < 2 * n_records:
        return None
    part = slice(n_records, 2 * n_records)
    return ImageDataset(attrs.evolve(train, images=train.images[part], labels=train.labels[part]))


def _evaluation(model: nn.Module, loss: LossFunction, records: Records) -> Evaluation:
    losses: list[Tensor] = []
    right = 0
    for outputs, targets in outputs_on(model, records):
        with torch.no_grad():
            losses.append(loss(outputs, targets))
        right += int((outputs.argmax(dim=1) == targets).sum())
    values = torch.cat(losses).numpy().astype(np.float64)
    return Evaluation(losses=values, accuracy=right / len(values))
