# SPDX-License-Identifier: Apache-2.0
"""What is trained, and how much of it: the paper's CIFAR-10, or digits that end in minutes."""

import math
from typing import Final, final

import attrs
import numpy as np

from pufferslice import datasets
from pufferslice.paper.noise_series import NoiseSetting, accountant_of
from pufferslice.paper.runs import TrainingTask
from pufferslice.paper.sgd_setup import CAT, N_DIFFERING, N_RECORDS, ORDER, SETUPS, SgdSetup
from pufferslice.sgd import Clipping, FlatClipping, exactly, plan_with_noise
from pufferslice.sgd.request import Learning, Prevalence

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
    found: str
    """The data in words."""
    block: int
    """Examples per pass: speed only."""
    checkpoint_every: int
    weight_decay: float = _WEIGHT_DECAY
    n_evaluations: int = 1

    def worlds(self, setup: SgdSetup) -> Prevalence:
        """The two worlds; the first one is trained on."""
        first = math.floor(_FIRST_SHARE * setup.n_records)
        share = math.ceil((first + self.n_differing) * _MILLION / setup.n_records) / _MILLION
        return Prevalence(label=CAT, shares=(_FIRST_SHARE, share), seed=_SEED, world="first")

    def noise(self, setup: SgdSetup) -> NoiseSetting:
        """What the noise depends on; all series are trained with Poisson batches."""
        return NoiseSetting(
            n_differing=self.n_differing,
            sampling=setup.poisson,
            poisson=setup.poisson,
            learning_rates=setup.learning_rates,
            order=ORDER,
        )

    def tiny_multiplier(self, setup: SgdSetup) -> float:
        """The noise of a run that stands for the non-private baseline; it clips as the others."""
        return _TINY_PER_RECORD * setup.n_records

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
            order=ORDER,
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


def digits_scale(*, model: str, setups: tuple[SgdSetup, ...], n_differing: int) -> TrainingScale:
    """Digits of scikit-learn; the set-ups say how many of them."""
    n_records = setups[0].n_records
    return TrainingScale(
        dataset="digits",
        model=model,
        n_differing=n_differing,
        setups=setups,
        found=f"{n_records:,} scikit-learn digits, {n_differing} differ",
        block=512,
        checkpoint_every=20,
    )


def cifar_scale(setups: tuple[SgdSetup, ...] = SETUPS) -> TrainingScale:
    """CIFAR-10 with the paper's ResNet-22, with as many training images as are found.

    Set-ups for the whole dataset are set to that number; those for a subset keep theirs.
    """
    n_found = len(datasets.cifar10()[0])
    fitted = tuple(attrs.evolve(one, n_records=min(one.n_records, n_found)) for one in setups)
    shown = f"{fitted[0].n_records:,} CIFAR-10 images ({n_found:,} of {N_RECORDS:,} found)"
    return TrainingScale(
        dataset="cifar10",
        model="resnet22",
        n_differing=N_DIFFERING,
        setups=fitted,
        found=f"{shown}, {N_DIFFERING} differ",
        block=32,
        checkpoint_every=10,
    )
