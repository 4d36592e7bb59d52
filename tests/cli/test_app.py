# SPDX-License-Identifier: Apache-2.0
"""The command line as scripts use it: real processes where the exit code matters most."""

import copy
import errno
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import RECORDS
from tests.json_edits import statement_of
from typer.main import get_command

from pufferslice import __version__
from pufferslice.certificate import Certificate
from pufferslice.cli.app import app, run

CALIBRATE = "calibrate records.toml --json"
CERTIFY = "calibrate scenario.toml --out c.json"
RELEASE = "release scenario.toml --certificate c.json --ledger l.ledger"


@pytest.fixture(autouse=True)
def records(folder):
    """A scenario of single rows beside that of groups."""
    (folder / "records.toml").write_text("""
[data]
path = "people.csv"
[secret]
column = "site"
[query]
distribution = "records"
columns = ["pay", "age"]
[profile]
n_directions = 50
seed = 7
[guarantee]
notion = "joint"
order = 4
epsilon = 1
""")


def test_calibrate_prints_one_json_object(folder, ask):
    answer = ask(CALIBRATE).json
    assert (answer["epsilon"], answer["order"], answer["notion"]) == (1.0, 4.0, "joint")
    assert (answer["dim"], answer["n_directions"], answer["failure_probability"]) == (2, 50, 0)
    assert 0 < answer["spent"] <= 1 < answer["unsliced_epsilon"]
    assert ask(CALIBRATE).json["noise_std"] == answer["noise_std"]
    line = ask(CALIBRATE, """--set 'query.columns=["pay"]'""").json
    assert (line["dim"], line["n_directions"]) == (1, 1)
    assert line["unsliced_epsilon"] == pytest.approx(line["spent"], rel=1e-9)


def test_choices_order_the_noise(folder, ask):
    changes = [
        "--set guarantee.notion=average",
        "",
        "--set calibration.envelope=worst-gap",
        "--set calibration.rule=closed-form",
    ]
    stds = [ask(CALIBRATE, change).json["noise_std"] for change in changes]
    assert stds == sorted(set(stds))
    assert ask(CALIBRATE, "--set guarantee.notion=unsliced").json["noise_std"] > stds[1]


def test_point_masses_by_hand(folder, ask):
    """Two groups, one column: the noise is order * gap^2 / (2 epsilon)."""
    (folder / "two.csv").write_text("g,x\na,1\na,3\nb,5\nb,7\n")
    query = """'query={distribution="groups", mean=["x"]}'"""
    claim = "--set guarantee.notion=average --set guarantee.epsilon=2"
    answer = ask(CALIBRATE, f"--set data.path=two.csv --set secret.column=g --set {query}", claim)
    assert answer.json["noise_std"] ** 2 == pytest.approx(4 * 4.0**2 / (2 * 2), rel=1e-9)


def test_from_a_file_to_a_release(folder, ask):
    noise = ask(CERTIFY, "--json").json
    assert ask("verify c.json --json").json["holds"] is True
    released = ask(RELEASE, "--out r.json --group b --json").json
    assert released["values"][0]["name"] == "mean(pay)"
    stds = [row["noise_std"] for row in released["values"]]
    assert stds == pytest.approx([noise["noise_std"] * s for s in (10, 10, 0.1)])
    assert json.loads((folder / "r.json").read_text()) == released
    second = ask(RELEASE, "--out r2.json --group b")
    assert (second.code, (folder / "r2.json").exists()) == (1, False)
    assert "one release and has had it" in second.err
    without = RELEASE.replace("scenario.toml ", "")
    assert ask(without, "--out r3.json --group b").code == 2
    assert ask(without, "--out r3.json --again --json").json == released


def test_release_of_given_rows_and_of_one_row(folder, ask):
    (folder / "scenario.toml").write_text(RECORDS)
    (folder / "one.csv").write_text("site,pay,age\na,1.5,2.5\n")
    assert ask(CERTIFY).code == 0
    assert len(ask(RELEASE, "--out r.json --row 3 --json").json["values"]) == 2
    assert ask("calibrate scenario.toml --out d.json").code == 0
    other = ask(RELEASE.replace("c.json", "d.json"), "--out s.json --rows one.csv")
    assert (other.code, "do not fit distribution 'records'" in other.err) == (1, True)


def test_a_second_certificate_of_the_same_secret_is_refused(folder, ask):
    for name in ("c", "d"):
        assert ask(f"calibrate scenario.toml --out {name}.json --ledger l.ledger").code == 0
    assert ask(RELEASE, "--group a --out r.json").code == 0
    assert "same secret" in ask(RELEASE.replace("c.json", "d.json"), "--group a --out s").err
    early = ask("calibrate scenario.toml --out e.json --ledger l.ledger")
    assert (early.code, (folder / "e.json").exists()) == (1, False)
    assert "same secret" in early.err


def test_spent_goes_back(folder, ask):
    assert ask(CERTIFY).code == 0
    same = ask("spent c.json --json").json
    assert same["epsilon"] == pytest.approx(1.0, rel=1e-9)
    half = same["noise_std"] / 2
    assert ask("spent c.json --order 8 --json").json["epsilon"] > same["epsilon"]
    assert ask(f"spent c.json --noise-std {half} --json").json["epsilon"] > 2 * same["epsilon"]
    assert ask("spent c.json --notion average --json").json["epsilon"] < same["epsilon"]
    other = ask("spent c.json --scenario scenario.toml --json").json
    assert other["epsilon"] == pytest.approx(same["epsilon"])
    assert "guesses right at most" in ask("spent c.json").out


@pytest.mark.parametrize("claim", ["", "notion='guess' at_most=0.6", "epsilon=1 delta=1e-5"])
def test_a_noise_reads_in_three_ways(folder, ask, claim):
    """Whatever was claimed, an order, a delta and guesses are read off the same noise."""
    text = (folder / "scenario.toml").read_text().split("[profile]")[0]
    keys = claim or "order=4 epsilon=1"
    notion = "" if "notion" in keys else "notion = 'unsliced'\n"
    (folder / "scenario.toml").write_text(
        f"{text}[guarantee]\n{notion}" + "\n".join(keys.split()) + "\n"
    )
    assert ask(CERTIFY).code == 0
    read = ask("spent c.json --order 3 --delta 1e-4 --delta 1e-6 --json").json["unsliced"]
    assert (read["order"], 0.5 < read["guess"] < 1) == (3, True)
    tight, loose = read["epsilon_delta"]
    assert (tight["delta"], loose["delta"]) == (1e-4, 1e-6)
    assert 0 < tight["epsilon"] < loose["epsilon"]
    std = 9 * ask("spent c.json --json").json["noise_std"]
    more = ask(f"spent c.json --order 3 --noise-std {std} --json").json["unsliced"]
    assert (more["epsilon"] < read["epsilon"], more["guess"] < read["guess"]) == (True, True)
    assert "Unsliced: (" in ask("spent c.json").out
    assert ask("spent c.json --delta 2").code == 2
    assert ask("verify c.json --scenario scenario.toml --json").json["holds"] is True
    assert ask(RELEASE, "--out r.json --group b").code == 0


def test_verify_rigorously(folder, ask):
    pytest.importorskip("flint", reason="python-flint is not installed")
    ask(CERTIFY)
    proof = ask("verify c.json --rigorous --json").json["proof"]
    assert proof["outcome"] == "proved"
    assert [finding["outcome"] for finding in proof["findings"]] == ["proved"] * 3
    assert "PROVED in ball arithmetic" in ask("verify c.json --rigorous").out
    held = Certificate.load(folder / "c.json")
    statement = copy.deepcopy(held.statement.to_json())
    statement["unsliced"]["epsilon"] *= 1 - 1e-10
    Certificate(statement=statement_of(statement), evidence=held.evidence).save(
        folder / "lower.json"
    )
    assert ask("verify lower.json").code == 0
    refuted = ask("verify lower.json --rigorous")
    assert (refuted.code, "REFUTED in ball arithmetic" in refuted.out) == (1, True)
    statement["spent"] /= 2
    Certificate(statement=statement_of(statement), evidence=held.evidence).save(
        folder / "wrong.json"
    )
    assert json.loads(ask("verify wrong.json --rigorous --json").out)["proof"] is None


def test_a_pair_of_keys_is_written_whole_or_not_at_all(folder, ask, monkeypatch):
    link = Path.hardlink_to

    def full(self, target):
        if self.name == "public.pem":
            raise OSError(errno.ENOSPC, "No space left on device")
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", full)
    assert ask("keygen keys").code == 1
    assert list((folder / "keys").iterdir()) == []


def test_sign_and_verify(folder, ask):
    """With a key, with another one, from the data, without evidence, and after an edit."""
    assert ask(CERTIFY).code == 0
    assert ask("verify c.json --key keys/public.pem").code == 2
    assert ask("keygen keys").code == 0
    assert (folder / "keys" / "private.pem").stat().st_mode & 0o077 == 0
    assert [ask("keygen keys").code, ask("keygen others").code] == [1, 0]
    assert ask("verify c.json --key keys/public.pem").code == 1
    assert ask("sign c.json --key keys/private.pem").code == 0
    assert ask("verify c.json --key keys/public.pem --json").json["signed"] is True
    assert ask("verify c.json --key others/public.pem").code == 1
    assert ask("verify c.json --scenario scenario.toml").code == 0
    (folder / "c.evidence.npz").unlink()
    bare = ask("verify c.json")
    assert (bare.code, "statement only" in bare.out) == (1, True)
    text = (folder / "c.json").read_text()
    (folder / "c.json").write_text(text.replace('"epsilon": 1.0', '"epsilon": 2.0', 1))
    edited = ask("verify c.json")
    assert (edited.code, "edited" in edited.err) == (1, True)


def test_the_scenario_of_this_folder_needs_no_name(folder, ask):
    named, found = ask("calibrate scenario.toml --json"), ask("calibrate --json")
    assert (found.code, found.err) == (0, "Reading scenario.toml\n")
    assert json.loads(found.out)["noise_std"] == named.json["noise_std"]
    (folder / "scenario.toml").unlink()
    absent = ask("calibrate")
    assert (absent.code, absent.out) == (2, "")
    command = absent.err.split("`")[1].removeprefix("pufferslice ")
    assert ask(command).code == ask("calibrate").code == 0


def test_missing_values_are_counted(folder, ask):
    text = (folder / "people.csv").read_text().splitlines()
    text[5] = "a,?,40"
    (folder / "people.csv").write_text("\n".join(text) + "\n")
    assert ask(CALIBRATE).code == 2
    null = """--set 'data.null_values=["?"]'"""
    assert "1 of 120 rows" in ask(CALIBRATE, null).err
    dropped = ask(CALIBRATE, null, "--set data.missing=drop-rows").json
    assert dropped["rows_dropped"] == 1


def test_init_writes_a_scenario_that_runs_and_never_overwrites(folder, ask):
    assert ask("init fresh").code == 0
    again = ask("init fresh")
    assert (again.code, "exists" in again.err) == (1, True)
    assert ask("calibrate fresh/scenario.toml --json").json["dim"] == 4
    assert ask("init scenario.toml/x").code == 1


def test_help_and_json_in_a_real_process(folder):
    def process(line):
        command = [Path(sys.executable).with_name("pufferslice"), *shlex.split(line)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    commands = process("--help").stdout
    for command in ("init", "demo", "calibrate", "spent", "release", "verify"):
        assert command in commands
    done = process(CALIBRATE)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["n_directions"]) == (0, "", 50)
    refused = process(f"{CALIBRATE} --set guarantee.order=1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr


class TestInterrupted:
    """Ctrl-C at any moment is silent but for what a command has to say of its files."""

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

    @pytest.mark.parametrize(
        ("name", "ignored", "code"),
        [
            ("typer", False, -signal.SIGINT),
            ("numpy", False, 130),
            ("pufferslice.certificate", False, 130),
            ("numpy", True, 2),
        ],
    )
    def test_while_modules_are_loaded(self, folder, name, ignored, code):
        """In the background of a shell nothing is interrupted."""
        program = self.PROGRAM.format(name=name, ignored=ignored)
        command = [sys.executable, "-c", program, "verify", "absent.json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ") if ignored else done.stderr == ""

    def test_where_the_interrupt_is_lost(self, folder):
        """A module in C that is being loaded may raise another error instead."""
        program = """
import os, signal
from pufferslice.cli import app, main
def run():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass
    raise SystemError("returned a result with an exception set")
app.run = run
main()
"""
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

    @pytest.mark.parametrize(
        ("error", "cause", "code"),
        [(KeyboardInterrupt, None, 130), (RuntimeError, KeyboardInterrupt(), 130),
         (RuntimeError, None, None)],
    )  # fmt: skip
    def test_before_the_command(self, monkeypatch, capsys, error, cause, code):
        def broken(**_):
            raise error from cause

        monkeypatch.setattr("pufferslice.cli.app.app", broken)
        if code is None:
            with pytest.raises(RuntimeError):
                run(["--help"])
        else:
            assert run(["--help"]) == code
        assert capsys.readouterr() == ("", "")


def test_every_command_can_print_json():
    def commands(group):
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    flags = {c.name: {f for p in c.params for f in p.opts} for c in commands(get_command(app))}
    assert len(flags) > 15
    assert [name for name, found in flags.items() if "--json" not in found] == []


def test_a_ledger_is_copied_and_a_release_looked_up(folder, ask):
    ask(CERTIFY)
    ask(RELEASE, "--group a --out r.json")
    copied = ask("ledger copy l.ledger m.ledger --json").json
    assert copied == {"source": "l.ledger", "target": "m.ledger", "releases": 1}
    unknown = ask("ledger show m.ledger zz")
    assert (unknown.code, "ledger list" in unknown.err) == (2, True)


def test_the_version(ask):
    assert ask("--version") == (0, f"pufferslice {__version__}\n", "")
    assert ask("verify --version").code == 2
