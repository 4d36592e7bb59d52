# SPDX-License-Identifier: Apache-2.0
"""The row model: two worlds whose tables share all rows but those that make the difference.

Source: theory of the row model, docs/guarantee.md. Nothing is fitted to the rows: the claim needs
the means and the covariances of what rows of each kind add, and holds for any rows that have them.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, final, get_args

import attrs
import narwhals as nw
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import check_above, check_between, check_count
from pufferslice._core.text import listed, quoted
from pufferslice.data.batches import Batches
from pufferslice.data.engines import Lazy
from pufferslice.data.frames import Frame, check_columns
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, rows_of
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import Condition
from pufferslice.queries.features import Reading, RowFeatures, feature_bits
from pufferslice.queries.layout import Layout
from pufferslice.queries.partition import Partition, n_combined, partitions_of
from pufferslice.queries.query import RowMoments, mean_and_covariance
from pufferslice.queries.sums import tally_of
from pufferslice.queries.tally import Tally
from pufferslice.queries.variation import (
    check_read,
    check_tallied,
    near_matches,
)
from pufferslice.scenario.distributions import Kind

Design = Literal["stratified", "independent"]
DESIGNS: Final = get_args(Design)

ALL: Final = "*"
"""Name of the labelling by everything that the query tells apart."""
FEWEST_ROWS: Final = 2
HIDDEN_ROWS: Final = 2**40
"""Most rows of a table whose number of rows is hidden: a constant, so that it tells nothing."""
_LARGEST_GROUP: Final = 2**62
_DRAWS_AT_ONCE: Final = 2**22
_MOST_KEPT: Final = 2**25
"""Most numbers of a table whose rows are kept beside their moments."""
_MOST_MEANS: Final = 2**20
"""Most numbers in the means of the cells of a labelling; larger ones are left out."""
_MOST_WORK: Final = 2**30
"""Most work on labellings: their number times the cube of the number of sums."""


@final
@attrs.frozen(kw_only=True)
class Differing:
    """Number of rows that differ between two worlds: fixed, or binomial."""

    most: int
    """Largest number of differing rows, or the number of rows that may each differ."""
    probability: float = 1.0
    """Probability that a row differs; 1 for a fixed number."""

    @property
    def mean(self) -> float:
        """Expected number of rows that differ."""
        return self.most * self.probability

    @property
    def mean_square(self) -> float:
        """Expected square of the number of rows that differ."""
        return self.mean**2 + self.mean * (1 - self.probability)

    @property
    def trials(self) -> tuple[float, float]:
        """Number of rows that may differ, and the probability that each of them does."""
        return float(self.most), self.probability

    def between(self, first: int, second: int, n_kinds: int) -> tuple[Floats, Floats]:
        """Moments of the numbers of rows that turn from one kind into another.

        Expected number of rows that are of a kind in one of the worlds, shape (1, n_kinds), and
        second moment of the change of the number of rows of every kind but the first.
        """
        counts, turn = np.zeros((1, n_kinds)), np.zeros(n_kinds)
        counts[0, [first, second]] = self.mean
        turn[[first, second]] = -1.0, 1.0
        return counts, self.mean_square * np.outer(turn[1:], turn[1:])

    def draw(self, n_draws: int, rng: np.random.Generator) -> Integers:
        """Draw independent numbers of rows that differ."""
        return np.asarray(rng.binomial(self.most, self.probability, n_draws), dtype=np.int64)


class CellMoments(NamedTuple):
    """Moments of the rows of one kind by cell, a public label of rows; confidential."""

    cells: Integers
    """Labels that some row has, in order, shape (n_cells,)."""
    counts: Integers
    """Number of rows in each cell, shape (n_cells,)."""
    means: Floats
    """Mean of what a row of each cell adds, shape (n_cells, dim)."""

    @property
    def shares(self) -> Floats:
        """Share of the rows in each cell."""
        return np.asarray(self.counts / max(1, self.counts.sum()))

    def among(self, cells: Integers) -> "CellMoments":
        """Return the moments of these cells, all of them known; a cell may have no rows."""
        places = np.searchsorted(cells, self.cells)
        counts = np.zeros(len(cells), dtype=np.int64)
        means = np.zeros((len(cells), self.means.shape[1]))
        counts[places], means[places] = self.counts, self.means
        return CellMoments(cells, counts, means)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class Boxes:
    """Public boxes, one of which holds what any row adds to a query."""

    low: Floats = attrs.field(converter=locked, eq=same)
    """Lowest ends, scaled, shape (n_boxes, dim)."""
    high: Floats = attrs.field(converter=locked, eq=same)
    """Highest ends, scaled, shape (n_boxes, dim)."""

    @property
    def spans(self) -> Floats:
        """Largest change of each coordinate by one exchanged row, shape (dim,)."""
        return np.asarray(self.high.max(axis=0) - self.low.min(axis=0))

    def with_absent(self) -> "Boxes":
        """Add the box of a row that is not there, and adds nothing."""
        none = np.zeros((1, self.low.shape[1]))
        return Boxes(low=np.vstack([self.low, none]), high=np.vstack([self.high, none]))


class DifferingRows(Protocol):
    """How many rows differ between two worlds."""

    @property
    def trials(self) -> tuple[float, float]:
        """Number of rows that may differ, and the probability that each of them does.

        0 where it is not a number of like rows.
        """

    def between(self, first: int, second: int, n_kinds: int) -> tuple[Floats, Floats]:
        """Moments of the numbers of rows that turn from one kind into another, by period.

        Expected number of rows that are of a kind in one of the worlds, shape (n_periods,
        n_kinds), and second moment of the change of the number of rows of every kind but the
        first, period by period.
        """


@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowDistribution:
    """What rows of one kind add to a query, and how many of them differ between two worlds.

    All other rows are the same in both worlds, and known to the reader; they add nothing here.
    """

    kind: ClassVar[Kind] = "rows"
    n_samples: ClassVar[int] = 0
    place: int
    """Place of the kind of rows among those of the scenario."""
    row_mean: Floats = attrs.field(converter=locked, eq=same)
    """Mean of what a row adds, scaled; confidential."""
    row_cov: Floats = attrs.field(converter=locked, eq=same)
    """Its covariance, divided by the number of rows; confidential."""
    rows: Floats | None = attrs.field(
        default=None, converter=attrs.converters.optional(locked), eq=same
    )
    """Sum that each row of this kind adds, shape (n_rows, n_features); confidential. None if only
    moments are known."""
    cells: Mapping[str, CellMoments] = attrs.field(factory=dict)
    """Moments by cell, by the name of the labelling; confidential."""
    groups: Integers | None = None
    """Group of each of the rows, all of it in one cell by each labelling; confidential. None where
    the rows are."""
    members: Mapping[str, Integers] = attrs.field(factory=dict)
    """Cell of each group, by the name of the labelling."""
    sums: tuple[int, ...] = ()
    """Number of rows and exact sums of their quantised numbers; confidential. Empty where moments
    were given."""
    boxes: Boxes
    differing: DifferingRows
    size: Floats = attrs.field(converter=locked, eq=same)
    """The query on the rows that the moments come from, or by a declared model, scaled, shape
    (dim,); confidential."""
    ignorance: Floats = attrs.field(converter=locked, eq=same)
    """Variance of the query for someone without data, who knows its public range, or a public
    model of it, scaled, shape (dim,)."""

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.size)

    def codes(self, labelling: str) -> Integers | None:
        """Return the cell of each of the rows; None where that is not known."""
        if self.groups is None or labelling not in self.members:
            return None
        return np.asarray(self.members[labelling][self.groups])

    @property
    def rows_at_hand(self) -> Floats:
        """The rows of this kind; raises where only their moments are known."""
        if self.rows is None:
            raise ScenarioError(
                "this needs the rows themselves, and the scenario has only their moments; build "
                "it from a table in memory"
            )
        return self.rows

    @property
    def _number(self) -> "Differing":
        """The law of the number of rows that differ, where it is one number."""
        if not isinstance(self.differing, Differing):
            raise ScenarioError("the rows that differ are not all alike here")
        return self.differing

    @property
    def mean(self) -> Floats:
        """Mean of what the differing rows add, shape (dim,)."""
        return self._number.mean * self.row_mean

    @property
    def cov(self) -> Floats:
        """Covariance of what the differing rows add, shape (dim, dim)."""
        count, mean = self._number, self.row_mean
        varying = count.mean_square - count.mean**2
        return np.asarray(count.mean * self.row_cov + varying * np.outer(mean, mean))

    def atoms(self) -> None:
        """Return None: sums of rows have too many values to list."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Draw sums of real rows, with replacement, each its own value."""
        counts = self._number.draw(n_draws, rng)
        return drawn_sums(self.rows_at_hand, counts, rng), np.arange(n_draws)

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Reduced form, never the same for two worlds: other rows than these may be released."""
        return np.array([self.place]), self.row_mean

    def digest_parts(self) -> list[bytes]:
        """Bytes of the distribution, for a digest: exact sums, in any order of rows, or moments."""
        facts = f"rows {self.place} {self.differing} {self.sums} {list(self.cells)}"
        moments = [] if self.sums else [self.row_mean, self.row_cov]
        arrays = [*moments, self.boxes.low, self.boxes.high]
        return [facts.encode(), *(array.tobytes() for array in arrays)]

    def __repr__(self) -> str:
        return f"RowDistribution(dim={self.dim}, differing={self.differing})"


def drawn_sums(rows: Floats, counts: Integers, rng: np.random.Generator) -> Floats:
    """Sums of as many rows as each of `counts` says, drawn with replacement."""
    sums = np.empty((len(counts), rows.shape[1]))
    if counts.max(initial=0) * rows.shape[1] > len(rows):
        block = max(1, _DRAWS_AT_ONCE // len(rows))
        for start in range(0, len(counts), block):
            part = counts[start : start + block]
            times = [
                np.bincount(rng.integers(len(rows), size=n), minlength=len(rows)) for n in part
            ]
            sums[start : start + block] = np.array(times, dtype=np.float64) @ rows
        return sums
    block = max(1, _DRAWS_AT_ONCE // max(1, int(counts.max(initial=1)) * rows.shape[1]))
    for start in range(0, len(counts), block):
        part = counts[start : start + block]
        sums[start : start + block] = sums_of_runs(
            rows[rng.integers(len(rows), size=int(part.sum()))], part
        )
    return sums


def sums_of_runs(rows: Floats, counts: Integers) -> Floats:
    """Sums of the first `counts[0]` rows, of the next `counts[1]` rows, and so on."""
    ends = np.cumsum(counts)
    sums = np.vstack([np.zeros(rows.shape[1]), np.cumsum(rows, axis=0)])
    return np.asarray(sums[ends] - sums[ends - counts])


def covariance_of(rows: Floats) -> Floats:
    """Covariance of rows, divided by their number."""
    return mean_and_covariance(rows)[1]


Tests = Sequence[tuple[str, Condition]]
"""Conditions, each with the column that it is on."""

Groups = npt.NDArray[np.bool_]
"""Choice of the rows of a table: of each row in memory, of each group of rows elsewhere."""


@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowTable(ABC):
    """Sums that the rows of a table add to a query, in scaled coordinates."""

    query: Query
    """The query in its public scales, which follow from its clip ranges."""
    features: RowFeatures
    n_rows: int | None
    """Public number of rows of a release; None where it is hidden."""
    n_bits: int
    """Bits of a quantised number."""
    low: Floats
    """Least number of a row, scaled, shape (dim,)."""
    steps: Floats
    """Step between two quantised numbers, scaled, shape (dim,)."""
    boxes: Boxes
    """Public boxes of what one row adds."""
    is_checked: bool
    """Whether columns that do not vary are refused."""

    @classmethod
    def of(
        cls,
        table: object,
        query: Query,
        *,
        n_rows: int | None = None,
        secret: Tests = (),
        is_checked: bool = True,
    ) -> "RowTable":
        """Read a table for sums of `n_rows` rows, or of a hidden number of rows.

        `secret` are the conditions that divide the rows. Rows that are only looked at for their
        holder are not checked: a refusal would tell something about them.
        """
        query = query.as_sums()
        features = checked_features(query, has_public_rows=n_rows is not None)
        units = np.array([1 / (n_rows or 1) if mean else 1.0 for mean in features.is_mean])
        low, high = features.boxes()
        ends = np.stack([low.min(axis=0), high.max(axis=0)])
        spans = ends[1] - ends[0]
        if n_rows is None:
            spans = np.maximum(spans, np.abs(ends).max(axis=0))
        scales = np.exp2(np.ceil(np.log2(spans * units)))
        n_bits = feature_bits(n_rows or HIDDEN_ROWS)
        return cls.read(
            rows_of(table, [*features.columns, *(column for column, _ in secret)]),
            secret,
            query=attrs.evolve(query, scales=scales, missing="middle"),
            features=features,
            n_rows=n_rows,
            n_bits=n_bits,
            low=features.low * units / scales,
            steps=features.spans * units / scales * 2.0**-n_bits,
            boxes=Boxes(low=low * units / scales, high=high * units / scales),
            is_checked=is_checked,
        )

    @classmethod
    def read(
        cls, rows: Rows, secret: Tests, *, features: RowFeatures, n_bits: int, **fields: Any
    ) -> "RowTable":
        """Read rows, with the other fields as they are."""
        parts = partitions_of((column, test, None) for column, test in secret)
        if not isinstance(rows, nw.DataFrame):
            tally = tally_of(rows, Layout.of(features, n_bits, parts))
            return TalliedRows(rows=rows, tally=tally, features=features, n_bits=n_bits, **fields)
        check_columns(rows, [*features.columns, *(part.column for part in parts)])
        return FrameRows(
            frame=rows,
            reading=features.read(rows),
            secret={part: part.codes(rows) for part in parts},
            features=features,
            n_bits=n_bits,
            **fields,
        )

    @property
    @abstractmethod
    def held(self) -> Rows:
        """The rows themselves, where they are."""

    @property
    @abstractmethod
    def everything(self) -> Groups:
        """All rows."""

    @abstractmethod
    def flags(self, column: str, condition: Condition) -> Groups:
        """Rows that meet a condition of the secret; one without a value does not."""

    @abstractmethod
    def n_chosen(self, chosen: Groups) -> int:
        """Number of rows that are chosen."""

    @abstractmethod
    def near_matches(self, column: str, label: str) -> str:
        """A hint at frequent labels that look like one that no row has."""

    @abstractmethod
    def check_varied(self) -> None:
        """Refuse columns and conditions that are the same in all rows."""

    @abstractmethod
    def summed(self, chosen: Groups) -> "Summed":
        """Sums and moments of the rows that are chosen."""

    def kinds(self, chosen: Sequence[Groups], differing: Differing) -> list[RowDistribution]:
        """The rows of each kind, as they make the difference."""
        if self.is_checked:
            self.check_varied()
        rest = self.everything & ~np.logical_or.reduce(chosen)
        each = [self.summed(flags) for flags in (*chosen, rest) if flags.any()]
        size = self._size(np.sum([part.sums for part in each], axis=0))
        # A sum of a hidden number of rows has no public range: its own size stands for one.
        ignorance = size**2 if self.n_rows is None else (self.n_rows * self.boxes.spans) ** 2 / 12
        return [
            RowDistribution(
                place=place,
                row_mean=part.mean,
                row_cov=part.covariance,
                rows=part.rows,
                cells=part.cells,
                groups=part.groups,
                members=part.members,
                sums=tuple(part.sums.tolist()),
                boxes=self.boxes,
                differing=differing,
                size=size,
                ignorance=ignorance,
            )
            for place, part in enumerate(each[: len(chosen)])
        ]

    def added(
        self, chosen: Groups, differing: Differing
    ) -> tuple[RowDistribution, RowDistribution]:
        """Rows that one world has and the other lacks: there, nothing is added."""
        (rows,) = self.kinds([chosen], differing)
        nothing = np.zeros((1, rows.dim))
        none, there = (attrs.evolve(rows, boxes=self.boxes.with_absent(), place=k) for k in (0, 1))
        none = attrs.evolve(
            none,
            row_mean=nothing[0],
            row_cov=np.zeros_like(rows.row_cov),
            rows=nothing,
            cells={},
            groups=None,
            sums=(),
        )
        return none, there

    @property
    def labellings(self) -> dict[str, list[Partition]]:
        """Public labels of a row, by name: as many as can all be tried."""
        dim = len(self.low)
        fits = {
            name: parts
            for name, parts in self.features.labellings.items()
            if dim * n_combined(parts) <= _MOST_MEANS
        }
        return dict(list(fits.items())[: _MOST_WORK // dim**3])

    def _size(self, sums: Integers) -> Floats:
        """The query on the table, or on one of `n_rows` rows with the same shares."""
        size = np.asarray(sums[1:] * self.steps + sums[0] * self.low)
        return size if self.n_rows is None else size * (self.n_rows / sums[0])


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class FrameRows(RowTable):
    """Rows in memory."""

    frame: Frame
    reading: Reading
    """What the query reads of the rows."""
    secret: Mapping[Partition, Integers]
    """Pattern of the conditions of the secret that each row meets."""
    _groups: "_Groups" = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: _Groups.of(self.reading.labels(self.labellings), self.reading.n_rows),
            takes_self=True,
        ),
    )

    @property
    def held(self) -> Rows:
        """The rows themselves."""
        return self.frame

    @property
    def everything(self) -> Groups:
        """All rows."""
        return np.ones(self.reading.n_rows, dtype=np.bool_)

    def flags(self, column: str, condition: Condition) -> Groups:
        """Rows that meet a condition of the secret; one without a value does not."""
        return next(
            part.patterns[codes, part.conditions.index(condition)]
            for part, codes in self.secret.items()
            if part.column == column and condition in part.conditions
        )

    def n_chosen(self, chosen: Groups) -> int:
        """Number of rows that are chosen."""
        return int(np.count_nonzero(chosen))

    def near_matches(self, column: str, label: str) -> str:
        """A hint at frequent labels that look like one that no row has."""
        return near_matches(column, label, [self.frame])

    def check_varied(self) -> None:
        """Refuse columns and conditions that are the same in all rows."""
        check_read(self.query, self.reading, self.frame)

    def summed(self, chosen: Groups) -> "Summed":
        """Sums and moments of some rows, block by block; few enough rows are kept."""
        places, moments, dim = np.flatnonzero(chosen), RowMoments(), len(self.low)
        sums, done = np.zeros(1 + dim, dtype=np.int64), 0
        by_group, kept = np.zeros(dim), []
        for integers in self.reading.blocks(self.n_bits, places):
            rows = integers * self.steps
            rows += self.low
            moments.add(rows)
            sums += [len(rows), *integers.sum(axis=0)]
            by_group = by_group + self._groups.sums(rows, places[done : done + len(rows)])
            done += len(rows)
            if len(chosen) * dim <= _MOST_KEPT:
                kept.append(rows)
        return Summed(
            sums=sums,
            mean=moments.mean,
            covariance=moments.covariance,
            cells=self._groups.moments(by_group, places),
            rows=np.concatenate(kept) if len(kept) > 1 else next(iter(kept), None),
            groups=self._groups.groups[places] if kept else None,
            members=self._groups.cells,
        )


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class TalliedRows(RowTable):
    """Rows that stay where they are, with an engine or in files, and whose sums are here."""

    rows: Lazy | Batches | HandedSums
    tally: Tally

    @property
    def held(self) -> Rows:
        """The rows themselves, where they are."""
        return self.rows

    @property
    def everything(self) -> Groups:
        """All groups of rows."""
        return np.ones(len(self.tally.counts), dtype=np.bool_)

    def flags(self, column: str, condition: Condition) -> Groups:
        """Groups of rows that meet a condition of the secret; without a value they do not."""
        return self.tally.flags(column, condition)

    def n_chosen(self, chosen: Groups) -> int:
        """Number of rows that are chosen."""
        return int(self.tally.counts[chosen].sum())

    def near_matches(self, column: str, label: str) -> str:
        """A hint at frequent labels that look like one that no row has."""
        return near_matches(column, label, [self.rows])

    def check_varied(self) -> None:
        """Refuse columns and conditions that are the same in all rows."""
        check_tallied(self.query, self.tally, self.tally.covariance(self.everything), self.rows)

    def summed(self, chosen: Groups) -> "Summed":
        """Sums and moments of the rows of some groups."""
        n_rows = self.n_chosen(chosen)
        sums = self.tally.sums()[chosen].sum(axis=0)
        labels: dict[str, list[list[Partition]]] = {
            name: [parts] for name, parts in self.labellings.items() if self.tally.knows(parts)
        }
        together = [parts for (parts,) in labels.values()]
        every = {part for parts in together for part in parts}
        if len(together) > 1 and n_combined([*every]) <= _MOST_MEANS and self.tally.knows([*every]):
            labels[ALL] = together
        cells = {}
        for name, parts in labels.items():
            found = self.tally.labelled(chosen, parts)
            means = found.sums / found.counts[:, None] * self.steps + self.low
            cells[name] = CellMoments(found.codes, found.counts, means)
        return Summed(
            sums=np.array([n_rows, *sums], dtype=np.int64),
            mean=sums / n_rows * self.steps + self.low,
            covariance=self.tally.covariance(chosen) * np.outer(self.steps, self.steps),
            cells=cells,
            rows=None,
            groups=None,
            members={},
        )


class Summed(NamedTuple):
    """What is known of some rows."""

    sums: Integers
    """Number of rows, then sums of their quantised numbers."""
    mean: Floats
    """Mean of what a row adds, scaled, shape (dim,)."""
    covariance: Floats
    """Its covariance, divided by the number of rows, shape (dim, dim)."""
    cells: dict[str, CellMoments]
    rows: Floats | None
    """What each row adds, shape (n_rows, dim), if these are few enough and in memory."""
    groups: Integers | None
    """Group of each of these rows, all of it in one cell by each labelling."""
    members: dict[str, Integers]
    """Cell of each group, by the name of the labelling."""


class _Groups(NamedTuple):
    """Groups of rows that are in the same cell by each of several labellings."""

    groups: Integers
    """Group of each row."""
    cells: dict[str, Integers]
    """Cell of each group, by the name of the labelling."""

    @classmethod
    def of(cls, labels: Mapping[str, Integers], n_rows: int) -> "_Groups":
        """Number the groups of rows, few where labels take few values together."""
        groups, n_groups = np.zeros(n_rows, dtype=np.int64), 1
        for codes in labels.values():
            n_codes = int(codes.max()) + 1
            if n_groups * n_codes > _LARGEST_GROUP:
                known, groups = np.unique(groups, return_inverse=True)
                n_groups = len(known)
            groups, n_groups = groups * n_codes + codes, n_groups * n_codes
        known, groups = np.unique(groups, return_inverse=True)
        member = np.zeros(len(known), dtype=np.int64)
        member[groups] = np.arange(n_rows)
        cells = {name: codes[member] for name, codes in labels.items()}
        if len(cells) > 1 and ALL not in cells:
            cells[ALL] = np.arange(len(known))
        return cls(groups, cells)

    def sums(self, rows: Floats, places: Integers) -> Floats:
        """Sum these rows of the table by group, shape (n_groups, dim)."""
        groups = self.groups[places]
        order = np.argsort(groups, kind="stable")
        known, starts = np.unique(groups[order], return_index=True)
        sums = np.zeros((int(self.groups.max()) + 1, rows.shape[1]))
        sums[known] = np.add.reduceat(rows[order], starts, axis=0)
        return sums

    def moments(self, sums: Floats, places: Integers) -> dict[str, CellMoments]:
        """Shares and means of cells from the sums of the groups of these rows."""
        counts = np.bincount(self.groups[places], minlength=len(sums))
        found = {}
        for name, codes in self.cells.items():
            sizes = np.bincount(codes, weights=counts).astype(np.int64)
            totals = np.zeros((len(sizes), sums.shape[1]))
            np.add.at(totals, codes, sums)
            cells = np.flatnonzero(sizes)
            means = totals[cells] / sizes[cells, None]
            found[name] = CellMoments(cells, sizes[cells], means)
        return found


class Worlds(NamedTuple):
    """The query in its public scales, and what the differing rows add to it in each world."""

    query: Query
    distributions: Mapping[str, RowDistribution]


class MadeWorlds(Protocol):
    """A function that makes the worlds of a template from the rows of a table."""

    def __call__(self, table: object, *, is_checked: bool) -> Worlds:
        """Make the worlds; rows that are only looked at for their holder are not checked."""


def worlds_and_current(
    make: MadeWorlds, table: object, moments_from: object
) -> tuple[Query, Mapping[str, RowDistribution], Mapping[str, RowDistribution]]:
    """Make the worlds from `moments_from`, or from the table, and those of the table beside them.

    The latter are for the holder of the table alone: they tell whether its rows would need more
    noise. Empty where they cannot be made, or are the same.
    """
    if moments_from is not None and moments_from is table:
        raise ArgumentError(
            "moments_from must be another table than the released one: noise that is fitted to the "
            "released rows is not independent of them. Leave it out; the certificate then says so"
        )
    query, worlds = make(table if moments_from is None else moments_from, is_checked=True)
    current: Mapping[str, RowDistribution] = {}
    if moments_from is not None and table is not None:
        with contextlib.suppress(ScenarioError):
            current = make(table, is_checked=False).distributions
    return query, worlds, current if list(current) == list(worlds) else {}


def exact_sums(rows: Rows, features: RowFeatures, n_bits: int) -> tuple[int, Integers]:
    """Number of rows, and sums of their quantised numbers: equal wherever they are."""
    if not isinstance(rows, nw.DataFrame):
        tally = tally_of(rows, Layout.of(features, n_bits), has_moments=False)
        return int(tally.counts.sum()), tally.sums().sum(axis=0)
    check_columns(rows, features.columns)
    return len(rows), features.sums(rows, n_bits)


def checked_features(query: Query, *, has_public_rows: bool) -> RowFeatures:
    """Convert the query to sums over rows; refuse it if it is not that, or has no public range."""
    query = query.as_sums()
    features = query.features or RowFeatures.of([])
    if query.missing == "drop-rows":
        raise ScenarioError(
            "rows cannot be dropped here, because the number of rows is public or hidden as a "
            "whole: a missing value counts as the middle of its clip range, or as missing={column: "
            "value}. Leave the policy out"
        )
    pairs = zip(query.names, query.coordinates, features.high, strict=True)
    open_ended = [name for name, _, high in pairs if math.isinf(high)]
    if open_ended:
        raise ScenarioError(
            f"{listed(open_ended, quoted)}: a mean or a total needs a public range for the values "
            "of its column, because one extreme row could move it by any amount. Give clip="
            "{column: (low, high)} to the query, from knowledge of the subject and not from these "
            "rows"
        )
    means = [name for name, mean in zip(query.names, features.is_mean, strict=True) if mean]
    if means and not has_public_rows:
        raise ScenarioError(
            f"{listed(means, quoted)}: a mean or a rate divides by the number of rows, which is "
            "what is hidden here. Publish totals and counts; their ratio can be computed from them"
        )
    return features


def share_differing(within: float, n_rows: int, design: Design) -> Differing:
    """Number of rows that differ between two shares at most `within` apart.

    Under `stratified` a share p has floor(p n + 1/2) rows, so that at most ceil(w n) differ.

    >>> share_differing(0.1, 10, "stratified").most
    1
    """
    check_between(0, 1, within=within)
    check_count(FEWEST_ROWS, n_rows=n_rows)
    if n_rows > HIDDEN_ROWS:
        raise ArgumentError(f"n_rows must be at most {HIDDEN_ROWS:,}, got {n_rows}")
    if design == "independent":
        return Differing(most=n_rows, probability=float(within))
    return Differing(most=math.ceil(Fraction(repr(float(within))) * n_rows))


def size_differing(ratio: float, up_to: int) -> Differing:
    """Number of rows that differ between two sizes within a ratio, both at most `up_to`.

    >>> size_differing(1.1, 1_000).most
    90
    """
    check_above(1, ratio=ratio)
    check_count(FEWEST_ROWS, up_to=up_to)
    differing = up_to - math.ceil(up_to / Fraction(repr(float(ratio))))
    if not differing:
        raise ArgumentError("no two sizes up to up_to are within this ratio; use a larger one")
    return Differing(most=differing)


def stated_differing(secret: Mapping[str, Any]) -> Differing:
    """Number of rows that differ by the public description of a secret."""
    if "within" in secret:
        return share_differing(secret["within"], secret["n_rows"], secret["design"])
    return size_differing(secret["ratio"], secret["up_to"])


_SIZES: Final = ("n_rows", "n_differing", "up_to", "periods")
"""Facts of a secret in which tables that are about the same secret may differ."""


def shared_secret(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all tables about a secret share: whose it is, and which values are hidden."""
    return {name: value for name, value in secret.items() if name not in _SIZES}


def most_rows(secret: Mapping[str, Any]) -> int:
    """The public number of rows of a release; a constant where it is hidden."""
    return int(secret.get("n_rows", HIDDEN_ROWS))


def check_kinds(kinds: Mapping[str, int], hint: str = "") -> None:
    """Check that there are some rows of each kind; names of kinds are public."""
    for name, n_rows in kinds.items():
        if n_rows < FEWEST_ROWS:
            raise ScenarioError(
                f"at least {FEWEST_ROWS} rows must be of kind {quoted(name)}; there are fewer, so "
                f"nothing is known of what such rows add.{hint} Correct the value, choose "
                "another, or take the moments from a table that has such rows"
            )
