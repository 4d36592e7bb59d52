# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: killed, resumed, rewound and damaged runs, on real files and processes."""

import contextlib
import io
import json
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.small import (
    LOSS,
    copy_of,
    digest_of,
    model_of,
    plan_of,
    records,
    train,
    trainer_of,
)
from torch import nn

from pufferslice import (
    ArgumentError,
    LedgerError,
    RewindError,
    StorageError,
    TrainingError,
)
from pufferslice.run_ledger import RunLedger
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import Trainer, training_run
from pufferslice.torch.checkpoint import Checkpoint
from pufferslice.torch.gradients import BlockGradients

PREPARE = """
import json, os, resource, shutil, signal, sys, time, traceback
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from pufferslice import run_ledger, storage
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import clipped_sums, run_files, training_run
from pufferslice.torch.run_files import RunFiles
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
    '''The weights of the run when another process goes on to its end.'''

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


Sums, Ledger = clipped_sums.ClippedSums, run_ledger.RunLedger
MOMENTS = {
    "before the first step": at(Sums, "of", 1),
    "inside a block": at(clipped_sums.BlockGradients, "block_sum", 8),
    "before a step is on record": at(Ledger, "record_step", 4),
    "after a step is on record": at(Ledger, "record_step", 4, after=True),
    "after the noise is drawn": at(training_run, "draw_integers", 4, after=True),
    "inside the optimizer": at(sys.modules["torch.optim.adam"], "adam", 4),
    "after the optimizer": at(sys.modules["torch.optim.adam"], "adam", 4, after=True),
    "inside a write": at(storage.os, "fsync", 1),
    "before a checkpoint has its name": at(Path, "replace", 1),
    "after a checkpoint has its name": at(Path, "replace", 1, after=True),
    "after a checkpoint is on record": at(Ledger, "record_checkpoint", 1, after=True),
    "before the final checkpoint": at(run_files.RunFiles, "write_checkpoint", 3),
    "after the final checkpoint": at(run_files.RunFiles, "write_checkpoint", 3, after=True),
    "before the key is destroyed": at(RunKey, "destroy", 1),
    "after the key is destroyed": at(RunKey, "destroy", 1, after=True),
}

warmed()
ended(in_a_child(lambda: opened(folder / "run")))
found = {"unbroken": finished(copy_of(folder / "run", folder / "unbroken"))}
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

AGAIN_AND_AGAIN = (
    PREPARE
    + """
import random
chance = random.Random(int(sys.argv[3]))
N_STEPS = 24

warmed()
ended(in_a_child(lambda: opened(folder / "run")))
expected = finished(copy_of(folder / "run", folder / "unbroken"))
place, n_killed = folder / "run", 0


def going():
    trainer, model = opened(place)
    (place / "going").touch()
    train(trainer, save_every=1)
    (place / "weights").write_text(digest_of(model))


for attempt in range(100):
    (place / "going").unlink(missing_ok=True)
    child = in_a_child(going)
    while not (place / "going").exists() and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.1 + 0.02 * attempt))
    os.kill(child, signal.SIGKILL)
    if os.WIFEXITED(ended(child)):
        break
    n_killed += 1
print(json.dumps({"killed": n_killed, "same": (place / "weights").read_text() == expected}))
"""
)


def run(script, repository, folder, *args):
    done = subprocess.run(
        [sys.executable, "-c", script, str(repository), str(folder), *args],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


# --- kill -9


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_ends_with_the_same_weights(repository, tmp_path):
    found = run(KILL, repository, tmp_path)
    unbroken = found.pop("unbroken")
    assert len(unbroken) == 64
    assert len(found) == 15
    for moment, told in found.items():
        assert told["killed"], moment
        assert told["weights"] == unbroken, moment
        assert told["files"] == ["checkpoint.pt", "run.ledger", "weights"], moment


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_weights(
    repository, tmp_path, seed
):
    found = run(AGAIN_AND_AGAIN, repository, tmp_path, str(seed))
    assert found["killed"] > 1
    assert found["same"]


# --- resume


def stopped_at(folder, n_steps, **given):
    """A run in a folder that was saved after so many steps and then left."""
    trainer, model = trainer_of(folder=folder, **given)
    train(trainer, n_steps=n_steps)
    trainer.save()
    return trainer, model


def resumed(folder, *args, plan=None, seed=9, **given):
    """Another process's trainer, begun with other weights, after it resumed."""
    trainer, model = trainer_of(plan, model=model_of(seed), folder=folder, **given)
    trainer.resume(*args)
    return trainer, model


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("n_steps", [0, 1, 4])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(tmp_path, optimizer, n_steps):
    given = {"optimizer": optimizer, "schedule": True}
    trainer_of(folder=tmp_path / "run", **given)
    whole, unbroken = resumed(copy_of(tmp_path / "run", tmp_path / "whole"), **given)
    train(whole)
    broken, _ = resumed(tmp_path / "run", **given)
    train(broken, n_steps=n_steps)
    broken.save()
    trainer, model = resumed(tmp_path / "run", **given)
    assert trainer.n_taken == n_steps
    assert trainer.name == broken.name
    train(trainer)
    assert digest_of(model) == digest_of(unbroken)


def found(path):
    """A look at a model that finds that its gradients are taken in this way."""
    prepare = BlockGradients.prepare

    def look(self, *block):
        prepare(self, *block)
        self.keep_to(path)

    return look


def test_a_resumed_run_takes_gradients_the_way_it_began(tmp_path, monkeypatch):
    """Later weights, shown the same block, might suggest a quicker way, which rounds otherwise."""
    with monkeypatch.context() as slowly:
        slowly.setattr(BlockGradients, "prepare", found("one_by_one"))
        stopped_at(tmp_path / "run", 2)
        whole, unbroken = resumed(copy_of(tmp_path / "run", tmp_path / "whole"))
        train(whole)
    trainer, model = resumed(tmp_path / "run")
    train(trainer)
    assert trainer._sums.gradients.path == "one_by_one"
    assert digest_of(model) == digest_of(unbroken)


@pytest.mark.soundness
def test_a_resumed_run_takes_a_slower_way_if_it_must(tmp_path, monkeypatch):
    """The model may be another now, whose examples the way that the run began in would mix up."""
    stopped_at(tmp_path / "run", 2)
    trainer, _ = resumed(tmp_path / "run")
    monkeypatch.setattr(BlockGradients, "prepare", found("one_by_one"))
    train(trainer)
    assert trainer._sums.gradients.path == "one_by_one"


def test_a_resumed_step_repeats_its_noise(tmp_path, monkeypatch):
    """Steps 2 and 3 are lost with their process, and taken again after a resume."""
    drawn = []
    original = training_run.draw_integers

    def kept(key, size):
        drawn.append(key)
        return original(key, size)

    monkeypatch.setattr(training_run, "draw_integers", kept)
    first, model = stopped_at(tmp_path, 2)
    train(first, n_steps=2)
    lost = digest_of(model)
    again, model = resumed(tmp_path)
    train(again, n_steps=2)
    assert digest_of(model) == lost
    assert drawn[2:4] == drawn[4:6]
    assert len(set(drawn)) == 4


@pytest.mark.soundness
def test_a_step_is_not_taken_again_with_other_sums(tmp_path):
    first, _ = stopped_at(tmp_path, 2)
    train(first, n_steps=2)
    trainer, model = resumed(tmp_path)
    before = digest_of(model)
    with pytest.raises(RewindError, match="with other sums"):
        train(trainer, records(seed=2))
    assert digest_of(model) == before
    assert trainer.n_taken == 2
    train(trainer)
    assert trainer.is_finished


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
        with pytest.raises(TrainingError, match=r"call trainer.resume\(\)"):
            attempt()
    trainer.resume()
    assert not trainer.needs_resume
    train(trainer)


def test_batches_from_before_a_resume_are_refused(tmp_path):
    trainer, _ = stopped_at(tmp_path, 2)
    batches = trainer.batches(records())
    old = next(batches)
    trainer.resume()
    with pytest.raises(ArgumentError, match="from elsewhere"):
        trainer.step(old)
    trainer.step(next(batches))


def test_a_run_that_is_over_can_be_loaded_but_not_trained(tmp_path):
    trainer, model = trainer_of(folder=tmp_path)
    train(trainer)
    with pytest.raises(TrainingError, match="over"):
        trainer.save()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint.pt", "run.ledger"]
    later, loaded = trainer_of(model=model_of(3), folder=tmp_path)
    assert later.needs_resume
    later.resume()
    assert later.is_finished
    assert digest_of(loaded) == digest_of(model)
    assert list(later.batches(records())) == []
    assert later.certificate().guarantee == plan_of().guarantee()
    with pytest.raises(TrainingError, match="over after 6 of 6"):
        later.step(None)


def test_a_stopped_run_is_over(tmp_path):
    trainer, model = trainer_of(folder=tmp_path)
    train(trainer, n_steps=2)
    trainer.stop(independent_of_data=True)
    assert not (tmp_path / "run.key").exists()
    later, loaded = resumed(tmp_path)
    assert later.is_finished
    assert later.n_taken == 2
    assert digest_of(loaded) == digest_of(model)
    with pytest.raises(TrainingError, match="over after 2 of 6"):
        later.step(None)


def test_an_old_checkpoint_of_a_run_that_is_over_is_refused(tmp_path):
    trainer, _ = trainer_of(folder=tmp_path)
    train(trainer, n_steps=2)
    trainer.save(tmp_path / "old.pt")
    train(trainer)
    later, _ = trainer_of(folder=tmp_path)
    with pytest.raises(TrainingError, match="is over and its key is destroyed"):
        later.resume(tmp_path / "old.pt")


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


# --- rewinds


@pytest.mark.soundness
def test_a_rewind_is_refused(tmp_path):
    trainer, _ = stopped_at(tmp_path / "run", 1)
    old = tmp_path / "old.pt"
    shutil.copy(tmp_path / "run" / "checkpoint.pt", old)
    train(trainer, n_steps=2)
    trainer.save()
    weights = digest_of(trainer._learner.model)
    with pytest.raises(RewindError, match="not the latest checkpoint"):
        trainer.resume(old)
    assert trainer.n_taken == 3
    assert digest_of(trainer._learner.model) == weights
    shutil.copy(old, tmp_path / "run" / "checkpoint.pt")
    other, _ = trainer_of(folder=tmp_path / "run")
    with pytest.raises(RewindError, match="compose"):
        other.resume()


# --- what is in the files


def test_files_are_for_their_owner_and_hold_no_key(tmp_path):
    trainer, _ = stopped_at(tmp_path, 2)
    secret = trainer._run._key.to_bytes()
    trainer.save(tmp_path / "copy.pt")
    assert secret.hex().encode() in (tmp_path / "run.key").read_bytes()
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path.name
        if path.name != "run.key":
            content = path.read_bytes()
            assert secret not in content
            assert secret.hex().encode() not in content


def test_a_checkpoint_is_an_ordinary_torch_file(tmp_path):
    _, model = stopped_at(tmp_path, 2)
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    assert all(torch.equal(content["model"][k], v) for k, v in model.state_dict().items())
    other = model_of(5)
    other.load_state_dict(content["model"])
    assert digest_of(other) == digest_of(model)


def test_the_same_state_is_the_same_file(tmp_path):
    trainer, _ = stopped_at(tmp_path, 2)
    trainer.save(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "checkpoint.pt").read_bytes()


class Stateful(nn.Linear):
    """A module that keeps an object in its state."""

    def get_extra_state(self):
        return {"made": self.__class__}

    def set_extra_state(self, state):
        pass


def test_a_state_that_could_not_be_read_back_is_refused_at_once(tmp_path):
    with pytest.raises(ArgumentError, match="more than tensors and numbers"):
        trainer_of(model=Stateful(4, 2), folder=tmp_path)
    trainer_of(model=Stateful(4, 2))


# --- files that do not fit


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    stopped_at(folder, 2, schedule=True)
    return folder


def attempt(folder, *, plan=None, model=None, optimizer=None, scheduler=True, path=None):
    model = model_of() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if scheduler else None
    trainer = Trainer(model, LOSS, optimizer, plan or plan_of(), folder=folder, scheduler=schedule)
    before = digest_of(model)
    try:
        trainer.resume(path)
    except BaseException:
        assert digest_of(model) == before
        assert trainer.n_taken == 0
        raise


def wider():
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2))


def with_buffer():
    model = model_of()
    model.register_buffer("extra", torch.zeros(1))
    return model


def two_groups(model):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    return torch.optim.SGD(groups, lr=0.1)


def test_it_fits_what_it_was_made_of(saved, tmp_path):
    attempt(copy_of(saved, tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (lambda: {"model": nn.Linear(4, 2)}, "other trainable parameters"),
        (lambda: {"model": wider()}, "another model: entry '0.bias'"),
        (lambda: {"model": with_buffer()}, "another model: entry 'extra'"),
        (lambda: {"model": model_of().double()}, "another shape or precision"),
        (lambda: {"scheduler": False}, "scheduler was a StepLR, here it is a NoneType"),
    ],
)
def test_another_model_is_refused(saved, tmp_path, given, match):
    with pytest.raises(TrainingError, match=match):
        attempt(copy_of(saved, tmp_path / "run"), **given())


def test_another_optimizer_is_refused(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "run")
    model = model_of()
    with pytest.raises(TrainingError, match="optimizer was a SGD, here it is a Adam"):
        attempt(folder, model=model, optimizer=torch.optim.Adam(model.parameters()))
    with pytest.raises(TrainingError, match="other parameter groups"):
        attempt(folder, model=model, optimizer=two_groups(model))


def test_another_plan_is_refused(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "run")
    with pytest.raises(LedgerError, match="another plan"):
        attempt(folder, plan=plan_of(n_steps=7))


def test_another_plan_is_refused_after_the_end(tmp_path):
    trainer, _ = trainer_of(folder=tmp_path)
    train(trainer)
    with pytest.raises(TrainingError, match="follows another plan"):
        resumed(tmp_path, plan=plan_of(n_steps=7))


def test_the_checkpoint_of_another_run_is_refused(saved, tmp_path):
    trainer_of(folder=tmp_path / "other", schedule=True)
    with pytest.raises(TrainingError, match="a run goes on in its own folder"):
        attempt(copy_of(saved, tmp_path / "run"), path=tmp_path / "other" / "checkpoint.pt")


@pytest.mark.parametrize(
    ("missing", "error", "match"),
    [
        ("run.key", TrainingError, "its key 'run.key' is missing"),
        ("run.ledger", TrainingError, "a run key and no run ledger"),
        ("checkpoint.pt", StorageError, "cannot read .*checkpoint.pt"),
    ],
)
def test_missing_files_are_named(saved, tmp_path, missing, error, match):
    folder = copy_of(saved, tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(error, match=match):
        attempt(folder)


def test_a_ledger_alone_is_refused(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "run")
    (folder / "run.key").unlink()
    (folder / "checkpoint.pt").unlink()
    with pytest.raises(TrainingError, match="is missing; it cannot go on"):
        attempt(folder)


def test_a_key_that_others_may_read_is_refused(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "run")
    (folder / "run.key").chmod(0o644)
    with pytest.raises(StorageError, match="can be read by others"):
        attempt(folder)


def test_a_start_that_was_interrupted_is_made_up_for(tmp_path):
    """Killed before the first checkpoint was written: nothing was trained yet."""
    trainer_of(folder=tmp_path / "whole")
    begun = copy_of(tmp_path / "whole", tmp_path / "begun")
    (begun / "checkpoint.pt").unlink()
    key = RunKey.read(begun / "run.key")
    (begun / "run.ledger").unlink()
    (begun / "run.ledger").touch()
    trainer, _ = trainer_of(folder=begun)
    assert not trainer.needs_resume
    assert trainer.name == key.name
    train(trainer)


# --- damage


@given(st.data())
def test_damage_is_noticed(saved, data):
    raw = bytearray((saved / "checkpoint.pt").read_bytes())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, 8 * len(raw) - 1))
        raw[place // 8] ^= 1 << place % 8
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    whole = Checkpoint.from_bytes((saved / "checkpoint.pt").read_bytes(), "it")
    # The file has room that nothing is read from; what is read is what was written.
    with contextlib.suppress(TrainingError):
        found = Checkpoint.from_bytes(bytes(raw), "it")
        assert (found.step, found.run) == (whole.step, whole.run)
        assert repr(found.states) == repr(whole.states)
        for name, tensor in whole.states["model"].items():
            assert torch.equal(found.states["model"][name], tensor)


def changed(folder, **entries):
    """The checkpoint of a folder with entries that its writer did not give it."""
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    buffer = io.BytesIO()
    torch.save({**content, **entries}, buffer)
    (folder / "checkpoint.pt").write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"step": 5}, "damaged or not whole"),
        ({"way": "one_by_one"}, "damaged or not whole"),
        ({"digest": "0" * 64}, "damaged or not whole"),
        ({"version": 1}, "version 1, this program reads version 2"),
        ({"format": "other"}, "not a checkpoint of pufferslice"),
    ],
)
def test_edited_checkpoints_are_refused(saved, tmp_path, entries, match):
    folder = copy_of(saved, tmp_path / "run")
    changed(folder, **entries)
    with pytest.raises(TrainingError, match=match):
        attempt(folder)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_other_files_are_refused(saved, tmp_path, content):
    folder = copy_of(saved, tmp_path / "run")
    if content is None:
        torch.save([1, 2], folder / "checkpoint.pt")
    else:
        (folder / "checkpoint.pt").write_bytes(content)
    with pytest.raises(TrainingError, match=r"damaged or not whole|not a checkpoint"):
        attempt(folder)


# --- a full disk

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
    except storage.StorageError as error:
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
told = {"save": refused(trainer.save), "taken": trainer.n_taken}
told["old is whole"] = checkpoint.read_bytes() == old
told["files"] = sorted(p.name for p in folder.iterdir() if not p.name.startswith("run."))
train(trainer, n_steps=2)
told["last"] = refused(lambda: train(trainer), size=1_000_000)
told["after last"] = [trainer.n_taken, trainer.is_finished, (folder / "run.key").exists()]
told["still whole"] = checkpoint.read_bytes() == old
weights = digest_of(model)
trainer.save()
told["saved"] = [trainer.is_finished, (folder / "run.key").exists()]
later, again = trainer_of(model=large(), folder=folder)
later.resume()
told["same"] = digest_of(again) == weights
print(json.dumps(told))
"""
)


def test_a_full_disk_leaves_the_old_checkpoint_and_the_run(repository, tmp_path):
    told = run(FULL, repository, tmp_path)
    assert "cannot write" in told["save"]
    assert told["taken"] == 3
    assert told["old is whole"]
    assert told["files"] == ["checkpoint.pt"]
    assert "cannot write" in told["last"]
    assert told["after last"] == [6, False, True]
    assert told["still whole"]
    assert told["saved"] == [True, False]
    assert told["same"]


def test_a_folder_that_takes_no_files_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot start a run in .*file"):
        trainer_of(folder=tmp_path / "file")
