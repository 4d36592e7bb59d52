# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Server:
    """A cluster of its own, as the user postgres, on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._call("initdb", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--no-locale")
        self.start()

    def _call(self, program: str, *arguments: str) -> None:
        path = PROGRAMS[-1] / program
        command = [str(path), "-D", str(self.folder / "data"), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c max_connections=60 -c fsync=off"
        self._call("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def kill(self) -> None:
        self._call("pg_ctl", "-m", "immediate", "stop")

    def address(self, name: str, *, user: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres#{name}"


@contextlib.contextmanager
def running_server():
    """A server of its own, which ends with the block."""
    if not PROGRAMS:
        pytest.skip("there is no PostgreSQL server here")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    if os.geteuid() == 0:
        os.chown(folder, pwd.getpwnam("postgres").pw_uid, -1)
    cluster = None
    try:
        cluster = Server(folder)
        yield cluster
    finally:
        if cluster is not None:
            cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server():
    with running_server() as cluster:
        yield cluster


@pytest.fixture
def address(server, request):
    return server.address(f"t{abs(hash(request.node.name)) % 10**9}")
