# SPDX-License-Identifier: Apache-2.0
"""Requests: two worlds by prevalence, what is refused, and what makes two requests one run."""

import json
from pathlib import Path

import attrs
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from pufferslice.claims import Guarantee
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
    fields = {
        "plan": plan,
        "data": DataSource(dataset="digits"),
        "worlds": None,
        "learning": LEARNING,
        "output": Output(folder=Path("run"), evaluate_every=1),
        "deltas": (1e-5,),
        "source_folder": Path(),
    }
    return TrainingRequest(**(fields | changes))


class TestPrevalence:
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
        pair = worlds.worlds(labels)
        assert pair.n_differing == abs(counts[1] - counts[0])
        assert np.count_nonzero(pair.second == 0) == counts[1]
        assert worlds.differing(len(labels)) == exactly(abs(counts[1] - counts[0]))

    def test_the_world_that_is_trained_on(self):
        labels = np.array([1] * 5 + [0] * 5)
        pair = WORLDS.worlds(labels)
        assert np.array_equal(WORLDS.realised(labels), pair.first)
        other = attrs.evolve(WORLDS, world="second")
        assert np.array_equal(other.realised(labels), pair.second)
        assert np.count_nonzero(pair.first != pair.second) == 1


def test_a_plan_has_the_differing_records_of_its_worlds():
    assert request(worlds=WORLDS).plan.differing == WORLDS.differing(40)


def test_warm_up_ends_before_the_run():
    learning = attrs.evolve(LEARNING, schedule="cosine", n_warmup_steps=2)
    assert request(learning=learning).learning.n_warmup_steps == 2


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


def test_names_of_functions():
    for name in ("a:b", "pack.module_1:make_data"):
        check_named(("digits",), dataset=name)
