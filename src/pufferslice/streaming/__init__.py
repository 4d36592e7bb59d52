# SPDX-License-Identifier: Apache-2.0
"""Data larger than memory: rows are read once, counted in bins along every slice, and let go."""

from pufferslice.streaming.rows import RowScan
from pufferslice.streaming.scanning import (
    scan_files,
    scan_outputs,
    scan_tables,
    simulated_outputs,
    streamed_scenario,
)

__all__ = [
    "RowScan",
    "scan_files",
    "scan_outputs",
    "scan_tables",
    "simulated_outputs",
    "streamed_scenario",
]
