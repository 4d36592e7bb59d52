# SPDX-License-Identifier: Apache-2.0
r"""Exact sums of quantised features over the rows of a table, wherever it is.

An engine is asked in two group-by queries. The first counts rows and adds up integers $q$; the
second adds up $(q_j - t_j)(q_k - t_k)$ with $t$ near the mean of all rows. A table that is read in
batches takes one pass, and a database hands the results over. All sums are of 64-bit integers and
exact: they do not depend on the engine, on the order of the rows, or on a worker that is lost and
repeated.
"""

import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final, final

import attrs
import narwhals as nw
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.threads import logged
from pufferslice.data.batches import Batches
from pufferslice.data.engines import (
    IN_MEMORY,
    Lazy,
    asked,
    collected,
    empty_table,
    engine_of,
)
from pufferslice.data.frames import check_known
from pufferslice.data.handed import HandedSums
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.queries.expressions import Expressions, Key
from pufferslice.queries.layout import Layout
from pufferslice.queries.tally import Exact, Groups, Tally, covariances, exact

_MOST_NUMBERS: Final = 128
"""Most numbers of a row whose products an engine is asked for."""
_MOST_AGGREGATES: Final = 1_000
"""Most sums of one query."""
_MOST_ROWS: Final = 2**32
_SUM_BITS: Final = 61
_LOW_BITS: Final = 10
"""Bits of the low part of a number, where products are added up in two parts."""
_EXACT_ROWS: Final = 2**12
"""Most rows whose products, of up to 2^38 each, doubles add up exactly."""


def tally_of(
    rows: Lazy | Batches | HandedSums, layout: Layout, *, has_moments: bool = True
) -> Tally:
    """Count and add up the rows of a table, and products of their numbers if asked."""
    if isinstance(rows, nw.LazyFrame):
        return _asked(rows, layout, has_moments=has_moments)
    if isinstance(rows, HandedSums):
        return _handed(rows, layout, has_moments=has_moments)
    if not hasattr(rows, "frames"):  # nor is it shown, because it may hold rows
        raise ArgumentError(f"rows must be those of rows_of(table), got {type(rows).__name__}")
    return _read(rows, layout, has_moments=has_moments)


def _asked(lazy: Lazy, layout: Layout, *, has_moments: bool) -> Tally:
    """Ask an engine for the sums, in one query, and for the covariances, in another."""
    rows = _Rows.of(lazy, layout)
    with logged(f"{len(layout.sums)} sums by {engine_of(lazy)}"):
        groups = rows.sums(has_squares=has_moments)
    covs = None
    if has_moments:
        with logged(f"{len(layout.products)} products by {engine_of(lazy)}"):
            covs = rows.covariances(groups)
    return Tally.of(layout, groups, covs, partial(_asked, lazy, has_moments=False))


@final
@attrs.frozen(kw_only=True)
class _Rows:
    """The rows of an engine's table, each with its keys and its integers."""

    lazy: Lazy
    """Columns of the keys, and `number0`, …"""
    layout: Layout
    keys: Mapping[str, Key]

    @classmethod
    def of(cls, lazy: Lazy, layout: Layout) -> "_Rows":
        of = Expressions.of(lazy, layout.columns)
        keys = {name: of.key(part) for name, part in layout.named_keys.items()}
        named = {name: key.expression for name, key in keys.items()} | {
            f"number{k}": grid.expression(of, layout.n_bits) for k, grid in enumerate(layout.grids)
        }
        with asked(lazy):
            selected = lazy.select(**(named or {"row": nw.lit(0)}))
        return cls(lazy=selected, layout=layout, keys=keys)

    @property
    def n_numbers(self) -> int:
        return len(self.layout.grids)

    def sums(self, *, has_squares: bool) -> Groups:
        """Number of rows, sums and, if asked, rough sums of squares of each group."""
        if has_squares and self.n_numbers > _MOST_NUMBERS:
            raise ScenarioError(
                f"the query needs products of {self.n_numbers} numbers of each row, and an engine "
                f"is asked for those of at most {_MOST_NUMBERS}; publish fewer statistics at once. "
                f"{IN_MEMORY}"
            )
        numbers = [nw.col(f"number{k}") for k in range(self.n_numbers)]
        columns = {f"sum{k}": number for k, number in enumerate(numbers)}
        if has_squares:  # as doubles: they only tell how large exact sums can be
            doubles = [number.cast(nw.Float64) for number in numbers]
            columns |= {f"square{k}": number * number for k, number in enumerate(doubles)}
        groups = self._summed(columns)
        n_rows = sum(group["n"] for group in groups.values())
        if not n_rows:
            raise empty_table()
        if n_rows > _MOST_ROWS:
            raise ScenarioError(
                f"an engine is asked for exact products of at most {_MOST_ROWS:,} rows; divide the "
                "table, add up the numbers of its parts, and give them to Scenario.from_moments"
            )
        return groups

    def covariances(self, groups: Groups) -> Floats:
        """Covariance of the integers of each group, each entry rounded once, (n_groups, n, n)."""
        counts, sums = exact(groups, ["n"])[:, 0], exact(groups, self.layout.sums)
        centers = [round(Fraction(int(total), int(counts.sum()))) for total in sums.sum(axis=0)]
        apart = sums - counts[:, None] * np.array(centers, dtype=object)
        return covariances(counts, apart, self._products(groups, centers))

    def _products(self, groups: Groups, centers: Sequence[int]) -> dict[tuple[int, int], Exact]:
        """Exact sums of products of the integers less the centers, in each group."""
        sizes = [self._size(groups, k, center) for k, center in enumerate(centers)]
        apart = [nw.col(f"number{k}") - center for k, center in enumerate(centers)]
        columns: dict[str, nw.Expr] = {}
        for (j, k), name in self.layout.products.items():
            if sizes[j] * sizes[k] < 2.0 ** (2 * _SUM_BITS):
                columns[name] = apart[j] * apart[k]
                continue
            # In two parts, because 64 bits may not hold the sum.
            high = (nw.col(f"number{k}").cast(nw.Float64) * 2.0**-_LOW_BITS).floor()
            high = high.cast(nw.Int64)
            low = nw.col(f"number{k}") - high * 2**_LOW_BITS
            center, rest = divmod(centers[k], 2**_LOW_BITS)
            columns[f"high_{name}"] = apart[j] * (high - center)
            columns[name] = apart[j] * (low - rest)
        found: dict[str, Exact] = {}
        names = list(columns)
        for start in range(0, len(names), _MOST_AGGREGATES):
            chunk = {name: columns[name] for name in names[start : start + _MOST_AGGREGATES]}
            summed = self._summed(chunk)
            check_same_rows(groups, summed)
            found |= dict(zip(chunk, exact(summed, list(chunk)).T, strict=True))
        return {
            pair: found[name] + found.get(f"high_{name}", 0) * 2**_LOW_BITS
            for pair, name in self.layout.products.items()
        }

    def _size(self, groups: Groups, number: int, center: int) -> float:
        """Bound on the sum of squares of a number less its center, and on that of any part."""
        total = sum(group[f"square{number}"] for group in groups.values())
        first = sum(group[f"sum{number}"] for group in groups.values())
        n_rows = sum(group["n"] for group in groups.values())
        rounding = 2.0 ** (2 * self.layout.n_bits - 10) * n_rows
        return total - 2.0 * center * first + float(center) ** 2 * n_rows + rounding

    def _summed(self, columns: Mapping[str, nw.Expr]) -> Groups:
        """Number of rows and sums of these columns, by group."""
        names = list(self.keys)
        sums = [nw.len().alias("n"), *(nw.col(name).sum() for name in columns)]
        with asked(self.lazy):
            selected = self.lazy.select(*names, **columns) if columns else self.lazy
            summed = selected.group_by(names).agg(*sums) if names else selected.select(*sums)
        found = collected(summed)
        values = [key.codes(found[name]) for name, key in self.keys.items()]
        keys = zip(*values, strict=True) if names else [()]
        rows = zip(*(found[name] for name in ("n", *columns)), strict=True)
        groups: dict[tuple[int, ...], dict[str, int]] = {}
        for key, row in sorted(zip(keys, rows, strict=True), key=operator.itemgetter(0)):
            group = groups.setdefault(tuple(map(int, key)), dict.fromkeys(("n", *columns), 0))
            for name, value in zip(group, row, strict=True):
                group[name] += int(value or 0)  # the sum of no rows is null
        return groups


def check_same_rows(groups: Groups, others: Groups) -> None:
    """Refuse the results of two queries between which the table changed."""
    if {k: g["n"] for k, g in groups.items()} != {k: g["n"] for k, g in others.items()}:
        raise TableError(
            "the table changed between two queries; give one that nobody writes to, such as a "
            "snapshot"
        )


def _handed(rows: HandedSums, layout: Layout, *, has_moments: bool) -> Tally:
    """Read the sums of a table that somebody else computed."""
    keys = list(layout.named_keys)
    marks = layout.marks if layout.secret else {"query": layout.marks["query"]}
    groups = rows.groups("sums", keys, ["n", *layout.sums], marks)
    for codes, group in groups.items():
        fits = [
            0 <= code < len(part.patterns) for code, part in zip(codes, layout.keys, strict=True)
        ]
        most = 2**layout.n_bits * group["n"]
        if not all(fits) or any(not 0 <= group[name] <= most for name in layout.sums):
            raise TableError("sums of these rows cannot be so large; give the results unchanged")
    counts = exact(groups, ["n"])[:, 0]
    if not counts.sum():
        raise empty_table()
    covs = None
    if has_moments:
        names = layout.products
        others = rows.groups("products", keys, ["n", *names.values()], marks)
        check_same_rows(groups, others)
        products = {pair: exact(others, [name])[:, 0] for pair, name in names.items()}
        covs = covariances(counts, exact(groups, layout.sums), products)
    return Tally.of(layout, groups, covs, None)


def _read(batches: Batches, layout: Layout, *, has_moments: bool) -> Tally:
    """Count and add up the rows of a table that is read in batches, all in one pass."""
    check_known(batches.columns, layout.columns)
    size, center = len(layout.grids), 2 ** (layout.n_bits - 1)
    counts: Counter[tuple[int, ...]] = Counter()
    sums: defaultdict[tuple[int, ...], Any] = defaultdict(lambda: np.zeros(size, dtype=object))
    products: defaultdict[tuple[int, ...], Any] = defaultdict(
        lambda: np.zeros((size, size), dtype=object)
    )
    for frame in batches.frames(layout.columns or batches.columns[:1]):
        codes = np.zeros((len(frame), len(layout.keys)), dtype=np.int64)
        for place, part in enumerate(layout.keys):
            codes[:, place] = part.codes(frame)
        apart = np.zeros((len(frame), size))
        for place, grid in enumerate(layout.grids):
            apart[:, place] = grid.integers(frame, layout.n_bits) - center
        known, places = np.unique(codes, axis=0, return_inverse=True)
        order = np.argsort(places, kind="stable")
        ends = np.cumsum(np.bincount(places))
        for group, rows in zip(known.tolist(), np.split(order, ends[:-1]), strict=True):
            key = tuple(group)
            counts[key] += len(rows)
            for start in range(0, len(rows), _EXACT_ROWS):
                block = apart[rows[start : start + _EXACT_ROWS]]
                sums[key] += block.sum(axis=0).astype(np.int64).astype(object)
                if has_moments:
                    products[key] += (block.T @ block).astype(np.int64).astype(object)
    if not counts:
        raise empty_table()
    groups = {
        key: {"n": counts[key]}
        | {
            name: int(total) + counts[key] * center
            for name, total in zip(layout.sums, sums[key], strict=True)
        }
        for key in sorted(counts)
    }
    covs = None
    if has_moments:
        apart = np.array([sums[key] for key in groups]).reshape(len(groups), size)
        every = np.array([products[key] for key in groups]).reshape(len(groups), size, size)
        pairs = {(j, k): every[:, j, k] for j, k in layout.products}
        covs = covariances(exact(groups, ["n"])[:, 0], apart, pairs)
    return Tally.of(layout, groups, covs, partial(_read, batches, has_moments=False))
