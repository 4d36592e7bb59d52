# SPDX-License-Identifier: Apache-2.0
"""Files in pieces: row groups and batches of CSV, the same each time; damaged files."""

import gzip

import pyarrow as pa
import pyarrow.parquet
import pytest

from pufferslice.data import readers
from pufferslice.data.readers import Piece, Reading, batches, pieces_of
from pufferslice.errors import StorageError, TableError

READING = Reading(columns=("name", "age"), labels=("name",))


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(readers, "_BYTES_PER_BATCH", 64)


def csv(tmp_path, text, name="people.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def rows_of(path, reading=READING):
    (piece,) = pieces_of([path], reading.columns)
    return pa.concat_tables(batches(piece, reading)).to_pydict()


class TestParquet:
    def test_one_piece_for_each_row_group_that_has_rows(self, tmp_path):
        path = tmp_path / "people.parquet"
        pa.parquet.write_table(pa.table({"name": list("abcde")}), path, row_group_size=2)
        found = pieces_of([path], ["name"])
        assert found == [Piece(path, 0, 2), Piece(path, 1, 2), Piece(path, 2, 1)]
        assert str(found[1]).endswith("people.parquet', row group 1")
        (last,) = batches(found[2], Reading(("name",), ("name",)))
        assert last.to_pydict() == {"name": ["e"]}

    def test_only_the_named_columns_and_null_values(self, tmp_path):
        path = tmp_path / "people.parquet"
        table = pa.table({"name": ["a", "?"], "age": [1, 2], "photo": [b"x", b"y"]})
        pa.parquet.write_table(table, path)
        reading = READING._replace(null_values=("?",))
        assert rows_of(path, reading) == {"name": ["a", None], "age": [1, 2]}

    def test_damage_is_told(self, tmp_path):
        path = tmp_path / "people.parquet"
        pa.parquet.write_table(pa.table({"name": ["a"] * 1_000, "age": range(1_000)}), path)
        content = bytearray(path.read_bytes())
        content[10:200] = bytes(190)
        path.write_bytes(content)
        with pytest.raises(TableError, match="damaged Parquet file"):
            rows_of(path)


class TestCsv:
    def test_batches_hold_all_rows_in_order(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "".join(f"n{i},{i}\n" for i in range(100)))
        (piece,) = pieces_of([path], READING.columns)
        assert len(list(batches(piece, READING))) > 5
        assert rows_of(path) == {"name": [f"n{i}" for i in range(100)], "age": list(range(100))}
        assert str(piece).endswith("people.csv'")

    def test_decimals_may_come_after_whole_numbers(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "a,1\n" * 50 + "b,2.5\n")
        assert rows_of(path)["age"][-1] == 2.5

    def test_values_may_come_after_empty_cells(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + ",\n" * 50 + "b,2.5\n")
        found = rows_of(path)
        assert (found["name"][-1], found["age"][-1]) == ("b", 2.5)
        assert found["age"][0] is None

    def test_a_label_that_changes_its_type_is_refused_unseen(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "1,1\n" * 50 + "private,2\n")
        with pytest.raises(TableError, match="a column changes its type") as caught:
            rows_of(path)
        assert "private" not in str(caught.value)
        assert caught.value.__cause__ is None

    def test_a_ragged_row_is_refused_unseen(self, tmp_path, small_batches):
        path = csv(tmp_path, "name,age\n" + "a,1\n" * 50 + "private,2,3\n")
        with pytest.raises(TableError, match="another number of cells") as caught:
            rows_of(path)
        assert "private" not in str(caught.value)

    def test_unknown_column(self, tmp_path):
        with pytest.raises(TableError, match="there is no column 'age'"):
            rows_of(csv(tmp_path, "name,aged\na,1\n"))

    def test_not_utf8(self, tmp_path):
        path = tmp_path / "people.csv"
        path.write_bytes("name,age\nJos\xe9,1\n".encode("latin-1"))
        with pytest.raises(TableError, match="expected UTF-8 text"):
            rows_of(path)

    def test_truncated_gzip(self, tmp_path):
        path = tmp_path / "people.csv.gz"
        whole = gzip.compress(b"name,age\n" + b"a,1\n" * 10_000)
        path.write_bytes(whole[:-20])
        with pytest.raises(TableError, match="truncated or damaged gzip"):
            rows_of(path)

    def test_absent_and_empty_files(self, tmp_path):
        with pytest.raises(StorageError, match="cannot read"):
            pieces_of([tmp_path / "absent.csv"], ["name"])
        with pytest.raises(TableError, match="is an empty file"):
            pieces_of([csv(tmp_path, "")], ["name"])
