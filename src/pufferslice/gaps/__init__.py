# SPDX-License-Identifier: Apache-2.0
"""From the laws of a scenario to what outputs can show: tables of distances, Gaussian pairs."""

from pufferslice.gaps.exact import gap_tables, matching_tables
from pufferslice.gaps.gaussian import GaussianPairs
from pufferslice.gaps.resolution import LawPair
from pufferslice.gaps.tables import DistanceTables, GapTables, MatchingTables

__all__ = [
    "DistanceTables",
    "GapTables",
    "GaussianPairs",
    "LawPair",
    "MatchingTables",
    "gap_tables",
    "matching_tables",
]
