# SPDX-License-Identifier: Apache-2.0
"""Template prevalence: hide how common something is among the rows of a table."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import attrs
import numpy as np

from pufferslice._core.checks import check_between, check_count, check_fits, check_one_of, is_a
from pufferslice._core.text import given, listed, quoted
from pufferslice._core.threads import Progress, silent
from pufferslice.data.frames import without_missing
from pufferslice.data.tables import frame_of_rows, n_rows_of
from pufferslice.errors import ArgumentError, ScenarioError
from pufferslice.queries import Query
from pufferslice.queries.conditions import Condition, conditions_of
from pufferslice.queries.variation import check_varied
from pufferslice.scenario.distributions import FiniteDistribution
from pufferslice.scenario.keys import share_keys
from pufferslice.scenario.made import recorded
from pufferslice.scenario.pairs import Pairs, ordered_pairs
from pufferslice.scenario.priors import DECLARED, Source, check_level
from pufferslice.scenario.rows import (
    DESIGNS,
    FEWEST_ROWS,
    Design,
    Groups,
    RowTable,
    Worlds,
    check_kinds,
    share_differing,
    worlds_and_current,
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
"""Why no certificate rests on a normal approximation."""

SMALLER, LARGER = "the smaller share", "the larger share"
OTHER: Final = "other values"
"""Name of the rows that have none of the values of a secret."""


@recorded
def from_prevalence(
    cls: type["Scenario"],
    table: object,
    *,
    column: str,
    value: Any = None,  # a value or a condition
    values: Sequence[Any] | None = None,
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
    from someone who knows every row but those that make the difference. `values` in place of
    `value` hides how rows are divided among several values (and all others together): any two
    divisions whose shares differ by at most `within` in all. The query is a sum over rows: means
    and rates of all rows, totals, counts, cross tables, each with a public `clip` range. The noise
    is fitted to the rows of `moments_from`, an earlier, held-out or public table; without it, to
    those of `table`, and the certificate says so. `n_rows` is the public number of rows that a
    release has, by default that of `table`. `stratified`: exactly a share of the rows has the
    property; `independent`: each row by itself.

    `prior="draws"` is for queries that are not sums, as quantiles: `n_draws` tables of each of
    the `shares`, drawn with `seed`, are then the prior, and the claim is about these tables.
    Pairs: all, or shares that differ by at most `within`.
    """
    check_level(query, "table", "worlds")
    check_one_of(DESIGNS, design=design)
    if prior == "gaussian":
        raise ScenarioError(NO_NORMAL_LAW)
    check_one_of(PRIOR_FORMS, prior=prior)
    conditions = _conditions(column, value, values)
    if prior == "draws":
        if values is not None:
            raise ArgumentError(
                "prior='draws' hides the share of one value; give value, not values"
            )
        return _drawn_prevalence(
            cls,
            table,
            column=column,
            condition=conditions[0],
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
    n = n_rows_of(table) if n_rows is None else n_rows
    differing = share_differing(within, n, design)
    names = [condition.on(column) for condition in conditions]
    keys: list[str] = []

    def worlds(table: object, *, is_checked: bool) -> Worlds:
        secret = [(column, condition) for condition in conditions]
        rows = RowTable.of(table, query, n_rows=n, secret=secret, is_checked=is_checked)
        keys.extend(share_keys(rows.held, column, conditions))
        kinds = _kinds(rows, column, conditions)
        if values is None:
            kinds = {SMALLER: kinds[OTHER], LARGER: kinds[names[0]]}
        made = rows.kinds(list(kinds.values()), differing)
        return Worlds(rows.query, dict(zip(kinds, made, strict=True)))

    secret = {
        "share_of": names[0] if values is None else names,
        "within": float(within),
        "n_rows": int(n),
        "n_differing": share_differing(within, n, "stratified").most,
        "design": design,
    }
    return cls.of_rows(
        *worlds_and_current(worlds, table, moments_from),
        secret=secret,
        source=source or ("released_data" if moments_from is None else "held_out"),
        origin=f"means and covariances of rows with and without {listed(names)}",
        n_rows=n,
        more_keys=keys,
    )


def _conditions(column: str, value: Any, values: Sequence[Any] | None) -> list[Condition]:
    if (value is None) == (values is None):
        raise ArgumentError("give value, or several values, of the column: one of the two")
    several = [value] if values is None else values
    if is_a(several, str) or not is_a(several, Sequence) or not several:
        raise ArgumentError(f"values must be a list of values or conditions, got {given(values)}")
    return [conditions_of("value", {column: each})[0][1] for each in several]


def _kinds(rows: RowTable, column: str, conditions: Sequence[Condition]) -> dict[str, Groups]:
    """Rows of each kind; those with none of the values, or no value, come last."""
    kinds: dict[str, Groups] = {}
    left, hint = None, ""
    for condition in conditions:
        has = rows.flags(column, condition)
        left = np.ones(len(has), dtype=np.bool_) if left is None else left
        if not has.any() and condition.comparison == "equals":
            hint = rows.near_matches(column, str(condition.value))
        if (has & ~left).any():
            raise ScenarioError(
                f"values must exclude each other, and {quoted(condition.on(column))} holds for "
                "rows that an earlier one holds for; make them disjoint"
            )
        left &= ~has
        kinds[condition.on(column)] = has
    if left is not None and (len(conditions) == 1 or left.any()):
        kinds[OTHER] = left
    check_kinds({name: rows.n_chosen(chosen) for name, chosen in kinds.items()}, hint)
    return kinds


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
    check_kinds({property_name: int(has.sum()), OTHER: int((~has).sum())})
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
    scenario = attrs.evolve(scenario, more_keys=share_keys(frame, column, [condition]))
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
