# SPDX-License-Identifier: Apache-2.0
"""Runs and their folders: killed, resumed, rewound, finished, and short of disk."""

import os
import shutil

import pytest
import torch
from tests.torch.small import (
    copy_of,
    digest_of,
    model_of,
    outcome,
    plan_of,
    records,
    resumed,
    stopped_at,
    train,
    trainer_of,
)

from pufferslice.errors import ArgumentError, LedgerError, RewindError, StorageError, TrainingError
from pufferslice.learning.keys import RunKey
from pufferslice.torch import run as run_module
from pufferslice.torch.ledger import RunLedger

PREPARE = """
import json, os, resource, shutil, signal, sys, time, traceback
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from pufferslice._core import files
from pufferslice.errors import StorageError
from pufferslice.learning.keys import RunKey
from pufferslice.torch import ledger
from pufferslice.torch import clipping, per_example
from pufferslice.torch import run as run_module
from tests.torch.small import copy_of, digest_of, model_of, plan_of, train, trainer_of

folder = Path(sys.argv[2])
N_STEPS = 6


def opened(place, **given):
    given = {"plan": plan_of(N_STEPS), "optimizer": torch.optim.Adam, "schedule": True, **given}
    trainer, model = trainer_of(model=model_of(dropout=0.3), folder=place, **given)
    if trainer.needs_resume:
        trainer.resume()
    return trainer, model


def warmed():
    '''Load and compile all that children need, on one thread, so that they can be forked.'''
    torch.set_num_threads(1)
    train(opened(folder / "warm", blocks_in_flight=1)[0])


def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def ended(child):
    return os.waitpid(child, 0)[1]


def finished(place):
    '''The weights of the run when another process resumes it.'''

    def work():
        trainer, model = opened(place)
        train(trainer, save_every=2)
        assert trainer.is_finished
        (place / "weights").write_text(digest_of(model))

    status = ended(in_a_child(work))
    return (place / "weights").read_text() if status == 0 else f"status {status}"
"""

KILL = (
    PREPARE
    + """
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def at(owner, name, turn, *, after=False):
    '''Be killed at the n-th call of something, before it or after it.'''

    def patch():
        function, calls = getattr(owner, name), []

        def patched(*args, **kwargs):
            calls.append(name)
            if len(calls) == turn and not after:
                die()
            result = function(*args, **kwargs)
            if len(calls) == turn:
                die()
            return result

        setattr(owner, name, patched)

    return patch


Sums, Ledger = clipping.ClippedSums, ledger.RunLedger
MOMENTS = {
    "before the first step": at(Sums, "of", 1),
    "inside a block": at(per_example.PerExample, "contributions", 6),
    "before a step is on record": at(Ledger, "record_step", 4),
    "after a step is on record": at(Ledger, "record_step", 4, after=True),
    "after the noise is drawn": at(run_module, "add_integers", 4, after=True),
    "inside the optimizer": at(sys.modules["torch.optim.adam"], "adam", 4),
    "after the optimizer": at(sys.modules["torch.optim.adam"], "adam", 4, after=True),
    "inside a write": at(files.os, "fsync", 1),
    "before a checkpoint has its name": at(Path, "replace", 1),
    "after a checkpoint has its name": at(Path, "replace", 1, after=True),
    "after a checkpoint is on record": at(Ledger, "record_checkpoint", 1, after=True),
    "before the final checkpoint": at(run_module.RunFolder, "write_checkpoint", 3),
    "after the final checkpoint": at(run_module.RunFolder, "write_checkpoint", 3, after=True),
    "before the key is destroyed": at(RunKey, "destroy", 1),
    "after the key is destroyed": at(RunKey, "destroy", 1, after=True),
}

warmed()
ended(in_a_child(lambda: opened(folder / "run")))
found = {"uninterrupted": finished(copy_of(folder / "run", folder / "uninterrupted"))}
for number, (moment, patch) in enumerate(MOMENTS.items()):
    place = copy_of(folder / "run", folder / str(number))

    def killed():
        trainer, _ = opened(place)
        patch()
        train(trainer, save_every=2)

    status = ended(in_a_child(killed))
    found[moment] = {
        "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
        "weights": finished(place),
        "files": sorted(p.name for p in place.iterdir()),
    }
print(json.dumps(found))
"""
)


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_ends_with_the_same_weights(repository, tmp_path):
    ends = outcome(KILL, repository, tmp_path)
    weights = ends.pop("uninterrupted")
    assert len(weights) == 64
    assert len(ends) == 15
    for moment, end in ends.items():
        assert end["killed"], moment
        assert end["weights"] == weights, moment
        assert end["files"] == ["checkpoint.pt", "run.ledger", "weights"], moment


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("n_steps", [0, 1, 4])
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, optimizer, n_steps):
    given = {"optimizer": optimizer, "schedule": True}
    trainer_of(folder=tmp_path / "run", **given)
    whole, uninterrupted = resumed(copy_of(tmp_path / "run", tmp_path / "whole"), **given)
    train(whole)
    broken, _ = resumed(tmp_path / "run", **given)
    train(broken, n_steps=n_steps)
    broken.save()
    trainer, model = resumed(tmp_path / "run", **given)
    assert (trainer.n_taken, trainer.name) == (n_steps, broken.name)
    train(trainer)
    assert digest_of(model) == digest_of(uninterrupted)


@pytest.mark.soundness
def test_a_step_is_repeated_with_its_own_noise_or_not_at_all(tmp_path, monkeypatch):
    """Steps 2 and 3 are lost with their process, and taken again after a resume."""
    keys, draw = [], run_module.add_integers
    monkeypatch.setattr(
        run_module, "add_integers", lambda key, sums: keys.append(key) or draw(key, sums)
    )
    first, model = stopped_at(tmp_path, 2)
    train(first, n_steps=2)
    lost = digest_of(model)
    trainer, model = resumed(tmp_path)
    before = digest_of(model)
    with pytest.raises(RewindError, match="other sums"):
        train(trainer, records(seed=2))
    assert (trainer.n_taken, digest_of(model)) == (2, before)
    train(trainer, n_steps=2)
    assert digest_of(model) == lost
    assert keys[2:4] == keys[4:6]
    assert len(set(keys)) == 4


def test_a_folder_with_a_run_must_be_resumed(tmp_path):
    stopped_at(tmp_path, 2)
    trainer, _ = trainer_of(folder=tmp_path)
    assert trainer.needs_resume
    for attempt in (
        lambda: trainer.batches(records()),
        lambda: trainer.step(None),
        trainer.save,
        lambda: trainer.stop(independent_of_data=True),
    ):
        with pytest.raises(TrainingError, match=r"trainer.resume\(\)"):
            attempt()
    trainer.resume()
    assert not trainer.needs_resume
    train(trainer)


def test_batches_from_before_a_resume_are_refused(tmp_path):
    trainer, _ = stopped_at(tmp_path, 2)
    batches = trainer.batches(records())
    old = next(batches)
    trainer.resume()
    with pytest.raises(ArgumentError, match="batch"):
        trainer.step(old)
    trainer.step(next(batches))


@pytest.mark.parametrize("n_steps", [6, 2])
def test_a_finished_run_can_be_loaded_but_not_trained(tmp_path, n_steps):
    """Taken to the end of its plan, or stopped; an older checkpoint of it is refused."""
    trainer, model = trainer_of(folder=tmp_path)
    train(trainer, n_steps=1)
    trainer.save(tmp_path / "old.pt")
    train(trainer, n_steps=n_steps - 1)
    if n_steps < 6:
        trainer.stop(independent_of_data=True)
    with pytest.raises(TrainingError, match="over"):
        trainer.save()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint.pt", "old.pt", "run.ledger"]
    # What a process leaves that is killed while it removes them.
    (tmp_path / "run.key").write_bytes(bytes(100))
    (tmp_path / f".room.{'0' * 16}").touch()
    later, loaded = trainer_of(model=model_of(3), folder=tmp_path)
    assert not [*tmp_path.glob("run.key"), *tmp_path.glob(".*")]
    assert later.needs_resume
    with pytest.raises(TrainingError, match="key"):
        later.resume(tmp_path / "old.pt")
    later.resume()
    assert (later.is_finished, later.n_taken) == (True, n_steps)
    assert digest_of(loaded) == digest_of(model)
    assert list(later.batches(records())) == []
    assert later.certificate().guarantee == plan_of().guarantee()
    with pytest.raises(TrainingError, match=f"{n_steps} of 6"):
        later.step(None)
    with pytest.raises(TrainingError, match="another plan"):
        resumed(tmp_path, plan=plan_of(n_steps=7))


def test_a_checkpoint_that_was_written_while_lost_steps_were_repeated_is_taken(
    tmp_path, monkeypatch
):
    """Steps 2 and 3 are lost; step 2 is taken again, and the run killed as it saves that."""
    lost, _ = stopped_at(tmp_path, 2)
    train(lost, n_steps=2)
    again, _ = resumed(tmp_path)
    train(again, n_steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(RunLedger, "record_checkpoint", lambda *_: None)
        again.save()
    trainer, _ = resumed(tmp_path)
    assert trainer.n_taken == 3
    train(trainer)


@pytest.mark.soundness
def test_a_rewind_is_refused(tmp_path):
    trainer, model = stopped_at(tmp_path / "run", 1)
    old, latest = tmp_path / "old.pt", tmp_path / "run" / "checkpoint.pt"
    shutil.copy(latest, old)
    train(trainer, n_steps=2)
    trainer.save()
    before = digest_of(model)
    with pytest.raises(RewindError, match="another folder"):
        trainer.resume(old)
    assert (trainer.n_taken, digest_of(model)) == (3, before)
    shutil.copy(old, latest)
    other, _ = trainer_of(folder=tmp_path / "run")
    with pytest.raises(RewindError, match="another folder"):
        other.resume()


def test_files_are_for_their_owner_and_hold_no_key(tmp_path):
    old = os.umask(0)
    try:
        trainer, _ = stopped_at(tmp_path / "new" / "run", 2)
        trainer.save(tmp_path / "new" / "run" / "copy.pt")
    finally:
        os.umask(old)
    secret = trainer._run._key.to_bytes()
    assert secret.hex().encode() in (tmp_path / "new" / "run" / "run.key").read_bytes()
    for path in (tmp_path / "new" / "run").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
        if path.name != "run.key":
            content = path.read_bytes()
            assert secret not in content
            assert secret.hex().encode() not in content


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    stopped_at(folder, 2)
    return folder


@pytest.mark.parametrize(
    ("missing", "error", "match"),
    [
        (["run.key"], TrainingError, "run.key"),
        (["run.key", "checkpoint.pt"], TrainingError, "run.key"),
        (["run.key", "run.ledger"], LedgerError, "run.ledger"),
        (["run.ledger"], TrainingError, "no run ledger"),
        (["checkpoint.pt"], StorageError, "checkpoint.pt"),
    ],
)
def test_missing_files_are_named(saved, tmp_path, missing, error, match):
    folder = copy_of(saved, tmp_path / "run")
    for name in missing:
        (folder / name).unlink()
    with pytest.raises(error, match=match):
        resumed(folder)


def test_folders_of_others_are_refused(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "run")
    with pytest.raises(LedgerError, match="another plan"):
        resumed(folder, plan=plan_of(n_steps=7))
    trainer_of(folder=tmp_path / "other")
    with pytest.raises(TrainingError, match="own folder"):
        resumed(folder, tmp_path / "other" / "checkpoint.pt")
    finished, _ = stopped_at(tmp_path / "finished", 1)
    finished.stop(independent_of_data=True)
    RunKey.create(tmp_path / "finished" / "run.key")
    with pytest.raises(LedgerError, match="is of run"):
        resumed(tmp_path / "finished")
    assert (tmp_path / "finished" / "run.key").exists()
    (folder / "run.key").chmod(0o644)
    with pytest.raises(StorageError, match=r"run\.key"):
        resumed(folder)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        trainer_of(folder=tmp_path / "file")


def test_a_start_that_was_interrupted_is_repeated(tmp_path):
    """Killed before the first checkpoint was written: nothing was trained yet."""
    trainer_of(folder=tmp_path / "whole")
    begun = copy_of(tmp_path / "whole", tmp_path / "begun")
    (begun / "checkpoint.pt").unlink()
    (begun / "run.ledger").write_bytes(b"")
    with pytest.raises(LedgerError, match="0 bytes"):
        trainer_of(folder=begun)
    (begun / "run.ledger").unlink()
    RunLedger(begun / "run.ledger").make()
    trainer, _ = trainer_of(folder=begun)
    assert not trainer.needs_resume
    assert trainer.name == RunKey.read(begun / "run.key").name
    train(trainer)


FULL = (
    PREPARE
    + """
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit(size):
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def refused(attempt, size=64):
    limit(size)
    try:
        attempt()
    except StorageError as error:
        return str(error)
    finally:
        limit(None)
    return "none"


def large():
    torch.manual_seed(1)
    wide = torch.nn.Linear(4, 60_000)
    return torch.nn.Sequential(wide, torch.nn.Tanh(), torch.nn.Linear(60_000, 2))


trainer, model = trainer_of(model=large(), folder=folder)
train(trainer, n_steps=2)
trainer.save()
checkpoint = folder / "checkpoint.pt"
old = checkpoint.read_bytes()
train(trainer, n_steps=1)
end = {"save": refused(trainer.save), "taken": trainer.n_taken}
end["old is whole"] = checkpoint.read_bytes() == old
end["files"] = sorted(p.name for p in folder.iterdir() if not p.name.startswith("run."))
train(trainer, n_steps=2)
end["last"] = refused(lambda: train(trainer), size=1_000_000)
end["after last"] = [trainer.n_taken, trainer.is_finished, (folder / "run.key").exists()]
end["still whole"] = checkpoint.read_bytes() == old
weights = digest_of(model)
trainer.save()
end["saved"] = [trainer.is_finished, (folder / "run.key").exists()]
later, again = trainer_of(model=large(), folder=folder)
later.resume()
end["same"] = digest_of(again) == weights
print(json.dumps(end))
"""
)


def test_a_full_disk_leaves_the_old_checkpoint_and_the_run(repository, tmp_path):
    end = outcome(FULL, repository, tmp_path)
    assert "cannot write" in end["save"]
    assert end["taken"] == 3
    assert end["old is whole"]
    assert end["files"] == ["checkpoint.pt"]
    assert "cannot write" in end["last"]
    assert end["after last"] == [6, False, True]
    assert end["still whole"]
    assert end["saved"] == [True, False]
    assert end["same"]
