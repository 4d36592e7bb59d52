# SPDX-License-Identifier: Apache-2.0
"""Every command with paths that are no files, too large, or cannot be written; real processes."""

import errno
import io
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from soak.sizes import SIZE
from tests.cli.conftest import SCENARIO

from pufferslice.cli.app import run

MEMORY = 4 * 2**30
COMMANDS = """\
calibrate {}
calibrate read-{}.toml
calibrate scenario.toml --ledger {}
spent {}
spent evidence-{}.json
spent c.json --scenario {}
release {} --certificate c.json --ledger l --out r.json --group a
release scenario.toml --certificate {} --ledger l --out r.json --group a
release scenario.toml --certificate c.json --ledger {} --out r.json --group a
release scenario.toml --certificate c.json --ledger l --out r.json --rows {}.csv
release --again --certificate c.json --ledger {} --out r.json
verify {}
verify c.json --key {}
sign {} --key keys/private.pem
sign c.json --key {}
train {}
audit {} --scenario scenario.toml
audit c.json --scenario {}
audit c.json --scenario scenario.toml --supplied {}
compare {}
report {} --out page.html
report c.json {} --out page.html
"""
WRITERS = """\
calibrate scenario.toml --out {}
release scenario.toml --certificate c.json --ledger l --out {} --group a
train training.toml --out {}
audit c.json --scenario scenario.toml --n-outputs 1000 --out {}
compare scenario.toml --out {}
report c.json --public --out {}
init {}
keygen {}
demo --out {}
"""
SCRIPT = """\
import contextlib, io, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
from pufferslice.cli.app import run
run(["spent", "c.json"])  # what has to be loaded and compiled
for line in sys.stdin.read().splitlines():
    signal.alarm(20)
    error, start = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = run(line.split())
    print(code, round(time.perf_counter() - start, 1), repr(error.getvalue()), line, sep="|")
"""
FORKS = """\
import json, os, sys
import pufferslice.cli.app, pufferslice.config, pufferslice.releases.release
from pufferslice.cli import main

for k, (output, line) in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if child == 0:
        if output == "full":
            target = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, target = os.pipe()
            os.close(reader)
        os.dup2(target, 1)
        os.dup2(os.open(f"error-{k}", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv[1:] = line.split()
        main()  # ends the process as it ends after any command
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def place(folder, capsys):
    assert run(["calibrate", "scenario.toml", "--out", "c.json"]) == 0
    assert run(["keygen", "keys"]) == 0
    assert run(["init", "templates"]) == 0
    (folder / "training.toml").write_text((folder / "templates/training.toml").read_text())
    os.mkfifo("pipe")
    (folder / "folder").mkdir()
    (folder / "folder" / "kept").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    with (folder / "large").open("wb") as file:
        file.truncate(10 * 2**30)
    (folder / "device").symlink_to("/dev/zero")
    (folder / "nothing").symlink_to("nowhere")
    for name in ("pipe", "folder", "socket", "large", "device"):
        (folder / f"{name}.csv").symlink_to(name)
        (folder / f"evidence-{name}.evidence.npz").symlink_to(name)
        (folder / f"evidence-{name}.json").write_text((folder / "c.json").read_text())
        (folder / f"read-{name}.toml").write_text(SCENARIO.replace("people", name))
    return folder


def names(where="."):
    return sorted(path.name for path in Path(where).iterdir())


def ran(commands, paths, seed):
    """Exit code, seconds and standard error of each command, in one process of little memory."""
    every = [line.replace("{}", path) for path in paths for line in commands.splitlines()]
    lines = np.random.default_rng(seed).permutation(every)[: SIZE.cases]
    script = SCRIPT.format(memory=MEMORY)
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="\n".join(lines), capture_output=True, text=True, check=False,
    )  # fmt: skip
    answers = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    assert len(answers) == len(lines), done.stderr[-2000:]
    return answers


@pytest.mark.timeout(300)
def test_what_is_no_file_or_too_large(place, seed):
    before = names()
    paths = ("device", "pipe", "folder", "socket", "large")
    for code, seconds, error, line in ran(COMMANDS, paths, seed):
        assert code in {"1", "2"}, line
        assert error[1:].startswith("error: "), line
        assert error.count("\\n") == 1, error
        assert float(seconds) < 5, line
    assert names() == before


@pytest.mark.timeout(300)
def test_what_cannot_be_written_to(place, seed):
    before = names()
    paths = ("device", "pipe", "socket")
    for code, _, error, line in ran(WRITERS, paths, seed):
        assert code in {"1", "2"}, line
        assert "rror: " in error, line
        assert "Traceback" not in error, line
    assert names() == before


def test_a_link_to_nothing_is_seen_before_noise_is_drawn(place, capsys):
    command = "release scenario.toml --certificate c.json --ledger l --out nothing --group a"
    assert run(command.split()) == 1
    assert "nothing" in capsys.readouterr().err
    assert not (place / "l").exists()


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("screen", [None, Full()])
def test_a_release_in_a_process_without_output(place, monkeypatch, capsys, screen):
    command = "release scenario.toml --certificate c.json --ledger l --out r.json --group a"
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", screen)
        assert run(command.split()) == 1
    assert "recorded in the ledger 'l'" in capsys.readouterr().err


def process(arguments, **options):
    command = "from pufferslice.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, *arguments.split()],
        stderr=subprocess.PIPE, text=True, check=False, **options,
    )  # fmt: skip


def forked(cases):
    """Exit code and standard error of commands whose output is full or broken."""
    script = [sys.executable, "-c", FORKS, json.dumps(cases)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    codes = [int(code) for code in done.stdout.split()]
    return [(code, Path(f"error-{k}").read_text()) for k, code in enumerate(codes)]


RELEASE = "release scenario.toml --certificate c.json --ledger l-{0} --out out-{0}/r.json --group a"


def test_a_release_that_cannot_be_printed_is_recorded(place):
    outputs = ("full", "broken", "closed")
    for output in outputs:  # a release file is known in its folder, whatever the ledger
        (place / f"out-{output}").mkdir()
    ended = forked([(output, RELEASE.format(output)) for output in outputs[:2]])
    # Python looks whether there is an output when it starts.
    closed = process(RELEASE.format("closed"), preexec_fn=lambda: os.close(1))
    ended.append((closed.returncode, closed.stderr))
    for output, (code, error) in zip(outputs, ended, strict=True):
        assert code == 1
        assert error.count("\n") == 1
        assert f"recorded in the ledger 'l-{output}'" in error
        assert "--again" in error
        copy = f"out-{output}/a.json"
        again = f"release --again --certificate c.json --ledger l-{output} --out {copy}"
        assert run(again.split()) == 0
        written = (place / f"out-{output}/r.json").read_bytes()
        assert (place / copy).read_bytes() == written


def test_output_that_cannot_be_written(place):
    commands = ("--version", "--help", "verify c.json", "verify c.json --json")
    cases = [(output, command) for output in ("full", "broken") for command in commands]
    for case, (code, error) in zip(cases, forked(cases), strict=True):
        assert code == 1, case
        assert "Traceback" not in error, case
        assert error.count("\n") == 1 or (case[1] == "--help" and not error), case


def test_a_name_that_is_no_text(place):
    """Bytes that no encoding has reach the command as they are, and cannot be printed."""
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = process(os.fsdecode(b"init na\xffme"), stdout=subprocess.DEVNULL, env=strict)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to standard output")


def little():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))


@pytest.mark.soak
def test_no_room_at_the_start_of_a_training_run(place):
    done = process("train training.toml --out run", stdout=subprocess.DEVNULL, preexec_fn=little)
    assert done.returncode == 1
    assert os.strerror(errno.EFBIG) in done.stderr
    assert names("run") == []
