# SPDX-License-Identifier: Apache-2.0
"""Requests: two worlds by prevalence, what is refused, and what makes two requests one run."""

import json
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.errors import ArgumentError
from pufferslice.learning import LogMoment, Poisson, exactly, plan_training
from pufferslice.learning.request import (
    DataSource,
    Learning,
    Output,
    Prevalence,
    TrainingRequest,
    check_named,
    differences,
)

LEARNING = Learning(model="linear", seed=0, learning_rate=0.5)
WORLDS = Prevalence(label=1, shares=(0.5, 0.6), seed=7, world="first")


def request(**changes):
    plan = plan_training(
        differing=changes.pop("differing", exactly(4)),
        sampling=Poisson(n_records=40, rate=0.5),
        clip_norm=1.0,
        n_steps=3,
        accountant=LogMoment(),
        target=Guarantee.unsliced(order=4, epsilon=2.0),
    )
    said = {
        "plan": plan,
        "data": DataSource(dataset="digits"),
        "worlds": None,
        "learning": LEARNING,
        "output": Output(folder=Path("run"), evaluate_every=1),
        "deltas": (1e-5,),
        "source_folder": Path(),
    }
    return TrainingRequest(**(said | changes))


class TestPrevalence:
    def test_the_papers_worlds(self):
        """0.1 and 0.1004 of 50,000 differ in 20 records; 0.10004 in 2."""
        labels = np.repeat(np.arange(10), 5_000)
        for share, n_differing in ((0.1004, 20), (0.10004, 2)):
            worlds = Prevalence(label=3, shares=(0.1, share), seed=7, world="first")
            assert worlds.differing(50_000) == exactly(n_differing)
            assert worlds.worlds(labels).n_differing == n_differing

    @given(
        labels=st.lists(st.integers(0, 2), min_size=2, max_size=60),
        shares=st.tuples(*[st.integers(0, 20).map(lambda k: k / 20)] * 2),
        seed=st.integers(0, 5),
    )
    def test_the_count_follows_from_the_shares_alone(self, labels, shares, seed):
        assume(len(set(labels)) == 3)
        counts = [int(share * 20 + 0.5) * len(labels) // 20 for share in shares]
        assume(counts[0] != counts[1])
        assume(0 < counts[0] < len(labels))
        worlds = Prevalence(label=0, shares=shares, seed=seed, world="second")
        made = worlds.worlds(labels)
        assert made.n_differing == abs(counts[1] - counts[0])
        assert np.count_nonzero(made.second == 0) == counts[1]
        assert worlds.differing(len(labels)) == exactly(abs(counts[1] - counts[0]))

    def test_the_world_that_is_trained_on(self):
        labels = np.array([1] * 5 + [0] * 5)
        made = WORLDS.worlds(labels)
        assert np.array_equal(WORLDS.realised(labels), made.first)
        other = attrs.evolve(WORLDS, world="second")
        assert np.array_equal(other.realised(labels), made.second)
        assert np.count_nonzero(made.first != made.second) == 1

    def test_wrong_ones(self):
        for changes, match in (
            ({"shares": (0.5,)}, "shares must be two numbers"),
            ({"shares": [0.5, 0.6]}, "shares must be two numbers"),
            ({"label": -1}, "label must be a whole number"),
            ({"seed": "x"}, "seed must be a whole number"),
            ({"world": "third"}, "world must be one of first, second"),
        ):
            with pytest.raises(ArgumentError, match=match):
                attrs.evolve(WORLDS, **changes)
        with pytest.raises(ArgumentError, match="are both 5 records; the two worlds would be one"):
            Prevalence(label=1, shares=(0.5, 0.51), seed=7, world="first").differing(10)
        for shares in ((0.0, 0.5), (1.0, 0.5)):
            with pytest.raises(ArgumentError, match="must leave records with the label and witho"):
                Prevalence(label=1, shares=shares, seed=7, world="first").differing(10)
        with pytest.raises(ArgumentError, match="share must be a number from 0 to 1"):
            Prevalence(label=1, shares=(0.5, 1.5), seed=7, world="first").differing(10)


@pytest.mark.parametrize(
    ("kind", "said", "match"),
    [
        (DataSource, {"dataset": "mnist"}, "dataset must be one of digits or 'module:fun"),
        (DataSource, {"dataset": "os.path:"}, "or 'module:function'; got 'os.path:'"),
        (DataSource, {"dataset": 3}, "got 3"),
        (DataSource, {"dataset": "digits", "name": ""}, "name must be a text"),
        (DataSource, {"dataset": "digits", "n_classes": 10}, "is for data of your own"),
        (DataSource, {"dataset": "a:b", "n_classes": 1}, "n_classes must be a whole number"),
        (
            Output,
            {"folder": Path(), "evaluate_every": 1, "public_evaluation": "yes"},
            "must be true or false",
        ),
        (Output, {"folder": Path(), "evaluate_every": 0}, "evaluate_every must be"),
        (
            Output,
            {"folder": Path(), "evaluate_every": 1, "checkpoint_every": 1.5},
            "checkpoint_every must be",
        ),
    ],
)
def test_wrong_values(kind, said, match):
    with pytest.raises(ArgumentError, match=match):
        kind(**said)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": "resnet"}, "model must be one of linear, small, resnet22 or 'module:function'"),
        ({"loss": "mse"}, "loss must be one of cross_entropy or"),
        ({"seed": -1}, "seed"),
        ({"learning_rate": 0}, "learning_rate must be a finite number greater than 0"),
        ({"learning_rate": "fast"}, "got 'fast'"),
        ({"momentum": -0.1}, "momentum must be a finite number and at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of sgd, adam"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is for optimizer 'sgd'"),
        ({"n_warmup_steps": 2}, "n_warmup_steps is for schedule 'cosine'"),
    ],
)
def test_wrong_learning(changes, match):
    with pytest.raises(ArgumentError, match=match):
        attrs.evolve(LEARNING, **changes)


def test_a_plan_for_another_number_of_differing_records_is_refused():
    assert request(worlds=WORLDS).plan.differing == WORLDS.differing(40)
    with pytest.raises(ArgumentError, match="as many differing records as the two worlds have"):
        request(worlds=WORLDS, differing=exactly(3))


def test_warm_up_ends_before_the_run():
    learning = attrs.evolve(LEARNING, schedule="cosine", n_warmup_steps=2)
    assert request(learning=learning).learning.n_warmup_steps == 2
    with pytest.raises(ArgumentError, match="n_warmup_steps must be less than the 3 steps, got 3"):
        request(learning=attrs.evolve(learning, n_warmup_steps=3))


def test_a_description_is_json_and_does_not_depend_on_folders():
    plain = request(worlds=WORLDS).description()
    assert json.loads(json.dumps(plain)) == plain
    moved = request(
        worlds=WORLDS, output=Output(folder=Path("b"), evaluate_every=3, checkpoint_every=2)
    )
    assert differences(moved.description(), plain) == []


def test_differences_are_named():
    ours = request().description()
    other = request(learning=attrs.evolve(LEARNING, learning_rate=0.25, seed=1), deltas=(1e-6,))
    assert differences(other.description(), ours) == [
        "learning.seed", "learning.learning_rate", "deltas",
    ]  # fmt: skip
    assert differences(request(worlds=WORLDS).description(), ours) == ["worlds"]
    assert differences({"a": 1}, {}) == ["a"]


@pytest.mark.parametrize("name", ["a:b", "pack.module_1:make_data", "_x:_y"])
def test_names_of_functions(name):
    check_named(("digits",), dataset=name)


@pytest.mark.parametrize("name", ["a:b:c", "a.:b", "a:1", " a:b", "a/b:c", "a:b()", ":b", None])
def test_what_is_no_name_of_a_function(name):
    with pytest.raises(ArgumentError, match="module:function"):
        check_named(("digits",), dataset=name)
