# SPDX-License-Identifier: Apache-2.0
"""Labelled images, and the digits in their public split."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pufferslice import datasets
from pufferslice.data import LabelledImages


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
            "from pufferslice import datasets\nfrom pufferslice.errors import MissingExtraError\n"
            "try:\n    datasets.digits()\n"
            "except MissingExtraError as error:\n    assert 'pufferslice[sklearn]' in str(error)\n"
            "else:\n    raise SystemExit('no error')"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def test_images_are_locked():
    images = LabelledImages(
        images=np.zeros((1, 4, 4, 1), np.uint8), labels=np.array([0]), white=16, n_classes=2
    )
    with pytest.raises(ValueError, match="read-only"):
        images.images[0] = 1
