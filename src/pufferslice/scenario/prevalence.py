# SPDX-License-Identifier: Apache-2.0
"""Template prevalence: hide how common something is among the rows of a table."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from pufferslice._core.checks import check_between, check_count, check_fits, check_one_of
from pufferslice._core.text import given
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import complete_part, without_missing
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import Condition, conditions_of
from pufferslice.queries.variation import check_varied, near_matches
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.pairs import Pairs, ordered_pairs
from pufferslice.scenario.priors import DECLARED, Source, check_level
from pufferslice.scenario.rows import (
    DESIGNS,
    FEWEST_ROWS,
    Design,
    RowTable,
    check_both_kinds,
    frame_of_rows,
    share_differing,
    two_worlds,
)

if TYPE_CHECKING:
    from pufferslice.scenario.scenario import Scenario

PriorForm = Literal["rows", "draws"]
PRIOR_FORMS: Final = get_args(PriorForm)
NO_NORMAL_LAW: Final = (
    "prior='gaussian' is refused: a normal distribution that is fitted to rows is not their "
    "distribution, and noise that rests on it can reveal the secret (57.9 % were stated and 84.5 % "
    "true). Leave prior out: sums of rows need no distribution. Use prior='draws' for a query that "
    "is not a sum"
)
"""Reason why no certificate rests on a normal approximation."""

"""Why no certificate rests on a normal approximation."""


def from_prevalence(
    cls: type["Scenario"],
    table: object,
    *,
    column: str,
    value: Any,  # a value or a condition
    query: Query,
    within: float | None = None,
    moments_from: object = None,
    n_rows: int | None = None,
    design: Design = "stratified",
    prior: PriorForm | Literal["gaussian"] = "rows",
    shares: Sequence[float] | None = None,
    n_draws: int = 500,
    seed: int | None = None,
    source: Source | None = None,
    progress: Progress = silent,
) -> "Scenario":
    """Hide how common something is: the share of rows whose `column` has `value`.

    Any two shares at most `within` apart are hidden, as `within=0.05` for five points, even
    from someone who knows every row but those that make the difference. The query is a sum
    over rows: means and rates of all rows, totals, counts, cross tables, each with a public
    `clip` range. The noise is fitted to the rows of `moments_from`, an earlier, held-out or
    public table; without it, to those of `table`, and the certificate says so. `n_rows` is the
    public number of rows that a release has, by default that of `table`. `stratified`: exactly
    a share of the rows has the property; `independent`: each row by itself.

    `prior="draws"` is for queries that are not sums, as quantiles: `n_draws` tables of each of
    the `shares`, drawn with `seed`, are then the prior, and the claim is about these tables.
    Pairs: all, or shares that differ by at most `within`.
    """
    check_level(query, "table", "worlds")
    check_one_of(DESIGNS, design=design)
    if prior == "gaussian":
        raise ScenarioError(NO_NORMAL_LAW)
    check_one_of(PRIOR_FORMS, prior=prior)
    ((_, condition),) = conditions_of("value", {column: value})
    if prior == "draws":
        return _drawn_prevalence(
            cls,
            table,
            column=column,
            condition=condition,
            query=query,
            shares=shares,
            within=within,
            n_rows=n_rows,
            design=design,
            n_draws=n_draws,
            seed=seed,
            source=source or "released_data",
            progress=progress,
        )
    if shares is not None or seed is not None:
        raise ArgumentError(
            "shares and seed go with prior='draws'; hide any two shares within a distance with "
            "within=0.05"
        )
    if within is None:
        raise ArgumentError(
            "within must say how far apart two shares may be that are hidden, as within=0.05"
        )
    if table is None and n_rows is None:
        raise ArgumentError("n_rows is required where no table is given")
    if table is None and moments_from is None:
        raise ArgumentError("give a table, or moments_from and n_rows")
    n = len(frame_of_rows(table)) if n_rows is None else n_rows
    differing = share_differing(within, n, design)
    rows = RowTable.of(
        table if moments_from is None else moments_from, query, n_rows=n, also=column
    )
    part, present = complete_part(rows.frame, column)
    has = np.zeros(len(rows.frame), dtype=np.bool_)
    if present.any():
        has[present] = condition.flags(part, column)
    property_name = condition.on(column)
    hint = ""
    if not has.any() and condition.comparison == "equals" and present.any():
        hint = near_matches(column, str(condition.value), [part])
    check_both_kinds(has, property_name, hint)
    secret = {
        "share_of": property_name,
        "within": float(within),
        "n_rows": int(n),
        "n_differing": share_differing(within, n, "stratified").most,
        "design": design,
    }
    names = ("the smaller share", "the larger share")
    return cls.of_rows(
        rows,
        two_worlds(names, (rows.rows[~has], rows.rows[has]), rows, differing),
        secret=secret,
        source=source or ("released_data" if moments_from is None else "held_out"),
        origin=f"means and covariances of rows with and without {property_name}",
        n_rows=n,
    )


def _drawn_prevalence(
    cls: type["Scenario"],
    table: object,
    *,
    column: str,
    condition: Condition,
    query: Query,
    shares: Sequence[float] | None,
    within: float | None,
    n_rows: int | None,
    design: Design,
    n_draws: int,
    seed: int | None,
    source: Source,
    progress: Progress,
) -> "Scenario":
    """Draw tables with each share of a property, which are declared to be the prior."""
    if shares is None or seed is None:
        raise ArgumentError("prior='draws' needs shares and a public seed")
    columns = list(dict.fromkeys((column, *query.columns)))
    frame, n_dropped = without_missing(frame_of_rows(table), columns, query.missing)
    has = condition.flags(frame, column)
    property_name = condition.on(column)
    check_both_kinds(has, property_name)
    check_varied(query, [frame])
    n = len(frame) if n_rows is None else n_rows
    check_count(FEWEST_ROWS, n_rows=n)
    names = share_names(shares)
    sizes = {name: math.floor(share * n + 0.5) for name, share in names.items()}
    if len(set(sizes.values())) != len(sizes):
        raise ArgumentError(
            f"two shares give the same number of rows among {n}; take shares further apart"
        )
    check_count(2, n_draws=n_draws)
    check_count(0, seed=seed)
    check_fits(1, n_rows=n)
    check_fits(query.dim, n_draws=n_draws)
    evaluate = query.bound(frame)
    groups = np.flatnonzero(has), np.flatnonzero(~has)
    worlds: dict[str, Any] = {}
    for number, (name, size) in enumerate(sizes.items(), start=1):
        rng = np.random.default_rng([seed, number])
        outputs = np.empty((n_draws, query.dim))
        for draw in range(n_draws):
            k = size if design == "stratified" else int(rng.binomial(n, size / n))
            rows = [rng.choice(g, m) for g, m in zip(groups, (k, n - k), strict=True) if m]
            outputs[draw] = evaluate(np.concatenate(rows))
            progress((number - 1) * n_draws + draw + 1, len(sizes) * n_draws)
        worlds[name] = FiniteDistribution.uniform(outputs)
    origin = (
        f"{n_draws} tables of {n} rows, drawn with replacement ({design}) from the rows "
        f"with and without {property_name}, public seed {seed}; {DECLARED}"
    )
    pairs: Pairs = "all" if within is None else ordered_pairs(names, difference=within)
    scenario = cls.from_worlds(
        worlds, query=query, pairs=pairs, source=source, name=f"share of {property_name}"
    )
    return scenario.with_origin(origin, n_dropped=n_dropped, n_rows=dict.fromkeys(worlds, n))


def share_names(shares: Sequence[float]) -> dict[str, float]:
    """Name the worlds of at least two different shares."""
    if len(shares) < 2:
        raise ArgumentError(
            f"shares must be at least two numbers between 0 and 1, got {given(shares)}"
        )
    for share in shares:
        check_between(0, 1, shares=share)
    names = {f"{100 * share:.6g} %": float(share) for share in shares}
    if len(names) != len(shares):
        raise ArgumentError("shares must be different")
    return names
