# SPDX-License-Identifier: Apache-2.0
"""Cleveland heart disease, student performance and CIFAR-10, from a folder that the user names.

None of them ships with the library. A file is accepted if its rows or pixels are the published
ones, whatever it is packed in: checksums of tables are taken over the cells, joined by commas
under the header of the data folder, and those of images over the pixels.

Archives are read in memory: nothing is written to disk, and nothing larger than allowed is
unpacked. A pickle is a program: the reader knows the few names that a batch needs and gives each a
stand-in that only stores its state; every other name is refused.
"""

import csv
import errno
import gzip
import hashlib
import io
import os
import pickle
import pickletools
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple, NoReturn, final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from pufferslice._core.arrays import arrays_in
from pufferslice._core.files import LIMITS, MOST_MEMBERS, check_archive, read_bytes
from pufferslice.data import LabelledImages
from pufferslice.errors import StorageError
from pufferslice.queries import Box, Query, above, at_least, summary

DATA_FOLDER: Final = "PUFFERSLICE_DATA"
"""The environment variable that names the folder."""

CHECKSUMS: Final = "SHA256SUMS"
"""A list of checksums that may be in the folder, in the format of `sha256sum`."""


@final
@attrs.frozen(kw_only=True)
class Origin:
    """The name of a dataset, its files, and where to get them."""

    name: str
    files: tuple[str, ...]
    """Names that are looked for in a folder; the first one that exists is read."""
    where: str
    """Where to get it; the end of an error message."""

    def folder(self) -> Path:
        """The folder that the environment names, which is required."""
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            msg = (
                f"{self.name} does not ship with the library: set {DATA_FOLDER} to a folder with "
                f"{self._choice()}. {self.where}"
            )
            raise StorageError(errno.ENOENT, msg)
        return Path(folder)

    def missing_from(self, folder: Path) -> StorageError:
        """The error for a folder that has none of the files."""
        msg = f"no {self.name} in {str(folder)!r}: there is no {self._choice()}. {self.where}"
        return StorageError(errno.ENOENT, msg)

    def incomplete(self, where: Path, lacking: str) -> StorageError:
        """The error for a folder or an archive that has only some of the files that are needed."""
        msg = f"{str(where)!r} has {self.name}, but no {lacking}. {self.where}"
        return StorageError(errno.ENOENT, msg)

    def damaged(self, path: str, what: str, *, found: str, expected: str) -> StorageError:
        """The error for a file with another checksum than the one of `what` in it."""
        msg = (
            f"{path!r} is damaged, or is not {self.name}: the checksum of {what} is {found}, "
            f"expected {expected}. {self.where}"
        )
        return StorageError(msg)

    def unreadable(
        self, path: str, content: bytes, *, expected: str, error: Exception
    ) -> StorageError:
        """The error for a file that cannot be unpacked or read at all; no content is shown."""
        found = hashlib.sha256(content).hexdigest()
        msg = (
            f"{path!r} is damaged, or is not {self.name}: it cannot be read "
            f"({type(error).__name__}). The SHA-256 of the file is {found}, expected {expected}. "
            f"{self.where}"
        )
        return StorageError(msg)

    def _choice(self) -> str:
        return choice_of(self.files)


def listed_sha256(path: Path) -> str | None:
    """The checksum that the list beside a file has for it; None if there is none."""
    listing = path.with_name(CHECKSUMS)
    if not listing.exists():
        return None
    lines = read_bytes(listing, "settings").decode("utf-8", errors="replace").splitlines()
    found = (line.split(maxsplit=1) for line in lines)
    listed = {words[1].removeprefix("*"): words[0].lower() for words in found if len(words) == 2}
    return listed.get(path.name)


def choice_of(words: Sequence[str]) -> str:
    """`a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


CLEVELAND_SHA256: Final = "a5195b7562ca4f48bda400649bfee2a7d7ed70ff72fb5cc0c486c68fd68f7f62"
STUDENT_SHA256: Final = "659f3984643c2def53ba5e49f551c6ce3657039f9c25306cacb8f43b818a5190"
"""SHA-256 of the tables as comma-separated text with a header."""

_MOST_TABLE_BYTES: Final = 2**24


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
            content = unzipped(content, self.member, _MOST_TABLE_BYTES)
        elif content.startswith(GZIP_MARK):
            content = gunzipped(content, _MOST_TABLE_BYTES)
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

IMAGES_PER_BATCH: Final = 10_000
_WHITE: Final = 255
_SHAPE: Final = (32, 32, 3)
_MOST_BATCH_BYTES: Final = 2**26
_ARCHIVE: Final = "cifar-10-python.tar.gz"
_FOLDER: Final = "cifar-10-batches-py"
_TEST: Final = "test"

_CIFAR10: Final = Origin(
    name="CIFAR-10",
    files=("cifar10-train-1.npz", "data_batch_1", f"{_FOLDER}/data_batch_1", _ARCHIVE),
    where="Get 'CIFAR-10 python version' from https://www.cs.toronto.edu/~kriz/cifar.html",
)


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

BATCH_MD5: Final[Mapping[str, str]] = {
    "train-4": "634d18415352ddfa80567beed471001a",
    "train-5": "482c414d41f54cd18b22e5b47cb7c3cb",
}
"""Published MD5 of the python batches whose pixels have no checksum of their own."""

_TRAIN: Final = tuple(f"train-{number}" for number in range(1, 6))
_NPZ_NAMES: Final = {part: f"cifar10-{part}.npz" for part in (*_TRAIN, _TEST)}
_BATCH_NAMES: Final = {
    **{part: f"data_batch_{part[-1]}" for part in _TRAIN},
    _TEST: "test_batch",
}


class _Part(NamedTuple):
    """One file of images, read but not yet trusted."""

    name: str
    """`train-1` to `train-5`, or `test`."""
    where: str
    content: bytes

    @property
    def is_pickled(self) -> bool:
        """A python batch, and no npz file."""
        return not self.where.endswith(".npz")


def cifar10() -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10, to train on and held out, from the folder that `PUFFERSLICE_DATA` names.

    It does not ship with the library: its images have no licence. Krizhevsky (2009).
    """
    return read_cifar10(_CIFAR10.folder())


def read_cifar10(path: str | os.PathLike[str]) -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10, to train on and held out, from a folder or from the published archive.

    A folder may have `cifar10-train-1.npz` to `-5.npz` and `cifar10-test.npz` (arrays `x_train`
    and `y_train`, or `x_test` and `y_test`), the python batches `data_batch_1` to `_5` and
    `test_batch`, also in `cifar-10-batches-py`, or the archive `cifar-10-python.tar.gz`. Whichever
    training files are there are taken, in their order. Pickles are read by a reader that runs
    nothing.

    Files with other pixels or labels than the published ones are refused. Training files 4 and 5
    as npz have no published checksum of their own: they are known when all five are there, or else
    by a list `SHA256SUMS` beside them; without either they are refused.
    """
    where = Path(path)
    found, unknown = {}, {}
    for part in _parts(where):
        found[part.name] = _checked(part)
        if part.name not in DIGESTS and not part.is_pickled:
            unknown[Path(part.where)] = hashlib.sha256(part.content).hexdigest()
    train = [found[name] for name in _TRAIN if name in found]
    if not found:
        raise _CIFAR10.missing_from(where)
    if not train or _TEST not in found:
        raise _CIFAR10.incomplete(where, _BATCH_NAMES[_TEST if train else _TRAIN[0]])
    images = np.concatenate([images for images, _ in train])
    labels = np.concatenate([labels for _, labels in train])
    if len(train) == len(_TRAIN):
        _check_digests(str(where), "all", images, labels)
    else:
        for file, sha256 in unknown.items():
            _check_listed(file, sha256)
    return _labelled(images, labels), _labelled(*found[_TEST])


def _labelled(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> LabelledImages:
    return LabelledImages(
        images=images,
        labels=labels.astype(np.int64),
        white=_WHITE,
        n_classes=len(CIFAR10_CLASSES),
    )


def _parts(path: Path) -> Iterator[_Part]:
    """The files of the first form that is there."""
    if path.is_dir():
        for folder, names in (
            (path, _NPZ_NAMES),
            (path, _BATCH_NAMES),
            (path / _FOLDER, _BATCH_NAMES),
        ):
            if any((folder / names[part]).exists() for part in _TRAIN):
                yield from _files(folder, names)
                return
        path = path / _ARCHIVE
    if path.exists():
        yield from _archived(path)


def _files(folder: Path, names: Mapping[str, str]) -> Iterator[_Part]:
    if not (folder / names[_TEST]).exists():
        raise _CIFAR10.incomplete(folder, names[_TEST])
    for part, name in names.items():
        if (folder / name).exists():
            yield _Part(part, str(folder / name), read_bytes(folder / name, "archive"))


def _archived(path: Path) -> Iterator[_Part]:
    parts = {name: part for part, name in _BATCH_NAMES.items()}
    content = read_bytes(path, "archive")
    try:
        members = list(tar_members(content, parts, _MOST_BATCH_BYTES))
    except UNREADABLE as error:
        expected = "an archive of python batches"
        raise _CIFAR10.unreadable(str(path), content, expected=expected, error=error) from error
    for name, batch in members:
        yield _Part(parts[name], f"{path}:{name}", batch)


def _checked(part: _Part) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images and labels of a file whose content is the published one."""
    try:
        images, labels = read_batch(part.content) if part.is_pickled else _npz(part)
    except UNREADABLE_PICKLE as error:
        raise _CIFAR10.unreadable(
            part.where, part.content, expected=_expected(part.name), error=error
        ) from error
    if part.name in DIGESTS:
        _check_digests(part.where, part.name, images, labels)
    elif part.is_pickled:
        _check_md5(part)
    return images, labels


def _npz(part: _Part) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    kind = part.name.partition("-")[0]
    arrays = arrays_in(part.content)
    images, labels = arrays[f"x_{kind}"], arrays[f"y_{kind}"]
    right = images.dtype == np.uint8 and images.shape == (IMAGES_PER_BATCH, *_SHAPE)
    if not right or labels.shape != (IMAGES_PER_BATCH,) or labels.dtype.kind not in "iu":
        msg = "arrays of another shape or type"
        raise ValueError(msg)
    if labels.min() < 0 or labels.max() >= len(CIFAR10_CLASSES):
        msg = "labels of other classes"
        raise ValueError(msg)
    return images, labels.astype(np.uint8)


def _expected(part: str) -> str:
    if part in DIGESTS:
        return f"a file with images of SHA-256 {DIGESTS[part].images}"
    return f"a file with {IMAGES_PER_BATCH} images; as a python batch, of MD5 {BATCH_MD5[part]}"


def _check_digests(
    where: str, part: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]
) -> None:
    expected = DIGESTS[part]
    for what, array, digest in (
        ("images", images, expected.images),
        ("labels", labels, expected.labels),
    ):
        found = _sha256(array)
        if found != digest:
            subject = f"its {what}" if part != "all" else f"the {what} of all five training files"
            raise _CIFAR10.damaged(where, f"{subject} (SHA-256)", found=found, expected=digest)


def _check_listed(path: Path, found: str) -> None:
    """A file whose content has no published checksum is known by the list beside it, or not."""
    expected = listed_sha256(path)
    if expected is None:
        msg = (
            f"{str(path)!r} cannot be checked: its images have no published checksum of their own, "
            f"and no {CHECKSUMS} beside it lists the file, whose SHA-256 is {found}. Add the "
            "training files that are missing, as all five can be checked together, or take "
            f"{path.name!r} out. {_CIFAR10.where}"
        )
        raise StorageError(msg)
    if found != expected:
        raise _CIFAR10.damaged(str(path), "the file (SHA-256)", found=found, expected=expected)


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _check_md5(part: _Part) -> None:
    found = hashlib.md5(part.content, usedforsecurity=False).hexdigest()
    if found != BATCH_MD5[part.name]:
        raise _CIFAR10.damaged(
            part.where, "the file (MD5)", found=found, expected=BATCH_MD5[part.name]
        )


GZIP_MARK: Final = b"\x1f\x8b"
ZIP_MARK: Final = b"PK\x03\x04"

UNREADABLE: Final = (
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of the readers of archives on damaged, locked or oversized ones."""


def gunzipped(content: bytes, most: int) -> bytes:
    """The unpacked bytes; more than `most` of them is a ValueError."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _read(file, most)


def unzipped(content: bytes, name: str, most: int) -> bytes:
    """The member of this file name, in any folder of the archive or of an archive inside it."""
    check_archive(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = _named(archive, name)
        if found is None:
            inner = [member for member in archive.namelist() if member.lower().endswith(".zip")]
            for member in inner:
                with (
                    archive.open(member) as file,
                    zipfile.ZipFile(io.BytesIO(_read(file, most))) as nested,
                ):
                    found = _named(nested, name)
                    if found is not None:
                        return _member(nested, found, most)
            msg = f"the archive has no member {name!r}"
            raise LookupError(msg)
        return _member(archive, found, most)


def tar_members(content: bytes, names: Collection[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The members with these file names, in any folder of a gzipped archive, in their order."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        size = 0
        for count, member in enumerate(archive):
            size += member.size
            if size > LIMITS["archive"] or count >= MOST_MEMBERS:
                msg = f"it has more than {LIMITS['archive']:,} bytes or {MOST_MEMBERS:,} members"
                raise ValueError(msg)
            name = PurePosixPath(member.name).name
            file = archive.extractfile(member) if name in names and member.isfile() else None
            if file is not None:
                yield name, _read(file, most)


def _named(archive: zipfile.ZipFile, name: str) -> str | None:
    return next((m for m in archive.namelist() if PurePosixPath(m).name == name), None)


def _member(archive: zipfile.ZipFile, member: str, most: int) -> bytes:
    with archive.open(member) as file:
        return _read(file, most)


def _read(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    content = file.read(most + 1)
    if len(content) > most:
        msg = f"unpacked it has more than {most} bytes"
        raise ValueError(msg)
    return bytes(content)


_PIXELS: Final = 3 * 32 * 32

UNREADABLE_PICKLE: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors on damaged pickles."""


class _Array:
    """Stands for `numpy.ndarray` and keeps the state that a pickle gives it."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Type:
    """Stands for `numpy.dtype`: its name, and nothing done with the rest."""

    def __init__(self, name: object = None, *_flags: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and the like; one byte has none."""


def _array(*_arguments: object) -> _Array:
    return _Array()


_STAND_INS: Final[dict[tuple[str, str], Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
}


class _BatchReader(pickle.Unpickler):
    """Finds stand-ins by name and refuses the rest."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._bytes_left = len(content)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        if (module, name) == ("_codecs", "encode"):
            return self._encoded
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            msg = "it names a function that a batch of images does not need"
            raise pickle.UnpicklingError(msg)
        return stand_in

    def _encoded(self, text: object, encoding: object) -> bytes:
        """Bytes as newer programs write them into old pickles; in total at most the file's size."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            msg = "bytes in another form than latin1"
            raise pickle.UnpicklingError(msg)
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            msg = "it asks for too much memory"
            raise pickle.UnpicklingError(msg)
        return text.encode("latin1")

    def persistent_load(self, _pid: object) -> NoReturn:
        msg = "it refers to objects outside of it"
        raise pickle.UnpicklingError(msg)


def read_batch(content: bytes) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images of shape (n, 32, 32, 3) and labels of shape (n,) of a CIFAR-10 python batch.

    Anything else raises one of `UNREADABLE_PICKLE`.
    """
    _check_memo(content)
    found = _BatchReader(content).load()
    if not isinstance(found, dict):
        msg = "it is not a dictionary"
        raise pickle.UnpicklingError(msg)
    data = found.get(b"data", found.get("data"))
    labels = found.get(b"labels", found.get("labels"))
    if not isinstance(data, _Array) or not isinstance(labels, list):
        msg = "it has no data and labels"
        raise pickle.UnpicklingError(msg)
    pixels = _pixels(data)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    if not all(type(label) is int and 0 <= label < 256 for label in labels):
        msg = "its labels are not small integers"
        raise pickle.UnpicklingError(msg)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.uint8)


def _pixels(data: _Array) -> npt.NDArray[np.uint8]:
    """The raw bytes, if the array is what a batch has: (n, 3072) of one byte each, row by row."""
    _version, shape, kind, by_columns, raw = data.state
    fits = (
        isinstance(shape, tuple)
        and len(shape) == 2
        and all(type(size) is int for size in shape)
        and shape[1] == _PIXELS
        and isinstance(kind, _Type)
        and kind.name in (b"u1", "u1", b"|u1", "|u1")
        and not by_columns
        and isinstance(raw, bytes)
        and len(raw) == shape[0] * shape[1]
    )
    if not fits:
        msg = "its data is not a matrix of bytes with 3072 columns"
        raise pickle.UnpicklingError(msg)
    return np.frombuffer(raw, dtype=np.uint8)


def _check_memo(content: bytes) -> None:
    """No memo slot beyond the number of instructions: unpicklers allocate up to the highest."""
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if "PUT" in opcode.name and not 0 <= int(argument or 0) <= count:
            msg = "it asks for too much memory"
            raise pickle.UnpicklingError(msg)
