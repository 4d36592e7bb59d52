# SPDX-License-Identifier: Apache-2.0
"""Modes in which a model is tried out: refusing, without dropout, and watching what it keeps."""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pufferslice.torch.admission import check_autocast
from pufferslice.torch.operations import REFUSED


@final
class Refusals(TorchFunctionMode):
    """Raises when a function would mix examples or keep something of them; records nothing.

    Also where the model itself turns half precision on.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function gives
        check_autocast(self._device)
        if func in REFUSED:
            REFUSED[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@final
class Leftovers(TorchFunctionMode):
    """Remembers the tensors that a run meets, so that it shows which of them outlive it.

    A model that leaves something of a run behind (an attribute, a hook's list) for its own later
    layers or for the loss to read must not be run on two blocks at once. Numbers of Python cannot
    be followed: where a model reads tensors into such, it may leave these behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self._met: list[weakref.ref[Tensor]] = []
        self._read: list[weakref.ref[Tensor]] = []
        self._written: set[int] = set()
        """Places in memory."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function gives
        given = kwargs or {}
        result = func(*args, **given)
        name = getattr(func, "__name__", "")
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self._written.update(map(_place, _tensors(args[:1])))
        elif name in _READS:
            self._read.extend(map(weakref.ref, _tensors(args)))
        self._written.update(map(_place, _tensors([given.get("out")])))
        self._met.extend(map(weakref.ref, _tensors([args, *given.values(), result])))
        return result

    def outlive(self, earlier: "Leftovers") -> bool:
        """Whether something of the run is still there now that it is over."""
        if not self._is_left(earlier):
            return False
        # some may only wait to be collected
        gc.collect()
        return self._is_left(earlier)

    def constants(self, earlier: "Leftovers") -> tuple[Tensor, ...]:
        """What an earlier run met, too, and nobody wrote to: parameters, buffers, masks."""
        lasting = {id(tensor) for tensor in _present(earlier._met)}  # noqa: SLF001 - its own class
        found = {
            id(tensor): tensor
            for tensor in _present(self._met)
            if id(tensor) in lasting and _place(tensor) not in self._written
        }
        return tuple(found.values())

    def _is_left(self, earlier: "Leftovers") -> bool:
        constants = {id(tensor) for tensor in self.constants(earlier)}
        is_left = any(id(tensor) not in constants for tensor in _present(self._met))
        return is_left or any(id(one()) not in constants for one in self._read)


_READS: Final = frozenset(
    {
        "__array__",
        "__bool__",
        "__complex__",
        "__contains__",
        "__float__",
        "__format__",
        "__index__",
        "__int__",
        "allclose",
        "equal",
        "is_nonzero",
        "item",
        "numpy",
        "tolist",
    }
)
"""Functions that give what is in a tensor as something that is none."""


@final
class WithoutDropout(TorchFunctionMode):
    """Runs a model as if nothing were ever dropped, to compare two ways through it."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function gives
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        place = _DROPOUT_AT.get(func)
        if place is not None:
            # a packed sequence has one argument more
            place += func in _RECURRENT and not isinstance(args[3], bool)
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in given:
                given["dropout_p"] = 0.0
        return func(*args, **given)


_DROPOUTS: Final = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
}
_RECURRENT: Final = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_DROPOUT_AT: Final[dict[Any, int]] = {
    functional.multi_head_attention_forward: 10,
    functional.scaled_dot_product_attention: 4,
    **dict.fromkeys(_RECURRENT, 5),
}
"""Where these functions take the share that is dropped."""


def _place(tensor: Tensor) -> int:
    """Where the numbers of a tensor are; views of it are there, too."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # sparse ones have several places, and those inside torch.func have none
        return id(tensor)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _present(met: Iterable[weakref.ref[Tensor]]) -> Iterator[Tensor]:
    return (tensor for one in met if (tensor := one()) is not None)
