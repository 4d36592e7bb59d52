# SPDX-License-Identifier: Apache-2.0
"""Losses and hits of a trained model on members, others and held-out records."""

import attrs
import numpy as np
import pytest
import torch

from pufferslice import datasets
from pufferslice.errors import ArgumentError
from pufferslice.sgd import Poisson, WorstCase, plan_with_noise
from pufferslice.sgd.request import DataSource, Learning, Output, Prevalence, TrainingRequest
from pufferslice.torch.evaluating import evaluate_run, layer_sizes
from pufferslice.torch.models import small_convnet
from pufferslice.torch.runs import run_training

N_RECORDS = 60
WORLDS = Prevalence(label=3, shares=(0.1, 0.15), seed=7, world="second")


def request(folder, n_records=N_RECORDS):
    plan = plan_with_noise(
        differing=WORLDS.differing(n_records),
        sampling=Poisson(n_records=n_records, rate=0.5),
        clip_norm=1.0,
        noise_multipliers=np.full(4, 1.0),
        accountant=WorstCase(),
        order=4.0,
    )
    return TrainingRequest(
        plan=plan,
        data=DataSource(dataset="digits"),
        worlds=WORLDS,
        learning=Learning(model="linear", seed=1, learning_rate=0.5),
        output=Output(folder=folder / "run", evaluate_every=4, public_evaluation=True),
        deltas=(1e-5,),
        source_folder=folder,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    asked = request(tmp_path_factory.mktemp("runs"))
    return asked, run_training(asked)


def test_held_out_records_agree_with_the_public_log(trained):
    asked, done = trained
    found = evaluate_run(asked)["held_out"]
    assert found.accuracy == done.metrics["held_out_accuracy"]
    assert found.mean_loss == pytest.approx(done.metrics["held_out_loss"], rel=1e-5)
    assert len(found.losses) == 360


def test_members_have_the_labels_of_their_world(trained):
    """By the weights themselves: a linear map of the standardised image."""
    asked, _ = trained
    state = torch.load(asked.output.folder / "model.pt", weights_only=True)
    weight, bias = (value.double().numpy() for value in state.values())
    train, _ = datasets.digits()
    images = train.images[:N_RECORDS].reshape(N_RECORDS, -1) / 16
    flat = (images - 0.5) / 0.25
    inputs = flat - flat.mean(axis=1, keepdims=True)
    logits = inputs / (flat.std(axis=1, ddof=1, keepdims=True) + 1e-6) @ weight.T + bias
    labels = WORLDS.realised(train.labels[:N_RECORDS])
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(N_RECORDS), labels]
    found = evaluate_run(asked)["members"]
    np.testing.assert_allclose(found.losses, losses, rtol=1e-3, atol=1e-5)
    assert found.accuracy == np.mean(logits.argmax(axis=1) == labels)


def test_others_are_as_many_and_not_the_members(trained):
    asked, _ = trained
    found = evaluate_run(asked)
    assert len(found["others"].losses) == N_RECORDS
    assert not np.array_equal(found["others"].losses, found["members"].losses)


def test_without_enough_others_there_are_none(tmp_path):
    asked = request(tmp_path, n_records=1_000)
    run_training(asked)
    assert set(evaluate_run(asked)) == {"members", "held_out"}


def test_nothing_of_a_record_is_shown(trained):
    asked, _ = trained
    assert repr(evaluate_run(asked)["members"]) == "Evaluation(n_records=60)"


def test_other_data_are_refused(trained, tmp_path):
    asked, _ = trained
    (tmp_path / "own_digits.py").write_text(
        "from torch.utils.data import TensorDataset\n"
        "import torch\n"
        "def load():\n"
        f"    labels = torch.arange({N_RECORDS}) % 10\n"
        f"    return TensorDataset(torch.zeros({N_RECORDS}, 1, 8, 8), labels), None\n",
        encoding="utf-8",
    )
    own = attrs.evolve(
        asked,
        data=DataSource(dataset="own_digits:load", n_classes=10),
        source_folder=tmp_path,
    )
    with pytest.raises(ArgumentError, match="'own_digits:load' is not one of digits, cifar10"):
        evaluate_run(own)


def test_layers_are_counted_by_tensor():
    assert layer_sizes(small_convnet((1, 8, 8), 10, seed=0)) == {
        "0.weight": 72,
        "0.bias": 8,
        "4.weight": 1280,
        "4.bias": 10,
    }
