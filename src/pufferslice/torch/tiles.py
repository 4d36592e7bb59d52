# SPDX-License-Identifier: Apache-2.0
"""Pieces of matrix products as code for the vectors of the machine, to be used in kernels.

The sums of a piece stay in registers while both matrices are read. What numba makes of a loop in
Python keeps them in memory, so the code is built instruction by instruction.
"""

from collections.abc import Callable
from typing import Any, Final

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def n_lanes() -> int:
    """How many numbers of single precision the processor takes at once."""
    try:
        features = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # a processor that LLVM knows nothing of; numba goes on without, too
        return 8
    return 16 if features.get("avx512f") else 8


LANES: Final = n_lanes()
"""Numbers of single precision in one vector."""
ROWS: Final = 4
"""Rows of the left matrix that are worked on at once."""
VECTORS: Final = 4 if LANES == 16 else 3
"""Vectors of each of these rows, as many as there are registers for."""

Value = Any
"""llvmlite has no types."""

_ALIGN: Final = 4
_INTEGER: Final = ir.IntType(64)
_VECTOR: Final = ir.VectorType(ir.FloatType(), LANES)


def tile(n_rows: int, n_vectors: int) -> Callable[..., None]:
    """A function that makes `n_rows` rows of `n_vectors` vectors of one product.

    Its arguments are three flat arrays of float32 (left, right, product); where the tile begins in
    each; the strides of the left matrix (row, y, x), of the right one (y, x), whose columns are
    neighbours, and of the product (row); how many y and x are summed over, and whether the sum is
    added to what is there (not 0) or takes its place (0). Nothing checks that all lies in the
    arrays.
    """

    @intrinsic
    def made(_typing: Value, arrays: Value, starts: Value, strides: Value, summed: Value) -> Value:
        def generate(context: Value, builder: Value, signature: Value, given: Value) -> Value:
            parts = [cgutils.unpack_tuple(builder, one) for one in given]  # type: ignore[no-untyped-call]
            pointers = [
                builder.gep(context.make_array(kind)(context, builder, array).data, [start])
                for kind, array, start in zip(signature.args[0], parts[0], parts[1], strict=True)
            ]
            sums = [[_zeros(builder) for _ in range(n_vectors)] for _ in range(n_rows)]
            _add_up(builder, (pointers[0], pointers[1]), parts[2][:5], parts[3][:2], sums)
            _write(builder, pointers[2], parts[2][5], sums, parts[3][2])
            return context.get_dummy_value()

        return types.void(arrays, starts, strides, summed), generate

    found: Callable[..., None] = made
    return found


def _add_up(
    builder: Value,
    pointers: tuple[Value, Value],
    strides: list[Value],
    counts: list[Value],
    sums: list[list[Value]],
) -> None:
    """Loop over y and x; add a number of each left row, times the right row, to the sums."""
    left_row, left_y, left_x, right_y, right_x = strides
    with cgutils.for_range(builder, counts[0]) as y, cgutils.for_range(builder, counts[1]) as x:
        left = _moved(builder, pointers[0], (y.index, left_y), (x.index, left_x))
        right = _moved(builder, pointers[1], (y.index, right_y), (x.index, right_x))
        vectors = [
            builder.load(place, align=_ALIGN) for place in _places(builder, right, len(sums[0]))
        ]
        for row, line in enumerate(sums):
            value = builder.load(_moved(builder, left, (_INTEGER(row), left_row)))
            factor = _everywhere(builder, value)
            for vector, total in zip(vectors, line, strict=True):
                more = _multiplied_and_added(builder, factor, vector, builder.load(total))
                builder.store(more, total)


def _write(
    builder: Value, pointer: Value, stride: Value, sums: list[list[Value]], adds: Value
) -> None:
    places = [
        place
        for row, line in enumerate(sums)
        for place in _places(builder, _moved(builder, pointer, (_INTEGER(row), stride)), len(line))
    ]
    totals = [total for line in sums for total in line]
    with builder.if_then(builder.icmp_signed("!=", adds, _INTEGER(0))):
        for place, total in zip(places, totals, strict=True):
            before = builder.load(place, align=_ALIGN)
            builder.store(builder.fadd(before, builder.load(total)), total)
    for place, total in zip(places, totals, strict=True):
        builder.store(builder.load(total), place, align=_ALIGN)


def _zeros(builder: Value) -> Value:
    """A variable of vectors; it becomes a register, since its address goes nowhere."""
    place = cgutils.alloca_once(builder, _VECTOR)  # type: ignore[no-untyped-call]
    builder.store(_VECTOR([0.0] * LANES), place)
    return place


def _moved(builder: Value, pointer: Value, *steps: tuple[Value, Value]) -> Value:
    for index, stride in steps:
        pointer = builder.gep(pointer, [builder.mul(index, stride)])
    return pointer


def _places(builder: Value, pointer: Value, n_vectors: int) -> list[Value]:
    """Where the vectors of a row lie."""
    starts = [builder.gep(pointer, [_INTEGER(number * LANES)]) for number in range(n_vectors)]
    return [builder.bitcast(start, _VECTOR.as_pointer()) for start in starts]


def _everywhere(builder: Value, value: Value) -> Value:
    """A vector that has the value in all its places."""
    single = builder.insert_element(_VECTOR(ir.Undefined), value, _INTEGER(0))
    zeros = ir.VectorType(ir.IntType(32), LANES)([0] * LANES)
    return builder.shuffle_vector(single, single, zeros)


def _multiplied_and_added(builder: Value, first: Value, second: Value, total: Value) -> Value:
    """Rounded once."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fma.v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return builder.call(function, (first, second, total))
