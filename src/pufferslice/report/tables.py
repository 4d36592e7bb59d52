# SPDX-License-Identifier: Apache-2.0
"""Tables as plain text."""

from collections.abc import Sequence

from pufferslice.showing import escaped


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells, each column as wide as its widest cell; the first to the left.

    >>> print(text_table([("name", "noise"), ("mean(age)", "1.5")]))
      name       noise
      mean(age)    1.5
    """
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  " + "  ".join(_padded(row, widths)) for row in rows)


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *others = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
