# SPDX-License-Identifier: Apache-2.0
"""Loops of the user's own under a plan: what they train, what their noise is, what is refused."""

import copy
import io
import pickle

import attrs
import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import pufferslice.noise
from pufferslice import ArgumentError, Guarantee, PuffersliceError, TrainingError
from pufferslice.certificate import verify
from pufferslice.sgd import (
    Amplified,
    LayerClipping,
    LogMoment,
    Poisson,
    WithoutReplacement,
    WithReplacement,
    exactly,
    plan_training,
    plan_with_noise,
    run_cost,
)
from pufferslice.sgd.run_key import RunKey
from pufferslice.torch import own_loop
from pufferslice.torch.own_loop import PrivateOptimizer, make_private
from pufferslice.torch.trainer import Trainer

DIM = 6
N_CLASSES = 3
N_RECORDS = 40
cross_entropy = nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


@pytest.fixture
def without_noise(monkeypatch):
    """Noise drawn as zeros, so that clipped sums can be seen."""
    monkeypatch.setattr(
        pufferslice.noise, "_draw", lambda _key, size, *_: np.zeros(size, dtype=np.int64)
    )


@pytest.fixture
def fixed_key(monkeypatch):
    """Every run has the same key."""
    monkeypatch.setattr(RunKey, "fresh", classmethod(lambda cls: cls.from_bytes(bytes(range(32)))))


@pytest.fixture
def records(seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(N_RECORDS, DIM, generator=generator)
    return TensorDataset(inputs, torch.randint(N_CLASSES, (N_RECORDS,), generator=generator))


def plan_of(*, sampling=None, clip_norm=0.5, n_steps=3, noise=1.0, block=4, **changes):
    plan = plan_with_noise(
        differing=exactly(2),
        sampling=sampling or WithoutReplacement(n_records=N_RECORDS, batch_size=10),
        clip_norm=clip_norm,
        noise_multipliers=np.full(n_steps, noise),
        accountant=LogMoment(),
        order=8.0,
    )
    return attrs.evolve(plan, block=block, **changes)


def linear():
    return nn.Linear(DIM, N_CLASSES)


def perceptron():
    return nn.Sequential(nn.Linear(DIM, 5), nn.Tanh(), nn.Linear(5, N_CLASSES))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, DIM)),
        nn.Conv1d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ELU(),
        nn.Flatten(),
        nn.Linear(4 * DIM, N_CLASSES),
    )


class Recurrent(nn.Module):
    """A model whose gradients are taken example by example, or by its cells."""

    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(1, 4, batch_first=True)
        self.head = nn.Linear(4, N_CLASSES)

    def forward(self, inputs):
        return self.head(self.cells(inputs.unsqueeze(-1))[0][:, -1])


class Several(nn.Module):
    """A model that gives more than one output."""

    def __init__(self):
        super().__init__()
        self.first, self.second = linear(), nn.Linear(DIM, 2)

    def forward(self, inputs):
        logits = self.first(inputs)
        return {"logits": logits, "rest": (self.second(inputs), logits.argmax(1), None)}


def private(model, dataset, plan, *, loss_reduction="mean", lr=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return make_private(model, optimizer, dataset, plan, loss_reduction=loss_reduction)


def backward(model, batch, reduction="mean"):
    inputs, targets = batch
    loss = cross_entropy(model(inputs), targets, reduction=reduction)
    loss.backward()
    return loss


def updates(model, optimizer):
    """What a step subtracts from the parameters at learning rate 1."""
    before = [p.detach().double().clone() for p in model.parameters()]
    optimizer.step()
    changes = (a - p.detach().double() for a, p in zip(before, model.parameters(), strict=True))
    return torch.cat([one.flatten() for one in changes])


def clipped_mean(model, batch, plan, norms=None):
    """One example at a time, by autograd; clipped in float64."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for example, target in zip(*batch, strict=True):
        loss = cross_entropy(model(example[None]), target[None])
        parts = torch.autograd.grad(loss, list(model.parameters()))
        parts = [part.double().flatten() for part in parts]
        if norms is None:
            whole = torch.cat(parts)
            total += whole * min(1.0, plan.clipping.norms[0] / float(whole.norm()))
        else:
            layers = [torch.cat(parts[:2]), torch.cat(parts[2:])]
            pairs = zip(layers, norms, strict=True)
            total += torch.cat([one * min(1.0, c / float(one.norm())) for one, c in pairs])
    return total / plan.divisor


def test_three_lines_make_a_loop_private(fixed_key):
    digits = load_digits()
    dataset = TensorDataset(
        torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    )
    plan = plan_training(
        differing=exactly(1),
        sampling=Poisson(n_records=len(dataset), rate=0.2),
        clip_norm=1.0,
        n_steps=20,
        accountant=Amplified(),
        target=Guarantee.unsliced(order=8, epsilon=8.0),
    )
    given = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(given.parameters(), lr=2.0, momentum=0.5)
    keys = list(given.state_dict())
    model, optimizer, loader = make_private(given, optimizer, dataset, plan, loss_reduction="mean")
    assert model is given
    assert list(model.state_dict()) == keys
    assert len(loader) == 5
    sizes = []
    for _ in range(4):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            sizes.append(len(images))
    assert len(sizes) == optimizer.n_taken == 20
    assert len(set(sizes)) > 5
    with torch.no_grad():
        right = model(dataset.tensors[0]).argmax(1) == dataset.tensors[1]
    assert right.double().mean() > 0.7
    certificate = optimizer.certificate(data="digits")
    assert certificate.statement["guarantee"]["epsilon"] == plan.guarantee().epsilon
    assert certificate.statement["data"] == "digits"
    assert "loss-outside-program" in certificate.statement["limits"]
    assert certificate.statement["implementation_delta"] > 0
    assert verify(certificate).holds
    assert optimizer.spent() == plan.guarantee()


@pytest.mark.filterwarnings("ignore:training takes a slow way")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("make_model", [linear, perceptron, convolutional, Recurrent])
def test_sums_are_those_of_single_examples(make_model, reduction, records, without_noise):
    plan = plan_of(clip_norm=0.3)
    model, optimizer, loader = private(make_model(), records, plan, loss_reduction=reduction)
    for batch in loader:
        copied = copy.deepcopy(model)
        expected = clipped_mean(copied, batch, plan)
        backward(model, batch, reduction)
        found = updates(model, optimizer)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert optimizer.n_taken == 3


def test_layers_are_clipped_one_by_one(records, without_noise):
    norms = (0.1, 0.4)
    clipping = LayerClipping(
        names=("0", "2"), norms=norms, sizes=(DIM * 5 + 5, 18), allocation="equal"
    )
    plan = plan_of(clip_norm=clipping)
    model, optimizer, loader = private(perceptron(), records, plan)
    batch = next(iter(loader))
    expected = clipped_mean(copy.deepcopy(model), batch, plan, norms)
    backward(model, batch)
    assert (updates(model, optimizer) - expected).norm() <= 1e-5 * expected.norm()


@hypothesis.given(
    batch_size=st.integers(1, 20), block=st.integers(1, 9), clip_norm=st.floats(0.01, 10)
)
@hypothesis.settings(
    max_examples=20, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_sums_hold_for_any_batch_block_and_norm(
    batch_size, block, clip_norm, records, without_noise
):
    sampling = WithReplacement(n_records=N_RECORDS, batch_size=batch_size)
    plan = plan_of(sampling=sampling, block=block, clip_norm=clip_norm, n_steps=1)
    model, optimizer, loader = private(perceptron(), records, plan)
    batch = next(iter(loader))
    assert len(batch[0]) == batch_size
    expected = clipped_mean(copy.deepcopy(model), batch, plan)
    backward(model, batch)
    found = updates(model, optimizer)
    assert (found - expected).norm() <= 1e-5 * expected.norm() + 1e-7
    assert found.norm() <= clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("make_model", [perceptron, convolutional])
def test_weights_are_those_of_a_trainer_up_to_rounding(
    make_model, records, without_noise, fixed_key
):
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=0.3), n_steps=6)
    theirs = make_model()
    ours = copy.deepcopy(theirs)
    trainer = Trainer(
        theirs,
        nn.CrossEntropyLoss(reduction="none"),
        torch.optim.SGD(theirs.parameters(), lr=0.5),
        plan,
    )
    for batch in trainer.batches(records):
        trainer.step(batch)
    _, optimizer, loader = private(ours, records, plan, lr=0.5)
    for _ in range(2):
        for batch in loader:
            backward(ours, batch)
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (mine - other).norm() <= 1e-5 * other.norm()


def test_a_step_adds_the_noise_of_its_key_once(records, monkeypatch):
    drawn = []
    true_draw = pufferslice.noise._draw

    def spied(key, size, *rest):
        drawn.append(true_draw(key, size, *rest))
        return drawn[-1]

    monkeypatch.setattr(pufferslice.noise, "_draw", spied)
    plan = plan_of(n_steps=1, noise=0.01)
    model, optimizer, loader = private(perceptron(), records, plan)
    batch = next(iter(loader))
    expected = clipped_mean(copy.deepcopy(model), batch, plan)
    backward(model, batch)
    found = updates(model, optimizer)
    assert len(drawn) == 1
    assert len(drawn[0]) == len(found)
    noise = drawn[0] * (0.01 * 0.5 / pufferslice.noise.SIGMA_INT / plan.divisor)
    apart = found - torch.from_numpy(noise) - expected
    assert apart.norm() <= 1e-5 * expected.norm()
    assert np.linalg.norm(noise) > 1e-3 * expected.norm()


@pytest.mark.statistical
@pytest.mark.soundness
@pytest.mark.parametrize("empty", [True, False])
def test_noise_has_the_planned_scale(empty, records, fixed_key):
    """100,003 coordinates of one step; on data, the clipped sum is far below the noise."""
    model = nn.Linear(DIM, 14_286 + 1, bias=True)
    rate = 2.0**-60 if empty else 0.5
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=rate), noise=50.0, n_steps=1)
    std = 50.0 * 0.5 / plan.divisor
    model, optimizer, loader = private(model, records, plan, loss_reduction="sum", lr=1.0 / std)
    inputs, _ = next(iter(loader))
    if not empty:
        model(inputs).square().sum().backward()
    noise = updates(model, optimizer).numpy()
    by_scale = {k: kstest(noise, norm(scale=k).cdf).pvalue for k in (0.9, 1.0, 1.1)}
    assert by_scale[1.0] > 1e-20
    assert by_scale[0.9] < 1e-20
    assert by_scale[1.1] < 1e-20


def test_an_empty_batch_has_shapes_and_is_a_step(records, fixed_key):
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=2.0**-60), n_steps=3)
    model, optimizer, loader = private(convolutional(), records, plan)
    batches = iter(loader)
    inputs, targets = next(batches)
    assert inputs.shape == (0, DIM)
    assert targets.shape == (0,)
    assert targets.dtype == torch.int64
    backward(model, (inputs, targets))
    assert updates(model, optimizer).abs().min() > 0
    next(batches)
    assert updates(model, optimizer).isfinite().all()
    with pytest.raises(TrainingError, match="no batch was taken from the loader"):
        optimizer.step()
    assert optimizer.n_taken == 2


class Halved(nn.Module):
    """Changes its inputs in place."""

    def forward(self, inputs):
        return inputs.mul_(0.5)


@pytest.mark.parametrize("first", [nn.Identity, Halved])
def test_the_loss_is_computed_with_the_dropout_that_the_step_uses(first, records, without_noise):
    """The identity shows which inputs were dropped; the gradient must have dropped the same."""
    model = nn.Sequential(first(), nn.Dropout(0.5), nn.Linear(DIM, DIM, bias=False))
    nn.init.eye_(model[2].weight)
    plan = plan_of(clip_norm=1e3)
    model, optimizer, loader = private(model, records, plan, loss_reduction="sum")
    state = torch.get_rng_state()
    inputs, _ = next(iter(loader))
    outputs = model(inputs)
    assert not torch.equal(state, torch.get_rng_state())
    assert 0.2 < (outputs == 0).double().mean() < 0.8
    (outputs.square().sum() / 2).backward()
    after = torch.get_rng_state()
    found = updates(model, optimizer).reshape(DIM, DIM)
    assert torch.equal(after, torch.get_rng_state())
    expected = (outputs.mT @ outputs).detach().double() / plan.divisor
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:training takes a slow way")
def test_random_models_that_need_single_examples_are_refused(records, monkeypatch):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(DIM, N_CLASSES))

        def forward(self, inputs):
            scale = 1.0 if inputs.isfinite().all() else 0.0
            return nn.functional.dropout(inputs, 0.5) @ self.weight * scale

    model, optimizer, loader = private(Odd(), records, plan_of())
    batch = next(iter(loader))
    backward(model, batch)
    with pytest.raises(TrainingError, match=r"draws random numbers.*train it with Trainer"):
        optimizer.step()
    assert optimizer.n_taken == 0


def test_models_may_give_several_outputs(records, without_noise):
    plan = plan_of(clip_norm=1e3)
    model, optimizer, loader = private(Several(), records, plan)
    plain = copy.deepcopy(model)
    inputs, targets = next(iter(loader))
    outputs = model(inputs)
    assert outputs["rest"][1].dtype == torch.int64
    assert outputs["rest"][2] is None
    (cross_entropy(outputs["logits"], targets) + outputs["rest"][0].square().mean()).backward()
    found = updates(model, optimizer)
    again = plain(inputs)
    (cross_entropy(again["logits"], targets) + again["rest"][0].square().mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in plain.parameters()]).double()
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_outputs_that_the_loss_leaves_out_have_no_gradient(records, without_noise):
    model, optimizer, loader = private(Several(), records, plan_of())
    inputs, targets = next(iter(loader))
    cross_entropy(model(inputs)["logits"], targets).backward()
    found = updates(model, optimizer)
    assert found[: DIM * N_CLASSES].abs().max() > 0
    assert not found[DIM * N_CLASSES + N_CLASSES :].any()


@pytest.mark.parametrize(
    ("outputs", "match"),
    [
        (lambda out: (out, out.mean()), r"an output of shape \(\) for 10 examples"),
        (lambda out: out.mT, r"an output of shape \(3, 10\) for 10 examples"),
        (lambda out: out.argmax(1), "must give a tensor of numbers"),
    ],
)
def test_outputs_that_join_examples_are_refused(outputs, match, records):
    class Joining(nn.Linear):
        def forward(self, inputs):
            return outputs(super().forward(inputs))

    model, _, loader = private(Joining(DIM, N_CLASSES), records, plan_of())
    inputs, _ = next(iter(loader))
    with pytest.raises(ArgumentError, match=match):
        model(inputs)


def test_models_that_mix_examples_are_refused_at_the_step(records):
    class Mixing(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs - inputs.mean(0))

    model, optimizer, loader = private(Mixing(DIM, N_CLASSES), records, plan_of())
    before = copy.deepcopy(model.state_dict())
    backward(model, next(iter(loader)))
    with pytest.raises(PuffersliceError, match="mixes examples"):
        optimizer.step()
    assert optimizer.n_taken == 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "sampling",
    [
        Poisson(n_records=N_RECORDS, rate=0.5),
        WithoutReplacement(n_records=N_RECORDS, batch_size=10),
        WithReplacement(n_records=N_RECORDS, batch_size=10),
    ],
    ids=lambda design: design.name,
)
def test_batches_are_drawn_afresh_and_again_until_their_step(sampling, records):
    plan = plan_of(sampling=sampling, n_steps=4)
    model, optimizer, loader = private(linear(), records, plan)
    first = next(iter(loader))
    again = next(iter(loader))
    assert torch.equal(first[0], again[0])
    rows = {tuple(row) for row in records.tensors[0].tolist()}
    assert all(tuple(row) in rows for row in first[0].tolist())
    backward(model, again)
    optimizer.step()
    assert not torch.equal(next(iter(loader))[0], first[0])


def test_passes_end_with_the_plan(records):
    plan = plan_of(sampling=Poisson(n_records=N_RECORDS, rate=0.4), n_steps=3)
    model, optimizer, loader = private(linear(), records, plan)
    assert len(loader) == 2
    counts = []
    for _ in range(2):
        counts.append(0)
        for batch in loader:
            if len(batch[0]):
                backward(model, batch)
            optimizer.step()
            counts[-1] += 1
    assert counts == [2, 1]
    with pytest.raises(TrainingError, match="over after 3 of 3 planned steps; a longer run needs"):
        iter(loader)
    with pytest.raises(TrainingError, match="over after 3 of 3"):
        optimizer.step()


def test_the_end_leaves_the_model_and_the_optimizer_as_they_were(records):
    given = torch.optim.SGD((model := linear()).parameters(), lr=0.1)
    model, optimizer, loader = make_private(
        model, given, records, plan_of(n_steps=1), loss_reduction="mean"
    )
    batch = next(iter(loader))
    assert len(model._forward_hooks) == len(model._forward_pre_hooks) == 1
    assert backward(model, batch).requires_grad
    optimizer.step()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    backward(model, batch)
    assert model.weight.grad is not None
    given.step()
    optimizer.close()
    assert optimizer.certificate().statement["data"].startswith("the data of run ")


def test_a_run_can_be_closed_early(records):
    plan = plan_of(n_steps=5)
    model, optimizer, loader = private(linear(), records, plan)
    with pytest.raises(TrainingError, match="nothing has been spent"):
        optimizer.spent()
    backward(model, next(iter(loader)))
    optimizer.step()
    one = run_cost(LogMoment(), 8.0, plan.sampling, plan.differing, plan.noise_multipliers[:1])
    assert optimizer.spent().epsilon == pytest.approx(one)
    optimizer.close()
    with pytest.raises(TrainingError, match="over after 1 of 5"):
        iter(loader)
    statement = optimizer.certificate().statement
    assert statement["guarantee"]["epsilon"] == plan.guarantee().epsilon > optimizer.spent().epsilon


def test_schedulers_and_states_are_those_of_the_given_optimizer(records):
    model = linear()
    given = torch.optim.Adam(model.parameters(), lr=0.1)
    early = torch.optim.lr_scheduler.StepLR(given, 1, gamma=0.5)
    model, optimizer, loader = make_private(model, given, records, plan_of(), loss_reduction="mean")
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    assert isinstance(optimizer, PrivateOptimizer)
    for batch in loader:
        backward(model, batch)
        optimizer.step()
        early.step()
        late.step()
        break
    assert given.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 * 0.1)
    assert len(optimizer.state) == len(given.state) == 2
    state = optimizer.state_dict()
    assert state["param_groups"] == given.state_dict()["param_groups"]
    optimizer.load_state_dict(state)
    assert optimizer.param_groups is given.param_groups
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)


def test_copies_of_the_model_are_free(records):
    model, optimizer, loader = private(linear(), records, plan_of())
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    batch = next(iter(loader))
    for other in (copy.deepcopy(model), loaded):
        backward(other, batch)
        assert other.weight.grad is not None
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        pickle.dumps(optimizer)
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.deepcopy(optimizer)
    backward(model, batch)
    optimizer.step()


def test_the_model_can_be_evaluated_at_any_time(records):
    model, optimizer, loader = private(linear(), records, plan_of())
    public = torch.randn(7, DIM)
    model(public).sum().backward()
    for batch in loader:
        with torch.no_grad():
            model(public)
            model(batch[0])
        optimizer.zero_grad()
        backward(model, batch)
        with torch.no_grad():
            assert model(public).shape == (7, N_CLASSES)
        optimizer.step()
    assert optimizer.n_taken == 3


def test_outputs_may_be_changed_in_place_and_inputs_be_views(records, without_noise):
    plan = plan_of(clip_norm=1e3)
    flat = nn.Sequential(nn.Flatten(), linear())
    model, optimizer, loader = private(flat, records, plan)
    inputs, targets = next(iter(loader))
    expected = clipped_mean(copy.deepcopy(model), (inputs, targets), plan)
    outputs = model(inputs.view(-1, 2, DIM // 2))
    outputs *= 2.0
    inputs.zero_()
    (cross_entropy(outputs / 2.0, targets)).backward()
    assert (updates(model, optimizer) - expected).norm() <= 1e-5 * expected.norm()


def step_after(use):
    """A test of one batch that is used in some wrong way; nothing of it may change the model."""

    def run(records, match, error=TrainingError, model=None):
        model, optimizer, loader = private(model or linear(), records, plan_of())
        before = copy.deepcopy(model.state_dict())
        batch = next(iter(loader))
        with pytest.raises(error, match=match):  # noqa: PT012 - some raise before the step
            use(model, optimizer, batch)
            optimizer.step()
        assert optimizer.n_taken == 0
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())

    return run


def two_backwards(model, _, batch):
    loss = cross_entropy(model(batch[0]), batch[1])
    loss.backward(retain_graph=True)
    loss.backward()


def penalty(model, _, batch):
    (cross_entropy(model(batch[0]), batch[1]) + model.weight.square().sum()).backward()


@pytest.mark.parametrize(
    ("use", "match"),
    [
        (lambda *_: None, "had no forward pass"),
        (lambda model, _, batch: model(batch[0]), "had no backward pass"),
        (lambda model, _, batch: model.forward(batch[0]).sum().backward(), "no forward pass"),
        (two_backwards, "a second backward pass"),
        (
            lambda model, _, batch: (backward(model, batch), backward(model, batch)),
            "the model was run twice on one batch",
        ),
        (penalty, "parameter 'weight' has a gradient that did not come through"),
        (lambda model, _, batch: model(torch.randn(10, DIM)), "something else than the batch"),
        (lambda model, _, batch: model(batch[0].clone()), "something else than the batch"),
        (lambda model, _, batch: model(batch[0][:9]), "something else than the batch"),
        (
            lambda model, optimizer, batch: (
                backward(model, batch),
                optimizer._inner.step(),
            ),
            "was stepped itself, without noise",
        ),
    ],
    ids=[
        "no-forward",
        "no-backward",
        "around-the-hooks",
        "two-backward",
        "two-forward",
        "penalty",
        "foreign",
        "copied",
        "part",
        "inner",
    ],
)
def test_steps_outside_the_plan_are_refused(use, match, records):
    step_after(use)(records, match)


@pytest.mark.parametrize(
    "use",
    [
        lambda model, _, batch: model(input=batch[0]),
        lambda model, _, batch: model(batch[0].numpy()),
    ],
    ids=["named", "array"],
)
def test_models_are_called_with_tensors_by_position(use, records):
    step_after(use)(records, "must be called with tensors by position", ArgumentError)


@pytest.mark.soundness
@pytest.mark.parametrize(
    "turned",
    [
        lambda rows: rows.transpose(0, 1),
        lambda rows: rows.transpose(0, 1).unsqueeze(-1),
        lambda rows: rows[0].expand(len(rows), -1),
        lambda rows: rows.as_strided((DIM, 2), (DIM - 1, 1)),
    ],
)
def test_rows_of_the_inputs_are_those_of_the_batch(turned, records):
    """As many records as features, so that a shape tells nothing."""
    plan = plan_of(sampling=WithoutReplacement(n_records=N_RECORDS, batch_size=DIM))
    model, _, loader = private(linear(), records, plan)
    inputs, _ = next(iter(loader))
    with pytest.raises(TrainingError, match="something else than the batch"):
        model(turned(inputs))


def test_inputs_may_be_any_views_that_keep_the_rows(records):
    plan = plan_of(sampling=WithoutReplacement(n_records=N_RECORDS, batch_size=DIM), n_steps=4)
    model, optimizer, loader = private(nn.Sequential(nn.Flatten(), linear()), records, plan)
    views = (
        lambda rows: rows,
        lambda rows: rows.unflatten(1, (2, DIM // 2)).transpose(1, 2),
        lambda rows: rows[:, None].expand(-1, 1, -1),
        lambda rows: rows[:, :1].expand(-1, DIM),
    )
    for (inputs, targets), view in zip(loader, views, strict=False):
        cross_entropy(model(view(inputs)), targets).backward()
        optimizer.step()
    assert optimizer.n_taken == 4


def test_a_closure_is_refused(records):
    def use(model, optimizer, batch):
        optimizer.step(lambda: backward(model, batch))

    step_after(use)(records, "step takes no closure", ArgumentError)


def test_batch_statistics_that_appear_later_are_refused(records):
    model = nn.Sequential(nn.BatchNorm1d(DIM).eval(), linear())

    def use(model, _, batch):
        backward(model.train(), batch)

    step_after(use)(records, "is a BatchNorm1d", ArgumentError, model)


def test_autocast_is_refused(records):
    def use(model, _, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            backward(model, batch)

    step_after(use)(records, "autocast is on", ArgumentError)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda model: model.weight.requires_grad_(False), "are not those that the trainer"),
        (lambda model: model.bfloat16(), "bfloat16"),
        (lambda model: setattr(model, "weight", nn.Parameter(model.weight)), "are not those"),
    ],
    ids=["frozen", "converted", "replaced"],
)
def test_a_model_that_is_changed_before_the_step_is_refused(change, match, records):
    model, optimizer, loader = private(linear(), records, plan_of())
    backward(model, next(iter(loader)))
    change(model)
    with pytest.raises(ArgumentError, match=match):
        optimizer.step()
    assert optimizer.n_taken == 0


@pytest.mark.soundness
def test_autocast_around_a_later_step_is_refused(records):
    model, optimizer, loader = private(linear(), records, plan_of())
    batches = iter(loader)
    backward(model, next(batches))
    optimizer.step()
    backward(model, next(batches))
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ArgumentError, match="autocast"),
    ):
        optimizer.step()
    assert optimizer.n_taken == 1


def test_parameters_that_are_added_later_are_refused(records):
    def use(model, optimizer, batch):
        backward(model, batch)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})

    step_after(use)(records, "holds a tensor that is not a trainable parameter", ArgumentError)


def test_batches_without_a_step_are_refused(records):
    model, optimizer, loader = private(linear(), records, plan_of())
    with pytest.raises(TrainingError, match=r"the batch of step 0 had no optimizer.step\(\)"):
        list(loader)
    batch = next(iter(loader))
    backward(model, batch)
    optimizer.step()
    with pytest.raises(TrainingError, match="no batch was taken from the loader"):
        optimizer.step()


def test_a_dataset_that_changes_length_is_refused():
    class Growing(Dataset):
        def __init__(self):
            self.n = N_RECORDS

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            return torch.full((DIM,), float(index)), index % N_CLASSES

    dataset = Growing()
    model, optimizer, loader = private(linear(), dataset, plan_of())
    batch = next(iter(loader))
    assert batch[0].shape == (10, DIM)
    backward(model, batch)
    dataset.n += 1
    with pytest.raises(TrainingError, match="41 records and the plan has 40"):
        optimizer.step()
    with pytest.raises(TrainingError, match="41 records and the plan has 40"):
        next(iter(loader))
    with pytest.raises(TrainingError, match="41 records"):
        private(linear(), dataset, plan_of())


def test_a_step_counts_as_soon_as_its_noise_is_drawn(records):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise MemoryError

    model = linear()
    given = Failing(model.parameters(), lr=0.1)
    plan = plan_of(n_steps=2)
    model, optimizer, loader = make_private(model, given, records, plan, loss_reduction="mean")
    seen = []
    for _ in range(2):
        batch = next(iter(loader))
        seen.append(batch[0])
        backward(model, batch)
        with pytest.raises(MemoryError):
            optimizer.step()
    assert optimizer.n_taken == 2
    assert optimizer.spent() == plan.guarantee()
    assert not torch.equal(*seen)
    assert model.weight.grad is None
    with pytest.raises(TrainingError, match="over after 2 of 2"):
        iter(loader)


@pytest.fixture
def one_bad_record(records):
    inputs, targets = (one.clone() for one in records.tensors)
    inputs[7, 0] = torch.nan
    return TensorDataset(inputs, targets)


def test_gradients_that_are_not_finite_are_left_out_and_counted(
    one_bad_record, records, without_noise
):
    sampling = WithoutReplacement(n_records=N_RECORDS, batch_size=N_RECORDS)
    plan = plan_of(sampling=sampling)
    model, optimizer, loader = private(linear(), one_bad_record, plan, loss_reduction="sum")
    copied = copy.deepcopy(model)
    batch = next(iter(loader))
    good = ~batch[0].isnan().any(1)
    backward(model, batch, "sum")
    found = updates(model, optimizer)
    expected = clipped_mean(copied, (batch[0][good], batch[1][good]), plan)
    assert optimizer.n_non_finite == 1
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_plan_may_stop_at_a_gradient_that_is_not_finite(one_bad_record):
    sampling = WithoutReplacement(n_records=N_RECORDS, batch_size=N_RECORDS)
    plan = plan_of(sampling=sampling, non_finite="stop")
    model, optimizer, loader = private(linear(), one_bad_record, plan, loss_reduction="sum")
    backward(model, next(iter(loader)), "sum")
    with pytest.raises(TrainingError, match="NaN or infinite, and the plan says 'stop'"):
        optimizer.step()
    assert optimizer.n_taken == 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"plan": "plan"}, "plan must be a TrainingPlan, got str"),
        ({"loss_reduction": "none"}, "loss_reduction must be one of mean, sum; got 'none'"),
        ({"model": nn.BatchNorm1d(DIM)}, "is a BatchNorm1d"),
        ({"dataset": iter(())}, "must give its length"),
        ({"plan": plan_of(noise=1e-7)}, "noise multiplier"),
    ],
    ids=["plan", "reduction", "model", "dataset", "noise"],
)
def test_what_cannot_be_private_is_refused(changes, match, records):
    model = changes.get("model", linear())
    given = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": records,
        "plan": plan_of(),
        "loss_reduction": "mean",
    }
    with pytest.raises(PuffersliceError, match=match):
        make_private(**(given | changes))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_models_are_refused(records):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"as it was before torch.compile"):
        make_private(torch.compile(model), optimizer, records, plan_of(), loss_reduction="mean")


def test_optimizers_that_cannot_follow_are_refused(records):
    model, optimizer, _ = private(linear(), records, plan_of())
    for given, match in (
        (optimizer, "optimizer is private already"),
        (torch.optim.LBFGS(model.parameters()), "evaluates the loss again"),
        (torch.optim.SGD([model.weight], lr=0.1), "parameter 'bias' is not in the optimizer"),
    ):
        with pytest.raises(ArgumentError, match=match):
            make_private(model, given, records, plan_of(), loss_reduction="mean")


def test_several_processes_are_refused(records, monkeypatch):
    several = attrs.evolve(own_loop.joined_processes(), size=2)
    monkeypatch.setattr(own_loop, "joined_processes", lambda: several)
    with pytest.raises(ArgumentError, match="runs in one process; use Trainer for several"):
        private(linear(), records, plan_of())
