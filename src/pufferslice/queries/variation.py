# SPDX-License-Identifier: Apache-2.0
"""Checks that columns and conditions of a query vary and that its levels occur."""

import contextlib
import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import narwhals as nw
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.text import quoted
from pufferslice.data.engines import asked, collected
from pufferslice.data.frames import (
    Frame,
    coded_labels,
    complete_part,
    floats_of,
    label_of,
    labels_of,
)
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, frames_of
from pufferslice.errors import ScenarioError
from pufferslice.queries.conditions import equals
from pufferslice.queries.features import Reading
from pufferslice.queries.query import Query
from pufferslice.queries.ranges import Box, range_words
from pufferslice.queries.tally import Tally

_MOST_SHOWN: Final = 8
_MOST_COMPARED: Final = 5_000
_FEWEST_ROWS: Final = 10
"""Fewest rows of a label that an error may show: a rarer one could be about somebody."""
_SLACK: Final = 1e-9
"""Slack of declared values beyond the ends of a statistic, for rounding."""


def check_varied(query: Query, frames: Sequence[Frame]) -> None:
    """Check that conditions hold for some rows only, columns vary and levels occur."""
    check_ends(query, row_ends(query, frames), frames)


def check_ends(query: Query, ends: Floats, frames: Iterable[Rows] = ()) -> None:
    """Check as `check_varied`, from the `ends` that `row_ends` gives.

    Near matches of a label are looked for in `frames`.
    """
    for (column, label), occurs in zip(query.levels, ends[1, query.dim :], strict=True):
        if not occurs:
            hint = near_matches(column, label, frames)
            raise ScenarioError(
                f"no row has the level {quoted(label)} of column {quoted(column)}, so a release "
                f"would show noise alone for it.{hint} Correct the level or leave it out; if it "
                "is from a code list that has empty cells, give allow_empty=True, in a file "
                "allow_empty = true in [query]"
            )
    for coordinate, low, high in zip(query.coordinates, *ends[:, : query.dim], strict=True):
        if coordinate.column is None or low != high:
            continue
        if coordinate.condition is None:
            raise ScenarioError(
                f"column {quoted(coordinate.column)} has the same value in every row, so its "
                "statistics carry no information; leave it out"
            )
        who = "every row meets" if low > 0 else "no row meets"
        hint = ""
        if low == 0 and coordinate.condition.comparison == "equals":
            hint = near_matches(coordinate.column, str(coordinate.condition.value), frames)
        raise ScenarioError(
            f"{who} the condition {quoted(coordinate.condition.on(coordinate.column))}, so it says "
            f"nothing.{hint} Compare with a value that some rows have and others do not"
        )


def check_read(query: Query, reading: Reading, frame: Frame) -> None:
    """Check as `check_varied`, from what was read of the rows, as it counts in sums over them."""
    low, high = np.full(query.dim, np.inf), np.full(query.dim, -np.inf)
    values = {source.column: numbers for source, numbers in reading.numbers.items()}
    met = {
        (part.column, test): flags
        for part, codes in reading.codes.items()
        for test, flags in zip(part.conditions, part.patterns[np.unique(codes)].T, strict=True)
    }
    for place, (column, test) in enumerate((c.column, c.condition) for c in query.coordinates):
        if column is not None:
            found = values[column] if test is None else met[column, test]
            low[place], high[place] = found.min(), found.max()
    has_level = [met[column, equals(label)].max() for column, label in query.levels]
    ends = np.hstack([[low, high], [has_level, has_level]])
    check_ends(query, ends, [frame])


def check_tallied(query: Query, tally: Tally, covariance: Floats, rows: Rows) -> None:
    """Check as `check_read`, from sums over all rows and the covariance of their integers."""
    sums, spread = tally.sums().sum(axis=0), np.diagonal(covariance)
    ends = np.stack([np.zeros(query.dim), np.ones(query.dim)])
    for place, coordinate in enumerate(query.coordinates):
        if coordinate.condition is not None and not spread[place] > 0:
            ends[:, place] = sums[place] > 0
        elif not spread[place] > 0:
            ends[:, place] = 0.0
    has_level = [
        float(
            any(
                not tally.knows([part]) or tally.has(part, test)
                for part in tally.layout.features.partitions
                for test in part.conditions
                if part.column == column and test == equals(label)
            )
        )
        for column, label in query.levels
    ]
    check_ends(query, np.hstack([ends, [has_level, has_level]]), [rows])


def check_reached(query: Query, ends: Floats) -> None:
    """Check that a box holds some value of each coordinate: else clipping leaves nothing.

    `ends` are the lowest and highest value of each coordinate over all secrets, shape (2, dim).
    """
    if not isinstance(query.range, Box):
        return
    beside = (ends[0] <= ends[1]) & ((ends[1] < query.range.low) | (ends[0] > query.range.high))
    for place in np.flatnonzero(beside):
        words = range_words(query.range)[place]
        raise ScenarioError(
            f"range of {quoted(query.names[place])} is {words}, and every value of it under every "
            "secret lies outside: a release would show an end of the range, not the data. Give a "
            "range that holds the values, or leave it out"
        )


def check_possible(query: Query, ends: Floats) -> None:
    """Check that each statistic can have its declared values, whatever the rows.

    `ends` are the lowest and highest of them, shape (2, dim), without rare ones, which a model may
    have outside; infinity and minus infinity if there are none.
    """
    if isinstance(query.range, Box):  # it holds possible values only, and all others are moved
        return
    for name, coordinate, low, high in zip(query.names, query.coordinates, *ends, strict=True):
        if low < coordinate.low - _SLACK or high > coordinate.high + _SLACK:
            raise ScenarioError(
                f"{quoted(name)} lies between {coordinate.low:g} and {coordinate.high:g}, and a "
                "declared world gives it another value. Declare the worlds in the unit of the "
                "statistic: a rate is a share from 0 to 1, neither a percentage nor a count. Draws "
                "of a model that leave its range can be clipped to it with query.with_range(...)"
            )


def row_ends(query: Query, frames: Sequence[Frame]) -> Floats:
    """Lowest and highest number, or flag, of the column of each coordinate, then of each level.

    Shape (2, dim + n_levels); the flag of a level is 1 if some row has it.
    """
    ends = np.array([[np.inf] * query.dim, [-np.inf] * query.dim])
    for place, coordinate in enumerate(query.coordinates):
        for frame in frames:
            if coordinate.column is None or ends[0, place] < ends[1, place]:
                break
            if coordinate.condition is None:
                values = floats_of(frame, coordinate.column)
            else:
                values = coordinate.condition.flags(frame, coordinate.column).astype(np.float64)
            ends[0, place] = min(ends[0, place], values.min())
            ends[1, place] = max(ends[1, place], values.max())
    columns = dict.fromkeys(column for column, _ in query.levels)
    labels = {
        column: {*chain(*(coded_labels(f, column)[0].tolist() for f in frames))}
        for column in columns
    }
    has_level = [float(label in labels[column]) for column, label in query.levels]
    return np.hstack([ends, [has_level, has_level]])


def near_matches(column: str, label: str, frames: Iterable[Rows]) -> str:
    """A hint at labels that look like that of the condition and are not rare."""
    counts: Counter[str] = Counter()
    for frame in frames:
        counts |= _frequent_labels(frame, column)  # two tables may hold the same rows
    folded: dict[str, list[str]] = {}
    for frequent, _ in counts.most_common(_MOST_COMPARED):
        folded.setdefault(frequent.strip().casefold(), []).append(frequent)
    wanted = label.strip().casefold()
    matches = difflib.get_close_matches(wanted, folded, n=_MOST_SHOWN)
    with contextlib.suppress(ValueError):  # the label of 7.0 is "7"
        number = label_of(float(wanted))
        matches = matches or [number] * (number in folded)
    near = [name for match in matches for name in folded[match]][:_MOST_SHOWN]
    return f" Did you mean {' or '.join(map(quoted, near))}?" if near else ""


def _frequent_labels(rows: Rows, column: str) -> Counter[str]:
    """The labels of a column that are not rare, and the number of rows that have them."""
    if isinstance(rows, nw.LazyFrame):
        with asked(rows):
            groups = rows.group_by(column, drop_null_keys=True).agg(nw.len().alias("n_rows"))
            frequent = groups.filter(nw.col("n_rows") >= _FEWEST_ROWS)
        found = collected(frequent.sort("n_rows").tail(_MOST_COMPARED))
        return Counter(dict(zip(map(label_of, found[column]), found["n_rows"], strict=True)))
    counts: Counter[str] = Counter()
    if isinstance(rows, HandedSums):
        return counts
    for frame in frames_of(rows, [column]):
        part, present = complete_part(frame, column)
        counts.update(labels_of(part, column).tolist() if present.any() else ())
    return Counter({name: n for name, n in counts.items() if n >= _FEWEST_ROWS})
