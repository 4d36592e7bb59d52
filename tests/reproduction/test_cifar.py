# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 runs: planned, trained on few images, resumed, read off, and written to a page."""

import json
import math

import attrs
import numpy as np
import pytest
import torch

from pufferslice.data import LabelledImages
from pufferslice.errors import StorageError
from pufferslice.torch.models import layer_sizes
from reproduction import cifar, cifar_page, ladder
from reproduction.__main__ import main
from reproduction.cifar import (
    PARTS,
    RUNGS,
    CifarResult,
    convnet,
    planned_runs,
    random_images,
    result_of,
    train_all,
)
from reproduction.ladder import FinishedRuns, read_off
from reproduction.noise import noise_multipliers, noise_setting

RESULT = CifarResult(
    train_accuracy=0.9,
    train_loss=0.4,
    test_accuracy=0.6,
    test_loss=1.1,
    others_loss=1.2,
    attack_auc=(0.7, 0.68, 0.72),
    attack_advantage=0.25,
    n_epochs=20,
    seconds=600.0,
    version="1.2.3",
    curve=((10, 0.4), (20, 0.6)),
)


def images(n, seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    # The label is written into the pixels, so that it can be learnt.
    pixels = (20 * labels[:, None, None, None] + rng.integers(0, 20, (n, 32, 32, 3))).astype("u1")
    return LabelledImages(images=pixels, labels=labels, white=255, n_classes=10)


@pytest.fixture
def few_images(monkeypatch):
    monkeypatch.setattr(cifar, "random_images", lambda: (images(240, 1), images(60, 2)))


def run_of(part, *, n_records=120, n_epochs=2, **changed):
    run = next(run for run in planned_runs(part) if all_of(run, changed))
    setup = attrs.evolve(run.setup, n_records=n_records, batch_size=40, n_epochs=n_epochs)
    return attrs.evolve(run, setup=setup, model="reproduction.cifar:convnet", n_evaluations=1)


def all_of(run, wanted):
    return all(getattr(run, name) == value for name, value in wanted.items())


def save(folder, run, result=RESULT):
    document = {"settings": run.settings(), "result": attrs.asdict(result)}
    (folder / f"{run.name}.json").write_text(json.dumps(document), encoding="utf-8")


class TestPlan:
    def test_the_tier_has_what_the_experiments_need(self):
        runs = planned_runs("all")
        assert len({run.name for run in runs}) == len(runs) == 35
        for size in (512, 1024):
            part = planned_runs(f"ladder-{size}")
            assert {run.noise_multiplier for run in part} == {0.0, *RUNGS}
            assert {run.setup.batch_size for run in part} == {size}
        attacked = planned_runs("attack")
        assert {run.setup.n_records for run in attacked} == {1_000}
        assert [run.sampling for run in attacked].count("shuffled") == 1
        assert len(attacked) >= 5
        (anchor,) = planned_runs("anchor")
        assert (anchor.model, anchor.setup.n_steps) == ("resnet22", 3_920)

    def test_the_anchor_has_the_printed_noise_of_the_largest_budget(self):
        (anchor,) = planned_runs("anchor")
        noise = noise_setting(anchor.setup, 20)
        (printed,) = noise_multipliers(noise, "recipe_sa_srpp", [80.0])
        assert anchor.noise_multiplier == pytest.approx(printed, abs=0.05)

    def test_every_run_can_be_planned(self, tmp_path):
        for run in planned_runs("all"):
            request = run.request(tmp_path)
            assert request.plan.n_steps == run.setup.n_steps
            assert request.output.checkpoint_every <= run.setup.n_steps / run.setup.n_epochs

    def test_the_network_depends_on_its_seed_alone(self):
        before = torch.random.get_rng_state()
        first, again, other = (convnet(seed) for seed in (1, 1, 2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert sum(layer_sizes(first).values()) == 33_834
        assert torch.equal(first[0].weight, again[0].weight)
        assert not torch.equal(first[0].weight, other[0].weight)

    @pytest.mark.soak
    def test_images_are_the_same_in_another_order(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        train, _ = random_images()
        again, _ = random_images()
        original, _ = cifar.data.cifar10()
        assert np.array_equal(train.images[:9], again.images[:9])
        assert not np.array_equal(train.labels, original.labels)
        assert np.array_equal(np.bincount(train.labels), np.bincount(original.labels))


class TestTraining:
    @pytest.mark.parametrize(
        ("part", "wanted"),
        [
            ("ladder-1024", {"sampling": "poisson"}),
            ("layers", {"clipping": "equal"}),
            ("layers", {"clipping": "least_noise"}),
            ("batches", {}),
            ("ladder-512", {"sampling": "shuffled"}),
        ],
    )
    def test_a_run_leaves_one_small_file(self, few_images, tmp_path, part, wanted):
        run, said = run_of(part, **wanted), []
        train_all((run,), tmp_path / "results", tmp_path / "scratch", said.append)
        result = result_of(run, tmp_path / "results")
        assert result.n_epochs == 2
        assert 0 <= result.attack_auc[1] <= result.attack_auc[0] <= result.attack_auc[2] <= 1
        assert -1 <= result.attack_advantage <= 1
        assert result.others_loss > 0
        assert result.curve[-1] == (6, result.test_accuracy)
        assert not list((tmp_path / "scratch").iterdir())
        assert len(said) == 2
        train_all((run,), tmp_path / "results", tmp_path / "scratch", said.append)
        assert len(said) == 2, "it was trained again"

    @pytest.mark.soak
    def test_without_noise_it_learns_and_stops_when_it_has_overfitted(
        self, few_images, tmp_path, monkeypatch
    ):
        """Overfitted earlier than the experiment, which takes most of the time."""
        monkeypatch.setattr(cifar, "OVERFITTED", 0.5)
        run = run_of("attack", n_epochs=60, sampling="shuffled")
        train_all((run,), tmp_path / "results", tmp_path / "scratch", list)
        result = result_of(run, tmp_path / "results")
        assert result.n_epochs < 60
        # after the step of the last epoch, in which half were right; ten classes
        assert result.train_accuracy > 0.3
        assert result.test_accuracy > 0.3

    def test_an_interrupted_plain_run_ends_as_an_uninterrupted_one(
        self, few_images, tmp_path, monkeypatch
    ):
        run = run_of("ladder-512", n_epochs=4, sampling="shuffled")
        train_all((run,), tmp_path / "whole", tmp_path / "scratch", list)
        epochs, epoch = [], cifar.PlainTraining._epoch

        def interrupted(self):
            if len(epochs) == 3:
                raise KeyboardInterrupt
            epochs.append(1)
            return epoch(self)

        with monkeypatch.context() as patch:
            patch.setattr(cifar.PlainTraining, "_epoch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train_all((run,), tmp_path / "resumed", tmp_path / "scratch", list)
        train_all((run,), tmp_path / "resumed", tmp_path / "scratch", list)
        whole, resumed = (result_of(run, tmp_path / name) for name in ("whole", "resumed"))
        assert attrs.evolve(resumed, seconds=0.0) == attrs.evolve(whole, seconds=0.0)


class TestResults:
    def test_they_come_back(self, tmp_path):
        run = planned_runs("anchor")[0]
        assert result_of(run, tmp_path) is None
        save(tmp_path, run)
        assert result_of(run, tmp_path) == RESULT

    def test_those_of_other_settings_are_not_taken(self, tmp_path):
        run = planned_runs("anchor")[0]
        save(tmp_path, run)
        other = attrs.evolve(run, setup=attrs.evolve(run.setup, n_epochs=3))
        assert result_of(other, tmp_path) is None

    @pytest.mark.parametrize("content", ["[]", "{}", "no JSON", '{"settings": {}}'])
    def test_a_damaged_file_is_named(self, tmp_path, content):
        run = planned_runs("anchor")[0]
        text = content
        if content == '{"settings": {}}':
            text = json.dumps({"settings": run.settings(), "result": {"curve": []}})
        (tmp_path / f"{run.name}.json").write_text(text, encoding="utf-8")
        with pytest.raises(StorageError, match="is not the result of a run"):
            result_of(run, tmp_path)


class TestReading:
    def test_between_rungs_and_beyond_the_ends(self):
        ladder = {0.3: 0.6, 1.2: 0.4, 40.0: 0.1}
        assert read_off(ladder, 0.6) == pytest.approx(0.5)
        assert read_off(ladder, 1.2) == pytest.approx(0.4)
        assert read_off(ladder, 0.01) == pytest.approx(0.6)
        assert read_off(ladder, 1_000) == pytest.approx(0.1)

    def test_nothing_is_read_where_rungs_are_missing(self):
        assert read_off({}, 1.0) is None
        assert read_off({1.25: 0.5, 2.5: 0.4}, 0.6) is None
        assert read_off({1.25: 0.5, 2.5: 0.4}, 5.0) is None
        assert read_off({1.25: 0.5, 2.5: 0.4}, 2.0) is not None


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A page elsewhere, with few budgets and without the slow account of group-DP-SGD."""
    monkeypatch.setattr(cifar_page, "PAGE", tmp_path / "cifar.md")
    monkeypatch.setattr(cifar_page, "PICTURES", tmp_path / "pictures")
    real = ladder.noise_multipliers

    def quick(setting, series, epsilons):
        if series == "group_dp_sgd":
            return [3 / math.sqrt(epsilon) for epsilon in epsilons]
        return real(setting, series, epsilons)

    monkeypatch.setattr(ladder, "noise_multipliers", quick)
    (tmp_path / "results").mkdir()
    return tmp_path


class TestPage:
    def test_before_any_run(self, docs, capsys):
        assert main(["cifar-page", str(docs / "results")]) == 0
        assert "0 of 35 runs" in capsys.readouterr().out
        page = (docs / "cifar.md").read_text(encoding="utf-8")
        assert page.count("not run yet") > 35
        assert ".png" not in page
        for run in planned_runs("all"):
            assert f"`{run.name}`" in page

    def test_with_some_runs(self, docs):
        # One rung of the other ladder gives no curve, and no picture of one.
        for run in (*planned_runs("ladder-1024")[:5], planned_runs("ladder-512")[0]):
            save(docs / "results", run)
        main(["cifar-page", str(docs / "results")])
        page = (docs / "cifar.md").read_text(encoding="utf-8")
        assert "6 of 35 runs have finished" in page
        assert "| 20 | 60.0% | 90.0% | 10 | 1.2.3 |" in page
        assert (docs / "pictures" / "accuracy.png").exists()
        assert not (docs / "pictures" / "attack.png").exists()
        # Every second rung is there: noise below the first one cannot be read.
        rows = ladder.ladder_rows(FinishedRuns.of(docs / "results"))
        assert {row["test_accuracy"] is None for row in rows if row["batch_size"] == 512} == {True}
        assert {row["test_accuracy"] is None for row in rows if row["batch_size"] == 1024} == {
            True,
            False,
        }

    def test_with_all_runs(self, docs):
        for run in planned_runs("all"):
            auc = 0.75 if run.noise_multiplier == 0 else 0.5 + 0.1 / (1 + run.noise_multiplier)
            falls = 0.65 / (1 + 0.1 * run.noise_multiplier)
            result = attrs.evolve(
                RESULT, test_accuracy=falls, attack_auc=(auc, auc - 0.02, auc + 0.02)
            )
            save(docs / "results", run, result)
        main(["cifar-page", str(docs / "results")])
        page = (docs / "cifar.md").read_text(encoding="utf-8")
        assert "not run yet" not in page
        for count in (2, 20):
            assert f"If {count} records differ: As epsilon grows" in page
            weaker = f"If {count} records differ: Smaller budgets weaken the membership attack"
            verdict = "Reproduced" if count == 2 else "Not decided"
            assert f"- {verdict}: {weaker}" in page
        # Twenty records: only budgets that the paper attacks, from 498 to 20.
        assert "(epsilon 498), " in page
        assert "(epsilon 921)" not in page
        assert "stopped after 20 epochs" in page
        pictures = {path.name for path in (docs / "pictures").iterdir()}
        assert pictures == {"accuracy.png", "attack.png"}

    def test_budgets_of_the_attack_are_those_of_the_recipe(self, docs):
        for run in planned_runs("attack"):
            save(docs / "results", run)
        runs = FinishedRuns.of(docs / "results")
        for count in (2, 20):
            noise = noise_setting(cifar.ATTACK_SETUP, count)
            for row in ladder.attack_rows(runs, count):
                if row["epsilon"] is None:
                    assert row["series"] == "not private"
                    continue
                recipe = noise.recipe("recipe_sa_srpp", row["epsilon"])
                assert recipe.noise_multiplier == pytest.approx(row["noise_multiplier"])
                assert recipe.true_epsilon == pytest.approx(row["epsilon_by_mean_square"])
        assert ladder.overfitted_claims([]) == []

    def test_the_committed_page_shows_the_committed_results(self):
        page = cifar_page.PAGE.read_text(encoding="utf-8")
        runs = FinishedRuns.of(cifar_page.RESULTS)
        assert f"{len(runs.results)} of 35 runs have finished" in page
        for name, result in runs.results.items():
            (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
            assert f"{result.test_accuracy:.1%}" in line
            assert result.version in line
        shown = {f"{path.name}" for path in cifar_page.PICTURES.glob("*.png")}
        assert all(f"assets/cifar/{name}" in page for name in shown)


def test_the_command_trains_one_part_and_can_be_interrupted(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(cifar, "train_all", lambda runs, *_: seen.append(runs))
    command = ["cifar", str(tmp_path), "--scratch", str(tmp_path / "scratch")]
    assert main([*command, "--part", "anchor"]) == 0
    assert main(command) == 0
    assert seen == [planned_runs("anchor"), planned_runs("all")]
    assert list(dict.fromkeys(run.part for run in seen[1])) == list(PARTS)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cifar, "train_all", interrupt)
    assert main(command) == 130
    assert "the same command resumes" in capsys.readouterr().err
