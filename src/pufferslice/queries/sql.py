# SPDX-License-Identifier: Apache-2.0
"""The sums of a query as two SQL statements, for a database that this library does not reach.

They are plain SQL, as PostgreSQL and DuckDB understand it: comparisons, CASE, FLOOR, EXTRACT and
sums of integers. They compute the integers of `pufferslice.queries.expressions`.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Final, Literal, TypeAlias, final, get_args

import attrs
import numpy as np

from pufferslice._core.checks import check_one_of, is_a
from pufferslice._core.text import given, quoted
from pufferslice.data.frames import WEEKDAYS, label_of
from pufferslice.errors import ArgumentError
from pufferslice.queries.conditions import Condition
from pufferslice.queries.expressions import quantised_zero
from pufferslice.queries.layout import Grid, Layout
from pufferslice.queries.partition import Fill, Partition
from pufferslice.queries.sources import Source, steps_of

ColumnType = Literal["text", "number", "boolean"]
"""What a database holds in a column that conditions compare."""

Types: TypeAlias = Mapping[str, ColumnType]
"""Types of columns by name."""

_COLUMN_TYPES: Final = get_args(ColumnType)
_LARGEST: Final = float(np.finfo(np.float64).max)
_LARGEST_INTEGER: Final = 2**63
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SIGNS: Final = {"above": ">", "at_least": ">=", "below": "<", "at_most": "<="}


@final
@attrs.frozen(kw_only=True)
class Statements:
    """Two SQL statements, whose results `Scenario.from_moments` takes."""

    sums: str
    """Number of rows and sums by group; a release needs no other numbers."""
    products: str
    """Sums of products by group, from which the noise is computed."""

    def __str__(self) -> str:
        return f"-- sums\n{self.sums};\n\n-- products\n{self.products};\n"


def statements_of(layout: Layout, table: str, types: Types | None) -> Statements:
    """Write the statements for a layout."""
    for column, kind in (types or {}).items():
        check_one_of(_COLUMN_TYPES, **{f"types of {quoted(column)}": kind})
    sql = _Writer(types=dict(types or {}))
    keys = {name: sql.key(part) for name, part in layout.named_keys.items()}
    numbers = [sql.integer(grid, layout.n_bits) for grid in layout.grids]
    named = keys | {f"number{place}": number for place, number in enumerate(numbers)}
    columns = ",\n    ".join(f"{value} AS {name}" for name, value in named.items())
    rows = (
        f"FROM (\n  SELECT\n    {columns or '0 AS number'}\n  FROM {_table(table)}\n) AS each_row"
    )
    grouped = f"\nGROUP BY {', '.join(keys)}" if keys else ""
    sums = [f"SUM(number{place}) AS {name}" for place, name in enumerate(layout.sums)]
    products = [f"SUM(number{j} * number{k}) AS {name}" for (j, k), name in layout.products.items()]
    statements = []
    marks = [f"'{mark}' AS {name}" for name, mark in layout.marks.items()]
    for added in (sums, products):
        selected = ",\n  ".join([*marks, *keys, "COUNT(*) AS n", *added])
        statements.append(f"SELECT\n  {selected}\n{rows}{grouped}")
    return Statements(sums=statements[0], products=statements[1])


@final
@attrs.frozen(kw_only=True)
class _Writer:
    """Parts of the statements; each method writes what `Expressions` computes."""

    types: Types

    def integer(self, grid: Grid, n_bits: int) -> str:
        low, high = grid.ends
        integer, nothing = str(2**n_bits), 0
        if grid.factors:
            number = " * ".join(self.number(factor) for factor in grid.factors)
            steps = _double(steps_of(low, high, n_bits))
            integer = f"FLOOR(({number} - {_double(low)}) * {steps} + {_double(0.5)})"
            nothing = quantised_zero(low, high, n_bits)
        integer = f"CAST({integer} AS bigint)"
        if not grid.cell:
            return integer
        fills = dict(grid.fills)
        met = " AND ".join(self.met(name, test, fills.get(name)) for name, test in grid.cell)
        return f"CASE WHEN {met} THEN {integer} ELSE CAST({nothing} AS bigint) END"

    def number(self, source: Source) -> str:
        raw, low, high = self.raw(source.column), source.low, source.high
        fill = (low + high) / 2 if source.missing is None else source.missing
        inside = f"LEAST(GREATEST({raw}, {_double(low)}), {_double(high)})"
        clipped = f"CASE WHEN {_is_finite(raw)} THEN {inside} ELSE {_double(fill)} END"
        return f"({clipped} - {_double(source.center)})" if source.center else f"({clipped})"

    def key(self, part: Partition) -> str:
        if part.kind != "numbers":
            tests = [self.met(part.column, test, part.fill) for test in part.conditions]
            cases = " ".join(f"WHEN {met} THEN {k}" for k, met in enumerate(tests, start=1))
            return f"CASE {cases} ELSE 0 END"
        number, is_known = self.filled(part.column, part.fill)
        first, changes = part.changes()
        cases = " ".join(
            f"WHEN {number} {'>=' if is_closed else '>'} {_double(cut)} THEN {pattern}"
            for cut, is_closed, pattern in reversed(changes)
        )
        return f"CASE WHEN NOT {is_known} THEN 0 {cases} ELSE {first} END"

    def met(self, column: str, condition: Condition, fill: Fill) -> str:
        """A condition, which a missing value does not meet unless its fill does; never null."""
        value, name = condition.value, _name(column)
        if condition.compares_numbers:
            number, is_known = self.filled(column, fill)
            compared = (
                f"{number} >= {_double(value[0])} AND {number} < {_double(value[1])}"
                if isinstance(value, tuple)
                else f"{number} {_SIGNS[condition.comparison]} {_double(float(value))}"
            )
            return f"({is_known} AND {compared})"
        label = str(value)
        if condition.is_calendar:
            return f"COALESCE({_CALENDAR[condition.comparison](name, label)}, FALSE)"
        kind = self.types.get(column) or _type_of(label)
        known = f"{name} IS NOT NULL"
        if kind == "text":
            equal = f"{name} = {_text(label)}"
        elif kind == "boolean":
            equal = {"True": name, "False": f"NOT {name}"}.get(label, "FALSE")
        else:
            equal = _equals_number(name, self.raw(column), label)
            known = _is_finite(self.raw(column))
        if fill is not None and label_of(fill) == label:
            return f"(COALESCE({equal}, FALSE) OR NOT COALESCE({known}, FALSE))"
        return f"COALESCE({equal}, FALSE)"

    def filled(self, column: str, fill: Fill) -> tuple[str, str]:
        """The numbers of a column, and which of them are known or filled in."""
        raw = self.raw(column)
        is_known = f"COALESCE({_is_finite(raw)}, FALSE)"
        if fill is None:
            return raw, is_known
        return f"(CASE WHEN {is_known} THEN {raw} ELSE {_double(float(fill))} END)", "TRUE"

    def raw(self, column: str) -> str:
        name = _name(column)
        if self.types.get(column) == "boolean":
            name = f"(CASE WHEN {name} THEN 1 WHEN NOT {name} THEN 0 END)"
        return f"CAST({name} AS double precision)"


def _is_finite(number: str) -> str:
    return f"({number} >= {_double(-_LARGEST)} AND {number} <= {_double(_LARGEST)})"


def _equals_number(name: str, raw: str, label: str) -> str:
    """Compare with an integer as it is, so that large ones differ, and with others as a double."""
    if re.fullmatch(r"-?\d+", label) and abs(int(label)) < _LARGEST_INTEGER:
        return f"{name} = {int(label)}"
    try:
        return f"{raw} = {_double(float(label))}"
    except ValueError:
        return "FALSE"


def _type_of(label: str) -> ColumnType:
    """The type of a column that has a label, if nothing else is known."""
    if label in {"True", "False"}:
        return "boolean"
    try:
        float(label)
    except ValueError:
        return "text"
    return "number"


def _double(value: float) -> str:
    return f"CAST('{float(value)!r}' AS double precision)"


def _text(label: str) -> str:
    if "\0" in label:
        raise ArgumentError("a label with a NUL character cannot be in an SQL statement")
    return "'" + label.replace("'", "''") + "'"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _table(table: str) -> str:
    if not is_a(table, str) or not table:
        raise ArgumentError(f"table must be the name of a table, got {given(table)}")
    return table if _PLAIN.fullmatch(table) else _name(table)


def _between(name: str, first: date, after: date) -> str:
    day = f"CAST({name} AS date)"
    return f"({day} >= DATE '{first.isoformat()}' AND {day} < DATE '{after.isoformat()}')"


def _of_week(name: str, label: str) -> str:
    year, _, week = label.partition("-W")
    monday = date.fromisocalendar(int(year), int(week), 1)
    return _between(name, monday, monday + timedelta(weeks=1))


def _of_months(name: str, year: int, first: int, n_months: int) -> str:
    last = year * 12 + first - 1 + n_months
    after = date(last // 12, last % 12 + 1, 1) if last < 12 * 10_000 else date.max
    return _between(name, date(year, first, 1), after)


_CALENDAR: Final[Mapping[str, Callable[[str, str], str]]] = {
    "hour": lambda name, label: f"EXTRACT(HOUR FROM {name}) = {int(label)}",
    "weekday": lambda name, label: f"EXTRACT(ISODOW FROM {name}) = {WEEKDAYS.index(label) + 1}",
    "day": lambda name, label: f"CAST({name} AS date) = DATE '{label}'",
    "week": _of_week,
    "month": lambda name, label: _of_months(name, int(label[:4]), int(label[5:]), 1),
    "quarter": lambda name, label: _of_months(name, int(label[:4]), 3 * int(label[6:]) - 2, 3),
    "year": lambda name, label: _of_months(name, int(label), 1, 12),
}
"""Condition on a part of the calendar, by its name."""
