# SPDX-License-Identifier: Apache-2.0
"""Summary statistics of the columns of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from pufferslice.arrays import Floats
from pufferslice.checks import check_count
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Condition, Conditions, conditions_of
from pufferslice.queries.query import Evaluate, Query, Rows, column_names
from pufferslice.showing import given
from pufferslice.tables import Frame, floats_of, label_of

Quantiles: TypeAlias = Mapping[str, float | Sequence[float]]
"""Quantile levels by column: one number or several."""


def summary(
    *,
    mean: Sequence[str] = (),
    std: Sequence[str] = (),
    rate: Conditions | None = None,
    quantile: Quantiles | None = None,
    count_share: int | None = None,
) -> Query:
    """Statistics of the rows together, in the order of the arguments.

    `mean` and `std`: columns of numbers; the standard deviation divides by the number of rows.
    `rate`: the share of rows that meet a condition on a column (a plain value means `equals`).
    `quantile`: one or several levels between 0 and 1 per column, with linear interpolation.
    `count_share`: the number of rows divided by this public total.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": [20, 40], "income": ["<=50K", ">50K"]})
    >>> query = summary(mean=["age"], std=["age"], rate={"income": ">50K"}, quantile={"age": 0.5})
    >>> query.names
    ('mean(age)', 'std(age)', 'rate(income = >50K)', 'quantile(age, 0.5)')
    >>> query.outputs(table)
    array([[30. , 10. ,  0.5, 30. ]])
    """
    if count_share is not None:
        check_count(1, count_share=count_share)
    statistics = _Statistics(
        means=column_names("mean", mean),
        stds=column_names("std", std),
        rates=conditions_of("rate", rate),
        quantiles=_levels_of(quantile),
        totals=() if count_share is None else (int(count_share),),
    )
    names = statistics.names()
    if not names:
        msg = "summary must have at least one of mean, std, rate, quantile, count_share"
        raise ArgumentError(msg)
    return Query(
        names=names,
        columns=statistics.columns(),
        level="table",
        kind="summary",
        parameters=statistics.parameters(),
        bind=statistics.bind,
    )


@attrs.frozen(kw_only=True)
class _Statistics:
    """The arguments of `summary`, each as a tuple with one item per coordinate."""

    means: tuple[str, ...]
    stds: tuple[str, ...]
    rates: tuple[tuple[str, Condition], ...]
    quantiles: tuple[tuple[str, float], ...]
    totals: tuple[int, ...]

    def names(self) -> tuple[str, ...]:
        return (
            *(f"mean({column})" for column in self.means),
            *(f"std({column})" for column in self.stds),
            *(f"rate({condition.on(column)})" for column, condition in self.rates),
            *(f"quantile({column}, {label_of(level)})" for column, level in self.quantiles),
            *(f"count/{total}" for total in self.totals),
        )

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self._numeric(), *(column for column, _ in self.rates)]))

    def parameters(self) -> dict[str, Any]:
        return {
            "mean": self.means,
            "std": self.stds,
            "rate": [{"column": column, **test.description()} for column, test in self.rates],
            "quantile": [{"column": column, "level": level} for column, level in self.quantiles],
            "count_share": self.totals[0] if self.totals else None,
        }

    def bind(self, frame: Frame) -> Evaluate:
        numbers = {column: floats_of(frame, column) for column in self._numeric()}
        flags = [condition.flags(frame, column) for column, condition in self.rates]

        def evaluate(rows: Rows) -> Floats:
            drawn = {column: values[rows] for column, values in numbers.items()}
            # The caller counts what is not finite.
            with np.errstate(over="ignore", invalid="ignore"):
                return np.array(
                    [
                        *(drawn[column].mean() for column in self.means),
                        *(drawn[column].std() for column in self.stds),
                        *(np.count_nonzero(met[rows]) / len(rows) for met in flags),
                        *(np.quantile(drawn[column], level) for column, level in self.quantiles),
                        *(len(rows) / total for total in self.totals),
                    ]
                )

        return evaluate

    def _numeric(self) -> tuple[str, ...]:
        quantiles = (column for column, _ in self.quantiles)
        return tuple(dict.fromkeys([*self.means, *self.stds, *quantiles]))


def _levels_of(quantiles: Quantiles | None) -> tuple[tuple[str, float], ...]:
    if not isinstance(quantiles, Mapping | None):
        msg = f"quantile must map columns to levels, got {given(quantiles)}"
        raise ArgumentError(msg)
    pairs = [
        (column, level)
        for column, levels in (quantiles or {}).items()
        for level in (levels if isinstance(levels, Sequence) else [levels])
    ]
    for column, level in pairs:
        number = isinstance(level, int | float | np.number) and not isinstance(level, bool)
        if not number or not 0 <= level <= 1:
            msg = (
                f"quantile levels must lie between 0 and 1; got {given(level)} for {given(column)}"
            )
            raise ArgumentError(msg)
    return tuple((column, float(level)) for column, level in pairs)
