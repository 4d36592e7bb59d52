# SPDX-License-Identifier: Apache-2.0
"""The recurrences of `nn.LSTM`, `nn.GRU` and `nn.RNN`, for all examples of a block at once.

Torch has no vmap rule for its recurrent layers, and a Python loop under vmap is slow. Here one time
step of all examples is one set of plain operations, and the backward pass is written by hand. The
rows of these operations are the examples, and no operation joins two rows. Modes and tensor classes
of a model do not see them.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._mode_utils import no_dispatch

from pufferslice._core.arrays import Floats
from pufferslice._core.kernels import kernel

CELLS: Final = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""Gates of each kind of cell, by torch's own names."""

custom_rule: Final = threading.local()
"""Flag of each thread: `is_running` is true while a vmap rule of this module runs."""


def run_cells(
    kind: str, inputs: Tensor, hidden: Tensor, weight: Tensor, start: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and, of an LSTM, cells over time, each of shape (n_times, n_rows, width).

    `inputs` (n_times, n_rows, n_gates * width) holds what the inputs add to the gates, `hidden`, of
    the same shape, what is added to `state @ weight.T`; `start` and `cell` (n_rows, width) are the
    first states. The weight is a constant: its gradient follows from that of `hidden`.
    """
    with _running_custom_rule():
        outputs, cells, _ = _Recurrence.apply(kind, inputs, hidden, weight, start, cell)  # type: ignore[no-untyped-call]
    return outputs, cells


@contextlib.contextmanager
def _running_custom_rule() -> Iterator[None]:
    custom_rule.is_running = True
    try:
        # modes would be called for every time step
        with torch._C.DisableTorchFunction(), no_dispatch():  # noqa: SLF001 - as torch documents it
            yield
    finally:
        custom_rule.is_running = False


class _Recurrence(Function):
    @staticmethod
    def forward(
        kind: str, inputs: Tensor, hidden: Tensor, weight: Tensor, start: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_times, n_rows, n_gates = inputs.shape
        width = weight.shape[1]
        outputs = inputs.new_empty(n_times, n_rows, width)
        cells = inputs.new_empty(n_times if kind == "LSTM" else 0, n_rows, width)
        # a GRU needs what the state adds to its new value, too
        gates = inputs.new_empty(n_times, n_rows, n_gates + (width if kind == "GRU" else 0))
        state = start
        for t in range(n_times):
            added, gate = torch.addmm(hidden[t], state, weight.T), gates[t]
            if kind == "LSTM":
                torch.add(inputs[t], added, out=gate)
                gate[:, : 2 * width].sigmoid_()
                gate[:, 2 * width : 3 * width].tanh_()
                gate[:, 3 * width :].sigmoid_()
                i, f, g, o = gate.chunk(4, 1)
                torch.mul(f, cell, out=cells[t]).addcmul_(i, g)
                cell = cells[t]
                torch.tanh(cell, out=outputs[t]).mul_(o)
            elif kind == "GRU":
                both = gate[:, : 2 * width]
                torch.add(inputs[t][:, : 2 * width], added[:, : 2 * width], out=both).sigmoid_()
                gate[:, 3 * width :] = added[:, 2 * width :]
                r, z, new, _ = gate.chunk(4, 1)
                torch.addcmul(inputs[t][:, 2 * width :], r, added[:, 2 * width :], out=new).tanh_()
                torch.lerp(new, state, z, out=outputs[t])
            else:
                torch.add(inputs[t], added, out=outputs[t])
                outputs[t].tanh_() if kind == "RNN_TANH" else outputs[t].relu_()
            state = outputs[t]
        return outputs, cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # torch's
        ctx.kind = inputs[0]
        ctx.save_for_backward(*inputs[3:], *output)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, outputs: Tensor, cells: Tensor, _: Tensor) -> Any:  # torch's
        with _running_custom_rule():
            gradients = _Backward.apply(ctx.kind, outputs, cells, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        inputs, hidden, start, cell = gradients
        return None, inputs, hidden if ctx.kind == "GRU" else inputs, None, start, cell

    @staticmethod
    def vmap(info: Any, in_dims: Any, kind: str, *tensors: Tensor) -> Any:  # torch's
        n, dims = info.batch_size, in_dims[1:]
        inputs, hidden = (_joined(tensors[i], n, dims[i], 1) for i in (0, 1))
        start, cell = (_joined(tensors[i], n, dims[i], 0) for i in (3, 4))
        outputs = _Recurrence.apply(kind, inputs, hidden, tensors[2], start, cell)  # type: ignore[no-untyped-call]
        return tuple(_parted(output, n, 1) for output in outputs), (1, 1, 1)


class _Backward(Function):
    @staticmethod
    def forward(
        kind: str,
        of_outputs: Tensor,
        of_cells: Tensor,
        weight: Tensor,
        start: Tensor,
        cell: Tensor,
        outputs: Tensor,
        cells: Tensor,
        gates: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n_times, n_rows, width = outputs.shape
        gradients = gates.new_empty(n_times, n_rows, CELLS[kind] * width)
        # elsewhere it is the gradient of the inputs
        hidden = torch.empty_like(gradients) if kind == "GRU" else gradients[:0]
        of_state, of_cell = torch.zeros_like(start), torch.zeros_like(cell)
        for t in reversed(range(n_times)):
            before = outputs[t - 1] if t else start
            of_state = of_state + of_outputs[t]
            if kind == "LSTM":
                before_cell = cells[t - 1] if t else cell
                of_cell = of_cell + of_cells[t]
                if gradients.device.type == "cpu":
                    _lstm_gates(
                        *(array.numpy() for array in (gates[t], cells[t].tanh(), before_cell)),
                        *(array.numpy() for array in (of_state, of_cell, gradients[t])),
                    )
                else:
                    i, f, g, o = gates[t].chunk(4, 1)
                    squashed = cells[t].tanh()
                    of_cell += of_state * o * (1 - squashed * squashed)
                    parts = (
                        of_cell * g * i * (1 - i),
                        of_cell * before_cell * f * (1 - f),
                        of_cell * i * (1 - g * g),
                        of_state * squashed * o * (1 - o),
                    )
                    torch.cat(parts, 1, out=gradients[t])
                    of_cell = of_cell * f
                of_state = gradients[t] @ weight
            elif kind == "GRU":
                r, z, new, added = gates[t].chunk(4, 1)
                of_new = of_state * (1 - z) * (1 - new * new)
                of_reset = of_new * added * r * (1 - r)
                of_update = of_state * (before - new) * z * (1 - z)
                torch.cat((of_reset, of_update, of_new), 1, out=gradients[t])
                torch.cat((of_reset, of_update, of_new * r), 1, out=hidden[t])
                of_state = torch.addmm(of_state * z, hidden[t], weight)
            else:
                state = outputs[t]
                slope = 1 - state * state if kind == "RNN_TANH" else (state > 0).to(state.dtype)
                torch.mul(of_state, slope, out=gradients[t])
                of_state = gradients[t] @ weight
        return gradients, hidden.clone() if kind != "GRU" else hidden, of_state, of_cell

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # torch's
        """Keep nothing, because second derivatives are not supported."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, kind: str, *tensors: Tensor) -> Any:  # torch's
        n, places = info.batch_size, (1, 1, None, 0, 0, 1, 1, 1)
        joined = [
            tensor if place is None else _joined(tensor, n, dim, place)
            for tensor, dim, place in zip(tensors, in_dims[1:], places, strict=True)
        ]
        outputs = _Backward.apply(kind, *joined)  # type: ignore[no-untyped-call]
        dims = (1, 1, 0, 0)
        pairs = zip(outputs, dims, strict=True)
        return tuple(_parted(tensor, n, dim) for tensor, dim in pairs), dims


@kernel
def _lstm_gates(
    gates: Floats,
    squashed: Floats,
    before: Floats,
    of_state: Floats,
    of_cell: Floats,
    gradients: Floats,
) -> None:
    """Gradients of the gates of an LSTM at one time; `of_cell` becomes that of the cell before.

    One pass over memory instead of some twenty operations.
    """
    n_rows, width = squashed.shape
    for row in range(n_rows):
        for j in range(width):
            i, f = gates[row, j], gates[row, width + j]
            g, o = gates[row, 2 * width + j], gates[row, 3 * width + j]
            s, state = squashed[row, j], of_state[row, j]
            cell = of_cell[row, j] + state * o * (1 - s * s)
            gradients[row, j] = cell * g * i * (1 - i)
            gradients[row, width + j] = cell * before[row, j] * f * (1 - f)
            gradients[row, 2 * width + j] = cell * i * (1 - g * g)
            gradients[row, 3 * width + j] = state * s * o * (1 - o)
            of_cell[row, j] = cell * f


def _joined(values: Tensor, n_examples: int, dim: int | None, place: int) -> Tensor:
    """Turn examples into further rows, put before the rows, which lie at `place`."""
    if dim is None:
        values = values.unsqueeze(place)
        shape = (*values.shape[:place], n_examples, *values.shape[place + 1 :])
        return values.expand(shape).flatten(place, place + 1)
    return values.movedim(dim, place).flatten(place, place + 1)


def _parted(values: Tensor, n_examples: int, place: int) -> Tensor:
    """Put the examples back in a dimension of their own."""
    before, (n_rows, *after) = values.shape[:place], values.shape[place:]
    return values.reshape(*before, n_examples, n_rows // n_examples, *after)
