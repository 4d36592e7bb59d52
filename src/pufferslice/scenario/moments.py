# SPDX-License-Identifier: Apache-2.0
"""Scenarios of tables that others hold: their numbers are all that is known here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pufferslice.data.handed import HandedSums
from pufferslice.errors import ArgumentError
from pufferslice.queries import Query
from pufferslice.scenario.made import recorded
from pufferslice.scenario.prevalence import from_prevalence
from pufferslice.scenario.priors import Source
from pufferslice.scenario.rows import Design
from pufferslice.scenario.volume import from_supplier, from_volume

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario


@recorded
def from_moments(
    cls: type["Scenario"],
    moments: Mapping[str, object],
    *,
    query: Query,
    column: str | None = None,
    value: Any = None,  # a value or a condition
    values: Sequence[Any] | None = None,
    within: float | None = None,
    design: Design = "stratified",
    up_to: int | None = None,
    ratio: float = 1.1,
    name: str = "the table",
    n_rows: int | None = None,
    source: Source = "released_data",
) -> "Scenario":
    """Hide what the other templates hide, by numbers that somebody else computed.

    `moments` holds the results of the two statements of `Query.to_sql`, for the same column and
    values: `{"sums": …, "products": …}`, each a table, a list of rows, or the path of a CSV file.
    With `within` a share is hidden, as in `from_prevalence`; with `up_to` a size, that of one
    supplier if a column is named, as in `from_supplier` and `from_volume`. `source` says what the
    numbers are of: by default the table that is released. Numbers of an earlier table, as source
    `held_out`, need `n_rows` of the released one, unless that is hidden.
    """
    numbers = HandedSums.of(moments)
    is_released = source == "released_data"
    table, earlier = (moments, None) if is_released else (None, moments)
    if (within is None) == (up_to is None):
        raise ArgumentError(
            "give within, to hide a share, or up_to, to hide a size: one of the two"
        )
    if within is not None:
        return from_prevalence(
            cls,
            table,
            column=column or "",
            value=value,
            values=values,
            query=query,
            within=within,
            moments_from=earlier,
            n_rows=numbers.n_rows() if n_rows is None and is_released else n_rows,
            design=design,
            source=source,
        )
    shared: dict[str, Any] = {
        "query": query,
        "up_to": up_to,
        "ratio": ratio,
        "moments_from": earlier,
        "source": source,
    }
    if column is None:
        return from_volume(cls, table, name=name, **shared)
    return from_supplier(cls, table, column=column, value=value, **shared)
