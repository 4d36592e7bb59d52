# SPDX-License-Identifier: Apache-2.0
"""A small table with a scenario, and commands that are run beside them."""

import json
import shlex
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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


def write_parts(folder, n_files, n_rows):
    """Parquet files of two groups, `g`, with numbers `x` and `y`; returns the last of them."""
    rng = np.random.default_rng(3)
    (folder / "parts").mkdir()
    for index in range(n_files):
        g = rng.integers(0, 2, n_rows)
        x, y = rng.normal(0.3 * g, 1.0), rng.exponential(1.0, n_rows)
        table = pa.table({"g": np.array(["a", "b"])[g], "x": x, "y": y})
        pq.write_table(table, folder / "parts" / f"{index}.parquet")
    return table


@pytest.fixture
def ask(capsys):
    """Run a line of the command line."""

    def asked(*parts):
        code = run(shlex.split(" ".join(parts)))
        return Answer(code, *capsys.readouterr())

    return asked
