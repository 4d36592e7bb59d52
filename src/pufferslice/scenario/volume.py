# SPDX-License-Identifier: Apache-2.0
"""Template volume: hide how many rows a business has."""

from typing import TYPE_CHECKING

import numpy as np

from pufferslice.errors import ScenarioError
from pufferslice.queries import Query
from pufferslice.scenario.priors import Source, check_level
from pufferslice.scenario.rows import FEWEST_ROWS, RowTable, size_differing, two_worlds

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario


def from_volume(
    cls: type["Scenario"],
    table: object,
    *,
    query: Query,
    up_to: int,
    ratio: float = 1.1,
    moments_from: object = None,
    name: str = "the table",
    source: Source | None = None,
) -> "Scenario":
    """Hide how many rows a business has.

    Any two sizes within a `ratio` are hidden, up to the largest size `up_to`, which is public.
    The query is made of totals and counts, each with a public `clip` range; a mean would divide
    by the hidden number. The noise is fitted to the rows of `moments_from`, as in
    `from_prevalence`. The number of rows is never printed. `name` says whose size it is.
    """
    check_level(query, "table", "worlds")
    differing = size_differing(ratio, up_to)
    rows = RowTable.of(table if moments_from is None else moments_from, query, up_to=up_to)
    if len(rows.frame) < FEWEST_ROWS:
        raise ScenarioError(f"a volume needs at least {FEWEST_ROWS} rows")
    secret = {
        "size_of": name,
        "ratio": float(ratio),
        "up_to": int(up_to),
        "n_differing": differing.most,
    }
    names = ("the smaller size", "the larger size")
    return cls.of_rows(
        rows,
        two_worlds(names, (np.zeros((1, query.dim)), rows.rows), rows, differing),
        secret=secret,
        source=source or ("released_data" if moments_from is None else "held_out"),
        origin="the mean and the covariance of the rows",
        n_rows=None,
    )
