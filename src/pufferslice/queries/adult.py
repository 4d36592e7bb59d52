# SPDX-License-Identifier: Apache-2.0
"""The paper's query on the Adult census table, of a table and of single rows."""

import numpy as np

from pufferslice.queries.conditions import above, equals
from pufferslice.queries.query import Query
from pufferslice.queries.ranges import Box
from pufferslice.queries.statistics import columns, summary

# Public knowledge: the census recorded ages 17 to 90 (older is 90), sixteen levels of education,
# and 1 to 99 hours a week.
_NUMBERS = ("age", "education-num", "hours-per-week")
_RATES = (("capital-gain", above(0)), ("capital-loss", above(0)), ("income", equals(">50K")))
_LOW = np.array([17.0, 1.0, 1.0])
_HIGH = np.array([90.0, 16.0, 99.0])


def adult_summary() -> Query:
    """The paper's nine statistics of the Adult table, with public scales and range.

    Means and standard deviations of age, education level and weekly hours; shares of rows with a
    capital gain, a capital loss, and an income above 50K. Scales: 10 years, 2.5 levels and 10
    hours for the means; 5 years, 1 level and 5 hours for the standard deviations; 0.1 for the
    shares. Range: ages 17 to 90, levels 1 to 16, hours 1 to 99; a standard deviation is at most
    half of its column's width; shares are between 0 and 1. None of these was fitted to the rows.

    >>> adult_summary().dim
    9
    """
    spread = (_HIGH - _LOW) / 2
    return (
        summary(mean=_NUMBERS, std=_NUMBERS, rate=_RATES)
        .with_range(Box([*_LOW, 0, 0, 0, 0, 0, 0], [*_HIGH, *spread, 1, 1, 1]))
        .with_scales([10, 2.5, 10, 5, 1, 5, 0.1, 0.1, 0.1])
    )


def adult_records() -> Query:
    """The row-level form of `adult_summary`: three numbers and three 0/1 flags of each row.

    Scales: 10 years, 2.5 levels, 10 hours, and 0.5 for a flag. The range is that of the columns.

    >>> adult_records().names[:4]
    ('age', 'education-num', 'hours-per-week', 'capital-gain > 0')
    """
    return (
        columns(_NUMBERS, flags=_RATES)
        .with_range(Box([*_LOW, 0, 0, 0], [*_HIGH, 1, 1, 1]))
        .with_scales([10, 2.5, 10, 0.5, 0.5, 0.5])
    )
