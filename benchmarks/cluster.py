# SPDX-License-Identifier: Apache-2.0
"""Scan, second pass and couplings on 1, 2 and 4 workers beside one process without Dask.

A scheduler and workers of one thread each are real processes on the loopback interface. Four
workers share the cores of a machine that has two, so what counts is processor time: of all workers,
per row. Rounds are interleaved and each figure is a median. Couplings are quick ones, of fewer
rows than the scan, in eight strata of each secret.

One process without Dask uses all cores by threads. Its memory is that of a process of its own.

    PYTHONPATH=. python benchmarks/cluster.py [N_ROWS [N_COUPLED]]
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import distributed
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from process_memory import highest_resident_bytes
from pufferslice.scenario.histograms import added
from pufferslice.sensitivity import scan_files, spill_files
from pufferslice.sensitivity.cluster import scan_cluster_files, spill_cluster_files
from rows import Row, row, show
from strata import DIM, N_DIRECTIONS, SCAN, coupled, sample_table, warm

N_ROWS, N_COUPLED = 4_000_000, 400_000
ROWS_PER_FILE = 25_000
WORKERS = (1, 2, 4)
ROUNDS = 3
N_EMPTY_TASKS = 2_000

Figures = dict[str, float]


def measure(n_rows: int = N_ROWS, n_coupled: int = N_COUPLED) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="pufferslice-bench-"))
    try:
        for start in range(0, n_rows, ROWS_PER_FILE):
            table = sample_table(min(ROWS_PER_FILE, n_rows - start), start)
            name = f"{'coupled' if start < n_coupled else 'other'}-{start:012}.parquet"
            pa.parquet.write_table(table, folder / name, compression="none")
        first = f"{folder}/coupled-000000000000.parquet"
        small = Work(first, first, ROWS_PER_FILE // 8)
        whole = Work(f"{folder}/*.parquet", f"{folder}/coupled-*.parquet", n_coupled // 8)
        with contextlib.ExitStack() as stack:
            alone = stack.enter_context(process_alone())
            clients = {k: stack.enter_context(running_cluster(k, folder)) for k in WORKERS}
            contestants: dict[int, Callable[[Work], Figures]] = {
                0: alone,
                **{k: partial(cluster_figures, client) for k, client in clients.items()},
            }
            for contestant in contestants.values():
                contestant(small)  # loads kernels
            rounds = [
                {k: contestant(whole) for k, contestant in contestants.items()}
                for _ in range(ROUNDS)
            ]
            empty = seconds_of_empty_tasks(clients[WORKERS[0]])
    finally:
        shutil.rmtree(folder)
    figures = {
        k: {name: median(one[k][name] for one in rounds) for name in rounds[0][k]}
        for k in contestants
    }
    return [*table_rows(figures, n_rows, n_coupled), *constants(figures, empty, n_rows)]


class Work(NamedTuple):
    """What every contestant does."""

    scanned: str
    coupled: str
    rows_per_stratum: int


@contextlib.contextmanager
def process_alone() -> Iterator[Callable[[Work], Figures]]:
    """One process without Dask, which is told what to do by its input."""
    command = [sys.executable, __file__, "--alone"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:

        def done(work: Work) -> Figures:
            print(json.dumps(work), file=process.stdin, flush=True)
            answer: Figures = json.loads(process.stdout.readline())
            return answer

        try:
            yield done
        finally:
            process.stdin.close()


@contextlib.contextmanager
def running_cluster(n_workers: int, folder: Path) -> Iterator[distributed.Client]:
    """Processes of their own: one scheduler, and workers with one thread each."""
    place = folder / f"cluster-{n_workers}"
    place.mkdir()
    address = place / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    quiet: dict[str, Any] = {"env": environment, "stderr": subprocess.DEVNULL}
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    worker = ["worker", "--nworkers", str(n_workers), "--nthreads", "1", "--no-dashboard"]
    worker += ["--host", "127.0.0.1", "--local-directory", str(place), "--memory-limit", "0"]
    dask = [sys.executable, "-m", "dask"]
    with contextlib.ExitStack() as stack:
        for words in (scheduler, worker):
            command = [*dask, *words, "--scheduler-file", str(address)]
            process = stack.enter_context(subprocess.Popen(command, **quiet))
            stack.callback(process.terminate)
        while not address.exists():
            time.sleep(0.1)
        client = stack.enter_context(distributed.Client(scheduler_file=str(address)))
        client.wait_for_workers(n_workers, timeout=120)
        yield client


def figures_alone(work: Work) -> Figures:
    """What one process without Dask takes."""
    found: Figures = {}
    with clock(found, "scan"):
        scan_files(work.scanned, SCAN)
    found["scan peak"] = highest_resident_bytes() / 2**30
    histograms = scan_files(work.coupled, SCAN)
    with clock(found, "spill"):
        strata = spill_files(work.coupled, SCAN, histograms, most_rows=work.rows_per_stratum)
    with clock(found, "couplings"):
        coupled(strata)
    found["peak"] = highest_resident_bytes() / 2**30
    start = time.process_time()
    added([histograms] * 9)
    found["sum"] = (time.process_time() - start) / 8
    found["histograms"] = histograms.counts.nbytes
    found["pairs"] = max(part.n_strata for part in strata.values())
    return found


@contextlib.contextmanager
def clock(figures: Figures, name: str, client: distributed.Client | None = None) -> Iterator[None]:
    """Seconds of the clock, and of the processors of the workers, or of this process."""

    def processors() -> tuple[float, float]:
        if client is None:
            return time.process_time(), 0.0
        others = time.process_time() + client.run_on_scheduler(time.process_time)
        return sum(client.run(time.process_time).values()), others

    before, start = processors(), time.perf_counter()
    yield
    figures[f"{name} seconds"] = time.perf_counter() - start
    work, others = (after - b for after, b in zip(processors(), before, strict=True))
    figures[f"{name} cpu"], figures[f"{name} others"] = work, others


def cluster_figures(client: distributed.Client, work: Work) -> Figures:
    found: Figures = {}
    before, reports = sent(client), []
    with clock(found, "scan", client):
        scan_cluster_files(
            work.scanned, SCAN, client, progress=lambda done, _: reports.append(done)
        )
    found["scan moved"], found["scan tasks"] = sent(client) - before, len(reports)
    found["scan peak"] = peak(client)
    histograms = scan_cluster_files(work.coupled, SCAN, client)
    before = shuffled(client)
    with clock(found, "spill", client):
        strata = spill_cluster_files(
            work.coupled, SCAN, histograms, client, most_rows=work.rows_per_stratum
        )
    found["shuffled"] = shuffled(client) - before
    before = sent(client)
    with clock(found, "couplings", client):
        coupled(strata)
    found["couplings moved"] = sent(client) - before
    found["peak"] = peak(client)
    return found


def sent(client: distributed.Client) -> float:
    """Bytes of results that workers have sent to each other and to the client."""
    return float(
        sum(client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total).values())
    )


def shuffled(client: distributed.Client) -> float:
    """Bytes that Dask's shuffle has handed to workers, their own share included."""

    def of_worker(dask_worker: Any) -> float:  # Dask ships no types
        totals = dask_worker.digests_total.items()
        return sum(n for key, n in totals if key[0] == "p2p" and key[-2:] == ("shards", "bytes"))

    return float(sum(client.run(of_worker).values()))


def peak(client: distributed.Client) -> float:
    """The most that a worker has held, in GiB."""
    return max(client.run(highest_resident_bytes).values()) / 2**30


def seconds_of_empty_tasks(client: distributed.Client) -> Figures:
    """Processor time of scheduler and client, and of a worker, for a task that does nothing."""
    found: Figures = {}
    with clock(found, "empty", client):
        client.gather(client.map(abs, range(N_EMPTY_TASKS)))
    return {name: figure / N_EMPTY_TASKS for name, figure in found.items()}


def table_rows(figures: dict[int, Figures], n_rows: int, n_coupled: int) -> Iterator[Row]:
    one = figures[0]
    scan = f"scan of {n_rows:,} x {DIM}, {N_DIRECTIONS} directions"
    both = f"spill and quick couplings of {n_coupled:,} x {DIM}"
    for k in WORKERS:
        of, there = f"on {k} Dask worker{'s' * (k > 1)}", figures[k]
        micro = 1e6 / n_rows
        yield row(
            f"{scan} {of}: µs of processors per row; one process",
            there["scan cpu"] * micro,
            one["scan cpu"] * micro,
        )
        yield row(
            f"{scan} {of}: million rows per second; one process",
            n_rows / there["scan seconds"] / 1e6,
            n_rows / one["scan seconds"] / 1e6,
        )
        yield row(
            f"{scan} {of}: peak GiB of a worker; one process", *peaks("scan peak", k, figures)
        )
        cpu, alone_cpu = (f["spill cpu"] + f["couplings cpu"] for f in (there, one))
        micro = 1e6 / n_coupled
        yield row(
            f"{both} {of}: µs of processors per row; one process", cpu * micro, alone_cpu * micro
        )
        seconds, alone_seconds = (f["spill seconds"] + f["couplings seconds"] for f in (there, one))
        yield row(f"{both} {of}: seconds; one process", seconds, alone_seconds)
        yield row(
            f"{both} {of}: bytes shuffled per row; written to disk by one process",
            there["shuffled"] / n_coupled,
            8.0 * DIM,
        )
        yield row(f"{both} {of}: peak GiB of a worker; one process", *peaks("peak", k, figures))


def peaks(name: str, k: int, figures: dict[int, Figures]) -> tuple[float, float]:
    return figures[k][name], figures[0][name]


def constants(figures: dict[int, Figures], empty: Figures, n_rows: int) -> Iterator[Row]:
    """What docs/scale.md computes with."""
    one, most = figures[0], figures[WORKERS[-1]]
    size = f"{one['histograms'] / 2**20:.3g} MiB"
    # Rows cost the same on any number of workers; tasks are in proportion to it.
    tasks = [figures[k]["scan tasks"] for k in WORKERS]
    per_task, of_rows = np.polyfit(tasks, [figures[k]["scan cpu"] for k in WORKERS], 1)
    yield row("scan on Dask: µs of processors per row, without tasks", of_rows / n_rows * 1e6)
    yield row(f"scan on Dask: ms of processors per task with histograms of {size}", per_task * 1e3)
    yield row(
        "scan on Dask: ms of scheduler and client per empty task", empty["empty others"] * 1e3
    )
    yield row("scan on Dask: ms of a worker per empty task", empty["empty cpu"] * 1e3)
    yield row(f"adding histograms of {size}: ms", 1e3 * one["sum"])
    name = f"scan on {WORKERS[-1]} Dask workers: histograms moved per task"
    yield row(name, most["scan moved"] / one["histograms"] / most["scan tasks"])
    name = "quick coupling of two strata: seconds of processors"
    yield row(name, one["couplings cpu"] / one["pairs"])
    name = f"couplings on {WORKERS[-1]} Dask workers: MiB moved per pair of strata"
    yield row(name, most["couplings moved"] / one["pairs"] / 2**20)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--alone"]:
        warm()
        for line in sys.stdin:
            print(json.dumps(figures_alone(Work(*json.loads(line)))), flush=True)
        return
    show(measure(*map(int, arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
