# SPDX-License-Identifier: Apache-2.0
"""`pufferslice compare`: the table, one JSON object, the folder, and wrong use in words."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from pufferslice.cli.app import run

SCENARIO = """
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "records"
columns = ["pay", "age"]
range = { low = [0, 0], high = [100, 100] }
scales = [10, 10]
[profile]
n_directions = 30
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""
NAMES = [
    "average, tight, transport",
    "average, tight, worst gap",
    "average, closed form",
    "joint, tight, transport",
    "joint, tight, worst gap",
    "joint, closed form",
    "unsliced, couplings",
    "general Wasserstein (GWM)",
    "distribution-aware (DAGWM)",
    "Sinkhorn-Wasserstein",
    "group privacy",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    lines = ["site,pay,age"]
    for i in range(90):
        pay, age = 30 + 5 * (i % 3) + rng.normal(), 40 + 3 * rng.normal()
        lines.append(f"{'aabbc'[i % 5]},{pay:.6f},{age:.6f}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(capsys, *arguments):
    assert run(["compare", "scenario.toml", "--json", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out, parse_constant=pytest.fail)


def test_the_table_has_a_row_per_mechanism(folder, capsys):
    assert run(["compare", "scenario.toml"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == "Noise for ε = 1 at order 4; 3 instances, 2 coordinates, scaled units."
    rows = [line for line in lines if line.startswith("  ")]
    assert [next(name for name in NAMES if name in row) for row in rows[1:]] == NAMES
    assert "Wasserstein, Laplace noise is left out: the Laplace mechanisms are for scalar" in (
        shown.out
    )
    assert not list(folder.glob("*.json"))


def test_one_json_object(folder, capsys):
    found = answer(capsys)
    assert [row["mechanism"] for row in found["rows"]] == NAMES
    assert {"order", "epsilon", "dim", "n_instances", "rows", "left_out"} == set(found)
    for row in found["rows"]:
        assert {
            "mechanism", "guarantee", "scope", "noise_std", "mean_squared_error", "seconds",
            "peak_bytes", "unsliced_epsilon", "guess", "is_ours", "noise", "note",
        } == set(row)  # fmt: skip


def test_rows_agree_with_calibrate(folder, capsys):
    rows = {row["mechanism"]: row for row in answer(capsys)["rows"]}
    assert run(["calibrate", "scenario.toml", "--json"]) == 0
    calibrated = json.loads(capsys.readouterr().out)
    assert rows["joint, tight, transport"]["noise_std"] == calibrated["noise_std"]
    unsliced = rows["joint, tight, transport"]["unsliced_epsilon"]
    assert unsliced == calibrated["unsliced_epsilon"]


def test_flags_reach_the_mechanisms(folder, capsys):
    flags = ["--q", "2", "--regularisation", "0.4", "--tolerance", "1e-3",
             "--group-sensitivity", "7"]  # fmt: skip
    plain = {row["mechanism"]: row for row in answer(capsys)["rows"]}
    told = {row["mechanism"]: row for row in answer(capsys, *flags)["rows"]}
    aware, group = "distribution-aware (DAGWM)", "group privacy"
    assert told[aware]["noise_std"] > plain[aware]["noise_std"]
    assert "q = 2" in told[aware]["note"]
    assert "regularisation 0.4, tolerance 0.001" in told["Sinkhorn-Wasserstein"]["note"]
    assert told[group]["noise_std"] == pytest.approx(7 * 2**0.5)
    assert plain[group]["noise_std"] == pytest.approx(10 * 2**0.5 * 2**0.5)
    small = answer(capsys, "--largest-table", "500")
    assert "more than the 500 that were allowed" in small["left_out"]["general Wasserstein (GWM)"]


def test_a_folder_gets_table_and_curves(folder, capsys):
    assert run(["compare", "scenario.toml", "--out", "new/out"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("\nWritten to new/out: comparison.csv, comparison.json\n")
    out = folder / "new" / "out"
    assert {path.name for path in out.iterdir()} == {"comparison.csv", "comparison.json"}
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    with (out / "comparison.csv").open(encoding="utf-8", newline="") as file:
        assert [row["mechanism"] for row in csv.DictReader(file)] == NAMES
    document = json.loads((out / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert set(document["noise_curves"]) == set(NAMES)
    assert all(len(one) == len(document["epsilons"]) for one in document["noise_curves"].values())
    found = answer(capsys, "--out", "new/out")
    assert found["written"] == ["comparison.csv", "comparison.json"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--q", "0.5"], "q must be a finite number and at least 1"),
        (["--regularisation", "0"], "regularisation must be a finite number greater than 0"),
        (["--tolerance", "-1"], "tolerance must be a finite number greater than 0"),
        (["--group-sensitivity", "0"], "group_sensitivity must be a finite number greater than 0"),
        (["--largest-table", "0"], "largest_table must be an integer and at least 1"),
    ],
)
def test_wrong_use_is_told_in_words(folder, capsys, flags, complaint):
    assert run(["compare", "scenario.toml", *flags]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "instead", "complaint"),
    [
        ("[profile]", '[profile]\nkind = "sphere"', "a kind other than the sphere"),
        ("order = 4", 'claim = "epsilon-delta"\ndelta = 1e-5', "an order and no delta"),
        ("[profile]", '[prior]\nkind = "sampled"\n[profile]', "compared on declared distributions"),
    ],
    ids=["sphere", "delta", "sampled"],
)
def test_scenarios_that_others_could_not_take_are_refused(folder, capsys, part, instead, complaint):
    (folder / "scenario.toml").write_text(SCENARIO.replace(part, instead))
    assert run(["compare", "scenario.toml"]) == 2
    assert complaint in capsys.readouterr().err


def test_an_absent_scenario_and_a_folder_that_is_a_file(folder, capsys):
    assert run(["compare", "absent.toml"]) == 2
    assert "absent.toml" in capsys.readouterr().err
    assert run(["compare", "scenario.toml", "--out", "people.csv"]) == 1
    assert "cannot make the folder 'people.csv'" in capsys.readouterr().err


def test_as_a_process(folder):
    code = "from pufferslice.cli import main; main()"
    command = [sys.executable, "-c", code, "compare", "scenario.toml", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["rows"]) == len(NAMES)
