# SPDX-License-Identifier: Apache-2.0
"""Training plans as files, and training files: the values they stand for, every mistake refused."""

import re
from pathlib import Path

import numpy as np
import pytest

from pufferslice.calibration.guarantee import Guarantee
from pufferslice.config import TrainingFile, read_plan, read_training, template, write_plan
from pufferslice.config.document import toml_of
from pufferslice.config.training import training_of
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
    copy = read_plan(tmp_path / name)
    assert copy.to_json() == plan.to_json()
    assert copy.guarantee() == plan.guarantee()


def test_wrong_plans(tmp_path):
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
    sections = {
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
            sections[section].pop(key)
        else:
            sections[section][key] = value
    return sections


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
        (tmp_path / "training.toml").write_text(template(TrainingFile), encoding="utf-8")
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
        learning = request.learning
        assert (learning.optimizer, learning.schedule) == ("sgd", "constant")
        assert learning.loss == "cross_entropy"

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
    def test_every_form_of_the_secret(self, secret, differing):
        assert training_of(document() | {"secret": secret}, Path()).plan.differing == differing

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
        sections = document(guarantee__accountant="log-moment") | {"sampling": sampling}
        request = training_of(sections, Path())
        assert request.plan.sampling == design
        assert request.plan.accountant == LogMoment()

    @pytest.mark.parametrize(
        ("n_records", "rate", "n_epochs", "n_steps"),
        [(100, 0.1, 3, 30), (50_000, 0.01024, 40, 3_920), (1_437, 0.5, 2, 4), (10, 1.0, 5, 5)],
    )
    def test_epochs_are_complete_passes(self, n_records, rate, n_epochs, n_steps):
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
            ({"data__dataset": None}, "[data] dataset: is required"),
            ({"data__dataset": "mnist"}, "[data] dataset must be one of digits or 'module"),
            ({"data__n_records": "many"}, "[data] n_records: must be an integer"),
            ({"data__n_records": 0}, "[data] n_records: must be greater than or equal to 1"),
            ({"data__n_record": 3}, "[data] n_record: is unknown; did you mean 'n_records'?"),
            ({"secret__at_most": 3}, "[secret] needs exactly one of exactly, at_most"),
            ({"secret__exactly": None}, "[secret] needs exactly one of"),
            ({"secret__exactly": 2.5}, "[secret] exactly: must be an integer"),
            ({"secret__exactly": 101}, "[secret] up to 101 records differ, but n_records is 100"),
            ({"sampling__kind": None}, "[sampling] kind: is required"),
            ({"sampling__kind": "all"}, "[sampling] kind: must be 'poisson'"),
            ({"sampling__rate": 1.5}, "[sampling] rate must be"),
            ({"sampling__rate": None}, "[sampling] poisson needs rate and no batch_size"),
            ({"sampling__batch_size": 3}, "[sampling] poisson needs rate and no batch_size"),
            ({"training__model": 7}, "[training] model: must be a string"),
            ({"training__model": "large"}, "[training] model must be one of linear, small"),
            ({"training__learning_rate": "x"}, "[training] learning_rate: must be a finite number"),
            ({"training__clip_norm": 0}, "[training] clip_norm must be"),
            ({"training__n_epochs": 3}, "[training] needs either n_steps or n_epochs"),
            ({"training__n_steps": None}, "[training] needs either n_steps or n_epochs"),
            ({"training__n_steps": 10**8}, "[training] n_steps must be at most"),
            ({"training__block": 0}, "[training] block must be"),
            ({"training__non_finite": "skip"}, "[training] non_finite: must be 'zero' or 'stop'"),
            ({"guarantee__accountant": "rdp"}, "[guarantee] accountant: must be 'worst_case'"),
            ({"guarantee__order": 1}, "[guarantee] order must be"),
            ({"guarantee__epsilon": 0}, "[guarantee] epsilon must be"),
            ({"guarantee__deltas": [2.0]}, "[guarantee] deltas must lie strictly between"),
            ({"guarantee__deltas": [True]}, "[guarantee] deltas[0]: must be a number"),
            ({"output__folder": 3}, "[output] folder: must be a string"),
            ({"output__public_evaluation": 1}, "[output] public_evaluation: must be a boolean"),
            ({"output__checkpoint_every": 0}, "[output] checkpoint_every must be"),
        ],
    )
    def test_mistakes_name_section_and_key(self, changes, match):
        with pytest.raises(ArgumentError, match=re.escape(match)):
            asked(**changes)

    @pytest.mark.parametrize(
        ("secret", "match"),
        [
            ({"probabilities": "x"}, r"\[secret\] probabilities: must be a list"),
            ({"probabilities": [0.5]}, r"\[secret\] probabilities must"),
            ({"mismatch_probability": 2}, r"\[secret\] mismatch_probability must"),
            ({"prevalence": 0.1}, r"\[secret\] prevalence: must be a table"),
            ({"prevalence": {"label": 3}}, r"\[secret\] prevalence.shares: is required"),
        ],
    )
    def test_wrong_secrets(self, secret, match):
        with pytest.raises(ArgumentError, match=match):
            training_of(document() | {"secret": secret}, Path())

    @pytest.mark.parametrize("wrong", [[], 3, "x", None])
    def test_a_document_that_is_no_table(self, wrong):
        with pytest.raises(ArgumentError, match="must be a table"):
            training_of(wrong, Path())

    def test_a_section_is_required(self):
        with pytest.raises(ArgumentError, match=r"\[secret\]: is required"):
            training_of({k: v for k, v in document().items() if k != "secret"}, Path())

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
        with pytest.raises(ArgumentError, match="is a training file"):
            read_plan(tmp_path / "t.toml")
        (tmp_path / "bad.toml").write_text("[data")
        with pytest.raises(ArgumentError, match="is not a training plan or file"):
            read_training(tmp_path / "bad.toml")
        with pytest.raises(StorageError, match="cannot read"):
            read_training(tmp_path / "absent.toml")
