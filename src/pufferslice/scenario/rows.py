# SPDX-License-Identifier: Apache-2.0
"""The row model: two worlds whose tables share all rows but those that make the difference.

Source: theory of the row model, docs/guarantee.md. Nothing is fitted to the rows: the claim needs
the means and the covariances of what rows of each kind add, and holds for any rows that have them.
"""

import contextlib
import math
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, final, get_args

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import check_above, check_between, check_count
from pufferslice._core.text import listed, quoted
from pufferslice.data.frames import Frame, frame_of, missing_rows
from pufferslice.data.readers import read_table
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.features import RowFeatures, feature_bits
from pufferslice.queries.variation import check_varied
from pufferslice.scenario.distributions import Kind

Design = Literal["stratified", "independent"]
DESIGNS: Final = get_args(Design)

FEWEST_ROWS: Final = 2
HIDDEN_ROWS: Final = 2**40
"""Most rows of a table whose number of rows is hidden: a constant, so that it tells nothing."""
_DRAWS_AT_ONCE: Final = 2**22
_BLOCK: Final = 4096


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
    """Moments of the rows of one kind in each cell, a public label of rows; confidential."""

    shares: Floats
    """Share of the rows in each cell, shape (n_cells,)."""
    means: Floats
    """Mean of what a row of each cell adds, shape (n_cells, dim)."""
    covs: Floats
    """Its covariance, shape (n_cells, dim, dim)."""


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
    labels: Mapping[str, Integers] = attrs.field(factory=dict)
    """Cell of each row, by the name of the labelling; confidential."""
    boxes: Boxes
    differing: DifferingRows
    size: Floats = attrs.field(converter=locked, eq=same)
    """The query on the rows that the moments come from, scaled, shape (dim,); confidential."""
    ignorance: Floats = attrs.field(converter=locked, eq=same)
    """Variance of the query where only its public range is known, scaled, shape (dim,)."""

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.size)

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

    def cells(self, labelling: str, cells: Integers) -> CellMoments:
        """Moments in each of these cells; a cell without rows has share 0."""
        codes, dim = self.labels[labelling], self.dim
        order = np.argsort(codes, kind="stable")
        ends = np.searchsorted(codes[order], [cells, cells + 1])
        shares, means = np.zeros(len(cells)), np.zeros((len(cells), dim))
        covs = np.zeros((len(cells), dim, dim))
        for place, (start, stop) in enumerate(ends.T.tolist()):
            if stop > start:
                rows = self.rows_at_hand[order[start:stop]]
                shares[place] = len(rows) / len(codes)
                means[place], covs[place] = rows.mean(axis=0), covariance_of(rows)
        return CellMoments(shares, means, covs)

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
        """Bytes of the whole distribution, for a digest."""
        facts = f"rows {self.place} {self.differing} {self.row_cov.shape} {list(self.labels)}"
        arrays = [self.row_mean, self.row_cov, self.boxes.low, self.boxes.high, self.size]
        arrays += [] if self.rows is None else [self.rows]
        parts = [array.tobytes() for array in arrays]
        return [facts.encode(), *parts, *(codes.tobytes() for codes in self.labels.values())]

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
    """Covariance of rows, divided by their number.

    In blocks, so that rounding grows with their size and number, not with all rows.
    """
    centred = rows - rows.mean(axis=0)
    blocks = np.array_split(centred, max(1, len(centred) // _BLOCK))
    return np.asarray(np.sum([part.T @ part for part in blocks], axis=0) / len(centred))


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowTable:
    """Sums that the rows of a table add to a query, in scaled coordinates."""

    query: Query
    """The query in its public scales, which follow from its clip ranges."""
    frame: Frame
    rows: Floats
    """Sum that each row adds, shape (n_rows, dim)."""
    labels: Mapping[str, Integers]
    """Cell of each row, by the name of the labelling."""
    boxes: Boxes
    """Public boxes of what one row adds."""
    size: Floats
    """The query on the table, shape (dim,)."""
    ignorance: Floats
    """Variance of the query where only its public range is known, shape (dim,)."""

    @classmethod
    def of(
        cls,
        table: object,
        query: Query,
        *,
        n_rows: int | None = None,
        also: str | None = None,
        is_checked: bool = True,
    ) -> "RowTable":
        """Read a table for sums of `n_rows` rows, or of a hidden number of rows.

        `also` is a column that is read beside those of the query. Rows that are only looked at
        for their holder are not checked: a refusal would tell something about them.
        """
        frame, query = frame_of_rows(table), query.as_sums()
        columns = list(dict.fromkeys([*query.columns, *([also] if also else [])]))
        if is_checked:
            complete = frame[np.flatnonzero(~missing_rows(frame, columns))]
            if len(complete):
                check_varied(query, [complete])
        features = checked_features(query, has_public_rows=n_rows is not None)
        units = np.array([1 / (n_rows or 1) if mean else 1.0 for mean in features.is_mean])
        low, high = features.boxes()
        ends = np.stack([low.min(axis=0), high.max(axis=0)])
        spans = ends[1] - ends[0]
        if n_rows is None:
            spans = np.maximum(spans, np.abs(ends).max(axis=0))
        scales = np.exp2(np.ceil(np.log2(spans * units)))
        n_bits = feature_bits(n_rows or HIDDEN_ROWS)
        values = features.values(features.integers(frame, n_bits), n_bits)
        sums = features.outputs(frame, n_bits)
        if n_rows is not None:  # of a table with another number of rows, the same share
            sums = [
                total if mean else total * Fraction(n_rows, len(frame))
                for total, mean in zip(sums, features.is_mean, strict=True)
            ]
        size = np.array([float(total) for total in sums]) / scales
        boxes = Boxes(low=low * units / scales, high=high * units / scales)
        return cls(
            query=attrs.evolve(query, scales=scales, missing="middle"),
            frame=frame,
            rows=values * units / scales,
            labels={name: label(frame) for name, label in features.labels.items()},
            boxes=boxes,
            size=size,
            # A sum of a hidden number of rows has no public range: its own size stands for one.
            ignorance=size**2 if n_rows is None else (n_rows * boxes.spans) ** 2 / 12,
        )

    def kind_of(
        self,
        place: int,
        chosen: npt.NDArray[np.bool_],
        differing: Differing,
        *,
        boxes: Boxes | None = None,
    ) -> RowDistribution:
        """The rows of one kind, as they make the difference."""
        rows = self.rows[chosen]
        return RowDistribution(
            place=place,
            row_mean=rows.mean(axis=0),
            row_cov=covariance_of(rows),
            rows=rows,
            labels={name: codes[chosen] for name, codes in self.labels.items()},
            boxes=self.boxes if boxes is None else boxes,
            differing=differing,
            size=self.size,
            ignorance=self.ignorance,
        )

    def added(
        self, chosen: npt.NDArray[np.bool_], differing: Differing
    ) -> tuple[RowDistribution, RowDistribution]:
        """Rows that one world has and the other lacks: there, nothing is added."""
        boxes = self.boxes.with_absent()
        there = self.kind_of(1, chosen, differing, boxes=boxes)
        nothing = np.zeros((1, there.dim))
        none = attrs.evolve(
            there,
            place=0,
            row_mean=nothing[0],
            row_cov=covariance_of(nothing),
            rows=nothing,
            labels={},
        )
        return none, there


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


def frame_of_rows(table: object) -> Frame:
    """The rows of a table, or of a file or files named by a path."""
    return frame_of(read_table(table) if isinstance(table, str | os.PathLike) else table)


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


def most_rows(secret: Mapping[str, Any]) -> int:
    """The public number of rows of a release; a constant where it is hidden."""
    return int(secret.get("n_rows", HIDDEN_ROWS))


def check_kinds(kinds: Mapping[str, npt.NDArray[np.bool_]], hint: str = "") -> None:
    """Check that there are some rows of each kind; names of kinds are public."""
    for name, chosen in kinds.items():
        if np.count_nonzero(chosen) < FEWEST_ROWS:
            raise ScenarioError(
                f"at least {FEWEST_ROWS} rows must be of kind {quoted(name)}; there are fewer, so "
                f"nothing is known of what such rows add.{hint} Correct the value, choose "
                "another, or take the moments from a table that has such rows"
            )
