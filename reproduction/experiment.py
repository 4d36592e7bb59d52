# SPDX-License-Identifier: Apache-2.0
"""Experiments, their claims and outcomes, and the list of all experiments.

The modules that an experiment needs are imported when it is run.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast, final

import attrs

from pufferslice._core.threads import Progress, silent
from pufferslice.errors import ArgumentError

Cell: TypeAlias = float | int | str | bool | None
Row: TypeAlias = Mapping[str, Cell]


def number_in(row: Row, column: str) -> float:
    """One cell as a number; NaN if it is empty."""
    value = row[column]
    return math.nan if value is None else float(value)


Verdict: TypeAlias = Literal["reproduced", "not reproduced", "not decided", "equal"]


@final
@attrs.frozen(kw_only=True)
class Claim:
    """One statement of the paper, and whether the numbers of this run support it."""

    statement: str
    """The statement of the paper, precise enough to be true or false."""
    source: str
    """A label or a section of the paper."""
    held: bool
    found: str
    """The numbers that decided."""
    unclear: Literal["not decided", "equal"] | None = None
    """Why there is no yes or no: intervals leave it open, or both sides are the same."""

    @property
    def verdict(self) -> Verdict:
        """What the numbers say."""
        return self.unclear or ("reproduced" if self.held else "not reproduced")

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        verdict = "NOT REPRODUCED" if self.verdict == "not reproduced" else self.verdict
        return f"{verdict}: {self.statement} ({self.source})\n    {self.found}"


def n_reproduced_of(claims: Sequence[Claim]) -> str:
    """How many of them were, in words."""
    return f"{sum(claim.verdict == 'reproduced' for claim in claims)} of {len(claims)}"


@final
@attrs.frozen(kw_only=True)
class Setting:
    """How to run an experiment."""

    full: bool
    """At the paper's own scale, or at one that a small machine finishes in minutes."""
    folder: Path
    """Where a long experiment keeps finished and interrupted runs, which it resumes."""
    progress: Progress = silent


@final
@attrs.frozen(kw_only=True)
class Outcome:
    """The result of an experiment: a table in long form, and the paper's claims."""

    experiment: str
    scale: str
    """The scale in one line, which every picture shows."""
    rows: tuple[Row, ...]
    """All with the same columns."""
    claims: tuple[Claim, ...]
    """Claims of the paper about its own methods."""
    our_claims: tuple[Claim, ...] = ()
    """The same for the library's rule instead of the paper's, and a comparison of the two; none of
    them are claims of the paper."""

    def __attrs_post_init__(self) -> None:
        if any(list(row) != list(self.rows[0]) for row in self.rows):
            raise ArgumentError(f"the rows of {self.experiment!r} must all have the same columns")

    @property
    def verdict(self) -> str:
        """One line: how many claims were reproduced."""
        number = n_reproduced_of(self.claims)
        verdict = f"{self.experiment}: {number} claims of the paper reproduced"
        if not self.our_claims:
            return verdict
        return f"{verdict}; {n_reproduced_of(self.our_claims)} about our own mechanisms"

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
    """One figure of the paper, or a group of panels, that can be run."""

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


def _late(module: str, *arguments: str, function: str = "run") -> Callable[[Setting], Outcome]:
    """A function of a module of this package, imported on its first call."""

    def run(setting: Setting) -> Outcome:
        late = getattr(import_module(f"reproduction.{module}"), function)
        return cast("Outcome", late(*arguments, setting))

    return run


def _static(name: str, title: str, source: str, needs: str, duration: str) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        source=source,
        needs=needs,
        duration=f"{duration}; --full is the same",
        run=_late("static", name),
    )


_FOLDER: Final = "extra sklearn; the data folder PUFFERSLICE_DATA"
_TRAINS: Final = "extras torch, sklearn and baselines; with --full CIFAR-10 in PUFFERSLICE_DATA"

EXPERIMENTS: Final = (
    Experiment(
        name="sliced-divergences",
        title="Divergence of two Gaussians along every direction, with average and joint rings",
        source="fig:SRD",
        needs="",
        duration="a second; --full is the same",
        run=_late("profiles"),
    ),
    Experiment(
        name="cap-rings",
        title="Caps of one round of SGD along every direction, with aggregation rings",
        source="fig:HUC_sa_HUC",
        needs="",
        duration="a second; --full is the same",
        run=_late("profiles", function="run_caps"),
    ),
    _static(
        "static-adult",
        "Adult, secret race: natural prior, and five groups by a hash",
        "fig:SRPP_experiments (a)-(h), app:experiments",
        "extra sklearn",
        "two minutes",
    ),
    _static(
        "static-adult-boosting",
        "Adult, secret race: gradient boosting, which the paper names and shows in no figure",
        "app:experiments",
        "extra sklearn",
        "a minute",
    ),
    _static(
        "static-adult-stratified",
        "Adult, secret race: balanced by a stratified subsample, as in the main text",
        "fig:SRPP_experiments (a)-(d)",
        "extra sklearn",
        "fifteen seconds",
    ),
    _static(
        "static-cleveland",
        "Cleveland heart disease, secret sex: natural and balanced prior",
        "fig:additional_experiments (a)-(h)",
        _FOLDER,
        "ten seconds",
    ),
    _static(
        "static-student",
        "Student performance, secret the grade quintile: natural and balanced prior",
        "fig:additional_experiments (m)-(p)",
        _FOLDER,
        "fifteen seconds",
    ),
    _static(
        "static-student-sex",
        "Student performance, secret sex: natural and balanced prior",
        "fig:additional_experiments (i)-(l)",
        _FOLDER,
        "ten seconds",
    ),
    Experiment(
        name="sgd-noise",
        title="Noise of private SGD against epsilon, and what the paper's recipe costs",
        source="subfig:gep_resnet, subfig:group_dp",
        needs="extra baselines",
        duration="half a minute; --full is the same",
        run=_late("noise"),
    ),
    Experiment(
        name="training-curves",
        title="Test accuracy and training loss while private models are trained",
        source="subsec:srpp_sgd_gaussian, app:sgd_setup",
        needs=_TRAINS,
        duration="a minute; --full days",
        run=_late("training"),
    ),
    Experiment(
        name="accuracy-epsilon",
        title="Test accuracy against epsilon, by accountant",
        source="subfig:gep_resnet, subfig:group_dp",
        needs=_TRAINS,
        duration="two minutes; --full weeks, in runs of hours each",
        run=_late("accuracy"),
    ),
    Experiment(
        name="overfitted-attack",
        title="Overfitted models and the membership attack on them, against epsilon",
        source="subfig:overfit, subfig:overfit_attack",
        needs=_TRAINS,
        duration="a minute; --full a day",
        run=_late("accuracy", function="run_attack"),
    ),
    Experiment(
        name="layer-clipping",
        title="Per-layer clipping: reference noise and test accuracy against epsilon",
        source="app:perlayer:num_example, Fig:example_SWD",
        needs=_TRAINS,
        duration="a minute; --full days",
        run=_late("layers"),
    ),
)
"""In the order in which they are listed and run."""


def experiment_named(name: str) -> Experiment:
    """The experiment of that name, or an error that lists the names."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    names = ", ".join(experiment.name for experiment in EXPERIMENTS)
    raise ArgumentError(f"there is no experiment {name!r}; choose one of {names}, or all")
