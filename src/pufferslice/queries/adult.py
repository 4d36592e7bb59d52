# SPDX-License-Identifier: Apache-2.0
"""The paper's query on the Adult census table."""

import numpy as np

from pufferslice.queries.conditions import above, equals
from pufferslice.queries.query import Query
from pufferslice.queries.ranges import Box
from pufferslice.queries.statistics import summary


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
    numbers = ("age", "education-num", "hours-per-week")
    shares = [("capital-gain", above(0)), ("capital-loss", above(0)), ("income", equals(">50K"))]
    # Public knowledge: the census recorded ages 17 to 90 (older is 90), sixteen levels of
    # education, and 1 to 99 hours a week.
    low, high = np.array([17.0, 1.0, 1.0]), np.array([90.0, 16.0, 99.0])
    return (
        summary(mean=numbers, std=numbers, rate=shares)
        .with_range(Box([*low, 0, 0, 0, 0, 0, 0], [*high, *(high - low) / 2, 1, 1, 1]))
        .with_scales([10, 2.5, 10, 5, 1, 5, 0.1, 0.1, 0.1])
    )
