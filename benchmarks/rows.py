# SPDX-License-Identifier: Apache-2.0
"""One row of the table of benchmarks, and the clocks that they share."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import TypedDict, TypeVar

Result = TypeVar("Result")


class Row(TypedDict):
    """One line of the table; its name says what the figures are."""

    name: str
    ours: float | str
    peer: float | str | None
    ratio: float | None
    goal: str | None
    met: bool | None


def row(
    name: str,
    ours: float,
    peer: float | None = None,
    *,
    ratio: float | None = None,
    goal: str | None = None,
    met: bool | None = None,
) -> Row:
    """Beside a peer the ratio is that of ours to the peer's, unless it is given."""
    if ratio is None and peer is not None:
        ratio = ours / peer
    # A comparison of numpy scalars is not a `bool`.
    verdict = None if met is None else bool(met)
    return Row(name=name, ours=ours, peer=peer, ratio=ratio, goal=goal, met=verdict)


def at_most(name: str, ours: float, goal: float, peer: float | None = None) -> Row:
    """A row whose figure should not be above its goal, whatever the peer's is."""
    return row(name, ours, peer, goal=f"<= {goal:g}", met=ours <= goal)


def show(rows: Iterable[Row]) -> None:
    """Print rows as they come."""
    for line in rows:
        figures = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key in ("ours", "peer", "ratio")
            if (value := line[key]) is not None
        )
        verdict = "" if line["met"] is None else "met" if line["met"] else "NOT met"
        goal = "" if line["goal"] is None else f"; goal {line['goal']} {verdict}"
        print(f"{line['name']}: {', '.join(figures)}{goal}", flush=True)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What the work gives, and seconds of the clock."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def seconds(work: Callable[[], object]) -> float:
    """Seconds of the clock."""
    return timed(work)[1]


def medians(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median figure of each; their rounds are interleaved, and the first is not counted."""
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant()  # loads kernels, touches memory
    for _ in range(rounds):
        for name, contestant in contestants.items():
            figures[name].append(contestant())
    return {name: median(values) for name, values in figures.items()}


def in_child(file: str, *arguments: str, n_threads: int | None = None) -> str:
    """What a benchmark prints in a process of its own, so that memory is that of this work.

    `n_threads` limits those of products of matrices, which wait for each other on a busy machine.
    """
    command = [sys.executable, file, *arguments]
    limits = {} if n_threads is None else {"OPENBLAS_NUM_THREADS": str(n_threads)}
    environment = os.environ | limits
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout


def least_processor_seconds(
    contestants: dict[str, Callable[[], object]], rounds: int
) -> list[float]:
    """The fewest seconds of the processor that each took; their rounds are interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, work in contestants.items():
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return [min(values[1:]) for values in taken.values()]
