# SPDX-License-Identifier: Apache-2.0
"""Files as tables, whole and in pieces: the same rows from every format, and damaged files."""

import gzip
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.data import read_table, readers
from pufferslice.data.frames import floats_of, frame_of, missing_rows
from pufferslice.data.readers import FileTable
from pufferslice.errors import StorageError, TableError

TABLE = pa.table({"age": [30, 40, 50], "job": ["a", "?", "c"], "pay": [1.5, 2.5, 3.5]})
CSV = b"age,job,pay\n30,a,1.5\n40,?,2.5\n50,c,3.5\n"


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(TABLE, path)
    return path


def write(path, content):
    path.write_bytes(content)
    return path


class TestWhole:
    def test_every_format_gives_the_same_table(self, tmp_path, parquet):
        paths = [
            parquet,
            write(tmp_path / "t.csv", CSV),
            write(tmp_path / "T.CSV", CSV),
            write(tmp_path / "t.csv.gz", gzip.compress(CSV)),
            write(tmp_path / "t.tsv", CSV.replace(b",", b"\t")),
            write(tmp_path / "t.tsv.gz", gzip.compress(CSV.replace(b",", b"\t"))),
            write(tmp_path / "bom.csv", b"\xef\xbb\xbf" + CSV),
            write(tmp_path / "crlf.csv", CSV.replace(b"\n", b"\r\n")),
        ]
        for path in paths:
            assert read_table(path).equals(TABLE), path
            assert read_table(str(path)).equals(TABLE)

    def test_named_texts_become_nulls_in_every_format(self, tmp_path, parquet):
        encoded = tmp_path / "encoded.parquet"
        pq.write_table(TABLE.set_column(1, "job", TABLE["job"].dictionary_encode()), encoded)
        large = tmp_path / "large.parquet"
        pq.write_table(TABLE.set_column(1, "job", TABLE["job"].cast(pa.large_string())), large)
        for path in (parquet, encoded, large, write(tmp_path / "t.csv", CSV)):
            table = read_table(path, null_values=["?"])
            assert table["job"].to_pylist() == ["a", None, "c"]
            assert table["age"].to_pylist() == [30, 40, 50]

    def test_a_named_text_leaves_a_column_of_numbers_numeric(self, tmp_path):
        path = write(tmp_path / "t.csv", b"a,b\n1,x\n?,y\n3,z\n")
        frame = frame_of(read_table(path, null_values=["?"]))
        assert missing_rows(frame, ["a"]).tolist() == [False, True, False]
        assert floats_of(frame[[0, 2]], "a").tolist() == [1.0, 3.0]
        with pytest.raises(TableError, match="null_values"):
            floats_of(frame_of(read_table(path)), "a")

    def test_an_empty_cell_is_missing_and_na_is_a_text(self, tmp_path):
        path = write(tmp_path / "t.csv", b'a,b\n1,NA\n,""\n3,\n')
        table = read_table(path)
        assert table["a"].to_pylist() == [1, None, 3]
        assert table["b"].to_pylist() == ["NA", None, None]

    def test_line_breaks_in_quotes_across_the_blocks_of_a_large_file(self, tmp_path):
        path = write(tmp_path / "t.csv", b"a,b\n" + b'1,"x\n\ny\n\nz"\n' * 200_000)
        table = read_table(path)
        assert table.num_rows == 200_000
        assert table["b"].unique().to_pylist() == ["x\n\ny\n\nz"]


class TestSeveralFiles:
    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "parts"
        folder.mkdir()
        for index in range(3):
            pq.write_table(TABLE.slice(index, 1), folder / f"part-{index}.parquet")
        (folder / "_SUCCESS").touch()
        return folder

    def test_folder_and_glob_join_in_the_order_of_names(self, folder):
        assert read_table(folder).equals(TABLE)
        assert read_table(f"{folder}/part-*.parquet").equals(TABLE)
        assert read_table(f"{folder}/part-[12].parquet").equals(TABLE.slice(1))

    def test_a_file_whose_name_looks_like_a_glob(self, tmp_path):
        path = tmp_path / "t[1].parquet"
        pq.write_table(TABLE, path)
        assert read_table(path).equals(TABLE)

    @pytest.mark.parametrize(
        ("other", "differing"),
        [
            (TABLE.rename_columns(["age", "work", "pay"]), "job, work"),
            (TABLE.set_column(0, "age", TABLE["age"].cast(pa.float64())), "age"),
            (TABLE.drop_columns(["pay"]), "pay"),
            (TABLE.select(["pay", "age", "job"]), "their order"),
        ],
    )
    def test_different_schemas_are_named(self, folder, other, differing):
        pq.write_table(other, folder / "part-9.parquet")
        with pytest.raises(TableError, match=f"part-9.*same columns.*differ in {differing}\\."):
            read_table(folder)

    @pytest.mark.soundness
    @pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
    def test_rows_of_one_file_do_not_count_twice(self, folder, link):
        first = min(folder.glob("*.parquet"))
        getattr(folder / "z.parquet", link)(first)
        for path in (folder, f"{folder}/*.parquet"):
            with pytest.raises(TableError, match=f"{first.name}' and .*z.parquet' are one file"):
                read_table(path)

    def test_subfolders_are_not_left_out_silently(self, folder):
        (folder / "more" / "deep").mkdir(parents=True)
        pq.write_table(TABLE, folder / "more" / "deep" / "t.parquet")
        with pytest.raises(TableError, match="it has 3 and 1"):
            read_table(folder)

    def test_other_files_and_none(self, folder, tmp_path):
        with pytest.raises(TableError, match=r"must hold Parquet files.*it has 0 and 3"):
            read_table(folder.parent)
        with pytest.raises(TableError, match="matches 0 files"):
            read_table(f"{folder}/nothing-*.parquet")
        with pytest.raises(TableError, match=r"matches 4 files, 1 of them not named .parquet"):
            read_table(f"{folder}/*")
        (folder / "z.parquet").symlink_to(folder / "gone.parquet")
        with pytest.raises(StorageError, match=r"z\.parquet"):
            read_table(folder)


class TestBadFiles:
    @pytest.mark.parametrize("scheme", ["ftp", "http", "gcs", "sftp", "data", "hdfs"])
    def test_a_url_is_refused_without_its_password(self, scheme):
        url = f"{scheme}://me:hunter2@bucket/people.parquet"
        for path in (url, Path(url)):
            with pytest.raises(StorageError, match=rf"of {scheme}:// cannot be read") as caught:
                read_table(path)
            assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    def test_a_missing_header_is_not_shown(self, tmp_path):
        with pytest.raises(TableError, match="missing its header") as caught:
            read_table(write(tmp_path / "t.csv", b"63,rare,rare\n64,b,c\n"))
        assert "rare" not in str(caught.value)

    def test_truncated_parquet_at_every_length(self, parquet):
        whole = parquet.read_bytes()
        for length in range(1, len(whole), 7):
            with pytest.raises(TableError, match=r"truncated|not what its name says"):
                read_table(write(parquet, whole[:length]))

    def test_truncated_gzip_at_every_length(self, tmp_path):
        rng = np.random.default_rng(1)
        text = b"a,b\n" + b"".join(
            b"%d,%d\n" % tuple(pair) for pair in rng.integers(99, size=(99, 2))
        )
        whole = gzip.compress(text)
        for length in range(2, len(whole), 11):
            with pytest.raises(TableError, match="truncated or damaged gzip"):
                read_table(write(tmp_path / "t.csv.gz", whole[:length]))

    def test_names_that_lie(self, tmp_path, parquet):
        content = parquet.read_bytes()
        lies = [
            (write(tmp_path / "1.parquet", CSV), "Parquet", "something else"),
            (write(tmp_path / "2.parquet", gzip.compress(CSV)), "Parquet", "a gzip file"),
            (write(tmp_path / "3.csv", content), "UTF-8 text", "a Parquet file"),
            (write(tmp_path / "4.csv", gzip.compress(CSV)), "UTF-8 text", "a gzip file"),
            (write(tmp_path / "5.csv.gz", CSV), "gzip", "something else"),
            (write(tmp_path / "7.csv.gz", gzip.compress(content)), "UTF-8 text", "a Parquet file"),
            (write(tmp_path / "8.csv", CSV.decode().encode("utf-16")), "UTF-8 text", "something"),
            (write(tmp_path / "9.csv", b"a,b\n1,\xe9t\xe9\n"), "UTF-8 text", "something"),
            (write(tmp_path / "10.csv", b"a,\xe9\n1,2\n"), "UTF-8 text", "something"),
        ]
        for path, wanted, found in lies:
            with pytest.raises(TableError) as caught:
                read_table(path)
            assert f"is not what its name says: expected {wanted}, found {found}" in str(
                caught.value
            )

    def test_a_semicolon_in_a_name_is_taken(self, tmp_path):
        assert read_table(write(tmp_path / "t.csv", b"a;b,c\n1,2\n")).column_names == ["a;b", "c"]

    def test_ragged_rows_are_counted_and_numbered_but_not_shown(self, tmp_path):
        path = write(tmp_path / "t.csv", b"a,b\n1,2\nprivate\n3,4\n5,private,7\n")
        with pytest.raises(TableError) as caught:
            read_table(path)
        message = str(caught.value)
        assert "has 2 rows with another number of cells" in message
        assert "the first is row 3, with 1 cells where the header has 2" in message
        assert "private" not in message
        assert caught.value.__context__ is None

    def test_ragged_rows_that_are_no_text(self, tmp_path, capsys):
        """pyarrow would print a traceback when it hands over such a row."""
        path = write(tmp_path / "t.csv", b"a,b\n1,2\n\xb7\n3,4\n")
        with pytest.raises(TableError, match="expected UTF-8 text") as caught:
            read_table(path)
        assert caught.value.__context__ is None
        assert not capsys.readouterr().err


COLUMNS = ("name", "age")


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(readers, "_BYTES_PER_BATCH", 64)


def csv(tmp_path, text, name="people.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def rows_of(path):
    frames = list(FileTable.of(path).frames(COLUMNS))
    return pa.concat_tables([frame.to_arrow() for frame in frames]).to_pydict()


class TestParquetBatches:
    def test_rows_of_all_row_groups_and_files(self, tmp_path):
        path = tmp_path / "people.parquet"
        table = pa.table({"name": list("abcde"), "age": range(5)})
        pq.write_table(table, path, row_group_size=2)
        pq.write_table(table.slice(0, 0), tmp_path / "qeople.parquet")
        for given in (path, tmp_path):
            assert rows_of(given) == table.to_pydict()
            assert FileTable.of(given).n_rows() == 5

    def test_only_the_named_columns(self, tmp_path):
        path = tmp_path / "people.parquet"
        table = pa.table({"name": ["a", "?"], "age": [1, 2], "photo": [b"x", b"y"]})
        pq.write_table(table, path)
        assert rows_of(path) == {"name": ["a", "?"], "age": [1, 2]}

    def test_damage_is_told(self, tmp_path):
        path = tmp_path / "people.parquet"
        pq.write_table(pa.table({"name": ["a"] * 1_000, "age": range(1_000)}), path)
        content = bytearray(path.read_bytes())
        content[10:200] = bytes(190)
        path.write_bytes(content)
        with pytest.raises(TableError, match="damaged Parquet file"):
            rows_of(path)

    def test_a_name_that_is_no_text_is_damage(self, tmp_path):
        path = tmp_path / "people.parquet"
        pq.write_table(pa.table({"name": ["a"], "age": [1]}), path, store_schema=False)
        path.write_bytes(path.read_bytes().replace(b"name", b"\x8dame"))
        with pytest.raises(TableError, match="damaged Parquet file"):
            rows_of(path)


class TestCsvBatches:
    def test_batches_hold_all_rows_in_order(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "".join(f"n{i},{i}\n" for i in range(100)))
        assert len(list(FileTable.of(path).frames(COLUMNS))) > 5
        assert rows_of(path) == {"name": [f"n{i}" for i in range(100)], "age": list(range(100))}

    def test_decimals_may_come_after_integers(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "a,1\n" * 50 + "b,2.5\n")
        assert rows_of(path)["age"][-1] == 2.5

    def test_values_may_come_after_empty_cells(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "a,\n" * 50 + "b,2.5\n")
        found = rows_of(path)
        assert (found["age"][0], found["age"][-1]) == (None, 2.5)

    def test_a_label_that_changes_its_type_is_refused_unseen(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "1,1\n" * 50 + "private,2\n")
        with pytest.raises(TableError, match="a column changes its type") as caught:
            rows_of(path)
        assert "private" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_damage_is_told(self, tmp_path):
        path = write(tmp_path / "people.csv", "name,age\nJos\xe9,1\n".encode("latin-1"))
        with pytest.raises(TableError, match="expected UTF-8 text"):
            rows_of(path)
        whole = gzip.compress(b"name,age\n" + b"a,1\n" * 10_000)
        with pytest.raises(TableError, match="truncated or damaged gzip"):
            rows_of(write(tmp_path / "people.csv.gz", whole[:-20]))

    def test_a_ragged_row_is_refused_unseen(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "a,1\n" * 50 + "private,2,3\n")
        with pytest.raises(TableError, match="another number of cells") as caught:
            rows_of(path)
        assert "private" not in str(caught.value)
