# SPDX-License-Identifier: Apache-2.0
"""Functions that pick rows by an index: after them a row may no longer be of its example.

A model may sort the examples of a block by what is in them and put them back afterwards: no example
reaches the loss of another, and still a row in between is of whichever example came there. Clipped
by such rows, one example would change the weights of others. So what picks rows is not recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from pufferslice.torch.operations import UnsupportedUseError

Watch = Callable[..., None]
"""Takes the number of examples and what the function is given."""


def _item(n_examples: int, rows: Tensor, index: Any) -> None:  # noqa: ANN401 - all that torch takes
    """`rows[index]`; every other dimension may be picked from."""
    indices = index if isinstance(index, tuple) else (index,)
    first = next((one for one in indices if one is not None), None)
    if _picks(first) and rows.dim() and len(rows) == n_examples and not _is_in_order(first, rows):
        _refuse()


def _set_item(n_examples: int, rows: Tensor, index: Any, values: Any) -> None:  # noqa: ANN401 - as above
    """`rows[index] = values`; one number for all that is picked has no order."""
    if isinstance(values, Tensor) and values.dim():
        _item(n_examples, rows, index)


def _along(
    n_examples: int,
    input: Tensor,  # noqa: A002 - torch's own name
    dim: int,
    *_: Any,  # noqa: ANN401 - as above
    **named: Any,  # noqa: ANN401, ARG001 - as above
) -> None:
    """Functions of a tensor, a dimension and an index along it."""
    if input.dim() and dim in {0, -input.dim()} and len(input) == n_examples:
        _refuse()


def _taken(
    n_examples: int,
    input: Tensor,  # noqa: A002 - torch's own name
    indices: Any,  # noqa: ANN401, ARG001 - as above
    dim: int | None = None,
    **named: Any,  # noqa: ANN401, ARG001 - as above
) -> None:
    """Functions of a tensor and an index into all of it, or along a dimension that comes later."""
    _along(n_examples, input, 0 if dim is None else dim)


def _put(n_examples: int, input: Tensor, indices: Sequence[Any], *_: Any, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """`rows[indices] = values` as a function."""
    _item(n_examples, input, tuple(indices))


def _picks(index: Any) -> bool:  # noqa: ANN401 - as above
    return isinstance(index, list | np.ndarray) or (isinstance(index, Tensor) and index.dim() > 0)


def _is_in_order(index: Any, rows: Tensor) -> bool:  # noqa: ANN401 - as above
    """Whether each row is picked once, in its turn: `rows[arange(n), column_of_each]`."""
    given = torch.as_tensor(index, device=rows.device)
    in_order = torch.arange(len(rows), device=rows.device)
    return given.dtype == torch.int64 and torch.equal(given.reshape(-1), in_order)


def _refuse() -> None:
    msg = "examples that are picked by an index"
    raise UnsupportedUseError(msg)


_NAMES_ALONG: Final = (
    "gather",
    "index_add",
    "index_copy",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
)
_IN_PLACE: Final = ("index_add_", "index_copy_", "scatter_", "scatter_add_", "scatter_reduce_")


def _functions(names: Sequence[str]) -> list[Any]:
    """The function and the method of each name."""
    return [getattr(home, name) for home in (torch, Tensor) for name in names]


PICKS: Final[dict[Any, Watch]] = {
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
    Tensor.index_put_: _put,
    **dict.fromkeys(_functions(("index_put",)), _put),
    **dict.fromkeys(_functions(("take", "take_along_dim")), _taken),
    **dict.fromkeys(_functions(_NAMES_ALONG), _along),
    **dict.fromkeys((getattr(Tensor, name) for name in _IN_PLACE), _along),
}
"""What is looked at before a torch function is run: whether it leaves every row in its place."""
