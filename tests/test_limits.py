# SPDX-License-Identifier: Apache-2.0
"""Files that are no files, too large, or unpack to too much: one sentence, at once."""

import gzip
import io
import os
import re
import socket
import time
import zipfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pufferslice._core import files
from pufferslice._core.arrays import array_in, arrays_in
from pufferslice._core.files import LIMITS, MOST_MEMBERS, MOST_NESTED, check_archive, read_bytes
from pufferslice.config import read_plan, read_request
from pufferslice.data import read_table
from pufferslice.errors import ArgumentError, LedgerError, StorageError, TableError
from pufferslice.releases.ledger import Ledger
from pufferslice.torch.ledger import RunLedger

NOT_FILES = {"folder": "a folder", "pipe": "a pipe", "socket": "a socket", "/dev/zero": "a device"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
    return tmp_path


@pytest.fixture(autouse=True)
def at_once():
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(("name", "what"), NOT_FILES.items())
class TestNotFiles:
    def test_bytes(self, place, name, what):
        with pytest.raises(StorageError, match=f"{name}.*{what}"):
            read_bytes(name, "document")

    def test_a_table(self, place, name, what):
        # A folder of Parquet files is a table.
        for ending in () if name == "folder" else (".csv", ".csv.gz", ".parquet"):
            (place / f"table{ending}").symlink_to(place / name)
            with pytest.raises(StorageError, match=what):
                read_table(place / f"table{ending}")

    def test_a_ledger(self, place, name, what):
        with pytest.raises(LedgerError, match=what):
            Ledger(name).releases()
        runs = RunLedger(place / name)
        with closing(runs), pytest.raises(LedgerError, match=what):
            runs.start("run", plan_digest="plan", n_steps=1)


def test_what_is_replaced_between_looking_and_opening(place, monkeypatch):
    """A file that becomes a pipe after it was looked at: opening it does not wait."""
    (place / "file").write_bytes(b"x")
    there = (place / "file").stat()
    monkeypatch.setattr(files.Path, "stat", lambda _: there)
    with pytest.raises(StorageError, match="a pipe"):
        read_bytes("pipe", "key")


def test_a_name_that_no_file_has():
    with pytest.raises(StorageError, match="cannot read"):
        read_bytes("a\0b", "key")


@pytest.mark.parametrize(("kind", "most"), LIMITS.items())
def test_a_file_over_its_limit_is_not_read(tmp_path, kind, most):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(most + 1)
    with pytest.raises(StorageError, match=f"{kind}.*{most:,}"):
        read_bytes(tmp_path / "big", kind)


def test_a_file_at_its_limit_is_read(tmp_path):
    (tmp_path / "key").write_bytes(bytes(LIMITS["key"]))
    assert len(read_bytes(tmp_path / "key", "key")) == LIMITS["key"]


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    """Files of /proc say that they are empty."""
    (tmp_path / "key").write_bytes(bytes(LIMITS["key"] + 1))
    empty = Path("/proc/self/status").stat()
    monkeypatch.setattr(files.os, "fstat", lambda _: empty)
    with pytest.raises(StorageError, match="key"):
        read_bytes(tmp_path / "key", "key")


def test_the_limits_are_documented(repository):
    page = (repository / "docs" / "files.md").read_text(encoding="utf-8")
    units = {2**10: "KiB", 2**20: "MiB", 2**30: "GiB"}
    for kind, most in LIMITS.items():
        unit = max(size for size in units if size <= most)
        assert re.search(rf"\| `{kind}` \|.*\| {most // unit} {units[unit]} \|", page), kind


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """SQLite may call it an I/O error."""
    (tmp_path / "ledger").write_bytes(b"something else" * 100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(LedgerError, match="the disk is full"):
        Ledger(tmp_path / "ledger").releases()
    runs = RunLedger(tmp_path / "ledger")
    with closing(runs), pytest.raises(LedgerError, match="disk is full"):
        runs.start("run", plan_digest="plan", n_steps=1)


class TestToml:
    @pytest.mark.parametrize(
        "text",
        [
            ".".join(["a"] * 200_000) + " = 1",
            "[" + " . ".join(['"a b"'] * 200_000) + "]",
            "x = { " + ".".join(["'a'"] * 200_000) + " = 1 }",
            "x = " + "[" * 100_000,
            "x = " + "[" * 100 + "]" * 100,
            "x = 0x" + "f" * 100_000,
        ],
        ids=["key", "header", "inline", "deep", "nested", "integer"],
    )
    def test_bombs(self, tmp_path, text):
        (tmp_path / "s.toml").write_text(text)
        for read in (read_request, read_plan):
            with pytest.raises(ArgumentError, match=r"s\.toml"):
                read(tmp_path / "s.toml")

    def test_dots_elsewhere_are_no_long_key(self, tmp_path):
        rates = ", ".join(["0.5"] * 10_000)
        key = ".".join("a" * (MOST_NESTED // 2))
        text = f"format = 'other{'...' * 100}'\nx = [{rates}]\n{key} = 1\n"
        (tmp_path / "plan.toml").write_text(text)
        with pytest.raises(ArgumentError, match="format"):
            read_plan(tmp_path / "plan.toml")


def zipped(*members, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression, compresslevel=1) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def array_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class TestArchives:
    def test_a_bomb_is_not_unpacked(self):
        bomb = zipped(("a.npy", array_bytes(np.zeros(2**26))))
        assert len(bomb) < 2**22
        with pytest.raises(ValueError, match="archive"):
            arrays_in(bomb)
        with pytest.raises(ValueError, match="unpacks to"):
            check_archive(bomb)

    def test_a_directory_that_lies_about_the_size(self):
        """It says 100 bytes where there are 2^26: no more than it says is unpacked."""
        raw = bytearray(zipped(("a.npy", array_bytes(np.zeros(2**23)))))
        for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
            where = raw.index(mark) + at
            raw[where : where + 4] = (100).to_bytes(4, "little")
        with pytest.raises(ValueError, match="archive"):
            arrays_in(bytes(raw))

    def test_a_heading_that_lies_about_the_size(self):
        """Numpy would make room for 2^40 numbers first."""
        raw = array_bytes(np.zeros(3)).replace(b"(3,)", b"(1099511627776,)")[: 6 + 2 + 2]
        heading = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}\n"
        raw = raw[:8] + len(heading).to_bytes(2, "little") + heading + bytes(24)
        for read, content in ((array_in, raw), (arrays_in, zipped(("a.npy", raw)))):
            with pytest.raises(ValueError, match="numpy"):
                read(content)

    def test_too_many_members(self):
        entry = b"PK\x01\x02" + bytes(42)
        with pytest.raises(ValueError, match="members"):
            check_archive(entry * (MOST_MEMBERS + 1))

    def test_other_compressions(self):
        with pytest.raises(ValueError, match="deflated"):
            check_archive(zipped(("a", b"x" * 999), compression=zipfile.ZIP_BZIP2))


def test_a_zipped_line_without_end(tmp_path):
    """400 MB in one cell, of which 256 MiB are looked at for an explanation."""
    with gzip.open(tmp_path / "a.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"x,y\n1,")
        for _ in range(400):
            file.write(b"a" * 10**6)
    with pytest.raises(TableError, match=r"a\.csv\.gz"):
        read_table(tmp_path / "a.csv.gz")
