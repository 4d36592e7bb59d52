# SPDX-License-Identifier: Apache-2.0
"""The records that a training request asks for, in the world that is trained on."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

import attrs
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from pufferslice import datasets
from pufferslice.datasets import LabelledImages
from pufferslice.errors import ArgumentError
from pufferslice.sgd.request import DATASETS, Prevalence, TrainingRequest
from pufferslice.sgd.worlds import Labels
from pufferslice.torch.named import call_named

Records: TypeAlias = Dataset[Any]

_WHAT_A_FUNCTION_RETURNS: Final = (
    "must return a tuple of two datasets, what to train on and what is held out (or None)"
)


@final
class ImageDataset(Dataset[tuple[Tensor, int]]):
    """Images as they are stored, turned into numbers from -2 to 2 when they are asked for.

    The scale is a public constant; nothing is computed from the images as a whole.
    """

    def __init__(self, images: LabelledImages) -> None:
        self._images = torch.tensor(images.images)
        self._labels = images.labels.tolist()
        self._white = images.white

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several at once: images with channels first, and their labels."""
        pixels = self._images[torch.as_tensor(indices)].permute(0, 3, 1, 2).to(torch.float32)
        scaled = ((pixels / self._white - 0.5) / 0.25).contiguous()
        return [(scaled[k], self._labels[i]) for k, i in enumerate(indices)]


@final
@attrs.frozen(kw_only=True, eq=False, repr=False)
class RunData:
    """What is trained on, and what is held out. Confidential."""

    train: Records
    held_out: Records | None
    n_classes: int | None
    """None where the request does not say; it is never read off the records."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, which every record has."""
        return tuple(torch.as_tensor(self.train[0][0]).shape)


def run_data(request: TrainingRequest) -> RunData:
    """The records of a request, in the world that is trained on."""
    source, n_records = request.data, request.plan.sampling.n_records
    if source.dataset not in DATASETS:
        return _own_data(request, n_records)
    read = datasets.digits if source.dataset == "digits" else datasets.cifar10
    train, held_out = read()
    if len(train) < n_records:
        msg = (
            f"[data] n_records is {n_records}, but {source.dataset!r} has {len(train)} records to "
            "train on; say at most so many"
        )
        raise ArgumentError(msg)
    labels = _realised(train.labels[:n_records], request.worlds)
    taken = attrs.evolve(train, images=train.images[:n_records], labels=labels)
    return RunData(
        train=ImageDataset(taken), held_out=ImageDataset(held_out), n_classes=train.n_classes
    )


def _own_data(request: TrainingRequest, n_records: int) -> RunData:
    source = request.data
    found = call_named(source.dataset, request.source_folder)
    if not isinstance(found, tuple) or len(found) != 2:
        msg = f"[data] dataset {source.dataset!r} {_WHAT_A_FUNCTION_RETURNS}, got a {_kind(found)}"
        raise ArgumentError(msg)
    train, held_out = found
    for part in (train, held_out):
        if part is not None and not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
            msg = f"[data] dataset {source.dataset!r} {_WHAT_A_FUNCTION_RETURNS}; a {_kind(part)} "
            raise ArgumentError(msg + "gives no records by position")
    if train is None or len(train) != n_records:
        n_found = 0 if train is None else len(train)
        msg = (
            f"[data] n_records is {n_records}, but {source.dataset!r} returned {n_found} records "
            "to train on; the number is public, and the same in both worlds"
        )
        raise ArgumentError(msg)
    if held_out is not None and not len(held_out):
        msg = f"[data] dataset {source.dataset!r} holds out no records; return None instead"
        raise ArgumentError(msg)
    if source.n_classes is not None:
        _check_labels(train, source.n_classes)
    return RunData(
        train=train if request.worlds is None else _relabelled(train, request.worlds),
        held_out=held_out,
        n_classes=source.n_classes,
    )


def _relabelled(train: Records, worlds: Prevalence) -> TensorDataset:
    """The same tensors with the labels of the world that is trained on."""
    if type(train) is not TensorDataset:
        msg = (
            "[secret] prevalence needs a TensorDataset, whose last tensor is the labels; got a "
            f"{_kind(train)}. Change the labels yourself and say exactly = ... instead"
        )
        raise ArgumentError(msg)
    *inputs, labels = train.tensors
    return TensorDataset(*inputs, torch.tensor(_realised(labels.numpy(), worlds)))


def _realised(labels: Labels, worlds: Prevalence | None) -> Labels:
    return labels if worlds is None else worlds.realised(labels)


def _check_labels(train: Records, n_classes: int) -> None:
    """Labels that can be seen at once are counted now, so that no step stumbles over one."""
    if type(train) is not TensorDataset or train.tensors[-1].dtype != torch.int64:
        return
    labels = train.tensors[-1]
    wrong = int(torch.count_nonzero((labels < 0) | (labels >= n_classes)))
    if wrong:
        msg = (
            f"[data] labels must be from 0 to {n_classes - 1}; {wrong} of {len(labels)} records to "
            "train on have another one"
        )
        raise ArgumentError(msg)


def _kind(value: object) -> str:
    return type(value).__name__
