# SPDX-License-Identifier: Apache-2.0
"""Kill and interrupt the long commands at random moments, look at their files, and let them go on.

    python -m soak.kill.loop --kills 25 --interrupts 8 --seed 1

prints a row of docs/testing.md for every command; the first thing that is wrong is an error.
"""

import argparse
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from soak.kill.commands import COMMANDS, Command
from soak.kill.nursery import Ended, Nursery

from pufferslice.cli.output import INTERRUPTED

LATEST = 1.05
"""Moments are drawn from the whole time of an unbroken run, and a little beyond its end."""

TOO_LATE = 3
"""Kills that may come too late, for each that must come in time."""

IMPORTS = 4.0
"""Seconds that a process from scratch is given before its work begins, about."""


def loop(
    command: Command, rng: np.random.Generator, *, kills: int, interrupts: int, from_scratch: int
) -> dict[str, Any]:
    """Every attempt has files of its own; what was found is counted."""
    start = time.monotonic()
    row = {"command": command.name, "kills": 0, "too late": 0, "interrupts": 0, "from scratch": 0}
    while row["kills"] < kills and row["too late"] < TOO_LATE * kills:
        folder, after = command.fresh(), float(rng.uniform(0, LATEST * command.seconds))
        ended = command.broken(folder, after, signal.SIGKILL)
        assert "Traceback" not in ended.stderr, ended
        row["kills" if ended.code == -signal.SIGKILL else "too late"] += 1
        if not ended.signalled:  # the machine has become quicker than when it was measured
            command.seconds = min(command.seconds, ended.seconds)
        command.look(folder)
        command.resume(folder)
    for _ in range(interrupts):
        folder, after = command.fresh(), float(rng.uniform(0, LATEST * command.seconds))
        _check_interrupted(command.broken(folder, after, signal.SIGINT))
        row["interrupts"] += 1
        command.look(folder)
        command.resume(folder)
    for _ in range(from_scratch):
        folder, after = command.fresh(), float(rng.uniform(0, IMPORTS + LATEST * command.seconds))
        row["from scratch"] += command.from_scratch(folder, after, signal.SIGKILL) < 0
        command.look(folder)
        command.resume(folder)
    return row | {
        "unbroken seconds": round(command.seconds, 2),
        "seconds": round(time.monotonic() - start),
    }


def _check_interrupted(ended: Ended) -> None:
    """A word, no traceback, and an end of its own accord."""
    assert not ended.late, ended
    assert ended.code in (0, 1, INTERRUPTED, -signal.SIGINT), ended
    if "Exception ignored in" not in ended.stderr:  # Python's own, of one that meets a destructor
        assert "Traceback" not in ended.stderr, ended.stderr
        assert len(ended.stderr.splitlines()) <= 3, ended.stderr


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--kills", type=int, default=25)
    said.add_argument("--interrupts", type=int, default=8)
    said.add_argument("--from-scratch", type=int, default=2)
    said.add_argument("--seed", type=int, required=True)
    said.add_argument("--only", nargs="*", default=list(COMMANDS))
    args = said.parse_args()
    modules = [module for name in args.only for module in COMMANDS[name].modules]
    with tempfile.TemporaryDirectory() as base, Nursery(modules) as nursery:
        for name in args.only:
            command = COMMANDS[name](Path(base), nursery)
            rng = np.random.default_rng([args.seed, list(COMMANDS).index(name)])
            row = loop(
                command,
                rng,
                kills=args.kills,
                interrupts=args.interrupts,
                from_scratch=args.from_scratch,
            )
            print(json.dumps(row), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
