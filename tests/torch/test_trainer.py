# SPDX-License-Identifier: Apache-2.0
"""The trainer: exactly the plan's sums, noise and steps; nothing else is let in."""

import copy
import hashlib
import itertools
import math
import random
import time
import warnings

import attrs
import numpy as np
import pytest
import torch
from scipy import stats
from tests.torch.engine import clipped_rows
from tests.torch.small import (
    LOSS,
    N_RECORDS,
    N_STEPS,
    copy_of,
    digest_of,
    model_of,
    plan_of,
    records,
    resumed,
    train,
    trainer_of,
)
from tests.torch.test_batches import Plain
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from pufferslice._core.sampler import SIGMA_INT, add_integers, draw_integers
from pufferslice.certificate import certify_training, verify
from pufferslice.claims import Measure
from pufferslice.errors import ArgumentError, ReleaseError, RewindError, TrainingError
from pufferslice.learning import (
    Amplified,
    LayerClipping,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    binomial,
    run_cost,
)
from pufferslice.learning.integer_sums import implementation_delta, sum_grid
from pufferslice.learning.keys import RunKey
from pufferslice.torch import StepReport, Trainer, clipping
from pufferslice.torch import run as run_module
from pufferslice.torch.layout import layout_of

MASKS, INSIDE, SEEN = [], [], []
"""Globals: the model itself is copied for each run."""


@pytest.fixture(autouse=True)
def _fixed_keys(monkeypatch, seed):
    """Runs in memory draw from known keys, a new one for each run."""
    numbers = itertools.count()

    def fresh():
        return RunKey.from_bytes(hashlib.sha256(f"{seed} {next(numbers)}".encode()).digest())

    monkeypatch.setattr(RunKey, "fresh", fresh)


EVERYONE = Poisson(n_records=N_RECORDS, rate=1.0)
NOBODY = Poisson(n_records=N_RECORDS, rate=1e-9)


class Watching(torch.optim.SGD):
    """Keeps every gradient that it was given."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.seen = []

    def step(self, closure=None):
        held = self.param_groups[0]["params"]
        self.seen.append(torch.cat([p.grad.reshape(-1).clone() for p in held]))
        return super().step(closure)


def watched(plan=None, **given):
    """A trainer, its model, and the optimizer that keeps the gradients."""
    kept = []

    def optimizer(params, lr):
        kept.append(Watching(params, lr=lr))
        return kept[0]

    trainer, model = trainer_of(plan, optimizer=optimizer, **given)
    return trainer, model, kept[0]


# --- sums and noise


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(n_records=N_RECORDS, rate=0.6),
        WithoutReplacement(n_records=N_RECORDS, batch_size=37),
        WithReplacement(n_records=N_RECORDS, batch_size=37),
    ],
    ids=lambda design: design.name,
)
@pytest.mark.parametrize("clip_norm", [0.05, 0.5])
@pytest.mark.parametrize("block", [None, 7])
def test_a_step_is_the_clipped_sum_and_keyed_noise_over_the_divisor(
    sampling, clip_norm, block, monkeypatch
):
    plan = attrs.evolve(plan_of(sampling=sampling, clip_norm=clip_norm), block=block)
    trainer, model, optimizer = watched(plan)
    before = copy.deepcopy(model).double()
    data = records()
    batch = next(trainer.batches(data))
    noise_keys = []

    def add_noise(noise_key, sums):
        noise_keys.append(noise_key)
        add_integers(noise_key, sums)

    monkeypatch.setattr(run_module, "add_integers", add_noise)
    trainer.step(batch)
    assert block_stated(trainer) == trainer.plan.block == (block or trainer.plan.block)
    layout = layout_of(before, plan.clipping)
    radius = float(sum_grid(trainer.plan, 0, layout.sizes).radii[0])
    assert 0.999 * clip_norm < radius < clip_norm
    inputs, targets = (one[batch.indices.tolist()] for one in data.tensors)
    expected = clipped_rows(before, LOSS, layout, (inputs.double(), targets), radius)
    (noise_key,) = noise_keys
    noise = draw_integers(noise_key, len(expected)) * (plan.noise_stds(0)[0] / SIGMA_INT)
    found = optimizer.seen[0].double().numpy() * plan.divisor - noise
    scale = clip_norm * len(batch.indices)
    assert np.abs(found - expected).max() <= 1e-6 * scale + 1e-6 * np.abs(noise).max()
    assert np.abs(expected).max() > 1e-3 * scale


@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_noise_follows_the_schedule_and_the_realised_batch_size_never_divides(rate):
    multipliers = np.array([1e4, 1e6])
    sampling = Poisson(n_records=N_RECORDS, rate=rate)
    trainer, _, optimizer = watched(plan_of(multipliers=multipliers, sampling=sampling))
    train(trainer)
    stds = [float(one.double().std()) for one in optimizer.seen]
    assert stds == pytest.approx(multipliers / (rate * N_RECORDS), rel=0.4)


def flat_loss(outputs, _targets):
    """A loss whose gradient is zero everywhere, so that a noisy sum is noise."""
    return 0.0 * outputs.sum(1)


def noise_seen(clipping):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12_000), nn.Linear(12_000, 5))
    plan = plan_of(n_steps=1, sampling=EVERYONE, clip_norm=clipping)
    trainer, _, optimizer = watched(plan, model=model, loss_fn=flat_loss)
    train(trainer)
    return optimizer.seen[0].double().numpy(), plan


def p_value(draws, std):
    return stats.kstest(draws, stats.norm(scale=std).cdf).pvalue


@pytest.mark.soundness
@pytest.mark.statistical
def test_every_coordinate_of_every_layer_has_noise_of_its_own_size():
    """60,000 coordinates a layer: a scale that is off by a tenth has a p-value far below 1e-20."""
    names, sizes = ("0", "1"), (60_000, 60_005)
    clipping = LayerClipping(names=names, norms=(0.5, 3.0), sizes=sizes, allocation="least_noise")
    seen, plan = noise_seen(clipping)
    stds = plan.noise_stds(0) / plan.divisor
    assert stds[0] == pytest.approx(4.0 * clipping.ratios[0] * 0.5 / plan.divisor)
    assert np.count_nonzero(seen) == len(seen)
    assert len(np.unique(seen)) > 0.99 * len(seen)
    for part, std in zip(np.split(seen, [sizes[0]]), stds, strict=True):
        assert p_value(part, std) > 1e-20
        assert p_value(part, 0.9 * std) < 1e-20
        assert p_value(part, 1.1 * std) < 1e-20


@pytest.mark.soundness
def test_an_empty_batch_is_a_step_with_noise_only():
    trainer, model, optimizer = watched(plan_of(sampling=NOBODY, n_steps=3))
    before = digest_of(model)
    reports = train(trainer)
    assert [report.n_examples for report in reports] == [0, 0, 0]
    assert all(math.isnan(report.mean_loss) for report in reports)
    assert trainer.is_finished
    assert digest_of(model) != before
    assert all(torch.count_nonzero(one) == len(one) for one in optimizer.seen)


@pytest.mark.soundness
def test_steps_and_runs_never_share_noise_or_draws():
    """Noise only: equal sums in different steps and runs must not show as equal gradients."""
    seen, drawn = [], []
    for _ in range(2):
        trainer, _, optimizer = watched(plan_of(sampling=NOBODY, n_steps=4))
        train(trainer)
        seen += [float(value) for one in optimizer.seen for value in one]
        sampling = WithoutReplacement(n_records=N_RECORDS, batch_size=20)
        trainer, _ = trainer_of(plan_of(sampling=sampling))
        for batch in trainer.batches(records()):
            assert len(set(batch.indices.tolist())) == 20
            drawn.append(tuple(batch.indices))
            trainer.step(batch)
    assert len(seen) == len(set(seen))
    assert len(drawn) == len(set(drawn)) == 2 * N_STEPS


# --- what may not change a bit


class Odd(nn.Module):
    """Uses its parameters in a way that only gradients of single examples know."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 8).reshape(2, 4))
        self.scale = nn.Parameter(torch.tensor([[0.5], [2.0]]))

    def forward(self, inputs):
        return inputs @ torch.sinh(self.weight * self.scale).T


class Drawing(Odd):
    """Draws from torch's own generator."""

    def forward(self, inputs):
        return super().forward(inputs * torch.rand_like(inputs))


class Reading(nn.Module):
    """Reads a value of its inputs, but only in training mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.inner(inputs * inputs.max().item() if self.training else inputs)


def wide():
    """Large enough for torch to share products out over threads, if it were allowed to."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 700), nn.Tanh(), nn.Linear(700, 700), nn.Linear(700, 2))


MODELS = {
    "plain": model_of,
    "dropout": lambda: model_of(dropout=0.5),
    "odd": Odd,
    "drawing": Drawing,
    "one by one": Reading,
    "wide": wide,
}


@pytest.mark.filterwarnings("ignore:training is slow")
@pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("rate", "block"), [(1.0, 7), (0.5, 64), (0.5, None), (0.02, 2)])
def test_threads_and_blocks_in_flight_change_no_bit(name, rate, block, same_key):
    sampling = Poisson(n_records=N_RECORDS, rate=rate)
    plan = attrs.evolve(plan_of(n_steps=2, sampling=sampling), block=block)
    before = torch.get_num_threads()
    digests = []
    for in_flight, threads in ((1, 1), (2, 3), (3, 2)):
        model = MODELS[name]()
        held = list(model.parameters())
        trainer, _ = trainer_of(plan, model=model, blocks_in_flight=in_flight)
        state = torch.get_rng_state()
        try:
            torch.set_num_threads(threads)
            train(trainer)
            assert torch.get_num_threads() == threads
            assert torch.equal(state, torch.get_rng_state())
        finally:
            torch.set_num_threads(before)
        assert all(now is was for now, was in zip(model.parameters(), held, strict=True))
        digests.append(digest_of(model))
    assert len(set(digests)) == 1
    assert digests[0] != digest_of(MODELS[name]())


@pytest.mark.filterwarnings("ignore:training is slow")
@pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses")
def test_random_numbers_differ_between_examples_and_steps():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, inputs):
            mask = nn.functional.dropout(torch.ones(len(inputs), 64), 0.5)
            MASKS.append(tuple(mask.reshape(-1).tolist()))
            return self.linear(inputs) * mask.mean()

    trainer, _ = trainer_of(plan_of(sampling=EVERYONE), model=Drops())
    batches = trainer.batches(records())
    assert trainer.gradient_method.startswith("one by one")
    MASKS.clear()
    trainer.step(next(batches))
    trainer.step(next(batches))
    assert len(MASKS) == len(set(MASKS)) == 2 * N_RECORDS


@pytest.mark.parametrize(("draws", "most"), [(True, 1), (False, 2)])
def test_blocks_run_at_once_unless_the_model_draws_random_numbers(draws, most):
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, inputs):
            INSIDE.append(1)
            time.sleep(0.02)
            SEEN.append(len(INSIDE))
            INSIDE.pop()
            outputs = self.linear(inputs)
            return outputs + torch.rand_like(outputs) if draws else outputs

    plan = attrs.evolve(plan_of(sampling=EVERYONE), block=10)
    trainer, _ = trainer_of(plan, model=Slow(), blocks_in_flight=2)
    SEEN.clear()
    train(trainer, n_steps=2)
    assert trainer.gradient_method == "all examples of a block at once"
    assert max(SEEN) == most


class Later(nn.Module):
    """Begins to draw random numbers when it is told to; in training mode it reads values."""

    def __init__(self):
        super().__init__()
        self.linear, self.draws = nn.Linear(4, 2), False

    def forward(self, inputs):
        inputs = inputs * inputs.max().item() if self.training else inputs
        return self.linear(inputs * torch.rand_like(inputs) if self.draws else inputs)


@pytest.mark.soundness
@pytest.mark.filterwarnings("ignore:training is slow")
@pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses")
def test_randomness_that_appears_later_is_refused_and_another_mode_is_looked_at():
    trainer, model = trainer_of(model=Later().eval(), blocks_in_flight=2)
    assert "not known" in trainer.gradient_method
    batches = trainer.batches(records())
    assert trainer.gradient_method == "all examples of a block at once"
    trainer.step(next(batches))
    model.draws = True
    weights, state = digest_of(model), torch.get_rng_state()
    batch = next(batches)
    with pytest.raises(TrainingError, match="random numbers"):
        trainer.step(batch)
    assert (trainer.n_taken, digest_of(model)) == (1, weights)
    assert torch.equal(state, torch.get_rng_state())
    model.train()
    trainer.step(batch)
    assert trainer.gradient_method.startswith("one by one")


WATCHED = []


def replaced(parameter):
    (model,) = WATCHED
    model.frozen = nn.Parameter(parameter.detach().clone(), requires_grad=False)


class Writing(nn.Module):
    """Writes to a frozen parameter, once its weights are large."""

    def __init__(self, write, frozen):
        super().__init__()
        self.inner = model_of()
        self.write = write
        self.frozen = nn.Parameter(frozen, requires_grad=False)

    def forward(self, inputs):
        if next(self.inner.parameters()).detach().norm() > 1e3:
            self.write(self.frozen)
        return self.inner(inputs)


def step_with_large_weights(model):
    """A trainer that has taken a step, and the next batch, at which the model writes."""
    trainer, _ = trainer_of(model=model)
    batches = trainer.batches(records())
    trainer.step(next(batches))
    with torch.no_grad():
        next(model.inner.parameters()).fill_(1e4)
    return trainer, next(batches)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("write", "frozen"),
    [
        (lambda p: p.data.add_(1), torch.zeros(3)),
        (lambda p: p.data.neg_(), torch.arange(1.0, 5)),
        (lambda p: p.data.neg_(), torch.tensor([1.0, -1, -1, 1] * 2)),
        (lambda p: p.data.copy_(p.data.roll(1)), torch.arange(4.0)),
        (lambda p: p.data.copy_(p.data.flip(0)), torch.arange(4.0)),
        (lambda p: p.data.neg_(), torch.ones(())),
        (replaced, torch.zeros(3)),
    ],
    ids=["add", "negate", "negate mixed", "roll", "flip", "negate one", "replace"],
)
def test_a_model_that_begins_to_write_to_its_parameters_stops_the_run(write, frozen):
    model = Writing(write, frozen.clone())
    WATCHED[:] = [model]
    trainer, batch = step_with_large_weights(model)
    with pytest.raises(TrainingError, match="parameters"):
        trainer.step(batch)
    assert trainer.n_taken == 1


@pytest.mark.parametrize("frozen", [torch.ones(0), torch.ones(()), torch.arange(7.0)[1:]])
def test_frozen_parameters_may_have_any_shape(frozen):
    trainer, batch = step_with_large_weights(Writing(lambda _: None, frozen))
    trainer.step(batch)
    assert trainer.n_taken == 2


# --- ordinary PyTorch around it


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam],
)
def test_any_optimizer_uses_the_noisy_gradient_as_it_would_any_other(optimizer):
    seen, made = [], []

    def hooked(params, lr):
        made.append(optimizer(params, lr=lr))
        made[0].register_step_pre_hook(
            lambda held, *_: seen.append([p.grad.clone() for p in held.param_groups[0]["params"]])
        )
        return made[0]

    trainer, model = trainer_of(optimizer=hooked, schedule=True)
    other = model_of()
    plain = optimizer(other.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(plain, 2, gamma=0.5)
    train(trainer)
    for gradients in seen:
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = gradient
        plain.step()
        schedule.step()
    assert len(seen) == N_STEPS
    assert digest_of(other) == digest_of(model)
    rates = [one.param_groups[0]["lr"] for one in (plain, made[0])]
    assert rates[0] == rates[1] == pytest.approx(0.1 * 0.5**3)


def test_the_model_is_not_wrapped_and_keeps_no_gradient():
    trainer, model = trainer_of()
    names, parts = list(model.state_dict()), [type(m) for m in model.modules()]
    with torch.no_grad():
        train(trainer)
    assert list(model.state_dict()) == names
    assert [type(m) for m in model.modules()] == parts
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert model(torch.zeros(3, 4)).shape == (3, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_model_is_trained_through_the_one_inside(same_key):
    digests = []
    for outer in (torch.compile, lambda model: model):
        inner = model_of()
        trainer, _ = trainer_of(model=outer(inner))
        train(trainer)
        digests.append(digest_of(inner))
    assert digests[0] == digests[1]


def test_frozen_parameters_get_no_noise_and_float64_models_stay_so():
    model = model_of().double()
    model[0].requires_grad_(requires_grad=False)
    before = digest_of(model[0])
    trainer, _, optimizer = watched(model=model)
    inputs, targets = records().tensors
    train(trainer, TensorDataset(inputs.double(), targets))
    assert optimizer.seen[0].dtype == torch.float64
    assert digest_of(model[0]) == before
    assert model[0].weight.grad is None


def test_a_model_learns_when_the_noise_is_small():
    plan = plan_of(multipliers=np.full(40, 0.05), sampling=EVERYONE)
    model = model_of()
    inputs, targets = records().tensors
    first = LOSS(model(inputs), targets).mean().item()
    reports = train(Trainer(model, LOSS, torch.optim.SGD(model.parameters(), lr=2.0), plan))
    assert float((model(inputs).argmax(1) == targets).float().mean()) > 0.9
    assert reports[0].mean_loss == pytest.approx(first, rel=1e-6)
    assert reports[-1].mean_loss < 0.5 * first
    assert [report.step for report in reports] == list(range(1, 41))
    assert {(report.n_examples, report.n_non_finite) for report in reports} == {(N_RECORDS, 0)}
    assert all(report.seconds > 0 for report in reports)


# --- cost


@pytest.mark.parametrize("accountant", [None, Amplified(), MeanSquare()])
def test_the_certificate_is_the_plans_whatever_was_taken(accountant):
    plan = plan_of(accountant=accountant)
    trainer, _ = trainer_of(plan)
    assert trainer.certificate().guarantee == plan.guarantee()
    batches = trainer.batches(records())
    early = trainer.certificate(data="survey")
    trainer.step(next(batches))
    certificate = trainer.certificate(data="survey")
    assert certificate.guarantee == plan.guarantee()
    assert certificate.digest == early.digest
    assert certificate.statement.data == "survey"
    plain = certify_training(trainer.plan, data="survey")
    assert certificate.statement.runs == plain.statement.runs
    n_parameters = sum(p.numel() for p in model_of().parameters())
    delta = certificate.statement.implementation_delta
    assert delta == implementation_delta(plan, n_parameters) > 0
    verify(certificate)


def test_without_a_name_of_the_data_no_two_certificates_have_the_same():
    one, two, named = (trainer_of()[0].certificate(**name) for name in ({}, {}, {"data": "survey"}))
    assert len({each.statement.data for each in (one, two, named)}) == 3
    assert named.statement.data == "survey"


def test_what_is_spent_is_the_cost_of_the_steps_so_far():
    plan = plan_of(multipliers=np.linspace(3, 8, N_STEPS))
    trainer, _ = trainer_of(plan)
    with pytest.raises(TrainingError, match="no step"):
        trainer.spent()
    for taken, batch in enumerate(trainer.batches(records()), start=1):
        trainer.step(batch)
        assert trainer.n_taken == taken
        multipliers = plan.noise_multipliers[:taken]
        expected = run_cost(
            plan.accountant, plan.measure.order, plan.sampling, plan.differing, multipliers
        )
        assert trainer.spent().epsilon == pytest.approx(expected, rel=1e-12)
    assert trainer.spent() == plan.guarantee()


@pytest.mark.soundness
def test_a_run_with_a_tail_in_delta_states_no_renyi_claim():
    whole = binomial(n_records=N_RECORDS, mismatch_probability=0.05)
    cut = whole.truncated(tail_probability=1e-6)
    asked = plan_of(multipliers=np.full(N_STEPS, 40.0))
    with pytest.raises(ArgumentError, match="no Rényi claim"):
        attrs.evolve(asked, differing=cut)
    plan = attrs.evolve(asked, differing=cut, measure=Measure.epsilon_delta(delta=1e-5))
    trainer, _ = trainer_of(plan)
    train(trainer)
    certificate = trainer.certificate(data="survey")
    assert verify(certificate).holds
    assert certificate.guarantee.delta == 1e-5
    assert trainer.spent_epsilon(1e-5) == pytest.approx(certificate.guarantee.epsilon, rel=1e-9)
    with pytest.raises(ArgumentError, match="no Rényi claim"):
        run_cost(plan.accountant, 4.0, plan.sampling, cut, plan.noise_multipliers)


def test_a_stop_certifies_the_steps_taken_and_says_what_it_assumes():
    differing = binomial(n_records=N_RECORDS, mismatch_probability=0.05)
    plan = attrs.evolve(plan_of(), differing=differing)
    trainer, model = trainer_of(plan)
    with pytest.raises(TrainingError, match="stop"):
        trainer.stop(independent_of_data=True)
    train(trainer, n_steps=2)
    for said in (False, None, 1, "yes", np.True_):
        with pytest.raises(ArgumentError, match="independent_of_data"):
            trainer.stop(independent_of_data=said)
    assert not trainer.is_finished
    weights = digest_of(model)
    certificate = trainer.stop(independent_of_data=True, data="survey")
    cut = attrs.evolve(plan, noise_multipliers=plan.noise_multipliers[:2])
    assert certificate.guarantee == cut.guarantee()
    assert certificate.guarantee.epsilon < plan.guarantee().epsilon
    assert "2 of 6" in str(certificate)
    verify(certificate)
    assert trainer.is_finished
    assert list(trainer.batches(records())) == []
    assert digest_of(model) == weights
    assert trainer.certificate().guarantee == plan.guarantee()
    with pytest.raises(TrainingError, match="stop"):
        trainer.stop(independent_of_data=True)


@pytest.mark.parametrize("end", [train, Trainer.close], ids=["last step", "closed"])
def test_the_key_is_destroyed_at_the_end(end, monkeypatch):
    key = RunKey.fresh()
    monkeypatch.setattr(RunKey, "fresh", lambda: key)
    trainer, _ = trainer_of()
    end(trainer)
    assert trainer.is_finished
    assert key.is_destroyed
    with pytest.raises(ReleaseError, match="destroyed"):
        key.batch_key(0)


# --- steps outside the plan


class Growing(TensorDataset):
    extra = 0

    def __len__(self):
        return super().__len__() + self.extra


def test_each_batch_is_used_once_and_none_is_left_out():
    trainer, _ = trainer_of(plan_of(n_steps=3))
    for attempt in (trainer.save, trainer.resume):
        with pytest.raises(TrainingError, match="folder"):
            attempt()
    with pytest.raises(TrainingError, match="50 records"):
        trainer.batches(records(50))
    data = Growing(*records().tensors)
    batches = trainer.batches(data)
    first = next(batches)
    with pytest.raises(TrainingError, match="step 0"):
        next(batches)
    batches = trainer.batches(data)
    again = next(batches)
    assert first.indices.tolist() == again.indices.tolist()
    assert len(batches) == 3
    data.extra = 1
    with pytest.raises(TrainingError, match="61 records"):
        trainer.step(again)
    data.extra = 0
    trainer.step(again)
    for used in (first, again):
        with pytest.raises(TrainingError, match=r"step 0 .* 1"):
            trainer.step(used)
    assert len(batches) == len(trainer.batches(data)) == 2
    for batch in batches:
        trainer.step(batch)
    assert len(batches) == 0
    with pytest.raises(TrainingError, match="3 of 3"):
        trainer.step(batch)
    assert list(trainer.batches(data)) == []


@pytest.mark.parametrize("foreign", ["loader", "trainer", "changed", "made", "none"])
def test_a_batch_from_elsewhere_is_refused(foreign):
    trainer, model = trainer_of()
    own = next(trainer.batches(records()))
    others = {
        "loader": lambda: next(iter(DataLoader(records(), batch_size=8))),
        "trainer": lambda: next(trainer_of()[0].batches(records())),
        "changed": lambda: attrs.evolve(own, indices=own.indices[:1]),
        "made": lambda: copy.copy(own),
        "none": lambda: None,
    }
    before = digest_of(model)
    with pytest.raises(ArgumentError, match=r"trainer\.batches\(dataset\)"):
        trainer.step(others[foreign]())
    assert digest_of(model) == before
    trainer.step(own)


# --- bad input


def replace_weight(model, _):
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def add_parameter(_, optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model, _: model[0].weight.requires_grad_(requires_grad=False), "was made with"),
        (lambda model, _: model.half(), "cannot be trained under a plan"),
        (replace_weight, "was made with"),
        (lambda model, _: model.append(nn.BatchNorm1d(2, affine=False)), "cannot be trained"),
        (add_parameter, "would get no noise"),
    ],
    ids=["frozen", "half", "replaced", "batch norm", "another parameter"],
)
def test_a_model_or_optimizer_that_changes_is_refused(change, match):
    trainer, model, optimizer = watched()
    batches = trainer.batches(records())
    trainer.step(next(batches))
    change(model, optimizer)
    with pytest.raises(ArgumentError, match=match):
        trainer.step(next(batches))


def test_mixed_and_reduced_precision_are_refused_at_every_step():
    trainer, _ = trainer_of()
    batch = next(trainer.batches(records()))
    with torch.autocast("cpu"), pytest.raises(ArgumentError, match=r"torch.autocast"):
        trainer.step(batch)
    with torch.inference_mode(), pytest.raises(ArgumentError, match="inference mode"):
        trainer.step(batch)
    double, _ = trainer_of(model=model_of().double())
    data = TensorDataset(records().tensors[0].double(), records().tensors[1])
    try:
        for precision in ("high", "medium"):
            torch.set_float32_matmul_precision(precision)
            with pytest.raises(ArgumentError, match="fp32_precision"):
                trainer.step(batch)
            train(double, data, n_steps=1)
    finally:
        torch.set_float32_matmul_precision("highest")
    trainer.step(batch)


class Halfway(torch.optim.SGD):
    """Moves the weights, and raises."""

    def step(self, closure=None):
        super().step(closure)
        raise ZeroDivisionError


@pytest.mark.soundness
def test_a_step_whose_noise_was_used_is_not_taken_again_with_other_sums():
    """Without a folder there is no ledger; the plan charges each step once all the same."""
    trainer, model = trainer_of(optimizer=Halfway)
    before = digest_of(model)
    batch = next(trainer.batches(records()))
    with pytest.raises(ZeroDivisionError):
        trainer.step(batch)
    moved = digest_of(model)
    assert moved != before
    with pytest.raises(RewindError, match="step 0"):
        trainer.step(batch)
    assert digest_of(model) == moved


def with_nan():
    data = records()
    data.tensors[0][7] = math.nan
    return data


@pytest.mark.soundness
def test_an_example_without_finite_gradient_is_left_out_and_counted():
    trainer, model, optimizer = watched(plan_of(sampling=EVERYONE, n_steps=1))
    (report,) = train(trainer, with_nan())
    assert report.n_non_finite == 1
    assert torch.isfinite(optimizer.seen[0]).all()
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("problem", ["not finite", "labels"])
def test_a_step_that_fails_can_be_taken_again_and_shows_no_record(problem, step):
    plan = attrs.evolve(plan_of(sampling=EVERYONE), non_finite="stop", block=10)
    trainer, model = trainer_of(plan, blocks_in_flight=2)
    train(trainer, n_steps=step)
    before, threads = digest_of(model), torch.get_num_threads()
    inputs, targets = records().tensors
    if problem == "labels":
        match, data = "labels out of range", TensorDataset(inputs, targets + 777)
    else:
        match, data = "the plan says 'stop'", with_nan()
    with pytest.raises(TrainingError, match=match) as caught:
        train(trainer, data)
    assert "77" not in str(caught.value)
    assert trainer.n_taken == step
    assert digest_of(model) == before
    assert torch.get_num_threads() == threads
    train(trainer)
    assert trainer.is_finished


def trained(data=None, batches=None, **given):
    """A trainer at the end of its plan, and the weights."""
    trainer, model = trainer_of(**given)
    train(trainer, data, **(batches or {}))
    assert trainer.is_finished
    return trainer, digest_of(model)


# --- items


class Outputs(dict):
    """What models of transformers give."""

    __getattr__ = dict.__getitem__


class Named(nn.Module):
    """Takes its inputs by name, nested, and gives outputs by name."""

    def __init__(self):
        super().__init__()
        self.inner = model_of()

    def forward(self, *, parts, labels):
        left, (right,) = parts["left"], parts["rest"]
        logits = self.inner(torch.cat([left, right], 1))
        return Outputs(loss=LOSS(logits, labels).mean(), logits=logits)


def dicts():
    return [
        {"parts": {"left": values[:1], "rest": (values[1:].numpy(),)}, "labels": int(label)}
        for values, label in records()
    ]


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda outputs, item: LOSS(outputs.logits, item["labels"]),
        lambda outputs, _: outputs.loss,
        lambda outputs, item: nn.CrossEntropyLoss()(outputs["logits"], item["labels"]),
    ],
    ids=["of the item", "of the model", "mean"],
)
def test_items_may_be_dicts_of_keyword_inputs(loss_fn, same_key):
    model = Named()
    trainer, _ = trained(Plain(dicts()), model=model, loss_fn=loss_fn)
    assert trainer.gradient_method == "all examples of a block at once"
    assert digest_of(model.inner) == trained()[1]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_may_be_one_number(reduction, same_key):
    assert trained(loss_fn=nn.CrossEntropyLoss(reduction=reduction))[1] == trained()[1]


def test_models_that_take_no_made_up_inputs_run_one_by_one(same_key):
    inputs, targets = records().tensors
    data = TensorDataset(inputs, targets + 5)
    reports, expected = [], []
    with pytest.warns(UserWarning, match="does not run on made-up inputs"):
        trainer, _ = trained(
            data=data,
            loss_fn=lambda outputs, target: LOSS(outputs, target - 5),
            on_step=reports.append,
        )
    assert trainer.gradient_method.startswith("one by one")
    trained(on_step=expected.append)
    assert reports[0].mean_loss == pytest.approx(expected[0].mean_loss)


class Words(nn.Module):
    """Shortens the rows that it looks up, takes no made-up words, and reads some words more."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4, max_norm=0.1)

    def forward(self, words):
        if (words < 2).any():
            raise ValueError
        return self.table(words.repeat(1, int(words.max()))).mean(1)


class TappedWords(nn.Module):
    """Takes no made-up words, and runs its layers on as many tokens as the first word says."""

    def __init__(self):
        super().__init__()
        self.table = nn.Linear(1_024, 1_024)
        self.out = nn.Linear(1_024, 2)

    def forward(self, words):
        if (words < 2).any():
            raise ValueError
        tokens = words.float().unsqueeze(1).repeat(1, int(words.max()), 1)
        return self.out(self.table(tokens).mean(1))


class CatchingWords(TappedWords):
    """The same, and under vmap, where no value is seen, it takes words for small ones."""

    def forward(self, words):
        try:
            if words.min().item() < 2:
                raise ValueError
            n_tokens = 1 + (words.max().item() > 9)
        except RuntimeError:
            n_tokens = 1
        tokens = words.float().unsqueeze(1).repeat(1, n_tokens, 1)
        return self.out(self.table(tokens).mean(1))


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("kind", "first_words", "n_words"),
    [(Words, (2, 8), 30_000), (TappedWords, (3, 100), 1_024), (CatchingWords, (3, 100), 1_024)],
)
def test_the_first_record_shows_neither_in_the_weights_nor_in_the_block(kind, first_words, n_words):
    chosen, before = set(), copy.deepcopy(model := kind()).table.weight
    for word in first_words:
        words = torch.tensor([[word]]).expand(N_RECORDS, n_words)
        data = TensorDataset(words, torch.zeros(N_RECORDS).long())
        trainer, _ = trainer_of(model=model)
        with pytest.warns(UserWarning, match="slow"):
            trainer.batches(data)
        assert torch.equal(model.table.weight, before)
        chosen.add((trainer.plan.block, trainer.gradient_method))
    assert len(chosen) == 1


# --- workers


class Augmented(TensorDataset):
    """Random shifts from each generator that transforms draw from."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        of_numpy = np.random.rand()  # noqa: NPY002 - what transforms draw from
        return inputs + torch.rand(4) + of_numpy + random.random(), target


def test_workers_and_generators_of_the_caller_change_no_bit(same_key):
    data = Augmented(*records().tensors)
    plan = attrs.evolve(plan_of(), block=7)
    digests = set()
    for n_workers, in_flight in ((0, 1), (2, 3), (1, 2)):
        model = model_of()
        torch.manual_seed(n_workers)
        state = torch.get_rng_state()
        given = {"batches": {"n_workers": n_workers}, "blocks_in_flight": in_flight}
        digests.add(trained(data, model=model, plan=plan, **given)[1])
        assert torch.equal(state, torch.get_rng_state())
    assert len(digests) == 1
    assert trained(plan=plan)[1] not in digests


# --- blocks


def block_stated(trainer):
    return trainer.certificate().statement.runs[0].block


def test_the_block_is_chosen_when_the_dataset_is_known_and_written_down():
    blocks = set()
    for _ in range(2):
        trainer, _ = trainer_of()
        assert trainer.plan.block is None
        trainer.batches(records())
        blocks.add(trainer.plan.block)
        assert block_stated(trainer) == trainer.plan.block
        assert verify(trainer.certificate()).holds
    (block,) = blocks
    # four standard deviations above the expected batch
    assert block == pytest.approx(42 + 4 * 42**0.5, abs=1)


@pytest.mark.parametrize(
    ("n_records", "width", "blocks"),
    [(500, 4, [314]), (40_000, 4, [384]), (40_000, 200_000, range(1, 384))],
    ids=["small", "many", "wide"],
)
def test_a_chosen_block_bounds_rounding_and_memory(n_records, width, blocks):
    inputs = torch.zeros(1, 4).expand(n_records, 4)
    data = TensorDataset(inputs, torch.zeros(n_records).long())
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    sampling = Poisson(n_records=n_records, rate=0.5)
    trainer, _ = trainer_of(plan_of(sampling=sampling), model=model)
    trainer.batches(data)
    assert trainer.plan.block in blocks
    n_parameters = sum(p.numel() for p in model.parameters())
    assert sum_grid(trainer.plan, 0, [n_parameters]).radii[0] > 0.99


def test_the_plan_of_a_run_cannot_be_exchanged():
    trainer, _ = trainer_of()
    train(trainer)
    with pytest.raises(AttributeError, match="plan"):
        trainer.plan = attrs.evolve(trainer.plan, noise_multipliers=np.full(N_STEPS, 1e3))


def test_the_block_of_a_run_is_kept_when_it_resumes(tmp_path, monkeypatch):
    trainer, _ = trainer_of(folder=tmp_path / "run")
    train(trainer, n_steps=2)
    trainer.save()
    block = trainer.plan.block
    other, expected = resumed(copy_of(tmp_path / "run", tmp_path / "copy"))
    train(other)
    monkeypatch.setattr(clipping.ClippedSums, "chosen_block", lambda *_: 3)
    trainer, model = resumed(tmp_path / "run")
    train(trainer)
    assert trainer.plan.block == block != 3
    assert block_stated(trainer) == block
    assert digest_of(model) == digest_of(expected)


# --- what a run tells


def test_a_callback_gets_the_report_of_each_step(same_key):
    reports = []
    _, weights = trained(on_step=reports.append)
    assert all(type(report) is StepReport for report in reports)
    assert [report.step for report in reports] == list(range(1, N_STEPS + 1))
    assert weights == trained()[1]


def test_progress_is_drawn_on_stderr_and_changes_nothing(capsys, same_key):
    weights = {trained(batches={"progress": shown})[1] for shown in (None, False)}
    assert capsys.readouterr() == ("", "")
    weights.add(trained(batches={"progress": True})[1])
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert f"{N_STEPS}/{N_STEPS}" in drawn.err
    assert len(weights) == 1


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"model": Reading}, ["training is slow: one by one", "the model or loss_fn gives"]),
        (
            {"loss_fn": lambda out, t: LOSS(out - out.mean(0) / 2, t)},
            ["the model or loss_fn gives"],
        ),
        ({}, []),
    ],
    ids=["reads values", "centres", "plain"],
)
def test_what_the_user_should_know_is_said_once(given, starts):
    given = {name: part() if name == "model" else part for name, part in given.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer, _ = trained(**given)
        trainer.batches(records())
    said = [str(one.message) for one in caught]
    assert len(said) == len(starts)
    for sentence, start in zip(said, starts, strict=True):
        assert sentence.startswith(start)
    is_slow = any("slow" in start for start in starts)
    assert trainer.gradient_method.startswith("one by one") == is_slow


class RealAndFake(nn.Module):
    """A discriminator that sees real and made-up images in one step."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(5, 4).requires_grad_(False)
        self.discriminator = nn.Linear(4, 1)

    def forward(self, real):
        return self.discriminator(real), self.discriminator(self.generator(torch.randn(1, 5)))


def gan_loss(scores, _):
    real, fake = scores
    return functional.softplus(-real).sum() + functional.softplus(fake).sum()


def test_discriminator_and_generator_take_turns():
    """The generator needs no noise; if it is left trainable, the step is refused."""
    both = RealAndFake()
    trainer, _ = trainer_of(plan_of(4), model=both, loss_fn=gan_loss)
    optimizer = torch.optim.Adam(both.generator.parameters(), lr=0.01)
    before = [p.detach().clone() for p in both.parameters()]
    for batch in trainer.batches(records()):
        both.generator.requires_grad_(True)
        with pytest.raises(ArgumentError, match="trainable parameters"):
            trainer.step(batch)
        loss = -both.discriminator(both.generator(torch.randn(16, 5))).mean()
        loss.backward(inputs=list(both.generator.parameters()))
        optimizer.step()
        both.generator.requires_grad_(False)
        trainer.step(batch)
    assert trainer.is_finished
    assert trainer.gradient_method == "all examples of a block at once"
    pairs = zip(before, both.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)
