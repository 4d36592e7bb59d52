# SPDX-License-Identifier: Apache-2.0
"""Ten thousand random scenarios: certified, verified, and recomputed with 40 digits.

    python -m tests.fuzz.scenario_soak --count 10000 --seed 1 --processes 2

prints the row of docs/testing.md and exits 1 if any certificate says something false.
"""

import argparse
import collections
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from tests.fuzz.claims import Outcome, outcome_of
from tests.fuzz.random_scenarios import KINDS

MOST_REFUSED = 0.2


def outcomes(
    seed: int, count: int, processes: int, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[Outcome]:
    """The outcome of every case of these kinds, in order; the kinds take turns."""
    wanted = {list(KINDS).index(kind) for kind in kinds}
    cases = [(seed, index) for index in range(count) if index % len(KINDS) in wanted]
    if processes == 1:
        yield from (outcome_of(*case) for case in cases)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_outcome, cases, chunksize=8)


def problems_of(found: Sequence[Outcome]) -> list[str]:
    """What is false, and whether claims from samples fail more often than they say."""
    said = [f"case {one.index} ({one.kind}): {one.problems}" for one in found if one.problems]
    expected = sum(one.failure_probability for one in found)
    missed = [one.index for one in found if one.missed]
    if len(missed) > expected + 4 * math.sqrt(expected) + 3:
        said.append(f"claims from samples failed in cases {missed}, expected {expected:.1f}")
    refused = sum(one.refused is not None for one in found)
    if refused > MOST_REFUSED * len(found):
        said.append(f"{refused} of {len(found)} cases were refused: too few were checked")
    return said


def summary_of(found: Sequence[Outcome]) -> dict[str, Any]:
    """Counts for the table."""
    return {
        "scenarios": len(found),
        "by kind": dict(collections.Counter(one.kind for one in found)),
        "refused": dict(collections.Counter(one.refused for one in found if one.refused)),
        "false": sum(bool(one.problems) for one in found),
        "missed": sum(one.missed for one in found),
        "misses allowed on average": round(sum(one.failure_probability for one in found), 1),
    }


def _outcome(case: tuple[int, int]) -> Outcome:
    return outcome_of(*case)


def main() -> int:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--count", type=int, default=10_000)
    said.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    said.add_argument("--seed", type=int, required=True)
    said.add_argument("--processes", type=int, default=1)
    said.add_argument("--log", type=Path, help="one JSON line per case")
    args = said.parse_args()
    start, found = time.monotonic(), []
    for one in outcomes(args.seed, args.count, args.processes, args.kinds):
        found.append(one)
        if args.log:
            with args.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(attrs.asdict(one)) + "\n")
        if one.problems:
            print(f"case {one.index} ({one.kind}): {one.problems}", file=sys.stderr)  # noqa: T201
    said_false = problems_of(found)
    row = {"seed": args.seed, **summary_of(found), "seconds": round(time.monotonic() - start)}
    print(json.dumps(row, indent=2))  # noqa: T201
    return 1 if said_false else 0


if __name__ == "__main__":
    sys.exit(main())
