# SPDX-License-Identifier: Apache-2.0
"""Noise of every mechanism against epsilon, on one scenario."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.baselines import (
    dagwm_noise_std,
    full_sensitivity,
    group_noise_std,
    laplace_scale,
    sinkhorn_noise,
)
from pufferslice.baselines.gwm import check_couples, shift_noise_std
from pufferslice.calibration import Method, calibrate, calibrate_unsliced
from pufferslice.certificate import Evidence
from pufferslice.compare.running import (
    BASELINES,
    EMPIRICAL_METHODS,
    EXACT_METHODS,
    NOTIONS,
    UNSLICED,
    Settings,
    check_table,
    couples_of,
    group_reach,
    name_of,
)
from pufferslice.errors import ArgumentError, CalibrationError
from pufferslice.guarantee import Guarantee, Notion
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile

EPSILONS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

LARGEST_DAGWM: Final = 1_000**2
"""Distances of a pair above which DAGWM, which starts afresh at every epsilon, is not drawn."""

NoiseAt = Callable[[float], float]
"""From epsilon to the standard deviation of the noise."""


def noise_curves(
    scenario: Scenario,
    profile: FiniteProfile,
    order: float,
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    epsilons: Sequence[float] = EPSILONS,
) -> dict[str, Floats]:
    """Noise standard deviation of each mechanism at every epsilon; NaN where there is none.

    Mechanisms that do not apply to the scenario are absent. The distances of a coupling are
    computed once for all epsilons, except by DAGWM, whose coupling depends on the noise.
    """
    made = _ours(scenario, profile, order) | _others(scenario, order, settings)
    curves = {}
    for name, prepare in made.items():
        try:
            noise_at = prepare()
        except (ArgumentError, CalibrationError):
            continue
        curves[name] = np.array([_noise_or_nan(noise_at, epsilon) for epsilon in epsilons])
    return curves


def _noise_or_nan(noise_at: NoiseAt, epsilon: float) -> float:
    try:
        return noise_at(epsilon)
    except CalibrationError:
        return math.nan


def _ours(
    scenario: Scenario, profile: FiniteProfile, order: float
) -> dict[str, Callable[[], NoiseAt]]:
    evidence = Evidence.of(scenario, profile)
    methods = EXACT_METHODS if scenario.priors[0].kind == "gaussian" else EMPIRICAL_METHODS
    made: dict[str, Callable[[], NoiseAt]] = {
        name_of(notion, method): partial(_sliced, evidence, order, (notion, method))
        for notion in NOTIONS
        for method in methods
    }
    return made | {UNSLICED: partial(_unsliced, evidence, order)}


def _sliced(evidence: Evidence, order: float, form: tuple[Notion, Method]) -> NoiseAt:
    notion, method = form

    def noise_at(epsilon: float) -> float:
        target = Guarantee(notion=notion, order=order, epsilon=epsilon)
        return calibrate(target, evidence.slices, method)

    return noise_at


def _unsliced(evidence: Evidence, order: float) -> NoiseAt:
    def noise_at(epsilon: float) -> float:
        return calibrate_unsliced(_rpp(order, epsilon), evidence.full)

    return noise_at


def _others(
    scenario: Scenario, order: float, settings: Settings
) -> dict[str, Callable[[], NoiseAt]]:
    couples = couples_of(scenario)

    def gwm() -> NoiseAt:
        check_table(couples, settings.largest_table)
        sensitivity = full_sensitivity(couples)
        return lambda epsilon: shift_noise_std(sensitivity, _rpp(order, epsilon))

    def dagwm() -> NoiseAt:
        check_couples(couples)
        check_table(couples, min(LARGEST_DAGWM, settings.largest_table))
        return lambda epsilon: dagwm_noise_std(couples, _rpp(order, epsilon), settings.q)

    def sinkhorn() -> NoiseAt:
        check_table(couples, settings.largest_table)
        sensitivity = sinkhorn_noise(couples, _rpp(order, 1.0), settings.sinkhorn).sensitivity
        return lambda epsilon: shift_noise_std(sensitivity, _rpp(order, epsilon))

    def laplace() -> NoiseAt:
        scale = laplace_scale(couples, 1.0)
        return lambda epsilon: math.sqrt(2) * scale / epsilon

    def group() -> NoiseAt:
        reach = group_reach(scenario.query, settings)
        return lambda epsilon: group_noise_std(reach, _rpp(order, epsilon))

    return dict(zip(BASELINES, (gwm, dagwm, sinkhorn, laplace, group), strict=True))


def _rpp(order: float, epsilon: float) -> Guarantee:
    return Guarantee.unsliced(order=order, epsilon=epsilon)
