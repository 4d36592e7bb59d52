# SPDX-License-Identifier: Apache-2.0
"""Scans on a Dask cluster, and strata that stay on it: every task is a pure function."""

import contextlib
import hashlib
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, Integers
from pufferslice._core.checks import check_count
from pufferslice._core.text import listed
from pufferslice._core.threads import Progress, n_cores, silent
from pufferslice.data.readers import Piece, data_files, pieces_of
from pufferslice.errors import ArgumentError, ClusterError, MissingExtraError, PuffersliceError
from pufferslice.scenario.histograms import BinGrid, Histograms, added
from pufferslice.sensitivity.binned import CountedRows, Tally
from pufferslice.sensitivity.scan import (
    START,
    Checkpoint,
    RowScan,
    check_some,
    rows_of_pieces,
)
from pufferslice.sensitivity.strata import (
    MOST_ROWS,
    Announce,
    Cut,
    KeptStrata,
    PairWork,
    Stratum,
    check_counted,
    cuts_of,
    few_directions,
    rows_changed,
    unannounced,
)
from pufferslice.sensitivity.tables import MatchingTables

try:
    import dask
    import dask.dataframe
    import dask.sizeof
    import distributed
    import pandas as pd
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "clusters need Dask; install it with: pip install 'pufferslice[scale]'"
    ) from error

PARTS_PER_SUM: Final = 8
"""Histograms that are added in one task."""

LEAVES_PER_PART: Final = PARTS_PER_SUM**2
"""Histograms that are added on the cluster; the client adds these sums."""

MOST_ROWS_PER_TASK: Final = 2**24
_TASKS_PER_THREAD: Final = 4
_MOST_ROWS_PER_PARTITION: Final = 2**20
"""Of a shuffle; a worker holds one of each thread in memory."""
_SECONDS_TO_CONNECT: Final = 10

Result = TypeVar("Result")

# Dask would count them as a few bytes, and keep too many in the memory of a worker.
dask.sizeof.sizeof.register(Histograms, lambda histograms: histograms.counts.nbytes)


@contextlib.contextmanager
def cluster_client(
    *, workers: int | None = None, scheduler: str | None = None
) -> Iterator[distributed.Client]:
    """A client of a running cluster (`scheduler`, its address), or of new local processes."""
    if (workers is None) == (scheduler is None):
        raise ArgumentError(
            "give either workers, a number of local processes, or scheduler, an address"
        )
    with contextlib.ExitStack() as stack:
        if workers is not None:
            check_count(1, workers=workers)
            # Workers may write rows there, and one that is killed leaves them.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pufferslice-workers-"))
            stack.enter_context(dask.config.set({"temporary-directory": folder}))
            cluster = distributed.LocalCluster(
                n_workers=workers,
                threads_per_worker=max(1, n_cores() // workers),
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.ERROR,
            )
            yield stack.enter_context(distributed.Client(stack.enter_context(cluster)))
            return
        try:
            client = distributed.Client(scheduler, timeout=_SECONDS_TO_CONNECT)
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no scheduler answers at {scheduler!r}: {error}; start one with dask scheduler"
            ) from error
        yield stack.enter_context(client)


def scan_cluster_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    client: distributed.Client,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of files on a cluster whose workers see the same files.

    With `checkpoint`, this process saves there what is counted, as `scan_files` does, and either of
    them resumes from it: what was counted by tasks in the order of the files is not read again.

    Guarantee: the result is that of all rows at once, bit for bit, also if workers are lost.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    saved = None if checkpoint is None else Checkpoint(Path(checkpoint), scan, pieces)
    tally = Tally(scan.grid, 1)
    position = START if saved is None else saved.resumed(tally)
    numbers = {piece: i for i, piece in enumerate(pieces)}
    left = [p for p in pieces[position.n_pieces :] if numbers[p] not in position.ahead]
    n_rows = sum(piece.n_rows for piece in pieces)
    n_threads = max(1, sum(client.nthreads().values()))
    most_rows = min(MOST_ROWS_PER_TASK, n_rows // (_TASKS_PER_THREAD * n_threads))
    tasks = _tasks(left, most_rows, n_skipped=position.n_rows_of_next)
    shared_scan = client.submit(_itself, scan)
    parts = _sums(
        client,
        [client.submit(_shielded, _count, task, shared_scan) for task in tasks],
        [sum(piece.n_rows for piece in task.pieces) - task.n_skipped for task in tasks],
        scan.grid,
        lambda done, _: progress(position.n_rows + done, n_rows),
        # So that about one task of each thread is lost with this process.
        leaves_per_part=LEAVES_PER_PART if saved is None else min(LEAVES_PER_PART, n_threads),
    )
    done: list[int] = []
    for part, histograms in parts:
        tally.add_histograms(histograms)
        done += [numbers[piece] for task in tasks[part] for piece in task.pieces]
        if saved is not None and (saved.is_due or len(done) == len(left)):
            reached = position.after(done, tally.n_rows + tally.n_dropped)
            saved.save(tally.histograms(), reached)
    check_some(tally.n_rows, tally.n_dropped)
    return tally.histograms()


def scan_dask_frame(
    frame: Any,  # Dask ships no types
    scan: RowScan,
    client: distributed.Client,
    *,
    progress: Progress = silent,
) -> Histograms:
    """Count the rows of a Dask dataframe; `progress` counts partitions."""
    shared_scan = dask.delayed(_itself)(scan)
    columns = [name for name in frame.columns if name in scan.columns]
    parts = frame[columns].to_delayed() if columns else frame.to_delayed()
    if not parts:
        raise ArgumentError(
            "there is nothing to scan: no partitions; give a frame or files with at least one"
        )
    leaves = client.compute([dask.delayed(_shielded)(_count, part, shared_scan) for part in parts])
    sums = _sums(client, leaves, [1] * len(leaves), scan.grid, progress)
    histograms = added(part for _, part in sums)
    check_some(sum(histograms.n_rows.values()), histograms.n_dropped)
    return histograms


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
        return _checked(_result(self.strata[stratum]), self.digests[stratum]).rows

    def each_pair(
        self, other: KeptStrata, places: Sequence[tuple[int, int]], work: PairWork
    ) -> Iterator[tuple[MatchingTables, float]]:
        """What `work` gives for pairs of strata, on the workers; only that comes here."""
        if not isinstance(other, ClusterStrata):
            raise ArgumentError(
                "strata on a cluster are coupled with strata on it; spill both from one frame"
            )
        pairs = [
            (self.strata[i], self.digests[i], other.strata[j], other.digests[j]) for i, j in places
        ]
        futures = [
            self.client.submit(_shielded, _coupled, work, *pair, pure=False) for pair in pairs
        ]
        ready = distributed.as_completed(futures)
        futures.clear()
        for future in ready:
            yield _result(future)


def spill_cluster_files(
    path: str | os.PathLike[str],
    scan: RowScan,
    histograms: Histograms,
    client: distributed.Client,
    *,
    most_rows: int = MOST_ROWS,
    announce: Announce = unannounced,
    progress: Progress = silent,
) -> dict[str, ClusterStrata]:
    """As `spill_files`, for the files of `scan_cluster_files`; the rows stay on the cluster.

    As of `spill_dask_frame`: the strata are there while the client is connected.
    """
    pieces = pieces_of(data_files(path), scan.columns)
    tasks = _tasks(pieces, _MOST_ROWS_PER_PARTITION)
    return _spilled(
        [dask.delayed(task, traverse=False) for task in tasks],
        scan,
        histograms,
        client,
        most_rows=most_rows,
        announce=announce,
        progress=progress,
    )


def spill_dask_frame(
    frame: Any,  # Dask ships no types
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
    columns = [name for name in frame.columns if name in scan.columns]
    return _spilled(
        frame[columns].to_delayed(),
        scan,
        histograms,
        client,
        most_rows=most_rows,
        announce=announce,
        progress=progress,
    )


def _spilled(
    parts: Sequence[Any],
    scan: RowScan,
    histograms: Histograms,
    client: distributed.Client,
    *,
    most_rows: int,
    announce: Announce,
    progress: Progress,
) -> dict[str, ClusterStrata]:
    _check_versions(client)
    dim = histograms.grid.dim
    cuts = {secret: cut for secret, (cut, _) in cuts_of(histograms, most_rows).items()}
    owners = [(secret, k) for secret, cut in cuts.items() for k in range(cut.n_strata)]
    firsts = {secret: owners.index((secret, 0)) for secret in cuts}
    announce(8 * dim * sum(cuts[secret].size(k) for secret, k in owners))
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
    strata = [client.submit(itemgetter(0), both) for both in gathered]
    tally, facts = Tally(grid, 1), []
    for done, both in enumerate([client.submit(itemgetter(1), both) for both in gathered]):
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


class _Task(NamedTuple):
    """Neighbouring pieces that one task reads."""

    pieces: tuple[Piece, ...]
    n_skipped: int
    """Rows that begin the first piece and are left out."""


def _tasks(pieces: Sequence[Piece], most_rows: int, *, n_skipped: int = 0) -> list[_Task]:
    """All pieces in their order; more rows than `most_rows` only if one piece has them."""
    together: list[list[Piece]] = []
    n_rows = 0
    for piece in pieces:
        if together and n_rows + piece.n_rows <= most_rows:
            together[-1].append(piece)
        else:
            together.append([piece])
            n_rows = 0
        n_rows += piece.n_rows
    return [_Task(tuple(p), 0 if i else n_skipped) for i, p in enumerate(together)]


def _sums(
    client: distributed.Client,
    leaves: list[Any],
    n_rows: list[int],
    grid: BinGrid,
    progress: Progress,
    *,
    leaves_per_part: int = LEAVES_PER_PART,
) -> Iterator[tuple[slice, Histograms]]:
    """Sums of neighbouring leaves, made on the cluster, as they are ready; and of which leaves."""
    _check_versions(client)
    sizes = {leaf.key: n for leaf, n in zip(leaves, n_rows, strict=True)}
    starts = range(0, len(leaves), leaves_per_part)
    parts = [slice(start, start + leaves_per_part) for start in starts]
    part_of = {leaf.key: i // leaves_per_part for i, leaf in enumerate(leaves)}
    n_left = Counter(part_of.values())
    roots = [_added_in_tree(client, leaves[part]) for part in parts]
    ready = distributed.as_completed(leaves)
    # A leaf without references is dropped as soon as it is added.
    leaves.clear()
    done, total = 0, sum(sizes.values())
    try:
        for leaf in ready:
            if leaf.status == "error":
                leaf.result()
            done += sizes[leaf.key]
            progress(done, total)
            part = part_of[leaf.key]
            n_left[part] -= 1
            if not n_left[part]:
                yield parts[part], roots[part].result()
                roots[part] = None
    except (MemoryError, distributed.KilledWorker) as error:
        mebibytes = grid.n_bytes(1) / 2**20
        raise ClusterError(
            f"workers were lost repeatedly, or ran out of memory ({type(error).__name__}). The "
            f"histograms of one secret take {mebibytes:.3g} MiB, and a worker holds up to "
            f"{PARTS_PER_SUM + 1} of each: give workers more memory or fewer threads, or use fewer "
            "bins, directions or secrets"
        ) from None
    except distributed.client.FutureCancelledError:
        raise ClusterError("the cluster cancelled the scan; start it again") from None
    except PuffersliceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the graph behind a frame can raise
        raise _failed(error) from None


def _added_in_tree(client: distributed.Client, level: list[Any]) -> Any:  # a future
    while len(level) > 1:
        level = [
            client.submit(added, level[i : i + PARTS_PER_SUM])
            for i in range(0, len(level), PARTS_PER_SUM)
        ]
    return level[0]


def _check_versions(client: distributed.Client) -> None:
    """Refuse workers with another version of the library, which might count differently."""
    workers = client.get_versions(packages=["pufferslice"])["workers"].values()
    here = sys.modules["pufferslice"].__version__
    others = {str(worker["packages"]["pufferslice"]) for worker in workers} - {here}
    if others:
        raise ClusterError(
            f"this process has pufferslice {here}, and workers have {listed(sorted(others))}; "
            "install one version on all of them"
        )


def _failed(error: Exception) -> ClusterError:
    return ClusterError(
        f"a task of the cluster failed with {type(error).__name__}. Its message is not shown, "
        "because it may quote the data; compute the frame alone to read it"
    )


def _shielded(work: Callable[..., Result], *args: Any) -> Result:
    """The result of a task. Dask logs its errors, so they must not quote the data."""
    try:
        return work(*args)
    except (PuffersliceError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever reading a partition can raise
        raise _failed(error) from None


def _result(future: distributed.Future) -> Any:  # of any task
    try:
        return future.result()
    except PuffersliceError:
        raise
    except distributed.client.FutureCancelledError:
        raise ClusterError(
            "the strata are no longer on the cluster: its client was closed, or tasks were "
            "cancelled. Spill the rows again, and certify while the client is open"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever the graph behind a frame can raise
        raise _failed(error) from None


def _itself(value: Any) -> Any:  # a task that can be run again if its result is lost
    return value


def _rows_in(part: Any, scan: RowScan) -> Iterator[CountedRows]:  # task or partition
    if isinstance(part, _Task):
        yield from rows_of_pieces(part.pieces, scan, part.n_skipped)
    elif len(part):
        yield scan.rows(part)


def _count(part: Any, scan: RowScan) -> Histograms:
    tally = Tally(scan.grid, 1)
    for rows in _rows_in(part, scan):
        tally.add_rows(rows)
    return tally.histograms()


_STRATUM: Final = "stratum"
_ROW: Final = "row"
_PLACE: Final = "place"


class _Facts(NamedTuple):
    """What this process needs to know of a stratum."""

    digest: str
    border: list[int]
    counts: Histograms


def _count_secrets(part: Any, scan: RowScan) -> Counter[str]:
    """Rows of each secret."""
    result = Counter[str]()
    for rows in _rows_in(part, scan):
        counts = np.bincount(rows.codes, minlength=len(rows.secrets)).tolist()
        result.update(dict(zip(rows.secrets, counts, strict=True)))
    return result


def _numbered(
    part: Any,
    scan: RowScan,
    cuts: Mapping[str, Cut],
    firsts: Mapping[str, int],
    offsets: Mapping[str, int],
) -> pd.DataFrame:
    """Prepared rows with the numbers of their strata; some are there twice."""
    blocks, n_seen = [], Counter(offsets)
    for rows in _rows_in(part, scan):
        for secret, outputs in rows.by_secret():
            if secret not in cuts:
                raise rows_changed()
            first = n_seen[secret]
            source, strata, places = cuts[secret].split(first, len(outputs))
            numbers = [firsts[secret] + strata, first + source, places]
            blocks.append((np.column_stack(numbers), outputs[source]))
            n_seen[secret] += len(outputs)
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
    unshared = np.delete(rows, border[0], axis=0) if is_shared else rows  # each row is counted once
    tally = Tally(grid, 1)
    tally.add(unshared, [secret], np.zeros(len(unshared), dtype=np.int64))
    facts = _Facts(_digest(rows), border, tally.histograms())
    return Stratum(rows, cut.masses(stratum, border)), facts


def _checked(stratum: Stratum, digest: str) -> Stratum:
    """The stratum, refused if it is not what was spilled.

    When a worker is lost, Dask makes its strata again from the rows as they are then.
    """
    if _digest(stratum.rows) != digest:
        raise rows_changed()
    return stratum


def _coupled(
    work: PairWork, first: Stratum, first_digest: str, second: Stratum, second_digest: str
) -> tuple[MatchingTables, float]:
    return work(_checked(first, first_digest), _checked(second, second_digest))


def _digest(rows: Floats) -> str:
    return hashlib.sha256(rows.astype("<f8").tobytes()).hexdigest()
