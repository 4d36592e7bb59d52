# SPDX-License-Identifier: Apache-2.0
"""Training plans as files."""

import tomllib

import numpy as np
import pytest

from pufferslice.errors import ArgumentError, StorageError
from pufferslice.files import read_plan, write_plan
from pufferslice.files.training_toml import toml_of
from pufferslice.guarantee import Guarantee
from pufferslice.sgd import (
    Amplified,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    binomial,
    exactly,
    from_pmf,
    plan_training,
    plan_with_noise,
)

LAYERS = LayerClipping(
    names=("conv", "dense"), norms=(1.0, 0.5), sizes=(100, 10), allocation="least_noise"
)
PLANS = [
    plan_training(
        differing=exactly(4),
        sampling=Poisson(n_records=1437, rate=0.5),
        clip_norm=1.0,
        n_steps=60,
        accountant=Amplified(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    ),
    plan_with_noise(
        differing=binomial(n_records=100, mismatch_probability=0.05),
        sampling=WithoutReplacement(n_records=100, batch_size=10),
        clip_norm=LAYERS,
        noise_multipliers=np.array([40.0, 41.5, 39.0]),
        accountant=LogMoment(),
        order=4,
    ),
    plan_with_noise(
        differing=from_pmf([0.5, 0.25, 0.25]),
        sampling=Poisson(n_records=50, rate=0.1),
        clip_norm=2.5,
        noise_multipliers=np.array([3.0]),
        accountant=Amplified(),
        order=2.5,
    ),
]


@pytest.mark.parametrize("name", ["training.toml", "plan.json"])
@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_round_trip(plan, name, tmp_path):
    write_plan(plan, tmp_path / name)
    found = read_plan(tmp_path / name)
    assert found.to_json() == plan.to_json()
    assert found.guarantee() == plan.guarantee()


def test_toml_is_what_the_library_reads():
    document = {"a": 'quote " and \\ and ü', "b": [1, 2.5], "c": {"d": True, "e": {"f": 1}}}
    assert tomllib.loads(toml_of(document)) == document


def test_files_that_are_no_plans(tmp_path):
    for name, text in {
        "a.toml": "[plan",
        "b.json": "{",
        "c.toml": 'format = "other"\n',
        "d.json": "[]",
        "e.toml": 'format = "pufferslice-training-plan"\nversion = 2\n',
        "f.toml": 'format = "pufferslice-training-plan"\nversion = 1\n',
    }.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ArgumentError):
            read_plan(tmp_path / name)
    with pytest.raises(StorageError, match="cannot read"):
        read_plan(tmp_path / "absent.toml")


def test_an_edited_plan_must_be_sound(tmp_path):
    write_plan(PLANS[0], tmp_path / "t.toml")
    text = (tmp_path / "t.toml").read_text()
    (tmp_path / "t.toml").write_text(text.replace('"amplified"', '"mean_square"'))
    assert read_plan(tmp_path / "t.toml").accountant == MeanSquare()
    (tmp_path / "t.toml").write_text(text.replace("n_steps = 60", "n_steps = 0"))
    with pytest.raises(ArgumentError, match="n_steps"):
        read_plan(tmp_path / "t.toml")
