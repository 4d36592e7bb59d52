# SPDX-License-Identifier: Apache-2.0
"""Training runs of the experiments, their scale, and accuracy and loss during training.

Finished runs are kept; an interrupted run resumes from its checkpoint.
"""

import io
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, final

import attrs
import numpy as np
import torch

from pufferslice._core.files import (
    canonical_json,
    digest,
    parsed_json,
    pretty_json,
    read_bytes,
    write_whole,
)
from pufferslice.audit import audit_membership
from pufferslice.claims import Measure
from pufferslice.errors import StorageError
from pufferslice.learning import FlatClipping, TrainingPlan, exactly, plan_with_noise
from pufferslice.learning.clipping import Clipping
from pufferslice.learning.request import DataSource, Learning, Output, Prevalence, TrainingRequest
from pufferslice.torch.train import (
    CERTIFICATE,
    INTERNAL,
    MODEL,
    PUBLIC,
    Evaluation,
    evaluate,
    rows_of,
    run_data,
    run_loss,
    run_model,
    run_training,
)
from reproduction import data
from reproduction.experiment import Claim, Outcome, Row, Setting
from reproduction.noise import (
    CAT,
    N_DIFFERING,
    N_RECORDS,
    ORDER,
    SETUPS,
    NoiseSetting,
    SgdSetup,
    accountant_of,
    noise_multipliers,
)

CIFAR10: Final = "reproduction.data:cifar10"
"""The name under which `pufferslice train` finds CIFAR-10."""

CONFIDENCE: Final = 0.95
"""Of the interval of an attack's area under the curve."""

Key = TypeVar("Key")
"""What an experiment knows a task by."""

_DELTAS: Final = (1e-5,)
_DIGITS: Final = 12
"""Digits of the digest of the settings in a name."""


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
        settings = canonical_json(
            description
            | {
                "plan": self.plan.to_json(),
                "dataset": self.dataset,
                "n_evaluations": self.n_evaluations,
            }
        )
        name = f"{self.label}-{digest(settings)[:_DIGITS]}"
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


def results_of(tasks: Mapping[Key, TrainingTask], setting: Setting) -> dict[Key, RunResult]:
    """The results of all tasks, trained one after the other.

    A task that was finished before is not trained again: its file, named after everything that it
    depends on, is read. An interrupted one resumes from its checkpoint. When a run is over, its
    folder is replaced by the small file.
    """
    results = {}
    for done, (key, task) in enumerate(tasks.items(), start=1):
        results[key] = _result(task.request(setting.folder))
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
        raise StorageError(
            f"{str(path)!r} is not the result of a run: {error}. Remove it to train again"
        ) from error


def evaluate_run(request: TrainingRequest) -> Mapping[str, Evaluation]:
    """Evaluate a finished run on three sets of images. The guarantee does not cover the results.

    `members`: the training records, with the labels of their world. `others`: the same number of
    images that were not trained on, if there are enough. `held_out`: the public test records.
    """
    records = run_data(request)
    model, loss = run_model(request, records), run_loss(request)
    state = read_bytes(request.output.folder / MODEL, "model")
    model.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    parts = {"members": records.train, "held_out": records.held_out, "others": records.others}
    return {name: evaluate(model, loss, part) for name, part in parts.items() if part is not None}


def _evaluated(request: TrainingRequest) -> RunResult:
    parts = evaluate_run(request)
    members, others, test = parts["members"], parts.get("others"), parts["held_out"]
    return RunResult(
        noise_multiplier=float(request.plan.noise_multipliers[0]),
        plan_epsilon=request.plan.guarantee().epsilon,
        train_accuracy=members.accuracy,
        train_loss=members.mean_loss,
        test_accuracy=test.accuracy,
        test_loss=test.mean_loss,
        others_loss=None if others is None else others.mean_loss,
        attack_auc=None if others is None else attack_of(members, others)[0],
        curve=_curve(request.output.folder),
    )


def attack_of(members: Evaluation, others: Evaluation) -> tuple[tuple[float, float, float], float]:
    """Yeom's attack: a small loss suggests a member.

    Its area under the curve, with the ends of the interval; and its advantage (true minus false
    positive rate) at Yeom's threshold, the mean loss of the members.
    """
    audit = audit_membership(
        -np.concatenate([members.losses, others.losses]),
        np.repeat([True, False], [len(members.losses), len(others.losses)]),
        attack="loss threshold",
        confidence=CONFIDENCE,
        false_positive_rates=(),
    )
    below = [float(np.mean(part.losses <= members.mean_loss)) for part in (members, others)]
    return (audit.roc_auc.value, audit.roc_auc.low, audit.roc_auc.high), below[0] - below[1]


def _curve(folder: Path) -> tuple[CurvePoint, ...]:
    steps = [row for row in rows_of(folder / INTERNAL) if "mean_loss" in row]
    points, before = [], 0
    for row in rows_of(folder / PUBLIC):
        since = [
            step["mean_loss"]
            for step in steps
            if before < step["step"] <= row["step"] and step["mean_loss"] is not None
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


ALMOST_NO_NOISE: Final = "almost_no_noise"
_TINY_PER_RECORD: Final = 4e-6
"""Sums are 64-bit integers in units of the noise: with less of it they would not fit."""

_FIRST_SHARE: Final = 0.1
_MILLION: Final = 1_000_000
_SEED: Final = 7
_MOMENTUM: Final = 0.9
_WEIGHT_DECAY: Final = 5e-4


@final
@attrs.frozen(kw_only=True)
class TrainingScale:
    """A dataset, a model, and the set-ups to train it with."""

    dataset: str
    model: str
    n_differing: int
    setups: tuple[SgdSetup, ...]
    data: str
    """The data in words."""
    block: int
    """Examples per pass: speed only."""
    checkpoint_every: int
    weight_decay: float = _WEIGHT_DECAY
    n_evaluations: int = 1

    def worlds(self, setup: SgdSetup) -> Prevalence:
        """The two worlds; the first one is trained on."""
        return worlds_of(setup.n_records, self.n_differing)

    def noise(self, setup: SgdSetup) -> NoiseSetting:
        """What the noise depends on; all series are trained with Poisson batches."""
        return NoiseSetting(
            n_differing=self.n_differing,
            sampling=setup.poisson,
            poisson=setup.poisson,
            learning_rates=setup.learning_rates,
            order=ORDER,
        )

    def baseline(self, setup: SgdSetup, *, name: str) -> TrainingTask:
        """A run with almost no noise, for the non-private baseline; it clips as the others."""
        return self.task(setup, ALMOST_NO_NOISE, _TINY_PER_RECORD * setup.n_records, name=name)

    def task(
        self,
        setup: SgdSetup,
        series: str,
        noise_multiplier: float,
        *,
        name: str,
        clipping: Clipping | None = None,
    ) -> TrainingTask:
        """One run; the multiplier is the effective one if layers are clipped apart."""
        worlds = self.worlds(setup)
        plan = plan_with_noise(
            differing=exactly(self.n_differing),
            sampling=setup.poisson,
            clip_norm=clipping or FlatClipping(norm=setup.clip_norm),
            noise_multipliers=np.full(setup.n_steps, noise_multiplier),
            accountant=accountant_of(series),
            measure=Measure.of(accountant_of(series).claim(order=ORDER, epsilon=1.0)),
        )
        return TrainingTask(
            label=f"{name}-{series.replace('_', '-')}",
            plan=attrs.evolve(plan, block=self.block),
            dataset=self.dataset,
            worlds=worlds,
            learning=Learning(
                model=self.model,
                seed=_SEED,
                learning_rate=setup.peak_learning_rate,
                momentum=_MOMENTUM,
                weight_decay=self.weight_decay,
                schedule="cosine",
                n_warmup_steps=setup.n_warmup_steps,
            ),
            n_evaluations=self.n_evaluations,
            checkpoint_every=self.checkpoint_every,
        )


def worlds_of(n_records: int, n_differing: int) -> Prevalence:
    """Two shares of cats that differ in so many records; the first world is trained on."""
    first = math.floor(_FIRST_SHARE * n_records)
    share = math.ceil((first + n_differing) * _MILLION / n_records) / _MILLION
    return Prevalence(label=CAT, shares=(_FIRST_SHARE, share), seed=_SEED, world="first")


def digits_scale(*, model: str, setups: tuple[SgdSetup, ...], n_differing: int) -> TrainingScale:
    """Digits of scikit-learn; the set-ups say how many of them."""
    n_records = setups[0].n_records
    return TrainingScale(
        dataset="digits",
        model=model,
        n_differing=n_differing,
        setups=setups,
        data=f"{n_records:,} scikit-learn digits, {n_differing} differ",
        block=512,
        checkpoint_every=20,
    )


def cifar_scale(setups: tuple[SgdSetup, ...] = SETUPS) -> TrainingScale:
    """CIFAR-10 with the paper's ResNet-22, with as many training images as are found.

    Set-ups for the whole dataset are set to that number; those for a subset keep theirs.
    """
    n_images = len(data.cifar10()[0])
    fitted = tuple(
        attrs.evolve(setup, n_records=min(setup.n_records, n_images)) for setup in setups
    )
    shown = f"{fitted[0].n_records:,} CIFAR-10 images ({n_images:,} of {N_RECORDS:,} found)"
    return TrainingScale(
        dataset=CIFAR10,
        model="resnet22",
        n_differing=N_DIFFERING,
        setups=fitted,
        data=f"{shown}, {N_DIFFERING} differ",
        block=32,
        checkpoint_every=10,
    )


NAME: Final = "training-curves"
EPSILON: Final = 8.0
SERIES: Final = ("srpp", "sa_srpp", "amplified", "recipe_srpp", "recipe_sa_srpp")
QUICK_SETUP: Final = SgdSetup(
    batch_size=288, clip_norm=1.0, peak_learning_rate=0.5, n_epochs=40, n_records=1_437
)
_QUICK_DIFFERING: Final = 4
_N_POINTS: Final = 20

_SLACK: Final = 0.05
_SETTLED: Final = 0.03


def run(setting: Setting) -> Outcome:
    """Train one model per series at one budget, and look at it twenty times on the way."""
    scale = (
        cifar_scale()
        if setting.full
        else digits_scale(model="linear", setups=(QUICK_SETUP,), n_differing=_QUICK_DIFFERING)
    )
    scale = attrs.evolve(scale, n_evaluations=_N_POINTS)
    tasks = {
        (setup, series): task
        for setup in scale.setups
        for series, task in _planned(scale, setup).items()
    }
    results = results_of(tasks, setting)
    named = [(setup, series, result) for (setup, series), result in results.items()]
    steps = " and ".join(str(setup.n_steps) for setup in scale.setups)
    return Outcome(
        experiment=NAME,
        scale=(
            f"{scale.data}; model {scale.model}, {steps} steps, claimed ε {EPSILON:g} at order "
            f"{ORDER:g}, one run per line; Poisson batches."
        ),
        rows=tuple(row for result in named for row in _rows(*result)),
        claims=(_ordered(named), _converged(named)),
    )


def _planned(scale: TrainingScale, setup: SgdSetup) -> dict[str, TrainingTask]:
    noise = scale.noise(setup)
    name = f"batch-{setup.batch_size}"
    tasks = {
        series: scale.task(setup, series, *noise_multipliers(noise, series, [EPSILON]), name=name)
        for series in SERIES
    }
    return tasks | {ALMOST_NO_NOISE: scale.baseline(setup, name=name)}


def _rows(setup: SgdSetup, series: str, result: RunResult) -> Iterator[Row]:
    for point in result.curve:
        yield {
            "batch_size": setup.batch_size,
            "series": series,
            "noise_multiplier": result.noise_multiplier,
            "step": point.step,
            "epoch": point.step * setup.n_epochs / setup.n_steps,
            "test_accuracy": point.test_accuracy,
            "test_loss": point.test_loss,
            "batch_loss": point.batch_loss,
        }


def _ordered(named: list[tuple[SgdSetup, str, RunResult]]) -> Claim:
    """Less noise, more accuracy: over all pairs of runs with the same batch size."""
    worst, shown = 0.0, []
    for size in dict.fromkeys(setup.batch_size for setup, _, _ in named):
        runs = sorted(
            (result for setup, _, result in named if setup.batch_size == size),
            key=lambda result: result.noise_multiplier,
        )
        best_noisier = 0.0
        for result in reversed(runs):
            worst = max(worst, best_noisier - result.test_accuracy)
            best_noisier = max(best_noisier, result.test_accuracy)
        shown += [f"{result.test_accuracy:.1%} at {result.noise_multiplier:.3g}" for result in runs]
    return Claim(
        statement=(
            "Smaller noise directly translates into higher utility: no run is beaten by more than "
            f"{_SLACK:.0%} by one with more noise"
        ),
        source="subsec:srpp_sgd_gaussian",
        held=worst <= _SLACK,
        found=f"test accuracy by noise multiplier: {', '.join(shown)}",
    )


def _converged(named: list[tuple[SgdSetup, str, RunResult]]) -> Claim:
    moved = {}
    for setup, series, result in named:
        late = [p.test_accuracy for p in result.curve if p.step >= 0.9 * setup.n_steps]
        moved[f"{series} ({setup.batch_size})"] = max(late) - min(late)
    most = max(moved, key=lambda name: moved[name])
    return Claim(
        statement=(
            "Models are trained to convergence: over the last tenth of the steps the test accuracy "
            f"moves by at most {_SETTLED:.0%}"
        ),
        source="app:sgd_setup",
        held=moved[most] <= _SETTLED,
        found=f"it moves most, by {moved[most]:.1%}, for {most.replace('_', ' ')}",
    )
