# SPDX-License-Identifier: Apache-2.0
"""The request for a training run: the plan, the data, the model and where results go.

Values only: they load neither data nor torch.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, final

import attrs
import numpy as np

from pufferslice._core.checks import check_above, check_at_least, check_count, check_one_of, is_a
from pufferslice.errors import ArgumentError
from pufferslice.learning.differing import DifferingRecords, exactly
from pufferslice.learning.plan import TrainingPlan
from pufferslice.learning.worlds import Labels, TwoWorlds, relabelled

DATASETS: Final = ("digits",)
MODELS: Final = ("linear", "small", "resnet22")
LOSSES: Final = ("cross_entropy",)
OPTIMIZERS: Final = ("sgd", "adam")
SCHEDULES: Final = ("constant", "cosine")
WORLDS: Final = ("first", "second")

_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@final
@attrs.frozen(kw_only=True)
class DataSource:
    """Source of the records; the plan sets how many are used for training."""

    dataset: str
    """`digits`, or `module:function` that returns what to train on and what is held out.

    Of digits, and of a function that returns two `LabelledImages`, the first records are taken, as
    many as the plan has; any other function must return exactly that many.
    """
    name: str | None = None
    """The public name of the data in the certificate; without one it is unique to the run."""
    n_classes: int | None = None
    """Number of classes, for a function: the records may not show all of them."""

    def __attrs_post_init__(self) -> None:
        check_named(DATASETS, dataset=self.dataset)
        if self.name is not None and (not is_a(self.name, str) or not self.name):
            raise ArgumentError(f"name must be a non-empty string, got {self.name!r}")
        if self.n_classes is not None:
            check_count(2, n_classes=self.n_classes)
            if self.dataset in DATASETS:
                raise ArgumentError(
                    f"n_classes applies only to your own data; {self.dataset!r} has its own"
                )


@final
@attrs.frozen(kw_only=True)
class Prevalence:
    """Two worlds that differ in how frequent one class is, and which of them is trained on.

    The first world is reached from the labels as they are, the second from the first, each with as
    few changes as possible. How many records differ follows from the public shares alone.

    >>> worlds = Prevalence(label=3, shares=(0.1, 0.1004), seed=7, world="first")
    >>> worlds.differing(50_000)
    DifferingRecords('exactly 20 records differ')
    """

    label: int
    shares: tuple[float, float]
    """Share of the label in the first world and in the second."""
    seed: int
    """Public seed that decides which labels change."""
    world: Literal["first", "second"]
    """The secret: the world used for training. No public file contains it."""

    def __attrs_post_init__(self) -> None:
        check_count(0, label=self.label, seed=self.seed)
        check_one_of(WORLDS, world=self.world)
        if not is_a(self.shares, tuple) or len(self.shares) != 2:
            raise ArgumentError(
                f"shares must be two numbers, one for each world; got {self.shares!r}"
            )

    def differing(self, n_records: int) -> DifferingRecords:
        """Number of records that the secret changes."""
        check_count(1, n_records=n_records)
        low, high = (self._count(share, n_records) for share in self.shares)
        if low == high:
            raise ArgumentError(
                f"shares {self.shares[0]!r} and {self.shares[1]!r} of {n_records} records are both "
                f"{low} records; the two worlds would be the same"
            )
        if low in {0, n_records}:
            raise ArgumentError(
                f"the first of the shares must leave records with the label and without it, but "
                f"{self.shares[0]!r} of {n_records} records is {low}; the second world is derived "
                "from the first"
            )
        return exactly(abs(high - low))

    def worlds(self, labels: object) -> TwoWorlds:
        """Both label vectors. Confidential."""
        first = relabelled(labels, label=self.label, share=self.shares[0], seed=self.seed)
        second = relabelled(first, label=self.label, share=self.shares[1], seed=self.seed)
        return TwoWorlds(first=first, second=second)

    def realised(self, labels: object) -> Labels:
        """The labels to train on. Confidential."""
        worlds = self.worlds(labels)
        return worlds.first if self.world == "first" else worlds.second

    @staticmethod
    def _count(share: float, n_records: int) -> int:
        """The number of records of a share, counted on example labels by the rule of the worlds."""
        example = np.zeros(n_records, dtype=np.int64)
        example[0] = 1
        return int(np.count_nonzero(relabelled(example, label=1, share=share, seed=0)))


@final
@attrs.frozen(kw_only=True)
class Learning:
    """Model and optimizer: public, or applied after the noise, so they cost nothing."""

    model: str
    """`linear`, `small`, `resnet22`, or `module:function` that returns a model."""
    seed: int
    """Public seed of the initial weights."""
    learning_rate: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    """`constant`, or `cosine`: a linear rise over `n_warmup_steps`, then half a cosine to 0."""
    n_warmup_steps: int = 0
    loss: str = "cross_entropy"
    """`cross_entropy`, or `module:function` of outputs and targets that gives one per example."""

    def __attrs_post_init__(self) -> None:
        check_named(MODELS, model=self.model)
        check_named(LOSSES, loss=self.loss)
        check_count(0, seed=self.seed, n_warmup_steps=self.n_warmup_steps)
        check_above(0, learning_rate=self.learning_rate)
        check_at_least(0, momentum=self.momentum, weight_decay=self.weight_decay)
        check_one_of(OPTIMIZERS, optimizer=self.optimizer)
        check_one_of(SCHEDULES, schedule=self.schedule)
        if self.momentum and self.optimizer != "sgd":
            raise ArgumentError(
                f"momentum is for optimizer 'sgd', not for {self.optimizer!r}; leave it out"
            )
        if self.n_warmup_steps and self.schedule != "cosine":
            raise ArgumentError(
                f"n_warmup_steps is for schedule 'cosine', not {self.schedule!r}; leave it out"
            )


@final
@attrs.frozen(kw_only=True)
class Output:
    """Folder of the results, and whether the held-out records are public."""

    folder: Path
    evaluate_every: int
    """Steps between rows of the public log and evaluations on the held-out records.

    The last step always has one.
    """
    public_evaluation: bool = False
    """Whether the held-out records are declared public.

    Only then does the public log show metrics on them; otherwise the internal log does.
    """
    checkpoint_every: int = 10
    """Steps between checkpoints."""

    def __attrs_post_init__(self) -> None:
        if not is_a(self.public_evaluation, bool):
            raise ArgumentError(
                f"public_evaluation must be true or false, got {self.public_evaluation!r}"
            )
        check_count(1, evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every)


@final
@attrs.frozen(kw_only=True)
class TrainingRequest:
    """Everything in a training file."""

    plan: TrainingPlan
    data: DataSource
    worlds: Prevalence | None
    """Worlds by prevalence; None if the file gives only the number of differing records."""
    learning: Learning
    output: Output
    deltas: tuple[float, ...]
    """Deltas of the (epsilon, delta) views in the certificate."""
    source_folder: Path
    """Folder in which modules named in the file are looked for first."""

    def __attrs_post_init__(self) -> None:
        n_records, warmup = self.plan.sampling.n_records, self.learning.n_warmup_steps
        if self.worlds is not None and self.plan.differing != self.worlds.differing(n_records):
            raise ArgumentError(
                "the plan must have as many differing records as the two worlds have, "
                f"{self.worlds.differing(n_records).largest}; got {self.plan.differing.origin}"
            )
        if warmup >= self.plan.n_steps:
            raise ArgumentError(
                f"n_warmup_steps must be less than the {self.plan.n_steps} steps, got {warmup}"
            )

    @property
    def named_code(self) -> tuple[str, ...]:
        """Functions of other modules that a run of this request calls."""
        known = (*DATASETS, *MODELS, *LOSSES)
        names = (self.data.dataset, self.learning.model, self.learning.loss)
        return tuple(name for name in names if name not in known)

    def description(self) -> dict[str, Any]:
        """Describe what makes two requests the same run. Confidential: reveals the world.

        Folder, logs and checkpoints are left out: they may change when a run resumes.
        """
        worlds = None if self.worlds is None else attrs.asdict(self.worlds)
        return {
            "plan": self.plan.to_json(),
            "data": attrs.asdict(self.data),
            "worlds": worlds and worlds | {"shares": list(worlds["shares"])},
            "learning": attrs.asdict(self.learning),
            "deltas": list(self.deltas),
        }


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Names of the parts in which two descriptions are not the same.

    >>> differences({"data": {"dataset": "digits"}}, {"data": {"dataset": "own:data"}})
    ['data.dataset']
    """
    names: list[str] = []
    for name in dict.fromkeys((*ours, *theirs)):
        first, second = ours.get(name), theirs.get(name)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            names += [f"{name}.{inner}" for inner in differences(first, second)]
        elif first != second:
            names.append(name)
    return names


def check_named(choices: tuple[str, ...], **named: str) -> None:
    """Raise unless each value is one of the choices, or a function as `module:function`."""
    for name, value in named.items():
        if value not in choices and not (is_a(value, str) and _FUNCTION.fullmatch(value)):
            raise ArgumentError(
                f"{name} must be one of {', '.join(choices)} or 'module:function'; got {value!r}"
            )
