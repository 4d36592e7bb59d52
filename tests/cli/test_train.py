# SPDX-License-Identifier: Apache-2.0
"""`pufferslice train`: real processes where exit codes, signals and terminals matter."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pufferslice.cli.app import run
from pufferslice.config.training import toml_of

PROGRAM = [sys.executable, "-c", "from pufferslice.cli import main; main()"]


def document(**changes):
    sections = {
        "data": {"dataset": "digits", "n_records": 60},
        "secret": {"exactly": 2},
        "sampling": {"kind": "poisson", "rate": 0.5},
        "training": {
            "model": "linear", "seed": 0, "learning_rate": 0.5, "n_steps": 3, "clip_norm": 1.0,
        },
        "guarantee": {"accountant": "amplified", "order": 8, "epsilon": 8.0},
        "output": {"folder": "run", "public_evaluation": True},
    }  # fmt: skip
    for name, value in changes.items():
        section, _, key = name.partition("__")
        sections[section][key] = value
    return sections


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "training.toml").write_text(toml_of(document()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_json_object(folder, capsys):
    assert run(["train", "training.toml", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert set(found) == {"folder", "n_steps", "guarantee", "metrics", "certificate"}
    assert (found["folder"], found["n_steps"]) == ("run", 3)
    assert found["guarantee"]["epsilon"] <= 8
    assert set(found["metrics"]) == {"held_out_loss", "held_out_accuracy"}
    assert shown.err == ""
    assert run(["verify", "run/certificate.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True


def test_prose_says_what_may_leave(folder, capsys):
    assert run(["train", "training.toml", "--out", "elsewhere"]) == 0
    shown = capsys.readouterr()
    assert "Claim: (8, 8)-RPP" in shown.out
    assert "Accuracy on the held-out records, declared public:" in shown.out
    assert "To publish, in elsewhere: model.pt, certificate.json, public.jsonl." in shown.out
    assert "Not covered by the guarantee: internal.jsonl, checkpoint.pt" in shown.out
    assert not (folder / "run").exists()
    assert shown.err.startswith("Signal to noise: at most ")


def test_private_metrics_are_not_shown(folder, capsys):
    (folder / "t.toml").write_text(toml_of(document(output__public_evaluation=False)))
    assert run(["train", "t.toml"]) == 0
    assert "Accuracy" not in capsys.readouterr().out
    assert run(["train", "t.toml", "--out", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == {}


def test_a_finished_folder_is_refused(folder, capsys):
    assert run(["train", "training.toml"]) == 0
    assert run(["train", "training.toml"]) == 1
    assert "holds a finished run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "match"),
    [
        ("[data", 2, "is not a training plan or file"),
        (toml_of(document(training__model="vgg")), 2, "[training] model must be one of linear"),
        (toml_of(document(guarantee__order=1)), 2, "[guarantee] order must be"),
        (
            toml_of(document(data__dataset="reproduction.data:cifar10")),
            2,
            "set PUFFERSLICE_DATA to a folder with",
        ),
        (toml_of(document(data__dataset="no_such:data")), 2, "there is no module 'no_such'"),
    ],
)
def test_wrong_use_in_one_sentence(folder, capsys, monkeypatch, text, code, match):
    monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
    (folder / "t.toml").write_text(text)
    assert run(["train", "t.toml"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert match in shown.err
    assert not (folder / "run").exists()
    assert run(["train", "absent.toml"]) == 2


def test_ctrl_c_in_a_real_process(folder):
    (folder / "long.toml").write_text(
        toml_of(document(training__n_steps=5_000, output__evaluate_every=5_000))
    )
    process = subprocess.Popen(
        [*PROGRAM, "train", "long.toml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = folder / "run" / "internal.jsonl"
    until = time.monotonic() + 100
    while time.monotonic() < until and not (log.exists() and log.read_text().count("\n") > 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert out == ""
    assert "\nstopped after step " in err
    assert "The same command resumes" in err
    assert "Traceback" not in err
    assert (folder / "run" / "checkpoint.pt").exists()
    assert (folder / "run" / "run.key").exists()


def test_a_bar_on_a_terminal_with_loss_time_and_budget(folder):
    (folder / "t.toml").write_text(toml_of(document(training__n_steps=40)))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "train", "t.toml", "--json"],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
        text=True,
    )
    os.close(follower)
    shown = b""
    # Linux says EIO when the other end is closed.
    with contextlib.suppress(OSError):
        while part := os.read(leader, 4_096):
            shown += part
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert json.loads(out)["n_steps"] == 40
    shown = shown.decode()
    for word in ("training", "loss ", "ms/step", "epsilon ", " of 8"):
        assert word in shown


def test_help_does_not_load_torch():
    code = (
        "import sys\nfrom pufferslice.cli.app import run\nassert run(['--help']) == 0\n"
        "assert run(['train', '--help']) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "train" in done.stdout


def test_without_torch_the_extra_is_named(folder):
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from pufferslice.cli.app import run\nraise SystemExit(run(['train', 'training.toml']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'pufferslice[torch]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_init_writes_a_training_file_that_is_read(folder, capsys):
    from pufferslice.config import read_training

    assert run(["init", "fresh", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert written == ["fresh/scenario.toml", "fresh/training.toml"]
    assert read_training("fresh/training.toml").plan.n_steps == 10
    (folder / "half").mkdir()
    (folder / "half" / "training.toml").write_text("mine")
    assert run(["init", "half"]) == 1
    assert not (folder / "half" / "scenario.toml").exists()
