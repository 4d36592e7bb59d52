# SPDX-License-Identifier: Apache-2.0
"""How long it takes to begin: `import pufferslice`, and `pufferslice --help`.

The import is timed inside a fresh interpreter, alone and with every public name resolved; the
command is timed from outside, interpreter included. Everything is warm: the first run of each is
not counted. Rounds are interleaved; each figure is a median.

    python benchmarks/start.py
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

from rows import Row, at_most, medians, seconds, show

ROUNDS = 9
IMPORT_GOAL = 1.0
HELP_GOAL = 0.5

IMPORT = "import pufferslice as ps"
RESOLVE = f"{IMPORT}; [getattr(ps, name) for name in ps.__all__]"
COMMAND = Path(sys.executable).with_name("pufferslice")


def measure() -> list[Row]:
    contestants = {
        "import pufferslice": partial(import_seconds, IMPORT),
        "import pufferslice and every public name": partial(import_seconds, RESOLVE),
        "pufferslice --help": partial(seconds, command_help),
    }
    taken = medians(contestants, ROUNDS)
    goals = (IMPORT_GOAL, IMPORT_GOAL, HELP_GOAL)
    return [
        at_most(f"{name}, seconds", taken[name], goal)
        for name, goal in zip(contestants, goals, strict=True)
    ]


def import_seconds(statement: str) -> float:
    """Seconds that a statement takes in a fresh interpreter."""
    code = (
        f"import time\nstart = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def command_help() -> None:
    done = subprocess.run([COMMAND, "--help"], check=True, capture_output=True, text=True)
    assert "calibrate" in done.stdout


if __name__ == "__main__":
    show(measure())
