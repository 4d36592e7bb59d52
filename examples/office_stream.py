# SPDX-License-Identifier: Apache-2.0
"""A statistics office streams its rows from files, and hides how many of them are women.

Simulated data: rows drawn from the Adult census into Parquet files. Memory does not grow with
them: `python examples/office_stream.py 20000000` writes and reads twenty million.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import pufferslice as ps

NUMBERS = ["age", "hours-per-week", "education-num"]
PER_FILE = 500_000


def main(n_rows: int) -> None:
    """Write files, declare, certify, release from the files."""
    folder = Path(tempfile.mkdtemp(prefix="office-"))
    census = ps.datasets.adult().select([*NUMBERS, "sex", "income"])
    rng = np.random.default_rng(9)
    for start in range(0, n_rows, PER_FILE):
        rows = rng.integers(len(census), size=min(PER_FILE, n_rows - start))
        pq.write_table(census.take(rows), folder / f"{start:010}.parquet")

    files = folder / "*.parquet"
    query = ps.queries.summary(
        mean=NUMBERS,
        rate={"income": ">50K"},
        scales={"age": 10, "hours-per-week": 10, "education-num": 3, "income": 0.5},
    )
    scenario = ps.Scenario.from_prevalence(
        files, column="sex", value="Female", shares=[0.32, 0.33, 0.34], query=query
    )
    certificate = ps.certify_release(scenario, ps.Guarantee.guess(at_most=0.6))
    released = ps.release(scenario, files, certificate, ledger=folder / "census.ledger")
    print(released)

    print("\nNoise over the column's own standard deviation:")
    for name, std in zip(NUMBERS, released.noise_stds[:3], strict=True):
        print(f"  {name:<24} {std / np.std(census[name].to_numpy()):.3f}")
    print(f"Noise of the rate: {released.noise_stds[3]:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
