# SPDX-License-Identifier: Apache-2.0
"""The checkpoint file: what is in it, what it fits, and that damage is noticed."""

import contextlib
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.torch.small import LOSS, copy_of, digest_of, model_of, plan_of, stopped_at, trainer_of
from torch import nn

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch import Trainer
from pufferslice.torch.checkpoint import VERSION, Checkpoint, _content_digest


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    stopped_at(folder, 2, schedule=True)
    return folder


def attempt(folder, *, model=None, optimizer=None, scheduler=True):
    """Resume; the model is untouched if that is refused."""
    model = model_of() if model is None else model
    optimizer = (optimizer or (lambda one: torch.optim.SGD(one.parameters(), lr=0.1)))(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if scheduler else None
    trainer = Trainer(model, LOSS, optimizer, plan_of(), folder=folder, scheduler=schedule)
    before = digest_of(model)
    try:
        trainer.resume()
    except BaseException:
        assert digest_of(model) == before
        assert trainer.n_taken == 0
        raise


def test_it_is_an_ordinary_torch_file_and_the_same_for_the_same_state(tmp_path):
    trainer, model = stopped_at(tmp_path, 2)
    trainer.save(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "checkpoint.pt").read_bytes()
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    other = model_of(5)
    other.load_state_dict(content["model"])
    assert digest_of(other) == digest_of(model)


class Stateful(nn.Linear):
    """A module that keeps an object in its state."""

    def get_extra_state(self):
        return {"made": self.__class__}

    def set_extra_state(self, state):
        pass


def test_a_state_that_could_not_be_read_back_is_refused_at_once(tmp_path):
    with pytest.raises(ArgumentError, match="state of the model"):
        trainer_of(model=Stateful(4, 2), folder=tmp_path)
    trainer_of(model=Stateful(4, 2))


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
    ("changed", "match"),
    [
        (lambda: {"model": nn.Linear(4, 2)}, "parameters"),
        (lambda: {"model": nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2))}, "0.bias"),
        (lambda: {"model": with_buffer()}, "'extra'"),
        (lambda: {"model": model_of().double()}, "'0.bias'"),
        (lambda: {"scheduler": False}, "StepLR"),
        (lambda: {"optimizer": lambda model: torch.optim.Adam(model.parameters())}, "SGD"),
        (lambda: {"optimizer": two_groups}, "groups"),
    ],
)
def test_other_models_and_optimizers_are_refused(saved, tmp_path, changed, match):
    with pytest.raises(TrainingError, match=match):
        attempt(copy_of(saved, tmp_path / "run"), **changed())


@given(st.data())
def test_damage_is_noticed(saved, data):
    raw = bytearray((saved / "checkpoint.pt").read_bytes())
    whole = Checkpoint.from_bytes(bytes(raw), "it")
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, 8 * len(raw) - 1))
        raw[place // 8] ^= 1 << place % 8
    else:
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
    # The file has room that nothing is read from; what is read is what was written.
    with contextlib.suppress(TrainingError):
        read = Checkpoint.from_bytes(bytes(raw), "it")
        assert (read.step, read.run, read.block) == (whole.step, whole.run, whole.block)
        assert repr(read.states) == repr(whole.states)
        for name, tensor in whole.states["model"].items():
            assert torch.equal(read.states["model"][name], tensor)


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"step": 5}, "damaged"),
        ({"way": "one_by_one"}, "damaged"),
        ({"digest": "0" * 64}, "damaged"),
        ({"version": VERSION - 1}, f"version {VERSION - 1}"),
        ({"format": "other"}, "not a checkpoint"),
    ],
)
def test_edited_checkpoints_are_refused(saved, tmp_path, entries, match):
    folder = copy_of(saved, tmp_path / "run")
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    torch.save({**content, **entries}, folder / "checkpoint.pt")
    with pytest.raises(TrainingError, match=match):
        attempt(folder)


def test_a_missing_part_is_damage(saved):
    """Also if the digest is that of what is left."""
    content = torch.load(saved / "checkpoint.pt", weights_only=True)
    del content["optimizer"], content["digest"]
    content["digest"] = _content_digest(content)
    file = io.BytesIO()
    torch.save(content, file)
    with pytest.raises(TrainingError, match="damaged"):
        Checkpoint.from_bytes(file.getvalue(), "it")


def test_other_files_are_refused(saved, tmp_path):
    folder, other = copy_of(saved, tmp_path / "run"), io.BytesIO()
    torch.save([1, 2], other)
    for content in (b"", b"no checkpoint", other.getvalue()):
        (folder / "checkpoint.pt").write_bytes(content)
        with pytest.raises(TrainingError, match="checkpoint"):
            attempt(folder)
