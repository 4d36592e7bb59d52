# SPDX-License-Identifier: Apache-2.0
"""Good files of every kind, made once, that the fuzzers damage copies of."""

import contextlib
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from soak.fuzz.commands import FUZZED
from tests.scenario_files import PEOPLE, SCENARIO, TRAINING, csv_text, toml_text

from pufferslice.cli.app import run

collect_ignore = ["atheris_readers.py"]
"""A script, and atheris is installed by `make soak` only."""


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    """A folder with data, scenarios, certificates, a release, a ledger and keys."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "people.csv").write_text(csv_text())
    columns = dict(zip(["site", "pay", "age"], zip(*PEOPLE, strict=True), strict=True))
    pq.write_table(pa.table({k: list(v) for k, v in columns.items()}), folder / "people.parquet")
    rng = np.random.default_rng(3)
    many = {"site": ["a", "b"] * 300, "pay": rng.normal(35, 3, 600), "age": rng.normal(45, 5, 600)}
    pq.write_table(pa.table(many), folder / "many.parquet")
    (folder / "training.toml").write_text(toml_text(TRAINING))
    for name, document in FUZZED.items():
        (folder / f"{name}.toml").write_text(toml_text(document))
    (folder / "scenario.toml").write_text(toml_text(SCENARIO))
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for name in FUZZED:
            assert run(["calibrate", f"{name}.toml", "--out", f"{name}.json"]) == 0, name
        assert run(["keygen", "keys"]) == 0
        release = ["release", "scenario.toml", "--certificate", "groups.json"]
        assert run([*release, "--ledger", "ledger", "--out", "release.json", "--group", "a"]) == 0
    os.sync()
    return folder
