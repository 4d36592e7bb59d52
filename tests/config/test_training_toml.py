# SPDX-License-Identifier: Apache-2.0
"""Training plans as files, and training files: the values they stand for, every slip refused."""

import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.config import TRAINING_SECTIONS, read_plan, read_training, training_of, write_plan
from pufferslice.config.training import toml_of
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.learning import (
    Amplified,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    at_most,
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


def document(**changes):
    """A whole training file as a document; `section__key=None` leaves a key out."""
    said = {
        "data": {"dataset": "digits", "n_records": 100},
        "secret": {"exactly": 4},
        "sampling": {"kind": "poisson", "rate": 0.5},
        "training": {
            "model": "linear", "seed": 0, "learning_rate": 1.0, "n_steps": 6, "clip_norm": 2.0,
        },
        "guarantee": {"accountant": "amplified", "order": 8, "epsilon": 8.0},
        "output": {"folder": "run"},
    }  # fmt: skip
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if value is None:
            said[section].pop(key)
        else:
            said[section][key] = value
    return said


def asked(folder=Path(), **changes):
    return training_of(document(**changes), folder)


class TestTrainingFile:
    def test_the_plan_is_the_one_made_in_python(self):
        request = asked(training__block=8, training__non_finite="stop")
        plan = plan_training(
            differing=exactly(4),
            sampling=Poisson(n_records=100, rate=0.5),
            clip_norm=2.0,
            n_steps=6,
            accountant=Amplified(),
            target=Guarantee.unsliced(order=8, epsilon=8.0),
        )
        wanted = plan.to_json() | {"block": 8, "non_finite": "stop"}
        assert request.plan.to_json() == wanted
        assert request.plan.guarantee().epsilon <= 8

    def test_the_template_is_a_whole_file(self, tmp_path):
        template = files("pufferslice.cli").joinpath("training.toml").read_bytes()
        (tmp_path / "training.toml").write_bytes(template)
        request = read_training(tmp_path / "training.toml")
        assert request.plan.differing == exactly(4)
        assert request.plan.sampling.n_records == 1_437
        assert 8 - 1e-6 < request.plan.guarantee().epsilon <= 8
        assert request.plan.order == 8
        assert request.output.folder == tmp_path / "run"
        assert request.output.public_evaluation is True
        assert request.source_folder == tmp_path

    def test_what_is_left_out(self):
        request = asked()
        assert (request.plan.block, request.plan.non_finite) == (None, "zero")
        assert request.worlds is None
        assert request.data.name is None
        assert request.output.public_evaluation is False
        assert (request.output.evaluate_every, request.output.checkpoint_every) == (1, 10)
        assert asked(training__n_steps=999).output.evaluate_every == 49
        assert request.deltas == (1e-5,)
        said = request.learning
        assert (said.optimizer, said.schedule, said.loss) == ("sgd", "constant", "cross_entropy")

    @pytest.mark.parametrize(
        ("secret", "differing"),
        [
            ({"exactly": 3}, exactly(3)),
            ({"at_most": 3}, at_most(3)),
            (
                {"mismatch_probability": 0.05},
                binomial(n_records=100, mismatch_probability=0.05),
            ),
            ({"probabilities": [0.5, 0.25, 0.25]}, from_pmf([0.5, 0.25, 0.25])),
        ],
    )
    def test_every_way_to_say_the_secret(self, secret, differing):
        said = document() | {"secret": secret}
        assert training_of(said, Path()).plan.differing == differing

    def test_two_worlds(self):
        worlds = {"label": 3, "shares": [0.1, 0.15], "seed": 7, "world": "second"}
        request = training_of(document() | {"secret": {"prevalence": worlds}}, Path())
        assert request.plan.differing == exactly(5)
        assert request.worlds.shares == (0.1, 0.15)
        assert request.worlds.world == "second"

    @pytest.mark.parametrize(
        ("sampling", "design"),
        [
            ({"kind": "poisson", "rate": 1}, Poisson(n_records=100, rate=1)),
            (
                {"kind": "without-replacement", "batch_size": 9},
                WithoutReplacement(n_records=100, batch_size=9),
            ),
            (
                {"kind": "with_replacement", "batch_size": 9},
                WithReplacement(n_records=100, batch_size=9),
            ),
        ],
    )
    def test_every_sampling(self, sampling, design):
        said = document(guarantee__accountant="log-moment") | {"sampling": sampling}
        request = training_of(said, Path())
        assert request.plan.sampling == design
        assert request.plan.accountant == LogMoment()

    @pytest.mark.parametrize(
        ("n_records", "rate", "n_epochs", "n_steps"),
        [(100, 0.1, 3, 30), (50_000, 0.01024, 40, 3_920), (1_437, 0.5, 2, 4), (10, 1.0, 5, 5)],
    )
    def test_epochs_are_whole_passes(self, n_records, rate, n_epochs, n_steps):
        request = asked(
            data__n_records=n_records,
            sampling__rate=rate,
            training__n_steps=None,
            training__n_epochs=n_epochs,
        )
        assert request.plan.n_steps == n_steps

    def test_mean_square_claims_what_it_can(self):
        request = asked(guarantee__accountant="mean-square")
        assert request.plan.guarantee().notion == "average_over_batches"

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"data__dataset": None}, r"\[data\] needs 'dataset'"),
            ({"data__dataset": "mnist"}, r"\[data\] dataset must be one of digits or 'module"),
            ({"data__n_records": None}, r"\[data\] needs 'n_records'"),
            ({"data__n_records": "many"}, r"\[data\] n_records must be a whole number"),
            ({"data__rows": 3}, r"unknown key 'rows' in \[data\]; known are dataset, n_classes"),
            ({"secret__at_most": 3}, r"\[secret\] needs exactly one of .* got exactly, at_most"),
            ({"secret__exactly": None}, r"\[secret\] needs exactly one of .* got none"),
            ({"secret__exactly": 2.5}, r"\[secret\] n_differing must be a whole number"),
            (
                {"secret__exactly": 101},
                r"\[secret\] up to 101 records differ, but n_records is 100",
            ),
            ({"sampling__kind": None}, r"\[sampling\] needs 'kind'"),
            ({"sampling__kind": "all"}, r"\[sampling\] kind must be one of poisson"),
            ({"sampling__kind": 3}, r"\[sampling\] kind must be a text"),
            ({"sampling__rate": 1.5}, r"\[sampling\] rate must be greater than 0 and at most 1"),
            ({"sampling__rate": None}, r"\[sampling\] poisson needs rate and nothing else, got n"),
            ({"sampling__batch_size": 3}, r"\[sampling\] poisson needs rate and nothing else"),
            ({"training__model": None}, r"\[training\] needs 'model'"),
            ({"training__model": 7}, r"\[training\] model must be one of linear, small"),
            ({"training__seed": None}, r"\[training\] needs 'seed'"),
            ({"training__learning_rate": "x"}, r"\[training\] learning_rate must be a finite nu"),
            ({"training__clip_norm": None}, r"\[training\] needs 'clip_norm'"),
            ({"training__clip_norm": "x"}, r"\[training\] clip_norm must be a finite number"),
            ({"training__n_epochs": 3}, r"\[training\] needs either n_steps or n_epochs"),
            ({"training__n_steps": None}, r"\[training\] needs either n_steps or n_epochs"),
            ({"training__n_steps": 0}, r"\[training\] n_steps must be a whole number"),
            ({"training__n_steps": 10**8}, r"\[training\] n_steps must be at most"),
            ({"training__block": 0}, r"\[training\] block must be a whole number"),
            ({"training__non_finite": "skip"}, r"\[training\] non_finite must be one of zero"),
            ({"training__optimizer": 1}, r"\[training\] optimizer must be a text"),
            ({"training__lr": 1}, r"unknown key 'lr' in \[training\]"),
            ({"guarantee__accountant": None}, r"\[guarantee\] needs 'accountant'"),
            ({"guarantee__accountant": "rdp"}, r"\[guarantee\] accountant must be one of worst_"),
            ({"guarantee__order": 1}, r"\[guarantee\] order must be a finite number greater tha"),
            ({"guarantee__epsilon": "8"}, r"\[guarantee\] epsilon must be a finite number"),
            ({"guarantee__epsilon": None}, r"\[guarantee\] needs 'epsilon'"),
            ({"guarantee__deltas": 0.1}, r"\[guarantee\] deltas must be a list of numbers"),
            ({"guarantee__deltas": [2.0]}, r"\[guarantee\] deltas must lie strictly between"),
            ({"guarantee__deltas": [True]}, r"\[guarantee\] deltas must be a list of numbers"),
            ({"output__folder": None}, r"\[output\] needs 'folder'"),
            ({"output__folder": 3}, r"\[output\] folder must be a text"),
            ({"output__public_evaluation": 1}, r"\[output\] public_evaluation must be true or f"),
            ({"output__checkpoint_every": 0}, r"\[output\] checkpoint_every must be a whole num"),
        ],
    )
    def test_slips_name_section_and_key(self, changes, match):
        with pytest.raises(ArgumentError, match=match):
            asked(**changes)

    @pytest.mark.parametrize(
        ("secret", "match"),
        [
            ({"probabilities": "x"}, r"\[secret\] probabilities must be a list of numbers"),
            ({"probabilities": [0.5]}, r"\[secret\] probabilities must not be negative and must"),
            ({"mismatch_probability": 2}, r"\[secret\] mismatch_probability must be a probabili"),
            ({"prevalence": 0.1}, r"\[secret\] prevalence must be a table of label, shares, see"),
            ({"prevalence": {"label": 3}}, r"\[secret\] prevalence must be a table of"),
            (
                {"prevalence": {"label": 3, "shares": 0.1, "seed": 7, "world": "first"}},
                r"\[secret\] shares must be two numbers",
            ),
        ],
    )
    def test_secrets_that_are_none(self, secret, match):
        with pytest.raises(ArgumentError, match=match):
            training_of(document() | {"secret": secret}, Path())

    def test_sections(self):
        said = document()
        del said["secret"]
        with pytest.raises(ArgumentError, match=r"needs the section \[secret\]"):
            training_of(said, Path())
        with pytest.raises(ArgumentError, match=r"unknown section \[model\]; known are data"):
            training_of(document() | {"model": {}}, Path())
        with pytest.raises(ArgumentError, match=r"\[data\] must be a section, got str"):
            training_of(document() | {"data": "digits"}, Path())

    def test_a_written_file_is_read_back(self, tmp_path):
        (tmp_path / "t.toml").write_text(toml_of(document()))
        request = read_training(tmp_path / "t.toml")
        assert request.description() == asked().description()
        assert request.output.folder == tmp_path / "run"

    def test_a_plan_is_not_a_training_file_and_the_other_way_round(self, tmp_path):
        write_plan(PLANS[0], tmp_path / "plan.toml")
        with pytest.raises(ArgumentError, match="this is a training plan alone"):
            read_training(tmp_path / "plan.toml")
        (tmp_path / "t.toml").write_text(toml_of(document()))
        with pytest.raises(ArgumentError, match="is a training file, whose plan is made from it"):
            read_plan(tmp_path / "t.toml")
        (tmp_path / "bad.toml").write_text("[data")
        with pytest.raises(ArgumentError, match="is not a training plan or file"):
            read_training(tmp_path / "bad.toml")
        with pytest.raises(StorageError, match="cannot read"):
            read_training(tmp_path / "absent.toml")


def test_every_key_of_a_training_file_is_described(repository):
    page = (repository / "docs" / "files.md").read_text(encoding="utf-8")
    part = page[page.index("## training.toml") :]
    part = part[: part.index("\n## ", 3)]
    for section, keys in TRAINING_SECTIONS.items():
        assert f"`[{section}]`" in part
        assert not [key for key in keys if f"`{key}`" not in part]
