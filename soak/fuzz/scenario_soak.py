# SPDX-License-Identifier: Apache-2.0
"""Ten thousand random scenarios: certified, verified, and recomputed with 40 digits.

    python -m soak.fuzz.scenario_soak --count 10000 --seed 1 --processes 2

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
from soak.fuzz.claims import Outcome, outcome_of
from soak.fuzz.random_scenarios import KINDS

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


def problems_of(cases: Sequence[Outcome]) -> list[str]:
    """What is false, and whether claims from samples fail more often than they say."""
    problems = [
        f"case {case.index} ({case.kind}): {case.problems}" for case in cases if case.problems
    ]
    expected = sum(case.failure_probability for case in cases)
    missed = [case.index for case in cases if case.missed]
    if len(missed) > expected + 4 * math.sqrt(expected) + 3:
        problems.append(f"claims from samples failed in cases {missed}, expected {expected:.1f}")
    refused = sum(case.refused is not None for case in cases)
    if refused > MOST_REFUSED * len(cases):
        problems.append(f"{refused} of {len(cases)} cases were refused: too few were checked")
    return problems


def summary_of(cases: Sequence[Outcome]) -> dict[str, Any]:
    """Counts for the table."""
    return {
        "scenarios": len(cases),
        "by kind": dict(collections.Counter(case.kind for case in cases)),
        "refused": dict(collections.Counter(case.refused for case in cases if case.refused)),
        "false": sum(bool(case.problems) for case in cases),
        "missed": sum(case.missed for case in cases),
        "misses allowed on average": round(sum(case.failure_probability for case in cases), 1),
    }


def _outcome(case: tuple[int, int]) -> Outcome:
    return outcome_of(*case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--log", type=Path, help="one JSON line per case")
    args = parser.parse_args()
    start, cases = time.monotonic(), []
    for case in outcomes(args.seed, args.count, args.processes, args.kinds):
        cases.append(case)
        if args.log:
            with args.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(attrs.asdict(case)) + "\n")
        if case.problems:
            print(f"case {case.index} ({case.kind}): {case.problems}", file=sys.stderr)  # noqa: T201
    problems = problems_of(cases)
    row = {"seed": args.seed, **summary_of(cases), "seconds": round(time.monotonic() - start)}
    print(json.dumps(row, indent=2))  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
