# SPDX-License-Identifier: Apache-2.0
"""Labelled images as arrays, and CIFAR-10 from the folder that `PUFFERSLICE_DATA` names."""

import errno
import io
import os
import zipfile
from pathlib import Path
from typing import Any, Final, final

import attrs
import numpy as np
import numpy.typing as npt

from pufferslice.arrays import same
from pufferslice.errors import StorageError, TableError
from pufferslice.storage import read_bytes

DATA_FOLDER: Final = "PUFFERSLICE_DATA"
"""The environment variable that names the folder with CIFAR-10."""

CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

_BATCHES: Final = range(1, 6)
_SHAPE: Final = (32, 32, 3)


def _locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


@final
@attrs.frozen(kw_only=True, repr=False)
class LabelledImages:
    """Images and the number of the class of each. They may be private: `repr` shows none."""

    images: npt.NDArray[np.uint8] = attrs.field(converter=_locked, eq=same)
    """Shape (n_images, height, width, channels), from 0 to `white`."""
    labels: npt.NDArray[np.int64] = attrs.field(converter=_locked, eq=same)
    """From 0 to `n_classes` - 1, shape (n_images,)."""
    white: int
    """The value of the brightest pixel, a public fact of the format."""
    n_classes: int

    def __attrs_post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            msg = (
                "images must have shape (n_images, height, width, channels) and as many labels; "
                f"got {self.images.shape} and {self.labels.shape}"
            )
            raise TableError(msg)
        wrong = int(np.count_nonzero((self.labels < 0) | (self.labels >= self.n_classes)))
        if wrong:
            msg = f"labels must be from 0 to {self.n_classes - 1}; {wrong} of {len(self)} are not"
            raise TableError(msg)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.images.shape[1:])
        return f"LabelledImages({len(self)} of {shape}, {self.n_classes} classes)"


def cifar10() -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10, to train on and held out, from the folder that `PUFFERSLICE_DATA` names.

    It does not ship with the library: its images have no licence.
    """
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        msg = (
            f"CIFAR-10 does not ship with the library: set {DATA_FOLDER} to a folder with "
            "cifar10-train-1.npz and cifar10-test.npz"
        )
        raise StorageError(errno.ENOENT, msg)
    return read_cifar10(folder)


def read_cifar10(folder: str | os.PathLike[str]) -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10 from `cifar10-train-1.npz` to `-5.npz`, whichever are there, and `cifar10-test.npz`.

    Each file has `x_train` or `x_test`, uint8 of shape (n, 32, 32, 3), and `y_train` or `y_test`.
    """
    where = Path(folder)
    names = [where / f"cifar10-train-{batch}.npz" for batch in _BATCHES]
    parts = [_read_batch(path, "train") for path in names if path.exists()]
    if not parts:
        msg = f"no CIFAR-10 in {str(where)!r}: there is none of cifar10-train-1.npz to -5.npz"
        raise StorageError(errno.ENOENT, msg)
    train = LabelledImages(
        images=np.concatenate([part.images for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        white=255,
        n_classes=len(CIFAR10_CLASSES),
    )
    return train, _read_batch(where / "cifar10-test.npz", "test")


def _read_batch(path: Path, part: str) -> LabelledImages:
    content = io.BytesIO(read_bytes(path))
    try:
        with np.load(content, allow_pickle=False) as arrays:
            images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
        msg = f"{str(path)!r} is not a CIFAR-10 file: {type(error).__name__}"
        raise TableError(msg) from error
    right = images.dtype == np.uint8 and images.shape == (len(labels), *_SHAPE)
    if not right or labels.ndim != 1 or labels.dtype.kind not in "iu":
        msg = (
            f"{str(path)!r} must hold uint8 images of 32x32x3 and whole numbers as labels; it has "
            f"{images.dtype} of shape {images.shape}, and {labels.dtype} of shape {labels.shape}"
        )
        raise TableError(msg)
    return LabelledImages(
        images=images,
        labels=labels.astype(np.int64),
        white=255,
        n_classes=len(CIFAR10_CLASSES),
    )
