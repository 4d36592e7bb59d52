# SPDX-License-Identifier: Apache-2.0
"""Digits in their public split, and CIFAR-10 from real files and from broken ones."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pufferslice import datasets
from pufferslice.datasets import LabelledImages, read_cifar10
from pufferslice.errors import StorageError, TableError


def write_batch(path, part, n_images=3, **changes):
    arrays = {
        f"x_{part}": np.zeros((n_images, 32, 32, 3), np.uint8),
        f"y_{part}": np.arange(n_images, dtype=np.uint8),
    }
    np.savez_compressed(path, **(arrays | changes))


class TestDigits:
    def test_sizes_and_that_no_digit_is_lost_or_in_both_parts(self):
        train, held_out = datasets.digits()
        assert (len(train), len(held_out)) == (1_437, 360)
        assert train.images.shape == (1_437, 8, 8, 1)
        assert (train.white, train.n_classes) == (16, 10)
        pixels = np.concatenate([train.images, held_out.images]).reshape(-1, 64)
        labels = np.concatenate([train.labels, held_out.labels])
        found = sorted(map(tuple, np.column_stack([pixels, labels])))
        real = load_digits()
        assert found == sorted(map(tuple, np.column_stack([real.data, real.target]).astype(int)))

    def test_the_split_is_always_the_same(self):
        train, held_out = datasets.digits()
        assert held_out.labels[:8].tolist() == [6, 2, 4, 2, 4, 1, 9, 3]
        assert np.bincount(train.labels).min() > 120

    def test_scikit_learn_is_loaded_only_when_digits_are_asked_for(self):
        code = (
            "import sys\nfrom pufferslice import datasets\nassert 'digits' in dir(datasets)\n"
            "assert 'sklearn' not in sys.modules\ndatasets.digits()\n"
            "assert 'sklearn' in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_without_scikit_learn_the_extra_is_named(self):
        code = (
            "import sys\nsys.modules['sklearn'] = None\nsys.modules['sklearn.datasets'] = None\n"
            "from pufferslice import MissingExtraError, datasets\n"
            "try:\n    datasets.digits()\n"
            "except MissingExtraError as error:\n    assert 'pufferslice[models]' in str(error)\n"
            "else:\n    raise SystemExit('no error')"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_unknown_names_are_unknown(self):
        with pytest.raises(AttributeError, match="has no attribute 'digit'"):
            datasets.digit  # noqa: B018 - the access is the test


class TestCifar10:
    def test_real_files(self, data_folder, monkeypatch):
        monkeypatch.setenv("PUFFERSLICE_DATA", str(data_folder))
        train, held_out = datasets.cifar10()
        assert len(train) % 10_000 == 0
        assert len(train) >= 30_000
        assert train.images.shape[1:] == (32, 32, 3)
        assert np.bincount(held_out.labels).tolist() == [1_000] * 10
        found = hashlib.sha256(held_out.images.tobytes()).hexdigest()
        assert found == "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04"
        assert repr(train) == f"LabelledImages({len(train)} of 32x32x3, 10 classes)"

    def test_whichever_train_files_are_there(self, tmp_path):
        for batch in (2, 5):
            write_batch(tmp_path / f"cifar10-train-{batch}.npz", "train")
        write_batch(tmp_path / "cifar10-test.npz", "test", n_images=2)
        train, held_out = read_cifar10(tmp_path)
        assert train.labels.tolist() == [0, 1, 2, 0, 1, 2]
        assert len(held_out) == 2

    def test_without_the_folder_or_the_files(self, tmp_path, monkeypatch):
        monkeypatch.delenv("PUFFERSLICE_DATA", raising=False)
        with pytest.raises(StorageError, match="set PUFFERSLICE_DATA to a folder with"):
            datasets.cifar10()
        monkeypatch.setenv("PUFFERSLICE_DATA", str(tmp_path))
        with pytest.raises(StorageError, match=r"none of cifar10-train-1.npz to -5.npz"):
            datasets.cifar10()
        write_batch(tmp_path / "cifar10-train-1.npz", "train")
        with pytest.raises(StorageError, match=r"cannot read '.*cifar10-test.npz': No such file"):
            datasets.cifar10()

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"x_train": np.zeros((3, 32, 32), np.uint8)}, "must hold uint8 images of 32x32x3"),
            ({"x_train": np.zeros((3, 32, 32, 3))}, "it has float64 of shape"),
            ({"x_train": np.zeros((2, 32, 32, 3), np.uint8)}, "must hold uint8 images"),
            ({"y_train": np.zeros(3)}, "whole numbers as labels"),
            ({"y_train": np.array([0, 10, 11])}, "labels must be from 0 to 9; 2 of 3 are not"),
            ({"y_train": np.array([None, 1, 2], dtype=object)}, "is not a CIFAR-10 file"),
        ],
    )
    def test_wrong_arrays(self, changes, match, tmp_path):
        write_batch(tmp_path / "cifar10-train-1.npz", "train", **changes)
        write_batch(tmp_path / "cifar10-test.npz", "test")
        with pytest.raises(TableError, match=match):
            read_cifar10(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
    def test_damaged_files(self, content, tmp_path):
        (tmp_path / "cifar10-train-1.npz").write_bytes(content)
        with pytest.raises(TableError, match=r"cifar10-train-1\.npz"):
            read_cifar10(tmp_path)

    def test_one_array_is_no_archive(self, tmp_path):
        with (tmp_path / "cifar10-train-1.npz").open("wb") as file:
            np.save(file, np.zeros(3))
        with pytest.raises(TableError, match="is not a CIFAR-10 file"):
            read_cifar10(tmp_path)

    def test_other_names_inside(self, tmp_path):
        np.savez(tmp_path / "cifar10-train-1.npz", images=np.zeros(3))
        with pytest.raises(TableError, match="is not a CIFAR-10 file: KeyError"):
            read_cifar10(tmp_path)


def test_images_are_locked_and_checked():
    images = LabelledImages(
        images=np.zeros((2, 4, 4, 1), np.uint8), labels=np.array([0, 1]), white=16, n_classes=2
    )
    with pytest.raises(ValueError, match="read-only"):
        images.images[0] = 1
    with pytest.raises(TableError, match="as many labels"):
        LabelledImages(
            images=np.zeros((2, 4, 4, 1), np.uint8), labels=np.array([0]), white=16, n_classes=2
        )
