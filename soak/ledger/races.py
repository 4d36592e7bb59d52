# SPDX-License-Identifier: Apache-2.0
"""Processes that release at once: one wins each round.

python -m soak.ledger.races --processes 20 --rounds 30
"""

import argparse
import contextlib
import json
import multiprocessing
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.releases.conftest import running_server
from tests.releases.explorer import ONE, SAME

from pufferslice.errors import AlreadyReleasedError
from pufferslice.releases.commands import finished, releasing
from pufferslice.releases.ledger import Ledger
from pufferslice.releases.marks import Outside
from pufferslice.releases.states import Intent


def _compete(number: int, locations: list[str], folder: Path, start: Any, results: Any) -> None:
    """Release in every round; half of the processes with another certificate of the secret."""
    grant = (ONE, SAME)[number % 2]
    for turn, location in enumerate(locations):
        marks = folder / str(turn)
        book = Ledger(location)
        outside = Outside(place=book.place, folder=marks, out=marks)
        start.wait()
        noise = f"{number} {secrets.token_hex(8)}"
        document = json.dumps({"certificate": grant.certificate, "noise": noise})
        with contextlib.suppress(AlreadyReleasedError):
            finished(
                releasing(
                    book,
                    grant,
                    Intent(certificate=grant.certificate),
                    outside,
                    draw=lambda _, document=document: document,
                    text=str,
                    hand_out=(marks / f"{number}.out").write_text,
                )
            )
    results.put(number)


def race(locations: list[str], n_processes: int, folder: Path) -> list[int]:
    """Number of processes that released, in each round."""
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(n_processes), context.Queue()
    for turn in range(len(locations)):
        (folder / str(turn)).mkdir(parents=True)
    processes = [
        context.Process(target=_compete, args=(k, locations, folder, start, results))
        for k in range(n_processes)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        results.get(timeout=1200)
    for process in processes:
        process.join()
    winners = []
    for turn, location in enumerate(locations):
        written = [path.read_text() for path in (folder / str(turn)).glob("*.out")]
        (entry,) = Ledger(location).entries()
        assert [entry.release] == written
        assert entry.state == "published"
        assert Ledger(location).problems() == []
        winners.append(len(written))
    return winners


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    said.add_argument("--processes", type=int, default=20)
    said.add_argument("--rounds", type=int, default=30)
    args = said.parse_args()
    with tempfile.TemporaryDirectory() as base, running_server() as server:
        run = secrets.token_hex(4)
        for store, place in {
            "files": lambda turn: str(Path(base) / f"{turn}.ledger"),
            "databases": lambda turn: server.address(f"race{run}_{turn}"),
        }.items():
            begun = time.monotonic()
            winners = race(
                [place(turn) for turn in range(args.rounds)], args.processes, Path(base) / store
            )
            row = {
                "store": store,
                "processes": args.processes,
                "rounds": args.rounds,
                "rounds with one winner": winners.count(1),
                "seconds": round(time.monotonic() - begun),
            }
            print(json.dumps(row), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
