# SPDX-License-Identifier: Apache-2.0
"""Scans on a Dask cluster, and strata that stay on it: every task is a pure function."""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_count
from pufferslice._core.threads import Progress, n_cores, silent
from pufferslice.data.frames import frame_of, labels_of
from pufferslice.data.readers import Piece, data_files, pieces_of
from pufferslice.errors import ArgumentError, ClusterError, MissingExtraError, PuffersliceError
from pufferslice.queries import Query
from pufferslice.scenario.histograms import BinGrid, Histograms, Strata, added
from pufferslice.scenario.simulator import floats_in
from pufferslice.sensitivity.binned import Tally, grouped
from pufferslice.sensitivity.scan import (
    RowScan,
    check_some,
    counted_outputs,
    scan_files,
    scan_piece,
)
from pufferslice.sensitivity.strata import (
    MOST_ROWS,
    Announce,
    Cut,
    KeptStrata,
    PairWork,
    Stratum,
    check_counted,
    check_spillable,
    cuts_of,
    few_directions,
    rows_changed,
    unannounced,
)
from pufferslice.sensitivity.tables import MatchingTables

try:
    import dask
    import dask.array
    import dask.dataframe
    import distributed
    import pandas as pd
except ModuleNotFoundError as error:
    msg = "clusters need Dask; install it with: pip install 'pufferslice[scale]'"
    raise MissingExtraError(msg) from error

PARTS_PER_SUM: Final = 8
"""Histograms that are added in one task."""

MOST_ROWS_PER_TASK: Final = 2**24
_TASKS_PER_THREAD: Final = 4
_SECONDS_TO_CONNECT: Final = 10

Result = TypeVar("Result")


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

    The result is the same, bit for bit. `spill_files` reads the same files once more, in this
    process; `spill_dask_frame` keeps rows on the cluster.
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
    leaves = [client.submit(_shielded, _count_pieces, task, shared_scan) for task in tasks]
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
        [dask.delayed(_shielded)(_count_frame, part, shared_scan) for part in parts]
    )
    return _summed(client, leaves, [1] * len(leaves), scan.grid, progress)


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class ClusterStrata(KeptStrata):
    """The strata of one secret on the workers of a cluster, which couple them.

    They are there for as long as the client is connected and something uses them.
    """

    strata: tuple[distributed.Future, ...]
    """Each a `Stratum`."""
    client: distributed.Client

    def rows(self, stratum: int) -> Floats:
        """The rows of one stratum, which come to this process."""
        rows: Floats = _result(self.strata[stratum]).rows
        return rows

    def each_pair(
        self, other: Strata, places: Sequence[tuple[int, int]], work: PairWork
    ) -> Iterator[tuple[MatchingTables, float]]:
        """What `work` gives for pairs of strata, on the workers; only that comes here."""
        if not isinstance(other, ClusterStrata):
            msg = "strata on a cluster are coupled with strata on it; spill both from one frame"
            raise ArgumentError(msg)
        pairs = [(self.strata[i], other.strata[j]) for i, j in places]
        futures = [self.client.submit(_shielded, work, *pair, pure=False) for pair in pairs]
        ready = distributed.as_completed(futures)
        futures.clear()
        for future in ready:
            yield _result(future)


def spill_dask_frame(
    frame: Any,  # noqa: ANN401 - Dask ships no types
    scan: RowScan,
    histograms: Histograms,
    client: distributed.Client,
    *,
    most_rows: int = MOST_ROWS,
    announce: Announce = unannounced,
    progress: Progress = silent,
) -> dict[str, ClusterStrata]:
    """As `spill_tables`, for the frame of `scan_dask_frame`; the rows stay on the cluster.

    Dask's shuffle brings every row to its stratum, and the workers couple strata: this process
    holds one at most. Keep the client open until the certificate is issued. `progress` counts
    strata, `announce` gets the bytes of all rows together.

    Guarantee: strata and couplings are those of one process, bit for bit.
    """
    check_spillable(histograms)
    check_count(1, most_rows=most_rows)
    dim = histograms.grid.dim
    cuts = {secret: cut for secret, (cut, _) in cuts_of(histograms, most_rows).items()}
    owners = [(secret, k) for secret, cut in cuts.items() for k in range(cut.n_strata)]
    firsts = {secret: owners.index((secret, 0)) for secret in cuts}
    announce(8 * dim * sum(cuts[secret].size(k) for secret, k in owners))
    columns = [name for name in frame.columns if name in scan.columns]
    parts = frame[columns].to_delayed()
    shared_scan = dask.delayed(_itself)(scan)
    counted = client.compute(
        [dask.delayed(_shielded)(_count_secrets, part, shared_scan) for part in parts]
    )
    before, reached = [], Counter[str]()
    for counts in map(_result, counted):
        before.append(dict(reached))
        reached.update(counts)
    if reached != histograms.n_rows:
        raise rows_changed()
    numbered = [
        dask.delayed(_shielded)(_numbered, part, shared_scan, cuts, firsts, offsets)
        for part, offsets in zip(parts, before, strict=True)
    ]
    shuffled = dask.dataframe.from_delayed(
        numbered, meta=_numbered_frame([], dim), verify_meta=False
    ).set_index(_STRATUM, divisions=list(range(len(owners) + 1)), drop=False, shuffle_method="p2p")
    grid = few_directions(histograms)
    gathered = client.compute(
        [
            dask.delayed(_shielded)(_gathered, part, number, secret, cuts[secret], k, grid)
            for number, (part, (secret, k)) in enumerate(
                zip(shuffled.to_delayed(), owners, strict=True)
            )
        ]
    )
    strata = [client.submit(_stratum_of, both) for both in gathered]
    tally, facts = Tally(grid, 1), []
    for done, both in enumerate([client.submit(_facts_of, both) for both in gathered]):
        fact: _Facts = _result(both)
        tally.add_histograms(fact.counts)
        facts.append(fact)
        progress(done + 1, len(owners))
    check_counted(tally, histograms)
    return {
        secret: ClusterStrata(
            cut=cut,
            dim=dim,
            digests=tuple(fact.digest for fact in facts[first : first + cut.n_strata]),
            borders=np.array([fact.border for fact in facts[first : first + cut.n_strata]]),
            strata=tuple(strata[first : first + cut.n_strata]),
            client=client,
        )
        for (secret, cut), first in zip(cuts.items(), firsts.values(), strict=True)
    }


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
            dask.delayed(_shielded)(_count_block, x, s, shared_query, shared_grid)
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


def _shielded(work: Callable[..., Result], *args: Any) -> Result:  # noqa: ANN401
    """The result of a task. Dask logs its errors, so they must not quote the data."""
    try:
        return work(*args)
    except (PuffersliceError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever reading a partition can raise
        raise _failed(error) from None


def _result(future: distributed.Future) -> Any:  # noqa: ANN401 - of any task
    try:
        return future.result()
    except PuffersliceError:
        raise
    except distributed.client.FutureCancelledError:
        msg = (
            "the strata are no longer on the cluster: its client was closed, or tasks were "
            "cancelled. Spill the rows again, and certify while the client is open"
        )
        raise ClusterError(msg) from None
    except Exception as error:  # noqa: BLE001 - whatever the graph behind a frame can raise
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


_STRATUM: Final = "stratum"
_ROW: Final = "row"
_PLACE: Final = "place"


class _Facts(NamedTuple):
    """What this process needs to know of a stratum."""

    digest: str
    border: list[int]
    counts: Histograms


def _count_secrets(part: Any, scan: RowScan) -> Counter[str]:  # noqa: ANN401 - a partition
    """Rows of each secret in a partition."""
    if not len(part):
        return Counter()
    rows = scan.rows(part)
    counts = np.bincount(rows.codes, minlength=len(rows.secrets)).tolist()
    return Counter(dict(zip(rows.secrets, counts, strict=True)))


def _numbered(
    part: Any,  # noqa: ANN401 - a partition
    scan: RowScan,
    cuts: Mapping[str, Cut],
    firsts: Mapping[str, int],
    offsets: Mapping[str, int],
) -> pd.DataFrame:
    """The prepared rows of a partition with the numbers of their strata; some are there twice."""
    blocks = []
    rows = scan.rows(part) if len(part) else None
    if rows is not None and len(rows.codes):
        order = grouped(rows.codes, len(rows.secrets))
        ends = np.cumsum(np.bincount(rows.codes, minlength=len(rows.secrets)))
        for secret, chosen in zip(rows.secrets, np.split(order, ends[:-1]), strict=True):
            if secret not in cuts:
                raise rows_changed()
            first = offsets.get(secret, 0)
            source, strata, places = cuts[secret].split(first, len(chosen))
            numbers = [firsts[secret] + strata, first + source, places]
            blocks.append((np.column_stack(numbers), rows.outputs[chosen[source]]))
    return _numbered_frame(blocks, scan.grid.dim)


def _numbered_frame(blocks: list[tuple[Integers, Floats]], dim: int) -> pd.DataFrame:
    numbers = np.concatenate([np.empty((0, 3), np.int64), *(block[0] for block in blocks)])
    outputs = np.concatenate([np.empty((0, dim)), *(block[1] for block in blocks)])
    columns = dict(zip((_STRATUM, _ROW, _PLACE), numbers.T, strict=True))
    return pd.DataFrame({**columns, **{f"x{k}": outputs[:, k] for k in range(dim)}})


def _gathered(
    part: pd.DataFrame, number: int, secret: str, cut: Cut, stratum: int, grid: BinGrid
) -> tuple[Stratum, _Facts]:
    """One stratum, its rows in the order in which one process would write them."""
    part = part.sort_values(_ROW)
    places = part[_PLACE].to_numpy() - cut.first(stratum)
    size = cut.size(stratum)
    if (part[_STRATUM] != number).any() or not np.array_equal(np.sort(places), np.arange(size)):
        raise rows_changed()
    rows = np.ascontiguousarray(part[[f"x{k}" for k in range(grid.dim)]].to_numpy(np.float64))
    border = [int(np.flatnonzero(places == place)[0]) for place in (0, size - 1)]
    is_shared = stratum * cut.n_rows % cut.n_strata > 0
    own = np.delete(rows, border[0], axis=0) if is_shared else rows  # each row is counted once
    tally = Tally(grid, 1)
    tally.add(own, [secret], np.zeros(len(own), dtype=np.int64))
    facts = _Facts(
        hashlib.sha256(rows.astype("<f8").tobytes()).hexdigest(), border, tally.histograms()
    )
    return Stratum(rows, cut.masses_in_order(stratum, np.array(border))), facts


def _stratum_of(both: tuple[Stratum, _Facts]) -> Stratum:
    return both[0]


def _facts_of(both: tuple[Stratum, _Facts]) -> _Facts:
    return both[1]
