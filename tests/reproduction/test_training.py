# SPDX-License-Identifier: Apache-2.0
"""Training runs of experiments: kept when finished, resumed when killed."""

import json
import signal
import subprocess
import sys
import time

import attrs
import numpy as np
import pytest

from pufferslice.errors import StorageError
from pufferslice.learning.request import Prevalence
from pufferslice.torch.checkpoint import Checkpoint
from pufferslice.torch.trainer import Trainer
from reproduction import training
from reproduction.experiment import Setting
from reproduction.noise import SgdSetup
from reproduction.training import cifar_scale, digits_scale, results_of

SETUP = SgdSetup(batch_size=20, clip_norm=1.0, peak_learning_rate=0.2, n_epochs=2, n_records=60)
SCALE = digits_scale(model="linear", setups=(SETUP,), n_differing=2)

LONG = """
import sys
from pathlib import Path
import attrs
from reproduction.experiment import Setting
from reproduction.training import results_of
from reproduction.noise import SgdSetup
from reproduction.training import digits_scale

setup = SgdSetup(
    batch_size=20, clip_norm=1.0, peak_learning_rate=0.2, n_epochs=30, n_records=60
)
scale = digits_scale(model="linear", setups=(setup,), n_differing=2)
scale = attrs.evolve(scale, checkpoint_every=5)
task = scale.task(setup, "amplified", 5.0, name="long")
"""


def setting(folder):
    return Setting(full=False, folder=folder)


def task(**changed):
    return attrs.evolve(SCALE.task(SETUP, "amplified", 5.0, name="short"), **changed)


class TestScale:
    def test_worlds_differ_in_as_many_records_as_is_said(self):
        for n_records, n_differing in ((60, 2), (1_437, 4), (50_000, 20), (30_000, 20)):
            setup = attrs.evolve(SETUP, n_records=n_records)
            scale = attrs.evolve(SCALE, n_differing=n_differing)
            worlds = scale.worlds(setup)
            assert isinstance(worlds, Prevalence)
            assert worlds.differing(n_records).largest == n_differing

    def test_the_papers_own_share_for_all_images(self):
        setup = attrs.evolve(SETUP, n_records=50_000)
        assert attrs.evolve(SCALE, n_differing=20).worlds(setup).shares == (0.1, 0.1004)

    def test_cifar_takes_what_is_found(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        scale = cifar_scale()
        assert scale.model == "resnet22"
        assert f"{scale.setups[0].n_records:,} of 50,000 found" in scale.data
        assert scale.setups[0].n_steps == 40 * -(-scale.setups[0].n_records // 512)

    def test_without_the_data_it_says_where_it_looks(self, monkeypatch):
        monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
        with pytest.raises(StorageError, match="PUFFERSLICE_DATA"):
            cifar_scale()


class TestResults:
    def test_a_run_gives_its_numbers_and_leaves_one_small_file(self, tmp_path):
        seen = []
        setting = Setting(full=False, folder=tmp_path, progress=lambda *of: seen.append(of))
        (result,) = results_of({1: task(n_evaluations=3)}, setting).values()
        assert 0 <= result.test_accuracy <= 1
        assert result.noise_multiplier == 5.0
        assert [point.step for point in result.curve] == [2, 4, 6]
        assert result.curve[-1].test_accuracy == pytest.approx(result.test_accuracy)
        low, high = result.attack_auc[1:]
        assert low <= result.attack_auc[0] <= high
        (path,) = tmp_path.iterdir()
        assert path.name.startswith("short-amplified-")
        assert path.stat().st_size < 4_000
        assert seen == [(1, 1)]

    def test_a_finished_run_is_not_trained_again(self, tmp_path, monkeypatch):
        first = results_of({1: task()}, setting(tmp_path))
        monkeypatch.setattr(training, "run_training", None)
        assert results_of({1: task()}, setting(tmp_path)) == first

    def test_a_run_that_ended_before_its_numbers_were_written(self, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(training, "_evaluated", _stop)
            with pytest.raises(KeyboardInterrupt):
                results_of({1: task()}, setting(tmp_path))
        monkeypatch.setattr(training, "run_training", None)
        (result,) = results_of({1: task()}, setting(tmp_path)).values()
        assert result.curve[-1].step == 6

    def test_a_damaged_file_is_named_with_the_way_out(self, tmp_path):
        results_of({1: task()}, setting(tmp_path))
        (path,) = tmp_path.iterdir()
        path.write_text("{", encoding="utf-8")
        with pytest.raises(StorageError, match="Remove it to train again"):
            results_of({1: task()}, setting(tmp_path))
        path.write_text("[]", encoding="utf-8")
        with pytest.raises(StorageError, match=path.name):
            results_of({1: task()}, setting(tmp_path))

    def test_fewer_others_than_members_make_no_attack(self, tmp_path):
        setup = attrs.evolve(SETUP, n_records=900, n_epochs=1, batch_size=300)
        many = SCALE.task(setup, "amplified", 5.0, name="many")
        (result,) = results_of({1: many}, setting(tmp_path)).values()
        assert result.attack_auc is None
        assert result.others_loss is None
        assert json.loads(next(tmp_path.iterdir()).read_text())["attack_auc"] is None


def _stop(_request):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
def test_an_interrupted_run_resumes(tmp_path, monkeypatch, repository, number):
    """A real process is stopped in the middle; the rest of the steps is taken, and no more."""
    code = LONG + f"results_of({{1: task}}, Setting(full=False, folder=Path({str(tmp_path)!r})))"
    names = {}
    exec(LONG, names)  # noqa: S102 - the same task in this process
    request = names["task"].request(tmp_path)
    checkpoint = request.output.folder / "checkpoint.pt"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, cwd=repository
    )
    try:
        _wait_for_steps(process, checkpoint, 5)
        process.send_signal(number)
        process.wait(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    taken = _steps_of(checkpoint)
    assert 0 < taken < request.plan.n_steps
    counted = []
    step = Trainer.step
    monkeypatch.setattr(
        Trainer, "step", lambda self, batch: (counted.append(1), step(self, batch))[1]
    )
    (result,) = results_of({1: names["task"]}, setting(tmp_path)).values()
    assert len(counted) == request.plan.n_steps - taken
    assert result.curve[-1].step == request.plan.n_steps
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def _steps_of(checkpoint):
    return Checkpoint.from_bytes(checkpoint.read_bytes(), "the checkpoint").step


def _wait_for_steps(process, checkpoint, n_steps):
    for _ in range(1_500):
        assert process.poll() is None, "the run ended before it could be stopped"
        if checkpoint.exists() and _steps_of(checkpoint) >= n_steps:
            return
        time.sleep(0.1)
    pytest.fail("the run did not begin in minutes")


def test_the_curve_averages_the_losses_between_its_points(tmp_path):
    (tmp_path / "public.jsonl").write_text(
        "".join(
            json.dumps({"step": s, "held_out_accuracy": s / 10, "held_out_loss": 1.0}) + "\n"
            for s in (2, 4, 6)
        ),
        encoding="utf-8",
    )
    losses = {1: 1.0, 2: 3.0, 3: 5.0, 4: None, 5: None, 6: None}
    (tmp_path / "internal.jsonl").write_text(
        json.dumps({"internal": True, "note": "x"})
        + "\n"
        + "".join(json.dumps({"step": s, "mean_loss": v}) + "\n" for s, v in losses.items()),
        encoding="utf-8",
    )
    curve = training._curve(tmp_path)
    assert [point.batch_loss for point in curve] == [2.0, 5.0, None]
    assert [point.test_accuracy for point in curve] == pytest.approx(list(np.array([2, 4, 6]) / 10))
