# SPDX-License-Identifier: Apache-2.0
"""Tables in: any dataframe as one frame type, its columns as arrays, files as tables."""

from pufferslice.tables.files import read_table
from pufferslice.tables.frames import (
    MISSING_POLICIES,
    Frame,
    check_columns,
    floats_of,
    frame_of,
    label_of,
    labels_of,
    missing_rows,
    without_missing,
)

__all__ = [
    "MISSING_POLICIES",
    "Frame",
    "check_columns",
    "floats_of",
    "frame_of",
    "label_of",
    "labels_of",
    "missing_rows",
    "read_table",
    "without_missing",
]
