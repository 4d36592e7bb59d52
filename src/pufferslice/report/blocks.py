# SPDX-License-Identifier: Apache-2.0
"""What a page is made of: plain values that its template shows one after another."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, final

import attrs

from pufferslice._core.text import MOST_SHOWN, shown
from pufferslice.errors import escaped

ISOLATE: Final = "\u2068"
END_ISOLATE: Final = "\u2069"


@final
@attrs.frozen
class Cell:
    """A cell of a table that has a look of its own: good, bad, open."""

    text: str
    look: str = ""


@final
@attrs.frozen(kw_only=True)
class Table:
    """Rows under a heading; the first column names the row."""

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    bars: tuple[float, ...] = ()
    """A share of the longest bar for each row, drawn in a column of its own."""
    bar_name: str = ""
    note: str = ""


@final
@attrs.frozen
class Words:
    """Paragraphs, which are a macro of the template."""

    kind: ClassVar[str] = "words"
    name: str
    facts: Mapping[str, Any] | None = None
    """What the macro fills in; the facts of the part if left out."""


@final
@attrs.frozen(kw_only=True)
class Bullets:
    """A list of sentences."""

    kind: ClassVar[str] = "bullets"
    items: tuple[str, ...]


@final
@attrs.frozen(kw_only=True)
class Figure:
    """A chart, its legend, and the table behind it."""

    kind: ClassVar[str] = "figure"
    title: str
    svg: str
    """Made by `pufferslice.report.svg`, which escapes what it writes."""
    legend: tuple[tuple[str, str], ...]
    """Look and name of each line."""
    table: Table
    note: str = ""


@final
@attrs.frozen(kw_only=True)
class Outlook:
    """A slider over precomputed choices, with the charts whose markers follow it."""

    kind: ClassVar[str] = "outlook"
    id: str
    start: int
    """Position of the claim itself."""
    choices: tuple[Mapping[str, Any], ...]
    """Of each position: the texts to show, by name, and where the markers stand."""
    numbers: tuple[tuple[str, str], ...]
    """Name and label of the texts that stand as large numbers."""
    coordinates: tuple[str, ...]
    """Rows of the small table of noise in the user's units."""
    figures: tuple[Figure, ...]


@final
@attrs.frozen(kw_only=True)
class Formula:
    """A Rényi claim in symbols: notion, order and epsilon."""

    kind: ClassVar[str] = "formula"
    notion: str
    order: str
    epsilon: str


@final
@attrs.frozen(kw_only=True)
class Gallery:
    """Figures, side by side where there is room."""

    kind: ClassVar[str] = "gallery"
    figures: tuple[Figure, ...]


Block = Table | Words | Bullets | Figure | Gallery | Formula | Outlook


@final
@attrs.frozen(kw_only=True)
class Section:
    """A heading and what stands under it."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@final
@attrs.frozen(kw_only=True)
class Part:
    """The page about one certificate."""

    kind: Literal["release", "training"]
    """Which template has the words."""
    id: str
    subject: str
    """The name of the secret, or of the data."""
    facts: Mapping[str, Any]
    """What the words of the template fill in."""
    alarms: tuple[str, ...]
    """What must not be overlooked, as insecure noise."""
    refuted: tuple[str, ...]
    """Claims that an audit refuted."""
    sections: tuple[Section, ...]
    digest: str
    verified: bool
    """Whether the claim was recomputed for this page; never for the public edition."""
    signed: bool


def number(value: float | None) -> str:
    """Four digits."""
    return "none" if value is None else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "pair"), counted(1_200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def label(text: str) -> str:
    r"""A label between Unicode isolates, which the page makes a `<bdi>`: it turns no other text.

    >>> label("race")
    '\u2068race\u2069'
    """
    return f"{ISOLATE}{shown(text)}{END_ISOLATE}"


def pair_of(labels: Sequence[str]) -> str:
    """The labels of a pair."""
    return " / ".join(map(label, labels))


def listed(names: Sequence[str]) -> str:
    """Some names, as they are, and how many more there are.

    >>> listed(list("abcdefghij"))
    'a, b, c, d, e, f, g, h and 2 more'
    """
    first = ", ".join(names[:MOST_SHOWN])
    return first if len(names) <= MOST_SHOWN else f"{first} and {len(names) - MOST_SHOWN} more"


def bar_shares(values: Sequence[float]) -> tuple[float, ...]:
    """Lengths of bars as shares of the longest.

    >>> bar_shares([1.0, 4.0])
    (0.25, 1.0)
    """
    top = max(values, default=0.0)
    return tuple(value / top if top > 0 else 0.0 for value in values)


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
