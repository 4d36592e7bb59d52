# SPDX-License-Identifier: Apache-2.0
"""Numbers of a table that somebody else computed, with the statements of `Query.to_sql`."""

import os
from collections.abc import Mapping, Sequence
from typing import Final, final

import attrs
import pyarrow as pa

from pufferslice._core.checks import is_a
from pufferslice._core.text import given, listed
from pufferslice.data.frames import Frame, frame_of
from pufferslice.data.readers import read_table
from pufferslice.errors import ArgumentError, TableError

_NAMES: Final = ("sums", "products")


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class HandedSums:
    """Results of the two statements; confidential."""

    sums: Frame
    products: Frame | None

    @classmethod
    def of(cls, results: Mapping[str, object]) -> "HandedSums":
        """Read the results: tables, lists of rows, or paths of CSV or Parquet files."""
        if not set(results) <= set(_NAMES) or "sums" not in results:
            raise ArgumentError(
                "numbers of a table must be {'sums': …, 'products': …}, the results of the two "
                f"statements of query.to_sql(...); got {given(list(results))}"
            )
        products = results.get("products")
        return cls(
            sums=_frame(results["sums"]), products=None if products is None else _frame(products)
        )

    def n_rows(self) -> int:
        """Count the rows of the table that the sums are of."""
        return sum(group["n"] for group in self.groups("sums", [], ["n"]).values())

    def groups(
        self,
        name: str,
        keys: Sequence[str],
        columns: Sequence[str],
        marks: Mapping[str, str] | None = None,
    ) -> dict[tuple[int, ...], dict[str, int]]:
        """Numbers of each group, added up over the keys that are not asked for.

        `marks` are columns that must hold one text in all rows.
        """
        frame = self.sums if name == "sums" else self.products
        if frame is None:
            raise TableError(
                "products are required, the result of the second statement of query.to_sql(...)"
            )
        marks = marks or {}
        lacking = [name for name in (*marks, *keys, *columns) if name not in frame.columns]
        if lacking:
            raise TableError(
                f"{name} must have the columns {listed(lacking)}; run the statements that "
                "query.to_sql(...) writes for this secret, and give their whole results"
            )
        other = [mark for mark, text in marks.items() if set(frame[mark].to_list()) != {text}]
        if other:
            raise TableError(
                f"{name} are of another {listed(other)}; run the statements that query.to_sql(...) "
                "writes for this query and this secret"
            )
        found: dict[tuple[int, ...], dict[str, int]] = {}
        for row in frame.select(*keys, *columns).iter_rows(named=True):
            key = tuple(_integer(name, row[column]) for column in keys)
            group = found.setdefault(key, dict.fromkeys(columns, 0))
            for column in columns:
                group[column] += _integer(name, row[column])
        return dict(sorted(found.items()))


def _frame(result: object) -> Frame:
    if isinstance(result, str | os.PathLike):
        return frame_of(read_table(result))
    if isinstance(result, list | tuple):
        return frame_of(pa.Table.from_pylist([dict(row) for row in result]))
    return frame_of(result)


def _integer(name: str, value: object) -> int:
    """Read an integer, of whatever type a database gives it."""
    try:
        number = int(value)  # type: ignore[call-overload]
        is_whole = number == value or (is_a(value, str) and str(number) == value)
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise TableError(f"{name} must hold integers, as the statements of query.to_sql(...) give")
    return int(number)
