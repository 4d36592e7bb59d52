# SPDX-License-Identifier: Apache-2.0
"""What commands refuse: the exit code and the argument, on standard error alone.

`audit`, `calibrate` from samples, `report` and `train` are refused beside the files that they read.
"""

from pathlib import Path

import pytest
from tests.cli.conftest import RECORDS
from tests.cli.test_account import RARE, TAIL, line
from tests.scenario_files import GAUSSIAN, toml_text

from pufferslice.cli.app import run

RARE_AND_CUT = RARE | TAIL
SET = "calibrate records.toml --json --out d.json --set "
RELEASE = "release {}.toml --certificate c.json --ledger l --out r.json"
ACCOUNT = [
    (RARE_AND_CUT | {"delta": None}, 2, "--order or --delta"),
    ({"delta": "1e-5"}, 2, "--order or --delta"),
    (RARE_AND_CUT | {"delta": "1e-8"}, 2, "1.96e-07"),
    (RARE_AND_CUT | {"failure_probability": "0.1"}, 2, "failure_probability"),
    ({"tail_probability": "1e-6"}, 2, "tail_probability"),
    ({"batch_size": "50001"}, 2, "--n-records"),
    ({"batch_size": "nan"}, 2, "--batch-size"),
    ({"sampling": "without-replacement", "batch_size": "50001"}, 2, "batch_size"),
    ({"sampling": "without-replacement", "batch_size": "1.5"}, 2, "integer"),
    ({"sampling": "with-replacement", "batch_size": "nan"}, 2, "integer"),
    ({"sampling": "shuffled"}, 2, "sampling"),
    ({"n_records": "0"}, 2, "n_records"),
    ({"exactly": "50001"}, 2, "50001"),
    ({"exactly": "-1"}, 2, "at least 0"),
    ({"exactly": None, "mismatch_probability": "nan"}, 2, "probability"),
    ({"exactly": None}, 2, "--exactly, --at-most"),
    ({"at_most": "3"}, 2, "2 of the three"),
    ({"epsilon": None, "noise_multiplier": "nan"}, 2, "noise_multiplier"),
    ({"epsilon": None, "noise_multiplier": "1e-200"}, 2, "noise_multiplier"),
    ({"order": "1"}, 2, "order"),
    ({"epsilon": "inf"}, 2, "epsilon"),
    ({"n_steps": "0"}, 2, "n_steps"),
    ({"n_steps": "1000000000000"}, 2, "n_steps"),
    ({"noise_multiplier": "5"}, 2, "--noise-multiplier"),
    ({"epsilon": None}, 2, "--epsilon"),
    ({"epsilon": None, "order": None}, 2, "--noise-multiplier"),
    ({"epsilon": None, "noise_multiplier": "5", "delta": "1e-5"}, 2, "--order and --delta"),
    ({"guess": "0.7"}, 2, "--guess"),
    ({"delta": "2"}, 2, "delta"),
    ({"n_parameters": "0"}, 2, "n_parameters"),
    ({"n_steps": "many"}, 2, "--n-steps"),
    ({"order": None}, 2, "--order"),
    ({"epsilon": "1e-320"}, 1, "cost"),
    ({"epsilon": "1e300"}, 1, "cost"),
    ({"order": "1e308"}, 1, "cost"),
    ({"exactly": "0"}, 1, "nothing"),
]
SCENARIO = [
    (SET + "guarantee.order=1", 2, "order"),
    (SET + "guarantee.epsilonn=2", 2, "did you mean 'epsilon'"),
    (SET + "secret.column=sites", 2, "Did you mean 'site'"),
    (SET + "query.distribution=groups", 2, "query"),
    (SET + "data.path=absent.csv", 2, "absent.csv"),
    (SET + "data.path=people.txt", 2, "people.txt"),
    (SET + "epsilon=2", 2, "section.key=value"),
    (SET + "calibration={rule='closed-form',envelope='transport'}", 2, "worst-gap"),
    ("calibrate", 2, "scenario.toml"),
    ("calibrate .", 2, "folder"),
    ("calibrate parts.toml --sweep", 2, "--sweep"),
    ("calibrate people.csv", 2, "[data]"),
    ("calibrate --colour blue", 2, "--colour"),
    ("calibrate records.toml --data people.csv", 2, "--data"),
    ("calibrate records.toml --out nowhere/d.json", 2, "nowhere"),
    ("calibrate records.toml --out people.csv/d.json", 1, "people.csv"),
    ("fly", 2, "fly"),
    ("verify --version", 2, "--version"),
    ("init . --template census", 2, "template"),
    ("compare records.toml --q 0.5", 2, "q must"),
    ("compare records.toml --regularisation 0", 2, "regularisation"),
    ("compare records.toml --tolerance -1", 2, "tolerance"),
    ("compare records.toml --group-sensitivity 0", 2, "group_sensitivity"),
    ("compare records.toml --largest-table 0", 2, "largest_table"),
    ("compare records.toml --out people.csv", 1, "people.csv"),
    (RELEASE.format("records") + " --row 500", 2, "--row"),
    (RELEASE.format("records"), 2, "--group"),
    (RELEASE.format("records") + " --row 3 --group a", 2, "--group"),
    (RELEASE.format("records") + " --group z", 2, "a, b, c"),
    (RELEASE.format("records") + " --group a", 1, "'records'"),
    (RELEASE.format("worlds") + " --group a", 2, "--rows"),
    (RELEASE.replace("{}.toml ", "") + " --group a", 2, "--again"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    rows = [f"{'abc'[i % 3]},{30 + 5 * (i % 3) + i % 7},{40 + i % 5}" for i in range(60)]
    (folder / "people.csv").write_text("\n".join(["site,pay,age", *rows]) + "\n")
    (folder / "records.toml").write_text(RECORDS)
    (folder / "parts.toml").write_text("[parts]")
    (folder / "worlds.toml").write_text(toml_text(GAUSSIAN))
    certificate = str(folder / "c.json")
    assert run(["calibrate", str(folder / "records.toml"), "--out", certificate]) == 0
    return folder


@pytest.mark.parametrize(
    ("argv", "code", "word"),
    [
        *((line(**{"epsilon": "1"} | changes) + " --json", *rest) for changes, *rest in ACCOUNT),
        *SCENARIO,
    ],
)
def test_refused(made, capsys, monkeypatch, argv, code, word):
    monkeypatch.chdir(made)
    before = sorted(Path().rglob("*"))
    assert run(argv.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert word in err
    assert "Traceback" not in err
    assert sorted(Path().rglob("*")) == before


def test_two_files_that_could_be_meant(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("scenario", "budget"):
        Path(f"{name}.toml").touch()
    assert run(["calibrate"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "budget.toml" in err
