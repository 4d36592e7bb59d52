# SPDX-License-Identifier: Apache-2.0
"""What the CIFAR-10 runs say: every account and budget read off the ladder, attacks, and claims.

Works on whatever has finished; the rest is "not run yet".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final, final

import attrs
import numpy as np

from pufferslice.learning import MeanSquare, exactly, run_cost
from reproduction.accuracy import ATTACK_EPSILONS, accuracy_claims, attack_claims
from reproduction.cifar import (
    ATTACK_SETUP,
    COMPARED_RUNGS,
    LADDER_SETUPS,
    RUNGS,
    CifarResult,
    CifarRun,
    planned_runs,
    result_of,
)
from reproduction.experiment import Claim, Row, number_in
from reproduction.noise import (
    BOTH_DIFFERING,
    SERIES,
    NoiseSetting,
    noise_multipliers,
    noise_setting,
)

BUDGETS: Final = (80.0, 40.0, 20.0, 8.0, 4.0, 2.0, 1.0)
NOT_RUN: Final = "not run yet"
NOT_PRIVATE: Final = "not private"
RECIPE: Final = "recipe_sa_srpp"
LARGEST_ATTACKED: Final = 1.05 * ATTACK_EPSILONS[0]
"""A little above the largest budget of the paper's attack: rungs are rounded."""


@final
@attrs.frozen(kw_only=True)
class FinishedRuns:
    """All planned runs, and the results of those that have finished."""

    results: Mapping[str, CifarResult]
    """By the name of the run."""

    @classmethod
    def of(cls, folder: Path) -> "FinishedRuns":
        """What a folder holds."""
        found = {run.name: result_of(run, folder) for run in planned_runs("all")}
        return cls(results={name: result for name, result in found.items() if result is not None})

    def of_part(self, part: str) -> Iterator[tuple[CifarRun, CifarResult | None]]:
        """Every run of a part with its result, in the order of the noise."""
        for run in sorted(planned_runs(part), key=lambda run: run.noise_multiplier):
            yield run, self.results.get(run.name)

    def accuracies(self, part: str) -> dict[float, float]:
        """Test accuracy by noise multiplier, of the private runs that have finished."""
        return {
            run.noise_multiplier: result.test_accuracy
            for run, result in self.of_part(part)
            if result is not None and run.noise_multiplier
        }

    def baseline(self, part: str) -> CifarResult | None:
        """The run of a part without clipping and noise."""
        return next(
            (result for run, result in self.of_part(part) if not run.noise_multiplier), None
        )


def read_off(accuracies: Mapping[float, float], multiplier: float) -> float | None:
    """The accuracy at a multiplier: between the nearest finished rungs, linear in its logarithm.

    Above the ladder it is that of the last rung, below it that of the first: an upper bound and a
    lower bound, if less noise is never worse. None where rungs are missing.
    """
    rungs = sorted(accuracies)
    lowest = max(multiplier, RUNGS[0])
    highest = min(multiplier, RUNGS[-1])
    if not rungs or rungs[0] > lowest or rungs[-1] < highest:
        return None
    values = [accuracies[rung] for rung in rungs]
    return float(np.interp(math.log(multiplier), np.log(rungs), values))


def ladder_rows(runs: FinishedRuns) -> list[Row]:
    """Accuracy of every series at every budget, for both rates and both numbers of records."""
    rows: list[Row] = []
    for n_differing, setup, series in product(BOTH_DIFFERING, LADDER_SETUPS, SERIES):
        accuracies = runs.accuracies(f"ladder-{setup.batch_size}")
        noise = noise_setting(setup, n_differing)
        multipliers = noise_multipliers(noise, series, BUDGETS)
        for epsilon, multiplier in zip(BUDGETS, multipliers, strict=True):
            cost = epsilon
            if series.startswith("recipe_"):
                cost = noise.recipe(series, epsilon).true_epsilon
            rows.append(
                {
                    "n_differing": n_differing,
                    "batch_size": setup.batch_size,
                    "series": series,
                    "epsilon": epsilon,
                    "epsilon_by_own_account": None if series == "group_dp_sgd" else cost,
                    "noise_multiplier": multiplier,
                    "test_accuracy": read_off(accuracies, multiplier),
                }
            )
    return rows


def ladder_claims(rows: Sequence[Row], n_differing: int) -> list[Claim]:
    """The paper's claims, at the rates where every budget can be read."""
    chosen = [row for row in rows if row["n_differing"] == n_differing]
    open_sizes = {row["batch_size"] for row in chosen if row["test_accuracy"] is None}
    known = [row for row in chosen if row["batch_size"] not in open_sizes]
    if not known:
        return []
    return [
        attrs.evolve(claim, statement=f"If {n_differing} records differ: {claim.statement}")
        for claim in accuracy_claims(known, BUDGETS, on_cifar=True)
    ]


def attack_rows(runs: FinishedRuns, n_differing: int) -> list[Row]:
    """The attack on every finished model, by the budget that the paper would print for it."""
    noise = noise_setting(ATTACK_SETUP, n_differing)
    at_one = noise.recipe(RECIPE, 1.0).noise_multiplier
    rows: list[Row] = []
    for run, result in runs.of_part("attack"):
        if result is None:
            continue
        multiplier = run.noise_multiplier
        auc, low, high = result.attack_auc or (None, None, None)
        is_private = multiplier > 0
        rows.append(
            {
                "series": RECIPE if is_private else NOT_PRIVATE,
                "n_differing": n_differing,
                "noise_multiplier": multiplier,
                # The recipe's variance is inversely proportional to its epsilon.
                "epsilon": (at_one / multiplier) ** 2 if is_private else None,
                "epsilon_by_mean_square": _mean_square(noise, multiplier) if is_private else None,
                "epsilon_by_amplified": noise.amplified_cost(multiplier) if is_private else None,
                "reference_epsilon": noise.reference_epsilon(multiplier) if is_private else None,
                "train_accuracy": result.train_accuracy,
                "test_accuracy": result.test_accuracy,
                "member_loss": result.train_loss,
                "non_member_loss": result.others_loss,
                "attack_auc": auc,
                "attack_auc_low": low,
                "attack_auc_high": high,
                "attack_advantage": result.attack_advantage,
                "n_epochs": result.n_epochs,
            }
        )
    return rows


def overfitted_claims(rows: Sequence[Row]) -> list[Claim]:
    """The paper's claims, once two runs at its budgets and the one without privacy are there."""
    shown = [
        row
        for row in rows
        if row["series"] == RECIPE and number_in(row, "epsilon") < LARGEST_ATTACKED
    ]
    base = next((row for row in rows if row["series"] == NOT_PRIVATE), None)
    if base is None or len(shown) < 2:
        return []
    return [
        attrs.evolve(claim, statement=f"If {base['n_differing']} records differ: {claim.statement}")
        for claim in attack_claims(shown, base, "without clipping and noise")
    ]


def compared_rows(runs: FinishedRuns) -> list[Row]:
    """Flat clipping, layers with equal and with the least noise, and batches of a fixed size."""
    flat = runs.accuracies("ladder-1024")
    fixed = runs.accuracies("batches")
    by_layer = {
        (run.clipping, run.noise_multiplier): result.test_accuracy
        for run, result in runs.of_part("layers")
        if result is not None
    }
    return [
        {
            "noise_multiplier": rung,
            "flat": flat.get(rung),
            "layers_equal": by_layer.get(("equal", rung)),
            "layers_least_noise": by_layer.get(("least_noise", rung)),
            "fixed_size": fixed.get(rung),
        }
        for rung in COMPARED_RUNGS
    ]


def _mean_square(noise: NoiseSetting, multiplier: float) -> float:
    multipliers = np.full(noise.n_steps, multiplier)
    return run_cost(
        MeanSquare(), noise.order, noise.sampling, exactly(noise.n_differing), multipliers
    )
