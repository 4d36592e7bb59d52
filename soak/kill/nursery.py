# SPDX-License-Identifier: Apache-2.0
"""Runs commands in processes of their own and ends them with a signal after some time.

The parent imports the library once; every command is a forked child, so that the moments at which
children are killed fall into their work and not into their imports.

    with Nursery(["pufferslice.config"]) as nursery:
        nursery.run(["calibrate", "scenario.toml"], folder, after=0.2, signal=9)
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

PROGRAM = """
import contextlib, importlib, io, json, os, select, signal, sys, time
from pathlib import Path
from pufferslice.cli import main
from pufferslice.cli.app import run
from pufferslice._core.sampler import draw_integers
from pufferslice.learning.keys import RunKey
from pufferslice._core.files import CONFIDENTIAL, write_new


def prepare(job):
    os.chdir(job["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if job["run_key"]:
        content = Path(job["run_key"]).read_bytes()

        def create(path):
            write_new(path, content, mode=CONFIDENTIAL)
            return RunKey.read(path)

        RunKey.create = create


def child(job):
    code = 70
    try:
        prepare(job)
        sys.argv[1:] = job["arguments"]
        # Until `main` takes over, Ctrl-C ends the process silently.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


for name in sys.argv[1:]:
    importlib.import_module(name)
draw_integers(bytes(32), 1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if job["inside"]:
        here = os.getcwd()
        os.chdir(job["folder"])
        with contextlib.redirect_stdout(io.StringIO()):
            code = run(job["arguments"])
        os.chdir(here)
        print(json.dumps({"code": code}), flush=True)
        continue
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        child(job)
    handle = os.pidfd_open(pid)
    ended = bool(select.select([handle], [], [], job["after"])[0])
    if not ended:
        os.kill(pid, job["signal"])
    late = bool(select.select([handle], [], [], job["patience"])[0]) is False
    if late:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(handle)
    answer = {
        "code": os.waitstatus_to_exitcode(status),
        "signalled": not ended,
        "late": late,
        "seconds": time.monotonic() - start,
    }
    print(json.dumps(answer), flush=True)
"""

PATIENCE = 120.0
"""Seconds that a command may go on after its signal."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code; minus the signal if it was killed."""
    signalled: bool
    """Whether it was still running when the signal was due."""
    late: bool
    """Whether it did not end by itself after the signal."""
    seconds: float
    stdout: str
    stderr: str


class Nursery:
    """A warm parent of many short-lived commands; not for several threads."""

    def __init__(self, modules: Iterable[str]) -> None:
        """`modules` are imported before the first fork."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "ready"

    def run(
        self,
        arguments: list[str],
        folder: Path,
        *,
        after: float = 600.0,
        signal: int = 9,
        **said: Any,
    ) -> Ended:
        """Run a command in a folder; `after` so many seconds it gets the signal."""
        streams = {name: f"{folder}.{name}" for name in ("stdout", "stderr")}
        answer = self._told(
            {
                "inside": False,
                "arguments": arguments,
                "folder": str(folder),
                "after": after,
                "signal": int(signal),
                "patience": PATIENCE,
                "run_key": said.get("run_key"),
                **streams,
            }
        )
        texts = {name: _text(Path(path)) for name, path in streams.items()}
        return Ended(**answer, **texts)

    def warm(self, arguments: list[str], folder: Path) -> None:
        """Run a command in the parent, which then has its compiled kernels at hand for all."""
        told = self._told({"inside": True, "arguments": arguments, "folder": str(folder)})
        assert told["code"] == 0

    def _told(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _text(path: Path) -> str:
    """What a command said; one that was killed at once has no file yet."""
    return path.read_text(errors="replace") if path.exists() else ""
