# SPDX-License-Identifier: Apache-2.0
"""Clipped sums: exact, bit for bit the same, and never moved further than the plan pays for.

What is compared with a bound is compared in integers and fractions, without rounding.
"""

import copy
import functools
import math
from fractions import Fraction

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.torch.engine import Engine, grid_of
from tests.torch.small import plan_of
from torch import nan, nn

from pufferslice.errors import ArgumentError
from pufferslice.learning import FlatClipping, LayerClipping, Poisson
from pufferslice.learning.integer_sums import SumGrid, rounding_share, sum_grid
from pufferslice.torch.clipping import one_thread
from pufferslice.torch.layout import layout_of
from pufferslice.torch.per_example import PerExample

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 4
FINE = 2.0**-44
"""A grid step over its radius: so fine that rounding to the grid hardly counts."""
FLAT = FlatClipping(norm=1.0)


def squared_loss(outputs, targets):
    return (outputs - targets).square().sum()


def inner_product_loss(outputs, targets):
    """The gradient of the outputs is the target: a test can choose it."""
    return (outputs * targets).sum()


class Of(nn.Module):
    """A model that is a function of itself and its inputs, with modules inside."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, groups=2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


def transformer():
    encoder = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, activation="gelu", batch_first=True)
    return nn.Sequential(nn.Linear(3, 4), encoder, nn.Linear(4, 2))


def tied():
    model = Of(
        lambda m, ids: m.out(torch.tanh(m.entry(ids)).mean(1)),
        entry=nn.Embedding(6, 4),
        out=nn.Linear(4, 6),
    )
    model.out.weight = model.entry.weight
    return model


SAMPLES = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)),
        [(5,), (3,)],
    ),
    "convolutional": (convolutional, [(2, 8, 8), (3,)]),
    "words": (
        lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3)),
        ["words", (3,)],
    ),
    "transformer": (transformer, [(5, 3), (5, 2)]),
    "recurrent": (
        lambda: Of(
            lambda m, x: m.out(m.inner(x)[0][:, -1]),
            inner=nn.LSTM(3, 4, batch_first=True),
            out=nn.Linear(4, 2),
        ),
        [(5, 3), (2,)],
    ),
    "tied": (tied, ["words", (6,)]),
    "several_inputs": (
        lambda: Of(lambda m, x, y: m.a(x) * m.b(y), a=nn.Linear(3, 2), b=nn.Linear(4, 2)),
        [(3,), (4,), (2,)],
    ),
    # wide layers, so norms by Gram products
    "few_tokens": (
        lambda: nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 24)),
        [(2, 24), (2, 24)],
    ),
    "bare_parameters": (
        lambda: Of(
            lambda m, x: torch.tanh(x @ m.inner.weight.T) * 2, inner=nn.Linear(5, 3, bias=False)
        ),
        [(5,), (3,)],
    ),
}
"""Models, and the shapes of their inputs and targets."""


@functools.cache
def sample(name, dtype=torch.float32):
    """A model and its examples, the same ones in every test."""
    make, shapes = SAMPLES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = make().to(dtype)
        examples = tuple(
            torch.randint(0, 6, (BLOCK, 5))
            if shape == "words"
            else torch.randn(BLOCK, *shape).to(dtype)
            for shape in shapes
        )
    return model, examples


@functools.cache
def engine_of(name, dtype=torch.float32, **given):
    return Engine(sample(name, dtype)[0], squared_loss, sample(name, dtype)[1], **given)


@functools.cache
def engine_of_chosen_gradients(n_tokens, n_in, n_out, dtype=torch.float32, block=BLOCK):
    """A linear map of zeros: inputs x and targets t have the gradient t x^T, whatever their size.

    Summed over tokens, if there are any.
    """
    model = nn.Linear(n_in, n_out, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    tokens = (n_tokens,) if n_tokens else ()
    shown = tuple(torch.ones(block, *tokens, n, dtype=dtype) for n in (n_in, n_out))
    return Engine(model, inner_product_loss, shown)


def one_by_one(name, dtype):
    """Gradients of single examples by plain autograd in float64, shape (n, n_parameters)."""
    model, examples = sample(name, dtype)
    exact, rows = copy.deepcopy(model).double(), []
    for i in range(BLOCK):
        one = [x[i : i + 1].double() if x.is_floating_point() else x[i : i + 1] for x in examples]
        loss = squared_loss(exact(*one[:-1]), one[-1])
        found = torch.autograd.grad(loss, list(exact.parameters()))
        rows.append(torch.cat([gradient.reshape(-1) for gradient in found]))
    return torch.stack(rows).numpy()


def by_parameters(model):
    """Each parameter is a clipped layer."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    norms = (1.0,) * len(sizes)
    return LayerClipping(
        names=tuple(sizes), norms=norms, sizes=tuple(sizes.values()), allocation="equal"
    )


def of_layers(layout, vector):
    """The parts of a flat vector, or of rows of them, that belong to each clipped layer."""
    owners = np.repeat(layout.layers, [p.numel() for p in layout.parameters])
    return [vector[..., owners == layer] for layer in range(layout.n_layers)]


# Exact.


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layers", ["flat", "parameters"])
def test_sums_are_those_of_single_examples(name, dtype, layers):
    model, examples = sample(name, dtype)
    clipping = by_parameters(model) if layers == "parameters" else FLAT
    engine = Engine(model, squared_loss, examples, clipping=clipping)
    rows = one_by_one(name, dtype)
    norms = [np.linalg.norm(one, axis=1) for one in of_layers(engine.layout, rows)]
    tolerance = 1e-5 if dtype == torch.float32 else 3e-12
    # nearly all clipped, half of them, none
    for factor in (0.01, 1.0, 1e3):
        radii = np.array([factor * max(np.median(one), 1e-3) for one in norms])
        step = radii.min() * 2.0**-50
        found = engine.sum(examples, grid_of(radii, np.full(len(radii), step)))
        for own, total, norm, radius in zip(
            of_layers(engine.layout, rows),
            of_layers(engine.layout, found),
            norms,
            radii,
            strict=True,
        ):
            weights = np.minimum(1.0, radius / np.maximum(norm, 1e-300))
            # what autograd rounds of a gradient that is nearly nothing is not the sum's fault
            added = weights @ np.maximum(norm, 1e-2 * np.linalg.norm(rows, axis=1))
            assert np.linalg.norm(total - weights @ own) <= tolerance * added


def test_the_loss_is_the_mean_over_the_batch():
    model, examples = sample("perceptron")
    with torch.no_grad():
        losses = (model(examples[0]) - examples[1]).square().sum(1)
    engine = engine_of("perceptron")
    assert engine.step(examples).mean_loss == pytest.approx(float(losses.mean()))
    empty = engine.step(tuple(one[:0] for one in examples))
    assert math.isnan(empty.mean_loss)
    assert not empty.integers.any()


def two_layers():
    return Of(
        lambda m, x: torch.cat([m.a(x[:, :2]), m.b(x[:, 2:])], 1),
        a=nn.Linear(2, 1, bias=False),
        b=nn.Linear(1, 1, bias=False),
    )


def test_layers_are_clipped_by_themselves():
    """By hand: gradients (3, 4) and 12 of two layers, radii 1 and 6."""
    examples = (torch.tensor([[3.0, 4.0, 12.0], [0.3, 0.4, 1.2]]), torch.ones(2, 2))
    clipping = LayerClipping(names=("b", "a"), norms=(6.0, 1.0), sizes=(1, 2), allocation="equal")
    engine = Engine(two_layers(), inner_product_loss, examples, clipping=clipping)
    total = engine.sum(examples, grid_of(np.array([6.0, 1.0]), np.full(2, FINE)))
    assert total == pytest.approx([0.6 + 0.3, 0.8 + 0.4, 6 + 1.2], rel=1e-6)
    engine = Engine(two_layers(), inner_product_loss, examples)
    total = engine.sum(examples, grid_of(6.5, FINE))
    assert total == pytest.approx([1.5 + 0.3, 2 + 0.4, 6 + 1.2], rel=1e-6)


def test_a_group_of_blocks_is_rounded_once():
    """0.4 of a step in each block: 40 blocks make 16 groups of two or three, rounded to 1."""
    engine = engine_of_chosen_gradients(0, 1, 1, block=1)
    for n_blocks, total in ((16, 0), (40, 16), (80, 32)):
        examples = (torch.full((n_blocks, 1), 0.4), torch.ones(n_blocks, 1))
        assert engine.step(examples, grid_of(1.0, 1.0)).integers.tolist() == [total]


@pytest.mark.soundness
def test_the_blocks_of_a_group_are_added_in_double_precision():
    """In single precision, 2^-30 would vanish beside a half that another block takes away."""
    engine = engine_of_chosen_gradients(0, 1, 1, block=1)
    examples = (torch.tensor([[0.5], [2.0**-30], [-0.5]] * 16), torch.ones(48, 1))
    assert engine.step(examples, grid_of(1.0, 2.0**-40)).integers.tolist() == [16 * 2**10]
    examples[1][[0, 1, 20]] = nan
    assert engine.step(examples).n_non_finite == 3


# Bits.


THREADS_SEEN = []
"""By the model of the next test; what hangs on a model is copied."""


def told(model, examples):
    THREADS_SEEN.append(torch.get_num_threads())
    return model.inner(examples)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_every_block_is_computed_on_one_thread(in_flight):
    """How torch splits work over threads decides how it rounds."""
    examples = (torch.randn(12, 3), torch.randn(12, 2))
    engine = Engine(
        Of(told, inner=nn.Linear(3, 2)), squared_loss, examples, block=2, in_flight=in_flight
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        THREADS_SEEN.clear()
        engine.step(examples)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(THREADS_SEEN) == {1}


@pytest.mark.soundness
def test_settings_of_the_caller_change_no_bit():
    """Products in half precision would be off by more than the plan pays for."""
    _, examples = sample("perceptron")
    engine = engine_of("perceptron")
    expected = engine.step(examples).integers
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert np.array_equal(engine.step(examples).integers, expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def spoilt(examples, rows, value=nan):
    """The same with something that is not finite in some rows: of the inputs, or the targets."""
    examples = tuple(one.clone() for one in examples)
    place = examples[0] if examples[0].is_floating_point() else examples[-1]
    place.flatten(1)[rows, 0] = value
    return examples


@pytest.mark.soundness
@pytest.mark.parametrize("name", SAMPLES)
def test_no_bit_of_a_contribution_comes_from_another_example(name):
    model, examples = sample(name)
    alone = PerExample(model, squared_loss, layout_of(model, FLAT))
    method = alone.method_for(examples)
    with one_thread():
        _, before = alone.contributions(examples, method, 1)
        changed = [spoilt(examples, [1, 2], value) for value in (nan, math.inf, 3e38)]
        changed.append(tuple(one[[0, 2, 1, 3]] for one in examples))
        for others in changed:
            _, after = alone.contributions(others, method, 1)
            assert before.keys() == after.keys()
            for place, contribution in before.items():
                kept, found = contribution.dense()[[0, 3]], after[place].dense()[[0, 3]]
                assert torch.equal(kept, found), alone._layout.names[place]
                squares = contribution.squared_norms()[[0, 3]]
                assert torch.equal(squares, after[place].squared_norms()[[0, 3]])


# Within the radius.


def square_of(integers):
    return sum(int(one) ** 2 for one in integers)


def check_within(engine, examples, radius):
    """No example moves a layer by more than its radius and its own rounding."""
    layout = engine.layout
    grid = grid_of(np.full(layout.n_layers, radius), np.full(layout.n_layers, radius * FINE))
    share = Fraction(rounding_share(engine.block))
    for i in range(len(examples[-1])):
        found = engine.step(tuple(one[i : i + 1] for one in examples), grid).integers
        for own, size in zip(of_layers(layout, found), layout.sizes, strict=True):
            rounded = Fraction(math.isqrt(size) + 1, 2)
            assert square_of(own) <= ((1 + share) / Fraction(FINE) + rounded) ** 2


def scaled(examples, scale, which="all"):
    return tuple(
        one * scale
        if one.is_floating_point() and which in {"all", "targets" if i else "inputs"}
        else one
        for i, one in enumerate(examples)
    )


@pytest.mark.soundness
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6, 1e15, 1e-20, 1e30, 1e-30, 1e37, 1e-40])
def test_no_example_exceeds_its_radius(name, scale):
    _, examples = sample(name)
    for which in ("inputs", "targets", "all"):
        for radius in (1e-3, 100.0):
            check_within(engine_of(name), scaled(examples, scale, which), radius)


@pytest.mark.soundness
@settings(max_examples=60)
@given(
    st.sampled_from([1e-6, 1e-2, 1.0, 1e3]),
    st.integers(-149, 127),
    st.integers(-149, 127),
    st.integers(0, 2**23),
    st.sampled_from([1, 3, 9]),
)
def test_products_of_any_two_sizes_stay_within_the_radius(radius, above, below, mantissa, width):
    """From huge activations with vanishing gradients to gradients beyond single precision."""
    factor = 1 + mantissa / 2**23
    examples = (
        torch.full((1, width), factor * 2.0**above, dtype=torch.float64).float(),
        torch.full((1, width), -factor * 2.0**below, dtype=torch.float64).float(),
    )
    check_within(engine_of_chosen_gradients(0, width, width), examples, radius)


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("x", "t"),
    [(1e150, 1e-163), (1e-163, 1e150), (1e200, 1e-190), (1e-300, 1e305), (1e-320, 1e300)],
)
def test_squares_beyond_double_precision_do_not_hide_a_norm(x, t):
    examples = tuple(torch.full((1, 1), one, dtype=torch.float64) for one in (x, t))
    check_within(engine_of_chosen_gradients(0, 1, 1, torch.float64), examples, 1e-6)


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 24), (20, 3)], ids=["gram products", "written"])
@settings(max_examples=30)
@given(
    st.integers(1, 52), st.floats(-15, 15), st.sampled_from([1e-3, 1.0, 1e3]), st.integers(0, 2**31)
)
def test_tokens_that_cancel_stay_within_the_radius(dtype, shape, n_lost, log_scale, radius, bits):
    """Outer products that leave only their last bits, at any size."""
    n_tokens, width = shape
    draws = torch.Generator().manual_seed(bits)
    x, t = (
        torch.randn(2, n_tokens // 2, width, generator=draws).to(dtype) * 10.0**log_scale
        for _ in range(2)
    )
    examples = (torch.cat([x, x * (1 + 2.0**-n_lost)], 1), torch.cat([t, -t], 1))
    engine = engine_of_chosen_gradients(n_tokens, width, width, dtype)
    check_within(engine, examples, radius)
    outer = torch.einsum("nto,nti->noi", examples[1].double(), examples[0].double())
    norm = float(outer[0].norm())
    # where digits are lost the weight is small, but an example is not lost without need
    if n_lost < 12 and 1e-6 * radius < norm < 1e25 * radius:
        total = engine.sum(tuple(one[:1] for one in examples), grid_of(radius, radius * FINE))
        assert np.linalg.norm(total) >= 0.9 * min(norm, radius)


@pytest.mark.soundness
def test_the_smallest_and_largest_clip_norms_are_kept_and_others_refused():
    draws, engine = torch.Generator().manual_seed(1), engine_of_chosen_gradients(0, 2, 2)
    for size in (1e-19, 1e-6, 1.0, 1e6, 1e19):
        examples = tuple(torch.randn(BLOCK, 2, generator=draws) * size for _ in range(2))
        for radius in (1e-12, 1e12):
            check_within(engine, examples, radius)
        for radius in (1e-44, 1e-13, 1e13, 1e100):
            with pytest.raises(ArgumentError, match="clip norms"):
                engine.step(examples, grid_of(radius, radius * FINE))


@pytest.mark.soundness
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e-3])
def test_the_rounding_of_a_block_keeps_to_its_share(name, scale):
    """The sum of a block against the sums of its examples, of which the others are left out.

    In a block of another size, the model itself may round an example otherwise.
    """
    examples, engine = scaled(sample(name)[1], scale), engine_of(name)
    for radius in (1e-2, 1.0):
        grid = grid_of(radius, radius * FINE)
        total = engine.step(examples, grid).integers
        singles = [
            engine.step(spoilt(examples, [j for j in range(BLOCK) if j != i]), grid).integers
            for i in range(BLOCK)
        ]
        # one share for each example in the block, and one for each alone
        shares = 2 * BLOCK * Fraction(rounding_share(BLOCK)) / Fraction(FINE)
        rounded = Fraction((BLOCK + 1) * (math.isqrt(len(total)) + 1), 2)
        assert square_of(total - sum(singles)) <= (shares + rounded) ** 2


# Moved by a replaced example.


def planned_grid(engine, multiplier=4.0, n_records=100):
    """The grid of a plan with clip norm 1."""
    sampling = Poisson(n_records=n_records, rate=0.1)
    plan = plan_of(sampling=sampling, multipliers=np.array([multiplier]))
    return sum_grid(attrs.evolve(plan, block=engine.block), 0, engine.layout.sizes)


def moved(engine, examples, index, replacement, grid):
    """The square of how far the sum moves when one example is replaced, exactly."""
    changed = tuple(one.clone() for one in examples)
    for one, other in zip(changed, replacement, strict=True):
        one[index] = other
    first, second = (engine.step(batch, grid).integers for batch in (examples, changed))
    return square_of(first - second) * Fraction(float(grid.steps[0])) ** 2


SCALES = st.sampled_from([1.0, 1e3, 1e-3, 1e10, 1e21, 2.65e22, 1e30, 1e38, 1e-38])


@pytest.mark.soundness
@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SAMPLES)),
    st.sampled_from([0.5, 4.0, 2.0**25]),
    SCALES,
    SCALES,
    st.integers(0, BLOCK - 1),
)
def test_replacing_an_example_moves_the_sum_by_at_most_two_clip_norms(
    name, multiplier, scale, other_scale, index
):
    engine, examples = engine_of(name), sample(name)[1]
    replacement = tuple(one[index - 1] for one in scaled(examples, -other_scale))
    grid = planned_grid(engine, multiplier)
    assert moved(engine, scaled(examples, scale), index, replacement, grid) <= 4


@pytest.mark.soundness
@pytest.mark.parametrize("shape", [(0, 4), (2, 24)], ids=["single", "tokens"])
@pytest.mark.parametrize(
    ("n_examples", "block"),
    [(4, 4), pytest.param(40, 1, marks=pytest.mark.soak)],
    ids=["block", "groups"],
)
def test_searching_for_the_worst_pair_does_not_exceed_two_clip_norms(shape, n_examples, block):
    """Hill climbing from random pairs: as opposite as possible, of any size."""
    n_tokens, width = shape
    engine = engine_of_chosen_gradients(n_tokens, width, width, block=block)
    grid, worst = planned_grid(engine, 0.5), Fraction(0)
    draws = torch.Generator().manual_seed(3)
    whole = (n_examples, n_tokens, width) if n_tokens else (n_examples, width)
    for _ in range(3):
        sizes = torch.empty(2).uniform_(-3, 15, generator=draws)
        x, t = (torch.randn(whole, generator=draws) * 10.0 ** float(size) for size in sizes)
        pair, best = (x[0], -t[0]), Fraction(0)
        for _ in range(8):
            shaken = [1 + torch.randn(whole[1:], generator=draws) * 0.05 for _ in pair]
            factor = 10.0 ** float(torch.randn(1, generator=draws))
            tried = tuple(one * factor * own for one, own in zip(pair, shaken, strict=True))
            found = moved(engine, (x, t), 0, tried, grid)
            best, pair = (found, tried) if found > best else (best, pair)
        worst = max(worst, best, moved(engine, (x, t), 0, (x[0], -t[0]), grid))
    assert 1.99**2 < worst <= 4


@pytest.mark.soundness
@pytest.mark.parametrize(
    ("n_examples", "block"),
    [(4, 4), pytest.param(40, 1, marks=pytest.mark.soak)],
    ids=["block", "groups"],
)
def test_rounding_to_the_grid_is_paid_for_by_a_smaller_radius(n_examples, block):
    """All coordinates round up: without the smaller radius the sum would move too far."""
    n = 32
    engine = engine_of_chosen_gradients(0, n, n, block=block)
    examples = (torch.zeros(n_examples, n), torch.ones(n_examples, n))
    examples[0][0] = 1e6
    replacement = (torch.full((n,), 1e6), -torch.ones(n))
    kept, unreduced = [], []
    for multiplier in np.linspace(2.0**29, 2.0**30, 40 if block > 1 else 8):
        grid = planned_grid(engine, float(multiplier))
        kept.append(moved(engine, examples, 0, replacement, grid))
        whole = SumGrid(steps=grid.steps, radii=np.ones(1))
        unreduced.append(moved(engine, examples, 0, replacement, whole))
    assert max(unreduced) > 2.0005**2
    assert 1.995**2 < max(kept) <= 4


@pytest.mark.soundness
def test_the_rounding_of_sums_is_paid_for_by_a_smaller_radius():
    """The others of the block push all partial sums to where they are rounded most."""
    n, block = 16, 16
    engine = engine_of_chosen_gradients(0, n, 2, block=block)
    grid = planned_grid(engine, 0.5)
    whole = SumGrid(steps=grid.steps, radii=np.ones(1))
    kept, unreduced = [], []
    for factor in torch.linspace(0.3, 0.999, 120).tolist():
        x = torch.full((block, n), 1 / math.sqrt(2 * n)) * factor
        x[-1] *= 1e3
        t = torch.ones(block, 2)
        replacement = (x[-1], -t[-1])
        kept.append(moved(engine, (x, t), block - 1, replacement, grid))
        unreduced.append(moved(engine, (x, t), block - 1, replacement, whole))
    assert max(kept) <= 4 < max(unreduced)


# Not finite.


@pytest.mark.soundness
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("value", [nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_counts_nothing_and_is_counted(name, value):
    engine, examples = engine_of(name), sample(name)[1]
    found = engine.step(spoilt(examples, [1, 2], value))
    assert found.n_non_finite == 2
    kept = tuple(one[[0, 3]] for one in examples)
    expected = engine.step(kept).integers
    off = np.linalg.norm((found.integers - expected).astype(float))
    assert off <= 1e-5 * np.linalg.norm(expected.astype(float))
    nothing = engine.step(spoilt(examples, [0, 1, 2, 3], value))
    assert nothing.n_non_finite == BLOCK
    assert not nothing.integers.any()


@pytest.mark.soundness
def test_an_example_that_is_not_finite_in_one_layer_is_left_out_of_all():
    clipping = LayerClipping(names=("a", "b"), norms=(1.0, 1.0), sizes=(2, 1), allocation="equal")
    examples = (torch.tensor([[0.25, 0.25, math.inf], [0.5, 0.25, 0.125]]), torch.ones(2, 2))
    engine = Engine(two_layers(), inner_product_loss, examples, clipping=clipping)
    grid = grid_of(np.ones(2), np.full(2, FINE))
    assert engine.sum(examples, grid) == pytest.approx([0.5, 0.25, 0.125], rel=1e-6)
    assert engine.step(examples, grid).n_non_finite == 1


# Blocks.


def test_the_chosen_block_follows_from_shapes_and_the_expected_batch():
    model, examples = sample("perceptron")
    sums = engine_of("perceptron").sums
    assert sums.chosen_block(examples, 8.0, 0.0) == 8
    assert sums.chosen_block(examples, 7.2, 0.0) == 8
    assert sums.chosen_block(examples, 8.0, 2.0) == 16
    assert sums.chosen_block(examples, 0.0, 0.0) == 1
    # two blocks of a batch that is worth two threads
    assert sums.chosen_block(examples, 20_000.0, 0.0) == 10_000
    again = Engine(copy.deepcopy(model), squared_loss, examples).sums
    for other in (examples, spoilt(examples, [0]), scaled(examples, 1e20)):
        assert again.chosen_block(other, 1e6, 0.0) == sums.chosen_block(examples, 1e6, 0.0)
    most = sums.chosen_block(examples, 1e12, 0.0)
    assert sums.chosen_block(examples, 1e9, 0.0) == most < 2**29 // 100


@pytest.mark.parametrize(("side", "block"), [(512, 32), (1024, 8), (2900, 1)])
def test_the_largest_array_of_a_block_is_capped(side, block):
    """Written gradients of side^2 numbers of 4 bytes, in at most 2^25 bytes."""
    model = Of(lambda m, x: x @ m.table, table=None)
    model.table = nn.Parameter(torch.zeros(side, side))
    examples = (torch.zeros(1, side), torch.zeros(1, side))
    engine = Engine(model, squared_loss, examples)
    assert engine.sums.chosen_block(examples, 1000.0, 0.0) == block
