# SPDX-License-Identifier: Apache-2.0
"""Cleveland, student performance and CIFAR-10: all forms, damaged files, hostile archives."""

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pufferslice.data.frames import frame_of, missing_rows
from pufferslice.errors import StorageError
from reproduction import data
from reproduction.data import (
    CLEVELAND_SHA256,
    DIGESTS,
    STUDENT_SHA256,
    UNREADABLE_PICKLE,
    Digests,
    read_batch,
    read_cifar10,
    read_cleveland,
    read_student,
)

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


N_IMAGES = 4
TRAIN = [f"train-{k}" for k in range(1, 6)]


def sha256(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def pickled(images, labels):
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2)


def npz(part, images, labels):
    file = io.BytesIO()
    kind = part.partition("-")[0]
    np.savez_compressed(file, **{f"x_{kind}": images, f"y_{kind}": labels})
    return file.getvalue()


def archive(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def batch_name(part):
    return "test_batch" if part == "test" else f"data_batch_{part[-1]}"


@pytest.fixture
def made(rng, monkeypatch):
    """Small parts with random pixels; their checksums stand in for the published ones."""
    parts = {
        part: (
            rng.integers(256, size=(N_IMAGES, 32, 32, 3), dtype=np.uint8),
            rng.integers(10, size=N_IMAGES, dtype=np.uint8),
        )
        for part in (*TRAIN, "test")
    }
    known = {part: Digests(*map(sha256, parts[part])) for part in (*TRAIN[:3], "test")}
    train = [parts[part] for part in TRAIN]
    known["all"] = Digests(*(sha256(np.concatenate(arrays)) for arrays in zip(*train, strict=True)))
    monkeypatch.setattr(data, "DIGESTS", known)
    md5 = {
        part: hashlib.md5(pickled(*parts[part]), usedforsecurity=False).hexdigest()
        for part in TRAIN[3:]
    }
    monkeypatch.setattr(data, "BATCH_MD5", md5)
    monkeypatch.setattr(data, "IMAGES_PER_BATCH", N_IMAGES)
    return parts


def write_npz(folder, parts):
    for part, arrays in parts.items():
        (folder / f"cifar10-{part}.npz").write_bytes(npz(part, *arrays))


class TestRealFiles:
    def test_counts_and_pixels(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        train, held_out = data.cifar10()
        assert len(train) % 10_000 == 0
        assert len(train) >= 30_000
        assert train.images.shape[1:] == (32, 32, 3)
        assert np.bincount(held_out.labels).tolist() == [1_000] * 10
        assert sha256(held_out.images) == DIGESTS["test"].images
        assert repr(train) == f"LabelledImages({len(train)} of 32x32x3, 10 classes)"
        assert data.CIFAR10_CLASSES[3] == "cat"

    def test_one_pixel_of_a_real_file(self, data_folder, tmp_path):
        for name in ("cifar10-train-2.npz", "cifar10-test.npz"):
            (tmp_path / name).symlink_to(data_folder / name)
        with np.load(data_folder / "cifar10-train-1.npz") as arrays:
            images, labels = arrays["x_train"].copy(), arrays["y_train"]
        images[1_234, 5, 6, 0] ^= 1
        file = io.BytesIO()
        np.savez(file, x_train=images, y_train=labels)
        (tmp_path / "cifar10-train-1.npz").write_bytes(file.getvalue())
        with pytest.raises(StorageError) as caught:
            read_cifar10(tmp_path)
        parts = (str(tmp_path / "cifar10-train-1.npz"), sha256(images), DIGESTS["train-1"].images)
        assert all(text in str(caught.value) for text in parts)


class TestImageForms:
    def test_all_forms_give_the_same(self, made, tmp_path):
        batches = {batch_name(part): pickled(*arrays) for part, arrays in made.items()}
        for form in ("npz", "batches", "inside", "archive"):
            (tmp_path / form).mkdir()
        write_npz(tmp_path / "npz", made)
        inside = tmp_path / "inside" / "cifar-10-batches-py"
        inside.mkdir()
        for name, content in batches.items():
            (tmp_path / "batches" / name).write_bytes(content)
            (inside / name).write_bytes(content)
        archived = tmp_path / "archive" / "cifar-10-python.tar.gz"
        archived.write_bytes(archive(batches | {"readme.html": b"x", "batches.meta": b"y"}))
        for where in ("npz", "batches", "inside", "archive", archived):
            train, held_out = read_cifar10(tmp_path / where)
            expected = np.concatenate([made[part][0] for part in TRAIN])
            np.testing.assert_array_equal(train.images, expected)
            np.testing.assert_array_equal(
                train.labels, np.concatenate([made[part][1] for part in TRAIN])
            )
            np.testing.assert_array_equal(held_out.images, made["test"][0])
            assert (train.labels.dtype, train.white, train.n_classes) == (np.int64, 255, 10)

    def test_whichever_training_files_are_there(self, made, tmp_path):
        write_npz(tmp_path, {part: made[part] for part in ("train-2", "train-3", "test")})
        train, _ = read_cifar10(tmp_path)
        expected = np.concatenate([made["train-2"][1], made["train-3"][1]])
        assert train.labels.tolist() == expected.tolist()

    @pytest.mark.parametrize("mark", ["  ", " *"])
    def test_part_four_without_the_others_is_known_by_the_list_beside_it(
        self, made, mark, tmp_path
    ):
        write_npz(tmp_path, {part: made[part] for part in ("train-2", "train-4", "test")})
        content = (tmp_path / "cifar10-train-4.npz").read_bytes()
        line = f"{hashlib.sha256(content).hexdigest()}{mark}cifar10-train-4.npz\n"
        (tmp_path / "SHA256SUMS").write_text(f"\n{'0' * 64}  other.npz\n{line}", encoding="utf-8")
        train, _ = read_cifar10(tmp_path)
        expected = np.concatenate([made["train-2"][1], made["train-4"][1]])
        assert train.labels.tolist() == expected.tolist()

    def test_labels_of_any_whole_type(self, made, tmp_path):
        images, labels = made["train-1"]
        parts = {"train-1": (images, labels.astype(np.int64)), "test": made["test"]}
        write_npz(tmp_path, parts)
        assert read_cifar10(tmp_path)[0].labels.tolist() == labels.tolist()


class TestMissing:
    def test_without_the_folder_or_the_files(self, made, tmp_path, monkeypatch):
        monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
        with pytest.raises(StorageError, match=r"set PUFFERSLICE_DATA to a folder with .*https:"):
            data.cifar10()
        monkeypatch.setenv("PUFFERSLICE_DATA", str(tmp_path))
        with pytest.raises(StorageError, match=r"no CIFAR-10 in .* or cifar-10-python\.tar\.gz"):
            data.cifar10()
        with pytest.raises(StorageError, match=r"no CIFAR-10 in .*absent"):
            read_cifar10(tmp_path / "absent")
        write_npz(tmp_path, {"train-1": made["train-1"]})
        with pytest.raises(StorageError, match=r"has CIFAR-10, but no cifar10-test\.npz\. Get"):
            data.cifar10()

    @pytest.mark.parametrize(
        ("kept", "lacking"), [("train-1", "test_batch"), ("test", "data_batch_1")]
    )
    def test_an_archive_without_a_part(self, kept, lacking, made, tmp_path):
        path = tmp_path / "cifar-10-python.tar.gz"
        path.write_bytes(archive({batch_name(kept): pickled(*made[kept])}))
        with pytest.raises(StorageError, match=rf"tar\.gz' has CIFAR-10, but no {lacking}\. Get"):
            read_cifar10(path)


class TestDamaged:
    @pytest.mark.parametrize("part", ["train-1", "test"])
    @pytest.mark.parametrize("which", [0, 1], ids=["images", "labels"])
    def test_other_content_names_file_and_both_checksums(self, part, which, made, tmp_path):
        arrays = [array.copy() for array in made[part]]
        arrays[which].flat[0] = (arrays[which].flat[0] + 1) % 10
        parts = {"train-1": made["train-1"], "test": made["test"]} | {part: tuple(arrays)}
        write_npz(tmp_path, parts)
        with pytest.raises(StorageError) as caught:
            read_cifar10(tmp_path)
        expected = data.DIGESTS[part][which]
        for fragment in (f"cifar10-{part}.npz", sha256(arrays[which]), expected):
            assert fragment in str(caught.value)

    def test_part_five_is_checked_with_the_other_four(self, made, tmp_path):
        images, labels = made["train-5"]
        write_npz(tmp_path, made | {"train-5": (images, labels[::-1] ^ 1)})
        with pytest.raises(StorageError, match="labels of all five training files"):
            read_cifar10(tmp_path)

    def test_part_five_without_the_others_is_refused_if_nothing_tells_what_it_is(
        self, made, tmp_path
    ):
        write_npz(tmp_path, {part: made[part] for part in ("train-1", "train-5", "test")})
        path = tmp_path / "cifar10-train-5.npz"
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        with pytest.raises(StorageError) as caught:
            read_cifar10(tmp_path)
        for fragment in (str(path), found, "no SHA256SUMS beside it lists the file", "all five"):
            assert fragment in str(caught.value)
        (tmp_path / "SHA256SUMS").write_bytes(b"\xff no list\n")
        with pytest.raises(StorageError, match=r"train-5\.npz' cannot be checked"):
            read_cifar10(tmp_path)
        listed = "a" * 64
        (tmp_path / "SHA256SUMS").write_text(f"{listed}  cifar10-train-5.npz\n", encoding="utf-8")
        with pytest.raises(StorageError, match=rf"train-5\.npz' .* {found}, expected {listed}"):
            read_cifar10(tmp_path)

    @pytest.mark.parametrize(
        "changes",
        [
            {"x_train": np.zeros((N_IMAGES, 32, 32), np.uint8)},
            {"x_train": np.zeros((N_IMAGES, 32, 32, 3))},
            {"x_train": np.zeros((2, 32, 32, 3), np.uint8)},
            {"y_train": np.zeros(N_IMAGES)},
            {"y_train": np.array([0, 10, 11, 1])},
            {"y_train": np.array([0, -1, 1, 1])},
            {"y_train": np.array([None, 1, 2, 3], dtype=object)},
        ],
    )
    def test_wrong_arrays(self, changes, made, tmp_path):
        images, labels = made["train-4"]
        file = io.BytesIO()
        np.savez(file, **({"x_train": images, "y_train": labels} | changes))
        (tmp_path / "cifar10-train-4.npz").write_bytes(file.getvalue())
        write_npz(tmp_path, {"test": made["test"]})
        with pytest.raises(StorageError, match=r"cifar10-train-4\.npz' is damaged"):
            read_cifar10(tmp_path)

    @pytest.mark.parametrize(
        "content", [b"", b"no archive", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"]
    )
    @pytest.mark.parametrize(
        "name", ["cifar10-train-1.npz", "data_batch_1", "cifar-10-python.tar.gz"]
    )
    def test_unreadable(self, content, name, tmp_path):
        (tmp_path / name).write_bytes(content)
        (tmp_path / "cifar10-test.npz").write_bytes(content)
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(StorageError) as caught:
            read_cifar10(tmp_path)
        message = str(caught.value)
        assert str(tmp_path / name) in message
        assert hashlib.sha256(content).hexdigest() in message
        assert "expected" in message

    def test_an_archive_that_is_cut_off(self, made, tmp_path):
        whole = archive({batch_name(part): pickled(*arrays) for part, arrays in made.items()})
        path = tmp_path / "cifar-10-python.tar.gz"
        for content in (whole[: len(whole) // 2], gzip.compress(b"no tar file")):
            path.write_bytes(content)
            with pytest.raises(StorageError, match=r"tar\.gz' is damaged"):
                read_cifar10(path)

    def test_a_hostile_batch_runs_nothing(self, made, tmp_path):
        class Hostile:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "made"),)

        (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Hostile()}))
        (tmp_path / "test_batch").write_bytes(pickled(*made["test"]))
        with pytest.raises(StorageError, match=r"data_batch_1' is damaged.*UnpicklingError"):
            read_cifar10(tmp_path)
        assert not (tmp_path / "made").exists()


def python2_batch(pixels, labels):
    """The instructions that Python 2 wrote into the published batches, one by one."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    def number(value):
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    raw = pixels.tobytes()
    array = b"".join([
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06", number(0), b"\x85",
        text(b"b"), b"\x87R", b"(", number(1), number(len(pixels)), number(3072), b"\x86",
        b"cnumpy\ndtype\n", text(b"u1"), number(0), number(1), b"\x87R", b"(", number(3),
        text(b"|"), b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff", number(0), b"tb", b"\x89",
        b"T", struct.pack("<i", len(raw)), raw, b"tb",
    ])  # fmt: skip
    names = b"]q\x07(" + b"".join(text(b"a_%d.png" % k) for k in range(len(labels))) + b"e"
    parts = [
        text(b"batch_label"), text(b"training batch 1 of 5"),
        text(b"labels"), b"]q\x08(", *[number(label) for label in labels], b"e",
        text(b"data"), array, text(b"filenames"), names,
    ]  # fmt: skip
    return b"\x80\x02}q\x01(" + b"".join(parts) + b"u."


@pytest.fixture
def pixels(rng):
    return rng.integers(256, size=(3, 3072), dtype=np.uint8)


def test_the_published_form(pixels):
    content = python2_batch(pixels, [3, 9, 0])
    # The real unpickler reads the same thing, so the instructions are what they should be.
    genuine = pickle.loads(content, encoding="bytes")  # noqa: S301 - made above
    np.testing.assert_array_equal(genuine[b"data"], pixels)
    images, labels = read_batch(content)
    assert labels.tolist() == [3, 9, 0]
    assert images.shape == (3, 32, 32, 3)
    # By hand: red, green and blue planes of 1024 pixels follow each other, row by row.
    for image, row in zip(images, pixels, strict=True):
        assert image[5, 7].tolist() == [row[5 * 32 + 7 + 1024 * plane] for plane in range(3)]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("keys", [(b"data", b"labels"), ("data", "labels")])
def test_saved_again_by_newer_programs(pixels, protocol, keys):
    content = pickle.dumps(dict(zip(keys, (pixels, [1, 2, 3]), strict=True)), protocol=protocol)
    images, labels = read_batch(content)
    np.testing.assert_array_equal(images, pixels.reshape(3, 3, 32, 32).transpose(0, 2, 3, 1))
    assert labels.tolist() == [1, 2, 3]


class Hostile:
    """Would make a file if it were unpickled in the ordinary way."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_pickle_is_run(pixels, tmp_path):
    path = tmp_path / "made"
    content = pickle.dumps({b"data": pixels, b"labels": [1, 2, 3], b"more": Hostile(path)})
    with pytest.raises(pickle.UnpicklingError, match="names a function"):
        read_batch(content)
    assert not path.exists()
    pickle.loads(content)  # noqa: S301 - shows that the pickle is hostile
    assert path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\nU\x04true\x85R.",
        b"cbuiltins\neval\nU\x011\x85R.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"Pelsewhere\n.",
        b"U\x09elsewhereQ.",
    ],
    ids=["system", "eval", "load", "fromfile", "persistent", "binary"],
)
def test_refused_names(content):
    with pytest.raises(pickle.UnpicklingError, match=r"names a function|refers to objects outside"):
        read_batch(content)


@pytest.mark.parametrize("content", [b"\x80\x02]r\xff\xff\xff\x7f.", b"]p-1\n.", b"]p99\n."])
def test_memo_slots_that_would_reserve_room(content):
    with pytest.raises(pickle.UnpicklingError, match="asks for too much memory"):
        read_batch(content)


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        {b"labels": [1]},
        {b"data": [1], b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.uint8)},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [256]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": [True]},
        {b"data": np.zeros((1, 3072), np.uint8), b"labels": ["1"]},
        {b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]},
        {b"data": np.zeros(3072, np.uint8), b"labels": [1]},
        {b"data": np.zeros((1, 3072), np.int8), b"labels": [1]},
        {b"data": np.zeros((1, 3072)), b"labels": [1]},
        {b"data": np.asfortranarray(np.zeros((2, 3072), np.uint8)), b"labels": [1, 2]},
        {b"data": np.array([[None] * 3072]), b"labels": [1]},
    ],
)
def test_other_content(value):
    with pytest.raises(UNREADABLE_PICKLE):
        read_batch(pickle.dumps(value, protocol=2))


def test_bytes_in_another_encoding():
    with pytest.raises(pickle.UnpicklingError, match="latin1"):
        read_batch(b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.")


def test_bytes_that_are_made_again_and_again():
    """One text of 200 letters in the memo, encoded nine times: more than the pickle has."""
    text = b"X" + struct.pack("<I", 200) + b"a" * 200 + b"q\x01"
    again = b"c_codecs\nencode\nh\x01X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(pickle.UnpicklingError, match="asks for too much memory"):
        read_batch(b"\x80\x02" + text + again * 9 + b".")


CONTENT = python2_batch(np.arange(3072, dtype=np.uint8).reshape(1, 3072), [7])


@given(st.data())
def test_damaged_bytes_are_read_or_refused_and_nothing_else(data):
    # The pixels are most of the bytes and any of them is fine: aim at the instructions.
    start = CONTENT.index(bytes(range(100)))
    places = st.one_of(st.integers(0, start + 8), st.integers(start + 3060, len(CONTENT) - 1))
    damaged = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(places)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(damaged), len(damaged), data.draw(places)]))
    try:
        images, labels = read_batch(bytes(damaged[:cut]))
    except UNREADABLE_PICKLE:
        return
    assert images.shape[1:] == (32, 32, 3)
    assert labels.dtype == np.uint8
