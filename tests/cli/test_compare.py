# SPDX-License-Identifier: Apache-2.0
"""`pufferslice compare`: the table, one JSON object, the folder, and wrong use in words."""

import csv
import json

import pytest
from tests.baselines.test_comparison import OURS
from tests.cli.conftest import RECORDS

from pufferslice.baselines.comparison import BASELINES

NAMES = [*OURS, *(name for name in BASELINES if "Laplace" not in name)]
COMPARE = "compare scenario.toml"


@pytest.fixture(autouse=True)
def scenario(folder):
    (folder / "scenario.toml").write_text(RECORDS.replace("n_directions = 40", "n_directions = 30"))
    return folder / "scenario.toml"


def rows_of(answer):
    return {row["mechanism"]: row for row in answer.json["rows"]}


def test_the_table_has_a_row_per_mechanism(folder, scenario, ask):
    answer = ask(COMPARE)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "Noise for ε = 1 at order 4; 3 instances, 2 coordinates, scaled units."
    head, *rows = [line for line in lines if line.startswith("  ")]
    assert head.split()[:5] == ["mechanism", "guarantee", "scope", "noise", "MSE"]
    assert [next(name for name in NAMES if name in row) for row in rows] == NAMES
    assert "Sinkhorn-Wasserstein: regularisation 0.1" in answer.out
    assert lines[-1].startswith("Wasserstein, Laplace noise is left out: the Laplace mechanisms")
    assert not list(folder.glob("*.json"))
    text = scenario.read_text().replace("range = {low = [0, 0], high = [100, 100]}\n", "")
    scenario.write_text(text)
    few_notes = ask(COMPARE, "--largest-table 1").out
    assert "MiB\n\nunsliced, fitted shape: correlated noise, " in few_notes
    assert "root mean square.\n\ngeneral Wasserstein (GWM) is left out: " in few_notes


def test_one_json_object_that_agrees_with_calibrate(folder, ask):
    document = ask(COMPARE, "--json").json
    assert [row["mechanism"] for row in document["rows"]] == NAMES
    assert {"order", "epsilon", "dim", "n_instances", "rows", "left_out"} == set(document)
    calibrated = ask("calibrate scenario.toml --json").json
    row = document["rows"][3]
    assert {key: row[key] for key in ("noise_std", "unsliced_epsilon", "guess")} == {
        key: calibrated[key] for key in ("noise_std", "unsliced_epsilon", "guess")
    }


def test_flags_reach_the_mechanisms(folder, ask):
    plain = rows_of(ask(COMPARE, "--json"))
    flags = "--q 2 --regularisation 0.4 --tolerance 1e-3 --group-sensitivity 7"
    rows = rows_of(ask(COMPARE, "--json", flags))
    aware, group = "distribution-aware (DAGWM)", "group privacy"
    assert rows[aware]["noise_std"] > plain[aware]["noise_std"]
    assert "q = 2" in rows[aware]["note"]
    assert "regularisation 0.4, tolerance 0.001" in rows["Sinkhorn-Wasserstein"]["note"]
    assert rows[group]["noise_std"] == pytest.approx(7 * 2**0.5)
    assert plain[group]["noise_std"] == pytest.approx(10 * 2**0.5 * 2**0.5)
    small = ask(COMPARE, "--largest-table 500 --json").json["left_out"]
    assert "more than the 500 that were allowed" in small["general Wasserstein (GWM)"]


def test_a_folder_gets_table_and_curves(folder, ask):
    answer = ask(COMPARE, "--out new/out")
    assert answer.out.endswith("\n\nWritten to new/out: comparison.csv, comparison.json\n")
    out = folder / "new" / "out"
    assert {path.name for path in out.iterdir()} == {"comparison.csv", "comparison.json"}
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    with (out / "comparison.csv").open(encoding="utf-8", newline="") as file:
        assert [row["mechanism"] for row in csv.DictReader(file)] == NAMES
    document = json.loads((out / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert list(document["noise_curves"]) == NAMES
    lengths = {len(curve) for curve in document["noise_curves"].values()}
    assert lengths == {len(document["epsilons"])}
    written = ask(COMPARE, "--out new/out --json").json["written"]
    assert written == ["comparison.csv", "comparison.json"]


def test_another_claim_for_one_call(scenario, ask):
    plain = ask(COMPARE, "--json").json
    doubled = ask(COMPARE, "--set guarantee.epsilon=2 --set guarantee.order=3 --json").json
    assert (plain["order"], plain["epsilon"]) == (4, 1)
    assert (doubled["order"], doubled["epsilon"]) == (3, 2)
    claim = 'notion = "guess"\nat_most = 0.6\n'
    scenario.write_text(scenario.read_text().split("[guarantee]")[0] + f"[guarantee]\n{claim}")
    refused = ask(COMPARE)
    assert (refused.code, "claims" in refused.err) == (2, True)
    # The error ends with a flag that mends it.
    assert ask(COMPARE, refused.err.rpartition(", as ")[2]).code == 0


@pytest.mark.parametrize(
    ("part", "instead", "words"),
    [
        ("[profile]", '[profile]\nkind = "sphere"', "a kind other than the sphere"),
        ("order = 4", 'claim = "epsilon-delta"\ndelta = 1e-5', "--set 'guarantee={notion="),
        ('kind = "empirical"', 'kind = "sampled"', "compared on declared distributions"),
    ],
    ids=["sphere", "delta", "sampled"],
)
def test_scenarios_that_others_could_not_take_are_refused(scenario, ask, part, instead, words):
    scenario.write_text(scenario.read_text().replace(part, instead))
    answer = ask(COMPARE)
    assert (answer.code, words in answer.err) == (2, True), answer.err
