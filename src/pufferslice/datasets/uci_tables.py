# SPDX-License-Identifier: Apache-2.0
"""Cleveland heart disease and student performance from the files that people have.

A file is taken if its rows are those of the UCI Machine Learning Repository, whatever it is packed
in: checksums are taken over the cells, joined by commas under the header of the data folder.
"""

import csv
import hashlib
import io
import os
from pathlib import Path
from typing import Final, final

import attrs
import pyarrow as pa
import pyarrow.csv

from pufferslice.datasets.archives import GZIP_MARK, UNREADABLE, ZIP_MARK, gunzipped, unzipped
from pufferslice.datasets.folder import Origin
from pufferslice.storage import read_bytes

CLEVELAND_SHA256: Final = "a5195b7562ca4f48bda400649bfee2a7d7ed70ff72fb5cc0c486c68fd68f7f62"
STUDENT_SHA256: Final = "659f3984643c2def53ba5e49f551c6ce3657039f9c25306cacb8f43b818a5190"
"""SHA-256 of the tables as comma-separated text with a header."""

_MOST_BYTES: Final = 2**24


@final
@attrs.frozen(kw_only=True)
class _UciTable:
    """One table of the repository: how its files are named, and how its content is known."""

    origin: Origin
    member: str
    """The file's own name, also inside an archive."""
    header: str
    sha256: str

    def read(self, path: Path) -> pa.Table:
        """The table from a file, or from the first known file of a folder."""
        if path.is_dir() or not path.exists():
            path = self._file_in(path)
        content = read_bytes(path, "archive")
        try:
            text = self._normal_text(content)
        except (*UNREADABLE, csv.Error) as error:
            expected = f"a file with the table of SHA-256 {self.sha256}"
            raise self.origin.unreadable(
                str(path), content, expected=expected, error=error
            ) from error
        found = hashlib.sha256(text).hexdigest()
        if found != self.sha256:
            n_rows = text.count(b"\n") - 1
            what = f"its {n_rows} rows (SHA-256)"
            raise self.origin.damaged(str(path), what, found=found, expected=self.sha256)
        options = pa.csv.ConvertOptions(null_values=["?"], strings_can_be_null=True)
        return pa.csv.read_csv(io.BytesIO(text), convert_options=options)

    def _file_in(self, folder: Path) -> Path:
        paths = [folder / name for name in self.origin.files]
        found = next((path for path in paths if path.is_file()), None)
        if found is None:
            raise self.origin.missing_from(folder)
        return found

    def _normal_text(self, content: bytes) -> bytes:
        """Unpacked, separated by commas, without quotes, under the header."""
        if content.startswith(ZIP_MARK):
            content = unzipped(content, self.member, _MOST_BYTES)
        elif content.startswith(GZIP_MARK):
            content = gunzipped(content, _MOST_BYTES)
        lines = content.decode("utf-8-sig").splitlines()
        separator = ";" if lines and ";" in lines[0] else ","
        rows = [",".join(row) for row in csv.reader(lines, delimiter=separator) if row]
        if not rows or rows[0] != self.header:
            rows.insert(0, self.header)
        return "".join(f"{row}\n" for row in rows).encode()


_CLEVELAND: Final = _UciTable(
    origin=Origin(
        name="Cleveland heart disease",
        files=("cleveland.csv.gz", "cleveland.csv", "processed.cleveland.data",
               "heart+disease.zip", "heart-disease.zip"),
        where="Get 'Heart Disease' from the UCI Machine Learning Repository, doi:10.24432/C52P4X",
    ),
    member="processed.cleveland.data",
    header="age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num",
    sha256=CLEVELAND_SHA256,
)  # fmt: skip

_STUDENT: Final = _UciTable(
    origin=Origin(
        name="student performance (mathematics)",
        files=("student-mat.csv.gz", "student-mat.csv", "student+performance.zip",
               "student-performance.zip", "student.zip"),
        where=(
            "Get 'Student Performance' from the UCI Machine Learning Repository, "
            "doi:10.24432/C5TG7T"
        ),
    ),
    member="student-mat.csv",
    header=(
        "school,sex,age,address,famsize,Pstatus,Medu,Fedu,Mjob,Fjob,reason,guardian,traveltime,"
        "studytime,failures,schoolsup,famsup,paid,activities,nursery,higher,internet,romantic,"
        "famrel,freetime,goout,Dalc,Walc,health,absences,G1,G2,G3"
    ),
    sha256=STUDENT_SHA256,
)  # fmt: skip


def cleveland() -> pa.Table:
    """Cleveland heart disease from the folder that `PUFFERSLICE_DATA` names: 303 rows, 14 columns.

    `?` is null; it occurs in `ca` (4 rows) and `thal` (2 rows) only. Janosi, Steinbrunn, Pfisterer
    and Detrano (1989), CC BY 4.0; the investigator at Cleveland was Robert Detrano, M.D., Ph.D.
    """
    return read_cleveland(_CLEVELAND.origin.folder())


def student() -> pa.Table:
    """Student performance in mathematics from the folder that `PUFFERSLICE_DATA` names.

    395 rows, 33 columns, nothing missing. Cortez and Silva (2008), CC BY 4.0.
    """
    return read_student(_STUDENT.origin.folder())


def read_cleveland(path: str | os.PathLike[str]) -> pa.Table:
    """Cleveland heart disease from a file, or from a folder with one.

    UCI's `processed.cleveland.data`, the archive of the repository, or comma-separated text with
    a header, also gzipped. Refused unless the rows are the published ones.
    """
    return _CLEVELAND.read(Path(path))


def read_student(path: str | os.PathLike[str]) -> pa.Table:
    """Student performance in mathematics from a file, or from a folder with one.

    UCI's `student-mat.csv`, the archive of the repository (or the one inside it), or
    comma-separated text with a header, also gzipped. Refused unless the rows are the published
    ones.
    """
    return _STUDENT.read(Path(path))
