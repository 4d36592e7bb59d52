# SPDX-License-Identifier: Apache-2.0
"""One pass over files, tables or arrays: histograms of every secret along every slice."""

import contextlib
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pufferslice.arrays import Floats
from pufferslice.errors import ScenarioError, TableError
from pufferslice.gaps.binned import CountedRows, Tally
from pufferslice.histograms import BinGrid, Histograms
from pufferslice.parallel import Progress, n_cores, silent
from pufferslice.priors import Prior, Source, check_group_sizes
from pufferslice.queries import Query
from pufferslice.queries.variation import check_ends, check_reached
from pufferslice.scenario import Pairs, Scenario, check_clipping, chosen_pairs
from pufferslice.simulation import SimulatedSample, floats_in
from pufferslice.streaming.checkpoint import START, Checkpoint, Position
from pufferslice.streaming.rows import RowScan, counted_outputs
from pufferslice.tables.files import data_files
from pufferslice.tables.pieces import Piece, batches, pieces_of

_MOST_PREPARING: Final = 4
"""Batches that are prepared at once; each is in memory."""


def scan_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of a CSV or Parquet file, or of a folder or glob of Parquet files.

    Memory does not grow with the rows. With `checkpoint`, the state is saved there now and then,
    and a scan that was stopped goes on from the last save; the file may be removed afterwards.
    `progress` is told rows read and rows in all, 0 for a CSV file, which does not say.

    Guarantee: the result is that of all rows at once, bit for bit.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), scan, pieces)
    tally, position = _resumed(scan, saved)
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


def scan_piece(piece: Piece, scan: RowScan) -> Histograms:
    """Count the rows of one piece of a file on one thread: the work of one task of a cluster."""
    tally = Tally(scan.grid, 1)
    for _, table, _ in _tables(scan, [piece], START):
        tally.add_rows(_rows_of(scan, piece, table))
    return tally.histograms()


def scan_tables(
    tables: Iterable[object], scan: RowScan, *, progress: Progress = silent
) -> Histograms:
    """Count the rows of tables that come one after the other, of any dataframe library."""
    tally = Tally(scan.grid)
    for number, table in enumerate(tables):
        try:
            tally.add_rows(scan.rows(table))
        except (TableError, ScenarioError) as error:
            where = f"table {number}"
            raise _located(where, error) from None
        progress(tally.n_rows + tally.n_dropped, 0)
    check_some(tally.n_rows, tally.n_dropped)
    return tally.histograms()


def scan_outputs(
    blocks: Iterable[tuple[str, Any]],
    query: Query,
    grid: BinGrid,
    *,
    progress: Progress = silent,
) -> Histograms:
    """Count outputs of a clipped query that come as (secret, array) pairs, in the user's units.

    An array has shape (n, dim). This takes any iterator; for simulators see `simulated_outputs`.

    >>> from pufferslice.gaps.binned import bin_grid
    >>> from pufferslice.queries import Box, columns
    >>> from pufferslice.slicing import FiniteProfile
    >>> query = columns(["age"]).with_range(Box([0], [100]))
    >>> grid = bin_grid(query, FiniteProfile.axes(dim=1), n_bins=4)
    >>> blocks = [("A", [[10.0], [90.0]]), ("B", [[60.0]])]
    >>> scan_outputs(blocks, query, grid).counts[:, 0].tolist()
    [[1, 0, 0, 1], [0, 0, 1, 0]]
    """
    if query.range is None:
        msg = "outputs are counted on a public range; clip the query with query.with_range(...)"
        raise ScenarioError(msg)
    tally = Tally(grid)
    for number, (secret, block) in enumerate(blocks):
        try:
            outputs = floats_in(block, "a block of outputs")
            codes = np.zeros(len(outputs), dtype=np.int64)
            tally.add_rows(counted_outputs(query, outputs, [secret], codes))
        except (ScenarioError, TableError) as error:
            where = f"block {number}"
            raise _located(where, error) from None
        progress(tally.n_rows, 0)
    check_some(tally.n_rows, tally.n_dropped)
    return tally.histograms()


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
) -> Scenario:
    """The scenario of law `records` whose priors are the rows that were counted.

    As `Scenario.from_records`, from histograms. The rows themselves are declared to be the prior;
    if they are a sample of it, say so with `scenario.with_sampled_priors()`.
    """
    n_rows = histograms.n_rows
    check_group_sizes(list(n_rows.values()))
    if scan.grid != histograms.grid:
        msg = (
            "the histograms were made by another scan: profile, range or bins differ. Scan the "
            "data again"
        )
        raise ScenarioError(msg)
    check_ends(scan.query, histograms.ends)
    check_reached(scan.query, histograms.ends)
    total = sum(n_rows.values())
    prior = Prior(
        name=name,
        source=source,
        origin=f"the query of each row of the group, counted in {scan.grid.n_bins} bins",
        probabilities={secret: n / total for secret, n in n_rows.items()},
        laws=histograms.laws(),
        n_rows=n_rows,
        n_clipped=dict(zip(histograms.secrets, histograms.n_clipped.tolist(), strict=True)),
    )
    scenario = Scenario(
        law="records",
        secret=scan.secret.description(),
        secrets=histograms.secrets,
        pairs=chosen_pairs(pairs, histograms.secrets),
        priors=(prior,),
        query=scan.query,
        rule=scan.secret,
        n_dropped=histograms.n_dropped,
        counted_range=scan.range.description(),
    )
    # What rows that were not clipped are, bins do not say; they are taken to be equal.
    check_clipping(scenario, lambda: scenario.clipped()["all"] != list(scenario.secrets))
    return scenario


def check_some(n_rows: int, n_dropped: int) -> None:
    """A scan that has counted no row is refused."""
    if not n_rows:
        dropped = f": all {n_dropped} have missing values" if n_dropped else ""
        msg = (
            f"there were no rows to count{dropped}; give data with at least two rows for each "
            "secret"
        )
        raise TableError(msg)


def _resumed(scan: RowScan, saved: Checkpoint | None) -> tuple[Tally, Position]:
    tally = Tally(scan.grid)
    state = saved.load() if saved is not None else None
    if state is None:
        return tally, START
    tally.add_histograms(state[0])
    return tally, state[1]


def _tables(
    scan: RowScan, pieces: list[Piece], start: Position
) -> Generator[tuple[Piece, pa.Table, Position]]:
    """Batches of rows, with the piece they are of and the position after them."""
    n_rows = start.n_rows
    for index in range(start.n_pieces, len(pieces)):
        piece = pieces[index]
        skip = start.n_rows_of_next if index == start.n_pieces else 0
        seen = 0
        for table in batches(piece, scan.reading):
            # Counted in rows, because where batches end may depend on the version of pyarrow.
            rest = table.slice(min(table.num_rows, max(0, skip - seen)))
            seen += table.num_rows
            n_rows += rest.num_rows
            if rest.num_rows:
                yield piece, rest, Position(index, seen, n_rows)
        if not seen:
            msg = f"{piece} has no rows; leave it out"
            raise TableError(msg)


def _prepared_ahead(
    scan: RowScan, pieces: list[Piece], start: Position
) -> Generator[tuple[CountedRows, Position]]:
    """Rows ready to be counted, in order; the next ones are read and prepared meanwhile."""
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
        raise _located(str(piece), _whole_error(scan, piece, error)) from None


def _whole_error(
    scan: RowScan, piece: Piece, error: TableError | ScenarioError
) -> TableError | ScenarioError:
    """The error as it is for the whole row group, so that its count is that of the group."""
    if not piece.n_rows:
        return error
    try:
        scan.rows(pa.concat_tables(batches(piece, scan.reading)))
    except (TableError, ScenarioError) as whole:
        return whole
    return error


def _located(where: str, error: TableError | ScenarioError) -> TableError | ScenarioError:
    return type(error)(f"{where}: {error}")
