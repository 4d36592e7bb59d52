# SPDX-License-Identifier: Apache-2.0
"""Couplings of streamed rows beside the scan that they follow; memory; ratio to those in memory.

Speed and memory: 20 million rows of Parquet, 10 columns, two secrets of unequal size, 200
directions, in a process of its own: seconds of all cores for the scan, for the second pass that
spills rows to disk, and for quick couplings of all strata; the highest resident size of all of it.

Ratio: the unsliced epsilon at the same noise and effort, streamed over in memory, of as many of
these rows as can be coupled in memory, at most 2 million.

    PYTHONPATH=. python benchmarks/strata.py [N_ROWS]
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from process_memory import highest_resident_bytes
from pufferslice.queries import Box, columns
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
from pufferslice.sensitivity.couplings import Recipe, coupling_tables
from pufferslice.sensitivity.strata import SpilledStrata, strata_tables
from pufferslice.sensitivity.tables import MatchingTables
from rows import Result, Row, at_most, in_child, row, show

N_ROWS, DIM, N_DIRECTIONS = 20_000_000, 10, 200
ROWS_PER_FILE = 500_000
IN_MEMORY_ROWS = 2_000_000
SEED = 7
SECRETS = ("a", "b")
PAIR = [DistributionPair(0, 1)]
ORDER, NOISE_STD = 4.0, 4.0
RATE = ORDER * (ORDER - 1) / (2 * NOISE_STD**2)
RECIPE = Recipe(effort="quick", cost="renyi", rate=RATE)

TIME_GOAL, MEMORY_GOAL, RATIO_GOAL = 5.0, 1.5, 1.3


def measure(n_rows: int = N_ROWS) -> list[Row]:
    return [*stream_rows(n_rows), ratio_row(min(n_rows, IN_MEMORY_ROWS))]


def stream_rows(n_rows: int) -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="pufferslice-bench-"))
    try:
        for start in range(0, n_rows, ROWS_PER_FILE):
            size = min(ROWS_PER_FILE, n_rows - start)
            table = sample_table(size, start)
            pa.parquet.write_table(table, folder / f"{start:012}.parquet", compression="none")
        found = json.loads(in_child(__file__, "--stream", str(folder)))
    finally:
        shutil.rmtree(folder)
    what, scan = f"{n_rows:,} x {DIM} streamed", found["scan"]
    taken = found["spill"] + found["couplings"]
    both = f"{what}, spill and quick couplings: seconds of all cores; scan"
    peak = f"{what}, scan, spill and couplings: peak GiB"
    return [
        row(f"{what}, spill: seconds of all cores; scan", found["spill"], scan),
        goal_row(both, taken, scan, TIME_GOAL),
        at_most(peak, found["peak"], MEMORY_GOAL),
    ]


def goal_row(name: str, ours: float, peer: float, goal: float) -> Row:
    return row(name, ours, peer, goal=f"ratio <= {goal:g}", met=ours <= goal * peer)


def stream_and_tell(folder: str) -> None:
    warm()
    told: dict[str, float] = {}
    histograms, told["scan"] = cpu_seconds(lambda: scan_files(folder, SCAN))
    strata, told["spill"] = cpu_seconds(lambda: spill_files(folder, SCAN, histograms))
    _, told["couplings"] = cpu_seconds(lambda: coupled(strata))
    told["peak"] = highest_resident_bytes() / 2**30
    print(json.dumps(told))


def ratio_row(n_rows: int) -> Row:
    table = sample_table(n_rows, 0)
    histograms = scan_tables([table], SCAN)
    streamed = epsilon(coupled(spill_tables([table], SCAN, histograms)))
    is_first = np.array(table["group"].to_pylist()) == SECRETS[0]
    outputs = SCAN.query.prepared(SCAN.query.outputs(table))
    distributions = [FiniteDistribution.uniform(outputs[which]) for which in (is_first, ~is_first)]
    in_memory = epsilon(coupling_tables(distributions, PAIR, RECIPE))
    name = f"unsliced epsilon, {n_rows:,} x {DIM}, quick couplings: streamed; in memory"
    return goal_row(name, streamed, in_memory, RATIO_GOAL)


def coupled(strata: dict[str, SpilledStrata]) -> MatchingTables:
    parts = [strata[secret] for secret in SECRETS]
    return strata_tables(parts, PAIR, RECIPE, shape=None, center=SCAN.query.center)


def epsilon(tables: MatchingTables) -> float:
    return float(tables.log_moments(RATE, 0.0).min()) / (ORDER - 1)


def sample_table(n_rows: int, seed: int) -> pa.Table:
    """Rows of the first secret, about a tenth more of them, and of the second."""
    rng = np.random.default_rng([SEED, seed])
    codes = (rng.random(n_rows) < 10 / 21).astype(np.int8)
    numbers = rng.standard_normal((DIM, n_rows)) + 0.3 * codes
    groups = pa.DictionaryArray.from_arrays(codes, list(SECRETS))
    return pa.table({"group": groups, **{f"x{k}": column for k, column in enumerate(numbers)}})


QUERY = columns([f"x{k}" for k in range(DIM)]).with_range(Box([-6.0] * DIM, [6.0] * DIM))
SCAN = RowScan.of(
    QUERY,
    secret="group",  # noqa: S106 - a column
    profile=FiniteProfile.uniform(dim=DIM, n_directions=N_DIRECTIONS, seed=SEED),
)


def warm() -> None:
    """Load the kernels."""
    table = sample_table(6_001, 1)
    coupled(spill_tables([table], SCAN, scan_tables([table], SCAN), most_rows=1_000))


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
