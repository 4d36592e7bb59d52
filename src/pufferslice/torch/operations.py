# SPDX-License-Identifier: Apache-2.0
"""The torch functions that are recorded when they take a trained parameter, and refused ones."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pufferslice.errors import ArgumentError
from pufferslice.torch.convolution import ConvolutionUse
from pufferslice.torch.linear import LinearUse
from pufferslice.torch.uses import AffineUse, EmbeddingUse, Use, tuple_of


class UnsupportedUseError(Exception):
    """A trained parameter went into a function whose per-example gradient is not known here."""


class Records(Protocol):
    """What an operation asks of the recorder."""

    def position(self, tensor: Tensor | None) -> int | None:
        """Where a trained parameter lies in the layout; None for anything else."""
        ...

    def run(self, use: Use, inputs: Tensor) -> Tensor:
        """The output of a use, recorded when its gradient comes back."""
        ...

    def run_linear(self, use: LinearUse, inputs: Tensor) -> Tensor:
        """The same for a linear map."""
        ...


def recorded_linear(
    recorder: Records, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """A recorded linear map, or a plain one if nothing of it is trained."""
    positions = (recorder.position(weight), recorder.position(bias))
    if positions == (None, None):
        return functional.linear(inputs, weight, bias)
    if positions[1] is not None and bias is not None and bias.numel() != len(weight):
        msg = "a bias that is broadcast along the outputs of a linear map"
        raise UnsupportedUseError(msg)
    use = LinearUse(constant(weight), constant(bias), positions)
    return recorder.run_linear(use, inputs)


def constant(tensor: Tensor | None) -> Any:  # noqa: ANN401 - None stays None
    """A parameter as a constant of its values."""
    return None if tensor is None else tensor.detach()


def _linear(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    weight: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    return recorded_linear(recorder, input, weight, bias)


def _convolution(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,  # noqa: ANN401 - a number or one per dimension
    padding: Any = 0,  # noqa: ANN401 - as above, or a word
    dilation: Any = 1,  # noqa: ANN401 - as above
    groups: int = 1,
) -> Tensor:
    n_dims = weight.dim() - 2
    if input.dim() != n_dims + 2:
        msg = "a convolution of a single example without its own dimension"
        raise UnsupportedUseError(msg)
    dilation = tuple_of(dilation, n_dims)
    if isinstance(padding, str):
        input, padding = _padded(input, weight, padding, dilation)  # noqa: A001 - as above
    use = ConvolutionUse(
        weight=constant(weight),
        bias=constant(bias),
        positions=(recorder.position(weight), recorder.position(bias)),
        stride=tuple_of(stride, n_dims),
        padding=tuple_of(padding, n_dims),
        dilation=dilation,
        groups=groups,
    )
    return recorder.run(use, input)


def _padded(
    inputs: Tensor, weight: Tensor, padding: str, dilation: tuple[int, ...]
) -> tuple[Tensor, int]:
    """Padding given by a word, done beforehand: the left side gets the smaller half."""
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        sides = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
        inputs = functional.pad(inputs, sides)
    return inputs, 0


def _embedding(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,  # noqa: ARG001 - refused
    norm_type: float = 2.0,  # noqa: ARG001 - only for max_norm
    scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - torch's own signature
    sparse: bool = False,  # noqa: ARG001, FBT001, FBT002 - the sum is dense
) -> Tensor:
    position = recorder.position(weight)
    if position is None or scale_grad_by_freq:
        msg = "an embedding whose gradient is scaled by frequency"
        raise UnsupportedUseError(msg)
    row = None if padding_idx is None else padding_idx % len(weight)
    use = EmbeddingUse(weight=constant(weight), position=position, padding_row=row)
    return recorder.run(use, input)


def _layer_norm(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.layer_norm(input, normalized_shape, None, None, eps)
    return _affine(recorder, normal, weight, bias, tuple(normalized_shape))


def _rms_norm(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    normalized_shape: list[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    normal = functional.rms_norm(input, normalized_shape, None, eps)
    return _affine(recorder, normal, weight, None, tuple(normalized_shape))


def _group_norm(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.group_norm(input, num_groups, None, None, eps)
    return _affine(recorder, normal, weight, bias, _per_channel(input))


def _instance_norm(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,  # noqa: FBT001, FBT002 - torch's own signature
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.instance_norm(
        input, running_mean, running_var, None, None, use_input_stats, momentum, eps
    )
    return _affine(recorder, normal, weight, bias, _per_channel(input))


def _batch_norm(
    recorder: Records,
    input: Tensor,  # noqa: A002 - torch's own name
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,  # noqa: FBT001, FBT002 - torch's own signature
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    normal = functional.batch_norm(
        input, running_mean, running_var, None, None, training, momentum, eps
    )
    return _affine(recorder, normal, weight, bias, _per_channel(input))


def _per_channel(inputs: Tensor) -> tuple[int, ...]:
    return (inputs.shape[1],) + (1,) * (inputs.dim() - 2)


def _affine(
    recorder: Records,
    inputs: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
) -> Tensor:
    use = AffineUse(
        weight=constant(weight),
        bias=constant(bias),
        positions=(recorder.position(weight), recorder.position(bias)),
        shape=shape,
    )
    return recorder.run(use, inputs)


def _sum(recorder: Records, first: Any, second: Any, *, alpha: float = 1) -> Tensor:  # noqa: ANN401
    inputs, parameter = _one_trained(recorder, first, second)
    if alpha != 1:
        msg = "a sum with a factor"
        raise UnsupportedUseError(msg)
    return _affine(recorder, inputs, None, parameter, _broadcast_shape(inputs, parameter))


def _product(recorder: Records, first: Any, second: Any) -> Tensor:  # noqa: ANN401
    inputs, parameter = _one_trained(recorder, first, second)
    return _affine(recorder, inputs, parameter, None, _broadcast_shape(inputs, parameter))


def _one_trained(recorder: Records, first: Any, second: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """The examples and the one trained parameter that meets them."""
    if isinstance(first, Tensor) and recorder.position(first) is not None:
        first, second = second, first
    if not isinstance(first, Tensor) or recorder.position(first) is not None:
        msg = "parameters with each other or with a number"
        raise UnsupportedUseError(msg)
    return first, second


def _broadcast_shape(inputs: Tensor, parameter: Tensor) -> tuple[int, ...]:
    """The shape of a parameter against one example; it must not reach across the examples."""
    shape = tuple(parameter.shape)
    if len(shape) == inputs.dim() and shape[0] == 1:
        shape = shape[1:]
    fits = len(shape) < inputs.dim() and all(
        size in {1, there}
        for size, there in zip(reversed(shape), reversed(inputs.shape), strict=False)
    )
    if not fits:
        msg = "a parameter that is not broadcast along the examples"
        raise UnsupportedUseError(msg)
    return shape


def _refuse_batch_norm(
    input: Tensor,  # noqa: A002, ARG001 - torch's own name
    running_mean: Tensor | None,
    running_var: Tensor | None,  # noqa: ARG001 - as above
    weight: Tensor | None = None,  # noqa: ARG001 - as above
    bias: Tensor | None = None,  # noqa: ARG001 - as above
    training: bool = False,  # noqa: FBT001, FBT002 - torch's own signature
    momentum: float = 0.1,  # noqa: ARG001 - as above
    eps: float = 1e-5,  # noqa: ARG001 - as above
) -> None:
    if training or running_mean is None:
        msg = (
            "batch normalisation in training mode mixes the examples of a batch, so no record's "
            "influence can be bounded; use nn.GroupNorm (pufferslice.torch.replace_batchnorm)"
        )
        raise ArgumentError(msg)


def _refuse_running_statistics(
    input: Tensor,  # noqa: A002, ARG001 - torch's own name
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,  # noqa: ARG001 - as above
    weight: Tensor | None = None,  # noqa: ARG001 - as above
    bias: Tensor | None = None,  # noqa: ARG001 - as above
    use_input_stats: bool = True,  # noqa: FBT001, FBT002 - torch's own signature
    momentum: float = 0.1,  # noqa: ARG001 - as above
    eps: float = 1e-5,  # noqa: ARG001 - as above
) -> None:
    if use_input_stats and running_mean is not None:
        msg = (
            "instance normalisation that tracks running statistics keeps sums of the records "
            "outside the noise; use track_running_stats=False"
        )
        raise ArgumentError(msg)


def _refuse_renormalising(
    input: Tensor,  # noqa: A002, ARG001 - torch's own name
    *rest: Any,  # noqa: ANN401 - the functions differ in the order of what follows
    max_norm: float | None = None,
    **named: Any,  # noqa: ANN401, ARG001 - as above
) -> None:
    given = rest[2] if len(rest) > 2 else max_norm
    if given is not None:
        msg = (
            "an embedding with max_norm changes its table by the records it sees, outside the "
            "noise; leave max_norm out"
        )
        raise ArgumentError(msg)


REFUSED: Final[dict[Any, Callable[..., None]]] = {
    functional.embedding: _refuse_renormalising,
    functional.embedding_bag: _refuse_renormalising,
    functional.batch_norm: _refuse_batch_norm,
    functional.instance_norm: _refuse_running_statistics,
}
"""Functions that raise when they would mix examples or keep records, trained or not."""

HANDLERS: Final[dict[Any, Callable[..., Any]]] = {
    functional.linear: _linear,
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    functional.embedding: _embedding,
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
    functional.batch_norm: _batch_norm,
    torch.add: _sum,
    torch.mul: _product,
    Tensor.add: _sum,
    Tensor.mul: _product,
}
"""What is done instead of a torch function that takes a trained parameter."""
