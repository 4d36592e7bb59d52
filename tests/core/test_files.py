# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all; JSON has one spelling; digests are unambiguous."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

from pufferslice._core.databases import make_database
from pufferslice._core.files import (
    CONFIDENTIAL,
    append_line,
    canonical_json,
    digest,
    make_folder,
    read_bytes,
    remove_unfinished,
    write_all_new,
    write_together,
    write_whole,
)
from pufferslice.errors import StorageError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestFiles:
    def test_there_and_back(self, tmp_path):
        path = tmp_path / "a.bin"
        content = bytes(range(256)) * 1000
        write_whole(path, content)
        assert read_bytes(path, "settings") == content
        assert read_bytes(str(path), "settings") == content

    def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(self, tmp_path):
        """A process that may not write so much: the write itself fails, half way."""
        path = tmp_path / "a.bin"
        write_whole(path, b"old")
        script = (
            "import resource, sys\n"
            "from pufferslice.errors import StorageError\n"
            "from pufferslice._core.files import write_whole\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "try:\n"
            "    write_whole(sys.argv[1], bytes(100_000))\n"
            "except StorageError as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        )
        assert "a.bin" in done.stdout
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["a.bin"]

    def test_a_reader_sees_one_content_or_the_other(self, tmp_path):
        path = tmp_path / "a.bin"
        contents = [bytes([k]) * 50_000 for k in range(2)]
        write_whole(path, contents[0])
        done = threading.Event()
        torn = []

        def read():
            while not done.is_set():
                if read_bytes(path, "document") not in contents:
                    torn.append(True)

        reader = threading.Thread(target=read)
        reader.start()
        for k in range(40):
            write_whole(path, contents[k % 2])
        done.set()
        reader.join()
        assert not torn


def test_a_folder_is_made_with_those_above_it(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot make the folder .*file.*name another one"):
        make_folder(tmp_path / "file")


class TestJson:
    VALUE = {"b": [1, 2.5, None, True], "a": {"z": "é", "y": 0.1}}  # noqa: RUF012

    def test_canonical_is_sorted_and_compact(self):
        text = canonical_json(self.VALUE)
        assert text.decode("utf-8").replace("\\u00e9", "é") == (
            '{"a":{"y":0.1,"z":"é"},"b":[1,2.5,null,true]}'
        )

    def test_the_order_of_keys_does_not_matter(self):
        turned = {"a": {"y": 0.1, "z": "é"}, "b": [1, 2.5, None, True]}
        assert canonical_json(turned) == canonical_json(self.VALUE)
        assert canonical_json({"b": [2.5, 1]}) != canonical_json({"b": [1, 2.5]})


class TestDigest:
    def test_known_answer(self):
        """Each part after its length in eight big-endian bytes."""
        message = b"\0" * 7 + b"\x02" + b"ab" + b"\0" * 7 + b"\x01" + b"c"
        assert digest(b"ab", b"c") == hashlib.sha256(message).hexdigest()

    def test_parts_do_not_run_together(self):
        splits = [(b"abc",), (b"ab", b"c"), (b"a", b"bc"), (b"", b"abc"), (b"abc", b"")]
        assert len({digest(*parts) for parts in splits}) == len(splits)


class TestLines:
    def test_each_line_once_for_its_owner(self, tmp_path):
        path = tmp_path / "lines"
        for line in (b"one", b"two", b"one"):
            append_line(path, line, CONFIDENTIAL)
        assert path.read_bytes() == b"one\ntwo\n"
        assert path.stat().st_mode & 0o777 == 0o600

    def test_an_unfinished_line_is_removed(self, tmp_path):
        path = tmp_path / "lines"
        path.write_bytes(b"one\ntw")
        append_line(path, b"three")
        assert path.read_bytes() == b"one\nthree\n"

    def test_threads_lose_no_line(self, tmp_path):
        path, n_lines = tmp_path / "lines", 200
        threads = [
            threading.Thread(
                target=lambda k=k: [append_line(path, b"%d %d" % (k, n)) for n in range(n_lines)]
            )
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = path.read_bytes().splitlines()
        assert len(lines) == len(set(lines)) == 4 * n_lines

    def test_a_full_disk_leaves_the_lines_before(self, tmp_path):
        path = tmp_path / "lines"
        append_line(path, b"one")
        script = (
            "import resource, signal, sys\n"
            "from pufferslice.errors import StorageError\n"
            "from pufferslice._core.files import append_line\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "try:\n"
            "    append_line(sys.argv[1], bytes(100_000))\n"
            "except StorageError as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        )
        assert "File too large" in done.stdout
        assert path.read_bytes() == b"one\n"


def test_a_device_or_pipe_is_never_replaced(tmp_path):
    """As root, `--out /dev/null` would otherwise put a file in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(StorageError, match="a device or a pipe, not a file"):
        write_whole(pipe, b"x")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_killed_writes_left_is_removed_and_nothing_else(tmp_path):
    left = tmp_path / f".a[1].json.{'0f' * 8}"
    for path in (left, tmp_path / ".a1.json.00ff", tmp_path / f".b.json.{'0f' * 8}"):
        path.write_bytes(b"x")
    remove_unfinished(tmp_path / "a[1].json")
    assert not left.exists()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("n_done", [0, 1])
def test_files_that_belong_together_are_never_mixed(tmp_path, monkeypatch, n_done):
    """Killed before or between the renames: the old pair, or no last file, never an old one."""
    first, last = tmp_path / "first", tmp_path / "last"
    write_together([(first, b"old", 0o600), (last, b"old", 0o666)])
    replace, calls = Path.replace, []

    def killed(self, target):
        calls.append(target)
        if len(calls) > n_done:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_together([(first, b"new", 0o600), (last, b"new", 0o666)])
    assert not last.exists()
    write_together([(first, b"new", 0o600), (last, b"new", 0o666)])
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"new"}
    assert len(list(tmp_path.iterdir())) == 2


def test_files_that_cannot_all_be_written_change_nothing(tmp_path):
    write_together([(tmp_path / "first", b"old", 0o600), (tmp_path / "last", b"old", 0o666)])
    with pytest.raises(StorageError):
        write_together([(tmp_path / "no" / "first", b"new", 0o600), (tmp_path / "last", b"new", 0)])
    assert (tmp_path / "last").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_name_that_cannot_be_taken_leaves_the_old_files(tmp_path):
    first, last = tmp_path / "first", tmp_path / "last"
    write_together([(first, b"old", 0o600), (last, b"old", 0o666)])
    first.unlink()
    first.mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*; nothing was changed"):
        write_together([(first, b"new", 0o600), (last, b"new", 0o666)])
    assert last.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "last"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_named", [False, True])
def test_of_several_new_files_all_are_written_or_none(tmp_path, monkeypatch, error, is_named):
    """Stopped before or after the last of them has its name."""
    link = Path.hardlink_to

    def stopped(self, target):
        if is_named or self.name == "first":
            link(self, target)
        if self.name == "last":
            raise error

    parts = [(tmp_path / "first", b"1", 0o600), (tmp_path / "last", b"2", 0o666)]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "hardlink_to", stopped)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            write_all_new(parts)
    assert list(tmp_path.iterdir()) == []
    write_all_new(parts)
    with pytest.raises(StorageError, match=r"cannot write .*last"):
        write_all_new([(tmp_path / "other", b"3", 0o600), (tmp_path / "last", b"3", 0o600)])
    contents = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert contents == {"first": b"1", "last": b"2"}


def test_a_folder_is_not_replaced_by_files_that_belong_together(tmp_path):
    (tmp_path / "last").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*last.*Is a directory"):
        write_together([(tmp_path / "first", b"new", 0o600), (tmp_path / "last", b"new", 0o666)])
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(StorageError, match=r"cannot write .*symbolic links"):
        write_whole(tmp_path / "one", b"x")


def test_what_killed_writes_left_beside_the_target_of_a_link_is_removed(tmp_path):
    (tmp_path / "there").mkdir()
    left = tmp_path / "there" / f".file.{'0' * 16}"
    left.write_bytes(b"half")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    remove_unfinished(tmp_path / "link")
    assert not left.exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda url: write_whole(url, b""),
        lambda url: write_whole(Path(url), b""),
        make_folder,
        lambda url: make_database(url, lambda _: None),
        lambda url: read_bytes(url, "settings"),
    ],
)
def test_a_url_is_refused_without_its_password(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "s3://me:hunter2@bucket/file"
    with pytest.raises(StorageError, match="a URL of s3://") as caught:
        use(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert not list(tmp_path.iterdir())
