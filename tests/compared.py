# SPDX-License-Identifier: Apache-2.0
"""Methods, slices and whole outputs that several tests build, and what claims cost of them."""

from typing import NamedTuple

import numpy as np
import pytest
from tests import oracles

from pufferslice.claims import Method
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.sensitivity import DistributionPair, gap_tables
from pufferslice.sensitivity.sensitivity import Full, Slices
from pufferslice.sensitivity.tables import MatchingTables

TRANSPORT = Method(rule="tight", envelope="transport")
WORST_GAP = Method(rule="tight", envelope="worst_gap")
CLOSED_FORM = Method(rule="closed_form", envelope="worst_gap")
EXACT = Method(rule="tight", envelope="exact")
EMPIRICAL = [TRANSPORT, WORST_GAP, CLOSED_FORM]

by_method = pytest.mark.parametrize("method", EMPIRICAL, ids=lambda m: f"{m.rule}-{m.envelope}")


class Compared(NamedTuple):
    """What a claim is asked about; a claim along slices does not look at the whole output."""

    full: Full | None
    slices: Slices | None


def whole(full):
    return Compared(full=full, slices=None)


def along(slices):
    return Compared(full=None, slices=slices)


def least_noise(claim, slices, method):
    """Smallest noise that gives the claim along the slices."""
    return claim.by(method).least_noise(along(slices))


def spent(claim, slices, noise_std, method):
    """What the noise costs of the claim along the slices."""
    return claim.by(method).spent(along(slices), noise_std)


def point_masses(*points):
    return [FiniteDistribution.uniform([point]) for point in points]


def pairs_with_first(distributions):
    return [DistributionPair(0, i) for i in range(1, len(distributions))]


def slices_of(distributions, profile, pairs=None, **facts):
    """Along the profile; without pairs, all others against the first."""
    pairs = pairs_with_first(distributions) if pairs is None else pairs
    tables = gap_tables(distributions, pairs, profile.directions)
    return Slices(profile=profile, differences=tables, **facts)


def full_of(distributions, directions=None, pairs=None):
    """Of monotone couplings along directions, by default the axes."""
    dim = distributions[0].dim
    directions = np.eye(dim) if directions is None else directions
    pairs = pairs_with_first(distributions) if pairs is None else pairs
    return Full(dim=dim, differences=oracles.matching_tables(distributions, pairs, directions))


def full_of_rows(*rows, dim=1, equal=None, **facts):
    """One instance for each row of (distance, count)."""
    tables = [
        (np.array([r for r, _ in row], dtype=float), np.array([n for _, n in row])) for row in rows
    ]
    totals = [int(counts.sum()) for _, counts in tables]
    return Full(dim=dim, differences=MatchingTables.of_rows(tables, totals, equal), **facts)
