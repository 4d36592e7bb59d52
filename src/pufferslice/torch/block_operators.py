# SPDX-License-Identifier: Apache-2.0
"""The operators that run on examples, and what they could carry from one example to another.

Memory that an operator leaves unset holds what was there before, for example activations of another
example; here it holds zeros. Below `torch.func.vmap` an operator has the values of all examples of
a block. That is harmless for most of them, but not if the number of draws depends on values (the
next example would get other random numbers), if torch moves values across examples, and if one
example causes an error: code that catches it would take another branch for all of them.
"""

from typing import Any, Final, final

import torch
from torch.utils import _python_dispatch as dispatch_modes

_LIBRARIES: Final = frozenset({"aten", "prims", "profiler"})
"""Torch's own. The kernel of another operator is code that draws numbers and keeps state as it
likes, and it would run on one example after another."""

_DRAWS: Final = frozenset(
    {
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "uniform_",
    }
)
"""Draw as many numbers as their shapes say; other random operators are refused."""

_JOINING: Final = frozenset(
    {
        "_is_all_true",
        "_is_any_true",
        "addbmm_",
        "quantize_per_channel",
        "quantize_per_tensor",
        "quantize_per_tensor_dynamic",
    }
)
"""Under vmap, torch's versions answer for all examples together (`detect_anomaly` asks so), or give
them all one scale."""

_UNSET: Final = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Leave memory unset."""

_LENGTHENING: Final = frozenset(
    {
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
        "empty_quantized",
        "resize",
        "resize_",
        "resize_as_",
        "set_",
    }
)
"""Add memory to a tensor, unset, or return quantised tensors of unset memory. Under vmap they would
resize memory that examples share, so there they are refused."""


class WholeBlockError(RuntimeError):
    """Code tried to read the values of all examples at once."""


@final
class SetMemory(dispatch_modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills memory that operators leave unset with zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_lengthening = func.overloadpacket.__name__ in _LENGTHENING
        return (_lengthened if is_lengthening else _result)(func, args, kwargs or {})


@final
class BlockOperators(dispatch_modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sets memory, refuses operators that join examples, and remembers errors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._has_raised = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if func not in _accepted:
                _check(func)
            return _result(func, args, kwargs or {})
        except Exception:
            self._has_raised = True
            raise

    def check(self) -> None:
        """Raise if an operator raised: whatever called it has caught the error."""
        if self._has_raised:
            raise WholeBlockError(
                "the model or loss_fn catches an error of torch, which one example causes and all "
                "examples of a block see; use functions that return a flag, such as "
                "torch.linalg.cholesky_ex, and torch.where"
            )


def _result(operator: Any, args: Any, kwargs: Any) -> Any:  # as torch has them
    values = operator(*args, **kwargs)
    if operator.overloadpacket in _unset and not values.is_meta:
        values.zero_()
    return values


def _lengthened(operator: Any, args: Any, kwargs: Any) -> Any:  # as torch has them
    """The result of an operator, with zeros in the memory that it did not get in `args`."""
    storages = [x.untyped_storage() if isinstance(x, torch.Tensor) else x for x in args]
    n_set = {s._cdata: s.nbytes() for s in storages if isinstance(s, torch.UntypedStorage)}  # noqa: SLF001 - no public name
    values = operator(*args, **kwargs)
    storage = values.untyped_storage()
    start = n_set.get(storage._cdata, 0)  # noqa: SLF001 - as above
    if operator.overloadpacket is torch.ops.aten.resize:  # of a copy
        start = args[0].nbytes
    torch.empty(0, dtype=torch.uint8, device=values.device).set_(storage)[start:].zero_()
    return values


_unset: Final = frozenset(getattr(torch.ops.aten, name) for name in _UNSET)
_accepted: Final[set[Any]] = set()
"""Operators that were checked before."""


def _check(operator: Any) -> None:  # torch's OpOverload
    """Raise if the operator could carry something from one example to another."""
    library, name = operator.namespace, operator.overloadpacket.__name__
    if library not in _LIBRARIES:
        raise WholeBlockError(f"the operator {library}::{name} is not torch's own")
    if torch.Tag.nondeterministic_seeded in operator.tags and name not in _DRAWS:
        raise WholeBlockError(f"{name} draws as many random numbers as its values need")
    if name in _JOINING | _LENGTHENING:
        raise WholeBlockError(f"torch's {name} joins the examples of a block")
    _accepted.add(operator)
