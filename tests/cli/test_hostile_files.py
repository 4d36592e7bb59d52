# SPDX-License-Identifier: Apache-2.0
"""Every command with paths that are no files, too large, or cannot be written; real processes."""

import errno
import io
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
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


def ran(commands):
    """Exit code, seconds and standard error of each command, in one process of little memory."""
    script = SCRIPT.format(memory=MEMORY)
    done = subprocess.run(
        [sys.executable, "-c", script], input=commands, capture_output=True, text=True, check=False
    )
    lines = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    assert len(lines) == len(commands.splitlines()), done.stderr[-2000:]
    return lines


@pytest.mark.timeout(300)
def test_what_is_no_file_or_too_large(place):
    before = names()
    paths = ("device", "pipe", "folder", "socket", "large")
    for code, seconds, error, line in ran("".join(COMMANDS.replace("{}", path) for path in paths)):
        assert code in {"1", "2"}, line
        assert error[1:].startswith("error: "), line
        assert error.count("\\n") == 1, error
        assert float(seconds) < 5, line
    assert names() == before


@pytest.mark.timeout(300)
def test_what_cannot_be_written_to(place):
    before = names()
    paths = ("device", "pipe", "socket")
    for code, _, error, line in ran("".join(WRITERS.replace("{}", path) for path in paths)):
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


def full():
    return {"stdout": os.open("/dev/full", os.O_WRONLY)}


def broken():
    reader, writer = os.pipe()
    os.close(reader)
    return {"stdout": writer}


def closed():
    return {"preexec_fn": lambda: os.close(1)}


@pytest.mark.parametrize("output", [full, broken, closed])
def test_a_release_that_cannot_be_printed_is_recorded(place, output):
    command = "release scenario.toml --certificate c.json --ledger l --out r.json --group a"
    done = process(command, **output())
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "recorded in the ledger 'l'" in done.stderr
    assert "--again" in done.stderr
    again = process(
        "release --again --certificate c.json --ledger l --out s.json", stdout=subprocess.DEVNULL
    )
    assert again.returncode == 0
    assert (place / "s.json").read_bytes() == (place / "r.json").read_bytes()


@pytest.mark.parametrize(
    "command", ["--version", "--help", "verify c.json", "verify c.json --json"]
)
@pytest.mark.parametrize("output", [full, broken])
def test_output_that_cannot_be_written(place, command, output):
    done = process(command, **output())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1 or (command == "--help" and not done.stderr)


def test_a_name_that_is_no_text(place):
    """Bytes that no encoding has reach the command as they are, and cannot be printed."""
    strict = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    done = process(os.fsdecode(b"init na\xffme"), stdout=subprocess.DEVNULL, env=strict)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write to standard output")


def little():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))


@pytest.mark.timeout(120)
def test_no_room_at_the_start_of_a_training_run(place):
    done = process("train training.toml --out run", stdout=subprocess.DEVNULL, preexec_fn=little)
    assert done.returncode == 1
    assert os.strerror(errno.EFBIG) in done.stderr
    assert names("run") == []
