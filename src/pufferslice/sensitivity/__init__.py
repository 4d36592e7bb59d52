# SPDX-License-Identifier: Apache-2.0
"""Differences between two distributions: slice profiles, gap tables, couplings, divergences."""

from pufferslice.sensitivity.exact import gap_tables
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere, WholeSphere
from pufferslice.sensitivity.tables import DistributionPair, GapTables
from pufferslice.sensitivity.whitening import Shape

__all__ = [
    "DistributionPair",
    "FiniteProfile",
    "GapTables",
    "SampledSphere",
    "Shape",
    "WholeSphere",
    "gap_tables",
]
