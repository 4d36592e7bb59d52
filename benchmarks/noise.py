# SPDX-License-Identifier: Apache-2.0
"""Secure integer Gaussian noise on one core: its own speed, and beside OpenDP's.

Both draw the discrete Gaussian on the integers with parameter 2^44, as 64-bit integers. OpenDP's
floating-point Gaussian rounds to a grid and is slower than its integer one, so the integer one is
the peer. Rounds are interleaved; each figure is a median.

    python benchmarks/noise.py
"""

import time
from collections.abc import Callable
from statistics import median
from typing import TypedDict

from pufferslice.calibration.noise import SIGMA_INT, OperatingSystemNoise

try:
    import opendp.prelude as opendp
except ImportError:
    opendp = None

ROUNDS = 9
OUR_SIZE = 4_000_000
PEER_SIZE = 20_000
SPEED_GOAL = 30.0
RATIO_GOAL = 300.0


class Row(TypedDict):
    """One line of the table; speeds in million coordinates per second."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: float
    met: bool


def measure() -> list[Row]:
    ours, peers = [], []
    noise = OperatingSystemNoise()
    noise.draw(1)  # loads the kernel
    peer = peer_measurement()
    zeros = [0] * PEER_SIZE
    for _ in range(ROUNDS):
        ours.append(speed(lambda: noise.draw(OUR_SIZE), OUR_SIZE))
        if peer:
            peers.append(speed(lambda: peer(zeros), PEER_SIZE))
    return rows(median(ours), median(peers) if peers else None)


def rows(ours: float, peer: float | None) -> list[Row]:
    speed_row = Row(
        name="secure noise on one core, million coordinates per second",
        ours=ours,
        peer=None,
        ratio=None,
        goal=SPEED_GOAL,
        met=ours >= SPEED_GOAL,
    )
    if peer is None:
        return [speed_row]
    ratio = ours / peer
    ratio_row = Row(
        name="secure noise beside OpenDP's integer Gaussian, speed ratio",
        ours=ours,
        peer=peer,
        ratio=ratio,
        goal=RATIO_GOAL,
        met=ratio >= RATIO_GOAL,
    )
    return [speed_row, ratio_row]


def peer_measurement() -> Callable[[list[int]], list[int]] | None:
    """OpenDP's Gaussian mechanism on a vector of 64-bit integers, if it is installed."""
    if opendp is None:
        print("row skipped: OpenDP is not installed (pip install opendp)")
        return None
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T="i64"), size=PEER_SIZE)
    metric = opendp.l2_distance(T=float)
    return opendp.m.make_gaussian(domain, metric, scale=float(SIGMA_INT))


def speed(draw: Callable[[], object], size: int) -> float:
    """Million coordinates per second of one call."""
    start = time.perf_counter()
    draw()
    return size / (time.perf_counter() - start) / 1e6


def main() -> None:
    for row in measure():
        figures = [f"{key} {row[key]:.4g}" for key in ("ours", "peer", "ratio") if row[key]]
        verdict = "met" if row["met"] else "NOT met"
        print(f"{row['name']}: {', '.join(figures)}; goal {row['goal']:g} {verdict}")


if __name__ == "__main__":
    main()
