# SPDX-License-Identifier: Apache-2.0
"""Couplings that bound the unsliced cost: monotone along some directions, or within the range."""

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np

from pufferslice._core.arrays import Floats
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity.exact import matching_tables, projection_errors
from pufferslice.sensitivity.profiles import Profile
from pufferslice.sensitivity.tables import DistributionPair, GapTables, MatchingTables

MOST_MATCHINGS: Final = 16
"""At most this many couplings are tried; any one of them is sound."""

_SMALL: Final = 2**21
_DIRECTIONS_PER_MATCHING: Final = 25
"""On large data one coupling costs about as much as the gaps along this many directions."""


def full_tables(
    distributions: Sequence[FiniteDistribution],
    pairs: Sequence[DistributionPair],
    profile: Profile,
    slices: GapTables,
) -> MatchingTables:
    """Distances under the monotone couplings along some axes and the widest slices.

    Guarantee: every slice of the result is a coupling of the two distributions in all dimensions,
    and its largest distance is at least every gap: the error of a projection is added here too.
    """
    n_atoms = sum(distribution.n_samples for distribution in distributions)
    directions = matching_directions(profile, slices.worst().max(axis=0), n_atoms * profile.dim)
    tables = matching_tables(distributions, pairs, directions)
    largest = max(
        float(np.linalg.norm(np.abs(distribution.outputs).max(axis=0)))
        for distribution in distributions
    )
    # A gap may be off by the errors of two projections, and has as much added to it.
    extra = 4 * float(projection_errors(profile.directions, largest).max())
    differ = np.repeat(np.tile(~tables.equal, tables.n_slices), np.diff(tables.starts))
    raised = np.nextafter(tables.gaps + extra, np.inf)
    return attrs.evolve(tables, gaps=np.where(differ, raised, tables.gaps))


def range_tables(diameter: float, n_instances: int) -> MatchingTables:
    """Distances between distributions of which only a public range is known: its diameter, always.

    Guarantee: every coupling of two distributions inside the range stays within the diameter. A
    matching of samples would bound the distance of the samples only.
    """
    return MatchingTables(
        starts=np.arange(n_instances + 1),
        gaps=np.full(n_instances, diameter),
        counts=np.ones(n_instances, dtype=np.int64),
        totals=np.ones(n_instances, dtype=np.int64),
        equal=np.zeros(n_instances, dtype=np.bool_),
    )


def matching_directions(profile: Profile, sensitivities: Floats, size: int) -> Floats:
    """Axes first, then the profile's widest slices; few of them when the data are large.

    >>> from pufferslice.sensitivity.profiles import FiniteProfile
    >>> profile = FiniteProfile.axes(dim=2)
    >>> matching_directions(profile, np.array([1.0, 2.0]), 10).shape
    (4, 2)
    """
    if profile.dim == 1:
        return np.ones((1, 1))
    most = MOST_MATCHINGS
    if size >= _SMALL:
        most = max(1, min(MOST_MATCHINGS, profile.n_directions // _DIRECTIONS_PER_MATCHING))
    widest = profile.directions[np.argsort(-sensitivities, kind="stable")]
    n_axes = min(profile.dim, (most + 1) // 2 if profile.dim > most else profile.dim)
    return np.vstack([np.eye(n_axes, profile.dim), widest[: most - n_axes]])
