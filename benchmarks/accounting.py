# SPDX-License-Identifier: Apache-2.0
"""How long accounting takes, and what the accountants ask for in the paper's CIFAR-10 setting.

N = 50,000 records of which D = 20 differ, order 16; 3,920 steps of 512 or 1,960 of 1,024. Times are
medians of warm calls.

    python benchmarks/accounting.py
"""

import time
from collections.abc import Callable
from statistics import median
from typing import TypedDict

import numpy as np

from pufferslice.baselines.account import (
    Run,
    accounts_for_epsilon,
    accounts_for_noise,
    noise_curves,
)
from pufferslice.learning import Amplified, Poisson, WithoutReplacement, exactly, run_cost

ROUNDS = 5
RECORDS, DIFFERING, ORDER = 50_000, 20, 16.0
SETTINGS = {512: 3_920, 1024: 1_960}
RATIO_GOALS = {512: 0.42, 1024: 0.55}
BUDGETS = tuple(0.5 * 1.3**k for k in range(21))


class Row(TypedDict):
    """One line of the table."""

    name: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: str
    met: bool | None


def measure() -> list[Row]:
    schedule = np.linspace(50.0, 150.0, 100_000)
    poisson = Poisson(n_records=RECORDS, rate=512 / RECORDS)
    timed = {
        "all accountants, 3,920 equal steps: seconds": (
            lambda: accounts_for_noise(_run(512), 72.5),
            0.05,
        ),
        "noise against epsilon, 21 budgets, 4 accountants, 2 batch sizes: seconds": (
            lambda: [noise_curves(_run(batch), BUDGETS) for batch in SETTINGS],
            3.0,
        ),
        "amplified, 100,000 different multipliers: seconds": (
            lambda: run_cost(Amplified(), ORDER, poisson, exactly(DIFFERING), schedule),
            5.0,
        ),
    }
    rows = [_timed(name, work, goal) for name, (work, goal) in timed.items()]
    return rows + [row for batch in SETTINGS for row in _noise_rows(batch)]


def _run(batch: int) -> Run:
    sampling = Poisson(n_records=RECORDS, rate=batch / RECORDS)
    return Run(
        differing=exactly(DIFFERING), sampling=sampling, n_steps=SETTINGS[batch], order=ORDER
    )


def _timed(name: str, work: Callable[[], object], goal: float) -> Row:
    work()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    ours = median(seconds)
    return Row(name=name, ours=ours, peer=None, ratio=None, goal=f"< {goal:g}", met=ours < goal)


def _noise_rows(batch: int) -> list[Row]:
    """Amplified beside mean square, drawn without replacement as in the paper."""
    design = WithoutReplacement(n_records=RECORDS, batch_size=batch)
    paper = Run(differing=exactly(DIFFERING), sampling=design, n_steps=SETTINGS[batch], order=ORDER)
    rows = []
    for epsilon in (1.0, 8.0, 80.0):
        drawn = accounts_for_epsilon(paper, epsilon)
        ours = accounts_for_epsilon(_run(batch), epsilon)["amplified"].noise_multiplier
        peer = drawn["mean_square"].noise_multiplier
        goal = RATIO_GOALS[batch]
        rows.append(
            Row(
                name=f"multiplier for epsilon {epsilon:g}, batch {batch}: amplified; mean square",
                ours=ours,
                peer=peer,
                ratio=ours / peer,
                goal=f"<= {goal:g}",
                met=ours / peer <= goal,
            )
        )
        for name in ("log_moment", "worst_case"):
            label = name.replace("_", " ")
            rows.append(
                Row(
                    name=f"multiplier for epsilon {epsilon:g}, batch {batch}: {label}",
                    ours=drawn[name].noise_multiplier,
                    peer=None,
                    ratio=None,
                    goal="-",
                    met=None,
                )
            )
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
