# SPDX-License-Identifier: Apache-2.0
"""Keys by which a ledger knows a secret, whatever is asked about it, how, and of which rows.

Two scenarios are about the same secret if they share a key. More shared keys are always safe: the
ledger then refuses more.
"""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.files import canonical_json, digest
from pufferslice.data.frames import Frame, complete_part, label_of
from pufferslice.queries.conditions import Comparison, Condition

_OPPOSITE: Final[Mapping[Comparison, Comparison]] = {
    "above": "at_most",
    "at_most": "above",
    "below": "at_least",
    "at_least": "below",
}
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


def share_keys(frame: Frame, column: str, conditions: Sequence[Condition]) -> tuple[str, ...]:
    """Keys of how rows are divided by conditions, in whatever words: by either side of each.

    A side, all rows that meet a condition or all that meet none, is also the share of the one value
    that it has. Where both sides of one condition have one value, the column itself is the secret,
    whatever the two values are called.
    """
    return tuple(key_of(name) for name in _names_of_sides(frame, column, conditions))


def _names_of_sides(frame: Frame, column: str, conditions: Sequence[Condition]) -> Iterator[str]:
    for condition in conditions:
        yield f"share of {condition.on(column)}"
        if condition.comparison in _OPPOSITE:
            opposite = attrs.evolve(condition, comparison=_OPPOSITE[condition.comparison])
            yield f"share of {opposite.on(column)}"
    part, present = complete_part(frame, column)
    if not present.any():
        return
    sides = [condition.flags(part, column) for condition in conditions]
    values = [_only_value(part, column, side) for side in [*sides, ~np.logical_or.reduce(sides)]]
    for value in values:
        if value is not None:
            yield f"share of {column} = {value}"
    if len(values) == 2 and None not in values:
        yield f"share of either of two values of {column}"


def _only_value(frame: Frame, column: str, chosen: npt.NDArray[np.bool_]) -> str | None:
    """Label that these rows have, but for very few of them; None if there are several."""
    places = np.flatnonzero(chosen)
    if not len(places):
        return None
    counts = frame[places][column].value_counts(sort=True)
    others = len(places) - int(counts[counts.columns[1]][0])
    return label_of(counts[column][0]) if others <= max(1, len(places) // _FEW) else None
