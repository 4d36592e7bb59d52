# SPDX-License-Identifier: Apache-2.0
"""Exact W-infinity beside POT's exact routine; its memory; how run times grow with the samples.

Speed: two samples of 4,000 points in 10 dimensions. POT solves the 1-Wasserstein problem on the
same samples and gets its table of distances for free; ours computes its own. Rounds are
interleaved; each figure is a median. The largest move of POT's plan is never less than ours.

Memory: in a process of its own, the highest resident size less the size before the call, in tables
of 4,000 x 4,000 floats; for equal and for unequal sizes.

Growth: the slope of run time against the number of samples, both in logarithms.

    PYTHONPATH=. python benchmarks/unsliced.py
"""

import sys
from statistics import median

import numpy as np

from process_memory import highest_resident_bytes, resident_bytes
from pufferslice import FiniteDistribution
from pufferslice._core.arrays import Floats
from pufferslice.baselines import w_infinity
from rows import Row, at_most, in_child, row, show, timed

try:
    import ot
except ImportError:
    ot = None

ROUNDS = 3
N_SAMPLES, DIM, N_DIRECTIONS = 4_000, 10, 200
SEED = 7

POT_GOAL = 3.0
MEMORY_GOAL = 2.0
SLICED_GOAL = 1.4


def measure() -> list[Row]:
    return [*speed_rows(), *memory_rows(), *growth_rows()]


def speed_rows() -> list[Row]:
    if ot is None:
        print("row skipped: POT is not installed (pip install POT)")
        return []
    ours: list[float] = []
    theirs: list[float] = []
    w_infinity(*distributions(8, 8, 0))  # loads the kernels
    for turn in range(ROUNDS):
        first, second = distributions(N_SAMPLES, N_SAMPLES, turn)
        found, taken = timed(lambda: w_infinity(first, second))  # noqa: B023 - called at once
        ours.append(taken)
        moved, taken = pot_largest_move(first.outputs, second.outputs)
        theirs.append(taken)
        assert found <= moved * (1 + 1e-12)
    mine, peer = median(ours), median(theirs)
    name = f"exact W-infinity, {N_SAMPLES:,} x {DIM}: seconds; POT emd"
    met = peer >= POT_GOAL * mine
    return [row(name, mine, peer, ratio=peer / mine, goal=f">= {POT_GOAL:g}", met=met)]


def memory_rows() -> list[Row]:
    """Tables of distances that a call takes in a process of its own."""
    rows = []
    for what, other in (("equal sizes", N_SAMPLES), ("unequal sizes", N_SAMPLES - 1)):
        tables = round(float(in_child(__file__, "--memory", str(other))), 2)
        name = f"exact W-infinity, {N_SAMPLES:,} x {DIM}, {what}: memory in n x n tables"
        rows.append(at_most(name, tables, MEMORY_GOAL))
    return rows


def growth_rows() -> list[Row]:
    """The first of the three ways is ours; of the others the figure is only told."""
    # Not at the top: the process that measures memory does not need it.
    from reproduction.timing import run_times  # noqa: PLC0415

    rows = []
    for place, one in enumerate(run_times(dim=DIM, n_directions=N_DIRECTIONS, seed=SEED)):
        sizes = f"n = {int(one.sizes[0]):,} to {int(one.sizes[-1]):,}"
        name = f"run time grows as n to the power, {one.method}, {sizes}"
        rows.append(row(name, one.exponent) if place else at_most(name, one.exponent, SLICED_GOAL))
    return rows


def distributions(
    n_first: int, n_second: int, turn: int
) -> tuple[FiniteDistribution, FiniteDistribution]:
    rng = np.random.default_rng([SEED, turn])
    first = rng.normal(size=(n_first, DIM))
    second = 1.2 * rng.normal(size=(n_second, DIM)) + 0.3
    return FiniteDistribution.uniform(first), FiniteDistribution.uniform(second)


def pot_largest_move(first: Floats, second: Floats) -> tuple[float, float]:
    """The largest move of POT's exact plan, and seconds without its table of distances."""
    costs = ot.dist(first, second, metric="euclidean")
    weights = np.full(len(first), 1 / len(first))
    plan, taken = timed(lambda: ot.emd(weights, weights, costs, numItermax=10**7))
    return float(costs[plan > 0].max()), taken


def matching_memory(n_second: int) -> float:
    small = distributions(8, 8, 0) if n_second == N_SAMPLES else distributions(8, 7, 0)
    w_infinity(*small)  # loads the kernels
    pair = distributions(N_SAMPLES, n_second, 0)
    before = resident_bytes()
    w_infinity(*pair)
    return (highest_resident_bytes() - before) / (8 * N_SAMPLES**2)


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        print(matching_memory(int(sys.argv[2])))
        return
    show(measure())


if __name__ == "__main__":
    main()
