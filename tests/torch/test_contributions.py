# SPDX-License-Identifier: Apache-2.0
"""Norms are never too small and sums never off by more than stated, in exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pufferslice.learning.integer_sums import rounding_share
from pufferslice.torch.contributions import (
    Dense,
    Products,
    Rows,
    Weights,
    add_quantised,
    row_norms,
    scaled,
)

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("dense", "one token", "tokens", "rows")
N_EXAMPLES, N_TOKENS, N_OUT, N_IN = 3, 2, 2, 3
BITS = st.integers(0, 2**32 - 1)
ORDINARY = st.integers(-4, 4)
ANY_EXPONENT = st.integers(-149, 127)


@st.composite
def float32s(draw, shape, exponents=ORDINARY):
    """Float32 numbers of the sizes that exponents say, denormal ones too; some are 0."""
    rng = np.random.default_rng(draw(BITS))
    mantissas = 1 + rng.integers(0, 2**23, shape) / 2**23
    signs = rng.choice([-1.0, 1.0, 1.0, 0.0], shape, p=[0.45, 0.3, 0.15, 0.1])
    n_scales = min(3, math.prod(shape))
    scales = np.array(draw(st.lists(exponents, min_size=n_scales, max_size=n_scales)))
    values = signs * mantissas * 2.0 ** rng.choice(scales, shape)
    return torch.from_numpy(values).float()


@st.composite
def contributions(draw, kind, exponents=ORDINARY):
    n = N_EXAMPLES
    if kind == "dense":
        return Dense(draw(float32s((n, N_OUT * N_IN), exponents)))
    if kind != "rows":
        # one exponent for each side: the products cover the range of float64 well enough
        shapes = ((n, 1 if kind == "one token" else N_TOKENS, width) for width in (N_OUT, N_IN))
        return Products(*(draw(float32s(shape, exponents)) for shape in shapes))
    owners = torch.tensor([0, 0, 1, 2])
    rows = torch.tensor([0, 1, 1, 0])
    vectors = draw(float32s((4, N_IN), exponents))
    return Rows(owners=owners, rows=rows, vectors=vectors, n_examples=n, n_rows=N_OUT)


def fractions(tensor):
    return [[Fraction(float(value)) for value in row] for row in tensor.double().tolist()]


def exact_vectors(contribution):
    """What the contribution stands for, in fractions: one row per example."""
    if not isinstance(contribution, Products):
        return fractions(contribution.dense())
    sides = (map(fractions, (one, other)) for one, other in examples_of(contribution))
    return [
        [sum(a[i] * b[j] for a, b in tokens) for i in range(N_OUT) for j in range(N_IN)]
        for tokens in ([*zip(left, right, strict=True)] for left, right in sides)
    ]


def examples_of(products):
    return zip(products.left, products.right, strict=True)


def exact_square(vector):
    return sum(Fraction(value) ** 2 for value in vector)


def clipping_weights(contribution, radius):
    """As the clipping makes them: radius over the norm, and over what rounding may move."""
    share = rounding_share(N_EXAMPLES)
    squares = contribution.squared_norms().numpy()
    radii = contribution.rounding_radii()
    bounds = np.sqrt(squares)
    if radii is not None:
        bounds = np.maximum(bounds, radii.numpy() / share)
    with np.errstate(divide="ignore"):
        return np.minimum(radius / (bounds * (1 + 2.0**-40)), 1.0)


def exact_sum(contribution, weights):
    rows = exact_vectors(contribution)
    return [
        sum(w * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(len(rows[0]))
    ]


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data())
def test_squared_norms_are_upper_bounds_and_close(kind, data):
    contribution = data.draw(contributions(kind, ANY_EXPONENT))
    squares = contribution.squared_norms()
    assert squares.dtype == torch.float64
    slack = Fraction(1) + Fraction(1, 2**45)
    for bound, vector, most in zip(
        squares.tolist(), exact_vectors(contribution), uncancelled(contribution), strict=True
    ):
        assert Fraction(bound) >= exact_square(vector)
        assert Fraction(bound) <= slack * exact_square(vector) + most / 2**40 + Fraction(1, 2**900)


def uncancelled(contribution):
    """What the norms of tokens would be without cancellation; 0 for all others."""
    if not isinstance(contribution, Products) or contribution.n_tokens == 1:
        return [0] * N_EXAMPLES
    sides = (
        (one.flatten().tolist(), other.flatten().tolist())
        for one, other in examples_of(contribution)
    )
    return [exact_square(left) * exact_square(right) for left, right in sides]


@pytest.mark.soundness
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(st.data(), st.sampled_from([1e-3, 0.1, 1.0, 37.0]))
def test_sums_are_off_by_no_more_than_a_share_of_the_radius_each(kind, data, radius):
    """With v_i the exact vector times its weight in the dtype of the sum, never above w_i."""
    contribution = data.draw(contributions(kind, ANY_EXPONENT))
    assume(torch.isfinite(contribution.squared_norms()).all())
    weights = Weights(torch.from_numpy(clipping_weights(contribution, radius)))
    total = contribution.weighted_sum(weights)
    assert torch.isfinite(total).all()
    counted = weights.like(total)
    expected = exact_sum(contribution, [Fraction(w) for w in counted.tolist()])
    off = exact_square(Fraction(a) - b for a, b in zip(total.tolist(), expected, strict=True))
    assert off <= (N_EXAMPLES * Fraction(rounding_share(N_EXAMPLES)) * Fraction(radius)) ** 2


@settings(max_examples=100)
@given(st.floats(0, 1))
@example(5.5e-42)
@example(2.0**-150 * 1.02)
@example(2.0**-126)
@example(2.0**-149 * 1.5)
@example(1.0)
def test_weights_in_single_precision_are_never_larger(weight):
    (rounded,) = Weights(torch.tensor([weight], dtype=torch.float64)).like(torch.zeros(1)).tolist()
    assert 0 <= rounded <= weight
    if weight > 2.0**-80:
        assert rounded >= weight * (1 - 2.0**-22)


def check_bounds(rows):
    """At least the exact norms, and hardly more."""
    slack = 1 + Fraction(1, 2**40)
    for norm, row in zip(row_norms(rows).tolist(), rows.tolist(), strict=True):
        exact, square = exact_square(row), norm * norm
        assert exact <= Fraction(norm) ** 2 <= exact * slack
        if math.isfinite(square) and square > 1e-290:
            assert exact <= Fraction(square) <= exact * slack


def numbers(smallest, largest, width):
    return st.floats(-largest, largest, width=width).map(
        lambda value: 0.0 if abs(value) < smallest else value
    )


@pytest.mark.soundness
@settings(max_examples=100)
@given(st.lists(numbers(0.0, 2.0**127, 32), min_size=1, max_size=9))
@example([2.0**-149])
@example([2.0**-149, 2.0**127, 2.0**-70])
@example([1.0, 2.0**-27] * 4)
def test_norms_of_single_precision_are_upper_bounds(values):
    check_bounds(torch.tensor([values], dtype=torch.float32))


@pytest.mark.soundness
@settings(max_examples=100)
@given(st.lists(numbers(2.0**-900, 2.0**1000, 64), min_size=1, max_size=9))
@example([1e-163, 1e-170])
@example([1e200, 1e200, -1e180])
@example([1.0, 2.0**-27, 2.0**-53])
def test_norms_of_double_precision_are_upper_bounds_beyond_the_range_of_squares(values):
    check_bounds(torch.tensor([values], dtype=torch.float64))


def test_rows_of_nothing():
    for dtype in (torch.float32, torch.float64):
        assert row_norms(torch.zeros(2, 0, dtype=dtype)).tolist() == [0, 0]


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_small_terms_beside_a_large_one_are_not_lost(dtype):
    """In a running sum of single precision they would all vanish."""
    rows = torch.full((1, 100_001), 2.0**-13, dtype=dtype)
    rows[0, 0] = 2.0**13
    exact = Fraction(2) ** 26 + 100_000 * Fraction(2) ** -26
    (found,) = row_norms(rows).square().tolist()
    assert exact <= Fraction(found) <= exact * (1 + Fraction(1, 2**30))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_its_own_row(dtype, bad):
    rows = torch.ones(3, 4, dtype=dtype)
    rows[1, 2] = bad
    assert torch.isfinite(row_norms(rows)).tolist() == [True, False, True]


@settings(max_examples=100)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(1e-9, 1e3) | st.sampled_from([1.0, 0.1, 2.0**-30]),
)
def test_sums_are_rounded_to_the_nearest_multiple(values, dtype, step):
    sums = torch.tensor(values, dtype=dtype) / 3
    integers = np.zeros(len(values), dtype=np.int64)
    add_quantised(sums, step, integers)
    for value, integer in zip(sums.tolist(), integers.tolist(), strict=True):
        off = abs(Fraction(value) - integer * Fraction(step))
        assert off <= Fraction(step) / 2 + abs(Fraction(value)) / 2**52


@settings(max_examples=60)
@given(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5),
    st.floats(2.0**-60, 2.0**10),
    st.sampled_from([torch.float32, torch.float64, torch.float16]),
)
def test_integers_are_scaled_in_double_precision_and_rounded_once_more(numbers, scale, dtype):
    integers = np.array(numbers, dtype=np.int64)
    expected = torch.from_numpy(integers.astype(np.float64) * scale).to(dtype)
    assert torch.equal(scaled(integers, scale, dtype), expected)


@pytest.mark.soundness
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_not_rounded_to_it(dtype, seed):
    torch.manual_seed(seed)
    rows = torch.randn(50, 300).to(dtype)
    exact = rows.double().square().sum(1).sqrt()
    assert (row_norms(rows) >= exact).all()
    torch.testing.assert_close(row_norms(rows), exact, rtol=1e-12, atol=0.0)
