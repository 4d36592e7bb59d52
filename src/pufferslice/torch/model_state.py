# SPDX-License-Identifier: Apache-2.0
"""Buffers, parameters and modes of a model: whether running it, or the user, has changed them."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pufferslice.torch.objective import Objective


class Mark(NamedTuple):
    """A buffer or parameter as it was."""

    value: Tensor
    version: int
    """How often it was written to, as far as torch saw that."""
    copy: Tensor | None
    """What was in a buffer: torch does not see what is written through `.data` or numpy."""


Marks = dict[str, Mark]
"""Buffers and parameters by their names."""


class Mode(NamedTuple):
    """What a module does may depend on this, and the user may change it between steps."""

    is_training: bool
    has_gradient_hooks: bool
    """Whether functions of the user's see, and may change, gradients of all examples at once."""


def named_values(objective: Objective) -> Iterator[tuple[str, Tensor]]:
    """Buffers and parameters of the model, and buffers of a loss that is a module."""
    yield from objective.model.named_buffers()
    if isinstance(objective.loss_fn, nn.Module):
        for name, value in objective.loss_fn.named_buffers():
            yield f"loss_fn.{name}", value
    yield from objective.model.named_parameters()


def marks_of(objective: Objective) -> Marks:
    """Buffers and parameters as they are now, for `written` and `changed`."""
    return {
        name: Mark(
            value,
            _version(value),
            None if isinstance(value, nn.Parameter) else value.detach().clone(),
        )
        for name, value in named_values(objective)
    }


def written(before: Marks, objective: Objective) -> set[str]:
    """What was written to, replaced or added since, be its values the same or not."""
    return {
        name
        for name, value in named_values(objective)
        if name not in before
        or before[name].value is not value
        or before[name].version != _version(value)
    }


def changed(before: Marks, objective: Objective) -> set[str]:
    """Buffers that have other values since, or were added."""
    return {
        name
        for name, value in named_values(objective)
        if not isinstance(value, nn.Parameter)
        and not (name in before and is_same(value, before[name].copy))
    }


def is_same(value: Tensor, other: Tensor | None) -> bool:
    """Whether all values are the same, NaN too."""
    if other is None or value.layout != other.layout:
        return False
    pairs = zip(_parts(value), _parts(other), strict=True)
    return all(
        torch.equal(one, another) or torch.equal(one.nan_to_num(), another.nan_to_num())
        for one, another in pairs
    )


def _parts(value: Tensor) -> tuple[Tensor, ...]:
    """Ordinary tensors that have all of a value; sparse ones are not written out."""
    if value.layout is torch.sparse_coo:
        whole = value.coalesce()
        return whole.indices(), whole.values()
    return (value if value.layout is torch.strided else value.to_dense(),)


def modes_of(objective: Objective) -> tuple[Mode, ...]:
    """The modes of all modules of a model, and of a loss that is a module."""
    return tuple(
        Mode(module.training, bool(module._backward_hooks or module._backward_pre_hooks))  # noqa: SLF001 - no public name
        for root in (objective.model, objective.loss_fn)
        if isinstance(root, nn.Module)
        for module in root.modules()
    )


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version  # noqa: SLF001 - no public name
