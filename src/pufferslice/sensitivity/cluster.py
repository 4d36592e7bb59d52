# SPDX-License-Identifier: Apache-2.0
"""Scans on a Dask cluster: every task is a pure function; its counts are added in a tree."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice._core.checks import check_count
from pufferslice._core.threads import Progress, n_cores, silent
from pufferslice.data.frames import frame_of, labels_of
from pufferslice.data.readers import Piece, data_files, pieces_of
from pufferslice.errors import ArgumentError, ClusterError, MissingExtraError, PuffersliceError
from pufferslice.queries import Query
from pufferslice.scenario.histograms import BinGrid, Histograms, added
from pufferslice.scenario.simulator import floats_in
from pufferslice.sensitivity.binned import Tally
from pufferslice.sensitivity.scan import (
    RowScan,
    check_some,
    counted_outputs,
    scan_files,
    scan_piece,
    spill_tables,
)
from pufferslice.sensitivity.strata import SpilledStrata

try:
    import dask
    import dask.array
    import distributed
except ModuleNotFoundError as error:
    msg = "clusters need Dask; install it with: pip install 'pufferslice[scale]'"
    raise MissingExtraError(msg) from error

PARTS_PER_SUM: Final = 8
"""Histograms that are added in one task."""

MOST_ROWS_PER_TASK: Final = 2**24
_TASKS_PER_THREAD: Final = 4
_SECONDS_TO_CONNECT: Final = 10


@contextlib.contextmanager
def cluster_client(
    *, workers: int | None = None, scheduler: str | None = None
) -> Iterator[distributed.Client]:
    """A client of a running cluster (`scheduler`, its address), or of new local processes."""
    if (workers is None) == (scheduler is None):
        msg = "give either workers, a number of local processes, or scheduler, an address"
        raise ArgumentError(msg)
    with contextlib.ExitStack() as stack:
        if workers is not None:
            check_count(1, workers=workers)
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, n_cores() // workers),
                dashboard_address="127.0.0.1:0",
            )
            yield stack.enter_context(distributed.Client(stack.enter_context(cluster)))
            return
        try:
            client = distributed.Client(scheduler, timeout=_SECONDS_TO_CONNECT)
        except (OSError, ValueError) as error:
            msg = f"no scheduler answers at {scheduler!r}: {error}; start one with dask scheduler"
            raise ClusterError(msg) from error
        yield stack.enter_context(client)


def scan_anywhere(
    path: str | os.PathLike[str],
    scan: RowScan,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Histograms:
    """Scan files in this process, in local worker processes, or on a running cluster.

    The result is the same, bit for bit. Only scans run on a cluster: `spill_files` reads the same
    files once more, in this process.
    """
    if workers is None and scheduler is None:
        return scan_files(path, scan, checkpoint=checkpoint, progress=progress)
    if checkpoint is not None:
        msg = (
            "a checkpoint is for a scan in one process; on a cluster, lost tasks run again. "
            "Leave checkpoint out"
        )
        raise ArgumentError(msg)
    with cluster_client(workers=workers, scheduler=scheduler) as client:
        return scan_cluster_files(path, scan, client, progress=progress)


def scan_cluster_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    client: distributed.Client,
    *,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of Parquet files on a cluster whose workers see the same files.

    Guarantee: the result is that of all rows at once, bit for bit, also if workers are lost.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    n_threads = sum(client.nthreads().values())
    shared_scan = client.submit(_itself, scan)
    tasks = _tasks(pieces, n_threads)
    leaves = [client.submit(_counted, _count_pieces, task, shared_scan) for task in tasks]
    n_rows = [sum(piece.n_rows for piece in task) for task in tasks]
    return _summed(client, leaves, n_rows, scan.grid, progress)


def scan_dask_frame(
    frame: Any,  # noqa: ANN401 - Dask ships no types
    scan: RowScan,
    client: distributed.Client,
    *,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of a Dask dataframe; `progress` counts partitions."""
    shared_scan = dask.delayed(_itself)(scan)
    columns = [name for name in frame.columns if name in scan.columns]
    parts = frame[columns].to_delayed() if columns else frame.to_delayed()
    leaves = client.compute(
        [dask.delayed(_counted)(_count_frame, part, shared_scan) for part in parts]
    )
    return _summed(client, leaves, [1] * len(leaves), scan.grid, progress)


def spill_dask_frame(
    frame: Any,  # noqa: ANN401 - Dask ships no types
    scan: RowScan,
    histograms: Histograms,
    client: distributed.Client,
    *,
    progress: Progress = silent,
) -> dict[str, SpilledStrata]:
    """As `spill_tables`, for the frame of `scan_dask_frame`.

    The partitions come to this process one after the other, and are spilled on its disk.
    """

    def tables() -> Iterator[object]:
        columns = [name for name in frame.columns if name in scan.columns]
        for part in frame[columns].to_delayed():
            try:
                table = client.compute(part).result()
            except Exception as error:  # noqa: BLE001 - whatever the graph behind a frame can raise
                raise _failed(error) from None
            if len(table):
                yield table

    return spill_tables(tables(), scan, histograms, progress=progress)


def scan_dask_array(
    outputs: Any,  # noqa: ANN401 - Dask ships no types
    labels: Any,  # noqa: ANN401 - as above
    query: Query,
    grid: BinGrid,
    client: distributed.Client,
) -> Histograms:
    """Count the rows of a Dask array of a clipped query's outputs, in the user's units.

    `outputs` has shape (n, dim) and `labels`, the secret of each row, shape (n,).
    """
    if outputs.ndim != 2 or labels.ndim != 1:
        msg = f"outputs and labels must have 2 and 1 axes, got {outputs.ndim} and {labels.ndim}"
        raise ArgumentError(msg)
    whole_rows = outputs.rechunk({1: -1})
    if whole_rows.numblocks[0] != labels.numblocks[0]:
        labels = labels.rechunk({0: whole_rows.chunks[0]})
    if query.range is None:
        msg = "outputs are counted on a public range; clip the query with query.with_range(...)"
        raise ArgumentError(msg)
    shared_query, shared_grid = dask.delayed(_itself)(query), dask.delayed(_itself)(grid)
    rows, secrets = whole_rows.to_delayed().ravel(), labels.to_delayed().ravel()
    leaves = client.compute(
        [
            dask.delayed(_counted)(_count_block, x, s, shared_query, shared_grid)
            for x, s in zip(rows, secrets, strict=True)
        ]
    )
    return _summed(client, leaves, [1] * len(leaves), grid, silent)


def _tasks(pieces: Sequence[Piece], n_threads: int) -> list[list[Piece]]:
    """Neighbouring pieces in one task, so that histograms are few and all workers are busy."""
    total = sum(piece.n_rows for piece in pieces)
    wanted = min(MOST_ROWS_PER_TASK, total // (_TASKS_PER_THREAD * max(1, n_threads)))
    tasks: list[list[Piece]] = [[]]
    n_rows = 0
    for piece in pieces:
        if tasks[-1] and n_rows + piece.n_rows > wanted:
            tasks.append([])
            n_rows = 0
        tasks[-1].append(piece)
        n_rows += piece.n_rows
    return tasks


def _summed(
    client: distributed.Client,
    leaves: list[Any],
    n_rows: list[int],
    grid: BinGrid,
    progress: Progress,
) -> Histograms:
    """The sum of all leaves, added on the cluster."""
    if not leaves:
        msg = "there is nothing to scan: no partitions; give a frame or files with at least one"
        raise ArgumentError(msg)
    sizes = {leaf.key: n for leaf, n in zip(leaves, n_rows, strict=True)}
    level = list(leaves)
    while len(level) > 1:
        level = [
            client.submit(added, level[i : i + PARTS_PER_SUM])
            for i in range(0, len(level), PARTS_PER_SUM)
        ]
    (root,) = level
    ready = distributed.as_completed(leaves)
    # A leaf without references is dropped as soon as it is added.
    leaves.clear()
    level.clear()
    done, total = 0, sum(sizes.values())
    try:
        for leaf in ready:
            if leaf.status == "error":
                leaf.result()
            done += sizes[leaf.key]
            progress(done, total)
        histograms: Histograms = root.result()
    except (MemoryError, distributed.KilledWorker) as error:
        mebibytes = grid.n_bytes(1) / 2**20
        msg = (
            f"workers were lost repeatedly, or ran out of memory ({type(error).__name__}). The "
            f"histograms of one secret take {mebibytes:.3g} MiB, and a worker holds up to "
            f"{PARTS_PER_SUM + 1} of each: give workers more memory or fewer threads, or use fewer "
            "bins, directions or secrets"
        )
        raise ClusterError(msg) from None
    except distributed.client.FutureCancelledError:
        msg = "the cluster cancelled the scan; start it again"
        raise ClusterError(msg) from None
    except PuffersliceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the graph behind a frame can raise
        raise _failed(error) from None
    check_some(sum(histograms.n_rows.values()), histograms.n_dropped)
    return histograms


def _failed(error: Exception) -> ClusterError:
    return ClusterError(
        f"a task of the cluster failed with {type(error).__name__}. Its message is not shown, "
        "because it may quote the data; compute the frame alone to read it"
    )


def _counted(count: Callable[..., Histograms], *args: Any) -> Histograms:  # noqa: ANN401
    """The histograms of a task. Dask logs its errors, so they must not quote the data."""
    try:
        return count(*args)
    except (PuffersliceError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever reading a partition can raise
        raise _failed(error) from None


def _itself(value: Any) -> Any:  # noqa: ANN401 - a task that can be run again if its result is lost
    return value


def _count_pieces(pieces: Sequence[Piece], scan: RowScan) -> Histograms:
    return added(scan_piece(piece, scan) for piece in pieces)


def _count_frame(part: Any, scan: RowScan) -> Histograms:  # noqa: ANN401 - a partition
    if not len(part):
        return Histograms.none(scan.grid)
    tally = Tally(scan.grid, 1)
    tally.add_rows(scan.rows(part))
    return tally.histograms()


def _count_block(outputs: Floats, labels: Any, query: Query, grid: BinGrid) -> Histograms:  # noqa: ANN401
    if not len(labels) and not len(outputs):
        return Histograms.none(grid)
    values = np.asarray(labels)
    table = np.empty(len(values), dtype=[("labels", values.dtype)])
    table["labels"] = values
    secrets, codes = np.unique(labels_of(frame_of(table), "labels"), return_inverse=True)
    tally = Tally(grid, 1)
    raw = floats_in(outputs, "a block of outputs")
    tally.add_rows(counted_outputs(query, raw, secrets.tolist(), codes.astype(np.int64)))
    return tally.histograms()
