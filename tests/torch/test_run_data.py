# SPDX-License-Identifier: Apache-2.0
"""Data, models, losses and optimizers that a request names, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from pufferslice import datasets
from pufferslice.errors import ArgumentError
from pufferslice.files import training_of
from pufferslice.sgd.schedules import recipe_learning_rates
from pufferslice.torch.models import cross_entropy, n_parameters
from pufferslice.torch.run_data import ImageDataset, run_data
from pufferslice.torch.run_model import held_out_metrics, run_loss, run_model, run_optimizer

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

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
        said = {
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
            if isinstance(value, str) and value.startswith("own:"):
                value = value.replace("own:", f"{name}:")  # noqa: PLW2901 - the module's real name
            said[section][key] = value
        return training_of(said, tmp_path)

    yield make
    sys.modules.pop(name, None)


def prevalence(world="second"):
    return {"label": 1, "shares": [0.5, 0.6], "seed": 7, "world": world}


class TestNamedData:
    def test_digits_are_the_first_of_the_split_on_a_public_scale(self, asked):
        found = run_data(asked())
        train, held_out = datasets.digits()
        assert (len(found.train), len(found.held_out)) == (20, 360)
        assert (found.shape, found.n_classes) == ((1, 8, 8), 10)
        image, label = found.train[3]
        wanted = (train.images[3, :, :, 0] / 16 - 0.5) / 0.25
        assert np.allclose(image[0].numpy(), wanted)
        assert label == train.labels[3]
        assert found.held_out[0][1] == held_out.labels[0]

    def test_several_at_once_are_the_same_as_one_by_one(self):
        dataset = ImageDataset(datasets.digits()[0])
        for one, (image, label) in zip((5, 2, 5), dataset.__getitems__([5, 2, 5]), strict=True):
            assert torch.equal(image, dataset[one][0])
            assert label == dataset[one][1]

    def test_colours_come_first(self):
        images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
        pictures = datasets.LabelledImages(
            images=images, labels=np.array([0, 1]), white=255, n_classes=2
        )
        image, _ = ImageDataset(pictures)[1]
        assert image.shape == (3, 4, 5)
        wanted = (float(images[1, 2, 3, 1]) / 255 - 0.5) / 0.25
        assert image[1, 2, 3].item() == pytest.approx(wanted)

    def test_more_records_than_there_are(self, asked):
        with pytest.raises(
            ArgumentError, match=r"\[data\] n_records is 1438, but 'digits' has 143"
        ):
            run_data(asked(data__n_records=1_438))

    @pytest.mark.parametrize("world", ["first", "second"])
    def test_only_labels_change_with_the_world(self, asked, world):
        labels = datasets.digits()[0].labels[:1_437]
        said = asked(data__n_records=1_437)
        document = {"label": 3, "shares": [0.1, 0.11], "seed": 7, "world": world}
        changed = _with_worlds(asked, document, n_records=1_437)
        found, plain = run_data(changed), run_data(said)
        seen = np.array([found.train[i][1] for i in range(1_437)])
        assert np.count_nonzero(seen == 3) == {"first": 143, "second": 158}[world]
        assert np.array_equal(seen, changed.worlds.realised(labels))
        assert all(torch.equal(found.train[i][0], plain.train[i][0]) for i in (0, 700, 1_436))


class TestOwnData:
    def test_both_parts_are_taken_as_they_are(self, asked):
        found = run_data(asked(data__dataset="own:data", data__n_classes=2))
        assert (len(found.train), len(found.held_out), found.shape) == (20, 4, (3,))
        assert run_data(asked(data__dataset="own:alone")).held_out is None
        assert len(run_data(asked(data__dataset="own:a_list")).train) == 20

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"dataset": "own:nothing"}, "must return a tuple of two datasets, .* got a NoneType"),
            ({"dataset": "own:no_train"}, "returned 0 records to train on"),
            ({"dataset": "own:no_records"}, "gives no records by position"),
            ({"dataset": "own:empty_held_out"}, "holds out no records; return None"),
            ({"dataset": "own:data", "n_records": 19}, "n_records is 19, but .* returned 20"),
            ({"dataset": "own:absent"}, "has no function 'absent'"),
            ({"dataset": "own:number"}, "has no function 'number'"),
            ({"dataset": "no_such_module:data"}, "there is no module 'no_such_module', neither"),
            ({"dataset": "no_such.module:data"}, "there is no module 'no_such.module'"),
            (
                {"dataset": "own:wrong_labels", "n_classes": 2},
                r"labels must be from 0 to 1; 10 of 20 records to train on have another one",
            ),
        ],
    )
    def test_what_is_refused(self, asked, changes, match):
        with pytest.raises(ArgumentError, match=match):
            run_data(asked(**{f"data__{key}": value for key, value in changes.items()}))

    def test_what_the_users_own_module_misses_is_told_as_it_is(self, asked):
        with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
            run_data(asked(data__dataset="own:broken"))

    def test_the_search_path_is_left_as_it_was(self, asked):
        before = list(sys.path)
        run_data(asked(data__dataset="own:data"))
        assert sys.path == before

    def test_two_worlds_of_ones_own_data(self, asked):
        said = _with_worlds(asked, prevalence(), dataset="own:data")
        *_, labels = run_data(said).train.tensors
        assert int((labels == 1).sum()) == 12
        with pytest.raises(ArgumentError, match="prevalence needs a TensorDataset"):
            run_data(_with_worlds(asked, prevalence(), dataset="own:a_list"))


class TestModels:
    def test_named_models(self, asked):
        for name, size in (("linear", 650), ("small", 1_370)):
            said = asked(training__model=name)
            assert n_parameters(run_model(said, run_data(said))) == size
        said = asked(data__dataset="own:images", data__n_classes=5, training__model="resnet22")
        assert run_model(said, run_data(said))[-1].out_features == 5

    def test_ones_own_model_gets_the_seed(self, asked):
        said = asked(data__dataset="own:data", training__model="own:model", training__seed=4)
        assert run_model(said, run_data(said)).out_features == 6

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"model": "own:no_model"}, "must return a torch module, got <class 'str'>"),
            ({"model": "linear"}, r"\[data\] n_classes must be said for model 'linear'"),
        ],
    )
    def test_what_is_refused(self, asked, changes, match):
        said = asked(data__dataset="own:data", training__model=changes["model"])
        with pytest.raises(ArgumentError, match=match):
            run_model(said, run_data(said))

    def test_resnet_wants_colours(self, asked):
        said = asked(training__model="resnet22")
        with pytest.raises(ArgumentError, match=r"records have shape \(1, 8, 8\)"):
            run_model(said, run_data(said))


class TestOptimizers:
    def test_settings_arrive(self, asked):
        said = asked(training__momentum=0.9, training__weight_decay=0.01)
        optimizer, schedule = run_optimizer(said, nn.Linear(2, 2))
        group = optimizer.param_groups[0]
        assert isinstance(optimizer, torch.optim.SGD)
        assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.9, 0.01)
        assert schedule is None
        adam, _ = run_optimizer(asked(training__optimizer="adam"), nn.Linear(2, 2))
        assert isinstance(adam, torch.optim.Adam)

    def test_cosine_is_the_papers_schedule(self, asked):
        said = asked(training__schedule="cosine", training__n_warmup_steps=3)
        optimizer, schedule = run_optimizer(said, nn.Linear(2, 2))
        seen = []
        for _ in range(8):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        assert seen == pytest.approx(
            recipe_learning_rates(peak=0.5, n_steps=8, n_warmup_steps=3).tolist()
        )

    def test_nothing_to_train(self, asked):
        said = asked(data__dataset="own:data", training__model="own:frozen")
        with pytest.raises(ArgumentError, match="has no trainable parameter"):
            run_optimizer(said, run_model(said, run_data(said)))


class TestMetrics:
    def test_by_hand_and_the_model_is_left_as_it_was(self):
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 2, bias=False))
        model[1].weight.data = torch.tensor([[0.0], [1.0]])
        model[0].eval()
        inputs = torch.tensor([[1.0], [2.0], [-1.0]])
        found = held_out_metrics(
            model, cross_entropy, TensorDataset(inputs, torch.tensor([1, 0, 0]))
        )
        losses = np.log1p(np.exp([-1.0, 2.0, -1.0]))
        assert found["held_out_loss"] == pytest.approx(losses.mean())
        assert found["held_out_accuracy"] == pytest.approx(2 / 3)
        assert [module.training for module in model.modules()] == [True, False, True]

    def test_another_loss_has_no_accuracy(self, asked):
        said = asked(data__dataset="own:data", training__loss="own:squares")
        loss = run_loss(said)
        model = nn.Linear(3, 1)
        found = held_out_metrics(model, loss, run_data(said).held_out)
        assert set(found) == {"held_out_loss"}
        assert run_loss(asked()) is cross_entropy

    def test_more_rows_than_are_taken_at_once(self):
        dataset = TensorDataset(torch.zeros(600, 1), torch.zeros(600, dtype=torch.int64))
        model = nn.Linear(1, 2)
        model.weight.data.zero_()
        model.bias.data = torch.tensor([1.0, 0.0])
        assert held_out_metrics(model, cross_entropy, dataset)["held_out_accuracy"] == 1


def _with_worlds(asked, said, *, dataset="digits", n_records=20):
    request = asked(data__dataset=dataset, data__n_records=n_records)
    document = {
        "data": {"dataset": request.data.dataset, "n_records": n_records},
        "secret": {"prevalence": said},
        "sampling": {"kind": "poisson", "rate": 0.5},
        "training": {
            "model": "linear", "seed": 0, "learning_rate": 0.5, "n_steps": 8, "clip_norm": 1.0,
        },
        "guarantee": {"accountant": "amplified", "order": 8, "epsilon": 8.0},
        "output": {"folder": "run"},
    }  # fmt: skip
    return training_of(document, Path(request.source_folder))
