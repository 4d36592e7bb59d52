# SPDX-License-Identifier: Apache-2.0
"""Run the commands of a ledger in many random orders, and count the different ones.

    python -m soak.ledger.explore --store files --count 100000 --seed 1 --processes 2

prints a row of docs/testing.md; the first order whose end is wrong is an error with its number.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.releases.conftest import running_server
from tests.releases.explorer import PROGRAMS, Databases, Files, World, at_random, run

MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made there


def explore(
    store: str, address: Any, numbers: range, seed: int, seconds: float = float("inf")
) -> tuple[set[int], Counter[str]]:
    """Different schedules, by a hash of what was chosen, and counts of what happened in them."""
    names = [name for name, p in PROGRAMS.items() if store == "files" or not p.needs_files]
    different: set[int] = set()
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as base:
        for number in numbers:
            if time.monotonic() - begun > seconds:
                break
            name, folder = names[number % len(names)], Path(base) / str(number)
            folder.mkdir()
            world = World(Files(folder) if store == "files" else Databases(address), folder)
            rng = random.Random(f"{seed} {name} {number}")
            try:
                chosen = run(PROGRAMS[name], world, at_random(rng))
            except AssertionError as error:
                raise AssertionError(f"{name}, number {number}, seed {seed}: {error}") from error
            different.add(hash((name, chosen)))
            counts["schedules"] += 1
            counts["noises"] += world.drawn
            counts["handed out"] += len({each.noise for each in world.handed})
    return different, counts


def _share(arguments: tuple[Any, ...]) -> tuple[set[int], Counter[str]]:
    return explore(*arguments)


def explore_at_once(
    store: str,
    count: int,
    seed: int,
    processes: int,
    address: Any,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """Explore in several processes, and add up."""
    begun, different, counts = time.monotonic(), set(), Counter()
    shares = [(store, address, range(k, count, processes), seed, seconds) for k in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for found, more in pool.imap_unordered(_share, shares):
            different |= found
            counts += more
    return {
        "store": store,
        "seed": seed,
        **counts,
        "different": len(different),
        "seconds": round(time.monotonic() - begun),
    }


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    said.add_argument("--store", choices=["files", "databases"], default="files")
    said.add_argument("--count", type=int, default=1000)
    said.add_argument("--seed", type=int, required=True)
    said.add_argument("--processes", type=int, default=1)
    said.add_argument("--seconds", type=float, default=float("inf"))
    args = said.parse_args()
    rest = (args.count, args.seed, args.processes)
    if args.store == "files":
        row = explore_at_once("files", *rest, None, args.seconds)
    else:
        with running_server() as server:
            row = explore_at_once("databases", *rest, server.address, args.seconds)
    print(json.dumps(row), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
