# SPDX-License-Identifier: Apache-2.0
"""What an engine takes for the moments of a table and for a release of it, beside bare queries.

Twenty statistics of a Parquet file, ten million rows or as many as PUFFERSLICE_ROWS says: twelve
means with clip ranges, and eight rates of two columns. *Bare* is one query with the same sums, and
products of all twelve numbers, in groups of the secret and both columns, as SQL or as expressions
written by hand: without quantised numbers, exact sums and centres. A release has sums alone.
Each in one thread; rounds are interleaved.

    python benchmarks/engines.py
"""

import os
import tempfile
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pufferslice as ps
from pufferslice.data.tables import rows_of
from pufferslice.scenario.rows import exact_sums
from rows import Row, at_most, medians, seconds, show

N_ROWS = int(os.environ.get("PUFFERSLICE_ROWS", "10000000"))
ROUNDS = 3
NUMBERS = [f"x{k}" for k in range(12)]
GROUPS = {"region": ["a", "b", "c", "d"], "kind": ["p", "q", "r", "s"]}
KEYS = ["sex", *GROUPS]
LOW, HIGH = -2.0, 2.0
PAIRS = list(combinations_with_replacement(NUMBERS, 2))
QUERY = ps.queries.summary(
    mean=NUMBERS,
    rate=[(column, value) for column, values in GROUPS.items() for value in values],
    clip=dict.fromkeys(NUMBERS, (LOW, HIGH)),
)


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.parquet"
        write(path)
        lazies = {"DuckDB": duckdb_table, "Polars": polars_table}
        bare = {"DuckDB": bare_duckdb, "Polars": bare_polars}
        contestants = {}
        for engine, table in lazies.items():
            for what, products in (("moments", True), ("sums", False)):
                ours = moments if products else sums
                contestants[f"{engine} {what}"] = partial(seconds, partial(ours, table, path))
                contestants[f"{engine} bare {what}"] = partial(
                    seconds, partial(bare[engine], path, products=products)
                )
        taken = medians(contestants, ROUNDS)
    goals = {
        "moments": ("moments of 20 statistics", 1.3),
        "sums": ("the value of a release", 1.2),
    }
    return [
        at_most(
            f"{name} over {N_ROWS:,} Parquet rows by {engine}, times bare",
            taken[f"{engine} {what}"] / taken[f"{engine} bare {what}"],
            goal,
        )
        for what, (name, goal) in goals.items()
        for engine in lazies
    ]


def write(path: Path) -> None:
    rng, chunk = np.random.default_rng(5), 1_000_000
    with_labels = {"sex": ["F", "M"], **GROUPS}
    writer = None
    for start in range(0, N_ROWS, chunk):
        n = min(chunk, N_ROWS - start)
        table = pa.table(
            {name: np.round(rng.normal(size=n), 3) for name in NUMBERS}
            | {name: rng.choice(labels, n) for name, labels in with_labels.items()}
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def duckdb_table(path: Path) -> Any:
    return duckdb_connection().read_parquet(str(path))


def duckdb_connection() -> Any:
    import duckdb  # noqa: PLC0415 - a peer

    return duckdb.connect(config={"threads": "1"})


def polars_table(path: Path) -> Any:
    import polars as pl  # noqa: PLC0415 - a peer

    return pl.scan_parquet(path)


def moments(table: Any, path: Path) -> None:
    ps.Scenario.from_prevalence(
        None, column="sex", value="F", within=0.05, query=QUERY, moments_from=table(path),
        n_rows=N_ROWS,
    )  # fmt: skip


def sums(table: Any, path: Path) -> None:
    exact_sums(rows_of(table(path)), QUERY.as_sums().features, 20)


def bare_duckdb(path: Path, *, products: bool) -> None:
    clipped = [f"least(greatest({name}, {LOW}), {HIGH}) AS {name}" for name in NUMBERS]
    wanted = [f"sum({name})" for name in NUMBERS]
    wanted += [f"sum({a} * {b})" for a, b in PAIRS] if products else []
    keys = ", ".join(KEYS if products else GROUPS)
    duckdb_connection().execute(
        f"SELECT {keys}, count(*), {', '.join(wanted)} "  # noqa: S608 - names of this file
        f"FROM (SELECT {keys}, {', '.join(clipped)} FROM read_parquet('{path}')) GROUP BY {keys}"
    ).fetchall()


def bare_polars(path: Path, *, products: bool) -> None:
    import polars as pl  # noqa: PLC0415 - a peer

    clipped = pl.scan_parquet(path).with_columns(pl.col(NUMBERS).clip(LOW, HIGH))
    wanted = [pl.len(), *(pl.col(name).sum().alias(f"sum {name}") for name in NUMBERS)]
    if products:
        wanted += [(pl.col(a) * pl.col(b)).sum().alias(f"{a} {b}") for a, b in PAIRS]
    clipped.group_by(KEYS if products else list(GROUPS)).agg(wanted).collect(engine="streaming")


if __name__ == "__main__":
    # Polars reads it when it is imported.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    show(measure())
