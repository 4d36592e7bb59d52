# SPDX-License-Identifier: Apache-2.0
"""Claims, outcomes and the catalogue: what an experiment is made of."""

import csv
import io
import math
import subprocess
import sys

import attrs
import pytest

from pufferslice.errors import ArgumentError
from reproduction.experiment import (
    EXPERIMENTS,
    Claim,
    Outcome,
    experiment_named,
    n_reproduced_of,
    number_in,
)

HELD = Claim(statement="a is below b", source="fig:one", held=True, found="1 and 2")
FAILED = Claim(statement="b is below c", source="fig:two", held=False, found="2 and 1")


def outcome(**changed):
    values = {
        "experiment": "an-experiment",
        "scale": "small",
        "rows": ({"x": 1, "y": None}, {"x": 2.5, "y": "a, b"}),
        "claims": (HELD, FAILED),
    }
    return Outcome(**(values | changed))


def test_claims_about_our_own_mechanisms_are_counted_apart():
    """What the paper does not say cannot count for or against it."""
    found = outcome(claims=(HELD,), our_claims=(HELD, FAILED, FAILED))
    text = "an-experiment: 1 of 1 claims of the paper reproduced; 1 of 3 about our own mechanisms"
    assert found.verdict == text
    document = found.to_json()
    assert len(document["claims"]) == 1
    assert [claim["held"] for claim in document["our_claims"]] == [True, False, False]


def test_what_numbers_leave_open_does_not_count_as_reproduced():
    unclear = [attrs.evolve(HELD, unclear=word) for word in ("not decided", "equal")]
    verdicts = [claim.verdict for claim in (HELD, FAILED, *unclear)]
    assert verdicts == ["reproduced", "not reproduced", "not decided", "equal"]
    assert n_reproduced_of((HELD, FAILED, *unclear)) == "1 of 4"
    assert str(FAILED).startswith("NOT REPRODUCED: b is below c (fig:two)")
    assert str(unclear[0]).startswith("not decided: a is below b")


def test_cells_as_numbers():
    row = {"x": 1, "y": None, "z": "2.5"}
    assert [number_in(row, name) for name in "xz"] == [1.0, 2.5]
    assert math.isnan(number_in(row, "y"))


def test_rows_come_back_from_csv_and_json():
    assert outcome().to_json()["rows"] == [{"x": 1, "y": None}, {"x": 2.5, "y": "a, b"}]
    assert list(csv.DictReader(io.StringIO(outcome().to_csv()))) == [
        {"x": "1", "y": ""},
        {"x": "2.5", "y": "a, b"},
    ]


def test_experiments_are_found_by_name():
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names) == 13
    assert [experiment_named(name) for name in names] == list(EXPERIMENTS)
    with pytest.raises(ArgumentError, match="no experiment 'fig-1'; choose one of sliced-div"):
        experiment_named("fig-1")


def test_listing_loads_no_extra(repository):
    code = "import sys, reproduction.__main__; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=repository)
    heavy = {"torch", "sklearn", "matplotlib", "dp_accounting", "pandas"}
    assert not heavy.intersection(done.stdout.split())
