# SPDX-License-Identifier: Apache-2.0
"""Cleveland, student performance and CIFAR-10: all forms, and damaged or other files."""

import gzip
import hashlib

import numpy as np
import pyarrow.compute as pc
import pytest

from pufferslice.data.frames import frame_of, missing_rows
from pufferslice.errors import StorageError
from reproduction import data
from reproduction.data import (
    CLEVELAND_SHA256,
    DIGESTS,
    STUDENT_SHA256,
    Digests,
    read_cifar10,
    read_cleveland,
    read_student,
)

# Published SHA-256 of the files of the repository, from which the originals are known.
UCI_CLEVELAND = "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
UCI_STUDENT = "e47f9ee225e1ee6e69b7564e6dac7123e80b8486677fe111f351964cef5dec80"


@pytest.fixture(scope="session")
def uci_cleveland(data_folder):
    """`processed.cleveland.data`, to the last byte."""
    text = gzip.decompress((data_folder / "cleveland.csv.gz").read_bytes()).split(b"\n", 1)[1]
    assert hashlib.sha256(text).hexdigest() == UCI_CLEVELAND
    return text


@pytest.fixture(scope="session")
def uci_student(data_folder):
    """`student-mat.csv`, to the last byte: semicolons, and quotes round text, G1 and G2."""
    text = gzip.decompress((data_folder / "student-mat.csv.gz").read_bytes())
    header, *rows = [line.split(",") for line in text.decode().splitlines()]
    quoted = [header.index(name) for name in ("G1", "G2")]
    lines = [";".join(header)]
    for row in rows:
        cells = [
            f'"{cell}"' if k in quoted or not cell.isdigit() else cell for k, cell in enumerate(row)
        ]
        lines.append(";".join(cells))
    for end in ("\n", "\r\n"):
        text = "".join(line + end for line in lines).encode()
        if hashlib.sha256(text).hexdigest() == UCI_STUDENT:
            return text
    pytest.fail("the original could not be rebuilt")


def test_cleveland(data_folder, uci_cleveland, tmp_path, monkeypatch):
    monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
    table = data.cleveland()
    assert table.shape == (303, 14)
    nulls = {name: table[name].null_count for name in table.column_names}
    assert {name: n for name, n in nulls.items() if n} == {"ca": 4, "thal": 2}
    assert int(missing_rows(frame_of(table), table.column_names).sum()) == 303 - 297
    assert pc.sum(table["sex"]).as_py() == 206
    assert np.bincount(table["num"].to_numpy()).tolist() == [164, 55, 36, 35, 13]
    for content in (
        uci_cleveland,
        uci_cleveland.replace(b"\n", b"\r\n"),
        uci_cleveland.rstrip(),
        b"\xef\xbb\xbf" + uci_cleveland,
    ):
        (tmp_path / "processed.cleveland.data").write_bytes(content)
        assert read_cleveland(tmp_path).equals(table)


def test_student(data_folder, uci_student, tmp_path, monkeypatch):
    monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
    table = data.student()
    assert table.shape == (395, 33)
    assert sum(column.null_count for column in table.columns) == 0
    assert pc.sum(pc.equal(table["sex"], "F")).as_py() == 208
    assert pc.mean(table["G3"]).as_py() == pytest.approx(10.41519, abs=5e-6)
    assert np.bincount(table["studytime"].to_numpy())[1:].tolist() == [105, 198, 65, 27]
    (tmp_path / "student-mat.csv").write_bytes(uci_student)
    assert read_student(tmp_path).equals(table)


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (data.cleveland, r"cleveland\.csv\.gz or .*doi:10\.24432/C52P4X"),
        (data.student, r"student-mat\.csv\.gz or .*doi:10\.24432/C5TG7T"),
        (data.cifar10, r"cifar10-train-1\.npz or .*https:"),
    ],
)
def test_missing_files_are_named(read, named, tmp_path, monkeypatch):
    monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
    with pytest.raises(StorageError, match=f"set PUFFERSLICE_DATA to a folder with {named}"):
        read()
    for folder in (tmp_path, tmp_path / "absent"):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(folder))
        with pytest.raises(StorageError, match=f"no .* in '{folder}': there is no {named}"):
            read()


def test_another_cell_is_another_checksum(uci_cleveland, tmp_path):
    path = tmp_path / "processed.cleveland.data"
    changed = uci_cleveland.replace(b"63.0,1.0,1.0,145.0", b"64.0,1.0,1.0,145.0", 1)
    path.write_bytes(changed)
    header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
    sha256 = hashlib.sha256(header.encode() + changed).hexdigest()
    with pytest.raises(StorageError) as caught:
        read_cleveland(path)
    for fragment in (str(path), f"its 303 rows is {sha256}", CLEVELAND_SHA256, "doi:"):
        assert fragment in str(caught.value)
    assert "145" not in str(caught.value).replace(sha256, "")


def test_a_row_less_or_more(uci_student, tmp_path):
    path = tmp_path / "student-mat.csv"
    lines = uci_student.splitlines(keepends=True)
    for changed, n_rows in ((lines[:-1], 394), ([*lines, lines[-1]], 396), (lines[:1], 0)):
        path.write_bytes(b"".join(changed))
        with pytest.raises(StorageError, match=f"SHA-256 of its {n_rows} rows"):
            read_student(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b cut off",
        b"\xff\xfe\x00 no text",
        b'"' + b"x" * 200_000 + b'"\n',
        gzip.compress(bytes(2**24 + 1)),
    ],
    ids=["gzip", "bytes", "cell", "long"],
)
def test_unreadable_tables(content, tmp_path):
    path = tmp_path / "student-mat.csv.gz"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        read_student(path)
    parts = (str(path), STUDENT_SHA256, "C5TG7T", hashlib.sha256(content).hexdigest())
    assert all(part in str(caught.value) for part in parts)


def test_every_damaged_byte_of_an_archive_is_noticed(uci_student, tmp_path, rng):
    whole = gzip.compress(uci_student, mtime=0)
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


def test_cleveland_summary(data_folder):
    table = read_cleveland(data_folder)
    frame = table.to_pandas()
    query = data.cleveland_summary()
    columns = ["age", "trestbps", "chol"]
    expected = [
        *frame[columns].mean(),
        *frame[columns].std(ddof=0),
        (frame["chol"] >= 240).mean(),
        (frame["trestbps"] >= 140).mean(),
        139 / 303,
    ]
    np.testing.assert_allclose(query.outputs(table)[0], expected, rtol=1e-12)
    assert query.scales.tolist() == [10, 20, 50, 5, 10, 25, 0.1, 0.1, 0.1]
    values = frame[columns].to_numpy()
    assert (values >= query.range.low[:3]).all()
    assert (values <= query.range.high[:3]).all()


def test_student_summary(data_folder):
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


def sha256_of(array):
    return hashlib.sha256(array.tobytes()).hexdigest()


def binary(images, labels):
    """The published form: a label and three planes of 1024 pixels for each image."""
    return b"".join(
        bytes([label]) + b"".join(image[:, :, plane].tobytes() for plane in range(3))
        for image, label in zip(images, labels.tolist(), strict=True)
    )


@pytest.fixture
def parts(rng, monkeypatch):
    """Small parts with random pixels; their checksums stand in for the published ones."""
    parts = {
        part: (
            rng.integers(256, size=(N_IMAGES, 32, 32, 3), dtype=np.uint8),
            rng.integers(10, size=N_IMAGES, dtype=np.uint8),
        )
        for part in (*TRAIN, "test")
    }
    known = {part: Digests(*map(sha256_of, parts[part])) for part in (*TRAIN[:3], "test")}
    train = zip(*[parts[part] for part in TRAIN], strict=True)
    known["all"] = Digests(*(sha256_of(np.concatenate(arrays)) for arrays in train))
    monkeypatch.setattr(data, "DIGESTS", known)
    monkeypatch.setattr(data, "IMAGES_PER_FILE", N_IMAGES)
    return parts


def write_npz(folder, parts):
    for part, (images, labels) in parts.items():
        kind = part.partition("-")[0]
        np.savez(folder / f"cifar10-{part}.npz", **{f"x_{kind}": images, f"y_{kind}": labels})


def write_binary(folder, parts):
    for part, arrays in parts.items():
        name = "test_batch.bin" if part == "test" else f"data_batch_{part[-1]}.bin"
        (folder / name).write_bytes(binary(*arrays))


def test_real_images(data_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
    train, held_out = data.cifar10()
    assert len(train) % 10_000 == 0
    assert len(train) >= 30_000
    assert np.bincount(held_out.labels).tolist() == [1_000] * 10
    assert sha256_of(held_out.images) == DIGESTS["test"].images
    assert data.CIFAR10_CLASSES[3] == "cat"
    files = {"train-1": (train.images[:10_000], train.labels[:10_000])}
    write_binary(tmp_path, files | {"test": (held_out.images, held_out.labels)})
    assert read_cifar10(tmp_path)[1] == held_out
    images = train.images[:10_000].copy()
    images[1_234, 5, 6, 0] ^= 1
    write_binary(tmp_path, {"train-1": (images, train.labels[:10_000])})
    with pytest.raises(StorageError) as caught:
        read_cifar10(tmp_path)
    texts = (str(tmp_path / "data_batch_1.bin"), sha256_of(images), DIGESTS["train-1"].images)
    assert all(text in str(caught.value) for text in texts)


def test_all_forms_give_the_same(parts, tmp_path):
    for form in ("npz", "bin", "inside", "inside/cifar-10-batches-bin"):
        (tmp_path / form).mkdir()
    write_npz(tmp_path / "npz", parts)
    write_binary(tmp_path / "bin", parts)
    write_binary(tmp_path / "inside" / "cifar-10-batches-bin", parts)
    images, labels = (
        np.concatenate(arrays) for arrays in zip(*[parts[part] for part in TRAIN], strict=True)
    )
    for form in ("npz", "bin", "inside"):
        train, held_out = read_cifar10(tmp_path / form)
        np.testing.assert_array_equal(train.images, images)
        np.testing.assert_array_equal(train.labels, labels)
        np.testing.assert_array_equal(held_out.images, parts["test"][0])
        assert (train.labels.dtype, train.white, train.n_classes) == (np.int64, 255, 10)


def test_whichever_training_files_are_there(parts, tmp_path):
    """In any integer type; part four is known by the list beside it."""
    images, labels = parts["train-2"]
    others = {part: parts[part] for part in ("train-4", "test")}
    write_npz(tmp_path, {"train-2": (images, labels.astype(np.int64)), **others})
    sha256 = hashlib.sha256((tmp_path / "cifar10-train-4.npz").read_bytes()).hexdigest()
    for mark in ("  ", " *"):
        listing = f"\n{'0' * 64}  other.npz\n{sha256}{mark}cifar10-train-4.npz\n"
        (tmp_path / "SHA256SUMS").write_text(listing, encoding="utf-8")
        train, _ = read_cifar10(tmp_path)
        expected = np.concatenate([labels, parts["train-4"][1]])
        assert train.labels.tolist() == expected.tolist()


def test_no_test_file(parts, tmp_path):
    write_npz(tmp_path, {"train-1": parts["train-1"]})
    with pytest.raises(StorageError, match=r"has CIFAR-10, but no cifar10-test\.npz"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("part", ["train-1", "test"])
@pytest.mark.parametrize("which", [0, 1], ids=["images", "labels"])
def test_other_content_names_file_and_both_checksums(part, which, parts, tmp_path):
    arrays = [array.copy() for array in parts[part]]
    arrays[which].flat[0] = (arrays[which].flat[0] + 1) % 10
    files = {"train-1": parts["train-1"], "test": parts["test"]} | {part: tuple(arrays)}
    write_npz(tmp_path, files)
    with pytest.raises(StorageError) as caught:
        read_cifar10(tmp_path)
    for fragment in (f"cifar10-{part}.npz", sha256_of(arrays[which]), data.DIGESTS[part][which]):
        assert fragment in str(caught.value)


def test_part_five_is_checked_with_the_other_four_or_by_a_list(parts, tmp_path):
    images, labels = parts["train-5"]
    write_npz(tmp_path, parts | {"train-5": (images, labels[::-1] ^ 1)})
    with pytest.raises(StorageError, match="SHA-256 of its labels"):
        read_cifar10(tmp_path)
    (tmp_path / "cifar10-train-4.npz").unlink()
    path = tmp_path / "cifar10-train-5.npz"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(StorageError) as caught:
        read_cifar10(tmp_path)
    for fragment in (str(path), sha256, "no SHA256SUMS beside it lists the file", "all five"):
        assert fragment in str(caught.value)
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff no list\n")
    with pytest.raises(StorageError, match=r"train-5\.npz' cannot be checked"):
        read_cifar10(tmp_path)
    listed = "a" * 64
    (tmp_path / "SHA256SUMS").write_text(f"{listed}  cifar10-train-5.npz\n", encoding="utf-8")
    with pytest.raises(StorageError, match=rf"train-5\.npz' .* {sha256}, expected {listed}"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": np.zeros((N_IMAGES, 32, 32, 3))},
        {"x_train": np.zeros((2, 32, 32, 3), np.uint8)},
        {"y_train": np.zeros(N_IMAGES)},
        {"y_train": np.array([0, 10, 11, 1])},
        {"y_train": np.array([0, -1, 1, 1])},
        {"y_train": np.array([None, 1, 2, 3], dtype=object)},
    ],
)
def test_wrong_arrays(changes, parts, tmp_path):
    images, labels = parts["train-4"]
    np.savez(tmp_path / "cifar10-train-4.npz", **{"x_train": images, "y_train": labels} | changes)
    write_npz(tmp_path, {"test": parts["test"]})
    with pytest.raises(StorageError, match=r"cifar10-train-4\.npz' is damaged"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no images", b"PK\x03\x04 cut off", bytes(3073)])
@pytest.mark.parametrize("name", ["cifar10-train-1.npz", "data_batch_1.bin"])
def test_unreadable_images(content, name, tmp_path):
    for file in (name, "cifar10-test.npz", "test_batch.bin"):
        (tmp_path / file).write_bytes(content)
    with pytest.raises(StorageError, match="cannot be read") as caught:
        read_cifar10(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert hashlib.sha256(content).hexdigest() in str(caught.value)
