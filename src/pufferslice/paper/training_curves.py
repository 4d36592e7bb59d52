# SPDX-License-Identifier: Apache-2.0
"""Test accuracy and training loss during private training, at one budget."""

from collections.abc import Iterator
from typing import Final

import attrs

from pufferslice.paper.experiment import Claim, Outcome, Row, Setting
from pufferslice.paper.noise_series import noise_multipliers
from pufferslice.paper.runs import RunResult, TrainingTask, results_of
from pufferslice.paper.sgd_setup import ORDER, SgdSetup
from pufferslice.paper.training_scale import (
    ALMOST_NO_NOISE,
    TrainingScale,
    cifar_scale,
    digits_scale,
)

NAME: Final = "training-curves"
EPSILON: Final = 8.0
SERIES: Final = ("srpp", "sa_srpp", "amplified", "recipe_srpp", "recipe_sa_srpp")
QUICK_SETUP: Final = SgdSetup(
    batch_size=288, clip_norm=1.0, peak_learning_rate=0.5, n_epochs=40, n_records=1_437
)
_QUICK_DIFFERING: Final = 4
_N_POINTS: Final = 20

_SLACK: Final = 0.05
_SETTLED: Final = 0.03


def run(setting: Setting) -> Outcome:
    """Train one model per series at one budget, and look at it twenty times on the way."""
    scale = (
        cifar_scale()
        if setting.full
        else digits_scale(model="linear", setups=(QUICK_SETUP,), n_differing=_QUICK_DIFFERING)
    )
    scale = attrs.evolve(scale, n_evaluations=_N_POINTS)
    planned = [one for setup in scale.setups for one in _planned(scale, setup)]
    results = results_of([task for _, _, task in planned], setting)
    named = [
        (setup, series, result) for (setup, series, _), result in zip(planned, results, strict=True)
    ]
    steps = " and ".join(str(setup.n_steps) for setup in scale.setups)
    return Outcome(
        experiment=NAME,
        scale=(
            f"{scale.found}; model {scale.model}, {steps} steps, claimed ε {EPSILON:g} at order "
            f"{ORDER:g}, one run per line; Poisson batches."
        ),
        rows=tuple(row for one in named for row in _rows(*one)),
        claims=(_ordered(named), _converged(named)),
    )


def _planned(scale: TrainingScale, setup: SgdSetup) -> Iterator[tuple[SgdSetup, str, TrainingTask]]:
    noise = scale.noise(setup)
    multipliers = {series: noise_multipliers(noise, series, [EPSILON])[0] for series in SERIES}
    multipliers[ALMOST_NO_NOISE] = scale.tiny_multiplier(setup)
    for series, multiplier in multipliers.items():
        name = f"batch-{setup.batch_size}"
        yield setup, series, scale.task(setup, series, multiplier, name=name)


def _rows(setup: SgdSetup, series: str, result: RunResult) -> Iterator[Row]:
    for point in result.curve:
        yield {
            "batch_size": setup.batch_size,
            "series": series,
            "noise_multiplier": result.noise_multiplier,
            "step": point.step,
            "epoch": point.step * setup.n_epochs / setup.n_steps,
            "test_accuracy": point.test_accuracy,
            "test_loss": point.test_loss,
            "batch_loss": point.batch_loss,
        }


def _ordered(named: list[tuple[SgdSetup, str, RunResult]]) -> Claim:
    """Less noise, more accuracy: over all pairs of runs with the same batch size."""
    worst, shown = 0.0, []
    for size in dict.fromkeys(setup.batch_size for setup, _, _ in named):
        runs = sorted(
            (result for setup, _, result in named if setup.batch_size == size),
            key=lambda result: result.noise_multiplier,
        )
        best_noisier = 0.0
        for result in reversed(runs):
            worst = max(worst, best_noisier - result.test_accuracy)
            best_noisier = max(best_noisier, result.test_accuracy)
        shown += [f"{one.test_accuracy:.1%} at {one.noise_multiplier:.3g}" for one in runs]
    return Claim(
        statement=(
            "Smaller noise directly translates into higher utility: no run is beaten by more than "
            f"{_SLACK:.0%} by one with more noise"
        ),
        source="subsec:srpp_sgd_gaussian",
        held=worst <= _SLACK,
        found=f"test accuracy by noise multiplier: {', '.join(shown)}",
    )


def _converged(named: list[tuple[SgdSetup, str, RunResult]]) -> Claim:
    moved = {}
    for setup, series, result in named:
        late = [p.test_accuracy for p in result.curve if p.step >= 0.9 * setup.n_steps]
        moved[f"{series} ({setup.batch_size})"] = max(late) - min(late)
    most = max(moved, key=lambda name: moved[name])
    return Claim(
        statement=(
            "Models are trained to convergence: over the last tenth of the steps the test accuracy "
            f"moves by at most {_SETTLED:.0%}"
        ),
        source="app:sgd_setup",
        held=moved[most] <= _SETTLED,
        found=f"it moves most, by {moved[most]:.1%}, for {most.replace('_', ' ')}",
    )
