# SPDX-License-Identifier: Apache-2.0
"""All experiments by name. What an experiment needs is loaded when it is run."""

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from pufferslice.errors import ArgumentError
from pufferslice.paper import static_experiments
from pufferslice.paper.experiment import Experiment, Outcome, Setting

_TRAINS: Final = "extras torch, models and baselines; with --full CIFAR-10 in PUFFERSLICE_DATA"


def _late(module: str) -> Callable[[Setting], Outcome]:
    """The function `run` of a module of this package, imported on its first call."""

    def run(setting: Setting) -> Outcome:
        found = import_module(f"pufferslice.paper.{module}")
        return cast("Outcome", found.run(setting))

    return run


_PROFILES: Final = (
    Experiment(
        name="sliced-divergences",
        title="Divergence of two Gaussians along every direction, with average and joint rings",
        source="fig:SRD",
        needs="",
        duration="a second; --full is the same",
        run=_late("sliced_divergences"),
    ),
    Experiment(
        name="cap-rings",
        title="Caps of one round of SGD along every direction, with aggregation rings",
        source="fig:HUC_sa_HUC",
        needs="",
        duration="a second; --full is the same",
        run=_late("cap_rings"),
    ),
)

_LEARNING: Final = (
    Experiment(
        name="sgd-noise",
        title="Noise of private SGD against epsilon, and what the paper's recipe costs",
        source="subfig:gep_resnet, subfig:group_dp",
        needs="extra baselines",
        duration="half a minute; --full is the same",
        run=_late("sgd_noise"),
    ),
    Experiment(
        name="training-curves",
        title="Test accuracy and training loss while private models are trained",
        source="subsec:srpp_sgd_gaussian, app:sgd_setup",
        needs=_TRAINS,
        duration="a minute; --full days",
        run=_late("training_curves"),
    ),
    Experiment(
        name="accuracy-epsilon",
        title="Test accuracy against epsilon, by accountant",
        source="subfig:gep_resnet, subfig:group_dp",
        needs=_TRAINS,
        duration="two minutes; --full weeks, in runs of hours each",
        run=_late("accuracy_epsilon"),
    ),
    Experiment(
        name="overfitted-attack",
        title="Overfitted models and the membership attack on them, against epsilon",
        source="subfig:overfit, subfig:overfit_attack",
        needs=_TRAINS,
        duration="a minute; --full a day",
        run=_late("overfitted_attack"),
    ),
    Experiment(
        name="layer-clipping",
        title="Per-layer clipping: reference noise and test accuracy against epsilon",
        source="app:perlayer:num_example, Fig:example_SWD",
        needs=_TRAINS,
        duration="a minute; --full days",
        run=_late("layer_clipping"),
    ),
)

EXPERIMENTS: Final = (*_PROFILES, *static_experiments.EXPERIMENTS, *_LEARNING)
"""In the order in which they are listed and run."""


def experiment_named(name: str) -> Experiment:
    """The experiment of that name, or an error that lists the names."""
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    names = ", ".join(experiment.name for experiment in EXPERIMENTS)
    msg = f"there is no experiment {name!r}; choose one of {names}, or all"
    raise ArgumentError(msg)
