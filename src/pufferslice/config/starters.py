# SPDX-License-Identifier: Apache-2.0
"""Starters: one scenario file for each question that people have; all run as they are."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pufferslice.config.budget import BudgetFile
from pufferslice.config.document import Document, filled
from pufferslice.config.scenario import ScenarioFile


class Starter(NamedTuple):
    """A scenario file to start from: what it hides, in words, and its sections."""

    about: str
    released: str
    """Options of `release` on the command line that choose the rows."""
    document: Document

    def text(self) -> str:
        """Write the commented file."""
        options = " --ledger one.ledger --out release.json"
        header = f"""\
{self.about}
Run it with
  pufferslice calibrate scenario.toml --out certificate.json
  pufferslice release scenario.toml --certificate certificate.json \\
     {options}{self.released}
See what other bounds would cost with `pufferslice calibrate scenario.toml --sweep`.
All other keys are in the file that `pufferslice init FOLDER` writes without --template."""
        return filled(ScenarioFile, self.document, header)


_GUARANTEE: Final[Mapping[str, Any]] = {"notion": "guess", "at_most": 0.64}
_CENSUS: Final[Mapping[str, Any]] = {"dataset": "adult-this-year"}
_CLIP: Final[Mapping[str, Any]] = {"age": [17, 90], "hours-per-week": [1, 99]}

STARTERS: Final[Mapping[str, Starter]] = {
    "prevalence": Starter(
        "Hide how common something is among the rows of a table; publish statistics of all rows.",
        "",
        {
            "data": _CENSUS,
            "prevalence": {
                "property": {"column": "sex", "equals": "Female"},
                "within": 0.05,
                "moments_from": "adult-last-year",
            },
            "query": {
                "mean": ["age", "hours-per-week"],
                "rate": [
                    {"column": "income", "equals": ">50K"},
                    {"column": "age", "above": 60},
                ],
                "clip": _CLIP,
            },
            "guarantee": _GUARANTEE,
        },
    ),
    "attribute": Starter(
        "Hide a number that is jointly Gaussian with what is published: here how far the diabetes\n"
        "of a patient had progressed after a year. Means and covariance are those of 442 patients\n"
        "(Efron, Hastie, Johnstone, Tibshirani 2004): declare those of a model that you trust.",
        " --rows YOUR-PATIENT.csv",
        {
            "attribute": {
                "name": "progression",
                "values": [100.0, 150.0, 200.0],
                "mean": [152.1, 26.4, 94.6],
                "cov": [[5943.0, 199.7, 470.8], [199.7, 19.52, 24.16], [470.8, 24.16, 191.3]],
            },
            "secret": {"pairs": {"difference": 50}},
            "query": {
                "mean": ["bmi", "blood pressure"],
                "scales": {"bmi": 5, "blood pressure": 10},
            },
            "guarantee": {"notion": "guess", "at_most": 0.6},
        },
    ),
    "occupancy": Starter(
        "Hide in which state something was at some times; publish for how long it was in each.\n"
        "Here: a week of half hours, and every evening at 20:00. The chain is made up: declare\n"
        'that of your own case. With loads = "…" the query may also be what a meter adds up.',
        " --rows YOUR-STATES.csv",
        {
            "occupancy": {
                "chain": [[0.9, 0.1], [0.2, 0.8]],
                "length": 336,
                "positions": {"first": 40, "every": 48},
            },
            "query": {"count": [{"column": "state", "equals": 1}]},
            "guarantee": _GUARANTEE,
        },
    ),
    "volume": Starter(
        "Hide how many rows a table has; publish totals and counts.",
        "",
        {
            "data": _CENSUS,
            "volume": {"ratio": 1.1, "up_to": 20_000, "moments_from": "adult-last-year"},
            "query": {
                "total": ["hours-per-week"],
                "count": [{"column": "income", "equals": ">50K"}],
                "clip": {"hours-per-week": [1, 99]},
            },
            "guarantee": _GUARANTEE,
        },
    ),
    "supplier": Starter(
        "Hide how many rows one supplier or customer has; publish totals and counts of all rows.",
        "",
        {
            "data": _CENSUS,
            "supplier": {
                "property": {"column": "occupation", "equals": "Sales"},
                "ratio": 1.1,
                "up_to": 3_000,
                "moments_from": "adult-last-year",
            },
            "query": {
                "total": ["hours-per-week"],
                "count": [{"column": "income", "equals": ">50K"}],
                "clip": {"hours-per-week": [1, 99]},
            },
            "guarantee": _GUARANTEE,
        },
    ),
}
"""Starters by the section that declares the worlds."""

_YEARBOOK: Final[Document] = {
    **STARTERS["prevalence"].document,
    "query": {
        "distribution": "worlds",
        "mean": ["age", "hours-per-week"],
        "rate": [{"column": "income", "equals": ">50K"}],
        "clip": _CLIP,
    },
}
_PARTS: Final[Mapping[str, tuple[str, Document]]] = {
    "yearbook.toml": (
        "A part of budget.toml: the table of the whole year, in one release or several.",
        _YEARBOOK,
    ),
    "monthly.toml": (
        "A part of budget.toml, with fresh rows every month; how many is in budget.toml.",
        {
            **_YEARBOOK,
            "prevalence": {**_YEARBOOK["prevalence"], "n_rows": 1_350},
            "query": {
                "distribution": "worlds",
                "rate": [{"column": "income", "equals": ">50K"}],
            },
        },
    ),
    "later.toml": (
        "A part of budget.toml: what may be needed later, as only what is declared now can be.",
        {
            **_YEARBOOK,
            "query": {
                "distribution": "worlds",
                "rate": [
                    {"column": "education", "equals": "Bachelors"},
                    {"column": "age", "above": 60},
                ],
            },
        },
    ),
}

_BUDGET_HEADER: Final = """\
Publish in series, under one promise about all outputs together. Run it with
  pufferslice calibrate budget.toml --out budget.json
  pufferslice release budget.toml --certificate budget.json --part yearbook \\
      --ledger office.ledger --out yearbook.json
  pufferslice release budget.toml january.csv --certificate budget.json --part monthly \\
      --period 1 --ledger office.ledger --out january.json
A part can be spent in steps: --only "mean(age)" --spend 0.4, and the rest later. Which statistics
with which precision may be decided after seeing earlier outputs; the parts themselves may not."""

_BUDGET: Final[Document] = {
    "claim": {"guess": 0.64},
    "parts": {
        "yearbook": {"scenario": "yearbook.toml", "share": 0.2},
        "monthly": {"scenario": "monthly.toml", "times": 12, "rows": [1_300, 1_400], "share": 0.75},
        "later": {"scenario": "later.toml", "reserve": True, "share": 0.05},
    },
}


def budget_files() -> dict[str, str]:
    """Write the files of a budget to start from, by name; those about rows run as they are."""
    texts = {"budget.toml": filled(BudgetFile, _BUDGET, _BUDGET_HEADER)}
    for name, (about, document) in _PARTS.items():
        sections = {key: part for key, part in document.items() if key != "guarantee"}
        texts[name] = filled(ScenarioFile, sections, about)
    return texts
