# SPDX-License-Identifier: Apache-2.0
"""Keys by which a ledger knows a secret, whatever is asked about it, how, and of which rows.

Two scenarios are about the same secret if they share a key. More shared keys are always safe: the
ledger then refuses more.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import narwhals as nw
import numpy as np

from pufferslice._core.files import canonical_json, digest
from pufferslice.data.engines import asked, collected
from pufferslice.data.frames import complete_part, label_of
from pufferslice.data.handed import HandedSums
from pufferslice.data.tables import Rows, frames_of
from pufferslice.queries.conditions import Comparison, Condition
from pufferslice.queries.expressions import Expressions
from pufferslice.queries.partition import partitions_of

_OPPOSITE: Final[Mapping[Comparison, Comparison]] = {
    "above": "at_most",
    "at_most": "above",
    "below": "at_least",
    "at_least": "below",
}
_OTHERS: Final = "\0"
"""Label under which all but one are counted."""
_FEW: Final = 100
"""Up to one in so many rows, or one row, of another value do not make another secret."""


def key_of(name: str) -> str:
    """Key of a named secret; spaces, capitals and forms of a letter make no difference.

    >>> key_of("The  Shop") == key_of("the shop")
    True
    """
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    return digest(canonical_json(text))


def declared_keys(secret: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that follow from the public description of a secret alone: its names."""
    if "columns" in secret:
        return tuple(key_of(f"group of {column}") for column in secret["columns"])
    words = {"share_of": "share of ", "size_of": "size of ", "state_of": "state of ", "worlds": ""}
    (kind,) = set(words) & set(secret)
    names = [secret[kind]] if isinstance(secret[kind], str) else secret[kind]
    return tuple(key_of(f"{words[kind]}{name}") for name in names)


def share_keys(rows: Rows, column: str, conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Keys of how rows are divided by conditions, in whatever words: by either side of each.

    A side, all rows that meet a condition or all that meet none, is also the share of the one value
    that it has. Where both sides of one condition have one value, the column itself is the secret,
    whatever the two values are called.
    """
    return tuple(key_of(name) for name in _names_of_sides(rows, column, conditions))


def _names_of_sides(rows: Rows, column: str, conditions: Sequence[Condition]) -> Iterator[str]:
    for condition in conditions:
        yield f"share of {condition.on(column)}"
        if condition.comparison in _OPPOSITE:
            opposite = attrs.evolve(condition, comparison=_OPPOSITE[condition.comparison])
            yield f"share of {opposite.on(column)}"
    values = [_only_value(side) for side in _sides(rows, column, conditions)]
    for value in values:
        if value is not None:
            yield f"share of {column} = {value}"
    if len(values) == 2 and None not in values:
        yield f"share of either of two values of {column}"


def _sides(rows: Rows, column: str, conditions: Sequence[Condition]) -> list[Counter[str]]:
    """Labels of the rows that meet each condition, and of those that meet none, with their numbers.

    An engine counts the most frequent label, and all others as one.
    """
    sides = [Counter[str]() for _ in range(len(conditions) + 1)]
    if isinstance(rows, HandedSums):
        for side, condition in zip(sides, conditions, strict=False):
            if condition.comparison == "equals":
                side[str(condition.value)] = 1
        return sides
    if isinstance(rows, nw.LazyFrame):
        of = Expressions.of(rows, [column])
        for side, condition in zip(sides, conditions, strict=False):
            if condition.comparison == "equals":
                side[str(condition.value)] = 1
            else:
                side.update(_most_frequent(of, column, of.met(column, condition, None)))
        unmet = [~of.met(column, condition, None) for condition in conditions]
        sides[-1].update(_most_frequent(of, column, *unmet))
        return sides
    parts = partitions_of((column, condition, None) for condition in conditions)
    for frame in frames_of(rows, [column]):
        part, present = complete_part(frame, column)
        if not present.any():
            continue
        met = {
            test: each.patterns[codes, place]
            for each in parts
            for codes in [each.codes(part)]
            for place, test in enumerate(each.conditions)
        }
        flags = [met[condition] for condition in conditions]
        for side, chosen in zip(sides, [*flags, ~np.logical_or.reduce(flags)], strict=True):
            counts = part[np.flatnonzero(chosen)][column].value_counts()
            values, numbers = (counts[name].to_list() for name in counts.columns)
            side.update(dict(zip(map(label_of, values), numbers, strict=True)))
    return sides


def _most_frequent(of: Expressions, column: str, *flags: nw.Expr) -> dict[str, int]:
    """The most frequent label of some rows of an engine's table, and the number of all others."""
    with asked(of.lazy):
        rows = of.lazy.filter(of.is_known(column), *flags).group_by(column)
        counts = rows.agg(nw.len().alias("n_rows"))
        total = counts.select(nw.col("n_rows").sum())
        most = counts.sort("n_rows", descending=True).head(1)
    found, (n_rows,) = collected(most), collected(total)["n_rows"]
    if not found[column]:
        return {}
    first = int(found["n_rows"][0])
    return {label_of(found[column][0]): first, _OTHERS: int(n_rows) - first}


def _only_value(side: Counter[str]) -> str | None:
    """Label that these rows have, but for very few of them; None if there are several."""
    (label, first), *_ = side.most_common(1) or [("", 0)]
    others = side.total() - first
    return label if first and others <= max(1, side.total() // _FEW) else None
