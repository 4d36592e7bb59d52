# SPDX-License-Identifier: Apache-2.0
"""Cleveland and student in every form that people have them in, and damaged in every form."""

import gzip
import hashlib
import io
import zipfile

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from pufferslice.data import frame_of, missing_rows
from pufferslice.errors import StorageError
from reproduction import data
from reproduction.data import CLEVELAND_SHA256, STUDENT_SHA256, read_cleveland, read_student

# Published SHA-256 of the files of the repository, from which the originals are known.
UCI_CLEVELAND = "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
UCI_STUDENT = "e47f9ee225e1ee6e69b7564e6dac7123e80b8486677fe111f351964cef5dec80"


@pytest.fixture(scope="session")
def cleveland_text(data_folder):
    return gzip.decompress((data_folder / "cleveland.csv.gz").read_bytes())


@pytest.fixture(scope="session")
def student_text(data_folder):
    return gzip.decompress((data_folder / "student-mat.csv.gz").read_bytes())


@pytest.fixture(scope="session")
def uci_cleveland(cleveland_text):
    """`processed.cleveland.data`, to the last byte."""
    text = cleveland_text.split(b"\n", 1)[1]
    assert hashlib.sha256(text).hexdigest() == UCI_CLEVELAND
    return text


@pytest.fixture(scope="session")
def uci_student(student_text):
    """`student-mat.csv`, to the last byte: semicolons, and quotes round text, G1 and G2."""
    header, *rows = [line.split(",") for line in student_text.decode().splitlines()]
    quoted = [header.index(name) for name in ("G1", "G2")]
    lines = [";".join(header)]
    for row in rows:
        cells = [
            f'"{cell}"' if k in quoted or not cell.isdigit() else cell for k, cell in enumerate(row)
        ]
        lines.append(";".join(cells))
    for text in ("\n".join(lines) + "\n", "\r\n".join(lines) + "\r\n"):
        if hashlib.sha256(text.encode()).hexdigest() == UCI_STUDENT:
            return text.encode()
    pytest.fail("the original could not be rebuilt")


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return file.getvalue()


class TestCounts:
    def test_cleveland(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        table = data.cleveland()
        assert table.shape == (303, 14)
        nulls = {name: table[name].null_count for name in table.column_names}
        assert {name: n for name, n in nulls.items() if n} == {"ca": 4, "thal": 2}
        assert int(missing_rows(frame_of(table), table.column_names).sum()) == 303 - 297
        assert pc.sum(table["sex"]).as_py() == 206
        assert np.bincount(table["num"].to_numpy()).tolist() == [164, 55, 36, 35, 13]

    def test_student(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        table = data.student()
        assert table.shape == (395, 33)
        assert sum(column.null_count for column in table.columns) == 0
        assert pc.sum(pc.equal(table["sex"], "F")).as_py() == 208
        assert pc.mean(table["G3"]).as_py() == pytest.approx(10.41519, abs=5e-6)
        assert np.bincount(table["studytime"].to_numpy())[1:].tolist() == [105, 198, 65, 27]


class TestForms:
    def test_cleveland(self, cleveland_text, uci_cleveland, tmp_path):
        assert hashlib.sha256(cleveland_text).hexdigest() == CLEVELAND_SHA256
        forms = {
            "cleveland.csv.gz": gzip.compress(cleveland_text),
            "cleveland.csv": cleveland_text,
            "processed.cleveland.data": uci_cleveland,
            "windows.data": uci_cleveland.replace(b"\n", b"\r\n"),
            "no-last-line-end.data": uci_cleveland.rstrip(),
            "marked.csv": b"\xef\xbb\xbf" + cleveland_text,
            "heart+disease.zip": zipped(
                processed_dot_va_dot_data="1,2\n", **{"processed.cleveland.data": uci_cleveland}
            ),
            "in-a-folder.zip": zipped(**{"heart__processed.cleveland.data": uci_cleveland}),
        }
        tables = []
        for name, content in forms.items():
            (tmp_path / name).write_bytes(content)
            tables.append(read_cleveland(tmp_path / name))
        assert all(table.equals(tables[0]) for table in tables)

    def test_student(self, student_text, uci_student, tmp_path):
        assert hashlib.sha256(student_text).hexdigest() == STUDENT_SHA256
        inner = zipped(**{"student-mat.csv": uci_student, "student-por.csv": "other"})
        forms = {
            "student-mat.csv.gz": gzip.compress(student_text),
            "student-mat.csv": uci_student,
            "student.zip": inner,
            "student+performance.zip": zipped(**{".student.zip_old": b"", "student.zip": inner}),
        }
        tables = []
        for name, content in forms.items():
            (tmp_path / name).write_bytes(content)
            tables.append(read_student(tmp_path / name))
        assert all(table.equals(tables[0]) for table in tables)

    def test_the_values_are_those_of_pandas(self, data_folder):
        for read, name in ((read_cleveland, "cleveland"), (read_student, "student-mat")):
            expected = pd.read_csv(data_folder / f"{name}.csv.gz", na_values=["?"])
            pd.testing.assert_frame_equal(read(data_folder).to_pandas(), expected)

    def test_the_first_known_file_of_a_folder(self, uci_cleveland, tmp_path):
        (tmp_path / "processed.cleveland.data").write_bytes(uci_cleveland)
        assert read_cleveland(tmp_path).num_rows == 303
        (tmp_path / "cleveland.csv").write_bytes(b"age\n1\n")
        with pytest.raises(StorageError, match=r"cleveland\.csv' is damaged"):
            read_cleveland(tmp_path)


class TestMissingAndDamaged:
    @pytest.mark.parametrize(
        ("read", "named"),
        [
            (data.cleveland, r"cleveland\.csv\.gz, .*doi:10\.24432/C52P4X"),
            (data.student, r"student-mat\.csv\.gz, .*doi:10\.24432/C5TG7T"),
        ],
    )
    def test_missing_says_where_to_get_it(self, read, named, tmp_path, monkeypatch):
        monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
        with pytest.raises(StorageError, match=f"set PUFFERSLICE_DATA to a folder with {named}"):
            read()
        monkeypatch.setenv("PUFFERSLICE_DATA", str(tmp_path))
        with pytest.raises(StorageError, match=f"no .* in '{tmp_path}': there is no {named}"):
            read()
        monkeypatch.setenv("PUFFERSLICE_DATA", str(tmp_path / "absent"))
        with pytest.raises(StorageError, match=f"no .*absent': there is no {named}"):
            read()

    def test_another_cell_is_another_checksum(self, uci_cleveland, tmp_path):
        path = tmp_path / "processed.cleveland.data"
        changed = uci_cleveland.replace(b"63.0,1.0,1.0,145.0", b"64.0,1.0,1.0,145.0", 1)
        path.write_bytes(changed)
        header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
        found = hashlib.sha256(header.encode() + changed).hexdigest()
        with pytest.raises(StorageError) as caught:
            read_cleveland(path)
        for fragment in (str(path), f"its 303 rows (SHA-256) is {found}", CLEVELAND_SHA256, "doi:"):
            assert fragment in str(caught.value)
        assert "145" not in str(caught.value).replace(found, "")

    def test_a_row_less_or_more(self, uci_student, tmp_path):
        path = tmp_path / "student-mat.csv"
        lines = uci_student.splitlines(keepends=True)
        for changed, n_rows in ((lines[:-1], 394), ([*lines, lines[-1]], 396), (lines[:1], 0)):
            path.write_bytes(b"".join(changed))
            with pytest.raises(StorageError, match=f"checksum of its {n_rows} rows"):
                read_student(path)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\x1f\x8b cut off",
            b"PK\x03\x04 cut off",
            b"\xff\xfe\x00 no text",
            b'"' + b"x" * 200_000 + b'"\n',
            zipped(other_dot_csv=b"1,2\n"),
            zipped(inner_dot_zip=b"no archive"),
            zipped(inner_dot_zip=zipped(other_dot_csv=b"1")),
        ],
        ids=["empty", "gzip", "zip", "bytes", "cell", "no member", "inner", "no inner member"],
    )
    def test_unreadable(self, content, tmp_path):
        path = tmp_path / "student-mat.csv.gz"
        path.write_bytes(content)
        with pytest.raises(StorageError) as caught:
            read_student(path)
        message = str(caught.value)
        assert str(path) in message
        assert STUDENT_SHA256 in message
        assert "doi:10.24432/C5TG7T" in message
        if content:
            assert hashlib.sha256(content).hexdigest() in message

    def test_every_damaged_byte_of_an_archive_is_noticed(self, student_text, tmp_path, rng):
        whole = gzip.compress(student_text, mtime=0)
        path = tmp_path / "student-mat.csv.gz"
        # Bytes 3 to 9 of a gzip header are flags, time and system: no part of the content.
        for place in (*rng.integers(10, len(whole), size=40), 0, 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1 + int(rng.integers(255))
            path.write_bytes(damaged)
            with pytest.raises(StorageError, match=r"student-mat\.csv\.gz' is damaged"):
                read_student(path)
        path.write_bytes(whole[:-1])
        with pytest.raises(StorageError, match="EOFError"):
            read_student(path)


class TestSizeLimits:
    def test_archives_that_unpack_to_too_much(self):
        zeros = bytes(1_001)
        assert data.gunzipped(gzip.compress(zeros), 1_001) == zeros
        for unpack in (
            lambda most: data.gunzipped(gzip.compress(zeros), most),
            lambda most: data.unzipped(zipped(a=zeros), "a", most),
            lambda most: data.unzipped(zipped(b_dot_zip=zipped(a=zeros)), "a", most),
        ):
            assert unpack(1_001) == zeros
            with pytest.raises(ValueError, match="more than 1000 bytes"):
                unpack(1_000)


class TestSummaries:
    def test_cleveland(self, data_folder):
        table = read_cleveland(data_folder)
        frame = table.to_pandas()
        query = data.cleveland_summary()
        columns = ["age", "trestbps", "chol"]
        expected = [
            *frame[columns].mean(),
            *frame[columns].std(ddof=0),
            (frame["chol"] >= 240).mean(),
            (frame["trestbps"] >= 140).mean(),
            (frame["num"] > 0).mean(),
        ]
        np.testing.assert_allclose(query.outputs(table)[0], expected, rtol=1e-12)
        assert expected[-1] == pytest.approx(139 / 303)
        assert query.scales.tolist() == [10, 20, 50, 5, 10, 25, 0.1, 0.1, 0.1]
        values = frame[columns].to_numpy()
        assert (values >= query.range.low[:3]).all()
        assert (values <= query.range.high[:3]).all()

    def test_student(self, data_folder):
        table = read_student(data_folder)
        frame = table.to_pandas()
        query = data.student_summary()
        grades = ["G1", "G2", "G3"]
        expected = [
            *frame[grades].mean(),
            *frame[grades].std(ddof=0),
            (65 + 27) / 395,
            (frame["failures"] > 0).mean(),
            (frame["absences"] > 10).mean(),
        ]
        np.testing.assert_allclose(query.outputs(table)[0], expected, rtol=1e-12)
        assert query.range.low.tolist() == [0] * 9
        assert query.range.high.tolist() == [20, 20, 20, 10, 10, 10, 1, 1, 1]
        assert query.scales.tolist() == [2, 2, 2, 1, 1, 1, 0.1, 0.1, 0.1]
