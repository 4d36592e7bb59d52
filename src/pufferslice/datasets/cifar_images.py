# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 from npz files, python batches or the published archive, checked by its pixels."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pufferslice.arrays import arrays_in
from pufferslice.datasets.archives import UNREADABLE, tar_members
from pufferslice.datasets.batch_pickles import UNREADABLE_PICKLE, read_batch
from pufferslice.datasets.folder import CHECKSUMS, Origin, listed_sha256
from pufferslice.datasets.images import LabelledImages
from pufferslice.errors import StorageError
from pufferslice.storage import read_bytes

CIFAR10_CLASSES: Final = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

IMAGES_PER_BATCH: Final = 10_000
_WHITE: Final = 255
_SHAPE: Final = (32, 32, 3)
_MOST_BYTES: Final = 2**26
_ARCHIVE: Final = "cifar-10-python.tar.gz"
_FOLDER: Final = "cifar-10-batches-py"
_TEST: Final = "test"

_ORIGIN: Final = Origin(
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
    return read_cifar10(_ORIGIN.folder())


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
        raise _ORIGIN.missing_from(where)
    if not train or _TEST not in found:
        raise _ORIGIN.incomplete(where, _BATCH_NAMES[_TEST if train else _TRAIN[0]])
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
        raise _ORIGIN.incomplete(folder, names[_TEST])
    for part, name in names.items():
        if (folder / name).exists():
            yield _Part(part, str(folder / name), read_bytes(folder / name, "archive"))


def _archived(path: Path) -> Iterator[_Part]:
    parts = {name: part for part, name in _BATCH_NAMES.items()}
    content = read_bytes(path, "archive")
    try:
        members = list(tar_members(content, parts, _MOST_BYTES))
    except UNREADABLE as error:
        expected = "an archive of python batches"
        raise _ORIGIN.unreadable(str(path), content, expected=expected, error=error) from error
    for name, batch in members:
        yield _Part(parts[name], f"{path}:{name}", batch)


def _checked(part: _Part) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images and labels of a file whose content is the published one."""
    try:
        images, labels = read_batch(part.content) if part.is_pickled else _npz(part)
    except UNREADABLE_PICKLE as error:
        raise _ORIGIN.unreadable(
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
            said = f"its {what}" if part != "all" else f"the {what} of all five training files"
            raise _ORIGIN.damaged(where, f"{said} (SHA-256)", found=found, expected=digest)


def _check_listed(path: Path, found: str) -> None:
    """A file whose content has no published checksum is known by the list beside it, or not."""
    expected = listed_sha256(path)
    if expected is None:
        msg = (
            f"{str(path)!r} cannot be checked: its images have no published checksum of their own, "
            f"and no {CHECKSUMS} beside it lists the file, whose SHA-256 is {found}. Add the "
            "training files that are missing, as all five can be checked together, or take "
            f"{path.name!r} out. {_ORIGIN.where}"
        )
        raise StorageError(msg)
    if found != expected:
        raise _ORIGIN.damaged(str(path), "the file (SHA-256)", found=found, expected=expected)


def _sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _check_md5(part: _Part) -> None:
    found = hashlib.md5(part.content, usedforsecurity=False).hexdigest()
    if found != BATCH_MD5[part.name]:
        raise _ORIGIN.damaged(
            part.where, "the file (MD5)", found=found, expected=BATCH_MD5[part.name]
        )
