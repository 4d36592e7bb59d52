# SPDX-License-Identifier: Apache-2.0
"""Audits of training: right plans stand, broken ones fall; runs in real processes."""

import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest
from scipy.stats import binom

from pufferslice.audit.noise import MOST_AXES
from pufferslice.audit.training import (
    FORMAT,
    MANIFEST,
    VERSION,
    RunBlock,
    TrainingRuns,
    _train_block,
    audit_released,
    audit_training,
    train_repeatedly,
)
from pufferslice.claims import Measure
from pufferslice.errors import ArgumentError, StorageError, TrainingError
from pufferslice.learning import WithoutReplacement, WorstCase, exactly, plan_with_noise

N_RUNS = 1_300
CONFIDENCE = 0.95

WORKERS = """
import os, signal, time
import numpy as np

def half_the_noise(world, plan):
    import attrs
    from pufferslice.torch.canary import release_canary
    return release_canary(world, attrs.evolve(plan, noise_multipliers=plan.noise_multipliers / 2))

def a_quarter_of_the_noise(world, plan):
    import attrs
    from pufferslice.torch.canary import release_canary
    return release_canary(world, attrs.evolve(plan, noise_multipliers=plan.noise_multipliers / 4))

def sums(world, plan):
    shift = 1.0 if world == "first" else -1.0
    noise = np.random.default_rng().normal(size=2) * plan.noise_multipliers[0]
    return np.array([0.6, 0.8]) * shift + noise

def gaussian(world, plan):
    return np.random.default_rng().normal(size=3) + (world == "first")

def slow(world, plan):
    with open(os.environ["AUDIT_PIDS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(float(os.environ.get("AUDIT_SECONDS", "0.05")))
    return gaussian(world, plan)

def fails(world, plan):
    raise ZeroDivisionError("in the worker")

def dies(world, plan):
    os.kill(os.getpid(), signal.SIGKILL)

def infinite(world, plan):
    return [np.inf, 0.0]

def matrix(world, plan):
    return np.zeros((2, 2))

def words(world, plan):
    return ["a"]

def nothing(world, plan):
    return []

def uneven(world, plan):
    return np.zeros(np.random.default_rng().integers(1, 50))

number = 3
"""

SCRIPT = """
import json, sys
from pufferslice.audit.training import TrainingRuns, train_repeatedly
from pufferslice.learning import TrainingPlan

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    plan = TrainingPlan.from_json(json.loads(sys.argv[3]))
    worker, n_runs, block = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
    runs = TrainingRuns(worker=worker, plan=plan, n_runs=n_runs, block=block)
    train_repeatedly(runs, sys.argv[2], n_processes=2)
"""

PATIENCE = 90.0

train_again = partial(train_repeatedly, settings={"seed": 1})
"""As the runs of the fixture `trained` were made."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder from which spawned processes can import the workers."""
    (tmp_path / "audited_workers.py").write_text(WORKERS, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AUDIT_PIDS", str(tmp_path / "pids"))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three runs in each world that were made once."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "audited_workers.py").write_text(WORKERS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        train_again(runs_of(n_runs=3), folder / "runs", n_processes=1)
    return folder / "runs"


@pytest.fixture
def finished(trained, home):
    """A copy of them, to be spoilt."""
    return shutil.copytree(trained, home / "runs")


def one_step(multiplier=2.0, order=2.0):
    """One step on all records, of which one differs: epsilon is 2 * order / multiplier^2."""
    return plan_with_noise(
        differing=exactly(1), sampling=WithoutReplacement(n_records=4, batch_size=4),
        clip_norm=1.0, noise_multipliers=[multiplier], accountant=WorstCase(),
        measure=Measure.renyi(order=order),
    )  # fmt: skip


def canary_runs(plan=None, worker="pufferslice.torch.canary:release_canary", n_runs=N_RUNS):
    return TrainingRuns(worker=worker, plan=plan or one_step(), n_runs=n_runs)


def runs_of(function="gaussian", n_runs=10, block=4, **more):
    worker = f"audited_workers:{function}"
    return TrainingRuns(worker=worker, plan=one_step(), n_runs=n_runs, block=block, **more)


def outputs(rng, direction, noise_std, n_runs=N_RUNS):
    """What two worlds release that are pushed apart along a unit direction, 2 in all."""
    shift = np.asarray(direction, dtype=np.float64)
    noise = rng.normal(size=(2, n_runs, len(shift))) * noise_std
    return noise[0] + shift, noise[1] - shift


@pytest.mark.soundness
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("worker", "n_runs"),
    [
        ("a_quarter_of_the_noise", 150),
        pytest.param("half_the_noise", 800, marks=pytest.mark.soak),
    ],
)
def test_too_little_noise_is_refuted_and_the_right_noise_is_not(home, worker, n_runs):
    """Of 2,000 simulated audits of 800 runs at half the noise all refuted,
    the smallest bound 1.53."""
    plan = one_step(multiplier=1.5, order=1.5)
    broken = canary_runs(plan, worker=f"audited_workers:{worker}", n_runs=n_runs)
    assert broken.plan.guarantee().epsilon == pytest.approx(4 / 3)
    verdict = audit_training(broken, folder=home / "broken", confidence=CONFIDENCE, seed=1)
    assert verdict.outcome == "refuted"
    assert verdict.claim == "(1.5, 1.33334)-RPP, whole run"
    assert verdict.prior == "exactly 1 record differs"
    right = canary_runs(plan, n_runs=max(100, 3 * n_runs // 8))
    verdict = audit_training(right, folder=home / "right", confidence=CONFIDENCE, seed=1)
    assert verdict.outcome == "not refuted"
    assert verdict.n_outputs == max(100, 3 * n_runs // 8)


@pytest.mark.soundness
def test_the_same_folder_gives_the_same_verdict_and_no_other_seed(home):
    runs = canary_runs(one_step(order=2.0), worker="audited_workers:sums", n_runs=200)
    settings = {"folder": home / "runs", "confidence": CONFIDENCE}
    verdict = audit_training(runs, seed=3, n_processes=1, **settings)
    assert audit_training(runs, seed=3, **settings) == verdict
    with pytest.raises(ArgumentError, match="seed"):
        audit_training(runs, seed=4, **settings)
    with pytest.raises(ArgumentError, match="confidence"):
        audit_training(runs, seed=3, folder=home / "runs", confidence=0.9)


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [1, 3, MOST_AXES + 1])
def test_too_little_noise_is_seen_in_any_direction(rng, dim):
    direction = rng.normal(size=dim)
    direction /= np.linalg.norm(direction)
    right, broken = (outputs(rng, direction, noise_std, n_runs=6_000) for noise_std in (2.0, 1.0))
    exact = outputs(rng, direction, 50.0, n_runs=6_000)
    exact[0][:, 0], exact[1][:, 0] = 1.0, 1.0 + 1e-9
    same = (np.ones((6_000, dim)), np.ones((6_000, dim)))
    for released, refuted in ((right, False), (broken, True), (exact, True), (same, False)):
        runs = canary_runs(n_runs=6_000)
        assert audit_released(runs, released, confidence=CONFIDENCE, seed=1).refuted == refuted


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize("dim", [20, 300])
def test_equal_worlds_are_told_apart_no_more_often_than_stated(rng, dim):
    """A line chosen on the counted runs would show: along the difference of their means,
    400 runs of 300 numbers differ by 1.2 deviations.
    """
    runs = canary_runs(one_step(multiplier=1e5), n_runs=400)
    assert runs.plan.guarantee().epsilon < 1e-9
    refuted = 0
    for seed in range(100):
        released = tuple(rng.normal(size=(2, 400, dim)))
        refuted += audit_released(runs, released, confidence=0.9, seed=seed).refuted
    assert refuted <= binom.ppf(1 - 1e-6, 100, 0.1)


@pytest.mark.soundness
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("measure", "quantity"),
    [(Measure.guess(), "guess"), (Measure.epsilon_delta(delta=1e-3), "epsilon")],
)
def test_claims_of_guesses_and_of_epsilon_at_a_delta(rng, measure, quantity):
    """Two worlds 2 apart with noise 2; a half of that is refuted."""
    runs = canary_runs(attrs.evolve(one_step(), measure=measure), n_runs=6_000)
    for noise_std, outcome in ((2.0, "not refuted"), (1.0, "refuted")):
        released = outputs(rng, [1.0], noise_std, n_runs=6_000)
        verdict = audit_released(runs, released, confidence=CONFIDENCE, seed=1)
        assert verdict.outcome == outcome
        assert verdict.quantity == quantity
        assert verdict.claim == f"{runs.plan.guarantee()}, whole run"


def test_too_few_runs_are_refused_before_any_is_made(tmp_path):
    runs = canary_runs(one_step(multiplier=0.75), n_runs=200)
    settings = {"folder": tmp_path / "runs", "confidence": 0.99, "seed": 1}
    with pytest.raises(ArgumentError, match=r"\d+ are needed") as error:
        audit_training(runs, **settings)
    needed = int(str(error.value).split(" are needed")[0].split()[-1])
    assert 200 < needed < 100_000
    with pytest.raises(ArgumentError, match=f"{needed}"):
        audit_training(attrs.evolve(runs, n_runs=needed - 1), **settings)
    assert not (tmp_path / "runs").exists()


def started(home, runs):
    """The same runs in a process of its own, in a session of its own."""
    arguments = [json.dumps(runs.plan.to_json()), runs.worker, str(runs.n_runs), str(runs.block)]
    command = [sys.executable, home / "script.py", home, home / "runs", *arguments]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until(holds, process=None):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("world-*.npy")}


def worker_pids(home):
    return {int(line) for line in (home / "pids").read_text().split()}


def is_alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_every_run_is_made_once_and_read_again(home):
    steps = []
    runs = runs_of(n_runs=10, block=4, worlds=["first", "dogs"])
    first, second = train_repeatedly(
        runs, home / "runs", n_processes=2, progress=lambda done, total: steps.append((done, total))
    )
    assert first.shape == second.shape == (10, 3)
    assert len(np.unique(np.concatenate([first, second]))) == 60, "randomness is not shared"
    assert first.mean() > second.mean()
    assert (steps[0], steps[-1]) == ((0, 20), (20, 20))
    assert len(contents(home / "runs")) == 6
    for path in (home / "runs").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads((home / "runs" / MANIFEST).read_text())["worlds"] == ["first", "dogs"]
    (home / "audited_workers.py").write_text("raise RuntimeError", encoding="utf-8")
    again = train_repeatedly(runs, home / "runs")
    assert [a.tolist() for a in again] == [first.tolist(), second.tolist()]


@pytest.mark.slow
def test_killed_it_leaves_complete_blocks_no_process_and_resumes(home, monkeypatch):
    runs = runs_of("slow", n_runs=60, block=3)
    process = started(home, runs)
    wait_until(lambda: len(list((home / "runs").glob("world-*.npy"))) >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    wait_until(lambda: not any(map(is_alive, worker_pids(home))))
    kept = contents(home / "runs")
    assert 3 <= len(kept) < 40
    (home / "runs" / ".world-0-block-000000.npy.0123456789abcdef").write_bytes(b"half")
    steps = []
    monkeypatch.setenv("AUDIT_SECONDS", "0")
    first, second = train_repeatedly(
        runs, home / "runs", n_processes=1, progress=lambda done, total: steps.append(done)
    )
    assert steps[0] == 3 * len(kept)
    assert steps[-1] == 120
    assert kept.items() <= contents(home / "runs").items()
    assert not list((home / "runs").glob(".world*"))
    assert len(np.unique(np.concatenate([first, second]))) == 360


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the terminal's group", "the parent only"])
def test_interrupted_it_ends_its_processes_and_keeps_whole_blocks(home, whom):
    runs = runs_of("slow", n_runs=400, block=4)
    process = started(home, runs)
    wait_until(lambda: len(list((home / "runs").glob("world-*.npy"))) >= 2, process)
    if whom == "the parent only":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors or "TrainingError" in errors
    wait_until(lambda: not any(map(is_alive, worker_pids(home))))
    kept = contents(home / "runs")
    assert 2 <= len(kept) < 200
    assert all(np.load(home / "runs" / name).shape == (4, 3) for name in kept)
    assert not list((home / "runs").glob(".world*"))


def test_a_worker_that_dies_is_an_error_and_finished_blocks_stay(home, finished):
    kept = contents(finished)
    (finished / "world-1-block-000000.npy").unlink()
    source = (home / "audited_workers.py").read_text().replace("def gaussian", "def kept")
    (home / "audited_workers.py").write_text(source.replace("def dies", "def gaussian"))
    with pytest.raises(TrainingError, match=r"died.*__main__.*same folder"):
        train_again(runs_of(n_runs=3), finished, n_processes=1)
    assert contents(finished).items() <= kept.items()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("infinite", "1 of 2"),
        ("matrix", "shape"),
        ("words", "expected numbers"),
        ("nothing", "shape"),
        ("uneven", "number of values"),
        ("absent", "cannot be imported"),
        ("number", "got a int"),
    ],
)
def test_bad_workers_are_refused(home, function, message):
    runs = runs_of(function, block=10)
    with pytest.raises(ArgumentError, match=message):
        _train_block(runs, RunBlock(world=0, number=0, n_runs=10))


def test_failing_workers_and_worlds_of_different_lengths(home):
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        train_repeatedly(runs_of("fails"), home / "failed", n_processes=1)
    runs = runs_of(n_runs=1)
    (home / "runs").mkdir()
    identity = {"format": FORMAT, "version": VERSION, **runs.to_json()}
    (home / "runs" / MANIFEST).write_text(json.dumps(identity))
    for block in runs.blocks:
        np.save(home / "runs" / block.file_name, np.zeros((1, 1 + block.world)))
    with pytest.raises(ArgumentError, match="got 1 and 2"):
        train_repeatedly(runs, home / "runs")


def test_a_folder_of_other_runs_is_refused(finished):
    runs = runs_of(n_runs=3)
    others = {
        "n_runs": 20,
        "worker": "audited_workers:slow",
        "worlds": ("a", "b"),
        "block": 5,
        "plan": one_step(3.0),
    }
    for key, value in others.items():
        with pytest.raises(ArgumentError, match=key):
            train_again(attrs.evolve(runs, **{key: value}), finished)
    with pytest.raises(ArgumentError, match="seed"):
        train_repeatedly(runs, finished, settings={"seed": 2})


def test_folders_that_cannot_be_used_are_refused(home):
    runs = runs_of(n_runs=1)
    (home / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        train_repeatedly(runs, home / "file")
    (home / "other").mkdir()
    np.save(home / "other" / "table.npy", np.zeros(2))
    with pytest.raises(ArgumentError, match=r"audit\.json"):
        train_repeatedly(runs, home / "other")
    (home / "odd").mkdir()
    (home / "odd" / MANIFEST).write_text("no json")
    with pytest.raises(ArgumentError, match="odd"):
        train_repeatedly(runs, home / "odd")
    with pytest.raises(ArgumentError, match="n_processes"):
        train_repeatedly(runs, home / "new", n_processes=0)


def test_a_damaged_block_is_named(finished):
    """Once it is deleted it is as one that a killed audit did not finish."""
    path = finished / "world-0-block-000000.npy"
    contents = [b"", b"no array", path.read_bytes()[:-8]]
    for save, array in (
        (np.savez, np.zeros((3, 3))),
        (np.save, np.zeros((2, 3))),
        (np.save, np.zeros((3, 3), dtype=int)),
        (np.save, np.full((3, 3), np.nan)),
    ):
        save(file := io.BytesIO(), array)
        contents.append(file.getvalue())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"000000\.npy"):
            train_again(runs_of(n_runs=3), finished)
