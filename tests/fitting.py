# SPDX-License-Identifier: Apache-2.0
"""The query on rows as a holder gives them."""

from pufferslice.releases import value


def fitting_value(scenario, rows):
    """Read the rows as `release` does, and evaluate the query."""
    return value.fitting_value(scenario, value.released_rows(scenario, rows))
