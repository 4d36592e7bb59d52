# SPDX-License-Identifier: Apache-2.0
"""Run the suites of this folder with new seeds, for some rounds or for some minutes.

    python -m soak [--rounds N | --minutes N] [--seed S]

A round takes half an hour, and also runs the property, statistical and soundness tests of tests/.
With --minutes rounds are small and of this folder alone; the last is cut short. Every round has a
seed of its own: S in the first, S + 1 in the second. The first failure ends the soak.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = (sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal")
FULL = ("soak", "tests", "--timeout=7200", "-m=soak or statistical or soundness or hypothesis")
SMALL = ("soak", "--timeout=600", "-m=")
SEEDS = 2**32


def main() -> int:
    """Exit code: 0 if every round passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, help="small rounds for so long, in place of rounds"
    )
    parser.add_argument("--seed", type=int, help="of the first round; drawn and printed without it")
    options = parser.parse_args()
    seed = secrets.randbelow(SEEDS) if options.seed is None else options.seed
    limited = options.minutes is not None
    until = time.time() + 60 * options.minutes if limited else float("inf")
    done = 0
    while time.time() < until if limited else done < options.rounds:
        code = run_round((seed + done) % SEEDS, until, limited=limited)
        if code:
            return code
        done += 1
    return 0


def run_round(seed: int, until: float, *, limited: bool) -> int:
    """The exit code of pytest."""
    print(f"a round with seed {seed}", flush=True)  # noqa: T201
    environment = {
        "HYPOTHESIS_PROFILE": "soak",
        "PUFFERSLICE_SEED": str(seed),
        "PUFFERSLICE_SOAK": "small" if limited else "full",
        "PUFFERSLICE_SOAK_UNTIL": str(until),
    }
    command = [*PYTEST, *(SMALL if limited else FULL), f"--hypothesis-seed={seed}"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
