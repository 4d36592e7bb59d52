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
from tests.config.test_training import document as training_document

from pufferslice.config import read_training
from pufferslice.config.training import toml_of

PROGRAM = [sys.executable, "-c", "from pufferslice.cli import main; main()"]


def document(**changes):
    return training_document(
        **{"training__n_steps": 3, "output__public_evaluation": True} | changes
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "training.toml").write_text(toml_of(document()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_json_object(folder, ask):
    answer = ask("train training.toml --json").json
    assert set(answer) == {"folder", "n_steps", "guarantee", "metrics", "certificate"}
    assert (answer["folder"], answer["n_steps"]) == ("run", 3)
    assert answer["guarantee"]["epsilon"] <= 8
    assert set(answer["metrics"]) == {"held_out_loss", "held_out_accuracy"}
    assert ask("verify run/certificate.json --json").json["holds"] is True
    finished = ask("train training.toml")
    assert (finished.code, "holds a finished run" in finished.err) == (1, True)


def test_prose_says_what_may_be_published(folder, ask):
    answer = ask("train training.toml --out elsewhere")
    for words in (
        "Claim: (8, 8)-RPP",
        "Accuracy on the held-out records, declared public:",
        "To publish, in elsewhere: model.pt, certificate.json, public.jsonl.",
        "Not covered by the guarantee: internal.jsonl, checkpoint.pt, run.json, run.ledger.",
    ):
        assert words in answer.out
    assert not (folder / "run").exists()
    assert answer.err.startswith("Signal to noise: at most ")
    (folder / "t.toml").write_text(toml_of(document(output__public_evaluation=False)))
    assert "Accuracy" not in ask("train t.toml").out
    assert ask("train t.toml --out b --json").json["metrics"] == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (None, "is not a training plan or file"),
        ({"training__model": "vgg"}, "[training] model must be one of linear"),
        ({"guarantee__order": 1}, "[guarantee] order must be"),
        ({"data__dataset": "reproduction.data:cifar10"}, "set PUFFERSLICE_DATA to a folder with"),
        ({"data__dataset": "no_such:data"}, "there is no module 'no_such'"),
    ],
)
def test_wrong_use_in_one_sentence(folder, ask, monkeypatch, changes, words):
    monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
    text = "[data" if changes is None else toml_of(document(**changes))
    (folder / "t.toml").write_text(text)
    answer = ask("train t.toml")
    error = answer.err.splitlines()[-1]
    assert (answer.code, answer.out, error[:7]) == (2, "", "error: ")
    assert words in error
    assert not (folder / "run").exists()
    assert ask("train absent.toml").code == 2


def test_code_that_a_file_names_is_announced_before_it_runs(folder, ask):
    (folder / "named_here.py").write_text(
        "import sys\ndef data():\n    print('it ran', file=sys.stderr)\n"
    )
    (folder / "t.toml").write_text(
        toml_of(document(data__dataset="named_here:data", training__loss="named_here:loss"))
    )
    before, ran, error = ask("train t.toml").err.splitlines()
    assert before.startswith(
        "t.toml names code, which runs now with your rights: named_here:data, "
    )
    assert repr(str(folder.resolve())) in before
    assert (ran, error[:7]) == ("it ran", "error: ")
    assert "names code" not in ask("train training.toml").err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_a_real_process(folder, number, code):
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
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == code
    assert out == ""
    assert "\nstopped after step " in err
    assert "The same command resumes" in err
    assert "Traceback" not in err
    assert (folder / "run" / "checkpoint.pt").exists()
    assert (folder / "run" / "run.key").exists()


def test_a_bar_on_a_terminal_with_loss_and_time(folder):
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
    for word in ("Signal to noise", "training", "loss ", "ms/step", "40/40"):
        assert word in shown


@pytest.mark.parametrize(
    ("before", "arguments", "code"),
    [("", ["train", "--help"], 0), ("sys.modules['torch'] = None", ["train", "training.toml"], 1)],
)
def test_help_does_not_load_torch_and_without_it_the_extra_is_named(
    folder, before, arguments, code
):
    program = (
        f"import sys\n{before}\nfrom pufferslice.cli.app import run\ncode = run({arguments})\n"
        "assert sys.modules.get('torch') is None\nraise SystemExit(code)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.count("\n") == code
    assert ("pip install 'pufferslice[torch]'" in done.stderr) == bool(code)


def test_init_writes_a_training_file_that_is_read(folder, ask):
    written = ask("init fresh --json").json["written"]
    assert written == ["fresh/scenario.toml", "fresh/training.toml"]
    assert read_training("fresh/training.toml").plan.n_steps == 10
    (folder / "half").mkdir()
    (folder / "half" / "training.toml").write_text("mine")
    assert ask("init half").code == 1
    assert not (folder / "half" / "scenario.toml").exists()
