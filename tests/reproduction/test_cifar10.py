# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 in all its forms: real files, files of the same form with other pixels, damaged ones.

Forms that are not available are written from random pixels, whose checksums replace the
published ones for the test.
"""

import gzip
import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from pufferslice.errors import StorageError
from reproduction import data
from reproduction.data import BATCH_MD5, DIGESTS, Digests, read_cifar10

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

    def test_the_parts_have_different_checksums(self):
        digests = [text for part in DIGESTS.values() for text in part]
        assert len(set(digests)) == len(digests) == 10
        assert all(len(text) == 64 for text in digests)
        assert [len(text) for text in BATCH_MD5.values()] == [32, 32]


class TestForms:
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

    def test_an_archive_of_other_things(self, tmp_path):
        path = tmp_path / "cifar-10-python.tar.gz"
        path.write_bytes(archive({"readme.html": b"x"}))
        with pytest.raises(StorageError, match="no CIFAR-10 in"):
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

    def test_part_five_as_a_batch_is_checked_alone(self, made, tmp_path):
        images, labels = made["train-5"]
        for part, content in (("train-5", (images ^ 1, labels)), ("test", made["test"])):
            (tmp_path / batch_name(part)).write_bytes(pickled(*content))
        with pytest.raises(StorageError, match=r"data_batch_5' .*file \(MD5\) is .* expected"):
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
