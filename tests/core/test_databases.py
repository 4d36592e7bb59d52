# SPDX-License-Identifier: Apache-2.0
"""A SQLite file is there whole or not at all, whenever its maker is killed."""

import errno
import os
import signal
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from pufferslice._core import databases, files
from pufferslice._core.databases import database_problem, make_database, open_database
from pufferslice.errors import StorageError


def fill(connection):
    connection.execute("CREATE TABLE one (value INTEGER)")
    connection.execute("INSERT INTO one VALUES (7)")


def values(path):
    with closing(open_database(path)) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM one")]


def test_made_once_for_its_owner(tmp_path):
    path = tmp_path / "folder" / "d"
    make_database(path, fill)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    make_database(path, lambda _: pytest.fail("there is one"))
    assert path.read_bytes() == content
    assert values(path) == [7]
    assert [file.name for file in path.parent.iterdir()] == ["d"]


def test_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "d")
    make_database(tmp_path / "link", fill)
    assert values(tmp_path / "d") == values(tmp_path / "link") == [7]


def test_odd_names(tmp_path):
    for name in ("a?b", "a#b", "100%25", "ä ö", "a\udcffb"):
        make_database(tmp_path / name, fill)
        assert values(tmp_path / name) == [7]


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        (os, "fsync", False),
        (os, "fsync", True),
        (Path, "hardlink_to", False),
        (Path, "hardlink_to", True),
        (files, "_flush_folder", False),
    ],
)
def test_a_maker_that_is_killed_blocks_nobody(tmp_path, owner, name, after):
    """Not even between the two names: the one it was made under is dropped by the next user."""
    path = tmp_path / "d"
    child = os.fork()
    if child == 0:
        work = getattr(owner, name)

        def killed(*args):
            if after:
                work(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            setattr(owner, name, killed)
            make_database(path, fill)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    made = name == "_flush_folder" or (name, after) == ("hardlink_to", True)
    assert path.exists() == made
    make_database(path, fill)
    assert values(path) == [7]
    assert path.stat().st_nlink == 1


def test_of_many_that_make_it_at_once_one_does(tmp_path):
    for turn in range(20):
        path, start = tmp_path / str(turn), threading.Barrier(6)
        found = []

        def work(number, path=path, start=start, found=found):
            def fill_mine(connection):
                connection.execute("CREATE TABLE one (value INTEGER)")
                connection.execute("INSERT INTO one VALUES (?)", (number,))

            start.wait()
            make_database(path, fill_mine)
            found.append(values(path))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 6
        assert len({tuple(value) for value in found}) == 1


def test_what_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_database(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").touch()
    make_database(tmp_path / "empty", fill)
    with pytest.raises(StorageError, match="0 bytes"):
        open_database(tmp_path / "empty")
    make_database(tmp_path / "d", fill)
    (tmp_path / "other").hardlink_to(tmp_path / "d")
    with pytest.raises(StorageError, match="has 2 names"):
        open_database(tmp_path / "d")
    (tmp_path / "gone-wal").touch()
    with pytest.raises(StorageError, match=r"'gone-wal'.* is still there"):
        make_database(tmp_path / "gone", fill)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_database(tmp_path / "file" / "d", fill)


def test_a_file_that_goes_away_is_not_made_anew(tmp_path, monkeypatch):
    make_database(tmp_path / "d", fill)
    connect = sqlite3.connect

    def late(*args, **kwargs):
        (tmp_path / "d").unlink()
        return connect(*args, **kwargs)

    monkeypatch.setattr(databases.sqlite3, "connect", late)
    with pytest.raises(sqlite3.OperationalError):
        open_database(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space"):
        make_database(tmp_path / "d", fill)
    assert list(tmp_path.iterdir()) == []


def test_only_what_sqlite_says_is_taken_for_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    read_only = OSError(errno.EROFS, "Read-only file system")
    assert database_problem(tmp_path / "l", read_only) == "Read-only file system"
    assert "disk is full" in database_problem(tmp_path / "l", sqlite3.OperationalError("I/O"))
