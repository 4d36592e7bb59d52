# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: everything that a run needs to resume except its key, in one ordinary torch file."""

import hashlib
import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, final

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pufferslice._core.arrays import DAMAGED
from pufferslice._core.files import canonical_json, check_archive, digest
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.learning import TrainingPlan

FORMAT: Final = "pufferslice-checkpoint"
VERSION: Final = 2

_UNREADABLE: Final = (
    *DAMAGED,
    ArithmeticError,
    AssertionError,
    ImportError,
    pickle.UnpicklingError,
)
"""Errors of torch on a file of another format or an incomplete file."""


@final
@attrs.frozen(kw_only=True, eq=False)
class Checkpoint:
    """The state of a run after `step` steps.

    It holds noisy results only: no record, no batch draw and no key. Keep it internal: the
    guarantee does not cover which checkpoints were written, and when.
    """

    run: str
    """Public name of the run."""
    plan: str
    """Digest of the plan."""
    step: int
    """Number of steps taken, which is the next step to take."""
    block: int | None
    """Examples per forward and backward pass, once chosen."""
    states: dict[str, Any] = attrs.field(repr=False)
    """States of model, optimizer and scheduler, as their `state_dict` gives them."""
    names: tuple[str, ...] = attrs.field(repr=False)
    kinds: dict[str, str] = attrs.field(repr=False)

    def to_bytes(self) -> bytes:
        """The file: a dictionary that `torch.load(path, weights_only=True)` reads."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            **attrs.asdict(self, recurse=False, filter=lambda field, _: field.name != "states"),
            **self.states,
        }
        buffer = io.BytesIO()
        torch.save({**content, "digest": _content_digest(content)}, buffer)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> "Checkpoint":
        """Read a file; `where` is its name in messages."""
        try:
            check_archive(raw, "model")
            # Torch warns about what it cannot read; the error below reports it.
            with warnings.catch_warnings(action="ignore"):
                content = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        except _UNREADABLE as error:
            raise _damaged(where) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise TrainingError(
                f"{where} is not a checkpoint of pufferslice; give one that trainer.save wrote"
            )
        if content.get("version") != VERSION:
            raise TrainingError(
                f"{where} is a checkpoint of version {content.get('version')!r}, this program "
                f"reads version {VERSION}; resume with the program that wrote it"
            )
        if content.pop("digest", None) != _content_digest(content):
            raise _damaged(where)
        names = [field.name for field in attrs.fields(cls) if field.name != "states"]
        parts = ("model", "optimizer", "scheduler")
        if not content.keys() >= {*names, *parts}:
            raise _damaged(where)
        states = {name: content[name] for name in parts}
        return cls(**{name: content[name] for name in names}, states=states)


def check_readable(raw: bytes) -> None:
    """Raise unless the checkpoint can be read back; a state with other objects cannot."""
    try:
        Checkpoint.from_bytes(raw, "the checkpoint")
    except TrainingError as error:
        raise ArgumentError(
            "the state of the model, the optimizer or the scheduler holds more than tensors and "
            "numbers, so a checkpoint of it could not be read back safely; train without a folder, "
            f"or without that part ({error.__cause__})"
        ) from error


class Learner(NamedTuple):
    """The objects whose states a checkpoint holds."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    """Schedule of `torch.optim.lr_scheduler`, or None."""
    names: tuple[str, ...]
    """The trained parameters, in order."""

    @property
    def kinds(self) -> dict[str, str]:
        """The classes of optimizer and scheduler."""
        parts = {"optimizer": self.optimizer, "scheduler": self.scheduler}
        return {name: type(part).__name__ for name, part in parts.items()}

    @property
    def states(self) -> dict[str, Any]:
        """The present states; they share memory with the model."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }

    def check_fits(self, checkpoint: Checkpoint, plan: TrainingPlan) -> None:
        """Raise unless the checkpoint has this plan, model, optimizer and scheduler."""
        if checkpoint.plan != plan_digest(plan):
            raise TrainingError("the checkpoint follows another plan; a new plan needs a new run")
        difference = next(self._differences(checkpoint), None)
        if difference is not None:
            raise TrainingError(
                f"the checkpoint does not fit, because of {difference}; make model, optimizer and "
                "scheduler as they were when the run began, frozen parameters included"
            )

    def _differences(self, checkpoint: Checkpoint) -> Iterator[str]:
        if tuple(checkpoint.names) != self.names:
            yield "other trainable parameters"
        saved, present = checkpoint.states["model"], self.model.state_dict()
        for name in sorted({*saved, *present}):
            if _form(saved.get(name)) != _form(present.get(name)):
                yield f"entry {name!r} of the model's state: missing, or another shape or precision"
        for part, kind in self.kinds.items():
            if checkpoint.kinds.get(part) != kind:
                yield f"the {part}, which was a {checkpoint.kinds.get(part)} and is a {kind}"
        groups = (checkpoint.states["optimizer"], self.optimizer.state_dict())
        sizes = [[len(group["params"]) for group in state["param_groups"]] for state in groups]
        if sizes[0] != sizes[1]:
            yield "the parameter groups of the optimizer"

    def restore(self, checkpoint: Checkpoint) -> None:
        """Load the states, with the settings of optimizer and scheduler."""
        self.optimizer.load_state_dict(checkpoint.states["optimizer"])
        self.model.load_state_dict(checkpoint.states["model"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(checkpoint.states["scheduler"])


def plan_digest(plan: TrainingPlan) -> str:
    """The digest of a plan in checkpoints and run ledgers."""
    return digest(canonical_json(plan.to_json()))


def _damaged(where: str) -> TrainingError:
    return TrainingError(
        f"{where} is damaged or incomplete: it cannot be read as the checkpoint that was written. "
        "Resume from a copy of it"
    )


def _form(entry: Any) -> tuple[Any, ...]:  # whatever a module keeps
    if isinstance(entry, Tensor):
        return (tuple(entry.shape), entry.dtype)
    return (type(entry),)


def _content_digest(content: Any) -> str:  # nested dictionaries and lists
    """SHA-256 of everything in a content, in order, whatever the checksums of the file."""
    state = hashlib.sha256()
    for part in _parts(content):
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)} {value.requires_grad}".encode()
        yield plain.reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(value, Mapping):
        yield b"mapping %d" % len(value)
        for key, entry in value.items():
            yield from _parts(key)
            yield from _parts(entry)
    elif isinstance(value, list | tuple):
        yield b"sequence %d" % len(value)
        for entry in value:
            yield from _parts(entry)
    else:
        yield f"{type(value).__name__} {value!r}".encode()
