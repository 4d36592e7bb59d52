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

from pufferslice.errors import TrainingError

_LIBRARIES: Final = frozenset({"aten", "prims", "profiler"})
"""Libraries of torch's own operators. The kernel of another operator is code that draws numbers and
keeps state as it likes, and it would run on one example after another."""

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
"""Operators that draw as many numbers as their shapes say; other random ones are refused."""

_JOINING: Final = frozenset(
    {
        "_is_all_true",
        "_is_any_true",
        "addbmm_",
        "index_fill",
        "index_fill_",
        "linalg_lstsq",
        "quantize_per_channel",
        "quantize_per_tensor",
        "quantize_per_tensor_dynamic",
    }
)
"""Operators that join examples under vmap: they answer for all examples together (`detect_anomaly`
asks so), give them all one scale, start from the pivots of the example before (`linalg_lstsq`), or
take an index outside an example for one of its neighbour (`index_fill`)."""

_UNSET: Final = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
"""Operators that leave memory unset."""

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
"""Operators that add unset memory to a tensor, or return quantised tensors of unset memory. Under
vmap they would resize memory that examples share, so there they are refused."""


_CTC: Final = {"_ctc_loss": 0, "_ctc_loss_backward": 1}
"""The place of the probabilities among the arguments; labels follow. Torch does not check labels,
and reads other memory for one that is out of range."""


_LEAST_SQUARES: Final = "linalg_lstsq"
_DRIVERS: Final = frozenset({"gels", "gelsd", "gelss"})
"""Drivers of least squares that read no unset memory. The default one, `gelsy`, takes its first
pivots from it, and its last digits follow from what was there before."""


class WholeBlockError(RuntimeError):
    """Code tried to read the values of all examples at once."""


@final
class SetMemory(dispatch_modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fills memory that operators leave unset with zeros."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _CTC:
            _check_labels(name, args)
        if name == _LEAST_SQUARES and (kwargs or {}).get("driver") not in _DRIVERS:
            raise TrainingError(
                "torch's linalg.lstsq reads pivots from unset memory with its default driver; give "
                "driver='gelsd'"
            )
        return (_lengthened if name in _LENGTHENING else _result)(func, args, kwargs or {})


@final
class BlockOperators(dispatch_modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sets memory, refuses operators that join examples, and remembers errors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._has_raised = False
        self._ends: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            if func not in _accepted:
                _check(func)
                self._check_arguments(func, args)
            return _result(func, args, kwargs or {})
        except Exception:
            self._has_raised = True
            raise

    def _check_arguments(self, operator: Any, args: Any) -> None:
        """Raise if an index outside an example could be one of its neighbour.

        Where each example has its own table, torch joins them and adds to each index where its
        table begins.
        """
        name = operator.overloadpacket.__name__
        if name in _CTC:
            _check_labels(name, args)
        elif operator is _ARANGE:
            self._ends.add(args[1])
        elif operator is _EMBEDDING and len(args[0]) in self._ends:
            raise WholeBlockError("torch's embedding joins the tables of a block")

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


_ARANGE: Final = torch.ops.aten.arange.start_step
_EMBEDDING: Final = torch.ops.aten.embedding.default
_unset: Final = frozenset(getattr(torch.ops.aten, name) for name in _UNSET)
_accepted: Final[set[Any]] = set()
"""Operators that were checked before and need no look at their arguments."""


def _check(operator: Any) -> None:  # torch's OpOverload
    """Raise if the operator could carry something from one example to another."""
    library, name = operator.namespace, operator.overloadpacket.__name__
    if library not in _LIBRARIES:
        raise WholeBlockError(f"the operator {library}::{name} is not torch's own")
    if torch.Tag.nondeterministic_seeded in operator.tags and name not in _DRAWS:
        raise WholeBlockError(f"{name} draws as many random numbers as its values need")
    if name in _JOINING | _LENGTHENING:
        raise WholeBlockError(f"torch's {name} joins the examples of a block")
    if operator not in (_ARANGE, _EMBEDDING) and name not in _CTC:
        _accepted.add(operator)


def _check_labels(name: str, args: Any) -> None:
    probabilities, labels = args[_CTC[name]], args[_CTC[name] + 1]
    if bool(((labels < 0) | (labels >= probabilities.shape[-1])).any()):
        raise IndexError("labels of ctc_loss must be from 0 to the number of classes less one")
