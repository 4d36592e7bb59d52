# SPDX-License-Identifier: Apache-2.0
"""Calls of the torch package that are refused."""

from functools import partial

import attrs
import numpy as np
import pytest
import torch
from tests.refusals import check_refused
from tests.torch.engine import Engine
from tests.torch.small import LOSS, model_of, plan_of, records
from tests.wrong_arguments import wrong_calls, wrong_values
from torch import nn
from torch.utils.data import IterableDataset

from pufferslice.learning import LayerClipping, WorstCase, mostly_at_most
from pufferslice.torch import Trainer, make_private, models
from pufferslice.torch.batches import Source
from pufferslice.torch.canary import release_canary
from pufferslice.torch.layout import ParameterLayout, layout_of
from pufferslice.torch.model_checks import device_of, replace_batchnorm, validate

DIGITS = (1, 8, 8)
NORM = nn.BatchNorm1d(2)
STEP_LR = torch.optim.lr_scheduler.StepLR


class Table:
    """A table whose columns, not rows, are what an index gives."""

    def __len__(self):
        return 60

    def __getitem__(self, name):
        return {"age": []}[name]


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


class OwnBatchNorm(nn.BatchNorm2d):
    """A kind of batch normalisation that torch does not know."""


class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        return closure()


def two_linear():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def two_equal():
    """Two parameters that share their memory."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.detach())
    return model


def layers(**sizes):
    return LayerClipping(
        names=tuple(sizes), norms=(1.0,) * len(sizes), sizes=tuple(sizes.values()),
        allocation="equal",
    )  # fmt: skip


def canary(world="first", clip_norm=1.0, **changes):
    plan = plan_of(1, clip_norm=clip_norm, accountant=WorstCase())
    return release_canary(world, attrs.evolve(plan, **changes))


def sgd(model=None):
    return torch.optim.SGD((model or model_of()).parameters(), lr=0.1)


def trainer(**changes):
    model = changes.pop("model", None) or model_of()
    return Trainer(**{
        "model": model, "loss_fn": LOSS, "optimizer": sgd(model), "plan": plan_of(), **changes
    })  # fmt: skip


def with_optimizer(make):
    model = model_of()
    return trainer(model=model, optimizer=make(model))


def private(**changes):
    model = changes.pop("model", None) or model_of()
    given = {"optimizer": sgd(model), "data": records(), **changes}
    return make_private(
        model, given.pop("optimizer"), given.pop("data"), plan_of(), loss_fn=LOSS, **given
    )


def twice_private():
    model, optimizer, _ = private()
    return private(model=model, optimizer=optimizer)


def on_meta():
    meta = nn.Parameter(torch.zeros(2, device="meta"))
    return device_of(ParameterLayout(names=("a",), parameters=(meta,), layers=(0,), n_layers=1))


def unprepared():
    examples = records(4).tensors
    engine = Engine(model_of(), LOSS, examples)
    engine.sums.method = None
    assert not engine.sums.is_prepared
    return engine.step(examples)


def distributed():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        validate(nn.parallel.DistributedDataParallel(nn.Linear(3, 2)))
    finally:
        torch.distributed.destroy_process_group()


def three_problems():
    return nn.Sequential(nn.Linear(3, 2).half(), NORM, nn.DataParallel(nn.ELU()))


REFUSALS = {
    # Models.
    **wrong_calls({
        f"model, {word}": (lambda build=build: validate(build()), word)
        for build, word in (
            (lambda: nn.BatchNorm1d(3), "the model itself is a BatchNorm1d"),
            (lambda: nn.DataParallel(nn.Linear(3, 2)), "DataParallel"),
            (lambda: torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)), "was made"),
            (lambda: two_linear().requires_grad_(False), "no trainable parameter"),
            (lambda: two_linear().half(), "'0.weight' (and 3 more)"),
            (lambda: two_linear().bfloat16(), "torch.bfloat16"),
            (lambda: nn.Linear(3, 2, dtype=torch.complex64), "torch.complex64"),
            (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).double()), "partly float32"),
            (lambda: nn.Sequential(nn.LazyLinear(4)), "'0.weight' (and 1 more)"),
            (lambda: nn.Sequential(nn.Linear(3, 2), nn.LazyBatchNorm1d(affine=False)), "shape"),
            (lambda: nn.Linear(3, 2, device="meta"), "'meta'"),
            (two_equal, "'0.weight' and '1.weight'"),
            (lambda: lambda examples: examples, "got function"),
            (three_problems, "'1' is a BatchNorm1d"),
            (three_problems, "torch.float16"),
        )
    }),
    **wrong_calls({
        f"layer {index}, {type(norm).__name__}": (
            partial(validate, nn.Sequential(nn.Linear(3, 2), nn.Sequential(norm))),
            f"'1.0' is a {type(norm).__name__}")
        for index, norm in enumerate((
            NORM, nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), OwnBatchNorm(2),
            nn.BatchNorm1d(2, affine=False),
            nn.BatchNorm1d(2, track_running_stats=False).eval(),
            nn.InstanceNorm1d(2, track_running_stats=True),
        ))
    }),
    **wrong_calls({
        f"replaced, {word}": (partial(replace_batchnorm, nn.Sequential(norm)), word)
        for norm, word in (
            (OwnBatchNorm(4), "'0' is a OwnBatchNorm"),
            (nn.LazyBatchNorm1d(), "'0.weight'"),
            (nn.BatchNorm1d(1), "BatchNorm1d of one channel"),
            (nn.SyncBatchNorm(1), "SyncBatchNorm of one channel"),
        )
    }),
    **wrong_calls({
        "distributed": (distributed, "DistributedDataParallel"),
        "device": (on_meta, "meta"),
        "linear, shape": (lambda: models.linear_model((), 10), "shape"),
        "linear, dimension": (lambda: models.linear_model((0, 3), 10), "shape"),
        "linear, classes": (lambda: models.linear_model(DIGITS, 1), "n_classes"),
        "small, shape": (lambda: models.small_convnet((8, 8), 10, seed=0), "shape"),
        "small, size": (lambda: models.small_convnet((1, 1, 8), 10, seed=0), "shape"),
        "resnet, seed": (lambda: models.resnet22(seed=-1), "seed"),
        "resnet, classes": (lambda: models.resnet22(1, seed=0), "n_classes"),
    }),
    # Layers of a plan.
    **wrong_calls({
        f"layers, {word}": (partial(layout_of, two_linear(), layers(**sizes)), word)
        for sizes, word in (
            ({"0": 16}, "'2.weight'"),
            ({"0": 16, "0.bias": 4, "2": 10}, "'0.bias'"),
            ({"0": 16, "2": 11}, "'2' has 10"),
            ({"0": 16, "2": 10, "3": 1}, "'3' has 0"),
            ({"0.wei": 12, "0.bias": 4, "2": 10}, "'0.weight'"),
        )
    }),
    # Canaries.
    **wrong_values(canary, {}, world=["third"]),
    **wrong_calls({
        "canary, layers": (lambda: canary(clip_norm=layers(a=1)), "flat"),
        "canary, tail": (lambda: canary(differing=mostly_at_most(
            3, tail_probability=0.1, failure_probability=0.0)), "Rényi"),
    }),
    # Trainers and loops.
    **wrong_values(
        trainer, {}, blocks_in_flight=[0, 1.5], loss_fn=["cross entropy"], plan=[{"n_steps": 5}],
        patience=[0.0, float("inf")],
    ),
    **wrong_calls({
        "optimizer, LBFGS": (
            lambda: with_optimizer(lambda model: torch.optim.LBFGS(model.parameters())), "LBFGS"),
        "optimizer, closure": (
            lambda: with_optimizer(lambda model: NeedsClosure(model.parameters())),
            "NeedsClosure"),
        "optimizer, part": (lambda: with_optimizer(lambda model: sgd(model[2])), "'0.weight'"),
        "optimizer, of another": (lambda: trainer(optimizer=sgd()), "not a trainable parameter"),
        "optimizer, text": (lambda: trainer(optimizer="sgd"), "got str"),
        "scheduler, of another": (
            lambda: trainer(scheduler=STEP_LR(sgd(), 1)), "another optimizer"),
        "scheduler, text": (lambda: trainer(scheduler="cosine"), "got str"),
        "scheduler, metric": (
            lambda: trainer(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(sgd())),
            "metric"),
        "little noise": (
            lambda: trainer(plan=plan_of(multipliers=np.array([4.0, 1e-8]))), "64 bits"),
        "batch norm": (lambda: trainer(model=model_of().append(NORM)), "replace_batchnorm"),
        "loop, data": (lambda: private(data=7), "dataset"),
        "loop, workers": (lambda: private(n_workers=-1), "n_workers"),
        "loop, batch norm": (
            lambda: private(model=nn.Sequential(nn.Linear(4, 2), NORM)), "replace_batchnorm"),
        "loop, twice": (twice_private, "already private"),
        "not prepared": (unprepared, "prepare"),
        "dataset, a table": (lambda: trainer().batches(Table()), "dataset[0]"),
        "model, many layers": (
            lambda: validate(nn.Sequential(*(nn.BatchNorm1d(2) for _ in range(53)))),
            "layer '0' (and 52 more) is a BatchNorm1d"),
        **{f"dataset, {type(dataset).__name__}": (
            lambda dataset=dataset: Source(dataset).check(60), type(dataset).__name__)
            for dataset in (Endless(), iter([]), 7)},
    }),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name):
    check_refused(REFUSALS[name])
