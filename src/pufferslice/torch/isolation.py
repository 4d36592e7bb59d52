# SPDX-License-Identifier: Apache-2.0
r"""Gradients of a block in which no example meets another.

The model and the loss run on batches of one example: all at once by `torch.func.vmap`, or one after
another where that cannot run them. Either way they run in a replica that is thrown away, with
copies of all buffers. So what an example contributes is a function of that example, the weights and
random numbers that do not depend on the data, whatever the code of the model does with its inputs.

Limits: code can carry something from one run to another in globals of modules, attributes of
classes and files, and by calling private functions of functorch.
"""

import contextlib
import random
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch._functorch import autograd_function as own_rules
from torch.func import grad_and_value, vmap

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch.contributions import Contribution, Dense, Scratch
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.replica import Replica
from pufferslice.torch.taps import Call, OtherUseError, Taps, tappable, tapped_contributions

LossFunction = Callable[[Any, Tensor], Tensor]
"""Takes what the model gives and the targets; gives one loss per example."""

Way = Literal["per_example", "one_by_one"]
"""How examples are run: all at once by torch.func, or in a loop."""

WAYS: Final[tuple[Way, ...]] = ("per_example", "one_by_one")
"""Quickest first."""

_ROUNDING: Final = 1e-3
"""How far losses of a block and of single examples may be apart, relative to the largest."""

_SLOW: Final = "There is a performance drop"
_FALLBACK: Final = re.compile(rf"{_SLOW}.*batching rule for (\S+?)\.? ")


class WholeBlockError(RuntimeError):
    """Code asked for the values of all examples at once."""


@final
class Treatment(NamedTuple):
    """How the examples of a model are run."""

    way: Way
    why: str
    """Why it is not run more quickly; empty if nothing is slow."""
    draws_randomness: bool
    """Whether generators are seeded, for all threads: then blocks must not run at once."""
    tapped: tuple[nn.Module, ...] = ()
    """Layers whose gradients are not written out."""

    @property
    def is_slow(self) -> bool:
        """Whether examples are run in a loop, all of the model or parts of it."""
        return bool(self.why)

    def __str__(self) -> str:
        how = "all examples of a block at once" if self.way == "per_example" else "one by one"
        return f"{how} ({self.why})" if self.why else how


@final
class Isolation:
    """A model and a loss, run on single examples.

    Guarantee: a vector of `contributions` is a function of its own example, of the seed and of
    the parameters and buffers.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, layout: ParameterLayout) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._layout = layout
        self._calls: dict[tuple[object, ...], list[Call]] = {}
        self._of_thread = threading.local()

    def treatment(self, examples: tuple[Tensor, ...]) -> Treatment:
        """The quickest way that can run the examples.

        Refuses a model or loss with state that cannot be copied, a loss that is not one number per
        example, and a parameter that the loss does not depend on.
        """
        self._check_hooks()
        self._tensors()
        with seeded(0):
            found = self._quickest(tuple(one.detach().clone() for one in examples))
            self._check_used(examples if found.way == "one_by_one" else _first(examples))
        return found

    def _quickest(self, examples: tuple[Tensor, ...]) -> Treatment:
        if not own_rules_are_refused():
            return _in_turn("this torch has vmap rules that see all examples")
        layers = tappable(self._model, self._layout)
        before = _generator_states()
        while True:
            self._calls.clear()
            trained = tuple(parameter.detach().clone() for parameter in self._layout.parameters)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    self._all_at_once(examples, layers, trained, draws=True)
            except ArgumentError:
                raise
            except OtherUseError as error:
                layers = [layer for layer in layers if layer is not error.layer]
            except Exception as error:  # noqa: BLE001 - whatever code of the user's makes of vmap
                first = str(error).strip().partition("\n")[0][:160]
                return _in_turn(f"torch.func.vmap cannot run it: {first}")
            else:
                break
        pairs = zip(trained, self._layout.parameters, strict=True)
        if not all(torch.equal(copy, parameter) for copy, parameter in pairs):
            return _in_turn("the model writes to its parameters")
        loops = [_FALLBACK.search(str(one.message)) for one in caught]
        slow = sorted({found[1] for found in loops if found})
        why = f"torch has no vmap rule for {', '.join(slow)}" if slow else ""
        draws = before != _generator_states()
        return Treatment("per_example", why, draws_randomness=draws, tapped=tuple(layers))

    def contributions(
        self, examples: tuple[Tensor, ...], treatment: Treatment, seed: int
    ) -> tuple[Tensor, dict[int, Contribution]]:
        """Losses, and what each example contributes to each parameter, by its position."""
        if treatment.way == "one_by_one":
            return self._in_a_loop(examples, seed)
        # a model may change its inputs in place
        examples = tuple(one.clone() for one in examples)
        trained = tuple(parameter.detach() for parameter in self._layout.parameters)
        draws = treatment.draws_randomness
        try:
            with quiet_loops():
                return self._all_at_once(examples, treatment.tapped, trained, draws=draws)
        except OtherUseError as error:
            msg = f"{error}, which it was not when it was first run; the step was not made"
            raise TrainingError(msg) from error

    def _all_at_once(
        self,
        examples: tuple[Tensor, ...],
        layers: Sequence[nn.Module],
        trained: tuple[Tensor, ...],
        *,
        draws: bool,
    ) -> tuple[Tensor, dict[int, Contribution]]:
        held = self._tensors()
        kept = tuple(t.detach() if isinstance(t, nn.Parameter) else t.clone() for t in held)
        tapped = Taps(layers).owners
        dense = [i for i, p in enumerate(self._layout.parameters) if id(p) not in tapped]
        originals = [*(self._layout.parameters[i] for i in dense), *held]

        def loss_of_one(
            given: tuple[list[Tensor], list[Tensor]],
            kept: tuple[Tensor, ...],
            example: tuple[Tensor, ...],
        ) -> tuple[Tensor, list[Tensor]]:
            taps = Taps(layers, calls, given[1])
            loss = self._loss_of_one(originals, (*given[0], *kept), example, taps)
            return loss, taps.inputs()

        mapped = vmap(
            grad_and_value(loss_of_one, has_aux=True),
            in_dims=(None, None, 0),
            randomness="different",
        )
        with torch.enable_grad(), refused_own_rules():
            values = tuple(trained[i] for i in dense)
            calls = self._expected(examples, layers, originals, (*values, *kept), draws=draws)
            (gradients, of_taps), (losses, inputs) = mapped(
                (list(values), [call.zero for call in calls]), kept, examples
            )
        with torch.no_grad():
            layers_called = [call.layer for call in calls]
            uses = list(zip(layers_called, inputs, of_taps, strict=True))
            found = tapped_contributions(uses, self._layout, self._scratch())
            for position, gradient in zip(dense, gradients, strict=True):
                found[position] = Dense(gradient.reshape(len(losses), -1).contiguous())
        return losses.detach(), found

    def _expected(
        self,
        examples: tuple[Tensor, ...],
        layers: Sequence[nn.Module],
        originals: Sequence[Tensor],
        tensors: tuple[Tensor, ...],
        *,
        draws: bool,
    ) -> list[Call]:
        """The calls of tapped layers for examples of this shape, seen by running the first one."""
        if not layers:
            return []
        key = tuple((one.shape[1:], one.dtype) for one in examples)
        if key not in self._calls:
            taps = Taps(layers)
            copies = tuple(tensor.clone() for tensor in tensors)
            with seeded(0) if draws else contextlib.nullcontext():
                example = tuple(one[0].clone() for one in examples)
                self._loss_of_one(originals, copies, example, taps)
            taps.inputs()
            called = Counter(id(call.layer) for call in taps.noted)
            for layer in layers:
                n_calls = called[id(layer)]
                if n_calls == 0 or (n_calls > 1 and not isinstance(layer, nn.Linear)):
                    taps.refuse(layer)
            self._calls[key] = taps.noted
        return self._calls[key]

    def _scratch(self) -> Scratch:
        if not hasattr(self._of_thread, "scratch"):
            self._of_thread.scratch = Scratch()
        scratch: Scratch = self._of_thread.scratch
        scratch.begin()
        return scratch

    def _in_a_loop(
        self, examples: tuple[Tensor, ...], seed: int
    ) -> tuple[Tensor, dict[int, Contribution]]:
        held = self._tensors()
        seeds = np.random.SeedSequence(seed).generate_state(len(examples[-1]), np.uint64)
        rows, losses = [], []
        for i, own in enumerate(seeds):
            with seeded(int(own)):
                loss, gradients = self._gradients_of(tuple(one[i] for one in examples), held)
            given = zip(gradients, self._layout.parameters, strict=True)
            rows.append([torch.zeros_like(p) if g is None else as_dense(g) for g, p in given])
            losses.append(loss)
        found: dict[int, Contribution] = {
            position: Dense(torch.stack([row[position].detach().reshape(-1) for row in rows]))
            for position in range(len(self._layout.parameters))
        }
        return torch.stack(losses), found

    def _gradients_of(
        self, example: tuple[Tensor, ...], held: list[Tensor]
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """Loss of one example and its gradients; None for parameters that it does not depend on."""
        trained = tuple(p.detach().clone().requires_grad_() for p in self._layout.parameters)
        kept = tuple(tensor.detach().clone() for tensor in held)
        copy = tuple(one.clone() for one in example)
        with torch.enable_grad():
            originals = (*self._layout.parameters, *held)
            loss = self._loss_of_one(originals, (*trained, *kept), copy, Taps(()))
            # reentrant checkpoints know no torch.autograd.grad
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), tuple(parameter.grad for parameter in trained)

    def _loss_of_one(
        self,
        originals: Sequence[Tensor],
        tensors: tuple[Tensor, ...],
        example: tuple[Tensor, ...],
        taps: Taps,
    ) -> Tensor:
        """The loss of one example, in a replica whose tensors are those given."""
        single = tuple(one.unsqueeze(0) for one in example)
        losses = self._losses(originals, tensors, single, taps)
        if not isinstance(losses, Tensor) or losses.shape != (1,):
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            msg = (
                f"loss_fn must give one loss per example, shape (1,) for one example, got {shape}; "
                "use reduction='none', and sum over everything but the examples"
            )
            raise ArgumentError(msg)
        return losses.sum()

    def _losses(
        self,
        originals: Sequence[Tensor],
        tensors: tuple[Tensor, ...],
        examples: tuple[Tensor, ...],
        taps: Taps,
    ) -> Tensor:
        given = {id(a): b for a, b in zip(originals, tensors, strict=True)}
        replica = Replica(lambda tensor: given[id(tensor)], taps)
        model, loss_fn = replica.of(self._model, "model"), replica.of(self._loss_fn, "loss_fn")
        losses: Tensor = loss_fn(model(*examples[:-1]), examples[-1])
        return losses

    def reckons_with_batch(self, examples: tuple[Tensor, ...], treatment: Treatment) -> bool:
        """Whether losses of a whole block are seen to differ from those of its single examples.

        For a hint to the user: gradients do not depend on it. Not seen where random numbers are
        drawn, nor where the model does not run on a block.
        """
        held = self._tensors()
        originals = (*self._layout.parameters, *held)
        copies = tuple(tensor.detach().clone() for tensor in originals)
        with seeded(0):
            fresh = _generator_states()
            singles, _ = self.contributions(examples, treatment, 0)
            was_drawn = fresh != _generator_states()
            try:
                batch = tuple(one.clone() for one in examples)
                with torch.enable_grad():
                    losses = self._losses(originals, copies, batch, Taps(())).detach()
            except Exception:  # noqa: BLE001 - whatever code of the user's makes of a block
                return False
            was_drawn |= fresh != _generator_states()
        if losses.shape != singles.shape or not bool(singles.isfinite().all()):
            return losses.shape != singles.shape
        if was_drawn:
            return False
        room = _ROUNDING * max(1.0, float(singles.abs().max()))
        return not bool(((losses - singles).abs() <= room).all())

    def _tensors(self) -> list[Tensor]:
        """All tensors of model and loss but the trained parameters, each once."""
        trained = {id(parameter) for parameter in self._layout.parameters}
        found: dict[int, Tensor] = {}

        def met(tensor: Tensor) -> Tensor:
            if id(tensor) not in trained:
                found[id(tensor)] = tensor
            return tensor

        replica = Replica(met)
        replica.of(self._model, "model")
        replica.of(self._loss_fn, "loss_fn")
        return list(found.values())

    def _check_used(self, examples: tuple[Tensor, ...]) -> None:
        """The loss of some example depends on each parameter."""
        held, used = self._tensors(), set()
        for i in range(len(examples[-1])):
            _, gradients = self._gradients_of(tuple(one[i] for one in examples), held)
            used |= {j for j, gradient in enumerate(gradients) if gradient is not None}
            if len(used) == len(gradients):
                return
        name = next(name for j, name in enumerate(self._layout.names) if j not in used)
        msg = (
            f"parameter {name!r} has no gradient: the loss does not depend on it. Freeze it with "
            "requires_grad_(False), or use it in the model"
        )
        raise ArgumentError(msg)

    def _check_hooks(self) -> None:
        for name, parameter in zip(self._layout.names, self._layout.parameters, strict=True):
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001 - no public name
                msg = (
                    f"parameter {name!r} has a gradient hook, which would see sums over examples; "
                    "remove it, and change the loss or the optimizer instead"
                )
                raise ArgumentError(msg)


def _in_turn(why: str) -> Treatment:
    return Treatment("one_by_one", why, draws_randomness=True)


def _first(examples: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one[:1] for one in examples)


def _generator_states() -> tuple[bytes, str, str]:
    """Of the generators of torch, numpy and Python."""
    of_numpy = np.random.get_state()  # noqa: NPY002 - the generator that models draw from
    return torch.get_rng_state().numpy().tobytes(), repr(of_numpy), repr(random.getstate())


def as_dense(gradient: Tensor) -> Tensor:
    """A gradient as an ordinary tensor; sparse embeddings give sparse ones."""
    return gradient.to_dense() if gradient.is_sparse else gradient


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The generators of torch, numpy and Python begin at a seed; afterwards they go on as before.

    A generator is state that examples would share: how much one draws may depend on its values.
    """
    state, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002 - as below
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that models draw from
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(of_numpy)  # noqa: NPY002 - as above
        random.setstate(of_python)


# An autograd.Function with a vmap rule of its own, and an operator with one, are handed the values
# of the whole block. Torch makes a `VmapInfo` for each such call and for nothing else.
_vmap_info: Final = own_rules.VmapInfo
_lock: Final = threading.Lock()
_n_refusing = 0
_n_quiet = 0


def _info_or_refusal(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as VmapInfo
    if _n_refusing:
        msg = "an autograd.Function or operator has a vmap rule of its own, which sees all examples"
        raise WholeBlockError(msg)
    return _vmap_info(*given, **named)


@contextlib.contextmanager
def refused_own_rules() -> Iterator[None]:
    """Vmap rules written in Python raise `WholeBlockError`, in all threads."""
    global _n_refusing  # noqa: PLW0603 - one door for the whole process
    with _lock:
        _n_refusing += 1
        own_rules.VmapInfo = _info_or_refusal  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        with _lock:
            _n_refusing -= 1
            if not _n_refusing:
                own_rules.VmapInfo = _vmap_info  # type: ignore[misc]


@contextlib.contextmanager
def quiet_loops() -> Iterator[None]:
    """Torch does not warn, in any thread, where vmap runs a loop: that was said once."""
    global _n_quiet  # noqa: PLW0603 - torch has one switch for the whole process
    with _lock:
        _n_quiet += 1
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]  # noqa: FBT003, SLF001 - no public name
    try:
        yield
    finally:
        with _lock:
            _n_quiet -= 1
            if not _n_quiet:
                torch._C._functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]  # noqa: FBT003, SLF001 - as above


class _Probe(torch.autograd.Function):
    """A function with a rule of its own."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ANN401 - as torch has it
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401, ARG004 - as torch has it
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor) -> tuple[Tensor, int]:  # noqa: ANN401, ARG004 - as torch has it
        return values.clone(), 0


def own_rules_are_refused() -> bool:
    """Whether the door is closed in the torch that is installed, seen by trying it."""
    try:
        with refused_own_rules():
            vmap(_Probe.apply)(torch.zeros(2))
    except WholeBlockError:
        return True
    return False
