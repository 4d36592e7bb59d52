# SPDX-License-Identifier: Apache-2.0
"""How row features follow from groups of rows, and from a few numbers of each row.

Rows are grouped by the conditions of the query and of the secret. Within a group a count is a
constant, so that sums and products are needed of few numbers only.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Final, final

import attrs
import narwhals as nw
import numpy as np

from pufferslice._core.arrays import Integers
from pufferslice._core.files import canonical_json, digest
from pufferslice.data.frames import Frame
from pufferslice.queries.expressions import Expressions, quantised_zero
from pufferslice.queries.features import RowFeatures
from pufferslice.queries.partition import Fill, Flags, Partition, n_combined, partitions_of
from pufferslice.queries.sources import Cell, Source, steps_of

_MARK: Final = 16
"""Length of a mark."""
_MOST_GROUPS: Final = 2**14
"""Most groups of rows; conditions that would make more are left in the features."""


@final
@attrs.frozen(kw_only=True)
class Grid:
    """Numbers of rows on one grid: a product of columns, or 1, where a row is in a cell."""

    factors: tuple[Source, ...]
    ends: tuple[float, float]
    cell: Cell = attrs.field(default=(), eq=frozenset)
    fills: tuple[tuple[str, Fill], ...] = attrs.field(default=(), eq=frozenset)

    def expression(self, of: Expressions, n_bits: int) -> nw.Expr:
        """The integer of each row."""
        return of.quantised(self.factors, self.ends, n_bits, self.cell, dict(self.fills))

    def integers(self, frame: Frame, n_bits: int) -> Integers:
        """The integer of each row in memory."""
        low, high = self.ends
        integers = np.full(len(frame), 2**n_bits, dtype=np.int64)
        if self.factors:
            number = np.prod([factor.numbers(frame) for factor in self.factors], axis=0)
            integers = np.floor((number - low) * steps_of(low, high, n_bits) + 0.5)
        nothing = quantised_zero(low, high, n_bits) if self.factors else 0
        fills = dict(self.fills)
        tests = [(name, test, fills.get(name)) for name, test in self.cell]
        for part in partitions_of(tests):
            met = part.patterns[part.codes(frame)].all(axis=1)
            integers = np.where(met, integers, nothing)
        return integers.astype(np.int64)


@final
@attrs.frozen(kw_only=True)
class Layout:
    """How features follow from groups of rows and from a few numbers of a row."""

    features: RowFeatures
    n_bits: int
    secret: tuple[Partition, ...]
    """Partitions by the conditions of the secret: the first keys of a group."""
    parts: tuple[Partition, ...]
    """Partitions by the conditions of features: the other keys."""
    grids: tuple[Grid, ...]
    grid_of: tuple[int | None, ...]
    """Grid of the number of each feature; None for a feature that is constant in a group."""
    tests: tuple[tuple[tuple[int, int], ...], ...]
    """Conditions of each feature that a group decides, as a key and a place in its patterns."""

    @classmethod
    def of(
        cls,
        features: RowFeatures,
        n_bits: int,
        secret: Sequence[Partition] = (),
        *,
        by: Sequence[Partition] | None = None,
    ) -> "Layout":
        """Group by the secret and some conditions: those of as many columns as give few groups."""
        parts = list(by or ())
        if by is None:
            for part in sorted(features.partitions, key=lambda part: -len(part.patterns)):
                if n_combined([*parts, part]) <= _MOST_GROUPS:
                    parts.append(part)
        places = {
            (part.column, part.fill, test): (len(secret) + number, place)
            for number, part in enumerate(parts)
            for place, test in enumerate(part.conditions)
        }
        grids: dict[Grid, int] = {}
        grid_of: list[int | None] = []
        tests = []
        for feature in features.parts:
            fills = dict(feature.fills)
            keys = {test: (test[0], fills.get(test[0]), test[1]) for test in feature.cell}
            tests.append(tuple(places[key] for key in keys.values() if key in places))
            rest = tuple(test for test, key in keys.items() if key not in places)
            if not (feature.factors or rest):
                grid_of.append(None)
                continue
            grid = Grid(
                factors=feature.factors,
                ends=feature.ends,
                cell=rest,
                fills=tuple((name, fills[name]) for name in dict(rest) if name in fills),
            )
            grid_of.append(grids.setdefault(grid, len(grids)))
        return cls(
            features=features,
            n_bits=n_bits,
            secret=tuple(secret),
            parts=tuple(parts),
            grids=tuple(grids),
            grid_of=tuple(grid_of),
            tests=tuple(tests),
        )

    @property
    def keys(self) -> tuple[Partition, ...]:
        """Partitions that rows are grouped by."""
        return self.secret + self.parts

    @property
    def named_keys(self) -> dict[str, Partition]:
        """The keys by the names of their columns in the results of queries."""
        secret = {f"secret{k}": part for k, part in enumerate(self.secret)}
        return secret | {f"key{k}": part for k, part in enumerate(self.parts)}

    @property
    def marks(self) -> dict[str, str]:
        """Digests of what the numbers are of: the query's features, and the secret."""
        features = [
            [repr(part.factors), part.ends, repr(part.cell)] for part in self.features.parts
        ]
        keys = [[repr(part) for part in parts] for parts in (self.parts, self.secret)]
        return {
            "query": digest(canonical_json([features, keys[0], self.n_bits]))[:_MARK],
            "secret": digest(canonical_json(keys[1]))[:_MARK],
        }

    @property
    def sums(self) -> list[str]:
        """Names of the sums of the numbers."""
        return [f"sum{k}" for k in range(len(self.grids))]

    @property
    def products(self) -> dict[tuple[int, int], str]:
        """Names of the sums of products, by the places of the two numbers."""
        pairs = combinations_with_replacement(range(len(self.grids)), 2)
        return {pair: "product{}_{}".format(*pair) for pair in pairs}

    @property
    def columns(self) -> list[str]:
        """Columns that are read."""
        columns = [*self.features.columns, *(part.column for part in self.secret)]
        return list(dict.fromkeys(columns))

    def inside(self, codes: Integers) -> Flags:
        """Whether groups may be in the cell of each feature, shape (n_groups, dim)."""
        inside = np.ones((len(codes), len(self.tests)), dtype=np.bool_)
        for place, tests in enumerate(self.tests):
            for key, test in tests:
                inside[:, place] &= self.keys[key].patterns[codes[:, key], test]
        return inside

    def outside(self) -> Integers:
        """The integer of a row that is not in the cell of a feature, shape (dim,)."""
        return np.array([quantised_zero(*part.ends, self.n_bits) for part in self.features.parts])
