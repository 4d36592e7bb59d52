# SPDX-License-Identifier: Apache-2.0
"""How a model treats a block of examples: what is refused, and the quickest way that is right."""

from typing import Final, NamedTuple, final

import attrs
import numpy as np
import torch
from torch import Tensor

from pufferslice.errors import ArgumentError
from pufferslice.torch.contributions import Contribution, Scratch, Weights
from pufferslice.torch.model_state import is_same, marks_of, modes_of, named_values, written
from pufferslice.torch.objective import Objective, Path
from pufferslice.torch.operations import UnsupportedUseError
from pufferslice.torch.per_example import as_dense
from pufferslice.torch.trial_modes import Leftovers, Refusals, WithoutDropout

WAYS: Final[tuple[Path, ...]] = ("recorded", "per_example", "one_by_one")
"""Quickest first."""

_AGREEMENT: Final = 1e-3
"""How far two float32 ways to the same sum of gradients may be apart, relative to all parts."""

_ROUNDING: Final = 1e-5
"""How far losses of the same example may be apart, relative to the largest.

Torch may round an example differently beside others (packed sequences); such are run one by one.
"""

_NOTHING: Final = 1e-5
"""A gradient that is smaller than this, beside the largest, may be nothing but rounding."""

_NOT_RECORDED: Final = (UnsupportedUseError, RuntimeError, LookupError, TypeError, ValueError)
"""What recording raises: uses it does not know, and what torch says of those or of its own."""


class Treatment(NamedTuple):
    """What a model was found to do with a block."""

    path: Path
    """How its gradients are taken."""
    draws_randomness: bool
    leaves_something: bool
    """Whether something of a run outlives it, so that two runs at once could meet."""
    rewritten: frozenset[str]
    """Buffers and parameters that every run writes to, always the same."""
    constants: tuple[Tensor, ...]
    """Tensors that runs have in common."""


@final
@attrs.frozen(eq=False, repr=False)
class FirstLook:
    """A look at how a model treats a block of `block` examples, before it is trained."""

    objective: Objective
    block: int
    scratch: Scratch

    def treatment(self, examples: tuple[Tensor, ...], n_examples: int) -> Treatment:
        """Run the model on a block in several ways and choose; all is put back afterwards.

        Refuses a loss that is not per example, a model that mixes examples or keeps something of
        them in a buffer, and a parameter that the loss does not depend on.
        """
        state = torch.get_rng_state()
        with torch.no_grad():
            copies = {name: value.clone() for name, value in named_values(self.objective)}
        before = marks_of(self.objective)
        try:
            usable, n_distinct = self._usable(_filled(examples, n_examples, self.block))
            draws = not torch.equal(state, torch.get_rng_state())
            self._check_unchanged(copies)
            rewritten = frozenset(written(before, self.objective))
            distinct = self._are_separate(usable) and n_distinct > 1
            leaves, constants = self._left(usable)
            look = attrs.evolve(self, objective=attrs.evolve(self.objective, constants=constants))
            path = look._chosen_path(usable, distinct=distinct, draws=draws)  # noqa: SLF001 - its own class
            self._check_unchanged(copies)
        finally:
            torch.set_rng_state(state)
            self._put_back(copies)
        return Treatment(path, draws, leaves, rewritten, constants)

    def _usable(self, examples: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], int]:
        """The examples with finite losses, filled up, a different one last; and how many differ."""
        losses = self._losses(examples)
        if not isinstance(losses, Tensor) or losses.shape != (self.block,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            msg = (
                f"loss_fn must give one loss per example, shape ({self.block},), got {shape}; "
                "use reduction='none' (a mean over the batch hides what each record does), and "
                "sum over everything but the examples"
            )
            raise ArgumentError(msg)
        finite = torch.isfinite(losses).nonzero().reshape(-1)
        if not len(finite):
            return examples, 1
        kept = tuple(one[finite] for one in examples)
        other = [i for i in range(1, len(finite)) if _differ(kept, i)]
        if not other:
            return _filled(kept, len(finite), self.block), 1
        filled = _filled(kept, len(finite), self.block)
        last = tuple(torch.cat([one[:-1], one[other[0]][None]]) for one in filled)
        return last, 2

    def _losses(self, examples: tuple[Tensor, ...]) -> Tensor:
        # gradients are on, as in training: some models do other things, or fail, without
        with torch.enable_grad(), Refusals(examples[-1].device):
            losses = self.objective.losses(_copied(examples))
        return losses.detach() if isinstance(losses, Tensor) else losses

    def _put_back(self, copies: dict[str, Tensor]) -> list[str]:
        """Restore what is not as it was, and say what that is."""
        changed = []
        with torch.no_grad():
            for name, value in named_values(self.objective):
                if name not in copies:
                    changed.append(name)
                elif not is_same(value, copies[name]):
                    changed.append(name)
                    if value.shape == copies[name].shape and value.dtype == copies[name].dtype:
                        value.copy_(copies[name])
                    else:
                        value.data = copies[name].clone()
        return changed

    def _check_unchanged(self, copies: dict[str, Tensor]) -> None:
        """Running the model left its buffers and parameters alone; what it changed is put back."""
        changed = self._put_back(copies)
        new = [name for name in changed if name not in copies]
        if new:
            msg = (
                f"{', '.join(map(repr, new))} appears only when the model runs; run the model once "
                "on a made-up example before the optimizer is made"
            )
            raise ArgumentError(msg)
        if changed:
            msg = (
                f"{', '.join(map(repr, changed))} changes when the model runs: it keeps something "
                "of the records outside the noise. Use a layer without running statistics, or put "
                "it into evaluation mode"
            )
            raise ArgumentError(msg)

    def _are_separate(self, examples: tuple[Tensor, ...]) -> bool:
        """The loss of an example does not change when other examples do; whether by no bit."""
        state = torch.get_rng_state()
        losses = []
        for block in _variants(examples):
            torch.set_rng_state(state)
            losses.append(self._losses(block).nan_to_num())
        if not _are_separate(losses, _ROUNDING):
            msg = (
                "the loss of an example changes when another example of its block is replaced: "
                "the model or loss_fn mixes examples, so no record's influence can be bounded. "
                "Use layers that treat examples one by one, such as GroupNorm for BatchNorm; a "
                "model that draws at random must draw from torch"
            )
            raise ArgumentError(msg)
        return _are_separate(losses)

    def _left(self, examples: tuple[Tensor, ...]) -> tuple[bool, tuple[Tensor, ...]]:
        """Whether a tensor of a run is still there when its losses are gone; and the constants."""
        earlier, watched = Leftovers(), Leftovers()
        for mode in (earlier, watched):
            with torch.enable_grad(), mode:
                self.objective.losses(_copied(examples))
        return watched.outlive(earlier), watched.constants(earlier)

    def _chosen_path(self, examples: tuple[Tensor, ...], *, distinct: bool, draws: bool) -> Path:
        """The first way that runs, keeps examples apart and gives the ordinary gradients."""
        orders = (torch.arange(self.block), torch.arange(self.block).flip(0))
        blocks = [tuple(one[order] for one in examples) for order in orders]
        plain = [self._plain_gradients(block) for block in blocks]
        pairs = list(zip(blocks, plain, strict=True))
        if distinct and self._can_record(examples, pairs):
            return "recorded"
        for path in WAYS[1:]:
            try:
                alike = self._agrees(examples, path, plain[0])
            except RuntimeError:  # torch.func cannot run everything that autograd can
                if path == WAYS[-1]:
                    raise
                continue
            if alike or draws:
                return path
        msg = (
            "the gradients of single examples do not add up to the gradient of the block: the "
            "model treats a block differently from its examples"
        )
        raise ArgumentError(msg)

    def _can_record(
        self,
        examples: tuple[Tensor, ...],
        pairs: list[tuple[tuple[Tensor, ...], list[Tensor]]],
    ) -> bool:
        """Every use is known, gradients are ordinary, and none changes with another example."""
        state = torch.get_rng_state()
        if any(mode.has_gradient_hooks for mode in modes_of(self.objective)):
            return False
        try:
            self._contributions(tuple(torch.cat([one, one[:1]]) for one in examples), "recorded")
            variants = []
            for block in _variants(examples):
                torch.set_rng_state(state)
                variants.append(self._recorded_norms(block))
            torch.set_rng_state(state)
            if not all(self._agrees(block, "recorded", plain) for block, plain in pairs):
                return False
        except _NOT_RECORDED:
            return False
        finally:
            torch.set_rng_state(state)
        by_parameter = zip(*variants, strict=True)
        return all(_are_separate(list(norms)) for norms in by_parameter)

    def _contributions(
        self, examples: tuple[Tensor, ...], path: Path
    ) -> tuple[Tensor, dict[int, Contribution]]:
        return self.objective.contributions(_copied(examples), path, self.scratch)

    def _recorded_norms(self, examples: tuple[Tensor, ...]) -> list[Tensor]:
        """Squared norms of the examples for each parameter in turn."""
        _, found = self._contributions(examples, "recorded")
        return [found[i].squared_norms().nan_to_num() for i in sorted(found)]

    def _plain_gradients(self, examples: tuple[Tensor, ...]) -> list[Tensor]:
        """Ordinary gradients of the losses, each with a weight of its own."""
        state, layout = torch.get_rng_state(), self.objective.layout
        with torch.enable_grad(), WithoutDropout():
            losses = self.objective.losses(_copied(examples))
            torch.set_rng_state(state)
            total = (losses * self._own_weights().to(losses)).sum()
        gradients = torch.autograd.grad(total, layout.parameters, allow_unused=True)
        missing = [n for n, g in zip(layout.names, gradients, strict=True) if g is None]
        if missing:
            msg = (
                f"parameter {missing[0]!r} has no gradient: the loss does not depend on it. Freeze "
                "it with requires_grad_(False), or use it in the model"
            )
            raise ArgumentError(msg)
        return [as_dense(g) for g in gradients if g is not None]

    def _own_weights(self) -> Tensor:
        """A different weight for each example, so that a mix-up of two of them shows."""
        return torch.linspace(0.5, 1.5, self.block, dtype=torch.float64)

    def _agrees(self, examples: tuple[Tensor, ...], path: Path, plain: list[Tensor]) -> bool:
        """Whether a way gives the ordinary gradients, each example with its own weight."""
        state = torch.get_rng_state()
        with WithoutDropout():
            _, found = self._contributions(examples, path)
        torch.set_rng_state(state)
        if len(found) != len(plain):
            return False
        weights = self._own_weights()
        with torch.no_grad():
            parts = [float(found[i].squared_norms().sqrt() @ weights) for i in range(len(plain))]
            sums = [found[i].weighted_sum(Weights(weights)).double() for i in range(len(plain))]
        if not np.isfinite(parts).all():
            return path != "recorded"
        apart = [
            float((total - gradient.double().reshape(-1)).norm())
            for total, gradient in zip(sums, plain, strict=True)
        ]
        return all(
            off <= _AGREEMENT * part + _NOTHING * max(parts)
            for off, part in zip(apart, parts, strict=True)
        )


def _filled(examples: tuple[Tensor, ...], n_examples: int, block: int) -> tuple[Tensor, ...]:
    """The first examples, filled up to a whole block with the first one."""
    given = tuple(one[: min(n_examples, block)] for one in examples)
    short = block - len(given[-1])
    return tuple(torch.cat([one, one[:1].expand(short, *one.shape[1:])]) for one in given)


def _copied(examples: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies, because a model may change its inputs in place."""
    return tuple(one.detach().clone() for one in examples)


def _differ(examples: tuple[Tensor, ...], index: int) -> bool:
    return any(not torch.equal(one[0], one[index]) for one in examples)


def _variants(examples: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """A block, the same with its first example replaced, and with all others replaced."""
    first = tuple(torch.cat([one[-1:], one[1:]]) for one in examples)
    others = tuple(one[:1].expand_as(one).clone() for one in examples)
    return [examples, first, others]


def _are_separate(values: list[Tensor], tolerance: float = 0.0) -> bool:
    """Whether values of examples, one row per variant, change only with their own example.

    With a tolerance, relative to the largest, they may be rounded in different ways.
    """
    whole, first, others = values
    room = tolerance * whole.abs().max()
    pairs = ((whole[1:], first[1:]), (whole[:1], others[:1]))
    return all(bool(((one - other).abs() <= room).all()) for one, other in pairs)
