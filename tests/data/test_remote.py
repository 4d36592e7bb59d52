# SPDX-License-Identifier: Apache-2.0
"""Data on filesystems that fsspec knows: in memory, and local files behind another protocol."""

import gzip
import io
import subprocess
import sys
import traceback

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from pufferslice._core.databases import open_database
from pufferslice._core.files import make_folder, read_bytes, write_whole
from pufferslice.data import read_table
from pufferslice.data.readers import complete_frames, data_files
from pufferslice.data.remote import RemoteFile
from pufferslice.errors import ArgumentError, MissingExtraError, StorageError, TableError
from pufferslice.queries import Box, columns
from pufferslice.sensitivity import FiniteProfile, RowScan, scan, scan_files, spill_files

TABLE = pa.table({"g": ["a", "b"] * 50, "x": np.linspace(0.0, 1.0, 100), "y": np.arange(100) + 0.5})
QUERY = columns(["x", "y"]).with_range(Box([0, 0], [1, 100]))
PROFILE = FiniteProfile.uniform(dim=2, n_directions=4, seed=1)
SCAN = RowScan.of(QUERY, secret="g", profile=PROFILE, n_bins=64)  # noqa: S106 - a column
PASSWORD = "hunter2"  # noqa: S105 - what must not be shown

QUOTING = f"https://me:{PASSWORD}@host refused"


class Shelf(LocalFileSystem):
    """Local files as another filesystem has them: `shelf:///absolute/path`."""

    protocol = "shelf"
    opened: tuple[str, ...] = ()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix(f"{cls.protocol}://"))

    def open(self, path, mode="rb", **kwargs):
        Shelf.opened += (path,)
        return super().open(path, mode, **kwargs)


class Torn(Shelf):
    """Every read after the first few fails, with credentials in the message."""

    protocol = "torn"

    def open(self, path, mode="rb", **kwargs):
        file = super().open(path, mode, **kwargs)
        if path.endswith("gone.parquet"):
            raise RuntimeError(QUOTING)
        return (ShutStream if path.endswith("shut.parquet") else TornStream)(file.read())


class TornStream(io.BytesIO):
    def read(self, size=-1):
        if size > 4:
            raise RuntimeError(QUOTING)
        return super().read(size)


class ShutStream(io.BytesIO):
    def close(self):
        if not self.closed:
            super().close()
            raise RuntimeError(QUOTING)


class Silent(Shelf):
    """A filesystem that does not say when a file was changed."""

    protocol = "silent"

    def info(self, path, **kwargs):
        about = super().info(path, **kwargs)
        return {key: about[key] for key in ("name", "size", "type")}


class Listed(Shelf):
    """A filesystem that remembers what is in a folder, as those of object stores do."""

    protocol = "listed"

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **kwargs)
        found = self.dircache[path]
        return found if detail else sorted(entry["name"] for entry in found)

    def invalidate_cache(self, path=None):
        self.dircache.clear()


@pytest.fixture(autouse=True)
def _filesystems():
    for kind in (Shelf, Torn, Silent, Listed):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    yield
    fsspec.filesystem("memory").rm("/", recursive=True)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    for part in range(4):
        name = folder / f"part-{part}.parquet"
        pa.parquet.write_table(TABLE.slice(25 * part, 25), name, row_group_size=10)
    return folder


def in_memory(folder):
    """The same files on the memory filesystem."""
    memory = fsspec.filesystem("memory")
    for file in folder.iterdir():
        memory.pipe(f"/people/{file.name}", file.read_bytes())
    return "memory://people"


@pytest.mark.parametrize("kind", ["memory", "shelf", "file", "local"])
class TestReading:
    @pytest.fixture
    def url(self, kind, folder):
        return in_memory(folder) if kind == "memory" else f"{kind}://{folder}"

    def test_folder_glob_and_file(self, url):
        assert read_table(url).equals(TABLE)
        assert read_table(f"{url}/").equals(TABLE)
        assert read_table(f"{url}/part-[0-3].parquet").equals(TABLE)
        assert read_table(f"{url}/part-2.parquet").equals(TABLE.slice(50, 25))

    def test_a_scan_and_its_strata(self, url, folder):
        expected = scan_files(folder, SCAN)
        assert scan_files(url, SCAN) == expected
        there = spill_files(url, SCAN, expected, most_rows=20)
        here = spill_files(folder, SCAN, expected, most_rows=20)
        assert {k: s.digest for k, s in there.items()} == {k: s.digest for k, s in here.items()}
        assert sum(len(frame) for frame, _ in complete_frames(url, ["x"], "refuse")) == 100

    def test_text(self, url, folder, kind):
        pa.csv.write_csv(TABLE, folder / "all.csv")
        (folder / "all.csv.gz").write_bytes(gzip.compress((folder / "all.csv").read_bytes()))
        (folder / "empty.csv").touch()
        if kind == "memory":
            in_memory(folder)
        assert read_table(f"{url}/all.csv").equals(TABLE)
        assert read_table(f"{url}/all.csv.gz").equals(TABLE)
        assert scan_files(f"{url}/all.csv", SCAN) == scan_files(f"{url}/part-*.parquet", SCAN)
        with pytest.raises(TableError, match="is an empty file"):
            read_table(f"{url}/empty.csv")

    def test_what_is_refused_of_a_folder_is_refused_here(self, url, folder, kind):
        (folder / "deeper").mkdir()
        pa.parquet.write_table(TABLE, folder / "deeper" / "more.parquet")
        if kind == "memory":
            more = (folder / "deeper" / "more.parquet").read_bytes()
            fsspec.filesystem("memory").pipe("/people/deeper/more.parquet", more)
        with pytest.raises(TableError, match="it has 4 and 1"):
            read_table(url)
        if kind == "memory":
            fsspec.filesystem("memory").pipe("/only/deeper/more.parquet", more)
        for file in folder.glob("*.parquet"):
            file.unlink()
        with pytest.raises(TableError, match="it has 0 and 1"):
            read_table("memory://only" if kind == "memory" else url)
        with pytest.raises(TableError, match="it matches 0 files"):
            read_table(f"{url}/*.csv")
        with pytest.raises(TableError, match="must end in"):
            read_table(f"{url}/part-0.json")
        with pytest.raises(StorageError, match="cannot read"):
            read_table(f"{url}/absent.parquet")

    def test_a_checkpoint_knows_the_state_of_files(self, url, folder, kind, tmp_path):
        saved = tmp_path / "scan.part"
        expected = scan_files(url, SCAN, checkpoint=saved)
        assert scan_files(url, SCAN, checkpoint=saved) == expected
        pa.parquet.write_table(TABLE.slice(0, 24), folder / "part-0.parquet", row_group_size=10)
        if kind == "memory":
            in_memory(folder)
        with pytest.raises(StorageError, match="made with another data"):
            scan_files(url, SCAN, checkpoint=saved)


def test_other_filesystems_are_read_through_fsspec_and_local_ones_are_not(folder):
    before = Shelf.opened
    read_table(f"shelf://{folder}/part-0.parquet")
    assert Shelf.opened[len(before) :] == (f"{folder}/part-0.parquet",)
    assert data_files(f"file://{folder}/part-0.parquet") == [folder / "part-0.parquet"]


def test_damaged_files(folder):
    content = (folder / "part-0.parquet").read_bytes()
    (folder / "part-0.parquet").write_bytes(content[:4] + bytes(len(content) - 12) + content[-8:])
    with pytest.raises(TableError, match="damaged Parquet file"):
        read_table(f"shelf://{folder}/part-0.parquet")
    (folder / "part-1.parquet").write_bytes(content[:-9])
    with pytest.raises(TableError, match="is truncated"):
        read_table(f"shelf://{folder}/part-1.parquet")
    (folder / "part-2.parquet").write_bytes(b"x,y\n1,2\n")
    with pytest.raises(TableError, match="not what its name says"):
        read_table(f"shelf://{folder}/part-2.parquet")


def test_nothing_is_kept_of_files_without_a_version(folder, tmp_path):
    url = f"silent://{folder}"
    expected = scan_files(url, SCAN)
    assert spill_files(url, SCAN, expected)["a"].n_rows == 50
    with pytest.raises(StorageError, match="neither ETag nor modification time"):
        scan_files(url, SCAN, checkpoint=tmp_path / "scan.part")
    with pytest.raises(StorageError, match="neither ETag nor modification time"):
        spill_files(url, SCAN, expected, folder=tmp_path / "kept")


@pytest.mark.soundness
@pytest.mark.parametrize(
    "url",
    [
        f"s3://me:{PASSWORD}@bucket/people.parquet",
        f"ftp://{PASSWORD}@host/people.csv",
        f"https://host/people.csv?signature={PASSWORD}",
        f"file://{PASSWORD}@/people.csv",
        f"simplecache::s3://bucket/{PASSWORD}.csv",
        f"s3://bucket::{PASSWORD}/people.csv",
        f"s3://KEY:SEC/{PASSWORD}@bucket/x.parquet",
        f"https://host/x.parquet#sig={PASSWORD}",
        f"https://host/x.parquet;sig={PASSWORD}",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_shown(url):
    with pytest.raises(ArgumentError, match="data URL") as caught:
        read_table(url)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["part", "gone", "shut"])
def test_what_a_filesystem_raises_is_not_shown(folder, name):
    pa.parquet.write_table(TABLE, folder / f"{name}.parquet")
    with pytest.raises(StorageError, match=r"cannot read .* \(RuntimeError\)") as caught:
        read_table(f"torn://{folder}/{name}.parquet")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_unknown_filesystems_and_paths(folder):
    with pytest.raises(ArgumentError, match="there is no filesystem 'nowhere'"):
        read_table("nowhere://people.csv")
    with pytest.raises(ArgumentError, match="as a string; a Path drops"):
        read_table(folder.__class__("s3://bucket/people.csv"))
    with pytest.raises(ArgumentError, match="needs a third slash"):
        read_table("file://people.csv")


def test_a_filesystem_whose_package_is_not_installed(monkeypatch):
    monkeypatch.setitem(
        known_implementations,
        "far",
        {"class": "far_away.Files", "err": "Install far_away"},
    )
    with pytest.raises(MissingExtraError, match="far:// needs a package of its own: Install far"):
        read_table("far://people.csv")


def test_without_fsspec_the_way_out_is_told():
    code = (
        "import sys\nsys.modules['fsspec'] = None\n"
        "from pufferslice.data import read_table\n"
        "from pufferslice.errors import MissingExtraError\n"
        "try:\n    read_table('memory://people.csv')\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pufferslice[scale]'" in done.stdout


@pytest.mark.parametrize(
    "use",
    [
        lambda url: write_whole(url, b""),
        make_folder,
        open_database,
        lambda url: read_bytes(url, "settings"),
        lambda url: scan.Checkpoint(scan.Path(url), SCAN, []).resumed({}),
    ],
)
def test_nothing_is_written_elsewhere(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"s3://me:{PASSWORD}@bucket/file"
    with pytest.raises(StorageError, match="a URL of s3:// cannot be used here") as caught:
        use(url)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    assert not list(tmp_path.iterdir())


def test_equal_names_of_one_file():
    assert RemoteFile("memory://a/b.csv").place == RemoteFile("memory:///a/b.csv").place
    assert RemoteFile("memory://a/b.csv").place != RemoteFile("shelf:///a/b.csv").place


def test_one_path_on_two_hosts_is_two_files():
    here, there = (RemoteFile(f"http://{host}/x.parquet").place for host in ("a.test", "b.test"))
    assert here != there


@pytest.mark.soundness
@pytest.mark.parametrize("end", ["", "/*.parquet"])
def test_a_file_that_is_added_later_is_read(folder, end):
    url = f"listed://{folder}{end}"
    assert read_table(url).num_rows == 100
    pa.parquet.write_table(TABLE, folder / "part-4.parquet")
    assert read_table(url).num_rows == 200
