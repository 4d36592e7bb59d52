# SPDX-License-Identifier: Apache-2.0
"""Real Opacus runs on the digits data: what follows the plan, and what is refused."""

import io
import json
import math
import subprocess
import sys

import attrs
import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pufferslice.torch
from pufferslice import ArgumentError, Guarantee
from pufferslice.certificate import verify
from pufferslice.sgd import (
    Amplified,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WorstCase,
    binomial,
    exactly,
    plan_training,
    plan_with_noise,
    run_cost,
)
from pufferslice.torch import (
    OpacusRun,
    PlanAccountant,
    check_opacus,
    noise_caveat,
    opacus_noise_multiplier,
    opacus_sampling,
)

BATCH = 128
CLIP = 0.5
DIM = 64
N_CLASSES = 10
N_STEPS = 15
TARGET = Guarantee.unsliced(order=8, epsilon=4.0)


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    pixels = torch.tensor(found.data / 16, dtype=torch.float32)
    return TensorDataset(pixels, torch.tensor(found.target))


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


@pytest.fixture
def loader(digits):
    return DataLoader(digits, batch_size=BATCH)


@pytest.fixture
def plan(loader):
    return plan_of(loader)


def plan_of(loader, accountant=None, target=TARGET, n_steps=N_STEPS):
    return plan_training(
        differing=exactly(4),
        sampling=opacus_sampling(loader),
        clip_norm=CLIP,
        n_steps=n_steps,
        accountant=accountant or Amplified(),
        target=target,
    )


def prepared(plan, loader, *, accountant=None, module=None, **changes):
    """An accountant and the run that `make_private` gives, with some of its arguments changed."""
    module = nn.Linear(DIM, N_CLASSES) if module is None else module
    engine = PrivacyEngine()
    accountant = engine.accountant = PlanAccountant(plan) if accountant is None else accountant
    wanted = {"noise_multiplier": opacus_noise_multiplier(plan), "max_grad_norm": CLIP}
    made = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        data_loader=loader,
        **(wanted | changes),
    )
    return accountant, OpacusRun(module=made[0], optimizer=made[1], data_loader=made[-1])


def watched(plan, loader, **changes):
    accountant, run = prepared(plan, loader, **changes)
    accountant.watch(run)
    return accountant, run


def make_step(run, batch, module=None):
    pixels, labels = batch
    run.optimizer.zero_grad()
    nn.functional.cross_entropy((module or run.module)(pixels), labels).backward()
    run.optimizer.step()


def parameters(run):
    return torch.cat([p.detach().flatten().clone() for p in run.parameters])


def check_refused(accountant, run, batch, match):
    """The step raises, the model is as before, and nothing was counted."""
    before, n_before = parameters(run), len(accountant)
    with pytest.raises(ArgumentError, match=match):
        make_step(run, batch)
    assert torch.equal(parameters(run), before)
    assert len(accountant) == n_before


def test_an_opacus_loop_gets_the_plans_guarantee(plan, loader):
    accountant, run = watched(plan, loader)
    before = parameters(run)
    sizes = []
    for batch in run.data_loader:
        make_step(run, batch)
        sizes.append(len(batch[0]))
    assert len(accountant) == len(sizes) == plan.n_steps
    assert accountant.history == [(plan.noise_multipliers[0], 1 / 15, plan.n_steps)]
    assert accountant.guarantee() == plan.guarantee()
    assert accountant.spent() == pytest.approx(plan.guarantee().epsilon, rel=1e-12)
    assert 0.99 * TARGET.epsilon < accountant.guarantee().epsilon <= TARGET.epsilon
    assert len(set(sizes)) > 5, "Poisson batches vary"
    assert np.mean(sizes) == pytest.approx(plan.divisor, rel=0.2)
    assert not torch.equal(parameters(run), before)
    certificate = accountant.certificate(data="digits, 1437 rows")
    assert certificate.guarantee == plan.guarantee()
    assert "drawn by Opacus in floating point" in certificate.statement["noise"][0]
    assert verify(certificate).holds


def test_the_claim_of_a_run_that_stops_early_is_the_plans(plan, loader):
    accountant, run = watched(plan, loader)
    batches = iter(run.data_loader)
    assert accountant.spent() == 0.0
    with pytest.raises(ArgumentError, match="no step"):
        accountant.guarantee()
    for _ in range(3):
        make_step(run, next(batches))
    assert accountant.spent() == pytest.approx(plan.guarantee().epsilon / 5, rel=1e-9)
    assert accountant.guarantee() == plan.guarantee()


@pytest.mark.parametrize(
    ("accountant", "target"),
    [
        (WorstCase(), TARGET),
        (LogMoment(), TARGET),
        (MeanSquare(), Guarantee.average_over_batches(order=8, epsilon=4.0)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_accountant_passes_through(accountant, target, loader):
    plan = plan_of(loader, accountant, target, n_steps=2)
    found, run = watched(plan, loader)
    batches = iter(run.data_loader)
    make_step(run, next(batches))
    make_step(run, next(batches))
    assert found.guarantee() == plan.guarantee()
    assert found.guarantee().notion == target.notion


def test_random_differing_records_are_mixed_once(loader):
    plan = attrs.evolve(
        plan_of(loader, LogMoment(), n_steps=4),
        differing=binomial(n_records=1797, mismatch_probability=0.001),
    )
    accountant, run = watched(plan, loader)
    for _, batch in zip(range(4), run.data_loader, strict=False):
        make_step(run, batch)
    assert accountant.spent() == pytest.approx(plan.guarantee().epsilon, rel=1e-12)


@pytest.mark.soundness
def test_noise_and_shift_of_opacus_are_those_of_the_plan(loader):
    """Replacing K records moves the sum by 2CK, the noise on it has std zC: cost 2 alpha K²/z²."""
    clip, multiplier, n_replaced, order = 0.5, 3.0, 3, 8.0
    plan = plan_with_noise(
        differing=exactly(n_replaced),
        sampling=opacus_sampling(loader),
        clip_norm=clip,
        noise_multipliers=np.full(2, multiplier),
        accountant=WorstCase(),
        order=order,
    )
    module = nn.Linear(DIM, 2000, bias=False)
    nn.init.zeros_(module.weight)
    _, run = watched(plan, loader, module=module, max_grad_norm=clip)
    weight = run.parameters[0]

    pixels, sums = torch.full((40, DIM), 1e3), []
    for replaced_by in (0, 1):
        labels = torch.zeros(40, dtype=torch.int64)
        labels[:n_replaced] = replaced_by
        run.optimizer.zero_grad()
        # Two classes of all: with equal logits their gradients are opposite.
        nn.functional.cross_entropy(run.module(pixels)[:, :2], labels).backward()
        run.optimizer.clip_and_accumulate()
        sums.append(weight.summed_grad.clone())
    shift = float((sums[0] - sums[1]).norm())
    assert shift == pytest.approx(2 * clip * n_replaced, rel=1e-5)

    make_step(run, (torch.zeros(40, DIM), torch.zeros(40, dtype=torch.int64)))
    noise = weight.grad * run.optimizer.expected_batch_size
    assert float(noise.std()) == pytest.approx(
        multiplier * clip, rel=0.01
    )  # 128,000 draws: 5 sigma
    step_cost = order * shift**2 / (2 * (multiplier * clip) ** 2)
    assert plan.guarantee().epsilon == pytest.approx(2 * step_cost, rel=1e-4)


def test_multiplier_is_the_plans_own(plan):
    assert opacus_noise_multiplier(plan) == plan.noise_multipliers[0]


@pytest.mark.parametrize("n_batches", [1, 3, 15, 49, 93, 1000])
def test_rate_covers_what_the_sampler_draws(n_batches):
    dataset = TensorDataset(torch.zeros(n_batches * 2, 1))
    sampling = opacus_sampling(DataLoader(dataset, batch_size=2))
    every_uniform = torch.arange(2**24) * 2.0**-24
    drawn = int((every_uniform < 1 / n_batches).sum()) / 2**24
    assert 1 / n_batches <= drawn <= sampling.rate < drawn + 2**-24
    assert sampling.n_records == n_batches * 2
    assert torch.equal((torch.rand(100_000) * 2**24).frac(), torch.zeros(100_000))


def test_rate_below_what_the_sampler_draws_is_refused(plan, loader):
    assert plan.sampling.rate > 1 / 15
    short = attrs.evolve(plan, sampling=Poisson(n_records=1797, rate=1 / 15))
    with pytest.raises(ArgumentError, match="make it with opacus_sampling"):
        watched(short, loader)


def test_iterable_datasets_are_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(ArgumentError, match="a dataset with a length"):
        opacus_sampling(DataLoader(Endless()))


def test_loaders_whose_length_opacus_rounds_down_are_followed(digits):
    """For 93 batches int(1 / (1 / 93)) is 92: Opacus reports a rate that it does not draw with."""
    dataset = TensorDataset(*digits[: 93 * 4])
    loader = DataLoader(dataset, batch_size=4)
    plan = plan_of(loader, n_steps=2)
    accountant, run = watched(plan, loader)
    assert len(run.data_loader) == 92
    make_step(run, next(iter(run.data_loader)))
    assert accountant.history == [(plan.noise_multipliers[0], 1 / 93, 1)]


def test_an_empty_batch_is_a_step_with_noise_only(digits):
    loader = DataLoader(TensorDataset(*digits[:30]), batch_size=1)
    plan = plan_of(loader, n_steps=30)
    accountant, run = watched(plan, loader)
    sizes = []
    for batch in run.data_loader:
        make_step(run, batch)
        sizes.append(len(batch[0]))
        if not sizes[-1]:
            sums = [float(p.summed_grad.abs().max()) for p in run.parameters]
            assert sums == [0.0, 0.0]
    assert 0 in sizes
    assert len(accountant) == 30
    assert bool(torch.isfinite(parameters(run)).all())


@pytest.mark.parametrize(
    "mode", [{"grad_sample_mode": "functorch"}, {"grad_sample_mode": "ew"}, {"wrap_model": False}]
)
def test_other_ways_to_the_same_gradients_are_followed(mode, plan, loader):
    module = nn.Linear(DIM, N_CLASSES)
    accountant, run = watched(plan, loader, module=module, **mode)
    unwrapped = module if "wrap_model" in mode else None
    make_step(run, next(iter(run.data_loader)), unwrapped)
    assert len(accountant) == 1


def test_batches_may_be_split_in_memory(plan, loader):
    accountant, run = prepared(plan, loader)
    n_parts = 0
    with BatchMemoryManager(
        data_loader=run.data_loader, max_physical_batch_size=32, optimizer=run.optimizer
    ) as parts:
        run = attrs.evolve(run, data_loader=parts)
        accountant.watch(run)
        for part in parts:
            make_step(run, part)
            n_parts += 1
    assert n_parts > 2 * plan.n_steps
    assert len(accountant) == plan.n_steps
    assert accountant.guarantee() == plan.guarantee()


def test_a_schedule_of_noise_is_followed(loader):
    multipliers = np.array([30.0, 20.0, 25.0])
    plan = plan_with_noise(
        differing=exactly(4),
        sampling=opacus_sampling(loader),
        clip_norm=CLIP,
        noise_multipliers=multipliers,
        accountant=LogMoment(),
        order=8,
    )
    accountant, run = watched(plan, loader)
    for multiplier, batch in zip(multipliers, run.data_loader, strict=False):
        run.optimizer.noise_multiplier = float(multiplier)
        make_step(run, batch)
    assert [entry[0] for entry in accountant.history] == list(multipliers)
    assert accountant.spent() == pytest.approx(plan.guarantee().epsilon, rel=1e-12)


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 100.0,
}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"poisson_sampling": False}, "draws with a BatchSampler, not by Poisson sampling"),
        ({"max_grad_norm": 2 * CLIP}, "max_grad_norm is 1.0, the plan clips to 0.5"),
        ({"noise_multiplier": 1.0}, r"noise_multiplier is 1.0, the plan has [\d.]+"),
        (
            {"clipping": "per_layer", "max_grad_norm": [CLIP, CLIP]},
            "the optimizer is a DPPerLayerOptimizer",
        ),
        (ADAPTIVE, "the optimizer is a AdaClipDPOptimizer"),
        ({"grad_sample_mode": "ghost"}, "the module is a GradSampleModuleFastGradientClipping"),
        ({"grad_sample_mode": "no_op"}, "the module is a GradSampleModuleNoOp"),
        ({"rand_on_empty": True}, "an empty batch is replaced by a made-up record"),
        ({"noise_generator": torch.Generator()}, "the noise has a generator of its own"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_break_the_plan_are_refused(changes, match, plan, loader):
    accountant, run = prepared(plan, loader, **changes)
    with pytest.raises(ArgumentError, match=match):
        accountant.watch(run)
    with pytest.raises(ArgumentError, match=match):
        check_opacus(plan, run)


def test_every_difference_is_named_at_once(plan, loader):
    _, run = prepared(plan, loader, poisson_sampling=False, max_grad_norm=1.0, noise_multiplier=2.0)
    with pytest.raises(ArgumentError) as caught:
        check_opacus(plan, run)
    message = str(caught.value)
    assert message.startswith("this Opacus run does not follow the plan: ")
    assert all(word in message for word in ("noise_multiplier", "max_grad_norm", "Poisson"))


def test_another_rate_is_refused(plan, digits):
    with pytest.raises(ArgumentError, match=r"probability up to 0\.0344827.*, the plan's rate is"):
        watched(plan, DataLoader(digits, batch_size=BATCH // 2))


def test_another_length_of_the_dataset_is_refused(plan, digits):
    fewer = TensorDataset(*digits[:1796])
    with pytest.raises(ArgumentError, match=r"1796 records.*the plan has 1797"):
        watched(plan, DataLoader(fewer, batch_size=BATCH))


def test_batches_that_can_be_repeated_are_refused_where_they_must_stay_secret(digits):
    loader = DataLoader(digits, batch_size=BATCH, generator=torch.Generator())
    with pytest.raises(ArgumentError, match="'amplified' needs batches that nobody can repeat"):
        watched(plan_of(loader), loader)
    watched(plan_of(loader, LogMoment()), loader)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(DIM, affine=False, track_running_stats=False),
        nn.BatchNorm1d(DIM, affine=False),
        nn.Sequential(
            nn.Unflatten(1, (1, DIM)),
            nn.InstanceNorm1d(1, track_running_stats=True),
            nn.Flatten(),
        ),
    ],
    ids=["batch", "tracked", "instance"],
)
def test_layers_that_mix_records_are_refused(layer, plan, loader):
    module = nn.Sequential(layer, nn.Linear(DIM, N_CLASSES))
    with pytest.raises(ArgumentError, match=r"is a (Batch|Instance)Norm1d, which (normal|keeps)"):
        watched(plan, loader, module=module)


def test_frozen_statistics_mix_nothing_until_they_are_unfrozen(plan, loader):
    layer = nn.BatchNorm1d(DIM, affine=False)
    module = nn.Sequential(layer, nn.Linear(DIM, N_CLASSES))
    _, run = prepared(plan, loader, module=module)
    layer.eval()
    check_opacus(plan, run)
    layer.train()
    with pytest.raises(ArgumentError, match="by the others of its batch"):
        check_opacus(plan, run)


def test_a_coarse_default_dtype_is_refused(plan, loader):
    _, run = prepared(plan, loader)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(ArgumentError, match=r"default dtype is torch.bfloat16"):
            check_opacus(plan, run)
    finally:
        torch.set_default_dtype(torch.float32)


def test_objects_that_do_not_belong_together_are_refused(plan, loader):
    _, run = prepared(plan, loader)
    _, other = prepared(plan, loader)
    with pytest.raises(ArgumentError, match="parameters that are not the module's"):
        check_opacus(plan, attrs.evolve(run, module=other.module))
    run.optimizer.loss_reduction = "sum"
    with pytest.raises(ArgumentError, match="'mean' in the module and 'sum' in the optimizer"):
        check_opacus(plan, run)


def test_a_loss_that_is_summed_is_followed(plan, loader):
    _, run = watched(plan, loader, loss_reduction="sum")
    run.optimizer.expected_batch_size = None
    check_opacus(plan, run)


@pytest.mark.parametrize("divisor", [0, 100, None])
def test_another_divisor_is_refused(divisor, plan, loader):
    _, run = prepared(plan, loader)
    assert run.optimizer.expected_batch_size == math.floor(plan.divisor) == 119
    run.optimizer.expected_batch_size = divisor
    with pytest.raises(ArgumentError, match=f"expected_batch_size is {divisor}; .* must be 119"):
        check_opacus(plan, run)


def test_a_distributed_run_is_refused(plan, loader):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        module = DifferentiallyPrivateDistributedDataParallel(nn.Linear(DIM, N_CLASSES))
        with pytest.raises(ArgumentError, match=r"DistributedDPOptimizer.*DistributedUniform"):
            watched(plan, loader, module=module)
    finally:
        torch.distributed.destroy_process_group()


def test_plans_that_opacus_cannot_follow_are_refused(plan):
    fixed = attrs.evolve(
        plan,
        sampling=WithoutReplacement(n_records=1797, batch_size=128),
        accountant=LogMoment(),
    )
    layers = LayerClipping(names=("w",), norms=(1.0,), sizes=(640,), allocation="equal")
    for refused, match in (
        (fixed, "sampling is 'without_replacement'"),
        (attrs.evolve(plan, clipping=layers), "clipping is 'layers'"),
    ):
        with pytest.raises(ArgumentError, match=match):
            opacus_noise_multiplier(refused)
        with pytest.raises(ArgumentError, match=match):
            PlanAccountant(refused)


def test_steps_of_a_run_that_nobody_watches_are_refused(plan, loader):
    accountant, run = prepared(plan, loader)
    check_refused(accountant, run, next(iter(run.data_loader)), "has not seen the run")
    with pytest.raises(ArgumentError, match="has not seen the run"):
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)


def test_an_optimizer_that_reports_elsewhere_is_refused(plan, loader):
    _, run = prepared(plan, loader)
    with pytest.raises(ArgumentError, match=r"set engine.accountant to it before make_private"):
        PlanAccountant(plan).watch(run)


def test_a_second_optimizer_is_refused(plan, loader):
    accountant, run = watched(plan, loader)
    _, other = prepared(plan, loader, accountant=accountant)
    check_refused(accountant, other, next(iter(run.data_loader)), "another optimizer")


def test_more_steps_than_planned_are_refused(loader):
    plan = plan_of(loader, n_steps=2)
    accountant, run = watched(plan, loader)
    batches = iter(run.data_loader)
    make_step(run, next(batches))
    make_step(run, next(batches))
    check_refused(accountant, run, next(batches), "has 2 steps, so there is no step 3")
    assert accountant.guarantee() == plan.guarantee()


@pytest.mark.parametrize(
    ("scheduler", "match"),
    [(ExponentialNoise, "noise_multiplier is"), (ExponentialGradClip, "max_grad_norm is")],
)
def test_schedulers_that_leave_the_plan_are_refused(scheduler, match, plan, loader):
    accountant, run = watched(plan, loader)
    change = scheduler(run.optimizer, gamma=0.5)
    batches = iter(run.data_loader)
    make_step(run, next(batches))
    change.step()
    check_refused(accountant, run, next(batches), match)


def test_batches_accumulated_by_backward_are_refused(plan, loader):
    accountant, run = watched(plan, loader)
    run.module.allow_grad_accumulation()
    run.optimizer.zero_grad()
    for _, (pixels, labels) in zip(range(2), run.data_loader, strict=False):
        nn.functional.cross_entropy(run.module(pixels), labels).backward()
    before = parameters(run)
    with pytest.raises(ArgumentError, match="make one step per batch"):
        run.optimizer.step()
    assert torch.equal(parameters(run), before)
    assert not len(accountant)


def test_batches_accumulated_by_skipping_are_refused(plan, loader):
    accountant, run = watched(plan, loader)
    batches = iter(run.data_loader)
    run.optimizer.signal_skip_step()
    make_step(run, next(batches))
    check_refused(accountant, run, next(batches), "batches were accumulated into one step")


def test_gradients_that_clipping_cannot_bound_are_refused(plan, loader):
    accountant, run = watched(plan, loader)
    pixels, labels = next(iter(run.data_loader))
    pixels[0, 0] = math.inf
    check_refused(accountant, run, (pixels, labels), "a gradient is not finite")


def test_noise_that_differs_in_the_last_bit_is_refused(plan, loader):
    accountant, run = watched(plan, loader)
    less = run.optimizer.noise_multiplier = math.nextafter(plan.noise_multipliers[0], 0)
    with pytest.raises(ArgumentError, match="noise_multiplier is"):
        check_opacus(plan, run)
    with pytest.raises(ArgumentError, match="step 1 has noise_multiplier"):
        accountant.step(noise_multiplier=less, sample_rate=1 / 15)
    with pytest.raises(ArgumentError, match=r"step 1 draws at rate 0.2"):
        accountant.step(noise_multiplier=plan.noise_multipliers[0], sample_rate=0.2)
    assert not len(accountant)


def test_a_run_goes_on_from_a_checkpoint(plan, loader):
    accountant, run = watched(plan, loader)
    batches = iter(run.data_loader)
    for _ in range(5):
        make_step(run, next(batches))
    engine = PrivacyEngine()
    engine.accountant = accountant
    saved = io.BytesIO()
    engine.save_checkpoint(path=saved, module=run.module, optimizer=run.optimizer)
    saved.seek(0)

    again, second = watched(plan, loader)
    engine.accountant = again
    engine.load_checkpoint(path=saved, module=second.module, optimizer=second.optimizer)
    assert len(again) == 5
    assert again.history == accountant.history
    assert torch.equal(parameters(second), parameters(run))
    check_refused(again, second, next(batches), "has not seen the run")
    again.watch(second)
    for batch in run.data_loader:
        if len(again) < plan.n_steps:
            make_step(second, batch)
    assert again.guarantee() == plan.guarantee()


def test_state_is_json(plan, loader):
    accountant, run = watched(plan, loader)
    make_step(run, next(iter(run.data_loader)))
    state = json.loads(json.dumps(accountant.state_dict()))
    again = PlanAccountant(plan)
    again.load_state_dict(state)
    assert again.state_dict() == accountant.state_dict()
    assert again.guarantee() == plan.guarantee()
    assert accountant.state_dict(destination={"kept": 1})["kept"] == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mechanism": "rdp"}, "not the state of a 'pufferslice' accountant"),
        ({"plan": {}}, "belongs to another plan"),
        ({"history": None}, "not a list of"),
        ({"history": [[1.0, 2.0]]}, "not a list of"),
        ({"history": [[1.0, 1 / 15, 2]]}, "step 1 has noise_multiplier 1.0"),
        ({"history": "too many"}, "has 15 steps, so there is no step 16"),
        ({"history": "other rate"}, "step 1 draws at rate 0.5"),
    ],
)
def test_states_that_are_not_of_this_plan_are_refused(changes, match, plan):
    multiplier = float(plan.noise_multipliers[0])
    histories = {"too many": [[multiplier, 1 / 15, 16]], "other rate": [[multiplier, 0.5, 1]]}
    accountant = PlanAccountant(plan)
    state = accountant.state_dict() | changes
    if isinstance(state["history"], str):
        state["history"] = histories[state["history"]]
    with pytest.raises(ArgumentError, match=match):
        accountant.load_state_dict(state)
    assert not len(accountant)


def test_no_state_is_refused(plan):
    with pytest.raises(ArgumentError, match="not the state"):
        PlanAccountant(plan).load_state_dict({})


def test_epsilon_for_a_delta_is_the_best_over_orders(plan, loader):
    accountant, run = watched(plan, loader)
    assert accountant.get_epsilon(1e-5) == 0.0
    make_step(run, next(iter(run.data_loader)))
    found = accountant.get_epsilon(1e-5)
    one_step = plan.noise_multipliers[:1]
    by_order = {
        order: run_cost(plan.accountant, order, plan.sampling, plan.differing, one_step)
        + math.log((order - 1) / order)
        - (math.log(1e-5) + math.log(order)) / (order - 1)
        for order in (2, 8, 17, 33, 64)
    }
    # rounded up
    assert 0 < found <= min(by_order.values()) * (1 + 1e-12)
    assert found > 0.5 * min(by_order.values())
    engine = PrivacyEngine()
    engine.accountant = accountant
    assert engine.get_epsilon(1e-5) == found
    with pytest.raises(ArgumentError, match="delta must lie strictly between 0 and 1"):
        accountant.get_epsilon(0.0)


def test_mean_square_has_no_epsilon_for_a_delta(loader):
    target = Guarantee.average_over_batches(order=8, epsilon=4.0)
    with pytest.raises(ArgumentError, match="averages over batches"):
        PlanAccountant(plan_of(loader, MeanSquare(), target)).get_epsilon(1e-5)


def test_noise_of_opacus_is_called_what_it_is(plan, loader):
    _, run = prepared(plan, loader)
    assert "not cryptographic" in noise_caveat(run.optimizer)
    assert "ideal real-valued Gaussian noise" in noise_caveat(run.optimizer)
    secure = DPOptimizer(
        run.optimizer.original_optimizer,
        noise_multiplier=opacus_noise_multiplier(plan),
        max_grad_norm=CLIP,
        expected_batch_size=119,
        generator=torch.Generator(),
        secure_mode=True,
    )
    assert "from a cryptographic generator" in noise_caveat(secure)
    assert "ideal real-valued Gaussian noise" in noise_caveat(secure)
    check_opacus(plan, attrs.evolve(run, optimizer=secure))


def test_names_are_sorted():
    assert pufferslice.torch.__all__ == sorted(pufferslice.torch.__all__)
    assert PlanAccountant.mechanism() == "pufferslice"


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        ("torch", "import pufferslice.torch", "torch"),
        ("opacus", "from pufferslice.torch import OpacusRun", "opacus"),
        ("opacus", "import pufferslice.torch.opacus_accountant", "opacus"),
    ],
)
def test_without_them_the_extra_is_named(missing, statement, extra):
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from pufferslice import MissingExtraError\n"
        "try:\n"
        f"    {statement}\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"pip install 'pufferslice[{extra}]'" in done.stdout, done.stderr


def test_training_needs_no_opacus():
    code = (
        "import sys\n"
        "sys.modules['opacus'] = None\n"
        "from pufferslice.torch import Trainer\n"
        "import pufferslice.torch as package\n"
        "assert set(dir(package)) == set(package.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_is_there_and_no_other():
    assert all(hasattr(pufferslice.torch, name) for name in pufferslice.torch.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'opacus_run'"):
        pufferslice.torch.opacus_run  # noqa: B018 - the access is the test


def test_nothing_else_loads_torch():
    code = "import pufferslice.sgd, sys; assert not {'torch', 'opacus'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
