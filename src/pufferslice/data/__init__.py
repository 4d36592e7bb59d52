# SPDX-License-Identifier: Apache-2.0
"""Readers of tables, and the data that ship with the library (`ps.datasets`)."""

from pufferslice.data.adult import adult, adult_complete, adult_years
from pufferslice.data.images import LabelledImages, digits
from pufferslice.data.readers import read_table

__all__ = [
    "LabelledImages",
    "adult",
    "adult_complete",
    "adult_years",
    "digits",
    "read_table",
]
