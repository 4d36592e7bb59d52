# SPDX-License-Identifier: Apache-2.0
"""A small table with a scenario, and commands that are run beside them."""

import json
import shlex
from typing import NamedTuple

import numpy as np
import pytest
from tests import scenario_files
from tests.scenario_files import toml_text

from pufferslice.cli.app import run

_DOCUMENT = {
    name: scenario_files.SCENARIO[name] for name in ("data", "secret", "query", "prior")
} | {
    "profile": {"n_directions": 40, "seed": 7},
    "guarantee": {"notion": "joint", "order": 4, "epsilon": 1.0},
}
_ROWS = {
    "distribution": "records",
    "columns": ["pay", "age"],
    "range": {"low": [0, 0], "high": [100, 100]},
    "scales": [10, 10],
}
SCENARIO = toml_text(_DOCUMENT)
RECORDS = toml_text(_DOCUMENT | {"query": _ROWS})


class Answer(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    lines = ["site,pay,age"]
    for i in range(120):
        pay, age = 30 + 5 * (i % 3) + rng.normal(), 40 + 10 * rng.normal()
        lines.append(f"{'abc'[i % 3]},{pay:.6f},{age:.6f}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(capsys):
    """Run a line of the command line."""

    def asked(*parts):
        code = run(shlex.split(" ".join(parts)))
        return Answer(code, *capsys.readouterr())

    return asked
