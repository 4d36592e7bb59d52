# SPDX-License-Identifier: Apache-2.0
"""Real tables to learn and test with; Adult ships with the library."""

from pufferslice.datasets.adult_census import (
    ADULT_SHA256,
    adult,
    adult_complete,
    adult_records,
    adult_summary,
)

__all__ = ["ADULT_SHA256", "adult", "adult_complete", "adult_records", "adult_summary"]
