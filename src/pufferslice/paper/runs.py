# SPDX-License-Identifier: Apache-2.0
"""Training runs of an experiment: finished ones are kept, one that was cut off goes on."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import attrs
import numpy as np

from pufferslice.audit import audit_membership
from pufferslice.errors import StorageError
from pufferslice.paper.experiment import Setting
from pufferslice.sgd import TrainingPlan
from pufferslice.sgd.request import DataSource, Learning, Output, Prevalence, TrainingRequest
from pufferslice.storage import (
    canonical_json,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_whole,
)
from pufferslice.torch.task import Evaluation
from pufferslice.torch.train import (
    CERTIFICATE,
    INTERNAL,
    PUBLIC,
    evaluate_run,
    rows_of,
    run_training,
)

CONFIDENCE: Final = 0.95
"""Of the interval of an attack's area under the curve."""

_DELTAS: Final = (1e-5,)
_DIGITS: Final = 12
"""Of the digest that tells runs of different settings apart."""


@final
@attrs.frozen(kw_only=True)
class TrainingTask:
    """One model that an experiment wants trained."""

    label: str
    """For people: the beginning of the names of its files."""
    plan: TrainingPlan
    dataset: str
    worlds: Prevalence
    learning: Learning
    n_evaluations: int
    """How often the test accuracy is measured during the run, at equal distances."""
    checkpoint_every: int

    def request(self, folder: Path) -> TrainingRequest:
        """The task as a request; its run lives in a folder of its own below `folder`."""
        description = {"worlds": attrs.asdict(self.worlds), "learning": attrs.asdict(self.learning)}
        told = canonical_json(
            description
            | {
                "plan": self.plan.to_json(),
                "dataset": self.dataset,
                "n_evaluations": self.n_evaluations,
            }
        )
        name = f"{self.label}-{digest(told)[:_DIGITS]}"
        return TrainingRequest(
            plan=self.plan,
            data=DataSource(dataset=self.dataset),
            worlds=self.worlds,
            learning=self.learning,
            output=Output(
                folder=folder / name,
                evaluate_every=max(1, self.plan.n_steps // self.n_evaluations),
                public_evaluation=True,
                checkpoint_every=self.checkpoint_every,
            ),
            deltas=_DELTAS,
            source_folder=folder,
        )


@final
@attrs.frozen(kw_only=True)
class CurvePoint:
    """A run after some of its steps."""

    step: int
    test_accuracy: float
    test_loss: float
    batch_loss: float | None
    """Mean loss of the batches since the point before; None if all of them were empty."""


@final
@attrs.frozen(kw_only=True)
class RunResult:
    """What is kept of a finished run."""

    noise_multiplier: float
    plan_epsilon: float
    """What the run costs by the accountant of its plan."""
    train_accuracy: float
    train_loss: float
    test_accuracy: float
    test_loss: float
    others_loss: float | None
    """Mean loss on records of the dataset that were not trained on."""
    attack_auc: tuple[float, float, float] | None
    """Of the loss-threshold attack on members: value, and the ends of its interval."""
    curve: tuple[CurvePoint, ...]

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "RunResult":
        """Read back what `attrs.asdict` made."""
        auc = document["attack_auc"]
        curve = tuple(CurvePoint(**point) for point in document["curve"])
        changed = {"attack_auc": None if auc is None else tuple(auc), "curve": curve}
        return cls(**(document | changed))


def results_of(tasks: Sequence[TrainingTask], setting: Setting) -> list[RunResult]:
    """The results of all tasks, trained one after the other.

    A task that was finished before is not trained again: its file, named after everything that it
    depends on, is read. One that was cut off goes on from its checkpoint. When a run is over, its
    folder is replaced by the small file.
    """
    results = []
    for done, task in enumerate(tasks, start=1):
        results.append(_result(task.request(setting.folder)))
        setting.progress(done, len(tasks))
    return results


def _result(request: TrainingRequest) -> RunResult:
    folder = request.output.folder
    path = folder.with_name(f"{folder.name}.json")
    if not path.exists():
        if not (folder / CERTIFICATE).exists():
            run_training(request)
        write_whole(path, pretty_json(attrs.asdict(_evaluated(request))))
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return RunResult.from_json(parsed_json(read_bytes(path, "document")))
    except (ValueError, TypeError, KeyError) as error:
        msg = f"{str(path)!r} is not the result of a run: {error}. Remove it to train again"
        raise StorageError(msg) from error


def _evaluated(request: TrainingRequest) -> RunResult:
    found = evaluate_run(request)
    members, others, test = found["members"], found.get("others"), found["held_out"]
    return RunResult(
        noise_multiplier=float(request.plan.noise_multipliers[0]),
        plan_epsilon=request.plan.guarantee().epsilon,
        train_accuracy=members.accuracy,
        train_loss=members.mean_loss,
        test_accuracy=test.accuracy,
        test_loss=test.mean_loss,
        others_loss=None if others is None else others.mean_loss,
        attack_auc=None if others is None else _attack(members, others),
        curve=_curve(request.output.folder),
    )


def _attack(members: Evaluation, others: Evaluation) -> tuple[float, float, float]:
    """Yeom's attack: a small loss speaks for a member."""
    found = audit_membership(
        -np.concatenate([members.losses, others.losses]),
        np.repeat([True, False], [len(members.losses), len(others.losses)]),
        attack="loss threshold",
        confidence=CONFIDENCE,
        false_positive_rates=(),
    )
    return found.roc_auc.value, found.roc_auc.low, found.roc_auc.high


def _curve(folder: Path) -> tuple[CurvePoint, ...]:
    steps = [row for row in rows_of(folder / INTERNAL) if "mean_loss" in row]
    points, before = [], 0
    for row in rows_of(folder / PUBLIC):
        since = [
            one["mean_loss"]
            for one in steps
            if before < one["step"] <= row["step"] and one["mean_loss"] is not None
        ]
        points.append(
            CurvePoint(
                step=row["step"],
                test_accuracy=row["held_out_accuracy"],
                test_loss=row["held_out_loss"],
                batch_loss=float(np.mean(since)) if since else None,
            )
        )
        before = row["step"]
    return tuple(points)
