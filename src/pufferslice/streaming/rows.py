# SPDX-License-Identifier: Apache-2.0
"""What a scan does with rows: which secret each has, and what the query says of it."""

from collections.abc import Sequence
from typing import Any, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pufferslice.arrays import Floats, Integers
from pufferslice.errors import ArgumentError, ScenarioError, TableError
from pufferslice.gaps.binned import CountedRows, bin_grid, public_range
from pufferslice.histograms import DEFAULT_BINS, BinGrid
from pufferslice.queries import Ball, Box, Query
from pufferslice.secret import Bins, ColumnSecret, secret_columns
from pufferslice.showing import given
from pufferslice.slicing import Profile
from pufferslice.storage import canonical_json, digest
from pufferslice.tables import Frame, check_columns, frame_of, labels_of, missing_rows
from pufferslice.tables.frames import counted
from pufferslice.tables.pieces import Reading

_MOST_CODES = 2**31


@final
@attrs.frozen(kw_only=True, repr=False)
class RowScan:
    """What is read from every row: its secret, and where its projections fall.

    Law `records`: one release is the query of one row, the secret is the group of that row.
    """

    query: Query
    secret: ColumnSecret
    grid: BinGrid
    range: Box | Ball
    """Where the outputs lie; a query with a range of its own is clipped to it."""
    null_values: tuple[str, ...] = ()
    """Texts that mean a missing value in files."""

    @classmethod
    def of(
        cls,
        query: Query,
        *,
        secret: str | Sequence[str] | Bins,
        profile: Profile,
        n_bins: int = DEFAULT_BINS,
        range: Box | Ball | None = None,  # noqa: A002 - the word users know
        null_values: Sequence[str] = (),
    ) -> "RowScan":
        """The scan of a query of rows along the directions of a profile.

        >>> from pufferslice.queries import columns
        >>> from pufferslice.slicing import FiniteProfile
        >>> query = columns(["age"]).with_range(Box([0], [100]))
        >>> RowScan.of(query, secret="race", profile=FiniteProfile.axes(dim=1))
        RowScan(query='columns', secret=('race',), n_directions=1, n_bins=4096)
        """
        check_streamable(query, secret)
        if isinstance(null_values, str):
            msg = f"null_values must be a list of texts, got {given(null_values)}"
            raise ArgumentError(msg)
        grid = bin_grid(query, profile, n_bins=n_bins, range=range)
        limits = public_range(query, range)
        rule = ColumnSecret(columns=secret_columns(secret))
        return cls(
            query=query, secret=rule, grid=grid, range=limits, null_values=tuple(null_values)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys((*self.secret.columns, *self.query.columns)))

    @property
    def reading(self) -> Reading:
        """What is read of a file."""
        return Reading(self.columns, self.secret.columns, self.null_values)

    def rows(self, table: object) -> CountedRows:
        """Secrets and prepared outputs of the rows of one table, of any dataframe library."""
        frame = frame_of(table)
        check_columns(frame, self.columns)
        complete, n_dropped = self._complete(frame.select(list(self.columns)))
        if complete is None:
            nothing = np.empty((0, self.query.dim))
            return CountedRows.of(self.query, nothing, [], np.empty(0, np.int64), n_dropped)
        secrets, codes = _coded(self.secret, complete)
        outputs = self.query.bound(complete)(np.arange(len(complete)))
        if self.query.range is None:
            check_inside(self.query, self.range, outputs)
        return CountedRows.of(self.query, outputs, secrets, codes, n_dropped)

    def parts(self) -> dict[str, str]:
        """Digests of what decides where a row is counted, by name."""
        query = [self.query.description(), self.secret.description(), list(self.null_values)]
        bins = [self.range.description(), self.query.scales.tolist(), self.grid.n_bins]
        return {
            "query": digest(canonical_json(query)),
            "profile": digest(self.grid.directions.astype(">f8").tobytes()),
            "range": digest(canonical_json(bins)),
        }

    def _complete(self, frame: Frame) -> tuple[Frame | None, int]:
        """The rows that lack nothing, if any, and how many were left out."""
        rows = missing_rows(frame, self.columns)
        n_missing = int(np.count_nonzero(rows))
        if not n_missing:
            return frame, 0
        if self.query.missing == "refuse":
            by_column = {
                name: int(np.count_nonzero(missing_rows(frame, [name]))) for name in self.columns
            }
            named = counted({name: n for name, n in by_column.items() if n})
            msg = (
                f"{n_missing} of {len(frame)} rows have missing values or NaN ({named}). Fill them "
                'in, or leave those rows out with query.with_missing("drop-rows"), --missing '
                "drop-rows on the command line; the number left out is stated"
            )
            raise TableError(msg)
        kept = np.flatnonzero(~rows)
        return (frame[kept] if len(kept) else None), n_missing

    def __repr__(self) -> str:
        return (
            f"RowScan(query={self.query.kind!r}, secret={self.secret.columns!r}, "
            f"n_directions={self.grid.n_directions}, n_bins={self.grid.n_bins})"
        )


def check_streamable(query: Query, secret: str | Sequence[str] | Bins) -> None:
    """The law of a query of rows can be counted in one pass; other laws need all rows at once."""
    if query.level != "row":
        msg = (
            f"a stream of rows gives the law of a query of one row, got {query.kind!r}, which is "
            "one of a table. Use law 'records' with columns(...); laws 'groups' and 'bootstrap' "
            "need the rows of a group together: read them with read_table(...)"
        )
        raise ScenarioError(msg)
    if isinstance(secret, Bins):
        msg = (
            f"quantiles of column {secret.column!r} need all rows before the first one can be "
            "counted; add a column with the bin of each row, and name it as the secret"
        )
        raise ScenarioError(msg)


def counted_outputs(
    query: Query, outputs: Floats, secrets: list[str], codes: Integers
) -> CountedRows:
    """Outputs that were not computed here, ready to be counted; none may be NaN or infinite."""
    if outputs.ndim != 2 or outputs.shape[1] != query.dim:
        msg = f"outputs must have shape (n, {query.dim}), got {outputs.shape}"
        raise ScenarioError(msg)
    bad = ~np.isfinite(outputs)
    if bad.any():
        named = _counts_by_name(query, bad)
        msg = (
            f"{int(bad.any(axis=1).sum())} of {len(bad)} rows are NaN or infinite ({named}). Leave "
            "them out, or draw finite outputs"
        )
        raise ScenarioError(msg)
    return CountedRows.of(query, outputs, secrets, codes)


def check_inside(query: Query, limits: Box | Ball, outputs: Floats) -> None:
    """Every output is in the range; others are counted, by coordinate."""
    outside = limits.outside(outputs)
    n_outside = int(np.count_nonzero(outside.any(axis=1)))
    if n_outside:
        named = _counts_by_name(query, outside)
        msg = (
            f"{n_outside} of {len(outputs)} rows lie outside the public range ({named}). Give a "
            "range that holds them, or clip them to it with query.with_range(...); --range on the "
            "command line clips"
        )
        raise ScenarioError(msg)


def _counts_by_name(query: Query, flags: npt.NDArray[np.bool_]) -> str:
    counts = zip(query.names, flags.sum(axis=0), strict=True)
    return counted({name: int(n) for name, n in counts if n})


def _coded(rule: ColumnSecret, frame: Frame) -> tuple[list[str], Integers]:
    """The secret of each row as a number, and the secret of each number.

    Labels are made for one row of each kind only; making them for all would take longer than
    everything else.
    """
    codes = np.zeros(len(frame), dtype=np.int64)
    n_codes = 1
    for column in rule.columns:
        own, n_own = _column_codes(frame, column)
        if n_codes * n_own > _MOST_CODES:
            kinds, codes = np.unique(codes, return_inverse=True)
            n_codes = len(kinds)
        codes, n_codes = codes * n_own + own, n_codes * n_own
    if n_codes > len(frame):
        kinds, codes = np.unique(codes, return_inverse=True)
        n_codes = len(kinds)
    first = np.full(n_codes, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    used = np.flatnonzero(first >= 0)
    renumbered = np.full(n_codes, -1, dtype=np.int64)
    renumbered[used] = np.arange(len(used))
    return rule.labels(frame[first[used]]).tolist(), renumbered[codes]


def _column_codes(frame: Frame, column: str) -> tuple[Integers, int]:
    try:
        values: Any = frame[column].to_arrow()
    except pa.ArrowException:
        # Objects of several kinds; the error, which would show one of them, is not chained.
        values = None
    if values is None:
        kinds, codes = np.unique(labels_of(frame, column), return_inverse=True)
        return codes.astype(np.int64), len(kinds)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.DictionaryArray):
        values = values.dictionary_encode()
    return np.asarray(values.indices.to_numpy(), dtype=np.int64), len(values.dictionary)
