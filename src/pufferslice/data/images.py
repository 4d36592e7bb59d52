# SPDX-License-Identifier: Apache-2.0
"""Labelled images, and handwritten digits of 8x8 pixels from scikit-learn (extra `sklearn`)."""

from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice._core.arrays import same
from pufferslice.errors import MissingExtraError, TableError


def _locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view; no copy, because images are large."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


@final
@attrs.frozen(kw_only=True, repr=False)
class LabelledImages:
    """Images and the number of the class of each. They may be private: `repr` shows none."""

    images: npt.NDArray[np.uint8] = attrs.field(converter=_locked, eq=same)
    """Pixels, shape (n_images, height, width, channels), from 0 to `white`."""
    labels: npt.NDArray[np.int64] = attrs.field(converter=_locked, eq=same)
    """Class of each image, from 0 to `n_classes` - 1, shape (n_images,)."""
    white: int
    """The value of the brightest pixel, a public fact of the format."""
    n_classes: int

    def __attrs_post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            raise TableError(
                "images must have shape (n_images, height, width, channels) and as many labels; "
                f"got {self.images.shape} and {self.labels.shape}"
            )
        wrong = int(np.count_nonzero((self.labels < 0) | (self.labels >= self.n_classes)))
        if wrong:
            raise TableError(
                f"labels must be from 0 to {self.n_classes - 1}; {wrong} of {len(self)} are not"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.images.shape[1:])
        return f"LabelledImages({len(self)} of {shape}, {self.n_classes} classes)"


N_HELD_OUT: Final = 360
_SPLIT_SEED: Final = 0


def digits() -> tuple[LabelledImages, LabelledImages]:
    """Load 1,437 digits to train on and 360 held out.

    The split is a public permutation that is the same under every version of numpy.
    """
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "digits come with scikit-learn; install it with: pip install 'pufferslice[sklearn]'"
        ) from error
    data = load_digits()
    # Raw bits of the generator: numpy promises these streams, but not those of `permutation`.
    keys = np.random.PCG64(_SPLIT_SEED).random_raw(len(data.target))
    rows = np.argsort(keys, kind="stable")
    train, held_out = (
        LabelledImages(
            images=data.images[part].astype(np.uint8)[..., np.newaxis],
            labels=data.target[part].astype(np.int64),
            white=16,
            n_classes=10,
        )
        for part in (rows[:-N_HELD_OUT], rows[-N_HELD_OUT:])
    )
    return train, held_out
