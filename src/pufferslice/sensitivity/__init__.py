# SPDX-License-Identifier: Apache-2.0
"""What two distributions differ by: slice profiles, gap tables, couplings, divergences."""

from pufferslice.sensitivity.exact import gap_tables, matching_tables
from pufferslice.sensitivity.gaussian import GaussianPairs
from pufferslice.sensitivity.profiles import FiniteProfile, SampledSphere
from pufferslice.sensitivity.scan import (
    RowScan,
    scan_files,
    scan_outputs,
    scan_tables,
    simulated_outputs,
    streamed_scenario,
)
from pufferslice.sensitivity.sensitivity import Full, Slices, SphereTerm
from pufferslice.sensitivity.tables import (
    DistanceTables,
    DistributionPair,
    GapTables,
    MatchingTables,
)

__all__ = [
    "DistanceTables",
    "DistributionPair",
    "FiniteProfile",
    "Full",
    "GapTables",
    "GaussianPairs",
    "MatchingTables",
    "RowScan",
    "SampledSphere",
    "Slices",
    "SphereTerm",
    "gap_tables",
    "matching_tables",
    "scan_files",
    "scan_outputs",
    "scan_tables",
    "simulated_outputs",
    "streamed_scenario",
]
