# SPDX-License-Identifier: Apache-2.0
"""Numbers, labels and columns as text."""

from collections.abc import Sequence
from typing import Final

from pufferslice._core.display import rounded
from pufferslice._core.numbers import at_most
from pufferslice._core.text import label
from pufferslice.errors import escaped

N_BOUNDS: Final = 25
"""Number of bounds on the slider of a page."""


def number(value: float | None) -> str:
    """Write a number with three digits."""
    return "none" if value is None else rounded(value)


def bound(value: float | None) -> str:
    """Write a number with three digits, rounded up."""
    return "none" if value is None else at_most(value, digits=3)


def counted(count: int, noun: str) -> str:
    """Write a count and its noun.

    >>> counted(1, "pair"), counted(1_200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def pair_of(labels: Sequence[str]) -> str:
    """Write the labels of a pair."""
    return " / ".join(map(label, labels))


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of equally many cells: the first column to the left, all others to the right.

    >>> print(text_table([("name", "noise"), ("mean(age)", "1.5")]))
      name       noise
      mean(age)    1.5
    """
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(["", row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in rows
    )
