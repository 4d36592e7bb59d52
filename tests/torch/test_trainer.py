# SPDX-License-Identifier: Apache-2.0
"""The trainer: exactly the plan's sums, noise and steps; nothing else is let in."""

import copy
import hashlib
import inspect
import itertools
import math
import tempfile
import time
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.torch.small import (
    LOSS,
    N_RECORDS,
    N_STEPS,
    clipped_sum,
    copy_of,
    digest_of,
    model_of,
    plan_of,
    records,
    train,
    trainer_of,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from pufferslice import ArgumentError, TrainingError, compose
from pufferslice.certificate import certify_training, verify
from pufferslice.errors import ReleaseError, RewindError
from pufferslice.noise import SIGMA_INT, draw_integers
from pufferslice.sgd import (
    Amplified,
    LayerClipping,
    MeanSquare,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    binomial,
    run_cost,
)
from pufferslice.sgd.grid import implementation_delta
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import Trainer
from pufferslice.torch import run as run_module
from pufferslice.torch.layout import ParameterLayout
from pufferslice.torch.model_checks import device_of


@pytest.fixture(autouse=True)
def _fixed_keys(monkeypatch, seed):
    """Runs in memory draw from known keys, a new one for each run."""
    numbers = itertools.count()

    def fresh():
        return RunKey.from_bytes(hashlib.sha256(f"{seed} {next(numbers)}".encode()).digest())

    monkeypatch.setattr(run_module.RunKey, "fresh", fresh)


EVERYONE = Poisson(n_records=N_RECORDS, rate=1.0)


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
def test_a_step_is_the_clipped_sum_and_keyed_noise_over_the_divisor(sampling, clip_norm):
    plan = plan_of(sampling=sampling, clip_norm=clip_norm)
    trainer, model, optimizer = watched(plan)
    before = copy.deepcopy(model)
    data = records()
    batch = next(trainer.batches(data))
    expected = clipped_sum(before, [one[batch.indices.tolist()] for one in data.tensors], clip_norm)
    noise_keys = []

    def drawn(noise_key, size):
        noise_keys.append(noise_key)
        return draw_integers(noise_key, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "draw_integers", drawn)
        trainer.step(batch)
    (noise_key,) = noise_keys
    noise = draw_integers(noise_key, len(expected)) * (plan.noise_stds(0)[0] / SIGMA_INT)
    found = optimizer.seen[0].double().numpy() * plan.divisor - noise
    scale = clip_norm * len(batch.indices)
    assert np.abs(found - expected).max() <= 1e-5 * scale + 1e-6 * np.abs(noise).max()
    assert np.abs(expected).max() > 1e-3 * scale


def test_the_realised_batch_size_never_divides():
    rate = 0.05
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=rate), n_steps=1)
    assert plan.divisor == pytest.approx(rate * N_RECORDS)
    trainer, _, optimizer = watched(attrs.evolve(plan, noise_multipliers=np.full(1, 1e6)))
    train(trainer)
    std = float(optimizer.seen[0].double().std())
    assert std == pytest.approx(1e6 / plan.divisor, rel=0.4)


def flat_loss(outputs, _targets):
    """A loss whose gradient is zero everywhere, so that a noisy sum is noise."""
    return 0.0 * outputs.sum(1)


def noise_seen(clipping, multiplier=4.0, sampling=EVERYONE):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12_000), nn.Linear(12_000, 5))
    plan = plan_of(
        n_steps=1, sampling=sampling, clip_norm=clipping, multipliers=np.full(1, multiplier)
    )
    optimizer = Watching(model.parameters())
    train(Trainer(model, flat_loss, optimizer, plan))
    return optimizer.seen[0].double().numpy(), plan


def p_value(draws, std):
    return stats.kstest(draws, stats.norm(scale=std).cdf).pvalue


@pytest.mark.soundness
@pytest.mark.statistical
def test_the_noise_in_the_gradient_has_the_plans_size():
    """120,005 coordinates: a scale that is off by a tenth has a p-value far below 1e-20."""
    seen, plan = noise_seen(0.5)
    std = 4.0 * 0.5 / plan.divisor
    found = {k: p_value(seen, k * std) for k in (0.9, 1.0, 1.1)}
    assert found[1.0] > 1e-20
    assert found[0.9] < 1e-20
    assert found[1.1] < 1e-20


@pytest.mark.soundness
@pytest.mark.statistical
def test_halved_noise_would_be_noticed(monkeypatch):
    monkeypatch.setattr(run_module, "draw_integers", lambda *a: draw_integers(*a) // 2)
    seen, plan = noise_seen(0.5)
    assert p_value(seen, 4.0 * 0.5 / plan.divisor) < 1e-20


@pytest.mark.soundness
@pytest.mark.statistical
def test_every_coordinate_of_every_layer_has_noise_of_its_own_size():
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
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=1e-9), n_steps=3)
    trainer, model, optimizer = watched(plan)
    before = digest_of(model)
    reports = train(trainer)
    assert [report.n_examples for report in reports] == [0, 0, 0]
    assert all(math.isnan(report.mean_loss) for report in reports)
    assert trainer.is_finished
    assert digest_of(model) != before
    assert all(torch.count_nonzero(one) == len(one) for one in optimizer.seen)


@pytest.mark.soundness
def test_steps_runs_and_changed_sums_never_share_noise():
    """Noise only: equal sums in different steps and runs must not show as equal gradients."""
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=1e-9), n_steps=4)
    seen = []
    for _ in range(2):
        trainer, _, optimizer = watched(plan)
        train(trainer)
        seen += [float(value) for one in optimizer.seen for value in one]
    assert len(seen) == len(set(seen))


@pytest.mark.soundness
def test_batches_are_those_of_the_design_and_differ_between_steps():
    plan = plan_of(sampling=WithoutReplacement(n_records=N_RECORDS, batch_size=20))
    trainer, _ = trainer_of(plan)
    drawn = []
    for batch in trainer.batches(records()):
        assert len(set(batch.indices.tolist())) == 20
        drawn.append(tuple(batch.indices))
        trainer.step(batch)
    assert len(drawn) == len(set(drawn)) == N_STEPS


def test_noise_follows_the_schedule_of_the_plan():
    multipliers = np.array([1e3, 1e5])
    plan = plan_of(multipliers=multipliers, sampling=EVERYONE)
    trainer, _, optimizer = watched(plan)
    train(trainer)
    stds = [float(one.double().std()) for one in optimizer.seen]
    assert stds == pytest.approx(multipliers / plan.divisor, rel=0.4)


# --- what may not change a bit


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.02, 0.5, 1.0]),
)
@settings(max_examples=12)
def test_threads_and_blocks_in_flight_change_no_bit(in_flight, n_threads, block, dropout, rate):
    plan = plan_of(n_steps=3, sampling=Poisson(n_records=N_RECORDS, rate=rate))
    plan = attrs.evolve(plan, block=block)
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as place:
        trainer_of(plan, model=model_of(dropout=dropout), folder=Path(place, "run"))
        digests = []
        for name, flying, threads in (("a", 1, 1), ("b", in_flight, n_threads)):
            folder = copy_of(Path(place, "run"), Path(place, name))
            trainer, model = trainer_of(
                plan, model=model_of(9, dropout), folder=folder, blocks_in_flight=flying
            )
            trainer.resume()
            try:
                torch.set_num_threads(threads)
                train(trainer)
                assert torch.get_num_threads() == threads
            finally:
                torch.set_num_threads(before)
            digests.append(digest_of(model))
    assert digests[0] == digests[1]


def test_wide_products_do_not_depend_on_threads(tmp_path):
    """Large enough for torch to share them out over threads, if it were allowed to."""

    def wide():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 700), nn.Tanh(), nn.Linear(700, 700), nn.Linear(700, 2))

    plan = attrs.evolve(plan_of(n_steps=2, sampling=EVERYONE), block=64)
    trainer_of(plan, model=wide(), optimizer=torch.optim.Adam, folder=tmp_path / "run")
    digests = set()
    before = torch.get_num_threads()
    for threads in (1, 2, 4):
        folder = copy_of(tmp_path / "run", tmp_path / str(threads))
        trainer, model = trainer_of(
            plan, model=wide(), optimizer=torch.optim.Adam, folder=folder, blocks_in_flight=threads
        )
        trainer.resume()
        try:
            torch.set_num_threads(threads)
            train(trainer)
        finally:
            torch.set_num_threads(before)
        digests.add(digest_of(model))
    assert len(digests) == 1


class Odd(nn.Module):
    """Uses its parameters in a way that only gradients of single examples know."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.weight = nn.Parameter(torch.randn(2, 4))
        self.scale = nn.Parameter(torch.randn(2, 1))

    def forward(self, inputs):
        return inputs @ torch.sinh(self.weight * self.scale).T


def test_unknown_uses_are_taken_example_by_example_with_the_same_bits(tmp_path):
    trainer_of(model=Odd(), folder=tmp_path / "run")
    digests = []
    for name, flying in (("a", 1), ("b", 4)):
        folder = copy_of(tmp_path / "run", tmp_path / name)
        trainer, model = trainer_of(model=Odd(), folder=folder, blocks_in_flight=flying)
        trainer.resume()
        held = list(model.parameters())
        train(trainer)
        assert trainer._sums.gradients.path == "per_example"
        assert all(now is before for now, before in zip(model.parameters(), held, strict=True))
        digests.append(digest_of(model))
    assert digests[0] == digests[1]


class Augmented(TensorDataset):
    """Random shifts, from torch's generator as transforms draw them."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + torch.randn(4), target


def test_random_augmentation_is_seeded_by_the_run(tmp_path):
    data = Augmented(*records().tensors)
    trainer_of(folder=tmp_path / "run")
    digests = []
    for name, flying in (("a", 1), ("b", 3)):
        folder = copy_of(tmp_path / "run", tmp_path / name)
        trainer, model = trainer_of(folder=folder, blocks_in_flight=flying)
        trainer.resume()
        torch.manual_seed(flying)
        train(trainer, data)
        digests.append(digest_of(model))
    assert digests[0] == digests[1]
    trainer, model = trainer_of(folder=copy_of(tmp_path / "run", tmp_path / "plain"))
    trainer.resume()
    train(trainer)
    assert digest_of(model) != digests[0]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("augmented", [False, True])
def test_the_callers_random_numbers_are_left_alone(dropout, augmented):
    trainer, _ = trainer_of(model=model_of(dropout=dropout))
    data = Augmented(*records().tensors) if augmented else records()
    state = torch.get_rng_state()
    train(trainer, data, n_steps=2)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:training takes a slow way")
def test_dropout_differs_between_examples_and_steps():
    masks = []

    class Drops(nn.Module):
        # an attribute of the class: the model itself is copied for each run
        seen = masks

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, inputs):
            mask = nn.functional.dropout(torch.ones(len(inputs), 64), 0.5)
            self.seen.append(tuple(mask.reshape(-1).tolist()))
            return self.linear(inputs) * mask.mean()

    trainer, _ = trainer_of(plan_of(sampling=EVERYONE), model=Drops())
    batches = trainer.batches(records())
    trainer.step(next(batches))
    assert trainer.gradient_method.startswith("one by one")
    del masks[:]
    trainer.step(next(batches))
    trainer.step(next(batches))
    assert len(masks) == len(set(masks)) == 2 * N_RECORDS


@pytest.mark.parametrize(("dropout", "most"), [(0.5, 1), (0.0, 2)])
def test_blocks_run_at_once_unless_the_model_draws_random_numbers(dropout, most):
    class Slow(nn.Module):
        # of the class: the model itself is copied for each run
        inside, seen = [], []

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, inputs):
            self.inside.append(1)
            time.sleep(0.02)
            self.seen.append(len(self.inside))
            self.inside.pop()
            return nn.functional.dropout(self.linear(inputs), dropout)

    trainer, _ = trainer_of(plan_of(sampling=EVERYONE), model=Slow(), blocks_in_flight=2)
    train(trainer, n_steps=2)
    assert trainer.gradient_method == "all examples of a block at once"
    assert max(Slow.seen) == most


def test_randomness_that_appears_later_is_refused():
    model = model_of(dropout=0.5)
    model[2].p = 0.0
    trainer, _ = trainer_of(model=model, blocks_in_flight=2)
    batches = trainer.batches(records())
    trainer.step(next(batches))
    model[2].p = 0.5
    weights = digest_of(model)
    state = torch.get_rng_state()
    with pytest.raises(TrainingError, match="the model drew random numbers"):
        trainer.step(next(batches))
    assert digest_of(model) == weights
    assert trainer.n_taken == 1
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_that_reckons_with_its_batch_trains_on_single_examples_and_says_so():
    model = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0), nn.Unflatten(0, (-1, 3)), nn.Linear(3, 2))
    model[1].forward = lambda values: (values * values.sum()).flatten()
    trainer, _ = trainer_of(model=model)
    with pytest.warns(UserWarning, match="batches of one"):
        train(trainer, n_steps=1)
    train(trainer, n_steps=1)


class Reading(nn.Module):
    """Reads a value of its inputs, but only in training mode."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.inner(inputs * inputs.max().item() if self.training else inputs)


@pytest.mark.soundness
@pytest.mark.filterwarnings("ignore:the model or loss_fn gives a batch other losses")
def test_a_model_in_another_mode_is_looked_at_again():
    model = Reading().eval()
    trainer, _ = trainer_of(model=model)
    assert "not known" in trainer.gradient_method
    batches = trainer.batches(records())
    trainer.step(next(batches))
    assert trainer.gradient_method == "all examples of a block at once"
    model.train()
    trainer.step(next(batches))
    assert trainer.gradient_method.startswith("one by one")


def test_dropout_may_be_turned_on_later():
    model = model_of(dropout=0.5).eval()
    trainer, _ = trainer_of(model=model)
    batches = trainer.batches(records())
    trainer.step(next(batches))
    model.train()
    train(trainer)
    assert trainer.is_finished


# --- ordinary PyTorch around it


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.NAdam],
)
def test_any_optimizer_uses_the_noisy_gradient_as_it_would_any_other(optimizer):
    seen = []
    trainer, model = trainer_of(optimizer=optimizer, schedule=True)
    trainer._learner.optimizer.register_step_pre_hook(
        lambda held, *_: seen.append([p.grad.clone() for p in held.param_groups[0]["params"]])
    )
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
    rates = [one.param_groups[0]["lr"] for one in (plain, trainer._learner.optimizer)]
    assert rates[0] == rates[1] == pytest.approx(0.1 * 0.5**3)


def test_the_model_is_not_wrapped_and_keeps_no_gradient():
    trainer, model = trainer_of()
    names, parts = list(model.state_dict()), [type(m) for m in model.modules()]
    train(trainer)
    assert list(model.state_dict()) == names
    assert [type(m) for m in model.modules()] == parts
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert model(torch.zeros(3, 4)).shape == (3, 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_model_is_trained_through_the_one_inside(tmp_path):
    trainer_of(folder=tmp_path / "run")
    digests = []
    for name in ("plain", "compiled"):
        inner = model_of()
        model = torch.compile(inner) if name == "compiled" else inner
        folder = copy_of(tmp_path / "run", tmp_path / name)
        trainer, _ = trainer_of(model=model, folder=folder)
        trainer.resume()
        train(trainer)
        digests.append(digest_of(inner))
    assert digests[0] == digests[1]


def test_float64_models_are_trained_in_float64():
    double = TensorDataset(records().tensors[0].double(), records().tensors[1])
    trainer, _, optimizer = watched(model=model_of().double())
    train(trainer, double)
    assert optimizer.seen[0].dtype == torch.float64


def test_frozen_parameters_stay_and_get_no_noise():
    model = model_of()
    model[0].requires_grad_(requires_grad=False)
    before = digest_of(model[0])
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    trainer = Trainer(model, LOSS, optimizer, plan_of())
    train(trainer)
    assert digest_of(model[0]) == before
    assert model[0].weight.grad is None


def test_there_is_no_knob_for_accumulation_noise_or_divisor():
    assert list(inspect.signature(Trainer).parameters) == [
        "model",
        "loss_fn",
        "optimizer",
        "plan",
        "folder",
        "scheduler",
        "blocks_in_flight",
    ]
    assert list(inspect.signature(Trainer.step).parameters) == ["self", "batch"]


def test_a_model_learns_when_the_noise_is_small():
    plan = plan_of(multipliers=np.full(40, 0.05), sampling=EVERYONE)
    model = model_of()
    trainer = Trainer(model, LOSS, torch.optim.SGD(model.parameters(), lr=2.0), plan)
    reports = train(trainer)
    inputs, targets = records().tensors
    assert float((model(inputs).argmax(1) == targets).float().mean()) > 0.9
    assert reports[-1].mean_loss < 0.5 * reports[0].mean_loss


def test_a_report_tells_what_the_step_saw():
    trainer, model = trainer_of(plan_of(sampling=EVERYONE))
    inputs, targets = records().tensors
    expected = LOSS(model(inputs), targets).mean().item()
    batch = next(trainer.batches(records()))
    report = trainer.step(batch)
    assert report.n_examples == N_RECORDS
    assert report.mean_loss == pytest.approx(expected, rel=1e-6)
    assert report.n_non_finite == 0
    assert report.seconds > 0


# --- cost


@pytest.mark.parametrize("accountant", [None, Amplified(), MeanSquare()])
def test_the_certificate_is_the_plans_whatever_was_taken(accountant):
    plan = plan_of(accountant=accountant)
    trainer, _ = trainer_of(plan)
    early = trainer.certificate(data="survey")
    train(trainer, n_steps=2)
    certificate = trainer.certificate(data="survey")
    assert certificate.guarantee == plan.guarantee()
    assert certificate.digest == early.digest
    assert certificate.statement["data"] == "survey"
    n_parameters = sum(p.numel() for p in model_of().parameters())
    delta = certificate.statement["implementation_delta"]
    assert delta == implementation_delta(plan, n_parameters) > 0
    assert "slightly less than the plan's norms" in str(certificate)
    verify(certificate)


def test_without_a_name_of_the_data_certificates_do_not_compose():
    certificates = [trainer_of()[0].certificate() for _ in range(2)]
    with pytest.raises(ValueError, match="different data"):
        compose(certificates)
    named = [trainer_of()[0].certificate(data="survey") for _ in range(2)]
    both = compose(named).guarantee.epsilon
    assert both == pytest.approx(2 * plan_of().guarantee().epsilon)


def test_what_is_spent_is_the_cost_of_the_steps_so_far():
    plan = plan_of(multipliers=np.linspace(3, 8, N_STEPS))
    trainer, _ = trainer_of(plan)
    with pytest.raises(TrainingError, match="no step"):
        trainer.spent()
    for taken, batch in enumerate(trainer.batches(records()), start=1):
        trainer.step(batch)
        assert trainer.n_taken == taken
        expected = run_cost(
            plan.accountant,
            plan.order,
            plan.sampling,
            plan.differing,
            plan.noise_multipliers[:taken],
        )
        assert trainer.spent().epsilon == pytest.approx(expected, rel=1e-12)
    assert trainer.spent() == plan.guarantee()


def test_a_stop_certifies_the_steps_taken_and_says_what_it_assumes():
    differing = binomial(n_records=N_RECORDS, mismatch_probability=0.05)
    plan = attrs.evolve(plan_of(), differing=differing)
    trainer, model = trainer_of(plan)
    train(trainer, n_steps=2)
    weights = digest_of(model)
    certificate = trainer.stop(independent_of_data=True, data="survey")
    cut = attrs.evolve(plan, noise_multipliers=plan.noise_multipliers[:2])
    assert certificate.guarantee == cut.guarantee()
    assert certificate.guarantee.epsilon < plan.guarantee().epsilon
    assert "stopped after 2 of 6 planned steps" in str(certificate)
    assert "did not depend on the data" in str(certificate)
    verify(certificate)
    assert trainer.is_finished
    assert trainer._run._key.is_destroyed
    assert list(trainer.batches(records())) == []
    assert digest_of(model) == weights
    assert trainer.certificate().guarantee == plan.guarantee()
    with pytest.raises(TrainingError, match="nothing to stop"):
        trainer.stop(independent_of_data=True)


@pytest.mark.parametrize("said", [False, None, 1, "yes", np.True_])
def test_a_stop_must_be_said_to_be_independent_of_the_data(said):
    trainer, _ = trainer_of()
    train(trainer, n_steps=1)
    with pytest.raises(ArgumentError, match="independent_of_data must be True"):
        trainer.stop(independent_of_data=said)
    assert not trainer.is_finished


def test_a_run_without_steps_cannot_be_stopped():
    with pytest.raises(TrainingError, match="nothing to stop"):
        trainer_of()[0].stop(independent_of_data=True)


def test_the_key_is_destroyed_after_the_last_step():
    trainer, _ = trainer_of()
    key = trainer._run._key
    train(trainer)
    assert trainer.is_finished
    assert key.is_destroyed
    with pytest.raises(ReleaseError, match="destroyed"):
        key.batch_key(0)


# --- steps outside the plan


def test_more_steps_than_the_plan_has_are_refused():
    trainer, _ = trainer_of(plan_of(n_steps=2))
    batches = trainer.batches(records())
    batch = next(batches)
    train(trainer)
    with pytest.raises(TrainingError, match="over after 2 of 2 planned steps"):
        trainer.step(batch)
    assert list(trainer.batches(records())) == []


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


def test_a_batch_is_used_once():
    trainer, _ = trainer_of()
    batch = next(trainer.batches(records()))
    trainer.step(batch)
    with pytest.raises(TrainingError, match="of step 0 and the next step is 1"):
        trainer.step(batch)


def test_a_batch_cannot_be_left_out():
    trainer, _ = trainer_of()
    batches = trainer.batches(records())
    next(batches)
    with pytest.raises(TrainingError, match="step 0 was not trained on"):
        next(batches)


def test_a_loop_that_was_left_goes_on_with_the_same_batch():
    trainer, _ = trainer_of()
    first = next(trainer.batches(records()))
    again = next(trainer.batches(records()))
    assert first.indices.tolist() == again.indices.tolist()
    trainer.step(again)
    with pytest.raises(TrainingError, match="each batch is used once"):
        trainer.step(first)


class Growing(TensorDataset):
    extra = 0

    def __len__(self):
        return super().__len__() + self.extra


def test_a_dataset_that_changes_length_is_refused():
    data = Growing(*records().tensors)
    trainer, _ = trainer_of()
    with pytest.raises(TrainingError, match="has 50 records and the plan has 60"):
        trainer.batches(records(50))
    batch = next(trainer.batches(data))
    data.extra = 1
    with pytest.raises(TrainingError, match="has 61 records and the plan has 60"):
        trainer.step(batch)
    data.extra = 0
    trainer.step(batch)


def test_the_plan_cannot_be_changed():
    trainer, _ = trainer_of()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        trainer.plan.block = 3
    with pytest.raises(ValueError, match="read-only"):
        trainer.plan.noise_multipliers[0] = 0.1


def test_save_and_resume_need_a_folder():
    trainer, _ = trainer_of()
    for attempt in (trainer.save, trainer.resume):
        with pytest.raises(TrainingError, match="folder"):
            attempt()


# --- bad input


def made(model=None, loss_fn=LOSS, optimizer=None, plan=None, **given):
    model = model_of() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, loss_fn, optimizer, plan or plan_of(), **given)


class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        return closure()


def test_optimizers_that_evaluate_the_loss_again_are_refused():
    model = model_of()
    for optimizer in (torch.optim.LBFGS(model.parameters()), NeedsClosure(model.parameters(), 0.1)):
        with pytest.raises(ArgumentError, match=f"{type(optimizer).__name__} evaluates the loss"):
            made(model, optimizer=optimizer)


def test_optimizers_of_other_parameters_are_refused():
    model = model_of()
    with pytest.raises(ArgumentError, match="not a trainable parameter of the model"):
        made(model, optimizer=torch.optim.SGD(model_of().parameters(), lr=0.1))
    with pytest.raises(ArgumentError, match=r"'0.weight' is not in the optimizer"):
        made(model, optimizer=torch.optim.SGD(model[2].parameters(), lr=0.1))
    with pytest.raises(ArgumentError, match=r"torch.optim.Optimizer, got str"):
        made(model, optimizer="sgd")


def test_a_parameter_that_joins_later_gets_no_private_gradient():
    trainer, _ = trainer_of()
    batches = trainer.batches(records())
    trainer.step(next(batches))
    extra = nn.Parameter(torch.zeros(2))
    trainer._learner.optimizer.add_param_group({"params": [extra]})
    with pytest.raises(ArgumentError, match="would get no noise"):
        trainer.step(next(trainer.batches(records())))


@pytest.mark.parametrize("change", ["freeze", "half", "replace", "norm"])
def test_a_model_that_changes_is_refused(change):
    trainer, model = trainer_of()
    batches = trainer.batches(records())
    trainer.step(next(batches))
    if change == "freeze":
        model[0].weight.requires_grad_(requires_grad=False)
    elif change == "half":
        model.half()
    elif change == "replace":
        model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    else:
        model.append(nn.BatchNorm1d(2, affine=False))
    with pytest.raises(ArgumentError, match=r"was made with|cannot be trained under a plan"):
        trainer.step(next(batches))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), "replace_batchnorm"),
        (lambda: model_of().half(), r"model.float\(\)"),
        (lambda: nn.DataParallel(model_of()), "one trainer per process"),
        (lambda: model_of().requires_grad_(requires_grad=False), "no trainable parameter"),
    ],
    ids=["batch norm", "half", "data parallel", "frozen"],
)
def test_models_that_cannot_follow_a_plan_are_refused(model, match):
    with pytest.raises(ArgumentError, match=match):
        made(model())


def test_schedules_that_go_by_a_metric_are_refused():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = torch.optim.lr_scheduler
    for scheduler, match in (
        (schedules.ReduceLROnPlateau(optimizer), "goes by a metric"),
        (
            schedules.StepLR(torch.optim.SGD(model_of().parameters(), lr=0.1), 1),
            "another optimizer",
        ),
        ("cosine", "got str"),
    ):
        with pytest.raises(ArgumentError, match=match):
            made(model, optimizer=optimizer, scheduler=scheduler)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"plan": {"n_steps": 5}}, "plan must be a TrainingPlan, got dict"),
        ({"loss_fn": "cross entropy"}, "loss_fn must be a function"),
        ({"blocks_in_flight": 0}, "blocks_in_flight"),
        ({"blocks_in_flight": 1.5}, "blocks_in_flight"),
    ],
)
def test_other_arguments_are_refused(given, match):
    with pytest.raises(ArgumentError, match=match):
        made(**given)


def test_noise_that_leaves_no_room_is_refused_before_any_step():
    multipliers = np.array([4.0, 1e-8])
    with pytest.raises(ArgumentError, match="would not fit 64 bits"):
        made(plan=plan_of(multipliers=multipliers))


def test_mixed_precision_is_refused():
    trainer, _ = trainer_of()
    batches = trainer.batches(records())
    batch = next(batches)
    with torch.autocast("cpu"), pytest.raises(ArgumentError, match=r"torch.autocast"):
        trainer.step(batch)
    with torch.inference_mode(), pytest.raises(ArgumentError, match="inference mode"):
        trainer.step(batch)
    trainer.step(batch)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_reduced_products_are_refused_at_every_step(precision):
    trainer, _ = trainer_of()
    batch = next(trainer.batches(records()))
    double, _ = trainer_of(model=model_of().double())
    try:
        torch.set_float32_matmul_precision(precision)
        with pytest.raises(ArgumentError, match=r"torch.backends.mkldnn.matmul.fp32_precision"):
            trainer.step(batch)
        data = TensorDataset(records().tensors[0].double(), records().tensors[1])
        train(double, data, n_steps=1)
    finally:
        torch.set_float32_matmul_precision("highest")
    trainer.step(batch)


class Halfway(torch.optim.SGD):
    """Moves the weights of its first step, and raises."""

    def step(self, closure=None):
        super().step(closure)
        if not getattr(self, "raised", False):
            self.raised = True
            msg = "halfway"
            raise ValueError(msg)


@pytest.mark.soundness
def test_a_step_whose_noise_was_used_is_not_taken_again_with_other_sums():
    """Without a folder there is no ledger; the plan charges each step once all the same."""
    trainer, model = trainer_of(optimizer=Halfway)
    before = digest_of(model)
    batch = next(trainer.batches(records()))
    with pytest.raises(ValueError, match="halfway"):
        trainer.step(batch)
    moved = digest_of(model)
    assert moved != before
    with pytest.raises(RewindError, match=r"step 0 was taken before with other sums"):
        trainer.step(batch)
    assert digest_of(model) == moved


def test_steps_work_inside_no_grad():
    trainer, _ = trainer_of()
    with torch.no_grad():
        train(trainer)
    assert trainer.is_finished


def test_other_devices_are_refused():
    meta = nn.Parameter(torch.zeros(2, device="meta"))
    layout = ParameterLayout(names=("a",), parameters=(meta,), layers=(0,), n_layers=1)
    with pytest.raises(ArgumentError, match="they are on meta"):
        device_of(layout)


def test_a_mean_loss_is_refused():
    trainer = made(loss_fn=nn.CrossEntropyLoss())
    with pytest.raises(ArgumentError, match="reduction='none'"):
        train(trainer)


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


def test_a_plan_may_stop_at_such_an_example():
    plan = attrs.evolve(plan_of(sampling=EVERYONE), non_finite="stop")
    trainer, model = trainer_of(plan, blocks_in_flight=2)
    before = digest_of(model)
    with pytest.raises(TrainingError, match="the plan says 'stop'"):
        train(trainer, with_nan())
    assert digest_of(model) == before
    assert trainer.n_taken == 0
    train(trainer)
    assert trainer.is_finished


@pytest.mark.parametrize("step", [0, 1])
def test_labels_out_of_range_stop_the_step_and_are_not_shown(step):
    inputs, targets = records().tensors
    trainer, model = trainer_of(plan_of(sampling=EVERYONE), blocks_in_flight=2)
    train(trainer, n_steps=step)
    before = digest_of(model)
    threads = torch.get_num_threads()
    with pytest.raises(TrainingError, match="labels out of range") as caught:
        train(trainer, TensorDataset(inputs, targets + 777))
    assert "77" not in str(caught.value)
    assert trainer.n_taken == step
    assert digest_of(model) == before
    assert torch.get_num_threads() == threads
    train(trainer)


def test_certified_by_the_same_function_as_a_plan():
    trainer, _ = trainer_of()
    plain = certify_training(plan_of(), data="survey")
    own = trainer.certificate(data="survey")
    assert own.statement["runs"] == plain.statement["runs"]
    assert own.guarantee == plain.guarantee
