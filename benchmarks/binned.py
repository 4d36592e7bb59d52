# SPDX-License-Identifier: Apache-2.0
"""Binned distributions beside a matrix product, sorting and sketches; memory and growth of a scan.

Speed: 1,000,000 rows, 10 columns, 200 directions, 4096 bins. The peers are the single-precision
matrix product of the same shape into memory that is already there, which every method would need
before it could count; the exact road, which sorts (5 secrets, all pairs, tables included on both
sides); and KLL sketches of DataSketches, which get their projections for free, one core on each
side, timed on a few directions and scaled. Rounds are interleaved; each figure is a median.

Memory: the highest resident size of a process that scans 2.5 million and 50 million rows of
Parquet files, made for it in a temporary folder (2.2 GB, removed afterwards).

Growth: seconds of one core against rows, directions and secrets; exponents of a log-log fit.

    python benchmarks/binned.py
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from process_memory import highest_resident_bytes
from pufferslice._core.arrays import Floats
from pufferslice.queries import Box, Query, columns
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.histograms import BinGrid
from pufferslice.sensitivity import DistributionPair, RowScan, gap_tables, scan_files
from pufferslice.sensitivity.binned import Tally, bin_grid, binned_tables
from pufferslice.sensitivity.profiles import FiniteProfile
from rows import Row, in_child, medians, row, seconds, show, timed

try:
    import datasketches
except ImportError:
    datasketches = None

ROUNDS = 5
N_ROWS, DIM, N_DIRECTIONS = 1_000_000, 10, 200
SECRETS = ("a", "b", "c", "d", "e")
SEED = 7
SKETCHED = 4
"""Directions on which the sketches are timed in one round."""

ROWS_PER_FILE, FEW_FILES, ALL_FILES = 500_000, 5, 100
ROOM_FOR_FILES = 8 * 2**30
"""Bytes that must be free before the files are made."""

SPEED_GOAL, PRODUCT_GOAL, SORT_GOAL, SKETCH_GOAL = 800.0, 0.35, 6.0, 20.0
GROWTH_GOAL, MEMORY_GOAL = 1.05, 1.5
EXPONENT_GOAL = (0.9, 1.1)


def measure() -> list[Row]:
    return [*speed_rows(), *growth_rows(), *memory_rows()]


def the_query(dim: int = DIM) -> Query:
    return columns([f"x{k}" for k in range(dim)]).with_range(Box([-6.0] * dim, [6.0] * dim))


def the_grid(n_directions: int = N_DIRECTIONS) -> BinGrid:
    profile = FiniteProfile.uniform(dim=DIM, n_directions=n_directions, seed=SEED)
    return bin_grid(the_query(), profile)


def sample_rows(n_rows: int, n_secrets: int) -> tuple[Floats, Any]:
    """Gaussian rows inside the range, their centres by secret."""
    rng = np.random.default_rng(SEED)
    codes = rng.integers(n_secrets, size=n_rows)
    rows = rng.normal(size=(n_rows, DIM)) + 0.3 * rng.normal(size=(n_secrets, DIM))[codes]
    return np.clip(rows, -6, 6), codes


def speed_rows() -> list[Row]:
    rows, codes = sample_rows(N_ROWS, len(SECRETS))
    grid = the_grid()
    distributions = [
        FiniteDistribution.uniform(rows[codes == code]) for code in range(len(SECRETS))
    ]
    pairs = [DistributionPair(*pair) for pair in combinations(range(len(SECRETS)), 2)]
    transposed = np.ascontiguousarray(rows.T.astype(np.float32))
    directions = grid.directions.astype(np.float32)
    product = np.zeros((N_DIRECTIONS, N_ROWS), dtype=np.float32)

    def counted(n_threads: int | None = None) -> Tally:
        tally = Tally(grid, n_threads)
        tally.add(rows, SECRETS, codes)
        return tally

    def binned_road() -> object:
        found = counted().histograms().distributions()
        return binned_tables([found[s] for s in SECRETS], pairs, grid.directions)

    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: seconds(counted),
        "product": lambda: seconds(lambda: np.matmul(directions, transposed, out=product)),
        "ours, one core": lambda: seconds(lambda: counted(1)),
        "ours, tables": lambda: seconds(binned_road),
        "sorted": lambda: seconds(lambda: gap_tables(distributions, pairs, grid.directions)),
    }
    if datasketches is None:
        print("row skipped: DataSketches is not installed (pip install datasketches)")
    else:
        contestants["sketches"] = lambda: sketch_seconds(product[:SKETCHED])
    return speed_table(medians(contestants, ROUNDS))


def sketch_seconds(projected: Any) -> float:  # single-precision rows
    """Seconds for all directions, from a few of them."""
    start = time.perf_counter()
    for values in projected:
        sketch = datasketches.kll_floats_sketch(200)
        sketch.update(values)
        assert sketch.n == len(values)
    return (time.perf_counter() - start) * N_DIRECTIONS / len(projected)


def speed_table(taken: dict[str, float]) -> list[Row]:
    job = f"{N_ROWS:,} x {DIM}, {N_DIRECTIONS} directions"
    speed = {name: N_ROWS * N_DIRECTIONS / time / 1e6 for name, time in taken.items()}
    table = [
        row(
            f"projected and binned, {job}: million values per second; float32 product alone",
            speed["ours"],
            speed["product"],
            goal=f">= {SPEED_GOAL:g}, ratio >= {PRODUCT_GOAL:g}",
            met=speed["ours"] >= max(SPEED_GOAL, PRODUCT_GOAL * speed["product"]),
        )
    ]
    peers = {
        "sorted": ("gap tables from bins", "ours, tables", "sorted", SORT_GOAL),
        "sketches": ("one core", "ours, one core", "KLL sketches", SKETCH_GOAL),
    }
    for key, (what, ours, peer, goal) in peers.items():
        if key in taken:
            name, ratio = f"{what}, {job}: seconds; {peer}", taken[key] / taken[ours]
            goal_text, met = f">= {goal:g}", ratio >= goal
            table.append(row(name, taken[ours], taken[key], ratio=ratio, goal=goal_text, met=met))
    return table


def growth_rows() -> list[Row]:
    """Exponents of the seconds that one core works."""
    settings: dict[str, list[tuple[int, int, int]]] = {
        "rows": [(n, 100, 1) for n in (200_000, 400_000, 800_000, 1_600_000)],
        "directions": [(200_000, n, 1) for n in (100, 200, 400, 800)],
        "secrets of 100,000 rows": [(100_000 * n, 100, n) for n in (2, 4, 8, 16)],
    }
    table = []
    for what, sizes in settings.items():
        times = {str(size): [] for size in sizes}
        for _ in range(ROUNDS):
            for size in sizes:
                times[str(size)].append(counting_seconds(*size))
        numbers = [max(a / b for a, b in zip(size, sizes[0], strict=True)) for size in sizes]
        # The least of the rounds: other work on the machine only adds.
        spent = [min(times[str(size)]) for size in sizes]
        exponent = float(np.polyfit(np.log(numbers), np.log(spent), 1)[0])
        low, high = EXPONENT_GOAL
        name, met = f"growth of counting with {what}: exponent", low <= exponent <= high
        table.append(row(name, exponent, goal=f"{low:g} to {high:g}", met=met))
    return table


def counting_seconds(n_rows: int, n_directions: int, n_secrets: int) -> float:
    rows, codes = sample_rows(n_rows, n_secrets)
    tally = Tally(the_grid(n_directions), 1)
    names = [f"s{index}" for index in range(n_secrets)]
    tally.add(rows[:256], names, codes[:256])
    start = time.thread_time()
    tally.add(rows, names, codes)
    return time.thread_time() - start


def memory_rows() -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="pufferslice-bench-"))
    try:
        if shutil.disk_usage(folder).free < ROOM_FOR_FILES:
            print("rows skipped: less than 8 GiB of disk are free for the files of the scan")
            return []
        make_files(folder)
        few, _ = scan_in_child(folder, "0000[0-4].parquet")
        everything, taken = scan_in_child(folder, "*.parquet")
    finally:
        shutil.rmtree(folder)
    n_few, n_all = FEW_FILES * ROWS_PER_FILE, ALL_FILES * ROWS_PER_FILE
    scanned = f"scan of {n_all:,} rows of Parquet, {N_DIRECTIONS} directions"
    return [
        row(
            f"{scanned}: peak GiB; of {n_few:,} rows",
            everything,
            few,
            goal=f"< {MEMORY_GOAL:g}, ratio < {GROWTH_GOAL:g}",
            met=everything < MEMORY_GOAL and everything < GROWTH_GOAL * few,
        ),
        row(f"{scanned}: million rows per second", n_all / taken / 1e6),
    ]


def make_files(folder: Path) -> None:
    rng = np.random.default_rng(SEED)
    for index in range(ALL_FILES):
        numbers = rng.standard_normal((DIM, ROWS_PER_FILE), dtype=np.float32)
        groups = pa.DictionaryArray.from_arrays(
            rng.integers(len(SECRETS), size=ROWS_PER_FILE, dtype=np.int8), list(SECRETS)
        )
        named = {f"x{k}": column for k, column in enumerate(numbers)}
        table = pa.table({"group": groups, **named})
        pa.parquet.write_table(table, folder / f"{index:05}.parquet", compression="none")


def scan_in_child(folder: Path, pattern: str) -> tuple[float, float]:
    """Peak GiB and seconds of a process that scans these files."""
    peak, taken = in_child(__file__, "--scan", str(folder / pattern)).split()
    return float(peak), float(taken)


def scan_and_tell(pattern: str) -> None:
    profile = FiniteProfile.uniform(dim=DIM, n_directions=N_DIRECTIONS, seed=SEED)
    scan = RowScan.of(the_query(), secret="group", profile=profile)  # noqa: S106 - a column
    found, taken = timed(lambda: scan_files(pattern, scan))
    assert found.n_dropped == 0
    print(highest_resident_bytes() / 2**30, taken)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--scan"]:
        scan_and_tell(arguments[1])
        return
    show(measure())


if __name__ == "__main__":
    main(sys.argv[1:])
