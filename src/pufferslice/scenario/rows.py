# SPDX-License-Identifier: Apache-2.0
"""The row model: two worlds whose tables share all rows but those that make the difference.

Source: theory of the row model, docs/guarantee.md. Nothing is fitted to the rows: the claim needs
the mean and the covariance of what one row adds, and holds for any rows that have them.
"""

import math
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Final, Literal, final, get_args

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import Floats, Integers, locked, same
from pufferslice._core.checks import check_above, check_between, check_count
from pufferslice._core.text import listed, quoted
from pufferslice.data.frames import Frame, frame_of, missing_rows, without_missing
from pufferslice.data.readers import read_table
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.features import RowFeatures, feature_bits
from pufferslice.queries.variation import check_varied
from pufferslice.scenario.distributions import Kind

Design = Literal["stratified", "independent"]
DESIGNS: Final = get_args(Design)

FEWEST_ROWS: Final = 2
_FILL_OR_MIDDLE: Final = (
    'Fill them in, or count each as the middle of its clip range: missing = "middle" under [data] '
    'of a scenario file, query.with_missing("middle") in Python'
)
_DRAWS_AT_ONCE: Final = 2**22


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

    def draw(self, n_draws: int, rng: np.random.Generator) -> Integers:
        """Draw independent numbers of rows that differ."""
        return np.asarray(rng.binomial(self.most, self.probability, n_draws), dtype=np.int64)


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowDistribution:
    """Sum that the differing rows add to a query, in one of two worlds.

    All other rows are the same in both worlds, and known to the reader; they add nothing here.
    """

    kind: ClassVar[Kind] = "rows"
    n_samples: ClassVar[int] = 0
    place: int
    """Place of the world: 0 with fewer differing rows, 1 with more."""
    rows: Floats = attrs.field(converter=locked, eq=same)
    """Sum that each row of this kind adds, scaled, shape (n_rows, dim); confidential."""
    spans: Floats = attrs.field(converter=locked, eq=same)
    """Largest change of each coordinate by one exchanged row, scaled; public, shape (dim,)."""
    differing: Differing
    size: Floats = attrs.field(converter=locked, eq=same)
    """The query on the rows that the moments come from, scaled, shape (dim,); confidential."""

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return int(self.rows.shape[1])

    @property
    def row_mean(self) -> Floats:
        """Mean of what a row adds, shape (dim,)."""
        return np.asarray(self.rows.mean(axis=0))

    @property
    def row_cov(self) -> Floats:
        """Covariance, divided by the number of rows, of what a row adds, shape (dim, dim)."""
        centred = self.rows - self.row_mean
        # In blocks, so that rounding grows with their size and number, not with all rows.
        blocks = np.array_split(centred, max(1, len(centred) // 4096))
        return np.asarray(np.sum([part.T @ part for part in blocks], axis=0) / len(centred))

    @property
    def mean(self) -> Floats:
        """Mean of what the differing rows add, shape (dim,)."""
        return self.differing.mean * self.row_mean

    @property
    def cov(self) -> Floats:
        """Covariance of what the differing rows add, shape (dim, dim)."""
        count, mean = self.differing, self.row_mean
        varying = count.mean_square - count.mean**2
        return np.asarray(count.mean * self.row_cov + varying * np.outer(mean, mean))

    def atoms(self) -> None:
        """Return None: sums of rows have too many values to list."""

    def draw(self, n_draws: int, *, rng: np.random.Generator) -> tuple[Floats, Integers]:
        """Draw sums of real rows, with replacement, each its own value."""
        counts = self.differing.draw(n_draws, rng)
        values = np.empty((n_draws, self.dim))
        block = max(1, _DRAWS_AT_ONCE // max(1, int(counts.max(initial=1)) * self.dim))
        for start in range(0, n_draws, block):
            part = counts[start : start + block]
            ends = np.cumsum(part)
            drawn = self.rows[rng.integers(len(self.rows), size=int(ends[-1]))]
            sums = np.vstack([np.zeros(self.dim), np.cumsum(drawn, axis=0)])
            values[start : start + block] = sums[ends] - sums[ends - part]
        return values, np.arange(n_draws)

    def reduced(self) -> tuple[npt.NDArray[Any], ...]:
        """Reduced form, never the same for two worlds: other rows than these may be released."""
        return np.array([self.place]), self.rows

    def digest_parts(self) -> list[bytes]:
        """Bytes of the whole distribution, for a digest."""
        facts = f"rows {self.place} {self.differing} {self.rows.shape}"
        return [facts.encode(), self.rows.tobytes(), self.spans.tobytes(), self.size.tobytes()]

    def __repr__(self) -> str:
        return f"RowDistribution(dim={self.dim}, differing={self.differing})"


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class RowTable:
    """Sums that the rows of a table add to a query, in scaled coordinates."""

    query: Query
    """The query in its public scales, which follow from its clip ranges."""
    frame: Frame
    rows: Floats
    """Sum that each row adds, shape (n_rows, dim)."""
    spans: Floats
    """Largest amount that one row can add or take away, shape (dim,); public."""
    size: Floats
    """The query on the table, shape (dim,)."""

    @classmethod
    def of(
        cls,
        table: object,
        query: Query,
        *,
        n_rows: int | None = None,
        up_to: int | None = None,
        also: str | None = None,
    ) -> "RowTable":
        """Read a table for sums of `n_rows` rows, or of a hidden number of rows `up_to` a largest.

        `also` is a column that is read beside those of the query.
        """
        frame = frame_of_rows(table)
        columns = list(dict.fromkeys([*query.columns, *([also] if also else [])]))
        if query.missing == "refuse":
            without_missing(frame, columns, "refuse", remedy=_FILL_OR_MIDDLE)
        complete = frame[np.flatnonzero(~missing_rows(frame, columns))]
        if len(complete):
            check_varied(query, [complete])
        features = checked_features(query, has_public_rows=n_rows is not None)
        units = np.array([1 / (n_rows or 1) if mean else 1.0 for mean in features.is_mean])
        spans = features.spans
        if n_rows is None:
            spans = np.maximum(spans, np.maximum(np.abs(features.low), np.abs(features.high)))
        scales = np.exp2(np.ceil(np.log2(spans * units)))
        n_bits = feature_bits(n_rows or up_to or len(frame))
        values = features.values(features.integers(frame, n_bits), n_bits)
        sums = features.outputs(frame, n_bits)
        if n_rows is not None:  # of a table with another number of rows, the same share
            sums = [
                total if mean else total * Fraction(n_rows, len(frame))
                for total, mean in zip(sums, features.is_mean, strict=True)
            ]
        return cls(
            query=attrs.evolve(query, scales=scales),
            frame=frame,
            rows=values * units / scales,
            spans=spans * units / scales,
            size=np.array([float(total) for total in sums]) / scales,
        )


def frame_of_rows(table: object) -> Frame:
    """The rows of a table, or of a file or files named by a path."""
    return frame_of(read_table(table) if isinstance(table, str | os.PathLike) else table)


def checked_features(query: Query, *, has_public_rows: bool) -> RowFeatures:
    """Convert the query to sums over rows; refuse it if it is not that, or has no public range."""
    features = query.features
    if query.level != "table" or features is None:
        raise ScenarioError(
            "this query is not a sum over rows, and no promise is known for other statistics of a "
            "table of rows. Use means, rates, totals and counts, or contingency_table; compute "
            "ratios and group means from released totals and counts; or use prior='draws', whose "
            "claim is about the drawn tables"
        )
    if query.range is not None or not np.all(query.scales == 1):
        raise ScenarioError(
            "range and scales are not used here: clip the values of each row with clip={column: "
            "(low, high)}; the noise needs no units"
        )
    if query.missing == "drop-rows":
        raise ScenarioError(
            "rows cannot be dropped here, because the number of rows is public or hidden as a "
            "whole; use query.with_missing('middle'): a missing value counts as the middle of its "
            "clip range"
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


def most_rows(secret: Mapping[str, Any]) -> int:
    """The public number of rows of a release, or the largest that it may have."""
    return int(secret["n_rows"] if "n_rows" in secret else secret["up_to"])


def check_both_kinds(has: npt.NDArray[np.bool_], property_name: str, hint: str = "") -> None:
    """Check that some rows have the property, and some do not."""
    if min(np.count_nonzero(has), np.count_nonzero(~has)) < FEWEST_ROWS:
        raise ScenarioError(
            f"a prevalence needs at least {FEWEST_ROWS} rows with {quoted(property_name)} and "
            f"{FEWEST_ROWS} without.{hint} Correct the value, or choose another"
        )


def two_worlds(
    names: tuple[str, str], rows: tuple[Floats, Floats], table: RowTable, differing: Differing
) -> Mapping[str, RowDistribution]:
    """The distributions of the two worlds, fewer rows of a kind first."""
    return {
        name: RowDistribution(
            place=place, rows=part, spans=table.spans, differing=differing, size=table.size
        )
        for place, (name, part) in enumerate(zip(names, rows, strict=True))
    }
