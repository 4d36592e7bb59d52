# SPDX-License-Identifier: Apache-2.0
"""How long it takes to begin: `import pufferslice`, and `pufferslice --help`.

The import is timed inside a fresh interpreter, alone and with every public name resolved; the
command is timed from outside, interpreter included. Everything is warm: the first run of each is
not counted. Rounds are interleaved; each figure is a median.

    python benchmarks/start.py
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TypedDict

ROUNDS = 9
IMPORT_GOAL = 1.0
HELP_GOAL = 0.5

IMPORT = "import pufferslice as ps"
RESOLVE = f"{IMPORT}; [getattr(ps, name) for name in ps.__all__]"
COMMAND = Path(sys.executable).with_name("pufferslice")


class Row(TypedDict):
    """One line of the table; times in seconds."""

    name: str
    ours: float
    peer: None
    ratio: None
    goal: str
    met: bool


def measure() -> list[Row]:
    measured = {
        "import pufferslice, seconds": (lambda: import_seconds(IMPORT), IMPORT_GOAL),
        "import pufferslice and every public name, seconds": (
            lambda: import_seconds(RESOLVE),
            IMPORT_GOAL,
        ),
        "pufferslice --help, seconds": (help_seconds, HELP_GOAL),
    }
    times: dict[str, list[float]] = {name: [] for name in measured}
    for timed, _ in measured.values():
        timed()
    for _ in range(ROUNDS):
        for name, (timed, _) in measured.items():
            times[name].append(timed())
    return [row(name, median(times[name]), goal) for name, (_, goal) in measured.items()]


def import_seconds(statement: str) -> float:
    """Seconds that a statement takes in a fresh interpreter."""
    code = (
        f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def help_seconds() -> float:
    """Seconds from calling `pufferslice --help` to its end."""
    start = time.perf_counter()
    done = subprocess.run([COMMAND, "--help"], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    assert "calibrate" in done.stdout
    return seconds


def row(name: str, seconds: float, goal: float) -> Row:
    return Row(
        name=name, ours=seconds, peer=None, ratio=None, goal=f"<= {goal:g}", met=seconds <= goal
    )


def main() -> None:
    for line in measure():
        verdict = "met" if line["met"] else "NOT met"
        print(f"{line['name']}: {line['ours']:.3g}; goal {line['goal']} {verdict}")


if __name__ == "__main__":
    main()
