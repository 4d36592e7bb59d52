# SPDX-License-Identifier: Apache-2.0
"""See what a loop of the user's own does with a batch: the inputs, and the gradient of the outputs.

Hooks on the model keep a copy of the inputs and cut the graph behind the outputs. The backward pass
of the user's loss then ends at the outputs. Its gradient there, example by example, is all that
the gradients of the parameters need beside the inputs: they are those of the inner product of
outputs and that gradient.
"""

from collections.abc import Callable
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pufferslice.errors import ArgumentError, TrainingError
from pufferslice.torch.batches import Examples
from pufferslice.torch.replica import STAND_INS


@final
class Forward:
    """One forward pass on a batch; private."""

    def __init__(self, inputs: Examples) -> None:
        self.inputs: Final = inputs
        self.is_random = False
        """Whether the model drew random numbers."""
        self._shapes: list[torch.Size] = []
        self._gradients: dict[int, Tensor] = {}

    def cut(self, outputs: Any) -> Any:  # noqa: ANN401 - whatever the model gives
        """The same outputs, behind which the backward pass does not go on."""
        leaves, structure = pytree.tree_flatten(outputs)
        floating = [leaf for leaf in leaves if _is_floating(leaf)]
        check_outputs(outputs, len(self.inputs[0]))
        self._shapes = [leaf.shape for leaf in floating]
        position = iter(range(len(floating)))
        return pytree.tree_unflatten(
            [self._caught(leaf, next(position)) if _is_floating(leaf) else leaf for leaf in leaves],
            structure,
        )

    @property
    def came_back(self) -> bool:
        """Whether a backward pass reached the outputs."""
        return bool(self._gradients)

    def output_gradients(self, factor: float) -> Tensor:
        """The gradient of the outputs times a factor, one row per example."""
        like = next(iter(self._gradients.values()))
        found = [
            self._gradients[i] if i in self._gradients else like.new_zeros(shape)
            for i, shape in enumerate(self._shapes)
        ]
        return torch.cat([one.reshape(len(one), -1) for one in found], 1) * factor

    def _caught(self, output: Tensor, position: int) -> Tensor:
        leaf = output.detach().requires_grad_()
        leaf.register_hook(lambda gradient: self._keep(position, gradient))  # type: ignore[no-untyped-call]
        # Not the leaf itself, which could not be changed in place.
        return leaf.clone()

    def _keep(self, position: int, gradient: Tensor) -> None:
        if position in self._gradients:
            msg = (
                "a second backward pass reached the outputs of this batch; a step has one loss and "
                "one backward pass. Add the losses, then call backward once"
            )
            raise TrainingError(msg)
        self._gradients[position] = gradient.detach().clone()


def inner_products(outputs: Any, gradients: Tensor) -> Tensor:  # noqa: ANN401 - as in `cut`
    """Outputs times the gradients that came back for them, summed for each example."""
    check_outputs(outputs, len(gradients))
    floating = [leaf for leaf in pytree.tree_leaves(outputs) if _is_floating(leaf)]
    rows = torch.cat([leaf.reshape(len(gradients), -1) for leaf in floating], 1)
    return (rows * gradients).sum(1)


def check_outputs(outputs: Any, n_examples: int) -> None:  # noqa: ANN401 - as in `cut`
    """The model gives tensors with examples along dimension 0, and nothing that joins examples."""
    floating = [leaf for leaf in pytree.tree_leaves(outputs) if _is_floating(leaf)]
    for leaf in floating:
        if not leaf.dim() or len(leaf) != n_examples:
            msg = (
                f"the model gives an output of shape {tuple(leaf.shape)} for {n_examples} "
                "examples; dimension 0 of every output must count the examples, else a loss on it "
                "mixes them"
            )
            raise ArgumentError(msg)
    if not floating:
        msg = "the model must give a tensor of numbers, or tuples, lists or dicts of such tensors"
        raise ArgumentError(msg)


@final
class Hooks:
    """The two hooks on a model, which can be taken away; copies of the model get idle ones."""

    def __init__(
        self,
        model: nn.Module,
        before: Callable[[tuple[Any, ...], dict[str, Any]], None],
        after: Callable[[Any], Any],
    ) -> None:
        self._handles = (
            model.register_forward_pre_hook(
                _Hook(lambda _, *given: before(*given)), with_kwargs=True
            ),
            model.register_forward_hook(_Hook(lambda *given: after(given[-1]))),
        )

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()


@final
class _Hook:
    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:  # noqa: ANN401 - as torch calls hooks
        return self._call(*given)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _idle_hook, ()


def _idle_hook() -> Callable[..., None]:
    return _idle


def _idle(*_: object) -> None:
    """What a hook becomes in a copy of the model."""


STAND_INS[_Hook] = _idle


def check_inputs(args: tuple[Any, ...], named: dict[str, Any], batch: Examples) -> None:
    """The model is run on the tensors of the loader's batch, whole and in their order."""
    if named or not args or not all(isinstance(arg, Tensor) for arg in args):
        msg = (
            "the model must be called with tensors by position, model(inputs...); wrap a model "
            "that wants anything else in a module that takes the tensors of the dataset"
        )
        raise ArgumentError(msg)
    rows_of = {one.untyped_storage().data_ptr(): one for one in batch}
    whole = [(arg, rows_of.get(arg.untyped_storage().data_ptr())) for arg in args]
    shares = any(of is not None for _, of in whole)
    in_order = all(of is None or _has_rows_of(arg, of) for arg, of in whole)
    counted = all(arg.dim() and len(arg) == len(batch[0]) for arg in args)
    if not (shares and in_order and counted):
        msg = (
            "the model was run on something else than the batch of the loader. Give it the "
            "tensors that the loader gave (views and reshaped ones will do; do other preparation "
            "in the dataset), or evaluate under torch.no_grad()"
        )
        raise TrainingError(msg)


def _has_rows_of(view: Tensor, batch: Tensor) -> bool:
    """Whether each row of a view lies within the same row of the batch."""
    if not view.dim():
        return False
    if len(batch) == 1 or not view.numel():
        return True
    row = batch.stride(0) * batch.element_size()
    size = view.element_size()
    first = view.storage_offset() * size - batch.storage_offset() * batch.element_size()
    steps = zip(view.shape[1:], view.stride()[1:], strict=True)
    last = first + sum((length - 1) * stride for length, stride in steps) * size
    return view.stride(0) * size == row and first >= 0 and last < row


def _is_floating(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
