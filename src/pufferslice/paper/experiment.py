# SPDX-License-Identifier: Apache-2.0
"""Experiment, claim and outcome: what the reproduction of a figure is made of."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import attrs

from pufferslice.errors import ArgumentError
from pufferslice.parallel import Progress, silent

Cell: TypeAlias = float | int | str | bool | None
Row: TypeAlias = Mapping[str, Cell]


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

    def __attrs_post_init__(self) -> None:
        if any(list(row) != list(self.rows[0]) for row in self.rows):
            msg = f"the rows of {self.experiment!r} must all have the same columns"
            raise ArgumentError(msg)

    @property
    def n_held(self) -> int:
        """How many of the claims held."""
        return sum(claim.held for claim in self.claims)

    @property
    def verdict(self) -> str:
        """One line: which claims of the paper held."""
        return f"{self.experiment}: {self.n_held} of {len(self.claims)} claims of the paper held"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "experiment": self.experiment,
            "scale": self.scale,
            "claims": [claim.to_json() for claim in self.claims],
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
