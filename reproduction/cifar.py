# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 on a small machine: a list of training runs, each with one small file of results.

Accuracy depends on the sampling rate, the clipping and the noise multiplier alone, and not on the
account by which the noise was chosen. So a ladder of multipliers is trained once per rate, and
every account and every budget is read off it.
"""

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast, final

import attrs
import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import pufferslice
from pufferslice._core.files import make_folder, parsed_json, pretty_json, read_bytes, write_whole
from pufferslice.claims import Measure
from pufferslice.data import LabelledImages
from pufferslice.errors import ArgumentError, StorageError
from pufferslice.learning import FlatClipping, LayerClipping, MeanSquare, exactly, plan_with_noise
from pufferslice.learning.clipping import Clipping
from pufferslice.learning.request import DataSource, Learning, Output, TrainingRequest
from pufferslice.torch.models import Standardise, cross_entropy, layer_sizes
from pufferslice.torch.train import (
    CERTIFICATE,
    INTERNAL,
    PUBLIC,
    Evaluation,
    evaluate,
    rows_of,
    run_data,
    run_model,
    run_optimizer,
    run_training,
)
from reproduction import data
from reproduction.noise import N_DIFFERING, ORDER, SETUPS, SgdSetup
from reproduction.training import attack_of, evaluate_run, worlds_of

SEED: Final = 7
"""Of the initial weights, the random order of the images, the worlds and the plain batches."""

RUNGS: Final = (0.3, 0.6, 1.25, 2.5, 5.0, 10.0, 20.0, 40.0)
"""Noise multipliers of the ladder."""
LADDER_SETUPS: Final = tuple(attrs.evolve(setup, n_epochs=20) for setup in SETUPS)
COMPARED_RUNGS: Final = (0.6, 2.5, 10.0)
"""At which layer clipping and batches of a fixed size are compared with the ladder."""

ATTACK_SETUP: Final = SgdSetup(
    batch_size=256, clip_norm=5.0, peak_learning_rate=0.1, n_epochs=100, n_records=1_000
)
ATTACK_RUNGS: Final = (0.25, 0.56, 1.25, 1.7, 4.0, 8.5)
"""About what the paper's recipe has at claimed epsilons 500, 100, 20 and 2 for two differing
records, and at 500, 100 and 20 for twenty."""
OVERFITTED: Final = 0.99
"""The plain run of the attack stops after the first epoch with this training accuracy."""
MOST_EPOCHS: Final = 200

ANCHOR_RUNG: Final = 2.4
"""What the paper's subsampling-aware recipe has at its largest budget, 80, for 20 differing
records."""

PARTS: Final = ("ladder-1024", "attack", "ladder-512", "layers", "batches", "anchor")
"""In the order in which they are trained: what decides most claims first, what takes longest last.
"""
IMAGES: Final = "reproduction.cifar:random_images"
_CONVNET: Final = "reproduction.cifar:convnet"
_MOMENTUM: Final = 0.9
_WEIGHT_DECAY: Final = 5e-4

Sampling = Literal["poisson", "fixed_size", "shuffled"]


def convnet(seed: int) -> nn.Sequential:
    """Three convolutions of 16, 32 and 64 channels and a linear layer: 33,834 parameters.

    Group normalisation without parameters, as in the paper's ResNet-22: with its learning rates
    the network does not train without.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16, affine=False),
            nn.ELU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.GroupNorm(4, 32, affine=False),
            nn.ELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.GroupNorm(4, 64, affine=False),
            nn.ELU(),
            nn.AvgPool2d(2),
            Standardise(),
            nn.Linear(64 * 4 * 4, 10),
        )
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(cast("nn.Parameter", layer.bias))
    return model


def random_images() -> tuple[LabelledImages, LabelledImages]:
    """CIFAR-10 with the training images in a random order from a public seed, and the test set."""
    train, test = data.cifar10()
    order = np.random.default_rng(SEED).permutation(len(train))
    return attrs.evolve(train, images=train.images[order], labels=train.labels[order]), test


@final
@attrs.frozen(kw_only=True)
class CifarRun:
    """One model to train."""

    part: str
    """One of `PARTS`."""
    setup: SgdSetup
    model: str
    noise_multiplier: float
    """The effective one if layers are clipped apart; 0 for a run without clipping and noise."""
    sampling: Sampling
    clipping: Literal["flat", "equal", "least_noise", "none"]
    weight_decay: float
    n_evaluations: int
    block: int

    @property
    def name(self) -> str:
        """Of its files."""
        noise = f"{self.noise_multiplier:g}".replace(".", "p")
        if self.clipping == "none":
            return f"{self.part}-not-private"
        kind = "" if self.clipping == "flat" else f"{self.clipping.replace('_', '-')}-"
        return f"{self.part}-{kind}{noise}"

    def settings(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON values."""
        ignored = {"part", "block", "n_evaluations"}
        fields = attrs.asdict(self, filter=lambda field, _: field.name not in ignored)
        return fields | {"seed": SEED, "momentum": _MOMENTUM}

    def learning(self) -> Learning:
        """Model and optimizer."""
        return Learning(
            model=self.model,
            seed=SEED,
            learning_rate=self.setup.peak_learning_rate,
            momentum=_MOMENTUM,
            weight_decay=self.weight_decay,
            schedule="cosine",
            n_warmup_steps=self.setup.n_warmup_steps,
        )

    def request(self, folder: Path) -> TrainingRequest:
        """The run as a request; a plain run uses its data, model and optimizer alone."""
        setup = self.setup
        design = setup.fixed_size if self.sampling == "fixed_size" else setup.poisson
        plan = plan_with_noise(
            differing=exactly(N_DIFFERING),
            sampling=design,
            clip_norm=self._clipping(),
            noise_multipliers=np.full(setup.n_steps, self.noise_multiplier or 1.0),
            accountant=MeanSquare(),
            measure=Measure.over_batches(order=ORDER),
        )
        steps_per_epoch = setup.n_steps // setup.n_epochs
        return TrainingRequest(
            plan=attrs.evolve(plan, block=self.block),
            data=DataSource(dataset=IMAGES),
            worlds=worlds_of(setup.n_records, N_DIFFERING),
            learning=self.learning(),
            output=Output(
                folder=folder / self.name,
                evaluate_every=max(1, setup.n_steps // self.n_evaluations),
                public_evaluation=True,
                checkpoint_every=min(steps_per_epoch, 25),
            ),
            deltas=(),
            source_folder=folder,
        )

    def _clipping(self) -> Clipping:
        norm = self.setup.clip_norm
        if self.clipping not in {"equal", "least_noise"}:
            return FlatClipping(norm=norm)
        sizes = layer_sizes(convnet(SEED))
        total = sum(sizes.values())
        return LayerClipping(
            names=tuple(sizes),
            norms=tuple(norm * float(np.sqrt(size / total)) for size in sizes.values()),
            sizes=tuple(sizes.values()),
            allocation="equal" if self.clipping == "equal" else "least_noise",
        )


@final
@attrs.frozen(kw_only=True)
class CifarResult:
    """What is kept of a finished run."""

    train_accuracy: float
    train_loss: float
    test_accuracy: float
    test_loss: float
    others_loss: float | None
    """Mean loss on as many images that were not trained on."""
    attack_auc: tuple[float, float, float] | None
    """Of the loss-threshold attack on members: value, and the ends of its interval."""
    attack_advantage: float | None
    """Of the same attack at its best threshold: true minus false positive rate."""
    n_epochs: int
    """After which it ended; fewer than planned if a plain run had overfitted."""
    seconds: float
    """Spent in steps, over all resumptions."""
    version: str
    """Of the library."""
    curve: tuple[tuple[int, float], ...]
    """Step and test accuracy during the run."""


def planned_runs(part: str) -> tuple[CifarRun, ...]:
    """The runs of one part, or of all, in the order in which they are trained."""
    if part not in {"all", *PARTS}:
        raise ArgumentError(f"part must be one of {', '.join(PARTS)}, or all; got {part!r}")
    chosen = PARTS if part == "all" else (part,)
    return tuple(run for name in chosen for run in _all_runs() if run.part == name)


def _all_runs() -> Iterator[CifarRun]:
    small = CifarRun(
        part="ladder-512",
        setup=LADDER_SETUPS[0],
        model=_CONVNET,
        noise_multiplier=0.0,
        sampling="poisson",
        clipping="flat",
        weight_decay=_WEIGHT_DECAY,
        n_evaluations=10,
        block=64,
    )
    # Every second rung first: an unfinished ladder already spans the range.
    for setup in LADDER_SETUPS:
        ladder = attrs.evolve(small, part=f"ladder-{setup.batch_size}", setup=setup)
        yield attrs.evolve(ladder, sampling="shuffled", clipping="none")
        for rung in (*RUNGS[1::2], *RUNGS[::2]):
            yield attrs.evolve(ladder, noise_multiplier=rung)
    deep = attrs.evolve(
        small,
        part="attack",
        setup=ATTACK_SETUP,
        model="resnet22",
        weight_decay=0.0,
        n_evaluations=1,
        block=32,
    )
    plain = attrs.evolve(ATTACK_SETUP, n_epochs=MOST_EPOCHS)
    yield attrs.evolve(deep, setup=plain, sampling="shuffled", clipping="none")
    for rung in ATTACK_RUNGS:
        yield attrs.evolve(deep, noise_multiplier=rung)
    wide = attrs.evolve(small, setup=LADDER_SETUPS[1])
    for rung in COMPARED_RUNGS:
        for allocation in ("equal", "least_noise"):
            yield attrs.evolve(wide, part="layers", noise_multiplier=rung, clipping=allocation)
    for rung in COMPARED_RUNGS:
        yield attrs.evolve(wide, part="batches", noise_multiplier=rung, sampling="fixed_size")
    yield attrs.evolve(
        deep,
        part="anchor",
        setup=SETUPS[0],
        noise_multiplier=ANCHOR_RUNG,
        weight_decay=_WEIGHT_DECAY,
        n_evaluations=40,
    )


def result_of(run: CifarRun, folder: Path) -> CifarResult | None:
    """The result of a run, or None if the folder has none with these settings."""
    path = folder / f"{run.name}.json"
    if not path.exists():
        return None
    try:
        document = parsed_json(read_bytes(path, "document"))
        if document["settings"] != json.loads(json.dumps(run.settings())):
            return None
        result = document["result"]
        auc = result["attack_auc"]
        changed = {
            "attack_auc": auc and tuple(auc),
            "curve": tuple((step, accuracy) for step, accuracy in result["curve"]),
        }
        return CifarResult(**(result | changed))
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"{str(path)!r} is not the result of a run: {error!r}. Remove it to train again"
        ) from error


def train_all(
    runs: tuple[CifarRun, ...], results: Path, scratch: Path, say: Callable[[str], None]
) -> None:
    """Train what has no result yet, one after the other; an interrupted run resumes."""
    make_folder(results)
    make_folder(scratch)
    for done, run in enumerate(runs, start=1):
        if result_of(run, results) is None:
            say(f"{done} of {len(runs)}: {run.name}")
            result = _trained(run, scratch)
            document = {"settings": run.settings(), "result": attrs.asdict(result)}
            write_whole(results / f"{run.name}.json", pretty_json(document))
            say(f"    test accuracy {result.test_accuracy:.1%}, {result.seconds / 60:.0f} minutes")
        shutil.rmtree(scratch / run.name, ignore_errors=True)


def _trained(run: CifarRun, scratch: Path) -> CifarResult:
    request = run.request(scratch)
    if run.sampling == "shuffled":
        return PlainTraining(run, request).result()
    folder = request.output.folder
    if not (folder / CERTIFICATE).exists():
        run_training(request)
    steps = [row for row in rows_of(folder / INTERNAL) if "mean_loss" in row]
    return _measured(
        evaluate_run(request),
        n_epochs=run.setup.n_epochs,
        seconds=sum(row["seconds"] for row in steps),
        curve=tuple((row["step"], row["held_out_accuracy"]) for row in rows_of(folder / PUBLIC)),
    )


def _measured(
    parts: Mapping[str, Evaluation],
    *,
    n_epochs: int,
    seconds: float,
    curve: tuple[tuple[int, float], ...],
) -> CifarResult:
    members, others, test = parts["members"], parts.get("others"), parts["held_out"]
    auc, advantage = (None, None) if others is None else attack_of(members, others)
    return CifarResult(
        train_accuracy=members.accuracy,
        train_loss=members.mean_loss,
        test_accuracy=test.accuracy,
        test_loss=test.mean_loss,
        others_loss=None if others is None else others.mean_loss,
        attack_auc=auc,
        attack_advantage=advantage,
        n_epochs=n_epochs,
        seconds=seconds,
        version=pufferslice.__version__,
        curve=curve,
    )


@final
class PlainTraining:
    """The same model and optimizer without clipping, noise or secret batches.

    Shuffled batches; a checkpoint after every epoch.
    """

    def __init__(self, run: CifarRun, request: TrainingRequest) -> None:
        self._run, self._data = run, run_data(request)
        self._model = run_model(request, self._data)
        self._optimizer, scheduler = run_optimizer(request, self._model)
        self._scheduler = cast("LambdaLR", scheduler)  # the rate of every run changes
        self._path = request.output.folder / "checkpoint.pt"
        self._n_epochs, self._seconds = 0, 0.0
        self._curve: list[tuple[int, float]] = []
        self._has_overfitted = False
        make_folder(request.output.folder)
        if self._path.exists():
            self._resume()

    def result(self) -> CifarResult:
        """Train to the end, or until the members of an attack are known by heart."""
        run = self._run
        while self._n_epochs < run.setup.n_epochs and not self._has_overfitted:
            accuracy = self._epoch()
            self._n_epochs += 1
            self._has_overfitted = run.part == "attack" and accuracy >= OVERFITTED
            if run.part != "attack" and self._n_epochs % 2 == 0:
                test = self._evaluated(self._data.held_out)
                self._curve.append((self._scheduler.last_epoch, test.accuracy))
            self._save()
        parts = {
            "members": self._evaluated(self._data.train),
            "held_out": self._evaluated(self._data.held_out),
        }
        if self._data.others is not None:
            parts["others"] = self._evaluated(self._data.others)
        return _measured(
            parts, n_epochs=self._n_epochs, seconds=self._seconds, curve=tuple(self._curve)
        )

    def _evaluated(self, records: Any) -> Evaluation:  # a torch dataset
        return evaluate(self._model, cross_entropy, records)

    def _epoch(self) -> float:
        """Train over every record once; the accuracy on the batches before their steps."""
        start, setup = time.perf_counter(), self._run.setup
        order = np.random.default_rng((SEED, self._n_epochs)).permutation(setup.n_records)
        n_right = 0
        for first in range(0, setup.n_records, setup.batch_size):
            records: Any = self._data.train
            pairs = records.__getitems__(order[first : first + setup.batch_size].tolist())
            inputs = torch.stack([image for image, _ in pairs])
            targets = torch.tensor([label for _, label in pairs])
            self._optimizer.zero_grad()
            outputs = self._model(inputs)
            torch.autograd.backward(cross_entropy(outputs, targets).mean())
            self._optimizer.step()
            self._scheduler.step()
            n_right += int((outputs.argmax(dim=1) == targets).sum())
        self._seconds += time.perf_counter() - start
        return n_right / setup.n_records

    def _save(self) -> None:
        state = io.BytesIO()
        torch.save(
            {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "scheduler": self._scheduler.state_dict(),
                "n_epochs": self._n_epochs,
                "seconds": self._seconds,
                "curve": self._curve,
                "has_overfitted": self._has_overfitted,
            },
            state,
        )
        write_whole(self._path, state.getvalue())

    def _resume(self) -> None:
        content = io.BytesIO(read_bytes(self._path, "model"))
        state = torch.load(content, weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scheduler.load_state_dict(state["scheduler"])
        self._n_epochs, self._seconds = state["n_epochs"], state["seconds"]
        self._curve = [(step, accuracy) for step, accuracy in state["curve"]]
        self._has_overfitted = state["has_overfitted"]
