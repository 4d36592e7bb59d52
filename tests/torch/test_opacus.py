# SPDX-License-Identifier: Apache-2.0
"""Real Opacus runs: what follows the plan, and what is refused."""

import io
import json
import math
import subprocess
import sys
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pufferslice import Guarantee
from pufferslice.certificate import verify
from pufferslice.errors import ArgumentError
from pufferslice.learning import (
    Amplified,
    LayerClipping,
    LogMoment,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WorstCase,
    exactly,
    plan_training,
    plan_with_noise,
    run_cost,
)
from pufferslice.torch.opacus import PlanAccountant, opacus_sampling

CLIP, DIM, N_CLASSES = 0.5, 64, 10
TARGET = Guarantee.unsliced(order=8, epsilon=4.0)


def records(n_records):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.rand(n_records, DIM, generator=generator),
        torch.randint(N_CLASSES, (n_records,), generator=generator),
    )


LOADER = DataLoader(records(1797), batch_size=128)


def plan_of(loader=LOADER, accountant=None, n_steps=15):
    accountant = accountant or Amplified()
    return plan_training(
        differing=exactly(4),
        sampling=opacus_sampling(loader),
        clip_norm=CLIP,
        n_steps=n_steps,
        accountant=accountant,
        target=attrs.evolve(TARGET, notion=accountant.notion),
    )


def plan_with(multipliers, n_replaced=4, accountant=None):
    return plan_with_noise(
        differing=exactly(n_replaced),
        sampling=opacus_sampling(LOADER),
        clip_norm=CLIP,
        noise_multipliers=np.array(multipliers),
        accountant=accountant or LogMoment(),
        order=8.0,
    )


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def plan():
    return plan_of()


class Run(NamedTuple):
    """What `make_private` returned."""

    module: nn.Module
    optimizer: DPOptimizer
    data_loader: DataLoader


def watch(accountant, run):
    accountant.watch(**run._asdict())


def prepared(plan, *, accountant=None, module=None, **changes):
    """An accountant and the run that `make_private` gives, with some of its arguments changed."""
    module = nn.Linear(DIM, N_CLASSES) if module is None else module
    engine = PrivacyEngine()
    accountant = engine.accountant = PlanAccountant(plan) if accountant is None else accountant
    wanted = {
        "data_loader": LOADER,
        "noise_multiplier": accountant.noise_multiplier,
        "max_grad_norm": CLIP,
    }
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    made = engine.make_private(module=module, optimizer=optimizer, **(wanted | changes))
    return accountant, Run(made[0], made[1], made[-1])


def watched(plan, **changes):
    accountant, run = prepared(plan, **changes)
    watch(accountant, run)
    return accountant, run


def make_step(run, batch, module=None):
    pixels, labels = batch
    run.optimizer.zero_grad()
    nn.functional.cross_entropy((module or run.module)(pixels), labels).backward()
    run.optimizer.step()


def make_steps(run, n_steps):
    for _, batch in zip(range(n_steps), run.data_loader, strict=False):
        make_step(run, batch)


def parameters(run):
    return torch.cat([p.detach().flatten().clone() for p in run.optimizer.params])


def test_an_opacus_loop_gets_the_plans_guarantee(plan):
    accountant, run = watched(plan)
    before, sizes = parameters(run), []
    with pytest.raises(ArgumentError, match="no step"):
        accountant.guarantee()
    for batch in run.data_loader:
        make_step(run, batch)
        sizes.append(len(batch[0]))
        assert accountant.guarantee() == plan.guarantee()
    with pytest.raises(AttributeError, match="plan"):
        accountant.plan = plan
    assert len(accountant) == len(sizes) == plan.n_steps
    assert 0.99 * TARGET.epsilon < accountant.guarantee().epsilon <= TARGET.epsilon
    assert len(set(sizes)) > 5, "Poisson batches vary"
    assert np.mean(sizes) == pytest.approx(plan.divisor, rel=0.2)
    assert not torch.equal(parameters(run), before)
    certificate = accountant.certificate(data="1797 made-up rows")
    assert certificate.guarantee == plan.guarantee()
    (caveat,) = certificate.statement["noise"]
    assert all(words in caveat for words in ("no secure_mode", "ideal", "code of the model"))
    assert verify(certificate).holds


@pytest.mark.soundness
def test_noise_and_shift_of_opacus_are_those_of_the_plan():
    """Replacing K records moves the sum by 2CK, the noise on it has std zC: cost 2 alpha K²/z²."""
    multiplier, n_replaced = 3.0, 3
    plan = plan_with([multiplier] * 2, n_replaced, WorstCase())
    module = nn.Linear(DIM, 2000, bias=False)
    nn.init.zeros_(module.weight)
    _, run = watched(plan, module=module)
    weight = run.optimizer.params[0]

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
    assert shift == pytest.approx(2 * CLIP * n_replaced, rel=1e-5)

    make_step(run, (torch.zeros(40, DIM), torch.zeros(40, dtype=torch.int64)))
    noise = weight.grad * run.optimizer.expected_batch_size
    # 128,000 draws: 5 sigma
    assert float(noise.std()) == pytest.approx(multiplier * CLIP, rel=0.01)
    step_cost = plan.order * shift**2 / (2 * (multiplier * CLIP) ** 2)
    assert plan.guarantee().epsilon == pytest.approx(2 * step_cost, rel=1e-4)


@pytest.mark.parametrize("n_batches", [1, 3, 15, 49, 93, 1000])
def test_rate_covers_what_the_sampler_draws(n_batches):
    dataset = TensorDataset(torch.zeros(n_batches * 2, 1))
    sampling = opacus_sampling(DataLoader(dataset, batch_size=2))
    every_uniform = torch.arange(2**24) * 2.0**-24
    drawn = int((every_uniform < 1 / n_batches).sum()) / 2**24
    assert 1 / n_batches <= drawn <= sampling.rate < drawn + 2**-24
    assert sampling.n_records == n_batches * 2
    assert torch.equal((torch.rand(100_000) * 2**24).frac(), torch.zeros(100_000))


def test_iterable_datasets_are_refused():
    class Endless(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(ArgumentError, match="data_loader"):
        opacus_sampling(DataLoader(Endless()))


def test_loaders_whose_length_opacus_rounds_down_are_followed():
    """For 93 batches int(1 / (1 / 93)) is 92: Opacus reports a rate that it does not draw with."""
    loader = DataLoader(records(93 * 4), batch_size=4)
    plan = plan_of(loader, n_steps=2)
    accountant, run = watched(plan, data_loader=loader)
    assert len(run.data_loader) == 92
    make_steps(run, 1)
    assert len(accountant) == 1


def test_an_empty_batch_is_a_step_with_noise_only():
    loader = DataLoader(records(30), batch_size=1)
    accountant, run = watched(plan_of(loader, n_steps=30), data_loader=loader)
    sizes = []
    for batch in run.data_loader:
        make_step(run, batch)
        sizes.append(len(batch[0]))
        if not sizes[-1]:
            assert not any(p.summed_grad.any() for p in run.optimizer.params)
    assert 0 in sizes
    assert len(accountant) == 30
    assert bool(torch.isfinite(parameters(run)).all())


@pytest.mark.parametrize(
    "mode", [{"grad_sample_mode": "functorch"}, {"grad_sample_mode": "ew"}, {"wrap_model": False}]
)
def test_other_ways_to_the_same_gradients_are_followed(mode, plan):
    module = nn.Linear(DIM, N_CLASSES)
    accountant, run = watched(plan, module=module, **mode)
    make_step(run, next(iter(run.data_loader)), module if "wrap_model" in mode else None)
    assert len(accountant) == 1


def test_batches_may_be_split_in_memory(plan):
    accountant, run = prepared(plan)
    n_parts = 0
    with BatchMemoryManager(
        data_loader=run.data_loader, max_physical_batch_size=32, optimizer=run.optimizer
    ) as parts:
        run = run._replace(data_loader=parts)
        watch(accountant, run)
        for part in parts:
            make_step(run, part)
            n_parts += 1
    assert n_parts > 2 * plan.n_steps
    assert len(accountant) == plan.n_steps
    assert accountant.guarantee() == plan.guarantee()


def test_a_schedule_of_noise_is_followed():
    plan = plan_with([30.0, 20.0, 25.0])
    accountant, run = watched(plan)
    used = []
    for _, batch in zip(range(3), run.data_loader, strict=False):
        run.optimizer.noise_multiplier = accountant.noise_multiplier
        used.append(accountant.noise_multiplier)
        make_step(run, batch)
    assert used == [30.0, 20.0, 25.0]
    assert len(accountant) == 3


def below(layer):
    """Changes that put a layer in front of the model."""
    return {"module": nn.Sequential(layer, nn.Linear(DIM, N_CLASSES))}


def loading(n_records=1797, batch_size=128, **changes):
    return {"data_loader": DataLoader(records(n_records), batch_size=batch_size, **changes)}


INSTANCE_NORM = nn.Sequential(
    nn.Unflatten(1, (1, DIM)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()
)
ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 100.0,
}
ALL_AT_ONCE = {"poisson_sampling": False, "max_grad_norm": 1.0, "noise_multiplier": 2.0}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"poisson_sampling": False}, "BatchSampler.*poisson_sampling"),
        ({"max_grad_norm": 2 * CLIP}, "max_grad_norm is 1.0"),
        ({"noise_multiplier": 1.0}, "noise_multiplier is 1.0"),
        (ALL_AT_ONCE, "noise_multiplier.*max_grad_norm.*poisson_sampling"),
        ({"clipping": "per_layer", "max_grad_norm": [CLIP, CLIP]}, "DPPerLayerOptimizer"),
        (ADAPTIVE, "AdaClipDPOptimizer"),
        ({"grad_sample_mode": "ghost"}, "GradSampleModuleFastGradientClipping"),
        ({"grad_sample_mode": "no_op"}, "GradSampleModuleNoOp"),
        ({"rand_on_empty": True}, "rand_on_empty"),
        ({"noise_generator": torch.Generator()}, "noise_generator"),
        (below(nn.BatchNorm1d(DIM, affine=False)), "BatchNorm1d"),
        (below(nn.BatchNorm1d(DIM, affine=False, track_running_stats=False)), "BatchNorm1d"),
        (below(INSTANCE_NORM), "InstanceNorm1d"),
        (loading(batch_size=64), "opacus_sampling"),
        (loading(n_records=1796), "1796 records"),
        (loading(generator=torch.Generator()), "generator.*'amplified'"),
    ],
)
def test_runs_that_are_made_otherwise_are_refused(changes, match, plan):
    with pytest.raises(ArgumentError, match=match):
        watched(plan, **changes)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda run: setattr(run.optimizer, "loss_reduction", "sum"), "loss_reduction is 'mean'"),
        (lambda run: setattr(run.optimizer, "expected_batch_size", 0), "expected_batch_size is 0"),
        (lambda run: setattr(run.optimizer, "expected_batch_size", 100), "batch_size is 100"),
        (lambda run: setattr(run.optimizer, "expected_batch_size", None), "batch_size is None"),
        (lambda run: torch.set_default_dtype(torch.bfloat16), r"torch\.bfloat16"),
        (lambda run: run.module._module[0].train(), "BatchNorm1d"),
        (lambda run: run._replace(module=prepared(plan_of())[1].module), "not the module's"),
        (lambda run: run._replace(optimizer=run.optimizer.original_optimizer), "is a SGD"),
    ],
)
def test_runs_that_are_changed_later_are_refused(change, match, plan):
    accountant, run = prepared(plan, **below(nn.BatchNorm1d(DIM, affine=False)))
    run.module._module[0].eval()
    assert run.optimizer.expected_batch_size == math.floor(plan.divisor) == 119
    watch(accountant, run)
    changed = change(run)
    with pytest.raises(ArgumentError, match=match):
        watch(accountant, changed if isinstance(changed, Run) else run)


def test_what_costs_nothing_is_not_refused(plan):
    accountant, run = prepared(plan, loss_reduction="sum")
    run.optimizer.expected_batch_size = None
    watch(accountant, run)
    # The accountant assumes no secrecy of the batches.
    watched(plan_of(accountant=LogMoment()), **loading(generator=torch.Generator()))


def test_a_distributed_run_is_refused(plan):
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        module = DifferentiallyPrivateDistributedDataParallel(nn.Linear(DIM, N_CLASSES))
        with pytest.raises(ArgumentError, match=r"DistributedDPOptimizer.*DistributedUniform"):
            watched(plan, module=module)
    finally:
        torch.distributed.destroy_process_group()


def test_plans_that_opacus_cannot_follow_are_refused(plan):
    batches = WithoutReplacement(n_records=1797, batch_size=128)
    layers = LayerClipping(names=("w",), norms=(1.0,), sizes=(640,), allocation="equal")
    for changes, match in (
        ({"sampling": batches, "accountant": LogMoment()}, "sampling is 'without_replacement'"),
        ({"clipping": layers}, "clipping is 'layers'"),
    ):
        with pytest.raises(ArgumentError, match=match):
            PlanAccountant(attrs.evolve(plan, **changes))
    assert plan.sampling.rate > 1 / 15
    short = attrs.evolve(plan, sampling=Poisson(n_records=1797, rate=1 / 15))
    with pytest.raises(ArgumentError, match="opacus_sampling"):
        watched(short)


def accumulate(accountant, run):
    run.optimizer.signal_skip_step()
    make_steps(run, 1)


def accumulate_by_backward(accountant, run):
    run.module.allow_grad_accumulation()
    pixels, labels = next(iter(run.data_loader))
    nn.functional.cross_entropy(run.module(pixels), labels).backward()
    run.optimizer.zero_grad = lambda: None


def schedule(scheduler):
    def change(accountant, run):
        change_setting = scheduler(run.optimizer, gamma=0.5)
        make_steps(run, 1)
        change_setting.step()

    return change


def use_another_optimizer(accountant, run):
    return prepared(accountant.plan, accountant=accountant)[1]


def make_inputs_infinite(accountant, run):
    run.module._module.register_forward_pre_hook(lambda _, inputs: inputs[0] * math.inf)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda accountant, run: accountant.load_state_dict(accountant.state_dict()), "watch"),
        (use_another_optimizer, "another optimizer"),
        (lambda accountant, run: make_steps(run, 2), "no step 3"),
        (schedule(ExponentialNoise), "noise_multiplier is"),
        (schedule(ExponentialGradClip), "max_grad_norm is"),
        (accumulate, "accumulated"),
        (accumulate_by_backward, "one step per batch"),
        (make_inputs_infinite, "not finite"),
    ],
)
def test_a_step_that_is_not_the_plans_changes_nothing(change, match):
    accountant, run = watched(plan_of(n_steps=2))
    run = change(accountant, run) or run
    before, n_before = parameters(run), len(accountant)
    with pytest.raises(ArgumentError, match=match):
        make_step(run, next(iter(run.data_loader)))
    assert torch.equal(parameters(run), before)
    assert len(accountant) == n_before


def test_only_planned_steps_are_counted(plan):
    accountant, run = prepared(plan)
    planned, rate = plan.noise_multipliers[0], 1 / 15
    with pytest.raises(ArgumentError, match="watch"):
        accountant.step(noise_multiplier=planned, sample_rate=rate)
    with pytest.raises(ArgumentError, match=r"engine\.accountant"):
        watch(PlanAccountant(plan), run)
    watch(accountant, run)
    less = run.optimizer.noise_multiplier = math.nextafter(planned, 0)
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        watch(accountant, run)
    for multiplier, drawn_at, match in ((less, rate, "noise_multiplier"), (planned, 0.2, "rate")):
        with pytest.raises(ArgumentError, match=match):
            accountant.step(noise_multiplier=multiplier, sample_rate=drawn_at)
    assert not len(accountant)


def test_a_run_resumes_from_a_checkpoint(plan):
    accountant, run = watched(plan)
    make_steps(run, 5)
    engine = PrivacyEngine()
    engine.accountant = accountant
    saved = io.BytesIO()
    engine.save_checkpoint(path=saved, module=run.module, optimizer=run.optimizer)
    saved.seek(0)

    state = json.loads(json.dumps(accountant.state_dict(destination={"kept": 1})))
    assert state.pop("kept") == 1
    from_json = PlanAccountant(plan)
    from_json.load_state_dict(state)
    assert from_json.state_dict() == accountant.state_dict() == state
    assert from_json.guarantee() == plan.guarantee()

    again, second = watched(plan)
    engine.accountant = again
    engine.load_checkpoint(path=saved, module=second.module, optimizer=second.optimizer)
    assert len(again) == 5
    assert torch.equal(parameters(second), parameters(run))
    watch(again, second)
    make_steps(second, 10)
    assert len(again) == plan.n_steps
    with pytest.raises(ArgumentError, match="no step 16"):
        make_steps(second, 1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mechanism": "rdp"}, "the same plan"),
        ({"plan": {}}, "the same plan"),
        *(({"n_steps": wrong}, "n_steps") for wrong in (None, -1, 16, 1.0, True)),
    ],
)
def test_states_that_are_not_of_this_plan_are_refused(changes, match, plan):
    accountant = PlanAccountant(plan)
    for refused in (accountant.state_dict() | changes, {}):
        with pytest.raises(ArgumentError, match=match if refused else "state_dict"):
            accountant.load_state_dict(refused)
    assert not len(accountant)


def test_epsilon_for_a_delta_is_the_best_over_orders(plan):
    accountant, run = watched(plan)
    assert accountant.get_epsilon(1e-5) == 0.0
    make_steps(run, 1)
    found = accountant.get_epsilon(1e-5)
    one_step = plan.noise_multipliers[:1]
    least = min(
        run_cost(plan.accountant, order, plan.sampling, plan.differing, one_step)
        + math.log((order - 1) / order)
        - (math.log(1e-5) + math.log(order)) / (order - 1)
        for order in (2, 8, 17, 33, 64)
    )
    assert 0.5 * least < found <= least * (1 + 1e-10)  # rounded up
    engine = PrivacyEngine()
    engine.accountant = accountant
    assert engine.get_epsilon(1e-5) == found
    with pytest.raises(ArgumentError, match="delta"):
        accountant.get_epsilon(0.0)
    with pytest.raises(ArgumentError, match="mean_square"):
        PlanAccountant(plan_of(accountant=MeanSquare())).get_epsilon(1e-5)


def test_a_certificate_tells_a_cryptographic_generator(plan):
    """`secure_mode` needs a package that is not installed, so the optimizer says that it is on."""
    accountant, run = watched(plan)
    make_steps(run, 1)
    run.optimizer.secure_mode, run.optimizer.generator = True, torch.Generator()
    watch(accountant, run)
    assert "(secure_mode)" in accountant.certificate(data="rows").statement["noise"][0]


def test_training_itself_does_not_load_opacus():
    code = "import sys, pufferslice.torch; assert 'opacus' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
