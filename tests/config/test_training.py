# SPDX-License-Identifier: Apache-2.0
"""Training plans as files, and training files: the values they stand for, every mistake refused."""

from pathlib import Path

import numpy as np
import pytest

from pufferslice.certificate import certify_training, verify
from pufferslice.claims import Guarantee, Measure
from pufferslice.config import read_plan, read_training, write_plan
from pufferslice.config.document import template, toml_of
from pufferslice.config.training import TrainingFile, training_of
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
    mostly_at_most,
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
        measure=Measure.renyi(order=4),
    ),
    plan_with_noise(
        differing=from_pmf([0.5, 0.25, 0.25]),
        sampling=Poisson(n_records=50, rate=0.1),
        clip_norm=2.5,
        noise_multipliers=np.array([3.0]),
        accountant=Amplified(),
        measure=Measure.guess(),
    ),
]


@pytest.mark.parametrize("name", ["training.toml", "plan.json"])
@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_round_trip(plan, name, tmp_path):
    write_plan(plan, tmp_path / name)
    copy = read_plan(tmp_path / name)
    assert copy.to_json() == plan.to_json()
    assert copy.guarantee() == plan.guarantee()


def test_an_edited_plan_must_be_sound(tmp_path):
    write_plan(PLANS[0], tmp_path / "t.toml")
    text = (tmp_path / "t.toml").read_text()
    changed = text.replace('"amplified"', '"mean_square"')
    (tmp_path / "t.toml").write_text(changed)
    with pytest.raises(ArgumentError, match="not renyi"):
        read_plan(tmp_path / "t.toml")
    changed = changed.replace('notion = "unsliced"\norder = 8.0', 'notion = "guess"')
    (tmp_path / "t.toml").write_text(changed)
    plan = read_plan(tmp_path / "t.toml")
    assert (plan.accountant, plan.measure) == (MeanSquare(), Measure.guess())
    (tmp_path / "t.toml").write_text(text.replace("n_steps = 60", "n_steps = 0"))
    with pytest.raises(ArgumentError, match="n_steps"):
        read_plan(tmp_path / "t.toml")


def document(**changes):
    """A whole training file as a document; None leaves a section or a key out."""
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
        holder, key = (sections[section], key) if key else (sections, section)
        holder[key] = value
        if value is None:
            del holder[key]
    return sections


def asked(**changes):
    return training_of(document(**changes), Path())


def test_the_plan_is_the_one_made_in_python():
    request = asked(training__block=8, training__non_finite="stop")
    plan = plan_training(
        differing=exactly(4),
        sampling=Poisson(n_records=100, rate=0.5),
        clip_norm=2.0,
        n_steps=6,
        accountant=Amplified(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    )
    assert request.plan.to_json() == plan.to_json() | {"block": 8, "non_finite": "stop"}
    mean_square = asked(guarantee__accountant="mean-square").plan
    assert mean_square.guarantee().notion == "average_over_batches"


def test_the_template_and_what_is_left_out(tmp_path):
    (tmp_path / "training.toml").write_text(template(TrainingFile), encoding="utf-8")
    request = read_training(tmp_path / "training.toml")
    assert request.plan.differing == exactly(4)
    assert request.plan.measure == Measure.renyi(order=8)
    assert request.plan.sampling.n_records == 1_437
    assert 8 - 1e-6 < request.plan.guarantee().epsilon <= 8
    assert request.output.folder == tmp_path / "run"
    assert request.output.public_evaluation is True
    assert request.source_folder == tmp_path
    request = asked(training__loss="cross-entropy")
    assert (request.plan.block, request.plan.non_finite) == (None, "zero")
    assert (request.worlds, request.data.name, request.deltas) == (None, None, (1e-5,))
    assert request.output.public_evaluation is False
    assert (request.output.evaluate_every, request.output.checkpoint_every) == (1, 10)
    assert asked(training__n_steps=999).output.evaluate_every == 49
    learning = request.learning
    assert (learning.optimizer, learning.schedule) == ("sgd", "constant")
    assert learning.loss == "cross_entropy"


WORLDS = {"label": 3, "shares": [0.1, 0.15], "seed": 7, "world": "second"}


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ({"exactly": 3}, exactly(3)),
        ({"at_most": 3}, at_most(3)),
        ({"mismatch_probability": 0.05}, binomial(n_records=100, mismatch_probability=0.05)),
        ({"probabilities": [0.5, 0.25, 0.25]}, from_pmf([0.5, 0.25, 0.25])),
        ({"prevalence": WORLDS}, exactly(5)),
        ({"kind": "poisson", "rate": 1}, Poisson(n_records=100, rate=1)),
        ({"kind": "without-replacement", "batch_size": 9},
         WithoutReplacement(n_records=100, batch_size=9)),
        ({"kind": "with_replacement", "batch_size": 9},
         WithReplacement(n_records=100, batch_size=9)),
    ],
)  # fmt: skip
def test_every_form_of_the_secret_and_of_sampling(section, value):
    name = "sampling" if "kind" in section else "secret"
    sections = document(guarantee__accountant="log-moment") | {name: section}
    request = training_of(sections, Path())
    assert request.plan.accountant == LogMoment()
    assert value in (request.plan.differing, request.plan.sampling)
    if "prevalence" in section:
        assert (request.worlds.shares, request.worlds.world) == ((0.1, 0.15), "second")


@pytest.mark.parametrize(
    ("secret", "differing"),
    [
        (
            {"mismatch_probability": 0.02, "tail_probability": 1e-6},
            binomial(n_records=100, mismatch_probability=0.02).truncated(tail_probability=1e-6),
        ),
        (
            {"probabilities": [0.5, 0.499, 0.001], "tail_probability": 0.0011},
            from_pmf([0.5, 0.499, 0.001]).truncated(tail_probability=0.0011),
        ),
        (
            {"at_most": 3, "tail_probability": 1e-6},
            mostly_at_most(3, tail_probability=1e-6, failure_probability=0.0),
        ),
        (
            {"at_most": 3, "tail_probability": 1e-6, "failure_probability": 0.05},
            mostly_at_most(3, tail_probability=1e-6, failure_probability=0.05),
        ),
    ],
)
def test_a_tail_is_planned_as_in_python(secret, differing):
    """What is left out is part of the one delta, which is the first of the certificate's."""
    claim = {"accountant": "log-moment", "epsilon": 2.0, "delta": 0.01, "deltas": [0.02, 0.01]}
    request = asked(secret=secret, guarantee=claim)
    plan = plan_training(
        differing=differing,
        sampling=Poisson(n_records=100, rate=0.5),
        clip_norm=2.0,
        n_steps=6,
        accountant=LogMoment(),
        target=Guarantee.epsilon_delta(2.0, 0.01),
    )
    assert request.plan.to_json() == plan.to_json()
    assert request.deltas == (0.01, 0.02)
    certificate = certify_training(request.plan, data="file", deltas=request.deltas)
    assert certificate.guarantee.delta == 0.01
    assert certificate.guarantee.epsilon == pytest.approx(2.0, rel=1e-6)
    assert certificate.guarantee.epsilon <= 2.0
    assert certificate.statement.failure_probability == differing.failure_probability
    assert verify(certificate).holds


def test_a_delta_needs_no_order():
    claim = {"accountant": "log-moment", "epsilon": 2.0, "delta": 1e-5}
    request = asked(guarantee=claim)
    assert request.deltas == (1e-5,)
    certificate = certify_training(request.plan, data="file", deltas=request.deltas)
    assert certificate.guarantee.delta == 1e-5
    assert certificate.guarantee.epsilon == pytest.approx(2.0, rel=1e-6)
    (view,) = certificate.statement.views
    assert view.epsilon == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "target"),
    [
        ({"at_most": 0.64}, Guarantee.guess(at_most=0.64)),
        ({"bits": 0.2}, Guarantee.information(bits=0.2)),
    ],
)
@pytest.mark.parametrize("accountant", ["mean-square", "amplified"])
def test_right_guesses_and_bits(keys, target, accountant):
    request = asked(guarantee={"accountant": accountant} | keys)
    assert request.plan.measure == Measure.of(target)
    assert target.bound * (1 - 1e-6) < request.plan.guarantee().bound <= target.bound
    certificate = certify_training(request.plan, data="file", deltas=request.deltas)
    assert certificate.guarantee.bound <= target.bound
    assert str(certificate.guarantee) == str(target)
    assert verify(certificate).holds


def test_right_guesses_with_a_tail():
    claim = {"accountant": "mean-square", "at_most": 0.64, "deltas": [0.01]}
    request = asked(secret={"at_most": 3, "tail_probability": 1e-3}, guarantee=claim)
    certificate = certify_training(request.plan, data="file", deltas=request.deltas)
    assert 0.6399 < certificate.guarantee.at_most <= 0.64
    assert "more-may-differ" in certificate.statement.limits


@pytest.mark.parametrize(
    ("n_records", "rate", "n_epochs", "n_steps"),
    [(100, 0.1, 3, 30), (50_000, 0.01024, 40, 3_920), (1_437, 0.5, 2, 4), (10, 1.0, 5, 5)],
)
def test_epochs_are_complete_passes(n_records, rate, n_epochs, n_steps):
    request = asked(
        data__n_records=n_records,
        sampling__rate=rate,
        training__n_steps=None,
        training__n_epochs=n_epochs,
    )
    assert request.plan.n_steps == n_steps


def test_plans_and_training_files_are_told_apart(tmp_path):
    (tmp_path / "t.toml").write_text(toml_of(document()))
    request = read_training(tmp_path / "t.toml")
    assert request.description() == asked().description()
    with pytest.raises(ArgumentError, match="is a training file"):
        read_plan(tmp_path / "t.toml")
    write_plan(PLANS[0], tmp_path / "plan.toml")
    with pytest.raises(ArgumentError, match="this is a training plan alone"):
        read_training(tmp_path / "plan.toml")
    (tmp_path / "bad.toml").write_text("[data")
    with pytest.raises(ArgumentError, match="is not a training plan or file"):
        read_training(tmp_path / "bad.toml")
    with pytest.raises(StorageError, match="cannot read"):
        read_training(tmp_path / "absent.toml")
