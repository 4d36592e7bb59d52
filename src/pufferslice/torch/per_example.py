# SPDX-License-Identifier: Apache-2.0
r"""Gradients of a block in which each example is run as if it were alone.

The model and the loss run on batches of one example: all at once by `torch.func.vmap`, or one after
another where vmap cannot run them. Either way they run in a temporary replica with copies of all
buffers. So the contribution of an example is a function of that example, the weights and random
numbers that do not depend on the data, whatever the code of the model does with its inputs,
attributes, buffers and closures.

Limits: code can carry one example into the gradient of another in globals of modules, attributes of
classes, context variables, thread locals and files, by calling private functions of functorch, and
by inspecting the interpreter (frames, the garbage collector).
"""

import contextlib
import random
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, final

import numpy as np
import torch
from torch import Tensor, _tensor_str, nn
from torch._functorch import autograd_function, eager_transforms
from torch.func import vjp, vmap
from torch.utils import _python_dispatch as dispatch_modes
from torch.utils import _pytree as pytree

from pufferslice._core.checks import is_a
from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch.block_operators import BlockOperators, SetMemory, WholeBlockError
from pufferslice.torch.contributions import Contribution, Dense, product_bytes
from pufferslice.torch.layers import (
    Calls,
    OtherUseError,
    Outline,
    Pass,
    known_layers,
    layer_contributions,
)
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.recurrence import custom_rule
from pufferslice.torch.replica import Replica

LossFunction = Callable[[Any, Any], Tensor]
"""Function of the output of the model and the target that gives one number for one example."""

Examples: TypeAlias = Any
"""Tensors with examples along dimension 0, as a tuple (inputs..., target) or a dict of inputs."""

_ROUNDING: Final = 1e-3
"""Largest difference of the losses of a batch and of single examples, relative to the largest."""

_NO_GRADIENT: Final = 1e-12
"""Squared norm below which a gradient is zero up to rounding."""

_CLEARLY: Final = 1e4
"""Factor between squared norms that rounding does not explain."""

_N_SEEDS: Final = 4

_NEEDS_OTHERS: Final = (
    "loss_fn gives a batch of one example {}, as an in-batch softmax does; each example is trained "
    "alone, so training would add noise only. Use a loss that an example has by itself, such as "
    "cross entropy against declared classes or fixed negatives"
)

_FALLBACK: Final = re.compile(r"There is a performance drop.*batching rule for (\S+?)\.? ")


@final
class GradientMethod(NamedTuple):
    """Method that runs the examples of a model."""

    at_once: bool
    """Whether all examples of a block run at once (`torch.func.vmap`), or one after another."""
    reason: str = ""
    """Reason why the method is slow; empty if it is not."""
    draws: bool = False
    """Whether the model draws from torch's global generator, so that blocks run in sequence."""
    tapped: tuple[nn.Module, ...] = ()
    """Layers whose gradients are computed from taps."""

    def __str__(self) -> str:
        how = "all examples of a block at once" if self.at_once else "one by one"
        return f"{how} ({self.reason})" if self.reason else how


@final
class PerExample:
    """A model and a loss, run on single examples.

    Guarantee: a vector of `contributions` is a function of its own example, of the seed and of
    the parameters and buffers.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, layout: ParameterLayout) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._layout = layout
        self._places = {id(p): i for i, p in enumerate(layout.parameters)}
        self._calls: dict[object, Calls] = {}

    def method_for(self, examples: Examples) -> GradientMethod:
        """The fastest way to run examples of these shapes; they are made up, never records.

        The method is public, and what a record needs could depend on its values. Raises for a model
        or loss with state that cannot be copied, a loss that is not one number for one example, and
        a parameter that the loss does not depend on.
        """
        for name, parameter in zip(self._layout.names, self._layout.parameters, strict=True):
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001 - no public name
                raise ArgumentError(
                    f"parameter {name!r} has a gradient hook, which would see sums over examples; "
                    "remove it, and change the loss or the optimizer instead"
                )
        with seeded(0), _modes_closed():
            method = self._fastest(examples)
            gradients: list[Tensor | None] = []
            try:
                _, gradients = self._gradients_of(_row(examples, 0))
            except ArgumentError:
                raise
            except Exception as error:  # noqa: BLE001 - user code may raise anything on made-up values
                reason = f"it does not run on made-up inputs: {_first_line(error)}"
                method = GradientMethod(at_once=False, reason=reason)
        if not method.at_once:
            self._calls.clear()
            return method
        for name, gradient in zip(self._layout.names, gradients, strict=True):
            if gradient is None:
                raise ArgumentError(
                    f"parameter {name!r} has no gradient: the loss does not depend on it. Freeze "
                    "it with requires_grad_(False), or use it in the model"
                )
        return method

    def _fastest(self, examples: Examples) -> GradientMethod:
        if not whole_blocks_are_refused():
            reason = "this version of torch lets code see all examples"
            return GradientMethod(at_once=False, reason=reason)
        layers = tuple(known_layers(self._model, self._layout.parameters))
        before = generator_states()
        while True:
            self._calls.clear()
            frozen: list[tuple[Tensor, Tensor]] = []
            # copies, because the model may write to its parameters
            values = tuple(parameter.detach().clone() for parameter in self._layout.parameters)
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    self._at_once(examples, layers, values, seed=0, frozen=frozen)
            except ArgumentError:
                raise
            except OtherUseError as error:
                layers = tuple(layer for layer in layers if layer is not error.layer)
            except Exception as error:  # noqa: BLE001 - user code may raise anything under vmap
                return GradientMethod(
                    at_once=False, reason=f"vmap cannot run it: {_first_line(error)}"
                )
            else:
                break
        pairs = [*zip(values, self._layout.parameters, strict=True), *frozen]
        if not all(torch.equal(copy, parameter) for copy, parameter in pairs):
            return GradientMethod(at_once=False, reason="the model writes to its parameters")
        loops = (_FALLBACK.search(str(warning.message)) for warning in caught)
        slow = sorted({match[1] for match in loops if match})
        reason = f"torch has no vmap rule for {', '.join(slow)}" if slow else ""
        draws = before != generator_states()
        return GradientMethod(at_once=True, reason=reason, draws=draws, tapped=layers)

    def contributions(
        self, examples: Examples, method: GradientMethod, seed: int
    ) -> tuple[Tensor, dict[int, Contribution]]:
        """Losses, and the contributions of the examples to each parameter, by its position."""
        with _modes_closed():
            if not method.at_once:
                return self._one_by_one(examples, seed)
            values = tuple(parameter.detach() for parameter in self._layout.parameters)
            layers = method.tapped
            for _ in range(len(layers) + 2):
                try:
                    return self._at_once(examples, layers, values, seed=seed)
                except OtherUseError as error:  # the model was changed since it was first run
                    if not self._calls.pop(_shapes(examples), None):
                        layers = tuple(layer for layer in layers if layer is not error.layer)
                except WholeBlockError as error:
                    raise TrainingError(f"{error}; the step was not taken") from error
        raise TrainingError(
            "the model uses its layers differently in every run; the step was not taken"
        )

    def _at_once(
        self,
        examples: Examples,
        layers: tuple[nn.Module, ...],
        values: tuple[Tensor, ...],
        *,
        seed: int,
        frozen: list[tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Tensor, dict[int, Contribution]]:
        """Compute `contributions`; in a first run, `frozen` gets copies of frozen parameters."""
        tapped = {id(p) for layer in layers for p in layer._parameters.values()}  # noqa: SLF001 - without its children's
        dense = [i for i, p in enumerate(self._layout.parameters) if id(p) not in tapped]
        generator = torch.Generator(self._layout.parameters[0].device).manual_seed(seed)
        # a model may write to its inputs
        examples = mapped(torch.clone, examples)

        def run_one(example: Examples) -> tuple[Any, Tensor, list[Tensor]]:
            """Gradients of one example for the `dense` parameters and the taps, loss and inputs."""

            def loss_of_one(dense_values: list[Tensor], zeros: list[Tensor]) -> Any:
                pairs = zip(dense, dense_values, strict=True)
                trained = {id(self._layout.parameters[i]): value for i, value in pairs}
                run = Pass(_constants(trained, frozen), layers, generator, calls, zeros)
                return self._loss_of_one(example, run), run.take_inputs()

            parts: Any = vjp(loss_of_one, [values[i] for i in dense], calls.zeros, has_aux=True)
            loss, pull_back, inputs = parts
            # without second derivatives, a backward pass frees activations as it proceeds
            with torch.no_grad():
                gradients = pull_back(torch.ones_like(loss), retain_graph=False, create_graph=False)
            return gradients, loss, inputs

        with torch.enable_grad(), block_world(quiet=frozen is None):
            calls = self._expected(examples, layers)
            with BlockOperators() as operators:
                block = vmap(run_one, randomness="different")(examples)
            operators.check()
        (gradients, of_taps), losses, inputs = block
        with torch.no_grad():
            contributions = layer_contributions(calls.uses, inputs, of_taps, self._places)
            for place, gradient in zip(dense, gradients, strict=True):
                contributions[place] = Dense(gradient.reshape(len(losses), -1).contiguous())
        return losses.detach(), contributions

    def _expected(self, examples: Examples, layers: tuple[nn.Module, ...]) -> Calls:
        """The calls of tapped layers for examples of these shapes, from a run on a made-up one.

        No record is run for this: a record could then decide how others are computed.
        """
        if not layers:
            return Calls([], [])
        key = _shapes(examples)
        if key not in self._calls:
            run = Pass(_copied, layers, torch.Generator(self._layout.parameters[0].device))
            with seeded(0), torch.no_grad():
                self._loss_of_one(_row(made_up(examples, 1), 0), run)
            run.take_inputs()
            n_uses = Counter((id(use.layer), use.weight) for use in run.noted.uses)
            for use in run.noted.uses:
                if n_uses[id(use.layer), use.weight] > 1 and use.form != "linear":
                    run.refuse(use.layer)
            for layer in layers:
                if not any(use.layer is layer for use in run.noted.uses):
                    run.refuse(layer)
            self._calls[key] = run.noted
        return self._calls[key]

    def _one_by_one(self, examples: Examples, seed: int) -> tuple[Tensor, dict[int, Contribution]]:
        n_examples = len(leaves(examples)[0])
        seeds = np.random.SeedSequence(seed).generate_state(n_examples, np.uint64)
        rows, losses = [], []
        for i, example_seed in enumerate(seeds):
            with seeded(int(example_seed)):
                loss, gradients = self._gradients_of(_row(examples, i))
            pairs = zip(gradients, self._layout.parameters, strict=True)
            rows.append([torch.zeros_like(p) if g is None else g.to_dense() for g, p in pairs])
            losses.append(loss)
        contributions: dict[int, Contribution] = {
            place: Dense(torch.stack([row[place].detach().reshape(-1) for row in rows]))
            for place in range(len(self._layout.parameters))
        }
        return torch.stack(losses), contributions

    def _gradients_of(self, example: Examples) -> tuple[Tensor, list[Tensor | None]]:
        """Loss of one example and its gradients; None for parameters that it does not depend on."""
        leaves = {id(p): _copied(p).requires_grad_() for p in self._layout.parameters}
        run = Pass(lambda tensor: leaves[id(tensor)] if id(tensor) in leaves else _copied(tensor))
        with torch.enable_grad(), SetMemory():  # type: ignore[no-untyped-call]
            loss = self._loss_of_one(mapped(torch.clone, example), run)
            # reentrant checkpoints do not support torch.autograd.grad
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), [leaves[id(p)].grad for p in self._layout.parameters]

    def _loss_of_one(self, example: Examples, run: Pass) -> Tensor:
        """The loss of one example, in a replica with the tensors of that run."""
        loss = self._losses(mapped(lambda tensor: tensor.unsqueeze(0), example), run)
        if not is_a(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            shape = tuple(loss.shape) if is_a(loss, Tensor) else type(loss).__name__
            raise ArgumentError(
                f"loss_fn must give one number for a batch of one example, got {shape}; take the "
                "mean or the sum over all outputs of the example"
            )
        return loss.sum()

    def _losses(self, examples: Examples, run: Pass) -> Tensor:
        replica = Replica(run)
        model, loss_fn = replica.of(self._model, "model"), replica.of(self._loss_fn, "loss_fn")
        if isinstance(examples, Mapping):
            losses: Tensor = loss_fn(model(**examples), examples)
        else:
            *inputs, target = examples
            losses = loss_fn(model(*inputs), target)
        return losses

    def is_like_batch(self, examples: Examples, method: GradientMethod) -> bool:
        """Whether a batch of these examples has the losses of its single examples.

        Only for a warning: gradients do not depend on it. True if random numbers are drawn, or if
        the model does not run on the examples or on a batch of them. Raises if only a batch has a
        finite loss, or one that depends on the weights.
        """
        with seeded(0):
            fresh = generator_states()
            try:
                singles, _ = self.contributions(examples, method, 0)
                batch = self._losses(mapped(torch.clone, examples), Pass(_copied)).detach()
            except Exception:  # noqa: BLE001 - user code may raise anything
                return True
            if bool((singles == singles[0]).all()):
                self._check_trainable(examples, method)
            if bool(batch.isfinite().all()) and not bool(singles.isfinite().any()):
                raise ArgumentError(_NEEDS_OTHERS.format("no finite loss"))
            if fresh != generator_states() or not bool(singles.isfinite().all()):
                return True
        room = _ROUNDING * max(1.0, float(singles.abs().max()))
        if batch.shape == singles.shape:
            return bool(((batch - singles).abs() <= room).all())
        if batch.numel() != 1:
            return False
        sums = (singles.mean(), singles.sum())
        return any(bool((batch - reduced).abs() <= room * len(singles)) for reduced in sums)

    def _check_trainable(self, examples: Examples, method: GradientMethod) -> None:
        """Raise if single examples have one loss and no gradient, and a batch of them has one.

        Several seeds, because a drawn mask could leave all of them without a gradient.
        """
        largest = 0.0
        try:
            for seed in range(_N_SEEDS):
                with seeded(seed):
                    losses, contributions = self.contributions(examples, method, seed)
                parts = [part.squared_norms().max() for part in contributions.values()]
                largest = max(largest, *map(float, parts))
                if largest > _NO_GRADIENT or bool((losses != losses[0]).any()):
                    return
            copies = {id(p): _copied(p).requires_grad_() for p in self._layout.parameters}
            run = Pass(lambda value: copies[id(value)] if id(value) in copies else _copied(value))
            with seeded(0), torch.enable_grad():
                total = self._losses(mapped(torch.clone, examples), run).sum()
                total.backward()  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - user code may raise anything
            return
        gradients = [copy.grad for copy in copies.values() if copy.grad is not None]
        norms = [float(part.double().square().sum()) for part in gradients]
        if max(norms, default=0.0) > _CLEARLY * largest:
            raise ArgumentError(_NEEDS_OTHERS.format("the same loss, whatever the weights"))

    def bytes_of_one(self, example: Examples) -> tuple[int | None, list[int]]:
        """Estimate the memory of an example's activations and materialised gradients, by shapes.

        Activations count three times: for the backward pass, for its own results, and for copies
        that vmap makes. They are None if the model does not run on the example.
        """
        counted = _Bytes()  # type: ignore[no-untyped-call]
        # copies, because the model may write to its parameters
        copies = {id(p): _copied(p) for p in self._layout.parameters}
        run = Pass(lambda tensor: copies[id(tensor)] if id(tensor) in copies else _copied(tensor))
        activations = None
        try:
            with seeded(0), torch.no_grad(), counted:
                self._losses(mapped(torch.clone, example), run)
            activations = 3 * counted.n_bytes
        except Exception:  # noqa: BLE001, S110 - user code may raise anything on made-up values
            pass
        calls = self._calls.get(_shapes(example), Calls([], []))
        written = {id(p): 4 * p.numel() for p in self._layout.parameters}
        for use in calls.uses:
            weight = getattr(use.layer, use.weight)
            if use.form == "linear":
                written[id(weight)] = product_bytes(
                    calls.zeros[use.tap].numel() // len(weight), *weight.shape
                )
            elif use.form == "rows":
                written[id(weight)] = 0
        return activations, [*written.values()]


class _Bytes(dispatch_modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all new tensors."""

    n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        before = {t.untyped_storage()._cdata for t in _tensors(args)}  # noqa: SLF001 - no public name
        for tensor in _tensors(outputs):
            if tensor.untyped_storage()._cdata not in before:  # noqa: SLF001 - as above
                self.n_bytes += tensor.numel() * tensor.element_size()
        return outputs


def _tensors(values: Any) -> list[Tensor]:  # any structure
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]


def _first_line(error: Exception) -> str:
    """The start of an error's text, which is public if the examples were made up."""
    return str(error).strip().partition("\n")[0][:160] or type(error).__name__


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _constants(
    trained: dict[int, Tensor], frozen: list[tuple[Tensor, Tensor]] | None
) -> Callable[[Tensor], Tensor]:
    """Values of the run for trained parameters, other parameters, and copies of other tensors.

    With a list `frozen`, other parameters are copied too, and added to it beside their copies.
    """

    def tensor(original: Tensor) -> Tensor:
        if id(original) in trained:
            return trained[id(original)]
        if not isinstance(original, nn.Parameter):
            return _copied(original)
        if frozen is None:
            return original.detach()
        frozen.append((_copied(original), original))
        return frozen[-1][0]

    return tensor


def mapped(function: Callable[[Any], Any], examples: Examples) -> Examples:
    """The examples with a function applied to each tensor."""
    if type(examples) is tuple:
        return tuple(mapped(function, part) for part in examples)
    if type(examples) is dict:
        return {name: mapped(function, part) for name, part in examples.items()}
    return function(examples)


def leaves(examples: Examples) -> list[Any]:
    """The tensors of examples, or what a dataset returned in their place."""
    tensors: list[Any] = []
    mapped(tensors.append, examples)
    return tensors


@contextlib.contextmanager
def _modes_closed() -> Iterator[None]:
    """Raise if code enters a mode of torch and does not leave it: the mode would see later runs."""
    before = _open_modes()
    yield
    if before != _open_modes():
        raise ArgumentError(
            "the model or loss_fn enters a mode of torch and does not leave it; use `with`"
        )


def _open_modes() -> tuple[object, ...]:
    return (
        torch._C._len_torch_function_stack(),  # noqa: SLF001 - no public name
        torch._C._len_torch_dispatch_stack(),  # noqa: SLF001 - as above
        torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
        torch._C._autograd._top_saved_tensors_default_hooks(True),  # noqa: FBT003, SLF001 - as above
    )


def made_up(examples: Examples, n: int) -> Examples:
    """`n` different public examples of these shapes and types."""
    generator = torch.Generator().manual_seed(0)

    def like(tensor: Tensor) -> Tensor:
        shape = (n, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            # between 0 and 1, which also pixels, probabilities and rounded indices are
            return torch.rand(shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
        if tensor.dtype == torch.bool:
            return torch.ones(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.randint(0, 2, shape, generator=generator).to(tensor)

    return mapped(like, examples)


def rows_of(examples: Examples, start: int, end: int | None) -> Examples:
    """Some consecutive examples."""
    return mapped(lambda tensor: tensor[start:end], examples)


def _row(examples: Examples, i: int) -> Examples:
    return mapped(lambda tensor: tensor[i], examples)


def _shapes(examples: Examples) -> object:
    if isinstance(examples, Tensor):
        return examples.shape[1:], examples.dtype
    named = examples.items() if type(examples) is dict else enumerate(examples)
    return tuple((name, _shapes(part)) for name, part in named)


def generator_states() -> tuple[object, ...]:
    """States of the generators of torch, numpy and Python."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 - the generator that models draw from
    keys, *place = numpy_state[1:]
    return torch.get_rng_state().numpy().tobytes(), keys.tobytes(), place, random.getstate()


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the generator that models draw from
    random.seed(seed)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and restore them at the end.

    A generator is state that examples would share: how much an example draws may depend on it.
    """
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - as above
    seed_generators(seed)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - as above
        random.setstate(python_state)


# A custom vmap rule, of an autograd.Function or an operator, receives the values of the whole
# block; torch makes a `VmapInfo` for each such call and for nothing else. Dispatch modes and tensor
# classes with `__torch_dispatch__` see the values below vmap; the text of a tensor and
# `torch.func.debug_unwrap` show them.
_vmap_info: Final = autograd_function.VmapInfo
_push_mode: Final = dispatch_modes._push_mode  # noqa: SLF001 - no public name
_attention: Final = torch.backends.cuda
_lock: Final = threading.Lock()
_n_worlds = 0
_before: tuple[bool, ...] = ()
_dispatching: set[type] = set()
"""Tensor classes of the user that run code below vmap."""
_originals: list[tuple[Any, str, Any]] = []
"""Parts of torch that `block_world` has replaced: owner, name and value."""


def _info_or_refusal(*args: Any, **kwargs: Any) -> Any:  # as VmapInfo
    if _n_worlds and not getattr(custom_rule, "is_running", False):
        raise WholeBlockError(
            "an autograd.Function or operator has a custom vmap rule, which sees all examples"
        )
    return _vmap_info(*args, **kwargs)


def _refuse_whole(*_: object, **__: object) -> NoReturn:
    raise WholeBlockError(
        "a dispatch mode, a tensor class or the text of a tensor sees all examples"
    )


def _push_own(mode: Any) -> None:  # a dispatch mode
    if type(mode) is not BlockOperators:
        _refuse_whole()
    _push_mode(mode)


def _dispatching_classes() -> set[type]:
    """Tensor classes, other than torch's, that run code below vmap."""
    classes: set[type] = set()
    todo: list[type] = [Tensor]
    while todo:
        kind = todo.pop()
        todo += type.__subclasses__(kind)
        is_known = kind is Outline or kind.__module__.startswith("torch.")
        if vars(kind).get("__torch_dispatch__") is not None and not is_known:
            classes.add(kind)
    return classes


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and value of each function of torch that `block_world` replaces."""
    yield autograd_function, "VmapInfo", _info_or_refusal
    yield dispatch_modes, "_push_mode", _push_own
    yield _tensor_str, "_functorch_wrapper_str_intern", _refuse_whole
    yield eager_transforms, "get_unwrapped", _refuse_whole
    for kind in _dispatching:
        yield kind, "__torch_dispatch__", classmethod(_refuse_whole)


@contextlib.contextmanager
def block_world(*, quiet: bool) -> Iterator[None]:
    """Switch torch, in all threads, to raise `WholeBlockError` where code sees all examples.

    Attention is computed by its formula, because only that has a vmap rule. If `quiet`, torch does
    not warn where vmap runs a loop.
    """
    global _n_worlds, _before, _dispatching  # noqa: PLW0603 - torch has one set of switches for the process
    announce = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
    with _lock:
        if not _n_worlds:
            _before = (_attention.flash_sdp_enabled(), _attention.mem_efficient_sdp_enabled())  # type: ignore[no-untyped-call]
            _dispatching = _dispatching_classes()
            for owner, name, value in _replacements():
                _originals.append((owner, name, vars(owner)[name]))
                setattr(owner, name, value)
            _attention.enable_flash_sdp(enabled=False)
            _attention.enable_mem_efficient_sdp(enabled=False)
        _n_worlds += 1
        announce(not quiet)
    try:
        yield
        if _dispatching_classes() - _dispatching:  # defined inside the model
            _refuse_whole()
    finally:
        with _lock:
            _n_worlds -= 1
            if not _n_worlds:
                while _originals:
                    setattr(*_originals.pop())
                _attention.enable_flash_sdp(_before[0])
                _attention.enable_mem_efficient_sdp(_before[1])
                announce(True)  # noqa: FBT003 - it takes no names


class _Probe(torch.autograd.Function):
    """A function with a custom vmap rule."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # as torch has it
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004 - as torch has it
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004 - as torch has it
        return values.clone(), 0


def _under_mode(values: Tensor) -> Tensor:
    with _Bytes():  # type: ignore[no-untyped-call]
        return values.clone()


def _caught(values: Tensor) -> None:
    with contextlib.suppress(RuntimeError):
        torch.linalg.cholesky(values.reshape(1, 1) - 1)


_SEEING: Final[tuple[Callable[[Tensor], object], ...]] = (
    _Probe.apply,
    _under_mode,
    repr,
    torch.func.debug_unwrap,
    torch.poisson,
    _caught,
)
"""Ways to see other examples under vmap, closed by `block_world` and by `BlockOperators`."""


def whole_blocks_are_refused() -> bool:
    """Whether each way to see other examples is closed in the installed torch.

    The switches are private names of torch: in another version they may switch nothing.
    """

    def is_refused(seeing: Callable[[Tensor], object]) -> bool:
        def seen(values: Tensor) -> Tensor:
            seeing(values)
            return values

        try:
            with block_world(quiet=True), BlockOperators() as operators:
                vmap(seen, randomness="different")(torch.zeros(2))
            operators.check()
        except WholeBlockError:
            return True
        return False

    return all(map(is_refused, _SEEING))
