# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits of 8x8 pixels, from scikit-learn (extra `models`), in a public split."""

from typing import Final

import numpy as np

from pufferslice.datasets.images import LabelledImages
from pufferslice.errors import MissingExtraError

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    msg = "the digits come with scikit-learn; install it with: pip install 'pufferslice[models]'"
    raise MissingExtraError(msg) from error

N_HELD_OUT: Final = 360
_SPLIT_SEED: Final = 0


def digits() -> tuple[LabelledImages, LabelledImages]:
    """1,437 digits to train on and 360 held out.

    The split is a public permutation that is the same under every version of numpy.
    """
    found = load_digits()
    # Raw bits of the generator: numpy promises these streams, but not those of `permutation`.
    keys = np.random.PCG64(_SPLIT_SEED).random_raw(len(found.target))
    rows = np.argsort(keys, kind="stable")
    train, held_out = (
        LabelledImages(
            images=found.images[part].astype(np.uint8)[..., np.newaxis],
            labels=found.target[part].astype(np.int64),
            white=16,
            n_classes=10,
        )
        for part in (rows[:-N_HELD_OUT], rows[-N_HELD_OUT:])
    )
    return train, held_out
