# SPDX-License-Identifier: Apache-2.0
"""From the certificate and the sweep to the three pictures."""

import math
from collections.abc import Sequence

import numpy as np

from pufferslice.arrays import Floats
from pufferslice.calibration import Rule, Slices, slice_costs
from pufferslice.certificate import Evidence, required_evidence
from pufferslice.demo.result import DemoResult, SweptNoise
from pufferslice.demo.setting import N_ANGLES, NOTIONS, PLANE, TARGET
from pufferslice.errors import ArgumentError
from pufferslice.gaps import GapTables
from pufferslice.outlook import TIGHT
from pufferslice.renyi import aggregate
from pufferslice.report import figures
from pufferslice.report.figures import Level, NoiseCurve, PlaneCosts
from pufferslice.scenario import Scenario
from pufferslice.slicing import FiniteProfile


def pictures(scenario: Scenario, result: DemoResult, values: Floats) -> dict[str, bytes]:
    """PNG files by name; `values` are those of the scaled query, one row per group."""
    noise_std = result.certificate.noise_std
    slices = required_evidence(result.certificate).slices
    drawn = {
        "noise.png": figures.noise_figure(
            noise_curves(result.sweep), order=TARGET.order, reference=farthest(values)
        ),
        "slices.png": figures.slices_figure(*slice_levels(slices)),
        "plane.png": figures.plane_figure(
            plane_costs(scenario, noise_std), order=TARGET.order, noise_std=noise_std
        ),
    }
    return {name: figures.png_of(figure) for name, figure in drawn.items()}


def noise_curves(sweep: Sequence[SweptNoise]) -> list[NoiseCurve]:
    """The sweep as curves: the noise is the whole error, for the grid adds nothing visible."""
    curves = []
    for notion in NOTIONS:
        rows = [row for row in sweep if row.target.notion == notion]
        stds: dict[Rule, list[float]] = {
            "tight": [row.tight_std for row in rows],
            "closed_form": [row.closed_form_std for row in rows],
        }
        curves += [
            NoiseCurve(
                notion=notion,
                rule=rule,
                epsilons=[row.target.epsilon for row in rows],
                noise_stds=noise_stds,
                squared_errors=np.square(noise_stds),
            )
            for rule, noise_stds in stds.items()
        ]
    return curves


def farthest(values: Floats) -> Level:
    """What an error is to be compared with: the mean square between the two farthest groups."""
    squares = ((values[:, None] - values[None]) ** 2).mean(axis=2)
    label = "squared difference of the farthest two groups"
    return Level(kind="reference", label=label, value=float(squares.max()))


def slice_levels(slices: Slices) -> tuple[Floats, tuple[Level, Level]]:
    """Sensitivities in ascending order, and the levels that the two closed forms charge."""
    if not isinstance(slices.seen, GapTables):
        msg = "the slice profile is drawn from gap tables; Gaussian laws have none"
        raise ArgumentError(msg)
    sensitivities = slices.seen.worst().max(axis=0)
    root_mean_square = math.sqrt(slices.profile.weights @ sensitivities**2)
    return np.sort(sensitivities), (
        Level(kind="average", label="average: root mean square", value=root_mean_square),
        Level(kind="joint", label="joint: maximum", value=float(sensitivities.max())),
    )


def plane_costs(scenario: Scenario, noise_std: float) -> PlaneCosts:
    """What every pair costs at this noise along the directions of the plane of `PLANE`.

    The rings are those of the pair with the largest joint cost in the plane.
    """
    first, second = (scenario.query.names.index(name) for name in PLANE)
    angles = np.arange(N_ANGLES) * (2 * math.pi / N_ANGLES)
    directions = np.zeros((N_ANGLES, scenario.dim))
    directions[:, first], directions[:, second] = np.cos(angles), np.sin(angles)
    slices = Evidence.of(scenario, FiniteProfile.of(directions)).slices
    costs = slice_costs(slices, TARGET.order, noise_std, TIGHT.envelope)
    average, joint = (
        aggregate(notion, TARGET.order, costs, slices.profile.weights) for notion in NOTIONS
    )
    most = int(joint.argmax())
    return PlaneCosts(
        coordinates=PLANE,
        angles=angles,
        pairs=tuple(" / ".join(pair) for _, pair in scenario.instances),
        costs=costs,
        highlighted=most,
        rings=(
            Level(kind="average", label="its average over the plane", value=float(average[most])),
            Level(kind="joint", label="its joint cost over the plane", value=float(joint[most])),
            Level(kind="reference", label="the claim, over all slices", value=TARGET.epsilon),
        ),
    )
