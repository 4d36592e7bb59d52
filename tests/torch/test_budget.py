# SPDX-License-Identifier: Apache-2.0
"""A run of a training part is charged once, before its first step, however it ends."""

import json

import attrs
import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.refusal_tables import refusals
from tests.refusals import check_refused
from tests.torch.small import LOSS, N_RECORDS, model_of, records, resumed, train, trainer_of

from pufferslice import Guarantee, Ledger, Scenario, Training, certify_budget, queries, release
from pufferslice.certificate.certificate import Certificate
from pufferslice.errors import (
    AlreadyReleasedError,
    ArgumentError,
    CertificateError,
    LedgerError,
    ReleaseError,
    TrainingError,
)
from pufferslice.learning import Poisson
from pufferslice.releases import runs
from pufferslice.releases.commands import copying, finished, reconciling
from pufferslice.releases.marks import marks_in
from pufferslice.torch import Trainer, make_private

RNG = np.random.default_rng(3)


def rows(n=N_RECORDS):
    return pa.table({"ill": RNG.choice(["yes", "no"], n), "age": RNG.uniform(20, 90, n)})


TABLE = rows()
YEAR = Scenario.from_prevalence(
    TABLE,
    column="ill",
    value="yes",
    within=0.1,
    moments_from=rows(),
    query=queries.summary(mean=["age"], clip={"age": (20, 90)}),
)
MODEL = Training(
    differing=YEAR.differing(),
    sampling=Poisson(n_records=N_RECORDS, rate=0.5),
    clip_norm=1.0,
    n_steps=4,
)
BUDGET = certify_budget({"year": YEAR, "model": MODEL}, Guarantee.guess(at_most=0.64))
OTHER = certify_budget({"year": YEAR, "model": MODEL}, Guarantee.guess(at_most=0.6))
PLAN = BUDGET.plan("model")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "office.ledger"


def charges(path):
    return [(e.part, e.state, e.charge) for e in Ledger(path).entries() if e.state != "void"]


CHARGED = [("model", "published", 1)]


class TestCharge:
    def test_a_run_charges_its_part_and_is_covered_by_the_budget(self, path):
        trainer, _ = trainer_of(PLAN, ledger=path)
        assert not path.exists()
        train(trainer)
        assert charges(path) == CHARGED
        assert trainer.is_finished
        assert trainer.certificate() is BUDGET
        assert "part model" in str(Ledger(path))
        assert "left: nothing" in str(Ledger(path))
        assert Ledger(path).problems() == []
        assert [mark.part for mark in marks_in(path.parent)] == ["model"]
        release(YEAR, TABLE, BUDGET, part="year", ledger=path)

    @pytest.mark.soundness
    def test_it_is_charged_before_the_first_step(self, path, monkeypatch):
        trainer, _ = trainer_of(PLAN, ledger=path)
        seen = []
        add_noise = type(trainer._run).add_noise

        def watched(run, step, sums):
            seen.append(charges(path))
            return add_noise(run, step, sums)

        monkeypatch.setattr(type(trainer._run), "add_noise", watched)
        train(trainer)
        assert seen == [CHARGED] * 4

    @pytest.mark.soundness
    def test_a_second_run_is_refused(self, path, tmp_path):
        train(trainer_of(PLAN, ledger=path, folder=tmp_path / "one")[0], n_steps=1)
        for given in ({}, {"folder": tmp_path / "two"}):
            with pytest.raises(AlreadyReleasedError, match="another run"):
                train(trainer_of(PLAN, ledger=path, **given)[0])
        assert charges(path) == CHARGED

    @pytest.mark.soundness
    def test_a_run_that_is_resumed_charges_once(self, path, tmp_path):
        whole, expected = trainer_of(PLAN, ledger=path, folder=tmp_path / "run")
        train(whole, n_steps=2)
        whole.save()
        again, _ = resumed(tmp_path / "run", plan=PLAN, ledger=Ledger(path))
        train(again)
        assert again.is_finished
        assert charges(path) == CHARGED
        over, _ = resumed(tmp_path / "run", plan=PLAN, ledger=path)
        assert train(over) == []
        assert charges(path) == CHARGED
        assert expected is not None

    @pytest.mark.soundness
    @pytest.mark.parametrize("step", ["record_drawn", "record_published"])
    def test_a_run_that_is_killed_while_it_is_charged(self, path, tmp_path, monkeypatch, step):
        def killed(*_):
            raise KeyboardInterrupt

        trainer, _ = trainer_of(PLAN, ledger=path, folder=tmp_path / "run")
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, step, killed)
            with pytest.raises(KeyboardInterrupt):
                train(trainer)
        assert trainer.n_taken == 0
        with pytest.raises(AlreadyReleasedError, match="another run"):
            train(trainer_of(PLAN, ledger=path)[0])
        again, _ = resumed(tmp_path / "run", plan=PLAN, ledger=path)
        train(again)
        assert again.is_finished
        assert charges(path) == CHARGED

    @pytest.mark.soundness
    def test_a_charge_that_was_given_up_is_made_again(self, path, tmp_path, monkeypatch):
        """Before the first step only; afterwards nobody can give it up."""
        trainer, _ = trainer_of(PLAN, ledger=path, folder=tmp_path / "run")
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "record_drawn", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                train(trainer)
        (entry,) = Ledger(path).entries()
        Ledger(path).give_up(entry)
        train(trainer, n_steps=1)
        assert charges(path) == CHARGED
        with pytest.raises(LedgerError):
            Ledger(path).give_up(Ledger(path).entries()[-1])

    @pytest.mark.soundness
    def test_a_restored_ledger_does_not_forget_a_run(self, path, tmp_path):
        Ledger(path).make()
        before = path.read_bytes()
        trainer, _ = trainer_of(PLAN, ledger=path, folder=tmp_path / "run")
        train(trainer, n_steps=1)
        trainer.save()
        path.write_bytes(before)
        for plan in (PLAN, OTHER.plan("model")):
            with pytest.raises(LedgerError, match="older than the spent marks"):
                train(trainer_of(plan, ledger=path)[0])
        assert finished(reconciling(Ledger(path), marks_in(tmp_path))) == 1
        with pytest.raises(AlreadyReleasedError, match="another run"):
            train(trainer_of(PLAN, ledger=path)[0])
        again, _ = resumed(tmp_path / "run", plan=PLAN, ledger=path)
        train(again)
        assert charges(path) == CHARGED

    @pytest.mark.soundness
    def test_a_ledger_that_moved_charges_no_more(self, path, tmp_path):
        trainer, _ = trainer_of(PLAN, ledger=path, folder=tmp_path / "run")
        train(trainer, n_steps=1)
        trainer.save()
        finished(copying(Ledger(path), Ledger(tmp_path / "new.ledger")))
        closed, _ = resumed(tmp_path / "run", plan=PLAN, ledger=path)
        with pytest.raises(LedgerError, match="closed"):
            train(closed)
        train(resumed(tmp_path / "run", plan=PLAN, ledger=tmp_path / "new.ledger")[0])

    @pytest.mark.soundness
    def test_one_budget_for_a_secret(self, path):
        release(YEAR, TABLE, BUDGET, part="year", ledger=path)
        with pytest.raises(AlreadyReleasedError, match="same secret"):
            train(trainer_of(OTHER.plan("model"), ledger=path)[0])
        train(trainer_of(PLAN, ledger=path)[0])

    def test_a_ledger_in_a_database_needs_a_folder(self, path, monkeypatch):
        monkeypatch.setattr(Ledger, "path", None)
        with pytest.raises(ArgumentError, match="spent_marks"):
            train(trainer_of(PLAN, ledger=path)[0])
        assert not path.exists()
        train(trainer_of(PLAN, ledger=path, folder=path.parent / "run")[0])
        assert [mark.part for mark in marks_in(path.parent / "run")] == ["model"]

    def test_a_run_that_stops_early_costs_its_part(self, path):
        trainer, _ = trainer_of(PLAN, ledger=path)
        train(trainer, n_steps=2)
        assert trainer.stop(independent_of_data=True) is BUDGET
        assert charges(path) == CHARGED


def stepped(plan, **given):
    train(trainer_of(plan, **given)[0])


def private(plan):
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_private(model, optimizer, records(), plan, loss_fn=LOSS)


REFUSED = {
    TrainingError: [
        (
            "60",
            lambda: train(trainer_of(PLAN, ledger="l")[0], data=records(N_RECORDS - 1)),
        ),
    ],
    ArgumentError: [
        ("ledger", lambda: stepped(PLAN)),
        ("ledger", lambda: private(PLAN)),
        ("ledger", lambda: stepped(None, ledger="l")),
        (
            "unchanged",
            lambda plan: stepped(plan, ledger="l"),
            attrs.evolve(PLAN, noise_multipliers=PLAN.noise_multipliers * 0.999),
            attrs.evolve(PLAN, noise_multipliers=PLAN.noise_multipliers[:3]),
            attrs.evolve(PLAN, non_finite="stop"),
            attrs.evolve(PLAN, sampling=Poisson(n_records=N_RECORDS, rate=0.6)),
        ),
    ],
    ReleaseError: [
        (
            "statement only",
            lambda: stepped(attrs.evolve(BUDGET, evidence=None).plan("model"), ledger="l"),
        ),
    ],
}


@pytest.mark.parametrize("refusal", refusals(REFUSED))
def test_refused(refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(refusal)
    assert not list(tmp_path.iterdir())


@pytest.mark.soundness
def test_a_budget_that_does_not_hold_trains_nothing(path):
    statement = OTHER.budget
    forged = attrs.evolve(BUDGET, statement=statement)
    with pytest.raises((ReleaseError, CertificateError)):
        stepped(forged.plan("model"), ledger=path)
    assert not path.exists()


def test_a_model_of_too_many_parameters(path, monkeypatch):
    monkeypatch.setattr(runs, "MOST_PARAMETERS", 10)
    with pytest.raises(ArgumentError, match="parameters"):
        stepped(PLAN, ledger=path)
    assert not path.exists()


def test_a_block_may_be_chosen(path):
    stepped(attrs.evolve(PLAN, block=7), ledger=path)
    assert charges(path) == CHARGED


def test_what_is_recorded(path, tmp_path):
    BUDGET.save(tmp_path / "budget.json")
    held = Certificate.load(tmp_path / "budget.json")
    trainer, _ = trainer_of(held.plan("model"), ledger=path)
    assert isinstance(trainer, Trainer)
    train(trainer)
    (entry,) = Ledger(path).entries()
    assert json.loads(entry.release) == {
        "format": "pufferslice-charged-run",
        "version": 1,
        "certificate": BUDGET.digest,
        "part": "model",
        "run": trainer.name,
    }
