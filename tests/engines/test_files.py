# SPDX-License-Identifier: Apache-2.0
"""Files wherever they are: by DuckDB, in batches, or in memory, always the same integers."""

import gzip
import io
import sys
import traceback

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.engines.servers import certificate_of_this_machine, serving
from tests.engines.tables import plain_query, plain_table

import pufferslice as ps
from pufferslice.data import duck, locations, read_table, readers
from pufferslice.data.engines import engine_of
from pufferslice.data.readers import FileTable
from pufferslice.data.tables import rows_of
from pufferslice.errors import StorageError, TableError
from pufferslice.scenario.rows import exact_sums

TABLE = plain_table(3_000)
FEATURES = plain_query().as_sums().features
WANTED = exact_sums(rows_of(TABLE), FEATURES, 20)
FORMATS = ("people.parquet", "people.csv", "people.tsv", "people.csv.gz", "parts")


def as_bytes(table, name):
    content = io.BytesIO()
    if name.endswith(".parquet"):
        pq.write_table(table, content, row_group_size=500)
        return content.getvalue()
    options = pa.csv.WriteOptions(delimiter="\t" if ".tsv" in name else ",")
    pa.csv.write_csv(table, content, options)
    text = content.getvalue().replace(b"true", b"True").replace(b"false", b"False")
    return gzip.compress(text) if name.endswith(".gz") else text


def written(folder, name, table=TABLE):
    path = folder / name
    if name == "parts":
        path.mkdir()
        for place in range(3):
            written(path, f"{place}.parquet", table.slice(1_000 * place, 1_000))
    else:
        path.write_bytes(as_bytes(table, name))
    return path


@pytest.fixture
def large(monkeypatch):
    """Files are too large for memory."""
    monkeypatch.setattr(FileTable, "is_small", lambda *_: False)
    monkeypatch.setattr(readers, "_BYTES_PER_BATCH", 2**13)


@pytest.fixture
def no_duckdb(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)


def integers(path):
    n_rows, sums = exact_sums(rows_of(path, FEATURES.columns), FEATURES, 20)
    return n_rows, sums.tolist()


@pytest.mark.parametrize("name", FORMATS)
class TestSameIntegers:
    def check(self, path):
        assert integers(path) == (WANTED[0], WANTED[1].tolist())

    def test_in_memory(self, tmp_path, name):
        self.check(written(tmp_path, name))

    def test_by_duckdb(self, tmp_path, name, large):
        path = written(tmp_path, name)
        held = rows_of(path, FEATURES.columns)
        if name.endswith(".gz"):
            assert isinstance(held, FileTable)
        else:
            assert engine_of(held) == "duckdb"
        self.check(path)

    def test_in_batches(self, tmp_path, name, large, no_duckdb):
        path = written(tmp_path, name)
        assert isinstance(rows_of(path, FEATURES.columns), FileTable)
        self.check(path)


@pytest.mark.parametrize("name", ["people.parquet", "people.csv"])
def test_named_texts_are_missing_everywhere(tmp_path, name, large):
    path = written(tmp_path, name)
    table = FileTable.of(path, ["A"])
    gone = TABLE.set_column(
        3, "race", pa.array([None if x == "A" else x for x in TABLE["race"].to_pylist()])
    )
    wanted = exact_sums(rows_of(gone), FEATURES, 20)
    found = exact_sums(rows_of(table, FEATURES.columns), FEATURES, 20)
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("by", ["duckdb", "batches", "memory"])
def test_an_unused_column_is_not_read(tmp_path, by, monkeypatch, request):
    """Its pages are damaged."""
    if by != "memory":
        request.getfixturevalue("large")
    if by == "batches":
        request.getfixturevalue("no_duckdb")
    photo = pa.array([f"{k:064}" for k in range(len(TABLE))])
    path = tmp_path / "people.parquet"
    pq.write_table(
        TABLE.append_column("photo", photo), path, compression="none", use_dictionary=False
    )
    about = pq.ParquetFile(path).metadata.row_group(0).column(5)
    content = bytearray(path.read_bytes())
    start = about.data_page_offset
    content[start : start + 2_000] = bytes(2_000)
    path.write_bytes(content)
    assert integers(path) == (WANTED[0], WANTED[1].tolist())
    with pytest.raises(TableError, match="damaged"):
        read_table(path)


def test_duckdb_reads_no_other_file(tmp_path, large):
    """It was told the names of the files, and may not open or fetch any other."""
    held = rows_of(written(tmp_path, "people.parquet"), FEATURES.columns)
    (other := tmp_path / "other.csv").write_text("a\n1\n")
    connection = held.to_native()
    with pytest.raises(Exception, match=r"(?i)permission|disabled|not allowed"):
        connection.query("t", f"FROM read_csv('{other}')").fetchall()


@pytest.mark.parametrize(
    ("holder", "name", "answer", "word"),
    [
        (duck, "lazy_of", lambda _: None, "DuckDB"),
        (FileTable, "csv_types", lambda *_: {"race": pa.binary()}, "'race'"),
    ],
)
def test_unknown_answers_of_libraries_are_refused(
    tmp_path, large, monkeypatch, holder, name, answer, word
):
    path = written(tmp_path, "people.csv")
    monkeypatch.setattr(holder, name, answer)
    with pytest.raises(TableError, match=word):
        rows_of(path, FEATURES.columns)


def test_a_certificate_by_file_is_that_of_the_table(tmp_path, large):
    query, options = plain_query(), {"column": "sex", "value": "F", "within": 0.05}
    by_file, in_memory = (
        ps.Scenario.from_prevalence(None, moments_from=table, n_rows=900, query=query, **options)
        for table in (written(tmp_path, "people.parquet"), TABLE)
    )
    assert by_file.description() == in_memory.description()
    assert by_file.distributions_digest() == in_memory.distributions_digest()


class TestPacked:
    """A file may not unpack to much more than its size."""

    BOMB = b"a,b\n" + b"1,2\n" * 2**20

    @pytest.fixture(autouse=True)
    def little_room(self, monkeypatch):
        monkeypatch.setattr(readers, "_MOST_PACKED", 2**16)

    @pytest.mark.parametrize("read", [read_table, lambda path: FileTable.of(path).n_rows()])
    def test_gzip(self, tmp_path, read):
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(self.BOMB))
        with pytest.raises(TableError, match="unpacks to more than 100 times"):
            read(path)

    def test_parquet(self, tmp_path):
        path = tmp_path / "t.parquet"
        pq.write_table(
            pa.table({"a": np.zeros(2**20)}), path, use_dictionary=False, compression="zstd"
        )
        with pytest.raises(TableError, match="unpacks to more than 100 times"):
            rows_of(path, ["a"])

    def test_what_is_packed_as_usual_is_read(self, tmp_path):
        rng = np.random.default_rng(2)
        text = b"a,b\n" + b"".join(b"%d,%d\n" % tuple(row) for row in rng.integers(9, size=(9, 2)))
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text))
        assert FileTable.of(path).n_rows() == 9


class TestGlobs:
    def test_stars_are_not_followed_through_links(self, tmp_path):
        part = tmp_path / "a" / "b"
        part.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1]}), part / "t.parquet")
        (part / "loop").symlink_to(tmp_path)
        assert read_table(f"{tmp_path}/**/*.parquet").num_rows == 1
        assert read_table(f"{tmp_path}/*/*/t.parquet").num_rows == 1

    def test_hidden_folders_are_not_looked_through(self, tmp_path):
        for name in (".hidden", "open"):
            (tmp_path / name).mkdir()
            pq.write_table(pa.table({"x": [1]}), tmp_path / name / "t.parquet")
        assert read_table(f"{tmp_path}/*/t.parquet").num_rows == 1

    def test_the_number_of_places_is_bounded(self, tmp_path, monkeypatch):
        monkeypatch.setattr(locations, "_MOST_LISTED", 3)
        for place in range(4):
            (tmp_path / f"{place}.txt").touch()
        for path in (f"{tmp_path}/**/*.parquet", tmp_path):
            with pytest.raises(TableError, match="may have 3 files and folders"):
                read_table(path)

    def test_a_url_of_this_machine(self, tmp_path):
        path = written(tmp_path, "people.parquet")
        assert read_table(path.as_uri()).num_rows == len(TABLE)


class TestStore:
    """A server that speaks S3, and the real client of pyarrow."""

    @pytest.fixture(autouse=True)
    def credentials(self, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    @pytest.fixture
    def url(self):
        files = {
            f"bucket/parts/{place}.parquet": as_bytes(TABLE.slice(1_000 * place, 1_000), ".parquet")
            for place in range(3)
        } | {"bucket/people.csv": as_bytes(TABLE, ".csv")}
        with serving(files) as (port, _):
            yield (
                lambda path: (
                    f"s3://bucket/{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
                )
            )

    @pytest.mark.parametrize("path", ["people.csv", "parts", "parts/*.parquet"])
    def test_files_of_a_store(self, url, path, large):
        assert isinstance(rows_of(url(path)), FileTable)
        assert integers(url(path)) == (WANTED[0], WANTED[1].tolist())

    def test_what_is_not_there_is_refused_without_the_address(self, url):
        with pytest.raises(StorageError, match="s3:// cannot be read") as caught:
            read_table(url("other.csv"))
        shown = "".join(traceback.format_exception(caught.value))
        assert "hunter2" not in shown
        assert "127.0.0.1" not in str(caught.value)


ON_THE_WEB = {name: as_bytes(TABLE, name) for name in ("people.csv", "people.parquet")}


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    return certificate_of_this_machine(tmp_path_factory.mktemp("tls"))


class TestWeb:
    """A server behind https://, with an authority of its own."""

    @pytest.fixture
    def server(self, context, monkeypatch, request):
        own, public = context
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        with serving(ON_THE_WEB, context=own, **getattr(request, "param", {})) as found:
            yield found

    @pytest.mark.parametrize("name", sorted(ON_THE_WEB))
    def test_files_are_read_in_parts(self, server, name, large):
        port, asked = server
        assert integers(f"https://127.0.0.1:{port}/{name}") == (WANTED[0], WANTED[1].tolist())
        assert all(part is not None for _, part in asked)

    @pytest.mark.parametrize(
        ("address", "why"),
        [
            ("https://me:hunter2@127.0.0.1:{}/people.csv", "user or a password"),
            ("https://127.0.0.1:{}/gone.csv", "answers 404"),
            ("https://127.0.0.1:{}/away/http:%2F%2F127.0.0.1%2Fx.csv", "not https://"),
        ],
    )
    def test_refused(self, server, address, why):
        with pytest.raises(StorageError, match=why) as caught:
            read_table(address.format(server[0]))
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("server", [{"gives_parts": False}], indirect=True)
    def test_a_server_that_gives_no_parts(self, server):
        with pytest.raises(StorageError, match="no parts"):
            read_table(f"https://127.0.0.1:{server[0]}/people.csv")

    def test_a_name_that_is_no_table(self):
        with pytest.raises(TableError, match=r"must end in \.csv"):
            read_table("https://127.0.0.1/people.html")


def numbered(folder):
    """Two numbers of which doubles make one."""
    path = folder / "cards.csv"
    path.write_text("card,sex\n" + "9007199254740992,F\n9007199254740993,M\n" * 4)
    return path


@pytest.mark.soundness
@pytest.mark.parametrize("by", ["duckdb", "batches", "memory"])
def test_whole_numbers_that_doubles_do_not_tell_apart(tmp_path, by, request):
    if by != "memory":
        request.getfixturevalue("large")
    if by == "batches":
        request.getfixturevalue("no_duckdb")
    path = numbered(tmp_path)
    features = ps.queries.summary(count={"card": 2**53}).as_sums().features
    if by == "memory":
        assert exact_sums(rows_of(path, features.columns), features, 20)[1].tolist() == [4 * 2**20]
        return
    with pytest.raises(ps.errors.ScenarioError, match="2\\^53"):
        exact_sums(rows_of(path, features.columns), features, 20)
