# SPDX-License-Identifier: Apache-2.0
"""Clipped sums: exact, bit for bit the same, and never moved further than the plan pays for."""

import copy
import math
import threading

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.architectures import (
    Attention,
    Residual,
    Sequences,
    clippings,
    convolution_cases,
    factors,
    linear_cases,
    sequence_cases,
    shaken,
)
from tests.torch.one_by_one import (
    FLAT,
    Case,
    block_sum,
    check_exact,
    dense_rows,
    example_gradients,
    fine_grid,
    in_float,
    inner_product_loss,
    layer_norms,
    prepared,
    squared_loss,
)
from torch import nan, nn
from torch.nn import functional

from pufferslice import ArgumentError, TrainingError
from pufferslice.sgd import (
    LayerClipping,
    LogMoment,
    Poisson,
    SumGrid,
    exactly,
    plan_with_noise,
    rounding_share,
    sum_grid,
)
from pufferslice.torch.gradients import BlockGradients
from pufferslice.torch.layout import layout_of

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch, of its own convolution; here the padding is done beforehand
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings("ignore:training takes a slow way"),
]

BLOCK = 4
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


@pytest.fixture(autouse=True)
def _fixed_draws(seed):
    torch.manual_seed(seed)


class Of(nn.Module):
    """A model that is a function of itself and its inputs, with modules inside."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def cases():
    return st.one_of(linear_cases(), convolution_cases(), sequence_cases())


def convolutional():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        shaken(nn.GroupNorm(2, 4)),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, groups=2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    return Case(model, squared_loss, (torch.randn(BLOCK, 2, 8, 8), torch.randn(BLOCK, 3)))


def spoken():
    layers = [
        Residual(
            Attention(4, 2, mask="boolean", padding=False, need_weights=False, batch_first=True)
        ),
        Residual(nn.LayerNorm(4)),
    ]
    model = Sequences(nn.Embedding(6, 4, padding_idx=0), layers, [0, 1], nn.Linear(4, 6))
    model.out.weight = model.entry.weight
    ids = torch.randint(0, 6, (BLOCK, 5))
    return Case(model, squared_loss, (ids, torch.randn(BLOCK, 6)))


def tokens():
    """Few tokens of wide layers: norms by Gram products."""
    model = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 24))
    return Case(model, squared_loss, (torch.randn(BLOCK, 2, 24), torch.randn(BLOCK, 2, 24)))


def plain():
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    return Case(model, squared_loss, (torch.randn(BLOCK, 5), torch.randn(BLOCK, 3)))


def recurrent():
    model = Of(lambda m, x: m.out(m.inner(x)[0][:, -1]), inner=nn.GRU(3, 4), out=nn.Linear(4, 2))
    model.inner.batch_first = True
    return Case(model, squared_loss, (torch.randn(BLOCK, 5, 3), torch.randn(BLOCK, 2)))


def unknown():
    model = Of(lambda m, x: torch.tanh(x @ m.inner.weight.T) * 2, inner=nn.Linear(5, 3, bias=False))
    return Case(model, squared_loss, (torch.randn(BLOCK, 5), torch.randn(BLOCK, 3)))


SAMPLES = (plain, convolutional, spoken, tokens, recurrent, unknown)


def linear_of_chosen_gradients(n_in=1, n_out=1, dtype=torch.float32):
    """A linear map of zeros: input x and target t have the gradient t x^T, whatever their size."""
    model = nn.Linear(n_in, n_out, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    draws = torch.Generator().manual_seed(5)
    shown = [torch.randn(BLOCK, n, generator=draws, dtype=dtype) for n in (n_in, n_out)]
    return Case(model, inner_product_loss, tuple(shown))


# Exact.


@settings(max_examples=60)
@given(st.data(), factors())
def test_sums_are_those_of_single_examples(data, factor):
    case = data.draw(cases())
    clipping = data.draw(clippings(case.model)) or FLAT
    n_examples = data.draw(st.integers(1, case.block))
    check_exact(case, clipping=clipping, factor=factor, n_examples=n_examples)


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_slower_way_gives_the_same_sums(sample):
    case = sample()
    gradients = prepared(case)
    assert gradients.path == ("one_by_one" if sample is recurrent else "per_example")
    expected, _ = block_sum(gradients, case.examples, 0.5)
    gradients.keep_to("one_by_one")
    assert gradients.path == "one_by_one"
    found, _ = block_sum(gradients, case.examples, 0.5)
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("n_examples", range(BLOCK + 1))
def test_any_number_of_real_examples(sample, n_examples):
    case = sample()
    gradients = prepared(case)
    total, found = block_sum(gradients, case.examples, 1e6, n_examples=n_examples)
    expected = example_gradients(case)[:n_examples].sum(0)
    assert np.linalg.norm(total - expected) <= 1e-5 * max(1e-9, np.linalg.norm(expected))
    assert found.losses.shape == (n_examples,)
    assert n_examples > 0 or not found.integers.any()


@pytest.mark.parametrize("block", [1, 2, 3, 33])
def test_blocks_of_any_size(block):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    check_exact(Case(model, squared_loss, (torch.randn(block, 3), torch.randn(block, 2))))


def test_a_block_larger_than_the_data_is_filled_up():
    case = plain()
    layout = layout_of(case.model, FLAT)
    gradients = BlockGradients(case.model, case.loss_fn, layout, block=9, non_finite="zero")
    gradients.prepare(case.examples, BLOCK)
    padded = tuple(torch.cat([one, one[:1].expand(5, -1)]) for one in case.examples)
    total, found = block_sum(gradients, padded, 1e6, n_examples=BLOCK)
    expected = example_gradients(case).sum(0)
    assert np.linalg.norm(total - expected) <= 1e-5 * np.linalg.norm(expected)
    assert found.losses.shape == (BLOCK,)


@pytest.mark.parametrize("sample", SAMPLES)
def test_models_in_evaluation_mode(sample):
    case = sample()
    case.model.eval()
    check_exact(case)


@pytest.mark.parametrize("sample", SAMPLES)
def test_one_distinct_example_is_enough(sample):
    case = sample()
    same = tuple(one[:1].expand_as(one).clone() for one in case.examples)
    check_exact(attrs.evolve(case, examples=same), factor=0.5)
    check_exact(case, shown=tuple(one[:1] for one in case.examples))


def test_several_inputs_and_a_tuple_of_outputs():
    def run(model, left, right):
        return model.a(left), model.b(right)

    model = Of(run, a=nn.Linear(3, 2), b=nn.Linear(4, 2))
    inputs = (torch.randn(BLOCK, 3), torch.randn(BLOCK, 4), torch.randn(BLOCK, 2))
    check_exact(Case(model, lambda both, t: squared_loss(both[0] * both[1], t), inputs))


def test_class_labels():
    case = plain()
    labels = torch.tensor([0, 2, 1, 1])
    check_exact(Case(case.model, CROSS_ENTROPY, (case.examples[0], labels)), factor=0.5)


def test_layers_are_clipped_by_themselves():
    """By hand: gradients (3, 4) and 12 of two layers, radii 1 and 6."""
    model = Of(
        lambda m, x: torch.cat([m.a(x[:, :2]), m.b(x[:, 2:])], 1),
        a=nn.Linear(2, 1, bias=False),
        b=nn.Linear(1, 1, bias=False),
    )
    examples = (torch.tensor([[3.0, 4.0, 12.0], [0.3, 0.4, 1.2]]), torch.ones(2, 2))
    clipping = LayerClipping(names=("b", "a"), norms=(6.0, 1.0), sizes=(1, 2), allocation="equal")
    gradients = prepared(Case(model, inner_product_loss, examples), clipping=clipping)
    total, _ = block_sum(gradients, examples, np.array([6.0, 1.0]))
    assert total == pytest.approx([0.6 + 0.3, 0.8 + 0.4, 6 + 1.2], rel=1e-6)
    flat = prepared(Case(model, inner_product_loss, examples))
    total, _ = block_sum(flat, examples, 6.5)
    assert total == pytest.approx([1.5 + 0.3, 2 + 0.4, 6 + 1.2], rel=1e-6)


@pytest.mark.soundness
def test_an_example_that_is_not_finite_in_one_layer_is_left_out_of_all():
    model = Of(
        lambda m, x: torch.cat([m.a(x[:, :1]), m.b(x[:, 1:])], 1),
        a=nn.Linear(1, 1, bias=False),
        b=nn.Linear(1, 1, bias=False),
    )
    clipping = LayerClipping(names=("a", "b"), norms=(1.0, 1.0), sizes=(1, 1), allocation="equal")
    shown = (torch.randn(2, 2), torch.ones(2, 2))
    gradients = prepared(Case(model, inner_product_loss, shown), clipping=clipping)
    examples = (torch.tensor([[0.25, math.inf], [0.5, 0.125]]), torch.ones(2, 2))
    total, found = block_sum(gradients, examples)
    assert total == pytest.approx([0.5, 0.125], rel=1e-6)
    assert found.n_non_finite == 1


# Bits.


@pytest.mark.parametrize("sample", SAMPLES)
def test_padding_weighs_nothing_whatever_it_holds(sample):
    case = sample()
    gradients = prepared(case)
    expected = block_sum(gradients, case.examples, 0.5, n_examples=2)[1]
    for padding in (other_examples(case), extreme_examples(case, 1e30), spoilt(case, [2, 3])):
        mixed = tuple(
            torch.cat([one[:2], other[2:]])
            for one, other in zip(case.examples, padding, strict=True)
        )
        found = block_sum(gradients, mixed, 0.5, n_examples=2)[1]
        assert np.array_equal(found.integers, expected.integers)
        assert found.n_non_finite == 0
        assert torch.equal(found.losses, expected.losses)


def other_examples(case):
    """The same examples in another order, and other numbers where they are not words."""
    return tuple(
        one.flip(0) * 3 + 1 if one.is_floating_point() else one.flip(0) for one in case.examples
    )


def extreme_examples(case, scale):
    return tuple(one * scale if one.is_floating_point() else one for one in case.examples)


def spoilt(case, rows, value=nan):
    """The same with something that is not finite in some rows: of the inputs, or the targets."""
    examples = tuple(one.clone() for one in case.examples)
    place = examples[0] if examples[0].is_floating_point() else examples[-1]
    place.flatten(1)[rows, 0] = value
    return examples


@pytest.mark.parametrize("sample", SAMPLES)
def test_blocks_run_in_between_and_other_threads_change_no_bit(sample):
    case = sample()
    gradients = prepared(case)
    expected = block_sum(gradients, case.examples, 0.5)[1].integers
    block_sum(gradients, spoilt(case, [0]), 0.5)
    block_sum(gradients, extreme_examples(case, 1e6), 0.5, n_examples=1)
    other = prepared(convolutional())
    block_sum(other, convolutional().examples)
    found = [block_sum(gradients, case.examples, 0.5)[1].integers]

    def run():
        torch.set_num_threads(1)
        block_sum(other, convolutional().examples)
        found.extend(block_sum(gradients, case.examples, 0.5)[1].integers for _ in range(2))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    fresh = prepared(Case(copy.deepcopy(case.model), case.loss_fn, case.examples))
    found.append(block_sum(fresh, case.examples, 0.5)[1].integers)
    assert len(found) == 4
    assert all(np.array_equal(integers, expected) for integers in found)


@pytest.mark.parametrize("sample", [plain, convolutional, spoken, tokens, recurrent])
def test_blocks_at_once_in_many_threads_change_no_bit(sample):
    case = sample()
    gradients = prepared(case)
    blocks = [case.examples, other_examples(case), spoilt(case, [1]), extreme_examples(case, 50.0)]
    expected = [block_sum(gradients, block, 0.5)[1] for block in blocks]
    found = {}

    def run(thread):
        torch.set_num_threads(1)
        for turn in range(12):
            number = (thread + turn) % len(blocks)
            result = block_sum(gradients, blocks[number], 0.5)[1]
            found[thread, turn] = (number, result)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 48
    for number, result in found.values():
        assert np.array_equal(result.integers, expected[number].integers)
        assert result.n_non_finite == expected[number].n_non_finite


@settings(max_examples=30)
@given(st.data())
def test_no_bit_of_a_contribution_comes_from_another_example(data):
    case = data.draw(cases())
    gradients = prepared(case)
    before = dense_rows(gradients, case.examples)
    kept = data.draw(st.integers(0, case.block - 1))
    others = data.draw(
        st.sampled_from([other_examples(case), extreme_examples(case, 1e20), spoilt(case, [kept])])
    )
    changed = tuple(other.clone() for other in others)
    for one, mixed in zip(case.examples, changed, strict=True):
        mixed[kept] = one[kept]
    after = dense_rows(gradients, changed)
    assert before.keys() == after.keys()
    for i, rows in before.items():
        assert torch.equal(rows[kept], after[i][kept]), gradients.layout.names[i]


@pytest.mark.parametrize("sample", SAMPLES)
def test_examples_that_are_not_finite_reach_no_other(sample):
    case = sample()
    gradients = prepared(case)
    before = dense_rows(gradients, case.examples)
    for value in (nan, math.inf, 3e38):
        after = dense_rows(gradients, spoilt(case, [1], value))
        for i, rows in before.items():
            assert torch.equal(rows[[0, 2, 3]], after[i][[0, 2, 3]]), gradients.layout.names[i]


# Sound.


def alone(gradients, examples, index, radii):
    """The sum of a block in which only one of its examples is real."""
    order = [index, *(i for i in range(len(examples[-1])) if i != index)]
    rolled = tuple(one[order] for one in examples)
    return block_sum(gradients, rolled, radii, n_examples=1)


def check_within(gradients, examples, radii):
    """No example moves a layer by more than its radius and its own rounding."""
    layout = gradients.layout
    radii = np.broadcast_to(radii, layout.n_layers)
    rounding = radii * rounding_share(gradients.block) + np.sqrt(layout.sizes) * radii * 2.0**-44
    for index in range(gradients.block):
        total, _ = alone(gradients, examples, index, radii)
        assert (layer_norms(layout, total[None])[:, 0] <= radii + rounding).all()


@pytest.mark.soundness
@settings(max_examples=25)
@given(st.data(), st.sampled_from([1.0, 1e-6, 1e6, 1e15, 1e-20, 1e30, 1e-30, 1e37, 1e-40]))
def test_no_example_exceeds_its_radius(data, scale):
    case = data.draw(cases())
    clipping = data.draw(clippings(case.model)) or FLAT
    gradients = prepared(case, clipping=clipping)
    which = data.draw(st.sampled_from(["inputs", "targets", "all"]))
    examples = tuple(
        one * scale
        if one.is_floating_point() and which in {"all", "targets" if i else "inputs"}
        else one
        for i, one in enumerate(case.examples)
    )
    check_within(gradients, examples, data.draw(st.sampled_from([1e-3, 1.0, 100.0])))


@pytest.mark.soundness
@pytest.mark.parametrize("radius", [1e-6, 1e-2, 1.0, 1e3])
@settings(max_examples=40)
@given(st.integers(-149, 127), st.integers(-149, 127), st.integers(0, 2**23), st.integers(1, 9))
def test_products_of_any_two_sizes_stay_within_the_radius(radius, above, below, mantissa, width):
    """From huge activations with vanishing gradients to gradients beyond single precision."""
    case = linear_of_chosen_gradients(width, width)
    gradients = prepared(case)
    factor = 1 + mantissa / 2**23
    examples = (
        torch.full((BLOCK, width), factor * 2.0**above, dtype=torch.float64).float(),
        torch.full((BLOCK, width), -factor * 2.0**below, dtype=torch.float64).float(),
    )
    check_within(gradients, examples, radius)


@pytest.mark.soundness
@pytest.mark.parametrize("x", [1e20, 1e21, 1.3e22, 2e22, 2.6e22, 2.65e22, 3e22, 1e25, 1e30, 1.7e38])
def test_the_outlier_of_a_regression_stays_within_the_radius(x):
    """Its weight, radius over norm, is below the normal numbers of single precision."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    case = Case(model, squared_loss, (torch.randn(BLOCK, 1), torch.randn(BLOCK, 1)))
    examples = (torch.full((BLOCK, 1), x), torch.zeros(BLOCK, 1))
    check_within(prepared(case), examples, 1.0)


@pytest.mark.soundness
def test_squares_beyond_double_precision_do_not_hide_a_norm():
    case = linear_of_chosen_gradients(dtype=torch.float64)
    gradients = prepared(case)
    for x, t in ((1e150, 1e-163), (1e-163, 1e150), (1e200, 1e-190), (1e-300, 1e305)):
        examples = (
            torch.full((BLOCK, 1), x, dtype=torch.float64),
            torch.full((BLOCK, 1), t, dtype=torch.float64),
        )
        check_within(gradients, examples, 1e-6)


@pytest.mark.soundness
@settings(max_examples=40)
@given(
    st.integers(1, 26),
    st.floats(-30, 30),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.integers(0, 2**31),
)
def test_tokens_that_cancel_stay_within_the_radius(n_lost, log_scale, radius, bits):
    """Outer products that leave only their last bits, at any size, of two tokens or twenty."""
    torch.manual_seed(bits)
    n_tokens, width = (2, 24) if bits % 2 else (20, 3)
    case = linear_of_chosen_gradients(width, width)
    model, scale = case.model, 10.0**log_scale
    shape = (BLOCK, n_tokens // 2, width)
    x, t = torch.randn(shape) * scale, torch.randn(shape) * scale
    examples = (torch.cat([x, x * (1 + 2.0**-n_lost)], 1), torch.cat([t, -t], 1))
    shown = (torch.randn_like(examples[0]), torch.randn_like(examples[1]))
    gradients = prepared(Case(model, inner_product_loss, shown))
    assert gradients.path == "per_example"
    check_within(gradients, examples, radius)
    outer = torch.einsum("nto,nti->noi", examples[1].double(), examples[0].double())
    if torch.isfinite(examples[0]).all():
        norms = outer.flatten(1).norm(dim=1).numpy()
        total, _ = alone(gradients, examples, 0, radius)
        # where digits are lost the weight is small, but an example is not lost without need
        if n_lost < 12 and 1e-6 * radius < norms[0] < 1e25 * radius:
            assert np.linalg.norm(total) >= 0.9 * min(norms[0], radius)


@pytest.mark.soundness
@settings(max_examples=30)
@given(st.integers(-30, 30), st.integers(0, 2**31))
def test_norms_next_to_the_radius(n_units, bits):
    """A few units in the last place below or above the radius."""
    torch.manual_seed(bits)
    case = linear_of_chosen_gradients(3, 2)
    gradients = prepared(case)
    x, t = torch.randn(BLOCK, 3), torch.randn(BLOCK, 2)
    norms = x.double().norm(dim=1) * t.double().norm(dim=1)
    t = (t.double() / norms[:, None] * (1 + n_units * 2.0**-24)).float()
    check_within(gradients, (x, t), 1.0)


@pytest.mark.soundness
@settings(max_examples=25)
@given(st.data(), st.sampled_from([1e-2, 1.0]))
def test_the_rounding_of_a_block_keeps_to_its_share(data, radius):
    """The sum of a block against the sums of its examples, each alone in the block."""
    case = data.draw(cases())
    gradients = prepared(case)
    examples = extreme_examples(case, data.draw(st.sampled_from([1.0, 1e4, 1e-3])))
    total, _ = block_sum(gradients, examples, radius)
    single = sum(alone(gradients, examples, i, radius)[0] for i in range(case.block))
    # one share for each example in the block, and one for each alone
    shares = 2 * case.block * rounding_share(case.block)
    quantised = (case.block + 1) * math.sqrt(gradients.layout.n_parameters) * 2.0**-44
    assert np.linalg.norm(total - single) <= radius * (shares + quantised)


def planned_grid(layout, *, block, multiplier=4.0, clip_norm=1.0):
    plan = plan_with_noise(
        differing=exactly(1),
        sampling=Poisson(n_records=100, rate=0.1),
        clip_norm=clip_norm,
        noise_multipliers=np.array([multiplier]),
        accountant=LogMoment(),
        order=4,
    )
    return sum_grid(attrs.evolve(plan, block=block), 0, layout.sizes)


def moved(gradients, examples, index, replacement, grid):
    """How far the integer sum moves when one example is replaced, in units of gradients."""
    changed = tuple(one.clone() for one in examples)
    for one, other in zip(changed, replacement, strict=True):
        one[index] = other
    sums = [
        gradients.block_sum(block, gradients.block, grid, 1).integers
        for block in (examples, changed)
    ]
    return float(np.linalg.norm(in_float(gradients.layout, sums[0] - sums[1], grid)))


@pytest.mark.soundness
@settings(max_examples=25)
@given(st.data(), st.sampled_from([0.5, 4.0, 2.0**25]))
def test_replacing_an_example_moves_the_sum_by_at_most_two_clip_norms(data, multiplier):
    case = data.draw(cases())
    gradients = prepared(case)
    grid = planned_grid(gradients.layout, block=case.block, multiplier=multiplier)
    scales = st.sampled_from([1.0, 1e3, 1e-3, 1e10, 1e21, 2.65e22, 1e30, 1e38, 1e-38])
    index = data.draw(st.integers(0, case.block - 1))
    examples = extreme_examples(case, data.draw(scales))
    other = extreme_examples(attrs.evolve(case, examples=other_examples(case)), data.draw(scales))
    replacement = tuple(one[index] for one in other)
    assert moved(gradients, examples, index, replacement, grid) <= 2.0


@pytest.mark.soundness
def test_searching_for_the_worst_pair_of_examples_does_not_exceed_two_clip_norms():
    """Hill climbing from random pairs: as opposite as possible, of any size."""
    torch.manual_seed(3)
    case = linear_of_chosen_gradients(4, 4)
    gradients = prepared(case)
    grid = planned_grid(gradients.layout, block=BLOCK, multiplier=0.5)
    worst = 0.0
    for _ in range(6):
        x = torch.randn(BLOCK, 4) * 10.0 ** float(torch.empty(1).uniform_(-3, 22))
        t = torch.randn(BLOCK, 4) * 10.0 ** float(torch.empty(1).uniform_(-3, 22))
        pair = (x[0].clone(), -t[0])
        best = moved(gradients, (x, t), 0, pair, grid)
        for _ in range(40):
            factor = 10.0 ** float(torch.randn(1))
            tried = tuple(one * factor * (1 + torch.randn(4) * 0.05) for one in pair)
            found = moved(gradients, (x, t), 0, tried, grid)
            if found > best:
                best, pair = found, tried
        worst = max(worst, best)
    assert 1.99 < worst <= 2.0


@pytest.mark.soundness
def test_rounding_to_the_grid_is_paid_for_by_a_smaller_radius():
    """All coordinates round up: without the smaller radius the sum would move too far."""
    n = 32
    case = linear_of_chosen_gradients(n, n)
    gradients = prepared(case)
    examples = (torch.zeros(BLOCK, n), torch.ones(BLOCK, n))
    examples[0][0] = 1e6
    replacement = (torch.full((n,), 1e6), -torch.ones(n))
    kept, unreduced = 0.0, 0.0
    for multiplier in np.linspace(2.0**29, 2.0**30, 40):
        grid = planned_grid(gradients.layout, block=BLOCK, multiplier=float(multiplier))
        kept = max(kept, moved(gradients, examples, 0, replacement, grid))
        whole = SumGrid(steps=grid.steps, radii=np.ones(1))
        unreduced = max(unreduced, moved(gradients, examples, 0, replacement, whole))
    assert unreduced > 2.0005
    assert 1.995 < kept <= 2.0


@pytest.mark.soundness
def test_the_rounding_of_sums_is_paid_for_by_a_smaller_radius():
    """The others of the block push all partial sums to where they are rounded most."""
    n, block = 16, 16
    model = nn.Linear(n, 2, bias=False)
    nn.init.zeros_(model.weight)
    shown = (torch.randn(block, n), torch.randn(block, 2))
    gradients = prepared(Case(model, inner_product_loss, shown))
    grid = planned_grid(gradients.layout, block=block, multiplier=0.5)
    whole = SumGrid(steps=grid.steps, radii=np.ones(1))
    kept, unreduced = 0.0, 0.0
    for factor in torch.linspace(0.3, 0.999, 120).tolist():
        x = torch.full((block, n), 1 / math.sqrt(2 * n)) * factor
        x[-1] *= 1e3
        t = torch.ones(block, 2)
        replacement = (x[-1], -t[-1])
        kept = max(kept, moved(gradients, (x, t), block - 1, replacement, grid))
        unreduced = max(unreduced, moved(gradients, (x, t), block - 1, replacement, whole))
    assert kept <= 2.0 < unreduced


# Not finite.


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("value", [nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_counts_nothing_and_is_counted(sample, value):
    case = sample()
    gradients = prepared(case)
    total, found = block_sum(gradients, spoilt(case, [1, 2], value), 0.5)
    assert found.n_non_finite == 2
    kept = tuple(one[[0, 3, 0, 0]] for one in case.examples)
    expected, _ = block_sum(gradients, kept, 0.5, n_examples=2)
    assert np.linalg.norm(total - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_block_of_nothing_finite_is_zero(sample):
    case = sample()
    gradients = prepared(case)
    _, found = block_sum(gradients, spoilt(case, [0, 1, 2, 3]), 0.5)
    assert not found.integers.any()
    assert found.n_non_finite == BLOCK


def test_norms_too_large_for_any_number_count_as_not_finite():
    case = plain()
    gradients = prepared(case)
    _, found = block_sum(gradients, extreme_examples(case, 3e38), 0.5)
    assert np.isfinite(found.integers).all()
    assert np.linalg.norm(found.integers * 0.5 * 2.0**-44) <= BLOCK * 0.5 * 1.001


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_plan_may_say_stop(sample):
    case = sample()
    gradients = prepared(case, non_finite="stop")
    block_sum(gradients, case.examples, 0.5)
    with pytest.raises(TrainingError, match=r"NaN or infinite, and the plan says 'stop'"):
        block_sum(gradients, spoilt(case, [2]), 0.5)
    # padding is no example
    assert block_sum(gradients, spoilt(case, [3]), 0.5, n_examples=3)[1].n_non_finite == 0


def test_losses_that_are_not_finite_are_not_shown_to_the_checks():
    """Preparing works with a block of which some or all losses are NaN."""
    case = plain()
    for rows in ([0], [1, 2, 3], [0, 1, 2, 3]):
        gradients = prepared(case, shown=spoilt(case, rows))
        total, _ = block_sum(gradients, case.examples, 1e6)
        expected = example_gradients(case).sum(0)
        assert np.linalg.norm(total - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_row_hidden_from_attention_altogether():
    """torch gives NaN where every key is masked; the other examples are left alone."""
    model = Of(
        lambda m, x, hidden: m.inner(x, x, x, key_padding_mask=hidden)[0],
        inner=nn.MultiheadAttention(4, 2, batch_first=True),
    )
    hidden = torch.zeros(BLOCK, 3, dtype=torch.bool)
    hidden[:, 2] = True
    examples = (torch.randn(BLOCK, 3, 4), hidden, torch.randn(BLOCK, 3, 4))
    gradients = prepared(Case(model, squared_loss, examples))
    before = dense_rows(gradients, examples)
    masked = hidden.clone()
    masked[1] = True
    after = dense_rows(gradients, (examples[0], masked, examples[2]))
    for i, rows in before.items():
        assert torch.equal(rows[[0, 2, 3]], after[i][[0, 2, 3]])
    found = block_sum(gradients, (examples[0], masked, examples[2]))[1]
    assert found.n_non_finite == 1


# Refused.


@pytest.mark.parametrize(
    ("loss_fn", "got"),
    [
        (lambda o, t: squared_loss(o, t).mean(), r"\(\)"),
        (lambda o, t: squared_loss(o, t).sum(), r"\(\)"),
        (lambda o, t: squared_loss(o, t)[:, None], r"\(1, 1\)"),
        (lambda o, t: (o - t) ** 2, r"\(1, 3\)"),
        (lambda o, t: squared_loss(o, t)[:0], r"\(0,\)"),
        (lambda o, t: float(squared_loss(o.detach(), t).mean()), r"float"),
        (lambda o, t: None, r"NoneType"),
    ],
)
def test_a_loss_that_is_not_per_example_is_refused(loss_fn, got):
    case = attrs.evolve(plain(), loss_fn=loss_fn)
    with pytest.raises(ArgumentError, match=rf"one loss per example.* got {got}"):
        prepared(case)


def test_a_mean_over_the_examples_is_refused_for_blocks_of_one():
    model, loss_fn = nn.Linear(3, 2), nn.CrossEntropyLoss()
    examples = (torch.randn(1, 3), torch.tensor([1]))
    with pytest.raises(ArgumentError, match=r"one loss per example"):
        prepared(Case(model, loss_fn, examples))


MIXING = r"mixes examples|do not add up to the gradient|treats a block differently"


def test_batch_norm_in_training_mode_is_refused_with_its_replacement():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    case = Case(model, squared_loss, plain().examples)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=r"replace_batchnorm"):
        prepared(case)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.eval()
    assert check_exact(case) == "per_example"
    model[1].requires_grad_(False)
    model.train()
    with pytest.raises(ArgumentError, match=r"replace_batchnorm"):
        prepared(case)
    model[1].track_running_stats = False
    model[1].running_mean = model[1].running_var = None
    model.eval()
    with pytest.raises(ArgumentError, match=r"replace_batchnorm"):
        prepared(case)


def test_one_distinct_example_does_not_let_batch_norm_pass():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    case = Case(model, squared_loss, plain().examples)
    with pytest.raises(ArgumentError, match=r"replace_batchnorm"):
        prepared(case, shown=tuple(one[:1] for one in case.examples))


@pytest.mark.soundness
@pytest.mark.parametrize("shown", ["first", "sorted", "last", "reversed"])
def test_examples_put_in_another_order_inside_the_model_are_clipped_one_by_one(shown):
    """As sequences sorted by their lengths are: whoever is shown, in whatever order."""

    def run(model, examples):
        order = examples[:, 0].argsort(descending=True)
        return model.out(torch.tanh(model.inner(examples[order])[order.argsort()]))

    sizes = {"first": [9, 1, 5, 3], "sorted": [9, 5, 3, 1], "last": [3, 5, 1, 9]}
    sizes["reversed"] = sizes["sorted"][::-1]
    inputs, targets = torch.randn(BLOCK, 5), torch.randn(BLOCK, 3)
    inputs[:, 0] = torch.tensor(sizes[shown])
    model = Of(run, inner=nn.Linear(5, 4), out=nn.Linear(4, 3))
    later = inputs[[2, 0, 3, 1]] * torch.tensor([1.0, 5.0, 0.1, 2.0])[:, None]
    check_exact(Case(model, squared_loss, (later, targets)), factor=0.5, shown=(inputs, targets))


def test_running_statistics_of_instance_norm_are_refused():
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    model = nn.Sequential(nn.Conv1d(2, 3, 2), norm)
    case = Case(model, squared_loss, (torch.randn(BLOCK, 2, 6), torch.randn(BLOCK, 3, 5)))
    with pytest.raises(ArgumentError, match=r"track_running_stats=False"):
        prepared(case)
    assert not norm.running_mean.any()


def test_buffers_of_every_kind_may_be_read():
    model = Of(
        lambda m, x: m.inner(x.masked_fill(m.hidden, 0.0) + m.shift[m.order]), inner=nn.Linear(6, 3)
    )
    model.register_buffer("hidden", torch.tensor([True, False, False, True, False, False]))
    model.register_buffer("shift", torch.tensor([1.0, 2.0, nan, 3.0, 4.0, 5.0]).nan_to_num())
    model.register_buffer("order", torch.tensor([5, 4, 3, 2, 1, 0]))
    model.register_buffer("unset", torch.tensor([nan, 1.0]))
    examples = (torch.randn(BLOCK, 6), torch.randn(BLOCK, 3))
    assert check_exact(Case(model, squared_loss, examples)) == "per_example"


def words_with(**given):
    entry = nn.Embedding(6, 4, **given)
    model = Of(lambda m, ids: m.out(m.entry(ids).mean(1)), entry=entry, out=nn.Linear(4, 3))
    return Case(model, squared_loss, (torch.randint(0, 6, (BLOCK, 5)), torch.randn(BLOCK, 3)))


def test_a_parameter_that_the_loss_does_not_depend_on_is_refused():
    model = Of(lambda m, x: m.used(x), used=nn.Linear(5, 3), unused=nn.Linear(5, 3))
    case = Case(model, squared_loss, plain().examples)
    with pytest.raises(ArgumentError, match=r"'unused\.weight' has no gradient"):
        prepared(case)
    model.unused.requires_grad_(False)
    assert check_exact(case) == "per_example"


def test_a_penalty_on_the_parameters_inside_the_loss_is_refused_or_exact():
    """The loss reads the parameters past the model: no way may lose that part silently."""
    case = plain()

    def penalised(outputs, targets):
        return squared_loss(outputs, targets) + case.model[0].weight.square().sum()

    gradients = prepared(attrs.evolve(case, loss_fn=penalised))
    total, _ = block_sum(gradients, case.examples, 1e6)
    rows = example_gradients(case)
    rows[:, :35] += 2 * case.model[0].weight.detach().numpy().reshape(-1)
    assert np.linalg.norm(total - rows.sum(0)) <= 1e-5 * np.linalg.norm(rows.sum(0))


def test_block_sums_need_preparation():
    case = plain()
    gradients = BlockGradients(
        case.model, case.loss_fn, layout_of(case.model, FLAT), block=BLOCK, non_finite="zero"
    )
    with pytest.raises(ArgumentError, match=r"prepare first"):
        gradients.block_sum(case.examples, BLOCK, fine_grid(1.0), 1)


@pytest.mark.parametrize("radius", [1e-44, 1e-30, 1e-13, 1e13, 1e30, 3e38, 1e100])
def test_clip_norms_beyond_the_digits_of_single_precision_are_refused(radius):
    case = linear_of_chosen_gradients(2, 2)
    with pytest.raises(ArgumentError, match=r"clip norms must lie between"):
        block_sum(prepared(case), case.examples, radius)


@pytest.mark.soundness
@pytest.mark.parametrize("radius", [1e-12, 1e12])
@pytest.mark.parametrize("size", [1e-19, 1e-6, 1.0, 1e6, 1e19])
def test_the_smallest_and_largest_clip_norms_are_kept(radius, size):
    case = linear_of_chosen_gradients(2, 2)
    gradients = prepared(case)
    examples = tuple(one * size for one in case.examples)
    check_within(gradients, examples, radius)
    total, _ = block_sum(gradients, examples, radius)
    assert np.linalg.norm(total) <= BLOCK * radius * (1 + 1e-5)


# The model and its surroundings are left alone.


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_model_is_left_alone(sample):
    case = sample()
    before = {name: value.clone() for name, value in case.model.state_dict().items()}
    parameters = list(case.model.parameters())
    state = torch.get_rng_state()
    gradients = prepared(case)
    block_sum(gradients, case.examples)
    assert torch.equal(state, torch.get_rng_state())
    assert gradients.draws_randomness == (gradients.path == "one_by_one")
    assert list(map(id, case.model.parameters())) == list(map(id, parameters))
    assert all(torch.equal(before[name], value) for name, value in case.model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in parameters)


def test_sums_can_be_made_where_gradients_are_off():
    case = plain()
    with torch.no_grad():
        gradients = prepared(case)
        found, _ = block_sum(gradients, case.examples)
    assert np.array_equal(found, block_sum(gradients, case.examples)[0])
    assert gradients.path == "per_example"


DROPPING = {
    "linear": lambda: (
        nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        torch.randn(BLOCK, 5),
    ),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(3, 1, 8, dropout=0.3, batch_first=True),
        torch.randn(BLOCK, 4, 3),
    ),
    "recurrent": lambda: (
        Of(lambda m, x: m.inner(x)[0], inner=nn.GRU(3, 3, 2, dropout=0.4, batch_first=True)),
        torch.randn(BLOCK, 4, 3),
    ),
    "noise": lambda: (
        Of(
            lambda m, x: m.out(torch.tanh(m.inner(x + torch.randn_like(x)))),
            inner=nn.Linear(5, 4),
            out=nn.Linear(4, 3),
        ),
        torch.randn(BLOCK, 5),
    ),
    "by single examples": lambda: (
        Of(
            lambda m, x: functional.dropout(x @ m.inner.weight, 0.5, training=True),
            inner=nn.Linear(3, 5, bias=False),
        ),
        torch.randn(BLOCK, 5),
    ),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_goes_by_the_seed(name):
    model, inputs = DROPPING[name]()
    outputs = model(inputs)
    case = Case(model, squared_loss, (inputs, torch.randn(outputs.shape)))
    state = torch.get_rng_state()
    gradients = prepared(case)
    assert torch.equal(state, torch.get_rng_state())
    assert gradients.draws_randomness
    sums = [block_sum(gradients, case.examples, seed=seed)[0] for seed in (1, 1, 2)]
    torch.manual_seed(99)
    sums.append(block_sum(gradients, case.examples, seed=1)[0])
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], sums[3])
    assert not np.array_equal(sums[0], sums[2])


def test_dropout_sums_are_those_of_the_same_draws():
    model, inputs = DROPPING["linear"]()
    targets = torch.randn(model(inputs).shape)
    gradients = prepared(Case(model, squared_loss, (inputs, targets)))
    total, found = block_sum(gradients, (inputs, targets), 1e6, seed=7)
    torch.manual_seed(7)
    losses = squared_loss(model(inputs), targets)
    expected = torch.autograd.grad(losses.sum(), gradients.layout.parameters)
    flat = torch.cat([gradient.reshape(-1) for gradient in expected]).double().numpy()
    assert np.linalg.norm(total - flat) <= 1e-5 * np.linalg.norm(flat)
    torch.testing.assert_close(found.losses, losses.detach())


@pytest.mark.parametrize("name", DROPPING)
def test_every_parameter_of_a_model_that_drops_gets_its_gradient(name):
    """The mean over many draws, which a way that loses a parameter would not have."""
    model, inputs = DROPPING[name]()
    case = Case(model, squared_loss, (inputs, torch.randn(model(inputs).shape)))
    gradients = prepared(case)
    sums = sum(block_sum(gradients, case.examples, 1e6, seed=seed)[0] for seed in range(60)) / 60
    expected = 0.0
    for seed in range(60):
        torch.manual_seed(1000 + seed)
        losses = squared_loss(model(inputs), case.examples[-1])
        found = torch.autograd.grad(losses.sum(), gradients.layout.parameters)
        expected = expected + torch.cat([g.reshape(-1) for g in found]).double().numpy() / 60
    for parameter, where in zip(gradients.layout.names, gradients.layout.slices, strict=True):
        size = np.linalg.norm(expected[where])
        assert np.linalg.norm(sums[where] - expected[where]) <= 0.7 * size + 0.05, parameter


def test_a_model_that_draws_gets_no_randomness_in_evaluation_mode():
    model, inputs = DROPPING["linear"]()
    model.eval()
    case = Case(model, squared_loss, (inputs, torch.randn(BLOCK, 3)))
    gradients = prepared(case)
    assert not gradients.draws_randomness
    assert np.array_equal(
        block_sum(gradients, case.examples, seed=1)[0],
        block_sum(gradients, case.examples, seed=2)[0],
    )


def test_losses_are_those_of_the_real_examples():
    case = plain()
    _, found = block_sum(prepared(case), case.examples, n_examples=3)
    expected = case.loss_fn(case.model(case.examples[0]), case.examples[1]).detach()
    torch.testing.assert_close(found.losses, expected[:3])
