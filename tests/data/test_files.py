# SPDX-License-Identifier: Apache-2.0
import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pufferslice.data import floats_of, frame_of, missing_rows, read_table
from pufferslice.errors import ArgumentError, StorageError, TableError

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

    def test_line_breaks_in_quotes(self, tmp_path):
        path = write(tmp_path / "t.csv", b'a,b\n1,"x\ny"\n2,z\n')
        assert read_table(path)["b"].to_pylist() == ["x\ny", "z"]

    def test_line_breaks_in_quotes_across_the_blocks_of_a_large_file(self, tmp_path):
        path = write(tmp_path / "t.csv", b"a,b\n" + b'1,"x\n\ny\n\nz"\n' * 200_000)
        table = read_table(path)
        assert table.num_rows == 200_000
        assert table["b"].unique().to_pylist() == ["x\n\ny\n\nz"]

    def test_agrees_with_pandas(self, tmp_path):
        rng = np.random.default_rng(3)
        frame = pd.DataFrame({"u": rng.normal(size=500), "n": rng.integers(0, 9, size=500)})
        frame["word"] = [f"w{n}" for n in frame["n"]]
        frame.to_csv(tmp_path / "t.csv.gz", index=False)
        read = read_table(tmp_path / "t.csv.gz").to_pandas()
        pd.testing.assert_frame_equal(read, pd.read_csv(tmp_path / "t.csv.gz"))

    def test_null_values_must_be_a_list(self, parquet):
        with pytest.raises(ArgumentError, match=r"null_values must be a list.*write \['\?'\]"):
            read_table(parquet, null_values="?")


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

    def test_null_values_apply(self, folder):
        assert read_table(folder, null_values=["?"])["job"].null_count == 1

    def test_a_file_whose_name_looks_like_a_glob(self, tmp_path):
        path = tmp_path / "t[1].parquet"
        pq.write_table(TABLE, path)
        assert read_table(path).equals(TABLE)

    def test_partition_columns_are_not_made_from_folder_names(self, tmp_path):
        folder = tmp_path / "year=2020"
        folder.mkdir()
        pq.write_table(TABLE, folder / "t.parquet")
        assert read_table(folder / "t.parquet").column_names == TABLE.column_names

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

    def test_a_link_to_nothing_is_named(self, folder):
        (folder / "z.parquet").symlink_to(folder / "gone.parquet")
        with pytest.raises(StorageError, match=r"z\.parquet"):
            read_table(folder)

    def test_a_folder_without_parquet(self, tmp_path):
        with pytest.raises(TableError, match=r"must hold Parquet files.*it has 0 and 0"):
            read_table(tmp_path)

    def test_subfolders_are_not_left_out_silently(self, folder):
        (folder / "more" / "deep").mkdir(parents=True)
        pq.write_table(TABLE, folder / "more" / "deep" / "t.parquet")
        with pytest.raises(TableError, match="it has 3 and 1"):
            read_table(folder)

    def test_a_glob_without_a_match(self, folder):
        with pytest.raises(TableError, match="matches 0 files"):
            read_table(f"{folder}/nothing-*.parquet")

    def test_a_glob_that_matches_other_files(self, folder):
        with pytest.raises(TableError, match=r"matches 4 files, 1 of them not named .parquet"):
            read_table(f"{folder}/*")

    def test_a_bad_file_among_good_ones_is_named(self, folder):
        write(folder / "part-1.parquet", b"age,job\n1,a\n")
        with pytest.raises(TableError, match=r"part-1.parquet' is not what its name says"):
            read_table(folder)


class TestBadFiles:
    @pytest.mark.parametrize("name", ["no.csv", "no.csv.gz", "no.parquet", "no/no.tsv"])
    def test_absent(self, tmp_path, name):
        with pytest.raises(StorageError, match=r"cannot read.*No such file") as caught:
            read_table(tmp_path / name)
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == 2

    def test_a_file_in_the_place_of_a_folder(self, parquet):
        with pytest.raises(StorageError, match=r"cannot read.*Not a directory"):
            read_table(parquet / "t.parquet")

    @pytest.mark.parametrize("name", ["t.xlsx", "t", "t.gz", "t.parquet.gz", "t.csv.zip"])
    def test_unknown_suffix(self, tmp_path, name):
        with pytest.raises(TableError, match=r"must end in .csv"):
            read_table(write(tmp_path / name, CSV))

    @pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
    def test_empty_file(self, tmp_path, name):
        with pytest.raises(TableError, match="is an empty file"):
            read_table(write(tmp_path / name, b""))

    @pytest.mark.parametrize("content", [b"a,b\n", b"a,b", b"\n\n"])
    def test_no_rows(self, tmp_path, content):
        with pytest.raises(TableError, match=r"is empty: 0 rows|holds no rows"):
            read_table(write(tmp_path / "t.csv", content))
        with pytest.raises(TableError, match=r"is empty: 0 rows|holds no rows"):
            read_table(write(tmp_path / "t.csv.gz", gzip.compress(content)))

    def test_gzip_of_nothing(self, tmp_path):
        with pytest.raises(TableError, match="holds no rows"):
            read_table(write(tmp_path / "t.csv.gz", gzip.compress(b"")))

    def test_parquet_without_rows(self, tmp_path):
        pq.write_table(TABLE.slice(0, 0), tmp_path / "t.parquet")
        with pytest.raises(TableError, match="is empty: 0 rows, 3 columns"):
            read_table(tmp_path / "t.parquet")

    def test_truncated_parquet_at_every_length(self, parquet):
        whole = parquet.read_bytes()
        for length in range(1, len(whole), 7):
            with pytest.raises(TableError, match=r"truncated|not what its name says"):
                read_table(write(parquet, whole[:length]))

    def test_damaged_parquet(self, parquet):
        whole = parquet.read_bytes()
        with pytest.raises(TableError, match="damaged Parquet"):
            read_table(write(parquet, whole[:4] + whole[200:]))
        with pytest.raises(TableError, match="damaged Parquet"):
            read_table(write(parquet, whole[:4] + b"\xff" * (len(whole) - 8) + whole[-4:]))

    def test_truncated_gzip_at_every_length(self, tmp_path):
        rng = np.random.default_rng(1)
        text = b"a,b\n" + b"".join(
            b"%d,%d\n" % tuple(pair) for pair in rng.integers(99, size=(99, 2))
        )
        whole = gzip.compress(text)
        for length in range(2, len(whole), 11):
            with pytest.raises(TableError, match="truncated or damaged gzip"):
                read_table(write(tmp_path / "t.csv.gz", whole[:length]))

    def test_gzip_with_a_changed_byte(self, tmp_path):
        whole = bytearray(gzip.compress(CSV))
        whole[-6] ^= 1  # inside the checksum
        with pytest.raises(TableError, match=r"truncated or damaged gzip"):
            read_table(write(tmp_path / "t.csv.gz", bytes(whole)))

    def test_names_that_lie(self, tmp_path, parquet):
        content = parquet.read_bytes()
        lies = [
            (write(tmp_path / "1.parquet", CSV), "Parquet", "something else"),
            (write(tmp_path / "2.parquet", gzip.compress(CSV)), "Parquet", "a gzip file"),
            (write(tmp_path / "3.csv", content), "UTF-8 text", "a Parquet file"),
            (write(tmp_path / "4.csv", gzip.compress(CSV)), "UTF-8 text", "a gzip file"),
            (write(tmp_path / "5.csv.gz", CSV), "gzip", "something else"),
            (write(tmp_path / "6.csv.gz", content), "gzip", "a Parquet file"),
            (write(tmp_path / "7.csv.gz", gzip.compress(content)), "UTF-8 text", "a Parquet file"),
            (write(tmp_path / "8.csv", CSV.decode().encode("utf-16")), "UTF-8 text", "something"),
            (write(tmp_path / "9.csv", b"a,b\n1,\xe9t\xe9\n"), "UTF-8 text", "something"),
            (write(tmp_path / "10.csv", b"a,\xe9\n1,2\n"), "UTF-8 text", "something"),
            (write(tmp_path / "11.csv", "a,b\n1,2\n".encode("utf-16-le")), "UTF-8 text", "some"),
        ]
        for path, wanted, found in lies:
            with pytest.raises(TableError) as caught:
                read_table(path)
            assert f"is not what its name says: expected {wanted}, found {found}" in str(
                caught.value
            )

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

    def test_a_late_ragged_row_of_a_large_file(self, tmp_path):
        path = write(tmp_path / "t.csv", b"a,b\n" + b"11,22\n" * 300_000 + b"1\n")
        with pytest.raises(TableError, match=r"has 1 rows.*row 300002"):
            read_table(path)

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_duplicate_names(self, tmp_path, kind):
        path = tmp_path / f"t.{kind}"
        if kind == "csv":
            write(path, b"a,b,a\n1,2,3\n")
        else:
            pq.write_table(pa.table([[1], [2], [3]], names=["a", "b", "a"]), path)
        with pytest.raises(TableError, match="different from each other; 'a' repeats"):
            read_table(path)
