# SPDX-License-Identifier: Apache-2.0
"""Sliced divergences of two Gaussians in the plane: 8, 16, 32 directions, and the limit."""

import math
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.sensitivity.renyi import (
    aggregate_average,
    aggregate_joint,
    gaussian_divergence,
    gaussian_divergence_nd,
)
from reproduction.experiment import Claim, Outcome, Row, Setting

N_LIMIT: Final = 720
"""Directions that stand for all: the rule of equal steps converges faster than any power."""


@final
@attrs.frozen
class PlaneProfile:
    """Equally spaced, equally weighted directions of the whole plane."""

    n_directions: int

    @property
    def angles(self) -> Floats:
        """Radians, from 0 on."""
        return 2 * math.pi * np.arange(self.n_directions) / self.n_directions

    @property
    def directions(self) -> Floats:
        """Unit vectors, shape (n_directions, 2)."""
        return np.column_stack([np.cos(self.angles), np.sin(self.angles)])

    @property
    def weights(self) -> Floats:
        """All the same."""
        return np.full(self.n_directions, 1 / self.n_directions)


NAME: Final = "sliced-divergences"
ORDER: Final = 4.0
COUNTS: Final = (8, 16, 32)
LIMIT: Final = "limit"
"""The name of the panel with all directions."""

_NEAR: Final = 1e-3


FIRST: Final = GaussianDistribution(mean=[1.0, 0.5], cov=[[1.0, 0.35], [0.35, 0.6]])
SECOND: Final = GaussianDistribution(mean=[0.0, 0.0], cov=[[1.3, 0.1], [0.1, 0.9]])
"""The paper does not say which two distributions it drew; these have a finite divergence
everywhere."""


@final
@attrs.frozen(kw_only=True)
class SlicedProfile:
    """Divergences along equally weighted directions of the plane, and their two aggregates."""

    panel: str
    angles: Floats = attrs.field(converter=locked, eq=same)
    """Radians."""
    divergences: Floats = attrs.field(converter=locked, eq=same)
    average: float
    joint: float

    @classmethod
    def of(cls, panel: str, n_directions: int) -> "SlicedProfile":
        """The profile of `n_directions` directions."""
        plane = PlaneProfile(n_directions)
        first, second = (_along(distribution, plane.directions) for distribution in (FIRST, SECOND))
        costs = gaussian_divergence(ORDER, first, second)
        return cls(
            panel=panel,
            angles=plane.angles,
            divergences=costs,
            average=float(aggregate_average(costs, plane.weights)),
            joint=float(aggregate_joint(ORDER, costs, plane.weights)),
        )


def run(_setting: Setting) -> Outcome:
    """The profiles, their rings and the unsliced divergence; exact, the same at both scales."""
    profiles = [SlicedProfile.of(str(count), count) for count in COUNTS]
    profiles.append(SlicedProfile.of(LIMIT, N_LIMIT))
    unsliced = gaussian_divergence_nd(ORDER, (FIRST.mean, FIRST.cov), (SECOND.mean, SECOND.cov))
    rows = [row for profile in profiles for row in _rows(profile)]
    rows += [_row(profile.panel, "unsliced", None, unsliced) for profile in profiles]
    return Outcome(
        experiment=NAME,
        scale=(
            f"Two Gaussians in the plane, order {ORDER:g}, equally spaced directions; exact. "
            "The distributions are ours: the paper does not give its own."
        ),
        rows=tuple(rows),
        claims=_claims(profiles, unsliced),
    )


def _along(distribution: GaussianDistribution, directions: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of the projection onto each direction."""
    variances = np.sum((directions @ distribution.cov) * directions, axis=1)
    return directions @ distribution.mean, np.asarray(variances)


def _rows(profile: SlicedProfile) -> list[Row]:
    slices = zip(profile.angles.tolist(), profile.divergences.tolist(), strict=True)
    return [
        *(_row(profile.panel, "slice", angle, value) for angle, value in slices),
        _row(profile.panel, "average", None, profile.average),
        _row(profile.panel, "joint", None, profile.joint),
    ]


def _row(panel: str, quantity: str, angle: float | None, divergence: float) -> Row:
    return {
        "panel": panel,
        "quantity": quantity,
        "angle_radians": angle,
        "divergence_nats": divergence,
    }


def _claims(profiles: list[SlicedProfile], unsliced: float) -> tuple[Claim, ...]:
    averages = [profile.average for profile in profiles]
    joints = [profile.joint for profile in profiles]
    largest = [float(profile.divergences.max()) for profile in profiles]
    names = [profile.panel for profile in profiles]
    errors = [
        [abs(values[k] / values[-1] - 1) for k in range(len(COUNTS))]
        for values in (averages, joints)
    ]
    return (
        Claim(
            statement="Ave-SRD is at most Joint-SRD, at every number of directions",
            source="prop:ordering",
            held=all(a <= j for a, j in zip(averages, joints, strict=True)),
            found=f"average {_listed(names, averages)}; joint {_listed(names, joints)}",
        ),
        Claim(
            statement="Joint-SRD is at most the unsliced divergence",
            source="prop:ordering",
            held=all(joint <= unsliced for joint in joints),
            found=f"joint at most {max(joints):.4f}, unsliced {unsliced:.4f}",
        ),
        Claim(
            statement=(
                "Joint-SRD emphasises large divergences: its ring lies strictly between the mean "
                "and the largest slice"
            ),
            source="fig:SRD",
            held=all(a < j < top for a, j, top in zip(averages, joints, largest, strict=True)),
            found=f"joint {_listed(names, joints)}; largest slice {_listed(names, largest)}",
        ),
        Claim(
            statement=(
                "Profiles of m directions tend to the continuous one: at m = 32 both rings are "
                f"within {_NEAR:.1%} of the limit, and nearer than at m = 8 or equal to rounding"
            ),
            source="fig:SRD",
            held=all(e[-1] <= _NEAR and e[-1] <= max(e[0], 1e-12) for e in errors),
            found="; ".join(
                f"{name} ring off by {_listed(names[:-1], values, '.1e')}"
                for name, values in zip(("average", "joint"), errors, strict=True)
            ),
        ),
    )


def _listed(names: list[str], values: list[float], form: str = ".4f") -> str:
    return ", ".join(
        f"{value:{form}} ({'limit' if name == LIMIT else f'm = {name}'})"
        for name, value in zip(names, values, strict=True)
    )
