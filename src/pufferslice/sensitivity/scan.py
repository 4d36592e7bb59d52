# SPDX-License-Identifier: Apache-2.0
"""One pass over files, tables or arrays: histograms of every secret along every slice."""

import contextlib
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.files import (
    CONFIDENTIAL,
    canonical_json,
    check_room,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_whole,
)
from pufferslice._core.text import given
from pufferslice._core.threads import Progress, n_cores, silent
from pufferslice.data.frames import (
    FILL_OR_DROP,
    Frame,
    check_columns,
    counted,
    frame_of,
    labels_of,
    missing_rows,
)
from pufferslice.data.readers import (
    Piece,
    Reading,
    batches,
    data_files,
    pieces_of,
    place_of,
    state_of,
)
from pufferslice.errors import ArgumentError, ScenarioError, StorageError, TableError
from pufferslice.queries import Ball, Box, Query
from pufferslice.queries.variation import check_ends, check_reached
from pufferslice.scenario.histograms import DEFAULT_BINS, BinGrid, Histograms, Strata
from pufferslice.scenario.priors import Prior, Source, check_group_sizes
from pufferslice.scenario.scenario import Pairs, Scenario, check_clipping, chosen_pairs
from pufferslice.scenario.secrets import Bins, ColumnSecret, secret_columns
from pufferslice.scenario.simulator import SimulatedSample, floats_in
from pufferslice.sensitivity.binned import CountedRows, Tally, bin_grid, public_range
from pufferslice.sensitivity.profiles import Profile
from pufferslice.sensitivity.strata import (
    MOST_ROWS,
    Announce,
    SpilledStrata,
    SpillFolder,
    spilled,
    unannounced,
)

FORMAT: Final = "pufferslice-scan"
VERSION: Final = 2

SECONDS_BETWEEN: Final = 30.0
"""How often a running scan is saved."""

_END_OF_HEAD: Final = b"\n\0\n"
_MOST_CODES: Final = 2**31
_MOST_PREPARING: Final = 4
"""Batches that are prepared at once; each is in memory."""


@final
@attrs.frozen(kw_only=True, repr=False)
class RowScan:
    """What a scan reads from every row: its secret, and the bins of its projections.

    Distribution `records`: one release is the query of one row, the secret is the group of that
    row.
    """

    query: Query
    secret: ColumnSecret
    grid: BinGrid
    range: Box | Ball
    """Where the outputs lie; a query with a range of its own is clipped to it."""
    null_values: tuple[str, ...] = ()
    """Strings that stand for a missing value in files."""

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
        >>> from pufferslice.sensitivity.profiles import FiniteProfile
        >>> query = columns(["age"]).with_range(Box([0], [100]))
        >>> RowScan.of(query, secret="race", profile=FiniteProfile.axes(dim=1))
        RowScan(query='columns', secret=('race',), n_directions=1, n_bins=4096)
        """
        if query.level != "row":
            raise ScenarioError(
                "a stream of rows gives the distribution of a query of one row, got "
                f"{query.kind!r}, a query of a table. Use distribution 'records' with "
                "columns(...); distributions 'groups' and 'bootstrap' need the rows of a group "
                "together: read them with read_table(...)"
            )
        if isinstance(secret, Bins):
            raise ScenarioError(
                f"quantiles of column {secret.column!r} need all rows before the first one can be "
                "counted; add a column with the bin of each row, and name it as the secret"
            )
        if isinstance(null_values, str):
            raise ArgumentError(f"null_values must be a list of strings, got {given(null_values)}")
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
        """What is read from a file."""
        return Reading(self.columns, self.secret.columns, self.null_values)

    def rows(self, table: object) -> CountedRows:
        """Secrets and prepared outputs of the rows of one table, of any dataframe library."""
        frame = frame_of(table)
        check_columns(frame, self.columns)
        complete, n_dropped = self._complete(frame.select(list(self.columns)))
        if not len(complete):
            no_rows = np.empty((0, self.query.dim))
            return CountedRows.of(self.query, no_rows, [], np.empty(0, np.int64), n_dropped)
        secrets, codes = _coded(self.secret, complete)
        outputs = self.query.bound(complete)(np.arange(len(complete)))
        if self.query.range is None and (outside := self.range.outside(outputs)).any():
            raise ScenarioError(
                f"{np.count_nonzero(outside.any(axis=1))} of {len(outputs)} rows lie outside the "
                f"public range ({_counts_by_name(self.query, outside)}). Give a range that holds "
                "them, or clip them to it with query.with_range(...); --range on the command line "
                "clips"
            )
        return CountedRows.of(self.query, outputs, secrets, codes, n_dropped)

    def parts(self) -> dict[str, str]:
        """Digests of everything that determines where a row is counted, by name."""
        query = [self.query.description(), self.secret.description(), list(self.null_values)]
        bins = [self.range.description(), self.query.scales.tolist(), self.grid.n_bins]
        return {
            "query": digest(canonical_json(query)),
            "profile": digest(self.grid.directions.astype(">f8").tobytes()),
            "range": digest(canonical_json(bins)),
        }

    def _complete(self, frame: Frame) -> tuple[Frame, int]:
        """The rows without missing values, and how many others there are."""
        rows = missing_rows(frame, self.columns)
        n_missing = int(np.count_nonzero(rows))
        if not n_missing:
            return frame, 0
        if self.query.missing == "refuse":
            by_column = {
                name: int(np.count_nonzero(missing_rows(frame, [name]))) for name in self.columns
            }
            named = counted({name: n for name, n in by_column.items() if n})
            raise TableError(
                f"{n_missing} of {len(frame)} rows have missing values or NaN ({named}). "
                f"{FILL_OR_DROP}"
            )
        return frame[np.flatnonzero(~rows)], n_missing

    def __repr__(self) -> str:
        return (
            f"RowScan(query={self.query.kind!r}, secret={self.secret.columns!r}, "
            f"n_directions={self.grid.n_directions}, n_bins={self.grid.n_bins})"
        )


def scan_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of a CSV or Parquet file, or of a folder or glob of Parquet files.

    Memory does not grow with the rows. With `checkpoint`, the state is saved there regularly, and
    an interrupted scan resumes from the last save; the file may be removed afterwards. `progress`
    gets the rows read and the rows in total, which is 0 for a CSV file: unknown.

    Guarantee: the result is that of all rows at once, bit for bit.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), scan, pieces)
    tally = Tally(scan.grid)
    position = START if saved is None else saved.resumed(tally)
    total = sum(piece.n_rows for piece in pieces)
    with contextlib.closing(_prepared_ahead(scan, pieces, position)) as ready:
        for rows, reached in ready:
            tally.add_rows(rows)
            progress(reached.n_rows, total)
            if saved is not None and saved.is_due:
                saved.save(tally.histograms(), reached)
    check_some(tally.n_rows, tally.n_dropped)
    histograms = tally.histograms()
    if saved is not None:
        saved.save(histograms, Position(len(pieces), 0, tally.n_rows + tally.n_dropped))
    return histograms


def rows_of_pieces(
    pieces: Sequence[Piece], scan: RowScan, n_skipped: int = 0
) -> Iterator[CountedRows]:
    """Rows ready to be counted, without those that begin the first piece; on one thread."""
    for piece, table, _ in _tables(scan, pieces, Position(0, n_skipped, 0)):
        yield _rows_of(scan, piece, table)


def scan_tables(
    tables: Iterable[object], scan: RowScan, *, progress: Progress = silent
) -> Histograms:
    """Count the rows of tables that come one after the other, of any dataframe library."""
    tally = Tally(scan.grid)
    for number, table in enumerate(tables):
        try:
            tally.add_rows(scan.rows(table))
        except (TableError, ScenarioError) as error:
            raise type(error)(f"table {number}: {error}") from None
        progress(tally.n_rows + tally.n_dropped, 0)
    check_some(tally.n_rows, tally.n_dropped)
    return tally.histograms()


def spill_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    histograms: Histograms,
    *,
    folder: str | os.PathLike[str] | None = None,
    most_rows: int = MOST_ROWS,
    announce: Announce = unannounced,
    progress: Progress = silent,
) -> dict[str, SpilledStrata]:
    """A second pass over the files of a scan: their rows on disk, to bound the whole output.

    For `streamed_scenario(..., strata=...)`. The rows go to a temporary folder, which is removed
    when nothing uses the strata any more, after errors, and at the end of the process; what a
    killed process leaves is removed by the next spill. With `folder` they stay there, confidential,
    until you remove them: a later process takes them up if it was given the same files and scan and
    the first one finished, and starts again otherwise.
    `announce` gets the bytes that will be written; `most_rows` are those of a stratum.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    cuts = f"{most_rows} {sorted(histograms.n_rows.items())}"

    def identity() -> dict[str, str]:
        """Of rows that a later process may take up."""
        if folder is None:
            return {}
        return {**scan.parts(), "data": _data_digest(pieces), "rows": digest(cuts.encode())}

    total = sum(histograms.n_rows.values()) + histograms.n_dropped
    with contextlib.closing(_prepared_ahead(scan, pieces, START)) as ready:
        return spilled(
            ((rows, reached.n_rows) for rows, reached in ready),
            histograms,
            SpillFolder(folder),
            identity,
            most_rows=most_rows,
            announce=announce,
            progress=lambda done: progress(done, total),
        )


def spill_tables(
    tables: Iterable[object],
    scan: RowScan,
    histograms: Histograms,
    *,
    most_rows: int = MOST_ROWS,
    announce: Announce = unannounced,
    progress: Progress = silent,
) -> dict[str, SpilledStrata]:
    """As `spill_files`, for the tables of `scan_tables`, given again in the same order."""
    total = sum(histograms.n_rows.values())

    def ready() -> Iterator[tuple[CountedRows, int]]:
        n_rows = 0
        for table in tables:
            rows = scan.rows(table)
            n_rows += len(rows.codes)
            yield rows, n_rows

    return spilled(
        ready(),
        histograms,
        SpillFolder(None),
        scan.parts,
        most_rows=most_rows,
        announce=announce,
        progress=lambda done: progress(done, total),
    )


def scan_outputs(
    blocks: Iterable[tuple[str, Any]], query: Query, grid: BinGrid, *, progress: Progress = silent
) -> Histograms:
    """Count outputs of a clipped query that come as (secret, array) pairs, in the user's units.

    An array has shape (n, dim). This takes any iterator; for simulators see `simulated_outputs`.

    >>> from pufferslice.sensitivity.binned import bin_grid
    >>> from pufferslice.queries import Box, columns
    >>> from pufferslice.sensitivity.profiles import FiniteProfile
    >>> query = columns(["age"]).with_range(Box([0], [100]))
    >>> grid = bin_grid(query, FiniteProfile.axes(dim=1), n_bins=4)
    >>> blocks = [("A", [[10.0], [90.0]]), ("B", [[60.0]])]
    >>> scan_outputs(blocks, query, grid).counts[:, 0].tolist()
    [[1, 0, 0, 1], [0, 0, 1, 0]]
    """
    if query.range is None:
        raise ScenarioError(
            "outputs are counted on a public range; clip the query with query.with_range(...)"
        )
    tally = Tally(grid)
    for number, (secret, block) in enumerate(blocks):
        try:
            tally.add_rows(_counted_outputs(query, secret, block))
        except (ScenarioError, TableError) as error:
            raise type(error)(f"block {number}: {error}") from None
        progress(tally.n_rows, 0)
    check_some(tally.n_rows, tally.n_dropped)
    return tally.histograms()


def _counted_outputs(query: Query, secret: str, block: Any) -> CountedRows:
    outputs = floats_in(block, "a block of outputs")
    if outputs.ndim != 2 or outputs.shape[1] != query.dim:
        raise ScenarioError(f"outputs must have shape (n, {query.dim}), got {outputs.shape}")
    bad = ~np.isfinite(outputs)
    if bad.any():
        raise ScenarioError(
            f"{int(bad.any(axis=1).sum())} of {len(bad)} rows are NaN or infinite "
            f"({_counts_by_name(query, bad)}). Leave them out, or draw finite outputs"
        )
    return CountedRows.of(query, outputs, [secret], np.zeros(len(outputs), dtype=np.int64))


def simulated_outputs(
    worlds: Mapping[str, SimulatedSample], query: Query
) -> Iterator[tuple[str, Floats]]:
    """The draws of simulators in blocks, for `scan_outputs`: each world's own public stream."""
    for secret, sample in worlds.items():
        for block in sample.blocks(query, secret):
            yield secret, block


def streamed_scenario(
    histograms: Histograms,
    scan: RowScan,
    *,
    pairs: Pairs = "all",
    source: Source = "released_data",
    name: str = "table",
    strata: Mapping[str, Strata] | None = None,
) -> Scenario:
    """The scenario of distribution `records` whose priors are the rows that were counted.

    As `Scenario.from_records`, from histograms. The rows themselves are declared to be the prior;
    if they are a sample of it, use `scenario.with_sampled_priors()`. `strata`, from `spill_files`,
    bound the whole output by couplings of the rows; without, it is bounded by the range alone.
    """
    n_rows = histograms.n_rows
    check_group_sizes(list(n_rows.values()))
    if scan.grid != histograms.grid:
        raise ScenarioError(
            "the histograms were made by another scan: profile, range or bins differ. Scan the "
            "data again"
        )
    if strata is not None and set(strata) != set(n_rows):
        raise ScenarioError(
            "the strata must be those of the secrets that were counted; spill the rows again"
        )
    distributions = histograms.distributions()
    if strata is not None:
        distributions = {
            secret: attrs.evolve(distribution, strata=strata[secret])
            for secret, distribution in distributions.items()
        }
    check_ends(scan.query, histograms.ends)
    check_reached(scan.query, histograms.ends)
    total = sum(n_rows.values())
    prior = Prior(
        name=name,
        source=source,
        origin=f"the query of each row of the group, counted in {scan.grid.n_bins} bins",
        probabilities={secret: n / total for secret, n in n_rows.items()},
        distributions=distributions,
        n_rows=n_rows,
        n_clipped=dict(zip(histograms.secrets, histograms.n_clipped.tolist(), strict=True)),
    )
    scenario = Scenario(
        distribution="records",
        secret=scan.secret.description(),
        secrets=histograms.secrets,
        pairs=chosen_pairs(pairs, histograms.secrets),
        priors=(prior,),
        query=scan.query,
        rule=scan.secret,
        n_dropped=histograms.n_dropped,
        counted_range=scan.range.description(),
    )
    # Bins do not tell rows that were not clipped apart; they are taken to be equal.
    check_clipping(scenario, lambda: scenario.clipped()["all"] != list(scenario.secrets))
    return scenario


def check_some(n_rows: int, n_dropped: int) -> None:
    """Refuse a scan that has counted no row."""
    if not n_rows:
        dropped = f": all {n_dropped} have missing values" if n_dropped else ""
        raise TableError(
            f"there are no rows to count{dropped}; give data with at least two rows for each secret"
        )


def _counts_by_name(query: Query, flags: npt.NDArray[np.bool_]) -> str:
    counts = zip(query.names, flags.sum(axis=0), strict=True)
    return counted({name: int(n) for name, n in counts if n})


def _coded(rule: ColumnSecret, frame: Frame) -> tuple[list[str], Integers]:
    """The secrets, and the position of each row's secret among them.

    Labels are made for one row of each kind only: all of them would take longer than the rest.
    """
    codes = np.zeros(len(frame), dtype=np.int64)
    n_codes = 1
    for column in rule.columns:
        column_codes, n_values = _column_codes(frame, column)
        if n_codes * n_values > _MOST_CODES:
            kinds, codes = np.unique(codes, return_inverse=True)
            n_codes = len(kinds)
        codes, n_codes = codes * n_values + column_codes, n_codes * n_values
    if n_codes > len(frame):
        kinds, codes = np.unique(codes, return_inverse=True)
        n_codes = len(kinds)
    first = np.full(n_codes, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    used = np.flatnonzero(first >= 0)
    # Values that differ may have one label, as 0.0 and -0.0 do.
    labels, positions = np.unique(rule.labels(frame[first[used]]), return_inverse=True)
    renumbered = np.full(n_codes, -1, dtype=np.int64)
    renumbered[used] = positions
    return labels.tolist(), renumbered[codes]


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


class Position(NamedTuple):
    """Progress of a scan."""

    n_pieces: int
    """Number of pieces that are done, from the first."""
    n_rows_of_next: int
    """Rows that are done of the next one."""
    n_rows: int
    """Rows that are done in total."""
    ahead: Sequence[int] = ()
    """Numbers of later pieces that are done already: a cluster counts in any order."""

    def after(self, done: Collection[int], n_rows: int) -> "Position":
        """The position once these pieces are done too, and `n_rows` rows in total."""
        finished = {*self.ahead, *done}
        first = next(i for i in itertools.count(self.n_pieces) if i not in finished)
        n_rows_of_next = self.n_rows_of_next if first == self.n_pieces else 0
        return Position(first, n_rows_of_next, n_rows, sorted(i for i in finished if i > first))


START: Final = Position(0, 0, 0)


class Checkpoint:
    """A file with a complete state of a scan; it is replaced atomically.

    One process and a cluster write the same file, and resume from each other's. It contains
    histograms of the data, so only its owner may read it.
    """

    def __init__(self, path: Path, scan: RowScan, pieces: Sequence[Piece]) -> None:
        self._path = path
        self._identity = {
            **scan.parts(),
            "data": _data_digest(pieces),
            # Not imported by name: the package names this module for type checkers.
            "version of pufferslice": sys.modules["pufferslice"].__version__,
        }
        self._saved_at = time.monotonic()

    def resumed(self, tally: Tally) -> Position:
        """Where the last save was; what was counted before it is added to the tally.

        The start if there is no file. A file of another scan is refused.
        """
        if not self._path.exists():
            check_room(self._path.parent)
            return START
        head, separator, body = read_bytes(self._path, "archive").partition(_END_OF_HEAD)
        facts = self._facts(head, body) if separator else None
        if facts is None:
            raise StorageError(
                f"{str(self._path)!r} is not a checkpoint of a scan, or it is damaged; name another"
            )
        identity = facts["identity"]
        other = [name for name, value in self._identity.items() if identity.get(name) != value]
        if other:
            raise StorageError(
                f"the checkpoint {str(self._path)!r} was made with another {' and '.join(other)}; "
                "its counts do not belong here. Name another file, or remove it"
            )
        tally.add_histograms(Histograms.from_bytes(body))
        return Position(*facts["position"])

    def save(self, histograms: Histograms, position: Position) -> None:
        """Replace the saved state by this one."""
        body = histograms.to_bytes()
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "identity": self._identity,
            "position": list(position),
            "state": _state_digest(self._identity, position, body),
        }
        content = pretty_json(facts) + _END_OF_HEAD + body
        write_whole(self._path, content, CONFIDENTIAL)
        self._saved_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last save was long ago."""
        return time.monotonic() - self._saved_at >= SECONDS_BETWEEN

    @staticmethod
    def _facts(head: bytes, body: bytes) -> dict[str, Any] | None:
        """What the head of a file says; None if it is not one that was saved with this body."""
        try:
            facts: dict[str, Any] = parsed_json(head)
            identity, position = facts["identity"], facts["position"]
            is_known = (facts["format"], facts["version"]) == (FORMAT, VERSION)
            is_whole = facts["state"] == _state_digest(identity, position, body)
        except (ValueError, LookupError, TypeError):
            return None
        is_typed = isinstance(identity, dict) and isinstance(position, list)
        return facts if is_known and is_whole and is_typed else None


def _state_digest(identity: object, position: Sequence[object], body: bytes) -> str:
    """Binds counts to their position: mixing two states would count rows twice or not at all."""
    return digest(canonical_json([identity, list(position)]), body)


def _data_digest(pieces: Sequence[Piece]) -> str:
    """Digest of names, sizes and modification times, or versions, of the files."""
    files = dict.fromkeys(piece.file for piece in pieces)
    return digest(canonical_json([[place_of(file), *state_of(file)] for file in files]))


def _tables(
    scan: RowScan, pieces: Sequence[Piece], start: Position
) -> Generator[tuple[Piece, pa.Table, Position]]:
    """Batches of rows, with their piece and the position after them."""
    n_rows = start.n_rows
    for index in range(start.n_pieces, len(pieces)):
        if index in start.ahead:
            continue
        piece = pieces[index]
        skip = start.n_rows_of_next if index == start.n_pieces else 0
        n_read = 0
        for table in batches(piece, scan.reading):
            # In rows, because the size of batches may depend on the version of pyarrow.
            rest = table.slice(min(table.num_rows, max(0, skip - n_read)))
            n_read += table.num_rows
            n_rows += rest.num_rows
            if rest.num_rows:
                yield piece, rest, Position(index, n_read, n_rows, start.ahead)
        if not n_read:
            raise TableError(f"{piece} has no rows; leave it out")


def _prepared_ahead(
    scan: RowScan, pieces: list[Piece], start: Position
) -> Generator[tuple[CountedRows, Position]]:
    """Rows ready to be counted, in order; the next ones are prepared in the background."""
    n_threads = min(n_cores(), _MOST_PREPARING)
    tables = _tables(scan, pieces, start)
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(n_threads) as preparers:
        pending: deque[tuple[Future[CountedRows], Position]] = deque()
        try:
            coming = reader.submit(next, tables, None)
            while (item := coming.result()) is not None:
                coming = reader.submit(next, tables, None)
                piece, table, position = item
                pending.append((preparers.submit(_rows_of, scan, piece, table), position))
                if len(pending) > n_threads:
                    rows, reached = pending.popleft()
                    yield rows.result(), reached
            for rows, reached in pending:
                yield rows.result(), reached
        finally:
            reader.shutdown(cancel_futures=True)
            preparers.shutdown(cancel_futures=True)


def _rows_of(scan: RowScan, piece: Piece, table: object) -> CountedRows:
    try:
        return scan.rows(table)
    except (TableError, ScenarioError) as error:
        raised = error
        if piece.n_rows:
            # Counts in the message are then those of the whole row group, not of a batch.
            try:
                scan.rows(pa.concat_tables(batches(piece, scan.reading)))
            except (TableError, ScenarioError) as whole:
                raised = whole
        raise type(raised)(f"{piece}: {raised}") from None
