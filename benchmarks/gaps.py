# SPDX-License-Identifier: Apache-2.0
"""Gap tables beside POT's exact routine and plain numpy; the whole certificate; peak memory.

Speed: 5 secrets, 100,000 samples each, 10 dimensions, 200 directions, all 10 pairs. The peers do
not share work between pairs, so they are timed on a few (pair, direction) combinations, others in
each round, and scaled to all 2,000. POT gets its projections for free; numpy projects, sorts both
and subtracts. Rounds are interleaved; each figure is a median. Every timed result is compared with
ours.

Whole certificates of the same distributions: a claim along the 200 directions and one about the
whole output with fitted noise. Most of their time goes into couplings of the whole output, which
`effort="quick"` shortens.

Memory: a quick `certify_release` for 10 secrets, 100,000 samples each, 50 dimensions, 500
directions, in a process of its own: the highest resident size, less the size before the call. Of
thorough effort, `--memory thorough`: it takes many minutes.

    python benchmarks/gaps.py
"""

import sys
from collections.abc import Callable
from itertools import combinations
from statistics import median

import numpy as np

from process_memory import highest_resident_bytes, resident_bytes
from pufferslice import FiniteDistribution, FiniteProfile, Guarantee, Scenario
from pufferslice._core.arrays import Floats
from pufferslice.certificate import certify_release
from pufferslice.queries import summary
from pufferslice.scenario import SecretPair
from pufferslice.scenario.priors import Prior
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.couplings import Effort
from rows import Row, at_most, in_child, row, seconds, show, timed

try:
    import ot
except ImportError:
    ot = None

ROUNDS = 5
N_SECRETS, N_SAMPLES, DIM, N_DIRECTIONS = 5, 100_000, 10, 200
MEMORY_SIZES = (10, 100_000, 50, 500)
SAMPLED = 40
"""Combinations of pair and direction on which a peer is timed in one round."""
SEED = 7
JOB = f"{N_SECRETS} x {N_SAMPLES:,} x {DIM}, {N_DIRECTIONS} directions"
TARGET = Guarantee.joint(order=4, epsilon=1.0)

POT_GOAL = 25.0
NUMPY_GOAL = 7.0
CERTIFY_GOALS: dict[Effort, float] = {"thorough": 60.0, "quick": 3.0}
"""Seconds."""
MEMORY_GOAL = 2.0


def measure() -> list[Row]:
    scenario = sample_scenario(N_SECRETS, N_SAMPLES, DIM)
    profile = FiniteProfile.uniform(dim=DIM, n_directions=N_DIRECTIONS, seed=SEED)
    name = "quick certify_release, 10 x 100,000 x 50, 500 directions: GiB beyond the input"
    gibibytes = float(in_child(__file__, "--memory", "quick"))
    return [
        *speed_rows(measured_seconds(scenario, profile)),
        *certify_rows(scenario, profile),
        at_most(name, gibibytes, MEMORY_GOAL),
    ]


def measured_seconds(scenario: Scenario, profile: FiniteProfile) -> dict[str, float]:
    """Median seconds of each contestant for the whole job."""
    distributions = [
        distribution
        for distribution in scenario.priors[0].distributions.values()
        if isinstance(distribution, FiniteDistribution)
    ]
    pairs = [DistributionPair(*pair) for pair in combinations(range(N_SECRETS), 2)]
    directions = profile.directions

    worst = gap_tables(distributions, pairs, directions).worst()
    contestants: dict[str, Callable[[int], float]] = {
        "gaps": lambda _: seconds(lambda: gap_tables(distributions, pairs, directions)),
        "numpy": lambda turn: peer_seconds(
            numpy_worst_gap, (distributions, pairs, directions), worst, turn
        ),
    }
    if ot is None:
        print("row skipped: POT is not installed (pip install POT)")
    else:
        contestants["pot"] = lambda turn: peer_seconds(
            pot_worst_gap, (distributions, pairs, directions), worst, turn
        )
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(ROUNDS):
        for name, contestant in contestants.items():
            times[name].append(contestant(turn))
    return {name: median(values) for name, values in times.items()}


def speed_rows(taken: dict[str, float]) -> list[Row]:
    gaps = taken["gaps"]
    peers = {"pot": ("POT emd_1d", POT_GOAL), "numpy": ("numpy sorting per pair", NUMPY_GOAL)}
    return [
        row(
            f"gap tables, {JOB}: seconds; {peer} (scaled from {SAMPLED * ROUNDS} of 2,000)",
            gaps,
            taken[key],
            ratio=taken[key] / gaps,
            goal=f">= {goal:g}",
            met=taken[key] >= goal * gaps,
        )
        for key, (peer, goal) in peers.items()
        if key in taken
    ]


def certify_rows(scenario: Scenario, profile: FiniteProfile) -> list[Row]:
    claims = {
        "along slices": TARGET.along(profile),
        "of the whole output": Guarantee.unsliced(order=4, epsilon=1.0),
    }
    rows = []
    for what, claim in claims.items():
        certify_release(scenario, claim, effort="quick")  # loads every kernel
        for effort, goal in CERTIFY_GOALS.items():
            taken = median(
                seconds(lambda: certify_release(scenario, claim, effort=effort))  # noqa: B023 - called here
                for _ in range(ROUNDS if effort == "quick" else 1)
            )
            rows.append(at_most(f"certify_release {what}, {effort}, {JOB}: seconds", taken, goal))
    return rows


def sample_scenario(n_secrets: int, n_samples: int, dim: int) -> Scenario:
    """Gaussian samples of different centres and spreads, declared to be the priors."""
    rng = np.random.default_rng(SEED)
    secrets = tuple(f"secret {index}" for index in range(n_secrets))
    distributions = {}
    for secret in secrets:
        center, spread = rng.normal(size=dim), rng.uniform(0.5, 1.5, size=dim)
        distributions[secret] = FiniteDistribution.uniform(
            center + spread * rng.normal(size=(n_samples, dim))
        )
    prior = Prior(
        name="declared",
        source="public_model",
        origin="Gaussian samples",
        probabilities=dict.fromkeys(secrets, 1 / n_secrets),
        distributions=distributions,
    )
    return Scenario(
        distribution="worlds",
        secret={"worlds": "benchmark"},
        secrets=secrets,
        pairs=tuple(SecretPair(*pair) for pair in combinations(secrets, 2)),
        priors=(prior,),
        query=summary(mean=[f"x{index}" for index in range(dim)]),
    )


Job = tuple[list[FiniteDistribution], list[DistributionPair], Floats]
"""Distributions, pairs of them, and directions."""


def peer_seconds(
    worst_gap: Callable[[Floats, Floats, Floats], tuple[float, float]],
    job: Job,
    worst: Floats,
    turn: int,
) -> float:
    """Seconds that a peer would take for the whole job, from a few combinations of this turn."""
    distributions, pairs, directions = job
    total = len(pairs) * len(directions)
    chosen = np.random.default_rng([SEED, turn]).choice(total, size=SAMPLED, replace=False)
    spent = 0.0
    for pair, direction in zip(*np.divmod(chosen, len(directions)), strict=True):
        first, second = (distributions[index].outputs for index in pairs[pair])
        found, taken = worst_gap(first, second, directions[direction])
        assert np.isclose(found, worst[pair, direction], rtol=1e-9, atol=0.0)
        spent += taken
    return spent * total / SAMPLED


def pot_worst_gap(first: Floats, second: Floats, direction: Floats) -> tuple[float, float]:
    """The largest gap of POT's exact plan, and seconds without the projections."""
    a, b = first @ direction, second @ direction

    def found() -> float:
        plan = ot.emd_1d(a, b, metric="cityblock", dense=False)
        moved = plan.data > 0
        return float(np.abs(a[plan.row[moved]] - b[plan.col[moved]]).max())

    return timed(found)


def numpy_worst_gap(first: Floats, second: Floats, direction: Floats) -> tuple[float, float]:
    """Project, sort both, subtract; and seconds."""
    return timed(
        lambda: float(np.abs(np.sort(first @ direction) - np.sort(second @ direction)).max())
    )


def certify_memory(effort: Effort) -> float:
    """GiB between the resident size with the input in place and the highest of all."""
    n_secrets, n_samples, dim, n_directions = MEMORY_SIZES
    scenario = sample_scenario(n_secrets, n_samples, dim)
    profile = FiniteProfile.uniform(dim=dim, n_directions=n_directions, seed=SEED)
    before = resident_bytes()
    certify_release(scenario, TARGET.along(profile), effort=effort)
    return (highest_resident_bytes() - before) / 2**30


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        print(certify_memory("thorough" if sys.argv[2:] == ["thorough"] else "quick"))
        return
    show(measure())


if __name__ == "__main__":
    main()
