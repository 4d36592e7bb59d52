# SPDX-License-Identifier: Apache-2.0
"""Watch a model run: every use of a trained parameter is recorded, the model itself is untouched.

While the mode is on, each torch function that is given a trained parameter is replaced by a `Use`
that does the same and records. A function that is not known here, and takes a trained parameter,
raises `UnsupportedUseError`: then gradients are taken example by example instead.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pufferslice.torch.composites import COMPOSITES
from pufferslice.torch.contributions import Contribution, Scratch, added
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.linear import LinearTokens, LinearUse, linear_contributions
from pufferslice.torch.operations import HANDLERS, REFUSED, UnsupportedUseError
from pufferslice.torch.row_order import PICKS, MovedRowsError
from pufferslice.torch.uses import Use

_MAKES_LEAVES: Final = {Tensor.requires_grad_, Tensor.requires_grad.__set__}  # type: ignore[attr-defined]
_PRECISIONS: Final = {torch.float32, torch.float64}


@final
class Recorder(TorchFunctionMode):
    """Records the uses of trained parameters on a block of `n_examples` examples.

    Run the model inside `with recorder:`, then the backward pass of the sum of the losses; then
    `contributions` has everything. Needs: dimension 0 of every input to a recorded use counts the
    examples, which is checked against `n_examples`. `constants` gives tensors without examples,
    whose rows may be picked in any order.
    """

    def __init__(
        self,
        layout: ParameterLayout,
        n_examples: int,
        scratch: Scratch,
        constants: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        super().__init__()
        self._constants = constants
        scratch.begin()
        self._scratch = scratch
        self.n_examples = n_examples
        self.anchor = torch.zeros((), requires_grad=True)
        self._positions = {id(p): i for i, p in enumerate(layout.parameters)}
        self._made_leaves: list[Tensor] = []
        self._linear: list[LinearTokens] = []
        self._later: list[tuple[Use, Tensor, Tensor]] = []
        self._found: dict[int, list[Contribution]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function gives
        given = kwargs or {}
        if func in REFUSED:
            REFUSED[func](*args, **given)
        if func in PICKS:
            self._check_rows(PICKS[func], args, given)
        elif func in _MAKES_LEAVES:
            self._made_leaves.append(args[0])
        elif func is Tensor.register_hook:
            msg = "a hook on a gradient, which sees all examples"
            raise UnsupportedUseError(msg)
        if not self._touches(args) and not self._touches(given.values()):
            return func(*args, **given)
        handler = HANDLERS.get(func) or COMPOSITES.get(func)
        if handler is not None:
            return handler(self, *args, **given)
        result = func(*args, **given)
        if _holds_tensor(result):
            msg = f"{getattr(func, '__name__', func)} with a trained parameter"
            raise UnsupportedUseError(msg)
        return result

    @property
    def leaves(self) -> list[Tensor]:
        """Where the backward pass is to go: the anchor, and tensors that the model made leaves."""
        return [self.anchor, *(leaf for leaf in self._made_leaves if leaf.requires_grad)]

    def position(self, tensor: Tensor | None) -> int | None:
        """Where a trained parameter lies in the layout; None for anything else."""
        return None if tensor is None else self._positions.get(id(tensor))

    def run(self, use: Use, inputs: Tensor) -> Tensor:
        """The output of a use, recorded when its gradient comes back."""
        self._check_examples(inputs)
        outputs: Tensor = _Recorded.apply(self.anchor, inputs, use, self)  # type: ignore[no-untyped-call]
        _check_precision(outputs)
        return outputs

    def run_linear(self, use: LinearUse, inputs: Tensor) -> Tensor:
        """A linear map is left to autograd, which shows the gradient of its outputs on the way."""
        self._check_examples(inputs)
        # tokens are flattened here: what torch returns for them may be a view, and autograd would
        # not come by the view any more once it is changed in place
        flat = inputs.reshape(-1, inputs.shape[-1]) if inputs.dim() > 2 else inputs
        # without a gradient of the inputs only the anchor makes autograd come by
        outputs = use.forward(flat, None if inputs.requires_grad else self.anchor)
        _check_precision(outputs)
        shapes = [(*inputs.shape[:-1], values.shape[-1]) for values in (outputs, flat)]
        kept = flat.detach()
        version = kept._version  # noqa: SLF001 - torch has no public name for it

        def show(gradient: Tensor | None) -> None:
            if gradient is None:  # a function of the user's may give none
                return
            # autograd keeps no inputs for a constant weight, so it would not see that they change
            if use.positions[0] is not None and kept._version != version:  # noqa: SLF001 - as above
                msg = "an input of a linear map was changed in place"
                raise RuntimeError(msg)
            outer, inner = gradient.detach().reshape(shapes[0]), kept.reshape(shapes[1])
            self._linear.append(LinearTokens(use.positions, outer, inner))

        if outputs.requires_grad:
            outputs.register_hook(show)  # type: ignore[no-untyped-call]
        return outputs.view(shapes[0]) if inputs.dim() > 2 else outputs

    def record(self, use: Use, inputs: Tensor, outputs: Tensor) -> None:
        """Keep what a use contributes, or what that is made of if it takes less room."""
        if use.grows(inputs, outputs):
            self._later.append((use, inputs, outputs))
        else:
            self._keep(use.contributions(inputs, outputs, self._scratch))

    def _keep(self, contributions: Mapping[int, Contribution]) -> None:
        for position, contribution in contributions.items():
            self._found.setdefault(position, []).append(contribution)

    def contributions(self) -> dict[int, Contribution]:
        """What the examples contribute to each parameter that was used; to be asked for once.

        What was put off is done now, when the backward pass has given back its memory.
        """
        while self._later:
            use, inputs, outputs = self._later.pop()
            self._keep(use.contributions(inputs, outputs, self._scratch))
        found = {position: list(uses) for position, uses in self._found.items()}
        for position, contribution in linear_contributions(self._linear, self._scratch):
            found.setdefault(position, []).append(contribution)
        return {position: added(uses) for position, uses in found.items()}

    def _check_examples(self, inputs: Tensor) -> None:
        if inputs.dim() == 0 or len(inputs) != self.n_examples:
            msg = f"an input of shape {tuple(inputs.shape)} for {self.n_examples} examples"
            raise UnsupportedUseError(msg)

    def _check_rows(
        self, watch: Callable[..., None], args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> None:
        try:
            watch(self.n_examples, *args, **given)
        except MovedRowsError as error:
            if not any(one is error.rows for one in self._constants()):
                raise

    def _touches(self, values: Iterable[Any]) -> bool:
        for value in values:
            if isinstance(value, Tensor):
                if id(value) in self._positions:
                    return True
            elif isinstance(value, list | tuple) and self._touches(value):
                return True
        return False


class _Recorded(torch.autograd.Function):
    """Runs a use; its backward pass records it and gives the gradient of the input only."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, inputs: Tensor, use: Use, recorder: Recorder) -> Tensor:  # noqa: ANN401, ARG004 - the anchor makes autograd come back here
        ctx.use, ctx.recorder = use, recorder
        ctx.set_materialize_grads(False)
        # what no gradient needs may be changed in place afterwards
        ctx.save_for_backward(inputs if use.needs_inputs else inputs.new_empty(0))
        return use.forward(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (outputs,) = gradients
        if outputs is None:
            return None, None, None, None
        # detached: what is recorded must not keep the graph that holds the recorder
        inputs, outputs = ctx.saved_tensors[0].detach(), outputs.detach()
        ctx.recorder.record(ctx.use, inputs, outputs)
        wanted = ctx.needs_input_grad[1]
        return None, ctx.use.input_gradient(inputs, outputs) if wanted else None, None, None


def _check_precision(outputs: Tensor) -> None:
    """Gradients have the precision of the outputs, and half precision is not charged for."""
    if outputs.dtype not in _PRECISIONS:
        msg = f"a result in {outputs.dtype}"
        raise UnsupportedUseError(msg)


def _holds_tensor(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)
