# SPDX-License-Identifier: Apache-2.0
"""Data, models, losses and optimizers that a request names, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice import datasets
from pufferslice.config import training_of
from pufferslice.errors import ArgumentError
from pufferslice.learning.plan import recipe_learning_rates
from pufferslice.torch.models import cross_entropy, layer_sizes, n_parameters, small_convnet
from pufferslice.torch.train import (
    ImageDataset,
    held_out_metrics,
    run_data,
    run_loss,
    run_model,
    run_optimizer,
)

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from pufferslice.data import digits

def points(n=20, shift=0):
    inputs = torch.linspace(-1, 1, n * 3).reshape(n, 3)
    return TensorDataset(inputs, torch.arange(n) % 2 + shift)

def data(): return points(), points(4)
def alone(): return points(), None
def images(): return TensorDataset(torch.zeros(20, 3, 8, 8), torch.zeros(20, dtype=int)), None
def wrong_labels(): return points(shift=1), None
def nothing(): return None
def no_train(): return None, points()
def no_records(): return iter([1]), None
def empty_held_out(): return points(), TensorDataset(torch.zeros(0, 3), torch.zeros(0))
def digit_images(): return digits()
def digits_and_nothing(): return digits()[0], None
def a_list(): return [(torch.zeros(3), 1)] * 20, None
def broken(): import module_that_is_not_there

def model(seed): return nn.Linear(3, 2 + seed)
def no_model(seed): return "model"
def frozen(seed): return nn.Linear(3, 2).requires_grad_(False)
def squares(outputs, targets): return (outputs[:, 0] - targets) ** 2
number = 3
"""


@pytest.fixture
def asked(tmp_path, request):
    """Requests beside a module of the user's own, under a name of its own for each test."""
    name = f"own_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE)

    def make(**changes):
        document = {
            "data": {"dataset": "digits", "n_records": 20},
            "secret": {"exactly": 2},
            "sampling": {"kind": "poisson", "rate": 0.5},
            "training": {
                "model": "linear", "seed": 0, "learning_rate": 0.5, "n_steps": 8, "clip_norm": 1.0,
            },
            "guarantee": {"accountant": "amplified", "order": 8, "epsilon": 8.0},
            "output": {"folder": "run"},
        }  # fmt: skip
        for place, value in changes.items():
            section, _, key = place.partition("__")
            if isinstance(value, str):
                value = value.replace("own:", f"{name}:")  # noqa: PLW2901 - the module's real name
            if key == "prevalence":
                document[section] = {}
            document[section][key] = value
        return training_of(document, tmp_path)

    yield make
    sys.modules.pop(name, None)


def prevalence(world="second"):
    return {"label": 1, "shares": [0.5, 0.6], "seed": 7, "world": world}


def test_digits_are_the_first_of_the_split_on_a_public_scale(asked):
    data = run_data(asked())
    train, held_out = datasets.digits()
    assert (len(data.train), len(data.others), len(data.held_out)) == (20, 20, 360)
    assert (data.shape, data.n_classes) == ((1, 8, 8), 10)
    for records, position, source in ((data.train, 3, 3), (data.others, 4, 24)):
        image, label = records[position]
        assert np.allclose(image[0].numpy(), (train.images[source, :, :, 0] / 16 - 0.5) / 0.25)
        assert label == train.labels[source]
    assert data.held_out[0][1] == held_out.labels[0]
    assert run_data(asked(data__n_records=1_000)).others is None
    with pytest.raises(ArgumentError, match="n_records is 1438"):
        run_data(asked(data__n_records=1_438))


def test_images_have_their_channels_first_one_by_one_or_together():
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    dataset = ImageDataset(
        datasets.LabelledImages(images=images, labels=np.array([0, 1]), white=255, n_classes=2)
    )
    assert dataset[1][0].shape == (3, 4, 5)
    wanted = (float(images[1, 2, 3, 1]) / 255 - 0.5) / 0.25
    assert dataset[1][0][1, 2, 3].item() == pytest.approx(wanted)
    for index, (image, label) in zip((1, 0, 1), dataset.__getitems__([1, 0, 1]), strict=True):
        assert torch.equal(image, dataset[index][0])
        assert label == dataset[index][1]


@pytest.mark.parametrize(("world", "count"), [("first", 143), ("second", 158)])
def test_only_labels_change_with_the_world(asked, world, count):
    secret = {"label": 3, "shares": [0.1, 0.11], "seed": 7, "world": world}
    changed = asked(data__n_records=1_437, secret__prevalence=secret)
    data, plain = run_data(changed), run_data(asked(data__n_records=1_437))
    labels = np.array([data.train[i][1] for i in range(1_437)])
    assert np.count_nonzero(labels == 3) == count
    assert np.array_equal(labels, changed.worlds.realised(datasets.digits()[0].labels[:1_437]))
    assert all(torch.equal(data.train[i][0], plain.train[i][0]) for i in (0, 700, 1_436))


def test_data_of_ones_own(asked):
    path = list(sys.path)
    data = run_data(asked(data__dataset="own:data", data__n_classes=2))
    assert sys.path == path
    assert (len(data.train), len(data.held_out), data.shape) == (20, 4, (3,))
    assert run_data(asked(data__dataset="own:alone")).held_out is None
    assert len(run_data(asked(data__dataset="own:a_list")).train) == 20
    changed = asked(data__dataset="own:data", secret__prevalence=prevalence())
    assert int((run_data(changed).train.tensors[-1] == 1).sum()) == 12
    with pytest.raises(ArgumentError, match="TensorDataset"):
        run_data(asked(data__dataset="own:a_list", secret__prevalence=prevalence()))


def test_images_of_a_function_are_taken_as_the_digits_are(asked):
    secret = {"label": 3, "shares": [0.1, 0.15], "seed": 7, "world": "second"}
    own, named = (
        run_data(asked(data__dataset=dataset, secret__prevalence=secret))
        for dataset in ("own:digit_images", "digits")
    )
    assert own.n_classes == named.n_classes == 10
    assert own.shape == named.shape
    for mine, theirs in ((own.train, named.train), (own.others, named.others)):
        assert [label for _, label in mine] == [label for _, label in theirs]
        assert all(torch.equal(mine[i][0], theirs[i][0]) for i in range(20))
    assert len(own.held_out) == len(named.held_out)
    assert run_data(asked(data__dataset="own:digit_images", data__n_classes=10)).n_classes == 10


@pytest.mark.parametrize(
    ("dataset", "changes", "match"),
    [
        ("own:nothing", {}, "two datasets"),
        ("own:no_train", {}, "n_records .* returned 0"),
        ("own:no_records", {}, "records by position"),
        ("own:empty_held_out", {}, "holds out no records"),
        ("own:data", {"n_records": 19}, "n_records is 19.*20"),
        ("own:absent", {}, "absent"),
        ("own:number", {}, "number"),
        ("no_such_module:data", {}, "no_such_module"),
        ("no_such.module:data", {}, "no_such.module"),
        ("own:wrong_labels", {"n_classes": 2}, "labels must be .* 10 of 20"),
        ("own:digits_and_nothing", {}, "or a tuple of two LabelledImages"),
        ("own:digit_images", {"n_classes": 3}, "n_classes is 3, but .* has 10 classes; leave it"),
        ("own:digit_images", {"n_records": 1_438}, "has 1437 records to train on"),
    ],
)
def test_data_that_are_refused(asked, dataset, changes, match):
    with pytest.raises(ArgumentError, match=match):
        run_data(asked(data__dataset=dataset, **{f"data__{k}": v for k, v in changes.items()}))


def test_what_the_users_own_module_misses_is_shown_as_it_is(asked):
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        run_data(asked(data__dataset="own:broken"))


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"training__model": "linear"}, 650),
        ({"training__model": "small"}, 1_370),
        ({"data__dataset": "own:data", "training__model": "own:model", "training__seed": 4}, 24),
    ],
)
def test_models_by_name(asked, changes, size):
    request = asked(**changes)
    assert n_parameters(run_model(request, run_data(request))) == size


def test_the_resnet_has_as_many_outputs_as_classes(asked):
    request = asked(data__dataset="own:images", data__n_classes=5, training__model="resnet22")
    assert run_model(request, run_data(request))[-1].out_features == 5
    sizes = {"0.weight": 72, "0.bias": 8, "4.weight": 1280, "4.bias": 10}
    assert layer_sizes(small_convnet((1, 8, 8), 10, seed=0)) == sizes


@pytest.mark.parametrize(
    ("dataset", "model", "match"),
    [
        ("own:data", "own:no_model", "torch module"),
        ("own:data", "linear", "n_classes"),
        ("digits", "resnet22", "3 channels"),
        ("own:data", "own:frozen", "no trainable parameter"),
    ],
)
def test_models_that_are_refused(asked, dataset, model, match):
    request = asked(data__dataset=dataset, training__model=model)
    with pytest.raises(ArgumentError, match=match):
        run_optimizer(request, run_model(request, run_data(request)))


def test_settings_of_the_optimizer_arrive(asked):
    request = asked(training__momentum=0.9, training__weight_decay=0.01)
    optimizer, schedule = run_optimizer(request, nn.Linear(2, 2))
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, torch.optim.SGD)
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.9, 0.01)
    assert schedule is None
    adam, _ = run_optimizer(asked(training__optimizer="adam"), nn.Linear(2, 2))
    assert isinstance(adam, torch.optim.Adam)


def test_cosine_is_the_papers_schedule(asked):
    request = asked(training__schedule="cosine", training__n_warmup_steps=3)
    optimizer, schedule = run_optimizer(request, nn.Linear(2, 2))
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    wanted = recipe_learning_rates(peak=0.5, n_steps=8, n_warmup_steps=3)
    assert rates == pytest.approx(wanted.tolist())


def test_metrics_by_hand_and_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2, bias=False))
    model[1].weight.data = torch.tensor([[0.0], [1.0]])
    model[0].eval()
    inputs = torch.tensor([[1.0], [2.0], [-1.0]]).repeat(200, 1)  # more than are taken at once
    records = TensorDataset(inputs, torch.tensor([1, 0, 0]).repeat(200))
    metrics = held_out_metrics(model, cross_entropy, records)
    losses = np.log1p(np.exp([-1.0, 2.0, -1.0]))
    assert metrics["held_out_loss"] == pytest.approx(losses.mean())
    assert metrics["held_out_accuracy"] == pytest.approx(2 / 3)
    assert [module.training for module in model.modules()] == [True, False, True]


def test_another_loss_has_no_accuracy(asked):
    request = asked(data__dataset="own:data", training__loss="own:squares")
    metrics = held_out_metrics(nn.Linear(3, 1), run_loss(request), run_data(request).held_out)
    assert set(metrics) == {"held_out_loss"}
    assert run_loss(asked()) is cross_entropy
