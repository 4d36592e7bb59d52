# SPDX-License-Identifier: Apache-2.0
"""The command line as scripts use it: real processes where the exit code matters most."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pufferslice import __version__
from pufferslice.cli.app import run

SCENARIO = """
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "groups"
mean = ["pay", "age"]
rate = [{ column = "age", above = 40 }]
range = { low = [0, 0, 0], high = [100, 100, 1] }
scales = [10, 10, 0.1]
[prior]
source = "released-data"
kind = "empirical"
[profile]
n_directions = 40
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1.0
"""

FLAGS = shlex.split(
    "calibrate --data people.csv --secret site --columns pay,age --distribution records --notion "
    "joint --order 4 --epsilon 1 --directions 50 --seed 7 --json"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(5)
    lines = ["site,pay,age"]
    for i in range(120):
        site = "abc"[i % 3]
        lines.append(f"{site},{30 + 5 * (i % 3) + rng.normal():.6f},{40 + 10 * rng.normal():.6f}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(arguments) == 0
    return json.loads(capsys.readouterr().out)


def with_flags(**changes: str) -> list[str]:
    flags = list(FLAGS)
    for name, value in changes.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in flags:
            flags[flags.index(flag) + 1] = value
        else:
            flags += [flag, value]
    return flags


def test_calibrate_prints_one_json_object(folder, capsys):
    found = answer(capsys, *FLAGS)
    assert {
        "noise_std", "epsilon", "order", "notion", "unsliced_epsilon", "failure_probability",
        "dim", "n_directions",
    } <= set(found)  # fmt: skip
    assert (found["epsilon"], found["order"], found["notion"]) == (1.0, 4.0, "joint")
    assert (found["dim"], found["n_directions"]) == (2, 50)
    assert found["failure_probability"] == 0
    assert 0 < found["spent_epsilon"] <= 1
    assert found["unsliced_epsilon"] > found["spent_epsilon"]


def test_same_flags_same_noise(folder, capsys):
    assert answer(capsys, *FLAGS)["noise_std"] == answer(capsys, *FLAGS)["noise_std"]


def test_choices_order_the_noise(folder, capsys):
    tight = answer(capsys, *FLAGS)["noise_std"]
    worst_gap = answer(capsys, *with_flags(envelope="worst-gap"))["noise_std"]
    closed = answer(capsys, *with_flags(rule="closed-form"))["noise_std"]
    average = answer(capsys, *with_flags(notion="average"))["noise_std"]
    unsliced = answer(capsys, *with_flags(notion="unsliced"))["noise_std"]
    assert average < tight < worst_gap < closed
    assert tight < unsliced


def test_one_column_is_one_slice(folder, capsys):
    found = answer(capsys, *with_flags(columns="pay"))
    assert (found["dim"], found["n_directions"]) == (1, 1)
    assert found["unsliced_epsilon"] == pytest.approx(found["spent_epsilon"], rel=1e-9)


def test_point_masses_by_hand(folder, capsys):
    """Two groups, one column: the noise is order * gap^2 / (2 epsilon)."""
    (folder / "two.csv").write_text("g,x\na,1\na,3\nb,5\nb,7\n")
    flags = shlex.split(
        "calibrate --data two.csv --secret g --mean x --distribution groups --notion average "
        "--order 4 --epsilon 2 --directions 1 --seed 0 --json"
    )
    found = answer(capsys, *flags)
    assert found["noise_std"] ** 2 == pytest.approx(4 * 4.0**2 / (2 * 2), rel=1e-9)


def test_file_road_from_calibrate_to_release(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json", "--json"]) == 0
    noise = json.loads(capsys.readouterr().out)
    assert (folder / "c.evidence.npz").exists()
    verdict = answer(capsys, "verify", "c.json", "--json")
    assert verdict["holds"] is True
    release = ["release", "scenario.toml", "--certificate", "c.json", "--ledger", "l.ledger"]
    released = answer(capsys, *release, "--out", "r.json", "--group", "b", "--json")
    assert released["values"][0]["name"] == "mean(pay)"
    stds = [row["noise_std"] for row in released["values"]]
    assert stds == pytest.approx([noise["noise_std"] * s for s in (10, 10, 0.1)])
    assert json.loads((folder / "r.json").read_text()) == released
    assert run([*release, "--out", "r2.json", "--group", "b"]) == 1
    assert "one release and has had it" in capsys.readouterr().err
    assert not (folder / "r2.json").exists()
    release.remove("scenario.toml")
    assert run([*release, "--out", "r3.json", "--group", "b"]) == 2
    capsys.readouterr()
    again = answer(capsys, *release, "--out", "r3.json", "--again", "--json")
    assert again == released


def test_release_of_given_rows_and_of_one_row(folder, capsys):
    text = SCENARIO.replace('distribution = "groups"', 'distribution = "records"').replace(
        'mean = ["pay", "age"]', 'columns = ["pay", "age"]'
    )
    text = text.replace('rate = [{ column = "age", above = 40 }]', "")
    text = text.replace("low = [0, 0, 0], high = [100, 100, 1]", "low = [0, 0], high = [100, 100]")
    (folder / "rows.toml").write_text(text.replace("scales = [10, 10, 0.1]", "scales = [10, 10]"))
    assert run(["calibrate", "rows.toml", "--out", "c.json"]) == 0
    release = ["release", "rows.toml", "--certificate", "c.json", "--ledger", "l.ledger"]
    assert run([*release, "--out", "r.json", "--row", "500"]) == 2
    assert run([*release, "--out", "r.json"]) == 2
    assert run([*release, "--out", "r.json", "--row", "3", "--group", "a"]) == 2
    assert run([*release, "--out", "r.json", "--group", "a"]) == 1
    capsys.readouterr()
    found = answer(capsys, *release, "--out", "r.json", "--row", "3", "--json")
    assert len(found["values"]) == 2
    (folder / "one.csv").write_text("site,pay,age\na,1.5,2.5\n")
    assert run(["calibrate", "rows.toml", "--out", "d.json", "--ledger", "l.ledger"]) == 0
    other = ["release", "rows.toml", "--certificate", "d.json", "--ledger", "l.ledger"]
    assert run([*other, "--out", "s.json", "--rows", "one.csv"]) == 1
    assert "do not fit distribution 'records'" in capsys.readouterr().err


def test_second_certificate_must_name_the_first_release(folder, capsys):
    for name in ("c.json", "d.json"):
        assert run(["calibrate", "scenario.toml", "--out", name]) == 0
    common = ["release", "scenario.toml", "--ledger", "l.ledger", "--group", "a"]
    assert run([*common, "--certificate", "c.json", "--out", "r.json"]) == 0
    assert run([*common, "--certificate", "d.json", "--out", "s.json"]) == 1
    assert "does not mention" in capsys.readouterr().err
    assert run(["calibrate", "scenario.toml", "--out", "e.json", "--ledger", "l.ledger"]) == 0
    assert "does not cover jointly" in capsys.readouterr().out
    assert run([*common, "--certificate", "e.json", "--out", "s.json"]) == 0


def test_spent_goes_back(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json"]) == 0
    capsys.readouterr()
    same = answer(capsys, "spent", "c.json", "--json")
    assert same["epsilon"] == pytest.approx(1.0, rel=1e-9)
    more = answer(capsys, "spent", "c.json", "--order", "8", "--json")
    assert more["epsilon"] > same["epsilon"]
    half = answer(capsys, "spent", "c.json", "--noise-std", str(same["noise_std"] / 2), "--json")
    assert half["epsilon"] > 2 * same["epsilon"]
    average = answer(capsys, "spent", "c.json", "--notion", "average", "--json")
    assert average["epsilon"] < same["epsilon"]
    other = answer(capsys, "spent", "c.json", "--scenario", "scenario.toml", "--json")
    assert other["epsilon"] == pytest.approx(same["epsilon"])


def test_sign_and_verify_with_key(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json"]) == 0
    assert run(["verify", "c.json", "--key", "keys/public.pem"]) == 2
    assert run(["keygen", "keys"]) == 0
    assert (folder / "keys" / "private.pem").stat().st_mode & 0o077 == 0
    assert run(["keygen", "keys"]) == 1
    assert run(["verify", "c.json", "--key", "keys/public.pem"]) == 1
    assert run(["sign", "c.json", "--key", "keys/private.pem"]) == 0
    capsys.readouterr()
    verdict = answer(capsys, "verify", "c.json", "--key", "keys/public.pem", "--json")
    assert verdict["signed"] is True
    assert run(["keygen", "others"]) == 0
    assert run(["verify", "c.json", "--key", "others/public.pem"]) == 1


def test_verify_without_evidence_says_statement_only(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json"]) == 0
    (folder / "c.evidence.npz").unlink()
    capsys.readouterr()
    assert run(["verify", "c.json"]) == 1
    assert "statement only" in capsys.readouterr().out


def test_edited_certificate_is_refused(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json"]) == 0
    text = (folder / "c.json").read_text()
    (folder / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 0.5', 1))
    assert run(["verify", "c.json"]) == 1
    assert "edited" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": "1"}, "order must be a finite number greater than 1, got 1.0"),
        ({"order": "nan"}, "order"),
        ({"order": "inf"}, "order"),
        ({"epsilon": "0"}, "epsilon"),
        ({"epsilon": "-1"}, "epsilon"),
        ({"notion": "joined"}, "notion: must be"),
        ({"secret": "sites"}, "Did you mean 'site'"),
        ({"columns": "pay,agee"}, "Did you mean 'age'"),
        ({"columns": "pay,pay"}, "repeats"),
        ({"columns": "site"}, "must hold numbers"),
        ({"distribution": "group"}, "distribution"),
        ({"distribution": "groups"}, "--columns is for distribution 'records'"),
        ({"directions": "0"}, "n_directions"),
        ({"seed": "-1"}, "seed"),
        ({"rule": "loose"}, "rule: must be"),
        ({"rule": "closed-form", "envelope": "transport"}, "worst-gap formula"),
        ({"data": "absent.csv"}, "absent.csv"),
        ({"data": "people.txt"}, "people.txt"),
        ({"missing": "guess"}, "missing"),
        ({"scales": "1,a"}, "--scales must be numbers"),
        ({"scales": "1"}, "scales"),
        ({"low": "0,0", "high": "1"}, "high"),
        ({"source": "gossip"}, "source"),
        ({"delta": "2"}, "delta"),
        ({"quantiles": "1"}, "quantiles"),
    ],
)
def test_wrong_use_exits_2_and_says_why(folder, capsys, changes, words):
    assert run([*with_flags(**changes), "--out", "c.json"]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert not (folder / "c.json").exists()


def test_no_arguments_unknown_flag_and_both_forms(folder, capsys):
    assert run(["calibrate"]) == 2
    assert run(["calibrate", "--colour", "blue"]) == 2
    assert run(["calibrate", "scenario.toml", "--data", "people.csv"]) == 2
    assert run(["calibrate", "--data", "people.csv", "--secret", "site"]) == 2
    assert "required" in capsys.readouterr().err
    assert run(["fly"]) == 2


def test_missing_values_are_counted(folder, capsys):
    text = (folder / "people.csv").read_text().splitlines()
    text[5] = "a,?,40"
    (folder / "people.csv").write_text("\n".join(text) + "\n")
    assert run(FLAGS) == 2
    assert run([*FLAGS, "--null-value", "?"]) == 2
    assert "1 of 120 rows" in capsys.readouterr().err
    found = answer(capsys, *FLAGS, "--null-value", "?", "--missing", "drop-rows")
    assert found["rows_dropped"] == 1


def test_output_folder_that_cannot_be_written(folder, capsys):
    (folder / "file").write_text("")
    assert run(["calibrate", "scenario.toml", "--out", "file/c.json"]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert run(["calibrate", "scenario.toml", "--out", "nowhere/c.json"]) == 2


def test_init_writes_a_scenario_that_runs_and_never_overwrites(folder, capsys):
    assert run(["init", "fresh"]) == 0
    assert run(["init", "fresh"]) == 1
    assert "exists" in capsys.readouterr().err
    found = answer(capsys, "calibrate", "fresh/scenario.toml", "--json")
    assert found["dim"] == 4
    assert run(["init", "scenario.toml/x"]) == 1


def test_bootstrap_and_rates_from_flags(folder, capsys):
    common = "calibrate --data people.csv --secret site --notion joint --order 4 --epsilon 1 "
    flags = shlex.split(
        common
        + "--mean pay --std pay --distribution bootstrap --replicates 30 --directions 20 --seed 7 "
        "--rate 'age>=40' --low 0,0,0 --high 99,99,1 --delta 1e-6 --json"
    )
    found = answer(capsys, *flags)
    assert found["dim"] == 3
    assert {view["delta"] for view in found["views"]} == {1e-6}
    wrong = shlex.split(common + "--distribution groups --directions 20 --seed 7 --rate age")
    assert run(wrong) == 2
    assert "--rate must be column=value" in capsys.readouterr().err


def test_help_and_json_in_a_real_process(folder):
    script = Path(sys.executable).with_name("pufferslice")
    shown = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    for verb in ("init", "demo", "calibrate", "spent", "release", "verify"):
        assert verb in shown.stdout
    done = subprocess.run([script, *FLAGS], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["n_directions"] == 50
    assert done.stderr == ""
    refused = subprocess.run([script, *with_flags(order="1")], capture_output=True, text=True,
                             check=False)  # fmt: skip
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr


class TestInterrupted:
    """Ctrl-C at any moment is silent but for what a verb has to say of its files."""

    PROGRAM = """
import os, signal, sys
class Interrupting:
    @staticmethod
    def find_spec(name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
if {ignored}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from pufferslice.cli import main
main()
"""

    def interrupted_at(self, name: str, *, ignored: bool = False) -> subprocess.CompletedProcess:
        program = self.PROGRAM.format(name=name, ignored=ignored)
        command = [sys.executable, "-c", program, "verify", "absent.json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    @pytest.mark.parametrize(
        ("name", "code"),
        [("typer", -signal.SIGINT), ("numpy", 130), ("pufferslice.certificate", 130)],
    )
    def test_while_modules_are_loaded(self, folder, name, code):
        done = self.interrupted_at(name)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")

    def test_in_the_background_of_a_shell_nothing_is_interrupted(self, folder):
        done = self.interrupted_at("numpy", ignored=True)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_before_the_verb(self, monkeypatch, capsys, wrapped):
        def interrupted(**_):
            if wrapped:
                raise RuntimeError from KeyboardInterrupt()
            raise KeyboardInterrupt

        monkeypatch.setattr("pufferslice.cli.app.app", interrupted)
        assert run(["--help"]) == 130
        assert capsys.readouterr() == ("", "")

    def test_another_error_is_not_taken_for_an_interrupt(self, monkeypatch):
        def broken(**_):
            raise RuntimeError

        monkeypatch.setattr("pufferslice.cli.app.app", broken)
        with pytest.raises(RuntimeError):
            run(["--help"])


def test_the_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr() == (f"pufferslice {__version__}\n", "")
    assert run(["verify", "--version"]) == 2
