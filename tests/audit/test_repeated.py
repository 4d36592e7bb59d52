# SPDX-License-Identifier: Apache-2.0
"""Runs in real processes: killed, interrupted, resumed, in a folder of others, and bad workers."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import attrs
import numpy as np
import pytest

from pufferslice.audit.training import (
    MANIFEST,
    RunBlock,
    TrainingRuns,
    _train_block,
    train_repeatedly,
)
from pufferslice.errors import ArgumentError, StorageError, TrainingError
from pufferslice.learning import WithoutReplacement, WorstCase, exactly, plan_with_noise

WORKERS = """
import os, signal, time
import numpy as np

def gaussian(world, plan):
    return np.random.default_rng().normal(size=3) + (world == "first")

def slow(world, plan):
    with open(os.environ["AUDIT_PIDS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(0.05)
    return gaussian(world, plan)

def fails(world, plan):
    raise ZeroDivisionError("in the worker")

def dies(world, plan):
    os.kill(os.getpid(), signal.SIGKILL)

def plan_of(world, plan):
    return [plan.noise_multipliers[0], plan.order]

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

def by_world(world, plan):
    return np.zeros(1 if world == "first" else 2)

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


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder from which spawned processes can import the workers."""
    (tmp_path / "audited_workers.py").write_text(WORKERS, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AUDIT_PIDS", str(tmp_path / "pids"))
    return tmp_path


@pytest.fixture
def plan():
    return plan_with_noise(
        differing=exactly(1),
        sampling=WithoutReplacement(n_records=4, batch_size=4),
        clip_norm=1.0,
        noise_multipliers=np.full(1, 2.0),
        accountant=WorstCase(),
        order=2.0,
    )


def runs_of(plan, function="gaussian", n_runs=10, block=4, **given):
    return TrainingRuns(
        worker=f"audited_workers:{function}", plan=plan, n_runs=n_runs, block=block, **given
    )


def started(home, runs):
    """The same runs in a process of its own, in a session of its own."""
    said = [json.dumps(runs.plan.to_json()), runs.worker, str(runs.n_runs), str(runs.block)]
    command = [sys.executable, home / "script.py", home, home / "runs", *said]
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


def test_every_run_is_made_once_and_none_shares_its_randomness(home, plan):
    seen = []
    runs = runs_of(plan, n_runs=10, block=4)
    first, second = train_repeatedly(
        runs, home / "runs", n_processes=2, progress=lambda done, total: seen.append((done, total))
    )
    assert first.shape == second.shape == (10, 3)
    assert len(np.unique(np.concatenate([first, second]))) == 60
    assert first.mean() > second.mean()
    assert seen[0] == (0, 20)
    assert seen[-1] == (20, 20)
    assert len(contents(home / "runs")) == 6


def test_worlds_and_the_plan_reach_the_worker(home, plan):
    first, second = train_repeatedly(
        runs_of(plan, "plan_of", n_runs=1, worlds=["cats", "dogs"]), home / "runs", n_processes=1
    )
    assert first.tolist() == second.tolist() == [[2.0, 2.0]]
    said = json.loads((home / "runs" / MANIFEST).read_text())
    assert said["worlds"] == ["cats", "dogs"]


def test_files_are_for_their_owner_only(home, plan):
    train_repeatedly(runs_of(plan, n_runs=1), home / "runs", n_processes=1)
    for path in (home / "runs").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_finished_folder_is_read_and_starts_nothing(home, plan):
    runs = runs_of(plan)
    before = train_repeatedly(runs, home / "runs", n_processes=1)
    (home / "audited_workers.py").write_text("raise RuntimeError", encoding="utf-8")
    again = train_repeatedly(runs, home / "runs")
    assert [a.tolist() for a in again] == [b.tolist() for b in before]


@pytest.mark.slow
def test_killed_it_leaves_whole_blocks_no_process_and_goes_on(home, plan):
    runs = runs_of(plan, "slow", n_runs=60, block=3)
    process = started(home, runs)
    wait_until(lambda: len(list((home / "runs").glob("world-*.npy"))) >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    wait_until(lambda: not any(map(is_alive, worker_pids(home))))
    kept = contents(home / "runs")
    assert 3 <= len(kept) < 40
    (home / "runs" / ".world-0-block-000000.npy.0123456789abcdef").write_bytes(b"half")
    seen = []
    first, second = train_repeatedly(
        runs, home / "runs", n_processes=1, progress=lambda done, total: seen.append(done)
    )
    assert seen[0] == 3 * len(kept)
    assert seen[-1] == 120
    assert kept.items() <= contents(home / "runs").items()
    assert not list((home / "runs").glob(".world*"))
    assert len(np.unique(np.concatenate([first, second]))) == 360


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the terminal's group", "the parent only"])
def test_interrupted_it_ends_its_processes_and_keeps_whole_blocks(home, plan, whom):
    runs = runs_of(plan, "slow", n_runs=400, block=4)
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


def test_a_worker_that_dies_is_told_and_finished_blocks_stay(home, plan):
    runs = runs_of(plan, n_runs=4)
    train_repeatedly(runs, home / "runs", n_processes=1)
    kept = contents(home / "runs")
    (home / "runs" / "world-1-block-000000.npy").unlink()
    source = (home / "audited_workers.py").read_text().replace("def gaussian", "def kept")
    (home / "audited_workers.py").write_text(source.replace("def dies", "def gaussian"))
    with pytest.raises(TrainingError, match=r"died.*__main__.*same folder to go on"):
        train_repeatedly(runs, home / "runs", n_processes=1)
    assert contents(home / "runs").items() <= kept.items()


def test_the_error_of_a_worker_comes_through(home, plan):
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        train_repeatedly(runs_of(plan, "fails"), home / "runs", n_processes=1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("infinite", "must be finite; 1 of 2"),
        ("matrix", "a vector of numbers, got shape"),
        ("words", "expected numbers"),
        ("nothing", "a vector of numbers, got shape"),
        ("uneven", "as many numbers in every run"),
        ("absent", "cannot be imported"),
        ("number", "must be a function, got a int"),
    ],
)
def test_bad_workers_are_refused(home, plan, function, message):
    runs = runs_of(plan, function, block=10)
    with pytest.raises(ArgumentError, match=message):
        _train_block(runs, RunBlock(world=0, number=0, n_runs=10))


def test_a_missing_module_is_told(home, plan):
    runs = TrainingRuns(worker="no_such_module:train", plan=plan, n_runs=1)
    with pytest.raises(ArgumentError, match="'no_such_module:train' cannot be imported"):
        train_repeatedly(runs, home / "runs", n_processes=1)


def test_worlds_that_release_different_lengths_are_refused(home, plan):
    with pytest.raises(ArgumentError, match="as many numbers in every run; it released 1 and 2"):
        train_repeatedly(runs_of(plan, "by_world", n_runs=1), home / "runs", n_processes=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"worker": "train"}, "'module:function'"),
        ({"worker": ":train"}, "'module:function'"),
        ({"worker": "a b:train"}, "'module:function'"),
        ({"worker": None}, "'module:function'"),
        ({"plan": {"n_steps": 1}}, "plan must be a TrainingPlan, got dict"),
        ({"n_runs": 0}, "n_runs must be a whole number and at least 1"),
        ({"n_runs": 1.5}, "n_runs must be a whole number"),
        ({"block": 0}, "block must be a whole number"),
        ({"worlds": ("a",)}, "two worlds, got 1"),
        ({"worlds": ("a", "a")}, "'a' repeats"),
    ],
)
def test_bad_runs_are_refused(plan, changed, message):
    with pytest.raises(ArgumentError, match=message):
        attrs.evolve(runs_of(plan), **changed)


def test_a_folder_of_other_runs_is_refused(home, plan):
    runs = runs_of(plan, n_runs=1)
    train_repeatedly(runs, home / "runs", n_processes=1, settings={"seed": 1})
    others = {
        "n_runs": 20,
        "worker": "audited_workers:slow",
        "worlds": ("a", "b"),
        "block": 5,
        "plan": attrs.evolve(plan, noise_multipliers=np.full(1, 3.0)),
    }
    for key, value in others.items():
        changed = attrs.evolve(runs, **{key: value})
        with pytest.raises(ArgumentError, match=f"another audit: {key} differ"):
            train_repeatedly(changed, home / "runs", settings={"seed": 1})
    with pytest.raises(ArgumentError, match="another audit: seed differ"):
        train_repeatedly(runs, home / "runs", settings={"seed": 2})


def test_folders_that_cannot_be_used_are_refused(home, plan):
    runs = runs_of(plan, n_runs=1)
    (home / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the folder"):
        train_repeatedly(runs, home / "file")
    (home / "other").mkdir()
    np.save(home / "other" / "table.npy", np.zeros(2))
    with pytest.raises(ArgumentError, match=r"holds arrays but no audit\.json"):
        train_repeatedly(runs, home / "other")
    (home / "odd").mkdir()
    (home / "odd" / MANIFEST).write_text("no json")
    with pytest.raises(ArgumentError, match="belongs to another audit"):
        train_repeatedly(runs, home / "odd")
    with pytest.raises(ArgumentError, match="n_processes must be a whole number"):
        train_repeatedly(runs, home / "new", n_processes=0)


def test_a_damaged_block_is_named_and_can_be_made_again(home, plan):
    runs = runs_of(plan, n_runs=3)
    train_repeatedly(runs, home / "runs", n_processes=1)
    path = home / "runs" / "world-0-block-000000.npy"

    def refused():
        with pytest.raises(ArgumentError, match=r"000000.npy' is not the block of 3 runs"):
            train_repeatedly(runs, home / "runs")

    archive = io.BytesIO()
    np.savez(archive, np.zeros((3, 3)))
    for content in (b"", b"no array", path.read_bytes()[:-8], archive.getvalue()):
        path.write_bytes(content)
        refused()
    for array in (np.zeros((2, 3)), np.zeros((3, 3), dtype=int), np.full((3, 3), np.nan)):
        np.save(path, array)
        refused()
    path.unlink()
    assert train_repeatedly(runs, home / "runs", n_processes=1)[0].shape == (3, 3)
