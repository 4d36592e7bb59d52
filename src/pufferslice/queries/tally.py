# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows, exact sums and covariances by group, from which moments of rows follow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice.queries.conditions import Condition
from pufferslice.queries.layout import Layout
from pufferslice.queries.partition import Flags, Partition, combined_codes

_MOST_AT_ONCE: Final = 2**22

Exact: TypeAlias = Any
"""An array of integers of any size."""

Groups: TypeAlias = Mapping[tuple[int, ...], Mapping[str, int]]
"""Exact sums by name, for each group by its patterns, in their order wherever the table is."""


class Labelled(NamedTuple):
    """Rows of one kind by a label; confidential."""

    codes: Integers
    """Labels that occur, in order."""
    counts: Integers
    """Number of rows of each label."""
    sums: Integers
    """Sums of the integers of each feature, shape (n_labels, dim)."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Tally:
    """Numbers of rows and exact sums by group; confidential."""

    layout: Layout
    codes: Integers
    """Pattern of each group by key, shape (n_groups, n_keys)."""
    counts: Integers
    """Number of rows of each group, shape (n_groups,)."""
    totals: Integers
    """Sums of the integers of each grid, shape (n_groups, n_grids)."""
    covs: Floats | None
    """Covariance of these integers in each group, shape (n_groups, n_grids, n_grids); None where
    only sums were asked for."""

    ask: "Callable[[Layout], Tally] | None" = None
    """Function that gives the sums of the same rows by another layout; None where nobody can."""

    @classmethod
    def of(
        cls,
        layout: Layout,
        groups: Groups,
        covs: Floats | None,
        ask: "Callable[[Layout], Tally] | None",
    ) -> "Tally":
        """Make a tally of the sums of groups."""
        codes = np.array(list(groups), dtype=np.int64)
        return cls(
            layout=layout,
            codes=codes.reshape(len(groups), len(layout.keys)),
            counts=exact(groups, ["n"])[:, 0].astype(np.int64),
            totals=exact(groups, layout.sums).astype(np.int64),
            covs=covs,
            ask=ask,
        )

    def flags(self, column: str, condition: Condition) -> Flags:
        """Whether the rows of each group meet a condition of the secret."""
        for key, part in enumerate(self.layout.secret):
            if part.column == column and condition in part.conditions:
                place = part.conditions.index(condition)
                return np.asarray(part.patterns[self.codes[:, key], place])
        raise LookupError(condition)

    def sums(self) -> Integers:
        """Sums of the integers of each feature, shape (n_groups, dim)."""
        inside = self.layout.inside(self.codes)
        sums = np.where(inside, 2**self.layout.n_bits, self.layout.outside()) * self.counts[:, None]
        for place, grid in enumerate(self.layout.grid_of):
            if grid is not None:
                sums[inside[:, place], place] = self.totals[inside[:, place], grid]
        return np.asarray(sums)

    def covariance(self, chosen: Flags) -> Floats:
        """Covariance of the integers of the rows of some groups, shape (dim, dim)."""
        if self.covs is None:
            raise LookupError("covs")
        counts, sums = self.counts[chosen], self.sums()[chosen]
        shares = counts / counts.sum()
        apart = sums / counts[:, None] - sums.sum(axis=0) / counts.sum()
        cov = (apart.T * shares) @ apart
        places = [k for k, grid in enumerate(self.layout.grid_of) if grid is not None]
        if not places:
            return np.asarray(cov)
        grids = [grid for grid in self.layout.grid_of if grid is not None]
        inside = self.layout.inside(self.codes[chosen])[:, places]
        within, block = self.covs[chosen], max(1, _MOST_AT_ONCE // len(places) ** 2)
        for start in range(0, len(counts), block):
            part = slice(start, start + block)
            each = within[part][:, grids][:, :, grids] * shares[part, None, None]
            each *= inside[part, :, None] & inside[part, None, :]
            cov[np.ix_(places, places)] += each.sum(axis=0)
        return np.asarray(cov)

    def labelled(self, chosen: Flags, labels: Sequence[Sequence[Partition]]) -> Labelled:
        """Sums of the rows of some groups, which differ by the secret, by a public label.

        Several labels together are one, whose values are numbered as they occur in the table.
        """
        tally = self._by(list(dict.fromkeys(part for parts in labels for part in parts)))
        n_secret = len(self.layout.secret)
        kinds = {tuple(codes) for codes in self.codes[chosen, :n_secret].tolist()}
        if tally is not self:
            chosen = np.array([tuple(c[:n_secret]) in kinds for c in tally.codes.tolist()])
        keys = tally.layout.keys
        each = [
            combined_codes(parts, [tally.codes[:, keys.index(part)] for part in parts])
            for parts in labels
        ]
        codes = each[0]
        if len(each) > 1:
            codes = np.unique(np.stack(each, axis=1), axis=0, return_inverse=True)[1].ravel()
        values, places = np.unique(codes[chosen], return_inverse=True)
        counts = np.zeros(len(values), dtype=np.int64)
        sums = np.zeros((len(values), len(self.layout.grid_of)), dtype=np.int64)
        np.add.at(counts, places, tally.counts[chosen])
        np.add.at(sums, places, tally.sums()[chosen])
        return Labelled(values, counts, sums)

    def has(self, part: Partition, condition: Condition) -> bool:
        """Whether any row meets a condition of a feature."""
        tally = self._by([part])
        codes = tally.codes[:, tally.layout.keys.index(part)]
        return bool(part.patterns[codes, part.conditions.index(condition)].any())

    def knows(self, parts: Sequence[Partition]) -> bool:
        """Whether the rows can be told apart by these conditions, now or on request."""
        return self.ask is not None or set(parts) <= set(self.layout.keys)

    def _by(self, parts: Sequence[Partition]) -> "Tally":
        """Sums by the secret and these conditions, which groups decide or which are asked for."""
        if self.ask is None or set(parts) <= set(self.layout.keys):
            return self
        layout = self.layout
        return self.ask(Layout.of(layout.features, layout.n_bits, layout.secret, by=parts))

    def __repr__(self) -> str:
        return f"Tally(n_groups={len(self.counts)})"


def exact(groups: Groups, names: Sequence[str]) -> Exact:
    """Sums of groups as integers of any size, shape (n_groups, n_names)."""
    rows = [[group[name] for name in names] for group in groups.values()]
    return np.array(rows, dtype=object).reshape(len(groups), len(names))


def covariances(counts: Exact, sums: Exact, products: Mapping[tuple[int, int], Exact]) -> Floats:
    """Covariances of numbers in groups, by exact sums of them and of their products.

    Each entry is rounded once, so that it does not depend on what was subtracted from the numbers
    before they were multiplied. Shapes (n_groups,), (n_groups, n) and (n_groups,) for each pair.
    """
    size = sums.shape[1]
    covs = np.zeros((len(counts), size, size))
    for (j, k), product in products.items():
        entries = (counts * product - sums[:, j] * sums[:, k]) / counts**2
        covs[:, j, k] = covs[:, k, j] = entries.astype(np.float64)
    return covs
