# SPDX-License-Identifier: Apache-2.0
"""Functions that pick, move or take apart rows: after them a row may not be of its example.

A model may sort the examples of a block by what is in them and put them back afterwards: no example
reaches the loss of another, and still a row in between is of whichever example came there. Clipped
by such rows, one example would change the weights of others. So what moves rows is not recorded.

The examples lie along the first dimension that has as many entries as there are examples; tokens of
all examples in one row of rows lie along dimension 0.
"""

from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pufferslice.torch.operations import UnsupportedUseError


@final
class MovedRowsError(UnsupportedUseError):
    """Rows, perhaps of examples, are picked, moved or taken apart."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__("examples that are picked by an index, moved or taken apart")
        self.rows: Final = rows


Watch = Callable[..., None]
"""Takes the number of examples and what the function is given."""


def _item(n_examples: int, rows: Tensor, index: Any) -> None:  # noqa: ANN401 - all that torch takes
    """`rows[index]`; dimensions without examples may be picked from."""
    for first, last, one in _by_dimension(rows, index if isinstance(index, tuple) else (index,)):
        dim = _examples_along(n_examples, rows)
        if dim is not None and first <= dim < last:
            is_kept = _is_whole(one, n_examples) or _is_in_order(one, n_examples)
        else:
            is_kept = dim is not None or first > 0 or not _picks(one)
            is_kept = is_kept or not _has_tokens(n_examples, rows) or _is_in_order(one, len(rows))
        if not is_kept:
            _refuse(rows)


def _by_dimension(rows: Tensor, indices: tuple[Any, ...]) -> Iterator[tuple[int, int, Any]]:
    """Each index with the dimensions that it is for, from the first to before the last."""
    lengths = [_n_dimensions(one) for one in indices]
    here = 0
    for one, length in zip(indices, lengths, strict=True):
        if isinstance(one, EllipsisType):
            here = rows.dim() - sum(lengths) + here
        elif length:
            yield here, here + length, one
            here += length


def _n_dimensions(index: Any) -> int:  # noqa: ANN401 - as above
    if index is None or isinstance(index, EllipsisType | bool):
        return 0
    is_mask = isinstance(index, Tensor | np.ndarray) and index.dtype in {torch.bool, np.dtype(bool)}
    return index.ndim if is_mask else 1


def _is_whole(index: Any, size: int) -> bool:  # noqa: ANN401 - as above
    return isinstance(index, slice) and index.indices(size) == (0, size, 1)


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
    _check_dims(n_examples, input, dim)
    if input.dim() and dim in {0, -input.dim()} and _has_tokens(n_examples, input):
        _refuse(input)


def _taken(
    n_examples: int,
    input: Tensor,  # noqa: A002 - torch's own name
    indices: Any,  # noqa: ANN401, ARG001 - as above
    dim: int | None = None,
    **named: Any,  # noqa: ANN401, ARG001 - as above
) -> None:
    """Functions of a tensor and an index into all of it, or along a dimension that comes later."""
    if dim is None:
        _check_dims(n_examples, input)
    else:
        _along(n_examples, input, dim)


def _put(n_examples: int, input: Tensor, indices: Sequence[Any], *_: Any, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """`rows[indices] = values` as a function."""
    _item(n_examples, input, tuple(indices))


def _looked_up(n_examples: int, input: Tensor, weight: Tensor, *_: Any, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """An embedding whose table is made of examples."""
    _item(n_examples, weight, input)


def _selected(n_examples: int, input: Tensor, dim: int, *_: Any, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """Functions of a tensor and a dimension along which it is taken apart."""
    _check_dims(n_examples, input, dim)


def _split(n_examples: int, input: Tensor, *sizes: Any, **named: Any) -> None:  # noqa: A002, ANN401 - as above
    """Functions of a tensor, sizes and a dimension along which it is taken apart."""
    _check_dims(n_examples, input, named.get("dim", sizes[1] if len(sizes) > 1 else 0))


def _unbound(n_examples: int, input: Tensor, dim: int = 0) -> None:  # noqa: A002 - as above
    """All entries along a dimension by themselves."""
    _check_dims(n_examples, input, dim)


def _turned(n_examples: int, input: Tensor, *dims: Any, **named: Any) -> None:  # noqa: A002, ANN401 - as above
    """Flipped along dimensions."""
    given = named.get("dims", dims[0] if dims and isinstance(dims[0], list | tuple) else dims)
    _check_dims(n_examples, input, *([given] if isinstance(given, int) else given))


def _rolled(n_examples: int, input: Tensor, shifts: Any, dims: Any = ()) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """Rolled along dimensions, or as a whole."""
    _turned(n_examples, input, dims=dims)


def _sorted(n_examples: int, input: Tensor, *given: Any, **named: Any) -> None:  # noqa: A002, ANN401 - as above
    """Sorted along a dimension, by default the last."""
    _check_dims(n_examples, input, named.get("dim", given[0] if given else -1))


def _multiplied(n_examples: int, input: Tensor, other: Tensor, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """A matrix from the left, which may put the rows of another in any order."""
    _check_dims(n_examples, other, max(0, other.dim() - 2))


def _masked(n_examples: int, input: Tensor, *_: Any, **named: Any) -> None:  # noqa: A002, ANN401, ARG001 - as above
    """What a mask keeps, put in a row."""
    _check_dims(n_examples, input)


def _check_dims(n_examples: int, rows: Tensor, *dims: int) -> None:
    """None of the dimensions counts the examples; without any, all are meant."""
    dim = _examples_along(n_examples, rows)
    if dim is not None and (not dims or dim in {one % rows.dim() for one in dims}):
        _refuse(rows)


def _examples_along(n_examples: int, rows: Tensor) -> int | None:
    return next((dim for dim, size in enumerate(rows.shape) if size == n_examples), None)


def _has_tokens(n_examples: int, rows: Tensor) -> bool:
    """Whether dimension 0 may count the tokens of all examples."""
    return bool(rows.dim() and len(rows)) and len(rows) % n_examples == 0


def _picks(index: Any) -> bool:  # noqa: ANN401 - as above
    return isinstance(index, list | np.ndarray) or (isinstance(index, Tensor) and index.dim() > 0)


def _is_in_order(index: Any, size: int) -> bool:  # noqa: ANN401 - as above
    """Whether each row is picked once, in its turn: `rows[arange(n), column_of_each]`."""
    if not _picks(index):
        return False
    given = torch.as_tensor(index)
    in_order = torch.arange(size, device=given.device)
    return given.dtype == torch.int64 and torch.equal(given.reshape(-1), in_order)


def _refuse(rows: Tensor) -> None:
    if not isinstance(rows, nn.Parameter):
        raise MovedRowsError(rows)


_NAMES_ALONG: Final = (
    "gather",
    "index_add",
    "index_copy",
    "index_reduce",
    "index_select",
    "scatter",
    "scatter_add",
    "scatter_reduce",
)
_IN_PLACE: Final = (
    "index_add_",
    "index_copy_",
    "index_reduce_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
)
_NAMES_SPLIT: Final = ("chunk", "repeat_interleave", "split", "split_with_sizes", "tensor_split")
_NAMES_OF_ALL: Final = ("fliplr", "masked_scatter", "masked_scatter_", "masked_select", "rot90")


def _functions(*names: str) -> list[Any]:
    """The function and the method of each name, where there are both."""
    homes = [(home, name) for home in (torch, Tensor) for name in names]
    return [getattr(home, name) for home, name in homes if hasattr(home, name)]


PICKS: Final[dict[Any, Watch]] = {
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
    Tensor.__iter__: _unbound,
    functional.embedding: _looked_up,
    **dict.fromkeys(_functions("index_put", "index_put_"), _put),
    **dict.fromkeys(_functions("take", "take_along_dim"), _taken),
    **dict.fromkeys(_functions(*_NAMES_ALONG, *_IN_PLACE), _along),
    **dict.fromkeys(_functions("select", "narrow"), _selected),
    **dict.fromkeys(_functions(*_NAMES_SPLIT), _split),
    **dict.fromkeys(_functions("unbind", "flipud", "msort"), _unbound),
    **dict.fromkeys(_functions("flip"), _turned),
    **dict.fromkeys(_functions("roll"), _rolled),
    **dict.fromkeys(_functions("sort"), _sorted),
    **dict.fromkeys(_functions("matmul", "mm", "__matmul__"), _multiplied),
    **dict.fromkeys(_functions(*_NAMES_OF_ALL), _masked),
}
"""What is looked at before a torch function is run: whether it leaves every row in its place."""
