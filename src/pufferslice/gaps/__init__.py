# SPDX-License-Identifier: Apache-2.0
"""From the laws of a scenario to what a slice can show: gap tables and Gaussian pairs."""

from pufferslice.gaps.exact import LawPair, gap_tables, matching_tables
from pufferslice.gaps.gaussian import GaussianPairs
from pufferslice.gaps.tables import GapTables

__all__ = ["GapTables", "GaussianPairs", "LawPair", "gap_tables", "matching_tables"]
