# SPDX-License-Identifier: Apache-2.0
"""Divergences of two Gaussians, and caps of one SGD round, along directions of the plane."""

import math
from collections.abc import Iterator, Mapping
from typing import Final, final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats, locked, same
from pufferslice.learning import Poisson
from pufferslice.scenario.distributions import GaussianDistribution
from pufferslice.sensitivity.renyi import (
    aggregate_average,
    aggregate_joint,
    gaussian_divergence,
    gaussian_divergence_nd,
)
from reproduction.caps import (
    ClippedBlocks,
    average_round_cost,
    block_reach,
    joint_round_cost,
    largest_round_cost,
    mean_square_caps,
    minimal_squared_caps,
    round_costs,
    squared_caps,
)
from reproduction.experiment import Cell, Claim, Outcome, Row, Setting

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
"""The paper does not give its distributions; these have a finite divergence everywhere."""


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
    rows: list[Row] = []
    for profile in profiles:
        rows += _slices(profile.angles, "divergence_nats", profile.divergences, panel=profile.panel)
        rings = {"average": profile.average, "joint": profile.joint}
        rows += _rings(rings, "divergence_nats", panel=profile.panel)
    for profile in profiles:
        rows += _rings({"unsliced": unsliced}, "divergence_nats", panel=profile.panel)
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


def _slices(angles: Floats, quantity: str, values: Floats, **panel: Cell) -> Iterator[Row]:
    for angle, value in zip(angles.tolist(), values.tolist(), strict=True):
        yield panel | {"quantity": "slice", "angle_radians": angle, quantity: value}


def _rings(rings: Mapping[str, float], quantity: str, **panel: Cell) -> Iterator[Row]:
    for ring, value in rings.items():
        yield panel | {"quantity": ring, "angle_radians": None, quantity: value}


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


CAPS_NAME: Final = "cap-rings"
CAPS_ORDER: Final = 2.5
RATE: Final = 0.2
CAP_COUNTS: Final = (15, 48)
KINDS: Final = ("huc", "sa_huc")
_SHOWN: Final = {"huc": "HUC", "sa_huc": "sa-HUC"}

_N_DIFFERING: Final = 4
_SAMPLING: Final = Poisson(n_records=100, rate=RATE)
_BLOCKS: Final = ClippedBlocks(sizes=[1, 1], clip_norms=[1.0, 0.6])
_PRECONDITIONER: Final = np.array([[1.0, 0.3], [0.3, 0.8]])
_NOISE_STD: Final = 0.3


@final
@attrs.frozen(kw_only=True)
class CapProfile:
    """Costs of one round along equally weighted directions, and what a round costs over them."""

    kind: str
    """`huc`: for every batch draw; `sa_huc`: on average over batch draws."""
    angles: Floats = attrs.field(converter=locked, eq=same)
    costs: Floats = attrs.field(converter=locked, eq=same)
    average: float
    joint: float
    """The log-moment over the slices, which is what the paper draws."""
    largest: float
    """The largest slice, which is what the paper's theorems use for joint claims."""

    @classmethod
    def of(cls, kind: str, n_directions: int) -> "CapProfile":
        """The profile of `n_directions` directions."""
        plane = PlaneProfile(n_directions)
        reach = block_reach(plane.directions, _BLOCKS, preconditioner=_PRECONDITIONER)
        caps = (
            squared_caps(
                reach,
                discrepancy_cap=_SAMPLING.discrepancy_cap(_N_DIFFERING),
                divisor=_SAMPLING.divisor,
            )
            if kind == "huc"
            else mean_square_caps(
                reach,
                mean_square_discrepancy=_SAMPLING.mean_square_discrepancy(_N_DIFFERING),
                divisor=_SAMPLING.divisor,
            )
        )
        costs = round_costs(CAPS_ORDER, caps, _variance(plane))
        return cls(
            kind=kind,
            angles=plane.angles,
            costs=costs,
            average=average_round_cost(costs, plane.weights),
            joint=joint_round_cost(CAPS_ORDER, costs, plane.weights),
            largest=largest_round_cost(costs, plane.weights),
        )


def attained_joint(n_directions: int) -> float:
    """Mean over batch draws of the joint cost of gradients at their clip norms.

    Gradients that differ point to the same side in every draw. This cost is attained, so no valid
    cap of the mean can be below it.
    """
    plane = PlaneProfile(n_directions)
    chances = np.exp(_SAMPLING.discrepancy_log_probabilities(_N_DIFFERING))
    means = []
    for sign in (1.0, -1.0):
        pushed = _PRECONDITIONER @ (_BLOCKS.clip_norms * np.array([1.0, sign]))
        shifts = 2 * pushed / _SAMPLING.divisor * np.arange(len(chances))[:, None]
        caps = (minimal_squared_caps(plane.directions, shift[None, :]) for shift in shifts)
        rounds = (round_costs(CAPS_ORDER, cap, _variance(plane)) for cap in caps)
        costs = [joint_round_cost(CAPS_ORDER, costs, plane.weights) for costs in rounds]
        means.append(float(chances @ costs))
    return max(means)


def run_caps(_setting: Setting) -> Outcome:
    """Envelopes and rings at both numbers of directions; exact, the same at both scales."""
    profiles = {(kind, count): CapProfile.of(kind, count) for kind in KINDS for count in CAP_COUNTS}
    rows: list[Row] = []
    for (kind, count), profile in profiles.items():
        rows += _slices(profile.angles, "cost_nats", profile.costs, kind=kind, n_directions=count)
        rings = {"average": profile.average, "joint": profile.joint, "largest": profile.largest}
        rows += _rings(rings, "cost_nats", kind=kind, n_directions=count)
    for count in CAP_COUNTS:
        attained = {"attained joint": attained_joint(count)}
        rows += _rings(attained, "cost_nats", kind="sa_huc", n_directions=count)
    return Outcome(
        experiment=CAPS_NAME,
        scale=(
            f"One round: order {CAPS_ORDER:g}, Poisson rate {RATE:g}, {_N_DIFFERING} differing "
            "records, two layers in the plane; exact. Layers and noise are "
            "ours, the paper gives none."
        ),
        rows=tuple(rows),
        claims=_cap_claims(profiles),
    )


def _variance(plane: PlaneProfile) -> Floats:
    return np.full(plane.n_directions, _NOISE_STD**2)


def _cap_claims(profiles: dict[tuple[str, int], CapProfile]) -> tuple[Claim, ...]:
    ratios = [
        float((profiles["huc", m].costs / profiles["sa_huc", m].costs).min()) for m in CAP_COUNTS
    ]
    pairs = [(profile.average, profile.joint) for profile in profiles.values()]
    shown = [profiles["sa_huc", m] for m in CAP_COUNTS]
    return (
        Claim(
            statement="The sa-HUC profile is smaller than the HUC profile in every direction",
            source="fig:HUC_sa_HUC",
            held=min(ratios) > 1,
            found=f"HUC is {min(ratios):.3f} times sa-HUC where they are nearest",
        ),
        Claim(
            statement="The joint ring is at least the average ring",
            source="fig:HUC_sa_HUC",
            held=all(average <= joint for average, joint in pairs),
            found="; ".join(
                f"{_SHOWN[kind]}, m = {m}: {profile.average:.4f} and {profile.joint:.4f}"
                for (kind, m), profile in profiles.items()
            ),
        ),
        _refined(profiles),
        _bounding(shown),
    )


def _refined(profiles: dict[tuple[str, int], CapProfile]) -> Claim:
    errors: dict[int, float] = dict.fromkeys(CAP_COUNTS, 0.0)
    for kind in KINDS:
        limit = CapProfile.of(kind, N_LIMIT)
        for m in CAP_COUNTS:
            rings = profiles[kind, m]
            off = (rings.average / limit.average - 1, rings.joint / limit.joint - 1)
            errors[m] = max(errors[m], *map(abs, off))
    few, many = CAP_COUNTS
    return Claim(
        statement=f"More directions refine the profile: rings at m = {many} are nearer the limit",
        source="fig:HUC_sa_HUC",
        held=errors[many] < errors[few],
        found=f"rings off by up to {errors[few]:.1e} (m = {few}), {errors[many]:.1e} (m = {many})",
    )


def _bounding(shown: list[CapProfile]) -> Claim:
    attained = [attained_joint(m) for m in CAP_COUNTS]
    return Claim(
        statement=(
            "The joint ring of the sa-HUC profile is the sa-Joint cost of the round: no gradients "
            "have a larger mean over batch draws of the joint divergence"
        ),
        source="fig:HUC_sa_HUC, def:ms_Joint_SRPP",
        held=all(value <= profile.joint for value, profile in zip(attained, shown, strict=True)),
        found="; ".join(
            f"m = {m}: ring {profile.joint:.4f}, gradients attain {value:.4f}, "
            f"largest slice {profile.largest:.4f}"
            for m, profile, value in zip(CAP_COUNTS, shown, attained, strict=True)
        ),
    )
