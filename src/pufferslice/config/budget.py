# SPDX-License-Identifier: Apache-2.0
"""Typed model of budget.toml, and the budget that it stands for."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Final, final

import attrs
import pyarrow as pa
from pydantic import Field

from pufferslice.certificate import Certificate, certify_budget
from pufferslice.certificate.parts import BudgetPart, Repeated, Reserve, Training
from pufferslice.claims import Claim, Guarantee
from pufferslice.config.document import (
    Document,
    File,
    Table,
    Text,
    Word,
    key,
    overridden,
)
from pufferslice.config.scenario import (
    Bar,
    DerivedSection,
    ScenarioFile,
    built_scenario,
    document_at,
    no_bar,
)
from pufferslice.config.training import read_training_file, sampling_and_steps
from pufferslice.data.locations import beside
from pufferslice.data.readers import FileTable
from pufferslice.errors import ArgumentError
from pufferslice.noise.shape import Kind
from pufferslice.scenario.scenario import Scenario

PARTS: Final = "parts"
"""Section that only a budget has."""


class ClaimSection(Table):
    """The promise about all outputs together; exactly one of `guess` and `bits`."""

    guess: float | None = key(None, example=0.64, used=True)
    """The share of right guesses between two protected values, both equally likely; above 0.5."""
    bits: float | None = key(None, example=0.1)
    """The divergence between two protected values (Kullback-Leibler), in bits."""
    coupling: Text | None = key(None, example="independent")
    """How the rows of a change meet in the proof, one for all parts: `independent`, or `cells:NAME`
    by a column that all queries name; left out, the one that needs the least noise."""
    shape: Annotated[Kind, Word("fitted", "diagonal")] = key("fitted", example="fitted")
    """Of the noise: `fitted` (default), or `diagonal`: without correlation."""
    person: Annotated[tuple[float, float], Field(strict=False)] | None = key(
        None, example=[1.0, 1e-6]
    )
    """Epsilon and delta of differential privacy that any one person gets as well; needs
    `moments_from` in every scenario, and no training."""

    def claim(self) -> Claim:
        """Build the claim."""
        if self.guess is not None and self.bits is None:
            return Guarantee.guess(at_most=self.guess)
        if self.bits is not None and self.guess is None:
            return Guarantee.information(bits=self.bits)
        raise ArgumentError("[claim]: needs guess or bits, one of the two")


class PartTable(Table):
    """A part of the budget; `scenario` or `training`, one of the two."""

    scenario: Text | None = key(None, example="yearbook.toml", used=True)
    """A scenario.toml with the rows and statistics; its [guarantee] may be left out."""
    training: Text | None = key(None, example="training.toml")
    """A training.toml without [secret] and [guarantee]: the budget has them."""
    times: int | None = key(None, example=12)
    """Number of periods, each with fresh rows: independent of those of other periods."""
    rows: Annotated[tuple[int, int], Field(strict=False)] | None = key(
        None, example=[9_000, 12_000]
    )
    """With `times`, where a share is hidden: least and largest number of rows of a period."""
    reserve: bool = key(default=False, example=True)
    """A reserve for statistics that may be needed later."""
    share: float | None = key(None, example=0.5, used=True)
    """Share of the promise, for all periods together; equal for all parts if left out."""


class BudgetFile(File):
    """budget.toml: everything that will be published about one secret, under one promise."""

    header: ClassVar[str] = """\
Everything that will be published about one secret, under one promise. Run it with
  pufferslice calibrate budget.toml --out budget.json
  pufferslice release budget.toml --certificate budget.json --part yearbook \\
      --ledger office.ledger --out yearbook.json"""

    claim: ClaimSection
    parts: dict[str, PartTable] = Field(
        {},
        examples=[
            {
                "yearbook": {"scenario": "yearbook.toml", "share": 0.5},
                "monthly": {
                    "scenario": "monthly.toml",
                    "times": 12,
                    "rows": [9000, 12000],
                    "share": 0.4,
                },
                "later": {"scenario": "later.toml", "reserve": True, "share": 0.1},
            }
        ],
    )
    """`[parts.NAME]` for each part, with the keys below; all of them are fixed before the first
    output."""


@final
@attrs.frozen(kw_only=True, repr=False, eq=False)
class BudgetRequest:
    """A budget file, and all that follows from it."""

    claim: Claim
    options: ClaimSection
    parts: Mapping[str, BudgetPart]
    shares: Mapping[str, float] | None
    tables: Mapping[str, FileTable | pa.Table | None]
    """Table of [data] of each part about rows, if its scenario reads one."""
    derived: Mapping[str, DerivedSection]
    """Statistics that a release of each part computes after noise."""
    null_values: Mapping[str, Sequence[str]]
    """Strings that mean missing, by part."""

    @property
    def repeated(self) -> list[str]:
        """Parts with fresh rows in every period."""
        return [name for name, part in self.parts.items() if isinstance(part, Repeated)]

    def certify(self) -> Certificate:
        """Certify the budget."""
        options = self.options
        return certify_budget(
            self.parts,
            self.claim,
            shares=self.shares,
            coupling=options.coupling,
            shape=options.shape,
            person=options.person,
        )

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Scenarios of the parts about rows, by the names of the parts."""
        return {
            name: part.scenario if isinstance(part, Repeated | Reserve) else part
            for name, part in self.parts.items()
            if not isinstance(part, Training)
        }


def is_budget(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a budget.toml: whether it has parts."""
    return PARTS in document_at(path)


def read_budget(
    path: str | os.PathLike[str],
    bar: Bar = no_bar,
    *,
    overrides: Iterable[str] | None = None,
) -> BudgetRequest:
    """Read budget.toml; paths in it, and in the files that it names, are relative to their folders.

    `overrides` replace keys, each as `section.key=value`.
    """
    return budget_of(overridden(document_at(path), overrides or ()), Path(path).parent, bar)


def budget_of(document: Document, folder: Path, bar: Bar = no_bar) -> BudgetRequest:
    """Build the budget that a document stands for."""
    file = BudgetFile.of(document)
    if not file.parts:
        raise ArgumentError("[parts]: is required, a table for each part")
    claim = file.claim.claim()
    parts: dict[str, BudgetPart] = {}
    tables: dict[str, FileTable | pa.Table | None] = {}
    derived: dict[str, DerivedSection] = {}
    null_values: dict[str, Sequence[str]] = {}
    for name, part in file.parts.items():
        if (part.scenario is None) == (part.training is None):
            raise ArgumentError(f"[parts.{name}]: needs scenario or training, one of the two")
        if part.scenario is not None:
            path = Path(beside(folder, part.scenario))
            scenario_file = ScenarioFile.of(document_at(path))
            scenario, tables[name] = built_scenario(scenario_file, path.parent, bar)
            derived[name] = scenario_file.derived
            null_values[name] = scenario_file.data.null_values
            parts[name] = _about_rows(name, part, scenario)
    for name, part in file.parts.items():
        if part.training is not None:
            parts[name] = _training(name, part, Path(beside(folder, part.training)), parts)
    shares = {name: part.share for name, part in file.parts.items() if part.share is not None}
    if shares and len(shares) < len(file.parts):
        raise ArgumentError("[parts]: either all parts have a share, or none")
    return BudgetRequest(
        claim=claim,
        options=file.claim,
        parts={name: parts[name] for name in file.parts},
        shares=shares or None,
        tables=tables,
        derived=derived,
        null_values=null_values,
    )


def _about_rows(name: str, part: PartTable, scenario: Scenario) -> BudgetPart:
    if part.times is not None:
        if part.reserve:
            raise ArgumentError(f"[parts.{name}] reserve: does not go with times")
        return Repeated(scenario, times=part.times, rows=part.rows)
    if part.rows is not None:
        raise ArgumentError(f"[parts.{name}] rows: belongs to times, the number of periods")
    return Reserve(scenario) if part.reserve else scenario


def _training(name: str, part: PartTable, path: Path, parts: Mapping[str, BudgetPart]) -> Training:
    """Read a training part: its records are the rows of a part that is published once."""
    extra = part.model_fields_set - {"training", "share"}
    if extra:
        raise ArgumentError(f"[parts.{name}] {', '.join(sorted(extra))}: does not go with training")
    file = read_training_file(path)
    if file.secret is not None or file.guarantee is not None:
        raise ArgumentError(
            f"[parts.{name}] training: must have no [secret] and no [guarantee]; the budget says "
            "what is hidden, and finds the noise"
        )
    design, n_steps = sampling_and_steps(file)
    scenarios = [each for each in parts.values() if isinstance(each, Scenario)]
    matching = [s for s in scenarios if s.secret.get("n_rows") == design.n_records]
    if not matching:
        raise ArgumentError(
            f"[parts.{name}] training: needs a scenario of this budget with {design.n_records:,} "
            "rows, on which the model is trained"
        )
    return Training(
        differing=matching[0].differing(),
        sampling=design,
        clip_norm=file.training.clip_norm,
        n_steps=n_steps,
        block=file.training.block,
    )
