# SPDX-License-Identifier: Apache-2.0
"""The static experiments: Adult, Cleveland and Student under natural and balanced priors."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, final

import attrs

from pufferslice.calibration import Rule
from pufferslice.paper import tables
from pufferslice.paper.experiment import Claim, Experiment, Outcome, Row, Setting
from pufferslice.paper.static_claims import (
    APPENDIX,
    MAIN,
    count_claim,
    perfect_inference_claims,
    share_claims,
    tight_claim,
    tradeoff_claims,
)
from pufferslice.paper.static_curves import Curve, curves_of
from pufferslice.paper.static_panels import PAPER_SCALE, Scale, panel_rows, panels_of
from pufferslice.paper.tables import SecretTable

MakeTable = Callable[[], SecretTable]


@final
@attrs.frozen(kw_only=True)
class StaticStudy:
    """One table and secret of the static experiments, and what the paper says of them."""

    name: str
    tables: Mapping[str, MakeTable]
    """By prior: `natural`, `balanced`."""
    n_records: int | None
    """Of the natural prior, as the paper says."""
    shares: Mapping[str, float]
    """Of the commonest secret, by prior, as the paper rounds them."""
    source: str

    def run(self, scale: Scale, setting: Setting) -> Outcome:
        """Simulate every panel and hold the paper's claims against it."""
        rows: list[Row] = []
        n_panels = len(self.tables) * len(scale.queries)
        for number, panel in enumerate(panels_of(self.tables, scale.queries)):
            rows += panel_rows(panel, scale, number)
            setting.progress(number + 1, n_panels)
        return Outcome(
            experiment=self.name,
            scale=f"{self._records(rows)}; {scale}; simulated outputs from a public seed",
            rows=tuple(rows),
            claims=tuple(self._claims(curves_of(rows), rows)),
            our_claims=tuple(self._our_claims(curves_of(rows))),
        )

    def _records(self, rows: list[Row]) -> str:
        counts = {row["prior"]: row["n_records"] for row in rows}
        return ", ".join(f"{prior} prior {n:,} records" for prior, n in counts.items())

    def _claims(self, curves: tuple[Curve, ...], rows: list[Row]) -> Iterator[Claim]:
        if self.n_records is not None:
            natural = next(row for row in rows if row["prior"] == "natural")
            yield count_claim(self.n_records, int(natural["n_records"] or 0))
        found = {curve.prior: curve.prior_accuracy for curve in curves}
        yield from share_claims(self.shares, found)
        yield from self._claims_with("closed_form", curves)

    def _our_claims(self, curves: tuple[Curve, ...]) -> Iterator[Claim]:
        yield from self._claims_with("tight", curves)
        yield tight_claim(curves)

    def _claims_with(self, rule: Rule, curves: tuple[Curve, ...]) -> Iterator[Claim]:
        yield from tradeoff_claims(curves, rule, self.source)
        if self.source == APPENDIX:
            yield from perfect_inference_claims(curves, rule)


def _balanced(make: MakeTable) -> SecretTable:
    return make().balanced()


STUDIES: Final = {
    study.name: study
    for study in (
        StaticStudy(
            name="static-adult",
            tables={"natural": tables.adult_race, "balanced": tables.adult_hashed},
            n_records=30_162,
            shares={"natural": 0.86, "balanced": 0.2},
            source=MAIN,
        ),
        StaticStudy(
            name="static-adult-stratified",
            tables={"balanced": partial(_balanced, tables.adult_race)},
            n_records=None,
            shares={"balanced": 0.2},
            source=MAIN,
        ),
        StaticStudy(
            name="static-cleveland",
            tables={
                "natural": tables.cleveland_sex,
                "balanced": partial(_balanced, tables.cleveland_sex),
            },
            n_records=303,
            shares={"natural": 0.7, "balanced": 0.5},
            source=APPENDIX,
        ),
        StaticStudy(
            name="static-student",
            tables={
                "natural": tables.student_grades,
                "balanced": partial(_balanced, tables.student_grades),
            },
            n_records=395,
            shares={"balanced": 0.2},
            source=APPENDIX,
        ),
        StaticStudy(
            name="static-student-sex",
            tables={
                "natural": tables.student_sex,
                "balanced": partial(_balanced, tables.student_sex),
            },
            n_records=395,
            shares={"natural": 0.6, "balanced": 0.5},
            source=APPENDIX,
        ),
    )
}
"""By name; the default scale is the paper's own."""


def _run(name: str, setting: Setting) -> Outcome:
    return STUDIES[name].run(PAPER_SCALE, setting)


def _experiment(name: str, title: str, source: str, needs: str, duration: str) -> Experiment:
    return Experiment(
        name=name,
        title=title,
        source=source,
        needs=needs,
        duration=f"{duration}; --full is the same",
        run=partial(_run, name),
    )


_FOLDER: Final = "extra models; the data folder PUFFERSLICE_DATA"

EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    _experiment(
        "static-adult",
        "Adult, secret race: natural prior, and five groups by a hash",
        "fig:SRPP_experiments (a)-(h), app:experiments",
        "extra models",
        "two minutes",
    ),
    _experiment(
        "static-adult-stratified",
        "Adult, secret race: balanced by a stratified subsample, as in the main text",
        "fig:SRPP_experiments (a)-(d)",
        "extra models",
        "fifteen seconds",
    ),
    _experiment(
        "static-cleveland",
        "Cleveland heart disease, secret sex: natural and balanced prior",
        "fig:additional_experiments (a)-(h)",
        _FOLDER,
        "ten seconds",
    ),
    _experiment(
        "static-student",
        "Student performance, secret the grade quintile: natural and balanced prior",
        "fig:additional_experiments (m)-(p)",
        _FOLDER,
        "fifteen seconds",
    ),
    _experiment(
        "static-student-sex",
        "Student performance, secret sex: natural and balanced prior",
        "fig:additional_experiments (i)-(l)",
        _FOLDER,
        "ten seconds",
    ),
)
