# SPDX-License-Identifier: Apache-2.0
"""How long accounting takes, and what the accountants ask for in the paper's CIFAR-10 setting.

N = 50,000 records of which D = 20 differ, at order 16 and for 64 % right guesses; 3,920 steps of
512 or 1,960 of 1,024. Times are medians of warm calls.

    python benchmarks/accounting.py
"""

from functools import partial

import numpy as np

from pufferslice.baselines.account import (
    Run,
    accounts_for,
    accounts_for_noise,
)
from pufferslice.claims import Guess, Measure
from pufferslice.learning import Amplified, Poisson, WithoutReplacement, exactly, run_cost
from rows import Row, at_most, medians, row, seconds, show

ROUNDS = 5
SECONDS_GOALS = (0.05, 3.0, 1.0, 5.0)
RECORDS, DIFFERING = 50_000, 20
AT_ORDER, GUESS = Measure.renyi(order=16), Guess(at_most=0.64)
SETTINGS = {512: 3_920, 1024: 1_960}
RATIO_GOALS = {512: 0.42, 1024: 0.55}
BUDGETS = tuple(0.5 * 1.3**k for k in range(21))


def measure() -> list[Row]:
    schedule = np.linspace(50.0, 150.0, 100_000)
    poisson = Poisson(n_records=RECORDS, rate=512 / RECORDS)
    work = {
        "all accountants, 3,920 equal steps": lambda: accounts_for_noise(_run(512), 72.5, AT_ORDER),
        "noise against epsilon, 21 budgets, 4 accountants, 2 batch sizes": lambda: [
            accounts_for(_run(batch), AT_ORDER.claim(epsilon))
            for batch in SETTINGS
            for epsilon in BUDGETS
        ],
        "noise for 64 % right guesses, 4 accountants": lambda: accounts_for(_run(512), GUESS),
        "amplified, 100,000 different multipliers": lambda: run_cost(
            Amplified(), AT_ORDER.order, poisson, exactly(DIFFERING), schedule
        ),
    }
    taken = medians({name: partial(seconds, job) for name, job in work.items()}, ROUNDS)
    rows = [
        at_most(f"{name}: seconds", taken[name], goal)
        for name, goal in zip(work, SECONDS_GOALS, strict=True)
    ]
    return rows + [line for batch in SETTINGS for line in _noise_rows(batch)]


def _run(batch: int) -> Run:
    sampling = Poisson(n_records=RECORDS, rate=batch / RECORDS)
    return Run(differing=exactly(DIFFERING), sampling=sampling, n_steps=SETTINGS[batch])


def _noise_rows(batch: int) -> list[Row]:
    """Amplified beside mean square, drawn without replacement as in the paper."""
    design = WithoutReplacement(n_records=RECORDS, batch_size=batch)
    paper = Run(differing=exactly(DIFFERING), sampling=design, n_steps=SETTINGS[batch])
    rows = []
    for epsilon in (1.0, 8.0, 80.0):
        drawn = accounts_for(paper, AT_ORDER.claim(epsilon))
        ours = accounts_for(_run(batch), AT_ORDER.claim(epsilon))["amplified"].noise_multiplier
        peer = drawn["mean_square"].noise_multiplier
        goal = RATIO_GOALS[batch]
        name = f"multiplier for epsilon {epsilon:g}, batch {batch}"
        met = ours <= goal * peer
        rows.append(
            row(f"{name}: amplified; mean square", ours, peer, goal=f"<= {goal:g}", met=met)
        )
        for other in ("log_moment", "worst_case"):
            label = other.replace("_", " ")
            rows.append(row(f"{name}: {label}", drawn[other].noise_multiplier))
    return rows


if __name__ == "__main__":
    show(measure())
