# SPDX-License-Identifier: Apache-2.0
"""Templates volume and supplier: hide how many rows a business, or one supplier of it, has."""

from typing import TYPE_CHECKING, Any, Final

from pufferslice.queries import Query
from pufferslice.queries.conditions import conditions_of
from pufferslice.scenario.keys import share_keys
from pufferslice.scenario.made import recorded
from pufferslice.scenario.priors import Source
from pufferslice.scenario.rows import (
    Groups,
    RowTable,
    Tests,
    Worlds,
    check_kinds,
    size_differing,
    worlds_and_current,
)

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario

SMALLER: Final = "the smaller size"
LARGER: Final = "the larger size"


@recorded
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
    return _of_size(
        cls,
        table,
        query,
        (),
        name=name,
        up_to=up_to,
        ratio=ratio,
        moments_from=moments_from,
        source=source,
    )


@recorded
def from_supplier(
    cls: type["Scenario"],
    table: object,
    *,
    column: str,
    value: Any,  # a value or a condition
    query: Query,
    up_to: int,
    ratio: float = 1.1,
    moments_from: object = None,
    source: Source | None = None,
) -> "Scenario":
    """Hide how many rows of a table one supplier, branch or customer has, among many others.

    Their rows are those whose `column` has `value`; all other rows stay as they are, and the
    statistics are of all rows together. Any two sizes of theirs within a `ratio` are hidden, up
    to `up_to`, their own largest number of rows, which is public. The rest is as in `from_volume`:
    totals and counts, and the number of rows of the table is neither checked nor printed, because
    it would tell theirs.
    """
    ((_, condition),) = conditions_of("value", {column: value})
    return _of_size(
        cls,
        table,
        query,
        [(column, condition)],
        name=condition.on(column),
        up_to=up_to,
        ratio=ratio,
        moments_from=moments_from,
        source=source,
    )


def _of_size(
    cls: type["Scenario"],
    table: object,
    query: Query,
    whose: Tests,
    *,
    name: str,
    up_to: int,
    ratio: float,
    moments_from: object,
    source: Source | None,
) -> "Scenario":
    differing = size_differing(ratio, up_to)
    keys: list[str] = []

    def worlds(table: object, *, is_checked: bool) -> Worlds:
        rows = RowTable.of(table, query, secret=whose, is_checked=is_checked)
        for column, condition in whose:  # a number of rows is also a share of them
            keys.extend(share_keys(rows.held, column, [condition]))
        chosen, hint = _chosen(rows, whose)
        check_kinds({name: rows.n_chosen(chosen)}, hint)
        both = rows.added(chosen, differing)
        return Worlds(rows.query, dict(zip((SMALLER, LARGER), both, strict=True)))

    secret = {
        "size_of": name,
        "ratio": float(ratio),
        "up_to": int(up_to),
        "n_differing": differing.most,
    }
    return cls.of_rows(
        *worlds_and_current(worlds, table, moments_from),
        secret=secret,
        source=source or ("released_data" if moments_from is None else "held_out"),
        origin=f"the mean and the covariance of the rows of {name}",
        n_rows=None,
        more_keys=keys,
    )


def _chosen(rows: RowTable, whose: Tests) -> tuple[Groups, str]:
    """Rows that are hidden, all without a condition, and a hint where there are none."""
    if not whose:
        return rows.everything, ""
    ((column, condition),) = whose
    chosen = rows.flags(column, condition)
    if chosen.any() or condition.comparison != "equals":
        return chosen, ""
    return chosen, rows.near_matches(column, str(condition.value))
