# SPDX-License-Identifier: Apache-2.0
"""Secure integer Gaussian noise on one core: its own speed, and beside OpenDP's.

Both draw the discrete Gaussian on the integers with parameter 2^44, as 64-bit integers. OpenDP's
floating-point Gaussian rounds to a grid and is slower than its integer one, so the integer one is
the peer. Rounds are interleaved; each figure is a median.

    python benchmarks/noise.py
"""

from collections.abc import Callable
from statistics import median

from pufferslice._core.sampler import SIGMA_INT, OperatingSystemNoise
from rows import Row, row, seconds, show

try:
    import opendp.prelude as opendp
except ImportError:
    opendp = None

ROUNDS = 9
OUR_SIZE = 4_000_000
PEER_SIZE = 20_000
SPEED_GOAL = 30.0
RATIO_GOAL = 300.0


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
    name = "secure noise on one core, million coordinates per second"
    found = [row(name, ours, goal=f">= {SPEED_GOAL:g}", met=ours >= SPEED_GOAL)]
    if peer is not None:
        name = "secure noise beside OpenDP's integer Gaussian, speed ratio"
        met = ours >= RATIO_GOAL * peer
        found.append(row(name, ours, peer, goal=f">= {RATIO_GOAL:g}", met=met))
    return found


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
    return size / seconds(draw) / 1e6


if __name__ == "__main__":
    show(measure())
