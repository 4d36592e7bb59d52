# SPDX-License-Identifier: Apache-2.0
"""Couplings of streamed rows beside the scan that they follow; memory; ratio to those in memory.

Speed and memory: 2 million rows of Parquet, 10 columns, two secrets, 200 directions, in a process
of its own: seconds of all cores for the scan, for the second pass that spills rows to disk, and for
the couplings of all strata with each effort; the highest resident size of all of it.

Ratio: the unsliced epsilon at the same noise, streamed over in memory, of three secrets with
200,000 rows and 3 columns each.

    PYTHONPATH=. python benchmarks/strata.py [N_ROWS]
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from process_memory import highest_resident_bytes
from pufferslice.queries import Box, Query, columns
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import (
    DistributionPair,
    FiniteProfile,
    RowScan,
    scan_files,
    scan_tables,
    spill_files,
    spill_tables,
)
from pufferslice.sensitivity.couplings import Effort, Recipe, coupling_tables
from pufferslice.sensitivity.strata import strata_tables
from pufferslice.sensitivity.tables import MatchingTables
from rows import Result, Row, at_most, in_child, row, show

N_ROWS, DIM, N_DIRECTIONS = 2_000_000, 10, 200
ROWS_PER_FILE = 500_000
RATIO_ROWS, RATIO_DIM = 200_000, 3
SEED = 7
EFFORTS: tuple[Effort, ...] = ("quick", "thorough")
ORDER = 4.0

TIME_GOAL, MEMORY_GOAL, RATIO_GOAL = 5.0, 1.5, 1.3


def measure(n_rows: int = N_ROWS) -> list[Row]:
    return [*stream_rows(n_rows), *ratio_rows()]


def stream_rows(n_rows: int) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="pufferslice-bench-"))
    try:
        for start in range(0, n_rows, ROWS_PER_FILE):
            size = min(ROWS_PER_FILE, n_rows - start)
            table = sample_table(size, DIM, ("a", "b"), start)
            pa.parquet.write_table(table, folder / f"{start:012}.parquet", compression="none")
        found = json.loads(in_child(__file__, "--stream", str(folder)))
    finally:
        shutil.rmtree(folder)
    what, scan = f"{n_rows:,} x {DIM} streamed", found["scan"]
    rows = [row(f"{what}, spill: seconds of all cores; scan", found["spill"], scan)]
    for effort in EFFORTS:
        taken = found["spill"] + found[effort]
        name = f"{what}, spill and {effort} couplings: seconds of all cores; scan"
        # Only the quick search is meant for data of this size.
        rows.append(ratio_row(name, taken, scan, TIME_GOAL) if effort == "quick"
                    else row(name, taken, scan))  # fmt: skip
    peak = f"{what}, scan, spill and couplings: peak GiB"
    return [*rows, at_most(peak, found["peak"], MEMORY_GOAL)]


def ratio_row(name: str, ours: float, peer: float, goal: float) -> Row:
    return row(name, ours, peer, goal=f"ratio <= {goal:g}", met=ours <= goal * peer)


def stream_and_tell(folder: str) -> None:
    scan = the_scan(DIM, N_DIRECTIONS)
    warm(scan)
    told: dict[str, float] = {}
    histograms, told["scan"] = cpu_seconds(lambda: scan_files(folder, scan))
    strata, told["spill"] = cpu_seconds(lambda: spill_files(folder, scan, histograms))
    for effort in EFFORTS:
        tables, told[effort] = cpu_seconds(
            lambda: strata_tables(
                [strata["a"], strata["b"]],
                [DistributionPair(0, 1)],
                the_recipe(effort, 4.0),  # noqa: B023 - called at once
                shape=None,
                center=scan.query.center,
            )
        )
        told[f"{effort} epsilon"] = float(epsilons(tables, 4.0).max())
    told["peak"] = highest_resident_bytes() / 2**30
    print(json.dumps(told))


def ratio_rows() -> list[Row]:
    secrets = ("a", "b", "c")
    scan = the_scan(RATIO_DIM, 20)
    table = sample_table(len(secrets) * RATIO_ROWS, RATIO_DIM, secrets, 0)
    histograms = scan_tables([table], scan)
    strata = spill_tables([table], scan, histograms)
    pairs = [DistributionPair(*pair) for pair in combinations(range(len(secrets)), 2)]
    groups = np.array(table["group"].to_pylist())
    outputs = scan.query.prepared(scan.query.outputs(table))
    rows: list[Row] = []
    for effort in EFFORTS:
        recipe = the_recipe(effort, 2.0)
        streamed = strata_tables(
            [strata[secret] for secret in secrets],
            pairs,
            recipe,
            shape=None,
            center=scan.query.center,
        )
        distributions = [FiniteDistribution.uniform(outputs[groups == s]) for s in secrets]
        ours = float(epsilons(streamed, 2.0).max())
        peer = float(epsilons(coupling_tables(distributions, pairs, recipe), 2.0).max())
        size = f"3 x {RATIO_ROWS:,} x {RATIO_DIM}"
        name = f"unsliced epsilon, {size}, {effort}: streamed; in memory"
        rows.append(ratio_row(name, ours, peer, RATIO_GOAL))
    return rows


def sample_table(n_rows: int, dim: int, secrets: tuple[str, ...], seed: int) -> pa.Table:
    rng = np.random.default_rng([SEED, seed])
    codes = rng.integers(len(secrets), size=n_rows, dtype=np.int8)
    numbers = rng.standard_normal((dim, n_rows)) + 0.3 * codes
    groups = pa.DictionaryArray.from_arrays(codes, list(secrets))
    return pa.table({"group": groups, **{f"x{k}": column for k, column in enumerate(numbers)}})


def the_query(dim: int) -> Query:
    return columns([f"x{k}" for k in range(dim)]).with_range(Box([-6.0] * dim, [6.0] * dim))


def the_scan(dim: int, n_directions: int) -> RowScan:
    profile = FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=SEED)
    return RowScan.of(the_query(dim), secret="group", profile=profile)  # noqa: S106 - a column


def the_recipe(effort: Effort, noise_std: float) -> Recipe:
    rate = ORDER * (ORDER - 1) / (2 * noise_std**2)
    return Recipe(effort=effort, cost="renyi", rate=rate)


def epsilons(tables: MatchingTables, noise_std: float) -> Any:  # noqa: ANN401 - an array
    rate = ORDER * (ORDER - 1) / (2 * noise_std**2)
    return tables.log_moments(rate, 0.0).min(axis=1) / (ORDER - 1)


def warm(scan: RowScan) -> None:
    """Load the kernels."""
    table = sample_table(6_001, DIM, ("a", "b"), 1)
    histograms = scan_tables([table], scan)
    strata = spill_tables([table], scan, histograms, most_rows=1_000)
    for effort in EFFORTS:
        strata_tables(
            [strata["a"], strata["b"]],
            [DistributionPair(0, 1)],
            the_recipe(effort, 4.0),
            shape=None,
            center=scan.query.center,
        )


def cpu_seconds(work: Callable[[], Result]) -> tuple[Result, float]:
    """Of all threads: what else the machine does counts little."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--stream"]:
        stream_and_tell(arguments[1])
        return
    show(measure(int(arguments[0]) if arguments else N_ROWS))


if __name__ == "__main__":
    main(sys.argv[1:])
