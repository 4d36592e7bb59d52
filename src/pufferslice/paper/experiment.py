# SPDX-License-Identifier: Apache-2.0
"""Experiment, claim and outcome: what the reproduction of a figure is made of."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import attrs

from pufferslice.errors import ArgumentError
from pufferslice.parallel import Progress, silent

Cell: TypeAlias = float | int | str | bool | None
Row: TypeAlias = Mapping[str, Cell]


def number_in(row: Row, column: str) -> float:
    """One cell as a number; NaN if it is empty."""
    value = row[column]
    return math.nan if value is None else float(value)


@final
@attrs.frozen(kw_only=True)
class Claim:
    """One statement of the paper, and whether the numbers of this run bear it out."""

    statement: str
    """What the paper says, made precise enough to be true or false."""
    source: str
    """Where it says so: a label of the paper, or a section."""
    held: bool
    found: str
    """The numbers that decided."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        verdict = "held" if self.held else "DID NOT HOLD"
        return f"{verdict}: {self.statement} ({self.source})\n    {self.found}"


def n_held_of(claims: Sequence[Claim]) -> str:
    """How many of them held, in words."""
    return f"{sum(claim.held for claim in claims)} of {len(claims)}"


@final
@attrs.frozen(kw_only=True)
class Setting:
    """How to run an experiment."""

    full: bool
    """At the paper's own scale, or at one that ends on a small machine."""
    folder: Path
    """Where a long experiment keeps what it has done, so that a run that was cut off goes on."""
    progress: Progress = silent


@final
@attrs.frozen(kw_only=True)
class Outcome:
    """What one run of an experiment gave: a table in long form, and the paper's claims."""

    experiment: str
    scale: str
    """What was run, in one line that stands on every picture."""
    rows: tuple[Row, ...]
    """All with the same columns."""
    claims: tuple[Claim, ...]
    """What the paper says of its own methods."""
    our_claims: tuple[Claim, ...] = ()
    """The same, held against the library's rule in place of the paper's, and how the two compare:
    the paper says none of it."""

    def __attrs_post_init__(self) -> None:
        if any(list(row) != list(self.rows[0]) for row in self.rows):
            msg = f"the rows of {self.experiment!r} must all have the same columns"
            raise ArgumentError(msg)

    @property
    def verdict(self) -> str:
        """One line: how many claims held."""
        said = f"{self.experiment}: {n_held_of(self.claims)} claims of the paper held"
        if not self.our_claims:
            return said
        return f"{said}; {n_held_of(self.our_claims)} about our own rule"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "experiment": self.experiment,
            "scale": self.scale,
            "claims": [claim.to_json() for claim in self.claims],
            "our_claims": [claim.to_json() for claim in self.our_claims],
            "rows": [dict(row) for row in self.rows],
        }

    def to_csv(self) -> str:
        """The table, with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()


@final
@attrs.frozen(kw_only=True)
class Experiment:
    """One figure of the paper, or a group of panels, as something that can be run."""

    name: str
    """As on the command line."""
    title: str
    source: str
    """The figure or section of the paper, by its label."""
    needs: str
    """Data and extras beyond the core, in words; empty if none."""
    duration: str
    """Roughly how long it takes by default and in full, on two cores."""
    run: Callable[[Setting], Outcome]
