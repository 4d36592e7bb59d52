# SPDX-License-Identifier: Apache-2.0
"""Cleveland heart disease, student performance and CIFAR-10, from a folder that the user names.

None of them ships with the library. A file is accepted if its rows or pixels are the published
ones: checksums of tables are taken over the cells, joined by commas under a header, and those of
images over the pixels. No file is a program: CIFAR-10 is read from its binary version or from numpy
archives, never from pickles.
"""

import csv
import errno
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from pufferslice._core.arrays import arrays_in
from pufferslice._core.files import read_bytes
from pufferslice.data import LabelledImages
from pufferslice.errors import StorageError
from pufferslice.queries import Box, Query, above, at_least, summary

DATA_FOLDER: Final = "PUFFERSLICE_DATA"
"""The environment variable that names the folder."""

CHECKSUMS: Final = "SHA256SUMS"
"""A list of checksums that may be in the folder, in the format of `sha256sum`."""

CLEVELAND_SHA256: Final = "a5195b7562ca4f48bda400649bfee2a7d7ed70ff72fb5cc0c486c68fd68f7f62"
STUDENT_SHA256: Final = "659f3984643c2def53ba5e49f551c6ce3657039f9c25306cacb8f43b818a5190"
"""SHA-256 of the tables as comma-separated text with a header."""

_UNREADABLE: Final = (EOFError, LookupError, OSError, ValueError, csv.Error, zlib.error)
"""Errors on damaged files."""

_MOST_TABLE_BYTES: Final = 2**24
_GZIP_MARK: Final = b"\x1f\x8b"


@final
@attrs.frozen(kw_only=True)
class Origin:
    """The name of a dataset, its files, and where to get them."""

    name: str
    files: tuple[str, str]
    """Names that are looked for in a folder; the first one that exists is read."""
    where: str
    """Where to get it; the end of an error message."""

    def folder(self) -> Path:
        """The folder that the environment names, which is required."""
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            raise StorageError(
                errno.ENOENT,
                f"{self.name} does not ship with the library: set {DATA_FOLDER} to a folder with "
                f"{' or '.join(self.files)}. {self.where}",
            )
        return Path(folder)

    def missing_from(self, folder: Path) -> StorageError:
        """The error for a folder that has none of the files."""
        files = " or ".join(self.files)
        return StorageError(
            errno.ENOENT, f"no {self.name} in {str(folder)!r}: there is no {files}. {self.where}"
        )

    def damaged(
        self, path: Path, what: str, *, sha256: str, expected: str, error: Exception | None = None
    ) -> StorageError:
        """The error for a file with another checksum, or that cannot be read; shows no content."""
        reason = "" if error is None else f"it cannot be read ({type(error).__name__}), and "
        return StorageError(
            f"{str(path)!r} is damaged, or is not {self.name}: {reason}the SHA-256 of {what} is "
            f"{sha256}, expected {expected}. {self.where}"
        )


@final
@attrs.frozen(kw_only=True)
class _UciTable:
    """One table of the repository: how its files are named, and how its content is known."""

    origin: Origin
    header: str
    sha256: str

    def read(self, path: Path) -> pa.Table:
        """The table from a file, or from the first known file of a folder."""
        if path.is_dir() or not path.exists():
            paths = [path / name for name in self.origin.files if (path / name).is_file()]
            if not paths:
                raise self.origin.missing_from(path)
            path = paths[0]
        content = read_bytes(path, "archive")
        try:
            text = self._normal_text(content)
        except _UNREADABLE as error:
            expected = f"a file with the table of SHA-256 {self.sha256}"
            sha256 = hashlib.sha256(content).hexdigest()
            raise self.origin.damaged(
                path, "the file", sha256=sha256, expected=expected, error=error
            ) from error
        sha256 = hashlib.sha256(text).hexdigest()
        if sha256 != self.sha256:
            n_rows = text.count(b"\n") - 1
            raise self.origin.damaged(
                path, f"its {n_rows} rows", sha256=sha256, expected=self.sha256
            )
        options = pa.csv.ConvertOptions(null_values=["?"], strings_can_be_null=True)
        return pa.csv.read_csv(io.BytesIO(text), convert_options=options)

    def _normal_text(self, content: bytes) -> bytes:
        """Unpacked, separated by commas, without quotes, under the header."""
        if content.startswith(_GZIP_MARK):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(_MOST_TABLE_BYTES + 1)
        if len(content) > _MOST_TABLE_BYTES:
            raise ValueError(f"it has more than {_MOST_TABLE_BYTES} bytes")
        lines = content.decode("utf-8-sig").splitlines()
        separator = ";" if lines and ";" in lines[0] else ","
        rows = [",".join(row) for row in csv.reader(lines, delimiter=separator) if row]
        if not rows or rows[0] != self.header:
            rows.insert(0, self.header)
        return "".join(f"{row}\n" for row in rows).encode()


_CLEVELAND: Final = _UciTable(
    origin=Origin(
        name="Cleveland heart disease",
        files=("cleveland.csv.gz", "processed.cleveland.data"),
        where="Get 'Heart Disease' from the UCI Machine Learning Repository, doi:10.24432/C52P4X",
    ),
    header="age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num",
    sha256=CLEVELAND_SHA256,
)

_STUDENT: Final = _UciTable(
    origin=Origin(
        name="student performance (mathematics)",
        files=("student-mat.csv.gz", "student-mat.csv"),
        where=(
            "Get 'Student Performance' from the UCI Machine Learning Repository, "
            "doi:10.24432/C5TG7T"
        ),
    ),
    header=(
        "school,sex,age,address,famsize,Pstatus,Medu,Fedu,Mjob,Fjob,reason,guardian,traveltime,"
        "studytime,failures,schoolsup,famsup,paid,activities,nursery,higher,internet,romantic,"
        "famrel,freetime,goout,Dalc,Walc,health,absences,G1,G2,G3"
    ),
    sha256=STUDENT_SHA256,
)


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

    UCI's `processed.cleveland.data`, or comma-separated text with a header, also gzipped. Refused
    unless the rows are the published ones.
    """
    return _CLEVELAND.read(Path(path))


def read_student(path: str | os.PathLike[str]) -> pa.Table:
    """Student performance in mathematics from a file, or from a folder with one.

    UCI's `student-mat.csv`, or comma-separated text with a header, also gzipped. Refused unless the
    rows are the published ones.
    """
    return _STUDENT.read(Path(path))


_CLINIC: Final = ("age", "trestbps", "chol")
_CLINIC_LOW: Final = np.array([18.0, 60.0, 50.0])
_CLINIC_HIGH: Final = np.array([100.0, 260.0, 650.0])
_GRADES: Final = ("G1", "G2", "G3")
_BEST_GRADE: Final = 20.0


def cleveland_summary() -> Query:
    """The paper's nine statistics of the Cleveland table, with public scales and range.

    Means and standard deviations of age, resting blood pressure and cholesterol; shares of rows
    with cholesterol from 240 mg/dl, blood pressure from 140 mmHg, and heart disease. Scales: 10
    years, 20 mmHg and 50 mg/dl for the means, half of that for the standard deviations, 0.1 for
    the shares. Range: ages 18 to 100, 60 to 260 mmHg, 50 to 650 mg/dl; a standard deviation is at
    most half of its column's width.

    >>> cleveland_summary().dim
    9
    """
    spread = (_CLINIC_HIGH - _CLINIC_LOW) / 2
    rates = (("chol", at_least(240)), ("trestbps", at_least(140)), ("num", above(0)))
    return (
        summary(mean=_CLINIC, std=_CLINIC, rate=rates)
        .with_range(
            Box([*_CLINIC_LOW, 0, 0, 0, 0, 0, 0], [*_CLINIC_HIGH, *spread, 1, 1, 1]),
        )
        .with_scales([10, 20, 50, 5, 10, 25, 0.1, 0.1, 0.1])
    )


def student_summary() -> Query:
    """The paper's nine statistics of the student table, with public scales and range.

    Means and standard deviations of the grades G1, G2 and G3, from 0 to 20; shares of students
    with a study time coded 3 or 4 (five hours a week and more), a past failure, and more than 10
    absences. Scales: 2 points for the means, 1 point for the standard deviations, 0.1 for the
    shares.

    >>> student_summary().names[6]
    'rate(studytime >= 3)'
    """
    rates = (("studytime", at_least(3)), ("failures", above(0)), ("absences", above(10)))
    top = _BEST_GRADE
    return (
        summary(mean=_GRADES, std=_GRADES, rate=rates)
        .with_range(Box([0.0] * 9, [*[top] * 3, *[top / 2] * 3, 1, 1, 1]))
        .with_scales([2, 2, 2, 1, 1, 1, 0.1, 0.1, 0.1])
    )


CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

IMAGES_PER_FILE: Final = 10_000
_WHITE: Final = 255
_SHAPE: Final = (32, 32, 3)
_BINARY_FOLDER: Final = "cifar-10-batches-bin"
_TRAIN: Final = tuple(f"train-{number}" for number in range(1, 6))
_TEST: Final = "test"
_NUMPY_NAMES: Final = {part: f"cifar10-{part}.npz" for part in (*_TRAIN, _TEST)}
_BINARY_NAMES: Final = {
    **{part: f"data_batch_{part[-1]}.bin" for part in _TRAIN},
    _TEST: "test_batch.bin",
}

_CIFAR10: Final = Origin(
    name="CIFAR-10",
    files=("cifar10-train-1.npz", f"{_BINARY_FOLDER}/data_batch_1.bin"),
    where="Unpack 'CIFAR-10 binary version' from https://www.cs.toronto.edu/~kriz/cifar.html",
)

Bytes = npt.NDArray[np.uint8]


class Digests(NamedTuple):
    """SHA-256 of the images (n, 32, 32, 3) and of the labels, one byte each, in C order."""

    images: str
    labels: str


DIGESTS: Final[Mapping[str, Digests]] = {
    "train-1": Digests(
        "fc115a3de050d667b88cbd5b0b9612ebf996c54230fe7758f3a14bb5af9a1c27",
        "d829dbdf32167c9d7b3687cee66d92d80d46c441308b5aca0d11e8b69e27dac9",
    ),
    "train-2": Digests(
        "89e609b642f687bc796fa3bfa4211005582a0e8131d463d996d11ddb297d312e",
        "5d18f7371ed35ea9ade77952fe958b0660a45cd6c8b8a8970030f21612cfd7e3",
    ),
    "train-3": Digests(
        "93a365823e61729490a8801d80864ccd0ab1e8c98f19d71af65644d1c5f1486e",
        "32cf77b0ee2e790b1c4384d2d82e42dc1571b87e67f6da8f444b2725b2973f65",
    ),
    "all": Digests(
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    _TEST: Digests(
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
"""Of each part; parts 4 and 5 have none of their own, and are known by `all` five."""


def cifar10() -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10, to train on and held out, from the folder that `PUFFERSLICE_DATA` names.

    It does not ship with the library: its images have no licence. Krizhevsky (2009).
    """
    return read_cifar10(_CIFAR10.folder())


def read_cifar10(path: str | os.PathLike[str]) -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10, to train on and held out, from a folder.

    The folder has `cifar10-train-1.npz` to `-5.npz` and `cifar10-test.npz` (arrays `x_train` and
    `y_train`, or `x_test` and `y_test`), or the binary version: `data_batch_1.bin` to `_5.bin` and
    `test_batch.bin`, also in `cifar-10-batches-bin`. Whichever training files are there are taken,
    in their order.

    Files with other pixels or labels than the published ones are refused. Training files 4 and 5
    have no published checksum of their own: they are known when all five are there, or else by a
    list `SHA256SUMS` beside them; without either they are refused.
    """
    folder = Path(path)
    files = _files_in(folder)
    arrays, unlisted = {}, {}
    for part, file in files.items():
        content = read_bytes(file, "archive")
        sha256 = hashlib.sha256(content).hexdigest()
        try:
            arrays[part] = _arrays(part, content)
        except _UNREADABLE as error:
            expected = f"a file with {IMAGES_PER_FILE} images"
            raise _CIFAR10.damaged(
                file, "the file", sha256=sha256, expected=expected, error=error
            ) from error
        if part in DIGESTS:
            _check_digests(file, DIGESTS[part], *arrays[part])
        else:
            unlisted[file] = sha256
    train = [arrays[part] for part in _TRAIN if part in arrays]
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    if len(train) == len(_TRAIN):
        _check_digests(folder, DIGESTS["all"], images, labels)
    else:
        for file, sha256 in unlisted.items():
            _check_listed(file, sha256)
    return _labelled(images, labels), _labelled(*arrays[_TEST])


def _files_in(folder: Path) -> dict[str, Path]:
    """The files of the first form that is there, by part."""
    for place, names in (
        (folder, _NUMPY_NAMES),
        (folder, _BINARY_NAMES),
        (folder / _BINARY_FOLDER, _BINARY_NAMES),
    ):
        files = {part: place / name for part, name in names.items() if (place / name).exists()}
        if any(part in files for part in _TRAIN):
            if _TEST not in files:
                raise StorageError(
                    errno.ENOENT,
                    f"{str(place)!r} has CIFAR-10, but no {names[_TEST]}. {_CIFAR10.where}",
                )
            return files
    raise _CIFAR10.missing_from(folder)


def _arrays(part: str, content: bytes) -> tuple[Bytes, Bytes]:
    """Images and labels of a file; a `ValueError` if it has others than ten thousand of each."""
    if content.startswith(b"PK"):
        kind, arrays = part.partition("-")[0], arrays_in(content)
        images, labels = arrays[f"x_{kind}"], arrays[f"y_{kind}"]
    else:
        # A byte for the label, then the red, green and blue planes, row by row.
        height, width, n_planes = _SHAPE
        records = np.frombuffer(content, np.uint8).reshape(-1, 1 + height * width * n_planes)
        planes = records[:, 1:].reshape(-1, n_planes, height, width)
        images, labels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0]
    right = images.dtype == np.uint8 and images.shape == (IMAGES_PER_FILE, *_SHAPE)
    if not right or labels.shape != (IMAGES_PER_FILE,) or labels.dtype.kind not in "iu":
        raise ValueError("arrays of another shape or type")
    if labels.min() < 0 or labels.max() >= len(CIFAR10_CLASSES):
        raise ValueError("labels of other classes")
    return images, labels.astype(np.uint8)


def _check_digests(path: Path, expected: Digests, images: Bytes, labels: Bytes) -> None:
    for what, array, digest in (
        ("its images", images, expected.images),
        ("its labels", labels, expected.labels),
    ):
        sha256 = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        if sha256 != digest:
            raise _CIFAR10.damaged(path, what, sha256=sha256, expected=digest)


def _check_listed(path: Path, sha256: str) -> None:
    """A file whose content has no published checksum is known by the list beside it, or not."""
    listing, listed = path.with_name(CHECKSUMS), {}
    if listing.exists():
        text = read_bytes(listing, "settings").decode("utf-8", errors="replace")
        lines = [line.split(maxsplit=1) for line in text.splitlines()]
        listed = {words[1].removeprefix("*"): words[0] for words in lines if len(words) == 2}
    expected = listed.get(path.name)
    if expected is None:
        raise StorageError(
            f"{str(path)!r} cannot be checked: its images have no published checksum of their own, "
            f"and no {CHECKSUMS} beside it lists the file, whose SHA-256 is {sha256}. Add the "
            "training files that are missing, as all five can be checked together, or take "
            f"{path.name!r} out. {_CIFAR10.where}"
        )
    if sha256 != expected.lower():
        raise _CIFAR10.damaged(path, "the file", sha256=sha256, expected=expected)


def _labelled(images: Bytes, labels: Bytes) -> LabelledImages:
    return LabelledImages(
        images=images,
        labels=labels.astype(np.int64),
        white=_WHITE,
        n_classes=len(CIFAR10_CLASSES),
    )
